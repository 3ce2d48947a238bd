//! Long strings leave a line before it is parsed, so that they are not held twice.
//!
//! What stays has `"…"` in their places. They are known by their numbers among all strings of the line, keys too.

use memchr::{memchr, memchr2};

/// What stands for a string that was taken out.
pub(super) const PLACEHOLDER: &str = "…";

/// The line gives memory back when it may give back so much.
pub(super) const SLACK: usize = 1024 * 1024;

/// Where the text of a string literal is, without its quotes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    number: usize,
    start: usize,
    end: usize,
}

impl Span {
    pub(super) fn len(self) -> usize {
        self.end - self.start
    }

    fn take(self, text: Vec<u8>) -> Piece {
        Piece { number: self.number, text }
    }
}

/// A string that was taken out of a line.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) number: usize,
    pub(super) text: Vec<u8>,
}

/// Returns the strings of at least `long` bytes.
pub(super) fn long_strings(line: &[u8], long: usize) -> Vec<Span> {
    let mut spans = Vec::new();
    let (mut at, mut number) = (0, 0);
    while let Some(quote) = memchr(b'"', &line[at..]) {
        let start = at + quote + 1;
        let Some(end) = string_end(line, start) else { break };
        if end - start >= long {
            spans.push(Span { number, start, end });
        }
        number += 1;
        at = end + 1;
    }
    spans
}

fn string_end(line: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr2(b'"', b'\\', line.get(at..)?)?;
        if line[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// Takes strings out of a line. Returns what stays, and the strings, the last first.
///
/// The line becomes shorter from its end while they are copied. One that is a third of the line or more keeps the line's
/// memory, so that none is held twice that is large.
pub(super) fn cut(mut line: Vec<u8>, spans: &[Span]) -> (Vec<u8>, Vec<Piece>) {
    let rest = without(&line, spans);
    let mut resident = line.len();
    let largest = (0..spans.len()).max_by_key(|n| spans[*n].len());
    let largest = largest.filter(|n| spans[*n].len() * 3 >= resident);
    let mut pieces = Vec::with_capacity(spans.len());
    for span in spans[largest.map_or(0, |n| n + 1)..].iter().rev() {
        pieces.push(span.take(line[span.start..span.end].to_vec()));
        line.truncate(span.start);
        give_back(&mut line, &mut resident);
    }
    if let Some(n) = largest {
        let span = spans[n];
        let before: Vec<_> =
            spans[..n].iter().rev().map(|span| span.take(line[span.start..span.end].to_vec())).collect();
        line.truncate(span.end);
        line.drain(..span.start);
        give_back(&mut line, &mut resident);
        pieces.push(span.take(line));
        pieces.extend(before);
    }
    (rest, pieces)
}

fn without(line: &[u8], spans: &[Span]) -> Vec<u8> {
    let taken: usize = spans.iter().map(|span| span.len()).sum();
    let mut rest = Vec::with_capacity(line.len() - taken + spans.len() * PLACEHOLDER.len());
    let mut at = 0;
    for span in spans {
        rest.extend_from_slice(&line[at..span.start]);
        rest.extend_from_slice(PLACEHOLDER.as_bytes());
        at = span.end;
    }
    rest.extend_from_slice(&line[at..]);
    rest
}

/// Gives memory back, step by step: `resident` bytes were in use, which is less than the capacity.
fn give_back(text: &mut Vec<u8>, resident: &mut usize) {
    if *resident - text.len() > SLACK {
        text.shrink_to_fit();
        *resident = text.len();
    }
}

/// Undoes the escapes of a string in its place: no escape is shorter than what it means.
///
/// # Errors
/// When the text may not stand in a JSON string.
pub(super) fn unescape(mut text: Vec<u8>) -> Result<String, &'static str> {
    // Chunk by chunk without a way out in between, which compiles to few instructions.
    let has_control = |chunk: &[u8]| chunk.iter().fold(false, |found, byte| found | (*byte < b' '));
    if text.chunks(64).any(has_control) {
        return Err("a control character is in a string");
    }
    let mut resident = text.len();
    let (mut read, mut written) = (0, 0);
    while read < text.len() {
        let plain = memchr(b'\\', &text[read..]).unwrap_or(text.len() - read);
        if read > written {
            text.copy_within(read..read + plain, written);
        }
        (read, written) = (read + plain, written + plain);
        if read < text.len() {
            let (length, char) = escape(&text[read..]).ok_or("a string has an escape that means nothing")?;
            written += char.encode_utf8(&mut text[written..]).len();
            read += length;
        }
    }
    text.truncate(written);
    give_back(&mut text, &mut resident);
    String::from_utf8(text).map_err(|_| "a string is not UTF-8")
}

/// Returns the length of the escape at the beginning, and what it means.
fn escape(text: &[u8]) -> Option<(usize, char)> {
    let char = match text.get(1)? {
        byte @ (b'"' | b'\\' | b'/') => char::from(*byte),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode(text),
        _ => return None,
    };
    Some((2, char))
}

fn unicode(text: &[u8]) -> Option<(usize, char)> {
    let first = unit(text)?;
    if let Some(char) = char::from_u32(first.into()) {
        return Some((6, char));
    }
    let pair = [first, unit(text.get(6..)?)?];
    char::decode_utf16(pair).next()?.ok().map(|char| (12, char))
}

/// Returns the 16 bits that the four digits of an escape such as `\u00e9` name.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)? as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_mean_what_a_parser_says() {
        for text in [
            "",
            "plain é",
            r#"\"\\\/\b\f\n\r\t"#,
            r"a\u0041b\u00e9\uD83D\uDE00z",
            r"\u0000\n\n",
            r"\ud800",
            r"\ud800\n",
            r"\ud800\ud800",
            r"\udc00\ud800",
            r"\u12",
            r"\u+123",
            r"\x",
            "\\",
            "a\tb",
        ] {
            let parsed = serde_json::from_str(&format!("\"{text}\""));
            assert_eq!(unescape(text.into()).ok(), parsed.ok(), "{text}");
        }
    }

    #[test]
    fn strings_leave_the_line_wherever_the_largest_stands() {
        let (a, b, c) = ("a".repeat(3 * SLACK), "b".repeat(2 * SLACK), r#"c\""#.repeat(10));
        for strings in [[&a, &b, &c], [&c, &b, &a], [&b, &a, &c], [&b, &b, &b], [&c, &c, &c]] {
            let line = format!(r#"{{"k":["{}","x","{}"],"{}":1}}"#, strings[0], strings[1], strings[2]);
            let spans = long_strings(line.as_bytes(), 10);
            let (rest, pieces) = cut(line.into_bytes(), &spans);
            assert_eq!(String::from_utf8(rest).unwrap(), r#"{"k":["…","x","…"],"…":1}"#);
            let texts: Vec<_> = pieces.iter().rev().map(|piece| (piece.number, &piece.text[..])).collect();
            let expected = [(1, strings[0]), (3, strings[1]), (4, strings[2])];
            assert_eq!(texts, expected.map(|(number, text)| (number, text.as_bytes())));
        }
    }
}
