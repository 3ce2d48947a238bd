//! The permission policy over a real plugin's tool: what settings, answers and `/permissions` let through.

use serde_json::{Value, json};

use super::{echo_server, plugin, titled};
use crate::common::{Client, Sandbox, is};

const TOOL: &str = "serve({'tools': [TOOL]}, tool_call=lambda params: words('ran'))";

struct Talk {
    client: Client,
    session: String,
    _sandbox: Sandbox,
}

impl Talk {
    fn new(settings: &str, args: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("home/.bingo/settings.toml", settings);
        let plugin = plugin(&sandbox, "p", TOOL);
        let mut client = echo_server(&sandbox, &[&plugin], args);
        let session = titled(&mut client, &sandbox);
        Self { client, session, _sandbox: sandbox }
    }

    /// What became of a call with this input: `ran`, `asked` with the offered scope, or the words of the refusal.
    fn call(&mut self, input: &Value) -> String {
        let intent = self.client.intent();
        self.client.submit(&self.session, &intent, &format!("@tool plugin__p__t {input}"));
        let is_end = |frame: &Value| is(frame, "turnCompleted") || is(frame, "interactionOpened");
        let frames = self.client.events_until(is_end);
        let last = frames.last().unwrap();
        if is(last, "interactionOpened") {
            let question = &last["event"]["interaction"];
            let scope = question["kind"]["sessionScope"].as_str().unwrap_or("nothing").to_owned();
            let offered = question["answers"].as_array().unwrap().contains(&json!("allowSession"));
            assert_eq!(offered, scope != "nothing", "{question}");
            let intent = self.client.intent();
            let answer = match offered {
                true => json!({ "kind": "allowSession", "scope": scope }),
                false => json!({ "kind": "deny" }),
            };
            self.client.answer(&self.session, &intent, &question["id"], &answer);
            self.client.until("turnCompleted");
            return format!("asked {scope}");
        }
        let mut calls = frames.iter().filter(|frame| frame["event"]["item"]["body"]["kind"] == "toolCall");
        let output = &calls.next_back().unwrap()["event"]["item"]["body"]["output"];
        output["parts"][0]["text"].as_str().unwrap().to_owned()
    }

    fn command(&mut self, line: &str) -> Vec<Value> {
        let intent = self.client.intent();
        self.client.submit(&self.session, &intent, line);
        self.client.until_ack(&intent)
    }
}

/// Rule 8.5.27, 8.5.29, 8.4.22.
#[test]
fn rules_deny_ask_and_allow_in_this_order() {
    let settings = "[permissions]\nallow = ['plugin__p__t(git:*)', 'plugin__p__t(src/**)', 'plugin__p__t(domain:example.com)']\n\
        deny = ['plugin__p__t(rm:*)']\nask = ['plugin__p__t(git push:*)']\n";
    for mode in ["default", "bypassPermissions"] {
        let mut talk = Talk::new(settings, &["--permission-mode", mode]);
        let denied = "Permission denied (the rule `plugin__p__t(rm:*)` denies it)";
        for (input, expected) in [
            (json!({ "command": "git status" }), "ran"),
            (json!({ "command": "git status && rm -rf x" }), denied),
            (json!({ "command": "git push --force" }), "asked nothing"),
            (json!({ "path": "src/a" }), "ran"),
            (json!({ "path": "src/.git/hooks/x" }), "asked nothing"),
            (json!({ "url": "https://example.com/a" }), "ran"),
        ] {
            assert_eq!(talk.call(&input), expected, "{mode}: {input}");
        }
        let free = talk.call(&json!({ "command": "make" }));
        assert_eq!(free, if mode == "default" { "asked plugin__p__t(make:*)" } else { "ran" });
        assert_eq!(talk.client.finish(), Some(0));
    }
}

/// Rule 8.5.30, 4.3.26, 4.3.27.
#[test]
fn what_was_allowed_for_the_session_is_that_and_no_more() {
    let mut talk = Talk::new("", &[]);
    assert_eq!(talk.call(&json!({ "command": "make test" })), "asked plugin__p__t(make test:*)");
    assert_eq!(talk.call(&json!({ "command": "make test -j2" })), "ran");
    assert_eq!(talk.call(&json!({ "command": "make clean" })), "asked plugin__p__t(make clean:*)");
    assert_eq!(talk.call(&json!({ "command": "make test; make install" })), "asked nothing");
    assert_eq!(talk.call(&json!({ "path": "a" })), "asked plugin__p__t(**)");
    assert_eq!(talk.call(&json!({ "path": "b/c" })), "ran");
    assert_eq!(talk.call(&json!({ "path": "../../etc/passwd" }))[..6], *"asked ");
    // Nothing of it is for another session.
    let other = json!({ "cwd": talk._sandbox.work(), "title": "t" });
    let opened = talk.client.call("session/open", json!({ "selector": { "kind": "create", "spec": other } }));
    talk.session = opened["session"].as_str().unwrap().to_owned();
    assert_eq!(talk.call(&json!({ "path": "a" })), "asked plugin__p__t(**)");
}

/// Rule 8.5.26, 8.5.28, 8.4.25, 8.1.5.
#[test]
fn the_mode_changes_in_one_session_and_is_shown() {
    let mut talk = Talk::new("", &[]);
    let frames = talk.command("/permissions plan");
    let outcome = &frames.last().unwrap()["event"]["outcome"];
    assert_eq!(outcome["result"]["message"], "mode: plan");
    let config = talk.client.until("configChanged").pop().unwrap();
    assert_eq!(config["event"]["config"]["plugins"]["bingo.permissions"]["mode"], "plan");
    let refused = talk.call(&json!({}));
    assert_eq!(refused, "Permission denied (in plan mode only trusted tools that read may run)");
    let shown = talk.command("/permission").pop().unwrap();
    assert_eq!(shown["event"]["outcome"]["result"]["view"]["rows"][0], json!(["mode", "plan"]));
    let unknown = talk.command("/permissions yolo").pop().unwrap();
    assert_eq!(unknown["event"]["outcome"]["error"]["code"], "INVALID_INPUT");
    talk.command("/permissions dontAsk");
    let refused = talk.call(&json!({}));
    assert_eq!(refused, "Permission denied (no rule allows it, and in dontAsk mode nobody is asked)");
    talk.command("/permissions bypassPermissions");
    assert_eq!(talk.call(&json!({})), "ran");
}
