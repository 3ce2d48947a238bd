//! The exact orders of frames (kernel rules 1.3.15 to 29): turns, permissions, failures and retries.
//!
//! Interruptions and queues stand in `queue.rs`.

use serde_json::{Value, json};

use crate::common::{Client, Sandbox, is, repository, shapes};

const COUNT: &str = "plugin__wordcount__count";

/// A server that answers with the echo model and has the example's tool.
fn server(sandbox: &Sandbox, args: &[&str]) -> Client {
    let plugin = repository("examples/plugins/wordcount");
    let named = ["--model", "echo/echo", "--plugin", plugin.to_str().unwrap()];
    sandbox.serve(named.iter().chain(args))
}

/// A session that has a title, so that its first words do not mint one.
fn titled(client: &mut Client, sandbox: &Sandbox) -> String {
    let spec = json!({ "cwd": sandbox.work(), "title": "t" });
    let opened = client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    opened["session"].as_str().unwrap().to_owned()
}

fn count_call(sandbox: &Sandbox) -> String {
    sandbox.write("work/text", "one two\n");
    format!("@tool {COUNT} {{\"path\": \"text\"}}")
}

/// The frames of a round that says something.
const SAYS: [&str; 4] =
    ["itemStarted assistant running", "itemDelta text", "itemCompleted assistant completed", "turnUsage"];

/// Asks for a tool and returns the frames up to the question.
fn asked(client: &mut Client, session: &str, prompt: &str) -> (Vec<Value>, Value) {
    client.submit(session, &client.intent(), prompt);
    let frames = client.until("interactionOpened");
    let interaction = frames.last().unwrap()["event"]["interaction"].clone();
    (frames, interaction)
}

/// Rule 1.3.15.
#[test]
fn a_fresh_session_has_its_head_in_the_snapshot() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let (session, snapshot) = client.create(&sandbox.work());
    assert_eq!(shapes(&sandbox.stored(&session)), ["sessionUpdated", "configChanged"]);
    assert_eq!(snapshot["seq"], 2);
    assert_eq!(snapshot["summary"]["messages"], 0);
    assert_eq!(snapshot["summary"]["busy"], false);
    assert_eq!(snapshot["config"]["kernel"]["thinking"], Value::Null);
    client.submit(&session, "req_1", "hi");
    assert_eq!(client.event()["seq"], 3, "the stream goes on where the snapshot ends");
}

#[test]
fn a_session_that_nobody_configured_says_who_answers() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    let (session, snapshot) = client.create(&sandbox.work());
    let head = ["sessionUpdated", "configChanged", "itemCompleted notice completed"];
    assert_eq!(shapes(&sandbox.stored(&session)), head);
    assert_eq!(snapshot["items"][0]["body"]["code"], "NO_PROVIDER");
    assert_eq!(snapshot["summary"]["messages"], 0, "a notice is no message");
}

/// Rule 1.3.16, 3.3.22.
#[test]
fn a_plain_turn_has_its_frames_in_order() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let (session, _) = client.create(&sandbox.work());
    let frames = client.turn(&session, "req_1", "hello there");
    let mut expected = vec![
        "itemCompleted user [req_1]",
        "sessionUpdated",
        "turnStarted submit 1",
        "intentAck req_1 turnStarted [req_1]",
    ];
    expected.extend(SAYS);
    expected.push("turnCompleted completed");
    assert_eq!(shapes(&frames), expected);
    let [user, titled, started, ack] = &frames[..4] else { panic!() };
    assert_eq!(user["event"]["item"]["turn"], started["event"]["turn"], "it names the turn that comes");
    assert_eq!(user["event"]["item"]["intent"], "req_1");
    assert_eq!(started["event"]["inputs"], json!([user["event"]["item"]["id"]]));
    assert_eq!(ack["event"]["outcome"]["turn"], started["event"]["turn"]);
    assert_eq!(titled["event"]["summary"]["title"], "hello there");
    assert_eq!(titled["event"]["summary"]["busy"], false);
    let seqs: Vec<u64> = frames.iter().map(|frame| frame["seq"].as_u64().unwrap()).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    let deltas = frames.iter().filter(|frame| is(frame, "itemDelta"));
    let said: String = deltas.map(|frame| frame["event"]["data"].as_str().unwrap()).collect();
    assert_eq!(said, "hello there");
    let again = client.turn(&session, "req_2", "more");
    assert!(!again.iter().any(|frame| is(frame, "sessionUpdated")), "a title is minted once");
}

