//! Hooks around tools and at the end of a turn: `beforeTool`, `afterTool` and `stop`; what they can change, and that
//! they can only tighten.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use super::{echo_server, items, notices, output, plugin, seen, settings, titled, user_words};
use crate::common::{Client, Sandbox, is, shapes};

const TOOL: &str = "plugin__tools__t";

/// A tool that says back its input.
const TOOLS: &str = r#"
serve({"tools": [TOOL]}, tool_call=lambda params: words(json.dumps(params["input"], sort_keys=True)))
"#;

/// Decides before a tool what the key `do` of its input says.
const GUARD: &str = r#"
def decide(params):
    call = params["payload"]["call"]
    do = call["input"].get("do")
    if do == "late":
        wait_for("go")
    if do == "fail":
        raise Refused("out of order")
    outcome = {"kind": "continue"}
    if do in ("deny", "block", "ask"):
        outcome = {"kind": do, "reason": "because"}
    elif do == "redirect":
        outcome = {"kind": "redirect", "session": params["site"]["session"]}
    elif do == "allow":
        outcome = {"kind": "allow"}
    changed = {**call, "name": "another", "input": {**call["input"], "seen": True}}
    return {"outcome": outcome, "value": {"kind": "call", "call": changed}}

serve({"hooks": [{"id": "guard", "points": ["beforeTool"]}]}, hook_decide=decide)
"#;

fn guarded(sandbox: &Sandbox, args: &[&str]) -> (Client, PathBuf, PathBuf, String) {
    let (tools, guard) = (plugin(sandbox, "tools", TOOLS), plugin(sandbox, "guard", GUARD));
    let mut client = echo_server(sandbox, &[&tools, &guard], args);
    let session = titled(&mut client, sandbox);
    (client, tools, guard, session)
}

fn call(input: &Value) -> String {
    format!("@tool {TOOL} {input}")
}

fn text(output: &Value) -> &str {
    output["parts"][0]["text"].as_str().unwrap()
}

#[test]
fn a_rewritten_input_reaches_the_tool_and_is_shown() {
    let sandbox = Sandbox::new();
    let (mut client, tools, guard, session) = guarded(&sandbox, &["--allowed-tools", TOOL]);
    let frames = client.turn(&session, "req_1", &call(&json!({ "a": 1 })));
    let input = json!({ "a": 1, "seen": true });
    let started = frames.iter().find(|frame| is(frame, "itemStarted")).unwrap();
    assert_eq!(started["event"]["item"]["body"]["input"], json!({ "a": 1 }), "as the model wrote it");
    let running = frames.iter().find(|frame| is(frame, "itemUpdated")).unwrap();
    assert_eq!(running["event"]["item"]["body"]["input"], input);
    assert_eq!(running["event"]["item"]["body"]["name"], TOOL, "a hook cannot make it another tool");
    assert_eq!(items(&frames, "toolCall")[0]["body"]["input"], input);
    assert_eq!(seen(&tools, "tool/call")[0]["input"], input);
    let asked = &seen(&guard, "hook/decide")[0];
    assert_eq!((&asked["point"], &asked["payload"]["call"]["name"]), (&json!("beforeTool"), &json!(TOOL)));
    assert_eq!(asked["site"]["turn"], started["event"]["item"]["turn"]);
}

/// Rule 4.3.23, 4.3.24.
#[test]
fn a_refused_call_fails_without_a_question_or_a_receipt() {
    let sandbox = Sandbox::new();
    let (mut client, tools, _, session) = guarded(&sandbox, &[]);
    for kind in ["deny", "block"] {
        let frames = client.turn(&session, &client.intent(), &call(&json!({ "do": kind })));
        let expected = ["itemStarted toolCall pending", "turnUsage", "itemCompleted toolCall failed"];
        assert_eq!(shapes(&frames)[3..6], expected);
        assert_eq!(text(output(&frames)), "Denied by hook guard:guard: because");
        assert_eq!(items(&frames, "toolCall")[0]["body"]["durationMs"], 0);
        assert!(items(&frames, "permissionReceipt").is_empty());
        assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed", "the turn goes on");
    }
    assert!(seen(&tools, "tool/call").is_empty());
}

