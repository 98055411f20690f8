//! Decides whether a server is silent or this process did not run.
//!
//! A timer that fires late shows first of all that this process did not run: it was stopped, held back
//! by a CPU quota, or other threads had the cores. So silence counts only while this process runs: if a
//! timer fires unusually late, only the time until it was due counts. Cassandra's failure detector leaves
//! out pauses of its own process too (`FailureDetector.java`, `MAX_LOCAL_PAUSE_IN_NANOS`). The usual round
//! trip stretches the bounds, in the spirit of the phi-accrual detector (Hayashibara et al. 2004).

use std::time::Duration;

use tokio::time::Instant;

/// The time between two looks at a wait. A pause of this process that is shorter than that may count as
/// time in which it ran.
pub(crate) const TICK: Duration = Duration::from_millis(3);

/// Timers of the runtime fire up to this much late on an idle machine: they count whole milliseconds.
pub(crate) const GRAIN: Duration = Duration::from_millis(2);

/// Time in which this thread ran, as far as timers show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningTime {
    last: Instant,
    total: Duration,
}

impl RunningTime {
    pub(crate) fn since(now: Instant) -> Self {
        Self {
            last: now,
            total: Duration::ZERO,
        }
    }

    /// Records that a timer which was due at `due` fired at `now`.
    pub(crate) fn woke(&mut self, due: Instant, now: Instant) {
        // No later than all timers are.
        let is_usual = now <= due + GRAIN;
        let ran_until = if is_usual { now } else { due };
        self.total += ran_until.saturating_duration_since(self.last);
        self.last = now;
    }

    /// The time of the last look.
    pub(crate) fn last(&self) -> Instant {
        self.last
    }

    /// How long this thread ran since the beginning.
    pub(crate) fn total(&self) -> Duration {
        self.total
    }
}

/// The judgement on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeHealth {
    /// No sign of a failure.
    Well,
    /// No answer for longer than usual.
    Suspected,
    /// Silent for so long that no request should wait for it.
    Lost,
}

/// Judges one question to a server that can answer it in several ways: every sign of life counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detector {
    bounds: SilenceBounds,
    silent: RunningTime,
}

/// How long a silence may be, in time in which this process ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SilenceBounds {
    pub(crate) suspect_after: Duration,
    pub(crate) lose_after: Duration,
}

impl Detector {
    /// Begins with a question that was sent at `now`.
    pub(crate) fn asked(bounds: SilenceBounds, now: Instant) -> Self {
        Self {
            bounds,
            silent: RunningTime::since(now),
        }
    }

    /// Sets the silence that others have waited for already.
    #[must_use]
    pub(crate) fn already(mut self, silent: Duration) -> Self {
        self.silent.total = silent;
        self
    }

    /// Records a sign of life.
    pub(crate) fn record_answer(&mut self, now: Instant) {
        self.silent = RunningTime::since(now);
    }

    /// Records that a timer which was due at `due` fired at `now`. All data that had arrived by then
    /// must have been read.
    pub(crate) fn woke(&mut self, due: Instant, now: Instant) -> NodeHealth {
        self.silent.woke(due, now);
        let silent = self.silent.total();
        if silent >= self.bounds.lose_after {
            NodeHealth::Lost
        } else if silent >= self.bounds.suspect_after {
            NodeHealth::Suspected
        } else {
            NodeHealth::Well
        }
    }
}

/// How long a server usually takes to answer: the least of its last round trips, so that a server which
/// was delayed once, or while this process paused, does not count as slow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrips {
    last: [Option<Duration>; Self::KEPT],
    next: usize,
}

impl RoundTrips {
    const KEPT: usize = 8;

    /// A shorter silence means nothing: other programs run too.
    const LEAST_SUSPICION: Duration = Duration::from_millis(5);

    /// A silence of this many usual round trips is suspicious.
    const FACTOR: u32 = 4;

    pub(crate) fn record(&mut self, took: Duration) {
        self.last[self.next % Self::KEPT] = Some(took);
        self.next = (self.next + 1) % Self::KEPT;
    }

