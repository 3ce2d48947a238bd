//! Tests of the store through its port, on a real directory: what they share, and the plain life of a session.

mod checkpoints;
mod crash;
mod damage;
mod disks;
mod faults;
mod listing;
mod reader;
mod upkeep;

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use bingo_plugin_sdk::event::{ContextUsage, Event, TurnOrigin, TurnStatus, Usage};
use bingo_plugin_sdk::ids::{ItemId, TurnId};
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody, ItemStatus, Level, Origin};
use bingo_plugin_sdk::session::{Driver, SessionSummary};

use super::*;
use disks::{Failing, Fated, OPS, Op, PowerCut, Unsynced};

/// A data directory that goes away with the test, and its journal.
struct Data {
    dir: tempfile::TempDir,
    journal: JsonlJournal,
    session: SessionId,
}

impl Data {
    fn new() -> Self {
        Self::on(Arc::new(FileSystem))
    }

    fn on(disk: Arc<dyn Disk>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // A directory that does not exist yet, as at the first start.
        let journal = JsonlJournal::with_disk(dir.path().join("home/data"), disk);
        Self { dir, journal, session: SessionId::from("ses_1") }
    }

    /// Another host on the same directory.
    fn elsewhere(&self) -> JsonlJournal {
        JsonlJournal::new(self.dir.path().join("home/data"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("home/data/sessions").join(self.session.as_str()).join(name)
    }

    /// Stores the script of a session and gives it back; returns the frames.
    async fn stored(&self) -> Vec<Frame> {
        let frames = script(&self.session);
        let epoch = self.journal.create(self.session.clone()).await.unwrap();
        let mut last = Seq(0);
        for batch in frames.chunks(3) {
            self.journal.append(epoch.clone(), last, shared(batch), true).await.unwrap();
            last = batch.last().unwrap().seq;
        }
        self.journal.release(epoch).await;
        frames
    }

    async fn claim(&self) -> Result<Claimed, JournalError> {
        self.journal.claim(self.session.clone()).await
    }
}

/// A stored session taken for appending, with what the journal said of it.
#[derive(Debug)]
struct Claimed {
    epoch: Epoch,
    /// Those behind the checkpoint.
    frames: Vec<Frame>,
    /// The fold of the checkpoint, if there was one.
    resumed: Option<Vec<u8>>,
}

impl JsonlJournal {
    /// Claims a session and keeps all that is read.
    async fn claim(&self, session: SessionId) -> Result<Claimed, JournalError> {
        let into = Arc::new(Mutex::new(Collected::default()));
        let claim = Journal::claim(self, session, into.clone()).await?;
        let Collected { frames, resumed } = std::mem::take(&mut *into.lock().unwrap());
        if let Some(last) = frames.last() {
            assert_eq!(claim.last, last.seq);
        }
        Ok(Claimed { epoch: claim.epoch, frames, resumed })
    }
}

#[derive(Default)]
struct Collected {
    frames: Vec<Frame>,
    resumed: Option<Vec<u8>>,
}

impl Replayer for Collected {
    fn resume(&mut self, fold: &[u8]) -> bool {
        let accepts = fold != b"of another version";
        self.resumed = accepts.then(|| fold.to_vec());
        accepts
    }

    fn take(&mut self, frame: Frame) {
        self.frames.push(frame);
    }
}

fn shared(frames: &[Frame]) -> Vec<Arc<Frame>> {
    frames.iter().cloned().map(Arc::new).collect()
}

fn frame(session: &SessionId, seq: u64, event: Event) -> Frame {
    let ts = format!("2026-01-01T00:00:00.{:03}Z", seq % 1000);
    Frame { seq: Seq(seq), ts, session: session.clone(), cause: None, event }
}

fn summary(session: &SessionId, title: &str) -> Event {
    let summary = SessionSummary {
        id: session.clone(),
        key: Some("bingo/one".into()),
        title: Some(title.into()),
        cwd: "/home/me".into(),
        parent: None,
        driver: Driver::Model,
        model: Some("echo".into()),
        system_extra: None,
        tools: Some(vec!["read".into()]),
        provider: Some("echo".into()),
        created_at: "2026-01-01T00:00:00Z".into(),
        updated_at: "2026-01-01T00:00:00Z".into(),
        usage: Usage { input_tokens: 5, ..Usage::default() },
        busy: true,
        messages: Some(0),
    };
    Event::SessionUpdated { summary: Box::new(summary) }
}

fn completed(id: &str, body: ItemBody) -> Event {
    let item = Item {
        id: ItemId::from(id),
        turn: Some(TurnId::from("trn_1")),
        round: 0,
        status: ItemStatus::Completed,
        started_at: "2026-01-01T00:00:00Z".into(),
        completed_at: Some("2026-01-01T00:00:01Z".into()),
        intent: None,
        body,
        meta: Default::default(),
    };
    Event::ItemCompleted { item: Arc::new(item) }
}

fn user(id: &str, surface: &str) -> Event {
    let parts = vec![ContentPart::text("héllo\nwörld \u{2028} \"quoted\"")];
    completed(id, ItemBody::User { parts, origin: Origin::surface(surface) })
}

fn turn_usage() -> Event {
    Event::TurnUsage {
        turn: TurnId::from("trn_1"),
        usage: Usage { input_tokens: 10, output_tokens: 3, ..Usage::default() },
        context: ContextUsage { used: 13, window: 1000, trigger: 800 },
    }
}

/// A few turns in two runs of the host, with the gaps that ephemeral frames and a new segment leave.
fn script(session: &SessionId) -> Vec<Frame> {
    let mut frames = Vec::new();
    for segment in 0..2u64 {
        let mut seq = segment << 32;
        let mut push = |gap: u64, event| {
            seq += gap;
            frames.push(frame(session, seq, event));
        };
        push(1, summary(session, &format!("run {segment}")));
        for turn in 0..2 {
            let id = |name: &str| format!("itm_{segment}_{turn}_{name}");
            let turn_id = TurnId::from("trn_1");
            push(1, user(&id("user"), "print"));
            push(1, Event::TurnStarted { turn: turn_id.clone(), inputs: vec![], origin: TurnOrigin::Submit });
            push(1, user(&id("context"), "contributor:clock"));
            push(9, completed(&id("answer"), ItemBody::Assistant { text: "ok 🦀".into() }));
            push(1, turn_usage());
            push(1, extension(&id("state")));
            push(
                1,
                Event::TurnCompleted {
                    turn: turn_id,
                    status: TurnStatus::Completed,
                    usage: Usage::default(),
                },
            );
        }
    }
    frames
}

fn extension(kind: &str) -> Event {
    Event::Extension {
        plugin: "clock".into(),
        kind: kind.into(),
        payload: serde_json::json!({ "n": [1, null] }),
    }
}

fn notice() -> Event {
    Event::Notice { level: Level::Info, code: "X".into(), text: "x".into() }
}

#[tokio::test]
async fn what_was_appended_is_claimed_again() {
    let data = Data::new();
    let frames = data.stored().await;
    let claim = data.claim().await.unwrap();
    assert_eq!(claim.frames, frames);

    let text = fs::read_to_string(data.path("journal.jsonl")).unwrap();
    let mut lines = text.lines();
    let header = r#"{"format":"bingo-journal","version":1,"session":"ses_1","sums":"crc32"}"#;
    assert_eq!(lines.next().unwrap(), header);
    assert_eq!(lines.count(), frames.len(), "one line a frame");
    assert!(text.ends_with('\n'));
}

/// Rule 7.2.
#[test]
fn a_line_is_read_as_the_frame_that_it_is() {
    let session = SessionId::from("ses_1");
    let started = match completed("itm_a", ItemBody::Assistant { text: "a \" b".into() }) {
        Event::ItemCompleted { item } => Event::ItemStarted { item },
        other => other,
    };
    let mut frames = script(&session);
    frames.extend([frame(&session, 1 << 40, started), frame(&session, 1 << 41, extension("k"))]);
    frames.last_mut().unwrap().cause = Some("req_1".into());
    for frame in frames {
        let text = serde_json::to_string(&frame).unwrap();
        assert_eq!(line::parse(text.as_bytes()).unwrap(), frame, "{text}");
        // Whatever the order of the fields.
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line::parse(value.to_string().as_bytes()).unwrap(), frame, "{value}");
        let cut = text.replace("\"item\":{\"id\"", "\"item\":{\"no\"").replace("\"ts\"", "\"no\"");
        assert!(line::parse(cut.as_bytes()).is_err(), "{cut}");
    }
}

/// Rule 7.7.
#[tokio::test]
async fn a_range_is_read_while_the_session_is_held_elsewhere() {
    let data = Data::new();
    let frames = data.stored().await;
    let _claim = data.claim().await.unwrap();
    let other = data.elsewhere();
    let read = |after: u64, through: u64| other.read(data.session.clone(), Seq(after), Seq(through));
    assert_eq!(read(0, u64::MAX).await.unwrap(), frames);
    let (after, through) = (frames[3].seq, frames[7].seq);
    assert_eq!(read(after.0, through.0).await.unwrap(), frames[4..=7]);
    assert_eq!(read(after.0, through.0 - 1).await.unwrap(), frames[4..7], "bounds need not be stored seqs");
    assert_eq!(read(7, 7).await.unwrap(), []);
    assert_eq!(read(u64::MAX, u64::MAX).await.unwrap(), []);
}

/// Rule 7.7.
#[tokio::test]
async fn a_session_has_one_holder_who_is_named() {
    let data = Data::new();
    data.stored().await;
    let claim = data.claim().await.unwrap();
    for journal in [data.journal.clone(), data.elsewhere()] {
        let refused = journal.claim(data.session.clone()).await.unwrap_err();
        let JournalError::Locked { holder: Some(holder), .. } = &refused else { panic!("{refused:?}") };
        assert!(holder.starts_with(&format!("process {}, bingo-", std::process::id())), "{holder}");
        let since = holder.split_once(" since ").unwrap().1;
        assert!(since.parse::<jiff::Timestamp>().is_ok(), "{holder}");
    }
    let refused = data.elsewhere().delete(data.session.clone()).await.unwrap_err();
    assert!(matches!(refused, JournalError::Locked { .. }), "{refused:?}");

    data.journal.release(claim.epoch.clone()).await;
    data.journal.release(claim.epoch).await;
    let other = data.elsewhere();
    other.claim(data.session.clone()).await.unwrap();
    drop(other);
    data.claim().await.expect("a dropped journal gives its sessions back");
}

#[tokio::test]
async fn an_old_epoch_appends_nothing_and_disturbs_nobody() {
    let data = Data::new();
    let frames = data.stored().await;
    let old = data.claim().await.unwrap().epoch;
    data.journal.release(old.clone()).await;
    let new = data.claim().await.unwrap().epoch;
    let last = frames.last().unwrap().seq;
    let next = shared(&[frame(&data.session, last.0 + 1, extension("next"))]);
    let refused = data.journal.append(old.clone(), last, next.clone(), true).await.unwrap_err();
    assert!(matches!(refused, JournalError::Fenced { .. }), "{refused:?}");
    data.journal.release(old).await;
    data.journal.append(new, last, next, true).await.unwrap();
}

#[tokio::test]
async fn a_frame_that_cannot_stand_there_ends_the_epoch() {
    let data = Data::new();
    let last = data.stored().await.last().unwrap().seq;
    let before = fs::read(data.path("journal.jsonl")).unwrap();
    let good = frame(&data.session, last.0 + 1, extension("next"));
    let elsewhere = SessionId::from("ses_2");
    let cases = [
        (last, vec![good.clone(), frame(&data.session, last.0 + 2, notice())], "never journaled"),
        (last, vec![frame(&data.session, last.0, extension("same"))], "after seq"),
        (last, vec![good.clone(), good.clone()], "after seq"),
        (last, vec![frame(&elsewhere, last.0 + 1, extension("other"))], "of session ses_2"),
        (Seq(last.0 - 1), vec![good.clone()], "open it again"),
        (Seq(0), vec![], "open it again"),
    ];
    for (expected_last, frames, words) in cases {
        let epoch = data.claim().await.unwrap().epoch;
        let refused =
            data.journal.append(epoch.clone(), expected_last, shared(&frames), true).await.unwrap_err();
        assert!(refused.to_kernel().message.contains(words), "{refused:?}");
        let dead = data.journal.append(epoch, last, shared(std::slice::from_ref(&good)), true).await;
        assert!(matches!(dead, Err(JournalError::Fenced { .. })), "{dead:?}");
    }
    assert_eq!(fs::read(data.path("journal.jsonl")).unwrap(), before);
}

/// Rule 7.3.
#[tokio::test]
async fn a_journal_begins_with_its_summary() {
    let data = Data::new();
    let epoch = data.journal.create(data.session.clone()).await.unwrap();
    let first = shared(&[frame(&data.session, 1, extension("first"))]);
    let refused = data.journal.append(epoch, Seq(0), first, true).await.unwrap_err();
    assert!(refused.to_kernel().message.contains("sessionUpdated"), "{refused:?}");
}

#[tokio::test]
async fn a_session_is_created_once() {
    let data = Data::new();
    let epoch = data.journal.create(data.session.clone()).await.unwrap();
    for journal in [data.journal.clone(), data.elsewhere()] {
        let refused = journal.create(data.session.clone()).await.unwrap_err();
        assert!(matches!(refused, JournalError::Exists { .. }), "{refused:?}");
    }
    data.journal.release(epoch).await;
    // Nothing was ever stored in it, so nobody heard of it.
    data.stored().await;
    let refused = data.journal.create(data.session.clone()).await.unwrap_err();
    assert!(matches!(refused, JournalError::Exists { .. }), "{refused:?}");
    data.claim().await.expect("the refused create took no lock");
}

#[tokio::test]
async fn a_deleted_session_is_gone() {
    let data = Data::new();
    let last = data.stored().await.last().unwrap().seq;
    let epoch = data.claim().await.unwrap().epoch;
    data.journal.delete(data.session.clone()).await.unwrap();
    assert!(!data.path("").exists());
    let append = data.journal.append(epoch, last, vec![], true).await;
    assert!(matches!(append, Err(JournalError::Fenced { .. })), "{append:?}");
    for gone in [
        data.claim().await.map(drop),
        data.journal.delete(data.session.clone()).await,
        data.journal.read(data.session.clone(), Seq(0), last).await.map(drop),
    ] {
        assert!(matches!(gone, Err(JournalError::NotFound { .. })), "{gone:?}");
    }
    assert!(data.journal.list().await.unwrap().sessions.is_empty());
    data.stored().await;
}

#[tokio::test]
async fn a_hostile_id_touches_nothing() {
    let data = Data::new();
    data.stored().await;
    for id in ["../sessions/ses_1", "ses_1/", "./ses_1", "..", "", "/etc", "ses_1\0"] {
        let id = SessionId::from(id);
        for refused in [
            data.journal.create(id.clone()).await.map(drop),
            data.journal.claim(id.clone()).await.map(drop),
            data.journal.read(id.clone(), Seq(0), Seq(9)).await.map(drop),
            data.journal.delete(id.clone()).await,
        ] {
            assert!(matches!(refused, Err(JournalError::NotFound { .. })), "{id}: {refused:?}");
        }
    }
    let unknown = data.journal.claim(SessionId::from("ses_unknown")).await;
    assert!(matches!(unknown, Err(JournalError::NotFound { .. })), "{unknown:?}");
    let sessions = fs::read_dir(data.dir.path().join("home/data/sessions")).unwrap();
    assert_eq!(sessions.count(), 1, "no directory appeared");
}

#[cfg(unix)]
#[tokio::test]
async fn transcripts_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let data = Data::new();
    data.stored().await;
    assert_eq!(fs::metadata(data.path("")).unwrap().permissions().mode() & 0o777, 0o700);
}
