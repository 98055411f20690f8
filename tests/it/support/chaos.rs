//! Ways to break Redis, or the network to it, under load from 64 streams, and their results. Each runs against its
//! own real processes.

pub mod refusals;

use std::{
    collections::BTreeMap,
    fmt, fs,
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::Code;

use super::{
    ask::{Client, ask, connect, descriptor, is_degraded, is_ok, request},
    busy::{Pauses, Turn, Witness, loops},
    certificates::Authority,
    cluster::{Cluster, is_replica},
    eventually,
    proxy::{Fault, Proxy},
    redis::Redis,
    sentinel::Watched,
    storm::{Answers, Seen, Storm, TIMEOUT, What},
    tollgate::{self, Log, Tollgate},
    wait_until,
};

/// Settings of a scenario.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The deadline of a decision.
    pub deadline: Duration,
    /// Duration of the fault, if it has one.
    pub lasts: Duration,
    /// Time between two requests of one stream.
    pub period: Duration,
    /// Further arguments for tollgate, such as the answer during a loss.
    pub args: Vec<String>,
}

impl Plan {
    /// With a default for `on_store_loss`.
    #[must_use]
    pub fn answering(mut self, answer: &str) -> Self {
        self.args
            .extend(["--on-store-loss", answer].map(str::to_owned));
        self
    }
}

/// The results of a scenario.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub name: &'static str,
    pub answers: usize,
    pub errors: usize,
    /// The error texts, each with its number.
    pub texts: BTreeMap<&'static str, usize>,
    /// Answers made without Redis, as `on_store_loss` says.
    pub degraded: usize,
    pub longest: Duration,
    /// Time from the fault until the log reported the loss of Redis.
    pub lost: Option<Duration>,
    /// Errors and answers without Redis to requests sent after that, and those of them that waited for their
    /// deadline.
    pub lacks_when_lost: usize,
    pub waits_when_lost: usize,
    /// 99th percentile of the first answers during the fault: those to requests sent before any answer was made
    /// without Redis. `None` if none ever was.
    pub first: Option<Duration>,
    /// 99th percentile of the answers to requests sent after the loss of Redis, or after the first answers if it
    /// never was lost.
    pub others: Duration,
    /// The slowest of the others, with the time from the fault to the request.
    pub slowest: Vec<(Duration, Seen)>,
    /// Admitted hits that are missing in the store, such as those that were counted locally: they may be admitted again.
    pub over: i64,
    /// Hits in the store whose callers got no answer.
    pub under: i64,
    /// Time from the repair to the first decision for every value, and so to exact counting.
    pub recovery: Duration,
    /// How many more or fewer than the limit were admitted afterwards.
    pub off_afterwards: i64,
    /// The longest answer of Redis to another client, if it was always available.
    pub redis_took: Option<Duration>,
}

/// A row of the table in `docs/evidence/chaos.md`.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        let percent = |part: usize, all: usize| part as f64 * 100.0 / all as f64;
        let first = self
            .first
            .map_or_else(|| "–".to_owned(), |time| format!("{:.1}", millis(time)));
        let off = match (self.over, self.under) {
            (0, 0) => "0".to_owned(),
            (over, 0) => format!("{over} lost"),
            (0, under) => format!("{under} extra"),
            (over, under) => format!("{over} lost, {under} extra"),
        };
        write!(
            f,
            "| {} | {:.1} | {:.1} | {first} | {:.2} | {off} | {:.0}",
            self.name,
            percent(self.errors + self.degraded, self.answers),
            millis(self.longest),
            millis(self.others),
            millis(self.recovery),
        )?;
        match self.off_afterwards {
            0 => f.write_str(" |"),
            off => write!(f, ", then {off:+} of 100 |"),
        }
    }
}

pub type Running = Pin<Box<dyn Future<Output = Outcome>>>;

/// Runs one scenario.
pub type Scenario = fn(Plan) -> Running;

