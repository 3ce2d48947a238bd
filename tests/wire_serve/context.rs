//! What contributors add to requests: their three places, when words are recorded, and contributors that fail.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use super::{model, notices, plugin, requests, said, seen, server, settings, titled, user_words};
use crate::common::{Client, Sandbox, is, shapes};

const TOOL: &str = "plugin__tools__t";

/// A server with the model `py/m` and these plugins, and a session.
fn started(sandbox: &Sandbox, plugins: &[&PathBuf]) -> (Client, PathBuf, String) {
    let model = model(sandbox);
    let mut named: Vec<_> = plugins.iter().map(|plugin| plugin.as_path()).collect();
    named.push(&model);
    let mut client = server(sandbox, &named, &["--model", "py/m", "--allowed-tools", TOOL]);
    let session = titled(&mut client, sandbox);
    (client, model, session)
}

/// A contributor of system text of this order.
fn system(sandbox: &Sandbox, name: &str, id: &str, order: i32) -> PathBuf {
    let script = format!(
        r#"
text = {{"kind": "system", "text": "{name} {order}"}}
place = {{"kind": "system", "order": {order}}}
serve({{"contributors": [{{"id": "{id}", "placement": place}}]}}, context_contribute=lambda params: {{"pieces": [text]}})
"#
    );
    plugin(sandbox, name, &script)
}

fn system_texts(request: &Value) -> Vec<&str> {
    request["system"].as_array().unwrap().iter().map(|block| block["text"].as_str().unwrap()).collect()
}

/// Rule 4.4.35.
#[test]
fn system_texts_stand_behind_the_own_ones_by_their_order() {
    let sandbox = Sandbox::new();
    let [a, b, c] = [("a", 7), ("b", -3), ("c", 7)].map(|(name, order)| system(&sandbox, name, "s", order));
    let (mut client, model, session) = started(&sandbox, &[&c, &a, &b]);
    let frames = client.turn(&session, "req_1", "words");
    let request = &requests(&model)[0];
    let texts = system_texts(request);
    assert_eq!(texts[texts.len() - 3..], ["b -3", "a 7", "c 7"], "equal orders by the plugins' names");
    assert!(texts[0].starts_with("You are"), "{texts:?}");
    assert_eq!(user_words(&frames).len(), 1, "they are no items");
    assert_eq!(said(request), ["words"]);
    let query = &seen(&a, "context/contribute")[0]["query"];
    assert_eq!(query["session"]["id"], session);
    assert_eq!((&query["round"], &query["capabilities"]["contextWindow"]), (&json!(0), &json!(200_000)));
    assert_eq!(query["items"][0]["body"]["parts"][0]["text"], "words");
    assert_eq!(query["cwd"], sandbox.work().to_str().unwrap());
}

/// Rule 4.4.37.
#[test]
fn words_are_recorded_once_while_they_stay_and_again_when_they_change() {
    let sandbox = Sandbox::new();
    let script = r#"
def contribute(params):
    piece = {"kind": "user", "parts": [{"type": "text", "text": open("text").read()}], "label": "a label"}
    return {"pieces": [piece]}

serve({"contributors": [{"id": "news", "placement": {"kind": "roundStart"}}]}, context_contribute=contribute)
"#;
    let news = plugin(&sandbox, "news", script);
    std::fs::write(news.join("text"), "one").unwrap();
    let (mut client, model, session) = started(&sandbox, &[&news]);
    let contributed = |words: &str| ("contributor:news:news".to_owned(), words.to_owned());
    let person = |words: &str| ("test".to_owned(), words.to_owned());
    let frames = client.turn(&session, "req_1", "first");
    assert_eq!(user_words(&frames), [person("first"), contributed("one")]);
    let expected = [
        "turnStarted submit 1",
        "intentAck req_1 turnStarted [req_1]",
        "itemCompleted user",
        "itemStarted assistant running",
    ];
    assert_eq!(shapes(&frames)[1..5], expected, "it stands before the request");
    let frames = client.turn(&session, "req_2", "second");
    assert_eq!(user_words(&frames), [person("second")], "unchanged");
    std::fs::write(news.join("text"), "two").unwrap();
    let frames = client.turn(&session, "req_3", "third");
    assert_eq!(user_words(&frames), [person("third"), contributed("two")]);
    assert_eq!(seen(&news, "context/contribute").len(), 3, "it was asked each time");
    let requests = requests(&model);
    let last = requests.last().unwrap();
    assert_eq!(said(last), ["first", "one", "done", "second", "done", "third", "two"]);
}

/// Rule 4.4.36.
#[test]
fn a_barrier_is_asked_after_tool_results_only() {
    let sandbox = Sandbox::new();
    let tools =
        plugin(&sandbox, "tools", "serve({'tools': [TOOL]}, tool_call=lambda params: words('result'))\n");
    let script = r#"
def contribute(params):
    text = "%s in round %d" % (params["id"], params["query"]["round"])
    return {"pieces": [{"kind": "user", "parts": [{"type": "text", "text": text}], "label": "l"}]}

places = [{"id": "b", "placement": {"kind": "barrier"}}, {"id": "r", "placement": {"kind": "roundStart"}}]
serve({"contributors": places}, context_contribute=contribute)
"#;
    let both = plugin(&sandbox, "both", script);
    let (mut client, model, session) = started(&sandbox, &[&tools, &both]);
    let frames = client.turn(&session, "req_1", &format!("@tool {TOOL} {{}}"));
    let words: Vec<String> =
        user_words(&frames).into_iter().skip(1).map(|(surface, text)| surface + ": " + &text).collect();
    let expected = [
        "contributor:both:r: r in round 0",
        "contributor:both:b: b in round 0",
        "contributor:both:r: r in round 1",
    ];
    assert_eq!(words, expected);
    let shapes = shapes(&frames);
    let call = shapes.iter().position(|shape| shape == "itemCompleted toolCall completed").unwrap();
    assert_eq!(
        shapes[call + 1..call + 4],
        ["itemCompleted user", "itemCompleted user", "itemStarted assistant running"]
    );
    let requests = requests(&model);
    let last = &requests[1]["messages"].as_array().unwrap().last().unwrap()["parts"];
    assert_eq!(last[0]["type"], "toolResult", "the result comes first: {last}");
    assert_eq!((&last[1]["text"], &last[2]["text"]), (&json!("b in round 0"), &json!("r in round 1")));
}

