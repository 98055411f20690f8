//! Histories of calls: many clients send requests to several replicas at once, while operators reset counters and Redis
//! fails and loses all counts. Every call is logged with the times between which it was decided, and a checker searches
//! for answers that no order of these events explains. All windows last at least a hundred years, so that no decision
//! depends on a clock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ::tollgate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use serde_json::json;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

use super::stores::{Place, Stores};
use crate::it::support::{
    Random,
    ask::{Client, connect, descriptor, is_ok, request, send},
    eventually, http,
    tollgate::{self, Tollgate},
};

const LIMIT: i64 = 100;
const CLIENT_LIMIT: i64 = 30;

/// Clients of one shared counter: the last of them gets the hits that the others leave.
const CLIENTS_OF_ONE: usize = 4;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Refused requests are charged too.
    All,
    Plain,
    /// Admitted hits are sometimes given back.
    Lively,
    /// Operators reset its counters, through the port for that of one of the replicas.
    Reset,
}

/// Kinds of requests: the keys of each, each in its own descriptor.
const KINDS: [(&[&str], Way); 13] = [
    (&["all"], Way::All),
    (&["admitted"], Way::Plain),
    (&["admitted"], Way::Lively),
    (&["first_hit"], Way::Lively),
    (&["sliding_window"], Way::Lively),
    (&["sliding_log"], Way::Lively),
    (&["token_bucket"], Way::Lively),
    (&["several"], Way::Lively),
    (&["client", "shared"], Way::Plain),
    (&["admitted"], Way::Reset),
    (&["sliding_log"], Way::Reset),
    (&["token_bucket"], Way::Reset),
    (&["several"], Way::Reset),
];

