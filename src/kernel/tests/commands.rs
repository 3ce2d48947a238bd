//! Commands of the kernel: what they show, what they change, and what of it lasts.

use std::sync::atomic::Ordering;

use bingo_plugin_sdk::event::{ErrorCode, Event, Frame, IntentOutcome};
use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::provider::Effort;
use bingo_plugin_sdk::rpc::{CatalogKind, OpenOptions, SessionSelector, SessionSpec};
use bingo_plugin_sdk::session::{Driver, ParentLink};
use bingo_plugin_sdk::view::View;
use serde_json::json;

use crate::kernel::Attachment;
use crate::kernel::testing::{Host, Setup, seen, settle};
use crate::ports::Preference;
use crate::settings::{ModelSettings, SyncMode};

/// Submits a command and returns the frames up to what it came to.
pub(super) async fn command(
    host: &Host,
    at: &mut Attachment,
    intent: &str,
    line: &str,
) -> (Vec<Frame>, IntentOutcome) {
    host.submit(&at.session, intent, line).await;
    settle().await;
    let frames = seen(at).await;
    let mut acks = frames.iter().filter_map(|frame| match &frame.event {
        Event::IntentAck { intent: of, outcome, .. } if of.as_str() == intent => Some(outcome.clone()),
        _ => None,
    });
    let outcome = acks.next_back().unwrap_or_else(|| panic!("no acknowledgement among {frames:?}"));
    (frames, outcome)
}

pub(super) fn refusal(outcome: &IntentOutcome) -> ErrorCode {
    let IntentOutcome::Rejected { error } = outcome else { panic!("{outcome:?} is no refusal") };
    error.code
}

pub(super) fn view(outcome: IntentOutcome) -> View {
    let IntentOutcome::Applied { result } = outcome else { panic!("{outcome:?} shows nothing") };
    serde_json::from_value(result["view"].clone()).unwrap()
}

fn message(outcome: &IntentOutcome) -> &str {
    let IntentOutcome::Applied { result } = outcome else { panic!("{outcome:?} says nothing") };
    result["message"].as_str().unwrap_or_else(|| panic!("{result} has no message"))
}

fn text(outcome: IntentOutcome) -> String {
    let View::Text { text } = view(outcome) else { panic!("it is no text") };
    text
}

/// The kinds of the frames that are stored, without the notes of what runs.
fn kinds(frames: &[Frame]) -> Vec<String> {
    let events = frames.iter().map(|frame| json!(frame.event)["type"].as_str().unwrap().to_owned());
    events.filter(|kind| kind != "extension").collect()
}

async fn state(host: &Host, id: &SessionId) -> bingo_plugin_sdk::state::SessionState {
    host.reopen(id).await.snapshot
}

fn saved(host: &Host) -> Vec<Preference> {
    host.saved.choices.lock().unwrap().clone()
}

/// Rule 4.1.1, 8.2.8, 8.2.9.
#[tokio::test(start_paused = true)]
async fn a_model_counts_from_the_next_turn_on_and_for_later_sessions() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    let mut at = host.create().await;
    assert!(text(command(&host, &mut at, "bare", "/model").await.1).starts_with("model: test/m\n"));
    // A turn that runs keeps what it began with.
    host.submit(&at.session, "turn", "hello").await;
    settle().await;
    assert_eq!(host.model.asked().unwrap().model, "m");
    let (frames, outcome) = command(&host, &mut at, "choose", "/model test/other").await;
    assert_eq!(message(&outcome), "model: test/other");
    assert!(kinds(&frames).ends_with(&["sessionUpdated".to_owned(), "intentAck".to_owned()]), "{frames:?}");
    let now = state(&host, &at.session).await;
    assert!(now.turn.is_some() && now.summary.busy, "it runs on");
    assert_eq!(now.summary.model.as_deref(), Some("other"));
    host.model.answer_always();
    host.submit(&at.session, "next", "again").await;
    settle().await;
    assert_eq!(host.model.asked().unwrap().model, "other");
    assert_eq!(saved(&host), [Preference::Model("test/other".to_owned())]);
    let later = host.create().await;
    assert_eq!(later.snapshot.summary.model.as_deref(), Some("other"));
    let models = host.kernel.catalog(CatalogKind::Models).await.entries;
    let ids: Vec<_> = models.iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(ids, ["test/other", "test/m"], "the chosen one comes first, declared or not");
    let (_, outcome) = command(&host, &mut at, "slash", "/model meta/llama").await;
    assert_eq!(message(&outcome), "model: test/meta/llama", "`meta` is no provider here");
}

