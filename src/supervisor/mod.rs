//! The supervisor: starts the plugins' processes side by side, watches them, stops them, and publishes who is ready.
//!
//! It owns every process and knows no session. What plugins offer is read off its [`PluginTable`] by `bridge`.

pub mod changes;
mod connection;
pub mod discovery;
mod generation;
pub mod guard;
mod handshake;
mod interpreter;
mod keeper;
pub mod limits;
mod lines;
mod log;
pub mod logs;
mod pace;
mod prepare;
mod process;
pub mod restart;
mod setup;
mod table;
#[cfg(test)]
pub(crate) mod testing;
pub mod trust;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bingo_plugin_sdk::calls::PROTOCOL;
use bingo_plugin_sdk::handshake::{HostEnv, InitializeParams};
use bingo_plugin_sdk::ids::{Generation, PluginName};
use bingo_plugin_sdk::item::Level;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use self::connection::{CallError, CallFailure, Connection, Incoming, Sent, Served};
pub(crate) use self::connection::{
    Clock, IncomingSlot, MAX_ASKS, Peer, PendingCall, StreamRoute, ToolRoute, Unread,
};
use self::discovery::{Origin, PluginSource};
use self::generation::{Process, StartError};
use self::keeper::{Keeper, Order, Reply, Told};
use self::prepare::Prepared;
use self::process::{Places, Program};
use self::setup::CurrentSetups;
pub use self::setup::{PluginOptions, PluginSetup, Setups};
pub use self::table::{PluginEntry, PluginState, PluginTable, ReadyPlugin};
use crate::ports::{Notice, Notices};

/// How many orders may wait for a plugin that is busy with one.
const ORDERS: usize = 64;

/// What a supervisor works with.
pub struct SupervisorConfig {
    /// This program, which is run as the guard of each plugin.
    pub binary: PathBuf,
    pub home: PathBuf,
    pub config_dir: PathBuf,
    pub data_dir: PathBuf,
    /// In the order in which the first of a name wins.
    pub sources: Vec<PluginSource>,
    pub setups: Setups,
    pub notices: Arc<dyn Notices>,
}

/// The supervisor. Dropping it stops all plugins in the background; [`Supervisor::shutdown`] waits for that.
pub struct Supervisor {
    table: watch::Receiver<Arc<PluginTable>>,
    owner: Arc<Owner>,
    _stop_on_drop: DropGuard,
}

/// Why an order to a plugin came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    #[error("there is no plugin `{name}`; there are {}", known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    #[error("{name}: {reason}")]
    Failed { name: PluginName, reason: String },
}

impl Supervisor {
    /// Starts all plugins side by side, each in a task that lives as long as the plugin. Needs a tokio runtime.
    pub fn start(mut config: SupervisorConfig) -> Self {
        drop_doubles(&mut config);
        guard::ready_cgroups(config.setups.values().map(|setup| &setup.options.limits));
        let setups = CurrentSetups::new(std::mem::take(&mut config.setups));
        let sources = std::mem::take(&mut config.sources);
        let (publisher, table) = watch::channel(Arc::new(PluginTable::default()));
        let stop = CancellationToken::new();
        let owner = Arc::new(Owner {
            incoming: IncomingSlot::default(),
            config,
            setups,
            publisher,
            generations: AtomicU64::new(0),
            tasks: TaskTracker::new(),
            keepers: Mutex::default(),
            stop: stop.clone(),
        });
        sources.into_iter().for_each(|source| owner.keep(source));
        Self { table, owner, _stop_on_drop: stop.drop_guard() }
    }

    /// Returns the table that counts now.
    pub fn table(&self) -> Arc<PluginTable> {
        Arc::clone(&self.table.borrow())
    }

    /// Returns a receiver that sees each new table.
    pub fn subscribe(&self) -> watch::Receiver<Arc<PluginTable>> {
        self.table.clone()
    }

    /// Lets `incoming` serve what plugins call; only the first one does. It is not kept alive by this.
    pub fn serve_calls(&self, incoming: &Arc<dyn Incoming>) {
        self.owner.incoming.set(incoming);
    }

    /// Waits until no plugin is starting; each start has its deadline.
    pub fn settled(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut table = self.table.clone();
        async move {
            // An error means that all tasks have ended, and then nothing is starting.
            let _ = table.wait_for(|table| table.is_settled()).await;
        }
    }

    /// Starts another process of a plugin, from its files as they are now, which follows when it is well. Returns its
    /// generation.
    ///
    /// # Errors
    /// When there is no such plugin, or the process did not become ready; then the old one serves on, if there is one.
    pub async fn restart(&self, name: &str) -> Result<Generation, OrderError> {
        self.order(name, |reply| Order::Renew(Some(reply))).await
    }

