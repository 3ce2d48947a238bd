//! What plugins under pressure cost the host and each other, in figures: `cargo bench --bench pressure`.
//!
//! Each part runs in a process of its own, three times, and the medians count. Within a part the idle and the loaded
//! calls alternate, because the machine is shared with the plugins. Exit code 1 means that a bound is broken.
//! `cargo bench --bench pressure -- WORD` runs only the parts whose names hold that word.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking, as tests do")]

#[path = "../tests/host/mod.rs"]
mod host;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use host::{Host, Running, context};

const RUNS: usize = 3;
const MIB: f64 = 1024.0 * 1024.0;

/// The kinds of noise that are bad lines; `tests/fixtures/stress/noise.rs` makes them.
const BAD: [&str; 9] =
    ["prose", "bytes", "half", "array", "notification", "progress", "request", "long", "endless"];

/// Answers of 16 MiB, each with what fills it.
const FILLED: [(&str, &str); 5] = [
    ("message of 16 MiB", "text"),
    ("message of 16 MiB with escapes", "escapes"),
    ("message of 16 MiB of texts", "texts"),
    ("tiny values of 16 MiB", "numbers"),
    ("tiny objects of 16 MiB", "objects"),
];

/// What a figure may be at most.
const BOUNDS: [(&str, f64); 16] = [
    ("deltas: p99 ratio", 3.0),
    ("bad lines: p99 ratio", 2.0),
    ("stderr: MiB of log", 5.1),
    ("stderr: MiB grown", 16.0),
    ("deaf: MiB grown", 16.0),
    ("endless: MiB at most", 32.0),
    ("too long: MiB at most", 32.0),
    ("not UTF-8: MiB at most", 32.0),
    ("prose of 16 MiB: MiB at most", 32.0),
    ("message of 16 MiB: MiB grown", 32.0),
    ("message of 16 MiB: MiB at most", 32.0),
    ("message of 16 MiB with escapes: MiB at most", 32.0),
    ("message of 16 MiB of texts: MiB at most", 32.0),
    ("tiny values of 16 MiB: MiB at most", 32.0),
    ("tiny objects of 16 MiB: MiB at most", 32.0),
    ("deaf: p99 ratio of another", 2.0),
];

type Figures = Vec<(String, f64)>;

fn main() -> ExitCode {
    // Cargo says `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [flag, part] = &args[..]
        && flag == "--part"
    {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let part = part.clone();
        // A task among the host's own: a thread that only waits for them would want a processor more.
        let figures = runtime.block_on(runtime.spawn(async move { run(&part).await })).unwrap();
        for (name, value) in figures {
            writeln!(std::io::stdout().lock(), "{name}\t{value}").unwrap();
        }
        return ExitCode::SUCCESS;
    }
    let wanted = args.first().map_or("", String::as_str);
    let bad = BAD.iter().map(|kind| format!("bad lines {kind}"));
    let memory = ["stderr", "deaf", "endless", "too long", "not UTF-8", "prose of 16 MiB"];
    let filled = FILLED.map(|(part, _)| part.to_owned());
    let deltas = ["deltas", "threaded deltas"].map(str::to_owned);
    let parts = deltas.into_iter().chain(bad).chain(memory.map(str::to_owned)).chain(filled);
    let mut broken = false;
    for part in parts.filter(|part| part.contains(wanted)) {
        broken |= report(medians(&part));
    }
    ExitCode::from(u8::from(broken))
}

async fn run(part: &str) -> Figures {
    match part {
        "deltas" => deltas(part, "one-thread,").await,
        // Its own threads wait for a processor that its flood takes, whatever the host does: no bound.
        "threaded deltas" => deltas(part, "").await,
        "stderr" => stderr().await,
        "deaf" => deaf().await,
        "endless" => {
            memory(part, "offer-noise", &json!({"kind": "endless", "size": 65536, "ms": 2000})).await
        }
        "too long" => {
            memory(part, "offer-noise", &json!({"kind": "long", "size": 17 << 20, "times": 5})).await
        }
        "not UTF-8" => {
            memory(part, "offer-noise", &json!({"kind": "bytes", "size": 16 << 20, "times": 5})).await
        }
        "prose of 16 MiB" => {
            memory(part, "offer-noise", &json!({"kind": "long", "size": 16 << 20, "times": 5})).await
        }
        _ if let Some((_, kind)) = FILLED.iter().find(|(filled, _)| *filled == part) => {
            let faults = format!("offer-noise,line=16777216,line-of={kind}");
            memory(part, &faults, &json!({"kind": "prose"})).await
        }
        _ => bad_lines(part.strip_prefix("bad lines ").expect("there are no other parts")).await,
    }
}

