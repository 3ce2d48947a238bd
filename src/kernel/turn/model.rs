//! A turn's requests to the model: assembling, streaming, trying again (kernel rules 4.2 and 4.4).

use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::event::{ErrorCode, Event, KernelError, Usage};
use bingo_plugin_sdk::item::ItemStatus;
use bingo_plugin_sdk::provider::{ModelRequest, ProviderError};

use super::{Progress, Stop, Turn};
use crate::kernel::compaction;
use crate::kernel::context;
use crate::kernel::response::Response;
use crate::ports::{ModelStream, Provider};

/// The most retries of one request.
const MAX_RETRIES: u32 = 10;
/// The first wait before a retry; it doubles.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// The longest wait of our own before a retry.
const LONGEST_DELAY: Duration = Duration::from_secs(32);
/// The longest wait that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(60);

impl Turn {
    /// Asks the model until a response is whole, with retries (kernel rule 4.2.15; counted per request).
    pub(super) async fn respond(&self, round: u32, progress: &mut Progress) -> Result<Response, Stop> {
        let mut request = self.request(round, progress).await?;
        let mut attempt = 0;
        loop {
            let mut response = Response::new(self.id.clone(), round);
            let Err(error) = self.stream(&request, &mut response, progress).await? else {
                return Ok(response);
            };
            for event in response.close(ItemStatus::Failed) {
                self.emit(event).await?;
            }
            let overflow = matches!(error, ProviderError::ContextOverflow { .. }) && !progress.overflowed;
            let delay = if overflow {
                Duration::ZERO
            } else {
                attempt += 1;
                let delay = retry_delay(&error, attempt).filter(|_| self.living_provider().is_some());
                delay.ok_or_else(|| to_kernel(&error))?
            };
            self.emit(Event::TurnRetrying {
                turn: self.id.clone(),
                attempt,
                max: MAX_RETRIES,
                delay_ms: delay.as_millis() as u64,
                dropped: response.items,
                reason: error.to_string(),
            })
            .await?;
            if overflow {
                progress.overflowed = true;
                self.compact_after_overflow(error.to_string()).await?;
                request = self.request(round, progress).await?;
            }
            self.unless_cancelled(tokio::time::sleep(delay)).await?;
        }
    }

    /// Streams one response; the inner error is the provider's.
    async fn stream(
        &self,
        request: &ModelRequest,
        response: &mut Response,
        progress: &mut Progress,
    ) -> Result<Result<(), ProviderError>, Stop> {
        let provider = self.living_provider().unwrap_or_else(|| Arc::clone(&self.provider));
        let mut stream = provider.stream(self.context.clone(), request.clone());
        if let Err(error) = self.fold(stream.as_mut(), response).await? {
            return Ok(Err(error));
        }
        let Some((usage, _)) = response.finish else {
            let message = "the answer ended without its finish".to_owned();
            return Ok(Err(ProviderError::Stream { message }));
        };
        for event in response.close(ItemStatus::Completed) {
            self.emit(event).await?;
        }
        let context = self.budget.usage(total(usage));
        self.emit(Event::TurnUsage { turn: self.id.clone(), usage, context }).await?;
        self.warn(context, progress).await?;
        Ok(Ok(()))
    }

    /// Returns the turn's provider, or after the death of its process the one that follows it: one that is dead as well
    /// says that another process is coming. Nothing means that none is.
    fn living_provider(&self) -> Option<Arc<dyn Provider>> {
        if !self.provider.is_gone() {
            return Some(Arc::clone(&self.provider));
        }
        let id = &self.provider.spec().id;
        self.offers.snapshot().providers.iter().find(|provider| provider.spec().id == *id).cloned()
    }

