//! What faults say, word for word.

use super::*;

fn text(method: &str, part: Part, value: Value) -> String {
    plugin().check(method, part, &value).unwrap_err().to_string()
}

#[test]
fn every_schema_compiles() {
    for validators in [plugin(), rpc()] {
        for check in validators.checks.values() {
            compile(&validators.document, &check.schema);
        }
    }
}

#[test]
fn what_fits_passes_and_unknown_keys_too() {
    let output = json!({"output": {"parts": [{"type": "text", "text": "hi", "new": 1}]}, "more": true});
    plugin().check("tool/call", Part::Result, &output).unwrap();
    plugin().check("tool/progress", Part::Params, &json!({"callId": "c", "tail": "x"})).unwrap();
}

#[test]
fn a_fault_speaks_of_the_branch_that_the_tag_selects() {
    assert_eq!(
        text("tool/call", Part::Result, json!({"output": {"parts": [{"type": "txt", "text": "hi"}]}})),
        r#"tool/call result at /output/parts/0/type: expected one of "text", "image", "toolUse", "toolResult", "reasoning", got "txt""#
    );
    assert_eq!(
        text("tool/call", Part::Result, json!({"output": {"parts": [{"type": "text", "text": 5}]}})),
        "tool/call result at /output/parts/0/text: expected string, got 5"
    );
    assert_eq!(
        text("tool/call", Part::Result, json!({"output": {"parts": [{"type": "image", "data": ""}]}})),
        "tool/call result at /output/parts/0/mediaType: expected string, got nothing"
    );
    assert_eq!(
        text("provider/delta", Part::Params, json!({"call": "c", "event": {"type": "textDelta", "id": "b"}})),
        "provider/delta params at /event/delta: expected string, got nothing"
    );
    assert_eq!(
        text(
            "provider/stream",
            Part::Result,
            json!({"error": {"kind": "server", "status": "x", "message": ""}})
        ),
        r#"provider/stream result at /error/status: expected integer, got "x""#
    );
    assert_eq!(
        text("hook/decide", Part::Result, json!({"outcome": {"kind": "deny"}})),
        "hook/decide result at /outcome/reason: expected string, got nothing"
    );
}

#[test]
fn a_missing_tag_names_what_it_could_be() {
    assert_eq!(
        text("command/run", Part::Result, json!({"outcome": {"message": "done"}})),
        r#"command/run result at /outcome/kind: expected one of "applied", "view", "prompt", "record", got nothing"#
    );
}

#[test]
fn an_unknown_view_needs_its_fold() {
    let view = |view: Value| json!({"output": {"parts": [], "display": view}});
    plugin().check("tool/call", Part::Result, &view(json!({"kind": "map", "fold": "x"}))).unwrap();
    assert_eq!(
        text("tool/call", Part::Result, view(json!({"kind": "map"}))),
        "tool/call result at /output/display/fold: expected string, got nothing"
    );
    assert_eq!(
        text("tool/call", Part::Result, view(json!({"kind": "list", "items": ["a", 1]}))),
        "tool/call result at /output/display/items/1: expected string, got 1"
    );
}

#[test]
fn the_handshake_names_the_declaration_that_is_wrong() {
    let mut result = json!({"protocol": 5, "name": "n", "version": "1"});
    plugin().check("initialize", Part::Result, &result).unwrap();
    result["contributors"] = json!([{"id": "a", "placement": {"kind": "nowhere"}}]);
    assert_eq!(
        text("initialize", Part::Result, result),
        r#"initialize result at /contributors/0/placement/kind: expected one of "system", "roundStart", "barrier", got "nowhere""#
    );
}

#[test]
fn what_was_got_is_clipped() {
    let long = "x".repeat(500);
    let got = plugin().check("tool/call", Part::Result, &json!({"output": long})).unwrap_err().got;
    assert!(got.chars().count() <= 81, "{got}");
    assert!(got.ends_with('…'), "{got}");
}

#[test]
fn an_unknown_method_is_said_to_be_one() {
    assert_eq!(
        text("tool/run", Part::Params, json!({})),
        "tool/run params: expected a method of the protocol, got `tool/run`"
    );
    assert_eq!(
        plugin().check_host("ring", Part::Params, &json!({})).unwrap_err().to_string(),
        "bingo.host ring params: expected a method of the host's service, got `ring`"
    );
}

