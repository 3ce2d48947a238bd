//! `compactor/compact`: a plugin's compactor as the kernel sees it.

use bingo_plugin_sdk::calls::methods::Compact;
use bingo_plugin_sdk::calls::{CompactReason, Compaction, CompactorCompactParams, CompactorContext};
use bingo_plugin_sdk::event::KernelError;

use super::kernel_error;
use crate::ports::{BoxFuture, CallContext, Compactor};
use crate::supervisor::Connection;

/// A compactor of a plugin.
pub(super) struct PluginCompactor {
    connection: Connection,
    name: String,
    id: String,
}

impl PluginCompactor {
    pub(super) fn new(connection: Connection, id: String) -> Self {
        Self { name: format!("{}:{id}", connection.plugin()), connection, id }
    }
}

impl Compactor for PluginCompactor {
    fn name(&self) -> &str {
        &self.name
    }

    fn compact(
        &self,
        context: CallContext,
        over: CompactorContext,
        reason: CompactReason,
    ) -> BoxFuture<'static, Result<Compaction, KernelError>> {
        let connection = self.connection.clone();
        let params = CompactorCompactParams { id: self.id.clone(), context: over, reason };
        Box::pin(async move {
            let deadline = connection.limits().compactor_compact;
            tokio::select! {
                biased;
                result = connection.call::<Compact>(&params, deadline) => match result {
                    Ok(result) => Ok(result.compaction),
                    Err(error) => Err(kernel_error(&error)),
                },
                () = context.cancel.cancelled() => Err(super::cancelled(&connection)),
            }
        })
    }
}
