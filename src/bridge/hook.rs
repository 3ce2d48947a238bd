//! `hook/decide` and `hook/observe`: a plugin's hook as the kernel sees it.
//!
//! What a hook does not want never crosses the wire. Its silence is not an error here: it counts as the settings say.

use bingo_plugin_sdk::calls::methods::DecideHook;
use bingo_plugin_sdk::calls::notifications::ObserveHook;
use bingo_plugin_sdk::calls::{
    DecidePoint, HookDecideParams, HookDecideResult, HookObserveParams, HookOutcome, HookSite, ObservePoint,
};
use bingo_plugin_sdk::handshake::{HookPoint, HookSpec};

use crate::ports::{BoxFuture, CallContext, Hook};
use crate::supervisor::limits::clip;
use crate::supervisor::{CallError, Connection};

/// A hook of a plugin.
pub(super) struct PluginHook {
    connection: Connection,
    name: String,
    spec: HookSpec,
}

impl PluginHook {
    pub(super) fn new(connection: Connection, spec: HookSpec) -> Self {
        let name = format!("{}:{}", connection.plugin(), spec.id);
        Self { connection, name, spec }
    }
}

impl Hook for PluginHook {
    fn name(&self) -> &str {
        &self.name
    }

    fn wants(&self, point: HookPoint, tool: Option<&str>) -> bool {
        let listed = self.spec.points.is_empty() || self.spec.points.contains(&point);
        listed && matches(self.spec.tool.as_deref(), tool)
    }

    fn decide(
        &self,
        context: CallContext,
        site: HookSite,
        at: DecidePoint,
    ) -> BoxFuture<'static, HookDecideResult> {
        let (connection, name, point) = (self.connection.clone(), self.name.clone(), word(&at));
        let params = HookDecideParams { id: self.spec.id.clone(), site, at };
        Box::pin(async move {
            let deadline = connection.limits().hook_decide;
            tokio::select! {
                biased;
                result = connection.call::<DecideHook>(&params, deadline) => {
                    result.map_or_else(|error| unanswered(&connection, &name, point, &error), clipped)
                }
                // Nobody waits for the decision any more, so nobody needs to hear of it.
                () = context.cancel.cancelled() => fallback(&connection, || format!("the hook `{name}` was not waited for")),
            }
        })
    }

    fn observe(&self, site: &HookSite, at: &ObservePoint) {
        let params = HookObserveParams { id: self.spec.id.clone(), site: site.clone(), at: at.clone() };
        self.connection.observe::<ObserveHook>(&params);
    }
}

/// Compares a tool's name with a filter: an exact name, or a prefix that ends in `*`. A filter needs a tool.
fn matches(filter: Option<&str>, tool: Option<&str>) -> bool {
    match (filter, tool) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(filter), Some(tool)) => match filter.strip_suffix('*') {
            Some(prefix) => tool.starts_with(prefix),
            None => tool == filter,
        },
    }
}

/// Returns a decision whose reason is as long as a person or a model may have to read.
fn clipped(mut result: HookDecideResult) -> HookDecideResult {
    if let HookOutcome::Deny { reason } | HookOutcome::Ask { reason } | HookOutcome::Block { reason } =
        &mut result.outcome
    {
        *reason = clip(std::mem::take(reason));
    }
    result
}

/// Tells that a hook did not decide, and returns what counts instead.
fn unanswered(connection: &Connection, name: &str, point: &str, error: &CallError) -> HookDecideResult {
    let failure = &error.failure;
    let so = if connection.denies_unanswered() {
        "it is refused, as its setting `onHookTimeout` says"
    } else {
        "it goes on without"
    };
    connection
        .warn("HOOK_UNANSWERED", format!("the hook {name} did not decide at `{point}`: {failure}; {so}"));
    fallback(connection, || format!("the hook `{name}` did not decide: {failure}"))
}

fn fallback(connection: &Connection, reason: impl FnOnce() -> String) -> HookDecideResult {
    let outcome = if connection.denies_unanswered() {
        HookOutcome::Deny { reason: reason() }
    } else {
        HookOutcome::Continue
    };
    HookDecideResult { outcome, value: None }
}

fn word(at: &DecidePoint) -> &'static str {
    match at {
        DecidePoint::Submit { .. } => "submit",
        DecidePoint::BeforeTool { .. } => "beforeTool",
        DecidePoint::AfterTool { .. } => "afterTool",
        DecidePoint::Stop => "stop",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_an_exact_name_or_a_prefix_and_needs_a_tool() {
        for (filter, tool, wanted) in [
            (None, None, true),
            (None, Some("a"), true),
            (Some("a"), None, false),
            (Some("*"), None, false),
            (Some("*"), Some("a"), true),
            (Some("a"), Some("a"), true),
            (Some("a"), Some("ab"), false),
            (Some("plugin__p__*"), Some("plugin__p__t"), true),
            (Some("plugin__p__*"), Some("plugin__q__t"), false),
            (Some("a.c"), Some("abc"), false),
        ] {
            assert_eq!(matches(filter, tool), wanted, "{filter:?} {tool:?}");
        }
    }
}
