//! What hosts that run are told: `bingo plugin restart`, and `enable` and `disable`, which are a line of the person's settings
//! too.

use std::process::ExitCode;

use super::hosts::{self, Hosts};
use super::{HostChoice, NameAndPlaces, plugin_name, remark, say};
use crate::app::{AppError, Places};
use crate::cli::CliError;
use crate::control::{ControlError, Done, Order};
use crate::settings::{self, edit};
use crate::trust::TrustStore;

pub(super) fn restart(name: &str, choice: &HostChoice) -> Result<ExitCode, CliError> {
    let mut host = hosts::one(choice)?;
    let done = host.order(Order::Restart, name)?;
    say(&outcome(name, done, host.report.pid))
}

/// Says what an order came to.
fn outcome(name: &str, done: Done, pid: u32) -> String {
    match done.generation {
        Some(generation) => format!("{name}: generation {generation} serves in the host {pid}"),
        None => format!("{name}: it takes no new work in the host {pid}"),
    }
}

pub(super) fn switch(which: &NameAndPlaces, on: bool) -> Result<ExitCode, CliError> {
    let name = plugin_name(&which.name)?;
    let places = which.places.find()?;
    let Hosts { found: mut hosts, problems } = hosts::of(&places)?;
    let runs = hosts.iter().any(|host| host.report.plugins.iter().any(|line| line.name == which.name));
    if !runs {
        known(&places, &which.name)?;
    }
    let path = settings::user_file(&places.config_dir);
    edit::set(&path, &["supervisor", name.as_str(), "enabled"], on)?;
    say(&format!("{name} is switched {} in {}", if on { "on" } else { "off" }, path.display()))?;
    if let Err(error) = overruled(&places, name.as_str(), on) {
        remark(&format!("whether other settings say otherwise is not known: {error}"));
    }
    let order = if on { Order::Enable } else { Order::Disable };
    // What could not be asked may run the plugin on.
    let mut failed = problems.into_iter().next();
    if hosts.is_empty() && failed.is_none() {
        remark(&format!("no host runs that uses {}, so none was told", places.data_dir.display()));
    }
    for host in &mut hosts {
        let pid = host.report.pid;
        match host.order(order, &which.name) {
            Ok(done) => drop(say(&outcome(name.as_str(), done, pid))?),
            // That host works elsewhere and has no such plugin.
            Err(ControlError::Unknown { .. }) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), |error| Err(error.into()))
}

/// Refuses a name that no plugin has.
fn known(places: &Places, name: &str) -> Result<(), CliError> {
    let (found, _) = places.plugins()?;
    if found.iter().any(|source| source.name.as_str() == name) {
        return Ok(());
    }
    let names: Vec<&str> = found.iter().map(|source| source.name.as_str()).collect();
    let reason = format!("there is no plugin `{name}` here; there are {}", names.join(", "));
    Err(CliError::Usage {
        reason,
        hint: "a plugin that is named with `--plugin` is known while its host runs",
    })
}

/// Tells when a file above the person's own says otherwise.
fn overruled(places: &Places, name: &str, on: bool) -> Result<(), CliError> {
    let store = TrustStore::open(&places.data_dir);
    let (merged, _) = settings::load(&places.settings(None), &store).map_err(AppError::from)?;
    if merged.supervisor.get(name).and_then(|own| own.enabled) != Some(on) {
        remark(&format!("the project's settings in {} say otherwise, and count there", places.cwd.display()));
    }
    Ok(())
}
