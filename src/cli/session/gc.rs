//! `bingo session gc`: clears away remains and, where asked, old sessions. What somebody has open stays.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::session::SessionSummary;

use super::change::below;
use super::list::{stored, words};
use super::with_journal;
use crate::app::Places;
use crate::cli::CliError;
use crate::cli::tell::{remark, say};
use crate::ports::{Journal, JournalError};

/// How long a beginning may stand untouched before it counts as given up.
const GIVEN_UP: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(super) fn gc(places: &Places, older_than: Option<u32>, dry_run: bool) -> Result<ExitCode, CliError> {
    let said = if dry_run { "would remove" } else { "removed" };
    let before = SystemTime::now() - GIVEN_UP;
    let remains =
        with_journal(places, |journal| async move { journal.clear_remains(before, dry_run).await })?;
    for session in remains {
        say(&format!("{said} {session}: it was never begun"))?;
    }
    let Some(days) = older_than else { return Ok(ExitCode::SUCCESS) };
    let limit = jiff::Timestamp::try_from(SystemTime::now() - DAY * days).unwrap_or(jiff::Timestamp::MIN);
    let found = stored(places)?;
    found.problems.iter().for_each(|problem| remark(&format!("kept: {}", words(problem))));
    let mut kept = HashSet::new();
    for summary in old(&found.sessions, &format!("{limit:.3}")) {
        remove(places, summary, &mut kept, dry_run, said)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes one session, unless it or one below it is open somewhere: then it is noted in `kept`, with its parent.
fn remove(
    places: &Places,
    summary: &SessionSummary,
    kept: &mut HashSet<SessionId>,
    dry_run: bool,
    said: &str,
) -> Result<(), CliError> {
    let (id, parent) = (&summary.id, summary.parent.as_ref().map(|link| link.session.clone()));
    if kept.contains(id) {
        kept.extend(parent);
        return Ok(());
    }
    if !dry_run {
        let session = id.clone();
        match with_journal(places, |journal| async move { journal.delete(session).await }) {
            Err(CliError::Journal(error @ JournalError::Locked { .. })) => {
                kept.extend(parent);
                remark(&format!("kept: {error}"));
                return Ok(());
            }
            // Somebody else was faster.
            Err(CliError::Journal(JournalError::NotFound { .. })) => return Ok(()),
            deleted => deleted?,
        }
    }
    say(&format!("{said} {id}: last written {}", summary.updated_at)).map(drop)
}

/// Returns the sessions that were last written before `limit`, as all below them were; children before their parents.
fn old<'a>(all: &'a [SessionSummary], limit: &str) -> Vec<&'a SessionSummary> {
    let is_old = |id: &SessionId| all.iter().any(|one| one.id == *id && one.updated_at.as_str() < limit);
    let mut trees: Vec<(usize, &SessionSummary)> = all
        .iter()
        .map(|one| (below(all, &one.id), one))
        .filter(|(tree, _)| tree.iter().all(is_old))
        .map(|(tree, one)| (tree.len(), one))
        .collect();
    // A tree is larger than each tree in it.
    trees.sort_by_key(|(size, _)| *size);
    trees.into_iter().map(|(_, one)| one).collect()
}
