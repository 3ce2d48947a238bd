//! What new sessions begin with: what the settings said at the start, until a person chooses otherwise in a session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bingo_plugin_sdk::provider::Effort;

use super::KernelSettings;
use crate::settings::ModelSettings;

/// Who answers in new sessions, and how much it reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) provider: Option<String>,
    pub(super) model: Option<String>,
    pub(super) thinking: Option<Effort>,
}

/// The choice that counts now, shared by all sessions of a kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Defaults {
    choice: Arc<Mutex<Choice>>,
    described: Arc<BTreeMap<String, ModelSettings>>,
}

/// What a person configured about models.
#[derive(Debug, Clone, Default)]
pub(super) struct Configured {
    /// The model that answers in new sessions, as the catalog names it.
    pub(super) model: Option<String>,
    /// What is known of models, by `PROVIDER/MODEL`.
    pub(super) described: Arc<BTreeMap<String, ModelSettings>>,
}

impl Defaults {
    pub(super) fn new(settings: &KernelSettings) -> Self {
        let (provider, model) = (settings.provider.clone(), settings.model.clone());
        let choice = Choice { provider, model, thinking: settings.thinking };
        Self { choice: Arc::new(Mutex::new(choice)), described: Arc::new(settings.models.clone()) }
    }

    pub(super) fn get(&self) -> Choice {
        self.lock().clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Choice)) {
        change(&mut self.lock());
    }

    /// Returns what the catalog of models shows of the settings.
    pub(super) fn configured(&self) -> Configured {
        let Choice { provider, model, .. } = self.get();
        let model = model.map(|model| match provider {
            Some(provider) => format!("{provider}/{model}"),
            None => model,
        });
        Configured { model, described: Arc::clone(&self.described) }
    }

    fn lock(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
