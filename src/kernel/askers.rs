//! Which session asked what, so that an answer that is given to a tree reaches the child that asked (kernel rule 3.2.18).

use std::collections::{HashMap, VecDeque};

use bingo_plugin_sdk::event::{Event, Frame, KernelError};
use bingo_plugin_sdk::ids::{InteractionId, Seq, SessionId};
use bingo_plugin_sdk::rpc::SessionFilter;

use super::{GivenAnswer, Kernel};

/// Questions whose asker is known, the newest. Of older ones, and of those asked before this host started, the journals
/// of the children are read.
const KEPT: usize = 10_000;

/// Who asked.
#[derive(Debug, Default)]
pub(super) struct Askers {
    of: HashMap<InteractionId, SessionId>,
    /// The oldest first.
    order: VecDeque<InteractionId>,
}

impl Askers {
    /// Notes that a session asked.
    pub(super) fn note(&mut self, interaction: InteractionId, session: SessionId) {
        if self.order.len() == KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.of.remove(&oldest);
        }
        self.order.push_back(interaction.clone());
        self.of.insert(interaction, session);
    }

    fn find(&self, interaction: &InteractionId) -> Option<SessionId> {
        self.of.get(interaction).cloned()
    }
}

impl Kernel {
    /// Answers an interaction of a session or of one of its children; the outcome is told by an `intentAck` frame of the
    /// one that asked.
    ///
    /// # Errors
    /// As `answer`; and when the child that asked is only stored and cannot be opened.
    pub async fn answer_in_tree(&self, root: &SessionId, given: GivenAnswer) -> Result<(), KernelError> {
        self.require_live(root)?;
        let asker = self.asker(root, &given.interaction).await?;
        if asker != *root {
            // It asked before the host started, perhaps: then it still knows the intent.
            self.live_or_stored(&asker).await?;
        }
        self.answer(&asker, given).await
    }

    /// Returns which session of a tree opened an interaction; its root where none of its children did.
    async fn asker(&self, root: &SessionId, interaction: &InteractionId) -> Result<SessionId, KernelError> {
        let known = self.parts.lock().askers.find(interaction);
        if let Some(known) = &known {
            let live = self.parts.session(known).ok().and_then(|session| session.summary().parent);
            if known == root || live.is_some_and(|link| link.session == *root) {
                return Ok(known.clone());
            }
        }
        let filter = SessionFilter { parent: Some(root.clone()), ..SessionFilter::default() };
        let children = self.list(filter).await?;
        if let Some(known) = known {
            let is_ours = children.iter().any(|child| child.id == known);
            return Ok(if is_ours { known } else { root.clone() });
        }
        let asked = |frame: &Frame| matches!(&frame.event, Event::InteractionOpened { interaction: opened } if opened.id == *interaction);
        for child in children {
            let read = self.parts.journal.read(child.id.clone(), Seq(0), Seq(u64::MAX)).await;
            // One that cannot be read spoils no answer to another.
            if read.is_ok_and(|frames| frames.iter().any(asked)) {
                return Ok(child.id);
            }
        }
        Ok(root.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_askers_are_known() {
        let mut askers = Askers::default();
        for number in 0..=KEPT {
            askers.note(InteractionId::from(number.to_string()), SessionId::from("s"));
        }
        assert_eq!(askers.find(&InteractionId::from("0")), None);
        for known in ["1".to_owned(), KEPT.to_string()] {
            assert_eq!(askers.find(&InteractionId::from(known)), Some(SessionId::from("s")));
        }
        assert_eq!(askers.of.len(), KEPT);
    }
}
