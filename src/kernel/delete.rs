//! Deleting sessions, the children of one before it (kernel rule 3.2.21).

use bingo_plugin_sdk::event::{CloseReason, ErrorCode, KernelError};
use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::rpc::{GatewayEvent, SessionFilter};

use super::session::Write;
use super::{CLOSE_DEADLINE, Kernel};

impl Kernel {
    /// Deletes a session, its children first, live or stored. What runs in them winds down and is stored before it goes.
    ///
    /// # Errors
    /// When there is no such session, one of them is held elsewhere, or cannot be removed; those that went before it
    /// are gone then.
    pub async fn delete(&self, id: &SessionId) -> Result<(), KernelError> {
        // Nobody opens it again while it goes, or creates another child of it.
        let lock = self.opening(id);
        let _deleting = lock.lock().await;
        let all = self.list(SessionFilter::default()).await?;
        if all.iter().any(|summary| summary.id == *id) {
            for summary in all {
                if summary.parent.is_some_and(|link| link.session == *id) {
                    let lock = self.opening(&summary.id);
                    let _deleting = lock.lock().await;
                    self.delete_one(&summary.id).await?;
                }
            }
        }
        self.delete_one(id).await
    }

    /// Deletes one session that nobody can open meanwhile.
    async fn delete_one(&self, id: &SessionId) -> Result<(), KernelError> {
        if let Ok(session) = self.parts.session(id) {
            // One that ended meanwhile is closed already.
            drop(session.write(Write::Close(CloseReason::Deleted)).await);
            if tokio::time::timeout(CLOSE_DEADLINE, session.ended()).await.is_err() {
                let message = format!("session {id} did not close in time; try again");
                return Err(KernelError::new(ErrorCode::Timeout, message));
            }
            self.parts.lock().live.remove(id);
        }
        self.parts.journal.delete(id.clone()).await.map_err(|error| error.to_kernel())?;
        self.parts.feed.publish(&GatewayEvent::SessionRemoved { session: id.clone() });
        Ok(())
    }
}
