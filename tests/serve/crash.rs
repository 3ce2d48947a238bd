//! What is left after a crash, and of a torn or damaged journal (kernel rules 7; design §7).

use serde_json::{Value, json};

use crate::common::{Client, Sandbox, fold, is, repository, shapes};

fn server(sandbox: &Sandbox) -> Client {
    let plugin = repository("examples/plugins/wordcount");
    sandbox.serve(["--model", "echo/echo", "--plugin", plugin.to_str().unwrap()])
}

/// A session of two turns, closed; returns its id and its journal.
fn stored(sandbox: &Sandbox) -> (String, Vec<u8>) {
    let mut client = server(sandbox);
    let (session, _) = client.create(&sandbox.work());
    client.turn(&session, "req_1", "first words");
    client.turn(&session, "req_2", "@tool none {}");
    assert_eq!(client.finish(), Some(0));
    let journal = std::fs::read(sandbox.journal(&session)).unwrap();
    (session, journal)
}

fn listed(client: &mut Client) -> Vec<String> {
    let sessions = client.call("session/list", json!({}))["sessions"].clone();
    let ids = sessions.as_array().unwrap().iter().map(|summary| summary["id"].as_str().unwrap().to_owned());
    let mut ids: Vec<String> = ids.collect();
    ids.sort();
    ids
}

fn forget_summary(sandbox: &Sandbox, session: &str) {
    std::fs::remove_file(sandbox.journal(session).with_file_name("summary.json")).unwrap();
}

/// Every line of a journal is a frame, and numbers only grow.
fn assert_sound(sandbox: &Sandbox, session: &str) {
    let seqs: Vec<u64> = sandbox.stored(session).iter().map(|frame| frame["seq"].as_u64().unwrap()).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
}

#[test]
fn a_turn_lost_in_a_crash_is_ended_and_clients_that_knew_it_go_on() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, snapshot) = client.create(&sandbox.work());
    client.submit(&session, "req_1", "half a word\n@wait 60000");
    let seen = client.until_said("word");
    client.kill();
    let mut kept = fold(&snapshot, &seen);
    let last = kept.seq;

    let mut client = server(&sandbox);
    let server_state = client.open(&session);
    client.call("session/events", json!({ "session": session, "since": last }));
    let missed = client.events_until(|frame| frame["seq"] == server_state["seq"]);
    assert!(missed.iter().all(|frame| frame["seq"].as_u64() > Some(last.0)), "a number was used again");
    let expected = ["sessionUpdated", "itemCompleted assistant failed", "turnCompleted failed TURN_LOST"];
    assert_eq!(shapes(&missed), expected);
    kept = fold(&json!(kept), &missed);
    assert_eq!(json!(kept), server_state);
    assert!(kept.turn.is_none());
    let frames = client.turn(&session, "req_2", "and on");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    assert_sound(&sandbox, &session);
}

#[test]
fn a_client_survives_crash_after_crash_with_what_it_saw() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, snapshot) = client.create(&sandbox.work());
    let mut kept = fold(&snapshot, &[]);
    for (round, count) in [1, 2, 3, 5, 8, 40, 60, 90, 160].into_iter().enumerate() {
        let prompt = format!("@think so\nwords and more\n{}", "@tool none {}\n".repeat(50));
        let live = json!({ "session": session, "plugin": "p", "kind": "live", "payload": round });
        client.call("session/signal", live);
        client.submit(&session, &format!("req_{round}"), &prompt);
        let seen: Vec<Value> = (0..count).map(|_| client.event()).collect();
        client.kill();
        kept = fold(&json!(kept), &seen);
        client = server(&sandbox);
        let theirs = client.open(&session);
        client.call("session/events", json!({ "session": session, "since": kept.seq }));
        let missed = client.events_until(|frame| frame["seq"] == theirs["seq"]);
        let last = kept.seq;
        assert!(missed.iter().all(|frame| frame["seq"].as_u64() > Some(last.0)), "a number was used again");
        kept = fold(&json!(kept), &missed);
        let mut mine = json!(kept);
        let newest = theirs["items"].as_array().unwrap().len();
        let items = mine["items"].as_array_mut().unwrap();
        items.drain(..items.len() - newest);
        assert_eq!(mine, theirs, "after {count} frames");
    }
    assert_sound(&sandbox, &session);
    let stored = sandbox.stored(&session);
    let ends = |kind: &str| stored.iter().filter(|frame| is(frame, kind)).count();
    assert_eq!(ends("turnStarted"), ends("turnCompleted"));
}

