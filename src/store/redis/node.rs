//! One Redis server, as all workers and the probe see it.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::{Notify, watch};

use crate::{
    core::window::{SteadyTime, Timestamp},
    foundation::{lock::lock, log_throttle::LossThrottle},
    net::endpoint::Endpoint,
    store::redis::{
        batch::script_ban::ScriptBan,
        health::{
            breaker::Breaker,
            clock::{ProcessClock, UNKNOWN},
            detector::{RoundTrips, SilenceBounds},
            failure::NodeFailure,
        },
    },
};

/// A server, and its state.
#[derive(Debug)]
pub(crate) struct Node {
    pub(super) endpoint: Endpoint,
    pub(super) breaker: Breaker,
    pub(super) stats: NodeStats,
    /// How far its clock is ahead of a clock of this process that cannot be set, in milliseconds; [`UNKNOWN`] before
    /// the first measurement.
    pub(super) ahead_millis: AtomicI64,
    /// How far its clock is ahead of this machine's, in milliseconds, for operators.
    pub(super) skew_millis: AtomicI64,
    /// Whether the probe has ever found it well.
    was_well: AtomicBool,
    /// Its usual round trip, as the probe measured it.
    round_trips: Mutex<RoundTrips>,
    /// The silence after which it is suspected, in microseconds.
    suspect_after_micros: AtomicU64,
    /// Whether a request waits for it for longer than usual, and the longest such wait since the probe
    /// last read it, in microseconds.
    is_suspected: AtomicBool,
    silent_micros: AtomicU64,
    pub(super) scripts: ScriptBan,
    losses: LossThrottle,
    /// Wakes the probe when the node is suspected.
    suspicion: Notify,
    /// How often the probe got an answer from it.
    record_answer: watch::Sender<u64>,
    /// Notifies the topology task of changes.
    node_events: Arc<Notify>,
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
    /// How often a batch took longer than the node usually takes.
    pub(super) suspicions: AtomicU64,
    /// Connections that were given up because they were silent while the node answered on others.
    pub(super) stalls: AtomicU64,
    /// One record for each worker.
    loads: Mutex<Vec<Arc<WorkerLoad>>>,
}

/// One worker's stats of one server. They change with each request, so no other thread writes near them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerLoad {
    /// Requests that are queued now.
    pub(super) queued: AtomicU64,
    /// Requests that are in flight now.
    pub(super) in_flight: AtomicU64,
    /// Requests that were refused because the breaker was open.
    pub(super) rejected_while_open: AtomicU64,
    /// Batches that were answered.
    replies: AtomicU64,
}

impl WorkerLoad {
    /// Counts a reply to a batch. Only one thread may call this.
    pub(super) fn record_reply(&self) {
        let replies = self.replies.load(Relaxed);
        self.replies.store(replies.wrapping_add(1), Relaxed);
    }
}

/// The wait of one batch for a node that is suspected.
#[derive(Debug)]
pub(super) struct Suspicion(watch::Receiver<u64>);

