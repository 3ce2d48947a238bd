//! The text output of a run: the answer on stdout as it streams, everything else on stderr (kernel rule 6.2.9).

use std::collections::{BTreeMap, BTreeSet};

use bingo_plugin_sdk::event::{DeltaKind, Event, Frame, IntentOutcome};
use bingo_plugin_sdk::ids::ItemId;
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody, ItemStatus};
use serde_json::Value;

use super::output::Chunk;
use super::{acknowledged_view, failed_status, failure};

/// Makes text of the frames of one session.
#[derive(Debug, Default)]
pub(super) struct TextWriter {
    /// How many bytes of each assistant item were written.
    written: BTreeMap<ItemId, usize>,
    /// Assistant items that are unfinished: only their deltas are the answer's.
    streaming: BTreeSet<ItemId>,
    /// Whether the last words on stdout did not end their line.
    open_line: bool,
}

impl TextWriter {
    /// Returns what a frame adds.
    pub(super) fn frame(&mut self, frame: &Frame) -> Vec<Chunk> {
        if let Some(error) = failed_status(frame) {
            return self.end_line().into_iter().chain([failure(error)]).collect();
        }
        match &frame.event {
            Event::ItemStarted { item } => self.started(item),
            Event::ItemDelta { item, kind: DeltaKind::Text, data, .. } if self.streaming.contains(item) => {
                *self.written.entry(item.clone()).or_default() += data.len();
                self.answer(data)
            }
            Event::ItemCompleted { item } => self.completed(item),
            Event::IntentAck { outcome: IntentOutcome::Applied { result }, .. } => self.applied(result),
            Event::Notice { code, text, .. } => vec![Chunk::notice(code, text)],
            Event::TurnRetrying { attempt, max, delay_ms, reason, .. } => {
                // What was said so far is withdrawn; the next try begins on a line of its own.
                let line = Chunk::line(&format!("[retry] attempt {attempt}/{max} in {delay_ms}ms: {reason}"));
                self.end_line().into_iter().chain([line]).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Ends the line that the answer left open.
    pub(super) fn end_line(&mut self) -> Vec<Chunk> {
        let open = std::mem::take(&mut self.open_line);
        open.then(|| Chunk::Answer("\n".to_owned())).into_iter().collect()
    }

    fn applied(&mut self, result: &Value) -> Vec<Chunk> {
        let mut chunks = match (acknowledged_view(result), result.get("message").and_then(Value::as_str)) {
            (Some(view), _) => self.answer(&view.fold()),
            (None, Some(message)) => self.answer(message),
            (None, None) => Vec::new(),
        };
        chunks.extend(self.end_line());
        chunks
    }

    fn started(&mut self, item: &Item) -> Vec<Chunk> {
        match &item.body {
            ItemBody::Assistant { .. } => {
                self.streaming.insert(item.id.clone());
                // Two answers of one turn stand on lines of their own.
                self.end_line()
            }
            ItemBody::ToolCall { name, input, .. } => {
                self.end_line().into_iter().chain([Chunk::line(&format!("[tool] {name} {input}"))]).collect()
            }
            _ => Vec::new(),
        }
    }

    fn completed(&mut self, item: &Item) -> Vec<Chunk> {
        match &item.body {
            ItemBody::Assistant { text } => {
                self.streaming.remove(&item.id);
                let written = self.written.remove(&item.id).unwrap_or(0);
                // Deltas that were lost or never sent are in the whole.
                self.answer(text.get(written..).unwrap_or_default())
            }
            ItemBody::ToolCall { .. } => vec![tool_ended(item)],
            ItemBody::Notice { code, text, .. } => vec![Chunk::notice(code, text)],
            ItemBody::Interruption { marker } => {
                self.end_line().into_iter().chain([Chunk::line(marker)]).collect()
            }
            _ => Vec::new(),
        }
    }

    fn answer(&mut self, text: &str) -> Vec<Chunk> {
        if text.is_empty() {
            return Vec::new();
        }
        self.open_line = !text.ends_with('\n');
        vec![Chunk::Answer(text.to_owned())]
    }
}

fn tool_ended(item: &Item) -> Chunk {
    let ItemBody::ToolCall { name, output, duration_ms, .. } = &item.body else { return Chunk::line("") };
    let word = if item.status == ItemStatus::Completed { "ok" } else { "error" };
    let shown = output.as_ref().map_or_else(String::new, |output| {
        output.display.as_ref().map_or_else(|| joined_text(&output.parts), |view| view.fold())
    });
    Chunk::line(&format!("[tool] {name} {word} ({}ms)\n{shown}", duration_ms.unwrap_or(0)))
}

fn joined_text(parts: &[ContentPart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        ContentPart::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
