//! Requests that come again, before and after the host died.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bingo_plugin_sdk::calls::{CommandOutcome, Completion};
use bingo_plugin_sdk::event::{ErrorCode, Event, Frame, IntentOutcome, KernelError, TurnStatus};
use bingo_plugin_sdk::handshake::CommandSpec;
use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::item::ItemBody;
use tokio::sync::Semaphore;

use crate::kernel::Attachment;
use crate::kernel::testing::{Host, command_spec, seen, settle};
use crate::ports::{BoxFuture, CallContext, Command};
use crate::settings::SyncMode;

/// Counts how often it ran; each run ends when it is let.
struct Counted {
    spec: CommandSpec,
    runs: Arc<AtomicUsize>,
    ends: Arc<Semaphore>,
}

impl Counted {
    fn new() -> (Arc<Self>, Arc<AtomicUsize>, Arc<Semaphore>) {
        let (runs, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let spec = command_spec("count");
        (Arc::new(Self { spec, runs: runs.clone(), ends: ends.clone() }), runs, ends)
    }
}

impl Command for Counted {
    fn spec(&self) -> &CommandSpec {
        &self.spec
    }

    fn run(&self, _: CallContext, args: String) -> BoxFuture<'static, Result<CommandOutcome, KernelError>> {
        let runs = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        let ends = self.ends.clone();
        Box::pin(async move {
            ends.acquire().await.unwrap().forget();
            match args.as_str() {
                "say" => Ok(CommandOutcome::Prompt { text: "expanded".to_owned() }),
                _ => Ok(CommandOutcome::Applied { message: Some(format!("run {runs}")) }),
            }
        })
    }

    fn complete(&self, _: String, _: std::path::PathBuf) -> BoxFuture<'static, Vec<Completion>> {
        Box::pin(std::future::ready(Vec::new()))
    }
}

fn outcomes(frames: &[Frame], of: &str) -> Vec<IntentOutcome> {
    let acks = frames.iter().filter_map(|frame| match &frame.event {
        Event::IntentAck { intent, outcome, .. } if intent.as_str() == of => Some(outcome.clone()),
        _ => None,
    });
    acks.collect()
}

fn words(frames: &[Frame]) -> Vec<String> {
    let items = frames.iter().filter_map(|frame| match &frame.event {
        Event::ItemCompleted { item } => Some(item),
        _ => None,
    });
    let said = items.filter_map(|item| match &item.body {
        ItemBody::User { parts, .. } => Some(format!("{parts:?}")),
        _ => None,
    });
    said.collect()
}

fn is_rejected(outcome: &IntentOutcome, code: ErrorCode) -> bool {
    matches!(outcome, IntentOutcome::Rejected { error } if error.code == code)
}

async fn started() -> (Host, SessionId, Attachment) {
    let host = Host::start(SyncMode::Turn, Vec::new());
    let attachment = host.create().await;
    (host, attachment.session.clone(), attachment)
}

