//! The outbox of a session: the one place where frames leave it.
//!
//! Frames are published in seq order, each only when every durable frame before it is as durable as `journal.sync`
//! asks; ephemeral ones wait behind them. The actor never waits here: it pushes, and the publisher writes. What clients
//! see is the publisher's state, so that a snapshot never shows what is not stored.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bingo_plugin_sdk::calls::{HookSite, ObservePoint};
use bingo_plugin_sdk::event::{CloseReason, ErrorCode, Event, Frame, KernelError, TurnStatus};
use bingo_plugin_sdk::handshake::HookPoint;
use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::session::SessionSummary;
use bingo_plugin_sdk::state::{SessionState, SnapshotLimits};
use serde::Serialize;
use tokio::sync::{Notify, oneshot, watch};

use super::KernelParts;
use super::hooks;
use super::replay::Replay;
use super::store::{SAVED_AT_THE_END, SAVED_WHILE_LIVE, Store};
use super::stream::{FrameStream, Published, SubscriberQueue};
use super::view::View;
use crate::settings::SyncMode;
use crate::telemetry;

/// What may wait for the disk before the session takes no more from its turn.
const TURN_ROOM: Room = Room { entries: 1024, bytes: 16 * 1024 * 1024 };
/// What may wait for the disk before the session takes no more from its clients either.
const CLIENT_ROOM: Room = Room { entries: 4096, bytes: 64 * 1024 * 1024 };

/// A bound on what waits.
#[derive(Debug, Clone, Copy)]
struct Room {
    entries: usize,
    bytes: usize,
}

/// Returns whether an event must be on the disk before it is seen (design §7, `journal.sync`).
pub(super) fn wants_sync(mode: SyncMode, event: &Event) -> bool {
    match mode {
        SyncMode::Off => false,
        SyncMode::Frame => event.is_durable(),
        SyncMode::Turn => matches!(
            event,
            Event::TurnStarted { .. }
                | Event::TurnCompleted { .. }
                | Event::IntentAck { .. }
                | Event::InteractionResolved { .. }
                | Event::SessionUpdated { .. }
                | Event::SessionClosed { .. }
                | Event::Extension { .. }
        ),
    }
}

/// Returns about how many bytes an event holds.
fn weight(event: &Event) -> usize {
    match event {
        Event::ItemDelta { data, .. } => data.len(),
        Event::ItemStarted { .. }
        | Event::ItemUpdated { .. }
        | Event::ItemCompleted { .. }
        | Event::Rewound { .. }
        | Event::Extension { .. }
        | Event::Signal { .. } => json_length(event),
        _ => 256,
    }
}

