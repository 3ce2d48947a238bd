//! Questions of a session: permission for a tool call, and what plugins ask; each is answered once or cancelled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bingo_plugin_sdk::event::{CancelReason, ErrorCode, Event, IntentOutcome, KernelError};
use bingo_plugin_sdk::ids::{IntentId, InteractionId, ItemId};
use bingo_plugin_sdk::interaction::{Answer, AnswerSpec, Interaction, InteractionKind, ResolvedBy};
use bingo_plugin_sdk::item::{DecisionKind, ItemBody, ItemStatus};
use bingo_plugin_sdk::rpc::Activation;
use serde_json::Value;
use tokio::sync::oneshot;

use super::AnswerWrite;
use super::actor::Actor;
use crate::kernel::permission::{Asked, Stance, check_answer};
use crate::kernel::response::new_item;
use crate::kernel::turn::{GateRequest, Verdict};
use crate::telemetry;

/// How long keyboard answers to a question are not taken (kernel rule 3.5.38).
const KEYBOARD_GUARD: Duration = Duration::from_millis(400);

/// A question that a turn waits for.
pub(super) struct OpenQuestion {
    interaction: Interaction,
    guard: Instant,
    waiting: Waiting,
}

/// Who waits for the answer.
enum Waiting {
    /// The gate of a tool call.
    Gate(oneshot::Sender<Verdict>),
    /// A plugin, under its tool call.
    Plugin(oneshot::Sender<Answer>),
}

impl Waiting {
    /// Returns whether nobody waits any more.
    fn is_gone(&self) -> bool {
        match self {
            Self::Gate(reply) => reply.is_closed(),
            Self::Plugin(reply) => reply.is_closed(),
        }
    }
}

impl Actor {
    /// Says whether a call may run, or asks the person.
    pub(super) fn gate(&mut self, request: GateRequest, reply: oneshot::Sender<Verdict>) {
        let GateRequest { call, subjects, confirm: reason } = request;
        let ItemBody::ToolCall { name: tool, input, .. } = &call.body else { return };
        let scope = match (self.policy.stance(tool, &subjects), &reason) {
            (Stance::Deny { reason }, _) => {
                // A turn that was cancelled meanwhile does not listen any more.
                return drop(reply.send(Verdict::Denied(format!("Permission denied ({reason})"))));
            }
            (Stance::Allow, None) => return drop(reply.send(Verdict::Allowed)),
            // No rule keeps the hook that wants a person from asking again.
            (Stance::Allow | Stance::Ask { .. }, Some(_)) => None,
            (Stance::Ask { scope }, None) => scope,
        };
        let (kind, answers) = Asked { tool, input, subjects: &subjects, scope, reason }.question();
        let interaction = self.interaction(call.id.clone(), kind, answers);
        self.open_question(interaction, Waiting::Gate(reply));
    }

    /// Puts a plugin's question to the person of the call it runs.
    pub(super) fn ask(&mut self, item: ItemId, kind: InteractionKind, reply: oneshot::Sender<Answer>) {
        let InteractionKind::Question { options, free_text, .. } = &kind else { return };
        // The call ended while its question was under way: nobody waits for the answer.
        let call = self.state.items.iter().rev().find(|other| other.id == item);
        if call.is_some_and(|call| call.status.is_terminal()) {
            return;
        }
        let mut answers = Vec::new();
        if !options.is_empty() {
            answers.push(AnswerSpec::Choice);
        }
        if *free_text || options.is_empty() {
            answers.push(AnswerSpec::Text);
        }
        answers.push(AnswerSpec::Cancel);
        let interaction = self.interaction(item, kind, answers);
        self.open_question(interaction, Waiting::Plugin(reply));
    }

    /// Takes a client's answer; the first valid one counts.
    pub(super) fn answer(&mut self, intent: IntentId, write: AnswerWrite) {
        let open = match self.questions.get(&write.interaction) {
            Some(open) => check(open, &write),
            None => {
                let message = format!("interaction {} is not open", write.interaction);
                Err(KernelError::new(ErrorCode::InteractionClosed, message))
            }
        };
        if let Err(error) = open {
            return self.reject(&intent, error);
        }
        let Some(open) = self.questions.remove(&write.interaction) else { return };
        let AnswerWrite { interaction: id, answer, client, .. } = write;
        let by = ResolvedBy::Client { name: client.name, surface: client.surface };
        self.emit_caused(Some(&intent), Event::InteractionResolved { id, answer: answer.clone(), by });
        self.acknowledge(&intent, IntentOutcome::Applied { result: Value::Null });
        match open.waiting {
            Waiting::Gate(reply) => self.decide(&open.interaction, answer, reply),
            Waiting::Plugin(reply) => {
                self.record_answer(&open.interaction, &answer);
                // A call that ended meanwhile does not listen any more.
                drop(reply.send(answer));
            }
        }
    }

