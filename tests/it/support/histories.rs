//! Histories of calls: many clients send requests to several replicas at once, every call is logged with the times
//! between which it was decided, and a checker searches for answers that no order of the calls explains.
//!
//! All windows last at least a hundred years, so that no decision depends on a clock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ::tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor,
    service::ratelimit::v3::RateLimitResponse,
};
use serde_json::json;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::sleep,
};
use tonic::Status;

use super::{
    ask::{Client, connect, descriptor, is_ok, request, send},
    cluster::Cluster,
    http,
    redis::Redis,
    tollgate::{self, Tollgate},
};

/// Every limit except that of `client`.
const LIMIT: i64 = 100;
const CLIENT_LIMIT: i64 = 30;

/// Clients of one shared counter: the last of them gets the hits that the others leave.
const CLIENTS_OF_ONE: usize = 4;

/// No key may be without an end for longer.
const MENDED_WITHIN: Duration = Duration::from_secs(60);

/// How long replicas may still refuse after another replica has given hits back.
const STALE: Duration = Duration::from_secs(1);

/// A caller gives back the hits of the call that was admitted so many admitted calls ago.
const KEPT: usize = 6;

const RULES: &str = "
domain: d
descriptors:
  - { key: all, rate_limits: [100/10000years] }
  - { key: admitted, count: admitted, rate_limits: [100/10000years] }
  - { key: first_hit, count: admitted, rate_limit: { unit: year, unit_multiplier: 10000, requests_per_unit: 100, window: first_hit } }
  - { key: sliding_window, count: admitted, rate_limit: { unit: year, unit_multiplier: 10000, requests_per_unit: 100, algorithm: sliding_window } }
  - { key: sliding_log, count: admitted, rate_limit: { unit: year, unit_multiplier: 10000, requests_per_unit: 100, algorithm: sliding_log } }
  - { key: token_bucket, count: admitted, rate_limit: { unit: year, unit_multiplier: 100, requests_per_unit: 100, algorithm: token_bucket } }
  - { key: several, count: admitted, rate_limits: [1000000/4294967295seconds, 100/10000years] }
  - { key: client, count: admitted, rate_limits: [30/4294967295seconds] }
  - { key: shared, count: admitted, rate_limits: [100/10000years] }
";

/// Requests of one kind have these keys, each in its own descriptor.
#[derive(Debug)]
struct Kind {
    keys: &'static [&'static str],
    /// Whether refused requests are charged too.
    charges_refused: bool,
    /// Whether admitted hits are sometimes given back.
    gives_back: bool,
    /// Whether operators reset its counters, through the port for that of one of the replicas.
    is_reset: bool,
    most_hits: u64,
}

const KINDS: [Kind; 13] = [
    Kind {
        charges_refused: true,
        ..Kind::plain(&["all"])
    },
    Kind::plain(&["admitted"]),
    Kind::lively(&["admitted"]),
    Kind::lively(&["first_hit"]),
    Kind::lively(&["sliding_window"]),
    Kind::lively(&["sliding_log"]),
    Kind::lively(&["token_bucket"]),
    Kind::lively(&["several"]),
    Kind::plain(&["client", "shared"]),
    Kind::reset(&["admitted"]),
    Kind::reset(&["sliding_log"]),
    Kind::reset(&["token_bucket"]),
    Kind::reset(&["several"]),
];

impl Kind {
    const fn plain(keys: &'static [&'static str]) -> Self {
        Self {
            keys,
            charges_refused: false,
            gives_back: false,
            is_reset: false,
            most_hits: 1,
        }
    }

    const fn reset(keys: &'static [&'static str]) -> Self {
        Self {
            is_reset: true,
            most_hits: 3,
            ..Self::plain(keys)
        }
    }

    const fn lively(keys: &'static [&'static str]) -> Self {
        Self {
            gives_back: true,
            most_hits: 3,
            ..Self::plain(keys)
        }
    }
}

/// The store of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Memory,
    Redis,
    /// With a separate Redis for limits per second.
    TwoRedis,
    Cluster,
}

