//! The exact orders of frames around interruptions, waiting lines, and the end of a session (kernel rules 1.3.19, 22 to
//! 24, 26 to 29).

use serde_json::{Value, json};

use crate::common::{Client, Sandbox, is, shapes};

const SLOW: &str = "plugin__stress__slow";
const LONG: &str = "@wait 60000";

fn server(sandbox: &Sandbox, args: &[&str]) -> Client {
    let plugin = sandbox.stress("");
    let named = ["--model", "echo/echo", "--plugin", plugin.to_str().unwrap()];
    sandbox.serve(named.iter().chain(args))
}

fn titled(client: &mut Client, sandbox: &Sandbox) -> String {
    let spec = json!({ "cwd": sandbox.work(), "title": "t" });
    let opened = client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    opened["session"].as_str().unwrap().to_owned()
}

fn texts(frames: &[Value], kind: &str) -> Vec<String> {
    let items = frames.iter().filter(|frame| is(frame, "itemCompleted")).map(|frame| &frame["event"]["item"]);
    let bodies = items.map(|item| &item["body"]).filter(|body| body["kind"] == kind);
    bodies
        .map(|body| body["text"].as_str().or(body["parts"][0]["text"].as_str()).unwrap().to_owned())
        .collect()
}

/// Rule 1.3.19.
#[test]
fn an_interrupt_in_mid_stream_keeps_the_words_so_far() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", &format!("so far\n{LONG}"));
    client.until_said("far");
    client.interrupt(&session, "req_x");
    let frames = client.until("turnCompleted");
    let expected = [
        "intentAck req_x applied [req_x]",
        "itemCompleted assistant interrupted",
        "itemCompleted interruption completed",
        "turnCompleted interrupted userCancel",
    ];
    assert_eq!(shapes(&frames), expected);
    assert_eq!(texts(&frames, "assistant"), ["so far"]);
    assert_eq!(frames[0]["event"]["outcome"]["result"]["turn"], frames[3]["event"]["turn"]);
    client.interrupt(&session, "req_y");
    assert_eq!(shapes(&client.until_ack("req_y")), ["intentAck req_y rejected NOT_READY [req_y]"]);
}

/// Rule 1.3.19, 4.3.22.
#[test]
fn an_interrupt_while_tools_run_ends_every_call() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &["--allowed-tools", SLOW]);
    let session = titled(&mut client, &sandbox);
    let call = format!("@tool {SLOW} {{\"ms\": 60000}}");
    client.submit(&session, "req_1", &format!("{call}\n{call}"));
    client.events_until(|frame| frame["event"]["kind"] == "tail");
    client.interrupt(&session, "req_x");
    let frames = client.until("turnCompleted");
    let ack = shapes(&frames).iter().position(|shape| shape.starts_with("intentAck")).unwrap();
    let expected = [
        "intentAck req_x applied [req_x]",
        "itemCompleted toolCall interrupted",
        "itemCompleted toolCall interrupted",
        "itemCompleted interruption completed",
        "turnCompleted interrupted userCancel",
    ];
    assert_eq!(shapes(&frames)[ack..], expected);
    let cut = frames.iter().find(|frame| is(frame, "itemCompleted")).unwrap();
    let body = &cut["event"]["item"]["body"];
    assert_eq!(body["output"]["isError"], true);
    assert_eq!(body["output"]["parts"][0]["text"], "[Request interrupted by user for tool use]");
    assert!(body.get("progress").is_none(), "{body}");
}

/// Rule 1.3.19.
#[test]
fn an_interrupt_while_a_question_is_open_cancels_it_first() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", &format!("@tool {SLOW} {{}}"));
    client.until("interactionOpened");
    client.interrupt(&session, "req_x");
    let expected = [
        "interactionCancelled interrupted",
        "intentAck req_x applied [req_x]",
        "itemCompleted toolCall interrupted",
        "itemCompleted interruption completed",
        "turnCompleted interrupted userCancel",
    ];
    assert_eq!(shapes(&client.until("turnCompleted")), expected);
}

#[test]
fn an_interrupt_right_behind_a_submit_cancels_its_turn() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    for round in 0..20 {
        let (submit, interrupt) = (format!("req_{round}"), format!("req_x{round}"));
        let input = json!({ "kind": "text", "text": LONG, "origin": { "surface": "test" } });
        client.send("session/submit", json!({ "session": session, "intent": submit, "input": input }));
        let scope = json!({ "kind": "head" });
        client.send("session/interrupt", json!({ "session": session, "intent": interrupt, "scope": scope }));
        let expected = [
            &format!("itemCompleted user [{submit}]"),
            "turnStarted submit 1",
            &format!("intentAck {submit} turnStarted [{submit}]"),
            &format!("intentAck {interrupt} applied [{interrupt}]"),
            "itemCompleted interruption completed",
            "turnCompleted interrupted userCancel",
        ];
        assert_eq!(shapes(&client.until("turnCompleted")), expected);
    }
}

