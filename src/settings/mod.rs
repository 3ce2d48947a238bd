//! Settings: TOML files in layers, merged table by table, then the command line on top (kernel rules 8.4).
//!
//! A project's files may set `model`, `thinking` and `maxTokens`: anything else counts when a person trusted the files as
//! they are.

pub mod edit;
mod layers;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::provider::Effort;
use serde::Deserialize;
use serde_json::Value;
use toml::Table;

use self::layers::Layers;
pub use self::layers::{Entry, Explained};
use crate::ports::Notice;
use crate::trust::{self, Builder, Fingerprint, Subject, TrustStore, Untrusted};

/// The keys that a project may set without being trusted (design §6).
const PROJECT_KEYS: [&str; 3] = ["model", "thinking", "maxTokens"];

/// The folder of a project's settings.
const PROJECT: &str = ".bingo";

/// The settings files of a project there, the lower one first.
const PROJECT_FILES: [&str; 2] = ["settings.toml", "settings.local.toml"];

/// The answer's size when nobody says, in tokens.
const DEFAULT_MAX_TOKENS: u32 = 16_384;

/// The rounds of a turn when nobody says (kernel rule 4.1.3).
const DEFAULT_MAX_ROUNDS: NonZeroU32 = NonZeroU32::new(100).expect("it is not zero");

/// The merged settings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// The provider of new sessions.
    pub provider: Option<String>,
    /// The model of new sessions: `MODEL` or `PROVIDER/MODEL`.
    pub model: Option<String>,
    /// How much the model shall reason.
    pub thinking: Option<Effort>,
    /// The most tokens of one answer.
    pub max_tokens: u32,
    /// The most rounds of one turn.
    pub max_rounds: NonZeroU32,
    /// What is known of models, by `PROVIDER/MODEL`.
    pub models: BTreeMap<String, ModelSettings>,
    pub permissions: Permissions,
    pub journal: JournalSettings,
    /// How much is kept of what is stored.
    pub retention: Retention,
    /// What each plugin gets as its `config`.
    pub plugins: BTreeMap<String, Value>,
    /// What the host does with each plugin.
    pub supervisor: BTreeMap<String, PluginSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            provider: None,
            model: None,
            thinking: None,
            max_tokens: DEFAULT_MAX_TOKENS,
            max_rounds: DEFAULT_MAX_ROUNDS,
            models: BTreeMap::new(),
            permissions: Permissions::default(),
            journal: JournalSettings::default(),
            retention: Retention::default(),
            plugins: BTreeMap::new(),
            supervisor: BTreeMap::new(),
        }
    }
}

/// What a person knows of a model that its provider does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ModelSettings {
    /// Tokens of input and output together.
    pub context_window: Option<u64>,
    /// The most tokens of one answer.
    pub max_output: Option<u32>,
    /// Whether it can see pictures.
    pub images: Option<bool>,
    /// Whether it can reason.
    pub reasoning: Option<bool>,
}

/// What may run without asking.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Permissions {
    pub default_mode: Option<String>,
    /// Rules whose calls run without asking.
    pub allow: Vec<String>,
    /// Rules whose calls are refused.
    pub deny: Vec<String>,
    /// Rules whose calls are always asked about.
    pub ask: Vec<String>,
}

/// What the host does with one plugin.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PluginSettings {
    /// Variables of the host that the plugin gets beyond the common ones, by name.
    pub env: Vec<String>,
    /// Gives it all of them.
    pub inherit_env: bool,
    /// What counts when one of its hooks does not decide.
    pub on_hook_timeout: OnHookTimeout,
    /// Deadlines in milliseconds that differ from the defaults, by name.
    pub timeouts: BTreeMap<String, u64>,
    /// Whether it is started at all; it is unless this says `false`.
    pub enabled: Option<bool>,
    /// How it is restarted where that differs from the defaults, by name; times are milliseconds.
    pub restart: BTreeMap<String, u64>,
    /// What its processes may use, by name, in bytes, seconds and numbers.
    pub limits: BTreeMap<String, u64>,
}

/// What counts when a hook is asked and its answer is late, an error or unfit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnHookTimeout {
    /// Goes on as if there were no hook.
    #[default]
    Continue,
    /// Refuses what it was asked about.
    Deny,
}

/// When an append to the journal is synced to the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SyncMode {
    /// What opens, answers and ends a turn.
    #[default]
    Turn,
    /// Every durable frame.
    Frame,
    /// Nothing; the system writes when it likes.
    Off,
}

/// How the journal is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JournalSettings {
    pub sync: SyncMode,
}

