//! Rules: which calls they speak of (kernel rule 8.5.29).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use glob::{MatchOptions, Pattern};

use super::shell;
use super::subject::{Place, Subject, lexical};

/// What divides server, plugin and tool in a tool's name.
const DIVIDER: &str = "__";
/// First parts of names that stand for all tools of a server or a plugin.
const FAMILIES: [&str; 2] = ["mcp", "plugin"];
/// How a path pattern matches: `*` stays within a folder, `**` does not.
const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// A rule as it is written: `TOOL`, or `TOOL(WHAT)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    text: String,
    tool: String,
    what: Option<What>,
}

/// What of a tool's calls a rule speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    /// Commands that begin with these words, and paths below or like this.
    Like { words: Vec<String>, path: String },
    /// Commands that begin with these words.
    Command(Vec<String>),
    /// An address of this host; with `true`, of one below it.
    Host(String, bool),
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let unreadable = |why: &str| {
            format!(
                "`{text}` is no rule: {why}; rules are `TOOL`, `TOOL(words:*)`, `TOOL(src/**)` and `TOOL(domain:HOST)`"
            )
        };
        let (tool, what) = match text.split_once('(') {
            Some((tool, rest)) => {
                let inside =
                    rest.strip_suffix(')').ok_or_else(|| unreadable("its parenthesis is not closed"))?;
                (tool, Some(What::parse(inside).map_err(|why| unreadable(&why))?))
            }
            None => (text, None),
        };
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "_-.:".contains(letter);
        if tool.is_empty() || !tool.chars().all(fits) {
            return Err(unreadable("it does not begin with a tool's name"));
        }
        Ok(Self { text: text.to_owned(), tool: tool.to_owned(), what })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl What {
    fn parse(inside: &str) -> Result<Self, String> {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        if inside.trim().is_empty() {
            return Err("there is nothing between its parentheses".to_owned());
        }
        if let Some(host) = inside.strip_prefix("domain:") {
            let (host, below) = host.strip_prefix("*.").map_or((host, false), |host| (host, true));
            let fits = |letter: char| letter.is_ascii_alphanumeric() || "-.:_".contains(letter);
            if host.is_empty() || !host.chars().all(fits) {
                return Err(format!("`{host}` is no host"));
            }
            return Ok(Self::Host(host.to_ascii_lowercase(), below));
        }
        if let Some(prefix) = inside.strip_suffix(":*") {
            return match words(prefix) {
                none if none.is_empty() => Err("no words stand before `:*`".to_owned()),
                words => Ok(Self::Command(words)),
            };
        }
        Pattern::new(inside).map_err(|error| error.msg.to_owned())?;
        Ok(Self::Like { words: words(inside), path: inside.to_owned() })
    }

    /// Returns whether it speaks of all there is in a subject.
    fn covers(&self, subject: &Subject, cwd: &Path) -> bool {
        match (self, subject) {
            (Self::Like { words, .. } | Self::Command(words), Subject::Command(command)) => {
                shell::all_begin_with(command, &borrowed(words))
            }
            (Self::Like { path, .. }, Subject::Path(Place { absolute, real, .. })) => {
                is_like(path, absolute, cwd) && is_like(path, real, cwd)
            }
            (Self::Host(wanted, below), Subject::Host(host)) => is_host(host, wanted, *below),
            _ => false,
        }
    }

    /// Returns whether it speaks of anything in a subject. What it cannot read might be what it speaks of.
    fn touches(&self, subject: &Subject, cwd: &Path) -> bool {
        match (self, subject) {
            (Self::Like { words, .. } | Self::Command(words), Subject::Command(command)) => {
                shell::any_begins_with(command, &borrowed(words))
            }
            (Self::Like { path, .. }, Subject::Path(Place { absolute, real, .. })) => {
                is_like(path, absolute, cwd) || is_like(path, real, cwd)
            }
            (Self::Host(wanted, below), Subject::Host(host)) => is_host(host, wanted, *below),
            (Self::Host(..), Subject::NoHost(_)) => true,
            _ => false,
        }
    }
}

impl Rule {
    /// Returns whether this allows the call: it speaks of everything that the call is about.
    pub(super) fn allows(&self, tool: &str, subjects: &[Subject], cwd: &Path) -> bool {
        self.is_for(tool)
            && self.what.as_ref().is_none_or(|what| {
                !subjects.is_empty() && subjects.iter().all(|subject| what.covers(subject, cwd))
            })
    }

    /// Returns whether this stops the call: it speaks of anything that the call is about. Where nobody knows what a call is
    /// about it may be just that.
    pub(super) fn stops(&self, tool: &str, subjects: &[Subject], cwd: &Path) -> bool {
        self.is_for(tool)
            && self.what.as_ref().is_none_or(|what| {
                subjects.is_empty() || subjects.iter().any(|subject| what.touches(subject, cwd))
            })
    }

    /// Returns whether it is about this tool, by its name or by that of its server or plugin.
    fn is_for(&self, tool: &str) -> bool {
        let is_family = || {
            let mut parts = self.tool.split(DIVIDER);
            parts.next().is_some_and(|first| FAMILIES.contains(&first)) && parts.count() == 1
        };
        match tool.strip_prefix(self.tool.as_str()) {
            Some("") => true,
            Some(rest) => rest.starts_with(DIVIDER) && is_family(),
            None => false,
        }
    }
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn is_host(host: &str, wanted: &str, below: bool) -> bool {
    match below {
        true => host.strip_suffix(wanted).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        false => host == wanted,
    }
}

/// Returns whether a path is like a pattern, which may begin with `~/` and counts from `cwd`; or below it, where it is no
/// pattern.
fn is_like(pattern: &str, path: &Path, cwd: &Path) -> bool {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    // What stands before the first wildcard is a path like any other; the names of `cwd` are no pattern.
    let (base, pattern) = match (pattern.strip_prefix("~/").zip(home()), pattern.strip_prefix('/')) {
        (Some((rest, home)), _) => (home, rest),
        (None, Some(rest)) => (PathBuf::from("/"), rest),
        (None, None) => (cwd.to_owned(), pattern),
    };
    if !pattern.contains(['*', '?', '[']) {
        return path.starts_with(lexical(&base.join(pattern)));
    }
    let pattern = lexical(Path::new(pattern));
    let rest = path.strip_prefix(&base);
    rest.is_ok_and(|rest| {
        Pattern::new(&pattern.to_string_lossy()).is_ok_and(|like| like.matches_path_with(rest, OPTIONS))
    })
}

#[cfg(test)]
mod tests;
