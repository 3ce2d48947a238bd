//! The manifest, `plugin.json`: how a plugin is started.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Contents of `plugin.json`. `name` must equal the name of the directory it stands in. Unknown keys pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub name: String,
    pub version: String,
    pub entry: Entry,
    /// Installs what the plugin needs, before its first process and again after a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<Prepare>,
    /// JSON Schema of the plugin's own settings, the table `plugins.<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
    /// What must be there before this plugin is of use, each as `service:KEY`. While one is missing nothing of the
    /// plugin is offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Whether a new process of the plugin starts beside the old one, or after its end.
    #[serde(default, skip_serializing_if = "Reload::is_default")]
    pub reload: Reload,
    /// Files whose change starts a new process, as globs below the manifest's directory; the manifest and the entry's own
    /// files always do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<String>,
}

/// How a plugin is replaced by its next process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum Reload {
    /// The old one serves until the new one is ready.
    #[default]
    SideBySide,
    /// Two at a time would be in each other's way.
    StopFirst,
}

impl Reload {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A program that is run to its end, as `entry` is started, and must exit with code 0. `${PLUGIN_PREPARED}`, here and in
/// `entry`, stands for the directory that it fills; the variable `PLUGIN_PREPARED` names it too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Prepare {
    #[serde(flatten)]
    pub program: Entry,
    /// Files whose change asks for another run, as globs below the manifest's directory; without any, all files there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// The program to start. `${PLUGIN_ROOT}` stands for the manifest's directory in `command`, `args` and the values of
/// `env`; no shell is involved. The process starts in that directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// A path, or a name to be found on the PATH.
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    /// Added to the environment a plugin gets.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}
