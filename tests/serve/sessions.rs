//! Creating sessions, finding them again, and sessions that nobody answers in (kernel rules 3.1 and 3.6).

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Client, Sandbox, is, shapes};

fn server(sandbox: &Sandbox) -> Client {
    sandbox.serve(["--model", "echo/echo"])
}

fn create(spec: &Value) -> Value {
    json!({ "selector": { "kind": "create", "spec": spec } })
}

#[track_caller]
fn created(client: &mut Client, spec: &Value) -> String {
    client.call("session/open", create(spec))["session"].as_str().unwrap().to_owned()
}

#[track_caller]
fn refused(client: &mut Client, params: Value) -> (String, String) {
    let error = client.fail("session/open", params);
    (error["data"]["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[track_caller]
fn listed(client: &mut Client) -> Vec<Value> {
    client.call("session/list", json!({}))["sessions"].as_array().unwrap().clone()
}

fn latest(cwd: &Path) -> Value {
    json!({ "selector": { "kind": "latest", "cwd": cwd } })
}

/// Rule 3.1.2, 3.1.7, 3.1.10.
#[test]
fn a_session_that_cannot_be_created_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let root = created(&mut client, &json!({ "cwd": sandbox.work(), "key": "test/taken" }));
    let child = created(&mut client, &json!({ "cwd": sandbox.work(), "parent": { "session": root } }));
    client.call("gateway/subscribe", json!({}));
    // Each is refused for the first of its faults: parent, then key, then provider.
    let mut spec = json!({ "cwd": sandbox.work(), "provider": "nobody", "key": "test/taken", "parent": { "session": child } });
    assert_eq!(refused(&mut client, create(&spec)).0, "INVALID_INPUT");
    spec["parent"] = json!({ "session": "ses_none" });
    assert_eq!(refused(&mut client, create(&spec)).0, "SESSION_NOT_FOUND");
    spec["parent"] = Value::Null;
    assert_eq!(refused(&mut client, create(&spec)).0, "SESSION_LOCKED");
    spec["key"] = json!("test/free");
    let (code, words) = refused(&mut client, create(&spec));
    assert_eq!(code, "PROVIDER_UNAVAILABLE");
    assert!(words.contains("nobody") && words.contains("echo"), "who is there is told: {words}");
    assert_eq!(listed(&mut client).len(), 2);
    spec["provider"] = Value::Null;
    let free = created(&mut client, &spec);
    let announced = client.gateway_event();
    assert_eq!(announced["summary"]["id"], free.as_str(), "the others were not announced");
    assert_eq!(
        (&announced["summary"]["provider"], &announced["summary"]["model"]),
        (&json!("echo"), &json!("echo"))
    );
}

/// Rule 3.1.3. Mends 9.1.15.
#[test]
fn a_key_is_one_sessions_for_good() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let spec = json!({ "cwd": sandbox.work(), "key": "test/one" });
    let session = created(&mut client, &spec);
    for wrong in ["one", "/one", "test/", ""] {
        let spec = json!({ "cwd": sandbox.work(), "key": wrong });
        assert_eq!(refused(&mut client, create(&spec)).0, "INVALID_INPUT", "`{wrong}`");
    }
    assert_eq!(refused(&mut client, create(&spec)).0, "SESSION_LOCKED");
    client.finish();
    // It is only stored now.
    let mut client = server(&sandbox);
    assert_eq!(refused(&mut client, create(&spec)).0, "SESSION_LOCKED");
    let by_key = json!({ "selector": { "kind": "byKey", "key": "test/one" } });
    assert_eq!(client.call("session/open", by_key)["session"], session.as_str());
    client.call("session/delete", json!({ "session": session }));
    // Of two at once one gets it.
    let ids = [client.send("session/open", create(&spec)), client.send("session/open", create(&spec))];
    let answers = ids.map(|id| client.response(id)["result"].is_object());
    assert_ne!(answers[0], answers[1]);
    assert_eq!(listed(&mut client).len(), 1);
}

/// Rule 3.1.4, 3.1.5, 3.1.6.
#[test]
fn the_last_updated_session_that_nobody_holds_is_meant() {
    let sandbox = Sandbox::new();
    let mut first = server(&sandbox);
    let spec = json!({ "cwd": sandbox.work() });
    let sessions = [(); 3].map(|()| created(&mut first, &spec));
    let child = created(&mut first, &json!({ "cwd": sandbox.work(), "parent": { "session": sessions[0] } }));
    for (intent, session) in sessions.iter().enumerate() {
        first.turn(session, &format!("req_{intent}"), "words");
    }
    first.turn(&child, "req_child", "the newest of all");
    first.finish();
    let [mut one, mut two, mut three, mut four] = [(); 4].map(|()| server(&sandbox));
    let found = [&mut one, &mut two, &mut three].map(|client| {
        client.call("session/open", latest(&sandbox.work()))["session"].as_str().unwrap().to_owned()
    });
    let [oldest, middle, newest] = sessions;
    assert_eq!(found, [newest.clone(), middle, oldest]);
    let (code, words) = refused(&mut four, latest(&sandbox.work()));
    assert_eq!(code, "SESSION_LOCKED", "a child is no way out: {words}");
    assert_eq!(refused(&mut four, latest(Path::new("/no/such"))).0, "SESSION_NOT_FOUND");
    one.finish();
    assert_eq!(four.call("session/open", latest(&sandbox.work()))["session"], newest.as_str());
}

/// Rule 3.1.8, 3.6.46.
#[test]
fn a_log_records_what_it_is_told_and_answers_nothing() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let session = created(&mut client, &json!({ "cwd": sandbox.work(), "driver": "log", "title": "t" }));
    let summary = listed(&mut client)[0].clone();
    assert!(summary.get("provider").is_none() && summary.get("model").is_none(), "{summary}");
    client.submit(&session, "req_1", "submitted");
    let mut frames = client.until_ack("req_1");
    for (intent, delivery) in [("req_2", "wake"), ("req_3", "hold")] {
        client.deliver(&session, intent, "delivered", delivery);
        frames.extend(client.until_ack(intent));
    }
    for pair in frames.chunks(2) {
        let (item, outcome) = (&pair[0]["event"]["item"], &pair[1]["event"]["outcome"]);
        assert_eq!(item["body"]["kind"], "user");
        assert!(item.get("turn").is_none(), "{item}");
        assert_eq!(outcome, &json!({ "kind": "applied", "result": { "item": item["id"] } }));
    }
    assert_eq!(frames.len(), 6, "{:?}", shapes(&frames));
    client.interrupt(&session, "req_4");
    client.submit(&session, "req_5", "/compact");
    let ends =
        [client.until_ack("req_4"), client.until_ack("req_5")].map(|frames| shapes(&frames).pop().unwrap());
    let expected =
        ["intentAck req_4 rejected NOT_READY [req_4]", "intentAck req_5 rejected INVALID_INPUT [req_5]"];
    assert_eq!(ends, expected);
    assert_eq!(listed(&mut client)[0]["busy"], false);
    assert!(!sandbox.stored(&session).iter().any(|frame| is(frame, "turnStarted")));
}

