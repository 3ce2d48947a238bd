//! Which running hosts a command is about.

use super::HostChoice;
use crate::app::Places;
use crate::cli::CliError;
use crate::control::{ControlError, ControlPlace, RunningHost, running};

/// The running hosts of a place.
pub(super) struct Hosts {
    /// The oldest process number first.
    pub(super) found: Vec<RunningHost>,
    /// Why others could not be asked; whose they are is not known.
    pub(super) problems: Vec<ControlError>,
}

impl Hosts {
    /// Tells of those that could not be asked.
    pub(super) fn tell_problems(&self) {
        self.problems.iter().for_each(|problem| super::remark(&problem.to_string()));
    }
}

/// Returns the running hosts that use these folders.
pub(super) fn of(places: &Places) -> Result<Hosts, CliError> {
    let mut hosts = every(places)?;
    hosts.found.retain(|host| {
        host.report.data_dir == places.data_dir && host.report.config_dir == places.config_dir
    });
    Ok(hosts)
}

/// Returns the hosts that are meant: the one that is named, or those that use these folders.
pub(super) fn chosen(choice: &HostChoice, places: &Places) -> Result<Hosts, CliError> {
    let Some(pid) = choice.host else { return of(places) };
    let mut hosts = every(places)?;
    hosts.found.retain(|host| host.report.pid == pid);
    if hosts.found.is_empty() {
        hosts.tell_problems();
        let reason = format!("no host with the process id {pid} runs");
        return Err(CliError::Usage { reason, hint: "`bingo plugin list` shows those that do" });
    }
    Ok(hosts)
}

/// Returns the one host that is meant.
pub(super) fn one(choice: &HostChoice) -> Result<RunningHost, CliError> {
    let places = choice.places.find()?;
    let Hosts { found: mut hosts, mut problems } = chosen(choice, &places)?;
    match (hosts.pop(), hosts.is_empty()) {
        (Some(host), true) => Ok(host),
        (None, _) => match problems.pop() {
            Some(problem) => Err(problem.into()),
            None => Err(CliError::NoHost { data_dir: places.data_dir.clone() }),
        },
        (Some(last), false) => {
            hosts.push(last);
            let pids: Vec<String> = hosts.iter().map(|host| host.report.pid.to_string()).collect();
            let reason = format!("{} hosts run: {}", pids.len(), pids.join(", "));
            Err(CliError::Usage { reason, hint: "say which one with `--host PID`" })
        }
    }
}

fn every(places: &Places) -> Result<Hosts, CliError> {
    let (found, problems) = running(&ControlPlace::new(&places.data_dir))?;
    Ok(Hosts { found, problems })
}