impl Suspicion {
    /// Waits until the probe gets an answer from the node.
    pub(super) async fn cleared(&mut self) {
        // The node keeps the sender, and this task keeps the node.
        let _ = self.0.changed().await;
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

impl Node {
    /// The time that its clock shows at `moment`, with the millisecond that measuring it cuts off; `None` before the
    /// first measurement. `process` is the clock that it is measured against.
    pub(super) fn time_at(&self, process: ProcessClock, moment: SteadyTime) -> Option<Timestamp> {
        match self.ahead_millis.load(Relaxed) {
            UNKNOWN => None,
            ahead => Some(process.at(moment).shifted(ahead.saturating_add(1))),
        }
    }

    pub(super) fn new(endpoint: Endpoint, node_events: Arc<Notify>) -> Self {
        Self {
            endpoint,
            breaker: Breaker::default(),
            stats: NodeStats::default(),
            ahead_millis: AtomicI64::new(UNKNOWN),
            skew_millis: AtomicI64::new(0),
            was_well: AtomicBool::new(false),
            round_trips: Mutex::default(),
            suspect_after_micros: AtomicU64::new(micros(
                RoundTrips::default().bounds(Duration::ZERO).suspect_after,
            )),
            is_suspected: AtomicBool::new(false),
            silent_micros: AtomicU64::new(0),
            scripts: ScriptBan::default(),
            losses: LossThrottle::new(),
            suspicion: Notify::new(),
            record_answer: watch::Sender::default(),
            node_events,
        }
    }

    /// How long a batch may take before the probe is to ask.
    pub(super) fn suspect_after(&self) -> Duration {
        Duration::from_micros(self.suspect_after_micros.load(Relaxed))
    }

    /// Reports that a batch has waited for `silent`, which is longer than usual, and wakes the probe.
    pub(super) fn suspect(&self, silent: Duration) -> Suspicion {
        let record_answer = self.record_answer.subscribe();
        self.stats.suspicions.fetch_add(1, Relaxed);
        self.silent_micros.fetch_max(micros(silent), Relaxed);
        self.is_suspected.store(true, Relaxed);
        self.suspicion.notify_one();
        Suspicion(record_answer)
    }

    /// Waits until the node is suspected.
    pub(super) async fn suspected(&self) {
        self.suspicion.notified().await;
    }

    /// The longest silence that was reported since the last call.
    pub(super) fn take_silence(&self) -> Duration {
        Duration::from_micros(self.silent_micros.swap(0, Relaxed))
    }

    /// How many batches the node has answered, for all workers.
    pub(super) fn replies(&self) -> u64 {
        let loads = lock(&self.stats.loads);
        let replies = loads.iter().map(|load| load.replies.load(Relaxed));
        replies.fold(0, u64::wrapping_add)
    }

    /// Records that the node answered the probe. `took` is the round trip, if it was measured.
    pub(super) fn record_answer(&self, took: Option<Duration>) {
        if let Some(took) = took {
            let mut round_trips = lock(&self.round_trips);
            round_trips.record(took);
            let suspect_after = round_trips.bounds(Duration::ZERO).suspect_after;
            drop(round_trips);
            self.suspect_after_micros
                .store(micros(suspect_after), Relaxed);
        }
        self.is_suspected.store(false, Relaxed);
        self.record_answer
            .send_modify(|record_answer| *record_answer = record_answer.wrapping_add(1));
    }

    /// How long it may be silent, if a node that usually answers at once may be for `lose_after`.
    pub(super) fn bounds(&self, lose_after: Duration) -> SilenceBounds {
        lock(&self.round_trips).bounds(lose_after)
    }

    /// Whether a request waits for it for longer than usual.
    pub(super) fn is_suspected(&self) -> bool {
        self.is_suspected.load(Relaxed)
    }

    /// Marks the node as lost: no request waits for it until the probe finds it well.
    pub(super) fn lose(&self, failure: NodeFailure) {
        let text = failure.to_string();
        let known = self.breaker.failure();
        let is_other = known.is_some_and(|known| known != failure);
        if is_other && self.losses.may_log_reason() {
            tracing::warn!(node = %self.endpoint, cause = text, "Redis is still lost");
        }
        if self.breaker.open(failure) {
            match self.losses.may_log_loss() {
                Some(0) => {
                    tracing::warn!(node = %self.endpoint, cause = text, "Redis is lost");
                }
                Some(before) => {
                    tracing::warn!(node = %self.endpoint, cause = text, before, "Redis is lost again");
                }
                None => {}
            }
        }
        self.notify_topology();
    }

    /// Makes the topology task look at it.
    pub(super) fn notify_topology(&self) {
        self.node_events.notify_one();
    }

    /// Marks the node as well. With `is_replaced`, existing connections may be dead unnoticed.
    pub(super) fn regain(&self, is_replaced: bool) {
        let is_first = !self.was_well.swap(true, Relaxed);
        let is_back = self.breaker.close(is_replaced);
        if is_back && self.losses.may_log_return() {
            tracing::info!(node = %self.endpoint, "Redis is back");
        }
        if is_first || is_back {
            self.notify_topology();
        }
    }

    /// Whether the probe has ever found it well.
    pub(super) fn was_well(&self) -> bool {
        self.was_well.load(Relaxed)
    }

    /// A new record for another worker.
    pub(super) fn new_load(&self) -> Arc<WorkerLoad> {
        let load = Arc::<WorkerLoad>::default();
        lock(&self.stats.loads).push(load.clone());
        load
    }

    /// Its state, for metrics and operators.
    pub(super) fn report(&self) -> NodeReport {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let stats = &self.stats;
        let loads = lock(&stats.loads).clone();
        let sum =
            |pick: fn(&WorkerLoad) -> &AtomicU64| loads.iter().map(|load| get(pick(load))).sum();
        NodeReport {
            name: self.endpoint.to_string(),
            failure: self.breaker.failure(),
            times_opened: self.breaker.times_opened(),
            batches: get(&stats.batches),
            failures: get(&stats.failures),
            refusals: get(&stats.refusals),
            redirects: get(&stats.redirects),
            connections: get(&stats.connections),
            suspicions: get(&stats.suspicions),
            stalls: get(&stats.stalls),
            is_suspected: self.is_suspected(),
            queued: sum(|load| &load.queued),
            in_flight: sum(|load| &load.in_flight),
            rejected_while_open: sum(|load| &load.rejected_while_open),
            skew_millis: self.skew_millis.load(Relaxed),
        }
    }
}

/// One server at one moment.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// `host:port`, or the path of a socket.
    pub name: String,
    /// Why its breaker is open.
    pub failure: Option<NodeFailure>,
    pub times_opened: u64,
    pub batches: u64,
    pub failures: u64,
    pub refusals: u64,
    pub redirects: u64,
    /// Connections that were made, without those of the probe.
    pub connections: u64,
    /// How often a batch took longer than the server usually takes.
    pub suspicions: u64,
    /// Connections that were given up because they were silent while the server answered on others.
    pub stalls: u64,
    /// Whether a request waits for it now for longer than usual.
    pub is_suspected: bool,
    pub queued: u64,
    pub in_flight: u64,
    pub rejected_while_open: u64,
    /// How far its clock is ahead of ours.
    pub skew_millis: i64,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
