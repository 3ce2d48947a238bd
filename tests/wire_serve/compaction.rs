//! Compaction: at the threshold and by hand; its frames, its cost, and what the model sees afterwards. What goes wrong
//! with it stands in `compaction_limits.rs`.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{items, model, notices, plugin, requests, said, seen, server, titled};
use crate::common::{Client, Sandbox, fold, is, shapes};

/// Cuts as the file `how` says: by default before the newest item, keeping the first. It bills 5 and 7 tokens.
pub(super) const SHORT: &str = r#"
def compact(params):
    how = json.load(open("how")) if os.path.exists("how") else {}
    if "fail" in how:
        raise Refused("out of order")
    if "wait" in how:
        wait_for("never")
    items = params["context"]["items"]
    compaction = {
        "summary": "in short",
        "boundary": items[-1]["id"],
        "kept": [items[0]["id"]],
        "before": 1000,
        "after": 10,
        "usage": {"inputTokens": 5, "outputTokens": 7},
    }
    return {"compaction": {**compaction, **how}}

serve({"compactors": [{"id": "short"}]}, compactor_compact=compact)
"#;

/// More tokens than the trigger of the context, which is 165,249.
pub(super) const MUCH: &str = "@used 170000";

/// The client goes first when it is dropped: the sandbox waits for every process.
pub(super) struct Rig {
    pub(super) client: Client,
    pub(super) sandbox: Sandbox,
    pub(super) model: PathBuf,
    pub(super) short: PathBuf,
    session: String,
    snapshot: Value,
    /// All frames of the session so far.
    frames: Vec<Value>,
    intents: u32,
}

impl Rig {
    pub(super) fn new() -> Self {
        let sandbox = Sandbox::new();
        let (model, short) = (model(&sandbox), plugin(&sandbox, "short", SHORT));
        let mut client = server(&sandbox, &[&model, &short], &["--model", "py/m"]);
        let session = titled(&mut client, &sandbox);
        let snapshot = client.open(&session);
        Self { client, sandbox, model, short, session, snapshot, frames: Vec::new(), intents: 0 }
    }

    /// Says how the compactor shall answer from now on.
    pub(super) fn how(&self, how: &Value) {
        std::fs::write(self.short.join("how"), how.to_string()).unwrap();
    }

    pub(super) fn turn(&mut self, text: &str) -> Vec<Value> {
        self.intents += 1;
        let frames = self.client.turn(&self.session, &format!("req_{}", self.intents), text);
        self.frames.extend(frames.iter().cloned());
        frames
    }

    /// The params of the compactor's newest call.
    pub(super) fn asked(&self) -> Value {
        seen(&self.short, "compactor/compact").last().unwrap().clone()
    }

    pub(super) fn last_request(&self) -> Vec<String> {
        said(requests(&self.model).last().unwrap())
    }
}

/// The item and the event of the only cut.
pub(super) fn cut(frames: &[Value]) -> (Value, Value) {
    let found = items(frames, "compaction");
    assert_eq!(found.len(), 1, "{found:?}");
    let event = frames.iter().find(|frame| is(frame, "compacted")).unwrap();
    (found[0].clone(), event["event"].clone())
}

/// Rule 1.3.21, 4.5.44.
#[test]
fn a_full_context_is_shortened_before_the_first_request_of_a_turn() {
    let mut rig = Rig::new();
    let first = rig.turn("first");
    rig.turn(&format!("second\n{MUCH}"));
    let frames = rig.turn("third");
    let expected = [
        "itemCompleted user [req_3]",
        "turnStarted submit 1",
        "intentAck req_3 turnStarted [req_3]",
        "itemCompleted compaction completed",
        "compacted",
        "itemStarted assistant running",
    ];
    assert_eq!(shapes(&frames)[..6], expected);
    let (item, event) = cut(&frames);
    let body = &item["body"];
    assert_eq!((&body["summary"], &body["replaced"]), (&json!("in short"), &json!(3)), "{body}");
    assert_eq!((&body["before"], &body["after"]), (&json!(1000), &json!(10)));
    assert!(body["durationMs"].is_u64(), "{body}");
    assert_eq!((&event["generation"], &event["summary"]), (&json!(1), &item["id"]));
    let (kept, third) = (&first[0]["event"]["item"]["id"], &frames[0]["event"]["item"]["id"]);
    assert_eq!((&event["kept"], &event["boundary"]), (&json!([kept]), third));
    assert_eq!(rig.last_request(), ["first", "[Summary of the conversation so far]\nin short", "third"]);
    let asked = rig.asked();
    assert_eq!((&asked["id"], &asked["reason"]), (&json!("short"), &json!({ "kind": "threshold" })));
    let context = &asked["context"];
    assert_eq!(context["items"].as_array().unwrap().len(), 5);
    assert!(context["usage"]["used"].as_u64() >= Some(170_001), "{}", context["usage"]);
    assert_eq!(context["usage"]["window"], 200_000 - 16_384);
    assert_eq!(context["keepBudget"], (200_000 - 16_384) / 4);
    assert_eq!((&context["failures"], &context["model"]), (&json!(0), &json!("m")));
    rig.turn("fourth");
    let words = ["first", "[Summary of the conversation so far]\nin short", "third", "done", "fourth"];
    assert_eq!(rig.last_request(), words, "and so it stays");
    assert_eq!(seen(&rig.short, "compactor/compact").len(), 1, "the context is small again");
}