    /// Switches a plugin on and waits until it is ready.
    ///
    /// # Errors
    /// When there is no such plugin, or it did not become ready.
    pub async fn enable(&self, name: &str) -> Result<Generation, OrderError> {
        self.order(name, |reply| Order::Enable(Some(reply))).await
    }

    /// Switches a plugin off: it takes no new work.
    ///
    /// # Errors
    /// When there is no such plugin.
    pub async fn disable(&self, name: &str) -> Result<(), OrderError> {
        self.order(name, |reply| Order::Disable(Some(reply))).await.map(drop)
    }

    /// Renews a plugin whose files changed, without waiting.
    pub fn renew(&self, name: &PluginName) {
        self.owner.renew(name);
    }

    /// Lets what the settings say now count, without waiting: a plugin that they say something else about is switched on or
    /// off, or gets another process.
    pub fn reconfigure(&self, setups: Setups) {
        let (before, now) = self.owner.setups.replace(setups);
        let keepers = self.owner.lock().clone();
        for (name, orders) in keepers {
            let Some(change) = setup::change(&before, &now, &name) else { continue };
            tracing::info!(plugin = %name, "its settings changed");
            let told = Told::Settings { switched: change.switched };
            // Whatever else it was told before, this is not to be lost.
            if let Err(TrySendError::Full(told)) = orders.try_send(told) {
                self.owner.tasks.spawn(async move { drop(orders.send(told).await) });
            }
        }
    }

    /// Returns the plugins as they were last read from their folders.
    pub fn sources(&self) -> Vec<PluginSource> {
        self.table.borrow().plugins.iter().map(|plugin| (*plugin.source).clone()).collect()
    }

    /// Renews the plugins of the project: a person may have trusted what was refused before, as a start or in the place of
    /// a process that serves on.
    pub fn renew_untrusted(&self) {
        let table = self.table();
        let own = |plugin: &&PluginEntry| plugin.source.origin == Origin::Project;
        table.plugins.iter().filter(own).for_each(|plugin| self.owner.renew(&plugin.name));
    }

    /// Takes a plugin in and starts it. One whose name is there already changes nothing.
    pub fn add(&self, source: PluginSource) {
        if !self.owner.stop.is_cancelled() && !self.owner.lock().contains_key(&source.name) {
            self.owner.keep(source);
        }
    }

    /// Lets a plugin go: it takes no new work, and its process ends when it is done.
    pub fn remove(&self, name: &PluginName) {
        let Some(orders) = self.owner.lock().get(name).cloned() else { return };
        self.owner.tasks.spawn(async move {
            // A keeper that ended is what is wanted.
            let _ = orders.send(Told::Order(Order::Remove)).await;
        });
    }

    async fn order(&self, name: &str, order: impl FnOnce(Reply) -> Order) -> Result<Generation, OrderError> {
        let unknown = || {
            let known = self.owner.lock().keys().map(ToString::to_string).collect();
            OrderError::Unknown { name: name.to_owned(), known }
        };
        let plugin = PluginName::parse(name).filter(|name| self.owner.lock().contains_key(name));
        let plugin = plugin.ok_or_else(unknown)?;
        let (reply, outcome) = oneshot::channel();
        if !self.owner.tell(&plugin, order(reply)) {
            let reason = match self.owner.lock().contains_key(&plugin) {
                true => format!("{ORDERS} orders wait for it already; try again later"),
                false => "it was just removed".to_owned(),
            };
            return Err(OrderError::Failed { name: plugin, reason });
        }
        let outcome = outcome.await.unwrap_or_else(|_| Err("the plugin is being stopped".to_owned()));
        outcome.map_err(|reason| OrderError::Failed { name: plugin, reason })
    }

    /// Returns whether the plugins are being stopped.
    pub fn is_stopping(&self) -> bool {
        self.owner.stop.is_cancelled()
    }

    /// Stops all plugins side by side and waits until nothing of them is left. A second call only waits.
    pub async fn shutdown(&self) {
        self.owner.stop.cancel();
        self.owner.tasks.close();
        self.owner.tasks.wait().await;
    }
}

/// Leaves the first source of each name.
fn drop_doubles(config: &mut SupervisorConfig) {
    let mut first: BTreeMap<PluginName, PathBuf> = BTreeMap::new();
    let notices = Arc::clone(&config.notices);
    config.sources.retain(|source| match first.get(&source.name) {
        None => {
            first.insert(source.name.clone(), source.root.clone());
            true
        }
        Some(root) => {
            let (name, root, other) = (&source.name, root.display(), source.root.display());
            let text = format!("{name}: the plugin in {other} is not used, the one in {root} has the name");
            notices.post(Notice { level: Level::Warn, code: "PLUGIN_SHADOWED", text });
            false
        }
    });
}

