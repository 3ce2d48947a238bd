//! `provider/stream`: a plugin's model provider as the kernel sees it.

use bingo_plugin_sdk::calls::methods::StreamProvider;
use bingo_plugin_sdk::calls::notifications;
use bingo_plugin_sdk::handshake::ProviderSpec;
use bingo_plugin_sdk::provider::{
    ModelEvent, ModelRequest, ProviderCancelParams, ProviderError, ProviderStreamParams, ProviderStreamResult,
};
use tokio_util::sync::CancellationToken;

use crate::ports::{BoxFuture, CallContext, ModelStream, Provider};
use crate::supervisor::limits::clip;
use crate::supervisor::{CallError, CallFailure, Connection, PendingCall, StreamRoute, Unread};

/// A model provider of a plugin.
pub(super) struct PluginProvider {
    connection: Connection,
    spec: ProviderSpec,
}

impl PluginProvider {
    pub(super) fn new(connection: Connection, spec: ProviderSpec) -> Self {
        Self { connection, spec }
    }
}

impl Provider for PluginProvider {
    fn spec(&self) -> &ProviderSpec {
        &self.spec
    }

    fn is_gone(&self) -> bool {
        self.connection.is_closed()
    }

    fn stream(&self, context: CallContext, request: ModelRequest) -> Box<dyn ModelStream> {
        // The queue stands before the request is written, so that no event comes too early.
        let route = self.connection.open_stream();
        let params = ProviderStreamParams { id: self.spec.id.clone(), call: route.call.clone(), request };
        let begun = self.connection.begin::<StreamProvider>(&params);
        let (pending, end) = match begun {
            Ok(pending) => (Some(pending), None),
            Err(error) => (None, Some(End::Failed(provider_error(error)))),
        };
        Box::new(PluginStream {
            connection: self.connection.clone(),
            cancel: context.cancel,
            route,
            pending,
            end,
            failed: false,
        })
    }
}

/// One answer as it comes. Dropping it cancels it when it has not ended.
struct PluginStream {
    connection: Connection,
    cancel: CancellationToken,
    route: StreamRoute,
    /// Until the response came.
    pending: Option<PendingCall<StreamProvider>>,
    /// What comes after the events that are left.
    end: Option<End>,
    /// The queue's own failure was told.
    failed: bool,
}

enum End {
    Closed,
    Failed(ProviderError),
}

/// What woke a stream.
enum Woken {
    Unread,
    Response(Result<ProviderStreamResult, CallError>),
    Cancelled,
    Clock,
}

impl PluginStream {
    async fn advance(&mut self) -> Option<Result<ModelEvent, ProviderError>> {
        loop {
            if self.pending.is_some() && self.cancel.is_cancelled() {
                self.give_up(End::Closed);
                return None;
            }
            match self.route.queue.take() {
                Unread::Event(event) => return Some(Ok(event)),
                Unread::Failed(reason) if !self.failed => {
                    self.failed = true;
                    if let Some(pending) = &self.pending {
                        pending.spoilt(reason.clone());
                    }
                    let message = format!("{}: {reason}", self.connection.plugin());
                    // What breaks the schema once breaks it again: asking again is of no use.
                    self.give_up(End::Failed(ProviderError::Request { message }));
                }
                Unread::Failed(_) | Unread::Nothing => {}
            }
            match self.end.replace(End::Closed) {
                Some(End::Failed(error)) => return Some(Err(error)),
                Some(End::Closed) => return None,
                None => self.end = None,
            }
            match self.woken().await {
                Woken::Unread => {}
                Woken::Response(response) => {
                    self.pending = None;
                    self.end = Some(response.map_or_else(
                        |error| End::Failed(provider_error(error)),
                        |result| result.error.map_or(End::Closed, |error| End::Failed(clipped(error))),
                    ));
                }
                // The top of the loop sees it.
                Woken::Cancelled => {}
                Woken::Clock => self.check_clock(),
            }
        }
    }

    async fn woken(&mut self) -> Woken {
        let silence = self.connection.limits().stream_silence;
        let Self { connection, route, .. } = self;
        let Some(pending) = &mut self.pending else { return Woken::Clock };
        tokio::select! {
            biased;
            // First: an interrupt must not wait for a model that talks on.
            () = self.cancel.cancelled() => Woken::Cancelled,
            response = pending.response() => Woken::Response(response),
            () = route.queue.ready() => Woken::Unread,
            () = connection.clock().passed(|| route.queue.touched(), silence) => Woken::Clock,
        }
    }

    fn check_clock(&mut self) {
        let silence = self.connection.limits().stream_silence;
        if self.connection.clock().is_over(self.route.queue.touched(), silence) {
            if let Some(pending) = &self.pending {
                pending.late(silence);
            }
            self.give_up(End::Failed(ProviderError::Timeout));
        }
    }

    /// Ends the stream from this side; the plugin is told when it has got the request.
    fn give_up(&mut self, end: End) {
        if self.pending.take().is_some_and(PendingCall::withdraw) {
            let params = ProviderCancelParams { call: self.route.call.clone() };
            self.connection.cancel::<notifications::CancelProvider>(&params);
        }
        self.end = Some(end);
    }
}

impl ModelStream for PluginStream {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<ModelEvent, ProviderError>>> {
        Box::pin(self.advance())
    }
}

impl Drop for PluginStream {
    fn drop(&mut self) {
        self.give_up(End::Closed);
    }
}

/// Returns a plugin's own error with a message as long as a person may have to read.
fn clipped(mut error: ProviderError) -> ProviderError {
    match &mut error {
        ProviderError::Auth { message }
        | ProviderError::ContextOverflow { message }
        | ProviderError::Server { message, .. }
        | ProviderError::Request { message }
        | ProviderError::Transport { message }
        | ProviderError::Stream { message }
        | ProviderError::Unsupported { message }
        | ProviderError::Config { message } => *message = clip(std::mem::take(message)),
        ProviderError::RateLimited { .. } | ProviderError::Timeout => {}
    }
    error
}

/// A death is the transport's; everything else broke the stream.
fn provider_error(error: CallError) -> ProviderError {
    let message = error.to_string();
    match error.failure {
        CallFailure::Died { .. } | CallFailure::Busy { .. } => ProviderError::Transport { message },
        CallFailure::Result { .. } | CallFailure::Params { .. } | CallFailure::Unusable { .. } => {
            ProviderError::Request { message }
        }
        _ => ProviderError::Stream { message },
    }
}
