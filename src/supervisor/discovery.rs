//! Finds plugins: directories that were named, the folders under `<config_dir>/plugins`, and those of the project.
//!
//! One bad manifest sinks nothing: what was found and what was wrong come back together. A directory that was named
//! must be a plugin. Of one name the first in this order wins, so that no project replaces what a person chose.

use std::io;
use std::path::{Path, PathBuf};

use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::manifest::{Entry, Manifest};
use serde_json::Value;

use super::process::PREPARED;
use crate::ports::Notice;
use crate::schema::{self, Fault};
use crate::trust;

/// The file that makes a folder a plugin.
pub(super) const MANIFEST: &str = "plugin.json";
/// The folder of plugins in a config folder and in a project's folder.
pub(crate) const PLUGINS: &str = "plugins";
/// The folder of a project that is read.
pub(crate) const PROJECT: &str = ".bingo";

/// A plugin that can be started.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginSource {
    pub name: PluginName,
    /// The directory of the manifest, absolute.
    pub root: PathBuf,
    pub manifest: Manifest,
    pub origin: Origin,
}

/// Where a plugin comes from, which says who chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It is this program itself.
    Bundled,
    /// The command line names its directory.
    Named,
    /// It stands in the person's own config folder.
    User,
    /// It stands in the folder that is worked in, so anybody may have written it.
    Project,
}

impl Origin {
    /// Returns its name, as people and programs read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bundled => "bundled",
            Self::Named => "named",
            Self::User => "user",
            Self::Project => "project",
        }
    }
}

/// Why a folder is no plugin.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error("{} is not a plugin: it has no {MANIFEST}", folder.display())]
    NoManifest { folder: PathBuf },
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not JSON: {source}", path.display())]
    NotJson {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{}: {fault}", folder.display())]
    Unfit { folder: PathBuf, fault: Box<Fault> },
    #[error("{} calls itself `{name}`, its directory is `{directory}`; make both the same", path.display())]
    Misnamed { path: PathBuf, name: String, directory: String },
    #[error("{}: `{directory}` cannot be a plugin's name: letters, digits, `.`, `_` and `-` can, 64 at most", path.display())]
    BadName { path: PathBuf, directory: String },
    #[error("{}: `requires` holds {entry:?}; an entry is `service:KEY`", path.display())]
    Requires { path: PathBuf, entry: String },
    #[error("{}: `{key}` holds {pattern:?}; an entry is a glob below the plugin's directory, such as `src/**/*.py`", path.display())]
    Glob { path: PathBuf, key: &'static str, pattern: String },
    #[error("{}: it uses `{PREPARED}` and has no `prepare` step that fills it; add one, or name another folder", path.display())]
    Unprepared { path: PathBuf },
    #[error("{} and {} are both plugins named `{name}`", first.display(), second.display())]
    Twice { name: PluginName, first: PathBuf, second: PathBuf },
    #[error("{name}: the project's plugin in {} is not used, the one in {} has the name", root.display(), used.display())]
    Shadowed { name: PluginName, root: PathBuf, used: PathBuf },
}

impl DiscoveryError {
    /// Returns what to do about it, where the error does not say so itself.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoManifest { .. } => Some("`--plugin` takes the directory that `plugin.json` stands in"),
            Self::NotJson { .. } | Self::Unfit { .. } => {
                Some("correct the manifest; `bingo schema plugin` has its shape under `Manifest`")
            }
            Self::Twice { .. } => Some("name only one of them"),
            Self::Unreadable { .. }
            | Self::Misnamed { .. }
            | Self::BadName { .. }
            | Self::Glob { .. }
            | Self::Unprepared { .. }
            | Self::Requires { .. }
            | Self::Shadowed { .. } => None,
        }
    }

    /// Returns the error as a notice; a plugin that was found and not named is left out, and no more.
    pub fn to_notice(&self) -> Notice {
        let code = match self {
            Self::Misnamed { .. } | Self::BadName { .. } => "PLUGIN_MISNAMED",
            Self::Twice { .. } | Self::Shadowed { .. } => "PLUGIN_SHADOWED",
            _ => "PLUGIN_UNREADABLE",
        };
        Notice { level: Level::Warn, code, text: self.to_string() }
    }
}

impl PluginSource {
    /// Returns a plugin that is run by this program itself, `binary ARGS…`, from an existing directory.
    pub fn bundled(name: PluginName, binary: &Path, args: &[&str], root: &Path) -> Self {
        let manifest = Manifest {
            name: name.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            entry: Entry {
                command: binary.to_string_lossy().into_owned(),
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                env: Default::default(),
            },
            config: None,
            prepare: None,
            requires: Vec::new(),
            reload: Default::default(),
            watch: Vec::new(),
        };
        Self { name, root: root.to_owned(), manifest, origin: Origin::Bundled }
    }
}

