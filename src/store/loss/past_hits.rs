//! When the hits of a counter came, as far as the counts show that a worker saw.

use std::time::Duration;

use crate::{
    core::{
        algorithm::{narrow, scale},
        counter::IncrementSpec,
        kind::Leaving,
        window::{Moment, SteadyTime, Timestamp},
    },
    store::memory::begun::FirstCount,
};

/// The parts of a log's period in which its hits are kept, beside the one that is not over. It divides every period.
const LOG_PARTS: usize = 25;

/// The hits of a counter from which hits leave one by one, by the part of time in which they were seen first. Together
/// they are the count that was seen last. None of this worker's came later than it says. A hit of others that came as
/// an older one left is taken for that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PastHits {
    order: Leaving,
    part_millis: u64,
    /// The end of the newest part.
    ends: SteadyTime,
    /// The hits of each part, the newest first.
    hits: [u64; LOG_PARTS + 1],
}

impl PastHits {
    /// No hits; `None` for an algorithm whose hits need no times.
    pub(super) fn new(spec: &IncrementSpec, moment: &Moment) -> Option<Self> {
        let order = spec.method.facts().leaving?;
        let parts = match order {
            Leaving::ByAge => LOG_PARTS as u64,
            Leaving::WithTheWindowBefore => 1,
        };
        let mut past = Self {
            order,
            part_millis: spec.period_millis.div_ceil(parts).max(1),
            ends: moment.steady,
            hits: [0; LOG_PARTS + 1],
        };
        past.turn(moment);
        Some(past)
    }

    /// Takes over the count that was seen at `moment` after `own` hits were added: these and all that are new came now,
    /// and hits that are gone were the oldest of a log.
    pub(super) fn see(&mut self, own: u64, count: u64, moment: &Moment) {
        self.turn(moment);
        if self.order == Leaving::ByAge {
            self.hits[0] = self.hits[0].saturating_add(own);
        }
        let held = self.held(moment.steady);
        self.hits[0] = self.hits[0].saturating_add(count.saturating_sub(held));
        self.remove(held.saturating_sub(count), self.order == Leaving::ByAge);
    }

    /// Takes over hits that were counted without the store.
    pub(super) fn count(&mut self, spec: &IncrementSpec, moment: &Moment) {
        self.turn(moment);
        self.hits[0] = self.hits[0].saturating_add(spec.added());
        self.remove(spec.taken_off(), false);
    }

    fn remove(&mut self, mut hits: u64, oldest_first: bool) {
        for number in 0..self.hits.len() {
            let index = match oldest_first {
                true => self.hits.len() - 1 - number,
                false => number,
            };
            let removed = hits.min(self.hits[index]);
            self.hits[index] -= removed;
            hits -= removed;
        }
    }

    /// Begins the part of `moment`.
    fn turn(&mut self, moment: &Moment) {
        if moment.steady < self.ends {
            return;
        }
        let part = self.part_millis;
        let over = moment.steady.since(self.ends).as_millis() / u128::from(part);
        let steps = usize::try_from(over).unwrap_or(usize::MAX);
        let new = steps.saturating_add(1).min(self.hits.len());
        let kept = self.hits.len() - new;
        self.hits.copy_within(..kept, new);
        self.hits[..new].fill(0);
        let end = (moment.now.millis() / part + 1).saturating_mul(part);
        self.ends = moment.steady_at(Timestamp::from_millis(end));
    }

    fn held(&self, at: SteadyTime) -> u64 {
        match self.order {
            Leaving::ByAge => self
                .hits
                .iter()
                .fold(0, |sum, hits| hits.saturating_add(sum)),
            Leaving::WithTheWindowBefore => {
                let left = narrow(self.ends.since(at).as_millis());
                self.hits[0].saturating_add(scale(self.hits[1], left, self.part_millis))
            }
        }
    }

