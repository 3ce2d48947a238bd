//! The loop behind `serve`: lines in, one task a request, one writer out.
//!
//! It owns the running calls and their cancels. It never waits for a call: it starts it and reads on.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{self, JoinError, JoinSet};
use tokio_util::codec::Decoder;
use tokio_util::sync::CancellationToken;

use super::context::Link;
use super::host::{Host, Waiting};
use super::{Plugin, QUEUE, ServeError, StreamContext, ToolContext};
use crate::calls::{
    CommandRunResult, CompactorCompactResult, ContextContributeResult, HookObserveParams, PROTOCOL,
    ServiceCallResult, ToolCallResult, methods, notifications,
};
use crate::handshake::{InitializeParams, InitializeResult};
use crate::jsonrpc::{
    Message, MessageError, Method, Notice, RequestId, RpcError, code, error_line, result_line,
};
use crate::ndjson::{Line, NdjsonCodec, Outline};
use crate::provider::ProviderStreamResult;

/// How long running calls may go on after the end of input, and again after their cancel. Both together stay below
/// the two seconds after which a host ends the process by force.
const GRACE: Duration = Duration::from_millis(500);

/// How many observations may wait for an author's slow hook.
const OBSERVATIONS: usize = 1024;

/// The longest line that is read. The host may send a message of any size (a model request holds whole pictures) and
/// is this process's parent, so nothing is gained by refusing its words.
const LINE_CAP: usize = usize::MAX;

/// Reads lines until the end of input or of interest.
pub(super) async fn read_lines<R>(mut reader: R, tx: mpsc::Sender<io::Result<Line>>)
where
    R: AsyncRead + Unpin,
{
    let mut codec = NdjsonCodec::new(LINE_CAP);
    let mut buffer = BytesMut::with_capacity(64 * 1024);
    loop {
        let read = reader.read_buf(&mut buffer).await;
        let ended = !matches!(read, Ok(1..));
        loop {
            let line = if ended { codec.decode_eof(&mut buffer) } else { codec.decode(&mut buffer) };
            let Some(line) = line.transpose() else { break };
            if tx.send(line).await.is_err() {
                return;
            }
        }
        match read {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                // The receiver may be gone; then nobody needs to hear it.
                let _ = tx.send(Err(error)).await;
                return;
            }
        }
    }
}

/// How many bytes of short lines are written at a time.
const TOGETHER: usize = 16 * 1024;

/// Writes queued lines until every sender is gone. Flushes when the queue is empty.
async fn write_lines<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: mpsc::Receiver<String>,
) -> io::Result<()> {
    let mut lines: Vec<String> = Vec::with_capacity(QUEUE);
    while queue.recv_many(&mut lines, QUEUE).await > 0 {
        // One write for all of them; a large line is not copied.
        let mut waiting = String::new();
        for mut line in lines.drain(..) {
            line.push('\n');
            if waiting.len() + line.len() > TOGETHER {
                writer.write_all(waiting.as_bytes()).await?;
                waiting = line;
            } else {
                waiting.push_str(&line);
            }
        }
        writer.write_all(waiting.as_bytes()).await?;
        writer.flush().await?;
    }
    writer.shutdown().await
}

/// Serves until `lines` end, then lets the running calls end.
pub(super) async fn run<P, W>(
    plugin: P,
    mut lines: mpsc::Receiver<io::Result<Line>>,
    writer: W,
) -> Result<(), ServeError>
where
    P: Plugin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (output, queue) = mpsc::channel(QUEUE);
    let host = Host::new(&output);
    let waiting = host.waiting();
    plugin.connected(host);
    let writing = tokio::spawn(write_lines(writer, queue));
    let mut server = Server {
        plugin: Arc::new(plugin),
        output,
        tasks: JoinSet::new(),
        running: HashMap::new(),
        greeted: false,
        waiting: Arc::clone(&waiting),
        observations: None,
    };
    let mut read = Ok(());
    loop {
        tokio::select! {
            // First: when the writer is gone, more work would be for nobody.
            biased;
            () = server.output.closed() => break,
            Some(ended) = server.tasks.join_next_with_id() => server.end(ended),
            line = lines.recv() => match line {
                Some(Ok(line)) => server.line(line),
                Some(Err(source)) => {
                    read = Err(ServeError::Read { source });
                    break;
                }
                None => break,
            },
        }
    }
    // No response will come any more.
    waiting.end();
    server.finish().await;
    let written = writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    read.and(written.map_err(|source| ServeError::Write { source }))
}