/// All scenarios, by name.
pub fn scenarios() -> Vec<(&'static str, Scenario)> {
    vec![
        (KILLED, |plan| Box::pin(killed(KILLED, plan))),
        (KILLED_ALLOW, |plan| {
            Box::pin(killed(KILLED_ALLOW, plan.answering("allow")))
        }),
        (KILLED_DENY, |plan| {
            Box::pin(killed(KILLED_DENY, plan.answering("deny")))
        }),
        (KILLED_LOCAL, |plan| {
            Box::pin(killed(KILLED_LOCAL, plan.answering("local")))
        }),
        (STOPPED, |plan| Box::pin(stopped(STOPPED, plan))),
        (STOPPED_LOCAL, |plan| {
            Box::pin(stopped(STOPPED_LOCAL, plan.answering("local")))
        }),
        (SENTINEL, |plan| Box::pin(sentinel_failover(SENTINEL, plan))),
        (SENTINEL_LOCAL, |plan| {
            Box::pin(sentinel_failover(SENTINEL_LOCAL, plan.answering("local")))
        }),
        (MASTER, |plan| Box::pin(cluster_master_killed(MASTER, plan))),
        (MASTER_LOCAL, |plan| {
            Box::pin(cluster_master_killed(MASTER_LOCAL, plan.answering("local")))
        }),
        (SLOTS, |plan| Box::pin(cluster_slots_moved(plan))),
        (JOINED, |plan| Box::pin(cluster_node_added(plan))),
        (CUT, |plan| Box::pin(network(CUT, plan, CUTS))),
        (HALF_OPEN, |plan| {
            Box::pin(network(HALF_OPEN, plan, SWALLOWS))
        }),
        (LATENCY, |plan| {
            let fault = Fault {
                latency: plan.deadline * 3,
                ..Fault::default()
            };
            Box::pin(network(LATENCY, plan, fault))
        }),
        (NARROW, |plan| {
            let fault = Fault {
                bytes_per_sec: Some(2_000),
                ..Fault::default()
            };
            Box::pin(network(NARROW, plan, fault))
        }),
        (FULL, |plan| Box::pin(memory_full(plan))),
        (FLUSHED, |plan| Box::pin(scripts_flushed(plan))),
        (PASSWORD, |plan| Box::pin(password_rotated(plan))),
        (EXPIRED, |plan| Box::pin(certificate_expired(plan))),
        (CLIENTS, |plan| Box::pin(refusals::too_many_clients(plan))),
        (DENIED, |plan| Box::pin(refusals::denied(plan))),
        (MOVED, |plan| Box::pin(refusals::address_moved(plan))),
        (TWEMPROXY, |plan| Box::pin(refusals::twemproxy_killed(plan))),
        (SPLIT, |plan| Box::pin(replicas_split(SPLIT, plan))),
        (SPLIT_LOCAL, |plan| {
            Box::pin(replicas_split(SPLIT_LOCAL, plan.answering("local")))
        }),
        (PAUSES_15, |plan| {
            Box::pin(paused(PAUSES_15, plan, vec![Turn::millis(15, 85)]))
        }),
        (PAUSES_60, |plan| {
            Box::pin(paused(PAUSES_60, plan, vec![Turn::millis(60, 40)]))
        }),
        (PAUSES_200, |plan| {
            Box::pin(paused(PAUSES_200, plan, vec![Turn::millis(200, 50)]))
        }),
        (PAUSES_RANDOM, |plan| {
            Box::pin(paused(PAUSES_RANDOM, plan, random_turns()))
        }),
        (PAUSES_OF_BOTH, |plan| Box::pin(both_paused(plan))),
        (BUSY, |plan| Box::pin(busy(plan))),
        (STARVED, |plan| Box::pin(starved(plan))),
        (LATE_REPLIES, |plan| {
            Box::pin(late_replies(
                LATE_REPLIES,
                plan,
                None,
                &[1, 5, 9, 11, 15, 30],
            ))
        }),
        (LATE_REPLIES_ENVOY, |plan| {
            let late = &[1, 5, 9, 11, 15, 30];
            Box::pin(late_replies(LATE_REPLIES_ENVOY, plan, Some("20m"), late))
        }),
        (STALL, |plan| {
            Box::pin(late_replies(STALL, plan, None, &[210]))
        }),
        (STALL_ENVOY, |plan| {
            Box::pin(late_replies(STALL_ENVOY, plan, Some("20m"), &[210]))
        }),
        (SLEEPS, |plan| Box::pin(redis_sleeps(plan))),
        (SAVES, |plan| Box::pin(redis_saves(plan))),
    ]
}

