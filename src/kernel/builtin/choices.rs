//! What a person chose with a command of the kernel, read from its argument.

use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::provider::Effort;

use crate::ports::Snapshot;

/// How much a model can be told to reason, as it is typed.
pub(in crate::kernel) const LEVELS: &str = "minimal|low|medium|high|xhigh|max|off";
/// The most characters of a session's name.
const MAX_TITLE: usize = 80;

/// Returns the provider and the model of `[PROVIDER/]MODEL`. What stands before the first slash is a provider where it is
/// one; else it belongs to the model's name, and `current` provides it (kernel rule 8.2.8).
pub(in crate::kernel) fn model(snapshot: &Snapshot, current: &str, text: &str) -> (String, String) {
    let is_provider = |id: &str| snapshot.providers.iter().any(|provider| provider.spec().id == id);
    match text.split_once('/') {
        Some((provider, model)) if is_provider(provider) && !model.is_empty() => {
            (provider.to_owned(), model.to_owned())
        }
        _ => (current.to_owned(), text.to_owned()),
    }
}

/// Returns how much the model shall reason; nothing for `off`.
///
/// # Errors
/// `INVALID_INPUT` for any other word.
pub(in crate::kernel) fn level(text: &str) -> Result<Option<Effort>, KernelError> {
    Ok(Some(match text.to_ascii_lowercase().as_str() {
        "off" => return Ok(None),
        "minimal" => Effort::Minimal,
        "low" => Effort::Low,
        "medium" => Effort::Medium,
        "high" => Effort::High,
        "xhigh" => Effort::XHigh,
        "max" => Effort::Max,
        _ => return Err(invalid(format!("`{text}` is none of {LEVELS}"))),
    }))
}

/// Returns how it is typed.
pub(in crate::kernel) fn level_name(level: Option<Effort>) -> &'static str {
    match level {
        None => "off",
        Some(Effort::Minimal) => "minimal",
        Some(Effort::Low) => "low",
        Some(Effort::Medium) => "medium",
        Some(Effort::High) => "high",
        Some(Effort::XHigh) => "xhigh",
        Some(Effort::Max) => "max",
    }
}

/// Returns a name for a session, on one line.
///
/// # Errors
/// `INVALID_INPUT` when it is longer than 80 characters.
pub(in crate::kernel) fn title(text: &str) -> Result<String, KernelError> {
    let title = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let length = title.chars().count();
    if length > MAX_TITLE {
        return Err(invalid(format!("a name has at most {MAX_TITLE} characters, this one has {length}")));
    }
    Ok(title)
}

/// Returns a plugin's name, and whether it shall be on.
///
/// # Errors
/// `INVALID_INPUT` for anything else than `enable NAME` and `disable NAME`, and a plugin that is not there.
pub(in crate::kernel) fn switch(snapshot: &Snapshot, text: &str) -> Result<(String, bool), KernelError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (name, on) = match words.as_slice() {
        ["enable", name] => (*name, true),
        ["disable", name] => (*name, false),
        _ => return Err(invalid("it takes `enable NAME`, `disable NAME`, or nothing")),
    };
    match snapshot.plugins.iter().any(|plugin| plugin.name == name) {
        true => Ok((name.to_owned(), on)),
        false => Err(invalid(format!("no plugin `{name}` is there; `/plugins` lists them"))),
    }
}

/// Refuses words after a command that takes none.
///
/// # Errors
/// `INVALID_INPUT` when there are some.
pub(in crate::kernel) fn nothing(text: &str, why: &str) -> Result<(), KernelError> {
    if text.is_empty() { Ok(()) } else { Err(invalid(format!("it takes no argument: {why}"))) }
}

pub(in crate::kernel) fn invalid(message: impl Into<String>) -> KernelError {
    KernelError::new(ErrorCode::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kernel::testing::{Model, plugin};

    fn code<T: std::fmt::Debug>(outcome: Result<T, KernelError>) -> ErrorCode {
        outcome.unwrap_err().code
    }

    #[test]
    fn a_slash_divides_only_behind_a_provider_that_is_there() {
        let snapshot = Snapshot { providers: vec![Arc::new(Model::default())], ..Snapshot::default() };
        let chosen = |text| model(&snapshot, "current", text);
        let pair = |provider: &str, model: &str| (provider.to_owned(), model.to_owned());
        assert_eq!(chosen("test/m"), pair("test", "m"));
        assert_eq!(chosen("test/a/b"), pair("test", "a/b"));
        assert_eq!(chosen("m"), pair("current", "m"));
        assert_eq!(chosen("meta/llama"), pair("current", "meta/llama"));
        assert_eq!(chosen("test/"), pair("current", "test/"));
    }

    #[test]
    fn a_level_is_read_in_any_case_and_named_as_it_is_typed() {
        for name in LEVELS.split('|') {
            assert_eq!(level_name(level(name).unwrap()), name);
            assert_eq!(level(&name.to_uppercase()).unwrap(), level(name).unwrap());
        }
        assert_eq!(code(level("much")), ErrorCode::InvalidInput);
        assert_eq!(code(level("")), ErrorCode::InvalidInput);
    }

    #[test]
    fn a_name_is_one_line_of_at_most_eighty_characters() {
        assert_eq!(title(" two\n words ").unwrap(), "two words");
        assert_eq!(title(&"é".repeat(80)).unwrap().chars().count(), 80);
        assert_eq!(code(title(&"é".repeat(81))), ErrorCode::InvalidInput);
    }

    #[test]
    fn a_switch_names_a_plugin_that_is_there() {
        let snapshot = Snapshot { plugins: vec![plugin("p")], ..Snapshot::default() };
        assert_eq!(switch(&snapshot, " disable  p ").unwrap(), ("p".to_owned(), false));
        assert_eq!(switch(&snapshot, "enable p").unwrap(), ("p".to_owned(), true));
        for text in ["disable q", "enable", "p", "enable p q", "on p"] {
            assert_eq!(code(switch(&snapshot, text)), ErrorCode::InvalidInput, "{text}");
        }
    }
}
