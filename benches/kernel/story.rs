//! A stored session as work leaves it: a line, a tool call and an answer a turn, with all that the kernel says of them.

use std::path::Path;
use std::sync::Arc;

use bingo::journal::JsonlJournal;
use bingo::ports::Journal;
use bingo_plugin_sdk::event::{ContextUsage, Event, Frame, IntentOutcome, TurnOrigin, TurnStatus, Usage};
use bingo_plugin_sdk::ids::{IntentId, ItemId, Seq, SessionId, TurnId};
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody, ItemStatus, Origin, ToolOutput};
use bingo_plugin_sdk::session::{Driver, SessionSummary};
use serde_json::json;

/// Frames of one turn.
pub(crate) const FRAMES: usize = 9;
/// Items of one turn.
pub(crate) const ITEMS: usize = 3;
/// How many frames are written at once.
const BATCH: usize = 1000;

/// Stores a session of so many turns in a data directory.
pub(crate) async fn store(data_dir: &Path, turns: usize) -> SessionId {
    let journal = JsonlJournal::new(data_dir.to_path_buf());
    let mut story = Story { session: SessionId::mint(), seq: Seq(0), ts: time(0), frames: Vec::new() };
    let epoch = journal.create(story.session.clone()).await.unwrap();
    let summary = Box::new(summary(&story.session));
    story.tell(Event::SessionUpdated { summary });
    let mut last = Seq(0);
    for turn in 0..turns {
        story.turn(turn);
        if story.frames.len() >= BATCH || turn + 1 == turns {
            let frames = std::mem::take(&mut story.frames);
            journal.append(epoch.clone(), last, frames, false).await.unwrap();
            last = story.seq;
        }
    }
    journal.release(epoch).await;
    story.session
}

struct Story {
    session: SessionId,
    seq: Seq,
    /// When this turn is told: one every ten seconds.
    ts: String,
    frames: Vec<Arc<Frame>>,
}

impl Story {
    fn tell(&mut self, event: Event) {
        // Ephemeral frames had the numbers between.
        self.seq = Seq(self.seq.0 + 1 + u64::from(matches!(event, Event::ItemCompleted { .. })) * 20);
        let (ts, session) = (self.ts.clone(), self.session.clone());
        self.frames.push(Arc::new(Frame { seq: self.seq, ts, session, cause: None, event }));
    }

    fn turn(&mut self, number: usize) {
        self.ts = time(number);
        let (turn, intent) = (TurnId::mint(), IntentId::mint());
        let said =
            vec![ContentPart::text(format!("Please look at part {number} of it, and say what you see."))];
        let user = ItemBody::User { parts: said, origin: Origin::surface("chat") };
        let input = item(&turn, ItemStatus::Completed, user);
        let inputs = vec![input.id.clone()];
        self.tell(Event::ItemCompleted { item: Arc::new(Item { intent: Some(intent.clone()), ..input }) });
        self.tell(Event::TurnStarted { turn: turn.clone(), inputs, origin: TurnOrigin::Submit });
        let outcome = IntentOutcome::TurnStarted { turn: turn.clone() };
        self.tell(Event::IntentAck {
            intent,
            outcome,
            digest: Some("0123456789abcdef0123456789abcdef".to_owned()),
        });
        self.grow(&turn, call(None), call(Some(ToolOutput::text("one line of a file\n".repeat(20)))));
        let answer = |text: &str| ItemBody::Assistant { text: text.to_owned() };
        self.grow(&turn, answer(""), answer(&"Some words of an answer, as long as they are. ".repeat(6)));
        let usage = Usage { input_tokens: 1000, output_tokens: 100, ..Usage::default() };
        let context = ContextUsage { used: 1100, window: 200_000, trigger: 180_000 };
        self.tell(Event::TurnUsage { turn: turn.clone(), usage, context });
        self.tell(Event::TurnCompleted { turn, status: TurnStatus::Completed, usage });
    }

    fn grow(&mut self, turn: &TurnId, begun: ItemBody, ended: ItemBody) {
        let started = item(turn, ItemStatus::Running, begun);
        let completed = Item {
            status: ItemStatus::Completed,
            completed_at: Some(started.started_at.clone()),
            body: ended,
            ..started.clone()
        };
        self.tell(Event::ItemStarted { item: Arc::new(started) });
        self.tell(Event::ItemCompleted { item: Arc::new(completed) });
    }
}

fn time(turn: usize) -> String {
    let (seconds, minutes, hours, days) = (turn * 10, turn / 6, turn / 360, turn / 8640);
    format!(
        "2026-{:02}-{:02}T{:02}:{:02}:{:02}.000Z",
        1 + days / 28 % 12,
        1 + days % 28,
        hours % 24,
        minutes % 60,
        seconds % 60
    )
}

fn call(output: Option<ToolOutput>) -> ItemBody {
    ItemBody::ToolCall {
        call_id: "call-1".to_owned(),
        name: "files__read".to_owned(),
        input: json!({ "path": "src/some/file.rs", "from": 1, "lines": 20 }),
        duration_ms: output.as_ref().map(|_| 12),
        output,
        progress: None,
    }
}

fn item(turn: &TurnId, status: ItemStatus, body: ItemBody) -> Item {
    Item {
        id: ItemId::mint(),
        turn: Some(turn.clone()),
        round: 0,
        status,
        started_at: "2026-12-01T12:00:00.000Z".to_owned(),
        completed_at: status.is_terminal().then(|| "2026-12-01T12:00:00.000Z".to_owned()),
        intent: None,
        body,
        meta: Default::default(),
    }
}

fn summary(id: &SessionId) -> SessionSummary {
    let now = "2026-12-01T12:00:00.000Z".to_owned();
    SessionSummary {
        id: id.clone(),
        key: None,
        title: Some("long".to_owned()),
        cwd: "/".to_owned(),
        parent: None,
        driver: Driver::Model,
        model: Some("echo".to_owned()),
        system_extra: None,
        tools: None,
        provider: Some("echo".to_owned()),
        created_at: now.clone(),
        updated_at: now,
        usage: Usage::default(),
        busy: false,
        messages: Some(0),
    }
}
