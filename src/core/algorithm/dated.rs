//! Hits that come late: another store counted them while this one was away. They count from the moment at which they
//! came, so that they leave when they would have left.

use std::iter;

use super::{SlidingLog, SlidingWindow, TokenBucket, narrow, wide};
use crate::core::counter::{CounterKind, IncrementSpec};

/// Hits, and the moment at which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatedHits {
    /// Negative if they are given back.
    pub(crate) hits: i64,
    pub(crate) at: u64,
}

/// The most moments of one log: each is a command to the store. Hits between two moments count from the later one, so
/// a log of more moments holds a hit for a hundredth of its period too long at most, if hits come evenly.
const MOST_MOMENTS: usize = 100;

impl SlidingWindow {
    pub(super) fn charge_late(&mut self, spec: &IncrementSpec, present: u64, then: u64) {
        if spec.added() == 0 && *self == Self::default() {
            return;
        }
        *self = self.at(spec, present);
        let index = then / spec.period_millis;
        if index >= self.index {
            self.charge(spec);
        } else if index + 1 == self.index {
            let held = self.previous.saturating_add(spec.added());
            self.previous = held.saturating_sub(spec.taken_off());
        }
    }

    /// The middle of each window stands for its hits: clocks differ a little.
    pub(super) fn beyond(self, known: Self, period: u64, now: u64) -> Vec<DatedHits> {
        let start = self.index.saturating_mul(period);
        let current = DatedHits {
            hits: signed(self.current) - signed(known.current),
            at: start.midpoint(now.max(start)),
        };
        let previous = DatedHits {
            hits: signed(self.previous) - signed(known.previous),
            at: start.saturating_sub(period.div_ceil(2)),
        };
        vec![previous, current]
    }
}

impl SlidingLog {
    /// Adds hits of the moment `then`, before later ones.
    pub(super) fn insert(&mut self, hits: u64, then: u64) {
        let after = self.entries.partition_point(|(at, _)| *at <= then);
        self.total = self.total.saturating_add(hits);
        match after.checked_sub(1).map(|last| &mut self.entries[last]) {
            Some((at, count)) if *at == then => *count = count.saturating_add(hits),
            _ => self.entries.insert(after, (then, hits)),
        }
    }

    /// The hits that were given back from those of `known`, and all that came later.
    pub(super) fn beyond(&self, known: &Self, spec: &IncrementSpec, now: u64) -> Vec<DatedHits> {
        let live = |(at, _): &&(u64, u64)| at.saturating_add(spec.period_millis) > now;
        let entries = self.entries.iter().filter(live);
        let left = entries.clone().filter(|(at, _)| *at <= known.latest());
        let left: u64 = left.map(|(_, hits)| hits).sum();
        let mut known = known.held(spec, now);
        let given_back = DatedHits {
            hits: -signed(known.saturating_sub(left)),
            at: now,
        };
        known = known.min(left);
        let dated: Vec<_> = entries
            .map(|&(at, hits)| {
                let left = hits.saturating_sub(known);
                known = known.saturating_sub(hits);
                DatedHits {
                    hits: signed(left),
                    at,
                }
            })
            .filter(|dated| dated.hits > 0)
            .collect();
        let together = dated.len().div_ceil(MOST_MOMENTS).max(1);
        let merged = dated.chunks(together).map(|some| DatedHits {
            hits: some
                .iter()
                .fold(0, |sum, dated| dated.hits.saturating_add(sum)),
            at: some.last().map_or(now, |last| last.at),
        });
        iter::once(given_back).chain(merged).collect()
    }
}

impl TokenBucket {
    /// The age of the hits makes up for the part of a token.
    pub(super) fn beyond(
        &self,
        known: &Self,
        spec: &IncrementSpec,
        whole: &IncrementSpec,
        now: u64,
    ) -> DatedHits {
        let token = wide(spec.period_millis);
        let (missing, known) = (self.missing(spec, now), known.missing(spec, now));
        if missing < known {
            let hits = -signed(narrow((known - missing) / token));
            return DatedHits { hits, at: now };
        }
        let missing = missing - known;
        let hits = missing.div_ceil(token);
        let CounterKind::TokenBucket { rate } = whole.method else {
            return DatedHits { hits: 0, at: now };
        };
        let age = narrow((hits * token - missing) / wide(rate.get().max(1)));
        DatedHits {
            hits: signed(narrow(hits)),
            at: now.saturating_sub(age),
        }
    }
}

