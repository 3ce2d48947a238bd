//! Commands of a session: looked up in one snapshot, run beside the actor, applied when they end (kernel rules 8.1).

use std::sync::Arc;

use bingo_plugin_sdk::calls::CommandOutcome;
use bingo_plugin_sdk::event::{ErrorCode, Event, IntentOutcome, KernelError};
use bingo_plugin_sdk::ids::IntentId;
use bingo_plugin_sdk::item::{ContentPart, ItemStatus};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::actor::{Actor, Done};
use super::builtins::Change;
use crate::kernel::builtin::Builtin;
use crate::kernel::input::{CommandLine, Prose, Work};
use crate::kernel::response::new_item;
use crate::kernel::unfinished::{self, Running};
use crate::ports::Command;

/// A command that ended.
pub(super) struct CommandDone {
    intent: IntentId,
    line: CommandLine,
    outcome: Result<Outcome, KernelError>,
}

/// What a command came to.
pub(super) enum Outcome {
    /// What commands of plugins can come to.
    Plain(CommandOutcome),
    /// One of the kernel changes the session.
    Change(Change),
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
            Ok(Outcome::Change(change)) => match self.change(change) {
                Ok(message) => {
                    let result = json!({ "message": message });
                    self.acknowledge(&intent, IntentOutcome::Applied { result });
                }
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
        let builtin = Builtin::find(&line.name);
        let instant = builtin.map_or_else(|| self.is_instant(&line.name), Builtin::is_instant);
        if self.turn.is_some() && builtin == Some(Builtin::Rewind) {
            let message = "a turn is running; interrupt it, or go back when it ended";
            return self.reject(&intent, KernelError::new(ErrorCode::NotReady, message));
        }
        if self.is_busy() && !instant {
            return self.enqueue(intent, Work::Command(line), false);
        }
        self.run_command(intent, line);
    }

    fn is_instant(&self, name: &str) -> bool {
        find_command(&self.parts.offers.snapshot().commands, name)
            .is_some_and(|command| command.spec().instant)
    }

    pub(super) fn run_command(&mut self, intent: IntentId, line: CommandLine) {
        if let Some(builtin) = Builtin::find(&line.name) {
            return self.run_builtin(builtin, intent, line);
        }
        let cancel = CancellationToken::new();
        let context = self.context(None, cancel.clone());
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
    pub(super) fn start_command(
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

    /// A command became words for the model, under the intent of the typed line (kernel rule 8.1.4).
    fn expand(&mut self, intent: IntentId, line: &CommandLine, text: &str) {
        let mut origin = line.origin.clone();
        origin.surface = "command".to_owned();
        let parts = vec![ContentPart::text(format!("{}\n\n{text}", line.typed()))];
        self.accept(intent, Ok(Work::Prose(Prose { parts, origin })), Actor::submit);
    }
}

fn find_command<'a>(commands: &'a [Arc<dyn Command>], name: &str) -> Option<&'a Arc<dyn Command>> {
    commands.iter().find(|command| {
        let spec = command.spec();
        spec.name == name || spec.aliases.iter().any(|alias| alias == name)
    })
}
