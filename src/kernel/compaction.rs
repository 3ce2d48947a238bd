//! Compaction: when the context is shortened, what the model sees afterwards, and when it is given up
//! (kernel rules 4.5.41 to 48).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bingo_plugin_sdk::calls::Compaction;
use bingo_plugin_sdk::event::{ContextUsage, Event};
use bingo_plugin_sdk::ids::ItemId;
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody};
use serde::{Deserialize, Serialize};

use super::held::ItemKey;

/// Compactions thrown away in a row after which automatic ones are skipped.
pub(super) const BREAKER: u32 = 3;
/// Threshold compactions in one turn.
pub(super) const MAX_PER_TURN: u32 = 2;
/// Tool results that keep their text after an overflow.
const KEPT_RESULTS: usize = 4;
/// The most characters of an older tool result that keeps its text after an overflow.
const SHORT_RESULT: usize = 1000;
/// Characters that count as one token where nobody counted.
const CHARACTERS_PER_TOKEN: u64 = 4;

/// An accepted cut: what the model sees in the place of the items before its boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cut {
    boundary: ItemKey,
    summary: ItemKey,
    kept: Vec<ItemKey>,
}

impl Cut {
    /// Folds an event into the cuts of a session. A rewind takes a cut away with its summary, so that the model sees
    /// again what it hid.
    pub(super) fn fold(cuts: &mut Vec<Self>, event: &Event) {
        match event {
            Event::Compacted { boundary, summary, kept, .. } => {
                let kept = kept.iter().map(ItemKey::of).collect();
                cuts.push(Self { boundary: ItemKey::of(boundary), summary: ItemKey::of(summary), kept });
            }
            Event::Rewound { dropped, .. } if !cuts.is_empty() => {
                let dropped: HashSet<ItemKey> = dropped.iter().map(ItemKey::of).collect();
                cuts.retain(|cut| !dropped.contains(&cut.summary));
            }
            _ => {}
        }
    }

    /// Returns where in a transcript the items stand that the model sees, in its order: kept items, the summary, the items
    /// from the boundary on (kernel rule 4.5.47). Each cut is made where its summary stands, in what the cuts before it
    /// left.
    pub(super) fn visible(cuts: &[Self], transcript: impl Iterator<Item = ItemKey>) -> Vec<usize> {
        let summaries: HashMap<ItemKey, &Self> = cuts.iter().rev().map(|cut| (cut.summary, cut)).collect();
        let mut visible = Vec::new();
        for (place, key) in transcript.enumerate() {
            match summaries.get(&key) {
                Some(cut) => cut.apply(&mut visible, (key, place)),
                None => visible.push((key, place)),
            }
        }
        visible.into_iter().map(|(_, place)| place).collect()
    }

    /// Returns whether what the model sees is known from the end of a transcript alone: the first cut that is made there
    /// takes nothing from before it.
    pub(super) fn is_within(cuts: &[Self], end: &[Arc<Item>]) -> bool {
        let keys: Vec<ItemKey> = end.iter().map(|item| ItemKey::of(&item.id)).collect();
        let first = keys.iter().find_map(|key| cuts.iter().find(|cut| cut.summary == *key));
        first.is_some_and(|cut| keys.contains(&cut.boundary) && cut.kept.iter().all(|key| keys.contains(key)))
    }

    fn apply(&self, visible: &mut Vec<(ItemKey, usize)>, summary: (ItemKey, usize)) {
        // An earlier cut may have hidden the boundary; then the summary alone stands for what came before it.
        let boundary = visible.iter().position(|(key, _)| *key == self.boundary).unwrap_or(visible.len());
        let rest = visible.split_off(boundary);
        visible.retain(|(key, _)| self.kept.contains(key));
        visible.push(summary);
        visible.extend(rest);
    }
}

/// Returns how many items a compaction replaces in what the model sees, or why it is thrown away.
pub(super) fn judge(compaction: &Compaction, items: &[Arc<Item>]) -> Result<u32, String> {
    match useless(compaction, items) {
        Some(reason) => Err(reason),
        None => Ok(replaced(compaction, items)),
    }
}

