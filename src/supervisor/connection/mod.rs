//! The connection with one process of a plugin: bytes to checked messages, and calls with their answers.
//!
//! It knows no process: it works over any pair of byte streams and is told the reason when the plugin is gone, and whose
//! figures to show beside its own. Every
//! message is checked against the schema in both directions. The reader (`reader.rs`) never waits for a consumer, and
//! callers never wait for the writer (`outbox/`).

mod calls;
mod clock;
mod delta;
mod error;
mod gauge;
mod histogram;
mod huge;
mod metrics;
mod outbox;
mod pending;
mod reader;
mod remarks;
mod serving;
mod strays;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bingo_plugin_sdk::ids::{Generation, PluginName};
use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::jsonrpc::{Message, Method, Notice as WireNotice};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::calls::{Calls, ProgressRoute, Waiting};
pub(crate) use self::clock::Clock;
pub use self::error::{CallError, CallFailure, Sent};
use self::gauge::Gauge;
use self::metrics::{Counters, Metrics};
use self::outbox::{Mark, Outbox};
pub(crate) use self::pending::{PendingCall, StreamRoute, ToolRoute};
use self::remarks::Remarks;
pub use self::serving::{Incoming, Served};
pub(crate) use self::serving::{IncomingSlot, MAX_ASKS};
use self::strays::Strays;
pub(crate) use self::stream::{StreamQueue, Unread};
use super::guard::Vitals;
use super::limits::Limits;
use crate::ports::{Asker, Notice, Notices, ProgressSink};
use crate::schema::{self, Part};

/// Who is at the other end, and what holds for it.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) plugin: PluginName,
    pub(crate) generation: Generation,
    pub(crate) limits: Arc<Limits>,
    /// Takes the silence of its hooks as a refusal.
    pub(crate) deny_unanswered: bool,
    /// Who serves what the plugin calls.
    pub(crate) incoming: IncomingSlot,
    pub(crate) notices: Arc<dyn Notices>,
}

/// A handle on the connection; clones are the same connection.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    peer: Peer,
    calls: Calls,
    outbox: Arc<Outbox>,
    counters: Arc<Counters>,
    clock: Clock,
    strays: Strays,
    remarks: Remarks,
    /// The plugin has answered the handshake.
    shaken: AtomicBool,
    /// Its calls that may still be served.
    permits: Arc<Semaphore>,
    /// Its own service calls that are open.
    calling: Gauge,
    /// Its questions that wait for a person.
    asking: Gauge,
    /// Cancelled when it is closed.
    closed: CancellationToken,
}

/// The two tasks of a connection; they end when this is dropped, and the plugin's input with them.
pub(crate) struct Tasks {
    /// Reads for as long as this lives.
    _reader: AbortOnDropHandle<()>,
    /// Cancelled at the end of the plugin's output.
    pub(crate) output_ended: CancellationToken,
    _writer: AbortOnDropHandle<()>,
    outbox: Arc<Outbox>,
    /// Cancelled when the plugin takes no more input.
    pub(crate) input_failed: CancellationToken,
}

