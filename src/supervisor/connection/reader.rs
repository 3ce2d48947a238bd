//! The reader: takes each line, finds out whose it is, checks it, and hands it on at once.
//!
//! It waits for nobody, and reads a flood of what is no use slowly. A response that cannot be used fails its call; a
//! request gets an answer; the rest is a stray.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bingo_plugin_sdk::calls::{PROTOCOL, ToolProgressParams, methods, notifications};
use bingo_plugin_sdk::jsonrpc::{
    Message, MessageError, Method, Notice as WireNotice, RequestId, RpcError, code,
};
use bingo_plugin_sdk::ndjson::{Line, Outline};
use bingo_plugin_sdk::provider::ProviderDeltaParams;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::io::{AsyncRead, ReadBuf};

use super::calls::{Route, Waiting};
use super::error::{CallFailure, Sent};
use super::metrics::Counters;
use super::strays::Stray;
use super::{Shared, delta, huge};
use crate::schema::{self, Part};
use crate::supervisor::limits::clip;
use crate::supervisor::lines::Lines;

/// The most bytes of an error's `data`.
const MAX_DATA: usize = 64 * 1024;

/// What a stray costs beside its bytes, as if it were so many: at full speed a flood of them is a thousand in 100 ms.
const STRAY: u64 = 2560;

/// How long a live line stands at least for somebody to see it: one that takes its place sooner was of no use.
const SEEN: Duration = Duration::from_millis(10);

/// Reads to the end of the plugin's output.
pub(super) async fn read(shared: Arc<Shared>, reader: impl AsyncRead + Unpin) {
    let counted = Counted { reader, counters: Arc::clone(&shared.counters) };
    let mut lines = Lines::new(counted, shared.peer.limits.line);
    let mut noted = 0;
    while let Some(line) = lines.next().await {
        if shared.calls.is_dead() {
            // Read on all the same: a plugin that blocks on its output could not end by itself.
            tracing::debug!(plugin = %shared.peer.plugin, generation = %shared.peer.generation, "a late word was dropped");
            continue;
        }
        let before = shared.strays.useless();
        let length = match line {
            Line::Text(text) => {
                let length = text.len() as u64;
                shared.take_text(text, lines.have_ended()).await;
                length
            }
            other => {
                shared.take_bad_line(other);
                0
            }
        };
        // Some turn out to be no use later, such as a call that is served and fails: the bytes of this line are not theirs.
        let useless = shared.strays.useless();
        let own = if useless > before { length } else { 0 };
        if useless > noted {
            lines.waste((useless - noted) * STRAY + own);
            noted = useless;
        }
    }
}

impl Shared {
    async fn take_text(self: &Arc<Self>, text: String, is_last: bool) {
        if text.len() < huge::HUGE
            && let Some(delta) = delta::plain(&text)
        {
            self.counters.plain_deltas.add(1);
            return self.route_delta(delta);
        }
        let (text, message) = huge::parse(text).await;
        match message {
            Ok(message) => {
                // Not held while the answer is at work already: it may be huge.
                drop(text);
                self.counters.messages.add(1);
                self.take_message(message);
            }
            // The death of the plugin says more than the line that it did not finish.
            Err(MessageError::NotJson { cut: true, .. }) if is_last => self.strays.note(Stray::CutOff, &text),
            Err(error) => self.take_no_message(&text, error),
        }
    }

    fn take_no_message(&self, text: &str, error: MessageError) {
        match error {
            MessageError::NotJson { reason, cut } => self.take_broken(text, &reason, cut),
            MessageError::NotMessage { id, reason } => self.take_faulty(text, id, &reason),
        }
    }

    fn take_bad_line(&self, line: Line) {
        let limit = self.peer.limits.line;
        let (stray, example, reason, outline) = match line {
            Line::Text(_) => return,
            Line::NotUtf8 { lossy, outline } => {
                (Stray::NotUtf8, lossy, "its line is not UTF-8".to_owned(), outline)
            }
            Line::TooLong { length, outline } => {
                let words = format!("{length} bytes, the limit is {limit}");
                (Stray::TooLong, words, format!("its line has {length} bytes, the limit is {limit}"), outline)
            }
        };
        // Of a line that is too long the id may stand where nobody looked.
        let only =
            stray == Stray::TooLong && outline.is_object && !outline.has_method && outline.id.is_none();
        let told = self.blame(outline, code::INVALID_REQUEST, &reason) || only && self.fail_only(&reason);
        if !told {
            self.strays.note(stray, &example);
        }
    }

