//! A client that submits, delivers, answers and interrupts while its server is killed at random moments, and repeats what
//! was not acknowledged (design §7). A few kills in every test run, `BINGO_ROUNDS` of them when it is set.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::time::Duration;

use bingo_plugin_sdk::event::Frame;
use bingo_plugin_sdk::state::SessionState;
use serde_json::{Value, json};

use crate::common::{Client, Sandbox, is};

/// Kills in a test run.
const FEW: u64 = 15;
/// The newest requests of which any may come again.
const AGAIN: u64 = 500;

/// Numbers that differ from run to run.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(RandomState::new().hash_one(0) | 1)
    }

    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn sleep(&mut self, most_ms: u64) {
        std::thread::sleep(Duration::from_micros(self.below(most_ms * 1000)));
    }
}

/// A request under an intent, and how it was acknowledged so far.
struct Asked {
    method: &'static str,
    params: Value,
    outcomes: Vec<Value>,
}

/// The client and all it knows.
struct Driver {
    sandbox: Sandbox,
    random: Random,
    session: String,
    state: SessionState,
    /// Every frame it saw, by number.
    seen: BTreeMap<u64, Value>,
    asked: BTreeMap<u64, Asked>,
    questions: Vec<Value>,
}

impl Driver {
    fn new(sync: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("home/.bingo/settings.toml", format!("journal.sync = \"{sync}\"\n"));
        let mut client = serve(&sandbox);
        let spec = json!({ "cwd": sandbox.work(), "title": "t" });
        let opened = client.call("session/open", json!({ "selector": { "kind": "create", "spec": spec } }));
        Self {
            random: Random::new(),
            session: opened["session"].as_str().unwrap().to_owned(),
            state: serde_json::from_value(opened["snapshot"].clone()).unwrap(),
            seen: BTreeMap::new(),
            asked: BTreeMap::new(),
            questions: Vec::new(),
            sandbox,
        }
    }

    /// Goes on where it was: the session is opened, and every frame after the last one it knows is asked for.
    fn connect(&self) -> Client {
        let mut client = serve(&self.sandbox);
        client.open(&self.session);
        client.call("session/events", json!({ "session": self.session, "since": self.state.seq }));
        // What came before the reply comes again behind it.
        client.events.clear();
        client
    }

    /// One life of the server.
    fn round(&mut self) {
        if self.random.below(5) == 0 {
            return self.die_while_opening();
        }
        let mut client = self.connect();
        self.repeat_unanswered(&mut client);
        for _ in 0..self.random.below(20) {
            self.random.sleep(8);
            client.poll();
            self.hear(&mut client);
            self.act(&mut client);
        }
        self.random.sleep(20);
        client.kill_and_hear();
        self.hear(&mut client);
        self.questions.clear();
    }

    fn die_while_opening(&mut self) {
        let mut client = serve(&self.sandbox);
        let selector = json!({ "kind": "byId", "id": self.session });
        client.send("session/open", json!({ "selector": selector }));
        self.random.sleep(30);
        client.kill();
    }

    fn hear(&mut self, client: &mut Client) {
        for frame in client.events.drain(..) {
            let seq = frame["seq"].as_u64().unwrap();
            match &frame["event"]["type"] {
                kind if kind == "interactionOpened" => {
                    self.questions.push(frame["event"]["interaction"]["id"].clone());
                }
                kind if kind == "intentAck" => {
                    let intent = frame["event"]["intent"].as_str().unwrap();
                    let number = intent.strip_prefix("req_").unwrap().parse().unwrap();
                    let asked: &mut Asked = self.asked.get_mut(&number).unwrap();
                    asked.outcomes.push(frame["event"]["outcome"].clone());
                }
                _ => {}
            }
            self.state.apply(&serde_json::from_value::<Frame>(frame.clone()).unwrap());
            let known = self.seen.insert(seq, frame);
            assert_eq!(known, None, "a number was given twice");
        }
    }

