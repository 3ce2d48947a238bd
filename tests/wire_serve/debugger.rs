//! A plugin under a real debugger: its deadlines stand still and that is said; its host's end does not wait for it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;

use serde_json::Value;

use super::{echo_server, items, notices, output, plugin, settings, titled};
use crate::common::{Client, LIMIT, Sandbox, is, program, wait_until};

const BYPASS: [&str; 2] = ["--permission-mode", "bypassPermissions"];

/// A tool behind a hook of its own.
const TOOL: &str = r#"
serve(
    {"tools": [TOOL], "hooks": [{"id": "h", "points": ["beforeTool"], "tool": "plugin__p__*"}]},
    tool_call=lambda params: words("done"),
    hook_decide=lambda params: {"outcome": {"kind": "continue"}},
)
"#;

/// A tool that never answers.
const HANGS: &str = r#"
serve({"tools": [TOOL]}, tool_call=lambda params: wait_for("never"))
"#;

/// A debugger that is attached to a process, which stands still, until it is told to let go.
struct Debugger(Child);

impl Debugger {
    #[track_caller]
    fn attach(sandbox: &Sandbox, pid: u64) -> Self {
        let mut command = program("gdb");
        command.args(["-q", "-nx", "-iex", "set auto-solib-add off", "-iex", "set debuginfod enabled off"]);
        command.args(["-p", &pid.to_string(), "-ex", r"echo it stands still\n"]).env("HOME", sandbox.home());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("this test needs gdb: {error}"));
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, attached) = channel();
        std::thread::spawn(move || {
            // Read to its end: a debugger whose words nobody reads would stand still too.
            for line in stdout.lines().map_while(Result::ok) {
                if line.contains("it stands still") {
                    let _ = sender.send(());
                }
            }
        });
        attached.recv_timeout(LIMIT).expect("gdb attaches");
        Self(child)
    }

    /// Lets the process go on without it.
    #[track_caller]
    fn detach(mut self) {
        self.0.stdin.take().unwrap().write_all(b"detach\nquit\n").unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        // It ends with its input; a test that fails does not wait for it.
        self.0.stdin = None;
        if !std::thread::panicking() {
            self.0.wait().unwrap();
        }
    }
}

/// The id of a plugin's process.
fn pid(client: &mut Client, name: &str) -> u64 {
    wait_until("the process is known", || {
        let read = client.call("catalog/read", serde_json::json!({ "kind": "plugins" }));
        let entries = read["entries"].as_array().unwrap();
        let meta = &entries.iter().find(|entry| entry["id"] == name).unwrap()["meta"];
        meta["pid"].as_u64().ok_or_else(|| meta.to_string())
    })
}

/// Reads the frames of a session up to its turn's end, and keeps those of others.
fn turn_of(client: &mut Client, session: &str, others: &mut Vec<Value>) -> Vec<Value> {
    let frames = client.events_until(|frame| is(frame, "turnCompleted") && frame["session"] == session);
    let (own, other) = frames.into_iter().partition(|frame| frame["session"] == session);
    others.extend::<Vec<Value>>(other);
    own
}

#[test]
fn no_deadline_fires_while_gdb_holds_the_plugin_and_that_is_said() {
    let sandbox = Sandbox::new();
    let short = "[supervisor.p.timeouts]\ntoolIdle = 1000\nhookDecide = 1000\n";
    settings(&sandbox, &format!("{short}[supervisor.w.timeouts]\ntoolIdle = 5000\n"));
    let (p, w) = (plugin(&sandbox, "p", TOOL), plugin(&sandbox, "w", HANGS));
    let mut client = echo_server(&sandbox, &[&p, &w], &BYPASS);
    let (held, witness) = (titled(&mut client, &sandbox), titled(&mut client, &sandbox));
    let debugger = Debugger::attach(&sandbox, pid(&mut client, "p"));
    client.submit(&held, "req_1", "@tool plugin__p__t {}");
    client.submit(&witness, "req_2", "@tool plugin__w__t {}");
    let mut frames = Vec::new();
    let late = turn_of(&mut client, &witness, &mut frames);
    assert_eq!(items(&late, "toolCall")[0]["status"], "failed", "five times as long as the plugin has");
    assert!(!frames.iter().any(|frame| is(frame, "turnCompleted")), "{frames:?}");
    debugger.detach();
    frames.extend(turn_of(&mut client, &held, &mut Vec::new()));
    assert_eq!(output(&frames)["parts"][0]["text"], "done");
    assert_eq!(notices(&frames, "HOOK_UNANSWERED"), [""; 0]);
    let told = "p: a debugger is attached to its process, so its deadlines stand still";
    assert_eq!(notices(&frames, "DEADLINES_HELD"), [told]);
    let told = "p: the debugger has let go of its process, so its deadlines run again";
    assert_eq!(notices(&frames, "DEADLINES_RUN"), [told]);
}

#[test]
fn the_host_ends_while_gdb_holds_a_plugin() {
    let sandbox = Sandbox::new();
    settings(&sandbox, "[supervisor.w.timeouts]\nstopClose = 100\nstopTerm = 100\n");
    let w = plugin(&sandbox, "w", HANGS);
    let mut client = echo_server(&sandbox, &[&w], &BYPASS);
    let session = titled(&mut client, &sandbox);
    let held = pid(&mut client, "w");
    let _debugger = Debugger::attach(&sandbox, held);
    client.submit(&session, "req_1", "@tool plugin__w__t {}");
    assert_eq!(client.finish(), Some(0));
    let state = std::fs::read_to_string(format!("/proc/{held}/status")).unwrap_or_default();
    assert!(state.is_empty() || state.contains("State:\tZ"), "{state}");
}
