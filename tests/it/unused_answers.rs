//! Answers with a lease that nobody uses: their clients have left, or Redis was late. What they charged is given back.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    thread,
    time::Duration,
};

use ::tollgate::proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use tokio::{io::AsyncWriteExt as _, task::JoinSet, time::timeout};

use crate::support::{
    ask::{connect, descriptor, request, send},
    cluster::Cluster,
    envoy::Envoy,
    eventually,
    histories::Random,
    http::post_json,
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(page);
    let page = fs::read_to_string(path).unwrap();
    let page = page.replace("domain: llm", "domain: shop");
    Envoy::of_page(&page, grpc, service)
}

/// The hits that a value holds; `None` while Redis does not answer.
fn held(server: &Tollgate, key: &str) -> Option<u64> {
    let asked = format!(
        r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"{key}","value":"a"}}]}}]}}"#
    );
    let reply = post_json(server.debug, "/counters/get", &asked).unwrap();
    let reply: serde_json::Value = serde_json::from_str(&reply.body).ok()?;
    reply["descriptors"][0]["counters"][0]["hits"].as_u64()
}

fn stat(server: &Tollgate, name: &str) -> u64 {
    let stats = server.page("/stats");
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// Sends requests of user and tenant `a`, each of which leaves within `longest`.
fn leave(front: SocketAddr, requests: u32, longest: Duration) {
    let clients = (0..4).map(|seed| {
        thread::spawn(move || {
            let mut random = Random::new(seed);
            for _ in 0..requests / 4 {
                let mut stream = TcpStream::connect(front).unwrap();
                let head = "GET /answer/0 HTTP/1.1\r\nhost: h\r\nx-user: a\r\nx-tenant: a\r\n\r\n";
                stream.write_all(head.as_bytes()).unwrap();
                let micros = u64::try_from(longest.as_micros()).unwrap();
                thread::sleep(Duration::from_micros(random.below(micros)));
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    clients
        .into_iter()
        .for_each(|client| client.join().unwrap());
}

/// The clients of a test.
#[expect(
    clippy::disallowed_methods,
    reason = "more clients are for people, and the program never reads it"
)]
fn clients() -> u32 {
    env::var("CLIENTS").map_or(600, |many| many.parse().unwrap())
}

#[track_caller]
fn check_leaving(start: impl Fn(Builder) -> Builder) {
    for (page, key) in [
        ("concurrency.yaml", "user"),
        ("token-budgets.yaml", "tenant"),
    ] {
        let server = start(tollgate::with_rules(RULES)).start();
        let service = InFlight::start();
        let envoy = envoy(page, server.grpc, service.address);
        let front = envoy.listener("front");
        for (requests, millis) in [(clients(), 3), (clients() * 2 / 3, 50)] {
            leave(front, requests, Duration::from_millis(millis));
            wait_until("nothing is held", || held(&server, key) == Some(0));
        }
        let unused = stat(&server, "tollgate.unused_answers_total");
        eprintln!("{page}: {unused} answers were not used");
        assert_eq!(stat(&server, "tollgate.unanswered_reservations_total"), 0);
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

/// Asks for a slot and tokens at the same time, as often as that, and returns how many calls were answered.
async fn ask_for_both(server: &Tollgate, calls: usize) -> usize {
    let mut client = connect(server.grpc).await;
    let mut asking = JoinSet::new();
    for key in ["user", "tenant"].into_iter().cycle().take(2 * calls) {
        let mut client = client.clone();
        let asked = request("shop", vec![descriptor(&[(key, "a")])]);
        asking.spawn(async move { send(&mut client, asked).await });
    }
    // The connection stays open while they wait.
    let replies = asking.join_all().await;
    let _ = &mut client;
    let is_answered = |reply: &Result<RateLimitResponse, _>| {
        reply
            .as_ref()
            .is_ok_and(|reply| reply.overall_code() == Code::Ok)
    };
    replies.iter().filter(|reply| is_answered(reply)).count()
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
    // Until the clock of Redis is known.
    eventually("both are answered", async || {
        ask_for_both(&server, 1).await == 2
    })
    .await;
    let before = [held(&server, "user"), held(&server, "tenant")];
    let slots = || {
        let stats = servers
            .iter()
            .map(|redis| redis.cli(&["info", "commandstats"]));
        stats
            .filter(|stats| stats.contains("cmdstat_zadd:calls=1,"))
            .count()
    };
    assert_eq!(slots(), 1);
    let mut connections: Vec<_> = servers
        .iter()
        .map(|redis| TcpStream::connect(redis.address()).unwrap())
        .collect();
    for _ in 0..10 {
        pause_all(&mut connections);
        assert_eq!(ask_for_both(&server, 4).await, 0);
    }
    eventually("nothing more is held", async || {
        [held(&server, "user"), held(&server, "tenant")] == before
    })
    .await;
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
    let server = tollgate::with_rules(RULES)
        .redis_at(&proxy.url(), "100ms")
        .start();
    eventually("both are answered", async || {
        ask_for_both(&server, 1).await == 2
    })
    .await;
    let before = [held(&server, "user"), held(&server, "tenant")];
    disturb(&server).await;
    eventually("nothing more is held", async || {
        [held(&server, "user"), held(&server, "tenant")] == before
    })
    .await;
    server
}

/// The answers come when no caller waits for them any more.
#[tokio::test]
async fn what_is_answered_too_late_is_given_back() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let server = check_given_back(&proxy, async |server| {
        // Each way takes so long: Redis charges in time, and its answer is late.
        proxy.set(Fault {
            latency: Duration::from_millis(70),
            ..Fault::default()
        });
        for _ in 0..20 {
            ask_for_both(server, 4).await;
        }
        proxy.heal();
    })
    .await;
    assert_eq!(stat(&server, "tollgate.unanswered_reservations_total"), 0);
}

/// Callers leave a millisecond after they have asked, when Redis cannot have answered yet.
#[tokio::test]
async fn callers_that_leave_before_redis_answers_hold_nothing() {
    const AT_ONCE: u32 = 50;
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let mut left = 0;
    let server = check_given_back(&proxy, async |server| {
        proxy.set(Fault {
            latency: Duration::from_millis(5),
            ..Fault::default()
        });
        let client = connect(server.grpc).await;
        for _ in 0..clients() / AT_ONCE {
            let mut asking = JoinSet::new();
            for key in ["user", "tenant"]
                .into_iter()
                .cycle()
                .take(AT_ONCE as usize)
            {
                let mut client = client.clone();
                let asked = request("shop", vec![descriptor(&[(key, "a")])]);
                asking.spawn(async move {
                    timeout(Duration::from_millis(1), send(&mut client, asked)).await
                });
            }
            let ends = asking.join_all().await;
            left += ends.iter().filter(|end| end.is_err()).count();
        }
        proxy.heal();
    })
    .await;
    assert!(left > 0, "each caller was answered");
    assert_eq!(stat(&server, "tollgate.unanswered_reservations_total"), 0);
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
    use prost::Message as _;
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let field = |name: &str, value: &str| {
        let [name, value] = [name, value]
            .map(|text| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat());
        [&[0], &*name, &*value].concat()
    };
    let headers = [
        field(":method", "POST"),
        field(":scheme", "http"),
        field(
            ":path",
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        ),
        field(":authority", "a"),
        field("content-type", "application/grpc"),
        field("te", "trailers"),
    ];
    let message = request("shop", vec![descriptor(&[("user", "a")])]).encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let message = [&[0], &length[..], &message].concat();
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers.concat()),
        frame(0, 1, 1, &message),
    ]
    .concat()
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
