//! The actor of a session: its loop, its frames, and its side of the running turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bingo_plugin_sdk::event::{
    CancelReason, CloseReason, ErrorCode, Event, Frame, IntentOutcome, InterruptReason, KernelError,
    TurnStatus, Usage,
};
use bingo_plugin_sdk::ids::{IntentId, InteractionId, Seq, TurnId};
use bingo_plugin_sdk::interaction::Interaction;
use bingo_plugin_sdk::item::{Item, ItemBody, ItemStatus, ToolOutput};
use bingo_plugin_sdk::state::SessionState;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::writes::CommandDone;
use super::{Begin, Write};
use crate::kernel::KernelParts;
use crate::kernel::gate::{Policy, Stance, question};
use crate::kernel::outbox::Outbox;
use crate::kernel::queue::Queue;
use crate::kernel::response::new_item;
use crate::kernel::turn::{Stop, TurnMessage, Verdict};
use crate::telemetry;

/// How long a closing session waits for its turn to wind down.
const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// How long keyboard answers to a question are not taken (kernel rule 3.5.38).
const KEYBOARD_GUARD: Duration = Duration::from_millis(400);
/// Commands that may be done and not yet looked at.
const MAX_DONE: usize = 64;
/// What the model reads where a person interrupted.
const INTERRUPTED: &str = "[Request interrupted by user]";
/// What the model reads in the place of an interrupted tool's result.
const TOOL_INTERRUPTED: &str = "[Request interrupted by user for tool use]";

/// Owns everything of one live session.
pub(super) struct Actor {
    pub(super) parts: Arc<KernelParts>,
    pub(super) state: SessionState,
    pub(super) outbox: Outbox,
    pub(super) queue: Queue,
    pub(super) policy: Policy,
    pub(super) turn: Option<RunningTurn>,
    /// A command that keeps the session busy.
    pub(super) busy_command: Option<IntentId>,
    /// Every running command.
    pub(super) commands: Vec<IntentId>,
    pub(super) done: mpsc::Sender<CommandDone>,
    pub(super) questions: BTreeMap<InteractionId, OpenQuestion>,
    pub(super) closing: Option<Closing>,
    done_queue: mpsc::Receiver<CommandDone>,
    next_seq: Seq,
    /// Frames of the message being handled; they leave together.
    batch: Vec<Arc<Frame>>,
}

/// The turn that runs.
pub(super) struct RunningTurn {
    pub(super) id: TurnId,
    pub(super) cancel: CancellationToken,
    pub(super) interrupted: Option<InterruptReason>,
    pub(super) usage: Usage,
    pub(super) messages: mpsc::Receiver<TurnMessage>,
    pub(super) task: JoinHandle<Result<(), Stop>>,
}

/// A permission question that a turn waits for.
pub(super) struct OpenQuestion {
    pub(super) interaction: Interaction,
    pub(super) guard: Instant,
    pub(super) reply: oneshot::Sender<Verdict>,
}

/// A session that was told to close.
pub(super) struct Closing {
    pub(super) reason: CloseReason,
    pub(super) until: Instant,
}

impl Closing {
    pub(super) fn new(reason: CloseReason) -> Self {
        Self { reason, until: Instant::now() + CLOSE_GRACE }
    }
}

/// What an actor can be woken by.
#[expect(clippy::large_enum_variant, reason = "it lives on the stack for one step of the loop")]
enum Wake {
    Write(Option<Write>),
    Turn(Option<TurnMessage>),
    Command(CommandDone),
    /// The disk took what was there, or failed.
    Drained,
    GraceOver,
}

impl Actor {
    /// Returns the actor after it published the head of this run.
    pub(super) fn new(parts: Arc<KernelParts>, begin: Begin, outbox: Outbox) -> Self {
        let (done, done_queue) = mpsc::channel(MAX_DONE);
        let mut queue = Queue::default();
        queue.resume(begin.queue_revision);
        let policy = Policy::new(parts.settings.mode, parts.settings.allowed.clone());
        let mut actor = Self {
            parts,
            state: begin.state.clone(),
            outbox,
            queue,
            policy,
            turn: None,
            busy_command: None,
            commands: Vec::new(),
            done,
            questions: BTreeMap::new(),
            closing: None,
            done_queue,
            next_seq: begin.first,
            batch: Vec::new(),
        };
        // The head is on its way before anybody can subscribe, so that every snapshot covers it.
        actor.begin(&begin);
        actor.commit();
        actor
    }

