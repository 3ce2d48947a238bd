//! Settings that change while the host runs: what they say of plugins counts at once, for those that it is about.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{echo_server, items, notices, plugin, seen, settings, titled};
use crate::common::{Client, Sandbox, wait_until};

const BYPASS: [&str; 2] = ["--permission-mode", "bypassPermissions"];

/// A plugin whose tool says the word of its config and a variable.
fn teller(sandbox: &Sandbox, name: &str) -> PathBuf {
    let said = "(CONFIG[0] or {}).get('word', 'none') + ' ' + os.environ.get('MARK', '-')";
    plugin(sandbox, name, &format!("serve({{'tools': [TOOL]}}, tool_call=lambda params: words({said}))\n"))
}

/// How many processes of a plugin were greeted.
fn starts(plugin: &Path) -> usize {
    seen(plugin, "initialize").len()
}

fn meta(client: &mut Client, name: &str) -> Value {
    let entries = client.call("catalog/read", json!({ "kind": "plugins" }))["entries"].clone();
    entries.as_array().unwrap().iter().find(|entry| entry["id"] == name).unwrap()["meta"].clone()
}

#[track_caller]
fn wait_for_state(client: &mut Client, name: &str, expected: &str) {
    wait_until(&format!("{name} is {expected}"), || {
        let meta = meta(client, name);
        if meta["state"] == expected { Ok(()) } else { Err(meta.to_string()) }
    });
}

/// A server in whose turns tools are called, and all frames of them.
struct Talk {
    client: Client,
    session: String,
    frames: Vec<Value>,
}

impl Talk {
    fn new(sandbox: &Sandbox, mut client: Client) -> Self {
        let session = titled(&mut client, sandbox);
        Self { client, session, frames: Vec::new() }
    }

    fn say(&mut self, name: &str) -> String {
        let frames =
            self.client.turn(&self.session, &self.client.intent(), &format!("@tool plugin__{name}__t {{}}"));
        let said = items(&frames, "toolCall")[0]["body"]["output"]["parts"][0]["text"].clone();
        self.frames.extend(frames);
        said.as_str().unwrap().to_owned()
    }

    /// Calls the tool of a plugin until it says this.
    #[track_caller]
    fn wait_for(&mut self, name: &str, expected: &str) {
        wait_until(&format!("{name} says {expected}"), || {
            let said = self.say(name);
            if said == expected { Ok(()) } else { Err(said) }
        });
    }

    /// Takes turns until there are so many notices of this code; returns all of them.
    #[track_caller]
    fn wait_for_notices(&mut self, code: &str, count: usize) -> Vec<String> {
        wait_until(&format!("{count} of {code}"), || {
            let frames = self.client.turn(&self.session, &self.client.intent(), "on");
            self.frames.extend(frames);
            let told = notices(&self.frames, code);
            if told.len() >= count { Ok(told) } else { Err(format!("{told:?}")) }
        })
    }

    /// Ends the server and returns the notices of this code that came at all.
    fn finish(mut self, code: &str) -> Vec<String> {
        self.frames.extend(self.client.turn(&self.session, &self.client.intent(), "on"));
        assert_eq!(self.client.finish(), Some(0));
        notices(&self.frames, code)
    }
}

#[test]
fn a_changed_config_reaches_a_new_process_of_that_plugin_alone() {
    let sandbox = Sandbox::new();
    let (p, q) = (teller(&sandbox, "p"), teller(&sandbox, "q"));
    settings(&sandbox, "plugins.p.word = 'one'\nplugins.q.word = 'other'\n");
    let client = echo_server(&sandbox, &[&p, &q], &BYPASS);
    let mut talk = Talk::new(&sandbox, client);
    assert_eq!((talk.say("p").as_str(), talk.say("q").as_str()), ("one -", "other -"));
    settings(&sandbox, "plugins.p.word = 'two'\nplugins.q.word = 'other'\n");
    talk.wait_for("p", "two -");
    // What the kernel took at the start, and what is about no plugin, renews none.
    settings(&sandbox, "modle = 1\nmodel = 'x/y'\nplugins.p.word = 'two'\nplugins.q.word = 'other'\n");
    talk.wait_for_notices("UNKNOWN_SETTING", 1);
    assert_eq!(talk.say("q"), "other -");
    assert_eq!(talk.finish("UNKNOWN_SETTING").len(), 1);
    assert_eq!((starts(&p), starts(&q)), (2, 1));
}

