//! What a call is about, read from the fields of its input that tools commonly have: a command, paths, addresses.
//!
//! The wire says nothing of it: plugin tools are untrusted, and so is what they would say of themselves.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

/// Fields that hold a path, or several.
const PATHS: [&str; 7] =
    ["path", "paths", "file_path", "filePath", "notebook_path", "notebookPath", "directory"];
/// Fields that hold an address, or several.
const URLS: [&str; 2] = ["url", "urls"];
/// The field that holds a shell command.
const COMMAND: &str = "command";

/// What a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kernel) enum Subject {
    /// A shell command.
    Command(String),
    Path(Place),
    /// The host of an address, in lower case.
    Host(String),
    /// An address that cannot be read.
    NoHost(String),
}

/// A path in a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kernel) struct Place {
    /// As it was written.
    written: String,
    /// Absolute, without `.` and `..`.
    pub(super) absolute: PathBuf,
    /// Where it leads, links followed.
    pub(super) real: PathBuf,
}

impl Subject {
    /// Returns it as a person reads it.
    pub(super) fn shown(&self) -> &str {
        match self {
            Self::Command(command) => command,
            Self::Path(place) => &place.written,
            Self::Host(host) | Self::NoHost(host) => host,
        }
    }
}

/// Returns what a call with this input is about. It looks at links on the disk, so it must not run where nobody may wait.
pub(in crate::kernel) fn subjects(input: &Value, cwd: &Path) -> Vec<Subject> {
    let Value::Object(fields) = input else { return Vec::new() };
    let mut subjects = Vec::new();
    subjects
        .extend(fields.get(COMMAND).and_then(Value::as_str).map(|text| Subject::Command(text.to_owned())));
    for text in PATHS.iter().filter_map(|key| fields.get(*key)).flat_map(texts) {
        subjects.push(Subject::Path(place(text, cwd)));
    }
    subjects.extend(URLS.iter().filter_map(|key| fields.get(*key)).flat_map(texts).map(host));
    subjects
}

/// Returns a text, or the texts of a list.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn place(written: &str, cwd: &Path) -> Place {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    let path = match written.strip_prefix("~/").zip(home()) {
        Some((rest, home)) => home.join(rest),
        None => cwd.join(written),
    };
    let absolute = lexical(&path);
    let real = real(&path).unwrap_or_else(|| absolute.clone());
    Place { written: written.to_owned(), absolute, real }
}

/// Returns a path without `.` and `..`, as it reads.
pub(super) fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(clean.pop()),
            part => clean.push(part),
        }
    }
    clean
}

/// Returns where a path leads; the last parts of it may not be there yet.
fn real(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|there| {
        let real = there.canonicalize().ok()?;
        Some(lexical(&real.join(path.strip_prefix(there).ok()?)))
    })
}

/// Returns the host of an address: what stands between the scheme, or a name before `@`, and the port or the path.
fn host(url: &str) -> Subject {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let named = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match named.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or_default(),
        None => named.split(':').next().unwrap_or_default(),
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-.:_".contains(letter);
    if !host.is_empty() && host.chars().all(fits) {
        Subject::Host(host)
    } else {
        Subject::NoHost(url.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    fn paths(input: Value, cwd: &Path) -> Vec<(PathBuf, PathBuf)> {
        let places = subjects(&input, cwd).into_iter().map(|subject| match subject {
            Subject::Path(place) => (place.absolute, place.real),
            other => panic!("{other:?} is no path"),
        });
        places.collect()
    }

    #[test]
    fn paths_are_absolute_and_followed() {
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path().canonicalize().unwrap();
        symlink("/etc", cwd.join("link")).unwrap();
        let same = |path: &str| (PathBuf::from(path), PathBuf::from(path));
        let inside = |path: &str| (cwd.join(path), cwd.join(path));
        for (written, expected) in [
            ("a/b", inside("a/b")),
            ("./a/../b", inside("b")),
            ("/tmp/../etc/x", same("/etc/x")),
            ("", inside("")),
            ("link/none", (cwd.join("link/none"), PathBuf::from("/etc/none"))),
            // The system goes up from where the link leads.
            ("link/../x", (cwd.join("x"), PathBuf::from("/x"))),
        ] {
            assert_eq!(paths(json!({ "path": written }), &cwd), [expected], "{written}");
        }
        assert_eq!(paths(json!({ "paths": ["a", 1, "b"], "file_path": "c" }), &cwd).len(), 3);
    }

    #[test]
    fn hosts_are_read_out_of_addresses() {
        for (url, host) in [
            ("https://Example.com/a", "example.com"),
            ("http://user:pass@example.com:8080?x", "example.com"),
            ("https://evil.com\\@example.com", "evil.com"),
            ("https://example.com@evil.com/", "evil.com"),
            ("example.com.", "example.com"),
            ("http://[::1]:80/", "::1"),
        ] {
            assert_eq!(
                subjects(&json!({ "url": url }), Path::new("/")),
                [Subject::Host(host.to_owned())],
                "{url}"
            );
        }
        for url in ["", "https://", "https://exa mple.com", "https://ex%61mple.com"] {
            let subjects = subjects(&json!({ "url": url }), Path::new("/"));
            assert_eq!(subjects, [Subject::NoHost(url.to_owned())]);
        }
    }

    #[test]
    fn an_input_without_such_fields_is_about_nothing() {
        for input in [json!("ls"), json!({}), json!({ "text": "a", "command": ["ls"] }), json!(null)] {
            assert_eq!(subjects(&input, Path::new("/")), []);
        }
        let command = subjects(&json!({ "command": "ls -l" }), Path::new("/"));
        assert_eq!(command, [Subject::Command("ls -l".to_owned())]);
    }
}
