//! The plugin author's side of the wire: implement [`Plugin`], then [`serve_stdio`] it.
//!
//! This file holds the trait and the two ways to run it; `server` routes messages, `context` is what a running call
//! talks through, `host` is the way back. Every request runs on its own task, so a slow tool never keeps a cancel or another call waiting.

mod context;
mod host;
mod server;
#[cfg(test)]
mod tests;

use std::future::{Future, ready};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use self::context::{Cancelled, StreamContext, ToolContext};
pub use self::host::Host;
use crate::calls::{
    CommandCompleteParams, CommandCompleteResult, CommandOutcome, CommandRunParams, Compaction,
    CompactorCompactParams, ContextContributeParams, ContextPiece, HookDecideParams, HookDecideResult,
    HookObserveParams, ServiceCallParams, ToolCallParams,
};
use crate::handshake::{InitializeParams, InitializeResult};
use crate::item::ToolOutput;
use crate::jsonrpc::{RpcError, code};
use crate::provider::{ProviderError, ProviderStreamParams};

/// Messages that may wait between reader, calls and writer; a full queue makes the sender wait.
const QUEUE: usize = 64;

/// A plugin: what it offers, and what happens when the host asks for it.
///
/// Only [`initialize`](Self::initialize) must be written; each call that was not declared there is answered with an
/// error in words. Methods run side by side, so state of your own goes behind a lock or a channel.
pub trait Plugin: Send + Sync + 'static {
    /// Takes the way to the host, before anything else. Keep it to call services, to ask and to tell.
    fn connected(&self, host: Host) {
        drop(host);
    }

    /// Returns name, version and everything the plugin offers. Comes first, once.
    ///
    /// The protocol number was compared before and is filled in afterwards. An error refuses the host: nothing of the
    /// plugin is used, and the person reads the message.
    fn initialize(
        &self,
        params: InitializeParams,
    ) -> impl Future<Output = Result<InitializeResult, RpcError>> + Send;

    /// Runs a tool. What the model should read about a failure is [`ToolOutput::error`]; `Err` is for broken calls.
    fn call_tool(
        &self,
        params: ToolCallParams,
        context: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput, RpcError>> + Send {
        drop(context);
        ready(Err(unknown("tool", &params.name)))
    }

    /// Runs a command that a person typed.
    fn run_command(
        &self,
        params: CommandRunParams,
    ) -> impl Future<Output = Result<CommandOutcome, RpcError>> + Send {
        ready(Err(unknown("command", &params.name)))
    }

    /// Returns what could stand in the place of a command's arguments typed so far.
    fn complete_command(
        &self,
        params: CommandCompleteParams,
    ) -> impl Future<Output = Result<CommandCompleteResult, RpcError>> + Send {
        drop(params);
        ready(Ok(CommandCompleteResult { completions: Vec::new() }))
    }

    /// Streams a model's answer through `context`; returns when its last event was sent.
    fn stream_provider(
        &self,
        params: ProviderStreamParams,
        context: StreamContext,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send {
        drop(context);
        let message = format!("this plugin has no provider `{}`", params.id);
        ready(Err(ProviderError::Unsupported { message }))
    }

    /// Returns pieces of context. The host waits three seconds, then goes on without them.
    fn contribute_context(
        &self,
        params: ContextContributeParams,
    ) -> impl Future<Output = Result<Vec<ContextPiece>, RpcError>> + Send {
        ready(Err(unknown("contributor", &params.id)))
    }

    /// Shortens the context; counts only when `after` is smaller than `before`.
    fn compact(
        &self,
        params: CompactorCompactParams,
    ) -> impl Future<Output = Result<Compaction, RpcError>> + Send {
        ready(Err(unknown("compactor", &params.id)))
    }

    /// Decides at a point of a hook. Nothing allows what the host would refuse.
    fn decide_hook(
        &self,
        params: HookDecideParams,
    ) -> impl Future<Output = Result<HookDecideResult, RpcError>> + Send {
        ready(Err(unknown("hook", &params.id)))
    }

    /// Hears that something happened; one after the other, in the order it happened.
    fn observe_hook(&self, params: HookObserveParams) -> impl Future<Output = ()> + Send {
        drop(params);
        ready(())
    }

    /// Serves a call of a service that this plugin offers. It may come while calls of this plugin are open.
    fn call_service(
        &self,
        params: ServiceCallParams,
    ) -> impl Future<Output = Result<Value, RpcError>> + Send {
        ready(Err(unknown("service", &params.key)))
    }
}

fn unknown(what: &str, name: &str) -> RpcError {
    RpcError::new(code::INVALID_PARAMS, format!("this plugin has no {what} `{name}`"))
}

/// Why serving ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The host's messages cannot be read.
    #[error("cannot read from the host")]
    Read {
        #[source]
        source: io::Error,
    },
    /// Nothing can be written to the host any more.
    #[error("cannot write to the host")]
    Write {
        #[source]
        source: io::Error,
    },
}

