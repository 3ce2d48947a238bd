//! How a run of a session begins (fresh or resumed) and ends: the first and last frames of a journal segment
//! (kernel rules 1.3.15, 26 and 27).

use std::sync::Arc;

use bingo_plugin_sdk::calls::Phase;
use bingo_plugin_sdk::event::{
    CancelReason, CloseReason, ConfigView, ErrorCode, Event, IntentOutcome, KernelError, TurnStatus,
};
use bingo_plugin_sdk::ids::{IntentId, Seq};
use bingo_plugin_sdk::item::{Item, ItemStatus};
use bingo_plugin_sdk::session::SessionSummary;
use bingo_plugin_sdk::state::SessionState;
use serde_json::json;

use super::actor::Actor;
use crate::kernel::gate::POLICY_ID;
use crate::kernel::replay::Replay;
use crate::ports::Notice;
use crate::telemetry;

/// Where a session stands when its actor starts.
pub(in crate::kernel) struct Begin {
    pub(in crate::kernel) replay: Replay,
    pub(in crate::kernel) first: Seq,
    /// Remarks that waited for a session to be shown in.
    pub(in crate::kernel) notices: Vec<Notice>,
    resumed: bool,
}

impl Begin {
    /// Begins a session that was never stored.
    pub(in crate::kernel) fn fresh(summary: SessionSummary) -> Self {
        Self { replay: Replay::new(summary), first: Seq(1), notices: Vec::new(), resumed: false }
    }

    /// Goes on with a stored session.
    ///
    /// Numbers go on at the next multiple of 2^32 above the last stored one: frames that were not stored had numbers
    /// too, and a client may have seen them.
    pub(in crate::kernel) fn resumed(replay: Replay) -> Self {
        let first = replay.state.seq.next_segment();
        Self { replay, first, notices: Vec::new(), resumed: true }
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
            self.close_lost_work(&begin.replay.state);
        }
        if self.starting.is_none() {
            self.observe_session(Phase::Start);
        }
        begin.notices.iter().cloned().for_each(|notice| self.notice(notice));
    }

    /// Publishes what a frontend may show of the settings, when it differs from what was published last.
    pub(super) fn publish_config(&mut self) {
        let thinking = self.parts.settings.thinking;
        let plugins = [(POLICY_ID.to_owned(), self.policy.view())].into();
        let config = ConfigView { kernel: json!({ "thinking": thinking }), plugins };
        if config != self.state.config {
            self.emit(Event::ConfigChanged { config });
        }
    }

    fn restate_extensions(&mut self) {
        for (plugin, kinds) in self.state.extensions.clone() {
            for (kind, payload) in kinds {
                self.emit(Event::Extension { plugin: plugin.clone(), kind, payload });
            }
        }
    }

    /// Ends what the last run left open: questions, a turn with its items, waiting lines.
    fn close_lost_work(&mut self, stored: &SessionState) {
        for interaction in &stored.interactions {
            let (id, reason) = (interaction.id.clone(), CancelReason::SessionClosed);
            self.emit(Event::InteractionCancelled { id, reason });
        }
        self.end_open_items(ItemStatus::Failed);
        if let Some(turn) = &stored.turn {
            let error = KernelError::new(ErrorCode::TurnLost, "the host ended while this turn ran");
            let (turn, usage, status) = (turn.id.clone(), turn.usage, TurnStatus::Failed { error });
            self.emit(Event::TurnCompleted { turn, status, usage });
        }
        if !stored.queue.is_empty() {
            for entry in &stored.queue {
                self.reject(&entry.intent, closed_error("the host ended while this line waited"));
            }
            let changed = self.queue.changed();
            self.emit(changed);
        }
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

    /// Publishes the tail of this run: nothing waits any more, and the session is closed.
    pub(super) fn finish(&mut self, reason: CloseReason) {
        self.cancel_interactions(CancelReason::SessionClosed);
        self.observe_session(Phase::End);
        for intent in self.intake.cancel() {
            self.reject(&intent, closed_error("the session closed before this line was taken in"));
        }
        let waiting = self.queue.take_all();
        for line in &waiting {
            self.reject(&line.intent, closed_error("the session closed while this line waited"));
        }
        for (intent, cancel) in std::mem::take(&mut self.commands) {
            cancel.cancel();
            self.reject(&intent, closed_error("the session closed while this command ran"));
        }
        if !waiting.is_empty() {
            let changed = self.queue.changed();
            self.emit(changed);
        }
        self.emit(Event::SessionClosed { reason });
    }

    /// Refuses a client's write.
    pub(super) fn reject(&mut self, intent: &IntentId, error: KernelError) {
        self.acknowledge(intent, IntentOutcome::Rejected { error });
    }
}

fn closed_error(message: &str) -> KernelError {
    KernelError::new(ErrorCode::SessionClosed, message)
}
