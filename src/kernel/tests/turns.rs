//! The turn loop: what a turn asks its model for, what it makes of the answers, and how it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bingo_plugin_sdk::event::{CancelReason, ErrorCode, Event, Frame, Input, TurnStatus, Usage};
use bingo_plugin_sdk::handshake::ToolSpec;
use bingo_plugin_sdk::interaction::InteractionKind;
use bingo_plugin_sdk::item::{ContentPart, ItemBody, ItemStatus, Origin, ToolOutput};
use bingo_plugin_sdk::provider::{ModelEvent, ModelRequest, ProviderError, UnifiedFinish};
use serde_json::{Value, json};

use crate::kernel::Attachment;
use crate::kernel::permission::PermissionMode;
use crate::kernel::testing::{Host, Scripted, Setup, calls, finish, says, seen, settle};
use crate::ports::{BoxFuture, CallContext, ProgressSink, Tool};
use crate::settings::ModelSettings;

/// The tool `t`: it does what its input says, and remembers the order in which it was called.
struct Doer {
    spec: ToolSpec,
    called: Arc<Mutex<Vec<Value>>>,
}

impl Doer {
    fn new() -> (Arc<Self>, Arc<Mutex<Vec<Value>>>) {
        let spec = json!({ "name": "t", "description": "", "inputSchema": {} });
        let called = Arc::default();
        (Arc::new(Self { spec: serde_json::from_value(spec).unwrap(), called: Arc::clone(&called) }), called)
    }
}

impl Tool for Doer {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn version(&self) -> &str {
        "1"
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn call(
        &self,
        context: CallContext,
        _: String,
        input: Value,
        _: ProgressSink,
    ) -> BoxFuture<'static, Result<ToolOutput, bingo_plugin_sdk::event::KernelError>> {
        self.called.lock().unwrap().push(input.clone());
        Box::pin(async move {
            if input["asks"] == true {
                let asker = context.asker.unwrap();
                let question = serde_json::from_value::<InteractionKind>(json!({ "kind": "question", "header": "", "question": "?", "options": [], "multi": false, "freeText": true })).unwrap();
                tokio::spawn(async move { asker.ask(question).await });
                settle().await;
            }
            assert!(input["panics"] != true, "the tool was told to");
            Ok(ToolOutput::text(input.to_string()))
        })
    }
}

/// A host whose model gives these answers.
fn host(setup: Setup, answers: Vec<Vec<Scripted>>) -> (Host, Arc<Mutex<Vec<Value>>>) {
    let (tool, called) = Doer::new();
    let host = Host::with(Setup { tools: vec![tool], mode: PermissionMode::BypassPermissions, ..setup });
    host.model.script(answers);
    (host, called)
}

/// Lets a turn run to its end; returns its frames.
async fn turn(host: &Host, at: &mut Attachment, intent: &str) -> Vec<Frame> {
    host.submit(&at.session, intent, "hello").await;
    let mut frames = Vec::new();
    // Retries wait for minutes.
    for _ in 0..1000 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        frames.extend(seen(at).await);
        if frames.iter().any(|frame| matches!(frame.event, Event::TurnCompleted { .. })) {
            return frames;
        }
    }
    panic!("the turn does not end: {frames:?}")
}

fn status(frames: &[Frame]) -> &TurnStatus {
    let ends = frames.iter().filter_map(|frame| match &frame.event {
        Event::TurnCompleted { status, .. } => Some(status),
        _ => None,
    });
    let ends: Vec<_> = ends.collect();
    assert_eq!(ends.len(), 1, "a turn ends once");
    ends[0]
}

fn failure(frames: &[Frame]) -> (ErrorCode, &str) {
    let TurnStatus::Failed { error } = status(frames) else { panic!("{:?} is no failure", status(frames)) };
    (error.code, &error.message)
}

fn count(frames: &[Frame], is_it: impl Fn(&Event) -> bool) -> usize {
    frames.iter().filter(|frame| is_it(&frame.event)).count()
}

fn usages(frames: &[Frame]) -> usize {
    count(frames, |event| matches!(event, Event::TurnUsage { .. }))
}

