//! Plugins that press on the host: the turn goes on, each call ends in its answer or in words, and the server's memory
//! stays what it was. Each server is a process of its own, so that its memory is nobody else's.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::common::{Client, Sandbox, memory};

const MIB: u64 = 1024 * 1024;

/// A server with the echo model that permits everything, with these plugins.
fn serve(sandbox: &Sandbox, plugins: &[&Path]) -> Client {
    let mut args: Vec<_> =
        ["--model", "echo/echo", "--permission-mode", "bypassPermissions"].map(str::to_owned).into();
    for plugin in plugins {
        args.extend(["--plugin".to_owned(), plugin.to_str().unwrap().to_owned()]);
    }
    sandbox.serve(args)
}

/// Looks at the memory of a process all the time; knows what it took before, and the most since.
struct Watch {
    id: u32,
    before: u64,
    most: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

/// How much more memory was taken than before, in bytes.
#[derive(Debug)]
struct Grown {
    most: u64,
    after: u64,
}

impl Watch {
    fn new(id: u32) -> Self {
        let before = memory(id);
        let (most, over) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
        let (seen, ended) = (Arc::clone(&most), Arc::clone(&over));
        let watcher = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                seen.fetch_max(memory(id), Ordering::Relaxed);
                std::thread::park_timeout(Duration::from_millis(2));
            }
        });
        Self { id, before, most, over, watcher: Some(watcher) }
    }

    fn grown(mut self) -> Grown {
        self.over.store(true, Ordering::Relaxed);
        self.watcher.take().unwrap().join().unwrap();
        let more = |now: u64| now.saturating_sub(self.before);
        Grown { most: more(self.most.load(Ordering::Relaxed)), after: more(memory(self.id)) }
    }
}

const LATE: &str = "stress: the tool neither answered nor showed progress for 200 ms";

fn call(tool: &str, input: &Value) -> String {
    format!("@tool plugin__{tool} {input}\n")
}

/// The texts of a turn's tool results, in order.
fn results(frames: &[Value]) -> Vec<String> {
    let output = |frame: &Value| {
        let body = &frame["event"]["item"]["body"];
        let done = frame["event"]["type"] == "itemCompleted" && body["kind"] == "toolCall";
        done.then(|| body["output"]["parts"][0]["text"].as_str().unwrap_or_default().to_owned())
    };
    frames.iter().filter_map(output).collect()
}

/// Starts a server with these plugins, runs a turn, and returns its results and what the server grew by.
fn turn(sandbox: &Sandbox, plugins: &[&Path], prompt: &str) -> (Vec<String>, Grown) {
    let mut client = serve(sandbox, plugins);
    let (session, _) = client.create(&sandbox.work());
    client.turn(&session, "first", "what is used once is loaded now");
    let watch = Watch::new(client.pid());
    let frames = client.turn(&session, "second", prompt);
    let grown = watch.grown();
    assert_eq!(client.finish(), Some(0));
    (results(&frames), grown)
}

/// Runs a turn in which the stress plugin gets a call with this many bytes and then eleven smaller ones, and another plugin
/// is called after it.
fn many_calls(faults: &str, first: usize) -> (Vec<String>, Grown) {
    let sandbox = Sandbox::new();
    // The bench fills a queue of 4 MiB, which takes the model of a debug build too long.
    // One that reads is given as long as a loaded machine takes.
    let idle = if faults.is_empty() { 30_000 } else { 200 };
    let settings = format!("[supervisor.stress.timeouts]\ntoolIdle = {idle}\nqueued = 1000000\n");
    sandbox.write("home/.bingo/settings.toml", &settings);
    let well = sandbox.python("well", "hello()\ntext(read(), 'fine')\nread()\n");
    let echo = |length: usize| call("stress__echo", &json!({ "text": "x".repeat(length) }));
    let prompt = echo(first) + &echo(95_000).repeat(11) + &call("well__t", &json!({}));
    turn(&sandbox, &[&sandbox.stress(faults), &well], &prompt)
}

#[test]
fn a_plugin_that_stops_reading_is_busy_and_the_turn_goes_on() {
    // A pipe holds 64 KiB: the first call is stuck half written, and counts whole.
    let (texts, grown) = many_calls("never-read", 950_000);
    assert_eq!(texts[0], LATE);
    let busy = "stress: tool/call was not sent, the plugin is busy: 950";
    assert!(texts[1..12].iter().all(|text| text.starts_with(busy)), "{texts:?}");
    assert_eq!(texts[12..], ["fine"]);
    // The session holds the large inputs either way.
    let (texts, normal) = many_calls("", 950_000);
    assert!(texts[..12].iter().all(|text| text.starts_with("xxx")) && texts[12] == "fine", "{texts:?}");
    assert!(grown.most < normal.most + 16 * MIB, "{grown:?}, and {normal:?} when it reads");
}

#[test]
fn what_was_given_up_takes_no_room_from_later_calls() {
    // Eleven that waited would be more than the queue holds.
    let (texts, _) = many_calls("never-read", 95_000);
    assert!(texts[..12].iter().all(|text| text == LATE), "{texts:?}");
    assert_eq!(texts[12..], ["fine"]);
}

#[test]
fn a_line_of_16_mebibytes_is_a_message_and_a_longer_one_is_not() {
    for length in [16 * MIB - 1, 16 * MIB, 16 * MIB + 1] {
        let sandbox = Sandbox::new();
        let plugin = sandbox.stress(&format!("line={length}"));
        let (texts, grown) = turn(&sandbox, &[&plugin], &call("stress__echo", &json!({ "text": "é" })));
        if length <= 16 * MIB {
            assert_eq!(texts, ["é"]);
            assert!(grown.most < 32 * MIB, "{length}: {grown:?}");
        } else {
            let text = "stress: the response to tool/call cannot be used: its line has 16777217 bytes, the limit is 16777216";
            assert_eq!(texts, [text]);
            assert!(grown.most < 32 * MIB, "{length}: {grown:?}");
        }
        assert!(grown.after < 32 * MIB, "{length}: {grown:?}");
    }
}

#[test]
fn huge_lines_that_are_no_message_leave_no_memory_behind() {
    let sandbox = Sandbox::new();
    let noise = |kind: &str, size: u64, times: u64| {
        call("stress__noise", &json!({ "kind": kind, "size": size, "times": times }))
    };
    let prompt = noise("long", 16 * MIB, 2) + &noise("bytes", 16 * MIB, 2) + &noise("long", 17 * MIB, 1);
    let (texts, grown) = turn(&sandbox, &[&sandbox.stress("offer-noise")], &prompt);
    assert_eq!(texts, ["done", "done", "done"], "no object, so nobody's answer");
    assert!(grown.most < 32 * MIB && grown.after < 16 * MIB, "{grown:?}");
}

#[test]
fn a_line_that_never_ends_keeps_nobody_and_no_memory() {
    let sandbox = Sandbox::new();
    sandbox.write("home/.bingo/settings.toml", "[supervisor.stress.timeouts]\ntoolIdle = 1500\n");
    let well = sandbox.python("well", "hello()\ntext(read(), 'fine')\nread()\n");
    let prompt = call("stress__echo", &json!({})) + &call("well__t", &json!({}));
    let (texts, grown) = turn(&sandbox, &[&sandbox.stress("endless-line"), &well], &prompt);
    assert_eq!(texts, ["stress: the tool neither answered nor showed progress for 1500 ms", "fine"]);
    assert!(grown.most < 32 * MIB, "{grown:?}");
}
