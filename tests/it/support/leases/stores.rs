//! The Redis servers of a history: their counters, read past tollgate, and their losses.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use redis::{Connection, Pipeline, cmd};

use super::{
    super::{cluster::Cluster, redis::Redis, sentinel::Watched, wait_until},
    model::DAY,
};

/// The kinds of stores that outlive tollgate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStore {
    Redis,
    Sentinel,
    Cluster,
    /// The first limit of each rule is counted in a Redis of its own.
    TwoRedis,
}

impl fmt::Display for LeaseStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "redis",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::TwoRedis => "two-redis",
        })
    }
}

/// A server that is silent for less than a minute is neither replaced nor given up by the others.
const PATIENT_MILLIS: &str = "60000";

#[derive(Debug)]
enum Running {
    Redis(Vec<Redis>),
    Watched(Watched),
    Cluster(Cluster),
}

/// The servers.
pub struct LeaseStores {
    running: Running,
    connections: HashMap<u16, Connection>,
    /// The node of each tenant in a cluster.
    nodes: HashMap<String, usize>,
}

impl fmt::Debug for LeaseStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseStores").finish_non_exhaustive()
    }
}

impl LeaseStores {
    pub fn start(kind: LeaseStore) -> Self {
        let stores = Self {
            running: match kind {
                LeaseStore::Redis => Running::Redis(vec![Redis::start()]),
                LeaseStore::TwoRedis => Running::Redis(vec![Redis::start(), Redis::start()]),
                LeaseStore::Sentinel => Running::Watched(Watched::start()),
                LeaseStore::Cluster => Running::Cluster(Cluster::start(0)),
            },
            connections: HashMap::new(),
            nodes: HashMap::new(),
        };
        stores.set_patience(PATIENT_MILLIS);
        stores
    }

    /// How long a server may be silent for sentinels and for the nodes of a cluster.
    fn set_patience(&self, millis: &str) {
        match &self.running {
            Running::Redis(_) => {}
            Running::Watched(watched) => {
                for sentinel in &watched.sentinels {
                    let name = super::super::sentinel::MASTER;
                    sentinel.cli(&["SENTINEL", "SET", name, "down-after-milliseconds", millis]);
                }
            }
            Running::Cluster(cluster) => {
                for node in &cluster.nodes {
                    node.cli(&["CONFIG", "SET", "cluster-node-timeout", millis]);
                }
            }
        }
    }

    /// The arguments by which tollgate finds them.
    pub fn args(&self) -> Vec<String> {
        let url = match &self.running {
            Running::Redis(all) => all[0].url(),
            Running::Watched(watched) => watched.url(),
            Running::Cluster(cluster) => cluster.url(),
        };
        let mut args = vec!["--redis-url".to_owned(), url];
        if let Running::Redis(all) = &self.running
            && let Some(per_second) = all.get(1)
        {
            args.extend(["--redis-per-second", "--redis-per-second-url"].map(str::to_owned));
            args.push(per_second.url());
        }
        args
    }

    /// The servers that have counters.
    fn servers(&self) -> Vec<&Redis> {
        match &self.running {
            Running::Redis(all) => all.iter().collect(),
            Running::Watched(watched) => vec![&watched.servers[watched.master()]],
            Running::Cluster(cluster) => cluster.nodes.iter().collect(),
        }
    }

    /// How many servers have counters.
    pub fn count(&self) -> usize {
        match &self.running {
            Running::Redis(all) => all.len(),
            Running::Watched(_) => 1,
            Running::Cluster(cluster) => cluster.nodes.len(),
        }
    }

    /// The server that has the counter of this tenant and period.
    pub fn home(&mut self, tenant: &str, secs: u64) -> usize {
        match &self.running {
            Running::Redis(all) if all.len() > 1 => usize::from(secs < 6 * DAY),
            Running::Redis(_) | Running::Watched(_) => 0,
            Running::Cluster(cluster) => {
                *self.nodes.entry(tenant.to_owned()).or_insert_with(|| {
                    // Each of the three nodes has a third of the slots, in order.
                    let living = cluster.nodes.iter().find_map(|node| {
                        let key = super::model::key(tenant, secs, 0);
                        node.cli_if_there(&["CLUSTER", "KEYSLOT", &key])
                    });
                    let slot: f64 = living.unwrap().trim().parse().unwrap();
                    [5460.5, 10922.5].iter().filter(|end| slot > **end).count()
                })
            }
        }
    }

