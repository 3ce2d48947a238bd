//! The sessions of one data directory: who may append here, and what is stored. All of it waits for the disk.
//!
//! It owns the table of writers. A writer is in it from claim to release, or to its first failure.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::ids::{Seq, SessionId};
use bingo_plugin_sdk::session::SessionSummary;

use crate::journal::jsonl::Overdue;
use crate::journal::jsonl::checkpoint::{self, Counted};
use crate::journal::jsonl::disk::{Disk, Facts, failed, if_found, make_dir, sync_dir};
use crate::journal::jsonl::file::Reader;
use crate::journal::jsonl::layout::Place;
use crate::journal::jsonl::lock::SessionLock;
use crate::journal::jsonl::marks::Marks;
use crate::journal::jsonl::remains;
use crate::journal::jsonl::summary;
use crate::journal::jsonl::verify::{Verified, verify};
use crate::journal::jsonl::writer::Writer;
use crate::journal::retention::{Keep, trees};
use crate::ports::{Claim, Epoch, JournalError, Replayer, StoredSessions};

/// A writer that others may be using; empty once it has failed or was given back.
type Slot = Arc<Mutex<Option<Writer>>>;

/// A session that is held here.
#[derive(Clone)]
struct Live {
    /// The number of the epoch.
    number: u64,
    slot: Slot,
    /// The writer's own index, so that a read never waits for an append.
    marks: Arc<Mutex<Marks>>,
}

/// The sessions under `<data_dir>/sessions`.
pub(super) struct Store {
    sessions_dir: PathBuf,
    disk: Arc<dyn Disk>,
    next_epoch: AtomicU64,
    writers: Mutex<HashMap<SessionId, Live>>,
}

impl Store {
    /// Returns the store under a data directory; nothing is made yet.
    pub(super) fn new(data_dir: PathBuf, disk: Arc<dyn Disk>) -> Self {
        Self {
            sessions_dir: data_dir.join("sessions"),
            disk,
            next_epoch: AtomicU64::new(1),
            writers: Mutex::new(HashMap::new()),
        }
    }

    /// Returns the directory that holds a directory for each session.
    pub(super) fn sessions_dir(&self) -> &Path {
        &self.sessions_dir
    }

    /// Begins a session and registers its writer.
    pub(super) fn create(&self, session: SessionId) -> Result<Epoch, JournalError> {
        let place = Place::of(&self.sessions_dir, &session)?;
        make_dir(&*self.disk, &self.sessions_dir)?;
        let writer = Writer::create(&*self.disk, place)?;
        // The session's own entry: `make_dir` synced it, unless a host died right after making it.
        sync_dir(&*self.disk, &self.sessions_dir)?;
        Ok(self.register(session, writer))
    }

    /// Takes a stored session over and registers its writer.
    pub(super) fn claim(&self, session: SessionId, into: &mut dyn Replayer) -> Result<Claim, JournalError> {
        let place = Place::of(&self.sessions_dir, &session)?;
        let (writer, replayed) = Writer::claim(&*self.disk, place, into)?;
        let last = writer.last();
        Ok(Claim { epoch: self.register(session, writer), last, replayed })
    }

    /// Keeps a checkpoint while others append, unless the epoch is over. A failure is logged: the journal has it all.
    pub(super) fn checkpoint(&self, epoch: &Epoch, through: Seq, fold: &[u8]) {
        let Some(Live { marks, .. }) = self.live(epoch) else { return };
        let marks = lock(&marks).clone();
        if let Err(error) = self.keep(&epoch.session, through, &marks, fold) {
            tracing::debug!(session = %epoch.session, %error, "a checkpoint was not written");
        }
    }

    fn keep(
        &self,
        session: &SessionId,
        through: Seq,
        marks: &Marks,
        fold: &[u8],
    ) -> Result<(), JournalError> {
        let place = Place::of(&self.sessions_dir, session)?;
        let Some(mut reader) = Reader::open(&*self.disk, &place)? else { return Ok(()) };
        let Some(journal) = reader.find(through, marks)? else { return Ok(()) };
        let counted = Counted { journal, marks: marks.through(through) };
        checkpoint::save(&*self.disk, &place, counted, fold).map_err(failed("write", &place.checkpoint()))
    }

    /// Appends under an epoch; any error ends that epoch, and with it the lock.
    pub(super) fn append(
        &self,
        epoch: &Epoch,
        expected_last: Seq,
        frames: &[Arc<Frame>],
        sync: bool,
    ) -> Result<(), JournalError> {
        let fenced = || JournalError::Fenced { session: epoch.session.clone() };
        let Live { slot, .. } = self.live(epoch).ok_or_else(fenced)?;
        let mut held = lock(&slot);
        // Taken out while it works, so that a panic loses it like a failure does.
        let mut writer = held.take().ok_or_else(fenced)?;
        let appended = writer.append(&*self.disk, expected_last, frames, sync);
        match &appended {
            Ok(()) => *held = Some(writer),
            // Out of the table before the lock is free: then the next claim may register its own writer.
            Err(_) => drop(self.unregister(epoch)),
        }
        appended
    }

