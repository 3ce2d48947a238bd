//! Joins the layers: settings, supervisor, bridges, journal and kernel, for the commands that need them.

mod collect;
mod loaded;
mod preferences;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::item::Level;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::collect::Collector;
use self::loaded::Loaded;
use self::preferences::UserFile;
use crate::bridge::PluginOffers;
use crate::control::{ControlPlace, ControlServer, ControlledHost};
use crate::journal::JsonlJournal;
use crate::kernel::{Board, Kernel, PermissionMode, Rule};
use crate::ports::{Notice, Notices, Offers};
use crate::settings::{self, SettingsError};
use crate::supervisor::changes::{self, Watched};
use crate::supervisor::discovery::{self, DiscoveryError, PluginSource};
use crate::supervisor::{Supervisor, SupervisorConfig, guard};
use crate::trust::TrustStore;

/// The hidden subcommand under which this program is a bundled provider.
pub const PROVIDER_SUBCOMMAND: &str = "__provider";
/// The bundled provider that answers when none is configured.
const ECHO: &str = "echo";
/// The most open files asked for; plugins inherit the limit, and some walk through all of it.
const MAX_OPEN_FILES: u64 = 65_536;
/// How long tasks may linger once a command is done.
const RUNTIME_GRACE: Duration = Duration::from_millis(200);

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct AppOptions {
    pub plugins: Vec<PathBuf>,
    pub config_dir: Option<PathBuf>,
    pub data_dir: Option<PathBuf>,
    pub cwd: Option<PathBuf>,
    pub settings: Option<PathBuf>,
    pub model: Option<String>,
    pub mode: Option<PermissionMode>,
    pub allowed: Vec<Rule>,
}

/// Why the host cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("the settings key `{key}` does not fit: {reason}")]
    Setting { key: String, reason: String },
    #[error("cannot load a plugin that was named")]
    Plugin(#[from] DiscoveryError),
    #[error("there is no home directory, so there is no place for settings and sessions")]
    NoHome,
    #[error("cannot use the directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot {act}")]
    System {
        act: &'static str,
        #[source]
        source: std::io::Error,
    },
}

impl AppError {
    /// Returns whether the command line or the settings are wrong, rather than the machine.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::System { .. })
    }

    /// Returns it in words that may stand in a transcript.
    fn in_words(&self) -> String {
        match self {
            Self::Settings(error) => error.in_words(),
            error => error.to_string(),
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoHome => Some("set HOME, or name both with `--config-dir` and `--data-dir`"),
            Self::Plugin(error) => error.hint(),
            Self::Settings(SettingsError::Read { .. }) => Some("`--settings` takes the path of a TOML file"),
            Self::Settings(SettingsError::Parse { .. }) => Some("correct that file: the settings are TOML"),
            Self::Settings(SettingsError::Value { .. }) | Self::Setting { .. } => {
                Some("correct that key, or take it out; `bingo doctor` shows the file that it is from")
            }
            Self::Directory { .. } => Some("`--cwd` takes a directory that exists"),
            Self::System { .. } => None,
        }
    }
}

/// A running host.
pub struct App {
    kernel: Kernel,
    offers: Arc<dyn Offers>,
    options: AppOptions,
    places: Arc<Places>,
    supervisor: Arc<Supervisor>,
    board: Arc<Board>,
    /// What the host does by itself; it ends with it.
    chores: JoinSet<()>,
}

/// Where everything is, all absolute.
pub struct Places {
    home: PathBuf,
    pub config_dir: PathBuf,
    pub data_dir: PathBuf,
    /// A real path.
    pub cwd: PathBuf,
    binary: PathBuf,
}

impl App {
    /// Starts the host; its plugins start in the background.
    ///
    /// # Errors
    /// When the settings or a named plugin cannot be used.
    pub fn start(options: AppOptions) -> Result<Self, AppError> {
        let places = Places::find(&options)?;
        let board = Arc::new(Board::default());
        let loaded = Loaded::load(&places, &options)?;
        loaded.remarks.into_iter().for_each(|remark| board.post(remark));
        let notices: Arc<dyn Notices> = Arc::clone(&board) as Arc<dyn Notices>;
        let config = SupervisorConfig {
            binary: places.binary.clone(),
            home: places.home.clone(),
            config_dir: places.config_dir.clone(),
            data_dir: places.data_dir.clone(),
            sources: plugin_sources(&places, &options.plugins, &notices)?,
            setups: loaded.setups,
            notices: Arc::clone(&notices),
        };
        raise_open_files();
        guard::adopt_orphans()
            .map_err(|source| AppError::System { act: "adopt orphaned processes", source })?;
        let supervisor = Arc::new(Supervisor::start(config));
        let offers: Arc<dyn Offers> = Arc::new(PluginOffers::new(Arc::clone(&supervisor), notices));
        let journal = JsonlJournal::new(places.data_dir.clone());
        let places = Arc::new(places);
        let named = options.settings.clone();
        let preferences = Arc::new(UserFile { places: Arc::clone(&places), named });
        let stored = Arc::new(journal.clone());
        let kernel = Kernel::new(Arc::clone(&offers), stored, Arc::clone(&board), preferences, loaded.kernel);
        let mut chores = JoinSet::new();
        if !loaded.keep.is_all() {
            let board = Arc::clone(&board);
            let collector = Collector::new(&places.data_dir, loaded.keep, journal, kernel.clone(), board);
            chores.spawn(collector.run());
        }
        Ok(Self { kernel, offers, options, places, supervisor, board, chores })
    }

