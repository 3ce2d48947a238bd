//! What a host leaves that died while it began a session: a directory without a frame, which no list shows.

use std::time::SystemTime;

use crate::journal::jsonl::disk::{Disk, failed, if_found};
use crate::journal::jsonl::layout::Place;
use crate::journal::jsonl::lock::SessionLock;
use crate::journal::jsonl::writer::is_unborn;
use crate::ports::JournalError;

/// Returns whether this is nothing but a beginning, untouched since `before`: a younger one may be about to go on.
///
/// # Errors
/// `Io`.
pub(super) fn is_remains(disk: &dyn Disk, place: &Place, before: SystemTime) -> Result<bool, JournalError> {
    let dir = place.dir();
    let Some(names) = if_found(disk.names(dir)).map_err(failed("read", dir))? else { return Ok(false) };
    let ours = [
        place.journal(),
        place.lock(),
        place.summary(),
        place.summary_draft(),
        place.checkpoint(),
        place.checkpoint_draft(),
    ];
    let Some(facts) = if_found(disk.facts(dir)).map_err(failed("read", dir))? else { return Ok(false) };
    // Whatever else somebody keeps there is theirs.
    Ok(facts.modified < before
        && names.iter().all(|name| ours.contains(&dir.join(name)))
        && is_unborn(disk, place)?)
}

/// Removes remains, unless somebody begins that session now. Returns whether it did.
///
/// # Errors
/// `Io`.
pub(super) fn remove(disk: &dyn Disk, place: &Place) -> Result<bool, JournalError> {
    let _lock = match SessionLock::take(disk, place) {
        Err(JournalError::Locked { .. }) => return Ok(false),
        lock => lock?,
    };
    if !is_unborn(disk, place)? {
        return Ok(false);
    }
    disk.remove_dir(place.dir()).map_err(failed("delete", place.dir()))?;
    Ok(true)
}
