//! What the settings say about each plugin.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use bingo_plugin_sdk::ids::PluginName;
use serde_json::Value;

use super::discovery::PluginSource;
use super::generation::StartError;
use super::guard::ResourceLimits;
use super::limits::Limits;
use super::process::Passed;
use super::restart::RestartPolicy;
use crate::schema;

/// What the host does with one plugin: the settings table `supervisor.<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginOptions {
    /// Says that it is switched on.
    pub enabled: bool,
    /// Variables of the host that it gets beyond the common ones.
    pub env: Vec<String>,
    /// Gives it all of them.
    pub inherit_env: bool,
    /// Takes the silence of its hooks as a refusal (`onHookTimeout = "deny"`).
    pub deny_unanswered: bool,
    pub timeouts: Limits,
    /// What its processes may use.
    pub limits: ResourceLimits,
    pub restart: RestartPolicy,
}

impl Default for PluginOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            env: Vec::new(),
            inherit_env: false,
            deny_unanswered: false,
            timeouts: Limits::default(),
            limits: ResourceLimits::default(),
            restart: RestartPolicy::default(),
        }
    }
}

/// All that the settings say about one plugin. A start takes it once and keeps it to the end of its process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PluginSetup {
    /// What the plugin gets as `config`.
    pub config: Value,
    pub options: PluginOptions,
}

/// What the settings say about plugins, by name; the others have what is the default.
pub type Setups = BTreeMap<String, PluginSetup>;

impl PluginSetup {
    /// Says whether a process that was started with this is as the other one wants it. Being switched on is no matter of
    /// a process.
    pub(super) fn suits(&self, other: &Self) -> bool {
        let enabled = other.options.enabled;
        let alike = PluginOptions { enabled, ..self.options.clone() };
        self.config == other.config && alike == other.options
    }

    pub(super) fn passed(&self) -> Passed {
        Passed { names: self.options.env.clone(), all: self.options.inherit_env }
    }

    pub(super) fn check_config(&self, source: &PluginSource) -> Result<(), StartError> {
        let Some(schema) = &source.manifest.config else { return Ok(()) };
        schema::check_config(source.name.as_str(), schema, &self.config)
            .map_err(|reason| StartError::Config { reason })
    }
}

/// The setups that count now; they are replaced as a whole.
pub(super) struct CurrentSetups(RwLock<Arc<Setups>>);

impl CurrentSetups {
    pub(super) fn new(setups: Setups) -> Self {
        Self(RwLock::new(Arc::new(setups)))
    }

    fn all(&self) -> Arc<Setups> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn of(&self, name: &str) -> PluginSetup {
        self.all().get(name).cloned().unwrap_or_default()
    }

    /// Returns those from before and those that count now.
    pub(super) fn replace(&self, setups: Setups) -> (Arc<Setups>, Arc<Setups>) {
        let now = Arc::new(setups);
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        (std::mem::replace(&mut *current, Arc::clone(&now)), now)
    }
}

/// That the settings say something else about a plugin.
pub(super) struct Change {
    /// Whether it is switched on now, where it was not or the other way round.
    pub(super) switched: Option<bool>,
}

pub(super) fn change(before: &Setups, now: &Setups, name: &PluginName) -> Option<Change> {
    let (before, now) = (before.get(name.as_str()), now.get(name.as_str()));
    let enabled = |setup: Option<&PluginSetup>| setup.is_none_or(|setup| setup.options.enabled);
    let on = enabled(now);
    (before != now).then(|| Change { switched: (enabled(before) != on).then_some(on) })
}
