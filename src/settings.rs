//! Settings: TOML files in layers, merged table by table, then the command line on top (kernel rules 8.4).
//!
//! A project's files may set `model`, `thinking` and `maxTokens` alone: everything else needs trust, and says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::provider::Effort;
use serde::Deserialize;
use serde_json::Value;
use toml::Table;

use crate::ports::Notice;

/// The keys that a project may set without being trusted (design §6).
const PROJECT_KEYS: [&str; 3] = ["model", "thinking", "maxTokens"];

/// The answer's size when nobody says, in tokens.
const DEFAULT_MAX_TOKENS: u32 = 16_384;

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
    pub permissions: Permissions,
    pub journal: JournalSettings,
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
            permissions: Permissions::default(),
            journal: JournalSettings::default(),
            plugins: BTreeMap::new(),
            supervisor: BTreeMap::new(),
        }
    }
}

/// What may run without asking.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Permissions {
    pub default_mode: Option<String>,
    /// Exact tool names.
    pub allow: Vec<String>,
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

/// Reads and merges the layers, the user's lowest.
///
/// # Errors
/// When a file cannot be read or parsed, or a key has the wrong type. A missing file is skipped, unless it was named.
pub fn load(sources: &Sources) -> Result<(Settings, Vec<Notice>), SettingsError> {
    let mut notices = Vec::new();
    let mut merged = Table::new();
    let mut layers = Vec::new();
    let user = sources.config_dir.join("settings.toml");
    if let Some(table) = read(&user)? {
        merge(&mut merged, table);
        layers.push(user);
    }
    for name in ["settings.toml", "settings.local.toml"] {
        let path = sources.cwd.join(".bingo").join(name);
        // The user's own folder may be the project's.
        if layers.contains(&path) {
            continue;
        }
        if let Some(mut table) = read(&path)? {
            notices.extend(keep_project_keys(&mut table, &path));
            merge(&mut merged, table);
            layers.push(path);
        }
    }
    if let Some(path) = &sources.file {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingsError::Read { path: path.clone(), source })?;
        merge(&mut merged, parse(path, &text)?);
        layers.push(path.clone());
    }
    notices.extend(unknown_keys(&merged));
    Ok((from_table(merged, layers)?, notices))
}

fn read(path: &Path) -> Result<Option<Table>, SettingsError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(source) => return Err(SettingsError::Read { path: path.to_owned(), source }),
    };
    parse(path, &text).map(Some)
}

fn parse(path: &Path, text: &str) -> Result<Table, SettingsError> {
    text.parse().map_err(|source| SettingsError::Parse { path: path.to_owned(), source: Box::new(source) })
}

/// Lays `upper` over `lower`, table by table at every depth; anything else is replaced.
fn merge(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(toml::Value::Table(lower)), toml::Value::Table(upper)) => merge(lower, upper),
            (_, value) => drop(lower.insert(key, value)),
        }
    }
}

fn keep_project_keys(table: &mut Table, path: &Path) -> Option<Notice> {
    let refused: Vec<String> =
        table.keys().filter(|key| !PROJECT_KEYS.contains(&key.as_str())).cloned().collect();
    refused.iter().for_each(|key| drop(table.remove(key)));
    let text = format!(
        "{} may set {} only, so these keys of it do nothing: {}; put them into your own settings",
        path.display(),
        PROJECT_KEYS.join(", "),
        refused.join(", ")
    );
    (!refused.is_empty()).then_some(Notice { level: Level::Warn, code: "PROJECT_UNTRUSTED", text })
}

fn unknown_keys(table: &Table) -> Vec<Notice> {
    const KNOWN: [&str; 8] =
        ["provider", "model", "thinking", "maxTokens", "permissions", "journal", "plugins", "supervisor"];
    let unknown = table.keys().filter(|key| !KNOWN.contains(&key.as_str()));
    let notice = |key: &String| {
        let text = format!("the settings key `{key}` means nothing; the keys are {}", KNOWN.join(", "));
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

    #[test]
    fn nearer_layers_win_key_by_key() {
        let (_folder, sources) = folder(&[
            ("config/settings.toml", "model = 'a'\nprovider = 'p'\n[plugins.x]\none = 1\ntwo = 2"),
            ("project/.bingo/settings.toml", "model = 'b'"),
            ("project/.bingo/settings.local.toml", "maxTokens = 5"),
            ("named.toml", "[plugins.x]\ntwo = 3"),
        ]);
        let (settings, notices) = load(&sources).unwrap();
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
        let (settings, notices) = load(&sources).unwrap();
        assert_eq!(settings.permissions, Permissions::default());
        assert_eq!(settings.model.as_deref(), Some("b"));
        assert_eq!(notices[0].code, "PROJECT_UNTRUSTED");
        assert!(notices[0].text.contains("permissions"), "{}", notices[0].text);
    }

    #[test]
    fn a_wrong_type_names_its_key_and_a_wrong_file_its_path() {
        let (_folder, sources) = folder(&[("config/settings.toml", "[journal]\nsync = 'sometimes'")]);
        let error = load(&sources).unwrap_err().to_string();
        assert!(error.contains("journal.sync") && error.contains("settings.toml"), "{error}");
        let (_folder, sources) = folder(&[("config/settings.toml", "not toml")]);
        assert!(matches!(load(&sources), Err(SettingsError::Parse { .. })));
    }

    #[test]
    fn a_missing_file_is_skipped_unless_it_was_named() {
        let (folder, sources) = folder(&[]);
        assert_eq!(load(&sources).unwrap().0, Settings::default());
        let sources = Sources { file: Some(folder.path().join("gone.toml")), ..sources };
        assert!(matches!(load(&sources), Err(SettingsError::Read { .. })));
    }

    #[test]
    fn a_key_that_means_nothing_is_told() {
        let (_folder, sources) = folder(&[("config/settings.toml", "modle = 'x'")]);
        assert_eq!(load(&sources).unwrap().1[0].code, "UNKNOWN_SETTING");
    }
}
