//! tollgate on Redis: few commands, keys that expire, exact counts for many clients, and a Redis that is gone, stuck
//! or full of other data.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
};

use ::tollgate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::support::{
    ask::{Client, ask, connect, descriptor, is_ok, request, send},
    eventually, http,
    redis::Redis,
    tollgate::{self, Tollgate},
    wait_until,
};

const THREE_PERIODS: &str = "
domain: d
descriptors:
  - key: k
    rate_limits: [1000000/year, 2000000/2years, 3000000/3years]
";

/// Sends one request for one value.
async fn one(client: &mut Client, value: &str) -> Result<(), Status> {
    ask(client, "d", &[("k", value)]).await.map(|_| ())
}

#[tokio::test]
async fn three_periods_are_one_pipeline_of_six_commands_and_then_of_three() {
    let redis = Redis::start();
    let server = tollgate::with_rules(THREE_PERIODS).redis(&redis).start();
    let mut client = connect(server.grpc).await;
    let mut monitor = redis.monitor();
    for expected in [
        &["INCR", "EXPIRE", "INCR", "EXPIRE", "INCR", "EXPIRE"][..],
        &["INCR", "INCR", "INCR"],
    ] {
        let pipelines = server.metric("tollgate_redis_pipelines_total");
        one(&mut client, "v").await.unwrap();
        let commands = monitor.commands();
        let names: Vec<_> = commands
            .iter()
            .map(|command| command.split('"').nth(1).unwrap())
            // Questions on connections that carry nothing.
            .filter(|name| *name != "PING")
            .collect();
        assert_eq!(names, expected, "{commands:#?}");
        assert_eq!(
            server.metric("tollgate_redis_pipelines_total"),
            pipelines + 1
        );
        monitor = redis.monitor();
    }
}

#[tokio::test]
async fn a_thousand_requests_at_once_are_far_fewer_pipelines() {
    const REQUESTS: usize = 1000;
    let redis = Redis::start();
    let server = tollgate::with_rules(THREE_PERIODS).redis(&redis).start();
    let clients = clients(&[&server]).await;
    let mut asking = JoinSet::new();
    for number in 0..REQUESTS {
        let mut client = clients[number % clients.len()].clone();
        asking.spawn(async move { one(&mut client, &format!("v{}", number % 100)).await });
    }
    for answer in asking.join_all().await {
        answer.unwrap();
    }
    let pipelines = server.metric("tollgate_redis_pipelines_total");
    assert!(pipelines < REQUESTS as u64 / 4, "{pipelines} pipelines");
    // However requests were batched, every hit was counted.
    for key in redis.keys() {
        assert_eq!(redis.number(&["GET", &key]), 10, "{key}");
    }
}

#[tokio::test]
async fn every_key_has_the_prefix_and_lives_as_long_as_its_window() {
    const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limits: [9/second, 9/minute, 9/hour, 9/day, 9/week, 9/month, 9/year, 9/10000years]
";
    /// The longest time to live of any key.
    const HUNDRED_YEARS: i64 = 3_155_760_000;
    let redis = Redis::start();
    let server = tollgate::with_rules(RULES)
        .redis(&redis)
        .args(["--key-prefix", "tollgate:"])
        .start();
    one(&mut connect(server.grpc).await, "v").await.unwrap();
    let mut periods = Vec::new();
    for key in redis.keys() {
        let (start, window) = key.split_once("{1:d1:k1:v}").expect("a readable key");
        assert_eq!(start, "tollgate:");
        let (period, number) = window.split_once('@').unwrap();
        let period: i64 = period.parse().unwrap();
        let number: i64 = number.parse().unwrap();
        let left = redis.number(&["TTL", &key]);
        let now = i64::try_from(::tollgate::now().secs()).unwrap();
        let expected = ((number + 1) * period - now).min(HUNDRED_YEARS);
        // -2 means that the key expired after the listing; a key close to its expiry may do so.
        let is_gone = left == -2 && expected <= 0;
        assert!(
            is_gone || (expected - 5..=expected + 2).contains(&left),
            "{key}: {left} and not {expected}"
        );
        periods.push(period);
    }
    // The key of a limit per second may have expired.
    periods.retain(|&period| period > 1);
    assert_eq!(periods.len(), 7, "{periods:?}");
}

