//! Views: what a plugin shows to a person, and the text every view folds to.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A piece of output for people, drawn by each frontend in its own way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum View {
    /// Plain text, shown as it stands.
    Text { text: String },
    /// Markdown (CommonMark).
    Markdown { text: String },
    /// Source code, in the language `lang` names.
    Code {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lang: Option<String>,
        text: String,
    },
    /// A change in the unified diff format.
    Diff { unified: String },
    /// Lines of a list.
    List { items: Vec<String> },
    /// A table: `headers`, then rows with as many cells.
    Table { headers: Vec<String>, rows: Vec<Vec<String>> },
    /// Pairs of a key and its value.
    KeyValue { rows: Vec<[String; 2]> },
    /// Progress: `value` out of `total`; without a total, activity without a fraction.
    Progress {
        value: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    /// A short coloured word.
    Badge {
        text: String,
        #[serde(default)]
        tone: Tone,
    },
    /// A tree of labels.
    Tree { nodes: Vec<TreeNode> },
    /// Views below each other.
    Stack { children: Vec<View> },
    /// Views beside each other.
    Columns { children: Vec<View> },
    /// A view with a title around it.
    Panel { title: String, child: Box<View> },
    /// Buttons: choosing one submits its action.
    Actions { items: Vec<ActionItem> },
    /// A kind of the plugin's own; `fold` is the text shown where `customKind` is unknown.
    Custom { custom_kind: String, data: Value, fold: String },
    /// A kind that came after this schema: accepted when it carries the `fold` text to show instead.
    #[serde(untagged)]
    Unknown(UnknownView),
}

/// A view of a kind that this version does not know, kept as it came.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct UnknownView {
    /// The kind, none of the above.
    #[schemars(schema_with = "unknown_kind")]
    pub kind: String,
    /// The text to show instead.
    pub fold: String,
    /// Everything else it carries.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

/// How a badge or a tree node is meant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Tone {
    #[default]
    Neutral,
    Good,
    Bad,
    Attention,
}

/// A node of a tree view.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TreeNode {
    pub label: String,
    /// A short word after the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub badge: Option<String>,
    #[serde(default)]
    pub tone: Tone,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<TreeNode>,
}

/// A button of an `actions` view.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionItem {
    pub label: String,
    /// What choosing it submits.
    pub action: Action,
    /// The key that chooses it: exactly one character.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(equal = 1))]
    pub key: Option<String>,
}

/// A command as data: its name and its arguments. A string is the argument text itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    pub name: String,
    #[serde(default)]
    pub args: Value,
}

/// The kinds with a branch of their own; an unknown view's kind is none of them.
const KNOWN_KINDS: [&str; 15] = [
    "text", "markdown", "code", "diff", "list", "table", "keyValue", "progress", "badge", "tree", "stack",
    "columns", "panel", "actions", "custom",
];

impl<'de> Deserialize<'de> for UnknownView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            kind: String,
            fold: String,
            #[serde(flatten)]
            rest: BTreeMap<String, Value>,
        }
        let Raw { kind, fold, rest } = Raw::deserialize(deserializer)?;
        if KNOWN_KINDS.contains(&kind.as_str()) {
            return Err(serde::de::Error::custom(format!("the fields of a `{kind}` view do not fit")));
        }
        Ok(Self { kind, fold, rest })
    }
}

fn unknown_kind(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "not": { "enum": KNOWN_KINDS } })
}

impl View {
    /// Returns the view as plain text, for a place that draws nothing: one line per row, cells aligned.
    pub fn fold(&self) -> String {
        match self {
            Self::Text { text } | Self::Markdown { text } | Self::Code { text, .. } => text.clone(),
            Self::Diff { unified } => unified.clone(),
            Self::List { items } => {
                items.iter().map(|item| format!("- {item}")).collect::<Vec<_>>().join("\n")
            }
            Self::Table { headers, rows } => fold_table(headers, rows),
            Self::KeyValue { rows } => fold_pairs(rows),
            Self::Progress { value, total, label } => fold_progress(*value, *total, label.as_deref()),
            Self::Badge { text, .. } => format!("[{text}]"),
            Self::Tree { nodes } => {
                let mut lines = Vec::new();
                nodes.iter().for_each(|node| fold_node(node, 0, &mut lines));
                lines.join("\n")
            }
            Self::Stack { children } | Self::Columns { children } => {
                children.iter().map(View::fold).collect::<Vec<_>>().join("\n")
            }
            Self::Panel { title, child } => format!("{title}\n{}", child.fold()),
            Self::Actions { items } => items.iter().map(fold_action).collect::<Vec<_>>().join("\n"),
            Self::Custom { fold, .. } => fold.clone(),
            Self::Unknown(view) => view.fold.clone(),
        }
    }
}

fn fold_table(headers: &[String], rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).chain([headers.len()]).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().map(Vec::as_slice).chain([headers]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &[String]| {
        let cells = widths.iter().enumerate().map(|(column, width)| {
            let cell = row.get(column).map_or("", String::as_str);
            format!("{cell:<width$}")
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    std::iter::once(line(headers)).chain(rows.iter().map(|row| line(row))).collect::<Vec<_>>().join("\n")
}

fn fold_pairs(rows: &[[String; 2]]) -> String {
    let width = rows.iter().map(|[key, _]| key.chars().count()).max().unwrap_or(0);
    rows.iter().map(|[key, value]| format!("{key:<width$}  {value}")).collect::<Vec<_>>().join("\n")
}

fn fold_progress(value: u64, total: Option<u64>, label: Option<&str>) -> String {
    let amount = total.map_or_else(|| value.to_string(), |total| format!("{value}/{total}"));
    label.map_or(amount.clone(), |label| format!("{label} {amount}"))
}

fn fold_node(node: &TreeNode, depth: usize, lines: &mut Vec<String>) {
    let badge = node.badge.as_ref().map(|badge| format!(" [{badge}]")).unwrap_or_default();
    lines.push(format!("{}{}{badge}", "  ".repeat(depth), node.label));
    node.children.iter().for_each(|child| fold_node(child, depth + 1, lines));
}

fn fold_action(item: &ActionItem) -> String {
    let key = item.key.as_ref().map(|key| format!("{key}: ")).unwrap_or_default();
    format!("{key}{} (/{})", item.label, item.action.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_kind_with_a_fold_passes_unchanged() {
        let wire = json!({"kind": "chart", "fold": "3 bars", "bars": [1, 2, 3]});
        let view: View = serde_json::from_value(wire.clone()).unwrap();
        assert_eq!(view.fold(), "3 bars");
        assert_eq!(serde_json::to_value(&view).unwrap(), wire);
    }

    #[test]
    fn a_known_kind_with_wrong_fields_is_refused_even_with_a_fold() {
        for wire in [json!({"kind": "text", "fold": "x"}), json!({"kind": "chart"}), json!({"fold": "x"})] {
            assert!(serde_json::from_value::<View>(wire.clone()).is_err(), "{wire}");
        }
    }

    #[test]
    fn a_table_folds_to_aligned_columns() {
        let rows = vec![vec!["lines".to_owned(), "12".to_owned()], vec!["words".to_owned()]];
        let view = View::Table { headers: vec!["what".to_owned(), "count".to_owned()], rows };
        assert_eq!(view.fold(), "what   count\nlines  12\nwords");
    }
}
