//! A kernel over doubles: a journal that loses what is not synced when its power is cut, and a model that answers when the
//! test says so. For tests of the kernel alone; time must be paused.

mod journal;
mod model;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bingo_plugin_sdk::event::{ErrorCode, Frame, Input, KernelError, Usage};
use bingo_plugin_sdk::handshake::CommandSpec;
use bingo_plugin_sdk::ids::{IntentId, SessionId};
use bingo_plugin_sdk::item::Origin;
use bingo_plugin_sdk::rpc::{Delivery, InterruptScope, OpenOptions, SessionSelector, SessionSpec};
use bingo_plugin_sdk::session::{Driver, SessionSummary};

pub(super) use self::journal::MemoryJournal;
pub(super) use self::model::{Model, Scripted, calls, finish, says};
use super::{Attachment, Board, Kernel, KernelSettings, PermissionMode, Rules};
use crate::ports::{BoxFuture, Command, Offers, PluginReport, Preference, Preferences, Snapshot, Tool};
use crate::settings::{ModelSettings, SyncMode};

/// A host that may be killed and started again over the same disk.
pub(super) struct Host {
    pub(super) kernel: Kernel,
    pub(super) model: Arc<Model>,
    pub(super) journal: MemoryJournal,
    /// What was chosen for later hosts.
    pub(super) saved: Arc<Saved>,
    setup: Setup,
}

/// What a host is started with.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) sync: SyncMode,
    /// What its one plugin offers.
    pub(super) commands: Vec<Arc<dyn Command>>,
    pub(super) tools: Vec<Arc<dyn Tool>>,
    /// What the settings know of models.
    pub(super) models: BTreeMap<String, ModelSettings>,
    pub(super) max_rounds: u32,
    pub(super) mode: PermissionMode,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            sync: SyncMode::Turn,
            commands: Vec::new(),
            tools: Vec::new(),
            models: BTreeMap::new(),
            max_rounds: 100,
            mode: PermissionMode::Default,
        }
    }
}

impl Host {
    /// Starts a host over an empty disk; `commands` are what its one plugin offers.
    pub(super) fn start(sync: SyncMode, commands: Vec<Arc<dyn Command>>) -> Self {
        Self::with(Setup { sync, commands, ..Setup::default() })
    }

    /// Starts a host over an empty disk.
    pub(super) fn with(setup: Setup) -> Self {
        Self::over(MemoryJournal::default(), setup)
    }

    /// Starts a host over a disk.
    pub(super) fn over(journal: MemoryJournal, setup: Setup) -> Self {
        let model = Arc::new(Model::default());
        let snapshot = Snapshot {
            number: 1,
            providers: vec![model.clone()],
            commands: setup.commands.clone(),
            tools: setup.tools.clone(),
            plugins: vec![plugin("p")],
            ..Snapshot::default()
        };
        let offers = Arc::new(Fixed(Arc::new(snapshot)));
        let settings = KernelSettings {
            provider: None,
            model: None,
            thinking: None,
            max_tokens: 1000,
            max_rounds: setup.max_rounds,
            models: setup.models.clone(),
            mode: setup.mode,
            rules: Rules::default(),
            sync: setup.sync,
        };
        let (board, saved) = (Arc::new(Board::default()), Arc::new(Saved::default()));
        let kernel = Kernel::new(offers, Arc::new(journal.clone()), board, saved.clone(), settings);
        Self { kernel, model, journal, saved, setup }
    }

    /// Cuts the power, and starts another host over what was synced.
    pub(super) fn crash(self) -> Self {
        Self::over(self.journal.cut_power(), self.setup)
    }

    /// Creates a session and attaches to it.
    pub(super) async fn create(&self) -> Attachment {
        self.create_as(Driver::Model).await
    }

    /// Creates a session of this driver and attaches to it.
    pub(super) async fn create_as(&self, driver: Driver) -> Attachment {
        let (title, cwd) = (Some("t".to_owned()), "/".to_owned());
        let spec = SessionSpec { title, cwd, driver, ..SessionSpec::default() };
        self.open(SessionSelector::Create { spec }).await
    }

