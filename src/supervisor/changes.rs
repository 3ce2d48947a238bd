//! Sees that files of plugins change, that plugins come and go, and that settings change.
//!
//! The files that count are the manifest, the entry's own files, and what the manifest's `watch` names. After an event at
//! one of them and a while of quiet all of them are looked at, and a plugin is renewed when one is another file than
//! before; the settings are loaded, and count where they say something else. Lost events cost nothing but that look.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::item::Level;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::discovery::{MANIFEST, Origin, PluginSource};
use super::{Setups, Supervisor};
use crate::ports::{Notice, Notices};

/// How long nothing must happen before a look.
const QUIET: Duration = Duration::from_millis(300);
/// How long a look is put off at most, where something always happens.
const PATIENCE: Duration = Duration::from_secs(3);
/// Events that may wait; when more come, they are lost.
const EVENTS: usize = 256;

/// How many links are followed to a file; the system gives up sooner or later, too.
const MAX_LINKS: usize = 8;

/// What plugins there are, as the folders say now.
pub type Find = Box<dyn Fn() -> Vec<PluginSource> + Send>;

/// What the settings say about plugins now, with remarks about them; or what is wrong with them, in words.
pub type Load = Box<dyn Fn() -> Result<(Setups, Vec<Notice>), String> + Send>;

/// What is watched beside the plugins that run.
pub struct Watched {
    /// They hold plugins' folders; one that is not there yet may come.
    pub folders: Vec<PathBuf>,
    /// The file of what a person trusted.
    pub trust: PathBuf,
    /// The files of settings, absolute; one that is not there yet may come.
    pub settings: Vec<PathBuf>,
    pub find: Find,
    pub load: Load,
}

/// Watches until the supervisor is gone.
pub async fn watch(supervisor: Weak<Supervisor>, what: Watched, notices: Arc<dyn Notices>) {
    let (sender, events) = mpsc::channel(EVENTS);
    let lost = Arc::new(Notify::new());
    let heard = {
        let lost = Arc::clone(&lost);
        move |event| pass_on(event, &sender, &lost)
    };
    match notify::recommended_watcher(heard) {
        Ok(watcher) => {
            let watch = Watch {
                supervisor,
                what,
                notices,
                watcher,
                files: Vec::new(),
                trusted: None,
                remarks: Vec::new(),
                wrong: None,
                watched: BTreeSet::new(),
                seen: BTreeMap::new(),
                counting: Vec::new(),
                due: None,
            };
            watch.run(events, &lost).await;
        }
        Err(error) => told(&notices, &error),
    }
}

/// Hands the paths of an event to the watch.
fn pass_on(event: notify::Result<Event>, sender: &mpsc::Sender<Vec<PathBuf>>, lost: &Notify) {
    let paths = match event {
        Ok(event) if matches!(event.kind, EventKind::Access(_)) => return,
        Ok(event) => event.paths,
        // An error is a lost event: a look at everything is the answer to both.
        Err(_) => Vec::new(),
    };
    if let Err(TrySendError::Full(_)) = sender.try_send(paths) {
        // Those that wait may all be of files that do not count.
        lost.notify_one();
    }
}

fn told(notices: &Arc<dyn Notices>, error: &notify::Error) {
    let text = format!(
        "changes of plugins' files and of settings are not seen: {error}; start bingo again after one"
    );
    notices.post(Notice { level: Level::Warn, code: "PLUGINS_UNWATCHED", text });
}

/// What a file was when it was last looked at.
type Stamp = (PathBuf, u64, u64, i64, i64);

