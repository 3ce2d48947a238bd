//! Going back, and sessions with children, as a frontend meets them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::common::{Client, Sandbox, fold, is, repository, shapes, wait_until};

const COUNT: &str = "plugin__wordcount__count";

fn server(sandbox: &Sandbox) -> Client {
    let plugin = repository("examples/plugins/wordcount");
    sandbox.serve(["--model", "echo/echo", "--plugin", plugin.to_str().unwrap()])
}

/// Opens a session with its children; returns its snapshot.
#[track_caller]
fn open_tree(client: &mut Client, session: &str) -> Value {
    let selector = json!({ "kind": "byId", "id": session });
    let params = json!({ "selector": selector, "options": { "children": true } });
    client.call("session/open", params)["snapshot"].clone()
}

/// Creates a child and lets go of it, so that its frames come through its parent's tree alone.
#[track_caller]
fn child(client: &mut Client, sandbox: &Sandbox, parent: &str) -> String {
    let spec = json!({ "cwd": sandbox.work(), "parent": { "session": parent } });
    let selector = json!({ "kind": "create", "spec": spec });
    let opened = client.call("session/open", json!({ "selector": selector }));
    let child = opened["session"].as_str().unwrap().to_owned();
    client.call("session/close", json!({ "session": child }));
    child
}

fn of(frames: &[Value], session: &str) -> Vec<Value> {
    frames.iter().filter(|frame| frame["session"] == session).cloned().collect()
}

/// Rule 3.6.48, 1.3.25, 5.3.14.
#[test]
fn a_client_goes_back_by_a_command() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, snapshot) = client.create(&sandbox.work());
    let mut frames = client.turn(&session, "req_1", "one");
    let kept = frames.len();
    frames.extend(client.turn(&session, "req_2", "two"));
    let second =
        frames[kept..].iter().find(|frame| is(frame, "turnStarted")).unwrap()["event"]["turn"].clone();
    client.submit(&session, "req_3", "/rewind");
    frames.extend(client.until_ack("req_3"));
    let rows = frames.last().unwrap()["event"]["outcome"]["result"]["view"]["rows"].clone();
    assert_eq!((&rows[0][1], &rows[1][0], &rows[1][1]), (&json!("one"), &second, &json!("two")));
    client.submit(&session, "req_4", &format!("/rewind {}", second.as_str().unwrap()));
    let back = client.until_ack("req_4");
    let told = shapes(&back);
    assert!(
        told.iter().position(|shape| shape.contains("rewind"))
            < told.iter().position(|shape| shape.starts_with("rewound"))
    );
    frames.extend(back);
    // The command ended.
    frames.extend(client.until("extension"));
    let server_state = client.open(&session);
    assert_eq!(server_state["historyGeneration"], 1);
    assert_eq!(json!(fold(&snapshot, &frames)), server_state);
    let commands = client.call("catalog/read", json!({ "kind": "commands" }));
    let names: Vec<&Value> =
        commands["entries"].as_array().unwrap().iter().map(|entry| &entry["id"]).collect();
    assert!(names.contains(&&json!("rewind")), "{names:?}");
    client.finish();
    // Another run goes back further.
    let mut client = server(&sandbox);
    let resumed = client.open(&session);
    assert_eq!(resumed["items"], server_state["items"]);
    let first = rows[0][0].as_str().unwrap();
    client.submit(&session, "req_5", &format!("/rewind {first}"));
    client.until_ack("req_5");
    let left = client.call("session/history", json!({ "session": session }));
    assert_eq!((left["items"].as_array().unwrap().len(), &left["generation"]), (1, &json!(2)));
}

