//! Subscribers of a session: each has a bounded queue of its own, so that a slow one loses its place alone.
//!
//! Adjacent deltas of one item merge while unread; past the bound the subscriber gets what it has, one `lagged` frame,
//! and the end of its stream (design: limits).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bingo_plugin_sdk::event::{DeltaKind, Event, Frame};
use bingo_plugin_sdk::ids::Seq;
use tokio::sync::Notify;

use crate::schema::{self, Part};

/// The most frames that wait for one subscriber.
const MAX_FRAMES: usize = 4096;
/// The most bytes, as JSON, that wait for one subscriber.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// A frame that left its session: checked and serialised at most once, shared by all who get it.
#[derive(Debug)]
pub struct Published {
    pub frame: Frame,
    json: OnceLock<String>,
}

impl Published {
    pub(super) fn new(frame: Frame) -> Arc<Self> {
        Arc::new(Self { frame, json: OnceLock::new() })
    }

    /// Returns the frame as JSON, checked against the RPC schema.
    pub fn json(&self) -> &str {
        self.json.get_or_init(|| {
            let value = serde_json::to_value(&self.frame).unwrap_or_default();
            if let Err(fault) = schema::rpc().check("event", Part::Params, &value) {
                tracing::error!(session = %self.frame.session, seq = self.frame.seq.0, %fault, "a frame breaks the schema");
            }
            value.to_string()
        })
    }

    /// Returns what the frame counts against a queue's bytes. A delta is not serialised for this: it may yet merge.
    fn weight(&self) -> usize {
        match &self.frame.event {
            Event::ItemDelta { data, .. } => data.len() + 256,
            _ => self.json().len(),
        }
    }
}

/// A subscriber's end: frames in order, each with a higher `seq` than the snapshot it came with.
#[derive(Debug)]
pub struct FrameStream {
    queue: Arc<SubscriberQueue>,
}

impl FrameStream {
    /// Returns the next frame; nothing once the session ended or this subscriber lagged.
    pub async fn next(&mut self) -> Option<Arc<Published>> {
        loop {
            let woken = self.queue.wake.notified();
            {
                let mut state = self.queue.lock();
                if let Some((frame, size)) = state.frames.pop_front() {
                    state.bytes -= size;
                    return Some(frame);
                }
                if let Some(frame) = state.lagged.take() {
                    state.ended = true;
                    return Some(Published::new(frame));
                }
                if state.ended {
                    return None;
                }
            }
            woken.await;
        }
    }
}

impl Drop for FrameStream {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.ended = true;
        state.frames.clear();
    }
}

/// The kernel's end of a subscriber.
#[derive(Debug)]
pub(super) struct SubscriberQueue {
    state: Mutex<QueueState>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    frames: VecDeque<(Arc<Published>, usize)>,
    bytes: usize,
    /// What this subscriber missed, told after what it has.
    lagged: Option<Frame>,
    ended: bool,
}

impl SubscriberQueue {
    /// Returns both ends of a new subscriber.
    pub(super) fn new() -> (Arc<Self>, FrameStream) {
        let queue = Arc::new(Self { state: Mutex::default(), wake: Notify::new() });
        (Arc::clone(&queue), FrameStream { queue })
    }

    /// Offers a frame; returns whether the subscriber is still there.
    pub(super) fn push(&self, frame: &Arc<Published>) -> bool {
        let mut state = self.lock();
        if state.ended {
            return false;
        }
        if state.lagged.is_some() {
            state.miss(frame.frame.seq, frame);
            return true;
        }
        if !state.merge(frame) {
            let size = frame.weight();
            if state.frames.len() >= MAX_FRAMES || state.bytes + size > MAX_BYTES {
                state.miss(frame.frame.seq, frame);
            } else {
                state.bytes += size;
                state.frames.push_back((Arc::clone(frame), size));
            }
        }
        drop(state);
        self.wake.notify_one();
        true
    }

    /// Ends the stream after what it holds.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Remembers that the subscriber missed this frame.
    fn miss(&mut self, seq: Seq, frame: &Arc<Published>) {
        let from = match &self.lagged {
            Some(Frame { event: Event::Lagged { from, .. }, .. }) => *from,
            _ => seq,
        };
        let Frame { ts, session, .. } = &frame.frame;
        let (ts, session) = (ts.clone(), session.clone());
        self.lagged = Some(Frame { seq, ts, session, cause: None, event: Event::Lagged { from, to: seq } });
    }

    /// Merges a delta into the last frame, if that is an unread delta of the same item.
    fn merge(&mut self, frame: &Arc<Published>) -> bool {
        let Some((last, last_size)) = self.frames.back_mut() else { return false };
        let Some(merged) = merged(&last.frame, &frame.frame) else { return false };
        let merged = Published::new(merged);
        let size = merged.weight();
        if self.bytes - *last_size + size > MAX_BYTES {
            return false;
        }
        self.bytes = self.bytes - *last_size + size;
        (*last, *last_size) = (merged, size);
        true
    }
}

/// The most text that merged deltas hold, so that growing them by small pieces stays cheap.
const MAX_MERGED: usize = 16 * 1024;

