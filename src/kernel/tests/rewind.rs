//! Going back to before a turn: what goes, what stays, and what the model sees afterwards.

use bingo_plugin_sdk::event::{ErrorCode, Event, Frame, IntentOutcome};
use bingo_plugin_sdk::ids::{IntentId, ItemId, SessionId, TurnId};
use bingo_plugin_sdk::item::{Item, ItemBody, Level};
use bingo_plugin_sdk::rpc::{Delivery, HistoryPage};
use bingo_plugin_sdk::session::Driver;
use bingo_plugin_sdk::view::View;
use serde_json::Value;

use super::commands::{command, refusal, view};
use super::long::{ID, Story, asked, assert_same, paged};
use crate::kernel::testing::{Host, Setup, seen, settle, words};
use crate::kernel::{Attachment, Kernel};
use crate::ports::Notice;
use crate::settings::SyncMode;

fn turns_of(frames: &[Frame]) -> Vec<TurnId> {
    let started = frames.iter().filter_map(|frame| match &frame.event {
        Event::TurnStarted { turn, .. } => Some(turn.clone()),
        _ => None,
    });
    started.collect()
}

fn rows(view: View) -> Vec<Vec<String>> {
    let View::Table { headers, rows } = view else { panic!("{view:?} is no table") };
    assert_eq!(headers, ["turn", "first words", "when"]);
    rows
}

async fn items(kernel: &Kernel, session: &SessionId) -> Vec<Item> {
    kernel.history(session, HistoryPage::default()).await.unwrap().items
}

fn ids(items: &[Item]) -> Vec<ItemId> {
    items.iter().map(|item| item.id.clone()).collect()
}

/// Lets the host remark something, which is of no turn.
async fn notice(host: &Host, session: &SessionId) {
    let notice = Notice { level: Level::Info, code: "X", text: "by the way".to_owned() };
    host.kernel.parts.session(session).unwrap().try_notice(notice);
    settle().await;
}

/// A session in which `one`, `two` and `three` were answered, and the turns.
async fn talked(host: &Host) -> (Attachment, Vec<TurnId>) {
    let mut attachment = host.create().await;
    host.model.answer_always();
    for text in ["one", "two", "three"] {
        host.submit(&attachment.session, text, text).await;
        settle().await;
    }
    let turns = turns_of(&seen(&mut attachment).await);
    assert_eq!(turns.len(), 3);
    (attachment, turns)
}

/// Rule 3.6.48, 1.3.25. Mends 9.1.5.
#[tokio::test(start_paused = true)]
async fn going_back_drops_the_turn_and_all_behind_it() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    let (mut at, turns) = talked(&host).await;
    // What is of no turn goes too.
    notice(&host, &at.session).await;
    seen(&mut at).await;
    let before = items(&host.kernel, &at.session).await;
    assert_eq!(before.len(), 7);
    let (frames, outcome) = command(&host, &mut at, "back", &format!("/rewind {}", turns[1])).await;
    let IntentOutcome::Applied { result } = &outcome else { panic!("{outcome:?}") };
    let message = format!("went back to before turn {}: 5 items were dropped", turns[1]);
    assert_eq!(result["message"], Value::String(message));
    let told: Vec<&Event> = frames
        .iter()
        .map(|frame| &frame.event)
        .filter(|event| matches!(event, Event::ItemCompleted { .. } | Event::Rewound { .. }))
        .collect();
    let [Event::ItemCompleted { item }, Event::Rewound { generation, to_turn, dropped, files_restored }] =
        told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(item.body, ItemBody::Rewind { to_turn: turns[1].clone(), dropped: 5 });
    assert_eq!((*generation, to_turn, dropped), (1, &turns[1], &ids(&before[2..])));
    assert!(files_restored.is_empty());
    let after = items(&host.kernel, &at.session).await;
    assert_eq!(ids(&after), [ids(&before[..2]), vec![item.id.clone()]].concat());
    let now = host.reopen(&at.session).await.snapshot;
    assert_eq!((now.history_generation, now.items.len()), (1, 3));
    let (_, outcome) = command(&host, &mut at, "again", &format!("/rewind {}", turns[2])).await;
    assert_eq!(refusal(&outcome), ErrorCode::InvalidInput, "it is gone");
    let (frames, _) = command(&host, &mut at, "first", &format!("/rewind {}", turns[0])).await;
    let generations = frames.iter().filter_map(|frame| match frame.event {
        Event::Rewound { generation, .. } => Some(generation),
        _ => None,
    });
    assert_eq!(generations.collect::<Vec<_>>(), [2]);
    assert_eq!(items(&host.kernel, &at.session).await.len(), 1, "the older mark went too");
}

