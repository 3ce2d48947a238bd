//! Sets or takes out one value of a settings file and leaves the rest of it, comments and order included, as it was.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use toml_edit::{Document, InlineTable, Item, Key, Table, TableLike, Value};

/// What some editors of other systems begin a file with.
const MARK: char = '\u{feff}';

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
    let value = value.into();
    change(path, |text| with(text, keys, value))
}

/// Takes out the value at a path of keys. A file without it stays as it is.
///
/// # Errors
/// As `set`.
pub fn remove(path: &Path, keys: &[&str]) -> Result<(), EditError> {
    change(path, |text| without(text, keys))
}

/// Replaces a file by what becomes of its text, unless nothing does.
fn change(path: &Path, edit: impl FnOnce(&str) -> Result<String, Unfit>) -> Result<(), EditError> {
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
    let fresh = edit(&text).map_err(|error| match error {
        Unfit::Parse(source) => EditError::Parse { path: path.to_owned(), source },
        Unfit::NoTable(key) => EditError::NoTable { path: path.to_owned(), key },
    })?;
    if fresh == text { Ok(()) } else { replace(&real, &fresh).map_err(failed) }
}

/// Why a text is not changed.
enum Unfit {
    Parse(Box<toml_edit::TomlError>),
    NoTable(String),
}

/// Returns the text with the value set. What is not the value stays to the byte, but where a key comes into a table that is
/// there already: then comments and order stay.
fn with(text: &str, keys: &[&str], value: Value) -> Result<String, Unfit> {
    let [tables @ .., last] = keys else { return Ok(text.to_owned()) };
    let document = parse(text)?;
    match find(document.as_table(), tables)? {
        Some(table) => match table.get(last).and_then(Item::span) {
            Some(span) => Ok(format!("{}{value}{}", &text[..span.start], &text[span.end..])),
            None => Ok(inserted(document, keys, value)),
        },
        None => Ok(appended(text, keys, &value).unwrap_or_else(|| inserted(document, keys, value))),
    }
}

/// Returns the text without the value: without its line where it has one of its own, comment included.
fn without(text: &str, keys: &[&str]) -> Result<String, Unfit> {
    let [tables @ .., last] = keys else { return Ok(text.to_owned()) };
    let document = parse(text)?;
    let Some((key, value)) = find(document.as_table(), tables)?.and_then(|table| table.get_key_value(last))
    else {
        return Ok(text.to_owned());
    };
    if let Some((key, value)) = key.span().zip(value.span())
        && let Some(line) = own_line(text, key.start..value.end)
    {
        return Ok(format!("{}{}", &text[..line.start], &text[line.end..]));
    }
    let mut document = document.into_mut();
    let mut at: &mut dyn TableLike = document.as_table_mut();
    for key in tables {
        match at.get_mut(key).and_then(Item::as_table_like_mut) {
            Some(table) => at = table,
            // `find` has found it.
            None => return Ok(text.to_owned()),
        }
    }
    at.remove(last);
    Ok(written(text, &document.to_string()))
}

/// Returns the lines of a key and its value, if nothing else stands there but a comment behind it.
fn own_line(text: &str, pair: Range<usize>) -> Option<Range<usize>> {
    let start = text[..pair.start].rfind('\n').map_or(0, |end| end + 1);
    let end = text[pair.end..].find('\n').map_or(text.len(), |end| pair.end + end + 1);
    let (before, behind) = (&text[start..pair.start], text[pair.end..end].trim());
    (before.trim().is_empty() && (behind.is_empty() || behind.starts_with('#'))).then_some(start..end)
}

fn parse(text: &str) -> Result<Document<&str>, Unfit> {
    Document::parse(text).map_err(|error| Unfit::Parse(Box::new(error)))
}

/// Returns the table at a path of keys; nothing when it is not there.
fn find<'a>(top: &'a Table, keys: &[&str]) -> Result<Option<&'a dyn TableLike>, Unfit> {
    let mut table: &dyn TableLike = top;
    for (depth, key) in keys.iter().enumerate() {
        let Some(item) = table.get(key) else { return Ok(None) };
        table = item.as_table_like().ok_or_else(|| Unfit::NoTable(keys[..=depth].join(".")))?;
    }
    Ok(Some(table))
}

