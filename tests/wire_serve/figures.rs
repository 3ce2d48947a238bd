//! What the catalog of plugins says of a process, and that a change of a catalog is told.

use serde_json::{Value, json};

use super::{echo_server, plugin, settings, titled};
use crate::common::{Client, Sandbox, wait_until};

const BYPASS: [&str; 2] = ["--permission-mode", "bypassPermissions"];

/// A tool that does what its input says.
const TOOL: &str = r#"
def tool(params):
    do = params["input"]["do"]
    if do == "die":
        os._exit(3)
    if do == "fail":
        raise Refused("as asked")
    if do == "hang":
        wait_for("never")
    return words(do)

serve({"tools": [TOOL]}, tool_call=tool)
"#;

/// What the catalog says of a plugin.
fn meta(client: &mut Client, name: &str) -> Value {
    let entries = client.call("catalog/read", json!({ "kind": "plugins" }))["entries"].clone();
    entries.as_array().unwrap().iter().find(|entry| entry["id"] == name).unwrap()["meta"].clone()
}

/// Calls the tool once for each of these.
fn calls(client: &mut Client, session: &str, intent: &str, inputs: &[&str]) {
    let call = |input: &&str| format!("@tool plugin__p__t {}\n", json!({ "do": input }));
    client.turn(session, intent, &inputs.iter().map(call).collect::<String>());
}

fn changed(kind: &str) -> Value {
    json!({ "type": "catalogChanged", "kind": kind })
}

#[test]
fn the_catalog_counts_calls_errors_and_a_death_and_tells_the_change() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.p.timeouts]\ntoolIdle = 300\n");
    let plugin = plugin(&sandbox, "p", TOOL);
    let mut client = echo_server(&sandbox, &[&plugin], &BYPASS);
    client.call("gateway/subscribe", json!({}));
    let session = titled(&mut client, &sandbox);
    assert_eq!(client.gateway_event()["type"], "sessionCreated");
    let first = meta(&mut client, "p");
    assert_eq!((&first["enabled"], &first["calls"]["tool/call"]), (&json!(true), &Value::Null), "{first}");
    assert_eq!(first["calls"]["initialize"]["calls"], 1);

    calls(&mut client, &session, "req_1", &["a", "fail", "b", "c", "fail"]);
    let after = meta(&mut client, "p");
    let tool = &after["calls"]["tool/call"];
    assert_eq!((&tool["calls"], &tool["errors"], &tool["cancelled"]), (&json!(5), &json!(2), &json!(0)));
    assert!(tool["p50Us"].as_u64() > Some(0) && tool["p50Us"].as_u64() <= tool["p99Us"].as_u64(), "{tool}");
    assert_eq!(after["lastFault"]["text"], "tool/call: as asked (code -32000)");
    assert!(after["uptimeMs"].as_u64() > first["uptimeMs"].as_u64(), "{after}");
    assert!(after["bytesOut"].as_u64() > first["bytesOut"].as_u64(), "{after}");
    assert_eq!((&after["queuedBytes"], &after["strays"]), (&json!(0), &json!(0)));

    calls(&mut client, &session, "req_2", &["hang"]);
    assert_eq!(meta(&mut client, "p")["calls"]["tool/call"]["errors"], 3, "silence is an error");
    assert!(client.gateway.is_empty(), "no catalog changed: {:?}", client.gateway);

    calls(&mut client, &session, "req_3", &["die"]);
    assert_eq!(client.gateway_event(), changed("plugins"));
    let dead = meta(&mut client, "p");
    assert_ne!(dead["generation"], first["generation"], "{dead}");
    client.turn(&session, "req_4", "done");
    let stored = sandbox.stored(&session);
    assert!(!stored.is_empty() && stored.iter().all(|frame| frame["event"]["type"] != "catalogChanged"));
}

#[test]
fn a_death_takes_its_figures_along_and_says_why() {
    let sandbox = Sandbox::new();
    super::settings(&sandbox, "[supervisor.p]\nrestart = { delay = 30000 }\n");
    let plugin = plugin(&sandbox, "p", TOOL);
    let mut client = echo_server(&sandbox, &[&plugin], &BYPASS);
    let session = titled(&mut client, &sandbox);
    client.call("gateway/subscribe", json!({}));
    calls(&mut client, &session, "req_1", &["die"]);
    assert_eq!(client.gateway_event(), changed("plugins"));
    assert_eq!(client.gateway_event(), changed("tools"));
    let dead = meta(&mut client, "p");
    let reason = dead["reason"].as_str().unwrap();
    assert!(reason.starts_with("it is being restarted: its process exited with code 3"), "{reason}");
    let expected = json!({ "enabled": true, "state": "restarting", "restarts": 0, "reason": reason });
    assert_eq!(dead, expected);
    client.call("session/list", json!({}));
    assert!(client.gateway.is_empty(), "commands and models are as before: {:?}", client.gateway);
}

#[test]
fn the_figures_are_of_the_process_that_runs() {
    let sandbox = Sandbox::new();
    let plugin = plugin(&sandbox, "p", TOOL);
    let mut client = echo_server(&sandbox, &[&plugin], &BYPASS);
    let found = wait_until("the process is known", || {
        let meta = meta(&mut client, "p");
        if meta["pid"].is_number() { Ok(meta) } else { Err(meta.to_string()) }
    });
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", found["pid"])).unwrap();
    assert!(command.contains("main.py") && !command.contains("__guard"), "{command}");
    for name in ["rssKib", "guardRssKib", "uptimeMs", "bytesIn", "messagesIn"] {
        assert!(found[name].as_u64() > Some(0), "{name} of {found}");
    }
    // Two processes at least run here: each has a number of its own.
    assert_ne!(found["generation"], meta(&mut client, "echo")["generation"]);
}
