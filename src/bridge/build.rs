//! Makes the snapshot of a table of plugins: who offers what, who has a name first, and whose requirements are met.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bingo_plugin_sdk::calls::HOST_SERVICE;
use serde_json::{Map, Value};

use super::service::{OpenCalls, PluginService};
use super::{command, compactor, context, hook, provider, tool};
use crate::ports::{Command, PluginProcess, PluginReport, Provider, Service, Snapshot, Tool};
use crate::supervisor::discovery::required_service;
use crate::supervisor::{Connection, PluginEntry, PluginState, PluginTable, ReadyPlugin};

/// Keys that begin so are the host's own.
const RESERVED: &str = "bingo.";

/// What a table comes to.
#[derive(Default)]
pub(super) struct Built {
    pub(super) snapshot: Snapshot,
    /// As in the snapshot; for calls between plugins.
    pub(super) services: BTreeMap<String, PluginService>,
    /// Names that were not given, to be told once each.
    pub(super) clashes: Vec<Clash>,
    /// Requirements that nobody meets, to be told once while they are so.
    pub(super) needs: Vec<Clash>,
}

/// A remark about an offer that is not used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Clash {
    pub(super) code: &'static str,
    pub(super) text: String,
}

/// Makes the snapshot of a table. Where two have one name the first keeps it, in the order of the table.
pub(super) fn build(table: &Arc<PluginTable>, open: &Arc<OpenCalls>) -> Built {
    let unmet = unmet(table);
    let mut builder = Builder { open, built: Built::default(), names: BTreeSet::new() };
    let mut offering = Vec::new();
    for plugin in &table.plugins {
        let needs = unmet.get(plugin.name.as_str());
        builder.built.snapshot.plugins.push(report(plugin, needs));
        match (&plugin.state, needs) {
            (PluginState::Ready(_), Some(needs)) if table.is_settled() => {
                let text = format!("{} is disabled: {}", plugin.name, unmet_words(needs));
                builder.built.needs.push(Clash { code: "PLUGIN_NEEDS", text });
            }
            (PluginState::Ready(ready), None) => {
                builder.add(ready);
                offering.push(&**ready);
            }
            (PluginState::Restarting { .. } | PluginState::Preparing { .. }, _) => {
                plugin.state.last().into_iter().for_each(|last| builder.add_providers(last));
            }
            _ => {}
        }
        // A guard that is dead lets nothing pass.
        offering.extend(plugin.state.last().filter(|last| last.connection.denies_unanswered()));
    }
    // These are asked one after the other, in an order that does not depend on who was found first.
    offering.sort_by(|one, other| one.connection.plugin().cmp(other.connection.plugin()));
    offering.into_iter().for_each(|ready| builder.add_ordered(ready));
    builder.built.snapshot.number = table.number;
    builder.built.snapshot.lease = Some(Arc::clone(table) as Arc<dyn Any + Send + Sync>);
    builder.built
}

/// Returns the ready plugins whose requirements are not met, with what is missing. Whoever is not there offers no
/// services, so this spreads.
fn unmet(table: &PluginTable) -> BTreeMap<&str, Vec<&str>> {
    let ready = |plugin: &&PluginEntry| matches!(plugin.state, PluginState::Ready(_));
    let mut unmet: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    loop {
        let offering =
            table.plugins.iter().filter(ready).filter(|plugin| !unmet.contains_key(plugin.name.as_str()));
        let keys: BTreeSet<&str> = offering.clone().flat_map(owned).chain([HOST_SERVICE]).collect();
        let lacks = |entry: &&str| !required_service(entry).is_some_and(|key| keys.contains(key));
        let fresh: Vec<(&str, Vec<&str>)> = offering
            .map(|plugin| {
                let entries = plugin.source.manifest.requires.iter().map(String::as_str);
                (plugin.name.as_str(), entries.filter(lacks).collect::<Vec<_>>())
            })
            .filter(|(_, missing)| !missing.is_empty())
            .collect();
        if fresh.is_empty() {
            return unmet;
        }
        unmet.extend(fresh);
    }
}

/// Returns the service keys that a plugin may own.
fn owned(plugin: &PluginEntry) -> impl Iterator<Item = &str> {
    let declared = match &plugin.state {
        PluginState::Ready(ready) => Some(ready.declared.services.keys()),
        _ => None,
    };
    declared.into_iter().flatten().map(String::as_str).filter(|key| !key.starts_with(RESERVED))
}

fn unmet_words(needs: &[&str]) -> String {
    format!("unmet requirements: {}", needs.join(", "))
}

struct Builder<'a> {
    open: &'a Arc<OpenCalls>,
    built: Built,
    names: BTreeSet<(&'static str, String)>,
}