/// Rule 3.2.18, 5.3.15, 1.1.6.
#[test]
fn a_question_of_a_child_is_answered_through_its_root() {
    let sandbox = Sandbox::new();
    sandbox.write("work/text", "one two\n");
    let mut client = server(&sandbox);
    let (root, _) = client.create(&sandbox.work());
    let opened = open_tree(&mut client, &root);
    let child = child(&mut client, &sandbox, &root);
    client.deliver(&child, "req_1", &format!("@tool {COUNT} {{\"path\": \"text\"}}"), "wake");
    let mut frames = client.until("interactionOpened");
    let interaction = frames.last().unwrap()["event"]["interaction"].clone();
    assert_eq!(interaction["session"], child.as_str());
    client.answer(&root, "req_2", &interaction["id"], &json!({ "kind": "allowOnce" }));
    frames.extend(client.until("turnCompleted"));
    let frames = of(&frames, &child);
    assert!(
        frames.iter().all(|frame| frame["root"] == root.as_str()),
        "they say which tree they came through"
    );
    assert_eq!(frames[0]["seq"], 1);
    let ack = frames.iter().find(|frame| frame["event"]["intent"] == "req_2").unwrap();
    assert_eq!(ack["event"]["outcome"]["kind"], "applied");
    let said = frames.iter().rfind(|frame| is(frame, "itemCompleted")).unwrap();
    assert!(said["event"]["item"]["body"]["text"].as_str().unwrap().contains("2 words"), "{said}");
    // What was answered is acknowledged again, and a question that nobody asked is refused where it was answered.
    client.answer(&root, "req_2", &interaction["id"], &json!({ "kind": "allowOnce" }));
    let again = client.until_ack("req_2").pop().unwrap();
    assert_eq!((&again["session"], &again["event"]["outcome"]), (&json!(child), &ack["event"]["outcome"]));
    client.answer(&root, "req_3", &json!("int_none"), &json!({ "kind": "allowOnce" }));
    let refused = client.until_ack("req_3").pop().unwrap();
    assert_eq!(refused["session"], root.as_str());
    assert!(refused.get("root").is_none(), "the root's own frames carry none");
    assert_eq!(refused["event"]["outcome"]["error"]["code"], "INTERACTION_CLOSED");
    // Other writes are the root's own.
    client.submit(&root, "req_4", "hello");
    let own = client.until("turnCompleted");
    assert!(own.iter().all(|frame| frame["session"] == root.as_str()));
    assert!(own[0]["seq"].as_u64() > opened["seq"].as_u64());
    let elsewhere = json!({ "session": child, "intent": "req_5", "scope": { "kind": "head" } });
    assert_eq!(client.fail("session/interrupt", elsewhere)["data"]["code"], "SESSION_NOT_FOUND");
    client.finish();

    // After a restart the child is only stored: its frames come, and the same answer gets the same acknowledgement.
    let mut client = server(&sandbox);
    open_tree(&mut client, &root);
    client.answer(&root, "req_2", &interaction["id"], &json!({ "kind": "allowOnce" }));
    let is_new = |frame: &Value| {
        frame["session"] == child.as_str()
            && frame["event"]["intent"] == "req_2"
            && frame["seq"].as_u64() >= Some(1 << 32)
    };
    let frames = client.events_until(is_new);
    assert_eq!(frames.last().unwrap()["event"]["outcome"], ack["event"]["outcome"]);
    let seqs: Vec<u64> = of(&frames, &child).iter().map(|frame| frame["seq"].as_u64().unwrap()).collect();
    assert!(seqs[0] == 1 && seqs.is_sorted_by(|one, other| one < other), "{seqs:?}");
}

