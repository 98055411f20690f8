//! The clock of Redis, from a few measurements: how far it is ahead of a clock of this process that cannot be set.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::core::window::{SteadyTime, Timestamp};

/// The time of day when this process began to use a Redis, carried on by a clock that cannot be set. It ignores steps
/// of this machine's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessClock {
    start: Timestamp,
    began: SteadyTime,
}

impl ProcessClock {
    /// A clock that shows `start` now.
    pub(crate) fn new(start: Timestamp) -> Self {
        Self {
            start,
            began: Instant::now().into(),
        }
    }

    /// The time that it shows at `moment`.
    pub(crate) fn at(&self, moment: SteadyTime) -> Timestamp {
        self.start.plus(moment.since(self.began))
    }

    /// How far it is ahead of `now`, this machine's time of day, in milliseconds; 0 if both may be equal.
    pub(crate) fn ahead_of(&self, now: Timestamp) -> i64 {
        let reading = SkewReading::new(now, Duration::ZERO, self.at(Instant::now().into()));
        if reading.allows(0) { 0 } else { reading.ahead }
    }
}

/// The time of day of a Redis. A step of this machine's clock does not change it, and one of Redis' clock is followed
/// with the next measurements.
#[derive(Clone, Debug)]
pub(crate) struct RedisClock {
    pub(crate) process: ProcessClock,
    /// How far Redis is ahead of `process`, in milliseconds; [`UNKNOWN`] before the first measurement.
    ahead_millis: Arc<AtomicI64>,
}

/// Stands for a difference that was not measured.
pub(crate) const UNKNOWN: i64 = i64::MIN;

impl RedisClock {
    /// A clock that shows nothing before the first measurement; `now` is this machine's time of day.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            process: ProcessClock::new(now),
            ahead_millis: Arc::new(AtomicI64::new(UNKNOWN)),
        }
    }

    /// The time at `moment`; `None` if the server never returned its time.
    pub(crate) fn at(&self, moment: SteadyTime) -> Option<Timestamp> {
        let ahead = self.ahead_millis.load(Relaxed);
        if ahead == UNKNOWN {
            return None;
        }
        Some(self.process.at(moment).shifted(ahead))
    }

    /// Believes the median of the differences of all nodes, in milliseconds.
    pub(crate) fn set(&self, differences: impl Iterator<Item = i64>) {
        let known = differences.filter(|ahead| *ahead != UNKNOWN);
        if let Some(ahead) = median(known) {
            self.ahead_millis.store(ahead, Relaxed);
        }
    }
}

/// The value in the middle, the lower of two.
fn median(values: impl Iterator<Item = i64>) -> Option<i64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// One measured difference between two clocks, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SkewReading {
    /// How far theirs is ahead.
    ahead: i64,
    /// How far the true difference can be from that: half the round trip, and a millisecond each that the clocks and
    /// halving cut off.
    within: i64,
}

impl SkewReading {
    /// For a clock that has just answered `theirs`, which it read half a round trip ago; `ours` is our time when the
    /// question was sent.
    pub(crate) fn new(ours: Timestamp, round_trip: Duration, theirs: Timestamp) -> Self {
        let half = i64::try_from(round_trip.as_millis() / 2).unwrap_or(i64::MAX);
        let signed = |at: Timestamp| i64::try_from(at.millis()).unwrap_or(i64::MAX);
        Self {
            ahead: signed(theirs)
                .saturating_sub(signed(ours))
                .saturating_sub(half),
            within: half.saturating_add(2),
        }
    }

    fn allows(self, ahead: i64) -> bool {
        self.ahead.saturating_sub(ahead).saturating_abs() <= self.within
    }

    /// Whether both can be right.
    fn agrees_with(self, other: Self) -> bool {
        let apart = self.ahead.saturating_sub(other.ahead).saturating_abs();
        apart <= self.within.saturating_add(other.within)
    }
}

/// The difference that is believed of one server.
#[derive(Debug, Default)]
pub(crate) struct Skew {
    believed: Option<i64>,
    /// The last reading, if it contradicts what is believed.
    doubt: Option<SkewReading>,
}

