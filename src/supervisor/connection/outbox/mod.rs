//! The messages for one plugin, bounded by bytes, and how they are written.
//!
//! Full is an answer: a plugin that does not read never makes its callers wait, nor the host grow. A message that would
//! wait for nobody is written by whoever sends it, as far as the pipe takes it at once; everything else by a task, which
//! takes as many as there are in one write.

mod mark;
mod queue;

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

pub(super) use self::mark::Mark;
pub(super) use self::queue::Input;
use self::queue::Queue;
use super::error::Sent;

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

struct State {
    queue: Queue,
    closed: bool,
    /// How many messages were written when an observation found no room. While it is so, the next finds none either.
    refused_at: Option<u64>,
    /// Observations that found no room, all and those nobody was told of.
    dropped: u64,
    untold: u64,
    told: Option<Instant>,
}

/// What a queue was and is holding.
pub(super) struct Flow {
    pub(super) queued: usize,
    pub(super) bytes_out: u64,
    pub(super) messages_out: u64,
    pub(super) dropped: u64,
}

impl Outbox {
    pub(super) fn new(limit: usize, input: Input) -> Self {
        let queue = Queue::new(input);
        let state = State { queue, closed: false, refused_at: None, dropped: 0, untold: 0, told: None };
        Self { limit, state: Mutex::new(state), ready: Notify::new() }
    }

    /// Queues a message without its newline; one of any size when nothing waits.
    pub(super) fn push(&self, line: String, mark: Option<Arc<Mark>>) -> Result<(), Full> {
        self.push_within(self.limit, line, mark)
    }

    /// Does what `push` does, and writes the message at once when none waits before it. For one that is alone: several are
    /// better written together.
    pub(super) fn push_now(&self, line: String, mark: Option<Arc<Mark>>) -> Result<(), Full> {
        let mut state = self.lock();
        state.push_within(self.limit, line, mark)?;
        // A failure shows once more when the task writes, which is who tells it.
        let mut nobody = Context::from_waker(Waker::noop());
        let written =
            state.queue.is_single() && matches!(state.queue.poll_write(&mut nobody), Poll::Ready(Ok(())));
        let done = written && state.untold == 0;
        drop(state);
        if !done {
            self.ready.notify_one();
        }
        Ok(())
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
        let State { queue, refused_at, .. } = &*self.lock();
        queue.bytes > 0 && (*refused_at == Some(queue.messages_out) || queue.bytes > self.limit / 2)
    }

