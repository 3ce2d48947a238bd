//! Checkpoints and the index: what they save, and that none of their faults changes an answer.

use super::*;
use crate::journal::jsonl::checkpoint::{self, Counted};
use crate::journal::jsonl::file::{Position, Reader};
use crate::journal::jsonl::layout::Place;
use crate::journal::jsonl::line;
use crate::journal::jsonl::marks::Marks;

const FOLD: &[u8] = b"what it all came to,\nin two lines";

/// A session of several hundred kilobytes.
struct Long {
    data: Data,
    frames: Vec<Frame>,
}

impl Long {
    async fn new() -> Self {
        let data = Data::on(Arc::new(Fated(Unsynced)));
        let mut frames = vec![frame(&data.session, 1, summary(&data.session, "long"))];
        for number in 0..400u64 {
            // With the gaps that ephemeral frames leave, and a second run of the session.
            let seq = if number < 300 { 5 + number * 3 } else { (1 << 32) + number };
            let event = extension(&format!("{number} {}", "x".repeat(1000)));
            frames.push(frame(&data.session, seq, event));
        }
        let epoch = data.journal.create(data.session.clone()).await.unwrap();
        append(&data.journal, &epoch, Seq(0), &frames).await;
        data.journal.release(epoch).await;
        Self { data, frames }
    }

    /// Keeps a checkpoint that counts all frames, and appends one more.
    async fn saved(mut self) -> Self {
        let claim = self.data.claim().await.unwrap();
        let last = self.last();
        self.data.journal.checkpoint(claim.epoch.clone(), last, FOLD.to_vec()).await;
        let more = vec![frame(&self.data.session, last.0 + 1, extension("more"))];
        append(&self.data.journal, &claim.epoch, last, &more).await;
        self.data.journal.release(claim.epoch).await;
        self.frames.extend(more);
        self
    }

    fn last(&self) -> Seq {
        self.frames.last().unwrap().seq
    }

    fn place(&self) -> Place {
        let sessions = self.data.path("");
        Place::of(sessions.parent().unwrap(), &self.data.session).unwrap()
    }

    /// Opens the session and reads in all ways; returns whether it went on from the checkpoint.
    async fn check(&self, what: &str) -> bool {
        let claim = self.data.claim().await.unwrap();
        let resumed = match &claim.resumed {
            Some(fold) => {
                assert_eq!(fold, FOLD, "{what}");
                assert_eq!(claim.frames, self.frames[self.frames.len() - 1..], "{what}");
                true
            }
            None => {
                assert_eq!(claim.frames, self.frames, "{what}");
                false
            }
        };
        self.read(what).await;
        let listed = self.data.journal.list().await.unwrap();
        assert_eq!(listed.sessions[0].title.as_deref(), Some("long"), "{what}");
        self.data.journal.release(claim.epoch).await;
        resumed
    }

    async fn read(&self, what: &str) {
        let (journal, session) = (&self.data.journal, &self.data.session);
        let end = self.frames.len() - 1;
        for (after, through) in [(0, end), (150, 160), (199, end.min(302)), (end - 1, end)] {
            let (from, to) = (self.frames[after].seq, self.frames[through].seq);
            let read = journal.read(session.clone(), from, to).await.unwrap();
            assert_eq!(read, self.frames[after + 1..=through], "{what}: {after} to {through}");
        }
        for every in [1, 7, 130] {
            let wanted: Vec<_> = self.frames.iter().step_by(every).cloned().collect();
            // A number that no frame has is left out.
            let mut seqs: Vec<_> =
                wanted.iter().map(|frame| frame.seq).chain([Seq(6), Seq(7), Seq(u64::MAX)]).collect();
            seqs.sort_unstable();
            assert_eq!(journal.pick(session.clone(), seqs).await.unwrap(), wanted, "{what}: each {every}");
        }
    }
}

