//! What is counted of one connection, and the value that is read out of it.
//!
//! A call is counted once, when its [`Account`] is dropped. The entry of the call that waits owns it, so whatever ends a
//! call finds it there, and the second one that tries finds nothing. Counting is a few relaxed additions; memory is
//! taken at the first call of a method only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bingo_plugin_sdk::calls::{METHODS, methods, notifications};
use bingo_plugin_sdk::jsonrpc::{Method, Notice as WireNotice};
use serde::Serialize;
use tokio::time::Instant;

use super::error::{CallError, CallFailure};
use super::histogram::Histogram;
use crate::supervisor::guard::ProcessMetrics;
use crate::telemetry;

/// How many characters of a fault are kept: it may quote what the plugin sent.
const SHOWN: usize = 300;

/// The place behind those of `METHODS`: service calls of the plugin.
const SERVED: usize = METHODS.len();

/// The counters of one connection.
#[derive(Default)]
pub(super) struct Counters {
    /// The host's calls in the order of `METHODS`, then those that it serves.
    calls: [OnceLock<Box<MethodCounters>>; METHODS.len() + 1],
    /// Deltas read in one pass. They are so many that nothing else is counted of each.
    pub(super) plain_deltas: Count,
    /// The other notifications: those that have their shape, and those that have not.
    pub(super) other_deltas: Count,
    pub(super) faulty_deltas: Count,
    pub(super) progress: Count,
    pub(super) faulty_progress: Count,
    /// Messages that came, plain deltas left out.
    pub(super) messages: Count,
    /// Bytes that came.
    pub(super) bytes: Count,
    fault: Mutex<Option<LastFault>>,
}

/// A number that only grows.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one method in one direction.
struct MethodCounters {
    ended: Count,
    errors: Count,
    cancelled: Count,
    took: Histogram,
}

impl Counters {
    /// Opens the account of a call that the host makes.
    pub(super) fn call(self: &Arc<Self>, method: &str) -> Account {
        self.account(METHODS.iter().position(|name| *name == method))
    }

    /// Opens the account of a service call of the plugin.
    pub(super) fn served(self: &Arc<Self>) -> Account {
        self.account(Some(SERVED))
    }

    fn account(self: &Arc<Self>, place: Option<usize>) -> Account {
        Account { counters: Arc::clone(self), place, began: Instant::now(), end: End::Cancelled }
    }

    /// Keeps what the plugin did wrong last.
    pub(super) fn fault(&self, text: String) {
        let fault = LastFault { at: telemetry::now(), text: clip(text) };
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    pub(super) fn last_fault(&self) -> Option<LastFault> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn messages_in(&self) -> u64 {
        self.messages.get() + self.plain_deltas.get()
    }

    /// Reads what the host called.
    pub(super) fn calls(&self) -> BTreeMap<&'static str, MethodMetrics> {
        let methods = METHODS.iter().zip(&self.calls);
        methods.filter_map(|(name, counters)| Some((*name, counters.get()?.read()))).collect()
    }

    /// Reads what the plugin sent beside answers.
    pub(super) fn received(&self) -> BTreeMap<&'static str, MethodMetrics> {
        let deltas = self.plain_deltas.get() + self.other_deltas.get();
        let mut received: BTreeMap<_, _> = [
            (notifications::ProviderDelta::NAME, deltas, self.faulty_deltas.get()),
            (notifications::ToolProgress::NAME, self.progress.get(), self.faulty_progress.get()),
        ]
        .into_iter()
        .filter(|(_, good, faulty)| good + faulty > 0)
        .map(|(name, good, errors)| {
            (name, MethodMetrics { calls: good + errors, errors, ..MethodMetrics::default() })
        })
        .collect();
        if let Some(served) = self.calls[SERVED].get() {
            received.insert(methods::CallService::NAME, served.read());
        }
        received
    }

    fn close(&self, account: &Account) {
        let Some(place) = account.place else { return };
        let counters = self.calls[place].get_or_init(|| Box::new(MethodCounters::new()));
        counters.ended.add(1);
        match account.end {
            End::Cancelled => counters.cancelled.add(1),
            End::Answered => counters.took.record(account.began.elapsed()),
            End::Failed { timed } => {
                counters.errors.add(1);
                if timed {
                    counters.took.record(account.began.elapsed());
                }
            }
        }
    }
}

impl MethodCounters {
    fn new() -> Self {
        let (ended, errors, cancelled) = (Count::default(), Count::default(), Count::default());
        Self { ended, errors, cancelled, took: Histogram::new() }
    }

    fn read(&self) -> MethodMetrics {
        let took = self.took.counts();
        MethodMetrics {
            calls: self.ended.get(),
            errors: self.errors.get(),
            cancelled: self.cancelled.get(),
            p50_us: took.percentile(50),
            p99_us: took.percentile(99),
        }
    }
}

/// One call until its end. Dropped without a word it was cancelled.
pub(super) struct Account {
    counters: Arc<Counters>,
    /// Absent for a method that is in no table.
    place: Option<usize>,
    began: Instant,
    end: End,
}

enum End {
    /// Nobody waited for it any more.
    Cancelled,
    Answered,
    Failed {
        /// Its time says something about the plugin: an answer came, or none within the deadline.
        timed: bool,
    },
}

impl Account {
    /// Ends a call that was answered well.
    pub(super) fn answered(mut self) {
        self.end = End::Answered;
    }

    /// Ends a call that failed.
    pub(super) fn failed(mut self, error: &CallError) {
        let timed = match &error.failure {
            CallFailure::Busy { .. } | CallFailure::Params { .. } | CallFailure::Died { .. } => false,
            CallFailure::Refused { .. }
            | CallFailure::Result { .. }
            | CallFailure::Protocol { .. }
            | CallFailure::Unusable { .. }
            | CallFailure::Deadline { .. } => true,
        };
        self.end = End::Failed { timed };
        self.counters.fault(match &error.failure {
            // The plugin's own words need not name the method.
            CallFailure::Refused { method, error } => format!("{method}: {error}"),
            failure => failure.to_string(),
        });
    }

    /// Ends a call that was served; a refusal is no fault of the caller's process.
    pub(super) fn served<T, E>(mut self, outcome: &Result<T, E>) {
        self.end = if outcome.is_ok() { End::Answered } else { End::Failed { timed: true } };
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.counters.close(self);
    }
}

/// What is known of a connection and its process at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metrics {
    pub(crate) generation: u64,
    /// Absent where no process was named.
    #[serde(flatten)]
    pub(crate) process: Option<ProcessMetrics>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) messages_in: u64,
    pub(crate) messages_out: u64,
    /// Bytes that wait for the plugin to read.
    pub(crate) queued_bytes: usize,
    /// What the host called, by method.
    pub(crate) calls: BTreeMap<&'static str, MethodMetrics>,
    /// What the plugin called and told, by method.
    pub(crate) received: BTreeMap<&'static str, MethodMetrics>,
    pub(crate) strays: u64,
    pub(crate) dropped_observations: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_fault: Option<LastFault>,
}

/// What is known of one method in one direction: of calls, once they have ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MethodMetrics {
    /// All of them, errors and cancelled ones included.
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) cancelled: u64,
    /// Of those that were answered or late; at most 6.25 % off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<u64>,
}

/// The last thing that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LastFault {
    /// RFC 3339.
    pub(crate) at: String,
    pub(crate) text: String,
}

fn clip(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    text
}
