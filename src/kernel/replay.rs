//! What the stored frames of a session come to: the state that clients fold too, and what only the kernel needs of them.

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::session::SessionSummary;
use bingo_plugin_sdk::state::SessionState;

use super::compaction::Cut;
use super::held::Window;
use super::intents::Intents;
use super::unfinished::Unfinished;

/// The fold of a session's stored frames.
#[derive(Debug, Clone)]
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

    /// Folds stored frames from the first one on; nothing when that is no `sessionUpdated` (kernel rule 7.3).
    pub(super) fn of(frames: &[Frame]) -> Option<Self> {
        let Event::SessionUpdated { summary } = &frames.first()?.event else { return None };
        let mut replay = Self::new((**summary).clone());
        frames.iter().for_each(|frame| replay.apply(frame));
        Some(replay)
    }

    /// Folds the next frame.
    pub(super) fn apply(&mut self, frame: &Frame) {
        self.window.fold(&mut self.state, frame);
        self.cuts.extend(Cut::of(&frame.event));
        self.intents.apply(frame);
        self.unfinished.apply(frame, &mut self.intents);
        if let Event::QueueChanged { revision, .. } = frame.event {
            self.queue_revision = revision;
        }
    }
}