async fn append(journal: &JsonlJournal, epoch: &Epoch, mut last: Seq, frames: &[Frame]) {
    for batch in frames.chunks(50) {
        journal.append(epoch.clone(), last, shared(batch), true).await.unwrap();
        last = batch.last().unwrap().seq;
    }
}

#[tokio::test]
async fn a_claim_goes_on_from_a_checkpoint() {
    let long = Long::new().await;
    assert!(!long.check("without one").await);
    let claim = long.data.claim().await.unwrap();
    let (journal, early) = (&long.data.journal, long.frames[300].seq);
    for no_frame in [Seq(0), Seq(7), Seq(u64::MAX)] {
        journal.checkpoint(claim.epoch.clone(), no_frame, FOLD.to_vec()).await;
    }
    assert!(!long.data.path("checkpoint").exists(), "it counts up to a frame");
    journal.checkpoint(claim.epoch.clone(), early, FOLD.to_vec()).await;
    journal.release(claim.epoch.clone()).await;
    let claim = long.data.claim().await.unwrap();
    assert_eq!((claim.resumed.as_deref(), &claim.frames[..]), (Some(FOLD), &long.frames[301..]));
    long.read("from early on").await;
    journal.release(claim.epoch.clone()).await;
    fs::remove_file(long.data.path("checkpoint")).unwrap();
    journal.checkpoint(claim.epoch, long.last(), FOLD.to_vec()).await;
    assert!(!long.data.path("checkpoint").exists(), "the epoch is over");
    let long = long.saved().await;
    assert!(long.check("with one").await);
    assert!(long.check("with one, again").await);
}

#[tokio::test]
async fn a_checkpoint_that_is_gone_or_cut_or_flipped_or_of_others_is_void() {
    let long = Long::new().await.saved().await;
    let path = long.data.path("checkpoint");
    let good = fs::read(&path).unwrap();
    let other = Data::on(Arc::new(Fated(Unsynced)));
    other.stored().await;
    let claim = other.claim().await.unwrap();
    let last = claim.frames.last().unwrap().seq;
    other.journal.checkpoint(claim.epoch, last, FOLD.to_vec()).await;
    let of_another = fs::read(other.path("checkpoint")).unwrap();
    let mut cases: Vec<(String, Vec<u8>)> =
        vec![("empty".to_owned(), Vec::new()), ("of another journal".to_owned(), of_another)];
    for at in (0..good.len()).step_by(149).chain(good.len() - FOLD.len() - 3..good.len()) {
        cases.push((format!("cut at {at}"), good[..at].to_vec()));
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        cases.push((format!("flipped at {at}"), flipped));
    }
    for (what, bytes) in cases {
        fs::write(&path, bytes).unwrap();
        assert!(!long.check(&what).await, "{what}");
        assert!(!path.exists(), "{what}: it is removed");
    }
    fs::write(&path, &good).unwrap();
    assert!(long.check("and the good one").await);
}

#[tokio::test]
async fn a_fold_of_another_version_is_not_gone_on_from() {
    let long = Long::new().await;
    let claim = long.data.claim().await.unwrap();
    long.data.journal.checkpoint(claim.epoch.clone(), long.last(), b"of another version".to_vec()).await;
    assert!(long.data.path("checkpoint").exists());
    long.data.journal.release(claim.epoch).await;
    assert!(!long.check("another version").await);
}