#[test]
fn reasoning_is_an_item_of_its_own_before_the_answer() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "@think let me see\nyes");
    let expected =
        ["itemStarted reasoning running", "itemDelta reasoning", "itemCompleted reasoning completed"];
    assert_eq!(shapes(&frames)[3..6], expected);
    assert_eq!(shapes(&frames)[6..10], SAYS);
}

/// Rule 1.2.11, 1.3.17, 4.1.2.
#[test]
fn a_permitted_call_runs_without_a_question() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &["--allowed-tools", COUNT]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", &count_call(&sandbox));
    let mut expected = vec![
        "itemCompleted user [req_1]",
        "turnStarted submit 1",
        "intentAck req_1 turnStarted [req_1]",
        "itemStarted toolCall pending",
        "turnUsage",
        "itemUpdated toolCall running",
        "itemCompleted toolCall completed",
    ];
    expected.extend(SAYS);
    expected.push("turnCompleted completed");
    assert_eq!(shapes(&frames), expected);
    let call = &frames[6]["event"]["item"];
    assert_eq!(call["round"], 0);
    assert_eq!(call["body"]["input"], json!({ "path": "text" }));
    assert!(call["body"]["durationMs"].is_u64(), "{call}");
    assert!(call["body"].get("progress").is_none(), "{call}");
    let answer = frames.iter().rfind(|frame| is(frame, "itemCompleted")).unwrap();
    assert_eq!(answer["event"]["item"]["round"], 1);
}

/// Rule 1.3.18, 5.2.10. Mends 9.1.7.
#[test]
fn a_denied_call_fails_and_the_turn_goes_on() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    let (before, question) = asked(&mut client, &session, &count_call(&sandbox));
    let expected = ["itemStarted toolCall pending", "turnUsage", "interactionOpened permission"];
    assert_eq!(shapes(&before)[3..], expected);
    assert_eq!(question["answers"], json!(["allowOnce", "allowSession", "deny"]));
    assert_eq!(question["item"], before[3]["event"]["item"]["id"]);
    assert_eq!(question["turn"], before[1]["event"]["turn"]);
    assert_eq!(question["kind"]["tool"], COUNT);
    assert_eq!(question["kind"]["sessionScope"], format!("{COUNT}(**)"), "files of this folder");
    let answer = json!({ "kind": "deny", "feedback": "not now" });
    client.answer(&session, "req_2", &question["id"], &answer);
    let after = client.until("turnCompleted");
    let mut expected = vec![
        "interactionResolved deny [req_2]",
        "intentAck req_2 applied [req_2]",
        "itemCompleted permissionReceipt deny completed",
        "itemCompleted toolCall failed",
    ];
    expected.extend(SAYS);
    expected.push("turnCompleted completed");
    assert_eq!(shapes(&after), expected);
    assert_eq!(after[0]["event"]["by"], json!({ "kind": "client", "name": "test", "surface": "test" }));
    assert_eq!(after[1]["event"]["outcome"]["result"], Value::Null);
    assert_eq!(
        after[2]["event"]["item"]["body"]["interaction"], question["id"],
        "a receipt names its question"
    );
    let output = &after[3]["event"]["item"]["body"]["output"];
    assert_eq!(output["isError"], true);
    assert_eq!(output["parts"][0]["text"], "Permission denied by the user: not now");
}

