//! Sees that files of plugins change, and that plugins come and go.
//!
//! The files that count are the manifest, the entry's own files, and what the manifest's `watch` names. After an event at
//! one of them and a while of quiet all of them are looked at, and a plugin is renewed when one is another file than
//! before. Lost events cost nothing but that look.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::item::Level;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::Supervisor;
use super::discovery::{MANIFEST, Origin, PluginSource};
use crate::ports::{Notice, Notices};

/// How long nothing must happen before a look.
const QUIET: Duration = Duration::from_millis(300);
/// How long a look is put off at most, where something always happens.
const PATIENCE: Duration = Duration::from_secs(3);
/// Events that may wait; when more come, one more says enough.
const EVENTS: usize = 256;

/// What plugins there are, as the folders say now.
pub type Find = Box<dyn Fn() -> Vec<PluginSource> + Send>;

/// Watches until the supervisor is gone. `folders` hold plugins' folders; one that is not there yet may come. `trust` is the
/// file of what a person trusted.
pub async fn watch(
    supervisor: Weak<Supervisor>,
    folders: Vec<PathBuf>,
    trust: PathBuf,
    find: Find,
    notices: Arc<dyn Notices>,
) {
    let (sender, events) = mpsc::channel(EVENTS);
    let heard = move |event: notify::Result<Event>| {
        // An error is a lost event: a look at everything is the answer to both.
        if event.as_ref().is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            return;
        }
        let _ = sender.try_send(event.map(|event| event.paths).unwrap_or_default());
    };
    match notify::recommended_watcher(heard) {
        Ok(watcher) => {
            let (watched, seen, counting) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
            let (trusted, due) = (None, None);
            let watch = Watch {
                supervisor,
                folders,
                trust,
                trusted,
                find,
                notices,
                watcher,
                watched,
                seen,
                counting,
                due,
            };
            watch.run(events).await;
        }
        Err(error) => told(&notices, &error),
    }
}

fn told(notices: &Arc<dyn Notices>, error: &notify::Error) {
    let text = format!("changes of plugins' files are not seen: {error}; start bingo again after one");
    notices.post(Notice { level: Level::Warn, code: "PLUGINS_UNWATCHED", text });
}

/// What a file was when it was last looked at.
type Stamp = (PathBuf, u64, u64, i64, i64);

struct Watch {
    supervisor: Weak<Supervisor>,
    folders: Vec<PathBuf>,
    trust: PathBuf,
    /// That file as it was when it was last looked at.
    trusted: Option<Stamp>,
    find: Find,
    notices: Arc<dyn Notices>,
    watcher: RecommendedWatcher,
    /// The folders that the system watches, and whether with all below.
    watched: BTreeSet<(PathBuf, bool)>,
    /// The files of each plugin as it was last started with.
    seen: BTreeMap<PluginName, Vec<Stamp>>,
    /// Which files count, by plugin.
    counting: Vec<Counting>,
    /// When to look, and when at the latest.
    due: Option<(Instant, Instant)>,
}

impl Watch {
    async fn run(mut self, mut events: mpsc::Receiver<Vec<PathBuf>>) {
        let Some(mut table) = self.supervisor.upgrade().map(|supervisor| supervisor.subscribe()) else {
            return;
        };
        self.look(true);
        loop {
            let due = self.due.map_or_else(|| Instant::now() + Duration::from_secs(3600), |(due, _)| due);
            tokio::select! {
                event = events.recv() => match event {
                    Some(paths) if self.counts(&paths) => self.put_off(),
                    Some(_) => {}
                    None => return,
                },
                changed = table.changed() => match changed {
                    // Another plugin, or another manifest: other folders.
                    Ok(()) => self.watch_all(),
                    Err(_) => return,
                },
                () = sleep_until(due) => {
                    self.due = None;
                    self.look(false);
                }
            }
            if self.supervisor.strong_count() == 0 {
                return;
            }
        }
    }

    /// Says whether one of these paths is of a file that counts. None at all means that events were lost.
    fn counts(&self, paths: &[PathBuf]) -> bool {
        paths.is_empty()
            || paths.iter().any(|path| {
                match self.counting.iter().find(|counting| path.starts_with(&counting.root)) {
                    Some(counting) => counting.has(path),
                    // The data folder is watched for one file of it alone.
                    None => path == &self.trust || path.parent() != self.trust.parent(),
                }
            })
    }

    fn put_off(&mut self) {
        let now = Instant::now();
        let latest = self.due.map_or(now + PATIENCE, |(_, latest)| latest);
        self.due = Some(((now + QUIET).min(latest), latest));
    }

