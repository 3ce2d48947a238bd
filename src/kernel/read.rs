//! Reading from the kernel: lists, pages of history, frames again, catalogs.

use std::collections::BTreeSet;
use std::sync::Arc;

use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use bingo_plugin_sdk::ids::{Seq, SessionId};
use bingo_plugin_sdk::rpc::{Catalog, CatalogKind, HistoryChunk, HistoryPage, SessionFilter};
use bingo_plugin_sdk::session::SessionSummary;

use super::session::SessionHandle;
use super::stream::FrameStream;
use super::{Frames, Kernel, Published, Resumption, catalog, open};

/// The most bytes of items in one page of history, unless one item is larger: a line to a client is bounded.
const MAX_PAGE: usize = 32 * 1024 * 1024;

impl Kernel {
    /// Lists live and stored sessions, the last updated first.
    ///
    /// # Errors
    /// `STORAGE` when the folder of sessions cannot be read; one unreadable session is a notice.
    pub async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionSummary>, KernelError> {
        let stored = self.parts.journal.list().await.map_err(|error| error.to_kernel())?;
        self.parts.tell_problems(&stored.problems);
        let mut sessions: Vec<SessionSummary> =
            self.parts.live().iter().map(SessionHandle::summary).collect();
        let live: BTreeSet<SessionId> = sessions.iter().map(|summary| summary.id.clone()).collect();
        sessions.extend(stored.sessions.into_iter().filter(|summary| !live.contains(&summary.id)));
        if let Some(cwd) = filter.cwd {
            let cwd = open::real_path(cwd).await;
            let mut kept = Vec::new();
            for summary in sessions {
                if open::real_path(summary.cwd.clone()).await == cwd {
                    kept.push(summary);
                }
            }
            sessions = kept;
        }
        if let Some(parent) = filter.parent {
            sessions.retain(|summary| summary.parent.as_ref().is_some_and(|link| link.session == parent));
        }
        sessions.sort_by(|a, b| b.updated_at.cmp(&a.updated_at).then_with(|| b.id.cmp(&a.id)));
        sessions.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(sessions)
    }

    /// Reads a page of a session's items (kernel rule 3.2.19); a page that would be too large for one line is shorter, and
    /// `next` goes on from there.
    ///
    /// # Errors
    /// When the session is not live; `STALE_GENERATION` when the page goes on from one of another generation; `STORAGE` when
    /// items cannot be read.
    pub async fn history(&self, id: &SessionId, page: HistoryPage) -> Result<HistoryChunk, KernelError> {
        let view = self.parts.session(id)?.view().await?;
        let generation = view.generation();
        if let Some(asked) = page.generation.filter(|asked| *asked != generation) {
            let message = format!(
                "the history changed: this page goes on from generation {asked}, now it has {generation}; begin again at the newest items"
            );
            return Err(KernelError::new(ErrorCode::StaleGeneration, message));
        }
        let end = page.before.and_then(|id| view.position(&id)).unwrap_or(view.len());
        let most = if page.limit == 0 { usize::MAX } else { page.limit };
        let items = view.ending_at(&*self.parts.journal, end, most, MAX_PAGE).await?;
        let next = items.first().filter(|_| items.len() < end).map(|item| item.id.clone());
        let items = items.into_iter().map(Arc::unwrap_or_clone).collect();
        Ok(HistoryChunk { items, next, generation })
    }

    /// Goes on from after `since`: stored frames, then live ones, without gap or repeat.
    ///
    /// # Errors
    /// When the session is not live, or its journal cannot be read.
    pub async fn resume_events(&self, id: &SessionId, since: Seq) -> Result<Resumption, KernelError> {
        let (frames, stream) = self.rest(&self.parts.session(id)?, since).await?;
        Ok(Resumption { frames, stream: Frames::Session(stream) })
    }

    /// Does the same for a tree: its root goes on from after `since`, its children come again from their first frames.
    ///
    /// # Errors
    /// As `resume_events`.
    pub async fn resume_tree(&self, id: &SessionId, since: Seq) -> Result<Resumption, KernelError> {
        let session = self.parts.session(id)?;
        let (frames, stream) = self.rest(&session, since).await?;
        let last = frames.last().map_or(since, |published| published.frame.seq);
        let tree = self.grow(session, last, stream).await?;
        Ok(Resumption { frames, stream: Frames::Tree(tree) })
    }

    /// Returns a live session's frames behind `since`: the stored ones, and those that follow.
    ///
    /// # Errors
    /// When it ended, or its journal cannot be read.
    pub(super) async fn rest(
        &self,
        session: &SessionHandle,
        since: Seq,
    ) -> Result<(Vec<Arc<Published>>, FrameStream), KernelError> {
        let subscription = session.subscribe().await?;
        let through = subscription.snapshot.seq;
        let read = self.parts.journal.read(session.id.clone(), since, through).await;
        let stored = read.map_err(|error| error.to_kernel())?;
        Ok((stored.into_iter().map(Published::new).collect(), subscription.stream))
    }

    /// Returns a catalog. It waits a moment for plugins that are starting; that later ones are there is told.
    pub async fn catalog(&self, kind: CatalogKind) -> Catalog {
        self.parts.wait_for_plugins().await;
        let configured = self.parts.defaults.configured();
        let snapshot = self.parts.offers.snapshot();
        self.parts.changes.given(kind, snapshot.number);
        catalog::read(&snapshot, kind, &configured)
    }
}
