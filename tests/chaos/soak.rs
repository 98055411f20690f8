//! Random faults for a long time: memory stays flat, no connection is left open, no process panics, and counts are
//! exact at the end.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use crate::it::support::{
    ask::connect,
    chaos::{Plan, VALUES, all_work, move_values, off_by, start},
    cluster::{Cluster, is_replica},
    proxy::{Fault, Proxy},
    redis::Redis,
    sentinel::{MASTER, Watched},
    storm::Storm,
    tollgate::Tollgate,
};

/// Longest duration of one fault, in milliseconds, and the pause after it.
const LONGEST: u64 = 2_000;
const PEACE: Duration = Duration::from_millis(500);

/// Open files that may remain at the end, and how long the others may take to close.
const MORE_FILES: usize = 8;
const CLOSING: Duration = Duration::from_secs(15);

/// Time between two requests of one stream.
const PERIOD: Duration = Duration::from_millis(20);

/// The servers' answers while Redis is down.
const ANSWERS: [&str; 2] = ["error", "local"];

/// Bound on the growth of all servers together. Allocators keep some of the memory they once used.
const MAX_GROWTH: u64 = 48 << 20;

/// The Redis under test.
pub enum Topology {
    /// One server behind a network.
    Single { redis: Redis, proxy: Proxy },
    /// A master and a replica, which sentinels watch over.
    Sentinel(Watched),
    /// Three masters, each with a replica.
    Cluster(Cluster),
}

/// Runs for `time`.
pub async fn soak(mut topology: Topology, time: Duration, plan: &Plan) {
    let servers = ANSWERS.map(|answer| {
        let mut plan = plan.clone();
        plan.args
            .extend(["--on-store-loss", answer].map(str::to_owned));
        start(&plan, &topology.url(), &[])
    });
    let addresses = servers.each_ref().map(|server| server.grpc);
    let mut clients = Vec::new();
    for address in addresses {
        clients.push(connect(address).await);
    }
    let all_count = async || {
        for client in &clients {
            all_work(client).await;
        }
    };
    all_count().await;
    // One round of load, so that the memory for it is already allocated.
    let storm = || Storm::paced(&addresses, &VALUES, PERIOD);
    let warm_up = storm();
    tokio::time::sleep(PEACE).await;
    warm_up.end().await;
    let size = || {
        let bytes = servers.iter().map(Tollgate::resident_bytes);
        let files = servers.iter().map(open_files);
        (bytes.sum::<u64>(), files.sum::<usize>())
    };
    let (bytes, files) = size();
    let mut chance = Chance(RandomState::new().hash_one(0) | 1);
    let until = Instant::now() + time;
    let mut faults = BTreeMap::<_, usize>::new();
    let (mut answers, mut errors, mut degraded) = (0, 0, 0);
    let (mut largest, mut most) = (bytes, files);
    let mut longest = (Duration::ZERO, "nothing");
    while Instant::now() < until {
        let storm = storm();
        tokio::time::sleep(PEACE).await;
        let fault = topology.break_something(&mut chance).await;
        *faults.entry(fault).or_default() += 1;
        tokio::time::sleep(PEACE).await;
        let seen = storm.end().await;
        answers += seen.0.len();
        errors += seen.error_count();
        degraded += seen.degraded().0.len();
        longest = longest.max((seen.longest(), fault));
        let (bytes, files) = size();
        (largest, most) = (largest.max(bytes), most.max(files));
        topology.settle().await;
        all_count().await;
    }
    let mut off = 0;
    for client in &mut clients.clone() {
        off += off_by(client).await.abs();
    }
    // Connections for redirected commands close a few seconds later.
    let (mut bytes_after, mut files_after) = size();
    let patience = Instant::now() + CLOSING;
    while files_after > files + MORE_FILES && Instant::now() < patience {
        tokio::time::sleep(PEACE).await;
        (bytes_after, files_after) = size();
    }
    println!(
        "{} faults in {} s: {answers} answers, {errors} of them errors and {degraded} made \
         without Redis, the longest took {:.1} ms ({})",
        faults.values().sum::<usize>(),
        time.as_secs(),
        longest.0.as_secs_f64() * 1000.0,
        longest.1
    );
    let faults = faults
        .iter()
        .map(|(fault, times)| format!("{times} {fault}"));
    println!("{}", faults.collect::<Vec<_>>().join(", "));
    println!(
        "memory: {} kB before, {} kB at most, {} kB after",
        bytes >> 10,
        largest >> 10,
        bytes_after >> 10
    );
    println!("open files: {files} before, {most} at most, {files_after} after");
    println!("off by {off} at the end");
    for (server, answer) in servers.iter().zip(ANSWERS) {
        let log = server.log().text();
        assert!(!log.contains("panicked"), "{log}");
        println!("{answer}: lines in the log {}", log.lines().count());
    }
    assert_eq!(off, 0, "counts are exact at the end");
    assert!(
        files_after <= files + MORE_FILES,
        "connections are left behind"
    );
    assert!(bytes_after < bytes + MAX_GROWTH, "memory grew");
}