#[test]
fn allowing_for_the_session_changes_the_config_and_asks_no_more() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    let (_, question) = asked(&mut client, &session, &count_call(&sandbox));
    let scope = format!("{COUNT}(**)");
    let answer = json!({ "kind": "allowSession", "scope": scope });
    client.answer(&session, "req_2", &question["id"], &answer);
    let after = client.until("turnCompleted");
    let expected = [
        "interactionResolved allowSession [req_2]",
        "intentAck req_2 applied [req_2]",
        "itemCompleted permissionReceipt allowSession completed",
        "configChanged",
        "itemUpdated toolCall running",
        "itemCompleted toolCall completed",
    ];
    assert_eq!(shapes(&after)[..6], expected);
    let policy = &after[3]["event"]["config"]["plugins"]["bingo.permissions"];
    assert_eq!(policy["sessionRules"], json!([scope]));
    let again = client.turn(&session, "req_3", &count_call(&sandbox));
    assert!(!again.iter().any(|frame| is(frame, "interactionOpened")), "{:#?}", shapes(&again));
}

#[test]
fn allowing_once_asks_again_the_next_time() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    let (_, question) = asked(&mut client, &session, &count_call(&sandbox));
    client.answer(&session, "req_2", &question["id"], &json!({ "kind": "allowOnce" }));
    let after = client.until("turnCompleted");
    let expected = ["itemCompleted permissionReceipt allow completed", "itemUpdated toolCall running"];
    assert_eq!(shapes(&after)[2..4], expected, "no configChanged for one call");
    let (_, second) = asked(&mut client, &session, &count_call(&sandbox));
    assert_ne!(second["id"], question["id"]);
}

/// Rule 4.3.25, 4.3.29.
#[test]
fn a_mode_that_decides_asks_nobody() {
    let sandbox = Sandbox::new();
    let denied = ["itemStarted toolCall pending", "turnUsage", "itemCompleted toolCall failed"];
    let allowed = ["itemStarted toolCall pending", "turnUsage", "itemUpdated toolCall running"];
    for (mode, expected) in [("plan", denied), ("dontAsk", denied), ("bypassPermissions", allowed)] {
        let mut client = server(&sandbox, &["--permission-mode", mode]);
        let session = titled(&mut client, &sandbox);
        let frames = client.turn(&session, "req_1", &count_call(&sandbox));
        assert_eq!(shapes(&frames)[3..6], expected, "{mode}");
        let receipt = |frame: &Value| frame["event"]["item"]["body"]["kind"] == "permissionReceipt";
        assert!(!frames.iter().any(receipt), "nobody was asked");
        let output = &frames[5]["event"]["item"]["body"]["output"];
        let denial =
            output["parts"][0]["text"].as_str().unwrap_or_default().starts_with("Permission denied (");
        assert_eq!(denial, expected == denied, "{output}");
    }
}

/// Rule 3.5.38. Mends 9.1.14.
#[test]
fn an_answer_that_does_not_fit_is_refused_and_the_question_stays_open() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    let (_, question) = asked(&mut client, &session, &count_call(&sandbox));
    let id = &question["id"];
    // The guard lasts 400 ms; the question has only just been seen.
    let keyboard = json!({ "session": session, "intent": "req_k", "interaction": id,
        "answer": { "kind": "allowOnce" }, "activation": "keyboard" });
    client.call("session/answer", keyboard);
    for (intent, interaction, answer) in [
        ("req_w", id.clone(), json!({ "kind": "text", "text": "yes" })),
        ("req_s", id.clone(), json!({ "kind": "allowSession", "scope": "everything" })),
        ("req_u", json!("int_unknown"), json!({ "kind": "allowOnce" })),
    ] {
        client.answer(&session, intent, &interaction, &answer);
    }
    let frames = client.until_ack("req_u");
    let expected = [
        "intentAck req_k rejected NOT_READY [req_k]",
        "intentAck req_w rejected INVALID_INPUT [req_w]",
        "intentAck req_s rejected INVALID_INPUT [req_s]",
        "intentAck req_u rejected INTERACTION_CLOSED [req_u]",
    ];
    assert_eq!(shapes(&frames), expected);
    client.answer(&session, "req_ok", id, &json!({ "kind": "allowOnce" }));
    client.answer(&session, "req_late", id, &json!({ "kind": "deny" }));
    let frames = client.until("turnCompleted");
    let late = "intentAck req_late rejected INTERACTION_CLOSED [req_late]".to_owned();
    assert!(shapes(&frames).contains(&late), "the first answer counts: {:#?}", shapes(&frames));
}

