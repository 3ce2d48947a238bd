//! What a running call talks through: its notifications to the host, and the host's cancel.

use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::calls::{ToolProgressParams, notifications};
use crate::jsonrpc::{Notice, notification_line};
use crate::provider::{ModelEvent, ProviderDeltaParams, ProviderError};

/// The host no longer waits for this call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the call was cancelled")]
pub struct Cancelled;

/// So that a stream can end with `context.send(event).await?`; nobody reads the error of a cancelled stream.
impl From<Cancelled> for ProviderError {
    fn from(cancelled: Cancelled) -> Self {
        Self::Stream { message: cancelled.to_string() }
    }
}

/// A running tool call.
#[derive(Debug, Clone)]
pub struct ToolContext {
    pub(super) call: String,
    pub(super) link: Link,
}

impl ToolContext {
    /// Shows `tail` as the call's live line, in place of the last one.
    ///
    /// # Errors
    /// When the call was cancelled.
    pub async fn progress(&self, tail: impl Into<String>) -> Result<(), Cancelled> {
        let params = ToolProgressParams { call_id: self.call.clone(), tail: tail.into() };
        self.link.notify::<notifications::ToolProgress>(&params).await
    }

    /// Returns the name of this call, under which the person can be asked.
    pub fn call(&self) -> &str {
        &self.call
    }

    /// Waits until the host cancels the call. Race it against the work.
    pub async fn cancelled(&self) {
        self.link.cancel.cancelled().await;
    }

    /// Returns whether the host cancelled the call.
    pub fn is_cancelled(&self) -> bool {
        self.link.cancel.is_cancelled()
    }
}

/// A running stream of a model's answer.
#[derive(Debug, Clone)]
pub struct StreamContext {
    pub(super) call: String,
    pub(super) link: Link,
}

impl StreamContext {
    /// Sends the next event, in order.
    ///
    /// # Errors
    /// When the stream was cancelled; end it then.
    pub async fn send(&self, event: ModelEvent) -> Result<(), Cancelled> {
        let params = ProviderDeltaParams { call: self.call.clone(), event };
        self.link.notify::<notifications::ProviderDelta>(&params).await
    }

    /// Waits until the host cancels the stream. Race it against the work.
    pub async fn cancelled(&self) {
        self.link.cancel.cancelled().await;
    }

    /// Returns whether the host cancelled the stream.
    pub fn is_cancelled(&self) -> bool {
        self.link.cancel.is_cancelled()
    }
}

/// The way out of one call, and its cancel.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) output: mpsc::Sender<String>,
    pub(super) cancel: CancellationToken,
}

impl Link {
    /// Queues a notification; waits while the queue is full, but not past a cancel.
    async fn notify<N: Notice>(&self, params: &N::Params) -> Result<(), Cancelled> {
        let line = notification_line(N::NAME, params);
        tokio::select! {
            // The cancel first, so that nothing is sent after it.
            biased;
            () = self.cancel.cancelled() => Err(Cancelled),
            // A writer that is gone means that the whole loop ends; this call is about to be dropped.
            sent = self.output.send(line) => sent.map_err(|_| Cancelled),
        }
    }
}

/// Returns a wire value as JSON.
pub(super) fn to_value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("the wire's types have string keys and no serializer that fails")
}
