//! Services between plugins of one server: pairs across languages, refusals in words, and what `requires` does.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{echo_server, items, notices, output, plugin, seen, settings, titled};
use crate::common::{Client, Sandbox, wait_until};

const BYPASS: [&str; 2] = ["--permission-mode", "bypassPermissions"];

/// The service `shop.key`, and a tool that calls what its input names.
const SHOP: &str = r#"
def serve_call(params):
    if params["method"] == "die":
        sys.stderr.write("the shop burns\n")
        sys.stderr.flush()
        os._exit(3)
    if params["method"] == "fail":
        raise Refused("sold out")
    if params["method"] == "never":
        wait_for("never")
    return {"result": {"price": 7, "for": params["params"]}}

methods = {"price": {}, "fail": {}, "never": {}, "die": {}}
tool = lambda params: words(json.dumps(call(*[params["input"].get(key) for key in ("key", "method", "params")])))
serve({"tools": [TOOL], "services": {"shop.key": {"methods": methods}}}, service_call=serve_call, tool_call=tool)
"#;

/// A plugin that offers a tool and must have these services.
fn needy(sandbox: &Sandbox, name: &str, requires: &[&str]) -> PathBuf {
    let folder =
        plugin(sandbox, name, "serve({'tools': [TOOL]}, tool_call=lambda params: words('at work'))\n");
    let path = folder.join("plugin.json");
    let mut manifest: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    manifest["requires"] = json!(requires);
    std::fs::write(path, manifest.to_string()).unwrap();
    folder
}

/// Calls a service with a tool of this name; returns what came back.
fn called(client: &mut Client, session: &str, tool: &str, input: &Value) -> Value {
    let frames = client.turn(session, &client.intent(), &format!("@tool {tool} {input}"));
    serde_json::from_str(output(&frames)["parts"][0]["text"].as_str().unwrap()).unwrap()
}

/// What the catalog says of a plugin, without the figures of its process.
fn report(client: &mut Client, name: &str) -> Value {
    let entries = client.call("catalog/read", json!({ "kind": "plugins" }))["entries"].clone();
    let entry = entries.as_array().unwrap().iter().find(|entry| entry["id"] == name).unwrap();
    let mut meta = entry["meta"].clone();
    meta.as_object_mut().unwrap().retain(|key, _| ["enabled", "reason"].contains(&key.as_str()));
    meta
}

fn tool_names(client: &mut Client) -> Vec<String> {
    let entries = client.call("catalog/read", json!({ "kind": "tools" }))["entries"].clone();
    entries.as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_python_and_a_rust_plugin_call_each_other() {
    let sandbox = Sandbox::new();
    let (shop, stress) =
        (plugin(&sandbox, "shop", SHOP), sandbox.stress("offer-calls,offer-service=store.key"));
    let mut client = echo_server(&sandbox, &[&shop, &stress], &BYPASS);
    let session = titled(&mut client, &sandbox);
    let (python, rust) = ("plugin__shop__t", "plugin__stress__call");
    let tea = json!({ "key": "shop.key", "method": "price", "params": ["tea", null, 1.5] });
    let price = json!({ "price": 7, "for": ["tea", null, 1.5] });
    assert_eq!(called(&mut client, &session, rust, &tea), price);
    let echo = json!({ "key": "store.key", "method": "echo", "params": { "é": "\u{2028}" } });
    assert_eq!(called(&mut client, &session, python, &echo), json!({ "é": "\u{2028}" }));
    // Through the other and back into the first, while its tool call is open; and to itself.
    let around = json!({ "key": "store.key", "method": "through", "params": tea });
    assert_eq!(called(&mut client, &session, python, &around), price);
    assert_eq!(called(&mut client, &session, python, &tea), price);
    let calls = seen(&shop, "service/call");
    assert_eq!(calls.len(), 3);
    assert!(calls.iter().all(|params| *params == tea), "as the caller wrote it: {calls:?}");
}

#[test]
fn what_cannot_be_served_is_refused_in_words() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.shop.timeouts]\nserviceCall = 200\n");
    let (shop, stress) = (plugin(&sandbox, "shop", SHOP), sandbox.stress("offer-service=store.key"));
    let mut client = echo_server(&sandbox, &[&shop, &stress], &BYPASS);
    let session = titled(&mut client, &sandbox);
    let late = "shop: the service `shop.key` did not answer `never` within 200 ms (sent, no answer); \
                service calls open between plugins: shop -> shop `shop.key` `never` (for 0 s)";
    for (key, method, code, words) in [
        (
            "bank.key",
            "pay",
            -32601,
            "nobody has the service `bank.key`; there are shop.key, store.key, bingo.host",
        ),
        (
            "shop.key",
            "sell",
            -32603,
            "shop: the service `shop.key` has no method `sell`; it has die, fail, never, price",
        ),
        ("shop.key", "fail", -32603, "shop: sold out (code -32000)"),
        ("store.key", "fail", -32603, "stress: failed, as asked (code -32000)"),
        ("shop.key", "never", -32603, late),
        ("bingo.host", "sing", -32603, "`bingo.host` has no method `sing`; it has ask, notice"),
    ] {
        let input = json!({ "key": key, "method": method });
        let came = called(&mut client, &session, "plugin__shop__t", &input);
        assert_eq!(came, json!({ "code": code, "message": words }));
    }
    let came = called(&mut client, &session, "plugin__shop__t", &json!({ "key": "shop.key" }));
    assert_eq!(came["code"], -32602, "no service call: {came}");
}

