//! The life of plugins: restarts after deaths, processes that follow each other, switching off and on. Real processes
//! through the ports.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod host;

use std::sync::Arc;
use std::time::Duration;

use bingo::ports::Snapshot;
use bingo::supervisor::restart::RestartPolicy;
use bingo::supervisor::{PluginState, Setups};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use host::{Host, Running, context, lives, only_text, wait_for};

/// A tool that says the pid of its process, at once or once its file `go` is there.
const PID: &str = r#"
hello(tools=TOOL)
note_pid("pid", os.getpid())
while True:
    message = read()
    if message["params"]["input"].get("wait"):
        open("waiting", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
    text(message, str(os.getpid()))
"#;

async fn pid(running: &Running) -> i32 {
    pid_in(&running.snapshot(), json!({})).await
}

async fn pid_in(snapshot: &Arc<Snapshot>, input: serde_json::Value) -> i32 {
    let tool = Arc::clone(snapshot.tools.first().expect("the tool is offered"));
    let answer = tool.call(context(Arc::clone(snapshot)), "c".to_owned(), input, Arc::new(|_| {})).await;
    only_text(answer.unwrap()).parse().unwrap()
}

fn state(running: &Running) -> &'static str {
    running.supervisor.table().plugins.first().map_or("none", |plugin| plugin.state.name())
}

async fn wait_for_state(running: &Running, expected: &'static str) {
    wait_for(&format!("{expected}, not {}", state(running)), || state(running) == expected).await;
}

async fn gone(pid: i32) {
    wait_for(&format!("the end of {pid}"), || !lives(pid)).await;
}

fn quick(host: &mut Host, deaths: usize) {
    let delay = Duration::from_millis(50);
    host.restart = RestartPolicy { delay, deaths, ..RestartPolicy::default() };
}

