//! Items: the entries of a session's transcript, and the content they carry.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{IntentId, InteractionId, ItemId, TurnId};
use crate::view::View;

/// Facts a provider wants back unchanged, keyed by provider id, then by its own key.
pub type ProviderMetadata = BTreeMap<String, BTreeMap<String, Value>>;

/// One entry of the transcript. It appears, may change while it is unfinished, and ends in a terminal status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    pub id: ItemId,
    /// The turn it belongs to; absent for what was recorded outside a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The round within the turn, counted from 0.
    #[serde(default)]
    pub round: u32,
    pub status: ItemStatus,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// RFC 3339, UTC; present once the status is terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<String>,
    /// The client's intent behind a user item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<IntentId>,
    pub body: ItemBody,
    /// Occasional facts, such as `invalidInput` (why a tool's input could not be read as JSON).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, Value>,
}

/// Where an item stands. `completed`, `failed` and `interrupted` are terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ItemStatus {
    Pending,
    Running,
    Completed,
    Failed,
    Interrupted,
}

impl ItemStatus {
    /// Returns whether an item of this status changes no more.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Interrupted)
    }
}

/// What an item holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ItemBody {
    /// Words put to the model: a person's, another session's, or a contributor's.
    User { parts: Vec<ContentPart>, origin: Origin },
    /// The model's answer.
    Assistant { text: String },
    /// The model's reasoning, as far as the provider shows it.
    Reasoning {
        text: String,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        provider_metadata: ProviderMetadata,
    },
    /// A tool the model called.
    ToolCall {
        /// The model's name for this call; `toolUse` and `toolResult` parts refer to it.
        call_id: String,
        /// The tool's name as the model knows it.
        name: String,
        input: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<ToolOutput>,
        /// The live line of a running tool.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        progress: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
    },
    /// Something a command did.
    Action {
        name: String,
        #[serde(default)]
        args: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Value>,
    },
    /// Earlier items were replaced by a summary in what the model sees; sizes are in tokens.
    Compaction { summary: String, replaced: u32, before: u64, after: u64, duration_ms: u64 },
    /// The session went back to before `toTurn`.
    Rewind { to_turn: TurnId, dropped: u32 },
    /// A person interrupted here; `marker` is what the model is told.
    Interruption { marker: String },
    /// A remark of the host for the person.
    Notice { level: Level, code: String, text: String },
    /// A question a person answered.
    QuestionAnswer { interaction: InteractionId, question: String, answer: String },
    /// A person's decision about a tool call.
    PermissionReceipt {
        interaction: InteractionId,
        tool: String,
        decision: DecisionKind,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feedback: Option<String>,
    },
    /// A file or picture kept with the session.
    Asset {
        asset: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
}

/// A piece of a message to or from a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ContentPart {
    Text {
        text: String,
    },
    /// A picture; `data` is base64.
    Image {
        media_type: String,
        data: String,
    },
    /// A tool call the model made earlier.
    ToolUse {
        id: String,
        name: String,
        input: Value,
    },
    /// What that call returned.
    ToolResult {
        tool_use_id: String,
        parts: Vec<ContentPart>,
        #[serde(default)]
        is_error: bool,
    },
    /// Reasoning given back to the provider that made it.
    Reasoning {
        text: String,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        provider_metadata: ProviderMetadata,
    },
}

impl ContentPart {
    /// Returns a text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// Who said something, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// The kind of place: `print`, `chat`, `kernel`, `contributor:…`, `hook:…`, or a frontend's own word.
    pub surface: String,
    /// Who, when the surface knows several people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Which conversation of that surface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
}

impl Origin {
    /// Returns an origin that names only its surface.
    pub fn surface(surface: impl Into<String>) -> Self {
        Self { surface: surface.into(), principal: None, conversation: None }
    }
}

/// What a tool returns: `parts` for the model, and optionally a view for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolOutput {
    pub parts: Vec<ContentPart>,
    /// Says that the tool failed; the model is told so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// Shown to people instead of `parts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<View>,
}

impl ToolOutput {
    /// Returns a successful output of one text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self { parts: vec![ContentPart::text(text)], is_error: false, display: None }
    }

    /// Returns a failed output of one text part.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }
}

/// A tool call as hooks see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    pub call_id: String,
    /// The tool's name as the model knows it.
    pub name: String,
    pub input: Value,
}

/// How grave a notice is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    #[default]
    Info,
    Warn,
    Error,
}

/// What a person decided about a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DecisionKind {
    Allow,
    AllowSession,
    Deny,
}
