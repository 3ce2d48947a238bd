//! Commands of a session: looked up in one snapshot, run beside the actor, applied when they end (kernel rules 8.1).

use std::sync::Arc;

use bingo_plugin_sdk::calls::CommandOutcome;
use bingo_plugin_sdk::event::{ErrorCode, Event, IntentOutcome, KernelError, TurnOrigin};
use bingo_plugin_sdk::ids::{IntentId, TurnId};
use bingo_plugin_sdk::item::{ContentPart, ItemStatus};
use bingo_plugin_sdk::session::Driver;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::actor::{Actor, Done};
use crate::kernel::builtin;
use crate::kernel::input::{CommandLine, Prose, Work};
use crate::kernel::response::new_item;
use crate::kernel::turn::Purpose;
use crate::kernel::unfinished::{self, Running};
use crate::ports::Command;

/// A command that ended.
pub(super) struct CommandDone {
    intent: IntentId,
    line: CommandLine,
    outcome: Result<CommandOutcome, KernelError>,
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
            Ok(CommandOutcome::Prompt { text }) => self.expand(intent, &line, &text),
            Ok(outcome) => {
                let result = self.apply_outcome(outcome);
                self.acknowledge(&intent, IntentOutcome::Applied { result });
            }
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
        let Some(command) = find_command(&context.snapshot.commands, &line.name).cloned() else {
            let message = format!("unknown command: /{}", line.name);
            return self.reject(&intent, KernelError::new(ErrorCode::InvalidInput, message));
        };
        if !command.spec().instant {
            self.busy_command = Some(intent.clone());
        }
        self.commands.push((intent.clone(), cancel));
        // Stored before it runs, so that it runs at most once.
        let digest = self.intents.request(&intent);
        self.emit(unfinished::running(&Running { intent: intent.clone(), digest }));
        self.commit();
        let (outbox, args, done) = (self.outbox.clone(), line.args.clone(), self.done.clone());
        let running = tokio::spawn(async move {
            let unstored =
                || KernelError::new(ErrorCode::Storage, "the command could not be noted, so it did not run");
            outbox.flush().await.ok_or_else(unstored)?;
            command.run(context, args).await
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

fn find_command<'a>(commands: &'a [Arc<dyn Command>], name: &str) -> Option<&'a Arc<dyn Command>> {
    commands.iter().find(|command| {
        let spec = command.spec();
        spec.name == name || spec.aliases.iter().any(|alias| alias == name)
    })
}
