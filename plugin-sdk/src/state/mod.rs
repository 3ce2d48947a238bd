//! The state of a session and its one reducer, `apply`: kernel and clients fold the same frames with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::{
    ConfigView, ContextUsage, DeltaKind, Event, Frame, QueueEntry, TurnOrigin, TurnStatus, Usage,
};
use crate::ids::{ItemId, Seq, TurnId};
use crate::interaction::Interaction;
use crate::item::{Item, ItemBody};
use crate::session::SessionSummary;

/// Payloads by plugin, then by kind.
pub type PluginPayloads = BTreeMap<String, BTreeMap<String, Value>>;

/// Everything a client knows of a session: a snapshot, then frames folded into it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionState {
    /// The last frame applied; frames up to it are duplicates.
    pub seq: Seq,
    pub summary: SessionSummary,
    #[serde(default)]
    pub config: ConfigView,
    /// Advances with each compaction and rewind.
    #[serde(default)]
    pub history_generation: u64,
    /// In the order of the transcript, unfinished ones included; older ones may be left to `session/history`.
    pub items: Vec<Arc<Item>>,
    /// The turn that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<LiveTurn>,
    #[serde(default)]
    pub queue: Vec<QueueEntry>,
    /// The open ones.
    #[serde(default)]
    pub interactions: Vec<Interaction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextUsage>,
    /// How the last turn ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_turn: Option<TurnStatus>,
    /// A turn ended since the client last looked; cleared by the client alone.
    #[serde(default)]
    pub unread: bool,
    #[serde(default)]
    pub closed: bool,
    /// The newest journaled payload of each plugin and kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extensions: PluginPayloads,
    /// Live payloads; lost when the session is resumed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub signals: PluginPayloads,
}

/// A turn that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LiveTurn {
    pub id: TurnId,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub origin: TurnOrigin,
    /// Model responses so far.
    #[serde(default)]
    pub round: u32,
    #[serde(default)]
    pub usage: Usage,
    /// Present while a failed request waits to be made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retrying: Option<Retry>,
}

/// Which try of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    pub attempt: u32,
    pub max: u32,
}

/// How much of a transcript a snapshot carries (design: limits).
#[derive(Debug, Clone, Copy)]
pub struct SnapshotLimits {
    /// The most finished items.
    pub items: usize,
    /// The most bytes of finished items as JSON.
    pub bytes: usize,
}

impl Default for SnapshotLimits {
    fn default() -> Self {
        Self { items: 500, bytes: 4 * 1024 * 1024 }
    }
}

impl SessionState {
    /// Returns the state before any frame (kernel rule 2.2).
    pub fn new(summary: SessionSummary) -> Self {
        Self {
            seq: Seq(0),
            summary,
            config: ConfigView::default(),
            history_generation: 0,
            items: Vec::new(),
            turn: None,
            queue: Vec::new(),
            interactions: Vec::new(),
            context: None,
            last_turn: None,
            unread: false,
            closed: false,
            extensions: BTreeMap::new(),
            signals: BTreeMap::new(),
        }
    }

    /// Folds one frame into the state (kernel rules 2.3 to 2.6). Stale frames and `lagged` change nothing.
    pub fn apply(&mut self, frame: &Frame) {
        self.fold(frame, false);
    }

    /// Does the same for a frame whose item is known not to be held yet, without looking for it: whoever folds many
    /// frames knows that in a cheaper way.
    pub fn apply_new_item(&mut self, frame: &Frame) {
        self.fold(frame, true);
    }

    /// Counts a frame that is known to change nothing here; returns false when it was counted before.
    pub fn pass_over(&mut self, frame: &Frame) -> bool {
        if matches!(frame.event, Event::Lagged { .. }) || (self.seq.0 != 0 && frame.seq <= self.seq) {
            return false;
        }
        if frame.seq.segment() != self.seq.segment() {
            // Another run of the session: it is open again, and live payloads did not survive.
            self.closed = false;
            self.signals.clear();
        }
        self.seq = frame.seq;
        true
    }

    fn fold(&mut self, frame: &Frame, is_new: bool) {
        if !self.pass_over(frame) {
            return;
        }
        match &frame.event {
            Event::SessionUpdated { summary } => self.summary = (**summary).clone(),
            Event::SessionClosed { .. } => {
                self.closed = true;
                self.turn = None;
                self.interactions.clear();
            }
            Event::TurnStarted { .. }
            | Event::TurnRetrying { .. }
            | Event::TurnUsage { .. }
            | Event::TurnCompleted { .. } => {
                self.apply_turn(&frame.event, &frame.ts);
            }
            Event::ItemStarted { item } | Event::ItemUpdated { item } => self.put(item, is_new),
            Event::ItemCompleted { item } => {
                if is_message(item) {
                    self.summary.messages = Some(self.summary.messages.unwrap_or(0).saturating_add(1));
                }
                self.put(item, is_new);
            }
            Event::ItemDelta { item, kind, data, .. } => self.grow(item, *kind, data),
            Event::QueueChanged { entries, .. } => self.queue.clone_from(entries),
            Event::InteractionOpened { interaction } => {
                self.interactions.retain(|open| open.id != interaction.id);
                self.interactions.push((**interaction).clone());
            }
            Event::InteractionResolved { id, .. } | Event::InteractionCancelled { id, .. } => {
                self.interactions.retain(|open| open.id != *id);
            }
            Event::Compacted { generation, .. } => self.history_generation = *generation,
            Event::Rewound { generation, dropped, .. } => {
                self.history_generation = *generation;
                self.withdraw(dropped);
            }
            Event::ConfigChanged { config } => self.config = config.clone(),
            Event::Extension { plugin, kind, payload } => {
                self.extensions.entry(plugin.clone()).or_default().insert(kind.clone(), payload.clone());
            }
            Event::Signal { plugin, kind, payload } => self.signal(plugin, kind, payload),
            Event::IntentAck { .. }
            | Event::CatalogChanged { .. }
            | Event::Notice { .. }
            | Event::Lagged { .. } => {}
        }
    }