    /// Queues an observation, or drops and counts it. Half of the queue is left to calls.
    pub(super) fn push_or_drop(&self, line: String) {
        if self.push_within(self.limit / 2, line, None).is_err() {
            let mut state = self.lock();
            state.refused_at = Some(state.queue.messages_out);
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
        let State { queue, dropped, .. } = &*self.lock();
        let Queue { bytes, bytes_out, messages_out, .. } = *queue;
        Flow { queued: bytes, bytes_out, messages_out, dropped: *dropped }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push_within(&self, limit: usize, line: String, mark: Option<Arc<Mark>>) -> Result<(), Full> {
        self.lock().push_within(limit, line, mark)?;
        self.ready.notify_one();
        Ok(())
    }

    /// Lets the writer end, which closes the plugin's input. What waits is never sent. Returns how many dropped
    /// observations nobody was told of.
    pub(super) fn close(&self) -> Option<u64> {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        let untold = std::mem::take(&mut state.untold);
        drop(state);
        self.ready.notify_one();
        Some(untold).filter(|untold| *untold > 0)
    }

    /// Takes a message back if it is not too late; returns how far it came. For the end of its call.
    pub(super) fn give_up(&self, mark: &Arc<Mark>) -> Sent {
        let mut state = self.lock();
        if mark.is_written() {
            return Sent::NoAnswer;
        }
        state.queue.remove(mark);
        // What it took is room for others.
        state.refused_at = None;
        Sent::Never
    }

    /// Closes the plugin's input at once, also in the middle of a message.
    pub(super) fn hang_up(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.close_input();
    }

    /// Writes until nothing waits. Returns whether that was all, because it is closed; then the input is closed too.
    fn poll_write(&self, context: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        let mut state = self.lock();
        ready!(state.queue.poll_write(context))?;
        if state.closed {
            state.queue.close_input();
        }
        Poll::Ready(Ok(state.closed))
    }

    /// Returns how many observations were dropped before the plugin read again, when it is time to tell.
    fn take_untold(&self) -> Option<u64> {
        let mut state = self.lock();
        // Only once it has caught up: while it lags more will be dropped, and one sum is enough.
        let quiet = state.told.is_none_or(|told| told.elapsed() >= TELL);
        if state.untold == 0 || state.queue.bytes > 0 || !quiet {
            return None;
        }
        state.told = Some(Instant::now());
        Some(std::mem::take(&mut state.untold))
    }
}

impl State {
    fn push_within(&mut self, limit: usize, line: String, mark: Option<Arc<Mark>>) -> Result<(), Full> {
        let queued = self.queue.bytes;
        if queued > 0 && queued.saturating_add(line.len()) > limit && !self.closed {
            return Err(Full { queued });
        }
        // Whoever sends to what is closed hears of it elsewhere.
        if !self.closed {
            self.queue.push(line, mark);
        }
        Ok(())
    }
}

/// Writes what is queued until the outbox is closed; `tell_dropped` hears how many observations were dropped.
///
/// # Errors
/// When the plugin takes no more input.
pub(super) async fn write(outbox: Arc<Outbox>, tell_dropped: impl Fn(u64)) -> std::io::Result<()> {
    loop {
        let closed = poll_fn(|context| outbox.poll_write(context)).await?;
        if let Some(dropped) = outbox.take_untold() {
            tell_dropped(dropped);
        }
        if closed {
            return Ok(());
        }
        outbox.ready.notified().await;
        // Whoever is about to send goes first, so that one write takes it too.
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, DuplexStream, duplex, sink};
    use tokio::net::unix::pipe;

    use super::*;

    /// An outbox into a pipe of so many bytes, and its other end.
    fn outbox(capacity: usize) -> (Arc<Outbox>, DuplexStream) {
        let (near, far) = duplex(capacity);
        (Arc::new(Outbox::new(100, Box::new(near))), far)
    }

    async fn all(mut far: DuplexStream) -> String {
        let mut text = String::new();
        far.read_to_string(&mut text).await.unwrap();
        text
    }

    #[test]
    fn full_is_an_answer_and_one_message_of_any_size_passes() {
        let outbox = Outbox::new(10, Box::new(sink()));
        outbox.push("x".repeat(100), None).unwrap();
        assert_eq!(outbox.push("y".to_owned(), None).unwrap_err().queued, 100);
        assert_eq!(outbox.push_now("y".to_owned(), None).unwrap_err().queued, 100);
        outbox.push_urgent("cancel".to_owned());
        assert_eq!(outbox.push("y".to_owned(), None).unwrap_err().queued, 106);
    }

    #[tokio::test]
    async fn an_abandoned_message_is_not_written() {
        let (outbox, far) = outbox(100);
        let (kept, dropped) = (Arc::new(Mark::default()), Arc::new(Mark::default()));
        outbox.push("a".to_owned(), Some(Arc::clone(&dropped))).unwrap();
        outbox.push("b".to_owned(), Some(Arc::clone(&kept))).unwrap();
        assert_eq!(outbox.give_up(&dropped), Sent::Never);
        assert!(poll_fn(|context| Poll::Ready(outbox.poll_write(context).is_ready())).await);
        assert_eq!((outbox.give_up(&kept), outbox.give_up(&dropped)), (Sent::NoAnswer, Sent::Never));
        assert_eq!((outbox.flow().queued, outbox.flow().bytes_out, outbox.flow().messages_out), (0, 2, 1));
        outbox.close();
        write(outbox, |_| ()).await.unwrap();
        assert_eq!(all(far).await, "b\n");
    }

    #[tokio::test]
    async fn one_that_is_alone_is_written_at_once_as_far_as_there_is_room() {
        let (outbox, far) = outbox(4);
        let marks: [Arc<Mark>; 3] = Default::default();
        outbox.push_now("abc".to_owned(), Some(Arc::clone(&marks[0]))).unwrap();
        assert_eq!((outbox.flow().queued, outbox.flow().bytes_out), (0, 4));
        // No room is left, so the next waits for the task; behind it another one cannot overtake.
        outbox.push_now("de".to_owned(), Some(Arc::clone(&marks[1]))).unwrap();
        outbox.push_now("f".to_owned(), Some(Arc::clone(&marks[2]))).unwrap();
        assert_eq!(outbox.flow().queued, 3);
        assert_eq!(outbox.give_up(&marks[2]), Sent::Never);
        let writer = tokio::spawn(write(Arc::clone(&outbox), |_| ()));
        let reader = tokio::spawn(all(far));
        while outbox.flow().queued > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((outbox.give_up(&marks[0]), outbox.give_up(&marks[1])), (Sent::NoAnswer, Sent::NoAnswer));
        outbox.close();
        writer.await.unwrap().unwrap();
        assert_eq!(reader.await.unwrap(), "abc\nde\n");
    }

    #[tokio::test]
    async fn of_those_written_together_each_is_marked_as_far_as_it_came() {
        let (near, mut far) = pipe::pipe().unwrap();
        near.writable().await.unwrap();
        let outbox = Outbox::new(usize::MAX, Box::new(near));
        let marks: Vec<Arc<Mark>> = (0..40).map(|_| Arc::default()).collect();
        for mark in &marks {
            outbox.push("x".repeat(5000), Some(Arc::clone(mark))).unwrap();
        }
        let pending = |context: &mut Context<'_>| Poll::Ready(outbox.poll_write(context).is_pending());
        assert!(poll_fn(pending).await);
        let mut text = vec![0; 1 << 20];
        let written = far.read(&mut text).await.unwrap();
        let begun = written.div_ceil(5001);
        assert!(begun > 5 && begun < 40, "{written}");
        let sent = marks.iter().filter(|mark| outbox.give_up(mark) == Sent::NoAnswer).count();
        assert_eq!(sent, begun);
    }

    #[tokio::test]
    async fn what_a_closed_pipe_did_not_take_was_never_sent() {
        let (near, far) = pipe::pipe().unwrap();
        let (outbox, mark) = (Arc::new(Outbox::new(100, Box::new(near))), Arc::new(Mark::default()));
        drop(far);
        outbox.push_now("a".to_owned(), Some(Arc::clone(&mark))).unwrap();
        assert!(write(Arc::clone(&outbox), |_| ()).await.is_err());
        assert_eq!(outbox.give_up(&mark), Sent::Never);
    }

    #[test]
    fn what_is_given_up_behind_a_half_written_message_is_room_at_once() {
        let (outbox, _far) = outbox(2);
        let mark = Arc::new(Mark::default());
        outbox.push_now("abc".to_owned(), None).unwrap();
        outbox.push("x".repeat(90), Some(Arc::clone(&mark))).unwrap();
        assert_eq!(outbox.push("y".repeat(90), None).unwrap_err().queued, 93);
        assert_eq!(outbox.give_up(&mark), Sent::Never);
        outbox.push("y".repeat(90), None).unwrap();
        assert_eq!(outbox.flow().queued, 93);
    }

    #[tokio::test]
    async fn hanging_up_closes_the_input_in_the_middle_of_a_message() {
        let (outbox, far) = outbox(2);
        outbox.push_now("abc".to_owned(), None).unwrap();
        outbox.close();
        let writer = tokio::spawn(write(Arc::clone(&outbox), |_| ()));
        tokio::task::yield_now().await;
        assert!(!writer.is_finished(), "what is begun is to be finished");
        outbox.hang_up();
        assert_eq!(all(far).await, "ab");
        writer.abort();
    }
}
