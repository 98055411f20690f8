//! Ways to break Redis, or the network to it, under load from 64 streams, and their results. Each runs against its
//! own real processes.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::Read as _,
    net::TcpStream,
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
    nutcracker::Nutcracker,
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

/// All scenarios, in the order of the table.
#[rustfmt::skip]
pub const SCENARIOS: [&str; 39] = [
    KILLED, KILLED_ALLOW, KILLED_DENY, KILLED_LOCAL, STOPPED, STOPPED_LOCAL, SENTINEL,
    SENTINEL_LOCAL, MASTER, MASTER_LOCAL, SLOTS, JOINED, CUT, HALF_OPEN, LATENCY, NARROW, FULL,
    FLUSHED, PASSWORD, EXPIRED, CLIENTS, DENIED, MOVED, TWEMPROXY, SPLIT, SPLIT_LOCAL, PAUSES_15,
    PAUSES_60, PAUSES_200, PAUSES_RANDOM, PAUSES_OF_BOTH, BUSY, STARVED, LATE_REPLIES,
    LATE_REPLIES_ENVOY, STALL, STALL_ENVOY, SLEEPS, SAVES,
];

/// Runs the scenario of this name. After a semicolon stands the answer to a lost store.
pub async fn run(name: &'static str, mut plan: Plan) -> Outcome {
    if let Some((_, answer)) = name.split_once("; ") {
        let more = ["--on-store-loss", answer].map(str::to_owned);
        plan.args.extend(more);
    }
    let network = |fault| network(name, plan.clone(), fault);
    match name {
        KILLED | KILLED_ALLOW | KILLED_DENY | KILLED_LOCAL => killed(name, plan).await,
        STOPPED | STOPPED_LOCAL => stopped(name, plan).await,
        SENTINEL | SENTINEL_LOCAL => sentinel_failover(name, plan).await,
        MASTER | MASTER_LOCAL => cluster_master_killed(name, plan).await,
        SLOTS => cluster_slots_moved(plan).await,
        JOINED => cluster_node_added(plan).await,
        CUT => network(CUTS).await,
        HALF_OPEN => network(SWALLOWS).await,
        LATENCY => {
            let latency = plan.deadline * 3;
            network(Fault { latency, ..PASSES }).await
        }
        NARROW => {
            let bytes_per_sec = Some(2_000);
            network(Fault {
                bytes_per_sec,
                ..PASSES
            })
            .await
        }
        FULL => memory_full(plan).await,
        FLUSHED => scripts_flushed(plan).await,
        PASSWORD => password_rotated(plan).await,
        EXPIRED => certificate_expired(plan).await,
        CLIENTS => too_many_clients(plan).await,
        DENIED => denied(plan).await,
        MOVED => address_moved(plan).await,
        TWEMPROXY => twemproxy_killed(plan).await,
        SPLIT | SPLIT_LOCAL => replicas_split(name, plan).await,
        PAUSES_15 => paused(name, plan, vec![Turn::millis(15, 85)]).await,
        PAUSES_60 => paused(name, plan, vec![Turn::millis(60, 40)]).await,
        PAUSES_200 => paused(name, plan, vec![Turn::millis(200, 50)]).await,
        PAUSES_RANDOM => paused(name, plan, random_turns()).await,
        PAUSES_OF_BOTH => both_paused(plan).await,
        BUSY => busy(plan).await,
        STARVED => starved(plan).await,
        LATE_REPLIES => late_replies(name, plan, None, &LATE).await,
        LATE_REPLIES_ENVOY => late_replies(name, plan, Some("20m"), &LATE).await,
        STALL => late_replies(name, plan, None, &[210]).await,
        STALL_ENVOY => late_replies(name, plan, Some("20m"), &[210]).await,
        SLEEPS => redis_sleeps(plan).await,
        SAVES => redis_saves(plan).await,
        other => panic!("no scenario is called {other}"),
    }
}

/// Milliseconds by which replies are late.
const LATE: [u64; 6] = [1, 5, 9, 11, 15, 30];

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

