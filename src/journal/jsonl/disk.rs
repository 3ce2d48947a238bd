//! What the journal does to the file system, behind one small trait so that a test can make any of it fail, and can forget
//! what was never synced.
//!
//! Also what several rooms need around it: directories that survive a power cut, and errors that name their path.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use crate::ports::JournalError;

/// What is asked about a file without opening it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) modified: SystemTime,
    /// In bytes.
    pub(super) length: u64,
}

/// The file system under the journal. Reading an open file is not part of it: a failed read changes nothing.
pub(super) trait Disk: Send + Sync {
    /// Opens a file that exists, to read it.
    fn open(&self, path: &Path) -> io::Result<File>;

    /// Opens a file to append to it; `create` makes it when it is missing.
    fn append(&self, path: &Path, create: bool) -> io::Result<File>;

    /// Opens a file to be locked, and makes it when it is missing.
    fn open_lock(&self, path: &Path) -> io::Result<File>;

    /// Writes all bytes at the end of the file; after an error a part of them may stand there.
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()>;

    /// Cuts a file to this length.
    fn cut(&self, file: &File, length: u64) -> io::Result<()>;

    /// Waits until what was written is on the disk, with as much metadata as reading it needs.
    fn sync_data(&self, file: &File) -> io::Result<()>;

    /// Waits until a new file or a directory's entries are on the disk.
    fn sync_all(&self, file: &File) -> io::Result<()>;

    /// Writes a file of a cache, anew and whole; it need not survive.
    fn write_cache(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Gives a file another name, in place of whatever had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory with all that is in it.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes a directory that is the owner's alone: transcripts are private.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Returns the names in a directory.
    fn names(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Returns what is known of a file, links not followed.
    fn facts(&self, path: &Path) -> io::Result<Facts>;
}

/// The file system itself.
pub(super) struct FileSystem;

impl Disk for FileSystem {
    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn append(&self, path: &Path, create: bool) -> io::Result<File> {
        OpenOptions::new().append(true).create(create).open(path)
    }

    fn open_lock(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn cut(&self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn write_cache(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::write(path, bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        private_dir().create(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn facts(&self, path: &Path) -> io::Result<Facts> {
        let found = fs::symlink_metadata(path)?;
        Ok(Facts { modified: found.modified()?, length: found.len() })
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
    let dir = disk.open(path).map_err(failed("open", path))?;
    disk.sync_all(&dir).map_err(failed("sync", path))
}

/// Makes a directory and those above it where they are missing, each synced into the one above it.
pub(super) fn make_dir(disk: &dyn Disk, path: &Path) -> Result<(), JournalError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_dir(disk, parent)?;
    }
    match disk.create_dir(path) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_but_cannot_be_had_is_an_error() {
        let found = |kind: io::ErrorKind| if_found::<()>(Err(kind.into()));
        assert!(matches!(found(io::ErrorKind::NotFound), Ok(None)));
        assert!(matches!(found(io::ErrorKind::NotADirectory), Ok(None)));
        assert!(found(io::ErrorKind::PermissionDenied).is_err());
        assert!(matches!(if_found(Ok(1)), Ok(Some(1))));
    }
}