/// Rule 3.3.24. Mends 9.1.1.
#[tokio::test(start_paused = true)]
async fn a_repeated_submit_opens_one_turn_and_is_acknowledged_each_time() {
    let (host, session, mut client) = started().await;
    host.submit(&session, "i", "once").await;
    host.submit(&session, "i", "once").await;
    settle().await;
    host.model.answer_always();
    settle().await;
    host.submit(&session, "i", "once").await;
    let frames = seen(&mut client).await;
    let outcomes = outcomes(&frames, "i");
    assert!(matches!(&outcomes[0], IntentOutcome::TurnStarted { .. }), "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]) && outcomes.len() == 3, "{outcomes:?}");
    assert_eq!(words(&frames).len(), 1);
}

/// Mends 9.1.1.
#[tokio::test(start_paused = true)]
async fn another_request_under_a_known_intent_is_refused_and_does_nothing() {
    let (host, session, mut client) = started().await;
    host.submit(&session, "i", "one").await;
    host.submit(&session, "i", "another").await;
    host.interrupt(&session, "i").await;
    host.hold(&session, "i", "one").await;
    settle().await;
    host.submit(&session, "i", "one").await;
    host.model.answer_always();
    let frames = seen(&mut client).await;
    let outcomes = outcomes(&frames, "i");
    assert_eq!(outcomes.len(), 5, "{outcomes:?}");
    assert!(
        outcomes[1..4].iter().all(|outcome| is_rejected(outcome, ErrorCode::InvalidInput)),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[4], outcomes[0], "the first request is still what the intent stands for");
    assert_eq!(words(&frames).len(), 1);
}

/// Rule 3.3.23. Mends 9.1.1, 9.1.11.
#[tokio::test(start_paused = true)]
async fn a_line_that_waits_says_where_it_waits_now_and_runs_after_a_crash() {
    let (host, session, mut client) = started().await;
    host.submit(&session, "turn", "a turn").await;
    host.hold(&session, "first", "first").await;
    host.hold(&session, "second", "second").await;
    host.hold(&session, "second", "second").await;
    let frames = seen(&mut client).await;
    let queued = |position| IntentOutcome::Queued { position };
    assert_eq!(outcomes(&frames, "second"), [queued(2), queued(2)]);

    let host = host.crash();
    let mut client = host.reopen(&session).await;
    host.hold(&session, "second", "second").await;
    host.model.answer_always();
    settle().await;
    seen(&mut client).await;
    let stored = host.journal.frames(&session);
    assert_eq!(words(&stored).len(), 3, "{stored:#?}");
    for intent in ["first", "second"] {
        let last = outcomes(&stored, intent).pop();
        assert!(matches!(last, Some(IntentOutcome::TurnStarted { .. })), "{intent}: {last:?}");
    }
    let lost = stored.iter().find_map(|frame| match &frame.event {
        Event::TurnCompleted { status: TurnStatus::Failed { error }, .. } => Some(error.code),
        _ => None,
    });
    assert_eq!(lost, Some(ErrorCode::TurnLost), "the turn that ran is lost, not its intent");
}

/// Mends 9.1.1.
#[tokio::test(start_paused = true)]
async fn what_became_of_a_request_is_known_after_a_crash() {
    let (host, session, mut client) = started().await;
    host.submit(&session, "i", "once").await;
    let before = outcomes(&seen(&mut client).await, "i");
    let host = host.crash();
    let mut client = host.reopen(&session).await;
    host.submit(&session, "i", "once").await;
    host.submit(&session, "i", "twice").await;
    let after = outcomes(&seen(&mut client).await, "i");
    assert!(after.contains(&before[0]), "{after:?}");
    assert!(after.iter().any(|outcome| is_rejected(outcome, ErrorCode::InvalidInput)), "{after:?}");
    assert_eq!(words(&host.journal.frames(&session)).len(), 1);
}

/// Mends 9.1.1.
#[tokio::test(start_paused = true)]
async fn a_command_runs_once_however_often_it_is_asked_for() {
    let (command, runs, ends) = Counted::new();
    let host = Host::start(SyncMode::Turn, vec![command]);
    let mut client = host.create().await;
    let session = client.session.clone();
    host.submit(&session, "c", "/count").await;
    host.submit(&session, "c", "/count").await;
    settle().await;
    ends.add_permits(10);
    settle().await;
    host.submit(&session, "c", "/count").await;
    let outcomes = outcomes(&seen(&mut client).await, "c");
    assert_eq!((outcomes.len(), &outcomes[0]), (2, &outcomes[1]));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// Rule 3.4.30.
#[tokio::test(start_paused = true)]
async fn words_and_commands_wait_while_a_command_runs_and_an_instant_one_does_not() {
    let (command, _, ends) = Counted::new();
    let host = Host::start(SyncMode::Turn, vec![command]);
    let mut client = host.create().await;
    let session = client.session.clone();
    for (intent, line) in
        [("first", "/count"), ("words", "hello"), ("second", "/count"), ("instant", "/status")]
    {
        host.submit(&session, intent, line).await;
    }
    settle().await;
    host.model.answer_always();
    let frames = seen(&mut client).await;
    let position = |of: &str| match outcomes(&frames, of).pop() {
        Some(IntentOutcome::Queued { position }) => Some(position),
        _ => None,
    };
    assert_eq!((position("words"), position("second")), (Some(1), Some(2)));
    assert!(matches!(outcomes(&frames, "instant")[..], [IntentOutcome::Applied { .. }]));
    assert!(outcomes(&frames, "first").is_empty(), "it runs");
    ends.add_permits(2);
    settle().await;
    let frames = seen(&mut client).await;
    assert!(matches!(outcomes(&frames, "words")[..], [IntentOutcome::TurnStarted { .. }]));
    for command in ["first", "second"] {
        assert!(matches!(outcomes(&frames, command)[..], [IntentOutcome::Applied { .. }]), "{command}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_the_host_died_in_is_lost_and_not_run_again() {
    let (command, runs, ends) = Counted::new();
    let host = Host::start(SyncMode::Turn, vec![command]);
    let session = host.create().await.session;
    host.submit(&session, "c", "/count").await;
    host.submit(&session, "waits", "words").await;
    settle().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let host = host.crash();
    ends.add_permits(10);
    let mut client = host.reopen(&session).await;
    host.submit(&session, "c", "/count").await;
    host.model.answer_always();
    seen(&mut client).await;
    let stored = host.journal.frames(&session);
    let lost = outcomes(&stored, "c");
    assert!(
        lost.iter().all(|outcome| is_rejected(outcome, ErrorCode::TurnLost)) && lost.len() == 2,
        "{lost:?}"
    );
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(words(&stored).len(), 1, "the line behind it runs");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_cannot_be_noted_does_not_run() {
    let (command, runs, ends) = Counted::new();
    let host = Host::start(SyncMode::Turn, vec![command]);
    let session = host.create().await.session;
    settle().await;
    ends.add_permits(10);
    host.journal.fail_after(0);
    host.submit(&session, "c", "/count").await;
    settle().await;
    assert!(host.journal.heal(), "the note was what failed");
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

/// Mends 9.1.23.
#[tokio::test(start_paused = true)]
async fn the_words_of_a_command_belong_to_its_intent() {
    let (command, runs, ends) = Counted::new();
    let host = Host::start(SyncMode::Turn, vec![command]);
    let mut client = host.create().await;
    let session = client.session.clone();
    ends.add_permits(10);
    host.model.answer_always();
    host.submit(&session, "c", "/count say").await;
    settle().await;
    let host = host.crash();
    let _client = host.reopen(&session).await;
    host.submit(&session, "c", "/count say").await;
    seen(&mut client).await;
    settle().await;
    let stored = host.journal.frames(&session);
    let outcomes = outcomes(&stored, "c");
    assert!(matches!(outcomes[0], IntentOutcome::TurnStarted { .. }) && outcomes.len() == 2, "{outcomes:?}");
    assert_eq!((words(&stored).len(), runs.load(Ordering::SeqCst)), (1, 1));
}

/// Rule 3.4.36, 7.12.
#[tokio::test(start_paused = true)]
async fn lines_that_wait_at_a_shutdown_run_when_the_session_is_opened_again() {
    let (host, session, _client) = started().await;
    host.submit(&session, "turn", "a turn").await;
    host.submit(&session, "line", "a line").await;
    settle().await;
    host.kernel.shutdown().await;
    let host = host.crash();
    host.model.answer_always();
    let mut client = host.reopen(&session).await;
    seen(&mut client).await;
    let stored = host.journal.frames(&session);
    let last = outcomes(&stored, "line").pop();
    assert!(matches!(last, Some(IntentOutcome::TurnStarted { .. })), "{last:?}");
    assert_eq!(words(&stored).len(), 2);
}

/// Rule 1.2.13.
#[tokio::test(start_paused = true)]
async fn the_kernels_own_namespace_is_not_for_clients() {
    let (host, session, _client) = started().await;
    let line = serde_json::json!({});
    let extended = host.kernel.extend(&session, "_kernel".to_owned(), "queued".to_owned(), line).await;
    assert_eq!(extended.unwrap_err().code, ErrorCode::InvalidInput);
}

/// What a torn write left: words that were stored, and nothing behind them.
#[tokio::test(start_paused = true)]
async fn words_whose_turn_was_never_stored_are_acknowledged_and_their_turn_is_lost() {
    let (host, session, _client) = started().await;
    host.submit(&session, "i", "torn").await;
    settle().await;
    let mut tore = false;
    host.journal.tear(&session, |frame| {
        tore |= matches!(frame.event, Event::TurnStarted { .. });
        tore
    });
    let host = host.crash();
    let mut client = host.reopen(&session).await;
    host.submit(&session, "i", "torn").await;
    seen(&mut client).await;
    let stored = host.journal.frames(&session);
    let outcomes = outcomes(&stored, "i");
    let IntentOutcome::TurnStarted { turn } = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:?}");
    let ends = stored
        .iter()
        .filter(|frame| matches!(&frame.event, Event::TurnCompleted { turn: ended, .. } if ended == turn));
    assert_eq!((ends.count(), words(&stored).len()), (1, 1));
}
