//! The window and what is read behind it give the transcript that a fold without a window has.

use bingo_plugin_sdk::event::DeltaKind;
use bingo_plugin_sdk::ids::{SessionId, TurnId};
use bingo_plugin_sdk::item::ItemStatus;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::kernel::compaction::Cut;
use crate::kernel::replay::{Replay, Replaying};
use crate::kernel::response::new_item;
use crate::kernel::testing::{MemoryJournal, summary};
use crate::kernel::view::View;
use crate::ports::{Journal, Replayer};

const FEW: Limits = Limits { items: 8, bytes: 2000 };

/// What may happen to a transcript. An index chooses among the items that it can happen to.
#[derive(Debug, Clone)]
enum Step {
    Start,
    Say(usize),
    Grow(Index),
    End(Index),
    /// Words about what ended, which come late.
    Late(Index),
    Withdraw(Index, bool),
    Cut(Index, Index),
    Resume,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Start),
        8 => (0..300usize).prop_map(Step::Say),
        2 => any::<Index>().prop_map(Step::Grow),
        2 => any::<Index>().prop_map(Step::End),
        1 => any::<Index>().prop_map(Step::Late),
        1 => (any::<Index>(), any::<bool>()).prop_map(|(index, rewind)| Step::Withdraw(index, rewind)),
        1 => Just(Step::Resume),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(boundary, kept)| Step::Cut(boundary, kept)),
    ]
}

/// The same frames folded with a window, without one, and stored.
struct Folds {
    windowed: Replay,
    whole: SessionState,
    cuts: Vec<Cut>,
    frames: Vec<Arc<Frame>>,
    seq: Seq,
    /// A fold that went on from the newest checkpoint.
    resumed: Option<Replay>,
}

impl Folds {
    fn new() -> Self {
        let session = SessionId::from("ses_1");
        let mut windowed = Replay::new(summary(&session));
        windowed.window = Window::new(FEW);
        let whole = SessionState::new(summary(&session));
        let mut folds =
            Self { windowed, whole, cuts: Vec::new(), frames: Vec::new(), seq: Seq(0), resumed: None };
        folds.apply(Event::SessionUpdated { summary: Box::new(summary(&session)) });
        folds
    }

    fn apply(&mut self, event: Event) {
        self.seq = self.seq.next();
        let (seq, session) = (self.seq, SessionId::from("ses_1"));
        let frame = Frame { seq, ts: String::new(), session, cause: None, event };
        self.whole.apply(&frame);
        Cut::fold(&mut self.cuts, &frame.event);
        self.windowed.apply(&frame);
        if frame.event.is_durable() {
            if let Some(resumed) = &mut self.resumed {
                resumed.apply(&frame);
            }
            self.frames.push(Arc::new(frame));
        }
    }

    /// Goes on from a checkpoint, where one can be made.
    fn resume(&mut self) {
        let stored = self.frames.last().unwrap().seq;
        if let Some(fold) = self.windowed.clone().checkpoint(stored) {
            let mut replaying = Replaying::default();
            assert!(replaying.resume(&fold));
            self.resumed = replaying.finish();
        }
    }

    /// What all stored frames come to.
    fn replayed(&self) -> Replay {
        let mut replay = Replay::new(summary(&SessionId::from("ses_1")));
        replay.window = Window::new(FEW);
        self.frames.iter().for_each(|frame| replay.apply(frame));
        replay
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Start => self.put(&item(ItemStatus::Running, "begun")),
            Step::Say(length) => self.put(&item(ItemStatus::Completed, &"x".repeat(*length))),
            Step::Grow(index) => {
                if let Some(open) = self.open(index) {
                    let (item, data) = (open.id.clone(), "more".to_owned());
                    self.apply(Event::ItemDelta { item, n: 0, kind: DeltaKind::Text, data });
                }
            }
            Step::End(index) => {
                if let Some(open) = self.open(index) {
                    self.put(&Item { status: ItemStatus::Completed, ..(*open).clone() });
                }
            }
            Step::Late(index) => {
                let ended: Vec<_> =
                    self.whole.items.iter().filter(|item| item.status.is_terminal()).collect();
                if !ended.is_empty() {
                    let late = Item { status: ItemStatus::Running, ..(***index.get(&ended)).clone() };
                    self.apply(Event::ItemUpdated { item: Arc::new(late) });
                }
            }
            Step::Resume => self.resume(),
            Step::Withdraw(index, rewind) => self.withdraw(index, *rewind),
            Step::Cut(boundary, kept) => self.cut(boundary, kept),
        }
    }

    fn put(&mut self, item: &Item) {
        let item = Arc::new(item.clone());
        match item.status.is_terminal() {
            true => self.apply(Event::ItemCompleted { item }),
            false => self.apply(Event::ItemStarted { item }),
        }
    }

    fn open(&self, index: &Index) -> Option<Arc<Item>> {
        let open: Vec<_> = self.whole.items.iter().filter(|item| !item.status.is_terminal()).collect();
        (!open.is_empty()).then(|| Arc::clone(*index.get(&open[..])))
    }

    fn withdraw(&mut self, index: &Index, rewind: bool) {
        if self.whole.items.is_empty() {
            return;
        }
        let from = index.index(self.whole.items.len());
        let ids = self.whole.items[from..].iter().map(|item| item.id.clone());
        let (turn, generation) = (TurnId::from("trn_1"), self.whole.history_generation + 1);
        if rewind {
            let (dropped, files_restored) = (ids.collect(), Vec::new());
            self.apply(Event::Rewound { generation, to_turn: turn, dropped, files_restored });
        } else {
            let (dropped, reason) = (ids.take(1).collect(), String::new());
            self.apply(Event::TurnRetrying { turn, attempt: 1, max: 2, delay_ms: 0, dropped, reason });
        }
    }

    fn cut(&mut self, boundary: &Index, kept: &Index) {
        if self.whole.items.is_empty() {
            return;
        }
        let id = |index: &Index| index.get(&self.whole.items).id.clone();
        let (boundary, kept) = (id(boundary), vec![id(kept)]);
        let body = ItemBody::Compaction {
            summary: "s".to_owned(),
            replaced: 1,
            before: 2,
            after: 1,
            duration_ms: 0,
        };
        let item = Arc::new(new_item(None, 0, ItemStatus::Completed, body));
        let (summary, generation) = (item.id.clone(), self.whole.history_generation + 1);
        self.apply(Event::ItemCompleted { item });
        self.apply(Event::Compacted { generation, boundary, summary, kept });
    }

    async fn stored(&self) -> MemoryJournal {
        let journal = MemoryJournal::default();
        let epoch = journal.create(SessionId::from("ses_1")).await.unwrap();
        journal.append(epoch, Seq(0), self.frames.clone(), true).await.unwrap();
        journal
    }
}