/// Rule 4.5.48.
#[test]
fn a_cut_costs_its_turn_and_advances_the_generation_of_the_history() {
    let mut rig = Rig::new();
    rig.turn("first");
    let history = |rig: &mut Rig| rig.client.call("session/history", json!({ "session": rig.session }));
    assert_eq!(history(&mut rig)["generation"], 0);
    let frames = rig.turn("/compact");
    let usage = &frames.last().unwrap()["event"]["usage"];
    assert_eq!((&usage["inputTokens"], &usage["outputTokens"]), (&json!(5), &json!(7)));
    let after = history(&mut rig);
    assert_eq!(after["generation"], 1);
    assert_eq!(after["items"].as_array().unwrap().len(), 3, "people still see everything");
    rig.turn("/compact");
    assert_eq!(history(&mut rig)["generation"], 2);
    let state = rig.client.open(&rig.session);
    assert_eq!(json!(fold(&rig.snapshot, &rig.frames)), state);
    assert_eq!(state["historyGeneration"], 2);
    rig.how(&json!({ "after": 1000 }));
    let frames = rig.turn("/compact");
    let usage = &frames.last().unwrap()["event"]["usage"];
    assert_eq!(usage["inputTokens"], 5, "what is thrown away costs too");
    assert_eq!(history(&mut rig)["generation"], 2);
}

/// Rule 1.3.21.
#[test]
fn a_person_compacts_with_words_of_their_own() {
    let mut rig = Rig::new();
    rig.turn("first");
    let frames = rig.turn("/compact  keep the names ");
    let expected = [
        "turnStarted auto 0",
        "intentAck req_2 applied [req_2]",
        "itemCompleted compaction completed",
        "compacted",
        "turnCompleted completed",
    ];
    assert_eq!(shapes(&frames), expected);
    let message = &frames[1]["event"]["outcome"]["result"]["message"];
    assert_eq!(message, "compacting the conversation");
    assert_eq!(rig.asked()["reason"], json!({ "kind": "manual", "instructions": "keep the names" }));
    rig.turn("/compact");
    assert_eq!(rig.asked()["reason"], json!({ "kind": "manual" }));
    let entries = rig.client.call("catalog/read", json!({ "kind": "commands" }))["entries"].clone();
    assert!(entries.as_array().unwrap().iter().any(|entry| entry["id"] == "compact"), "{entries}");
}

#[test]
fn the_cut_is_there_after_a_restart() {
    let mut rig = Rig::new();
    rig.turn("first");
    rig.turn("second");
    rig.turn("/compact");
    let Rig { sandbox, mut client, model, short, session, .. } = rig;
    let before = client.open(&session);
    assert_eq!(client.finish(), Some(0));
    let mut client = server(&sandbox, &[&model, &short], &["--model", "py/m"]);
    let after = client.open(&session);
    assert_eq!((&after["items"], &after["historyGeneration"]), (&before["items"], &json!(1)));
    client.turn(&session, "req_9", "third");
    let words = ["first", "[Summary of the conversation so far]\nin short", "done", "third"];
    assert_eq!(said(requests(&model).last().unwrap()), words);
    let frames = client.turn(&session, "req_10", "/compact");
    assert_eq!(cut(&frames).1["generation"], 2);
}

/// Rule 4.1.4.
#[test]
fn a_compaction_can_be_interrupted() {
    let mut rig = Rig::new();
    rig.turn("first");
    rig.how(&json!({ "wait": true }));
    rig.client.submit(&rig.session, "req_c", "/compact");
    super::wait_for_seen(&rig.short, "waits", 1);
    rig.client.interrupt(&rig.session, "req_x");
    let frames = rig.client.until("turnCompleted");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted interrupted userCancel");
    assert!(notices(&frames, "COMPACTION_FAILED").is_empty());
    rig.how(&json!({}));
    cut(&rig.turn("/compact"));
}

