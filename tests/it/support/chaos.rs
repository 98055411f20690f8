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
use tokio::{task::JoinSet, time::sleep};
use tonic::Code;

use super::{
    Random,
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

#[derive(Clone, Debug)]
pub struct Plan {
    pub deadline: Duration,
    pub lasts: Duration,
    pub period: Duration,
    pub args: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub name: &'static str,
    pub answers: usize,
    pub errors: usize,
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
    pub off_afterwards: i64,
    /// The longest answer of Redis to another client, if it was always available.
    pub redis_took: Option<Duration>,
}

/// A row of the table in `docs/evidence/chaos.md`.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        let percent = |part: usize, all: usize| part as f64 * 100.0 / all as f64;
        let first = self.first.map(|time| format!("{:.1}", millis(time)));
        let first = first.as_deref().unwrap_or("–");
        let off = match (self.over, self.under) {
            (0, 0) => "0".to_owned(),
            (over, 0) => format!("{over} lost"),
            (0, under) => format!("{under} extra"),
            (over, under) => format!("{over} lost, {under} extra"),
        };
        write!(
            f,
            "{} | {:.1} | {:.1} | {first} | {:.2} | {off} | {:.0}",
            self.name,
            percent(self.errors + self.degraded, self.answers),
            millis(self.longest),
            millis(self.others),
            millis(self.recovery),
        )?;
        match self.off_afterwards {
            0 => Ok(()),
            off => write!(f, ", then {off:+} of 100"),
        }
    }
}

/// All scenarios, in the order of the table.
#[rustfmt::skip]
pub const SCENARIOS: [&str; 39] = [
    KILLED, KILLED_ALLOW, KILLED_DENY, KILLED_LOCAL, STOPPED, STOPPED_LOCAL, SENTINEL,
    "Sentinel failover; local", MASTER, "Cluster: master killed; local", SLOTS, JOINED, CUT, HALF_OPEN,
    LATENCY, NARROW, FULL, FLUSHED, PASSWORD, EXPIRED, CLIENTS, DENIED, MOVED, TWEMPROXY, SPLIT, SPLIT_LOCAL,
    PAUSES_15, PAUSES_60, PAUSES_200, PAUSES_RANDOM, PAUSES_OF_BOTH, BUSY, STARVED, LATE_REPLIES,
    LATE_REPLIES_ENVOY, STALL, STALL_ENVOY, SLEEPS, SAVES,
];

/// Whether Redis always answers. Such scenarios are with default settings, the others with a deadline.
pub fn redis_is_there(name: &str) -> bool {
    let mut there = SCENARIOS.iter().skip_while(|other| **other != PAUSES_15);
    there.any(|other| *other == name)
}

pub const KILLED: &str = "kill -9 of Redis, restart";
pub const KILLED_ALLOW: &str = "kill -9 of Redis, restart; allow";
pub const KILLED_DENY: &str = "kill -9 of Redis, restart; deny";
pub const KILLED_LOCAL: &str = "kill -9 of Redis, restart; local";
pub const STOPPED: &str = "SIGSTOP of Redis";
pub const STOPPED_LOCAL: &str = "SIGSTOP of Redis; local";
const SENTINEL: &str = "Sentinel failover";
const MASTER: &str = "Cluster: master killed";
const SLOTS: &str = "Cluster: slots moved";
const JOINED: &str = "Cluster: node added";
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
pub const SPLIT_LOCAL: &str = "two replicas split; local";

// The machine has no time for tollgate, or Redis is slower than usual, with default settings. Redis always answers, so
// no decision may be made without it.
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

const LATE: [u64; 6] = [1, 5, 9, 11, 15, 30];

