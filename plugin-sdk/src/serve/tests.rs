//! The serve loop, driven by a host in memory.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use super::*;
use crate::provider::ModelEvent;

/// Does what the tool's name says.
struct Probe;

impl Plugin for Probe {
    async fn initialize(&self, _: InitializeParams) -> Result<InitializeResult, RpcError> {
        Ok(InitializeResult { name: "probe".to_owned(), version: "1".to_owned(), ..Default::default() })
    }

    async fn call_tool(&self, params: ToolCallParams, context: ToolContext) -> Result<ToolOutput, RpcError> {
        match params.name.as_str() {
            "wait" => {
                context.progress("waiting").await.unwrap();
                context.cancelled().await;
                assert_eq!(context.progress("too late").await, Err(Cancelled));
                Ok(ToolOutput::error("cancelled"))
            }
            "never" => std::future::pending().await,
            "panic" => panic!("as asked"),
            _ => Ok(ToolOutput::text("done")),
        }
    }

    async fn stream_provider(
        &self,
        params: ProviderStreamParams,
        context: StreamContext,
    ) -> Result<(), ProviderError> {
        for n in 0.. {
            if n == 3 && params.request.model == "three" {
                break;
            }
            context.send(ModelEvent::TextDelta { id: "b".to_owned(), delta: n.to_string() }).await?;
        }
        Err(ProviderError::Timeout)
    }
}

/// Has nothing but a name.
struct Bare;

impl Plugin for Bare {
    async fn initialize(&self, _: InitializeParams) -> Result<InitializeResult, RpcError> {
        Ok(InitializeResult::default())
    }
}

struct Host {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Host {
    fn start(plugin: impl Plugin) -> Self {
        let (host, plugin_end) = tokio::io::duplex(1024);
        let (reader, writer) = tokio::io::split(plugin_end);
        let serving = tokio::spawn(serve(plugin, reader, writer));
        let (reader, writer) = tokio::io::split(host);
        Self { lines: BufReader::new(reader).lines(), writer, serving }
    }

    async fn line(&mut self, line: &[u8]) {
        self.writer.write_all(line).await.unwrap();
        self.writer.write_all(b"\n").await.unwrap();
    }

    async fn request(&mut self, id: u32, method: &str, params: Value) {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        self.line(line.as_bytes()).await;
    }

    async fn notify(&mut self, method: &str, params: Value) {
        let line = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        self.line(line.as_bytes()).await;
    }

    async fn tool(&mut self, id: u32, name: &str) {
        let call = format!("c{id}");
        let params =
            json!({"callId": call, "name": name, "input": {}, "cwd": "/", "session": "s", "turn": "t"});
        self.request(id, "tool/call", params).await;
    }

    async fn stream(&mut self, id: u32, model: &str) {
        let request = json!({"model": model, "maxTokens": 1, "system": [], "messages": [], "tools": []});
        self.request(id, "provider/stream", json!({"id": "p", "call": "s1", "request": request})).await;
    }

    async fn respond(&mut self, request: &Value, result: Value) {
        let line = json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string();
        self.line(line.as_bytes()).await;
    }

    async fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next_line().await.unwrap().expect("one more line")).unwrap()
    }

    /// Ends the input and returns what still came.
    async fn end(mut self) -> Vec<String> {
        self.writer.shutdown().await.unwrap();
        let mut rest = Vec::new();
        while let Some(line) = self.lines.next_line().await.unwrap() {
            rest.push(line);
        }
        self.serving.await.unwrap().unwrap();
        rest
    }
}

fn hello(protocol: u32) -> Value {
    json!({"protocol": protocol, "pluginRoot": "/p", "env": {"home": "/", "configDir": "/", "dataDir": "/"}})
}

/// Asks itself, another, and the person; sums what it observes.
#[derive(Default)]
struct Social {
    host: std::sync::OnceLock<super::Host>,
    seen: std::sync::Mutex<Vec<String>>,
}

