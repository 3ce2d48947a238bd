//! How a call can fail, in words that name the plugin, and whether the plugin ever got it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::calls::PROTOCOL;
use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::jsonrpc::RpcError;

use crate::schema::Fault;
use crate::supervisor::limits::words;

/// How far a failed call came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The plugin never saw it: trying again is safe.
    Never,
    /// It was written, at least in part, and no answer came: it may have acted.
    NoAnswer,
    /// An answer came.
    Answered,
}

impl fmt::Display for Sent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Never => "never sent",
            Self::NoAnswer => "sent, no answer",
            Self::Answered => "answered",
        })
    }
}

/// A failed call of a plugin.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{plugin}: {failure}")]
pub struct CallError {
    pub plugin: PluginName,
    pub sent: Sent,
    pub failure: CallFailure,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CallFailure {
    #[error("{method} was not sent, the plugin is busy: {queued} bytes wait for it to read")]
    Busy { method: &'static str, queued: usize },
    /// The host's own params break the schema.
    #[error("the host's own {fault}; it was not sent")]
    Params { fault: Box<Fault> },
    /// An error response.
    #[error("{error}")]
    Refused { method: &'static str, error: RpcError },
    /// A response that breaks the schema.
    #[error("{fault}")]
    Result { fault: Box<Fault> },
    #[error("it speaks plugin protocol {theirs}, this host speaks {PROTOCOL}; both must be the same")]
    Protocol { theirs: u64 },
    /// A response that cannot be used at all.
    #[error("the response to {method} cannot be used: {reason}")]
    Unusable { method: &'static str, reason: String },
    #[error("{method} got no answer within {} ({sent})", words(*after))]
    Deadline { method: &'static str, after: Duration, sent: Sent },
    /// The plugin ended; `reason` is the same for all its calls.
    #[error("{method} failed ({sent}): {reason}")]
    Died { method: &'static str, sent: Sent, reason: Arc<str> },
}
