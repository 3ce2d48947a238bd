//! Deleting sessions, the children of one before it (kernel rule 3.2.21).

use std::sync::{Arc, Mutex};

use bingo_plugin_sdk::event::{CloseReason, ErrorCode, Frame, KernelError};
use bingo_plugin_sdk::ids::SessionId;
use bingo_plugin_sdk::rpc::{GatewayEvent, SessionFilter};

use super::session::Write;
use super::{CLOSE_DEADLINE, Kernel};
use crate::ports::{Epoch, JournalError, Replayer};

/// Takes the frames of a session that goes.
struct Unread;

impl Replayer for Unread {
    fn resume(&mut self, _: &[u8]) -> bool {
        true
    }

    fn take(&mut self, _: Frame) {}
}

impl Kernel {
    /// Deletes a session, its children first, live or stored. What runs in them winds down and is stored before it goes.
    ///
    /// # Errors
    /// When there is no such session, one of them is held elsewhere, or cannot be removed; children that could be removed
    /// are gone then, and the session stays.
    pub async fn delete(&self, id: &SessionId) -> Result<(), KernelError> {
        // Nobody opens it again while it goes, or creates another child of it.
        let lock = self.opening(id);
        let _deleting = lock.lock().await;
        let filter = SessionFilter { parent: Some(id.clone()), ..SessionFilter::default() };
        let children = self.list(filter).await?;
        if children.is_empty() {
            return self.delete_one(id).await;
        }
        let hold = self.hold(id).await?;
        let mut gone = Ok(());
        for child in children {
            let lock = self.opening(&child.id);
            let _deleting = lock.lock().await;
            match self.delete_one(&child.id).await {
                // Somebody else was quicker.
                Err(error) if error.code == ErrorCode::SessionNotFound => {}
                outcome => gone = gone.and(outcome),
            }
        }
        if let (Err(_), Some(hold)) = (&gone, hold) {
            self.parts.journal.release(hold).await;
        }
        gone?;
        self.delete_one(id).await
    }

    /// Takes a session that is only stored, so that none of its children goes when it cannot. One that is damaged is not
    /// taken, and can be deleted all the same.
    ///
    /// # Errors
    /// When there is no such session, or it is held elsewhere.
    async fn hold(&self, id: &SessionId) -> Result<Option<Epoch>, KernelError> {
        if self.parts.session(id).is_ok() {
            return Ok(None);
        }
        match self.parts.journal.claim(id.clone(), Arc::new(Mutex::new(Unread))).await {
            Ok(claim) => Ok(Some(claim.epoch)),
            Err(error @ (JournalError::Locked { .. } | JournalError::NotFound { .. })) => {
                Err(error.to_kernel())
            }
            Err(_) => Ok(None),
        }
    }

    /// Tells the gateway that a session which nobody had open was removed from the journal.
    pub fn removed(&self, session: SessionId) {
        self.parts.feed.publish(&GatewayEvent::SessionRemoved { session });
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
        self.removed(id.clone());
        Ok(())
    }
}
