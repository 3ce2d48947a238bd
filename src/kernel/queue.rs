//! Inputs that wait until a turn or a command ended (kernel rules 3.4). Owned by one session's actor; each is stored
//! whole before it is announced (see `unfinished`), so the queue outlives its host.

use std::collections::VecDeque;

use bingo_plugin_sdk::event::{Event, QueueEntry};
use bingo_plugin_sdk::ids::IntentId;

use serde::{Deserialize, Serialize};

use super::input::{CommandLine, Prose, Work};
use super::intents::Digest;

/// The most inputs that wait in one session.
pub(super) const MAX_WAITING: usize = 1000;
/// The most bytes of pictures and words that wait in one session, unless it is one input.
pub(super) const MAX_BYTES: usize = 16 * 1024 * 1024;

/// One waiting input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) intent: IntentId,
    /// Of the request that brought it.
    pub(super) digest: Option<Digest>,
    pub(super) work: Work,
    /// Delivered to wait: a running turn does not take it in.
    pub(super) hold: bool,
}

impl Waiting {
    fn steerable(&self) -> bool {
        !self.hold && matches!(self.work, Work::Prose(_))
    }
}

/// What an idle session takes from its queue at once.
#[derive(Debug, PartialEq)]
pub(super) enum Unit {
    /// A run of prose, for one turn.
    Prose(Vec<(IntentId, Prose)>),
    Command(IntentId, CommandLine),
}

/// The waiting inputs in the order they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    revision: u64,
}

impl Queue {
    /// Returns whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether another input may not wait too.
    pub(super) fn is_full_for(&self, another: &Work) -> bool {
        let bytes: usize = self.waiting.iter().map(|waiting| waiting.work.weight()).sum();
        self.waiting.len() >= MAX_WAITING || (!self.is_empty() && bytes + another.weight() > MAX_BYTES)
    }

    /// Returns where an input waits, counted from 1.
    pub(super) fn position(&self, intent: &IntentId) -> Option<u32> {
        let place = self.waiting.iter().position(|waiting| waiting.intent == *intent)?;
        Some(place as u32 + 1)
    }

    /// Appends an input; returns its position, counted from 1.
    pub(super) fn push(&mut self, waiting: Waiting) -> u32 {
        self.waiting.push_back(waiting);
        self.waiting.len() as u32
    }

    /// Takes what an idle session does next: a run of prose up to the first command, or a command.
    pub(super) fn take_unit(&mut self) -> Option<Unit> {
        if let Work::Command(_) = self.waiting.front()?.work {
            let front = self.waiting.pop_front()?;
            return match front.work {
                Work::Command(line) => Some(Unit::Command(front.intent, line)),
                Work::Prose(prose) => Some(Unit::Prose(vec![(front.intent, prose)])),
            };
        }
        Some(Unit::Prose(self.take_prose(|_| true)))
    }

    /// Takes the leading lines that a running turn may take in.
    pub(super) fn take_steerable(&mut self) -> Vec<(IntentId, Prose)> {
        self.take_prose(Waiting::steerable)
    }

    /// Takes the leading prose, for a turn that opens for another reason.
    pub(super) fn take_leading_prose(&mut self) -> Vec<(IntentId, Prose)> {
        self.take_prose(|_| true)
    }