/// What the tasks of a supervisor share.
struct Owner {
    config: SupervisorConfig,
    setups: CurrentSetups,
    incoming: IncomingSlot,
    publisher: watch::Sender<Arc<PluginTable>>,
    /// The last number given to a process.
    generations: AtomicU64,
    tasks: TaskTracker,
    /// The way to the keeper of each plugin.
    keepers: Mutex<BTreeMap<PluginName, mpsc::Sender<Told>>>,
    stop: CancellationToken,
}

impl Owner {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PluginName, mpsc::Sender<Told>>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a plugin into the table and starts the task that keeps it.
    fn keep(self: &Arc<Self>, source: PluginSource) {
        let (orders, receiver) = mpsc::channel(ORDERS);
        // From here on it hears of other settings.
        self.lock().insert(source.name.clone(), orders);
        let keeper = Keeper::new(Arc::clone(self), source.clone(), receiver);
        let state = if keeper.is_enabled() { PluginState::Starting } else { PluginState::Disabled };
        let entry = PluginEntry { name: source.name.clone(), source: Arc::new(source), state, restarts: 0 };
        table::change(&self.publisher, |plugins| plugins.push(entry));
        self.tasks.spawn(keeper.run());
    }

    /// Takes a plugin out of the table.
    fn forget(&self, name: &PluginName) {
        self.lock().remove(name);
        table::change(&self.publisher, |plugins| plugins.retain(|plugin| plugin.name != *name));
    }

    /// Tells a keeper; returns false when there is none, or it has not got to the many that it was told before.
    fn tell(&self, name: &PluginName, order: Order) -> bool {
        self.lock().get(name).is_some_and(|orders| orders.try_send(Told::Order(order)).is_ok())
    }

    fn renew(&self, name: &PluginName) {
        self.tell(name, Order::Renew(None));
    }

    fn setup(&self, name: &PluginName) -> PluginSetup {
        self.setups.of(name.as_str())
    }

    async fn spawn(
        &self,
        source: &PluginSource,
        setup: &PluginSetup,
        prepared: Option<Prepared>,
    ) -> Result<Process, StartError> {
        // First: of what nobody trusted, the schema is not compiled either.
        let program = self.program(source, setup, prepared.as_ref()).await?;
        setup.check_config(source)?;
        let options = &setup.options;
        let peer = Peer {
            plugin: source.name.clone(),
            generation: Generation(self.generations.fetch_add(1, Ordering::Relaxed) + 1),
            limits: Arc::new(options.timeouts.clone()),
            deny_unanswered: options.deny_unanswered,
            incoming: self.incoming.clone(),
            notices: Arc::clone(&self.config.notices),
        };
        let (binary, data_dir) = (&self.config.binary, &self.config.data_dir);
        Ok(Process::spawn(binary, &program, peer, &options.limits, data_dir)?.holding(prepared))
    }

    /// Returns what would be started, when it may be.
    async fn program(
        &self,
        source: &PluginSource,
        setup: &PluginSetup,
        prepared: Option<&Prepared>,
    ) -> Result<Program, StartError> {
        let prepared = prepared.map(|prepared| prepared.folder.as_path());
        let places = Places { root: &source.root, prepared };
        let program = Program::resolve(&source.manifest.entry, "entry", &places, &setup.passed())?;
        trust::admit(&self.config.data_dir, source, program).await
    }

    fn introduction(&self, source: &PluginSource, setup: &PluginSetup) -> InitializeParams {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        InitializeParams {
            protocol: PROTOCOL,
            plugin_root: text(&source.root),
            config: setup.config.clone(),
            env: HostEnv {
                home: text(&self.config.home),
                config_dir: text(&self.config.config_dir),
                data_dir: text(&self.config.data_dir),
            },
        }
    }

    /// Ends a process that died: its calls at once, what is left of its tree in the background.
    fn bury(&self, name: &PluginName, process: Option<Process>, reason: &Arc<str>) {
        self.post("PLUGIN_DIED", format!("{name} died: {reason}"));
        if let Some(process) = process {
            process.connection.close(reason);
            let reason = Arc::clone(reason);
            self.tasks.spawn(async move { process.destroy(&reason).await });
        }
    }

    fn is_preparing(&self, name: &PluginName) -> bool {
        self.publisher.borrow().preparing().any(|(preparing, _)| preparing == name)
    }

    fn publish(&self, source: &PluginSource, restarts: u32, state: PluginState) {
        table::change(&self.publisher, |plugins| {
            if let Some(plugin) = plugins.iter_mut().find(|plugin| plugin.name == source.name) {
                if *plugin.source != *source {
                    plugin.source = Arc::new(source.clone());
                }
                (plugin.restarts, plugin.state) = (restarts, state);
            }
        });
    }

    fn post(&self, code: &'static str, text: String) {
        self.config.notices.post(Notice { level: Level::Warn, code, text });
    }

    fn inform(&self, code: &'static str, text: String) {
        self.config.notices.post(Notice { level: Level::Info, code, text });
    }
}
