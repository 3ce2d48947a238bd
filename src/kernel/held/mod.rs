//! The window of a transcript: which of its items are held in memory, and where in the journal the others stand.
//!
//! A session holds the newest items and every unfinished one; of an older item 16 bytes stay, by which `view` reads it
//! again. So what a session weighs does not grow with what its items weigh.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use bingo_plugin_sdk::event::{DeltaKind, Event, Frame};
use bingo_plugin_sdk::ids::{ItemId, Seq};
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody};
use bingo_plugin_sdk::state::SessionState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::outbox::json_length;

/// How many items are held, and about how many bytes. Both are more than a snapshot carries.
const HELD: Limits = Limits { items: 2000, bytes: 4 * 1024 * 1024 };
/// What an item weighs beside its texts, in bytes: less than its other fields take as JSON, so that a window holds at
/// least what a snapshot of the same number of bytes carries.
const FRAME_OF_AN_ITEM: usize = 100;

/// A bound on what is held. It may be passed by a quarter, so that items leave many at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    pub(super) items: usize,
    pub(super) bytes: usize,
}

/// Stands for an item's id: 64 bits of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ItemKey(u64);

impl ItemKey {
    /// Returns the key of an id.
    pub(super) fn of(id: &ItemId) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(id.as_str().as_bytes());
        Self(hasher.finish())
    }
}

/// Where an item that is not held stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) key: ItemKey,
    /// The frame that holds it whole; 0 while it is unfinished, and therefore held.
    pub(super) seq: Seq,
}

/// The items that a state holds, and the places of those that it does not hold any more.
///
/// Unfinished items from before the window stand at the head of the state's items, as in a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Window {
    limits: Limits,
    /// The items before the window, the unfinished ones among them included; absent where nobody reads them.
    older: Option<Arc<Vec<Place>>>,
    /// How many items at the head of the state's are unfinished ones from before the window.
    early: usize,
    /// Whether an item left the window.
    passed: bool,
    /// The frame that put each held item.
    seqs: HashMap<ItemKey, Seq>,
    /// What the items weigh that are held, the early ones included; too much where a delta was not for its item.
    bytes: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self::new(HELD)
    }
}

impl Window {
    /// Returns the window over no items.
    pub(super) fn new(limits: Limits) -> Self {
        let (older, seqs) = (Some(Arc::default()), HashMap::new());
        Self { limits, older, early: 0, passed: false, seqs, bytes: 0 }
    }

    /// Returns the same window for a second fold, which does not know where older items stand.
    pub(super) fn without_places(&self) -> Self {
        Self { older: None, seqs: self.seqs.clone(), ..*self }
    }

    /// Returns whether all items of the transcript are held.
    pub(super) fn holds_all(&self) -> bool {
        !self.passed
    }

    /// Returns the places of the items before the window.
    pub(super) fn older(&self) -> Arc<Vec<Place>> {
        self.older.clone().unwrap_or_default()
    }

    /// Returns how many of the first items of the state stand before the window.
    pub(super) fn early(&self) -> usize {
        self.early
    }

    /// Folds a frame into a state, and drops what leaves the window.
    pub(super) fn fold(&mut self, state: &mut SessionState, frame: &Frame) {
        if state.seq.0 != 0 && frame.seq <= state.seq {
            return;
        }
        match &frame.event {
            Event::ItemUpdated { item } if self.is_late(item) => {
                state.pass_over(frame);
            }
            Event::ItemStarted { item } | Event::ItemUpdated { item } | Event::ItemCompleted { item } => {
                if self.note(state, item, frame.seq) {
                    state.apply_new_item(frame);
                } else {
                    state.apply(frame);
                }
                self.settle(&mut state.items);
                self.trim(&mut state.items);
            }
            Event::ItemDelta { kind: DeltaKind::Text | DeltaKind::Reasoning, data, .. } => {
                self.bytes += data.len();
                state.apply(frame);
            }
            Event::TurnRetrying { dropped, .. } | Event::Rewound { dropped, .. } if !dropped.is_empty() => {
                self.withdraw(&state.items, dropped);
                state.apply(frame);
            }
            _ => state.apply(frame),
        }
    }

    /// Returns whether words about an item come when it ended and left the window: they change nothing.
    fn is_late(&self, item: &Item) -> bool {
        self.passed && !item.status.is_terminal() && !self.seqs.contains_key(&ItemKey::of(&item.id))
    }

    /// Notes which frame puts an item; returns whether no item of this id is held.
    fn note(&mut self, state: &SessionState, item: &Arc<Item>, seq: Seq) -> bool {
        let noted = match self.seqs.entry(ItemKey::of(&item.id)) {
            Entry::Vacant(none) => {
                none.insert(seq);
                self.bytes += weight(item);
                return true;
            }
            Entry::Occupied(noted) => noted.into_mut(),
        };
        let held = state.item(&item.id);
        // Late words change nothing that ended.
        let is_late = !item.status.is_terminal() && held.is_some_and(|held| held.status.is_terminal());
        if !is_late {
            *noted = seq;
            self.bytes += weight(item);
            self.lighten(held);
        }
        false
    }