/// Runs a part in processes of its own and returns the median of each of its figures.
fn medians(part: &str) -> Figures {
    let mut figures: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..RUNS {
        #[expect(clippy::disallowed_methods, reason = "a process whose memory is this part's alone")]
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--part", part])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{part}: {text}{}", String::from_utf8_lossy(&output.stderr));
        for (name, value) in text.lines().filter_map(|line| line.split_once('\t')) {
            figures.entry(name.to_owned()).or_default().push(value.parse().unwrap());
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    figures.into_iter().map(|(name, values)| (name, median(values))).collect()
}

/// Prints figures beside their bounds; returns whether one is broken.
fn report(figures: Figures) -> bool {
    let mut broken = false;
    for (name, value) in figures {
        let bound = BOUNDS.iter().find(|(bounded, _)| name.starts_with(bounded)).map(|(_, bound)| *bound);
        let verdict = match bound {
            None => String::new(),
            Some(bound) if value <= bound => format!("  within {bound}"),
            Some(bound) => {
                broken = true;
                format!("  BREAKS {bound}")
            }
        };
        writeln!(std::io::stdout().lock(), "{name:<52}{value:>10.2}{verdict}").unwrap();
    }
    broken
}

/// How long calls took, in microseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn at(&self, quantile: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * quantile) as usize]
    }

    /// Calls the tool `echo` of a plugin, one call after the other.
    async fn calls(&mut self, running: &Running, plugin: &str, times: usize) {
        for _ in 0..times {
            self.call(running, plugin).await;
        }
    }

    /// Calls until `over`.
    async fn calls_until(&mut self, running: &Running, plugin: &str, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            self.call(running, plugin).await;
        }
    }

    async fn call(&mut self, running: &Running, plugin: &str) {
        let begun = Instant::now();
        running.tool(&format!("plugin__{plugin}__echo"), json!({"text": "x"})).await.unwrap();
        self.0.push(begun.elapsed().as_secs_f64() * 1e6);
    }
}

/// The figures of calls when all is quiet and under load.
fn compared(name: &str, idle: &Times, loaded: &Times) -> Figures {
    let mut figures = Vec::new();
    for (what, times) in [("idle", idle), ("loaded", loaded)] {
        for (word, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            figures.push((format!("{name}: {word} {what}, µs"), times.at(quantile)));
        }
    }
    figures.push((format!("{name}: calls under load"), loaded.0.len() as f64));
    figures
}

fn ratio(idle: &Times, loaded: &Times) -> f64 {
    loaded.at(0.99) / idle.at(0.99)
}

async fn shared(sources: &[(&str, &str)]) -> (Host, Arc<Running>) {
    let host = Host::new();
    let sources = sources.iter().map(|(name, faults)| host.stress(name, faults, &[])).collect();
    let running = Arc::new(host.start_all(sources).await);
    (host, running)
}

