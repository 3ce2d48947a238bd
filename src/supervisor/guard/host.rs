//! The host's side of the guards: starting one, hearing from it, stopping it, and cleaning up after one that was killed.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{self, Pid};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::cgroup::{self, Cgroup, CgroupError};
use super::resources::{Confines, ResourceLimits};
use super::tree;
use super::vitals::Vitals;
use crate::supervisor::process::{self, Program};

/// How much longer than the grace a guard may take to end its tree before the host does it in its place.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pids of running guards. Whoever starts one holds the lock meanwhile: a child of this process that is not in the
/// set is then an orphan, and pipe ends that are open across `exec` reach no other child.
static GUARDS: LazyLock<Mutex<HashSet<i32>>> = LazyLock::new(Mutex::default);

/// Says that every unknown child of this process is an orphan of a killed guard.
static ADOPTS: AtomicBool = AtomicBool::new(false);

/// Makes this process the parent of what a killed guard leaves behind, so that it can be found and stopped.
///
/// For `main` only: from then on every child that no guard is counts as such an orphan once a guard was killed.
///
/// # Errors
/// When the system does not let it.
pub fn adopt_orphans() -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true)?;
    ADOPTS.store(true, Ordering::Relaxed);
    Ok(())
}

/// Why a plugin's process could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuardError {
    #[error("cannot make a pipe for the plugin's guard")]
    Pipe {
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("cannot start the plugin's guard {}", binary.display())]
    Spawn {
        binary: std::path::PathBuf,
        #[source]
        source: io::Error,
    },
}

/// How many bytes of a plugin's output may wait in its pipe. An answer waits behind them: in the 64 KiB that pipes have
/// else stand some six hundred deltas of a flood, which is more than its caller should notice.
const OUTPUT: i32 = 16 * 1024;

/// How a plugin's own process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    /// The program could not be run at all.
    NotStarted {
        reason: String,
    },
    /// The guard ended without a word: killed from outside.
    GuardLost,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(formatter, "its process exited with code {code}"),
            Self::Signal(number) => match nix::sys::signal::Signal::try_from(*number) {
                Ok(signal) => write!(formatter, "its process was ended by signal {number} ({signal})"),
                Err(_) => write!(formatter, "its process was ended by signal {number}"),
            },
            Self::NotStarted { reason } => write!(formatter, "its program could not be started: {reason}"),
            Self::GuardLost => formatter.write_str("the guard of its process was killed"),
        }
    }
}

/// The pipes of a started plugin.
pub(crate) struct Streams {
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

/// A running guard. Dropping it stops the plugin without waiting for its end.
pub(crate) struct Guarded {
    child: Child,
    pid: i32,
    /// A byte on this is the wish to stop; its end means that the host is gone.
    lifeline: Option<OwnedFd>,
    report: tokio::io::Lines<BufReader<pipe::Receiver>>,
    /// The plugin's own process, once it was started.
    plugin: Option<i32>,
    exit: Option<Exit>,
    vitals: Arc<Vitals>,
    grace: Duration,
    limits: ResourceLimits,
    /// How many processes of the plugin the system ended for their memory.
    killed: u64,
    _cgroup: Option<Cgroup>,
}

/// How a plugin is guarded.
pub(crate) struct Manner<'a> {
    /// Whose settings limit it.
    pub(crate) plugin: &'a str,
    /// How long its tree has after TERM.
    pub(crate) grace: Duration,
    pub(crate) limits: &'a ResourceLimits,
    /// A file that the guard and its tree hold open too: a lock on it lasts until the last of them has ended, also when the
    /// host is killed.
    pub(crate) hold: Option<&'a File>,
}

