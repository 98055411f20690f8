//! Counters in Redis: requests queue, and a connection that is free sends all queued requests as one
//! pipeline.
//!
//! Every worker has a store of its own, with a queue for each node, so the path of a request shares
//! nothing between cores. Batches form by themselves: while one is in flight the next gathers, and an
//! idle worker sends at once. Workers share only the topology and the health of the nodes.
//!
//! ```text
//! RedisStore ──parts──▶ Lane ──Batcher──▶ Connection     each worker, each node
//!      ▲                  ▲        │suspects
//!     Map ◀──Guide──▶ Breaker ◀──Probe──Detector         once for the process
//! ```

use std::{
    convert::Infallible,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use super::{Deadline, Store, StoreError, split};
use crate::{
    counter::{Batch, CountList},
    silence::Silence,
    window::Timestamp,
};

mod address;
mod alarm;
mod batcher;
mod breaker;
mod clock;
mod cluster;
mod connection;
mod detector;
mod guide;
mod lane;
mod link;
mod map;
mod node;
mod packed;
mod pipeline;
mod probe;
mod redirect;
mod running;
mod seats;
mod sentinel;
mod slot;
mod ticks;
mod tls;
mod trouble;

pub use address::{Address, BadUrl, Kind, Secret, Tls};
pub use guide::Guide;
pub use node::NodeReport;
pub use running::{Lateness, Pauses};
pub use trouble::Trouble;

use address::{Place, Whereabouts};
use batcher::{Batcher, Role};
use cluster::{Parts, Together};
use connection::Connector;
use lane::{Answer, Lane, Places};
use map::Map;
use node::Node;
use probe::Patience;
use ticks::Ticks;

/// How the store uses Redis.
#[derive(Clone, Debug)]
pub struct Options {
    /// The prefix of every key.
    pub key_prefix: String,
    /// The longest that a decision waits. A connection whose batch takes longer is given up.
    pub deadline: Duration,
    /// How long a server may be silent before requests no longer wait for it.
    pub lose_after: Duration,
    /// Connections of each worker to each node. More than one makes batches smaller.
    pub connections: u32,
    /// Keys end up to this much later than their window, spread evenly; 0 for none.
    pub jitter_secs: u64,
    /// Requests of one worker that may wait at a time, for all nodes together; the next one is refused
    /// at once.
    pub max_waiting: usize,
    /// The clock for limits without windows of their own.
    pub clock: Clock,
}

/// A source of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The clock of the Redis that holds the counter, so that replicas need not agree.
    #[default]
    Redis,
    /// The clock of this process, passed with each request.
    Local,
}

/// The servers behind one address, shared by all workers.
#[derive(Clone, Debug)]
pub struct Servers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    kind: Kind,
    seeds: Vec<Place>,
    /// The sentinels' name for the master.
    master: String,
    connector: Arc<Connector>,
    sentinel_connector: Arc<Connector>,
    meters: Arc<Meters>,
    now: fn() -> Timestamp,
    map: watch::Sender<Arc<Map>>,
    /// Whether every node is well and every key has one.
    is_well: watch::Sender<bool>,
    /// Why the topology is not up to date; `None` if it is.
    lost: Mutex<Option<String>>,
    /// How far the clocks of the nodes are ahead of ours, in milliseconds.
    skew_millis: Arc<AtomicI64>,
    /// Watches all requests that wait for a node.
    ticks: Arc<Ticks>,
    /// Notified when a node changes.
    news: Arc<Notify>,
    /// Notified when a reply contradicts the topology.
    wanted: Notify,
}

