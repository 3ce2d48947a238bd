//! What a client may rely on when it attaches again: the reply comes first, and numbers only grow behind it (kernel
//! rules 5.4).

use serde_json::{Value, json};

use crate::common::{Client, Sandbox, fold, is, program, shapes};

fn server(sandbox: &Sandbox) -> Client {
    sandbox.serve(["--model", "echo/echo"])
}

/// A model that goes on with words and calls, which are stored, until the test has seen enough.
const TALKS: &str = "
def delta(call, event):
    send({'method': 'provider/delta', 'params': {'call': call, 'event': event}})


send({'id': read()['id'], 'result': {'protocol': 5, 'name': 'model', 'version': '1', 'providers': [{'id': 'py', 'models': [{'id': 'm'}]}]}})
while True:
    message = read()
    if message.get('method') != 'provider/stream':
        continue
    call, number = message['params']['call'], 0
    delta(call, {'type': 'streamStart'})
    again = any(part['type'] == 'toolResult' for part in message['params']['request']['messages'][-1]['parts'])
    while not again and not os.path.exists('enough'):
        number += 1
        block = 'b%d' % number
        delta(call, {'type': 'textStart', 'id': block})
        for word in ['one ', 'two ']:
            delta(call, {'type': 'textDelta', 'id': block, 'delta': word})
        delta(call, {'type': 'textEnd', 'id': block})
        delta(call, {'type': 'toolCall', 'id': 'call-%d' % number, 'name': 'none', 'input': '{}'})
        time.sleep(0.002)
    reason = 'stop' if again else 'toolCalls'
    delta(call, {'type': 'finish', 'usage': {'inputTokens': 1, 'outputTokens': 1}, 'finishReason': {'unified': reason}})
    send({'id': message['id'], 'result': {}})
";

/// Reads some frames and asserts that each has a higher number than the one before.
#[track_caller]
fn assert_growing(client: &mut Client, after: &Value) -> Vec<Value> {
    let mut last = after.as_u64().unwrap();
    let mut frames = Vec::new();
    while frames.len() < 20 {
        let frame = client.event();
        let seq = frame["seq"].as_u64().unwrap();
        assert!(seq > last, "seq {seq} after {last}");
        last = seq;
        frames.push(frame);
    }
    frames
}

/// The first frame behind the sixth that is stored.
fn next_stored(frames: &[Value]) -> Option<&Value> {
    frames[6..].iter().find(|frame| !is(frame, "itemDelta")).map(|frame| &frame["seq"])
}

/// Rule 5.4.16, 5.4.17, 5.4.19.
#[test]
fn a_reply_to_open_or_events_ends_what_was_sent_before() {
    let sandbox = Sandbox::new();
    let model = sandbox.python("model", TALKS);
    let mut client = sandbox.serve(["--model", "py/m", "--plugin", model.to_str().unwrap()]);
    let (session, snapshot) = client.create(&sandbox.work());
    client.submit(&session, "req_1", "talk");
    client.until("itemStarted");
    for _ in 0..10 {
        let opened = client.open(&session);
        // Whatever came before the reply belongs to the attachment that it ends.
        client.events.clear();
        let seen = assert_growing(&mut client, &opened["seq"]);
        client.call("session/events", json!({ "session": session, "since": seen[5]["seq"] }));
        client.events.clear();
        let again = assert_growing(&mut client, &seen[5]["seq"]);
        let stored = again.iter().find(|frame| !is(frame, "itemDelta")).map(|frame| &frame["seq"]);
        assert!(next_stored(&seen).is_none_or(|next| stored == Some(next)), "{stored:?} is not next");
    }
    std::fs::write(model.join("enough"), "").unwrap();
    client.call("session/events", json!({ "session": session, "since": snapshot["seq"] }));
    client.events.clear();
    let all = client.until("turnCompleted");
    let mine = json!(fold(&snapshot, &all));
    let theirs = client.open(&session);
    assert_eq!(mine["lastTurn"], theirs["lastTurn"]);
    assert_eq!(mine["summary"], theirs["summary"]);
}

#[test]
fn a_session_is_open_as_soon_as_the_reply_says_so() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    for _ in 0..100 {
        let (session, _) = client.create(&sandbox.work());
        client.interrupt(&session, "req_x");
        client.until_ack("req_x");
        client.call("session/close", json!({ "session": session }));
    }
}

/// Rule 5.4.16.
#[test]
fn the_gateway_is_heard_from_the_reply_on() {
    let sandbox = Sandbox::new();
    for _ in 0..5 {
        let mut client = server(&sandbox);
        let (session, _) = client.create(&sandbox.work());
        client.call("gateway/subscribe", json!({}));
        client.send("session/delete", json!({ "session": session }));
        assert_eq!(client.gateway_event(), json!({ "type": "sessionRemoved", "session": session }));
    }
}

/// Rule 3.2.20, 5.2.12.
#[test]
fn a_closed_attachment_is_silent_and_the_session_runs_on() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, _) = client.create(&sandbox.work());
    client.submit(&session, "req_1", "@wait 60000");
    client.until_ack("req_1");
    client.call("session/close", json!({ "session": session }));
    client.events.clear();
    let input = json!({ "kind": "text", "text": "x", "origin": { "surface": "test" } });
    let error = client.fail("session/submit", json!({ "session": session, "intent": "i", "input": input }));
    assert_eq!(error["data"]["code"], "SESSION_NOT_FOUND");
    client.deliver(&session, "req_2", "unseen", "hold");
    let state = client.open(&session);
    assert!(client.events.is_empty(), "{:?}", client.events);
    assert_eq!(state["queue"][0]["preview"], "unseen");
    assert!(state["turn"].is_object(), "{state}");
    client.interrupt(&session, "req_3");
    client.until("turnCompleted");
}

#[test]
fn two_subscriptions_to_the_gateway_are_one() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    client.call("gateway/subscribe", json!({}));
    client.call("gateway/subscribe", json!({}));
    let (first, _) = client.create(&sandbox.work());
    client.call("session/delete", json!({ "session": first }));
    let kinds = [client.gateway_event()["type"].clone(), client.gateway_event()["type"].clone()];
    assert_eq!(kinds, ["sessionCreated", "sessionRemoved"]);
    client.call("session/list", json!({}));
    assert!(client.gateway.is_empty());
}

/// Rule 3.6.50.
#[test]
fn a_terminated_server_closes_its_sessions() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, _) = client.create(&sandbox.work());
    client.submit(&session, "req_1", "@wait 60000");
    client.until_ack("req_1");
    assert!(program("kill").args(["-TERM", &client.pid().to_string()]).status().unwrap().success());
    let code = client.exit_code();
    let stored = sandbox.stored(&session);
    let expected = ["turnCompleted interrupted shutdown", "sessionClosed shutdown"];
    assert_eq!(shapes(&stored[stored.len() - 2..]), expected, "it ended with {code:?}");
    assert!(stored.iter().filter(|frame| is(frame, "turnCompleted")).count() == 1);
    assert_eq!(code, Some(0));
}
