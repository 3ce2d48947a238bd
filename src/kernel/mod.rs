//! The session kernel: opens sessions, hands out their frames, and routes what clients ask to their actors.
//!
//! It holds tools, commands, providers and the journal as ports and knows neither processes nor files.

mod askers;
mod board;
mod builtin;
mod catalog;
mod changes;
mod compaction;
mod context;
mod defaults;
mod delete;
mod feed;
mod held;
mod hooks;
mod input;
mod intents;
mod models;
mod open;
mod outbox;
mod permission;
mod queue;
mod read;
mod replay;
mod response;
mod rewind;
mod session;
mod store;
mod stream;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod turn;
mod unfinished;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bingo_plugin_sdk::event::{CloseReason, ErrorCode, Input, KernelError};
use bingo_plugin_sdk::ids::{IntentId, InteractionId, SessionId};
use bingo_plugin_sdk::interaction::{Answer, Interaction};
use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::provider::Effort;
use bingo_plugin_sdk::rpc::{Activation, ClientIdentity, Delivery, InterruptScope};
use bingo_plugin_sdk::state::SessionState;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

pub use board::Board;
use defaults::Defaults;
pub use feed::FeedStream;
use intents::Digest;
pub use permission::{PermissionMode, Rule, Rules};
use session::{AnswerWrite, Ask, SessionHandle, Write};
pub use stream::Published;
pub use tree::Frames;

use crate::ports::{Journal, JournalError, Notice, Notices, Offers, Preferences};
use crate::settings::{ModelSettings, SyncMode};

/// How long closing sessions may take to wind down and store their end.
const CLOSE_DEADLINE: Duration = Duration::from_secs(10);

/// What the kernel does by settings and command line.
#[derive(Debug, Clone)]
pub struct KernelSettings {
    /// The provider of new sessions.
    pub provider: Option<String>,
    /// The model of new sessions.
    pub model: Option<String>,
    pub thinking: Option<Effort>,
    /// The most tokens of one answer.
    pub max_tokens: u32,
    /// The most rounds of one turn.
    pub max_rounds: u32,
    /// What is known of models, by `PROVIDER/MODEL`.
    pub models: BTreeMap<String, ModelSettings>,
    pub mode: PermissionMode,
    pub rules: Rules,
    pub sync: SyncMode,
}

/// The session kernel.
#[derive(Clone)]
pub struct Kernel {
    parts: Arc<KernelParts>,
}

/// What the kernel and its sessions share.
struct KernelParts {
    offers: Arc<dyn Offers>,
    journal: Arc<dyn Journal>,
    board: Arc<Board>,
    settings: KernelSettings,
    defaults: Defaults,
    preferences: Arc<dyn Preferences>,
    feed: Arc<feed::Feed>,
    registry: Mutex<Registry>,
    changes: Arc<changes::Changes>,
    /// Tells them for as long as this lives.
    teller: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Registry {
    live: BTreeMap<SessionId, SessionHandle>,
    /// One lock per session that is being opened, so that it is opened once.
    opening: BTreeMap<SessionId, Weak<tokio::sync::Mutex<()>>>,
    /// Keys of sessions that are being created.
    creating: BTreeSet<String>,
    /// Unreadable sessions that were told.
    told: BTreeSet<String>,
    askers: askers::Askers,
}

/// A client's hold on a session: its state so far, and what follows.
pub struct Attachment {
    pub session: SessionId,
    pub snapshot: SessionState,
    pub stream: Frames,
}

/// A stream that goes on from an earlier point.
pub struct Resumption {
    /// Stored frames after that point.
    pub frames: Vec<Arc<Published>>,
    /// What follows them.
    pub stream: Frames,
}

/// How long opening a session and reading a catalog wait for plugins that are starting: most are there by then, and what a
/// client sees first is whole. A plugin that takes longer is told of when it is there.
const PATIENCE: Duration = Duration::from_secs(2);

impl Kernel {
    /// Returns a kernel over these ports; remarks left on the board are shown in its sessions, and what a person chooses
    /// for later sessions goes to the preferences. Needs a tokio runtime.
    pub fn new(
        offers: Arc<dyn Offers>,
        journal: Arc<dyn Journal>,
        board: Arc<Board>,
        preferences: Arc<dyn Preferences>,
        settings: KernelSettings,
    ) -> Self {
        let defaults = Defaults::new(&settings);
        let (feed, registry) = (Arc::new(feed::Feed::default()), Mutex::default());
        let changes = Arc::new(changes::Changes::new(Arc::clone(&feed)));
        let telling = Arc::clone(&changes).tell(Arc::clone(&offers), defaults.clone());
        let teller = AbortOnDropHandle::new(tokio::spawn(telling));
        let parts = KernelParts {
            offers,
            journal,
            board,
            settings,
            defaults,
            preferences,
            feed,
            registry,
            changes,
            teller,
        };
        let parts = Arc::new(parts);
        parts.board.connect(&parts);
        Self { parts }
    }

    /// Submits an input; what became of it is told by an `intentAck` frame.
    ///
    /// # Errors
    /// When the session is not live or can take nothing any more.
    pub async fn submit(&self, id: &SessionId, intent: IntentId, input: Input) -> Result<(), KernelError> {
        let session = self.parts.session(id)?;
        let digest = Digest::of("session/submit", &input);
        let work = input::prepare(input.clone(), true).await;
        session.ask(intent, digest, Ask::Submit { input: Box::new(input), work }).await
    }

