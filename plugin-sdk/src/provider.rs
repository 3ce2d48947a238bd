//! Model providers: the request, the stream of events, and the ways it can fail.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::Usage;
use crate::handshake::ToolSpec;
use crate::item::{ContentPart, ProviderMetadata};

/// Params of `provider/stream`: stream the model's answer as `provider/delta` notifications, then respond.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStreamParams {
    /// The provider's id.
    pub id: String,
    /// Names this stream in deltas and cancels.
    pub call: String,
    pub request: ModelRequest,
}

/// Result of `provider/stream`, sent after the last delta. Without an error the stream closed cleanly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStreamResult {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ProviderError>,
}

/// Params of `provider/delta`: one event of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderDeltaParams {
    pub call: String,
    pub event: ModelEvent,
}

/// Params of `provider/cancel`: stop this stream; nothing more is read from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderCancelParams {
    pub call: String,
}

/// What a model is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelRequest {
    pub model: String,
    /// The most tokens the answer may have.
    pub max_tokens: u32,
    pub system: Vec<SystemBlock>,
    pub messages: Vec<Message>,
    pub tools: Vec<ToolSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Effort>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub provider_options: ProviderMetadata,
}

/// A block of the system prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SystemBlock {
    pub text: String,
    /// Says that the prompt up to here is worth caching.
    #[serde(default)]
    pub cache: bool,
}

/// A message of the conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub role: Role,
    pub parts: Vec<ContentPart>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub provider_options: ProviderMetadata,
}

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    User,
    Assistant,
}

/// How much a model shall reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Effort {
    Minimal,
    Low,
    Medium,
    High,
    XHigh,
    Max,
}

/// One event of a model's answer. Blocks are opened, grow and end under an id of the stream's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ModelEvent {
    StreamStart {
        #[serde(default)]
        warnings: Vec<String>,
    },
    ResponseMetadata {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    TextStart {
        id: String,
    },
    TextDelta {
        id: String,
        delta: String,
    },
    TextEnd {
        id: String,
    },
    ReasoningStart {
        id: String,
    },
    ReasoningDelta {
        id: String,
        delta: String,
    },
    ReasoningEnd {
        id: String,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        provider_metadata: ProviderMetadata,
    },
    ToolInputStart {
        id: String,
        name: String,
    },
    ToolInputDelta {
        id: String,
        delta: String,
    },
    ToolInputEnd {
        id: String,
    },
    /// The model calls a tool. `input` is JSON as text, not a nested object.
    ToolCall {
        id: String,
        name: String,
        input: String,
    },
    /// The answer is whole. A stream without it counts as broken and is asked again.
    Finish {
        usage: Usage,
        finish_reason: FinishReason,
    },
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinishReason {
    pub unified: UnifiedFinish,
    /// The provider's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
}

/// Why an answer ended, in one vocabulary for all providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UnifiedFinish {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
    Error,
    Other,
}

/// How a stream failed. `rateLimited`, `server`, `transport`, `stream` and `timeout` are tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ProviderError {
    /// The key is missing, wrong or expired.
    #[error("{message}")]
    Auth { message: String },
    /// Too many requests; `retryAfterMs` says when to come back.
    #[error("the provider limits the rate of requests")]
    RateLimited {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// The request was larger than the model's window.
    #[error("{message}")]
    ContextOverflow { message: String },
    /// The endpoint answered with this HTTP status.
    #[error("the provider answered with status {status}: {message}")]
    Server { status: u16, message: String },
    /// The endpoint refused the request as wrong.
    #[error("{message}")]
    Request { message: String },
    /// The endpoint could not be reached.
    #[error("{message}")]
    Transport { message: String },
    /// The answer broke off or could not be read.
    #[error("{message}")]
    Stream { message: String },
    /// Nothing came for too long.
    #[error("the provider sent nothing for too long")]
    Timeout,
    /// The request asks for what this provider cannot do.
    #[error("{message}")]
    Unsupported { message: String },
    /// The provider's settings are wrong.
    #[error("{message}")]
    Config { message: String },
}

/// What a model can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelCapabilities {
    /// Tokens of input and output together.
    pub context_window: u64,
    /// The most tokens of one answer.
    pub max_output: u64,
    #[serde(default)]
    pub images: bool,
    #[serde(default)]
    pub reasoning: bool,
    #[serde(default)]
    pub count_tokens: bool,
    #[serde(default)]
    pub caching: bool,
}
