//! The one writer of a session: its lock, its open file, and where that file ends.
//!
//! It begins a journal or takes one over, and appends. It is thrown away after the first failure: what stands on the disk
//! is then unknown, and only the next claim finds out.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bingo_plugin_sdk::event::Frame;
use bingo_plugin_sdk::ids::Seq;

use crate::journal::jsonl::checkpoint;
use crate::journal::jsonl::disk::{Disk, failed, if_found, make_dir, sync_dir};
use crate::journal::jsonl::file::{Position, Reader, header_line, misplaced};
use crate::journal::jsonl::layout::Place;
use crate::journal::jsonl::line;
use crate::journal::jsonl::lock::SessionLock;
use crate::journal::jsonl::marks::Marks;
use crate::journal::jsonl::summary::{self, Fold};
use crate::ports::{JournalError, Replayer};

/// The right to append to one session, and the means.
pub(super) struct Writer {
    place: Place,
    file: File,
    at: Position,
    fold: Fold,
    /// The index of the file, which readers share.
    marks: Arc<Mutex<Marks>>,
    /// Last, so that the file is closed before the next holder opens it.
    _lock: SessionLock,
}

impl Writer {
    /// Begins a session: directory, lock and header, all synced.
    ///
    /// A session that was begun but never got a frame is begun anew; it was never announced to anybody.
    ///
    /// # Errors
    /// `Exists`; `Io`, and then at most an empty beginning is left, which is no session.
    pub(super) fn create(disk: &dyn Disk, place: Place) -> Result<Self, JournalError> {
        make_dir(disk, place.dir())?;
        let exists = || JournalError::Exists { session: place.session().clone() };
        let lock = SessionLock::take(disk, &place).map_err(|error| match error {
            JournalError::Locked { .. } => exists(),
            other => other,
        })?;
        if !is_unborn(disk, &place)? {
            return Err(exists());
        }
        match begin(disk, &place) {
            Ok((file, at)) => {
                // Of a session of this name whose directory could not be removed as a whole.
                checkpoint::forget(disk, &place);
                Ok(Self { place, file, at, fold: Fold::default(), marks: Arc::default(), _lock: lock })
            }
            Err(error) => {
                // The error that counts is the first one; a rest of the header is begun anew or skipped.
                let _ = disk.remove_dir(place.dir());
                Err(error)
            }
        }
    }

    /// Takes a stored session over, cuts its torn tail, and returns the writer; `into` takes what was stored. Also returns how
    /// many bytes of frames it took.
    ///
    /// # Errors
    /// `NotFound` also for a session without a frame; `Locked`, `NotJournal`, `Newer`, `Damaged`, `Io`.
    pub(super) fn claim(
        disk: &dyn Disk,
        place: Place,
        into: &mut dyn Replayer,
    ) -> Result<(Self, u64), JournalError> {
        let path = place.journal();
        // Asked first so that no lock file appears where no session is.
        if if_found(disk.facts(&path)).map_err(failed("read", &path))?.is_none() {
            return Err(place.not_found());
        }
        let lock = SessionLock::take(disk, &place)?;
        let mut reader = Reader::open(disk, &place)?.ok_or_else(|| place.not_found())?;
        let (mut fold, mut marks) = (Fold::default(), resume(disk, &place, &mut reader, into)?);
        let begins = reader.at();
        replay(&mut reader, into, &mut fold, &mut marks).inspect_err(|_| summary::forget(disk, &place))?;
        if reader.at().seq == Seq(0) {
            return Err(place.not_found());
        }
        // A cache that counts more than is left must not outlive the cut: the journal would grow past its place again,
        // with other frames.
        summary::forget(disk, &place);
        let at = reader.at();
        let file = disk.append(&path, false).map_err(failed("open", &path))?;
        if reader.is_torn() {
            tracing::warn!(session = %place.session(), kept = at.bytes, "a torn tail was cut from the journal");
            disk.cut(&file, at.bytes).map_err(failed("cut", &path))?;
            disk.sync_all(&file).map_err(failed("sync", &path))?;
        }
        fold.save(disk, &place, at);
        let marks = Arc::new(Mutex::new(marks));
        Ok((Self { place, file, at, fold, marks, _lock: lock }, at.bytes - begins.bytes))
    }

    /// Returns the last stored seq.
    pub(super) fn last(&self) -> Seq {
        self.at.seq
    }

    /// Returns the index of the file as it grows.
    pub(super) fn marks(&self) -> Arc<Mutex<Marks>> {
        Arc::clone(&self.marks)
    }