impl Place {
    /// Whether one request may be judged on several stores, so that a charge may be visible that is taken back.
    fn is_several(self) -> bool {
        matches!(self, Self::TwoRedis | Self::Cluster)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::TwoRedis => "two-redis",
            Self::Cluster => "cluster",
        })
    }
}

/// The length of a history.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub place: Place,
    pub calls: usize,
    pub clients: usize,
    pub seed: u64,
    /// Whether Redis servers get faults repeatedly. Some lose all counts, of all servers.
    pub has_faults: bool,
}

/// Of so many calls, one is followed by a reset.
const CALLS_PER_RESET: u64 = 40;

/// How long after the end of a call its commands may still be carried out: longer than any pause of Redis.
const LATE: Duration = Duration::from_secs(1);

const BETWEEN_FAULTS: Duration = Duration::from_millis(200);

/// How long a Redis answers everybody before the next fault.
const CALM: Duration = Duration::from_millis(600);

/// How long a paused Redis stays paused, in milliseconds. Calls wait for 50.
const STOPPED_FOR: Range<u64> = 250..450;

/// Of so many rounds of faults, one loses all counts.
const LOSS_OF: u64 = 3;

/// A caller without a decision waits this long before its next call.
const AFTER_NONE: Duration = Duration::from_millis(20);

/// The replicas, and their stores.
#[derive(Debug)]
struct Servers {
    all: Vec<Tollgate>,
    redis: Vec<Redis>,
    cluster: Option<Cluster>,
}

impl Servers {
    fn start(place: Place, has_faults: bool) -> Self {
        let mut redis = Vec::new();
        let mut cluster = None;
        let (count, args) = match place {
            Place::Memory => (1, vec!["--workers".to_owned(), "8".to_owned()]),
            Place::Redis => {
                redis.push(Redis::start());
                (4, vec!["--redis-url".to_owned(), redis[0].url()])
            }
            Place::TwoRedis => {
                redis.extend([Redis::start(), Redis::start()]);
                let [url, per_second] = [redis[0].url(), redis[1].url()];
                let args = ["--redis-url", &url, "--redis-per-second"];
                let args = [&args[..], &["--redis-per-second-url", &per_second]].concat();
                (4, args.into_iter().map(str::to_owned).collect())
            }
            Place::Cluster => {
                let started = cluster.insert(Cluster::start(0));
                (4, vec!["--redis-url".to_owned(), started.url()])
            }
        };
        let start = |_| {
            // A busy machine makes Redis slow, and calls without a decision prove nothing: they are wanted only where
            // Redis gets faults.
            let patience = if has_faults { "50ms" } else { "10s" };
            let builder = tollgate::with_rules(RULES).args(args.iter().map(String::as_str));
            let builder = match place {
                Place::Memory => builder,
                _ => builder.args(["--workers", "2", "--redis-timeout", patience]),
            };
            builder.start()
        };
        Self {
            all: (0..count).map(start).collect(),
            redis,
            cluster,
        }
    }

    fn all_redis(&self) -> Vec<&Redis> {
        let nodes = self.cluster.iter().flat_map(|cluster| &cluster.nodes);
        self.redis.iter().chain(nodes).collect()
    }

    /// Gives one Redis after the other a fault. Each fault is repaired; only a loss loses counts.
    async fn fail(&self, seed: u64, caller: &Caller) {
        let mut random = Random(seed);
        let all = self.all_redis();
        let count = u64::try_from(all.len()).unwrap();
        let mut any = |below: u64| random.below(below);
        for round in 0_u64.. {
            let redis = all[usize::try_from(any(count)).unwrap()];
            let Range { start, end } = STOPPED_FOR;
            let since = caller.nanos();
            redis.freeze();
            sleep(Duration::from_millis(start + any(end - start))).await;
            redis.thaw();
            sleep(BETWEEN_FAULTS).await;
            redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            sleep(BETWEEN_FAULTS).await;
            let fault = since..caller.nanos();
            caller.log.lock().unwrap().faults.push(fault);
            sleep(CALM).await;
            redis.cli(&["SCRIPT", "FLUSH"]);
            sleep(BETWEEN_FAULTS).await;
            if round.is_multiple_of(LOSS_OF) {
                caller.lose(|| {
                    for redis in &all {
                        redis.cli(&["FLUSHALL"]);
                    }
                });
            }
        }
    }

