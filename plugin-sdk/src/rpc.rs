//! RPC protocol 1: what a frontend and `bingo serve` say to each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::{Frame, Input};
use crate::ids::{IntentId, InteractionId, ItemId, Seq, SessionId, TurnId};
use crate::interaction::Answer;
use crate::item::Item;
use crate::jsonrpc::{method_table, notification_table};
use crate::session::{Driver, ParentLink, SessionSummary};
use crate::state::SessionState;

/// The number of the RPC protocol. It moves only when a shape breaks or the method table changes.
pub const PROTOCOL: u32 = 1;

method_table! {
    /// The requests of RPC protocol 1, sent by the client.
    pub const METHODS;
    Initialize: "initialize", InitializeParams => InitializeResult;
    Shutdown: "shutdown", Empty => Empty;
    ListSessions: "session/list", ListParams => ListResult;
    OpenSession: "session/open", OpenParams => OpenResult;
    CloseSession: "session/close", SessionParams => Empty;
    DeleteSession: "session/delete", SessionParams => Empty;
    Deliver: "session/deliver", DeliverParams => Empty;
    Extend: "session/extend", ExtendParams => Empty;
    Signal: "session/signal", SignalParams => Empty;
    ReadHistory: "session/history", HistoryParams => HistoryChunk;
    ResumeEvents: "session/events", EventsParams => Empty;
    Submit: "session/submit", SubmitParams => Empty;
    Interrupt: "session/interrupt", InterruptParams => Empty;
    Answer: "session/answer", AnswerParams => Empty;
    ReadCatalog: "catalog/read", CatalogParams => Catalog;
    SubscribeGateway: "gateway/subscribe", Empty => Empty;
}

notification_table! {
    /// The notifications of RPC protocol 1, sent by the server.
    pub const NOTIFICATIONS;
    Event: "event", EventParams;
    Gateway: "gateway/event", GatewayEvent;
}

/// No properties.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Empty {}

/// Params of `initialize`, the first request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    pub client: ClientIdentity,
    /// The client's protocol number; must equal the server's.
    pub protocol: u32,
}

/// Who a client is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientIdentity {
    pub name: String,
    /// The kind of frontend it is.
    pub surface: String,
}

/// Result of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult {
    pub protocol: u32,
    pub name: String,
    pub version: String,
    pub capabilities: Capabilities,
}

/// What the server speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    pub methods: Vec<String>,
    pub notifications: Vec<String>,
}

/// Params that name a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionParams {
    pub session: SessionId,
}

/// Params of `session/list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListParams {
    #[serde(default)]
    pub filter: SessionFilter,
}

/// Which sessions to list; what is absent does not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionFilter {
    /// Sessions of this directory; compared as a real path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Children of this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// At most so many, the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Result of `session/list`, the last updated first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListResult {
    pub sessions: Vec<SessionSummary>,
}

/// Params of `session/open`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenParams {
    pub selector: SessionSelector,
    #[serde(default)]
    pub options: OpenOptions,
}

/// Which session to open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum SessionSelector {
    /// A new one.
    Create {
        spec: SessionSpec,
    },
    ById {
        id: SessionId,
    },
    ByKey {
        key: String,
    },
    /// The last updated one of this directory.
    Latest {
        cwd: String,
    },
}

/// What a new session shall be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSpec {
    /// The directory the session works in.
    pub cwd: String,
    /// `owner/path`, unique for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentLink>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub driver: Driver,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Text added to the system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_extra: Option<String>,
    /// The only tools offered to the model; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
}

/// How to open it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenOptions {
    /// Also deliver the frames of its live descendants.
    #[serde(default)]
    pub children: bool,
}

/// Result of `session/open`: the state so far; `event` notifications with a higher `seq` follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenResult {
    pub session: SessionId,
    pub snapshot: SessionState,
}

/// Params of `session/deliver`: put an input to a session from outside, without commands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliverParams {
    pub session: SessionId,
    pub intent: IntentId,
    pub input: Input,
    pub delivery: Delivery,
}

/// What a delivery does to an idle session: `wake` opens a turn, `hold` waits for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Delivery {
    Wake,
    Hold,
}

/// Params of `session/extend`: set a plugin's durable state of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtendParams {
    pub session: SessionId,
    pub plugin: String,
    pub kind: String,
    pub payload: Value,
}

/// Params of `session/signal`: set a plugin's live state of one kind; null removes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SignalParams {
    pub session: SessionId,
    pub plugin: String,
    pub kind: String,
    pub payload: Value,
}

/// Params of `session/history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryParams {
    pub session: SessionId,
    #[serde(default)]
    pub page: HistoryPage,
}

/// Which items: those just before `before`, or the newest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryPage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<ItemId>,
    /// At most so many; 0 means all.
    #[serde(default)]
    pub limit: usize,
    /// That of the chunk this page goes on from: refused with `STALE_GENERATION` when the history has another by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// Result of `session/history`, in the order of the transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryChunk {
    pub items: Vec<Item>,
    /// Give this as the next `before`; absent at the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<ItemId>,
    /// Advances with each compaction and rewind.
    pub generation: u64,
}

/// Params of `session/events`: send the frames after `since` again, then go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventsParams {
    pub session: SessionId,
    #[serde(default)]
    pub since: Seq,
}

/// Params of `session/submit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubmitParams {
    pub session: SessionId,
    /// Also the idempotency key.
    pub intent: IntentId,
    pub input: Input,
}

/// Params of `session/interrupt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterruptParams {
    pub session: SessionId,
    pub intent: IntentId,
    pub scope: InterruptScope,
}

/// What to interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum InterruptScope {
    /// This turn, if it is the one that runs.
    Turn { turn: TurnId },
    /// Whatever runs now.
    Head,
}

/// Params of `session/answer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnswerParams {
    pub session: SessionId,
    pub intent: IntentId,
    pub interaction: InteractionId,
    pub answer: Answer,
    pub activation: Activation,
}

/// How an answer was given. Keyboard answers wait for the interaction's `guardUntil`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Activation {
    Keyboard,
    Pointer,
    Programmatic,
}

/// Params of `catalog/read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CatalogParams {
    pub kind: CatalogKind,
}

/// A catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CatalogKind {
    Models,
    Providers,
    Tools,
    Commands,
    Skills,
    Plugins,
}

/// Result of `catalog/read`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Catalog {
    pub kind: CatalogKind,
    pub entries: Vec<CatalogEntry>,
}

/// An entry of a catalog.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CatalogEntry {
    pub id: String,
    pub label: String,
    #[serde(default)]
    pub meta: Value,
}

/// Params of `event`: one frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventParams {
    #[serde(flatten)]
    pub frame: Frame,
    /// The session through which the tree was opened; present on the frames of its descendants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<SessionId>,
}

/// Params of `gateway/event`: something happened outside any one session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum GatewayEvent {
    /// A session was created or resumed.
    SessionCreated {
        summary: Box<SessionSummary>,
    },
    SessionRemoved {
        session: SessionId,
    },
    CatalogChanged {
        kind: CatalogKind,
    },
}
