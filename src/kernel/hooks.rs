//! Chains of hooks: each wanted hook is asked in order, may change what is passed on, and may only tighten
//! (kernel rules 4.3.24, 30 and 31).
//!
//! Nothing here can allow what the gate would refuse: there is no such outcome.

use bingo_plugin_sdk::calls::{DecidePoint, HookOutcome, HookSite, HookValue, ObservePoint};
use bingo_plugin_sdk::event::Input;
use bingo_plugin_sdk::handshake::HookPoint;
use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::item::{ToolCall, ToolOutput};

use crate::ports::{CallContext, Snapshot};

/// What a chain at `submit` comes to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SubmitVerdict {
    /// Go on with this input.
    Pass(Input),
    /// Refused, in words.
    Denied(String),
    /// Deliver it to that session instead.
    Redirect(SessionId, Input),
}

/// What a chain at `beforeTool` comes to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CallVerdict {
    /// On to the policy; with a reason, a person must confirm.
    Pass { call: ToolCall, confirm: Option<String> },
    /// Refused, with the words for the model.
    Denied(String),
}

/// Asks the hooks at `submit`: the first that does not continue decides.
pub(super) async fn submit(context: &CallContext, site: &HookSite, mut input: Input) -> SubmitVerdict {
    for hook in wanted(&context.snapshot, HookPoint::Submit, None) {
        let at = DecidePoint::Submit { input: input.clone() };
        let result = hook.decide(context.clone(), site.clone(), at).await;
        if let Some(HookValue::Input { input: changed }) = result.value {
            input = changed;
        }
        match result.outcome {
            HookOutcome::Continue | HookOutcome::Ask { .. } => {}
            HookOutcome::Deny { reason } | HookOutcome::Block { reason } => {
                return SubmitVerdict::Denied(format!("Denied by hook {}: {reason}", hook.name()));
            }
            HookOutcome::Redirect { session } => return SubmitVerdict::Redirect(session, input),
        }
    }
    SubmitVerdict::Pass(input)
}

/// Asks the hooks before a tool runs: they may change its input, never its name.
pub(super) async fn before_tool(context: &CallContext, site: &HookSite, mut call: ToolCall) -> CallVerdict {
    let name = call.name.clone();
    for hook in wanted(&context.snapshot, HookPoint::BeforeTool, Some(&name)) {
        let at = DecidePoint::BeforeTool { call: call.clone() };
        let result = hook.decide(context.clone(), site.clone(), at).await;
        if let Some(HookValue::Call { call: changed }) = result.value {
            call.input = changed.input;
        }
        match result.outcome {
            HookOutcome::Continue | HookOutcome::Redirect { .. } => {}
            HookOutcome::Deny { reason } | HookOutcome::Block { reason } => {
                return CallVerdict::Denied(format!("Denied by hook {}: {reason}", hook.name()));
            }
            HookOutcome::Ask { reason } => return CallVerdict::Pass { call, confirm: Some(reason) },
        }
    }
    CallVerdict::Pass { call, confirm: None }
}

/// Shows the hooks a tool's result; returns whether one of them ends the turn after this round.
pub(super) async fn after_tool(
    context: &CallContext,
    site: &HookSite,
    call: &ToolCall,
    output: &ToolOutput,
) -> bool {
    let mut ends = false;
    for hook in wanted(&context.snapshot, HookPoint::AfterTool, Some(&call.name)) {
        let at = DecidePoint::AfterTool { call: call.clone(), output: output.clone() };
        let result = hook.decide(context.clone(), site.clone(), at).await;
        ends |= matches!(result.outcome, HookOutcome::Block { .. });
    }
    ends
}

/// Asks the hooks whether the turn may stop; returns the first that wants another round, and why.
pub(super) async fn stop(context: &CallContext, site: &HookSite) -> Option<(String, String)> {
    for hook in wanted(&context.snapshot, HookPoint::Stop, None) {
        let result = hook.decide(context.clone(), site.clone(), DecidePoint::Stop).await;
        if let HookOutcome::Block { reason } = result.outcome {
            return Some((hook.name().to_owned(), reason));
        }
    }
    None
}

/// Tells the hooks that something happened. Never waits.
pub(super) fn observe(snapshot: &Snapshot, site: &HookSite, at: &ObservePoint) {
    let point = match at {
        ObservePoint::Turn { .. } => HookPoint::Turn,
        ObservePoint::Compact { .. } => HookPoint::Compact,
        ObservePoint::Session { .. } => HookPoint::Session,
        ObservePoint::Event { .. } => HookPoint::Event,
    };
    wanted(snapshot, point, None).for_each(|hook| hook.observe(site, at));
}

/// Returns whether any hook wants this point.
pub(super) fn any_wants(snapshot: &Snapshot, point: HookPoint) -> bool {
    wanted(snapshot, point, None).next().is_some()
}

fn wanted<'a>(
    snapshot: &'a Snapshot,
    point: HookPoint,
    tool: Option<&'a str>,
) -> impl Iterator<Item = &'a std::sync::Arc<dyn crate::ports::Hook>> {
    snapshot.hooks.iter().filter(move |hook| hook.wants(point, tool))
}