const PASSES: Fault = Fault {
    latency: Duration::ZERO,
    swallows: false,
    cuts: false,
    bytes_per_sec: None,
    forgets_after: None,
    ends_on: &[],
};
#[rustfmt::skip]
const CUTS: Fault = Fault { cuts: true, ..PASSES };
#[rustfmt::skip]
const SWALLOWS: Fault = Fault { swallows: true, ..PASSES };

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
    /// Waits until all values work, and begins, with callers that send a timeout or none.
    async fn begin(
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

/// One server and one Redis at `url`: `fault` breaks it, and ends when it is mended.
async fn lost(
    name: &'static str,
    plan: Plan,
    mut redis: Redis,
    url: &str,
    more: &[(&str, &str)],
    fault: impl AsyncFnOnce(&mut Redis, &Tollgate, Duration),
) -> Outcome {
    let server = start(&plan, url, more);
    let lasts = plan.lasts;
    let mut course = Course::begin(name, plan, &[&server], &|| counted_in(&redis), None).await;
    course.broken();
    fault(&mut redis, &server, lasts).await;
    course.mended();
    if name.starts_with(KILLED) {
        course.counted_before = 0;
    }
    course.end(&|| counted_in(&redis)).await
}

/// One server with default settings and one Redis, which always answers, as a witness sees.
async fn there(
    name: &'static str,
    plan: Plan,
    redis: &Redis,
    url: &str,
    timeout: Option<&str>,
    fault: impl AsyncFnOnce(&Tollgate, Duration),
) -> Outcome {
    let server = start_by_default(&plan, url);
    let lasts = plan.lasts;
    let witness = Witness::of(redis);
    let counted = || counted_in(redis);
    let mut course = Course::begin(name, plan, &[&server], &counted, timeout).await;
    course.witness = Some(witness);
    course.broken();
    fault(&server, lasts).await;
    course.mended();
    course.end(&counted).await
}

async fn killed(name: &'static str, plan: Plan) -> Outcome {
    let redis = Redis::start();
    let url = redis.url();
    lost(name, plan, redis, &url, &[], async |redis, _, lasts| {
        redis.kill();
        tokio::time::sleep(lasts).await;
        redis.restart();
    })
    .await
}

async fn stopped(name: &'static str, plan: Plan) -> Outcome {
    let redis = Redis::start();
    let url = redis.url();
    lost(name, plan, redis, &url, &[], async |redis, _, lasts| {
        redis.freeze();
        tokio::time::sleep(lasts).await;
        redis.thaw();
    })
    .await
}

async fn sentinel_failover(name: &'static str, plan: Plan) -> Outcome {
    let mut watched = Watched::start();
    let server = start(&plan, &watched.url(), &[]);
    let count = |watched: &Watched| counted_in(&watched.servers[watched.master()]);
    let mut course = Course::begin(name, plan, &[&server], &|| count(&watched), None).await;
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
    let mut course = Course::begin(
        name,
        plan,
        &[&server],
        &|| counted_in_cluster(&cluster),
        None,
    )
    .await;
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
    let mut course = Course::begin(
        SLOTS,
        plan,
        &[&server],
        &|| counted_in_cluster(&cluster),
        None,
    )
    .await;
    course.broken();
    move_values(&cluster, |from| (from + 1) % 3).await;
    course.mended();
    course.end(&|| counted_in_cluster(&cluster)).await
}

async fn cluster_node_added(plan: Plan) -> Outcome {
    let mut cluster = Cluster::start(0);
    let server = start(&plan, &cluster.url(), &[]);
    let mut course = Course::begin(
        JOINED,
        plan,
        &[&server],
        &|| counted_in_cluster(&cluster),
        None,
    )
    .await;
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
    lost(name, plan, redis, &proxy.url(), &[], async |_, _, lasts| {
        proxy.set(fault);
        tokio::time::sleep(lasts).await;
        proxy.heal();
    })
    .await
}

async fn memory_full(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let url = redis.url();
    lost(FULL, plan, redis, &url, &[], async |redis, _, lasts| {
        redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        tokio::time::sleep(lasts).await;
        redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    })
    .await
}

async fn scripts_flushed(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let url = redis.url();
    lost(FLUSHED, plan, redis, &url, &[], async |redis, _, lasts| {
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            redis.cli(&["SCRIPT", "FLUSH"]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

async fn password_rotated(plan: Plan) -> Outcome {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "first-sesame\n").unwrap();
    let mut redis = Redis::with_password("first-sesame");
    let path = file.to_str().unwrap();
    let server = start(&plan, &redis.url(), &[("TOLLGATE_REDIS_AUTH_FILE", path)]);
    let lasts = plan.lasts;
    let mut course = Course::begin(PASSWORD, plan, &[&server], &|| counted_in(&redis), None).await;
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
    lost(EXPIRED, plan, redis, &url, &tls, async |redis, _, lasts| {
        let show = |cert: &str, key: &str| {
            redis.cli(&["CONFIG", "SET", "tls-cert-file", cert, "tls-key-file", key]);
        };
        show(&bad_cert, &bad_key);
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        tokio::time::sleep(lasts).await;
        show(&good_cert, &good_key);
    })
    .await
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
    let mut course = Course::begin(name, plan, &both, &|| counted_in(&redis), None).await;
    course.broken();
    proxy.set(SWALLOWS);
    tokio::time::sleep(lasts).await;
    proxy.heal();
    course.mended();
    course.end(&|| counted_in(&redis)).await
}

async fn paused(name: &'static str, plan: Plan, turns: Vec<Turn>) -> Outcome {
    let redis = Redis::start();
    let url = redis.url();
    there(name, plan, &redis, &url, None, async |server, lasts| {
        let _pauses = Pauses::of(server.process_id(), turns);
        tokio::time::sleep(lasts).await;
    })
    .await
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
    let url = redis.url();
    let fault = async |server: &Tollgate, lasts: Duration| {
        let turns = vec![Turn::millis(40, 60)];
        let _pauses = Pauses::of(server.process_id(), turns.clone());
        tokio::time::sleep(Duration::from_millis(50)).await;
        let _of_redis = Pauses::of(redis.process_id(), turns);
        tokio::time::sleep(lasts).await;
    };
    there(PAUSES_OF_BOTH, plan, &redis, &url, None, fault).await
}

async fn busy(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let url = redis.url();
    there(BUSY, plan, &redis, &url, None, async |_, lasts| {
        let _others = loops(4);
        tokio::time::sleep(lasts).await;
    })
    .await
}

/// A worker that reads a large message does nothing else meanwhile.
async fn starved(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let url = redis.url();
    there(STARVED, plan, &redis, &url, None, async |server, lasts| {
        let clients = [connect(server.grpc).await, connect(server.grpc).await];
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
    })
    .await
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
    let fault = async |_: &Tollgate, lasts: Duration| {
        let until = Instant::now() + lasts;
        for late in late.iter().cycle() {
            if Instant::now() >= until {
                break;
            }
            proxy.hold_next_reply(Duration::from_millis(*late));
            tokio::time::sleep(Duration::from_millis(100 + 2 * late)).await;
        }
    };
    there(name, plan, &redis, &proxy.url(), timeout, fault).await
}

async fn redis_sleeps(plan: Plan) -> Outcome {
    let redis = Redis::with(&["--enable-debug-command", "yes"]);
    let url = redis.url();
    there(SLEEPS, plan, &redis, &url, None, async |_, lasts| {
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            redis.cli(&["DEBUG", "SLEEP", "0.03"]);
            tokio::time::sleep(Duration::from_millis(970).min(lasts / 4)).await;
        }
    })
    .await
}

async fn redis_saves(plan: Plan) -> Outcome {
    let redis = Redis::with(&["--enable-debug-command", "yes"]);
    // A hundred bytes each; about a second makes a gigabyte.
    let is_short = plan.lasts < Duration::from_secs(2);
    let keys = if is_short { "200000" } else { "5000000" };
    redis.cli(&["DEBUG", "POPULATE", keys, "filler", "100"]);
    let url = redis.url();
    there(SAVES, plan, &redis, &url, None, async |_, lasts| {
        redis.cli(&["BGSAVE"]);
        tokio::time::sleep(lasts).await;
    })
    .await
}

/// Connections that leave a server with `maxclients` no room for another one.
pub fn fill(redis: &Redis) -> Vec<TcpStream> {
    let mut idle: Vec<TcpStream> = Vec::new();
    wait_until("the server is full", || {
        let stream = TcpStream::connect(redis.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let mut first = [0];
        // It says so by itself, and nothing to a client for which it has room.
        let is_refused = (&stream).read(&mut first).is_ok_and(|read| read == 1);
        idle.push(stream);
        is_refused
    });
    idle
}

async fn too_many_clients(plan: Plan) -> Outcome {
    let redis = Redis::with(&["--maxclients", "16"]);
    let proxy = Proxy::to(redis.address());
    let url = proxy.url();
    lost(CLIENTS, plan, redis, &url, &[], async |redis, _, lasts| {
        // Other clients take the places of tollgate.
        proxy.set(CUTS);
        let _idle = fill(redis);
        proxy.heal();
        tokio::time::sleep(lasts).await;
    })
    .await
}

async fn denied(plan: Plan) -> Outcome {
    let redis = Redis::start();
    let url = redis.url();
    let fault = async |redis: &mut Redis, server: &Tollgate, lasts: Duration| {
        let change = |sign: &str| {
            let commands = ["ping", "incr", "incrby", "get"].map(|name| format!("{sign}{name}"));
            let user = ["ACL", "SETUSER", "default"].into_iter();
            let words: Vec<_> = user.chain(commands.iter().map(String::as_str)).collect();
            redis.cli(&words);
        };
        change("-");
        // A server that answers is asked for its health once a second only.
        eventually("the loss is known", async || {
            server.log().text().contains("Redis is lost")
        })
        .await;
        tokio::time::sleep(lasts).await;
        change("+");
    };
    lost(DENIED, plan, redis, &url, &[], fault).await
}

/// The former master stays reachable over the connections that stand.
async fn address_moved(plan: Plan) -> Outcome {
    let (old, new) = (Redis::start(), Redis::start());
    let follow = |redis: &Redis, master: &Redis| {
        redis.cli(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    };
    follow(&new, &old);
    eventually("the replica follows", async || {
        new.cli(&["INFO", "replication"])
            .contains("master_link_status:up")
    })
    .await;
    let proxy = Proxy::to(old.address());
    let server = start(&plan, &proxy.url(), &[]);
    let mut course = Course::begin(MOVED, plan, &[&server], &|| counted_in(&old), None).await;
    course.broken();
    // As at a planned switch: no write is lost between the two.
    old.cli(&["CLIENT", "PAUSE", "1000", "WRITE"]);
    let offset = |redis: &Redis, name: &str| {
        let info = redis.cli(&["INFO", "replication"]);
        let mut lines = info.lines();
        let offset = lines.find_map(|line| line.trim().strip_prefix(name)?.parse::<u64>().ok());
        offset.expect("it is replicated")
    };
    wait_until("the replica has every write", || {
        offset(&new, "slave_repl_offset:") == offset(&old, "master_repl_offset:")
    });
    new.cli(&["REPLICAOF", "NO", "ONE"]);
    proxy.move_to(new.address());
    follow(&old, &new);
    old.cli(&["CLIENT", "UNPAUSE"]);
    course.mended();
    course.end(&|| counted_in(&new)).await
}

async fn twemproxy_killed(plan: Plan) -> Outcome {
    let both = [Redis::start(), Redis::start()];
    let mut proxy = Nutcracker::before(&[&both[0], &both[1]]);
    let server = start(&plan, &proxy.url(), &[]);
    let lasts = plan.lasts;
    let counted = || both.iter().map(counted_in).sum();
    let mut course = Course::begin(TWEMPROXY, plan, &[&server], &counted, None).await;
    course.broken();
    proxy.kill();
    tokio::time::sleep(lasts).await;
    proxy.restart();
    course.mended();
    course.end(&counted).await
}

/// Waits until a page contains a text.
#[track_caller]
pub fn await_page(server: &Tollgate, path: &str, text: &str) {
    wait_until(text, || server.page(path).contains(text));
}
