//! What the model sees of a session, and how a compaction changes it (kernel rules 4.5.45 to 48).

use std::sync::Arc;

use bingo_plugin_sdk::event::Event;
use bingo_plugin_sdk::item::{ItemBody, ItemStatus, Level};

use super::actor::Actor;
use crate::kernel::compaction::{self, Cut};
use crate::kernel::response::new_item;
use crate::kernel::turn::{CompactionDone, Transcript};

impl Actor {
    /// Returns the transcript as the model sees it, and how full its context is.
    pub(super) fn transcript(&self) -> Transcript {
        let items = Cut::visible(&self.cuts, &self.state.items);
        let counted = self.counted.as_ref().and_then(|id| items.iter().rposition(|item| item.id == *id));
        let uncounted = items.len() - counted.map_or(0, |place| place + 1);
        Transcript {
            uncounted,
            usage: self.state.context.filter(|_| counted.is_some()),
            failures: self.useless_compactions,
            summary: self.state.summary.clone(),
            items,
        }
    }

    /// Takes a compactor's answer: the cut is published when it counts, and its cost is the turn's either way.
    pub(super) fn compacted(&mut self, done: CompactionDone) -> bool {
        let CompactionDone { compaction, took } = done;
        let Some(turn) = &mut self.turn else { return false };
        turn.usage += compaction.usage;
        let turn = turn.id.clone();
        let visible = Cut::visible(&self.cuts, &self.state.items);
        if let Some(reason) = compaction::useless(&compaction, &visible) {
            self.useless_compactions += 1;
            let text = format!("a compaction was thrown away: {reason}");
            self.emit(Event::Notice { level: Level::Warn, code: "COMPACTION_USELESS".to_owned(), text });
            return false;
        }
        self.useless_compactions = 0;
        let body = ItemBody::Compaction {
            summary: compaction.summary.clone(),
            replaced: compaction::replaced(&compaction, &visible),
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
        self.cuts.extend(Cut::of(&event));
        // Nobody has counted the shorter context yet.
        self.counted = None;
        self.emit(event);
        true
    }
}
