//! `bingo plugin add` and `remove`, beside a host that runs.

use std::path::Path;

use serde_json::{Value, json};

use super::common::{Client, Sandbox, program, wait_until};

fn script(word: &str) -> String {
    format!("hello()\nwhile True:\n    text(read(), {word:?})\n")
}

fn state(client: &mut Client, name: &str) -> Option<Value> {
    let entries = client.call("catalog/read", json!({ "kind": "plugins" }))["entries"].clone();
    entries.as_array().unwrap().iter().find(|entry| entry["id"] == name).map(|entry| entry["meta"].clone())
}

fn wait_for(client: &mut Client, name: &str, check: impl Fn(Option<&Value>) -> bool) {
    wait_until(&format!("{name} is as it should be"), || {
        let state = state(client, name);
        check(state.as_ref()).then_some(()).ok_or_else(|| format!("{state:?}"))
    });
}

fn is_ready(state: Option<&Value>) -> bool {
    state.is_some_and(|state| state["state"] == "ready")
}

fn pack(folder: &Path, archive: &Path) {
    let (parent, name) = (folder.parent().unwrap(), folder.file_name().unwrap());
    let status = program("tar").arg("-czf").arg(archive).arg("-C").arg(parent).arg(name).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_folder_and_an_archive_are_added_replaced_and_removed_while_a_host_runs() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve(["--model", "echo/echo", "--permission-mode", "bypassPermissions"]);
    let (session, _) = client.create(&sandbox.work());
    let made = sandbox.python("own", &script("one"));
    let ran = sandbox.run(["plugin", "add", made.to_str().unwrap()]).expect(0);
    let place = sandbox.config().join("plugins/own");
    assert_eq!(ran.stdout, format!("own 1 is added in {}\n", place.display()));
    wait_for(&mut client, "own", is_ready);
    let said = |client: &mut Client| {
        let frames = client.turn(&session, &client.intent(), "@tool plugin__own__t {}");
        let text = frames.iter().find_map(|frame| {
            frame.pointer("/event/item/body/output/parts/0/text").and_then(Value::as_str).map(str::to_owned)
        });
        text.unwrap_or_else(|| format!("{frames:#?}"))
    };
    assert_eq!(said(&mut client), "one");
    // Once more, in a folder of another name inside an archive.
    sandbox.python("own", &script("two"));
    let archive = sandbox.work().join("own.tgz");
    pack(&made, &archive);
    let again = ["plugin", "add", archive.to_str().unwrap()];
    let ran = sandbox.run(again).expect(2);
    assert!(ran.stderr.contains("there is a plugin own already"), "{ran:#?}");
    let ran = sandbox.run(again.into_iter().chain(["--replace"])).expect(0);
    assert!(ran.stdout.starts_with("own 1 is replaced in "), "{ran:#?}");
    wait_until("it says two", || match said(&mut client) {
        word if word == "two" => Ok(()),
        word => Err(word),
    });
    let ran = sandbox.run(["plugin", "remove", "own"]).expect(2);
    assert!(ran.stderr.contains("there is no terminal to ask on: delete all of "), "{ran:#?}");
    drop(sandbox.run(["plugin", "remove", "own", "--yes"]).expect(0));
    wait_for(&mut client, "own", |state| state.is_none());
    assert!(!place.exists() && made.exists());
    let left = std::fs::read_dir(sandbox.config().join("plugins")).unwrap().count();
    assert_eq!(left, 0, "nothing unfinished is left");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn what_is_no_plugin_is_refused_in_words_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let bad =
        sandbox.write("work/bad/plugin.json", r#"{"name":"../x","version":"1","entry":{"command":"true"}}"#);
    let empty = sandbox.write("work/empty/note.txt", "");
    let zip = sandbox.write("work/own.zip", "PK\x03\x04");
    let wrong = sandbox.write("work/wrong/plugin.json", r#"{"name":"wrong","version":"1","entry":{}}"#);
    let parent = |path: &Path| path.parent().unwrap().to_owned();
    for (path, words) in [
        (parent(&bad), "`../x` cannot be a plugin's name"),
        (parent(&empty), "it holds no plugin.json"),
        (zip, "is no `.tar` and no `.tar.gz`"),
        (parent(&wrong), "plugin.json at /entry/command: expected string, got nothing"),
        (sandbox.work().join("none"), "there is nothing at "),
    ] {
        let ran = sandbox.run(["plugin", "add", path.to_str().unwrap()]).expect(2);
        assert!(ran.stderr.contains(words), "{ran:#?}");
    }
    assert_eq!(std::fs::read_dir(sandbox.config().join("plugins")).unwrap().count(), 0);
    let ran = sandbox.run(["plugin", "remove", "own", "--yes"]).expect(2);
    assert!(ran.stderr.contains("there is no plugin own in "), "{ran:#?}");
}

#[test]
fn of_a_linked_plugin_only_the_link_is_removed() {
    let sandbox = Sandbox::new();
    let made = sandbox.python("own", &script("one"));
    let plugins = sandbox.config().join("plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    std::os::unix::fs::symlink(&made, plugins.join("own")).unwrap();
    drop(sandbox.run(["plugin", "remove", "own", "--yes"]).expect(0));
    assert!(!plugins.join("own").is_symlink() && made.join("main.py").exists());
}
