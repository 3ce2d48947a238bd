//! The turn loop: ask the model, gate and run the tools it calls, ask again, until it calls none (kernel rules 4.1).
//!
//! A turn runs in a task of its own beside its session's actor. It owns no state of the session: it sends what happens,
//! and asks for what only the actor knows. Every wait gives way to cancellation.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bingo_plugin_sdk::event::{ContextUsage, DeltaKind, ErrorCode, Event, KernelError, Usage};
use bingo_plugin_sdk::ids::{ItemId, TurnId};
use bingo_plugin_sdk::item::{Item, ItemBody, ItemStatus, ToolOutput};
use bingo_plugin_sdk::provider::{Effort, ModelRequest, ProviderError};
use serde_json::Value;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::context;
use super::response::Response;
use crate::ports::{CallContext, ModelStream, Provider, Tool};
use crate::telemetry;

/// The most rounds of a turn (kernel rule 4.1.3).
const MAX_ROUNDS: u32 = 100;
/// The most retries of one request.
const MAX_RETRIES: u32 = 10;
/// The first wait before a retry; it doubles.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// The longest wait of our own before a retry.
const LONGEST_DELAY: Duration = Duration::from_secs(32);
/// The longest wait that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(60);

/// What a turn tells and asks its session.
pub(super) enum TurnMessage {
    Emit(Event),
    /// Asks for the transcript as it stands.
    Items(oneshot::Sender<Vec<Arc<Item>>>),
    /// Asks whether this call may run; a person may be asked.
    Gate(Arc<Item>, oneshot::Sender<Verdict>),
    /// Tool results are in: waiting words may join before the next request.
    Barrier(oneshot::Sender<()>),
}

/// What the gate says of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// Refused, with the words for the model.
    Denied(String),
}

/// Why a turn stops before its end.
#[derive(Debug)]
pub(super) enum Stop {
    Cancelled,
    Failed(KernelError),
}

impl From<KernelError> for Stop {
    fn from(error: KernelError) -> Self {
        Self::Failed(error)
    }
}

/// What a model can hold and shall give.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// Tokens of input and output together.
    pub(super) window: u64,
    /// The most tokens of one answer.
    pub(super) max_tokens: u32,
    pub(super) reasoning: Option<Effort>,
}

/// One turn: everything it takes along is resolved at its start and kept to its end.
pub(super) struct Turn {
    pub(super) id: TurnId,
    pub(super) context: CallContext,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) model: String,
    pub(super) tools: Vec<Arc<dyn Tool>>,
    pub(super) system_extra: Option<String>,
    pub(super) budget: Budget,
    pub(super) session: mpsc::Sender<TurnMessage>,
}

impl Turn {
    /// Runs the turn to its end.
    ///
    /// # Errors
    /// When it was cancelled, or failed.
    pub(super) async fn run(self) -> Result<(), Stop> {
        for round in 0..MAX_ROUNDS {
            let response = self.respond(round).await?;
            if response.calls.is_empty() {
                return Ok(());
            }
            let mut verdicts = Vec::new();
            for call in &response.calls {
                verdicts.push(self.gate(call).await?);
            }
            for (call, verdict) in response.calls.iter().zip(verdicts) {
                self.execute(call, verdict).await?;
            }
            self.ask(TurnMessage::Barrier).await?;
        }
        Err(KernelError::new(ErrorCode::TurnBudgetExhausted, format!("{MAX_ROUNDS} rounds")).into())
    }

