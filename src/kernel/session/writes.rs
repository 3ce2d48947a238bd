//! What clients ask of a session: submit, deliver, interrupt, answer, extend, signal (kernel rules 3.3 to 3.6).

use std::sync::Arc;
use std::time::Instant;

use bingo_plugin_sdk::calls::CommandOutcome;
use bingo_plugin_sdk::event::{
    CancelReason, ErrorCode, Event, IntentOutcome, InterruptReason, KernelError, TurnOrigin, Usage,
};
use bingo_plugin_sdk::ids::{IntentId, ItemId, TurnId};
use bingo_plugin_sdk::interaction::{Answer, InteractionKind, ResolvedBy};
use bingo_plugin_sdk::item::{ContentPart, DecisionKind, Item, ItemBody, ItemStatus, Level};
use bingo_plugin_sdk::rpc::{Activation, Delivery, InterruptScope};
use bingo_plugin_sdk::session::Driver;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::actor::{Actor, OpenQuestion, RunningTurn};
use super::{AnswerWrite, Write};
use crate::kernel::gate::check_answer;
use crate::kernel::input::{CommandLine, Prose, Work, title};
use crate::kernel::queue::{MAX_WAITING, Unit, Waiting};
use crate::kernel::response::new_item;
use crate::kernel::turn::{Stop, Turn, Verdict};
use crate::ports::{CallContext, Command, Notice};

/// Messages of a turn that may wait for the actor.
const MAX_TURN_MESSAGES: usize = 64;

/// A command that ended.
pub(super) struct CommandDone {
    intent: IntentId,
    line: CommandLine,
    outcome: Result<CommandOutcome, KernelError>,
}

