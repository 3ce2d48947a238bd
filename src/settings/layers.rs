//! Tables of settings laid over each other, and from which of them each value is.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::ports::Notice;

/// The settings as they count, value by value.
#[derive(Debug)]
pub struct Explained {
    /// In the order of their keys.
    pub entries: Vec<Entry>,
    /// What is wrong with the files.
    pub notices: Vec<Notice>,
}

/// A value that some file sets.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The path of keys to it.
    pub keys: Vec<String>,
    pub value: Value,
    /// The file that it is from; for a list that files add to, each of them, the lowest first.
    pub from: Vec<PathBuf>,
}

impl Entry {
    /// Returns the path of keys as one word.
    pub fn key(&self) -> String {
        self.keys.join(".")
    }

    /// Returns the value as it may be written, on one line.
    pub fn shown(&self) -> String {
        serde_json::to_string(&self.value).unwrap_or_default()
    }
}

/// What files set, the lowest first.
#[derive(Debug, Default)]
pub(super) struct Layers(Vec<(PathBuf, Table)>);

impl Layers {
    /// Lays a table over those that are there.
    pub(super) fn lay(&mut self, path: PathBuf, table: Table) {
        self.0.push((path, table));
    }

    /// Returns the files, the lowest first.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(path, _)| path.as_path())
    }

    /// Returns what they come to.
    pub(super) fn merged(&self) -> Table {
        let mut merged = Table::new();
        self.0.iter().for_each(|(_, table)| merge(&mut merged, table.clone(), &mut Vec::new()));
        merged
    }

    /// Returns each value of what they come to, with where it is from.
    pub(super) fn entries(&self, merged: &Table) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.collect(merged, &mut Vec::new(), &mut entries);
        entries
    }

    fn collect(&self, table: &Table, keys: &mut Vec<String>, entries: &mut Vec<Entry>) {
        for (key, value) in table {
            keys.push(key.clone());
            match value {
                Value::Table(table) if !table.is_empty() => self.collect(table, keys, entries),
                value => {
                    let (keys, value) = (keys.clone(), value.clone());
                    let set = self.0.iter().filter(|(_, table)| is_set(table, &keys));
                    let mut from: Vec<PathBuf> = set.map(|(path, _)| path.clone()).collect();
                    if !is_accumulated(&keys) {
                        from.drain(..from.len().saturating_sub(1));
                    }
                    entries.push(Entry { keys, value, from });
                }
            }
            keys.pop();
        }
    }
}

/// Returns whether there is a value at a path of keys.
fn is_set(table: &Table, keys: &[String]) -> bool {
    match keys {
        [] => true,
        [last] => table.contains_key(last),
        [first, rest @ ..] => {
            table.get(first).and_then(Value::as_table).is_some_and(|table| is_set(table, rest))
        }
    }
}

/// Lists that each file adds to: a lower one cannot be taken back by leaving it out.
const ACCUMULATED: [[&str; 2]; 3] =
    [["permissions", "allow"], ["permissions", "deny"], ["permissions", "ask"]];

fn is_accumulated<T: AsRef<str>>(keys: &[T]) -> bool {
    ACCUMULATED.iter().any(|list| list.iter().copied().eq(keys.iter().map(AsRef::as_ref)))
}

/// Lays `upper`, which stands at these keys, over `lower`, table by table at every depth; of a list that accumulates the first copy
/// of each entry stays, anything else is replaced (kernel rule 8.4.22).
fn merge(lower: &mut Table, upper: Table, keys: &mut Vec<String>) {
    for (key, value) in upper {
        keys.push(key.clone());
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(lower)), Value::Table(upper)) => merge(lower, upper, keys),
            (Some(Value::Array(lower)), Value::Array(upper)) if is_accumulated(keys) => {
                let fresh: Vec<Value> = upper.into_iter().filter(|entry| !lower.contains(entry)).collect();
                lower.extend(fresh);
            }
            (_, value) => drop(lower.insert(key, value)),
        }
        keys.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 8.4.22.
    #[test]
    fn each_value_is_of_the_highest_file_that_sets_it() {
        let mut layers = Layers::default();
        for (path, text) in [
            (
                "user",
                "model = 'a'\nthinking = 'low'\n[permissions]\nask = ['a', 'b']\n[plugins.x]\none = [1]\ntwo = 2\n[plugins.y]\n",
            ),
            ("project", "model = 'b'\n[permissions]\nask = ['c', 'a']\n[plugins.x]\none = [2]\ntwo = 3"),
        ] {
            layers.lay(path.into(), text.parse().unwrap());
        }
        let merged = layers.merged();
        let entries = layers.entries(&merged);
        let said: Vec<String> = entries
            .iter()
            .map(|entry| format!("{} = {} {:?}", entry.key(), entry.shown(), entry.from))
            .collect();
        assert_eq!(
            said,
            [
                r#"model = "b" ["project"]"#,
                r#"permissions.ask = ["a","b","c"] ["user", "project"]"#,
                r#"plugins.x.one = [2] ["project"]"#,
                r#"plugins.x.two = 3 ["project"]"#,
                r#"plugins.y = {} ["user"]"#,
                r#"thinking = "low" ["user"]"#,
            ]
        );
    }
}
