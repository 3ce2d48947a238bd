//! Reads a line into a value whose memory is counted while it grows, so that a line of tiny values is no bomb.

use std::fmt;
use std::hint::black_box;
use std::mem::size_of;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::cut::{self, Piece, SLACK, Span};

/// The most bytes that a line and its value may take together, as far as they are there at the same time.
pub(super) const MAX_WEIGHT: usize = 28 * 1024 * 1024;

/// Lines from this length on are read with care for what is held twice.
const LARGE: usize = 1024 * 1024;

/// Strings from this length on leave a large line before it is parsed.
const LONG: usize = 256;

/// The most room that is kept below the strings that leave a line.
const PLACE: usize = 64 * 1024;

/// What the allocator takes beside a block.
const BLOCK: usize = 16;

/// The most members in a node of a map.
const MOST: usize = 11;

/// The fewest members in a node of a map, but for the topmost one, which has one at least.
const FEWEST: usize = 5;

/// A node of a map: its members, and its places for twelve nodes below.
const NODE: usize = MOST * (size_of::<String>() + size_of::<Value>()) + 13 * size_of::<usize>() + BLOCK;

/// Returns how many nodes a map of `members` may get with one member more, in whatever order they come.
fn new_nodes(members: usize) -> usize {
    match members {
        0 => 1,
        // A full node becomes two, and one above them.
        MOST => 2,
        _ if members > MOST && members.is_multiple_of(FEWEST) => 1,
        _ => 0,
    }
}

/// Why a line is no value.
#[derive(Debug)]
pub(super) enum Refusal {
    NotJson { reason: String, cut: bool },
    TooHeavy(String),
}

/// Returns the value that a line holds.
pub(super) fn value(line: &[u8]) -> Result<Value, Refusal> {
    build(line, Budget::new(MAX_WEIGHT, line.len(), Vec::new()))
}

/// Returns the value that a line holds, and the line without the long strings that the value has now; both take `most`
/// bytes together.
pub(super) fn owned_value(line: String, most: usize) -> (String, Result<Value, Refusal>) {
    if line.len() >= LARGE {
        return large_value(line, LONG, most);
    }
    let value = build(line.as_bytes(), Budget::new(most, line.len(), Vec::new()));
    (line, value)
}

fn large_value(line: String, long: usize, most: usize) -> (String, Result<Value, Refusal>) {
    let spans = cut::long_strings(line.as_bytes(), long);
    let taken: usize = spans.iter().map(|span| span.len()).sum();
    // For less the copy of the rest would cost more than it saves.
    if taken * 3 < line.len() * 2 {
        let mut budget = Budget::new(most, line.len(), Vec::new());
        budget.take(scratch(line.as_bytes(), &spans));
        let value = build(line.as_bytes(), budget);
        return (line, value);
    }
    // Below the strings a place is kept for the small blocks of the value: above them they would keep the allocator from
    // giving back what the strings leave.
    let place = Vec::<u8>::with_capacity(PLACE.min(4 * (line.len() - taken)));
    let (rest, pieces) = cut::cut(line.into_bytes(), &spans);
    drop(spans);
    let rest = String::from_utf8(rest).expect("a text without some of its strings is a text");
    let strings = unescape(pieces);
    drop(black_box(place));
    let value = strings.and_then(|strings| build(rest.as_bytes(), Budget::new(most, rest.len(), strings)));
    (rest, value)
}

/// What the parser may hold beside line and value: a string with escapes or the digits of a number, in a buffer that grows.
fn scratch(line: &[u8], spans: &[Span]) -> usize {
    let string = spans.iter().map(|span| span.len()).max().unwrap_or_default();
    let digits = line.split(|byte| !byte.is_ascii_digit()).map(<[u8]>::len).max().unwrap_or_default();
    string.max(digits) / 2 * 3
}

/// A string and its number in the line.
type Numbered = (usize, String);

fn unescape(pieces: Vec<Piece>) -> Result<Vec<Numbered>, Refusal> {
    let string = |piece: Piece| Ok((piece.number, cut::unescape(piece.text)?));
    let strings: Result<_, &str> = pieces.into_iter().map(string).collect();
    strings.map_err(|reason| Refusal::NotJson { reason: reason.to_owned(), cut: false })
}