    /// Takes everything, for a session that closes.
    pub(super) fn take_all(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.waiting).into()
    }

    /// Returns the announcement of the queue as it stands; each has the next revision.
    pub(super) fn changed(&mut self) -> Event {
        self.revision += 1;
        let entries = self.waiting.iter().zip(1..).map(|(waiting, position)| QueueEntry {
            intent: waiting.intent.clone(),
            position,
            preview: waiting.work.preview(),
            steerable: waiting.steerable(),
            origin: waiting.work.origin().clone(),
        });
        Event::QueueChanged { revision: self.revision, entries: entries.collect() }
    }

    /// Goes on with what an earlier run of the session left, and with its revisions.
    pub(super) fn resume(waiting: Vec<Waiting>, revision: u64) -> Self {
        Self { waiting: waiting.into(), revision }
    }

    fn take_prose(&mut self, accept: impl Fn(&Waiting) -> bool) -> Vec<(IntentId, Prose)> {
        let mut taken = Vec::new();
        while let Some(Waiting { work: Work::Prose(_), .. }) =
            self.waiting.front().filter(|front| accept(front))
        {
            if let Some(Waiting { intent, work: Work::Prose(prose), .. }) = self.waiting.pop_front() {
                taken.push((intent, prose));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::item::{ContentPart, Origin};

    use super::*;

    fn prose(text: &str) -> Work {
        Work::Prose(Prose { parts: vec![ContentPart::text(text)], origin: Origin::surface("t") })
    }

    fn command(name: &str) -> Work {
        let (name, args) = (name.to_owned(), String::new());
        Work::Command(CommandLine { name, args, origin: Origin::surface("t") })
    }

    fn queue(works: &[(&str, Work, bool)]) -> Queue {
        let mut queue = Queue::default();
        for (intent, work, hold) in works {
            let (intent, work) = (IntentId::from(*intent), work.clone());
            queue.push(Waiting { intent, digest: None, work, hold: *hold });
        }
        queue
    }

    fn intents(prose: &[(IntentId, Prose)]) -> Vec<&str> {
        prose.iter().map(|(intent, _)| intent.as_str()).collect()
    }

    /// Rule 3.4.33.
    #[test]
    fn an_idle_session_takes_prose_up_to_a_command_and_a_command_alone() {
        let mut queue = queue(&[
            ("a", prose("1"), false),
            ("b", prose("2"), true),
            ("c", command("x"), false),
            ("d", prose("3"), false),
        ]);
        let Some(Unit::Prose(taken)) = queue.take_unit() else { panic!() };
        assert_eq!(intents(&taken), ["a", "b"]);
        assert!(matches!(queue.take_unit(), Some(Unit::Command(intent, _)) if intent.as_str() == "c"));
        assert!(matches!(queue.take_unit(), Some(Unit::Prose(taken)) if intents(&taken) == ["d"]));
        assert_eq!(queue.take_unit(), None);
    }

    /// Rule 3.4.32.
    #[test]
    fn a_running_turn_takes_in_no_held_line_and_nothing_behind_it() {
        let mut queue = queue(&[("a", prose("1"), false), ("b", prose("2"), true), ("c", prose("3"), false)]);
        assert_eq!(intents(&queue.take_steerable()), ["a"]);
        assert_eq!(intents(&queue.take_steerable()), [""; 0]);
    }

    #[test]
    fn a_turn_that_opens_for_another_reason_takes_the_leading_prose() {
        let mut queue = queue(&[
            ("a", prose("1"), false),
            ("b", prose("2"), true),
            ("c", command("x"), false),
            ("d", prose("3"), false),
        ]);
        assert_eq!(intents(&queue.take_leading_prose()), ["a", "b"]);
        assert_eq!(intents(&queue.take_leading_prose()), [""; 0], "a command is in the way");
        assert_eq!(MAX_BYTES, 16_777_216, "design: limits");
    }

    #[test]
    fn a_thousand_inputs_may_wait_or_sixteen_mebibytes() {
        let mut many = Queue::default();
        for number in 0..MAX_WAITING {
            assert!(!many.is_full_for(&prose("x")), "{number} wait");
            many.push(queue(&[("a", prose("x"), false)]).take_all().remove(0));
        }
        assert!(many.is_full_for(&prose("x")));
        let huge = prose(&"x".repeat(MAX_BYTES + 1));
        assert!(!Queue::default().is_full_for(&huge), "one of any size");
        let large = queue(&[("a", prose(&"x".repeat(MAX_BYTES - 1)), false)]);
        assert!(!large.is_full_for(&prose("x")) && large.is_full_for(&prose("xx")));
        let picture = ContentPart::Image { media_type: "image/png".to_owned(), data: "x".repeat(MAX_BYTES) };
        let pictures = Work::Prose(Prose { parts: vec![picture], origin: Origin::surface("t") });
        assert!(queue(&[("a", pictures, false)]).is_full_for(&command("x")));
    }

    /// Mends 9.1.11.
    #[test]
    fn an_earlier_run_leaves_its_lines_and_its_revisions() {
        let left = queue(&[("a", prose("1"), false), ("b", prose("2"), true)]).take_all();
        let mut queue = Queue::resume(left, 7);
        let place = |intent: &str| queue.position(&IntentId::from(intent));
        assert_eq!((place("a"), place("b"), place("c")), (Some(1), Some(2), None));
        assert!(
            matches!(queue.changed(), Event::QueueChanged { revision: 8, entries } if entries.len() == 2)
        );
    }

    /// Rule 3.4.31.
    #[test]
    fn an_announcement_numbers_what_waits() {
        let mut queue = queue(&[("a", prose(&"x".repeat(100)), false), ("b", command("y"), false)]);
        let Event::QueueChanged { revision: 1, entries } = queue.changed() else { panic!() };
        let shown: Vec<_> =
            entries.iter().map(|entry| (entry.position, entry.preview.len(), entry.steerable)).collect();
        assert_eq!(shown, [(1, 80, true), (2, 2, false)]);
        assert!(matches!(queue.changed(), Event::QueueChanged { revision: 2, .. }));
    }
}
