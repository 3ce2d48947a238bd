//! Requests that come again under their intent: they are done once and acknowledged each time (design §7).

use bingo_plugin_sdk::event::{ErrorCode, Event, IntentOutcome, KernelError};
use bingo_plugin_sdk::ids::{IntentId, Seq, SessionId};
use bingo_plugin_sdk::item::Level;

use super::actor::{Actor, Done};
use crate::kernel::KernelParts;
use crate::kernel::intents::{Digest, Seen};
use crate::ports::JournalError;

/// What a request came to the first time, read back for a client that asked again.
pub(super) struct Repeated {
    intent: IntentId,
    /// Nothing when the session ended meanwhile.
    outcome: Result<Option<IntentOutcome>, JournalError>,
}

impl Actor {
    /// Returns whether a request is to be done. One that was done, or is being done, is told what became of it.
    pub(super) fn is_first(&mut self, intent: &IntentId, digest: Digest) -> bool {
        match self.intents.begin(intent, digest) {
            Seen::New => return true,
            Seen::Differs => self.refuse_other(intent, digest),
            Seen::UnderWay | Seen::Acknowledged(_) if let Some(position) = self.queue.position(intent) => {
                self.acknowledge(intent, IntentOutcome::Queued { position });
            }
            // It is acknowledged when it is done.
            Seen::UnderWay => {}
            Seen::Acknowledged(seq) => self.read_back(intent.clone(), seq),
        }
        false
    }

    /// Acknowledges what was asked again as it was the first time.
    pub(super) fn repeated(&mut self, repeated: Repeated) {
        match repeated.outcome {
            Ok(Some(outcome)) => self.acknowledge(&repeated.intent, outcome),
            Ok(None) => {}
            Err(error) => {
                let cause = error.to_kernel().message;
                let text = format!("what became of {} cannot be read: {cause}", repeated.intent);
                self.emit(Event::Notice { level: Level::Error, code: "STORAGE".to_owned(), text });
            }
        }
    }

    fn refuse_other(&mut self, intent: &IntentId, digest: Digest) {
        let message =
            format!("intent {intent} belongs to another request; send this one under an intent of its own");
        let error = KernelError::new(ErrorCode::InvalidInput, message);
        let (outcome, digest) = (IntentOutcome::Rejected { error }, Some(digest.to_string()));
        self.emit_caused(Some(intent), Event::IntentAck { intent: intent.clone(), outcome, digest });
    }

    /// Reads an acknowledgement back, beside the actor: it may not even be stored yet.
    fn read_back(&mut self, intent: IntentId, seq: Seq) {
        self.commit();
        let (parts, outbox, done) = (self.parts.clone(), self.outbox.clone(), self.done.clone());
        let session = self.state.summary.id.clone();
        tokio::spawn(async move {
            if outbox.flush().await.is_some() {
                let outcome = acknowledgement(&parts, session, seq).await;
                // A session that ended meanwhile says nothing more.
                drop(done.send(Done::Repeated(Repeated { intent, outcome })).await);
            }
        });
    }
}

async fn acknowledgement(
    parts: &KernelParts,
    session: SessionId,
    seq: Seq,
) -> Result<Option<IntentOutcome>, JournalError> {
    let frames = parts.journal.pick(session, vec![seq]).await?;
    Ok(frames.into_iter().find_map(|frame| match frame.event {
        Event::IntentAck { outcome, .. } => Some(outcome),
        _ => None,
    }))
}
