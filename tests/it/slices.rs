//! `docs/leases.md`: hot counters that a worker charges in advance. No hit passes that Redis has not counted.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use nix::sys::signal::Signal;
use tokio::{task::JoinSet, time::sleep};

use crate::support::{
    ask::{ask, connect, is_ok},
    cluster::Cluster,
    eventually,
    http::post_json,
    redis::Redis,
    tollgate::{self, Builder, Tollgate},
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
    clients: JoinSet<()>,
}

impl Hammer {
    fn start(servers: &[&Tollgate], clients: usize) -> Self {
        let mut hammer = Self {
            admitted: Arc::default(),
            decided: Arc::default(),
            is_over: Arc::default(),
            clients: JoinSet::new(),
        };
        for number in 0..clients {
            let address = servers[number % servers.len()].grpc;
            let (admitted, decided) = (hammer.admitted.clone(), hammer.decided.clone());
            let is_over = hammer.is_over.clone();
            hammer.clients.spawn(async move {
                let mut client = connect(address).await;
                while !is_over.load(SeqCst) {
                    match ask(&mut client, "shop", &[("api", "hot")]).await {
                        Ok(reply) => {
                            decided.fetch_add(1, SeqCst);
                            let passes = is_ok(&Ok(reply));
                            admitted.fetch_add(passes.into(), SeqCst);
                        }
                        // It was killed.
                        Err(_) => return,
                    }
                }
            });
        }
        hammer
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(SeqCst)
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

/// Two processes, while one is told to end and another is killed.
#[tokio::test]
async fn a_limit_is_used_up_exactly_and_what_is_charged_is_used_returned_or_lost_with_a_process() {
    const LIMIT: u64 = 30_000;
    let redis = Redis::start();
    let start = || {
        tollgate::with_rules(&rules("30000/year"))
            .redis(&redis)
            .start()
    };
    let (first, mut second, third) = (start(), start(), start());
    let hammer = Hammer::start(&[&first, &second, &third], 9);
    eventually("many pass", async || hammer.admitted() > 6_000).await;
    second.signal(Signal::SIGTERM);
    eventually("many more pass", async || hammer.admitted() > 9_000).await;
    assert!(second.wait().success());
    let lost = metric(&third, "slice_hits_total.taken");
    drop(third);
    let before = hammer.admitted();
    eventually("many more pass", async || {
        hammer.admitted() > before + 3_000
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
    eventually("the counter is full", async || {
        count(&redis) == LIMIT && metric(&first, "slice_free_hits") == 0
    })
    .await;
    let (more, decided) = hammer.stop().await;
    assert_eq!(held + more, LIMIT);
    assert!(decided >= more);
    assert!(metric(&first, "slice_passes_total") > 3_000);
}

/// Windows of a second. Every hit that passes is counted in one of them.
async fn check_windows(servers: Vec<Builder>, counts: impl Fn() -> HashMap<String, u64>) {
    const LIMIT: u64 = 400;
    let servers: Vec<_> = servers.into_iter().map(Builder::start).collect();
    let hammer = Hammer::start(&servers.iter().collect::<Vec<_>>(), 8);
    let mut windows = HashMap::new();
    for _ in 0..30 {
        sleep(Duration::from_millis(200)).await;
        for (key, count) in counts() {
            let most = windows.entry(key).or_insert(0);
            *most = count.max(*most);
        }
    }
    let (admitted, _) = hammer.stop().await;
    windows.extend(counts());
    assert!(windows.values().all(|count| *count <= LIMIT), "{windows:?}");
    let charged: u64 = windows.values().sum();
    assert!(
        windows.len() >= 5 && admitted <= charged,
        "{admitted} {windows:?}"
    );
    let passes: u64 = servers
        .iter()
        .map(|server| metric(server, "slice_passes_total"))
        .sum();
    assert!(passes > 100, "{passes}");
}

#[tokio::test]
async fn no_window_of_a_second_admits_more_than_its_limit() {
    let redis = Redis::start();
    let server = || tollgate::with_rules(&rules("400/second")).redis(&redis);
    check_windows(vec![server(), server()], || counts(&redis)).await;
}

#[tokio::test]
async fn so_it_is_in_a_cluster() {
    let cluster = Cluster::start(0);
    let url = cluster.url();
    let server = || tollgate::with_rules(&rules("400/second")).redis_at(&url, "10s");
    let all = || cluster.nodes.iter().flat_map(counts).collect();
    check_windows(vec![server(), server()], all).await;
}

/// Hits that were taken before a reset are used, and nothing is given back to the counter.
#[tokio::test]
async fn a_reset_counter_gets_no_slice_back() {
    let redis = Redis::start();
    let server = tollgate::with_rules(&rules("1000000/year"))
        .redis(&redis)
        .start();
    let hammer = Hammer::start(&[&server], 4);
    eventually("slices are taken", async || {
        metric(&server, "slice_passes_total") > 1_000
    })
    .await;
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
