//! The handshake: the first call to every process, which says what the plugin offers.
//!
//! Its deadline moves with each sign of life, because a first start may compile or download; an upper limit holds.

use std::time::Duration;

use bingo_plugin_sdk::calls::methods::Initialize;
use bingo_plugin_sdk::handshake::{InitializeParams, InitializeResult};
use tokio::time::{Instant, sleep_until};

use super::connection::{CallFailure, Connection};
use super::limits::words;
use super::log::Tail;

/// Why a process was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("it did not answer `initialize` and wrote nothing to stderr for {}", words(*after))]
    Silent { after: Duration },
    #[error("it did not answer `initialize` within {}, the limit of a first start", words(*after))]
    Slow { after: Duration },
    #[error("{failure}")]
    Call { failure: CallFailure },
}

/// Introduces the host and returns what the plugin declares.
pub(super) async fn shake(
    connection: &Connection,
    params: &InitializeParams,
    tail: &Tail,
) -> Result<InitializeResult, HandshakeError> {
    let limits = connection.limits();
    let started = Instant::now();
    let mut pending = connection.begin::<Initialize>(params).map_err(HandshakeError::from)?;
    let response = pending.response();
    tokio::pin!(response);
    loop {
        let silent = tail.touched() + limits.handshake;
        let slow = started + limits.first_start;
        tokio::select! {
            result = &mut response => return result.map_err(HandshakeError::from),
            () = sleep_until(silent.min(slow)) => {}
        }
        let now = Instant::now();
        if now >= slow {
            return Err(HandshakeError::Slow { after: limits.first_start });
        }
        if now >= tail.touched() + limits.handshake {
            return Err(HandshakeError::Silent { after: limits.handshake });
        }
    }
}

impl From<super::connection::CallError> for HandshakeError {
    fn from(error: super::connection::CallError) -> Self {
        Self::Call { failure: error.failure }
    }
}
