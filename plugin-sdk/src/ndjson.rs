//! Lines of a wire: a codec whose item is a line or a fault, so that a bad line never ends the stream.
//!
//! A line over the cap is drained, not kept; while it passes, its top level is looked at, so that the call it
//! belongs to can fail at once. Bytes that are not UTF-8 are a fault of that line alone.

use bytes::{Buf, BytesMut};
use tokio_util::codec::Decoder;

use crate::jsonrpc::RequestId;

/// The most bytes of a line that a peer may send: 16 MiB.
pub const MAX_LINE: usize = 16 * 1024 * 1024;

/// From this length on a line takes the buffer's memory along: one huge line must not be held twice, nor must the
/// buffer stay as large as the longest line that ever came.
const LARGE: usize = 64 * 1024;

/// The room of a buffer that replaces one whose memory left with a large line.
const ROOM: usize = 8 * 1024;

/// How many bytes of a line that is not UTF-8 are shown: each may become three.
const SHOWN: usize = 64 * 1024;

/// What came in place of a line, or the line.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// A line of valid UTF-8, without its newline.
    Text(String),
    /// A line that is not UTF-8, as far as it can be shown.
    NotUtf8 { lossy: String, outline: Outline },
    /// A line over the cap; its content is gone.
    TooLong { length: u64, outline: Outline },
}

/// Splits bytes into lines.
#[derive(Debug)]
pub struct NdjsonCodec {
    cap: usize,
    /// How far the buffer was searched for a newline.
    searched: usize,
    /// Set while a line over the cap is being drained.
    drain: Option<Drain>,
    /// Bytes of bad lines that nobody asked for yet.
    wasted: u64,
}

#[derive(Debug)]
struct Drain {
    length: u64,
    scan: OutlineScan,
}

impl NdjsonCodec {
    /// Returns a codec that drains lines of more than `cap` bytes.
    pub fn new(cap: usize) -> Self {
        Self { cap, searched: 0, drain: None, wasted: 0 }
    }

    /// Returns how many bytes of lines over the cap or not UTF-8 passed since it was last asked.
    pub fn take_wasted(&mut self) -> u64 {
        std::mem::take(&mut self.wasted)
    }

    /// Takes `length` bytes from the buffer into the drained line.
    fn drain(&mut self, buffer: &mut BytesMut, length: usize) {
        let drain = self.drain.get_or_insert_with(|| Drain { length: 0, scan: OutlineScan::default() });
        drain.length += length as u64;
        self.wasted += length as u64;
        drain.scan.feed(&buffer[..length]);
        match take_large(buffer, length) {
            Some(large) => drop(large),
            None => buffer.advance(length),
        }
        self.searched = 0;
    }

    /// Takes the line that ends before `end`.
    fn finish(&mut self, buffer: &mut BytesMut, end: usize) -> Line {
        if let Some(drain) = self.drain.take() {
            return Line::TooLong { length: drain.length, outline: drain.scan.outline() };
        }
        let line = match take_large(buffer, end) {
            Some(large) => text_or_fault(large.into()),
            None => {
                let line = text_or_fault(buffer[..end].to_vec());
                buffer.advance(end);
                line
            }
        };
        if matches!(line, Line::NotUtf8 { .. }) {
            self.wasted += end as u64;
        }
        line
    }
}

/// Takes a large line out of the buffer with the memory it stands in, when little stands behind it.
fn take_large(buffer: &mut BytesMut, end: usize) -> Option<BytesMut> {
    let rest = buffer.len() - end;
    if end < LARGE || rest > end {
        return None;
    }
    let mut fresh = BytesMut::with_capacity(rest.max(ROOM));
    fresh.extend_from_slice(&buffer[end..]);
    let mut line = std::mem::replace(buffer, fresh);
    line.truncate(end);
    Some(line)
}

fn text_or_fault(mut bytes: Vec<u8>) -> Line {
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    String::from_utf8(bytes).map_or_else(|error| not_utf8(error.as_bytes()), Line::Text)
}

