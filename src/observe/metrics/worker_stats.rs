//! Counts of calls and decisions, which each worker keeps separately.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::foundation::{
    histogram::{Timer, TimerValues},
    sample::SampleWriter,
};

/// Counters that only one thread writes, so that adding to one is a plain load and store. They share no cache line with
/// counters of other threads.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct OwnCounts<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for OwnCounts<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> OwnCounts<N> {
    /// Adds to the counter with this index.
    pub(super) fn add(&self, index: usize, count: u64) {
        if count > 0 {
            let counter = &self.0[index];
            counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
        }
    }

    /// The sum over all sets of counters, for each index.
    pub(super) fn totals<'c>(all: impl Iterator<Item = &'c Self>) -> [u64; N] {
        all.fold([0; N], |totals, counts| {
            std::array::from_fn(|index| totals[index] + counts.0[index].load(Relaxed))
        })
    }
}

/// The counters of a worker, by index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallCount {
    Ok,
    OverLimit,
    GlobalShadowMode,
    BadRequests,
    StoreFailures,
    WithoutLimit,
    Calls,
    LateCalls,
    StrayOrders,
    LostSettlements,
    UnusedAnswers,
}

/// The names of [`CallCount`]s as statistics.
const NAMES: [&str; 11] = [
    "tollgate.decisions_total.ok",
    "tollgate.decisions_total.over_limit",
    "ratelimit.service.global_shadow_mode",
    "ratelimit.service.call.should_rate_limit.service_error",
    "ratelimit.service.call.should_rate_limit.redis_error",
    "tollgate.requests_without_limit_total",
    "ratelimit_server.ShouldRateLimit.total_requests",
    "tollgate.late_calls_total",
    "tollgate.stray_orders_total",
    "tollgate.lost_settlements_total",
    "tollgate.unused_answers_total",
];

/// The counters of one worker. Writing to one cache line from several cores would cost more than all other recording,
/// so workers share none. The alignment is 128 because most processors fetch lines of 64 bytes in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct WorkerStats {
    counts: OwnCounts<{ NAMES.len() }>,
    pub(super) response_time: Timer,
}

impl WorkerStats {
    pub(super) fn add(&self, which: CallCount, count: u64) {
        self.counts.add(which as usize, count);
    }
}

/// Totals of [`WorkerStats`] over all workers, by [`CallCount`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallTotals {
    counts: [u64; NAMES.len()],
    pub(crate) response_time: TimerValues,
}

impl CallTotals {
    pub(crate) fn of(&self, which: CallCount) -> u64 {
        self.counts[which as usize]
    }
}

/// The totals at this moment.
pub(super) fn totals(workers: &[WorkerStats]) -> CallTotals {
    CallTotals {
        counts: OwnCounts::totals(workers.iter().map(|worker| &worker.counts)),
        response_time: response_time(workers),
    }
}

/// Writes the sums over all workers.
pub(super) fn samples(workers: &[WorkerStats], list: &mut SampleWriter<'_>) {
    let totals = totals(workers);
    for (name, total) in NAMES.into_iter().zip(totals.counts) {
        list.counter(name, total);
    }
    let name = "ratelimit_server.ShouldRateLimit.response_time";
    list.timer(name, totals.response_time);
}

/// Writes the response times once more, under a name whose histogram has buckets that suit decisions. The buckets of
/// the reference's name begin at 5 ms.
pub(super) fn fine_samples(workers: &[WorkerStats], list: &mut SampleWriter<'_>) {
    list.timer("tollgate.call_duration", response_time(workers));
}

fn response_time(workers: &[WorkerStats]) -> TimerValues {
    let mut response_time = TimerValues::default();
    for worker in workers {
        response_time.add(&worker.response_time.values());
    }
    response_time
}