    fn index(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends frames in one write and syncs when asked; without frames, it syncs what was appended before.
    ///
    /// # Errors
    /// `Fenced` when `expected_last` is not the last stored seq; `Io` when a frame cannot stand here (its source says
    /// why) or the disk fails. The writer is not to be used after any of them.
    pub(super) fn append(
        &mut self,
        disk: &dyn Disk,
        expected_last: Seq,
        frames: &[Arc<Frame>],
        sync: bool,
    ) -> Result<(), JournalError> {
        if expected_last != self.at.seq {
            return Err(self.place.fenced());
        }
        let path = self.place.journal();
        let (lines, begins, at) = self.encode(&path, frames)?;
        let stored = self.store(disk, &lines, sync);
        if stored.is_err() {
            // Whole lines of a failed write must not come back: their numbers may be told again. Where even this fails,
            // the next claim reads what stands there.
            let _ = disk.cut(&self.file, self.at.bytes);
        }
        stored.map_err(|(act, error)| failed(act, &path)(error))?;
        self.at = at;
        frames.iter().for_each(|frame| self.fold.apply(frame));
        let mut marks = self.index();
        begins.into_iter().zip(frames).for_each(|(begins, frame)| marks.note(begins, frame.seq));
        drop(marks);
        self.fold.save(disk, &self.place, at);
        Ok(())
    }

    fn store(&mut self, disk: &dyn Disk, lines: &[u8], sync: bool) -> Result<(), (&'static str, io::Error)> {
        if !lines.is_empty() {
            disk.write(&mut self.file, lines).map_err(|error| ("write", error))?;
        }
        if sync {
            disk.sync_data(&self.file).map_err(|error| ("sync", error))?;
        }
        Ok(())
    }

    /// Returns the frames as lines, where each begins, and where the file ends after them.
    fn encode(
        &self,
        path: &Path,
        frames: &[Arc<Frame>],
    ) -> Result<(Vec<u8>, Vec<Position>, Position), JournalError> {
        let (mut lines, mut begins) = (Vec::new(), Vec::new());
        let mut at = self.at;
        for frame in frames {
            begins.push(at);
            if let Some(reason) = misplaced(at.seq, self.place.session(), frame) {
                return Err(failed("append to", path)(io::Error::new(io::ErrorKind::InvalidInput, reason)));
            }
            line::write(frame, &mut lines).map_err(|error| failed("append to", path)(error.into()))?;
            let bytes = self.at.bytes + lines.len() as u64;
            at = Position { bytes, lines: at.lines + 1, seq: frame.seq };
        }
        Ok((lines, begins, at))
    }
}

/// Returns whether no frame of the session was ever stored. Whatever else stands in its place counts as a session.
pub(super) fn is_unborn(disk: &dyn Disk, place: &Place) -> Result<bool, JournalError> {
    match Reader::open(disk, place) {
        Ok(None) | Err(JournalError::NotFound { .. }) => Ok(true),
        Ok(Some(mut reader)) => Ok(matches!(reader.next_frame(), Ok(None))),
        Err(error @ JournalError::Io { .. }) => Err(error),
        Err(_) => Ok(false),
    }
}

fn begin(disk: &dyn Disk, place: &Place) -> Result<(File, Position), JournalError> {
    let path = place.journal();
    let mut file = disk.append(&path, true).map_err(failed("create", &path))?;
    disk.cut(&file, 0).map_err(failed("create", &path))?;
    let header = header_line(place.session());
    disk.write(&mut file, header.as_bytes()).map_err(failed("write", &path))?;
    disk.sync_all(&file).map_err(failed("sync", &path))?;
    sync_dir(disk, place.dir())?;
    Ok((file, Position { bytes: header.len() as u64, lines: 1, seq: Seq(0) }))
}

/// Goes to the place up to which a checkpoint counts, if there is one for this journal and `into` goes on from it.
fn resume(
    disk: &dyn Disk,
    place: &Place,
    reader: &mut Reader,
    into: &mut dyn Replayer,
) -> Result<Marks, JournalError> {
    if let Some((counted, fold)) = checkpoint::load(disk, place)
        && reader.skip_to(counted.journal)?
        && into.resume(&fold)
    {
        return Ok(counted.marks);
    }
    checkpoint::forget(disk, place);
    reader.rewind()?;
    Ok(Marks::default())
}

fn replay(
    reader: &mut Reader,
    into: &mut dyn Replayer,
    fold: &mut Fold,
    marks: &mut Marks,
) -> Result<(), JournalError> {
    let mut begins = reader.at();
    while let Some(frame) = reader.next_frame()? {
        marks.note(begins, frame.seq);
        begins = reader.at();
        fold.apply(&frame);
        into.take(frame);
    }
    Ok(())
}