impl Servers {
    /// `now` reads our clock, which is compared with that of Redis.
    ///
    /// # Errors
    ///
    /// If `address` cannot be parsed, or a file that it names cannot be used. It does not connect.
    pub fn new(
        address: &Address,
        meters: Arc<Meters>,
        now: fn() -> Timestamp,
    ) -> Result<Self, BadUrl> {
        let Address {
            url,
            kind,
            auth,
            sentinel_auth,
            timeout,
            is_tls,
            tls,
        } = address;
        let Whereabouts {
            kind,
            seeds,
            master,
            settings,
            is_tls,
        } = Whereabouts::parse(&url.read()?, *kind, *is_tls)?;
        let connector = |settings, auth: &Option<Secret>| {
            let (auth, tls) = (auth.clone(), tls.clone());
            Connector::new(settings, auth, is_tls, tls, *timeout).map(Arc::new)
        };
        let nameless = address::no_settings();
        let news = Arc::<Notify>::default();
        let map = match (kind, seeds.first()) {
            (Kind::Single, Some(place)) => {
                Map::single(Arc::new(Node::new(place.clone(), news.clone())))
            }
            _ => Map::default(),
        };
        meters.set_nodes(&map);
        let shared = Shared {
            connector: connector(settings, auth)?,
            sentinel_connector: connector(nameless, sentinel_auth)?,
            kind,
            seeds,
            master,
            meters,
            now,
            map: watch::Sender::new(Arc::new(map)),
            is_well: watch::Sender::new(false),
            lost: Mutex::default(),
            skew_millis: Arc::default(),
            ticks: Arc::default(),
            news,
            wanted: Notify::new(),
        };
        Ok(Self(Arc::new(shared)))
    }

    /// The task that keeps the topology. It has to run once for all workers, which use these `options`.
    pub fn guide(&self, options: &Options) -> Guide {
        let patience = Patience {
            deadline: options.deadline,
            lose_after: options.lose_after,
        };
        Guide::new(self.clone(), patience)
    }

    /// Whether every node is well; `false` until each has answered.
    pub fn health(&self) -> watch::Receiver<bool> {
        self.0.is_well.subscribe()
    }

    /// How far the clock of Redis is ahead of ours, in milliseconds: the median if there are several
    /// nodes.
    pub fn skew_millis(&self) -> Arc<AtomicI64> {
        self.0.skew_millis.clone()
    }

    /// The state for operators: a line for each node, and one if the topology is not known.
    pub fn report(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        if let Some(lost) = &*lock(&self.0.lost) {
            let who = match self.0.kind {
                Kind::Single => "servers",
                Kind::Sentinel => "sentinels",
                Kind::Cluster => "slots",
            };
            lines.push((who.to_owned(), lost.clone()));
        }
        for node in &self.map().nodes {
            let trouble = node.breaker.trouble();
            let text = match trouble {
                Some(trouble) => trouble.to_string(),
                None if node.is_suspected() => "suspected: takes longer than usual".to_owned(),
                None => "ok".to_owned(),
            };
            lines.push((node.to_string(), text));
        }
        lines
    }

    fn map(&self) -> Arc<Map> {
        self.0.map.borrow().clone()
    }

    /// The node at `place`: the one of `map` if there is one, or else a new one.
    fn node(&self, map: &Map, place: &Place) -> Arc<Node> {
        let known = map.nodes.iter().find(|node| node.place == *place);
        known.map_or_else(
            || Arc::new(Node::new(place.clone(), self.0.news.clone())),
            Arc::clone,
        )
    }

    fn change_map(&self, map: Map) {
        self.0.meters.set_nodes(&map);
        self.0.map.send_replace(Arc::new(map));
    }

    fn record_look(&self, found: Result<(), String>) {
        let mut lost = lock(&self.0.lost);
        match (&*lost, &found) {
            (None, Err(reason)) => tracing::warn!(reason, "cannot find the servers of Redis"),
            (Some(_), Ok(())) => tracing::info!("found the servers of Redis again"),
            _ => {}
        }
        *lost = found.err();
    }

    /// Asks for a new look at the topology, because a reply contradicts it.
    fn refresh(&self) {
        self.0.wanted.notify_one();
    }