impl Skew {
    /// Takes a reading into account. Returns whether it settles the difference: two readings in a row that agree move
    /// it, and one delayed answer does not.
    pub(crate) fn record(&mut self, reading: SkewReading) -> bool {
        if self.believed.is_some_and(|ahead| reading.allows(ahead)) {
            self.doubt = None;
            return true;
        }
        let known = self.doubt.replace(reading);
        let sharpest = match known {
            Some(known) if known.agrees_with(reading) => {
                std::cmp::min_by_key(known, reading, |one| one.within)
            }
            None if self.believed.is_none() => reading,
            _ => return false,
        };
        // A difference that may be none is none: replicas beside Redis then agree with it exactly.
        let is_none = sharpest.allows(0);
        self.believed = Some(if is_none { 0 } else { sharpest.ahead });
        self.doubt = None;
        true
    }

    /// The difference that is believed; `None` before the first reading.
    pub(crate) fn believed(&self) -> Option<i64> {
        self.believed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(ahead: i64, round_trip: u64) -> SkewReading {
        SkewReading {
            ahead,
            within: i64::try_from(round_trip / 2).unwrap() + 1,
        }
    }

    /// Each case is a reading, with its round trip, and what is believed after it.
    #[track_caller]
    fn check<const N: usize>(cases: [(i64, u64, i64); N]) {
        let mut skew = Skew::default();
        let believed = cases.map(|(ahead, round_trip, _)| {
            skew.record(reading(ahead, round_trip));
            skew.believed().unwrap()
        });
        assert_eq!(believed, cases.map(|(.., believed)| believed));
    }

    #[test]
    fn two_readings_in_a_row_that_agree_move_the_clock_and_one_does_not() {
        check([
            (5_000, 0, 5_000),
            (9_000, 0, 5_000),
            (5_001, 0, 5_000),
            (9_000, 0, 5_000),
            (-15_000, 0, 5_000),
            (-14_990, 20, -15_000),
            (-14_998, 2, -15_000),
            (-14_990, 30, -15_000),
        ]);
    }

    #[test]
    fn the_reading_with_the_shorter_round_trip_is_believed() {
        check([(0, 0, 0), (600, 100, 0), (640, 10, 640)]);
        check([(0, 0, 0), (640, 10, 0), (600, 100, 640)]);
    }

    #[test]
    fn a_difference_that_may_be_none_is_none() {
        check([(1, 0, 0)]);
        check([(2, 0, 2)]);
        check([(20, 40, 0)]);
        check([(22, 40, 22)]);
    }

    #[test]
    fn half_of_the_round_trip_is_taken_off() {
        let at = Timestamp::from_millis;
        let read = |ours, round_trip, theirs| {
            SkewReading::new(at(ours), Duration::from_millis(round_trip), at(theirs))
        };
        assert_eq!(
            read(1000, 40, 1020),
            SkewReading {
                ahead: 0,
                within: 22
            }
        );
        assert_eq!(
            read(1000, 0, 4000),
            SkewReading {
                ahead: 3000,
                within: 2
            }
        );
        assert_eq!(
            read(4000, 10, 1005),
            SkewReading {
                ahead: -3000,
                within: 7
            }
        );
    }

    #[test]
    fn a_step_of_this_machine_s_clock_does_not_move_that_of_redis() {
        let clock = RedisClock::new(Timestamp::from_secs(1_000));
        let moment: SteadyTime = Instant::now().into();
        assert_eq!(clock.at(moment), None);
        clock.set([UNKNOWN, -15_000].into_iter());
        let hour = Duration::from_secs(3_600);
        let [first, later] = [moment, moment.plus(hour)].map(|moment| clock.at(moment).unwrap());
        assert_eq!(first.plus(hour), later);
        assert_eq!(first.secs(), 985);
    }

    #[test]
    fn several_servers_have_the_time_of_the_one_in_the_middle() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([7, -3, 9_000].into_iter()), Some(7));
        assert_eq!(median([7, 5].into_iter()), Some(5));
    }
}
