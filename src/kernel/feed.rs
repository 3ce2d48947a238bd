//! The feed of gateway events: sessions created and removed, catalogs changed.
//!
//! A slow subscriber loses nothing: what waits is merged by session and by catalog, which also bounds it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bingo_plugin_sdk::rpc::GatewayEvent;
use tokio::sync::Notify;

/// The kernel's end.
#[derive(Default)]
pub(super) struct Feed {
    subscribers: Mutex<Vec<Weak<Waiting>>>,
}

/// A subscriber's end.
pub struct FeedStream {
    waiting: Arc<Waiting>,
}

#[derive(Default)]
struct Waiting {
    events: Mutex<Vec<GatewayEvent>>,
    wake: Notify,
}

impl Feed {
    /// Subscribes to what happens from now on.
    pub(super) fn subscribe(&self) -> FeedStream {
        let waiting = Arc::new(Waiting::default());
        self.lock().push(Arc::downgrade(&waiting));
        FeedStream { waiting }
    }

    /// Tells every subscriber.
    pub(super) fn publish(&self, event: &GatewayEvent) {
        self.lock().retain(|subscriber| {
            let Some(waiting) = subscriber.upgrade() else { return false };
            waiting.push(event.clone());
            true
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Waiting>>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FeedStream {
    /// Returns the next event.
    pub async fn next(&mut self) -> GatewayEvent {
        loop {
            let woken = self.waiting.wake.notified();
            {
                let mut events = self.waiting.events.lock().unwrap_or_else(PoisonError::into_inner);
                if !events.is_empty() {
                    return events.remove(0);
                }
            }
            woken.await;
        }
    }
}

impl Waiting {
    fn push(&self, event: GatewayEvent) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.retain(|waiting| !supersedes(&event, waiting));
        events.push(event);
        drop(events);
        self.wake.notify_one();
    }
}

/// Returns whether an unread event is pointless beside a newer one.
fn supersedes(newer: &GatewayEvent, older: &GatewayEvent) -> bool {
    let session = |event: &GatewayEvent| match event {
        GatewayEvent::SessionCreated { summary } => Some(summary.id.clone()),
        GatewayEvent::SessionRemoved { session } => Some(session.clone()),
        GatewayEvent::CatalogChanged { .. } => None,
    };
    match (newer, older) {
        (GatewayEvent::CatalogChanged { kind }, GatewayEvent::CatalogChanged { kind: old }) => kind == old,
        _ => session(newer).is_some() && session(newer) == session(older),
    }
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::ids::SessionId;
    use bingo_plugin_sdk::rpc::CatalogKind;

    use super::*;

    fn removed(id: &str) -> GatewayEvent {
        GatewayEvent::SessionRemoved { session: SessionId::from(id) }
    }

    /// Rule 3.6.49.
    #[tokio::test]
    async fn what_waits_is_merged_and_nothing_else_is_lost() {
        let feed = Feed::default();
        let mut stream = feed.subscribe();
        let catalog = GatewayEvent::CatalogChanged { kind: CatalogKind::Tools };
        for event in [&removed("a"), &catalog, &removed("b"), &catalog, &removed("a")] {
            feed.publish(event);
        }
        let mut got = Vec::new();
        for _ in 0..3 {
            got.push(stream.next().await);
        }
        assert_eq!(got, [removed("b"), catalog, removed("a")]);
    }

    #[test]
    fn a_subscriber_that_left_is_forgotten() {
        let feed = Feed::default();
        drop(feed.subscribe());
        feed.publish(&removed("a"));
        assert!(feed.lock().is_empty());
    }
}
