//! Inputs as clients send them, made into work: prose for the model, or a command.
//!
//! Parsing is the kernel's (kernel rules 3.3.26 to 28): a line that starts with `/name` is a command, everything else is
//! prose. Attachments become image parts here, before the session's actor sees the input.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bingo_plugin_sdk::event::{ErrorCode, Input, KernelError};
use bingo_plugin_sdk::item::{ContentPart, Origin};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most bytes of one picture.
const MAX_PICTURE: u64 = 10 * 1024 * 1024;
/// The most characters of a queue entry's preview.
const PREVIEW: usize = 80;

/// What an input asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Work {
    Prose(Prose),
    Command(CommandLine),
}

/// Words and pictures for the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Prose {
    pub(super) parts: Vec<ContentPart>,
    pub(super) origin: Origin,
}

/// A command as it was typed or chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CommandLine {
    pub(super) name: String,
    pub(super) args: String,
    pub(super) origin: Origin,
}

impl Work {
    /// Returns the first characters, for a queue entry.
    pub(super) fn preview(&self) -> String {
        let text = match self {
            Self::Command(line) => line.typed(),
            Self::Prose(prose) => prose.text().unwrap_or("(an image)").to_owned(),
        };
        text.chars().take(PREVIEW).collect()
    }

    /// Returns how many bytes of words and pictures it holds.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Command(line) => line.name.len() + line.args.len(),
            Self::Prose(prose) => prose.parts.iter().map(part_weight).sum(),
        }
    }

    /// Returns who sent it.
    pub(super) fn origin(&self) -> &Origin {
        match self {
            Self::Prose(prose) => &prose.origin,
            Self::Command(line) => &line.origin,
        }
    }
}

fn part_weight(part: &ContentPart) -> usize {
    match part {
        ContentPart::Text { text } => text.len(),
        ContentPart::Image { data, .. } => data.len(),
        // No input holds anything else.
        _ => 0,
    }
}

impl Prose {
    /// Returns the words, if there are any.
    pub(super) fn text(&self) -> Option<&str> {
        self.parts.iter().find_map(|part| match part {
            ContentPart::Text { text } => Some(text.as_str()),
            _ => None,
        })
    }
}

impl CommandLine {
    /// Returns the line a person would have typed.
    pub(super) fn typed(&self) -> String {
        format!("/{} {}", self.name, self.args).trim_end().to_owned()
    }
}

/// Makes an input into work; commands are recognised unless it was delivered from another session.
///
/// # Errors
/// `INVALID_INPUT` for an empty input, or an attachment that is no readable picture.
pub(super) async fn prepare(input: Input, commands: bool) -> Result<Work, KernelError> {
    let (text, attachments, origin) = match input {
        Input::Action { action } if commands => {
            let args = match action.args {
                Value::String(text) => text,
                Value::Null => String::new(),
                other => other.to_string(),
            };
            let origin = Origin::surface("action");
            return Ok(Work::Command(CommandLine { name: action.name, args, origin }));
        }
        Input::Action { .. } => return Err(invalid("only text can be delivered, no action")),
        Input::Text { text, attachments, origin } => (text, attachments, origin),
    };
    if let Some((name, args)) = parse_command(&text).filter(|_| commands) {
        return Ok(Work::Command(CommandLine { name, args, origin }));
    }
    let mut parts = Vec::new();
    if !text.trim().is_empty() {
        parts.push(ContentPart::text(text));
    }
    for attachment in &attachments {
        parts.push(picture(attachment).await?);
    }
    if parts.is_empty() {
        return Err(invalid("the input is empty: it needs text or a picture"));
    }
    Ok(Work::Prose(Prose { parts, origin }))
}

fn invalid(message: impl Into<String>) -> KernelError {
    KernelError::new(ErrorCode::InvalidInput, message)
}

/// Splits `/name args`; a bare `/` is prose, and a slash later in the line means nothing.
fn parse_command(text: &str) -> Option<(String, String)> {
    let line = text.trim_start().strip_prefix('/')?;
    let (name, args) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    (!name.is_empty()).then(|| (name.to_owned(), args.trim().to_owned()))
}

async fn picture(attachment: &str) -> Result<ContentPart, KernelError> {
    if let Some(rest) = attachment.strip_prefix("data:") {
        return data_url(rest);
    }
    let path = Path::new(attachment);
    if !path.is_absolute() {
        return Err(invalid("an attachment is a `data:` URL or an absolute path"));
    }
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || read_picture(&path)).await;
    read.map_err(|error| KernelError::new(ErrorCode::Internal, error.to_string()))?
}

fn data_url(rest: &str) -> Result<ContentPart, KernelError> {
    let (head, data) =
        rest.split_once(',').ok_or_else(|| invalid("an attachment's `data:` URL has no comma"))?;
    let media_type = head
        .strip_suffix(";base64")
        .ok_or_else(|| invalid("an attachment's `data:` URL must be base64: `data:image/png;base64,…`"))?;
    if !PICTURES.iter().any(|(known, _)| *known == media_type) {
        return Err(invalid(format!(
            "`{media_type}` is no picture type that models take; {}",
            known_types()
        )));
    }
    if data.len() as u64 / 4 * 3 > MAX_PICTURE {
        return Err(too_large());
    }
    BASE64.decode(data).map_err(|error| invalid(format!("an attachment's data is not base64: {error}")))?;
    Ok(ContentPart::Image { media_type: media_type.to_owned(), data: data.to_owned() })
}

