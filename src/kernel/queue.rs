//! Inputs that wait until a turn or a command ended (kernel rules 3.4). Owned by one session's actor.

use std::collections::VecDeque;

use bingo_plugin_sdk::event::{Event, QueueEntry};
use bingo_plugin_sdk::ids::IntentId;

use super::input::{CommandLine, Prose, Work};

/// The most inputs that wait in one session.
pub(super) const MAX_WAITING: usize = 1000;

/// One waiting input.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Waiting {
    pub(super) intent: IntentId,
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

    /// Returns whether no more may wait.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
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

    /// Continues the revisions of an earlier run of the session.
    pub(super) fn resume(&mut self, revision: u64) {
        self.revision = revision;
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
            queue.push(Waiting { intent: IntentId::from(*intent), work: work.clone(), hold: *hold });
        }
        queue
    }

    fn intents(prose: &[(IntentId, Prose)]) -> Vec<&str> {
        prose.iter().map(|(intent, _)| intent.as_str()).collect()
    }

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

    #[test]
    fn a_running_turn_takes_in_no_held_line_and_nothing_behind_it() {
        let mut queue = queue(&[("a", prose("1"), false), ("b", prose("2"), true), ("c", prose("3"), false)]);
        assert_eq!(intents(&queue.take_steerable()), ["a"]);
        assert_eq!(intents(&queue.take_steerable()), [""; 0]);
    }

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