#[test]
fn a_session_that_nobody_answers_in_has_nothing_to_compact() {
    let sandbox = Sandbox::new();
    let short = plugin(&sandbox, "short", SHORT);
    let mut client = super::echo_server(&sandbox, &[&short], &[]);
    let spec = json!({ "cwd": sandbox.work(), "driver": "log" });
    let opened = client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    let session = opened["session"].as_str().unwrap();
    client.submit(session, "req_1", "/compact");
    let frames = client.until_ack("req_1");
    assert_eq!(shapes(&frames), ["intentAck req_1 rejected INVALID_INPUT [req_1]"]);
    assert!(seen(&short, "compactor/compact").is_empty());
}

/// Rule 4.3.32.
#[test]
fn hooks_are_told_of_every_attempt() {
    let sandbox = Sandbox::new();
    let short = plugin(&sandbox, "short", SHORT);
    let watch = plugin(&sandbox, "watch", "serve({'hooks': [{'id': 'w', 'points': ['compact']}]})\n");
    let mut client = super::echo_server(&sandbox, &[&short, &watch], &[]);
    let session = titled(&mut client, &sandbox);
    client.turn(&session, "req_1", "first");
    client.turn(&session, "req_2", "/compact");
    std::fs::write(short.join("how"), r#"{"fail": true}"#).unwrap();
    let frames = client.turn(&session, "req_3", "/compact");
    let told = super::wait_for_seen(&watch, "hook/observe", 4);
    let phases: Vec<&Value> = told.iter().map(|params| &params["payload"]["phase"]).collect();
    assert_eq!(phases, ["start", "end", "start", "end"]);
    assert_eq!(told[3]["site"]["turn"], frames[0]["event"]["turn"]);
}

#[test]
fn a_second_cut_takes_the_first_summary_away_wherever_it_begins() {
    let mut rig = Rig::new();
    let first = rig.turn("first");
    rig.turn("second");
    let second = &rig.frames.iter().rfind(|frame| frame["event"]["item"]["body"]["kind"] == "user").unwrap();
    let (first, second) = (first[0]["event"]["item"]["id"].clone(), second["event"]["item"]["id"].clone());
    rig.how(&json!({ "summary": "one", "boundary": second, "kept": [] }));
    cut(&rig.turn("/compact"));
    // The same boundary again: the summary of the first cut is all that is replaced.
    rig.how(&json!({ "summary": "two", "boundary": second, "kept": [] }));
    let (item, _) = cut(&rig.turn("/compact"));
    assert_eq!(item["body"]["replaced"], 1);
    rig.turn("third");
    assert_eq!(rig.last_request(), ["[Summary of the conversation so far]\ntwo", "second", "done", "third"]);
    // From the summary on: nothing is replaced, so a second note stands before the first.
    rig.how(&json!({ "summary": "three", "boundary": item["id"], "kept": [] }));
    let (item, _) = cut(&rig.turn("/compact"));
    assert_eq!(item["body"]["replaced"], 0);
    rig.turn("fourth");
    let [three, two] = ["three", "two"].map(|words| format!("[Summary of the conversation so far]\n{words}"));
    assert_eq!(rig.last_request(), [&three, &two, "second", "done", "third", "done", "fourth"]);
    // What a cut took away, a later one cannot name.
    rig.how(&json!({ "boundary": first }));
    assert_eq!(notices(&rig.turn("/compact"), "COMPACTION_USELESS").len(), 1);
}

#[test]
fn a_compaction_waits_for_its_turn_like_any_line() {
    let mut rig = Rig::new();
    let (client, session) = (&mut rig.client, &rig.session);
    client.turn(session, "req_1", "first");
    std::fs::write(rig.short.join("how"), r#"{"wait": true}"#).unwrap();
    client.submit(session, "req_2", "words");
    client.until("turnCompleted");
    client.submit(session, "req_3", "/compact");
    super::wait_for_seen(&rig.short, "waits", 1);
    std::fs::remove_file(rig.short.join("how")).unwrap();
    client.submit(session, "req_4", "/compact again");
    client.submit(session, "req_5", "behind it");
    client.until_ack("req_5");
    client.interrupt(session, "req_x");
    client.until("turnCompleted");
    let frames = [client.until("turnCompleted"), client.until("turnCompleted")].concat();
    let shapes: Vec<String> = shapes(&frames)
        .into_iter()
        .filter(|shape| !shape.starts_with("item") && shape != "turnUsage")
        .collect();
    let expected = [
        "turnStarted auto 0",
        "intentAck req_4 applied [req_4]",
        "queueChanged 1",
        "compacted",
        "turnCompleted completed",
        "turnStarted queue 1",
        "intentAck req_5 turnStarted [req_5]",
        "queueChanged 0",
        "turnCompleted completed",
    ];
    assert_eq!(shapes, expected);
    assert_eq!(rig.asked()["reason"]["instructions"], "again");
}