/// A million deltas of one stream to a consumer that looks every 20 ms, while the same plugin's tool is called.
async fn deltas(name: &str, faults: &str) -> Figures {
    const DELTAS: u64 = 1_000_000;
    let (_host, running) = shared(&[("p", &format!("{faults}flood-deltas={DELTAS}"))]).await;
    let (mut idle, mut loaded) = (Times::default(), Times::default());
    idle.calls(&running, "p", 200).await;
    idle.0.clear();
    idle.calls(&running, "p", 2000).await;
    let over = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let stream = tokio::spawn({
        let (running, over) = (Arc::clone(&running), Arc::clone(&over));
        async move {
            let request =
                json!({"model": "stress", "maxTokens": 1, "system": [], "messages": [], "tools": []});
            let snapshot = running.snapshot();
            let request = serde_json::from_value(request).unwrap();
            let mut stream = snapshot.providers[0].stream(context(Arc::clone(&snapshot)), request);
            let (mut events, mut bytes) = (0, 0);
            while let Some(event) = stream.next().await {
                let text = json!(event.unwrap());
                events += 1;
                bytes += text["delta"].as_str().map_or(0, str::len);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            over.store(true, Ordering::Relaxed);
            (events, bytes)
        }
    });
    loaded.calls_until(&running, "p", &over).await;
    let took = begun.elapsed().as_secs_f64();
    let (events, bytes) = stream.await.unwrap();
    let expected: usize = (0..DELTAS).map(|n| format!("{n} ").len()).sum();
    assert_eq!(bytes, expected, "every delta arrived");
    idle.calls(&running, "p", 2000).await;
    let mut figures = compared(name, &idle, &loaded);
    figures.push((format!("{name}: p99 ratio"), ratio(&idle, &loaded)));
    figures.push((format!("{name}: seconds"), took));
    figures.push((format!("{name}: events that the consumer saw"), f64::from(events)));
    running.supervisor.shutdown().await;
    figures
}

/// Makes noise until it is done; `over` is set then.
fn noise(running: &Arc<Running>, input: Value) -> Arc<AtomicBool> {
    let (running, over) = (Arc::clone(running), Arc::new(AtomicBool::new(false)));
    let told = Arc::clone(&over);
    tokio::spawn(async move {
        // A line over the limit may fail the call that makes it: then it is done all the same.
        let _ = running.tool("plugin__noisy__noise", input).await;
        told.store(true, Ordering::Relaxed);
    });
    over
}

/// Bad lines of one kind from a neighbour.
async fn bad_lines(kind: &str) -> Figures {
    let (_host, running) = shared(&[("noisy", "offer-noise"), ("p", "")]).await;
    let (mut idle, mut loaded) = (Times::default(), Times::default());
    idle.calls(&running, "p", 200).await;
    idle.0.clear();
    let size = match kind {
        "long" => 17 << 20,
        "endless" => 1 << 16,
        _ => 100,
    };
    for _ in 0..3 {
        idle.calls(&running, "p", 1500).await;
        let input = json!({"kind": kind, "size": size, "ms": 700});
        loaded.calls_until(&running, "p", &noise(&running, input)).await;
    }
    let mut figures = compared(&format!("bad lines: {kind}"), &idle, &loaded);
    figures.push((format!("bad lines: p99 ratio, {kind}"), ratio(&idle, &loaded)));
    running.supervisor.shutdown().await;
    figures
}

/// A gigabyte on stderr.
async fn stderr() -> Figures {
    let (_host, running) = shared(&[("noisy", "offer-noise"), ("p", "")]).await;
    let (mut idle, mut loaded) = (Times::default(), Times::default());
    idle.calls(&running, "p", 200).await;
    idle.0.clear();
    idle.calls(&running, "p", 2000).await;
    let (before, begun) = (Memory::reset(), Instant::now());
    let over = noise(&running, json!({"kind": "stderr", "size": 1000, "times": 1_000_000}));
    loaded.calls_until(&running, "p", &over).await;
    let took = begun.elapsed().as_secs_f64();
    let logs = std::fs::read_dir(running.data_dir.join("logs")).unwrap();
    let log: u64 = logs.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    let mut figures = compared("stderr", &idle, &loaded);
    figures.push(("stderr: p99 loaded / idle".to_owned(), ratio(&idle, &loaded)));
    figures.push(("stderr: MiB of log".to_owned(), log as f64 / MIB));
    figures.push(("stderr: seconds".to_owned(), took));
    figures.extend(before.grown("stderr"));
    running.supervisor.shutdown().await;
    figures
}

/// A plugin that reads nothing gets 2000 calls of 10 kB at once.
async fn deaf() -> Figures {
    let (_host, running) = shared(&[("deaf", "never-read"), ("p", "")]).await;
    let (mut idle, mut loaded) = (Times::default(), Times::default());
    idle.calls(&running, "p", 200).await;
    idle.0.clear();
    idle.calls(&running, "p", 2000).await;
    let before = Memory::reset();
    let calls: Vec<_> = (0..2000)
        .map(|_| {
            let running = Arc::clone(&running);
            tokio::spawn(async move {
                let snapshot = running.snapshot();
                let deaf = |tool: &&Arc<dyn bingo::ports::Tool>| tool.spec().name == "plugin__deaf__echo";
                let tool = Arc::clone(snapshot.tools.iter().find(deaf).unwrap());
                let (context, input) = (context(snapshot), json!({"text": "x".repeat(10_000)}));
                tool.call(context, "c".to_owned(), input, Arc::new(|_| {})).await
            })
        })
        .collect();
    // Making two thousand calls takes the host a moment that is not the plugin's.
    while calls.iter().filter(|call| call.is_finished()).count() < 1000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    loaded.calls(&running, "p", 2000).await;
    let mut figures = compared("deaf", &idle, &loaded);
    figures.push(("deaf: p99 ratio of another".to_owned(), ratio(&idle, &loaded)));
    figures.extend(before.grown("deaf"));
    let refused = calls.iter().filter(|call| call.is_finished()).count();
    assert!((1000..2000).contains(&refused), "{refused} calls were refused");
    figures.push(("deaf: calls that were refused as busy".to_owned(), refused as f64));
    running.supervisor.shutdown().await;
    figures
}

/// The memory of lines that one plugin writes, five times.
async fn memory(name: &str, faults: &str, input: &Value) -> Figures {
    let (_host, running) = shared(&[("noisy", faults), ("p", "")]).await;
    Times::default().calls(&running, "p", 200).await;
    let before = Memory::reset();
    for _ in 0..5 {
        let answer = running.tool("plugin__noisy__noise", input.clone()).await;
        // Others fail the call that makes them.
        assert!(answer.is_ok() || !name.starts_with("message"), "{name}: {answer:?}");
    }
    let figures = before.grown(name);
    running.supervisor.shutdown().await;
    figures
}

/// The memory of this process at some moment, in MiB.
struct Memory(f64);

impl Memory {
    /// Returns what it is now; the most is counted from here.
    fn reset() -> Self {
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        Self(Self::now("VmRSS:"))
    }

    fn now(key: &str) -> f64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    fn grown(&self, name: &str) -> Figures {
        let more = |key: &str| (Self::now(key) - self.0).max(0.0);
        vec![(format!("{name}: MiB at most"), more("VmHWM:")), (format!("{name}: MiB grown"), more("VmRSS:"))]
    }
}