/// Returns the text with a table of its own for the value behind everything else; nothing where that would not be TOML,
/// because a part of the table stands in braces.
fn appended(text: &str, keys: &[&str], value: &Value) -> Option<String> {
    let [tables @ .., last] = keys else { return None };
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut fresh = text.to_owned();
    if !(text.is_empty() || text.ends_with('\n')) {
        fresh.push_str(end);
    }
    if !text.is_empty() {
        fresh.push_str(end);
    }
    let header: Vec<String> = tables.iter().map(|key| Key::new(*key).to_string()).collect();
    fresh.push_str(&format!("[{}]{end}{} = {value}{end}", header.join("."), Key::new(*last)));
    Document::parse(fresh.as_str()).is_ok().then_some(fresh)
}

/// Returns the document with the value put into its table, which may have to be made.
fn inserted(document: Document<&str>, keys: &[&str], value: Value) -> String {
    let text = document.raw().to_owned();
    let mut document = document.into_mut();
    let [tables @ .., last] = keys else { return text };
    let mut at: &mut dyn TableLike = document.as_table_mut();
    for key in tables {
        let made = at.entry(key).or_insert_with(|| Item::Value(Value::InlineTable(InlineTable::new())));
        match made.as_table_like_mut() {
            Some(table) => at = table,
            // `find` has refused it.
            None => return text,
        }
    }
    at.insert(last, Item::Value(value));
    written(&text, &document.to_string())
}

/// Returns a fresh text with the line ends and the mark of the old one.
fn written(old: &str, fresh: &str) -> String {
    let mut fresh = fresh.to_owned();
    if old.contains("\r\n") {
        fresh = fresh.replace("\r\n", "\n").replace('\n', "\r\n");
    }
    if old.starts_with(MARK) { format!("{MARK}{fresh}") } else { fresh }
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
    fn line_ends_and_comments_stay_where_they_are() {
        let text = "\u{feff}model = 'a'\r\n# provider = 'b'\r\n";
        let set = format!("{text}\r\n[supervisor.p]\r\nenabled = false\r\n");
        assert_eq!(edited(text, &KEYS, false).unwrap(), set);
        assert_eq!(edited(&set, &KEYS, true).unwrap(), set.replace("= false", "= true"));
        let other = "[supervisor.p]\r\nenv = []\r\n# last\r\n[x]\r\n";
        let set = edited(other, &KEYS, false).unwrap();
        assert!(set.starts_with("[supervisor.p]\r\nenv = []\r\nenabled = false\r\n# last\r\n[x]"), "{set:?}");
        let braces = "supervisor = { q = { enabled = true } } # mine\n";
        let set = edited(braces, &KEYS, false).unwrap();
        assert!(
            set.contains("p") && set.ends_with("# mine\n") && set.parse::<toml::Table>().is_ok(),
            "{set}"
        );
    }

    #[test]
    fn what_is_no_table_or_no_toml_is_left_alone_in_words() {
        let error = edited("supervisor = 3\n", &KEYS, true).unwrap_err().to_string();
        assert!(error.starts_with("`supervisor` in ") && error.contains("is no table"), "{error}");
        assert!(matches!(edited("not toml", &KEYS, true), Err(EditError::Parse { .. })));
    }

    #[test]
    fn a_value_that_is_taken_out_leaves_the_rest() {
        let taken = |text: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("settings.toml");
            fs::write(&path, text).unwrap();
            remove(&path, &KEYS).unwrap();
            fs::read_to_string(&path).unwrap()
        };
        let text = "# mine\nmodel = 'a'\n[supervisor.p]\n# above\nenabled = true # for now\nenv = ['A']\n";
        assert_eq!(taken(text), text.replace("enabled = true # for now\n", ""));
        assert_eq!(taken("supervisor.p.enabled = true # x\nmodel = 'a'\n").trim(), "model = 'a'");
        let inline = taken("supervisor.p = { enabled = true, env = [] }\nmodel = 'a'\n");
        assert_eq!(
            inline.parse::<toml::Table>().unwrap(),
            "supervisor.p.env = []\nmodel = 'a'".parse().unwrap()
        );
        for text in ["", "model = 'a'", "[supervisor.p]\nenv = []\r\n"] {
            assert_eq!(taken(text), text, "what has none stays as it was");
        }
        assert!(matches!(remove(Path::new("/dev/null/x"), &KEYS), Err(EditError::Io { .. })));
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
