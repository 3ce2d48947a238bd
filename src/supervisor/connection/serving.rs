//! What a plugin calls: refused, answered at once, or served on a task of its own.
//!
//! The layer above knows the services and implements [`Incoming`]. The reader hands a call over and reads on; how many
//! are served at a time is bounded, and past it the plugin is told that the host is busy.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use bingo_plugin_sdk::calls::{HOST_SERVICE, ServiceCallParams, ServiceCallResult, methods};
use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::jsonrpc::{Message, Method, RequestId, RpcError, code};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::calls::{ProgressRoute, Route};
use super::metrics::Account;
use super::strays::Stray;
use super::{Connection, Shared, reader};
use crate::ports::{Asker, BoxFuture, Notice};
use crate::supervisor::limits::clip;

/// Serves what plugins call.
pub trait Incoming: Send + Sync {
    /// Serves a call of the plugin at the other end of `caller`. Must return at once.
    fn serve(&self, caller: &Connection, call: ServiceCallParams) -> Served;
}

/// How a call is served.
pub enum Served {
    /// It is answered here.
    Now(Result<Value, RpcError>),
    /// It takes time.
    Later(BoxFuture<'static, Result<Value, RpcError>>),
}

impl Served {
    /// Refuses a call with a code and a reason.
    pub(crate) fn refused(code: i64, reason: impl Into<String>) -> Self {
        Self::Now(Err(RpcError::new(code, reason)))
    }
}

/// Where the one who serves is put, after the connections know the place. It is not kept alive by it.
#[derive(Clone, Default)]
pub(crate) struct IncomingSlot(Arc<OnceLock<Weak<dyn Incoming>>>);

impl IncomingSlot {
    /// Puts it there; only the first one counts.
    pub(crate) fn set(&self, incoming: &Arc<dyn Incoming>) {
        // A second one is a mistake of the caller that harms nothing.
        let _ = self.0.set(Arc::downgrade(incoming));
    }

    fn get(&self) -> Option<Arc<dyn Incoming>> {
        self.0.get()?.upgrade()
    }
}

impl Shared {
    /// Takes a request of the plugin.
    pub(super) fn take_request(self: &Arc<Self>, id: RequestId, method: &str, params: Value) {
        let account = (method == methods::CallService::NAME).then(|| self.counters.served());
        match self.incoming_call(method, params).map(|call| self.serve(call)) {
            Ok(Served::Now(outcome)) => self.answer_call(id, outcome, account),
            Ok(Served::Later(future)) => self.serve_later(id, future, account),
            // The plugin is answered; of what can never be right its author is told too.
            Err(error) if matches!(error.code, code::METHOD_NOT_FOUND | code::INVALID_PARAMS) => {
                self.strays.note(Stray::Request, &error.message);
                self.send_answer(id, Err(error), account);
            }
            Err(error) => self.answer_call(id, Err(error), account),
        }
    }

    fn incoming_call(&self, method: &str, params: Value) -> Result<ServiceCallParams, RpcError> {
        if method != methods::CallService::NAME {
            let text = format!("a plugin may call `service/call` only, not `{method}`");
            return Err(RpcError::new(code::METHOD_NOT_FOUND, text));
        }
        let call: ServiceCallParams =
            reader::typed(method, params).map_err(|reason| RpcError::new(code::INVALID_PARAMS, reason))?;
        let early = !self.shaken.load(Ordering::Acquire);
        if early && (call.key.as_str(), call.method.as_str()) != (HOST_SERVICE, "notice") {
            let text = format!(
                "until it has answered `initialize`, a plugin may call `notice` of `{HOST_SERVICE}` only"
            );
            return Err(RpcError::new(code::INTERNAL_ERROR, text));
        }
        Ok(call)
    }

    fn serve(self: &Arc<Self>, call: ServiceCallParams) -> Served {
        match self.peer.incoming.get() {
            Some(incoming) => incoming.serve(&Connection { shared: Arc::clone(self) }, call),
            None => Served::refused(code::INTERNAL_ERROR, "the host serves no calls now"),
        }
    }

