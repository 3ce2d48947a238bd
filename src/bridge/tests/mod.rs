//! Bridges over a pair in memory: the test is the plugin.

mod context;
mod debugger;
mod routing;

use std::collections::BTreeMap;
use std::time::Duration;

use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::handshake::{InitializeResult, ProviderSpec};
use bingo_plugin_sdk::ids::{PluginName, SessionId, TurnId};
use bingo_plugin_sdk::provider::{ModelEvent, ModelRequest, ProviderError};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::ports::{CallContext, ModelStream, ProgressSink, Provider, Tool};
use crate::supervisor::discovery::{Origin, PluginSource};
use crate::supervisor::limits::Limits;
use crate::supervisor::testing::{self, Heard};
use crate::supervisor::{PluginEntry, PluginState, ReadyPlugin};

struct Plugin {
    lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    wire: testing::Wire,
}

impl Plugin {
    fn new() -> Self {
        Self::named("p", Limits::default(), Arc::new(Heard::default()))
    }

    fn named(name: &str, limits: Limits, heard: Arc<Heard>) -> Self {
        let mut wire = testing::wire(name, limits, heard);
        let (reader, writer) = tokio::io::split(wire.far.take().unwrap());
        Self { lines: BufReader::new(reader).lines(), writer, wire }
    }

    async fn hear(&mut self) -> Value {
        serde_json::from_str(&self.lines.next_line().await.unwrap().unwrap()).unwrap()
    }

    async fn say(&mut self, message: Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn delta(&mut self, event: Value) {
        let params = json!({"call": "call-1", "event": event});
        self.say(json!({"jsonrpc": "2.0", "method": "provider/delta", "params": params})).await;
    }

    /// How many streams were counted, and how many of them as errors.
    fn failed_streams(&self) -> (u64, u64) {
        let counted = &self.wire.connection.metrics().calls["provider/stream"];
        (counted.calls, counted.errors)
    }

    fn stream(&self, cancel: &CancellationToken) -> Box<dyn ModelStream> {
        let spec = ProviderSpec {
            id: "m".to_owned(),
            family: None,
            models: Vec::new(),
            endpoint: Default::default(),
        };
        let request = ModelRequest {
            model: "x".to_owned(),
            max_tokens: 1,
            system: Vec::new(),
            messages: Vec::new(),
            tools: Vec::new(),
            reasoning: None,
            provider_options: Default::default(),
        };
        provider::PluginProvider::new(self.wire.connection.clone(), spec).stream(context(cancel), request)
    }
}

fn context(cancel: &CancellationToken) -> CallContext {
    CallContext {
        snapshot: Arc::default(),
        session: SessionId::mint(),
        turn: Some(TurnId::mint()),
        cwd: "/".into(),
        cancel: cancel.clone(),
        asker: None,
    }
}

async fn end(stream: &mut Box<dyn ModelStream>) -> Option<ProviderError> {
    let mut error = None;
    while let Some(next) = stream.next().await {
        assert!(error.is_none(), "an error is the last word");
        error = next.err();
    }
    error
}

#[tokio::test]
async fn every_event_written_before_the_response_comes_out_before_the_end() {
    let mut plugin = Plugin::new();
    let mut stream = plugin.stream(&CancellationToken::new());
    let request = plugin.hear().await;
    assert_eq!(
        (&request["id"], &request["params"]["call"], &request["params"]["id"]),
        (&json!(2), &json!("call-1"), &json!("m"))
    );
    plugin.delta(json!({"type": "textStart", "id": "b"})).await;
    for _ in 0..500 {
        plugin.delta(json!({"type": "textDelta", "id": "b", "delta": "x"})).await;
    }
    plugin.say(json!({"jsonrpc": "2.0", "id": 2, "result": {}})).await;
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        if let ModelEvent::TextDelta { delta, .. } = event.unwrap() {
            text.push_str(&delta);
        }
    }
    assert_eq!(text.len(), 500);
    drop(stream);
    // A clean close needs no cancel: the next thing heard is the next request.
    let _next = plugin.stream(&CancellationToken::new());
    assert_eq!(plugin.hear().await["method"], "provider/stream");
}