impl Builder<'_> {
    /// Adds what has a name that only one can have.
    fn add(&mut self, ready: &ReadyPlugin) {
        let (connection, declared) = (&ready.connection, &ready.declared);
        let plugin = connection.plugin().to_string();
        for spec in &declared.tools {
            let tool = tool::PluginTool::new(connection.clone(), spec, &declared.version);
            if self.take("tool", &tool.spec().name, &plugin) {
                self.built.snapshot.tools.push(Arc::new(tool));
            }
        }
        for spec in &declared.commands {
            if self.take("command", &spec.name, &plugin) {
                let command = command::PluginCommand::new(connection.clone(), spec.clone());
                self.built.snapshot.commands.push(Arc::new(command) as Arc<dyn Command>);
            }
        }
        self.add_providers(ready);
        for (key, spec) in &declared.services {
            if self.take_key(key, &plugin) {
                let service = PluginService::new(connection.clone(), key, spec, self.open);
                let port = Arc::new(service.clone()) as Arc<dyn Service>;
                self.built.snapshot.services.insert(key.clone(), port);
                self.built.services.insert(key.clone(), service);
            }
        }
    }

    /// Adds the providers; those of a dead process stand for the ones that are coming, which sessions wait for.
    fn add_providers(&mut self, ready: &ReadyPlugin) {
        let plugin = ready.connection.plugin().to_string();
        for spec in &ready.declared.providers {
            if self.take("provider", &spec.id, &plugin) {
                let provider = provider::PluginProvider::new(ready.connection.clone(), spec.clone());
                self.built.snapshot.providers.push(Arc::new(provider) as Arc<dyn Provider>);
            }
        }
    }

    /// Adds what is asked in the order of the plugins' names.
    fn add_ordered(&mut self, ready: &ReadyPlugin) {
        let (connection, declared) = (&ready.connection, &ready.declared);
        let snapshot = &mut self.built.snapshot;
        for spec in &declared.hooks {
            snapshot.hooks.push(Arc::new(hook::PluginHook::new(connection.clone(), spec.clone())));
        }
        if connection.is_closed() {
            return;
        }
        for spec in &declared.contributors {
            snapshot
                .contributors
                .push(Arc::new(context::PluginContributor::new(connection.clone(), spec.clone())));
        }
        for spec in &declared.compactors {
            snapshot
                .compactors
                .push(Arc::new(compactor::PluginCompactor::new(connection.clone(), spec.id.clone())));
        }
    }

    fn take(&mut self, kind: &'static str, name: &str, plugin: &str) -> bool {
        if self.names.insert((kind, name.to_owned())) {
            return true;
        }
        let code = match kind {
            "tool" => "TOOL_SHADOWED",
            "command" => "COMMAND_TAKEN",
            _ => "PROVIDER_TAKEN",
        };
        let text = format!("{plugin}: its {kind} `{name}` is not used: the name was taken before");
        self.built.clashes.push(Clash { code, text });
        false
    }

    fn take_key(&mut self, key: &str, plugin: &str) -> bool {
        let why = if key.starts_with(RESERVED) {
            format!("keys that begin with `{RESERVED}` are the host's")
        } else {
            match self.built.services.get(key) {
                None => return true,
                Some(service) => format!("{} has the key", service.owner()),
            }
        };
        let text = format!("{plugin}: its service `{key}` is not used: {why}");
        self.built.clashes.push(Clash { code: "SERVICE_TAKEN", text });
        false
    }
}

fn report(plugin: &PluginEntry, needs: Option<&Vec<&str>>) -> PluginReport {
    let version = match &plugin.state {
        PluginState::Ready(ready) => &ready.declared.version,
        _ => &plugin.source.manifest.version,
    };
    let reason = plugin.state.reason().or_else(|| needs.map(|needs| unmet_words(needs)));
    let enabled = needs.is_none() && !matches!(plugin.state, PluginState::Disabled);
    let (name, version) = (plugin.name.to_string(), version.clone());
    let process = match &plugin.state {
        PluginState::Ready(ready) => Some(process(&ready.connection)),
        _ => None,
    };
    let (state, restarts, origin) = (plugin.state.name(), plugin.restarts, plugin.source.origin.name());
    PluginReport { name, version, origin, enabled, state, restarts, reason, process }
}

fn process(connection: &Connection) -> PluginProcess {
    let (generation, connection) = (connection.generation(), connection.clone());
    let figures = move || match serde_json::to_value(connection.metrics()) {
        Ok(Value::Object(figures)) => figures,
        _ => Map::new(),
    };
    PluginProcess { generation, figures: Arc::new(figures) }
}