fn item(status: ItemStatus, text: &str) -> Item {
    new_item(None, 0, status, ItemBody::Assistant { text: text.to_owned() })
}

/// An unfinished item whose text only deltas told: the journal does not have them, the held item does.
fn ids(items: &[Arc<Item>]) -> Vec<(ItemId, ItemStatus)> {
    items.iter().map(|item| (item.id.clone(), item.status)).collect()
}

async fn check(folds: &Folds) {
    let journal = folds.stored().await;
    let view = View::of(&folds.windowed);
    let whole = &folds.whole.items;
    assert_eq!(view.len(), whole.len());
    assert_eq!(view.range(&journal, 0..view.len()).await.unwrap(), *whole);
    for (at, item) in whole.iter().enumerate() {
        assert_eq!(view.position(&item.id), Some(at));
    }
    let keys = whole.iter().map(|item| ItemKey::of(&item.id));
    let sees = Cut::visible(&folds.cuts, keys).into_iter().map(|at| Arc::clone(&whole[at]));
    let sees: Vec<_> = sees.collect();
    assert_eq!(ids(&view.visible(&journal).await.unwrap()), ids(&sees));

    let window = &folds.windowed.window;
    let held = &folds.windowed.state.items;
    let window_items = &held[window.early()..];
    assert!(window_items.len() <= FEW.items / 4 * 5, "{} items", window_items.len());
    assert_eq!(window.seqs.len(), held.len(), "nothing is remembered of what left");
    let weighs: usize = held.iter().map(|item| weight(item)).sum();
    assert!(window.bytes >= weighs, "{} of {weighs}", window.bytes);
    let open = |items: &[Arc<Item>]| items.iter().filter(|item| !item.status.is_terminal()).count();
    assert_eq!(open(held), open(whole), "what is unfinished is held");
    if window.holds_all() || Cut::is_within(&folds.cuts, window_items) {
        let keys = window_items.iter().map(|item| ItemKey::of(&item.id));
        let alone = Cut::visible(&folds.cuts, keys).into_iter().map(|at| window_items[at].clone());
        assert_eq!(ids(&alone.collect::<Vec<_>>()), ids(&sees), "the window alone says what the model sees");
    }
    if let Some(resumed) = &folds.resumed {
        let replayed = folds.replayed();
        let (one, other) = (View::of(resumed), View::of(&replayed));
        let transcript = one.range(&journal, 0..one.len()).await.unwrap();
        assert_eq!(transcript, other.range(&journal, 0..other.len()).await.unwrap());
        assert_eq!(beside_items(resumed), beside_items(&replayed), "a checkpoint and the rest are all");
    }
}

/// All of a fold but its items: the window may begin elsewhere, since deltas weigh something too.
fn beside_items(replay: &Replay) -> Value {
    let mut replay = replay.clone();
    replay.state.items.clear();
    replay.window = Window::new(FEW);
    serde_json::to_value(&replay).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_window_and_its_journal_are_the_whole_transcript(steps in prop::collection::vec(step(), 0..120)) {
        let mut folds = Folds::new();
        steps.iter().for_each(|step| folds.step(step));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(check(&folds));
    }
}

#[test]
fn an_item_weighs_less_than_its_json_and_grows_with_all_it_holds() {
    let light = item(ItemStatus::Completed, "");
    let json = serde_json::to_vec(&light).unwrap().len();
    assert!(weight(&light) <= json, "{} of {json}", weight(&light));
    let view = |text: String| serde_json::json!({ "kind": "markdown", "text": text });
    let output = |text: String| serde_json::json!({ "parts": [], "display": view(text) });
    let call = |input: Value, output: Value| {
        let body = serde_json::json!({ "kind": "toolCall", "callId": "c", "name": "n", "input": input, "output": output });
        let body: ItemBody = serde_json::from_value(body).unwrap();
        new_item(None, 0, ItemStatus::Completed, body)
    };
    let long = "x".repeat(10_000);
    let empty = || output(String::new());
    for heavy in [call(serde_json::json!({ "a": [long] }), empty()), call(Value::Null, output(long.clone()))]
    {
        let json = serde_json::to_vec(&heavy).unwrap().len();
        assert!((10_000..=json).contains(&weight(&heavy)), "{} of {json}", weight(&heavy));
    }
}
