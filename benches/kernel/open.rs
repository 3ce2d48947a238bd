//! `session/open` of a long session in a real `bingo serve`: its processor time, and what is resident afterwards.

use std::path::Path;

use bingo_plugin_sdk::ids::SessionId;
use serde_json::json;

use crate::server::Server;
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
    let (first_cpu, first_resident) = open(folder.path(), &session);
    print(&format!(
        "{} items, journal of {:.0} MiB, checkpoint of {:.1} MiB",
        turns * story::ITEMS,
        size("journal.jsonl"),
        size("checkpoint")
    ));
    let opened: Vec<_> = (0..RUNS).map(|_| open(folder.path(), &session)).collect();
    let least = |figures: &mut dyn Iterator<Item = f64>| figures.fold(f64::MAX, f64::min);
    vec![
        ("open without a checkpoint: CPU, ms".to_owned(), first_cpu),
        ("open without a checkpoint: resident, MiB".to_owned(), first_resident),
        ("open: CPU, ms".to_owned(), least(&mut opened.iter().map(|(cpu, _)| *cpu))),
        ("open: resident, MiB".to_owned(), least(&mut opened.iter().map(|(_, resident)| *resident))),
    ]
}

/// Opens a session in a server of its own; returns the milliseconds of processor time that it took, and the MiB resident
/// then.
fn open(home: &Path, session: &SessionId) -> (f64, f64) {
    let mut server = Server::start(home, &["--model", "echo/echo"]);
    let before = processor_time(server.pid());
    let opened = server.call("session/open", &json!({ "selector": { "kind": "byId", "id": session } }));
    let took = processor_time(server.pid()) - before;
    let items = opened["snapshot"]["items"].as_array().map_or(0, Vec::len);
    assert!(items > 0, "{opened}");
    let resident = server.resident();
    server.end();
    (took, resident)
}