    /// Takes a line that is not JSON. One whose beginning can be read as a message is treated as that; anything else was
    /// printed.
    fn take_broken(&self, text: &str, reason: &str, cut: bool) {
        let outline = Outline::of(text.as_bytes());
        if !self.blame(outline, code::PARSE_ERROR, &format!("its line is not JSON: {reason}")) {
            self.strays.note(if cut { Stray::CutOff } else { Stray::Output }, text);
        }
    }

    /// Tells whoever waits for what a faulty line says that nothing will come of it: the plugin, when it is a request of
    /// its own, or the call that it answers. Returns false when the line is a stray too.
    fn blame(&self, outline: Outline, code: i64, reason: &str) -> bool {
        let Some(id) = outline.id else { return false };
        if !outline.has_method {
            return self.fail(&id, reason);
        }
        self.answer(id, Err(RpcError::new(code, reason)));
        false
    }

    /// Takes a line that is JSON and no message: a request is answered, a response fails its call.
    fn take_faulty(&self, text: &str, id: Option<RequestId>, reason: &str) {
        let Members { method, outcome } = serde_json::from_str(text).unwrap_or_default();
        let lonely = id.is_none() && !method && outcome;
        let outline = Outline { is_object: true, id, has_method: method };
        let told = self.blame(outline, code::INVALID_REQUEST, reason) || lonely && self.fail_only(reason);
        if !told {
            self.strays.note(Stray::NotMessage, text);
        }
    }

    /// Fails the call that an id means. Returns false when there is none.
    fn fail(&self, id: &RequestId, reason: &str) -> bool {
        self.calls.take(id).map(|(waiting, _)| self.fail_call(waiting, reason.to_owned())).is_some()
    }

    /// Fails the only call that waits. Returns false when there are none or several.
    fn fail_only(&self, reason: &str) -> bool {
        self.calls.take_only().map(|waiting| self.fail_call(waiting, reason.to_owned())).is_some()
    }

    fn fail_call(&self, waiting: Waiting, reason: String) {
        let failure = CallFailure::Unusable { method: waiting.method, reason };
        waiting.end(Err(self.calls.error(Sent::Answered, failure)));
    }

    fn take_message(self: &Arc<Self>, message: Message) {
        match message {
            Message::Response { id, outcome } => self.take_response(&id, outcome),
            Message::Request { id, method, params } => self.take_request(id, &method, params),
            Message::Notification { method, params } => match method.as_str() {
                notifications::ToolProgress::NAME => self.take_progress(params),
                notifications::ProviderDelta::NAME => self.take_delta(params),
                _ => self.strays.note(Stray::Notification, &method),
            },
        }
    }

    fn take_response(&self, id: &RequestId, outcome: Result<Value, RpcError>) {
        let Some((waiting, misspelt)) = self.calls.take(id) else {
            tracing::debug!(plugin = %self.peer.plugin, %id, "a response that nobody waits for was dropped");
            self.strays.waste();
            return;
        };
        if let Some(reason) = misspelt {
            return self.fail_call(waiting, reason);
        }
        let method = waiting.method;
        let reply = match outcome {
            Ok(value) => check_result(method, &value).map(|()| value),
            Err(error) => Err(CallFailure::Refused { method, error: bounded(error) }),
        };
        if method == methods::Initialize::NAME && reply.is_ok() {
            self.shaken.store(true, Ordering::Release);
        }
        waiting.end(reply.map_err(|failure| self.calls.error(Sent::Answered, failure)));
    }

