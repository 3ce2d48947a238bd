//! Every order of up to six things that happen to a session under two intents: submits, held deliveries, interrupts,
//! answers of the model, power cuts. Each order is tried with time to settle after each thing, and all at once.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use bingo_plugin_sdk::event::{ErrorCode, Event, Frame, IntentOutcome};
use bingo_plugin_sdk::ids::{SessionId, TurnId};
use bingo_plugin_sdk::item::ItemBody;
use bingo_plugin_sdk::state::SessionState;

use crate::kernel::Attachment;
use crate::kernel::outbox::wants_sync;
use crate::kernel::testing::{Host, seen, settle};
use crate::settings::SyncMode;

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Submit(&'static str),
    Hold(&'static str),
    Interrupt(&'static str),
    /// The model ends the answer that it gives, if it gives one.
    Answer,
    /// The power fails, and the session is opened again.
    Crash,
}

const ACTS: [Act; 7] = [
    Act::Submit("i"),
    Act::Submit("j"),
    Act::Hold("j"),
    Act::Interrupt("i"),
    Act::Interrupt("j"),
    Act::Answer,
    Act::Crash,
];

/// A client and its host.
struct World {
    host: Host,
    client: Attachment,
    session: SessionId,
    /// What the client folded.
    state: SessionState,
    /// Every frame it saw.
    seen: Vec<Frame>,
    asked: BTreeSet<Act>,
    sync: SyncMode,
}

impl World {
    async fn new(sync: SyncMode) -> Self {
        let host = Host::start(sync, Vec::new());
        let client = host.create().await;
        let (session, state) = (client.session.clone(), client.snapshot.clone());
        Self { host, client, session, state, seen: Vec::new(), asked: BTreeSet::new(), sync }
    }

    async fn act(mut self, act: Act) -> Self {
        match act {
            Act::Answer => {
                self.host.model.answer_once();
                settle().await;
                self.host.model.hold_back();
            }
            Act::Crash => {
                self.look().await;
                self.host = self.host.crash();
                self.client = self.host.reopen(&self.session).await;
                self.state = self.client.snapshot.clone();
            }
            asked => {
                self.asked.insert(asked);
                self.ask(asked).await;
            }
        }
        self
    }

    async fn ask(&self, act: Act) {
        match act {
            Act::Submit(intent) => self.host.submit(&self.session, intent, "words").await,
            Act::Hold(intent) => self.host.hold(&self.session, intent, "held").await,
            Act::Interrupt(intent) => self.host.interrupt(&self.session, intent).await,
            Act::Answer | Act::Crash => {}
        }
    }

    async fn look(&mut self) {
        for frame in seen(&mut self.client).await {
            self.state.apply(&frame);
            self.seen.push(frame);
        }
    }

    /// Asks again for all that was asked, lets the model answer everything, and checks what is left.
    async fn end(mut self) {
        self.look().await;
        for act in self.asked.clone() {
            self.ask(act).await;
        }
        self.host.model.answer_always();
        settle().await;
        // A held line waits for the next turn, whoever opens it.
        self.host.submit(&self.session, "end", "the end").await;
        settle().await;
        self.look().await;
        let fresh = self.host.reopen(&self.session).await;
        assert_eq!(self.state, fresh.snapshot, "client and server folded the same");
        let stored = self.host.journal.frames(&self.session);
        assert_turns(&stored);
        self.assert_stored(&stored);
        for act in &self.asked {
            assert_intent(*act, &stored);
        }
    }

    fn assert_stored(&self, stored: &[Frame]) {
        assert!(stored.is_sorted_by(|a, b| a.seq < b.seq), "numbers only grow");
        let by_seq: BTreeMap<_, _> = stored.iter().map(|frame| (frame.seq, frame)).collect();
        for frame in self.seen.iter().filter(|frame| wants_sync(self.sync, &frame.event)) {
            assert_eq!(by_seq.get(&frame.seq), Some(&frame), "what was seen is stored as was promised");
        }
        let ephemeral = self.seen.iter().filter(|frame| !frame.event.is_durable());
        assert!(ephemeral.clone().all(|frame| !by_seq.contains_key(&frame.seq)), "no number is given twice");
    }
}

/// Each turn that started ended once, before the next one started.
fn assert_turns(stored: &[Frame]) {
    let mut running: Option<&TurnId> = None;
    for frame in stored {
        match &frame.event {
            Event::TurnStarted { turn, .. } => assert_eq!(running.replace(turn), None),
            Event::TurnCompleted { turn, .. } => assert_eq!(running.take(), Some(turn)),
            _ => {}
        }
    }
    assert_eq!(running, None);
}

fn is_final(outcome: &IntentOutcome) -> bool {
    !matches!(outcome, IntentOutcome::Queued { .. })
}

/// One final outcome, one effect, and no line lost.
fn assert_intent(act: Act, stored: &[Frame]) {
    let (Act::Submit(name) | Act::Hold(name) | Act::Interrupt(name)) = act else { return };
    let mut digests: BTreeMap<&str, Vec<&IntentOutcome>> = BTreeMap::new();
    for frame in stored {
        if let Event::IntentAck { intent, outcome, digest: Some(digest) } = &frame.event
            && intent.as_str() == name
        {
            digests.entry(digest).or_default().push(outcome);
        }
    }
    let items = stored.iter().filter_map(|frame| match &frame.event {
        Event::ItemCompleted { item } if item.intent.as_ref().is_some_and(|of| of.as_str() == name) => {
            Some(item)
        }
        _ => None,
    });
    let items: Vec<_> = items.collect();
    assert!(!digests.is_empty(), "{name} was never acknowledged");
    let mut done = 0;
    for outcomes in digests.values() {
        let mut finals = outcomes.iter().filter(|outcome| is_final(outcome));
        let first = finals.next().unwrap_or_else(|| panic!("{name} waits for ever: {outcomes:?}"));
        assert!(finals.all(|other| other == first), "{name} ended in two ways: {outcomes:?}");
        let refused =
            matches!(first, IntentOutcome::Rejected { error } if error.code == ErrorCode::InvalidInput);
        done += usize::from(!refused);
        let waited = outcomes.iter().any(|outcome| !is_final(outcome));
        if waited || matches!(first, IntentOutcome::TurnStarted { .. }) {
            let IntentOutcome::TurnStarted { turn } = first else { panic!("{name} was lost: {outcomes:?}") };
            let said = items.iter().filter(|item| matches!(item.body, ItemBody::User { .. }));
            let turns: Vec<_> = said.map(|item| item.turn.as_ref()).collect();
            assert_eq!(turns, [Some(turn)], "{name} is said once, where its acknowledgement says");
        }
    }
    assert!(done <= 1, "{name} did two things: {digests:?}");
}

/// Tries one order; tells which one it was if that fails.
async fn run(order: &[Act], sync: SyncMode, settled: bool) {
    let told = Told(order, settled);
    let mut world = World::new(sync).await;
    for act in order {
        world = world.act(*act).await;
        if settled {
            settle().await;
        }
    }
    world.end().await;
    std::mem::forget(told);
}

/// Prints an order when a failed check unwinds past it.
struct Told<'a>(&'a [Act], bool);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("in the order {:?}, {}\n", self.0, if self.1 { "settled" } else { "at once" }),
        );
    }
}