/// Runs the scenario of this name. After a semicolon stands the answer to a lost store.
pub async fn run(name: &'static str, mut plan: Plan) -> Outcome {
    let (fault, answer) = name.split_once("; ").unwrap_or((name, ""));
    if !answer.is_empty() {
        let more = ["--on-store-loss", answer].map(str::to_owned);
        plan.args.extend(more);
    }
    let case = Case {
        name,
        plan,
        timeout: match name {
            LATE_REPLIES_ENVOY | STALL_ENVOY => Some("20m"),
            _ => redis_is_there(name).then_some("1S"),
        },
    };
    let (passes, deadline) = (Fault::default(), case.plan.deadline);
    let swallows = Fault {
        swallows: true,
        ..passes
    };
    match fault {
        KILLED => {
            let fault = async |redis: &mut Redis, _: &Tollgate, lasts| {
                redis.kill();
                sleep(lasts).await;
                redis.restart();
            };
            case.alone(Redis::start(), fault).await
        }
        STOPPED => {
            let fault = async |redis: &mut Redis, _: &Tollgate, lasts| {
                redis.freeze();
                sleep(lasts).await;
                redis.thaw();
            };
            case.alone(Redis::start(), fault).await
        }
        SENTINEL => sentinel_failover(case).await,
        MASTER => cluster_master_killed(case).await,
        SLOTS => cluster_slots_moved(case).await,
        JOINED => cluster_node_added(case).await,
        CUT => {
            network(
                case,
                Fault {
                    cuts: true,
                    ..passes
                },
            )
            .await
        }
        HALF_OPEN => network(case, swallows).await,
        LATENCY => {
            let latency = deadline * 3;
            network(case, Fault { latency, ..passes }).await
        }
        NARROW => {
            let bytes_per_sec = Some(2_000);
            let fault = Fault {
                bytes_per_sec,
                ..passes
            };
            network(case, fault).await
        }
        FULL => {
            let fault = async |redis: &mut Redis, _: &Tollgate, lasts| {
                redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
                sleep(lasts).await;
                redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
            };
            case.alone(Redis::start(), fault).await
        }
        FLUSHED => {
            let fault = async |redis: &mut Redis, _: &Tollgate, lasts: Duration| {
                let until = Instant::now() + lasts;
                while Instant::now() < until {
                    redis.cli(&["SCRIPT", "FLUSH"]);
                    sleep(Duration::from_millis(20)).await;
                }
            };
            case.alone(Redis::start(), fault).await
        }
        PASSWORD => password_rotated(case).await,
        EXPIRED => certificate_expired(case).await,
        CLIENTS => too_many_clients(case).await,
        DENIED => case.alone(Redis::start(), deny).await,
        MOVED => address_moved(case).await,
        TWEMPROXY => twemproxy_killed(case).await,
        SPLIT => replicas_split(case).await,
        PAUSES_15 => paused(case, vec![Turn::millis(15, 85)]).await,
        PAUSES_60 => paused(case, vec![Turn::millis(60, 40)]).await,
        PAUSES_200 => paused(case, vec![Turn::millis(200, 50)]).await,
        PAUSES_RANDOM => paused(case, random_turns()).await,
        PAUSES_OF_BOTH => {
            // While one process is paused the other runs.
            let fault = async |redis: &mut Redis, server: &Tollgate, lasts| {
                let turns = vec![Turn::millis(40, 60)];
                let _pauses = Pauses::of(server.process_id(), turns.clone());
                sleep(Duration::from_millis(50)).await;
                let _of_redis = Pauses::of(redis.process_id(), turns);
                sleep(lasts).await;
            };
            case.alone(Redis::start(), fault).await
        }
        BUSY => {
            let fault = async |_: &mut Redis, _: &Tollgate, lasts| {
                let _others = loops(4);
                sleep(lasts).await;
            };
            case.alone(Redis::start(), fault).await
        }
        STARVED => case.alone(Redis::start(), starve).await,
        LATE_REPLIES | LATE_REPLIES_ENVOY => late_replies(case, &LATE).await,
        STALL | STALL_ENVOY => late_replies(case, &[210]).await,
        SLEEPS => {
            let fault = async |redis: &mut Redis, _: &Tollgate, lasts: Duration| {
                let until = Instant::now() + lasts;
                while Instant::now() < until {
                    redis.cli(&["DEBUG", "SLEEP", "0.03"]);
                    sleep(Duration::from_millis(970).min(lasts / 4)).await;
                }
            };
            let redis = Redis::with(&["--enable-debug-command", "yes"]);
            case.alone(redis, fault).await
        }
        SAVES => {
            let redis = Redis::with(&["--enable-debug-command", "yes"]);
            // A hundred bytes each; about a second makes a gigabyte.
            let is_short = case.plan.lasts < Duration::from_secs(2);
            let keys = if is_short { "200000" } else { "5000000" };
            redis.cli(&["DEBUG", "POPULATE", keys, "filler", "100"]);
            let fault = async |redis: &mut Redis, _: &Tollgate, lasts| {
                redis.cli(&["BGSAVE"]);
                sleep(lasts).await;
            };
            case.alone(redis, fault).await
        }
        other => panic!("no scenario is called {other}"),
    }
}

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limits: [100000000/10000years]}
  - {key: few, rate_limits: [100/10000years]}