#[tokio::test]
async fn all_periods_of_one_descriptor_live_in_one_slot_of_a_cluster() {
    let redis = Redis::start();
    // It stores no keys, but computes their slots.
    let cluster = Redis::with(&["--cluster-enabled", "yes"]);
    let server = tollgate::with_rules(THREE_PERIODS).redis(&redis).start();
    let mut client = connect(server.grpc).await;
    let mut slots = Vec::new();
    for value in ["plain", "}{", "{}", &"long".repeat(100)] {
        redis.cli(&["FLUSHALL"]);
        one(&mut client, value).await.unwrap();
        let mut slots_of_value: Vec<_> = redis
            .keys()
            .iter()
            .map(|key| cluster.number(&["CLUSTER", "KEYSLOT", key]))
            .collect();
        assert_eq!(slots_of_value.len(), 3);
        slots_of_value.dedup();
        assert_eq!(slots_of_value.len(), 1, "{value}: {slots_of_value:?}");
        slots.extend(slots_of_value);
    }
    slots.dedup();
    assert!(slots.len() > 1, "all descriptors in slot {slots:?}");
}

/// A worker remembers which keys have a time to live; Redis may lose keys nevertheless.
#[tokio::test]
async fn a_key_that_redis_lost_gets_a_new_time_to_live() {
    let redis = Redis::start();
    let server = tollgate::with_rules(THREE_PERIODS).redis(&redis).start();
    let mut client = connect(server.grpc).await;
    one(&mut client, "v").await.unwrap();
    redis.cli(&["FLUSHALL"]);
    one(&mut client, "v").await.unwrap();
    let keys = redis.keys();
    assert_eq!(keys.len(), 3);
    for key in &keys {
        eventually("the key has a time to live", async || {
            redis.number(&["TTL", key]) > 0
        })
        .await;
    }
}

/// A connection to a Redis that breaks in the middle of a batch.
#[derive(Clone, Copy, Debug)]
enum Break {
    /// All in front of this text arrives, and so not the command that has it.
    Before(&'static str),
    /// All up to a command with this text arrives, and no reply.
    Behind(&'static str),
}

/// Passes connections on to `redis`, and breaks the one on which it sees the text that is set, once.
fn breaking_proxy(redis: &Redis) -> (String, Arc<Mutex<Option<Break>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let set = Arc::<Mutex<Option<Break>>>::default();
    let (breaks, behind) = (set.clone(), redis.address());
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(&behind) else {
                continue;
            };
            let mut replies = (far.try_clone().unwrap(), near.try_clone().unwrap());
            // Nobody replies any more once the connection is broken.
            let is_broken = Arc::<AtomicBool>::default();
            let (has_broken, breaks) = (is_broken.clone(), breaks.clone());
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = replies.0.read(&mut bytes) {
                    if has_broken.load(SeqCst) || replies.1.write_all(&bytes[..count]).is_err() {
                        return;
                    }
                }
            });
            thread::spawn(move || {
                pass_until_break(near, far, &is_broken, &breaks);
            });
        }
    });
    (url, set)
}

