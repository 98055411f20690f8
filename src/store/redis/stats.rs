//! Counts of pipelines, connections and nodes, over the batchers of all workers.

use super::node::{Node, NodeReport};
use crate::{
    foundation::{
        lock::lock,
        log_throttle::LogThrottle,
        metric_name::sanitize,
        sample::{Sample, SampleValue, SampleWriter},
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
    all.samples("redis", list);
    per_second.samples("redis_per_second", list);
    let mut sum = |name: &str, pick: fn(&RedisStats) -> &AtomicU64| {
        let sum = pick(all).load(Relaxed) + pick(per_second).load(Relaxed);
        list.counter(name, &[], sum);
    };
    sum("tollgate.redis_pipelines_total", |stats| &stats.pipelines);
    sum("tollgate.redis_commands_total", |stats| &stats.commands);
    sum("tollgate.redis_failures_total", |stats| &stats.failures);
    sum("tollgate.redis_reset_counters_total", |stats| {
        &stats.reset_counters
    });
}

impl RedisStats {
    /// Passes on the connections to this `redis`, and the state of each of its nodes, by their addresses, whose dots
    /// would split the names in statsd.
    fn samples(&self, redis: &str, list: &mut SampleWriter<'_>) {
        let opened = self.connections_opened.load(Relaxed);
        let closed = self.connections_closed.load(Relaxed);
        let active = opened.saturating_sub(closed);
        let pool = |what| format!("ratelimit.{redis}_pool.cx_{what}");
        list.gauge(&pool("active"), &[], active);
        list.counter(&pool("total"), &[], opened);
        list.counter(&pool("local_close"), &[], closed);
        for node in self.nodes() {
            let name = sanitize(&node.name).replace('.', "_");
            let mut state = |stat: &str, value| {
                list.sample(&Sample {
                    name: &format!("tollgate.{redis}_node_{stat}"),
                    labels: &[("node", &name)],
                    statsd: Some(&format!("tollgate.{redis}_node.{name}.{stat}")),
                    value,
                });
            };
            for (stat, value) in [
                ("is_open", u64::from(node.failure.is_some())),
                ("is_slow", u64::from(node.is_slow)),
                ("in_flight", node.in_flight),
                ("clock_ahead_ms", node.skew_millis.max(0).unsigned_abs()),
                ("clock_behind_ms", node.skew_millis.min(0).unsigned_abs()),
            ] {
                state(stat, SampleValue::Gauge(value));
            }
            for (stat, total) in node.counts {
                state(&format!("{stat}_total"), SampleValue::Counter(total));
            }
        }
    }
}
