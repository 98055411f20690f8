//! Keeps the topology of the servers up to date, for all workers: asks the sentinels which server is the master, or the
//! nodes of a cluster for the owners of its slots, and probes each node.
//!
//! The clients of the `redis` crate are not used. The one for clusters sends commands again after failures, and a
//! command that may have counted must not be sent twice. The one for sentinels asks one after the other and believes
//! the first that answers. Here all are asked at once and vote: a silent one holds up no failover, and one that is cut
//! off does not name the old master.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use bb8_redis::redis::{self, Value};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    address::{TopologyKind, reported},
    servers::Servers,
    slot_map::SlotMap,
};
use crate::{
    foundation::random::between,
    net::endpoint::Endpoint,
    store::redis::{
        batch::packed::PackedCommands,
        connection::{Connection, LIST_BYTES},
        failure::{NodeFailure, role},
        node::Node,
        options::Options,
        pool::Connector,
        probe::{MARGIN, PATIENCE, Probe},
        wait::within,
    },
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
    servers: Arc<Servers>,
    options: Options,
    /// Connections to the sentinels.
    sentinels: HashMap<Endpoint, Connection>,
    /// The masters and replicas of a cluster, by its last answer.
    known: HashSet<Endpoint>,
    probes: JoinSet<()>,
}

impl TopologyWatcher {
    /// The task for `servers`, which has to run once for all workers. They speak to the servers as
    /// `options` say.
    pub fn new(servers: Arc<Servers>, options: &Options) -> Self {
        Self {
            servers,
            options: options.clone(),
            sentinels: HashMap::new(),
            known: HashSet::new(),
            probes: JoinSet::new(),
        }
    }

    /// Watches the servers until it is dropped.
    pub async fn run(mut self) -> Infallible {
        for node in &self.servers.map().nodes {
            self.probe(node);
        }
        loop {
            let started = Instant::now();
            let found = match self.servers.address.kind {
                TopologyKind::Single => Ok(()),
                TopologyKind::Sentinel => self.look_at_sentinels().await,
                TopologyKind::Cluster => self.look_at_cluster().await,
            };
            self.servers.record_discovery(found);
            self.wait(started).await;
        }
    }

