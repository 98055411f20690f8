//! The stores of a history, and their counters, read past tollgate.

use std::collections::{BTreeMap, HashMap};

use redis::{Connection, Pipeline, cmd};

use crate::it::support::{cluster::Cluster, redis::Redis};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Memory,
    Redis,
    /// With a separate Redis for limits per second.
    TwoRedis,
    Cluster,
}

impl Place {
    pub const ALL: [Self; 4] = [Self::Memory, Self::Redis, Self::TwoRedis, Self::Cluster];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::TwoRedis => "two-redis",
            Self::Cluster => "cluster",
        }
    }

    /// Whether one request may be judged on several stores, so that a charge may be visible that is taken back.
    pub fn is_several(self) -> bool {
        matches!(self, Self::TwoRedis | Self::Cluster)
    }
}

pub struct Stores {
    redis: Vec<Redis>,
    cluster: Option<Cluster>,
    connections: HashMap<u16, Connection>,
}

impl Stores {
    pub fn start(place: Place) -> Self {
        let count = match place {
            Place::Redis => 1,
            Place::TwoRedis => 2,
            Place::Memory | Place::Cluster => 0,
        };
        let stores = Self {
            redis: (0..count).map(|_| Redis::start()).collect(),
            cluster: (place == Place::Cluster).then(|| Cluster::start(0)),
            connections: HashMap::new(),
        };
        // A node may be silent for a minute before the others give it up.
        for node in stores.cluster.iter().flat_map(|cluster| &cluster.nodes) {
            node.cli(&["CONFIG", "SET", "cluster-node-timeout", "60000"]);
        }
        stores
    }

    /// The arguments by which tollgate finds them.
    pub fn args(&self) -> Vec<String> {
        let flag = |name: &str| name.to_owned();
        match (&self.cluster, &self.redis[..]) {
            (Some(cluster), _) => vec![flag("--redis-url"), cluster.url()],
            (None, []) => Vec::new(),
            (None, [redis, others @ ..]) => {
                let mut args = vec![flag("--redis-url"), redis.url()];
                for other in others {
                    args.extend(["--redis-per-second", "--redis-per-second-url"].map(flag));
                    args.push(other.url());
                }
                args
            }
        }
    }

    pub fn servers(&self) -> &[Redis] {
        match &self.cluster {
            Some(cluster) => &cluster.nodes,
            None => &self.redis,
        }
    }

    pub fn look(&mut self) -> BTreeMap<String, u64> {
        let ports: Vec<_> = self.servers().iter().map(Redis::port).collect();
        let mut found = BTreeMap::new();
        for port in ports {
            let connection = self.connections.entry(port).or_insert_with(|| {
                let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
                client.get_connection().unwrap()
            });
            // All that clients had sent before is carried out until it is answered.
            let _: String = cmd("PING").query(connection).unwrap();
            let mut named = cmd("KEYS");
            let keys: Vec<String> = named.arg("{3:llm6:tenant*").query(connection).unwrap();
            if keys.is_empty() {
                continue;
            }
            let mut read = Pipeline::new();
            for key in &keys {
                read.get(key);
            }
            let values: Vec<Option<u64>> = read.query(connection).unwrap();
            let held = keys.into_iter().zip(values);
            found
                .extend(held.filter_map(|(key, hits)| Some((key, hits.filter(|hits| *hits > 0)?))));
        }
        found
    }
}
