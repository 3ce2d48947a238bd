//! Going back in a session: its turns as a person picks one, and what going back before one takes away (kernel rule
//! 3.6.48).
//!
//! Nothing here changes a session: it reads a published transcript, however much of it is held.

use std::sync::Arc;

use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::ids::{ItemId, TurnId};
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody};
use bingo_plugin_sdk::view::View as Shown;

use super::view::View;
use crate::ports::Journal;

/// How many items are read at a time, the newest first.
const CHUNK: usize = 256;
/// The most turns that are listed: the newest.
const LISTED: usize = 500;
/// The most characters of a turn's first words.
const WORDS: usize = 60;

/// What going back before a turn takes away.
#[derive(Debug)]
pub(super) struct Rewinding {
    pub(super) turn: TurnId,
    /// Everything from the turn's first item on, in the order of the transcript; the last one was the newest item.
    pub(super) dropped: Vec<ItemId>,
}

/// Returns what going back before a turn takes away: its first item and all that follows, also what is of no turn.
///
/// # Errors
/// `INVALID_INPUT` when no item is of this turn; `STORAGE` when older items cannot be read.
pub(super) async fn before(
    view: &View,
    journal: &dyn Journal,
    turn: TurnId,
) -> Result<Rewinding, KernelError> {
    let (mut newest_first, mut through) = (Vec::new(), None);
    let mut reader = Reader::of(view, journal);
    while let Some(item) = reader.next().await? {
        newest_first.push(item.id.clone());
        if item.turn.as_ref() == Some(&turn) {
            through = Some(newest_first.len());
        } else if item.turn.is_some() && through.is_some() {
            // Turns follow each other, so nothing of this one stands before another.
            break;
        }
    }
    let Some(through) = through else {
        let message = format!("this session has no turn {turn}; `/rewind` without a turn lists them");
        return Err(KernelError::new(ErrorCode::InvalidInput, message));
    };
    newest_first.truncate(through);
    newest_first.reverse();
    Ok(Rewinding { turn, dropped: newest_first })
}

/// Returns the newest turns as a table, the last one at its end.
///
/// # Errors
/// `STORAGE` when older items cannot be read.
pub(super) async fn turns(view: &View, journal: &dyn Journal) -> Result<Shown, KernelError> {
    let mut newest_first: Vec<Line> = Vec::new();
    let mut reader = Reader::of(view, journal);
    let mut are_all = true;
    while let Some(item) = reader.next().await? {
        let Some(turn) = &item.turn else { continue };
        if newest_first.last().is_none_or(|line| line.turn != *turn) {
            if newest_first.len() == LISTED {
                are_all = false;
                break;
            }
            newest_first.push(Line { turn: turn.clone(), words: None, when: String::new() });
        }
        if let Some(line) = newest_first.last_mut() {
            line.when.clone_from(&item.started_at);
            line.words = words(&item).or(line.words.take());
        }
    }
    let headers = ["turn", "first words", "when"].map(str::to_owned).to_vec();
    let table = Shown::Table { headers, rows: newest_first.into_iter().rev().map(Line::row).collect() };
    if are_all {
        return Ok(table);
    }
    let text = format!("The newest {LISTED} turns; `/rewind TURN` takes older ones too.");
    Ok(Shown::Stack { children: vec![table, Shown::Text { text }] })
}

/// A turn as it is listed.
struct Line {
    turn: TurnId,
    /// What was said first; nothing for a turn that nobody said anything in.
    words: Option<String>,
    /// When its first item began: RFC 3339, UTC.
    when: String,
}

impl Line {
    fn row(self) -> Vec<String> {
        vec![self.turn.to_string(), self.words.unwrap_or_default(), self.when]
    }
}

/// Returns the beginning of what a user item says, on one line. Pieces of contributors are nobody's words.
fn words(item: &Item) -> Option<String> {
    let ItemBody::User { parts, origin } = &item.body else { return None };
    if origin.surface.starts_with("contributor:") {
        return None;
    }
    let text = parts.iter().find_map(|part| match part {
        ContentPart::Text { text } => Some(text.as_str()),
        _ => None,
    });
    let text = text.unwrap_or("(an image)").split_whitespace().collect::<Vec<_>>().join(" ");
    Some(match text.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    })
}

/// Reads a transcript backwards.
struct Reader<'a> {
    view: &'a View,
    journal: &'a dyn Journal,
    /// Where what was read so far begins.
    start: usize,
    /// Read and not taken yet, the newest at its end.
    chunk: Vec<Arc<Item>>,
}

impl<'a> Reader<'a> {
    fn of(view: &'a View, journal: &'a dyn Journal) -> Self {
        Self { view, journal, start: view.len(), chunk: Vec::new() }
    }

    async fn next(&mut self) -> Result<Option<Arc<Item>>, KernelError> {
        if self.chunk.is_empty() {
            let end = self.start;
            self.start = end.saturating_sub(CHUNK);
            self.chunk = self.view.range(self.journal, self.start..end).await?;
        }
        Ok(self.chunk.pop())
    }
}