/// Starts a guard that starts the program.
///
/// # Errors
/// When the guard cannot be started, or a limit cannot hold here; that the program cannot be started is told later, by
/// [`Guarded::exit`].
pub(crate) fn start(
    binary: &Path,
    program: &Program,
    manner: &Manner<'_>,
) -> Result<(Guarded, Streams), GuardError> {
    let (grace, limits) = (manner.grace, manner.limits.clone());
    let cgroup = cgroup::create(manner.plugin, &limits)?;
    let confines = Confines { limits, cgroup: cgroup.as_ref().map(|cgroup| cgroup.path.clone()) };
    let pipe_error = |source: nix::errno::Errno| GuardError::Pipe { source: source.into() };
    let (lifeline_read, lifeline) = unistd::pipe2(OFlag::O_CLOEXEC).map_err(pipe_error)?;
    let (report, report_write) = unistd::pipe2(OFlag::O_CLOEXEC).map_err(pipe_error)?;
    let report = pipe::Receiver::from_owned_fd(report).map_err(|source| GuardError::Pipe { source })?;
    let held = manner.hold.map_or_else(|| "-".to_owned(), |file| file.as_raw_fd().to_string());
    let args: [OsString; 6] = [
        super::SUBCOMMAND.into(),
        lifeline_read.as_raw_fd().to_string().into(),
        report_write.as_raw_fd().to_string().into(),
        grace.as_millis().to_string().into(),
        serde_json::to_string(&confines).map_err(|error| GuardError::Pipe { source: error.into() })?.into(),
        held.into(),
    ];
    let mut command = Command::from(process::guard_command(binary, &args, program));

    let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
    for end in [&lifeline_read, &report_write] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::empty())).map_err(pipe_error)?;
    }
    let pass = |file: &File, flag| fcntl(file, FcntlArg::F_SETFD(flag)).map(drop).map_err(pipe_error);
    manner.hold.map_or(Ok(()), |file| pass(file, FdFlag::empty()))?;
    let spawned = command.spawn();
    manner.hold.map_or(Ok(()), |file| pass(file, FdFlag::FD_CLOEXEC))?;
    drop((lifeline_read, report_write));
    let mut child = spawned.map_err(|source| GuardError::Spawn { binary: binary.to_owned(), source })?;
    let pid = child.id().expect("it was not waited for").cast_signed();
    guards.insert(pid);
    drop(guards);

    let streams = Streams {
        stdin: child.stdin.take().expect("it is piped"),
        stdout: child.stdout.take().expect("it is piped"),
        stderr: child.stderr.take().expect("it is piped"),
    };
    if let Err(error) = fcntl(&streams.stdout, FcntlArg::F_SETPIPE_SZ(OUTPUT)) {
        // A flood then delays answers a little more.
        tracing::debug!(%error, "a plugin's pipe keeps its size");
    }
    let report = BufReader::new(report).lines();
    let (lifeline, vitals) = (Some(lifeline), Arc::new(Vitals::new(pid)));
    let limits = confines.limits;
    let (plugin, exit, killed, _cgroup) = (None, None, 0, cgroup);
    let guarded =
        Guarded { child, pid, lifeline, report, plugin, exit, vitals, grace, limits, killed, _cgroup };
    Ok((guarded, streams))
}

impl Guarded {
    /// Returns where the figures of the process are read.
    pub(crate) fn vitals(&self) -> Arc<Vitals> {
        Arc::clone(&self.vitals)
    }

    /// Returns which limit of the plugin's settings an end comes from, in words, where that is known.
    pub(crate) fn passed_limit(&self, plugin: &str, exit: &Exit) -> Option<String> {
        self.limits.passed(plugin, exit, self.killed)
    }

    /// Waits until the plugin's own process has ended, whatever it left behind. Cancel-safe.
    pub(crate) async fn exit(&mut self) -> Exit {
        loop {
            if let Some(exit) = &self.exit {
                self.vitals.clear_plugin();
                return exit.clone();
            }
            let Ok(Some(line)) = self.report.next_line().await else {
                self.exit = Some(Exit::GuardLost);
                continue;
            };
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match (word, rest.parse()) {
                ("started", Ok(pid)) => {
                    self.plugin = Some(pid);
                    self.vitals.set_plugin(pid);
                }
                ("memory", Ok(killed)) => self.killed = u64::try_from(killed).unwrap_or(0),
                ("exited", Ok(code)) => self.exit = Some(Exit::Code(code)),
                ("signaled", Ok(number)) => self.exit = Some(Exit::Signal(number)),
                ("failed", _) => self.exit = Some(Exit::NotStarted { reason: rest.to_owned() }),
                _ => tracing::debug!(line, "a guard's report is not understood"),
            }
        }
    }

    /// Stops what is left of the plugin, TERM first and KILL after the grace, and waits until all of it is reaped.
    pub(crate) async fn stop(mut self) {
        // A guard that has ended needs to hear nothing.
        let _ = self.lifeline.take().map(|lifeline| unistd::write(lifeline, b"s"));
        let patience = self.grace + PATIENCE;
        if tokio::time::timeout(patience, self.child.wait()).await.is_err() {
            tracing::warn!(guard = self.pid, "a guard does not end; the host stops its tree");
            let _ = self.child.kill().await;
        }
        // A guard that reported the end of its plugin ended by itself and left nothing.
        let told = matches!(self.exit().await, Exit::Code(_) | Exit::Signal(_) | Exit::NotStarted { .. });
        let clean = told && self.child.wait().await.is_ok_and(|status| !killed(status));
        GUARDS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.pid);
        if !clean {
            let (grace, plugin) = (self.grace, self.plugin);
            let _ = tokio::task::spawn_blocking(move || stop_orphans(grace, plugin)).await;
        }
    }
}

/// Says that a guard may have been killed: its plugin was ended by KILL, or it was itself.
fn killed(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(nix::sys::signal::Signal::SIGKILL as i32)
}

/// Stops and reaps what a killed guard left behind: children of this process that no guard is, and the plugin itself.
fn stop_orphans(grace: Duration, plugin: Option<i32>) {
    let own = std::process::id().cast_signed();
    tree::stop(
        || grace,
        || {
            let processes = tree::processes();
            let guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
            let orphans: Vec<i32> = processes
                .iter()
                .filter(|process| process.parent == own && !guards.contains(&process.pid))
                .filter(|process| ADOPTS.load(Ordering::Relaxed) || Some(process.pid) == plugin)
                .map(|process| process.pid)
                .collect();
            drop(guards);
            for pid in &orphans {
                let _ = waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG));
            }
            tree::living(&processes, &orphans)
        },
    );
}