/// Rule 1.2.14, 4.4.36.
#[test]
fn a_failing_and_a_late_contributor_are_named_and_the_round_goes_on() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.late.timeouts]\ncontextContribute = 200\n");
    let script = r#"
def contribute(params):
    if params["id"] == "late":
        wait_for("never")
    if params["id"] == "bad":
        return {"pieces": [{"kind": "user"}]}
    raise Refused("out of order")

place = {"kind": "roundStart"}
serve({"contributors": [{"id": "ID", "placement": place}]}, context_contribute=contribute)
"#;
    let [late, bad, fails] =
        ["late", "bad", "fails"].map(|name| plugin(&sandbox, name, &script.replace("ID", name)));
    let good = system(&sandbox, "good", "s", 0);
    let (mut client, model, session) = started(&sandbox, &[&late, &bad, &fails, &good]);
    let frames = client.turn(&session, "req_1", "words");
    let told = notices(&frames, "CONTRIBUTOR_FAILED");
    assert_eq!(told.len(), 3, "{told:#?}");
    assert!(
        told[0]
            .starts_with("the context of bad:bad is missing in this request: bad: context/contribute result"),
        "{told:?}"
    );
    assert!(told[0].contains("/pieces/0"), "{told:?}");
    assert_eq!(
        told[1],
        "the context of fails:fails is missing in this request: fails: out of order (code -32000)"
    );
    let late = "the context of late:late is missing in this request: late: context/contribute got no answer \
                within 200 ms (sent, no answer)";
    assert_eq!(told[2], late);
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    assert!(system_texts(&requests(&model)[0]).contains(&"good 0"), "the others' pieces are there");
}

#[test]
fn slow_contributors_are_asked_side_by_side() {
    let sandbox = Sandbox::new();
    // Each waits until all three were asked: one after the other, none would ever answer.
    let script = r#"
def contribute(params):
    open("../NAME-asked", "w").close()
    for name in ("a", "b", "c"):
        wait_for("../%s-asked" % name)
    return {"pieces": [{"kind": "system", "text": "NAME is here"}]}

place = {"kind": "system", "order": 0}
serve({"contributors": [{"id": "s", "placement": place}]}, context_contribute=contribute)
"#;
    let [a, b, c] = ["a", "b", "c"].map(|name| plugin(&sandbox, name, &script.replace("NAME", name)));
    let (mut client, model, session) = started(&sandbox, &[&a, &b, &c]);
    let frames = client.turn(&session, "req_1", "words");
    assert_eq!(notices(&frames, "CONTRIBUTOR_FAILED"), [""; 0]);
    let requests = requests(&model);
    assert!(system_texts(&requests[0]).ends_with(&["a is here", "b is here", "c is here"]));
}

/// Rule 4.1.4.
#[test]
fn an_interrupt_does_not_wait_for_a_contributor() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.slow.timeouts]\ncontextContribute = 600000\n");
    let script = r#"
place = {"kind": "system", "order": 0}
serve({"contributors": [{"id": "s", "placement": place}]}, context_contribute=lambda params: wait_for("never"))
"#;
    let slow = plugin(&sandbox, "slow", script);
    let (mut client, model, session) = started(&sandbox, &[&slow]);
    client.submit(&session, "req_1", "words");
    super::wait_for_seen(&slow, "context/contribute", 1);
    let began = Instant::now();
    client.interrupt(&session, "req_x");
    let frames = client.until("turnCompleted");
    assert!(began.elapsed().as_secs() < 30);
    let end = ["itemCompleted interruption completed", "turnCompleted interrupted userCancel"];
    assert!(shapes(&frames).ends_with(&end.map(str::to_owned)), "{:?}", shapes(&frames));
    assert!(!frames.iter().any(|frame| is(frame, "itemStarted")));
    assert!(requests(&model).is_empty());
}

#[test]
fn several_pieces_of_one_contributor_are_recorded_once_too() {
    let sandbox = Sandbox::new();
    let script = r#"
def contribute(params):
    texts = json.load(open("texts"))
    return {"pieces": [{"kind": "user", "parts": [{"type": "text", "text": text}], "label": "l"} for text in texts]}

serve({"contributors": [{"id": "c", "placement": {"kind": "roundStart"}}]}, context_contribute=contribute)
"#;
    let many = plugin(&sandbox, "many", script);
    let (mut client, _, session) = started(&sandbox, &[&many]);
    for (texts, recorded) in [
        (json!(["a", "b"]), vec!["a", "b"]),
        (json!(["a", "b"]), vec![]),
        (json!(["a", "c"]), vec!["a", "c"]),
        (json!([]), vec![]),
        (json!(["a", "c"]), vec![]),
    ] {
        std::fs::write(many.join("texts"), texts.to_string()).unwrap();
        let frames = client.turn(&session, &client.intent(), "words");
        let words: Vec<String> = user_words(&frames).into_iter().skip(1).map(|(_, text)| text).collect();
        assert_eq!(words, recorded, "{texts}");
    }
}
