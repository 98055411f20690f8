//! `docs/leases.md`: hot counters that a worker charges in advance. No hit passes that Redis has not counted.

use std::{
    collections::HashMap,
    env, fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

use crate::support::{
    Random,
    ask::*,
    cluster::Cluster,
    eventually,
    proxy::{Fault, Proxy},
    redis::Redis,
    tollgate::{self, Builder, Tollgate},
    wall_clock::true_time,
};

fn rules(limits: &str) -> String {
    format!(
        "
domain: shop
descriptors:
  - key: api
    accuracy: exact-leased
    rate_limits: [{limits}]
"
    )
}

fn one_worker(url: &str, limits: &str) -> Builder {
    let builder = tollgate::with_rules(&rules(limits)).redis_at(url, "10s");
    builder.args(["--workers=1"])
}

async fn slices_pass(server: &Tollgate, more_than: u64) {
    let passes = async || metric(server, "slice_passes_total") > more_than;
    eventually("slices are taken", passes).await;
}

async fn nothing_is_free(server: &Tollgate) {
    let is_free = async || metric(server, "slice_free_hits") == 0;
    eventually("nothing is free", is_free).await;
}

async fn reply(client: &mut Client, value: &str, hits: u64) -> RateLimitResponse {
    let asked = with_hits(&[("api", value)], hits);
    let reply = send(client, request("shop", vec![asked])).await;
    reply.expect("a decision")
}

async fn passes(client: &mut Client, value: &str, hits: u64) -> bool {
    is_ok(&Ok(reply(client, value, hits).await))
}

/// Asks for two values by one call, which passes.
async fn both_pass(client: &mut Client, values: [&str; 2]) {
    let both = values.map(|value| descriptor(&[("api", value)]));
    assert!(is_ok(&send(client, request("shop", both.into())).await));
}

async fn reload(server: &Tollgate, requests_per_unit: u32) {
    let text = rules(&format!("{requests_per_unit}/year"));
    fs::write(server.rules().join("rules.yaml"), text).unwrap();
    let mut client = connect(server.grpc).await;
    eventually("the new limit is in force", async || {
        let look = reply(&mut client, "nobody", 0).await;
        let limit = look.statuses[0].current_limit.as_ref();
        limit.is_some_and(|limit| limit.requests_per_unit == requests_per_unit)
    })
    .await;
}

struct Hammer {
    seen: Arc<Seen>,
    clients: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    admitted: AtomicU64,
    decided: AtomicU64,
    is_over: AtomicBool,
    /// How many passed in each [`PERIOD`], without those that may belong to the one before or after.
    of_windows: Mutex<HashMap<u64, u64>>,
}

impl Hammer {
    fn start(servers: &[&Tollgate], clients: usize) -> Self {
        let mut hammer = Self {
            seen: Arc::default(),
            clients: JoinSet::new(),
        };
        for server in servers {
            hammer.add(server, clients / servers.len());
        }
        hammer
    }

    fn add(&mut self, server: &Tollgate, clients: usize) {
        for _ in 0..clients {
            let (address, seen) = (server.grpc, self.seen.clone());
            self.clients.spawn(async move {
                let mut client = connect(address).await;
                while !seen.is_over.load(SeqCst) {
                    let sent = true_time();
                    // Otherwise it was killed.
                    let Ok(reply) = ask(&mut client, "shop", &[("api", "hot")]).await else {
                        return;
                    };
                    seen.decided.fetch_add(1, SeqCst);
                    if !is_ok(&Ok(reply)) {
                        // It leaves the processor to callers that can pass.
                        sleep(Duration::from_millis(2)).await;
                        continue;
                    }
                    seen.admitted.fetch_add(1, SeqCst);
                    let span = [sent - CLOCK_ERROR, true_time() + CLOCK_ERROR];
                    let [from, to] = span.map(|time| time.as_secs() / PERIOD);
                    if from == to {
                        *seen.of_windows.lock().unwrap().entry(from).or_insert(0) += 1;
                    }
                }
            });
        }
    }

    fn admitted(&self) -> u64 {
        self.seen.admitted.load(SeqCst)
    }

    fn decided(&self) -> u64 {
        self.seen.decided.load(SeqCst)
    }

    /// How many were refused, with those that are just being counted as passed.
    fn refused(&self) -> u64 {
        let admitted = self.admitted();
        self.decided() - admitted
    }

    /// Lets all end their calls. Returns how many passed.
    async fn stop(mut self) -> u64 {
        self.seen.is_over.store(true, SeqCst);
        while self.clients.join_next().await.is_some() {}
        self.admitted()
    }
}

/// The count of each window that Redis holds.
fn counts(redis: &Redis) -> HashMap<String, u64> {
    let keys = redis.keys().into_iter().filter(|key| key.contains("api"));
    let counts = keys.map(|key| {
        let count = redis.cli_if_there(&["GET", &key])?.trim().parse().ok()?;
        Some((key, count))
    });
    counts.flatten().collect()
}

fn count(redis: &Redis) -> u64 {
    counts(redis).values().sum()
}

fn metric(server: &Tollgate, name: &str) -> u64 {
    stat(server, &format!("tollgate.{name}")).expect(name)
}

/// A server whose limit no client reaches, and four clients, of whose requests more than `passes` passed without Redis.
async fn hammered(redis: &Redis, passes: u64) -> (Tollgate, Hammer) {
    let server = tollgate::with_rules(&rules("1000000/year")).redis(redis);
    let server = server.start();
    let hammer = Hammer::start(&[&server], 4);
    slices_pass(&server, passes).await;
    (server, hammer)
}

/// Two processes, while one is told to end and another is killed.
#[tokio::test]
async fn a_limit_is_used_up_exactly_and_what_is_charged_is_used_returned_or_lost_with_a_process() {
    const LIMIT: u64 = 6_000;
    let redis = Redis::start();
    let start = || {
        tollgate::with_rules(&rules("6000/year"))
            .redis(&redis)
            .start()
    };
    let (first, mut second, third) = (start(), start(), start());
    let hammer = Hammer::start(&[&first, &second, &third], 9);
    eventually("many pass", async || hammer.admitted() > 1_500).await;
    second.signal(Signal::SIGTERM);
    eventually("many more pass", async || hammer.admitted() > 2_500).await;
    assert!(second.wait().success());
    let lost = metric(&third, "slice_hits_total.taken");
    drop(third);
    let before = hammer.admitted();
    let pass = async || hammer.admitted() > before + 1_000;
    eventually("many more pass", pass).await;
    let admitted = hammer.stop().await;
    nothing_is_free(&first).await;
    let held = count(&redis);
    let are_charged = (admitted..=admitted + lost).contains(&held);
    assert!(are_charged, "{held} {admitted} {lost}");
    // The rest is admitted to the last hit.
    let hammer = Hammer::start(&[&first], 4);
    // Asked of the clients first: each look at Redis starts a program.
    eventually("calls are refused", async || hammer.refused() > 4).await;
    let is_full = async || count(&redis) == LIMIT && metric(&first, "slice_free_hits") == 0;
    eventually("the counter is full", is_full).await;
    let more = hammer.stop().await;
    assert_eq!(held + more, LIMIT);
    assert!(metric(&first, "slice_passes_total") > 1_000);
}

/// In seconds. A horizon is a thirtieth of it.
const PERIOD: u64 = 4;

/// The times of replies, on the clock of windows. Ours can differ from it by less than this.
const CLOCK_ERROR: Duration = Duration::from_millis(50);

/// `WINDOWS` windows on four processes, of which one is killed every other second and replaced. Every hit that passes
/// is counted in a window.
#[expect(
    clippy::disallowed_methods,
    reason = "the test program is no part of tollgate, and a variable is what it has for itself"
)]
async fn check_windows(start: impl Fn() -> Tollgate, counts: impl Fn() -> HashMap<String, u64>) {
    const LIMIT: u64 = 2_000;
    let windows = env::var("WINDOWS").map_or(3, |windows| windows.parse().unwrap());
    let seconds = PERIOD * windows;
    let mut servers: Vec<_> = (0..4).map(|_| start()).collect();
    let mut hammer = Hammer::start(&servers.iter().collect::<Vec<_>>(), 8);
    let mut windows = HashMap::new();
    let mut random = Random::new(7);
    let (began, mut kills, mut passes) = (Instant::now(), 0, 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        sleep(Duration::from_millis(200)).await;
        for (key, count) in counts() {
            let most = windows.entry(key).or_insert(0);
            *most = count.max(*most);
        }
        if began.elapsed() > Duration::from_secs(2 * kills + 1) {
            kills += 1;
            let victim = servers.swap_remove(random.below(4).try_into().unwrap());
            passes += metric(&victim, "slice_passes_total");
            drop(victim);
            let next = start();
            hammer.add(&next, 2);
            servers.push(next);
        }
    }
    let seen = hammer.seen.clone();
    let admitted = hammer.stop().await;
    windows.extend(counts());
    // With hits that are refused and not given back yet: each client has one call at a time.
    let most = LIMIT + u64::try_from(servers.len()).unwrap() * 2;
    assert!(windows.values().all(|count| *count <= most), "{windows:?}");
    let charged: u64 = windows.values().sum();
    for server in &servers {
        passes += metric(server, "slice_passes_total");
    }
    let (name, count) = (thread::current().name().map(str::to_owned), windows.len());
    eprintln!("{name:?}: {admitted} admitted, {passes} from slices, {charged} charged");
    eprintln!("{count} windows, {kills} kills");
    assert!(count >= 3 && admitted <= charged, "{admitted} {windows:?}");
    for (window, admitted) in &*seen.of_windows.lock().unwrap() {
        assert!(*admitted <= LIMIT, "{admitted} in window {window}");
    }
    assert!(passes > 100, "{passes}");
}