fn open_files(server: &Tollgate) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.process_id()))
        .unwrap()
        .count()
}

impl Topology {
    /// `single`, `sentinel` or `cluster`.
    pub fn start(name: &str) -> Self {
        match name {
            "single" => {
                let redis = Redis::start();
                let proxy = Proxy::to(redis.address());
                Self::Single { redis, proxy }
            }
            "sentinel" => Self::Sentinel(Watched::start()),
            "cluster" => Self::Cluster(Cluster::start(1)),
            other => panic!("`{other}` is none of single, sentinel and cluster"),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Single { proxy, .. } => proxy.url(),
            Self::Sentinel(watched) => watched.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// Carries out one fault from beginning to end, and returns its name.
    async fn break_something(&mut self, chance: &mut Chance) -> &'static str {
        let lasts = Duration::from_millis(50 + chance.below(LONGEST));
        match self {
            Self::Single { redis, proxy } => match chance.below(6) {
                0 => {
                    redis.kill();
                    tokio::time::sleep(lasts).await;
                    redis.restart();
                    "kill -9 and restart"
                }
                1 => {
                    proxy.forget();
                    "connections lost without a word"
                }
                2 | 3 => network(chance, proxy, lasts).await,
                _ => server_fault(chance, redis, lasts).await,
            },
            Self::Sentinel(watched) => sentinel_fault(chance, watched, lasts).await,
            Self::Cluster(cluster) => cluster_fault(chance, cluster, lasts).await,
        }
    }

    /// Waits until sentinels or the cluster also report a healthy state.
    async fn settle(&self) {
        match self {
            Self::Single { .. } => {}
            Self::Sentinel(watched) => {
                eventually_at_last("the replica follows the master", async || {
                    let master = watched.master();
                    let follows = format!("master_port:{}", watched.servers[master].port());
                    let others = watched.servers.iter().enumerate();
                    !is_replica(&watched.servers[master])
                        && others.filter(|(at, _)| *at != master).all(|(_, other)| {
                            let info = other.cli_if_there(&["INFO", "replication"]);
                            info.is_some_and(|info| {
                                info.contains(&follows) && info.contains("master_link_status:up")
                            })
                        })
                })
                .await;
            }
            Self::Cluster(cluster) => {
                eventually_at_last("there are three masters", async || {
                    let masters = cluster.nodes.iter().filter(|node| !is_replica(node));
                    masters.count() == 3
                })
                .await;
                cluster.await_agreement();
            }
        }
    }
}

/// Sentinels take ten seconds and more to assign a role to a server that came back.
async fn eventually_at_last(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(90);
    while !is_so().await {
        assert!(Instant::now() < until, "not so in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Faults of a server that keeps running.
async fn server_fault(chance: &mut Chance, redis: &Redis, lasts: Duration) -> &'static str {
    match chance.below(5) {
        0 => {
            redis.freeze();
            tokio::time::sleep(lasts).await;
            redis.thaw();
            "SIGSTOP and SIGCONT"
        }
        1 => {
            redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
            tokio::time::sleep(lasts).await;
            redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
            "maxmemory"
        }
        2 => {
            redis.cli(&["SCRIPT", "FLUSH"]);
            "SCRIPT FLUSH"
        }
        3 => {
            let millis = lasts.as_millis().to_string();
            redis.cli(&["CLIENT", "PAUSE", &millis, "WRITE"]);
            tokio::time::sleep(lasts).await;
            "CLIENT PAUSE"
        }
        _ => {
            redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            "CLIENT KILL"
        }
    }
}

async fn network(chance: &mut Chance, proxy: &Proxy, lasts: Duration) -> &'static str {
    let (fault, name) = match chance.below(3) {
        0 => {
            let cuts = Fault {
                cuts: true,
                ..Fault::default()
            };
            (cuts, "network cut")
        }
        1 => {
            let swallows = Fault {
                swallows: true,
                ..Fault::default()
            };
            (swallows, "network half-open")
        }
        _ => {
            let late = Fault {
                latency: Duration::from_millis(chance.below(200)),
                ..Fault::default()
            };
            (late, "network late")
        }
    };
    proxy.set(fault);
    tokio::time::sleep(lasts).await;
    proxy.heal();
    name
}

async fn sentinel_fault(
    chance: &mut Chance,
    watched: &mut Watched,
    lasts: Duration,
) -> &'static str {
    let master = watched.master();
    let replica = 1 - master;
    match chance.below(8) {
        0 | 1 => {
            watched.servers[master].kill();
            eventually_at_last("the replica is promoted", async || {
                watched.master() == replica && !is_replica(&watched.servers[replica])
            })
            .await;
            watched.servers[master].restart();
            "master killed and restarted"
        }
        2 => {
            watched.servers[replica].kill();
            tokio::time::sleep(lasts).await;
            watched.servers[replica].restart();
            "replica killed and restarted"
        }
        3 => {
            // Not the first, which is asked for the master.
            watched.sentinels[1].kill();
            tokio::time::sleep(lasts).await;
            watched.sentinels[1].restart();
            "sentinel killed and restarted"
        }
        4 => {
            let mut asked = Instant::now();
            let ask = || watched.sentinels[0].cli(&["SENTINEL", "FAILOVER", MASTER]);
            ask();
            eventually_at_last("there is another master", async || {
                // It refuses while it knows no healthy replica.
                if asked.elapsed() > 4 * PEACE {
                    asked = Instant::now();
                    ask();
                }
                watched.master() == replica
            })
            .await;
            "failover asked for"
        }
        _ => server_fault(chance, &watched.servers[master], lasts).await,
    }
}

async fn cluster_fault(
    chance: &mut Chance,
    cluster: &mut Cluster,
    lasts: Duration,
) -> &'static str {
    let those = |is_wanted: bool| {
        let nodes = cluster.nodes.iter().enumerate();
        let those = nodes.filter(|(_, node)| is_replica(node) == is_wanted);
        those.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let (masters, replicas) = (those(false), those(true));
    let mut one_of = |places: &[usize]| {
        let at = chance.below(places.len() as u64);
        places[usize::try_from(at).unwrap()]
    };
    let (master, replica) = (one_of(&masters), one_of(&replicas));
    match chance.below(8) {
        0 | 1 => {
            cluster.nodes[master].kill();
            eventually_at_last("a replica is promoted", async || {
                let alive = cluster.nodes.iter().enumerate();
                let alive = alive.filter(|(at, _)| *at != master);
                alive.filter(|(_, node)| !is_replica(node)).count() == 3
            })
            .await;
            cluster.nodes[master].restart();
            "master killed and restarted"
        }
        2 => {
            cluster.nodes[replica].kill();
            tokio::time::sleep(lasts).await;
            cluster.nodes[replica].restart();
            "replica killed and restarted"
        }
        3 => {
            cluster.nodes[replica].cli(&["CLUSTER", "FAILOVER"]);
            eventually_at_last("it is a master", async || {
                !is_replica(&cluster.nodes[replica])
            })
            .await;
            "failover asked for"
        }
        4 | 5 => {
            let mut to = |from| {
                let others: Vec<_> = masters.iter().filter(|at| **at != from).collect();
                *others[usize::try_from(chance.below(others.len() as u64)).unwrap()]
            };
            move_values(cluster, &mut to).await;
            "slots moved"
        }
        _ => server_fault(chance, &cluster.nodes[master], lasts).await,
    }
}

/// Unpredictable numbers (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
