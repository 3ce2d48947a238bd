//! A connection over a pair in memory: the test is the plugin.

mod metrics;
mod waste;

use std::sync::Mutex;

use bingo_plugin_sdk::calls::methods::{CallTool, CompleteCommand};
use bingo_plugin_sdk::calls::{CommandCompleteParams, ToolCallParams, notifications};
use bingo_plugin_sdk::provider::ProviderCancelParams;
use proptest::prelude::*;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};

use super::*;
use crate::supervisor::testing::{self, Heard};

struct Plugin {
    lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
}

struct Wire {
    connection: Connection,
    plugin: Plugin,
    heard: Arc<Heard>,
    tasks: Tasks,
}

fn wire(limits: Limits) -> Wire {
    let heard = Arc::new(Heard::default());
    let mut wire = testing::wire("p", limits, heard.clone());
    let (reader, writer) = tokio::io::split(wire.far.take().unwrap());
    let plugin = Plugin { lines: BufReader::new(reader).lines(), writer };
    Wire { connection: wire.connection, plugin, heard, tasks: wire.tasks }
}

impl Plugin {
    async fn hear(&mut self) -> Value {
        serde_json::from_str(&self.lines.next_line().await.unwrap().unwrap()).unwrap()
    }

    async fn say(&mut self, line: &str) {
        self.writer.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Lets the connection read what was said, without reading what it answers.
    async fn settle_unheard(&mut self) {
        self.writer.flush().await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until everything said before was read: an answer to a request comes after it.
    async fn settle(&mut self) -> Value {
        let params = r#"{"key":"none","method":"none"}"#;
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":"settle","method":"service/call","params":{params}}}"#))
            .await;
        loop {
            let answer = self.hear().await;
            if answer["id"] == "settle" {
                return answer;
            }
        }
    }
}

fn complete(partial: &str) -> CommandCompleteParams {
    CommandCompleteParams { name: "c".to_owned(), partial: partial.to_owned(), cwd: "/".to_owned() }
}

fn begin(wire: &Wire) -> PendingCall<CompleteCommand> {
    wire.connection.begin(&complete("")).unwrap()
}

#[tokio::test]
async fn ids_count_from_one_and_answers_may_come_in_any_order() {
    let mut wire = wire(Limits::default());
    let (mut first, mut second) = (begin(&wire), begin(&wire));
    assert_eq!(wire.plugin.hear().await["id"], 1);
    let request = wire.plugin.hear().await;
    assert_eq!(request["id"], 2);
    assert_eq!(request["params"], json!({"name": "c", "partial": "", "cwd": "/"}));
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":2,"result":{"completions":[{"value":"b"}]}}"#).await;
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    assert_eq!(second.response().await.unwrap().completions[0].value, "b");
    assert!(first.response().await.unwrap().completions.is_empty());
}

/// Gives `line` as the answer to the only call, whose id is 1, and returns the error.
async fn answered(line: &[u8]) -> String {
    let mut wire = wire(Limits { line: 100, ..Limits::default() });
    let mut pending = begin(&wire);
    wire.plugin.hear().await;
    wire.plugin.writer.write_all(line).await.unwrap();
    wire.plugin.writer.write_all(b"\n").await.unwrap();
    let error = pending.response().await.unwrap_err();
    assert_eq!(error.sent, Sent::Answered);
    error.to_string()
}

#[tokio::test]
async fn what_is_no_answer_fails_no_call() {
    let long = "x".repeat(200);
    let cases: [(Vec<u8>, Option<&str>); 6] = [
        (
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"service/call","params":{{"key":"{long}"}}}}"#)
                .into(),
            Some("its line has 268 bytes, the limit is 100"),
        ),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}".into(), Some("its line is not UTF-8")),
        (
            br#"{"jsonrpc":"2.0","id":1,"method":"x","params":"\ud800"}"#.into(),
            Some("its line is not JSON: unexpected end of hex escape at line 1 column 54"),
        ),
        (format!(r#"{{"jsonrpc":"2.0","method":"tool/progress","params":"{long}"}}"#).into(), None),
        (long.clone().into(), None),
        (b"{".into(), None),
    ];
    for (line, refusal) in cases {
        let mut wire = wire(Limits { line: 100, ..Limits::default() });
        let mut pending = begin(&wire);
        wire.plugin.hear().await;
        wire.plugin.writer.write_all(&line).await.unwrap();
        wire.plugin.say("").await;
        if let Some(refusal) = refusal {
            let answer = wire.plugin.hear().await;
            assert_eq!(
                (&answer["id"], &answer["error"]["message"]),
                (&json!(1), &json!(refusal)),
                "{answer}"
            );
        }
        wire.plugin.say(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
        pending.response().await.unwrap();
        assert!(!wire.heard.texts().is_empty(), "its author is told");
    }
}

#[tokio::test]
async fn a_name_that_cannot_be_shown_is_refused() {
    let command = |aliases: &[&str]| json!({"name": "ok", "aliases": aliases, "hint": "", "args": {"kind": "none"}, "family": ""});
    for (offers, pointer) in [
        (json!({"tools": [{"name": "a b", "description": "", "inputSchema": {}}]}), "/tools/0/name"),
        (json!({"hooks": [{"id": "ok"}, {"id": ""}]}), "/hooks/1/id"),
        // Marks of direction: they show another name than is meant.
        (json!({"hooks": [{"id": "\u{202e}ko"}]}), "/hooks/0/id"),
        (json!({"services": {"\u{1b}[2J": {}}}), "/services"),
        (
            json!({"services": {"a/b~c": {"methods": {"ok": {}, "\u{1b}[2J": {}}}}}),
            "/services/a~1b~0c/methods",
        ),
        (json!({"commands": [command(&["ok", "a\nb"])]}), "/commands/0/aliases/1"),
        (
            json!({"providers": [{"id": "ok", "models": [{"id": "x".repeat(129)}]}]}),
            "/providers/0/models/0/id",
        ),
    ] {
        let mut result = json!({"protocol": 5, "name": "p", "version": "1"});
        result.as_object_mut().unwrap().extend(offers.as_object().unwrap().clone());
        let declared = serde_json::from_value(result).unwrap();
        let error = crate::supervisor::handshake::unfit_name(&declared).unwrap().to_string();
        assert!(error.contains(&format!("at {pointer}; a name has 1 to 128 characters")), "{error}");
        assert!(!error.contains('\u{1b}'), "{error}");
    }
}

#[tokio::test]
async fn a_response_that_cannot_be_used_fails_its_call_at_once() {
    let unusable = "p: the response to command/complete cannot be used: ";
    let long = "x".repeat(200);
    let cases: [(&[u8], &str); 14] = [
        (
            br#" {"jsonrpc":"2.0","id":1,"result":{"method":"\ud800"}}"#,
            "its line is not JSON: unexpected end of hex escape at line 1 column 52",
        ),
        (
            b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\0\"}",
            "its line is not JSON: control character (\\u0000-\\u001F) found while parsing a string at line 1 column 35",
        ),
        (
            br#"{"jsonrpc":"2.0","id":1,"result":{"comple"#,
            "its line is not JSON: EOF while parsing a string at line 1 column 41",
        ),
        (
            br#"{"jsonrpc":"2.0","id":1,"result":{"a":"\ud800"}}"#,
            "its line is not JSON: unexpected end of hex escape at line 1 column 46",
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\0\"}",
            "its line is not JSON: control character (\\u0000-\\u001F) found while parsing a string at line 1 column 35",
        ),
        (
            br#"{"jsonrpc":"2.0","id":"1","result":{}}"#,
            "its id came back as the string \"1\", it was sent as the number 1",
        ),
        (
            br#"{"jsonrpc":"2.0","id":1,"error":{"message":"m"}}"#,
            "`error` does not fit: missing field `code`",
        ),
        (br#"{"id":1,"result":{}}"#, "`jsonrpc` is missing"),
        (br#"{"jsonrpc":"2.0","id":1}"#, "neither `method`, `result` nor `error` is there"),
        (
            br#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}"#,
            "a response with `id` null answers nothing",
        ),
        (br#"{"jsonrpc":"2.0","id":1.5,"result":{}}"#, "`id` must be an integer or a string, got 1.5"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\xff\"}", "its line is not UTF-8"),
        (
            &format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{long}"}}"#).into_bytes(),
            "its line has 236 bytes, the limit is 100",
        ),
        (
            &format!(r#"{{"jsonrpc":"2.0","result":"{long}"}}"#).into_bytes(),
            "its line has 229 bytes, the limit is 100",
        ),
    ];
    for (line, reason) in cases {
        assert_eq!(answered(line).await, format!("{unusable}{reason}"));
    }
    assert_eq!(
        answered(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"no"}}"#).await,
        "p: no (code -5)"
    );
    assert_eq!(
        answered(br#"{"jsonrpc":"2.0","id":1,"result":{"completions":[{}]}}"#).await,
        "p: command/complete result at /completions/0/value: expected string, got nothing"
    );
}

#[tokio::test]
async fn late_and_doubled_answers_are_dropped_without_a_word() {
    let mut wire = wire(Limits::default());
    let mut pending = begin(&wire);
    wire.plugin.hear().await;
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":1,"result":{"completions":[{"value":"late"}]}}"#).await;
    assert!(pending.response().await.unwrap().completions.is_empty());
    wire.plugin.settle().await;
    assert!(wire.heard.texts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_says_whether_the_plugin_got_the_call() {
    let wire = wire(Limits::default());
    let second = Duration::from_secs(1);
    let error = wire.connection.call::<CompleteCommand>(&complete(""), second).await.unwrap_err();
    assert_eq!(error.to_string(), "p: command/complete got no answer within 1 s (sent, no answer)");
    // The pipe holds 1024 bytes and nobody reads: what follows waits in the queue and is taken back.
    let _stuck = wire.connection.begin::<CompleteCommand>(&complete(&"x".repeat(2000))).unwrap();
    let error = wire.connection.call::<CompleteCommand>(&complete(""), second).await.unwrap_err();
    assert_eq!((error.sent, error.to_string().contains("never sent")), (Sent::Never, true));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_read_is_busy_not_waited_for() {
    let wire = wire(Limits { queued: 5000, ..Limits::default() });
    let _stuck = wire.connection.begin::<CompleteCommand>(&complete(&"x".repeat(9000))).unwrap();
    let error = wire.connection.begin::<CompleteCommand>(&complete("")).err().unwrap();
    assert!(
        error.to_string().starts_with("p: command/complete was not sent, the plugin is busy: 90"),
        "{error}"
    );
    assert!(
        wire.connection
            .notify::<notifications::CancelProvider>(&ProviderCancelParams { call: "c".to_owned() })
            .is_err()
    );
    wire.connection.cancel::<notifications::CancelProvider>(&ProviderCancelParams { call: "c".to_owned() });
}

#[tokio::test]
async fn the_end_fails_everything_with_one_reason() {
    let mut wire = wire(Limits::default());
    let mut sent = begin(&wire);
    wire.plugin.hear().await;
    let _stuck = wire.connection.begin::<CompleteCommand>(&complete(&"x".repeat(9000))).unwrap();
    let mut unsent = begin(&wire);
    wire.connection.close(&"it is gone".into());
    let (sent, unsent) = (sent.response().await.unwrap_err(), unsent.response().await.unwrap_err());
    assert_eq!(sent.to_string(), "p: command/complete failed (sent, no answer): it is gone");
    assert_eq!(unsent.to_string(), "p: command/complete failed (never sent): it is gone");
    assert_eq!((sent.sent, unsent.sent), (Sent::NoAnswer, Sent::Never));
    let later = wire.connection.begin::<CompleteCommand>(&complete("")).err().unwrap();
    assert_eq!(later.to_string(), unsent.to_string());
}

#[tokio::test]
async fn params_that_break_the_schema_are_not_sent() {
    /// A method whose type is wider than its schema.
    struct Wide;
    impl Method for Wide {
        const NAME: &'static str = "command/complete";
        type Params = Value;
        type Result = Value;
    }
    let wire = wire(Limits::default());
    let error = wire.connection.begin::<Wide>(&json!({"name": 1})).err().unwrap();
    assert_eq!(
        error.to_string(),
        "p: the host's own command/complete params at /partial: expected string, got nothing; it was not sent"
    );
}

#[tokio::test]
async fn requests_are_answered_whatever_their_id() {
    let mut wire = wire(Limits::default());
    let call = |key: &str, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": "a", "method": "service/call", "params": {"key": key, "method": method, "params": params}})
            .to_string()
    };
    let cases = [
        (r#"{"jsonrpc":"2.0","id":"x","method":"tool/call"}"#.to_owned(), -32601),
        (r#"{"jsonrpc":"2.0","id":7,"method":"ask","params":{}}"#.to_owned(), -32601),
        (r#"{"jsonrpc":"2.0","id":7,"method":"service/call","params":{"key":"k"}}"#.to_owned(), -32602),
        (r#"{"id":7,"method":"service/call"}"#.to_owned(), -32600),
        // Nobody serves calls here.
        (call("other", "m", json!(null)), -32603),
    ];
    for (line, code) in cases {
        wire.plugin.say(&line).await;
        let answer = wire.plugin.hear().await;
        assert_eq!(answer["error"]["code"], code, "{line} got {answer}");
        assert_eq!(answer["id"], serde_json::from_str::<Value>(&line).unwrap()["id"]);
    }
}

/// Answers a method `now` at once, `never` not at all, and `large` with a text of that size.
struct Server;

impl Incoming for Server {
    fn serve(&self, _: &Connection, call: bingo_plugin_sdk::calls::ServiceCallParams) -> Served {
        match call.method.as_str() {
            "never" => Served::Later(Box::pin(std::future::pending())),
            "large" => Served::Later(Box::pin(async move {
                Ok(json!("x".repeat(call.params.as_u64().unwrap() as usize)))
            })),
            _ => Served::Now(Ok(call.params)),
        }
    }
}

fn service_call(id: u64, method: &str, params: Value) -> String {
    let params = json!({"key": "k", "method": method, "params": params});
    json!({"jsonrpc": "2.0", "id": id, "method": "service/call", "params": params}).to_string()
}

#[tokio::test]
async fn calls_of_a_plugin_are_served_side_by_side_up_to_a_number() {
    let mut wire = wire(Limits { serving: 2, ..Limits::default() });
    let server: Arc<dyn Incoming> = Arc::new(Server);
    wire.connection.shared.peer.incoming.set(&server);
    for id in 1..=3 {
        wire.plugin.say(&service_call(id, "never", Value::Null)).await;
    }
    let answer = wire.plugin.hear().await;
    let busy = "the host is busy: 2 calls of this plugin are being served";
    assert_eq!((&answer["id"], &answer["error"]["message"]), (&json!(3), &json!(busy)));
    wire.plugin.say(&service_call(4, "now", json!([1]))).await;
    assert_eq!(
        wire.plugin.hear().await["result"],
        json!({"result": [1]}),
        "what takes no time needs no room"
    );
    wire.connection.close(&"it is gone".into());
    while wire.connection.shared.permits.available_permits() < 2 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_answer_that_finds_no_room_is_replaced_by_a_short_one() {
    let mut wire = wire(Limits { queued: 4000, ..Limits::default() });
    let server: Arc<dyn Incoming> = Arc::new(Server);
    wire.connection.shared.peer.incoming.set(&server);
    wire.plugin.say(&service_call(1, "large", json!(3000))).await;
    wire.plugin.settle_unheard().await;
    wire.plugin.say(&service_call(2, "large", json!(3000))).await;
    wire.plugin.settle_unheard().await;
    assert_eq!(wire.plugin.hear().await["id"], 1);
    let answer = wire.plugin.hear().await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!((&answer["id"], &message[..29]), (&json!(2), "the answer found no room: 304"));
}

#[tokio::test]
async fn before_its_handshake_a_plugin_reaches_notice_only() {
    let mut wire = wire(Limits::default());
    wire.connection.shared.shaken.store(false, std::sync::atomic::Ordering::Release);
    let server: Arc<dyn Incoming> = Arc::new(Server);
    wire.connection.shared.peer.incoming.set(&server);
    wire.plugin.say(&service_call(1, "now", Value::Null)).await;
    let answer = wire.plugin.hear().await;
    let refusal = "until it has answered `initialize`, a plugin may call `notice` of `bingo.host` only";
    assert_eq!(answer["error"]["message"], refusal);
}

#[tokio::test]
async fn observations_leave_room_for_calls_and_are_dropped_with_one_word() {
    let mut wire = wire(Limits { queued: 4000, ..Limits::default() });
    let cancel = |n: u32| ProviderCancelParams { call: format!("{n}-{}", "x".repeat(100)) };
    for n in 0..100 {
        wire.connection.observe::<notifications::CancelProvider>(&cancel(n));
    }
    let dropped = wire.connection.dropped_observations();
    assert!((80..95).contains(&dropped), "{dropped}");
    let mut pending = begin(&wire);
    for _ in dropped..100 {
        assert_eq!(wire.plugin.hear().await["method"], "provider/cancel");
    }
    assert_eq!(wire.plugin.hear().await["method"], "command/complete");
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    pending.response().await.unwrap();
    let told = format!("p: it did not read, so {dropped} observations for its hooks were dropped");
    assert_eq!(wire.heard.texts(), [told]);
    wire.connection.observe::<notifications::CancelProvider>(&cancel(0));
    assert_eq!(wire.plugin.hear().await["method"], "provider/cancel");
}

#[tokio::test]
async fn notifications_that_do_not_fit_are_told_once() {
    let mut wire = wire(Limits::default());
    for line in [
        r#"{"jsonrpc":"2.0","method":"tool/progress","params":{"callId":1}}"#,
        r#"{"jsonrpc":"2.0","method":"other"}"#,
        r#"{"jsonrpc":"2.0","method":"tool/progress","params":{"callId":"c","tail":""}}"#,
        r#"{"jsonrpc":"2.0","method":"provider/delta","params":{"call":"c","event":{"type":"textEnd","id":"b"}}}"#,
        r#"[{"jsonrpc":"2.0","method":"tool/progress"}]"#,
    ] {
        wire.plugin.say(line).await;
    }
    wire.plugin.settle().await;
    let texts = wire.heard.texts();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(texts[0].contains("at /tail: expected string, got nothing"), "{texts:?}");
    assert!(texts[1].contains("a call that is not known"), "{texts:?}");
    assert!(texts[2].contains("no JSON-RPC 2.0 message"), "{texts:?}");
}

#[tokio::test]
async fn progress_reaches_its_call_and_names_stay_apart() {
    let mut wire = wire(Limits::default());
    let tails = Arc::new(Mutex::new(Vec::new()));
    let sink = |mark: &'static str| -> ProgressSink {
        let tails = Arc::clone(&tails);
        Arc::new(move |tail| tails.lock().unwrap().push(format!("{mark} {tail}")))
    };
    let first = wire.connection.watch_tool("c", sink("first"), None);
    let second = wire.connection.watch_tool("c", sink("second"), None);
    assert_eq!((first.call_id.as_str(), second.call_id.as_str()), ("c", "c#1"));
    let mut params = ToolCallParams {
        call_id: first.call_id.clone(),
        name: "t".to_owned(),
        input: json!(1),
        cwd: "/".to_owned(),
        session: "s".into(),
        turn: "t".into(),
    };
    let _first_call = wire.connection.begin::<CallTool>(&params).unwrap();
    params.call_id = second.call_id.clone();
    let _second_call = wire.connection.begin::<CallTool>(&params).unwrap();
    let progress = |id: &str| {
        json!({"jsonrpc": "2.0", "method": "tool/progress", "params": {"callId": id, "tail": "x"}})
            .to_string()
    };
    wire.plugin.say(&progress("c#1")).await;
    wire.plugin.say(&progress("c")).await;
    wire.plugin.settle().await;
    drop(first);
    // After the end it comes late, which is no fault.
    wire.plugin.say(&progress("c")).await;
    wire.plugin.settle().await;
    assert_eq!(*tails.lock().unwrap(), ["second x", "first x"]);
    assert!(wire.heard.texts().is_empty());
}

#[tokio::test]
async fn the_ends_of_both_pipes_are_seen() {
    let Wire { connection, plugin, tasks, .. } = wire(Limits::default());
    drop(plugin);
    tasks.output_ended.cancelled().await;
    let _pending = connection.begin::<CompleteCommand>(&complete("")).unwrap();
    tasks.input_failed.cancelled().await;
}

fn progress(tail: &str) -> String {
    json!({"jsonrpc": "2.0", "method": "tool/progress", "params": {"callId": "c", "tail": tail}}).to_string()
}

/// Says these live lines in pieces that end at `cuts`, each written by itself; returns the lines that arrived.
async fn said_in_pieces(tails: &[String], cuts: &[usize]) -> Vec<String> {
    let mut wire = wire(Limits::default());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&heard);
    let _route = wire.connection.watch_tool("c", Arc::new(move |tail| sink.lock().unwrap().push(tail)), None);
    let bytes: Vec<u8> = tails.iter().flat_map(|tail| (progress(tail) + "\n").into_bytes()).collect();
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    for piece in cuts.windows(2) {
        wire.plugin.writer.write_all(&bytes[piece[0]..piece[1]]).await.unwrap();
        // The reader gets it before the next piece comes.
        tokio::task::yield_now().await;
    }
    wire.plugin.settle().await;
    assert!(wire.heard.texts().is_empty(), "{:?}", wire.heard.texts());
    let heard = heard.lock().unwrap();
    heard.clone()
}

#[tokio::test]
async fn a_character_may_come_in_two_pieces_wherever_it_is_cut() {
    let tails = ["é\u{2028}\u{feff}𝄞".to_owned(), "next".to_owned()];
    for cut in 0..=progress(&tails[0]).len() + 1 {
        assert_eq!(said_in_pieces(&tails, &[cut]).await, tails, "cut at {cut}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_split_of_the_bytes_gives_the_same_messages(
        tails in prop::collection::vec(any::<String>(), 1..8),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        prop_assert_eq!(runtime.block_on(said_in_pieces(&tails, &cuts)), tails);
    }
}

#[tokio::test]
async fn huge_lines_keep_their_place_among_the_others() {
    let tails = ["before".to_owned(), "x".repeat(2 * 1024 * 1024), "after".to_owned()];
    assert_eq!(said_in_pieces(&tails, &[]).await, tails);
}
