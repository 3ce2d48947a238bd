//! `bingo session`: what a person does with what is stored.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::common::{Client, Sandbox, program, wait_until};

fn server(sandbox: &Sandbox) -> Client {
    sandbox.serve(["--model", "echo/echo"])
}

/// A closed session of one turn.
fn stored(sandbox: &Sandbox, words: &str) -> String {
    let mut client = server(sandbox);
    let (session, _) = client.create(&sandbox.work());
    client.turn(&session, "req_1", words);
    assert_eq!(client.finish(), Some(0));
    session
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn sessions_are_listed_shown_and_exported_also_while_a_host_holds_them() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, _) = client.create(&sandbox.work());
    client.turn(&session, "req_1", "some ```ticked``` words");
    let list = value(&sandbox.run(["session", "list", "--json"]).expect(0).stdout);
    assert_eq!(list["sessions"][0]["id"], json!(session));
    assert_eq!(list["problems"], json!([]));
    let table = sandbox.run(["session", "list"]).expect(0).stdout;
    assert!(table.starts_with("ID ") && table.contains(&session), "{table}");
    let shown = value(&sandbox.run(["session", "show", &session, "--json"]).expect(0).stdout);
    assert_eq!(shown, list["sessions"][0]);
    let facts = sandbox.run(["session", "show", &session]).expect(0).stdout;
    assert!(facts.starts_with(&format!("id        {session}\n")), "{facts}");
    let text = sandbox.run(["session", "export", &session]).expect(0).stdout;
    let (head, said) = text.split_once("\n## User").unwrap();
    assert!(head.starts_with("# some ```ticked``` words\n\nSession `ses_"), "the title: {text}");
    assert!(
        said.ends_with("\n\nsome ```ticked``` words\n\n## Assistant\n\nsome ```ticked``` words\n"),
        "{text}"
    );
    let export = ["session", "export", &session, "--format", "json", "-o", "out.json"];
    assert_eq!(sandbox.run(export).expect(0).stdout, "");
    let exported = value(&std::fs::read_to_string(sandbox.work().join("out.json")).unwrap());
    assert_eq!(exported["items"], client.open(&session)["items"]);
    let again = sandbox.run(export).expect(1);
    assert!(again.stderr.starts_with("error: cannot write out.json: File exists"), "{}", again.stderr);
    let unknown = sandbox.run(["session", "show", "ses_no"]).expect(2);
    let expected = "error: session ses_no is not stored\nhint: `bingo session list` shows what is stored\n";
    assert_eq!(unknown.stderr, expected);
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_held_session_is_neither_renamed_nor_deleted_and_its_holder_is_named() {
    let sandbox = Sandbox::new();
    let mut client = server(&sandbox);
    let (session, _) = client.create(&sandbox.work());
    client.turn(&session, "req_1", "words");
    let holder = format!("is open elsewhere (by process {}, bingo, since 2", client.pid());
    for order in [&["session", "rename", &session, "new"][..], &["session", "delete", &session, "--yes"]] {
        let refused = sandbox.run(order).expect(1);
        assert!(refused.stderr.contains(&holder), "{}", refused.stderr);
    }
    let kept = sandbox.run(["session", "gc", "--older-than", "0"]).expect(0);
    assert!(kept.stdout.is_empty() && kept.stderr.contains(&holder), "{kept:?}");
    assert_eq!(client.finish(), Some(0));
    sandbox.run(["session", "rename", &session, "a new name"]).expect(0).stdout.clear();
    let mut client = server(&sandbox);
    assert_eq!(client.open(&session)["summary"]["title"], "a new name");
    client.turn(&session, "req_2", "and on");
    assert_eq!(client.finish(), Some(0));
    let refused = sandbox.run(["session", "delete", &session]).expect(2);
    assert!(refused.stderr.contains("say `--yes`"), "{}", refused.stderr);
    let deleted = sandbox.run(["session", "delete", &session, "--yes"]).expect(0);
    assert_eq!(deleted.stdout, format!("deleted {session}\n"));
    assert!(!sandbox.journal(&session).exists());
}