#[tokio::test]
async fn no_window_admits_more_than_its_limit() {
    let redis = Redis::start();
    let start = || one_worker(&redis.url(), "2000/4seconds").start();
    check_windows(start, || counts(&redis)).await;
}

#[tokio::test]
async fn so_it_is_in_a_cluster() {
    let cluster = Cluster::start(0);
    let url = cluster.url();
    let start = || one_worker(&url, "2000/4seconds").start();
    let all = || cluster.nodes.iter().flat_map(counts).collect();
    check_windows(start, all).await;
}

#[tokio::test]
async fn so_it_is_with_seconds_in_a_redis_of_their_own() {
    let (seconds, others) = (Redis::start(), Redis::start());
    let limits = "2000/4seconds, 1000000/year";
    let start = || with_seconds(one_worker(&others.url(), limits), &seconds).start();
    check_windows(start, || counts(&seconds)).await;
}

/// While Redis is away slices are used up, and the answer to one that is on its way comes too late for every call.
#[tokio::test]
async fn a_slice_that_comes_late_is_used_or_returned() {
    let redis = Redis::start();
    let server = tollgate::with_rules(&rules("1000000/year")).redis_at(&redis.url(), "100ms");
    let server = server.args(["--workers=1"]).start();
    let mut hammer = Hammer::start(&[&server], 4);
    slices_pass(&server, 2_000).await;
    let before = hammer.admitted();
    redis.freeze();
    eventually("every client gets an error", async || {
        while hammer.clients.try_join_next().is_some() {}
        hammer.clients.is_empty()
    })
    .await;
    let admitted = hammer.stop().await;
    assert!(admitted > before + 20, "{before} {admitted}");
    redis.thaw();
    // One hit of each client can be charged, and its answer was late.
    let mut charged = 0;
    eventually("all is back but what late calls charged", async || {
        charged = count(&redis);
        charged <= admitted + 4 && metric(&server, "slice_free_hits") == 0
    })
    .await;
    assert!(charged >= admitted, "{charged} {admitted}");
}

