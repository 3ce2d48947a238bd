//! A journal in memory that knows what is synced.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bingo_plugin_sdk::event::Frame;
use bingo_plugin_sdk::ids::{Seq, SessionId};
use tokio::sync::OwnedMutexGuard;

use crate::kernel::outbox::json_length;
use crate::kernel::replay::Replaying;
use crate::ports::{BoxFuture, Claim, Epoch, Journal, JournalError, Replayer, StoredSessions};

/// The disk of one host; clones are the same disk.
#[derive(Clone, Default)]
pub(in crate::kernel) struct MemoryJournal {
    disk: Arc<Mutex<Disk>>,
    /// Held while nobody may read older items.
    reads: Arc<tokio::sync::Mutex<()>>,
    /// The hold on them.
    held: Arc<Mutex<Option<OwnedMutexGuard<()>>>>,
}

#[derive(Default)]
struct Disk {
    sessions: BTreeMap<SessionId, File>,
    /// Nothing can be done any more: the host is dead.
    dead: bool,
    /// So many operations pass before one fails.
    left: Option<u32>,
    /// Whether it failed.
    met: bool,
    /// How often single frames were read.
    picks: usize,
}

#[derive(Clone, Default)]
struct File {
    frames: Vec<Frame>,
    synced: usize,
    epoch: u64,
    /// Outlives a power cut, also if it counts frames that do not.
    checkpoint: Option<(Seq, Vec<u8>)>,
}

impl MemoryJournal {
    /// Ends all access for the host that uses it; returns a disk with what was synced.
    pub(in crate::kernel) fn cut_power(&self) -> Self {
        let mut disk = self.lock();
        disk.dead = true;
        let mut sessions = std::mem::take(&mut disk.sessions);
        for file in sessions.values_mut() {
            file.frames.truncate(file.synced);
        }
        Self { disk: Arc::new(Mutex::new(Disk { sessions, ..Disk::default() })), ..Self::default() }
    }

    /// Lets nobody read single frames from now on.
    pub(in crate::kernel) fn hold_reads(&self) {
        let hold = Arc::clone(&self.reads).try_lock_owned().expect("nobody reads");
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(hold);
    }

    /// Lets everybody read again.
    pub(in crate::kernel) fn let_reads(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Lets so many operations pass, and fails the next one alone.
    pub(in crate::kernel) fn fail_after(&self, operations: u32) {
        self.lock().left = Some(operations);
    }

    /// Returns how often single frames were read.
    pub(in crate::kernel) fn picks(&self) -> usize {
        self.lock().picks
    }

    /// Ends the fault; returns whether it was met.
    pub(in crate::kernel) fn heal(&self) -> bool {
        let mut disk = self.lock();
        disk.left = None;
        std::mem::take(&mut disk.met)
    }

    /// Returns up to which frame the checkpoint of a session counts.
    pub(in crate::kernel) fn saved(&self, session: &SessionId) -> Option<Seq> {
        self.lock().sessions.get(session)?.checkpoint.as_ref().map(|(through, _)| *through)
    }

    /// Returns what stands in a session's journal.
    pub(in crate::kernel) fn frames(&self, session: &SessionId) -> Vec<Frame> {
        self.lock().sessions.get(session).map(|file| file.frames.clone()).unwrap_or_default()
    }

    /// Takes the end of a session's journal away, from the first frame on for which `torn` holds, synced or not.
    pub(in crate::kernel) fn tear(&self, session: &SessionId, torn: impl FnMut(&Frame) -> bool) {
        if let Some(file) = self.lock().sessions.get_mut(session) {
            let end = file.frames.iter().position(torn).unwrap_or(file.frames.len());
            file.frames.truncate(end);
            file.synced = file.synced.min(end);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Disk) -> Result<T, JournalError>,
    ) -> BoxFuture<'static, Result<T, JournalError>> {
        let mut disk = self.lock();
        let done = disk.step().and_then(|()| act(&mut disk));
        Box::pin(std::future::ready(done))
    }
}

impl Disk {
    fn step(&mut self) -> Result<(), JournalError> {
        match self.left {
            None => Ok(()),
            Some(0) => {
                (self.left, self.met) = (None, true);
                let (act, path) = ("use", "the disk".into());
                Err(JournalError::Io { act, path, source: std::io::ErrorKind::StorageFull.into() })
            }
            Some(left) => {
                self.left = Some(left - 1);
                Ok(())
            }
        }
    }

