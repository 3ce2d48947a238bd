//! `command/run` and `command/complete`: a plugin's command as the kernel sees it.

use std::path::PathBuf;

use bingo_plugin_sdk::calls::methods::{CompleteCommand, RunCommand};
use bingo_plugin_sdk::calls::{CommandCompleteParams, CommandOutcome, CommandRunParams, Completion};
use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::handshake::CommandSpec;

use crate::ports::{BoxFuture, CallContext, Command};
use crate::supervisor::Connection;

/// A command of a plugin.
pub(super) struct PluginCommand {
    connection: Connection,
    spec: CommandSpec,
}

impl PluginCommand {
    pub(super) fn new(connection: Connection, spec: CommandSpec) -> Self {
        Self { connection, spec }
    }
}

impl Command for PluginCommand {
    fn spec(&self) -> &CommandSpec {
        &self.spec
    }

    fn run(
        &self,
        context: CallContext,
        args: String,
    ) -> BoxFuture<'static, Result<CommandOutcome, KernelError>> {
        let connection = self.connection.clone();
        let cwd = context.cwd.to_string_lossy().into_owned();
        let params = CommandRunParams { name: self.spec.name.clone(), args, cwd, session: context.session };
        Box::pin(async move {
            let deadline = connection.limits().command_run;
            let result = tokio::select! {
                biased;
                result = connection.call::<RunCommand>(&params, deadline) => result.map_err(|error| error.to_string()),
                () = context.cancel.cancelled() => Err(format!("{}: the command was cancelled", connection.plugin())),
            };
            match result {
                Ok(result) => Ok(result.outcome),
                Err(text) => Err(KernelError::new(ErrorCode::ToolFailed, text)),
            }
        })
    }

    fn complete(&self, partial: String, cwd: PathBuf) -> BoxFuture<'static, Vec<Completion>> {
        let connection = self.connection.clone();
        let cwd = cwd.to_string_lossy().into_owned();
        let params = CommandCompleteParams { name: self.spec.name.clone(), partial, cwd };
        Box::pin(async move {
            let deadline = connection.limits().command_complete;
            match connection.call::<CompleteCommand>(&params, deadline).await {
                Ok(result) => result.completions,
                Err(error) => {
                    // Nobody wants a notice while typing.
                    tracing::info!(%error, "no completions");
                    Vec::new()
                }
            }
        })
    }
}
