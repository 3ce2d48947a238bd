//! A running host, seen and steered from the command line: `bingo plugin list`, `restart`, `enable`, `disable`, `logs`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::common::{Client, Ran, Sandbox, end, signal, wait_until};

/// Says which word it was started with, and its process id on stderr.
const SCRIPT: &str = "print('I am', os.getpid(), file=sys.stderr, flush=True)\nhello()\nwhile True:\n    text(read(), 'one')\n";

/// A plugin `own` of the person.
fn own(sandbox: &Sandbox, script: &str) -> PathBuf {
    user_plugin(sandbox, "own", script)
}

pub fn user_plugin(sandbox: &Sandbox, name: &str, script: &str) -> PathBuf {
    let made = sandbox.python(name, script);
    let place = sandbox.config().join("plugins").join(name);
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::rename(made, &place).unwrap();
    place
}

fn serve(sandbox: &Sandbox) -> Client {
    let mut client = sandbox.serve(["--model", "echo/echo", "--permission-mode", "bypassPermissions"]);
    wait_for(&mut client, "own", "ready");
    client
}

/// Waits until a plugin is in this state; returns what the catalog says of it.
fn wait_for(client: &mut Client, name: &str, state: &str) -> Value {
    wait_until(&format!("{name} is {state}"), || {
        let entries = client.call("catalog/read", json!({ "kind": "plugins" }))["entries"].clone();
        let entry = entries.as_array().unwrap().iter().find(|entry| entry["id"] == name).cloned();
        let meta = entry.map(|entry| entry["meta"].clone()).unwrap_or_default();
        if meta["state"] == state { Ok(meta) } else { Err(meta.to_string()) }
    })
}

fn listed(sandbox: &Sandbox) -> Value {
    let ran = sandbox.run(["plugin", "list", "--json"]).expect(0);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// What the first host says of the plugin `own`.
fn line(list: &Value) -> Value {
    let plugins = list["hosts"][0]["plugins"].as_array().unwrap();
    plugins.iter().find(|line| line["name"] == "own").unwrap().clone()
}

#[track_caller]
fn failed(ran: Ran, code: i32, words: &str) {
    let ran = ran.expect(code);
    assert!(ran.stderr.contains(words), "{ran:#?}");
}

#[test]
fn without_a_host_the_list_says_what_would_be_started() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    let project = sandbox.work().join(".bingo/plugins/theirs");
    std::fs::create_dir_all(&project).unwrap();
    std::fs::write(
        project.join("plugin.json"),
        r#"{"name":"theirs","version":"2","entry":{"command":"true"}}"#,
    )
    .unwrap();
    sandbox.write("home/.bingo/plugins/bad/plugin.json", "{");
    let ran = sandbox.run(["plugin", "list"]).expect(0);
    let rows: Vec<Vec<&str>> = ran.stdout.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "VERSION", "STATE", "ORIGIN", "FOLDER"]);
    assert_eq!(rows[1][..4], ["own", "1", "-", "user"]);
    assert_eq!(rows[2][..4], ["theirs", "2", "untrusted", "project"]);
    assert!(ran.stderr.contains("note: no host runs that uses "), "{ran:#?}");
    assert!(ran.stderr.contains("bad/plugin.json is not JSON"), "{ran:#?}");
    let list = listed(&sandbox);
    assert_eq!((&list["hosts"], &list["found"][1]["trusted"]), (&json!([]), &json!(false)));
    failed(sandbox.run(["plugin", "restart", "own"]), 1, "no host runs that uses ");
}

#[test]
fn the_list_shows_states_and_figures_of_a_running_host() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    let mut client = serve(&sandbox);
    let list = listed(&sandbox);
    assert_eq!(list["hosts"][0]["pid"], client.pid());
    let (line, meta) = (line(&list), wait_for(&mut client, "own", "ready"));
    for key in ["pid", "generation", "state", "restarts"] {
        assert_eq!(line[key], meta[key], "{key}");
    }
    assert_eq!((&line["origin"], &line["enabled"]), (&json!("user"), &json!(true)));
    assert_eq!(line["calls"]["initialize"]["calls"], 1);
    let shown = sandbox.run(["plugin", "list"]).expect(0).stdout;
    let rows: Vec<Vec<&str>> = shown.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..2], ["host", &client.pid().to_string()]);
    assert_eq!(rows[1][..5], ["NAME", "VERSION", "STATE", "ORIGIN", "PID"]);
    let own = rows.iter().find(|row| row[0] == "own").unwrap();
    assert_eq!(own[2..5], ["ready", "user", &meta["pid"].to_string()]);
    assert_eq!(client.finish(), Some(0));
    assert_eq!(listed(&sandbox)["hosts"], json!([]), "it is gone with the host");
}