    /// Renews what changed, starts what came, lets go what left.
    fn look(&mut self, first: bool) {
        let Some(supervisor) = self.supervisor.upgrade() else { return };
        let trusted = stamp(self.trust.clone());
        if std::mem::replace(&mut self.trusted, trusted.clone()) != trusted && !first {
            supervisor.renew_untrusted();
        }
        let known = supervisor.sources();
        for source in known.iter().filter(|source| source.origin != Origin::Bundled) {
            let stamps = stamps(source);
            let before = self.seen.insert(source.name.clone(), stamps.clone());
            if before.is_some_and(|before| before != stamps) && source.root.join(MANIFEST).exists() {
                tracing::info!(plugin = %source.name, "its files changed");
                supervisor.renew(&source.name);
            }
        }
        if !first {
            self.come_and_go(&supervisor, &known);
        }
        self.watch_all();
    }

    fn come_and_go(&mut self, supervisor: &Supervisor, known: &[PluginSource]) {
        let found = (self.find)();
        for source in known
            .iter()
            .filter(|source| source.origin != Origin::Bundled && !source.root.join(MANIFEST).exists())
        {
            self.seen.remove(&source.name);
            supervisor.remove(&source.name);
        }
        for source in found {
            if !known.iter().any(|other| other.name == source.name) {
                self.seen.insert(source.name.clone(), stamps(&source));
                supervisor.add(source);
            }
        }
    }

    /// Has the system watch the folders that count now.
    fn watch_all(&mut self) {
        let Some(supervisor) = self.supervisor.upgrade() else { return };
        let mut wanted = BTreeSet::new();
        let sources: Vec<PluginSource> =
            supervisor.sources().into_iter().filter(|source| source.origin != Origin::Bundled).collect();
        self.counting = sources.iter().map(Counting::of).collect();
        for source in &sources {
            wanted.insert((source.root.clone(), globs(source).next().is_some()));
            let parents = own_files(source).into_iter().filter_map(|file| Some(file.parent()?.to_owned()));
            wanted.extend(parents.filter(|parent| *parent != source.root).map(|parent| (parent, false)));
        }
        for folder in self.folders.iter().map(PathBuf::as_path).chain(self.trust.parent()) {
            // Where it may come, when it is not there.
            let place = folder.ancestors().find(|place| place.is_dir()).unwrap_or(folder);
            wanted.insert((place.to_owned(), false));
            if Some(folder) == self.trust.parent() {
                continue;
            }
            let below = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            wanted.extend(below.filter(|path| path.is_dir()).map(|path| (path, false)));
        }
        for (path, _) in self.watched.difference(&wanted) {
            // One that is gone is not watched any more.
            let _ = self.watcher.unwatch(path);
        }
        for (path, recursive) in wanted.difference(&self.watched) {
            let mode = if *recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            if let Err(error) = self.watcher.watch(path, mode) {
                told(&self.notices, &error);
            }
        }
        wanted.retain(|(path, _)| path.exists());
        self.watched = wanted;
    }
}

/// Which files of a plugin count.
struct Counting {
    root: PathBuf,
    files: Vec<PathBuf>,
    globs: Vec<glob::Pattern>,
}

impl Counting {
    fn of(source: &PluginSource) -> Self {
        let globs = globs(source).filter_map(|pattern| glob::Pattern::new(pattern).ok());
        let mut files = own_files(source);
        files.push(source.root.join(MANIFEST));
        Self { root: source.root.clone(), files, globs: globs.collect() }
    }

    /// The root itself counts too: it may be gone.
    fn has(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        below.as_os_str().is_empty()
            || self.files.iter().any(|file| file == path)
            || self.globs.iter().any(|glob| glob.matches_path(below))
    }
}

/// Returns the files of a plugin that count, as they are now.
fn stamps(source: &PluginSource) -> Vec<Stamp> {
    let globs = globs(source).filter_map(|pattern| {
        let root = glob::Pattern::escape(source.root.to_str()?);
        glob::glob(&format!("{root}/{pattern}")).ok()
    });
    let mut files: Vec<PathBuf> = globs.flatten().flatten().collect();
    files.extend(own_files(source));
    files.push(source.root.join(MANIFEST));
    files.sort();
    files.dedup();
    files.into_iter().filter_map(stamp).collect()
}

fn stamp(path: PathBuf) -> Option<Stamp> {
    let meta = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
    Some((path, meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
}

/// Returns the globs of files that count.
fn globs(source: &PluginSource) -> impl Iterator<Item = &String> {
    let manifest = &source.manifest;
    manifest.watch.iter().chain(manifest.prepare.iter().flat_map(|prepare| &prepare.files))
}

/// Returns the words of the commands that are files of the plugin.
fn own_files(source: &PluginSource) -> Vec<PathBuf> {
    let manifest = &source.manifest;
    let root = source.root.to_string_lossy();
    let programs =
        std::iter::once(&manifest.entry).chain(manifest.prepare.iter().map(|prepare| &prepare.program));
    let words = programs.flat_map(|program| std::iter::once(&program.command).chain(&program.args));
    let paths = words.map(|word| source.root.join(word.replace("${PLUGIN_ROOT}", &root)));
    paths.filter(|path| path.starts_with(&source.root) && Path::is_file(path)).collect()
}
