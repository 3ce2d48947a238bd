//! How a run of a session begins (fresh or resumed) and ends: the first and last frames of a journal segment
//! (kernel rules 1.3.15, 26 and 27).

use std::sync::Arc;

use bingo_plugin_sdk::calls::Phase;
use bingo_plugin_sdk::event::{
    CancelReason, CloseReason, ConfigView, ErrorCode, Event, IntentOutcome, KernelError, TurnOrigin,
    TurnStatus, Usage,
};
use bingo_plugin_sdk::ids::{IntentId, Seq, TurnId};
use bingo_plugin_sdk::item::{Item, ItemStatus};
use bingo_plugin_sdk::provider::Effort;
use bingo_plugin_sdk::session::SessionSummary;
use bingo_plugin_sdk::state::SessionState;
use serde::Deserialize;
use serde_json::json;

use super::actor::Actor;
use crate::kernel::permission::POLICY_ID;
use crate::kernel::replay::Replay;
use crate::kernel::unfinished::{self, Done, Unfinished};
use crate::ports::Notice;
use crate::telemetry;

/// Where a session stands when its actor starts.
pub(in crate::kernel) struct Begin {
    pub(in crate::kernel) replay: Replay,
    pub(in crate::kernel) first: Seq,
    /// How much the model reasons here.
    pub(in crate::kernel) thinking: Option<Effort>,
    /// Remarks that waited for a session to be shown in.
    pub(in crate::kernel) notices: Vec<Notice>,
    resumed: bool,
}

impl Begin {
    /// Begins a session that was never stored.
    pub(in crate::kernel) fn fresh(summary: SessionSummary, thinking: Option<Effort>) -> Self {
        Self { replay: Replay::new(summary), first: Seq(1), thinking, notices: Vec::new(), resumed: false }
    }

    /// Goes on with a stored session.
    ///
    /// Numbers go on at the next multiple of 2^32 above the last stored one: frames that were not stored had numbers
    /// too, and a client may have seen them.
    pub(in crate::kernel) fn resumed(replay: Replay) -> Self {
        let first = replay.state.seq.next_segment();
        let thinking = thinking_of(&replay.state.config);
        Self { replay, first, thinking, notices: Vec::new(), resumed: true }
    }
}

impl Actor {
    /// Publishes the head of this run of the session.
    pub(super) fn begin(&mut self, begin: &Begin) {
        let mut summary = self.state.summary.clone();
        summary.busy = false;
        summary.messages = Some(summary.messages.unwrap_or(0));
        summary.updated_at = telemetry::now();
        self.emit(Event::SessionUpdated { summary: Box::new(summary) });
        if begin.resumed {
            self.restate_extensions();
        }
        self.publish_config();
        if begin.resumed {
            self.close_lost_work(&begin.replay.state, &begin.replay.unfinished);
        }
        if self.starting.is_none() {
            self.observe_session(Phase::Start);
        }
        begin.notices.iter().cloned().for_each(|notice| self.notice(notice));
    }

    /// Publishes what a frontend may show of the settings, when it differs from what was published last.
    pub(super) fn publish_config(&mut self) {
        let thinking = self.thinking;
        let plugins = [(POLICY_ID.to_owned(), self.policy.view())].into();
        let config = ConfigView { kernel: json!({ "thinking": thinking }), plugins };
        if config != self.state.config {
            self.emit(Event::ConfigChanged { config });
        }
    }

    fn restate_extensions(&mut self) {
        let mut extensions = self.state.extensions.clone();
        // Each of these stands for something that happened once.
        extensions.remove(unfinished::NAMESPACE);
        for (plugin, kinds) in extensions {
            for (kind, payload) in kinds {
                self.emit(Event::Extension { plugin: plugin.clone(), kind, payload });
            }
        }
    }

    /// Ends what the last run left open: questions, a turn with its items, commands. Lines go on waiting.
    fn close_lost_work(&mut self, stored: &SessionState, left: &Unfinished) {
        for interaction in &stored.interactions {
            let (id, reason) = (interaction.id.clone(), CancelReason::SessionClosed);
            self.emit(Event::InteractionCancelled { id, reason });
        }
        self.end_open_items(ItemStatus::Failed);
        let started = stored.turn.as_ref().map(|turn| &turn.id);
        self.acknowledge_stored(started, left);
        if let Some(turn) = &stored.turn {
            self.lose_turn(&turn.id, turn.usage);
        }
        for command in &left.running {
            let error = KernelError::new(ErrorCode::TurnLost, "the host ended while this command ran");
            self.reject(&command.intent, error);
        }
        self.forget_stored(unfinished::RUNNING);
        if !stored.queue.is_empty() || !self.queue.is_empty() {
            self.announce_queue();
        }
    }