#[test]
fn a_restart_replaces_the_process_and_says_what_failed() {
    let sandbox = Sandbox::new();
    let plugin = own(&sandbox, SCRIPT);
    let mut client = serve(&sandbox);
    let before = wait_for(&mut client, "own", "ready");
    let ran = sandbox.run(["plugin", "restart", "own"]).expect(0);
    let after = wait_for(&mut client, "own", "ready");
    assert_ne!(after["pid"], before["pid"]);
    let expected = format!("own: generation {} serves in the host {}\n", after["generation"], client.pid());
    assert_eq!(ran.stdout, expected);
    failed(
        sandbox.run(["plugin", "restart", "nobody"]),
        2,
        "there is no plugin `nobody`; there are echo, own",
    );
    // It dies for good; a person who mended it starts it again, before any change is seen.
    let pid = u32::try_from(after["pid"].as_u64().unwrap()).unwrap();
    std::fs::write(plugin.join("main.py"), "import sys\nsys.exit('no luck')\n").unwrap();
    failed(sandbox.run(["plugin", "restart", "own"]), 3, "own: its process exited with code 1");
    assert_eq!(wait_for(&mut client, "own", "ready")["pid"], pid, "the old one serves on");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_log_that_is_not_there_yet_is_awaited() {
    let sandbox = Sandbox::new();
    let follower = sandbox.start(["plugin", "logs", "own", "-f"]);
    follower.wait_for_stderr("there is no log of `own` yet; it is shown when there is one");
    own(&sandbox, SCRIPT);
    let mut client = serve(&sandbox);
    follower.wait_for_stdout("I am ");
    follower.signal("INT");
    drop(follower.finish());
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_plugin_that_cannot_be_used_is_told_beside_the_list() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    sandbox.write("home/.bingo/plugins/bad/plugin.json", "{");
    let told = |ran: Ran| assert!(ran.expect(0).stderr.contains("bad/plugin.json"));
    told(sandbox.run(["plugin", "list"]));
    let mut client = serve(&sandbox);
    told(sandbox.run(["plugin", "list"]));
    told(sandbox.run(["plugin", "list", "--json"]));
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn several_hosts_are_told_apart_by_their_numbers() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    let (mut one, mut other) = (serve(&sandbox), serve(&sandbox));
    let mut pids = [one.pid(), other.pid()];
    pids.sort_unstable();
    let words = format!("2 hosts run: {}, {}", pids[0], pids[1]);
    failed(sandbox.run(["plugin", "restart", "own"]), 2, &words);
    let (mine, theirs) = (wait_for(&mut one, "own", "ready"), wait_for(&mut other, "own", "ready"));
    drop(sandbox.run(["plugin", "restart", "own", "--host", &other.pid().to_string()]).expect(0));
    assert_eq!(wait_for(&mut one, "own", "ready")["pid"], mine["pid"]);
    assert_ne!(wait_for(&mut other, "own", "ready")["pid"], theirs["pid"]);
    failed(sandbox.run(["plugin", "list", "--host", "1"]), 2, "no host with the process id 1 runs");
    assert_eq!((one.finish(), other.finish()), (Some(0), Some(0)));
}

#[test]
fn switching_off_and_on_holds_for_hosts_that_run_and_those_to_come() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    let settings = sandbox.write("home/.bingo/settings.toml", "# mine\n[supervisor.own]\nenv = []\n");
    let mut client = serve(&sandbox);
    let ran = sandbox.run(["plugin", "disable", "own"]).expect(0);
    assert!(ran.stdout.starts_with("own is switched off in "), "{ran:#?}");
    assert!(ran.stdout.ends_with(&format!("it takes no new work in the host {}\n", client.pid())));
    wait_for(&mut client, "own", "disabled");
    let text = std::fs::read_to_string(&settings).unwrap();
    assert_eq!(text, "# mine\n[supervisor.own]\nenv = []\nenabled = false\n");
    let mut later = sandbox.serve(["--model", "echo/echo"]);
    wait_for(&mut later, "own", "disabled");
    let ran = sandbox.run(["plugin", "enable", "own"]).expect(0);
    assert_eq!(ran.stdout.matches("serves in the host").count(), 2, "{ran:#?}");
    for client in [&mut client, &mut later] {
        wait_for(client, "own", "ready");
    }
    failed(sandbox.run(["plugin", "disable", "nobody"]), 2, "there is no plugin `nobody` here");
    failed(sandbox.run(["plugin", "disable", "../own"]), 2, "`../own` cannot be a plugin's name");
    assert_eq!((client.finish(), later.finish()), (Some(0), Some(0)));
}

