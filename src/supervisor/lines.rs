//! Lines of a plugin's pipe, one after the other, good or bad.

use bingo_plugin_sdk::ndjson::{Line, NdjsonCodec};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::codec::Decoder;

use super::pace::Pace;

/// How much is read at a time, about: what waits here delays the answer behind it.
const READ: usize = 8 * 1024;

/// After how much read in one go other tasks get their turn, about: an answer that this task has just handed over waits on
/// this task's worker, where no other worker may take it from, and a pipe that is always full would keep it waiting.
const TURN: usize = 16 * 1024;

/// A longer line gets the room of twice the longest at once. Memory that was never touched costs nothing, while growing
/// step by step would hold the line twice now and then; and a block of over 32 MiB goes back to the system when it is
/// freed, where glibc would keep a smaller one.
const LONG: usize = 1024 * 1024;

/// Reads lines until the end of input. A read error is an end too: nothing more will come. Useless bytes are read slowly,
/// as soon as they are many: those of lines over the cap or not UTF-8, and what `waste` adds.
pub(super) struct Lines<R> {
    reader: R,
    cap: usize,
    codec: NdjsonCodec,
    pace: Pace,
    buffer: BytesMut,
    in_turn: usize,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R, cap: usize) -> Self {
        let (codec, buffer) = (NdjsonCodec::new(cap), BytesMut::with_capacity(READ));
        Self { reader, cap, codec, pace: Pace::new(), buffer, in_turn: 0, ended: false }
    }

    /// Returns the next line; nothing after the last.
    pub(super) async fn next(&mut self) -> Option<Line> {
        loop {
            let decoded = if self.ended {
                self.codec.decode_eof(&mut self.buffer)
            } else {
                self.codec.decode(&mut self.buffer)
            };
            self.pace.waste(self.codec.take_wasted());
            match decoded.ok()? {
                Some(line) => return Some(line),
                None if self.ended => return None,
                None => {
                    self.pace.keep().await;
                    self.read().await;
                }
            }
        }
    }

    /// Returns whether the input has ended: a line that came last may lack its end.
    pub(super) fn have_ended(&self) -> bool {
        self.ended
    }

    /// Counts bytes of lines that were no use.
    pub(super) fn waste(&mut self, bytes: u64) {
        self.pace.waste(bytes);
    }

    async fn read(&mut self) {
        if self.in_turn >= TURN {
            self.in_turn = 0;
            tokio::task::yield_now().await;
        }
        self.make_room();
        let read = self.reader.read_buf(&mut self.buffer).await.unwrap_or(0);
        self.in_turn += read;
        self.ended = read == 0;
    }

    fn make_room(&mut self) {
        let length = self.buffer.len();
        if length < self.buffer.capacity() {
            return;
        }
        self.buffer.reserve(if length < LONG { READ } else { 2 * self.cap.max(LONG) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_pipe_that_is_always_full_leaves_other_tasks_their_turn() {
        let read = Arc::new(AtomicUsize::new(0));
        let reader = tokio::spawn({
            let read = Arc::clone(&read);
            let mut lines = Lines::new(tokio::io::repeat(b'\n'), 64);
            async move {
                while lines.next().await.is_some() {
                    read.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut before = 0;
        for _ in 0..8 {
            tokio::task::yield_now().await;
            let now = read.load(Ordering::Relaxed);
            assert!(now - before <= TURN + READ, "{} bytes were read in one go", now - before);
            before = now;
        }
        assert!(before > TURN, "the reader went on in its own turns: {before}");
        reader.abort();
    }
}
