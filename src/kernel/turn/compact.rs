//! A turn's compactions: at the threshold, after an overflow, by hand (kernel rules 4.5.44 to 49).

use std::sync::Arc;
use std::time::Instant;

use bingo_plugin_sdk::calls::{CompactReason, CompactorContext, ObservePoint, Phase};
use bingo_plugin_sdk::event::{ErrorCode, Event, KernelError};
use bingo_plugin_sdk::item::{Item, Level};

use super::{CompactionDone, Progress, Stop, Transcript, Turn, TurnMessage};
use crate::kernel::compaction::{self, BREAKER, MAX_PER_TURN};
use crate::kernel::hooks;

impl Turn {
    /// Shortens the context before the first request while it is past its trigger.
    pub(super) async fn compact_at_threshold(&self, progress: &mut Progress) -> Result<(), Stop> {
        if self.context.snapshot.compactors.is_empty() {
            return Ok(());
        }
        loop {
            let transcript = self.transcript().await?;
            let usage = self.budget.usage(transcript.size());
            if usage.used < usage.trigger {
                return Ok(());
            }
            if transcript.failures >= BREAKER {
                let text =
                    format!("the last {BREAKER} compactions were of no use, so the context is left as it is");
                return self.remark("COMPACTION_SKIPPED", text).await;
            }
            if progress.threshold_compactions >= MAX_PER_TURN {
                let text = format!(
                    "the context was shortened {MAX_PER_TURN} times in this turn and is still too large"
                );
                return self.remark("COMPACTION_SKIPPED", text).await;
            }
            progress.threshold_compactions += 1;
            if !self.compact(transcript, CompactReason::Threshold).await? {
                return Ok(());
            }
        }
    }

    /// Shortens the context once after the provider said that it is too large.
    pub(super) async fn compact_after_overflow(&self, message: String) -> Result<(), Stop> {
        if !self.context.snapshot.compactors.is_empty() {
            let transcript = self.transcript().await?;
            self.compact(transcript, CompactReason::Overflow { message }).await?;
        }
        Ok(())
    }

    /// Shortens the context because a person asked for it.
    pub(super) async fn compact_by_hand(&self, instructions: Option<String>) -> Result<(), Stop> {
        if self.context.snapshot.compactors.is_empty() {
            let message = "no plugin offers a compactor, so the conversation cannot be compacted";
            return Err(KernelError::new(ErrorCode::InvalidInput, message).into());
        }
        let transcript = self.transcript().await?;
        self.compact(transcript, CompactReason::Manual { instructions }).await.map(|_| ())
    }

    /// Asks the compactor; returns whether its answer counts. Failing is told, and is no end of the turn.
    async fn compact(
        &self,
        transcript: Transcript<Vec<Arc<Item>>>,
        reason: CompactReason,
    ) -> Result<bool, Stop> {
        let Some(compactor) = self.context.snapshot.compactors.first() else { return Ok(false) };
        let usage = self.budget.usage(transcript.size());
        let over = CompactorContext {
            items: transcript.items.iter().map(|item| (**item).clone()).collect(),
            usage,
            capabilities: self.capabilities(),
            model: self.model.clone(),
            failures: transcript.failures,
            keep_budget: usage.window / 4,
        };
        let started = Instant::now();
        self.observe_compaction(Phase::Start);
        let answer = self.unless_cancelled(compactor.compact(self.context.clone(), over, reason)).await;
        self.observe_compaction(Phase::End);
        match answer? {
            Ok(compaction) => {
                let verdict = compaction::judge(&compaction, &transcript.items);
                let done = Box::new(CompactionDone { compaction, took: started.elapsed(), verdict });
                self.ask(|reply| TurnMessage::Compacted(done, reply)).await
            }
            Err(error) => {
                self.remark("COMPACTION_FAILED", format!("{}: {}", compactor.name(), error.message)).await?;
                Ok(false)
            }
        }
    }

    fn observe_compaction(&self, phase: Phase) {
        hooks::observe(&self.context.snapshot, &self.site(), &ObservePoint::Compact { phase });
    }

    async fn remark(&self, code: &str, text: String) -> Result<(), Stop> {
        self.emit(Event::Notice { level: Level::Warn, code: code.to_owned(), text }).await
    }
}