impl Social {
    fn host(&self) -> super::Host {
        self.host.get().expect("connected comes first").clone()
    }
}

impl Plugin for Social {
    fn connected(&self, host: super::Host) {
        let _ = self.host.set(host);
    }

    async fn initialize(&self, _: InitializeParams) -> Result<InitializeResult, RpcError> {
        Ok(InitializeResult::default())
    }

    async fn call_tool(&self, _: ToolCallParams, context: ToolContext) -> Result<ToolOutput, RpcError> {
        let host = self.host();
        host.notice(crate::item::Level::Warn, "soon").await?;
        let question = serde_json::from_value(json!({"kind": "question", "question": "?", "options": []}));
        let answer = host.ask(context.call(), question.unwrap()).await?;
        let value = host.call_service("other", "m", json!([1])).await?;
        Ok(ToolOutput::text(format!("{answer:?} {value}")))
    }

    async fn contribute_context(&self, _: ContextContributeParams) -> Result<Vec<ContextPiece>, RpcError> {
        Ok(Vec::new())
    }

    async fn decide_hook(&self, params: HookDecideParams) -> Result<HookDecideResult, RpcError> {
        let outcome = crate::calls::HookOutcome::Deny { reason: params.id };
        Ok(HookDecideResult { outcome, value: None })
    }

    async fn observe_hook(&self, params: HookObserveParams) {
        assert_ne!(params.id, "panic", "as asked");
        self.seen.lock().unwrap().push(params.id);
    }

    async fn call_service(&self, params: ServiceCallParams) -> Result<Value, RpcError> {
        match params.method.as_str() {
            "seen" => Ok(json!(*self.seen.lock().unwrap())),
            "through" => self.host().call_service("social", "own", params.params).await,
            _ => Ok(params.params),
        }
    }
}

fn service(key: &str, method: &str, params: Value) -> Value {
    json!({"key": key, "method": method, "params": params})
}