struct Watch {
    supervisor: Weak<Supervisor>,
    what: Watched,
    notices: Arc<dyn Notices>,
    watcher: RecommendedWatcher,
    /// The files that count beside those of plugins, and where links of that name lead.
    files: Vec<PathBuf>,
    /// The file of what is trusted as it was when it was last looked at.
    trusted: Option<Stamp>,
    /// The remarks of the last settings that could be used: none is told twice.
    remarks: Vec<Notice>,
    /// What is wrong with the settings since then.
    wrong: Option<String>,
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
    async fn run(mut self, mut events: mpsc::Receiver<Vec<PathBuf>>, lost: &Notify) {
        let Some(mut table) = self.supervisor.upgrade().map(|supervisor| supervisor.subscribe()) else {
            return;
        };
        self.look(true);
        loop {
            let due = self.due.map_or_else(|| Instant::now() + Duration::from_secs(3600), |(due, _)| due);
            tokio::select! {
                event = events.recv() => match event {
                    Some(paths) => self.heard(&paths),
                    None => return,
                },
                () = lost.notified() => self.put_off(),
                changed = table.changed() => match changed {
                    // Another plugin, or another manifest: other folders.
                    Ok(()) => {
                        self.watch_all();
                        self.forget_left();
                    }
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

    fn heard(&mut self, paths: &[PathBuf]) {
        // A folder that something befell may be another one now, which the system does not watch.
        self.watched.retain(|(folder, _)| !paths.contains(folder));
        if self.counts(paths) {
            self.put_off();
        }
    }

    /// Says whether one of these paths is of a file that counts. None at all means that events were lost.
    fn counts(&self, paths: &[PathBuf]) -> bool {
        paths.is_empty()
            || paths.iter().any(|path| {
                match self.counting.iter().find(|counting| path.starts_with(&counting.root)) {
                    Some(counting) => counting.has(path),
                    // Folders are watched for a few files of theirs, and for what may come.
                    None => {
                        let folders = &self.what.folders;
                        let wanted = || folders.iter().chain(&self.files);
                        wanted().any(|wanted| wanted.starts_with(path))
                            || folders.iter().any(|folder| path.starts_with(folder))
                    }
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
        self.load(&supervisor, first);
        let trusted = stamp(self.what.trust.clone());
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

    /// Lets the settings count as they are now; when something is wrong with them, those from before go on.
    fn load(&mut self, supervisor: &Supervisor, first: bool) {
        match (self.what.load)() {
            Ok((setups, remarks)) => {
                supervisor.reconfigure(setups);
                // The start of the host told the first ones.
                let fresh = remarks.iter().filter(|remark| !first && !self.remarks.contains(remark));
                fresh.for_each(|remark| self.notices.post(remark.clone()));
                (self.remarks, self.wrong) = (remarks, None);
            }
            Err(reason) if self.wrong.as_ref() != Some(&reason) => {
                let text = format!("the settings cannot be used, those from before go on: {reason}");
                self.notices.post(Notice { level: Level::Warn, code: "SETTINGS_UNUSABLE", text });
                self.wrong = Some(reason);
            }
            Err(_) => {}
        }
    }

    fn come_and_go(&mut self, supervisor: &Supervisor, known: &[PluginSource]) {
        let found = (self.what.find)();
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

    /// Looks again where a plugin left the table: its folder may have come back while its last process was stopped.
    fn forget_left(&mut self) {
        let Some(supervisor) = self.supervisor.upgrade() else { return };
        let (known, before) = (supervisor.sources(), self.seen.len());
        self.seen.retain(|name, _| known.iter().any(|source| source.name == *name));
        if self.seen.len() < before {
            self.put_off();
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
        let files: Vec<PathBuf> =
            self.what.settings.iter().chain([&self.what.trust]).flat_map(|file| ways(file)).collect();
        for folder in self
            .what
            .folders
            .iter()
            .map(PathBuf::as_path)
            .chain(files.iter().filter_map(|file| file.parent()))
        {
            // Where it may come, when it is not there.
            let place = folder.ancestors().find(|place| place.is_dir()).unwrap_or(folder);
            wanted.insert((place.to_owned(), false));
        }
        for folder in &self.what.folders {
            let below = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            wanted.extend(below.filter(|path| path.is_dir()).map(|path| (path, false)));
        }
        self.files = files;
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

/// Returns a file, and those that it leads to where it is a link.
fn ways(file: &Path) -> impl Iterator<Item = PathBuf> {
    let follow = |file: &PathBuf| Some(file.parent()?.join(std::fs::read_link(file).ok()?));
    std::iter::successors(Some(file.to_owned()), follow).take(MAX_LINKS)
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

#[cfg(test)]
mod tests {
    use notify::event::CreateKind;

    use super::*;

    #[tokio::test]
    async fn an_event_that_finds_no_room_is_known_to_be_lost() {
        let (sender, mut events) = mpsc::channel(1);
        let lost = Notify::new();
        let event = || Ok(Event::new(EventKind::Create(CreateKind::File)).add_path("/busy/file".into()));
        pass_on(event(), &sender, &lost);
        assert_eq!(events.len(), 1);
        pass_on(event(), &sender, &lost);
        lost.notified().await;
        assert_eq!(events.recv().await, Some(vec![PathBuf::from("/busy/file")]));
    }
}
