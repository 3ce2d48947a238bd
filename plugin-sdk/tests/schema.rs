//! Holds the committed schemas to the types. Update them with
//! `BINGO_UPDATE_SCHEMA=1 cargo test -p bingo-plugin-sdk --features schema --test schema`.
#![cfg(feature = "schema")]

use std::path::PathBuf;

use bingo_plugin_sdk::{calls, rpc, schema};
use serde_json::Value;

const UPDATE: &str = "BINGO_UPDATE_SCHEMA=1 cargo test -p bingo-plugin-sdk --features schema --test schema";

fn committed(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../schema").join(name)
}

fn hold(name: &str, generated: &Value) {
    let path = committed(name);
    let text = schema::to_text(generated);
    if std::env::var_os("BINGO_UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, &text).expect("the schema folder can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "schema/{name} differs from the types; update it with\n  {UPDATE}");
}

#[test]
fn the_committed_schemas_are_those_of_the_types() {
    hold("plugin.json", &schema::plugin());
    hold("rpc.json", &schema::rpc());
}

#[test]
fn the_counts_are_those_of_the_wire() {
    let count = |schema: &Value, key: &str| schema[key].as_object().unwrap().len();
    let (plugin, rpc) = (schema::plugin(), schema::rpc());
    assert_eq!(count(&plugin, "$defs"), 110);
    assert_eq!(count(&plugin, "methods"), 9);
    assert_eq!(count(&plugin, "notifications"), 5);
    assert_eq!(count(&rpc, "$defs"), 81);
    assert_eq!(count(&rpc, "methods"), 16);
    assert_eq!(count(&rpc, "notifications"), 2);
}

#[test]
fn a_changed_method_table_raises_the_protocol() {
    const PLUGIN: (u32, &[&str], &[&str]) = (
        5,
        &[
            "initialize",
            "tool/call",
            "command/run",
            "command/complete",
            "context/contribute",
            "compactor/compact",
            "provider/stream",
            "service/call",
            "hook/decide",
        ],
        &["tool/progress", "tool/cancel", "provider/delta", "provider/cancel", "hook/observe"],
    );
    const RPC: (u32, &[&str], &[&str]) = (
        1,
        &[
            "initialize",
            "shutdown",
            "session/list",
            "session/open",
            "session/close",
            "session/delete",
            "session/deliver",
            "session/extend",
            "session/signal",
            "session/history",
            "session/events",
            "session/submit",
            "session/interrupt",
            "session/answer",
            "catalog/read",
            "gateway/subscribe",
        ],
        &["event", "gateway/event"],
    );
    let rule = "a method table changed: raise PROTOCOL, then write the new number and table here";
    assert_eq!((calls::PROTOCOL, calls::METHODS, calls::NOTIFICATIONS), PLUGIN, "{rule}");
    assert_eq!((rpc::PROTOCOL, rpc::METHODS, rpc::NOTIFICATIONS), RPC, "{rule}");
}

/// Rule 1.1.2, 5.5.25.
#[test]
fn every_property_name_is_camel_case() {
    for schema in [schema::plugin(), schema::rpc()] {
        let mut names = Vec::new();
        property_names(&schema["$defs"], &mut names);
        assert!(names.len() > 100, "the walk found the properties");
        for name in names {
            let fits = name.starts_with(|first: char| first.is_ascii_lowercase())
                && name.chars().all(|letter| letter.is_ascii_alphanumeric());
            assert!(fits, "`{name}` is not camelCase");
        }
    }
}

/// Rule 1.2.9, 1.2.10. A `shell` item has no shape on this wire.
#[test]
fn the_kinds_of_items_and_their_statuses_are_those_of_the_wire() {
    let definitions = &schema::rpc()["$defs"];
    let mut bodies = tags(&definitions["ItemBody"], "kind");
    bodies.sort_unstable();
    let expected = [
        "action",
        "asset",
        "assistant",
        "compaction",
        "interruption",
        "notice",
        "permissionReceipt",
        "questionAnswer",
        "reasoning",
        "rewind",
        "toolCall",
        "user",
    ];
    assert_eq!(bodies, expected);
    assert_eq!(
        names(&definitions["ItemStatus"]),
        ["pending", "running", "completed", "failed", "interrupted"]
    );
}

/// Rule 5.5.23. `NOT_FOUND` is said of withdrawn lines alone, which have no method on this wire.
#[test]
fn the_error_codes_are_those_of_the_wire() {
    let mut codes = names(&schema::rpc()["$defs"]["ErrorCode"]);
    codes.sort_unstable();
    let mut expected = "SESSION_NOT_FOUND SESSION_LOCKED SESSION_CLOSED INTERACTION_CLOSED NOT_READY STALE_GENERATION \
        NOT_INITIALIZED INVALID_INPUT PERMISSION_DENIED TOOL_NOT_FOUND TOOL_FAILED PROVIDER_UNAVAILABLE AUTH_REQUIRED \
        RATE_LIMITED CONTEXT_OVERFLOW TIMEOUT OFFLINE SERVER_ERROR TURN_LOST TURN_BUDGET_EXHAUSTED STORAGE INTERNAL"
        .split_whitespace()
        .collect::<Vec<_>>();
    expected.sort_unstable();
    assert_eq!(codes, expected);
}

/// The values of the tag of a union.
fn tags(definition: &Value, tag: &str) -> Vec<String> {
    let branches = definition["oneOf"].as_array().into_iter().flatten();
    branches.map(|branch| word(&branch["properties"][tag]["const"])).collect()
}

/// The values of an enumeration of strings, which may stand in branches with a description each.
fn names(definition: &Value) -> Vec<String> {
    let values = definition["enum"].as_array().into_iter().flatten().map(word);
    let single = definition.get("const").map(word);
    let branches = definition["oneOf"].as_array().into_iter().flatten().flat_map(names);
    values.chain(single).chain(branches).collect()
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[test]
fn every_definition_says_what_it_is() {
    for schema in [schema::plugin(), schema::rpc()] {
        for (name, definition) in schema["$defs"].as_object().unwrap() {
            assert!(definition["description"].is_string(), "`{name}` has no description");
        }
    }
}

fn property_names(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::Object(properties)) = members.get("properties") {
                names.extend(properties.keys().cloned());
            }
            members.values().for_each(|member| property_names(member, names));
        }
        Value::Array(elements) => elements.iter().for_each(|element| property_names(element, names)),
        _ => {}
    }
}
