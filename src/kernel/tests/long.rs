//! Sessions whose transcript is longer than what is held of it.

use std::sync::Arc;

use bingo_plugin_sdk::event::{ErrorCode, Event, Frame, TurnOrigin, TurnStatus, Usage};
use bingo_plugin_sdk::ids::{ItemId, Seq, SessionId, TurnId};
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody, ItemStatus, Origin};
use bingo_plugin_sdk::provider::ModelRequest;
use bingo_plugin_sdk::rpc::HistoryPage;

use crate::kernel::response::new_item;
use crate::kernel::testing::{Host, MemoryJournal, Setup, seen, settle, summary};
use crate::ports::Journal;
use crate::settings::SyncMode;

pub(super) const ID: &str = "ses_long";
/// What the model reads before words of a person.
const PERSON: &str = "[from the person you work for]\n";

/// The frames of a session in which a person said `0`, `1` and so on.
pub(super) struct Story {
    frames: Vec<Arc<Frame>>,
    items: Vec<Arc<Item>>,
}

impl Story {
    pub(super) fn of(lines: usize) -> Self {
        let mut story = Self { frames: Vec::new(), items: Vec::new() };
        story.tell(Event::SessionUpdated { summary: Box::new(summary(&SessionId::from(ID))) });
        (0..lines).for_each(|line| story.say(&line.to_string()));
        story
    }

    fn tell(&mut self, event: Event) {
        let (seq, session) = (Seq(self.frames.len() as u64 + 1), SessionId::from(ID));
        let ts = "2026-01-01T00:00:00Z".to_owned();
        self.frames.push(Arc::new(Frame { seq, ts, session, cause: None, event }));
    }

    fn say(&mut self, text: &str) {
        self.put(None, user(text));
    }

    pub(super) fn say_in(&mut self, turn: &str, text: &str) {
        self.put(Some(TurnId::from(turn)), user(text));
    }

    fn put(&mut self, turn: Option<TurnId>, body: ItemBody) -> ItemId {
        let item = Arc::new(new_item(turn, 0, ItemStatus::Completed, body));
        self.items.push(Arc::clone(&item));
        self.tell(Event::ItemCompleted { item: Arc::clone(&item) });
        item.id.clone()
    }

    pub(super) fn cut(&mut self, boundary: usize, kept: usize, generation: u64) {
        let [boundary, kept] = [boundary, kept].map(|at| self.items[at].id.clone());
        let summary = "in short".to_owned();
        let summary = self
            .put(None, ItemBody::Compaction { summary, replaced: 0, before: 2, after: 1, duration_ms: 0 });
        self.tell(Event::Compacted { generation, boundary, summary, kept: vec![kept] });
    }

    fn rewind(&mut self, from: usize, generation: u64) {
        let dropped = self.items.split_off(from).iter().map(|item| item.id.clone()).collect();
        let (to_turn, files_restored) = (TurnId::from("trn_1"), Vec::new());
        self.tell(Event::Rewound { generation, to_turn, dropped, files_restored });
    }

    pub(super) async fn stored(&self) -> Host {
        let journal = MemoryJournal::default();
        let epoch = journal.create(SessionId::from(ID)).await.unwrap();
        journal.append(epoch, Seq(0), self.frames.clone(), true).await.unwrap();
        let host = Host::over(journal, Setup { sync: SyncMode::Off, ..Setup::default() });
        host.reopen(&SessionId::from(ID)).await;
        host
    }

    pub(super) fn ids(&self) -> Vec<ItemId> {
        self.items.iter().map(|item| item.id.clone()).collect()
    }
}

fn user(text: &str) -> ItemBody {
    ItemBody::User { parts: vec![ContentPart::text(text)], origin: Origin::surface("t") }
}

/// Reads the whole history in pages.
pub(super) async fn paged(host: &Host, limit: usize) -> Vec<ItemId> {
    let (mut page, mut ids) = (HistoryPage { limit, ..HistoryPage::default() }, Vec::new());
    loop {
        let chunk = host.kernel.history(&SessionId::from(ID), page).await.unwrap();
        assert!(limit == 0 || chunk.items.len() == limit || chunk.next.is_none());
        ids.splice(0..0, chunk.items.into_iter().map(|item| item.id));
        let Some(next) = chunk.next else { return ids };
        page = HistoryPage { before: Some(next), limit, generation: Some(chunk.generation) };
    }
}

