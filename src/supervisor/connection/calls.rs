//! The account of one connection: calls that wait for a response, and the side channels of those that run.
//!
//! One short lock; nobody is woken while it is held. Whoever stops waiting removes its entry.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::jsonrpc::RequestId;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{CallError, CallFailure, Sent};
use super::gauge::Gauge;
use super::metrics::Account;
use super::outbox::{Mark, Outbox};
use super::stream::StreamQueue;
use crate::ports::{Asker, ProgressSink};

/// How many names of ended calls are remembered: words about these come late, about others they are faults.
const REMEMBERED: usize = 256;

/// What a waiting call gets.
pub(super) type Reply = Result<Value, CallError>;

/// A call that waits.
pub(super) struct Waiting {
    pub(super) method: &'static str,
    pub(super) mark: Arc<Mark>,
    pub(super) reply: oneshot::Sender<Reply>,
    pub(super) account: Account,
}

impl Waiting {
    /// Ends the call: it is counted, and then its caller is told.
    pub(super) fn end(self, reply: Reply) {
        match &reply {
            Ok(_) => self.account.answered(),
            Err(error) => self.account.failed(error),
        }
        // A caller that left is normal.
        let _ = self.reply.send(reply);
    }
}

/// Where the live lines and the questions of one tool call go.
pub(super) struct ProgressRoute {
    pub(super) sink: ProgressSink,
    pub(super) asker: Option<Arc<dyn Asker>>,
    /// Its questions that wait for a person.
    pub(super) asks: Gauge,
    /// All its questions.
    pub(super) asked: AtomicU32,
    /// Cancelled at the end of the call.
    pub(super) ended: CancellationToken,
    touched: Mutex<Instant>,
}

impl ProgressRoute {
    pub(super) fn new(sink: ProgressSink, asker: Option<Arc<dyn Asker>>) -> Self {
        let (asks, ended) = (Gauge::default(), CancellationToken::new());
        Self { sink, asker, asks, asked: AtomicU32::new(0), ended, touched: Mutex::new(Instant::now()) }
    }

    pub(super) fn touched(&self) -> Instant {
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shift(&self, time: Duration) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        *touched = (*touched + time).min(Instant::now());
    }

    /// Begins its silence anew; returns how long it was.
    pub(super) fn touch(&self) -> Duration {
        let now = Instant::now();
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        now - std::mem::replace(&mut *touched, now)
    }
}

/// What is known about a name that a notification carries.
pub(super) enum Route<T> {
    Found(Arc<T>),
    /// The call ended before.
    Ended,
    Unknown,
}

pub(super) struct Calls {
    plugin: PluginName,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last number given out, to a request or a stream.
    last: i64,
    waiting: HashMap<i64, Waiting>,
    tools: HashMap<String, Arc<ProgressRoute>>,
    streams: HashMap<String, Arc<StreamQueue>>,
    ended: VecDeque<String>,
    /// Why the plugin is gone, in the words that every call of it fails with.
    dead: Option<Arc<str>>,
}

impl Calls {
    pub(super) fn new(plugin: PluginName) -> Self {
        Self { plugin, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn error(&self, sent: Sent, failure: CallFailure) -> CallError {
        CallError { plugin: self.plugin.clone(), sent, failure }
    }

    /// Returns the next number; requests and stream names share the counter.
    pub(super) fn number(&self) -> i64 {
        let mut state = self.lock();
        state.last += 1;
        state.last
    }

    /// Lets a call wait; returns how many do then.
    pub(super) fn insert(&self, id: i64, waiting: Waiting) -> Result<usize, CallError> {
        let mut state = self.lock();
        if let Some(reason) = state.dead.clone() {
            drop(state);
            let method = waiting.method;
            let error = self.error(Sent::Never, CallFailure::Died { method, sent: Sent::Never, reason });
            waiting.account.failed(&error);
            return Err(error);
        }
        state.waiting.insert(id, waiting);
        Ok(state.waiting.len())
    }

    pub(super) fn remove(&self, id: i64) -> Option<Waiting> {
        self.lock().waiting.remove(&id)
    }

    /// Takes the call that an id means. A string that spells the number of one means it too; the text says so.
    pub(super) fn take(&self, id: &RequestId) -> Option<(Waiting, Option<String>)> {
        match id {
            RequestId::Number(number) => Some((self.remove(*number)?, None)),
            RequestId::Text(text) => {
                let number: i64 = text.parse().ok()?;
                let reason =
                    format!("its id came back as the string {id}, it was sent as the number {number}");
                Some((self.remove(number)?, Some(reason)))
            }
        }
    }

    /// Takes the one call that waits, when it is only one.
    pub(super) fn take_only(&self) -> Option<Waiting> {
        let mut state = self.lock();
        if state.waiting.len() != 1 {
            return None;
        }
        state.waiting.drain().next().map(|(_, waiting)| waiting)
    }

    /// Registers a tool call under its name, or under a fresh one when that name is running already.
    pub(super) fn add_tool(&self, name: &str, route: Arc<ProgressRoute>) -> String {
        let mut state = self.lock();
        let mut free = name.to_owned();
        while state.tools.contains_key(&free) {
            // A number that was not given out yet: with small ones many calls of one name would try all of them.
            state.last += 1;
            free = format!("{name}#{}", state.last);
        }
        state.tools.insert(free.clone(), route);
        free
    }

    pub(super) fn end_tool(&self, name: &str) {
        let mut state = self.lock();
        let route = state.tools.remove(name);
        state.remember(name);
        drop(state);
        if let Some(route) = route {
            route.ended.cancel();
        }
    }

    pub(super) fn add_stream(&self, name: String, queue: Arc<StreamQueue>) {
        self.lock().streams.insert(name, queue);
    }

    pub(super) fn end_stream(&self, name: &str) {
        let mut state = self.lock();
        state.streams.remove(name);
        state.remember(name);
    }

    pub(super) fn running_tool(&self, name: &str) -> Route<ProgressRoute> {
        let state = self.lock();
        state.route(state.tools.get(name), name)
    }

    /// Takes a time out of the silence of every running tool.
    pub(super) fn shift_tools(&self, time: Duration) {
        self.lock().tools.values().for_each(|route| route.shift(time));
    }

    pub(super) fn stream(&self, name: &str) -> Route<StreamQueue> {
        let state = self.lock();
        state.route(state.streams.get(name), name)
    }

    /// Says that no call waits or runs.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.tools.is_empty() && state.streams.is_empty()
    }

    pub(super) fn is_dead(&self) -> bool {
        self.lock().dead.is_some()
    }

    /// Fails every waiting call with one reason, and every later one. The first reason counts.
    pub(super) fn close(&self, outbox: &Outbox, reason: &Arc<str>) {
        let mut state = self.lock();
        if state.dead.is_some() {
            return;
        }
        state.dead = Some(Arc::clone(reason));
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiting in waiting.into_values() {
            let (method, sent) = (waiting.method, outbox.give_up(&waiting.mark));
            let failure = CallFailure::Died { method, sent, reason: Arc::clone(reason) };
            waiting.end(Err(self.error(sent, failure)));
        }
    }
}

impl State {
    fn route<T>(&self, found: Option<&Arc<T>>, name: &str) -> Route<T> {
        match found {
            Some(found) => Route::Found(Arc::clone(found)),
            None if self.ended.iter().any(|ended| ended == name) => Route::Ended,
            None => Route::Unknown,
        }
    }

    fn remember(&mut self, name: &str) {
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back(name.to_owned());
    }
}