fn build(line: &[u8], mut budget: Budget) -> Result<Value, Refusal> {
    // Some runtimes begin their output with a byte-order mark, which means nothing here.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let mut parser = serde_json::Deserializer::from_slice(line);
    let value = Build(&mut budget).deserialize(&mut parser);
    if budget.is_over() {
        return Err(Refusal::TooHeavy(budget.complaint()));
    }
    value.and_then(|value| parser.end().map(|()| value)).map_err(|error| Refusal::NotJson {
        reason: error.to_string(),
        cut: error.is_eof() && line.trim_ascii_start().starts_with(b"{"),
    })
}

/// What a value may still take, and the strings that left the line.
struct Budget {
    /// Nothing when it is used up.
    left: Option<usize>,
    values: usize,
    seen: usize,
    /// The last first.
    strings: Vec<Numbered>,
}

impl Budget {
    fn new(most: usize, line: usize, strings: Vec<Numbered>) -> Self {
        let mut budget = Self { left: Some(most), values: 0, seen: 0, strings };
        // One may keep the room of its line; memory that was never touched is not there.
        let strings =
            budget.strings.iter().map(|(_, string)| block(string.capacity().min(string.len() + SLACK)));
        let weight = line + strings.sum::<usize>() + budget.strings.capacity() * size_of::<Numbered>();
        budget.take(weight);
        budget
    }

    fn take(&mut self, bytes: usize) {
        self.left = self.left.and_then(|left| left.checked_sub(bytes));
    }

    fn is_over(&self) -> bool {
        self.left.is_none()
    }

    fn charge<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.take(bytes);
        if self.is_over() { Err(E::custom("too heavy")) } else { Ok(()) }
    }

    /// Makes room for one more element.
    fn grow<E: Error>(&mut self, elements: &mut Vec<Value>) -> Result<(), E> {
        let old = elements.capacity();
        if elements.len() < old {
            return Ok(());
        }
        let room = |elements| block(elements * size_of::<Value>());
        let more = old.max(4);
        // The elements are copied: for a moment both are there.
        self.charge(room(old + more))?;
        elements.reserve_exact(more);
        self.left = self.left.map(|left| left + room(old));
        Ok(())
    }

    /// Returns the string that stands here in the line, or the one that stood here.
    fn string<E: Error>(&mut self, text: &str) -> Result<String, E> {
        let number = self.seen;
        self.seen += 1;
        if let Some((_, string)) = self.strings.pop_if(|(next, _)| *next == number) {
            return Ok(string);
        }
        self.charge(block(text.len()))?;
        Ok(text.to_owned())
    }

    fn complaint(&self) -> String {
        format!(
            "it holds too much at once: with {} values read it needs more than {} MiB of memory; send long text as one \
             string, or send it in several messages",
            self.values,
            MAX_WEIGHT >> 20
        )
    }
}

fn block(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.next_multiple_of(16) + BLOCK }
}

/// Makes a value as `Value::deserialize` does, within a budget.
struct Build<'a>(&'a mut Budget);

impl<'de> DeserializeSeed<'de> for Build<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.values += 1;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Build<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.0.string(text).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = access.next_element_seed(Build(&mut *self.0))? {
            self.0.grow(&mut elements)?;
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = access.next_key_seed(Key(&mut *self.0))? {
            let value = access.next_value_seed(Build(&mut *self.0))?;
            let nodes = new_nodes(members.len());
            if members.insert(key, value).is_none() {
                self.0.charge(nodes * NODE)?;
            }
        }
        Ok(Value::Object(members))
    }
}