    /// Ends an epoch, after the append that is under way; an old epoch is ignored.
    pub(super) fn release(&self, epoch: &Epoch) {
        if let Some(slot) = self.unregister(epoch) {
            *lock(&slot) = None;
        }
    }

    /// Reads a range of stored frames, also while somebody appends.
    pub(super) fn read(
        &self,
        session: &SessionId,
        after: Seq,
        through: Seq,
    ) -> Result<Vec<Frame>, JournalError> {
        self.with_reader(session, Vec::new, |reader, marks| reader.frames_between(after, through, marks))
    }

    /// Reads the frames of ascending seqs, also while somebody appends.
    pub(super) fn pick(&self, session: &SessionId, seqs: &[Seq]) -> Result<Vec<Frame>, JournalError> {
        self.with_reader(session, Vec::new, |reader, marks| reader.pick(seqs, marks))
    }

    /// Reads with the index of the session if it is held here. An index that turns out to be wrong is made anew.
    fn with_reader<T>(
        &self,
        session: &SessionId,
        empty: impl FnOnce() -> T,
        read: impl Fn(&mut Reader, &Marks) -> Result<Option<T>, JournalError>,
    ) -> Result<T, JournalError> {
        let place = Place::of(&self.sessions_dir, session)?;
        let Some(mut reader) = Reader::open(&*self.disk, &place)? else { return Ok(empty()) };
        let live = self.table().get(session).map(|live| Arc::clone(&live.marks));
        let marks = live.as_ref().map(|live| lock(live).clone()).unwrap_or_default();
        if let Some(found) = read(&mut reader, &marks)? {
            return Ok(found);
        }
        tracing::warn!(session = %session, "the index of a journal was wrong and is made anew");
        reader.rewind()?;
        let marks = reader.marks()?;
        if let Some(live) = live {
            lock(&live).replace(&marks);
        }
        reader.rewind()?;
        read(&mut reader, &Marks::default()).map(|found| found.unwrap_or_else(empty))
    }

    /// Lists the sessions; a directory without a journal, or with one that never got a frame, is not one.
    pub(super) fn list(&self) -> Result<StoredSessions, JournalError> {
        let mut stored = StoredSessions::default();
        for place in self.places()? {
            match summary::of_stored(&*self.disk, &place) {
                Ok(summary) => stored.sessions.extend(summary),
                // Not a session, or deleted since the directory was read.
                Err(JournalError::NotFound { .. }) => {}
                Err(problem) => stored.problems.push(problem),
            }
        }
        Ok(stored)
    }

    /// Returns the places that may be of sessions.
    fn places(&self) -> Result<Vec<Place>, JournalError> {
        let dir = &self.sessions_dir;
        let names = if_found(self.disk.names(dir)).map_err(failed("read", dir))?.unwrap_or_default();
        let ids = names.iter().filter_map(|name| name.to_str().map(SessionId::from));
        Ok(ids.filter_map(|id| Place::of(dir, &id).ok()).collect())
    }

    /// Looks one journal through, or all of them.
    pub(super) fn verify(&self, session: Option<&SessionId>) -> Result<Vec<Verified>, JournalError> {
        if let Some(session) = session {
            let place = Place::of(&self.sessions_dir, session)?;
            return Ok(vec![verify(&*self.disk, &place)?]);
        }
        let mut all = Vec::new();
        for place in self.places()? {
            match verify(&*self.disk, &place) {
                // Not a session, or deleted since the directory was read.
                Err(JournalError::NotFound { .. }) => {}
                verified => all.push(verified?),
            }
        }
        all.sort_by(|a, b| a.session.as_str().cmp(b.session.as_str()));
        Ok(all)
    }

    /// Gives a session that nobody has open another title, durably.
    pub(super) fn rename(&self, session: &SessionId, title: String) -> Result<(), JournalError> {
        /// The frames are not needed, and a checkpoint is as good.
        struct Unread;
        impl Replayer for Unread {
            fn resume(&mut self, _: &[u8]) -> bool {
                true
            }
            fn take(&mut self, _: Frame) {}
        }
        let place = Place::of(&self.sessions_dir, session)?;
        let (mut writer, _) = Writer::claim(&*self.disk, place.clone(), &mut Unread)?;
        let summary = summary::of_stored(&*self.disk, &place)?.ok_or_else(|| place.not_found())?;
        let last = writer.last();
        let ts = format!("{:.3}", jiff::Timestamp::now());
        let event = Event::SessionUpdated {
            summary: Box::new(SessionSummary { title: Some(title), updated_at: ts.clone(), ..summary }),
        };
        // A run of its own: a client may have seen numbers of the last one that were never stored.
        let frame = Frame { seq: last.next_segment(), ts, session: session.clone(), cause: None, event };
        writer.append(&*self.disk, last, &[Arc::new(frame)], true)
    }

