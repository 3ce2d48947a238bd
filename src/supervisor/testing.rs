//! What the unit tests of several files use.

use std::process::Child;
use std::sync::{Arc, Mutex};

use bingo_plugin_sdk::ids::{Generation, PluginName};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::io::DuplexStream;

use super::connection::{Connection, IncomingSlot, Peer, Tasks};
use super::guard::Vitals;
use super::limits::Limits;
use super::process;
use crate::ports::{Notice, Notices};

/// Keeps every notice.
#[derive(Default)]
pub(crate) struct Heard(Mutex<Vec<Notice>>);

impl Heard {
    pub(crate) fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|notice| notice.text.clone()).collect()
    }
}

impl Notices for Heard {
    fn post(&self, notice: Notice) {
        self.0.lock().unwrap().push(notice);
    }
}

/// A connection in memory; the far end is the plugin's.
pub(crate) struct Wire {
    pub(crate) connection: Connection,
    pub(crate) tasks: Tasks,
    /// The plugin's end, until it is taken.
    pub(crate) far: Option<DuplexStream>,
}

/// Connects a plugin of this name; its pipe holds 1024 bytes.
pub(crate) fn wire(name: &str, limits: Limits, notices: Arc<dyn Notices>) -> Wire {
    connect(peer(name, limits, notices))
}

/// Connects a plugin whose hooks refuse by their silence.
pub(crate) fn strict_wire(name: &str, notices: Arc<dyn Notices>) -> Wire {
    connect(Peer { deny_unanswered: true, ..peer(name, Limits::default(), notices) })
}

fn peer(name: &str, limits: Limits, notices: Arc<dyn Notices>) -> Peer {
    Peer {
        plugin: PluginName::parse(name).unwrap(),
        generation: Generation(1),
        limits: Arc::new(limits),
        deny_unanswered: false,
        incoming: IncomingSlot::default(),
        notices,
    }
}

fn connect(peer: Peer) -> Wire {
    let (near, far) = tokio::io::duplex(1024);
    let (reader, writer) = tokio::io::split(near);
    let (connection, tasks) = Connection::open(peer, reader, writer);
    connection.skip_handshake();
    Wire { connection, tasks, far: Some(far) }
}

/// A process that stands for a plugin's, with the test as its debugger.
pub(crate) struct Debuggee {
    child: Child,
    vitals: Arc<Vitals>,
}

impl Debuggee {
    /// Starts a process and names it as the one at the other end.
    pub(crate) fn of(connection: &Connection) -> Self {
        let debuggee = Self::start();
        connection.name_process(debuggee.vitals());
        debuggee
    }

    pub(crate) fn start() -> Self {
        // It ends with its input: with the test, whatever becomes of that.
        let mut command = process::guarded_command("cat".as_ref(), &[]);
        let child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let vitals = Arc::new(Vitals::new(std::process::id().cast_signed()));
        vitals.set_plugin(child.id().cast_signed());
        Self { child, vitals }
    }

    pub(crate) fn vitals(&self) -> Arc<Vitals> {
        Arc::clone(&self.vitals)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Attaches to it; it stands still then.
    pub(crate) fn attach(&self) {
        ptrace::attach(self.pid()).unwrap();
        waitpid(self.pid(), Some(WaitPidFlag::__WALL)).unwrap();
    }

    pub(crate) fn detach(&self) {
        ptrace::detach(self.pid(), None).unwrap();
    }
}

impl Drop for Debuggee {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
