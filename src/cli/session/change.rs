//! `bingo session rename` and `delete`: under the lock of the session, so never while a host has it open.

use std::process::ExitCode;

use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::session::SessionSummary;

use super::list::stored;
use super::with_journal;
use crate::app::Places;
use crate::cli::CliError;
use crate::cli::tell::{confirmed, say};
use crate::ports::Journal;

pub(super) fn rename(places: &Places, id: &SessionId, title: &str) -> Result<ExitCode, CliError> {
    if title.trim().is_empty() {
        let reason = "the title is empty".to_owned();
        return Err(CliError::Usage { reason, hint: "a title is what `bingo session list` shows" });
    }
    let (session, title) = (id.clone(), title.to_owned());
    with_journal(places, |journal| async move { journal.rename(session, title).await })?;
    say(&format!("renamed {id}"))
}

/// Deletes a session behind its children, so that none is left without its parent.
pub(super) fn delete(places: &Places, id: &SessionId, yes: bool) -> Result<ExitCode, CliError> {
    let all = stored(places)?.sessions;
    let tree = below(&all, id);
    let children = match tree.len() - 1 {
        0 => String::new(),
        1 => " and its child session".to_owned(),
        count => format!(" and its {count} child sessions"),
    };
    if !yes && !confirmed(&format!("Delete session {id}{children} for good?"))? {
        return Ok(ExitCode::FAILURE);
    }
    for session in tree.into_iter().rev() {
        let gone = session.clone();
        with_journal(places, |journal| async move { journal.delete(session).await })?;
        say(&format!("deleted {gone}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a session and those below it, each behind its parent.
pub(super) fn below(all: &[SessionSummary], id: &SessionId) -> Vec<SessionId> {
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
