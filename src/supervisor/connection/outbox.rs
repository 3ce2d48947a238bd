//! The queue of messages for one plugin, bounded by bytes, and the task that writes them.
//!
//! Full is an answer: a plugin that does not read never makes its callers wait, nor the host grow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

use super::error::Sent;

/// How far one message came, shared with the call it belongs to.
#[derive(Debug, Default)]
pub(super) struct Mark(AtomicU8);

impl Mark {
    const QUEUED: u8 = 0;
    const WRITTEN: u8 = 1;
    const ABANDONED: u8 = 2;

    /// Returns false when nobody wants the message any more.
    fn begin_writing(&self) -> bool {
        self.leave_queue(Self::WRITTEN)
    }

    /// Takes the message back if it is not too late; returns how far it came. For the end of its call.
    pub(super) fn give_up(&self) -> Sent {
        self.leave_queue(Self::ABANDONED);
        if self.0.load(Ordering::Acquire) == Self::WRITTEN { Sent::NoAnswer } else { Sent::Never }
    }

    fn leave_queue(&self, to: u8) -> bool {
        self.0.compare_exchange(Self::QUEUED, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The queue was full.
#[derive(Debug)]
pub(super) struct Full {
    pub(super) queued: usize,
}

/// The queue between the callers and the writer.
pub(super) struct Outbox {
    limit: usize,
    state: Mutex<State>,
    ready: Notify,
}

/// How much room is kept for short words of refusal when the queue is full.
const RESERVE: usize = 1024 * 1024;

/// How often a person hears that observations were dropped, at most.
const TELL: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    messages: VecDeque<(String, Option<Arc<Mark>>)>,
    /// Bytes waiting, the message being written included.
    bytes: usize,
    closed: bool,
    /// An observation found no room, and nothing was written since.
    refusing: bool,
    /// Observations that found no room, all and those nobody was told of.
    dropped: u64,
    untold: u64,
    told: Option<Instant>,
    /// What was written: bytes with their newlines, and messages.
    bytes_out: u64,
    messages_out: u64,
}

/// What a queue was and is holding.
pub(super) struct Flow {
    pub(super) queued: usize,
    pub(super) bytes_out: u64,
    pub(super) messages_out: u64,
    pub(super) dropped: u64,
}

impl Outbox {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), ready: Notify::new() }
    }

    /// Queues a message without its newline; one of any size when nothing waits.
    pub(super) fn push(&self, line: String, mark: Option<Arc<Mark>>) -> Result<(), Full> {
        self.push_within(self.limit, line, mark)
    }

    /// Queues a message although the queue may be full: a cancel, which is small and follows a call that was let in.
    pub(super) fn push_urgent(&self, line: String) {
        // There is no limit it could be over.
        let _ = self.push_within(usize::MAX, line, None);
    }

    /// Queues a short refusal beyond the limit, while its reserve lasts.
    pub(super) fn push_reserved(&self, line: String) -> Result<(), Full> {
        self.push_within(self.limit.saturating_add(RESERVE), line, None)
    }

    /// Returns whether observations find no room, so that they need not be made.
    pub(super) fn is_crowded(&self) -> bool {
        let state = self.lock();
        state.bytes > 0 && (state.refusing || state.bytes > self.limit / 2)
    }

    /// Queues an observation, or drops and counts it. Half of the queue is left to calls.
    pub(super) fn push_or_drop(&self, line: String) {
        if self.push_within(self.limit / 2, line, None).is_err() {
            let mut state = self.lock();
            // The writer may have taken all of it meanwhile.
            state.refusing = state.bytes > 0;
            drop(state);
            self.drop_one();
        }
    }

    /// Counts an observation that is not sent.
    pub(super) fn drop_one(&self) {
        let mut state = self.lock();
        state.dropped += 1;
        state.untold += 1;
    }

    /// Returns how many observations were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Returns what went through so far.
    pub(super) fn flow(&self) -> Flow {
        let state = self.lock();
        let State { bytes, bytes_out, messages_out, dropped, .. } = *state;
        Flow { queued: bytes, bytes_out, messages_out, dropped }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push_within(&self, limit: usize, line: String, mark: Option<Arc<Mark>>) -> Result<(), Full> {
        let mut state = self.lock();
        if state.closed {
            return Ok(());
        }
        if state.bytes > 0 && state.bytes.saturating_add(line.len()) > limit {
            return Err(Full { queued: state.bytes });
        }
        state.bytes += line.len();
        state.messages.push_back((line, mark));
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    /// Lets the writer end, which closes the plugin's input. What waits is never sent. Returns how many dropped
    /// observations nobody was told of.
    pub(super) fn close(&self) -> Option<u64> {
        let mut state = self.lock();
        state.closed = true;
        state.messages.clear();
        let untold = std::mem::take(&mut state.untold);
        drop(state);
        self.ready.notify_one();
        Some(untold).filter(|untold| *untold > 0)
    }

    /// Returns the next message that is still wanted; nothing when closed.
    async fn next(&self) -> Option<String> {
        loop {
            {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                while let Some((line, mark)) = state.messages.pop_front() {
                    if mark.is_none_or(|mark| mark.begin_writing()) {
                        return Some(line);
                    }
                    state.bytes -= line.len();
                }
            }
            self.ready.notified().await;
        }
    }

    /// Takes account of a written message. Returns how many observations were dropped before the plugin read again.
    fn written(&self, bytes: usize) -> Option<u64> {
        let mut state = self.lock();
        state.bytes -= bytes;
        state.bytes_out += bytes as u64 + 1;
        state.messages_out += 1;
        state.refusing = false;
        // Only once it has caught up: while it lags more will be dropped, and one sum is enough.
        let quiet = state.told.is_none_or(|told| told.elapsed() >= TELL);
        if state.untold == 0 || state.bytes > 0 || !quiet {
            return None;
        }
        state.told = Some(Instant::now());
        Some(std::mem::take(&mut state.untold))
    }
}

/// Writes what is queued until the outbox is closed; `tell_dropped` hears how many observations were dropped.
///
/// # Errors
/// When the plugin takes no more input.
pub(super) async fn write(
    outbox: Arc<Outbox>,
    mut writer: impl AsyncWrite + Unpin,
    tell_dropped: impl Fn(u64),
) -> std::io::Result<()> {
    while let Some(mut line) = outbox.next().await {
        let bytes = line.len();
        line.push('\n');
        writer.write_all(line.as_bytes()).await?;
        writer.flush().await?;
        if let Some(dropped) = outbox.written(bytes) {
            tell_dropped(dropped);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_is_an_answer_and_one_message_of_any_size_passes() {
        let outbox = Outbox::new(10);
        outbox.push("x".repeat(100), None).unwrap();
        assert_eq!(outbox.push("y".to_owned(), None).unwrap_err().queued, 100);
        outbox.push_urgent("cancel".to_owned());
        assert_eq!(outbox.push("y".to_owned(), None).unwrap_err().queued, 106);
    }

    #[tokio::test]
    async fn an_abandoned_message_is_not_written() {
        let outbox = Arc::new(Outbox::new(100));
        let (kept, dropped) = (Arc::new(Mark::default()), Arc::new(Mark::default()));
        outbox.push("a".to_owned(), Some(Arc::clone(&dropped))).unwrap();
        outbox.push("b".to_owned(), Some(Arc::clone(&kept))).unwrap();
        assert_eq!(dropped.give_up(), Sent::Never);
        assert_eq!(outbox.next().await.as_deref(), Some("b"));
        assert_eq!((kept.give_up(), dropped.give_up()), (Sent::NoAnswer, Sent::Never));
        outbox.written(1);
        assert_eq!(outbox.state.lock().unwrap().bytes, 0);
    }
}
