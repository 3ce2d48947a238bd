//! Clients that do not read what they are sent: they lose their own place and nothing else.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::common::{Sandbox, fold, is, wait_until};

/// Requests of the flood: far more than may be under way at once.
const FLOOD: usize = 20_000;
/// The most memory that the server may take, in KiB. A debug build takes some 45 MiB here.
const MOST_MEMORY: u64 = 128 * 1024;

/// A server whose output is read only when the test does.
struct Raw {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Raw {
    fn spawn(sandbox: &Sandbox) -> Self {
        let mut command = sandbox.command(["serve", "--stdio", "--model", "echo/echo"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        let mut raw = Self { child, stdin, stdout };
        let client = json!({ "name": "raw", "surface": "test" });
        raw.call("initialize", json!({ "client": client, "protocol": 1 }));
        raw
    }

    fn send(&mut self, id: &str, method: &str, params: Value) {
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.send("call", method, params);
        loop {
            let message = self.line();
            if message["id"] == "call" {
                return message["result"].clone();
            }
        }
    }

    fn create(&mut self, sandbox: &Sandbox) -> (String, Value) {
        let spec = json!({ "cwd": sandbox.work(), "title": "t" });
        let opened = self.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
        (opened["session"].as_str().unwrap().to_owned(), opened["snapshot"].clone())
    }

    fn submit(&mut self, session: &str, text: &str) {
        let input = json!({ "kind": "text", "text": text, "origin": { "surface": "test" } });
        self.send(
            "submit",
            "session/submit",
            json!({ "session": session, "intent": "req_1", "input": input }),
        );
    }

    /// The server's resident memory in KiB.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn exit(&mut self) -> std::process::ExitStatus {
        wait_until("the server ended", || self.child.try_wait().unwrap().ok_or_else(|| "it runs".to_owned()))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Ended before, unless the test failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A turn of more frames than a subscriber's queue holds.
fn many_frames() -> String {
    "@tool none {}\n".repeat(2000)
}

/// Rule 5.1.6.
#[test]
fn a_client_that_floods_and_does_not_read_is_held_up_and_the_server_stays_small() {
    let sandbox = Sandbox::new();
    let mut raw = Raw::spawn(&sandbox);
    let (session, _) = raw.create(&sandbox);
    raw.submit(&session, &many_frames());
    let mut stdin = raw.stdin.take().unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let flood = std::thread::spawn(move || {
        for id in 0..FLOOD {
            let line = json!({ "jsonrpc": "2.0", "id": id, "method": "catalog/read",
                "params": { "kind": "skills" } });
            writeln!(stdin, "{line}").unwrap();
            counter.store(id + 1, Ordering::Relaxed);
        }
    });
    let mut last = (0, 0);
    wait_until("the flood stands still", || {
        let now = sent.load(Ordering::Relaxed);
        last = if now == last.0 && now > 0 { (now, last.1 + 1) } else { (now, 0) };
        (last.1 > 100).then_some(()).ok_or_else(|| format!("{last:?}"))
    });
    assert!(sent.load(Ordering::Relaxed) < FLOOD, "nothing held the client up");
    assert!(raw.memory() < MOST_MEMORY, "{} KiB", raw.memory());
    // Read on: every request is answered, and the server ends with its input.
    let mut answers = 0;
    while answers < FLOOD {
        if raw.line()["id"].is_number() {
            answers += 1;
        }
    }
    flood.join().unwrap();
    assert!(raw.memory() < MOST_MEMORY, "{} KiB", raw.memory());
    raw.stdout = None;
    assert!(matches!(raw.exit().code(), Some(0 | 141)));
}

/// Rule 3.2.16, 5.4.20.
#[test]
fn a_client_that_lagged_is_told_and_catches_up() {
    let sandbox = Sandbox::new();
    let mut raw = Raw::spawn(&sandbox);
    let (session, snapshot) = raw.create(&sandbox);
    raw.submit(&session, &many_frames());
    // Nothing is read until the journal shows the end of the turn.
    wait_until("the turn is over", || {
        let stored = std::fs::read_to_string(sandbox.journal(&session)).unwrap();
        stored.contains("\"turnCompleted\"").then_some(()).ok_or_else(|| format!("{} bytes", stored.len()))
    });
    let mut frames = Vec::new();
    while !frames.last().is_some_and(|frame| is(frame, "lagged")) {
        let message = raw.line();
        if message["method"] == "event" {
            frames.push(message["params"].clone());
        }
    }
    let lagged = frames.pop().unwrap();
    let state = fold(&snapshot, &frames);
    assert!(lagged["event"]["from"].as_u64().unwrap() > state.seq.0, "{lagged}");
    assert_eq!(raw.call("session/events", json!({ "session": session, "since": state.seq })), json!({}));
    while !frames.last().is_some_and(|frame| is(frame, "turnCompleted")) {
        let message = raw.line();
        assert_eq!(message["method"], "event", "{message}");
        frames.push(message["params"].clone());
    }
    let selector = json!({ "kind": "byId", "id": session });
    let server = raw.call("session/open", json!({ "selector": selector }))["snapshot"].clone();
    let mine = json!(fold(&snapshot, &frames));
    let newest = server["items"].as_array().unwrap();
    let all = mine["items"].as_array().unwrap();
    assert_eq!(all[all.len() - newest.len()..], newest[..], "a snapshot holds the newest items");
    for key in ["seq", "summary", "lastTurn", "context"] {
        assert_eq!(mine[key], server[key], "{key}");
    }
    raw.stdin = None;
    assert_eq!(raw.exit().code(), Some(0));
}

/// Rule 3.2.16, 3.2.18.
#[test]
fn a_client_of_a_tree_is_never_told_that_it_lagged() {
    let sandbox = Sandbox::new();
    let mut raw = Raw::spawn(&sandbox);
    let (root, _) = raw.create(&sandbox);
    let selector = json!({ "kind": "byId", "id": root });
    let options = json!({ "children": true });
    let snapshot =
        raw.call("session/open", json!({ "selector": selector, "options": options }))["snapshot"].clone();
    let spec = json!({ "cwd": sandbox.work(), "parent": { "session": root } });
    let selector = json!({ "kind": "create", "spec": spec });
    // Its frames come behind the reply, which waits for nobody.
    raw.send("child", "session/open", json!({ "selector": selector }));
    raw.submit(&root, &many_frames());
    wait_until("the turn is over", || {
        let stored = std::fs::read_to_string(sandbox.journal(&root)).unwrap();
        stored.contains("\"turnCompleted\"").then_some(()).ok_or_else(|| format!("{} bytes", stored.len()))
    });
    let (mut frames, mut children) = (Vec::new(), Vec::new());
    while !frames.last().is_some_and(|frame| is(frame, "turnCompleted")) || children.is_empty() {
        let message = raw.line();
        if message["method"] == "event" {
            let frame = message["params"].clone();
            assert!(!is(&frame, "lagged"), "{frame}");
            match frame["root"].is_null() && frame["session"] == root.as_str() {
                true => frames.push(frame),
                false => children.push(frame),
            }
        }
    }
    assert_eq!(children[0]["seq"], 1);
    let seqs =
        |frames: &[Value]| frames.iter().map(|frame| frame["seq"].as_u64().unwrap()).collect::<Vec<_>>();
    assert!(seqs(&frames).is_sorted_by(|one, other| one < other), "in order, and once");
    let (since, ephemeral) = (snapshot["seq"].as_u64(), ["itemDelta", "notice", "signal"]);
    frames.retain(|frame| !ephemeral.iter().any(|kind| is(frame, kind)));
    let stored: Vec<Value> =
        sandbox.stored(&root).into_iter().filter(|frame| frame["seq"].as_u64() > since).collect();
    assert_eq!(seqs(&frames), seqs(&stored));
    assert!(frames.len() > 4096, "more than a queue holds");
}

#[test]
fn a_server_whose_reader_is_gone_ends() {
    let sandbox = Sandbox::new();
    let mut raw = Raw::spawn(&sandbox);
    let (session, _) = raw.create(&sandbox);
    raw.stdout = None;
    raw.submit(&session, "are you there?");
    assert!(matches!(raw.exit().code(), Some(0 | 141)));
}

#[test]
fn a_client_that_never_reads_does_not_keep_the_server_from_ending() {
    let sandbox = Sandbox::new();
    let mut raw = Raw::spawn(&sandbox);
    // More than a pipe holds, and little enough that the server comes to the end of its input.
    let lines = "no json\n".repeat(700);
    raw.stdin.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
    raw.stdin = None;
    assert_eq!(raw.exit().code(), Some(141), "what it wrote was not read");
}