    /// Runs until the session closes or cannot be stored any more.
    pub(super) async fn run(mut self, mut writes: mpsc::Receiver<Write>) {
        loop {
            self.commit();
            if self.outbox.failure().is_some() {
                self.stop_turn();
                return;
            }
            if self.turn.is_none()
                && let Some(closing) = self.closing.take()
            {
                self.finish(closing.reason);
                self.commit();
                self.outbox.end();
                return;
            }
            match self.wake(&mut writes).await {
                Wake::Write(Some(write)) => self.write(write),
                // Nobody holds the session any more: the kernel is gone.
                Wake::Write(None) => self.close(CloseReason::Shutdown),
                Wake::Turn(Some(message)) => self.turn_message(message),
                Wake::Turn(None) => self.turn_ended().await,
                Wake::Command(done) => self.command_done(done),
                Wake::Drained => {}
                Wake::GraceOver => {
                    self.stop_turn();
                    self.end_turn(TurnStatus::Interrupted { reason: InterruptReason::Shutdown });
                }
            }
        }
    }

    /// Waits for what comes next. Clients come first, so that an interrupt is never behind a flood of output; the turn
    /// is heard only while the disk keeps up.
    async fn wake(&mut self, writes: &mut mpsc::Receiver<Write>) -> Wake {
        let until = self.closing.as_ref().map(|closing| closing.until);
        let has_room = self.outbox.has_room();
        tokio::select! {
            biased;
            write = writes.recv(), if self.closing.is_none() || !writes.is_closed() => Wake::Write(write),
            Some(done) = self.done_queue.recv() => Wake::Command(done),
            message = next_message(&mut self.turn), if has_room => Wake::Turn(message),
            () = self.outbox.drained() => Wake::Drained,
            () = grace(until) => Wake::GraceOver,
        }
    }

    /// Mints a frame that answers nothing, and folds it.
    pub(super) fn emit(&mut self, event: Event) {
        self.emit_caused(None, event);
    }

    /// Mints a frame and folds it; it leaves with the others of this message.
    pub(super) fn emit_caused(&mut self, cause: Option<&IntentId>, event: Event) {
        let frame = Frame {
            seq: self.next_seq,
            ts: telemetry::now(),
            session: self.state.summary.id.clone(),
            cause: cause.cloned(),
            event,
        };
        self.next_seq = self.next_seq.next();
        self.state.apply(&frame);
        self.batch.push(Arc::new(frame));
    }

    /// Publishes what became of a client's write.
    pub(super) fn acknowledge(&mut self, intent: &IntentId, outcome: IntentOutcome) {
        self.emit_caused(Some(intent), Event::IntentAck { intent: intent.clone(), outcome });
    }

    /// Closes every open question without an answer; who waits for it is told.
    pub(super) fn cancel_interactions(&mut self, reason: CancelReason) {
        for (id, _) in std::mem::take(&mut self.questions) {
            self.emit(Event::InteractionCancelled { id, reason });
        }
    }

    /// Begins to close: the turn is cancelled, the rest follows when it wound down.
    pub(super) fn close(&mut self, reason: CloseReason) {
        if self.closing.is_some() {
            return;
        }
        self.cancel_interactions(CancelReason::SessionClosed);
        if let Some(turn) = &mut self.turn {
            turn.interrupted.get_or_insert(InterruptReason::Shutdown);
            turn.cancel.cancel();
        }
        self.closing = Some(Closing::new(reason));
    }

    /// Hands the frames minted so far to the outbox.
    pub(super) fn commit(&mut self) {
        if !self.batch.is_empty() {
            self.outbox.push(std::mem::take(&mut self.batch));
        }
    }

    fn turn_message(&mut self, message: TurnMessage) {
        match message {
            TurnMessage::Emit(event) => self.turn_event(event),
            // A turn that was cancelled meanwhile does not listen any more.
            TurnMessage::Items(reply) => drop(reply.send(self.state.items.clone())),
            TurnMessage::Gate(call, reply) => self.gate(&call, reply),
            TurnMessage::Barrier(reply) => {
                self.absorb();
                let _ = reply.send(());
            }
        }
    }

    fn turn_event(&mut self, event: Event) {
        let Some(turn) = &mut self.turn else { return };
        match &event {
            // Words that were under way when a person interrupted are not said.
            Event::ItemDelta { .. } if turn.interrupted.is_some() => return,
            Event::TurnUsage { usage, .. } => turn.usage += *usage,
            _ => {}
        }
        self.emit(event);
    }