/// What the kernel, contributors and hooks said, with their names.
fn said(frames: &[Frame]) -> Vec<(String, String)> {
    let items = frames.iter().filter_map(|frame| match &frame.event {
        Event::ItemCompleted { item } => Some(item),
        _ => None,
    });
    let said = items.filter_map(|item| match &item.body {
        ItemBody::User { parts, origin } if *origin != Origin::surface("test") => match &parts[..] {
            [ContentPart::Text { text }] => Some((origin.surface.clone(), text.clone())),
            _ => None,
        },
        _ => None,
    });
    said.collect()
}

fn empty() -> Vec<Scripted> {
    vec![Ok(finish(UnifiedFinish::Stop, Usage::default()))]
}

fn texts(request: &ModelRequest) -> String {
    let parts = request.messages.iter().flat_map(|message| &message.parts);
    parts.map(|part| format!("{part:?}\n")).collect()
}

/// Rule 4.1.3.
#[tokio::test(start_paused = true)]
async fn a_turn_ends_at_its_budget_of_rounds() {
    let call = || calls(&[("t", "{}")]);
    let (host, called) = host(Setup { max_rounds: 2, ..Setup::default() }, vec![call(), call(), call()]);
    let mut at = host.create().await;
    let frames = turn(&host, &mut at, "i").await;
    assert_eq!(failure(&frames), (ErrorCode::TurnBudgetExhausted, "2 rounds"));
    assert_eq!((usages(&frames), called.lock().unwrap().len()), (2, 2));
}

/// Rule 4.1.5, 4.1.7.
#[tokio::test(start_paused = true)]
async fn an_answer_that_says_nothing_is_asked_for_again_once_in_a_turn() {
    let answers = vec![
        empty(),
        calls(&[("t", "{}")]),
        // Nothing need be said after a tool, and this turn asked again already.
        empty(),
        empty(),
        empty(),
        says("unheard", UnifiedFinish::Stop),
    ];
    let (host, _) = host(Setup::default(), answers);
    let mut at = host.create().await;
    let frames = turn(&host, &mut at, "i").await;
    assert_eq!((status(&frames), usages(&frames)), (&TurnStatus::Completed, 3));
    let rounds = frames.iter().filter_map(|frame| match &frame.event {
        Event::ItemStarted { item } => Some(item.round),
        _ => None,
    });
    assert_eq!(rounds.collect::<Vec<_>>(), [0], "to ask again is no round");
    assert_eq!(said(&frames), []);
    let frames = turn(&host, &mut at, "j").await;
    assert_eq!((status(&frames), usages(&frames)), (&TurnStatus::Completed, 2));
}

/// Rule 4.1.6.
#[tokio::test(start_paused = true)]
async fn an_answer_that_was_cut_off_is_told_to_go_on_three_times() {
    let cut = |text| says(text, UnifiedFinish::Length);
    let (host, _) = host(Setup::default(), vec![cut("a"), cut("b"), cut("c"), cut("d"), cut("unheard")]);
    let mut at = host.create().await;
    let frames = turn(&host, &mut at, "i").await;
    assert_eq!((status(&frames), usages(&frames)), (&TurnStatus::Completed, 4));
    let words = ("kernel".to_owned(), "Continue from where you left off.".to_owned());
    assert_eq!(said(&frames), [words.clone(), words.clone(), words]);
    assert!(texts(&host.model.asked().unwrap()).contains("Continue from where you left off."));
}

/// Rule 4.1.6.
#[tokio::test(start_paused = true)]
async fn a_call_in_an_answer_that_was_cut_off_is_run_and_nothing_is_told() {
    let mut cut = calls(&[("t", "{}")]);
    *cut.last_mut().unwrap() = Ok(finish(UnifiedFinish::Length, Usage::default()));
    let (host, called) = host(Setup::default(), vec![cut, says("done", UnifiedFinish::Stop)]);
    let mut at = host.create().await;
    let frames = turn(&host, &mut at, "i").await;
    assert_eq!((status(&frames), said(&frames)), (&TurnStatus::Completed, Vec::new()));
    assert_eq!(called.lock().unwrap().len(), 1);
}

