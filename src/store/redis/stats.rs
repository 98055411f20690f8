//! Counts of pipelines, connections and nodes, over the batchers of all workers.

use crate::foundation::lock::lock;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::foundation::log_throttle::LogThrottle;

use super::node::NodeReport;
use super::running::Lateness;

use super::node::Node;
use super::slot_map::SlotMap;

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
    /// How late timers of this process fired while a request waited for Redis.
    pub lateness: Lateness,
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
        if self.reset_throttle.is_over() {
            tracing::warn!(
                "counters are further ahead than clocks may differ, and start anew: the clock of a replica or \
                     of Redis is wrong"
            );
        }
    }

    /// Counts a batch that failed, or a connection that did not come up.
    pub(super) fn record_failure(&self) {
        self.failures.fetch_add(1, Relaxed);
    }
}
