//! Submitted inputs on their way: first plugins that are starting must be there, then the hooks are asked, one input after
//! another. The actor never waits for them.

use std::collections::VecDeque;

use bingo_plugin_sdk::calls::HookSite;
use bingo_plugin_sdk::event::{ErrorCode, Input, IntentOutcome, KernelError};
use bingo_plugin_sdk::handshake::HookPoint;
use bingo_plugin_sdk::ids::{IntentId, SessionId};
use bingo_plugin_sdk::rpc::Delivery;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::actor::{Actor, Done};
use crate::kernel::hooks::{self, SubmitVerdict};
use crate::kernel::input::{self, Work};
use crate::kernel::intents::Digest;
use crate::kernel::queue::MAX_WAITING;
use crate::kernel::{Kernel, KernelParts};
use crate::ports::CallContext;

/// Inputs that hooks have not passed yet, in order; only the first is with them.
#[derive(Default)]
pub(super) struct Intake {
    waiting: VecDeque<(IntentId, Input)>,
    /// Set while the first is with the hooks.
    asking: Option<CancellationToken>,
}

impl Intake {
    /// Returns whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes everything off its way; the hooks' answer to the first is not waited for.
    pub(super) fn cancel(&mut self) -> Vec<IntentId> {
        self.asking.take().into_iter().for_each(|asking| asking.cancel());
        self.waiting.drain(..).map(|(intent, _)| intent).collect()
    }
}

/// What became of a submitted input.
pub(super) struct IntakeDone {
    intent: IntentId,
    outcome: Result<Taken, KernelError>,
}

enum Taken {
    Work(Work),
    Redirected(SessionId),
}

impl Actor {
    /// Takes a submitted input in: past the hooks that want it, else at once.
    pub(super) fn take_in(&mut self, intent: IntentId, input: Input, work: Result<Work, KernelError>) {
        let wanted = hooks::any_wants(&self.parts.offers.snapshot(), HookPoint::Submit);
        let waits = self.starting.is_some() || wanted || !self.intake.is_empty();
        if self.closing.is_some() || work.is_err() || !waits {
            return self.accept(intent, work, Actor::submit);
        }
        if self.intake.waiting.len() >= MAX_WAITING {
            let message = format!(
                "{MAX_WAITING} inputs wait for this session's plugins already; send it later, under a new intent"
            );
            return self.reject(&intent, KernelError::new(ErrorCode::NotReady, message));
        }
        self.intake.waiting.push_back((intent, input));
        self.waits_for_plugins();
        self.ask_submit_hooks();
    }

    /// The hooks passed an input, or did not.
    pub(super) fn taken_in(&mut self, done: IntakeDone) {
        // An interrupt or the session's end took it off its way meanwhile.
        if self.intake.waiting.front().is_none_or(|(intent, _)| *intent != done.intent) {
            return;
        }
        self.intake.waiting.pop_front();
        self.intake.asking = None;
        match done.outcome {
            Ok(Taken::Work(work)) => self.accept(done.intent, Ok(work), Actor::submit),
            Ok(Taken::Redirected(session)) => {
                let result = json!({ "redirected": session });
                self.acknowledge(&done.intent, IntentOutcome::Applied { result });
            }
            Err(error) => self.reject(&done.intent, error),
        }
        self.ask_submit_hooks();
        self.drain_after_intake();
    }

    /// Does what waits in the queue, once nothing is on its way that came before it while plugins were starting.
    pub(super) fn drain_after_intake(&mut self) {
        if self.intake.is_empty() && self.closing.is_none() {
            self.drain_queue();
        }
    }

    /// Sends the first waiting input to the hooks, unless one is with them already or plugins are starting.
    pub(super) fn ask_submit_hooks(&mut self) {
        let held = self.starting.is_some() || self.intake.asking.is_some();
        let Some((intent, input)) = self.intake.waiting.front().filter(|_| !held) else { return };
        let (intent, input) = (intent.clone(), input.clone());
        let cancel = CancellationToken::new();
        let (context, site) = (self.context(None, cancel.clone()), self.site());
        let (parts, done) = (std::sync::Arc::clone(&self.parts), self.done.clone());
        self.intake.asking = Some(cancel.clone());
        tokio::spawn(async move {
            let passing = pass(parts, &context, &site, &intent, input);
            if let Some(outcome) = cancel.run_until_cancelled(passing).await {
                // A session that ended meanwhile has rejected the input.
                drop(done.send(Done::Intake(IntakeDone { intent, outcome })).await);
            }
        });
    }
}

/// Asks the hooks, then makes work of what they left.
async fn pass(
    parts: std::sync::Arc<KernelParts>,
    context: &CallContext,
    site: &HookSite,
    intent: &IntentId,
    input: Input,
) -> Result<Taken, KernelError> {
    match hooks::submit(context, site, input).await {
        SubmitVerdict::Pass(input) => input::prepare(input, true).await.map(Taken::Work),
        SubmitVerdict::Denied(words) => Err(KernelError::new(ErrorCode::PermissionDenied, words)),
        SubmitVerdict::Redirect(session, input) => {
            let kernel = Kernel { parts };
            kernel.deliver(&session, redirected(&site.session, intent), input, Delivery::Wake).await?;
            Ok(Taken::Redirected(session))
        }
    }
}

/// Returns the intent under which a redirected input is delivered: the same one each time, so that an input that is
/// submitted again after a crash arrives once.
fn redirected(from: &SessionId, intent: &IntentId) -> IntentId {
    IntentId::from(format!("req_{}", Digest::of("redirect", &(from, intent))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_redirected_under_one_intent_however_often_and_no_other_input_is() {
        let arrives = |from: &str, intent: &str| redirected(&SessionId::from(from), &IntentId::from(intent));
        assert_eq!(arrives("ses_1", "i"), arrives("ses_1", "i"));
        assert_ne!(arrives("ses_1", "i"), arrives("ses_2", "i"), "clients of two sessions may use one name");
        assert_ne!(arrives("ses_1", "i"), arrives("ses_1", "j"));
    }
}