fn pass_until_break(
    mut near: TcpStream,
    mut far: TcpStream,
    is_broken: &AtomicBool,
    breaks: &Mutex<Option<Break>>,
) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = near.read(&mut bytes) {
        let mut passes = count;
        {
            let mut breaks = breaks.lock().unwrap();
            let text = String::from_utf8_lossy(&bytes[..count]);
            let found = breaks.and_then(|at| match at {
                Break::Before(part) => text.find(part),
                Break::Behind(part) => text.find(part).map(|_| count),
            });
            if let Some(at) = found {
                passes = at;
                *breaks = None;
                is_broken.store(true, SeqCst);
            }
        }
        let is_sent = far.write_all(&bytes[..passes]).is_ok();
        if !is_sent || is_broken.load(SeqCst) {
            // Redis reads all that was sent, and sees the end behind it.
            let _ = far.shutdown(Shutdown::Write);
            let _ = near.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = far.shutdown(Shutdown::Write);
}

/// A key that a broken connection may have left without an end gets one although it is never asked for again.
#[tokio::test]
async fn no_key_is_left_without_a_time_to_live_by_a_connection_that_breaks() {
    const RULES: &str = "{domain: d, descriptors: [{key: k, rate_limits: [100/year]}]}";
    for (at, is_trusted) in [
        (Break::Before("$6\r\nEXPIRE"), false),
        (Break::Behind("$4\r\nINCR"), true),
    ] {
        let redis = Redis::start();
        let (url, breaks) = breaking_proxy(&redis);
        let server = tollgate::with_rules(RULES).redis_at(&url, "10s").start();
        let mut client = connect(server.grpc).await;
        if is_trusted {
            one(&mut client, "v").await.unwrap();
            redis.cli(&["FLUSHALL"]);
        }
        *breaks.lock().unwrap() = Some(at);
        one(&mut client, "v").await.unwrap_err();
        eventually("the key is there", async || !redis.keys().is_empty()).await;
        eventually("the key has a time to live", async || {
            redis.keys_without_end() == 0
        })
        .await;
        assert_eq!(redis.keys().len(), 1, "{at:?}");
    }
}

/// Requests that need the script share pipelines with requests that need INCR alone. After SCRIPT FLUSH the script is
/// sent again, and a whole pipeline would be counted twice.
#[tokio::test]
async fn a_script_that_redis_forgot_is_sent_again_without_the_commands_beside_it() {
    const ROUNDS: u32 = 20;
    const CALLERS: u32 = 32;
    const RULES: &str = "
domain: d
descriptors:
  - key: plain
    rate_limits: [1000000/10000years]
  - key: scripted
    rate_limit: {requests_per_unit: 1000000, unit: year, algorithm: sliding_window}
";
    let redis = Redis::start();
    let server = tollgate::with_rules(RULES).redis(&redis).start();
    let clients = clients(&[&server]).await;
    let keys = ["plain", "scripted"];
    for round in 1..=ROUNDS {
        redis.cli(&["SCRIPT", "FLUSH"]);
        let mut callers = JoinSet::new();
        for (_, client) in (0..CALLERS).zip(clients.iter().cycle()) {
            let mut client = client.clone();
            let both = keys.map(|key| descriptor(&[(key, "v")])).to_vec();
            callers.spawn(async move { send(&mut client, request("d", both)).await });
        }
        let mut least = [u32::MAX; 2];
        for answer in callers.join_all().await {
            for (least, status) in least.iter_mut().zip(answer.unwrap().statuses) {
                *least = status.limit_remaining.min(*least);
            }
        }
        let expected = 1_000_000 - round * CALLERS;
        assert_eq!(least, [expected; 2], "{keys:?} in round {round}");
    }
    let answered = redis.cli(&["INFO", "errorstats"]);
    assert!(answered.contains("errorstat_NOSCRIPT"), "{answered}");
}

/// Four connections, distributed over `servers`.
async fn clients(servers: &[&Tollgate]) -> Vec<Client> {
    let mut clients = Vec::new();
    for number in 0..4 {
        clients.push(connect(servers[number % servers.len()].grpc).await);
    }
    clients
}

/// 64 callers on `clients` send `requests` requests for one value at once, the `n`th with `hits(n)`; returns the
/// number of admitted hits.
async fn storm(clients: &[Client], value: &str, requests: usize, hits: fn(usize) -> u64) -> u64 {
    const CALLERS: usize = 64;
    let mut callers = JoinSet::new();
    for (caller, client) in (0..CALLERS).zip(clients.iter().cycle()) {
        let mut client = client.clone();
        let descriptor = descriptor(&[("k", value)]);
        callers.spawn(async move {
            let mut admitted = 0;
            for number in (caller..requests).step_by(CALLERS) {
                let hits = hits(number);
                let descriptor = RateLimitDescriptor {
                    hits_addend: Some(hits),
                    ..descriptor.clone()
                };
                let response = send(&mut client, request("d", vec![descriptor])).await;
                if is_ok(&response) {
                    admitted += hits;
                }
            }
            admitted
        });
    }
    callers.join_all().await.iter().sum()
}

/// The limit of each of twenty rounds.
const LIMITS: [u64; 20] = [
    500, 1, 64, 63, 65, 128, 999, 250, 7, 333, 2, 500, 777, 31, 400, 100, 850, 3, 640, 500,
];

fn twenty_rules() -> String {
    let mut rules = "domain: d\ndescriptors:\n".to_owned();
    for (round, limit) in LIMITS.iter().enumerate() {
        rules +=
            &format!("  - {{key: k, value: round{round}, rate_limits: [{limit}/10000years]}}\n");
    }
    rules
}

async fn check_twenty_storms(servers: &[&Tollgate]) {
    let clients = clients(servers).await;
    for (round, limit) in LIMITS.into_iter().enumerate() {
        let admitted = storm(&clients, &format!("round{round}"), 2000, |_| 1).await;
        assert_eq!(admitted, limit, "round {round}");
    }
}

#[tokio::test]
async fn two_servers_on_one_redis_admit_exactly_the_limit_twenty_times_in_a_row() {
    let redis = Redis::start();
    let start = || tollgate::with_rules(&twenty_rules()).redis(&redis).start();
    check_twenty_storms(&[&start(), &start()]).await;
}

#[tokio::test]
async fn one_server_on_memory_admits_exactly_the_limit_twenty_times_in_a_row() {
    let server = tollgate::with_rules(&twenty_rules()).start();
    check_twenty_storms(&[&server]).await;
}

/// A request that would exceed the limit is refused as a whole but stays counted, so the admitted hits may miss the
/// limit by less than the largest request.
async fn check_hits_of_one_to_three(servers: &[&Tollgate]) {
    let clients = clients(servers).await;
    for (round, limit) in LIMITS.into_iter().enumerate() {
        let value = format!("round{round}");
        let admitted = storm(&clients, &value, 640, |number| [1, 2, 3][number % 3]).await;
        assert!(admitted <= limit, "{admitted} of {limit} admitted");
        assert!(admitted + 3 > limit, "{admitted} of {limit} admitted");
    }
}

#[tokio::test]
async fn admitted_hits_of_one_to_three_never_exceed_the_limit_on_redis() {
    let redis = Redis::start();
    let start = || tollgate::with_rules(&twenty_rules()).redis(&redis).start();
    check_hits_of_one_to_three(&[&start(), &start()]).await;
}

#[tokio::test]
async fn admitted_hits_of_one_to_three_never_exceed_the_limit_on_memory() {
    let server = tollgate::with_rules(&twenty_rules()).start();
    check_hits_of_one_to_three(&[&server]).await;
}

/// Expects an error that describes the failure without any address.
#[track_caller]
fn check_unavailable(answer: Result<(), Status>, texts: &[&str]) {
    let error = answer.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    assert!(texts.contains(&error.message()), "{error:?}");
}

const UNREACHABLE: &str = "the counter store is not reachable";
const TIMEOUT: &str = "the counter store did not answer in time";
const REFUSED: &str = "the counter store refused a command";

async fn works_again(client: &Client) {
    eventually("calls are answered again", async || {
        one(&mut client.clone(), "v").await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn calls_fail_at_once_while_redis_is_gone_and_work_when_it_is_back() {
    let mut redis = Redis::start();
    let server = tollgate::with_rules(THREE_PERIODS).redis(&redis).start();
    let mut client = connect(server.grpc).await;
    works_again(&client).await;
    for _ in 0..2 {
        redis.kill();
        for _ in 0..5 {
            // A request that waited in vain would get another error.
            check_unavailable(one(&mut client, "v").await, &[UNREACHABLE]);
        }
        redis.restart();
        works_again(&client).await;
        assert_eq!(redis.keys().len(), 3);
    }
}

#[tokio::test]
async fn tollgate_starts_before_its_redis() {
    let mut redis = Redis::start();
    redis.kill();
    let server = tollgate::with_rules(THREE_PERIODS).redis(&redis).start();
    let mut client = connect(server.grpc).await;
    check_unavailable(one(&mut client, "v").await, &[UNREACHABLE]);
    redis.restart();
    works_again(&client).await;
}

#[tokio::test]
async fn a_frozen_redis_is_not_waited_for() {
    let redis = Redis::start();
    let server = tollgate::with_rules(THREE_PERIODS)
        .redis_at(&redis.url(), "50ms")
        .start();
    let mut client = connect(server.grpc).await;
    works_again(&client).await;
    redis.freeze();
    check_unavailable(one(&mut client, "v").await, &[TIMEOUT, UNREACHABLE]);
    wait_until("the silence is noticed", || {
        let stats = server.page("/stats");
        stats.lines().any(|line| line.ends_with(".is_open: 1"))
    });
    // From now on no call waits.
    for _ in 0..3 {
        check_unavailable(one(&mut client, "v").await, &[UNREACHABLE]);
    }
    redis.thaw();
    works_again(&client).await;
}

/// A firewall between tollgate and a Redis.
struct Gateway {
    address: SocketAddr,
    /// Connections with lower numbers are dead; neither side is notified.
    alive_from: Arc<AtomicUsize>,
    made: Arc<AtomicUsize>,
}

impl Gateway {
    fn to(redis: &Redis) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gateway = Self {
            address: listener.local_addr().unwrap(),
            alive_from: Arc::default(),
            made: Arc::default(),
        };
        let behind = redis.url().replace("redis://", "");
        let (alive_from, made) = (gateway.alive_from.clone(), gateway.made.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(&behind).unwrap();
                let number = made.fetch_add(1, Relaxed);
                let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let alive_from = alive_from.clone();
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(length @ 1..) = from.read(&mut buffer) {
                        if number >= alive_from.load(Relaxed) {
                            to.write_all(&buffer[..length]).unwrap();
                        }
                    }
                });
                let (mut from, mut to) = (far, near);
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        });
        gateway
    }

    /// Drops the state of all connections so far.
    fn forget(&self) {
        self.alive_from.store(self.made.load(Relaxed), Relaxed);
    }
}

