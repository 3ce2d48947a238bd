//! `trust.json` in the data folder: what a person said about which place, and the hash they said it about.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bingo_plugin_sdk::item::Level;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fingerprint::{Fingerprint, FingerprintError};
use crate::ports::Notice;

const FILE: &str = "trust.json";
/// What is written anew before it takes the file's place.
const TEMPORARY: &str = "trust.json.tmp";
/// Held while the file is read, changed and written, so that no two changes lose each other.
const LOCK: &str = "trust.lock";
const VERSION: u64 = 1;

/// What is trusted or not, and where it stands.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    /// A plugin's folder, as a real path, and the command that is run.
    Plugin { name: &'a str, root: &'a Path, command: &'a str },
    /// The settings files of a project's folder, a real path.
    Settings { project: &'a Path },
}

/// Why something is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    #[error("it comes with the project and was never trusted; look at it, then run `{advice}`")]
    Never { advice: String },
    #[error("it changed since it was trusted; look at it again, then run `{advice}`")]
    Changed { advice: String },
    #[error(
        "its command is `{now}` here, and it was trusted with `{before}`; look at it again, then run `{advice}`"
    )]
    OtherCommand { now: String, before: String, advice: String },
    #[error("it comes with the project and cannot be trusted: {0}; mend that, or name it with `--plugin`")]
    Unfit(#[from] FingerprintError),
    #[error("it comes with the project, and what is trusted is not known: {0}")]
    Store(#[from] StoreError),
}

/// Why the file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("cannot read {}: {reason}; correct its owner or its mode", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{} is broken ({reason}); `bingo plugin trust` writes it anew", path.display())]
    Broken { path: PathBuf, reason: String },
    #[error("{} is of version {version}, this bingo reads {VERSION}; use a newer one, or move the file away", path.display())]
    Newer { path: PathBuf, version: u64 },
    #[error("cannot write {}: {reason}; make room, or correct the mode of its folder", path.display())]
    Unwritable { path: PathBuf, reason: String },
}

/// What is trusted, as it stood in the file when it was opened.
#[derive(Debug, Clone)]
pub struct TrustStore {
    folder: PathBuf,
    stored: Result<Stored, StoreError>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    version: u64,
    plugins: BTreeMap<String, Entry>,
    settings: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    hash: String,
    /// For the words when it is another one; the hash holds it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

impl Subject<'_> {
    fn key(&self) -> String {
        let (Self::Plugin { root: path, .. } | Self::Settings { project: path }) = self;
        path.to_string_lossy().into_owned()
    }

    fn command(&self) -> Option<&str> {
        match self {
            Self::Plugin { command, .. } => Some(command),
            Self::Settings { .. } => None,
        }
    }

    fn advice(&self) -> String {
        match self {
            Self::Plugin { name, .. } => format!("bingo plugin trust {name}"),
            Self::Settings { .. } => "bingo plugin trust".to_owned(),
        }
    }
}

impl Stored {
    fn table(&self, subject: &Subject) -> &BTreeMap<String, Entry> {
        match subject {
            Subject::Plugin { .. } => &self.plugins,
            Subject::Settings { .. } => &self.settings,
        }
    }

    fn table_mut(&mut self, subject: &Subject) -> &mut BTreeMap<String, Entry> {
        match subject {
            Subject::Plugin { .. } => &mut self.plugins,
            Subject::Settings { .. } => &mut self.settings,
        }
    }
}

impl TrustStore {
    /// Returns the file in the data folder.
    pub fn path(data_dir: &Path) -> PathBuf {
        data_dir.join(FILE)
    }

    /// Reads the file in the data folder. Where it cannot be used nothing is trusted; [`TrustStore::notice`] says why.
    pub fn open(data_dir: &Path) -> Self {
        Self { folder: data_dir.to_owned(), stored: read(&data_dir.join(FILE)) }
    }

    /// Returns what is wrong with the file, if something is.
    pub fn notice(&self) -> Option<Notice> {
        let error = self.stored.as_ref().err()?;
        let text = format!("no project is trusted: {error}");
        Some(Notice { level: Level::Warn, code: "TRUST_UNREADABLE", text })
    }

