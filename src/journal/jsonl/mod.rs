//! A journal of one JSON line a frame: `<data_dir>/sessions/<id>/{journal.jsonl,.lock,summary.json,checkpoint}`.
//!
//! `journal.jsonl` alone is the truth: line 1 is a header, every further line one durable frame in seq order, never
//! rewritten. `.lock` holds the sole right to append, `summary.json` and `checkpoint` are caches that may be deleted at any time.
//! This file moves the work to blocking threads; `store` does it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bingo_plugin_sdk::event::Frame;
use bingo_plugin_sdk::ids::{Seq, SessionId};

use crate::journal::retention::{Keep, SessionTree};
use crate::ports::{BoxFuture, Claim, Epoch, Journal, JournalError, Replayer, StoredSessions};

mod checkpoint;
mod disk;
mod file;
mod layout;
mod line;
mod lock;
mod marks;
mod remains;
mod store;
mod summary;
mod verify;
mod writer;

use disk::{Disk, FileSystem};
use store::Store;
pub use verify::Verified;

/// What [`JsonlJournal::overdue`] found.
#[derive(Debug, Default)]
pub struct Overdue {
    /// The trees that are more than what shall be kept, the oldest first.
    pub trees: Vec<SessionTree>,
    /// Why others could not be judged: they are kept.
    pub problems: Vec<JournalError>,
}

/// The journal of a data directory, on its file system.
///
/// It may be used by several processes at once: the lock of each session keeps them apart. A clone is the same journal;
/// when the last one goes, so do all its claims.
#[derive(Clone)]
pub struct JsonlJournal {
    store: Arc<Store>,
}

impl JsonlJournal {
    /// Returns the journal under `data_dir`, which need not exist yet: the first `create` makes it.
    pub fn new(data_dir: PathBuf) -> Self {
        Self::with_disk(data_dir, Arc::new(FileSystem))
    }

    fn with_disk(data_dir: PathBuf, disk: Arc<dyn Disk>) -> Self {
        Self { store: Arc::new(Store::new(data_dir, disk)) }
    }

    /// Looks the journal of a session through, or of all: every fault is named, and nothing is changed or locked.
    ///
    /// # Errors
    /// `NotFound`; `Io` when a journal cannot be read to its end.
    pub fn verify(
        &self,
        session: Option<SessionId>,
    ) -> BoxFuture<'static, Result<Vec<Verified>, JournalError>> {
        self.work(move |store| store.verify(session.as_ref()))
    }

    /// Gives a session that nobody has open another title, durably.
    ///
    /// # Errors
    /// As a claim and an append.
    pub fn rename(&self, session: SessionId, title: String) -> BoxFuture<'static, Result<(), JournalError>> {
        self.work(move |store| store.rename(&session, title))
    }

    /// Finds the sessions that are more than what shall be kept.
    ///
    /// # Errors
    /// `Io` when the directory of sessions cannot be read.
    pub fn overdue(&self, keep: Keep, now: SystemTime) -> BoxFuture<'static, Result<Overdue, JournalError>> {
        self.work(move |store| store.overdue(keep, now))
    }

    /// Removes sessions that nobody has open, this process included; of several all or none. `sessions` has each behind
    /// its parent. Returns those that were there.
    ///
    /// # Errors
    /// `Locked` when one is open; `Io`: some are gone then, never one before its children.
    pub fn delete_closed(
        &self,
        sessions: Vec<SessionId>,
    ) -> BoxFuture<'static, Result<Vec<SessionId>, JournalError>> {
        self.work(move |store| store.delete_closed(&sessions))
    }

    /// Removes what is left of sessions whose host died while it began them, and that nobody touched since `before`;
    /// with `dry` it only names them.
    ///
    /// # Errors
    /// `Io`.
    pub fn clear_remains(
        &self,
        before: SystemTime,
        dry: bool,
    ) -> BoxFuture<'static, Result<Vec<SessionId>, JournalError>> {
        self.work(move |store| store.clear_remains(before, dry))
    }

    /// Does disk work on a thread that may wait. The work is done to its end even if nobody waits for it any more.
    fn work<T, F>(&self, work: F) -> BoxFuture<'static, Result<T, JournalError>>
    where
        T: Send + 'static,
        F: FnOnce(&Store) -> Result<T, JournalError> + Send + 'static,
    {
        let store = Arc::clone(&self.store);
        Box::pin(async move {
            let path = store.sessions_dir().to_path_buf();
            tokio::task::spawn_blocking(move || work(&store)).await.unwrap_or_else(|lost| {
                Err(JournalError::Io { act: "finish work in", path, source: std::io::Error::other(lost) })
            })
        })
    }
}

impl Journal for JsonlJournal {
    fn create(&self, session: SessionId) -> BoxFuture<'static, Result<Epoch, JournalError>> {
        self.work(move |store| store.create(session))
    }

    fn claim(
        &self,
        session: SessionId,
        into: Arc<Mutex<dyn Replayer>>,
    ) -> BoxFuture<'static, Result<Claim, JournalError>> {
        self.work(move |store| {
            store.claim(session, &mut *into.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }

    fn checkpoint(&self, epoch: Epoch, through: Seq, fold: Vec<u8>) -> BoxFuture<'static, ()> {
        let kept = self.work(move |store| {
            store.checkpoint(&epoch, through, &fold);
            Ok(())
        });
        Box::pin(async move {
            if let Err(error) = kept.await {
                tracing::debug!(%error, "a checkpoint was not kept");
            }
        })
    }

    fn append(
        &self,
        epoch: Epoch,
        expected_last: Seq,
        frames: Vec<Arc<Frame>>,
        sync: bool,
    ) -> BoxFuture<'static, Result<(), JournalError>> {
        self.work(move |store| store.append(&epoch, expected_last, &frames, sync))
    }

    fn release(&self, epoch: Epoch) -> BoxFuture<'static, ()> {
        let released = self.work(move |store| {
            store.release(&epoch);
            Ok(())
        });
        Box::pin(async move {
            if let Err(error) = released.await {
                tracing::debug!(%error, "a session was not given back");
            }
        })
    }

    fn read(
        &self,
        session: SessionId,
        after: Seq,
        through: Seq,
    ) -> BoxFuture<'static, Result<Vec<Frame>, JournalError>> {
        self.work(move |store| store.read(&session, after, through))
    }

    fn pick(
        &self,
        session: SessionId,
        seqs: Vec<Seq>,
    ) -> BoxFuture<'static, Result<Vec<Frame>, JournalError>> {
        self.work(move |store| store.pick(&session, &seqs))
    }

    fn list(&self) -> BoxFuture<'static, Result<StoredSessions, JournalError>> {
        self.work(Store::list)
    }

    fn delete(&self, session: SessionId) -> BoxFuture<'static, Result<(), JournalError>> {
        self.work(move |store| store.delete(&session))
    }
}

#[cfg(test)]
mod tests;