    /// Returns the state as a client gets it: only the newest finished items, and every unfinished one.
    ///
    /// Unfinished items from before the window stand at its head, in their order. What was left out lies before the first
    /// *finished* item held: paging back from an unfinished one would pass over what finished after it.
    pub fn snapshot(&self, limits: SnapshotLimits) -> Self {
        let mut start = self.items.len();
        let mut bytes = 0;
        while start > 0 && self.items.len() - start < limits.items {
            bytes += serde_json::to_vec(&self.items[start - 1]).map_or(0, |json| json.len());
            // The newest item is there whatever its size: a client pages back from what it holds.
            if bytes > limits.bytes && start < self.items.len() {
                break;
            }
            start -= 1;
        }
        let unfinished = self.items[..start].iter().filter(|item| !item.status.is_terminal());
        let items = unfinished.chain(&self.items[start..]).cloned().collect();
        Self { items, ..self.without_items() }
    }

    /// Returns whether a turn runs.
    pub fn is_busy(&self) -> bool {
        self.turn.is_some()
    }

    /// Returns whether a person should look: something is asked, or a turn ended that nobody saw the end of. Whoever saw it
    /// sets `unread` to false; nothing on the wire does.
    pub fn needs_attention(&self) -> bool {
        !self.interactions.is_empty() || (self.unread && !self.is_busy())
    }

    /// Returns the item of this id, the newest first (kernel rule 2.9).
    pub fn item(&self, id: &ItemId) -> Option<&Arc<Item>> {
        self.items.iter().rev().find(|item| item.id == *id)
    }

    fn without_items(&self) -> Self {
        Self {
            seq: self.seq,
            summary: self.summary.clone(),
            config: self.config.clone(),
            history_generation: self.history_generation,
            items: Vec::new(),
            turn: self.turn.clone(),
            queue: self.queue.clone(),
            interactions: self.interactions.clone(),
            context: self.context,
            last_turn: self.last_turn.clone(),
            unread: self.unread,
            closed: self.closed,
            extensions: self.extensions.clone(),
            signals: self.signals.clone(),
        }
    }

    fn apply_turn(&mut self, event: &Event, ts: &str) {
        match event {
            Event::TurnStarted { turn, origin, .. } => {
                self.turn = Some(LiveTurn {
                    id: turn.clone(),
                    started_at: ts.to_owned(),
                    origin: *origin,
                    round: 0,
                    usage: Usage::default(),
                    retrying: None,
                });
            }
            Event::TurnRetrying { attempt, max, dropped, .. } => {
                self.withdraw(dropped);
                if let Some(turn) = &mut self.turn {
                    turn.retrying = Some(Retry { attempt: *attempt, max: *max });
                }
            }
            Event::TurnUsage { usage, context, .. } => {
                if let Some(turn) = &mut self.turn {
                    turn.usage += *usage;
                    turn.round = turn.round.saturating_add(1);
                    turn.retrying = None;
                }
                self.summary.usage += *usage;
                self.context = Some(*context);
            }
            Event::TurnCompleted { status, .. } => {
                self.last_turn = Some(status.clone());
                self.turn = None;
                self.unread = true;
            }
            _ => {}
        }
    }

    /// Puts a whole item in the place of the one with its id, else at the end.
    ///
    /// A terminal item is never replaced by an unfinished one: late words change nothing that ended.
    fn put(&mut self, item: &Arc<Item>, is_new: bool) {
        let mut newest_first = self.items.iter_mut().rev();
        match newest_first.find(|held| !is_new && held.id == item.id) {
            Some(held) if held.status.is_terminal() && !item.status.is_terminal() => {}
            Some(held) => *held = Arc::clone(item),
            None => self.items.push(Arc::clone(item)),
        }
    }

    fn grow(&mut self, id: &ItemId, kind: DeltaKind, data: &str) {
        let Some(held) = self.items.iter_mut().rev().find(|held| held.id == *id) else { return };
        if held.status.is_terminal() {
            return;
        }
        match (&mut Arc::make_mut(held).body, kind) {
            (ItemBody::Assistant { text }, DeltaKind::Text)
            | (ItemBody::Reasoning { text, .. }, DeltaKind::Reasoning) => text.push_str(data),
            (ItemBody::ToolCall { progress, .. }, DeltaKind::Tail) => *progress = Some(data.to_owned()),
            _ => {}
        }
    }

    fn withdraw(&mut self, dropped: &[ItemId]) {
        self.items.retain(|item| !dropped.contains(&item.id));
    }

    fn signal(&mut self, plugin: &str, kind: &str, payload: &Value) {
        if !payload.is_null() {
            self.signals.entry(plugin.to_owned()).or_default().insert(kind.to_owned(), payload.clone());
            return;
        }
        if let Some(kinds) = self.signals.get_mut(plugin) {
            kinds.remove(kind);
            if kinds.is_empty() {
                self.signals.remove(plugin);
            }
        }
    }
}

/// Returns whether a completed item counts as a message (kernel rule 1.2.12).
pub fn is_message(item: &Item) -> bool {
    match &item.body {
        ItemBody::Assistant { .. } => true,
        ItemBody::User { origin, .. } => !origin.surface.starts_with("contributor:"),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
