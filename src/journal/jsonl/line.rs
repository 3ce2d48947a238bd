//! One line of a journal: a frame, and a checksum of its text, so that a bit that flipped is never taken for a word.
//!
//! The checksum is the last member of the object, `"sum"`: the CRC-32 of all that stands before it, eight hex digits. A
//! reader that does not know it finds a frame with one member more.

use std::fmt;
use std::sync::Arc;

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::ids::{IntentId, Seq, SessionId};
use bingo_plugin_sdk::item::Item;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

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
/// # Errors
/// When the line is no frame.
pub(super) fn parse(line: &[u8]) -> serde_json::Result<Frame> {
    #[derive(Deserialize)]
    struct Line {
        seq: Seq,
        ts: String,
        session: SessionId,
        cause: Option<IntentId>,
        event: Told,
    }
    let Line { seq, ts, session, cause, event: Told(event) } = serde_json::from_slice(line)?;
    Ok(Frame { seq, ts, session, cause, event })
}

/// An event of a journal. Items are most of one: where the kind of the event stands first, as we write it, they are read
/// straight, and not first into a value of any shape, as the event otherwise is.
struct Told(Event);

impl<'de> Deserialize<'de> for Told {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EventVisitor)
    }
}

struct EventVisitor;

impl<'de> Visitor<'de> for EventVisitor {
    type Value = Told;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Told, A::Error> {
        let key: Option<String> = map.next_key()?;
        let kind: Option<String> =
            if key.as_deref() == Some("type") { Some(map.next_value()?) } else { None };
        match kind.as_deref() {
            Some("itemStarted") => Ok(Told(Event::ItemStarted { item: item(map)? })),
            Some("itemCompleted") => Ok(Told(Event::ItemCompleted { item: item(map)? })),
            _ => Event::deserialize(MapAccessDeserializer::new(Begun { key, value: kind, map })).map(Told),
        }
    }
}

/// Reads the item among the other fields of its event.
fn item<'de, A: MapAccess<'de>>(mut map: A) -> Result<Arc<Item>, A::Error> {
    let mut item = None;
    while let Some(key) = map.next_key::<String>()? {
        if key == "item" {
            item = Some(map.next_value()?);
        } else {
            map.next_value::<IgnoredAny>()?;
        }
    }
    item.ok_or_else(|| A::Error::missing_field("item"))
}

/// A map of which the first key, and its value if it is the kind, are read already.
struct Begun<A> {
    key: Option<String>,
    value: Option<String>,
    map: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Begun<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        match self.key.take() {
            Some(key) => seed.deserialize(key.into_deserializer()).map(Some),
            None => self.map.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        match self.value.take() {
            Some(value) => seed.deserialize(value.into_deserializer()),
            None => self.map.next_value_seed(seed),
        }
    }
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
    if says(digits, crc32fast::hash(text)) { Sum::Fits } else { Sum::Differs }
}

/// Returns whether a line that ends in no newline was once whole: a write that broke off leaves no byte behind a line.
pub(super) fn was_whole(tail: &[u8]) -> bool {
    let marks = tail.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK).map(|(at, _)| at);
    // Each byte goes in once, however many members of this name the frames have.
    let (mut hash, mut hashed) = (crc32fast::Hasher::new(), 0);
    for at in marks {
        hash.update(&tail[hashed..at]);
        hashed = at;
        let is_end = tail.len() > at + TAIL && tail[..at + TAIL].ends_with(b"\"}");
        if is_end && says(&tail[at + MARK.len()..][..8], hash.clone().finalize()) {
            return true;
        }
    }
    false
}

/// Returns whether these digits are a checksum.
fn says(digits: &[u8], sum: u32) -> bool {
    digits.iter().enumerate().all(|(at, digit)| *digit == HEX[(sum >> (28 - 4 * at)) as usize & 15])
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

    /// Rule 7.2.
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
    fn a_line_whose_event_is_none_says_what_was_expected() {
        let line = line();
        let text = String::from_utf8(line).unwrap();
        let event = text.find("{\"type\"").unwrap()..text.rfind(",\"sum\"").unwrap();
        let other = text.replace(&text[event], "7");
        let error = parse(other.trim_end().as_bytes()).unwrap_err().to_string();
        assert!(error.contains("expected an event"), "{error}");
    }

    #[test]
    fn members_that_look_like_checksums_are_looked_at_once_each() {
        // Quadratic work over these 16 MiB would take hours.
        let member = b",\"sum\":\"12345678\"}";
        let tail = member.repeat(16 * 1024 * 1024 / member.len());
        assert!(!was_whole(&tail));
        let line = line();
        let glued = [&line[..line.len() - 1], &tail[..]].concat();
        assert!(was_whole(&glued), "a whole line is found before them");
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