    fn take_progress(&self, params: Value) {
        let progress: ToolProgressParams = match typed(notifications::ToolProgress::NAME, params) {
            Ok(progress) => progress,
            Err(reason) => {
                self.counters.faulty_progress.add(1);
                return self.strays.note(Stray::Notification, &reason);
            }
        };
        self.counters.progress.add(1);
        match self.calls.running_tool(&progress.call_id) {
            Route::Found(route) => {
                if route.touch() < SEEN {
                    self.strays.waste();
                }
                (route.sink)(progress.tail);
            }
            Route::Ended => {
                tracing::debug!(call = progress.call_id, "progress after the end was dropped");
                self.strays.waste();
            }
            Route::Unknown => {
                self.strays.note(Stray::UnknownCall, &unknown("tool/progress", "callId", &progress.call_id));
            }
        }
    }

    fn take_delta(&self, params: Value) {
        let call = params["call"].as_str().map(str::to_owned);
        let delta: Result<ProviderDeltaParams, String> = typed(notifications::ProviderDelta::NAME, params);
        let reason = match delta {
            Ok(delta) => {
                self.counters.other_deltas.add(1);
                return self.route_delta(delta);
            }
            Err(reason) => reason,
        };
        self.counters.faulty_deltas.add(1);
        match call.as_ref().map_or(Route::Unknown, |call| self.calls.stream(call)) {
            Route::Found(queue) => queue.fail(reason),
            Route::Ended => {
                tracing::debug!(call, "a delta after the end was dropped");
                self.strays.waste();
            }
            Route::Unknown => self.strays.note(Stray::Notification, &reason),
        }
    }

    fn route_delta(&self, delta: ProviderDeltaParams) {
        match self.calls.stream(&delta.call) {
            Route::Found(queue) => queue.push(delta.event),
            Route::Ended => {
                tracing::debug!(call = delta.call, "a delta after the end was dropped");
                self.strays.waste();
            }
            Route::Unknown => {
                self.strays.note(Stray::UnknownCall, &unknown("provider/delta", "call", &delta.call));
            }
        }
    }
}

/// Counts the bytes of a plugin's output: once a read, not once a line.
struct Counted<R> {
    reader: R,
    counters: Arc<Counters>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.reader).poll_read(context, buffer);
        self.counters.bytes.add((buffer.filled().len() - before) as u64);
        polled
    }
}

/// Which members a faulty message has. What it holds else is not read: it may be too much.
#[derive(Default)]
struct Members {
    method: bool,
    /// A result or an error.
    outcome: bool,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Member {
    Method,
    Result,
    Error,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for Members {
    type Value = Self;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut access: A) -> Result<Self, A::Error> {
        while let Some((key, IgnoredAny)) = access.next_entry()? {
            match key {
                Member::Method => self.method = true,
                Member::Result | Member::Error => self.outcome = true,
                Member::Other => {}
            }
        }
        Ok(self)
    }
}

/// Checks a result. Another protocol is named before its shapes are: they may differ in everything else.
fn check_result(method: &'static str, value: &Value) -> Result<(), CallFailure> {
    if method == methods::Initialize::NAME
        && let Some(theirs) = value["protocol"].as_u64()
        && theirs != u64::from(PROTOCOL)
    {
        return Err(CallFailure::Protocol { theirs });
    }
    schema::plugin()
        .check(method, Part::Result, value)
        .map_err(|fault| CallFailure::Result { fault: Box::new(fault) })
}

/// Returns an error as far as it is passed on: it goes to the person, into the journal and to the model.
fn bounded(mut error: RpcError) -> RpcError {
    error.message = clip(error.message);
    error.data = error.data.filter(|data| data.to_string().len() <= MAX_DATA);
    error
}

/// Returns params with their type, checked.
pub(super) fn typed<P: DeserializeOwned>(method: &str, params: Value) -> Result<P, String> {
    schema::plugin().check(method, Part::Params, &params).map_err(|fault| fault.to_string())?;
    serde_path_to_error::deserialize(params)
        .map_err(|error| format!("{method} params at {}: {}", error.path(), error.inner()))
}

/// Says which field of a notification names a call that is not known.
fn unknown(method: &str, field: &str, call: &str) -> String {
    format!("{method} params at /{field}: {call:?} is no call of this plugin")
}
