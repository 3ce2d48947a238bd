//! The time in which plugins start when a session opens: what was submitted waits for them, and the person is told for whom.

use std::time::Duration;

use bingo_plugin_sdk::calls::Phase;
use bingo_plugin_sdk::item::Level;
use tokio::time::Instant;

use super::actor::Actor;
use crate::kernel::models::{ChosenModel, fallback_notice};
use crate::ports::{BoxFuture, Notice, Offers};

/// How long an input waits before the person is told why.
const SHORT: Duration = Duration::from_millis(200);

/// Plugins are starting.
pub(super) struct Starting {
    settled: BoxFuture<'static, ()>,
    /// When to tell that something waits; absent while nothing does, and once it was told.
    tell_at: Option<Instant>,
    told: bool,
}

/// What happens in that time.
pub(super) enum Start {
    /// Nothing is starting any more.
    Settled,
    /// Something waits for longer than a moment.
    Slow,
}

impl Starting {
    /// Returns nothing when no plugin is starting.
    pub(super) fn of(offers: &dyn Offers) -> Option<Self> {
        let starts = !offers.starting().is_empty();
        starts.then(|| Self { settled: offers.settled(), tell_at: None, told: false })
    }

    async fn next(&mut self) -> Start {
        let tell = async {
            match self.tell_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = &mut self.settled => Start::Settled,
            () = tell => Start::Slow,
        }
    }
}

/// Waits for what happens next while plugins start; for ever when none do.
pub(super) async fn next(starting: &mut Option<Starting>) -> Start {
    match starting {
        Some(starting) => starting.next().await,
        None => std::future::pending().await,
    }
}

impl Actor {
    /// Something waits for plugins that are starting.
    pub(super) fn waits_for_plugins(&mut self) {
        if let Some(starting) = self.starting.as_mut().filter(|starting| !starting.told) {
            starting.tell_at.get_or_insert_with(|| Instant::now() + SHORT);
        }
    }

    pub(super) fn start_went_on(&mut self, start: Start) {
        match start {
            Start::Settled => self.plugins_settled(),
            Start::Slow => self.tell_starting(),
        }
    }

    fn tell_starting(&mut self) {
        let names = self.parts.offers.starting();
        if let Some(starting) = &mut self.starting {
            (starting.tell_at, starting.told) = (None, true);
        }
        if !names.is_empty() {
            let text = format!("waiting for plugins that are starting: {}", names.join(", "));
            self.notice(Notice { level: Level::Info, code: "PLUGINS_STARTING", text });
        }
    }

    /// Every plugin of the start is there, or failed: what waited goes on.
    fn plugins_settled(&mut self) {
        self.starting = None;
        self.choose_model();
        self.observe_session(Phase::Start);
        self.ask_submit_hooks();
        self.drain_after_intake();
    }

    /// Makes up for the choice that could not be made when the session was created.
    fn choose_model(&mut self) {
        let summary = self.state.summary.clone();
        if summary.provider.is_some() && summary.model.is_some() {
            return;
        }
        // Without one a turn fails, and says why.
        let chosen = self.parts.choose_model(summary.driver, summary.provider, summary.model);
        let Ok(Some(ChosenModel { provider, model, is_fallback })) = chosen else { return };
        self.change_summary(|summary| (summary.provider, summary.model) = (provider, model));
        if is_fallback {
            self.notice(fallback_notice());
        }
    }
}
