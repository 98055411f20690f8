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
use tokio::{task::JoinSet, time::sleep};

use crate::support::{
    ask::{ask, connect, is_ok},
    cluster::Cluster,
    eventually, finish,
    histories::Random,
    http::post_json,
    leases::true_time,
    redis::Redis,
    tollgate::{self, Tollgate, program},
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

/// Clients that ask for one value without a pause.
struct Hammer {
    admitted: Arc<AtomicU64>,
    decided: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    /// How many passed in each second, without those that may belong to the one before or after.
    of_windows: Arc<Mutex<HashMap<u64, u64>>>,
    clients: JoinSet<()>,
}

impl Hammer {
    fn start(servers: &[&Tollgate], clients: usize) -> Self {
        let mut hammer = Self {
            admitted: Arc::default(),
            decided: Arc::default(),
            is_over: Arc::default(),
            of_windows: Arc::default(),
            clients: JoinSet::new(),
        };
        for server in servers {
            hammer.add(server, clients / servers.len());
        }
        hammer
    }

    fn add(&mut self, server: &Tollgate, clients: usize) {
        let address = server.grpc;
        for _ in 0..clients {
            let (admitted, decided) = (self.admitted.clone(), self.decided.clone());
            let (is_over, of_windows) = (self.is_over.clone(), self.of_windows.clone());
            self.clients.spawn(async move {
                let mut client = connect(address).await;
                while !is_over.load(SeqCst) {
                    let sent = true_time();
                    // Otherwise it was killed.
                    let Ok(reply) = ask(&mut client, "shop", &[("api", "hot")]).await else {
                        return;
                    };
                    decided.fetch_add(1, SeqCst);
                    if !is_ok(&Ok(reply)) {
                        continue;
                    }
                    admitted.fetch_add(1, SeqCst);
                    let span = [sent - CLOCK_ERROR, true_time() + CLOCK_ERROR];
                    let [from, to] = span.map(|time| time.as_secs());
                    if from == to {
                        *of_windows.lock().unwrap().entry(from).or_insert(0) += 1;
                    }
                }
            });
        }
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(SeqCst)
    }

    /// How many were refused, with those that are just being counted as passed.
    fn refused(&self) -> u64 {
        let admitted = self.admitted();
        self.decided.load(SeqCst) - admitted
    }

    /// Lets all end their calls. Returns how many passed, and how many were decided.
    async fn stop(mut self) -> (u64, u64) {
        self.is_over.store(true, SeqCst);
        while self.clients.join_next().await.is_some() {}
        (self.admitted(), self.decided.load(SeqCst))
    }
}

/// The count of each window that Redis holds.
fn counts(redis: &Redis) -> HashMap<String, u64> {
    let keys = redis.keys().into_iter();
    let count = |key: String| {
        let count = redis.cli_if_there(&["GET", &key])?.trim().parse().ok()?;
        Some((key, count))
    };
    keys.filter(|key| key.contains("api"))
        .filter_map(count)
        .collect()
}

fn count(redis: &Redis) -> u64 {
    counts(redis).values().sum()
}

fn metric(server: &Tollgate, name: &str) -> u64 {
    let name = format!("tollgate.{name}: ");
    let stats = server.page("/stats");
    let line = stats.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{stats}")).parse().unwrap()
}

/// A server whose limit no client reaches, and four clients of it, of whose requests more than `passes` passed without
/// Redis.
async fn hammered(redis: &Redis, passes: u64) -> (Tollgate, Hammer) {
    let server = tollgate::with_rules(&rules("1000000/year"))
        .redis(redis)
        .start();
    let hammer = Hammer::start(&[&server], 4);
    eventually("slices are taken", async || {
        metric(&server, "slice_passes_total") > passes
    })
    .await;
    (server, hammer)
}

/// Two processes, while one is told to end and another is killed.
#[tokio::test]
async fn a_limit_is_used_up_exactly_and_what_is_charged_is_used_returned_or_lost_with_a_process() {
    const LIMIT: u64 = 10_000;
    let redis = Redis::start();
    let start = || {
        tollgate::with_rules(&rules("10000/year"))
            .redis(&redis)
            .start()
    };
    let (first, mut second, third) = (start(), start(), start());
    let hammer = Hammer::start(&[&first, &second, &third], 9);
    eventually("many pass", async || hammer.admitted() > 2_000).await;
    second.signal(Signal::SIGTERM);
    eventually("many more pass", async || hammer.admitted() > 3_000).await;
    assert!(second.wait().success());
    let lost = metric(&third, "slice_hits_total.taken");
    drop(third);
    let before = hammer.admitted();
    eventually("many more pass", async || {
        hammer.admitted() > before + 1_000
    })
    .await;
    let (admitted, _) = hammer.stop().await;
    eventually("nothing is free", async || {
        metric(&first, "slice_free_hits") == 0
    })
    .await;
    let held = count(&redis);
    assert!(
        held >= admitted,
        "{held} are charged, and {admitted} passed"
    );
    assert!(held - admitted <= lost, "{held} {admitted} {lost}");
    // The rest is admitted to the last hit.
    let hammer = Hammer::start(&[&first], 4);
    // Asked of the clients first: each look at Redis starts a program.
    eventually("calls are refused", async || hammer.refused() > 4).await;
    eventually("the counter is full", async || {
        count(&redis) == LIMIT && metric(&first, "slice_free_hits") == 0
    })
    .await;
    let (more, decided) = hammer.stop().await;
    assert_eq!(held + more, LIMIT);
    assert!(decided >= more);
    assert!(metric(&first, "slice_passes_total") > 1_000);
}

/// The times of replies, on the clock of windows. Ours can differ from it by less than this.
const CLOCK_ERROR: Duration = Duration::from_millis(50);

/// Windows of a second on four processes, of which one is killed every other second and replaced. Every hit that passes
/// is counted in a window, and no window admits more than its limit. `WINDOWS` is how many there are.
#[expect(
    clippy::disallowed_methods,
    reason = "the test program is no part of tollgate, and a variable is what it has for itself"
)]
async fn check_windows(start: impl Fn() -> Tollgate, counts: impl Fn() -> HashMap<String, u64>) {
    const LIMIT: u64 = 400;
    let seconds = env::var("WINDOWS").map_or(8, |windows| windows.parse().unwrap());
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
    let certain = hammer.of_windows.clone();
    let (admitted, _) = hammer.stop().await;
    windows.extend(counts());
    assert!(windows.values().all(|count| *count <= LIMIT), "{windows:?}");
    let charged: u64 = windows.values().sum();
    passes += servers
        .iter()
        .map(|server| metric(server, "slice_passes_total"))
        .sum::<u64>();
    let name = thread::current().name().unwrap_or_default().to_owned();
    eprintln!(
        "{name}: {} windows, {kills} kills: {admitted} admitted, {passes} from slices, {charged} charged",
        windows.len()
    );
    assert!(
        windows.len() >= 5 && admitted <= charged,
        "{admitted} {windows:?}"
    );
    for (second, admitted) in &*certain.lock().unwrap() {
        assert!(*admitted <= LIMIT, "{admitted} in second {second}");
    }
    assert!(passes > 100, "{passes}");
}

