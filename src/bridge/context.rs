//! `context/contribute`: a plugin's contributor of context as the kernel sees it.

use bingo_plugin_sdk::calls::methods::ContributeContext;
use bingo_plugin_sdk::calls::{ContextContributeParams, ContextPiece, ContributeQuery};
use bingo_plugin_sdk::event::KernelError;
use bingo_plugin_sdk::handshake::{ContributorSpec, Placement};

use super::kernel_error;
use crate::ports::{BoxFuture, CallContext, Contributor};
use crate::supervisor::Connection;

/// A contributor of a plugin.
pub(super) struct PluginContributor {
    connection: Connection,
    name: String,
    spec: ContributorSpec,
}

impl PluginContributor {
    pub(super) fn new(connection: Connection, spec: ContributorSpec) -> Self {
        let name = format!("{}:{}", connection.plugin(), spec.id);
        Self { connection, name, spec }
    }
}

impl Contributor for PluginContributor {
    fn name(&self) -> &str {
        &self.name
    }

    fn placement(&self) -> &Placement {
        &self.spec.placement
    }

    fn contribute(
        &self,
        context: CallContext,
        query: ContributeQuery,
    ) -> BoxFuture<'static, Result<Vec<ContextPiece>, KernelError>> {
        let connection = self.connection.clone();
        let params = ContextContributeParams { id: self.spec.id.clone(), query };
        Box::pin(async move {
            let deadline = connection.limits().context_contribute;
            tokio::select! {
                biased;
                result = connection.call::<ContributeContext>(&params, deadline) => match result {
                    Ok(result) => Ok(result.pieces),
                    Err(error) => Err(kernel_error(&error)),
                },
                () = context.cancel.cancelled() => Err(super::cancelled(&connection)),
            }
        })
    }
}