#[tokio::test]
async fn a_tool_tells_asks_and_calls_while_it_runs() {
    let mut host = Host::start(Social::default());
    host.tool(1, "t").await;
    let notice = host.next().await;
    assert_eq!(notice["method"], "service/call");
    assert_eq!(
        notice["params"],
        service("bingo.host", "notice", json!({"level": "warn", "message": "soon"}))
    );
    host.respond(&notice, json!({"result": {}})).await;
    let ask = host.next().await;
    assert_eq!((&ask["params"]["method"], &ask["params"]["params"]["call"]), (&json!("ask"), &json!("c1")));
    host.respond(&ask, json!({"result": {"answer": {"kind": "text", "text": "yes"}}})).await;
    let call = host.next().await;
    assert_eq!(call["params"], service("other", "m", json!([1])));
    host.respond(&call, json!({"result": 7})).await;
    let answer = host.next().await;
    assert_eq!(answer["id"], 1);
    assert_eq!(answer["result"]["output"]["parts"][0]["text"], r#"Text { text: "yes" } 7"#);
}

#[tokio::test]
async fn a_refusal_of_the_host_ends_the_call_in_its_words() {
    let mut host = Host::start(Social::default());
    host.tool(1, "t").await;
    let notice = host.next().await;
    let error = json!({"jsonrpc": "2.0", "id": notice["id"], "error": {"code": -32603, "message": "no"}});
    host.line(error.to_string().as_bytes()).await;
    assert_eq!(host.next().await["error"]["message"], "no");
}

#[tokio::test]
async fn it_is_called_while_its_own_calls_are_open() {
    let mut host = Host::start(Social::default());
    host.request(1, "service/call", service("social", "through", json!("x"))).await;
    let own = host.next().await;
    assert_eq!(own["params"], service("social", "own", json!("x")));
    host.request(2, "service/call", own["params"].clone()).await;
    let inner = host.next().await;
    assert_eq!((&inner["id"], &inner["result"]), (&json!(2), &json!({"result": "x"})));
    host.respond(&own, inner["result"].clone()).await;
    assert_eq!(host.next().await["result"], json!({"result": "x"}));
}

#[tokio::test]
async fn observations_keep_their_order_and_survive_a_panic() {
    let mut host = Host::start(Social::default());
    let observe = |id: &str| json!({"id": id, "site": {"session": "s", "cwd": "/"}, "point": "compact", "payload": {"phase": "end"}});
    for id in ["a", "panic", "b", "c"] {
        host.notify("hook/observe", observe(id)).await;
    }
    for id in 1.. {
        host.request(id, "service/call", service("social", "seen", Value::Null)).await;
        if host.next().await["result"]["result"] == json!(["a", "b", "c"]) {
            break;
        }
    }
}

#[tokio::test]
async fn hooks_and_context_are_served() {
    let mut host = Host::start(Social::default());
    let site = json!({"session": "s", "cwd": "/"});
    host.request(1, "hook/decide", json!({"id": "h", "site": site, "point": "stop"})).await;
    let outcome = json!({"outcome": {"kind": "deny", "reason": "h"}});
    assert_eq!(host.next().await["result"], outcome);
    host.request(2, "compactor/compact", json!({"id": "k"})).await;
    assert_eq!(host.next().await["error"]["code"], code::INVALID_PARAMS);
}

#[tokio::test]
async fn the_end_of_input_fails_calls_that_wait_for_the_host() {
    let mut host = Host::start(Social::default());
    host.tool(1, "t").await;
    host.next().await;
    let rest = host.end().await;
    assert!(rest[0].contains("the host is gone"), "{rest:?}");
}

#[tokio::test]
async fn the_handshake_fills_in_the_protocol_and_happens_once() {
    let mut host = Host::start(Probe);
    host.request(1, "initialize", hello(5)).await;
    let answer = host.next().await;
    assert_eq!((&answer["result"]["protocol"], &answer["result"]["name"]), (&json!(5), &json!("probe")));
    host.request(2, "initialize", hello(5)).await;
    assert_eq!(host.next().await["error"]["code"], code::INVALID_REQUEST);
    assert!(host.end().await.is_empty());
}

#[tokio::test]
async fn another_protocol_is_refused_with_both_numbers() {
    let mut host = Host::start(Probe);
    host.request(1, "initialize", json!({"protocol": 6, "shape": "new"})).await;
    let message = host.next().await["error"]["message"].to_string();
    assert!(message.contains("protocol 5") && message.contains("protocol 6"), "{message}");
}

#[tokio::test]
async fn what_cannot_be_served_is_answered_in_words() {
    let mut host = Host::start(Bare);
    host.request(1, "no/such", Value::Null).await;
    host.request(2, "tool/call", json!({"callId": "c"})).await;
    host.tool(3, "x").await;
    host.request(4, "command/run", json!({"name": "x", "args": "", "cwd": "/", "session": "s"})).await;
    host.request(5, "command/complete", json!({"name": "x", "partial": "", "cwd": "/"})).await;
    host.stream(6, "m").await;
    let mut answers = [(); 6].map(|()| Value::Null);
    for _ in 0..6 {
        let answer = host.next().await;
        let id = answer["id"].as_u64().unwrap() as usize;
        answers[id - 1] = answer;
    }
    assert_eq!(answers[0]["error"]["code"], code::METHOD_NOT_FOUND);
    assert_eq!(answers[1]["error"]["code"], code::INVALID_PARAMS);
    assert!(answers[1]["error"]["message"].to_string().contains("missing field `name`"), "{}", answers[1]);
    assert_eq!(answers[2]["error"]["message"], "this plugin has no tool `x`");
    assert_eq!(answers[3]["error"]["message"], "this plugin has no command `x`");
    assert_eq!(answers[4]["result"]["completions"], json!([]));
    assert_eq!(answers[5]["result"]["error"]["kind"], "unsupported");
}

#[tokio::test]
async fn a_bad_line_is_skipped_and_answered_where_it_has_an_id() {
    let mut host = Host::start(Probe);
    for line in [&b"not json"[..], b"", b"\xff\xfe", b"[]"] {
        host.line(line).await;
    }
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"tool/call","params":{}{}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    for (line, id, code) in [
        (&br#"{"jsonrpc":"1.0","id":1,"method":"tool/call"}"#[..], 1, -32600),
        (deep.as_bytes(), 2, -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"\xff\"}", 3, -32700),
    ] {
        host.line(line).await;
        let answer = host.next().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(code)), "{answer}");
    }
    host.tool(4, "quick").await;
    assert_eq!(host.next().await["id"], 4);
}

