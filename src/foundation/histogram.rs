//! Durations, counted in buckets.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Nine steps per decade: a duration is recorded to within a fifth, and the buckets that dashboards ask
/// for (1, 2.5, 5 and their like) are among the bounds.
const STEPS: [u64; 9] = [10, 15, 20, 25, 30, 40, 50, 60, 75];

/// The decades from 10 µs to 75 s; below 10 µs every whole microsecond is a bound.
const DECADES: usize = 7;

const BOUND_COUNT: usize = STEPS.len() * (DECADES + 1);

/// The upper bounds of a timer's buckets in microseconds, ascending; each bound belongs to its bucket.
pub(crate) const BOUNDS_MICROS: [u64; BOUND_COUNT] = bounds();

const fn bounds() -> [u64; BOUND_COUNT] {
    let mut bounds = [0; BOUND_COUNT];
    let mut at = 0;
    while at < STEPS.len() {
        bounds[at] = at as u64 + 1;
        at += 1;
    }
    let mut decade = 1;
    while at < BOUND_COUNT {
        bounds[at] = STEPS[at % STEPS.len()] * decade;
        at += 1;
        if at % STEPS.len() == 0 {
            decade *= 10;
        }
    }
    bounds
}

/// One per bound, and one for durations above all of them.
const SLOT_COUNT: usize = BOUND_COUNT + 1;

/// Collects durations. Only one thread may record; any thread may read with [`Timer::values`].
#[derive(Debug)]
pub(crate) struct Timer {
    counts: [AtomicU64; SLOT_COUNT],
    sum_micros: AtomicU64,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; SLOT_COUNT],
            sum_micros: AtomicU64::new(0),
        }
    }
}

impl Timer {
    pub(crate) fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let add = |total: &AtomicU64, more| {
            total.store(total.load(Relaxed).wrapping_add(more), Relaxed);
        };
        add(&self.counts[slot(micros)], 1);
        add(&self.sum_micros, micros);
    }

    pub(crate) fn values(&self) -> TimerValues {
        TimerValues {
            counts: self.counts.each_ref().map(|count| count.load(Relaxed)),
            sum_micros: self.sum_micros.load(Relaxed),
        }
    }
}

/// The durations since the start, by [`BOUNDS_MICROS`]. Microseconds, because most replies take
/// less than the whole milliseconds of the reference, whose sums therefore stay 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerValues {
    counts: [u64; SLOT_COUNT],
    sum_micros: u64,
}

impl Default for TimerValues {
    fn default() -> Self {
        Self {
            counts: [0; SLOT_COUNT],
            sum_micros: 0,
        }
    }
}

impl TimerValues {
    pub fn observe(&mut self, micros: u64) {
        self.counts[slot(micros)] += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
    }

    /// The number of durations. It is summed from the buckets, so it always agrees with them.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum_micros(&self) -> u64 {
        self.sum_micros
    }

    /// How many durations are known to be at most `micros`: exact if `micros` is one of
    /// [`BOUNDS_MICROS`], otherwise too few by the rest of a bucket.
    pub fn at_most(&self, micros: u64) -> u64 {
        let whole = BOUNDS_MICROS.partition_point(|&bound| bound <= micros);
        self.counts[..whole].iter().sum()
    }

    /// The least bound that at least this share of the durations do not exceed; 0 without durations, and the
    /// highest bound for longer ones.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        let wanted = share * self.count() as f64;
        let mut passed = 0;
        for (at, more) in self.counts.into_iter().enumerate() {
            passed += more;
            if passed > 0 && passed as f64 >= wanted {
                return BOUNDS_MICROS[at.min(BOUND_COUNT - 1)];
            }
        }
        0
    }

    /// The buckets that are not empty: the middle of each in microseconds, and its count.
    pub fn middles(&self) -> impl Iterator<Item = (f64, u64)> {
        let last = BOUNDS_MICROS[BOUND_COUNT - 1];
        let counts = self.counts.into_iter().enumerate();
        counts
            .filter(|(_, count)| *count > 0)
            .map(move |(at, count)| {
                let low = if at == 0 { 0 } else { BOUNDS_MICROS[at - 1] };
                let high = BOUNDS_MICROS.get(at).copied().unwrap_or(2 * last);
                ((low + high) as f64 / 2.0, count)
            })
    }

    /// Adds the durations of `other`.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
    }

    /// The durations that came after `earlier`; all of them if `earlier` is from another run.
    pub fn since(&self, earlier: &Self) -> Self {
        let is_same_run = self
            .counts
            .iter()
            .zip(earlier.counts)
            .all(|(now, then)| *now >= then);
        if !is_same_run {
            return self.clone();
        }
        let mut since = self.clone();
        for (count, then) in since.counts.iter_mut().zip(earlier.counts) {
            *count -= then;
        }
        since.sum_micros = since.sum_micros.saturating_sub(earlier.sum_micros);
        since
    }
}