    fn serve_later(
        self: &Arc<Self>,
        id: RequestId,
        future: BoxFuture<'static, Result<Value, RpcError>>,
        account: Option<Account>,
    ) {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            let most = self.peer.limits.serving;
            let text = format!("the host is busy: {most} calls of this plugin are being served");
            return self.answer_call(id, Err(RpcError::new(code::INTERNAL_ERROR, text)), account);
        };
        let shared = Arc::clone(self);
        // It ends with the connection: `closed` is cancelled then.
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shared.closed.cancelled() => {}
                outcome = future => shared.answer_call(id, outcome, account),
            }
            drop(permit);
        });
    }

    /// Answers a call; one that failed was of no use, at once or later.
    fn answer_call(&self, id: RequestId, outcome: Result<Value, RpcError>, account: Option<Account>) {
        if outcome.is_err() {
            self.strays.waste();
        }
        self.send_answer(id, outcome, account);
    }

    fn send_answer(&self, id: RequestId, outcome: Result<Value, RpcError>, account: Option<Account>) {
        if let Some(account) = account {
            account.served(&outcome);
        }
        self.answer(id, outcome.map(nested));
    }

    pub(super) fn answer(&self, id: RequestId, outcome: Result<Value, RpcError>) {
        let line = Message::Response { id: id.clone(), outcome }.to_line();
        let Err(full) = self.outbox.push_now(line, None) else { return };
        // Words of refusal are short; room is kept for them, so that a caller that reads again is not left waiting.
        let text = format!("the answer found no room: {} bytes wait for the plugin to read", full.queued);
        let refusal = Message::Response { id, outcome: Err(RpcError::new(code::INTERNAL_ERROR, text)) };
        if self.outbox.push_reserved(refusal.to_line()).is_err() {
            self.strays.note(Stray::Unanswered, "the queue to it is full");
        }
    }
}

/// Wraps what a service returned as it goes over the wire.
fn nested(result: Value) -> Value {
    serde_json::to_value(ServiceCallResult { result }).unwrap_or_default()
}

impl Connection {
    /// Returns the tool call of this name that the plugin runs now.
    pub(crate) fn running_tool(&self, call_id: &str) -> Option<RunningTool> {
        match self.shared.calls.running_tool(call_id) {
            Route::Found(route) => Some(RunningTool { shared: Arc::clone(&self.shared), route }),
            Route::Ended | Route::Unknown => None,
        }
    }

    /// Says that a service call of the plugin is open, until the guard is dropped: its tools are not idle then.
    pub(crate) fn open_call(&self) -> OpenCall {
        self.shared.calling.enter();
        OpenCall { shared: Arc::clone(&self.shared) }
    }

    /// Returns how many questions of the plugin wait for a person.
    pub(crate) fn asking(&self) -> watch::Receiver<usize> {
        self.shared.asking.subscribe()
    }

    /// Shows a remark of the plugin to the person; too many within a minute are counted only.
    pub(crate) fn tell(&self, level: Level, message: &str) {
        let text = format!("{}: {}", self.shared.peer.plugin, clip(message.to_owned()));
        if !self.shared.remarks.tell(Notice { level, code: "PLUGIN_NOTICE", text }) {
            self.shared.strays.waste();
        }
    }
}

/// The most questions of one tool call.
pub(crate) const MAX_ASKS: u32 = 100;

/// A tool call that runs.
pub(crate) struct RunningTool {
    shared: Arc<Shared>,
    route: Arc<ProgressRoute>,
}

impl RunningTool {
    /// Returns who asks the person of this call, if anybody can.
    pub(crate) fn asker(&self) -> Option<Arc<dyn Asker>> {
        self.route.asker.clone()
    }

    /// Returns what is cancelled at the end of the call.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.route.ended.clone()
    }

    /// Says that a question of the call is open, until the guard is dropped; nothing when it asked too many.
    pub(crate) fn open_ask(&self) -> Option<OpenAsk> {
        if self.route.asked.fetch_add(1, Ordering::Relaxed) >= MAX_ASKS {
            return None;
        }
        self.shared.asking.enter();
        self.route.asks.enter();
        Some(OpenAsk { shared: Arc::clone(&self.shared), route: Arc::clone(&self.route) })
    }
}

/// A question that waits for a person.
pub(crate) struct OpenAsk {
    shared: Arc<Shared>,
    route: Arc<ProgressRoute>,
}

impl Drop for OpenAsk {
    fn drop(&mut self) {
        // The clock of the tool starts anew before it is looked at.
        self.route.touch();
        self.route.asks.leave();
        self.shared.asking.leave();
    }
}

/// A service call that a plugin made and that is not answered.
pub(crate) struct OpenCall {
    shared: Arc<Shared>,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        // The clocks stood still from the first of calls that overlap to the last, no more: else a tool that hangs would
        // live for as long as its plugin calls anything.
        self.shared.calling.leave_with(|open| self.shared.calls.shift_tools(open));
    }
}
