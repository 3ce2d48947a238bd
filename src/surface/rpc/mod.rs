//! The RPC surface: one client's connection to the kernel, over any pair of line channels (kernel rules 5).
//!
//! Requests of one session run in order, each session on a lane of its own, so that a slow one delays nobody else;
//! reads leave their lane at once, so that an interrupt never waits behind them. Replies and events share one bounded
//! queue to the client; a client that does not read makes its own sessions lag.

mod dispatch;
mod methods;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::jsonrpc::{Message, MessageError, RequestId, RpcError, code};
use bingo_plugin_sdk::ndjson::{Line, MAX_LINE};
use bingo_plugin_sdk::rpc::METHODS;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};

use crate::kernel::Kernel;
use crate::schema::{self, Part};
use dispatch::{Dispatch, Job};
use methods::Connection;

/// Requests of one client that may be under way; past it its next line is not read.
const MAX_REQUESTS: usize = 256;
/// Lines that wait for a client to read them.
const MAX_OUTPUT: usize = 256;
/// How long requests that are under way may take to end once the input ended.
const FINISH_DEADLINE: Duration = Duration::from_secs(10);

/// Lines to one client.
pub(super) type Output = mpsc::Sender<String>;
/// Jobs under way, and what is known of each should it end in a panic.
#[derive(Default)]
struct Running {
    tasks: JoinSet<()>,
    jobs: HashMap<task::Id, (RequestId, Option<SessionId>)>,
}

impl Running {
    fn start(&mut self, connection: &Arc<Connection>, job: Job) {
        let known = (job.id.clone(), job.held_lane());
        let task = self.tasks.spawn(Arc::clone(connection).run(job));
        self.jobs.insert(task.id(), known);
    }

    /// Waits for a job's end and frees its lane; a job that panicked is answered. Returns false when none is under way.
    async fn next_end(&mut self, connection: &Connection, dispatch: &mut Dispatch) -> bool {
        let Some(ended) = self.tasks.join_next_with_id().await else { return false };
        let (id, panicked) = match &ended {
            Ok((id, ())) => (*id, false),
            Err(error) => (error.id(), true),
        };
        let Some((request, lane)) = self.jobs.remove(&id) else { return true };
        if panicked {
            let error = KernelError::new(ErrorCode::Internal, "the request ended in an error of the host");
            connection.reply(Some(request), Err(kernel_error(&error))).await;
        }
        dispatch.ended(lane.as_ref());
        true
    }
}

/// Returns both ends of a client's output queue.
pub(super) fn output() -> (Output, mpsc::Receiver<String>) {
    mpsc::channel(MAX_OUTPUT)
}

/// Serves one client until its input ends or it asks for the end.
pub(super) async fn serve(kernel: Kernel, mut lines: mpsc::Receiver<Line>, output: Output) {
    let connection = Arc::new(Connection::new(kernel, output));
    let mut dispatch = Dispatch::default();
    let mut running = Running::default();
    while !connection.is_shut_down() {
        let has_room = dispatch.len() < MAX_REQUESTS;
        tokio::select! {
            line = lines.recv(), if has_room => {
                let Some(line) = line else { break };
                if let Some(job) = accept(&connection, line).await {
                    dispatch.push(job);
                }
            }
            true = running.next_end(&connection, &mut dispatch) => {}
        }
        start_ready(&connection, &mut dispatch, &mut running);
        // The handshake decides about every line behind it.
        while !connection.is_initialized() && running.next_end(&connection, &mut dispatch).await {}
    }
    finish(&connection, dispatch, running).await;
}

fn start_ready(connection: &Arc<Connection>, dispatch: &mut Dispatch, running: &mut Running) {
    for job in dispatch.ready() {
        running.start(connection, job);
    }
}

/// Lets what is under way end, within a deadline; then nothing more is written.
async fn finish(connection: &Arc<Connection>, mut dispatch: Dispatch, mut running: Running) {
    let ended = async {
        while running.next_end(connection, &mut dispatch).await {
            start_ready(connection, &mut dispatch, &mut running);
        }
    };
    if tokio::time::timeout(FINISH_DEADLINE, ended).await.is_err() {
        tracing::warn!("some requests did not end in time after the client's input ended");
    }
    connection.detach_all();
}

/// Reads a line; answers it at once when it is no request that can run.
async fn accept(connection: &Connection, line: Line) -> Option<Job> {
    let (id, error) = match request(line) {
        Ok(None) => return None,
        Ok(Some((id, method, params))) => match check(connection, &method, params) {
            Ok(params) => return Some(Job { id, method, params }),
            Err(error) => (Some(id), error),
        },
        Err((id, error)) => (id, error),
    };
    connection.reply(id, Err(error)).await;
    None
}

type Request = (RequestId, String, Value);

/// Returns the request that a line is; notifications and stray responses are dropped (kernel rule 5.1.7).
fn request(line: Line) -> Result<Option<Request>, (Option<RequestId>, RpcError)> {
    let text = match line {
        Line::Text(text) => text,
        Line::NotUtf8 { outline, .. } => {
            return Err((outline.id, RpcError::new(code::PARSE_ERROR, "the line is not UTF-8")));
        }
        Line::TooLong { length, outline } => {
            let text = format!("the line is too long: {length} bytes, at most {MAX_LINE}");
            return Err((outline.id, RpcError::new(code::PARSE_ERROR, text)));
        }
    };
    match Message::parse_owned(text).1 {
        Ok(Message::Request { id, method, params }) => Ok(Some((id, method, params))),
        Ok(Message::Notification { .. } | Message::Response { .. }) => Ok(None),
        Err(error) => {
            let text = error.to_string();
            Err(match error {
                MessageError::NotJson { .. } => (None, RpcError::new(code::PARSE_ERROR, text)),
                MessageError::NotMessage { id, .. } => (id, RpcError::new(code::INVALID_REQUEST, text)),
            })
        }
    }
}

/// Checks order, method and params of a request; absent params count as `{}`.
fn check(connection: &Connection, method: &str, params: Value) -> Result<Value, RpcError> {
    if method != "initialize" && !connection.is_initialized() {
        let error = KernelError::new(ErrorCode::NotInitialized, "the first request must be `initialize`");
        return Err(kernel_error(&error));
    }
    if !METHODS.contains(&method) {
        return Err(RpcError::new(code::METHOD_NOT_FOUND, format!("there is no method `{method}`")));
    }
    let params = if params.is_null() { json!({}) } else { params };
    schema::rpc().check(method, Part::Params, &params).map_err(|fault| {
        let data = json!({ "pointer": fault.pointer, "expected": fault.expected, "got": fault.got });
        RpcError { data: Some(data), ..RpcError::new(code::INVALID_PARAMS, fault.to_string()) }
    })?;
    Ok(params)
}

/// Returns a kernel error as clients get it.
fn kernel_error(error: &KernelError) -> RpcError {
    let data = json!({ "code": error.code });
    RpcError { data: Some(data), ..RpcError::new(code::KERNEL_ERROR, error.message.clone()) }
}