#[tokio::test]
async fn a_connection_that_fell_silent_is_replaced() {
    let redis = Redis::start();
    let gateway = Gateway::to(&redis);
    let server = tollgate::with_rules(THREE_PERIODS)
        .redis_at(&format!("redis://{}", gateway.address), "50ms")
        .start();
    let mut client = connect(server.grpc).await;
    works_again(&client).await;
    gateway.forget();
    check_unavailable(one(&mut client, "v").await, &[TIMEOUT]);
    works_again(&client).await;
}

#[tokio::test]
async fn a_key_that_holds_something_else_fails_alone() {
    const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [1000000/10000years]}]";
    let redis = Redis::start();
    let server = tollgate::with_rules(RULES).redis(&redis).start();
    let mut client = connect(server.grpc).await;
    one(&mut client, "bad").await.unwrap();
    let key = redis.keys().remove(0);
    redis.cli(&["DEL", &key]);
    redis.cli(&["RPUSH", &key, "an element"]);

    check_unavailable(one(&mut client, "bad").await, &[REFUSED]);
    let mut asking = JoinSet::new();
    for number in 0..100 {
        let mut client = client.clone();
        asking.spawn(async move {
            let is_bad = number % 2 == 0;
            let value = if is_bad { "bad" } else { "good" };
            (is_bad, one(&mut client, value).await)
        });
    }
    for (is_bad, answer) in asking.join_all().await {
        if is_bad {
            check_unavailable(answer, &[REFUSED]);
        } else {
            answer.unwrap();
        }
    }
    // A text that is not a number is also refused, both for a read and for an addition.
    redis.cli(&["SET", &key, "some text"]);
    check_unavailable(one(&mut client, "bad").await, &[REFUSED]);
    for (hits, is_negative_hits) in [(0, false), (1, true)] {
        let descriptor = RateLimitDescriptor {
            hits_addend: Some(hits),
            is_negative_hits,
            ..descriptor(&[("k", "bad")])
        };
        let answer = send(&mut client, request("d", vec![descriptor])).await;
        check_unavailable(answer.map(|_| ()), &[REFUSED]);
    }
}

