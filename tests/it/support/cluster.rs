//! A Redis Cluster.

use std::process::Command;

use super::{
    redis::{PROGRAMS, Redis},
    tool, wait_until,
};

/// Masters first, then their replicas if there are any. Killed on drop.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

/// The loss of a master is detected within a second; replicas get data at once.
const OPTIONS: &str = "--cluster-enabled yes --cluster-config-file nodes-of-the-cluster --cluster-node-timeout 1000 \
    --repl-diskless-sync-delay 0 --enable-debug-command local";

fn member(program: &'static str, more: &[String]) -> Redis {
    Redis::with_made(program, |_| {
        let options = OPTIONS.split(' ').map(str::to_owned);
        let is_old = program == "redis-server-6.2";
        // The old version does not know this option.
        let options = options.take(if is_old { 8 } else { 10 });
        options.chain(more.iter().cloned()).collect()
    })
}

impl Cluster {
    /// Three masters, each with `replicas` replicas.
    #[track_caller]
    pub fn start(replicas: usize) -> Self {
        Self::of(PROGRAMS[0], replicas)
    }

    #[track_caller]
    pub fn of(program: &'static str, replicas: usize) -> Self {
        Self::with(program, replicas, &[])
    }

    #[track_caller]
    pub fn with(program: &'static str, replicas: usize, more: &[String]) -> Self {
        let nodes = (0..3 * (1 + replicas)).map(|_| member(program, more));
        let cluster = Self {
            nodes: nodes.collect(),
        };
        let addresses: Vec<_> = cluster.nodes.iter().map(Redis::address).collect();
        let mut create = vec!["--cluster", "create"];
        create.extend(addresses.iter().map(String::as_str));
        let replicas = replicas.to_string();
        create.extend(["--cluster-replicas", &replicas, "--cluster-yes"]);
        cluster.cluster_cli(&create);
        cluster.await_agreement();
        cluster
    }

    #[track_caller]
    pub fn add_node(&mut self) {
        let node = member(PROGRAMS[0], &[]);
        let (new, known) = (node.address(), self.nodes[0].address());
        self.nodes.push(node);
        self.cluster_cli(&["--cluster", "add-node", &new, &known]);
        self.await_agreement();
    }

    #[track_caller]
    fn cluster_cli(&self, args: &[&str]) {
        let mut command = Command::new(tool("redis-cli"));
        if let Some(password) = &self.nodes[0].password {
            command.env("REDISCLI_AUTH", password);
        }
        let output = command.args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Waits until every living node knows every other node and all slots.
    #[track_caller]
    pub fn await_agreement(&self) {
        let count = format!("cluster_known_nodes:{}", self.nodes.len());
        wait_until("the cluster is one", || {
            self.nodes.iter().all(|node| {
                let info = node.cli(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains(&count)
            })
        });
        let replicas = self.nodes.len() - 3;
        wait_until("the replicas are up to date", || {
            let linked = self.nodes.iter().filter(|node| {
                let info = node.cli(&["INFO", "replication"]);
                info.contains("role:slave") && info.contains("master_link_status:up")
            });
            linked.count() == replicas || self.nodes.iter().all(|node| !is_replica(node))
        });
    }

    /// Moves slots `first..=last` from one node to another as a resharding does, one slot after the other, including
    /// their keys.
    pub fn migrate(&self, from: usize, to: usize, first: u16, last: u16) {
        for slot in first..=last {
            let migration = Migration { slot, from, to };
            self.begin_migration(migration);
            self.end_migration(migration);
        }
    }

    pub fn migration_of(&self, key: &str) -> Migration {
        let slot = self.nodes[0].number(&["CLUSTER", "KEYSLOT", key]);
        let from = self.owner(key);
        Migration {
            slot: u16::try_from(slot).unwrap(),
            from,
            to: (from + 1) % 3,
        }
    }

    /// Begins a migration: new keys of the slot are then created at the new owner.
    pub fn begin_migration(&self, Migration { slot, from, to }: Migration) {
        let slot = slot.to_string();
        let (source, target) = (id(&self.nodes[from]), id(&self.nodes[to]));
        self.nodes[to].cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        self.nodes[from].cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    }

    pub fn end_migration(&self, Migration { slot, from, to }: Migration) {
        let slot = slot.to_string();
        let target = id(&self.nodes[to]);
        let port = self.nodes[to].port().to_string();
        loop {
            let keys = self.nodes[from].cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            let keys: Vec<_> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                break;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys);
            self.nodes[from].cli(&migrate);
        }
        // The new owner first, so that the slot always has one.
        for node in [to, from] {
            self.nodes[node].cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        }
    }

    pub fn url(&self) -> String {
        let seeds: Vec<_> = self.nodes.iter().take(3).map(Redis::address).collect();
        format!("redis://{}", seeds.join(","))
    }

    pub fn key_count(&self) -> usize {
        let masters = self.nodes.iter().filter(|node| !is_replica(node));
        let sizes = masters.map(|node| node.number(&["DBSIZE"]));
        usize::try_from(sizes.sum::<i64>()).unwrap()
    }

    /// The value of `key` on any node; 0 if it does not exist.
    pub fn value(&self, key: &str) -> i64 {
        let node = self.nodes[self.owner(key)].cli(&["GET", key]);
        node.trim().parse().unwrap_or(0)
    }

    /// The node that owns the slot of `key`.
    pub fn owner(&self, key: &str) -> usize {
        let owners = self.nodes.iter().position(|node| {
            let reply = node.cli_if_there(&["GET", key]);
            reply.is_some_and(|reply| !reply.contains("MOVED") && !is_replica(node))
        });
        owners.expect("the key has an owner")
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Migration {
    pub slot: u16,
    pub from: usize,
    pub to: usize,
}

pub fn is_replica(node: &Redis) -> bool {
    let info = node.cli_if_there(&["INFO", "replication"]);
    info.is_some_and(|info| info.contains("role:slave"))
}

fn id(node: &Redis) -> String {
    node.cli(&["CLUSTER", "MYID"]).trim().to_owned()
}
