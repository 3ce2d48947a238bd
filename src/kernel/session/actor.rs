//! The actor of a session: its loop, its frames, and its side of the running turn.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bingo_plugin_sdk::calls::{HookSite, ObservePoint, Phase};
use bingo_plugin_sdk::event::{
    CancelReason, CloseReason, ErrorCode, Event, Frame, IntentOutcome, InterruptReason, KernelError,
    TurnStatus, Usage,
};
use bingo_plugin_sdk::handshake::HookPoint;
use bingo_plugin_sdk::ids::{IntentId, InteractionId, ItemId, Seq, TurnId};
use bingo_plugin_sdk::item::{Item, ItemBody, ItemStatus, ToolOutput};
use bingo_plugin_sdk::provider::Effort;
use bingo_plugin_sdk::state::SessionState;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::commands::CommandDone;
use super::intake::{Intake, IntakeDone};
use super::questions::OpenQuestion;
use super::repeats::Repeated;
use super::starting::{self, Start, Starting};
use super::{Begin, Write};
use crate::kernel::KernelParts;
use crate::kernel::compaction::Cut;
use crate::kernel::held::Window;
use crate::kernel::hooks;
use crate::kernel::intents::Intents;
use crate::kernel::outbox::Outbox;
use crate::kernel::permission::Policy;
use crate::kernel::queue::Queue;
use crate::kernel::response::new_item;
use crate::kernel::turn::{Stop, TurnMessage};
use crate::ports::Snapshot;
use crate::telemetry;

/// How long a closing session waits for its turn to wind down.
const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// Work beside the actor that may be done and not yet looked at.
const MAX_DONE: usize = 64;
/// What the model reads where a person interrupted.
const INTERRUPTED: &str = "[Request interrupted by user]";
/// What the model reads in the place of an interrupted tool's result.
const TOOL_INTERRUPTED: &str = "[Request interrupted by user for tool use]";

/// Owns everything of one live session.
pub(super) struct Actor {
    pub(super) parts: Arc<KernelParts>,
    pub(super) state: SessionState,
    /// Which items the state holds.
    pub(super) window: Window,
    pub(super) outbox: Outbox,
    pub(super) queue: Queue,
    pub(super) policy: Policy,
    /// How much the model reasons, from the next turn on.
    pub(super) thinking: Option<Effort>,
    pub(super) turn: Option<RunningTurn>,
    /// A command that keeps the session busy.
    pub(super) busy_command: Option<IntentId>,
    /// Every running command.
    pub(super) commands: Vec<(IntentId, CancellationToken)>,
    /// What was asked before, and is not done again.
    pub(super) intents: Intents,
    pub(super) done: mpsc::Sender<Done>,
    pub(super) questions: BTreeMap<InteractionId, OpenQuestion>,
    pub(super) intake: Intake,
    /// Absent once no plugin is starting.
    pub(super) starting: Option<Starting>,
    /// What the model no longer sees.
    pub(super) cuts: Vec<Cut>,
    /// The last item that the newest count of the context covers.
    pub(super) counted: Option<ItemId>,
    /// Compactions thrown away in a row.
    pub(super) useless_compactions: u32,
    pub(super) closing: Option<Closing>,
    done_queue: mpsc::Receiver<Done>,
    next_seq: Seq,
    /// Frames of the message being handled; they leave together.
    batch: Vec<Arc<Frame>>,
}

/// The turn that runs.
pub(super) struct RunningTurn {
    pub(super) id: TurnId,
    pub(super) cancel: CancellationToken,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) interrupted: Option<InterruptReason>,
    pub(super) usage: Usage,
    pub(super) messages: mpsc::Receiver<TurnMessage>,
    pub(super) task: JoinHandle<Result<(), Stop>>,
    /// What the task came to, once it ended.
    pub(super) outcome: Option<Result<Result<(), Stop>, JoinError>>,
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

/// Work beside the actor that ended.
pub(super) enum Done {
    Command(Box<CommandDone>),
    Intake(IntakeDone),
    /// What a request came to that was asked again.
    Repeated(Repeated),
}

/// What an actor can be woken by.
enum Wake {
    Write(Option<Write>),
    Turn(Option<TurnMessage>),
    Done(Done),
    Start(Start),
    /// The disk took what was there, or failed.
    Drained,
    GraceOver,
}

