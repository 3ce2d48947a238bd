//! How fast what is no use is read: a flood of it waits in its own pipe, and the processors are left to its neighbours.

use tokio::time::{Duration, Instant};

/// A bucket that useless bytes fill and time empties.
pub(super) struct Pace {
    wasted: u64,
    since: Instant,
}

impl Pace {
    /// Bytes that are read at full speed: one answer that is too long by accident keeps no other call waiting.
    const BURST: u64 = 24 * 1024 * 1024;
    /// Bytes in each millisecond after that, 25 MB in a second.
    const RATE: u64 = 25 * 1024;

    pub(super) fn new() -> Self {
        Self { wasted: 0, since: Instant::now() }
    }

    /// Counts bytes that were read for nothing.
    pub(super) fn waste(&mut self, bytes: u64) {
        if self.wasted == 0 {
            self.since = Instant::now();
        }
        self.wasted = self.wasted.saturating_add(bytes);
    }

    /// Waits until there is room for more.
    pub(super) async fn keep(&mut self) {
        if self.wasted == 0 {
            return;
        }
        let passed = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.since += Duration::from_millis(passed);
        self.wasted = self.wasted.saturating_sub(passed.saturating_mul(Self::RATE));
        let over = self.wasted.saturating_sub(Self::BURST).div_ceil(Self::RATE);
        if over > 0 {
            tokio::time::sleep(Duration::from_millis(over)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_read_slowly_and_a_little_is_not() {
        let (mut pace, begin) = (Pace::new(), Instant::now());
        pace.waste(Pace::BURST);
        pace.keep().await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        for _ in 0..4 {
            pace.waste(Pace::RATE * 50);
            pace.keep().await;
        }
        assert_eq!(begin.elapsed(), Duration::from_millis(200));
        tokio::time::advance(Duration::from_millis(Pace::BURST / Pace::RATE + 1)).await;
        let begin = Instant::now();
        pace.keep().await;
        pace.waste(Pace::BURST);
        pace.keep().await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }
}