    /// Opens a stored or live session and attaches to it.
    pub(super) async fn reopen(&self, id: &SessionId) -> Attachment {
        self.open(SessionSelector::ById { id: id.clone() }).await
    }

    async fn open(&self, selector: SessionSelector) -> Attachment {
        self.kernel.open(selector, OpenOptions::default()).await.expect("it can be opened")
    }

    /// Submits a line.
    pub(super) async fn submit(&self, session: &SessionId, intent: &str, text: &str) {
        let sent = self.kernel.submit(session, IntentId::from(intent), words(text)).await;
        sent.expect("the session is live");
    }

    /// Delivers a line that no running turn takes in.
    pub(super) async fn hold(&self, session: &SessionId, intent: &str, text: &str) {
        let intent = IntentId::from(intent);
        let sent = self.kernel.deliver(session, intent, words(text), Delivery::Hold).await;
        sent.expect("the session is live");
    }

    /// Interrupts whatever turn runs.
    pub(super) async fn interrupt(&self, session: &SessionId, intent: &str) {
        let sent = self.kernel.interrupt(session, IntentId::from(intent), InterruptScope::Head).await;
        sent.expect("the session is live");
    }
}

/// Waits until nothing can happen any more without something from outside: paused time moves on only then.
pub(super) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Takes the frames that came so far.
pub(super) async fn seen(attachment: &mut Attachment) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Ok(Some(published)) =
        tokio::time::timeout(Duration::from_millis(1), attachment.stream.next()).await
    {
        frames.push(published.frame.clone());
    }
    frames
}

/// Returns words as a client sends them.
pub(super) fn words(text: &str) -> Input {
    Input::Text { text: text.to_owned(), attachments: Vec::new(), origin: Origin::surface("test") }
}

/// A table that never changes.
struct Fixed(Arc<Snapshot>);

impl Offers for Fixed {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0)
    }

    fn settled(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn starting(&self) -> Vec<String> {
        Vec::new()
    }

    fn changed(&self, _: u64) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// Choices in the order they came; they cannot be written while `fails`.
#[derive(Default)]
pub(super) struct Saved {
    pub(super) choices: Mutex<Vec<Preference>>,
    pub(super) fails: AtomicBool,
}

impl Preferences for Saved {
    fn save(&self, choice: Preference) -> BoxFuture<'static, Result<Option<String>, KernelError>> {
        let outcome = match self.fails.load(Ordering::Relaxed) {
            true => Err(KernelError::new(ErrorCode::Storage, "no room")),
            false => Ok(None),
        };
        if outcome.is_ok() {
            self.choices.lock().unwrap_or_else(PoisonError::into_inner).push(choice);
        }
        Box::pin(std::future::ready(outcome))
    }
}

/// Returns the summary of a session that the test's model answers in.
pub(super) fn summary(id: &SessionId) -> SessionSummary {
    let now = "2026-01-01T00:00:00Z".to_owned();
    SessionSummary {
        id: id.clone(),
        key: None,
        title: Some("t".to_owned()),
        cwd: "/".to_owned(),
        parent: None,
        driver: Driver::Model,
        model: Some("m".to_owned()),
        system_extra: None,
        tools: None,
        provider: Some("test".to_owned()),
        created_at: now.clone(),
        updated_at: now,
        usage: Usage::default(),
        busy: false,
        messages: Some(0),
    }
}

/// Returns a plugin that serves, as catalogs show it.
pub(super) fn plugin(name: &str) -> PluginReport {
    PluginReport {
        name: name.to_owned(),
        version: "1.0.0".to_owned(),
        origin: "user",
        enabled: true,
        state: "ready",
        restarts: 0,
        reason: None,
        process: None,
    }
}

/// Returns what a command says of itself.
pub(super) fn command_spec(name: &str) -> CommandSpec {
    serde_json::from_value(
        serde_json::json!({ "name": name, "hint": "", "args": { "kind": "none" }, "family": "" }),
    )
    .expect("this is a command's spec")
}
