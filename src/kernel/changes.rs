//! Tells the gateway's subscribers which catalogs changed, when the table of plugins does.
//!
//! It looks at what the catalogs say, not at what happened: a plugin that came back as it was changes no list of tools.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bingo_plugin_sdk::rpc::{Catalog, CatalogKind, GatewayEvent};

use super::defaults::Defaults;
use super::feed::Feed;
use super::{PATIENCE, catalog};
use crate::ports::Offers;

/// How long changes are gathered before they are told: plugins often come and go together.
const GATHER: Duration = Duration::from_millis(50);

/// The catalogs that plugins fill, in the order in which changes are told.
const KINDS: [CatalogKind; 5] = [
    CatalogKind::Plugins,
    CatalogKind::Models,
    CatalogKind::Providers,
    CatalogKind::Tools,
    CatalogKind::Commands,
];

/// The account of what subscribers know.
pub(super) struct Changes {
    feed: Arc<Feed>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// The table up to which changes were told; 0 while plugins start.
    number: u64,
    /// Catalogs that were given from tables in between: their readers saw what was never compared.
    given: Vec<(CatalogKind, u64)>,
}

impl Changes {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        Self { feed, told: Mutex::default() }
    }

    /// Notes that a catalog was given to somebody, from the table of this number.
    pub(super) fn given(&self, kind: CatalogKind, number: u64) {
        let mut told = self.lock();
        if number < told.number {
            drop(told);
            // It was told while this one was being read.
            self.feed.publish(&GatewayEvent::CatalogChanged { kind });
        } else if number > told.number && !told.given.contains(&(kind, number)) {
            told.given.push((kind, number));
        }
    }

    /// Tells each change from the moment on at which nothing is starting any more, or a catalog is given all the same.
    pub(super) async fn tell(self: Arc<Self>, offers: Arc<dyn Offers>, defaults: Defaults) {
        // An error means that some take longer.
        let _ = tokio::time::timeout(PATIENCE, offers.settled()).await;
        let mut known: Option<[Catalog; 5]> = None;
        loop {
            let snapshot = offers.snapshot();
            let number = snapshot.number;
            let configured = defaults.configured();
            let now = KINDS.map(|kind| catalog::content(&snapshot, kind, &configured));
            // What has ended is not held while nothing happens.
            drop(snapshot);
            self.tell_between(known.as_ref(), &now, number);
            known = Some(now);
            offers.changed(number).await;
            tokio::time::sleep(GATHER).await;
        }
    }

    fn tell_between(&self, old: Option<&[Catalog; 5]>, new: &[Catalog; 5], number: u64) {
        let mut told = self.lock();
        told.number = number;
        let given = std::mem::take(&mut told.given);
        drop(told);
        for (place, kind) in KINDS.into_iter().enumerate() {
            let changed = old.is_some_and(|old| old[place] != new[place]);
            if changed || given.iter().any(|(of, from)| *of == kind && *from != number) {
                self.feed.publish(&GatewayEvent::CatalogChanged { kind });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;
    use crate::kernel::testing::plugin;
    use crate::ports::{BoxFuture, PluginReport, Snapshot};

    /// Tables that a test sets.
    struct Tables(watch::Sender<Arc<Snapshot>>);

    impl Tables {
        fn new() -> Arc<Self> {
            Arc::new(Self(watch::Sender::new(table(1, None))))
        }

        fn set(&self, number: u64, reason: Option<&str>) {
            self.0.send_replace(table(number, reason));
        }
    }

    fn table(number: u64, reason: Option<&str>) -> Arc<Snapshot> {
        let (name, version, reason) = ("p".to_owned(), "1".to_owned(), reason.map(str::to_owned));
        let plugins = vec![PluginReport { version, reason, ..plugin(&name) }];
        Arc::new(Snapshot { number, plugins, ..Snapshot::default() })
    }

    impl Offers for Tables {
        fn snapshot(&self) -> Arc<Snapshot> {
            Arc::clone(&self.0.borrow())
        }

        fn starting(&self) -> Vec<String> {
            Vec::new()
        }

        fn settled(&self) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }

        fn changed(&self, number: u64) -> BoxFuture<'static, ()> {
            let mut table = self.0.subscribe();
            Box::pin(async move {
                table.wait_for(|table| table.number != number).await.unwrap();
            })
        }
    }

    /// Starts to tell; returns the account and what a subscriber hears.
    async fn telling(tables: &Arc<Tables>) -> (Arc<Changes>, super::super::FeedStream) {
        let feed = Arc::new(Feed::default());
        let stream = feed.subscribe();
        let changes = Arc::new(Changes::new(feed));
        tokio::spawn(Arc::clone(&changes).tell(tables.clone(), Defaults::default()));
        tokio::time::sleep(GATHER).await;
        (changes, stream)
    }

    async fn heard(stream: &mut super::super::FeedStream) -> Vec<GatewayEvent> {
        let mut events = Vec::new();
        while let Ok(event) = tokio::time::timeout(GATHER * 3, stream.next()).await {
            events.push(event);
        }
        events
    }

    const PLUGINS: GatewayEvent = GatewayEvent::CatalogChanged { kind: CatalogKind::Plugins };

    #[tokio::test(start_paused = true)]
    async fn only_what_changed_is_told_and_a_burst_once() {
        let tables = Tables::new();
        let (_, mut stream) = telling(&tables).await;
        assert_eq!(heard(&mut stream).await, [], "the first table is no change");
        tables.set(2, Some("it died"));
        tokio::task::yield_now().await;
        tables.set(3, Some("it is starting"));
        assert_eq!(heard(&mut stream).await, [PLUGINS]);
        tables.set(4, Some("it is starting"));
        assert_eq!(heard(&mut stream).await, [], "another table that says the same");
    }

    #[tokio::test(start_paused = true)]
    async fn who_read_in_between_is_told_even_if_all_is_as_before() {
        let tables = Tables::new();
        let (changes, mut stream) = telling(&tables).await;
        tables.set(2, Some("it died"));
        tokio::task::yield_now().await;
        changes.given(CatalogKind::Plugins, 2);
        tables.set(3, None);
        assert_eq!(heard(&mut stream).await, [PLUGINS]);
        changes.given(CatalogKind::Plugins, 3);
        assert_eq!(heard(&mut stream).await, []);
        changes.given(CatalogKind::Plugins, 2);
        assert_eq!(heard(&mut stream).await, [PLUGINS], "a slow reader");
    }
}
