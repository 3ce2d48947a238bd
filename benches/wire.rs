//! What the plugin wire costs, in ratios of one run: `cargo bench --bench wire`.
//!
//! Beside a tool call through the supervisor, with all its checks, run a bare ping-pong over two pipes and rmcp at its best.
//! Their programs are looked for in `PEERS_WORK/target/release` (default `/tmp/peers`); without them only our own figures are
//! printed. Everything runs twice: pinned to one processor with `taskset`, where a round trip costs no wake-up of another
//! one, and free. `BINGO_WORKERS=1` gives the host a runtime of one thread, as `bingo -p` has. A word as argument chooses
//! the parts whose names hold it.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking, as tests do")]
#![expect(clippy::disallowed_methods, reason = "the measured programs are started here")]

#[path = "../tests/host/mod.rs"]
mod host;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bingo::ports::Tool;
use bingo::supervisor::discovery::PluginSource;
use bingo_plugin_sdk::calls::{ObservePoint, Phase};
use bingo_plugin_sdk::provider::ModelEvent;
use serde_json::{Value, json};

use host::{Host, Running, context};

const PARTS: [&str; 8] = ["calls", "in flight", "large", "deltas", "observe", "check", "starts", "memory"];

/// What a ratio may be at most.
const AIMS: [(&str, f64); 10] = [
    ("call p50 / rmcp p50", 0.7),
    ("call p50 / ping-pong p50", 4.0),
    ("rmcp rate / rate, 64 in flight", 0.5),
    ("1 MiB p50 / rmcp p50", 1.0),
    ("parse rate / delta rate", 2.0),
    ("handshake, ms", 10.0),
    ("clean stop, ms", 5.0),
    ("50 Python plugins / bare handshakes", 1.3),
    ("resident without plugins, MiB", 12.0),
    ("KiB for an idle plugin", 150.0),
];

fn print(line: &str) {
    writeln!(std::io::stdout().lock(), "{line}").unwrap();
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [flag, part] = &args[..]
        && flag == "--part"
    {
        let mut builder = match std::env::var("BINGO_WORKERS").as_deref() {
            Ok("1") => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        let (runtime, part) = (builder.enable_all().build().unwrap(), part.clone());
        // A task among the host's own, as sessions are.
        return runtime.block_on(runtime.spawn(async move { run(&part).await })).unwrap();
    }
    let wanted = args.first().map_or("", String::as_str);
    for pinned in [true, false] {
        for part in PARTS.iter().filter(|part| part.contains(wanted)) {
            print(&format!("== {part}, {}", if pinned { "pinned to one processor" } else { "free" }));
            let own = std::env::current_exe().unwrap();
            let status =
                pin(pinned, own).args(["--part", part]).env("BINGO_PINNED", pinned.to_string()).status();
            assert!(status.unwrap().success(), "{part}");
        }
    }
}

/// A command that runs on the first processor alone, or wherever it likes.
fn pin(pinned: bool, program: PathBuf) -> Command {
    if !pinned {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program);
    command
}

async fn run(part: &str) {
    match part {
        "calls" => calls().await,
        "in flight" => in_flight().await,
        "large" => large().await,
        "deltas" => deltas().await,
        "observe" => observe().await,
        "check" => check(),
        "starts" => starts().await,
        _ => memory().await,
    }
}

fn figure(name: &str, value: f64) {
    let aim = AIMS.iter().find(|(aimed, _)| *aimed == name).map(|(_, aim)| *aim);
    let verdict = match aim {
        None => String::new(),
        Some(aim) if value <= aim => format!("  within {aim}"),
        Some(aim) => format!("  MISSES {aim}"),
    };
    print(&format!("{name:<44}{value:>12.2}{verdict}"));
}

fn quantile(mut times: Vec<f64>, at: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * at) as usize]
}

