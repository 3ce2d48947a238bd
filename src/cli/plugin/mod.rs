//! `bingo plugin`: one file a subcommand.

mod trust;

use std::process::ExitCode;

use clap::Subcommand;

use super::CliError;

#[derive(Debug, Subcommand)]
pub(super) enum PluginCommand {
    /// Let a project's plugins be started and its settings count, as they are now
    Trust {
        #[command(flatten)]
        which: trust::Which,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Take that back
    Untrust {
        #[command(flatten)]
        which: trust::Which,
    },
}

pub(super) fn run(command: &PluginCommand) -> Result<ExitCode, CliError> {
    match command {
        PluginCommand::Trust { which, yes } => trust::trust(which, *yes),
        PluginCommand::Untrust { which } => trust::untrust(which),
    }
}
