//! The permission policy: may this tool run, must a person be asked, or is it refused?
//!
//! Plugin tools are untrusted, neither read-only nor edits (plugin-behaviour rule 54), so the mode decides about all of
//! them alike. Owned by one session; session rules live in memory.

use std::fmt;
use std::str::FromStr;

use bingo_plugin_sdk::interaction::{Answer, AnswerSpec, InteractionKind};
use serde_json::{Value, json};

/// The key under which the policy describes itself in a session's `ConfigView`.
pub(super) const POLICY_ID: &str = "bingo.permissions";

/// How much is allowed without asking (kernel rules 8.5.26 and 28).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PermissionMode {
    /// Asks for everything untrusted.
    #[default]
    Default,
    /// Also allows edits inside the session's directory by trusted tools.
    AcceptEdits,
    /// Denies all that is not trusted and read-only.
    Plan,
    /// Allows everything.
    BypassPermissions,
    /// Denies what would be asked.
    DontAsk,
}

impl PermissionMode {
    /// The names, as the command line and settings spell them.
    pub const NAMES: [&str; 5] = ["default", "acceptEdits", "plan", "bypassPermissions", "dontAsk"];
}

impl fmt::Display for PermissionMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(Self::NAMES[*self as usize])
    }
}

impl FromStr for PermissionMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "default" => Self::Default,
            "acceptEdits" => Self::AcceptEdits,
            "plan" => Self::Plan,
            "bypassPermissions" => Self::BypassPermissions,
            "dontAsk" => Self::DontAsk,
            _ => {
                return Err(format!(
                    "`{text}` is no permission mode; the modes are {}",
                    Self::NAMES.join(", ")
                ));
            }
        })
    }
}

/// A rule that allows one tool, by its exact name as the model knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule(String);

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim();
        let fits = !name.is_empty()
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-.:".contains(letter));
        if fits {
            return Ok(Self(name.to_owned()));
        }
        Err(format!(
            "`{text}` is no tool name; a rule is a tool's exact name, such as `plugin__wordcount__count`"
        ))
    }
}

/// What the policy says of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stance {
    Allow,
    Deny {
        reason: String,
    },
    /// A person decides; `scope` is the rule that an `allowSession` answer installs.
    Ask {
        scope: String,
    },
}

/// The policy of one session.
#[derive(Debug, Clone, Default)]
pub(super) struct Policy {
    pub mode: PermissionMode,
    /// Rules of the settings and the command line.
    pub allowed: Vec<Rule>,
    session: Vec<Rule>,
}

impl Policy {
    /// Returns a policy without session rules.
    pub(super) fn new(mode: PermissionMode, allowed: Vec<Rule>) -> Self {
        Self { mode, allowed, session: Vec::new() }
    }

    /// Says what shall become of a call of this tool (kernel rule 8.5.27).
    pub(super) fn stance(&self, tool: &str) -> Stance {
        if self.mode == PermissionMode::BypassPermissions {
            return Stance::Allow;
        }
        if self.allowed.iter().chain(&self.session).any(|rule| rule.0 == tool) {
            return Stance::Allow;
        }
        match self.mode {
            PermissionMode::Plan => {
                Stance::Deny { reason: "in plan mode only trusted tools that read may run".to_owned() }
            }
            PermissionMode::DontAsk => {
                Stance::Deny { reason: "no rule allows it, and in dontAsk mode nobody is asked".to_owned() }
            }
            _ => Stance::Ask { scope: tool.to_owned() },
        }
    }

    /// Allows what `scope` names until the session ends.
    pub(super) fn allow_for_session(&mut self, scope: &str) {
        let rule = Rule(scope.to_owned());
        if !self.session.contains(&rule) {
            self.session.push(rule);
        }
    }

    /// Returns what a frontend may show of the policy.
    pub(super) fn view(&self) -> Value {
        let session: Vec<&str> = self.session.iter().map(|rule| rule.0.as_str()).collect();
        json!({ "mode": self.mode.to_string(), "sessionRules": session })
    }
}

