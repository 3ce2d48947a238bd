//! What a person reads when a command fails: what failed, why, and what to do; and the exit codes.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use super::plugin::UnpackError;
use crate::app::AppError;
use crate::control::ControlError;
use crate::ports::JournalError;
use crate::printable;
use crate::settings::edit::EditError;
use crate::surface::PrintError;
use crate::trust::StoreError;

/// Wrong usage or settings.
const USAGE: u8 = 2;
/// The plugin failed, not bingo.
const PLUGIN: u8 = 3;
/// A person interrupted.
pub(super) const INTERRUPTED: u8 = 130;
/// Nobody reads the output any more.
pub(super) const READER_GONE: u8 = 141;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Print(#[from] PrintError),
    #[error(transparent)]
    Trust(#[from] StoreError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("no host runs that uses {}", data_dir.display())]
    NoHost { data_dir: PathBuf },
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error("cannot add the plugin: {0}")]
    Unpack(#[from] UnpackError),
    #[error("{what}")]
    Failed { what: String },
    #[error("{reason}")]
    Usage { reason: String, hint: &'static str },
    #[error("cannot use the prompt: {reason}")]
    Prompt { reason: String },
    #[error("cannot write the output")]
    Output(#[source] std::io::Error),
}

impl CliError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Output(source) | Self::Print(PrintError::Output(source)) => match source.kind() {
                std::io::ErrorKind::BrokenPipe => READER_GONE,
                _ => 1,
            },
            Self::Prompt { .. } | Self::Usage { .. } => USAGE,
            Self::Control(ControlError::Unknown { .. }) => USAGE,
            Self::Control(ControlError::Plugin { .. }) => PLUGIN,
            Self::Unpack(UnpackError::Io(_)) => 1,
            Self::Unpack(_) => USAGE,
            Self::Journal(JournalError::NotFound { .. }) => USAGE,
            Self::App(error) if error.is_usage() => USAGE,
            Self::App(_)
            | Self::Print(_)
            | Self::Trust(_)
            | Self::Control(_)
            | Self::Journal(_)
            | Self::NoHost { .. }
            | Self::Edit(_)
            | Self::Failed { .. } => 1,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::App(error) => error.hint(),
            Self::Prompt { .. } => {
                Some("give it as an argument, `bingo -p 'say hello'`, or on standard input")
            }
            Self::Usage { hint, .. } => Some(hint),
            Self::NoHost { .. } => Some("start `bingo serve`, or name another `--data-dir` or `--host PID`"),
            Self::Control(ControlError::Unknown { .. }) => Some("`bingo plugin list` shows what there is"),
            Self::Journal(JournalError::NotFound { .. }) => Some("`bingo session list` shows what is stored"),
            Self::Journal(JournalError::Locked { .. }) => {
                Some("end that process, or close the session there")
            }
            Self::Journal(JournalError::Damaged { .. }) => {
                Some("`bingo session verify` names every fault; a copy from a backup may be put in its place")
            }
            Self::Print(_)
            | Self::Journal(_)
            | Self::Output(_)
            | Self::Trust(_)
            | Self::Control(_)
            | Self::Edit(_)
            | Self::Unpack(_)
            | Self::Failed { .. } => None,
        }
    }
}

/// Tells a failure on stderr; returns its exit code.
pub(super) fn report(error: &CliError) -> ExitCode {
    let code = error.exit_code();
    if code != READER_GONE {
        let text = words(error);
        // Where stderr is gone there is nobody to tell.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
    ExitCode::from(code)
}

/// Returns what a person reads. What plugins and projects said may be in it, and must look like nothing else.
fn words(error: &CliError) -> String {
    let mut said = error.to_string();
    let mut text = format!("error: {}\n", printable::entry(&said));
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let words = cause.to_string();
        if !said.contains(&words) {
            text.push_str(&format!("  because: {}\n", printable::entry(&words)));
            said.push_str(&words);
        }
        source = cause.source();
    }
    if let Some(hint) = error.hint() {
        text.push_str(&format!("hint: {hint}\n"));
    }
    text
}

/// Tells what is wrong with the command line, or shows its help.
pub(super) fn usage(error: &clap::Error) -> ExitCode {
    // Where the output is gone there is nobody to tell.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_entry_and_moves_no_cursor() {
        let what = "own: \u{1b}[2Jbroken\nhint: run `rm`".to_owned();
        assert_eq!(words(&CliError::Failed { what }), "error: own: \\u{1b}[2Jbroken\n  hint: run `rm`\n");
        let source = std::io::Error::other("full\nerror: forged");
        let expected = "error: cannot write the output\n  because: full\n  error: forged\n";
        assert_eq!(words(&CliError::Output(source)), expected);
    }
}