/// What a cancel names.
#[derive(Debug, PartialEq)]
enum CallKey {
    Tool(String),
    Stream(String),
}

impl CallKey {
    /// Returns the name under which a request can be cancelled.
    fn of(method: &str, params: &Value) -> Option<Self> {
        let text = |key: &str| params.get(key)?.as_str().map(str::to_owned);
        match method {
            methods::CallTool::NAME => text("callId").map(Self::Tool),
            methods::StreamProvider::NAME => text("call").map(Self::Stream),
            _ => None,
        }
    }
}

struct Running {
    id: RequestId,
    key: Option<CallKey>,
    cancel: CancellationToken,
}

struct Server<P> {
    plugin: Arc<P>,
    output: mpsc::Sender<String>,
    tasks: JoinSet<()>,
    running: HashMap<task::Id, Running>,
    /// Whether `initialize` came.
    greeted: bool,
    /// The plugin's own calls.
    waiting: Arc<Waiting>,
    /// Leads to the task that observes, once there was something to observe.
    observations: Option<mpsc::Sender<HookObserveParams>>,
}

impl<P: Plugin> Server<P> {
    fn line(&mut self, line: Line) {
        let text = match line {
            Line::Text(text) => text,
            Line::NotUtf8 { lossy, outline: Outline { id, .. } } => {
                return self.skip(id, code::PARSE_ERROR, format!("a line that is not UTF-8: {lossy}"));
            }
            Line::TooLong { length, outline: Outline { id, .. } } => {
                return self.skip(id, code::PARSE_ERROR, format!("a line of {length} bytes"));
            }
        };
        let (text, message) = Message::parse_trusted(text);
        match message {
            Ok(Message::Request { id, method, params }) => self.request(id, method, params),
            Ok(Message::Notification { method, params }) => self.notification(&method, params),
            Ok(Message::Response { id, outcome }) => {
                if !self.waiting.answer(&id, outcome) {
                    warn(&format!("nothing waits for the response to {id}"));
                }
            }
            Err(error) => {
                let (id, code) = match &error {
                    MessageError::NotJson { .. } => (Outline::of(text.as_bytes()).id, code::PARSE_ERROR),
                    MessageError::NotMessage { id, .. } => (id.clone(), code::INVALID_REQUEST),
                };
                self.skip(id, code, error.to_string());
            }
        }
    }

    /// Passes over a line; whoever waits for its answer is told at once.
    fn skip(&mut self, id: Option<RequestId>, code: i64, reason: String) {
        warn(&format!("skipped {reason}"));
        let Some(id) = id else { return };
        let output = self.output.clone();
        let outcome = Err(RpcError::new(code, reason));
        self.tasks.spawn(async move {
            // A writer that is gone ends the loop; there is nobody to tell.
            let _ = output.send(Message::Response { id, outcome }.to_line()).await;
        });
    }

    fn request(&mut self, id: RequestId, method: String, params: Value) {
        let key = CallKey::of(&method, &params);
        let cancel = CancellationToken::new();
        let again = method == methods::Initialize::NAME && std::mem::replace(&mut self.greeted, true);
        let plugin = Arc::clone(&self.plugin);
        let link = Link { output: self.output.clone(), cancel: cancel.clone() };
        let running = Running { id: id.clone(), key, cancel };
        let handle = self.tasks.spawn(async move {
            let output = link.output.clone();
            let answered = if again {
                Err(RpcError::new(code::INVALID_REQUEST, "`initialize` came a second time"))
            } else {
                dispatch(&*plugin, &method, Asked { id: &id, params }, link).await
            };
            let line = answered.unwrap_or_else(|error| error_line(&id, &error));
            // A writer that is gone ends the loop; there is nobody to tell.
            let _ = output.send(line).await;
        });
        self.running.insert(handle.id(), running);
    }

