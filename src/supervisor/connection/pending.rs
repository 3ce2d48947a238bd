//! What a caller holds of a call under way: the call itself, and the registrations of what belongs to it. Dropping one ends
//! it.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::jsonrpc::Method;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Shared;
use super::calls::{ProgressRoute, Reply};
use super::error::{CallError, CallFailure, Sent};
use super::outbox::Mark;
use super::stream::StreamQueue;

/// A request that was let in. Dropping it stops the waiting; a request that still waits in the queue is taken back.
pub(crate) struct PendingCall<M> {
    shared: Arc<Shared>,
    id: i64,
    mark: Arc<Mark>,
    response: oneshot::Receiver<Reply>,
    method: PhantomData<fn() -> M>,
}

impl<M: Method> PendingCall<M> {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: i64,
        mark: Arc<Mark>,
        response: oneshot::Receiver<Reply>,
    ) -> Self {
        Self { shared, id, mark, response, method: PhantomData }
    }

    /// Waits for the response; only once.
    pub(crate) async fn response(&mut self) -> Result<M::Result, CallError> {
        let unusable = |reason| {
            self.shared.calls.error(Sent::Answered, CallFailure::Unusable { method: M::NAME, reason })
        };
        let value = match (&mut self.response).await {
            Ok(reply) => reply?,
            // Whoever takes the entry answers it, so its sender is gone unanswered only with the connection.
            Err(_) => return Err(unusable("the connection is gone".to_owned())),
        };
        serde_path_to_error::deserialize(value)
            .map_err(|error| unusable(format!("at {}: {}", error.path(), error.inner())))
    }

    /// Ends a call whose deadline passed; returns its error.
    pub(crate) fn late(&self, after: Duration) -> CallError {
        let sent = self.shared.outbox.give_up(&self.mark);
        self.end(sent, CallFailure::Deadline { method: M::NAME, after, sent })
    }

    /// Ends a call of which something else than its response is no use; returns its error.
    pub(crate) fn spoilt(&self, reason: String) -> CallError {
        self.end(self.shared.outbox.give_up(&self.mark), CallFailure::Unusable { method: M::NAME, reason })
    }

    /// Ends the call from this side. If its answer came at the same moment, that one is counted.
    pub(super) fn end(&self, sent: Sent, failure: CallFailure) -> CallError {
        let error = self.shared.calls.error(sent, failure);
        if let Some(waiting) = self.shared.calls.remove(self.id) {
            waiting.account.failed(&error);
        }
        error
    }

    /// Takes the request back when it was not sent yet; returns whether it was, so that the plugin must be told.
    pub(crate) fn withdraw(self) -> bool {
        self.shared.outbox.give_up(&self.mark) != Sent::Never
    }
}

impl<M> Drop for PendingCall<M> {
    fn drop(&mut self) {
        self.shared.calls.remove(self.id);
        self.shared.outbox.give_up(&self.mark);
    }
}

/// The registration of a running tool call; ends when dropped.
pub(crate) struct ToolRoute {
    shared: Arc<Shared>,
    /// Its name on the wire, unique on this connection.
    pub(crate) call_id: String,
    route: Arc<ProgressRoute>,
}

impl ToolRoute {
    pub(super) fn new(shared: Arc<Shared>, call_id: String, route: Arc<ProgressRoute>) -> Self {
        Self { shared, call_id, route }
    }

    /// Returns when the last live line came, or when the call began.
    pub(crate) fn touched(&self) -> Instant {
        self.route.touched()
    }

    /// Returns whether it waits for an answer: to a question of its own, or to a service call of its plugin.
    pub(crate) fn is_waiting(&self) -> bool {
        self.route.asks.is_open() || self.shared.calling.is_open()
    }

    /// Waits until it waits no more.
    pub(crate) async fn waited(&self) {
        while self.is_waiting() {
            self.route.asks.closed().await;
            self.shared.calling.closed().await;
        }
    }
}

impl Drop for ToolRoute {
    fn drop(&mut self) {
        self.shared.calls.end_tool(&self.call_id);
    }
}

/// The registration of a running stream; ends when dropped.
pub(crate) struct StreamRoute {
    shared: Arc<Shared>,
    /// Its name on the wire.
    pub(crate) call: String,
    pub(crate) queue: Arc<StreamQueue>,
}

impl StreamRoute {
    pub(super) fn new(shared: Arc<Shared>, call: String, queue: Arc<StreamQueue>) -> Self {
        Self { shared, call, queue }
    }
}

impl Drop for StreamRoute {
    fn drop(&mut self) {
        self.shared.calls.end_stream(&self.call);
    }
}