/// Rule 1.3.20. Mends 9.1.4.
#[test]
fn what_cannot_get_better_ends_the_turn_and_its_half_written_item() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    for (kind, code) in [("request", "INVALID_INPUT"), ("auth", "AUTH_REQUIRED")] {
        let frames = client.turn(&session, &format!("req_{kind}"), &format!("half a word\n@fail {kind}"));
        let failed = format!("turnCompleted failed {code}");
        let expected =
            ["itemStarted assistant running", "itemDelta text", "itemCompleted assistant failed", &failed];
        assert_eq!(shapes(&frames)[3..], expected);
    }
}

#[test]
fn a_context_that_is_too_large_is_tried_once_more_without_old_results() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "half a word\n@fail contextOverflow");
    let tried = ["itemStarted assistant running", "itemDelta text", "itemCompleted assistant failed"];
    let expected =
        [&tried[..], &["turnRetrying 0/10 0 1"], &tried[..], &["turnCompleted failed CONTEXT_OVERFLOW"]]
            .concat();
    assert_eq!(shapes(&frames)[3..], expected);
}

/// Rule 1.3.20.
#[test]
fn a_failure_that_may_pass_is_tried_again_and_what_it_said_is_withdrawn() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "half\n@fail transport once\nwhole");
    let mut expected = vec![
        "itemStarted assistant running",
        "itemDelta text",
        "itemCompleted assistant failed",
        "turnRetrying 1/10 500 1",
    ];
    expected.extend(SAYS);
    expected.push("turnCompleted completed");
    assert_eq!(shapes(&frames)[3..], expected);
    let retrying = frames.iter().find(|frame| is(frame, "turnRetrying")).unwrap();
    let withdrawn = &frames[3]["event"]["item"]["id"];
    assert_eq!(retrying["event"]["dropped"], json!([withdrawn]));
    let state = client.open(&session);
    let items = state["items"].as_array().unwrap();
    assert!(!items.iter().any(|item| item["id"] == *withdrawn), "{items:#?}");
    assert_eq!(items.last().unwrap()["body"]["text"], "half\nwhole");
    let (mine, theirs) = (&state["lastTurn"], json!({ "kind": "completed" }));
    assert_eq!(*mine, theirs);
}

/// Rule 4.3.21.
#[test]
fn an_unknown_tool_fails_without_a_question() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "@tool no_such_tool {}");
    let expected = [
        "itemStarted toolCall pending",
        "turnUsage",
        "itemUpdated toolCall running",
        "itemCompleted toolCall failed",
    ];
    assert_eq!(shapes(&frames)[3..7], expected);
    assert_eq!(
        frames[6]["event"]["item"]["body"]["output"]["parts"][0]["text"],
        "tool not found: no_such_tool"
    );
}

/// Rule 4.2.11.
#[test]
fn input_that_is_not_json_still_goes_through_the_gate_as_text() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox, &[]);
    let session = titled(&mut client, &sandbox);
    let (frames, question) = asked(&mut client, &session, &format!("@tool {COUNT} {{broken"));
    let call = &frames[3]["event"]["item"];
    assert_eq!(call["body"]["input"], "{broken");
    assert!(call["meta"]["invalidInput"].is_string(), "{call}");
    client.answer(&session, "req_2", &question["id"], &json!({ "kind": "allowOnce" }));
    let after = client.until("turnCompleted");
    let call = after.iter().find(|frame| frame["event"]["item"]["status"] == "failed").unwrap();
    assert_eq!(call["event"]["item"]["body"]["output"]["parts"][0]["text"], "`path` must be a string");
}
