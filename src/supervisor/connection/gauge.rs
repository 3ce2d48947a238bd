//! Counts what is open, and lets others wait for a change: a deadline that stands still while a person is asked.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tokio::time::{Duration, Instant};

/// A number of open things.
#[derive(Debug)]
pub(super) struct Gauge {
    open: watch::Sender<usize>,
    /// Since when something is open; changed within a change of the number only.
    since: Mutex<Instant>,
}

impl Default for Gauge {
    fn default() -> Self {
        Self { open: watch::Sender::new(0), since: Mutex::new(Instant::now()) }
    }
}

impl Gauge {
    pub(super) fn enter(&self) {
        self.open.send_modify(|open| {
            if *open == 0 {
                *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
            *open += 1;
        });
    }

    pub(super) fn leave(&self) {
        self.leave_with(|_| {});
    }

    /// Leaves; the last one says first for how long something was open, before anybody sees that nothing is. That must
    /// be short and not come back here.
    pub(super) fn leave_with(&self, last: impl FnOnce(Duration)) {
        self.open.send_modify(|open| {
            if *open == 1 {
                last(self.since.lock().unwrap_or_else(PoisonError::into_inner).elapsed());
            }
            *open = open.saturating_sub(1);
        });
    }

    pub(super) fn is_open(&self) -> bool {
        *self.open.borrow() > 0
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<usize> {
        self.open.subscribe()
    }

    /// Waits until nothing is open.
    pub(super) async fn closed(&self) {
        // The sender lives as long as this borrow.
        let _ = self.subscribe().wait_for(|open| *open == 0).await;
    }
}
