//! What holds for any sequence of frames, sensible or not: a snapshot and the rest give the same as all of it.
//!
//! The pools of ids are small, so that frames meet: late words about what ended, withdrawn items that come back,
//! answers nobody asked for.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::event::{InterruptReason, QueueEntry};
use crate::item::{ContentPart, ToolOutput};

const ALL: SnapshotLimits = SnapshotLimits { items: usize::MAX, bytes: usize::MAX };

fn item_id() -> impl Strategy<Value = &'static str> {
    select(vec!["a", "b", "c", "d", "e", "f", "g", "h"])
}

fn some_item_ids() -> impl Strategy<Value = Vec<ItemId>> {
    prop::collection::vec(item_id().prop_map(ItemId::from), 0..3)
}

fn turn_id() -> impl Strategy<Value = &'static str> {
    select(vec!["t", "u"])
}

fn text() -> impl Strategy<Value = String> {
    "[ -~é\n🦀]{0,12}"
}

fn payload() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        text().prop_map(|text| json!({ "t": [text] }))
    ]
}

fn tokens() -> impl Strategy<Value = u64> {
    prop_oneof![0..1000u64, Just(u64::MAX)]
}

fn output() -> impl Strategy<Value = ToolOutput> {
    (text(), any::<bool>()).prop_map(|(text, is_error)| ToolOutput {
        parts: vec![ContentPart::text(text)],
        is_error,
        display: None,
    })
}

fn body() -> impl Strategy<Value = ItemBody> {
    let surface = select(vec!["print", "contributor:clock", "hook:x"]);
    prop_oneof![
        text().prop_map(|text| assistant(&text)),
        text().prop_map(|text| reasoning(&text)),
        surface.prop_map(user),
        (output(), any::<bool>()).prop_map(|(out, done)| match tool(None) {
            ItemBody::ToolCall { call_id, name, input, .. } => ItemBody::ToolCall {
                call_id,
                name,
                input,
                output: done.then_some(out),
                progress: None,
                duration_ms: done.then_some(7),
            },
            other => other,
        }),
        text().prop_map(|marker| ItemBody::Interruption { marker }),
    ]
}

fn any_item() -> impl Strategy<Value = Arc<Item>> {
    let status = select(vec![
        ItemStatus::Pending,
        ItemStatus::Running,
        ItemStatus::Completed,
        ItemStatus::Failed,
        ItemStatus::Interrupted,
    ]);
    (item_id(), status, body()).prop_map(|(id, status, body)| Arc::new(item(id, status, body)))
}

fn item_event() -> impl Strategy<Value = Event> {
    let kind = select(vec![DeltaKind::Text, DeltaKind::Reasoning, DeltaKind::Tail]);
    prop_oneof![
        (item_id(), body()).prop_map(|(id, body)| started(id, body)),
        (item_id(), body()).prop_map(|(id, body)| completed(id, body)),
        any_item().prop_map(|item| Event::ItemStarted { item }),
        any_item().prop_map(|item| Event::ItemUpdated { item }),
        any_item().prop_map(|item| Event::ItemCompleted { item }),
        (item_id(), kind, text()).prop_map(|(id, kind, data)| delta(id, kind, &data)),
    ]
}

fn status() -> impl Strategy<Value = TurnStatus> {
    prop_oneof![
        Just(TurnStatus::Completed),
        Just(TurnStatus::Interrupted { reason: InterruptReason::UserCancel }),
        text().prop_map(|text| TurnStatus::Failed { error: KernelError::new(ErrorCode::Offline, text) }),
    ]
}

fn turn_event() -> impl Strategy<Value = Event> {
    let retried = (turn_id(), some_item_ids(), 0..3u32).prop_map(|(turn, dropped, attempt)| {
        let turn = TurnId::from(turn);
        Event::TurnRetrying { turn, attempt, max: 2, delay_ms: 0, dropped, reason: "x".into() }
    });
    prop_oneof![
        turn_id().prop_map(turn_started),
        retried,
        (turn_id(), tokens()).prop_map(|(turn, tokens)| used(turn, tokens)),
        (turn_id(), status()).prop_map(|(turn, status)| turn_completed(turn, status)),
    ]
}

