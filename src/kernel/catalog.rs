//! Catalogs: what the process offers, as lists for people (kernel rules 8.3).

use bingo_plugin_sdk::rpc::{Catalog, CatalogEntry, CatalogKind};
use serde_json::{Value, json};

use super::builtin::{self, Builtin};
use crate::ports::{Snapshot, Tool};

/// Returns the catalog of this kind; `model` is the configured one, which comes first.
pub(super) fn read(snapshot: &Snapshot, kind: CatalogKind, model: Option<&str>) -> Catalog {
    let mut catalog = content(snapshot, kind, model);
    if kind == CatalogKind::Plugins {
        for (entry, plugin) in catalog.entries.iter_mut().zip(&snapshot.plugins) {
            if let (Value::Object(meta), Some(process)) = (&mut entry.meta, &plugin.process) {
                meta.extend((process.figures)());
            }
        }
    }
    catalog
}

/// Returns what makes a catalog another one: all of it without the figures of processes, which change all the time.
pub(super) fn content(snapshot: &Snapshot, kind: CatalogKind, model: Option<&str>) -> Catalog {
    let entries = match kind {
        CatalogKind::Models => models(snapshot, model),
        CatalogKind::Providers => providers(snapshot),
        CatalogKind::Tools => snapshot.tools.iter().map(|tool| tool_entry(tool.as_ref())).collect(),
        CatalogKind::Commands => commands(snapshot),
        CatalogKind::Skills => Vec::new(),
        CatalogKind::Plugins => plugins(snapshot),
    };
    Catalog { kind, entries }
}

fn entry(id: String, label: String, meta: Value) -> CatalogEntry {
    CatalogEntry { id, label, meta }
}

fn models(snapshot: &Snapshot, configured: Option<&str>) -> Vec<CatalogEntry> {
    let mut entries: Vec<CatalogEntry> = snapshot
        .providers
        .iter()
        .flat_map(|provider| {
            let spec = provider.spec();
            spec.models.iter().map(|model| {
                let label = model.display.clone().unwrap_or_else(|| model.id.clone());
                entry(format!("{}/{}", spec.id, model.id), label, json!({ "provider": spec.id }))
            })
        })
        .collect();
    // A stable sort: the rest keeps its order.
    entries.sort_by_key(|entry| configured != Some(entry.id.as_str()));
    entries
}

fn providers(snapshot: &Snapshot) -> Vec<CatalogEntry> {
    let entries = snapshot.providers.iter().map(|provider| {
        let id = &provider.spec().id;
        // Login never crosses the plugin wire: a provider plugin keeps its keys itself.
        entry(id.clone(), id.clone(), json!({ "auth": "notApplicable" }))
    });
    entries.collect()
}

fn tool_entry(tool: &dyn Tool) -> CatalogEntry {
    let spec = tool.spec();
    let mut meta = serde_json::Map::from_iter(spec.meta.clone());
    meta.insert("description".to_owned(), json!(spec.description));
    meta.insert("inputSchema".to_owned(), spec.input_schema.clone());
    entry(spec.name.clone(), spec.name.clone(), Value::Object(meta))
}

fn commands(snapshot: &Snapshot) -> Vec<CatalogEntry> {
    let offered = snapshot.commands.iter().map(|command| command.spec());
    let reached = offered.filter(|spec| Builtin::find(&spec.name).is_none()).cloned();
    let all = builtin::commands().chain(reached);
    all.map(|spec| entry(spec.name.clone(), spec.hint.clone(), json!(spec))).collect()
}

fn plugins(snapshot: &Snapshot) -> Vec<CatalogEntry> {
    let entries = snapshot.plugins.iter().map(|plugin| {
        let (state, restarts) = (plugin.state, plugin.restarts);
        let mut meta = json!({ "enabled": plugin.enabled, "state": state, "restarts": restarts });
        if let Some(reason) = &plugin.reason {
            meta["reason"] = json!(reason);
        }
        if let Some(process) = &plugin.process {
            meta["generation"] = json!(process.generation.0);
        }
        entry(plugin.name.clone(), format!("{} {}", plugin.name, plugin.version), meta)
    });
    entries.collect()
}