impl Tasks {
    /// Closes the plugin's input at once.
    pub(crate) fn hang_up(&self) {
        self.outbox.hang_up();
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl Connection {
    /// Starts to read and write.
    pub(crate) fn open(
        peer: Peer,
        reader: impl AsyncRead + Unpin + Send + 'static,
        writer: impl AsyncWrite + Unpin + Send + 'static,
    ) -> (Self, Tasks) {
        let outbox = Arc::new(Outbox::new(peer.limits.queued, Box::new(writer)));
        let counters = Arc::new(Counters::default());
        let (plugin, notices) = (&peer.plugin, &peer.notices);
        let shared = Arc::new(Shared {
            calls: Calls::new(peer.plugin.clone()),
            outbox: Arc::clone(&outbox),
            strays: Strays::new(plugin.clone(), Arc::clone(notices), Arc::clone(&counters)),
            counters,
            clock: Clock::new(plugin.clone(), Arc::clone(notices)),
            remarks: Remarks::new(plugin.clone(), Arc::clone(notices), peer.limits.notices),
            shaken: AtomicBool::new(false),
            permits: Arc::new(Semaphore::new(peer.limits.serving)),
            calling: Gauge::default(),
            asking: Gauge::default(),
            closed: CancellationToken::new(),
            peer,
        });
        let output_ended = CancellationToken::new();
        let (told, reading) = (output_ended.clone().drop_guard(), reader::read(Arc::clone(&shared), reader));
        let reader = tokio::spawn(async move {
            reading.await;
            drop(told);
        });
        let input_failed = CancellationToken::new();
        let (failed, relieved) = (input_failed.clone(), Arc::clone(&shared));
        let writing = outbox::write(Arc::clone(&outbox), move |dropped| relieved.tell_dropped(dropped));
        let writer = tokio::spawn(async move {
            if let Err(error) = writing.await {
                tracing::debug!(%error, "a plugin takes no more input");
                failed.cancel();
            }
        });
        let tasks = Tasks {
            _reader: AbortOnDropHandle::new(reader),
            output_ended,
            _writer: AbortOnDropHandle::new(writer),
            outbox,
            input_failed,
        };
        (Self { shared }, tasks)
    }

    /// Returns the name of the plugin.
    pub fn plugin(&self) -> &PluginName {
        &self.shared.peer.plugin
    }

    /// Returns the number of its process.
    pub fn generation(&self) -> Generation {
        self.shared.peer.generation
    }

    /// Returns what limits hold for the plugin.
    pub fn limits(&self) -> &Limits {
        &self.shared.peer.limits
    }

    /// Returns whether the silence of its hooks counts as a refusal.
    pub(crate) fn denies_unanswered(&self) -> bool {
        self.shared.peer.deny_unanswered
    }

    /// Leaves a remark about the plugin.
    pub(crate) fn warn(&self, code: &'static str, text: String) {
        self.shared.peer.notices.post(Notice { level: Level::Warn, code, text });
    }

    /// Does as if the handshake were done.
    #[cfg(test)]
    pub(crate) fn skip_handshake(&self) {
        self.shared.shaken.store(true, std::sync::atomic::Ordering::Release);
    }

    /// Lets `incoming` serve what the plugin calls.
    #[cfg(test)]
    pub(crate) fn serve_by(&self, incoming: &Arc<dyn Incoming>) {
        self.shared.peer.incoming.set(incoming);
    }

    /// Returns how many observations were dropped because the plugin did not read.
    pub fn dropped_observations(&self) -> u64 {
        self.shared.outbox.dropped()
    }

    /// Returns the clock of its deadlines.
    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Says which process is at the other end, for its figures and for whether a debugger is attached to it.
    pub(super) fn name_process(&self, vitals: Arc<Vitals>) {
        self.shared.clock.name_process(vitals);
    }

    /// Returns what was counted so far, and how the process is now.
    pub(crate) fn metrics(&self) -> Metrics {
        let Shared { peer, counters, outbox, strays, clock, .. } = &*self.shared;
        let flow = outbox.flow();
        Metrics {
            generation: peer.generation.0,
            process: clock.process(),
            bytes_in: counters.bytes.get(),
            bytes_out: flow.bytes_out,
            messages_in: counters.messages_in(),
            messages_out: flow.messages_out,
            queued_bytes: flow.queued,
            calls: counters.calls(),
            received: counters.received(),
            strays: strays.noted(),
            dropped_observations: flow.dropped,
            last_fault: counters.last_fault(),
        }
    }

    /// Calls a method and waits for its result, at most `deadline` from now.
    ///
    /// # Errors
    /// When the call cannot be made, is refused, or gets no usable answer in time.
    pub async fn call<M: Method>(
        &self,
        params: &M::Params,
        deadline: Duration,
    ) -> Result<M::Result, CallError> {
        let begun = Instant::now();
        let mut pending = self.begin::<M>(params)?;
        tokio::select! {
            biased;
            response = pending.response() => response,
            () = self.clock().passed(|| begun, deadline) => Err(pending.late(deadline)),
        }
    }

    /// Sends a request without waiting. What belongs to the call must be registered before.
    pub(crate) fn begin<M: Method>(&self, params: &M::Params) -> Result<PendingCall<M>, CallError> {
        let shared = &self.shared;
        let account = shared.counters.call(M::NAME);
        let params = match shared.checked(M::NAME, params) {
            Ok(params) => params,
            Err(error) => {
                account.failed(&error);
                return Err(error);
            }
        };
        let id = shared.calls.number();
        let method = M::NAME.to_owned();
        let line = Message::Request { id: bingo_plugin_sdk::jsonrpc::RequestId::Number(id), method, params }
            .to_line();
        let (mark, (reply, response)) = (Arc::new(Mark::default()), oneshot::channel());
        let waiting = Waiting { method: M::NAME, mark: Arc::clone(&mark), reply, account };
        let alone = shared.calls.insert(id, waiting)? == 1;
        let pending = PendingCall::new(Arc::clone(shared), id, Arc::clone(&mark), response);
        let pushed = match alone {
            true => shared.outbox.push_now(line, Some(mark)),
            false => shared.outbox.push(line, Some(mark)),
        };
        match pushed {
            Ok(()) => Ok(pending),
            Err(full) => {
                Err(pending.end(Sent::Never, CallFailure::Busy { method: M::NAME, queued: full.queued }))
            }
        }
    }

    /// Sends a notification; when too much waits to be read, it is refused.
    ///
    /// # Errors
    /// When it breaks the schema, or the plugin is busy.
    pub fn notify<N: WireNotice>(&self, params: &N::Params) -> Result<(), CallError> {
        let line = self.notification::<N>(params)?;
        self.shared.outbox.push(line, None).map_err(|full| {
            self.shared.calls.error(Sent::Never, CallFailure::Busy { method: N::NAME, queued: full.queued })
        })
    }

    /// Sends what only informs. It leaves half of the queue to calls; without room it is dropped and counted.
    pub(crate) fn observe<N: WireNotice>(&self, params: &N::Params) {
        if self.shared.outbox.is_crowded() {
            return self.shared.outbox.drop_one();
        }
        match self.notification::<N>(params) {
            Ok(line) => self.shared.outbox.push_or_drop(line),
            Err(error) => tracing::warn!(%error, "an observation was not sent"),
        }
    }

    /// Sends the end of something that was let in: it finds room in a full queue.
    pub(crate) fn cancel<N: WireNotice>(&self, params: &N::Params) {
        match self.notification::<N>(params) {
            Ok(line) => self.shared.outbox.push_urgent(line),
            Err(error) => tracing::warn!(%error, "a cancel was not sent"),
        }
    }

    fn notification<N: WireNotice>(&self, params: &N::Params) -> Result<String, CallError> {
        let params = self.shared.checked(N::NAME, params)?;
        Ok(Message::Notification { method: N::NAME.to_owned(), params }.to_line())
    }

    /// Registers a tool call for its progress and its questions, before it is sent.
    pub(crate) fn watch_tool(
        &self,
        call_id: &str,
        sink: ProgressSink,
        asker: Option<Arc<dyn Asker>>,
    ) -> ToolRoute {
        let route = Arc::new(ProgressRoute::new(sink, asker));
        let call_id = self.shared.calls.add_tool(call_id, Arc::clone(&route));
        ToolRoute::new(Arc::clone(&self.shared), call_id, route)
    }

    /// Registers a stream for its events, before it is asked for.
    pub(crate) fn open_stream(&self) -> StreamRoute {
        let call = format!("call-{}", self.shared.calls.number());
        let queue = Arc::new(StreamQueue::new(self.limits().unread));
        self.shared.calls.add_stream(call.clone(), Arc::clone(&queue));
        StreamRoute::new(Arc::clone(&self.shared), call, queue)
    }

    /// Returns whether it ended: every later call fails.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.calls.is_dead()
    }

    /// Returns whether nothing is open in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        let shared = &self.shared;
        let serves = shared.permits.available_permits() < shared.peer.limits.serving;
        shared.calls.is_empty() && !serves && !shared.calling.is_open() && !shared.asking.is_open()
    }