#[tokio::test]
async fn a_cancel_reaches_its_call_and_no_other() {
    let mut host = Host::start(Probe);
    host.tool(1, "wait").await;
    assert_eq!(host.next().await["params"], json!({"callId": "c1", "tail": "waiting"}));
    host.notify("tool/cancel", json!({"callId": "other"})).await;
    host.notify("provider/cancel", json!({"call": "c1"})).await;
    host.tool(2, "quick").await;
    assert_eq!(host.next().await["id"], 2, "the waiting call keeps nobody waiting");
    host.notify("tool/cancel", json!({"callId": "c1"})).await;
    let answer = host.next().await;
    assert_eq!((&answer["id"], &answer["result"]["output"]["isError"]), (&json!(1), &json!(true)));
}

#[tokio::test]
async fn deltas_come_in_order_before_the_answer() {
    let mut host = Host::start(Probe);
    host.stream(1, "three").await;
    for n in 0..3 {
        let delta = host.next().await;
        assert_eq!((&delta["method"], &delta["params"]["call"]), (&json!("provider/delta"), &json!("s1")));
        assert_eq!(delta["params"]["event"]["delta"], n.to_string());
    }
    assert_eq!(host.next().await["result"]["error"]["kind"], "timeout");
}

#[tokio::test]
async fn a_cancel_ends_a_stream_whose_reader_is_slow() {
    let mut host = Host::start(Probe);
    // It never ends by itself, and fills every buffer while nobody reads.
    host.stream(1, "endless").await;
    host.next().await;
    host.notify("provider/cancel", json!({"call": "s1"})).await;
    while host.next().await["id"] != 1 {}
    assert!(host.end().await.is_empty());
}

#[tokio::test]
async fn a_panic_is_answered_and_the_plugin_lives_on() {
    let mut host = Host::start(Probe);
    host.tool(1, "panic").await;
    assert_eq!(host.next().await["error"]["code"], code::INTERNAL_ERROR);
    host.tool(2, "quick").await;
    assert_eq!(host.next().await["id"], 2);
}

#[tokio::test]
async fn the_end_of_input_lets_calls_answer_and_then_ends_them() {
    let mut host = Host::start(Probe);
    host.tool(1, "quick").await;
    assert_eq!(host.end().await.len(), 1);

    let mut host = Host::start(Probe);
    host.tool(1, "wait").await;
    host.tool(2, "never").await;
    let rest = host.end().await;
    assert_eq!(rest.len(), 2, "the live line, then the answer to the cancel: {rest:?}");
}

#[tokio::test]
async fn a_host_that_is_gone_ends_the_loop() {
    let (host, plugin_end) = tokio::io::duplex(64);
    let (reader, writer) = tokio::io::split(plugin_end);
    // The input stays open; only the output breaks.
    let (_input, gone) = (reader, host);
    let (open_end, input) = tokio::io::duplex(1024);
    let serving = tokio::spawn(serve(Probe, input, writer));
    drop(gone);
    let (_, mut open) = tokio::io::split(open_end);
    open.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"no/such\"}\n").await.unwrap();
    assert!(matches!(serving.await.unwrap(), Err(ServeError::Write { .. })));
}