async fn held(host: &Host) -> usize {
    let view = host.kernel.parts.session(&SessionId::from(ID)).unwrap().view().await.unwrap();
    view.held()
}

pub(super) fn said(request: &ModelRequest) -> Vec<String> {
    let parts = request.messages.iter().flat_map(|message| &message.parts);
    let texts = parts.filter_map(|part| match part {
        ContentPart::Text { text } => Some(text.trim_start_matches(PERSON).to_owned()),
        _ => None,
    });
    texts.collect()
}

/// Asserts that two long lists are the same, and shows where they begin not to be.
#[track_caller]
pub(super) fn assert_same<T: PartialEq + std::fmt::Debug>(found: &[T], expected: &[T], what: &str) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!((differs, found.len()), (None, expected.len()), "{what}: {:?}", differs.map(|at| &found[at]));
}

/// Submits a line and returns what the model was shown.
pub(super) async fn asked(host: &Host, intent: &str, text: &str) -> Vec<String> {
    host.model.answer_always();
    host.submit(&SessionId::from(ID), intent, text).await;
    settle().await;
    said(&host.model.asked().unwrap())
}

/// Rule 3.2.19.
#[tokio::test(start_paused = true)]
async fn a_long_history_is_paged_once_and_in_order_and_only_a_window_of_it_is_held() {
    let story = Story::of(7001);
    let host = story.stored().await;
    let shown = paged(&host, 500).await;
    assert!((2000..=2500).contains(&held(&host).await), "{} held", held(&host).await);
    assert_eq!(shown.len(), story.items.len(), "no notice or other item stands there");
    assert_same(&shown, &story.ids(), "all");
    for limit in [0, 333, 2000, 7000, 7001, 9000] {
        assert_same(&paged(&host, limit).await, &shown, &format!("in pages of {limit}"));
    }
    let unknown = HistoryPage { before: Some(ItemId::from("x")), limit: 1, generation: None };
    let chunk = host.kernel.history(&SessionId::from(ID), unknown).await.unwrap();
    assert_eq!(Some(&chunk.items[0].id), shown.last());
}

#[tokio::test(start_paused = true)]
async fn a_live_session_lets_go_of_its_oldest_items() {
    let host = Story::of(0).stored().await;
    host.model.answer_always();
    for line in 0..1300 {
        host.submit(&SessionId::from(ID), &format!("req_{line}"), &line.to_string()).await;
        settle().await;
    }
    let shown = paged(&host, 500).await;
    assert_eq!(shown.len(), 2600, "a line and an answer each");
    assert!((2000..=2500).contains(&held(&host).await));
    let before = host.journal.picks();
    let words = asked(&host, "req", "and?").await;
    assert!(host.journal.picks() > before, "the actor let go of them too: the turn read the oldest ones");
    let expected: Vec<String> =
        (0..1300).flat_map(|line| [line.to_string(), "word".to_owned()]).chain(["and?".to_owned()]).collect();
    assert_same(&words, &expected, "the model is shown all of it");
}

