//! The manifest's `prepare` step: run once for what a plugin is, before its process, beside one that serves. Real processes
//! through the ports.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod host;

use std::path::Path;
use std::time::Duration;

use bingo::supervisor::discovery::{self, Origin, PluginSource};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use host::{Host, Running, lives, only_text, wait_for};

/// A tool that says what the step made, and by which words it found it.
const READS: &str = r#"
note_pid("pid", os.getpid())
hello(tools=TOOL)
while True:
    message = read()
    path = os.environ["PLUGIN_PREPARED"]
    text(message, json.dumps([open(path + "/made").read(), sys.argv[1:] == [path], os.environ["MADE"] == path]))
"#;

/// Makes a file; each run counts in the plugin's folder.
const MAKES: &str = "echo x >> runs; cat version > \"$PLUGIN_PREPARED/made\"";

/// A plugin with this step in the shell, which depends on the file `version` alone.
fn source(host: &Host, step: &str) -> PluginSource {
    named(host, "p", json!({"command": "sh", "args": ["-c", step], "files": ["version"]}))
}

fn named(host: &Host, name: &str, prepare: Value) -> PluginSource {
    let root = host.named_source(name, READS, &[]).root;
    if !root.join("version").exists() {
        std::fs::write(root.join("version"), "one").unwrap();
    }
    change(&root, |manifest| {
        manifest["entry"]["args"] = json!(["${PLUGIN_ROOT}/main.py", "${PLUGIN_PREPARED}"]);
        manifest["entry"]["env"] = json!({"MADE": "${PLUGIN_PREPARED}"});
        manifest["prepare"] = prepare;
    })
}

fn change(root: &Path, change: impl FnOnce(&mut Value)) -> PluginSource {
    let path = root.join("plugin.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    std::fs::write(&path, manifest.to_string()).unwrap();
    discovery::load(root, Origin::Named).unwrap()
}

fn runs(running: &Running) -> usize {
    std::fs::read_to_string(running.root.join("runs")).map_or(0, |text| text.lines().count())
}

fn state(running: &Running) -> &'static str {
    running.supervisor.table().plugins.first().map_or("none", |plugin| plugin.state.name())
}

async fn wait_for_state(running: &Running, expected: &'static str) {
    wait_for(&format!("{expected}, not {}", state(running)), || state(running) == expected).await;
}

async fn said(running: &Running) -> Value {
    serde_json::from_str(&only_text(running.call(json!({})).await.unwrap())).unwrap()
}

async fn gone(pid: i32) {
    wait_for(&format!("the end of {pid}"), || !lives(pid)).await;
}