/// Returns the question about a call: its kind and the answers it takes (kernel rule 4.3.26).
pub(super) fn question(tool: &str, input: &Value, scope: &str) -> (InteractionKind, Vec<AnswerSpec>) {
    let text = format!("{tool} {input}");
    let summary: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(120).collect();
    let kind = InteractionKind::Permission {
        tool: tool.to_owned(),
        summary,
        preview: None,
        session_scope: Some(scope.to_owned()),
    };
    (kind, vec![AnswerSpec::AllowOnce, AnswerSpec::AllowSession, AnswerSpec::Deny])
}

/// Checks an answer against what was asked.
///
/// # Errors
/// In words, when the kind is not accepted, a chosen option does not exist, or the scope is not the offered one.
pub(super) fn check_answer(
    kind: &InteractionKind,
    accepted: &[AnswerSpec],
    answer: &Answer,
) -> Result<(), String> {
    if !accepted.contains(&answer.spec()) {
        let words: Vec<String> = accepted.iter().map(|spec| json!(spec).to_string()).collect();
        return Err(format!("this question takes {}", words.join(", ")));
    }
    match (kind, answer) {
        (InteractionKind::Permission { session_scope, .. }, Answer::AllowSession { scope })
            if session_scope.as_ref() != Some(scope) =>
        {
            Err(format!("the scope `{scope}` was not offered"))
        }
        (InteractionKind::Question { options, multi, .. }, Answer::Choice { ids }) => {
            if let Some(id) = ids.iter().find(|id| !options.iter().any(|option| option.id == **id)) {
                return Err(format!("`{id}` is none of the options"));
            }
            if ids.is_empty() || (ids.len() > 1 && !multi) {
                return Err("choose exactly one option".to_owned());
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(mode: &str, allowed: &[&str]) -> Policy {
        Policy::new(mode.parse().unwrap(), allowed.iter().map(|rule| rule.parse().unwrap()).collect())
    }

    #[test]
    fn every_mode_has_its_stance() {
        let ask = Stance::Ask { scope: "t".to_owned() };
        assert_eq!(policy("default", &[]).stance("t"), ask);
        assert_eq!(policy("acceptEdits", &[]).stance("t"), ask);
        assert_eq!(policy("bypassPermissions", &[]).stance("t"), Stance::Allow);
        assert!(matches!(policy("plan", &[]).stance("t"), Stance::Deny { .. }));
        assert!(matches!(policy("dontAsk", &[]).stance("t"), Stance::Deny { .. }));
    }

    #[test]
    fn a_rule_allows_its_tool_and_no_other() {
        for mode in ["default", "plan", "dontAsk"] {
            let policy = policy(mode, &["t"]);
            assert_eq!(policy.stance("t"), Stance::Allow);
            assert_ne!(policy.stance("tt"), Stance::Allow);
        }
    }

    #[test]
    fn a_session_rule_is_shown_and_silences_the_question() {
        let mut policy = policy("default", &[]);
        policy.allow_for_session("t");
        policy.allow_for_session("t");
        assert_eq!(policy.stance("t"), Stance::Allow);
        assert_eq!(policy.view(), json!({"mode": "default", "sessionRules": ["t"]}));
    }

    #[test]
    fn an_unreadable_rule_is_refused() {
        for rule in ["", " ", "a b", "Bash(ls:*)", "a,b"] {
            assert!(rule.parse::<Rule>().is_err(), "{rule:?}");
        }
    }

    #[test]
    fn answers_are_checked_against_the_question() {
        let (kind, accepted) = question("t", &json!({}), "t");
        let scope = |scope: &str| Answer::AllowSession { scope: scope.to_owned() };
        assert!(check_answer(&kind, &accepted, &Answer::AllowOnce).is_ok());
        assert!(check_answer(&kind, &accepted, &scope("t")).is_ok());
        assert!(check_answer(&kind, &accepted, &scope("*")).is_err());
        assert!(check_answer(&kind, &accepted, &Answer::Confirm).is_err());
    }
}
