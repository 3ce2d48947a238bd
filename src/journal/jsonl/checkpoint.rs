//! `checkpoint`: what the frames of a journal come to, so that opening a long session reads its end only.
//!
//! The file may be missing, cut, of another journal or simply wrong, and changes no answer: it has a checksum of itself and
//! one of the last 64 KiB of journal that it counts, and is void unless both fit. What lies before those is not read at an
//! open; `bingo session verify` reads it. Line 1 is the checksum of all that follows, line 2 the head, the rest the fold.

use std::io::{self, Read, Seek, SeekFrom};

use bingo_plugin_sdk::ids::SessionId;
use serde::{Deserialize, Serialize};

use crate::journal::jsonl::disk::Disk;
use crate::journal::jsonl::file::Position;
use crate::journal::jsonl::layout::Place;
use crate::journal::jsonl::marks::Marks;

/// How much of the journal before a checkpoint's place an open looks at, in bytes.
const TAIL: u64 = 64 * 1024;

/// What a checkpoint counts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Counted {
    /// The place in the journal up to which it counts.
    pub(super) journal: Position,
    pub(super) marks: Marks,
}

#[derive(Serialize, Deserialize)]
struct Head {
    session: SessionId,
    /// The checksum of the journal's last bytes before the place up to which it counts.
    tail: u32,
    counted: Counted,
}

/// Returns the checkpoint of a session with its fold, if there is one that belongs to the journal as it stands.
pub(super) fn load(disk: &dyn Disk, place: &Place) -> Option<(Counted, Vec<u8>)> {
    let mut bytes = Vec::new();
    disk.open(&place.checkpoint()).ok()?.read_to_end(&mut bytes).ok()?;
    let (sum, rest) = line(&bytes)?;
    if sum != format!("{:08x}", crc32fast::hash(rest)).as_bytes() {
        return None;
    }
    let (head, fold) = line(rest)?;
    let Head { session, tail, counted } = serde_json::from_slice(head).ok()?;
    let begins = bytes.len() - fold.len();
    let belongs = session == *place.session() && checksum(disk, place, counted.journal).ok()? == tail;
    bytes.drain(..begins);
    belongs.then_some((counted, bytes))
}

/// Keeps a fold of all that is counted.
///
/// # Errors
/// What the disk says; there is no checkpoint then, or the one before.
pub(super) fn save(disk: &dyn Disk, place: &Place, counted: Counted, fold: &[u8]) -> io::Result<()> {
    let tail = checksum(disk, place, counted.journal)?;
    let head = Head { session: place.session().clone(), tail, counted };
    let mut rest = serde_json::to_vec(&head)?;
    rest.push(b'\n');
    rest.extend_from_slice(fold);
    let mut bytes = format!("{:08x}\n", crc32fast::hash(&rest)).into_bytes();
    bytes.append(&mut rest);
    let draft = place.checkpoint_draft();
    disk.write_cache(&draft, &bytes)?;
    disk.rename(&draft, &place.checkpoint())
}

/// Removes the checkpoint of a journal that it does not belong to any more.
pub(super) fn forget(disk: &dyn Disk, place: &Place) {
    // It may be missing; and one that cannot be removed is void again at the next look.
    let _ = disk.remove(&place.checkpoint());
}

/// Returns the checksum of the last bytes of the journal before a place.
fn checksum(disk: &dyn Disk, place: &Place, journal: Position) -> io::Result<u32> {
    let mut file = disk.open(&place.journal())?;
    let length = journal.bytes.min(TAIL);
    file.seek(SeekFrom::Start(journal.bytes - length))?;
    let mut bytes = vec![0; length as usize];
    file.read_exact(&mut bytes)?;
    Ok(crc32fast::hash(&bytes))
}

/// Splits the first line off, without its newline.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}
