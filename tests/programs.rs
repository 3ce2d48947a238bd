//! What a plugin's program is started with, what is installed for it, and what a person reads when it cannot be started.

use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::common::{Client, Sandbox, wait_until};

/// A tool that says its whole environment.
const ENVIRONMENT: &str = "hello()\nwhile True:\n    text(read(), json.dumps(dict(os.environ)))\n";

/// A tool that says its limit of open files, and what stands in a file of the step where there is one.
const SAYS: &str = r#"
import resource
hello()
while True:
    message = read()
    made = os.environ.get("PLUGIN_PREPARED")
    made = open(made + "/made").read() if made else ""
    text(message, "%d %s" % (resource.getrlimit(resource.RLIMIT_NOFILE)[1], made))
"#;

fn args<'a>(plugin: &'a Path, prompt: &'a str) -> [&'a str; 8] {
    let plugin = plugin.to_str().unwrap();
    let mode = "bypassPermissions";
    ["--plugin", plugin, "--permission-mode", mode, "--model", "echo/echo", "-p", prompt]
}

fn change(plugin: &Path, change: impl FnOnce(&mut Value)) {
    let path = plugin.join("plugin.json");
    let mut manifest = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    std::fs::write(path, manifest.to_string()).unwrap();
}

/// The environment that the tool of a plugin says.
fn environment(client: &mut Client, session: &str, plugin: &str) -> Map<String, Value> {
    let frames = client.turn(session, &client.intent(), &format!("@tool plugin__{plugin}__t {{}}"));
    let mut outputs = frames.iter().rev().filter_map(|frame| {
        let item = &frame["event"]["item"];
        (item["status"] == "completed").then(|| item["body"]["output"]["parts"][0]["text"].as_str())?
    });
    let output = outputs.next().unwrap_or_else(|| panic!("{frames:?}"));
    serde_json::from_str(output).unwrap()
}

#[test]
fn a_variable_of_the_host_reaches_the_plugin_that_the_settings_name_and_no_other() {
    let random = || format!("{:X}", RandomState::new().hash_one("name"));
    let (name, secret) = (format!("V{}", random()), format!("secret{}", random()));
    for named in [false, true] {
        let sandbox = Sandbox::new();
        let plugins = [sandbox.python("trusted", ENVIRONMENT), sandbox.python("other", ENVIRONMENT)];
        if named {
            sandbox.write("home/.bingo/settings.toml", format!("[supervisor.trusted]\nenv = [\"{name}\"]\n"));
        }
        let mut command = sandbox.command(["serve", "--stdio", "--model", "echo/echo"]);
        command.args(["--permission-mode", "bypassPermissions"]).env(&name, &secret);
        command.args(plugins.iter().flat_map(|plugin| [Path::new("--plugin"), plugin]));
        let mut client = Client::spawn(command);
        client.initialize();
        let spec = json!({ "cwd": sandbox.work(), "title": "t" });
        let opened = client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
        let session = opened["session"].as_str().unwrap();
        let own = environment(&mut client, session, "trusted");
        assert_eq!(own.get(&name), named.then(|| json!(secret)).as_ref(), "{own:?}");
        let other = environment(&mut client, session, "other");
        // Neither under its name nor as a part of anything else.
        assert!(!json!(other).to_string().contains(&secret) && !other.contains_key(&name), "{other:?}");
        if !named {
            assert!(!json!(own).to_string().contains(&secret), "{own:?}");
        }
        // What everybody gets is there.
        assert_eq!(other["HOME"], json!(sandbox.home()));
        assert_eq!(client.finish(), Some(0));
    }
}