    /// The hits that were seen last at `seen_at`, with times of day as of `moment`, the oldest first.
    pub(super) fn dated(&self, seen_at: SteadyTime, moment: &Moment) -> Vec<FirstCount> {
        let parts = match self.order {
            Leaving::ByAge => self.hits.len(),
            Leaving::WithTheWindowBefore => 2,
        };
        let (ends, at) = (moment.time_of(self.ends), moment.time_of(seen_at));
        let part = Duration::from_millis(self.part_millis);
        let mut dated: Vec<_> = (0..)
            .zip(&self.hits[..parts])
            .map(|(number, hits)| {
                let end = ends.minus(part * number);
                FirstCount {
                    held: *hits,
                    at: match self.order {
                        // Some of them may have left, and as many have come since.
                        Leaving::ByAge if number as usize == LOG_PARTS => at,
                        Leaving::ByAge => end.min(at),
                        // Clocks differ a little, so the middle stands for its window.
                        Leaving::WithTheWindowBefore => end.minus(part / 2),
                    },
                }
            })
            .collect();
        dated.retain(|hits| hits.held > 0);
        dated.sort_by_key(|hits| hits.at);
        dated
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;
    use crate::core::{
        algorithm::AlgorithmState,
        counter::sample,
        kind::{CounterKind, Halves},
        request::Hits,
    };

    const PERIOD: u64 = 60_000;
    const START: u64 = 1_020_000;

    fn spec(method: CounterKind, hits: u64) -> IncrementSpec {
        IncrementSpec {
            method,
            period_millis: PERIOD,
            ..sample::spec(1_000, Hits::add(hits))
        }
    }

    fn moment(began: Instant, after: u64) -> Moment {
        Moment {
            now: Timestamp::from_millis(START + after),
            steady: (began + Duration::from_millis(after)).into(),
        }
    }

    /// A counter that one process hit at once after each pause, and all that it knows of it.
    struct Followed {
        exact: AlgorithmState,
        past: PastHits,
        /// The moments of its hits.
        came: Vec<(u64, u64)>,
        after: u64,
        last: Moment,
    }

    fn follow(method: CounterKind, steps: Vec<(u64, u64)>) -> Followed {
        let began = Instant::now();
        let mut exact = AlgorithmState::new(method).unwrap();
        let mut past = PastHits::new(&spec(method, 0), &moment(began, 0)).unwrap();
        let (mut after, mut came) = (0, Vec::new());
        for (pause, hits) in steps {
            after += pause;
            let spec = spec(method, hits);
            exact.charge(&spec, START + after);
            let count = exact.held(&spec, START + after);
            past.see(hits, count, &moment(began, after));
            came.push((START + after, hits));
        }
        Followed {
            exact,
            past,
            came,
            after,
            last: moment(began, after),
        }
    }

    #[test]
    fn algorithms_whose_hits_leave_together_need_no_times() {
        let moment = moment(Instant::now(), 0);
        for method in [
            CounterKind::Window,
            CounterKind::FirstHit,
            CounterKind::TokenBucket {
                rate: Halves::new(1),
            },
        ] {
            assert_eq!(PastHits::new(&spec(method, 1), &moment), None);
        }
    }

    proptest! {
        #[test]
        fn hits_of_one_process_are_dated_when_they_came_or_a_part_later(
            steps in prop::collection::vec((0_u64..9_000, 0_u64..4), 1..60),
        ) {
            let Followed { past, came, after, last, .. } = follow(CounterKind::SlidingLog, steps);
            let dated = past.dated(last.steady, &last);
            for since in (after.saturating_sub(PERIOD)..=after).step_by(500) {
                let since = START + since;
                let came_since = |late: u64| {
                    let hits = came.iter().filter(|(at, _)| at + late >= since && at + PERIOD > START + after);
                    hits.map(|(_, hits)| hits).sum::<u64>()
                };
                let dated = dated.iter().filter(|hits| hits.at.millis() >= since);
                let dated: u64 = dated.map(|hits| hits.held).sum();
                prop_assert!(dated >= came_since(0), "{dated} since {since}");
                let about_to_leave = came.iter().filter(|(at, _)| {
                    let left = (at + PERIOD).saturating_sub(START + after);
                    (1..=PERIOD / LOG_PARTS as u64).contains(&left)
                });
                let about_to_leave: u64 = about_to_leave.map(|(_, hits)| hits).sum();
                let most = came_since(PERIOD / LOG_PARTS as u64) + about_to_leave;
                prop_assert!(dated <= most, "{dated} and not {most} since {since}");
            }
        }

        #[test]
        fn hits_of_a_sliding_window_are_in_the_windows_in_which_they_were_seen(
            steps in prop::collection::vec((0_u64..50_000, 0_u64..9), 1..30),
            later in 0_u64..90_000,
        ) {
            let method = CounterKind::SlidingWindow;
            let Followed { mut exact, past, after, last, .. } = follow(method, steps);
            let mut known = AlgorithmState::new(method).unwrap();
            for hits in past.dated(last.steady, &last) {
                known.charge(&spec(method, hits.held), hits.at.millis());
            }
            let look = spec(method, 0);
            let now = START + after + later;
            prop_assert_eq!(known.held(&look, now), exact.held(&look, now));
        }
    }
}
