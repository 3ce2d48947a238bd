//! `bingo session verify`: every fault of every journal, each with file, line and offset.

use std::io::Write;
use std::process::ExitCode;

use bingo_plugin_sdk::ids::SessionId;
use serde_json::{Value, json};

use super::list::words;
use super::with_journal;
use crate::app::Places;
use crate::cli::CliError;
use crate::journal::Verified;
use crate::ports::JournalError;
use crate::printable;

/// Ends with 1 when there is a fault.
pub(super) fn verify(places: &Places, id: Option<SessionId>, as_json: bool) -> Result<ExitCode, CliError> {
    let all = with_journal(places, |journal| async move { journal.verify(id).await })?;
    let text = if as_json {
        let sessions: Vec<Value> = all.iter().map(as_value).collect();
        format!("{}\n", json!({ "sessions": sessions }))
    } else {
        all.iter().map(in_words).collect()
    };
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(CliError::Output)?;
    let sound = all.iter().all(|one| one.faults.is_empty());
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn in_words(verified: &Verified) -> String {
    let Verified { session, frames, torn, faults } = verified;
    let state = match faults.len() {
        0 => "sound".to_owned(),
        1 => "1 fault".to_owned(),
        count => format!("{count} faults"),
    };
    let torn = if *torn { ", the last write is unfinished (the next open cuts it)" } else { "" };
    let head = format!("{session}: {state}, {frames} frames{torn}\n");
    let told = faults.iter().map(|fault| format!("  {}\n", printable::line(&words(fault))));
    std::iter::once(head).chain(told).collect()
}

fn as_value(verified: &Verified) -> Value {
    let Verified { session, frames, torn, faults } = verified;
    let faults: Vec<Value> = faults.iter().map(fault).collect();
    json!({ "session": session, "frames": frames, "unfinished": torn, "faults": faults })
}

fn fault(fault: &JournalError) -> Value {
    match fault {
        JournalError::Damaged { path, line, offset, reason } => {
            json!({ "file": path, "line": line, "offset": offset, "reason": reason })
        }
        other => json!({ "reason": words(other) }),
    }
}