    fn notification(&mut self, method: &str, params: Value) {
        if method == notifications::ObserveHook::NAME {
            return self.observe(params);
        }
        let text = |key: &str| params.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = match method {
            notifications::CancelTool::NAME => CallKey::Tool(text("callId")),
            notifications::CancelProvider::NAME => CallKey::Stream(text("call")),
            // A notification asks for nothing, so one from a newer host may pass.
            _ => return,
        };
        for running in self.running.values().filter(|running| running.key.as_ref() == Some(&key)) {
            running.cancel.cancel();
        }
    }

    /// Hands an observation to the task that takes one after the other; without room it is told and skipped.
    fn observe(&mut self, params: Value) {
        let params = match HookObserveParams::deserialize(params) {
            Ok(params) => params,
            Err(error) => return warn(&format!("skipped an observation that does not fit: {error}")),
        };
        let (plugin, tasks) = (&self.plugin, &mut self.tasks);
        let observations = self.observations.get_or_insert_with(|| {
            let (tx, rx) = mpsc::channel(OBSERVATIONS);
            tasks.spawn(observe_all(Arc::clone(plugin), rx));
            tx
        });
        if observations.try_send(params).is_err() {
            warn("skipped an observation: too many wait");
        }
    }

    /// Forgets a call that ended; one that panicked is answered here.
    fn end(&mut self, ended: Result<(task::Id, ()), JoinError>) {
        let (task, panicked) = match ended {
            Ok((task, ())) => (task, false),
            Err(error) => (error.id(), error.is_panic()),
        };
        let Some(running) = self.running.remove(&task) else { return };
        if panicked {
            let output = self.output.clone();
            let outcome = Err(RpcError::new(code::INTERNAL_ERROR, "the plugin panicked in this call"));
            self.tasks.spawn(async move {
                let _ = output.send(Message::Response { id: running.id, outcome }.to_line()).await;
            });
        }
    }

    /// Lets running calls end, cancels the rest, and drops what still runs.
    async fn finish(mut self) {
        // The observer ends after what waits for it.
        self.observations = None;
        self.drain().await;
        for running in self.running.values() {
            running.cancel.cancel();
        }
        self.drain().await;
    }

    /// Waits until no call runs, the writer is gone, or the grace is over.
    async fn drain(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        let mut over = alarm(GRACE);
        loop {
            tokio::select! {
                _ = &mut over => return,
                () = self.output.closed() => return,
                ended = self.tasks.join_next_with_id() => match ended {
                    Some(ended) => self.end(ended),
                    None => return,
                },
            }
        }
    }
}

/// Observes one after the other. A panic in one spoils no other.
async fn observe_all<P: Plugin>(plugin: Arc<P>, mut observations: mpsc::Receiver<HookObserveParams>) {
    while let Some(params) = observations.recv().await {
        let plugin = Arc::clone(&plugin);
        // A set of one: it ends the task when this function is dropped.
        let mut task = JoinSet::new();
        task.spawn(async move { plugin.observe_hook(params).await });
        if task.join_next().await.is_some_and(|ended| ended.is_err()) {
            warn("the plugin panicked in an observation");
        }
    }
}

/// Completes after `duration`. A thread, because an author's runtime may have no timer.
fn alarm(duration: Duration) -> oneshot::Receiver<()> {
    let (tx, rx) = oneshot::channel::<()>();
    // Without a thread the alarm rings at once: `tx` is dropped.
    let _ = std::thread::Builder::new().name("grace".to_owned()).spawn(move || {
        std::thread::sleep(duration);
        drop(tx);
    });
    rx
}