/// A plugin whose program is a script with this first line.
fn script(sandbox: &Sandbox, line: &str) -> PathBuf {
    let path = sandbox.write("plugins/script/run", format!("{line}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let entry = json!({ "command": "./run", "env": { "PATH": "/nowhere:/bin" } });
    let manifest = json!({ "name": "script", "version": "1", "entry": entry });
    let path = sandbox.write("plugins/script/plugin.json", manifest.to_string());
    path.parent().unwrap().to_owned()
}

#[test]
fn a_missing_interpreter_of_a_script_is_named_with_the_path_that_was_searched() {
    let asked = "asks for the interpreter `nosuch`, which was not found on the PATH (/nowhere:/bin)";
    let named = "names the interpreter /no/such, which is not there";
    for (line, reason) in [
        ("#!/usr/bin/env nosuch", asked),
        ("#!/usr/bin/env -S nosuch -u", asked),
        ("#!/no/such", named),
        ("#! /no/such -u", named),
    ] {
        let sandbox = Sandbox::new();
        let plugin = script(&sandbox, line);
        let ran = sandbox.run(args(&plugin, "hi")).expect(0);
        assert_eq!(ran.stdout, "hi\n");
        let told = format!(
            "[notice] PLUGIN_UNAVAILABLE script is not available: $SANDBOX/plugins/script/./run cannot be run: its first line {reason}; install it or correct that line\n"
        );
        assert_eq!(sandbox.steady(&ran.stderr), told, "{line}");
    }
}

#[test]
fn an_interpreter_that_is_there_is_found() {
    let sandbox = Sandbox::new();
    // Found on the PATH of the plugin's own environment.
    let plugin = script(&sandbox, "#!/usr/bin/env sh\necho started >&2; exit 3");
    let ran = sandbox.run(args(&plugin, "hi")).expect(0);
    assert!(ran.stderr.contains("exited with code 3; its last words on stderr:\n"), "{ran:#?}");
}

#[test]
fn a_limit_of_the_settings_holds_for_the_plugin() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.python("p", SAYS);
    sandbox.write("home/.bingo/settings.toml", "[supervisor.p.limits]\nopenFiles = 45\n");
    let ran = sandbox.run(args(&plugin, "@tool plugin__p__t {}")).expect(0);
    assert_eq!(ran.stdout, "plugin__p__t returned: 45 \n", "{}", ran.stderr);
}

/// A plugin whose step says two lines and makes a file once `go` is there.
fn prepared(sandbox: &Sandbox) -> PathBuf {
    let plugin = sandbox.python("p", SAYS);
    let step = "echo x >> \"$HOME/runs\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.02; done; echo well > \"$PLUGIN_PREPARED/made\"";
    change(&plugin, |manifest| manifest["prepare"] = json!({ "command": "sh", "args": ["-c", step] }));
    plugin
}

#[test]
fn a_run_of_one_prompt_waits_until_its_plugin_is_prepared_and_does_it_once() {
    let sandbox = Sandbox::new();
    let plugin = prepared(&sandbox);
    sandbox.write("home/.bingo/settings.toml", "[supervisor.p.limits]\nopenFiles = 45\n");
    sandbox.write("home/go", "");
    for first in [true, false] {
        let ran = sandbox.run(args(&plugin, "@tool plugin__p__t {}")).expect(0);
        assert_eq!(ran.stdout, "plugin__p__t returned: 45 well\n", "{}", ran.stderr);
        assert_eq!(
            ran.stderr.contains("[notice] PLUGIN_PREPARING p is being prepared, for 600 s at most: "),
            first
        );
        assert_eq!(ran.stderr.contains("[notice] PLUGIN_PREPARED p is prepared\n"), first, "{}", ran.stderr);
    }
    assert_eq!(std::fs::read_to_string(sandbox.home().join("runs")).unwrap(), "x\n");
}

#[test]
fn a_file_that_the_step_depends_on_prepares_and_renews_a_running_plugin() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.python("p", SAYS);
    std::fs::write(plugin.join("words.lock"), "one").unwrap();
    let step = r#"cat words.lock > "$PLUGIN_PREPARED/made""#;
    let prepare = json!({ "command": "sh", "args": ["-c", step], "files": ["*.lock"] });
    change(&plugin, |manifest| manifest["prepare"] = prepare);
    let mode = ["--permission-mode", "bypassPermissions", "--model", "echo/echo"];
    let mut client = sandbox.serve(["--plugin", plugin.to_str().unwrap()].iter().chain(&mode));
    let spec = json!({ "cwd": sandbox.work(), "title": "t" });
    let opened = client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    let session = opened["session"].as_str().unwrap().to_owned();
    for word in ["one", "two"] {
        let fresh = plugin.join(".fresh");
        std::fs::write(&fresh, word).unwrap();
        std::fs::rename(fresh, plugin.join("words.lock")).unwrap();
        wait_until(&format!("it says {word}"), || {
            let frames = client.turn(&session, &client.intent(), "@tool plugin__p__t {}");
            let said = json!(frames).to_string();
            said.contains(&format!(" {word}\"")).then_some(()).ok_or(said)
        });
    }
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn an_interrupt_ends_a_run_whose_plugin_is_being_prepared() {
    let sandbox = Sandbox::new();
    let plugin = prepared(&sandbox);
    let run = sandbox.start(args(&plugin, "hi"));
    wait_until("the step runs", || {
        sandbox.home().join("runs").exists().then_some(()).ok_or_else(|| "nothing".to_owned())
    });
    run.signal("INT");
    let ran = run.finish().expect(130);
    assert_eq!(ran.stdout, "");
}

#[test]
fn a_server_opens_sessions_while_a_plugin_is_being_prepared_and_tells_of_its_offers() {
    let sandbox = Sandbox::new();
    let plugin = prepared(&sandbox);
    let mut client = sandbox.serve(["--model", "echo/echo", "--plugin", plugin.to_str().unwrap()]);
    client.call("gateway/subscribe", json!({}));
    let spec = json!({ "cwd": sandbox.work(), "title": "t" });
    client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
    let plugins = client.call("catalog/read", json!({ "kind": "plugins" }));
    let entries = plugins["entries"].as_array().unwrap();
    let own = entries.iter().find(|entry| entry["id"] == "p").unwrap();
    assert_eq!(own["meta"]["state"], "preparing", "{own}");
    let reason = own["meta"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("it is being prepared: "), "{reason}");
    sandbox.write("home/go", "");
    // The client gives up when nothing comes.
    while client.gateway_event() != json!({ "type": "catalogChanged", "kind": "tools" }) {}
    let tools = client.call("catalog/read", json!({ "kind": "tools" }));
    assert!(tools.to_string().contains("plugin__p__t"), "{tools}");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_step_of_a_host_that_was_killed_is_over_before_the_next_one_begins() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.python("p", SAYS);
    // The first one is deaf to TERM, and beats until it is killed; the second one ends at once.
    let step = "trap '' TERM; echo begin >> \"$HOME/beats\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.01; echo $$ >> \"$HOME/beats\"; done; echo well > \"$PLUGIN_PREPARED/made\"";
    change(&plugin, |manifest| manifest["prepare"] = json!({ "command": "sh", "args": ["-c", step] }));
    let args = ["--model", "echo/echo", "--plugin", plugin.to_str().unwrap()];
    let killed = sandbox.serve(args);
    let beats = || std::fs::read_to_string(sandbox.home().join("beats")).unwrap_or_default();
    wait_until("the step beats", || if beats().lines().count() > 3 { Ok(()) } else { Err(beats()) });
    super::common::end(killed.pid());
    let mut next = sandbox.serve(args);
    wait_until("the next step beats", || {
        let (all, begins) = (beats(), beats().matches("begin").count());
        if begins == 2 && !all.ends_with("begin\n") { Ok(()) } else { Err(all) }
    });
    sandbox.write("home/go", "");
    let all = beats();
    let (first, second) = all.rsplit_once("begin\n").unwrap();
    let own = first.lines().find(|line| *line != "begin").unwrap();
    assert!(!second.lines().any(|line| line == own), "they ran at the same time: {all}");
    assert_eq!(next.finish(), Some(0));
}
