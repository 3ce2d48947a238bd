//! Looking a journal through to its end, for every fault of it. It takes no lock and changes nothing.

use bingo_plugin_sdk::ids::SessionId;

use crate::journal::jsonl::disk::Disk;
use crate::journal::jsonl::file::Reader;
use crate::journal::jsonl::layout::Place;
use crate::ports::JournalError;

/// What the journal of a session was found to be.
#[derive(Debug)]
pub struct Verified {
    pub session: SessionId,
    /// Frames that can be read.
    pub frames: u64,
    /// The end of a write that broke off, or one that is under way, stands behind the last line. It was never told to
    /// anybody, and the next open cuts it.
    pub torn: bool,
    pub faults: Vec<JournalError>,
}

/// Looks a journal through.
///
/// # Errors
/// `NotFound`; `Io` when it cannot be read to its end.
pub(super) fn verify(disk: &dyn Disk, place: &Place) -> Result<Verified, JournalError> {
    let mut found = Verified { session: place.session().clone(), frames: 0, torn: false, faults: Vec::new() };
    let mut reader = match Reader::open(disk, place) {
        Ok(Some(reader)) => reader,
        Ok(None) => return Err(place.not_found()),
        Err(error @ (JournalError::Io { .. } | JournalError::NotFound { .. })) => return Err(error),
        Err(fault) => {
            found.faults.push(fault);
            return Ok(found);
        }
    };
    loop {
        match reader.next_frame() {
            Ok(Some(_)) => found.frames += 1,
            Ok(None) => break,
            Err(error @ JournalError::Io { .. }) => return Err(error),
            Err(fault) => {
                found.faults.push(fault);
                reader.pass();
            }
        }
    }
    found.torn = reader.is_torn();
    Ok(found)
}