#[test]
fn verify_names_each_fault_of_each_session() {
    let sandbox = Sandbox::new();
    let (broken, sound) = (stored(&sandbox, "one"), stored(&sandbox, "two"));
    let path = sandbox.journal(&broken);
    let mut bytes = std::fs::read(&path).unwrap();
    let ends: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b'\n').collect();
    for line in [2, 4] {
        bytes[ends[line - 1] + 20] ^= 1;
    }
    std::fs::write(&path, &bytes).unwrap();
    let found = value(&sandbox.run(["session", "verify", "--json"]).expect(1).stdout);
    let of = |id: &str| {
        found["sessions"].as_array().unwrap().iter().find(|one| one["session"] == id).unwrap().clone()
    };
    assert_eq!(of(&sound)["faults"], json!([]));
    let fault = |line: usize| {
        let reason = "its checksum does not fit";
        json!({ "file": path, "line": line + 1, "offset": ends[line - 1] + 1, "reason": reason })
    };
    assert_eq!(of(&broken)["faults"], json!([fault(2), fault(4)]));
    let text = sandbox.run(["session", "verify", &broken]).expect(1).stdout;
    assert!(text.starts_with(&format!("{broken}: 2 faults, ")), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
    sandbox.run(["session", "verify", &sound]).expect(0).stdout.clear();
    let refused = sandbox.run(["session", "export", &broken]).expect(1);
    assert!(refused.stderr.contains("hint: `bingo session verify`"), "{}", refused.stderr);
}

#[test]
fn gc_removes_what_is_old_enough_and_says_so() {
    let sandbox = Sandbox::new();
    let session = stored(&sandbox, "words");
    sandbox.run(["session", "gc"]).expect(0).stdout.clear();
    assert_eq!(sandbox.run(["session", "gc", "--older-than", "1"]).expect(0).stdout, "");
    let gc = ["session", "gc", "--older-than", "0", "--dry-run"];
    let would = sandbox.run(gc).expect(0).stdout;
    assert!(would.starts_with(&format!("would remove {session}: last written 2")), "{would}");
    assert!(sandbox.journal(&session).exists());
    let removed = sandbox.run(&gc[..4]).expect(0).stdout;
    assert_eq!(removed, would.replace("would remove", "removed"));
    assert!(!sandbox.journal(&session).exists());
}

#[test]
fn gc_keeps_so_many_or_so_much_and_what_somebody_has_open() {
    let sandbox = Sandbox::new();
    let sessions = ["one", "two", "three"].map(|words| stored(&sandbox, words));
    let [second, third, first] = &sessions;
    let mut client = server(&sandbox);
    client.open(first);
    let spec = json!({ "cwd": sandbox.work(), "parent": { "session": first } });
    let child = client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    let child = child["session"].as_str().unwrap();
    assert_eq!(sandbox.run(["session", "gc", "--size", "1"]).expect(0).stdout, "");
    let removed = sandbox.run(["session", "gc", "--keep", "2"]).expect(0).stdout;
    assert!(removed.starts_with(&format!("removed {second}: last written 2")), "{removed}");
    assert!(sandbox.journal(third).exists());
    let kept = sandbox.run(["session", "gc", "--keep", "0"]).expect(0);
    assert!(kept.stdout.starts_with(&format!("removed {third}: last written 2")), "{}", kept.stdout);
    assert!(kept.stderr.starts_with(&format!("note: kept: session {first} is open elsewhere")), "{kept:?}");
    assert!(sandbox.journal(first).exists() && sandbox.journal(child).exists());
    assert_eq!(client.finish(), Some(0));
    let newest = stored(&sandbox, "four");
    let removed = sandbox.run(["session", "gc", "--size", "0"]).expect(0).stdout;
    assert!(removed.starts_with(&format!("removed {first} and its child session: ")), "{removed}");
    let left = value(&sandbox.run(["session", "list", "--json"]).expect(0).stdout);
    assert_eq!(
        (left["sessions"][0]["id"].as_str(), left["sessions"][1].is_null()),
        (Some(newest.as_str()), true)
    );
}

