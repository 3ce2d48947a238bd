//! The handshake: what the host says first, and what a plugin declares in return.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The first request of every process, sent before anything else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// The host's protocol number. Answer with the same, or refuse.
    pub protocol: u32,
    /// The directory of the manifest.
    pub plugin_root: String,
    /// The settings table `plugins.<name>`; null when there is none.
    #[serde(default)]
    pub config: Value,
    pub env: HostEnv,
}

/// Directories of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostEnv {
    pub home: String,
    pub config_dir: String,
    pub data_dir: String,
}

/// What a plugin is and offers. Declarations hold as long as the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult {
    /// The plugin's protocol number; must equal the host's.
    pub protocol: u32,
    pub name: String,
    pub version: String,
    #[serde(default)]
    pub tools: Vec<ToolSpec>,
    #[serde(default)]
    pub commands: Vec<CommandSpec>,
    #[serde(default)]
    pub contributors: Vec<ContributorSpec>,
    #[serde(default)]
    pub compactors: Vec<CompactorSpec>,
    #[serde(default)]
    pub providers: Vec<ProviderSpec>,
    #[serde(default)]
    pub hooks: Vec<HookSpec>,
    /// Services for other plugins, by their global key.
    #[serde(default)]
    pub services: BTreeMap<String, ServiceSpec>,
}

/// A tool for the model. The model sees it as `plugin__<plugin>__<name>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolSpec {
    pub name: String,
    /// Tells the model when and how to use it.
    pub description: String,
    /// JSON Schema of the input.
    pub input_schema: Value,
    /// For catalogs only, never sent to a model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, Value>,
}

/// A command a person types as `/name`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandSpec {
    pub name: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    /// One line that says what it does.
    pub hint: String,
    pub args: ArgSpec,
    /// Says that it may run while a turn runs.
    #[serde(default)]
    pub instant: bool,
    /// The group it is listed under.
    pub family: String,
}

/// What a command takes; serves completion only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ArgSpec {
    None,
    /// Free text; `hint` is shown in its place.
    Free {
        hint: String,
    },
    /// An entry of the catalog that `source` names.
    Catalog {
        source: String,
    },
}

/// A contributor of context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContributorSpec {
    pub id: String,
    pub placement: Placement,
}

/// Where a contributor's pieces go, and when it is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Placement {
    /// Into the system prompt, before each request; the lowest `order` first.
    System { order: i32 },
    /// At the start of a round, before each request.
    RoundStart,
    /// After tool results, before the next request.
    Barrier,
}

/// A strategy that shortens the context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompactorSpec {
    pub id: String,
}

/// A model provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderSpec {
    pub id: String,
    /// The shelf of the model catalog; the id when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    #[serde(default)]
    pub models: Vec<ModelInfo>,
    #[serde(default)]
    pub endpoint: EndpointCapabilities,
}

/// A model of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelInfo {
    pub id: String,
    /// The name people read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<String>,
}

/// What a provider's endpoint can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCapabilities {
    #[serde(default)]
    pub images: bool,
    #[serde(default)]
    pub count_tokens: bool,
    #[serde(default)]
    pub caching: bool,
}

/// A hook: asked to decide at some points, told about others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookSpec {
    pub id: String,
    /// The points it wants; none means all.
    #[serde(default)]
    pub points: Vec<HookPoint>,
    /// Only calls of this tool: an exact name, or a prefix that ends in `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

/// A point at which hooks are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum HookPoint {
    Submit,
    BeforeTool,
    AfterTool,
    Stop,
    Turn,
    Compact,
    Session,
    Event,
}

/// A service for other plugins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// Its methods, each with the JSON Schema of its params.
    #[serde(default)]
    pub methods: BTreeMap<String, Value>,
}
