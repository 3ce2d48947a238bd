//! One line of a journal: a frame, and a checksum of its text, so that a bit that flipped is never taken for a word.
//!
//! The checksum is the last member of the object, `"sum"`: the CRC-32 of all that stands before it, eight hex digits. A
//! reader that does not know it finds a frame with one member more.

use std::sync::Arc;

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::ids::{IntentId, Seq, SessionId};
use bingo_plugin_sdk::item::Item;
use serde::Deserialize;
use serde_json::value::RawValue;

/// What stands between a frame and its checksum.
const MARK: &[u8] = b",\"sum\":\"";
/// The length of a checksum with its mark and the end of the object.
const TAIL: usize = MARK.len() + 8 + 2;

/// Appends a frame to these lines.
///
/// # Errors
/// When the frame cannot be written as JSON.
pub(super) fn write(frame: &Frame, lines: &mut Vec<u8>) -> serde_json::Result<()> {
    let start = lines.len();
    serde_json::to_writer(&mut *lines, frame)?;
    lines.pop();
    let sum = crc32fast::hash(&lines[start..]);
    lines.extend_from_slice(MARK);
    lines.extend_from_slice(format!("{sum:08x}\"}}\n").as_bytes());
    Ok(())
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Reads the frame of a line.
///
/// Items are most of a journal. Which event they come in is told by its first words, so that they are read straight, not
/// first into a value of any shape, as the kind of an event otherwise is.
///
/// # Errors
/// When the line is no frame.
pub(super) fn parse(line: &[u8]) -> serde_json::Result<Frame> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Line<'a> {
        seq: Seq,
        ts: String,
        session: SessionId,
        cause: Option<IntentId>,
        #[serde(borrow)]
        event: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Holder {
        item: Arc<Item>,
    }
    let Line { seq, ts, session, cause, event } = serde_json::from_slice(line)?;
    let text = event.get();
    let item = || serde_json::from_str(text).map(|Holder { item }| item);
    let event = if text.starts_with(r#"{"type":"itemCompleted","#) {
        Event::ItemCompleted { item: item()? }
    } else if text.starts_with(r#"{"type":"itemStarted","#) {
        Event::ItemStarted { item: item()? }
    } else {
        serde_json::from_str(text)?
    };
    Ok(Frame { seq, ts, session, cause, event })
}

/// What the checksum of a line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sum {
    Fits,
    Differs,
    /// There is none.
    Missing,
}

/// Checks a line without its newline.
pub(super) fn check(line: &[u8]) -> Sum {
    let Some((text, tail)) = line.len().checked_sub(TAIL).map(|at| line.split_at(at)) else {
        return Sum::Missing;
    };
    let digits = tail.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(b"\"}"));
    let Some(digits) = digits else { return Sum::Missing };
    let sum = crc32fast::hash(text);
    let is_digit = |(at, digit): (usize, &u8)| *digit == HEX[(sum >> (28 - 4 * at)) as usize & 15];
    if digits.iter().enumerate().all(is_digit) { Sum::Fits } else { Sum::Differs }
}

/// Returns whether a line that ends in no newline was once whole: a write that broke off leaves no byte behind a line.
pub(super) fn was_whole(tail: &[u8]) -> bool {
    let ends = tail.windows(TAIL).enumerate().filter(|(_, window)| window.starts_with(MARK));
    ends.map(|(at, _)| at + TAIL).any(|end| end < tail.len() && check(&tail[..end]) == Sum::Fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Vec<u8> {
        let event = Event::CatalogChanged { kind: "tools".to_owned() };
        let (seq, session) = (Seq(7), SessionId::from("s"));
        let mut line = Vec::new();
        write(&Frame { seq, ts: "t".to_owned(), session, cause: None, event }, &mut line).unwrap();
        line
    }

    #[test]
    fn a_line_is_the_frame_with_the_checksum_as_its_last_member() {
        let line = line();
        let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["sum"].as_str().map(str::len), Some(8));
        assert_eq!((line.last(), check(&line[..line.len() - 1])), (Some(&b'\n'), Sum::Fits));
        let frame: Frame = serde_json::from_slice(&line).unwrap();
        assert_eq!(frame.seq, Seq(7));
    }

    #[test]
    fn no_bit_of_a_frame_flips_unseen() {
        let line = line();
        let whole = &line[..line.len() - 1];
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(check(&flipped), Sum::Fits, "bit {bit}");
        }
        assert_eq!(check(b"{}"), Sum::Missing);
        assert_eq!(check(&whole[1..]), Sum::Differs);
    }

    #[test]
    fn only_what_stands_behind_a_whole_line_tells_that_it_was_one() {
        let line = line();
        for end in 0..line.len() {
            assert!(!was_whole(&line[..end]), "a write that broke off after {end} bytes");
        }
        let mut flipped = line.clone();
        *flipped.last_mut().unwrap() = b'\x0b';
        assert!(was_whole(&flipped));
        assert!(was_whole(&[&flipped[..], b"{\"seq\":8"].concat()));
    }
}
