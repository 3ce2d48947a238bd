//! `bingo session list` and `show`: summaries of what is stored.

use std::io::Write;
use std::process::ExitCode;

use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::session::SessionSummary;
use serde_json::json;

use super::with_journal;
use crate::app::Places;
use crate::cli::CliError;
use crate::cli::tell::{remark, table};
use crate::ports::{Journal, JournalError, StoredSessions};
use crate::printable;

pub(super) fn list(places: &Places, as_json: bool) -> Result<ExitCode, CliError> {
    let StoredSessions { mut sessions, problems } = stored(places)?;
    sessions.sort_by(|a, b| b.updated_at.cmp(&a.updated_at).then_with(|| a.id.as_str().cmp(b.id.as_str())));
    let text = if as_json {
        let problems: Vec<String> = problems.iter().map(words).collect();
        format!("{}\n", json!({ "sessions": sessions, "problems": problems }))
    } else {
        problems.iter().for_each(|problem| remark(&words(problem)));
        let heads = ["ID", "UPDATED", "MESSAGES", "MODEL", "FOLDER", "TITLE"];
        table(heads, sessions.iter().map(row).collect())
    };
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(CliError::Output)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn show(places: &Places, id: &SessionId, as_json: bool) -> Result<ExitCode, CliError> {
    let summary = find(places, id)?;
    let text = if as_json { format!("{}\n", json!(summary)) } else { facts(&summary) };
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(CliError::Output)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the summaries of all sessions, in no order.
pub(super) fn stored(places: &Places) -> Result<StoredSessions, CliError> {
    with_journal(places, |journal| async move { journal.list().await })
}

/// Returns the summary of one session; for one that cannot be read, why.
fn find(places: &Places, id: &SessionId) -> Result<SessionSummary, CliError> {
    let StoredSessions { sessions, .. } = stored(places)?;
    if let Some(summary) = sessions.into_iter().find(|summary| summary.id == *id) {
        return Ok(summary);
    }
    let wanted = id.clone();
    let verified = with_journal(places, |journal| async move { journal.verify(Some(wanted)).await })?;
    let fault = verified.into_iter().flat_map(|one| one.faults).next();
    Err(fault.unwrap_or_else(|| JournalError::NotFound { session: id.clone() }).into())
}

/// Returns an error with its cause, on one line.
pub(super) fn words(error: &JournalError) -> String {
    error.to_kernel().message
}

fn row(summary: &SessionSummary) -> [String; 6] {
    let or_none = |text: Option<&str>| text.unwrap_or("-").to_owned();
    [
        summary.id.to_string(),
        summary.updated_at.clone(),
        summary.messages.map_or_else(|| "-".to_owned(), |count| count.to_string()),
        or_none(summary.model.as_deref()),
        summary.cwd.clone(),
        or_none(summary.title.as_deref()),
    ]
}

fn facts(summary: &SessionSummary) -> String {
    let parent = summary.parent.as_ref().map(|link| link.session.to_string());
    let messages = summary.messages.map(|count| count.to_string());
    let (input, output) = (summary.usage.input_tokens, summary.usage.output_tokens);
    let rows = [
        ("id", Some(summary.id.to_string())),
        ("title", summary.title.clone()),
        ("key", summary.key.clone()),
        ("parent", parent),
        ("folder", Some(summary.cwd.clone())),
        ("provider", summary.provider.clone()),
        ("model", summary.model.clone()),
        ("created", Some(summary.created_at.clone())),
        ("updated", Some(summary.updated_at.clone())),
        ("messages", messages),
        ("tokens", Some(format!("{input} in, {output} out"))),
    ];
    let lines = rows.into_iter().filter_map(|(name, value)| Some((name, value?)));
    lines.map(|(name, value)| format!("{name:10}{}\n", printable::line(&value))).collect()
}
