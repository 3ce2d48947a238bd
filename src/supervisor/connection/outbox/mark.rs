//! How far a message came.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::supervisor::connection::error::Sent;

/// How far one message came, shared with the call it belongs to.
#[derive(Debug, Default)]
pub(in crate::supervisor::connection) struct Mark(AtomicU8);

impl Mark {
    const QUEUED: u8 = 0;
    const WRITTEN: u8 = 1;
    const ABANDONED: u8 = 2;

    /// Returns false when nobody wants the message any more.
    pub(super) fn begin_writing(&self) -> bool {
        self.change(Self::QUEUED, Self::WRITTEN)
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Acquire) != Self::ABANDONED
    }

    /// Nothing of it was written after all.
    pub(super) fn take_back(&self) {
        self.change(Self::WRITTEN, Self::QUEUED);
    }

    /// Takes the message back if it is not too late; returns how far it came. For the end of its call.
    pub(in crate::supervisor::connection) fn give_up(&self) -> Sent {
        self.change(Self::QUEUED, Self::ABANDONED);
        if self.0.load(Ordering::Acquire) == Self::WRITTEN { Sent::NoAnswer } else { Sent::Never }
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
