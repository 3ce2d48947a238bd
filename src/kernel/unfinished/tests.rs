//! What a journal that ends at any of its frames leaves unfinished.

use std::sync::Arc;

use bingo_plugin_sdk::event::{ErrorCode, KernelError, QueueEntry, TurnOrigin};
use bingo_plugin_sdk::ids::{InteractionId, Seq, SessionId};
use bingo_plugin_sdk::interaction::{Answer, ResolvedBy};
use bingo_plugin_sdk::item::{ContentPart, Item, ItemStatus, Origin};
use serde_json::json;

use super::*;
use crate::kernel::input::{CommandLine, Prose, Work};
use crate::kernel::intents::Seen;
use crate::kernel::response::new_item;

/// A journal that is folded as it grows.
#[derive(Default)]
struct Story {
    seq: u64,
    intents: Intents,
    left: Unfinished,
}

impl Story {
    fn then(mut self, event: Event) -> Self {
        self.seq += 1;
        let cause = match &event {
            Event::IntentAck { intent, .. } => Some(intent.clone()),
            Event::InteractionResolved { .. } => Some(IntentId::from("i")),
            _ => None,
        };
        let (seq, session) = (Seq(self.seq), SessionId::from("s"));
        let frame = Frame { seq, ts: "2026-01-01T00:00:00Z".to_owned(), session, cause, event };
        self.intents.apply(&frame);
        self.left.apply(&frame, &mut self.intents);
        self
    }

    fn waiting(&self) -> Vec<&str> {
        self.left.queued.iter().map(|line| line.intent.as_str()).collect()
    }

    fn running(&self) -> Vec<&str> {
        self.left.running.iter().map(|command| command.intent.as_str()).collect()
    }
}

fn request(name: &str) -> Digest {
    Digest::of("session/submit", &name)
}

fn line(intent: &str) -> Waiting {
    let prose = Prose { parts: vec![ContentPart::text(intent)], origin: Origin::surface("t") };
    let (intent, digest) = (IntentId::from(intent), Some(request(intent)));
    Waiting { intent, digest, work: Work::Prose(prose), hold: true }
}

fn command(intent: &str) -> Running {
    Running { intent: IntentId::from(intent), digest: Some(request(intent)) }
}

fn ack_of(intent: &str, digest: Digest, outcome: IntentOutcome) -> Event {
    Event::IntentAck { intent: IntentId::from(intent), outcome, digest: Some(digest.to_string()) }
}

fn ack(intent: &str, outcome: IntentOutcome) -> Event {
    ack_of(intent, request(intent), outcome)
}

fn waits() -> IntentOutcome {
    IntentOutcome::Queued { position: 1 }
}

fn started() -> IntentOutcome {
    IntentOutcome::TurnStarted { turn: TurnId::from("t") }
}

fn rejected() -> IntentOutcome {
    IntentOutcome::Rejected { error: KernelError::new(ErrorCode::InvalidInput, "no") }
}

fn words(intent: Option<&str>, turn: Option<&str>) -> (ItemId, Event) {
    let body = ItemBody::User { parts: vec![ContentPart::text("w")], origin: Origin::surface("t") };
    let mut item: Item = new_item(turn.map(TurnId::from), 0, ItemStatus::Completed, body);
    item.intent = intent.map(IntentId::from);
    (item.id.clone(), Event::ItemCompleted { item: Arc::new(item) })
}

/// Mends 9.1.11.
#[test]
fn a_line_waits_from_its_storing_until_it_is_acknowledged_otherwise() {
    let story = Story::default().then(queued(&line("a"))).then(ack("a", waits())).then(queued(&line("b")));
    assert_eq!(story.left.queued, [line("a"), line("b")], "whole, though nothing acknowledged the second");
    let story = story.then(Event::QueueChanged { revision: 1, entries: Vec::<QueueEntry>::new() });
    assert_eq!(story.waiting(), ["a", "b"], "an announcement is no outcome");
    let story = story.then(none(QUEUED));
    assert_eq!(story.waiting(), ["a", "b"], "nor is the end of its state");
    let story = story.then(ack("b", rejected()));
    assert_eq!(story.waiting(), ["a"]);
    assert_eq!(story.then(ack("a", started())).waiting(), [""; 0]);
}

