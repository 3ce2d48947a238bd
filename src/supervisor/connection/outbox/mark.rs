//! How far a message came.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether at least a part of one message was written; shared with the call that it belongs to. It changes under the lock of
/// the outbox alone, so that nobody gives up what is being written at that moment.
#[derive(Debug, Default)]
pub(in crate::supervisor::connection) struct Mark(AtomicBool);

impl Mark {
    pub(super) fn set_written(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_written(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