#[tokio::test(start_paused = true)]
async fn the_model_sees_what_a_cut_left_wherever_it_stands() {
    let lines = |range: std::ops::Range<usize>| range.map(|line| line.to_string());
    let shown = "[Summary of the conversation so far]\nin short".to_owned();
    // Boundary and kept item: both held, the kept one too old, both too old.
    for (boundary, kept) in [(4900, 4800), (4900, 3), (1000, 3)] {
        let mut story = Story::of(5000);
        story.cut(boundary, kept, 1);
        let host = story.stored().await;
        let mut expected = vec![kept.to_string(), shown.clone()];
        expected.extend(lines(boundary..5000).chain(["and?".to_owned()]));
        assert_same(&asked(&host, "req", "and?").await, &expected, &format!("cut before {boundary}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_on_from_its_checkpoint_as_from_all_its_frames() {
    let (id, long) = (SessionId::from(ID), "x".repeat(2000));
    let mut story = Story::of(3000);
    story.cut(2900, 3, 1);
    (0..2000).for_each(|line| story.say(&format!("{line} {long}")));
    let host = story.stored().await;
    settle().await;
    let saved = host.journal.saved(&id);
    assert!(saved > story.frames.last().map(|frame| frame.seq), "{saved:?}: so much is not replayed twice");
    let shown = paged(&host, 0).await;
    let before = host.reopen(&id).await.snapshot;
    let host = Host::over(host.journal.cut_power(), Setup { sync: SyncMode::Off, ..Setup::default() });
    let after = host.reopen(&id).await.snapshot;
    assert_same(&paged(&host, 0).await, &shown, "all of it");
    assert_eq!((&after.items, &after.extensions), (&before.items, &before.extensions));
    assert_eq!(after.history_generation, 1);
    let words = asked(&host, "req", "and?").await;
    let first = ["3", "[Summary of the conversation so far]\nin short", "2900"];
    assert_eq!((&words[..3], words.len()), (&first.map(str::to_owned)[..], 2 + 100 + 2000 + 1));
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_of_frames_that_were_lost_is_void() {
    let id = SessionId::from(ID);
    let mut story = Story::of(0);
    (0..3000).for_each(|line| story.say(&format!("{line} {}", "x".repeat(2000))));
    let host = story.stored().await;
    settle().await;
    let saved = host.journal.saved(&id).unwrap();
    host.journal.tear(&id, |frame| frame.seq >= saved);
    let host = Host::over(host.journal.cut_power(), Setup { sync: SyncMode::Off, ..Setup::default() });
    host.reopen(&id).await;
    assert_same(&paged(&host, 0).await, &story.ids(), "all of it");
}

/// Rule 3.2.19. Mends 9.1.5.
#[tokio::test(start_paused = true)]
async fn a_page_of_a_history_that_changed_is_refused() {
    let mut story = Story::of(5000);
    story.cut(4900, 3, 1);
    story.rewind(4000, 2);
    story.say("again");
    let host = story.stored().await;
    assert_same(&paged(&host, 400).await, &story.ids(), "without what was withdrawn");
    let id = SessionId::from(ID);
    let page = |generation| HistoryPage { before: Some(story.items[2000].id.clone()), limit: 2, generation };
    for generation in [None, Some(2)] {
        let chunk = host.kernel.history(&id, page(generation)).await.unwrap();
        assert_eq!((chunk.generation, chunk.items[1].id == story.items[1999].id), (2, true));
    }
    for stale in [0, 1, 3] {
        let refused = host.kernel.history(&id, page(Some(stale))).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::StaleGeneration, "{refused:?}");
        let words = format!("from generation {stale}, now it has 2");
        assert!(refused.message.contains(&words), "{}", refused.message);
    }
}

/// Mends 9.1.8.
#[tokio::test(start_paused = true)]
async fn an_unfinished_item_is_held_and_ended_however_old_it_is() {
    let mut story = Story::of(1);
    let turn = TurnId::from("trn_1");
    story.tell(Event::TurnStarted { turn: turn.clone(), inputs: Vec::new(), origin: TurnOrigin::Submit });
    let body = ItemBody::Assistant { text: "half".to_owned() };
    let open = Arc::new(new_item(Some(turn.clone()), 0, ItemStatus::Running, body));
    story.tell(Event::ItemStarted { item: Arc::clone(&open) });
    story.items.push(Arc::clone(&open));
    (0..5000).for_each(|line| story.say(&line.to_string()));
    let host = story.stored().await;
    assert_same(&paged(&host, 700).await, &story.ids(), "in its old place");
    let mut attachment = host.reopen(&SessionId::from(ID)).await;
    settle().await;
    drop(seen(&mut attachment).await);
    let frames = host.journal.frames(&SessionId::from(ID));
    let ended = frames.iter().filter_map(|frame| match &frame.event {
        Event::ItemCompleted { item } if item.id == open.id => Some(item.status),
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [ItemStatus::Failed]);
    let lost = |frame: &Frame| matches!(&frame.event, Event::TurnCompleted { status: TurnStatus::Failed { .. }, usage, .. } if *usage == Usage::default());
    assert!(frames.iter().any(lost));
    let chunk = HistoryPage { before: Some(story.items[2].id.clone()), limit: 1, generation: None };
    let chunk = host.kernel.history(&SessionId::from(ID), chunk).await.unwrap();
    assert_eq!((&chunk.items[0].id, chunk.items[0].status), (&open.id, ItemStatus::Failed));
}