    /// Interrupts a turn; the outcome is told by an `intentAck` frame.
    ///
    /// # Errors
    /// As `submit`.
    pub async fn interrupt(
        &self,
        id: &SessionId,
        intent: IntentId,
        scope: InterruptScope,
    ) -> Result<(), KernelError> {
        let digest = Digest::of("session/interrupt", &scope);
        self.parts.session(id)?.ask(intent, digest, Ask::Interrupt { scope }).await
    }

    /// Answers an interaction; the outcome is told by an `intentAck` frame.
    ///
    /// # Errors
    /// As `submit`.
    pub async fn answer(&self, id: &SessionId, given: GivenAnswer) -> Result<(), KernelError> {
        let GivenAnswer { intent, interaction, answer, activation, client } = given;
        let digest = Digest::of("session/answer", &(&interaction, &answer, activation));
        let write = AnswerWrite { interaction, answer, activation, client };
        self.parts.session(id)?.ask(intent, digest, Ask::Answer(Box::new(write))).await
    }

    /// Puts an input to a session from outside; a stored session is opened for it.
    ///
    /// # Errors
    /// When there is no such session, it is held elsewhere, or its journal cannot be read.
    pub async fn deliver(
        &self,
        id: &SessionId,
        intent: IntentId,
        input: Input,
        delivery: Delivery,
    ) -> Result<(), KernelError> {
        let session = self.live_or_stored(id).await?;
        let digest = Digest::of("session/deliver", &(&input, delivery));
        let work = input::prepare(input, false).await;
        session.ask(intent, digest, Ask::Deliver { work, delivery }).await
    }

    /// Sets a plugin's durable state; stored when this returns.
    ///
    /// # Errors
    /// As `deliver`; `INVALID_INPUT` for the kernel's own namespace.
    pub async fn extend(
        &self,
        id: &SessionId,
        plugin: String,
        kind: String,
        payload: Value,
    ) -> Result<(), KernelError> {
        if plugin == unfinished::NAMESPACE {
            let message =
                format!("`{plugin}` is the kernel's own namespace; extend the session under a name of yours");
            return Err(KernelError::new(ErrorCode::InvalidInput, message));
        }
        self.live_or_stored(id).await?.extend(plugin, kind, payload).await
    }

    /// Sets a plugin's live state.
    ///
    /// # Errors
    /// As `deliver`.
    pub async fn signal(
        &self,
        id: &SessionId,
        plugin: String,
        kind: String,
        payload: Value,
    ) -> Result<(), KernelError> {
        self.live_or_stored(id).await?.write(Write::Signal { plugin, kind, payload }).await
    }

    /// Checks that a session is live, for a client that lets go of it.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND` when it is not.
    pub fn require_live(&self, id: &SessionId) -> Result<(), KernelError> {
        self.parts.session(id).map(|_| ())
    }

    /// Subscribes to what happens outside any one session.
    pub fn subscribe_gateway(&self) -> FeedStream {
        self.parts.feed.subscribe()
    }

    /// Closes every session and waits until each stored its end, within a deadline.
    pub async fn shutdown(&self) {
        // That the plugins go with their host is no news.
        self.parts.teller.abort();
        let live = self.parts.live();
        for session in &live {
            // One that ended meanwhile is closed already.
            drop(session.write(Write::Close(CloseReason::Shutdown)).await);
        }
        let ended = async {
            for session in &live {
                session.ended().await;
            }
        };
        if tokio::time::timeout(CLOSE_DEADLINE, ended).await.is_err() {
            tracing::error!("some sessions did not store their end in time");
        }
    }
}

/// A client's answer to an interaction.
#[derive(Debug)]
pub struct GivenAnswer {
    pub intent: IntentId,
    pub interaction: InteractionId,
    pub answer: Answer,
    pub activation: Activation,
    pub client: ClientIdentity,
}

impl KernelParts {
    /// Returns every live session.
    fn live(&self) -> Vec<SessionHandle> {
        let mut registry = self.lock();
        registry.live.retain(|_, session| !session.is_closed());
        registry.live.values().cloned().collect()
    }

    fn session(&self, id: &SessionId) -> Result<SessionHandle, KernelError> {
        let mut registry = self.lock();
        if registry.live.get(id).is_some_and(SessionHandle::is_closed) {
            registry.live.remove(id);
        }
        registry
            .live
            .get(id)
            .cloned()
            .ok_or_else(|| KernelError::new(ErrorCode::SessionNotFound, format!("session {id} is not open")))
    }

    /// Waits a moment for plugins that are starting.
    async fn wait_for_plugins(&self) {
        // Those that take longer are waited for by what needs them.
        let _ = tokio::time::timeout(PATIENCE, self.offers.settled()).await;
    }

    fn note_asker(&self, asked: &Interaction) {
        self.lock().askers.note(asked.id.clone(), asked.session.clone());
    }

    /// Posts one notice for each unreadable session, once.
    fn tell_problems(&self, problems: &[JournalError]) {
        for problem in problems {
            let text = problem.to_kernel().message;
            if self.lock().told.insert(text.clone()) {
                tracing::warn!(problem = text, "a stored session cannot be read");
                self.board.post(Notice { level: Level::Warn, code: "SESSION_UNREADABLE", text });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
