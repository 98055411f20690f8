//! Answers with a lease that nobody uses: their clients have left, or Redis was late. What they charged is given back.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    thread,
    time::Duration,
};

use prost::Message as _;
use tokio::{io::AsyncWriteExt as _, task::JoinSet, time::timeout};

use crate::support::{
    Random,
    ask::*,
    cluster::Cluster,
    envoy::Envoy,
    eventually,
    frames::{DATA, PREFACE, SETTINGS, frame, headers},
    hoard::framed,
    in_flight::InFlight,
    proxy::{Fault, Proxy},
    redis::Redis,
    tollgate::{self, Builder, Tollgate},
    wait_until,
};

/// A slot of 50 and a budget of 200,000 tokens, neither of which frees itself while a test runs.
const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limits: [{ algorithm: concurrency, requests_per_unit: 50, ttl: 1h }]
  - key: tenant
    reserve: { estimate: 200, missing: zero }
    rate_limits: [200000/year]
";

/// The Envoy of a page, with other ports and this domain.
fn envoy(page: &str, grpc: SocketAddr, service: SocketAddr) -> Envoy {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = fs::read_to_string(docs.join(page)).unwrap();
    let page = page.replace("domain: llm", "domain: shop");
    Envoy::of_page(&page, grpc, service)
}

/// The hits that a value holds; `None` while Redis does not answer.
fn held(server: &Tollgate, key: &str) -> Option<u64> {
    Some(counters(server, "get", "shop", (key, "a"))?[0])
}

fn both_held(server: &Tollgate) -> [Option<u64>; 2] {
    [held(server, "user"), held(server, "tenant")]
}

/// Sends requests of user and tenant `a`, each of which leaves within `longest`.
fn leave(front: SocketAddr, requests: u32, longest: Duration) {
    const HEAD: &[u8] = b"GET /answer/0 HTTP/1.1\r\nhost: h\r\nx-user: a\r\nx-tenant: a\r\n\r\n";
    let micros = u64::try_from(longest.as_micros()).unwrap();
    thread::scope(|clients| {
        for seed in 0..4 {
            clients.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..requests / 4 {
                    let mut stream = TcpStream::connect(front).unwrap();
                    stream.write_all(HEAD).unwrap();
                    thread::sleep(Duration::from_micros(random.below(micros)));
                }
            });
        }
    });
}

const CLIENTS: u32 = 600;

#[track_caller]
fn check_answered(server: &Tollgate) {
    let unanswered = stat(server, "tollgate.unanswered_reservations_total");
    assert_eq!(unanswered, Some(0));
}

#[track_caller]
fn check_leaving(start: impl Fn(Builder) -> Builder) {
    let pages = ["concurrency.yaml", "token-budgets.yaml"];
    for (page, key) in pages.into_iter().zip(["user", "tenant"]) {
        let server = start(tollgate::with_rules(RULES)).start();
        let service = InFlight::start();
        let envoy = envoy(page, server.grpc, service.address);
        let front = envoy.listener("front");
        for (requests, millis) in [(CLIENTS, 3), (CLIENTS * 2 / 3, 50)] {
            leave(front, requests, Duration::from_millis(millis));
            wait_until("nothing is held", || held(&server, key) == Some(0));
        }
        let unused = stat(&server, "tollgate.unused_answers_total").unwrap();
        eprintln!("{page}: {unused} answers were not used");
        check_answered(&server);
    }
}

#[test]
fn clients_that_leave_hold_nothing_in_memory() {
    check_leaving(|server| server);
}

#[test]
fn clients_that_leave_hold_nothing_in_redis() {
    let redis = Redis::start();
    check_leaving(|server| server.redis(&redis));
}

#[test]
fn clients_that_leave_hold_nothing_in_a_cluster() {
    let cluster = Cluster::start(0);
    check_leaving(|server| server.redis_at(&cluster.url(), "10s"));
}

/// Calls for a slot and for tokens in turns, each of which waits so long for its reply at most.
fn calls(client: &Client, calls: usize, patience: Duration) -> JoinSet<Option<Reply>> {
    let keys = ["user", "tenant"].into_iter().cycle().take(calls);
    let asking = keys.map(|key| {
        let mut client = client.clone();
        let asked = request("shop", vec![descriptor(&[(key, "a")])]);
        async move { timeout(patience, send(&mut client, asked)).await.ok() }
    });
    asking.collect()
}

type Reply = Result<RateLimitResponse, Status>;

/// Asks for a slot and tokens at the same time, as often as that, and returns how many calls passed.
async fn ask_for_both(server: &Tollgate, times: usize) -> usize {
    // The connection stays open while they wait.
    let client = connect(server.grpc).await;
    let replies = calls(&client, 2 * times, Duration::MAX).join_all().await;
    let replies = replies.into_iter().flatten();
    let passed = replies.filter(|reply| reply.is_ok() && is_ok(reply));
    passed.count()
}

/// Waits until both are answered: then the clock of Redis is known. Returns what is held then.
async fn await_redis(server: &Tollgate) -> [Option<u64>; 2] {
    let are_answered = async || ask_for_both(server, 1).await == 2;
    eventually("both are answered", are_answered).await;
    both_held(server)
}

