//! When a plugin that died is started again: after a growing pause, and no more once it dies too often.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use tokio::time::Instant;

/// How a plugin is restarted: the settings table `supervisor.<name>.restart`. Times are milliseconds there.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RestartPolicy {
    /// The pause before the first restart; it doubles with each further one.
    #[serde(deserialize_with = "millis")]
    pub delay: Duration,
    #[serde(deserialize_with = "millis")]
    pub longest_delay: Duration,
    /// A process that lived this long starts the pauses anew.
    #[serde(deserialize_with = "millis")]
    pub reset_after: Duration,
    /// After so many deaths of processes that did not live that long, within `within`, it stays down; 0 means never.
    pub deaths: usize,
    #[serde(deserialize_with = "millis")]
    pub within: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(500),
            longest_delay: Duration::from_secs(30),
            reset_after: Duration::from_secs(60),
            deaths: 5,
            within: Duration::from_secs(120),
        }
    }
}

fn millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

/// What to do after a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Start it again after this pause.
    Again(Duration),
    /// Leave it: so many deaths came too fast.
    Stay { deaths: usize },
}

/// The deaths of one plugin.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    /// Of processes that did not live long, the newest last.
    quick: VecDeque<Instant>,
    /// Restarts since a process lived long.
    restarts: u32,
}

impl Deaths {
    /// Notes the death of a process that had lived for `uptime`.
    pub(super) fn note(&mut self, policy: &RestartPolicy, uptime: Duration) -> Next {
        let now = Instant::now();
        if uptime >= policy.reset_after {
            *self = Self::default();
        } else {
            self.quick.push_back(now);
        }
        while self.quick.front().is_some_and(|death| now.duration_since(*death) > policy.within) {
            self.quick.pop_front();
        }
        if policy.deaths > 0 && self.quick.len() >= policy.deaths {
            return Next::Stay { deaths: self.quick.len() };
        }
        let pause = policy.delay.saturating_mul(1 << self.restarts.min(16)).min(policy.longest_delay);
        self.restarts += 1;
        Next::Again(pause)
    }

    /// Forgets them: a person or a change says that it is another matter now.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn pauses_double_and_five_quick_deaths_are_enough() {
        let (policy, mut deaths) = (RestartPolicy::default(), Deaths::default());
        for millis in [500, 1000, 2000, 4000] {
            assert_eq!(deaths.note(&policy, QUICK), Next::Again(Duration::from_millis(millis)));
        }
        assert_eq!(deaths.note(&policy, QUICK), Next::Stay { deaths: 5 });
        deaths.forget();
        assert_eq!(deaths.note(&policy, QUICK), Next::Again(policy.delay));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_life_and_time_make_good() {
        let (policy, mut deaths) = (RestartPolicy::default(), Deaths::default());
        for _ in 0..4 {
            deaths.note(&policy, QUICK);
        }
        assert_eq!(deaths.note(&policy, policy.reset_after), Next::Again(policy.delay));
        for _ in 0..3 {
            deaths.note(&policy, QUICK);
        }
        tokio::time::advance(policy.within + QUICK).await;
        assert!(matches!(deaths.note(&policy, QUICK), Next::Again(_)), "the others are too old");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_breaker_it_goes_on_at_the_longest_pause() {
        let policy = RestartPolicy { deaths: 0, ..RestartPolicy::default() };
        let mut deaths = Deaths::default();
        for _ in 0..40 {
            deaths.note(&policy, QUICK);
        }
        assert_eq!(deaths.note(&policy, QUICK), Next::Again(policy.longest_delay));
    }
}
