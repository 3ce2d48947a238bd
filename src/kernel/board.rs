//! The board for remarks of lower layers: they go to every live session, or wait for the next one to open.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::KernelParts;
use crate::ports::{Notice, Notices};

/// Remarks that wait while no session is open; past it the oldest is lost.
const MAX_WAITING: usize = 16;

/// Takes remarks from the start of the process on, before there is a kernel.
#[derive(Default)]
pub struct Board {
    waiting: Mutex<VecDeque<Notice>>,
    kernel: OnceLock<Weak<KernelParts>>,
}

impl Board {
    /// Shows remarks in the sessions of this kernel from now on.
    pub(super) fn connect(&self, kernel: &Arc<KernelParts>) {
        // A board serves one kernel; a second one would find it taken.
        let _ = self.kernel.set(Arc::downgrade(kernel));
    }

    /// Takes what waits: for a session that opens, or for the end of the process.
    pub fn take(&self) -> Vec<Notice> {
        self.lock().drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Notice>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notices for Board {
    fn post(&self, notice: Notice) {
        tracing::debug!(code = notice.code, text = notice.text, "a notice");
        let live = self.kernel.get().and_then(Weak::upgrade).map(|kernel| kernel.live()).unwrap_or_default();
        if !live.is_empty() {
            live.iter().for_each(|session| session.try_notice(notice.clone()));
            return;
        }
        let mut waiting = self.lock();
        if waiting.len() >= MAX_WAITING
            && let Some(lost) = waiting.pop_front()
        {
            tracing::warn!(code = lost.code, text = lost.text, "a notice that no session was there to show");
        }
        waiting.push_back(notice);
    }
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::item::Level;

    use super::*;

    #[test]
    fn the_newest_sixteen_wait_for_a_session() {
        let board = Board::default();
        for number in 0..20 {
            board.post(Notice { level: Level::Info, code: "N", text: number.to_string() });
        }
        let texts: Vec<String> = board.take().into_iter().map(|notice| notice.text).collect();
        assert_eq!(texts, (4..20).map(|number: i32| number.to_string()).collect::<Vec<_>>());
        assert!(board.take().is_empty());
    }
}