    fn thaw(&self) {
        for redis in self.all_redis() {
            redis.thaw();
        }
    }

    /// A connection to one of the replicas.
    async fn client(&self, number: usize) -> Client {
        connect(self.all[number % self.all.len()].grpc).await
    }

    /// How many keys of all servers never end.
    fn keys_without_end(&self) -> i64 {
        let masters = self.all_redis();
        masters.iter().map(|redis| redis.keys_without_end()).sum()
    }
}

/// One call, decided between `sent` and `received`, in nanoseconds since the beginning.
#[derive(Clone, Copy, Debug)]
struct Call {
    sent: u64,
    received: u64,
    /// Negative for hits given back.
    hits: i64,
    /// `None` if unknown.
    admitted: Option<bool>,
    /// From the status of the counter.
    remaining: u32,
}

impl Call {
    /// Until when it may have been carried out. Redis may still have the command of a call that no longer waits.
    fn latest(&self) -> u64 {
        let late = match self.admitted {
            Some(_) => 0,
            None => u64::try_from(LATE.as_nanos()).unwrap(),
        };
        self.received.saturating_add(late)
    }
}

/// The identity of a counter, which has one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Counter {
    /// The kind of request, and the index of a key in it.
    kind: usize,
    key: usize,
    value: usize,
}

impl Counter {
    fn name(self) -> &'static str {
        KINDS[self.kind].keys[self.key]
    }

    fn text(self) -> String {
        format!("{}.{}", self.kind, self.value)
    }

    fn limit(self) -> i64 {
        if self.name() == "client" {
            CLIENT_LIMIT
        } else {
            LIMIT
        }
    }
}

/// A request: it is charged to all of its counters or to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    kind: usize,
    value: usize,
}

impl Asked {
    fn is_shared(&self) -> bool {
        KINDS[self.kind].keys.len() > 1
    }

    fn counters(self) -> impl Iterator<Item = Counter> {
        let Self { kind, value } = self;
        KINDS[kind].keys.iter().enumerate().map(move |(key, name)| {
            let value = if *name == "shared" {
                value / CLIENTS_OF_ONE
            } else {
                value
            };
            Counter { kind, key, value }
        })
    }

    fn descriptors(self, hits: i64) -> Vec<RateLimitDescriptor> {
        let one = |counter: Counter| RateLimitDescriptor {
            hits_addend: Some(hits.unsigned_abs()),
            is_negative_hits: hits < 0,
            ..descriptor(&[(counter.name(), &counter.text())])
        };
        self.counters().map(one).collect()
    }
}

/// A time between whose ends a counter lost all hits that it held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Zeroing {
    sent: u64,
    received: u64,
}

impl Zeroing {
    const NEVER: Self = Self {
        sent: u64::MAX,
        received: u64::MAX,
    };
}

/// All that happened in a history.
#[derive(Debug, Default)]
struct Log {
    calls: Vec<(Asked, Call)>,
    /// Of one counter.
    resets: Vec<(Asked, Zeroing)>,
    /// Of all counters.
    losses: Vec<Zeroing>,
    /// Times in which a Redis did not answer all replicas. What these knew to be full then stays full for them.
    faults: Vec<Range<u64>>,
}

/// Makes calls and logs them.
#[derive(Clone, Debug)]
struct Caller {
    began: Instant,
    log: Arc<Mutex<Log>>,
    /// How many losses have begun or ended.
    losses: Arc<AtomicUsize>,
}