/// The machine has no time for tollgate, or Redis is slower than usual, with default settings. Redis always answers,
/// so no decision may be made without it.
pub const PAUSES_15: &str = "tollgate stopped for 15 ms of every 100";
pub const PAUSES_60: &str = "tollgate stopped for 60 ms of every 100";
pub const PAUSES_200: &str = "tollgate stopped for 200 ms of every 250";
pub const PAUSES_RANDOM: &str = "tollgate stopped at random, up to 300 ms";
pub const PAUSES_OF_BOTH: &str = "tollgate and Redis stopped in turns, 40 ms each";
pub const BUSY: &str = "four busy loops beside it";
pub const STARVED: &str = "workers starved by requests of 250 kB";
pub const LATE_REPLIES: &str = "a reply 1, 5, 9, 11, 15, 30 ms late now and then";
pub const LATE_REPLIES_ENVOY: &str = "the same with callers that wait for 20 ms, as Envoy does";
pub const STALL: &str = "a connection stalls for 210 ms now and then";
pub const STALL_ENVOY: &str = "the same stall with callers that wait for 20 ms";
pub const SLEEPS: &str = "Redis sleeps for 30 ms each second";
pub const SAVES: &str = "BGSAVE of a large Redis";

pub const KILLED: &str = "kill -9 of Redis, restart";
pub const STOPPED: &str = "SIGSTOP of Redis";
pub const SENTINEL: &str = "Sentinel failover";
pub const MASTER: &str = "Cluster: master killed";
pub const SLOTS: &str = "Cluster: slots moved";
pub const JOINED: &str = "Cluster: node added";
pub const CUT: &str = "network cut";
pub const HALF_OPEN: &str = "network half-open";
pub const LATENCY: &str = "network latency of three deadlines";
pub const NARROW: &str = "network of 2 kB/s";
pub const FULL: &str = "maxmemory reached";
pub const FLUSHED: &str = "SCRIPT FLUSH";
pub const PASSWORD: &str = "password rotated";
pub const EXPIRED: &str = "TLS certificate expired";
pub const CLIENTS: &str = "maxclients reached";
pub const DENIED: &str = "user denied";
pub const MOVED: &str = "address moves to a replica, which is the master now";
pub const TWEMPROXY: &str = "twemproxy before two Redis: kill -9, restart";
pub const SPLIT: &str = "two replicas split";
pub const KILLED_ALLOW: &str = "kill -9 of Redis, restart; allow";
pub const KILLED_DENY: &str = "kill -9 of Redis, restart; deny";
pub const KILLED_LOCAL: &str = "kill -9 of Redis, restart; local";
pub const STOPPED_LOCAL: &str = "SIGSTOP of Redis; local";
pub const SENTINEL_LOCAL: &str = "Sentinel failover; local";
pub const MASTER_LOCAL: &str = "Cluster: master killed; local";
pub const SPLIT_LOCAL: &str = "two replicas split; local";

const CUTS: Fault = Fault {
    latency: Duration::ZERO,
    swallows: false,
    cuts: true,
    bytes_per_sec: None,
    forgets_after: None,
    ends_on: &[],
};

const SWALLOWS: Fault = Fault {
    latency: Duration::ZERO,
    swallows: true,
    cuts: false,
    bytes_per_sec: None,
    forgets_after: None,
    ends_on: &[],
};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limits: [100000000/10000years]}
  - {key: few, rate_limits: [100/10000years]}
";

/// Values with counters in all parts of a cluster.
pub const VALUES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

/// How long the load runs before the fault, and after the repair.
const CALM: Duration = Duration::from_millis(300);

/// Number of the slowest answers kept for inspection.
const SLOWEST: usize = 20;

/// A tollgate for a scenario.
pub fn start(plan: &Plan, url: &str, more: &[(&str, &str)]) -> Tollgate {
    let deadline = format!("{}ms", plan.deadline.as_millis());
    let mut builder = tollgate::with_rules(RULES)
        .redis_at(url, &deadline)
        .args(plan.args.iter().map(String::as_str));
    for (name, value) in more {
        builder = builder.env(name, value);
    }
    builder.start()
}

/// A tollgate with default settings.
fn start_by_default(plan: &Plan, url: &str) -> Tollgate {
    tollgate::with_rules(RULES)
        .redis_by_default(url)
        .args(plan.args.iter().map(String::as_str))
        .start()
}

/// Waits until the store decides for every value again.
pub async fn all_work(client: &Client) {
    eventually("all values are counted", async || {
        let mut client = client.clone();
        for value in VALUES {
            let reply = ask(&mut client, "d", &[("k", value)]).await;
            if !reply.is_ok_and(|reply| !is_degraded(&reply)) {
                return false;
            }
        }
        true
    })
    .await;
}