#[tokio::test]
async fn the_plugins_own_error_is_passed_on() {
    let mut plugin = Plugin::new();
    let mut stream = plugin.stream(&CancellationToken::new());
    plugin.say(json!({"jsonrpc": "2.0", "id": 2, "result": {"error": {"kind": "rateLimited", "retryAfterMs": 5}}})).await;
    assert_eq!(end(&mut stream).await, Some(ProviderError::RateLimited { retry_after_ms: Some(5) }));
}

#[tokio::test]
async fn the_message_of_a_plugins_own_error_is_cut() {
    let mut plugin = Plugin::new();
    let mut stream = plugin.stream(&CancellationToken::new());
    let error = json!({"kind": "server", "status": 500, "message": "x".repeat(4002)});
    plugin.say(json!({"jsonrpc": "2.0", "id": 2, "result": {"error": error}})).await;
    let message = "x".repeat(4000) + "… [2 more characters]";
    assert_eq!(end(&mut stream).await, Some(ProviderError::Server { status: 500, message }));
}

#[tokio::test]
async fn a_bad_delta_fails_its_stream_with_its_pointer() {
    let mut plugin = Plugin::new();
    let mut stream = plugin.stream(&CancellationToken::new());
    plugin.hear().await;
    plugin.delta(json!({"type": "textStart", "id": "b"})).await;
    plugin.delta(json!({"type": "textDelta", "id": "b"})).await;
    assert!(matches!(stream.next().await, Some(Ok(ModelEvent::TextStart { .. }))));
    let message = "p: provider/delta params at /event/delta: expected string, got nothing".to_owned();
    assert_eq!(end(&mut stream).await, Some(ProviderError::Request { message }));
    assert_eq!(plugin.failed_streams(), (1, 1));
    let cancel = plugin.hear().await;
    assert_eq!((&cancel["method"], &cancel["params"]["call"]), (&json!("provider/cancel"), &json!("call-1")));
}

#[tokio::test]
async fn refusals_are_stream_errors_and_deaths_are_the_transports() {
    let mut plugin = Plugin::new();
    let mut stream = plugin.stream(&CancellationToken::new());
    plugin.say(json!({"jsonrpc": "2.0", "id": 2, "error": {"code": -32603, "message": "boom"}})).await;
    let message = "p: boom (code -32603)".to_owned();
    assert_eq!(end(&mut stream).await, Some(ProviderError::Stream { message }));
    let mut stream = plugin.stream(&CancellationToken::new());
    plugin.hear().await;
    plugin.hear().await;
    plugin.wire.connection.close(&"it is gone".into());
    let message = "p: provider/stream failed (sent, no answer): it is gone".to_owned();
    assert_eq!(end(&mut stream).await, Some(ProviderError::Transport { message }));
}

#[tokio::test(start_paused = true)]
async fn silence_is_a_timeout_and_each_event_restarts_the_clock() {
    let mut plugin = Plugin::new();
    let mut stream = plugin.stream(&CancellationToken::new());
    plugin.hear().await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    plugin.delta(json!({"type": "textStart", "id": "b"})).await;
    assert!(stream.next().await.unwrap().is_ok());
    let begun = tokio::time::Instant::now();
    assert_eq!(end(&mut stream).await, Some(ProviderError::Timeout));
    assert!(begun.elapsed() > Duration::from_secs(119));
    assert_eq!(plugin.failed_streams(), (1, 1));
    assert_eq!(plugin.hear().await["method"], "provider/cancel");
}