    /// All counters that hold hits.
    pub fn look(&mut self) -> BTreeMap<String, u64> {
        let mut ports = Vec::new();
        for server in self.servers() {
            ports.push(server.port());
        }
        let mut found = BTreeMap::new();
        for port in ports {
            let connection = self.connections.entry(port).or_insert_with(|| {
                let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
                client.get_connection().unwrap()
            });
            // All that clients had sent before is carried out until it is answered.
            let _: String = cmd("PING").query(connection).unwrap();
            let keys: Vec<String> = cmd("KEYS")
                .arg("{3:llm6:tenant*")
                .query(connection)
                .unwrap();
            if keys.is_empty() {
                continue;
            }
            let mut read = Pipeline::new();
            for key in &keys {
                read.get(key);
            }
            let values: Vec<Option<u64>> = read.query(connection).unwrap();
            let held = keys.into_iter().zip(values);
            found.extend(
                held.filter_map(|(key, hits)| Some((key, hits.filter(|hits| *hits != 0)?))),
            );
        }
        found
    }

    pub fn freeze(&self, server: usize) {
        self.servers()[server].freeze();
    }

    pub fn thaw(&self, server: usize) {
        match &self.running {
            Running::Redis(all) => all[server].thaw(),
            Running::Watched(watched) => watched.servers.iter().for_each(Redis::thaw),
            Running::Cluster(cluster) => cluster.nodes[server].thaw(),
        }
    }

    /// Kills a server. It will come back with all of its counters, or none of them.
    pub fn kill(&mut self, server: usize, keeps: bool) {
        self.connections.clear();
        if let Running::Watched(watched) = &mut self.running {
            let master = watched.master();
            let address = watched.servers[master].url();
            let mut connection = redis::Client::open(address)
                .unwrap()
                .get_connection()
                .unwrap();
            // The replica has all that was written before.
            let mut write = Pipeline::new();
            write.set("written", "1").ignore();
            write.cmd("WAIT").arg(1).arg(10_000);
            let [replicas]: [i64; 1] = write.query(&mut connection).unwrap();
            assert_eq!(replicas, 1, "the replica is up to date");
            self.set_patience("500");
            let Running::Watched(watched) = &mut self.running else {
                unreachable!("it still is")
            };
            watched.servers[master].kill();
            return;
        }
        let redis = match &mut self.running {
            Running::Redis(all) => &mut all[server],
            Running::Cluster(cluster) => &mut cluster.nodes[server],
            Running::Watched(_) => unreachable!("it was dealt with"),
        };
        if !keeps {
            redis.cli(&["FLUSHALL"]);
        }
        redis.cli(&["SAVE"]);
        redis.kill();
    }

    /// Waits until the replica of a master that was killed has taken over.
    pub fn await_failover(&self) {
        if let Running::Watched(watched) = &self.running {
            let is_dead = |redis: &Redis| redis.cli_if_there(&["PING"]).is_none();
            let dead = watched.servers.iter().position(is_dead);
            wait_until("the replica has taken over", || {
                Some(watched.master()) != dead
            });
        }
    }

    /// Ends the loss of a server.
    pub fn restart(&mut self, server: usize) {
        match &mut self.running {
            Running::Redis(all) => all[server].restart(),
            Running::Cluster(cluster) => {
                cluster.nodes[server].restart();
                cluster.await_agreement();
                self.set_patience(PATIENT_MILLIS);
            }
            Running::Watched(watched) => {
                let dead = 1 - watched.master();
                watched.servers[dead].restart();
                let old = &watched.servers[dead];
                // Sentinels would do so ten seconds later.
                let port = watched.servers[watched.master()].port().to_string();
                old.cli(&["REPLICAOF", "127.0.0.1", &port]);
                wait_until("the old master is a replica", || {
                    let info = old.cli(&["INFO", "replication"]);
                    info.contains("role:slave") && info.contains("master_link_status:up")
                });
                self.set_patience(PATIENT_MILLIS);
            }
        }
    }
}