#[tokio::test]
async fn a_password_works_and_is_never_told() {
    const PASSWORD: &str = "open-sesame";
    let redis = Redis::with_password(PASSWORD);
    let address = redis.url().replace("redis://", "");
    let start = |password: &str| {
        tollgate::with_rules(THREE_PERIODS)
            .redis_at(&format!("redis://:{password}@{address}"), "100ms")
            .args(["--log-level", "trace"])
            .start()
    };
    let server = start(PASSWORD);
    works_again(&connect(server.grpc).await).await;
    assert!(!server.log().text().contains(PASSWORD));

    let server = start("wrong-password");
    let mut client = connect(server.grpc).await;
    check_unavailable(one(&mut client, "v").await, &[UNREACHABLE, TIMEOUT]);
    wait_until("the reason is told", || {
        let page = http::get(server.http, "/healthcheck?verbose").body;
        page.contains("refuses the password (WRONGPASS)")
    });
    for path in ["/healthcheck?verbose", "/stats", "/metrics", "/rlconfig"] {
        for port in [server.http, server.debug] {
            assert!(!http::get(port, path).body.contains("wrong-password"));
        }
    }
    let log = server.log().text();
    assert!(!log.contains("wrong-password"), "{log}");
}

#[test]
fn an_address_that_cannot_be_read_is_refused_without_its_password() {
    for url in [
        "redis://:open-sesame@127.0.0.1:notaport",
        "http://:open-sesame@127.0.0.1",
    ] {
        let (_, text) = tollgate::with_rules(THREE_PERIODS)
            .args(["--redis-url", url])
            .fail();
        assert!(text.contains("not a Redis address"), "{text}");
        assert!(!text.contains("open-sesame"), "{text}");
    }
}