#[test]
fn the_log_shows_what_a_plugin_wrote_and_follows_it_past_a_rotation() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    failed(sandbox.run(["plugin", "logs", "own"]), 1, "there is no log of `own` in ");
    let mut client = serve(&sandbox);
    let pid = wait_for(&mut client, "own", "ready")["pid"].clone();
    let ran = sandbox.run(["plugin", "logs", "own"]).expect(0);
    assert!(ran.stdout.ends_with(&format!(" I am {pid}\n")), "{ran:#?}");
    let follower = sandbox.start(["plugin", "logs", "own", "-f", "-n", "1"]);
    follower.wait_for_stdout("I am ");
    let log = sandbox.data().join("logs/plugin-own.log");
    let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    writeln!(file, "hello \u{1b}[2J").unwrap();
    follower.wait_for_stdout("hello \\u{1b}[2J\n");
    std::fs::rename(&log, log.with_extension("log.1")).unwrap();
    writeln!(file, "last of the old").unwrap();
    std::fs::write(&log, "first of the new\n").unwrap();
    follower.wait_for_stdout("last of the old\nfirst of the new\n");
    // Somebody empties it: what is written then is shown too.
    std::fs::write(&log, "anew\n").unwrap();
    follower.wait_for_stdout("first of the new\nanew\n");
    follower.signal("INT");
    assert_eq!(follower.finish().stdout.lines().count(), 5);
    let last = sandbox.run(["plugin", "logs", "own", "-n", "2"]).expect(0).stdout;
    assert_eq!(last, "last of the old\nanew\n");
    assert_eq!(client.finish(), Some(0));
}

fn socket(folder: &Path, client: &Client) -> PathBuf {
    folder.join(format!("{}.sock", client.pid()))
}

fn ask(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    // A host that hangs up early has read enough.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    let _ = BufReader::new(stream).read_line(&mut answer);
    answer
}

#[test]
fn the_socket_is_the_persons_alone_and_bears_nonsense() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    let mut client = serve(&sandbox);
    let folder = sandbox.data().join("run");
    let path = socket(&folder, &client);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
    for (bytes, words) in [
        (&b"hello\n"[..], "the line is not JSON"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"host/end\"}\n", "\"id\":7"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"plugin/restart\"}\n", "-32602"),
        (b"\xff\xfe\n", "the line is not JSON"),
        (&[b'['; 200_000], "the line is not JSON"),
    ] {
        let answer = ask(&path, bytes);
        assert!(answer.contains(words), "{answer}");
    }
    // Many that say nothing do not keep others out for good.
    let silent: Vec<UnixStream> = (0..15).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert_eq!(line(&listed(&sandbox))["state"], "ready");
    drop(silent);
    assert_eq!(wait_for(&mut client, "own", "ready")["restarts"], 0);
    assert_eq!(client.finish(), Some(0));
    assert!(!path.exists());
}