/// Rule 4.1.4, 4.2.15.
#[test]
fn an_interrupt_ends_the_wait_for_another_try() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", "@fail server");
    let frames = client.until("turnRetrying");
    assert_eq!(shapes(&frames)[3..], ["turnRetrying 1/10 500 0"]);
    client.until("turnRetrying");
    assert_eq!(client.open(&session)["turn"]["retrying"], json!({ "attempt": 2, "max": 10 }));
    client.interrupt(&session, "req_x");
    let frames = client.until("turnCompleted");
    let expected = [
        "intentAck req_x applied [req_x]",
        "itemCompleted interruption completed",
        "turnCompleted interrupted userCancel",
    ];
    assert_eq!(shapes(&frames), expected);
}

#[test]
fn an_interrupt_is_not_behind_a_flood_of_words() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let spec = json!({ "cwd": sandbox.work(), "provider": "stress", "model": "stress" });
    let opened = client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    let session = opened["session"].as_str().unwrap();
    client.submit(session, "req_1", "100000000");
    client.until("itemDelta");
    client.interrupt(session, "req_x");
    let frames = client.until("turnCompleted");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted interrupted userCancel");
    assert!(frames.len() < 10_000, "it waited behind {} frames", frames.len());
}

/// Rule 3.5.37.
#[test]
fn an_interrupt_names_the_turn_it_means() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", LONG);
    let started = client.until("turnStarted").pop().unwrap();
    let other = json!({ "kind": "turn", "turn": "trn_other" });
    client.call("session/interrupt", json!({ "session": session, "intent": "req_x", "scope": other }));
    let refused = client.until_ack("req_x").pop().unwrap();
    assert_eq!(refused["event"]["outcome"]["error"]["code"], "NOT_READY");
    let this = json!({ "kind": "turn", "turn": started["event"]["turn"] });
    client.call("session/interrupt", json!({ "session": session, "intent": "req_y", "scope": this }));
    client.until("turnCompleted");
}

/// Rule 1.3.22, 3.4.34, 3.6.44.
#[test]
fn a_waking_delivery_opens_a_turn_and_takes_held_lines_along() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    client.deliver(&session, "req_h", "held", "hold");
    assert_eq!(shapes(&client.until_ack("req_h")), ["queueChanged 1", "intentAck req_h queued 1 [req_h]"]);
    client.deliver(&session, "req_w", "waking", "wake");
    let frames = client.until("turnCompleted");
    let expected = [
        "queueChanged 0",
        "itemCompleted user [req_h]",
        "itemCompleted user [req_w]",
        "turnStarted peer 2",
        "intentAck req_h turnStarted [req_h]",
        "intentAck req_w turnStarted [req_w]",
    ];
    assert_eq!(shapes(&frames)[..6], expected);
    let origin = json!({ "surface": "peer", "principal": "another session" });
    let woken = frames.iter().rfind(|frame| is(frame, "itemCompleted") && frame["cause"] == "req_w").unwrap();
    assert_eq!(woken["event"]["item"]["body"]["origin"], origin);
}

/// Rule 1.3.23, 3.3.23, 3.4.31.
#[test]
fn lines_that_wait_run_when_the_turn_is_over() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", LONG);
    client.until_ack("req_1");
    client.submit(&session, "req_2", "second");
    client.submit(&session, "req_3", "third");
    let waiting = client.until_ack("req_3");
    let expected = [
        "queueChanged 1",
        "intentAck req_2 queued 1 [req_2]",
        "queueChanged 2",
        "intentAck req_3 queued 2 [req_3]",
    ];
    assert_eq!(shapes(&waiting), expected);
    let changed = waiting.iter().rfind(|frame| is(frame, "queueChanged")).unwrap();
    let entry = &changed["event"]["entries"][1];
    assert_eq!((&entry["preview"], &entry["steerable"]), (&json!("third"), &json!(true)));
    client.interrupt(&session, "req_x");
    let first = client.until("turnCompleted");
    assert!(!first.iter().any(|frame| is(frame, "queueChanged")), "an interrupt leaves the queue alone");
    let frames = client.until("turnCompleted");
    let expected = [
        "itemCompleted user [req_2]",
        "itemCompleted user [req_3]",
        "turnStarted queue 2",
        "intentAck req_2 turnStarted [req_2]",
        "intentAck req_3 turnStarted [req_3]",
        "queueChanged 0",
    ];
    assert_eq!(shapes(&frames)[..6], expected);
}

