//! A plugin that is replaced over and over while sessions call its tool and stream from its model. The turns are slow: each
//! leaves some KiB in its session, which are not the replacement's.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::{plugin, server, titled};
use crate::common::{Client, Sandbox, is, memory, wait_until};

const SESSIONS: usize = 8;

/// Says the id of its process in each delta of its model and in its tool. A turn is a stream that calls the tool, and one
/// after that.
const PIDS: &str = "
PID = str(os.getpid())


def stream(params):
    def delta(event):
        say({'method': 'provider/delta', 'params': {'call': params['call'], 'event': event}})

    again = any(part['type'] == 'toolResult' for part in params['request']['messages'][-1]['parts'])
    delta({'type': 'streamStart'})
    delta({'type': 'textStart', 'id': 'b'})
    for _ in range(10):
        delta({'type': 'textDelta', 'id': 'b', 'delta': PID + ' '})
        time.sleep(0.06)
    delta({'type': 'textEnd', 'id': 'b'})
    if not again:
        delta({'type': 'toolCall', 'id': 'call-%d' % time.time_ns(), 'name': 'plugin__p__t', 'input': '{}'})
    reason = 'stop' if again else 'toolCalls'
    delta({'type': 'finish', 'usage': {'inputTokens': 1, 'outputTokens': 1}, 'finishReason': {'unified': reason}})
    return {}


serve({'tools': [TOOL], 'providers': [{'id': 'py', 'models': [{'id': 'm'}]}]}, tool_call=lambda params: words(PID), provider_stream=stream)
";

/// What a turn said so far.
#[derive(Default)]
struct Said {
    pids: BTreeSet<String>,
    words: usize,
}

impl Said {
    fn take(&mut self, item: &Value) {
        let text = match item["body"]["kind"].as_str() {
            Some("assistant") => item["body"]["text"].as_str(),
            Some("toolCall") => item["body"]["output"]["parts"][0]["text"].as_str(),
            Some("notice") => panic!("nothing is told: {item}"),
            _ => None,
        };
        for word in text.unwrap_or_default().split_whitespace() {
            self.pids.insert(word.to_owned());
            self.words += 1;
        }
    }

    /// The one process that answered a whole turn.
    fn pid(self) -> u32 {
        assert_eq!((self.pids.len(), self.words), (1, 21), "{:?}", self.pids);
        self.pids.first().unwrap().parse().unwrap()
    }
}

/// What is resident after so many turns.
#[derive(Debug)]
struct Mark {
    turns: usize,
    kib: i64,
}

impl Mark {
    fn now(turns: usize, client: &Client) -> Self {
        Self { turns, kib: (memory(client.pid()) / 1024) as i64 }
    }
}

/// Another file takes the place of the program: the same words, and one line more.
fn touch(plugin: &Path, number: usize) {
    let (path, fresh) = (plugin.join("main.py"), plugin.join(".fresh"));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&fresh, format!("{text}# {number}\n")).unwrap();
    std::fs::rename(fresh, path).unwrap();
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Rule 4.1.1.
#[test]
fn turns_of_sessions_see_one_process_each_while_it_is_replaced() {
    let full = std::env::var("BINGO_ENDURANCE").is_ok_and(|size| size == "full");
    let swaps = if full { 50 } else { 3 };
    let sandbox = Sandbox::new();
    let plugin = plugin(&sandbox, "p", PIDS);
    let args = ["--model", "py/m", "--permission-mode", "bypassPermissions"];
    let mut client = server(&sandbox, &[&plugin], &args);
    let sessions: Vec<String> = (0..SESSIONS).map(|_| titled(&mut client, &sandbox)).collect();
    let mut running: BTreeMap<String, Said> = BTreeMap::new();
    for session in &sessions {
        client.submit(session, "req_0", "go");
        running.insert(session.clone(), Said::default());
    }
    // The processes that answered, in the order in which they were seen first.
    let (mut pids, mut turns): (Vec<u32>, usize) = (Vec::new(), 0);
    // After ten swaps, after the last, and after as many turns more as lay between.
    let mut marks: Vec<Mark> = Vec::new();
    while !running.is_empty() {
        let frame = client.event();
        let session = frame["session"].as_str().unwrap().to_owned();
        if is(&frame, "itemCompleted") {
            running.get_mut(&session).unwrap().take(&frame["event"]["item"]);
        }
        if !is(&frame, "turnCompleted") {
            continue;
        }
        assert_eq!(frame["event"]["status"]["kind"], "completed", "{frame}");
        turns += 1;
        let pid = running.remove(&session).unwrap().pid();
        if !pids.contains(&pid) {
            pids.push(pid);
            if pids.len() == 11 || pids.len() == swaps + 1 {
                marks.push(Mark::now(turns, &client));
            }
            if pids.len() <= swaps {
                touch(&plugin, pids.len());
            }
        }
        let quiet = full && marks.last().is_some_and(|mark| turns < mark.turns * 2 - marks[0].turns);
        if pids.len() <= swaps || quiet {
            client.submit(&session, &format!("req_{turns}"), "go");
            running.insert(session, Said::default());
        }
    }
    for pid in &pids[..swaps] {
        wait_until(
            &format!("{pid} ended"),
            || if is_alive(*pid) { Err("it lives".to_owned()) } else { Ok(()) },
        );
    }
    if full {
        marks.push(Mark::now(turns, &client));
        let [early, late, quiet] = &marks[..] else { panic!("{marks:?}") };
        // What the turns leave in their sessions they leave without a replacement too.
        let (swapped, same) = (late.kib - early.kib, quiet.kib - late.kib);
        assert!(swapped <= same + 2048, "{swaps} swaps left something: {marks:?}");
        writeln!(std::io::stderr(), "{swaps} swaps: {marks:?}, so {swapped} KiB and {same} KiB without")
            .unwrap();
    }
    assert_eq!(client.finish(), Some(0));
}
