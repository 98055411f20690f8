//! Keeps the topology of the servers up to date, for all workers.
//!
//! The cluster client of the `redis` crate is not used: it sends commands again after failures, and a command that may
//! have counted must not be sent twice.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

use super::{
    address::TopologyKind,
    cluster::Cluster,
    sentinel::{Sentinels, is_master_at},
    servers::Servers,
    slot_map::SlotMap,
};
use crate::{
    foundation::random::between,
    net::endpoint::Endpoint,
    store::redis::{failure::NodeFailure, node::Node, options::Options, probe::Probe},
};

/// The time between two looks at the sentinels while all is well.
const HEALTHY_INTERVAL: Duration = Duration::from_millis(500);

/// The time between two looks at a cluster while all is well. Nodes that redirect a command or are lost lead to a look
/// at once, so this only finds slots that no request needs.
const CLUSTER_INTERVAL: Duration = Duration::from_secs(10);

/// The time between two looks while something is wrong.
const FAILING_INTERVAL: Duration = Duration::from_millis(100);

/// The least time between two looks, however many workers ask for one.
const MIN_INTERVAL: Duration = Duration::from_millis(20);

/// The task that keeps the topology and the health of the servers. One for each address.
#[derive(Debug)]
pub struct TopologyWatcher {
    servers: Servers,
    source: TopologySource,
    options: Options,
    tasks: JoinSet<()>,
    /// The nodes that are probed.
    probed: HashMap<Endpoint, AbortHandle>,
}

/// The source of the topology.
#[derive(Debug)]
enum TopologySource {
    /// The settings.
    Settings,
    Sentinels(Sentinels),
    Cluster(Cluster),
}

impl TopologyWatcher {
    /// The task for `servers`, which has to run once for all workers. They speak to the servers as
    /// `options` say.
    pub fn new(servers: Servers, options: &Options) -> Self {
        let seeds = servers.0.seeds.clone();
        let source = match servers.0.kind {
            TopologyKind::Single => TopologySource::Settings,
            TopologyKind::Sentinel => TopologySource::Sentinels(Sentinels::new(
                servers.0.sentinel_connector.clone(),
                seeds,
                servers.0.master.clone(),
            )),
            TopologyKind::Cluster => {
                TopologySource::Cluster(Cluster::new(servers.0.connector.clone(), seeds))
            }
        };
        Self {
            servers,
            source,
            options: options.clone(),
            tasks: JoinSet::new(),
            probed: HashMap::new(),
        }
    }

    /// Watches the servers until it is dropped.
    pub async fn run(mut self) -> Infallible {
        loop {
            let started = Instant::now();
            let found = self.look().await;
            self.servers.record_discovery(found);
            self.follow_map();
            self.wait(started).await;
        }
    }

    /// Waits for the next look, and publishes changes of nodes meanwhile.
    async fn wait(&mut self, started: Instant) {
        let is_healthy = self.servers.publish_health();
        let mut next = started
            + match (is_healthy, self.servers.0.kind) {
                (false, _) => FAILING_INTERVAL,
                // Processes that started at once do not ask at once for ever.
                (true, TopologyKind::Cluster) => between(CLUSTER_INTERVAL / 2, CLUSTER_INTERVAL),
                (true, _) => HEALTHY_INTERVAL,
            };
        loop {
            tokio::select! {
                () = sleep_until(next) => return,
                () = self.servers.0.refresh_requested.notified() => next = next.min(started + MIN_INTERVAL),
                () = self.servers.0.node_events.notified() => if !self.servers.publish_health() {
                    next = next.min(started + FAILING_INTERVAL);
                },
                Some(ended) = self.tasks.join_next() => if let Err(error) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                },
            }
        }
    }

    /// Asks the source, and takes a new map into use.
    async fn look(&mut self) -> Result<(), String> {
        match &mut self.source {
            TopologySource::Settings => Ok(()),
            TopologySource::Sentinels(sentinels) => {
                let master = sentinels.master().await?;
                self.change_master(master).await
            }
            TopologySource::Cluster(cluster) => {
                let ranges = cluster.ranges().await?;
                let current = self.servers.map();
                let map =
                    SlotMap::cluster(&ranges, |endpoint| self.servers.node(&current, endpoint));
                if !map.equals(&current) {
                    tracing::info!(
                        masters = map.nodes.len(),
                        "the slots of the cluster changed"
                    );
                    self.servers.change_map(map);
                }
                Ok(())
            }
        }
    }

    /// Switches to the server that the sentinels named, once that server confirms it.
    async fn change_master(&self, master: Endpoint) -> Result<(), String> {
        let current = self.servers.map();
        if current.nodes.iter().any(|node| node.endpoint == master) {
            return Ok(());
        }
        match is_master_at(&self.servers.0.connector, &master).await {
            Ok(true) => {
                tracing::info!(node = %master, "the sentinels named a master");
                let node = self.servers.node(&current, &master);
                self.servers.change_map(SlotMap::single(node));
                Ok(())
            }
            Ok(false) => Err(format!("{master} {}", NodeFailure::ReadOnly)),
            Err(failure) => Err(format!("{master} {failure}")),
        }
    }

    /// Starts a probe for each node of the map, and stops all others.
    fn follow_map(&mut self) {
        let map = self.servers.map();
        let is_there =
            |endpoint: &Endpoint| map.nodes.iter().any(|node| node.endpoint == *endpoint);
        self.probed.retain(|endpoint, probe| {
            let stays = is_there(endpoint);
            if !stays {
                probe.abort();
            }
            stays
        });
        for node in &map.nodes {
            if !self.probed.contains_key(&node.endpoint) {
                let probe = self.probe(node.clone());
                let handle = self.tasks.spawn(probe.run());
                self.probed.insert(node.endpoint.clone(), handle);
            }
        }
    }

    fn probe(&self, node: Arc<Node>) -> Probe {
        let shared = &self.servers.0;
        let must_be_master = shared.kind != TopologyKind::Single;
        let connector = shared.connector.clone();
        let process = shared.clock.process;
        Probe::new(
            node,
            connector,
            must_be_master,
            &self.options,
            shared.now,
            process,
        )
    }
}