#[tokio::test]
async fn a_plugin_that_was_killed_comes_back() {
    let mut host = Host::new();
    quick(&mut host, 5);
    let running = host.start(PID).await;
    for restarts in 1..=3 {
        let old = pid(&running).await;
        kill(Pid::from_raw(old), Signal::SIGKILL).unwrap();
        wait_for("the death to be seen", || state(&running) != "ready").await;
        let reason = running.snapshot().plugins[0].reason.clone().unwrap();
        assert!(reason.starts_with("it is being restarted: its process was ended by signal 9"), "{reason}");
        wait_for_state(&running, "ready").await;
        assert_ne!(pid(&running).await, old);
        assert_eq!(running.supervisor.table().plugins[0].restarts, restarts);
    }
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn one_that_dies_too_often_stays_down_until_it_is_told() {
    let mut host = Host::new();
    quick(&mut host, 3);
    let running = host.start("hello()\nsys.stderr.write('no luck\\n')\nsys.exit(4)\n").await;
    wait_for_state(&running, "broken").await;
    let told = running.heard.wait("PLUGIN_BROKEN").await;
    let begin = "p is not started again: 3 deaths within 120 s. A change of its files or its settings, or `bingo plugin restart p` starts it. The last one: its process exited with code 4; its last words on stderr:\nno luck";
    assert_eq!(told, begin);
    let deaths = running.heard.0.lock().unwrap().iter().filter(|notice| notice.code == "PLUGIN_DIED").count();
    assert_eq!(deaths, 3);
    host.source(PID);
    running.supervisor.restart("p").await.unwrap();
    pid(&running).await;
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_first_start_that_fails_is_not_repeated() {
    let mut host = Host::new();
    quick(&mut host, 3);
    let running = host.start("sys.exit(4)").await;
    assert_eq!(state(&running), "broken");
    running.heard.wait("PLUGIN_UNAVAILABLE").await;
    let error = running.supervisor.restart("p").await.unwrap_err().to_string();
    assert!(error.starts_with("p: its process exited with code 4"), "{error}");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_new_process_follows_and_the_old_one_finishes_what_it_holds() {
    let host = Host::new();
    let running = host.start(PID).await;
    let before = running.snapshot();
    let old = pid_in(&before, json!({})).await;
    let held = tokio::spawn({
        let before = Arc::clone(&before);
        async move { pid_in(&before, json!({"wait": true})).await }
    });
    wait_for("the call", || running.root.join("waiting").exists()).await;
    let generation = running.supervisor.restart("p").await.unwrap();
    assert_eq!(generation.0, 2);
    let new = pid(&running).await;
    assert_ne!(new, old);
    std::fs::write(running.root.join("go"), "").unwrap();
    assert_eq!(held.await.unwrap(), old, "the call went on");
    assert_eq!(pid_in(&before, json!({})).await, old, "whoever holds the old snapshot keeps its process");
    drop(before);
    gone(old).await;
    assert_eq!(pid(&running).await, new);
    let heard = running.heard.0.lock().unwrap().clone();
    assert!(heard.is_empty(), "{heard:?}");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_candidate_that_is_not_well_changes_nothing() {
    let mut host = Host::new();
    // Long enough for a Python to start on a busy machine.
    host.limits.handshake = Duration::from_secs(3);
    let running = host.start(PID).await;
    let old = pid(&running).await;
    for (script, reason) in [
        ("sys.exit(5)", "its process exited with code 5"),
        ("time.sleep(1000)", "it did not answer `initialize`"),
        ("reply(read(), {'protocol': 4, 'name': 'p', 'version': '1'})", "4"),
        ("hello(tools=[{'name': 7}])", "/tools/0"),
    ] {
        host.source(script);
        let error = running.supervisor.restart("p").await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(pid(&running).await, old);
        let told = running.heard.wait("PLUGIN_SWAP_FAILED").await;
        assert!(told.starts_with("p: the new process is not used, generation 1 serves on: "), "{told}");
        assert!(told.contains(reason), "{told}");
        assert_eq!(std::mem::take(&mut *running.heard.0.lock().unwrap()).len(), 1, "one notice");
    }
    std::fs::write(running.root.join("plugin.json"), "{").unwrap();
    let error = running.supervisor.restart("p").await.unwrap_err().to_string();
    assert!(error.contains("plugin.json is not JSON"), "{error}");
    host.source(PID);
    running.supervisor.restart("p").await.unwrap();
    assert_ne!(pid(&running).await, old);
    gone(old).await;
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn of_many_old_processes_two_are_kept_and_all_end_with_the_host() {
    let host = Host::new();
    let running = host.start(PID).await;
    let (mut snapshots, mut pids) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        snapshots.push(running.snapshot());
        pids.push(pid(&running).await);
        running.supervisor.restart("p").await.unwrap();
    }
    gone(pids[0]).await;
    gone(pids[1]).await;
    assert!(lives(pids[2]) && lives(pids[3]));
    running.supervisor.shutdown().await;
    assert!(pids.iter().all(|pid| !lives(*pid)));
}

#[tokio::test]
async fn a_plugin_is_switched_off_and_on_and_leaves_and_comes() {
    let host = Host::new();
    let source = host.source(PID);
    let running = host.start_all(vec![source.clone()]).await;
    let old = pid(&running).await;
    running.supervisor.disable("p").await.unwrap();
    assert_eq!(state(&running), "disabled");
    assert!(running.snapshot().tools.is_empty());
    gone(old).await;
    let error = running.supervisor.restart("p").await.unwrap_err().to_string();
    assert_eq!(error, "p: p is switched off");
    running.supervisor.enable("p").await.unwrap();
    let second = pid(&running).await;
    running.supervisor.remove(&source.name);
    wait_for_state(&running, "none").await;
    assert!(running.snapshot().tools.is_empty());
    gone(second).await;
    let error = running.supervisor.restart("p").await.unwrap_err().to_string();
    assert!(error.starts_with("there is no plugin `p`"), "{error}");
    running.supervisor.add(source);
    wait_for_state(&running, "ready").await;
    pid(&running).await;
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn one_that_wants_to_be_alone_is_stopped_first() {
    let host = Host::new();
    let script = format!("if os.path.exists('lock'): sys.exit(9)\nopen('lock', 'w').close()\n{PID}").replace(
        "    message = read()",
        "    try: message = read()\n    except SystemExit: os.remove('lock'); raise",
    );
    let source = host.source(&script);
    let path = source.root.join("plugin.json");
    let mut manifest: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    manifest["reload"] = json!("stopFirst");
    std::fs::write(&path, manifest.to_string()).unwrap();
    let running = host
        .start_all(vec![
            bingo::supervisor::discovery::load(&source.root, bingo::supervisor::discovery::Origin::Named)
                .unwrap(),
        ])
        .await;
    let old = pid(&running).await;
    running.supervisor.restart("p").await.unwrap();
    assert_ne!(pid(&running).await, old);
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn one_that_is_starting_is_given_up_when_it_is_switched_off() {
    let host = Host::new();
    let running = host.start_unsettled(host.source("note_pid('pid', os.getpid())\ntime.sleep(1000)"));
    let starting = running.pid("pid").await;
    running.supervisor.disable("p").await.unwrap();
    gone(starting).await;
    assert!(matches!(running.supervisor.table().plugins[0].state, PluginState::Disabled));
    running.supervisor.shutdown().await;
}

/// Notes that it was started, and says hello once its file `go` is there.
fn slow() -> String {
    format!("open('begun', 'a').write('x')\nwhile not os.path.exists('go'): time.sleep(0.01)\n{PID}")
}

fn begun(running: &Running) -> usize {
    std::fs::read(running.root.join("begun")).map_or(0, |witness| witness.len())
}

fn switched(host: &Host, enabled: bool) -> Setups {
    let mut setup = host.setup("p");
    setup.options.enabled = enabled;
    Setups::from([("p".to_owned(), setup)])
}

#[tokio::test]
async fn one_that_the_settings_and_a_person_switch_on_starts_once() {
    let host = Host::new();
    let running = host.start_unsettled(host.source(&slow()));
    std::fs::write(running.root.join("go"), "").unwrap();
    wait_for_state(&running, "ready").await;
    for settings_first in [true, false] {
        let before = begun(&running);
        std::fs::remove_file(running.root.join("go")).unwrap();
        running.supervisor.disable("p").await.unwrap();
        running.supervisor.reconfigure(switched(&host, false));
        if settings_first {
            running.supervisor.reconfigure(switched(&host, true));
            wait_for("the start", || begun(&running) > before).await;
        }
        let release = async {
            wait_for("the start", || begun(&running) > before).await;
            running.supervisor.reconfigure(switched(&host, true));
            std::fs::write(running.root.join("go"), "").unwrap();
        };
        let (enabled, ()) = tokio::join!(running.supervisor.enable("p"), release);
        enabled.unwrap();
        assert_eq!(begun(&running), before + 1);
    }
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_start_that_is_under_way_begins_anew_with_other_settings() {
    let host = Host::new();
    let running = host.start_unsettled(host.source(&slow()));
    wait_for("the start", || begun(&running) == 1).await;
    let mut setups = switched(&host, true);
    setups.get_mut("p").unwrap().config = json!({"word": "new"});
    running.supervisor.reconfigure(setups.clone());
    wait_for("the other start", || begun(&running) == 2).await;
    std::fs::write(running.root.join("go"), "").unwrap();
    wait_for_state(&running, "ready").await;
    // The same once more is nothing new.
    running.supervisor.reconfigure(setups);
    assert_eq!(running.supervisor.enable("p").await.unwrap().0, 2);
    assert_eq!(begun(&running), 2);
    running.supervisor.shutdown().await;
}
