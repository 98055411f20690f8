//! One Redis server, as all workers and the probe see it.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::sync::Notify;

use super::{address::Place, breaker::Breaker, lock, trouble::Trouble};

/// A server, and what is known of it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) breaker: Breaker,
    pub(super) meters: NodeMeters,
    /// How far its clock is ahead of ours, in milliseconds; nothing measured is 0.
    pub(super) skew_millis: AtomicI64,
    /// Whether the probe has ever found it well.
    was_well: AtomicBool,
    /// Tells the guide that something changed here.
    news: Arc<Notify>,
}

/// What was done with one server. What every request reads of a node lies elsewhere.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct NodeMeters {
    pub(super) batches: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) refusals: AtomicU64,
    pub(super) redirects: AtomicU64,
    pub(super) connections: AtomicU64,
    /// What each worker has to do with it.
    loads: Mutex<Vec<Arc<Load>>>,
}

/// What one worker has to do with one server. Counted for each request, so nobody else writes near
/// it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Load {
    /// Requests that wait for their turn now.
    pub(super) queued: AtomicU64,
    /// Requests that are on their way now.
    pub(super) in_flight: AtomicU64,
    /// Requests that were refused because the breaker was open.
    pub(super) refused_fast: AtomicU64,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl Node {
    pub(super) fn new(place: Place, news: Arc<Notify>) -> Self {
        Self {
            place,
            breaker: Breaker::default(),
            meters: NodeMeters::default(),
            skew_millis: AtomicI64::new(0),
            was_well: AtomicBool::new(false),
            news,
        }
    }

    /// Something is wrong with it: nobody is to wait for it until the probe says otherwise.
    pub(super) fn lose(&self, trouble: Trouble) {
        let text = trouble.to_string();
        if self.breaker.open(trouble) {
            tracing::warn!(node = %self.place, trouble = text, "Redis is not reachable");
        }
        self.tell();
    }

    /// Has the guide look at it.
    pub(super) fn tell(&self) {
        self.news.notify_one();
    }

    /// It is well. With `is_anew` connections of before may be dead without knowing it.
    pub(super) fn regain(&self, is_anew: bool) {
        let is_first = !self.was_well.swap(true, Relaxed);
        let is_back = self.breaker.close(is_anew);
        if is_back {
            tracing::info!(node = %self.place, "Redis is reachable again");
        }
        if is_first || is_back {
            self.tell();
        }
    }

    /// Whether the probe has ever found it well.
    pub(super) fn was_well(&self) -> bool {
        self.was_well.load(Relaxed)
    }

    /// A meter of another worker.
    pub(super) fn new_load(&self) -> Arc<Load> {
        let load = Arc::<Load>::default();
        lock(&self.meters.loads).push(load.clone());
        load
    }

    /// What is told of it.
    pub(super) fn report(&self) -> NodeReport {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let meters = &self.meters;
        let loads = lock(&meters.loads).clone();
        let sum = |pick: fn(&Load) -> &AtomicU64| loads.iter().map(|load| get(pick(load))).sum();
        NodeReport {
            name: self.place.to_string(),
            trouble: self.breaker.trouble(),
            times_opened: self.breaker.times_opened(),
            batches: get(&meters.batches),
            failures: get(&meters.failures),
            refusals: get(&meters.refusals),
            redirects: get(&meters.redirects),
            connections: get(&meters.connections),
            queued: sum(|load| &load.queued),
            in_flight: sum(|load| &load.in_flight),
            refused_fast: sum(|load| &load.refused_fast),
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
    pub trouble: Option<Trouble>,
    pub times_opened: u64,
    pub batches: u64,
    pub failures: u64,
    pub refusals: u64,
    pub redirects: u64,
    /// Connections that were made, those of the probe left out.
    pub connections: u64,
    pub queued: u64,
    pub in_flight: u64,
    pub refused_fast: u64,
    /// How far its clock is ahead of ours.
    pub skew_millis: i64,
}
