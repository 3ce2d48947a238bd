//! Which running hosts a command is about.

use super::HostChoice;
use crate::app::Places;
use crate::cli::CliError;
use crate::control::{ControlPlace, RunningHost, running};

/// Returns the running hosts that use these folders, the oldest process number first; one that does not answer is told.
pub(super) fn of(places: &Places) -> Result<Vec<RunningHost>, CliError> {
    let mut hosts = every(places)?;
    let same = |host: &RunningHost| {
        host.report.data_dir == places.data_dir && host.report.config_dir == places.config_dir
    };
    hosts.retain(same);
    Ok(hosts)
}

/// Returns the hosts that are meant: the one that is named, or those that use these folders.
pub(super) fn chosen(choice: &HostChoice, places: &Places) -> Result<Vec<RunningHost>, CliError> {
    let Some(pid) = choice.host else { return of(places) };
    let mut hosts = every(places)?;
    hosts.retain(|host| host.report.pid == pid);
    if hosts.is_empty() {
        let reason = format!("no host with the process id {pid} runs");
        return Err(CliError::Usage { reason, hint: "`bingo plugin list` shows those that do" });
    }
    Ok(hosts)
}

/// Returns the one host that is meant.
pub(super) fn one(choice: &HostChoice) -> Result<RunningHost, CliError> {
    let places = choice.places.find()?;
    let mut hosts = chosen(choice, &places)?;
    match (hosts.pop(), hosts.is_empty()) {
        (Some(host), true) => Ok(host),
        (None, _) => Err(CliError::NoHost { data_dir: places.data_dir.clone() }),
        (Some(last), false) => {
            hosts.push(last);
            let pids: Vec<String> = hosts.iter().map(|host| host.report.pid.to_string()).collect();
            let reason = format!("{} hosts run: {}", pids.len(), pids.join(", "));
            Err(CliError::Usage { reason, hint: "say which one with `--host PID`" })
        }
    }
}

fn every(places: &Places) -> Result<Vec<RunningHost>, CliError> {
    let (hosts, problems) = running(&ControlPlace::new(&places.data_dir))?;
    problems.iter().for_each(|problem| super::remark(&problem.to_string()));
    Ok(hosts)
}
