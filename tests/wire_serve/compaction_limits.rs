//! Compactions that are thrown away, fail, are skipped or come after an overflow, and what happens without a compactor.

use serde_json::json;

use super::compaction::{MUCH, Rig, SHORT, cut};
use super::{items, model, notices, plugin, seen, server, titled};
use crate::common::{Sandbox, is, shapes};

/// Rule 4.5.45.
#[test]
fn a_cut_that_does_not_fit_is_thrown_away_and_says_why() {
    let mut rig = Rig::new();
    rig.turn("first");
    for (how, reason) in [
        (json!({ "after": 1000 }), "it would leave 1000 tokens of 1000"),
        (json!({ "boundary": "itm_nowhere" }), "its boundary itm_nowhere is no item of the context"),
        (json!({ "kept": ["itm_nowhere"] }), "it keeps itm_nowhere, which is no item of the context"),
    ] {
        rig.how(&how);
        let frames = rig.turn("/compact");
        assert_eq!(
            notices(&frames, "COMPACTION_USELESS"),
            [format!("a compaction was thrown away: {reason}")]
        );
        assert!(items(&frames, "compaction").is_empty());
        assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    }
    rig.how(&json!({ "fail": true }));
    let frames = rig.turn("/compact");
    assert_eq!(notices(&frames, "COMPACTION_FAILED"), ["short:short: short: out of order (code -32000)"]);
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    rig.turn("second");
    assert_eq!(rig.last_request(), ["first", "done", "second"], "nothing is lost");
}

/// Rule 1.2.14, 4.5.45.
#[test]
fn after_three_in_a_row_only_the_automatic_ones_are_skipped() {
    let mut rig = Rig::new();
    rig.turn(&format!("first\n{MUCH}"));
    rig.how(&json!({ "after": 1000 }));
    for failures in 0..3 {
        let frames = rig.turn(&format!("more\n{MUCH}"));
        assert_eq!(rig.asked()["context"]["failures"], failures);
        assert_eq!(notices(&frames, "COMPACTION_USELESS").len(), 1, "once in a turn");
        assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    }
    let frames = rig.turn(&format!("more\n{MUCH}"));
    let skipped = "the last 3 compactions were of no use, so the context is left as it is";
    assert_eq!(notices(&frames, "COMPACTION_SKIPPED"), [skipped]);
    assert_eq!(seen(&rig.short, "compactor/compact").len(), 3, "it was not asked");
    rig.how(&json!({}));
    cut(&rig.turn("/compact"));
    rig.turn(&format!("more\n{MUCH}"));
    let frames = rig.turn("more");
    assert!(notices(&frames, "COMPACTION_SKIPPED").is_empty());
    cut(&frames);
}

#[test]
fn a_failed_compaction_does_not_stop_the_turn_that_needed_it() {
    let mut rig = Rig::new();
    rig.turn(&format!("first\n{MUCH}"));
    rig.how(&json!({ "fail": true }));
    let frames = rig.turn("second");
    assert_eq!(notices(&frames, "COMPACTION_FAILED").len(), 1);
    assert_eq!(rig.last_request(), [&format!("first\n{MUCH}"), "done", "second"]);
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
}

/// Rule 4.5.46.
#[test]
fn an_overflow_is_answered_by_one_cut_and_one_retry() {
    let mut rig = Rig::new();
    rig.turn("first");
    let frames = rig.turn("second\n@overflow 1");
    let expected = [
        "intentAck req_2 turnStarted [req_2]",
        "turnRetrying 0/10 0 0",
        "itemCompleted compaction completed",
        "compacted",
        "itemStarted assistant running",
    ];
    assert_eq!(shapes(&frames)[2..7], expected);
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    assert_eq!(rig.asked()["reason"], json!({ "kind": "overflow", "message": "too large" }));
    let words = ["first", "[Summary of the conversation so far]\nin short", "second\n@overflow 1"];
    assert_eq!(rig.last_request(), words);
    let frames = rig.turn("third\n@overflow 2");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted failed CONTEXT_OVERFLOW");
    assert_eq!(seen(&rig.short, "compactor/compact").len(), 2, "one in each turn");
    assert_eq!(frames.iter().filter(|frame| is(frame, "turnRetrying")).count(), 1);
}

/// Rule 4.5.49.
#[test]
fn without_a_compactor_the_command_fails_and_a_full_context_is_left_alone() {
    let sandbox = Sandbox::new();
    let model = model(&sandbox);
    let mut client = server(&sandbox, &[&model], &["--model", "py/m"]);
    let session = titled(&mut client, &sandbox);
    let frames = client.turn(&session, "req_1", "/compact");
    let expected =
        ["turnStarted auto 0", "intentAck req_1 applied [req_1]", "turnCompleted failed INVALID_INPUT"];
    assert_eq!(shapes(&frames), expected);
    client.turn(&session, "req_2", MUCH);
    let frames = client.turn(&session, "req_3", "more\n@overflow 1");
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
    assert!(shapes(&frames).contains(&"turnRetrying 0/10 0 0".to_owned()));
    assert!(frames.iter().all(|frame| !is(frame, "notice")), "nothing was tried");
}

/// Rule 4.5.44.
#[test]
fn a_context_that_stays_too_large_is_cut_twice_in_a_turn_at_most() {
    let mut rig = Rig::new();
    // Four characters are counted as one token.
    let frames = rig.turn(&"x".repeat(700_000));
    assert_eq!(items(&frames, "compaction").len(), 2);
    let skipped = "the context was shortened 2 times in this turn and is still too large";
    assert_eq!(notices(&frames, "COMPACTION_SKIPPED"), [skipped]);
    assert_eq!(shapes(&frames).last().unwrap(), "turnCompleted completed");
}

#[test]
fn a_long_summary_counts_too() {
    let mut rig = Rig::new();
    rig.turn(&format!("first\n{MUCH}"));
    rig.how(&json!({ "summary": "x".repeat(700_000) }));
    let frames = rig.turn("second");
    assert_eq!(items(&frames, "compaction").len(), 2, "the first one was not enough");
}

#[test]
fn of_several_compactors_the_first_by_name_is_asked() {
    let sandbox = Sandbox::new();
    let [b, a] = ["b", "a"].map(|name| plugin(&sandbox, name, SHORT));
    let mut client = super::echo_server(&sandbox, &[&b, &a], &[]);
    let session = titled(&mut client, &sandbox);
    client.turn(&session, "req_1", "first");
    cut(&client.turn(&session, "req_2", "/compact"));
    std::fs::write(a.join("how"), r#"{"fail": true}"#).unwrap();
    client.turn(&session, "req_3", "/compact");
    assert_eq!(seen(&a, "compactor/compact").len(), 2);
    assert!(seen(&b, "compactor/compact").is_empty(), "not even when the first fails");
}