/// Ends a process while slices are on their way. Returns the hits that Redis counted, and those that clients know of.
async fn drained(is_called: bool) -> (u64, u64) {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let mut server = one_worker(&proxy.url(), "1000000/year").start();
    let mut hammer = Hammer::start(&[&server], 4);
    slices_pass(&server, 500).await;
    proxy.set(Fault {
        latency: Duration::from_millis(100),
        ..Fault::default()
    });
    let asked = metric(&server, "slices_asked_total");
    let is_asked = async || metric(&server, "slices_asked_total") > asked;
    eventually("a slice is on its way", is_asked).await;
    server.signal(Signal::SIGTERM);
    if !is_called {
        hammer.clients.shutdown().await;
    }
    let status = spawn_blocking(move || server.wait()).await.unwrap();
    assert!(status.success());
    let admitted = hammer.stop().await;
    (count(&redis), admitted)
}

#[tokio::test]
async fn a_drain_waits_for_slices_and_gives_them_back() {
    for is_called in [true, false, true, true] {
        let (counted, admitted) = drained(is_called).await;
        // A client that leaves does not know the end of its last call.
        let known = admitted..=admitted + if is_called { 0 } else { 4 };
        assert!(known.contains(&counted), "{counted} {admitted}");
    }
}

/// Two processes use a part of a limit, and one is asked for more than there is.
#[tokio::test]
async fn hits_that_are_refused_take_no_slice() {
    const LIMIT: u64 = 2_000;
    let redis = Redis::start();
    let start = || serve(one_worker(&redis.url(), "2000/year"));
    let ((one, mut first), (other, mut second)) = (start().await, start().await);
    for round in 0..400 {
        // Once, and later again and again.
        if round == 50 || round > 150 && round % 50 == 0 {
            for hits in [LIMIT + 1, 1_000_000_000, 1 << 62] {
                assert!(!passes(&mut first, "hot", hits).await, "{round} {hits}");
            }
        }
        for client in [&mut first, &mut second] {
            assert!(passes(client, "hot", 1).await, "{round}");
        }
    }
    nothing_is_free(&one).await;
    nothing_is_free(&other).await;
    assert_eq!(count(&redis), 800);
}

