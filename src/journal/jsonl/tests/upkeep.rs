//! What a person does with stored sessions: look them through, rename them, clear away what was never begun.

use std::time::{Duration, SystemTime};

use super::*;

async fn verified(data: &Data) -> Verified {
    let mut all = data.journal.verify(Some(data.session.clone())).await.unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// Mends 9.1.2.
#[tokio::test]
async fn every_fault_is_named_with_its_place_and_nothing_is_changed() {
    let data = Data::new();
    let frames = data.stored().await;
    let path = data.path("journal.jsonl");
    let sound = verified(&data).await;
    assert_eq!((sound.frames, sound.torn, sound.faults.len()), (frames.len() as u64, false, 0));
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let begins = |lines: &[String], number: usize| {
        lines[..number - 1].iter().map(|line| line.len() as u64 + 1).sum::<u64>()
    };
    // The first frame, one of no sense, and one that lost a letter.
    for number in [2, 5, 9] {
        let line = &mut lines[number - 1];
        line.replace_range(20..21, "~");
    }
    lines[6] = "{}".to_owned();
    let broken = lines.join("\n") + "\n{\"seq\":";
    fs::write(&path, &broken).unwrap();
    let found = verified(&data).await;
    let places = found.faults.iter().map(|fault| match fault {
        JournalError::Damaged { path: named, line, offset, .. } if *named == path => (*line, *offset),
        other => panic!("{other:?}"),
    });
    let expected = [2, 5, 7, 9].map(|number| (number as u64, begins(&lines, number)));
    assert_eq!(places.collect::<Vec<_>>(), expected);
    assert_eq!((found.frames, found.torn), (frames.len() as u64 - 4, true));
    assert_eq!(fs::read_to_string(&path).unwrap(), broken);
    fs::write(&path, "hello\n").unwrap();
    let all = data.journal.verify(None).await.unwrap();
    assert!(matches!(all[0].faults[..], [JournalError::NotJournal { .. }]), "{all:?}");
    let unknown = data.journal.verify(Some(SessionId::from("ses_9"))).await;
    assert!(matches!(unknown, Err(JournalError::NotFound { .. })), "{unknown:?}");
}

#[tokio::test]
async fn a_new_title_is_durable_and_only_given_where_nobody_holds_the_session() {
    let data = Data::new();
    let mut frames = data.stored().await;
    let before = data.journal.list().await.unwrap().sessions.remove(0);
    let held = data.claim().await.unwrap().epoch;
    let refused = data.elsewhere().rename(data.session.clone(), "x".into()).await;
    assert!(matches!(refused, Err(JournalError::Locked { .. })), "{refused:?}");
    data.journal.release(held).await;
    data.elsewhere().rename(data.session.clone(), "a new name".into()).await.unwrap();
    let after = data.journal.list().await.unwrap().sessions.remove(0);
    assert_eq!(after.title.as_deref(), Some("a new name"));
    assert_eq!((after.messages, after.usage, &after.cwd), (before.messages, before.usage, &before.cwd));
    let mut claimed = data.claim().await.unwrap().frames;
    let added = claimed.pop().unwrap();
    assert_eq!(added.seq, frames.last().unwrap().seq.next_segment());
    assert_eq!(claimed, std::mem::take(&mut frames));
}

#[tokio::test]
async fn only_what_was_never_begun_is_cleared_away() {
    let data = Data::new();
    data.stored().await;
    let sessions = data.path("").parent().unwrap().parent().unwrap().join("sessions");
    for (name, file) in [("cut", "journal.jsonl"), ("locked", ".lock"), ("notes", "notes.txt")] {
        fs::create_dir(sessions.join(name)).unwrap();
        fs::write(sessions.join(name).join(file), "").unwrap();
    }
    let held = data.journal.create(SessionId::from("held")).await.unwrap();
    let clear = async |before, dry| {
        let mut cleared = data.elsewhere().clear_remains(before, dry).await.unwrap();
        cleared.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        cleared.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let later = SystemTime::now() + Duration::from_secs(60);
    assert_eq!(clear(later - Duration::from_secs(3600), false).await, [""; 0], "too young");
    assert_eq!(clear(later, true).await, ["cut", "held", "locked"]);
    assert_eq!(clear(later, false).await, ["cut", "locked"], "what is held is being begun");
    data.journal.release(held).await;
    assert_eq!(clear(later, false).await, ["held"]);
    let mut left: Vec<_> = fs::read_dir(&sessions).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["notes", "ses_1"]);
}

#[tokio::test]
async fn of_a_tree_all_go_or_none_and_nothing_that_somebody_has_open() {
    let data = Data::new();
    data.stored().await;
    let other = SessionId::from("ses_2");
    let held = data.journal.create(other.clone()).await.unwrap();
    let frame = frame(&other, 1, summary(&other, "other"));
    data.journal.append(held.clone(), Seq(0), shared(&[frame]), true).await.unwrap();
    let both = vec![data.session.clone(), other.clone()];
    for journal in [&data.journal, &data.elsewhere()] {
        let refused = journal.delete_closed(both.clone()).await;
        assert!(
            matches!(&refused, Err(JournalError::Locked { session, .. }) if *session == other),
            "{refused:?}"
        );
    }
    assert!(data.path("journal.jsonl").exists());
    data.journal.release(held).await;
    let all = data.journal.overdue(Keep::default(), SystemTime::now()).await.unwrap();
    assert!(all.trees.is_empty() && all.problems.is_empty(), "{all:?}");
    let overdue = data.journal.overdue(Keep { sessions: Some(0), ..Keep::default() }, SystemTime::now());
    let trees = overdue.await.unwrap().trees;
    let files = ["journal.jsonl", "summary.json", "checkpoint"].map(|name| fs::metadata(data.path(name)));
    let takes: u64 = files.into_iter().flatten().map(|facts| facts.len()).sum();
    assert_eq!(trees.iter().find(|tree| tree.sessions[0] == data.session).unwrap().bytes, takes);
    let gone = vec![data.session.clone(), SessionId::from("ses_3"), other.clone()];
    assert_eq!(data.elsewhere().delete_closed(gone.clone()).await.unwrap(), both);
    assert!(data.journal.list().await.unwrap().sessions.is_empty());
    assert!(data.elsewhere().delete_closed(gone).await.unwrap().is_empty());
}
