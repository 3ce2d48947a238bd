//! Ports: the traits through which a lower layer is used by a higher one, and the values that cross them.
//!
//! The kernel holds `dyn Tool`, `dyn Command`, `dyn Provider` and `dyn Journal` and never sees a process or a file;
//! `app` joins the sides.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bingo_plugin_sdk::calls::{
    CommandOutcome, CompactReason, Compaction, CompactorContext, Completion, ContextPiece, ContributeQuery,
    DecidePoint, HookDecideResult, HookSite, ObservePoint,
};
use bingo_plugin_sdk::event::{ErrorCode, Frame, KernelError};
use bingo_plugin_sdk::handshake::{CommandSpec, HookPoint, Placement, ProviderSpec, ToolSpec};
use bingo_plugin_sdk::ids::{Generation, Seq, SessionId, TurnId};
use bingo_plugin_sdk::interaction::{Answer, InteractionKind};
use bingo_plugin_sdk::item::{Level, ToolOutput};
use bingo_plugin_sdk::provider::{Effort, ModelEvent, ModelRequest, ProviderError};
use bingo_plugin_sdk::session::SessionSummary;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

/// A future behind a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Takes the live lines of a running tool. It is called by a reader and must return at once.
pub type ProgressSink = Arc<dyn Fn(String) + Send + Sync>;

/// What every call into a plugin carries: the snapshot it was made under, where it comes from, and its way out.
#[derive(Clone)]
pub struct CallContext {
    pub snapshot: Arc<Snapshot>,
    pub session: SessionId,
    /// Absent outside a turn.
    pub turn: Option<TurnId>,
    /// The session's directory, absolute.
    pub cwd: PathBuf,
    /// Cancelled when nobody waits for the call any more.
    pub cancel: CancellationToken,
    /// Puts questions to the person of this call; absent where nobody can be asked.
    pub asker: Option<Arc<dyn Asker>>,
}

/// An immutable table of what all plugins offer, replaced as a whole at each change and numbered.
///
/// A turn or a command takes exactly one and keeps it to its end.
#[derive(Default)]
pub struct Snapshot {
    pub number: u64,
    pub tools: Vec<Arc<dyn Tool>>,
    pub commands: Vec<Arc<dyn Command>>,
    pub providers: Vec<Arc<dyn Provider>>,
    /// In the order they are asked: plugins by name, each one's as declared.
    pub contributors: Vec<Arc<dyn Contributor>>,
    /// The first one is used.
    pub compactors: Vec<Arc<dyn Compactor>>,
    /// In the order they are called: plugins by name, each one's as declared.
    pub hooks: Vec<Arc<dyn Hook>>,
    /// One owner each.
    pub services: BTreeMap<String, Arc<dyn Service>>,
    pub plugins: Vec<PluginReport>,
    /// What the offers stand on: kept for as long as the snapshot is.
    pub lease: Option<Arc<dyn Any + Send + Sync>>,
}

/// A line of the plugin catalog.
#[derive(Clone)]
pub struct PluginReport {
    pub name: String,
    /// As the plugin or its manifest says.
    pub version: String,
    /// Who brought it along, in one word.
    pub origin: &'static str,
    pub enabled: bool,
    /// What it is doing, in one word.
    pub state: &'static str,
    /// How often a process of it was started after the first.
    pub restarts: u32,
    /// Why it offers nothing, in words.
    pub reason: Option<String>,
    /// Absent while none of its processes is ready.
    pub process: Option<PluginProcess>,
}

/// The process behind a line of the plugin catalog.
#[derive(Clone)]
pub struct PluginProcess {
    pub generation: Generation,
    /// Returns what is known of it now: figures that change all the time, and so are no part of a snapshot.
    pub figures: Arc<dyn Fn() -> Map<String, Value> + Send + Sync>,
}

/// Where the kernel gets snapshots from.
pub trait Offers: Send + Sync {
    /// Returns the table that counts now.
    fn snapshot(&self) -> Arc<Snapshot>;

    /// Waits until no plugin of the start is still starting; each start has its deadline.
    fn settled(&self) -> BoxFuture<'static, ()>;

    /// Returns the plugins that `settled` waits for, by name.
    fn starting(&self) -> Vec<String>;

    /// Waits until another table counts than that of this number; for ever when none will.
    fn changed(&self, number: u64) -> BoxFuture<'static, ()>;
}

/// A tool as the model sees it.
pub trait Tool: Send + Sync {
    /// Returns name (as the model sees it), description, input schema and catalog facts.
    fn spec(&self) -> &ToolSpec;

    /// Returns the version of what offers it.
    fn version(&self) -> &str;

    /// Returns whether it can be called no more, because its process ended. A later snapshot may have it again.
    fn is_gone(&self) -> bool;

