//! What clients ask of a session: submit, deliver, interrupt, answer, extend, signal (kernel rules 3.3 to 3.6).

use std::sync::Arc;

use bingo_plugin_sdk::calls::Phase;
use bingo_plugin_sdk::event::{
    CancelReason, ErrorCode, Event, IntentOutcome, InterruptReason, KernelError, TurnOrigin, Usage,
};
use bingo_plugin_sdk::ids::{IntentId, ItemId, TurnId};
use bingo_plugin_sdk::item::{Item, ItemBody, ItemStatus, Level};
use bingo_plugin_sdk::rpc::{Delivery, InterruptScope};
use bingo_plugin_sdk::session::{Driver, SessionSummary};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::actor::{Actor, RunningTurn};
use super::{Ask, Write};
use crate::kernel::input::{Prose, Work, title};
use crate::kernel::queue::{MAX_BYTES, MAX_WAITING, Unit, Waiting};
use crate::kernel::response::new_item;
use crate::kernel::turn::{Purpose, Stop, Turn, TurnMessage};
use crate::kernel::unfinished;
use crate::ports::{CallContext, Notice};

/// Messages of a turn that may wait for the actor.
const MAX_TURN_MESSAGES: usize = 64;

impl Actor {
    /// Does what a client asked for.
    pub(super) fn write(&mut self, write: Write) {
        match write {
            Write::Asked { intent, digest, ask } if self.is_first(&intent, digest) => self.asked(intent, ask),
            Write::Asked { .. } => {}
            Write::Extend { plugin, kind, payload, stored } => {
                self.emit(Event::Extension { plugin, kind, payload });
                self.commit();
                self.outbox.tell_when_stored(stored);
            }
            Write::Signal { plugin, kind, payload } => self.emit(Event::Signal { plugin, kind, payload }),
            Write::Notice(notice) => self.notice(notice),
            Write::Close(reason) => self.close(reason),
        }
    }

    fn asked(&mut self, intent: IntentId, ask: Ask) {
        match ask {
            Ask::Submit { input, work } => self.take_in(intent, *input, work),
            Ask::Deliver { work, delivery } => {
                self.accept(intent, work, |actor, intent, work| actor.deliver(intent, work, delivery));
            }
            Ask::Interrupt { scope } => self.interrupt(&intent, &scope),
            Ask::Answer(answer) => self.answer(intent, *answer),
        }
    }

    /// Does what waits, once nothing runs.
    pub(super) fn drain_queue(&mut self) {
        while !self.is_busy() && self.starting.is_none() && !self.queue.is_empty() {
            match self.queue.take_unit() {
                Some(Unit::Prose(lines)) => self.open_turn(lines, TurnOrigin::Queue),
                Some(Unit::Command(intent, line)) => self.run_command(intent, line),
                None => return,
            }
            self.announce_queue();
        }
    }

    /// Publishes what waits now.
    pub(super) fn announce_queue(&mut self) {
        if self.queue.is_empty() {
            self.forget_stored(unfinished::QUEUED);
        }
        let changed = self.queue.changed();
        self.emit(changed);
    }

    /// Says that nothing of a kind of stored work is left, so that clients do not hold the last of it.
    pub(super) fn forget_stored(&mut self, kind: &str) {
        let stored = self.state.extensions.get(unfinished::NAMESPACE).and_then(|kinds| kinds.get(kind));
        if stored.is_some_and(|payload| !payload.is_null()) {
            self.emit(unfinished::none(kind));
        }
    }

    /// Takes waiting words into the running turn, between two rounds.
    pub(super) fn absorb(&mut self) {
        let Some(turn) = self.turn.as_ref().map(|turn| turn.id.clone()) else { return };
        let lines = self.queue.take_steerable();
        if lines.is_empty() {
            return;
        }
        self.announce_queue();
        for (intent, prose) in lines {
            self.record(&intent, Some(&turn), prose);
            self.acknowledge(&intent, IntentOutcome::TurnStarted { turn: turn.clone() });
        }
    }

    pub(super) fn accept(
        &mut self,
        intent: IntentId,
        work: Result<Work, KernelError>,
        act: impl FnOnce(&mut Self, IntentId, Work),
    ) {
        if self.closing.is_some() {
            let error = KernelError::new(ErrorCode::SessionClosed, "the session is closing");
            return self.reject(&intent, error);
        }
        match work {
            Ok(work) => act(self, intent, work),
            Err(error) => self.reject(&intent, error),
        }
    }

