//! The servers behind one address, as all workers know them.

use super::{
    address::{Address, BadUrl, Secret, TopologyKind},
    parsed_address::{Login, ParsedAddress},
    slot_map::SlotMap,
};
use crate::{
    core::window::Timestamp,
    foundation::{
        lock::lock,
        log_throttle::{LogThrottle, LossThrottle},
    },
    net::endpoint::Endpoint,
    store::redis::{clock::RedisClock, node::Node, pool::Connector, stats::RedisStats},
};

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::sync::{Notify, watch};

/// A node without failures, in a report.
const WELL: &str = "ok";

/// The servers behind one address, shared by all workers.
#[derive(Clone, Debug)]
pub struct Servers(pub(crate) Arc<SharedServers>);

#[derive(Debug)]
pub(crate) struct SharedServers {
    pub(crate) kind: TopologyKind,
    pub(crate) seeds: Vec<Endpoint>,
    /// The sentinels' name for the master.
    pub(crate) master: String,
    pub(crate) connector: Arc<Connector>,
    pub(crate) sentinel_connector: Arc<Connector>,
    pub(crate) stats: Arc<RedisStats>,
    /// This machine's clock.
    pub(crate) now: fn() -> Timestamp,
    pub(crate) map: watch::Sender<Arc<SlotMap>>,
    /// Whether every node is well and every key has one.
    pub(crate) is_well: watch::Sender<bool>,
    /// Whether it has answered once: a cluster by its slots and one master, others by a PING.
    has_answered: watch::Sender<bool>,
    waits: LogThrottle,
    /// Why the topology is not up to date; `None` if it is.
    lost: Mutex<Option<String>>,
    losses: LossThrottle,
    pub(crate) clock: RedisClock,
    /// Notified when a node changes.
    pub(crate) node_events: Arc<Notify>,
    warned_of_cluster: AtomicBool,
    /// Notified when a reply contradicts the topology.
    pub(crate) refresh_requested: Notify,
}

impl Servers {
    /// `now` reads our clock, which is compared with that of Redis.
    ///
    /// # Errors
    ///
    /// If `address` cannot be parsed, or a file that it names cannot be used. It does not connect.
    pub fn new(
        address: &Address,
        stats: Arc<RedisStats>,
        now: fn() -> Timestamp,
    ) -> Result<Self, BadUrl> {
        let Address {
            url,
            kind,
            auth,
            sentinel_auth,
            timeout,
            is_tls,
            sentinels_tls,
            tls,
        } = address;
        let ParsedAddress {
            kind,
            seeds,
            master,
            login,
            is_tls,
        } = ParsedAddress::parse(&url.read()?, *kind, *is_tls)?;
        let connector = |login, auth: &Option<Secret>, is_tls| {
            let (auth, tls) = (auth.clone(), tls.clone());
            Connector::new(login, auth, is_tls, tls, *timeout).map(Arc::new)
        };
        let node_events = Arc::<Notify>::default();
        let map = match (kind, seeds.first()) {
            (TopologyKind::Single, Some(endpoint)) => {
                SlotMap::single(Arc::new(Node::new(endpoint.clone(), node_events.clone())))
            }
            _ => SlotMap::default(),
        };
        stats.set_nodes(&map);
        let shared = SharedServers {
            connector: connector(login, auth, is_tls)?,
            sentinel_connector: connector(
                Login::default(),
                sentinel_auth,
                sentinels_tls.unwrap_or(is_tls),
            )?,
            kind,
            seeds,
            master,
            stats,
            now,
            map: watch::Sender::new(Arc::new(map)),
            is_well: watch::Sender::new(false),
            has_answered: watch::Sender::new(false),
            waits: LogThrottle::new(),
            lost: Mutex::default(),
            losses: LossThrottle::new(),
            clock: RedisClock::new(now()),
            node_events,
            warned_of_cluster: AtomicBool::new(false),
            refresh_requested: Notify::new(),
        };
        Ok(Self(Arc::new(shared)))
    }

    /// Whether every node is well; `false` until each has answered.
    pub fn health(&self) -> watch::Receiver<bool> {
        self.0.is_well.subscribe()
    }

    /// Whether it has answered once since the start.
    pub fn has_answered(&self) -> watch::Receiver<bool> {
        self.0.has_answered.subscribe()
    }

    /// The clock of Redis: that of the node in the middle if there are several.
    pub fn clock(&self) -> RedisClock {
        self.0.clock.clone()
    }