fn merged(last: &Frame, next: &Frame) -> Option<Frame> {
    let (
        Event::ItemDelta { item, kind, data, .. },
        Event::ItemDelta { item: next_item, n, kind: next_kind, data: next_data },
    ) = (&last.event, &next.event)
    else {
        return None;
    };
    if item != next_item || kind != next_kind || data.len() > MAX_MERGED {
        return None;
    }
    let data = match kind {
        DeltaKind::Tail => next_data.clone(),
        DeltaKind::Text | DeltaKind::Reasoning => format!("{data}{next_data}"),
    };
    let event = Event::ItemDelta { item: item.clone(), n: *n, kind: *kind, data };
    Some(Frame { event, ..next.clone() })
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::ids::{ItemId, SessionId};
    use bingo_plugin_sdk::item::Level;

    use super::*;

    fn frame(seq: u64, event: Event) -> Arc<Published> {
        let ts = "2026-01-01T00:00:00Z".to_owned();
        Published::new(Frame { seq: Seq(seq), ts, session: SessionId::from("s"), cause: None, event })
    }

    fn notice(seq: u64, text: &str) -> Arc<Published> {
        frame(seq, Event::Notice { level: Level::Info, code: "X".to_owned(), text: text.to_owned() })
    }

    fn delta(seq: u64, item: &str, data: &str) -> Arc<Published> {
        let (item, data) = (ItemId::from(item), data.to_owned());
        frame(seq, Event::ItemDelta { item, n: seq as u32, kind: DeltaKind::Text, data })
    }

    #[tokio::test]
    async fn adjacent_deltas_merge_and_keep_the_last_seq() {
        let (queue, mut stream) = SubscriberQueue::new();
        for frame in [delta(1, "a", "x"), delta(2, "a", "y"), delta(3, "b", "z")] {
            assert!(queue.push(&frame));
        }
        queue.end();
        let first = stream.next().await.unwrap();
        assert_eq!(first.frame.seq, Seq(2));
        assert!(matches!(&first.frame.event, Event::ItemDelta { data, n: 2, .. } if data == "xy"));
        assert_eq!(stream.next().await.unwrap().frame.seq, Seq(3));
        assert!(stream.next().await.is_none());
    }

    #[test]
    fn only_adjacent_pieces_of_one_item_and_kind_merge_and_not_without_end() {
        let merges =
            |last: &Arc<Published>, next: &Arc<Published>| merged(&last.frame, &next.frame).is_some();
        let full = delta(1, "a", &"x".repeat(MAX_MERGED));
        assert!(merges(&full, &delta(2, "a", "y")));
        assert!(!merges(&delta(1, "a", &"x".repeat(MAX_MERGED + 1)), &delta(2, "a", "y")));
        assert!(!merges(&delta(1, "a", "x"), &delta(2, "b", "y")));
        let mut reasoning = delta(2, "a", "y").frame.clone();
        if let Event::ItemDelta { kind, .. } = &mut reasoning.event {
            *kind = DeltaKind::Reasoning;
        }
        assert!(!merges(&delta(1, "a", "x"), &Published::new(reasoning)));
        assert!(!merges(&notice(1, "x"), &delta(2, "a", "y")));
    }

    #[tokio::test]
    async fn what_was_read_or_merged_counts_no_more_than_it_takes() {
        let (queue, mut stream) = SubscriberQueue::new();
        assert_eq!(delta(1, "a", "xyz").weight(), 3 + 256);
        let counted = || queue.lock().bytes;
        for frame in [delta(1, "a", "xy"), delta(2, "a", "z"), delta(3, "b", "z")] {
            assert!(queue.push(&frame));
        }
        assert_eq!(counted(), 3 + 256 + 1 + 256, "two that merged count as one");
        stream.next().await.unwrap();
        assert_eq!(counted(), 1 + 256);
        stream.next().await.unwrap();
        assert_eq!(counted(), 0);
    }

    #[tokio::test]
    async fn a_slow_subscriber_gets_what_it_has_then_one_lagged_then_the_end() {
        let (queue, mut stream) = SubscriberQueue::new();
        let total = MAX_FRAMES as u64 + 10;
        (1..=total).for_each(|seq| assert!(queue.push(&notice(seq, "n"))));
        for seq in 1..=MAX_FRAMES as u64 {
            assert_eq!(stream.next().await.unwrap().frame.seq, Seq(seq));
        }
        let lagged = stream.next().await.unwrap();
        let expected = Event::Lagged { from: Seq(MAX_FRAMES as u64 + 1), to: Seq(total) };
        assert_eq!(lagged.frame.event, expected);
        assert!(stream.next().await.is_none());
        assert!(!queue.push(&notice(total + 1, "n")), "the queue is given up");
    }

    #[tokio::test]
    async fn bytes_are_bounded_too() {
        let (queue, mut stream) = SubscriberQueue::new();
        let big = "x".repeat(6 * 1024 * 1024);
        (1..=4).for_each(|seq| assert!(queue.push(&notice(seq, &big))));
        assert_eq!(stream.next().await.unwrap().frame.seq, Seq(1));
        assert_eq!(stream.next().await.unwrap().frame.seq, Seq(2));
        assert_eq!(stream.next().await.unwrap().frame.event, Event::Lagged { from: Seq(3), to: Seq(4) });
    }

    #[test]
    fn a_dropped_stream_is_noticed() {
        let (queue, stream) = SubscriberQueue::new();
        drop(stream);
        assert!(!queue.push(&notice(1, "n")));
    }
}
