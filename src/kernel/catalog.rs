//! Catalogs: what the process offers, as lists for people (kernel rules 8.3).

use bingo_plugin_sdk::rpc::{Catalog, CatalogEntry, CatalogKind};
use serde_json::{Value, json};

use super::builtin::{self, Builtin};
use super::defaults::Configured;
use crate::ports::{Snapshot, Tool};
use crate::settings::ModelSettings;

/// Returns the catalog of this kind.
pub(super) fn read(snapshot: &Snapshot, kind: CatalogKind, configured: &Configured) -> Catalog {
    let mut catalog = content(snapshot, kind, configured);
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
pub(super) fn content(snapshot: &Snapshot, kind: CatalogKind, configured: &Configured) -> Catalog {
    let entries = match kind {
        CatalogKind::Models => models(snapshot, configured),
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

/// Returns the models that providers declare and those that the settings describe beside them; the configured one comes
/// first (kernel rule 8.3.12).
fn models(snapshot: &Snapshot, configured: &Configured) -> Vec<CatalogEntry> {
    let mut entries = Vec::new();
    for provider in &snapshot.providers {
        let spec = provider.spec();
        let model_entry = |model: &str, display: Option<&str>| {
            let id = format!("{}/{model}", spec.id);
            let meta = model_meta(&spec.id, configured.described.get(&id));
            entry(id, display.unwrap_or(model).to_owned(), meta)
        };
        entries.extend(spec.models.iter().map(|model| model_entry(&model.id, model.display.as_deref())));
        let described = configured.described.keys().chain(&configured.model);
        let mut own: Vec<_> =
            described.filter_map(|id| id.strip_prefix(&spec.id)?.strip_prefix('/')).collect();
        own.retain(|id| spec.models.iter().all(|model| model.id != *id));
        own.sort_unstable();
        own.dedup();
        entries.extend(own.into_iter().map(|model| model_entry(model, None)));
    }
    // A stable sort: the rest keeps its order.
    entries.sort_by_key(|entry| configured.model.as_deref() != Some(entry.id.as_str()));
    entries
}

fn model_meta(provider: &str, described: Option<&ModelSettings>) -> Value {
    let mut meta = json!({ "provider": provider });
    let Some(ModelSettings { context_window, max_output, images, reasoning }) = described else {
        return meta;
    };
    let facts = [
        ("context", context_window.map(Value::from)),
        ("output", max_output.map(Value::from)),
        ("images", images.map(Value::from)),
        ("reasoning", reasoning.map(Value::from)),
        ("source", Some(json!("configured"))),
    ];
    for (name, fact) in facts {
        if let Some(fact) = fact {
            meta[name] = fact;
        }
    }
    meta
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