fn not_utf8(bytes: &[u8]) -> Line {
    let shown = &bytes[..bytes.len().min(SHOWN)];
    Line::NotUtf8 { lossy: String::from_utf8_lossy(shown).into_owned(), outline: Outline::of(bytes) }
}

impl Decoder for NdjsonCodec {
    type Item = Line;
    type Error = std::io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Line>, Self::Error> {
        let Some(offset) = memchr::memchr(b'\n', &buffer[self.searched..]) else {
            self.searched = buffer.len();
            if self.drain.is_some() || buffer.len() > self.cap {
                let length = buffer.len();
                self.drain(buffer, length);
            }
            return Ok(None);
        };
        let end = self.searched + offset;
        if self.drain.is_some() || end > self.cap {
            self.drain(buffer, end);
        }
        let end = if self.drain.is_some() { 0 } else { end };
        let line = self.finish(buffer, end);
        buffer.advance(1);
        self.searched = 0;
        Ok(Some(line))
    }

    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<Line>, Self::Error> {
        if let Some(line) = self.decode(buffer)? {
            return Ok(Some(line));
        }
        if buffer.is_empty() && self.drain.is_none() {
            return Ok(None);
        }
        self.searched = 0;
        let end = buffer.len();
        Ok(Some(self.finish(buffer, end)))
    }
}

/// What the top level of a line shows, whatever is wrong with the rest of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outline {
    /// It begins as an object does.
    pub is_object: bool,
    /// The member `id`, the last one as parsers have it, when it is an integer or a string.
    pub id: Option<RequestId>,
    /// It has a member `method`: a request or a notification, and no answer.
    pub has_method: bool,
}

impl Outline {
    /// Returns what a whole line shows.
    pub fn of(line: &[u8]) -> Self {
        let mut scan = OutlineScan::default();
        scan.feed(line);
        scan.outline()
    }
}

/// Finds the outline of a line that passes by in pieces, in constant memory.
#[derive(Debug, Default)]
pub struct OutlineScan {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// The current key at depth 1, or the id, as far as they matter.
    token: Vec<u8>,
    /// The last string at depth 1 that stands where a key does.
    key: Key,
    /// Whose value is passing.
    value_of: Option<Key>,
    id: Option<Vec<u8>>,
    has_method: bool,
    is_object: bool,
    /// The rest shows nothing: the object has ended, or it does not begin as one does.
    over: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Key {
    Id,
    Method,
    #[default]
    Other,
}

impl OutlineScan {
    /// The longest id that is remembered.
    const MAX_ID: usize = 256;

