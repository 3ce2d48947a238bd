//! Services between plugins, the host's own service, and what plugins require.

use std::sync::Mutex;

use bingo_plugin_sdk::interaction::{Answer, InteractionKind};
use tokio::sync::oneshot;

use super::*;
use crate::ports::Asker;
use crate::supervisor::Sent;

/// Plugins in memory, joined by one hub.
struct Net {
    hub: Arc<Hub>,
    heard: Arc<Heard>,
    plugins: BTreeMap<String, Plugin>,
    _table: watch::Sender<Arc<PluginTable>>,
}

/// Declares a service `<name>.key` with the method `m` for each name.
fn net(names: &[&str]) -> Net {
    let heard = Arc::new(Heard::default());
    let mut plugins = BTreeMap::new();
    let entries = names.iter().map(|name| {
        let plugin = Plugin::named(name, Limits::default(), heard.clone());
        let declared = json!({format!("{name}.key"): {"methods": {"m": {}, "n": {}}}});
        let entry = entry(name, &plugin.wire.connection, &[], declared);
        plugins.insert((*name).to_owned(), plugin);
        entry
    });
    let table = Arc::new(PluginTable { number: 1, plugins: entries.collect() });
    let (sender, receiver) = watch::channel(table);
    let hub = Arc::new(Hub::new(receiver, heard.clone()));
    let incoming: Arc<dyn Incoming> = hub.clone();
    for plugin in plugins.values() {
        plugin.wire.connection.serve_by(&incoming);
    }
    Net { hub, heard, plugins, _table: sender }
}

fn entry(name: &str, connection: &Connection, requires: &[&str], services: Value) -> PluginEntry {
    let declared = json!({"protocol": 5, "name": name, "version": "2", "services": services,
        "tools": [{"name": "t", "description": "", "inputSchema": {}}]});
    let manifest = json!({"name": name, "version": "1", "entry": {"command": "x"}, "requires": requires});
    PluginEntry {
        name: PluginName::parse(name).unwrap(),
        source: Arc::new(source(name, manifest)),
        state: PluginState::Ready(
            ReadyPlugin::new(connection.clone(), serde_json::from_value(declared).unwrap()).0,
        ),
        restarts: 0,
    }
}

impl Net {
    fn plugin(&mut self, name: &str) -> &mut Plugin {
        self.plugins.get_mut(name).unwrap()
    }

    async fn call(&mut self, from: &str, id: u64, key: &str, method: &str) {
        let params = json!({"key": key, "method": method, "params": {"id": id}});
        self.plugin(from)
            .say(json!({"jsonrpc": "2.0", "id": id, "method": "service/call", "params": params}))
            .await;
    }

