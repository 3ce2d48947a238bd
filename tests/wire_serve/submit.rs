//! Hooks at `submit`: what they change, refuse, send elsewhere, and hold up.

use serde_json::{Value, json};

use super::{echo_server, notices, plugin, seen, settings, titled, user_words, wait_for_seen};
use crate::common::{Client, Sandbox, is, shapes};

/// Does what the words say: `rewrite`, `deny`, `block`, `ask`, `to SESSION`, and `wait` until the file `go` is there.
const JUDGE: &str = r#"
def decide(params):
    given = params["payload"]["input"]
    text = given.get("text", "")
    if text.startswith("rewrite"):
        return {"outcome": {"kind": "continue"}, "value": {"kind": "input", "input": {**given, "text": "rewritten"}}}
    if text.startswith("wait"):
        wait_for("go")
    if text.startswith("to "):
        given = {**given, "text": "from elsewhere"}
        return {"outcome": {"kind": "redirect", "session": text[3:]}, "value": {"kind": "input", "input": given}}
    kind = text.split(" ")[0]
    if kind in ("deny", "block", "ask"):
        return {"outcome": {"kind": kind, "reason": "not today"}}
    if kind == "fail":
        raise Refused("out of order")
    return {"outcome": {"kind": "continue"}}

serve({"hooks": [{"id": "judge", "points": ["submit"]}]}, hook_decide=decide)
"#;

/// The most inputs of a session that wait.
const MOST: usize = 1000;

/// What became of an intent.
fn outcome(frames: &[Value], intent: &str) -> Value {
    let ack = frames.iter().find(|frame| is(frame, "intentAck") && frame["event"]["intent"] == intent);
    ack.unwrap()["event"]["outcome"].clone()
}

fn surface(text: &str) -> (String, String) {
    ("test".to_owned(), text.to_owned())
}

/// Submits and waits for the acknowledgement.
fn acknowledged(client: &mut Client, session: &str, intent: &str, text: &str) -> Value {
    client.submit(session, intent, text);
    outcome(&client.until_ack(intent), intent)
}

#[test]
fn a_rewritten_input_is_what_is_recorded_and_answered() {
    let sandbox = Sandbox::new();
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "rewrite me");
    assert_eq!(user_words(&frames), [surface("rewritten")]);
    let expected = [
        "itemCompleted user [req_1]",
        "turnStarted submit 1",
        "intentAck req_1 turnStarted [req_1]",
        "itemStarted assistant running",
    ];
    assert_eq!(shapes(&frames)[..4], expected);
    let answer = frames.iter().rfind(|frame| is(frame, "itemCompleted")).unwrap();
    assert_eq!(answer["event"]["item"]["body"]["text"], "rewritten");
    let asked = &seen(&judge, "hook/decide")[0];
    let (id, payload) = (&asked["id"], &asked["payload"]["input"]);
    assert_eq!((id, &asked["point"]), (&json!("judge"), &json!("submit")));
    assert_eq!(payload["text"], "rewrite me");
    assert_eq!(asked["site"]["session"], session);
    assert!(asked["site"].get("turn").is_none(), "no turn is open yet: {asked}");
}

#[test]
fn words_may_become_a_command() {
    let sandbox = Sandbox::new();
    let script = r#"
def decide(params):
    given = params["payload"]["input"]
    return {"outcome": {"kind": "continue"}, "value": {"kind": "input", "input": {**given, "text": "/nothing"}}}

serve({"hooks": [{"id": "h", "points": ["submit"]}]}, hook_decide=decide)
"#;
    let hook = plugin(&sandbox, "hook", script);
    let mut client = echo_server(&sandbox, &[&hook], &[]);
    let session = titled(&mut client, &sandbox);
    let rejected = acknowledged(&mut client, &session, "req_1", "words");
    assert_eq!(rejected["error"]["message"], "unknown command: /nothing");
}

#[test]
fn a_refusal_rejects_the_intent_with_its_reason_and_opens_no_turn() {
    let sandbox = Sandbox::new();
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let session = titled(&mut client, &sandbox);
    for word in ["deny", "block"] {
        client.submit(&session, word, word);
        let frames = client.until_ack(word);
        assert_eq!(shapes(&frames), [format!("intentAck {word} rejected PERMISSION_DENIED [{word}]")]);
        let error = &frames[0]["event"]["outcome"]["error"];
        assert_eq!(error["message"], "Denied by hook judge:judge: not today");
    }
    // A person is not asked about words: the third outcome that takes a reason counts as none.
    let frames = client.turn(&session, "req_2", "ask");
    assert_eq!(user_words(&frames), [surface("ask")]);
    assert_eq!(client.open(&session)["items"].as_array().unwrap().len(), 2, "nothing of what was refused");
}

/// Rule 3.6.47.
#[test]
fn a_redirected_input_wakes_the_other_session_and_leaves_no_trace_here() {
    let sandbox = Sandbox::new();
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let (here, there) = (titled(&mut client, &sandbox), titled(&mut client, &sandbox));
    client.submit(&here, "req_1", &format!("to {there}"));
    // Two streams, in any order between them.
    let mut frames = Vec::new();
    let done = |frames: &[Value]| {
        let has = |kind: &str| frames.iter().any(|frame| is(frame, kind));
        has("turnCompleted")
            && frames.iter().any(|frame| is(frame, "intentAck") && frame["session"] == here.as_str())
    };
    while !done(&frames) {
        frames.push(client.event());
    }
    assert_eq!(outcome(&frames, "req_1"), json!({ "kind": "applied", "result": { "redirected": there } }));
    let (mine, theirs): (Vec<Value>, Vec<Value>) =
        frames.into_iter().partition(|frame| frame["session"] == here.as_str());
    assert_eq!(shapes(&mine), ["intentAck req_1 applied [req_1]"]);
    assert_eq!(user_words(&theirs), [surface("from elsewhere")], "as the hook changed it");
    assert!(shapes(&theirs).contains(&"turnStarted peer 1".to_owned()), "{:?}", shapes(&theirs));
    let lost = acknowledged(&mut client, &here, "req_2", "to ses_nowhere");
    assert_eq!(lost["error"]["code"], "SESSION_NOT_FOUND");
}

