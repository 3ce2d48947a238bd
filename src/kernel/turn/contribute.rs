//! What contributors add to a turn: system blocks, and words recorded in the transcript (kernel rules 4.4.36 and 37).
//!
//! Contributors are asked side by side, so that several slow ones cost one deadline.

use std::sync::Arc;

use bingo_plugin_sdk::calls::{ContextPiece, ContributeQuery};
use bingo_plugin_sdk::event::Event;
use bingo_plugin_sdk::handshake::Placement;
use bingo_plugin_sdk::item::{ContentPart, Item, ItemBody, Level, Origin};
use bingo_plugin_sdk::provider::{ModelCapabilities, SystemBlock};

use super::{Stop, Transcript, Turn};
use crate::ports::Contributor;

impl Turn {
    /// Asks what belongs into every request; returns the system blocks by ascending order, records the rest.
    pub(super) async fn contribute_before_request(&self, round: u32) -> Result<Vec<SystemBlock>, Stop> {
        let mut wanted = self.contributors(|placement| !matches!(placement, Placement::Barrier));
        // A stable sort: contributors of one order stay as they are listed.
        wanted.sort_by_key(|contributor| match contributor.placement() {
            Placement::System { order } => *order,
            Placement::RoundStart | Placement::Barrier => i32::MAX,
        });
        self.contribute(round, wanted).await
    }

    /// Asks what belongs after tool results, and records it.
    pub(super) async fn contribute_at_barrier(&self, round: u32) -> Result<(), Stop> {
        let wanted = self.contributors(|placement| matches!(placement, Placement::Barrier));
        self.contribute(round, wanted).await.map(|_| ())
    }

    fn contributors(&self, accept: impl Fn(&Placement) -> bool) -> Vec<Arc<dyn Contributor>> {
        let all = self.context.snapshot.contributors.iter();
        all.filter(|contributor| accept(contributor.placement())).cloned().collect()
    }

    async fn contribute(
        &self,
        round: u32,
        contributors: Vec<Arc<dyn Contributor>>,
    ) -> Result<Vec<SystemBlock>, Stop> {
        if contributors.is_empty() {
            return Ok(Vec::new());
        }
        let transcript = self.transcript().await?;
        let query = self.query(round, &transcript);
        let asked: Vec<_> = contributors
            .iter()
            .map(|contributor| tokio::spawn(contributor.contribute(self.context.clone(), query.clone())))
            .collect();
        let mut blocks = Vec::new();
        for (contributor, answer) in contributors.iter().zip(asked) {
            match self.unless_cancelled(answer).await? {
                Ok(Ok(pieces)) => {
                    blocks.extend(
                        self.take_pieces(round, contributor.as_ref(), pieces, &transcript.items).await?,
                    );
                }
                Ok(Err(error)) => self.contributor_failed(contributor.name(), &error.message).await?,
                Err(error) => self.contributor_failed(contributor.name(), &error.to_string()).await?,
            }
        }
        Ok(blocks)
    }

    /// Returns the system blocks of an answer, and records its words unless they stand there unchanged.
    async fn take_pieces(
        &self,
        round: u32,
        contributor: &dyn Contributor,
        pieces: Vec<ContextPiece>,
        items: &[Arc<Item>],
    ) -> Result<Vec<SystemBlock>, Stop> {
        let surface = format!("contributor:{}", contributor.name());
        let (mut blocks, mut words) = (Vec::new(), Vec::new());
        for piece in pieces {
            match piece {
                ContextPiece::System(block) => blocks.push(block),
                ContextPiece::User { parts, .. } => words.push(parts),
            }
        }
        if !stand_there(items, &surface, &words) {
            for parts in words {
                self.record(round, parts, Origin::surface(&surface)).await?;
            }
        }
        Ok(blocks)
    }

    async fn contributor_failed(&self, name: &str, reason: &str) -> Result<(), Stop> {
        let text = format!("the context of {name} is missing in this request: {reason}");
        let code = "CONTRIBUTOR_FAILED".to_owned();
        self.emit(Event::Notice { level: Level::Warn, code, text }).await
    }

    fn query(&self, round: u32, transcript: &Transcript<Vec<Arc<Item>>>) -> ContributeQuery {
        ContributeQuery {
            session: transcript.summary.clone(),
            turn: self.id.clone(),
            round,
            items: transcript.items.iter().map(|item| (**item).clone()).collect(),
            usage: self.budget.usage(transcript.size()),
            capabilities: self.capabilities(),
            cwd: self.context.cwd.to_string_lossy().into_owned(),
        }
    }

    pub(super) fn capabilities(&self) -> ModelCapabilities {
        let endpoint = self.provider.spec().endpoint;
        ModelCapabilities {
            context_window: self.budget.window,
            max_output: u64::from(self.budget.max_tokens),
            images: self.budget.images,
            reasoning: self.budget.reasoning.is_some(),
            count_tokens: endpoint.count_tokens,
            caching: endpoint.caching,
        }
    }
}

/// Returns whether the last words of this contributor that the model sees are these.
fn stand_there(items: &[Arc<Item>], surface: &str, words: &[Vec<ContentPart>]) -> bool {
    let said = items.iter().rev().filter_map(|item| match &item.body {
        ItemBody::User { parts, origin } if origin.surface == surface => Some(parts),
        _ => None,
    });
    said.take(words.len()).eq(words.iter().rev())
}
