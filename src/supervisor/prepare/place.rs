//! Where a `prepare` step installs: `<data_dir>/prepared/<plugin>/<hash>`, with `<hash>.lock` beside it.
//!
//! The lock's text says that the step is done. Whoever runs the step holds the lock alone; each process that uses what was
//! made holds it with others, so that nobody removes it meanwhile. Locks end with the host that holds them.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The text of the lock once the step is done.
const DONE: &str = "done\n";
/// How often the lock of another host is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How many that nobody uses are kept: what was changed is often changed back.
const SPARE: usize = 2;
const LOCK: &str = "lock";

/// The place of what one step makes from one state of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) folder: PathBuf,
    lock: PathBuf,
}

/// What a step made. While this is held, it is not removed.
#[derive(Debug)]
pub(in crate::supervisor) struct Prepared {
    pub(in crate::supervisor) folder: PathBuf,
    _lock: File,
}

/// The right to run the step, which nobody else has meanwhile.
#[derive(Debug)]
pub(super) struct Claim {
    place: Place,
    pub(super) lock: File,
}

/// What came of waiting for a place.
#[derive(Debug)]
pub(super) enum Turn {
    /// Another host ran the step.
    Done(Prepared),
    /// It is to be run now.
    Ours(Claim),
}

impl Place {
    pub(super) fn new(data_dir: &Path, plugin: &str, hash: &str) -> Self {
        let folder = data_dir.join("prepared").join(plugin).join(hash);
        Self { lock: folder.with_extension(LOCK), folder }
    }

    /// Returns what was made, when it was, and nobody is making it.
    pub(super) fn prepared(&self) -> io::Result<Option<Prepared>> {
        if !self.folder.is_dir() {
            return Ok(None);
        }
        let mut lock = self.open()?;
        match lock.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let done = self.is_done(&mut lock)? && self.is_at_its_path(&lock);
        Ok(done.then(|| Prepared { folder: self.folder.clone(), _lock: lock }))
    }