/// How much is kept of the stored sessions; what is not said is not limited. A child session counts with its parent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Retention {
    /// The days since a session was last written.
    pub days: Option<NonZeroU32>,
    /// The number of sessions.
    pub sessions: Option<NonZeroU32>,
    /// What they take of the disk together.
    pub mebibytes: Option<NonZeroU32>,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read the settings file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the settings file {} is not TOML", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("the settings key `{key}` does not fit: {reason} ({})", layers.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    Value { key: String, reason: String, layers: Vec<PathBuf> },
}

/// Where settings come from.
#[derive(Debug, Clone)]
pub struct Sources {
    pub config_dir: PathBuf,
    /// The project's directory.
    pub cwd: PathBuf,
    /// A file named on the command line.
    pub file: Option<PathBuf>,
}

impl Sources {
    /// Returns the absolute paths of the files that may be there, the lowest layer first.
    pub fn files(&self) -> Vec<PathBuf> {
        let folder = self.cwd.join(PROJECT);
        let project = PROJECT_FILES.iter().map(|name| folder.join(name));
        let named = self.file.iter().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
        std::iter::once(user_file(&self.config_dir)).chain(project).chain(named).collect()
    }
}

impl SettingsError {
    /// Returns it in words, without the lines of the file: there may be secrets.
    pub fn in_words(&self) -> String {
        match self {
            Self::Read { source, .. } => format!("{self}: {source}"),
            Self::Parse { source, .. } => {
                let place = source.to_string();
                let place = place.lines().next().unwrap_or_default();
                format!("{self}: {place}: {}", source.message())
            }
            Self::Value { .. } => self.to_string(),
        }
    }
}

/// The settings files of a project, read once: what is checked is what counts.
#[derive(Debug)]
pub struct ProjectSettings {
    cwd: PathBuf,
    files: Vec<(PathBuf, Option<String>)>,
}

impl ProjectSettings {
    /// Reads the files of the project in a folder; none when its `.bingo` is the person's own config folder.
    ///
    /// # Errors
    /// When one is there and cannot be read.
    pub fn read(sources: &Sources) -> Result<Self, SettingsError> {
        let folder = sources.cwd.join(PROJECT);
        let own = trust::is_same_folder(&folder, &sources.config_dir);
        let names = if own { &[] } else { PROJECT_FILES.as_slice() };
        let paths = names.iter().map(|name| folder.join(name));
        let files = paths.map(|path| Ok((path.clone(), read(&path)?))).collect::<Result<_, _>>()?;
        Ok(Self { cwd: sources.cwd.clone(), files })
    }

    /// Returns the files that are there.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().filter(|(_, text)| text.is_some()).map(|(path, _)| path.as_path())
    }

    /// Returns the keys that need trust.
    ///
    /// # Errors
    /// When a file is not TOML.
    pub fn guarded_keys(&self) -> Result<Vec<String>, SettingsError> {
        let mut keys: Vec<String> = Vec::new();
        for (path, text) in &self.files {
            keys.extend(guarded(&parse(path, text.as_deref().unwrap_or_default())?));
        }
        keys.sort();
        keys.dedup();
        Ok(keys)
    }

    /// Returns what is trusted when these files are.
    pub fn subject(&self) -> Subject<'_> {
        Subject::Settings { project: &self.cwd }
    }

    /// Returns what stands for both files.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut builder = Builder::new("settings");
        self.files.iter().for_each(|(_, text)| builder.text(text.as_ref().map(String::as_bytes)));
        builder.finish()
    }

    /// Lays the files over what is below; of files that are not trusted only what any project may set.
    fn lay_over(
        self,
        lower: &mut Layers,
        store: &TrustStore,
        notices: &mut Vec<Notice>,
    ) -> Result<(), SettingsError> {
        let trusted = store.check(&self.subject(), &self.fingerprint());
        for (path, text) in self.files {
            let Some(text) = text else { continue };
            let mut table = parse(&path, &text)?;
            if let Err(untrusted) = &trusted {
                notices.extend(keep_project_keys(&mut table, &path, untrusted));
            }
            lower.lay(path, table);
        }
        Ok(())
    }
}

/// Returns the file of a person's own settings.
pub fn user_file(config_dir: &Path) -> PathBuf {
    config_dir.join("settings.toml")
}

/// Reads and merges the layers, the user's lowest.
///
/// # Errors
/// When a file cannot be read or parsed, or a key has the wrong type. A missing file is skipped, unless it was named.
pub fn load(sources: &Sources, store: &TrustStore) -> Result<(Settings, Vec<Notice>), SettingsError> {
    let (layers, notices) = read_layers(sources, store)?;
    let paths = layers.paths().map(Path::to_owned).collect();
    Ok((from_table(layers.merged(), paths)?, notices))
}

