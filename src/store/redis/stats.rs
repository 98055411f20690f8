//! Counts of pipelines, connections and nodes, over the batchers of all workers.

use super::node::{Node, NodeReport};
use crate::{
    foundation::{
        lock::lock, log_throttle::LogThrottle, metric_name::sanitize, sample::SampleWriter,
    },
    store::redis::topology::slot_map::SlotMap,
};

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Stats of the batchers of all workers.
#[derive(Debug, Default)]
pub struct RedisStats {
    pub pipelines: AtomicU64,
    pub commands: AtomicU64,
    pub failures: AtomicU64,
    /// Counters that were dropped because their time was so far ahead that a clock must be wrong.
    pub reset_counters: AtomicU64,
    reset_throttle: LogThrottle,
    pub connections_opened: AtomicU64,
    pub connections_closed: AtomicU64,
    /// The nodes of the map.
    pub(super) nodes: Mutex<Vec<Arc<Node>>>,
}

impl RedisStats {
    /// The state of each node of the map.
    pub fn nodes(&self) -> Vec<NodeReport> {
        lock(&self.nodes).iter().map(|node| node.report()).collect()
    }

    pub(super) fn set_nodes(&self, map: &SlotMap) {
        lock(&self.nodes).clone_from(&map.nodes);
    }

    pub(super) fn record_pipeline(&self, commands: usize) {
        self.pipelines.fetch_add(1, Relaxed);
        self.commands.fetch_add(commands as u64, Relaxed);
    }

    /// Counts counters that were too far ahead, and logs that once a minute.
    pub(super) fn record_reset_counters(&self, counters: u64) {
        self.reset_counters.fetch_add(counters, Relaxed);
        if self.reset_throttle.may_log() {
            tracing::warn!(
                "counters are further ahead than clocks may differ, and start again: the clock of a replica or \
                     of Redis is wrong"
            );
        }
    }
}

/// Passes on the stats of the Redis of all limits, and of the one of limits per second.
pub(crate) fn samples(all: &RedisStats, per_second: &RedisStats, list: &mut SampleWriter<'_>) {
    all.pool_samples("redis_pool", list);
    per_second.pool_samples("redis_per_second_pool", list);
    let mut sum = |name: &str, pick: fn(&RedisStats) -> &AtomicU64| {
        let sum = pick(all).load(Relaxed) + pick(per_second).load(Relaxed);
        list.counter(format!("tollgate.redis_{name}_total"), sum);
    };
    sum("pipelines", |stats| &stats.pipelines);
    sum("commands", |stats| &stats.commands);
    sum("failures", |stats| &stats.failures);
    sum("reset_counters", |stats| &stats.reset_counters);
    all.node_samples("redis_node", list);
    per_second.node_samples("redis_per_second_node", list);
}

impl RedisStats {
    fn pool_samples(&self, pool: &str, list: &mut SampleWriter<'_>) {
        let opened = self.connections_opened.load(Relaxed);
        let closed = self.connections_closed.load(Relaxed);
        let active = opened.saturating_sub(closed);
        list.gauge(format!("ratelimit.{pool}.cx_active"), active);
        list.counter(format!("ratelimit.{pool}.cx_total"), opened);
        list.counter(format!("ratelimit.{pool}.cx_local_close"), closed);
    }

    /// Samples of each node, by its address, whose dots would split the name.
    fn node_samples(&self, kind: &str, list: &mut SampleWriter<'_>) {
        for node in self.nodes() {
            let name = sanitize(&node.name).replace('.', "_");
            let gauges = [
                ("is_open", u64::from(node.failure.is_some())),
                ("is_slow", u64::from(node.is_slow)),
                ("in_flight", node.in_flight),
                ("clock_ahead_ms", node.skew_millis.max(0).unsigned_abs()),
                ("clock_behind_ms", node.skew_millis.min(0).unsigned_abs()),
            ];
            for (stat, value) in gauges {
                list.gauge(format!("tollgate.{kind}.{name}.{stat}"), value);
            }
            for (stat, total) in node.counts {
                list.counter(format!("tollgate.{kind}.{name}.{stat}_total"), total);
            }
        }
    }
}