    /// Asks the model until a response is whole, with retries (kernel rule 4.2.15; counted per request).
    async fn respond(&self, round: u32) -> Result<Response, Stop> {
        let request = self.request().await?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut response = Response::new(self.id.clone(), round);
            let Err(error) = self.stream(&request, &mut response).await? else {
                return Ok(response);
            };
            for event in response.close(ItemStatus::Failed) {
                self.emit(event).await?;
            }
            let delay = retry_delay(&error, attempt).filter(|_| !self.provider.is_gone());
            let delay = delay.ok_or_else(|| to_kernel(&error))?;
            self.emit(Event::TurnRetrying {
                turn: self.id.clone(),
                attempt,
                max: MAX_RETRIES,
                delay_ms: delay.as_millis() as u64,
                dropped: response.items,
                reason: error.to_string(),
            })
            .await?;
            self.unless_cancelled(tokio::time::sleep(delay)).await?;
        }
    }

    /// Streams one response; the inner error is the provider's.
    async fn stream(
        &self,
        request: &ModelRequest,
        response: &mut Response,
    ) -> Result<Result<(), ProviderError>, Stop> {
        let mut stream = self.provider.stream(self.context.clone(), request.clone());
        if let Err(error) = self.fold(stream.as_mut(), response).await? {
            return Ok(Err(error));
        }
        let Some((usage, _)) = response.finish else {
            let message = "the answer ended without its finish".to_owned();
            return Ok(Err(ProviderError::Stream { message }));
        };
        for event in response.close(ItemStatus::Completed) {
            self.emit(event).await?;
        }
        let context = self.context_usage(usage);
        self.emit(Event::TurnUsage { turn: self.id.clone(), usage, context }).await?;
        Ok(Ok(()))
    }

    async fn fold(
        &self,
        stream: &mut dyn ModelStream,
        response: &mut Response,
    ) -> Result<Result<(), ProviderError>, Stop> {
        while let Some(next) = self.unless_cancelled(stream.next()).await? {
            match next.and_then(|event| response.event(event)) {
                Ok(None) => {}
                Ok(Some(event)) => self.emit(event).await?,
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(()))
    }

    async fn request(&self) -> Result<ModelRequest, Stop> {
        let items = self.ask(TurnMessage::Items).await?;
        let provider = &self.provider.spec().id;
        let system = context::system(&self.context.cwd, provider, &self.model, self.system_extra.as_deref());
        let tools = self.tools.iter().map(|tool| {
            let mut spec = tool.spec().clone();
            // Catalog facts are not for the model.
            spec.meta.clear();
            spec
        });
        Ok(ModelRequest {
            model: self.model.clone(),
            max_tokens: self.budget.max_tokens,
            system,
            messages: context::messages(&items),
            tools: tools.collect(),
            reasoning: self.budget.reasoning,
            provider_options: Default::default(),
        })
    }

    fn context_usage(&self, usage: Usage) -> ContextUsage {
        let counts =
            [usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.output_tokens];
        let used = counts.into_iter().fold(0, u64::saturating_add);
        let window = self.budget.window.saturating_sub(u64::from(self.budget.max_tokens));
        ContextUsage { used, window, trigger: window / 10 * 9 }
    }

    /// Asks whether a call may run, and announces it when it may.
    async fn gate(&self, call: &Arc<Item>) -> Result<Verdict, Stop> {
        let verdict = match self.tool(call) {
            // An unknown tool fails when it is run; nobody need be asked about it.
            None => Verdict::Allowed,
            Some(_) => self.ask(|reply| TurnMessage::Gate(Arc::clone(call), reply)).await?,
        };
        if verdict == Verdict::Allowed {
            let item = Arc::new(Item { status: ItemStatus::Running, ..(**call).clone() });
            self.emit(Event::ItemUpdated { item }).await?;
        }
        Ok(verdict)
    }

    async fn execute(&self, call: &Arc<Item>, verdict: Verdict) -> Result<(), Stop> {
        let started = Instant::now();
        let output = match (verdict, self.tool(call)) {
            (Verdict::Denied(words), _) => return self.complete(call, ToolOutput::error(words), 0).await,
            (Verdict::Allowed, Some(tool)) => self.call(tool, call).await?,
            (Verdict::Allowed, None) => ToolOutput::error(format!("tool not found: {}", call_parts(call).1)),
        };
        self.complete(call, output, started.elapsed().as_millis() as u64).await
    }

    /// Runs a tool, passing its live line on; the newest line counts when it writes faster than the session takes.
    async fn call(&self, tool: &Arc<dyn Tool>, call: &Arc<Item>) -> Result<ToolOutput, Stop> {
        let (call_id, _, input) = call_parts(call);
        let tail = Arc::new(Tail::default());
        let sink = Arc::clone(&tail);
        let progress = Arc::new(move |line| sink.put(line));
        let mut running = tool.call(self.context.clone(), call_id.to_owned(), input.clone(), progress);
        let mut n = 0;
        let outcome = loop {
            tokio::select! {
                biased;
                () = self.context.cancel.cancelled() => return Err(Stop::Cancelled),
                line = tail.next() => self.emit_tail(&call.id, &mut n, line).await?,
                outcome = &mut running => break outcome,
            }
        };
        if let Some(line) = tail.take() {
            self.emit_tail(&call.id, &mut n, line).await?;
        }
        Ok(outcome.unwrap_or_else(|error| ToolOutput::error(error.message)))
    }

    async fn emit_tail(&self, item: &ItemId, n: &mut u32, data: String) -> Result<(), Stop> {
        let event = Event::ItemDelta { item: item.clone(), n: *n, kind: DeltaKind::Tail, data };
        *n += 1;
        self.emit(event).await
    }

    async fn complete(&self, call: &Arc<Item>, output: ToolOutput, milliseconds: u64) -> Result<(), Stop> {
        let mut item = (**call).clone();
        item.status = if output.is_error { ItemStatus::Failed } else { ItemStatus::Completed };
        item.completed_at = Some(telemetry::now());
        if let ItemBody::ToolCall { output: held, duration_ms, .. } = &mut item.body {
            *held = Some(output);
            *duration_ms = Some(milliseconds);
        }
        self.emit(Event::ItemCompleted { item: Arc::new(item) }).await
    }

    fn tool(&self, call: &Item) -> Option<&Arc<dyn Tool>> {
        let (_, name, _) = call_parts(call);
        self.tools.iter().find(|tool| tool.spec().name == name)
    }

    async fn emit(&self, event: Event) -> Result<(), Stop> {
        let sent = self.unless_cancelled(self.session.send(TurnMessage::Emit(event))).await?;
        sent.map_err(|_| Stop::Cancelled)
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> TurnMessage) -> Result<T, Stop> {
        let (reply, answer) = oneshot::channel();
        let sent = self.unless_cancelled(self.session.send(message(reply))).await?;
        sent.map_err(|_| Stop::Cancelled)?;
        self.unless_cancelled(answer).await?.map_err(|_| Stop::Cancelled)
    }

    /// Waits, unless the turn is cancelled; cancellation wins a tie.
    async fn unless_cancelled<T>(&self, future: impl Future<Output = T>) -> Result<T, Stop> {
        let cancel: &CancellationToken = &self.context.cancel;
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Stop::Cancelled),
            value = future => Ok(value),
        }
    }
}

