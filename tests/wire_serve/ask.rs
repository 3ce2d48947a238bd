//! `bingo.host` `ask`: a plugin's question to the person of the tool call that it runs, and every way in which it may
//! not ask.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{echo_server, items, output, plugin, titled};
use crate::common::{Client, Sandbox, is, shapes, wait_until};

const TOOL: &str = "plugin__asker__t";

/// A tool that asks as its input says; its result is what came back. With `leave`, it ends while its question is open.
const ASKER: &str = r#"
CALLS = []

def ask(params):
    given = params["input"]
    CALLS.append(params["callId"])
    open("call", "w").write(params["callId"])
    named = {"own": params["callId"], "last": CALLS[0]}
    asked = given.get("call", "own")
    if asked == "theirs":
        asked = open("../asker/call").read()
    question = {"call": named.get(asked, asked), "question": given.get("question")}
    if given.get("leave"):
        threading.Thread(target=call, args=("bingo.host", "ask", question), daemon=True).start()
        wait_for("leave")
        return words("left")
    return words(json.dumps(call("bingo.host", "ask", question)))

serve({"tools": [TOOL]}, tool_call=ask)
"#;

fn asking(sandbox: &Sandbox) -> (Client, PathBuf, String) {
    let asker = plugin(sandbox, "asker", ASKER);
    let mut client = echo_server(sandbox, &[&asker], &["--allowed-tools", TOOL]);
    let session = titled(&mut client, sandbox);
    (client, asker, session)
}

fn question(more: &Value) -> Value {
    let options = json!([{ "id": "a", "label": "Apples" }, { "id": "b", "label": "Bread" }]);
    let mut question = json!({ "kind": "question", "question": "which?", "options": options });
    question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    question
}

fn prompt(input: &Value) -> String {
    format!("@tool {TOOL} {input}")
}

/// Submits a call of the tool and waits for its question.
fn asked(client: &mut Client, session: &str, input: &Value) -> Value {
    client.submit(session, &client.intent(), &prompt(input));
    client.until("interactionOpened").last().unwrap()["event"]["interaction"].clone()
}

/// What the plugin got, out of the tool's result.
fn got(frames: &[Value]) -> Value {
    serde_json::from_str(output(frames)["parts"][0]["text"].as_str().unwrap()).unwrap()
}

/// The responses that the plugin got to its own requests.
fn responses(plugin: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(plugin.join("seen")).unwrap();
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter(|message| message.get("method").is_none()).collect()
}

#[test]
fn the_answer_to_a_question_returns_to_the_tool_and_is_recorded() {
    let sandbox = Sandbox::new();
    let (mut client, _, session) = asking(&sandbox);
    let interaction = asked(&mut client, &session, &json!({ "question": question(&json!({})) }));
    assert_eq!(interaction["kind"]["kind"], "question");
    assert_eq!(interaction["kind"]["options"][1]["label"], "Bread");
    let open = client.open(&session);
    assert_eq!(open["interactions"], json!([interaction]), "whoever opens the session sees it");
    let call =
        open["items"].as_array().unwrap().iter().find(|item| item["body"]["kind"] == "toolCall").unwrap();
    assert_eq!((&interaction["item"], &interaction["turn"]), (&call["id"], &call["turn"]));
    assert_eq!(call["status"], "running");
    client.answer(&session, "req_2", &interaction["id"], &json!({ "kind": "choice", "ids": ["b"] }));
    let frames = client.until("turnCompleted");
    let expected = [
        "interactionResolved choice [req_2]",
        "intentAck req_2 applied [req_2]",
        "itemCompleted questionAnswer completed",
        "itemCompleted toolCall completed",
    ];
    assert_eq!(shapes(&frames)[..4], expected);
    assert_eq!(got(&frames), json!({ "answer": { "kind": "choice", "ids": ["b"] } }));
    let recorded = &items(&frames, "questionAnswer")[0]["body"];
    assert_eq!((&recorded["question"], &recorded["answer"]), (&json!("which?"), &json!("Bread")));
    assert_eq!(recorded["interaction"], interaction["id"]);
}

