//! The one writer of a session: its lock, its open file, and where that file ends.
//!
//! It begins a journal or takes one over, and appends. It is thrown away after the first failure: what stands on the disk
//! is then unknown, and only the next claim finds out.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bingo_plugin_sdk::event::Frame;
use bingo_plugin_sdk::ids::Seq;

use crate::journal::jsonl::disk::{Disk, failed, if_found, make_dir, sync_dir};
use crate::journal::jsonl::file::{Position, Reader, header_line, misplaced};
use crate::journal::jsonl::layout::Place;
use crate::journal::jsonl::line;
use crate::journal::jsonl::lock::SessionLock;
use crate::journal::jsonl::summary::{self, Fold};
use crate::ports::JournalError;

/// The right to append to one session, and the means.
pub(super) struct Writer {
    place: Place,
    file: File,
    at: Position,
    fold: Fold,
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
            Ok((file, at)) => Ok(Self { place, file, at, fold: Fold::default(), _lock: lock }),
            Err(error) => {
                // The error that counts is the first one; a rest of the header is begun anew or skipped.
                let _ = disk.remove_dir(place.dir());
                Err(error)
            }
        }
    }

    /// Takes a stored session over, cuts its torn tail, and returns its frames with the writer.
    ///
    /// # Errors
    /// `NotFound` also for a session without a frame; `Locked`, `NotJournal`, `Newer`, `Damaged`, `Io`.
    pub(super) fn claim(disk: &dyn Disk, place: Place) -> Result<(Self, Vec<Frame>), JournalError> {
        let path = place.journal();
        // Asked first so that no lock file appears where no session is.
        if if_found(disk.facts(&path)).map_err(failed("read", &path))?.is_none() {
            return Err(place.not_found());
        }
        let lock = SessionLock::take(disk, &place)?;
        let mut reader = Reader::open(disk, &place)?.ok_or_else(|| place.not_found())?;
        let (frames, mut fold) = read_all(&mut reader).inspect_err(|_| summary::forget(disk, &place))?;
        if frames.is_empty() {
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
        Ok((Self { place, file, at, fold, _lock: lock }, frames))
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
        let (lines, at) = self.encode(&path, frames)?;
        let stored = self.store(disk, &lines, sync);
        if stored.is_err() {
            // Whole lines of a failed write must not come back: their numbers may be told again. Where even this fails,
            // the next claim reads what stands there.
            let _ = disk.cut(&self.file, self.at.bytes);
        }
        stored.map_err(|(act, error)| failed(act, &path)(error))?;
        self.at = at;
        frames.iter().for_each(|frame| self.fold.apply(frame));
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

    /// Returns the frames as lines, and where the file ends after them.
    fn encode(&self, path: &Path, frames: &[Arc<Frame>]) -> Result<(Vec<u8>, Position), JournalError> {
        let mut lines = Vec::new();
        let mut at = self.at;
        for frame in frames {
            if let Some(reason) = misplaced(at.seq, self.place.session(), frame) {
                return Err(failed("append to", path)(io::Error::new(io::ErrorKind::InvalidInput, reason)));
            }
            line::write(frame, &mut lines).map_err(|error| failed("append to", path)(error.into()))?;
            at.seq = frame.seq;
            at.lines += 1;
        }
        at.bytes += lines.len() as u64;
        Ok((lines, at))
    }
}

/// Returns whether no frame of the session was ever stored. Whatever else stands in its place counts as a session.
fn is_unborn(disk: &dyn Disk, place: &Place) -> Result<bool, JournalError> {
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

fn read_all(reader: &mut Reader) -> Result<(Vec<Frame>, Fold), JournalError> {
    let mut frames = Vec::new();
    let mut fold = Fold::default();
    while let Some(frame) = reader.next_frame()? {
        fold.apply(&frame);
        frames.push(frame);
    }
    Ok((frames, fold))
}
