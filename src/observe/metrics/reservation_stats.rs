//! Counts of the reservations of a rule, and of the hits in them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{
    core::lease::order::OrderOutcome,
    foundation::{metric_name::sanitize, sample::SampleWriter},
};

/// Events of reservations, by index. Those that are still open were made and neither settled nor released.
const RESULTS: [&str; 7] = [
    "made",
    "settled",
    "released",
    "unknown",
    "unreserved",
    "repeated",
    "late_window",
];

/// Hits of reservations, by index. Those that an empty bucket could not be charged are lost.
const HITS: [&str; 6] = [
    "reserved",
    "settled",
    "overshoot",
    "unused",
    "unreserved",
    "lost",
];

const MADE: usize = 0;
const LATE_WINDOW: usize = 6;

/// Counts of the reservations of one rule. They are allocated at the first one, and all workers share them.
#[derive(Debug, Default)]
pub(super) struct ReservationStats {
    results: [AtomicU64; RESULTS.len()],
    hits: [AtomicU64; HITS.len()],
}

impl ReservationStats {
    /// Counts a new reservation of these hits.
    pub(super) fn made(&self, hits: u64) {
        self.results[MADE].fetch_add(1, Relaxed);
        self.add([hits, 0, 0, 0, 0, 0]);
    }

    /// Counts the end of a reservation, or a cost without one. It `is_late` if its window had ended.
    pub(super) fn ended(&self, outcome: OrderOutcome, is_late: bool) {
        let settled = |leased: u64, cost: u64| {
            let (more, less) = (cost.saturating_sub(leased), leased.saturating_sub(cost));
            self.add([0, cost, more, less, 0, 0]);
        };
        let result = match outcome {
            OrderOutcome::Settled { leased, cost } => {
                settled(leased, cost);
                1
            }
            OrderOutcome::Released { leased } => {
                settled(leased, 0);
                2
            }
            OrderOutcome::Unknown { cost } => {
                self.add([0, 0, 0, 0, cost, 0]);
                3
            }
            OrderOutcome::Unreserved { cost } => {
                self.add([0, 0, 0, 0, cost, 0]);
                4
            }
            OrderOutcome::Repeated => 5,
        };
        self.results[result].fetch_add(1, Relaxed);
        self.results[LATE_WINDOW].fetch_add(is_late.into(), Relaxed);
    }

    /// Counts hits that a bucket had no tokens for.
    pub(super) fn lost(&self, hits: u64) {
        self.add([0, 0, 0, 0, 0, hits]);
    }

    fn add(&self, hits: [u64; HITS.len()]) {
        for (total, hits) in self.hits.iter().zip(hits) {
            total.fetch_add(hits, Relaxed);
        }
    }

    /// Writes the counts of the rule at `path`.
    pub(super) fn samples(&self, path: &str, list: &mut SampleWriter<'_>) {
        let path = sanitize(path);
        for (name, total) in RESULTS.iter().zip(&self.results) {
            let name = format!("tollgate.reservations_total.{path}.{name}");
            list.counter(name, total.load(Relaxed));
        }
        for (name, total) in HITS.iter().zip(&self.hits) {
            let name = format!("tollgate.reservation_hits_total.{path}.{name}");
            list.counter(name, total.load(Relaxed));
        }
    }
}