    /// Reads the next piece.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.over {
                return;
            }
            bytes = rest;
            if self.in_string {
                self.string_byte(byte)
            } else {
                self.plain_byte(byte)
            }
            if self.in_string && !self.escaped && !self.keeps() {
                let next = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
                bytes = &bytes[next..];
            }
        }
    }

    /// Returns what was found so far.
    pub fn outline(&self) -> Outline {
        let value = self.id.as_ref().and_then(|id| serde_json::from_slice(id).ok());
        let id = value.and_then(|value| RequestId::from_value(&value));
        Outline { is_object: self.is_object, id, has_method: self.has_method }
    }

    fn string_byte(&mut self, byte: u8) {
        self.keep(byte);
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => {
                self.in_string = false;
                if self.depth == 1 && self.value_of.is_none() {
                    self.key = match &self.token[..] {
                        br#""id""# => Key::Id,
                        br#""method""# => Key::Method,
                        _ => Key::Other,
                    };
                }
            }
            _ => {}
        }
    }

    /// Takes a byte before the object: white space and a byte-order mark may stand there.
    fn first_byte(&mut self, byte: u8) {
        match byte {
            b'{' => (self.is_object, self.depth) = (true, 1),
            b'\xef' | b'\xbb' | b'\xbf' => {}
            _ => self.over = !byte.is_ascii_whitespace(),
        }
    }

    fn plain_byte(&mut self, byte: u8) {
        match byte {
            _ if self.depth == 0 => self.first_byte(byte),
            b'"' => {
                self.in_string = true;
                if self.value_of.is_none() {
                    self.token.clear();
                }
                self.keep(byte);
            }
            b':' if self.depth == 1 && self.value_of.is_none() => {
                self.has_method |= self.key == Key::Method;
                self.value_of = Some(self.key);
                self.token.clear();
            }
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b',' | b'}' | b']' => {
                if self.depth == 1 {
                    self.end_member();
                }
                if byte != b',' {
                    self.depth -= 1;
                    self.over = self.depth == 0;
                }
            }
            _ => self.keep(byte),
        }
    }

    fn end_member(&mut self) {
        if self.value_of == Some(Key::Id) {
            self.id = Some(std::mem::take(&mut self.token));
        }
        (self.key, self.value_of) = (Key::Other, None);
    }

    /// Remembers a byte where a key or the id may be; other values pass.
    fn keep(&mut self, byte: u8) {
        if self.keeps() {
            self.token.push(byte);
        }
    }

    fn keeps(&self) -> bool {
        let matters = matches!(self.value_of, None | Some(Key::Id));
        self.depth == 1 && matters && self.token.len() < Self::MAX_ID
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes `pieces` as they arrive, then the end of input.
    fn decode(cap: usize, pieces: &[&[u8]]) -> Vec<Line> {
        let mut codec = NdjsonCodec::new(cap);
        let mut buffer = BytesMut::new();
        let mut lines = Vec::new();
        for piece in pieces {
            buffer.extend_from_slice(piece);
            while let Some(line) = codec.decode(&mut buffer).unwrap() {
                lines.push(line);
            }
        }
        while let Some(line) = codec.decode_eof(&mut buffer).unwrap() {
            lines.push(line);
        }
        lines
    }

    fn text(text: &str) -> Line {
        Line::Text(text.to_owned())
    }

    #[test]
    fn lines_are_found_wherever_the_pieces_end() {
        let expected = vec![text("ab"), text(""), text("cd"), text("e")];
        assert_eq!(decode(10, &[b"ab\n\ncd\r\ne"]), expected);
        assert_eq!(decode(10, &[b"a", b"b\n", b"\nc", b"d\r", b"\ne"]), expected);
    }

    #[test]
    fn a_bad_line_does_not_end_the_stream() {
        let lines = decode(8, &[b"\xff\xfe\n", b"123456789012\n", b"ok\n"]);
        assert!(matches!(&lines[0], Line::NotUtf8 { outline: Outline { id: None, .. }, .. }));
        assert_eq!(lines[1], Line::TooLong { length: 12, outline: Outline::default() });
        assert_eq!(lines[2], text("ok"));
    }

    #[test]
    fn only_a_member_of_the_top_level_is_a_method_and_the_last_id_counts() {
        for (line, has_method) in [
            (r#"{"id":1,"method":"x"}"#, true),
            (r#" {"method" : "x","id":1"#, true),
            (r#"{"result":{"method":1},"id":1,"t":"\"method\":"}"#, false),
            (r#"{"a":"method","b":["method",{"method":2}],"id":7,"id":1}"#, false),
            (r#"{"id":1,"method"#, false),
        ] {
            let outline = Outline::of(line.as_bytes());
            assert_eq!((outline.has_method, outline.is_object), (has_method, true), "{line}");
            if line.ends_with('}') {
                assert_eq!(outline.id, Some(RequestId::Number(1)), "{line}");
            }
        }
        assert!(Outline::of(b"{").is_object);
    }

    #[test]
    fn what_stands_behind_the_object_does_not_count() {
        for rest in [r#"{"id":2,"method":"x"}"#, r#" {"id":2}"#, r#","id":2}"#, r#"}{"id":2}"#, r#"]"id":2,"#]
        {
            let found = Outline { is_object: true, id: Some(RequestId::Number(1)), has_method: false };
            assert_eq!(Outline::of(format!(r#"{{"id":1,"a":[{{}}]}}{rest}"#).as_bytes()), found, "{rest}");
        }
    }

    #[test]
    fn what_does_not_begin_as_an_object_shows_nothing() {
        for line in [
            r#"["id":9,"method":1]"#,
            r#"["id":9"#,
            r#"[]{"id":9}"#,
            r#""a"{"id":9}"#,
            r#"}{"id":9}"#,
            r#",{"id":9}"#,
            r#":{"id":9}"#,
            r#"é{"id":9}"#,
            r#""id":9,"#,
        ] {
            assert_eq!(Outline::of(line.as_bytes()), Outline::default(), "{line}");
        }
    }

    #[test]
    fn the_bytes_of_bad_lines_are_counted() {
        let mut codec = NdjsonCodec::new(8);
        let mut buffer = BytesMut::from(&b"good\n\xff\xff\n1234567890\n"[..]);
        for expected in [0, 2, 10] {
            codec.decode(&mut buffer).unwrap();
            assert_eq!(codec.take_wasted(), expected);
        }
    }

    #[test]
    fn a_large_line_takes_its_memory_along() {
        let large = "x".repeat(LARGE * 4);
        for (cap, line) in [
            (LARGE * 4, text(&large)),
            (LARGE, Line::TooLong { length: large.len() as u64, outline: Outline::default() }),
        ] {
            let mut buffer = BytesMut::from(format!("{large}\nrest").as_bytes());
            let mut codec = NdjsonCodec::new(cap);
            assert_eq!(codec.decode(&mut buffer).unwrap(), Some(line));
            assert_eq!(&buffer[..], b"rest");
            assert!(buffer.capacity() <= ROOM, "{}", buffer.capacity());
        }
    }

    #[test]
    fn of_a_line_that_is_not_utf8_the_beginning_is_shown() {
        let lines = decode(SHOWN * 2, &[&vec![0xff; SHOWN * 2]]);
        let Line::NotUtf8 { lossy, .. } = &lines[0] else { panic!("{lines:?}") };
        assert_eq!(lossy.chars().count(), SHOWN);
    }

    #[test]
    fn the_id_of_a_drained_line_is_found_at_the_top_level_only() {
        let long = "x".repeat(100);
        for (line, id) in [
            (
                format!(r#"{{"jsonrpc":"2.0","result":{{"id":3,"t":"{long}"}},"id": 42 }}"#),
                Some(RequestId::Number(42)),
            ),
            (format!(r#"{{"id":"a\"b","result":"{long}"}}"#), Some(RequestId::Text("a\"b".to_owned()))),
            (format!(r#"{{"result":"{long} \"id\":5","x":["id",7]}}"#), None),
            (format!(r#"{{"id":{{"id":1}},"result":"{long}"}}"#), None),
            (format!(r#"{{"a":"id","b":"{long}"}}"#), None),
            (format!(r#"["id",9,"{long}"]"#), None),
            (format!(r#"printed {{"id":9}} {long}"#), None),
            (format!("\u{feff}{{\"id\":9,\"t\":\"{long}\"}}"), Some(RequestId::Number(9))),
        ] {
            let halves = line.split_at(line.len() / 2);
            let lines = decode(16, &[halves.0.as_bytes(), halves.1.as_bytes(), b"\nok\n"]);
            let Line::TooLong { length, outline } = &lines[0] else { panic!("{lines:?}") };
            assert_eq!((*length, &outline.id), (line.len() as u64, &id), "{line}");
            assert_eq!(outline.is_object, line.trim_start_matches('\u{feff}').starts_with('{'), "{line}");
            assert_eq!(lines[1], text("ok"));
        }
    }

    proptest! {
        #[test]
        fn cutting_the_input_anywhere_changes_nothing(input: Vec<u8>, cut in 0usize..200) {
            let cut = cut.min(input.len());
            prop_assert_eq!(decode(8, &[&input]), decode(8, &[&input[..cut], &input[cut..]]));
        }

        #[test]
        fn the_scanner_agrees_with_a_parser(id in any::<i64>(), before: String, after: String) {
            let line = serde_json::json!({ "a": before, "b": [{"id": 1}], "id": id, "z": after }).to_string();
            let found = Outline { is_object: true, id: Some(RequestId::Number(id)), has_method: false };
            prop_assert_eq!(Outline::of(line.as_bytes()), found);
        }
    }
}