    /// Runs the tool. When `context.cancel` fires the future may be dropped; the tool is then told.
    fn call(
        &self,
        context: CallContext,
        call_id: String,
        input: Value,
        progress: ProgressSink,
    ) -> BoxFuture<'static, Result<ToolOutput, KernelError>>;
}

/// A command that a person types.
pub trait Command: Send + Sync {
    /// Returns name, aliases and what it takes.
    fn spec(&self) -> &CommandSpec;

    /// Runs the command with its argument text as typed.
    fn run(
        &self,
        context: CallContext,
        args: String,
    ) -> BoxFuture<'static, Result<CommandOutcome, KernelError>>;

    /// Returns completions of the argument text so far; nothing on any failure.
    fn complete(&self, partial: String, cwd: PathBuf) -> BoxFuture<'static, Vec<Completion>>;
}

/// A model provider.
pub trait Provider: Send + Sync {
    /// Returns id, models and endpoint facts.
    fn spec(&self) -> &ProviderSpec;

    /// Returns whether it can answer no more, because its process ended. It stays in the snapshots for as long as another
    /// process is coming, and a later one may have it again.
    fn is_gone(&self) -> bool;

    /// Starts a stream; dropping it cancels it.
    fn stream(&self, context: CallContext, request: ModelRequest) -> Box<dyn ModelStream>;
}

/// A model's answer as it comes.
pub trait ModelStream: Send {
    /// Returns the next event; nothing after a clean close; an error is the last word.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<ModelEvent, ProviderError>>>;
}

/// A contributor of context.
pub trait Contributor: Send + Sync {
    /// Returns `<plugin>:<id>`.
    fn name(&self) -> &str;

    /// Returns where its pieces go and when it is asked.
    fn placement(&self) -> &Placement;

    /// Asks for its pieces, within its deadline.
    fn contribute(
        &self,
        context: CallContext,
        query: ContributeQuery,
    ) -> BoxFuture<'static, Result<Vec<ContextPiece>, KernelError>>;
}

/// A strategy that shortens the context.
pub trait Compactor: Send + Sync {
    /// Returns `<plugin>:<id>`.
    fn name(&self) -> &str;

    /// Asks for a compaction, within its deadline: `TIMEOUT` past it, `INTERNAL` on any other failure.
    fn compact(
        &self,
        context: CallContext,
        over: CompactorContext,
        reason: CompactReason,
    ) -> BoxFuture<'static, Result<Compaction, KernelError>>;
}

/// A hook.
pub trait Hook: Send + Sync {
    /// Returns `<plugin>:<id>`.
    fn name(&self) -> &str;

    /// Returns whether it wants this point; `tool` is the tool's name as the model knows it, where there is one.
    fn wants(&self, point: HookPoint, tool: Option<&str>) -> bool;

    /// Asks for its decision. An answer that is late or wrong counts as the plugin's settings say (`onHookTimeout`:
    /// continue, or deny) and raises a notice that names the hook; it is not an error here.
    fn decide(
        &self,
        context: CallContext,
        site: HookSite,
        at: DecidePoint,
    ) -> BoxFuture<'static, HookDecideResult>;

    /// Tells it that something happened. Never waits: what a slow plugin does not take is dropped and counted.
    fn observe(&self, site: &HookSite, at: &ObservePoint);
}

/// A service that a plugin offers to others.
pub trait Service: Send + Sync {
    /// Returns the plugin that owns it.
    fn owner(&self) -> &str;

    /// Returns the methods it speaks.
    fn methods(&self) -> Vec<String>;

    /// Calls a method, within its deadline; a method it does not speak is refused in words without asking.
    fn call(
        &self,
        context: CallContext,
        method: String,
        params: Value,
    ) -> BoxFuture<'static, Result<Value, KernelError>>;
}

/// Puts questions of a running call to the person it runs for.
pub trait Asker: Send + Sync {
    /// Asks; a person's cancel is an answer. Waits as long as the call runs.
    fn ask(&self, question: InteractionKind) -> BoxFuture<'static, Result<Answer, KernelError>>;
}

/// A remark for the person, whoever listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub level: Level,
    /// A stable name in capitals, such as `PLUGIN_UNAVAILABLE`.
    pub code: &'static str,
    pub text: String,
}

/// Where lower layers leave their remarks. Never waits.
pub trait Notices: Send + Sync {
    /// Leaves a remark.
    fn post(&self, notice: Notice);
}

/// What a person chooses for later sessions and hosts too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preference {
    /// `PROVIDER/MODEL`.
    Model(String),
    Thinking(Option<Effort>),
    /// Whether a plugin is on.
    Plugin {
        name: String,
        on: bool,
    },
}

/// A person's own settings.
pub trait Preferences: Send + Sync {
    /// Writes a choice. Returns a remark where other settings say otherwise.
    ///
    /// # Errors
    /// `STORAGE` when it cannot be written.
    fn save(&self, choice: Preference) -> BoxFuture<'static, Result<Option<String>, KernelError>>;
}

