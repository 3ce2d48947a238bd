//! `hook/observe`: what a hook is told at `turn`, `session`, `compact` and `event`, and that nobody waits for it.

use serde_json::{Value, json};

use super::{echo_server, plugin, seen, titled, wait_for_seen};
use crate::common::{Sandbox, is};

/// Only listens, at these points.
fn watcher(sandbox: &Sandbox, points: &str) -> std::path::PathBuf {
    plugin(sandbox, "watch", &format!("serve({{'hooks': [{{'id': 'w', 'points': {points}}}]}})\n"))
}

/// Rule 4.3.32.
#[test]
fn a_turn_is_told_at_its_start_and_at_its_end_with_its_items() {
    let sandbox = Sandbox::new();
    let watch = watcher(&sandbox, "['turn']");
    let mut client = echo_server(&sandbox, &[&watch], &[]);
    let session = titled(&mut client, &sandbox);
    client.turn(&session, "req_1", "first");
    let frames = client.turn(&session, "req_2", "second");
    let told = wait_for_seen(&watch, "hook/observe", 4);
    let [start, end] = &told[2..] else { panic!("{told:#?}") };
    let turn = &frames.last().unwrap()["event"]["turn"];
    let kinds = |params: &Value| {
        let items = params["payload"]["items"].as_array().unwrap().iter();
        items.map(|item| item["body"]["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (params, phase, expected) in [(start, "start", vec!["user"]), (end, "end", vec!["user", "assistant"])]
    {
        assert_eq!((&params["id"], &params["point"]), (&json!("w"), &json!("turn")));
        assert_eq!(params["payload"]["phase"], phase);
        assert_eq!((&params["payload"]["turn"], &params["site"]["turn"]), (turn, turn));
        assert_eq!(kinds(params), expected, "its own items only");
        assert_eq!(params["site"]["model"], "echo");
    }
    assert_eq!(end["payload"]["items"][1]["body"]["text"], "second");
}

/// Rule 4.3.32.
#[test]
fn a_session_is_told_at_its_start_and_at_its_end() {
    let sandbox = Sandbox::new();
    let watch = watcher(&sandbox, "['session']");
    let mut client = echo_server(&sandbox, &[&watch], &[]);
    let session = titled(&mut client, &sandbox);
    client.turn(&session, "req_1", "words");
    assert_eq!(client.finish(), Some(0));
    let phases = || {
        let told = seen(&watch, "hook/observe");
        assert!(told.iter().all(|params| params["site"]["session"] == session.as_str()));
        told.iter().map(|params| params["payload"].clone()).collect::<Vec<_>>()
    };
    let (start, end) = (json!({ "phase": "start" }), json!({ "phase": "end" }));
    assert_eq!(phases(), [&start, &end].map(Clone::clone));
    std::fs::remove_file(watch.join("seen")).unwrap();
    // A session that is opened again starts again.
    let mut client = echo_server(&sandbox, &[&watch], &[]);
    client.open(&session);
    wait_for_seen(&watch, "hook/observe", 1);
    assert_eq!(client.finish(), Some(0));
    assert_eq!(phases(), [start, end]);
}

/// Rule 4.3.32.
#[test]
fn every_frame_but_deltas_is_told_in_order() {
    let sandbox = Sandbox::new();
    let watch = watcher(&sandbox, "['event']");
    let mut client = echo_server(&sandbox, &[&watch], &[]);
    let session = titled(&mut client, &sandbox);
    let mut frames = client.turn(&session, "req_1", "@think hm\nwords\n@fail transport once\nmore");
    client.submit(&session, "req_2", "/nothing");
    frames.extend(client.until_ack("req_2"));
    let signal = json!({ "session": session, "plugin": "p", "kind": "k", "payload": 1 });
    client.call("session/signal", signal);
    frames.extend(client.until("signal"));
    frames.retain(|frame| !is(frame, "itemDelta"));
    // The head of the session came before the client's first frame.
    let told: Vec<Value> = wait_for_seen(&watch, "hook/observe", frames.len() + 2)
        .into_iter()
        .map(|params| params["payload"]["frame"].clone())
        .collect();
    let head: Vec<&Value> = told[..2].iter().map(|frame| &frame["event"]["type"]).collect();
    assert_eq!(head, ["sessionUpdated", "configChanged"]);
    assert_eq!(told[2..], frames[..]);
}

#[test]
fn a_hook_that_only_listens_holds_nothing_up() {
    let sandbox = Sandbox::new();
    let script = r#"
send({"id": read()["id"], "result": {"protocol": 5, "name": "deaf", "version": "1", "hooks": [{"id": "w", "points": ["event", "turn"]}]}})
read()
open("deaf", "w").close()
while not os.path.exists("go"):
    time.sleep(0.005)
while True:
    read()
"#;
    let deaf = sandbox.python("deaf", script);
    let mut client = echo_server(&sandbox, &[&deaf], &[]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", &"x".repeat(1_000_000));
    let more = client.turn(&session, "req_2", &"x".repeat(1_000_000));
    assert!(deaf.join("deaf").exists());
    assert_eq!(super::items(&more, "assistant").len(), 1);
    std::fs::write(deaf.join("go"), "").unwrap();
    // What found no room is counted, and told once when it reads again.
    let mut all = [frames, more].concat();
    let told = |all: &[Value]| super::notices(all, "OBSERVATIONS_DROPPED");
    while told(&all).is_empty() {
        all.push(client.event());
    }
    assert!(told(&all)[0].starts_with("deaf"), "{:?}", told(&all));
}