fn history_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..9u64, some_item_ids()).prop_map(|(generation, dropped)| Event::Rewound {
            generation,
            to_turn: TurnId::from("t"),
            dropped,
            files_restored: vec![],
        }),
        (0..9u64, item_id(), some_item_ids()).prop_map(|(generation, id, kept)| Event::Compacted {
            generation,
            boundary: ItemId::from(id),
            summary: ItemId::from(id),
            kept,
        }),
    ]
}

fn waiting_event() -> impl Strategy<Value = Event> {
    let question = select(vec!["i", "j", "k"]);
    let by = ResolvedBy::Client { name: "x".into(), surface: "y".into() };
    prop_oneof![
        select(vec!["q", "r"]).prop_map(queue),
        Just(Event::QueueChanged { revision: 2, entries: Vec::<QueueEntry>::new() }),
        question.clone().prop_map(asked),
        question.clone().prop_map(cancelled),
        question.prop_map(move |id| Event::InteractionResolved {
            id: InteractionId::from(id),
            answer: Answer::Choice { ids: vec!["1".into()] },
            by: by.clone(),
        }),
    ]
}

fn other_event() -> impl Strategy<Value = Event> {
    let name = || select(vec!["p", "q"]);
    prop_oneof![
        text().prop_map(|title| updated(&title)),
        Just(Event::SessionClosed { reason: CloseReason::Error { message: "x".into() } }),
        (name(), name(), payload()).prop_map(|(plugin, kind, payload)| extension(plugin, kind, payload)),
        (name(), name(), payload()).prop_map(|(plugin, kind, payload)| signal(plugin, kind, payload)),
        payload().prop_map(|kernel| Event::ConfigChanged {
            config: ConfigView { kernel, plugins: BTreeMap::new() }
        }),
        payload().prop_map(|result| Event::IntentAck {
            intent: IntentId::from("r"),
            outcome: IntentOutcome::Applied { result },
            digest: None,
        }),
        text().prop_map(|text| Event::Notice { level: Level::Info, code: "X".into(), text }),
        Just(Event::CatalogChanged { kind: "tools".into() }),
        Just(Event::Lagged { from: Seq(1), to: Seq(2) }),
    ]
}

/// Frames as a subscriber may get them: seqs grow, with gaps.
fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let event = prop_oneof![
        6 => item_event(),
        2 => turn_event(),
        1 => history_event(),
        2 => waiting_event(),
        2 => other_event(),
    ];
    let gap = prop_oneof![8 => Just(1u64), 1 => 2..9u64, 1 => Just(1u64 << 32)];
    prop::collection::vec((gap, event), 0..60).prop_map(numbered)
}

fn numbered(events: Vec<(u64, Event)>) -> Vec<Frame> {
    let mut seq = 0;
    let frames = events.into_iter().map(|(gap, event)| {
        seq += gap;
        frame(seq, event)
    });
    frames.collect()
}

/// Frames as the kernel makes them, as far as items go: each id is begun once and ends once. Some stay unfinished.
fn sensible_frames() -> impl Strategy<Value = Vec<Frame>> {
    // For each step: begin an item, grow or end one of the open ones, or withdraw the newest ones of a turn.
    let step = (0..10u32, any::<prop::sample::Index>(), text());
    prop::collection::vec(step, 0..80).prop_map(|steps| {
        let mut open: Vec<String> = Vec::new();
        let mut begun = 0;
        let mut events = Vec::new();
        for (what, which, text) in steps {
            let chosen = (!open.is_empty()).then(|| which.index(open.len()));
            let event = match (what, chosen) {
                (0..=2, _) | (_, None) => {
                    begun += 1;
                    open.push(format!("i{begun}"));
                    started(&format!("i{begun}"), assistant(""))
                }
                (3..=5, Some(at)) => delta(&open[at], DeltaKind::Text, &text),
                (6, Some(at)) => retrying("t", &[&open.remove(at)]),
                (_, Some(at)) => completed(&open.remove(at), assistant(&text)),
            };
            events.push((1, event));
        }
        numbered(events)
    })
}

fn limits() -> impl Strategy<Value = SnapshotLimits> {
    let bytes = prop_oneof![Just(usize::MAX), 0..1500usize];
    (0..5usize, bytes).prop_map(|(items, bytes)| SnapshotLimits { items, bytes })
}

fn fold(mut state: SessionState, frames: &[Frame]) -> SessionState {
    frames.iter().for_each(|frame| state.apply(frame));
    state
}

fn begin() -> SessionState {
    SessionState::new(summary("start"))
}

