//! What the model sees of a session, and how a compaction changes it (kernel rules 4.5.45 to 48).

use std::sync::Arc;

use bingo_plugin_sdk::event::Event;
use bingo_plugin_sdk::item::{Item, ItemBody, ItemStatus, Level};
use tokio::sync::oneshot;

use super::actor::Actor;
use crate::kernel::compaction::Cut;
use crate::kernel::held::ItemKey;
use crate::kernel::response::new_item;
use crate::kernel::turn::{CompactionDone, Seen, Transcript};
use crate::kernel::view::View;

impl Actor {
    /// Returns the transcript as the model sees it, and how full its context is. The turn reads from the journal what is
    /// not held of it.
    pub(super) fn transcript(&mut self) -> Transcript {
        let items = match self.visible() {
            Some(items) => Seen::Held(items),
            None => Seen::Stored(self.published()),
        };
        Transcript {
            items,
            usage: self.state.context,
            counted: self.counted.clone(),
            failures: self.useless_compactions,
            summary: self.state.summary.clone(),
        }
    }

    /// Returns what the model sees, if all of it is held.
    fn visible(&self) -> Option<Vec<Arc<Item>>> {
        let held = &self.state.items;
        if !self.window.holds_all() && !Cut::is_within(&self.cuts, &held[self.window.early()..]) {
            return None;
        }
        if self.cuts.is_empty() {
            return Some(held.clone());
        }
        let places = Cut::visible(&self.cuts, held.iter().map(|item| ItemKey::of(&item.id)));
        Some(places.into_iter().map(|place| Arc::clone(&held[place])).collect())
    }

    /// Returns the transcript as it will be published, once all that was said so far is.
    fn published(&mut self) -> oneshot::Receiver<View> {
        let (reply, answer) = oneshot::channel();
        self.commit();
        self.outbox.view_when_stored(reply);
        answer
    }

    /// Takes a compactor's answer: the cut is published when it counts, and its cost is the turn's either way.
    pub(super) fn compacted(&mut self, done: CompactionDone) -> bool {
        let CompactionDone { compaction, took, verdict } = done;
        let Some(turn) = &mut self.turn else { return false };
        turn.usage += compaction.usage;
        let turn = turn.id.clone();
        let replaced = match verdict {
            Ok(replaced) => replaced,
            Err(reason) => {
                self.useless_compactions += 1;
                let text = format!("a compaction was thrown away: {reason}");
                self.emit(Event::Notice { level: Level::Warn, code: "COMPACTION_USELESS".to_owned(), text });
                return false;
            }
        };
        self.useless_compactions = 0;
        let body = ItemBody::Compaction {
            summary: compaction.summary.clone(),
            replaced,
            before: compaction.before,
            after: compaction.after,
            duration_ms: took.as_millis() as u64,
        };
        let item = new_item(Some(turn), 0, ItemStatus::Completed, body);
        let summary = item.id.clone();
        self.emit(Event::ItemCompleted { item: Arc::new(item) });
        let generation = self.state.history_generation + 1;
        let (boundary, kept) = (compaction.boundary, compaction.kept);
        let event = Event::Compacted { generation, boundary, summary, kept };
        // Nobody has counted the shorter context yet.
        self.counted = None;
        self.emit(event);
        true
    }
}