    /// Publishes health and clock skew. Returns whether no node is lost and every key has an owner.
    fn tell(&self) -> bool {
        let map = self.map();
        let is_well = map.is_complete() && map.nodes.iter().all(|node| !node.breaker.is_open());
        let nodes = map.nodes.iter();
        let skews = nodes.map(|node| node.skew_millis.load(Relaxed));
        if let Some(skew) = clock::median(skews) {
            self.0.skew_millis.store(skew, Relaxed);
        }
        // A breaker is also closed before the first answer.
        let is_good = is_well && map.nodes.iter().all(|node| node.was_well());
        self.0.is_well.send_if_modified(|was_good| {
            let changes = *was_good != is_good;
            *was_good = is_good;
            changes
        });
        is_well
    }
}

/// A worker's store in Redis.
#[derive(Clone, Debug)]
pub struct RedisStore {
    view: Arc<Mutex<Arc<View>>>,
    key_prefix: Arc<[u8]>,
}

/// A slot map, and the queues of its nodes in their order.
#[derive(Debug)]
struct View {
    map: Arc<Map>,
    lanes: Vec<Arc<Lane>>,
}

/// The result of queueing a request.
enum Pushed {
    Whole(Answer),
    /// The request has to be split, by this view.
    Not(Arc<View>),
}

impl RedisStore {
    /// A store, and the task that has to run on the same worker to answer its requests.
    pub fn new(servers: &Servers, options: &Options) -> (Self, Batchers) {
        let mut batchers = Batchers {
            servers: servers.clone(),
            options: Arc::new(options.clone()),
            places: Arc::new(Places::new(options.max_waiting)),
            view: Arc::new(Mutex::new(Arc::new(View {
                map: Arc::default(),
                lanes: Vec::new(),
            }))),
            new_lanes: Vec::new(),
        };
        batchers.follow(servers.map());
        let store = Self {
            view: batchers.view.clone(),
            key_prefix: options.key_prefix.as_bytes().into(),
        };
        (store, batchers)
    }

    /// Queues a request that needs only one node, for the task of `waker`.
    fn push(
        &self,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
        waker: &Waker,
    ) -> Result<Pushed, StoreError> {
        let view = lock(&self.view);
        if view.map.is_cluster() {
            return Ok(Pushed::Not(view.clone()));
        }
        let lane = view.lanes.first().ok_or(StoreError::Unreachable)?;
        lane.push(batch, now, deadline, Some(waker))
            .map(Pushed::Whole)
    }

