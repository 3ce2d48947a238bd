//! `bingo session rename` and `delete`: under the lock of the session, so never while a host has it open.

use std::process::ExitCode;

use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::session::SessionSummary;

use super::list::stored;
use super::{and_children, with_journal};
use crate::app::Places;
use crate::cli::CliError;
use crate::cli::tell::{confirmed, say};
use crate::ports::JournalError;

pub(super) fn rename(places: &Places, id: &SessionId, title: &str) -> Result<ExitCode, CliError> {
    if title.trim().is_empty() {
        let reason = "the title is empty".to_owned();
        return Err(CliError::Usage { reason, hint: "a title is what `bingo session list` shows" });
    }
    let (session, title) = (id.clone(), title.to_owned());
    with_journal(places, |journal| async move { journal.rename(session, title).await })?;
    say(&format!("renamed {id}"))
}

/// Deletes a session and its children, all or none of them.
pub(super) fn delete(places: &Places, id: &SessionId, yes: bool) -> Result<ExitCode, CliError> {
    let all = stored(places)?.sessions;
    let tree = below(&all, id);
    let children = and_children(tree.len() - 1);
    if !yes && !confirmed(&format!("Delete session {id}{children} for good?"))? {
        return Ok(ExitCode::FAILURE);
    }
    let gone = with_journal(places, |journal| async move { journal.delete_closed(tree).await })?;
    if gone.is_empty() {
        return Err(JournalError::NotFound { session: id.clone() }.into());
    }
    for session in gone.iter().rev() {
        say(&format!("deleted {session}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a session and those below it, each behind its parent.
fn below(all: &[SessionSummary], id: &SessionId) -> Vec<SessionId> {
    let mut tree = vec![id.clone()];
    let mut next = 0;
    while let Some(parent) = tree.get(next).cloned() {
        let of_parent =
            |one: &&SessionSummary| one.parent.as_ref().is_some_and(|link| link.session == parent);
        let new: Vec<SessionId> = all
            .iter()
            .filter(of_parent)
            .map(|one| one.id.clone())
            .filter(|child| !tree.contains(child))
            .collect();
        tree.extend(new);
        next += 1;
    }
    tree
}
