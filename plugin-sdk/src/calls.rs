//! The calls of plugin protocol 5: params and results of every method and notification, and the method table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::{ContextUsage, Frame, Input, Usage};
use crate::handshake::{InitializeParams, InitializeResult};
use crate::ids::{ItemId, SessionId, TurnId};
use crate::interaction::{Answer, InteractionKind};
use crate::item::{ContentPart, Item, ItemBody, Level, ToolCall, ToolOutput};
use crate::jsonrpc::{method_table, notification_table};
use crate::provider::{
    ModelCapabilities, ProviderCancelParams, ProviderDeltaParams, ProviderStreamParams, ProviderStreamResult,
    SystemBlock,
};
use crate::session::SessionSummary;
use crate::view::View;

/// The number of the plugin protocol. It moves only when a shape breaks or the method table changes.
pub const PROTOCOL: u32 = 5;

/// The service key under which plugins reach the host itself.
pub const HOST_SERVICE: &str = "bingo.host";

method_table! {
    /// The requests of plugin protocol 5, sent by the host; `service/call` goes both ways.
    pub const METHODS;
    Initialize: "initialize", InitializeParams => InitializeResult;
    CallTool: "tool/call", ToolCallParams => ToolCallResult;
    RunCommand: "command/run", CommandRunParams => CommandRunResult;
    CompleteCommand: "command/complete", CommandCompleteParams => CommandCompleteResult;
    ContributeContext: "context/contribute", ContextContributeParams => ContextContributeResult;
    Compact: "compactor/compact", CompactorCompactParams => CompactorCompactResult;
    StreamProvider: "provider/stream", ProviderStreamParams => ProviderStreamResult;
    CallService: "service/call", ServiceCallParams => ServiceCallResult;
    DecideHook: "hook/decide", HookDecideParams => HookDecideResult;
}

notification_table! {
    /// The notifications of plugin protocol 5. `tool/progress` and `provider/delta` come from the plugin.
    pub const NOTIFICATIONS;
    ToolProgress: "tool/progress", ToolProgressParams;
    CancelTool: "tool/cancel", ToolCancelParams;
    ProviderDelta: "provider/delta", ProviderDeltaParams;
    CancelProvider: "provider/cancel", ProviderCancelParams;
    ObserveHook: "hook/observe", HookObserveParams;
}

/// Params of `tool/call`: run a tool and respond with its output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCallParams {
    /// Names this call in `tool/progress`, `tool/cancel` and `ask`.
    pub call_id: String,
    /// The tool's own name, without prefix.
    pub name: String,
    /// What the model gave; a string when it was not JSON. Not checked against `inputSchema`.
    pub input: Value,
    /// The session's directory.
    pub cwd: String,
    pub session: SessionId,
    pub turn: TurnId,
}

/// Result of `tool/call`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCallResult {
    pub output: ToolOutput,
}

/// Params of `tool/progress`, from the plugin: the live line of a running call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolProgressParams {
    pub call_id: String,
    /// The whole line; it replaces the last one.
    pub tail: String,
}

/// Params of `tool/cancel`: nobody waits for this call any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCancelParams {
    pub call_id: String,
}

/// Params of `command/run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandRunParams {
    pub name: String,
    /// The text after the name, as typed.
    pub args: String,
    /// The session's directory.
    pub cwd: String,
    pub session: SessionId,
}

/// Result of `command/run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandRunResult {
    pub outcome: CommandOutcome,
}

/// What a command comes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CommandOutcome {
    /// Done; `message` is told to the person.
    Applied {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// Shown to the person; leaves nothing in the transcript.
    View { view: View },
    /// Submitted as a new turn.
    Prompt { text: String },
    /// Written into the transcript as one finished item.
    Record { body: ItemBody },
}

/// Params of `command/complete`: what could stand in the place of `partial`?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandCompleteParams {
    pub name: String,
    /// The argument text so far.
    pub partial: String,
    pub cwd: String,
}

/// Result of `command/complete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandCompleteResult {
    #[serde(default)]
    pub completions: Vec<Completion>,
}

/// One completion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Completion {
    /// The argument text it completes to.
    pub value: String,
    /// What is shown instead of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Params of `context/contribute`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextContributeParams {
    /// The contributor's id.
    pub id: String,
    pub query: ContributeQuery,
}

/// What a contributor may look at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContributeQuery {
    pub session: SessionSummary,
    pub turn: TurnId,
    pub round: u32,
    #[serde(default)]
    pub items: Vec<Item>,
    pub usage: ContextUsage,
    pub capabilities: ModelCapabilities,
    pub cwd: String,
}