    fn file(&mut self, session: &SessionId) -> Result<&mut File, JournalError> {
        self.sessions.get_mut(session).ok_or_else(|| JournalError::NotFound { session: session.clone() })
    }

    fn append(
        &mut self,
        epoch: &Epoch,
        last: Seq,
        frames: &[Arc<Frame>],
        sync: bool,
    ) -> Result<(), JournalError> {
        let fenced = || JournalError::Fenced { session: epoch.session.clone() };
        if self.dead {
            return Err(fenced());
        }
        let file = self.file(&epoch.session)?;
        let stored = file.frames.last().map_or(Seq(0), |frame| frame.seq);
        if file.epoch != epoch.number || stored != last {
            return Err(fenced());
        }
        file.frames.extend(frames.iter().map(|frame| (**frame).clone()));
        if sync {
            file.synced = file.frames.len();
        }
        Ok(())
    }
}

impl Journal for MemoryJournal {
    fn create(&self, session: SessionId) -> BoxFuture<'static, Result<Epoch, JournalError>> {
        self.now(|disk| {
            disk.sessions.insert(session.clone(), File::default());
            Ok(Epoch { session, number: 0 })
        })
    }

    fn claim(
        &self,
        session: SessionId,
        into: Arc<Mutex<dyn Replayer>>,
    ) -> BoxFuture<'static, Result<Claim, JournalError>> {
        self.now(|disk| {
            let file = disk.file(&session)?;
            file.epoch += 1;
            let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = file.checkpoint.as_ref().filter(|(through, fold)| {
                file.frames.iter().any(|frame| frame.seq == *through) && into.resume(fold)
            });
            let after = kept.map_or(Seq(0), |(through, _)| *through);
            let frames = file.frames.iter().filter(|frame| frame.seq > after);
            let replayed = frames.map(|frame| {
                into.take(frame.clone());
                json_length(frame) as u64
            });
            let replayed = replayed.sum();
            let last = file.frames.last().map_or(Seq(0), |frame| frame.seq);
            Ok(Claim { epoch: Epoch { number: file.epoch, session }, last, replayed })
        })
    }

    fn checkpoint(&self, epoch: Epoch, through: Seq, fold: Vec<u8>) -> BoxFuture<'static, ()> {
        // The cache of a disk that fails is not written; that is no error.
        if let Ok(file) = self.lock().file(&epoch.session) {
            file.checkpoint = Some((through, fold));
        }
        Box::pin(std::future::ready(()))
    }

    fn append(
        &self,
        epoch: Epoch,
        expected_last: Seq,
        frames: Vec<Arc<Frame>>,
        sync: bool,
    ) -> BoxFuture<'static, Result<(), JournalError>> {
        self.now(|disk| disk.append(&epoch, expected_last, &frames, sync))
    }

    fn release(&self, _: Epoch) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn read(
        &self,
        session: SessionId,
        after: Seq,
        through: Seq,
    ) -> BoxFuture<'static, Result<Vec<Frame>, JournalError>> {
        self.now(|disk| {
            let frames = disk.file(&session)?.frames.iter();
            Ok(frames.filter(|frame| frame.seq > after && frame.seq <= through).cloned().collect())
        })
    }

    fn pick(
        &self,
        session: SessionId,
        seqs: Vec<Seq>,
    ) -> BoxFuture<'static, Result<Vec<Frame>, JournalError>> {
        let picked = self.now(|disk| {
            disk.picks += 1;
            let frames = disk.file(&session)?.frames.iter();
            Ok(frames.filter(|frame| seqs.binary_search(&frame.seq).is_ok()).cloned().collect())
        });
        let reads = Arc::clone(&self.reads);
        Box::pin(async move {
            let _reading = reads.lock().await;
            picked.await
        })
    }

    fn list(&self) -> BoxFuture<'static, Result<StoredSessions, JournalError>> {
        self.now(|disk| {
            let summary = |file: &File| {
                let mut replaying = Replaying::default();
                file.frames.iter().for_each(|frame| replaying.take(frame.clone()));
                replaying.finish().map(|replay| replay.state.summary)
            };
            let sessions = disk.sessions.values().filter_map(summary).collect();
            Ok(StoredSessions { sessions, problems: Vec::new() })
        })
    }

    fn delete(&self, session: SessionId) -> BoxFuture<'static, Result<(), JournalError>> {
        self.now(|disk| {
            let removed = disk.sessions.remove(&session);
            removed.map(|_| ()).ok_or(JournalError::NotFound { session })
        })
    }
}
