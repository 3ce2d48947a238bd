//! Summaries: the part of the reducer that `list` shows, and its cache in `summary.json`.
//!
//! The cache says up to which place of the journal it counts, and a reader folds what came after. So a cache that lags,
//! lies beyond a cut tail, or is missing changes no answer, and a failed write of it may be ignored.

use std::io::{self, Read};
use std::time::SystemTime;

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::session::SessionSummary;
use bingo_plugin_sdk::state::is_message;
use serde::{Deserialize, Serialize};

use crate::journal::jsonl::disk::{Disk, failed};
use crate::journal::jsonl::file::{Position, Reader};
use crate::journal::jsonl::layout::Place;
use crate::ports::JournalError;

/// `summary.json`: the fields of the summary, and how much of the journal they count.
#[derive(Debug, Serialize, Deserialize)]
struct Cached {
    #[serde(flatten)]
    summary: SessionSummary,
    journal: Position,
}

/// The summary of the frames folded so far, as `SessionState::apply` has it. Where the first ones were passed over it is
/// there again with the next `sessionUpdated`, with which each run of a session begins.
#[derive(Debug, Default)]
pub(super) struct Fold {
    summary: Option<SessionSummary>,
    changed: bool,
}

impl Fold {
    /// Folds one frame.
    pub(super) fn apply(&mut self, frame: &Frame) {
        match (&frame.event, &mut self.summary) {
            (Event::SessionUpdated { summary }, mine) => *mine = Some((**summary).clone()),
            (Event::TurnUsage { usage, .. }, Some(mine)) => mine.usage += *usage,
            (Event::ItemCompleted { item }, Some(mine)) if is_message(item) => {
                mine.messages = Some(mine.messages.unwrap_or(0).saturating_add(1));
            }
            _ => return,
        }
        self.changed = true;
    }

    /// Writes `summary.json` if the summary changed since the last time. A failure is logged: the journal has it all.
    pub(super) fn save(&mut self, disk: &dyn Disk, place: &Place, journal: Position) {
        let Some(summary) = self.summary.as_ref().filter(|_| self.changed) else { return };
        match save(disk, place, &Cached { summary: summary.clone(), journal }) {
            Ok(()) => self.changed = false,
            Err(error) => tracing::debug!(session = %place.session(), %error, "summary.json was not written"),
        }
    }
}

fn save(disk: &dyn Disk, place: &Place, cached: &Cached) -> io::Result<()> {
    let draft = place.summary_draft();
    disk.write_cache(&draft, &serde_json::to_vec(cached)?)?;
    disk.rename(&draft, &place.summary())
}

/// Forgets the cached summary, so that the next list reads the journal itself.
pub(super) fn forget(disk: &dyn Disk, place: &Place) {
    // It may be missing, and if it cannot be removed the list merely shows the session until somebody opens it.
    let _ = disk.remove(&place.summary());
}

/// Returns the summary of a stored session, or nothing when no frame of it was ever stored.
///
/// With a cache only the header and what came after the cache are read. Damage in the part that the cache counts is
/// therefore told by whoever reads that part: a claim, which then forgets the cache so that the list tells it too.
///
/// # Errors
/// `NotFound`, `NotJournal`, `Newer`, `Damaged`, `Io`.
pub(super) fn of_stored(disk: &dyn Disk, place: &Place) -> Result<Option<SessionSummary>, JournalError> {
    // The cache first: the other way round, a writer could move it beyond the part of the journal that we see.
    let cached = load(disk, place);
    let Some(mut reader) = Reader::open(disk, place)? else { return Ok(None) };
    let mut fold = Fold::default();
    if let Some(Cached { summary, journal }) = cached
        && reader.skip_to(journal)?
    {
        fold.summary = Some(summary);
    }
    while let Some(frame) = reader.next_frame()? {
        fold.apply(&frame);
    }
    let Some(mut summary) = fold.summary else { return Ok(None) };
    summary.updated_at = modified(disk, place)?;
    summary.busy = false;
    Ok(Some(summary))
}

fn load(disk: &dyn Disk, place: &Place) -> Option<Cached> {
    let mut text = Vec::new();
    disk.open(&place.summary()).ok()?.read_to_end(&mut text).ok()?;
    let cached: Cached = serde_json::from_slice(&text).ok()?;
    (cached.summary.id == *place.session()).then_some(cached)
}

/// Returns when the journal was last written: RFC 3339, UTC, to the millisecond, so that times sort as text.
fn modified(disk: &dyn Disk, place: &Place) -> Result<String, JournalError> {
    let path = place.journal();
    let facts = disk.facts(&path).map_err(failed("read", &path))?;
    Ok(rfc3339(facts.modified))
}

fn rfc3339(time: SystemTime) -> String {
    // A clock beyond the year 9999 or before -9999 is no reason to hide a session.
    let stamp = jiff::Timestamp::try_from(time).unwrap_or_default();
    format!("{stamp:.3}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_utc_to_the_millisecond() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_767_225_600_000_999);
        assert_eq!(rfc3339(time), "2026-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
    }
}
