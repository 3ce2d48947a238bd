use std::path::Path;

use serde_json::{Value, json};

use super::*;

const CWD: &str = "/nowhere/work";

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn policy(mode: &str, allow: &[&str], deny: &[&str], ask: &[&str]) -> Policy {
    let rules = Rules { allow: rules(allow), deny: rules(deny), ask: rules(ask) };
    Policy::new(mode.parse().unwrap(), rules, Path::new(CWD))
}

fn stance(policy: &Policy, tool: &str, input: Value) -> Stance {
    policy.stance(tool, &subjects(&input, Path::new(CWD)))
}

fn ask(scope: &str) -> Stance {
    Stance::Ask { scope: Some(scope.to_owned()) }
}

const ASK: Stance = Stance::Ask { scope: None };

fn is_denied(stance: &Stance) -> bool {
    matches!(stance, Stance::Deny { .. })
}

/// Rule 8.5.26, 8.5.28, 4.3.29.
#[test]
fn every_mode_has_its_stance_on_what_is_untrusted() {
    for (mode, expected) in
        [("default", ask("t")), ("acceptEdits", ask("t")), ("bypassPermissions", Stance::Allow)]
    {
        assert_eq!(stance(&policy(mode, &[], &[], &[]), "t", json!({})), expected, "{mode}");
        // Nobody is trusted to edit.
        let edit = stance(&policy(mode, &[], &[], &[]), "t", json!({ "path": "a" }));
        assert_eq!(matches!(edit, Stance::Ask { .. }), mode != "bypassPermissions", "{mode}");
    }
    for mode in ["plan", "dontAsk"] {
        assert!(is_denied(&stance(&policy(mode, &[], &[], &[]), "t", json!({}))), "{mode}");
        assert_eq!(stance(&policy(mode, &["t"], &[], &[]), "t", json!({})), Stance::Allow, "{mode}");
    }
    assert!("Plan".parse::<PermissionMode>().is_err());
    for name in PermissionMode::NAMES {
        assert_eq!(name.parse::<PermissionMode>().unwrap().to_string(), name);
    }
}

/// Rule 8.5.27.
#[test]
fn the_first_rung_that_speaks_decides() {
    let inside = json!({ "path": ".git/config" });
    for mode in ["default", "bypassPermissions", "acceptEdits"] {
        let denied = policy(mode, &["t"], &["t"], &["t"]);
        assert!(is_denied(&stance(&denied, "t", inside.clone())), "a deny rule is first: {mode}");
        assert_eq!(
            stance(&policy(mode, &["t"], &[], &[]), "t", inside.clone()),
            ASK,
            "then the folders: {mode}"
        );
        let asked = policy(mode, &["t"], &[], &["t"]);
        assert_eq!(stance(&asked, "t", json!({})), ASK, "then an ask rule: {mode}");
        assert_eq!(
            stance(&policy(mode, &["t"], &[], &[]), "t", json!({})),
            Stance::Allow,
            "then allow: {mode}"
        );
    }
    for asked in [json!({ "path": ".git/config" }), json!({ "path": "a" })] {
        let policy = policy("dontAsk", &["t"], &[], &["t"]);
        assert!(is_denied(&stance(&policy, "t", asked)), "every ask is a deny");
    }
    for guarded in ["a/.git", "/x/.claude/y", "b/../.vscode/z", ".idea"] {
        let bypassing = policy("bypassPermissions", &[], &[], &[]);
        assert_eq!(stance(&bypassing, "t", json!({ "path": guarded })), ASK, "{guarded}");
    }
    let near = stance(&policy("bypassPermissions", &[], &[], &[]), "t", json!({ "path": ".github/x" }));
    assert_eq!(near, Stance::Allow);
}

/// Rule 8.5.29.
#[test]
fn one_matching_subject_stops_and_all_must_match_to_allow() {
    let both = json!({ "paths": ["src/a", "doc/b"] });
    assert_eq!(stance(&policy("default", &["t(src/**)"], &[], &[]), "t", both.clone()), ASK);
    assert_eq!(stance(&policy("default", &["t(**)"], &[], &[]), "t", both.clone()), Stance::Allow);
    assert!(is_denied(&stance(&policy("default", &["t"], &["t(src/**)"], &[]), "t", both.clone())));
    assert_eq!(stance(&policy("default", &["t"], &[], &["t(doc)"]), "t", both), ASK);
    // Different kinds: no rule with one of them covers both.
    let mixed = json!({ "command": "ls", "path": "a" });
    assert_eq!(stance(&policy("default", &["t(ls:*)", "t(**)"], &[], &[]), "t", mixed), ASK);
    // Nobody knows what it is about.
    let unknown = json!({ "text": "ls" });
    assert_eq!(stance(&policy("default", &["t(ls:*)"], &[], &[]), "t", unknown.clone()), ask("t"));
    assert!(is_denied(&stance(&policy("default", &["t"], &["t(rm:*)"], &[]), "t", unknown)));
}

/// Rule 8.5.30.
#[test]
fn a_scope_is_offered_only_where_it_silences_the_question() {
    let open = policy("default", &[], &[], &[]);
    for (input, scope) in [
        (json!({ "n": 1 }), Some("t")),
        (json!({ "command": " git status " }), Some("t(git status:*)")),
        (json!({ "command": "git status > x" }), None),
        (json!({ "command": "git status; rm x" }), None),
        (json!({ "url": "https://Example.com/x" }), Some("t(domain:example.com)")),
        (json!({ "url": "https://" }), None),
        (json!({ "path": "src/a" }), Some("t(**)")),
        (json!({ "path": "/elsewhere/a" }), Some("t(/elsewhere/a)")),
        (json!({ "path": ".git/a" }), None),
        (json!({ "path": "a[1" }), Some("t(**)")),
        (json!({ "path": "/x/a[1]" }), None),
        (json!({ "paths": ["a", "b"] }), None),
    ] {
        let mut policy = open.clone();
        let asked = stance(&policy, "t", input.clone());
        assert_eq!(asked, Stance::Ask { scope: scope.map(str::to_owned) }, "{input}");
        if let Some(scope) = scope {
            policy.allow_for_session(scope);
            policy.allow_for_session(scope);
            assert_eq!(stance(&policy, "t", input.clone()), Stance::Allow, "{input}");
            assert_eq!(policy.view()["sessionRules"], json!([scope]));
        }
    }
    assert_eq!(stance(&policy("default", &[], &[], &["t"]), "t", json!({})), ASK, "an ask rule asks again");
    assert_eq!(
        stance(&policy("plan", &[], &[], &[]), "other", json!({})),
        stance(&policy("plan", &[], &[], &[]), "t", json!({}))
    );
}

#[test]
fn a_policy_shows_its_mode_and_rules() {
    let mut policy = policy("default", &["a"], &["b(rm:*)"], &["c"]);
    policy.allow_for_session("t");
    let expected =
        json!({"mode": "default", "allow": ["a"], "deny": ["b(rm:*)"], "ask": ["c"], "sessionRules": ["t"]});
    assert_eq!(policy.view(), expected);
    let View::KeyValue { rows } = policy.shown() else { panic!("it is no list of pairs") };
    assert_eq!(rows[0], ["mode", "default"]);
    assert_eq!(rows[5], ["allowed in this session", "t"]);
}
