//! A plugin that takes long to start: sessions open meanwhile, and what is submitted waits for it and says so.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{echo_server, items, notices, output, plugin, server, settings, titled};
use crate::common::{Client, Sandbox, is};

const BYPASS: [&str; 2] = ["--permission-mode", "bypassPermissions"];

/// A plugin that shakes hands when the test lets it: it says that it lives until then.
fn slow(sandbox: &Sandbox, name: &str, rest: &str) -> PathBuf {
    let waits = "while not os.path.exists('go'):\n    print('not yet', file=sys.stderr, flush=True)\n    time.sleep(0.05)\n";
    plugin(sandbox, name, &[waits, rest].concat())
}

fn tool(sandbox: &Sandbox) -> PathBuf {
    slow(sandbox, "p", "serve({'tools': [TOOL]}, tool_call=lambda params: words('here'))\n")
}

fn let_go(plugin: &Path) {
    std::fs::write(plugin.join("go"), "").unwrap();
}

/// Submits a line and waits until the person is told that it waits; returns what came until then.
fn submit_and_wait(client: &mut Client, session: &str, text: &str) -> Vec<Value> {
    client.submit(session, "req_1", text);
    client.events_until(|frame| frame["event"]["item"]["body"]["code"] == "PLUGINS_STARTING")
}

fn plugin_state(client: &mut Client) -> Value {
    let entries = client.call("catalog/read", json!({ "kind": "plugins" }))["entries"].clone();
    let entry = entries.as_array().unwrap().iter().find(|entry| entry["id"] == "p").cloned();
    entry.unwrap()["meta"]["state"].clone()
}

#[test]
fn a_turn_waits_for_a_plugin_that_is_starting_and_says_so() {
    let sandbox = Sandbox::new();
    let plugin = tool(&sandbox);
    let mut client = echo_server(&sandbox, &[&plugin], &BYPASS);
    let session = titled(&mut client, &sandbox);
    assert_eq!(plugin_state(&mut client), "starting");
    let before = submit_and_wait(&mut client, &session, "@tool plugin__p__t {}");
    assert_eq!(
        notices(&before, "PLUGINS_STARTING"),
        ["waiting for plugins that are starting: p"],
        "{before:#?}"
    );
    assert!(!before.iter().any(|frame| is(frame, "turnStarted")), "{before:#?}");
    let_go(&plugin);
    let frames = client.until("turnCompleted");
    assert_eq!(output(&frames)["parts"][0]["text"], "here");
    assert!(notices(&frames, "PLUGINS_STARTING").is_empty(), "it is told once");
    assert_eq!(plugin_state(&mut client), "ready");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn what_waits_for_a_plugin_can_be_interrupted() {
    let sandbox = Sandbox::new();
    let plugin = tool(&sandbox);
    let mut client = echo_server(&sandbox, &[&plugin], &BYPASS);
    let session = titled(&mut client, &sandbox);
    submit_and_wait(&mut client, &session, "@tool plugin__p__t {}");
    client.interrupt(&session, "req_2");
    let frames = client.until_ack("req_2");
    let submitted = frames.iter().find(|frame| frame["event"]["intent"] == "req_1").unwrap();
    assert_eq!(submitted["event"]["outcome"]["error"]["code"], "NOT_READY", "{submitted}");
    let_go(&plugin);
    assert_eq!(output(&client.turn(&session, "req_3", "@tool plugin__p__t {}"))["parts"][0]["text"], "here");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_command_and_words_of_another_session_wait_too() {
    let sandbox = Sandbox::new();
    let offers = "serve({'commands': [{'name': 'c', 'hint': 'h', 'args': {'kind': 'none'}, 'family': 'f'}]}, command_run=lambda params: {'outcome': {'kind': 'applied', 'message': 'done'}})\n";
    let plugin = slow(&sandbox, "p", offers);
    let mut client = echo_server(&sandbox, &[&plugin], &BYPASS);
    let session = titled(&mut client, &sandbox);
    submit_and_wait(&mut client, &session, "/c");
    client.deliver(&session, "req_2", "from afar", "wake");
    let queued = client.until_ack("req_2");
    assert_eq!(queued.last().unwrap()["event"]["outcome"]["kind"], "queued");
    let_go(&plugin);
    let frames = client.until("turnCompleted");
    assert!(frames.iter().any(|frame| frame.to_string().contains("from afar")), "{frames:#?}");
    let applied = frames.iter().find(|frame| frame["event"]["intent"] == "req_1").unwrap();
    assert_eq!(applied["event"]["outcome"]["result"]["message"], "done", "{frames:#?}");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_session_opens_before_its_model_is_there_and_gets_it_then() {
    for configured in [false, true] {
        let sandbox = Sandbox::new();
        if configured {
            settings(&sandbox, "provider = 'py'\n");
        }
        let model = slow(&sandbox, "model", include_str!("model.py"));
        let mut client = server(&sandbox, &[&model], &[]);
        let (session, snapshot) = client.create(&sandbox.work());
        let known = if configured { json!("py") } else { Value::Null };
        assert_eq!((&snapshot["summary"]["provider"], &snapshot["summary"]["model"]), (&known, &Value::Null));
        submit_and_wait(&mut client, &session, "hello");
        let_go(&model);
        let frames = client.until("turnCompleted");
        let summaries = frames.iter().filter(|frame| is(frame, "sessionUpdated"));
        let named = |frame: &Value| frame["event"]["summary"]["provider"] == "py";
        assert!(summaries.clone().any(named), "{frames:#?}");
        assert_eq!(items(&frames, "assistant")[0]["body"]["text"], "done");
        assert_eq!(client.finish(), Some(0));
    }
}

#[test]
fn a_client_that_read_a_catalog_early_hears_that_it_changed() {
    let sandbox = Sandbox::new();
    let plugin = tool(&sandbox);
    let mut client = echo_server(&sandbox, &[&plugin], &BYPASS);
    client.call("gateway/subscribe", json!({}));
    assert_eq!(client.call("catalog/read", json!({ "kind": "tools" }))["entries"], json!([]));
    let_go(&plugin);
    // The client gives up when nothing comes.
    while client.gateway_event()["kind"] != "tools" {}
    let tools = client.call("catalog/read", json!({ "kind": "tools" }))["entries"].clone();
    assert_eq!(tools[0]["id"], "plugin__p__t");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_provider_that_never_comes_fails_the_turn_in_words() {
    let sandbox = Sandbox::new();
    let plugin = tool(&sandbox);
    let mut client = server(&sandbox, &[&plugin], &["--model", "none/m"]);
    let session = titled(&mut client, &sandbox);
    submit_and_wait(&mut client, &session, "hello");
    let_go(&plugin);
    let frames = client.until("turnCompleted");
    let status = &frames.last().unwrap()["event"]["status"];
    assert_eq!(status["error"]["code"], "PROVIDER_UNAVAILABLE", "{status}");
    assert_eq!(client.finish(), Some(0));
}