    /// Removes what is left of sessions that were never begun, if untouched since `before`; with `dry`, only names it.
    pub(super) fn clear_remains(
        &self,
        before: SystemTime,
        dry: bool,
    ) -> Result<Vec<SessionId>, JournalError> {
        let mut cleared = Vec::new();
        for place in self.places()? {
            if remains::is_remains(&*self.disk, &place, before)?
                && (dry || remains::remove(&*self.disk, &place)?)
            {
                cleared.push(place.session().clone());
            }
        }
        Ok(cleared)
    }

    /// Removes a session, whatever state its journal is in.
    pub(super) fn delete(&self, session: &SessionId) -> Result<(), JournalError> {
        let place = Place::of(&self.sessions_dir, session)?;
        self.facts(&place)?.ok_or_else(|| place.not_found())?;
        let held = self.table().remove(session);
        if let Some(Live { slot, .. }) = held {
            *lock(&slot) = None;
        }
        let _lock = SessionLock::take(&*self.disk, &place)?;
        self.remove(&place)
    }

    /// Returns what is known of the journal of a session that is stored.
    fn facts(&self, place: &Place) -> Result<Option<Facts>, JournalError> {
        let journal = place.journal();
        if_found(self.disk.facts(&journal)).map_err(failed("read", &journal))
    }

    /// Removes a session whose lock is held.
    fn remove(&self, place: &Place) -> Result<(), JournalError> {
        let journal = place.journal();
        // The journal first: without it the rest is no session, should we die half-way.
        if_found(self.disk.remove(&journal)).map_err(failed("delete", &journal))?;
        self.disk.remove_dir(place.dir()).map_err(failed("delete", place.dir()))?;
        sync_dir(&*self.disk, &self.sessions_dir)
    }

    /// Removes sessions that nobody has open, all or none, the last first. Returns those that were there.
    pub(super) fn delete_closed(&self, sessions: &[SessionId]) -> Result<Vec<SessionId>, JournalError> {
        let mut held = Vec::new();
        for session in sessions {
            let place = Place::of(&self.sessions_dir, session)?;
            if self.facts(&place)?.is_some() {
                held.push((SessionLock::take(&*self.disk, &place)?, place));
            }
        }
        held.iter().rev().try_for_each(|(_lock, place)| self.remove(place))?;
        Ok(held.into_iter().map(|(_lock, place)| place.session().clone()).collect())
    }

    /// Finds the sessions that are more than what shall be kept.
    pub(super) fn overdue(&self, keep: Keep, now: SystemTime) -> Result<Overdue, JournalError> {
        let StoredSessions { sessions, problems } = self.list()?;
        Ok(Overdue { trees: keep.overdue(trees(&sessions, |id| self.weigh(id)), now), problems })
    }

    /// Returns what a session takes of the disk, in bytes; a file that is not there takes nothing.
    fn weigh(&self, session: &SessionId) -> u64 {
        let Ok(place) = Place::of(&self.sessions_dir, session) else { return 0 };
        let files = [place.journal(), place.summary(), place.checkpoint()];
        let lengths = files.iter().filter_map(|file| self.disk.facts(file).ok());
        lengths.map(|facts| facts.length).fold(0, u64::saturating_add)
    }

    fn register(&self, session: SessionId, writer: Writer) -> Epoch {
        let number = self.next_epoch.fetch_add(1, Ordering::Relaxed);
        let (marks, slot) = (writer.marks(), Arc::new(Mutex::new(Some(writer))));
        self.table().insert(session.clone(), Live { number, slot, marks });
        Epoch { session, number }
    }

    fn live(&self, epoch: &Epoch) -> Option<Live> {
        self.table().get(&epoch.session).filter(|live| live.number == epoch.number).cloned()
    }

    fn unregister(&self, epoch: &Epoch) -> Option<Slot> {
        let mut table = self.table();
        table.get(&epoch.session).filter(|live| live.number == epoch.number)?;
        table.remove(&epoch.session).map(|live| live.slot)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<SessionId, Live>> {
        lock(&self.writers)
    }
}

/// Locks also after a panic elsewhere: neither the table nor a slot has half-done states.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