fn replaced(compaction: &Compaction, items: &[Arc<Item>]) -> u32 {
    let before = items.iter().take_while(|item| item.id != compaction.boundary);
    before.filter(|item| !compaction.kept.contains(&item.id)).count() as u32
}

fn useless(compaction: &Compaction, items: &[Arc<Item>]) -> Option<String> {
    let known = |id: &ItemId| items.iter().any(|item| item.id == *id);
    if compaction.after >= compaction.before {
        return Some(format!("it would leave {} tokens of {}", compaction.after, compaction.before));
    }
    if !known(&compaction.boundary) {
        return Some(format!("its boundary {} is no item of the context", compaction.boundary));
    }
    let stray = compaction.kept.iter().find(|id| !known(id))?;
    Some(format!("it keeps {stray}, which is no item of the context"))
}

/// Returns the context's size now: what the last response counted, and what came since by estimate.
pub(super) fn estimate(last: Option<&ContextUsage>, since: &[Arc<Item>]) -> u64 {
    let counted = last.map_or(0, |usage| usage.used);
    counted.saturating_add(since.iter().map(|item| tokens(item)).sum())
}

/// Replaces the text of long tool results by a note, all but the last few, for the retry after an overflow.
pub(super) fn elide(items: &mut [Arc<Item>]) {
    let results = items
        .iter_mut()
        .rev()
        .filter(|item| matches!(&item.body, ItemBody::ToolCall { output: Some(_), .. }));
    for item in results.skip(KEPT_RESULTS) {
        let length = result_characters(item);
        if length <= SHORT_RESULT {
            continue;
        }
        if let ItemBody::ToolCall { output: Some(output), .. } = &mut Arc::make_mut(item).body {
            output.parts = vec![ContentPart::text(format!("[tool result elided: {length} chars]"))];
        }
    }
}

fn tokens(item: &Item) -> u64 {
    let characters: usize = match &item.body {
        ItemBody::User { parts, .. } => parts.iter().map(part_characters).sum(),
        ItemBody::Assistant { text } | ItemBody::Reasoning { text, .. } => text.chars().count(),
        ItemBody::Compaction { summary, .. } => summary.chars().count(),
        ItemBody::ToolCall { input, .. } => input.to_string().len() + result_characters(item),
        _ => 0,
    };
    characters as u64 / CHARACTERS_PER_TOKEN
}

fn result_characters(item: &Item) -> usize {
    match &item.body {
        ItemBody::ToolCall { output: Some(output), .. } => output.parts.iter().map(part_characters).sum(),
        _ => 0,
    }
}