/// Serves a plugin over a pair of byte streams until the reader ends.
///
/// Calls that still run then get half a second to answer, are cancelled, and get half a second more. Lines that are
/// no messages are told on stderr and skipped.
///
/// # Errors
/// When reading fails, or nothing can be written any more.
pub async fn serve<P, R, W>(plugin: P, reader: R, writer: W) -> Result<(), ServeError>
where
    P: Plugin,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (tx, lines) = mpsc::channel(QUEUE);
    // The set ends the reading task when this function returns or is dropped.
    let mut reading = JoinSet::new();
    reading.spawn(server::read_lines(reader, tx));
    in_a_task(server::run(plugin, lines, writer)).await
}

/// Runs the server as a task among the others. The future that a runtime blocks on costs a look at the I/O driver each time
/// it is woken, which would be twice a call.
async fn in_a_task(
    run: impl Future<Output = Result<(), ServeError>> + Send + 'static,
) -> Result<(), ServeError> {
    // Ends it when this is dropped.
    let mut task = JoinSet::new();
    task.spawn(run);
    match task.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Only a runtime that shuts down cancels it, and that polls nobody any more.
        _ => Ok(()),
    }
}

/// Serves a plugin over stdin and stdout until stdin is closed; `main` should return then.
///
/// Nothing else may write to stdout. The runtime needs its I/O driver (`enable_all`, as `#[tokio::main]` has it).
///
/// # Errors
/// When reading fails, or nothing can be written any more.
pub async fn serve_stdio<P: Plugin>(plugin: P) -> Result<(), ServeError> {
    let (tx, lines) = mpsc::channel(QUEUE);
    // The set ends the reading task when this function returns or is dropped.
    let mut reading = JoinSet::new();
    if let Some(stdin) = stdin_pipe() {
        reading.spawn(server::read_lines(stdin, tx));
    } else {
        let runtime = Handle::current();
        // tokio's own stdin would keep the runtime from ending while a read waits, so a plain thread reads.
        std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || runtime.block_on(server::read_lines(Blocking(io::stdin()), tx)))
            .map_err(|source| ServeError::Read { source })?;
    }
    match stdout_pipe() {
        Some(stdout) => in_a_task(server::run(plugin, lines, stdout)).await,
        None => in_a_task(server::run(plugin, lines, tokio::io::stdout())).await,
    }
}

/// Returns stdin as a pipe that the runtime waits for, if it is one: no other thread has to wake up for each line.
fn stdin_pipe() -> Option<pipe::Receiver> {
    pipe::Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned().ok()?).ok()
}

/// Returns stdout so.
fn stdout_pipe() -> Option<pipe::Sender> {
    pipe::Sender::from_owned_fd(io::stdout().as_fd().try_clone_to_owned().ok()?).ok()
}

/// A blocking reader as an async one, for a thread that does nothing else.
struct Blocking<R>(R);

impl<R: Read + Unpin> AsyncRead for Blocking<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.0.read(buffer.initialize_unfilled())?;
        buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}
