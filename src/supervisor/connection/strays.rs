//! What a plugin writes that is no use: told once a kind with an example, then counted and summed up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::item::Level;
use tokio::time::{Duration, Instant};

use super::metrics::Counters;
use crate::ports::{Notice, Notices};

/// How long further ones of a kind are only counted before the person hears a sum.
const SUM_UP: Duration = Duration::from_secs(300);

/// How many characters of an example are shown.
const SHOWN: usize = 120;

/// A kind of useless output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stray {
    /// A line that is not JSON, an empty one too: something printed.
    Output,
    /// A line that ends in the middle of its message.
    CutOff,
    /// A line whose bytes are not UTF-8.
    NotUtf8,
    /// JSON, but no message.
    NotMessage,
    /// A line over the cap that belongs to no call.
    TooLong,
    /// A notification that does not fit its schema or is none.
    Notification,
    /// A request that the host does not serve, or whose params do not fit.
    Request,
    /// A notification about a call that never was.
    UnknownCall,
    /// An answer of the host that a plugin which does not read left no room for.
    Unanswered,
}

impl Stray {
    fn code(self) -> &'static str {
        match self {
            Self::Output | Self::NotUtf8 => "PLUGIN_STRAY_OUTPUT",
            _ => "PLUGIN_FAULTY_MESSAGE",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Output => "printed a line on stdout that is no JSON-RPC message",
            Self::CutOff => "wrote a line that ends in the middle of a message",
            Self::NotUtf8 => "printed a line on stdout that is not UTF-8",
            Self::NotMessage => "sent a line that is no JSON-RPC 2.0 message",
            Self::TooLong => "sent a line over the limit that belongs to no call",
            Self::Notification => "sent a notification that does not fit",
            Self::Request => "sent a request that was refused",
            Self::UnknownCall => "sent a notification about a call that is not known",
            Self::Unanswered => "asks and does not read: a request was dropped",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Output | Self::NotUtf8 => "; print to stderr instead",
            Self::CutOff => "; a message must stand in one line",
            _ => "",
        }
    }
}

/// The account of one connection.
pub(super) struct Strays {
    plugin: PluginName,
    notices: Arc<dyn Notices>,
    /// Keeps the last one as the plugin's last fault.
    counters: Arc<Counters>,
    counts: Mutex<BTreeMap<Stray, Count>>,
    /// All that were noted so far.
    noted: AtomicU64,
    /// What was no fault and no use either.
    wasted: AtomicU64,
}

struct Count {
    untold: u64,
    told: Instant,
}

impl Strays {
    pub(super) fn new(plugin: PluginName, notices: Arc<dyn Notices>, counters: Arc<Counters>) -> Self {
        Self {
            plugin,
            notices,
            counters,
            counts: Mutex::default(),
            noted: AtomicU64::new(0),
            wasted: AtomicU64::new(0),
        }
    }

    /// Returns how many were noted so far.
    pub(super) fn noted(&self) -> u64 {
        self.noted.load(Ordering::Relaxed)
    }

    /// Counts one that is no fault and no use either: nobody is told.
    pub(super) fn waste(&self) {
        self.wasted.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many messages were no use so far, strays and others.
    pub(super) fn useless(&self) -> u64 {
        self.noted() + self.wasted.load(Ordering::Relaxed)
    }

    /// Tells the first of a kind; counts the others and sums them up now and then.
    pub(super) fn note(&self, stray: Stray, example: &str) {
        self.noted.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(plugin = %self.plugin, ?stray, example, "stray output");
        self.counters.fault(format!("it {}: {:?}", stray.what(), clip(example)));
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = counts.get_mut(&stray) else {
            counts.insert(stray, Count { untold: 0, told: Instant::now() });
            drop(counts);
            let (what, advice) = (stray.what(), stray.advice());
            self.post(stray, format!("{}: {what}: {:?}{advice}", self.plugin, clip(example)));
            return;
        };
        count.untold += 1;
        if count.told.elapsed() < SUM_UP {
            return;
        }
        count.told = Instant::now();
        let untold = std::mem::take(&mut count.untold);
        drop(counts);
        self.sum_up(stray, untold);
    }

    /// Tells what was only counted; for the end of a connection.
    pub(super) fn finish(&self) {
        let counts = std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        for (stray, count) in counts.into_iter().filter(|(_, count)| count.untold > 0) {
            self.sum_up(stray, count.untold);
        }
    }

    fn sum_up(&self, stray: Stray, untold: u64) {
        self.post(stray, format!("{}: {} ({untold} more)", self.plugin, stray.what()));
    }

    fn post(&self, stray: Stray, text: String) {
        self.notices.post(Notice { level: Level::Warn, code: stray.code(), text });
    }
}

fn clip(text: &str) -> String {
    let mut clipped: String = text.chars().take(SHOWN).collect();
    if clipped.len() < text.len() {
        clipped.push('…');
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::testing::Heard;

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_told_once_then_summed_up() {
        let heard = Arc::new(Heard::default());
        let strays = Strays::new(PluginName::parse("p").unwrap(), heard.clone(), Arc::default());
        strays.note(Stray::Output, "hello");
        strays.note(Stray::Output, "again");
        strays.note(Stray::NotMessage, "[]");
        assert_eq!(
            heard.texts(),
            [
                "p: printed a line on stdout that is no JSON-RPC message: \"hello\"; print to stderr instead",
                "p: sent a line that is no JSON-RPC 2.0 message: \"[]\"",
            ]
        );
        tokio::time::advance(SUM_UP).await;
        strays.note(Stray::Output, "and again");
        assert_eq!(heard.texts()[2], "p: printed a line on stdout that is no JSON-RPC message (2 more)");
        strays.note(Stray::Output, "x");
        strays.finish();
        assert_eq!(heard.texts().len(), 4);
    }
}