/// Returns call id, tool name and input of a tool call item.
fn call_parts(call: &Item) -> (&str, &str, &Value) {
    match &call.body {
        ItemBody::ToolCall { call_id, name, input, .. } => (call_id, name, input),
        _ => ("", "", &Value::Null),
    }
}

/// The live line of a running tool: a writer never waits, a reader gets the newest.
#[derive(Default)]
struct Tail {
    line: Mutex<Option<String>>,
    wake: Notify,
}

impl Tail {
    fn put(&self, line: String) {
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
        self.wake.notify_one();
    }

    fn take(&self) -> Option<String> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn next(&self) -> String {
        loop {
            let woken = self.wake.notified();
            if let Some(line) = self.take() {
                return line;
            }
            woken.await;
        }
    }
}

/// Returns how long to wait before the next try, or nothing when there is none (kernel rule 4.2.15).
fn retry_delay(error: &ProviderError, attempt: u32) -> Option<Duration> {
    let asked = match error {
        ProviderError::RateLimited { retry_after_ms } => retry_after_ms.map(Duration::from_millis),
        ProviderError::Server { .. }
        | ProviderError::Transport { .. }
        | ProviderError::Stream { .. }
        | ProviderError::Timeout => None,
        ProviderError::Auth { .. }
        | ProviderError::ContextOverflow { .. }
        | ProviderError::Request { .. }
        | ProviderError::Unsupported { .. }
        | ProviderError::Config { .. } => return None,
    };
    let own = FIRST_DELAY.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST_DELAY);
    (attempt <= MAX_RETRIES).then(|| asked.map_or(own, |asked| asked.min(LONGEST_ASKED)))
}

/// Returns the error of a turn that its provider failed (kernel rule 4.2.16).
fn to_kernel(error: &ProviderError) -> KernelError {
    let code = match error {
        ProviderError::Auth { .. } => ErrorCode::AuthRequired,
        ProviderError::RateLimited { .. } => ErrorCode::RateLimited,
        ProviderError::ContextOverflow { .. } => ErrorCode::ContextOverflow,
        ProviderError::Server { .. } => ErrorCode::ServerError,
        ProviderError::Request { .. } | ProviderError::Config { .. } | ProviderError::Unsupported { .. } => {
            ErrorCode::InvalidInput
        }
        ProviderError::Transport { .. } | ProviderError::Stream { .. } => ErrorCode::Offline,
        ProviderError::Timeout => ErrorCode::Timeout,
    };
    KernelError::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_cap_and_end_after_ten() {
        let error = ProviderError::Timeout;
        let waits: Vec<u128> =
            (1..=10).map(|attempt| retry_delay(&error, attempt).unwrap().as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 32000, 32000, 32000, 32000]);
        assert_eq!(retry_delay(&error, 11), None);
    }

    #[test]
    fn a_server_may_ask_for_at_most_a_minute() {
        for (asked, expected) in [(Some(5), 5), (Some(600_000), 60_000), (None, 500)] {
            let error = ProviderError::RateLimited { retry_after_ms: asked };
            assert_eq!(retry_delay(&error, 1), Some(Duration::from_millis(expected)));
        }
    }

    #[test]
    fn what_cannot_get_better_is_not_tried_again() {
        let message = String::new();
        for error in [
            ProviderError::Auth { message: message.clone() },
            ProviderError::ContextOverflow { message: message.clone() },
            ProviderError::Request { message: message.clone() },
            ProviderError::Unsupported { message: message.clone() },
            ProviderError::Config { message },
        ] {
            assert_eq!(retry_delay(&error, 1), None, "{error:?}");
        }
    }
}