    /// Waits until nobody else runs the step. Cancel-safe.
    pub(super) async fn turn(&self) -> io::Result<Turn> {
        loop {
            if let Some(prepared) = self.prepared()? {
                return Ok(Turn::Done(prepared));
            }
            if let Some(mut claim) = self.claim()? {
                // It may have been done between the two looks.
                if !self.is_done(&mut claim.lock)? {
                    return Ok(Turn::Ours(claim));
                }
                continue;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn claim(&self) -> io::Result<Option<Claim>> {
        let lock = self.open()?;
        match lock.try_lock() {
            // One that was removed meanwhile locks nothing.
            Ok(()) if self.is_at_its_path(&lock) => Ok(Some(Claim { place: self.clone(), lock })),
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn open(&self) -> io::Result<File> {
        self.lock.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.lock)
    }

    fn is_done(&self, lock: &mut File) -> io::Result<bool> {
        let mut text = String::new();
        lock.rewind()?;
        lock.read_to_string(&mut text)?;
        Ok(text == DONE && self.folder.is_dir())
    }

    fn is_at_its_path(&self, lock: &File) -> bool {
        let id = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let (open, there) = (lock.metadata().map(id), self.lock.metadata().map(id));
        open.is_ok() && open.ok() == there.ok()
    }
}

impl Claim {
    /// Makes an empty folder, whatever an earlier try left.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.write("")?;
        match std::fs::remove_dir_all(&self.place.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => std::fs::create_dir_all(&self.place.folder),
        }
    }

    /// Says that the step is done; others may use what it made from now on.
    pub(super) fn done(mut self) -> io::Result<Place> {
        self.write(DONE)?;
        Ok(self.place)
    }

    /// Removes what nobody uses: what was given up, and all but a few that were made last. What cannot be removed is left.
    pub(super) fn clean(&self) {
        let entries = self.place.lock.parent().map(std::fs::read_dir);
        let paths = entries.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
        let locks = paths.filter(|path| path.extension().is_some_and(|end| end == LOCK));
        let (mut done, mut others) = (Vec::new(), Vec::new());
        for lock in locks.filter(|lock| *lock != self.place.lock) {
            let made = lock.metadata().and_then(|metadata| metadata.modified());
            match (std::fs::read_to_string(&lock), made) {
                (Ok(text), Ok(made)) if text == DONE => done.push((made, lock)),
                _ => others.push(lock),
            }
        }
        done.sort();
        done.truncate(done.len().saturating_sub(SPARE));
        others.extend(done.into_iter().map(|(_, lock)| lock));
        others.into_iter().for_each(remove);
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        self.lock.write_all(text.as_bytes())
    }
}

/// Removes a place that nobody uses.
fn remove(lock: PathBuf) {
    let place = Place { folder: lock.with_extension(""), lock };
    let Ok(Some(_claim)) = place.claim() else { return };
    match std::fs::remove_dir_all(&place.folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, folder = %place.folder.display(), "what was installed is not removed");
        }
        _ => drop(std::fs::remove_file(&place.lock)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Data(tempfile::TempDir);

    impl Data {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn place(&self, hash: &str) -> Place {
            Place::new(self.0.path(), "p.1", hash)
        }

        /// Runs a step that makes one file.
        fn make(&self, hash: &str) -> Prepared {
            let mut claim = self.place(hash).claim().unwrap().unwrap();
            claim.clear().unwrap();
            std::fs::write(claim.place.folder.join("made"), hash).unwrap();
            claim.clean();
            claim.done().unwrap().prepared().unwrap().unwrap()
        }
    }

    #[tokio::test]
    async fn what_is_being_made_is_nobodys_yet() {
        let data = Data::new();
        let place = data.place("a");
        assert!(place.prepared().unwrap().is_none());
        let mut claim = place.claim().unwrap().unwrap();
        claim.clear().unwrap();
        assert!(place.prepared().unwrap().is_none() && place.claim().unwrap().is_none());
        let waiting = tokio::spawn({
            let place = place.clone();
            async move { place.turn().await.unwrap() }
        });
        claim.done().unwrap();
        let Turn::Done(prepared) = waiting.await.unwrap() else { panic!("it was made already") };
        assert_eq!(prepared.folder, place.folder);
        assert!(place.claim().unwrap().is_none(), "it is in use");
        assert!(matches!(place.turn().await.unwrap(), Turn::Done(_)), "by several at a time");
    }

    #[tokio::test]
    async fn what_was_given_up_is_made_anew() {
        let data = Data::new();
        let place = data.place("a");
        let mut claim = place.claim().unwrap().unwrap();
        claim.clear().unwrap();
        std::fs::write(place.folder.join("half"), "").unwrap();
        drop(claim);
        assert!(place.prepared().unwrap().is_none());
        let Turn::Ours(mut claim) = place.turn().await.unwrap() else { panic!("it was not done") };
        claim.clear().unwrap();
        assert!(!place.folder.join("half").exists());
        claim.done().unwrap();
        assert!(place.prepared().unwrap().is_some());
        std::fs::remove_dir_all(&place.folder).unwrap();
        assert!(place.prepared().unwrap().is_none(), "a person removed it");
    }

    #[test]
    fn of_those_that_nobody_uses_a_few_are_kept() {
        let data = Data::new();
        let used = data.make("a");
        for hash in ["b", "c", "d"] {
            drop(data.make(hash));
        }
        data.place("half").claim().unwrap().unwrap().clear().unwrap();
        let running = data.place("running").claim().unwrap().unwrap();
        drop(data.make("e"));
        assert!(!data.place("half").folder.exists() && !data.place("half").lock.exists());
        assert!(data.place("running").lock.exists());
        drop(running);
        let left: Vec<bool> =
            ["a", "b", "c", "d", "e"].map(|hash| data.place(hash).folder.exists()).into_iter().collect();
        assert_eq!(left[0..2], [true, false]);
        assert_eq!(left[3..], [true, true]);
        drop(used);
        drop(data.make("f"));
        assert!(!data.place("a").folder.exists() && !data.place("a").lock.exists());
    }
}