";

const VALUES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

const CALM: Duration = Duration::from_millis(300);

const SLOWEST: usize = 20;

struct Case {
    name: &'static str,
    plan: Plan,
    timeout: Option<&'static str>,
}

impl Case {
    fn start(&self, url: &str, more: &[(&str, &str)]) -> Tollgate {
        let deadline = format!("{}ms", self.plan.deadline.as_millis());
        let builder = tollgate::with_rules(RULES).args(self.plan.args.iter().map(String::as_str));
        let mut builder = match redis_is_there(self.name) {
            true => builder.redis_by_default(url),
            false => builder.redis_at(url, &deadline),
        };
        for (name, value) in more {
            builder = builder.env(name, value);
        }
        builder.start()
    }

    /// One server and one Redis: `fault` breaks it or the server, and ends when all is mended.
    async fn alone(
        self,
        redis: Redis,
        fault: impl AsyncFnOnce(&mut Redis, &Tollgate, Duration),
    ) -> Outcome {
        let url = redis.url();
        self.at(&url, &[], redis, fault).await
    }

    /// The same, with a Redis that the server knows by this URL and more variables.
    async fn at(
        self,
        url: &str,
        more: &[(&str, &str)],
        mut redis: Redis,
        fault: impl AsyncFnOnce(&mut Redis, &Tollgate, Duration),
    ) -> Outcome {
        let server = self.start(url, more);
        let lasts = self.plan.lasts;
        let witness = redis_is_there(self.name).then(|| Witness::of(&redis));
        let mut course = self.begin(&[&server], &|| counted_in(&redis)).await;
        course.witness = witness;
        fault(&mut redis, &server, lasts).await;
        course.mended();
        if course.case.name.starts_with(KILLED) {
            course.counted_before = 0;
        }
        course.end(&|| counted_in(&redis)).await
    }

    /// Waits until all values work, and begins. The fault comes next.
    async fn begin(self, servers: &[&Tollgate], counted: &dyn Fn() -> i64) -> Course {
        let mut clients = Vec::new();
        for server in servers {
            let client = connect(server.grpc).await;
            all_work(&client).await;
            clients.push(client);
        }
        let counted_before = counted();
        let addresses: Vec<_> = servers.iter().map(|server| server.grpc).collect();
        let storm = Storm::with_timeout(&addresses, &VALUES, self.plan.period, self.timeout);
        let logs = servers.iter().map(|server| server.log().clone()).collect();
        sleep(CALM).await;
        Course {
            case: self,
            clients,
            storm,
            logs,
            counted_before,
            broken: (Instant::now(), ::tollgate::now().millis()),
            mended: None,
            witness: None,
        }
    }
}