impl Way {
    fn most_hits(self) -> u64 {
        match self {
            Self::All | Self::Plain => 1,
            Self::Lively | Self::Reset => 3,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub place: Place,
    pub calls: usize,
    pub seed: u64,
    pub has_faults: bool,
}

const CLIENTS: u64 = 32;

/// Of so many calls, one is followed by a reset.
const CALLS_PER_RESET: u64 = 40;

/// How long after the end of a call its commands may still be carried out, in nanoseconds: longer than Redis is paused.
const LATE: u64 = 1_000_000_000;

/// Of so many rounds of faults, one loses all counts.
const LOSS_OF: u64 = 3;

const BETWEEN_FAULTS: Duration = Duration::from_millis(200);

/// How long a Redis answers everybody before the next fault.
const CALM: Duration = Duration::from_millis(600);

/// How long a paused Redis stays paused, in milliseconds. Calls wait for 50.
const STOPPED_FOR: Range<u64> = 250..450;

/// Far more calls than fill a counter.
const TRIES: usize = 1_000;

/// A caller without a decision waits this long before its next call.
const AFTER_NONE: Duration = Duration::from_millis(20);

struct Servers {
    all: Vec<Tollgate>,
    stores: Stores,
}

impl Servers {
    fn start(place: Place, has_faults: bool) -> Self {
        let stores = Stores::start(place);
        // A busy machine makes Redis slow, and calls without a decision prove nothing: they are wanted only where Redis
        // gets faults.
        let patience = if has_faults { "50ms" } else { "10s" };
        let args = stores.args();
        let start = |workers: &str| {
            let builder = tollgate::with_rules(RULES).args(args.iter().map(String::as_str));
            let builder = builder.args(["--workers", workers, "--redis-timeout", patience]);
            builder.start()
        };
        let all = match place {
            Place::Memory => vec![start("8")],
            _ => (0..4).map(|_| start("2")).collect(),
        };
        Self { all, stores }
    }

    async fn fail(&self, seed: u64, caller: &Caller) {
        let all = self.stores.servers();
        let mut random = Random::new(seed);
        for round in 0_u64.. {
            let redis = &all[usize::try_from(random.below(all.len() as u64)).unwrap()];
            let Range { start, end } = STOPPED_FOR;
            let since = caller.nanos();
            redis.freeze();
            sleep(Duration::from_millis(start + random.below(end - start))).await;
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
                let sent = caller.nanos();
                for redis in all {
                    redis.cli(&["FLUSHALL"]);
                }
                let received = caller.nanos();
                let mut log = caller.log.lock().unwrap();
                log.losses.push(Zeroing { sent, received });
            }
        }
    }

    async fn client(&self, number: usize) -> Client {
        connect(self.all[number % self.all.len()].grpc).await
    }

    fn keys_without_end(&self) -> i64 {
        let servers = self.stores.servers().iter();
        servers.map(|redis| redis.keys_without_end()).sum()
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
    remaining: u32,
}

impl Call {
    /// Until when it may have been carried out. Redis may still have the command of a call that no longer waits.
    fn latest(&self) -> u64 {
        self.received + if self.admitted.is_none() { LATE } else { 0 }
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
        KINDS[self.kind].0[self.key]
    }

    fn text(self) -> String {
        format!("{}.{}", self.kind, self.value)
    }

    fn limit(self) -> i64 {
        match self.name() {
            "client" => CLIENT_LIMIT,
            _ => LIMIT,
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
        KINDS[self.kind].0.len() > 1
    }

    fn counters(self) -> impl Iterator<Item = Counter> {
        let Self { kind, value } = self;
        KINDS[kind].0.iter().enumerate().map(move |(key, name)| {
            let shared = if *name == "shared" { CLIENTS_OF_ONE } else { 1 };
            let value = value / shared;
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

#[derive(Debug, Default)]
struct Log {
    calls: Vec<(Asked, Call)>,
    resets: Vec<(Counter, Zeroing)>,
    /// Of all counters.
    losses: Vec<Zeroing>,
    /// Times in which a Redis did not answer all replicas. What these knew to be full then stays full for them.
    faults: Vec<Range<u64>>,
}

#[derive(Clone, Debug)]
struct Caller {
    began: Instant,
    log: Arc<Mutex<Log>>,
}

impl Caller {
    async fn call(&self, client: &mut Client, asked: Asked, hits: i64) -> Option<bool> {
        let message = request("d", asked.descriptors(hits));
        let sent = self.nanos();
        let reply = send(client, message).await;
        let call = Call {
            sent,
            received: self.nanos(),
            hits,
            admitted: reply.is_ok().then(|| is_ok(&reply)),
            remaining: reply.map_or(0, |reply| reply.statuses[0].limit_remaining),
        };
        self.log.lock().unwrap().calls.push((asked, call));
        call.admitted
    }

    /// Returns whether it was done. A reset without an answer may have happened, now or later.
    async fn reset(&self, port: SocketAddr, counter: Counter) -> bool {
        let entry = json!({"key": counter.name(), "value": counter.text()});
        let body = json!({"domain": "d", "descriptors": [{"entries": [entry]}]}).to_string();
        let sent = self.nanos();
        let post = move || http::post_json(port, "/counters/reset", &body);
        let reply = spawn_blocking(post).await.unwrap();
        let is_done = reply.is_ok_and(|reply| reply.status == 200);
        let received = if is_done { self.nanos() } else { u64::MAX };
        let reset = Zeroing { sent, received };
        self.log.lock().unwrap().resets.push((counter, reset));
        is_done
    }

    /// Hits are held as long as this number stays.
    fn losses(&self) -> usize {
        self.log.lock().unwrap().losses.len()
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }
}

pub const COLUMNS: &str =
    "place | calls | counters | admitted | resets | losses | without a decision | violations";

/// Runs a history and checks it. Returns a row of a table, and the answers that no order of the calls explains.
pub async fn run(plan: Plan) -> (String, Vec<String>) {
    let servers = Servers::start(plan.place, plan.has_faults);
    let caller = Caller {
        began: Instant::now(),
        log: Arc::default(),
    };
    let next = Arc::new(AtomicUsize::new(0));
    let mut asking = JoinSet::new();
    for number in 0..CLIENTS {
        let mut random = Random::new(plan.seed.wrapping_add(number));
        let number = usize::try_from(number).unwrap();
        let mut client = servers.client(number).await;
        let mut other = servers.client(number + 1).await;
        let port = servers.all[(number + 2) % servers.all.len()].debug;
        let (caller, next) = (caller.clone(), next.clone());
        asking.spawn(async move {
            let mut kept = VecDeque::new();
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= plan.calls {
                    return;
                }
                let asked = asked(number);
                let way = KINDS[asked.kind].1;
                let hits = 1 + i64::try_from(random.below(way.most_hits())).unwrap();
                let losses = caller.losses();
                let admitted = caller.call(&mut client, asked, hits).await;
                if admitted.is_none() {
                    sleep(AFTER_NONE).await;
                }
                if way == Way::Lively && admitted == Some(true) && random.below(3) == 0 {
                    kept.push_back((losses, asked, hits));
                }
                if kept.len() > KEPT
                    && let Some((losses, asked, hits)) = kept.pop_front()
                    && losses == caller.losses()
                {
                    caller.call(&mut other, asked, -hits).await;
                }
                if way == Way::Reset && random.below(CALLS_PER_RESET) == 0 {
                    for counter in asked.counters() {
                        caller.reset(port, counter).await;
                    }
                }
            }
        });
    }
    tokio::select! {
        () = servers.fail(plan.seed, &caller), if plan.has_faults => unreachable!("it has no end"),
        () = async { while let Some(ended) = asking.join_next().await { ended.unwrap() } } => {}
    }
    for redis in servers.stores.servers() {
        redis.thaw();
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
    violations.extend(check(&log, plan.place == Place::Cluster));
    let count = |pick: fn(&Call) -> bool| log.calls.iter().filter(|(_, call)| pick(call)).count();
    let (calls, counters) = (log.calls.len(), by_counter(&log.calls).len());
    let admitted = count(|call| call.hits > 0 && call.admitted == Some(true));
    let unknown = count(|call| call.admitted.is_none());
    let (resets, losses) = (log.resets.len(), log.losses.len());
    if plan.has_faults != (unknown > 0) || plan.has_faults != (losses > 0) {
        violations.push("the faults had no effect, or calls without them no answer".to_owned());
    }
    if admitted * 9 < calls || resets * 1_000 < calls {
        violations.push("too few calls were admitted, or too few counters reset".to_owned());
    }
    let (name, found) = (plan.place.name(), violations.len());
    let row = format!(
        "{name} | {calls} | {counters} | {admitted} | {resets} | {losses} | {unknown} | {found}"
    );
    (row, violations)
}

/// The request with this number: all clients use a few counters of each kind, and move on when those are full.
fn asked(number: usize) -> Asked {
    /// Calls of one kind and value, before its counter is full and after.
    const CALLS: usize = 180;
    let (kind, number) = (number % KINDS.len(), number / KINDS.len());
    let round = number / CALLS;
    let value = match KINDS[kind].0.len() {
        1 => round,
        _ => round * CLIENTS_OF_ONE + number % (CLIENTS_OF_ONE - 1),
    };
    Asked { kind, value }
}

/// Sends requests until no replica admits more: the answers show what a counter holds too much or too little.
async fn fill_up(servers: &Servers, caller: &Caller, plan: Plan) -> Vec<String> {
    let resets = caller.log.lock().unwrap().resets.clone();
    let counters: BTreeSet<_> = resets.into_iter().map(|(counter, _)| counter).collect();
    for (number, counter) in counters.into_iter().enumerate() {
        let port = servers.all[number % servers.all.len()].debug;
        // A Redis with a fault does not answer at first, and what the counter holds then is unknown.
        eventually("it is reset", async || caller.reset(port, counter).await).await;
    }
    // Every cache knows of the resets then, and of what was given back.
    sleep(STALE).await;
    let mut clients = Vec::new();
    for number in 0..servers.all.len() {
        clients.push(servers.client(number).await);
    }
    let mut requests: BTreeSet<_> = (0..plan.calls).map(asked).collect();
    let shared: Vec<_> = requests.iter().copied().filter(Asked::is_shared).collect();
    requests.extend(shared.into_iter().map(|Asked { kind, value }| Asked {
        kind,
        value: value / CLIENTS_OF_ONE * CLIENTS_OF_ONE + CLIENTS_OF_ONE - 1,
    }));
    requests.retain(|asked| KINDS[asked.kind].1 != Way::All);
    for asked in requests {
        let mut refusals = 0;
        for number in 0..TRIES {
            let at = number % clients.len();
            match caller.call(&mut clients[at], asked, 1).await {
                Some(false) => refusals += 1,
                Some(true) => refusals = 0,
                None => sleep(AFTER_NONE).await,
            }
            if refusals == clients.len() {
                break;
            }
        }
        if refusals < clients.len() {
            return vec![format!("{asked:?} is never full")];
        }
    }
    Vec::new()
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
fn check(log: &Log, sees_pending: bool) -> Vec<String> {
    let mut resets: BTreeMap<Counter, Vec<Zeroing>> = BTreeMap::new();
    for (counter, reset) in &log.resets {
        resets.entry(*counter).or_default().push(*reset);
    }
    let account = |(counter, calls): (Counter, Vec<Call>)| {
        let mut zeroings = resets.remove(&counter).unwrap_or_default();
        zeroings.extend(&log.losses);
        (counter, Account::new(counter, calls, zeroings))
    };
    let counters: BTreeMap<_, _> = by_counter(&log.calls).into_iter().map(account).collect();
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
        let meets = |fault: &Range<u64>| call.received >= fault.start && call.sent <= fault.end;
        let knows_all = !log.faults.iter().any(meets);
        let is_explained = asked.counters().any(|counter| {
            let others = counters[&counter].most(call, sees_pending, knows_all);
            others + call.hits > counter.limit()
        });
        if !is_explained {
            let named: Vec<_> = asked.counters().collect();
            violations.push(format!("{named:?}: {call:?} was refused with room left"));
        }
    }
    violations
}

/// The calls of one counter, in the orders needed by the checks.
struct Account {
    calls: Vec<Call>,
    charges_refused: bool,
    /// The times from one zeroing on; the first is the beginning.
    segments: Vec<Segment>,
}

/// The calls that a counter may hold after a zeroing.
struct Segment {
    zeroing: Zeroing,
    /// Charged hits by their sending time, as running sums.
    charged: Sums,
    /// Hits of all calls, by sending time and by answer time.
    sent: Sums,
    received: Sums,
    /// Hits given back after the zeroing.
    given: Sums,
}

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

    fn before(&self, time: u64) -> i64 {
        let count = self.0.partition_point(|(at, _)| *at < time);
        count.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

impl Segment {
    fn new(zeroing: Zeroing, calls: &[Call], charges_refused: bool) -> Self {
        let is_charged = |call: &&Call| charges_refused || call.admitted != Some(false);
        let may_count = |call: &&Call| call.hits > 0 && call.latest() >= zeroing.sent;
        let asks = || calls.iter().filter(may_count);
        let is_given = |call: &&Call| call.hits < 0 && call.admitted.is_some();
        let gives = calls.iter().filter(is_given);
        let gives = gives.filter(|call| call.sent >= zeroing.received);
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
    fn new(counter: Counter, calls: Vec<Call>, mut zeroings: Vec<Zeroing>) -> Self {
        let charges_refused = KINDS[counter.kind].1 == Way::All;
        zeroings.push(Zeroing::default());
        zeroings.sort_unstable();
        zeroings.dedup_by(|later, earlier| {
            let is_one = later.sent <= earlier.received;
            if is_one {
                earlier.received = earlier.received.max(later.received);
            }
            is_one
        });
        let segment = |zeroing| Segment::new(zeroing, &calls, charges_refused);
        Self {
            charges_refused,
            segments: zeroings.into_iter().map(segment).collect(),
            calls,
        }
    }

    /// The most hits that others may have had counted. Unless the replica `knows_all`, it may go by any time before.
    fn most(&self, call: &Call, sees_pending: bool, knows_all: bool) -> i64 {
        let stale = u64::try_from(STALE.as_nanos()).unwrap();
        let seen = call.sent.saturating_sub(stale) * u64::from(knows_all);
        let own = if self.charges_refused { call.hits } else { 0 };
        // From the last zeroing that it certainly saw, and those that it perhaps saw.
        let is_seen = |segment: &&Segment| segment.zeroing.received <= seen;
        let first = self.segments.iter().filter(is_seen).count() - 1;
        let perhaps = self.segments[first..].iter();
        let perhaps = perhaps.take_while(|segment| segment.zeroing.sent <= call.received);
        let most = perhaps.map(|segment| {
            let charged = segment.charged.before(call.received) - own;
            // Calls under way at that time may have been charged and taken back.
            let sent = segment.sent.before(call.received) - call.hits;
            let pending = (sent - segment.received.before(call.sent)) * i64::from(sees_pending);
            charged + pending - segment.given.before(seen)
        });
        most.max().expect("all calls come after the beginning")
    }

    /// Whether more hits were certainly admitted and not given back at a time than the limit allows.
    fn too_much(&self, counter: Counter, sees_pending: bool) -> Option<String> {
        let mut segments = self.segments.iter().peekable();
        while let Some(Segment { zeroing: since, .. }) = segments.next() {
            let until = segments.peek().map(|next| next.zeroing);
            let changes = self.calls.iter().filter_map(|call| {
                let may_count = call.latest() >= since.sent
                    && until.is_none_or(|until| call.sent <= until.received);
                let does_count = call.sent >= since.received
                    && until.is_none_or(|until| call.received <= until.sent);
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
            let sums = Sums::new(changes).0;
            let most = sums.into_iter().map(|(_, sum)| sum).max().unwrap_or(0);
            if most > counter.limit() {
                return Some(format!("{counter:?}: {most} were admitted"));
            }
        }
        None
    }

    /// If each call takes one hit and none is given back, no two admitted calls may report an equal rest.
    fn told_twice(&self, counter: Counter) -> Option<String> {
        if KINDS[counter.kind].1.most_hits() > 1 || counter.key > 0 {
            return None;
        }
        let admitted = self.calls.iter().filter(|call| call.admitted == Some(true));
        let mut reported: Vec<_> = admitted.map(|call| call.remaining).collect();
        reported.sort_unstable();
        let twice = reported.windows(2).find(|pair| pair[0] == pair[1])?[0];
        Some(format!("{counter:?}: two were told that {twice} are left"))
    }
}

/// Panics unless the checker finds what no order explains.
pub fn check_the_checker() {
    /// A call: the second in which it is sent, its hits, and whether it was admitted.
    type Called = (u64, i64, bool);
    const FULL: Called = (0, 100, true);
    const AGAIN: Called = (20, 100, true);
    /// The seconds of a reset; with the first ones, nothing is lost.
    const NEVER: (u64, u64) = (0, 0);
    const AT_TEN: (u64, u64) = (10, 12);
    /// Calls, a reset, and how many violations there are.
    const CASES: [(&[Called], (u64, u64), usize); 12] = [
        (&[FULL, (1, 1, false)], NEVER, 0),
        // In either order, one of them was admitted wrongly.
        (&[FULL, (1, 1, true)], NEVER, 1),
        // There is room, or there is room again.
        (&[(0, 99, true), (10, 1, false)], NEVER, 1),
        (&[FULL, (10, 1, false), (20, -1, true)], NEVER, 0),
        (&[FULL, (10, -1, true), (20, 1, false)], NEVER, 1),
        // It was under way when there was room.
        (&[FULL, (10, -1, true), (11, 1, false)], NEVER, 0),
        // A reset makes room once, not twice, and for calls that come after it or with it.
        (&[FULL, AGAIN], AT_TEN, 0),
        (&[FULL, AGAIN, (30, 1, true)], AT_TEN, 1),
        (&[FULL, (20, 1, false)], AT_TEN, 1),
        (&[FULL, (11, 1, false)], AT_TEN, 0),
        (&[FULL, (11, 100, true)], AT_TEN, 0),
        (&[FULL, AGAIN], (30, 31), 1),
    ];
    let asked = Asked { kind: 1, value: 0 };
    let counter = asked.counters().next().unwrap();
    let nanos = |secs: u64| secs * 1_000_000_000;
    let call = |&(sent, hits, admitted): &Called| Call {
        sent: nanos(sent),
        received: nanos(sent + 2),
        hits,
        admitted: Some(admitted),
        remaining: u32::try_from(sent).unwrap(),
    };
    let mut log = Log::default();
    for (calls, (sent, received), expected) in CASES {
        let [sent, received] = [sent, received].map(nanos);
        log.resets = vec![(counter, Zeroing { sent, received })];
        log.calls = calls.iter().map(|one| (asked, call(one))).collect();
        let found = check(&log, false);
        assert_eq!(found.len(), expected, "{calls:?}: {found:?}");
    }
    let twin = Call {
        remaining: 5,
        ..call(&(20, 1, true))
    };
    log.resets.clear();
    log.calls = vec![(asked, call(&(5, 1, true))), (asked, twin)];
    assert_eq!(check(&log, false).len(), 1);
}
