//! How far the clock of Redis is ahead of ours, from a few measurements.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// The last measurements of one server.
#[derive(Debug, Default)]
pub(super) struct Skew {
    millis: VecDeque<i64>,
}

impl Skew {
    /// Enough that one delayed measurement does not matter.
    const KEPT: usize = 5;

    pub(super) fn record(&mut self, millis: i64) {
        if self.millis.len() >= Self::KEPT {
            self.millis.pop_front();
        }
        self.millis.push_back(millis);
    }

    /// The measurement in the middle, or 0 without any.
    pub(super) fn median(&self) -> i64 {
        median(self.millis.iter().copied()).unwrap_or(0)
    }
}

/// The value in the middle, the lower of two.
pub(super) fn median(values: impl Iterator<Item = i64>) -> Option<i64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// A measurement that has begun. Our clock is read once, and the time since then by a clock that cannot
/// be set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    asked: Instant,
    /// Our clock when the question was sent, in milliseconds since the epoch.
    local_millis: u64,
}

impl Measurement {
    pub(super) fn begin(local_millis: u64) -> Self {
        Self {
            asked: Instant::now(),
            local_millis,
        }
    }

    /// How far ahead a clock is that has just answered `theirs`, which it read half a round trip ago.
    pub(super) fn end(self, theirs: u64) -> i64 {
        ahead(self.local_millis, self.asked.elapsed(), theirs)
    }
}

fn ahead(local_millis: u64, round_trip: Duration, theirs: u64) -> i64 {
    let half = u64::try_from(round_trip.as_millis() / 2).unwrap_or(u64::MAX);
    let ours = local_millis.saturating_add(half);
    let signed = |millis| i64::try_from(millis).unwrap_or(i64::MAX);
    let ahead = signed(theirs).saturating_sub(signed(ours));
    // A difference within half the round trip, plus the millisecond that both clocks cut off, may be
    // none: replicas beside Redis then agree with it exactly, and not roughly.
    if ahead.unsigned_abs() <= half + 1 {
        0
    } else {
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_answer_does_not_move_the_clock() {
        let mut skew = Skew::default();
        assert_eq!(skew.median(), 0);
        for millis in [9000, 10, 12, -500, 11] {
            skew.record(millis);
        }
        assert_eq!(skew.median(), 11);
        for _ in 0..3 {
            skew.record(-7);
        }
        assert_eq!(skew.median(), -7);
    }

    #[test]
    fn half_of_the_round_trip_is_taken_off() {
        assert_eq!(ahead(1000, Duration::from_millis(40), 1020), 0);
        assert_eq!(ahead(1000, Duration::ZERO, 4000), 3000);
        assert_eq!(ahead(4000, Duration::from_millis(10), 1005), -3000);
    }

    #[test]
    fn what_cannot_be_told_from_one_clock_is_one() {
        assert_eq!(ahead(1000, Duration::ZERO, 1001), 0);
        assert_eq!(ahead(1000, Duration::ZERO, 1002), 2);
        assert_eq!(ahead(1000, Duration::from_millis(10), 1000), 0);
        assert_eq!(ahead(1000, Duration::from_millis(10), 998), -7);
    }
}