/// Rule 3.1.8, 3.1.14.
#[test]
fn a_summary_keeps_what_the_session_was_created_with_and_says_when_it_is_busy() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let spec = json!({ "cwd": sandbox.work(), "systemExtra": "be brief", "tools": ["some"] });
    let session = created(&mut client, &spec);
    client.submit(&session, "req_1", "@wait 60000");
    let frames = client.until_ack("req_1");
    let updated: Vec<&Value> = frames.iter().filter(|frame| is(frame, "sessionUpdated")).collect();
    assert!(
        updated.iter().all(|frame| frame["event"]["summary"]["busy"] == false),
        "the title comes before the turn"
    );
    assert_eq!(updated.len(), 1);
    assert_eq!(listed(&mut client)[0]["busy"], true);
    client.kill();
    drop(client);
    let mut client = server(&sandbox);
    assert_eq!(listed(&mut client)[0]["busy"], false, "what is only stored is not busy");
    let resumed = client.open(&session)["summary"].clone();
    let told = (&resumed["busy"], &resumed["systemExtra"], &resumed["tools"], &resumed["title"]);
    assert_eq!(told, (&json!(false), &json!("be brief"), &json!(["some"]), &json!("@wait 60000")));
    assert_eq!(listed(&mut client)[0]["busy"], false);
}

/// Rule 3.6.43.
#[test]
fn what_is_delivered_is_words_and_says_who_sent_it() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, _) = client.create(&sandbox.work());
    client.deliver(&session, "req_1", "/compact", "wake");
    let frames = client.until("turnCompleted");
    let item = &frames[0]["event"]["item"];
    assert_eq!(item["body"]["parts"][0]["text"], "/compact");
    assert_eq!(item["body"]["origin"], json!({ "surface": "peer", "principal": "another session" }));
    assert!(frames.iter().any(|frame| frame["event"]["origin"] == "peer"), "{:?}", shapes(&frames));
    let input = json!({ "kind": "text", "text": "x", "origin": { "surface": "peer" } });
    let params = json!({ "session": "ses_none", "intent": "req_2", "input": input, "delivery": "wake" });
    assert_eq!(client.fail("session/deliver", params)["data"]["code"], "SESSION_NOT_FOUND");
}

/// Rule 3.2.21.
#[test]
fn a_root_that_is_held_elsewhere_keeps_its_children() {
    let sandbox = Sandbox::new();
    let mut first = server(&sandbox);
    let (root, _) = first.create(&sandbox.work());
    created(&mut first, &json!({ "cwd": sandbox.work(), "parent": { "session": root } }));
    first.finish();
    let mut first = server(&sandbox);
    first.open(&root);
    let mut second = server(&sandbox);
    assert_eq!(second.fail("session/delete", json!({ "session": root }))["data"]["code"], "SESSION_LOCKED");
    assert_eq!(listed(&mut second).len(), 2);
    first.finish();
    second.call("session/delete", json!({ "session": root }));
    assert!(listed(&mut second).is_empty(), "children that are only stored go too");
}
