//! The guard's own side: what `bingo __guard` does. It runs before any runtime exists and knows nothing of the wire.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::process::{Child, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{self, Pid};

use super::resources::Confines;
use super::{cgroup, limited, tree};
use crate::supervisor::process;

/// The exit code of a guard that could not do its work, as shells have it for a command that cannot be run.
pub(super) const FAILED: u8 = 127;

/// How long the tree has after TERM when the host is gone.
const ALONE: Duration = Duration::from_millis(500);

/// Is the guard: starts the plugin, waits for it, stops what it leaves behind, and ends with its status.
///
/// `args` are those after `__guard`. Call it from `main` before anything else was opened or started.
pub fn run(args: &[OsString]) -> ExitCode {
    match Args::parse(args).ok_or(io::ErrorKind::InvalidInput.into()).and_then(guard) {
        Ok(status) => end_like(status),
        Err(error) => {
            // The report may not exist; stderr is the plugin's log.
            let _ = writeln!(io::stderr(), "bingo {}: {error}", super::SUBCOMMAND);
            ExitCode::from(FAILED)
        }
    }
}

/// How the plugin ended.
enum Status {
    Exited(i32),
    Signaled(Signal),
    NotStarted,
}

struct Args<'a> {
    lifeline: RawFd,
    report: RawFd,
    grace: Duration,
    confines: Confines,
    /// Open for as long as anything of the tree is there; the plugin has it too.
    held: Option<RawFd>,
    program: &'a OsString,
    args: &'a [OsString],
}

impl<'a> Args<'a> {
    fn parse(args: &'a [OsString]) -> Option<Self> {
        let [lifeline, report, grace, confines, held, program, args @ ..] = args else { return None };
        let lifeline = lifeline.to_str()?.parse().ok()?;
        let report = report.to_str()?.parse().ok()?;
        let grace = Duration::from_millis(grace.to_str()?.parse().ok()?);
        let confines = serde_json::from_str(confines.to_str()?).ok()?;
        let held = held.to_str()?.parse().ok();
        Some(Self { lifeline, report, grace, confines, held, program, args })
    }
}

fn guard(args: Args<'_>) -> io::Result<Status> {
    // Reopened, both are close-on-exec: the plugin must not hold its own lifeline.
    let lifeline = File::open(format!("/proc/self/fd/{}", args.lifeline))?;
    let mut report = OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", args.report))?;
    let kept: Vec<RawFd> = args.held.into_iter().chain([lifeline.as_raw_fd(), report.as_raw_fd()]).collect();
    close_others(&kept)?;
    unistd::setsid()?;
    prctl::set_child_subreaper(true)?;

    let plugin = match spawn(&args, &report) {
        Ok(child) => Pid::from_raw(child.id().cast_signed()),
        Err(error) => {
            say(&mut report, &format!("failed {error}"));
            args.confines.cgroup.as_deref().into_iter().for_each(cgroup::remove);
            return Ok(Status::NotStarted);
        }
    };
    say(&mut report, &format!("started {plugin}"));
    let stopper = Arc::new(Stopper { grace: args.grace, alone: AtomicBool::new(false), once: Once::new() });
    // After the plugin was started, which must not inherit this, and before the threads, which must.
    wishes_to_stop().thread_block()?;
    let (at_end, at_signal) = (Arc::clone(&stopper), Arc::clone(&stopper));
    std::thread::spawn(move || watch(lifeline, &at_end));
    std::thread::spawn(move || {
        if wishes_to_stop().wait().is_ok() {
            at_signal.stop();
        }
    });
    // The pipes must end with the plugin, so the guard gives its own ends away.
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    unistd::dup2_stdin(&null)?;
    unistd::dup2_stdout(&null)?;
    unistd::dup2_stderr(&null)?;
    let cgroup = args.confines.cgroup.as_deref();
    let status = wait(plugin, report, cgroup, &stopper);
    cgroup.into_iter().for_each(cgroup::remove);
    Ok(status)
}

