//! What new sessions begin with: what the settings said at the start, until a person chooses otherwise in a session.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bingo_plugin_sdk::provider::Effort;

use super::KernelSettings;

/// Who answers in new sessions, and how much it reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) provider: Option<String>,
    pub(super) model: Option<String>,
    pub(super) thinking: Option<Effort>,
}

/// The choice that counts now, shared by all sessions of a kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Defaults(Arc<Mutex<Choice>>);

impl Defaults {
    pub(super) fn new(settings: &KernelSettings) -> Self {
        let (provider, model) = (settings.provider.clone(), settings.model.clone());
        Self(Arc::new(Mutex::new(Choice { provider, model, thinking: settings.thinking })))
    }

    pub(super) fn get(&self) -> Choice {
        self.lock().clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Choice)) {
        change(&mut self.lock());
    }

    /// Returns the model as the catalog names it.
    pub(super) fn catalog_model(&self) -> Option<String> {
        let Choice { provider, model, .. } = self.get();
        model.map(|model| match provider {
            Some(provider) => format!("{provider}/{model}"),
            None => model,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Choice> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