/// Rule 3.5.41.
#[test]
fn a_question_takes_the_answers_that_it_names() {
    let sandbox = Sandbox::new();
    let (mut client, _, session) = asking(&sandbox);
    let choice = json!({ "kind": "choice", "ids": ["a"] });
    let (text, cancel) = (json!({ "kind": "text", "text": "none" }), json!({ "kind": "cancel" }));
    let both = json!({ "kind": "choice", "ids": ["a", "b"] });
    for (more, specs, good, recorded) in [
        (json!({}), json!(["choice", "cancel"]), &choice, "Apples"),
        (json!({ "freeText": true }), json!(["choice", "text", "cancel"]), &text, "none"),
        (json!({ "options": [] }), json!(["text", "cancel"]), &text, "none"),
        (json!({ "multi": true }), json!(["choice", "cancel"]), &both, "Apples, Bread"),
        (json!({}), json!(["choice", "cancel"]), &cancel, "(no answer)"),
    ] {
        let interaction = asked(&mut client, &session, &json!({ "question": question(&more) }));
        assert_eq!(interaction["answers"], specs, "{more}");
        let unknown = json!({ "kind": "choice", "ids": ["c"] });
        let refused = [
            Some(&json!({ "kind": "allowOnce" })).cloned(),
            Some(unknown),
            (more["multi"] != true).then(|| both.clone()),
        ];
        for answer in refused.into_iter().flatten() {
            let intent = client.intent();
            client.answer(&session, &intent, &interaction["id"], &answer);
            let ack = client.until_ack(&intent);
            assert_eq!(
                shapes(&ack),
                [format!("intentAck {intent} rejected INVALID_INPUT [{intent}]")],
                "{answer}"
            );
        }
        let intent = client.intent();
        client.answer(&session, &intent, &interaction["id"], good);
        let frames = client.until("turnCompleted");
        assert_eq!(got(&frames), json!({ "answer": good }));
        assert_eq!(items(&frames, "questionAnswer")[0]["body"]["answer"], recorded);
        assert_eq!(output(&frames)["isError"], Value::Null, "a cancel is an answer");
    }
}

/// Rule 3.5.40.
#[test]
fn only_a_running_call_of_ones_own_can_ask() {
    let sandbox = Sandbox::new();
    let (asker, thief) = (plugin(&sandbox, "asker", ASKER), plugin(&sandbox, "thief", ASKER));
    let mut client = echo_server(&sandbox, &[&asker, &thief], &["--permission-mode", "bypassPermissions"]);
    let (session, other) = (titled(&mut client, &sandbox), titled(&mut client, &sandbox));
    let refusal = |call: &str| {
        let text =
            format!("`call` must be the callId of a tool call that this plugin runs now; `{call}` is none");
        json!({ "code": -32603, "message": text })
    };
    let interaction = asked(&mut client, &session, &json!({ "question": question(&json!({})) }));
    let first = std::fs::read_to_string(asker.join("call")).unwrap();
    // Another plugin, while the call runs.
    let theirs = json!({ "question": question(&json!({})), "call": "theirs" });
    client.submit(&other, "req_t", &prompt(&theirs).replace("asker", "thief"));
    let frames = client.until("turnCompleted");
    assert!(frames.iter().all(|frame| frame["session"] == other.as_str()), "{:?}", shapes(&frames));
    assert_eq!(got(&frames), refusal(&first));
    client.answer(&session, "req_2", &interaction["id"], &json!({ "kind": "cancel" }));
    client.until("turnCompleted");
    // The same plugin, after the call ended; and a call that never was.
    for (call, named) in [("last", first.as_str()), ("nobody", "nobody")] {
        let input = json!({ "question": question(&json!({})), "call": call });
        let frames = client.turn(&session, &client.intent(), &prompt(&input));
        assert_eq!(got(&frames), refusal(named));
        assert!(!frames.iter().any(|frame| is(frame, "interactionOpened")));
    }
}

#[test]
fn nothing_but_a_question_may_be_asked() {
    let sandbox = Sandbox::new();
    let (mut client, _, session) = asking(&sandbox);
    for kind in ["permission", "confirm", "login"] {
        let asked = json!({ "kind": kind, "tool": "t", "summary": "s", "title": "t", "detail": "d" });
        let frames = client.turn(&session, &client.intent(), &prompt(&json!({ "question": asked })));
        let text = format!("a plugin may ask a `question` only, not `{kind}`");
        assert_eq!(got(&frames), json!({ "code": -32603, "message": text }));
        assert!(!frames.iter().any(|frame| is(frame, "interactionOpened")));
    }
    let wrong = json!({ "kind": "question", "question": 7, "options": [] });
    let frames = client.turn(&session, "req_2", &prompt(&json!({ "question": wrong })));
    let message = got(&frames)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("/question"), "{message}");
}