    fn lighten<'a>(&mut self, gone: impl IntoIterator<Item = &'a Arc<Item>>) {
        let bytes: usize = gone.into_iter().map(|item| weight(item)).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Lets go of early items that are finished by now: they stand before the window.
    fn settle(&mut self, items: &mut Vec<Arc<Item>>) {
        while let Some(at) = items[..self.early].iter().position(|item| item.status.is_terminal()) {
            let item = items.remove(at);
            self.lighten([&item]);
            let key = ItemKey::of(&item.id);
            self.early -= 1;
            let seq = self.seqs.remove(&key).unwrap_or_default();
            let older = self.older.as_mut().map(Arc::make_mut);
            if let Some(place) = older.and_then(|all| all.iter_mut().rev().find(|place| place.key == key)) {
                place.seq = seq;
            }
        }
    }

    /// Drops the oldest items when there are too many.
    fn trim(&mut self, items: &mut Vec<Arc<Item>>) {
        let most = Limits { items: self.limits.items / 4 * 5, bytes: self.limits.bytes / 4 * 5 };
        if items.len() - self.early <= most.items && self.bytes <= most.bytes {
            return;
        }
        let mut start = self.early;
        // The newest is held whatever it weighs.
        while start + 1 < items.len()
            && (items.len() - start > self.limits.items || self.bytes > self.limits.bytes)
        {
            // An unfinished one stays, at the head.
            self.lighten(items.get(start).filter(|item| item.status.is_terminal()));
            start += 1;
        }
        let window = items.split_off(start);
        for item in items.split_off(self.early) {
            let key = ItemKey::of(&item.id);
            let ended = self.seqs.get(&key).copied().filter(|_| item.status.is_terminal());
            let seq = ended.unwrap_or_default();
            if let Some(older) = &mut self.older {
                Arc::make_mut(older).push(Place { key, seq });
            }
            if item.status.is_terminal() {
                self.seqs.remove(&key);
            } else {
                items.push(item);
            }
            self.passed = true;
        }
        self.early = items.len();
        items.extend(window);
    }

    /// Forgets items that are withdrawn.
    fn withdraw(&mut self, items: &[Arc<Item>], dropped: &[ItemId]) {
        let keys: HashSet<ItemKey> = dropped.iter().map(ItemKey::of).collect();
        self.lighten(items.iter().filter(|item| keys.contains(&ItemKey::of(&item.id))));
        let early = items[..self.early].iter();
        let stays = |item: &&Arc<Item>| !keys.contains(&ItemKey::of(&item.id));
        let early_before = std::mem::replace(&mut self.early, early.filter(stays).count());
        let held = keys.iter().filter(|key| self.seqs.remove(key).is_some()).count();
        if (held == keys.len() && early_before == 0) || !self.passed {
            return;
        }
        if let Some(older) = &mut self.older {
            Arc::make_mut(older).retain(|place| !keys.contains(&place.key));
        }
    }
}

/// Returns about how many bytes an item holds.
fn weight(item: &Item) -> usize {
    let body = match &item.body {
        ItemBody::User { parts, .. } => parts.iter().map(weight_of_part).sum(),
        ItemBody::Assistant { text } => text.len(),
        ItemBody::Reasoning { text, provider_metadata } => {
            let facts = provider_metadata.values().flat_map(|facts| facts.values());
            text.len() + facts.map(weight_of_value).sum::<usize>()
        }
        ItemBody::ToolCall { input, output, .. } => {
            let parts = output.iter().flat_map(|output| &output.parts).map(weight_of_part).sum::<usize>();
            let display = output.iter().filter_map(|output| output.display.as_ref()).map(json_length);
            weight_of_value(input) + parts + display.sum::<usize>()
        }
        ItemBody::Action { args, result, .. } => {
            weight_of_value(args) + result.as_ref().map_or(0, weight_of_value)
        }
        ItemBody::Compaction { summary: text, .. } | ItemBody::Notice { text, .. } => text.len(),
        ItemBody::QuestionAnswer { question, answer, .. } => question.len() + answer.len(),
        ItemBody::Rewind { .. }
        | ItemBody::Interruption { .. }
        | ItemBody::PermissionReceipt { .. }
        | ItemBody::Asset { .. } => 0,
    };
    FRAME_OF_AN_ITEM + body + item.meta.values().map(weight_of_value).sum::<usize>()
}

fn weight_of_part(part: &ContentPart) -> usize {
    match part {
        ContentPart::Text { text } | ContentPart::Reasoning { text, .. } => text.len(),
        ContentPart::Image { data, .. } => data.len(),
        ContentPart::ToolUse { input, .. } => weight_of_value(input),
        ContentPart::ToolResult { parts, .. } => parts.iter().map(weight_of_part).sum(),
    }
}

fn weight_of_value(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(weight_of_value).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + weight_of_value(value)).sum(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
