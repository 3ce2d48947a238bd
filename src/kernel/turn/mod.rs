//! The turn loop: ask the model, gate and run the tools it calls, ask again, until it calls none (kernel rules 4.1).
//!
//! A turn runs in a task of its own beside its session's actor. It owns no state of the session: it sends what happens,
//! and asks for what only the actor knows. Every wait gives way to cancellation. `model` has the requests, `tools` the
//! calls, `contribute` what contributors add, `compact` the shortening of the context.

mod compact;
mod contribute;
mod model;
mod tools;

use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::calls::{Compaction, HookSite};
use bingo_plugin_sdk::event::{ContextUsage, ErrorCode, Event, KernelError};
use bingo_plugin_sdk::ids::{ItemId, TurnId};
use bingo_plugin_sdk::interaction::{Answer, InteractionKind};
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody, ItemStatus, Level, Origin};
use bingo_plugin_sdk::provider::Effort;
use bingo_plugin_sdk::session::SessionSummary;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::compaction::estimate;
use super::hooks;
use super::permission::Subject;
use super::response::{Response, new_item};
use super::view::View;
use crate::ports::{CallContext, Journal, Offers, Provider, Tool};

/// How often an answer that was cut off is asked to go on in one turn (kernel rule 4.1.6).
const MAX_CONTINUED: u32 = 3;
/// What asks it to.
const CONTINUE: &str = "Continue from where you left off.";
/// How many tokens before the trigger of a compaction a person is warned (kernel rule 4.5.41).
const WARNED_BEFORE: u64 = 20_000;

/// What a turn tells and asks its session.
pub(super) enum TurnMessage {
    Emit(Event),
    /// Asks for the transcript as the model sees it.
    Transcript(oneshot::Sender<Transcript>),
    /// Asks whether this call may run; a person may be asked.
    Gate(GateRequest, oneshot::Sender<Verdict>),
    /// A plugin asks the person of this call.
    Ask {
        item: ItemId,
        question: InteractionKind,
        reply: oneshot::Sender<Answer>,
    },
    /// A compactor answered; told back whether it counts.
    Compacted(Box<CompactionDone>, oneshot::Sender<bool>),
    /// Tool results are in: waiting words may join before the next request.
    Barrier(oneshot::Sender<()>),
}

/// A call at the gate.
#[derive(Debug)]
pub(super) struct GateRequest {
    pub(super) call: Arc<Item>,
    pub(super) subjects: Vec<Subject>,
    /// A person must confirm, for this reason, whatever the policy says.
    pub(super) confirm: Option<String>,
}

/// What the gate says of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// Refused, with the words for the model.
    Denied(String),
}

/// The transcript as the model sees it.
#[derive(Debug)]
pub(super) struct Transcript<Items = Seen> {
    pub(super) items: Items,
    /// What the last response counted; without `counted` it says nothing of these items.
    pub(super) usage: Option<ContextUsage>,
    /// The last item that it covers.
    pub(super) counted: Option<ItemId>,
    /// Compactions thrown away in a row.
    pub(super) failures: u32,
    pub(super) summary: SessionSummary,
}

/// What the model sees.
#[derive(Debug)]
pub(super) enum Seen {
    Held(Vec<Arc<Item>>),
    /// Not all of it is held; the rest is read from the journal.
    Stored(oneshot::Receiver<View>),
}

impl Transcript<Vec<Arc<Item>>> {
    /// Returns the context's size now, in tokens.
    fn size(&self) -> u64 {
        let counted = self.counted.as_ref();
        match counted.and_then(|id| self.items.iter().rposition(|item| item.id == *id)) {
            Some(place) => estimate(self.usage.as_ref(), &self.items[place + 1..]),
            None => estimate(None, &self.items),
        }
    }
}

/// A compactor's answer.
#[derive(Debug)]
pub(super) struct CompactionDone {
    pub(super) compaction: Compaction,
    pub(super) took: Duration,
    /// How many items it replaces, or why it is thrown away.
    pub(super) verdict: Result<u32, String>,
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
    /// Whether it can see pictures.
    pub(super) images: bool,
}

impl Budget {
    /// Returns the context's usage at this size (kernel rule 4.5.41).
    fn usage(self, used: u64) -> ContextUsage {
        let window = self.window.saturating_sub(u64::from(self.max_tokens));
        ContextUsage { used, window, trigger: window / 10 * 9 }
    }
}

/// What a turn is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Answer what was said.
    Answer,
    /// Shorten the context, because a person asked for it.
    Compact { instructions: Option<String> },
}

/// One turn: everything it takes along is resolved at its start and kept to its end.
pub(super) struct Turn {
    pub(super) id: TurnId,
    pub(super) purpose: Purpose,
    pub(super) context: CallContext,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) model: String,
    pub(super) tools: Vec<Arc<dyn Tool>>,
    pub(super) system_extra: Option<String>,
    pub(super) budget: Budget,
    /// The most rounds (kernel rule 4.1.3).
    pub(super) max_rounds: u32,
    pub(super) session: mpsc::Sender<TurnMessage>,
    /// Where what died is looked for: its plugin may have another process by then.
    pub(super) offers: Arc<dyn Offers>,
    /// Where items are read that the session does not hold.
    pub(super) journal: Arc<dyn Journal>,
}

