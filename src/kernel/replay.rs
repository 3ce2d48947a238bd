//! What the stored frames of a session come to: the state that clients fold too, and what only the kernel needs of them.

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::ids::Seq;
use bingo_plugin_sdk::session::SessionSummary;
use bingo_plugin_sdk::state::SessionState;
use serde::{Deserialize, Serialize};

use super::compaction::Cut;
use super::held::Window;
use super::intents::Intents;
use super::unfinished::Unfinished;
use crate::ports::Replayer;

/// The fold of a session's stored frames.
///
/// A checkpoint is all of it, so no field has a default: one that was written without a field is void.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replay {
    pub(super) state: SessionState,
    /// Which items the state holds, and where the others stand.
    pub(super) window: Window,
    /// What the model no longer sees.
    pub(super) cuts: Vec<Cut>,
    /// The newest revision of the queue that was announced.
    pub(super) queue_revision: u64,
    pub(super) intents: Intents,
    pub(super) unfinished: Unfinished,
}

impl Replay {
    /// Returns what a session is before its first frame.
    pub(super) fn new(summary: SessionSummary) -> Self {
        Self {
            state: SessionState::new(summary),
            window: Window::default(),
            cuts: Vec::new(),
            queue_revision: 0,
            intents: Intents::default(),
            unfinished: Unfinished::default(),
        }
    }

    /// Folds the next frame.
    pub(super) fn apply(&mut self, frame: &Frame) {
        self.window.fold(&mut self.state, frame);
        Cut::fold(&mut self.cuts, &frame.event);
        self.intents.apply(frame);
        self.unfinished.apply(frame, &mut self.intents);
        if let Event::QueueChanged { revision, .. } = frame.event {
            self.queue_revision = revision;
        }
    }
}

impl Replay {
    /// Returns the fold for a journal to keep, `last` being the last stored frame. Nothing while an item is unfinished: its
    /// text may be of frames that are not stored.
    pub(super) fn checkpoint(mut self, last: Seq) -> Option<Vec<u8>> {
        if !self.is_settled() {
            return None;
        }
        self.state.seq = last;
        self.state.signals.clear();
        serde_json::to_vec(&Checkpoint { program: PROGRAM.to_owned(), replay: self }).ok()
    }

    /// Returns whether every item is finished.
    pub(super) fn is_settled(&self) -> bool {
        self.state.items.iter().all(|item| item.status.is_terminal())
    }
}

/// Which fold a checkpoint is of: each version of the program has its own.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    program: String,
    replay: Replay,
}

/// Folds what a journal reads.
#[derive(Debug, Default)]
pub(super) struct Replaying {
    replay: Option<Replay>,
}

impl Replaying {
    /// Returns the fold; nothing when there was no frame, or the first was no `sessionUpdated` (kernel rule 7.3).
    pub(super) fn finish(&mut self) -> Option<Replay> {
        self.replay.take()
    }
}

impl Replayer for Replaying {
    fn resume(&mut self, fold: &[u8]) -> bool {
        let read: Option<Checkpoint> = serde_json::from_slice(fold).ok();
        self.replay = read.filter(|read| read.program == PROGRAM).map(|read| read.replay);
        self.replay.is_some()
    }

    fn take(&mut self, frame: Frame) {
        if let (None, Event::SessionUpdated { summary }) = (&self.replay, &frame.event) {
            self.replay = Some(Replay::new((**summary).clone()));
        }
        if let Some(replay) = &mut self.replay {
            replay.apply(&frame);
        }
    }
}
