//! Commands of the kernel itself; a plugin's command of the same name is not reached.

use bingo_plugin_sdk::handshake::{ArgSpec, CommandSpec};

/// Shortens what the model sees of the conversation.
pub(super) const COMPACT: &str = "compact";

/// Goes back to before a turn.
pub(super) const REWIND: &str = "rewind";

/// Returns the commands of the kernel, for the catalog.
pub(super) fn commands() -> Vec<CommandSpec> {
    vec![
        command(COMPACT, "shorten the conversation to a summary", "what the summary shall keep"),
        command(REWIND, "go back to before a turn", "the turn; without it they are listed"),
    ]
}

fn command(name: &str, hint: &str, args: &str) -> CommandSpec {
    CommandSpec {
        name: name.to_owned(),
        aliases: Vec::new(),
        hint: hint.to_owned(),
        args: ArgSpec::Free { hint: args.to_owned() },
        instant: false,
        family: "session".to_owned(),
    }
}