/// The counter of one of the values.
fn key(value: &str) -> String {
    let period = 10_000 * 31_536_000;
    let number = ::tollgate::now().secs() / period;
    format!("{{1:d1:k1:{value}}}{period}@{number}")
}

fn sum(count: impl Fn(&str) -> i64) -> i64 {
    VALUES.iter().map(|value| count(&key(value))).sum()
}

fn counted_in(redis: &Redis) -> i64 {
    sum(|key| redis.cli(&["GET", key]).trim().parse().unwrap_or(0))
}

/// The load on the servers, and the times of the events.
struct Course {
    name: &'static str,
    plan: Plan,
    clients: Vec<Client>,
    storm: Storm,
    logs: Vec<Log>,
    counted_before: i64,
    /// Time of the fault, also in milliseconds since 1970.
    broken: Option<(Instant, u64)>,
    mended: Option<Instant>,
    recovery: Duration,
    witness: Option<Witness>,
}

impl Course {
    /// Waits until all values work, and begins.
    async fn begin(
        name: &'static str,
        plan: Plan,
        servers: &[&Tollgate],
        counted: &dyn Fn() -> i64,
    ) -> Self {
        Self::begin_with_timeout(name, plan, servers, counted, None).await
    }

    /// Like [`begin`](Self::begin), with callers that send a timeout.
    async fn begin_with_timeout(
        name: &'static str,
        plan: Plan,
        servers: &[&Tollgate],
        counted: &dyn Fn() -> i64,
        timeout: Option<&str>,
    ) -> Self {
        let mut clients = Vec::new();
        for server in servers {
            let client = connect(server.grpc).await;
            all_work(&client).await;
            clients.push(client);
        }
        let counted_before = counted();
        let addresses: Vec<_> = servers.iter().map(|server| server.grpc).collect();
        let storm = Storm::with_timeout(&addresses, &VALUES, plan.period, timeout);
        let logs = servers.iter().map(|server| server.log().clone()).collect();
        tokio::time::sleep(CALM).await;
        Self {
            name,
            plan,
            clients,
            storm,
            logs,
            counted_before,
            broken: None,
            mended: None,
            recovery: Duration::ZERO,
            witness: None,
        }
    }

    /// Records a fault that does not affect Redis, which is available as `witness` observes.
    fn broken_beside(&mut self, witness: Witness) {
        self.witness = Some(witness);
        self.broken();
    }

    fn broken(&mut self) {
        self.broken = Some((Instant::now(), ::tollgate::now().millis()));
    }

    fn mended(&mut self) {
        self.mended = Some(Instant::now());
    }

    /// Waits until all values work again, and computes the results.
    async fn end(mut self, counted: &dyn Fn() -> i64) -> Outcome {
        let (broken, broken_millis) = self.broken.expect("something was broken");
        let mended = self.mended.expect("it was mended");
        // The storm detects the recovery itself; another request would be counted.
        tokio::time::sleep(CALM).await;
        let mut recovered = None;
        let patience = Instant::now() + Duration::from_secs(20);
        while recovered.is_none() && Instant::now() < patience {
            let mut works = true;
            for client in &mut self.clients {
                let reply = ask(client, "d", &[("few", "probe")]).await;
                works &= reply.is_ok_and(|reply| !is_degraded(&reply));
            }
            if works {
                recovered = Some(());
            }
        }
        tokio::time::sleep(CALM).await;
        let answers = self.storm.end().await;
        let redis_took = self.witness.map(Witness::end);
        self.recovery = answers
            .last_lack_after(mended)
            .unwrap_or_default()
            .max(answers.recovery(mended).unwrap_or(Duration::MAX));
        let counted = counted() - self.counted_before;
        let ok = i64::try_from(answers.ok()).unwrap();
        let mut off_afterwards = 0;
        for client in &mut self.clients {
            off_afterwards += off_by(client).await;
        }
        let known = answers.first_lack(broken).filter(|known| *known < mended);
        let quantile = |answers: &Answers| answers.quantile(0.99, self.plan.period);
        let first = known.map(|known| quantile(&answers.under_way(broken, known)));
        let losses = self
            .logs
            .iter()
            .flat_map(|log| log.moments("Redis is lost"));
        let lost =
            losses.filter_map(|at| Some(Duration::from_millis(at.checked_sub(broken_millis)?)));
        let lost = lost.min().filter(|lost| broken + *lost < mended);
        let from = lost.map(|lost| broken + lost).or(known).unwrap_or(broken);
        let others = answers.between(from, mended);
        let (lacks_when_lost, waits_when_lost) = match lost {
            Some(_) => (others.lacks(), others.count(What::Error(TIMEOUT))),
            None => (0, 0),
        };
        let mut slowest: Vec<_> = others
            .0
            .iter()
            .map(|seen| (seen.at - broken, seen.clone()))
            .collect();
        slowest.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.took));
        slowest.truncate(SLOWEST);
        Outcome {
            name: self.name,
            answers: answers.0.len(),
            errors: answers.error_count(),
            texts: answers.errors(),
            degraded: answers.degraded().0.len(),
            longest: answers.longest(),
            lost,
            lacks_when_lost,
            waits_when_lost,
            first,
            others: quantile(&others),
            slowest,
            over: (ok - counted).max(0),
            under: (counted - ok).max(0),
            recovery: self.recovery,
            off_afterwards,
            redis_took,
        }
    }
}