async fn all_work(client: &Client) {
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

fn key(value: &str) -> String {
    let period = 10_000 * 31_536_000;
    let number = ::tollgate::now().secs() / period;
    format!("{{1:d1:k1:{value}}}{period}@{number}")
}

fn counted_in(redis: &Redis) -> i64 {
    let keys = VALUES.map(key);
    let all = ["MGET"].into_iter().chain(keys.iter().map(String::as_str));
    let said = redis.cli(&all.collect::<Vec<_>>());
    said.lines()
        .filter_map(|line| line.parse::<i64>().ok())
        .sum()
}

struct Course {
    case: Case,
    clients: Vec<Client>,
    storm: Storm,
    logs: Vec<Log>,
    counted_before: i64,
    /// Time of the fault, also in milliseconds since 1970.
    broken: (Instant, u64),
    mended: Option<Instant>,
    witness: Option<Witness>,
}

impl Course {
    fn mended(&mut self) {
        self.mended = Some(Instant::now());
    }

    /// Waits until all values work again, and computes the results.
    async fn end(mut self, counted: &dyn Fn() -> i64) -> Outcome {
        let (broken, broken_millis) = self.broken;
        let mended = self.mended.expect("it was mended");
        // The storm detects the recovery itself; another request would be counted.
        sleep(CALM).await;
        let patience = Instant::now() + Duration::from_secs(20);
        let mut works = false;
        while !works && Instant::now() < patience {
            works = true;
            for client in &mut self.clients {
                let reply = ask(client, "d", &[("few", "probe")]).await;
                works &= reply.is_ok_and(|reply| !is_degraded(&reply));
            }
        }
        sleep(CALM).await;
        let answers = self.storm.end().await;
        let redis_took = self.witness.map(Witness::end);
        let last_lack = answers.last_lack_after(mended).unwrap_or_default();
        let counted = counted() - self.counted_before;
        let ok = i64::try_from(answers.ok()).unwrap();
        let mut off_afterwards = 0;
        for client in &mut self.clients {
            off_afterwards += off_by(client).await;
        }
        let known = answers.first_lack(broken).filter(|known| *known < mended);
        let period = self.case.plan.period;
        let quantile = |answers: &Answers| answers.quantile(0.99, period);
        let first = known.map(|known| quantile(&answers.under_way(broken, known)));
        let losses = self
            .logs
            .iter()
            .flat_map(|log| log.moments("Redis is lost"));
        let since = |at: u64| Some(Duration::from_millis(at.checked_sub(broken_millis)?));
        let lost = losses.filter_map(since).min();
        let lost = lost.filter(|lost| broken + *lost < mended);
        let from = lost.map(|lost| broken + lost).or(known).unwrap_or(broken);
        let others = answers.between(from, mended);
        let (lacks_when_lost, waits_when_lost) = match lost {
            Some(_) => (others.lacks(), others.count(What::Error(TIMEOUT))),
            None => (0, 0),
        };
        let slowest = others.0.iter().map(|seen| (seen.at - broken, seen.clone()));
        let mut slowest: Vec<_> = slowest.collect();
        slowest.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.took));
        slowest.truncate(SLOWEST);
        Outcome {
            name: self.case.name,
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
            recovery: last_lack.max(answers.recovery(mended).unwrap_or(Duration::MAX)),
            off_afterwards,
            redis_took,
        }
    }
}

async fn off_by(client: &mut Client) -> i64 {
    let value = format!("{:?}", Instant::now());
    let mut admitted = 0;
    for _ in 0..130 {
        admitted += i64::from(is_ok(&ask(client, "d", &[("few", &value)]).await));
    }
    admitted - 100
}

async fn sentinel_failover(case: Case) -> Outcome {
    let mut watched = Watched::start();
    let server = case.start(&watched.url(), &[]);
    let count = |watched: &Watched| counted_in(&watched.servers[watched.master()]);
    let mut course = case.begin(&[&server], &|| count(&watched)).await;
    watched.servers[0].kill();
    eventually("there is a new master", async || {
        watched.master() == 1 && !is_replica(&watched.servers[1])
    })
    .await;
    course.mended();
    course.end(&|| count(&watched)).await
}

fn counted_in_cluster(cluster: &Cluster) -> i64 {
    VALUES.iter().map(|value| cluster.value(&key(value))).sum()
}

