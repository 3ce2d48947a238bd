//! The clock of all deadlines of one process of a plugin: it stands still while a debugger is attached to it.
//!
//! A deadline begins anew when the debugger lets go, so that whoever stood at a breakpoint has all of it. The process is
//! looked at once a second while something waits for it, and once more before a deadline passes.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::item::Level;
use tokio::time::{Duration, Instant, sleep};

use crate::ports::{Notice, Notices};
use crate::supervisor::guard::{ProcessMetrics, Vitals};

/// How often a process that something waits for is looked at: a debugger of a person stays for longer.
const LOOK: Duration = Duration::from_secs(1);

/// The clock of one connection.
pub(crate) struct Clock {
    plugin: PluginName,
    notices: Arc<dyn Notices>,
    /// Where there is one: its deadlines alone stand still.
    process: OnceLock<Arc<Vitals>>,
    debugger: Mutex<Debugger>,
}

/// What was seen of a debugger.
#[derive(Default)]
struct Debugger {
    is_attached: bool,
    /// The last moment at which it held the process.
    held: Option<Instant>,
    looked: Option<Instant>,
}

impl Clock {
    pub(crate) fn new(plugin: PluginName, notices: Arc<dyn Notices>) -> Self {
        Self { plugin, notices, process: OnceLock::new(), debugger: Mutex::default() }
    }

    pub(super) fn name_process(&self, vitals: Arc<Vitals>) {
        // A second one is a mistake of the caller that harms nothing.
        let _ = self.process.set(vitals);
    }

    pub(super) fn process(&self) -> Option<ProcessMetrics> {
        self.process.get().map(|vitals| vitals.read())
    }

    /// Waits until `limit` has passed since the moment that `since` says, asked again whenever it seems so. Dropping it
    /// stops the waiting.
    pub(crate) async fn passed(&self, since: impl Fn() -> Instant, limit: Duration) {
        let _last = LastLook(self);
        if self.is_attached() {
            self.look();
        }
        while !self.is_over(since(), limit) {
            let left = limit.saturating_sub(self.since(since()).elapsed());
            sleep(if self.is_attached() { LOOK } else { left.min(LOOK) }).await;
            self.look_again();
        }
    }

    /// Returns whether `limit` has passed since a moment.
    pub(crate) fn is_over(&self, since: Instant, limit: Duration) -> bool {
        if self.since(since).elapsed() < limit {
            return false;
        }
        self.look();
        self.since(since).elapsed() >= limit
    }

    /// Returns from when on a time counts that began at a moment.
    pub(crate) fn since(&self, moment: Instant) -> Instant {
        let debugger = self.debugger.lock().unwrap_or_else(PoisonError::into_inner);
        debugger.held.map_or(moment, |held| held.max(moment))
    }

    fn is_attached(&self) -> bool {
        self.debugger.lock().unwrap_or_else(PoisonError::into_inner).is_attached
    }

    /// Looks, unless somebody did a moment ago.
    fn look_again(&self) {
        let looked = self.debugger.lock().unwrap_or_else(PoisonError::into_inner).looked;
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            self.look();
        }
    }

    fn look(&self) {
        let Some(process) = self.process.get() else { return };
        let mut debugger = self.debugger.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that who looked first does not have the last word.
        let (is_attached, now) = (process.is_traced(), Instant::now());
        let was_attached = std::mem::replace(&mut debugger.is_attached, is_attached);
        debugger.looked = Some(now);
        if is_attached || was_attached {
            debugger.held = Some(now);
        }
        drop(debugger);
        if is_attached != was_attached {
            self.tell(is_attached);
        }
    }

    fn tell(&self, is_attached: bool) {
        let (code, what) = if is_attached {
            ("DEADLINES_HELD", "a debugger is attached to its process, so its deadlines stand still")
        } else {
            ("DEADLINES_RUN", "the debugger has let go of its process, so its deadlines run again")
        };
        tracing::info!(plugin = %self.plugin, is_attached, "a debugger");
        let text = format!("{}: {what}", self.plugin);
        self.notices.post(Notice { level: Level::Info, code, text });
    }
}

/// Looks at the end of a waiting under a debugger: nobody may look later.
struct LastLook<'a>(&'a Clock);

impl Drop for LastLook<'_> {
    fn drop(&mut self) {
        if self.0.is_attached() {
            self.0.look();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::testing::{Debuggee, Heard};

    const LIMIT: Duration = Duration::from_secs(5);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn clock() -> (Arc<Clock>, Debuggee, Arc<Heard>) {
        let (heard, debuggee) = (Arc::new(Heard::default()), Debuggee::start());
        let clock = Clock::new(PluginName::parse("p").unwrap(), heard.clone());
        clock.name_process(debuggee.vitals());
        (Arc::new(clock), debuggee, heard)
    }

    /// Waits for a limit from now; returns how long that took.
    async fn waited(clock: Arc<Clock>, limit: Duration) -> Duration {
        let begun = Instant::now();
        clock.passed(|| begun, limit).await;
        begun.elapsed()
    }

    const HELD: &str = "p: a debugger is attached to its process, so its deadlines stand still";
    const RUN: &str = "p: the debugger has let go of its process, so its deadlines run again";

    #[tokio::test(start_paused = true)]
    async fn a_deadline_begins_anew_when_the_debugger_lets_go_and_both_are_said_once() {
        let (clock, debuggee, heard) = clock();
        let waits: Vec<_> = [LIMIT, LIMIT, Duration::from_millis(10)]
            .map(|limit| tokio::spawn(waited(Arc::clone(&clock), limit)))
            .into();
        debuggee.attach();
        sleep(secs(1000)).await;
        assert!(waits.iter().all(|wait| !wait.is_finished()));
        assert_eq!(heard.texts(), [HELD]);
        debuggee.detach();
        for wait in waits {
            let waited = wait.await.unwrap();
            assert!(secs(1000) < waited && waited <= secs(1001) + LIMIT, "{waited:?}");
        }
        assert_eq!(heard.texts(), [HELD, RUN]);
        assert_eq!(waited(clock, LIMIT).await, LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_debugger_that_has_left_before_the_deadline_counts_too() {
        let (clock, debuggee, heard) = clock();
        let wait = tokio::spawn(waited(clock, LIMIT));
        sleep(secs(2)).await;
        debuggee.attach();
        sleep(Duration::from_millis(2500)).await;
        debuggee.detach();
        assert!(wait.await.unwrap() >= Duration::from_millis(4500) + LIMIT);
        assert_eq!(heard.texts(), [HELD, RUN]);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_waiting_looks_once_more() {
        let (clock, debuggee, heard) = clock();
        let wait = tokio::spawn(waited(Arc::clone(&clock), LIMIT));
        debuggee.attach();
        sleep(secs(20)).await;
        debuggee.detach();
        wait.abort();
        assert!(wait.await.unwrap_err().is_cancelled());
        assert_eq!(heard.texts(), [HELD, RUN]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_process_time_passes() {
        let clock = Clock::new(PluginName::parse("p").unwrap(), Arc::new(Heard::default()));
        assert_eq!(waited(Arc::new(clock), LIMIT).await, LIMIT);
    }
}