    /// Lets a plugin call and returns the error it hears.
    async fn refused(&mut self, from: &str, key: &str, method: &str, params: Value) -> (i64, String) {
        let params = json!({"key": key, "method": method, "params": params});
        let plugin = self.plugin(from);
        plugin.say(json!({"jsonrpc": "2.0", "id": 77, "method": "service/call", "params": params})).await;
        let answer = plugin.hear().await;
        assert_eq!(answer["id"], 77, "{answer}");
        let error = &answer["error"];
        (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
    }

    async fn hear(&mut self, name: &str) -> Value {
        self.plugin(name).hear().await
    }

    async fn reply(&mut self, name: &str, request: &Value, result: Value) {
        self.plugin(name).say(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).await;
    }
}

#[tokio::test]
async fn answers_come_in_any_order_and_results_are_nested() {
    let mut net = net(&["a", "b"]);
    net.call("a", 1, "b.key", "m").await;
    net.call("a", 2, "b.key", "n").await;
    let (one, two) = (net.hear("b").await, net.hear("b").await);
    let (first, second) = if one["params"]["method"] == "m" { (one, two) } else { (two, one) };
    assert_eq!(first["params"], json!({"key": "b.key", "method": "m", "params": {"id": 1}}));
    net.reply("b", &second, json!({"result": [2]})).await;
    let answer = net.hear("a").await;
    assert_eq!((&answer["id"], &answer["result"]), (&json!(2), &json!({"result": [2]})));
    net.reply("b", &first, json!({})).await;
    assert_eq!(net.hear("a").await["result"], json!({"result": null}), "null is an answer");
}

#[tokio::test]
async fn a_plugin_calls_itself_and_is_asked_while_its_calls_are_open() {
    let mut net = net(&["a", "b"]);
    // a -> b -> a -> a
    net.call("a", 1, "b.key", "m").await;
    let at_b = net.hear("b").await;
    net.call("b", 1, "a.key", "m").await;
    let at_a = net.hear("a").await;
    net.call("a", 2, "a.key", "n").await;
    let own = net.hear("a").await;
    assert_eq!(own["params"]["method"], "n");
    net.reply("a", &own, json!({"result": "own"})).await;
    assert_eq!(net.hear("a").await["result"], json!({"result": "own"}));
    net.reply("a", &at_a, json!({"result": "inner"})).await;
    assert_eq!(net.hear("b").await["result"], json!({"result": "inner"}));
    net.reply("b", &at_b, json!({"result": "outer"})).await;
    assert_eq!(net.hear("a").await["result"], json!({"result": "outer"}));
}

#[tokio::test]
async fn refusals_say_what_there_is() {
    let mut net = net(&["a", "b"]);
    let none = "nobody has the service `c.key`; there are a.key, b.key, bingo.host";
    assert_eq!(net.refused("a", "c.key", "m", Value::Null).await, (-32601, none.to_owned()));
    let unspoken = "b: the service `b.key` has no method `x`; it has m, n";
    assert_eq!(net.refused("a", "b.key", "x", Value::Null).await, (-32603, unspoken.to_owned()));
    let host = "`bingo.host` has no method `x`; it has ask, notice";
    assert_eq!(net.refused("a", "bingo.host", "x", Value::Null).await, (-32603, host.to_owned()));
    let (code, fault) =
        net.refused("a", "bingo.host", "notice", json!({"message": "m", "level": "loud"})).await;
    assert_eq!(code, -32603);
    assert!(fault.starts_with("bingo.host notice params at /level: expected one of"), "{fault}");
    net.call("a", 1, "b.key", "m").await;
    let request = net.hear("b").await;
    let error = json!({"code": 5, "message": "boom"});
    net.plugin("b").say(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).await;
    let answer = net.hear("a").await["error"].clone();
    assert_eq!(answer, json!({"code": -32603, "message": "b: boom (code 5)"}));
}

#[tokio::test(start_paused = true)]
async fn a_ring_ends_at_the_deadline_and_the_open_calls_are_listed() {
    let mut net = net(&["a", "b"]);
    net.call("a", 1, "b.key", "m").await;
    net.hear("b").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    net.call("b", 1, "a.key", "n").await;
    net.hear("a").await;
    let begun = tokio::time::Instant::now();
    let answer = net.hear("a").await;
    assert_eq!(begun.elapsed().as_secs(), 28);
    assert_eq!(
        answer["error"]["message"],
        "b: the service `b.key` did not answer `m` within 30 s (sent, no answer); service calls open between plugins: \
         a -> b `b.key` `m` (for 30 s), b -> a `a.key` `n` (for 28 s)"
    );
    assert!(net.hear("b").await["error"]["message"].as_str().unwrap().starts_with("a: the service `a.key`"));
}

#[tokio::test(start_paused = true)]
async fn the_host_calls_a_service_within_its_deadline() {
    let mut net = net(&["a"]);
    let service = Arc::clone(&net.hub.current().0.services["a.key"]);
    assert_eq!((service.owner(), service.methods()), ("a", vec!["m".to_owned(), "n".to_owned()]));
    let call = |method: &str| service.call(context(&CancellationToken::new()), method.to_owned(), json!(1));
    let running = tokio::spawn(call("m"));
    let request = net.hear("a").await;
    net.reply("a", &request, json!({"result": 2})).await;
    assert_eq!(running.await.unwrap().unwrap(), 2);
    let error = call("m").await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Timeout);
    assert_eq!(error.message, "a: the service `a.key` did not answer `m` within 30 s (sent, no answer)");
    assert_eq!(call("x").await.unwrap_err().code, ErrorCode::Internal);
}