#[tokio::test]
async fn a_stream_that_is_cancelled_or_dropped_is_told_to_the_plugin() {
    let mut plugin = Plugin::new();
    let cancel = CancellationToken::new();
    let mut stream = plugin.stream(&cancel);
    plugin.hear().await;
    cancel.cancel();
    assert_eq!(end(&mut stream).await, None);
    assert_eq!(plugin.failed_streams(), (1, 0));
    assert_eq!(plugin.hear().await["method"], "provider/cancel");
    let stream = plugin.stream(&CancellationToken::new());
    plugin.hear().await;
    drop(stream);
    assert_eq!(plugin.hear().await["params"]["call"], "call-3");
}

#[tokio::test]
async fn an_unread_stream_keeps_nobody_else_waiting() {
    let mut plugin = Plugin::new();
    let mut unread = plugin.stream(&CancellationToken::new());
    plugin.hear().await;
    let mut other = plugin.stream(&CancellationToken::new());
    assert_eq!(plugin.hear().await["id"], 4);
    for number in 0..3000 {
        // Blocks of their own, so that nothing merges.
        plugin.delta(json!({"type": "textDelta", "id": number.to_string(), "delta": "x"})).await;
    }
    plugin.say(json!({"jsonrpc": "2.0", "id": 4, "result": {}})).await;
    assert_eq!(end(&mut other).await, None);
    plugin.say(json!({"jsonrpc": "2.0", "id": 2, "result": {}})).await;
    let mut count = 0;
    while let Some(event) = unread.next().await {
        event.unwrap();
        count += 1;
    }
    assert_eq!(count, 3000);
}

impl Plugin {
    fn call_tool(&self) -> BoxFuture<'static, Result<bingo_plugin_sdk::item::ToolOutput, KernelError>> {
        self.call_watched_tool(Arc::new(|_| {}))
    }

    fn call_watched_tool(
        &self,
        progress: ProgressSink,
    ) -> BoxFuture<'static, Result<bingo_plugin_sdk::item::ToolOutput, KernelError>> {
        let spec =
            serde_json::from_value(json!({"name": "t", "description": "", "inputSchema": {}})).unwrap();
        let tool = tool::PluginTool::new(self.wire.connection.clone(), &spec, "1");
        tool.call(context(&CancellationToken::new()), "c".to_owned(), json!({}), progress)
    }
}

#[tokio::test(start_paused = true)]
async fn progress_keeps_a_long_tool_alive() {
    let mut plugin = Plugin::new();
    let call = tokio::spawn(plugin.call_tool());
    plugin.hear().await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(500)).await;
        let params = json!({"callId": "c", "tail": "on it"});
        plugin.say(json!({"jsonrpc": "2.0", "method": "tool/progress", "params": params})).await;
    }
    let begun = tokio::time::Instant::now();
    assert_eq!(call.await.unwrap().unwrap_err().code, ErrorCode::Timeout);
    assert!(begun.elapsed() > Duration::from_secs(599));
    let cancel = plugin.hear().await;
    assert_eq!((&cancel["method"], &cancel["params"]), (&json!("tool/cancel"), &json!({"callId": "c"})));
}

#[tokio::test(start_paused = true)]
async fn service_calls_that_overlap_stop_the_clock_of_a_silent_tool_once() {
    let mut plugin = Plugin::new();
    let begun = tokio::time::Instant::now();
    let call = tokio::spawn(plugin.call_tool());
    plugin.hear().await;
    let connection = &plugin.wire.connection;
    let pause = |secs| tokio::time::sleep(Duration::from_secs(secs));
    for _ in 0..3 {
        pause(100).await;
        let first = connection.open_call();
        pause(10).await;
        let second = connection.open_call();
        pause(10).await;
        drop(first);
        pause(10).await;
        drop(second);
    }
    assert_eq!(call.await.unwrap().unwrap_err().code, ErrorCode::Timeout);
    assert_eq!(begun.elapsed().as_secs(), 690);
}

