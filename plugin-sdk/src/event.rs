//! Frames: the one output vocabulary of a session, folded alike by kernel and clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{IntentId, InteractionId, ItemId, Seq, SessionId, TurnId};
use crate::interaction::{Answer, Interaction, ResolvedBy};
use crate::item::{Item, Level, Origin};
use crate::session::SessionSummary;
use crate::view::Action;

/// One output of a session. `seq` grows strictly; gaps are legal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    pub seq: Seq,
    /// RFC 3339, UTC: when it was published.
    pub ts: String,
    pub session: SessionId,
    /// The intent that this frame answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<IntentId>,
    pub event: Event,
}

/// What happened. Durable events are journaled and replayed; `itemDelta`, `notice`, `signal` and `lagged` are not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// The session's summary, whole; also the head of every run of the session.
    SessionUpdated { summary: Box<SessionSummary> },
    /// The last frame of a run of the session.
    SessionClosed { reason: CloseReason },
    /// A turn opened; `inputs` are the user items recorded just before it.
    TurnStarted { turn: TurnId, inputs: Vec<ItemId>, origin: TurnOrigin },
    /// A model request failed and is made again after `delayMs`.
    TurnRetrying {
        turn: TurnId,
        attempt: u32,
        max: u32,
        delay_ms: u64,
        /// Items withdrawn before the retry.
        dropped: Vec<ItemId>,
        reason: String,
    },
    /// One model response ended; `usage` is that round's only.
    TurnUsage { turn: TurnId, usage: Usage, context: ContextUsage },
    /// A turn ended, exactly once for each `turnStarted`; `usage` is the whole turn's.
    TurnCompleted { turn: TurnId, status: TurnStatus, usage: Usage },
    /// An item appeared, unfinished.
    ItemStarted { item: Arc<Item> },
    /// An unfinished item grew. Not journaled; the completed item overrides every delta.
    ItemDelta {
        item: ItemId,
        /// Counts the deltas of one item from 0; after merging, that of the last one merged.
        n: u32,
        kind: DeltaKind,
        data: String,
    },
    /// An unfinished item changed: the whole item as it is now.
    ItemUpdated { item: Arc<Item> },
    /// An item ended: the whole item. Also the only event of an item born complete.
    ItemCompleted { item: Arc<Item> },
    /// The waiting inputs, whole; `revision` grows by one with each announcement.
    QueueChanged { revision: u64, entries: Vec<QueueEntry> },
    /// Something waits for a person.
    InteractionOpened { interaction: Box<Interaction> },
    /// It was answered, once.
    InteractionResolved { id: InteractionId, answer: Answer, by: ResolvedBy },
    /// It closed without an answer.
    InteractionCancelled { id: InteractionId, reason: CancelReason },
    /// What became of a client's write.
    IntentAck {
        intent: IntentId,
        outcome: IntentOutcome,
        /// Stands for the request: another request under the same intent has another digest and is refused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
    },
    /// Earlier items are no longer shown to the model; `summary` is the item that stands for them.
    Compacted { generation: u64, boundary: ItemId, summary: ItemId, kept: Vec<ItemId> },
    /// The session went back to before `toTurn`.
    Rewound { generation: u64, to_turn: TurnId, dropped: Vec<ItemId>, files_restored: Vec<String> },
    /// What a frontend may show of the session's settings, whole.
    ConfigChanged { config: ConfigView },
    /// A catalog changed.
    CatalogChanged { kind: String },
    /// A remark on the live stream. Not journaled.
    Notice { level: Level, code: String, text: String },
    /// A plugin's whole state of one kind; the newest payload counts.
    Extension { plugin: String, kind: String, payload: Value },
    /// A plugin's live state of one kind; the newest payload wins, null removes it. Not journaled.
    Signal { plugin: String, kind: String, payload: Value },
    /// This subscriber missed the frames `from` to `to`, both included. Not journaled.
    Lagged { from: Seq, to: Seq },
}

impl Event {
    /// Returns whether the event is journaled and replayed (kernel rules 1.2.8).
    pub fn is_durable(&self) -> bool {
        !matches!(
            self,
            Self::ItemDelta { .. } | Self::Notice { .. } | Self::Signal { .. } | Self::Lagged { .. }
        )
    }
}

/// How a delta changes its item: `text` and `reasoning` append, `tail` replaces a tool's live line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DeltaKind {
    Text,
    Reasoning,
    Tail,
}

/// Tokens of a model request. The three input counts do not overlap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Input read from the provider's cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Input written to the provider's cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// The part of the output that was reasoning.
    #[serde(default)]
    pub reasoning_tokens: u64,
}

impl std::ops::AddAssign for Usage {
    /// Adds each count, staying at the highest number instead of wrapping: counts come from plugins.
    fn add_assign(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cache_read_tokens = self.cache_read_tokens.saturating_add(other.cache_read_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(other.cache_write_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
    }
}

/// How full the model's context is, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextUsage {
    pub used: u64,
    /// Room for input: the model's window without what is reserved for the answer.
    pub window: u64,
    /// The usage at which compaction starts.
    pub trigger: u64,
}

/// Why a turn opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum TurnOrigin {
    Submit,
    Queue,
    Peer,
    Auto,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TurnStatus {
    Completed,
    Failed { error: KernelError },
    Interrupted { reason: InterruptReason },
}

/// Who interrupted a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum InterruptReason {
    UserCancel,
    NewInput,
    Shutdown,
    Budget,
}

/// Why an interaction closed without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CancelReason {
    TurnEnded,
    Interrupted,
    SessionClosed,
    Expired,
    Superseded,
    CommandEnded,
}

/// Why a session's run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CloseReason {
    Client,
    Shutdown,
    Deleted,
    Error { message: String },
}

/// What became of a client's write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum IntentOutcome {
    TurnStarted {
        turn: TurnId,
    },
    /// It waits, at this place of the queue, counted from 1; `turnStarted` follows when its time comes.
    Queued {
        position: u32,
    },
    Applied {
        result: Value,
    },
    Rejected {
        error: KernelError,
    },
}

/// An error with a stable name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KernelError {
    pub code: ErrorCode,
    pub message: String,
}

impl KernelError {
    /// Returns the error of this code and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl std::fmt::Display for KernelError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for KernelError {}

/// The stable names of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    SessionNotFound,
    SessionLocked,
    SessionClosed,
    InteractionClosed,
    NotReady,
    StaleGeneration,
    NotInitialized,
    InvalidInput,
    PermissionDenied,
    ToolNotFound,
    ToolFailed,
    ProviderUnavailable,
    AuthRequired,
    RateLimited,
    ContextOverflow,
    Timeout,
    Offline,
    ServerError,
    TurnLost,
    TurnBudgetExhausted,
    Internal,
    Storage,
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(formatter)
    }
}

/// One waiting input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueEntry {
    pub intent: IntentId,
    /// Counted from 1.
    pub position: u32,
    /// Its first 80 characters.
    pub preview: String,
    /// Says that a running turn may take it in between two rounds.
    pub steerable: bool,
    pub origin: Origin,
}

/// An input of a person or another session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Input {
    /// Words; a line that starts with `/name` is a command.
    Text {
        text: String,
        /// Pictures: `data:` URLs, or absolute paths where client and host share a machine.
        #[serde(default)]
        attachments: Vec<String>,
        origin: Origin,
    },
    /// A command as data.
    Action { action: Action },
}

/// What a frontend may show of a session's settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigView {
    #[serde(default)]
    pub kernel: Value,
    /// By plugin or part of the kernel, such as `bingo.permissions`.
    #[serde(default)]
    pub plugins: BTreeMap<String, Value>,
}