#[tokio::test]
async fn a_death_of_the_owner_is_told_to_the_caller() {
    let mut net = net(&["a", "b"]);
    net.call("a", 1, "b.key", "m").await;
    net.hear("b").await;
    net.plugin("b").wire.connection.close(&"it is gone".into());
    let answer = net.hear("a").await;
    assert_eq!(answer["error"]["message"], "b: service/call failed (sent, no answer): it is gone");
}

#[tokio::test(start_paused = true)]
async fn notices_are_shown_up_to_a_number_a_minute() {
    let mut net = net(&["a"]);
    for _ in 0..30 {
        let params = json!({"key": "bingo.host", "method": "notice", "params": {"message": "hello"}});
        net.plugin("a")
            .say(json!({"jsonrpc": "2.0", "id": 1, "method": "service/call", "params": params}))
            .await;
        assert_eq!(net.hear("a").await["result"], json!({"result": {}}));
    }
    assert_eq!(net.heard.texts(), vec!["a: hello"; 20]);
    net.plugin("a").wire.connection.close(&"it is gone".into());
    assert_eq!(net.heard.texts()[20], "a: 10 more of its notices were not shown, 20 are within a minute");
}

/// Answers what it is sent.
#[derive(Default)]
struct Person(Mutex<Option<oneshot::Receiver<Answer>>>, Mutex<Option<InteractionKind>>);

impl Asker for Person {
    fn ask(&self, question: InteractionKind) -> BoxFuture<'static, Result<Answer, KernelError>> {
        assert!(matches!(question, InteractionKind::Question { .. }));
        *self.1.lock().unwrap() = Some(question);
        let answer = self.0.lock().unwrap().take().unwrap();
        Box::pin(async move { Ok(answer.await.unwrap_or(Answer::Cancel)) })
    }
}

fn person() -> (Arc<Person>, oneshot::Sender<Answer>) {
    let (tx, rx) = oneshot::channel();
    (Arc::new(Person(Mutex::new(Some(rx)), Mutex::default())), tx)
}

fn question(call: &str, kind: &str) -> Value {
    json!({"call": call, "question": {"kind": kind, "question": "which?", "options": []}})
}

impl Net {
    /// Lets `name` run a tool call `c` for a person, and hears its request.
    async fn run_tool(
        &mut self,
        name: &str,
        asker: Option<Arc<Person>>,
    ) -> (tokio::task::JoinHandle<Result<bingo_plugin_sdk::item::ToolOutput, KernelError>>, Value) {
        let snapshot = self.hub.current().0;
        let wanted = format!("plugin__{name}__t");
        let tool = snapshot.tools.iter().find(|tool| tool.spec().name == wanted).unwrap();
        let asker = asker.map(|asker| asker as Arc<dyn Asker>);
        let context = CallContext { asker, ..context(&CancellationToken::new()) };
        let call = tokio::spawn(tool.call(context, "c".to_owned(), json!({}), Arc::new(|_| {})));
        let request = self.hear(name).await;
        (call, request)
    }