    /// Closes every open question without an answer; who waits for it is told.
    pub(super) fn cancel_interactions(&mut self, reason: CancelReason) {
        for (id, _) in std::mem::take(&mut self.questions) {
            self.emit(Event::InteractionCancelled { id, reason });
        }
    }

    /// Closes the questions of a call that ended first, and those that nobody waits for any more. Who asked for the
    /// call may not have heard of its end yet, so that alone does not tell.
    pub(super) fn cancel_abandoned(&mut self, ended: &ItemId) {
        let gone = self
            .questions
            .iter()
            .filter(|(_, open)| open.waiting.is_gone() || open.interaction.item.as_ref() == Some(ended));
        for id in gone.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.questions.remove(&id);
            self.emit(Event::InteractionCancelled { id, reason: CancelReason::Superseded });
        }
    }

    fn interaction(&self, item: ItemId, kind: InteractionKind, answers: Vec<AnswerSpec>) -> Interaction {
        Interaction {
            id: InteractionId::mint(),
            session: self.state.summary.id.clone(),
            turn: self.turn.as_ref().map(|turn| turn.id.clone()),
            item: Some(item),
            opened_at: telemetry::now(),
            guard_until: Some(telemetry::after(KEYBOARD_GUARD)),
            expires_at: None,
            kind,
            answers,
        }
    }

    fn open_question(&mut self, interaction: Interaction, waiting: Waiting) {
        // Asked by a turn that was interrupted meanwhile: nobody waits for the answer.
        if self.turn.as_ref().is_none_or(|turn| turn.interrupted.is_some()) {
            return;
        }
        self.emit(Event::InteractionOpened { interaction: Box::new(interaction.clone()) });
        self.parts.note_asker(&interaction);
        let guard = Instant::now() + KEYBOARD_GUARD;
        self.questions.insert(interaction.id.clone(), OpenQuestion { interaction, guard, waiting });
    }

    /// Records a person's decision about a call and lets the turn go on.
    fn decide(&mut self, asked: &Interaction, answer: Answer, reply: oneshot::Sender<Verdict>) {
        let InteractionKind::Permission { tool, .. } = &asked.kind else { return };
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
        let interaction = asked.id.clone();
        let body = ItemBody::PermissionReceipt { interaction, tool: tool.clone(), decision, feedback };
        let round = self.state.turn.as_ref().map_or(0, |turn| turn.round);
        let item = new_item(asked.turn.clone(), round, ItemStatus::Completed, body);
        self.emit(Event::ItemCompleted { item: Arc::new(item) });
        self.publish_config();
        // A turn that was cancelled meanwhile does not listen any more.
        drop(reply.send(verdict));
    }

    /// Records what a person answered to a plugin's question.
    fn record_answer(&mut self, asked: &Interaction, answer: &Answer) {
        let InteractionKind::Question { question, options, .. } = &asked.kind else { return };
        let label = |id: &String| {
            let option = options.iter().find(|option| option.id == *id);
            option.map_or_else(|| id.clone(), |option| option.label.clone())
        };
        let answer = match answer {
            Answer::Choice { ids } => ids.iter().map(label).collect::<Vec<_>>().join(", "),
            Answer::Text { text } => text.clone(),
            _ => "(no answer)".to_owned(),
        };
        let body =
            ItemBody::QuestionAnswer { interaction: asked.id.clone(), question: question.clone(), answer };
        let round = self.state.turn.as_ref().map_or(0, |turn| turn.round);
        let item = new_item(asked.turn.clone(), round, ItemStatus::Completed, body);
        self.emit(Event::ItemCompleted { item: Arc::new(item) });
    }
}

fn check(open: &OpenQuestion, write: &AnswerWrite) -> Result<(), KernelError> {
    if write.activation == Activation::Keyboard && Instant::now() < open.guard {
        let message = "the question has only just opened; answer again";
        return Err(KernelError::new(ErrorCode::NotReady, message));
    }
    check_answer(&open.interaction.kind, &open.interaction.answers, &write.answer)
        .map_err(|message| KernelError::new(ErrorCode::InvalidInput, message))
}