    /// Makes up for acknowledgements that a torn write lost: what it stored was done.
    fn acknowledge_stored(&mut self, started: Option<&TurnId>, left: &Unfinished) {
        let mut unstarted: Vec<TurnId> = Vec::new();
        for left in &left.unanswered {
            if let Done::Recorded { turn: Some(turn), .. } = &left.done
                && started != Some(turn)
                && !unstarted.contains(turn)
            {
                unstarted.push(turn.clone());
            }
        }
        for turn in &unstarted {
            let recorded = left.unanswered.iter().filter_map(|left| match &left.done {
                Done::Recorded { item, turn: Some(of) } if of == turn => Some(item.clone()),
                _ => None,
            });
            let (inputs, origin) = (recorded.collect(), TurnOrigin::Submit);
            self.emit(Event::TurnStarted { turn: turn.clone(), inputs, origin });
        }
        for left in &left.unanswered {
            let outcome = match &left.done {
                Done::Recorded { turn: Some(turn), .. } => IntentOutcome::TurnStarted { turn: turn.clone() },
                Done::Recorded { item, turn: None } => {
                    IntentOutcome::Applied { result: json!({ "item": item }) }
                }
                Done::Resolved => IntentOutcome::Applied { result: json!(null) },
            };
            self.acknowledge(&left.intent, outcome);
        }
        unstarted.iter().for_each(|turn| self.lose_turn(turn, Usage::default()));
    }

    fn lose_turn(&mut self, turn: &TurnId, usage: Usage) {
        let error = KernelError::new(ErrorCode::TurnLost, "the host ended while this turn ran");
        let (turn, status) = (turn.clone(), TurnStatus::Failed { error });
        self.emit(Event::TurnCompleted { turn, status, usage });
    }

    /// Ends every unfinished item.
    pub(super) fn end_open_items(&mut self, status: ItemStatus) {
        let open = self.state.items.iter().filter(|item| !item.status.is_terminal());
        for item in open.cloned().collect::<Vec<_>>() {
            let mut item = Item { status, completed_at: Some(telemetry::now()), ..(*item).clone() };
            if status == ItemStatus::Interrupted {
                super::actor::mark_interrupted(&mut item);
            }
            self.emit(Event::ItemCompleted { item: Arc::new(item) });
        }
    }

    /// Publishes the tail of this run. Lines that wait are done when the session is opened again, unless it goes for good.
    pub(super) fn finish(&mut self, reason: CloseReason) {
        self.cancel_interactions(CancelReason::SessionClosed);
        self.observe_session(Phase::End);
        for intent in self.intake.cancel() {
            self.reject(&intent, closed_error("the session closed before this line was taken in"));
        }
        let gone = if reason == CloseReason::Deleted { self.queue.take_all() } else { Vec::new() };
        for line in &gone {
            self.reject(&line.intent, closed_error("the session was deleted while this line waited"));
        }
        for (intent, cancel) in std::mem::take(&mut self.commands) {
            cancel.cancel();
            self.reject(&intent, closed_error("the session closed while this command ran"));
        }
        self.forget_stored(unfinished::RUNNING);
        if !gone.is_empty() {
            self.announce_queue();
        }
        self.emit(Event::SessionClosed { reason });
    }

    /// Refuses a client's write.
    pub(super) fn reject(&mut self, intent: &IntentId, error: KernelError) {
        self.acknowledge(intent, IntentOutcome::Rejected { error });
    }
}

/// Returns how much the model reasons in a session that published this.
pub(in crate::kernel) fn thinking_of(config: &ConfigView) -> Option<Effort> {
    config.kernel.get("thinking").and_then(|level| Effort::deserialize(level).ok())
}

fn closed_error(message: &str) -> KernelError {
    KernelError::new(ErrorCode::SessionClosed, message)
}
