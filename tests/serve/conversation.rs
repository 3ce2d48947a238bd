//! One conversation from the handshake to the end, over two runs of the server; and the parts of it alone.

use serde_json::{Value, json};

use crate::common::{Client, Sandbox, fold, is, repository, shapes};

const COUNT: &str = "plugin__wordcount__count";

fn server(sandbox: &Sandbox) -> Client {
    let plugin = repository("examples/plugins/wordcount");
    sandbox.serve(["--model", "echo/echo", "--plugin", plugin.to_str().unwrap()])
}

fn state_of(client: &mut Client, session: &str) -> Value {
    client.open(session)
}

/// Folding every frame gives what the server has. Signals and deltas are not needed for that.
#[track_caller]
fn assert_same(client: &mut Client, session: &str, snapshot: &Value, frames: &[Value]) {
    let server_state = state_of(client, session);
    assert_eq!(json!(fold(snapshot, frames)), server_state, "{}", client.story());
}

/// Rule 5.1.1.
#[test]
fn the_lines_of_the_readme_make_a_conversation() {
    let sandbox = Sandbox::new();
    let readme = std::fs::read_to_string(repository("README.md")).unwrap();
    let lines: Vec<&str> = readme.lines().filter(|line| line.starts_with(r#"{"jsonrpc""#)).collect();
    let [initialize, open, submit] = lines[..] else { panic!("there are three: {lines:?}") };
    let mut client = sandbox.serve_raw([""; 0]);
    let answer = client.line(initialize);
    assert!(answer["result"].is_object(), "{answer}");
    let answer = client.line(open);
    let session = answer["result"]["session"].as_str().unwrap();
    let answer = client.line(submit.replace("SESSION", session));
    assert!(answer["result"].is_object(), "{answer}");
    let frames = client.until("turnCompleted");
    assert_eq!(frames.last().unwrap()["event"]["status"]["kind"], "completed", "{frames:?}");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn one_long_conversation() {
    let sandbox = Sandbox::new();
    sandbox.write("work/text", "one two\n");
    let mut client = server(&sandbox);
    client.call("gateway/subscribe", json!({}));
    let (session, snapshot) = client.create(&sandbox.work());
    assert_eq!(client.gateway_event()["summary"]["id"], session.as_str());
    let mut frames = client.turn(&session, "req_1", "hello");

    // A tool, asked for and allowed.
    client.submit(&session, "req_2", &format!("@tool {COUNT} {{\"path\": \"text\"}}"));
    frames.extend(client.until("interactionOpened"));
    let interaction = frames.last().unwrap()["event"]["interaction"]["id"].clone();
    client.answer(&session, "req_3", &interaction, &json!({ "kind": "allowOnce" }));
    frames.extend(client.until("turnCompleted"));
    let said = frames.iter().rfind(|frame| is(frame, "itemCompleted")).unwrap();
    let expected = format!("{COUNT} returned: text: 1 lines, 2 words, 8 characters, 8 bytes");
    assert_eq!(said["event"]["item"]["body"]["text"], expected);
    assert_same(&mut client, &session, &snapshot, &frames);

    // An interrupt in mid-stream.
    client.submit(&session, "req_4", "on and\n@wait 60000");
    frames.extend(client.until_said("and"));
    client.interrupt(&session, "req_5");
    frames.extend(client.until("turnCompleted"));

    // Plugin state, and a line that waits.
    let put = |kind: &str, payload: Value| json!({ "session": session, "plugin": "p", "kind": kind, "payload": payload });
    client.call("session/extend", put("state", json!({ "a": 1 })));
    client.call("session/signal", put("live", json!("here")));
    client.deliver(&session, "req_6", "held", "hold");
    frames.extend(client.until_ack("req_6"));
    assert_same(&mut client, &session, &snapshot, &frames);
    client.deliver(&session, "req_7", "wake up", "wake");
    frames.extend(client.until("turnCompleted"));
    client.call("session/signal", put("live", Value::Null));
    frames.extend(client.until("signal"));
    assert_same(&mut client, &session, &snapshot, &frames);
    client.call("session/close", json!({ "session": session }));
    assert_eq!(client.finish(), Some(0));

    // Another run: the same session, and nothing that was seen is different.
    let mut client = server(&sandbox);
    let resumed = client.open(&session);
    client.call("session/events", json!({ "session": session, "since": frames.last().unwrap()["seq"] }));
    let missed = client.events_until(|frame| frame["seq"] == resumed["seq"]);
    assert_eq!(shapes(&missed), ["sessionClosed shutdown", "sessionUpdated", "extension p.state"]);
    frames.extend(missed);
    assert_eq!(json!(fold(&snapshot, &frames)), resumed);
    client.turn(&session, "req_8", "and on");
    client.call("gateway/subscribe", json!({}));
    client.call("session/delete", json!({ "session": session }));
    assert_eq!(client.gateway_event(), json!({ "type": "sessionRemoved", "session": session }));
    assert_eq!(client.call("session/list", json!({}))["sessions"], json!([]));
    assert_eq!(client.call("shutdown", json!({})), json!({}));
    assert_eq!(client.exit_code(), Some(0));
}

/// Rule 3.2.17.
#[test]
fn frames_that_were_thrown_away_come_again() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, snapshot) = client.create(&sandbox.work());
    let first = client.turn(&session, "req_1", "first");
    client.turn(&session, "req_2", "@think lost\nlost too");
    let since = &first.last().unwrap()["seq"];
    client.call("session/events", json!({ "session": session, "since": since }));
    let again = client.until("turnCompleted");
    assert!(again.iter().all(|frame| frame["seq"].as_u64() > since.as_u64()));
    assert!(!again.iter().any(|frame| is(frame, "itemDelta")), "deltas are not stored");
    assert_same(&mut client, &session, &snapshot, &[first, again].concat());
    // From the very beginning too, and live frames follow without gap or repeat.
    client.call("session/events", json!({ "session": session }));
    let mut all = client.events_until(|frame| frame["event"]["intent"] == "req_2");
    client.submit(&session, "req_3", "third");
    all.extend(client.events_until(|frame| frame["event"]["intent"] == "req_3"));
    all.extend(client.until("turnCompleted"));
    let seqs: Vec<u64> = all.iter().map(|frame| frame["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs[0], 1);
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    let from_nothing = json!(fold(&snapshot, &[]));
    let mut empty = from_nothing;
    empty["seq"] = json!(0);
    assert_same(&mut client, &session, &empty, &all);
}

/// Rule 3.3.26, 3.6.43, 3.6.44.
#[test]
fn a_delivery_between_sessions_wakes_or_waits() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (idle, _) = client.create(&sandbox.work());
    let (busy, _) = client.create(&sandbox.work());
    client.submit(&busy, "req_1", "@wait 60000");
    client.until_ack("req_1");
    client.deliver(&busy, "req_2", "to the busy one", "wake");
    let queued = client.until_ack("req_2").pop().unwrap();
    assert_eq!((&queued["session"], &queued["event"]["outcome"]["kind"]), (&json!(busy), &json!("queued")));
    client.deliver(&idle, "req_3", "to the idle one", "wake");
    let frames = client.until("turnCompleted");
    assert!(frames.iter().all(|frame| frame["session"] == idle.as_str()), "each session has its own frames");
    client.interrupt(&busy, "req_4");
    client.until("turnCompleted");
    let frames = client.until("turnCompleted");
    assert!(shapes(&frames).contains(&"turnStarted queue 1".to_owned()), "{:#?}", shapes(&frames));
    // What is only stored is opened for it; nothing of it is sent to a client that did not open it.
    client.call("session/close", json!({ "session": idle }));
    client.deliver(&idle, "req_5", "nobody looks", "wake");
    client.turn(&busy, "req_6", "next");
    let action = json!({ "kind": "action", "action": { "name": "x", "args": null } });
    let params = json!({ "session": busy, "intent": "req_7", "input": action, "delivery": "wake" });
    client.call("session/deliver", params);
    assert_eq!(shapes(&client.until_ack("req_7")), ["intentAck req_7 rejected INVALID_INPUT [req_7]"]);
}

/// Rule 3.6.45.
#[test]
fn plugin_state_is_stored_and_live_state_is_not() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, snapshot) = client.create(&sandbox.work());
    let put = |payload: Value| json!({ "session": session, "plugin": "p", "kind": "k", "payload": payload });
    client.call("session/extend", put(json!([1])));
    client.call("session/signal", put(json!("live")));
    let frames = client.until("signal");
    assert_eq!(shapes(&frames), ["extension p.k", "signal p.k"]);
    assert_same(&mut client, &session, &snapshot, &frames);
    let state = client.open(&session);
    assert_eq!(state["extensions"], json!({ "p": { "k": [1] } }));
    assert_eq!(state["signals"], json!({ "p": { "k": "live" } }));
    client.finish();
    let mut client = server(&sandbox);
    // A stored session is opened for it.
    client.call("session/extend", put(Value::Null));
    let state = client.open(&session);
    assert_eq!(state["extensions"], json!({ "p": { "k": null } }), "null is a payload like others");
    assert!(state.get("signals").is_none(), "{state}");
}

