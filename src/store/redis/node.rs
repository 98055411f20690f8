//! One Redis server, as all workers and the probe see it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
};

use tokio::sync::{Notify, watch};

use crate::{
    core::window::{SteadyTime, Timestamp},
    foundation::{lock::lock, log_throttle::LossThrottle},
    net::endpoint::Endpoint,
    store::redis::{
        batch::script_ban::ScriptBan,
        clock::{ProcessClock, UNKNOWN},
        failure::NodeFailure,
    },
};

/// A server, and its state.
///
/// No request waits for a server that is lost: it becomes so when a connection is refused or breaks, when it replies
/// that it is of no use for now, or when the probe finds it silent. From then on only the probe connects to it, until
/// it answers promptly.
#[derive(Debug)]
pub(crate) struct Node {
    pub(super) endpoint: Endpoint,
    /// Why it is lost.
    failure: watch::Sender<Option<NodeFailure>>,
    /// Whether more than a tenth of the last decisions gave up waiting although it answers.
    pub(super) is_slow: AtomicBool,
    pub(super) stats: NodeStats,
    /// How far its clock is ahead of a clock of this process that cannot be set, in milliseconds; [`UNKNOWN`] before
    /// the first measurement.
    pub(super) ahead_millis: AtomicI64,
    /// How far its clock is ahead of this machine's, in milliseconds, for operators.
    pub(super) skew_millis: AtomicI64,
    /// Whether the probe has ever found it well.
    pub(super) was_well: AtomicBool,
    pub(super) scripts: ScriptBan,
    losses: LossThrottle,
    /// Wakes the probe, and tells of its answers that came as promptly as a decision needs them.
    pub(super) doubt: Notify,
    pub(super) prompt_answer: Notify,
    /// Notifies the topology task of changes.
    pub(super) events: Arc<Notify>,
}

/// Stats of one server, apart from the fields of a node that every request reads.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct NodeStats {
    pub(super) batches: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) refusals: AtomicU64,
    pub(super) redirects: AtomicU64,
    pub(super) connections: AtomicU64,
    times_lost: AtomicU64,
    /// Whether it answered a worker since the probe last found it well after a loss.
    pub(super) was_used: AtomicBool,
    /// Requests that were answered, and those whose callers gave up waiting.
    pub(super) answered: AtomicU64,
    pub(super) late: AtomicU64,
    /// How many requests of each worker wait for it.
    waiting: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Node {
    pub(super) fn new(endpoint: Endpoint, events: Arc<Notify>) -> Self {
        Self {
            endpoint,
            failure: watch::Sender::new(None),
            is_slow: AtomicBool::new(false),
            stats: NodeStats::default(),
            ahead_millis: AtomicI64::new(UNKNOWN),
            skew_millis: AtomicI64::new(0),
            was_well: AtomicBool::new(false),
            scripts: ScriptBan::default(),
            losses: LossThrottle::new(),
            doubt: Notify::new(),
            prompt_answer: Notify::new(),
            events,
        }
    }

    /// The time that its clock shows at `moment`, with the millisecond that measuring it cuts off; `None` before the
    /// first measurement. `process` is the clock that it is measured against.
    pub(super) fn time_at(&self, process: ProcessClock, moment: SteadyTime) -> Option<Timestamp> {
        match self.ahead_millis.load(Relaxed) {
            UNKNOWN => None,
            ahead => Some(process.at(moment).shifted(ahead.saturating_add(1))),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Why it is lost; `None` if it is not.
    pub(super) fn failure(&self) -> Option<NodeFailure> {
        self.failure.borrow().clone()
    }

    pub(super) fn failure_watch(&self) -> watch::Receiver<Option<NodeFailure>> {
        self.failure.subscribe()
    }

    /// Makes the probe ask at once.
    pub(super) fn wake_probe(&self) {
        self.doubt.notify_one();
    }

    /// Marks the node as lost: no request waits for it until the probe finds it well. The last failure replaces those
    /// before.
    pub(super) fn lose(&self, failure: NodeFailure) {
        let cause = failure.to_string();
        let before = self.failure.send_replace(Some(failure.clone()));
        if before.as_ref().is_some_and(|before| *before != failure) && self.losses.may_log_reason()
        {
            tracing::warn!(node = %self.endpoint, cause, "Redis is still lost");
        }
        if before.is_none() {
            self.stats.times_lost.fetch_add(1, Relaxed);
            self.is_slow.store(false, Relaxed);
            match self.losses.may_log_loss() {
                Some(0) => tracing::warn!(node = %self.endpoint, cause, "Redis is lost"),
                Some(before) => {
                    tracing::warn!(node = %self.endpoint, cause, before, "Redis is lost again");
                }
                None => {}
            }
            self.wake_probe();
        }
        self.events.notify_one();
    }

    /// Marks the node as well.
    pub(super) fn regain(&self) {
        let is_first = !self.was_well.swap(true, Relaxed);
        let is_back = self
            .failure
            .send_if_modified(|failure| failure.take().is_some());
        if is_back {
            self.stats.was_used.store(false, Relaxed);
            if self.losses.may_log_return() {
                tracing::info!(node = %self.endpoint, "Redis is back");
            }
        }
        if is_first || is_back {
            self.events.notify_one();
        }
    }

    /// A new count of the requests of another worker that wait for it.
    pub(super) fn new_waiting(&self) -> Arc<AtomicU64> {
        let waiting = Arc::<AtomicU64>::default();
        lock(&self.stats.waiting).push(waiting.clone());
        waiting
    }

    /// Its state, for metrics and operators.
    pub(super) fn report(&self) -> NodeReport {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let stats = &self.stats;
        NodeReport {
            name: self.endpoint.to_string(),
            failure: self.failure(),
            is_slow: self.is_slow.load(Relaxed),
            in_flight: lock(&stats.waiting)
                .iter()
                .map(|waiting| get(waiting))
                .sum(),
            skew_millis: self.skew_millis.load(Relaxed),
            counts: [
                ("times_opened", get(&stats.times_lost)),
                ("batches", get(&stats.batches)),
                ("failures", get(&stats.failures)),
                ("refusals", get(&stats.refusals)),
                ("redirects", get(&stats.redirects)),
                ("connections", get(&stats.connections)),
                ("late", get(&stats.late)),
            ],
        }
    }
}

/// One server at one moment.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// `host:port`, or the path of a socket.
    pub name: String,
    /// Why it is lost.
    pub failure: Option<NodeFailure>,
    /// Whether more than a tenth of the last decisions gave up waiting although it answers.
    pub is_slow: bool,
    /// Requests that wait for its reply.
    pub in_flight: u64,
    /// How far its clock is ahead of ours.
    pub skew_millis: i64,
    /// Counts since the start, by their names in metrics.
    pub counts: [(&'static str, u64); 7],
}
