//! The permission policy: may this call run, must a person be asked, or is it refused?
//!
//! `rule` says which calls a rule speaks of, `subject` what a call is about, `shell` takes commands apart, `answer` is the
//! question and what fits it. Plugin tools are untrusted, neither read-only nor edits (plugin-behaviour rule 54), so the mode
//! decides about all of them alike. A policy is owned by one session; its session rules and mode live in memory.

mod answer;
mod mode;
mod rule;
mod shell;
mod subject;

use std::path::{Path, PathBuf};

use bingo_plugin_sdk::view::View;
use serde_json::{Value, json};

pub(super) use answer::{Asked, check_answer};
pub use mode::PermissionMode;
pub use rule::Rule;
pub(super) use subject::{Subject, subjects};

/// The key under which the policy describes itself in a session's `ConfigView`.
pub(super) const POLICY_ID: &str = "bingo.permissions";
/// Folders in which tools keep what decides about other programs.
const GUARDED: [&str; 4] = [".git", ".claude", ".vscode", ".idea"];

/// The rules of the settings and the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    pub allow: Vec<Rule>,
    pub deny: Vec<Rule>,
    pub ask: Vec<Rule>,
}

/// What the policy says of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stance {
    Allow,
    Deny {
        reason: String,
    },
    /// A person decides; `scope` is the rule that an `allowSession` answer installs, where one would help.
    Ask {
        scope: Option<String>,
    },
}

/// The policy of one session.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    pub(super) mode: PermissionMode,
    rules: Rules,
    session: Vec<Rule>,
    /// The session's directory, from which patterns count.
    cwd: PathBuf,
}

impl Policy {
    /// Returns a policy without session rules.
    pub(super) fn new(mode: PermissionMode, rules: Rules, cwd: &Path) -> Self {
        Self { mode, rules, session: Vec::new(), cwd: cwd.to_owned() }
    }

    /// Says what shall become of a call; the first rung that speaks decides (kernel rule 8.5.27).
    pub(super) fn stance(&self, tool: &str, subjects: &[Subject]) -> Stance {
        match self.verdict(tool, subjects) {
            Stance::Ask { .. } if self.mode == PermissionMode::DontAsk => {
                let reason = "no rule allows it, and in dontAsk mode nobody is asked";
                Stance::Deny { reason: reason.to_owned() }
            }
            Stance::Ask { .. } => Stance::Ask { scope: self.scope(tool, subjects) },
            decided => decided,
        }
    }

    fn verdict(&self, tool: &str, subjects: &[Subject]) -> Stance {
        let ask = Stance::Ask { scope: None };
        let stops = |rule: &&Rule| rule.stops(tool, subjects, &self.cwd);
        if let Some(rule) = self.rules.deny.iter().find(stops) {
            return Stance::Deny { reason: format!("the rule `{rule}` denies it") };
        }
        if subjects.iter().any(is_guarded) || self.rules.ask.iter().any(|rule| stops(&rule)) {
            return ask;
        }
        let mut allowing = self.rules.allow.iter().chain(&self.session);
        if self.mode == PermissionMode::BypassPermissions
            || allowing.any(|rule| rule.allows(tool, subjects, &self.cwd))
        {
            return Stance::Allow;
        }
        if self.mode == PermissionMode::Plan {
            let reason = "in plan mode only trusted tools that read may run";
            return Stance::Deny { reason: reason.to_owned() };
        }
        ask
    }

    /// Returns the rule that would allow this call and those like it, if one would (kernel rule 8.5.30).
    fn scope(&self, tool: &str, subjects: &[Subject]) -> Option<String> {
        let scope = match subjects {
            [] => tool.to_owned(),
            [Subject::Command(command)] => format!("{tool}({}:*)", command.trim()),
            [Subject::Host(host)] => format!("{tool}(domain:{host})"),
            [Subject::Path(place)] if place.absolute.starts_with(&self.cwd) => format!("{tool}(**)"),
            [Subject::Path(place)] => format!("{tool}({})", place.absolute.display()),
            _ => return None,
        };
        let mut silenced = self.clone();
        silenced.allow_for_session(&scope);
        (silenced.verdict(tool, subjects) == Stance::Allow).then_some(scope)
    }

    /// Allows what `scope` names until the session ends.
    pub(super) fn allow_for_session(&mut self, scope: &str) {
        // It was offered, so it can be read.
        let Ok(rule) = scope.parse() else { return };
        if !self.session.contains(&rule) {
            self.session.push(rule);
        }
    }

    /// Returns what a frontend may show of the policy.
    pub(super) fn view(&self) -> Value {
        json!({
            "mode": self.mode.to_string(),
            "allow": texts(&self.rules.allow),
            "deny": texts(&self.rules.deny),
            "ask": texts(&self.rules.ask),
            "sessionRules": texts(&self.session),
        })
    }

    /// Returns what a person reads of the policy.
    pub(super) fn shown(&self) -> View {
        let rules = |list: &[Rule]| match list {
            [] => "none".to_owned(),
            list => texts(list).join(", "),
        };
        let rows = [
            ("mode", self.mode.to_string()),
            ("modes", PermissionMode::NAMES.join(", ")),
            ("denied", rules(&self.rules.deny)),
            ("asked", rules(&self.rules.ask)),
            ("allowed", rules(&self.rules.allow)),
            ("allowed in this session", rules(&self.session)),
        ];
        View::KeyValue { rows: rows.map(|(key, value)| [key.to_owned(), value]).into() }
    }
}

fn texts(rules: &[Rule]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

/// Returns whether something below a guarded folder is meant. Nobody knows whether a plugin's tool writes.
fn is_guarded(subject: &Subject) -> bool {
    let Subject::Path(place) = subject else { return false };
    let below =
        |path: &Path| path.iter().any(|part| part.to_str().is_some_and(|part| GUARDED.contains(&part)));
    below(&place.absolute) || below(&place.real)
}

#[cfg(test)]
mod tests;
