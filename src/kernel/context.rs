//! What the model is sent: the system prompt, and the transcript folded into messages (kernel rules 4.4.35 to 40).
//!
//! The items are those of the reducer that clients use too, so what was withdrawn stays withdrawn.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bingo_plugin_sdk::ids::TurnId;
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody, ItemStatus, Origin};
use bingo_plugin_sdk::provider::{Message, Role, SystemBlock};

/// Returns the system prompt: who speaks, where, and what the session adds.
pub(super) fn system(cwd: &Path, provider: &str, model: &str, extra: Option<&str>) -> Vec<SystemBlock> {
    let identity = "You are an assistant that works for the person you talk to. \
        Use the tools you are offered when they help, and say plainly what you did and what you could not do.";
    let date = crate::telemetry::now();
    let date = date.get(..10).unwrap_or_default();
    let place = format!(
        "Working directory: {}\nProvider: {provider}\nModel: {model}\nSystem: {}\nDate: {date}",
        cwd.display(),
        std::env::consts::OS
    );
    let mut blocks = vec![
        SystemBlock { text: identity.to_owned(), cache: true },
        SystemBlock { text: place, cache: false },
    ];
    blocks.extend(extra.map(|text| SystemBlock { text: text.to_owned(), cache: false }));
    blocks
}

/// What a model that cannot see reads in the place of a picture.
const NO_PICTURE: &str = "[A picture, which this model cannot see.]";

/// Folds a transcript into messages. Every tool call gets a result; the first message is the user's. Without `images` a note
/// stands in the place of each picture (kernel rule 4.4.40).
pub(super) fn messages(items: &[Arc<Item>], images: bool) -> Vec<Message> {
    let mut fold = MessageFold::default();
    items.iter().for_each(|item| fold.item(item));
    let mut messages = fold.finish();
    if !images {
        messages.iter_mut().flat_map(|message| &mut message.parts).for_each(hide_picture);
    }
    messages
}

fn hide_picture(part: &mut ContentPart) {
    match part {
        ContentPart::Image { .. } => *part = ContentPart::text(NO_PICTURE),
        ContentPart::ToolResult { parts, .. } => parts.iter_mut().for_each(hide_picture),
        _ => {}
    }
}

#[derive(Default)]
struct MessageFold {
    messages: Vec<Message>,
    /// Results that go first into the next user message.
    results: Vec<ContentPart>,
    /// The response the last assistant content belongs to.
    response: Option<(Option<TurnId>, u32)>,
}

impl MessageFold {
    fn item(&mut self, item: &Item) {
        match &item.body {
            ItemBody::User { parts, origin } => {
                let mut parts = parts.clone();
                mark_speaker(&mut parts, origin);
                self.user(parts);
            }
            // A half-written answer of a failed turn was never said.
            ItemBody::Assistant { .. } | ItemBody::Reasoning { .. } if item.status == ItemStatus::Failed => {}
            ItemBody::Assistant { text } if text.is_empty() => {}
            ItemBody::Assistant { text } => self.assistant(item, ContentPart::text(text.clone())),
            ItemBody::Reasoning { text, provider_metadata } => {
                if !text.is_empty() || !provider_metadata.is_empty() {
                    let (text, provider_metadata) = (text.clone(), provider_metadata.clone());
                    self.assistant(item, ContentPart::Reasoning { text, provider_metadata });
                }
            }
            ItemBody::ToolCall { call_id, name, input, output, .. } => {
                let (id, name, input) = (call_id.clone(), name.clone(), input.clone());
                self.assistant(item, ContentPart::ToolUse { id: id.clone(), name, input });
                let (parts, is_error) = match output {
                    Some(output) => (output.parts.clone(), output.is_error),
                    None => (vec![ContentPart::text("[no result: the call did not complete]")], true),
                };
                self.results.push(ContentPart::ToolResult { tool_use_id: id, parts, is_error });
            }
            ItemBody::Interruption { marker } => self.note(marker.clone()),
            ItemBody::QuestionAnswer { question, answer, .. } => {
                self.note(format!("[The question \"{question}\" was answered: {answer}]"));
            }
            ItemBody::Action { name, result: Some(result), .. } => self.note(format!("[/{name}: {result}]")),
            ItemBody::Compaction { summary, .. } if !summary.is_empty() => {
                self.note(format!("[Summary of the conversation so far]\n{summary}"));
            }
            ItemBody::Compaction { .. }
            | ItemBody::Action { .. }
            | ItemBody::Rewind { .. }
            | ItemBody::Notice { .. }
            | ItemBody::PermissionReceipt { .. }
            | ItemBody::Asset { .. } => {}
        }
    }

    fn note(&mut self, text: String) {
        self.user(vec![ContentPart::text(text)]);
    }

    fn user(&mut self, parts: Vec<ContentPart>) {
        self.flush_results();
        self.append(Role::User, parts);
    }

    fn assistant(&mut self, item: &Item, part: ContentPart) {
        let response = Some((item.turn.clone(), item.round));
        if self.response != response {
            self.flush_results();
            self.response = response;
        }
        self.append(Role::Assistant, vec![part]);
    }

    fn flush_results(&mut self) {
        if !self.results.is_empty() {
            let results = std::mem::take(&mut self.results);
            self.append(Role::User, results);
        }
    }

