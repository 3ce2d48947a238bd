//! A session: one actor that owns its state, driven through a cloneable handle.
//!
//! `actor` has the loop and the turn's side, `writes`, `commands` with `builtins` and `questions` what clients ask for, `repeats` what they
//! ask for again, `intake` the way through the submit hooks, `starting` the time in which plugins start, `segment` how a
//! run of a session begins and ends, `window` what the model sees of it. Clients read from the outbox's published state and
//! never wait for the actor.

mod actor;
mod builtins;
mod commands;
mod intake;
mod questions;
mod repeats;
mod segment;
mod starting;
mod window;
mod writes;

use std::sync::Arc;

use bingo_plugin_sdk::event::{CloseReason, ErrorCode, Input, KernelError};
use bingo_plugin_sdk::ids::{IntentId, InteractionId, SessionId};
use bingo_plugin_sdk::interaction::Answer;
use bingo_plugin_sdk::rpc::{Activation, ClientIdentity, Delivery, InterruptScope};
use bingo_plugin_sdk::session::SessionSummary;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::KernelParts;
use super::input::Work;
use super::intents::Digest;
use super::outbox::{Outbox, Subscription};
use super::store::Store;
use super::view::View;
use crate::ports::Notice;
pub(super) use segment::{Begin, thinking_of};

/// Writes that may wait for a session's actor.
const MAX_WRITES: usize = 256;

/// What a session is asked to do.
#[derive(Debug)]
pub(super) enum Write {
    /// Done once for each intent, and acknowledged.
    Asked {
        intent: IntentId,
        digest: Digest,
        ask: Ask,
    },
    /// `stored` hears when it is on the disk.
    Extend {
        plugin: String,
        kind: String,
        payload: Value,
        stored: oneshot::Sender<()>,
    },
    Signal {
        plugin: String,
        kind: String,
        payload: Value,
    },
    Notice(Notice),
    Close(CloseReason),
}

/// What is asked under an intent.
#[derive(Debug)]
pub(super) enum Ask {
    Submit { input: Box<Input>, work: Result<Work, KernelError> },
    Deliver { work: Result<Work, KernelError>, delivery: Delivery },
    Interrupt { scope: InterruptScope },
    Answer(Box<AnswerWrite>),
}

/// A client's answer to an interaction.
#[derive(Debug)]
pub(super) struct AnswerWrite {
    pub(super) interaction: InteractionId,
    pub(super) answer: Answer,
    pub(super) activation: Activation,
    pub(super) client: ClientIdentity,
}

/// A way to a live session.
#[derive(Clone)]
pub(super) struct SessionHandle {
    pub(super) id: SessionId,
    writes: mpsc::Sender<Write>,
    outbox: Outbox,
    /// The published summary, as it changes; closed when the session ended.
    summary: watch::Receiver<Arc<SessionSummary>>,
}

impl SessionHandle {
    /// Hands a write to the actor.
    ///
    /// # Errors
    /// `SESSION_CLOSED` when the session ended, with the reason when it could not be stored.
    pub(super) async fn write(&self, write: Write) -> Result<(), KernelError> {
        self.writes.send(write).await.map_err(|_| self.closed())
    }

    /// Hands over what is asked under an intent; what became of it is told by an `intentAck` frame.
    ///
    /// # Errors
    /// As `write`.
    pub(super) async fn ask(&self, intent: IntentId, digest: Digest, ask: Ask) -> Result<(), KernelError> {
        self.write(Write::Asked { intent, digest, ask }).await
    }

    /// Hands over a plugin's durable state and waits until it is stored.
    ///
    /// # Errors
    /// As `write`.
    pub(super) async fn extend(
        &self,
        plugin: String,
        kind: String,
        payload: Value,
    ) -> Result<(), KernelError> {
        let (stored, answer) = oneshot::channel();
        self.write(Write::Extend { plugin, kind, payload, stored }).await?;
        answer.await.map_err(|_| self.closed())
    }

    /// Hands over a remark without waiting; a session that is flooded loses it.
    pub(super) fn try_notice(&self, notice: Notice) {
        if let Err(error) = self.writes.try_send(Write::Notice(notice)) {
            tracing::warn!(session = %self.id, %error, "a notice was not taken");
        }
    }

    /// Subscribes to the session's frames.
    ///
    /// # Errors
    /// `SESSION_CLOSED` when the session ended.
    pub(super) async fn subscribe(&self) -> Result<Subscription, KernelError> {
        self.outbox.subscribe().await.ok_or_else(|| self.closed())
    }

    /// Returns the published transcript.
    ///
    /// # Errors
    /// `SESSION_CLOSED` when the session ended.
    pub(super) async fn view(&self) -> Result<View, KernelError> {
        self.outbox.view().await.ok_or_else(|| self.closed())
    }

    /// Waits until what was written so far is stored.
    ///
    /// # Errors
    /// `SESSION_CLOSED` when the session ended.
    pub(super) async fn flush(&self) -> Result<(), KernelError> {
        self.outbox.flush().await.ok_or_else(|| self.closed())
    }

    /// Returns the newest published summary.
    pub(super) fn summary(&self) -> SessionSummary {
        (**self.summary.borrow()).clone()
    }

    /// Returns whether the session ended.
    pub(super) fn is_closed(&self) -> bool {
        self.summary.has_changed().is_err()
    }

    /// Waits until the session ended and gave its journal back.
    pub(super) async fn ended(&self) {
        let mut summary = self.summary.clone();
        while summary.changed().await.is_ok() {}
    }

    fn closed(&self) -> KernelError {
        match self.outbox.failure() {
            Some(reason) => KernelError::new(ErrorCode::Storage, reason),
            None => KernelError::new(ErrorCode::SessionClosed, format!("session {} is closed", self.id)),
        }
    }
}

/// Starts the actor and the publisher of a session.
pub(super) fn spawn(parts: Arc<KernelParts>, begin: Begin, store: Store) -> SessionHandle {
    let (writes, write_queue) = mpsc::channel(MAX_WRITES);
    let id = begin.replay.state.summary.id.clone();
    let (outbox, publisher) = Outbox::new(Arc::clone(&parts), store, begin.replay.clone());
    let summary = publisher.summary();
    tokio::spawn(publisher.run());
    let actor = actor::Actor::new(parts, begin, outbox.clone());
    tokio::spawn(actor.run(write_queue));
    SessionHandle { id, writes, outbox, summary }
}
