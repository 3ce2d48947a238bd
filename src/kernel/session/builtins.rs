//! The commands of the kernel in a session: what they show and what they change (kernel rules 8.2).

use std::sync::Arc;

use bingo_plugin_sdk::calls::CommandOutcome;
use bingo_plugin_sdk::event::{ErrorCode, Event, IntentOutcome, KernelError, TurnOrigin};
use bingo_plugin_sdk::ids::{IntentId, TurnId};
use bingo_plugin_sdk::item::{ItemBody, ItemStatus};
use bingo_plugin_sdk::provider::Effort;
use bingo_plugin_sdk::session::Driver;
use bingo_plugin_sdk::view::View;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::commands::Outcome;
use crate::kernel::KernelParts;
use crate::kernel::builtin::{Builtin, choices, views};
use crate::kernel::input::CommandLine;
use crate::kernel::outbox::Outbox;
use crate::kernel::response::new_item;
use crate::kernel::rewind::{self, Rewinding};
use crate::kernel::turn::Purpose;
use crate::ports::Preference;

/// What a command of the kernel does to a session once what it had to read or write is done.
pub(super) enum Change {
    Rewind(Rewinding),
    Model { provider: String, model: String, message: String },
    Think { level: Option<Effort>, message: String },
}

impl Actor {
    pub(super) fn run_builtin(&mut self, builtin: Builtin, intent: IntentId, line: CommandLine) {
        let args = line.args.trim();
        let answer = match builtin {
            Builtin::Compact => return self.compact(&intent, line.args),
            Builtin::Rewind => {
                let reading = reading(Arc::clone(&self.parts), self.outbox.clone(), line.args.clone());
                self.busy_command = Some(intent.clone());
                return self.start_command(intent, line, CancellationToken::new(), reading);
            }
            Builtin::Model if !args.is_empty() => return self.choose_model_of(intent, line),
            Builtin::Think if !args.is_empty() => return self.choose_level(intent, line),
            Builtin::Plugins if !args.is_empty() => return self.switch_plugin(intent, line),
            Builtin::Rename if !args.is_empty() => self.rename(args),
            Builtin::Permissions if !args.is_empty() => self.change_mode(args),
            _ => self.shown(builtin, args).map(|view| json!({ "view": view })),
        };
        match answer {
            Ok(result) => self.acknowledge(&intent, IntentOutcome::Applied { result }),
            Err(error) => self.reject(&intent, error),
        }
        self.publish_config();
    }

    /// Returns what a command shows that changes nothing.
    ///
    /// # Errors
    /// `INVALID_INPUT` when it is given words that it does not take.
    fn shown(&self, builtin: Builtin, args: &str) -> Result<View, KernelError> {
        let (snapshot, summary) = (self.parts.offers.snapshot(), &self.state.summary);
        let level = choices::level_name(self.thinking);
        Ok(match builtin {
            Builtin::Models => {
                let why = "plugins declare their models when they start; `bingo plugin restart` asks anew";
                choices::nothing(args, why)?;
                views::models(&snapshot)
            }
            Builtin::Plugins => views::plugins(&snapshot),
            Builtin::Permissions => self.policy.shown(),
            Builtin::Think => views::current(format!("thinking: {level}"), "/think LEVEL", choices::LEVELS),
            Builtin::Rename => {
                let title = summary.title.as_deref().unwrap_or("this session has no name yet");
                views::current(title.to_owned(), "/rename NAME", "at most 80 characters")
            }
            Builtin::Model => {
                let name = |part: &Option<String>| part.clone().unwrap_or_else(|| "none".to_owned());
                let model = format!("model: {}/{}", name(&summary.provider), name(&summary.model));
                views::current(model, "/model [PROVIDER/]MODEL", "`/models` lists what is declared")
            }
            _ => {
                choices::nothing(args, "it shows where this session stands")?;
                views::status(&self.state, &self.policy.mode.to_string(), level)
            }
        })
    }

    /// Changes how much is allowed, in this session and until it closes.
    fn change_mode(&mut self, args: &str) -> Result<Value, KernelError> {
        self.policy.mode = args.parse().map_err(|error: String| choices::invalid(error))?;
        Ok(json!({ "message": format!("mode: {}", self.policy.mode) }))
    }

    fn rename(&mut self, args: &str) -> Result<Value, KernelError> {
        let title = choices::title(args)?;
        let message = format!("name: {title}");
        self.change_summary(|summary| summary.title = Some(title));
        Ok(json!({ "message": message }))
    }