/// Runs a peer and returns the figures of its `best-of` line, by name; nothing when it is not built.
fn peer(program: &str, args: &[&str]) -> Option<BTreeMap<String, f64>> {
    let work = std::env::var_os("PEERS_WORK").map_or_else(|| PathBuf::from("/tmp/peers"), PathBuf::from);
    let path = work.join("target/release").join(program);
    if !path.exists() {
        print(&format!("({} is not built)", path.display()));
        return None;
    }
    let args: Vec<String> = args.iter().map(|arg| arg.replace("SELF", path.to_str().unwrap())).collect();
    // Whoever pinned this process pinned its children.
    let output = Command::new(&path).args(args).env("PEER_RT", "current").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let best = text.lines().find(|line| line.starts_with("best-of"))?;
    let numbers = best.split_whitespace().filter_map(|word| {
        let (name, value) = word.split_once('=')?;
        Some((name.to_owned(), value.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()?))
    });
    Some(numbers.collect())
}

async fn echo(host: &Host) -> Running {
    host.start_all(vec![host.program("p", env!("CARGO_BIN_EXE_bingo-sdk-echo"))]).await
}

fn tool(running: &Running) -> Arc<dyn Tool> {
    Arc::clone(&running.snapshot().tools[0])
}

/// The best of five runs of so many calls, one at a time: p50 and p99 in microseconds.
async fn one_at_a_time(running: &Running, calls: usize, text: &str) -> (f64, f64) {
    let (tool, snapshot) = (tool(running), running.snapshot());
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..6 {
        let mut times = Vec::with_capacity(calls);
        for _ in 0..calls {
            let begun = Instant::now();
            let context = context(Arc::clone(&snapshot));
            tool.call(context, "c".to_owned(), json!({"text": text}), Arc::new(|_| {})).await.unwrap();
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        let p50 = quantile(times.clone(), 0.5);
        if p50 < best.0 {
            best = (p50, quantile(times, 0.99));
        }
    }
    best
}

async fn calls() {
    let running = echo(&Host::new()).await;
    let (p50, p99) = one_at_a_time(&running, 10_000, &"x".repeat(64)).await;
    running.supervisor.shutdown().await;
    figure("call p50, µs", p50);
    figure("call p99, µs", p99);
    for mode in ["raw", "json"] {
        if let Some(pipes) = peer("pipe-pingpong", &[mode, "--runs", "5"]) {
            figure(&format!("ping-pong ({mode}) p50, µs"), pipes["p50"]);
            if mode == "json" {
                figure("call p50 / ping-pong p50", p50 / pipes["p50"]);
            }
        }
    }
    let args = ["client", "--runs", "5", "--n", "10000", "--", "SELF", "server-pipes"];
    if let Some(rmcp) = peer("rmcp-echo", &args) {
        figure("rmcp p50, µs", rmcp["p50"]);
        figure("rmcp p99, µs", rmcp["p99"]);
        figure("call p50 / rmcp p50", p50 / rmcp["p50"]);
    }
}

async fn in_flight() {
    const CALLS: usize = 50_000;
    let running = Arc::new(echo(&Host::new()).await);
    let mut best: f64 = 0.0;
    for _ in 0..4 {
        let begun = Instant::now();
        let callers: Vec<_> = (0..64)
            .map(|_| {
                let running = Arc::clone(&running);
                tokio::spawn(async move {
                    let (tool, snapshot) = (tool(&running), running.snapshot());
                    for _ in 0..CALLS / 64 {
                        let (context, input) =
                            (context(Arc::clone(&snapshot)), json!({"text": "x".repeat(64)}));
                        tool.call(context, "c".to_owned(), input, Arc::new(|_| {})).await.unwrap();
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        best = best.max(CALLS as f64 / begun.elapsed().as_secs_f64());
    }
    running.supervisor.shutdown().await;
    figure("calls a second, 64 in flight", best);
    let args = ["client", "--runs", "3", "--n", "50000", "--inflight", "64", "--", "SELF", "server-pipes"];
    if let Some(rmcp) = peer("rmcp-echo", &args) {
        figure("rmcp calls a second, 64 in flight", rmcp["rate"]);
        figure("rmcp rate / rate, 64 in flight", rmcp["rate"] / best);
    }
}

async fn large() {
    let running = echo(&Host::new()).await;
    // A result's text is cut for the model at 50,000 characters, after it came whole and was checked.
    let (p50, _) = one_at_a_time(&running, 100, &"x".repeat(1 << 20)).await;
    running.supervisor.shutdown().await;
    figure("1 MiB there and back, p50, µs", p50);
    let args = ["client", "--runs", "3", "--n", "200", "--bytes", "1048576", "--", "SELF", "server-pipes"];
    if let Some(rmcp) = peer("rmcp-echo", &args) {
        figure("rmcp 1 MiB p50, µs", rmcp["p50"]);
        figure("1 MiB p50 / rmcp p50", p50 / rmcp["p50"]);
    }
}

/// Deltas from the plugin to a consumer, beside a loop that parses the same lines from memory.
async fn deltas() {
    const DELTAS: u32 = 300_000;
    let running = echo(&Host::new()).await;
    let snapshot = running.snapshot();
    let mut best = f64::MAX;
    for _ in 0..3 {
        let request = json!({"model": "m", "maxTokens": DELTAS, "system": [], "messages": [], "tools": []});
        let request = serde_json::from_value(request).unwrap();
        let begun = Instant::now();
        let mut stream = snapshot.providers[0].stream(context(Arc::clone(&snapshot)), request);
        let mut bytes = 0;
        while let Some(event) = stream.next().await {
            if let ModelEvent::TextDelta { delta, .. } = event.unwrap() {
                bytes += delta.len();
            }
        }
        let expected: usize = (0..DELTAS).map(|number| format!("{number} ").len()).sum();
        assert_eq!(bytes, expected);
        best = best.min(begun.elapsed().as_secs_f64());
    }
    running.supervisor.shutdown().await;
    let line = |number: u32| {
        let event = json!({"type": "textDelta", "id": "b", "delta": format!("{number} ")});
        json!({"jsonrpc": "2.0", "method": "provider/delta", "params": {"call": "call-1", "event": event}})
            .to_string()
    };
    let lines: Vec<String> = (0..DELTAS).map(line).collect();
    let begun = Instant::now();
    let parsed = lines.iter().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
    let parse = begun.elapsed().as_secs_f64();
    assert_eq!(parsed, DELTAS as usize);
    figure("deltas a second", f64::from(DELTAS) / best);
    figure("parsed lines a second", f64::from(DELTAS) / parse);
    figure("parse rate / delta rate", best / parse);
}

/// An observation for ten plugins: until all have it in their queues.
async fn observe() {
    const TIMES: u32 = 2_000;
    let host = Host::new();
    let sources =
        (0..10).map(|n| host.program(&format!("p{n}"), env!("CARGO_BIN_EXE_bingo-sdk-echo"))).collect();
    let running = host.start_all(sources).await;
    let snapshot = running.snapshot();
    let site = json!({"session": "ses_01M8QJFA7QE69CJMB2RG15N51S", "cwd": "/"});
    let site = serde_json::from_value(site).unwrap();
    let begun = Instant::now();
    for _ in 0..TIMES {
        for hook in &snapshot.hooks {
            hook.observe(&site, &ObservePoint::Compact { phase: Phase::End });
        }
        tokio::task::yield_now().await;
    }
    let each = begun.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES);
    running.supervisor.shutdown().await;
    figure("observation to 10 plugins, µs", each);
}

/// The check of messages beside parsing them.
fn check() {
    let result = json!({"output": {"parts": [{"type": "text", "text": "x".repeat(64)}]}});
    let call = json!({"callId": "c", "name": "echo", "input": {"text": "x".repeat(64)}, "cwd": "/tmp",
        "session": "ses_01M8QJFA7QE69CJMB2RG15N51S", "turn": "trn_01M8QJFA7QE69CJMB2RG15N51S"});
    let progress = json!({"callId": "c", "tail": "step 1 of 10"});
    let kinds = [
        ("tool/call", bingo::schema::Part::Params, call),
        ("tool/call", bingo::schema::Part::Result, result),
        ("tool/progress", bingo::schema::Part::Params, progress),
    ];
    for (method, part, value) in kinds {
        const TIMES: u32 = 200_000;
        let text = json!({"jsonrpc": "2.0", "id": 1, "body": value}).to_string();
        let schema = bingo::schema::plugin();
        schema.check(method, part, &value).unwrap();
        let begun = Instant::now();
        for _ in 0..TIMES {
            std::hint::black_box(schema.check(method, part, std::hint::black_box(&value))).unwrap();
        }
        let check = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        for _ in 0..TIMES {
            std::hint::black_box(serde_json::from_str::<Value>(std::hint::black_box(&text))).unwrap();
        }
        let parse = begun.elapsed().as_secs_f64();
        figure(&format!("check / parse, {method} {part:?} (aim 0.2)"), check / parse);
    }
}

async fn starts() {
    let (mut handshakes, mut stops) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let host = Host::new();
        let begun = Instant::now();
        let running = echo(&host).await;
        handshakes.push(begun.elapsed().as_secs_f64() * 1e3);
        let begun = Instant::now();
        running.supervisor.shutdown().await;
        stops.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    figure("handshake, ms", quantile(handshakes, 0.5));
    figure("clean stop, ms", quantile(stops, 0.5));
    let (rust, _) = ready(|host, name| host.program(name, env!("CARGO_BIN_EXE_bingo-sdk-echo"))).await;
    figure("50 Rust plugins ready, ms", rust);
    let (mut ours, mut bare, mut stopped) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        bare.push(bare_handshakes());
        let (time, stop) = ready(|host, name| host.named_source(name, PYTHON, &[])).await;
        ours.push(time);
        stopped.push(stop);
    }
    let [ours, bare, stopped] = [ours, bare, stopped].map(|times| quantile(times, 0.5));
    figure("50 Python plugins ready, ms", ours);
    figure("50 bare Python handshakes, ms", bare);
    figure("50 Python plugins / bare handshakes", ours / bare);
    figure("50 Python plugins stopped, ms", stopped);
}

/// Says what it is and serves nothing.
const PYTHON: &str = "hello(tools=TOOL)\nwhile True:\n    read()\n";

/// How many milliseconds it takes until 50 plugins are ready, and until they are gone.
async fn ready(source: fn(&Host, &str) -> PluginSource) -> (f64, f64) {
    let host = Host::new();
    let sources = (0..50).map(|number| source(&host, &format!("p{number}"))).collect();
    let begun = Instant::now();
    let running = host.start_all(sources).await;
    let ready = begun.elapsed();
    assert_eq!(running.snapshot().tools.len(), 50);
    let begun = Instant::now();
    running.supervisor.shutdown().await;
    (ready.as_secs_f64() * 1e3, begun.elapsed().as_secs_f64() * 1e3)
}

/// How many milliseconds it takes until 50 Python processes of the same kind, side by side and without a host, have answered
/// to a first line.
fn bare_handshakes() -> f64 {
    let host = Host::new();
    let scripts: Vec<PathBuf> = (0..50)
        .map(|number| host.named_source(&format!("p{number}"), PYTHON, &[]).root.join("main.py"))
        .collect();
    let begun = Instant::now();
    let start = |script: &PathBuf| {
        let mut command = Command::new("python3");
        let mut child = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        writeln!(
            child.stdin.as_mut().unwrap(),
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{}}}}"#
        )
        .unwrap();
        child
    };
    let mut children: Vec<Child> = scripts.iter().map(start).collect();
    for child in &mut children {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("\"protocol\""), "{line}");
    }
    let all = begun.elapsed();
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    all.as_secs_f64() * 1e3
}

/// Resident memory of `bingo serve` with 0, 1 and 50 plugins; its guards and plugins apart.
async fn memory() {
    let mut own = Vec::new();
    for count in [0usize, 1, 50] {
        let host = Host::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bingo"));
        command.args(["serve", "--stdio"]).env("HOME", host.folder.path());
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
        for number in 0..count {
            let source = host.program(&format!("p{number}"), env!("CARGO_BIN_EXE_bingo-sdk-echo"));
            command.arg("--plugin").arg(source.root);
        }
        let mut child = command.spawn().unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        own.push(resident(child.id()) / 1024.0);
        let guards: Vec<u32> = children(child.id());
        let total: f64 = guards.iter().map(|guard| resident(*guard)).sum();
        figure(&format!("resident with {count} plugins, MiB"), *own.last().unwrap());
        figure(
            &format!("guards of {count} plugins (and the echo model), each MiB"),
            total / 1024.0 / guards.len().max(1) as f64,
        );
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    figure("resident without plugins, MiB", own[0]);
    figure("KiB for an idle plugin", (own[2] - own[1]) * 1024.0 / 49.0);
}

/// The resident memory of a process in KiB.
fn resident(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}