    /// Fails everything that waits, and every later call, with one reason; closes the plugin's input when what is
    /// being written is written. What the plugin still says is dropped.
    pub(crate) fn close(&self, reason: &Arc<str>) {
        self.shared.calls.close(&self.shared.outbox, reason);
        self.shared.closed.cancel();
        if let Some(dropped) = self.shared.outbox.close() {
            self.shared.tell_dropped(dropped);
        }
        self.shared.strays.finish();
        self.shared.remarks.finish();
    }
}

impl Shared {
    fn tell_dropped(&self, dropped: u64) {
        let plugin = &self.peer.plugin;
        tracing::warn!(%plugin, dropped, "observations were dropped");
        let text = format!("{plugin}: it did not read, so {dropped} observations for its hooks were dropped");
        self.peer.notices.post(Notice { level: Level::Warn, code: "OBSERVATIONS_DROPPED", text });
    }

    /// Returns params as they go out, checked.
    fn checked<P: serde::Serialize>(&self, method: &'static str, params: &P) -> Result<Value, CallError> {
        let params = serde_json::to_value(params).expect("wire types have string keys");
        schema::plugin()
            .check(method, Part::Params, &params)
            .map_err(|fault| self.calls.error(Sent::Never, CallFailure::Params { fault: Box::new(fault) }))?;
        Ok(params)
    }
}