    fn act(&mut self, client: &mut Client) {
        match self.random.below(20) {
            0..=1 => self.ask(client, "session/interrupt", json!({ "scope": { "kind": "head" } })),
            2..=5 => self.answer(client),
            6..=7 => self.deliver(client, "hold"),
            8 => self.deliver(client, "wake"),
            9..=10 => self.repeat_any(client),
            11 => self.submit(client, "/stress x"),
            12..=14 => self.submit(client, "@tool plugin__stress__echo {\"text\": \"x\"}"),
            15 => self.submit(client, "late\n@wait 15\nwords"),
            _ => self.submit(client, "some words"),
        }
    }

    fn submit(&mut self, client: &mut Client, text: &str) {
        let input = json!({ "kind": "text", "text": text, "origin": { "surface": "test" } });
        self.ask(client, "session/submit", json!({ "input": input }));
    }

    fn deliver(&mut self, client: &mut Client, delivery: &str) {
        let origin = json!({ "surface": "peer", "principal": "another session" });
        let input = json!({ "kind": "text", "text": delivery, "origin": origin });
        self.ask(client, "session/deliver", json!({ "input": input, "delivery": delivery }));
    }

    fn answer(&mut self, client: &mut Client) {
        if let Some(question) = self.questions.pop() {
            let (answer, activation) = (json!({ "kind": "allowOnce" }), "programmatic");
            let params = json!({ "interaction": question, "answer": answer, "activation": activation });
            self.ask(client, "session/answer", params);
        }
    }

    fn ask(&mut self, client: &mut Client, method: &'static str, mut params: Value) {
        let number = self.asked.len() as u64;
        params["session"] = json!(self.session);
        params["intent"] = json!(format!("req_{number}"));
        client.send(method, params.clone());
        self.asked.insert(number, Asked { method, params, outcomes: Vec::new() });
    }

    fn repeat_any(&mut self, client: &mut Client) {
        let newest = self.asked.len() as u64;
        if newest > 0 {
            let number = newest - 1 - self.random.below(newest.min(AGAIN));
            self.repeat(client, number);
        }
    }

    fn repeat(&self, client: &mut Client, number: u64) {
        let Asked { method, params, .. } = &self.asked[&number];
        client.send(method, params.clone());
    }

    fn repeat_unanswered(&self, client: &mut Client) {
        for (number, asked) in &self.asked {
            if asked.outcomes.is_empty() {
                self.repeat(client, *number);
            }
        }
    }

    /// Lets everything come to its end, and returns the stored frames.
    fn end(&mut self) -> Vec<Value> {
        let mut client = self.connect();
        self.repeat_unanswered(&mut client);
        // Held lines wait for a turn.
        self.submit(&mut client, "the end");
        let last = self.asked.len() as u64 - 1;
        while !self.is_over(last) {
            let frame = client.event();
            client.events.push_front(frame);
            self.hear(&mut client);
            while !self.questions.is_empty() {
                self.answer(&mut client);
            }
        }
        let snapshot = client.open(&self.session);
        self.assert_same_state(&snapshot);
        assert_eq!(client.finish(), Some(0));
        self.sandbox.stored(&self.session)
    }

    fn is_over(&self, last: u64) -> bool {
        let idle = self.state.turn.is_none() && self.state.queue.is_empty();
        idle && !self.asked[&last].outcomes.is_empty() && self.asked.values().all(|asked| asked.is_ended())
    }

    fn assert_same_state(&self, snapshot: &Value) {
        let mut mine = json!(self.state);
        let newest = snapshot["items"].as_array().unwrap().len();
        let items = mine["items"].as_array_mut().unwrap();
        items.drain(..items.len() - newest);
        assert_eq!(&mine, snapshot, "client and server folded the same");
    }

