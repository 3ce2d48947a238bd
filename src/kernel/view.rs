//! A transcript as it was published at one moment: what is held of it, and the rest by its places in the journal.
//!
//! It is how items older than the window are read: pages of history, what the model sees, and where a rewind goes.

use std::ops::Range;
use std::sync::Arc;

use bingo_plugin_sdk::event::{ErrorCode, Event, KernelError};
use bingo_plugin_sdk::ids::{ItemId, SessionId};
use bingo_plugin_sdk::item::Item;

use super::compaction::Cut;
use super::held::{ItemKey, Place};
use super::outbox::json_length;
use super::replay::Replay;
use crate::ports::Journal;

/// How many items are read from the journal at a time while it is not known how many fit.
const CHUNK: usize = 256;

/// A transcript. Its items are counted from 0, the oldest first.
#[derive(Debug)]
pub(super) struct View {
    session: SessionId,
    generation: u64,
    older: Arc<Vec<Place>>,
    /// Unfinished items among the older ones.
    early: Vec<Arc<Item>>,
    /// The newest items.
    held: Vec<Arc<Item>>,
    cuts: Vec<Cut>,
}

impl View {
    /// Returns the transcript of a fold.
    pub(super) fn of(replay: &Replay) -> Self {
        let (early, held) = replay.state.items.split_at(replay.window.early());
        Self {
            session: replay.state.summary.id.clone(),
            generation: replay.state.history_generation,
            older: replay.window.older(),
            early: early.to_vec(),
            held: held.to_vec(),
            cuts: replay.cuts.clone(),
        }
    }

    /// Returns how often the history was cut or went back.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns how many items there are.
    pub(super) fn len(&self) -> usize {
        self.older.len() + self.held.len()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns where an item stands.
    pub(super) fn position(&self, id: &ItemId) -> Option<usize> {
        let held = self.held.iter().rposition(|item| item.id == *id);
        let key = ItemKey::of(id);
        held.map(|at| self.older.len() + at).or_else(|| self.older.iter().rposition(|place| place.key == key))
    }

    /// Returns the newest items before `end`, at most so many and of at most so many bytes as JSON; one item is returned
    /// however large it is.
    ///
    /// # Errors
    /// `STORAGE` when older items cannot be read.
    pub(super) async fn ending_at(
        &self,
        journal: &dyn Journal,
        end: usize,
        most: usize,
        bytes: usize,
    ) -> Result<Vec<Arc<Item>>, KernelError> {
        let mut newest_first = Vec::new();
        let mut taken = 0;
        let mut start = end;
        while start > 0 && newest_first.len() < most {
            let chunk = CHUNK.min(most - newest_first.len()).min(start);
            for item in self.range(journal, start - chunk..start).await?.into_iter().rev() {
                taken += json_length(&item);
                if taken > bytes && !newest_first.is_empty() {
                    newest_first.reverse();
                    return Ok(newest_first);
                }
                newest_first.push(item);
            }
            start -= chunk;
        }
        newest_first.reverse();
        Ok(newest_first)
    }

    /// Returns these items.
    ///
    /// # Errors
    /// `STORAGE` when older ones cannot be read.
    pub(super) async fn range(
        &self,
        journal: &dyn Journal,
        range: Range<usize>,
    ) -> Result<Vec<Arc<Item>>, KernelError> {
        self.items(journal, &range.collect::<Vec<_>>()).await
    }

    /// Returns what the model sees, in its order.
    ///
    /// # Errors
    /// `STORAGE` when older items cannot be read.
    pub(super) async fn visible(&self, journal: &dyn Journal) -> Result<Vec<Arc<Item>>, KernelError> {
        let older = self.older.iter().map(|place| place.key);
        let transcript = older.chain(self.held.iter().map(|item| ItemKey::of(&item.id)));
        self.items(journal, &Cut::visible(&self.cuts, transcript)).await
    }

    /// Returns the items at these positions, in the given order.
    async fn items(&self, journal: &dyn Journal, positions: &[usize]) -> Result<Vec<Arc<Item>>, KernelError> {
        let stored = positions.iter().filter_map(|at| self.older.get(*at)).filter(|place| place.seq.0 > 0);
        let mut seqs: Vec<_> = stored.map(|place| place.seq).collect();
        seqs.sort_unstable();
        let frames = match seqs.is_empty() {
            true => Vec::new(),
            false => journal.pick(self.session.clone(), seqs).await.map_err(|error| error.to_kernel())?,
        };
        let find = |place: &Place| {
            let early = || self.early.iter().find(|item| ItemKey::of(&item.id) == place.key);
            match frames.binary_search_by_key(&place.seq, |frame| frame.seq) {
                Ok(at) => item_of(&frames[at].event).filter(|item| ItemKey::of(&item.id) == place.key),
                Err(_) => early(),
            }
        };
        let item = |at: &usize| match self.older.get(*at) {
            Some(place) => find(place).cloned().ok_or_else(|| self.missing(place)),
            None => Ok(Arc::clone(&self.held[at - self.older.len()])),
        };
        positions.iter().map(item).collect()
    }

    fn missing(&self, place: &Place) -> KernelError {
        let Place { seq, .. } = place;
        let message =
            format!("the journal of session {} no longer has the item of frame {seq}", self.session);
        KernelError::new(ErrorCode::Storage, message)
    }
}

fn item_of(event: &Event) -> Option<&Arc<Item>> {
    match event {
        Event::ItemStarted { item } | Event::ItemUpdated { item } | Event::ItemCompleted { item } => {
            Some(item)
        }
        _ => None,
    }
}