#[tokio::test]
async fn what_a_tool_shows_of_its_progress_is_cut() {
    let mut plugin = Plugin::new();
    let (tx, rx) = std::sync::mpsc::channel();
    let call = tokio::spawn(plugin.call_watched_tool(Arc::new(move |tail| drop(tx.send(tail)))));
    let request = plugin.hear().await;
    let params = json!({"callId": "c", "tail": "x".repeat(4002)});
    plugin.say(json!({"jsonrpc": "2.0", "method": "tool/progress", "params": params})).await;
    plugin.say(json!({"jsonrpc": "2.0", "id": request["id"], "result": {"output": {"parts": []}}})).await;
    call.await.unwrap().unwrap();
    assert_eq!(rx.try_recv().unwrap(), "x".repeat(4000) + "… [2 more characters]");
}

#[tokio::test]
async fn a_tool_call_that_is_dropped_is_told_to_the_plugin() {
    let mut plugin = Plugin::new();
    let call = tokio::spawn(plugin.call_tool());
    plugin.hear().await;
    call.abort();
    assert_eq!(plugin.hear().await["method"], "tool/cancel");
}

#[tokio::test]
async fn the_first_of_a_name_is_offered_and_the_others_are_told() {
    let entry = |name: &str| {
        let wire = testing::wire(name, Limits::default(), Arc::new(Heard::default()));
        let declared: InitializeResult = serde_json::from_value(json!({
            "protocol": 5, "name": name, "version": "2",
            "tools": [{"name": "t", "description": "one", "inputSchema": {}}, {"name": "t", "description": "two", "inputSchema": {}}],
            "commands": [{"name": "c", "hint": name, "args": {"kind": "none"}, "family": "f"}],
            "providers": [{"id": "m"}],
        }))
        .unwrap();
        let entry = json!({"name": name, "version": "1", "entry": {"command": "x"}});
        PluginEntry {
            name: PluginName::parse(name).unwrap(),
            source: Arc::new(source(name, entry)),
            state: PluginState::Ready(ReadyPlugin::new(wire.connection, declared).0),
            restarts: 0,
        }
    };
    let mut broken = entry("z");
    broken.state = PluginState::Broken { reason: "it is broken".into(), last: None };
    let table = PluginTable { number: 4, plugins: vec![entry("b"), entry("a"), broken] };
    let build::Built { snapshot, clashes, .. } = build::build(&Arc::new(table), &Arc::default());
    let names: Vec<&str> = snapshot.tools.iter().map(|tool| tool.spec().name.as_str()).collect();
    assert_eq!(names, ["plugin__b__t", "plugin__a__t"]);
    assert_eq!(snapshot.tools[0].spec().description, "one");
    assert_eq!((snapshot.number, snapshot.commands.len(), snapshot.providers.len()), (4, 1, 1));
    assert_eq!(snapshot.commands[0].spec().hint, "b");
    let told: Vec<String> = clashes.iter().map(|clash| format!("{} {}", clash.code, clash.text)).collect();
    assert_eq!(
        told,
        [
            "TOOL_SHADOWED b: its tool `plugin__b__t` is not used: the name was taken before",
            "TOOL_SHADOWED a: its tool `plugin__a__t` is not used: the name was taken before",
            "COMMAND_TAKEN a: its command `c` is not used: the name was taken before",
            "PROVIDER_TAKEN a: its provider `m` is not used: the name was taken before",
        ]
    );
    let reports: Vec<_> =
        snapshot.plugins.iter().map(|plugin| (plugin.version.as_str(), plugin.reason.as_deref())).collect();
    assert_eq!(reports, [("2", None), ("2", None), ("1", Some("it is broken"))]);
}

/// A plugin that was found with this manifest.
fn source(name: &str, manifest: Value) -> PluginSource {
    let (name, manifest) = (PluginName::parse(name).unwrap(), serde_json::from_value(manifest).unwrap());
    PluginSource { name, root: "/nowhere".into(), manifest, origin: Origin::User }
}
