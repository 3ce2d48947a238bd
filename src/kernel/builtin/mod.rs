//! The commands of the kernel itself: their names and what they take (kernel rules 8.2).
//!
//! `choices` reads what a person chose, `views` shows what there is; a session runs them (`session/builtins.rs`).

pub(super) mod choices;
pub(super) mod views;

use bingo_plugin_sdk::handshake::{ArgSpec, CommandSpec};

/// A command of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Builtin {
    /// Shows or changes which model answers.
    Model,
    /// Lists the models there are.
    Models,
    /// Shows or changes how much the model reasons.
    Think,
    /// Shows or changes the session's name.
    Rename,
    /// Shortens what the model sees of the conversation.
    Compact,
    /// Lists the plugins, or switches one on or off.
    Plugins,
    /// Shows where the session stands.
    Status,
    /// Shows or changes what may run without asking.
    Permissions,
    /// Goes back to before a turn.
    Rewind,
}

impl Builtin {
    /// In the order of the catalog.
    const ALL: [Self; 9] = [
        Self::Model,
        Self::Models,
        Self::Think,
        Self::Rename,
        Self::Compact,
        Self::Plugins,
        Self::Status,
        Self::Permissions,
        Self::Rewind,
    ];

    /// Returns the command of this name or alias.
    pub(super) fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|builtin| builtin.names().contains(&name))
    }

    /// Returns whether it runs at once, also during a turn (kernel rule 8.1.3).
    pub(super) fn is_instant(self) -> bool {
        !matches!(self, Self::Compact | Self::Rewind)
    }

    /// Its name, then its aliases.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Model => &["model"],
            Self::Models => &["models"],
            Self::Think => &["think"],
            Self::Rename => &["rename"],
            Self::Compact => &["compact"],
            Self::Plugins => &["plugins", "modules"],
            Self::Status => &["status"],
            Self::Permissions => &["permissions", "permission"],
            Self::Rewind => &["rewind"],
        }
    }

    /// What it does, and what it takes; nothing where it takes nothing.
    fn hints(self) -> (&'static str, &'static str) {
        match self {
            Self::Model => ("show or change the model", "[PROVIDER/]MODEL"),
            Self::Models => ("list the models there are", ""),
            Self::Think => ("show or change how much the model reasons", choices::LEVELS),
            Self::Rename => ("show or change the session's name", "the name"),
            Self::Compact => ("shorten the conversation to a summary", "what the summary shall keep"),
            Self::Plugins => ("list the plugins, or switch one on or off", "enable|disable NAME"),
            Self::Status => ("show where this session stands", ""),
            Self::Permissions => ("show what may run without asking, or change the mode", "the mode"),
            Self::Rewind => ("go back to before a turn", "the turn; without it they are listed"),
        }
    }

    fn spec(self) -> CommandSpec {
        let ([name, aliases @ ..], (hint, args)) = (self.names(), self.hints()) else {
            unreachable!("each has a name")
        };
        CommandSpec {
            name: (*name).to_owned(),
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            hint: hint.to_owned(),
            args: if args.is_empty() { ArgSpec::None } else { ArgSpec::Free { hint: args.to_owned() } },
            instant: self.is_instant(),
            family: "session".to_owned(),
        }
    }
}

/// Returns the commands of the kernel, for the catalog.
pub(super) fn commands() -> impl Iterator<Item = CommandSpec> {
    Builtin::ALL.into_iter().map(Builtin::spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_names_and_says_what_it_takes() {
        for spec in commands() {
            let found = Builtin::find(&spec.name).unwrap();
            assert_eq!((found.spec(), found.is_instant()), (spec.clone(), spec.instant));
            assert!(spec.aliases.iter().all(|alias| Builtin::find(alias) == Some(found)));
        }
        assert_eq!(Builtin::find("modules"), Some(Builtin::Plugins));
        assert_eq!(Builtin::find("help"), None);
    }
}