/// Rule 7.10, where a person asks for it.
#[test]
fn a_host_collects_at_its_start_but_at_most_once_a_day() {
    let sandbox = Sandbox::new();
    let sessions = ["one", "two", "three"].map(|words| stored(&sandbox, words));
    sandbox.write(sandbox.config().join("settings.toml"), "[retention]\nsessions = 2\n");
    let stamp = sandbox.data().join("sessions/gc.stamp");
    let mut client = server(&sandbox);
    wait_until("the host has collected", || {
        stamp.exists().then_some(()).ok_or_else(|| "no stamp".to_owned())
    });
    let exist = || sessions.each_ref().map(|session| sandbox.journal(session).exists());
    assert_eq!(exist(), [false, true, true]);
    let (fourth, _) = client.create(&sandbox.work());
    client.turn(&fourth, "req_1", "four");
    assert_eq!(client.finish(), Some(0));
    let fifth = stored(&sandbox, "five");
    assert_eq!(exist(), [false, true, true], "the last collection is not a day ago");
    let file = std::fs::File::options().append(true).open(&stamp).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(25 * 3600)).unwrap();
    let mut client = server(&sandbox);
    wait_until("the host has collected again", || {
        let age = stamp.metadata().unwrap().modified().unwrap().elapsed().unwrap_or_default();
        (age < Duration::from_secs(3600)).then_some(()).ok_or_else(|| format!("the stamp is {age:?} old"))
    });
    assert_eq!(exist(), [false; 3]);
    assert!(sandbox.journal(&fourth).exists() && sandbox.journal(&fifth).exists());
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_tree_is_deleted_however_few_files_may_be_open() {
    let sandbox = Sandbox::new();
    let root = stored(&sandbox, "words");
    let mut client = server(&sandbox);
    client.open(&root);
    let spec = json!({ "cwd": sandbox.work(), "parent": { "session": root } });
    for _ in 0..40 {
        client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    }
    assert_eq!(client.finish(), Some(0));
    let order = sandbox.command(["session", "delete", &root, "--yes"]);
    let few = program("sh")
        .args(["-c", "ulimit -Sn 24; exec \"$@\"", "sh"])
        .arg(order.get_program())
        .args(order.get_args())
        .env("HOME", sandbox.home())
        .output()
        .unwrap();
    assert!(few.status.success(), "{few:?}");
    assert_eq!(String::from_utf8(few.stdout).unwrap().lines().count(), 41);
    assert!(!sandbox.journal(&root).exists());
}

#[test]
fn frontends_hear_of_what_is_collected() {
    let sandbox = Sandbox::new();
    let sessions = ["one", "two"].map(|words| stored(&sandbox, words));
    sandbox.write(sandbox.config().join("settings.toml"), "[retention]\nsessions = 1\n");
    // The next collection is due when the client has long subscribed.
    let stamp = std::fs::File::create(sandbox.data().join("sessions/gc.stamp")).unwrap();
    stamp.set_modified(SystemTime::now() - Duration::from_secs(24 * 3600 - 8)).unwrap();
    let mut client = server(&sandbox);
    client.call("gateway/subscribe", json!({}));
    assert!(sandbox.journal(&sessions[0]).exists(), "collected before the client could hear of it");
    let heard = loop {
        let event = client.gateway_event();
        if event["type"] == "sessionRemoved" {
            break event;
        }
    };
    assert_eq!(heard["session"], sessions[0].as_str());
    assert!(sandbox.journal(&sessions[1]).exists());
    assert_eq!(client.finish(), Some(0));
}