    /// The bounds for a server that is lost after `lose_after`, unless its answers usually take long.
    pub(crate) fn bounds(&self, lose_after: Duration) -> SilenceBounds {
        let usual = self.last.iter().flatten().min().copied();
        let unusual = usual.unwrap_or_default() * Self::FACTOR;
        let suspect_after = unusual.max(Self::LEAST_SUSPICION);
        SilenceBounds {
            suspect_after,
            lose_after: lose_after.max(suspect_after),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: SilenceBounds = SilenceBounds {
        suspect_after: Duration::from_millis(5),
        lose_after: Duration::from_millis(200),
    };

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Simulates a process that looks each [`TICK`] and is held up now and then; `late` is the delay of
    /// each look. `hears` returns whether the server had answered by the time of a look. Returns the
    /// state at each look.
    fn watch(
        detector: &mut Detector,
        began: Instant,
        late: &[u64],
        mut hears: impl FnMut(Instant) -> bool,
    ) -> Vec<NodeHealth> {
        let mut now = began;
        let looks = late.iter().map(|late| {
            let due = now + TICK;
            now = due + micros(*late);
            if hears(now) {
                detector.record_answer(now);
            }
            detector.woke(due, now)
        });
        looks.collect()
    }

    #[test]
    fn silence_is_suspicious_and_then_a_loss() {
        let began = Instant::now();
        let found = watch(&mut Detector::asked(BOUNDS, began), began, &[0; 80], |_| {
            false
        });
        // Looks 3 ms apart, bounds of 5 and 200 ms.
        assert_eq!(found[..2], [NodeHealth::Well, NodeHealth::Suspected]);
        assert_eq!(found[65..67], [NodeHealth::Suspected, NodeHealth::Lost]);
    }

    #[test]
    fn others_may_have_waited_before() {
        let began = Instant::now();
        let mut detector = Detector::asked(BOUNDS, began).already(micros(197_000));
        assert_eq!(
            watch(&mut detector, began, &[0], |_| false),
            [NodeHealth::Lost]
        );
    }

    #[test]
    fn bounds_go_by_the_least_of_the_last_answers() {
        let mut trips = RoundTrips::default();
        let lan = SilenceBounds {
            suspect_after: RoundTrips::LEAST_SUSPICION,
            lose_after: micros(200_000),
        };
        assert_eq!(trips.bounds(lan.lose_after), lan);
        for took in [300, 5_000_000, 200, 900_000] {
            trips.record(micros(took));
        }
        assert_eq!(trips.bounds(lan.lose_after), lan);
        for _ in 0..RoundTrips::KEPT {
            trips.record(micros(60_000));
        }
        let far = SilenceBounds {
            suspect_after: micros(240_000),
            lose_after: micros(240_000),
        };
        assert_eq!(trips.bounds(lan.lose_after), far);
    }

    proptest! {
        /// Pauses of any length, at any time, while the server answers each question within less than
        /// the bound of a loss.
        #[test]
        fn own_pauses_never_lose_a_server_that_answers(
            late in prop::collection::vec(prop_oneof![Just(0), 0..5_000_u64, 0..10_000_000_u64], 1..200),
            takes in prop::collection::vec(0..150_000_u64, 1..50),
        ) {
            let began = Instant::now();
            let mut detector = Detector::asked(BOUNDS, began);
            let mut takes = takes.into_iter().cycle().map(micros);
            let mut answered_at = began + takes.next().unwrap();
            let found = watch(&mut detector, began, &late, |now| {
                let is_there = answered_at <= now;
                if is_there {
                    // The next question is sent when the answer is read.
                    answered_at = now + takes.next().unwrap();
                }
                is_there
            });
            prop_assert!(!found.contains(&NodeHealth::Lost));
        }

        /// A server that is silent for its time while this process runs is lost, whatever pauses there
        /// are between.
        #[test]
        fn a_silent_server_is_lost_once_we_ran_for_its_time(
            late in prop::collection::vec(prop_oneof![Just(0), 0..10_000_000_u64], 67..120),
        ) {
            let began = Instant::now();
            let found = watch(&mut Detector::asked(BOUNDS, began), began, &late, |_| false);
            prop_assert_eq!(found[66], NodeHealth::Lost);
            // Usual lateness counts: a timer of 3 ms can take 5.
            prop_assert!(found[38] != NodeHealth::Lost);
        }

        #[test]
        fn pauses_are_no_time_in_which_we_ran(late in prop::collection::vec(0..10_000_000_u64, 1..100)) {
            let began = Instant::now();
            let (mut ran, mut now) = (RunningTime::since(began), began);
            let mut expected = Duration::ZERO;
            for late in &late {
                let due = now + TICK;
                let late = micros(*late);
                now = due + late;
                ran.woke(due, now);
                expected += TICK + if late <= GRAIN { late } else { Duration::ZERO };
            }
            prop_assert_eq!(ran.total(), expected);
        }
    }
}
