//! Steps of the process as a whole: calls, latency, store and memory.

use std::{array, sync::atomic::Ordering::Relaxed, time::Duration};

use super::track::{Total, difference};
use crate::{
    core::window::Timestamp,
    foundation::histogram::TimerValues,
    observe::metrics::{Metrics, process::resident_bytes},
    store::{memory::MemoryStore, redis::stats::RedisStats},
};

/// The time of a sample by two clocks: the time of day, and a monotonic one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleTime {
    pub(crate) at: Timestamp,
    /// Time since the history began.
    pub(crate) age: Duration,
}

impl Default for SampleTime {
    fn default() -> Self {
        Self {
            at: Timestamp::from_millis(0),
            age: Duration::ZERO,
        }
    }
}

/// The values of a step: differences of counters, quantiles of the latency in microseconds, and gauges at its end.
pub(crate) const STEP_VALUES: [&str; COUNTERS + QUANTILES.len() + GAUGES] = [
    "ok",
    "overLimit",
    "shadowed",
    "badRequests",
    "storeFailures",
    "calls",
    "late",
    "strayOrders",
    "lostSettlements",
    "degraded",
    "batches",
    "commands",
    "redisFailures",
    "p50Micros",
    "p90Micros",
    "p99Micros",
    "p999Micros",
    "storesLost",
    "nodesLost",
    "nodesSuspected",
    "residentBytes",
    "heldBytes",
    "counters",
    "counterBytes",
];

const COUNTERS: usize = 13;
const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];
const GAUGES: usize = 7;

/// The process at one moment, in the order of [`STEP_VALUES`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProcessTotals {
    pub(crate) time: SampleTime,
    pub(super) counters: [u64; COUNTERS],
    pub(super) response_time: TimerValues,
    pub(super) gauges: [u64; GAUGES],
    pub(super) nodes: u64,
}

/// The process during one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStep {
    pub(crate) ends_at: Timestamp,
    /// When the step ended, by the monotonic clock.
    pub(super) ends: Duration,
    pub(crate) lasted: Duration,
    pub(crate) values: [u64; STEP_VALUES.len()],
    /// The number of nodes at the end of the step.
    pub(crate) nodes: u64,
}

impl ProcessTotals {
    pub(crate) fn read(metrics: &Metrics, memory: Option<&MemoryStore>, time: SampleTime) -> Self {
        let servers = [&metrics.redis, &metrics.redis_per_second];
        let sum = |pick: fn(&RedisStats) -> u64| servers.into_iter().map(|stats| pick(stats)).sum();
        let (mut nodes, mut nodes_lost, mut nodes_suspected) = (0, 0, 0);
        for node in servers.into_iter().flat_map(|stats| stats.nodes()) {
            nodes += 1;
            nodes_lost += u64::from(node.failure.is_some());
            nodes_suspected += u64::from(node.is_suspected);
        }
        let calls = metrics.call_totals();
        // Not those that came later.
        let mut counters = calls.counts.into_iter().take(9).chain([
            metrics.loss.degraded.load(Relaxed),
            sum(|stats| stats.pipelines.load(Relaxed)),
            sum(|stats| stats.commands.load(Relaxed)),
            sum(|stats| stats.failures.load(Relaxed)),
        ]);
        Self {
            time,
            counters: array::from_fn(|_| counters.next().unwrap_or_default()),
            response_time: calls.response_time,
            gauges: [
                metrics.loss.lost.load(Relaxed),
                nodes_lost,
                nodes_suspected,
                resident_bytes().unwrap_or_default(),
                metrics.held.bytes.load(Relaxed),
                memory.map_or(0, |store| store.live_counters() as u64),
                memory.map_or(0, |store| store.counter_bytes() as u64),
            ],
            nodes,
        }
    }

    /// The step from `earlier` to these totals.
    pub(crate) fn step_since(&self, earlier: &Self) -> ProcessStep {
        Total::since(self, earlier)
    }
}

impl Total for ProcessTotals {
    type Step = ProcessStep;

    fn since(&self, earlier: &Self) -> ProcessStep {
        let counters = self.counters.iter().zip(&earlier.counters);
        let counters = counters.map(|(now, before)| difference(*now, *before).into());
        let times = self.response_time.since(&earlier.response_time);
        let quantiles = QUANTILES.map(|share| times.quantile(share));
        let mut values = counters.chain(quantiles).chain(self.gauges);
        ProcessStep {
            ends_at: self.time.at,
            ends: self.time.age,
            lasted: self.time.age.saturating_sub(earlier.time.age),
            values: array::from_fn(|_| values.next().unwrap_or_default()),
            nodes: self.nodes,
        }
    }
}
