//! The life of one plugin: its processes one after the other, a candidate beside the one that serves, and those that
//! only finish what they hold.
//!
//! One task a plugin owns all of it and publishes each change. What can take long, a handshake, a `prepare` step, a pause,
//! heeds orders and the stop of the host; what they wait for is bounded: files that are hashed, and the end of a process.

mod start;
mod swap;

use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::handshake::InitializeResult;
use bingo_plugin_sdk::ids::Generation;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::discovery::{self, Origin, PluginSource};
use super::generation::{Process, StartError};
use super::restart::{Deaths, Next};
use super::table::{PluginState, ReadyPlugin};
use super::{Owner, PluginSetup};
use crate::supervisor::limits;
use crate::telemetry::words;

/// Who waits for the outcome of an order: the generation that serves then, or why there is none, in words.
pub(super) type Reply = oneshot::Sender<Result<Generation, String>>;

/// What a keeper is told to do.
pub(super) enum Order {
    /// Start another process, from its files as they are now, and let it follow when it is well.
    Renew(Option<Reply>),
    Enable(Option<Reply>),
    Disable(Option<Reply>),
    /// It is no plugin of this host any more.
    Remove,
}

/// What reaches a keeper.
pub(super) enum Told {
    Order(Order),
    /// The settings say something else about its plugin, and perhaps switched it.
    Settings {
        switched: Option<bool>,
    },
}

/// What a plugin does next.
enum Phase {
    /// Start a process; the reason says why the last one ended.
    Start {
        after: Option<Arc<str>>,
    },
    Serve(Box<Serving>),
    Pause {
        reason: Arc<str>,
        until: Instant,
    },
    /// Wait for an order.
    Rest,
    End,
}

/// The process that serves.
struct Serving {
    process: Process,
    since: Instant,
    /// Cancelled when no table and no snapshot holds it any more.
    released: CancellationToken,
}

/// Why a step of a start did not come to its end. What was begun is gone.
enum Halt {
    Failed(StartError),
    /// Something else is to be done first.
    Told(Option<Order>),
}

pub(super) struct Keeper {
    owner: Arc<Owner>,
    source: PluginSource,
    orders: mpsc::Receiver<Told>,
    enabled: bool,
    /// What its last process was to be started with.
    setup: PluginSetup,
    deaths: Deaths,
    restarts: u32,
    /// What the last process declared, for as long as no other one has.
    last: Option<Arc<ReadyPlugin>>,
    /// Those who wait for the next outcome.
    replies: Vec<Reply>,
    retired: Vec<Retired>,
}