/// What a turn counts as it goes.
#[derive(Debug, Default)]
struct Progress {
    /// Compactions before a request because the context grew.
    threshold_compactions: u32,
    /// The provider said once that the context is too large.
    overflowed: bool,
    /// An answer came that said nothing.
    was_empty: bool,
    /// How often an answer that was cut off was asked to go on.
    continued: u32,
    /// The person was told that the context is nearly full.
    warned: bool,
}

impl Turn {
    /// Runs the turn to its end.
    ///
    /// # Errors
    /// When it was cancelled, or failed.
    pub(super) async fn run(self) -> Result<(), Stop> {
        if let Purpose::Compact { instructions } = &self.purpose {
            return self.compact_by_hand(instructions.clone()).await;
        }
        let mut progress = Progress::default();
        self.compact_at_threshold(&mut progress).await?;
        let mut round = 0;
        while round < self.max_rounds {
            let response = self.respond(round, &mut progress).await?;
            if response.items.is_empty() && !std::mem::replace(&mut progress.was_empty, true) {
                // Asked once more without a word; it is the same round (kernel rule 4.1.5).
                continue;
            }
            if !self.goes_on(round, &response, &mut progress).await? {
                return Ok(());
            }
            round += 1;
        }
        let message = format!("{} rounds", self.max_rounds);
        Err(KernelError::new(ErrorCode::TurnBudgetExhausted, message).into())
    }

    /// Does what follows a response; returns whether there is another round.
    async fn goes_on(&self, round: u32, response: &Response, progress: &mut Progress) -> Result<bool, Stop> {
        if !response.calls.is_empty() {
            if self.run_calls(response).await? {
                return Ok(false);
            }
            self.ask(TurnMessage::Barrier).await?;
            self.contribute_at_barrier(round).await?;
            return Ok(true);
        }
        if response.is_cut_off() && progress.continued < MAX_CONTINUED {
            progress.continued += 1;
            let words = vec![ContentPart::text(CONTINUE)];
            self.record(round, words, Origin::surface("kernel")).await?;
            return Ok(true);
        }
        match self.unless_cancelled(hooks::stop(&self.context, &self.site())).await? {
            None => Ok(false),
            Some((hook, reason)) => self.go_on(round, &hook, reason).await.map(|()| true),
        }
    }

    /// Tells the person once that the context is nearly full (kernel rule 4.5.43).
    async fn warn(&self, context: ContextUsage, progress: &mut Progress) -> Result<(), Stop> {
        let ContextUsage { used, window, trigger } = context;
        let line = trigger.saturating_sub(WARNED_BEFORE);
        // Where the room is that small everything would be nearly full.
        if line == 0 || used < line || std::mem::replace(&mut progress.warned, true) {
            return Ok(());
        }
        let what = match self.context.snapshot.compactors.is_empty() {
            true => {
                "no plugin offers to compact it: go back with `/rewind`, or begin a new session".to_owned()
            }
            false => format!("it is compacted at {trigger}"),
        };
        let text = format!("the context holds {used} of {window} tokens; {what}");
        self.emit(Event::Notice { level: Level::Warn, code: "CONTEXT_WARNING".to_owned(), text }).await
    }

    /// Gates all calls of a response, then runs them; returns whether a hook ends the turn here.
    async fn run_calls(&self, response: &Response) -> Result<bool, Stop> {
        let mut gated = Vec::new();
        for call in &response.calls {
            gated.push(self.gate(call).await?);
        }
        let mut ends = false;
        for (call, verdict) in gated {
            ends |= self.execute(&call, verdict).await?;
        }
        Ok(ends)
    }

    /// Records why a hook wants another round.
    async fn go_on(&self, round: u32, hook: &str, reason: String) -> Result<(), Stop> {
        let origin = Origin::surface(format!("hook:{hook}"));
        self.record(round, vec![ContentPart::text(reason)], origin).await
    }

    /// Records words that nobody typed.
    async fn record(&self, round: u32, parts: Vec<ContentPart>, origin: Origin) -> Result<(), Stop> {
        let body = ItemBody::User { parts, origin };
        let item = new_item(Some(self.id.clone()), round, ItemStatus::Completed, body);
        self.emit(Event::ItemCompleted { item: Arc::new(item) }).await
    }

    /// Returns where hooks of this turn are called from.
    fn site(&self) -> HookSite {
        HookSite {
            session: self.context.session.clone(),
            turn: Some(self.id.clone()),
            cwd: self.context.cwd.to_string_lossy().into_owned(),
            model: Some(self.model.clone()),
        }
    }

    async fn transcript(&self) -> Result<Transcript<Vec<Arc<Item>>>, Stop> {
        let Transcript { items, usage, counted, failures, summary } =
            self.ask(TurnMessage::Transcript).await?;
        let items = match items {
            Seen::Held(items) => items,
            Seen::Stored(view) => {
                let view = self.unless_cancelled(view).await?.map_err(|_| Stop::Cancelled)?;
                self.unless_cancelled(view.visible(&*self.journal)).await??
            }
        };
        Ok(Transcript { items, usage, counted, failures, summary })
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