#[test]
fn what_a_killed_host_left_is_passed_over_and_swept() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    let runtime = sandbox.write("runtime/keep", "").parent().unwrap().to_owned();
    let start = || {
        let mut command = sandbox.command(["serve", "--stdio", "--model", "echo/echo"]);
        command.env("XDG_RUNTIME_DIR", &runtime);
        let mut client = Client::spawn(command);
        client.initialize();
        wait_for(&mut client, "own", "ready");
        client
    };
    let killed = start();
    let left = socket(&runtime.join("bingo"), &killed);
    assert!(left.exists());
    end(killed.pid());
    wait_until("nobody listens any more", || match UnixStream::connect(&left) {
        Err(_) => Ok(()),
        Ok(_) => Err("it does".to_owned()),
    });
    let list = |sandbox: &Sandbox| {
        let mut command = sandbox.command(["plugin", "list", "--json"]);
        command.env("XDG_RUNTIME_DIR", &runtime);
        let ran = super::common::Started::spawn(command, b"").finish().expect(0);
        serde_json::from_str::<Value>(&ran.stdout).unwrap()["hosts"].as_array().unwrap().len()
    };
    assert_eq!(list(&sandbox), 0);
    let mut client = start();
    assert!(!left.exists());
    assert_eq!(list(&sandbox), 1);
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_host_without_a_place_for_its_socket_says_so_and_goes_on() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    sandbox.write("home/.bingo/data/run", "in the way");
    let mut client = serve(&sandbox);
    let (session, opened) = client.create(&sandbox.work());
    let told = client.turn(&session, "req_1", "hello");
    let notice = told.iter().chain([&opened]).find(|frame| frame.to_string().contains("CONTROL_UNAVAILABLE"));
    assert!(notice.is_some(), "{opened:#} {told:#?}");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_host_that_hangs_is_named_and_others_are_shown() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    let (mut hung, mut well) = (serve(&sandbox), serve(&sandbox));
    signal(hung.pid(), "STOP");
    let ran = sandbox.run(["plugin", "list"]).expect(0);
    let words = format!("the host {} does not answer on its control socket", hung.pid());
    assert!(ran.stderr.contains(&words), "{ran:#?}");
    assert!(ran.stdout.starts_with(&format!("host {} ", well.pid())), "{ran:#?}");
    signal(hung.pid(), "CONT");
    assert_eq!((hung.finish(), well.finish()), (Some(0), Some(0)));
}

/// Never shakes hands.
const SLOW: &str = "while True:\n    print('not yet', file=sys.stderr, flush=True)\n    time.sleep(0.05)\n";

#[test]
fn an_order_that_another_one_overtakes_is_answered() {
    let sandbox = Sandbox::new();
    own(&sandbox, SLOW);
    let mut client = sandbox.serve(["--model", "echo/echo"]);
    let restart = sandbox.start(["plugin", "restart", "own"]);
    // It is under way when a person can see the plugin starting anew; that it was taken is seen by its effect alone.
    wait_until("the order is taken", || {
        let text = std::fs::read_to_string(sandbox.data().join("logs/plugin-own.log")).unwrap_or_default();
        text.contains("generation=3").then_some(()).ok_or_else(|| "one process only".to_owned())
    });
    drop(sandbox.run(["plugin", "disable", "own"]).expect(0));
    let ran = restart.finish().expect(3);
    assert!(ran.stderr.contains("own: it was switched off meanwhile"), "{ran:#?}");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn clients_that_left_keep_nobody_out() {
    let sandbox = Sandbox::new();
    own(&sandbox, SLOW);
    let mut client = sandbox.serve(["--model", "echo/echo"]);
    let path = socket(&sandbox.data().join("run"), &client);
    for _ in 0..80 {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream
            .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"plugin/restart\",\"params\":{\"name\":\"own\"}}\n")
            .unwrap();
    }
    assert_eq!(line(&listed(&sandbox))["name"], "own");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn a_host_that_hangs_may_run_a_plugin_that_was_switched_off() {
    let sandbox = Sandbox::new();
    own(&sandbox, SCRIPT);
    let mut client = serve(&sandbox);
    signal(client.pid(), "STOP");
    failed(sandbox.run(["plugin", "disable", "own"]), 1, "does not answer on its control socket");
    failed(sandbox.run(["plugin", "restart", "own"]), 1, "does not answer on its control socket");
    signal(client.pid(), "CONT");
    assert_eq!(client.finish(), Some(0));
}
