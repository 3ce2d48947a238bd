//! The table of plugins: who is ready, who is not and why. Immutable, numbered, replaced as a whole at each change.

use std::sync::Arc;

use bingo_plugin_sdk::handshake::InitializeResult;
use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::manifest::Manifest;
use tokio::sync::watch;

use super::connection::Connection;

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
    pub manifest: Arc<Manifest>,
    pub state: PluginState,
}

/// What a plugin is doing.
#[derive(Clone)]
pub enum PluginState {
    Starting,
    Ready(Arc<ReadyPlugin>),
    Unavailable {
        /// In words.
        reason: Arc<str>,
    },
}

/// A generation that shook hands: its connection and what it declared.
pub struct ReadyPlugin {
    pub connection: Connection,
    pub declared: InitializeResult,
}

impl PluginTable {
    /// Says that no plugin is still starting.
    pub(crate) fn is_settled(&self) -> bool {
        !self.plugins.iter().any(|plugin| matches!(plugin.state, PluginState::Starting))
    }
}

/// Replaces the state of one plugin, and with it the table.
pub(super) fn publish(table: &watch::Sender<Arc<PluginTable>>, name: &PluginName, state: PluginState) {
    table.send_modify(|table| {
        let mut next = PluginTable::clone(table);
        next.number += 1;
        if let Some(plugin) = next.plugins.iter_mut().find(|plugin| plugin.name == *name) {
            plugin.state = state;
        }
        *table = Arc::new(next);
    });
}
