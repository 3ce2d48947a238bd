//! Tests of the reducer: each rule by itself here, what holds for any sequence of frames in `properties`.

mod properties;
mod samples;

use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::event::{CancelReason, CloseReason, ErrorCode, IntentOutcome, KernelError};
use crate::ids::{IntentId, InteractionId};
use crate::interaction::{Answer, ResolvedBy};
use crate::item::{ItemStatus, Level, Origin};
use samples::*;

/// A state and the seq it stands at, for frames told one after the other.
struct Story(SessionState);

impl Story {
    fn new() -> Self {
        Self(SessionState::new(summary("start")))
    }

    fn then(mut self, event: Event) -> Self {
        self.0.apply(&frame(self.0.seq.0 + 1, event));
        self
    }

    /// The items as `id:text`, unfinished ones with a trailing `…`.
    fn items(&self) -> Vec<String> {
        let line = |item: &Arc<Item>| {
            let text = match &item.body {
                ItemBody::Assistant { text } | ItemBody::Reasoning { text, .. } => text.clone(),
                ItemBody::ToolCall { progress, .. } => format!("{progress:?}"),
                _ => String::new(),
            };
            format!("{}:{text}{}", item.id, if item.status.is_terminal() { "" } else { "…" })
        };
        self.0.items.iter().map(line).collect()
    }
}

/// Rule 2.2.
#[test]
fn a_new_state_is_empty() {
    let state = SessionState::new(summary("start"));
    assert_eq!(
        serde_json::to_value(&state).unwrap(),
        json!({
            "seq": 0,
            "summary": summary("start"),
            "config": { "kernel": null, "plugins": {} },
            "historyGeneration": 0,
            "items": [],
            "queue": [],
            "interactions": [],
            "unread": false,
            "closed": false,
        })
    );
}

/// Rule 2.3.
#[test]
fn lagged_changes_nothing_not_even_the_seq() {
    let mut state = Story::new().then(answer("a")).0;
    let before = state.clone();
    state.apply(&frame(9, Event::Lagged { from: Seq(2), to: Seq(8) }));
    assert_eq!(state, before);
}

/// Rule 2.4.
#[test]
fn a_stale_frame_is_ignored_and_a_gap_is_not() {
    let mut state = Story::new().0;
    state.apply(&frame(1 << 32, answer("a")));
    let before = state.clone();
    for stale in [0, 1, (1 << 32) - 1, 1 << 32] {
        state.apply(&frame(stale, answer("b")));
        assert_eq!(state, before, "{stale}");
    }
    state.apply(&frame((1 << 32) + 77, answer("b")));
    assert_eq!((state.seq.0, state.items.len()), ((1 << 32) + 77, 2));
}

/// Rule 2.4.
#[test]
fn a_state_without_a_seq_takes_any_frame() {
    let mut state = Story::new().0;
    state.apply(&frame(0, answer("a")));
    assert_eq!((state.seq, state.items.len()), (Seq(0), 1));
}

/// Rule 1.2.12, 2.5.
#[test]
fn messages_are_answers_and_what_people_say_once_completed() {
    let user = |id: &str, surface: &str| completed(id, samples::user(surface));
    let story = Story::new()
        .then(started("a", assistant("")))
        .then(Event::ItemUpdated { item: Arc::new(item("a", ItemStatus::Running, assistant("x"))) });
    assert_eq!(story.0.summary.messages, None, "never counted is not zero");
    let story = story
        .then(completed("a", assistant("x")))
        .then(user("b", "print"))
        .then(user("c", "contributor:clock"))
        .then(user("d", "hook:clock"))
        .then(completed("e", tool(None)))
        .then(Event::ItemCompleted { item: Arc::new(item("f", ItemStatus::Interrupted, assistant(""))) });
    assert_eq!(story.0.summary.messages, Some(4));

    let counted = SessionSummary { messages: Some(u64::MAX), ..summary("full") };
    let full = story.then(Event::SessionUpdated { summary: Box::new(counted) }).then(answer("g"));
    assert_eq!(full.0.summary.messages, Some(u64::MAX));
}