impl Actor {
    /// Returns the actor after it published the head of this run.
    pub(super) fn new(parts: Arc<KernelParts>, begin: Begin, outbox: Outbox) -> Self {
        let (done, done_queue) = mpsc::channel(MAX_DONE);
        let queue = Queue::resume(begin.replay.unfinished.queued.clone(), begin.replay.queue_revision);
        let cwd = Path::new(&begin.replay.state.summary.cwd);
        let policy = Policy::new(parts.settings.mode, parts.settings.rules.clone(), cwd);
        let starting = Starting::of(&*parts.offers);
        let mut actor = Self {
            parts,
            state: begin.replay.state.clone(),
            window: begin.replay.window.without_places(),
            outbox,
            queue,
            policy,
            thinking: begin.thinking,
            turn: None,
            busy_command: None,
            commands: Vec::new(),
            intents: begin.replay.intents.clone(),
            done,
            questions: BTreeMap::new(),
            intake: Intake::default(),
            starting,
            cuts: begin.replay.cuts.clone(),
            counted: None,
            useless_compactions: 0,
            closing: None,
            done_queue,
            next_seq: begin.first,
            batch: Vec::new(),
        };
        // The head is on its way before anybody can subscribe, so that every snapshot covers it.
        actor.begin(&begin);
        // What waited when the last run ended goes on.
        actor.drain_queue();
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
                // Nobody can reach the session any more.
                Wake::Write(None) => self.close(CloseReason::Shutdown),
                Wake::Turn(Some(message)) => self.turn_message(message),
                Wake::Turn(None) => self.turn_ended().await,
                Wake::Done(Done::Command(done)) => self.command_done(*done),
                Wake::Done(Done::Intake(done)) => self.taken_in(done),
                Wake::Done(Done::Repeated(repeated)) => self.repeated(repeated),
                Wake::Start(start) => self.start_went_on(start),
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
        let (turn_room, client_room) = (self.outbox.has_turn_room(), self.outbox.has_client_room());
        let reachable = self.closing.is_none() || !writes.is_closed();
        tokio::select! {
            biased;
            write = writes.recv(), if client_room && reachable => Wake::Write(write),
            Some(done) = self.done_queue.recv() => Wake::Done(done),
            start = starting::next(&mut self.starting) => Wake::Start(start),
            message = next_message(&mut self.turn), if turn_room => Wake::Turn(message),
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
        self.window.fold(&mut self.state, &frame);
        Cut::fold(&mut self.cuts, &frame.event);
        self.intents.apply(&frame);
        self.batch.push(Arc::new(frame));
    }

    /// Publishes what became of a client's write.
    pub(super) fn acknowledge(&mut self, intent: &IntentId, outcome: IntentOutcome) {
        let digest = self.intents.request(intent).map(|digest| digest.to_string());
        self.emit_caused(Some(intent), Event::IntentAck { intent: intent.clone(), outcome, digest });
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
            TurnMessage::Transcript(reply) => drop(reply.send(self.transcript())),
            TurnMessage::Gate(request, reply) => self.gate(request, reply),
            TurnMessage::Ask { item, question, reply } => self.ask(item, question, reply),
            TurnMessage::Compacted(done, reply) => {
                let counts = self.compacted(*done);
                let _ = reply.send(counts);
            }
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
        let counts = matches!(event, Event::TurnUsage { .. });
        let ended = match &event {
            Event::ItemCompleted { item } => Some(item.id.clone()),
            _ => None,
        };
        self.emit(event);
        if counts {
            self.counted = self.state.items.last().map(|item| item.id.clone());
        }
        if let Some(item) = ended {
            self.cancel_abandoned(&item);
        }
    }

    /// Returns where hooks are called from when no turn calls them.
    pub(super) fn site(&self) -> HookSite {
        HookSite {
            session: self.state.summary.id.clone(),
            turn: self.turn.as_ref().map(|turn| turn.id.clone()),
            cwd: self.state.summary.cwd.clone(),
            model: self.state.summary.model.clone(),
        }
    }

    /// Tells hooks that a turn begins or ended, with its items.
    pub(super) fn observe_turn(&self, snapshot: &Snapshot, phase: Phase, turn: &TurnId) {
        if !hooks::any_wants(snapshot, HookPoint::Turn) {
            return;
        }
        let own = self.state.items.iter().filter(|item| item.turn.as_ref() == Some(turn));
        let items = own.map(|item| (**item).clone()).collect();
        let site = HookSite { turn: Some(turn.clone()), ..self.site() };
        hooks::observe(snapshot, &site, &ObservePoint::Turn { phase, turn: turn.clone(), items });
    }

    /// Tells hooks that this run of the session begins or ended.
    pub(super) fn observe_session(&self, phase: Phase) {
        hooks::observe(&self.parts.offers.snapshot(), &self.site(), &ObservePoint::Session { phase });
    }

    /// The turn's task ended and all that it sent is read: it is over, one way or another.
    async fn turn_ended(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        let outcome = match turn.outcome.take() {
            Some(outcome) => outcome,
            None => (&mut turn.task).await,
        };
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
        self.emit(Event::TurnCompleted { turn: turn.id.clone(), status, usage: turn.usage });
        self.observe_turn(&turn.snapshot, Phase::End, &turn.id);
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

/// Returns the next message of the turn; nothing once its task ended. What else holds a way to the turn, such as a plugin
/// whose question is open, holds nothing up.
async fn next_message(turn: &mut Option<RunningTurn>) -> Option<TurnMessage> {
    let Some(turn) = turn else { return std::future::pending().await };
    tokio::select! {
        biased;
        message = turn.messages.recv() => return message,
        outcome = &mut turn.task, if turn.outcome.is_none() => turn.outcome = Some(outcome),
    }
    turn.messages.close();
    turn.messages.recv().await
}

async fn grace(until: Option<Instant>) {
    match until {
        Some(until) => sleep(until.saturating_duration_since(Instant::now())).await,
        None => std::future::pending().await,
    }
}