impl Actor {
    /// Does what a client asked for.
    pub(super) fn write(&mut self, write: Write) {
        match write {
            Write::Submit { intent, work } => self.accept(intent, work, Actor::submit),
            Write::Deliver { intent, work, delivery } => {
                self.accept(intent, work, |actor, intent, work| actor.deliver(intent, work, delivery));
            }
            Write::Interrupt { intent, scope } => self.interrupt(&intent, &scope),
            Write::Answer(answer) => self.answer(*answer),
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

    /// A command ended: what it came to, then whatever waited for it (kernel rule 8.1.5).
    pub(super) fn command_done(&mut self, done: CommandDone) {
        let Some(place) = self.commands.iter().position(|intent| *intent == done.intent) else { return };
        self.commands.remove(place);
        let CommandDone { intent, line, outcome } = done;
        if self.busy_command.as_ref() == Some(&intent) {
            self.busy_command = None;
        }
        match outcome {
            Ok(CommandOutcome::Prompt { text }) => self.expand(intent, &line, &text),
            Ok(outcome) => {
                let result = self.apply_outcome(outcome);
                self.acknowledge(&intent, IntentOutcome::Applied { result });
            }
            Err(error) => self.reject(&intent, error),
        }
        self.publish_config();
        self.drain_queue();
    }

    /// Does what waits, once nothing runs.
    pub(super) fn drain_queue(&mut self) {
        while !self.is_busy() && !self.queue.is_empty() {
            match self.queue.take_unit() {
                Some(Unit::Prose(lines)) => self.open_turn(lines, TurnOrigin::Queue),
                Some(Unit::Command(intent, line)) => self.run_command(intent, line),
                None => return,
            }
            let changed = self.queue.changed();
            self.emit(changed);
        }
    }

    /// Takes waiting words into the running turn, between two rounds.
    pub(super) fn absorb(&mut self) {
        let Some(turn) = self.turn.as_ref().map(|turn| turn.id.clone()) else { return };
        let lines = self.queue.take_steerable();
        if lines.is_empty() {
            return;
        }
        let changed = self.queue.changed();
        self.emit(changed);
        for (intent, prose) in lines {
            self.record(&intent, Some(&turn), prose);
            self.acknowledge(&intent, IntentOutcome::TurnStarted { turn: turn.clone() });
        }
    }

    fn accept(
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

    fn submit(&mut self, intent: IntentId, work: Work) {
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
            Delivery::Wake if !self.is_busy() => self.open_turn_with(intent, prose, TurnOrigin::Peer),
            Delivery::Wake => self.enqueue(intent, Work::Prose(prose), false),
            Delivery::Hold => self.enqueue(intent, Work::Prose(prose), true),
        }
    }

    fn is_busy(&self) -> bool {
        self.turn.is_some() || self.busy_command.is_some()
    }

    fn enqueue(&mut self, intent: IntentId, work: Work, hold: bool) {
        if self.queue.is_full() {
            let message = format!("{MAX_WAITING} inputs wait in this session already; send it again later");
            return self.reject(&intent, KernelError::new(ErrorCode::NotReady, message));
        }
        let position = self.queue.push(Waiting { intent: intent.clone(), work, hold });
        let changed = self.queue.changed();
        self.emit(changed);
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
            let changed = self.queue.changed();
            self.emit(changed);
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
        self.start_turn(turn);
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
        let Some(title) = title(text) else { return };
        let mut summary = self.state.summary.clone();
        summary.title = Some(title);
        summary.busy = self.turn.is_some();
        summary.updated_at = crate::telemetry::now();
        self.emit(Event::SessionUpdated { summary: Box::new(summary) });
    }

    fn start_turn(&mut self, id: TurnId) {
        let (session, messages) = mpsc::channel(MAX_TURN_MESSAGES);
        let cancel = CancellationToken::new();
        let turn = self.resolve_turn(id.clone(), cancel.clone(), session);
        let task = tokio::spawn(async move {
            match turn {
                Ok(turn) => turn.run().await,
                Err(error) => Err(Stop::Failed(error)),
            }
        });
        let usage = Usage::default();
        self.turn = Some(RunningTurn { id, cancel, interrupted: None, usage, messages, task });
    }

    /// Resolves once what a turn takes along: snapshot, provider, model and tools (kernel rule 4.1.1).
    fn resolve_turn(
        &self,
        id: TurnId,
        cancel: CancellationToken,
        session: mpsc::Sender<crate::kernel::turn::TurnMessage>,
    ) -> Result<Turn, KernelError> {
        let context = self.context(Some(id.clone()), cancel);
        let (provider, model) = self.parts.resolve_model(&context.snapshot, &self.state.summary)?;
        let only = self.state.summary.tools.as_ref();
        let offered = |name: &String| only.is_none_or(|only| only.contains(name));
        let tools =
            context.snapshot.tools.iter().filter(|tool| offered(&tool.spec().name)).cloned().collect();
        let (system_extra, budget) = (self.state.summary.system_extra.clone(), self.parts.settings.budget);
        Ok(Turn { id, context, provider, model, tools, system_extra, budget, session })
    }

    fn context(&self, turn: Option<TurnId>, cancel: CancellationToken) -> CallContext {
        CallContext {
            snapshot: self.parts.offers.snapshot(),
            session: self.state.summary.id.clone(),
            turn,
            cwd: self.state.summary.cwd.clone().into(),
            cancel,
            asker: None,
        }
    }

    fn submit_command(&mut self, intent: IntentId, line: CommandLine) {
        let snapshot = self.parts.offers.snapshot();
        let instant =
            find_command(&snapshot.commands, &line.name).is_some_and(|command| command.spec().instant);
        if self.is_busy() && !instant {
            return self.enqueue(intent, Work::Command(line), false);
        }
        self.run_command(intent, line);
    }

    fn run_command(&mut self, intent: IntentId, line: CommandLine) {
        let context = self.context(None, CancellationToken::new());
        let Some(command) = find_command(&context.snapshot.commands, &line.name).cloned() else {
            let message = format!("unknown command: /{}", line.name);
            return self.reject(&intent, KernelError::new(ErrorCode::InvalidInput, message));
        };
        if !command.spec().instant {
            self.busy_command = Some(intent.clone());
        }
        self.commands.push(intent.clone());
        let running = tokio::spawn(command.run(context, line.args.clone()));
        let done = self.done.clone();
        tokio::spawn(async move {
            let outcome = running.await.unwrap_or_else(|error| {
                tracing::error!(command = line.name, %error, "a command panicked");
                Err(KernelError::new(ErrorCode::Internal, "the command ended in an error of the host"))
            });
            // A session that closed meanwhile has rejected the command.
            drop(done.send(CommandDone { intent, line, outcome }).await);
        });
    }

    /// Applies what a command came to; returns what its acknowledgement says.
    fn apply_outcome(&mut self, outcome: CommandOutcome) -> Value {
        match outcome {
            CommandOutcome::Applied { message: Some(message) } => json!({ "message": message }),
            CommandOutcome::View { view } => json!({ "view": view }),
            CommandOutcome::Record { body } => {
                let turn = self.turn.as_ref().map(|turn| turn.id.clone());
                let item = new_item(turn, 0, ItemStatus::Completed, body);
                let id = item.id.clone();
                self.emit(Event::ItemCompleted { item: Arc::new(item) });
                json!({ "item": id })
            }
            CommandOutcome::Applied { message: None } | CommandOutcome::Prompt { .. } => json!({}),
        }
    }

    /// A command became words for the model, under the intent of the typed line (kernel rule 8.1.4).
    fn expand(&mut self, intent: IntentId, line: &CommandLine, text: &str) {
        let mut origin = line.origin.clone();
        origin.surface = "command".to_owned();
        let parts = vec![ContentPart::text(format!("{}\n\n{text}", line.typed()))];
        self.accept(intent, Ok(Work::Prose(Prose { parts, origin })), Actor::submit);
    }

    fn interrupt(&mut self, intent: &IntentId, scope: &InterruptScope) {
        let wanted = |turn: &&mut RunningTurn| match scope {
            InterruptScope::Head => true,
            InterruptScope::Turn { turn: id } => turn.id == *id,
        };
        let Some(turn) = self.turn.as_mut().filter(wanted) else {
            let error = KernelError::new(ErrorCode::NotReady, "no such turn is running");
            return self.reject(intent, error);
        };
        turn.interrupted.get_or_insert(InterruptReason::UserCancel);
        turn.cancel.cancel();
        let result = json!({ "turn": turn.id });
        self.cancel_interactions(CancelReason::Interrupted);
        self.acknowledge(intent, IntentOutcome::Applied { result });
    }

    fn answer(&mut self, write: AnswerWrite) {
        let open = match self.questions.get(&write.interaction) {
            Some(open) => check(open, &write),
            None => {
                let message = format!("interaction {} is not open", write.interaction);
                Err(KernelError::new(ErrorCode::InteractionClosed, message))
            }
        };
        if let Err(error) = open {
            return self.reject(&write.intent, error);
        }
        let Some(open) = self.questions.remove(&write.interaction) else { return };
        let AnswerWrite { intent, interaction: id, answer, client, .. } = write;
        let by = ResolvedBy::Client { name: client.name, surface: client.surface };
        self.emit_caused(Some(&intent), Event::InteractionResolved { id, answer: answer.clone(), by });
        self.acknowledge(&intent, IntentOutcome::Applied { result: Value::Null });
        self.decide(open, answer);
    }

    /// Records a person's decision about a call and lets the turn go on.
    fn decide(&mut self, open: OpenQuestion, answer: Answer) {
        let InteractionKind::Permission { tool, .. } = &open.interaction.kind else { return };
        let (decision, verdict, feedback) = match answer {
            Answer::AllowOnce | Answer::Confirm => (DecisionKind::Allow, Verdict::Allowed, None),
            Answer::AllowSession { scope } => {
                self.policy.allow_for_session(&scope);
                (DecisionKind::AllowSession, Verdict::Allowed, None)
            }
            Answer::Deny { feedback } => {
                let words = feedback.as_ref().map(|words| format!(": {words}")).unwrap_or_default();
                let verdict = Verdict::Denied(format!("Permission denied by the user{words}"));
                (DecisionKind::Deny, verdict, feedback)
            }
            Answer::Choice { .. } | Answer::Text { .. } | Answer::Cancel => {
                let verdict = Verdict::Denied("Permission request cancelled".to_owned());
                (DecisionKind::Deny, verdict, None)
            }
        };
        let interaction = open.interaction.id.clone();
        let body = ItemBody::PermissionReceipt { interaction, tool: tool.clone(), decision, feedback };
        let round = self.state.turn.as_ref().map_or(0, |turn| turn.round);
        let item = new_item(open.interaction.turn.clone(), round, ItemStatus::Completed, body);
        self.emit(Event::ItemCompleted { item: Arc::new(item) });
        self.publish_config();
        // A turn that was cancelled meanwhile does not listen any more.
        drop(open.reply.send(verdict));
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

fn find_command<'a>(commands: &'a [Arc<dyn Command>], name: &str) -> Option<&'a Arc<dyn Command>> {
    commands.iter().find(|command| {
        let spec = command.spec();
        spec.name == name || spec.aliases.iter().any(|alias| alias == name)
    })
}

fn check(open: &OpenQuestion, write: &AnswerWrite) -> Result<(), KernelError> {
    if write.activation == Activation::Keyboard && Instant::now() < open.guard {
        let message = "the question has only just opened; answer again";
        return Err(KernelError::new(ErrorCode::NotReady, message));
    }
    check_answer(&open.interaction.kind, &open.interaction.answers, &write.answer)
        .map_err(|message| KernelError::new(ErrorCode::InvalidInput, message))
}