    fn gate(&mut self, call: &Arc<Item>, reply: oneshot::Sender<Verdict>) {
        let ItemBody::ToolCall { name, input, .. } = &call.body else { return };
        let verdict = match self.policy.stance(name) {
            Stance::Allow => Verdict::Allowed,
            Stance::Deny { reason } => Verdict::Denied(format!("Permission denied ({reason})")),
            Stance::Ask { scope } => {
                let (kind, answers) = question(name, input, &scope);
                let interaction = Interaction {
                    id: InteractionId::mint(),
                    session: self.state.summary.id.clone(),
                    turn: call.turn.clone(),
                    item: Some(call.id.clone()),
                    opened_at: telemetry::now(),
                    guard_until: Some(telemetry::after(KEYBOARD_GUARD)),
                    expires_at: None,
                    kind,
                    answers,
                };
                return self.open_question(interaction, reply);
            }
        };
        drop(reply.send(verdict));
    }

    fn open_question(&mut self, interaction: Interaction, reply: oneshot::Sender<Verdict>) {
        // Asked by a turn that was interrupted meanwhile: nobody waits for the answer.
        if self.turn.as_ref().is_none_or(|turn| turn.interrupted.is_some()) {
            return;
        }
        self.emit(Event::InteractionOpened { interaction: Box::new(interaction.clone()) });
        let guard = Instant::now() + KEYBOARD_GUARD;
        self.questions.insert(interaction.id.clone(), OpenQuestion { interaction, guard, reply });
    }

    /// The turn's task let go of its channel: it is over, one way or another.
    async fn turn_ended(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        let outcome = (&mut turn.task).await;
        let reason = turn.interrupted.unwrap_or(InterruptReason::UserCancel);
        let status = match outcome {
            Ok(Ok(())) if turn.interrupted.is_none() => TurnStatus::Completed,
            Ok(Ok(()) | Err(Stop::Cancelled)) => TurnStatus::Interrupted { reason },
            Ok(Err(Stop::Failed(error))) => TurnStatus::Failed { error },
            Err(error) => {
                tracing::error!(turn = %turn.id, %error, "a turn panicked");
                let error = KernelError::new(ErrorCode::TurnLost, "the turn ended in an error of the host");
                TurnStatus::Failed { error }
            }
        };
        self.end_turn(status);
    }

    /// Winds the turn down: questions, half-written items, the marker of an interruption, then its last frame.
    fn end_turn(&mut self, status: TurnStatus) {
        let Some(turn) = self.turn.take() else { return };
        self.cancel_interactions(CancelReason::TurnEnded);
        match &status {
            TurnStatus::Interrupted { .. } => {
                self.end_open_items(ItemStatus::Interrupted);
                let body = ItemBody::Interruption { marker: INTERRUPTED.to_owned() };
                let round = self.state.turn.as_ref().map_or(0, |turn| turn.round);
                let item = new_item(Some(turn.id.clone()), round, ItemStatus::Completed, body);
                self.emit(Event::ItemCompleted { item: Arc::new(item) });
            }
            TurnStatus::Completed | TurnStatus::Failed { .. } => self.end_open_items(ItemStatus::Failed),
        }
        self.emit(Event::TurnCompleted { turn: turn.id, status, usage: turn.usage });
        if self.closing.is_none() {
            self.drain_queue();
        }
    }

    fn stop_turn(&mut self) {
        if let Some(turn) = &self.turn {
            turn.cancel.cancel();
            turn.task.abort();
        }
    }
}

/// Gives an interrupted tool call the words the model reads as its result.
pub(super) fn mark_interrupted(item: &mut Item) {
    if let ItemBody::ToolCall { output, progress, .. } = &mut item.body {
        output.get_or_insert_with(|| ToolOutput::error(TOOL_INTERRUPTED));
        *progress = None;
    }
}

async fn next_message(turn: &mut Option<RunningTurn>) -> Option<TurnMessage> {
    match turn {
        Some(turn) => turn.messages.recv().await,
        None => std::future::pending().await,
    }
}

async fn grace(until: Option<Instant>) {
    match until {
        Some(until) => sleep(until.saturating_duration_since(Instant::now())).await,
        None => std::future::pending().await,
    }
}