/// Picture types and the bytes their files begin with.
const PICTURES: [(&str, &[u8]); 4] = [
    ("image/png", b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/gif", b"GIF8"),
    ("image/webp", b"RIFF"),
];

fn known_types() -> String {
    let names: Vec<&str> = PICTURES.iter().map(|(name, _)| *name).collect();
    format!("they take {}", names.join(", "))
}

fn too_large() -> KernelError {
    invalid(format!("a picture may have at most {} MiB", MAX_PICTURE / 1024 / 1024))
}

fn read_picture(path: &Path) -> Result<ContentPart, KernelError> {
    let unreadable = |error: std::io::Error| invalid(format!("cannot read {}: {error}", path.display()));
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    // A pipe or a device could keep the reader for ever.
    if !metadata.is_file() {
        return Err(invalid(format!("{} is no file", path.display())));
    }
    if metadata.len() > MAX_PICTURE {
        return Err(too_large());
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let found = PICTURES.iter().find(|(_, magic)| bytes.starts_with(magic));
    let (media_type, _) =
        found.ok_or_else(|| invalid(format!("{} is no picture; {}", path.display(), known_types())))?;
    Ok(ContentPart::Image { media_type: (*media_type).to_owned(), data: BASE64.encode(&bytes) })
}

/// Returns the title that a session takes from its first words (kernel rule 3.1.13).
pub(super) fn title(text: &str) -> Option<String> {
    const LONGEST: usize = 48;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let sentence = first_sentence(line);
    let short: String = sentence.chars().take(LONGEST).collect();
    Some(if short.len() < sentence.len() { format!("{short}…") } else { short })
}

fn first_sentence(line: &str) -> &str {
    for (at, letter) in line.char_indices() {
        let end = at + letter.len_utf8();
        let closes = match letter {
            '.' | '!' | '?' => line[end..].chars().next().is_none_or(char::is_whitespace),
            '。' | '！' | '？' => true,
            _ => false,
        };
        if closes {
            return &line[..end];
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::view::Action;
    use serde_json::json;

    use super::*;

    fn text(text: &str, attachments: &[&str]) -> Input {
        let attachments = attachments.iter().map(|url| (*url).to_owned()).collect();
        Input::Text { text: text.to_owned(), attachments, origin: Origin::surface("test") }
    }

    /// Rule 3.3.27.
    #[tokio::test]
    async fn only_a_leading_slash_and_a_name_make_a_command() {
        for (line, expected) in [
            ("/count a  b ", Some(("count", "a  b"))),
            ("  /x", Some(("x", ""))),
            ("/x\ny", Some(("x", "y"))),
            ("/", None),
            ("/ x", None),
            ("a /x", None),
        ] {
            let expected = expected.map(|(name, args)| (name.to_owned(), args.to_owned()));
            assert_eq!(parse_command(line), expected, "{line:?}");
        }
        let delivered = prepare(text("/x", &[]), false).await.unwrap();
        assert!(matches!(delivered, Work::Prose(_)), "a delivery is never a command");
    }

    /// Rule 3.3.26, 3.3.27.
    #[tokio::test]
    async fn an_action_is_a_command_with_its_arguments_as_text() {
        for (args, expected) in [(json!("a b"), "a b"), (json!(null), ""), (json!({"a": 1}), r#"{"a":1}"#)] {
            let action = Action { name: "x".to_owned(), args };
            let Ok(Work::Command(line)) = prepare(Input::Action { action }, true).await else { panic!() };
            assert_eq!(line.args, expected);
        }
    }

    /// Rule 3.3.28.
    #[tokio::test]
    async fn pictures_come_after_the_words() {
        let Work::Prose(prose) = prepare(text("see", &["data:image/png;base64,aGk="]), true).await.unwrap()
        else {
            panic!("no prose")
        };
        let picture = ContentPart::Image { media_type: "image/png".to_owned(), data: "aGk=".to_owned() };
        assert_eq!(prose.parts, vec![ContentPart::text("see"), picture]);
    }

    #[tokio::test]
    async fn a_picture_file_is_read_by_what_it_begins_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dot");
        std::fs::write(&path, b"\x89PNG\r\n\x1a\nrest").unwrap();
        let part = picture(path.to_str().unwrap()).await.unwrap();
        let data = "iVBORw0KGgpyZXN0".to_owned();
        assert_eq!(part, ContentPart::Image { media_type: "image/png".to_owned(), data });
        std::fs::write(&path, b"text").unwrap();
        assert!(picture(path.to_str().unwrap()).await.is_err());
        assert!(picture("/dev/zero").await.is_err());
    }

    /// Rule 3.3.25.
    #[tokio::test]
    async fn what_is_no_input_is_refused_in_words() {
        for (input, word) in [
            (text("", &[]), "empty"),
            (text(" \n", &[]), "empty"),
            (text("x", &["data:text/plain;base64,aGk="]), "text/plain"),
            (text("x", &["data:image/png;base64,???"]), "base64"),
            (text("x", &["relative.png"]), "absolute"),
            (text("x", &["/no/such/file.png"]), "/no/such/file.png"),
        ] {
            let error = prepare(input, true).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidInput);
            assert!(error.message.contains(word), "{error}");
        }
    }

    /// Rule 3.1.13.
    #[test]
    fn a_title_is_the_first_sentence_cut_at_48() {
        assert_eq!(title("\n Count words. Then stop.").as_deref(), Some("Count words."));
        assert_eq!(title("v1.2 is out").as_deref(), Some("v1.2 is out"));
        assert_eq!(title("你好。再见").as_deref(), Some("你好。"));
        assert_eq!(title(&"x".repeat(60)), Some(format!("{}…", "x".repeat(48))));
        assert_eq!(title(" \n"), None);
    }
}
