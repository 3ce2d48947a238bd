//! The supervisor: starts the plugins' processes side by side, watches them, stops them, and publishes who is ready.
//!
//! It owns every process and knows no session. What plugins offer is read off its [`PluginTable`] by `bridge`.

mod connection;
pub mod discovery;
mod generation;
pub mod guard;
mod handshake;
pub mod limits;
mod lines;
mod log;
mod pace;
mod process;
mod table;
pub mod trust;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bingo_plugin_sdk::calls::PROTOCOL;
use bingo_plugin_sdk::handshake::{HostEnv, InitializeParams, InitializeResult};
use bingo_plugin_sdk::ids::{Generation, PluginName};
use bingo_plugin_sdk::item::Level;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use self::connection::{CallError, CallFailure, Connection, Incoming, Sent, Served};
pub(crate) use self::connection::{IncomingSlot, Peer, PendingCall, StreamRoute, ToolRoute, Unread};
use self::discovery::PluginSource;
use self::generation::{Process, StartError};
use self::limits::Limits;
use self::process::{Passed, Program};
pub use self::table::{PluginEntry, PluginState, PluginTable, ReadyPlugin};
use crate::ports::{Notice, Notices};
use crate::schema;

/// What a supervisor works with.
pub struct SupervisorConfig {
    /// This program, which is run as the guard of each plugin.
    pub binary: PathBuf,
    pub home: PathBuf,
    pub config_dir: PathBuf,
    pub data_dir: PathBuf,
    /// In the order in which the first of a name wins.
    pub sources: Vec<PluginSource>,
    /// What plugins get as `config`, by name.
    pub config: BTreeMap<String, Value>,
    /// What the host does with them, by name.
    pub options: BTreeMap<String, PluginOptions>,
    pub notices: Arc<dyn Notices>,
}

/// What the host does with one plugin: the settings table `supervisor.<name>`.
#[derive(Debug, Clone, Default)]
pub struct PluginOptions {
    /// Variables of the host that it gets beyond the common ones.
    pub env: Vec<String>,
    /// Gives it all of them.
    pub inherit_env: bool,
    /// Takes the silence of its hooks as a refusal (`onHookTimeout = "deny"`).
    pub deny_unanswered: bool,
    pub timeouts: Limits,
}

/// The supervisor. Dropping it stops all plugins in the background; [`Supervisor::shutdown`] waits for that.
pub struct Supervisor {
    table: watch::Receiver<Arc<PluginTable>>,
    tasks: TaskTracker,
    incoming: IncomingSlot,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

impl Supervisor {
    /// Starts all plugins side by side, each in a task that lives as long as its process. Needs a tokio runtime.
    pub fn start(mut config: SupervisorConfig) -> Self {
        drop_doubles(&mut config);
        let plugins = config.sources.iter().map(|source| PluginEntry {
            name: source.name.clone(),
            manifest: Arc::new(source.manifest.clone()),
            state: PluginState::Starting,
        });
        let (publisher, table) =
            watch::channel(Arc::new(PluginTable { number: 1, plugins: plugins.collect() }));
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let sources = config.sources.clone();
        let incoming = IncomingSlot::default();
        let owner = Arc::new(Owner {
            incoming: incoming.clone(),
            config,
            publisher,
            generations: AtomicU64::new(0),
            stop: stop.clone(),
        });
        for source in sources {
            let owner = Arc::clone(&owner);
            tasks.spawn(async move { owner.keep(source).await });
        }
        tasks.close();
        Self { table, tasks, incoming, _stop_on_drop: stop.clone().drop_guard(), stop }
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
        self.incoming.set(incoming);
    }

    /// Waits until no plugin is starting; each start has its deadline.
    pub fn settled(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut table = self.table.clone();
        async move {
            // An error means that all tasks have ended, and then nothing is starting.
            let _ = table.wait_for(|table| table.is_settled()).await;
        }
    }