/// Waits until `/healthcheck` is good or bad, and the gRPC health of `ratelimit` agrees.
#[track_caller]
fn await_health(server: &Tollgate, is_good: bool) {
    let page = if is_good { 200 } else { 500 };
    wait_until("health follows Redis", || {
        http::get(server.http, "/healthcheck").status == page
    });
}

#[test]
fn health_follows_redis_if_it_is_told_to() {
    let mut redis = Redis::start();
    redis.kill();
    let follows = tollgate::with_rules(THREE_PERIODS)
        .redis(&redis)
        .env("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true")
        .start();
    let stays = tollgate::with_rules(THREE_PERIODS).redis(&redis).start();
    await_health(&follows, false);
    redis.restart();
    await_health(&follows, true);
    await_health(&stays, true);
    redis.kill();
    await_health(&follows, false);
    // Without the flag, health is that of the process.
    await_health(&stays, true);
    redis.restart();
    await_health(&follows, true);
}

#[test]
fn health_follows_a_frozen_redis_too() {
    let redis = Redis::start();
    let server = tollgate::with_rules(THREE_PERIODS)
        .redis(&redis)
        .args(["--health-follows-redis", "--redis-connect-timeout", "200ms"])
        .start();
    await_health(&server, true);
    redis.freeze();
    await_health(&server, false);
    redis.thaw();
    await_health(&server, true);
}

#[test]
fn health_follows_both_stores() {
    let redis = Redis::start();
    let mut per_second = Redis::start();
    let server = tollgate::with_rules(THREE_PERIODS)
        .redis(&redis)
        .args(["--health-follows-redis", "--redis-per-second"])
        .args(["--redis-per-second-url", &per_second.url()])
        .start();
    await_health(&server, true);
    per_second.kill();
    await_health(&server, false);
}

#[tokio::test]
async fn limits_per_second_have_a_redis_of_their_own() {
    const RULES: &str =
        "domain: d\ndescriptors: [{key: k, rate_limits: [1000/60seconds, 2000/year]}]";
    let redis = Redis::start();
    let per_second = Redis::start();
    let server = tollgate::with_rules(RULES)
        .redis(&redis)
        .args([
            "--redis-per-second",
            "--redis-per-second-url",
            &per_second.url(),
        ])
        .start();
    let mut client = connect(server.grpc).await;
    one(&mut client, "v").await.unwrap();
    let keys = |redis: &Redis| redis.keys().join(" ");
    assert!(keys(&per_second).contains("}60@"), "{}", keys(&per_second));
    assert!(keys(&redis).contains("}31536000@"), "{}", keys(&redis));
    assert_eq!((redis.keys().len(), per_second.keys().len()), (1, 1));
}

#[tokio::test]
async fn a_socket_a_name_and_a_database_lead_to_the_counters() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let redis = Redis::with(&["--unixsocket", &file("socket")]);
    redis.cli(&[
        "ACL",
        "SETUSER",
        "gate",
        "on",
        ">open-sesame",
        "~*",
        "+@all",
    ]);
    std::fs::write(file("secret"), "gate:open-sesame\n").unwrap();
    std::fs::write(
        file("url"),
        format!("redis://gate:open-sesame@{}/3\n", redis.address()),
    )
    .unwrap();
    let counted = |database: &str| redis.number(&["-n", database, "DBSIZE"]);
    let start = |arguments: &[&str]| {
        tollgate::with_rules(THREE_PERIODS)
            .args(["--redis-timeout", "10s"])
            .args(arguments.iter().copied())
            .start()
    };
    let socket = format!("unix://{}?db=2", file("socket"));
    let by_socket = start(&["--redis-url", &socket, "--redis-auth-file", &file("secret")]);
    works_again(&connect(by_socket.grpc).await).await;
    assert_eq!(counted("2"), 3);
    let by_file = start(&["--redis-url-file", &file("url")]);
    works_again(&connect(by_file.grpc).await).await;
    assert_eq!(counted("3"), 3);
    let reported =
        by_file.log().text() + &by_file.page("/stats") + &by_file.page("/healthcheck?verbose");
    assert!(!reported.contains("sesame"), "{reported}");
}

#[test]
fn a_secret_s_file_that_is_not_there_ends_the_start_by_its_name() {
    let (_, text) = tollgate::with_rules(THREE_PERIODS)
        .args([
            "--redis-url",
            "127.0.0.1:1",
            "--redis-auth-file",
            "/gone/secret",
        ])
        .fail();
    assert!(text.contains("/gone/secret cannot be read"), "{text}");
}
