//! Messages that wait, and the plugin's input that takes them: as many in one write as it likes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::mark::Mark;

/// How many messages one write takes at most, and about how many bytes: as much as a pipe holds.
const MESSAGES: usize = 64;
const BYTES: usize = 64 * 1024;

/// A plugin's input.
pub(in crate::supervisor::connection) type Input = Box<dyn AsyncWrite + Send + Unpin>;

struct Message {
    /// With its newline.
    line: String,
    mark: Option<Arc<Mark>>,
}

impl Message {
    fn length(&self) -> usize {
        self.line.len() - 1
    }
}

pub(super) struct Queue {
    /// Nothing once it is closed.
    input: Option<Input>,
    messages: VecDeque<Message>,
    /// How much of the first message is written.
    begun: usize,
    /// Of the messages that wait, without newlines; the one that is begun counts whole.
    pub(super) bytes: usize,
    /// What was written: bytes with their newlines, and messages.
    pub(super) bytes_out: u64,
    pub(super) messages_out: u64,
}

impl Queue {
    pub(super) fn new(input: Input) -> Self {
        let (input, messages) = (Some(input), VecDeque::new());
        Self { input, messages, begun: 0, bytes: 0, bytes_out: 0, messages_out: 0 }
    }

    pub(super) fn push(&mut self, mut line: String, mark: Option<Arc<Mark>>) {
        self.bytes += line.len();
        line.push('\n');
        self.messages.push_back(Message { line, mark });
    }

    /// Says that one message waits, of which nothing is written.
    pub(super) fn is_single(&self) -> bool {
        self.messages.len() == 1 && self.begun == 0
    }

    /// Drops the message with this mark, if it waits; not one that is begun.
    pub(super) fn remove(&mut self, mark: &Arc<Mark>) {
        let has_mark = |message: &Message| message.mark.as_ref().is_some_and(|own| Arc::ptr_eq(own, mark));
        // The newest are given up first.
        let place = self.messages.iter().rposition(has_mark);
        let removed = place.and_then(|place| self.messages.remove(place));
        self.bytes -= removed.map_or(0, |message| message.length());
    }

    /// Drops what waits; what is begun stays.
    pub(super) fn clear(&mut self) {
        self.messages.truncate(usize::from(self.begun > 0));
        self.bytes = self.messages.front().map_or(0, Message::length);
    }

    /// Closes the input, whatever waits.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Writes until nothing waits. What is pending goes on when the input takes more; nothing of that is waited for here.
    ///
    /// # Errors
    /// When the input takes no more; what was not begun is not written then.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.messages.is_empty() {
            let written = ready!(self.poll_write_once(context))?;
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes as much as one write takes; returns how much it took.
    fn poll_write_once(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(input) = &mut self.input else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        let mut slices = [IoSlice::new(&[]); MESSAGES];
        let (mut count, mut bytes, mut begun) = (0, 0, self.begun);
        for (message, slice) in self.messages.iter().zip(&mut slices) {
            if bytes >= BYTES {
                break;
            }
            *slice = IoSlice::new(&message.line.as_bytes()[std::mem::take(&mut begun)..]);
            bytes += slice.len();
            count += 1;
        }
        let written = match ready!(Pin::new(input).poll_write_vectored(context, &slices[..count])) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => written?,
        };
        let mut start = 0;
        for (message, slice) in self.messages.iter().zip(&slices[..count]) {
            if start < written {
                message.mark.iter().for_each(|mark| mark.set_written());
            }
            start += slice.len();
        }
        Poll::Ready(Ok(written))
    }

    fn advance(&mut self, written: usize) {
        self.bytes_out += written as u64;
        self.begun += written;
        while let Some(first) = self.messages.front()
            && self.begun >= first.line.len()
        {
            self.begun -= first.line.len();
            self.bytes -= first.length();
            self.messages_out += 1;
            self.messages.pop_front();
        }
    }
}
