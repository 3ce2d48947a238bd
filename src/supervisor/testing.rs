//! What the unit tests of several files use.

use std::sync::{Arc, Mutex};

use bingo_plugin_sdk::ids::{Generation, PluginName};
use tokio::io::DuplexStream;

use super::connection::{Connection, IncomingSlot, Peer, Tasks};
use super::limits::Limits;
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
