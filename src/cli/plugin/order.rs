//! `bingo plugin restart`.

use std::process::ExitCode;

use super::{HostChoice, hosts, say};
use crate::cli::CliError;
use crate::control::Order;

pub(super) fn restart(name: &str, choice: &HostChoice) -> Result<ExitCode, CliError> {
    let mut host = hosts::one(choice)?;
    let done = host.order(Order::Restart, name)?;
    let generation = done.generation.unwrap_or_default();
    say(&format!("{name}: generation {generation} serves in the host {}", host.report.pid))
}