    /// Checks a model, and writes it to the person's settings before this session takes it (kernel rule 8.2.9).
    fn choose_model_of(&mut self, intent: IntentId, line: CommandLine) {
        let snapshot = self.parts.offers.snapshot();
        let current = self.state.summary.provider.as_deref().unwrap_or_default();
        let (provider, model) = choices::model(&snapshot, current, line.args.trim());
        let checked = self.somebody_answers().and_then(|()| self.parts.check_provider(&snapshot, &provider));
        if let Err(error) = checked {
            return self.reject(&intent, error);
        }
        let parts = Arc::clone(&self.parts);
        let change = async move {
            let name = format!("{provider}/{model}");
            let chosen = (Some(provider.clone()), Some(model.clone()));
            parts.defaults.change(|defaults| (defaults.provider, defaults.model) = chosen);
            let saved = save(&parts, Preference::Model(name.clone())).await;
            let message = format!("model: {name}{saved}");
            Ok(Outcome::Change(Change::Model { provider, model, message }))
        };
        self.start_command(intent, line, CancellationToken::new(), change);
    }

    fn choose_level(&mut self, intent: IntentId, line: CommandLine) {
        let level = self.somebody_answers().and_then(|()| choices::level(line.args.trim()));
        let level = match level {
            Ok(level) => level,
            Err(error) => return self.reject(&intent, error),
        };
        let parts = Arc::clone(&self.parts);
        let change = async move {
            parts.defaults.change(|defaults| defaults.thinking = level);
            let saved = save(&parts, Preference::Thinking(level)).await;
            let message = format!("thinking: {}{saved}", choices::level_name(level));
            Ok(Outcome::Change(Change::Think { level, message }))
        };
        self.start_command(intent, line, CancellationToken::new(), change);
    }

    fn switch_plugin(&mut self, intent: IntentId, line: CommandLine) {
        let (name, on) = match choices::switch(&self.parts.offers.snapshot(), &line.args) {
            Ok(switch) => switch,
            Err(error) => return self.reject(&intent, error),
        };
        let parts = Arc::clone(&self.parts);
        let change = async move {
            let remark = parts.preferences.save(Preference::Plugin { name: name.clone(), on }).await?;
            let state = if on { "on" } else { "off" };
            let remark = remark.map(|remark| format!("; {remark}")).unwrap_or_default();
            let message =
                format!("{name} is {state}: at once where bingo serves, elsewhere at the next start{remark}");
            Ok(Outcome::Plain(CommandOutcome::Applied { message: Some(message) }))
        };
        self.start_command(intent, line, CancellationToken::new(), change);
    }

    /// Refuses what is about the model where there is none.
    fn somebody_answers(&self) -> Result<(), KernelError> {
        match self.state.summary.driver {
            Driver::Model => Ok(()),
            Driver::Log => Err(choices::invalid("nobody answers in this session: it only records")),
        }
    }

    /// Does what a command of the kernel came to; returns what is acknowledged.
    pub(super) fn change(&mut self, change: Change) -> Result<String, KernelError> {
        match change {
            Change::Rewind(rewinding) => self.rewind(rewinding),
            Change::Model { provider, model, message } => {
                let chosen = (Some(provider), Some(model));
                self.change_summary(|summary| (summary.provider, summary.model) = chosen);
                Ok(message)
            }
            Change::Think { level, message } => {
                self.thinking = level;
                Ok(message)
            }
        }
    }

    /// Goes back to before a turn. What was recorded while the transcript was read goes too.
    ///
    /// # Errors
    /// `NOT_READY` when that is more than is held.
    fn rewind(&mut self, rewinding: Rewinding) -> Result<String, KernelError> {
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
        Ok(message)
    }

    /// Opens a turn that only shortens the context (kernel rule 1.3.21).
    fn compact(&mut self, intent: &IntentId, args: String) {
        if let Err(error) = self.somebody_answers() {
            return self.reject(intent, error);
        }
        let turn = TurnId::mint();
        self.emit(Event::TurnStarted { turn: turn.clone(), inputs: Vec::new(), origin: TurnOrigin::Auto });
        let result = json!({ "message": "compacting the conversation" });
        self.acknowledge(intent, IntentOutcome::Applied { result });
        let instructions = Some(args).filter(|args| !args.is_empty());
        self.start_turn(turn, Purpose::Compact { instructions });
    }
}

/// Writes a choice to the person's settings; returns what is to be said of it behind the choice, which counts all the same.
async fn save(parts: &KernelParts, choice: Preference) -> String {
    match parts.preferences.save(choice).await {
        Ok(None) => String::new(),
        Ok(Some(remark)) => format!("; {remark}"),
        Err(error) => format!("; later hosts do not know of it: {}", error.message),
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
        turn => {
            let rewinding = rewind::before(&view, &*parts.journal, TurnId::from(turn)).await?;
            Ok(Outcome::Change(Change::Rewind(rewinding)))
        }
    }
}
