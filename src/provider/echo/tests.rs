//! The echo model, asked by a host in memory.

use bingo_plugin_sdk::calls::methods::{Initialize, StreamProvider};
use bingo_plugin_sdk::calls::notifications::{CancelProvider, ProviderDelta};
use bingo_plugin_sdk::jsonrpc::{Message as Envelope, Method, Notice, RequestId};
use bingo_plugin_sdk::provider::{
    Message, ProviderCancelParams, ProviderDeltaParams, ProviderStreamResult, Role,
};
use bingo_plugin_sdk::serve::serve;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};

use super::*;

pub(super) fn request(messages: Vec<Message>) -> ModelRequest {
    ModelRequest {
        model: "echo".to_owned(),
        max_tokens: 1000,
        system: Vec::new(),
        messages,
        tools: Vec::new(),
        reasoning: None,
        provider_options: Default::default(),
    }
}

fn message(role: Role, part: ContentPart) -> Message {
    Message { role, parts: vec![part], provider_options: Default::default() }
}

pub(super) fn user(text: &str) -> Message {
    message(Role::User, ContentPart::text(text))
}

pub(super) fn assistant(id: &str, tool: &str) -> Message {
    let part = ContentPart::ToolUse { id: id.to_owned(), name: tool.to_owned(), input: json!({}) };
    message(Role::Assistant, part)
}

pub(super) fn result(id: &str, text: &str, is_error: bool) -> Message {
    let parts = vec![ContentPart::text(text)];
    message(Role::User, ContentPart::ToolResult { tool_use_id: id.to_owned(), parts, is_error })
}

struct Host {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    asked: i64,
}

impl Host {
    fn start() -> Self {
        let (host, plugin) = tokio::io::duplex(4096);
        let (reader, writer) = tokio::io::split(plugin);
        tokio::spawn(serve(Echo::new(), reader, writer));
        let (reader, writer) = tokio::io::split(host);
        Self { lines: BufReader::new(reader).lines(), writer, asked: 0 }
    }

    async fn write(&mut self, envelope: &Envelope) {
        self.writer.write_all(format!("{}\n", envelope.to_line()).as_bytes()).await.unwrap();
    }

    async fn send<M: Method>(&mut self, params: &M::Params) {
        self.asked += 1;
        let params = serde_json::to_value(params).unwrap();
        let id = RequestId::Number(self.asked);
        self.write(&Envelope::Request { id, method: M::NAME.to_owned(), params }).await;
    }

    async fn next(&mut self) -> Envelope {
        Envelope::parse(self.lines.next_line().await.unwrap().unwrap().as_bytes()).unwrap()
    }

    async fn start_stream(&mut self, request: ModelRequest) {
        let params = ProviderStreamParams { id: "echo".to_owned(), call: "s".to_owned(), request };
        self.send::<StreamProvider>(&params).await;
    }

    /// Returns the events of one stream, and its end.
    async fn stream(&mut self, request: ModelRequest) -> (Vec<ModelEvent>, Option<ProviderError>) {
        self.start_stream(request).await;
        self.rest().await
    }

