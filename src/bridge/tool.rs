//! `tool/call`: a plugin's tool as the kernel sees it.

use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::calls::methods::CallTool;
use bingo_plugin_sdk::calls::{ToolCallParams, ToolCallResult, ToolCancelParams, notifications};
use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::handshake::ToolSpec;
use bingo_plugin_sdk::item::{ContentPart, ToolOutput};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::ports::{BoxFuture, CallContext, ProgressSink, Tool};
use crate::supervisor::limits::{clip, words};
use crate::supervisor::{CallError, Clock, Connection, PendingCall, ToolRoute};

/// How many characters of text a result may have, over all its parts.
const TEXT: usize = 50_000;

/// A tool of a plugin.
pub(super) struct PluginTool {
    connection: Connection,
    /// The name the plugin gave it.
    name: String,
    spec: ToolSpec,
    /// Of the plugin.
    version: String,
}

impl PluginTool {
    pub(super) fn new(connection: Connection, declared: &ToolSpec, version: &str) -> Self {
        let plugin = connection.plugin().as_str();
        let mut spec = declared.clone();
        spec.name = format!("plugin__{plugin}__{}", declared.name);
        // What a plugin says of itself is not what the host knows of it.
        spec.meta = [("plugin".to_owned(), Value::from(plugin))].into();
        Self { name: declared.name.clone(), spec, version: version.to_owned(), connection }
    }
}

impl Tool for PluginTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn is_gone(&self) -> bool {
        self.connection.is_closed()
    }

    fn call(
        &self,
        context: CallContext,
        call_id: String,
        input: Value,
        progress: ProgressSink,
    ) -> BoxFuture<'static, Result<ToolOutput, KernelError>> {
        let (connection, name) = (self.connection.clone(), self.name.clone());
        Box::pin(async move {
            let turn = context.turn.ok_or_else(|| {
                KernelError::new(ErrorCode::Internal, "a tool can be called within a turn only")
            })?;
            let progress: ProgressSink = Arc::new(move |tail| progress(clip(tail)));
            let route = connection.watch_tool(&call_id, progress, context.asker);
            let params = ToolCallParams {
                call_id: route.call_id.clone(),
                name,
                input,
                cwd: context.cwd.to_string_lossy().into_owned(),
                session: context.session,
                turn,
            };
            let pending = connection.begin::<CallTool>(&params).map_err(failed)?;
            // What was sent need not be kept until the answer comes.
            drop(params);
            Running { connection, route, pending: Some(pending) }.result(&context.cancel).await
        })
    }
}

/// A call that was let in. When it ends without an answer, by whatever way, the plugin is told.
struct Running {
    connection: Connection,
    route: ToolRoute,
    pending: Option<PendingCall<CallTool>>,
}

impl Running {
    async fn result(mut self, cancel: &CancellationToken) -> Result<ToolOutput, KernelError> {
        let idle = self.connection.limits().tool_idle;
        let pending = self.pending.as_mut().expect("it was just begun");
        let result = tokio::select! {
            biased;
            result = pending.response() => result,
            () = cancel.cancelled() => return Err(self.interrupted()),
            () = silence(self.connection.clock(), &self.route, idle) => {
                pending.late(idle);
                return Err(self.silent(idle));
            }
        };
        // Answered, or dead: there is nobody to tell.
        self.pending = None;
        let ToolCallResult { output } = result.map_err(failed)?;
        Ok(clipped(output))
    }

    fn interrupted(&self) -> KernelError {
        KernelError::new(
            ErrorCode::ToolFailed,
            format!("{}: the call was cancelled", self.connection.plugin()),
        )
    }

    fn silent(&self, idle: Duration) -> KernelError {
        let plugin = self.connection.plugin();
        let text = format!("{plugin}: the tool neither answered nor showed progress for {}", words(idle));
        KernelError::new(ErrorCode::Timeout, text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.pending.take().is_some_and(PendingCall::withdraw) {
            let params = ToolCancelParams { call_id: self.route.call_id.clone() };
            self.connection.cancel::<notifications::CancelTool>(&params);
        }
    }
}

/// Waits until there was no progress for `idle`, the time not counted during which it waits for an answer to a question
/// or a service call; for ever when `idle` is 0.
async fn silence(clock: &Clock, route: &ToolRoute, idle: Duration) {
    if idle.is_zero() {
        return std::future::pending().await;
    }
    loop {
        clock.passed(|| route.touched(), idle).await;
        // The end of the waiting sets the clock back.
        route.waited().await;
        if clock.is_over(route.touched(), idle) {
            return;
        }
    }
}

fn failed(error: CallError) -> KernelError {
    KernelError::new(ErrorCode::ToolFailed, error.to_string())
}

/// Cuts the text of a result to its limit and says how much is missing.
fn clipped(mut output: ToolOutput) -> ToolOutput {
    let mut left = TEXT;
    let mut missing = 0;
    let mut last = None;
    for (index, part) in output.parts.iter_mut().enumerate() {
        let ContentPart::Text { text } = part else { continue };
        let length = text.chars().count();
        if length > left {
            let end = text.char_indices().nth(left).map_or(text.len(), |(end, _)| end);
            text.truncate(end);
            // Kept for as long as the session: not with the room of all that came.
            text.shrink_to_fit();
            missing += length - left;
            last.get_or_insert(index);
        }
        left = left.saturating_sub(length);
    }
    if let Some(ContentPart::Text { text }) = last.and_then(|index| output.parts.get_mut(index)) {
        text.push_str(&format!("\n[truncated: {missing} more characters]"));
    }
    output.parts.retain(|part| !matches!(part, ContentPart::Text { text } if text.is_empty() && missing > 0));
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 4.3.20.
    #[test]
    fn text_is_cut_over_all_parts_and_says_how_much_is_missing() {
        let output = ToolOutput {
            parts: ["é".repeat(TEXT - 1), "abc".to_owned(), "d".to_owned()].map(ContentPart::text).into(),
            is_error: true,
            display: None,
        };
        let output = clipped(output);
        assert!(output.is_error);
        assert_eq!(output.parts.len(), 2);
        assert_eq!(output.parts[1], ContentPart::text("a\n[truncated: 3 more characters]"));
    }

    /// Rule 4.3.20.
    #[test]
    fn text_within_the_limit_stays_as_it_is() {
        let output = ToolOutput::text("é".repeat(TEXT));
        assert_eq!(clipped(output.clone()), output);
        let empty = ToolOutput::text("");
        assert_eq!(clipped(empty.clone()), empty);
    }
}
