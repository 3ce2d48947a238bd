//! `list`: the same answer with and without `summary.json`, and one bad journal beside many good ones.

use bingo_plugin_sdk::event::CloseReason;
use bingo_plugin_sdk::state::SessionState;

use super::*;

/// Lists, deletes every `summary.json`, lists again: both must be equal. Returns the answer.
async fn check_list(data: &Data) -> Vec<SessionSummary> {
    let with = sorted(data.journal.list().await.unwrap());
    for entry in fs::read_dir(data.dir.path().join("home/data/sessions")).unwrap() {
        let cache = entry.unwrap().path().join("summary.json");
        if cache.exists() {
            fs::remove_file(cache).unwrap();
        }
    }
    let without = sorted(data.journal.list().await.unwrap());
    assert_eq!(with, without);
    without
}

fn sorted(mut stored: StoredSessions) -> Vec<SessionSummary> {
    assert!(stored.problems.is_empty(), "{:?}", stored.problems);
    stored.sessions.sort_by(|one, other| one.id.as_str().cmp(other.id.as_str()));
    stored.sessions
}

/// What the reducer makes of the frames, as a list shows it.
fn folded(frames: &[Frame]) -> SessionSummary {
    let Event::SessionUpdated { summary } = &frames[0].event else { panic!("no head") };
    let mut state = SessionState::new((**summary).clone());
    frames.iter().for_each(|frame| state.apply(frame));
    let used = frames.iter().rfind(|frame| !matches!(frame.event, Event::SessionClosed { .. })).unwrap();
    SessionSummary { busy: false, updated_at: used.ts.clone(), ..state.summary }
}

/// Rule 7.8.
#[tokio::test]
async fn a_list_needs_no_summaries() {
    let data = Data::new();
    assert!(data.journal.list().await.unwrap().sessions.is_empty(), "nor a data directory");
    let mut frames = script(&data.session);
    let closed = Event::SessionClosed { reason: CloseReason::Shutdown };
    frames.push(frame(&data.session, frames.last().unwrap().seq.0 + 1, closed));
    let epoch = data.journal.create(data.session.clone()).await.unwrap();
    assert!(check_list(&data).await.is_empty(), "not before its first frame");
    let mut last = Seq(0);
    for (index, one) in frames.iter().enumerate() {
        data.journal.append(epoch.clone(), last, shared(std::slice::from_ref(one)), false).await.unwrap();
        last = one.seq;
        // Every other time the cache is there when the next frame comes.
        let listed = match index % 2 {
            0 => sorted(data.journal.list().await.unwrap()),
            _ => check_list(&data).await,
        };
        assert_eq!(listed, [folded(&frames[..=index])], "after {index}");
    }
    let listed = check_list(&data).await;
    assert_eq!(listed[0].messages, Some(4), "two answers and two questions since the last head");
    assert_eq!(listed[0].updated_at, frames[frames.len() - 2].ts, "its end is no use of it");
}

/// Rule 7.9.
#[tokio::test]
async fn a_cache_that_lags_or_runs_ahead_is_corrected() {
    let data = Data::new();
    let frames = data.stored().await;
    let cache = fs::read(data.path("summary.json")).unwrap();
    let bytes = fs::read(data.path("journal.jsonl")).unwrap();
    let whole = |lines: usize| {
        let mut seen = 0;
        let end = bytes.iter().position(|byte| {
            seen += usize::from(*byte == b'\n');
            seen == lines
        });
        end.unwrap() + 1
    };
    // The journal lost its end to a power cut, the cache did not.
    for kept in 1..frames.len() {
        fs::write(data.path("journal.jsonl"), &bytes[..whole(kept + 1)]).unwrap();
        fs::write(data.path("summary.json"), &cache).unwrap();
        let listed = check_list(&data).await;
        assert_eq!(listed, [folded(&frames[..kept])], "{kept}");
    }
    // A claim makes the cache good before the journal grows past the place it speaks of.
    fs::write(data.path("summary.json"), &cache).unwrap();
    let claim = data.claim().await.unwrap();
    let last = claim.frames.last().unwrap().seq;
    let long = "x".repeat(5000);
    let next = frame(&data.session, last.0 + 1, extension(&long));
    data.journal.append(claim.epoch, last, shared(&[next]), true).await.unwrap();
    check_list(&data).await;

    for nonsense in ["", "{", "null", "{\"journal\":{\"bytes\":1}}"] {
        fs::write(data.path("summary.json"), nonsense).unwrap();
        check_list(&data).await;
    }
    let foreign = String::from_utf8(cache).unwrap().replace("\"id\":\"ses_1\"", "\"id\":\"ses_9\"");
    fs::write(data.path("summary.json"), foreign).unwrap();
    assert_eq!(check_list(&data).await[0].id, data.session);
}

/// Mends 9.1.10.
#[tokio::test]
async fn one_bad_journal_spoils_nothing() {
    let mut data = Data::new();
    for name in ["ses_bad", "ses_newer", "ses_foreign", "ses_torn", "ses_good"] {
        data.session = SessionId::from(name);
        data.stored().await;
    }
    let sessions = data.dir.path().join("home/data/sessions");
    let journal = |name: &str| sessions.join(name).join("journal.jsonl");
    fs::write(journal("ses_newer"), "{\"format\":\"bingo-journal\",\"version\":2}\n").unwrap();
    fs::write(journal("ses_foreign"), "hello\n").unwrap();
    let torn = fs::read(journal("ses_torn")).unwrap();
    fs::write(journal("ses_torn"), [&torn[..], b"{\"seq\""].concat()).unwrap();
    let bad = fs::read_to_string(journal("ses_bad")).unwrap().replacen("\"seq\":2,", "\"seq\":x,", 1);
    fs::write(journal("ses_bad"), bad).unwrap();
    fs::create_dir(sessions.join("empty")).unwrap();
    fs::create_dir(sessions.join("not an id")).unwrap();
    fs::write(sessions.join("gc.stamp"), "").unwrap();
    fs::write(sessions.join("stray"), "").unwrap();

    let names = |stored: &StoredSessions| {
        let mut names: Vec<_> = stored.sessions.iter().map(|summary| summary.id.to_string()).collect();
        names.sort();
        names
    };
    let stored = data.journal.list().await.unwrap();
    assert_eq!(names(&stored), ["ses_bad", "ses_good", "ses_torn"], "the damage is behind the cache's back");
    assert_eq!(stored.problems.len(), 2);

    data.journal.claim(SessionId::from("ses_bad")).await.unwrap_err();
    let stored = data.journal.list().await.unwrap();
    assert_eq!(names(&stored), ["ses_good", "ses_torn"]);
    let mut problems: Vec<_> = stored.problems.iter().map(ToString::to_string).collect();
    problems.sort();
    assert!(problems[0].contains("is damaged at line 3"), "{problems:?}");
    assert!(problems[1].contains("ses_foreign/journal.jsonl is not a bingo journal"), "{problems:?}");
    assert!(problems[2].contains("newer bingo (journal version 2"), "{problems:?}");
    for name in ["ses_bad", "ses_newer", "ses_foreign"] {
        data.journal.delete(SessionId::from(name)).await.unwrap();
    }
    assert!(data.journal.list().await.unwrap().problems.is_empty());
}