fn part_characters(part: &ContentPart) -> usize {
    match part {
        ContentPart::Text { text } => text.chars().count(),
        // Providers count a picture by its size in pixels; this is a usual one.
        ContentPart::Image { .. } => 6000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::event::Usage;
    use bingo_plugin_sdk::item::{ItemStatus, Origin, ToolOutput};
    use serde_json::json;

    use super::*;
    use crate::kernel::response::new_item;

    fn user(text: &str) -> Arc<Item> {
        let body = ItemBody::User { parts: vec![ContentPart::text(text)], origin: Origin::surface("t") };
        Arc::new(new_item(None, 0, ItemStatus::Completed, body))
    }

    fn call(text: &str) -> Arc<Item> {
        let body = ItemBody::ToolCall {
            call_id: "c".to_owned(),
            name: "n".to_owned(),
            input: json!({}),
            output: Some(ToolOutput::text(text)),
            progress: None,
            duration_ms: None,
        };
        Arc::new(new_item(None, 0, ItemStatus::Completed, body))
    }

    fn compaction(boundary: &ItemId, kept: &[&ItemId], before: u64, after: u64) -> Compaction {
        let kept = kept.iter().map(|id| (*id).clone()).collect();
        let (summary, boundary) = ("s".to_owned(), boundary.clone());
        Compaction { summary, boundary, kept, before, after, usage: Usage::default() }
    }

    fn summary(text: &str) -> Arc<Item> {
        let summary = text.to_owned();
        let body = ItemBody::Compaction { summary, replaced: 0, before: 2, after: 1, duration_ms: 0 };
        Arc::new(new_item(None, 0, ItemStatus::Completed, body))
    }

    fn cut(boundary: &Arc<Item>, summary: &Arc<Item>, kept: &[&Arc<Item>]) -> Cut {
        let key = |item: &Arc<Item>| ItemKey::of(&item.id);
        Cut {
            boundary: key(boundary),
            summary: key(summary),
            kept: kept.iter().map(|item| key(item)).collect(),
        }
    }

    #[test]
    fn the_model_sees_kept_items_the_summary_and_the_rest() {
        let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(user);
        let (first, second) = (summary("first"), summary("second"));
        let items = [&a, &b, &c, &first, &d, &second, &e].map(Arc::clone);
        let sees = |cuts: &[Cut], expected: &[&Arc<Item>]| {
            let place = |item: &&Arc<Item>| items.iter().position(|other| other.id == item.id).unwrap();
            let expected: Vec<usize> = expected.iter().map(place).collect();
            assert_eq!(Cut::visible(cuts, items.iter().map(|item| ItemKey::of(&item.id))), expected);
        };
        sees(&[], &[&a, &b, &c, &first, &d, &second, &e]);
        let one = cut(&c, &first, &[&a]);
        sees(&[one.clone(), cut(&d, &second, &[&a])], &[&a, &second, &d, &e]);
        sees(&[one.clone(), cut(&c, &second, &[])], &[&second, &c, &d, &e]);
        sees(&[one.clone(), cut(&first, &second, &[&a])], &[&a, &second, &first, &c, &d, &e]);
        sees(&[one, cut(&b, &second, &[])], &[&second, &e]);
    }

    #[test]
    fn only_a_smaller_context_of_known_items_counts() {
        let items = [user("a"), user("b")];
        let (first, unknown) = (&items[0].id, ItemId::from("x"));
        assert_eq!(useless(&compaction(first, &[], 10, 9), &items), None);
        for wrong in [
            compaction(first, &[], 10, 10),
            compaction(&unknown, &[], 10, 9),
            compaction(first, &[&unknown], 10, 9),
        ] {
            assert!(useless(&wrong, &items).is_some(), "{wrong:?}");
        }
        assert_eq!(judge(&compaction(first, &[], 10, 9), &items), Ok(0));
        assert_eq!(judge(&compaction(&items[1].id, &[], 10, 9), &items), Ok(1));
        assert!(judge(&compaction(first, &[], 10, 10), &items).is_err());
        assert_eq!(replaced(&compaction(&items[1].id, &[], 10, 9), &items), 1);
        assert_eq!(replaced(&compaction(&items[1].id, &[first], 10, 9), &items), 0);
    }

    /// Rule 4.5.46.
    #[test]
    fn long_results_but_the_last_four_are_elided() {
        let long = "x".repeat(1001);
        let mut items: Vec<_> = (0..6).map(|_| call(&long)).collect();
        items.insert(0, call("short"));
        elide(&mut items);
        let lengths: Vec<usize> = items.iter().map(|item| result_characters(item)).collect();
        assert_eq!(lengths, [5, 32, 32, 1001, 1001, 1001, 1001]);
    }

    /// Rule 4.5.42.
    #[test]
    fn what_came_since_the_last_count_is_estimated() {
        let usage = ContextUsage { used: 100, window: 1000, trigger: 900 };
        assert_eq!(estimate(Some(&usage), &[user(&"x".repeat(40))]), 110);
        assert_eq!(estimate(None, &[]), 0);
        assert_eq!(estimate(None, &[summary(&"x".repeat(40))]), 10);
        assert_eq!(estimate(None, &[call(&"x".repeat(38))]), 10, "a call and its result");
        let picture = ContentPart::Image { media_type: "image/png".to_owned(), data: String::new() };
        let body = ItemBody::User { parts: vec![picture], origin: Origin::surface("t") };
        assert_eq!(estimate(None, &[Arc::new(new_item(None, 0, ItemStatus::Completed, body))]), 1500);
    }
}