/// Rule 1.3.28, 1.3.29, 4.1.8.
#[tokio::test(start_paused = true)]
async fn a_panic_in_a_tool_loses_its_turn_alone() {
    let answers =
        vec![calls(&[("t", r#"{"asks":true,"panics":true}"#)]), says("still here", UnifiedFinish::Stop)];
    let (host, _) = host(Setup::default(), answers);
    let mut at = host.create().await;
    let frames = turn(&host, &mut at, "i").await;
    assert_eq!(failure(&frames).0, ErrorCode::TurnLost);
    let closed = frames.iter().position(|frame| {
        matches!(frame.event, Event::InteractionCancelled { reason: CancelReason::TurnEnded, .. })
    });
    let ended = frames.iter().position(|frame| matches!(frame.event, Event::TurnCompleted { .. }));
    assert!(closed.expect("its question is cancelled") < ended.unwrap(), "before the turn ends");
    let frames = turn(&host, &mut at, "j").await;
    assert_eq!(status(&frames), &TurnStatus::Completed);
}

/// Rule 4.2.13, 4.2.15. Mends 9.1.16.
#[tokio::test(start_paused = true)]
async fn each_request_has_its_own_ten_retries() {
    let broken = || {
        let mut broken = says("half", UnifiedFinish::Stop);
        broken.pop();
        broken
    };
    let mut answers: Vec<_> = (0..10).map(|_| broken()).collect();
    answers.push(calls(&[("t", "{}")]));
    answers.extend((0..11).map(|_| broken()));
    let (host, _) = host(Setup::default(), answers);
    let mut at = host.create().await;
    let frames = turn(&host, &mut at, "i").await;
    let (code, message) = failure(&frames);
    assert_eq!((code, message), (ErrorCode::Offline, "the answer ended without its finish"));
    let retries = frames.iter().filter_map(|frame| match &frame.event {
        Event::TurnRetrying { attempt, max, delay_ms, dropped, .. } => {
            assert_eq!((*max, dropped.len()), (10, 1));
            Some((*attempt, *delay_ms))
        }
        _ => None,
    });
    let delays = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 32_000, 32_000, 32_000];
    let of_one: Vec<_> = (1..).zip(delays).collect();
    assert_eq!(retries.collect::<Vec<_>>(), [of_one.clone(), of_one].concat());
}

/// Rule 4.2.15, 4.2.16.
#[tokio::test(start_paused = true)]
async fn a_failed_turn_says_what_kind_of_failure_it_was() {
    let message = || "m".to_owned();
    let errors = [
        (ProviderError::Auth { message: message() }, ErrorCode::AuthRequired, 0),
        (ProviderError::Request { message: message() }, ErrorCode::InvalidInput, 0),
        (ProviderError::Config { message: message() }, ErrorCode::InvalidInput, 0),
        (ProviderError::Unsupported { message: message() }, ErrorCode::InvalidInput, 0),
        (ProviderError::RateLimited { retry_after_ms: Some(70_000) }, ErrorCode::RateLimited, 10),
        (ProviderError::Server { status: 400, message: message() }, ErrorCode::ServerError, 10),
        (ProviderError::Transport { message: message() }, ErrorCode::Offline, 10),
        (ProviderError::Stream { message: message() }, ErrorCode::Offline, 10),
        (ProviderError::Timeout, ErrorCode::Timeout, 10),
        // Tried once more, with less.
        (ProviderError::ContextOverflow { message: message() }, ErrorCode::ContextOverflow, 1),
    ];
    for (error, code, retries) in errors {
        let answers = (0..=retries).map(|_| vec![Err(error.clone())]).collect();
        let (host, _) = host(Setup::default(), answers);
        let mut at = host.create().await;
        let frames = turn(&host, &mut at, "i").await;
        let waits = frames.iter().filter_map(|frame| match &frame.event {
            Event::TurnRetrying { delay_ms, .. } => Some(*delay_ms),
            _ => None,
        });
        let waits: Vec<_> = waits.collect();
        assert_eq!((failure(&frames).0, waits.len()), (code, retries), "{error:?}");
        if code == ErrorCode::RateLimited {
            assert_eq!(waits, [60_000; 10], "what the server asks for is done, within a bound");
        }
        assert_eq!(usages(&frames), 0);
    }
}

/// Rule 4.3.18, 4.3.19, 4.3.21.
#[tokio::test(start_paused = true)]
async fn calls_are_let_through_together_and_run_one_after_another() {
    let asked = [("t", r#"{"n":1}"#), ("absent", "{}"), ("t", r#"{"n":2}"#)];
    let (host, called) = host(Setup::default(), vec![calls(&asked), says("done", UnifiedFinish::Stop)]);
    let mut at = host.create().await;
    let frames = turn(&host, &mut at, "i").await;
    let steps = frames.iter().filter_map(|frame| match &frame.event {
        Event::ItemStarted { item } | Event::ItemUpdated { item } | Event::ItemCompleted { item } => {
            match &item.body {
                ItemBody::ToolCall { call_id, .. } => Some((call_id.clone(), item.status)),
                _ => None,
            }
        }
        _ => None,
    });
    use ItemStatus::{Completed, Failed, Pending, Running};
    let ids = ["call_0", "call_1", "call_2"].map(str::to_owned);
    let all = [[Pending; 3], [Running; 3], [Completed, Failed, Completed]];
    let expected: Vec<_> =
        all.into_iter().flat_map(|statuses| ids.clone().into_iter().zip(statuses)).collect();
    assert_eq!(steps.collect::<Vec<_>>(), expected);
    assert_eq!(*called.lock().unwrap(), [json!({ "n": 1 }), json!({ "n": 2 })]);
}

/// Mends 9.1.3. Rule 2.10.
#[tokio::test(start_paused = true)]
async fn words_that_were_withdrawn_are_not_sent_again() {
    let mut half = says("half an answer", UnifiedFinish::Stop);
    half.pop();
    let (host, _) = host(Setup::default(), vec![half, says("whole", UnifiedFinish::Stop)]);
    let mut at = host.create().await;
    turn(&host, &mut at, "i").await;
    host.model.script([says("next", UnifiedFinish::Stop)]);
    turn(&host, &mut at, "j").await;
    let sent = texts(&host.model.asked().unwrap());
    assert!(sent.contains("whole") && !sent.contains("half an answer"), "{sent}");
}

/// Rule 4.4.39.
#[tokio::test(start_paused = true)]
async fn reasoning_goes_back_when_it_says_something_or_can_be_replayed() {
    let start = |id: &str| Ok(ModelEvent::ReasoningStart { id: id.to_owned() });
    let end = |id: &str, facts: Value| {
        Ok(ModelEvent::ReasoningEnd {
            id: id.to_owned(),
            provider_metadata: serde_json::from_value(facts).unwrap(),
        })
    };
    let delta = ModelEvent::ReasoningDelta { id: "spoken".to_owned(), delta: "because".to_owned() };
    let mut answer = vec![
        start("spoken"),
        Ok(delta),
        end("spoken", json!({})),
        start("sealed"),
        end("sealed", json!({ "test": { "signature": "s" } })),
        start("nothing"),
        end("nothing", json!({})),
    ];
    answer.extend(says("so", UnifiedFinish::Stop));
    let (host, _) = host(Setup::default(), vec![answer, says("next", UnifiedFinish::Stop)]);
    let mut at = host.create().await;
    turn(&host, &mut at, "i").await;
    turn(&host, &mut at, "j").await;
    let request = host.model.asked().unwrap();
    let parts = request.messages.iter().flat_map(|message| &message.parts);
    let reasoning = parts.filter_map(|part| match part {
        ContentPart::Reasoning { text, provider_metadata } => Some((text.as_str(), provider_metadata.len())),
        _ => None,
    });
    assert_eq!(reasoning.collect::<Vec<_>>(), [("because", 0), ("", 1)]);
}

fn known(settings: ModelSettings) -> BTreeMap<String, ModelSettings> {
    BTreeMap::from([("test/m".to_owned(), settings)])
}

/// Rule 4.4.40, 7.14.
#[tokio::test(start_paused = true)]
async fn a_model_that_cannot_see_reads_a_note_in_the_place_of_each_picture() {
    for (images, pictures) in [(None, 0), (Some(false), 0), (Some(true), 1)] {
        let models = known(ModelSettings { images, ..ModelSettings::default() });
        let (host, _) = host(Setup { models, ..Setup::default() }, vec![says("I see", UnifiedFinish::Stop)]);
        let mut at = host.create().await;
        let attachments = vec!["data:image/png;base64,iVBORw0KGgo=".to_owned()];
        let input = Input::Text { text: "look".to_owned(), attachments, origin: Origin::surface("test") };
        host.kernel.submit(&at.session, "i".into(), input).await.unwrap();
        settle().await;
        let request = host.model.asked().unwrap();
        let parts: Vec<_> = request.messages.iter().flat_map(|message| &message.parts).collect();
        let is_picture = |part: &&&ContentPart| matches!(part, ContentPart::Image { .. });
        assert_eq!(parts.iter().filter(is_picture).count(), pictures, "{parts:?}");
        assert_eq!(texts(&request).contains("[A picture, which this model cannot see.]"), pictures == 0);
        let frames = seen(&mut at).await;
        let kept = json!(frames.iter().map(|frame| &frame.event).collect::<Vec<_>>()).to_string();
        assert!(kept.contains("iVBORw0KGgo="), "the transcript keeps it");
    }
}

fn says_at(input_tokens: u64) -> Vec<Scripted> {
    let mut answer = calls(&[("t", "{}")]);
    let usage = Usage { input_tokens, ..Usage::default() };
    *answer.last_mut().unwrap() = Ok(finish(UnifiedFinish::ToolCalls, usage));
    answer
}

/// Rule 1.2.14, 4.5.41, 4.5.43.
#[tokio::test(start_paused = true)]
async fn a_person_is_warned_once_in_a_turn_that_the_context_is_nearly_full() {
    let settings =
        ModelSettings { context_window: Some(50_000), max_output: Some(500), ..ModelSettings::default() };
    let setup = Setup { models: known(settings), ..Setup::default() };
    // Of 49,500 the trigger is 44,550, and the line 20,000 before it.
    let answers = vec![says_at(24_549), says_at(24_550), says_at(30_000), says("done", UnifiedFinish::Stop)];
    let (host, _) = host(setup, answers);
    let mut at = host.create().await;
    let frames = turn(&host, &mut at, "i").await;
    let warnings = frames.iter().filter_map(|frame| match &frame.event {
        Event::Notice { code, text, .. } if code == "CONTEXT_WARNING" => Some((frame.seq, text.clone())),
        _ => None,
    });
    let warnings: Vec<_> = warnings.collect();
    let text = "the context holds 24550 of 49500 tokens; no plugin offers to compact it: go back with `/rewind`, or \
                begin a new session";
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0].1, text);
    let contexts = frames.iter().filter_map(|frame| match &frame.event {
        Event::TurnUsage { context, .. } => Some((context.used, context.window, context.trigger)),
        _ => None,
    });
    let window = |used| (used, 49_500, 44_550);
    assert_eq!(contexts.take(3).collect::<Vec<_>>(), [window(24_549), window(24_550), window(30_000)]);
}

/// Rule 1.1.4.
#[tokio::test(start_paused = true)]
async fn the_kernel_mints_ids_with_prefixes_and_takes_any_string_for_one() {
    let (host, _) = host(Setup::default(), vec![calls(&[("t", "{}")]), says("done", UnifiedFinish::Stop)]);
    let mut at = host.create().await;
    let frames = turn(&host, &mut at, "any string at all").await;
    let is_minted = |id: &str, prefix: &str| {
        let rest = id.strip_prefix(prefix).unwrap_or_else(|| panic!("{id} does not begin with {prefix}"));
        assert!(
            rest.len() == 26 && rest.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit()),
            "{id}"
        );
    };
    for frame in &frames {
        is_minted(frame.session.as_str(), "ses_");
        match &frame.event {
            Event::TurnStarted { turn, .. } => is_minted(turn.as_str(), "trn_"),
            Event::ItemStarted { item } => is_minted(item.id.as_str(), "itm_"),
            _ => {}
        }
    }
    let acked = count(
        &frames,
        |event| matches!(event, Event::IntentAck { intent, .. } if intent.as_str() == "any string at all"),
    );
    assert_eq!(acked, 1);
}