    fn assert_frames(&self, stored: &[Value]) {
        let numbers: Vec<u64> = stored.iter().map(|frame| frame["seq"].as_u64().unwrap()).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "numbers only grow");
        let by_number: BTreeMap<u64, &Value> = numbers.into_iter().zip(stored).collect();
        for (number, frame) in &self.seen {
            let ephemeral = ["itemDelta", "notice", "signal", "lagged"].iter().any(|kind| is(frame, kind));
            let stored = by_number.get(number).copied();
            assert_eq!(stored, (!ephemeral).then_some(frame), "what was seen is stored, or was ephemeral");
        }
        let ends = |kind: &str| stored.iter().filter(|frame| is(frame, kind)).count();
        assert_eq!(ends("turnStarted"), ends("turnCompleted"));
    }

    /// Each request ended one way and did one thing; returns how many did something.
    fn assert_intents(&self, stored: &[Value]) -> usize {
        let mut effects: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for frame in stored.iter().filter(|frame| !is(frame, "intentAck")) {
            let said = &frame["event"]["item"];
            let answered = is(frame, "interactionResolved").then(|| frame["cause"].as_str()).flatten();
            let spoken = (said["body"]["kind"] == "user").then(|| said["intent"].as_str()).flatten();
            if let Some(intent) = answered.or(spoken) {
                effects.entry(intent).or_default().push(frame);
            }
        }
        for (number, asked) in &self.asked {
            let intent = format!("req_{number}");
            let done = effects.get(intent.as_str()).map_or(0, Vec::len);
            let ends: BTreeSet<String> = asked.ends().map(Value::to_string).collect();
            assert_eq!(ends.len(), 1, "{intent} ended in several ways: {:?}", asked.outcomes);
            let end = asked.ends().next().unwrap();
            let expected = match end["kind"].as_str().unwrap() {
                "turnStarted" => 1,
                "applied" => usize::from(asked.method == "session/answer"),
                _ => 0,
            };
            assert_eq!(done, expected, "{intent} ({}) came to {end}", asked.method);
            let waited = asked.outcomes.iter().any(|outcome| outcome["kind"] == "queued");
            let is_command = asked.params["input"]["text"] == "/stress x";
            assert!(
                !waited || is_command || end["kind"] == "turnStarted",
                "{intent} waited and was lost: {end}"
            );
        }
        effects.len()
    }
}

impl Asked {
    fn ends(&self) -> impl Iterator<Item = &Value> {
        self.outcomes.iter().filter(|outcome| outcome["kind"] != "queued")
    }

    fn is_ended(&self) -> bool {
        self.ends().next().is_some()
    }
}

fn serve(sandbox: &Sandbox) -> Client {
    let plugin = sandbox.stress("");
    sandbox.serve(["--model", "echo/echo", "--plugin", plugin.to_str().unwrap()])
}

fn drive(sync: &str) {
    let rounds = std::env::var("BINGO_ROUNDS").map_or(FEW, |rounds| rounds.parse().unwrap());
    let mut driver = Driver::new(sync);
    for _ in 0..rounds {
        driver.round();
    }
    let stored = driver.end();
    driver.assert_frames(&stored);
    let done = driver.assert_intents(&stored);
    let mut stderr = std::io::stderr().lock();
    writeln!(
        stderr,
        "journal.sync = {sync}: {rounds} kills, {} requests, {done} of them with an effect, {} frames seen, {} stored",
        driver.asked.len(),
        driver.seen.len(),
        stored.len()
    )
    .unwrap();
}

/// Rule 1.1.5, 1.3.28. Mends 9.1.1, 9.1.11.
#[test]
fn nothing_acknowledged_is_lost_or_done_twice_when_every_turn_is_synced() {
    drive("turn");
}

/// Rule 1.1.5, 1.3.28. Mends 9.1.1, 9.1.11.
#[test]
fn nothing_acknowledged_is_lost_or_done_twice_when_every_frame_is_synced() {
    drive("frame");
}