    /// Returns the kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    /// Returns the directory that new sessions work in.
    pub fn cwd(&self) -> &Path {
        &self.places.cwd
    }

    /// Waits until no plugin is starting or being prepared. `tell` hears each new line about one that is.
    pub async fn prepared(&self, mut tell: impl FnMut(&PluginName, &str)) {
        let (mut table, mut told) = (self.supervisor.subscribe(), BTreeMap::new());
        loop {
            let now = Arc::clone(&table.borrow_and_update());
            for (name, progress) in now.preparing() {
                if told.insert(name.clone(), progress.to_owned()).as_deref() != Some(progress) {
                    tell(name, progress);
                }
            }
            let done = now.is_settled() && now.preparing().next().is_none();
            drop(now);
            if done || table.changed().await.is_err() {
                return;
            }
        }
    }

    /// Renews plugins whose files or settings change, and takes in and lets go plugins as their folders come and go, until
    /// the host stops.
    pub fn watch_plugins(&self) {
        let notices: Arc<dyn Notices> = Arc::clone(&self.board) as Arc<dyn Notices>;
        let supervisor = Arc::downgrade(&self.supervisor);
        tokio::spawn(changes::watch(supervisor, self.watched(), notices));
    }

    fn watched(&self) -> Watched {
        let folders = vec![
            self.places.config_dir.join(discovery::PLUGINS),
            self.places.cwd.join(discovery::PROJECT).join(discovery::PLUGINS),
        ];
        let trust = TrustStore::path(&self.places.data_dir);
        let settings = self.places.settings(self.options.settings.clone()).files();
        let (places, named) = (Arc::clone(&self.places), self.options.plugins.clone());
        // What is wrong with a folder was told at the start, or is told when somebody asks.
        let find = move || {
            discovery::discover(&places.config_dir, &places.cwd, &named)
                .map_or_else(|_| Vec::new(), |(found, _)| found)
        };
        let (places, options) = (Arc::clone(&self.places), self.options.clone());
        let load = move || {
            let loaded = Loaded::load(&places, &options).map_err(|error| error.in_words())?;
            Ok((loaded.setups, loaded.remarks))
        };
        Watched { folders, trust, settings, find: Box::new(find), load: Box::new(load) }
    }

    /// Lets the command line ask and order this host, until what is returned is dropped; a notice says why it cannot.
    pub fn listen_for_control(&self) -> Option<ControlServer> {
        let places = &self.places;
        let host = ControlledHost {
            supervisor: Arc::clone(&self.supervisor),
            offers: Arc::clone(&self.offers),
            cwd: places.cwd.clone(),
            config_dir: places.config_dir.clone(),
            data_dir: places.data_dir.clone(),
        };
        let opened = ControlServer::open(&ControlPlace::new(&places.data_dir), host);
        let told = |error: &std::io::Error| {
            let text = format!("`bingo plugin list`, `restart` and the like cannot reach this host: {error}");
            self.board.post(Notice { level: Level::Warn, code: "CONTROL_UNAVAILABLE", text });
        };
        opened.inspect_err(told).ok()
    }

    /// Closes the sessions, then stops the plugins; nothing of them is left. Returns the remarks that came too late for
    /// any session.
    pub async fn shutdown(mut self) -> Vec<Notice> {
        self.chores.shutdown().await;
        self.kernel.shutdown().await;
        self.supervisor.shutdown().await;
        self.board.take()
    }
}

