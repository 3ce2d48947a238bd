//! What a project brings along does nothing before a person trusted it, nor after it changed.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::common::{Client, Sandbox, wait_until};

/// Says a word of a module beside it, and leaves a witness of each start.
const SCRIPT: &str = "import sys\nsys.path.insert(0, '.')\nfrom lib import WORD\nopen(os.environ['HOME'] + '/started', 'a').write('x')\nhello()\nwhile True:\n    message = read()\n    text(message, WORD)\n";

/// A project with the plugin `own`.
fn project(sandbox: &Sandbox) -> PathBuf {
    let made = sandbox.python("own", SCRIPT);
    let place = sandbox.work().join(".bingo/plugins/own");
    std::fs::create_dir_all(&place).unwrap();
    for file in ["main.py", "plugin.json"] {
        std::fs::copy(made.join(file), place.join(file)).unwrap();
    }
    std::fs::write(place.join("lib.py"), "WORD = 'one'\n").unwrap();
    place
}

fn starts(sandbox: &Sandbox) -> usize {
    std::fs::read(sandbox.home().join("started")).map_or(0, |witness| witness.len())
}

fn trust(sandbox: &Sandbox) {
    let ran = sandbox.run(["plugin", "trust", "--yes"]).expect(0);
    assert!(ran.stdout.ends_with("trusted, until something of it changes\n"), "{ran:#?}");
}

fn serve(sandbox: &Sandbox) -> Client {
    sandbox.serve(["--model", "echo/echo", "--permission-mode", "bypassPermissions"])
}

fn meta(client: &mut Client) -> Value {
    let entries = client.call("catalog/read", json!({ "kind": "plugins" }))["entries"].clone();
    entries.as_array().unwrap().iter().find(|entry| entry["id"] == "own").unwrap()["meta"].clone()
}

