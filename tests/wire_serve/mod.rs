//! The plugin wire as a client of `bingo serve --stdio` sees it: hooks, context, compaction, questions and services,
//! offered by small plugins in Python.

mod ask;
mod compaction;
mod compaction_limits;
mod context;
mod debugger;
mod figures;
mod observe;
mod permissions;
mod reconfigure;
mod reload;
mod restart;
mod services;
mod starting;
mod submit;
mod swaps;
mod tool_hooks;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Client, Sandbox, is, wait_until};

/// A plugin behind `harness.py`.
fn plugin(sandbox: &Sandbox, name: &str, script: &str) -> PathBuf {
    sandbox.python(name, &[include_str!("harness.py"), script].concat())
}

/// The plugin of `model.py`, which offers the model `py/m`.
fn model(sandbox: &Sandbox) -> PathBuf {
    plugin(sandbox, "model", include_str!("model.py"))
}

/// A server with these plugins.
fn server(sandbox: &Sandbox, plugins: &[&Path], args: &[&str]) -> Client {
    let named = plugins.iter().flat_map(|plugin| ["--plugin", plugin.to_str().unwrap()]);
    sandbox.serve(named.chain(args.iter().copied()))
}

/// A server that answers with the echo model.
fn echo_server(sandbox: &Sandbox, plugins: &[&Path], args: &[&str]) -> Client {
    server(sandbox, plugins, &[&["--model", "echo/echo"], args].concat())
}

/// A session that has a title, so that its first words do not mint one.
fn titled(client: &mut Client, sandbox: &Sandbox) -> String {
    let spec = json!({ "cwd": sandbox.work(), "title": "t" });
    let opened = client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    opened["session"].as_str().unwrap().to_owned()
}

/// The params of each message of a method that a plugin has seen.
fn seen(plugin: &Path, method: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(plugin.join("seen")).unwrap_or_default();
    // The last line may be half written.
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter(|message| message["method"] == method).map(|message| message["params"].clone()).collect()
}

/// Waits until a plugin has seen so many messages of a method.
#[track_caller]
fn wait_for_seen(plugin: &Path, method: &str, count: usize) -> Vec<Value> {
    wait_until(&format!("{count} of {method}"), || {
        let seen = seen(plugin, method);
        if seen.len() >= count { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
}

/// The requests that the model of `model.py` got.
fn requests(model: &Path) -> Vec<Value> {
    seen(model, "provider/stream").iter().map(|params| params["request"].clone()).collect()
}

/// All texts of a request's messages, in order, without the lines that say who speaks.
fn said(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().unwrap().iter();
    let parts = messages.flat_map(|message| message["parts"].as_array().unwrap());
    let texts = parts.filter_map(|part| part["text"].as_str());
    texts.map(|text| text.trim_start_matches("[from the person you work for]\n").to_owned()).collect()
}

/// The items of this kind that were completed.
fn items<'a>(frames: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let completed = frames.iter().filter(|frame| is(frame, "itemCompleted"));
    completed.map(|frame| &frame["event"]["item"]).filter(|item| item["body"]["kind"] == kind).collect()
}

/// The words of user items, behind the surface they came from.
fn user_words(frames: &[Value]) -> Vec<(String, String)> {
    let users = items(frames, "user").into_iter().map(|item| &item["body"]);
    users
        .map(|body| (&body["origin"]["surface"], &body["parts"][0]["text"]))
        .map(|(surface, text)| (surface.as_str().unwrap().to_owned(), text.as_str().unwrap().to_owned()))
        .collect()
}

/// The output of the only tool call.
#[track_caller]
fn output(frames: &[Value]) -> &Value {
    let calls = items(frames, "toolCall");
    assert_eq!(calls.len(), 1, "{calls:?}");
    &calls[0]["body"]["output"]
}

/// The texts of notices with this code, on the stream or in the transcript.
fn notices(frames: &[Value], code: &str) -> Vec<String> {
    let bodies = frames.iter().map(|frame| match frame["event"]["type"].as_str() {
        Some("notice") => &frame["event"],
        _ => &frame["event"]["item"]["body"],
    });
    let named = bodies.filter(|body| body["code"] == code);
    named.map(|body| body["text"].as_str().unwrap().to_owned()).collect()
}

/// Sets the settings of the person.
fn settings(sandbox: &Sandbox, text: &str) {
    sandbox.write("home/.bingo/settings.toml", text);
}
