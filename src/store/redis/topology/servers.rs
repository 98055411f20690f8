//! The servers behind one address, as all workers know them.

use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::sync::{Notify, watch};

use super::{
    address::{Address, BadUrl, Login, ParsedAddress, TopologyKind},
    slot_map::SlotMap,
};
use crate::{
    core::window::Timestamp,
    foundation::{
        lock::lock,
        log_throttle::{LogThrottle, LossThrottle},
    },
    store::redis::{clock::RedisClock, node::Node, pool::Connector, stats::RedisStats},
};

/// A node without failures, in a report.
const WELL: &str = "ok";

/// The servers behind one address, shared by all workers.
#[derive(Debug)]
pub struct Servers {
    pub(crate) address: ParsedAddress,
    pub(crate) connector: Arc<Connector>,
    pub(crate) sentinel_connector: Connector,
    pub(crate) stats: Arc<RedisStats>,
    /// This machine's clock.
    pub(crate) now: fn() -> Timestamp,
    pub(crate) map: watch::Sender<Arc<SlotMap>>,
    /// Whether every node is well and every key has one.
    is_well: watch::Sender<bool>,
    /// Whether it has answered once: a cluster by its slots and one master, others by a PING.
    has_answered: watch::Sender<bool>,
    waits: LogThrottle,
    /// Why the topology is not up to date; `None` if it is.
    lost: Mutex<Option<String>>,
    losses: LossThrottle,
    /// The clock of Redis: that of the node in the middle if there are several.
    pub(crate) clock: RedisClock,
    /// Notified when a node changes.
    pub(crate) node_events: Arc<Notify>,
    warned_of_cluster: AtomicBool,
    /// Notified when a reply contradicts the topology, which asks for a new look.
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
    ) -> Result<Arc<Self>, BadUrl> {
        let text = address.url.read()?;
        let parsed = ParsedAddress::parse(&text, address.kind, address.is_tls)?;
        let connector = |login, auth: &Option<_>, is_tls| {
            let (auth, tls) = (auth.clone(), address.tls.clone());
            Connector::new(login, auth, is_tls, tls, address.timeout)
        };
        let login = parsed.login.clone();
        let sentinels_tls = address.sentinels_tls.unwrap_or(parsed.is_tls);
        let node_events = Arc::<Notify>::default();
        let map = match &parsed.seeds[..] {
            [only] if parsed.kind == TopologyKind::Single => {
                SlotMap::single(Arc::new(Node::new(only.clone(), node_events.clone())))
            }
            _ => SlotMap::default(),
        };
        stats.set_nodes(&map);
        Ok(Arc::new(Self {
            connector: Arc::new(connector(login, &address.auth, parsed.is_tls)?),
            sentinel_connector: connector(Login::default(), &address.sentinel_auth, sentinels_tls)?,
            address: parsed,
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
        }))
    }

    /// Whether every node is well; `false` until each has answered.
    pub fn health(&self) -> watch::Receiver<bool> {
        self.is_well.subscribe()
    }

    /// Whether it has answered once since the start.
    pub fn has_answered(&self) -> watch::Receiver<bool> {
        self.has_answered.subscribe()
    }

    /// Why counting fails for some keys or all; `None` if every node is well.
    pub(crate) fn failures(&self) -> Option<String> {
        if *self.is_well.borrow() {
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
        if let Some(lost) = &*lock(&self.lost) {
            let who = match self.address.kind {
                TopologyKind::Cluster => "slots",
                _ => "sentinels",
            };
            lines.push((who.to_owned(), lost.clone()));
        }
        for node in &self.map().nodes {
            let how = match node.failure() {
                Some(failure) => failure.to_string(),
                None if node.is_slow.load(Relaxed) => {
                    "slow: decisions give up waiting for it".to_owned()
                }
                None => WELL.to_owned(),
            };
            lines.push((node.endpoint.to_string(), how));
        }
        lines
    }

    pub(crate) fn map(&self) -> Arc<SlotMap> {
        self.map.borrow().clone()
    }

    /// Records whether the topology was found.
    pub(crate) fn record_discovery(&self, found: Result<(), String>) {
        let mut lost = lock(&self.lost);
        match (&*lost, &found) {
            (None, Err(reason)) if self.losses.may_log_loss().is_some() => {
                tracing::warn!(reason, "cannot find the servers of Redis");
            }
            (Some(known), Err(reason)) if known != reason && self.losses.may_log_reason() => {
                tracing::warn!(reason, "still cannot find the servers of Redis");
            }
            (Some(_), Ok(())) if self.losses.may_log_return() => {
                tracing::info!("found the servers of Redis again");
            }
            _ => {}
        }
        *lost = found.err();
    }

    /// Handles a command that a server sent to another one: asks for a new look at the topology, or warns once that the
    /// settings name no cluster.
    pub(crate) fn redirected(&self) {
        if self.address.kind == TopologyKind::Cluster {
            self.refresh_requested.notify_one();
        } else if !self.warned_of_cluster.swap(true, Relaxed) {
            tracing::warn!(
                "this Redis is a cluster, and commands go to the wrong one of its servers first: set --redis-type \
                 cluster (REDIS_TYPE=CLUSTER)"
            );
        }
    }

    /// Publishes health and the time of Redis. Returns whether no node is lost and every key has an owner.
    pub(crate) fn publish_health(&self) -> bool {
        let map = self.map();
        let ahead = map.nodes.iter().map(|node| node.ahead_millis.load(Relaxed));
        self.clock.set(ahead);
        let is_well = map.is_complete && map.nodes.iter().all(|node| !node.is_lost());
        // A node is not lost either before its first answer.
        let is_good = is_well && map.nodes.iter().all(|node| node.was_well.load(Relaxed));
        self.is_well
            .send_if_modified(|was_good| mem::replace(was_good, is_good) != is_good);
        if map.nodes.iter().any(|node| node.was_well.load(Relaxed)) {
            self.has_answered
                .send_if_modified(|answered| !mem::replace(answered, true));
        } else if !*self.has_answered.borrow()
            && let Some(cause) = self.failures().filter(|cause| !cause.is_empty())
            && self.waits.may_log()
        {
            tracing::warn!(
                cause,
                "not ready: this Redis has not answered since the start"
            );
        }
        is_well
    }
}