/// Rule 2.6.
#[test]
fn a_summary_is_replaced_whole() {
    let story = Story::new().then(answer("a")).then(updated("next"));
    assert_eq!(story.0.summary, summary("next"));
}

/// Rule 2.6.
#[test]
fn a_close_ends_the_turn_and_the_questions_and_keeps_the_rest() {
    let story = Story::new()
        .then(answer("a"))
        .then(turn_started("t"))
        .then(queue("q"))
        .then(asked("i"))
        .then(Event::SessionClosed { reason: CloseReason::Shutdown });
    assert!(story.0.closed && story.0.turn.is_none() && story.0.interactions.is_empty());
    assert_eq!((story.0.items.len(), story.0.queue.len()), (1, 1));
}

/// Rule 2.6.
#[test]
fn a_turn_lives_from_start_to_completion() {
    let story = Story::new().then(turn_started("t"));
    let fresh = LiveTurn {
        id: TurnId::from("t"),
        started_at: frame(1, turn_started("t")).ts,
        origin: TurnOrigin::Submit,
        round: 0,
        usage: Usage::default(),
        retrying: None,
    };
    assert_eq!(story.0.turn.as_ref(), Some(&fresh));
    assert!(!story.0.summary.busy, "only the kernel stamps it");

    let story = story.then(retrying("t", &[]));
    assert_eq!(story.0.turn.as_ref().unwrap().retrying, Some(Retry { attempt: 1, max: 10 }));
    let story = story.then(used("t", 3)).then(used("t", 4));
    let turn = story.0.turn.as_ref().unwrap();
    assert_eq!((turn.round, turn.usage, turn.retrying), (2, usage(7), None));
    assert_eq!(story.0.summary.usage, usage(7));
    assert_eq!(story.0.context.unwrap().used, 4);

    let story = story.then(turn_completed("t", TurnStatus::Completed));
    assert!(story.0.turn.is_none() && story.0.unread);
    assert_eq!(story.0.last_turn, Some(TurnStatus::Completed), "the bare status");
    assert_eq!(story.0.summary.usage, usage(7), "the total of the turn is not added again");
}

#[test]
fn turn_events_without_a_turn_touch_only_what_outlives_it() {
    let error = KernelError::new(ErrorCode::TurnLost, "lost");
    let story = Story::new()
        .then(answer("a"))
        .then(retrying("t", &["a"]))
        .then(used("t", 2))
        .then(turn_completed("t", TurnStatus::Failed { error: error.clone() }));
    assert!(story.0.turn.is_none() && story.0.items.is_empty());
    assert_eq!((story.0.summary.usage, story.0.context.unwrap().used), (usage(2), 2));
    assert_eq!(story.0.last_turn, Some(TurnStatus::Failed { error }));
}

#[test]
fn usage_stays_at_the_highest_number() {
    let story = Story::new().then(used("t", u64::MAX)).then(used("t", 1));
    assert_eq!(story.0.summary.usage, usage(u64::MAX));
}

/// Rule 2.6.
#[test]
fn an_item_is_replaced_in_place() {
    let story = Story::new()
        .then(started("a", assistant("1")))
        .then(answer("b"))
        .then(Event::ItemUpdated { item: Arc::new(item("a", ItemStatus::Running, assistant("2"))) });
    assert_eq!(story.items(), ["a:2…", "b:b"]);
    let story = story.then(completed("a", assistant("3")));
    assert_eq!(story.items(), ["a:3", "b:b"]);
}