#[test]
fn a_question_open_in_a_crash_is_cancelled_and_its_call_failed() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, snapshot) = client.create(&sandbox.work());
    client.submit(&session, "req_1", "@tool plugin__wordcount__count {\"path\": \"x\"}");
    let mut seen = client.until("interactionOpened");
    client.submit(&session, "req_2", "waiting");
    seen.extend(client.until_ack("req_2"));
    client.kill();
    let mut kept = fold(&snapshot, &seen);
    assert_eq!((kept.interactions.len(), kept.queue.len()), (1, 1));

    let mut client = server(&sandbox);
    let server_state = client.open(&session);
    assert_eq!(server_state["interactions"], json!([]));
    client.call("session/events", json!({ "session": session, "since": kept.seq }));
    let mut missed = client.events_until(|frame| frame["seq"] == server_state["seq"]);
    // What came after the snapshot came before what was asked for again.
    missed.retain(|frame| frame["seq"].as_u64() <= server_state["seq"].as_u64());
    let expected = [
        "sessionUpdated",
        "interactionCancelled sessionClosed",
        "itemCompleted toolCall failed",
        "turnCompleted failed TURN_LOST",
        "queueChanged 1",
        "itemCompleted user [req_2]",
        "turnStarted queue 1",
        "intentAck req_2 turnStarted [req_2]",
        "queueChanged 0",
    ];
    // The snapshot may show some of the turn that follows.
    assert_eq!(shapes(&missed)[..expected.len()], expected, "the line that waited is done");
    let id = json!(kept.interactions[0].id);
    kept = fold(&json!(kept), &missed);
    assert_eq!(json!(kept), server_state);
    let answer = json!({ "kind": "allowOnce" });
    client.answer(&session, "req_3", &id, &answer);
    let rest = client.until_ack("req_3");
    let closed = "intentAck req_3 rejected INTERACTION_CLOSED [req_3]".to_owned();
    assert_eq!(shapes(&rest).last(), Some(&closed));
}

#[test]
fn a_journal_torn_anywhere_opens_again_or_was_never_a_session() {
    let sandbox = Sandbox::new();
    let (session, journal) = stored(&sandbox);
    let lines: Vec<usize> = (0..journal.len()).filter(|at| journal[*at] == b'\n').collect();
    let mut client = server(&sandbox);
    for step in 0..20 {
        let cut = 1 + step * (journal.len() - 1) / 19;
        forget_summary(&sandbox, &session);
        std::fs::write(sandbox.journal(&session), &journal[..cut]).unwrap();
        let selector = json!({ "selector": { "kind": "byId", "id": session } });
        if cut <= lines[1] {
            let error = client.fail("session/open", selector);
            assert_eq!(error["data"]["code"], "SESSION_NOT_FOUND", "cut at {cut}: {error}");
            std::fs::write(sandbox.journal(&session).with_file_name("summary.json"), "{}").unwrap();
            continue;
        }
        let snapshot = client.call("session/open", selector)["snapshot"].clone();
        assert!(snapshot["turn"].is_null(), "cut at {cut}: {snapshot}");
        assert_eq!(snapshot["closed"], false, "cut at {cut}");
        for item in snapshot["items"].as_array().unwrap() {
            let status = item["status"].as_str().unwrap();
            assert!(["completed", "failed"].contains(&status), "cut at {cut}: {item}");
        }
        let frames = client.turn(&session, "req_9", "still here");
        assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed", "cut at {cut}");
        assert_sound(&sandbox, &session);
        client.call("session/delete", json!({ "session": session }));
        client.until("sessionClosed");
        let place = sandbox.journal(&session);
        std::fs::create_dir(place.parent().unwrap()).unwrap();
        std::fs::write(place.with_file_name("summary.json"), "{}").unwrap();
    }
    std::fs::remove_dir_all(sandbox.journal(&session).parent().unwrap()).unwrap();
}

