//! A transcript as Markdown. What was said stands as it was said; what tools took and gave stands in code blocks.

use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody, ItemStatus};
use bingo_plugin_sdk::state::SessionState;
use serde_json::Value;

/// Returns the transcript of a session.
pub(super) fn transcript(state: &SessionState) -> String {
    let summary = &state.summary;
    let title = summary.title.as_deref().unwrap_or("Session");
    let mut text = format!("# {}\n\n", title.split_whitespace().collect::<Vec<_>>().join(" "));
    text += &format!("Session `{}`, begun {}, in `{}`.\n", summary.id, summary.created_at, summary.cwd);
    for item in &state.items {
        let (head, body) = item_text(item);
        let ending = match item.status {
            ItemStatus::Failed => " (failed)",
            ItemStatus::Interrupted => " (interrupted)",
            ItemStatus::Pending | ItemStatus::Running => " (unfinished)",
            ItemStatus::Completed => "",
        };
        text += &format!("\n## {head}{ending}\n");
        if !body.trim().is_empty() {
            text += &format!("\n{}\n", body.trim_end());
        }
    }
    text
}

/// Returns what an item is, and what it says.
fn item_text(item: &Item) -> (String, String) {
    match &item.body {
        ItemBody::User { parts, origin } => (format!("User ({})", origin.surface), parts_text(parts)),
        ItemBody::Assistant { text } => ("Assistant".to_owned(), text.clone()),
        ItemBody::Reasoning { text, .. } => ("Reasoning".to_owned(), text.clone()),
        ItemBody::ToolCall { name, input, output, .. } => {
            let output = output.as_ref().map(|output| fenced("", &parts_text(&output.parts)));
            let body = [fenced("json", &pretty(input)), output.unwrap_or_default()].join("\n");
            (format!("Tool `{name}`"), body)
        }
        ItemBody::Action { name, args, result } => {
            let result = result.as_ref().map(|result| fenced("json", &pretty(result)));
            let body = [fenced("json", &pretty(args)), result.unwrap_or_default()].join("\n");
            (format!("Command `{name}`"), body)
        }
        ItemBody::Compaction { summary, replaced, .. } => {
            (format!("Summary of {replaced} earlier items"), summary.clone())
        }
        ItemBody::Rewind { dropped, .. } => (format!("Rewound over {dropped} items"), String::new()),
        ItemBody::Interruption { marker } => ("Interruption".to_owned(), marker.clone()),
        ItemBody::Notice { code, text, .. } => (format!("Notice {code}"), text.clone()),
        ItemBody::QuestionAnswer { question, answer, .. } => {
            ("Question".to_owned(), format!("{question}\n\n{answer}"))
        }
        ItemBody::PermissionReceipt { tool, decision, feedback, .. } => {
            (format!("Permission for `{tool}`: {decision:?}"), feedback.clone().unwrap_or_default())
        }
        ItemBody::Asset { asset, label } => ("File".to_owned(), label.as_ref().unwrap_or(asset).clone()),
    }
}

fn parts_text(parts: &[ContentPart]) -> String {
    let text = |part: &ContentPart| match part {
        ContentPart::Text { text } | ContentPart::Reasoning { text, .. } => text.clone(),
        ContentPart::Image { media_type, data } => format!("[{media_type}, {} bytes]", data.len() / 4 * 3),
        ContentPart::ToolUse { name, input, .. } => format!("[{name}: {input}]"),
        ContentPart::ToolResult { parts, .. } => parts_text(parts),
    };
    parts.iter().map(text).collect::<Vec<_>>().join("\n\n")
}

fn pretty(value: &Value) -> String {
    format!("{value:#}")
}

/// Returns a code block whose fence is longer than any run of backticks in it.
fn fenced(lang: &str, text: &str) -> String {
    let longest = text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{lang}\n{}\n{fence}\n", text.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_code_block_ends_it() {
        assert_eq!(fenced("json", "{}"), "```json\n{}\n```\n");
        assert_eq!(fenced("", "a\n````\nb\n"), "`````\na\n````\nb\n`````\n");
    }
}