impl Caller {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            log: Arc::default(),
            losses: Arc::default(),
        }
    }

    /// Hits that are admitted now are held until this number changes. `None` while counts are lost.
    fn era(&self) -> Option<usize> {
        let losses = self.losses.load(Relaxed);
        losses.is_multiple_of(2).then_some(losses)
    }

    fn lose(&self, lose: impl FnOnce()) {
        self.losses.fetch_add(1, Relaxed);
        let sent = self.nanos();
        lose();
        let received = self.nanos();
        self.log
            .lock()
            .unwrap()
            .losses
            .push(Zeroing { sent, received });
        self.losses.fetch_add(1, Relaxed);
    }

    /// Resets the counters of `asked`, and returns whether that was done. A reset without an answer may have happened,
    /// now or later.
    async fn reset(&self, port: SocketAddr, asked: Asked) -> bool {
        let sent = self.nanos();
        let is_done = reset(port, asked).await;
        let received = if is_done { self.nanos() } else { u64::MAX };
        let reset = Zeroing { sent, received };
        self.log.lock().unwrap().resets.push((asked, reset));
        is_done
    }

    async fn call(&self, client: &mut Client, asked: Asked, hits: i64) -> Option<bool> {
        let message = request("d", asked.descriptors(hits));
        let sent = self.nanos();
        let reply = send(client, message).await;
        let call = Call {
            sent,
            received: self.nanos(),
            hits,
            admitted: reply.is_ok().then(|| is_ok(&reply)),
            remaining: remaining(&reply),
        };
        self.log.lock().unwrap().calls.push((asked, call));
        call.admitted
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }
}

/// Resets the counters of `asked`, through the debug port at `port`. Returns whether that was done.
async fn reset(port: SocketAddr, asked: Asked) -> bool {
    let descriptors: Vec<_> = asked
        .counters()
        .map(|counter| {
            let entry = json!({ "key": counter.name(), "value": counter.text() });
            json!({ "entries": [entry] })
        })
        .collect();
    let body = json!({ "domain": "d", "descriptors": descriptors }).to_string();
    let posted = spawn_blocking(move || http::post_json(port, "/counters/reset", &body)).await;
    posted
        .expect("it does not panic")
        .is_ok_and(|reply| reply.status == 200)
}

fn remaining(reply: &Result<RateLimitResponse, Status>) -> u32 {
    let statuses = reply.as_ref().map(|reply| &reply.statuses);
    let first = statuses.ok().and_then(|statuses| statuses.first());
    first.map_or(0, |status| status.limit_remaining)
}

/// Numbers that depend only on the seed: splitmix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The results of a history.
#[derive(Debug)]
pub struct Outcome {
    pub calls: usize,
    pub admitted: usize,
    /// Calls without a decision.
    pub unknown: usize,
    pub counters: usize,
    pub resets: usize,
    /// How often all counts were lost.
    pub losses: usize,
    /// Answers that no order of the calls explains.
    pub violations: Vec<String>,
}

/// Runs a history and checks it.
pub async fn run(plan: Plan) -> Outcome {
    let servers = Servers::start(plan.place, plan.has_faults);
    let caller = Caller::new();
    let next = Arc::new(AtomicUsize::new(0));
    let mut asking = JoinSet::new();
    for number in 0..plan.clients {
        let mut client = servers.client(number).await;
        let mut other = servers.client(number + 1).await;
        let port = servers.all[(number + 2) % servers.all.len()].debug;
        let (caller, next) = (caller.clone(), next.clone());
        let mut random = Random(plan.seed.wrapping_add(number as u64));
        asking.spawn(async move {
            let mut kept = VecDeque::new();
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= plan.calls {
                    return;
                }
                let asked = asked(number);
                let kind = &KINDS[asked.kind];
                let hits = 1 + i64::try_from(random.below(kind.most_hits)).unwrap();
                let era = caller.era();
                let admitted = caller.call(&mut client, asked, hits).await;
                if admitted.is_none() {
                    sleep(AFTER_NONE).await;
                }
                let is_held = admitted == Some(true) && era.is_some() && era == caller.era();
                if kind.gives_back && is_held && random.below(3) == 0 {
                    kept.push_back((era, asked, hits));
                }
                if kept.len() > KEPT
                    && let Some((era, asked, hits)) = kept.pop_front()
                    && era == caller.era()
                {
                    caller.call(&mut other, asked, -hits).await;
                }
                if kind.is_reset && random.below(CALLS_PER_RESET) == 0 {
                    caller.reset(port, asked).await;
                }
            }
        });
    }
    tokio::select! {
        () = servers.fail(plan.seed, &caller), if plan.has_faults => unreachable!("it has no end"),
        () = async {
            while let Some(ended) = asking.join_next().await {
                ended.expect("it does not panic");
            }
        } => servers.thaw(),
    }
    let mut violations = fill_up(&servers, &caller, plan).await;
    let mended_by = Instant::now() + MENDED_WITHIN;
    while servers.keys_without_end() > 0 && Instant::now() < mended_by {
        sleep(AFTER_NONE).await;
    }
    let without_end = servers.keys_without_end();
    if without_end > 0 {
        violations.push(format!("{without_end} keys never end"));
    }
    let log = caller.log.lock().unwrap();
    violations.extend(check(&log, plan));
    let count = |pick: fn(&Call) -> bool| log.calls.iter().filter(|(_, call)| pick(call)).count();
    Outcome {
        calls: log.calls.len(),
        admitted: count(|call| call.hits > 0 && call.admitted == Some(true)),
        unknown: count(|call| call.admitted.is_none()),
        counters: by_counter(&log.calls).len(),
        resets: log.resets.len(),
        losses: log.losses.len(),
        violations,
    }
}