/// Rule 3.6.48.
#[tokio::test(start_paused = true)]
async fn without_a_turn_the_turns_are_shown() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    let mut at = host.create().await;
    let (frames, outcome) = command(&host, &mut at, "none", "/rewind").await;
    assert!(rows(view(outcome)).is_empty());
    assert!(!frames.iter().any(|frame| matches!(frame.event, Event::ItemCompleted { .. })));
    let (mut at, turns) = talked(&host).await;
    host.submit(&at.session, "long", &format!("many \n {}", "words ".repeat(20))).await;
    settle().await;
    let turns = [turns, turns_of(&seen(&mut at).await)].concat();
    let started: Vec<String> = items(&host.kernel, &at.session)
        .await
        .into_iter()
        .filter(|item| matches!(item.body, ItemBody::User { .. }))
        .map(|item| item.started_at)
        .collect();
    let (_, outcome) = command(&host, &mut at, "list", "/rewind ").await;
    let long: String = format!("many {}", "words ".repeat(20)).chars().take(60).collect();
    let said = ["one".to_owned(), "two".to_owned(), "three".to_owned(), format!("{long}…")];
    let expected =
        turns.iter().zip(said).zip(started).map(|((turn, said), when)| vec![turn.to_string(), said, when]);
    assert_eq!(rows(view(outcome)), expected.collect::<Vec<_>>());
}

/// Rule 3.6.48.
#[tokio::test(start_paused = true)]
async fn going_back_is_refused_while_a_turn_runs_and_for_a_turn_that_is_not_there() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    let (mut at, turns) = talked(&host).await;
    host.model.hold_back();
    host.submit(&at.session, "four", "four").await;
    settle().await;
    for line in [format!("/rewind {}", turns[0]), "/rewind".to_owned()] {
        let (_, outcome) = command(&host, &mut at, &line, &line).await;
        assert_eq!(refusal(&outcome), ErrorCode::NotReady, "{line}");
    }
    host.model.answer_always();
    settle().await;
    let (_, outcome) = command(&host, &mut at, "unknown", "/rewind trn_none").await;
    assert_eq!(refusal(&outcome), ErrorCode::InvalidInput);
    let now = host.reopen(&at.session).await.snapshot;
    assert_eq!((now.history_generation, now.items.len()), (0, 8));
}

/// Rule 3.6.48.
#[tokio::test(start_paused = true)]
async fn a_session_that_was_stored_goes_back_and_on_from_there() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    let (mut at, turns) = talked(&host).await;
    command(&host, &mut at, "back", &format!("/rewind {}", turns[2])).await;
    let host = host.crash();
    let mut at = host.reopen(&at.session).await;
    assert_eq!(at.snapshot.history_generation, 1);
    let (_, outcome) = command(&host, &mut at, "gone", &format!("/rewind {}", turns[2])).await;
    assert_eq!(refusal(&outcome), ErrorCode::InvalidInput);
    command(&host, &mut at, "more", &format!("/rewind {}", turns[1])).await;
    host.model.answer_always();
    host.submit(&at.session, "five", "five").await;
    settle().await;
    assert_eq!(super::long::said(&host.model.asked().unwrap()), ["one", "word", "five"]);
    let seen_before = items(&host.kernel, &at.session).await;
    let host = host.crash();
    assert_eq!(host.reopen(&at.session).await.snapshot.history_generation, 2);
    assert_eq!(items(&host.kernel, &at.session).await, seen_before);
}