    /// Stops all plugins side by side and waits until nothing of them is left. A second call only waits.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
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
    incoming: IncomingSlot,
    publisher: watch::Sender<Arc<PluginTable>>,
    /// The last number given to a process.
    generations: AtomicU64,
    stop: CancellationToken,
}

impl Owner {
    /// Keeps one plugin from its start to its end.
    async fn keep(&self, source: PluginSource) {
        let name = source.name.clone();
        let options = self.config.options.get(name.as_str()).cloned().unwrap_or_default();
        let generation = Generation(self.generations.fetch_add(1, Ordering::Relaxed) + 1);
        let peer = Peer {
            plugin: name.clone(),
            generation,
            limits: Arc::new(options.timeouts),
            deny_unanswered: options.deny_unanswered,
            incoming: self.incoming.clone(),
            notices: Arc::clone(&self.config.notices),
        };
        let passed = Passed { names: options.env, all: options.inherit_env };
        let mut process = match self.spawn(&source, &passed, peer).await {
            Ok(process) => process,
            Err(error) => return self.refuse(&name, &error),
        };
        match process.shake(&self.introduction(&source), &self.stop).await {
            Ok(declared) => self.watch(&name, process, declared).await,
            Err(error) => {
                self.refuse(&name, &error);
                process.destroy(&error.to_string().into()).await;
            }
        }
    }

    async fn spawn(
        &self,
        source: &PluginSource,
        passed: &Passed,
        peer: Peer,
    ) -> Result<Process, StartError> {
        let program = Program::resolve(&source.manifest.entry, &source.root, passed)?;
        let program = trust::admit(&self.config.data_dir, source, program).await?;
        if let Some(schema) = &source.manifest.config {
            let config = self.config.config.get(source.name.as_str()).unwrap_or(&Value::Null);
            schema::check_config(source.name.as_str(), schema, config)
                .map_err(|reason| StartError::Config { reason })?;
        }
        Ok(Process::spawn(&self.config.binary, &program, peer, &self.config.data_dir)?)
    }

    fn introduction(&self, source: &PluginSource) -> InitializeParams {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        InitializeParams {
            protocol: PROTOCOL,
            plugin_root: text(&source.root),
            config: self.config.config.get(source.name.as_str()).cloned().unwrap_or_default(),
            env: HostEnv {
                home: text(&self.config.home),
                config_dir: text(&self.config.config_dir),
                data_dir: text(&self.config.data_dir),
            },
        }
    }

    /// Offers a ready plugin until it dies or the host stops.
    async fn watch(&self, name: &PluginName, mut process: Process, declared: InitializeResult) {
        let connection = process.connection.clone();
        tracing::info!(plugin = %name, generation = %connection.generation(), "a plugin is ready");
        self.publish(name, PluginState::Ready(Arc::new(ReadyPlugin { connection, declared })));
        let death = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            reason = process.death() => Some(reason),
        };
        match death {
            None => {
                let reason: Arc<str> = "the host stopped it".into();
                self.publish(name, PluginState::Unavailable { reason: Arc::clone(&reason) });
                process.stop(&reason).await;
            }
            Some(reason) => {
                // First no new work, then the end of what it held.
                self.publish(name, PluginState::Unavailable { reason: Arc::clone(&reason) });
                process.connection.close(&reason);
                self.post("PLUGIN_DIED", format!("{name} died: {reason}"));
                process.destroy(&reason).await;
            }
        }
    }

    fn refuse(&self, name: &PluginName, error: &StartError) {
        let reason = words(error);
        self.publish(name, PluginState::Unavailable { reason: reason.as_str().into() });
        if !matches!(error, StartError::Stopping) {
            self.post(error.code(), format!("{name} is not available: {reason}"));
        }
    }

    fn publish(&self, name: &PluginName, state: PluginState) {
        table::publish(&self.publisher, name, state);
    }

    fn post(&self, code: &'static str, text: String) {
        self.config.notices.post(Notice { level: Level::Warn, code, text });
    }
}

/// Returns an error with its causes, where its text does not hold them already.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
