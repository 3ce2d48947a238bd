//! A client of `bingo serve`: writes lines, reads lines with a limit, checks each against `schema/rpc.json`, and folds
//! frames as any client would.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};

use bingo_plugin_sdk::event::Frame;
use bingo_plugin_sdk::state::SessionState;
use serde_json::{Value, json};

use super::{LIMIT, repository};

/// A running server and its one client.
pub struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Arc<Mutex<String>>,
    schema: Value,
    validators: BTreeMap<String, jsonschema::Validator>,
    /// Methods of requests that are not answered yet, by id.
    asked: BTreeMap<String, String>,
    next_id: i64,
    /// Responses that came while another was waited for.
    responses: VecDeque<Value>,
    /// `event` params that were not looked at yet, in order.
    pub events: VecDeque<Value>,
    /// `gateway/event` params that were not looked at yet, in order.
    pub gateway: VecDeque<Value>,
    /// Every line of the conversation, for a failing test to show.
    log: Vec<String>,
}

impl Client {
    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let (errors, kept) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&stderr));
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).for_each(|line| *kept.lock().unwrap() += &(line + "\n"));
        });
        let schema = std::fs::read_to_string(repository("schema/rpc.json")).unwrap();
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            stderr,
            schema: serde_json::from_str(&schema).unwrap(),
            validators: BTreeMap::new(),
            asked: BTreeMap::new(),
            next_id: 1,
            responses: VecDeque::new(),
            events: VecDeque::new(),
            gateway: VecDeque::new(),
            log: Vec::new(),
        }
    }

    pub fn initialize(&mut self) -> Value {
        let client = json!({ "name": "test", "surface": "test" });
        self.call("initialize", json!({ "client": client, "protocol": 1 }))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the server wrote to stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Writes bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        self.log.push(format!("> {}", String::from_utf8_lossy(&bytes[..bytes.len().min(500)])));
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).and_then(|()| stdin.flush()).unwrap();
    }

    /// Sends a request whose params are valid; returns its id.
    pub fn send(&mut self, method: &str, params: Value) -> i64 {
        self.check(method, "params", &params);
        let id = self.next_id;
        self.next_id += 1;
        self.asked.insert(id.to_string(), method.to_owned());
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        self.write(format!("{line}\n").as_bytes());
        id
    }

    /// Returns an intent that no client has used, for what is asked over and over.
    pub fn intent(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        format!("req_fresh_{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends a request and returns its result.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        let response = self.response(id);
        assert!(response.get("error").is_none(), "{method} failed: {response}\n{}", self.story());
        response["result"].clone()
    }

    /// Sends a request and returns its error.
    #[track_caller]
    pub fn fail(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        let response = self.response(id);
        assert!(response.get("error").is_some(), "{method} succeeded: {response}\n{}", self.story());
        response["error"].clone()
    }

    /// Waits for the response to this id; notifications meanwhile are kept.
    #[track_caller]
    pub fn response(&mut self, id: i64) -> Value {
        loop {
            if let Some(at) = self.responses.iter().position(|response| response["id"] == id) {
                return self.responses.remove(at).unwrap();
            }
            self.read();
        }
    }

    /// Waits for the next response, whatever its id.
    #[track_caller]
    pub fn any_response(&mut self) -> Value {
        while self.responses.is_empty() {
            self.read();
        }
        self.responses.pop_front().unwrap()
    }

    /// Waits for the next frame.
    #[track_caller]
    pub fn event(&mut self) -> Value {
        while self.events.is_empty() {
            self.read();
        }
        self.events.pop_front().unwrap()
    }

    /// Reads frames until one fulfils `wanted`; returns all of them, that one last.
    #[track_caller]
    pub fn events_until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            events.push(self.event());
            if wanted(events.last().unwrap()) {
                return events;
            }
        }
    }

    /// Waits for the next gateway event.
    #[track_caller]
    pub fn gateway_event(&mut self) -> Value {
        while self.gateway.is_empty() {
            self.read();
        }
        self.gateway.pop_front().unwrap()
    }

    /// Creates a session in `cwd`; returns its id and the snapshot.
    #[track_caller]
    pub fn create(&mut self, cwd: &std::path::Path) -> (String, Value) {
        let selector = json!({ "kind": "create", "spec": { "cwd": cwd } });
        let opened = self.call("session/open", json!({ "selector": selector }));
        (opened["session"].as_str().unwrap().to_owned(), opened["snapshot"].clone())
    }

    /// Submits text under this intent.
    #[track_caller]
    pub fn submit(&mut self, session: &str, intent: &str, text: &str) {
        let input = json!({ "kind": "text", "text": text, "origin": { "surface": "test" } });
        self.call("session/submit", json!({ "session": session, "intent": intent, "input": input }));
    }

    /// Opens a stored or live session; returns its snapshot.
    #[track_caller]
    pub fn open(&mut self, session: &str) -> Value {
        let selector = json!({ "kind": "byId", "id": session });
        self.call("session/open", json!({ "selector": selector }))["snapshot"].clone()
    }

    /// Interrupts whatever runs.
    #[track_caller]
    pub fn interrupt(&mut self, session: &str, intent: &str) {
        let scope = json!({ "kind": "head" });
        self.call("session/interrupt", json!({ "session": session, "intent": intent, "scope": scope }));
    }

    /// Puts text to a session as another session would.
    #[track_caller]
    pub fn deliver(&mut self, session: &str, intent: &str, text: &str, delivery: &str) {
        let origin = json!({ "surface": "peer", "principal": "another session" });
        let input = json!({ "kind": "text", "text": text, "origin": origin });
        let params = json!({ "session": session, "intent": intent, "input": input, "delivery": delivery });
        self.call("session/deliver", params);
    }

    /// Answers an interaction as a program does.
    #[track_caller]
    pub fn answer(&mut self, session: &str, intent: &str, interaction: &Value, answer: &Value) {
        let params = json!({ "session": session, "intent": intent, "interaction": interaction,
            "answer": answer, "activation": "programmatic" });
        self.call("session/answer", params);
    }

    /// Reads frames until one of this kind; returns all of them, that one last.
    #[track_caller]
    pub fn until(&mut self, kind: &str) -> Vec<Value> {
        self.events_until(|frame| frame["event"]["type"] == kind)
    }

    /// Reads frames until a delta ends with these words: deltas may come merged.
    #[track_caller]
    pub fn until_said(&mut self, words: &str) -> Vec<Value> {
        self.events_until(|frame| frame["event"]["data"].as_str().is_some_and(|data| data.ends_with(words)))
    }

    /// Reads frames until the acknowledgement of this intent; returns all of them, that one last.
    #[track_caller]
    pub fn until_ack(&mut self, intent: &str) -> Vec<Value> {
        self.events_until(|frame| frame["event"]["type"] == "intentAck" && frame["event"]["intent"] == intent)
    }

    /// Sends a line as it is and returns the response that it gets.
    #[track_caller]
    pub fn line(&mut self, line: impl AsRef<[u8]>) -> Value {
        self.write(&[line.as_ref(), b"\n"].concat());
        self.any_response()
    }

    /// Returns the exit code once the server ended by itself.
    #[track_caller]
    pub fn exit_code(&mut self) -> Option<i32> {
        super::wait_until("the server ended", || {
            let status = self.child.try_wait().unwrap();
            status.map(|status| status.code()).ok_or_else(|| self.story())
        })
    }

    /// Submits text and returns every frame up to the turn's end.
    #[track_caller]
    pub fn turn(&mut self, session: &str, intent: &str, text: &str) -> Vec<Value> {
        self.submit(session, intent, text);
        self.events_until(|frame| frame["event"]["type"] == "turnCompleted")
    }

    /// Ends the input, and waits until the server ended; returns its exit code.
    #[track_caller]
    pub fn finish(&mut self) -> Option<i32> {
        self.stdin = None;
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) => self.take(&line),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap().code(),
                Err(RecvTimeoutError::Timeout) => panic!("the server does not end\n{}", self.story()),
            }
        }
    }

    /// Takes the lines that are there already.
    pub fn poll(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.take(&line);
        }
    }

    /// Ends the server as a crash would, and takes every whole line that it still wrote.
    pub fn kill_and_hear(&mut self) {
        self.kill();
        while let Ok(line) = self.lines.recv_timeout(LIMIT) {
            // The last one may be torn.
            if serde_json::from_str::<Value>(&line).is_ok() {
                self.take(&line);
            }
        }
    }

    /// Ends the server as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The conversation so far, and what stood on stderr.
    pub fn story(&self) -> String {
        format!("{}\nstderr:\n{}", self.log.join("\n"), self.stderr())
    }

    /// Asserts that a value fits `side` of a method, or the `params` of a notification.
    #[track_caller]
    pub fn check(&mut self, method: &str, side: &str, value: &Value) {
        let key = format!("{method} {side}");
        let schema = &self.schema;
        let validator = self.validators.entry(key.clone()).or_insert_with(|| {
            let table = if schema["methods"].get(method).is_some() { "methods" } else { "notifications" };
            let mut one = schema[table][method][side].clone();
            assert!(one.is_object(), "the schema has no {key}");
            one["$defs"] = schema["$defs"].clone();
            jsonschema::validator_for(&one).unwrap()
        });
        let faults: Vec<String> =
            validator.iter_errors(value).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
        assert!(faults.is_empty(), "{key} breaks the schema: {faults:?}\n{value}\n{}", self.story());
    }

    #[track_caller]
    fn read(&mut self) {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => self.take(&line),
            Err(error) => panic!("no line came: {error}\n{}", self.story()),
        }
    }

    /// Checks a line and puts it where it is waited for.
    #[track_caller]
    fn take(&mut self, line: &str) {
        self.log.push(format!("< {}", line.chars().take(500).collect::<String>()));
        let message: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        if let Some(method) = message["method"].as_str() {
            self.check(method, "params", &message["params"]);
            match method {
                "event" => self.events.push_back(message["params"].clone()),
                _ => self.gateway.push_back(message["params"].clone()),
            }
            return;
        }
        if let (Some(method), Some(result)) =
            (self.asked.remove(&message["id"].to_string()), message.get("result"))
        {
            self.check(&method, "result", result);
        }
        self.responses.push_back(message);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stdin = None;
        // A server that a test left ends with its input; one that hangs is ended.
        for _ in 0..500 {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                break;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
        self.kill();
        let stderr = self.stderr();
        let faulty = ["panicked at", "breaks the schema"].iter().any(|words| stderr.contains(words));
        assert!(std::thread::panicking() || !faulty, "the server has a fault of its own\n{}", self.story());
    }
}

/// Folds frames into a snapshot with the reducer that kernel and clients share.
pub fn fold(snapshot: &Value, frames: &[Value]) -> SessionState {
    let mut state: SessionState = serde_json::from_value(snapshot.clone()).unwrap();
    for frame in frames {
        state.apply(&serde_json::from_value::<Frame>(frame.clone()).unwrap());
    }
    state
}
