//! Bits that flip and ends that are cut off: nothing is lost silently, nothing is made up, and errors name the place.

use super::*;

/// The part of the end in which each bit is flipped.
const END: usize = 4096;

/// Mends 9.1.2.
/// Rule 7.6.
#[tokio::test]
async fn a_last_frame_cut_at_any_byte_is_gone_whole_and_the_next_one_is_not_glued_to_it() {
    let data = Data::on(Arc::new(Fated(Unsynced)));
    let frames = data.stored().await;
    let path = data.path("journal.jsonl");
    let bytes = fs::read(&path).unwrap();
    let begins = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let (kept, last) = (&frames[..frames.len() - 1], frames.last().unwrap());
    for cut in begins..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        let claim = data.claim().await.unwrap();
        assert_eq!(claim.frames, kept, "cut at byte {cut}");
        let again = shared(std::slice::from_ref(last));
        data.journal.append(claim.epoch.clone(), kept.last().unwrap().seq, again, true).await.unwrap();
        data.journal.release(claim.epoch).await;
        assert_eq!(fs::read(&path).unwrap(), bytes, "cut at byte {cut}");
    }
}

/// One bit of each byte in a test run, all of them with `BINGO_ENDURANCE=full`.
///
/// Mends 9.1.2.
#[tokio::test]
async fn no_bit_of_the_end_flips_unseen() {
    let full = std::env::var("BINGO_ENDURANCE").is_ok_and(|size| size == "full");
    let data = Data::on(Arc::new(Fated(Unsynced)));
    let frames = data.stored().await;
    let path = data.path("journal.jsonl");
    let bytes = fs::read(&path).unwrap();
    let header = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    for at in bytes.len().saturating_sub(END).max(header + 1)..bytes.len() {
        let one = at as u32 % 8;
        for bit in if full { 0..8 } else { one..one + 1 } {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            fs::write(&path, &flipped).unwrap();
            let error = data.claim().await.map(|claim| claim.frames == frames).unwrap_err();
            let JournalError::Damaged { path: named, line, offset, .. } = &error else { panic!("{error:?}") };
            let begins = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end as u64 + 1);
            let before = bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!((named, *offset, *line), (&path, begins, before + 1), "byte {at}, bit {bit}: {error}");
            assert_eq!(fs::read(&path).unwrap(), flipped, "it is left as it is");
        }
    }
}

#[tokio::test]
async fn a_journal_of_an_earlier_version_has_no_checksums_and_goes_on_with_them() {
    let data = Data::new();
    let frames = data.stored().await;
    let path = data.path("journal.jsonl");
    let mut text = r#"{"format":"bingo-journal","version":1,"session":"ses_1"}"#.to_owned();
    for frame in &frames {
        text += "\n";
        text += &serde_json::to_string(frame).unwrap();
    }
    text += "\n";
    fs::write(&path, &text).unwrap();
    let claim = data.claim().await.unwrap();
    assert_eq!(claim.frames, frames);
    let last = frames.last().unwrap().seq;
    let next = frame(&data.session, last.0 + 1, extension("next"));
    data.journal.append(claim.epoch.clone(), last, shared(std::slice::from_ref(&next)), true).await.unwrap();
    data.journal.release(claim.epoch).await;
    let mut bytes = fs::read(&path).unwrap();
    assert_eq!(data.journal.read(data.session.clone(), last, next.seq).await.unwrap(), [next]);
    let at = bytes.len() - 20;
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(data.claim().await, Err(JournalError::Damaged { .. })));
}