/// How many more or fewer than the limit are admitted.
pub async fn off_by(client: &mut Client) -> i64 {
    let value = format!("{:?}", Instant::now());
    let mut admitted = 0;
    for _ in 0..130 {
        admitted += i64::from(is_ok(&ask(client, "d", &[("few", &value)]).await));
    }
    admitted - 100
}

async fn killed(name: &'static str, plan: Plan) -> Outcome {
    let mut redis = Redis::start();
    let server = start(&plan, &redis.url(), &[]);
    let lasts = plan.lasts;
    let mut course = Course::begin(name, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken();
    redis.kill();
    tokio::time::sleep(lasts).await;
    redis.restart();
    course.mended();
    course.counted_before = 0;
    course.end(&|| counted_in(&redis)).await
}

async fn stopped(name: &'static str, plan: Plan) -> Outcome {
    let redis = Redis::start();
    let server = start(&plan, &redis.url(), &[]);
    let lasts = plan.lasts;
    let mut course = Course::begin(name, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken();
    redis.freeze();
    tokio::time::sleep(lasts).await;
    redis.thaw();
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn sentinel_failover(name: &'static str, plan: Plan) -> Outcome {
    let mut watched = Watched::start();
    let server = start(&plan, &watched.url(), &[]);
    let count = |watched: &Watched| counted_in(&watched.servers[watched.master()]);
    let mut course = Course::begin(name, plan, &[&server], &|| count(&watched)).await;
    course.broken();
    watched.servers[0].kill();
    eventually("there is a new master", async || {
        watched.master() == 1 && !is_replica(&watched.servers[1])
    })
    .await;
    course.mended();
    course.end(&|| count(&watched)).await
}

fn counted_in_cluster(cluster: &Cluster) -> i64 {
    sum(|key| cluster.value(key))
}

async fn cluster_master_killed(name: &'static str, plan: Plan) -> Outcome {
    let mut cluster = Cluster::start(1);
    let server = start(&plan, &cluster.url(), &[]);
    let mut course = Course::begin(name, plan, &[&server], &|| counted_in_cluster(&cluster)).await;
    let master = cluster.owner(&key(VALUES[0]));
    course.broken();
    cluster.nodes[master].kill();
    eventually("a replica was promoted", async || {
        let alive = cluster
            .nodes
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != master);
        alive.filter(|(_, node)| !is_replica(node)).count() == 3
    })
    .await;
    course.mended();
    course.end(&|| counted_in_cluster(&cluster)).await
}

async fn cluster_slots_moved(plan: Plan) -> Outcome {
    let cluster = Cluster::start(0);
    let server = start(&plan, &cluster.url(), &[]);
    let mut course = Course::begin(SLOTS, plan, &[&server], &|| counted_in_cluster(&cluster)).await;
    course.broken();
    move_values(&cluster, |from| (from + 1) % 3).await;
    course.mended();
    course.end(&|| counted_in_cluster(&cluster)).await
}

async fn cluster_node_added(plan: Plan) -> Outcome {
    let mut cluster = Cluster::start(0);
    let server = start(&plan, &cluster.url(), &[]);
    let mut course =
        Course::begin(JOINED, plan, &[&server], &|| counted_in_cluster(&cluster)).await;
    course.broken();
    cluster.add_node();
    move_values(&cluster, |_| 3).await;
    course.mended();
    course.end(&|| counted_in_cluster(&cluster)).await
}

/// Moves the slots of all values.
pub async fn move_values(cluster: &Cluster, mut to: impl FnMut(usize) -> usize) {
    for value in VALUES {
        let slot = cluster.nodes[0].number(&["CLUSTER", "KEYSLOT", &key(value)]);
        let slot = u16::try_from(slot).unwrap();
        let from = cluster.owner(&key(value));
        cluster.migrate(from, to(from), slot, slot);
        // The storm runs on this thread too.
        tokio::task::yield_now().await;
    }
}

async fn network(name: &'static str, plan: Plan, fault: Fault) -> Outcome {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let server = start(&plan, &proxy.url(), &[]);
    let lasts = plan.lasts;
    let mut course = Course::begin(name, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken();
    proxy.set(fault);
    tokio::time::sleep(lasts).await;
    proxy.heal();
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn memory_full(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let server = start(&plan, &redis.url(), &[]);
    let lasts = plan.lasts;
    let mut course = Course::begin(FULL, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    tokio::time::sleep(lasts).await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn scripts_flushed(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let server = start(&plan, &redis.url(), &[]);
    let lasts = plan.lasts;
    let mut course = Course::begin(FLUSHED, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken();
    let until = Instant::now() + lasts;
    while Instant::now() < until {
        redis.cli(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn password_rotated(plan: Plan) -> Outcome {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "first-sesame\n").unwrap();
    let mut redis = Redis::with_password("first-sesame");
    let path = file.to_str().unwrap();
    let server = start(&plan, &redis.url(), &[("TOLLGATE_REDIS_AUTH_FILE", path)]);
    let lasts = plan.lasts;
    let mut course = Course::begin(PASSWORD, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken();
    redis.cli(&["CONFIG", "SET", "requirepass", "second-sesame"]);
    redis.password = Some("second-sesame".to_owned());
    // Existing connections would stay authenticated.
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    tokio::time::sleep(lasts).await;
    fs::write(&file, "second-sesame\n").unwrap();
    course.mended();
    let outcome = course.end(&|| counted_in(&redis)).await;
    let reported =
        server.log().text() + &server.page("/stats") + &server.page("/healthcheck?verbose");
    assert!(!reported.contains("sesame"), "{reported}");
    outcome
}

async fn certificate_expired(plan: Plan) -> Outcome {
    let authority = Authority::new("Redis");
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ca = write("ca", &authority.certificate);
    let good = authority.issue("localhost");
    let (good_cert, good_key) = (write("cert", &good.certificate), write("key", &good.key));
    let bad = authority.issue_expired("localhost");
    let (bad_cert, bad_key) = (write("old", &bad.certificate), write("old-key", &bad.key));
    let redis = Redis::with_tls(folder.path(), false);
    let url = format!("rediss://localhost:{}", redis.tls_port());
    let tls = [("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", ca.as_str())];
    let server = start(&plan, &url, &tls);
    let lasts = plan.lasts;
    let mut course = Course::begin(EXPIRED, plan, &[&server], &|| counted_in(&redis)).await;
    let show = |cert: &str, key: &str| {
        redis.cli(&["CONFIG", "SET", "tls-cert-file", cert, "tls-key-file", key]);
    };
    course.broken();
    show(&bad_cert, &bad_key);
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    tokio::time::sleep(lasts).await;
    show(&good_cert, &good_key);
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn replicas_split(name: &'static str, plan: Plan) -> Outcome {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let servers = [
        start(&plan, &redis.url(), &[]),
        start(&plan, &proxy.url(), &[]),
    ];
    let lasts = plan.lasts;
    let both = [&servers[0], &servers[1]];
    let mut course = Course::begin(name, plan, &both, &|| counted_in(&redis)).await;
    course.broken();
    proxy.set(SWALLOWS);
    tokio::time::sleep(lasts).await;
    proxy.heal();
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn paused(name: &'static str, plan: Plan, turns: Vec<Turn>) -> Outcome {
    let redis = Redis::start();
    let server = start_by_default(&plan, &redis.url());
    let lasts = plan.lasts;
    let witness = Witness::of(&redis);
    let mut course = Course::begin(name, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken_beside(witness);
    let pauses = Pauses::of(server.process_id(), turns);
    tokio::time::sleep(lasts).await;
    drop(pauses);
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

/// Turns of random lengths, equal in each run.
fn random_turns() -> Vec<Turn> {
    let mut state = 20_261_122_u64;
    let mut random = |below: u64| {
        // Numerical Recipes' generator is random enough for this.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % (1 << 32);
        state % below
    };
    (0..100)
        .map(|_| {
            let longest = [20, 80, 300][usize::try_from(random(3)).unwrap()];
            Turn::millis(1 + random(longest), 5 + random(100))
        })
        .collect()
}

/// While one process is paused the other runs.
async fn both_paused(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let server = start_by_default(&plan, &redis.url());
    let lasts = plan.lasts;
    let witness = Witness::of(&redis);
    let mut course = Course::begin(PAUSES_OF_BOTH, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken_beside(witness);
    let turns = vec![Turn::millis(40, 60)];
    let pauses = Pauses::of(server.process_id(), turns.clone());
    tokio::time::sleep(Duration::from_millis(50)).await;
    let of_redis = Pauses::of(redis.process_id(), turns);
    tokio::time::sleep(lasts).await;
    drop((pauses, of_redis));
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn busy(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let server = start_by_default(&plan, &redis.url());
    let lasts = plan.lasts;
    let witness = Witness::of(&redis);
    let mut course = Course::begin(BUSY, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken_beside(witness);
    let others = loops(4);
    tokio::time::sleep(lasts).await;
    drop(others);
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

/// A worker that reads a large message does nothing else meanwhile.
async fn starved(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let server = start_by_default(&plan, &redis.url());
    let lasts = plan.lasts;
    let witness = Witness::of(&redis);
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(connect(server.grpc).await);
    }
    let mut course = Course::begin(STARVED, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken_beside(witness);
    let until = Instant::now() + lasts;
    let message = request("d", vec![descriptor(&[("k", "large"); 18_000])]);
    while Instant::now() < until {
        let mut calls = JoinSet::new();
        for client in &clients {
            let (mut client, message) = (client.clone(), message.clone());
            calls.spawn(async move { client.should_rate_limit(message).await });
        }
        for answer in calls.join_all().await {
            assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
        }
    }
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

/// Delays replies, each by the next of the milliseconds in `late`, in turn.
async fn late_replies(
    name: &'static str,
    plan: Plan,
    timeout: Option<&str>,
    late: &[u64],
) -> Outcome {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let server = start_by_default(&plan, &proxy.url());
    let lasts = plan.lasts;
    let witness = Witness::of(&redis);
    let servers = [&server];
    let counted = || counted_in(&redis);
    let begun = Course::begin_with_timeout(name, plan, &servers, &counted, timeout);
    let mut course = begun.await;
    course.broken_beside(witness);
    let until = Instant::now() + lasts;
    for late in late.iter().cycle() {
        if Instant::now() >= until {
            break;
        }
        proxy.hold_next_reply(Duration::from_millis(*late));
        tokio::time::sleep(Duration::from_millis(100 + 2 * late)).await;
    }
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn redis_sleeps(plan: Plan) -> Outcome {
    let redis = Redis::with(&["--enable-debug-command", "yes"]);
    let server = start_by_default(&plan, &redis.url());
    let lasts = plan.lasts;
    let witness = Witness::of(&redis);
    let mut course = Course::begin(SLEEPS, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken_beside(witness);
    let until = Instant::now() + lasts;
    while Instant::now() < until {
        redis.cli(&["DEBUG", "SLEEP", "0.03"]);
        tokio::time::sleep(Duration::from_millis(970).min(lasts / 4)).await;
    }
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn redis_saves(plan: Plan) -> Outcome {
    let redis = Redis::with(&["--enable-debug-command", "yes"]);
    // A hundred bytes each; about a second makes a gigabyte.
    let keys = if plan.lasts < Duration::from_secs(2) {
        "200000"
    } else {
        "5000000"
    };
    redis.cli(&["DEBUG", "POPULATE", keys, "filler", "100"]);
    let server = start_by_default(&plan, &redis.url());
    let lasts = plan.lasts;
    let witness = Witness::of(&redis);
    let mut course = Course::begin(SAVES, plan, &[&server], &|| counted_in(&redis)).await;
    course.broken_beside(witness);
    redis.cli(&["BGSAVE"]);
    tokio::time::sleep(lasts).await;
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

/// Waits until a page contains a text.
#[track_caller]
pub fn await_page(server: &Tollgate, path: &str, text: &str) {
    wait_until(text, || server.page(path).contains(text));
}
