//! How long an interrupt takes while a provider streams as fast as it can: until `provider/cancel` is there, and until the
//! client has the acknowledgement. The provider is this program; both sides read the same clock.

use std::fs::File;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use serde_json::{Value, json};

use crate::Figures;
use crate::server::Server;

/// The argument under which this program is the provider; the next one is the file of its times.
pub(crate) const PROVIDER: &str = "--provider";

const INTERRUPTS: usize = 200;
/// Frames that a client has read before it interrupts.
const FLOWING: usize = 20;
/// Milliseconds within which the cancel shall be written.
const CANCEL: f64 = 5.0;

pub(crate) fn run() -> Figures {
    let folder = tempfile::tempdir().unwrap();
    let times = folder.path().join("times");
    let plugin = plugin(folder.path(), &times);
    let args = ["--plugin", plugin.to_str().unwrap(), "--model", "flood/m"];
    let mut server = Server::start(folder.path(), &args);
    let (mut begun, mut acknowledged) = (Vec::new(), Vec::new());
    for number in 0..INTERRUPTS {
        // A session of its own: what was said in the last one would be sent along.
        let session = server.create(folder.path());
        server.submit(&session, &format!("req_s{number}"), "go");
        for _ in 0..FLOWING {
            server.until("\"itemDelta\"");
        }
        let intent = format!("req_i{number}");
        begun.push(now());
        server.interrupt(&session, &intent);
        server.until(&format!("\"intent\":\"{intent}\""));
        acknowledged.push(now() - begun[number]);
        server.until("\"turnCompleted\"");
    }
    server.end();
    let text = std::fs::read_to_string(times).unwrap();
    let cancelled: Vec<f64> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(cancelled.len(), INTERRUPTS, "each was told");
    let cancels: Vec<f64> =
        cancelled.iter().zip(&begun).map(|(cancelled, begun)| cancelled - begun).collect();
    let (cancels, acknowledged) = (Times::of(cancels), Times::of(acknowledged));
    let (sync, cancel) = (syncs(folder.path()), cancels.at(99));
    let acknowledged_late = acknowledged.at(99);
    vec![
        ("interrupt: provider/cancel, p50 ms".to_owned(), cancels.at(50)),
        ("interrupt: provider/cancel, p99 ms".to_owned(), cancel),
        ("interrupt: acknowledged, p50 ms".to_owned(), acknowledged.at(50)),
        ("interrupt: acknowledged, p99 ms".to_owned(), acknowledged_late),
        ("fdatasync, p99 ms".to_owned(), sync),
        ("interrupt: acknowledged / its bound".to_owned(), acknowledged_late / (CANCEL + 2.0 * sync)),
    ]
}

/// Milliseconds since some moment, the same for all processes.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as f64 / 1e6
}

/// Times in order.
struct Times(Vec<f64>);

impl Times {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    fn at(&self, percent: usize) -> f64 {
        self.0[(self.0.len() - 1) * percent / 100]
    }
}

/// How long `fdatasync` takes here behind a write of one line.
fn syncs(folder: &Path) -> f64 {
    let mut file = File::create(folder.join("syncs")).unwrap();
    let times = (0..INTERRUPTS * 2).map(|_| {
        file.write_all(&[b'x'; 400]).unwrap();
        let begun = Instant::now();
        file.sync_data().unwrap();
        begun.elapsed().as_secs_f64() * 1e3
    });
    Times::of(times.collect()).at(99)
}

fn plugin(folder: &Path, times: &Path) -> PathBuf {
    let root = folder.join("flood");
    std::fs::create_dir_all(&root).unwrap();
    let manifest = json!({
        "name": "flood", "version": "1",
        "entry": { "command": std::env::current_exe().unwrap(), "args": [PROVIDER, times] },
    });
    std::fs::write(root.join("plugin.json"), manifest.to_string()).unwrap();
    root
}

/// Is the provider, until stdin is closed. It reads on a thread that does nothing else, so that it notes when the cancel was
/// written and not when somebody had time for it.
pub(crate) fn provide(times: &Path) -> ExitCode {
    let (mut times, mut flood) = (File::create(times).unwrap(), None);
    for line in std::io::stdin().lock().lines() {
        let (line, told) = (line.unwrap(), now());
        let message: Value = serde_json::from_str(&line).unwrap();
        match message["method"].as_str().unwrap() {
            "initialize" => answer(
                &message["id"],
                &json!({
                    "name": "flood", "version": "1", "protocol": message["params"]["protocol"],
                    "providers": [{ "id": "flood", "models": [{ "id": "m" }] }],
                }),
            ),
            "provider/stream" => flood = Some(Flood::start(message)),
            "provider/cancel" => {
                writeln!(times, "{told}").unwrap();
                flood.take().into_iter().for_each(Flood::end);
            }
            _ => {}
        }
    }
    ExitCode::SUCCESS
}

fn answer(id: &Value, result: &Value) {
    let line = json!({ "jsonrpc": "2.0", "id": id, "result": result });
    // The host may be gone.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Words without end.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    id: Value,
}

impl Flood {
    fn start(call: Value) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, id) = (Arc::clone(&stop), call["id"].clone());
        let thread = std::thread::spawn(move || {
            let delta = |event: Value| {
                let params = json!({ "call": call["params"]["call"], "event": event });
                format!("{}\n", json!({ "jsonrpc": "2.0", "method": "provider/delta", "params": params }))
            };
            let words = delta(json!({ "type": "textDelta", "id": "b", "delta": "words ".repeat(8) }));
            let mut out = std::io::stdout();
            let start = [json!({ "type": "streamStart" }), json!({ "type": "textStart", "id": "b" })];
            start.into_iter().for_each(|event| out.write_all(delta(event).as_bytes()).unwrap());
            while !stopped.load(Ordering::Relaxed) && out.write_all(words.as_bytes()).is_ok() {}
        });
        Self { stop, thread, id }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        answer(&self.id, &json!({}));
    }
}
