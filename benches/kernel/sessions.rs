//! A thousand sessions in one `bingo serve`, each running turns with the echo model, with the journal as it is by default.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::Value;

use crate::server::Server;
use crate::{Figures, number, processor_time};

/// Turns of each session.
const TURNS: usize = 5;

pub(crate) fn run() -> Figures {
    let count = number("BINGO_BENCH_SESSIONS", 1000);
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), &["--model", "echo/echo"]);
    let begun = server.resident();
    let mut left: HashMap<String, usize> = HashMap::new();
    let created = Instant::now();
    for _ in 0..count {
        left.insert(server.create(folder.path()), TURNS);
    }
    let creating = created.elapsed().as_secs_f64();
    let idle = server.resident();
    let (cpu, started) = (processor_time(server.pid()), Instant::now());
    for session in left.keys().cloned().collect::<Vec<_>>() {
        server.submit(&session, &format!("{session}-{TURNS}"), "some words to be said again");
    }
    let mut running = count;
    while running > 0 {
        let line = server.until("\"turnCompleted\"");
        let frame: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(frame["params"]["event"]["status"]["kind"], "completed", "{frame}");
        let session = frame["params"]["session"].as_str().unwrap();
        let turns = left.get_mut(session).unwrap();
        *turns -= 1;
        match *turns {
            0 => running -= 1,
            turns => server.submit(session, &format!("{session}-{turns}"), "some words to be said again"),
        }
    }
    let (took, turns) = (started.elapsed().as_secs_f64(), (count * TURNS) as f64);
    let cpu = processor_time(server.pid()) - cpu;
    let busy = server.resident();
    server.end();
    let each = |resident: f64| (resident - begun) * 1024.0 / count as f64;
    vec![
        ("sessions: created a second".to_owned(), count as f64 / creating),
        ("sessions: turns a second".to_owned(), turns / took),
        ("sessions: CPU of the host a turn, ms".to_owned(), cpu / turns),
        ("sessions: KiB each, idle".to_owned(), each(idle)),
        ("sessions: KiB each, after the turns".to_owned(), each(busy)),
    ]
}