struct Key<'a>(&'a mut Budget);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        self.0.string(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::ndjson::MAX_LINE;

    #[test]
    fn a_value_takes_what_is_counted() {
        assert_eq!((size_of::<Value>(), size_of::<String>()), (32, 24));
    }

    #[test]
    fn the_nodes_of_a_map_are_counted() {
        // As many as there can be when each but the topmost has the fewest members.
        let fewest = |members: usize| if members <= MOST { 1 } else { 1 + (members - 1) / FEWEST };
        let mut nodes = 0;
        for members in 1..1000 {
            nodes += new_nodes(members - 1);
            assert_eq!(nodes, fewest(members), "{members} members");
        }
        // As counted by an allocator, in the worst of thousands of orders.
        for (members, counted) in [(1, 1), (11, 1), (12, 3), (15, 3), (18, 4), (24, 5), (30, 6)] {
            assert_eq!(fewest(members), counted, "{members} members");
        }
    }

    #[test]
    fn an_object_takes_its_nodes_once_however_often_a_key_comes() {
        let taken = |line: &str| {
            let mut budget = Budget::new(MAX_WEIGHT, 0, Vec::new());
            let mut parser = serde_json::Deserializer::from_str(line);
            Build(&mut budget).deserialize(&mut parser).unwrap();
            MAX_WEIGHT - budget.left.unwrap()
        };
        let object = |keys: std::ops::Range<u32>, more: &str| {
            let members: Vec<String> = keys.map(|key| format!("\"{key:02}\":1")).collect();
            format!("{{{}{more}}}", members.join(","))
        };
        let key = block(2);
        for (members, nodes) in [(1, 1), (11, 1), (12, 3), (15, 3), (16, 4)] {
            assert_eq!(taken(&object(0..members, "")), members as usize * key + nodes * NODE, "{members}");
        }
        assert_eq!(taken(&object(0..11, r#","00":2,"00":3"#)), 13 * key + NODE);
    }

    /// A line of the greatest length whose params repeat `unit`.
    fn filled(unit: &str) -> String {
        let (head, tail) = (r#"{"jsonrpc":"2.0","id":7,"result":["#, "0]}");
        let times = (MAX_LINE - head.len() - tail.len()) / unit.len();
        format!("{head}{}{tail}", unit.repeat(times))
    }

    #[test]
    fn lines_of_tiny_values_are_refused() {
        for unit in ["1,", "[],", r#"{"":0},"#, r#""","#, r#""xyz\n","#, r#"[[1]],"#, r#"{"abc":{"d":[]}},"#]
        {
            let (rest, value) = owned_value(filled(unit), MAX_WEIGHT);
            assert!(matches!(value, Err(Refusal::TooHeavy(_))), "{unit}");
            assert_eq!(rest.len(), filled(unit).len());
        }
    }

    #[test]
    fn lines_of_text_are_values() {
        let long = "x".repeat(MAX_LINE / 3);
        for unit in [
            "x".repeat(LONG),
            r"\n".repeat(2000),
            r"\u00e9".repeat(MAX_LINE / 24),
            long,
            "y".repeat(MAX_LINE - 50),
        ] {
            let line = filled(&format!("\"{unit}\","));
            // As lines come: with room for twice the longest.
            let mut roomy = String::with_capacity(2 * MAX_LINE + 1);
            roomy.push_str(&line);
            let (rest, value) = owned_value(roomy, MAX_WEIGHT);
            let value = value.unwrap();
            assert!(rest.len() < line.len() / 10);
            assert_eq!(value, serde_json::from_str::<Value>(&line).unwrap());
        }
        let digits = format!("[{}]", "1".repeat(MAX_LINE - 2));
        assert!(matches!(owned_value(digits, MAX_WEIGHT).1, Err(Refusal::TooHeavy(_))));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<String>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 30, 5, |inside| {
            prop_oneof![
                prop::collection::vec(inside.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inside, 0..5).prop_map(|map| json!(map)),
            ]
        })
    }

    /// Both ways: a value, or whether the line only lacks its end.
    fn compare(line: &str, long: usize) -> Result<(), TestCaseError> {
        let plain =
            serde_json::from_str::<Value>(line).map_err(|error| error.is_eof() && line.starts_with('{'));
        let cut = large_value(line.to_owned(), long, MAX_WEIGHT).1.map_err(|refusal| match refusal {
            Refusal::NotJson { cut, .. } => cut,
            Refusal::TooHeavy(_) => panic!("{line} is not heavy"),
        });
        prop_assert_eq!(cut, plain, "{}", line);
        Ok(())
    }

    proptest! {
        #[test]
        fn a_line_means_the_same_with_and_without_its_long_strings(value in any_value(), long in 0usize..20) {
            compare(&value.to_string(), long)?;
        }

        #[test]
        fn a_faulty_line_is_faulty_both_ways(
            value in any_value(), long in 0usize..20, at in any::<prop::sample::Index>(), fault in r#"[\\"udD8e0\x00-\x20{}\[\],:a]{0,6}"#,
        ) {
            let mut line = json!({ "a": value, "b": "\u{1}\\\"text" }).to_string();
            let mut at = at.index(line.len());
            while !line.is_char_boundary(at) {
                at -= 1;
            }
            if fault.is_empty() {
                line.truncate(at);
            }
            line.insert_str(at, &fault);
            compare(&line, long)?;
        }
    }
}
