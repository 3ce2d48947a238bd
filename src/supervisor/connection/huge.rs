//! Huge lines become messages one at a time, on a thread of their own.
//!
//! A worker that parses 16 MiB lets every other task of its queue wait. And the allocator keeps what a thread has freed
//! for that thread: spread over all workers, the memory of huge values would stay with each of them.

use std::sync::OnceLock;

use bingo_plugin_sdk::jsonrpc::{Message, MessageError};
use tokio::sync::{mpsc, oneshot};

/// From this length on a line is huge.
pub(super) const HUGE: usize = 1024 * 1024;

/// A line and what it is.
type Parsed = (String, Result<Message, MessageError>);

struct Job {
    line: String,
    reply: oneshot::Sender<Parsed>,
}

/// Returns the message that a line holds, and the line without the long strings that moved into the message.
pub(super) async fn parse(line: String) -> Parsed {
    if line.len() < HUGE {
        return Message::parse_owned(line);
    }
    let (reply, parsed) = oneshot::channel();
    match thread().send(Job { line, reply }).await {
        Ok(()) => parsed.await.expect("the thread answers each job"),
        // It could not be started.
        Err(mpsc::error::SendError(job)) => Message::parse_owned(job.line),
    }
}

/// Returns the way to the one thread, which lives as long as the process.
fn thread() -> &'static mpsc::Sender<Job> {
    static THREAD: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    THREAD.get_or_init(|| {
        let (tx, mut jobs) = mpsc::channel::<Job>(1);
        let run = move || {
            while let Some(Job { line, reply }) = jobs.blocking_recv() {
                // A reader that left is normal.
                let _ = reply.send(Message::parse_owned(line));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("huge-lines".to_owned()).spawn(run) {
            tracing::warn!(%error, "there is no thread for huge lines");
        }
        tx
    })
}
