//! The sole right to append to a session: an advisory lock on its `.lock` file, gone with the process that holds it.
//!
//! The file also says who holds it, for the message that the next one gets. Data files are never locked: they may be
//! read and copied at any time.

use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::Path;

use crate::journal::jsonl::disk::{Disk, failed};
use crate::journal::jsonl::layout::Place;
use crate::ports::JournalError;

/// The most bytes of a lock file that are shown to a person.
const MAX_HOLDER: u64 = 80;

/// A held lock; dropping it gives it back.
#[derive(Debug)]
pub(super) struct SessionLock {
    file: File,
}

impl SessionLock {
    /// Takes the lock of a session whose directory exists.
    ///
    /// # Errors
    /// `Locked` when it is held, by this process or another one; `Io`.
    pub(super) fn take(disk: &dyn Disk, place: &Place) -> Result<Self, JournalError> {
        let path = place.lock();
        let mut file = disk.open_lock(&path).map_err(failed("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(JournalError::Locked {
                    session: place.session().clone(),
                    holder: holder(disk, &path),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
        }
        // The lock counts, not the name in it: a full disk must not keep a session from being opened.
        let since = jiff::Timestamp::now();
        let name = format!("process {}, {}, since {since:.0}\n", std::process::id(), program());
        let named = disk.cut(&file, 0).and_then(|()| disk.write(&mut file, name.as_bytes()));
        if let Err(error) = named {
            tracing::debug!(path = %path.display(), %error, "the lock does not name its holder");
        }
        Ok(Self { file })
    }
}

impl Drop for SessionLock {
    /// Unlocks before closing: a child process that is just being started may still share the open file, and would
    /// keep the lock past the close.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::debug!(%error, "a session lock was not given back in time");
        }
    }
}

/// Returns what this program is called.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.chars().take(32).collect()
}

fn holder(disk: &dyn Disk, path: &Path) -> Option<String> {
    let mut text = String::new();
    disk.open(path).ok()?.take(MAX_HOLDER).read_to_string(&mut text).ok()?;
    let text: String = text.trim().chars().filter(|character| !character.is_control()).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::ids::SessionId;

    use super::*;
    use crate::journal::jsonl::disk::FileSystem;

    #[test]
    fn a_lock_is_given_back_though_a_child_that_just_starts_shares_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(dir.path(), &SessionId::from("ses_1")).unwrap();
        std::fs::create_dir(place.dir()).unwrap();
        let lock = SessionLock::take(&FileSystem, &place).unwrap();
        let _of_a_child = lock.file.try_clone().unwrap();
        assert!(matches!(SessionLock::take(&FileSystem, &place), Err(JournalError::Locked { .. })));
        drop(lock);
        SessionLock::take(&FileSystem, &place).unwrap();
    }
}