    async fn ask(&mut self, name: &str, params: Value) {
        let params = json!({"key": "bingo.host", "method": "ask", "params": params});
        self.plugin(name)
            .say(json!({"jsonrpc": "2.0", "id": 5, "method": "service/call", "params": params}))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_reaches_the_person_and_stops_the_clocks() {
    let mut net = net(&["a", "b"]);
    net.call("b", 1, "a.key", "m").await;
    let served = net.hear("a").await;
    let (person, answer) = person();
    let (call, request) = net.run_tool("a", Some(person)).await;
    net.ask("a", question("c", "question")).await;
    // Longer than a tool may idle, and than a service may take while nobody is asked.
    tokio::time::sleep(Duration::from_secs(590)).await;
    answer.send(Answer::Text { text: "this".to_owned() }).unwrap();
    let heard = net.hear("a").await;
    assert_eq!(heard["result"]["result"], json!({"answer": {"kind": "text", "text": "this"}}));
    tokio::time::sleep(Duration::from_secs(20)).await;
    net.reply("a", &served, json!({"result": 1})).await;
    let answer = net.hear("b").await;
    assert!(
        answer["error"]["message"].as_str().is_some_and(|text| text.contains("within 600 s")),
        "{answer}"
    );
    tokio::time::sleep(Duration::from_secs(570)).await;
    net.reply("a", &request, json!({"output": {"parts": []}})).await;
    call.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_texts_of_a_question_are_cut_and_the_ids_of_its_options_are_not() {
    let mut net = net(&["a"]);
    let (person, answer) = person();
    let (_call, _) = net.run_tool("a", Some(Arc::clone(&person))).await;
    let (long, cut) = ("x".repeat(4002), "x".repeat(4000) + "… [2 more characters]");
    let texts = |text: &str| {
        let option = json!({"id": long, "label": text, "description": text});
        json!({"kind": "question", "question": text, "header": text, "options": [option], "freeText": false, "multi": false})
    };
    net.ask("a", json!({"call": "c", "question": texts(&long)})).await;
    answer.send(Answer::Cancel).unwrap();
    net.hear("a").await;
    let asked = person.1.lock().unwrap().take().unwrap();
    assert_eq!(serde_json::to_value(asked).unwrap(), texts(&cut));
}

#[tokio::test]
async fn a_question_is_refused_in_words() {
    let mut net = net(&["a", "b"]);
    let unknown = "`call` must be the callId of a tool call that this plugin runs now; `c` is none";
    let unknown = (-32603, unknown.to_owned());
    let ask = |kind| question("c", kind);
    assert_eq!(net.refused("a", "bingo.host", "ask", ask("question")).await, unknown);
    let (person, _open) = person();
    let (call, request) = net.run_tool("a", Some(person)).await;
    assert_eq!(net.refused("b", "bingo.host", "ask", ask("question")).await, unknown, "another plugin's");
    for kind in ["permission", "confirm", "login"] {
        let text = format!("a plugin may ask a `question` only, not `{kind}`");
        assert_eq!(net.refused("a", "bingo.host", "ask", ask(kind)).await, (-32603, text));
    }
    net.reply("a", &request, json!({"output": {"parts": []}})).await;
    call.await.unwrap().unwrap();
    assert_eq!(net.refused("a", "bingo.host", "ask", ask("question")).await, unknown, "finished");
    let (_call, _) = net.run_tool("a", None).await;
    let nobody = "there is nobody who could be asked in this call";
    assert_eq!(net.refused("a", "bingo.host", "ask", ask("question")).await, (-32603, nobody.to_owned()));
}

#[tokio::test]
async fn a_question_ends_with_its_call() {
    let mut net = net(&["a"]);
    let (person, _open) = person();
    let (call, _) = net.run_tool("a", Some(person)).await;
    net.ask("a", question("c", "question")).await;
    call.abort();
    let (mut cancel, mut answer) = (net.hear("a").await, net.hear("a").await);
    if answer.get("method").is_some() {
        (cancel, answer) = (answer, cancel);
    }
    assert_eq!(cancel["method"], "tool/cancel");
    assert_eq!(answer["error"]["message"], "the call `c` ended before its question was answered");
}

/// Builds a table of plugins: name, requirements, keys.
fn built(plugins: &[(&str, &[&str], &[&str])], starting: &[&str]) -> Built {
    let entries = plugins.iter().map(|(name, requires, keys)| {
        let wire = testing::wire(name, Limits::default(), Arc::new(Heard::default()));
        let services: serde_json::Map<String, Value> =
            keys.iter().map(|key| ((*key).to_owned(), json!({"methods": {"m": {}}}))).collect();
        let mut entry = entry(name, &wire.connection, requires, Value::Object(services));
        if starting.contains(name) {
            entry.state = PluginState::Starting;
        }
        entry
    });
    build::build(&Arc::new(PluginTable { number: 1, plugins: entries.collect() }), &Arc::default())
}

fn owners(built: &Built) -> Vec<(&str, &str)> {
    built.snapshot.services.iter().map(|(key, service)| (key.as_str(), service.owner())).collect()
}

fn texts(clashes: &[Clash]) -> Vec<String> {
    clashes.iter().map(|clash| format!("{} {}", clash.code, clash.text)).collect()
}

#[tokio::test]
async fn a_key_has_one_owner_and_the_hosts_are_reserved() {
    let built = built(&[("b", &[], &["k"]), ("a", &[], &["bingo.host", "k", "l"])], &[]);
    assert_eq!(owners(&built), [("k", "b"), ("l", "a")]);
    assert_eq!(
        texts(&built.clashes),
        [
            "SERVICE_TAKEN a: its service `bingo.host` is not used: keys that begin with `bingo.` are the host's",
            "SERVICE_TAKEN a: its service `k` is not used: b has the key",
        ]
    );
}

#[tokio::test]
async fn what_is_required_and_missing_disables_and_spreads() {
    let plugins: [(&str, &[&str], &[&str]); 5] = [
        ("a", &["service:b.key", "service:bingo.host"], &["a.key"]),
        ("b", &["service:c.key"], &["b.key"]),
        ("c", &[], &["c.key"]),
        ("d", &["service:e.key"], &["d.key"]),
        ("e", &["service:d.key"], &["e.key"]),
    ];
    let whole = built(&plugins, &[]);
    assert_eq!(whole.snapshot.services.len(), 5, "two that need each other are both there");
    assert!(whole.needs.is_empty());

    let early = built(&plugins, &["c"]);
    assert_eq!(owners(&early), [("d.key", "d"), ("e.key", "e")]);
    assert!(early.needs.is_empty(), "nothing is told while somebody is starting");
    let report = &early.snapshot.plugins[0];
    let reason = Some("unmet requirements: service:b.key");
    assert_eq!((report.enabled, report.reason.as_deref(), early.snapshot.tools.len()), (false, reason, 2));

    let without = built(&[plugins[0], plugins[1], plugins[3]], &[]);
    assert!(without.snapshot.services.is_empty());
    assert_eq!(
        texts(&without.needs),
        [
            "PLUGIN_NEEDS a is disabled: unmet requirements: service:b.key",
            "PLUGIN_NEEDS b is disabled: unmet requirements: service:c.key",
            "PLUGIN_NEEDS d is disabled: unmet requirements: service:e.key",
        ]
    );
}

#[test]
fn needs_are_told_once_until_they_are_met() {
    let mut state = State::default();
    let need = || Clash { code: "PLUGIN_NEEDS", text: "a".to_owned() };
    let table = |needs: Vec<Clash>| Built { needs, ..Built::default() };
    assert_eq!(state.replace(table(vec![need()])), [need()]);
    assert_eq!(state.replace(table(vec![need()])), []);
    assert_eq!(state.replace(table(vec![])), []);
    assert_eq!(state.replace(table(vec![need()])), [need()]);
}

#[tokio::test]
async fn a_plugin_that_does_not_read_is_busy_for_its_callers() {
    let mut net = net(&["a", "b"]);
    let large = json!("x".repeat(5 * 1024 * 1024));
    let _stuck = net.plugin("b").wire.connection.begin::<bingo_plugin_sdk::calls::methods::CallService>(
        &ServiceCallParams { key: "b.key".to_owned(), method: "m".to_owned(), params: large },
    );
    let (code, text) = net.refused("a", "b.key", "m", Value::Null).await;
    assert_eq!(code, -32603);
    assert!(text.starts_with("b: service/call was not sent, the plugin is busy: 52"), "{text}");
    let error = net.plugin("b").wire.connection.begin::<bingo_plugin_sdk::calls::methods::CallService>(
        &ServiceCallParams { key: "b.key".to_owned(), method: "m".to_owned(), params: Value::Null },
    );
    assert_eq!(error.err().unwrap().sent, Sent::Never);
}
