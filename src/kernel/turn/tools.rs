//! A turn's tool calls: the hooks before them, the gate, the run, the hooks after them (kernel rules 4.3).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bingo_plugin_sdk::event::{DeltaKind, ErrorCode, Event, KernelError};
use bingo_plugin_sdk::ids::ItemId;
use bingo_plugin_sdk::interaction::{Answer, InteractionKind};
use bingo_plugin_sdk::item::{Item, ItemBody, ItemStatus, ToolCall, ToolOutput};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{GateRequest, Stop, Turn, TurnMessage, Verdict};
use crate::kernel::hooks::{self, CallVerdict};
use crate::kernel::permission::{self, Subject};
use crate::ports::{Asker, BoxFuture, CallContext, Tool};
use crate::telemetry;

impl Turn {
    /// Asks hooks, policy and person about a call, and announces it when it may run; returns it as the hooks left it.
    pub(super) async fn gate(&self, item: &Arc<Item>) -> Result<(Arc<Item>, Verdict), Stop> {
        let call = call_of(item);
        // An unknown tool fails when it is run; nobody need be asked about it.
        if self.tool(&call.name).is_none() {
            return self.announce(item).await;
        }
        let site = self.site();
        let chain = hooks::before_tool(&self.context, &site, call);
        let (call, confirm) = match self.unless_cancelled(chain).await? {
            CallVerdict::Denied(words) => return Ok((Arc::clone(item), Verdict::Denied(words))),
            CallVerdict::Pass { call, confirm } => (call, confirm),
        };
        let item = with_input(item, call);
        let subjects = self.subjects(&item).await?;
        let request = GateRequest { call: Arc::clone(&item), subjects, confirm };
        match self.ask(|reply| TurnMessage::Gate(request, reply)).await? {
            Verdict::Allowed => self.announce(&item).await,
            denied @ Verdict::Denied(_) => Ok((item, denied)),
        }
    }

    /// Returns what a call is about. Where its paths lead is looked up on a thread that may wait for the disk.
    async fn subjects(&self, item: &Arc<Item>) -> Result<Vec<Subject>, Stop> {
        let (input, cwd) = (call_of(item).input, self.context.cwd.clone());
        let found = tokio::task::spawn_blocking(move || permission::subjects(&input, &cwd));
        self.unless_cancelled(found).await?.map_err(|error| {
            let message = format!("what the call is about could not be read: {error}");
            Stop::Failed(KernelError::new(ErrorCode::Internal, message))
        })
    }

    /// Runs a gated call to its last frame; returns whether a hook ends the turn after this round.
    pub(super) async fn execute(&self, item: &Arc<Item>, verdict: Verdict) -> Result<bool, Stop> {
        let started = Instant::now();
        let call = call_of(item);
        let output = match (verdict, self.tool(&call.name)) {
            (Verdict::Denied(words), _) => {
                self.complete(item, ToolOutput::error(words), 0).await?;
                return Ok(false);
            }
            (Verdict::Allowed, Some(tool)) => match self.living(tool) {
                Ok(tool) => self.call(&tool, item, &call).await?,
                Err(words) => ToolOutput::error(words),
            },
            (Verdict::Allowed, None) => ToolOutput::error(format!("tool not found: {}", call.name)),
        };
        self.complete(item, output.clone(), started.elapsed().as_millis() as u64).await?;
        self.unless_cancelled(hooks::after_tool(&self.context, &self.site(), &call, &output)).await
    }

    async fn announce(&self, item: &Arc<Item>) -> Result<(Arc<Item>, Verdict), Stop> {
        let item = Arc::new(Item { status: ItemStatus::Running, ..(**item).clone() });
        self.emit(Event::ItemUpdated { item: Arc::clone(&item) }).await?;
        Ok((item, Verdict::Allowed))
    }

