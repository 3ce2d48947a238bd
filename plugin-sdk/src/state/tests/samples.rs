//! Frames, events and items in few words.

use super::*;
use crate::event::{ContextUsage, QueueEntry};
use crate::ids::SessionId;
use crate::interaction::{AnswerSpec, InteractionKind};
use crate::item::ContentPart;
use crate::session::Driver;

pub(super) fn frame(seq: u64, event: Event) -> Frame {
    let ts = format!("2026-01-01T00:00:{:02}Z", seq % 60);
    Frame { seq: Seq(seq), ts, session: SessionId::from("ses_1"), cause: None, event }
}

pub(super) fn summary(title: &str) -> SessionSummary {
    SessionSummary {
        id: SessionId::from("ses_1"),
        key: None,
        title: Some(title.into()),
        cwd: "/".into(),
        parent: None,
        driver: Driver::Model,
        model: None,
        system_extra: None,
        tools: None,
        provider: None,
        created_at: "2026-01-01T00:00:00Z".into(),
        updated_at: "2026-01-01T00:00:00Z".into(),
        usage: Usage::default(),
        busy: false,
        messages: None,
    }
}

pub(super) fn updated(title: &str) -> Event {
    Event::SessionUpdated { summary: Box::new(summary(title)) }
}

pub(super) fn item(id: &str, status: ItemStatus, body: ItemBody) -> Item {
    Item {
        id: ItemId::from(id),
        turn: None,
        round: 0,
        status,
        started_at: "2026-01-01T00:00:00Z".into(),
        completed_at: status.is_terminal().then(|| "2026-01-01T00:00:01Z".into()),
        intent: None,
        body,
        meta: BTreeMap::new(),
    }
}

pub(super) fn assistant(text: &str) -> ItemBody {
    ItemBody::Assistant { text: text.into() }
}

pub(super) fn reasoning(text: &str) -> ItemBody {
    ItemBody::Reasoning { text: text.into(), provider_metadata: BTreeMap::new() }
}

pub(super) fn tool(progress: Option<&str>) -> ItemBody {
    ItemBody::ToolCall {
        call_id: "call_1".into(),
        name: "read".into(),
        input: json!({ "path": "/", "lines": [1, -2] }),
        output: None,
        progress: progress.map(Into::into),
        duration_ms: None,
    }
}

pub(super) fn user(surface: &str) -> ItemBody {
    ItemBody::User { parts: vec![ContentPart::text("hi")], origin: Origin::surface(surface) }
}

pub(super) fn started(id: &str, body: ItemBody) -> Event {
    Event::ItemStarted { item: Arc::new(item(id, ItemStatus::Pending, body)) }
}

pub(super) fn completed(id: &str, body: ItemBody) -> Event {
    Event::ItemCompleted { item: Arc::new(item(id, ItemStatus::Completed, body)) }
}

/// A finished answer whose text is its id.
pub(super) fn answer(id: &str) -> Event {
    completed(id, assistant(id))
}

pub(super) fn delta(id: &str, kind: DeltaKind, data: &str) -> Event {
    Event::ItemDelta { item: ItemId::from(id), n: 0, kind, data: data.into() }
}

pub(super) fn turn_started(id: &str) -> Event {
    Event::TurnStarted { turn: TurnId::from(id), inputs: vec![], origin: TurnOrigin::Submit }
}

pub(super) fn turn_completed(id: &str, status: TurnStatus) -> Event {
    Event::TurnCompleted { turn: TurnId::from(id), status, usage: usage(1000) }
}

pub(super) fn retrying(id: &str, dropped: &[&str]) -> Event {
    let dropped = dropped.iter().map(|id| ItemId::from(*id)).collect();
    let reason = "overloaded".to_owned();
    Event::TurnRetrying { turn: TurnId::from(id), attempt: 1, max: 10, delay_ms: 500, dropped, reason }
}

pub(super) fn usage(tokens: u64) -> Usage {
    Usage { input_tokens: tokens, ..Usage::default() }
}

pub(super) fn used(id: &str, tokens: u64) -> Event {
    let context = ContextUsage { used: tokens, window: 100, trigger: 80 };
    Event::TurnUsage { turn: TurnId::from(id), usage: usage(tokens), context }
}

pub(super) fn queue(intent: &str) -> Event {
    let entry = QueueEntry {
        intent: IntentId::from(intent),
        position: 1,
        preview: "hi".into(),
        steerable: true,
        origin: Origin::surface("print"),
    };
    Event::QueueChanged { revision: 1, entries: vec![entry] }
}

pub(super) fn asked(id: &str) -> Event {
    let interaction = Interaction {
        id: InteractionId::from(id),
        session: SessionId::from("ses_1"),
        turn: None,
        item: None,
        opened_at: "2026-01-01T00:00:00Z".into(),
        guard_until: None,
        expires_at: None,
        kind: InteractionKind::Confirm { title: "Sure?".into(), detail: String::new() },
        answers: vec![AnswerSpec::Confirm, AnswerSpec::Cancel],
    };
    Event::InteractionOpened { interaction: Box::new(interaction) }
}

pub(super) fn extension(plugin: &str, kind: &str, payload: Value) -> Event {
    Event::Extension { plugin: plugin.into(), kind: kind.into(), payload }
}

pub(super) fn signal(plugin: &str, kind: &str, payload: Value) -> Event {
    Event::Signal { plugin: plugin.into(), kind: kind.into(), payload }
}