    pub(super) fn submit(&mut self, intent: IntentId, work: Work) {
        match work {
            Work::Command(line) => self.submit_command(intent, line),
            Work::Prose(prose) if self.state.summary.driver == Driver::Log => self.log(&intent, prose),
            Work::Prose(prose) if self.is_busy() => self.enqueue(intent, Work::Prose(prose), false),
            Work::Prose(prose) => self.open_turn_with(intent, prose, TurnOrigin::Submit),
        }
    }

    fn deliver(&mut self, intent: IntentId, work: Work, delivery: Delivery) {
        let Work::Prose(prose) = work else { return };
        if self.state.summary.driver == Driver::Log {
            return self.log(&intent, prose);
        }
        match delivery {
            Delivery::Wake if !self.is_busy() && self.starting.is_none() => {
                self.open_turn_with(intent, prose, TurnOrigin::Peer)
            }
            Delivery::Wake => {
                self.enqueue(intent, Work::Prose(prose), false);
                self.waits_for_plugins();
            }
            Delivery::Hold => self.enqueue(intent, Work::Prose(prose), true),
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.turn.is_some() || self.busy_command.is_some()
    }

    pub(super) fn enqueue(&mut self, intent: IntentId, work: Work, hold: bool) {
        if self.queue.is_full_for(&work) {
            let message = format!(
                "no more may wait in this session ({MAX_WAITING} inputs, {} MiB); send it later, under a new intent",
                MAX_BYTES / 1024 / 1024
            );
            return self.reject(&intent, KernelError::new(ErrorCode::NotReady, message));
        }
        let digest = self.intents.request(&intent);
        let waiting = Waiting { intent: intent.clone(), digest, work, hold };
        self.emit(unfinished::queued(&waiting));
        let position = self.queue.push(waiting);
        self.announce_queue();
        self.acknowledge(&intent, IntentOutcome::Queued { position });
    }

    /// Records words in a session that nobody answers in.
    fn log(&mut self, intent: &IntentId, prose: Prose) {
        let item = self.record(intent, None, prose);
        self.acknowledge(intent, IntentOutcome::Applied { result: json!({ "item": item }) });
    }

    /// Opens a turn for these words, taking the words that waited before them along.
    fn open_turn_with(&mut self, intent: IntentId, prose: Prose, origin: TurnOrigin) {
        let mut lines = self.queue.take_leading_prose();
        if !lines.is_empty() {
            self.announce_queue();
        }
        lines.push((intent, prose));
        self.open_turn(lines, origin);
    }

    fn open_turn(&mut self, lines: Vec<(IntentId, Prose)>, origin: TurnOrigin) {
        let turn = TurnId::mint();
        let (intents, prose): (Vec<_>, Vec<_>) = lines.into_iter().unzip();
        let inputs: Vec<ItemId> = intents
            .iter()
            .zip(prose)
            .map(|(intent, prose)| self.record(intent, Some(&turn), prose))
            .collect();
        self.emit(Event::TurnStarted { turn: turn.clone(), inputs, origin });
        for intent in &intents {
            self.acknowledge(intent, IntentOutcome::TurnStarted { turn: turn.clone() });
        }
        self.start_turn(turn, Purpose::Answer);
    }

    /// Records words as a user item; the first words of a person name the session.
    fn record(&mut self, intent: &IntentId, turn: Option<&TurnId>, prose: Prose) -> ItemId {
        let round =
            self.state.turn.as_ref().filter(|live| Some(&live.id) == turn).map_or(0, |live| live.round);
        let text = prose.text().map(str::to_owned);
        let surface = prose.origin.surface.clone();
        let body = ItemBody::User { parts: prose.parts, origin: prose.origin };
        let mut item = new_item(turn.cloned(), round, ItemStatus::Completed, body);
        item.intent = Some(intent.clone());
        let id = item.id.clone();
        self.emit_caused(Some(intent), Event::ItemCompleted { item: Arc::new(item) });
        if self.state.summary.title.is_none() && surface != "command" && surface != "kernel" {
            self.mint_title(text.as_deref().unwrap_or_default());
        }
        id
    }

    fn mint_title(&mut self, text: &str) {
        if let Some(title) = title(text) {
            self.change_summary(|summary| summary.title = Some(title));
        }
    }

    /// Publishes the summary with something changed.
    pub(super) fn change_summary(&mut self, change: impl FnOnce(&mut SessionSummary)) {
        let mut summary = self.state.summary.clone();
        change(&mut summary);
        summary.busy = self.turn.is_some();
        summary.updated_at = crate::telemetry::now();
        self.emit(Event::SessionUpdated { summary: Box::new(summary) });
    }

    pub(super) fn start_turn(&mut self, id: TurnId, purpose: Purpose) {
        let (session, messages) = mpsc::channel(MAX_TURN_MESSAGES);
        let cancel = CancellationToken::new();
        let context = self.context(Some(id.clone()), cancel.clone());
        let snapshot = Arc::clone(&context.snapshot);
        self.observe_turn(&snapshot, Phase::Start, &id);
        let turn = self.resolve_turn(id.clone(), purpose, context, session);
        let task = tokio::spawn(async move {
            match turn {
                Ok(turn) => turn.run().await,
                Err(error) => Err(Stop::Failed(error)),
            }
        });
        let usage = Usage::default();
        self.turn = Some(RunningTurn {
            id,
            cancel,
            snapshot,
            interrupted: None,
            usage,
            messages,
            task,
            outcome: None,
        });
    }

    /// Resolves once what a turn takes along: snapshot, provider, model and tools (kernel rule 4.1.1).
    fn resolve_turn(
        &self,
        id: TurnId,
        purpose: Purpose,
        context: CallContext,
        session: mpsc::Sender<TurnMessage>,
    ) -> Result<Turn, KernelError> {
        let (provider, model) = self.parts.resolve_model(&context.snapshot, &self.state.summary)?;
        let only = self.state.summary.tools.as_ref();
        let offered = |name: &String| only.is_none_or(|only| only.contains(name));
        let tools =
            context.snapshot.tools.iter().filter(|tool| offered(&tool.spec().name)).cloned().collect();
        let system_extra = self.state.summary.system_extra.clone();
        let budget = self.parts.budget(provider.spec(), &model, self.thinking);
        let (offers, journal) = (Arc::clone(&self.parts.offers), Arc::clone(&self.parts.journal));
        Ok(Turn {
            id,
            purpose,
            context,
            provider,
            model,
            tools,
            system_extra,
            budget,
            max_rounds: self.parts.settings.max_rounds,
            session,
            offers,
            journal,
        })
    }

    pub(super) fn context(&self, turn: Option<TurnId>, cancel: CancellationToken) -> CallContext {
        CallContext {
            snapshot: self.parts.offers.snapshot(),
            session: self.state.summary.id.clone(),
            turn,
            cwd: self.state.summary.cwd.clone().into(),
            cancel,
            asker: None,
        }
    }

    fn interrupt(&mut self, intent: &IntentId, scope: &InterruptScope) {
        let wanted = |turn: &&mut RunningTurn| match scope {
            InterruptScope::Head => true,
            InterruptScope::Turn { turn: id } => turn.id == *id,
        };
        let Some(turn) = self.turn.as_mut().filter(wanted) else {
            if *scope == InterruptScope::Head && !self.intake.is_empty() {
                return self.interrupt_intake(intent);
            }
            let error = KernelError::new(ErrorCode::NotReady, "no such turn is running");
            return self.reject(intent, error);
        };
        turn.interrupted.get_or_insert(InterruptReason::UserCancel);
        turn.cancel.cancel();
        let result = json!({ "turn": turn.id });
        self.cancel_interactions(CancelReason::Interrupted);
        self.acknowledge(intent, IntentOutcome::Applied { result });
    }

    /// Takes submitted inputs off their way before their turn opens.
    fn interrupt_intake(&mut self, intent: &IntentId) {
        for submitted in self.intake.cancel() {
            let error = KernelError::new(ErrorCode::NotReady, "interrupted before its turn opened");
            self.reject(&submitted, error);
        }
        self.acknowledge(intent, IntentOutcome::Applied { result: json!({}) });
    }

    /// Shows a remark of the host in the transcript.
    pub(super) fn notice(&mut self, notice: Notice) {
        if self.closing.is_some() {
            return;
        }
        let Notice { level, code, text } = notice;
        if level == Level::Error {
            tracing::warn!(session = %self.state.summary.id, code, text, "a notice");
        }
        let body = ItemBody::Notice { level, code: code.to_owned(), text };
        let item: Item = new_item(None, 0, ItemStatus::Completed, body);
        self.emit(Event::ItemCompleted { item: Arc::new(item) });
    }
}