    /// Waits for the next look, and publishes changes of nodes meanwhile.
    async fn wait(&mut self, started: Instant) {
        let is_healthy = self.servers.publish_health();
        let mut next = started
            + match (is_healthy, self.servers.address.kind) {
                (false, _) => FAILING_INTERVAL,
                // Processes that started at once do not ask at once for ever.
                (true, TopologyKind::Cluster) => between(CLUSTER_INTERVAL / 2, CLUSTER_INTERVAL),
                (true, _) => HEALTHY_INTERVAL,
            };
        loop {
            tokio::select! {
                () = sleep_until(next) => return,
                () = self.servers.refresh_requested.notified() => next = next.min(started + MIN_INTERVAL),
                () = self.servers.node_events.notified() => if !self.servers.publish_health() {
                    next = next.min(started + FAILING_INTERVAL);
                },
                Some(ended) = self.probes.join_next() => if let Err(error) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                },
            }
        }
    }

    /// Asks the sentinels for the master, and switches to it once that server itself confirms it: sentinels may be the
    /// last to notice a failover.
    async fn look_at_sentinels(&mut self) -> Result<(), String> {
        let master = self.named_master().await?;
        let current = self.servers.map();
        if current.nodes.iter().any(|node| node.endpoint == master) {
            return Ok(());
        }
        let connector = &self.servers.connector;
        let reply = ask(connector, &master, None, connector.timeout, &[b"ROLE"]).await;
        let (_, reply) = reply.map_err(|failure| format!("{master} {failure}"))?;
        if role(&reply) != Some("master") {
            return Err(format!("{master} {}", NodeFailure::ReadOnly));
        }
        tracing::info!(node = %master, "the sentinels named a master");
        let node = Node::new(master, self.servers.node_events.clone());
        self.change_map(SlotMap::single(Arc::new(node)));
        Ok(())
    }

    /// The master by most votes of the sentinels; among equals, the one named by the sentinel that comes first.
    ///
    /// # Errors
    ///
    /// The failures of all sentinels, if none names a master.
    async fn named_master(&mut self) -> Result<Endpoint, String> {
        let mut asking = JoinSet::new();
        for (order, sentinel) in self.servers.address.seeds.iter().cloned().enumerate() {
            let connection = self.sentinels.remove(&sentinel);
            let servers = self.servers.clone();
            asking.spawn(async move {
                let name = servers.address.master.as_bytes();
                let words: [&[u8]; 3] = [b"SENTINEL", b"get-master-addr-by-name", name];
                let connector = &servers.sentinel_connector;
                let answer = ask(connector, &sentinel, connection, PATIENCE, &words).await;
                (order, sentinel, answer)
            });
        }
        let mut answers = asking.join_all().await;
        answers.sort_by_key(|(order, ..)| *order);
        let (mut votes, mut failures) = (Vec::new(), Vec::new());
        for (_, sentinel, answer) in answers {
            match answer {
                Ok((connection, reply)) => {
                    match redis::from_redis_value::<(String, u16)>(reply) {
                        Ok((host, port)) => votes.push(reported(&host, port, &sentinel)),
                        Err(_) => failures
                            .push(format!("sentinel {sentinel} knows no master of this name")),
                    }
                    self.sentinels.insert(sentinel, connection);
                }
                Err(failure) => failures.push(format!("sentinel {sentinel} {failure}")),
            }
        }
        // The last of equals would win, but the first is wanted.
        let count = |master: &&Endpoint| votes.iter().filter(|vote| vote == master).count();
        let most = votes.iter().rev().max_by_key(count);
        most.cloned().ok_or_else(|| failures.join("; "))
    }

    /// Asks one node of the cluster after the other for the owners of the slots, until one knows them.
    async fn look_at_cluster(&mut self) -> Result<(), String> {
        let servers = self.servers.clone();
        let current = servers.map();
        let node = |endpoint: &Endpoint| {
            let known = current.nodes.iter().find(|node| node.endpoint == *endpoint);
            let new = || Arc::new(Node::new(endpoint.clone(), servers.node_events.clone()));
            known.map_or_else(new, Arc::clone)
        };
        // The order of a set is random, so not all looks and processes begin with the same node.
        let seeds = &servers.address.seeds;
        let asked: HashSet<_> = self.known.iter().chain(seeds).cloned().collect();
        let mut failures = Vec::new();
        for endpoint in asked {
            let words: [&[u8]; 2] = [b"CLUSTER", b"SLOTS"];
            let answer = ask(&servers.connector, &endpoint, None, PATIENCE, &words).await;
            match answer.and_then(|(_, reply)| SlotMap::read(&reply, &endpoint, node)) {
                Ok((map, _)) if map.nodes.is_empty() => {
                    failures.push(format!("{endpoint} knows of no slots"));
                }
                Ok((map, known)) => {
                    self.known = known;
                    if !map.equals(&current) {
                        tracing::info!(
                            masters = map.nodes.len(),
                            "the slots of the cluster changed"
                        );
                        self.change_map(map);
                    }
                    return Ok(());
                }
                Err(failure) => failures.push(format!("{endpoint} {failure}")),
            }
        }
        failures.sort();
        Err(failures.join("; "))
    }

    /// Takes a map into use, and probes the nodes that are new on it.
    fn change_map(&mut self, map: SlotMap) {
        let map = Arc::new(map);
        self.servers.stats.set_nodes(&map);
        let before = self.servers.map.send_replace(map.clone());
        for node in map.nodes.iter().filter(|node| !before.has(node)) {
            self.probe(node);
        }
    }

    /// Probes `node` for as long as it is on the map.
    fn probe(&mut self, node: &Arc<Node>) {
        let probe = Probe::new(node.clone(), &self.servers, &self.options);
        let (node, mut maps) = (node.clone(), self.servers.map.subscribe());
        self.probes.spawn(async move {
            tokio::select! {
                () = probe.run() => {}
                _ = maps.wait_for(|map| !map.has(&node)) => {}
            }
        });
    }
}

/// The reply of a server to one question, and the connection it came on: `connection`, or else a new one.
async fn ask(
    connector: &Connector,
    endpoint: &Endpoint,
    connection: Option<Connection>,
    time: Duration,
    words: &[&[u8]],
) -> Result<(Connection, Value), NodeFailure> {
    let asking = async {
        let mut connection = match connection {
            Some(connection) => connection,
            None => connector.connect_in(time, endpoint).await?,
        };
        connection.reply_bytes = LIST_BYTES;
        let question = PackedCommands::one(words);
        let replies = connection.ask(&question).await?;
        let reply = replies.into_iter().next().unwrap_or(Value::Nil);
        connection.refuse_sentinel(&reply).await?;
        match NodeFailure::of_greeting(&reply) {
            Some(failure) => Err(failure),
            None => Ok((connection, reply)),
        }
    };
    let asked = within(time + MARGIN, asking).await;
    asked.unwrap_or(Err(NodeFailure::Silent))
}
