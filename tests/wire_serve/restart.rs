//! Plugins that die and come back, as a session sees it: it follows its provider, a turn its tools, and a dead guard
//! lets nothing pass.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{echo_server, items, model, notices, plugin, server, settings, titled};
use crate::common::{Sandbox, shapes};

const BYPASS: [&str; 2] = ["--permission-mode", "bypassPermissions"];

/// A tool that says its pid, or dies when its input says so; each start counts in the file `starts`.
const MORTAL: &str = r#"
with open("starts", "a") as file:
    file.write("x")
starts = os.path.getsize("starts")

def run(params):
    if params["input"].get("die"):
        os._exit(3)
    return words("process %d" % starts)

"#;

/// A tool that waits a moment.
const SLEEPER: &str = r#"
def run(params):
    time.sleep(params["input"]["seconds"])
    return words("slept")

serve({"tools": [TOOL]}, tool_call=run)
"#;

fn texts(frames: &[Value]) -> Vec<String> {
    let outputs =
        items(frames, "toolCall").into_iter().map(|item| &item["body"]["output"]["parts"][0]["text"]);
    outputs.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// A turn that kills a plugin by its tool, waits, and calls the tool again.
fn killed_and_called(serve: &str) -> Vec<String> {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.mortal]\nrestart = { delay = 50 }\n");
    let mortal = plugin(&sandbox, "mortal", &format!("{MORTAL}{serve}"));
    let sleeper = plugin(&sandbox, "sleeper", SLEEPER);
    let mut client = echo_server(&sandbox, &[&mortal, &sleeper], &BYPASS);
    let session = titled(&mut client, &sandbox);
    let calls = [
        ("mortal", json!({ "n": 1 })),
        ("mortal", json!({ "die": true })),
        ("sleeper", json!({ "seconds": 3 })),
        ("mortal", json!({ "n": 2 })),
    ];
    let lines = calls.map(|(name, input)| format!("@tool plugin__{name}__t {input}"));
    texts(&client.turn(&session, &client.intent(), &lines.join("\n")))
}

#[test]
fn a_turn_goes_on_with_a_tool_that_came_back_the_same() {
    let texts = killed_and_called("serve({'tools': [TOOL]}, tool_call=run)\n");
    assert_eq!(texts[0], "process 1");
    assert!(texts[1].starts_with("mortal: tool/call failed (sent, no answer)"), "{}", texts[1]);
    assert!(texts[1].contains("exited with code 3"), "{}", texts[1]);
    assert_eq!(texts[2..], ["slept", "process 2"]);
}

#[test]
fn a_tool_that_came_back_as_another_is_not_called() {
    let other = "serve({'tools': [{**TOOL, 'description': 'start %d' % starts}]}, tool_call=run)\n";
    let words = "plugin__mortal__t was not called: its plugin was restarted and has another version of it now, which \
                 the next turn can call";
    assert_eq!(killed_and_called(other)[3], words);
}

/// The model `py/m`, which dies in the middle of its first answer.
fn mortal_model(sandbox: &Sandbox) -> PathBuf {
    let model = model(sandbox);
    let path = model.join("main.py");
    let script = std::fs::read_to_string(&path).unwrap();
    let dying = r#"    delta({"type": "streamStart"})
    if not os.path.exists("died"):
        open("died", "w").close()
        os._exit(3)
"#;
    let script = script.replacen("    delta({\"type\": \"streamStart\"})\n", dying, 1);
    assert!(script.contains("died"));
    std::fs::write(path, script).unwrap();
    model
}

#[test]
fn a_session_follows_its_provider_to_its_next_process() {
    let sandbox = Sandbox::new();
    let model = mortal_model(&sandbox);
    let mut client = server(&sandbox, &[&model], &["--model", "py/m"]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "hello");
    let shapes = shapes(&frames);
    assert_eq!(shapes.last().unwrap(), "turnCompleted completed", "{shapes:?}");
    let tries: Vec<&Value> =
        frames.iter().map(|frame| &frame["event"]).filter(|event| event["type"] == "turnRetrying").collect();
    assert!(tries[0]["reason"].as_str().unwrap().contains("exited with code 3"), "{tries:?}");
    let client_frames = client.turn(&session, "req_2", "again");
    assert!(!client_frames.iter().any(|frame| frame["event"]["type"] == "turnRetrying"), "it is back");
}

#[test]
fn a_guard_that_stays_dead_refuses_in_every_turn() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.guard]\nonHookTimeout = \"deny\"\nrestart = { deaths = 1 }\n");
    let tools =
        plugin(&sandbox, "tools", "serve({'tools': [TOOL]}, tool_call=lambda params: words('at work'))\n");
    let guard = plugin(
        &sandbox,
        "guard",
        "serve({'hooks': [{'id': 'g', 'points': ['beforeTool']}]}, hook_decide=lambda params: os._exit(3))\n",
    );
    let mut client = echo_server(&sandbox, &[&tools, &guard], &BYPASS);
    let session = titled(&mut client, &sandbox);
    let mut told = Vec::new();
    for request in ["req_1", "req_2", "req_3"] {
        let frames = client.turn(&session, request, "@tool plugin__tools__t {}");
        let text = &texts(&frames)[0];
        assert!(text.starts_with("Denied by hook guard:g: the hook `guard:g` did not decide: "), "{text}");
        told.extend(notices(&frames, "PLUGIN_BROKEN"));
    }
    assert_eq!(told.len(), 1, "{told:?}");
}
