//! Commands of the kernel itself; a plugin's command of the same name is not reached.

use bingo_plugin_sdk::handshake::{ArgSpec, CommandSpec};

/// Shortens what the model sees of the conversation.
pub(super) const COMPACT: &str = "compact";

/// Returns the commands of the kernel, for the catalog.
pub(super) fn commands() -> Vec<CommandSpec> {
    vec![CommandSpec {
        name: COMPACT.to_owned(),
        aliases: Vec::new(),
        hint: "shorten the conversation to a summary".to_owned(),
        args: ArgSpec::Free { hint: "what the summary shall keep".to_owned() },
        instant: false,
        family: "session".to_owned(),
    }]
}
