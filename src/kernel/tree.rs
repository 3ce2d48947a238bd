//! A tree: the frames of a session and of its children in one stream (kernel rule 3.2.18).
//!
//! One task a session of the tree sends its frames, and reads from the journal what it has not got: from the first frame on
//! for a child, and whatever it missed because the client was slow. So the client never hears that it lagged. The tree
//! ends with its root.

use std::collections::BTreeMap;
use std::sync::Arc;

use bingo_plugin_sdk::event::{ErrorCode, Event, KernelError};
use bingo_plugin_sdk::ids::{Seq, SessionId};
use bingo_plugin_sdk::rpc::{GatewayEvent, SessionFilter};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::session::SessionHandle;
use super::stream::{FrameStream, Published};
use super::{FeedStream, Kernel};

/// Frames that wait for the client behind those of each session's own queue.
const MAX_WAITING: usize = 16;

/// The frames that follow an attachment: of one session, or of a tree.
pub enum Frames {
    Session(FrameStream),
    Tree(TreeStream),
}

impl Frames {
    /// Returns the next frame; nothing once the session ended, or lagged if it is no tree.
    pub async fn next(&mut self) -> Option<Arc<Published>> {
        match self {
            Self::Session(stream) => stream.next().await,
            Self::Tree(tree) => tree.frames.recv().await,
        }
    }

    /// Returns whether frames of children come along.
    pub fn is_tree(&self) -> bool {
        matches!(self, Self::Tree(_))
    }
}

/// The frames of a tree.
pub struct TreeStream {
    frames: mpsc::Receiver<Arc<Published>>,
    /// Sends them for as long as this lives.
    _trunk: AbortOnDropHandle<()>,
}

impl Kernel {
    /// Joins what follows of a session, behind `since`, with all frames of its children.
    ///
    /// # Errors
    /// `STORAGE` when the folder of sessions cannot be read.
    pub(super) async fn grow(
        &self,
        root: SessionHandle,
        since: Seq,
        stream: FrameStream,
    ) -> Result<TreeStream, KernelError> {
        // Before the children are listed, so that none is missed.
        let feed = self.subscribe_gateway();
        let filter = SessionFilter { parent: Some(root.id.clone()), ..SessionFilter::default() };
        let mut children = self.list(filter).await?;
        children.sort_by(|one, other| one.id.cmp(&other.id));
        let (sender, frames) = mpsc::channel(MAX_WAITING);
        let (reading, ending) = (Arc::new(Semaphore::new(1)), CancellationToken::new());
        let branch = Branch { kernel: self.clone(), frames: sender, reading, ending };
        let (growing, places) = (JoinSet::new(), BTreeMap::new());
        let mut trunk = Trunk { root: root.id.clone(), branch, growing, places };
        trunk.grow(root.id.clone(), since, Some((root, stream)));
        children.into_iter().for_each(|child| trunk.meet(child.id));
        Ok(TreeStream { frames, _trunk: AbortOnDropHandle::new(tokio::spawn(trunk.run(feed))) })
    }

    /// Returns the stored frames of a session behind `since`, and what follows if it is live.
    async fn rest_of(
        &self,
        id: &SessionId,
        since: Seq,
    ) -> Result<(Vec<Arc<Published>>, Option<Live>), KernelError> {
        if let Ok(session) = self.parts.session(id) {
            match self.rest(&session, since).await {
                // It ends just now; what it said last is stored then.
                Err(error) if error.code == ErrorCode::SessionClosed => session.ended().await,
                rest => return rest.map(|(stored, stream)| (stored, Some((session, stream)))),
            }
        }
        let read = self.parts.journal.read(id.clone(), since, Seq(u64::MAX)).await;
        let stored = read.map_err(|error| error.to_kernel())?;
        Ok((stored.into_iter().map(Published::new).collect(), None))
    }
}

/// A live session, and what follows of its frames.
type Live = (SessionHandle, FrameStream);

/// Follows the sessions of a tree, and hears of new ones.
struct Trunk {
    root: SessionId,
    branch: Branch,
    growing: JoinSet<(SessionId, Seq)>,
    /// The children that were met: the last frame that was sent of one that is not followed now.
    places: BTreeMap<SessionId, Option<Seq>>,
}

