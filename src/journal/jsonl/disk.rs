//! The file operations that may fail half-way, behind one small trait so that a test can make the n-th of them fail.
//!
//! Also what several rooms need around them: directories that survive a power cut, and errors that name their path.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::path::Path;

use crate::ports::JournalError;

/// What the store does to open files and directories.
pub(super) trait Disk: Send + Sync {
    /// Writes all bytes at the end of the file; after an error a part of them may stand there.
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()>;

    /// Waits until what was written is on the disk, with as much metadata as reading it needs.
    fn sync_data(&self, file: &File) -> io::Result<()>;

    /// Waits until a new file or a directory's entries are on the disk.
    fn sync_all(&self, file: &File) -> io::Result<()>;
}

/// The file system itself.
pub(super) struct FileSystem;

impl Disk for FileSystem {
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }
}

/// Returns a function that gives an I/O error its act and its path.
pub(super) fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_path_buf();
    move |source| JournalError::Io { act, path, source }
}

/// Returns nothing instead of an error for what is not there.
pub(super) fn if_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Waits until the entries of a directory are on the disk.
pub(super) fn sync_dir(disk: &dyn Disk, path: &Path) -> Result<(), JournalError> {
    let dir = File::open(path).map_err(failed("open", path))?;
    disk.sync_all(&dir).map_err(failed("sync", path))
}

/// Makes a directory and those above it where they are missing, each synced into the one above it.
///
/// New ones are the owner's alone: transcripts are private.
pub(super) fn make_dir(disk: &dyn Disk, path: &Path) -> Result<(), JournalError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_dir(disk, parent)?;
    }
    match private_dir().create(path) {
        // Another process was faster; it may not have synced yet, so we do.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(failed("create", path))?,
    }
    sync_dir(disk, parent.unwrap_or(Path::new(".")))
}

fn private_dir() -> DirBuilder {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}