#[tokio::test]
async fn no_window_of_a_second_admits_more_than_its_limit() {
    let redis = Redis::start();
    let start = || {
        tollgate::with_rules(&rules("400/second"))
            .redis(&redis)
            .args(["--workers=2"])
            .start()
    };
    check_windows(start, || counts(&redis)).await;
}

#[tokio::test]
async fn so_it_is_in_a_cluster() {
    let cluster = Cluster::start(0);
    let url = cluster.url();
    let start = || {
        tollgate::with_rules(&rules("400/second"))
            .redis_at(&url, "10s")
            .args(["--workers=2"])
            .start()
    };
    let all = || cluster.nodes.iter().flat_map(counts).collect();
    check_windows(start, all).await;
}

#[tokio::test]
async fn so_it_is_with_seconds_in_a_redis_of_their_own() {
    let (seconds, others) = (Redis::start(), Redis::start());
    let start = || {
        tollgate::with_rules(&rules("400/second, 1000000/year"))
            .redis(&others)
            .args(["--workers=2", "--redis-per-second"])
            .args(["--redis-per-second-url", &seconds.url()])
            .start()
    };
    check_windows(start, || counts(&seconds)).await;
}

#[tokio::test]
async fn while_redis_is_away_slices_are_used_up() {
    let redis = Redis::start();
    let (server, mut hammer) = hammered(&redis, 2_000).await;
    redis.freeze();
    let before = hammer.admitted();
    eventually("every client gets an error", async || {
        while hammer.clients.try_join_next().is_some() {}
        hammer.clients.is_empty()
    })
    .await;
    let (admitted, _) = hammer.stop().await;
    assert!(admitted > before + 20, "{before} {admitted}");
    redis.thaw();
    eventually("nothing is free", async || {
        metric(&server, "slice_free_hits") == 0
    })
    .await;
    let charged = count(&redis);
    assert!(charged >= admitted, "{charged} {admitted}");
}