#[test]
fn a_hook_that_wants_a_person_asks_even_where_everything_is_allowed() {
    let sandbox = Sandbox::new();
    let (mut client, tools, _, session) = guarded(&sandbox, &["--permission-mode", "bypassPermissions"]);
    client.submit(&session, "req_1", &call(&json!({ "do": "ask" })));
    let question = client.until("interactionOpened").last().unwrap()["event"]["interaction"].clone();
    assert_eq!(question["kind"]["summary"], "because");
    assert_eq!(question["answers"], json!(["allowOnce", "deny"]), "there is nothing to remember");
    assert!(question["kind"].get("sessionScope").is_none(), "{question}");
    assert!(seen(&tools, "tool/call").is_empty(), "nothing runs before the answer");
    client.answer(&session, "req_2", &question["id"], &json!({ "kind": "allowOnce" }));
    let frames = client.until("turnCompleted");
    assert_eq!(items(&frames, "permissionReceipt")[0]["body"]["decision"], "allow");
    assert_eq!(text(output(&frames)), r#"{"do": "ask", "seen": true}"#);
    client.submit(&session, "req_3", &call(&json!({ "do": "ask" })));
    let question = client.until("interactionOpened").last().unwrap()["event"]["interaction"].clone();
    client.answer(&session, "req_4", &question["id"], &json!({ "kind": "deny" }));
    assert_eq!(text(output(&client.until("turnCompleted"))), "Permission denied by the user");
    assert_eq!(seen(&tools, "tool/call").len(), 1);
}

/// Rule 4.3.23, 4.3.24.
#[test]
fn nothing_that_a_hook_says_allows_what_the_policy_denies() {
    let sandbox = Sandbox::new();
    let (mut client, tools, guard, session) = guarded(&sandbox, &["--permission-mode", "dontAsk"]);
    let denial = "Permission denied (no rule allows it, and in dontAsk mode nobody is asked)";
    for word in ["continue", "redirect", "ask", "allow"] {
        let frames = client.turn(&session, &client.intent(), &call(&json!({ "do": word })));
        assert_eq!(text(output(&frames)), denial, "{word}");
        assert!(!frames.iter().any(|frame| is(frame, "interactionOpened")), "{word}");
    }
    assert_eq!(seen(&guard, "hook/decide").len(), 4);
    assert!(seen(&tools, "tool/call").is_empty());
}

#[test]
fn an_outcome_that_allows_does_not_exist_so_the_person_is_asked() {
    let sandbox = Sandbox::new();
    let (mut client, _, _, session) = guarded(&sandbox, &[]);
    client.submit(&session, "req_1", &call(&json!({ "do": "allow" })));
    let mut frames = client.until("interactionOpened");
    let question = frames.last().unwrap()["event"]["interaction"].clone();
    assert_eq!(
        question["kind"]["summary"],
        format!("{TOOL} {{\"do\":\"allow\"}}"),
        "its value is dropped too"
    );
    client.answer(&session, "req_2", &question["id"], &json!({ "kind": "deny" }));
    frames.extend(client.until("turnCompleted"));
    let told = notices(&frames, "HOOK_UNANSWERED");
    assert!(told[0].starts_with("the hook guard:guard did not decide at `beforeTool`: "), "{told:?}");
    assert!(told[0].contains("/outcome"), "{told:?}");
}

#[test]
fn a_hook_without_a_decision_lets_pass_or_refuses_as_the_settings_say() {
    for denies in [false, true] {
        let sandbox = Sandbox::new();
        let deny = if denies { "onHookTimeout = \"deny\"\n" } else { "" };
        settings(&sandbox, &format!("[supervisor.guard]\n{deny}timeouts = {{ hookDecide = 200 }}\n"));
        let (mut client, _, _, session) = guarded(&sandbox, &["--allowed-tools", TOOL]);
        let late = "hook/decide got no answer within 200 ms (sent, no answer)";
        let so =
            if denies { "it is refused, as its setting `onHookTimeout` says" } else { "it goes on without" };
        for (word, failure) in [("late", late), ("fail", "out of order (code -32000)")] {
            let frames = client.turn(&session, &client.intent(), &call(&json!({ "do": word })));
            let expected = if denies {
                format!("Denied by hook guard:guard: the hook `guard:guard` did not decide: {failure}")
            } else {
                format!("{{\"do\": \"{word}\"}}")
            };
            assert_eq!(text(output(&frames)), expected);
            let told = format!("the hook guard:guard did not decide at `beforeTool`: {failure}; {so}");
            assert_eq!(notices(&frames, "HOOK_UNANSWERED"), [told]);
        }
    }
}

#[test]
fn without_a_setting_a_silent_hook_holds_a_tool_up_once_for_five_seconds() {
    let sandbox = Sandbox::new();
    let (mut client, tools, _, session) = guarded(&sandbox, &["--allowed-tools", TOOL]);
    let begun = Instant::now();
    let frames = client.turn(&session, "req_1", &call(&json!({ "do": "late" })));
    let took = begun.elapsed();
    assert!((5..10).contains(&took.as_secs()), "{took:?}");
    assert_eq!(text(output(&frames)), r#"{"do": "late"}"#);
    let told = notices(&frames, "HOOK_UNANSWERED");
    let named = "the hook guard:guard did not decide at `beforeTool`: hook/decide got no answer within 5 s";
    assert!(told.len() == 1 && told[0].starts_with(named), "{told:?}");
    assert_eq!(seen(&tools, "tool/call").len(), 1);
}

/// Rule 4.1.4.
/// Mends 9.1.22.
#[test]
fn an_interrupt_does_not_wait_for_a_hook() {
    let sandbox = Sandbox::new();
    let (mut client, tools, guard, session) = guarded(&sandbox, &["--allowed-tools", TOOL]);
    client.submit(&session, "req_1", &call(&json!({ "do": "late" })));
    super::wait_for_seen(&guard, "hook/decide", 1);
    client.interrupt(&session, "req_x");
    let frames = client.until("turnCompleted");
    let end = ["itemCompleted toolCall interrupted", "itemCompleted interruption completed"];
    let shapes = shapes(&frames);
    assert_eq!(shapes[shapes.len() - 3..shapes.len() - 1], end);
    std::fs::write(guard.join("go"), "").unwrap();
    client.turn(&session, "req_2", "after it");
    assert!(seen(&tools, "tool/call").is_empty());
    assert!(notices(&frames, "HOOK_UNANSWERED").is_empty(), "nobody waited for it");
}

/// A hook that notes the points and tools it is asked at, with this declaration.
fn listener(sandbox: &Sandbox, name: &str, spec: &str) -> PathBuf {
    let script = format!(
        "serve({{'hooks': [{{'id': 'h', {spec}}}]}}, hook_decide=lambda params: {{'outcome': {{'kind': 'continue'}}}})\n"
    );
    plugin(sandbox, name, &script)
}

fn points(plugin: &Path) -> Vec<String> {
    let asked = ["hook/decide", "hook/observe"].map(|method| seen(plugin, method)).concat();
    asked.iter().map(|params| params["point"].as_str().unwrap().to_owned()).collect()
}

/// Rule 4.3.33.
#[test]
fn a_filter_is_an_exact_name_or_a_prefix_and_keeps_the_hook_to_tools() {
    let sandbox = Sandbox::new();
    let tools = plugin(&sandbox, "tools", TOOLS);
    let specs = [
        ("exact", "'tool': 'plugin__tools__t'", vec!["beforeTool", "afterTool"]),
        ("prefix", "'tool': 'plugin__tools__*'", vec!["beforeTool", "afterTool"]),
        ("other", "'tool': 'plugin__tools__tt'", vec![]),
        ("pattern", "'tool': 'plugin__.*__t'", vec![]),
        ("plain", "'tool': 't'", vec![]),
        (
            "listed",
            "'tool': '*', 'points': ['submit', 'stop', 'turn', 'session', 'event', 'afterTool']",
            vec!["afterTool"],
        ),
    ];
    let hooks: Vec<PathBuf> = specs.iter().map(|(name, spec, _)| listener(&sandbox, name, spec)).collect();
    let everything = listener(&sandbox, "everything", "'points': []");
    let plugins: Vec<&Path> = hooks.iter().chain([&tools, &everything]).map(PathBuf::as_path).collect();
    let mut client = echo_server(&sandbox, &plugins, &["--allowed-tools", TOOL]);
    let session = titled(&mut client, &sandbox);
    client.turn(&session, "req_1", &call(&json!({})));
    assert_eq!(client.finish(), Some(0));
    for ((name, _, expected), hook) in specs.iter().zip(&hooks) {
        assert_eq!(points(hook), *expected, "{name}");
    }
    let all = points(&everything);
    for point in ["submit", "beforeTool", "afterTool", "stop", "turn", "session", "event"] {
        assert!(all.iter().any(|seen| seen == point), "{point}: {all:?}");
    }
}

/// Rule 4.3.30.
#[test]
fn a_block_after_a_tool_ends_the_turn_after_its_round() {
    let sandbox = Sandbox::new();
    let tools = plugin(&sandbox, "tools", TOOLS);
    let script = r#"
def decide(params):
    ends = "ends" in params["payload"]["call"]["input"]
    return {"outcome": {"kind": "block" if ends else "deny", "reason": "enough"}}

serve({"hooks": [{"id": "enough", "points": ["afterTool"]}]}, hook_decide=decide)
"#;
    let enough = plugin(&sandbox, "enough", script);
    let mut client = echo_server(&sandbox, &[&tools, &enough], &["--allowed-tools", TOOL]);
    let session = titled(&mut client, &sandbox);
    let both = format!("{}\n{}", call(&json!({ "ends": 1 })), call(&json!({ "second": 2 })));
    let frames = client.turn(&session, "req_1", &both);
    assert_eq!(items(&frames, "toolCall").len(), 2, "the round goes on to its end");
    assert!(items(&frames, "toolCall").iter().all(|item| item["status"] == "completed"));
    assert!(items(&frames, "assistant").is_empty(), "the model is not asked again");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    let asked = seen(&enough, "hook/decide");
    assert_eq!(asked[1]["payload"]["output"]["parts"][0]["text"], r#"{"second": 2}"#);
    let frames = client.turn(&session, "req_2", &call(&json!({ "third": 3 })));
    let rounds: Vec<&Value> = items(&frames, "assistant").iter().map(|item| &item["round"]).collect();
    assert!(rounds.contains(&&json!(1)), "no other outcome ends it: {rounds:?}");
}

/// Rule 4.3.31.
#[test]
fn a_block_at_the_stop_runs_another_round_with_its_reason() {
    let sandbox = Sandbox::new();
    let script = r#"
asked = []

def decide(params):
    asked.append(params)
    if len(asked) < 3:
        return {"outcome": {"kind": "block", "reason": "once more %d" % len(asked)}}
    return {"outcome": {"kind": "deny", "reason": "means nothing here"}}

serve({"hooks": [{"id": "again", "points": ["stop"]}]}, hook_decide=decide)
"#;
    let again = plugin(&sandbox, "again", script);
    let mut client = echo_server(&sandbox, &[&again], &[]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "begin");
    let hook = |words: &str| ("hook:again:again".to_owned(), words.to_owned());
    let expected = [("test".to_owned(), "begin".to_owned()), hook("once more 1"), hook("once more 2")];
    assert_eq!(user_words(&frames), expected);
    let rounds: Vec<&Value> = items(&frames, "assistant").iter().map(|item| &item["round"]).collect();
    assert_eq!(rounds, [&json!(0), &json!(1), &json!(2)]);
    assert_eq!(items(&frames, "assistant")[2]["body"]["text"], "once more 2");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    let asked = seen(&again, "hook/decide");
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|params| params["point"] == "stop" && params.get("payload").is_none()));
}

#[test]
fn hooks_are_asked_in_the_order_of_their_plugins_and_the_first_refusal_ends_the_chain() {
    let sandbox = Sandbox::new();
    let tools = plugin(&sandbox, "tools", TOOLS);
    let script = r#"
def decide(params):
    call = params["payload"]["call"]
    trace = call["input"].get("trace", "") + "NAME" + params["id"]
    outcome = {"kind": "deny", "reason": "enough"} if call["input"].get("end") == "NAME" else {"kind": "continue"}
    return {"outcome": outcome, "value": {"kind": "call", "call": {**call, "input": {**call["input"], "trace": trace}}}}

serve({"hooks": [{"id": "2", "points": ["beforeTool"]}, {"id": "1", "points": ["beforeTool"]}]}, hook_decide=decide)
"#;
    let [a, b, c] = ["a", "b", "c"].map(|name| plugin(&sandbox, name, &script.replace("NAME", name)));
    let mut client = echo_server(&sandbox, &[&c, &a, &tools, &b], &["--allowed-tools", TOOL]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", &call(&json!({})));
    assert_eq!(text(output(&frames)), r#"{"trace": "a2a1b2b1c2c1"}"#);
    let frames = client.turn(&session, "req_2", &call(&json!({ "end": "b" })));
    assert_eq!(text(output(&frames)), "Denied by hook b:2: enough");
    assert_eq!(seen(&c, "hook/decide").len(), 2, "it was not asked the second time");
}

/// Rule 4.1.3.
#[test]
fn a_hook_that_never_lets_a_turn_stop_is_stopped_by_the_budget_of_rounds() {
    let sandbox = Sandbox::new();
    let script = r#"
outcome = {"kind": "block", "reason": "on"}
serve({"hooks": [{"id": "on", "points": ["stop"]}]}, hook_decide=lambda params: {"outcome": outcome})
"#;
    let on = plugin(&sandbox, "on", script);
    let mut client = echo_server(&sandbox, &[&on], &[]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "begin");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted failed TURN_BUDGET_EXHAUSTED");
    assert_eq!(items(&frames, "assistant").len(), 100);
}

#[test]
fn a_guard_that_dies_in_its_decision_still_refuses_where_the_settings_say_so() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.guard]\nonHookTimeout = \"deny\"\n");
    let tools = plugin(&sandbox, "tools", TOOLS);
    let script = r#"
serve({"hooks": [{"id": "g", "points": ["beforeTool"]}]}, hook_decide=lambda params: os._exit(3))
"#;
    let guard = plugin(&sandbox, "guard", script);
    let mut client = echo_server(&sandbox, &[&tools, &guard], &["--allowed-tools", TOOL]);
    let session = titled(&mut client, &sandbox);
    // Two calls of one response: the second finds the guard dead, in the plugins that the turn began with.
    let both = format!("{}\n{}", call(&json!({ "a": 1 })), call(&json!({ "b": 2 })));
    let frames = client.turn(&session, "req_1", &both);
    for item in items(&frames, "toolCall") {
        let words = text(&item["body"]["output"]);
        let start = "Denied by hook guard:g: the hook `guard:g` did not decide: ";
        assert!(words.starts_with(start), "{words}");
        assert!(words.contains("exited with code 3"), "{words}");
    }
    assert!(seen(&tools, "tool/call").is_empty());
}

