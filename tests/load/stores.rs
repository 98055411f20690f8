//! The stores of a history, and their counters, read past tollgate.

use std::collections::{BTreeMap, HashMap};

use redis::{Connection, Pipeline, cmd};

use super::model::{DAY, key};
use crate::it::support::{cluster::Cluster, redis::Redis};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Memory,
    Redis,
    Cluster,
}

impl Place {
    pub const ALL: [Self; 3] = [Self::Memory, Self::Redis, Self::Cluster];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Cluster => "cluster",
        }
    }
}

pub struct Stores {
    redis: Option<Redis>,
    cluster: Option<Cluster>,
    connections: HashMap<u16, Connection>,
}

impl Stores {
    pub fn start(place: Place) -> Self {
        let stores = Self {
            redis: (place == Place::Redis).then(Redis::start),
            cluster: (place == Place::Cluster).then(|| Cluster::start(0)),
            connections: HashMap::new(),
        };
        stores.set_patience();
        stores
    }

    /// A node of a cluster may be silent for a minute before the others give it up.
    fn set_patience(&self) {
        for node in self.cluster.iter().flat_map(|cluster| &cluster.nodes) {
            node.cli(&["CONFIG", "SET", "cluster-node-timeout", "60000"]);
        }
    }

    /// The arguments by which tollgate finds them.
    pub fn args(&self) -> Vec<String> {
        let cluster = self.cluster.as_ref().map(Cluster::url);
        let url = cluster.or(self.redis.as_ref().map(Redis::url));
        url.map_or(Vec::new(), |url| vec!["--redis-url".to_owned(), url])
    }

    pub fn servers(&self) -> &[Redis] {
        match &self.cluster {
            Some(cluster) => &cluster.nodes,
            None => self.redis.as_slice(),
        }
    }

    /// The server that has the counters of a tenant.
    pub fn home(&self, tenant: &str) -> usize {
        let cluster = self.cluster.as_ref();
        cluster.map_or(0, |cluster| cluster.owner(&key(tenant, DAY, 0)))
    }

    fn server_mut(&mut self, server: usize) -> &mut Redis {
        match &mut self.cluster {
            Some(cluster) => &mut cluster.nodes[server],
            None => self.redis.as_mut().expect("it is a Redis"),
        }
    }

    /// It comes back with all that it holds now.
    pub fn kill(&mut self, server: usize) {
        self.connections.clear();
        let redis = self.server_mut(server);
        redis.cli(&["SAVE"]);
        redis.kill();
    }

    pub fn restart(&mut self, server: usize) {
        self.server_mut(server).restart();
        if let Some(cluster) = &self.cluster {
            cluster.await_agreement();
        }
        self.set_patience();
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
