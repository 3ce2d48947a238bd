//! Folds a provider's stream of events into frames: one response of the model (kernel rules 4.2.9 to 13).

use std::collections::BTreeMap;
use std::sync::Arc;

use bingo_plugin_sdk::event::{DeltaKind, Event, Usage};
use bingo_plugin_sdk::ids::{ItemId, TurnId};
use bingo_plugin_sdk::item::{Item, ItemBody, ItemStatus, ProviderMetadata};
use bingo_plugin_sdk::jsonrpc::{MAX_DEPTH, is_deeper_than};
use bingo_plugin_sdk::provider::{FinishReason, ModelEvent, ProviderError, UnifiedFinish};
use serde_json::Value;

use crate::telemetry;

/// The most bytes of one response: what clients can be sent in one line.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;

/// A response as far as it came.
#[derive(Debug)]
pub(super) struct Response {
    turn: TurnId,
    round: u32,
    /// Open blocks by the stream's own ids.
    open: BTreeMap<String, Block>,
    /// Every item this response announced, to be withdrawn if it is asked again.
    pub(super) items: Vec<ItemId>,
    /// The calls it made, in order.
    pub(super) calls: Vec<Arc<Item>>,
    pub(super) finish: Option<(Usage, FinishReason)>,
    bytes: usize,
}

#[derive(Debug)]
struct Block {
    item: Item,
    text: String,
    deltas: u32,
    kind: DeltaKind,
}

impl Response {
    /// Returns an empty response of this round.
    pub(super) fn new(turn: TurnId, round: u32) -> Self {
        let (open, items, calls) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { turn, round, open, items, calls, finish: None, bytes: 0 }
    }

    /// Folds one event; returns the frame's event it causes, if any.
    ///
    /// # Errors
    /// When the response grows past what clients can be sent.
    pub(super) fn event(&mut self, event: ModelEvent) -> Result<Option<Event>, ProviderError> {
        Ok(match event {
            ModelEvent::TextStart { id } => {
                self.start(id, ItemBody::Assistant { text: String::new() }, DeltaKind::Text)
            }
            ModelEvent::ReasoningStart { id } => {
                let body = ItemBody::Reasoning { text: String::new(), provider_metadata: BTreeMap::new() };
                self.start(id, body, DeltaKind::Reasoning)
            }
            ModelEvent::TextDelta { id, delta } | ModelEvent::ReasoningDelta { id, delta } => {
                self.grow(&id, delta)?
            }
            ModelEvent::TextEnd { id } => self.end(&id, BTreeMap::new()),
            ModelEvent::ReasoningEnd { id, provider_metadata } => self.end(&id, provider_metadata),
            ModelEvent::ToolCall { id, name, input } => Some(self.call(id, name, &input)?),
            ModelEvent::Finish { usage, finish_reason } => {
                self.finish = Some((usage, finish_reason));
                None
            }
            // A tool's input is told whole, with its call.
            ModelEvent::ToolInputStart { .. }
            | ModelEvent::ToolInputDelta { .. }
            | ModelEvent::ToolInputEnd { .. }
            | ModelEvent::ResponseMetadata { .. } => None,
            ModelEvent::StreamStart { warnings } => {
                warnings
                    .iter()
                    .for_each(|warning| tracing::warn!(turn = %self.turn, warning, "the provider warns"));
                None
            }
        })
    }

    /// Returns whether the answer ended because it became too long.
    pub(super) fn is_cut_off(&self) -> bool {
        matches!(&self.finish, Some((_, reason)) if reason.unified == UnifiedFinish::Length)
    }

    /// Closes the blocks that the stream left open; returns an event each.
    pub(super) fn close(&mut self, status: ItemStatus) -> Vec<Event> {
        let open = std::mem::take(&mut self.open);
        open.into_values().map(|block| block.complete(status, BTreeMap::new())).collect()
    }

    fn start(&mut self, id: String, body: ItemBody, kind: DeltaKind) -> Option<Event> {
        if self.open.contains_key(&id) {
            return None;
        }
        let item = self.item(ItemStatus::Running, body);
        let event = Event::ItemStarted { item: Arc::new(item.clone()) };
        self.open.insert(id, Block { item, text: String::new(), deltas: 0, kind });
        Some(event)
    }

    fn grow(&mut self, id: &str, delta: String) -> Result<Option<Event>, ProviderError> {
        let Some(block) = self.open.get_mut(id) else { return Ok(None) };
        block.text.push_str(&delta);
        let n = block.deltas;
        block.deltas += 1;
        let event = Event::ItemDelta { item: block.item.id.clone(), n, kind: block.kind, data: delta };
        self.count(match &event {
            Event::ItemDelta { data, .. } => data.len(),
            _ => 0,
        })?;
        Ok(Some(event))
    }

    fn end(&mut self, id: &str, metadata: ProviderMetadata) -> Option<Event> {
        self.open.remove(id).map(|block| block.complete(ItemStatus::Completed, metadata))
    }

    fn call(&mut self, call_id: String, name: String, text: &str) -> Result<Event, ProviderError> {
        self.count(text.len())?;
        let (input, problem) = match serde_json::from_str(if text.trim().is_empty() { "{}" } else { text }) {
            Ok(input) if is_deeper_than(&input, MAX_DEPTH) => {
                let problem = format!("it nests deeper than {MAX_DEPTH} levels");
                (Value::String(text.to_owned()), Some(problem))
            }
            Ok(input) => (input, None),
            Err(error) => (Value::String(text.to_owned()), Some(error.to_string())),
        };
        let body =
            ItemBody::ToolCall { call_id, name, input, output: None, progress: None, duration_ms: None };
        let mut item = self.item(ItemStatus::Pending, body);
        item.meta.extend(problem.map(|problem| ("invalidInput".to_owned(), Value::String(problem))));
        let item = Arc::new(item);
        self.calls.push(Arc::clone(&item));
        Ok(Event::ItemStarted { item })
    }