#[test]
fn a_line_that_was_stored_is_known_by_its_intent() {
    let mut story = Story::default().then(queued(&line("a"))).then(running(&command("c")));
    assert_eq!(story.intents.begin(&IntentId::from("a"), request("a")), Seen::UnderWay);
    assert_eq!(story.intents.begin(&IntentId::from("a"), request("b")), Seen::Differs);
    assert_eq!(story.intents.begin(&IntentId::from("c"), request("c")), Seen::UnderWay);
}

#[test]
fn the_refusal_of_another_request_takes_nothing_away() {
    let story = Story::default()
        .then(queued(&line("a")))
        .then(running(&command("c")))
        .then(ack_of("a", request("x"), rejected()))
        .then(ack_of("c", request("x"), rejected()));
    assert_eq!((story.waiting(), story.running()), (vec!["a"], vec!["c"]));
    let story = story.then(ack("c", rejected()));
    assert_eq!((story.waiting(), story.running()), (vec!["a"], vec![]));
}

#[test]
fn a_command_that_waited_waits_no_more_when_it_begins_and_its_words_may_wait_again() {
    let story = Story::default().then(queued(&line("c"))).then(running(&command("c")));
    assert_eq!((story.waiting(), story.running()), (vec![], vec!["c"]));
    let story = story.then(queued(&line("c"))).then(ack("c", waits()));
    assert_eq!((story.waiting(), story.running()), (vec!["c"], vec![]));
}

#[test]
fn words_are_unanswered_until_they_are_acknowledged() {
    let (item, event) = words(Some("a"), Some("t"));
    let story = Story::default().then(queued(&line("a"))).then(running(&command("a"))).then(event);
    let done = Done::Recorded { item, turn: Some(TurnId::from("t")) };
    assert_eq!(story.left.unanswered, [Unanswered { intent: IntentId::from("a"), done }]);
    assert_eq!((story.waiting(), story.running()), (vec![], vec![]), "what was recorded is not done again");
    let turn = TurnId::from("t");
    let story = story.then(Event::TurnStarted { turn, inputs: Vec::new(), origin: TurnOrigin::Submit });
    assert_eq!(story.left.unanswered.len(), 1);
    assert_eq!(story.then(ack("a", started())).left, Unfinished::default());
}

#[test]
fn words_that_nobody_asked_for_need_no_answer() {
    let (_, event) = words(None, Some("t"));
    assert_eq!(Story::default().then(event).left, Unfinished::default());
}

#[test]
fn an_answered_question_is_unanswered_until_its_answer_is_acknowledged() {
    let by = ResolvedBy::Client { name: "n".to_owned(), surface: "s".to_owned() };
    let (id, answer) = (InteractionId::from("q"), Answer::AllowOnce);
    let story = Story::default().then(Event::InteractionResolved { id, answer, by });
    assert_eq!(story.left.unanswered, [Unanswered { intent: IntentId::from("i"), done: Done::Resolved }]);
    let story = story.then(ack("i", IntentOutcome::Applied { result: Value::Null }));
    assert_eq!(story.left, Unfinished::default());
}

#[test]
fn only_the_kernels_own_extensions_count_and_only_those_that_can_be_read() {
    let foreign = |plugin: &str, kind: &str, payload: Value| Event::Extension {
        plugin: plugin.to_owned(),
        kind: kind.to_owned(),
        payload,
    };
    let whole = serde_json::to_value(line("a")).unwrap();
    let story = Story::default()
        .then(foreign("p", QUEUED, whole.clone()))
        .then(foreign(NAMESPACE, "other", whole))
        .then(foreign(NAMESPACE, QUEUED, json!({ "intent": "a" })))
        .then(foreign(NAMESPACE, RUNNING, json!("a")));
    assert_eq!(story.left, Unfinished::default());
}

#[test]
fn a_waiting_command_is_stored_whole_too() {
    let typed = CommandLine { name: "n".to_owned(), args: "a b".to_owned(), origin: Origin::surface("t") };
    let waiting = Waiting { work: Work::Command(typed), digest: None, hold: false, ..line("a") };
    assert_eq!(Story::default().then(queued(&waiting)).left.queued, [waiting]);
}