/// The request with this number: at any time all clients use a few counters of each kind, and move on when those are
/// full.
fn asked(number: usize) -> Asked {
    /// Calls of one kind and value, before its counter is full and after.
    const CALLS: usize = 180;
    let kind = number % KINDS.len();
    let number = number / KINDS.len();
    let round = number / CALLS;
    let value = if KINDS[kind].keys.len() > 1 {
        round * CLIENTS_OF_ONE + number % (CLIENTS_OF_ONE - 1)
    } else {
        round
    };
    Asked { kind, value }
}

/// Sends requests until every counter that charges admitted hits is full. Returns violations of those that never fill
/// up.
async fn fill_up(servers: &Servers, caller: &Caller, plan: Plan) -> Vec<String> {
    let mut clients = Vec::new();
    for number in 0..servers.all.len() {
        clients.push(servers.client(number).await);
    }
    let mut reset = BTreeSet::new();
    for (asked, _) in &caller.log.lock().unwrap().resets {
        reset.insert(*asked);
    }
    let answered_by = Instant::now() + MENDED_WITHIN;
    for (number, asked) in reset.into_iter().enumerate() {
        let port = servers.all[number % servers.all.len()].debug;
        // A Redis with a fault does not answer at first, and nobody knows what the counter holds then.
        while !caller.reset(port, asked).await {
            if Instant::now() > answered_by {
                return vec![format!("the reset of {asked:?} has no answer")];
            }
            sleep(AFTER_NONE).await;
        }
    }
    // Every cache knows of the resets then.
    sleep(STALE).await;
    let mut rest = rest(caller);
    let mut violations = Vec::new();
    let mut requests: BTreeSet<_> = (0..plan.calls).map(asked).collect();
    let shared: Vec<_> = requests.iter().copied().filter(Asked::is_shared).collect();
    requests.extend(shared.into_iter().map(|Asked { kind, value }| Asked {
        kind,
        value: value / CLIENTS_OF_ONE * CLIENTS_OF_ONE + CLIENTS_OF_ONE - 1,
    }));
    for asked in requests {
        if KINDS[asked.kind].charges_refused {
            continue;
        }
        let patience = Instant::now() + 2 * STALE;
        for tries_before in 0.. {
            let left = asked.counters().map(|counter| {
                let new = Some(counter.limit());
                *rest.entry(counter).or_insert(new)
            });
            let left: Option<Vec<i64>> = left.collect();
            let Some(left) = left else { break };
            let is_full = left.contains(&0);
            // No call may be admitted by a full counter: one attempt at each replica.
            let tries = if is_full { clients.len() } else { 1 };
            for client in clients.iter_mut().take(tries) {
                let admitted = caller.call(client, asked, 1).await;
                for counter in asked.counters() {
                    let left = rest.get_mut(&counter).expect("it was asked for before");
                    *left = left.and_then(|left| Some(left - i64::from(admitted?)));
                }
            }
            clients.rotate_left(1);
            if is_full {
                break;
            }
            if tries_before > 10 * LIMIT && Instant::now() > patience {
                violations.push(format!("{asked:?} is refused with {left:?} left"));
                break;
            }
        }
    }
    violations
}

