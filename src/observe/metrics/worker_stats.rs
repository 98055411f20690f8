//! Counts of calls and decisions, which each worker keeps separately.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::foundation::{
    histogram::{Timer, TimerValues},
    sample::{Sample, SampleLabels, SampleValue, SampleWriter},
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

/// The reference's label of calls.
const METHOD: SampleLabels<'static> = &[("grpc_method", "ShouldRateLimit")];

/// [`CallCount`]s as statistics: names and labels in Prometheus, and other names in statsd.
const NAMES: [(&str, SampleLabels<'static>, Option<&str>); 11] = [
    ("tollgate.decisions_total", &[("code", "ok")], None),
    ("tollgate.decisions_total", &[("code", "over_limit")], None),
    ("ratelimit.service.global_shadow_mode", &[], None),
    (
        "ratelimit.service.should_rate_limit_error",
        &[("err_type", "service_error")],
        Some("ratelimit.service.call.should_rate_limit.service_error"),
    ),
    (
        "ratelimit.service.should_rate_limit_error",
        &[("err_type", "redis_error")],
        Some("ratelimit.service.call.should_rate_limit.redis_error"),
    ),
    ("tollgate.requests_without_limit_total", &[], None),
    (
        "ratelimit.service.total_requests",
        METHOD,
        Some("ratelimit_server.ShouldRateLimit.total_requests"),
    ),
    ("tollgate.late_calls_total", &[], None),
    ("tollgate.stray_orders_total", &[], None),
    ("tollgate.lost_settlements_total", &[], None),
    ("tollgate.unused_answers_total", &[], None),
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
    for ((name, labels, statsd), total) in NAMES.into_iter().zip(totals.counts) {
        list.sample(&Sample {
            name,
            labels,
            statsd,
            value: SampleValue::Counter(total),
        });
    }
    list.sample(&Sample {
        name: RESPONSE_TIME,
        labels: METHOD,
        statsd: Some("ratelimit_server.ShouldRateLimit.response_time"),
        value: SampleValue::Timer(totals.response_time.into()),
    });
}

/// The reference's response times, in seconds unless PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS is set.
pub(super) const RESPONSE_TIME: &str = "ratelimit.service.response_time_seconds";

/// Response times once more, with buckets that suit decisions; the reference's begin at 5 ms.
pub(super) const CALL_DURATION: &str = "tollgate.call_duration_seconds";

/// Writes the response times under the name that only a histogram needs.
pub(super) fn fine_samples(workers: &[WorkerStats], list: &mut SampleWriter<'_>) {
    list.sample(&Sample {
        name: CALL_DURATION,
        labels: &[],
        statsd: Some("tollgate.call_duration"),
        value: SampleValue::Timer(response_time(workers).into()),
    });
}

fn response_time(workers: &[WorkerStats]) -> TimerValues {
    let mut response_time = TimerValues::default();
    for worker in workers {
        response_time.add(&worker.response_time.values());
    }
    response_time
}