/// Result of `context/contribute`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextContributeResult {
    #[serde(default)]
    pub pieces: Vec<ContextPiece>,
}

/// A piece of context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ContextPiece {
    /// A block of the system prompt.
    System(SystemBlock),
    /// A user message, recorded in the transcript.
    User { parts: Vec<ContentPart>, label: String },
}

/// Params of `compactor/compact`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompactorCompactParams {
    /// The compactor's id.
    pub id: String,
    pub context: CompactorContext,
    pub reason: CompactReason,
}

/// What a compactor works on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompactorContext {
    #[serde(default)]
    pub items: Vec<Item>,
    pub usage: ContextUsage,
    pub capabilities: ModelCapabilities,
    pub model: String,
    /// Compactions thrown away in a row so far.
    pub failures: u32,
    /// Tokens at the end to leave as they are.
    pub keep_budget: u64,
}

/// Why the context is shortened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CompactReason {
    /// The context grew past its trigger.
    Threshold,
    /// The provider said it is too large.
    Overflow { message: String },
    /// A person asked for it.
    Manual {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instructions: Option<String>,
    },
}

/// Result of `compactor/compact`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompactorCompactResult {
    pub compaction: Compaction,
}

/// A shortened context; counts only when `after` is smaller than `before`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Compaction {
    pub summary: String,
    /// Items before this one are replaced by the summary.
    pub boundary: ItemId,
    /// Earlier items kept anyway.
    #[serde(default)]
    pub kept: Vec<ItemId>,
    /// Tokens before.
    pub before: u64,
    /// Tokens after.
    pub after: u64,
    /// What making it cost.
    #[serde(default)]
    pub usage: Usage,
}

/// Params of `service/call`, either way: call a method of the service that owns `key`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceCallParams {
    pub key: String,
    pub method: String,
    #[serde(default)]
    pub params: Value,
}

/// Result of `service/call`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceCallResult {
    #[serde(default)]
    pub result: Value,
}

/// Params of `hook/decide`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookDecideParams {
    /// The hook's id.
    pub id: String,
    pub site: HookSite,
    #[serde(flatten)]
    pub at: DecidePoint,
}

/// The points at which a hook decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "point", content = "payload", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[schemars(inline)]
pub enum DecidePoint {
    Submit { input: Input },
    BeforeTool { call: ToolCall },
    AfterTool { call: ToolCall, output: ToolOutput },
    Stop,
}

/// Where a hook is called from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookSite {
    pub session: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    pub cwd: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Result of `hook/decide`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookDecideResult {
    pub outcome: HookOutcome,
    /// A changed input (at `submit`) or call (at `beforeTool`); applied whatever the outcome says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<HookValue>,
}

/// What a hook decides. Nothing here allows what the host would refuse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HookOutcome {
    Continue,
    Deny {
        reason: String,
    },
    /// A person must confirm.
    Ask {
        reason: String,
    },
    /// At `afterTool`: end the turn. At `stop`: run one more round.
    Block {
        reason: String,
    },
    /// At `submit` only: deliver the input to that session instead.
    Redirect {
        session: SessionId,
    },
}

/// What a hook changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HookValue {
    /// At `submit` only.
    Input { input: Input },
    /// At `beforeTool` only.
    Call { call: ToolCall },
}

/// Params of `hook/observe`: something happened; nothing is waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookObserveParams {
    /// The hook's id.
    pub id: String,
    pub site: HookSite,
    #[serde(flatten)]
    pub at: ObservePoint,
}

/// The points at which a hook is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "point", content = "payload", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[schemars(inline)]
pub enum ObservePoint {
    Turn {
        phase: Phase,
        turn: TurnId,
        #[serde(default)]
        items: Vec<Item>,
    },
    Compact {
        phase: Phase,
    },
    Session {
        phase: Phase,
    },
    Event {
        frame: Box<Frame>,
    },
}

/// Whether something begins or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    Start,
    End,
}

/// Params of the host service's `ask`: put a question to the person of a running tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AskParams {
    /// The `callId` of one of the caller's running tool calls.
    pub call: String,
    /// A `question`; other kinds are refused.
    pub question: InteractionKind,
}

/// Result of `ask`. A person's cancel is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AskResult {
    pub answer: Answer,
}

/// Params of the host service's `notice`: tell the person something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoticeParams {
    #[serde(default)]
    pub level: Level,
    pub message: String,
}

/// Result of `notice`: an empty object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoticeResult {}
