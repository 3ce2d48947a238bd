//! What was asked under which intent, and where its acknowledgement is stored (design §7: intents are idempotent and
//! durable).
//!
//! The account is a fold of stored frames, so a restart knows what was known before. It holds no outcomes: they can be
//! large and a repeat is rare, so the journal is read for one.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::ids::{IntentId, Seq};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The newest acknowledged intents that are known for good, however old they are.
const KEPT: usize = 10_000;
/// How long older ones are known too, in seconds.
const KEPT_FOR: i64 = 24 * 60 * 60;

/// What stands for a request or an intent: equal ones have equal digests. 128 bits of a SHA-256, 32 hex digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) struct Digest(u128);

impl Digest {
    /// Returns the digest of a method with its parameters.
    pub(super) fn of(method: &str, params: &impl Serialize) -> Self {
        let mut hash = Hash(Sha256::new());
        // A hash takes everything, and what came off the wire can go there again.
        let _ = serde_json::to_writer(&mut hash, &(method, params));
        let bytes: [u8; 32] = hash.0.finalize().into();
        Self(bytes.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }

    /// Returns the digest that an acknowledgement carries; an earlier version wrote none.
    pub(super) fn of_acknowledged(digest: Option<&String>) -> Option<Self> {
        digest.and_then(|text| Self::try_from(text.clone()).ok())
    }

    fn of_intent(intent: &IntentId) -> Self {
        Self::of("intent", intent)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u128::from_str_radix(&text, 16).map(Self)
    }
}

struct Hash(Sha256);

impl std::io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What is known of an intent when a request comes under it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing; it is noted now.
    New,
    /// The same request is being done, or waits.
    UnderWay,
    /// The same request was acknowledged, last in this frame.
    Acknowledged(Seq),
    /// It belongs to another request.
    Differs,
}

/// One intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    intent: Digest,
    /// Absent when an earlier version stored it.
    request: Option<Digest>,
    /// The newest acknowledgement; absent before the first.
    at: Option<Seq>,
    /// When the first one was given, in seconds since 1970.
    since: i64,
}

/// The intents of one session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(into = "Vec<Known>", from = "Vec<Known>")]
pub(super) struct Intents {
    known: HashMap<Digest, Known>,
    /// Acknowledged ones, in the order of their first acknowledgement.
    order: VecDeque<Digest>,
}

impl Intents {
    /// Looks up the intent of a request, and notes it when it is new.
    pub(super) fn begin(&mut self, intent: &IntentId, request: Digest) -> Seen {
        let intent = Digest::of_intent(intent);
        match self.known.get(&intent) {
            None => {
                self.note(intent, Some(request));
                Seen::New
            }
            Some(Known { request: Some(other), .. }) if *other != request => Seen::Differs,
            Some(Known { at: Some(seq), .. }) => Seen::Acknowledged(*seq),
            Some(Known { at: None, .. }) => Seen::UnderWay,
        }
    }

    /// Notes an intent whose work was stored before its acknowledgement.
    pub(super) fn under_way(&mut self, intent: &IntentId, request: Option<Digest>) {
        let intent = Digest::of_intent(intent);
        if !self.known.contains_key(&intent) {
            self.note(intent, request);
        }
    }

    /// Returns the digest of the request that an intent belongs to.
    pub(super) fn request(&self, intent: &IntentId) -> Option<Digest> {
        self.known.get(&Digest::of_intent(intent))?.request
    }

    /// Folds the next frame.
    pub(super) fn apply(&mut self, frame: &Frame) {
        let Event::IntentAck { intent, digest, .. } = &frame.event else { return };
        let intent = Digest::of_intent(intent);
        let request = Digest::of_acknowledged(digest.as_ref());
        if !self.known.contains_key(&intent) {
            self.note(intent, request);
        }
        let Some(known) = self.known.get_mut(&intent) else { return };
        // The refusal of another request under this intent says nothing about its own.
        if known.request.is_some() && request.is_some() && known.request != request {
            return;
        }
        if known.at.replace(frame.seq).is_none() {
            known.since = seconds(&frame.ts);
            self.order.push_back(intent);
            self.forget_old(seconds(&frame.ts));
        }
    }

    fn note(&mut self, intent: Digest, request: Option<Digest>) {
        self.known.insert(intent, Known { intent, request, at: None, since: 0 });
    }

    fn forget_old(&mut self, now: i64) {
        while self.order.len() > KEPT
            && let Some(oldest) = self.order.front()
            && self.known.get(oldest).is_none_or(|known| now - known.since > KEPT_FOR)
        {
            self.known.remove(oldest);
            self.order.pop_front();
        }
    }
}

/// Returns a time as seconds since 1970; what is no time counts as old.
fn seconds(time: &str) -> i64 {
    time.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_second)
}

impl From<Intents> for Vec<Known> {
    fn from(mut intents: Intents) -> Self {
        let mut all: Self = intents.order.iter().filter_map(|intent| intents.known.remove(intent)).collect();
        all.extend(intents.known.into_values());
        all
    }
}