async fn cluster_master_killed(case: Case) -> Outcome {
    let mut cluster = Cluster::start(1);
    let server = case.start(&cluster.url(), &[]);
    let mut course = case
        .begin(&[&server], &|| counted_in_cluster(&cluster))
        .await;
    let master = cluster.owner(&key(VALUES[0]));
    course.broken = (Instant::now(), ::tollgate::now().millis());
    cluster.nodes[master].kill();
    eventually("a replica was promoted", async || {
        let nodes = cluster.nodes.iter().enumerate();
        let masters = nodes.filter(|(at, node)| *at != master && !is_replica(node));
        masters.count() == 3
    })
    .await;
    course.mended();
    course.end(&|| counted_in_cluster(&cluster)).await
}

async fn cluster_slots_moved(case: Case) -> Outcome {
    let cluster = Cluster::start(0);
    let server = case.start(&cluster.url(), &[]);
    let counted = || counted_in_cluster(&cluster);
    let mut course = case.begin(&[&server], &counted).await;
    move_values(&cluster, |from| (from + 1) % 3).await;
    course.mended();
    course.end(&counted).await
}

async fn cluster_node_added(case: Case) -> Outcome {
    let mut cluster = Cluster::start(0);
    let server = case.start(&cluster.url(), &[]);
    let mut course = case
        .begin(&[&server], &|| counted_in_cluster(&cluster))
        .await;
    cluster.add_node();
    move_values(&cluster, |_| 3).await;
    course.mended();
    course.end(&|| counted_in_cluster(&cluster)).await
}

async fn move_values(cluster: &Cluster, to: impl Fn(usize) -> usize) {
    for value in VALUES {
        let slot = cluster.nodes[0].number(&["CLUSTER", "KEYSLOT", &key(value)]);
        let slot = u16::try_from(slot).unwrap();
        let from = cluster.owner(&key(value));
        cluster.migrate(from, to(from), slot, slot);
        // The storm runs on this thread too.
        tokio::task::yield_now().await;
    }
}

async fn network(case: Case, fault: Fault) -> Outcome {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let fault = async |_: &mut Redis, _: &Tollgate, lasts| {
        proxy.set(fault);
        sleep(lasts).await;
        proxy.heal();
    };
    case.at(&proxy.url(), &[], redis, fault).await
}

async fn password_rotated(case: Case) -> Outcome {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "first-sesame\n").unwrap();
    let mut redis = Redis::with_password("first-sesame");
    let path = file.to_str().unwrap();
    let server = case.start(&redis.url(), &[("TOLLGATE_REDIS_AUTH_FILE", path)]);
    let lasts = case.plan.lasts;
    let mut course = case.begin(&[&server], &|| counted_in(&redis)).await;
    redis.cli(&["CONFIG", "SET", "requirepass", "second-sesame"]);
    redis.password = Some("second-sesame".to_owned());
    // Existing connections would stay authenticated.
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    sleep(lasts).await;
    fs::write(&file, "second-sesame\n").unwrap();
    course.mended();
    let outcome = course.end(&|| counted_in(&redis)).await;
    let pages = server.page("/stats") + &server.page("/healthcheck?verbose");
    let reported = server.log().text() + &pages;
    assert!(!reported.contains("sesame"), "{reported}");
    outcome
}

async fn certificate_expired(case: Case) -> Outcome {
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
    let fault = async |redis: &mut Redis, _: &Tollgate, lasts| {
        let show = |cert: &str, key: &str| {
            redis.cli(&["CONFIG", "SET", "tls-cert-file", cert, "tls-key-file", key]);
        };
        show(&bad_cert, &bad_key);
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        sleep(lasts).await;
        show(&good_cert, &good_key);
    };
    case.at(&url, &tls, redis, fault).await
}

async fn replicas_split(case: Case) -> Outcome {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let [near, far] = [redis.url(), proxy.url()].map(|url| case.start(&url, &[]));
    let lasts = case.plan.lasts;
    let counted = || counted_in(&redis);
    let mut course = case.begin(&[&near, &far], &counted).await;
    proxy.set(Fault {
        swallows: true,
        ..Fault::default()
    });
    sleep(lasts).await;
    proxy.heal();
    course.mended();
    course.end(&counted).await
}

async fn paused(case: Case, turns: Vec<Turn>) -> Outcome {
    let fault = async |_: &mut Redis, server: &Tollgate, lasts| {
        let _pauses = Pauses::of(server.process_id(), turns);
        sleep(lasts).await;
    };
    case.alone(Redis::start(), fault).await
}