/// A slice is charged under one limit, and no call under another one uses it.
#[tokio::test]
async fn a_lower_limit_uses_up_nothing_of_the_one_before() {
    const LIMIT: u64 = 5_000;
    let redis = Redis::start();
    let (server, mut client) = serve(one_worker(&redis.url(), "5000/year")).await;
    let hammer = Hammer::start(&[&server], 4);
    slices_pass(&server, 1_000).await;
    let mut admitted = hammer.stop().await;
    let passed = metric(&server, "slice_passes_total");
    reload(&server, 200).await;
    for _ in 0..500 {
        assert!(!passes(&mut client, "hot", 1).await);
    }
    assert_eq!(metric(&server, "slice_passes_total"), passed);
    let is_all = async || count(&redis) == admitted;
    eventually("nothing more is charged", is_all).await;
    reload(&server, 5_000).await;
    let hammer = Hammer::start(&[&server], 4);
    eventually("calls are refused, and the counter is full", async || {
        hammer.refused() > 4 && count(&redis) == LIMIT && metric(&server, "slice_free_hits") == 0
    })
    .await;
    admitted += hammer.stop().await;
    assert_eq!(admitted, LIMIT);
}

/// They are counted as by a rule without slices: by increments, and not by a script.
#[tokio::test]
async fn slow_values_and_a_hot_one_beside_new_ones_take_no_slice() {
    const CALLS: u64 = 400;
    let redis = Redis::start();
    let server = one_worker(&redis.url(), "1000000/10years, 2000000/year");
    let (server, mut client) = serve(server).await;
    for call in 0..300 {
        assert!(passes(&mut client, &format!("v{}", call % 100), 1 + call % 3).await);
    }
    for call in 0..CALLS {
        both_pass(&mut client, ["hot", &call.to_string()]).await;
    }
    assert_eq!(metric(&server, "slices_asked_total"), 0);
    // Of two limits.
    assert_eq!(count(&redis), 2 * (600 + 2 * CALLS));
    assert_eq!((redis.calls("evalsha"), redis.calls("eval")), (0, 0));
    // Two that are hot together take slices.
    eventually("both are used", async || {
        both_pass(&mut client, ["one", "two"]).await;
        metric(&server, "slice_passes_total") > 10
    })
    .await;
}