/// Starts the program, by way of a process that limits itself where there are limits.
fn spawn(args: &Args<'_>, report: &File) -> io::Result<Child> {
    if args.confines.is_empty() {
        return process::guarded_command(args.program, args.args).spawn();
    }
    // A duplicate is open across `exec`; nothing else starts meanwhile.
    let report = unistd::dup(report)?;
    limited::command(report.as_raw_fd(), &args.confines, args.program, args.args).spawn()
}

/// Closes everything above the three streams except `kept`: whatever was open in the host is not the plugin's.
fn close_others(kept: &[RawFd]) -> io::Result<()> {
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2 && !kept.contains(fd)) {
        // The number that listed the folder is closed already.
        let _ = unistd::close(fd);
    }
    Ok(())
}

/// Stops all descendants, once, however many ask for it.
struct Stopper {
    grace: Duration,
    /// The host is gone.
    alone: AtomicBool,
    once: Once,
}

impl Stopper {
    fn stop(&self) {
        let own = std::process::id().cast_signed();
        let descendants = || {
            let mut living = tree::living(&tree::processes(), &[own]);
            living.retain(|pid| *pid != own);
            living
        };
        self.once.call_once(|| tree::stop(|| self.grace(), descendants));
    }
}

impl Stopper {
    fn grace(&self) -> Duration {
        if self.alone.load(Ordering::Relaxed) { self.grace.min(ALONE) } else { self.grace }
    }
}

/// Returns the signals that ask a guard to end. It ends when its plugin has, and not without it.
fn wishes_to_stop() -> SigSet {
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT])
}

/// Tells the host something: one line in one write, so that nobody reads half of it. A host that is gone hears nothing.
pub(super) fn say(report: &mut File, words: &str) {
    let _ = report.write_all(format!("{words}\n").as_bytes());
}

/// Waits for a byte on the lifeline, which asks for the stop, or for its end, and stops the plugin. The end means that the
/// host is gone: nobody waits for an orderly end then, but somebody may wait for there to be nothing left.
fn watch(mut lifeline: File, stopper: &Stopper) {
    let asked = lifeline.read(&mut [0]).is_ok_and(|read| read > 0);
    // Another thread may be stopping already: it sees this too.
    stopper.alone.store(!asked, Ordering::Relaxed);
    stopper.stop();
}

/// Reaps until there is no descendant left, and tells of the plugin's end at once.
fn wait(plugin: Pid, mut report: File, cgroup: Option<&Path>, stopper: &Arc<Stopper>) -> Status {
    let mut status = Status::NotStarted;
    loop {
        let ended = match waitpid(None::<Pid>, None) {
            Err(nix::errno::Errno::EINTR) => continue,
            // No descendant is left.
            Err(_) => return status,
            Ok(ended) => ended,
        };
        if ended.pid() == Some(plugin) {
            let killed = cgroup.map_or(0, cgroup::killed_for_memory);
            say(&mut report, &format!("memory {killed}"));
        }
        status = match ended {
            WaitStatus::Exited(pid, code) if pid == plugin => {
                say(&mut report, &format!("exited {code}"));
                Status::Exited(code)
            }
            WaitStatus::Signaled(pid, signal, _) if pid == plugin => {
                say(&mut report, &format!("signaled {}", signal as i32));
                Status::Signaled(signal)
            }
            _ => continue,
        };
        let stopper = Arc::clone(stopper);
        std::thread::spawn(move || stopper.stop());
    }
}

/// Ends as the plugin ended, for whoever looks at the guard's own status.
fn end_like(status: Status) -> ExitCode {
    match status {
        Status::Exited(code) => ExitCode::from((code & 0xff) as u8),
        Status::NotStarted => ExitCode::from(FAILED),
        Status::Signaled(signal) => {
            // The plugin has dumped its core where that is wanted; a second one, of the guard, helps nobody.
            let _ = prctl::set_dumpable(false);
            let _ = wishes_to_stop().thread_unblock();
            let _ = raise(signal);
            // Still here: the signal is one that this process ignores.
            ExitCode::from((128 + signal as i32) as u8)
        }
    }
}