/// What a request holds beside its method.
struct Asked<'a> {
    id: &'a RequestId,
    params: Value,
}

/// Serves a request; returns the line of its result.
async fn dispatch<P: Plugin>(
    plugin: &P,
    method: &str,
    asked: Asked<'_>,
    link: Link,
) -> Result<String, RpcError> {
    match method {
        methods::Initialize::NAME => initialize(plugin, asked).await,
        methods::CallTool::NAME => {
            typed::<methods::CallTool, _>(asked, |params| async {
                let context = ToolContext { call: params.call_id.clone(), link };
                Ok(ToolCallResult { output: plugin.call_tool(params, context).await? })
            })
            .await
        }
        methods::RunCommand::NAME => {
            typed::<methods::RunCommand, _>(asked, |params| async {
                Ok(CommandRunResult { outcome: plugin.run_command(params).await? })
            })
            .await
        }
        methods::CompleteCommand::NAME => {
            typed::<methods::CompleteCommand, _>(asked, |params| plugin.complete_command(params)).await
        }
        methods::StreamProvider::NAME => {
            typed::<methods::StreamProvider, _>(asked, |params| async {
                let context = StreamContext { call: params.call.clone(), link };
                Ok(ProviderStreamResult { error: plugin.stream_provider(params, context).await.err() })
            })
            .await
        }
        _ => dispatch_rest(plugin, method, asked).await,
    }
}

/// Serves the methods that need no way out of their call.
async fn dispatch_rest<P: Plugin>(plugin: &P, method: &str, asked: Asked<'_>) -> Result<String, RpcError> {
    match method {
        methods::ContributeContext::NAME => {
            typed::<methods::ContributeContext, _>(asked, |params| async {
                Ok(ContextContributeResult { pieces: plugin.contribute_context(params).await? })
            })
            .await
        }
        methods::Compact::NAME => {
            typed::<methods::Compact, _>(asked, |params| async {
                Ok(CompactorCompactResult { compaction: plugin.compact(params).await? })
            })
            .await
        }
        methods::DecideHook::NAME => {
            typed::<methods::DecideHook, _>(asked, |params| plugin.decide_hook(params)).await
        }
        methods::CallService::NAME => {
            typed::<methods::CallService, _>(asked, |params| async {
                Ok(ServiceCallResult { result: plugin.call_service(params).await? })
            })
            .await
        }
        _ => Err(RpcError::new(code::METHOD_NOT_FOUND, format!("this plugin knows no method `{method}`"))),
    }
}

/// Compares the protocol numbers before anything else is read: another protocol may have other params.
async fn initialize<P: Plugin>(plugin: &P, asked: Asked<'_>) -> Result<String, RpcError> {
    if let Some(theirs) = asked.params.get("protocol").and_then(Value::as_u64)
        && theirs != u64::from(PROTOCOL)
    {
        let message =
            format!("this plugin speaks plugin protocol {PROTOCOL}, the host speaks protocol {theirs}");
        return Err(RpcError::new(code::INVALID_PARAMS, message));
    }
    typed::<methods::Initialize, _>(asked, |params: InitializeParams| async {
        let result = plugin.initialize(params).await?;
        Ok(InitializeResult { protocol: PROTOCOL, ..result })
    })
    .await
}

/// Reads a method's params, runs it, and returns the line of its result.
async fn typed<M, F>(asked: Asked<'_>, run: impl FnOnce(M::Params) -> F) -> Result<String, RpcError>
where
    M: Method,
    F: Future<Output = Result<M::Result, RpcError>>,
{
    let params = M::Params::deserialize(asked.params).map_err(|error| {
        RpcError::new(code::INVALID_PARAMS, format!("the params of `{}` do not fit: {error}", M::NAME))
    })?;
    Ok(result_line(asked.id, &run(params).await?))
}

/// Tells the host's log. A stderr that is gone changes nothing.
fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "bingo-plugin-sdk: {text}");
}
