//! Reads the echo model's orders out of a request: which tool results to report, and which steps the words ask for.
//!
//! Pure: a request goes in, steps come out.

use bingo_plugin_sdk::item::ContentPart;
use bingo_plugin_sdk::provider::{ModelRequest, ProviderError, Role};

/// One thing the model does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Says this, as it stands.
    Say(String),
    /// Reasons.
    Think(String),
    /// Calls a tool with this input, as written.
    Call { name: String, input: String },
    /// Sleeps that many milliseconds.
    Wait(u64),
    /// Ends the stream with this error; with `once`, only on the first try of a request.
    Fail { error: ProviderError, once: bool },
}

/// Returns what the model does with a request: report new tool results, then follow the newest words.
pub(super) fn steps(request: &ModelRequest) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(last) = request.messages.last().filter(|last| last.role == Role::User) {
        steps.extend(last.parts.iter().filter_map(|part| report(request, part)));
    }
    let reported = !steps.is_empty();
    let words = newest_words(request, reported);
    let mut text = String::new();
    for line in words.split_inclusive('\n') {
        match directive(line.trim()) {
            Some(step) => {
                flush(&mut text, &mut steps);
                steps.push(step);
            }
            None => text.push_str(line),
        }
    }
    flush(&mut text, &mut steps);
    steps
}

fn flush(text: &mut String, steps: &mut Vec<Step>) {
    let said = text.trim_end_matches(['\r', '\n']);
    if !said.is_empty() {
        steps.push(Step::Say(said.to_owned()));
    }
    text.clear();
}

/// Returns the text of the newest user message; where tool results came last, only what stands beside them.
///
/// Hosts join messages of one role. Where marker lines show who spoke, the words start at the last marked part, so
/// that the words of an earlier turn that failed are not obeyed again.
fn newest_words(request: &ModelRequest, reported: bool) -> String {
    let is_words = |part: &ContentPart| !matches!(part, ContentPart::ToolResult { .. });
    let mut candidates = request.messages.iter().rev().filter(|message| message.role == Role::User);
    let message = if reported {
        candidates.next()
    } else {
        candidates.find(|message| message.parts.iter().any(is_words))
    };
    let texts: Vec<&str> =
        message.into_iter().flat_map(|message| &message.parts).filter_map(as_text).collect();
    let start = texts.iter().rposition(|text| unmarked(text).len() < text.len()).unwrap_or(0);
    texts[start..].iter().map(|text| unmarked(text)).collect::<Vec<_>>().join("\n")
}

fn as_text(part: &ContentPart) -> Option<&str> {
    match part {
        ContentPart::Text { text } => Some(text),
        _ => None,
    }
}

/// Returns a text without the marker lines at its head, such as `[from the person you work for]`.
fn unmarked(text: &str) -> &str {
    let mut rest = text;
    loop {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let line = line.trim();
        if !((line.starts_with("[from ") || line.starts_with("[in ")) && line.ends_with(']')) {
            return rest;
        }
        rest = after;
    }
}

/// Returns the words that report a tool result.
fn report(request: &ModelRequest, part: &ContentPart) -> Option<Step> {
    let ContentPart::ToolResult { tool_use_id, parts, is_error } = part else { return None };
    let name = tool_name(request, tool_use_id).unwrap_or(tool_use_id);
    let verb = if *is_error { "failed" } else { "returned" };
    let texts: Vec<&str> = parts.iter().map(|part| as_text(part).unwrap_or("[a picture]")).collect();
    Some(Step::Say(format!("{name} {verb}: {}", texts.join("\n"))))
}

fn tool_name<'a>(request: &'a ModelRequest, call: &str) -> Option<&'a str> {
    request.messages.iter().rev().flat_map(|message| &message.parts).find_map(|part| match part {
        ContentPart::ToolUse { id, name, .. } if id == call => Some(name.as_str()),
        _ => None,
    })
}

/// Returns the step a line asks for; other lines are words.
fn directive(line: &str) -> Option<Step> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    Some(match word {
        "@think" => Step::Think(rest.to_owned()),
        "@tool" => call(rest),
        "@wait" => rest.parse().map(Step::Wait).unwrap_or_else(|_| {
            refuse(format!("`@wait` takes a whole number of milliseconds, got `{rest}`"))
        }),
        "@fail" => fail(rest),
        _ => return None,
    })
}

fn refuse(message: String) -> Step {
    Step::Fail { error: ProviderError::Request { message }, once: false }
}

