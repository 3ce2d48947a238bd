//! Opening a session without a checkpoint, which reads and folds its whole journal, beside a bare parse of the same file.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use bingo::journal::JsonlJournal;
use bingo::settings::SyncMode;
use bingo_plugin_sdk::event::Frame;
use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::rpc::{OpenOptions, SessionSelector};

use crate::{Figures, bare, number, print, processor_time, story};

/// The best of so many runs of each counts: both are as fast as the machine lets them be then.
const RUNS: usize = 3;

pub(crate) fn run() -> Figures {
    let turns = number("BINGO_BENCH_FRAMES", 1_000_000).div_ceil(story::FRAMES);
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let session = runtime.block_on(story::store(folder.path(), turns));
    let dir = folder.path().join("sessions").join(session.as_str());
    let path = dir.join("journal.jsonl");
    let mib = std::fs::metadata(&path).unwrap().len() as f64 / 1024.0 / 1024.0;
    let (mut bare, mut replayed) = (f64::MAX, f64::MAX);
    let mut frames = 0;
    for _ in 0..RUNS {
        let begun = own_time();
        frames = parse(&path);
        bare = bare.min(own_time() - begun);
        replayed = replayed.min(runtime.block_on(open(folder.path(), &session)));
        // What was stored by the opening is left in both, the checkpoint in none.
        drop(std::fs::remove_file(dir.join("checkpoint")));
    }
    print(&format!("{frames} frames, {mib:.0} MiB"));
    vec![
        ("bare parse, frames a second".to_owned(), frames as f64 / bare),
        ("replay, frames a second".to_owned(), frames as f64 / replayed),
        ("replay / bare parse".to_owned(), bare / replayed),
    ]
}

/// Parses every line into a frame, and drops it.
fn parse(path: &Path) -> usize {
    let mut input = BufReader::new(File::open(path).unwrap());
    let (mut line, mut frames) = (Vec::new(), 0);
    input.read_until(b'\n', &mut line).unwrap();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line).unwrap() == 0 {
            return frames;
        }
        let frame: Frame = serde_json::from_slice(&line).unwrap();
        std::hint::black_box(frame);
        frames += 1;
    }
}

/// The processor time of this process so far, in seconds: unlike the clock it says little of what else the machine does.
fn own_time() -> f64 {
    processor_time(std::process::id()) / 1000.0
}

/// Opens a session in a host of its own; returns the seconds of processor time that it took.
async fn open(data_dir: &Path, session: &SessionId) -> f64 {
    let journal = Arc::new(JsonlJournal::new(data_dir.to_path_buf()));
    let kernel = bare::kernel(journal, SyncMode::Off);
    let begun = own_time();
    let selector = SessionSelector::ById { id: session.clone() };
    let attachment = kernel.open(selector, OpenOptions::default()).await.unwrap();
    let took = own_time() - begun;
    assert_eq!(attachment.session, *session);
    kernel.shutdown().await;
    took
}