impl Trunk {
    async fn run(mut self, mut feed: FeedStream) {
        loop {
            tokio::select! {
                Some(ended) = self.growing.join_next() => {
                    let Ok((id, last)) = ended else { return };
                    if id == self.root {
                        break;
                    }
                    self.ended(id, last);
                }
                event = feed.next() => self.heard(&event),
            }
        }
        // What the children said before the root's end is still sent.
        self.branch.ending.cancel();
        while self.growing.join_next().await.is_some() {}
    }

    fn heard(&mut self, event: &GatewayEvent) {
        match event {
            GatewayEvent::SessionCreated { summary }
                if summary.parent.as_ref().is_some_and(|link| link.session == self.root) =>
            {
                self.meet(summary.id.clone());
            }
            GatewayEvent::SessionRemoved { session }
                if self.places.get(session).is_some_and(Option::is_some) =>
            {
                self.places.remove(session);
            }
            _ => {}
        }
    }

    /// Follows a child from where it was left, unless it is followed.
    fn meet(&mut self, child: SessionId) {
        let since = match self.places.get(&child) {
            None => Seq(0),
            Some(Some(last)) => *last,
            // It may be another run of it already: that is seen when this one ended.
            Some(None) => return,
        };
        self.places.insert(child.clone(), None);
        self.grow(child, since, None);
    }

    /// A child's run ended; if it is live again, it is followed on.
    fn ended(&mut self, child: SessionId, last: Seq) {
        let is_live = self.branch.kernel.parts.session(&child).is_ok();
        self.places.insert(child.clone(), Some(last));
        if is_live {
            self.meet(child);
        }
    }

    fn grow(&mut self, id: SessionId, since: Seq, live: Option<Live>) {
        self.growing.spawn(self.branch.clone().run(id, since, live));
    }
}

/// Sends the frames of one session.
#[derive(Clone)]
struct Branch {
    kernel: Kernel,
    frames: mpsc::Sender<Arc<Published>>,
    /// Held by whoever has stored frames in memory.
    reading: Arc<Semaphore>,
    /// Cancelled when the root ended.
    ending: CancellationToken,
}

impl Branch {
    /// Sends what is there behind `since`, and what follows, until this run of the session ends or the client is gone.
    /// Returns the last frame that was sent.
    async fn run(self, id: SessionId, mut since: Seq, mut live: Option<Live>) -> (SessionId, Seq) {
        let mut missed = None;
        loop {
            if live.is_none() {
                live = match self.read(&id, &mut since).await {
                    Ok(live) => live,
                    Err(error) => {
                        tracing::warn!(session = %id, %error, "a session of a tree cannot be read");
                        // Nobody can make up for what was missed, so it is said.
                        if let Some(missed) = missed {
                            self.send(&mut since, missed).await;
                        }
                        return (id, since);
                    }
                };
            }
            let Some((session, stream)) = live.take() else { return (id, since) };
            missed = self.follow(&mut since, stream).await;
            if missed.is_none() {
                self.ending.run_until_cancelled(session.ended()).await;
                return (id, since);
            }
        }
    }

    /// Sends the stored frames behind `since`; returns what follows if the session is live.
    async fn read(&self, id: &SessionId, since: &mut Seq) -> Result<Option<Live>, KernelError> {
        // It is never closed.
        let _reading = self.reading.acquire().await;
        let (stored, live) = self.kernel.rest_of(id, *since).await?;
        for frame in stored {
            if !self.send(since, frame).await {
                return Ok(None);
            }
        }
        Ok(live)
    }

    /// Sends live frames until there are no more; returns the mark of frames that were missed, if some were.
    async fn follow(&self, since: &mut Seq, mut stream: FrameStream) -> Option<Arc<Published>> {
        loop {
            let frame = tokio::select! {
                // What is there comes before the end.
                biased;
                frame = stream.next() => frame?,
                () = self.ending.cancelled() => return None,
            };
            if matches!(frame.frame.event, Event::Lagged { .. }) {
                return Some(frame);
            }
            if !self.send(since, frame).await {
                return None;
            }
        }
    }

    /// Returns whether the client is still there.
    async fn send(&self, since: &mut Seq, frame: Arc<Published>) -> bool {
        *since = frame.frame.seq;
        self.frames.send(frame).await.is_ok()
    }
}