/// Rule 8.3.12.
#[tokio::test(start_paused = true)]
async fn the_catalog_of_models_says_what_the_settings_know_of_them() {
    let large = ModelSettings {
        context_window: Some(1_000_000),
        max_output: Some(64_000),
        images: Some(true),
        reasoning: Some(false),
    };
    let small = ModelSettings { context_window: Some(8000), ..ModelSettings::default() };
    let described = [("test/large/one", large), ("test/m", small), ("absent/x", ModelSettings::default())];
    let models = described.map(|(id, settings)| (id.to_owned(), settings)).into();
    let host = Host::with(Setup { models, ..Setup::default() });
    let entries = host.kernel.catalog(CatalogKind::Models).await.entries;
    let expected = json!([
        { "id": "test/m", "label": "m", "meta": { "provider": "test", "context": 8000, "source": "configured" } },
        { "id": "test/large/one", "label": "large/one", "meta": {
            "provider": "test", "context": 1_000_000, "output": 64_000, "images": true, "reasoning": false,
            "source": "configured",
        } },
    ]);
    assert_eq!(json!(entries), expected);
}

/// Rule 8.2.8.
#[tokio::test(start_paused = true)]
async fn a_model_whose_provider_is_not_there_is_refused() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    let (title, cwd, driver) = (None, "/".to_owned(), Driver::Log);
    let spec = SessionSpec { title, cwd, driver, ..SessionSpec::default() };
    let log = host.kernel.open(SessionSelector::Create { spec }, OpenOptions::default()).await;
    let mut log = log.unwrap();
    for (intent, line) in [("m", "/model test/m"), ("t", "/think high"), ("c", "/compact")] {
        let (_, outcome) = command(&host, &mut log, intent, line).await;
        assert_eq!(refusal(&outcome), ErrorCode::InvalidInput, "{line}: nobody answers in a log");
    }
    assert_eq!(saved(&host), []);
    let (_, outcome) = command(&host, &mut log, "bare", "/model").await;
    assert!(text(outcome).starts_with("model: none/none"));
}

/// Rule 8.2.8, 8.2.9, 8.4.25, 3.1.9.
#[tokio::test(start_paused = true)]
async fn a_level_of_reasoning_is_sent_shown_kept_and_inherited() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    host.model.answer_always();
    let mut at = host.create().await;
    assert!(text(command(&host, &mut at, "bare", "/think").await.1).starts_with("thinking: off\n"));
    let (frames, outcome) = command(&host, &mut at, "high", "/think XHIGH").await;
    assert_eq!(message(&outcome), "thinking: xhigh");
    assert!(kinds(&frames).ends_with(&["intentAck".to_owned(), "configChanged".to_owned()]), "{frames:?}");
    host.submit(&at.session, "turn", "hello").await;
    settle().await;
    assert_eq!(host.model.asked().unwrap().reasoning, Some(Effort::XHigh));
    let link = ParentLink { session: at.session.clone(), item: None };
    let spec = SessionSpec { cwd: "/".to_owned(), parent: Some(link), ..SessionSpec::default() };
    let child = host.kernel.open(SessionSelector::Create { spec }, OpenOptions::default()).await.unwrap();
    assert_eq!(child.snapshot.config.kernel["thinking"], json!("xHigh"), "of its parent");
    // Another run of the session goes on with it, whatever the settings of that host say.
    let host = host.crash();
    host.model.answer_always();
    let mut at = host.reopen(&at.session).await;
    assert_eq!(at.snapshot.config.kernel["thinking"], json!("xHigh"));
    let (_, outcome) = command(&host, &mut at, "off", "/think off").await;
    assert_eq!(message(&outcome), "thinking: off");
    assert_eq!(saved(&host), [Preference::Thinking(None)]);
    host.submit(&at.session, "again", "hello").await;
    settle().await;
    assert_eq!(host.model.asked().unwrap().reasoning, None);
    let (_, outcome) = command(&host, &mut at, "much", "/think much").await;
    assert_eq!(refusal(&outcome), ErrorCode::InvalidInput);
}

