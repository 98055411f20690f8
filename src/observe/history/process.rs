//! Steps of the process as a whole: calls, latency, store and memory.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use super::track::{Total, difference};
use crate::{
    core::window::Timestamp,
    observe::metrics::{CallTotals, Metrics, process::resident_bytes},
    store::{memory::MemoryStore, redis::stats::RedisStats},
};

/// The time of a sample, by two clocks: that of day, and one that is never set.
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

/// The process at one moment: totals since the start, and present values.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProcessTotals {
    pub(crate) time: SampleTime,
    pub(crate) calls: CallTotals,
    pub(crate) degraded: u64,
    pub(crate) pipelines: u64,
    pub(crate) commands: u64,
    pub(crate) redis_failures: u64,
    pub(crate) gauges: Gauges,
}

/// Present values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gauges {
    pub(crate) stores_lost: u64,
    pub(crate) nodes: u64,
    pub(crate) nodes_lost: u64,
    pub(crate) nodes_suspected: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) held_bytes: u64,
    pub(crate) counters: u64,
    pub(crate) counter_bytes: u64,
}

/// The process during one step. Gauges are those at its end, durations are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStep {
    pub(crate) ends_at: Timestamp,
    /// When it ended, by the clock that is never set.
    pub(super) ends: Duration,
    pub(crate) lasted: Duration,
    pub(crate) calls: u32,
    pub(crate) ok: u32,
    pub(crate) over_limit: u32,
    pub(crate) shadowed: u32,
    pub(crate) degraded: u32,
    pub(crate) bad_requests: u32,
    pub(crate) store_failures: u32,
    pub(crate) late: u32,
    pub(crate) p50: u32,
    pub(crate) p90: u32,
    pub(crate) p99: u32,
    pub(crate) p999: u32,
    pub(crate) pipelines: u32,
    pub(crate) commands: u32,
    pub(crate) redis_failures: u32,
    pub(crate) gauges: Gauges,
}

impl ProcessTotals {
    /// Reads all counters.
    pub(crate) fn read(metrics: &Metrics, memory: Option<&MemoryStore>, time: SampleTime) -> Self {
        let servers = [&metrics.redis, &metrics.redis_per_second];
        let sum = |pick: fn(&RedisStats) -> u64| servers.into_iter().map(|stats| pick(stats)).sum();
        let (mut nodes, mut nodes_lost, mut nodes_suspected) = (0, 0, 0);
        for node in servers.into_iter().flat_map(|stats| stats.nodes()) {
            nodes += 1;
            nodes_lost += u64::from(node.failure.is_some());
            nodes_suspected += u64::from(node.is_suspected);
        }
        Self {
            time,
            calls: metrics.call_totals(),
            degraded: metrics.loss.degraded.load(Relaxed),
            pipelines: sum(|stats| stats.pipelines.load(Relaxed)),
            commands: sum(|stats| stats.commands.load(Relaxed)),
            redis_failures: sum(|stats| stats.failures.load(Relaxed)),
            gauges: Gauges {
                stores_lost: metrics.loss.lost.load(Relaxed),
                nodes,
                nodes_lost,
                nodes_suspected,
                resident_bytes: resident_bytes().unwrap_or_default(),
                held_bytes: metrics.held.bytes.load(Relaxed),
                counters: memory.map_or(0, |store| store.live_counters() as u64),
                counter_bytes: memory.map_or(0, |store| store.counter_bytes() as u64),
            },
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
        let (calls, before) = (&self.calls, &earlier.calls);
        let times = calls.response_time.since(&before.response_time);
        let quantile = |share| u32::try_from(times.quantile(share)).unwrap_or(u32::MAX);
        ProcessStep {
            ends_at: self.time.at,
            ends: self.time.age,
            lasted: self.time.age.saturating_sub(earlier.time.age),
            calls: difference(calls.calls, before.calls),
            ok: difference(calls.ok, before.ok),
            over_limit: difference(calls.over_limit, before.over_limit),
            shadowed: difference(calls.shadowed, before.shadowed),
            degraded: difference(self.degraded, earlier.degraded),
            bad_requests: difference(calls.bad_requests, before.bad_requests),
            store_failures: difference(calls.store_failures, before.store_failures),
            late: difference(calls.late_calls, before.late_calls),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            pipelines: difference(self.pipelines, earlier.pipelines),
            commands: difference(self.commands, earlier.commands),
            redis_failures: difference(self.redis_failures, earlier.redis_failures),
            gauges: self.gauges,
        }
    }
}
