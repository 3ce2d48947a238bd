//! How long calls took, in a fixed number of buckets: eight to each octave of microseconds up to an hour.
//!
//! A value that is read out is the middle of its bucket: at most 1/16 (6.25 %) off, and exact below 16 µs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Each octave is cut into 2^3 buckets of one width.
const BITS: u32 = 3;
const PER_OCTAVE: u64 = 1 << BITS;
/// What takes longer counts as an hour.
const MOST: u64 = 3_600_000_000;
const BUCKETS: usize = bucket(MOST) + 1;

/// Counts of durations; recording one is one atomic addition.
pub(super) struct Histogram([AtomicU32; BUCKETS]);

/// What a histogram held at one moment.
pub(super) struct Counts(Vec<u32>);

impl Histogram {
    pub(super) fn new() -> Self {
        Self([const { AtomicU32::new(0) }; BUCKETS])
    }

    pub(super) fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(MOST).min(MOST);
        self.0[bucket(micros)].fetch_add(1, Ordering::Relaxed);
    }

    /// Reads all buckets, so that several quantiles speak of the same calls.
    pub(super) fn counts(&self) -> Counts {
        Counts(self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }
}

impl Counts {
    /// Returns the duration in microseconds that so many percent of the calls did not exceed; nothing without calls.
    pub(super) fn percentile(&self, percent: u64) -> Option<u64> {
        let total: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let mut below = 0;
        let at = self.0.iter().position(|count| {
            below += u64::from(*count);
            below >= rank
        });
        at.map(middle)
    }
}

/// Returns the bucket of a duration: the first sixteen microseconds have one each.
const fn bucket(micros: u64) -> usize {
    let octave = match micros.checked_ilog2() {
        Some(octave) if octave > BITS => octave - BITS,
        _ => 0,
    };
    (octave as u64 * PER_OCTAVE + (micros >> octave)) as usize
}

/// Returns the middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let octave = (bucket / PER_OCTAVE).saturating_sub(1);
    let lowest = (bucket - octave * PER_OCTAVE) << octave;
    lowest + ((1 << octave) - 1) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_read_out_is_at_most_a_sixteenth_off(micros in prop_oneof![0u64..64, 0..MOST]) {
            let read = middle(bucket(micros));
            prop_assert!(read.abs_diff(micros) * 16 <= micros, "{micros} was read as {read}");
            prop_assert!(bucket(micros) <= bucket(micros + 1) && bucket(micros + 1) <= bucket(micros) + 1);
        }
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let histogram = Histogram::new();
        assert_eq!(histogram.counts().percentile(50), None);
        histogram.record(Duration::from_micros(3));
        assert_eq!(histogram.counts().percentile(50), Some(3));
        assert_eq!(histogram.counts().percentile(99), Some(3));
        for micros in 1..=99 {
            histogram.record(Duration::from_micros(if micros < 99 { 7 } else { 2_000_000 }));
        }
        assert_eq!(histogram.counts().percentile(50), Some(7));
        assert_eq!(histogram.counts().percentile(99), Some(7));
        let slowest = histogram.counts().percentile(100).unwrap();
        assert!(slowest.abs_diff(2_000_000) <= 125_000, "{slowest}");
    }

    #[test]
    fn what_is_longer_counts_as_an_hour() {
        let histogram = Histogram::new();
        histogram.record(Duration::from_secs(u64::MAX));
        let hour = histogram.counts().percentile(50).unwrap();
        assert!(hour.abs_diff(MOST) * 16 <= MOST, "{hour}");
    }
}