/// Reads the layers and says which file each value is from.
///
/// # Errors
/// As `load`.
pub fn explain(sources: &Sources, store: &TrustStore) -> Result<Explained, SettingsError> {
    let (layers, notices) = read_layers(sources, store)?;
    let (merged, paths) = (layers.merged(), layers.paths().map(Path::to_owned).collect());
    from_table(merged.clone(), paths)?;
    Ok(Explained { entries: layers.entries(&merged), notices })
}

/// Reads what counts of each file that is there.
fn read_layers(sources: &Sources, store: &TrustStore) -> Result<(Layers, Vec<Notice>), SettingsError> {
    let (mut notices, mut layers) = (Vec::new(), Layers::default());
    let user = user_file(&sources.config_dir);
    if let Some(text) = read(&user)? {
        let table = parse(&user, &text)?;
        layers.lay(user, table);
    }
    ProjectSettings::read(sources)?.lay_over(&mut layers, store, &mut notices)?;
    if let Some(path) = &sources.file {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingsError::Read { path: path.clone(), source })?;
        layers.lay(path.clone(), parse(path, &text)?);
    }
    notices.extend(unknown_keys(&layers.merged()));
    Ok((layers, notices))
}

fn read(path: &Path) -> Result<Option<String>, SettingsError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(source) => Err(SettingsError::Read { path: path.to_owned(), source }),
    }
}

fn parse(path: &Path, text: &str) -> Result<Table, SettingsError> {
    text.parse().map_err(|source| SettingsError::Parse { path: path.to_owned(), source: Box::new(source) })
}

fn guarded(table: &Table) -> Vec<String> {
    table.keys().filter(|key| !PROJECT_KEYS.contains(&key.as_str())).cloned().collect()
}

fn keep_project_keys(table: &mut Table, path: &Path, untrusted: &Untrusted) -> Option<Notice> {
    let refused = guarded(table);
    refused.iter().for_each(|key| drop(table.remove(key)));
    let text = format!("these keys of {} do nothing: {}; {untrusted}", path.display(), refused.join(", "));
    (!refused.is_empty()).then_some(Notice { level: Level::Warn, code: "PROJECT_UNTRUSTED", text })
}

fn unknown_keys(table: &Table) -> Vec<Notice> {
    const KNOWN: [&str; 11] = [
        "provider",
        "model",
        "thinking",
        "maxTokens",
        "maxRounds",
        "models",
        "permissions",
        "journal",
        "retention",
        "plugins",
        "supervisor",
    ];
    const OF_PERMISSIONS: [&str; 4] = ["defaultMode", "allow", "deny", "ask"];
    const OF_PLUGIN: [&str; 7] =
        ["env", "inheritEnv", "onHookTimeout", "timeouts", "enabled", "restart", "limits"];
    let mut notices = unknown_in(table, "", &KNOWN);
    let plugins = table.get("supervisor").and_then(toml::Value::as_table).into_iter().flatten();
    let permissions = table.get("permissions").and_then(toml::Value::as_table);
    notices.extend(permissions.into_iter().flat_map(|own| unknown_in(own, "permissions.", &OF_PERMISSIONS)));
    for (name, value) in plugins {
        let own = value.as_table().map(|own| unknown_in(own, &format!("supervisor.{name}."), &OF_PLUGIN));
        notices.extend(own.into_iter().flatten());
    }
    notices
}

/// Returns a notice for each key that means nothing in a table; `at` is what stands before it.
fn unknown_in(table: &Table, at: &str, known: &[&str]) -> Vec<Notice> {
    let unknown = table.keys().filter(|key| !known.contains(&key.as_str()));
    let notice = |key: &String| {
        let text = format!("the settings key `{at}{key}` means nothing; the keys are {}", known.join(", "));
        Notice { level: Level::Warn, code: "UNKNOWN_SETTING", text }
    };
    unknown.map(notice).collect()
}