    /// Checks that a person trusted exactly this.
    ///
    /// # Errors
    /// When nobody did, or it is not the same any more.
    pub fn check(&self, subject: &Subject, fingerprint: &Fingerprint) -> Result<(), Untrusted> {
        let stored = self.stored.as_ref().map_err(Clone::clone)?;
        let advice = subject.advice();
        match stored.table(subject).get(&subject.key()) {
            Some(entry) if entry.hash == fingerprint.hash => Ok(()),
            Some(Entry { command, .. }) => match (command, subject.command()) {
                (Some(before), Some(now)) if before != now => {
                    Err(Untrusted::OtherCommand { now: now.to_owned(), before: before.clone(), advice })
                }
                _ => Err(Untrusted::Changed { advice }),
            },
            None => Err(Untrusted::Never { advice }),
        }
    }

    /// Trusts this until it changes.
    ///
    /// # Errors
    /// When the file is of a newer version, or cannot be read or written.
    pub fn trust(&mut self, subject: &Subject, fingerprint: &Fingerprint) -> Result<(), StoreError> {
        self.put(subject, fingerprint)
    }

    /// Forgets what was said about this; returns whether it was trusted.
    ///
    /// # Errors
    /// As for `trust`.
    pub fn untrust(&mut self, subject: &Subject) -> Result<bool, StoreError> {
        let mut was = false;
        self.change(|stored| {
            let removed = stored.table_mut(subject).remove(&subject.key());
            was = removed.is_some();
        })?;
        Ok(was)
    }

    /// Forgets what was said about the plugin in a folder, whatever it was called; returns whether it was trusted.
    ///
    /// # Errors
    /// As for `trust`.
    pub fn untrust_folder(&mut self, root: &Path) -> Result<bool, StoreError> {
        // Its place alone is what it is known by.
        self.untrust(&Subject::Plugin { name: "", root, command: "" })
    }

    /// Returns the folders directly in this one that something was said about, whether they are still there or not.
    pub fn plugins_in(&self, folder: &Path) -> Vec<PathBuf> {
        let stored = self.stored.as_ref().ok();
        let roots = stored.into_iter().flat_map(|stored| stored.plugins.keys()).map(PathBuf::from);
        roots.filter(|root| root.parent() == Some(folder)).collect()
    }

    fn put(&mut self, subject: &Subject, print: &Fingerprint) -> Result<(), StoreError> {
        let command = subject.command().map(str::to_owned);
        let entry = Entry { hash: print.hash.clone(), command };
        self.change(|stored| drop(stored.table_mut(subject).insert(subject.key(), entry)))
    }

    fn change(&mut self, change: impl FnOnce(&mut Stored)) -> Result<(), StoreError> {
        let path = self.folder.join(FILE);
        let failed =
            |error: io::Error| StoreError::Unwritable { path: path.clone(), reason: error.to_string() };
        // Sessions are private, and they stand in the same folder.
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        let lock = private().truncate(false).open(self.folder.join(LOCK)).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut stored = match read(&path) {
            Err(StoreError::Broken { .. }) => Stored::default(),
            other => other?,
        };
        change(&mut stored);
        stored.version = VERSION;
        write(&self.folder, &stored).map_err(failed)?;
        self.stored = Ok(stored);
        Ok(())
    }
}

fn read(path: &Path) -> Result<Stored, StoreError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Stored::default()),
        Err(error) => {
            return Err(StoreError::Unreadable { path: path.to_owned(), reason: error.to_string() });
        }
    };
    let broken = |reason: String| StoreError::Broken { path: path.to_owned(), reason };
    let value: Value = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
    // The version first: what a newer one holds need not fit.
    match value.get("version").and_then(Value::as_u64) {
        Some(VERSION) => serde_json::from_value(value).map_err(|error| broken(error.to_string())),
        Some(version) if version > VERSION => Err(StoreError::Newer { path: path.to_owned(), version }),
        _ => Err(broken("it has no version".to_owned())),
    }
}

