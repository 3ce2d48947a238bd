//! `session/open` of a long session in a real `bingo serve`: its processor time, and what is resident afterwards.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use bingo_plugin_sdk::ids::SessionId;
use serde_json::{Value, json};

use crate::{Figures, number, print, processor_time, story};

/// The best of so many runs counts.
const RUNS: usize = 3;

pub(crate) fn run() -> Figures {
    let turns = number("BINGO_BENCH_ITEMS", 100_000).div_ceil(story::ITEMS);
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join(".bingo/data");
    std::fs::create_dir_all(&data_dir).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let session = runtime.block_on(story::store(&data_dir, turns));
    drop(runtime);
    let dir = data_dir.join("sessions").join(session.as_str());
    let size = |name: &str| std::fs::metadata(dir.join(name)).unwrap().len() as f64 / 1024.0 / 1024.0;
    let (first_cpu, first_resident) = Server::start(folder.path()).open(&session);
    print(&format!(
        "{} items, journal of {:.0} MiB, checkpoint of {:.1} MiB",
        turns * story::ITEMS,
        size("journal.jsonl"),
        size("checkpoint")
    ));
    let opened: Vec<_> = (0..RUNS).map(|_| Server::start(folder.path()).open(&session)).collect();
    let least = |figures: &mut dyn Iterator<Item = f64>| figures.fold(f64::MAX, f64::min);
    vec![
        ("open without a checkpoint: CPU, ms".to_owned(), first_cpu),
        ("open without a checkpoint: resident, MiB".to_owned(), first_resident),
        ("open: CPU, ms".to_owned(), least(&mut opened.iter().map(|(cpu, _)| *cpu))),
        ("open: resident, MiB".to_owned(), least(&mut opened.iter().map(|(_, resident)| *resident))),
    ]
}

/// A `bingo serve` and its pipes.
struct Server {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    next: u64,
}

impl Server {
    fn start(home: &Path) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the measured program is started here")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_bingo"));
        command.args(["serve", "--stdio", "--model", "echo/echo"]).current_dir(home).env("HOME", home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut server = Self { child, stdin, stdout, next: 1 };
        let client = json!({ "name": "bench", "surface": "bench" });
        server.call("initialize", &json!({ "client": client, "protocol": 1 }));
        // Until the plugins of the start are there.
        server.call("catalog/read", &json!({ "kind": "models" }));
        server
    }

    /// Opens a session and ends; returns the milliseconds of processor time that it took, and the MiB resident then.
    fn open(mut self, session: &SessionId) -> (f64, f64) {
        let before = processor_time(self.child.id());
        let opened = self.call("session/open", &json!({ "selector": { "kind": "byId", "id": session } }));
        let took = processor_time(self.child.id()) - before;
        let items = opened["snapshot"]["items"].as_array().map_or(0, Vec::len);
        assert!(items > 0, "{opened}");
        let resident = self.resident();
        drop(self.stdin);
        // All it says is read, so that it can end.
        std::io::copy(&mut self.stdout, &mut std::io::sink()).unwrap();
        self.child.wait().unwrap();
        (took, resident)
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.next;
        self.next += 1;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        writeln!(self.stdin, "{request}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the server ended");
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == id {
                assert!(answer.get("error").is_none(), "{answer}");
                return answer["result"].clone();
            }
        }
    }

    fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }
}