    async fn add_to_cluster(
        view: Arc<View>,
        key_prefix: &[u8],
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<CountList, StoreError> {
        let parts = cluster::parts(&view.map, key_prefix, batch, Together::Slots)?;
        let nodes = |parts: &Parts| Nodes {
            view: view.clone(),
            nodes: parts.nodes.clone(),
            now,
        };
        let added = match parts.split.only() {
            Some(only) => {
                let mut counts = CountList::new();
                let answer = view.lanes[parts.nodes[only]].push(batch, now, deadline, None)?;
                answer.fetch(&mut counts).await.map(|()| counts)
            }
            None => parts.split.add(batch, &nodes(&parts), deadline).await,
        };
        match added {
            Err(StoreError::Moving) => {
                let parts = cluster::parts(&view.map, key_prefix, batch, Together::Keys)?;
                let nodes = nodes(&parts);
                // Boxed, because slots hardly ever move.
                Box::pin(parts.split.add(batch, &nodes, deadline)).await
            }
            added => added,
        }
    }
}

/// The nodes of a cluster that one request needs.
struct Nodes {
    view: Arc<View>,
    /// The index of each part's node in the map.
    nodes: Vec<usize>,
    now: Timestamp,
}

impl Nodes {
    /// Queues all parts, or none.
    fn push(
        &self,
        parts: &[Batch],
        deadline: &Deadline,
    ) -> Result<Vec<Option<Answer>>, StoreError> {
        let lanes = || self.nodes.iter().map(|&node| &self.view.lanes[node]);
        for (_, lane) in parts
            .iter()
            .zip(lanes())
            .filter(|(part, _)| !part.is_empty())
        {
            lane.admit()?;
        }
        let push = |(part, lane): (&Batch, &Arc<Lane>)| match part.is_empty() {
            true => Ok(None),
            // A part whose answer is dropped leaves the queue and is not sent.
            false => lane.push(part, self.now, deadline, None).map(Some),
        };
        parts.iter().zip(lanes()).map(push).collect()
    }
}

impl split::Places for Nodes {
    async fn add(
        &self,
        parts: &[Batch],
        deadline: &Deadline,
    ) -> Vec<Result<CountList, StoreError>> {
        let answers = match self.push(parts, deadline) {
            Ok(answers) => answers,
            Err(error) => return parts.iter().map(|_| Err(error)).collect(),
        };
        // All parts are in flight, so the order of waiting does not matter.
        let mut told = Vec::with_capacity(answers.len());
        for answer in answers {
            let mut counts = CountList::new();
            let fetched = match answer {
                Some(answer) => answer.fetch(&mut counts).await,
                None => Ok(()),
            };
            told.push(fetched.map(|()| counts));
        }
        told
    }
}

impl Store for RedisStore {
    async fn add_into(
        &self,
        counts: &mut CountList,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let pushed =
            poll_fn(|context| Poll::Ready(self.push(batch, now, deadline, context.waker())));
        match pushed.await? {
            Pushed::Whole(answer) => answer.fetch(counts).await,
            Pushed::Not(view) => {
                // Boxed, to keep the future of all other requests small.
                let added = Self::add_to_cluster(view, &self.key_prefix, batch, now, deadline);
                *counts = Box::pin(added).await?;
                Ok(())
            }
        }
    }

    fn is_well(&self) -> bool {
        let map = lock(&self.view).map.clone();
        map.is_complete() && map.nodes.iter().all(|node| !node.breaker.is_open())
    }

    fn is_one_place(&self) -> bool {
        !lock(&self.view).map.is_cluster()
    }
}

/// The batchers of one worker: one for each connection to each node, and a stand-in.
#[derive(Debug)]
pub struct Batchers {
    servers: Servers,
    options: Arc<Options>,
    places: Arc<Places>,
    view: Arc<Mutex<Arc<View>>>,
    /// Queues that no batcher serves yet.
    new_lanes: Vec<Arc<Lane>>,
}

impl Batchers {
    /// Serves the queues of all nodes of the map, also when it changes.
    pub async fn run(mut self) -> Infallible {
        let mut maps = self.servers.0.map.subscribe();
        let mut running = JoinSet::new();
        loop {
            let map = maps.borrow_and_update().clone();
            self.follow(map);
            for lane in std::mem::take(&mut self.new_lanes) {
                let timed = lane.clone();
                running.spawn(async move { timed.watch_time().await });
                let trouble = lane.node.breaker.watch();
                running.spawn(follow_breaker(Arc::downgrade(&lane), trouble));
                let connections = self.options.connections;
                for (role, connections) in [(Role::Regular, connections), (Role::StandIn, 1)] {
                    let pool = Batcher::pool(&self.servers, &lane.node, connections);
                    for _ in 0..connections {
                        let (servers, options) = (self.servers.clone(), self.options.clone());
                        let batcher = Batcher::new(role, lane.clone(), servers, options);
                        running.spawn(batcher.run(pool.clone()));
                    }
                }
            }
            tokio::select! {
                // The servers keep the sender.
                _ = maps.changed() => {}
                Some(ended) = running.join_next() => if let Err(error) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                },
            }
        }
    }

