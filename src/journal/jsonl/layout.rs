//! Where a session lies. The only place that turns a session id, which a client may have made up, into a path.

use std::path::{Path, PathBuf};

use bingo_plugin_sdk::ids::SessionId;

use crate::ports::JournalError;

/// The longest id that names a directory, in bytes; file systems allow 255.
const MAX_ID: usize = 128;

/// The directory of one session and the files in it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    session: SessionId,
    dir: PathBuf,
}

impl Place {
    /// Returns the place of a session.
    ///
    /// # Errors
    /// `NotFound` for an id that is not one plain path component: nothing of that name is ever stored, and the file
    /// system is not asked.
    pub(super) fn of(sessions_dir: &Path, session: &SessionId) -> Result<Self, JournalError> {
        if !is_plain(session.as_str()) {
            return Err(JournalError::NotFound { session: session.clone() });
        }
        Ok(Self { session: session.clone(), dir: sessions_dir.join(session.as_str()) })
    }

    /// Returns whose place it is.
    pub(super) fn session(&self) -> &SessionId {
        &self.session
    }

    /// Returns the session's directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the record itself.
    pub(super) fn journal(&self) -> PathBuf {
        self.dir.join("journal.jsonl")
    }

    /// Returns the path of the lock file.
    pub(super) fn lock(&self) -> PathBuf {
        self.dir.join(".lock")
    }

    /// Returns the path of the cached summary.
    pub(super) fn summary(&self) -> PathBuf {
        self.dir.join("summary.json")
    }

    /// Returns the path under which a summary is written before it takes its place.
    pub(super) fn summary_draft(&self) -> PathBuf {
        self.dir.join("summary.json.tmp")
    }

    /// Returns the path of what the journal came to, up to a place in it.
    pub(super) fn checkpoint(&self) -> PathBuf {
        self.dir.join("checkpoint")
    }

    /// Returns the path under which a checkpoint is written before it takes its place.
    pub(super) fn checkpoint_draft(&self) -> PathBuf {
        self.dir.join("checkpoint.tmp")
    }

    /// Returns the error that says that this session is not stored.
    pub(super) fn not_found(&self) -> JournalError {
        JournalError::NotFound { session: self.session.clone() }
    }

    /// Returns the error that says that an epoch of this session is over.
    pub(super) fn fenced(&self) -> JournalError {
        JournalError::Fenced { session: self.session.clone() }
    }
}

fn is_plain(id: &str) -> bool {
    (1..=MAX_ID).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_id_has_a_place() {
        let place = |id: &str| Place::of(Path::new("/data/sessions"), &SessionId::from(id));
        for bad in ["", ".", "..", "a/b", "/etc", "a\\b", "a\0", "a.b", "ä", "a b", &"x".repeat(129)] {
            assert!(matches!(place(bad), Err(JournalError::NotFound { .. })), "{bad:?}");
        }
        let good = "x".repeat(128);
        assert_eq!(place(&good).unwrap().dir(), Path::new("/data/sessions").join(&good));
        assert!(place(SessionId::mint().as_str()).is_ok());
    }
}