/// Mends 9.1.24.
#[test]
fn what_ended_is_never_unfinished_again() {
    let story = Story::new()
        .then(completed("a", assistant("end")))
        .then(started("a", assistant("late")))
        .then(Event::ItemUpdated { item: Arc::new(item("a", ItemStatus::Running, assistant("later"))) })
        .then(delta("a", DeltaKind::Text, "latest"));
    assert_eq!(story.items(), ["a:end"]);
    assert_eq!(story.0.seq, Seq(4), "the frames count all the same");
    assert_eq!(story.then(completed("a", assistant("restated"))).items(), ["a:restated"]);
}

/// Rule 2.6.
#[test]
fn a_delta_grows_only_what_it_fits() {
    let story = Story::new()
        .then(started("a", assistant("x")))
        .then(started("r", reasoning("")))
        .then(started("t", tool(None)))
        .then(delta("a", DeltaKind::Text, "y"))
        .then(delta("a", DeltaKind::Text, "z"))
        .then(delta("r", DeltaKind::Reasoning, "hm"))
        .then(delta("t", DeltaKind::Tail, "10 %"))
        .then(delta("t", DeltaKind::Tail, "20 %"));
    let grown = ["a:xyz…", "r:hm…", "t:Some(\"20 %\")…"];
    assert_eq!(story.items(), grown);
    let story = story
        .then(delta("a", DeltaKind::Reasoning, "no"))
        .then(delta("r", DeltaKind::Text, "no"))
        .then(delta("t", DeltaKind::Text, "no"))
        .then(delta("a", DeltaKind::Tail, "no"))
        .then(delta("unknown", DeltaKind::Text, "no"));
    assert_eq!(story.items(), grown);
}

#[test]
fn a_delta_leaves_the_frame_that_brought_the_item_as_it_was() {
    let first = started("a", assistant("x"));
    let story = Story::new().then(first.clone()).then(delta("a", DeltaKind::Text, "y"));
    assert_eq!(story.items(), ["a:xy…"]);
    assert_eq!(first, started("a", assistant("x")));
}

/// Rule 2.6.
#[test]
fn withdrawn_items_are_gone() {
    let story = Story::new()
        .then(answer("a"))
        .then(turn_started("t"))
        .then(answer("b"))
        .then(retrying("t", &["b", "unknown"]));
    assert_eq!(story.items(), ["a:a"]);
    let dropped = vec![ItemId::from("a")];
    let rewound =
        Event::Rewound { generation: 3, to_turn: TurnId::from("t"), dropped, files_restored: vec![] };
    let story = story.then(rewound);
    assert_eq!((story.items().len(), story.0.history_generation), (0, 3));
}

/// Rule 2.6.
#[test]
fn a_compaction_keeps_the_transcript() {
    let compacted = Event::Compacted {
        generation: 2,
        boundary: ItemId::from("a"),
        summary: ItemId::from("b"),
        kept: vec![],
    };
    let story = Story::new().then(answer("a")).then(answer("b")).then(compacted);
    assert_eq!((story.items().len(), story.0.history_generation), (2, 2));
}

/// Rule 2.6.
#[test]
fn the_queue_and_the_config_are_replaced_whole() {
    let story = Story::new().then(queue("one")).then(queue("two"));
    assert_eq!(story.0.queue.iter().map(|entry| entry.intent.as_str()).collect::<Vec<_>>(), ["two"]);
    let config = ConfigView { kernel: json!({ "thinking": "off" }), plugins: BTreeMap::new() };
    let story = story
        .then(Event::ConfigChanged { config: config.clone() })
        .then(Event::QueueChanged { revision: 9, entries: vec![] });
    assert_eq!((story.0.queue.len(), story.0.config), (0, config));
}