/// Rule 3.2.17, 3.2.18, 5.4.21. Mends 9.1.13.
#[test]
fn a_tree_that_is_resumed_stays_a_tree() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (root, _) = client.create(&sandbox.work());
    open_tree(&mut client, &root);
    let child = child(&mut client, &sandbox, &root);
    client.deliver(&child, "req_1", "hello", "wake");
    let before = client.until("turnCompleted");
    client.call("session/events", json!({ "session": root, "since": 0 }));
    client.events.clear();
    client.deliver(&child, "req_2", "again", "wake");
    client.submit(&root, "req_3", "hello");
    // The child's turn that was over, its new one, and the root's.
    let after = [(); 3].map(|()| client.until("turnCompleted")).concat();
    assert_eq!(of(&after, &root)[0]["seq"], 1);
    let mut all: BTreeMap<u64, Value> = BTreeMap::new();
    for frame in of(&[before, after.clone()].concat(), &child) {
        all.insert(frame["seq"].as_u64().unwrap(), frame);
    }
    let again = of(&after, &child);
    assert_eq!(again[0]["seq"], 1, "a child comes again from its first frame");
    let first = again[0]["event"]["summary"].clone();
    let empty = json!({ "seq": 0, "summary": first, "items": [] });
    let folded = json!(fold(&empty, &all.into_values().collect::<Vec<_>>()));
    assert_eq!(folded, client.open(&child));
    // Opened alone it is a tree no more.
    client.open(&root);
    client.call("session/close", json!({ "session": child }));
    client.events.clear();
    client.deliver(&child, "req_4", "unseen", "wake");
    client.submit(&root, "req_5", "hello");
    assert!(client.until("turnCompleted").iter().all(|frame| frame["session"] == root.as_str()));
}

/// Rule 3.2.21, 3.2.18, 3.1.4. Mends 9.1.17.
#[test]
fn a_tree_is_deleted_from_its_leaves_and_what_runs_is_waited_for() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (root, _) = client.create(&sandbox.work());
    open_tree(&mut client, &root);
    let child = child(&mut client, &sandbox, &root);
    client.deliver(&child, "req_1", "@wait 60000", "wake");
    client.until_ack("req_1");
    client.call("gateway/subscribe", json!({}));
    client.call("session/delete", json!({ "session": root }));
    let frames = client.events_until(|frame| frame["session"] == root.as_str() && is(frame, "sessionClosed"));
    let shown = shapes(&of(&frames, &child));
    assert_eq!(shown[shown.len() - 2..], ["turnCompleted interrupted shutdown", "sessionClosed deleted"]);
    let removed = [client.gateway_event()["session"].clone(), client.gateway_event()["session"].clone()];
    assert_eq!(removed, [json!(child), json!(root)]);
    for gone in [&root, &child] {
        assert!(!sandbox.journal(gone).exists());
        let selector = json!({ "kind": "byId", "id": gone });
        assert_eq!(
            client.fail("session/open", json!({ "selector": selector }))["data"]["code"],
            "SESSION_NOT_FOUND"
        );
    }
}

/// Rule 3.1.6, 3.1.12. Mends 9.1.18.
#[test]
fn a_folder_is_the_same_by_any_of_its_names_and_a_child_is_never_meant() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (root, _) = client.create(&sandbox.work());
    let child = child(&mut client, &sandbox, &root);
    client.deliver(&child, "req_1", "the newest", "wake");
    let link = sandbox.home().join("link");
    std::os::unix::fs::symlink(sandbox.work(), &link).unwrap();
    let slash = format!("{}/", sandbox.work().display());
    for cwd in [json!(sandbox.work()), json!(slash), json!(link)] {
        let selector = json!({ "kind": "latest", "cwd": cwd });
        let latest = client.call("session/open", json!({ "selector": selector }));
        assert_eq!(latest["session"], root.as_str(), "{cwd}");
        let listed = client.call("session/list", json!({ "filter": { "cwd": cwd } }));
        assert_eq!(listed["sessions"].as_array().unwrap().len(), 2, "{cwd}");
    }
    let listed = client.call("session/list", json!({ "filter": { "parent": root } }));
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(listed["sessions"][0]["id"], child.as_str());
    // The newest of the live ones is meant, whichever was busy last.
    let (newest, _) = client.create(&sandbox.work());
    client.turn(&root, "req_2", "busy");
    let updated = || {
        let sessions = client.call("session/list", json!({ "filter": { "limit": 1 } }))["sessions"].clone();
        (sessions[0]["id"] == root.as_str()).then_some(()).ok_or_else(|| sessions.to_string())
    };
    wait_until("the root was updated last", updated);
    let selector = json!({ "kind": "latest", "cwd": sandbox.work() });
    assert_eq!(client.call("session/open", json!({ "selector": selector }))["session"], newest.as_str());
}
