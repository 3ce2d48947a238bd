//! What a crash or a foreign hand leaves in a journal, and what the next claim makes of it.

use super::*;

/// Checks what a claim makes of a journal of these bytes: the whole lines and their frames, and nothing else.
async fn check_cut(data: &Data, bytes: &[u8], frames: &[Frame]) {
    let path = data.path("journal.jsonl");
    fs::write(&path, bytes).unwrap();
    let end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let whole = bytes.iter().filter(|byte| **byte == b'\n').count() - 1;
    if whole == 0 {
        let empty = data.claim().await;
        assert!(matches!(empty, Err(JournalError::NotFound { .. })), "{empty:?}");
        return;
    }
    let claim = data.claim().await.unwrap();
    assert_eq!(claim.frames, frames[..whole]);
    assert_eq!(fs::read(&path).unwrap(), bytes[..end]);
    // The file is the same for every cut in one line: whether it can go on is asked with and without a torn tail.
    if bytes.len() - end < 2 {
        check_goes_on(data, &claim.epoch, &frames[..whole]).await;
    }
    data.journal.release(claim.epoch).await;
}

async fn check_goes_on(data: &Data, epoch: &Epoch, frames: &[Frame]) {
    let last = frames.last().unwrap().seq;
    let next = frame(&data.session, last.0 + (1 << 32), extension("next"));
    data.journal.append(epoch.clone(), last, shared(std::slice::from_ref(&next)), false).await.unwrap();
    data.journal.release(epoch.clone()).await;
    let again = data.claim().await.unwrap();
    data.journal.release(again.epoch).await;
    assert_eq!(again.frames.split_last(), Some((&next, frames)));
}

#[tokio::test]
async fn a_journal_cut_at_any_byte_keeps_its_whole_lines() {
    let data = Data::on(Arc::new(Fated(Unsynced)));
    let frames = data.stored().await;
    let bytes = fs::read(data.path("journal.jsonl")).unwrap();
    let header = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for cut in header..=bytes.len() {
        check_cut(&data, &bytes[..cut], &frames).await;
    }
}

#[tokio::test]
async fn what_a_power_cut_leaves_behind_the_last_line_is_cut() {
    let data = Data::new();
    let frames = data.stored().await;
    let bytes = fs::read(data.path("journal.jsonl")).unwrap();
    let path = data.path("journal.jsonl");
    for tail in [&b"\0\0\0\0"[..], b"{\"seq\":", b" ", b"\xff\xfe", b"{}"] {
        let torn = [&bytes, tail].concat();
        fs::write(&path, &torn).unwrap();
        let read = data.journal.read(data.session.clone(), Seq(0), Seq(u64::MAX)).await.unwrap();
        assert_eq!(read, frames, "a reader ignores the torn tail");
        assert_eq!(fs::read(&path).unwrap(), torn, "and leaves it to the next claim");
        check_cut(&data, &torn, &frames).await;
    }
}

/// Checks that a journal with this line in place of another is refused by name and left as it is.
async fn check_damage(data: &Data, lines: &[String], number: usize, replacement: &str) {
    let path = data.path("journal.jsonl");
    let mut lines = lines.to_vec();
    replacement.clone_into(&mut lines[number - 1]);
    let text = lines.join("\n") + "\n";
    fs::write(&path, &text).unwrap();
    let refused = data.claim().await.unwrap_err();
    let JournalError::Damaged { path: named, line, .. } = &refused else { panic!("{refused:?}") };
    assert_eq!((named, *line), (&path, number as u64), "{replacement}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    let again = data.claim().await.unwrap_err();
    assert!(matches!(again, JournalError::Damaged { .. }), "the lock was given back: {again:?}");
}

/// Rule 7.4, 7.5.
#[tokio::test]
async fn a_damaged_line_is_named() {
    let data = Data::new();
    let frames = data.stored().await;
    let text = fs::read_to_string(data.path("journal.jsonl")).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let json = |frame: &Frame| serde_json::to_string(frame).unwrap();

    let other = frame(&SessionId::from("ses_2"), frames[3].seq.0, extension("x"));
    let ephemeral = frame(&data.session, frames[3].seq.0, notice());
    let unknown = lines[4].replace("\"type\":\"", "\"type\":\"later");
    for bad in ["", " ", "{", "null", "\0\0", &json(&frames[1]), &json(&other), &json(&ephemeral), &unknown] {
        check_damage(&data, &lines, 5, bad).await;
    }
    // Whole, so it was written whole: not a torn tail.
    check_damage(&data, &lines, lines.len(), "{\"seq\":1").await;
    check_damage(&data, &lines, 2, &json(&frame(&data.session, 1, extension("x")))).await;
    check_damage(&data, &lines, 1, r#"{"format":"bingo-journal","version":1,"session":"ses_2"}"#).await;
}

/// Rule 7.4.
#[tokio::test]
async fn a_newer_or_foreign_journal_is_left_untouched() {
    let data = Data::new();
    data.stored().await;
    let path = data.path("journal.jsonl");
    let rest = "{\"from\":\"the future\"}\n{\"torn";
    for (header, newer) in [
        (r#"{"format":"bingo-journal","version":2,"session":"ses_1","more":[]}"#, true),
        (r#"{"format":"bingo-journal","version":99}"#, true),
        (r#"{"format":"bingo-journal","version":"1","session":"ses_1"}"#, false),
        (r#"{"format":"bingo-journal","version":0,"session":"ses_1"}"#, false),
        (r#"{"format":"bingo-transcript","version":1}"#, false),
        (r#"{"format":"bingo-transcript","version":2}"#, false),
        ("[]", false),
        ("hello", false),
        ("\0\0", false),
    ] {
        for text in [format!("{header}\n{rest}"), format!("{header}\n"), header.to_owned()] {
            fs::write(&path, &text).unwrap();
            for refused in [
                data.claim().await.map(drop),
                data.journal.read(data.session.clone(), Seq(0), Seq(9)).await.map(drop),
            ] {
                match refused {
                    Err(JournalError::Newer { path: named, version: 2 | 99 }) if newer => {
                        assert_eq!(named, path)
                    }
                    Err(JournalError::NotJournal { path: named }) if !newer => assert_eq!(named, path),
                    other => panic!("{text}: {other:?}"),
                }
            }
            let refused = data.journal.create(data.session.clone()).await;
            assert!(matches!(refused, Err(JournalError::Exists { .. })), "{refused:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}

/// Rule 7.1.
#[tokio::test]
async fn a_session_that_was_never_finished_beginning_is_none() {
    let data = Data::new();
    data.stored().await;
    let header = file::header_line(&data.session);
    for cut in 0..=header.len() {
        fs::remove_file(data.path("summary.json")).unwrap();
        fs::write(data.path("journal.jsonl"), &header[..cut]).unwrap();
        let none = data.claim().await;
        assert!(matches!(none, Err(JournalError::NotFound { .. })), "{cut}: {none:?}");
        let listed = data.journal.list().await.unwrap();
        assert!(listed.sessions.is_empty() && listed.problems.is_empty(), "{cut}: {listed:?}");
        data.stored().await;
    }
}