/// Two processes, of which one does not know how full the counters are. Nothing that is refused stays charged.
#[tokio::test]
async fn what_is_refused_is_answered_and_charged_as_by_count_admitted() {
    const SERVERS: [usize; 12] = [0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1];
    const HITS: [u64; 12] = [12, 80, 12, 9, 9, 101, 3, 1, 5, 4, 1, 1];
    let redis = Redis::start();
    let text = "
domain: shop
descriptors:
  - {key: api, accuracy: exact-leased, rate_limits: [100/year, 1000/week]}
  - {key: one, count: admitted, rate_limits: [100/year, 1000/week]}
";
    let start = || {
        let server = tollgate::with_rules(text).redis(&redis);
        serve(server.args(["--workers=1"]))
    };
    let (one, other) = (start().await, start().await);
    let mut clients = [one.1, other.1];
    let mut held = 0;
    for (server, hits) in SERVERS.into_iter().zip(HITS) {
        let client = &mut clients[server];
        let mut of_key = async |key| {
            let asked = request("shop", vec![with_hits(&[(key, "v")], hits)]);
            send(client, asked).await.unwrap()
        };
        let (sliced, exact) = (of_key("api").await, of_key("one").await);
        let passes = held + hits <= 100;
        held += if passes { hits } else { 0 };
        assert_eq!(sliced.overall_code, exact.overall_code);
        let [one, other] = [&sliced.statuses[0], &exact.statuses[0]];
        assert_eq!(one.code, other.code);
        assert_eq!(one.limit_remaining, other.limit_remaining);
        assert_eq!(is_ok(&Ok(sliced)), passes, "{held} {hits}");
        // Two limits.
        let are_back = async || count(&redis) == 2 * held;
        eventually("refused hits are given back", are_back).await;
    }
}

/// A slice is of all limits of its descriptor.
#[tokio::test]
async fn a_further_limit_holds_from_its_load_on() {
    let redis = Redis::start();
    let (server, hammer) = hammered(&redis, 1_000).await;
    let text = rules("1000000/year, 100/week");
    fs::write(server.rules().join("rules.yaml"), text).unwrap();
    let is_loaded = async || server.page("/rules").contains("week");
    eventually("the new limit is in force", is_loaded).await;
    let (before, decided) = (hammer.admitted(), hammer.decided());
    let are_decided = async || hammer.decided() > decided + 1_000;
    eventually("many are decided", are_decided).await;
    let admitted = hammer.stop().await;
    // With those that were decided under the old rules and answered later.
    assert!(admitted - before <= 104, "{before} {admitted}");
}

/// Hits that were taken before a reset are used, and nothing is given back to the counter.
#[tokio::test]
async fn a_reset_counter_gets_no_slice_back() {
    let redis = Redis::start();
    let (server, hammer) = hammered(&redis, 1_000).await;
    hammer.stop().await;
    counters(&server, "reset", "shop", ("api", "hot")).unwrap();
    let held = count(&redis);
    let mut client = connect(server.grpc).await;
    assert!(is_ok(&ask(&mut client, "shop", &[("api", "hot")]).await));
    nothing_is_free(&server).await;
    assert_eq!(count(&redis), held + 1);
}

#[test]
fn in_memory_it_has_no_effect_and_the_log_tells_that() {
    let server = tollgate::with_rules(&rules("1/day")).start();
    let log = server.log().with("has no effect on counters in memory");
    let place = ":5:15: shop.api: note: `exact-leased`";
    assert!(log.contains(place), "{log}");
}
