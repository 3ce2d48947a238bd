//! Durable appends of eight busy sessions in each sync mode, beside eight threads that each loop `write` and `fdatasync` on
//! a file of their own on the same file system.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bingo::journal::JsonlJournal;
use bingo::settings::SyncMode;
use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::rpc::{OpenOptions, SessionSelector, SessionSpec};
use bingo_plugin_sdk::session::Driver;
use serde_json::json;

use crate::{Figures, bare};

const SESSIONS: usize = 8;
/// Writes of a busy session that are on their way at once.
const BUSY: usize = 16;
/// How long each measurement takes. They alternate, because disks are shared.
const SPAN: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 3;
/// About as long as the line of a frame.
const LINE: usize = 400;

pub(crate) fn run() -> Figures {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mut bare, mut frame, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    let measure = |sync, callers| runtime.block_on(sessions(folder.path(), sync, callers));
    for _ in 0..ROUNDS {
        bare.push(loops(folder.path()));
        frame.push(measure(SyncMode::Frame, BUSY));
        alone.push(measure(SyncMode::Frame, 1));
    }
    let ratios =
        |sessions: &[f64]| median(sessions.iter().zip(&bare).map(|(one, bare)| one / bare).collect());
    vec![
        ("append, frame / bare loops".to_owned(), ratios(&frame)),
        ("append, frame, one at a time / bare loops".to_owned(), ratios(&alone)),
        ("bare loops, writes a second".to_owned(), median(bare)),
        ("append, frame, frames a second".to_owned(), median(frame)),
        ("append, turn, frames a second".to_owned(), measure(SyncMode::Turn, BUSY)),
        ("append, off, frames a second".to_owned(), measure(SyncMode::Off, BUSY)),
    ]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the writes a second of all loops.
fn loops(folder: &Path) -> f64 {
    let line = vec![b'x'; LINE];
    let write = |number: usize| {
        let mut file = File::create(folder.join(format!("bare-{number}"))).unwrap();
        let (begun, mut writes) = (Instant::now(), 0);
        while begun.elapsed() < SPAN {
            file.write_all(&line).unwrap();
            file.sync_data().unwrap();
            writes += 1;
        }
        f64::from(writes) / begun.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SESSIONS).map(|number| scope.spawn(move || write(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Returns the durable frames a second of all sessions, each with so many callers that wait for their own.
async fn sessions(folder: &Path, sync: SyncMode, callers: usize) -> f64 {
    let kernel = bare::kernel(Arc::new(JsonlJournal::new(folder.join("data"))), sync);
    let mut ids: Vec<SessionId> = Vec::new();
    for _ in 0..SESSIONS {
        let cwd = folder.to_string_lossy().into_owned();
        let spec = SessionSpec { cwd, driver: Driver::Log, ..SessionSpec::default() };
        let opened = kernel.open(SessionSelector::Create { spec }, OpenOptions::default()).await;
        ids.push(opened.unwrap().session);
    }
    let begun = Instant::now();
    let callers = ids.iter().flat_map(|id| (0..callers).map(move |_| id.clone()));
    let tasks: Vec<_> = callers
        .map(|id| {
            let kernel = kernel.clone();
            tokio::spawn(async move {
                let mut frames = 0;
                while begun.elapsed() < SPAN {
                    let payload = json!("x".repeat(LINE / 2));
                    kernel.extend(&id, "bench".to_owned(), "state".to_owned(), payload).await.unwrap();
                    frames += 1;
                }
                frames
            })
        })
        .collect();
    let mut frames = 0;
    for task in tasks {
        frames += task.await.unwrap();
    }
    let took = begun.elapsed().as_secs_f64();
    kernel.shutdown().await;
    f64::from(frames) / took
}
