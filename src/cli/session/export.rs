//! `bingo session export`: the transcript of a session, for people or for programs.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::ids::{Seq, SessionId};
use bingo_plugin_sdk::state::SessionState;
use serde_json::json;

use super::{ExportFormat, markdown, with_journal};
use crate::app::Places;
use crate::cli::CliError;
use crate::ports::{Journal, JournalError};

pub(super) fn export(
    places: &Places,
    id: &SessionId,
    format: ExportFormat,
    output: Option<&Path>,
) -> Result<ExitCode, CliError> {
    let session = id.clone();
    let frames =
        with_journal(places, |journal| async move { journal.read(session, Seq(0), Seq(u64::MAX)).await })?;
    let state = fold(&frames).ok_or_else(|| JournalError::NotFound { session: id.clone() })?;
    let text = match format {
        ExportFormat::Md => markdown::transcript(&state),
        ExportFormat::Json => format!("{}\n", json!({ "summary": state.summary, "items": state.items })),
    };
    match output {
        None => io::stdout().lock().write_all(text.as_bytes()).map_err(CliError::Output)?,
        Some(path) => write_new(path, &text)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn fold(frames: &[Frame]) -> Option<SessionState> {
    let Event::SessionUpdated { summary } = &frames.first()?.event else { return None };
    let mut state = SessionState::new((**summary).clone());
    frames.iter().for_each(|frame| state.apply(frame));
    state.summary.busy = false;
    Some(state)
}

/// Writes a file that was not there; one that cannot be written to its end is taken away again.
fn write_new(path: &Path, text: &str) -> Result<(), CliError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    // Transcripts are private.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let failed =
        |source: io::Error| CliError::Failed { what: format!("cannot write {}: {source}", path.display()) };
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| {
        // The error that counts is the first one.
        let _ = std::fs::remove_file(path);
        failed(error)
    })
}