async fn await_held(server: &Tollgate, before: [Option<u64>; 2]) {
    let is_so = async || both_held(server) == before;
    eventually("nothing more is held", is_so).await;
}

/// Pauses Redis servers for longer than a call waits, and for less than makes a server count as lost. Together, on open
/// connections: one program after the other would find the first pause over.
fn pause_all(connections: &mut [TcpStream]) {
    for connection in &mut *connections {
        connection.write_all(b"CLIENT PAUSE 160 ALL\r\n").unwrap();
    }
    for connection in connections {
        let mut reply = [0; 5];
        connection.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
    }
}

/// Redis takes nothing for a caller that has left, by its own clock.
async fn check_paused(url: &str, servers: &[&Redis]) {
    let server = tollgate::with_rules(RULES).redis_at(url, "100ms").start();
    let before = await_redis(&server).await;
    let slots = || servers.iter().map(|redis| redis.calls("zadd")).sum::<u64>();
    assert_eq!(slots(), 1);
    let connect = |redis: &&Redis| TcpStream::connect(redis.address()).unwrap();
    let mut connections: Vec<_> = servers.iter().map(connect).collect();
    for _ in 0..10 {
        pause_all(&mut connections);
        assert_eq!(ask_for_both(&server, 4).await, 0);
    }
    await_held(&server, before).await;
    assert_eq!(slots(), 1, "a slot was taken, and freed later");
}

#[tokio::test]
async fn what_reaches_redis_after_its_caller_has_left_is_not_charged() {
    let redis = Redis::start();
    check_paused(&redis.url(), &[&redis]).await;
}

#[tokio::test]
async fn what_reaches_a_cluster_after_its_caller_has_left_is_not_charged() {
    let cluster = Cluster::start(0);
    let servers: Vec<_> = cluster.nodes.iter().collect();
    check_paused(&cluster.url(), &servers).await;
}

/// While `disturb` goes on nothing is charged for good. Returns the server.
async fn check_given_back(proxy: &Proxy, disturb: impl AsyncFnOnce(&Tollgate)) -> Tollgate {
    let server = tollgate::with_rules(RULES).redis_at(&proxy.url(), "100ms");
    let server = server.start();
    let before = await_redis(&server).await;
    disturb(&server).await;
    await_held(&server, before).await;
    server
}

fn late(millis: u64) -> Fault {
    Fault {
        latency: Duration::from_millis(millis),
        ..Fault::default()
    }
}

/// The answers come when no caller waits for them any more.
#[tokio::test]
async fn what_is_answered_too_late_is_given_back() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let server = check_given_back(&proxy, async |server| {
        // Each way takes so long: Redis charges in time, and its answer is late.
        proxy.set(late(70));
        for _ in 0..20 {
            ask_for_both(server, 4).await;
        }
        proxy.heal();
    })
    .await;
    check_answered(&server);
}

/// Callers leave a millisecond after they have asked, when Redis cannot have answered yet.
#[tokio::test]
async fn callers_that_leave_before_redis_answers_hold_nothing() {
    const AT_ONCE: u32 = 50;
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let mut left = 0;
    let server = check_given_back(&proxy, async |server| {
        proxy.set(late(5));
        let client = connect(server.grpc).await;
        for _ in 0..CLIENTS / AT_ONCE {
            let asking = calls(&client, AT_ONCE as usize, Duration::from_millis(1));
            let ends = asking.join_all().await;
            left += ends.iter().filter(|end| end.is_none()).count();
        }
        proxy.heal();
    })
    .await;
    assert!(left > 0, "each caller was answered");
    check_answered(&server);
}

/// A connection stands still while others work, as after a lost segment.
#[tokio::test]
async fn a_slot_that_is_taken_after_its_release_is_not_taken() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    check_given_back(&proxy, async |server| {
        for _ in 0..10 {
            // The probe's connection is held as well, but for less than makes Redis lost.
            proxy.hold_requests(Duration::from_millis(250));
            ask_for_both(server, 4).await;
            eventually("Redis answers", async || held(server, "user").is_some()).await;
        }
    })
    .await;
}

/// The bytes of a call over HTTP/2 that asks for a slot.
fn call() -> Vec<u8> {
    let message = request("shop", vec![descriptor(&[("user", "a")])]).encode_to_vec();
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    [begin, headers(1), frame(DATA, 1, 1, &framed(&message))].concat()
}

/// A connection that breaks, as that of an Envoy which is killed, has not used its last answers.
#[tokio::test]
async fn a_connection_that_breaks_frees_the_slots_of_its_last_answers() {
    let server = tollgate::with_rules(RULES).start();
    for _ in 0..20 {
        let mut stream = tokio::net::TcpStream::connect(server.grpc).await.unwrap();
        stream.write_all(&call()).await.unwrap();
        eventually("a slot is held", async || held(&server, "user") > Some(0)).await;
        // The answer is not read, so the connection is reset.
        drop(stream);
        eventually("no slot is held", async || held(&server, "user") == Some(0)).await;
    }
}