/// The rest of each counter; `None` if unknown.
fn rest(caller: &Caller) -> BTreeMap<Counter, Option<i64>> {
    let log = caller.log.lock().unwrap();
    let zeroings = zeroings(&log);
    let counters = by_counter(&log.calls).into_iter();
    let rest = counters.map(|(counter, calls)| {
        let last = zeroings.get(&counter).and_then(|all| all.last().copied());
        let last = last.unwrap_or_default();
        let taken = calls.iter().map(|call| match call.admitted {
            // Refunds are always accepted.
            _ if call.latest() < last.sent => Some(0),
            Some(is_admitted) if is_admitted || call.hits < 0 => {
                (call.sent >= last.received).then_some(call.hits)
            }
            Some(_) => Some(0),
            None => None,
        });
        let taken: Option<i64> = taken.sum();
        (counter, taken.map(|taken| counter.limit() - taken))
    });
    rest.collect()
}

/// The times at which each counter lost its hits, in order and apart from each other.
fn zeroings(log: &Log) -> BTreeMap<Counter, Vec<Zeroing>> {
    let mut all: BTreeMap<Counter, Vec<Zeroing>> = BTreeMap::new();
    for (asked, reset) in &log.resets {
        for counter in asked.counters() {
            all.entry(counter).or_default().push(*reset);
        }
    }
    if !log.losses.is_empty() {
        for counter in by_counter(&log.calls).into_keys() {
            all.entry(counter).or_default().extend(&log.losses);
        }
    }
    for zeroings in all.values_mut() {
        zeroings.sort_unstable();
        zeroings.dedup_by(|later, earlier| {
            let is_one = later.sent <= earlier.received;
            if is_one {
                earlier.received = earlier.received.max(later.received);
            }
            is_one
        });
    }
    all
}

fn by_counter(log: &[(Asked, Call)]) -> BTreeMap<Counter, Vec<Call>> {
    let mut calls: BTreeMap<Counter, Vec<Call>> = BTreeMap::new();
    for (asked, call) in log {
        for counter in asked.counters() {
            calls.entry(counter).or_default().push(*call);
        }
    }
    calls
}

/// Answers that no order of the calls explains.
fn check(log: &Log, plan: Plan) -> Vec<String> {
    let zeroings = zeroings(log);
    let sees_pending = plan.place.is_several();
    let counters: BTreeMap<Counter, Account> = by_counter(&log.calls)
        .into_iter()
        .map(|(counter, calls)| {
            let zeroings = zeroings.get(&counter).map_or(&[][..], Vec::as_slice);
            (counter, Account::new(counter, calls, zeroings))
        })
        .collect();
    let mut violations = Vec::new();
    for (counter, account) in &counters {
        violations.extend(account.too_much(*counter, sees_pending));
        if !sees_pending && account.segments.len() == 1 {
            violations.extend(account.told_twice(*counter));
        }
    }
    for (asked, call) in &log.calls {
        if call.admitted != Some(false) || call.hits < 0 {
            continue;
        }
        let knows_losses = !log
            .faults
            .iter()
            .any(|fault| call.received >= fault.start && call.sent <= fault.end);
        let is_explained = asked.counters().any(|counter| {
            let others = counters[&counter].most(call, sees_pending, knows_losses);
            others + call.hits > counter.limit()
        });
        if !is_explained {
            let named: Vec<_> = asked.counters().collect();
            let lost: Vec<_> = named
                .iter()
                .flat_map(|counter| &counters[counter].segments)
                .map(|segment| segment.zeroing)
                .collect();
            violations.push(format!(
                "{named:?}, lost at {lost:?}: {call:?} was refused with room left"
            ));
        }
    }
    violations
}

/// The calls of one counter, in the orders needed by the checks.
#[derive(Debug)]
struct Account {
    calls: Vec<Call>,
    charges_refused: bool,
    /// The times from one zeroing on; the first is the beginning.
    segments: Vec<Segment>,
}