/// Rule 8.2.9.
#[tokio::test(start_paused = true)]
async fn a_choice_that_cannot_be_written_counts_here_and_says_so() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    host.saved.fails.store(true, Ordering::Relaxed);
    let mut at = host.create().await;
    let (_, outcome) = command(&host, &mut at, "think", "/think low").await;
    assert_eq!(message(&outcome), "thinking: low; later hosts do not know of it: no room");
    assert_eq!(state(&host, &at.session).await.config.kernel["thinking"], json!("low"));
    // Nothing but the file would be changed.
    let (_, outcome) = command(&host, &mut at, "off", "/plugins disable p").await;
    assert_eq!(refusal(&outcome), ErrorCode::Storage);
}

/// Rule 8.2.8.
#[tokio::test(start_paused = true)]
async fn a_given_name_stays() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    host.model.answer_always();
    let spec = SessionSpec { cwd: "/".to_owned(), ..SessionSpec::default() };
    let at = host.kernel.open(SessionSelector::Create { spec }, OpenOptions::default()).await;
    let mut at = at.unwrap();
    assert!(text(command(&host, &mut at, "bare", "/rename").await.1).starts_with("this session has no name"));
    let (frames, outcome) = command(&host, &mut at, "name", "/rename  my   own ").await;
    assert_eq!(message(&outcome), "name: my own");
    assert_eq!(kinds(&frames), ["sessionUpdated", "intentAck"]);
    host.submit(&at.session, "turn", "Words that would name it.").await;
    settle().await;
    assert_eq!(state(&host, &at.session).await.summary.title.as_deref(), Some("my own"));
    assert!(text(command(&host, &mut at, "again", "/rename").await.1).starts_with("my own\n"));
    let (_, outcome) = command(&host, &mut at, "long", &format!("/rename {}", "x".repeat(81))).await;
    assert_eq!(refusal(&outcome), ErrorCode::InvalidInput);
}

/// Rule 8.2.8, 8.1.3.
#[tokio::test(start_paused = true)]
async fn views_are_shown_at_once_also_while_a_turn_runs() {
    let host = Host::start(SyncMode::Turn, Vec::new());
    let mut at = host.create().await;
    host.submit(&at.session, "turn", "hello").await;
    settle().await;
    seen(&mut at).await;
    let (frames, outcome) = command(&host, &mut at, "models", "/models").await;
    assert_eq!(kinds(&frames), ["intentAck"], "nothing is recorded");
    let View::Stack { children } = view(outcome) else { panic!("{frames:?}") };
    let [View::Panel { title, child }] = &children[..] else { panic!("{children:?}") };
    assert_eq!(
        (title.as_str(), &**child),
        ("test: declared by its plugin", &View::List { items: vec!["m".to_owned()] })
    );
    let View::Table { headers, rows } = view(command(&host, &mut at, "plugins", "/modules").await.1) else {
        panic!("it is no table")
    };
    assert_eq!(headers, ["plugin", "version", "state", "reason", "from"]);
    assert_eq!(rows, [["p", "1.0.0", "ready", "", "user"]]);
    let View::KeyValue { rows } = view(command(&host, &mut at, "status", "/status").await.1) else {
        panic!("it is no list of pairs")
    };
    let of = |key: &str| rows.iter().find(|[found, _]| found == key).map(|[_, value]| value.clone());
    assert_eq!(of("session").unwrap(), at.session.to_string());
    assert_eq!((of("provider").unwrap(), of("model").unwrap()), ("test".to_owned(), "m".to_owned()));
    assert_eq!(
        (of("mode").unwrap(), of("tokens").unwrap()),
        ("default".to_owned(), "0 in, 0 out".to_owned())
    );
    assert_eq!((of("cwd").unwrap(), of("parent")), ("/".to_owned(), None));
    for (intent, line) in [("r", "/models refresh"), ("s", "/status now"), ("p", "/plugins enable nobody")] {
        let (_, outcome) = command(&host, &mut at, intent, line).await;
        assert_eq!(refusal(&outcome), ErrorCode::InvalidInput, "{line}");
    }
    let (_, outcome) = command(&host, &mut at, "off", "/plugins disable p").await;
    assert!(message(&outcome).starts_with("p is off: "));
    assert_eq!(saved(&host), [Preference::Plugin { name: "p".to_owned(), on: false }]);
    assert!(state(&host, &at.session).await.turn.is_some(), "the turn runs on");
}
