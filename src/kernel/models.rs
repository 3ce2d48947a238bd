//! Which provider and which model answer in a session.

use std::sync::Arc;

use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::handshake::ProviderSpec;
use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::provider::Effort;
use bingo_plugin_sdk::session::{Driver, SessionSummary};

use super::KernelParts;
use super::turn::Budget;
use crate::ports::{Notice, Provider, Snapshot};

/// The provider that answers when none is configured.
const FALLBACK_PROVIDER: &str = "echo";

/// Who answers in a new session, as far as it is known.
pub(super) struct ChosenModel {
    pub(super) provider: Option<String>,
    pub(super) model: Option<String>,
    /// Nobody was configured.
    pub(super) is_fallback: bool,
}

/// The room a model is taken to have when nobody says: tokens of input and output together.
const DEFAULT_WINDOW: u64 = 200_000;

impl KernelParts {
    /// Returns what a model can hold and shall give: as the settings know it, else as its provider declares. It is told
    /// to reason unless the settings say that it cannot.
    pub(super) fn budget(&self, provider: &ProviderSpec, model: &str, thinking: Option<Effort>) -> Budget {
        let known =
            self.settings.models.get(&format!("{}/{model}", provider.id)).cloned().unwrap_or_default();
        let window = known.context_window.unwrap_or(DEFAULT_WINDOW);
        let most = known.max_output.unwrap_or(u32::MAX).min(self.settings.max_tokens);
        // An answer that may fill the window would leave no room for what it answers.
        let half = u32::try_from(window / 2).unwrap_or(u32::MAX).max(1);
        Budget {
            window,
            max_tokens: most.min(half),
            reasoning: thinking.filter(|_| known.reasoning != Some(false)),
            images: known.images.unwrap_or(provider.endpoint.images),
        }
    }

    /// Returns the provider and model that a session's summary names.
    pub(super) fn resolve_model(
        &self,
        snapshot: &Snapshot,
        summary: &SessionSummary,
    ) -> Result<(Arc<dyn Provider>, String), KernelError> {
        let id = summary.provider.as_deref().unwrap_or_default();
        let provider = find_provider(snapshot, id)?;
        let model = summary.model.clone().or_else(|| first_model(provider.as_ref()));
        let model = model.ok_or_else(|| no_model(id))?;
        Ok((provider, model))
    }

    /// Checks that a provider can be chosen: it is there, or may still come.
    ///
    /// # Errors
    /// `PROVIDER_UNAVAILABLE` when nobody starts any more and it is not there.
    pub(super) fn check_provider(&self, snapshot: &Snapshot, id: &str) -> Result<(), KernelError> {
        match self.offers.starting().is_empty() {
            true => find_provider(snapshot, id).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Chooses provider and model of a session that names them so (kernel rule 3.1.7); nobody answers in a log. What
    /// cannot be known while plugins are starting stays open.
    ///
    /// # Errors
    /// When nobody starts any more and the provider is not there, or no model is known.
    pub(super) fn choose_model(
        &self,
        driver: Driver,
        provider: Option<String>,
        model: Option<String>,
    ) -> Result<Option<ChosenModel>, KernelError> {
        if driver == Driver::Log {
            return Ok(None);
        }
        let (defaults, is_settled) = (self.defaults.get(), self.offers.starting().is_empty());
        let snapshot = self.offers.snapshot();
        let asked = provider.or_else(|| defaults.provider.clone());
        // A configured model belongs to the configured provider.
        let model = model.or_else(|| defaults.model.clone().filter(|_| asked == defaults.provider));
        let ids = || snapshot.providers.iter().map(|provider| provider.spec().id.as_str());
        let chosen = asked.clone().or_else(|| {
            let best = ids().find(|id| *id != FALLBACK_PROVIDER).unwrap_or(FALLBACK_PROVIDER);
            is_settled.then(|| best.to_owned())
        });
        let found = chosen.as_deref().map(|id| (id, find_provider(&snapshot, id)));
        let model = match found {
            Some((id, Ok(provider))) => {
                let model = model.or_else(|| first_model(provider.as_ref()));
                Some(model.ok_or_else(|| no_model(id))?)
            }
            Some((_, Err(error))) if is_settled => return Err(error),
            _ => model,
        };
        let is_fallback = asked.is_none() && chosen.as_deref() == Some(FALLBACK_PROVIDER);
        Ok(Some(ChosenModel { provider: chosen, model, is_fallback }))
    }
}

fn find_provider(snapshot: &Snapshot, id: &str) -> Result<Arc<dyn Provider>, KernelError> {
    snapshot.providers.iter().find(|provider| provider.spec().id == id).cloned().ok_or_else(|| {
        let known: Vec<&str> =
            snapshot.providers.iter().map(|provider| provider.spec().id.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!("no provider `{id}` is there; there is {known}");
        KernelError::new(ErrorCode::ProviderUnavailable, message)
    })
}

fn first_model(provider: &dyn Provider) -> Option<String> {
    provider.spec().models.first().map(|model| model.id.clone())
}

fn no_model(provider: &str) -> KernelError {
    let message =
        format!("provider `{provider}` declares no model; name one with `--model {provider}/MODEL`");
    KernelError::new(ErrorCode::InvalidInput, message)
}

pub(super) fn fallback_notice() -> Notice {
    let text = "no provider is configured, so the embedded echo model answers: it repeats what you say. \
        Name a provider with `--model PROVIDER/MODEL` or `provider` in the settings";
    Notice { level: Level::Info, code: "NO_PROVIDER", text: text.to_owned() }
}