/// A slice is of all limits of its descriptor.
#[tokio::test]
async fn a_further_limit_holds_from_its_load_on() {
    let redis = Redis::start();
    let (server, hammer) = hammered(&redis, 1_000).await;
    let text = rules("1000000/year, 100/week");
    fs::write(server.rules().join("rules.yaml"), text).unwrap();
    eventually("the new limit is in force", async || {
        server.page("/rules").contains("week")
    })
    .await;
    let (before, decided) = (hammer.admitted(), hammer.decided.load(SeqCst));
    eventually("many are decided", async || {
        hammer.decided.load(SeqCst) > decided + 1_000
    })
    .await;
    let (admitted, _) = hammer.stop().await;
    // With those that were decided under the old rules and answered later.
    assert!(admitted - before <= 104, "{before} {admitted}");
}

/// Hits that were taken before a reset are used, and nothing is given back to the counter.
#[tokio::test]
async fn a_reset_counter_gets_no_slice_back() {
    let redis = Redis::start();
    let (server, hammer) = hammered(&redis, 1_000).await;
    hammer.stop().await;
    let asked = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"api","value":"hot"}]}]}"#;
    post_json(server.debug, "/counters/reset", asked).unwrap();
    let held = count(&redis);
    let mut client = connect(server.grpc).await;
    assert!(is_ok(&ask(&mut client, "shop", &[("api", "hot")]).await));
    eventually("nothing is free", async || {
        metric(&server, "slice_free_hits") == 0
    })
    .await;
    assert_eq!(count(&redis), held + 1);
}

#[tokio::test]
async fn explain_tells_how_many_hits_are_a_slice() {
    let redis = Redis::start();
    let server = tollgate::with_rules(&rules("1000000/year"))
        .redis(&redis)
        .start();
    let hammer = Hammer::start(&[&server], 4);
    let port = format!("http://{}", server.debug);
    let asked = [
        "explain", "--domain", "shop", "-d", "api=hot", "--server", &port,
    ];
    eventually("a slice is explained", async || {
        let output = finish(program().args(asked));
        let explained = String::from_utf8(output.stdout).unwrap();
        explained.contains(" are a slice of this process, ")
    })
    .await;
    hammer.stop().await;
}

#[test]
fn in_memory_it_has_no_effect_and_the_log_tells_that() {
    let server = tollgate::with_rules(&rules("1/day")).start();
    let warned = server.log().with("has no effect on counters in memory");
    assert!(
        warned.contains(":5:15: shop.api: note: `exact-leased`"),
        "{warned}"
    );
}
