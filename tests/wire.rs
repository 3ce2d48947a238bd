//! The plugin wire over real processes: services between plugins, context, compaction, hooks and questions, when all is
//! well and when a plugin fails in each way.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail by panicking, as tests do")]

mod host;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bingo::ports::{Asker, BoxFuture, CallContext};
use bingo_plugin_sdk::calls::{
    CompactReason, CompactorContext, ContributeQuery, DecidePoint, HookOutcome, HookSite, ObservePoint, Phase,
};
use bingo_plugin_sdk::event::KernelError;
use bingo_plugin_sdk::interaction::{Answer, InteractionKind};
use serde_json::{Value, json};

use host::{Host, Running, context, only_text, wait_for};

/// A plugin in Python with a tool that calls `store.key` and a service of its own.
const SHOP: &str = r#"
hello(tools=TOOL, services={"shop.key": {"methods": {"price": {}}}})
tool = None
while True:
    message = read()
    if message.get("method") == "tool/call":
        tool = message
        send({"jsonrpc": "2.0", "id": "s1", "method": "service/call", "params": message["params"]["input"]})
    elif message.get("method") == "service/call":
        reply(message, {"result": {"price": 7, "for": message["params"]["params"]}})
    elif message.get("id") == "s1":
        text(tool, json.dumps(message.get("result", message.get("error"))))
"#;

fn call(key: &str, method: &str, params: Value) -> Value {
    json!({"key": key, "method": method, "params": params})
}

