//! The outbox's way to the journal: appends batches, and keeps checkpoints of what they come to.

use std::sync::Arc;

use bingo_plugin_sdk::event::Frame;
use bingo_plugin_sdk::ids::Seq;
use tokio::task::JoinHandle;

use super::outbox::wants_sync;
use super::replay::Replay;
use crate::ports::{Epoch, Journal, JournalError};
use crate::settings::SyncMode;

/// So many bytes of frames are stored between two checkpoints of a session that goes on: about 40 ms of replay.
pub(super) const SAVED_WHILE_LIVE: u64 = 4 * 1024 * 1024;
/// So many bytes make a checkpoint at a session's end worth its while.
pub(super) const SAVED_AT_THE_END: u64 = 256 * 1024;

/// Where a session's frames are stored.
pub(super) struct Store {
    pub(super) journal: Arc<dyn Journal>,
    pub(super) epoch: Epoch,
    /// The last stored seq.
    pub(super) last: Seq,
    pub(super) sync: SyncMode,
    /// About how many bytes were stored since the last checkpoint.
    pub(super) unsaved: u64,
    /// How large that was.
    pub(super) saved: u64,
    /// Keeps the next one.
    pub(super) saving: Option<JoinHandle<u64>>,
}

impl Store {
    /// Begins to keep what the stored frames come to, when it is worth it: at most as much is written as was stored since.
    pub(super) async fn save(&mut self, replay: &Replay, most_unsaved: u64) {
        if self.saving.as_ref().is_some_and(JoinHandle::is_finished) {
            self.saved().await;
        }
        let is_due = self.unsaved >= most_unsaved.max(self.saved);
        if !is_due || self.saving.is_some() || !replay.is_settled() {
            return;
        }
        self.unsaved = 0;
        let (replay, last) = (replay.clone(), self.last);
        let (journal, epoch) = (Arc::clone(&self.journal), self.epoch.clone());
        // It may be megabytes, which nobody shall wait for.
        self.saving = Some(tokio::spawn(async move {
            let fold = tokio::task::spawn_blocking(move || replay.checkpoint(last)).await.ok().flatten();
            let Some(fold) = fold else { return 0 };
            let bytes = fold.len() as u64;
            journal.checkpoint(epoch, last, fold).await;
            bytes
        }));
    }

    /// Waits until the checkpoint that is being kept is there.
    pub(super) async fn saved(&mut self) {
        if let Some(saving) = self.saving.take() {
            self.saved = saving.await.unwrap_or_default();
        }
    }

    /// Appends the durable frames of a batch.
    ///
    /// # Errors
    /// What the journal says; nothing can be stored any more then.
    pub(super) async fn append(&mut self, frames: Vec<Arc<Frame>>) -> Result<(), JournalError> {
        let Some(last) = frames.last().map(|frame| frame.seq) else { return Ok(()) };
        let sync = frames.iter().any(|frame| wants_sync(self.sync, &frame.event));
        self.journal.append(self.epoch.clone(), self.last, frames, sync).await?;
        self.last = last;
        Ok(())
    }
}
