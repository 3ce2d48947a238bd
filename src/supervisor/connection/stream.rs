//! Unread events of one stream. The reader fills it and never waits; adjacent deltas of one block become one.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bingo_plugin_sdk::provider::ModelEvent;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What an event costs beside its text.
const OVERHEAD: usize = 64;

/// The queue between the reader of a connection and one consumer.
pub(crate) struct StreamQueue {
    limit: usize,
    state: Mutex<State>,
    ready: Notify,
}

struct State {
    events: VecDeque<ModelEvent>,
    bytes: usize,
    /// Why nothing is taken any more, told after what was taken before.
    failed: Option<String>,
    touched: Instant,
}

/// What a consumer finds.
#[derive(Debug, PartialEq)]
pub(crate) enum Unread {
    Event(ModelEvent),
    Failed(String),
    Nothing,
}

impl StreamQueue {
    pub(super) fn new(limit: usize) -> Self {
        let state = State { events: VecDeque::new(), bytes: 0, failed: None, touched: Instant::now() };
        Self { limit, state: Mutex::new(state), ready: Notify::new() }
    }

    pub(super) fn push(&self, event: ModelEvent) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.touched = Instant::now();
        if state.failed.is_some() {
            return;
        }
        let size = size(&event);
        if state.bytes + size + OVERHEAD > self.limit && !state.events.is_empty() {
            let (bytes, limit) = (state.bytes, self.limit);
            state.failed = Some(format!("{bytes} bytes of the stream wait unread, the limit is {limit}"));
        } else {
            match merge(state.events.back_mut(), event) {
                Merged::Into { added } => state.bytes += added,
                Merged::Not(event) => {
                    state.bytes += size + OVERHEAD;
                    state.events.push_back(event);
                }
            }
        }
        drop(state);
        self.ready.notify_one();
    }

    /// Ends the stream after what was taken so far.
    pub(super) fn fail(&self, reason: String) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failed.get_or_insert(reason);
        drop(state);
        self.ready.notify_one();
    }

    /// Takes the next event, if there is one.
    pub(crate) fn take(&self) -> Unread {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.events.pop_front() {
            Some(event) => {
                state.bytes = state.bytes.saturating_sub(size(&event) + OVERHEAD);
                Unread::Event(event)
            }
            None => state.failed.clone().map_or(Unread::Nothing, Unread::Failed),
        }
    }

    /// Waits until there may be something to take.
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Returns when the last event came.
    pub(crate) fn touched(&self) -> Instant {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).touched
    }
}

enum Merged {
    /// It is part of the last event now.
    Into {
        added: usize,
    },
    Not(ModelEvent),
}

/// Puts a delta onto the last event when both belong to one block.
fn merge(last: Option<&mut ModelEvent>, event: ModelEvent) -> Merged {
    use ModelEvent::{ReasoningDelta, TextDelta, ToolInputDelta};
    match (last, &event) {
        (Some(TextDelta { id, delta }), TextDelta { id: same, delta: more })
        | (Some(ReasoningDelta { id, delta }), ReasoningDelta { id: same, delta: more })
        | (Some(ToolInputDelta { id, delta }), ToolInputDelta { id: same, delta: more })
            if id == same =>
        {
            delta.push_str(more);
            Merged::Into { added: more.len() }
        }
        _ => Merged::Not(event),
    }
}

/// Returns about how many bytes an event holds; a merged one as many as its parts, less the ids.
fn size(event: &ModelEvent) -> usize {
    match event {
        ModelEvent::TextDelta { id, delta }
        | ModelEvent::ReasoningDelta { id, delta }
        | ModelEvent::ToolInputDelta { id, delta } => id.len() + delta.len(),
        // These are few, and any of their fields may be long.
        _ => serde_json::to_string(event).map_or(0, |text| text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(id: &str, delta: &str) -> ModelEvent {
        ModelEvent::TextDelta { id: id.to_owned(), delta: delta.to_owned() }
    }

    #[test]
    fn adjacent_deltas_of_one_block_become_one() {
        let queue = StreamQueue::new(1000);
        for (id, delta) in [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")] {
            queue.push(text(id, delta));
        }
        for expected in [text("a", "12"), text("b", "3"), text("a", "4")] {
            assert_eq!(queue.take(), Unread::Event(expected));
        }
        assert_eq!(queue.take(), Unread::Nothing);
        assert_eq!(queue.state.lock().unwrap().bytes, 0);
    }

    #[test]
    fn too_much_unread_fails_after_what_was_taken() {
        let queue = StreamQueue::new(200);
        queue.push(text("a", &"x".repeat(100)));
        queue.push(text("b", &"y".repeat(100)));
        queue.push(text("c", "z"));
        assert!(matches!(queue.take(), Unread::Event(_)));
        assert!(matches!(queue.take(), Unread::Failed(reason) if reason.contains("165 bytes")));
    }
}