/// Writes the file so that a power cut leaves the old one or the new one.
fn write(folder: &Path, stored: &Stored) -> io::Result<()> {
    let temporary = folder.join(TEMPORARY);
    let mut text = serde_json::to_vec_pretty(stored)?;
    text.push(b'\n');
    let mut file = private().truncate(true).open(&temporary)?;
    file.write_all(&text)?;
    file.sync_all()?;
    std::fs::rename(&temporary, folder.join(FILE))?;
    File::open(folder)?.sync_all()
}

/// Opens files that are their owner's alone.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn settings() -> Subject<'static> {
        Subject::Settings { project: Path::new("/project") }
    }

    fn plugin(command: &str) -> Subject<'_> {
        Subject::Plugin { name: "a", root: Path::new("/project/.bingo/plugins/a"), command }
    }

    fn print(hash: &str) -> Fingerprint {
        Fingerprint { hash: hash.to_owned(), files: 1, bytes: 1 }
    }

    fn words(result: Result<(), Untrusted>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn what_was_trusted_is_trusted_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("new/data");
        let mut store = TrustStore::open(&data);
        let never =
            "it comes with the project and was never trusted; look at it, then run `bingo plugin trust a`";
        assert_eq!(words(store.check(&plugin("run"), &print("1"))), never);
        store.trust(&plugin("run"), &print("1")).unwrap();
        let store = TrustStore::open(&data);
        store.check(&plugin("run"), &print("1")).unwrap();
        let changed = "it changed since it was trusted; look at it again, then run `bingo plugin trust a`";
        assert_eq!(words(store.check(&plugin("run"), &print("2"))), changed);
        let other = "its command is `go` here, and it was trusted with `run`; look at it again, then run `bingo plugin trust a`";
        assert_eq!(words(store.check(&plugin("go"), &print("2"))), other);
        assert!(store.check(&settings(), &print("1")).is_err(), "a plugin is not its project");
        assert_eq!(data.join(FILE).metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(data.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!data.join(TEMPORARY).exists());
    }

    #[test]
    fn untrusting_forgets_and_changes_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (TrustStore::open(folder.path()), TrustStore::open(folder.path()));
        one.trust(&settings(), &print("1")).unwrap();
        other.trust(&plugin("run"), &print("2")).unwrap();
        other.check(&settings(), &print("1")).unwrap();
        assert!(one.untrust(&settings()).unwrap());
        assert!(!one.untrust(&settings()).unwrap());
        one.check(&plugin("run"), &print("2")).unwrap();
        assert_eq!(one.plugins_in(Path::new("/project/.bingo/plugins")).len(), 1);
        assert!(one.plugins_in(Path::new("/project")).is_empty());
    }

    #[test]
    fn a_broken_file_trusts_nothing_and_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", r#"{"version":1}"#, r#"{"version":0,"plugins":{},"settings":{}}"#] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            let mut store = TrustStore::open(folder.path());
            let notice = store.notice().unwrap();
            assert_eq!(notice.code, "TRUST_UNREADABLE");
            assert!(notice.text.contains("trust.json is broken ("), "{}", notice.text);
            assert!(matches!(store.check(&settings(), &print("1")), Err(Untrusted::Store(_))), "{text}");
            store.trust(&settings(), &print("1")).unwrap();
            assert!(TrustStore::open(folder.path()).check(&settings(), &print("1")).is_ok());
        }
    }

    #[test]
    fn a_newer_file_is_refused_and_left_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"version":2,"plugins":[]}"#;
        std::fs::write(folder.path().join(FILE), text).unwrap();
        let mut store = TrustStore::open(folder.path());
        let error = store.trust(&settings(), &print("1")).unwrap_err();
        assert!(error.to_string().contains("is of version 2, this bingo reads 1"), "{error}");
        assert!(store.untrust(&settings()).is_err());
        assert!(store.check(&settings(), &print("1")).is_err());
        assert!(store.notice().unwrap().text.contains("version 2"));
        assert_eq!(std::fs::read_to_string(folder.path().join(FILE)).unwrap(), text);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("data"), "").unwrap();
        let mut store = TrustStore::open(&folder.path().join("data"));
        let error = store.trust(&settings(), &print("1")).unwrap_err().to_string();
        assert!(error.starts_with("cannot ") && error.contains("data/trust.json: "), "{error}");
    }
}
