//! A real `bingo serve` and its pipes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use serde_json::{Value, json};

pub(crate) struct Server {
    child: Child,
    stdin: ChildStdin,
    /// What it says, read while we write: neither side waits for the other's full pipe.
    lines: Receiver<String>,
    next: u64,
}

impl Server {
    /// Starts one and waits until the plugins of the start are there.
    pub(crate) fn start(home: &Path, args: &[&str]) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the measured program is started here")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_bingo"));
        command.args(["serve", "--stdio"]).args(args).current_dir(home).env("HOME", home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut server = Self { child, stdin, lines, next: 1 };
        let client = json!({ "name": "bench", "surface": "bench" });
        server.call("initialize", &json!({ "client": client, "protocol": 1 }));
        server.call("catalog/read", &json!({ "kind": "models" }));
        server
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Creates a session with a name, so that no turn has to give it one.
    pub(crate) fn create(&mut self, cwd: &Path) -> String {
        let spec = json!({ "cwd": cwd, "title": "bench" });
        let opened = self.call("session/open", &json!({ "selector": { "kind": "create", "spec": spec } }));
        opened["session"].as_str().unwrap().to_owned()
    }

    pub(crate) fn submit(&mut self, session: &str, intent: &str, text: &str) {
        let input = json!({ "kind": "text", "text": text, "origin": { "surface": "bench" } });
        let params = json!({ "session": session, "intent": intent, "input": input });
        self.send("session/submit", &params);
    }

    pub(crate) fn interrupt(&mut self, session: &str, intent: &str) {
        let params = json!({ "session": session, "intent": intent, "scope": { "kind": "head" } });
        self.send("session/interrupt", &params);
    }

    /// Returns the next line, as it stands.
    pub(crate) fn line(&mut self) -> String {
        self.lines.recv().expect("the server still runs")
    }

    /// Reads up to a line that holds these words.
    pub(crate) fn until(&mut self, words: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(words) {
                return line;
            }
        }
    }

    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params);
        loop {
            let answer: Value = serde_json::from_str(&self.line()).unwrap();
            if answer["id"] == id {
                assert!(answer.get("error").is_none(), "{answer}");
                return answer["result"].clone();
            }
        }
    }

    fn send(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next;
        self.next += 1;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.stdin.write_all(format!("{request}\n").as_bytes()).unwrap();
        id
    }

    /// Returns how much of it is resident, in MiB.
    pub(crate) fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    /// Lets it end in order.
    pub(crate) fn end(mut self) {
        drop(self.stdin);
        // All it says is read, so that it can end.
        self.lines.iter().for_each(drop);
        self.child.wait().unwrap();
    }
}