fn call(rest: &str) -> Step {
    let (name, input) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if name.is_empty() {
        return refuse("`@tool` takes a tool's name and its input as JSON".to_owned());
    }
    let input = input.trim();
    Step::Call { name: name.to_owned(), input: if input.is_empty() { "{}" } else { input }.to_owned() }
}

/// The names `@fail` takes: the kinds of a provider error.
const KINDS: &str =
    "auth, rateLimited, contextOverflow, server, request, transport, stream, timeout, unsupported, config";

fn fail(rest: &str) -> Step {
    let mut words = rest.split_whitespace();
    let kind = words.next().unwrap_or_default();
    let once = match words.next() {
        None => false,
        Some("once") => true,
        Some(other) => return refuse(format!("`@fail {kind}` may be followed by `once`, got `{other}`")),
    };
    let message = format!("`@fail {kind}` was asked for");
    let error = match kind {
        "auth" => ProviderError::Auth { message },
        "rateLimited" => ProviderError::RateLimited { retry_after_ms: None },
        "contextOverflow" => ProviderError::ContextOverflow { message },
        "server" => ProviderError::Server { status: 500, message },
        "request" => ProviderError::Request { message },
        "transport" => ProviderError::Transport { message },
        "stream" => ProviderError::Stream { message },
        "timeout" => ProviderError::Timeout,
        "unsupported" => ProviderError::Unsupported { message },
        "config" => ProviderError::Config { message },
        _ => return refuse(format!("`@fail` knows no kind `{kind}`; the kinds are {KINDS}")),
    };
    Step::Fail { error, once }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assistant, request, result, user};
    use super::*;

    fn say(text: &str) -> Step {
        Step::Say(text.to_owned())
    }

    fn call(name: &str, input: &str) -> Step {
        Step::Call { name: name.to_owned(), input: input.to_owned() }
    }

    #[test]
    fn lines_are_steps_in_their_order() {
        let words = "one\n\n two @tool x\n@think  of it\n@tool a {\"k\": 1}\n@tool b {broken\n@tool c\r\n@wait 5\n@someone\n";
        assert_eq!(
            steps(&request(vec![user(words)])),
            [
                say("one\n\n two @tool x"),
                Step::Think("of it".to_owned()),
                call("a", "{\"k\": 1}"),
                call("b", "{broken"),
                call("c", "{}"),
                Step::Wait(5),
                say("@someone"),
            ]
        );
    }

    #[test]
    fn marker_lines_are_not_words_and_the_last_marked_part_counts() {
        let mut message = user("[from the person you work for]\n@fail auth");
        message.parts.push(ContentPart::text("[in #general]\n[from ann]\nhello\n[from here on]"));
        message.parts.push(ContentPart::text("a note"));
        assert_eq!(steps(&request(vec![message])), [say("hello\n[from here on]\na note")]);
    }

    #[test]
    fn new_results_are_reported_and_old_words_are_not_repeated() {
        let conversation = vec![user("@tool count {}"), assistant("c1", "count"), result("c1", "12", false)];
        assert_eq!(steps(&request(conversation.clone())), [say("count returned: 12")]);

        let mut more = conversation;
        more[2].parts.extend(result("c9", "no such file", true).parts);
        more[2].parts.push(ContentPart::text("[from ann]\nand now?"));
        assert_eq!(
            steps(&request(more)),
            [say("count returned: 12"), say("c9 failed: no such file"), say("and now?")]
        );
    }

    #[test]
    fn every_error_kind_can_be_asked_for_and_the_refusal_lists_them() {
        for kind in KINDS.split(", ") {
            let found = steps(&request(vec![user(&format!("@fail {kind} once"))]));
            let [Step::Fail { error, once: true }] = found.as_slice() else { panic!("{kind}: {found:?}") };
            assert_eq!(serde_json::to_value(error).unwrap()["kind"], kind);
        }
        for (line, part) in [
            ("@fail nonsense", KINDS),
            ("@fail auth twice", "`once`"),
            ("@wait long", "milliseconds"),
            ("@tool", "name"),
        ] {
            let found = steps(&request(vec![user(line)]));
            let [Step::Fail { error: ProviderError::Request { message }, once: false }] = found.as_slice()
            else {
                panic!("{line}: {found:?}")
            };
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn nothing_said_is_nothing_done() {
        assert_eq!(steps(&request(vec![])), []);
        assert_eq!(steps(&request(vec![user("\n")])), []);
    }
}