/// Mends 9.1.22.
#[test]
fn inputs_keep_their_order_while_a_hook_thinks() {
    let sandbox = Sandbox::new();
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", "wait");
    wait_for_seen(&judge, "hook/decide", 1);
    for (intent, text) in [("req_2", "second"), ("req_3", "deny"), ("req_4", "fourth")] {
        client.submit(&session, intent, text);
    }
    assert_eq!(client.open(&session)["items"], json!([]), "nothing overtakes the first");
    std::fs::write(judge.join("go"), "").unwrap();
    let mut words = Vec::new();
    let mut acks = Vec::new();
    while words.len() < 3 {
        let frames = [client.event()];
        words.extend(user_words(&frames).into_iter().map(|(_, text)| text));
        acks.extend(shapes(&frames).into_iter().filter(|shape| shape.starts_with("intentAck")));
    }
    assert_eq!(words, ["wait", "second", "fourth"]);
    let denied = acks.iter().position(|ack| ack.starts_with("intentAck req_3 rejected PERMISSION_DENIED"));
    let second = acks.iter().position(|ack| ack.starts_with("intentAck req_2"));
    assert!(second < denied, "{acks:?}");
    let texts = seen(&judge, "hook/decide");
    let asked: Vec<&Value> = texts.iter().map(|params| &params["payload"]["input"]["text"]).collect();
    assert_eq!(asked, ["wait", "second", "deny", "fourth"], "one after another");
}

#[test]
fn an_interrupt_takes_inputs_off_their_way_before_a_turn_opens() {
    let sandbox = Sandbox::new();
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", "wait");
    wait_for_seen(&judge, "hook/decide", 1);
    client.submit(&session, "req_2", "behind it");
    client.interrupt(&session, "req_x");
    let frames = client.until_ack("req_x");
    let expected = [
        "intentAck req_1 rejected NOT_READY [req_1]",
        "intentAck req_2 rejected NOT_READY [req_2]",
        "intentAck req_x applied [req_x]",
    ];
    assert_eq!(shapes(&frames), expected);
    std::fs::write(judge.join("go"), "").unwrap();
    let frames = client.turn(&session, "req_3", "after it");
    assert_eq!(user_words(&frames), [surface("after it")], "the late answer of the hook counts no more");
}

#[test]
fn the_end_of_the_server_refuses_what_is_with_the_hooks() {
    let sandbox = Sandbox::new();
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_1", "wait");
    wait_for_seen(&judge, "hook/decide", 1);
    assert_eq!(client.finish(), Some(0));
    let expected = ["intentAck req_1 rejected SESSION_CLOSED [req_1]", "sessionClosed shutdown"];
    assert_eq!(shapes(&sandbox.stored(&session))[2..], expected);
}

#[test]
fn a_late_hook_is_named_and_passed_over() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.judge.timeouts]\nhookDecide = 200\n");
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "wait for ever");
    assert_eq!(user_words(&frames), [surface("wait for ever")]);
    let late = "the hook judge:judge did not decide at `submit`: hook/decide got no answer within 200 ms \
                (sent, no answer); it goes on without";
    let mut told = notices(&frames, "HOOK_UNANSWERED");
    if told.is_empty() {
        let more = client.events_until(|frame| frame["event"]["item"]["body"]["code"] == "HOOK_UNANSWERED");
        told = notices(&more, "HOOK_UNANSWERED");
    }
    assert_eq!(told, [late]);
}

#[test]
fn a_hook_that_fails_refuses_where_the_settings_say_so() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.judge]\nonHookTimeout = \"deny\"\n");
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let session = titled(&mut client, &sandbox);
    let rejected = acknowledged(&mut client, &session, "req_1", "fail");
    assert_eq!(rejected["error"]["code"], "PERMISSION_DENIED");
    let words =
        "Denied by hook judge:judge: the hook `judge:judge` did not decide: out of order (code -32000)";
    assert_eq!(rejected["error"]["message"], words);
}

/// Rule 3.6.43.
#[test]
fn delivered_words_pass_no_hook() {
    let sandbox = Sandbox::new();
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let session = titled(&mut client, &sandbox);
    client.deliver(&session, "req_1", "deny", "wake");
    client.until("turnCompleted");
    assert!(seen(&judge, "hook/decide").is_empty());
}

#[test]
fn too_many_inputs_behind_a_hook_are_refused_and_the_others_keep_their_place() {
    let sandbox = Sandbox::new();
    let judge = plugin(&sandbox, "judge", JUDGE);
    let mut client = echo_server(&sandbox, &[&judge], &[]);
    let session = titled(&mut client, &sandbox);
    client.submit(&session, "req_0", "wait");
    for number in 1..MOST {
        client.submit(&session, &format!("req_{number}"), "deny");
    }
    let refused = acknowledged(&mut client, &session, "req_over", "one more");
    assert_eq!(refused["error"]["code"], "NOT_READY");
    std::fs::write(judge.join("go"), "").unwrap();
    let last = format!("req_{}", MOST - 1);
    let frames = client.until_ack(&last);
    assert_eq!(outcome(&frames, &last)["error"]["code"], "PERMISSION_DENIED");
    let denied = frames.iter().filter(|frame| frame["event"]["outcome"]["kind"] == "rejected").count();
    assert_eq!(denied, MOST - 1);
}