    /// Runs a tool, passing its live line on; the newest line counts when it writes faster than the session takes.
    async fn call(&self, tool: &Arc<dyn Tool>, item: &Item, call: &ToolCall) -> Result<ToolOutput, Stop> {
        let tail = Arc::new(Tail::default());
        let sink = Arc::clone(&tail);
        let progress = Arc::new(move |line| sink.put(line));
        let asker = CallAsker { session: self.session.clone(), item: item.id.clone() };
        let context = CallContext { asker: Some(Arc::new(asker)), ..self.context.clone() };
        let mut running = tool.call(context, call.call_id.clone(), call.input.clone(), progress);
        let mut n = 0;
        let outcome = loop {
            tokio::select! {
                biased;
                () = self.context.cancel.cancelled() => return Err(Stop::Cancelled),
                line = tail.next() => self.emit_tail(&item.id, &mut n, line).await?,
                outcome = &mut running => break outcome,
            }
        };
        if let Some(line) = tail.take() {
            self.emit_tail(&item.id, &mut n, line).await?;
        }
        Ok(outcome.unwrap_or_else(|error| ToolOutput::error(error.message)))
    }

    async fn emit_tail(&self, item: &ItemId, n: &mut u32, data: String) -> Result<(), Stop> {
        let event = Event::ItemDelta { item: item.clone(), n: *n, kind: DeltaKind::Tail, data };
        *n += 1;
        self.emit(event).await
    }

    async fn complete(&self, item: &Arc<Item>, output: ToolOutput, milliseconds: u64) -> Result<(), Stop> {
        let mut item = (**item).clone();
        item.status = if output.is_error { ItemStatus::Failed } else { ItemStatus::Completed };
        item.completed_at = Some(telemetry::now());
        if let ItemBody::ToolCall { output: held, duration_ms, .. } = &mut item.body {
            *held = Some(output);
            *duration_ms = Some(milliseconds);
        }
        self.emit(Event::ItemCompleted { item: Arc::new(item) }).await
    }

    /// Returns a tool of this turn, or after the death of its process the one that follows it, if that is the same.
    ///
    /// # Errors
    /// In words for the model, when it is another tool by now.
    fn living(&self, tool: &Arc<dyn Tool>) -> Result<Arc<dyn Tool>, String> {
        let snapshot = self.offers.snapshot();
        let name = &tool.spec().name;
        let follower = snapshot.tools.iter().find(|other| tool.is_gone() && other.spec().name == *name);
        match follower {
            None => Ok(Arc::clone(tool)),
            Some(other) if other.version() == tool.version() && other.spec() == tool.spec() => {
                Ok(Arc::clone(other))
            }
            Some(_) => Err(format!(
                "{name} was not called: its plugin was restarted and has another version of it now, which the next turn \
                 can call"
            )),
        }
    }

    fn tool(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|tool| tool.spec().name == name)
    }
}

/// Returns the call that an item shows.
fn call_of(item: &Item) -> ToolCall {
    match &item.body {
        ItemBody::ToolCall { call_id, name, input, .. } => {
            ToolCall { call_id: call_id.clone(), name: name.clone(), input: input.clone() }
        }
        _ => ToolCall { call_id: String::new(), name: String::new(), input: serde_json::Value::Null },
    }
}

/// Returns the item with the input that the hooks left.
fn with_input(item: &Arc<Item>, call: ToolCall) -> Arc<Item> {
    let mut item = Arc::clone(item);
    if call_of(&item).input != call.input
        && let ItemBody::ToolCall { input, .. } = &mut Arc::make_mut(&mut item).body
    {
        *input = call.input;
    }
    item
}

/// Puts a running call's questions to the person of its session.
struct CallAsker {
    session: mpsc::Sender<TurnMessage>,
    item: ItemId,
}

impl Asker for CallAsker {
    fn ask(&self, question: InteractionKind) -> BoxFuture<'static, Result<Answer, KernelError>> {
        let (session, item) = (self.session.clone(), self.item.clone());
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            // A turn that ended cannot be asked for; its session drops what it still holds.
            drop(session.send(TurnMessage::Ask { item, question, reply }).await);
            answer.await.map_err(|_| {
                KernelError::new(ErrorCode::InteractionClosed, "the question was closed without an answer")
            })
        })
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
