//! Real disks that fail: one that is full, a file that nobody may write, syncs that end in an error. And the order in which
//! a server writes, syncs and tells (design §7).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Client, Sandbox, fold, is, program, shapes};

const ECHO: [&str; 2] = ["--model", "echo/echo"];

/// A file system of its own, so small that a test can fill it.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts one of 64 KiB.
    fn mount(path: &Path) -> Self {
        std::fs::create_dir_all(path).unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=64k", "none", path.to_str().unwrap()]);
        Self { path: path.to_owned() }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(program("umount").arg("-l").arg(&self.path).status());
    }
}

#[track_caller]
fn run(command: &str, args: &[&str]) {
    let output = program(command).args(args).output().unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(output.status.success(), "{command} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Submits words until the session closes for its storage; returns every frame.
fn until_storage_fails(client: &mut Client, session: &str, words: &str) -> Vec<Value> {
    let mut seen = Vec::new();
    for _ in 0..40 {
        let intent = client.intent();
        let input = json!({ "kind": "text", "text": words, "origin": { "surface": "test" } });
        client.send("session/submit", json!({ "session": session, "intent": intent, "input": input }));
        let ends = |frame: &Value| {
            let own = frame["session"] == session;
            own && (is(frame, "turnCompleted") || is(frame, "sessionClosed"))
        };
        seen.extend(client.events_until(ends));
        if seen.last().unwrap()["event"]["status"]["error"]["code"] == "STORAGE" {
            seen.extend(client.until("sessionClosed"));
        }
        if is(seen.last().unwrap(), "sessionClosed") {
            return seen;
        }
    }
    panic!("its storage never failed");
}

/// Clients were told in words that the session ended with its storage, and no turn is left open.
#[track_caller]
fn assert_told(seen: &[Value], words: &str) {
    let ends = |kind: &str| seen.iter().filter(|frame| is(frame, kind)).count();
    assert_eq!(ends("turnStarted"), ends("turnCompleted"), "no turn is left open");
    let [.., notice, closed] = seen else { panic!("{seen:?}") };
    assert_eq!(closed["event"]["reason"]["kind"], "error", "{closed}");
    assert!(closed["event"]["reason"]["message"].as_str().unwrap().contains(words), "{closed}");
    assert_eq!((&notice["event"]["type"], &notice["event"]["code"]), (&json!("notice"), &json!("STORAGE")));
}

/// What a client saw is stored, and the session goes on.
#[track_caller]
fn assert_opens_again(client: &mut Client, session: &str, snapshot: &Value, seen: &[Value]) {
    let reopened = client.open(session);
    assert_eq!(reopened["closed"], false);
    let known = fold(snapshot, seen);
    assert!(reopened["seq"].as_u64() > Some(known.seq.0));
    let items = reopened["items"].as_array().unwrap();
    for item in known.items.iter().filter(|item| item.status.is_terminal()) {
        assert!(items.contains(&json!(item)), "a frame was seen and is not stored: {}", item.id);
    }
    let intent = client.intent();
    let frames = client.turn(session, &intent, "there is room");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
}

/// Every line of a journal is a frame, and numbers only grow.
fn assert_sound(sandbox: &Sandbox, session: &str) {
    let seqs: Vec<u64> = sandbox.stored(session).iter().map(|frame| frame["seq"].as_u64().unwrap()).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
}

/// Mends 9.1.9.
#[test]
fn a_full_disk_closes_the_session_and_space_opens_it_again() {
    let sandbox = Sandbox::new();
    let sessions = sandbox.data().join("sessions");
    let _disk = SmallDisk::mount(&sessions);
    let filler = sessions.join("filler");
    std::fs::write(&filler, vec![0; 20_000]).unwrap();
    let mut client = sandbox.serve(ECHO);
    let (session, snapshot) = client.create(&sandbox.work());
    let seen = until_storage_fails(&mut client, &session, &"x".repeat(3_000));
    assert_told(&seen, "cannot write ");
    // Nothing hangs: whatever is asked now is answered.
    let input = json!({ "kind": "text", "text": "x", "origin": { "surface": "test" } });
    let id = client.send("session/submit", json!({ "session": session, "intent": "req_f", "input": input }));
    client.response(id);
    client.call("session/list", json!({}));
    std::fs::remove_file(filler).unwrap();
    assert_opens_again(&mut client, &session, &snapshot, &seen);
    assert_sound(&sandbox, &session);
    assert_eq!(client.finish(), Some(0));
}

/// A file that nobody may change, until this is dropped.
struct Immutable(PathBuf);

impl Immutable {
    fn new(path: PathBuf) -> Self {
        run("chattr", &["+i", path.to_str().unwrap()]);
        Self(path)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        drop(program("chattr").arg("-i").arg(&self.0).status());
    }
}

/// Mends 9.1.9.
#[test]
fn a_file_that_may_not_be_written_closes_its_session_alone() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve(ECHO);
    let (other, _) = client.create(&sandbox.work());
    let (session, snapshot) = client.create(&sandbox.work());
    let fixed = Immutable::new(sandbox.journal(&session));
    let seen = until_storage_fails(&mut client, &session, "words");
    assert_told(&seen, "Operation not permitted");
    let frames = client.turn(&other, "req_other", "others go on");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    let selector = json!({ "kind": "byId", "id": session });
    let error = client.fail("session/open", json!({ "selector": selector }));
    assert_eq!(error["data"]["code"], "STORAGE", "{error}");
    assert!(error["message"].as_str().unwrap().contains("journal.jsonl: Operation not permitted"), "{error}");
    drop(fixed);
    assert_opens_again(&mut client, &session, &snapshot, &seen);
    assert_sound(&sandbox, &session);
    assert_eq!(client.finish(), Some(0));
}

/// A server under `strace`, with these further arguments; its calls go to the file.
fn traced(sandbox: &Sandbox, args: &[&str], calls: &Path) -> Client {
    let own = sandbox.command(["serve", "--stdio"]);
    let mut command = program("strace");
    command
        .args(["-f", "-qq", "-o"])
        .arg(calls)
        .args(args)
        .arg(own.get_program())
        .args(own.get_args())
        .args(ECHO);
    command.env("HOME", sandbox.home()).env_remove("XDG_RUNTIME_DIR").current_dir(sandbox.work());
    let mut client = Client::spawn(command);
    client.initialize();
    client
}

/// Mends 9.1.9.
#[test]
fn a_sync_that_fails_closes_the_session_and_nothing_of_it_was_told() {
    for when in ["1+", "2+", "3+"] {
        let sandbox = Sandbox::new();
        let mut client = sandbox.serve(ECHO);
        let (session, snapshot) = client.create(&sandbox.work());
        client.turn(&session, "req_before", "before");
        assert_eq!(client.finish(), Some(0));
        let inject = format!("inject=fdatasync:error=EIO:when={when}");
        let calls = sandbox.work().join("calls");
        let mut client = traced(&sandbox, &["-e", "trace=fdatasync", "-e", &inject], &calls);
        let selector = json!({ "kind": "byId", "id": session });
        let id = client.send("session/open", json!({ "selector": selector }));
        let opened = client.response(id);
        let mut seen = Vec::new();
        if opened["error"].is_null() {
            seen = until_storage_fails(&mut client, &session, "words");
            assert_told(&seen, "cannot sync ");
        } else {
            assert_eq!(opened["error"]["data"]["code"], "STORAGE", "{opened}");
            assert!(opened["error"]["message"].as_str().unwrap().contains("Input/output error"), "{opened}");
        }
        assert_eq!(client.finish(), Some(0));
        assert!(std::fs::read_to_string(calls).unwrap().contains("EIO"), "{when}");
        let base = if seen.is_empty() { &snapshot } else { &opened["result"]["snapshot"] };
        let mut client = sandbox.serve(ECHO);
        assert_opens_again(&mut client, &session, base, &seen);
        assert_sound(&sandbox, &session);
        assert_eq!(client.finish(), Some(0));
    }
}

/// Returns where the first line is that holds all of these words, from `from` on.
#[track_caller]
fn line_with(lines: &[&str], from: usize, words: &[&str]) -> usize {
    let found = lines[from..].iter().position(|line| words.iter().all(|word| line.contains(word)));
    found.unwrap_or_else(|| panic!("no line after {from} has {words:?}:\n{}", lines.join("\n"))) + from
}

/// Design §7: published means stored.
/// Rule 1.1.7.
#[test]
fn what_is_acknowledged_was_written_and_synced_before() {
    for sync in ["turn", "frame"] {
        let sandbox = Sandbox::new();
        sandbox.write("home/.bingo/settings.toml", format!("journal.sync = \"{sync}\"\n"));
        let calls = sandbox.work().join("calls");
        let mut client = traced(&sandbox, &["-y", "-s", "100000", "-e", "trace=write,fdatasync"], &calls);
        let (session, _) = client.create(&sandbox.work());
        client.submit(&session, "req_turn", "so\n@wait 60000");
        client.until_ack("req_turn");
        client.submit(&session, "req_line", "a line");
        client.until_ack("req_line");
        client.interrupt(&session, "req_stop");
        client.until_ack("req_stop");
        client.until("turnCompleted");
        assert_eq!(client.finish(), Some(0));
        let text = String::from_utf8_lossy(&std::fs::read(&calls).unwrap()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        for intent in ["req_turn", "req_line", "req_stop"] {
            let written = line_with(&lines, 0, &["write(", "journal.jsonl", "intentAck", intent]);
            let synced = line_with(&lines, written + 1, &["fdatasync", "= 0"]);
            let told = line_with(&lines, 0, &["write(1<", "intentAck", intent]);
            assert!(written < synced && synced < told, "{sync}, {intent}: {written}, {synced}, {told}");
        }
    }
}