fn wait_for_state(client: &mut Client, expected: &str) -> Value {
    wait_until(&format!("it is {expected}"), || {
        let meta = meta(client);
        if meta["state"] == expected { Ok(meta) } else { Err(meta.to_string()) }
    })
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from));
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn a_projects_plugin_runs_when_it_is_trusted_and_until_any_file_of_it_changes() {
    let sandbox = Sandbox::new();
    let plugin = project(&sandbox);
    let mut client = serve(&sandbox);
    let reason = wait_for_state(&mut client, "untrusted")["reason"].as_str().unwrap().to_owned();
    let words =
        "it comes with the project and was never trusted; look at it, then run `bingo plugin trust own`";
    assert_eq!(reason, words);
    assert_eq!(starts(&sandbox), 0, "it never ran");
    // A host that runs hears of it.
    trust(&sandbox);
    wait_for_state(&mut client, "ready");
    assert_eq!(starts(&sandbox), 1);
    assert_eq!(client.finish(), Some(0));
    // It runs again as it was trusted: a run leaves nothing that counts.
    let mut client = serve(&sandbox);
    wait_for_state(&mut client, "ready");
    assert_eq!(starts(&sandbox), 2);
    // An imported module changes; the process dies, and no other one is started.
    edit(&plugin.join("lib.py"), "one", "two");
    let pid = meta(&mut client)["pid"].as_u64().unwrap();
    super::common::signal(u32::try_from(pid).unwrap(), "KILL");
    let reason = wait_for_state(&mut client, "untrusted")["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("it changed since it was trusted; look at it again"), "{reason}");
    assert_eq!(client.finish(), Some(0));
    let ran = sandbox.run(["--model", "echo/echo", "-p", "hi"]).expect(0);
    assert!(ran.stderr.contains("PROJECT_UNTRUSTED own is not started: it changed"), "{ran:#?}");
    assert_eq!(starts(&sandbox), 2);
    // Trusted anew it runs, and taken back it does not.
    trust(&sandbox);
    let mut client = serve(&sandbox);
    wait_for_state(&mut client, "ready");
    assert_eq!(client.finish(), Some(0));
    let _ = sandbox.run(["plugin", "untrust"]).expect(0);
    let mut client = serve(&sandbox);
    wait_for_state(&mut client, "untrusted");
    assert_eq!(starts(&sandbox), 3);
}

/// Lets the project's plugin have what it says made by a step.
fn with_a_step(plugin: &Path) {
    let step = "echo x >> \"$HOME/steps\"; echo \"WORD = 'made'\" > \"$PLUGIN_PREPARED/lib.py\"";
    let path = plugin.join("plugin.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    manifest["prepare"] = json!({ "command": "sh", "args": ["-c", step] });
    std::fs::write(path, manifest.to_string()).unwrap();
    std::fs::remove_file(plugin.join("lib.py")).unwrap();
    edit(&plugin.join("main.py"), "'.'", "os.environ['PLUGIN_PREPARED']");
}

#[test]
fn a_projects_step_is_run_when_it_is_trusted_and_changes_nothing_of_that() {
    let sandbox = Sandbox::new();
    let plugin = project(&sandbox);
    with_a_step(&plugin);
    let steps = || std::fs::read_to_string(sandbox.home().join("steps")).unwrap_or_default().lines().count();
    let mut client = serve(&sandbox);
    wait_for_state(&mut client, "untrusted");
    let ran = sandbox.run(["plugin", "trust"]).expect(2);
    assert!(ran.stdout.contains("          first runs ") && ran.stdout.contains("/sh -c echo x"), "{ran:#?}");
    assert_eq!((steps(), starts(&sandbox)), (0, 0), "nothing ran");
    trust(&sandbox);
    wait_for_state(&mut client, "ready");
    assert_eq!(client.finish(), Some(0));
    assert_eq!((steps(), starts(&sandbox)), (1, 1));
    let mut client = serve(&sandbox);
    wait_for_state(&mut client, "ready");
    assert_eq!(client.finish(), Some(0));
    assert_eq!((steps(), starts(&sandbox)), (1, 2), "it was trusted and prepared as it is");
    // Another step is another matter.
    edit(&plugin.join("plugin.json"), "'made'", "'other'");
    let mut client = serve(&sandbox);
    wait_for_state(&mut client, "untrusted");
    assert_eq!(client.finish(), Some(0));
    assert_eq!((steps(), starts(&sandbox)), (1, 2));
}

#[test]
fn an_untrusted_projects_settings_start_nothing_send_nothing_and_loosen_nothing() {
    let sandbox = Sandbox::new();
    let stress = sandbox.stress("");
    let file = sandbox.work().join(".bingo/settings.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(
        &file,
        "[permissions]\nallow = ['plugin__stress__echo']\n[supervisor.stress]\nenabled = false\n",
    )
    .unwrap();
    let prompt = r#"@tool plugin__stress__echo {"text":"hello"}"#;
    let run = |sandbox: &Sandbox| {
        sandbox.run(["--plugin", stress.to_str().unwrap(), "--model", "echo/echo", "-p", prompt])
    };
    let ran = run(&sandbox).expect(0);
    assert!(ran.stderr.contains("PROJECT_UNTRUSTED these keys of "), "{ran:#?}");
    assert!(ran.stderr.contains("do nothing: permissions, supervisor"), "{ran:#?}");
    assert!(ran.stderr.contains("Permission denied"), "{ran:#?}");
    trust(&sandbox);
    let ran = run(&sandbox).expect(0);
    assert!(ran.stderr.contains("tool not found"), "it is switched off now: {ran:#?}");
    std::fs::write(&file, "[permissions]\nallow = ['plugin__stress__echo']\n").unwrap();
    let ran = run(&sandbox).expect(0);
    assert!(ran.stderr.contains("Permission denied"), "it changed: {ran:#?}");
    trust(&sandbox);
    let ran = run(&sandbox).expect(0);
    assert!(ran.stderr.contains("plugin__stress__echo ok") && !ran.stderr.contains("UNTRUSTED"), "{ran:#?}");
}

#[test]
fn trust_asks_shows_and_names_what_it_does_not_know() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(["plugin", "trust", "--yes"]).expect(0);
    assert_eq!(ran.stdout, "the project brings nothing along that needs trust\n");
    project(&sandbox);
    let ran = sandbox.run(["plugin", "trust"]).expect(2);
    assert!(ran.stdout.contains("plugin    own in ") && ran.stdout.contains("main.py"), "{ran:#?}");
    assert!(ran.stdout.contains("          3 files, "), "{ran:#?}");
    let words = "error: there is no terminal to ask on: trust this?\nhint: look at it, then say `--yes`\n";
    assert_eq!(ran.stderr, words);
    let ran = sandbox.run(["plugin", "trust", "other", "--yes"]).expect(2);
    assert!(ran.stderr.contains("has no plugin `other`; it has own"), "{ran:#?}");
}

#[test]
fn the_config_schema_of_an_untrusted_plugin_is_not_compiled() {
    let sandbox = Sandbox::new();
    let plugin = project(&sandbox);
    let path = plugin.join("plugin.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    manifest["config"] = json!({ "type": "no such type" });
    std::fs::write(&path, manifest.to_string()).unwrap();
    let mut client = serve(&sandbox);
    let state = wait_until("it is known", || {
        let meta = meta(&mut client);
        if meta["state"] == "starting" { Err(meta.to_string()) } else { Ok(meta) }
    });
    assert_eq!(state["state"], "untrusted", "{state}");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_no_at_the_question_trusts_nothing_and_is_a_failure() {
    let sandbox = Sandbox::new();
    project(&sandbox);
    let ran = sandbox.run_on_terminal(["plugin", "trust"], "n\n").expect(1);
    assert!(
        ran.stdout.contains("trust this? [y/N] ") && ran.stdout.contains("nothing is trusted"),
        "{ran:#?}"
    );
    let ran = sandbox.run_on_terminal(["plugin", "trust"], "y\n").expect(0);
    assert!(ran.stdout.contains("trusted, until something of it changes"), "{ran:#?}");
}

/// Takes the trust back, and says whether there was some.
fn untrust(sandbox: &Sandbox, names: &[&str]) -> bool {
    let ran = sandbox.run([&["plugin", "untrust"], names].concat()).expect(0);
    ran.stdout == "not trusted any more; what runs goes on until it is started again\n"
}

#[test]
fn settings_are_forgotten_when_their_file_is_gone() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("work/.bingo/settings.toml", "provider = 'p'\n");
    trust(&sandbox);
    std::fs::remove_file(&file).unwrap();
    assert!(untrust(&sandbox, &[]));
    assert!(!untrust(&sandbox, &[]));
}

#[test]
fn a_plugin_is_forgotten_by_its_name_whatever_became_of_it() {
    let sandbox = Sandbox::new();
    let plugin = project(&sandbox);
    trust(&sandbox);
    edit(&plugin.join("plugin.json"), "{", "");
    assert!(untrust(&sandbox, &["own"]), "its manifest is broken");
    project(&sandbox);
    trust(&sandbox);
    std::fs::remove_dir_all(sandbox.work().join(".bingo")).unwrap();
    let ran = sandbox.run(["plugin", "untrust", "other"]).expect(2);
    assert!(ran.stderr.contains("has no plugin `other`; it has own"), "{ran:#?}");
    assert!(untrust(&sandbox, &["own"]), "its folder is gone");
    let ran = sandbox.run(["plugin", "untrust", "own"]).expect(2);
    assert!(ran.stderr.contains("has no plugin `own`; it has none"), "{ran:#?}");
}

#[test]
fn what_an_untrusted_project_is_listed_with_moves_no_cursor() {
    let sandbox = Sandbox::new();
    let plugin = project(&sandbox);
    let path = plugin.join("plugin.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    manifest["entry"]["args"] = json!(["main.py", "\u{1b}[2J\nplugin    harmless"]);
    std::fs::write(&path, manifest.to_string()).unwrap();
    sandbox.write("work/.bingo/settings.toml", "\"a\\u001B[1A\" = 1\n");
    let ran = sandbox.run(["plugin", "trust", "--yes"]).expect(0);
    assert!(ran.stdout.contains("main.py \\u{1b}[2J\\nplugin    harmless\n"), "{ran:#?}");
    assert!(ran.stdout.contains("(keys that count then: a\\u{1b}[1A)\n"), "{ran:#?}");
}
