//! Commands of a session: looked up in one snapshot, run beside the actor, applied when they end (kernel rules 8.1).

use std::sync::Arc;

use bingo_plugin_sdk::calls::CommandOutcome;
use bingo_plugin_sdk::event::{ErrorCode, Event, IntentOutcome, KernelError, TurnOrigin};
use bingo_plugin_sdk::ids::{IntentId, TurnId};
use bingo_plugin_sdk::item::{ContentPart, ItemBody, ItemStatus};
use bingo_plugin_sdk::session::Driver;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::actor::{Actor, Done};
use crate::kernel::KernelParts;
use crate::kernel::builtin;
use crate::kernel::input::{CommandLine, Prose, Work};
use crate::kernel::outbox::Outbox;
use crate::kernel::response::new_item;
use crate::kernel::rewind::{self, Rewinding};
use crate::kernel::turn::Purpose;
use crate::kernel::unfinished::{self, Running};
use crate::ports::Command;

/// A command that ended.
pub(super) struct CommandDone {
    intent: IntentId,
    line: CommandLine,
    outcome: Result<Outcome, KernelError>,
}

/// What a command came to.
enum Outcome {
    /// What commands of plugins can come to.
    Plain(CommandOutcome),
    Rewind(Rewinding),
}

impl Actor {
    /// A command ended: what it came to, then whatever waited for it (kernel rule 8.1.5).
    pub(super) fn command_done(&mut self, done: CommandDone) {
        let Some(place) = self.commands.iter().position(|(intent, _)| *intent == done.intent) else { return };
        self.commands.remove(place);
        let CommandDone { intent, line, outcome } = done;
        if self.busy_command.as_ref() == Some(&intent) {
            self.busy_command = None;
        }
        match outcome {
            Ok(Outcome::Plain(CommandOutcome::Prompt { text })) => self.expand(intent, &line, &text),
            Ok(Outcome::Plain(outcome)) => {
                let result = self.apply_outcome(outcome);
                self.acknowledge(&intent, IntentOutcome::Applied { result });
            }
            Ok(Outcome::Rewind(rewinding)) => match self.rewind(rewinding) {
                Ok(result) => self.acknowledge(&intent, IntentOutcome::Applied { result }),
                Err(error) => self.reject(&intent, error),
            },
            Err(error) => self.reject(&intent, error),
        }
        if self.commands.is_empty() {
            self.forget_stored(unfinished::RUNNING);
        }
        self.publish_config();
        self.drain_queue();
    }

    pub(super) fn submit_command(&mut self, intent: IntentId, line: CommandLine) {
        let snapshot = self.parts.offers.snapshot();
        let instant =
            find_command(&snapshot.commands, &line.name).is_some_and(|command| command.spec().instant);
        if self.turn.is_some() && line.name == builtin::REWIND {
            let message = "a turn is running; interrupt it, or go back when it ended";
            return self.reject(&intent, KernelError::new(ErrorCode::NotReady, message));
        }
        if self.is_busy() && !instant {
            return self.enqueue(intent, Work::Command(line), false);
        }
        self.run_command(intent, line);
    }

    pub(super) fn run_command(&mut self, intent: IntentId, line: CommandLine) {
        let cancel = CancellationToken::new();
        let context = self.context(None, cancel.clone());
        if line.name == builtin::COMPACT {
            return self.compact(&intent, line.args);
        }
        if line.name == builtin::REWIND {
            let running = reading(Arc::clone(&self.parts), self.outbox.clone(), line.args.clone());
            self.busy_command = Some(intent.clone());
            return self.start_command(intent, line, cancel, running);
        }
        let Some(command) = find_command(&context.snapshot.commands, &line.name).cloned() else {
            let message = format!("unknown command: /{}", line.name);
            return self.reject(&intent, KernelError::new(ErrorCode::InvalidInput, message));
        };
        if !command.spec().instant {
            self.busy_command = Some(intent.clone());
        }
        let args = line.args.clone();
        let running = async move { command.run(context, args).await.map(Outcome::Plain) };
        self.start_command(intent, line, cancel, running);
    }

