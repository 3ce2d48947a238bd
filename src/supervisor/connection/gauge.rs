//! Counts what is open, and lets others wait for a change: a deadline that stands still while a person is asked.

use tokio::sync::watch;

/// A number of open things.
#[derive(Debug)]
pub(super) struct Gauge(watch::Sender<usize>);

impl Default for Gauge {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Gauge {
    pub(super) fn enter(&self) {
        self.0.send_modify(|open| *open += 1);
    }

    pub(super) fn leave(&self) {
        self.0.send_modify(|open| *open = open.saturating_sub(1));
    }

    pub(super) fn is_open(&self) -> bool {
        *self.0.borrow() > 0
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }

    /// Waits until nothing is open.
    pub(super) async fn closed(&self) {
        // The sender lives as long as this borrow.
        let _ = self.subscribe().wait_for(|open| *open == 0).await;
    }
}