#[test]
fn a_damaged_line_is_named_and_spoils_no_other_session() {
    let sandbox = Sandbox::new();
    let (damaged, journal) = stored(&sandbox);
    let (whole, _) = stored(&sandbox);
    let mut lines: Vec<&[u8]> = journal.split_inclusive(|byte| *byte == b'\n').collect();
    lines[2] = b"{\"seq\": damaged}\n";
    let spoiled = lines.concat();
    std::fs::write(sandbox.journal(&damaged), &spoiled).unwrap();
    forget_summary(&sandbox, &damaged);
    let mut client = server(&sandbox);
    assert_eq!(listed(&mut client), [whole.as_str()]);
    let error = client.fail("session/open", json!({ "selector": { "kind": "byId", "id": damaged } }));
    assert_eq!(error["data"]["code"], "STORAGE", "{error}");
    let message = error["message"].as_str().unwrap();
    let path = sandbox.journal(&damaged);
    assert!(message.contains(path.to_str().unwrap()) && message.contains("line 3"), "{message}");
    assert_eq!(std::fs::read(&path).unwrap(), spoiled, "it is left as it is");
    let snapshot = client.open(&whole);
    let told = snapshot["items"].as_array().unwrap().iter().any(|item| {
        item["body"]["kind"] == "notice" && item["body"]["text"].as_str().unwrap().contains("line 3")
    });
    assert!(told, "the next session says so: {snapshot}");
    client.call("session/delete", json!({ "session": damaged }));
    assert!(!path.exists());
}

#[test]
fn a_journal_of_a_newer_version_is_refused_and_left_untouched() {
    let sandbox = Sandbox::new();
    let (session, journal) = stored(&sandbox);
    let text = String::from_utf8(journal).unwrap().replacen("\"version\":1", "\"version\":2", 1) + "{\"torn";
    std::fs::write(sandbox.journal(&session), &text).unwrap();
    let mut client = server(&sandbox);
    let error = client.fail("session/open", json!({ "selector": { "kind": "byId", "id": session } }));
    assert_eq!(error["data"]["code"], "STORAGE", "{error}");
    assert!(error["message"].as_str().unwrap().contains("newer bingo"), "{error}");
    assert_eq!(listed(&mut client), [""; 0]);
    let (other, _) = client.create(&sandbox.work());
    assert_eq!(listed(&mut client), [other]);
    assert_eq!(client.finish(), Some(0));
    assert_eq!(std::fs::read_to_string(sandbox.journal(&session)).unwrap(), text);
}

/// Rule 7.8.
#[test]
fn deleting_every_cached_summary_changes_no_answer() {
    let sandbox = Sandbox::new();
    let sessions = [stored(&sandbox).0, stored(&sandbox).0];
    let list = || server(&sandbox).call("session/list", json!({}));
    let with = list();
    assert_eq!(with["sessions"].as_array().unwrap().len(), 2);
    sessions.iter().for_each(|session| forget_summary(&sandbox, session));
    assert_eq!(list(), with);
    let summary = &with["sessions"][0];
    assert_eq!((&summary["title"], &summary["messages"]), (&json!("first words"), &json!(4)));
    assert!(summary["usage"]["inputTokens"].as_u64() > Some(0), "{summary}");
}

#[test]
fn what_was_answered_before_a_crash_is_stored() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, _) = client.create(&sandbox.work());
    for number in 0..50 {
        let params = json!({ "session": session, "plugin": "p", "kind": "k", "payload": number });
        client.call("session/extend", params);
        if number % 10 == 9 {
            client.kill();
            client = server(&sandbox);
            let snapshot: Value = client.open(&session);
            assert_eq!(snapshot["extensions"]["p"]["k"], json!(number), "an answer was given too soon");
        }
    }
}