    /// Runs a command beside the actor, once it is stored that it began.
    fn start_command(
        &mut self,
        intent: IntentId,
        line: CommandLine,
        cancel: CancellationToken,
        command: impl Future<Output = Result<Outcome, KernelError>> + Send + 'static,
    ) {
        self.commands.push((intent.clone(), cancel));
        // Stored before it runs, so that it runs at most once.
        let digest = self.intents.request(&intent);
        self.emit(unfinished::running(&Running { intent: intent.clone(), digest }));
        self.commit();
        let (outbox, done) = (self.outbox.clone(), self.done.clone());
        let running = tokio::spawn(async move {
            let unstored =
                || KernelError::new(ErrorCode::Storage, "the command could not be noted, so it did not run");
            outbox.flush().await.ok_or_else(unstored)?;
            command.await
        });
        tokio::spawn(async move {
            let outcome = running.await.unwrap_or_else(|error| {
                tracing::error!(command = line.name, %error, "a command panicked");
                Err(KernelError::new(ErrorCode::Internal, "the command ended in an error of the host"))
            });
            // A session that closed meanwhile has rejected the command.
            drop(done.send(Done::Command(Box::new(CommandDone { intent, line, outcome }))).await);
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

    /// Goes back to before a turn; returns what the acknowledgement says. What was recorded while the transcript was read
    /// goes too.
    ///
    /// # Errors
    /// `NOT_READY` when that is more than is held.
    fn rewind(&mut self, rewinding: Rewinding) -> Result<Value, KernelError> {
        let Rewinding { turn: to_turn, mut dropped } = rewinding;
        let held = self.state.items[self.window.early()..].iter();
        let Some(newest) = held.clone().rposition(|item| dropped.last() == Some(&item.id)) else {
            let message = "too much was recorded in this session meanwhile; go back again";
            return Err(KernelError::new(ErrorCode::NotReady, message));
        };
        dropped.extend(held.skip(newest + 1).map(|item| item.id.clone()));
        let count = dropped.len();
        let body = ItemBody::Rewind { to_turn: to_turn.clone(), dropped: count as u32 };
        let item = new_item(None, 0, ItemStatus::Completed, body);
        self.emit(Event::ItemCompleted { item: Arc::new(item) });
        let message = format!("went back to before turn {to_turn}: {count} items were dropped");
        let (generation, files_restored) = (self.state.history_generation + 1, Vec::new());
        self.emit(Event::Rewound { generation, to_turn, dropped, files_restored });
        Ok(json!({ "message": message }))
    }

    /// A command became words for the model, under the intent of the typed line (kernel rule 8.1.4).
    fn expand(&mut self, intent: IntentId, line: &CommandLine, text: &str) {
        let mut origin = line.origin.clone();
        origin.surface = "command".to_owned();
        let parts = vec![ContentPart::text(format!("{}\n\n{text}", line.typed()))];
        self.accept(intent, Ok(Work::Prose(Prose { parts, origin })), Actor::submit);
    }

    /// Opens a turn that only shortens the context (kernel rule 1.3.21).
    fn compact(&mut self, intent: &IntentId, args: String) {
        if self.state.summary.driver == Driver::Log {
            let message = "nobody answers in this session, so there is no context to compact";
            return self.reject(intent, KernelError::new(ErrorCode::InvalidInput, message));
        }
        let turn = TurnId::mint();
        self.emit(Event::TurnStarted { turn: turn.clone(), inputs: Vec::new(), origin: TurnOrigin::Auto });
        let result = json!({ "message": "compacting the conversation" });
        self.acknowledge(intent, IntentOutcome::Applied { result });
        let instructions = Some(args).filter(|args| !args.is_empty());
        self.start_turn(turn, Purpose::Compact { instructions });
    }
}

/// Reads what `/rewind` shows or takes away, from the transcript as it is published then.
async fn reading(parts: Arc<KernelParts>, outbox: Outbox, args: String) -> Result<Outcome, KernelError> {
    let closed =
        || KernelError::new(ErrorCode::SessionClosed, "the session closed while its turns were read");
    let view = outbox.view().await.ok_or_else(closed)?;
    match args.trim() {
        "" => {
            let view = rewind::turns(&view, &*parts.journal).await?;
            Ok(Outcome::Plain(CommandOutcome::View { view }))
        }
        turn => rewind::before(&view, &*parts.journal, TurnId::from(turn)).await.map(Outcome::Rewind),
    }
}

fn find_command<'a>(commands: &'a [Arc<dyn Command>], name: &str) -> Option<&'a Arc<dyn Command>> {
    commands.iter().find(|command| {
        let spec = command.spec();
        spec.name == name || spec.aliases.iter().any(|alias| alias == name)
    })
}
