//! Work that was accepted and not ended: waiting lines, running commands, and whatever a torn write left without its
//! acknowledgement. It is folded from stored frames, so that the next run of the session can go on with it.
//!
//! Lines and commands are stored as extensions under `_kernel` before they are acknowledged or run. Each says what came
//! last, not all there is: what became of a line is told by the acknowledgement that follows.

use bingo_plugin_sdk::event::{Event, Frame, IntentOutcome};
use bingo_plugin_sdk::ids::{IntentId, ItemId, TurnId};
use bingo_plugin_sdk::item::ItemBody;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::intents::{Digest, Intents};
use super::queue::Waiting;

/// The namespace of the kernel's own extensions.
pub(super) const NAMESPACE: &str = "_kernel";
/// The newest waiting line, whole; null when none waits.
pub(super) const QUEUED: &str = "queued";
/// The command that began last; null when none runs.
pub(super) const RUNNING: &str = "running";

/// A command that began: it runs at most once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Running {
    pub(super) intent: IntentId,
    pub(super) digest: Option<Digest>,
}

/// What was stored in the name of an intent while its acknowledgement was not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Unanswered {
    pub(super) intent: IntentId,
    pub(super) done: Done,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Done {
    /// Words were recorded, for a turn or in a log.
    Recorded { item: ItemId, turn: Option<TurnId> },
    /// A question was answered.
    Resolved,
}

/// The unfinished work of a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Unfinished {
    /// In the order in which they came.
    pub(super) queued: Vec<Waiting>,
    pub(super) running: Vec<Running>,
    pub(super) unanswered: Vec<Unanswered>,
}

/// Returns the extension that stores a waiting line.
pub(super) fn queued(line: &Waiting) -> Event {
    extension(QUEUED, serde_json::to_value(line).unwrap_or_default())
}

/// Returns the extension that stores that a command begins.
pub(super) fn running(command: &Running) -> Event {
    extension(RUNNING, serde_json::to_value(command).unwrap_or_default())
}

/// Returns the extension that says that nothing of a kind is left.
pub(super) fn none(kind: &str) -> Event {
    extension(kind, Value::Null)
}

fn extension(kind: &str, payload: Value) -> Event {
    Event::Extension { plugin: NAMESPACE.to_owned(), kind: kind.to_owned(), payload }
}

impl Unfinished {
    /// Folds the next frame; what is stored before its acknowledgement is noted among the intents.
    pub(super) fn apply(&mut self, frame: &Frame, intents: &mut Intents) {
        match &frame.event {
            Event::Extension { plugin, kind, payload } if plugin == NAMESPACE => {
                self.stored(kind, payload, intents);
            }
            Event::IntentAck { intent, outcome, digest } => {
                let request = Digest::of_acknowledged(digest.as_ref());
                let waits = matches!(outcome, IntentOutcome::Queued { .. });
                self.acknowledged(intent, request, waits);
            }
            Event::ItemCompleted { item } => {
                if let (ItemBody::User { .. }, Some(intent)) = (&item.body, &item.intent) {
                    let done = Done::Recorded { item: item.id.clone(), turn: item.turn.clone() };
                    self.done(intent, done);
                }
            }
            Event::InteractionResolved { .. } => {
                frame.cause.iter().for_each(|intent| self.done(intent, Done::Resolved));
            }
            _ => {}
        }
    }

    fn stored(&mut self, kind: &str, payload: &Value, intents: &mut Intents) {
        match kind {
            QUEUED => {
                let Ok(line) = Waiting::deserialize(payload) else { return };
                intents.under_way(&line.intent, line.digest);
                self.running.retain(|command| command.intent != line.intent);
                self.queued.push(line);
            }
            RUNNING => {
                let Ok(command) = Running::deserialize(payload) else { return };
                intents.under_way(&command.intent, command.digest);
                self.queued.retain(|line| line.intent != command.intent);
                self.running.push(command);
            }
            _ => {}
        }
    }

    fn done(&mut self, intent: &IntentId, done: Done) {
        self.queued.retain(|line| line.intent != *intent);
        self.running.retain(|command| command.intent != *intent);
        self.unanswered.push(Unanswered { intent: intent.clone(), done });
    }

    fn acknowledged(&mut self, intent: &IntentId, request: Option<Digest>, waits: bool) {
        // The refusal of another request under this intent ends nothing.
        let other = |own: Option<Digest>| own.is_some() && request.is_some() && own != request;
        self.queued.retain(|line| waits || line.intent != *intent || other(line.digest));
        self.running.retain(|command| command.intent != *intent || other(command.digest));
        self.unanswered.retain(|left| left.intent != *intent);
    }
}

#[cfg(test)]
mod tests;