#[test]
fn a_plugin_without_what_it_requires_is_disabled_and_says_so() {
    let sandbox = Sandbox::new();
    let first = needy(&sandbox, "first", &["service:shop.key", "service:bank.key", "service:bingo.host"]);
    let second = needy(&sandbox, "second", &["service:shop.key"]);
    let mut client = echo_server(&sandbox, &[&first, &second], &[]);
    let (_, snapshot) = client.create(&sandbox.work());
    let told: Vec<&str> = snapshot["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["body"]["code"] == "PLUGIN_NEEDS")
        .map(|item| item["body"]["text"].as_str().unwrap())
        .collect();
    let expected = [
        "first is disabled: unmet requirements: service:shop.key, service:bank.key",
        "second is disabled: unmet requirements: service:shop.key",
    ];
    assert_eq!(told, expected);
    let reason = "unmet requirements: service:shop.key, service:bank.key";
    assert_eq!(report(&mut client, "first"), json!({ "enabled": false, "reason": reason }));
    assert_eq!(tool_names(&mut client), [""; 0], "nothing of theirs is offered");
    assert_eq!(client.finish(), Some(0));
    // With its owner there, the second one works as if nothing had been.
    let shop = plugin(&sandbox, "shop", SHOP);
    let mut client = echo_server(&sandbox, &[&first, &second, &shop], &BYPASS);
    assert_eq!(report(&mut client, "second"), json!({ "enabled": true }));
    let reason = "unmet requirements: service:bank.key";
    assert_eq!(report(&mut client, "first"), json!({ "enabled": false, "reason": reason }));
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "@tool plugin__second__t {}");
    assert_eq!(output(&frames)["parts"][0]["text"], "at work");
}

#[test]
fn the_death_of_an_owner_disables_who_requires_it_until_another_process_of_it_is_there() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.shop]\nrestart = { delay = 3000 }\n");
    let (shop, second) = (plugin(&sandbox, "shop", SHOP), needy(&sandbox, "second", &["service:shop.key"]));
    let stress = sandbox.stress("offer-calls");
    let mut client = echo_server(&sandbox, &[&shop, &second, &stress], &BYPASS);
    let session = titled(&mut client, &sandbox);
    assert_eq!(report(&mut client, "second"), json!({ "enabled": true }));
    let die = json!({ "key": "shop.key", "method": "die" });
    let mut frames = client.turn(&session, "req_1", &format!("@tool plugin__stress__call {die}"));
    let came: Value = serde_json::from_str(output(&frames)["parts"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(came["code"], -32603);
    let message = came["message"].as_str().unwrap();
    assert!(message.starts_with("shop: service/call failed (sent, no answer)"), "{message}");
    assert!(message.contains("the shop burns"), "{message}");
    let reason = json!({ "enabled": false, "reason": "unmet requirements: service:shop.key" });
    wait_until("the needy one is disabled", || {
        let meta = report(&mut client, "second");
        if meta == reason { Ok(()) } else { Err(meta.to_string()) }
    });
    while notices(&frames, "PLUGIN_NEEDS").is_empty() {
        frames.push(client.event());
    }
    let told = "second is disabled: unmet requirements: service:shop.key";
    assert_eq!(notices(&frames, "PLUGIN_NEEDS"), [told]);
    let frames = client.turn(&session, "req_2", "@tool plugin__second__t {}");
    assert_eq!(output(&frames)["parts"][0]["text"], "tool not found: plugin__second__t");
    wait_until("the needy one comes alive", || {
        let meta = report(&mut client, "second");
        if meta == json!({ "enabled": true }) { Ok(()) } else { Err(meta.to_string()) }
    });
    let frames = client.turn(&session, "req_3", "@tool plugin__second__t {}");
    assert_eq!(output(&frames)["parts"][0]["text"], "at work");
}

#[test]
fn a_key_has_one_owner_and_the_hosts_keys_are_taken() {
    let sandbox = Sandbox::new();
    let shop = plugin(&sandbox, "shop", SHOP);
    let rival = plugin(
        &sandbox,
        "rival",
        "serve({'tools': [TOOL], 'services': {'shop.key': {}, 'bingo.mine': {}}}, tool_call=lambda params: words('{}'))\n",
    );
    let named: [&Path; 2] = [&shop, &rival];
    let mut client = echo_server(&sandbox, &named, &BYPASS);
    let (session, snapshot) = client.create(&sandbox.work());
    let told: Vec<&Value> = snapshot["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["body"])
        .filter(|body| body["code"] == "SERVICE_TAKEN")
        .map(|body| &body["text"])
        .collect();
    let expected = [
        "rival: its service `bingo.mine` is not used: keys that begin with `bingo.` are the host's",
        "rival: its service `shop.key` is not used: shop has the key",
    ];
    assert_eq!(told, expected);
    let tea = json!({ "key": "shop.key", "method": "price", "params": 1 });
    let came = called(&mut client, &session, "plugin__shop__t", &tea);
    assert_eq!(came["price"], 7);
    let frames = client.turn(&session, "req_2", "@tool plugin__rival__t {}");
    assert_eq!(items(&frames, "toolCall")[0]["status"], "completed", "the rest of the second works");
}