#[test]
fn hooks_hear_of_a_call_as_the_hooks_before_left_it_and_of_failures_too() {
    let sandbox = Sandbox::new();
    let tools = plugin(
        &sandbox,
        "tools",
        "def fail(params):\n    raise Refused('broken')\n\nserve({'tools': [TOOL]}, tool_call=fail)\n",
    );
    let script = r#"
def decide(params):
    call = params["payload"]["call"]
    result = {"outcome": {"kind": "continue"}}
    if params["point"] == "beforeTool":
        result["value"] = {"kind": "call", "call": {**call, "input": {"new": 1}}}
    else:
        # Too late to change anything.
        result["value"] = {"kind": "call", "call": {**call, "input": {"newer": 2}}}
    return result

serve({"hooks": [{"id": "h", "points": ["beforeTool", "afterTool"]}]}, hook_decide=decide)
"#;
    let hook = plugin(&sandbox, "hook", script);
    let mut client = echo_server(&sandbox, &[&tools, &hook], &["--allowed-tools", TOOL]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", &call(&json!({ "old": 0 })));
    let after = &seen(&hook, "hook/decide")[1];
    assert_eq!(
        (&after["point"], &after["payload"]["call"]["input"]),
        (&json!("afterTool"), &json!({ "new": 1 }))
    );
    assert_eq!(after["payload"]["output"]["isError"], true);
    assert_eq!(after["payload"]["output"]["parts"][0]["text"], "tools: broken (code -32000)");
    assert_eq!(items(&frames, "toolCall")[0]["body"]["input"], json!({ "new": 1 }));
}
