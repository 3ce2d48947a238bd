//! How far a message came.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::supervisor::connection::error::Sent;

/// How far one message came, shared with the call it belongs to. It changes under the lock of the outbox alone, so that
/// nobody gives up what is being written at that moment.
#[derive(Debug, Default)]
pub(in crate::supervisor::connection) struct Mark(AtomicU8);

impl Mark {
    const QUEUED: u8 = 0;
    const WRITTEN: u8 = 1;
    const ABANDONED: u8 = 2;

    /// Returns false when nobody wants the message any more.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != Self::ABANDONED
    }

    /// At least a part of it was written.
    pub(super) fn written(&self) {
        self.0.store(Self::WRITTEN, Ordering::Relaxed);
    }

    /// Takes the message back if it is not too late; returns how far it came.
    pub(super) fn give_up(&self) -> Sent {
        let (queued, abandoned) = (Self::QUEUED, Self::ABANDONED);
        match self.0.compare_exchange(queued, abandoned, Ordering::Relaxed, Ordering::Relaxed) {
            Err(Self::WRITTEN) => Sent::NoAnswer,
            _ => Sent::Never,
        }
    }
}