/// Calls a tool whose result is the text of JSON.
async fn tool(running: &Running, name: &str, input: Value) -> Value {
    let text = only_text(running.tool(name, input).await.unwrap());
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

#[tokio::test]
async fn plugins_in_two_languages_pair_on_services() {
    let host = Host::new();
    let stress = host.stress("stress", "offer-calls,offer-service=store.key", &["service:shop.key"]);
    let shop = host.named_source("shop", SHOP, &["service:store.key"]);
    let running = host.start_all(vec![stress, shop]).await;
    let answer = tool(&running, "plugin__shop__t", call("store.key", "echo", json!(["é", 1]))).await;
    assert_eq!(answer, json!({"result": ["é", 1]}));
    let answer = tool(&running, "plugin__stress__call", call("shop.key", "price", json!("tea"))).await;
    assert_eq!(answer, json!({"price": 7, "for": "tea"}));
    // From the one through the other and back into the first, while its call is open.
    let inner = call("shop.key", "price", json!("tea"));
    let answer = tool(&running, "plugin__shop__t", call("store.key", "through", inner)).await;
    assert_eq!(answer, json!({"result": {"price": 7, "for": "tea"}}));
    let refusal = tool(&running, "plugin__shop__t", call("store.key", "sell", Value::Null)).await;
    let words =
        "stress: the service `store.key` has no method `sell`; it has deep, echo, fail, never, through";
    assert_eq!(refusal, json!({"code": -32603, "message": words}));
    let refusal = tool(&running, "plugin__shop__t", call("bank.key", "pay", Value::Null)).await;
    let words = "nobody has the service `bank.key`; there are shop.key, store.key, bingo.host";
    assert_eq!(refusal, json!({"code": -32601, "message": words}));
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn what_it_requires_disables_a_plugin_until_it_is_there() {
    let host = Host::new();
    let needy = host.stress("needy", "offer-service=needy.key", &["service:store.key"]);
    let chained = host.stress("chained", "", &["service:needy.key"]);
    let owner = r#"
while not os.path.exists("go"):
    time.sleep(0.01)
hello(services={"store.key": {"methods": {}}})
read()
"#;
    let go = host.folder.path().join("owner/go");
    let running = host.start_many(vec![needy, chained, host.named_source("owner", owner, &[])]);
    let reasons = || {
        let plugins = running.snapshot();
        plugins.plugins.iter().map(|plugin| plugin.reason.clone().unwrap_or_default()).collect::<Vec<_>>()
    };
    let unmet =
        ["unmet requirements: service:store.key", "unmet requirements: service:needy.key", "it is starting"];
    wait_for("both to be disabled", || reasons() == unmet).await;
    assert!(running.snapshot().tools.is_empty() && running.snapshot().services.is_empty());
    std::fs::write(go, "").unwrap();
    wait_for("both to come alive", || reasons() == ["", "", ""]).await;
    assert_eq!(running.snapshot().tools.len(), 4);
    let heard = running.heard.0.lock().unwrap().clone();
    assert!(heard.iter().all(|notice| notice.code != "PLUGIN_NEEDS"), "nothing was ever wrong: {heard:?}");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_need_is_told_at_once_though_nobody_looks_and_not_at_the_end() {
    let host = Host::new();
    let owner = host.named_source("owner", OWNER_THAT_ENDS, &[]);
    let end = host.folder.path().join("owner/end");
    let (needy, other) = (
        host.stress("needy", "", &["service:store.key"]),
        host.stress("other", "offer-service=other.key", &[]),
    );
    let last = host.stress("last", "", &["service:other.key"]);
    let running = host.start_all(vec![owner, needy, other, last]).await;
    std::fs::write(end, "").unwrap();
    let told = running.heard.wait("PLUGIN_NEEDS").await;
    assert_eq!(told, "needy is disabled: unmet requirements: service:store.key");
    running.supervisor.shutdown().await;
    // Who goes first while the plugins are stopped takes its services along, which is no news.
    let heard = running.heard.0.lock().unwrap().clone();
    assert_eq!(heard.iter().filter(|notice| notice.code == "PLUGIN_NEEDS").count(), 1, "{heard:?}");
}

/// A plugin with a service, which ends when it is told to.
const OWNER_THAT_ENDS: &str = r#"
hello(services={"store.key": {"methods": {}}})
while not os.path.exists("end"):
    time.sleep(0.01)
"#;

#[tokio::test]
async fn what_nobody_meets_is_told_and_a_death_spreads() {
    let host = Host::new();
    let owner = host.stress("owner", "offer-service=store.key,tool/call:die", &[]);
    let needy = host.stress("needy", "", &["service:store.key"]);
    let running = host.start_all(vec![owner, needy]).await;
    assert_eq!(running.snapshot().tools.len(), 4);
    let error = running.tool("plugin__owner__echo", json!({})).await.unwrap_err();
    assert!(error.message.starts_with("owner: tool/call failed (sent, no answer)"), "{error}");
    wait_for("nothing to be offered", || running.snapshot().tools.is_empty()).await;
    let told = running.heard.wait("PLUGIN_NEEDS").await;
    assert_eq!(told, "needy is disabled: unmet requirements: service:store.key");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_ring_of_calls_ends_at_the_deadline_and_names_the_open_calls() {
    let mut host = Host::new();
    host.limits.service_call = Duration::from_millis(500);
    let first = host.stress("first", "offer-calls,offer-service=first.key", &[]);
    let second = host.stress("second", "offer-service=second.key", &[]);
    let running = host.start_all(vec![first, second]).await;
    let never = call("first.key", "never", Value::Null);
    let back = call("second.key", "through", never);
    let answer = tool(&running, "plugin__first__call", back).await;
    let text = answer["message"].as_str().unwrap();
    let late = "the service `first.key` did not answer `never` within 500 ms (sent, no answer)";
    let outer = "the service `second.key` did not answer `through` within 500 ms (sent, no answer)";
    assert!(text.contains(late) || text.contains(outer), "{text}");
    let open = "service calls open between plugins: first -> second `second.key` `through` (for 0 s)";
    assert!(text.contains(open), "{text}");
    assert!(text.contains("second -> first `first.key` `never` (for 0 s)"), "{text}");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn eight_calls_deep_while_sixty_four_wait() {
    let mut host = Host::new();
    host.limits.service_call = Duration::from_secs(3);
    let running =
        Arc::new(host.start_all(vec![host.stress("s", "offer-calls,offer-service=s.key", &[])]).await);
    let waiting: Vec<_> = (0..64)
        .map(|_| {
            let running = Arc::clone(&running);
            let begun = Instant::now();
            tokio::spawn(async move {
                let answer = tool(&running, "plugin__s__call", call("s.key", "never", Value::Null)).await;
                (answer, begun.elapsed())
            })
        })
        .collect();
    let begun = Instant::now();
    let deep = tool(&running, "plugin__s__call", call("s.key", "deep", json!({"depth": 8}))).await;
    assert_eq!(deep, 8);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    for call in waiting {
        let (answer, took) = call.await.unwrap();
        assert!(
            answer["message"].as_str().unwrap().contains("did not answer `never` within 3 s"),
            "{answer}"
        );
        assert!(took < Duration::from_secs(8), "{took:?}");
    }
    running.supervisor.shutdown().await;
}

/// Answers with the option `b`.
struct Person;

impl Asker for Person {
    fn ask(&self, question: InteractionKind) -> BoxFuture<'static, Result<Answer, KernelError>> {
        let InteractionKind::Question { options, .. } = question else { panic!("only questions get here") };
        let answer = json!({"kind": "choice", "ids": [options[1].id]});
        Box::pin(async move { Ok(serde_json::from_value(answer).unwrap_or(Answer::Cancel)) })
    }
}

#[tokio::test]
async fn a_tool_asks_its_person_and_nobody_else_can() {
    let host = Host::new();
    let sources = vec![host.stress("a", "offer-calls", &[]), host.stress("b", "offer-calls", &[])];
    let running = host.start_all(sources).await;
    let asked = |input: Value| {
        let context = CallContext { asker: Some(Arc::new(Person)), ..context(running.snapshot()) };
        let running = &running;
        async move { only_text(running.tool_in("plugin__a__ask", input, context).await.unwrap()) }
    };
    assert_eq!(asked(json!({})).await, r#"{"answer":{"ids":["b"],"kind":"choice"}}"#);
    assert!(asked(json!({"call": "c0"})).await.contains("`c0` is none"));
    let permission = json!({"question": {"kind": "permission", "tool": "t", "summary": "s"}});
    assert!(asked(permission).await.contains("a plugin may ask a `question` only, not `permission`"));
    // `a` runs a call of this name; `b` does not.
    let slow = tokio::spawn({
        let tool = Arc::clone(&running.snapshot().tools[1]);
        tool.call(context(running.snapshot()), "mine".to_owned(), json!({"ms": 5000}), Arc::new(|_| {}))
    });
    let refusal = tool(&running, "plugin__b__ask", json!({"call": "mine"})).await;
    assert!(refusal["message"].as_str().unwrap().contains("`mine` is none"), "{refusal}");
    slow.abort();
    let nobody = tool(&running, "plugin__a__ask", json!({})).await;
    assert_eq!(nobody["message"], "there is nobody who could be asked in this call");
    running.supervisor.shutdown().await;
}

fn query() -> ContributeQuery {
    serde_json::from_value(json!({
        "session": {"id": "s", "kind": "chat", "title": "", "createdAt": "", "updatedAt": "", "cwd": "/", "busy": false},
        "turn": "t", "round": 1, "items": [], "usage": {"used": 1, "window": 2, "trigger": 2},
        "capabilities": {"contextWindow": 2, "maxOutput": 1}, "cwd": "/",
    }))
    .unwrap()
}

fn over() -> CompactorContext {
    let query = query();
    serde_json::from_value(json!({
        "items": [], "usage": query.usage, "capabilities": query.capabilities, "model": "m", "failures": 0, "keepBudget": 5,
    }))
    .unwrap()
}

fn site() -> HookSite {
    HookSite { session: "s".into(), turn: None, cwd: "/".to_owned(), model: None }
}

/// Makes the one call that a method is for, and returns what is seen of it.
async fn made(running: &Running, method: &str) -> String {
    let snapshot = running.snapshot();
    let context = context(Arc::clone(&snapshot));
    let words = |error: KernelError| error.message;
    match method {
        "initialize" => snapshot.plugins[0].reason.clone().unwrap_or_else(|| "it is ready".to_owned()),
        "tool/call" | "tool/progress" => {
            let slow = if method == "tool/call" { 0 } else { 1 };
            let call =
                snapshot.tools[slow].call(context, "c".to_owned(), json!({"ms": 10}), Arc::new(|_| {}));
            call.await.map_or_else(words, only_text)
        }
        "command/run" => {
            let outcome = snapshot.commands[0].run(context, "hello".to_owned()).await;
            outcome.map_or_else(words, |_| "the outcome".to_owned())
        }
        "command/complete" => {
            let completions = snapshot.commands[0].complete("a".to_owned(), "/".into()).await;
            format!("{} completions", completions.len())
        }
        "provider/stream" | "provider/delta" => streamed(running).await,
        "context/contribute" => {
            let pieces = snapshot.contributors[0].contribute(context, query()).await;
            pieces.map_or_else(words, |pieces| format!("{} pieces", pieces.len()))
        }
        "compactor/compact" => {
            let compaction = snapshot.compactors[0].compact(context, over(), CompactReason::Threshold).await;
            compaction.map_or_else(words, |compaction| compaction.summary)
        }
        "hook/decide" => {
            let decided = snapshot.hooks[0].decide(context, site(), DecidePoint::Stop).await;
            match decided.outcome {
                HookOutcome::Continue => "continue".to_owned(),
                other => format!("{other:?}"),
            }
        }
        _ => {
            let service = &snapshot.services["stress.key"];
            let result = service.call(context, "echo".to_owned(), json!("hello")).await;
            result.map_or_else(words, |value| value.to_string())
        }
    }
}

/// Reads a whole stream and returns how it ended.
async fn streamed(running: &Running) -> String {
    let snapshot = running.snapshot();
    let request = json!({"model": "stress", "maxTokens": 1, "system": [], "messages": [], "tools": []});
    let request = serde_json::from_value(request).unwrap();
    let mut stream = snapshot.providers[0].stream(context(Arc::clone(&snapshot)), request);
    while let Some(event) = stream.next().await {
        if let Err(error) = event {
            let error = json!(error);
            let message = error["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
            return format!("{}{message}", error["kind"].as_str().unwrap());
        }
    }
    "the whole stream".to_owned()
}

/// The methods, what each needs to be offered, and its deadline as authors know it.
const METHODS: [(&str, &str, &str); 9] = [
    ("initialize", "", "10 s"),
    ("tool/call", "", "600 s"),
    ("command/run", "", "600 s"),
    ("command/complete", "", "2 s"),
    ("provider/stream", "", "120 s"),
    ("context/contribute", "offer-context", "3 s"),
    ("compactor/compact", "offer-compactor", "60 s"),
    ("hook/decide", "offer-hooks", "5 s"),
    ("service/call", "offer-service", "30 s"),
];

/// The deadline that all methods have in these tests.
const SHORT: Duration = Duration::from_millis(700);

fn short_limits(host: &mut Host) {
    let limits = &mut host.limits;
    (limits.tool_idle, limits.command_run, limits.command_complete) = (SHORT, SHORT, SHORT);
    (limits.stream_silence, limits.context_contribute, limits.compactor_compact) = (SHORT, SHORT, SHORT);
    (limits.hook_decide, limits.service_call) = (SHORT, SHORT);
}

/// Returns what is seen of a method when the plugin has this fault, as it stands in the table for authors.
async fn seen(method: &str, offer: &str, fault: &str, figure: &str) -> String {
    let mut host = Host::new();
    short_limits(&mut host);
    if (method, fault) == ("initialize", "late=9000") {
        host.limits.handshake = SHORT;
    }
    let running = host.start_all(vec![host.stress("s", &format!("{offer},{method}:{fault}"), &[])]).await;
    let mut text = made(&running, method).await;
    if method == "hook/decide" {
        text = running.heard.wait("HOOK_UNANSWERED").await;
    }
    running.supervisor.shutdown().await;
    // The last words of the process are its own.
    let text = text.split("; its last words on stderr").next().unwrap_or_default();
    text.replace("700 ms", figure)
}

/// Each method: its work, and what is seen when the plugin answers with an error, breaks the schema, dies, is late. The
/// table in `docs/plugin-authors.md` says the same; `BINGO_UPDATE_DOCS=1` writes it there.
#[tokio::test]
async fn the_table_for_authors_says_what_is_seen_of_each_fault() {
    let mut table = "| method | what the plugin `s` does | what is seen |\n|---|---|---|\n".to_owned();
    for (method, offer, figure) in METHODS {
        for (fault, words) in
            [("error", "an error"), ("bad", "a wrong shape"), ("die", "death"), ("late=9000", "silence")]
        {
            let seen = seen(method, offer, fault, figure).await;
            table.push_str(&format!("| `{method}` | {words} | {seen} |\n"));
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/plugin-authors.md");
    let page = std::fs::read_to_string(path).unwrap();
    let from = page.find("| method | what the plugin `s` does").unwrap();
    let until = from + page[from..].find("\n\n").unwrap() + 1;
    if std::env::var_os("BINGO_UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{}{table}{}", &page[..from], &page[until..])).unwrap();
        return;
    }
    assert_eq!(page[from..until], table, "BINGO_UPDATE_DOCS=1 writes the table");
}

#[tokio::test]
async fn each_method_does_its_work() {
    let mut host = Host::new();
    short_limits(&mut host);
    let offers = "offer-context,offer-compactor,offer-hooks,offer-service";
    let running = host.start_all(vec![host.stress("s", offers, &[])]).await;
    for ((method, ..), work) in METHODS.into_iter().zip([
        "it is ready",
        r#"{"ms":10}"#,
        "the outcome",
        "1 completions",
        "the whole stream",
        "1 pieces",
        "what was said, in short",
        "continue",
        "\"hello\"",
    ]) {
        assert_eq!(made(&running, method).await, work, "{method}");
    }
    running.supervisor.shutdown().await;
}

/// The notifications of a plugin: what becomes of the call they belong to, and what is told.
#[tokio::test]
async fn a_wrong_notification_harms_its_own_call_at_most() {
    let died = "its process exited with code 3";
    let bad_delta = "request: s: provider/delta params at /event: expected";
    for (method, fault, seen, notice) in [
        ("tool/progress", "error", "waited", Some("sent a notification that does not fit")),
        (
            "tool/progress",
            "bad",
            "waited",
            Some("tool/progress params at /tail: expected string, got nothing"),
        ),
        ("tool/progress", "late=20", "waited", None),
        ("tool/progress", "die", "s: tool/call failed (sent, no answer): its process exited", Some(died)),
        ("provider/delta", "error", "the whole stream", Some("sent a notification that does not fit")),
        ("provider/delta", "bad", bad_delta, None),
        ("provider/delta", "late=20", "the whole stream", None),
        ("provider/delta", "die", "transport: s: provider/stream failed (sent, no answer): its", Some(died)),
    ] {
        let host = Host::new();
        let running = host.start_all(vec![host.stress("s", &format!("{method}:{fault}"), &[])]).await;
        let text = made(&running, method).await;
        assert!(text.starts_with(seen), "{method}:{fault}: {text}");
        if let Some(notice) = notice {
            let heard = || running.heard.0.lock().unwrap().iter().any(|heard| heard.text.contains(notice));
            wait_for(&format!("{method}:{fault}: {notice}"), heard).await;
        }
        running.supervisor.shutdown().await;
    }
}

/// A cancel is not waited for, whatever the plugin makes of it.
#[tokio::test]
async fn a_cancel_that_goes_wrong_keeps_nobody() {
    for fault in ["error", "bad", "late=300", "die"] {
        let host = Host::new();
        let faults = format!("tool/cancel:{fault},provider/cancel:{fault}");
        let running = host.start_all(vec![host.stress("s", &faults, &[])]).await;
        let snapshot = running.snapshot();
        let context = context(Arc::clone(&snapshot));
        let cancel = context.cancel.clone();
        let (shown, progress) = tokio::sync::oneshot::channel();
        let shown = std::sync::Mutex::new(Some(shown));
        let sink = Arc::new(move |_| {
            shown.lock().unwrap().take().map(|shown| shown.send(()));
        });
        let call = tokio::spawn(snapshot.tools[1].call(context, "c".to_owned(), json!({"ms": 60_000}), sink));
        progress.await.unwrap();
        let begun = Instant::now();
        cancel.cancel();
        assert_eq!(call.await.unwrap().unwrap_err().message, "s: the call was cancelled");
        assert!(begun.elapsed() < Duration::from_millis(250), "{:?}", begun.elapsed());
        match fault {
            "die" => drop(running.heard.wait("PLUGIN_DIED").await),
            "late=300" => {}
            _ => drop(running.heard.wait("PLUGIN_FAULTY_MESSAGE").await),
        }
        running.supervisor.shutdown().await;
    }
}

#[tokio::test]
async fn a_hook_that_fails_is_named_and_counts_as_the_settings_say() {
    let mut host = Host::new();
    host.limits.hook_decide = Duration::from_millis(300);
    let cases = [
        ("hook/decide:error", "failed, as asked (code -32000)"),
        ("hook/decide:bad", "hook/decide result: expected object, got []"),
        ("hook/decide:die", "hook/decide failed (sent, no answer): its process exited with code 3"),
        ("hook/decide:late=2000", "hook/decide got no answer within 300 ms (sent, no answer)"),
    ];
    for deny in [false, true] {
        host.deny_unanswered = deny;
        let running = host.start_all(vec![host.stress("s", "decide=block", &[])]).await;
        assert_eq!(made(&running, "hook/decide").await, r#"Block { reason: "as asked" }"#);
        running.supervisor.shutdown().await;
        for (fault, why) in cases {
            let running = host.start_all(vec![host.stress("s", fault, &[])]).await;
            let outcome = made(&running, "hook/decide").await;
            let told = running.heard.wait("HOOK_UNANSWERED").await;
            let so = if deny {
                "it is refused, as its setting `onHookTimeout` says"
            } else {
                "it goes on without"
            };
            // A death adds the last words on stderr.
            assert!(told.starts_with(&format!("the hook s:hook did not decide at `stop`: {why}")), "{told}");
            assert!(told.ends_with(so), "{told}");
            assert_eq!(outcome.starts_with("Deny"), deny, "{fault}: {outcome}");
            running.supervisor.shutdown().await;
        }
    }
}

#[tokio::test]
async fn an_observation_costs_nothing_whatever_becomes_of_it() {
    let observe = |running: &Running| {
        let begun = Instant::now();
        running.snapshot().hooks[0].observe(&site(), &ObservePoint::Compact { phase: Phase::Start });
        assert!(begun.elapsed() < Duration::from_millis(100));
    };
    let host = Host::new();
    for fault in ["offer-hooks", "hook/observe:error", "hook/observe:bad", "hook/observe:late=200"] {
        let running = host.start_all(vec![host.stress("s", fault, &[])]).await;
        observe(&running);
        let log = running.data_dir.join("logs/plugin-s.log");
        let observed = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("observed compact"));
        wait_for("the observation", observed).await;
        if matches!(fault, "hook/observe:error" | "hook/observe:bad") {
            running.heard.wait("PLUGIN_FAULTY_MESSAGE").await;
        }
        running.supervisor.shutdown().await;
        std::fs::remove_file(log).unwrap();
    }
    let running = host.start_all(vec![host.stress("s", "hook/observe:die", &[])]).await;
    observe(&running);
    running.heard.wait("PLUGIN_DIED").await;
}

#[tokio::test]
async fn a_plugin_that_reads_nothing_is_busy_and_its_observations_are_dropped() {
    let mut host = Host::new();
    host.limits.queued = 256 * 1024;
    host.limits.hook_decide = Duration::from_millis(200);
    let running = host.start_all(vec![host.stress("s", "never-read,offer-hooks,offer-service", &[])]).await;
    let snapshot = running.snapshot();
    let text = "x".repeat(20_000);
    let begun = Instant::now();
    for _ in 0..10_000 {
        let site = HookSite { cwd: text.clone(), ..site() };
        snapshot.hooks[0].observe(&site, &ObservePoint::Compact { phase: Phase::End });
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Half of the queue was left to calls.
    assert_eq!(made(&running, "hook/decide").await, "continue");
    assert!(running.heard.wait("HOOK_UNANSWERED").await.contains("never sent"));
    let large = json!("y".repeat(100_000));
    let calls = (0..4).map(|_| {
        let service = Arc::clone(&snapshot.services["stress.key"]);
        tokio::spawn(service.call(context(Arc::clone(&snapshot)), "echo".to_owned(), large.clone()))
    });
    let calls: Vec<_> = calls.collect();
    let mut busy = Vec::new();
    for call in calls.into_iter().skip(1) {
        match tokio::time::timeout(Duration::from_millis(500), call).await {
            Ok(answer) => busy.push(answer.unwrap().unwrap_err().message),
            Err(_) => continue,
        }
    }
    assert!(busy.iter().any(|text| text.contains("the plugin is busy")), "{busy:?}");
    running.supervisor.shutdown().await;
    let told = running.heard.wait("OBSERVATIONS_DROPPED").await;
    let count: u64 = told.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert!((9_900..10_000).contains(&count), "{told}");
}

#[tokio::test]
async fn lines_of_every_kind_are_the_right_message_or_the_right_fault() {
    let mut host = Host::new();
    host.limits.line = 64 * 1024;
    host.limits.tool_idle = Duration::from_secs(10);
    let limit = 64 * 1024;
    let unusable = "s: the response to tool/call cannot be used: its line";
    for (fault, seen) in [
        ("crlf".to_owned(), "é\u{2028}x"),
        ("bom".to_owned(), "é\u{2028}x"),
        ("u2028".to_owned(), "é\u{2028}x"),
        (format!("line={limit}"), "é\u{2028}x"),
        (format!("line={}", limit - 1), "é\u{2028}x"),
        (format!("line={}", limit + 1), unusable),
        ("lone-surrogate".to_owned(), unusable),
        ("nul".to_owned(), unusable),
        ("split=1".to_owned(), "é\u{2028}x"),
        ("split=3".to_owned(), "é\u{2028}x"),
    ] {
        let running = host.start_all(vec![host.stress("s", &fault, &[])]).await;
        let text = match running.tool("plugin__s__echo", json!({"text": "é\u{2028}x"})).await {
            Ok(output) => only_text(output),
            Err(error) => error.message,
        };
        assert!(text.starts_with(seen), "{fault}: {text}");
        running.supervisor.shutdown().await;
    }
}

#[tokio::test]
async fn ten_thousand_stray_lines_are_one_example_and_one_count() {
    let script = r#"
hello(tools=TOOL)
message = read()
for number in range(10000):
    print("line", number)
text(message, "fine")
read()
"#;
    let running = Host::new().start(script).await;
    assert_eq!(only_text(running.call(json!({})).await.unwrap()), "fine");
    running.supervisor.shutdown().await;
    let texts: Vec<String> =
        running.heard.0.lock().unwrap().iter().map(|notice| notice.text.clone()).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("\"line 0\"") && texts[1].ends_with("(9999 more)"), "{texts:?}");
}
