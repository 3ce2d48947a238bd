//! Collection: what is stored is kept within the `retention` of the settings, at most once a day for a data directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bingo_plugin_sdk::item::Level;

use crate::journal::{JsonlJournal, Keep, Overdue};
use crate::kernel::{Board, Kernel};
use crate::ports::{JournalError, Notice, Notices};
use crate::telemetry;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What collects.
pub(super) struct Collector {
    keep: Keep,
    journal: JsonlJournal,
    kernel: Kernel,
    board: Arc<Board>,
    /// The file that says when the last collection ended; every host of the data directory looks at it.
    stamp: PathBuf,
}

impl Collector {
    /// Returns what keeps the sessions under `data_dir` within `keep`.
    pub(super) fn new(
        data_dir: &Path,
        keep: Keep,
        journal: JsonlJournal,
        kernel: Kernel,
        board: Arc<Board>,
    ) -> Self {
        Self { keep, journal, kernel, board, stamp: data_dir.join("sessions/gc.stamp") }
    }

    /// Collects now, or when a day has passed since the last time, and then each day.
    pub(super) async fn run(self) {
        let mut wait = self.due();
        loop {
            tokio::time::sleep(wait).await;
            if let Err(error) = self.collect().await {
                let text = format!(
                    "old sessions are kept for now, and tried again at the next start or in a day: {}",
                    telemetry::words(&error)
                );
                self.board.post(Notice { level: Level::Warn, code: "RETENTION_FAILED", text });
            }
            wait = DAY;
        }
    }

    /// Returns how long the next collection waits.
    fn due(&self) -> Duration {
        let last = fs::metadata(&self.stamp).and_then(|stamp| stamp.modified());
        // A stamp from the future says nothing.
        let age = last.ok().and_then(|last| SystemTime::now().duration_since(last).ok());
        age.map_or(Duration::ZERO, |age| DAY.saturating_sub(age))
    }

    async fn collect(&self) -> Result<(), JournalError> {
        let Overdue { trees, problems } = self.journal.overdue(self.keep, SystemTime::now()).await?;
        problems.iter().for_each(|error| tracing::warn!(%error, "a session is not collected"));
        for tree in trees {
            match self.journal.delete_closed(tree.sessions).await {
                Ok(gone) => gone.into_iter().for_each(|session| self.kernel.removed(session)),
                Err(error @ JournalError::Locked { .. }) => tracing::debug!(%error, "a session is in use"),
                Err(error) => return Err(error),
            }
        }
        // Without it the next start collects again, which does no harm.
        if let Err(error) = fs::write(&self.stamp, "") {
            tracing::warn!(path = %self.stamp.display(), %error, "the time of the collection is not noted");
        }
        Ok(())
    }
}