#[test]
fn an_interrupt_closes_the_question_and_the_plugin_hears_it() {
    let sandbox = Sandbox::new();
    let (mut client, asker, session) = asking(&sandbox);
    let interaction = asked(&mut client, &session, &json!({ "question": question(&json!({})) }));
    client.interrupt(&session, "req_x");
    let frames = client.until("turnCompleted");
    let expected = [
        "interactionCancelled interrupted",
        "intentAck req_x applied [req_x]",
        "itemCompleted toolCall interrupted",
        "itemCompleted interruption completed",
        "turnCompleted interrupted userCancel",
    ];
    assert_eq!(shapes(&frames), expected);
    assert_eq!(frames[0]["event"]["id"], interaction["id"]);
    let answers = wait_until("an answer to the plugin", || {
        let answers = responses(&asker);
        if answers.is_empty() { Err(String::new()) } else { Ok(answers) }
    });
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["error"]["code"], -32603, "{answers:?}");
    client.answer(&session, "req_2", &interaction["id"], &json!({ "kind": "cancel" }));
    assert_eq!(shapes(&client.until_ack("req_2")), ["intentAck req_2 rejected INTERACTION_CLOSED [req_2]"]);
}

#[test]
fn a_tool_that_ends_first_takes_its_question_along() {
    let sandbox = Sandbox::new();
    let (mut client, asker, session) = asking(&sandbox);
    // The race of the call's end against its question's is tried a few times.
    for _ in 0..10 {
        let input = json!({ "question": question(&json!({})), "leave": true });
        let interaction = asked(&mut client, &session, &input);
        std::fs::write(asker.join("leave"), "").unwrap();
        let frames = client.until("turnCompleted");
        let expected = ["itemCompleted toolCall completed", "interactionCancelled superseded"];
        assert_eq!(shapes(&frames)[..2], expected);
        assert_eq!(frames[1]["event"]["id"], interaction["id"]);
        assert_eq!(client.open(&session)["interactions"], json!([]));
        assert!(items(&frames, "questionAnswer").is_empty());
        std::fs::remove_file(asker.join("leave")).unwrap();
    }
    let answers = wait_until("ten answers to the plugin", || {
        let answers = responses(&asker);
        if answers.len() == 10 { Ok(answers) } else { Err(format!("{answers:?}")) }
    });
    assert!(answers.iter().all(|answer| answer["error"]["code"] == -32603), "{answers:?}");
}

#[test]
fn several_questions_of_one_call_are_open_at_once() {
    let sandbox = Sandbox::new();
    let script = r#"
def ask(params):
    answers = {}

    def one(name):
        question = {"kind": "question", "question": name, "options": []}
        answers[name] = call("bingo.host", "ask", {"call": params["callId"], "question": question})["answer"]["text"]

    threads = [threading.Thread(target=one, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return words(json.dumps(answers, sort_keys=True))

serve({"tools": [TOOL]}, tool_call=ask)
"#;
    let asker = plugin(&sandbox, "asker", script);
    let mut client = echo_server(&sandbox, &[&asker], &["--allowed-tools", TOOL]);
    let session = titled(&mut client, &sandbox);
    let first = asked(&mut client, &session, &json!({}));
    let second = client.until("interactionOpened").last().unwrap()["event"]["interaction"].clone();
    for interaction in [second, first] {
        let text = format!("to {}", interaction["kind"]["question"].as_str().unwrap());
        let answer = json!({ "kind": "text", "text": text });
        client.answer(&session, &client.intent(), &interaction["id"], &answer);
    }
    let frames = client.until("turnCompleted");
    assert_eq!(got(&frames), json!({ "first": "to first", "second": "to second" }));
}

#[test]
fn where_nobody_can_answer_every_question_is_cancelled() {
    let sandbox = Sandbox::new();
    let script = r#"
def ask(params):
    answers = []

    def one(name):
        question = {"kind": "question", "question": name, "options": []}
        answers.append(call("bingo.host", "ask", {"call": params["callId"], "question": question}))

    threads = [threading.Thread(target=one, args=(str(number),)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return words("%d of %d" % (answers.count({"answer": {"kind": "cancel"}}), len(answers)))

serve({"tools": [TOOL]}, tool_call=ask)
"#;
    let asker = plugin(&sandbox, "asker", script);
    let prompt = prompt(&json!({}));
    let args =
        ["-p", "--model", "echo/echo", "--allowed-tools", TOOL, "--plugin", asker.to_str().unwrap(), &prompt];
    let ran = sandbox.run(args).expect(0);
    assert!(ran.stdout.contains("20 of 20"), "{ran:#?}");
}

#[test]
fn the_end_of_the_server_closes_an_open_question() {
    let sandbox = Sandbox::new();
    let (mut client, _, session) = asking(&sandbox);
    asked(&mut client, &session, &json!({ "question": question(&json!({})) }));
    assert_eq!(client.finish(), Some(0));
    let stored = shapes(&sandbox.stored(&session));
    let expected = [
        "interactionCancelled sessionClosed",
        "itemCompleted toolCall interrupted",
        "itemCompleted interruption completed",
        "turnCompleted interrupted shutdown",
        "sessionClosed shutdown",
    ];
    assert!(stored.ends_with(&expected.map(str::to_owned)), "{stored:#?}");
}