pub(super) fn signed(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::{algorithm::AlgorithmState, counter::sample, kind::Halves, request::Hits};

    const PERIOD: u64 = 60_000;
    const RATE: u64 = 7;

    fn spec(method: CounterKind, hits: i64) -> IncrementSpec {
        let count = hits.unsigned_abs();
        IncrementSpec {
            method,
            period_millis: PERIOD,
            ..sample::spec(
                20,
                if hits < 0 {
                    Hits::give_back(count)
                } else {
                    Hits::add(count)
                },
            )
        }
    }

    fn late(spec: &IncrementSpec, age_millis: u64) -> IncrementSpec {
        IncrementSpec {
            age_millis,
            ..*spec
        }
    }

    /// Slots are never counted late.
    fn is_dated(kind: CounterKind) -> bool {
        let has_slots = matches!(kind, CounterKind::Slots { .. });
        AlgorithmState::new(kind).is_some() && !has_slots
    }

    fn any_kind() -> impl Strategy<Value = CounterKind> {
        let with_rate = |kind| match kind {
            CounterKind::TokenBucket { .. } => CounterKind::TokenBucket {
                rate: Halves::new(RATE),
            },
            other => other,
        };
        let mut kinds: Vec<_> = CounterKind::all().map(with_rate).collect();
        kinds.retain(|kind| is_dated(*kind));
        prop::sample::select(kinds)
    }

    proptest! {
        #[test]
        fn a_counter_that_gets_the_hits_that_it_lacks_holds_as_many_from_then_on(
            kind in any_kind(),
            known_hits in 0_i64..15,
            steps in prop::collection::vec((0_u64..30_000, -4_i64..9), 0..12),
            until in 0_u64..90_000,
        ) {
            let mut known = AlgorithmState::new(kind).unwrap();
            let mut now = 1_000_000;
            known.charge(&spec(kind, known_hits), now);
            let mut state = known.clone();
            for (pause, hits) in steps {
                now += pause;
                state.charge(&spec(kind, hits), now);
            }
            now += until;
            let whole = spec(kind, 0);
            for dated in state.clone().beyond(&mut known.clone(), &whole, &whole, now) {
                known.charge(&late(&spec(kind, dated.hits), now - dated.at), now);
            }
            for after in (0..=2 * PERIOD).step_by(1_500) {
                let now = now + after;
                let (held, all) = (known.held(&whole, now), state.held(&whole, now));
                // A part of a token is given back with the next one.
                let off = if matches!(kind, CounterKind::TokenBucket { .. }) { 1 } else { 0 };
                prop_assert!(held.abs_diff(all) <= off, "{held} and not {all} after {after} ms");
            }
        }

        #[test]
        fn hits_that_come_late_leave_as_if_they_had_come_in_time(
            kind in any_kind(),
            hits in prop::collection::vec((0_u64..50_000, 1_i64..4), 1..12),
            order in any::<prop::sample::Index>(),
        ) {
            let mut hits = hits;
            hits.sort_unstable();
            let start = 1_020_000;
            let mut exact = AlgorithmState::new(kind).unwrap();
            for (at, hits) in &hits {
                exact.charge(&spec(kind, *hits), start + at);
            }
            // Some came in time, and the others come at the end, in another order.
            let late_from = order.index(hits.len());
            let mut mixed = AlgorithmState::new(kind).unwrap();
            let now = start + 50_000;
            let (late_hits, in_time) = hits.split_at(late_from);
            for (at, hits) in in_time {
                mixed.charge(&spec(kind, *hits), start + at);
            }
            for (at, hits) in late_hits.iter().rev() {
                mixed.charge(&late(&spec(kind, *hits), now - start - at), now);
            }
            let whole = spec(kind, 0);
            for after in (0..=2 * PERIOD).step_by(1_500) {
                let (held, all) = (mixed.held(&whole, now + after), exact.held(&whole, now + after));
                match kind {
                    // A bucket that was full in between had no room for all of the inflow, which is unknown later.
                    CounterKind::TokenBucket { .. } => prop_assert!(held <= all),
                    _ => prop_assert_eq!(held, all, "after {} ms", after),
                }
            }
        }
    }

    #[test]
    fn hits_whose_time_is_over_have_no_effect() {
        for kind in [
            CounterKind::FirstHit,
            CounterKind::SlidingLog,
            CounterKind::TokenBucket {
                rate: Halves::new(RATE),
            },
        ] {
            let mut state = AlgorithmState::new(kind).unwrap();
            state.charge(&late(&spec(kind, 5), PERIOD), 1_000_000);
            assert_eq!(state.held(&spec(kind, 0), 1_000_000), 0, "{kind:?}");
            assert_eq!(state.heap_bytes(), 0, "{kind:?}");
        }
        let kind = CounterKind::SlidingWindow;
        let mut state = AlgorithmState::new(kind).unwrap();
        state.charge(&late(&spec(kind, 5), 2 * PERIOD), 1_000_000);
        assert_eq!(state.held(&spec(kind, 0), 1_000_000), 0);
    }

    #[test]
    fn hits_whose_time_is_over_leave_a_counter_as_it_is() {
        for kind in [CounterKind::FirstHit, CounterKind::SlidingLog] {
            let mut state = AlgorithmState::new(kind).unwrap();
            let (whole, now) = (spec(kind, 0), 1_000_000);
            state.charge(&spec(kind, 3), now);
            state.charge(&late(&spec(kind, 5), PERIOD), now + 1);
            let held = [now + 1, now + PERIOD - 1].map(|now| state.held(&whole, now));
            assert_eq!(held, [3, 3], "{kind:?}");
        }
    }

    #[test]
    fn hits_that_are_given_back_late_leave() {
        for kind in CounterKind::all().filter(|kind| is_dated(*kind)) {
            let mut state = AlgorithmState::new(kind).unwrap();
            state.charge(&spec(kind, 5), 1_000_000);
            let mut in_time = state.clone();
            state.charge(&late(&spec(kind, -2), 1), 1_000_000);
            assert_eq!(state.held(&spec(kind, 0), 1_000_000), 3, "{kind:?}");
            in_time.charge(&spec(kind, -2), 1_000_000);
            assert_eq!(state, in_time);
        }
    }

    #[test]
    fn late_hits_of_one_moment_are_one_entry_of_a_log() {
        let kind = CounterKind::SlidingLog;
        let [mut one, mut two] = [(); 2].map(|()| AlgorithmState::new(kind).unwrap());
        one.charge(&late(&spec(kind, 5), 100), 1_000_000);
        for hits in [2, 3] {
            two.charge(&late(&spec(kind, hits), 100), 1_000_000);
        }
        assert_eq!(one, two);
    }

    /// Checks the hits that a counter with those of `then` and `more` has beyond a counter with those of `then` only.
    /// All times, and `until`, the present, are milliseconds since the beginning of a window.
    #[track_caller]
    fn check_beyond(
        kind: CounterKind,
        [then, more]: [&[(i64, u64)]; 2],
        until: u64,
        expected: &[(i64, u64)],
    ) {
        let start = 17 * PERIOD;
        let mut known = AlgorithmState::new(kind).unwrap();
        for (hits, after) in then {
            known.charge(&spec(kind, *hits), start + after);
        }
        let mut state = known.clone();
        for (hits, after) in more {
            state.charge(&spec(kind, *hits), start + after);
        }
        let whole = spec(kind, 0);
        let found = state.beyond(&mut known, &whole, &whole, start + until);
        let found: Vec<_> = found
            .iter()
            .map(|dated| (dated.hits, dated.at - start))
            .collect();
        assert_eq!(found, expected, "{kind:?}");
    }

    #[test]
    fn hits_beyond_those_of_an_earlier_state_keep_their_moments() {
        let log = CounterKind::SlidingLog;
        let bucket = CounterKind::TokenBucket {
            rate: Halves::new(RATE),
        };
        // Of two moments the earlier is over, and the later was given back.
        check_beyond(
            log,
            [&[(5, 0), (5, 10)], &[(-5, 10)]],
            PERIOD,
            &[(-5, PERIOD)],
        );
        // Later hits do not stand in for those that were given back.
        check_beyond(
            log,
            [&[(5, 0)], &[(-3, 0), (4, 9)]],
            20,
            &[(-3, 20), (4, 9)],
        );
        // A hundred known moments do not make the others coarser.
        let known: Vec<_> = (0..100).map(|after| (1, after)).collect();
        check_beyond(
            log,
            [&known, &[(1, 200), (1, 300)]],
            400,
            &[(1, 200), (1, 300)],
        );
        // The middle of a window stands for its hits, or of what has passed of it.
        for (until, middle) in [(20_000, 10_000), (PERIOD + 1, PERIOD / 2)] {
            let sliding = CounterKind::SlidingWindow;
            check_beyond(sliding, [&[(5, 0)], &[(3, 9)]], until, &[(3, middle)]);
        }
        check_beyond(bucket, [&[(10, 0)], &[(-4, 0)]], 0, &[(-4, 0)]);
        // The tokens that flowed in since say how long ago the hit came.
        check_beyond(bucket, [&[], &[(1, 0)]], 1_000, &[(1, 0)]);
    }

    #[test]
    fn a_long_log_is_reported_in_a_hundred_moments_none_of_them_too_early() {
        let kind = CounterKind::SlidingLog;
        let mut state = AlgorithmState::new(kind).unwrap();
        for number in 0..1_000 {
            state.charge(&spec(kind, 1), 1_000_000 + number);
        }
        let (whole, now) = (spec(kind, 0), 1_001_000);
        let mut none = AlgorithmState::new(kind).unwrap();
        let dated = state.beyond(&mut none, &whole, &whole, now);
        assert_eq!(dated.len(), MOST_MOMENTS);
        assert!(dated.iter().all(|dated| dated.hits == 10));
        assert_eq!((dated[0].at, dated[99].at), (1_000_009, 1_000_999));
    }
}