/// Rule 3.6.48, 3.2.19, 4.5.47.
#[tokio::test(start_paused = true)]
async fn going_back_over_a_cut_brings_back_what_it_hid() {
    let shown = "[Summary of the conversation so far]\nin short".to_owned();
    let line = |range: std::ops::Range<usize>| range.map(|line| line.to_string()).collect::<Vec<_>>();
    // A cut that took everything before 4900 but item 3; the summary stands behind 5000 lines.
    for (to, expected) in [
        (5500, [vec!["3".to_owned(), shown.clone()], line(4900..5500)].concat()),
        (5000, [vec!["3".to_owned(), shown.clone()], line(4900..5000)].concat()),
        (4999, line(0..4999)),
        (4950, line(0..4950)),
        (4000, line(0..4000)),
        (2, line(0..2)),
    ] {
        let mut story = Story::of(0);
        (0..5000).for_each(|line| story.say_in(&format!("trn_{line}"), &line.to_string()));
        story.cut(4900, 3, 1);
        (5000..6000).for_each(|line| story.say_in(&format!("trn_{line}"), &line.to_string()));
        let host = story.stored().await;
        let mut at = host.reopen(&SessionId::from(ID)).await;
        let (_, outcome) = command(&host, &mut at, "back", &format!("/rewind trn_{to}")).await;
        assert!(matches!(outcome, IntentOutcome::Applied { .. }), "{outcome:?}");
        // The item of the cut stands between lines 4999 and 5000.
        let kept = if to >= 5000 { to + 1 } else { to };
        let history = paged(&host, 700).await;
        assert_same(&history[..kept], &story.ids()[..kept], &format!("to {to}"));
        assert_eq!(history.len(), kept + 1, "and the mark");
        let expected = [expected, vec!["and?".to_owned()]].concat();
        assert_same(&asked(&host, "req", "and?").await, &expected, &format!("to {to}"));
        // Another run sees the same.
        host.kernel.shutdown().await;
        let host = Host::over(host.journal, Setup { sync: SyncMode::Off, ..Setup::default() });
        host.reopen(&SessionId::from(ID)).await;
        let expected = [expected, vec!["word".to_owned(), "still?".to_owned()]].concat();
        assert_same(&asked(&host, "more", "still?").await, &expected, &format!("to {to}, later"));
    }
}

/// Rule 3.6.48.
#[tokio::test(start_paused = true)]
async fn many_turns_are_listed_from_the_newest_and_older_ones_can_be_gone_back_to() {
    let mut story = Story::of(0);
    (0..3000).for_each(|line| story.say_in(&format!("trn_{line}"), &line.to_string()));
    let host = story.stored().await;
    let mut at = host.reopen(&SessionId::from(ID)).await;
    let (_, outcome) = command(&host, &mut at, "list", "/rewind").await;
    let View::Stack { mut children } = view(outcome) else { panic!("there are more") };
    assert!(matches!(&children[1], View::Text { text } if text.contains("newest 500")), "{children:?}");
    let rows = rows(children.remove(0));
    let ends = (rows.len(), rows[0][0].as_str(), rows[499][0].as_str());
    assert_eq!(ends, (500, "trn_2500", "trn_2999"));
    let (_, outcome) = command(&host, &mut at, "back", "/rewind trn_7").await;
    assert!(matches!(outcome, IntentOutcome::Applied { .. }), "{outcome:?}");
    assert_eq!(paged(&host, 0).await.len(), 8);
}

/// Rule 3.6.48.
#[tokio::test(start_paused = true)]
async fn what_is_recorded_while_older_turns_are_read_goes_too() {
    let mut story = Story::of(0);
    (0..3000).for_each(|line| story.say_in(&format!("trn_{line}"), &line.to_string()));
    let host = story.stored().await;
    let at = host.reopen(&SessionId::from(ID)).await;
    host.journal.hold_reads();
    host.submit(&at.session, "back", "/rewind trn_7").await;
    settle().await;
    notice(&host, &at.session).await;
    let still = host.reopen(&at.session).await.snapshot;
    assert_eq!((still.history_generation, still.items.len()), (0, 500), "it is being read");
    host.journal.let_reads();
    settle().await;
    let left = items(&host.kernel, &at.session).await;
    assert_eq!(left.len(), 8);
    assert!(matches!(left[7].body, ItemBody::Rewind { dropped: 2994, .. }), "{:?}", left[7]);
}

/// Rule 3.6.48, 3.6.46.
#[tokio::test(start_paused = true)]
async fn a_log_has_no_turns_to_go_back_to() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    let mut at = host.create_as(Driver::Log).await;
    let intent = IntentId::from("said");
    host.kernel.deliver(&at.session, intent, words("noted"), Delivery::Wake).await.unwrap();
    let (_, outcome) = command(&host, &mut at, "list", "/rewind").await;
    assert!(rows(view(outcome)).is_empty());
    let (_, outcome) = command(&host, &mut at, "back", "/rewind trn_1").await;
    assert_eq!(refusal(&outcome), ErrorCode::InvalidInput);
}