    fn item(&mut self, status: ItemStatus, body: ItemBody) -> Item {
        let item = new_item(Some(self.turn.clone()), self.round, status, body);
        self.items.push(item.id.clone());
        item
    }

    fn count(&mut self, bytes: usize) -> Result<(), ProviderError> {
        self.bytes += bytes;
        if self.bytes <= MAX_RESPONSE {
            return Ok(());
        }
        Err(ProviderError::Request {
            message: format!("the answer is larger than {} MiB", MAX_RESPONSE >> 20),
        })
    }
}

impl Block {
    fn complete(self, status: ItemStatus, metadata: ProviderMetadata) -> Event {
        let body = match self.kind {
            DeltaKind::Reasoning => ItemBody::Reasoning { text: self.text, provider_metadata: metadata },
            _ => ItemBody::Assistant { text: self.text },
        };
        let completed_at = Some(telemetry::now());
        Event::ItemCompleted { item: Arc::new(Item { status, body, completed_at, ..self.item }) }
    }
}

/// Returns a new item that begins now; one born in a terminal status also ends now.
pub(super) fn new_item(turn: Option<TurnId>, round: u32, status: ItemStatus, body: ItemBody) -> Item {
    let started_at = telemetry::now();
    let completed_at = status.is_terminal().then(|| started_at.clone());
    Item {
        id: ItemId::mint(),
        turn,
        round,
        status,
        started_at,
        completed_at,
        intent: None,
        body,
        meta: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn response() -> Response {
        Response::new(TurnId::from("t"), 0)
    }

    fn text(id: &str, delta: &str) -> ModelEvent {
        ModelEvent::TextDelta { id: id.to_owned(), delta: delta.to_owned() }
    }

    /// Rule 4.2.9, 4.2.10.
    #[test]
    fn a_block_grows_and_ends_whole() {
        let mut response = response();
        let started = response.event(ModelEvent::TextStart { id: "1".to_owned() }).unwrap();
        assert!(matches!(started, Some(Event::ItemStarted { .. })));
        for (n, delta) in ["a", "b"].into_iter().enumerate() {
            let event = response.event(text("1", delta)).unwrap();
            assert!(
                matches!(event, Some(Event::ItemDelta { n: at, data, .. }) if at as usize == n && data == delta)
            );
        }
        let Some(Event::ItemCompleted { item }) =
            response.event(ModelEvent::TextEnd { id: "1".to_owned() }).unwrap()
        else {
            panic!("not completed")
        };
        assert_eq!(item.body, ItemBody::Assistant { text: "ab".to_owned() });
        assert_eq!(item.status, ItemStatus::Completed);
    }

    /// Rule 4.2.10.
    #[test]
    fn words_for_a_block_that_is_not_open_are_ignored() {
        let mut response = response();
        assert_eq!(response.event(text("1", "x")).unwrap(), None);
        assert_eq!(response.event(ModelEvent::TextEnd { id: "1".to_owned() }).unwrap(), None);
        assert!(response.items.is_empty());
    }

    /// Rule 4.2.12.
    #[test]
    fn a_block_left_open_is_closed_with_what_it_holds() {
        let mut response = response();
        response.event(ModelEvent::TextStart { id: "1".to_owned() }).unwrap();
        response.event(text("1", "half")).unwrap();
        let events = response.close(ItemStatus::Failed);
        let [Event::ItemCompleted { item }] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(
            (&item.body, item.status),
            (&ItemBody::Assistant { text: "half".to_owned() }, ItemStatus::Failed)
        );
    }

    /// Rule 1.2.11, 4.2.11.
    #[test]
    fn input_that_is_not_json_is_kept_as_text_and_flagged() {
        for (text, expected, flagged) in
            [(r#"{"a":1}"#, json!({"a": 1}), false), ("", json!({}), false), ("{", json!("{"), true)]
        {
            let mut response = response();
            let (id, name, input) = ("c".to_owned(), "n".to_owned(), text.to_owned());
            response.event(ModelEvent::ToolCall { id, name, input }).unwrap();
            let call = &response.calls[0];
            assert!(matches!(&call.body, ItemBody::ToolCall { input, .. } if *input == expected), "{text}");
            assert_eq!(call.meta.contains_key("invalidInput"), flagged, "{text}");
        }
    }

    #[test]
    fn input_that_nests_too_deep_is_kept_as_text() {
        let mut response = response();
        let input = format!("{}{}", "[".repeat(100), "]".repeat(100));
        response
            .event(ModelEvent::ToolCall { id: "c".to_owned(), name: "n".to_owned(), input: input.clone() })
            .unwrap();
        assert!(
            matches!(&response.calls[0].body, ItemBody::ToolCall { input: kept, .. } if *kept == json!(input))
        );
    }

    #[test]
    fn an_endless_answer_is_an_error() {
        let mut response = response();
        response.event(ModelEvent::TextStart { id: "1".to_owned() }).unwrap();
        let big = "x".repeat(MAX_RESPONSE);
        assert!(response.event(text("1", &big)).is_ok());
        assert!(matches!(response.event(text("1", "y")), Err(ProviderError::Request { .. })));
    }
}
