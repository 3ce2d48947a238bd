//! Changes one value of a settings file and leaves the rest of it, comments and order included, as it was.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, Table, Value};

/// Why a settings file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error("cannot change the settings file {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the settings file {} is not TOML, so it is not changed", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: Box<toml_edit::TomlError>,
    },
    #[error("`{key}` in {} is no table, so nothing can be set below it", path.display())]
    NoTable { path: PathBuf, key: String },
}

/// Sets the value at a path of keys; a missing file, and missing tables, are made. The file is replaced as a whole.
///
/// # Errors
/// When the file cannot be read or written, is not TOML, or has something else where a table is needed.
pub fn set(path: &Path, keys: &[&str], value: impl Into<Value>) -> Result<(), EditError> {
    let failed = |source| EditError::Io { path: path.to_owned(), source };
    // The file may be a link: then what it leads to is changed, not the link.
    let real = match fs::canonicalize(path) {
        Err(error) if path.is_symlink() => return Err(failed(error)),
        real => real.unwrap_or_else(|_| path.to_owned()),
    };
    // Two who change it at once would lose what one of them said.
    let _alone = lock_folder(&real).map_err(failed)?;
    let text = match fs::read_to_string(&real) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.map_err(failed)?,
    };
    let parsed = text.parse::<DocumentMut>();
    let mut document =
        parsed.map_err(|error| EditError::Parse { path: path.to_owned(), source: Box::new(error) })?;
    place(document.as_table_mut(), keys, value.into())
        .map_err(|key| EditError::NoTable { path: path.to_owned(), key })?;
    replace(&real, &document.to_string()).map_err(failed)
}

/// Puts the value there; returns the key that is no table.
fn place(table: &mut Table, keys: &[&str], value: Value) -> Result<(), String> {
    let [tables @ .., last] = keys else { return Ok(()) };
    let mut at: &mut dyn toml_edit::TableLike = table;
    for (depth, key) in tables.iter().enumerate() {
        let fresh = || {
            // `[a.b]` needs no line `[a]` above it.
            let mut table = Table::new();
            table.set_implicit(depth + 1 < tables.len());
            Item::Table(table)
        };
        let item = at.entry(key).or_insert_with(fresh);
        at = item.as_table_like_mut().ok_or_else(|| keys[..=depth].join("."))?;
    }
    match at.get_mut(last).and_then(Item::as_value_mut) {
        Some(old) => {
            // What stands beside it, a comment for example, stays.
            let mut value = value;
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        None => drop(at.insert(last, Item::Value(value))),
    }
    Ok(())
}

/// Takes the sole right to change files in the folder of this one, among those who ask; it ends when it is dropped.
fn lock_folder(path: &Path) -> io::Result<File> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let handle = File::open(folder)?;
    handle.lock()?;
    Ok(handle)
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mode = fs::metadata(path).map_or(0o600, |about| about.permissions().mode());
    let temporary = path.with_extension("toml.fresh");
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // What could not be written whole is of no use.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, keys: &[&str], value: bool) -> Result<String, EditError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.toml");
        fs::write(&path, text).unwrap();
        set(&path, keys, value)?;
        Ok(fs::read_to_string(&path).unwrap())
    }

    const KEYS: [&str; 3] = ["supervisor", "p", "enabled"];

    #[test]
    fn the_rest_of_the_file_stays_as_it_was() {
        let text =
            "# mine\nmodel = 'a' # this one\n\n[supervisor.p]\nenabled = true # for now\nenv = ['A']\n";
        assert_eq!(edited(text, &KEYS, false).unwrap(), text.replace("true #", "false #"));
        let inline = "supervisor.p = { enabled = true }\n";
        assert_eq!(edited(inline, &KEYS, false).unwrap(), inline.replace("true", "false"));
    }

    #[test]
    fn what_is_missing_is_made() {
        assert_eq!(edited("", &KEYS, true).unwrap(), "[supervisor.p]\nenabled = true\n");
        let text = "model = 'a'\n[supervisor.q]\nenabled = true\n";
        assert_eq!(edited(text, &KEYS, false).unwrap(), format!("{text}\n[supervisor.p]\nenabled = false\n"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none/settings.toml");
        set(&path, &KEYS, true).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_is_no_table_or_no_toml_is_left_alone_in_words() {
        let error = edited("supervisor = 3\n", &KEYS, true).unwrap_err().to_string();
        assert!(error.starts_with("`supervisor` in ") && error.contains("is no table"), "{error}");
        assert!(matches!(edited("not toml", &KEYS, true), Err(EditError::Parse { .. })));
    }

    #[test]
    fn changes_at_the_same_time_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.toml");
        std::thread::scope(|scope| {
            for number in 0..16 {
                let path = &path;
                scope.spawn(move || {
                    set(path, &["supervisor", &format!("p{number}"), "enabled"], false).unwrap()
                });
            }
        });
        assert_eq!(fs::read_to_string(&path).unwrap().matches("enabled = false").count(), 16);
    }

    #[test]
    fn a_link_that_leads_nowhere_stays() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("settings.toml");
        std::os::unix::fs::symlink("none/real.toml", &link).unwrap();
        assert!(matches!(set(&link, &KEYS, true), Err(EditError::Io { .. })));
        assert!(link.is_symlink());
    }

    #[test]
    fn a_link_stays_a_link_and_the_mode_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.toml"), folder.path().join("settings.toml"));
        fs::write(&real, "").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        set(&link, &KEYS, true).unwrap();
        assert!(link.is_symlink());
        assert!(fs::read_to_string(&real).unwrap().contains("enabled = true"));
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    }
}