#[tokio::test]
async fn what_the_step_makes_is_found_by_the_plugin_and_made_once() {
    let host = Host::new();
    for start in 1..=2 {
        let running = host.start_unsettled(source(&host, MAKES));
        wait_for_state(&running, "ready").await;
        assert_eq!(said(&running).await, json!(["one", true, true]), "start {start}");
        assert_eq!(runs(&running), 1);
        let told = |code: &str| running.heard.0.lock().unwrap().iter().any(|notice| notice.code == code);
        assert_eq!((told("PLUGIN_PREPARING"), told("PLUGIN_PREPARED")), (start == 1, start == 1));
        running.supervisor.shutdown().await;
    }
    // A process that is restarted finds it too.
    let mut host = host;
    host.restart.delay = Duration::from_millis(50);
    let running = host.start_unsettled(source(&host, MAKES));
    wait_for_state(&running, "ready").await;
    let old = running.pid("pid").await;
    kill(Pid::from_raw(old), Signal::SIGKILL).unwrap();
    wait_for("another process", || {
        state(&running) == "ready" && running.supervisor.table().plugins[0].restarts == 1
    })
    .await;
    assert_eq!(said(&running).await, json!(["one", true, true]));
    assert_eq!(runs(&running), 1);
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn without_named_files_every_file_of_the_folder_counts() {
    let host = Host::new();
    let step = r#"echo x >> ../runs; cp version "$PLUGIN_PREPARED/made""#;
    let begin = || named(&host, "p", json!({"command": "sh", "args": ["-c", step]}));
    let script = std::fs::read_to_string(begin().root.join("main.py")).unwrap();
    let script = script.replace("note_pid(\"pid\", os.getpid())\n", "");
    let mut counts = Vec::new();
    for other in ["", "", "a", "b"] {
        let source = begin();
        // One that leaves nothing in its folder.
        std::fs::write(source.root.join("main.py"), &script).unwrap();
        if !other.is_empty() {
            std::fs::write(source.root.join("deep.txt"), other).unwrap();
        }
        let running = host.start_unsettled(source);
        wait_for_state(&running, "ready").await;
        running.supervisor.shutdown().await;
        counts.push(std::fs::read_to_string(host.folder.path().join("runs")).unwrap().lines().count());
    }
    assert_eq!(counts, [1, 1, 2, 3]);
}

#[tokio::test]
async fn nobody_waits_for_a_step_and_its_progress_is_seen() {
    let host = Host::new();
    let step =
        "echo fetching; while [ ! -e go ]; do sleep 0.02; done; cat version > \"$PLUGIN_PREPARED/made\"";
    let running = host.start_unsettled(source(&host, step));
    // What a session waits for.
    tokio::time::timeout(Duration::from_secs(60), running.supervisor.settled()).await.unwrap();
    assert_eq!(state(&running), "preparing");
    let report = || running.snapshot().plugins[0].clone();
    wait_for("its last line", || report().reason.as_deref() == Some("it is being prepared: fetching")).await;
    assert_eq!(report().state, "preparing");
    assert!(running.snapshot().tools.is_empty());
    std::fs::write(running.root.join("go"), "").unwrap();
    wait_for_state(&running, "ready").await;
    assert_eq!(said(&running).await, json!(["one", true, true]));
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_step_that_fails_breaks_the_plugin_with_its_last_words() {
    let host = Host::new();
    let step = "echo started; echo 'no such package: frob' >&2; touch \"$PLUGIN_PREPARED/half\"; exit 7";
    let running = host.start_unsettled(source(&host, step));
    let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
    let reason = "its `prepare` step failed: its process exited with code 7; its last words on stderr:\nno such package: frob";
    assert_eq!(notice, format!("p is not available: {reason}"));
    wait_for_state(&running, "broken").await;
    assert_eq!(running.snapshot().plugins[0].reason.as_deref(), Some(reason));
    assert!(!running.root.join("pid").exists(), "it was started");
    let log = std::fs::read_to_string(running.data_dir.join("logs/plugin-p.log")).unwrap();
    assert!(
        log.contains("Z prepare started\n") && log.contains("Z prepare no such package: frob\n"),
        "{log}"
    );
    // What failed is not taken for done, and a person can have it tried again.
    let error = running.supervisor.restart("p").await.unwrap_err().to_string();
    assert!(error.ends_with("no such package: frob"), "{error}");
    source(&host, &format!("ls \"$PLUGIN_PREPARED\" > left; {MAKES}"));
    running.supervisor.restart("p").await.unwrap();
    assert_eq!(said(&running).await, json!(["one", true, true]));
    assert_eq!(std::fs::read_to_string(running.root.join("left")).unwrap(), "");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_step_that_says_nothing_on_stderr_shows_what_it_printed() {
    let host = Host::new();
    let running = host.start_unsettled(source(&host, "echo 'make: no rule'; exit 2"));
    let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
    assert!(notice.ends_with("exited with code 2; its last words on stdout:\nmake: no rule"), "{notice}");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_step_past_its_deadline_is_ended_with_all_it_started() {
    let mut host = Host::new();
    host.limits.prepare = Duration::from_millis(1500);
    let step = "echo waiting >&2; setsid sleep 1000 & echo $! > child.tmp; mv child.tmp child; sleep 1000";
    let running = host.start_unsettled(source(&host, step));
    let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
    let expected = "p is not available: its `prepare` step was not done after 1500 ms; its last words on stderr:\nwaiting";
    assert_eq!(notice, expected);
    let child: i32 = std::fs::read_to_string(running.root.join("child")).unwrap().trim().parse().unwrap();
    assert!(!lives(child));
    running.supervisor.shutdown().await;
}

/// A step that lasts, once its process has told its id.
const LASTS: &str = "echo $$ > step.tmp; mv step.tmp step; sleep 1000 & wait";

async fn step(running: &Running) -> i32 {
    let path = running.root.join("step");
    wait_for("the step", || path.exists()).await;
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn an_order_and_the_end_of_the_host_give_a_step_up() {
    let host = Host::new();
    let running = host.start_unsettled(source(&host, LASTS));
    let process = step(&running).await;
    running.supervisor.disable("p").await.unwrap();
    assert!(!lives(process), "it goes on");
    assert_eq!(state(&running), "disabled");
    std::fs::remove_file(running.root.join("step")).unwrap();
    let enabled = running.supervisor.enable("p");
    let shut = async {
        let process = step(&running).await;
        running.supervisor.shutdown().await;
        assert!(!lives(process), "it outlived the host");
    };
    let (enabled, ()) = tokio::join!(enabled, shut);
    assert!(enabled.is_err());
    // Half a step is none.
    let running = host.start_unsettled(source(&host, MAKES));
    wait_for_state(&running, "ready").await;
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_candidate_is_prepared_beside_the_process_that_serves() {
    let host = Host::new();
    let step = "echo x >> runs; [ -e first ] && while [ ! -e go ]; do sleep 0.02; done; touch first; cat version > \"$PLUGIN_PREPARED/made\"";
    let running = host.start_unsettled(source(&host, step));
    wait_for_state(&running, "ready").await;
    let old = running.pid("pid").await;
    let before = running.snapshot();
    std::fs::write(running.root.join("version"), "two").unwrap();
    let restarted = running.supervisor.restart("p");
    let meanwhile = async {
        wait_for("the second run", || runs(&running) == 2).await;
        assert_eq!(state(&running), "ready");
        assert_eq!(said(&running).await, json!(["one", true, true]));
        std::fs::write(running.root.join("go"), "").unwrap();
    };
    let (generation, ()) = tokio::join!(restarted, meanwhile);
    assert_eq!(generation.unwrap().0, 2);
    assert_eq!(said(&running).await, json!(["two", true, true]));
    // What the old process holds is there for as long as it lives.
    let tool = std::sync::Arc::clone(&before.tools[0]);
    let context = host::context(std::sync::Arc::clone(&before));
    let output = tool.call(context, "c".to_owned(), json!({}), std::sync::Arc::new(|_| {})).await.unwrap();
    assert!(only_text(output).starts_with(r#"["one""#));
    drop(before);
    gone(old).await;
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_candidate_whose_step_fails_changes_nothing() {
    let host = Host::new();
    for reload in ["sideBySide", "stopFirst"] {
        let source = source(&host, "grep -v bad version > \"$PLUGIN_PREPARED/made\"");
        let source = change(&source.root, |manifest| manifest["reload"] = json!(reload));
        std::fs::write(source.root.join("version"), reload).unwrap();
        let running = host.start_unsettled(source);
        wait_for_state(&running, "ready").await;
        std::fs::write(running.root.join("version"), "bad").unwrap();
        let error = running.supervisor.restart("p").await.unwrap_err().to_string();
        assert_eq!(error, "p: its `prepare` step failed: its process exited with code 1");
        let told = running.heard.wait("PLUGIN_SWAP_FAILED").await;
        assert!(told.contains("generation 1 serves on: its `prepare` step failed"), "{told}");
        assert_eq!(said(&running).await, json!([format!("{reload}\n"), true, true]));
        std::fs::write(running.root.join("version"), "good").unwrap();
        running.supervisor.restart("p").await.unwrap();
        assert_eq!(said(&running).await, json!(["good\n", true, true]));
        running.supervisor.shutdown().await;
    }
}

#[tokio::test]
async fn a_process_that_dies_while_its_next_one_is_prepared_is_followed_by_it() {
    let host = Host::new();
    let step = "[ -e first ] && while [ ! -e go ]; do sleep 0.02; done; touch first; echo x >> runs; cat version > \"$PLUGIN_PREPARED/made\"";
    let running = host.start_unsettled(source(&host, step));
    wait_for_state(&running, "ready").await;
    let old = running.pid("pid").await;
    std::fs::write(running.root.join("version"), "two").unwrap();
    let restarted = running.supervisor.restart("p");
    let meanwhile = async {
        running.heard.wait("PLUGIN_PREPARED").await;
        wait_for("the second notice", || {
            let heard = running.heard.0.lock().unwrap();
            heard.iter().filter(|notice| notice.code == "PLUGIN_PREPARING").count() == 2
        })
        .await;
        kill(Pid::from_raw(old), Signal::SIGKILL).unwrap();
        wait_for_state(&running, "restarting").await;
        std::fs::write(running.root.join("go"), "").unwrap();
    };
    let (restarted, ()) = tokio::join!(restarted, meanwhile);
    restarted.unwrap();
    assert_eq!(said(&running).await, json!(["two", true, true]));
    assert_eq!(runs(&running), 2);
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn two_hosts_run_a_step_once() {
    let host = Host::new();
    let step =
        "echo x >> runs; while [ ! -e go ]; do sleep 0.02; done; cat version > \"$PLUGIN_PREPARED/made\"";
    let (one, other) = (host.start_unsettled(source(&host, step)), host.start_unsettled(source(&host, step)));
    wait_for("the step", || runs(&one) == 1).await;
    wait_for_state(&one, "preparing").await;
    wait_for_state(&other, "preparing").await;
    std::fs::write(one.root.join("go"), "").unwrap();
    for running in [&one, &other] {
        wait_for_state(running, "ready").await;
        assert_eq!(said(running).await, json!(["one", true, true]));
    }
    assert_eq!(runs(&one), 1);
    one.supervisor.shutdown().await;
    other.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_step_has_the_limits_and_the_environment_of_its_plugin() {
    let mut host = Host::new();
    host.resources = serde_json::from_value(json!({"openFiles": 40})).unwrap();
    let step = "ulimit -n > limit; env > variables; pwd > place; cat > input; cat version > \"$PLUGIN_PREPARED/made\"";
    let prepare = json!({
        "command": "sh", "args": ["-c", step], "files": ["version"],
        "env": {"OWN": "${PLUGIN_ROOT} ${PLUGIN_PREPARED}"},
    });
    let running = host.start_unsettled(named(&host, "p", prepare));
    wait_for_state(&running, "ready").await;
    let read = |name: &str| std::fs::read_to_string(running.root.join(name)).unwrap();
    assert_eq!((read("limit").as_str(), read("input").as_str()), ("40\n", ""));
    assert_eq!(read("place").trim(), running.root.to_string_lossy());
    let variables = read("variables");
    // Cargo sets many of these for its tests; none is on the list.
    assert!(!variables.lines().any(|line| line.starts_with("CARGO")), "{variables}");
    let made = variables.lines().find_map(|line| line.strip_prefix("PLUGIN_PREPARED=")).unwrap();
    assert!(made.starts_with(&*running.data_dir.join("prepared/p").to_string_lossy()), "{made}");
    assert!(variables.contains(&format!("OWN={} {made}\n", running.root.display())), "{variables}");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_program_that_the_step_makes_can_be_the_plugin() {
    let host = Host::new();
    let step =
        r#"mkdir bin; printf '#!/bin/sh\nexec python3 "$@"\n' > bin/own-python; chmod +x bin/own-python"#;
    let source = source(&host, &format!("{MAKES}; cd \"$PLUGIN_PREPARED\"; {step}"));
    let source = change(&source.root, |manifest| {
        manifest["entry"]["command"] = json!("${PLUGIN_PREPARED}/bin/own-python");
    });
    let running = host.start_unsettled(source);
    wait_for_state(&running, "ready").await;
    assert_eq!(said(&running).await, json!(["one", true, true]));
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn what_keeps_a_step_from_running_is_told() {
    for (step, begin, end) in [
        (
            json!({"command": "no-such-installer"}),
            "p is not available: the command `no-such-installer` was not found on the PATH (",
            "in `prepare.command`",
        ),
        (
            json!({"command": "true", "files": ["version", "requirements*.txt"]}),
            "p is not available: no file of the plugin fits `requirements*.txt` in its `prepare.files`; ",
            "correct that pattern, or take it out",
        ),
    ] {
        let host = Host::new();
        let running = host.start_unsettled(named(&host, "p", step));
        let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
        assert!(notice.starts_with(begin) && notice.ends_with(end), "{notice}");
        running.supervisor.shutdown().await;
    }
}