/// The bucket of a duration.
fn slot(micros: u64) -> usize {
    BOUNDS_MICROS.partition_point(|&bound| bound < micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_ascend_and_hold_the_usual_buckets() {
        assert!(BOUNDS_MICROS.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(BOUNDS_MICROS[..10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(BOUNDS_MICROS[BOUND_COUNT - 1], 75_000_000);
        for usual in [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000] {
            assert!(BOUNDS_MICROS.contains(&usual), "{usual}");
            assert!(BOUNDS_MICROS.contains(&(usual * 1_000)), "{usual} thousand");
        }
    }

    #[test]
    fn a_timer_says_what_it_was_told() {
        let timer = Timer::default();
        for micros in [0, 1, 400, 2_500, 2_501, 100_000_000] {
            timer.record(Duration::from_micros(micros));
        }
        let values = timer.values();
        assert_eq!(values.count(), 6);
        assert_eq!(values.sum_micros(), 100_005_402);
        assert_eq!(values.at_most(0), 0);
        assert_eq!(values.at_most(1), 2);
        assert_eq!(values.at_most(2_499), 3);
        assert_eq!(values.at_most(2_500), 4);
        assert_eq!(values.at_most(u64::MAX), 5);
    }

    #[test]
    fn a_bucket_that_holds_something_is_told_by_its_middle() {
        let mut values = TimerValues::default();
        // Up to 1 µs, from 60 to 75, and above all bounds.
        for micros in [0, 1, 61, 75, 75_000_001] {
            values.observe(micros);
        }
        let middles: Vec<_> = values.middles().collect();
        assert_eq!(middles, [(0.5, 2), (67.5, 2), (112_500_000.0, 1)]);
    }

    #[test]
    fn a_quantile_is_the_bound_that_a_share_of_the_durations_keeps() {
        let mut values = TimerValues::default();
        assert_eq!(values.quantile(0.5), 0);
        for micros in [3, 3, 3, 61, 100_000_000] {
            values.observe(micros);
        }
        let quantiles = [0.0, 0.5, 0.6, 0.61, 0.8, 1.0].map(|share| values.quantile(share));
        assert_eq!(quantiles, [3, 3, 3, 75, 75, 75_000_000]);
    }

    #[test]
    fn nanoseconds_are_cut_and_ages_saturate() {
        let timer = Timer::default();
        timer.record(Duration::from_nanos(1_999));
        assert_eq!(timer.values().sum_micros(), 1);
        Timer::default().record(Duration::MAX);
    }

    #[test]
    fn a_timer_that_began_again_counts_from_nothing() {
        let (mut old, mut new) = (TimerValues::default(), TimerValues::default());
        old.observe(5);
        old.observe(5);
        new.observe(5);
        assert_eq!(new.since(&old), new);
    }

    proptest! {
        #[test]
        fn earlier_and_since_are_now(
            early in prop::collection::vec(0..200_000_000u64, 0..20),
            late in prop::collection::vec(0..200_000_000u64, 0..20),
        ) {
            let mut then = TimerValues::default();
            early.iter().for_each(|&micros| then.observe(micros));
            let mut now = then.clone();
            late.iter().for_each(|&micros| now.observe(micros));
            let since = now.since(&then);
            prop_assert_eq!(since.count(), late.len() as u64);
            then.add(&since);
            prop_assert_eq!(then, now);
        }

        #[test]
        fn what_is_at_most_a_bound_is_exact(
            all in prop::collection::vec(0..200_000_000u64, 0..50),
            at in 0..BOUND_COUNT,
        ) {
            let mut values = TimerValues::default();
            all.iter().for_each(|&micros| values.observe(micros));
            let bound = BOUNDS_MICROS[at];
            let naive = all.iter().filter(|&&micros| micros <= bound).count();
            prop_assert_eq!(values.at_most(bound), naive as u64);
        }
    }
}