    async fn fold(
        &self,
        stream: &mut dyn ModelStream,
        response: &mut Response,
    ) -> Result<Result<(), ProviderError>, Stop> {
        while let Some(next) = self.unless_cancelled(stream.next()).await? {
            match next.and_then(|event| response.event(event)) {
                Ok(None) => {}
                Ok(Some(event)) => self.emit(event).await?,
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(()))
    }

    /// Assembles a request: what contributors add, then the transcript as it stands.
    async fn request(&self, round: u32, progress: &Progress) -> Result<ModelRequest, Stop> {
        let contributed = self.contribute_before_request(round).await?;
        let mut items = self.transcript().await?.items;
        if progress.overflowed {
            compaction::elide(&mut items);
        }
        let provider = &self.provider.spec().id;
        let extra = self.system_extra.as_deref();
        let mut system = context::system(&self.context.cwd, provider, &self.model, extra);
        system.extend(contributed);
        let tools = self.tools.iter().map(|tool| {
            let mut spec = tool.spec().clone();
            // Catalog facts are not for the model.
            spec.meta.clear();
            spec
        });
        Ok(ModelRequest {
            model: self.model.clone(),
            max_tokens: self.budget.max_tokens,
            system,
            messages: context::messages(&items, self.budget.images),
            tools: tools.collect(),
            reasoning: self.budget.reasoning,
            provider_options: Default::default(),
        })
    }
}

/// Returns what a response and its request fill of the window.
fn total(usage: Usage) -> u64 {
    let counts = [usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.output_tokens];
    counts.into_iter().fold(0, u64::saturating_add)
}

/// Returns how long to wait before the next try, or nothing when there is none (kernel rule 4.2.15).
fn retry_delay(error: &ProviderError, attempt: u32) -> Option<Duration> {
    let asked = match error {
        ProviderError::RateLimited { retry_after_ms } => retry_after_ms.map(Duration::from_millis),
        ProviderError::Server { .. }
        | ProviderError::Transport { .. }
        | ProviderError::Stream { .. }
        | ProviderError::Timeout => None,
        ProviderError::Auth { .. }
        | ProviderError::ContextOverflow { .. }
        | ProviderError::Request { .. }
        | ProviderError::Unsupported { .. }
        | ProviderError::Config { .. } => return None,
    };
    let own = FIRST_DELAY.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST_DELAY);
    (attempt <= MAX_RETRIES).then(|| asked.map_or(own, |asked| asked.min(LONGEST_ASKED)))
}

/// Returns the error of a turn that its provider failed (kernel rule 4.2.16).
fn to_kernel(error: &ProviderError) -> KernelError {
    let code = match error {
        ProviderError::Auth { .. } => ErrorCode::AuthRequired,
        ProviderError::RateLimited { .. } => ErrorCode::RateLimited,
        ProviderError::ContextOverflow { .. } => ErrorCode::ContextOverflow,
        ProviderError::Server { .. } => ErrorCode::ServerError,
        ProviderError::Request { .. } | ProviderError::Config { .. } | ProviderError::Unsupported { .. } => {
            ErrorCode::InvalidInput
        }
        ProviderError::Transport { .. } | ProviderError::Stream { .. } => ErrorCode::Offline,
        ProviderError::Timeout => ErrorCode::Timeout,
    };
    KernelError::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 4.2.15.
    #[test]
    fn waits_double_up_to_their_cap_and_end_after_ten() {
        let error = ProviderError::Timeout;
        let waits: Vec<u128> =
            (1..=10).map(|attempt| retry_delay(&error, attempt).unwrap().as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 32000, 32000, 32000, 32000]);
        assert_eq!(retry_delay(&error, 11), None);
    }

    /// Rule 4.2.15.
    #[test]
    fn a_server_may_ask_for_at_most_a_minute() {
        for (asked, expected) in [(Some(5), 5), (Some(600_000), 60_000), (None, 500)] {
            let error = ProviderError::RateLimited { retry_after_ms: asked };
            assert_eq!(retry_delay(&error, 1), Some(Duration::from_millis(expected)));
        }
    }

    /// Rule 4.2.15.
    #[test]
    fn what_cannot_get_better_is_not_tried_again() {
        let message = String::new();
        for error in [
            ProviderError::Auth { message: message.clone() },
            ProviderError::ContextOverflow { message: message.clone() },
            ProviderError::Request { message: message.clone() },
            ProviderError::Unsupported { message: message.clone() },
            ProviderError::Config { message },
        ] {
            assert_eq!(retry_delay(&error, 1), None, "{error:?}");
        }
    }
}
