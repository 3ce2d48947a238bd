//! `bingo session rename` and `delete`: under the lock of the session, so never while a host has it open.

use std::process::ExitCode;

use bingo_plugin_sdk::ids::SessionId;

use super::list::stored;
use super::{and_children, with_journal};
use crate::app::Places;
use crate::cli::CliError;
use crate::cli::tell::{confirmed, say};
use crate::journal::below;
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