    /// Opens queues for nodes that are new on `map`, and ends those of nodes that it lacks.
    fn follow(&mut self, map: Arc<Map>) {
        let mut view = lock(&self.view);
        if Arc::ptr_eq(&view.map, &map) {
            return;
        }
        let lanes: Vec<_> = map
            .nodes
            .iter()
            .map(|node| {
                let known = view.lanes.iter().find(|lane| Arc::ptr_eq(&lane.node, node));
                known.cloned().unwrap_or_else(|| {
                    let lane = Arc::new(Lane::new(
                        node.clone(),
                        self.places.clone(),
                        self.servers.0.meters.clone(),
                        self.servers.0.ticks.clone(),
                        self.options.deadline,
                        self.options.connections,
                    ));
                    self.new_lanes.push(lane.clone());
                    lane
                })
            })
            .collect();
        for lane in &view.lanes {
            if !lanes.iter().any(|stays| Arc::ptr_eq(stays, lane)) {
                lane.end();
            }
        }
        *view = Arc::new(View { map, lanes });
    }
}

/// Notifies the batchers when the circuit breaker opens or closes. Ends with the node or its queue.
async fn follow_breaker(lane: Weak<Lane>, mut trouble: watch::Receiver<Option<Trouble>>) {
    while trouble.changed().await.is_ok() {
        let Some(lane) = lane.upgrade() else { return };
        lane.tell();
    }
}

/// Stats of the batchers of all workers.
#[derive(Debug, Default)]
pub struct Meters {
    pub pipelines: AtomicU64,
    pub commands: AtomicU64,
    pub failures: AtomicU64,
    /// Counters that were dropped because their time was so far ahead that a clock must be wrong.
    pub forgotten: AtomicU64,
    said_forgotten: Silence,
    pub connections_opened: AtomicU64,
    pub connections_closed: AtomicU64,
    /// How late timers of this process fired while a request waited for Redis.
    pub lateness: Lateness,
    /// The nodes of the map.
    nodes: Mutex<Vec<Arc<Node>>>,
}

impl Meters {
    /// The state of each node of the map.
    pub fn nodes(&self) -> Vec<NodeReport> {
        lock(&self.nodes).iter().map(|node| node.report()).collect()
    }

    fn set_nodes(&self, map: &Map) {
        lock(&self.nodes).clone_from(&map.nodes);
    }

    fn record_pipeline(&self, commands: usize) {
        self.pipelines.fetch_add(1, Relaxed);
        self.commands.fetch_add(commands as u64, Relaxed);
    }

    /// Counts counters that were too far ahead, and logs that once a minute.
    fn record_forgotten(&self, counters: u64) {
        self.forgotten.fetch_add(counters, Relaxed);
        if self.said_forgotten.is_over() {
            tracing::warn!(
                "counters are further ahead than clocks may differ, and start anew: the clock of a replica or of Redis is wrong"
            );
        }
    }

    /// Counts a batch that failed, or a connection that did not come up.
    fn record_failure(&self) {
        self.failures.fetch_add(1, Relaxed);
    }
}

/// A panic elsewhere cannot leave the values behind these locks half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A panic prints the values it concerns.
    #[test]
    fn nothing_that_holds_a_password_prints_it() {
        let address = Address {
            url: Secret::Text("redis://u:sesame@h:1".to_owned()),
            kind: None,
            auth: Some(Secret::Text("sesame".to_owned())),
            sentinel_auth: Some(Secret::Text("sesame".to_owned())),
            timeout: Duration::from_secs(1),
            is_tls: false,
            tls: Tls::default(),
        };
        let servers = Servers::new(&address, Arc::default(), || Timestamp::from_secs(0)).unwrap();
        let options = Options {
            key_prefix: String::new(),
            deadline: Duration::from_secs(1),
            lose_after: Duration::from_secs(1),
            connections: 1,
            jitter_secs: 0,
            max_waiting: 1,
            clock: Clock::Redis,
        };
        let guide = servers.guide(&options);
        let store = RedisStore::new(&servers, &options);
        let printed = format!("{address:?} {servers:?} {guide:?} {store:?}");
        assert!(printed.contains("Connector"), "{printed}");
        assert!(!printed.contains("sesame"), "{printed}");
    }
}
