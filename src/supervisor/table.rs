//! The table of plugins: who is ready, who is not and why. Immutable, numbered, replaced as a whole at each change.

use std::sync::Arc;

use bingo_plugin_sdk::handshake::InitializeResult;
use bingo_plugin_sdk::ids::PluginName;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::Connection;
use super::discovery::PluginSource;

/// All plugins of a host, in the order in which they were given.
#[derive(Clone, Default)]
pub struct PluginTable {
    pub number: u64,
    pub plugins: Vec<PluginEntry>,
}

/// One plugin.
#[derive(Clone)]
pub struct PluginEntry {
    pub name: PluginName,
    pub source: Arc<PluginSource>,
    pub state: PluginState,
    /// How often a process of it was started after the first.
    pub restarts: u32,
}

/// What a plugin is doing.
#[derive(Clone)]
pub enum PluginState {
    /// Its first process is starting.
    Starting,
    /// What it needs is being installed, which may take minutes.
    Preparing {
        /// The command, or its last line.
        progress: Arc<str>,
        last: Option<Arc<ReadyPlugin>>,
    },
    Ready(Arc<ReadyPlugin>),
    /// Its process died; another one is started soon, or is starting.
    Restarting {
        reason: Arc<str>,
        last: Option<Arc<ReadyPlugin>>,
    },
    /// It did not start, or died too often. A change of its files or a person starts it again.
    Broken {
        reason: Arc<str>,
        last: Option<Arc<ReadyPlugin>>,
    },
    /// It comes with a project, and nobody trusted what it is now.
    Untrusted {
        reason: Arc<str>,
    },
    /// A person switched it off.
    Disabled,
    /// It takes no new work and will be stopped.
    Retiring,
}

impl PluginState {
    /// Returns the state's name, as people and programs read it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Preparing { .. } => "preparing",
            Self::Ready(_) => "ready",
            Self::Restarting { .. } => "restarting",
            Self::Broken { .. } => "broken",
            Self::Untrusted { .. } => "untrusted",
            Self::Disabled => "disabled",
            Self::Retiring => "retiring",
        }
    }

    /// Returns the last process of it that shook hands, if that is dead.
    pub fn last(&self) -> Option<&ReadyPlugin> {
        match self {
            Self::Preparing { last, .. } | Self::Restarting { last, .. } | Self::Broken { last, .. } => {
                last.as_deref()
            }
            _ => None,
        }
    }

    /// Returns why it is not ready, in words.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Ready(_) => None,
            Self::Starting => Some("it is starting".to_owned()),
            Self::Preparing { progress, .. } => Some(format!("it is being prepared: {progress}")),
            Self::Restarting { reason, .. } => Some(format!("it is being restarted: {reason}")),
            Self::Broken { reason, .. } => Some(reason.to_string()),
            Self::Untrusted { reason } => Some(reason.to_string()),
            Self::Disabled => Some("it is switched off".to_owned()),
            Self::Retiring => Some("it is being stopped".to_owned()),
        }
    }
}

/// A generation that shook hands: its connection and what it declared. While a table or a snapshot holds it, its process
/// is kept.
pub struct ReadyPlugin {
    pub connection: Connection,
    pub declared: InitializeResult,
    _lease: DropGuard,
}

impl ReadyPlugin {
    /// Returns it, and what is cancelled when nobody holds it any more.
    pub(crate) fn new(connection: Connection, declared: InitializeResult) -> (Arc<Self>, CancellationToken) {
        let released = CancellationToken::new();
        let lease = released.clone().drop_guard();
        (Arc::new(Self { connection, declared, _lease: lease }), released)
    }
}

impl PluginTable {
    /// Says that no plugin is starting without a process that died before: none of the start, none that was switched on,
    /// renewed after it was broken, or added. One that is being prepared is not waited for: that takes
    /// as long as an installation takes.
    pub(crate) fn is_settled(&self) -> bool {
        self.starting().next().is_none()
    }

    /// Returns the plugins that keep the table from being settled.
    pub fn starting(&self) -> impl Iterator<Item = &PluginName> {
        let starts = |plugin: &&PluginEntry| matches!(plugin.state, PluginState::Starting);
        self.plugins.iter().filter(starts).map(|plugin| &plugin.name)
    }

    /// Returns the plugins that are being prepared, and how far they are.
    pub fn preparing(&self) -> impl Iterator<Item = (&PluginName, &str)> {
        self.plugins.iter().filter_map(|plugin| match &plugin.state {
            PluginState::Preparing { progress, .. } => Some((&plugin.name, &**progress)),
            _ => None,
        })
    }
}

/// Replaces the table by a changed one.
pub(super) fn change(table: &watch::Sender<Arc<PluginTable>>, change: impl FnOnce(&mut Vec<PluginEntry>)) {
    table.send_modify(|table| {
        let mut next = PluginTable::clone(table);
        next.number += 1;
        change(&mut next.plugins);
        *table = Arc::new(next);
    });
}