fn from_table(table: Table, layers: Vec<PathBuf>) -> Result<Settings, SettingsError> {
    serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|error| SettingsError::Value {
        key: error.path().to_string(),
        reason: error.inner().message().to_owned(),
        layers,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, Sources) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let file = Some(folder.path().join("named.toml")).filter(|path| path.exists());
        let sources =
            Sources { config_dir: folder.path().join("config"), cwd: folder.path().join("project"), file };
        (folder, sources)
    }

    /// A store in which nothing is trusted.
    fn nothing() -> TrustStore {
        TrustStore::open(Path::new("/nowhere"))
    }

    #[test]
    fn nearer_layers_win_key_by_key() {
        let (_folder, sources) = folder(&[
            ("config/settings.toml", "model = 'a'\nprovider = 'p'\n[plugins.x]\none = 1\ntwo = 2"),
            ("project/.bingo/settings.toml", "model = 'b'"),
            ("project/.bingo/settings.local.toml", "maxTokens = 5"),
            ("named.toml", "[plugins.x]\ntwo = 3"),
        ]);
        let (settings, notices) = load(&sources, &nothing()).unwrap();
        assert_eq!(settings.model.as_deref(), Some("b"));
        assert_eq!(settings.provider.as_deref(), Some("p"));
        assert_eq!(settings.max_tokens, 5);
        assert_eq!(settings.plugins["x"], json!({"one": 1, "two": 3}));
        assert!(notices.is_empty());
    }

    #[test]
    fn a_project_cannot_open_doors() {
        let (_folder, sources) = folder(&[(
            "project/.bingo/settings.toml",
            "model = 'b'\n[permissions]\ndefaultMode = 'bypassPermissions'",
        )]);
        let (settings, notices) = load(&sources, &nothing()).unwrap();
        assert_eq!(settings.permissions, Permissions::default());
        assert_eq!(settings.model.as_deref(), Some("b"));
        assert_eq!(notices[0].code, "PROJECT_UNTRUSTED");
        assert!(notices[0].text.contains("permissions"), "{}", notices[0].text);
    }

    #[test]
    fn a_trusted_project_counts_until_either_file_changes() {
        let (folder, sources) = folder(&[("project/.bingo/settings.toml", "provider = 'p'")]);
        let mut store = TrustStore::open(folder.path());
        let project = ProjectSettings::read(&sources).unwrap();
        assert_eq!(project.guarded_keys().unwrap(), ["provider"]);
        store.trust(&project.subject(), &project.fingerprint()).unwrap();
        let (settings, notices) = load(&sources, &store).unwrap();
        assert_eq!((settings.provider.as_deref(), notices.len()), (Some("p"), 0));
        std::fs::write(sources.cwd.join(".bingo/settings.local.toml"), "").unwrap();
        let (settings, notices) = load(&sources, &store).unwrap();
        assert_eq!(settings.provider, None);
        assert!(notices[0].text.contains("settings.toml do nothing: provider; it changed"), "{notices:?}");
    }

    #[test]
    fn the_same_text_in_the_other_file_is_not_the_same() {
        let print = |files: &[(&str, &str)]| {
            let (_folder, sources) = folder(files);
            ProjectSettings::read(&sources).unwrap().fingerprint().hash
        };
        let (one, other) = ("project/.bingo/settings.toml", "project/.bingo/settings.local.toml");
        let all = [print(&[]), print(&[(one, "")]), print(&[(other, "")]), print(&[(one, ""), (other, "")])];
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn a_persons_own_folder_needs_no_trust_where_it_is_the_projects() {
        let (_folder, mut sources) = folder(&[("project/.bingo/settings.toml", "provider = 'p'")]);
        sources.config_dir = sources.cwd.join(".bingo");
        let (settings, notices) = load(&sources, &nothing()).unwrap();
        assert_eq!((settings.provider.as_deref(), notices.len()), (Some("p"), 0));
    }

    #[test]
    fn a_wrong_type_names_its_key_and_a_wrong_file_its_path() {
        let (_folder, sources) = folder(&[("config/settings.toml", "[journal]\nsync = 'sometimes'")]);
        let error = load(&sources, &nothing()).unwrap_err().to_string();
        assert!(error.contains("journal.sync") && error.contains("settings.toml"), "{error}");
        let (_folder, sources) = folder(&[("config/settings.toml", "not toml")]);
        assert!(matches!(load(&sources, &nothing()), Err(SettingsError::Parse { .. })));
    }

    #[test]
    fn a_missing_file_is_skipped_unless_it_was_named() {
        let (folder, sources) = folder(&[]);
        assert_eq!(load(&sources, &nothing()).unwrap().0, Settings::default());
        let sources = Sources { file: Some(folder.path().join("gone.toml")), ..sources };
        assert!(matches!(load(&sources, &nothing()), Err(SettingsError::Read { .. })));
    }

    #[test]
    fn a_key_that_means_nothing_is_told() {
        let text = "modle = 'x'\n[supervisor.p]\ntimeoutz = {}\ntimeouts = {}";
        let (_folder, sources) = folder(&[("config/settings.toml", text)]);
        let told = load(&sources, &nothing()).unwrap().1;
        assert!(told.iter().all(|notice| notice.code == "UNKNOWN_SETTING"));
        let keys = told.iter().filter_map(|notice| notice.text.split('`').nth(1));
        assert_eq!(keys.collect::<Vec<_>>(), ["modle", "supervisor.p.timeoutz"]);
    }
}