/// The calls that a counter may hold after a zeroing.
#[derive(Debug)]
struct Segment {
    zeroing: Zeroing,
    /// Charged hits by their sending time, as running sums.
    charged: Sums,
    /// Hits of all calls, by sending time and by answer time.
    sent: Sums,
    received: Sums,
    /// Hits given back after the zeroing, by answer time.
    given: Sums,
}

/// Running sums in the order of time.
#[derive(Debug)]
struct Sums(Vec<(u64, i64)>);

impl Sums {
    fn new(amounts: impl Iterator<Item = (u64, i64)>) -> Self {
        let mut all: Vec<_> = amounts.collect();
        all.sort_unstable();
        let mut sum = 0;
        for (_, amount) in &mut all {
            sum += *amount;
            *amount = sum;
        }
        Self(all)
    }

    /// The sum of all amounts before `time`.
    fn before(&self, time: u64) -> i64 {
        let count = self.0.partition_point(|(at, _)| *at < time);
        count.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

impl Segment {
    fn new(zeroing: Zeroing, calls: &[Call], charges_refused: bool) -> Self {
        let is_charged =
            |call: &&Call| call.hits > 0 && (charges_refused || call.admitted != Some(false));
        let may_count = |call: &&Call| call.latest() >= zeroing.sent;
        let asks = || calls.iter().filter(may_count).filter(|call| call.hits > 0);
        let gives = calls.iter().filter(|call| {
            call.hits < 0 && call.admitted.is_some() && call.sent >= zeroing.received
        });
        Self {
            zeroing,
            charged: Sums::new(asks().filter(is_charged).map(|call| (call.sent, call.hits))),
            sent: Sums::new(asks().map(|call| (call.sent, call.hits))),
            received: Sums::new(asks().map(|call| (call.received, call.hits))),
            given: Sums::new(gives.map(|call| (call.received, -call.hits))),
        }
    }
}

impl Account {
    fn new(counter: Counter, calls: Vec<Call>, zeroings: &[Zeroing]) -> Self {
        let charges_refused = KINDS[counter.kind].charges_refused;
        let begin = Zeroing::default();
        let segments = std::iter::once(&begin).chain(zeroings);
        Self {
            charges_refused,
            segments: segments
                .map(|zeroing| Segment::new(*zeroing, &calls, charges_refused))
                .collect(),
            calls,
        }
    }

    /// The most hits that may have been counted, without `call` itself, while it was decided. Unless the replica
    /// `knows_losses`, it may go by what it knew at any time before.
    fn most(&self, call: &Call, sees_pending: bool, knows_losses: bool) -> i64 {
        let stale = u64::try_from(STALE.as_nanos()).unwrap();
        let seen = match knows_losses {
            true => call.sent.saturating_sub(stale),
            false => 0,
        };
        let own = if self.charges_refused { call.hits } else { 0 };
        // The last zeroing that it certainly saw, and those that it perhaps saw.
        let is_seen = |segment: &&Segment| segment.zeroing.received <= seen;
        let first = self.segments.iter().filter(is_seen).count().max(1) - 1;
        let perhaps = self.segments[first..].iter();
        let perhaps = perhaps.take_while(|segment| segment.zeroing.sent <= call.received);
        let most = perhaps.map(|segment| {
            let charged = segment.charged.before(call.received) - own;
            let given = segment.given.before(seen);
            // Calls under way at that time may have been charged and taken back.
            let pending = if sees_pending {
                segment.sent.before(call.received) - segment.received.before(call.sent) - call.hits
            } else {
                0
            };
            charged + pending - given
        });
        most.max().expect("all calls come after the beginning")
    }

    /// Times at which more hits were certainly admitted and not given back than the limit allows.
    fn too_much(&self, counter: Counter, sees_pending: bool) -> Option<String> {
        (0..self.segments.len()).find_map(|index| {
            let since = self.segments[index].zeroing;
            let until = self.segments.get(index + 1);
            let until = until.map_or(Zeroing::NEVER, |segment| segment.zeroing);
            let changes = self.calls.iter().filter_map(|call| {
                let may_count = call.latest() >= since.sent && call.sent <= until.received;
                let does_count = call.sent >= since.received && call.received <= until.sent;
                let is_charged = call.admitted == Some(true);
                if call.hits < 0 {
                    may_count.then_some((call.sent.max(since.sent), call.hits))
                } else if does_count {
                    is_charged.then_some((call.received, call.hits))
                } else {
                    // It may have been charged before the zeroing, and taken back after it.
                    let is_taken_back = sees_pending && may_count && !is_charged;
                    is_taken_back.then_some((since.sent, -call.hits))
                }
            });
            let sums = Sums::new(changes);
            let most = sums.0.iter().map(|(_, sum)| *sum).max()?;
            (most > counter.limit()).then(|| format!("{counter:?}: {most} were admitted"))
        })
    }

    /// If each call takes one hit and none is given back, no two admitted calls may report an equal rest.
    fn told_twice(&self, counter: Counter) -> Option<String> {
        let kind = &KINDS[counter.kind];
        if kind.most_hits > 1 || kind.gives_back || counter.key > 0 {
            return None;
        }
        let admitted = self.calls.iter().filter(|call| call.admitted == Some(true));
        let mut reported: Vec<_> = admitted.map(|call| call.remaining).collect();
        reported.sort_unstable();
        let twice = reported.windows(2).find(|pair| pair[0] == pair[1])?;
        Some(format!(
            "{counter:?}: two were told that {} are left",
            twice[0]
        ))
    }
}

#[test]
fn the_checker_finds_what_no_order_explains() {
    let asked = Asked { kind: 1, value: 0 };
    let plan = Plan {
        place: Place::Redis,
        calls: 0,
        clients: 0,
        seed: 0,
        has_faults: false,
    };
    // Times are seconds.
    let nanos = |secs: u64| secs * 1_000_000_000;
    let call = |sent: u64, hits: i64, admitted: bool| Call {
        sent: nanos(sent),
        received: nanos(sent + 2),
        hits,
        admitted: Some(admitted),
        remaining: u32::try_from(sent).unwrap(),
    };
    let after = |calls: &[Call], resets: &[(u64, u64)]| {
        let resets = resets.iter().map(|(sent, received)| {
            let [sent, received] = [sent, received].map(|secs| nanos(*secs));
            (asked, Zeroing { sent, received })
        });
        let log = Log {
            calls: calls.iter().map(|call| (asked, *call)).collect(),
            resets: resets.collect(),
            losses: Vec::new(),
            faults: Vec::new(),
        };
        check(&log, plan)
    };
    let check = |calls: &[Call]| after(calls, &[]);
    let full = call(0, 100, true);
    let nothing: [String; 0] = [];
    assert_eq!(check(&[full, call(1, 1, false)]), nothing);
    // In either order, one of them was admitted wrongly.
    assert_eq!(check(&[full, call(1, 1, true)]).len(), 1);
    // There is room, or there is room again.
    assert_eq!(check(&[call(0, 99, true), call(10, 1, false)]).len(), 1);
    assert_eq!(
        check(&[full, call(10, 1, false), call(20, -1, true)]),
        nothing
    );
    assert_eq!(
        check(&[full, call(10, -1, true), call(20, 1, false)]).len(),
        1
    );
    // It was under way when there was room.
    assert_eq!(
        check(&[full, call(10, -1, true), call(11, 1, false)]),
        nothing
    );
    // A reset makes room once, not twice, and for calls that come after it or with it.
    let again = call(20, 100, true);
    assert_eq!(after(&[full, again], &[(10, 12)]), nothing);
    assert_eq!(
        after(&[full, again, call(30, 1, true)], &[(10, 12)]).len(),
        1
    );
    assert_eq!(after(&[full, call(20, 1, false)], &[(10, 12)]).len(), 1);
    assert_eq!(after(&[full, call(11, 1, false)], &[(10, 12)]), nothing);
    assert_eq!(after(&[full, call(11, 100, true)], &[(10, 12)]), nothing);
    assert_eq!(after(&[full, again], &[(30, 31)]).len(), 1);
    let mut twin = call(20, 1, true);
    twin.remaining = 5;
    assert_eq!(check(&[call(5, 1, true), twin]).len(), 1);
}