/// Rule 1.3.24, 3.4.32. Mends 9.1.6.
#[test]
fn a_line_joins_the_running_turn_after_its_tools_but_a_held_one_waits() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &["--allowed-tools", SLOW]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", &format!("@tool {SLOW} {{\"ms\": 2000}}"));
    let mut frames = client.events_until(|frame| frame["event"]["kind"] == "tail");
    client.submit(&session, "req_2", "steer");
    client.deliver(&session, "req_3", "later", "hold");
    frames.extend(client.until("turnCompleted"));
    let shaped = shapes(&frames);
    let done = shaped.iter().position(|shape| shape == "itemCompleted toolCall completed").unwrap();
    let expected = [
        "queueChanged 1",
        "itemCompleted user [req_2]",
        "intentAck req_2 turnStarted [req_2]",
        "itemStarted assistant running",
    ];
    assert_eq!(shaped[done + 1..done + 5], expected);
    let started = frames.iter().find(|frame| is(frame, "turnStarted")).unwrap();
    let joined = frames.iter().rfind(|frame| frame["cause"] == "req_2").unwrap();
    assert_eq!(joined["event"]["outcome"]["turn"], started["event"]["turn"]);
    let next = client.until("turnCompleted");
    assert_eq!(shapes(&next)[..2], ["itemCompleted user [req_3]", "turnStarted queue 1"]);
}

/// Rule 1.3.26.
/// Mends 9.1.19.
#[test]
fn a_shutdown_ends_everything_in_the_journal() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", &format!("@tool {SLOW} {{}}"));
    client.until("interactionOpened");
    client.submit(&session, "req_2", "waiting");
    client.until_ack("req_2");
    assert_eq!(client.call("shutdown", json!({})), json!({}));
    assert_eq!(client.exit_code(), Some(0));
    let stored = shapes(&sandbox.stored(&session));
    let tail = [
        "interactionCancelled sessionClosed",
        "itemCompleted toolCall interrupted",
        "itemCompleted interruption completed",
        "turnCompleted interrupted shutdown",
        "sessionClosed shutdown",
    ];
    assert_eq!(stored[stored.len() - tail.len()..], tail);
}

/// Rule 3.2.21.
#[test]
fn a_deletion_is_told_to_whoever_is_attached() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", LONG);
    client.until_ack("req_1");
    client.call("session/delete", json!({ "session": session }));
    let expected = [
        "itemCompleted interruption completed",
        "turnCompleted interrupted shutdown",
        "sessionClosed deleted",
    ];
    assert_eq!(shapes(&client.until("sessionClosed")), expected);
    assert!(!sandbox.journal(&session).exists());
    let error = client.fail("session/delete", json!({ "session": session }));
    assert_eq!(error["data"]["code"], "SESSION_NOT_FOUND");
}

/// Rule 1.3.27, 7.11.
#[test]
fn a_resumed_session_restates_what_plugins_keep() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    for (plugin, kind) in [("b", "x"), ("a", "y"), ("a", "x")] {
        let params = json!({ "session": session, "plugin": plugin, "kind": kind, "payload": 1 });
        client.call("session/extend", params);
    }
    let events =
        client.events_until(|frame| frame["event"]["plugin"] == "a" && frame["event"]["kind"] == "x");
    assert_eq!(events.len(), 3);
    assert_eq!(client.finish(), Some(0));
    let before = sandbox.stored(&session).len();
    let mut client = server(&sandbox, &[]);
    let snapshot = client.open(&session);
    let head = sandbox.stored(&session)[before..].to_vec();
    assert_eq!(shapes(&head), ["sessionUpdated", "extension a.x", "extension a.y", "extension b.x"]);
    assert_eq!(head[0]["event"]["summary"]["busy"], false);
    assert_eq!(snapshot["closed"], false);
    assert!(
        head[0]["seq"].as_u64().unwrap() >= 1 << 32,
        "numbers that a client may have seen are not used again"
    );
}

/// Rule 1.3.28.
#[test]
fn every_turn_ends_once_in_the_order_they_opened() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &["--allowed-tools", SLOW]);
    let session = titled(&mut client, &sandbox);
    for (number, prompt) in ["words", "@fail auth", "@tool none {}", LONG].iter().enumerate() {
        client.submit(&session, &format!("req_{number}"), prompt);
        if *prompt == LONG {
            client.until_ack("req_3");
            client.interrupt(&session, "req_x");
        }
        client.until("turnCompleted");
    }
    client.submit(&session, "req_last", LONG);
    client.until_ack("req_last");
    client.kill();
    let mut client = server(&sandbox, &[]);
    client.open(&session);
    client.finish();
    let stored = sandbox.stored(&session);
    let named = |kind: &str| -> Vec<Value> {
        stored.iter().filter(|frame| is(frame, kind)).map(|frame| frame["event"]["turn"].clone()).collect()
    };
    assert_eq!(named("turnStarted").len(), 5);
    assert_eq!(named("turnStarted"), named("turnCompleted"));
}