#[test]
fn a_variable_that_the_settings_name_reaches_a_new_process() {
    let sandbox = Sandbox::new();
    let (p, q) = (teller(&sandbox, "p"), teller(&sandbox, "q"));
    let mut command = sandbox.command(["serve", "--stdio", "--model", "echo/echo"]);
    command.args(BYPASS).arg("--plugin").arg(&p).arg("--plugin").arg(&q).env("MARK", "marked");
    let mut client = Client::spawn(command);
    client.initialize();
    let mut talk = Talk::new(&sandbox, client);
    assert_eq!(talk.say("p"), "none -");
    settings(&sandbox, "[supervisor.p]\nenv = ['MARK']\n");
    talk.wait_for("p", "none marked");
    assert_eq!(talk.say("q"), "none -");
    settings(&sandbox, "");
    talk.wait_for("p", "none -");
    talk.finish("");
    assert_eq!((starts(&p), starts(&q)), (3, 1));
}

#[test]
fn enabled_switches_off_and_on_by_hand_and_by_command_and_starts_once() {
    let sandbox = Sandbox::new();
    let p = teller(&sandbox, "p");
    let client = echo_server(&sandbox, &[&p], &BYPASS);
    let mut talk = Talk::new(&sandbox, client);
    assert_eq!(talk.say("p"), "none -");
    settings(&sandbox, "supervisor.p.enabled = false\n");
    wait_for_state(&mut talk.client, "p", "disabled");
    assert_eq!(talk.say("p"), "tool not found: plugin__p__t");
    settings(&sandbox, "supervisor.p.enabled = true\n");
    talk.wait_for("p", "none -");
    assert_eq!(starts(&p), 2);
    // The command orders what the file, which it writes first, says soon after.
    drop(sandbox.run(["plugin", "disable", "p"]).expect(0));
    wait_for_state(&mut talk.client, "p", "disabled");
    settings(&sandbox, "modle = 1\nsupervisor.p.enabled = false\n");
    talk.wait_for_notices("UNKNOWN_SETTING", 1);
    let ran = sandbox.run(["plugin", "enable", "p"]).expect(0);
    assert!(ran.stdout.contains("p: generation "), "{ran:#?}");
    // This is heard of after that: another key is a new remark.
    settings(&sandbox, "moodel = 1\nsupervisor.p.enabled = true\n");
    talk.wait_for_notices("UNKNOWN_SETTING", 2);
    assert_eq!(talk.say("p"), "none -");
    assert_eq!(talk.finish("UNKNOWN_SETTING").len(), 2);
    assert_eq!(starts(&p), 3);
}

#[test]
fn settings_that_cannot_be_used_change_nothing_and_are_told_once() {
    let sandbox = Sandbox::new();
    let p = teller(&sandbox, "p");
    let one = "plugins.p.word = 'one'\n";
    settings(&sandbox, one);
    let client = echo_server(&sandbox, &[&p], &BYPASS);
    let mut talk = Talk::new(&sandbox, client);
    assert_eq!(talk.say("p"), "one -");
    let broken = [
        ("plugins.p.word = 'secret\n", "settings.toml is not TOML: TOML parse error at line 1, column "),
        ("[permissions]\ndefaultMode = 'sometimes'\n", "`permissions.defaultMode` does not fit"),
        ("[supervisor.p.limits]\nmemry = 1\n", "`supervisor.p.limits.memry` does not fit"),
    ];
    for (index, (text, words)) in broken.into_iter().enumerate() {
        settings(&sandbox, text);
        let told = talk.wait_for_notices("SETTINGS_UNUSABLE", index + 1);
        assert!(told[index].contains(words) && !told[index].contains("secret"), "{told:?}");
    }
    // A look at everything finds them as broken as before, and the plugin with the config that it had.
    let program = p.join("main.py");
    let script = std::fs::read_to_string(&program).unwrap();
    std::fs::write(&program, script.replace("'-'", "'mended'")).unwrap();
    talk.wait_for("p", "one mended");
    settings(&sandbox, "plugins.p.word = 'two'\n");
    talk.wait_for("p", "two mended");
    assert_eq!(talk.finish("SETTINGS_UNUSABLE").len(), 3);
    assert_eq!(starts(&p), 3);
}

