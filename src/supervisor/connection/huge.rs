//! Huge lines become messages one at a time, each on a thread of its own.
//!
//! A worker that parses 16 MiB lets every other task of its queue wait. And the allocator keeps what a thread has freed
//! for that thread: spread over all workers, the memory of huge values would stay with each of them, and with a thread that
//! lives on some of it would. One that ends leaves its place to the next.

use std::sync::mpsc;

use bingo_plugin_sdk::jsonrpc::{Message, MessageError};
use tokio::sync::{Semaphore, oneshot};

/// From this length on a line is huge.
pub(super) const HUGE: usize = 1024 * 1024;

/// Whose line is at work.
static TURN: Semaphore = Semaphore::const_new(1);

/// A line and what it is.
type Parsed = (String, Result<Message, MessageError>);

/// Returns the message that a line holds, and the line without the long strings that moved into the message.
pub(super) async fn parse(line: String) -> Parsed {
    if line.len() < HUGE {
        return Message::parse_owned(line);
    }
    let turn = TURN.acquire().await.expect("it is never closed");
    let (reply, parsed) = oneshot::channel();
    // The line comes after: a thread that cannot be started must not take it along.
    let (lines, line_here) = mpsc::sync_channel(1);
    let run = move || {
        if let Ok(line) = line_here.recv() {
            // A reader that left is normal.
            let _ = reply.send(Message::parse_owned(line));
        }
        drop(turn);
    };
    if let Err(error) = std::thread::Builder::new().name("huge-line".to_owned()).spawn(run) {
        tracing::warn!(%error, "there is no thread for a huge line");
        return Message::parse_owned(line);
    }
    lines.send(line).expect("the thread waits for it");
    parsed.await.expect("the thread answers")
}