/// Returns how many bytes a value takes as JSON.
pub(super) fn json_length(value: &impl Serialize) -> usize {
    let mut counter = Counter(0);
    // A counter takes everything.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

/// Counts what is written to it.
struct Counter(usize);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A new subscriber: the state it starts from and what follows.
pub(super) struct Subscription {
    pub(super) snapshot: SessionState,
    pub(super) stream: FrameStream,
}

enum Entry {
    Frame(Arc<Frame>),
    /// Answered in its place: a snapshot covers exactly the frames before it.
    Subscribe(oneshot::Sender<Subscription>),
    /// Answered with the published transcript.
    View(oneshot::Sender<View>),
    /// Answered once everything before it is published.
    Flush(oneshot::Sender<()>),
    End,
}

/// The actor's end.
#[derive(Clone)]
pub(super) struct Outbox {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<OutboxState>,
    /// Wakes the publisher.
    pushed: Notify,
    /// Wakes whoever waits for room, or for a failure.
    drained: Notify,
}

#[derive(Default)]
struct OutboxState {
    entries: VecDeque<Entry>,
    /// What the frames among them weigh.
    bytes: usize,
    ended: bool,
    failure: Option<String>,
}

impl Outbox {
    /// Returns the outbox and its publisher, which must be run.
    pub(super) fn new(parts: Arc<KernelParts>, store: Store, replay: Replay) -> (Self, Publisher) {
        let shared =
            Arc::new(Shared { state: Mutex::default(), pushed: Notify::new(), drained: Notify::new() });
        let summary = watch::Sender::new(Arc::new(replay.state.summary.clone()));
        let publisher =
            Publisher { parts, shared: Arc::clone(&shared), store, replay, subscribers: Vec::new(), summary };
        (Self { shared }, publisher)
    }

    /// Pushes frames that belong together: they are written at once.
    pub(super) fn push(&self, frames: Vec<Arc<Frame>>) {
        let bytes: usize = frames.iter().map(|frame| weight(&frame.event)).sum();
        self.lock().bytes += bytes;
        self.enter(frames.into_iter().map(Entry::Frame));
    }

    /// Returns whether the disk keeps up, so that more of the turn's output may be taken.
    pub(super) fn has_turn_room(&self) -> bool {
        self.has_room(TURN_ROOM)
    }

    /// Returns whether more of what clients write may be taken.
    pub(super) fn has_client_room(&self) -> bool {
        self.has_room(CLIENT_ROOM)
    }

    fn has_room(&self, room: Room) -> bool {
        let state = self.lock();
        state.entries.len() < room.entries && state.bytes < room.bytes
    }

    /// Waits until the publisher took what was there, or failed.
    pub(super) async fn drained(&self) {
        self.shared.drained.notified().await;
    }

    /// Returns why nothing can be stored any more.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Subscribes; nothing when the session ended.
    pub(super) async fn subscribe(&self) -> Option<Subscription> {
        self.ask(Entry::Subscribe).await
    }

    /// Returns the published transcript; nothing when the session ended.
    pub(super) async fn view(&self) -> Option<View> {
        self.ask(Entry::View).await
    }

    /// Asks for the transcript as it is once everything pushed so far is published; the sender is dropped when that fails.
    pub(super) fn view_when_stored(&self, reply: oneshot::Sender<View>) {
        self.enter([Entry::View(reply)]);
    }

    /// Waits until everything pushed so far is published; nothing when that failed.
    pub(super) async fn flush(&self) -> Option<()> {
        self.ask(Entry::Flush).await
    }

    /// Answers once everything pushed so far is published; drops the sender when that fails.
    pub(super) fn tell_when_stored(&self, reply: oneshot::Sender<()>) {
        self.enter([Entry::Flush(reply)]);
    }

    /// Ends the publisher after what was pushed.
    pub(super) fn end(&self) {
        self.enter([Entry::End]);
    }

    async fn ask<T>(&self, entry: impl FnOnce(oneshot::Sender<T>) -> Entry) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.enter([entry(reply)]);
        answer.await.ok()
    }

    fn enter(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut state = self.lock();
        if !state.ended {
            state.entries.extend(entries);
        }
        drop(state);
        self.shared.pushed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.shared.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The disk's end: writes, folds what is stored, and fans it out.
pub(super) struct Publisher {
    parts: Arc<KernelParts>,
    shared: Arc<Shared>,
    store: Store,
    replay: Replay,
    subscribers: Vec<Arc<SubscriberQueue>>,
    summary: watch::Sender<Arc<SessionSummary>>,
}

impl Publisher {
    /// Returns the published summary as it changes; it closes when the publisher is done with the journal.
    pub(super) fn summary(&self) -> watch::Receiver<Arc<SessionSummary>> {
        self.summary.subscribe()
    }

    /// Runs until the session ends or cannot be stored any more; then gives the journal back.
    pub(super) async fn run(mut self) {
        loop {
            let (entries, bytes) = self.take().await;
            let durable = entries.iter().filter_map(|entry| match entry {
                Entry::Frame(frame) if frame.event.is_durable() => Some(Arc::clone(frame)),
                _ => None,
            });
            if let Err(error) = self.store.append(durable.collect()).await {
                self.fail(&error.to_kernel().message);
                break;
            }
            self.store.unsaved += bytes as u64;
            let ended = entries.into_iter().any(|entry| self.publish(entry));
            self.shared.drained.notify_one();
            if ended {
                self.store.saved().await;
                self.store.save(&self.replay, SAVED_AT_THE_END).await;
                break;
            }
            if self.replay.state.turn.is_none() {
                self.store.save(&self.replay, SAVED_WHILE_LIVE).await;
            }
        }
        self.subscribers.iter().for_each(|subscriber| subscriber.end());
        self.store.saved().await;
        self.store.journal.release(self.store.epoch.clone()).await;
        // Whoever still waits hears that the session ended: its sender is dropped.
        let mut state = self.shared.lock();
        state.ended = true;
        state.entries.clear();
        drop(state);
        self.shared.drained.notify_one();
    }

    /// Returns what waits, and what its frames weigh.
    async fn take(&self) -> (VecDeque<Entry>, usize) {
        loop {
            let pushed = self.shared.pushed.notified();
            let entries = {
                let mut state = self.shared.lock();
                (std::mem::take(&mut state.entries), std::mem::take(&mut state.bytes))
            };
            if !entries.0.is_empty() {
                return entries;
            }
            pushed.await;
        }
    }

    /// Publishes one entry; returns whether it was the end.
    fn publish(&mut self, entry: Entry) -> bool {
        match entry {
            Entry::Frame(frame) => self.publish_frame(Arc::unwrap_or_clone(frame)),
            // A caller that left is normal.
            Entry::Subscribe(reply) => {
                let (queue, stream) = SubscriberQueue::new();
                let snapshot = self.replay.state.snapshot(SnapshotLimits::default());
                if reply.send(Subscription { snapshot, stream }).is_ok() {
                    self.subscribers.push(queue);
                }
            }
            Entry::View(reply) => drop(reply.send(View::of(&self.replay))),
            Entry::Flush(reply) => {
                let _ = reply.send(());
            }
            Entry::End => return true,
        }
        false
    }

    fn publish_frame(&mut self, frame: Frame) {
        self.replay.apply(&frame);
        if frame.event.is_durable() {
            let mut summary = self.replay.state.summary.clone();
            summary.busy = self.replay.state.turn.is_some();
            summary.updated_at.clone_from(&frame.ts);
            self.summary.send_replace(Arc::new(summary));
        }
        self.observe(&frame);
        let published = Published::new(frame);
        self.subscribers.retain(|subscriber| subscriber.push(&published));
    }

    /// Tells hooks of a stored frame; deltas are not told.
    fn observe(&self, frame: &Frame) {
        if matches!(frame.event, Event::ItemDelta { .. }) {
            return;
        }
        let snapshot = self.parts.offers.snapshot();
        if !hooks::any_wants(&snapshot, HookPoint::Event) {
            return;
        }
        let site = HookSite {
            session: frame.session.clone(),
            turn: self.replay.state.turn.as_ref().map(|turn| turn.id.clone()),
            cwd: self.replay.state.summary.cwd.clone(),
            model: self.replay.state.summary.model.clone(),
        };
        hooks::observe(&snapshot, &site, &ObservePoint::Event { frame: Box::new(frame.clone()) });
    }

    /// Tells clients that the session, and the turn that runs, end here. These frames are not stored: nothing can be.
    fn fail(&mut self, message: &str) {
        tracing::error!(session = %self.store.epoch.session, message, "the session cannot be stored any more");
        let lost = self.replay.state.turn.as_ref().map(|turn| Event::TurnCompleted {
            turn: turn.id.clone(),
            status: TurnStatus::Failed { error: KernelError::new(ErrorCode::Storage, message) },
            usage: turn.usage,
        });
        let events = [
            Event::Notice { level: Level::Error, code: "STORAGE".to_owned(), text: message.to_owned() },
            Event::SessionClosed { reason: CloseReason::Error { message: message.to_owned() } },
        ];
        for event in lost.into_iter().chain(events) {
            let (seq, session) = (self.replay.state.seq.next(), self.store.epoch.session.clone());
            self.publish_frame(Frame { seq, ts: telemetry::now(), session, cause: None, event });
        }
        self.shared.lock().failure = Some(message.to_owned());
    }
}