    /// Appends to the last message where the role is the same.
    fn append(&mut self, role: Role, parts: Vec<ContentPart>) {
        match self.messages.last_mut() {
            Some(last) if last.role == role => last.parts.extend(parts),
            None if role == Role::Assistant => {
                self.append(Role::User, vec![ContentPart::text("[The conversation begins here.]")]);
                self.append(role, parts);
            }
            _ => self.messages.push(Message { role, parts, provider_options: BTreeMap::new() }),
        }
    }

    fn finish(mut self) -> Vec<Message> {
        self.flush_results();
        self.messages
    }
}

/// Puts a line that names who speaks before the words of people and other sessions.
fn mark_speaker(parts: &mut Vec<ContentPart>, origin: &Origin) {
    let surface = origin.surface.as_str();
    if surface == "kernel" || surface.starts_with("contributor:") || surface.starts_with("hook:") {
        return;
    }
    let mark = match (&origin.principal, &origin.conversation) {
        (None, None) => "[from the person you work for]".to_owned(),
        (Some(who), None) => format!("[from {who}]"),
        (None, Some(place)) => format!("[in {place}]"),
        (Some(who), Some(place)) => format!("[from {who}]\n[in {place}]"),
    };
    match parts.first_mut() {
        Some(ContentPart::Text { text }) => *text = format!("{mark}\n{text}"),
        _ => parts.insert(0, ContentPart::text(mark)),
    }
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::ids::ItemId;
    use bingo_plugin_sdk::item::ToolOutput;
    use serde_json::json;

    use super::*;

    fn item(round: u32, status: ItemStatus, body: ItemBody) -> Arc<Item> {
        Arc::new(Item {
            id: ItemId::mint(),
            turn: Some(TurnId::from("t")),
            round,
            status,
            started_at: String::new(),
            completed_at: None,
            intent: None,
            body,
            meta: BTreeMap::new(),
        })
    }

    fn user(text: &str) -> Arc<Item> {
        let (parts, origin) = (vec![ContentPart::text(text)], Origin::surface("kernel"));
        item(0, ItemStatus::Completed, ItemBody::User { parts, origin })
    }

    fn assistant(round: u32, status: ItemStatus, text: &str) -> Arc<Item> {
        item(round, status, ItemBody::Assistant { text: text.to_owned() })
    }

    fn call(round: u32, id: &str, output: Option<ToolOutput>) -> Arc<Item> {
        let body = ItemBody::ToolCall {
            call_id: id.to_owned(),
            name: "tool".to_owned(),
            input: json!({}),
            output,
            progress: None,
            duration_ms: None,
        };
        item(round, ItemStatus::Completed, body)
    }

    fn folded(items: &[Arc<Item>]) -> Vec<(Role, Vec<String>)> {
        let shown = |part: &ContentPart| match part {
            ContentPart::Text { text } => text.clone(),
            ContentPart::ToolUse { id, .. } => format!("use {id}"),
            ContentPart::ToolResult { tool_use_id, is_error, .. } => {
                format!("result {tool_use_id} {is_error}")
            }
            other => format!("{other:?}"),
        };
        let messages = messages(items, true);
        messages.iter().map(|message| (message.role, message.parts.iter().map(shown).collect())).collect()
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    /// Rule 4.4.38.
    #[test]
    fn every_call_has_its_result_first_in_the_next_user_message() {
        let done = Some(ToolOutput::text("ok"));
        let items = [
            user("go"),
            assistant(0, ItemStatus::Completed, "calling"),
            call(0, "a", done.clone()),
            call(0, "b", None),
            call(1, "c", done),
            user("more"),
        ];
        assert_eq!(
            folded(&items),
            vec![
                (Role::User, owned(&["go"])),
                (Role::Assistant, owned(&["calling", "use a", "use b"])),
                (Role::User, owned(&["result a false", "result b true"])),
                (Role::Assistant, owned(&["use c"])),
                (Role::User, owned(&["result c false", "more"])),
            ]
        );
    }

    #[test]
    fn a_half_written_answer_of_a_failed_turn_is_not_said_but_an_interrupted_one_is() {
        let items = [
            user("go"),
            assistant(0, ItemStatus::Failed, "half"),
            user("again"),
            assistant(0, ItemStatus::Interrupted, "cut"),
        ];
        let expected = vec![(Role::User, owned(&["go", "again"])), (Role::Assistant, owned(&["cut"]))];
        assert_eq!(folded(&items), expected);
    }

    #[test]
    fn a_history_that_opens_with_the_assistant_gets_a_beginning() {
        let expected = vec![
            (Role::User, owned(&["[The conversation begins here.]"])),
            (Role::Assistant, owned(&["hi"])),
        ];
        assert_eq!(folded(&[assistant(0, ItemStatus::Completed, "hi")]), expected);
    }

    /// Rule 3.3.29, 4.4.38.
    #[test]
    fn people_and_sessions_are_named() {
        for (principal, conversation, expected) in [
            (None, None, "[from the person you work for]\nhi"),
            (Some("somebody"), None, "[from somebody]\nhi"),
            (Some("somebody"), Some("room"), "[from somebody]\n[in room]\nhi"),
        ] {
            let origin = Origin {
                surface: "chat".to_owned(),
                principal: principal.map(str::to_owned),
                conversation: conversation.map(str::to_owned),
            };
            let body = ItemBody::User { parts: vec![ContentPart::text("hi")], origin };
            assert_eq!(folded(&[item(0, ItemStatus::Completed, body)])[0].1, owned(&[expected]));
        }
    }
}
