//! Interactions: questions that wait for a person, and the answers they take.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{InteractionId, ItemId, SessionId, TurnId};

/// A question that waits for a person. The first valid answer closes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Interaction {
    pub id: InteractionId,
    pub session: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The item it is about, such as the tool call that wants permission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<ItemId>,
    /// RFC 3339, UTC.
    pub opened_at: String,
    /// Answers given with the keyboard before this time are refused `NOT_READY`, so that nobody answers by typing on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard_until: Option<String>,
    /// RFC 3339, UTC: when it closes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    pub kind: InteractionKind,
    /// The only kinds of answer it accepts.
    pub answers: Vec<AnswerSpec>,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum InteractionKind {
    /// May this tool run?
    Permission {
        tool: String,
        /// One line that says what it would do.
        summary: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preview: Option<Preview>,
        /// The rule an `allowSession` answer installs; absent when there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_scope: Option<String>,
    },
    /// A question of a plugin.
    Question {
        question: String,
        /// A short word shown before the question.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        header: Option<String>,
        options: Vec<QuestionOption>,
        /// Says that words of one's own are an answer too.
        #[serde(default)]
        free_text: bool,
        /// Says that several options may be chosen.
        #[serde(default)]
        multi: bool,
    },
    /// Shall this be done?
    Confirm { title: String, detail: String },
    /// A provider wants a login.
    Login { provider: String, flow: LoginFlow },
}

/// One option of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuestionOption {
    /// What a `choice` answer names.
    pub id: String,
    pub label: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// What a permitted call would do, shown before the decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Preview {
    Diff { unified: String },
    Command { command: String, cwd: String },
    Url { url: String },
}

/// How a login goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LoginFlow {
    /// Open this address and come back.
    Browser { url: String },
    /// Open this address on any device and enter the code.
    Device { url: String, code: String },
    /// Paste a key.
    Paste,
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Answer {
    AllowOnce,
    /// Allow this and what `scope` covers, until the session ends. `scope` is the one that was offered.
    AllowSession {
        scope: String,
    },
    Deny {
        /// Words for the model.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feedback: Option<String>,
    },
    /// The ids of the chosen options.
    Choice {
        ids: Vec<String>,
    },
    Text {
        text: String,
    },
    Confirm,
    Cancel,
}

impl Answer {
    /// Returns the kind of this answer.
    pub fn spec(&self) -> AnswerSpec {
        match self {
            Self::AllowOnce => AnswerSpec::AllowOnce,
            Self::AllowSession { .. } => AnswerSpec::AllowSession,
            Self::Deny { .. } => AnswerSpec::Deny,
            Self::Choice { .. } => AnswerSpec::Choice,
            Self::Text { .. } => AnswerSpec::Text,
            Self::Confirm => AnswerSpec::Confirm,
            Self::Cancel => AnswerSpec::Cancel,
        }
    }
}

/// A kind of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AnswerSpec {
    AllowOnce,
    AllowSession,
    Deny,
    Choice,
    Text,
    Confirm,
    Cancel,
}

/// Who closed an interaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ResolvedBy {
    /// A frontend, as it named itself.
    Client {
        name: String,
        surface: String,
    },
    Kernel,
    Policy,
}