impl Places {
    /// Finds them.
    ///
    /// # Errors
    /// When there is no home, or the directory to work in is not there.
    pub fn find(options: &AppOptions) -> Result<Self, AppError> {
        let here = std::env::current_dir()
            .map_err(|source| AppError::System { act: "find the current directory", source })?;
        let absolute = |path: &PathBuf| here.join(path);
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let config_dir = match (&options.config_dir, &home) {
            (Some(path), _) => absolute(path),
            (None, Some(home)) => home.join(".bingo"),
            (None, None) => return Err(AppError::NoHome),
        };
        let data_dir = options.data_dir.as_ref().map_or_else(|| config_dir.join("data"), absolute);
        let cwd = options.cwd.as_ref().map_or_else(|| here.clone(), absolute);
        let cwd = std::fs::canonicalize(&cwd).map_err(|source| AppError::Directory { path: cwd, source })?;
        let binary = std::env::current_exe()
            .map_err(|source| AppError::System { act: "find the path of this program", source })?;
        let home = home.unwrap_or_else(|| config_dir.clone());
        let (config_dir, data_dir) = (real(&config_dir), real(&data_dir));
        Ok(Self { home, config_dir, data_dir, cwd, binary })
    }

    /// Returns the plugins that stand in the folders of plugins here, and what is wrong with others there.
    ///
    /// # Errors
    /// As `discovery::discover` for the folders that are named: none are.
    pub fn plugins(&self) -> Result<(Vec<PluginSource>, Vec<DiscoveryError>), AppError> {
        Ok(discovery::discover(&self.config_dir, &self.cwd, &[])?)
    }

    /// Returns where settings come from.
    pub fn settings(&self, file: Option<PathBuf>) -> settings::Sources {
        settings::Sources { config_dir: self.config_dir.clone(), cwd: self.cwd.clone(), file }
    }
}

/// Checks that a host could start with the settings as they are.
///
/// # Errors
/// When a value does not fit.
pub fn check_settings(places: &Places, file: Option<PathBuf>) -> Result<(), AppError> {
    Loaded::load(places, &AppOptions { settings: file, ..AppOptions::default() }).map(|_| ())
}

/// Returns the plugins to start: named ones, the user's, and the embedded model, whose name cannot be taken.
fn plugin_sources(
    places: &Places,
    named: &[PathBuf],
    notices: &Arc<dyn Notices>,
) -> Result<Vec<PluginSource>, AppError> {
    let (mut sources, problems) = discovery::discover(&places.config_dir, &places.cwd, named)?;
    problems.iter().for_each(|problem| notices.post(problem.to_notice()));
    if let Some(name) = PluginName::parse(ECHO) {
        let root = places.binary.parent().unwrap_or(&places.cwd);
        sources.retain(|source| source.name != name);
        sources.push(PluginSource::bundled(name, &places.binary, &[PROVIDER_SUBCOMMAND, ECHO], root));
    }
    Ok(sources)
}

/// Allows this process as many open files as the system lets it: each live session holds two, and each that is being
/// deleted one.
pub fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most.min(MAX_OPEN_FILES), most));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// Returns a path as everybody spells it who means the same; the last parts of it may not be there yet.
fn real(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|place| Some((place, place.canonicalize().ok()?)));
    there.map_or_else(
        || path.to_owned(),
        |(place, real)| match path.strip_prefix(place) {
            Ok(rest) if rest.as_os_str().is_empty() => real,
            Ok(rest) => real.join(rest),
            Err(_) => path.to_owned(),
        },
    )
}

/// How many threads a command works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// One prompt does not need more.
    Few,
    Many,
}

/// Runs a command's future on a runtime of its own. What still blocks afterwards, such as a read of the terminal, does
/// not hold up the end of the process.
///
/// # Errors
/// When the runtime cannot be built.
pub fn block_on<T>(workers: Workers, future: impl Future<Output = T>) -> Result<T, AppError> {
    let mut builder = match workers {
        Workers::Few => tokio::runtime::Builder::new_current_thread(),
        Workers::Many => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|source| AppError::System { act: "start the asynchronous runtime", source })?;
    let output = runtime.block_on(future);
    runtime.shutdown_timeout(RUNTIME_GRACE);
    Ok(output)
}

/// The signals that ask the process to end.
struct EndSignals {
    term: Signal,
    interrupt: Signal,
}

impl EndSignals {
    /// Takes the signals over; nothing where they cannot be handled.
    fn take() -> Option<Self> {
        let taken = signal(SignalKind::terminate())
            .and_then(|term| Ok(Self { term, interrupt: signal(SignalKind::interrupt())? }));
        taken.inspect_err(|error| tracing::warn!(%error, "signals cannot be handled here")).ok()
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Waits until the process is told to end, by SIGTERM or SIGINT.
pub async fn terminated() {
    match EndSignals::take() {
        Some(mut signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

/// Returns a channel with a message for each SIGINT (Ctrl-C) or SIGTERM.
pub fn interrupts() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel(4);
    if let Some(mut signals) = EndSignals::take() {
        tokio::spawn(async move {
            while !sender.is_closed() {
                signals.next().await;
                // A person who keeps pressing need not be counted.
                let _ = sender.try_send(());
            }
        });
    }
    receiver
}
