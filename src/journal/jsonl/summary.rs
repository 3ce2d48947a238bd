//! Summaries: the part of the reducer that `list` shows, and its cache in `summary.json`.
//!
//! The cache says up to which place of the journal it counts, and a reader folds what came after. So a cache that lags,
//! lies beyond a cut tail, or is missing changes no answer, and a failed write of it may be ignored.

use std::io::{self, Read};

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::session::SessionSummary;
use bingo_plugin_sdk::state::is_message;
use serde::{Deserialize, Serialize};

use crate::journal::jsonl::disk::Disk;
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
        self.count(frame);
        // A host that stops closes all it holds at once: that says nothing of when a session was last used.
        if let Some(mine) =
            self.summary.as_mut().filter(|_| !matches!(frame.event, Event::SessionClosed { .. }))
        {
            mine.updated_at.clone_from(&frame.ts);
        }
    }

    fn count(&mut self, frame: &Frame) {
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
    summary.busy = false;
    Ok(Some(summary))
}

fn load(disk: &dyn Disk, place: &Place) -> Option<Cached> {
    let mut text = Vec::new();
    disk.open(&place.summary()).ok()?.read_to_end(&mut text).ok()?;
    let cached: Cached = serde_json::from_slice(&text).ok()?;
    (cached.summary.id == *place.session()).then_some(cached)
}