    /// Why counting fails for some keys or all; `None` if every node is well.
    pub(crate) fn failures(&self) -> Option<String> {
        if *self.0.is_well.borrow() {
            return None;
        }
        let failed = self.report().into_iter().filter(|(_, how)| how != WELL);
        let failed: Vec<_> = failed.map(|(who, how)| format!("{who}: {how}")).collect();
        Some(failed.join("; "))
    }

    /// Whether the servers have answered, or failed to, for the first time.
    pub(crate) fn is_known(&self) -> bool {
        self.failures().is_none_or(|failures| !failures.is_empty())
    }

    /// The state for operators: a line for each node, and one if the topology is not known.
    pub fn report(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        if let Some(lost) = &*lock(&self.0.lost) {
            let who = match self.0.kind {
                TopologyKind::Single => "servers",
                TopologyKind::Sentinel => "sentinels",
                TopologyKind::Cluster => "slots",
            };
            lines.push((who.to_owned(), lost.clone()));
        }
        for node in &self.map().nodes {
            let failure = node.failure();
            let text = match failure {
                Some(failure) => failure.to_string(),
                None if node.is_slow.load(Relaxed) => {
                    "slow: decisions give up waiting for it".to_owned()
                }
                None => WELL.to_owned(),
            };
            lines.push((node.to_string(), text));
        }
        lines
    }

    pub(crate) fn map(&self) -> Arc<SlotMap> {
        self.0.map.borrow().clone()
    }

    /// The node at `endpoint`: the one of `map` if there is one, or else a new one.
    pub(crate) fn node(&self, map: &SlotMap, endpoint: &Endpoint) -> Arc<Node> {
        let known = map.nodes.iter().find(|node| node.endpoint == *endpoint);
        known.map_or_else(
            || Arc::new(Node::new(endpoint.clone(), self.0.node_events.clone())),
            Arc::clone,
        )
    }

    pub(crate) fn change_map(&self, map: SlotMap) {
        self.0.stats.set_nodes(&map);
        self.0.map.send_replace(Arc::new(map));
    }

    pub(crate) fn record_discovery(&self, found: Result<(), String>) {
        let mut lost = lock(&self.0.lost);
        match (&*lost, &found) {
            (None, Err(reason)) => {
                if self.0.losses.may_log_loss().is_some() {
                    tracing::warn!(reason, "cannot find the servers of Redis");
                }
            }
            (Some(known), Err(reason)) => {
                if known != reason && self.0.losses.may_log_reason() {
                    tracing::warn!(reason, "still cannot find the servers of Redis");
                }
            }
            (Some(_), Ok(())) => {
                if self.0.losses.may_log_return() {
                    tracing::info!("found the servers of Redis again");
                }
            }
            (None, Ok(())) => {}
        }
        *lost = found.err();
    }

    /// Handles a command that a server sent to another one: asks for a new look at the topology, or warns once that the
    /// settings name no cluster.
    pub(crate) fn redirected(&self) {
        if self.0.kind == TopologyKind::Cluster {
            self.refresh();
        } else if !self.0.warned_of_cluster.swap(true, Relaxed) {
            tracing::warn!(
                "this Redis is a cluster, and commands go to the wrong one of its servers first: set --redis-type \
                 cluster (REDIS_TYPE=CLUSTER)"
            );
        }
    }

    /// Asks for a new look at the topology, because a reply contradicts it.
    pub(crate) fn refresh(&self) {
        self.0.refresh_requested.notify_one();
    }

    /// Publishes health and the time of Redis. Returns whether no node is lost and every key has an owner.
    pub(crate) fn publish_health(&self) -> bool {
        let map = self.map();
        let is_well = map.is_complete() && map.nodes.iter().all(|node| !node.is_lost());
        let nodes = map.nodes.iter();
        self.0
            .clock
            .set(nodes.map(|node| node.ahead_millis.load(Relaxed)));
        let mut was_well = map.nodes.iter().map(|node| node.was_well());
        let answers = match self.0.kind {
            TopologyKind::Cluster => was_well.any(|was_well| was_well),
            _ => !map.nodes.is_empty() && was_well.all(|was_well| was_well),
        };
        let had_answered = *self.0.has_answered.borrow();
        if answers && !had_answered {
            self.0.has_answered.send_replace(true);
        } else if !had_answered
            && let Some(cause) = self.failures().filter(|cause| !cause.is_empty())
            && self.0.waits.may_log()
        {
            tracing::warn!(
                cause,
                "not ready: this Redis has not answered since the start"
            );
        }
        // A node is not lost either before its first answer.
        let is_good = is_well && map.nodes.iter().all(|node| node.was_well());
        self.0.is_well.send_if_modified(|was_good| {
            let changes = *was_good != is_good;
            *was_good = is_good;
            changes
        });
        is_well
    }
}
