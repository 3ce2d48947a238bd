//! `bingo schema`: prints the schema of a wire, as it is committed.

use std::io::Write;
use std::process::ExitCode;

use bingo_plugin_sdk::schema;
use clap::ValueEnum;

use super::CliError;

/// A wire
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Which {
    /// What plugins and the host say to each other
    Plugin,
    /// What frontends and `bingo serve` say to each other
    Rpc,
}

pub(super) fn run(which: Which) -> Result<ExitCode, CliError> {
    let schema = match which {
        Which::Plugin => schema::plugin(),
        Which::Rpc => schema::rpc(),
    };
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(schema::to_text(&schema).as_bytes()).and_then(|()| stdout.flush());
    written.map(|()| ExitCode::SUCCESS).map_err(CliError::Output)
}
