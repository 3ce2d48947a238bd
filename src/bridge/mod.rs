//! The bridges: what ready plugins declared, as the ports that the kernel uses, and what plugins call, served. Messages
//! become values and errors here.
//!
//! A snapshot is made once for each table of the supervisor, as soon as it changes, and kept until then. It owns no
//! process.

mod build;
mod command;
mod compactor;
mod context;
mod hook;
mod host_service;
mod provider;
mod service;
mod tool;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bingo_plugin_sdk::calls::{HOST_SERVICE, ServiceCallParams};
use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::jsonrpc::{RpcError, code};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use self::build::{Built, Clash};
use self::service::{OpenCalls, PluginService};
use crate::ports::{BoxFuture, Notice, Notices, Offers, Snapshot};
use crate::supervisor::{CallError, CallFailure, Connection, Incoming, PluginTable, Served, Supervisor};

/// The offers of a supervisor's plugins. While it lives, it also serves what the plugins call.
pub struct PluginOffers {
    supervisor: Arc<Supervisor>,
    hub: Arc<Hub>,
    /// Follows the table for as long as this lives.
    _follower: AbortOnDropHandle<()>,
}

impl PluginOffers {
    /// Returns the offers; what is not used of them is told to `notices`. Needs a tokio runtime.
    pub fn new(supervisor: Arc<Supervisor>, notices: Arc<dyn Notices>) -> Self {
        let hub = Arc::new(Hub::new(supervisor.subscribe(), notices));
        supervisor.serve_calls(&(Arc::clone(&hub) as Arc<dyn Incoming>));
        let follower = tokio::spawn(follow(Arc::downgrade(&supervisor), Arc::downgrade(&hub)));
        Self { supervisor, hub, _follower: AbortOnDropHandle::new(follower) }
    }
}

impl Offers for PluginOffers {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.hub.current().0
    }

    fn settled(&self) -> BoxFuture<'static, ()> {
        Box::pin(self.supervisor.settled())
    }

    fn starting(&self) -> Vec<String> {
        self.supervisor.table().starting().map(ToString::to_string).collect()
    }

    fn changed(&self, number: u64) -> BoxFuture<'static, ()> {
        let mut table = self.supervisor.subscribe();
        Box::pin(async move {
            if table.wait_for(|table| table.number != number).await.is_err() {
                // The last task of the supervisor has ended.
                std::future::pending().await
            }
        })
    }
}

/// Makes each table's snapshot as soon as it counts, so that what was told late before is told at once, and processes that
/// ended are not held by the snapshot of their time.
///
/// It begins when nothing is starting any more: before, much is missing only because it is not there yet. It ends when the
/// plugins are stopped: that the ones left need those that went first is no news.
async fn follow(supervisor: Weak<Supervisor>, hub: Weak<Hub>) {
    let Some(mut table) = supervisor.upgrade().map(|supervisor| supervisor.subscribe()) else { return };
    if table.wait_for(|table| table.is_settled()).await.is_err() {
        return;
    }
    loop {
        // Held by nobody who only waits: dropping them is what ends them.
        let Some((supervisor, hub)) = supervisor.upgrade().zip(hub.upgrade()) else { return };
        if supervisor.is_stopping() {
            return;
        }
        table.mark_unchanged();
        hub.current();
        drop((supervisor, hub));
        if table.changed().await.is_err() {
            return;
        }
    }
}

/// The table that counts now, built, and the account of what was told about it. It keeps no process alive.
struct Hub {
    table: watch::Receiver<Arc<PluginTable>>,
    notices: Arc<dyn Notices>,
    open: Arc<OpenCalls>,
    state: Mutex<State>,
}

/// Services of plugins by their key.
type Services = BTreeMap<String, PluginService>;

#[derive(Default)]
struct State {
    snapshot: Arc<Snapshot>,
    services: Arc<Services>,
    /// Names that were taken, told once each.
    told: HashSet<Clash>,
    /// Requirements that nobody meets now and that were told.
    needs: HashSet<Clash>,
}

impl Hub {
    fn new(table: watch::Receiver<Arc<PluginTable>>, notices: Arc<dyn Notices>) -> Self {
        Self { table, notices, open: Arc::default(), state: Mutex::default() }
    }

    /// Returns what counts now.
    fn current(&self) -> (Arc<Snapshot>, Arc<Services>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken under the lock, so that an older table never replaces a newer one.
        let table = Arc::clone(&self.table.borrow());
        let changed = state.snapshot.number != table.number;
        let fresh = if changed { state.replace(build::build(&table, &self.open)) } else { Vec::new() };
        // Under the lock too: whoever gets a snapshot may count on it that what it came with was told.
        for Clash { code, text } in fresh {
            self.notices.post(Notice { level: Level::Warn, code, text });
        }
        (Arc::clone(&state.snapshot), Arc::clone(&state.services))
    }

    fn service_call(&self, caller: &Connection, call: ServiceCallParams) -> Served {
        let (_, services) = self.current();
        let Some(service) = services.get(&call.key).cloned() else {
            let keys: Vec<&str> = services.keys().map(String::as_str).chain([HOST_SERVICE]).collect();
            let text = format!("nobody has the service `{}`; there are {}", call.key, keys.join(", "));
            return Served::refused(code::METHOD_NOT_FOUND, text);
        };
        let (open, caller) = (caller.open_call(), caller.plugin().clone());
        Served::Later(Box::pin(async move {
            let result = service.ask(Some(&caller), call.method, call.params).await;
            drop(open);
            result.map_err(|error| RpcError::new(code::INTERNAL_ERROR, error.to_string()))
        }))
    }
}

impl State {
    /// Takes over what was built; returns the remarks that were not made before.
    fn replace(&mut self, built: Built) -> Vec<Clash> {
        let Built { snapshot, services, clashes, needs } = built;
        (self.snapshot, self.services) = (Arc::new(snapshot), Arc::new(services));
        let mut fresh: Vec<Clash> =
            clashes.into_iter().filter(|clash| self.told.insert(clash.clone())).collect();
        fresh.extend(needs.iter().filter(|need| !self.needs.contains(need)).cloned());
        self.needs = needs.into_iter().collect();
        fresh
    }
}

impl Incoming for Hub {
    fn serve(&self, caller: &Connection, call: ServiceCallParams) -> Served {
        if call.key == HOST_SERVICE {
            return host_service::serve(caller, &call.method, call.params);
        }
        self.service_call(caller, call)
    }
}

/// Returns a failed call as the kernel knows errors: the plugin's name comes first.
fn kernel_error(error: &CallError) -> KernelError {
    let late = matches!(error.failure, CallFailure::Deadline { .. });
    KernelError::new(if late { ErrorCode::Timeout } else { ErrorCode::Internal }, error.to_string())
}

/// Returns the error of a call that nobody waits for any more.
fn cancelled(connection: &Connection) -> KernelError {
    KernelError::new(ErrorCode::Internal, format!("{}: the call was cancelled", connection.plugin()))
}

#[cfg(test)]
mod tests;