/// Returns the plugins that were named, those under `<config_dir>/plugins` and those of the project in `cwd`, and what is
/// wrong with the others there.
///
/// # Errors
/// When one that was named is no plugin, or two have one name.
pub fn discover(
    config_dir: &Path,
    cwd: &Path,
    named: &[PathBuf],
) -> Result<(Vec<PluginSource>, Vec<DiscoveryError>), DiscoveryError> {
    let mut sources = load_named(named)?;
    let mut problems = Vec::new();
    for (folder, origin) in places(config_dir, cwd) {
        for folder in folders(&folder.join(PLUGINS)) {
            match load(&folder, origin) {
                Ok(source) => match sources.iter().find(|other| other.name == source.name) {
                    None => sources.push(source),
                    Some(other) if origin == Origin::Project && other.root != source.root => {
                        let (name, root, used) = (source.name, source.root, other.root.clone());
                        problems.push(DiscoveryError::Shadowed { name, root, used });
                    }
                    Some(_) => {}
                },
                Err(DiscoveryError::NoManifest { .. }) => {}
                Err(problem) => problems.push(problem),
            }
        }
    }
    Ok((sources, problems))
}

/// Returns the folders that hold a folder of plugins. The person's own may be the project's: then it is theirs.
fn places(config_dir: &Path, cwd: &Path) -> Vec<(PathBuf, Origin)> {
    let project = cwd.join(PROJECT);
    let mut places = vec![(config_dir.to_owned(), Origin::User)];
    if !trust::is_same_folder(config_dir, &project) {
        places.push((project, Origin::Project));
    }
    places
}

fn load_named(named: &[PathBuf]) -> Result<Vec<PluginSource>, DiscoveryError> {
    let mut sources: Vec<PluginSource> = Vec::new();
    for folder in named {
        let source = load(folder, Origin::Named)?;
        match sources.iter().find(|other| other.name == source.name) {
            Some(other) if other.root == source.root => {}
            Some(other) => {
                let (name, first, second) = (source.name, other.root.clone(), source.root);
                return Err(DiscoveryError::Twice { name, first, second });
            }
            None => sources.push(source),
        }
    }
    Ok(sources)
}

/// Reads the plugin in one directory, which somebody chose in this way.
///
/// # Errors
/// When there is none, or its manifest is wrong.
pub fn load(folder: &Path, origin: Origin) -> Result<PluginSource, DiscoveryError> {
    let (path, manifest) = (folder.join(MANIFEST), manifest(folder)?);
    // `.` and links are fine; the name is that of the directory they lead to.
    let root =
        folder.canonicalize().map_err(|source| DiscoveryError::Unreadable { path: path.clone(), source })?;
    let directory = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if manifest.name != directory {
        return Err(DiscoveryError::Misnamed { path, name: manifest.name, directory });
    }
    match PluginName::parse(&directory) {
        Some(name) => Ok(PluginSource { name, root, manifest, origin }),
        None => Err(DiscoveryError::BadName { path, directory }),
    }
}

/// Reads the manifest in one directory, whatever the directory is called.
///
/// # Errors
/// When there is none, or it is wrong.
pub fn manifest(folder: &Path) -> Result<Manifest, DiscoveryError> {
    let path = folder.join(MANIFEST);
    let text = std::fs::read(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            DiscoveryError::NoManifest { folder: folder.to_owned() }
        }
        _ => DiscoveryError::Unreadable { path: path.clone(), source },
    })?;
    let value: Value = serde_json::from_slice(&text)
        .map_err(|source| DiscoveryError::NotJson { path: path.clone(), source })?;
    let unfit = |fault| DiscoveryError::Unfit { folder: folder.to_owned(), fault: Box::new(fault) };
    schema::plugin().check_manifest(&value).map_err(unfit)?;
    let manifest: Manifest = serde_json::from_value(value)
        .map_err(|source| DiscoveryError::NotJson { path: path.clone(), source })?;
    if let Some(entry) = manifest.requires.iter().find(|entry| required_service(entry).is_none()) {
        return Err(DiscoveryError::Requires { path, entry: entry.clone() });
    }
    let prepare = manifest.prepare.iter().flat_map(|prepare| &prepare.files);
    let watch = manifest.watch.iter().map(|pattern| ("watch", pattern));
    let mut globs = watch.chain(prepare.map(|pattern| ("prepare.files", pattern)));
    if let Some((key, pattern)) = globs.find(|(_, pattern)| !is_own_glob(pattern)) {
        return Err(DiscoveryError::Glob { path, key, pattern: pattern.clone() });
    }
    let Entry { command, args, env } = &manifest.entry;
    let mut words = std::iter::once(command).chain(args).chain(env.values());
    if manifest.prepare.is_none() && words.any(|word| word.contains(PREPARED)) {
        return Err(DiscoveryError::Unprepared { path });
    }
    Ok(manifest)
}

