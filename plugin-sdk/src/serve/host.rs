//! The way from a plugin to its host, and through it to the services of other plugins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::context::to_value;
use crate::calls::{
    AskParams, AskResult, HOST_SERVICE, NoticeParams, ServiceCallParams, ServiceCallResult, methods,
};
use crate::interaction::{Answer, InteractionKind};
use crate::item::Level;
use crate::jsonrpc::{Message, Method, RequestId, RpcError, code};

/// The way to the host; clones are the same way. It may be kept and used until the plugin ends.
///
/// A plugin gets it in [`Plugin::connected`](super::Plugin::connected).
#[derive(Debug, Clone)]
pub struct Host {
    /// Weak, so that a kept handle does not keep the loop from ending.
    output: mpsc::WeakSender<String>,
    waiting: Arc<Waiting>,
}

impl Host {
    pub(super) fn new(output: &mpsc::Sender<String>) -> Self {
        Self { output: output.downgrade(), waiting: Arc::default() }
    }

    pub(super) fn waiting(&self) -> Arc<Waiting> {
        Arc::clone(&self.waiting)
    }

    /// Calls a method of the service that owns `key`, which may be this plugin's own.
    ///
    /// # Errors
    /// When nobody has the key, the service refuses or fails, or the host is gone; the message says which.
    pub async fn call_service(
        &self,
        key: impl Into<String>,
        method: impl Into<String>,
        params: impl Serialize,
    ) -> Result<Value, RpcError> {
        let call = ServiceCallParams { key: key.into(), method: method.into(), params: to_value(&params) };
        let output = self.output.upgrade().ok_or_else(gone)?;
        let pending = self.waiting.begin()?;
        let request = Message::Request {
            id: RequestId::Number(pending.id),
            method: methods::CallService::NAME.to_owned(),
            params: to_value(&call),
        };
        output.send(request.to_line()).await.map_err(|_| gone())?;
        // While it waits it must not hold the loop open.
        drop(output);
        let result: ServiceCallResult = typed(pending.response().await?)?;
        Ok(result.result)
    }

    /// Puts a question to the person for whom this plugin runs the tool call `call`. A person's cancel is an answer.
    ///
    /// # Errors
    /// When the call does not run, nobody can be asked, or `question` is no question.
    pub async fn ask(&self, call: impl Into<String>, question: InteractionKind) -> Result<Answer, RpcError> {
        let params = AskParams { call: call.into(), question };
        let result: AskResult = typed(self.call_service(HOST_SERVICE, "ask", params).await?)?;
        Ok(result.answer)
    }

    /// Tells the person something.
    ///
    /// # Errors
    /// When the host is gone.
    pub async fn notice(&self, level: Level, message: impl Into<String>) -> Result<(), RpcError> {
        let params = NoticeParams { level, message: message.into() };
        self.call_service(HOST_SERVICE, "notice", params).await.map(drop)
    }
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, RpcError> {
    serde_json::from_value(value).map_err(|error| {
        RpcError::new(code::INTERNAL_ERROR, format!("the host's answer does not fit: {error}"))
    })
}

fn gone() -> RpcError {
    RpcError::new(code::INTERNAL_ERROR, "the host is gone")
}

type Reply = Result<Value, RpcError>;

/// Calls of the plugin that wait for the host's response.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: i64,
    calls: HashMap<i64, oneshot::Sender<Reply>>,
    ended: bool,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>) -> Result<Pending, RpcError> {
        let (tx, response) = oneshot::channel();
        let mut state = self.lock();
        if state.ended {
            return Err(gone());
        }
        state.last += 1;
        let id = state.last;
        state.calls.insert(id, tx);
        Ok(Pending { id, response, waiting: Arc::clone(self) })
    }

    /// Hands a response over. Returns false when nobody waits for it.
    pub(super) fn answer(&self, id: &RequestId, outcome: Reply) -> bool {
        let RequestId::Number(number) = id else { return false };
        let Some(call) = self.lock().calls.remove(number) else { return false };
        // A caller that left is normal.
        let _ = call.send(outcome);
        true
    }

    /// Fails every call that waits, and every later one.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        drop(calls);
    }
}

/// A call that waits; dropping it stops the waiting.
struct Pending {
    id: i64,
    response: oneshot::Receiver<Reply>,
    waiting: Arc<Waiting>,
}

impl Pending {
    async fn response(mut self) -> Reply {
        (&mut self.response).await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.waiting.lock().calls.remove(&self.id);
    }
}
