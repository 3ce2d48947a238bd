//! Disks that do harm: one fails an operation, one forgets what was never synced.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::journal::jsonl::disk::Facts;

/// What a disk is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Open,
    Append,
    Lock,
    Write,
    Cut,
    Sync,
    WriteCache,
    Rename,
    Remove,
    RemoveDir,
    CreateDir,
    Names,
    Facts,
}

pub(super) const OPS: [Op; 13] = [
    Op::Open,
    Op::Append,
    Op::Lock,
    Op::Write,
    Op::Cut,
    Op::Sync,
    Op::WriteCache,
    Op::Rename,
    Op::Remove,
    Op::RemoveDir,
    Op::CreateDir,
    Op::Names,
    Op::Facts,
];

/// Decides what an operation on a real disk comes to.
pub(super) trait Fate: Send + Sync {
    /// Called before each operation.
    ///
    /// # Errors
    /// What the operation fails with.
    fn step(&self, op: Op) -> io::Result<()>;

    /// Returns how many bytes of a write that fails still reach the file.
    fn partial(&self) -> usize {
        0
    }

    /// Called when a file or a directory was synced.
    fn synced(&self, _: &File) {}
}

/// The file system, as its fate has it. It never waits for the real disk.
pub(super) struct Fated<F>(pub(super) F);

impl<F: Fate> Disk for Fated<F> {
    fn open(&self, path: &Path) -> io::Result<File> {
        self.0.step(Op::Open)?;
        FileSystem.open(path)
    }

    fn append(&self, path: &Path, create: bool) -> io::Result<File> {
        self.0.step(Op::Append)?;
        FileSystem.append(path, create)
    }

    fn open_lock(&self, path: &Path) -> io::Result<File> {
        self.0.step(Op::Lock)?;
        FileSystem.open_lock(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        self.0.step(Op::Write).or_else(|full| {
            FileSystem.write(file, &bytes[..self.0.partial().min(bytes.len())])?;
            Err(full)
        })?;
        FileSystem.write(file, bytes)
    }

    fn cut(&self, file: &File, length: u64) -> io::Result<()> {
        self.0.step(Op::Cut)?;
        FileSystem.cut(file, length)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.sync_all(file)
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        self.0.step(Op::Sync)?;
        self.0.synced(file);
        Ok(())
    }

    fn write_cache(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.0.step(Op::WriteCache)?;
        FileSystem.write_cache(path, bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.step(Op::Rename)?;
        FileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.step(Op::Remove)?;
        FileSystem.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.0.step(Op::RemoveDir)?;
        FileSystem.remove_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.step(Op::CreateDir)?;
        FileSystem.create_dir(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.0.step(Op::Names)?;
        FileSystem.names(path)
    }

    fn facts(&self, path: &Path) -> io::Result<Facts> {
        self.0.step(Op::Facts)?;
        FileSystem.facts(path)
    }
}

/// Nothing fails.
pub(super) struct Unsynced;

impl Fate for Unsynced {
    fn step(&self, _: Op) -> io::Result<()> {
        Ok(())
    }
}

/// Another process makes this directory just before we do.
pub(super) struct Outrun(pub(super) std::path::PathBuf);

impl Fate for Outrun {
    fn step(&self, op: Op) -> io::Result<()> {
        if op == Op::CreateDir { std::fs::create_dir(&self.0) } else { Ok(()) }
    }
}

/// After so many operations, one fails, or every one from there on.
#[derive(Default)]
pub(super) struct Failing {
    state: Mutex<FailingState>,
    partial: usize,
}

#[derive(Default)]
struct FailingState {
    left: Option<u32>,
    /// Only these count.
    only: Option<Op>,
    /// Those behind it pass.
    once: bool,
    met: bool,
}

impl Failing {
    pub(super) fn new(partial: usize) -> Arc<Fated<Self>> {
        Arc::new(Fated(Self { partial, ..Self::default() }))
    }

    /// Lets so many pass and then fails each one; `None` is the end of the fault.
    pub(super) fn fail_after(&self, operations: Option<u32>) {
        *self.lock() = FailingState { left: operations, ..FailingState::default() };
    }

    /// Lets so many pass, of one kind or of any, and fails the next one alone.
    pub(super) fn fail_once(&self, only: Option<Op>, after: u32) {
        *self.lock() = FailingState { left: Some(after), only, once: true, met: false };
    }

    /// Ends the fault; returns whether it was met.
    pub(super) fn heal(&self) -> bool {
        std::mem::take(&mut *self.lock()).met
    }

    fn lock(&self) -> MutexGuard<'_, FailingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fate for Failing {
    fn step(&self, op: Op) -> io::Result<()> {
        let mut state = self.lock();
        if state.only.is_some_and(|only| only != op) {
            return Ok(());
        }
        match state.left {
            None => Ok(()),
            Some(0) => {
                state.met = true;
                if state.once {
                    state.left = None;
                }
                Err(io::ErrorKind::StorageFull.into())
            }
            Some(left) => {
                state.left = Some(left - 1);
                Ok(())
            }
        }
    }

    fn partial(&self) -> usize {
        self.partial
    }
}

/// Knows what is synced: of a file its bytes, of a directory its entries. After so many operations the power fails.
#[derive(Default)]
pub(super) struct PowerCut {
    left: Mutex<Option<u32>>,
    synced: Mutex<Synced>,
}

#[derive(Default)]
struct Synced {
    files: HashMap<u64, Vec<u8>>,
    folders: HashMap<u64, BTreeMap<OsString, u64>>,
}

impl PowerCut {
    /// The power fails after so many more operations.
    pub(super) fn cut_after(&self, operations: u32) {
        *self.left.lock().unwrap() = Some(operations);
    }

    /// Makes the directory `to` what a disk holds of `from` after the power failed.
    pub(super) fn restore(&self, from: &Path, to: &Path) {
        let synced = self.synced.lock().unwrap();
        fs::create_dir_all(to).unwrap();
        restore(&synced, fs::metadata(from).unwrap().ino(), to);
    }
}

fn restore(synced: &Synced, folder: u64, to: &Path) {
    for (name, inode) in synced.folders.get(&folder).into_iter().flatten() {
        let path = to.join(name);
        match synced.files.get(inode) {
            Some(bytes) => fs::write(path, bytes).unwrap(),
            None if synced.folders.contains_key(inode) => {
                fs::create_dir_all(&path).unwrap();
                restore(synced, *inode, &path);
            }
            // Its entry was synced, and nothing of what is in it: an empty directory looks the same.
            None => fs::write(path, b"").unwrap(),
        }
    }
}

impl Fate for PowerCut {
    fn step(&self, _: Op) -> io::Result<()> {
        match &mut *self.left.lock().unwrap() {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the power failed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn synced(&self, file: &File) {
        let facts = file.metadata().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut synced = self.synced.lock().unwrap();
        if facts.is_dir() {
            let entries = fs::read_dir(path).unwrap().map(|entry| {
                let entry = entry.unwrap();
                (entry.file_name(), entry.metadata().unwrap().ino())
            });
            synced.folders.insert(facts.ino(), entries.collect());
        } else {
            synced.files.insert(facts.ino(), fs::read(path).unwrap());
        }
    }
}