/// Rule 2.6, 2.8.
#[test]
fn a_question_is_open_until_answered_or_cancelled() {
    let open = |story: &Story| story.0.interactions.iter().map(|one| one.id.to_string()).collect::<Vec<_>>();
    let story = Story::new().then(asked("i")).then(asked("j")).then(asked("i"));
    assert_eq!(open(&story), ["j", "i"], "opened again: it moves to the end");
    let by = ResolvedBy::Kernel;
    let story = story
        .then(Event::InteractionResolved { id: InteractionId::from("j"), answer: Answer::Confirm, by })
        .then(cancelled("unknown"));
    assert_eq!(open(&story), ["i"]);
    assert!(open(&story.then(cancelled("i"))).is_empty());
}

fn cancelled(id: &str) -> Event {
    Event::InteractionCancelled { id: InteractionId::from(id), reason: CancelReason::Expired }
}

/// Rule 2.6.
#[test]
fn the_newest_payload_of_a_plugin_counts() {
    let story = Story::new().then(extension("p", "k", json!(1))).then(extension("p", "k", json!(null)));
    assert_eq!(json!(story.0.extensions), json!({ "p": { "k": null } }), "null is a state like any other");
    let story = story
        .then(signal("p", "k", json!(1)))
        .then(signal("p", "l", json!(2)))
        .then(signal("q", "k", json!(null)))
        .then(signal("p", "k", json!(null)));
    assert_eq!(json!(story.0.signals), json!({ "p": { "l": 2 } }));
    let story = story.then(signal("p", "l", json!(null)));
    assert!(story.0.signals.is_empty(), "a plugin without signals is not named");
}

/// Rule 2.6.
#[test]
fn acks_catalogs_and_notices_only_count() {
    let intent = IntentId::from("r");
    let result = Value::Null;
    let story = Story::new()
        .then(Event::IntentAck { intent, outcome: IntentOutcome::Applied { result }, digest: None })
        .then(Event::CatalogChanged { kind: "tools".into() })
        .then(Event::Notice { level: Level::Warn, code: "X".into(), text: "x".into() });
    assert_eq!(story.0, SessionState { seq: Seq(3), ..SessionState::new(summary("start")) });
}

/// Rule 2.9.
#[test]
fn the_newest_item_of_an_id_is_found() {
    let story = Story::new().then(answer("a")).then(answer("b"));
    assert_eq!(story.0.item(&ItemId::from("b")).map(|item| item.id.as_str()), Some("b"));
    assert!(story.0.item(&ItemId::from("c")).is_none());
}

#[test]
fn a_snapshot_holds_the_newest_and_the_unfinished() {
    let mut story = Story::new().then(answer("0")).then(started("1", tool(None)));
    for id in 2..10 {
        story = story.then(answer(&id.to_string()));
    }
    let held = |items, bytes| Story(story.0.snapshot(SnapshotLimits { items, bytes })).items().join(" ");
    assert_eq!(held(3, usize::MAX), "1:None… 7:7 8:8 9:9");
    assert_eq!(held(0, usize::MAX), "1:None…");
    let one = serde_json::to_vec(&story.0.items[9]).unwrap().len();
    assert_eq!(held(500, 2 * one), "1:None… 8:8 9:9");
    assert_eq!(held(500, 2 * one - 1), "1:None… 9:9");
    assert_eq!(held(500, 0), "1:None… 9:9", "the newest is there whatever its size");
    assert_eq!(story.0.snapshot(SnapshotLimits::default()), story.0);
}

#[test]
fn an_item_that_is_known_to_be_new_is_applied_as_any_other() {
    let mut story = Story::new().then(answer("0"));
    let same = Story(story.0.clone()).then(answer("1"));
    story.0.apply_new_item(&frame(2, answer("1")));
    assert_eq!(story.0, same.0);
}