#[test]
fn a_projects_settings_count_while_they_are_trusted() {
    let sandbox = Sandbox::new();
    let p = teller(&sandbox, "p");
    settings(&sandbox, "plugins.p.word = 'mine'\n");
    let client = echo_server(&sandbox, &[&p], &BYPASS);
    let mut talk = Talk::new(&sandbox, client);
    assert_eq!(talk.say("p"), "mine -");
    // Its folder comes while the host runs.
    sandbox.write("work/.bingo/settings.toml", "plugins.p.word = 'theirs'\n");
    let told = talk.wait_for_notices("PROJECT_UNTRUSTED", 1);
    assert!(told[0].contains("do nothing: plugins; "), "{told:?}");
    assert_eq!((talk.say("p").as_str(), starts(&p)), ("mine -", 1));
    drop(sandbox.run(["plugin", "trust", "--yes"]).expect(0));
    talk.wait_for("p", "theirs -");
    sandbox.write("work/.bingo/settings.toml", "plugins.p.word = 'evil'\n");
    talk.wait_for("p", "mine -");
    let told = talk.finish("PROJECT_UNTRUSTED");
    assert!(told.len() == 2 && told[1].contains("it changed since it was trusted"), "{told:?}");
    assert_eq!(starts(&p), 3);
}

#[test]
fn a_named_file_and_one_behind_a_link_are_watched() {
    let sandbox = Sandbox::new();
    let p = teller(&sandbox, "p");
    sandbox.write("dotfiles/mine.toml", "plugins.p.word = 'one'\n");
    std::fs::create_dir_all(sandbox.config()).unwrap();
    let link = sandbox.config().join("settings.toml");
    std::os::unix::fs::symlink("../../dotfiles/mine.toml", link).unwrap();
    let named = sandbox.write("elsewhere/named.toml", "");
    let args = [&BYPASS[..], &["--settings", named.to_str().unwrap()]].concat();
    let client = echo_server(&sandbox, &[&p], &args);
    let mut talk = Talk::new(&sandbox, client);
    assert_eq!(talk.say("p"), "one -");
    sandbox.write("dotfiles/mine.toml", "plugins.p.word = 'two'\n");
    talk.wait_for("p", "two -");
    sandbox.write("elsewhere/named.toml", "plugins.p.word = 'named'\n");
    talk.wait_for("p", "named -");
    // It was named, so that it is missed.
    std::fs::remove_file(&named).unwrap();
    let told = talk.wait_for_notices("SETTINGS_UNUSABLE", 1);
    assert!(told[0].contains("cannot read the settings file "), "{told:?}");
    assert_eq!(talk.say("p"), "named -");
    sandbox.write("elsewhere/named.toml", "");
    talk.wait_for("p", "two -");
    talk.finish("");
    assert_eq!(starts(&p), 4);
}

#[test]
fn a_folder_of_settings_that_another_one_replaced_is_watched_on() {
    let sandbox = Sandbox::new();
    let write = |text: &str| drop(sandbox.write("work/.bingo/settings.toml", text));
    let client = echo_server(&sandbox, &[], &BYPASS);
    let mut talk = Talk::new(&sandbox, client);
    write("provider = 'x'\n");
    talk.wait_for_notices("PROJECT_UNTRUSTED", 1);
    std::fs::remove_dir_all(sandbox.work().join(".bingo")).unwrap();
    write("plugins = {}\n");
    talk.wait_for_notices("PROJECT_UNTRUSTED", 2);
    write("supervisor = {}\n");
    let told = talk.wait_for_notices("PROJECT_UNTRUSTED", 3);
    assert!(told[2].contains("do nothing: supervisor; "), "{told:?}");
    talk.finish("");
}