/// The durable record of sessions. It speaks seqs and batches, never paths or offsets.
pub trait Journal: Send + Sync {
    /// Begins a session that does not exist yet and takes the sole right to append to it. Its place is synced.
    fn create(&self, session: SessionId) -> BoxFuture<'static, Result<Epoch, JournalError>>;

    /// Takes the sole right to append to a stored session, after cutting a torn tail. The stored frames go to `into` one
    /// after another: those behind the newest checkpoint that can be trusted, or all. After an error what it took is void.
    fn claim(
        &self,
        session: SessionId,
        into: Arc<Mutex<dyn Replayer>>,
    ) -> BoxFuture<'static, Result<Claim, JournalError>>;

    /// Keeps what the stored frames up to `through` come to, for a later claim to go on from. It is a cache: it may be lost,
    /// and failing is no error. The epoch must not be given back meanwhile.
    fn checkpoint(&self, epoch: Epoch, through: Seq, fold: Vec<u8>) -> BoxFuture<'static, ()>;

    /// Appends durable frames in one write, synced when asked. `expected_last` is the last seq stored before.
    ///
    /// After an error the epoch is dead: the session must be claimed again.
    fn append(
        &self,
        epoch: Epoch,
        expected_last: Seq,
        frames: Vec<Arc<Frame>>,
        sync: bool,
    ) -> BoxFuture<'static, Result<(), JournalError>>;

    /// Gives the right back; further appends under this epoch fail.
    fn release(&self, epoch: Epoch) -> BoxFuture<'static, ()>;

    /// Reads the stored frames with `after < seq <= through`.
    fn read(
        &self,
        session: SessionId,
        after: Seq,
        through: Seq,
    ) -> BoxFuture<'static, Result<Vec<Frame>, JournalError>>;

    /// Reads the stored frames of these seqs, which must ascend; one that is not stored is left out.
    fn pick(
        &self,
        session: SessionId,
        seqs: Vec<Seq>,
    ) -> BoxFuture<'static, Result<Vec<Frame>, JournalError>>;

    /// Lists what is stored; what cannot be read stands apart and spoils nothing.
    fn list(&self) -> BoxFuture<'static, Result<StoredSessions, JournalError>>;

    /// Removes a session. Its epoch, if one is held here, is given back first.
    fn delete(&self, session: SessionId) -> BoxFuture<'static, Result<(), JournalError>>;
}

/// The sole right to append to one session, until it is given back or lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch {
    pub session: SessionId,
    pub number: u64,
}

/// A stored session taken for appending.
#[derive(Debug)]
pub struct Claim {
    pub epoch: Epoch,
    /// The last stored seq.
    pub last: Seq,
    /// How many bytes of frames stand behind the checkpoint.
    pub replayed: u64,
}

/// Takes the frames of a session as they are read from its journal.
pub trait Replayer: Send {
    /// Goes on from a checkpoint. Returns false when it cannot be read: then the frames come from the first one on.
    fn resume(&mut self, fold: &[u8]) -> bool;

    /// Takes the next frame.
    fn take(&mut self, frame: Frame);
}

/// What a journal holds.
#[derive(Debug, Default)]
pub struct StoredSessions {
    /// In no order; `updatedAt` is when the session was last written, `busy` is false.
    pub sessions: Vec<SessionSummary>,
    /// One error for each session that cannot be read.
    pub problems: Vec<JournalError>,
}

/// Why the journal could not do something.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("session {session} is not stored")]
    NotFound { session: SessionId },
    #[error("session {session} exists already")]
    Exists { session: SessionId },
    #[error("session {session} is open elsewhere{}", holder.as_ref().map(|who| format!(" (by {who})")).unwrap_or_default())]
    Locked { session: SessionId, holder: Option<String> },
    #[error("session {session} was taken over or its journal failed; open it again")]
    Fenced { session: SessionId },
    #[error("{} is not a bingo journal", path.display())]
    NotJournal { path: PathBuf },
    #[error("{} was written by a newer bingo (journal version {version}, this one reads 1)", path.display())]
    Newer { path: PathBuf, version: u64 },
    #[error("{} is damaged at line {line}, which begins at byte {offset}: {reason}", path.display())]
    Damaged { path: PathBuf, line: u64, offset: u64, reason: String },
    #[error("cannot {act} {}", path.display())]
    Io {
        /// What was tried, such as `write`.
        act: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl JournalError {
    /// Returns the error as clients read it, with its cause in the message.
    pub fn to_kernel(&self) -> KernelError {
        let code = match self {
            Self::NotFound { .. } => ErrorCode::SessionNotFound,
            Self::Locked { .. } | Self::Fenced { .. } => ErrorCode::SessionLocked,
            _ => ErrorCode::Storage,
        };
        let cause = std::error::Error::source(self).map(|source| format!(": {source}")).unwrap_or_default();
        KernelError::new(code, format!("{self}{cause}"))
    }
}
