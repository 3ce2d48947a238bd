//! Plugins that die, are replaced and are started over and over, under load. Small numbers in every test run; with
//! `BINGO_ENDURANCE=full` the large ones, whose figures are printed.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail by panicking, as tests do")]

mod host;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bingo::ports::Snapshot;
use bingo::supervisor::guard;
use bingo::supervisor::restart::RestartPolicy;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use host::{Host, Running, context, lives, only_text, wait_for};

const PLUGINS: usize = 10;
const IN_FLIGHT: usize = 64;

/// Held by a test while it runs: two of them measure the memory of this process, and all of them its processes.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn is_full() -> bool {
    std::env::var("BINGO_ENDURANCE").is_ok_and(|size| size == "full")
}

fn print(line: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{line}").unwrap();
}

/// The pid of a plugin's process that is ready.
fn pid_of(snapshot: &Snapshot, name: &str) -> Option<i32> {
    let plugin = snapshot.plugins.iter().find(|plugin| plugin.name == name)?;
    let figures = (plugin.process.as_ref()?.figures)();
    i32::try_from(figures.get("pid")?.as_i64()?).ok()
}

/// One call under load: which process had it, when it ended, and how.
struct Ended {
    pid: i32,
    begun: Instant,
    at: Instant,
    outcome: Result<(), String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_ends_while_plugins_are_killed() {
    let _alone = ALONE.lock().await;
    // The large run is a load of 30 s; a test run takes as long as it takes.
    let (shortest, kills) = if is_full() { (Duration::from_secs(30), 5) } else { (Duration::ZERO, 2) };
    let mut host = Host::new();
    host.restart =
        RestartPolicy { deaths: 0, longest_delay: Duration::from_secs(2), ..RestartPolicy::default() };
    let names: Vec<String> = (0..PLUGINS).map(|number| format!("p{number}")).collect();
    let sources = names.iter().map(|name| host.stress(name, "", &[])).collect();
    let running = Arc::new(host.start_all(sources).await);
    let (over, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let callers: Vec<_> = (0..IN_FLIGHT)
        .map(|number| {
            let (running, over, ended) = (Arc::clone(&running), Arc::clone(&over), Arc::clone(&ended));
            let name = names[number % PLUGINS].clone();
            tokio::spawn(async move {
                let mut call = number as u64;
                while !over.load(Ordering::Relaxed) {
                    call += 1;
                    let is_there = || pid_of(&running.snapshot(), &name).is_some();
                    wait_for(&format!("{name} to be there"), || over.load(Ordering::Relaxed) || is_there())
                        .await;
                    one_call(&running, &name, 20 + call * 37 % 181, &ended).await;
                }
            })
        })
        .collect();
    let mut deaths: Vec<(i32, Instant)> = Vec::new();
    let begun = Instant::now();
    while deaths.len() < PLUGINS * kills || begun.elapsed() < shortest {
        load(&running, &names, &ended).await;
        for name in &names {
            wait_for(&format!("{name} to be there"), || pid_of(&running.snapshot(), name).is_some()).await;
            let pid = pid_of(&running.snapshot(), name).unwrap();
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            deaths.push((pid, Instant::now()));
        }
    }
    let last = Instant::now();
    for name in &names {
        // What was killed a moment ago may still be there.
        let killed = |pid| deaths.iter().any(|(dead, _)| *dead == pid);
        let is_back = || pid_of(&running.snapshot(), name).is_some_and(|pid| !killed(pid));
        wait_for(&format!("{name} to come back"), is_back).await;
        let tool = format!("plugin__{name}__echo");
        running.tool_in(&tool, json!({"text": "x"}), context(running.snapshot())).await.unwrap();
    }
    let back = last.elapsed();
    load(&running, &names, &ended).await;
    over.store(true, Ordering::Relaxed);
    for caller in callers {
        tokio::time::timeout(Duration::from_secs(10), caller).await.expect("every call ends").unwrap();
    }
    judge(&ended.lock().unwrap(), &deaths);
    assert!(back < Duration::from_secs(5), "all are back after {back:?}");
    print(&format!("killed {} times; all were back {back:?} after the last kill", deaths.len()));
    running.supervisor.shutdown().await;
    assert!(deaths.iter().all(|(pid, _)| !lives(*pid)));
}

/// Returns when twice as many calls as are in flight have ended, and every plugin is there to get some.
async fn load(running: &Running, names: &[String], ended: &Mutex<Vec<Ended>>) {
    let before = ended.lock().unwrap().len();
    let goes_on = || ended.lock().unwrap().len() >= before + 2 * IN_FLIGHT;
    let is_there = || names.iter().all(|name| pid_of(&running.snapshot(), name).is_some());
    wait_for("calls on every plugin", || goes_on() && is_there()).await;
}

/// Calls a tool that takes so long; nothing happens when its plugin is not there.
async fn one_call(running: &Running, name: &str, ms: u64, ended: &Mutex<Vec<Ended>>) {
    let snapshot = running.snapshot();
    let whole = format!("plugin__{name}__slow");
    let tool = snapshot.tools.iter().find(|tool| tool.spec().name == whole).cloned();
    let (Some(tool), Some(pid)) = (tool, pid_of(&snapshot, name)) else {
        return;
    };
    let begun = Instant::now();
    let call = tool.call(context(snapshot), "c".to_owned(), json!({"ms": ms}), Arc::new(|_| {}));
    let outcome = tokio::time::timeout(Duration::from_secs(10), call).await.expect("nothing hangs");
    let outcome = outcome.map(drop).map_err(|error| error.message);
    ended.lock().unwrap().push(Ended { pid, begun, at: Instant::now(), outcome });
}

/// Holds the calls against the deaths: who was not killed answered, who was says whether the call was sent.
fn judge(ended: &[Ended], deaths: &[(i32, Instant)]) {
    let killed: BTreeMap<i32, Instant> = deaths.iter().copied().collect();
    let (mut well, mut lost, mut other, mut slowest) = (0u32, 0u32, 0u32, Duration::ZERO);
    for call in ended {
        match (&call.outcome, killed.get(&call.pid)) {
            (Ok(()), _) => well += 1,
            (Err(words), Some(death)) => {
                lost += 1;
                assert!(words.contains("never sent") || words.contains("sent, no answer"), "{words}");
                slowest = slowest.max(call.at.saturating_duration_since((*death).max(call.begun)));
            }
            (Err(words), None) => {
                other += 1;
                print(&format!("not killed, and yet: {words}"));
            }
        }
    }
    print(&format!(
        "{well} calls answered, {lost} lost to deaths, {other} failed otherwise; the slowest loss was told after {slowest:?}"
    ));
    assert!(well > 100 && lost > 0, "there was load");
    assert!(
        f64::from(other) <= 0.1 * f64::from(well + other),
        "{other} of those that were not killed failed"
    );
    // The 50 ms that are promised are for a quiet machine; what is held here is that nobody waits for a deadline.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}

/// A plugin whose tool and whose model say the pid of its process.
const PIDS: &str = r#"
hello(tools=TOOL, providers=[{"id": "m", "models": [{"id": "m"}]}])
pid = str(os.getpid())
while True:
    message = read()
    if message.get("method") == "tool/call":
        text(message, pid)
    elif message.get("method") == "provider/stream":
        def delta(event):
            send({"jsonrpc": "2.0", "method": "provider/delta", "params": {"call": message["params"]["call"], "event": event}})
        delta({"type": "streamStart"})
        delta({"type": "textStart", "id": "b"})
        for n in range(20):
            delta({"type": "textDelta", "id": "b", "delta": pid + " "})
        delta({"type": "textEnd", "id": "b"})
        delta({"type": "finish", "usage": {"inputTokens": 1, "outputTokens": 1}, "finishReason": {"unified": "stop"}})
        reply(message, {})
"#;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_notice_nothing_of_a_plugin_that_is_replaced() {
    let _alone = ALONE.lock().await;
    let swaps = if is_full() { 50 } else { 12 };
    let host = Host::new();
    let running = Arc::new(host.start(PIDS).await);
    let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let sessions: Vec<_> = (0..8)
        .map(|_| {
            let (running, over, turns) = (Arc::clone(&running), Arc::clone(&over), Arc::clone(&turns));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    turn(running.snapshot()).await;
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let (mut pids, mut early) = (Vec::new(), 0);
    for swap in 1..=swaps {
        pids.push(pid_of(&running.snapshot(), "p").unwrap());
        let before = turns.load(Ordering::Relaxed);
        running.supervisor.restart("p").await.unwrap();
        wait_for("turns to go on", || turns.load(Ordering::Relaxed) >= before + 8).await;
        if swap == 10 {
            early = resident();
        }
    }
    let late = resident();
    over.store(true, Ordering::Relaxed);
    for session in sessions {
        session.await.unwrap();
    }
    for pid in pids {
        wait_for(&format!("the end of {pid}"), || !lives(pid)).await;
    }
    let turns = turns.load(Ordering::Relaxed);
    print(&format!(
        "{swaps} swaps during {turns} turns; resident after swap 10 {early} KiB, after the last {late} KiB"
    ));
    assert!(late <= early + 5 * 1024, "{early} KiB became {late} KiB");
    let heard = running.heard.0.lock().unwrap().clone();
    assert!(heard.is_empty(), "{heard:?}");
    running.supervisor.shutdown().await;
}

/// What a turn does with its one snapshot: asks the model, calls a tool, asks again.
async fn turn(snapshot: Arc<Snapshot>) {
    let mut pids = Vec::new();
    for _ in 0..2 {
        let request = json!({"model": "m", "maxTokens": 1, "system": [], "messages": [], "tools": []});
        let request = serde_json::from_value(request).unwrap();
        let mut stream = snapshot.providers[0].stream(context(Arc::clone(&snapshot)), request);
        while let Some(event) = stream.next().await {
            let event = json!(event.unwrap());
            pids.extend(event["delta"].as_str().unwrap_or_default().split_whitespace().map(str::to_owned));
        }
        let call =
            snapshot.tools[0].call(context(Arc::clone(&snapshot)), "c".into(), Value::Null, Arc::new(|_| {}));
        pids.push(only_text(call.await.unwrap()));
    }
    assert_eq!(pids.len(), 42);
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The processes whose environment holds this word.
fn marked(word: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let holds = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(word.len()).any(|window| window == word.as_bytes())
    };
    pids.filter(holds).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_crashes_and_stops_leave_nothing() {
    let _alone = ALONE.lock().await;
    guard::adopt_orphans().unwrap();
    let cycles = if is_full() { 1000 } else { 60 };
    let mut host = Host::new();
    (host.limits.stop_close, host.limits.stop_term) = (Duration::from_millis(30), Duration::from_millis(60));
    let kinds = [
        "",
        "fork-detach",
        "ignore-term",
        "die-before-answer",
        "leak-pipes",
        "exit-in-handshake",
        "never-read",
    ];
    let sources: Vec<_> = kinds
        .iter()
        .enumerate()
        .flat_map(|(number, faults)| {
            let name = format!("k{number}");
            let plain = host.stress(&name, faults, &[]);
            let mut behind = host.stress(&format!("s{number}"), faults, &[]);
            // A shell that stays between, and one that ignores TERM.
            let command = std::mem::replace(&mut behind.manifest.entry.command, "sh".to_owned());
            behind.manifest.entry.args = vec!["-c".to_owned(), format!("trap '' TERM; {command}; exit $?")];
            [plain, behind]
        })
        .collect();
    let (mut before, marker) = ((0, 0), host.folder.path().to_str().unwrap().to_owned());
    for cycle in 0..cycles {
        if cycle == cycles / 4 {
            before = (descriptors(), resident());
        }
        let mut source = sources[cycle % sources.len()].clone();
        source.manifest.entry.env.insert("BINGO_MARK".to_owned(), marker.clone());
        let name = source.name.to_string();
        let running = host.start_all(vec![source]).await;
        if !name.ends_with('6') && !running.snapshot().tools.is_empty() {
            let _ = running.tool(&format!("plugin__{name}__echo"), json!({"text": "x"})).await;
        }
        running.supervisor.shutdown().await;
    }
    let after = (descriptors(), resident());
    print(&format!(
        "{cycles} cycles: descriptors {} to {}, resident {} to {} KiB",
        before.0, after.0, before.1, after.1
    ));
    assert!(marked(&marker).is_empty(), "{:?}", marked(&marker));
    assert!(after.0 <= before.0 + before.0 / 100, "{before:?} became {after:?}");
    assert!(after.1 <= before.1 + before.1 / 100 + 1024, "{before:?} became {after:?}");
}