/// Turns of random lengths, equal in each run.
fn random_turns() -> Vec<Turn> {
    let mut random = Random::new(20_261_122);
    let turn = |_| {
        let longest = [20, 80, 300][usize::try_from(random.below(3)).unwrap()];
        Turn::millis(1 + random.below(longest), 5 + random.below(100))
    };
    (0..100).map(turn).collect()
}

/// A worker that reads a large message does nothing else meanwhile.
async fn starve(_: &mut Redis, server: &Tollgate, lasts: Duration) {
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
}

/// Delays replies, each by the next of the milliseconds in `late`, in turn.
async fn late_replies(case: Case, late: &[u64]) -> Outcome {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let fault = async |_: &mut Redis, _: &Tollgate, lasts: Duration| {
        let until = Instant::now() + lasts;
        for late in late.iter().cycle() {
            if Instant::now() >= until {
                break;
            }
            proxy.hold_next_reply(Duration::from_millis(*late));
            sleep(Duration::from_millis(100 + 2 * late)).await;
        }
    };
    case.at(&proxy.url(), &[], redis, fault).await
}

/// Connections that leave a server with `maxclients` no room for another one.
pub fn fill(redis: &Redis) -> Vec<TcpStream> {
    let mut idle: Vec<TcpStream> = Vec::new();
    wait_until("the server is full", || {
        let stream = TcpStream::connect(redis.address()).unwrap();
        let short = Some(Duration::from_millis(50));
        stream.set_read_timeout(short).unwrap();
        let mut first = [0];
        // It says so by itself, and nothing to a client for which it has room.
        let is_refused = (&stream).read(&mut first).is_ok_and(|read| read == 1);
        idle.push(stream);
        is_refused
    });
    idle
}

async fn too_many_clients(case: Case) -> Outcome {
    let redis = Redis::with(&["--maxclients", "16"]);
    let proxy = Proxy::to(redis.address());
    let cuts = Fault {
        cuts: true,
        ..Fault::default()
    };
    let fault = async |redis: &mut Redis, _: &Tollgate, lasts| {
        // Other clients take the places of tollgate.
        proxy.set(cuts);
        let _idle = fill(redis);
        proxy.heal();
        sleep(lasts).await;
    };
    case.at(&proxy.url(), &[], redis, fault).await
}

async fn deny(redis: &mut Redis, server: &Tollgate, lasts: Duration) {
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
    sleep(lasts).await;
    change("+");
}

/// The former master stays reachable over the connections that stand.
async fn address_moved(case: Case) -> Outcome {
    let (old, new) = (Redis::start(), Redis::start());
    let follow = |redis: &Redis, master: &Redis| {
        redis.cli(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    };
    follow(&new, &old);
    let info = |redis: &Redis| redis.cli(&["INFO", "replication"]);
    eventually("the replica follows", async || {
        info(&new).contains("master_link_status:up")
    })
    .await;
    let proxy = Proxy::to(old.address());
    let server = case.start(&proxy.url(), &[]);
    let mut course = case.begin(&[&server], &|| counted_in(&old)).await;
    // As at a planned switch: no write is lost between the two.
    old.cli(&["CLIENT", "PAUSE", "1000", "WRITE"]);
    let offset = |redis: &Redis, name: &str| {
        let info = info(redis);
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

async fn twemproxy_killed(case: Case) -> Outcome {
    let both = [Redis::start(), Redis::start()];
    let mut proxy = Nutcracker::before(&[&both[0], &both[1]]);
    let server = case.start(&proxy.url(), &[]);
    let lasts = case.plan.lasts;
    let counted = || both.iter().map(counted_in).sum();
    let mut course = case.begin(&[&server], &counted).await;
    proxy.kill();
    sleep(lasts).await;
    proxy.restart();
    course.mended();
    course.end(&counted).await
}

#[track_caller]
pub fn await_page(server: &Tollgate, path: &str, text: &str) {
    wait_until(text, || server.page(path).contains(text));
}