/// A process that takes no new work.
struct Retired {
    hurry: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Keeper {
    pub(super) fn new(owner: Arc<Owner>, source: PluginSource, orders: mpsc::Receiver<Told>) -> Self {
        let setup = owner.setup(&source.name);
        let enabled = setup.options.enabled;
        Self {
            owner,
            source,
            orders,
            enabled,
            setup,
            deaths: Deaths::default(),
            restarts: 0,
            last: None,
            replies: Vec::new(),
            retired: Vec::new(),
        }
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Keeps the plugin until it is removed or the host stops.
    pub(super) async fn run(mut self) {
        let mut phase = if self.enabled { Phase::Start { after: None } } else { self.disabled() };
        loop {
            phase = match phase {
                Phase::Start { after } => self.start(after).await,
                Phase::Serve(serving) => self.serve(serving).await,
                Phase::Pause { reason, until } => self.pause(reason, until).await,
                Phase::Rest => self.rest().await,
                Phase::End => break,
            };
        }
        self.answer(Err("the plugin is being stopped".to_owned()));
    }

    /// Waits for the next thing to do. Settings that change nothing for this plugin are none.
    async fn order(&mut self) -> Option<Order> {
        loop {
            match self.orders.recv().await? {
                Told::Order(order) => return Some(order),
                Told::Settings { switched } => {
                    if let Some(order) = self.heed(switched) {
                        return Some(order);
                    }
                }
            }
        }
    }

    /// Returns what follows from other settings. A person may have ordered the same already, and a start that is under way
    /// may have taken them.
    fn heed(&self, switched: Option<bool>) -> Option<Order> {
        match switched {
            Some(true) if !self.enabled => Some(Order::Enable(None)),
            Some(false) => self.enabled.then_some(Order::Disable(None)),
            _ => {
                let now = self.owner.setup(&self.source.name);
                (self.enabled && !self.setup.suits(&now)).then_some(Order::Renew(None))
            }
        }
    }

    /// Lets a process serve.
    fn ready(&mut self, (process, declared): (Process, InitializeResult)) -> Phase {
        let connection = process.connection.clone();
        let generation = connection.generation();
        tracing::info!(plugin = %self.source.name, %generation, "a plugin is ready");
        let (ready, released) = ReadyPlugin::new(connection, declared);
        self.last = Some(Arc::clone(&ready));
        self.publish(PluginState::Ready(ready));
        self.answer(Ok(generation));
        Phase::Serve(Box::new(Serving { process, since: Instant::now(), released }))
    }

    /// What follows a start that failed. The first one is not repeated: its cause rarely passes by itself.
    fn refused(&mut self, error: &StartError, after: Option<Arc<str>>) -> Phase {
        if matches!(error, StartError::Stopping) {
            self.publish(PluginState::Retiring);
            return Phase::End;
        }
        let reason = words(error);
        if matches!(error, StartError::Untrusted(_)) {
            self.owner.post("PROJECT_UNTRUSTED", format!("{} is not started: {reason}", self.source.name));
            self.answer(Err(reason.clone()));
            self.publish(PluginState::Untrusted { reason: reason.into() });
            return Phase::Rest;
        }
        if after.is_some() && error.may_pass() {
            return self.died(reason.into(), Duration::ZERO);
        }
        self.owner.post("PLUGIN_UNAVAILABLE", format!("{} is not available: {reason}", self.source.name));
        self.broken(reason.into())
    }

    fn broken(&mut self, reason: Arc<str>) -> Phase {
        self.publish(PluginState::Broken { reason: Arc::clone(&reason), last: self.last.clone() });
        self.answer(Err(reason.to_string()));
        Phase::Rest
    }

    fn disabled(&mut self) -> Phase {
        self.publish(PluginState::Disabled);
        Phase::Rest
    }

    /// Offers the plugin until it dies or an order says otherwise.
    async fn serve(&mut self, mut serving: Box<Serving>) -> Phase {
        let stop = self.owner.stop.clone();
        let order = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            reason = serving.process.death() => return self.buried(serving, reason),
            order = self.order() => order,
        };
        match order {
            None => {
                self.publish(PluginState::Retiring);
                serving.process.stop(&"the host stopped it".into()).await;
                Phase::End
            }
            Some(Order::Renew(reply)) => {
                self.replies.extend(reply);
                self.renew(serving).await
            }
            Some(Order::Enable(reply)) => {
                let generation = serving.process.connection.generation();
                reply.map(|reply| reply.send(Ok(generation)));
                Phase::Serve(serving)
            }
            Some(order @ (Order::Disable(_) | Order::Remove)) => {
                let phase = self.obey(Some(order));
                self.retire(serving);
                phase
            }
        }
    }

    fn buried(&mut self, serving: Box<Serving>, reason: Arc<str>) -> Phase {
        let uptime = serving.since.elapsed();
        // First no new work, then the end of what it held.
        self.publish(self.restarting(&reason));
        self.owner.bury(&self.source.name, Some(serving.process), &reason);
        self.died(reason, uptime)
    }

    fn died(&mut self, reason: Arc<str>, uptime: Duration) -> Phase {
        let policy = &self.setup.options.restart;
        match self.deaths.note(policy, uptime) {
            Next::Again(pause) => {
                let until = Instant::now() + pause;
                self.publish(self.restarting(&reason));
                Phase::Pause { reason, until }
            }
            Next::Stay { deaths } => {
                let (name, within) = (&self.source.name, limits::words(policy.within));
                let text = format!(
                    "{name} is not started again: {deaths} deaths within {within}. A change of its files or its \
                     settings, or `bingo plugin restart {name}` starts it. The last one: {reason}"
                );
                self.owner.post("PLUGIN_BROKEN", text);
                self.broken(format!("it died {deaths} times within {within}; the last time: {reason}").into())
            }
        }
    }

    async fn pause(&mut self, reason: Arc<str>, until: Instant) -> Phase {
        let stop = self.owner.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => Phase::End,
            order = self.order() => self.obey(order),
            () = sleep_until(until) => {
                self.restarts += 1;
                Phase::Start { after: Some(reason) }
            }
        }
    }

    async fn rest(&mut self) -> Phase {
        let stop = self.owner.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => Phase::End,
            order = self.order() => self.obey(order),
        }
    }

    /// Follows an order while no process serves.
    fn obey(&mut self, order: Option<Order>) -> Phase {
        match order {
            None | Some(Order::Remove) => {
                self.last = None;
                self.owner.forget(&self.source.name);
                Phase::End
            }
            Some(Order::Renew(Some(reply))) if !self.enabled => {
                let name = &self.source.name;
                let _ = reply.send(Err(format!("{name} is switched off")));
                self.disabled()
            }
            Some(Order::Renew(None)) if !self.enabled => self.disabled(),
            Some(Order::Renew(reply)) => {
                self.replies.extend(reply);
                self.begin()
            }
            Some(Order::Enable(reply)) => {
                self.enabled = true;
                self.replies.extend(reply);
                self.begin()
            }
            Some(Order::Disable(reply)) => {
                self.enabled = false;
                self.last = None;
                // Those who wait for what was under way: it does not come.
                self.answer(Err("it was switched off meanwhile".to_owned()));
                let phase = self.disabled();
                reply.map(|reply| reply.send(Ok(Generation(0))));
                phase
            }
        }
    }

    /// Starts afresh, from the files as they are now.
    fn begin(&mut self) -> Phase {
        self.deaths.forget();
        match self.reload() {
            Ok(source) => {
                self.source = source;
                Phase::Start { after: None }
            }
            Err(reason) => self.broken(reason.into()),
        }
    }

    fn reload(&self) -> Result<PluginSource, String> {
        if self.source.origin == Origin::Bundled {
            return Ok(self.source.clone());
        }
        discovery::load(&self.source.root, self.source.origin).map_err(|error| words(&error))
    }

    fn restarting(&self, reason: &Arc<str>) -> PluginState {
        PluginState::Restarting { reason: Arc::clone(reason), last: self.last.clone() }
    }

    fn answer(&mut self, outcome: Result<Generation, String>) {
        for reply in self.replies.drain(..) {
            // Whoever asked may have left.
            let _ = reply.send(outcome.clone());
        }
    }

    fn publish(&self, state: PluginState) {
        self.owner.publish(&self.source, self.restarts, state);
    }
}
