//! Counts of calls and decisions, kept by each worker for itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::foundation::{
    histogram::{Timer, TimerValues},
    sample::SampleWriter,
};

/// The counters of one worker, written by that worker only. Counters that several cores write to would cost more than
/// all other recording, so workers share no cache line; most processors fetch lines in pairs of 64 bytes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct WorkerStats {
    pub(super) decisions_ok: AtomicU64,
    pub(super) decisions_over_limit: AtomicU64,
    pub(super) bad_requests: AtomicU64,
    pub(super) store_failures: AtomicU64,
    pub(super) calls: AtomicU64,
    pub(super) late_calls: AtomicU64,
    pub(super) global_shadow_mode: AtomicU64,
    pub(super) response_time: Timer,
}

/// Totals of [`WorkerStats`] over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallTotals {
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    pub(crate) shadowed: u64,
    pub(crate) bad_requests: u64,
    pub(crate) store_failures: u64,
    pub(crate) calls: u64,
    pub(crate) late_calls: u64,
    pub(crate) response_time: TimerValues,
}

/// The totals at this moment.
pub(super) fn totals(workers: &[WorkerStats]) -> CallTotals {
    let mut totals = CallTotals {
        response_time: response_time(workers),
        ..CallTotals::default()
    };
    for worker in workers {
        totals.ok += worker.decisions_ok.load(Relaxed);
        totals.over_limit += worker.decisions_over_limit.load(Relaxed);
        totals.shadowed += worker.global_shadow_mode.load(Relaxed);
        totals.bad_requests += worker.bad_requests.load(Relaxed);
        totals.store_failures += worker.store_failures.load(Relaxed);
        totals.calls += worker.calls.load(Relaxed);
        totals.late_calls += worker.late_calls.load(Relaxed);
    }
    totals
}

/// Selects a counter.
type Pick = fn(&WorkerStats) -> &AtomicU64;

/// Passes on the sums over all workers.
pub(super) fn samples(workers: &[WorkerStats], list: &mut SampleWriter<'_>) {
    let sum = |pick: Pick| {
        workers
            .iter()
            .map(|worker| pick(worker).load(Relaxed))
            .sum::<u64>()
    };
    let counters: [(&str, Pick); 7] = [
        (
            "ratelimit.service.call.should_rate_limit.redis_error",
            |worker| &worker.store_failures,
        ),
        (
            "ratelimit.service.call.should_rate_limit.service_error",
            |worker| &worker.bad_requests,
        ),
        ("ratelimit.service.global_shadow_mode", |worker| {
            &worker.global_shadow_mode
        }),
        (
            "ratelimit_server.ShouldRateLimit.total_requests",
            |worker| &worker.calls,
        ),
        ("tollgate.decisions_total.ok", |worker| &worker.decisions_ok),
        ("tollgate.decisions_total.over_limit", |worker| {
            &worker.decisions_over_limit
        }),
        ("tollgate.late_calls_total", |worker| &worker.late_calls),
    ];
    for (name, pick) in counters {
        list.counter(name, sum(pick));
    }
    list.timer(
        "ratelimit_server.ShouldRateLimit.response_time",
        response_time(workers),
    );
}

/// Passes on the response times once more, under a name whose histogram has buckets for decisions: those of the
/// reference's name begin at 5 ms.
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

/// Adds to a counter that only this thread writes: a plain load and store.
pub(super) fn add_alone(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
    }
}
