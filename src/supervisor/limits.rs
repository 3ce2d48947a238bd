//! The one table of limits and deadlines of the plugin wire; each can be overridden in `supervisor.<name>.timeouts`.
//!
//! Deadlines count from the wish to send and cover the write itself.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// Limits and deadlines of one plugin. In settings, times are milliseconds and sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Limits {
    /// The longest line a plugin may write; a longer one is drained and fails its call.
    pub line: usize,
    /// Bytes that may wait to be written to a plugin that does not read; one message of any size when nothing waits.
    pub queued: usize,
    /// Bytes of unread events of one stream, after adjacent deltas were merged.
    pub unread: usize,
    /// How long a handshake may take since the last sign of life; a line on stderr is one.
    #[serde(deserialize_with = "millis")]
    pub handshake: Duration,
    /// How long a handshake may take at all: a first start may compile or download.
    #[serde(deserialize_with = "millis")]
    pub first_start: Duration,
    /// How long the manifest's `prepare` step may take, the wait for another host that runs it included.
    #[serde(deserialize_with = "millis")]
    pub prepare: Duration,
    /// How long a tool may be silent; 0 means for ever.
    #[serde(deserialize_with = "millis")]
    pub tool_idle: Duration,
    #[serde(deserialize_with = "millis")]
    pub command_run: Duration,
    /// People wait for completions while they type.
    #[serde(deserialize_with = "millis")]
    pub command_complete: Duration,
    /// Contributors are asked side by side before each request of a turn.
    #[serde(deserialize_with = "millis")]
    pub context_contribute: Duration,
    #[serde(deserialize_with = "millis")]
    pub compactor_compact: Duration,
    /// A person or a tool waits for each decision.
    #[serde(deserialize_with = "millis")]
    pub hook_decide: Duration,
    /// Stands still while the plugin that was called waits for a person.
    #[serde(deserialize_with = "millis")]
    pub service_call: Duration,
    /// How long a service call may take at all, questions to a person included.
    #[serde(deserialize_with = "millis")]
    pub service_ceiling: Duration,
    /// Calls of a plugin that are served at a time; past it they are refused as busy.
    pub serving: usize,
    /// Notices of a plugin that are shown within a minute; past it they are counted.
    pub notices: u32,
    /// How long a model's answer may be silent.
    #[serde(deserialize_with = "millis")]
    pub stream_silence: Duration,
    /// How long a process that was replaced may go on with what it holds.
    #[serde(deserialize_with = "millis")]
    pub retire: Duration,
    /// How long what a dead plugin still wrote is read.
    #[serde(deserialize_with = "millis")]
    pub drain: Duration,
    /// How long a plugin may take to end by itself after its input was closed.
    #[serde(deserialize_with = "millis")]
    pub stop_close: Duration,
    /// How long its processes may take to end after TERM; then KILL.
    #[serde(deserialize_with = "millis")]
    pub stop_term: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            line: bingo_plugin_sdk::ndjson::MAX_LINE,
            queued: 4 * 1024 * 1024,
            unread: 16 * 1024 * 1024,
            handshake: Duration::from_secs(10),
            first_start: Duration::from_secs(120),
            prepare: Duration::from_secs(600),
            tool_idle: Duration::from_secs(600),
            command_run: Duration::from_secs(600),
            command_complete: Duration::from_secs(2),
            context_contribute: Duration::from_secs(3),
            compactor_compact: Duration::from_secs(60),
            hook_decide: Duration::from_secs(5),
            service_call: Duration::from_secs(30),
            service_ceiling: Duration::from_secs(600),
            serving: 256,
            notices: 20,
            stream_silence: Duration::from_secs(120),
            retire: Duration::from_secs(600),
            drain: Duration::from_millis(100),
            stop_close: Duration::from_secs(2),
            stop_term: Duration::from_secs(3),
        }
    }
}

fn millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

/// The most characters of an error, a reason or a notice of a plugin.
const TEXT: usize = 4000;

/// Returns a text of a plugin that a person or a model reads, cut to its limit with how much is missing.
pub(crate) fn clip(mut text: String) -> String {
    let Some((end, _)) = text.char_indices().nth(TEXT) else { return text };
    let missing = text[end..].chars().count();
    text.truncate(end);
    text.push_str(&format!("… [{missing} more characters]"));
    // Kept for as long as a session: not with the room of all that came.
    text.shrink_to_fit();
    text
}

/// Says a duration as people do: `2 s`, `250 ms`.
pub(crate) fn words(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{} s", duration.as_secs()),
        _ => format!("{} ms", duration.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_its_limit() {
        let text = "é".repeat(TEXT);
        assert_eq!(clip(text.clone()), text);
        assert_eq!(clip(text.clone() + "xy"), text + "… [2 more characters]");
    }

    #[test]
    fn what_was_cut_off_keeps_no_memory() {
        assert!(clip("x".repeat(100 * TEXT)).capacity() < 2 * TEXT);
    }

    #[test]
    fn single_limits_are_overridden_in_milliseconds() {
        let limits: Limits =
            serde_json::from_value(serde_json::json!({"toolIdle": 1500, "queued": 9})).unwrap();
        assert_eq!(limits, Limits { tool_idle: Duration::from_millis(1500), queued: 9, ..Limits::default() });
        assert_eq!(words(limits.tool_idle), "1500 ms");
        assert_eq!(words(limits.handshake), "10 s");
    }
}
