//! What `bingo __limited` does: a plugin's own process before it is the plugin. It limits itself and becomes the program.
//!
//! The guard has no limits: a guard that may open no file cannot find the processes that it must stop.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::process::{Command, ExitCode};

use nix::unistd;

use super::resources::Confines;
use super::{LIMITED, cgroup, inside};
use crate::supervisor::process;

/// The program of this process, whatever stands at its path by now.
const OWN: &str = "/proc/self/exe";

/// Returns the command that starts a program within limits. `report` is open across `exec`.
pub(super) fn command(report: RawFd, confines: &Confines, program: &OsString, args: &[OsString]) -> Command {
    let confines = serde_json::to_string(confines).unwrap_or_default();
    let own: [OsString; 4] = [LIMITED.into(), report.to_string().into(), confines.into(), program.clone()];
    process::guarded_command(OWN.as_ref(), &[own.as_slice(), args].concat())
}

/// Becomes the program that `args` name, behind a report and limits; returns only when that fails.
pub fn run_limited(args: &[OsString]) -> ExitCode {
    let error = match parse(args) {
        None => io::ErrorKind::InvalidInput.into(),
        Some((report, confines, program, args)) => match take(report) {
            Ok(mut report) => {
                let mut command = process::guarded_command(program, args);
                let error = match confine(&confines) {
                    Ok(()) => process::become_program(&mut command),
                    Err(error) => error,
                };
                inside::say(&mut report, &format!("failed {error}"));
                return ExitCode::from(inside::FAILED);
            }
            Err(error) => error,
        },
    };
    let _ = writeln!(io::stderr(), "bingo {LIMITED}: {error}");
    ExitCode::from(inside::FAILED)
}

fn parse(args: &[OsString]) -> Option<(RawFd, Confines, &OsString, &[OsString])> {
    let [report, confines, program, args @ ..] = args else { return None };
    let confines = serde_json::from_str(confines.to_str()?).ok()?;
    Some((report.to_str()?.parse().ok()?, confines, program, args))
}

/// Returns the report as a file that the program does not inherit.
fn take(report: RawFd) -> io::Result<File> {
    let file = OpenOptions::new().write(true).open(format!("/proc/self/fd/{report}"))?;
    unistd::close(report)?;
    Ok(file)
}

fn confine(confines: &Confines) -> io::Result<()> {
    // Before the limits of this process, which might let it open no file.
    confines.cgroup.as_deref().map_or(Ok(()), cgroup::join)?;
    confines.limits.apply()
}