fn is_own_glob(pattern: &str) -> bool {
    let inside = !pattern.starts_with('/') && !pattern.split('/').any(|part| part == "..");
    inside && !pattern.is_empty() && glob::Pattern::new(pattern).is_ok()
}

/// Returns the key in an entry `service:KEY` of a manifest's `requires`.
pub fn required_service(entry: &str) -> Option<&str> {
    entry.strip_prefix("service:").filter(|key| !key.trim().is_empty())
}

/// Returns the folders in a folder, in the order of their names; none when it is not there.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut folders: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn plugin(&self, folder: &str, manifest: &str) -> PathBuf {
            let folder = self.0.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            if !manifest.is_empty() {
                std::fs::write(folder.join(MANIFEST), manifest).unwrap();
            }
            folder
        }
    }

    fn manifest(name: &str) -> String {
        format!(r#"{{"name": "{name}", "version": "1", "entry": {{"command": "true"}}, "more": 1}}"#)
    }

    #[test]
    fn good_ones_are_loaded_and_bad_ones_told_apart() {
        let home = Home::new();
        home.plugin("plugins/good", &manifest("good"));
        home.plugin("plugins/other", &manifest("another"));
        home.plugin("plugins/none", "");
        home.plugin("plugins/text", "hello");
        home.plugin("plugins/unfit", r#"{"name": "unfit", "version": "1", "entry": {}}"#);
        let (sources, problems) = discover(home.0.path(), Path::new("/nowhere"), &[]).unwrap();
        assert_eq!(sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>(), ["good"]);
        let notices: Vec<Notice> = problems.iter().map(DiscoveryError::to_notice).collect();
        let codes: Vec<&str> = notices.iter().map(|notice| notice.code).collect();
        assert_eq!(codes, ["PLUGIN_MISNAMED", "PLUGIN_UNREADABLE", "PLUGIN_UNREADABLE"]);
        assert!(notices[0].text.contains("calls itself `another`, its directory is `other`"));
        assert!(notices[1].text.contains("text/plugin.json is not JSON"));
        assert!(
            notices[2]
                .text
                .ends_with("plugins/unfit: plugin.json at /entry/command: expected string, got nothing")
        );
    }

    #[test]
    fn what_no_step_fills_cannot_be_used() {
        let home = Home::new();
        let text = manifest("p").replace(r#""true""#, r#""${PLUGIN_PREPARED}/bin/p""#);
        let folder = home.plugin("plugins/p", &text);
        let error = load(&folder, Origin::User).unwrap_err().to_string();
        assert!(error.contains("it uses `${PLUGIN_PREPARED}` and has no `prepare` step"), "{error}");
        let step = r#""prepare": {"command": "true"}, "more""#;
        home.plugin("plugins/p", &text.replace(r#""more""#, step));
        assert!(load(&folder, Origin::User).is_ok());
    }

    #[test]
    fn one_that_was_named_wins_and_must_be_there() {
        let home = Home::new();
        home.plugin("plugins/a", &manifest("a"));
        let named = home.plugin("mine/a", &manifest("a"));
        let (sources, _) =
            discover(home.0.path(), Path::new("/nowhere"), &[named.clone(), named.clone()]).unwrap();
        assert_eq!(sources.len(), 1);
        assert_eq!(sources[0].root, named.canonicalize().unwrap());

        let none = home.plugin("mine/none", "");
        let error = discover(home.0.path(), Path::new("/nowhere"), &[none]).unwrap_err();
        assert!(error.to_string().ends_with("none is not a plugin: it has no plugin.json"));
        let other = home.plugin("yours/a", &manifest("a"));
        assert!(matches!(
            discover(home.0.path(), Path::new("/nowhere"), &[named, other]).unwrap_err(),
            DiscoveryError::Twice { .. }
        ));
    }

    #[test]
    fn a_project_adds_plugins_and_replaces_none() {
        let home = Home::new();
        let cwd = home.0.path().join("work");
        let named = home.plugin("mine/a", &manifest("a"));
        for folder in ["plugins/b", "work/.bingo/plugins/a", "work/.bingo/plugins/b", "work/.bingo/plugins/c"]
        {
            home.plugin(folder, &manifest(&folder[folder.len() - 1..]));
        }
        let (sources, problems) = discover(home.0.path(), &cwd, &[named]).unwrap();
        let found: Vec<(&str, Origin)> =
            sources.iter().map(|source| (source.name.as_str(), source.origin)).collect();
        assert_eq!(found, [("a", Origin::Named), ("b", Origin::User), ("c", Origin::Project)]);
        let notices: Vec<Notice> = problems.iter().map(DiscoveryError::to_notice).collect();
        assert_eq!(notices.len(), 2);
        assert_eq!(notices[0].code, "PLUGIN_SHADOWED");
        assert!(notices[0].text.contains("a: the project's plugin in "), "{}", notices[0].text);

        let own = cwd.join(".bingo/plugins/c");
        let (sources, problems) = discover(home.0.path(), &cwd, &[own]).unwrap();
        assert_eq!(sources[0].origin, Origin::Named, "it was named, so it is trusted");
        assert_eq!(problems.len(), 1, "a plugin does not shadow itself");
    }

    #[test]
    fn the_persons_own_folder_may_be_the_projects() {
        let home = Home::new();
        home.plugin(".bingo/plugins/a", &manifest("a"));
        let link = home.0.path().join("link");
        std::os::unix::fs::symlink(home.0.path(), &link).unwrap();
        let (sources, problems) = discover(&link.join(".bingo"), home.0.path(), &[]).unwrap();
        assert_eq!(sources.iter().map(|source| source.origin).collect::<Vec<_>>(), [Origin::User]);
        assert!(problems.is_empty());
    }

    #[test]
    fn what_is_required_has_one_form() {
        let home = Home::new();
        let requires = |list: &str| {
            format!(r#"{{"name": "a", "version": "1", "entry": {{"command": "true"}}, "requires": {list}}}"#)
        };
        let folder = home.plugin("a", &requires(r#"["service:store.v1"]"#));
        assert_eq!(load(&folder, Origin::User).unwrap().manifest.requires, ["service:store.v1"]);
        assert_eq!(required_service("service:store.v1"), Some("store.v1"));
        for (list, reason) in [
            (
                r#"["service:x", "tool:y"]"#,
                "a/plugin.json: `requires` holds \"tool:y\"; an entry is `service:KEY`",
            ),
            (r#"["service:"]"#, "a/plugin.json: `requires` holds \"service:\"; an entry is `service:KEY`"),
            (r#""service:x""#, "a: plugin.json at /requires: expected array, got \"service:x\""),
        ] {
            let notice = load(&home.plugin("a", &requires(list)), Origin::User).unwrap_err().to_notice();
            assert_eq!(notice.code, "PLUGIN_UNREADABLE");
            assert!(notice.text.ends_with(reason), "{}", notice.text);
        }
    }

    #[test]
    fn a_step_is_a_program_and_names_files_of_its_own() {
        let home = Home::new();
        let with = |prepare: &str| {
            let entry = r#"{"command": "true"}"#;
            home.plugin(
                "a",
                &format!(r#"{{"name": "a", "version": "1", "entry": {entry}, "prepare": {prepare}}}"#),
            )
        };
        let well = r#"{"command": "sh", "args": ["x"], "env": {"A": "b"}, "files": ["lib/**/*.lock"]}"#;
        let prepare = load(&with(well), Origin::User).unwrap().manifest.prepare.unwrap();
        assert_eq!((prepare.program.command.as_str(), prepare.files.len()), ("sh", 1));
        for (prepare, reason) in [
            (r#"{"args": []}"#, "a: plugin.json at /prepare/command: expected string, got nothing"),
            (
                r#"{"command": "sh", "files": ["../*"]}"#,
                "a/plugin.json: `prepare.files` holds \"../*\"; an entry is a glob below the plugin's directory, such as `src/**/*.py`",
            ),
        ] {
            let error = load(&with(prepare), Origin::User).unwrap_err().to_string();
            assert!(error.ends_with(reason), "{error}");
        }
    }

    #[test]
    fn no_folder_means_no_plugins() {
        let (sources, problems) = discover(Path::new("/nowhere"), Path::new("/nowhere"), &[]).unwrap();
        assert!(sources.is_empty() && problems.is_empty());
    }
}