#[test]
fn history_is_read_in_pages() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, _) = client.create(&sandbox.work());
    for number in 0..5 {
        client.turn(&session, &format!("req_{number}"), &format!("line {number}"));
    }
    let all = client.call("session/history", json!({ "session": session }));
    let items = all["items"].as_array().unwrap();
    assert_eq!(items.len(), 10);
    assert!(all["next"].is_null());
    let mut paged = Vec::new();
    let mut before = Value::Null;
    for size in [4, 4, 2] {
        let page = json!({ "before": before, "limit": 4 });
        let chunk = client.call("session/history", json!({ "session": session, "page": page }));
        let part = chunk["items"].as_array().unwrap().clone();
        assert_eq!(part.len(), size);
        assert_eq!(chunk["next"].is_null(), size == 2, "{chunk}");
        before = chunk["next"].clone();
        paged.splice(0..0, part);
    }
    assert_eq!(&paged, items);
    client.call("session/close", json!({ "session": session }));
    let error = client.fail("session/history", json!({ "session": session }));
    assert_eq!(error["data"]["code"], "SESSION_NOT_FOUND", "it must be open here");
}

/// Rule 3.1.1, 3.1.4, 3.1.6, 3.1.12.
#[test]
fn sessions_are_listed_and_found() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let other = sandbox.write("other/x", "").parent().unwrap().to_owned();
    let (first, _) = client.create(&sandbox.work());
    let (second, _) = client.create(&other);
    client.turn(&first, "req_1", "the newest");
    let list = |client: &mut Client, filter: Value| -> Vec<String> {
        let found = client.call("session/list", json!({ "filter": filter }))["sessions"].clone();
        found.as_array().unwrap().iter().map(|summary| summary["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(list(&mut client, json!({})), [first.as_str(), &second], "the last updated first");
    assert_eq!(list(&mut client, json!({ "limit": 1 })), [first.as_str()]);
    let slash = format!("{}/.", other.display());
    assert_eq!(list(&mut client, json!({ "cwd": slash })), [second.as_str()], "a cwd is a place, not a text");
    assert_eq!(list(&mut client, json!({ "cwd": "/no/such" })), [""; 0]);
    let open = |client: &mut Client, selector: Value| {
        client.call("session/open", json!({ "selector": selector }))["session"].clone()
    };
    assert_eq!(open(&mut client, json!({ "kind": "latest", "cwd": other })), second.as_str());
    let spec = json!({ "cwd": other, "key": "test/key", "parent": { "session": first } });
    let child = open(&mut client, json!({ "kind": "create", "spec": spec }));
    assert_eq!(list(&mut client, json!({ "parent": first })), [child.as_str().unwrap()]);
    assert_eq!(open(&mut client, json!({ "kind": "byKey", "key": "test/key" })), child);
    assert_eq!(
        open(&mut client, json!({ "kind": "latest", "cwd": other })),
        second.as_str(),
        "a child is not continued"
    );
    let error = client.fail("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    assert_eq!(error["data"]["code"], "SESSION_LOCKED", "a key is unique: {error}");
    client.call("session/delete", json!({ "session": first }));
    assert_eq!(list(&mut client, json!({})), [second.as_str()], "children go with their parent");
}

#[test]
fn every_catalog_can_be_read() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let entries = |client: &mut Client, kind: &str| {
        let catalog = client.call("catalog/read", json!({ "kind": kind }));
        assert_eq!(catalog["kind"], kind);
        catalog["entries"].as_array().unwrap().clone()
    };
    let ids = |entries: &[Value]| -> Vec<Value> { entries.iter().map(|entry| entry["id"].clone()).collect() };
    let models = entries(&mut client, "models");
    assert_eq!((&models[0]["id"], &models[0]["meta"]["provider"]), (&json!("echo/echo"), &json!("echo")));
    let providers = entries(&mut client, "providers");
    assert_eq!(providers, [json!({ "id": "echo", "label": "echo", "meta": { "auth": "notApplicable" } })]);
    let tools = entries(&mut client, "tools");
    assert_eq!(ids(&tools), [COUNT]);
    assert!(tools[0]["meta"]["description"].is_string() && tools[0]["meta"]["inputSchema"].is_object());
    let commands = entries(&mut client, "commands");
    // The kernel's own come first.
    let own = ["model", "models", "think", "rename", "compact", "plugins", "status", "permissions", "rewind"];
    let (first, offered) = commands.split_at(own.len());
    assert_eq!(ids(first), own);
    let offers = offered.iter().map(|entry| (&entry["id"], &entry["label"], &entry["meta"]["args"]["kind"]));
    let count = (&json!("wordcount"), &json!("count the words of a file"), &json!("free"));
    assert_eq!(offers.collect::<Vec<_>>(), [count]);
    assert_eq!(entries(&mut client, "skills"), [""; 0]);
    let plugins = entries(&mut client, "plugins");
    let wordcount = plugins.iter().find(|entry| entry["id"] == "wordcount").unwrap();
    assert_eq!(
        (&wordcount["label"], &wordcount["meta"]["enabled"]),
        (&json!("wordcount 1.0.0"), &json!(true))
    );
}

#[test]
fn a_second_process_is_refused_and_told_who_holds_the_session() {
    let sandbox = Sandbox::new();
    let mut first = server(&sandbox);
    let (session, _) = first.create(&sandbox.work());
    let mut second = server(&sandbox);
    let selector = json!({ "selector": { "kind": "byId", "id": session } });
    let error = second.fail("session/open", selector);
    assert_eq!(error["data"]["code"], "SESSION_LOCKED", "{error}");
    assert!(error["message"].as_str().unwrap().contains(&format!("process {}", first.pid())), "{error}");
    let error = second.fail("session/delete", json!({ "session": session }));
    assert_eq!(error["data"]["code"], "SESSION_LOCKED", "{error}");
    assert_eq!(second.call("session/list", json!({}))["sessions"][0]["id"], session.as_str(), "it may look");
    first.turn(&session, "req_1", "undisturbed");
    first.kill();
    let state = second.open(&session);
    assert_eq!(state["summary"]["title"], "undisturbed");
}

#[test]
fn a_command_shows_its_view_and_an_unknown_one_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("work/text", "one two\n");
    let mut client = server(&sandbox);
    let (session, _) = client.create(&sandbox.work());
    client.submit(&session, "req_1", "/wordcount text");
    let frames = client.until_ack("req_1");
    assert_eq!(shapes(&frames), ["intentAck req_1 applied [req_1]"]);
    let ack = &frames.last().unwrap()["event"];
    assert_eq!(ack["outcome"]["result"]["view"]["rows"], json!([["1", "2", "8", "8"]]));
    let action = json!({ "kind": "action", "action": { "name": "wordcount", "args": "text" } });
    client.call("session/submit", json!({ "session": session, "intent": "req_2", "input": action }));
    assert_eq!(shapes(&client.until_ack("req_2")), ["intentAck req_2 applied [req_2]"]);
    for (intent, text) in [("req_3", "/nothing"), ("req_4", "/wordcount"), ("req_5", "  ")] {
        client.submit(&session, intent, text);
    }
    let frames = client.until_ack("req_5");
    let mut kinds = shapes(&frames);
    kinds.sort();
    assert_eq!(kinds[0], "intentAck req_3 rejected INVALID_INPUT [req_3]");
    assert_eq!(kinds.last().unwrap(), "intentAck req_5 rejected INVALID_INPUT [req_5]");
}
