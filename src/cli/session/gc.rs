//! `bingo session gc`: clears away remains and, where asked, the oldest sessions. What somebody has open stays.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use super::list::words;
use super::{and_children, with_journal};
use crate::app::Places;
use crate::cli::CliError;
use crate::cli::tell::{remark, say};
use crate::journal::{Keep, SessionTree};
use crate::ports::JournalError;

/// How long a beginning may stand untouched before it counts as given up.
const GIVEN_UP: Duration = Duration::from_secs(3600);

pub(super) fn gc(places: &Places, keep: Keep, dry_run: bool) -> Result<ExitCode, CliError> {
    let said = if dry_run { "would remove" } else { "removed" };
    let now = SystemTime::now();
    let given_up = now - GIVEN_UP;
    let remains =
        with_journal(places, |journal| async move { journal.clear_remains(given_up, dry_run).await })?;
    for session in remains {
        say(&format!("{said} {session}: it was never begun"))?;
    }
    if keep.is_all() {
        return Ok(ExitCode::SUCCESS);
    }
    let overdue = with_journal(places, |journal| async move { journal.overdue(keep, now).await })?;
    overdue.problems.iter().for_each(|problem| remark(&format!("kept: {}", words(problem))));
    for tree in &overdue.trees {
        if dry_run || removed(places, tree)? {
            say(&format!("{said} {}", in_words(tree)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes a tree, unless one of it is open somewhere. Returns whether it did.
fn removed(places: &Places, tree: &SessionTree) -> Result<bool, CliError> {
    let sessions = tree.sessions.clone();
    match with_journal(places, |journal| async move { journal.delete_closed(sessions).await }) {
        Err(CliError::Journal(error @ JournalError::Locked { .. })) => {
            remark(&format!("kept: {error}"));
            Ok(false)
        }
        // Of what is gone already, somebody else said so.
        gone => Ok(!gone?.is_empty()),
    }
}

fn in_words(tree: &SessionTree) -> String {
    let children = and_children(tree.sessions.len() - 1);
    let root = tree.sessions.first().map(ToString::to_string).unwrap_or_default();
    format!("{root}{children}: last written {}, {} KiB", tree.updated_at, tree.bytes.div_ceil(1024))
}
