//! The text output of a run: the answer on stdout as it streams, everything else on stderr (kernel rule 6.2.9).

use std::collections::BTreeMap;
use std::io::Write;

use bingo_plugin_sdk::event::{DeltaKind, Event, Frame, IntentOutcome};
use bingo_plugin_sdk::ids::ItemId;
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody, ItemStatus};

use super::{acknowledged_view, failed_status, failure, remark};

/// Writes the frames of one session as text.
#[derive(Debug, Default)]
pub(super) struct TextWriter {
    /// How many bytes of each assistant item were written.
    written: BTreeMap<ItemId, usize>,
    /// Assistant items that are unfinished: only their deltas are the answer's.
    streaming: BTreeMap<ItemId, ()>,
    /// Whether the last thing on stdout ended its line.
    open_line: bool,
}

impl TextWriter {
    pub(super) fn frame(&mut self, frame: &Frame) -> std::io::Result<()> {
        if let Some(error) = failed_status(frame) {
            self.finish()?;
            return failure(error);
        }
        match &frame.event {
            Event::ItemStarted { item } => self.started(item),
            Event::ItemDelta { item, kind: DeltaKind::Text, data, .. }
                if self.streaming.contains_key(item) =>
            {
                *self.written.entry(item.clone()).or_default() += data.len();
                self.answer(data)
            }
            Event::ItemCompleted { item } => self.completed(item),
            Event::IntentAck { outcome: IntentOutcome::Applied { result }, .. } => {
                if let Some(view) = acknowledged_view(result) {
                    self.answer(&view.fold())?;
                } else if let Some(message) = result.get("message").and_then(serde_json::Value::as_str) {
                    self.answer(message)?;
                }
                self.finish()
            }
            Event::Notice { code, text, .. } => {
                remark(&format!("note: {text}"), &format!("[notice] {code} {text}"))
            }
            Event::TurnRetrying { attempt, max, delay_ms, reason, .. } => {
                let line = format!("[retry] attempt {attempt}/{max} in {delay_ms}ms: {reason}");
                remark(&line, &line)
            }
            _ => Ok(()),
        }
    }

    /// Ends the line that the answer left open.
    pub(super) fn finish(&mut self) -> std::io::Result<()> {
        if std::mem::take(&mut self.open_line) {
            let mut stdout = std::io::stdout().lock();
            writeln!(stdout)?;
            stdout.flush()?;
        }
        Ok(())
    }

    fn started(&mut self, item: &Item) -> std::io::Result<()> {
        match &item.body {
            ItemBody::Assistant { .. } => {
                // Two answers of one turn stand on lines of their own.
                self.finish()?;
                self.streaming.insert(item.id.clone(), ());
                Ok(())
            }
            ItemBody::ToolCall { name, input, .. } => {
                self.finish()?;
                let line = format!("[tool] {name} {input}");
                remark(&line, &line)
            }
            _ => Ok(()),
        }
    }

    fn completed(&mut self, item: &Item) -> std::io::Result<()> {
        match &item.body {
            ItemBody::Assistant { text } => {
                self.streaming.remove(&item.id);
                let written = self.written.remove(&item.id).unwrap_or(0);
                // Deltas that were lost or never sent are in the whole.
                self.answer(text.get(written..).unwrap_or_default())
            }
            ItemBody::ToolCall { .. } => tool_ended(item),
            ItemBody::Notice { code, text, .. } => {
                remark(&format!("note: {text}"), &format!("[notice] {code} {text}"))
            }
            ItemBody::Interruption { marker } => {
                self.finish()?;
                remark(marker, marker)
            }
            _ => Ok(()),
        }
    }

    fn answer(&mut self, text: &str) -> std::io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        self.open_line = !text.ends_with('\n');
        stdout.flush()
    }
}

fn tool_ended(item: &Item) -> std::io::Result<()> {
    let ItemBody::ToolCall { name, output, duration_ms, .. } = &item.body else { return Ok(()) };
    let word = if item.status == ItemStatus::Completed { "ok" } else { "error" };
    let mut lines = vec![format!("[tool] {name} {word} ({}ms)", duration_ms.unwrap_or(0))];
    if let Some(output) = output {
        let shown = output.display.as_ref().map_or_else(|| joined_text(&output.parts), |view| view.fold());
        lines.extend(shown.lines().map(|line| format!("  {line}")));
    }
    let text = lines.join("\n");
    remark(&text, &text)
}

fn joined_text(parts: &[ContentPart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        ContentPart::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