#[tokio::test]
async fn a_checkpoint_of_a_journal_that_changed_is_void() {
    let mut long = Long::new().await.saved().await;
    let path = long.data.path("journal.jsonl");
    let (whole, kept) = (fs::read(&path).unwrap(), fs::read(long.data.path("checkpoint")).unwrap());
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
    // Cut before its place, then grown past it with other frames.
    let frames = long.frames.clone();
    long.frames.truncate(200);
    fs::write(&path, &whole[..ends[200]]).unwrap();
    assert!(!long.check("cut").await);
    assert!(!long.data.path("checkpoint").exists(), "it would only be read in vain");
    fs::write(long.data.path("checkpoint"), &kept).unwrap();
    let mut text = whole[..ends[200]].to_vec();
    for old in &frames[200..] {
        let new = frame(&long.data.session, old.seq.0, extension(&"y".repeat(1000 + old.seq.0 as usize % 7)));
        line::write(&new, &mut text).unwrap();
        long.frames.push(new);
    }
    fs::write(&path, &text).unwrap();
    assert!(!long.check("another end").await);
}

#[tokio::test]
async fn an_open_tells_damage_of_the_end_and_a_read_that_of_what_it_reads() {
    let long = Long::new().await.saved().await;
    let path = long.data.path("journal.jsonl");
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    let at = whole.len() - 30_000;
    damaged[at] ^= 1;
    fs::write(&path, &damaged).unwrap();
    assert!(matches!(long.data.claim().await, Err(JournalError::Damaged { .. })), "the end");

    fs::write(&path, &whole).unwrap();
    let long = Long { frames: long.frames[..401].to_vec(), ..long }.saved_again().await;
    let mut damaged = fs::read(&path).unwrap();
    damaged[100_000] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let claim = long.data.claim().await.unwrap();
    assert!(claim.resumed.is_some(), "what lies before the end is not looked at");
    let all = long.data.journal.read(long.data.session.clone(), Seq(0), long.last()).await;
    assert!(matches!(all, Err(JournalError::Damaged { .. })), "but told by whoever reads it");
    long.data.journal.release(claim.epoch).await;
    fs::remove_file(long.data.path("checkpoint")).unwrap();
    assert!(matches!(long.data.claim().await, Err(JournalError::Damaged { .. })), "and without a checkpoint");
}

impl Long {
    /// Keeps a checkpoint of the journal as it stands.
    async fn saved_again(self) -> Self {
        fs::remove_file(self.data.path("checkpoint")).ok();
        let claim = self.data.claim().await.unwrap();
        let last = claim.frames.last().unwrap().seq;
        self.data.journal.checkpoint(claim.epoch.clone(), last, FOLD.to_vec()).await;
        self.data.journal.release(claim.epoch).await;
        Self { frames: claim.frames, ..self }
    }
}

#[tokio::test]
async fn marks_that_lie_change_no_answer_and_are_made_anew() {
    let long = Long::new().await.saved().await;
    let place = long.place();
    let mut reader = Reader::open(&Fated(Unsynced), &place).unwrap().unwrap();
    let true_marks = reader.marks().unwrap();
    let end = reader.at();
    reader.rewind().unwrap();
    let mut line = reader.at();
    let mut lines = vec![line];
    while reader.next_frame().unwrap().is_some() {
        line = reader.at();
        lines.push(line);
    }
    let far = lines[300];
    let lies: Vec<(&str, Vec<Position>)> = vec![
        ("another frame begins there", vec![Position { seq: Seq(2), ..far }]),
        ("no line begins there", vec![Position { seq: Seq(20), bytes: far.bytes + 5, lines: 7 }]),
        ("past the end", vec![Position { seq: Seq(20), bytes: end.bytes * 2, lines: 7 }]),
        ("out of order", lines[..400].iter().rev().step_by(40).copied().collect()),
        ("none", Vec::new()),
    ];
    for (what, marks) in lies {
        let marks: Marks = serde_json::from_value(serde_json::to_value(marks).unwrap()).unwrap();
        let journal = lines[lines.len() - 2];
        let counted = Counted { journal, marks };
        checkpoint::save(&Fated(Unsynced), &place, counted, FOLD).unwrap();
        assert!(long.check(what).await, "{what}");
    }
    let mut again = Reader::open(&Fated(Unsynced), &place).unwrap().unwrap();
    assert_eq!(again.marks().unwrap(), true_marks);
}
