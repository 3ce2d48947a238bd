//! `bingo plugin`: one file a subcommand, or a few that are alike.

mod hosts;
mod install;
mod list;
mod logs;
mod orders;
mod trust;
mod unpack;

use std::path::PathBuf;
use std::process::ExitCode;

use bingo_plugin_sdk::ids::PluginName;
use clap::{Args, Subcommand};

use super::tell::{confirmed, remark, say};
use super::{CliError, PlaceArgs};
pub(super) use unpack::UnpackError;

#[derive(Debug, Subcommand)]
pub(super) enum PluginCommand {
    /// Show the plugins of the hosts that run, or what would be started
    List {
        #[command(flatten)]
        hosts: HostChoice,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Replace the process of a plugin, from its files as they are now
    Restart {
        name: String,
        #[command(flatten)]
        hosts: HostChoice,
    },
    /// Switch a plugin on: in your settings, and in the hosts that run
    Enable(NameAndPlaces),
    /// Switch a plugin off: in your settings, and in the hosts that run
    Disable(NameAndPlaces),
    /// Show what a plugin wrote on stderr
    Logs(logs::LogsArgs),
    /// Copy a plugin, a folder or a `.tar.gz`, to your plugins
    Add {
        /// The folder that `plugin.json` stands in, or an archive of it
        path: PathBuf,
        /// Put it in the place of one that is there
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        places: PlaceArgs,
    },
    /// Delete one of your plugins
    Remove {
        #[command(flatten)]
        which: NameAndPlaces,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
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

/// One plugin
#[derive(Debug, Args)]
pub(super) struct NameAndPlaces {
    name: String,
    #[command(flatten)]
    places: PlaceArgs,
}

/// Which running host is meant
#[derive(Debug, Args)]
pub(super) struct HostChoice {
    /// The process id of the host that is meant, where several run
    #[arg(long, value_name = "PID")]
    host: Option<u32>,
    #[command(flatten)]
    places: PlaceArgs,
}

pub(super) fn run(command: &PluginCommand) -> Result<ExitCode, CliError> {
    match command {
        PluginCommand::List { hosts, json } => list::list(hosts, *json),
        PluginCommand::Restart { name, hosts } => orders::restart(name, hosts),
        PluginCommand::Enable(which) => orders::switch(which, true),
        PluginCommand::Disable(which) => orders::switch(which, false),
        PluginCommand::Logs(args) => logs::logs(args),
        PluginCommand::Add { path, replace, places } => install::add(path, *replace, places),
        PluginCommand::Remove { which, yes } => install::remove(which, *yes),
        PluginCommand::Trust { which, yes } => trust::trust(which, *yes),
        PluginCommand::Untrust { which } => trust::untrust(which),
    }
}

/// Returns a name that a plugin can have; anything else could lead elsewhere as part of a path.
fn plugin_name(name: &str) -> Result<PluginName, CliError> {
    PluginName::parse(name).ok_or_else(|| CliError::Usage {
        reason: format!("`{name}` cannot be a plugin's name"),
        hint: "`bingo plugin list` shows the names",
    })
}