    async fn rest(&mut self) -> (Vec<ModelEvent>, Option<ProviderError>) {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Envelope::Notification { method, params } => {
                    assert_eq!(method, ProviderDelta::NAME);
                    events.push(ProviderDeltaParams::deserialize(params).unwrap().event);
                }
                Envelope::Response { outcome, .. } => {
                    return (events, ProviderStreamResult::deserialize(outcome.unwrap()).unwrap().error);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn text(events: &[ModelEvent]) -> String {
    let delta = |event: &ModelEvent| match event {
        ModelEvent::TextDelta { delta, .. } => Some(delta.clone()),
        _ => None,
    };
    events.iter().filter_map(delta).collect()
}

fn finish(events: &[ModelEvent]) -> (Usage, UnifiedFinish) {
    match events.last() {
        Some(ModelEvent::Finish { usage, finish_reason }) => (*usage, finish_reason.unified),
        other => panic!("the last event is {other:?}"),
    }
}

fn types(events: &[ModelEvent]) -> Vec<Value> {
    let mut types: Vec<Value> =
        events.iter().map(|event| serde_json::to_value(event).unwrap()["type"].clone()).collect();
    types.dedup();
    types
}

#[tokio::test]
async fn it_declares_one_model() {
    let mut host = Host::start();
    let params =
        json!({"protocol": 5, "pluginRoot": "/", "env": {"home": "/", "configDir": "/", "dataDir": "/"}});
    host.send::<Initialize>(&serde_json::from_value(params).unwrap()).await;
    let Envelope::Response { outcome: Ok(result), .. } = host.next().await else { panic!("no result") };
    assert_eq!(result["providers"][0]["id"], "echo");
    assert_eq!(result["providers"][0]["models"][0]["id"], "echo");
}

#[tokio::test]
async fn words_come_back_one_by_one() {
    let (events, error) = Host::start().stream(request(vec![user("two  words\nand ü")])).await;
    assert_eq!(error, None);
    assert_eq!(text(&events), "two  words\nand ü");
    let deltas = events.iter().filter(|event| matches!(event, ModelEvent::TextDelta { .. })).count();
    assert_eq!(deltas, 5);
    let (usage, reason) = finish(&events);
    assert_eq!((usage.input_tokens, usage.output_tokens, reason), (4, 4, UnifiedFinish::Stop));
}

#[tokio::test]
async fn reasoning_and_calls_come_where_they_stand() {
    let words = "first\n@think hard\n@tool a {\"path\": \"a name that is longer than one piece, ü\"}\n@tool b {no\nlast";
    let (events, error) = Host::start().stream(request(vec![user(words)])).await;
    assert_eq!(error, None);
    let call = ["toolInputStart", "toolInputDelta", "toolInputEnd", "toolCall"];
    let mut expected = vec!["streamStart", "responseMetadata", "textStart", "textDelta", "textEnd"];
    expected.extend(["reasoningStart", "reasoningDelta", "reasoningEnd"]);
    expected.extend(call.into_iter().chain(call));
    expected.extend(["textStart", "textDelta", "textEnd", "finish"]);
    assert_eq!(types(&events), expected);
    assert_eq!(text(&events), "firstlast");

    let mut ids = Vec::new();
    for event in &events {
        if let ModelEvent::ToolCall { id, input, .. } = event {
            let typed: String = events
                .iter()
                .filter_map(|event| match event {
                    ModelEvent::ToolInputDelta { id: of, delta } if of == id => Some(delta.as_str()),
                    _ => None,
                })
                .collect();
            assert_eq!(&typed, input);
            ids.push(id);
        }
    }
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
    let (usage, reason) = finish(&events);
    assert_eq!((usage.reasoning_tokens, reason), (1, UnifiedFinish::ToolCalls));
}

#[tokio::test]
async fn results_are_reported_and_end_the_turn() {
    let conversation =
        vec![user("@tool count {}"), assistant("c", "count"), result("c", "no such file", true)];
    let (events, _) = Host::start().stream(request(conversation)).await;
    assert_eq!(text(&events), "count failed: no such file");
    assert_eq!(finish(&events).1, UnifiedFinish::Stop);
}

#[tokio::test]
async fn a_failure_ends_the_stream_each_time_or_once() {
    let mut host = Host::start();
    let always = request(vec![user("before\n@fail transport\nafter")]);
    for _ in 0..2 {
        let (events, error) = host.stream(always.clone()).await;
        assert_eq!(text(&events), "before");
        assert!(matches!(error, Some(ProviderError::Transport { .. })), "{error:?}");
    }
    let once = request(vec![user("@fail stream once\nafter")]);
    assert!(matches!(host.stream(once.clone()).await.1, Some(ProviderError::Stream { .. })));
    let (events, error) = host.stream(once).await;
    assert_eq!((text(&events).as_str(), error), ("after", None));
    let other = request(vec![user("@fail stream once\nother")]);
    assert!(host.stream(other).await.1.is_some(), "another request has a first try of its own");
}

#[tokio::test]
async fn a_wait_passes_and_can_be_cancelled() {
    let mut host = Host::start();
    let (events, _) = host.stream(request(vec![user("a\n@wait 1\nb")])).await;
    assert_eq!(text(&events), "a\nb");
    let starts = events.iter().filter(|event| matches!(event, ModelEvent::TextStart { .. })).count();
    assert_eq!(starts, 1, "a wait stands inside the text");

    host.start_stream(request(vec![user("a\n@wait 600000\nb")])).await;
    let params = serde_json::to_value(ProviderCancelParams { call: "s".to_owned() }).unwrap();
    host.write(&Envelope::Notification { method: CancelProvider::NAME.to_owned(), params }).await;
    let rest = tokio::time::timeout(Duration::from_secs(30), host.rest()).await;
    let (events, error) = rest.expect("the cancel ends the wait");
    assert!(!events.iter().any(|event| matches!(event, ModelEvent::Finish { .. })), "{events:?}");
    assert!(error.is_some());
}
