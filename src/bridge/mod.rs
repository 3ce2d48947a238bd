//! The bridges: what ready plugins declared, as the ports that the kernel uses. Messages become values and errors here.
//!
//! A snapshot is made once for each table of the supervisor and kept until the table changes. It owns no process.

mod command;
mod provider;
mod tool;

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use bingo_plugin_sdk::item::Level;

use crate::ports::{BoxFuture, Command, Notice, Notices, Offers, PluginReport, Provider, Snapshot, Tool};
use crate::supervisor::{PluginEntry, PluginState, PluginTable, ReadyPlugin, Supervisor};

/// The offers of a supervisor's plugins.
pub struct PluginOffers {
    supervisor: Arc<Supervisor>,
    notices: Arc<dyn Notices>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Arc<Snapshot>,
    /// Names that were taken, told once each.
    told: HashSet<String>,
}

impl PluginOffers {
    /// Returns the offers; what a name clash drops is told to `notices`.
    pub fn new(supervisor: Arc<Supervisor>, notices: Arc<dyn Notices>) -> Self {
        Self { supervisor, notices, state: Mutex::default() }
    }
}

impl Offers for PluginOffers {
    fn snapshot(&self) -> Arc<Snapshot> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken under the lock, so that an older table never replaces a newer one.
        let table = self.supervisor.table();
        if state.current.number != table.number {
            let (snapshot, clashes) = build(&table);
            state.current = Arc::new(snapshot);
            let fresh: Vec<Clash> =
                clashes.into_iter().filter(|clash| state.told.insert(clash.text.clone())).collect();
            let current = Arc::clone(&state.current);
            drop(state);
            for Clash { code, text } in fresh {
                self.notices.post(Notice { level: Level::Warn, code, text });
            }
            return current;
        }
        Arc::clone(&state.current)
    }

    fn settled(&self) -> BoxFuture<'static, ()> {
        Box::pin(self.supervisor.settled())
    }
}

/// A name that another had first.
struct Clash {
    code: &'static str,
    text: String,
}

/// Makes the snapshot of a table. Where two have one name the first keeps it, in the order of the table.
fn build(table: &PluginTable) -> (Snapshot, Vec<Clash>) {
    let mut builder = Builder::default();
    for plugin in &table.plugins {
        builder.snapshot.plugins.push(report(plugin));
        if let PluginState::Ready(ready) = &plugin.state {
            builder.add(ready);
        }
    }
    builder.snapshot.number = table.number;
    (builder.snapshot, builder.clashes)
}

#[derive(Default)]
struct Builder {
    snapshot: Snapshot,
    clashes: Vec<Clash>,
    names: BTreeSet<(&'static str, String)>,
}

impl Builder {
    fn add(&mut self, ready: &ReadyPlugin) {
        let (connection, declared) = (&ready.connection, &ready.declared);
        let plugin = connection.plugin().to_string();
        for spec in &declared.tools {
            let tool = tool::PluginTool::new(connection.clone(), spec);
            if self.take("tool", tool.spec().name.clone(), &plugin) {
                self.snapshot.tools.push(Arc::new(tool));
            }
        }
        for spec in &declared.commands {
            if self.take("command", spec.name.clone(), &plugin) {
                let command = command::PluginCommand::new(connection.clone(), spec.clone());
                self.snapshot.commands.push(Arc::new(command) as Arc<dyn Command>);
            }
        }
        for spec in &declared.providers {
            if self.take("provider", spec.id.clone(), &plugin) {
                let provider = provider::PluginProvider::new(connection.clone(), spec.clone());
                self.snapshot.providers.push(Arc::new(provider) as Arc<dyn Provider>);
            }
        }
    }

    fn take(&mut self, kind: &'static str, name: String, plugin: &str) -> bool {
        if self.names.insert((kind, name.clone())) {
            return true;
        }
        let code = match kind {
            "tool" => "TOOL_SHADOWED",
            "command" => "COMMAND_TAKEN",
            _ => "PROVIDER_TAKEN",
        };
        let text = format!("{plugin}: its {kind} `{name}` is not used: the name was taken before");
        self.clashes.push(Clash { code, text });
        false
    }
}

fn report(plugin: &PluginEntry) -> PluginReport {
    let (version, reason) = match &plugin.state {
        PluginState::Ready(ready) => (&ready.declared.version, None),
        PluginState::Starting => (&plugin.manifest.version, Some("it is starting".to_owned())),
        PluginState::Unavailable { reason } => (&plugin.manifest.version, Some(reason.to_string())),
    };
    PluginReport { name: plugin.name.to_string(), version: version.clone(), enabled: true, reason }
}

#[cfg(test)]
mod tests;