/// Returns the order of this number among all of a length.
fn order(number: usize, length: usize) -> Vec<Act> {
    (0..length as u32).map(|place| ACTS[number / ACTS.len().pow(place) % ACTS.len()]).collect()
}

/// The longest orders that are tried: six with `BINGO_ENDURANCE=full`, best with `--release`.
fn longest() -> usize {
    if std::env::var_os("BINGO_ENDURANCE").is_some_and(|value| value == "full") { 6 } else { 3 }
}

/// Tries the orders whose number leaves this rest. Each has a runtime of its own, so that what a host left that lost its
/// power ends with it.
fn run_share(rest: usize, shares: usize) {
    for length in 1..=longest() {
        for number in (rest..ACTS.len().pow(length as u32)).step_by(shares) {
            let order = order(number, length);
            for (sync, settled) in [(SyncMode::Turn, true), (SyncMode::Frame, false)] {
                let mut builder = tokio::runtime::Builder::new_current_thread();
                let runtime = builder.enable_all().start_paused(true).build().unwrap();
                runtime.block_on(run(&order, sync, settled));
            }
        }
    }
}

/// Rule 1.3.28, 3.4.33, 3.5.37. Mends 9.1.1, 9.1.11.
#[test]
fn in_every_order_turns_end_once_intents_end_one_way_and_no_line_is_lost() {
    let shares = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for rest in 0..shares {
            scope.spawn(move || run_share(rest, shares));
        }
    });
}