/// Rule 2.7.
#[test]
fn busy_is_a_turn_that_runs_and_attention_a_question_or_an_end_that_nobody_saw() {
    let told = |story: &Story| (story.0.is_busy(), story.0.needs_attention());
    let story = Story::new();
    assert_eq!(told(&story), (false, false));
    let story = story.then(turn_started("t"));
    assert_eq!(told(&story), (true, false));
    let story = story.then(asked("i"));
    assert_eq!(told(&story), (true, true));
    let story = story.then(cancelled("i")).then(turn_completed("t", TurnStatus::Completed));
    assert_eq!(told(&story), (false, true));
    let mut story = story.then(turn_started("u"));
    assert_eq!(told(&story), (true, false), "what runs is not over");
    story.0.unread = false;
    assert_eq!(told(&story.then(turn_completed("t", TurnStatus::Completed))), (false, true));
}

/// Rule 1.1.3.
#[test]
fn what_is_empty_is_omitted_and_null_is_read_as_absent() {
    let frame =
        frame(1, Event::ItemCompleted { item: Arc::new(item("i", ItemStatus::Running, assistant(""))) });
    let mut json = serde_json::to_value(&frame).unwrap();
    let members = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(members(&json), ["event", "seq", "session", "ts"]);
    assert_eq!(members(&json["event"]["item"]), ["body", "id", "round", "startedAt", "status"]);
    json["cause"] = json!(null);
    for name in ["turn", "completedAt", "intent"] {
        json["event"]["item"][name] = json!(null);
    }
    assert_eq!(serde_json::from_value::<Frame>(json).unwrap(), frame);
    let call = item("c", ItemStatus::Running, tool(None));
    assert_eq!(members(&json!(call)["body"]), ["callId", "input", "kind", "name"]);
    let mut json = json!(call);
    for name in ["output", "progress", "durationMs"] {
        json["body"][name] = json!(null);
    }
    assert_eq!(serde_json::from_value::<Item>(json).unwrap(), call);
}

/// Rule 1.2.8.
#[test]
fn deltas_notices_signals_and_lags_alone_are_not_kept() {
    let error = KernelError::new(ErrorCode::Internal, "e");
    let (turn, by) = (TurnId::from("t"), ResolvedBy::Kernel);
    let intent = IntentId::from("i");
    let kept = [
        updated("s"),
        Event::SessionClosed { reason: CloseReason::Deleted },
        turn_started("t"),
        retrying("t", &[]),
        used("t", 1),
        turn_completed("t", TurnStatus::Completed),
        started("i", assistant("")),
        Event::ItemUpdated { item: Arc::new(item("i", ItemStatus::Running, tool(None))) },
        answer("a"),
        queue("i"),
        asked("i"),
        Event::InteractionResolved { id: InteractionId::from("i"), answer: Answer::Confirm, by },
        cancelled("i"),
        Event::IntentAck { intent, outcome: IntentOutcome::Rejected { error }, digest: None },
        Event::Compacted { generation: 1, boundary: "i".into(), summary: "i".into(), kept: vec![] },
        Event::Rewound { generation: 1, to_turn: turn, dropped: vec![], files_restored: vec![] },
        Event::ConfigChanged { config: ConfigView::default() },
        Event::CatalogChanged { kind: "models".into() },
        extension("p", "k", json!(1)),
    ];
    let lost = [
        delta("i", DeltaKind::Text, "x"),
        Event::Notice { level: Level::Info, code: "C".into(), text: "x".into() },
        signal("p", "k", json!(1)),
        Event::Lagged { from: Seq(1), to: Seq(2) },
    ];
    assert!(kept.iter().all(Event::is_durable) && !lost.iter().any(Event::is_durable));
    let kinds: BTreeSet<_> = kept.iter().chain(&lost).map(|event| json!(event)["type"].to_string()).collect();
    assert_eq!(kinds.len(), 23, "each kind is there once");
}

/// Rule 1.2.9.
#[test]
fn three_statuses_of_an_item_are_its_last() {
    let told = ["pending", "running", "completed", "failed", "interrupted"].map(|name| {
        let status: ItemStatus = serde_json::from_value(json!(name)).unwrap();
        status.is_terminal()
    });
    assert_eq!(told, [false, false, true, true, true]);
}