#[test]
fn missing_params_count_as_empty_ones() {
    rpc().check("session/list", Part::Params, &Value::Null).unwrap();
    assert_eq!(
        text("tool/progress", Part::Params, Value::Null),
        "tool/progress params at /callId: expected string, got nothing"
    );
}

#[test]
fn settings_are_checked_by_the_plugins_own_schema() {
    let schema = json!({
        "type": "object", "required": ["key"], "additionalProperties": false,
        "properties": {"key": {"type": "string", "pattern": "^a"}},
    });
    check_config("p", &schema, &json!({"key": "abc"})).unwrap();
    check_config("p", &json!({}), &Value::Null).unwrap();
    let error = |config: Value| check_config("p", &schema, &config).unwrap_err();
    assert_eq!(error(Value::Null), "the settings plugins.p at /key: expected string, got nothing");
    assert_eq!(error(json!({"key": 1})), "the settings plugins.p at /key: expected string, got 1");
    assert_eq!(error(json!({"key": "a", "x": 1})), "the settings plugins.p at /x: expected nothing, got 1");
    assert!(error(json!({"key": "b"})).starts_with("the settings plugins.p at /key: expected"));
    assert!(check_config("p", &json!({"type": 7}), &json!(1)).unwrap_err().contains("no JSON Schema"));
}

#[test]
fn a_manifest_is_checked_by_its_keys() {
    let manifest = json!({"name": "a", "version": "1", "entry": {"command": "x", "args": [1]}});
    assert_eq!(
        plugin().check_manifest(&manifest).unwrap_err().to_string(),
        "plugin.json at /entry/args/0: expected string, got 1"
    );
}

/// Returns the pointers of all values in a value but the whole.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut visit = |key: String, value: &Value| {
        let pointer = format!("{at}/{key}");
        pointers(value, &pointer, found);
        found.push(pointer);
    };
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| visit(key.clone(), value)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| visit(index.to_string(), value));
        }
        _ => {}
    }
}

#[test]
fn one_wrong_value_anywhere_is_found_where_it_is() {
    let values = [
        (
            "tool/call",
            Part::Result,
            json!({"output": {"isError": true, "parts": [
            {"type": "text", "text": "a"}, {"type": "toolResult", "toolUseId": "x", "parts": [{"type": "text", "text": "b"}]},
        ], "display": {"kind": "panel", "title": "t", "child": {"kind": "table", "headers": ["h"], "rows": [["c"]]}}}}),
        ),
        (
            "provider/delta",
            Part::Params,
            json!({"call": "c", "event": {"type": "finish", "finishReason": {"unified": "stop"},
            "usage": {"input": 1, "output": 2}}}),
        ),
        (
            "initialize",
            Part::Result,
            json!({"protocol": 5, "name": "n", "version": "1",
            "tools": [{"name": "t", "description": "d", "inputSchema": {}}],
            "commands": [{"name": "c", "aliases": ["d"], "hint": "h", "args": {"kind": "free", "hint": "x"}, "family": "f"}],
            "hooks": [{"id": "h", "points": ["stop"]}], "providers": [{"id": "p", "models": [{"id": "m"}]}]}),
        ),
        (
            "hook/decide",
            Part::Result,
            json!({"outcome": {"kind": "deny", "reason": "r"},
            "value": {"kind": "call", "call": {"callId": "c", "name": "n", "input": 1}}}),
        ),
    ];
    for (method, part, value) in values {
        let mut all = Vec::new();
        pointers(&value, "", &mut all);
        for pointer in all {
            for wrong in [json!(null), json!(-1.5), json!("no"), json!([[]]), json!({})] {
                let mut value = value.clone();
                *value.pointer_mut(&pointer).unwrap() = wrong.clone();
                let Err(fault) = plugin().check(method, part, &value) else { continue };
                // A tag that selects another branch shows in what that branch wants beside it.
                let (parent, _) = pointer.rsplit_once('/').unwrap();
                assert!(fault.pointer.starts_with(parent), "{wrong} at {pointer}: {fault}");
                assert!(!fault.expected.contains("fits the schema"), "{wrong} at {pointer}: {fault}");
            }
        }
    }
}
