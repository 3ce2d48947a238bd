use serde_json::{Value, json};

use super::*;
use crate::kernel::permission::subject::subjects;

const CWD: &str = "/nowhere/work";

/// Whether a rule allows a call of the tool `T`, and whether it stops it.
fn both(rule: &str, input: Value) -> (bool, bool) {
    let (rule, cwd): (Rule, _) = (rule.parse().unwrap(), Path::new(CWD));
    let subjects = subjects(&input, cwd);
    (rule.allows("T", &subjects, cwd), rule.stops("T", &subjects, cwd))
}

/// Rule 8.5.29.
#[test]
fn a_name_is_exact_or_that_of_a_server_or_plugin() {
    for (rule, tool, is_for) in [
        ("T", "T", true),
        ("T", "TT", false),
        ("T", "T__x", false),
        ("t", "T", false),
        ("mcp__s", "mcp__s__read", true),
        ("mcp__s", "mcp__sx__read", false),
        ("mcp__s__read", "mcp__s__read", true),
        ("mcp__s__read", "mcp__s__read__more", false),
        ("mcp", "mcp__s__read", false),
        ("plugin__p", "plugin__p__count", true),
        ("plugin__p", "plugin__p2__count", false),
        ("other__p", "other__p__count", false),
    ] {
        assert_eq!(rule.parse::<Rule>().unwrap().is_for(tool), is_for, "{rule} {tool}");
    }
}

/// Rule 8.5.29.
#[test]
fn commands_are_matched_word_by_word_and_part_by_part() {
    for (rule, command, expected) in [
        ("T(git:*)", "git status", (true, true)),
        ("T(git)", "git status", (true, true)),
        ("T(git status:*)", "git  status -s", (true, true)),
        ("T(git status:*)", "git stash", (false, false)),
        ("T(git:*)", "gitk", (false, false)),
        ("T(git:*)", "git log | less", (false, true)),
        ("T(git:*)", "git log && git status", (true, true)),
        ("T(git:*)", "git log > out", (false, true)),
        ("T(git:*)", "git $(rm x)", (false, true)),
        ("T(git:*)", "X=1 git log", (false, true)),
        ("T(rm:*)", "sudo rm x", (false, true)),
        ("T(rm:*)", "ls", (false, false)),
        ("T(src/**)", "rm src/a", (false, false)),
        ("T(domain:a)", "ls", (false, false)),
    ] {
        assert_eq!(both(rule, json!({ "command": command })), expected, "{rule} {command}");
    }
}

/// Rule 8.5.29.
#[test]
fn paths_are_matched_where_they_lead() {
    for (rule, path, expected) in [
        ("T(src/**)", "src/a/b.rs", (true, true)),
        ("T(src/**)", "./src/../src/a", (true, true)),
        ("T(src/**)", "src/../secret", (false, false)),
        ("T(src/**)", "/nowhere/work/src/a", (true, true)),
        ("T(src/**)", "/elsewhere/src/a", (false, false)),
        ("T(./src/**)", "src/a", (true, true)),
        ("T(src/*)", "src/a", (true, true)),
        ("T(src/*)", "src/a/b", (false, false)),
        ("T(**/*.rs)", "a/b/c.rs", (true, true)),
        ("T(*.rs)", "a/c.rs", (false, false)),
        ("T(src)", "src/a/b", (true, true)),
        ("T(src)", "srcs/a", (false, false)),
        ("T(src/)", "src", (true, true)),
        ("T(/etc/**)", "/etc/passwd", (true, true)),
        ("T(/etc)", "../../etc/passwd", (true, true)),
        ("T(**)", "../x", (false, false)),
        ("T(**)", "", (true, true)),
        ("T(SRC/**)", "src/a", (false, false)),
        ("T(git:*)", "git", (false, false)),
    ] {
        assert_eq!(both(rule, json!({ "path": path })), expected, "{rule} {path}");
    }
}

/// Rule 8.5.29.
#[test]
fn a_link_is_allowed_only_where_both_its_ends_are() {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().canonicalize().unwrap();
    std::os::unix::fs::symlink("/etc", cwd.join("link")).unwrap();
    let found = subjects(&json!({ "path": "link/passwd" }), &cwd);
    let rule = |text: &str| text.parse::<Rule>().unwrap();
    assert!(!rule("T(**)").allows("T", &found, &cwd));
    assert!(!rule("T(/etc/**)").allows("T", &found, &cwd));
    assert!(rule("T(link)").stops("T", &found, &cwd) && rule("T(/etc)").stops("T", &found, &cwd));
}

/// Rule 8.5.29.
#[test]
fn hosts_are_matched_whole_or_below_a_domain() {
    for (rule, url, expected) in [
        ("T(domain:example.com)", "https://example.com/x", (true, true)),
        ("T(domain:Example.com)", "http://EXAMPLE.com:80", (true, true)),
        ("T(domain:example.com)", "https://www.example.com", (false, false)),
        ("T(domain:*.example.com)", "https://www.example.com", (true, true)),
        ("T(domain:*.example.com)", "https://example.com", (false, false)),
        ("T(domain:*.example.com)", "https://badexample.com", (false, false)),
        ("T(domain:example.com)", "https://example.com.evil.com", (false, false)),
        ("T(domain:example.com)", "https://example.com@evil.com", (false, false)),
        ("T(domain:example.com)", "https://", (false, true)),
    ] {
        assert_eq!(both(rule, json!({ "url": url })), expected, "{rule} {url}");
    }
}

/// Rule 8.5.29.
#[test]
fn an_unreadable_rule_is_refused_in_words() {
    for rule in [
        "",
        " ",
        "a b",
        "a,b",
        "(x)",
        "T(",
        "T()",
        "T( )",
        "T(x",
        "T(:*)",
        "T(domain:)",
        "T(domain:a b)",
        "T(a[)",
        "T(a)b",
    ] {
        let error = rule.parse::<Rule>().unwrap_err();
        assert!(error.contains("is no rule: ") && error.contains("TOOL(src/**)"), "{rule:?}: {error}");
    }
    assert_eq!(" T(a b:*) ".parse::<Rule>().unwrap().to_string(), "T(a b:*)");
}