fn ids(state: &SessionState) -> BTreeSet<ItemId> {
    state.items.iter().map(|item| item.id.clone()).collect()
}

/// Returns the state without the items of these ids.
fn without(state: &SessionState, ids: &BTreeSet<ItemId>) -> SessionState {
    let items = state.items.iter().filter(|item| !ids.contains(&item.id)).cloned().collect();
    SessionState { items, ..state.clone() }
}

proptest! {
    /// Rule 2.1.
    #[test]
    fn a_snapshot_and_the_rest_give_the_whole(frames in frames(), cut: prop::sample::Index) {
        let (before, after) = frames.split_at(cut.index(frames.len() + 1));
        let snapshot = fold(begin(), before).snapshot(ALL);
        prop_assert_eq!(fold(snapshot, after), fold(begin(), &frames));
    }

    #[test]
    fn a_window_and_the_rest_give_the_whole_from_its_items_on(
        frames in frames(), cut: prop::sample::Index, limits in limits(),
    ) {
        let (before, after) = frames.split_at(cut.index(frames.len() + 1));
        let full = fold(begin(), before);
        let window = full.snapshot(limits);
        // What the window left out is the client's to fetch: late words about it (the kernel has none) bring it back at
        // the end, where the whole state still has it in its place. All else must be equal, in the same order.
        let left_out: BTreeSet<ItemId> = ids(&full).difference(&ids(&window)).cloned().collect();
        let (whole, windowed) = (fold(full, after), fold(window, after));
        prop_assert_eq!(without(&windowed, &left_out), without(&whole, &left_out));
    }

    #[test]
    fn what_a_window_left_out_never_comes_back(
        frames in sensible_frames(), cut: prop::sample::Index, limits in limits(),
    ) {
        let (before, after) = frames.split_at(cut.index(frames.len() + 1));
        let full = fold(begin(), before);
        let window = full.snapshot(limits);
        let left_out: BTreeSet<ItemId> = ids(&full).difference(&ids(&window)).cloned().collect();
        let (whole, windowed) = (fold(full, after), fold(window, after));
        prop_assert!(ids(&windowed).is_disjoint(&left_out));
        prop_assert_eq!(windowed, without(&whole, &left_out));
    }

    #[test]
    fn a_window_is_the_newest_and_the_unfinished(frames in frames(), limits in limits()) {
        let full = fold(begin(), &frames);
        let window = full.snapshot(limits);
        let finished = |state: &SessionState| -> Vec<ItemId> {
            state.items.iter().filter(|item| item.status.is_terminal()).map(|item| item.id.clone()).collect()
        };
        let held = finished(&window);
        prop_assert!(held.len() <= limits.items);
        prop_assert!(finished(&full).ends_with(&held));
        let left_out: BTreeSet<ItemId> = finished(&full).into_iter().filter(|id| !held.contains(id)).collect();
        prop_assert_eq!(window, without(&full, &left_out));
    }

    #[test]
    fn a_frame_twice_is_a_frame_once(frames in frames(), again: prop::sample::Index) {
        let mut state = begin();
        for frame in &frames {
            state.apply(frame);
            let once = state.clone();
            state.apply(frame);
            prop_assert_eq!(&state, &once);
        }
        if !frames.is_empty() {
            let once = state.clone();
            state.apply(again.get(&frames));
            prop_assert_eq!(state, once);
        }
    }

    #[test]
    fn ids_are_unique_and_what_ended_stays(frames in frames()) {
        let mut state = begin();
        for frame in &frames {
            let ended: Vec<_> = state.items.iter().filter(|item| item.status.is_terminal()).cloned().collect();
            state.apply(frame);
            prop_assert_eq!(ids(&state).len(), state.items.len());
            for item in ended {
                prop_assert!(state.item(&item.id).is_none_or(|held| held.status.is_terminal()));
            }
        }
    }

    #[test]
    fn frames_and_states_survive_the_wire(frames in frames()) {
        let state = fold(begin(), &frames);
        let wired: SessionState = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        prop_assert_eq!(wired, state.clone());
        let mut lines = Vec::new();
        for frame in &frames {
            let line = serde_json::to_string(frame).unwrap();
            prop_assert!(!line.contains('\n'), "a frame is a line");
            lines.push(serde_json::from_str::<Frame>(&line).unwrap());
        }
        prop_assert_eq!(&lines, &frames);
        prop_assert_eq!(fold(begin(), &lines), state);
    }
}