impl From<Vec<Known>> for Intents {
    fn from(all: Vec<Known>) -> Self {
        let order = all.iter().filter(|known| known.at.is_some()).map(|known| known.intent).collect();
        Self { order, known: all.into_iter().map(|known| (known.intent, known)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::event::IntentOutcome;
    use bingo_plugin_sdk::ids::SessionId;
    use serde_json::json;

    use super::*;

    fn intent(name: &str) -> IntentId {
        IntentId::from(name)
    }

    fn request(text: &str) -> Digest {
        Digest::of("session/submit", &json!({ "text": text }))
    }

    fn ack(seq: u64, name: &str, digest: Option<Digest>, ts: &str) -> Frame {
        let outcome = IntentOutcome::Queued { position: 1 };
        let event = Event::IntentAck {
            intent: intent(name),
            outcome,
            digest: digest.map(|digest| digest.to_string()),
        };
        Frame { seq: Seq(seq), ts: ts.to_owned(), session: SessionId::from("s"), cause: None, event }
    }

    const DAY_1: &str = "2026-01-01T00:00:00.000Z";
    const DAY_2: &str = "2026-01-02T00:00:00.000Z";
    const DAY_3: &str = "2026-01-03T00:00:01.000Z";

    #[test]
    fn equal_requests_have_equal_digests_and_others_do_not() {
        assert_eq!(request("a"), Digest::of("session/submit", &json!({ "text": "a" })));
        assert_ne!(request("a"), request("b"));
        assert_ne!(request("a"), Digest::of("session/deliver", &json!({ "text": "a" })));
        let text = request("a").to_string();
        assert_eq!((text.len(), Digest::try_from(text)), (32, Ok(request("a"))));
        assert!(Digest::try_from("no hex".to_owned()).is_err());
    }

    /// Mends 9.1.1.
    #[test]
    fn a_request_is_new_once_then_under_way_then_acknowledged() {
        let mut intents = Intents::default();
        assert_eq!(intents.begin(&intent("i"), request("a")), Seen::New);
        assert_eq!(intents.begin(&intent("i"), request("a")), Seen::UnderWay);
        assert_eq!(intents.begin(&intent("i"), request("b")), Seen::Differs);
        assert_eq!(intents.request(&intent("i")), Some(request("a")));
        intents.apply(&ack(5, "i", Some(request("a")), DAY_1));
        intents.apply(&ack(7, "i", Some(request("a")), DAY_1));
        assert_eq!(intents.begin(&intent("i"), request("a")), Seen::Acknowledged(Seq(7)));
        assert_eq!(intents.begin(&intent("i"), request("b")), Seen::Differs);
        assert_eq!(intents.begin(&intent("j"), request("a")), Seen::New);
    }

    /// Mends 9.1.1.
    #[test]
    fn the_refusal_of_another_request_does_not_count_as_the_acknowledgement() {
        let mut intents = Intents::default();
        intents.begin(&intent("i"), request("a"));
        intents.apply(&ack(3, "i", Some(request("b")), DAY_1));
        assert_eq!(intents.begin(&intent("i"), request("a")), Seen::UnderWay);
        intents.apply(&ack(4, "i", Some(request("a")), DAY_1));
        intents.apply(&ack(5, "i", Some(request("b")), DAY_1));
        assert_eq!(intents.begin(&intent("i"), request("a")), Seen::Acknowledged(Seq(4)));
    }

    #[test]
    fn an_acknowledgement_without_a_digest_is_of_whatever_was_asked() {
        let mut intents = Intents::default();
        intents.apply(&ack(3, "i", None, DAY_1));
        assert_eq!(intents.begin(&intent("i"), request("a")), Seen::Acknowledged(Seq(3)));
        intents.begin(&intent("j"), request("a"));
        intents.apply(&ack(4, "j", None, DAY_1));
        assert_eq!(intents.begin(&intent("j"), request("a")), Seen::Acknowledged(Seq(4)));
    }

    #[test]
    fn stored_work_is_under_way_until_it_is_acknowledged() {
        let mut intents = Intents::default();
        intents.under_way(&intent("i"), Some(request("a")));
        assert_eq!(intents.begin(&intent("i"), request("a")), Seen::UnderWay);
        intents.apply(&ack(3, "i", Some(request("a")), DAY_1));
        intents.under_way(&intent("i"), Some(request("b")));
        assert_eq!(intents.begin(&intent("i"), request("a")), Seen::Acknowledged(Seq(3)));
    }

    #[test]
    fn the_newest_ten_thousand_are_kept_and_all_of_a_day() {
        let mut intents = Intents::default();
        for seq in 1..=KEPT as u64 + 5 {
            intents.apply(&ack(seq, &seq.to_string(), Some(request("a")), DAY_1));
        }
        intents.apply(&ack(20_000, "next day", Some(request("a")), DAY_2));
        assert_eq!(intents.known.len(), KEPT + 6, "none is older than a day");
        // Acknowledged again: its age is that of the first time.
        intents.apply(&ack(20_001, "1", Some(request("a")), DAY_3));
        assert_eq!(intents.known.len(), KEPT + 6);
        intents.apply(&ack(20_002, "later", Some(request("a")), DAY_3));
        assert_eq!((intents.known.len(), intents.order.len()), (KEPT, KEPT));
        assert_eq!(intents.begin(&intent("7"), request("a")), Seen::New);
        assert_eq!(intents.begin(&intent("8"), request("a")), Seen::Acknowledged(Seq(8)));
    }

    #[test]
    fn what_is_under_way_is_never_forgotten() {
        let mut intents = Intents::default();
        intents.begin(&intent("long"), request("a"));
        for seq in 1..=KEPT as u64 + 5 {
            intents.apply(&ack(seq, &seq.to_string(), None, if seq < 10 { DAY_1 } else { DAY_3 }));
        }
        assert_eq!(intents.begin(&intent("long"), request("a")), Seen::UnderWay);
    }

    #[test]
    fn it_is_the_same_account_after_it_was_written_and_read() {
        let mut intents = Intents::default();
        for seq in 1..=4 {
            intents.apply(&ack(seq, &format!("i{}", 9 - seq), Some(request("a")), DAY_1));
        }
        intents.begin(&intent("open"), request("b"));
        let text = serde_json::to_string(&intents).unwrap();
        let read: Intents = serde_json::from_str(&text).unwrap();
        assert_eq!((&read.known, &read.order), (&intents.known, &intents.order));
    }
}
