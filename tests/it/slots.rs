//! `docs/concurrency.md`: at most so many requests in flight, through a real Envoy and directly.

use std::{
    fs,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep};

use crate::support::{
    Random,
    ask::*,
    cluster::Cluster,
    envoy::Envoy,
    eventually, finish,
    http::get_with,
    in_flight::InFlight,
    redis::{Monitor, Redis},
    tollgate::{self, Builder, Tollgate, program},
    wait_until,
    wall_clock::WallClock,
};

const LIMIT: u32 = 5;

fn rules(ttl: &str) -> String {
    format!(
        "
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {{ algorithm: concurrency, requests_per_unit: {LIMIT}, ttl: {ttl} }}
"
    )
}

/// The page's Envoy, with other ports, a shorter timeout of the route, a retry, and a header that tells the slot.
fn envoy(grpc: SocketAddr, service: &InFlight) -> Envoy {
    const ROUTE: &str = "route: { cluster: service, timeout: 0.3s, \
                         retry_policy: { retry_on: '5xx,reset', num_retries: 1 } }";
    const SLOT: &str = "request_headers_to_add: [{ header: { key: x-slot, \
                        value: '%DYNAMIC_METADATA(envoy.filters.http.ratelimit:reservation)%' } }]";
    let more = format!("{ROUTE}\n{:26}{SLOT}", "");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/concurrency.yaml");
    let page = fs::read_to_string(path).unwrap();
    let route = "route: { cluster: service, timeout: 60s }";
    assert!(page.contains(route));
    Envoy::of_page(&page.replace(route, &more), grpc, service.address)
}

fn begin(front: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(front).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-user: a\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

fn ask(front: SocketAddr, path: &str) -> u16 {
    get_with(front, path, &[("x-user", b"a")]).status
}

fn held(server: &Tollgate) -> u64 {
    counters(server, "get", "shop", ("user", "a")).expect("counters")[0]
}

fn slots(server: &Tollgate, event: &str) -> u64 {
    let name = format!("tollgate.slots_total.shop.user.{event}");
    stat(server, &name).unwrap_or(0)
}

/// The slots of the rule that were taken, freed, freed again, and left by themselves, and those that are held.
fn events(server: &Tollgate) -> ([u64; 4], u64) {
    let events = ["taken", "freed", "repeated", "expired"].map(|event| slots(server, event));
    let held_by_metrics = server.metric("tollgate_slots_held{domain=\"shop\",rule=\"user\"}");
    assert_eq!(held(server), held_by_metrics);
    (events, held_by_metrics)
}

/// A client that sends requests which end in all ways, and that leaves at any time.
fn client(front: SocketAddr, seed: u64, requests: u64) {
    let mut random = Random::new(seed);
    for _ in 0..requests {
        let millis = random.below(20);
        let path = match random.below(10) {
            0 => format!("/fail/{millis}"),
            1 => format!("/reset/{millis}"),
            2 | 3 => {
                let stream = begin(front, &format!("/answer/{}", 2 * millis));
                thread::sleep(Duration::from_millis(random.below(30)));
                drop(stream);
                continue;
            }
            4 if random.below(10) == 0 => "/answer/600".to_owned(),
            _ => format!("/answer/{millis}"),
        };
        let status = ask(front, &path);
        // The timeout of the route.
        assert!(path != "/answer/600" || [429, 504].contains(&status));
        if status == 429 {
            // At once it would be refused again.
            thread::sleep(Duration::from_millis(millis));
        }
    }
}

/// Twelve clients at once.
#[track_caller]
fn check(server: impl Fn(&str) -> Builder) {
    let seed = 42;
    let server = server(&rules("5s")).start();
    let service = InFlight::start();
    let envoy = envoy(server.grpc, &service);
    let front = envoy.listener("front");
    // A clean run. 504 is the answer of Envoy on a machine that is busy for longer than the timeout of the route.
    let are_expected = || (0..20).all(|_| [200, 429, 504].contains(&ask(front, "/answer/1")));
    thread::scope(|clients| {
        for _ in 0..12 {
            clients.spawn(|| assert!(are_expected()));
        }
    });
    wait_until("no slot is held", || held(&server) == 0);
    thread::scope(|clients| {
        for number in 0..12 {
            clients.spawn(move || client(front, seed + number, 200));
        }
    });
    let (arrived, late) = service.arrived();
    let name = thread::current().name().unwrap_or_default().to_owned();
    eprintln!("{name}: {late} of {arrived} had no answer in time");
    // They say nothing.
    assert!(4 * late < arrived);
    assert!(arrived > 60, "{arrived}");
    assert!(service.most() <= LIMIT);
    wait_until("no slot is held", || held(&server) == 0);
    // Envoy is killed while requests run.
    let running: Vec<_> = (0..8).map(|_| begin(front, "/answer/60000")).collect();
    wait_until("all slots are taken", || held(&server) == u64::from(LIMIT));
    wait_until("as many run as may", || service.most() >= LIMIT);
    drop(envoy);
    drop(running);
    wait_until("no slot is held after the ttl", || held(&server) == 0);
    assert_eq!(service.most(), LIMIT);
}

#[test]
fn no_more_requests_than_the_limit_are_in_flight_in_memory() {
    check(tollgate::with_rules);
}

#[test]
fn no_more_requests_than_the_limit_are_in_flight_in_redis() {
    let redis = Redis::start();
    check(|rules| tollgate::with_rules(rules).redis(&redis));
}

#[test]
fn no_more_requests_than_the_limit_are_in_flight_in_a_cluster() {
    let cluster = Cluster::start(0);
    check(|rules| tollgate::with_rules(rules).redis_at(&cluster.url(), "10s"));
}

async fn send_parts(client: &mut Client, parts: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    send(client, request("shop", parts)).await.unwrap()
}

async fn take(client: &mut Client) -> (Option<String>, RateLimitResponse) {
    let reply = send_parts(client, vec![descriptor(&[("user", "a")])]).await;
    (token(&reply), reply)
}

async fn free(client: &mut Client, token: &str) {
    let entries = [("user", "a"), ("tollgate.release", token)];
    let reply = send_parts(client, vec![descriptor(&entries)]).await;
    assert_eq!(reply.overall_code(), Code::Ok);
}

async fn each_store(ttl: &str, test: impl AsyncFn(Builder)) {
    test(tollgate::with_rules(&rules(ttl))).await;
    let redis = Redis::start();
    test(tollgate::with_rules(&rules(ttl)).redis(&redis)).await;
}

#[tokio::test]
async fn a_slot_is_freed_once_and_only_by_its_own_token() {
    each_store("1h", async |server| {
        let (server, mut client) = serve(server).await;
        let mut tokens = Vec::new();
        for left in (0..LIMIT).rev() {
            let (token, reply) = take(&mut client).await;
            let status = &reply.statuses[0];
            let limit = status.current_limit.as_ref().unwrap();
            assert_eq!((limit.requests_per_unit, limit.unit), (5, 0));
            assert_eq!(status.limit_remaining, left);
            assert_eq!(status.duration_until_reset, None);
            let metadata = reply.dynamic_metadata.unwrap();
            assert!(!metadata.fields.contains_key("reserved"));
            tokens.push(token.unwrap());
        }
        let (token, reply) = take(&mut client).await;
        assert_eq!((token, reply.overall_code()), (None, Code::OverLimit));
        let forged = format!("1.1.1.0{}", ".1-1".repeat(8));
        let (long, other) = ("1".repeat(65_536), tokens[0].replacen("2.", "3.", 1));
        for bad in ["", "x", &forged, &long, &other] {
            free(&mut client, bad).await;
        }
        assert_eq!(held(&server), 5);
        for _ in 0..3 {
            free(&mut client, &tokens[0]).await;
            assert_eq!(held(&server), 4);
        }
        // Negative hits are of no request.
        let back = give_back(&[("user", "a")], 2);
        send_parts(&mut client, vec![back]).await;
        assert_eq!(held(&server), 4);
        // Both orders of one message, as Envoy sends them for a rule with a budget and one with slots.
        let orders = ["tollgate.reservation", "tollgate.release"];
        let orders = orders.map(|order| descriptor(&[("user", "a"), (order, &tokens[1])]));
        send_parts(&mut client, orders.into()).await;
        // The forged token is of 1970: no slot of then could be freed.
        assert_eq!(events(&server), ([5, 2, 2, 0], 3));
        counters(&server, "reset", "shop", ("user", "a")).unwrap();
        assert_eq!(events(&server).1, 0);
        free(&mut client, &tokens[2]).await;
        // The reset has freed the last three.
        assert_eq!(events(&server), ([5, 5, 3, 0], 0));
        take(&mut client).await;
        assert_eq!(events(&server).1, 1);
    })
    .await;
}

/// Hits that are given back share no counter.
#[tokio::test]
async fn a_value_without_room_takes_no_slots_and_reserves_nothing() {
    let reserves = "domain: shop\ndescriptors: [{ key: user, reserve: { estimate: 2 }, rate_limits: [9/year] }]";
    for text in [&*rules("1h"), reserves] {
        let server = tollgate::with_rules(text).args(["--max-counters", "1"]);
        let (_server, mut client) = serve(server).await;
        let first = vec![descriptor(&[("user", "first")])];
        assert!(token(&send_parts(&mut client, first).await).is_some());
        for _ in 0..3 {
            let (token, reply) = take(&mut client).await;
            assert_eq!((token, reply.overall_code()), (None, Code::OverLimit));
        }
    }
}

/// Their ends get lost.
#[tokio::test]
async fn slots_that_leave_by_themselves_are_counted() {
    each_store("2s", async |server| {
        let (server, mut client) = serve(server).await;
        let mut tokens = Vec::new();
        for _ in 0..4 {
            tokens.extend(take(&mut client).await.0);
        }
        free(&mut client, &tokens[0]).await;
        eventually("three have left", async || slots(&server, "expired") == 3).await;
        // One ends later.
        free(&mut client, &tokens[1]).await;
        assert_eq!(events(&server), ([4, 1, 0, 3], 0));
    })
    .await;
}

async fn in_redis(redis: &Redis) -> (Tollgate, Client) {
    serve(tollgate::with_rules(&rules("1h")).redis(redis)).await
}

#[tokio::test]
async fn a_request_that_names_its_counter_twice_takes_the_slots_of_both() {
    let cluster = Cluster::start(0);
    let in_cluster = tollgate::with_rules(&rules("1h")).redis_at(&cluster.url(), "10s");
    check_twice(in_cluster).await;
    each_store("1h", check_twice).await;
}

async fn check_twice(server: Builder) {
    let (server, mut client) = serve(server).await;
    let twice = |hits: [u64; 2]| hits.map(|hits| with_hits(&[("user", "a")], hits)).to_vec();
    let reply = send_parts(&mut client, twice([3, 3])).await;
    assert_eq!((token(&reply), held(&server)), (None, 0));
    let reply = send_parts(&mut client, twice([2, 3])).await;
    let left = reply.statuses.iter().map(|status| status.limit_remaining);
    assert!(left.eq([3, 0]), "{reply:?}");
    assert_eq!(reply.overall_code(), Code::Ok);
    assert_eq!((held(&server), slots(&server, "taken")), (5, 1));
    assert_eq!(take(&mut client).await.0, None);
    for _ in 0..2 {
        free(&mut client, &token(&reply).unwrap()).await;
        assert_eq!((held(&server), slots(&server, "freed")), (0, 1));
    }
}

/// A release waits for Redis, because it can be repeated.
#[tokio::test]
async fn a_slot_that_is_freed_while_redis_is_away_is_free_when_it_is_back() {
    let redis = Redis::start();
    let (server, mut client) = in_redis(&redis).await;
    let (token, _) = take(&mut client).await;
    redis.freeze();
    free(&mut client, &token.unwrap()).await;
    redis.thaw();
    eventually("no slot is held", async || held(&server) == 0).await;
}

/// Requests that take one to three slots each, end in any order, and end again.
async fn check_history(server: &Tollgate, seed: u64) {
    let mut random = Random::new(seed);
    let mut client = connect(server.grpc).await;
    let (mut running, mut ended): (Vec<(String, u32)>, Vec<String>) = Default::default();
    for step in 0..600 {
        let held_before: u32 = running.iter().map(|(_, slots)| slots).sum();
        match random.below(5) {
            0 | 1 => {
                let slots = 1 + random.below(3);
                let part = with_hits(&[("user", "a")], slots);
                let reply = send_parts(&mut client, vec![part]).await;
                let slots = u32::try_from(slots).unwrap();
                let passes = held_before + slots <= LIMIT;
                assert_eq!(token(&reply).is_some(), passes, "{step} of {seed}");
                running.extend(token(&reply).map(|token| (token, slots)));
            }
            2 | 3 if !running.is_empty() => {
                let index = usize::try_from(random.below(running.len() as u64)).unwrap();
                let (token, _) = running.swap_remove(index);
                free(&mut client, &token).await;
                ended.push(token);
            }
            _ if !ended.is_empty() => {
                let index = usize::try_from(random.below(ended.len() as u64)).unwrap();
                free(&mut client, &ended[index]).await;
            }
            _ => {}
        }
        let slots: u32 = running.iter().map(|(_, slots)| slots).sum();
        assert_eq!(held(server), u64::from(slots), "{step} of {seed}");
    }
}

#[tokio::test]
async fn slots_are_those_of_running_requests_on_each_store() {
    let rules = rules("1h");
    let start = || tollgate::with_rules(&rules);
    check_history(&start().start(), 1).await;
    let [redis, per_second] = [(); 2].map(|()| Redis::start());
    check_history(&start().redis(&redis).start(), 2).await;
    redis.cli(&["flushall"]);
    let two = with_seconds(start().redis(&redis), &per_second);
    check_history(&two.start(), 3).await;
    let cluster = Cluster::start(0);
    check_history(&start().redis_at(&cluster.url(), "10s").start(), 4).await;
}

/// Slots leave by the clock of Redis, whatever those of the replicas say; and that clock can step.
#[tokio::test]
async fn no_clock_locks_slots_or_frees_those_of_running_requests() {
    let redis_clock = Arc::new(WallClock::start());
    let redis = Redis::with_wall_clock(&redis_clock);
    let clock = WallClock::start();
    let server = tollgate::with_rules(&rules("1h")).redis(&redis);
    let server = server.args(["--clock", "local"]).with_wall_clock(&clock);
    let (server, mut client) = serve(server).await;
    clock.set(7_200);
    let (token, _) = take(&mut client).await;
    clock.set(-7_200);
    assert_eq!(held(&server), 1);
    free(&mut client, &token.unwrap()).await;
    assert_eq!(held(&server), 0);
    // A slot that was taken by a clock of tomorrow leaves an hour from now.
    redis_clock.set(86_400);
    let (token, _) = take(&mut client).await;
    for (ahead, held_then) in [(0, 1), (3_590, 1), (3_620, 0)] {
        redis_clock.set(ahead);
        assert_eq!(held(&server), held_then);
    }
    free(&mut client, &token.unwrap()).await;
    assert_eq!(held(&server), 0);
}

/// The share of one of two replicas is three slots. Those of before run on.
#[tokio::test]
async fn a_rule_that_counts_locally_has_slots_of_its_own_while_redis_is_away() {
    let text = rules("1h").replace("- key: user", "- key: user\n    on_store_loss: local");
    let mut redis = Redis::start();
    let server = tollgate::with_rules(&text).redis_at(&redis.url(), "100ms");
    let (server, mut client) = serve(server.args(["--replicas", "2"])).await;
    let (before, _) = take(&mut client).await;
    redis.kill();
    let mut local = Vec::new();
    for _ in 0..5 {
        local.extend(take(&mut client).await.0);
    }
    assert_eq!(local.len(), 3);
    free(&mut client, &local[0]).await;
    assert!(take(&mut client).await.0.is_some());
    assert_eq!(take(&mut client).await.0, None);
    free(&mut client, &local[1]).await;
    // It is freed in the Redis that comes back, too, where it is unknown.
    free(&mut client, &before.unwrap()).await;
    redis.restart();
    eventually("Redis counts again", async || {
        let (token, reply) = take(&mut client).await;
        free(&mut client, &token.expect("a slot is free")).await;
        !is_degraded(&reply)
    })
    .await;
    assert_eq!(held(&server), 0);
}

#[tokio::test]
async fn a_reload_keeps_slots_under_another_limit_and_begins_anew_with_another_ttl() {
    let (server, mut client) = serve(tollgate::with_rules(&rules("1h"))).await;
    let mut tokens = Vec::new();
    for _ in 0..4 {
        tokens.extend(take(&mut client).await.0);
    }
    let reload = |ttl: &str, shown: &str| {
        let text = rules(ttl).replace("requests_per_unit: 5", "requests_per_unit: 3");
        fs::write(server.rules().join("rules.yaml"), text).unwrap();
        let is_loaded = || server.page("/rules").contains(shown);
        wait_until("the new rule is in force", is_loaded);
    };
    reload("1h", r#""rate":"3 in flight""#);
    free(&mut client, &tokens[0]).await;
    assert_eq!(take(&mut client).await.0, None);
    free(&mut client, &tokens[1]).await;
    assert!(take(&mut client).await.0.is_some());
    reload("30m", r#""ttlSecs":1800"#);
    assert_eq!(held(&server), 0);
    assert!(take(&mut client).await.0.is_some());
    free(&mut client, &tokens[2]).await;
    assert_eq!(held(&server), 1);
}

#[tokio::test]
async fn commands_tell_how_many_requests_are_in_flight_and_for_how_long() {
    let (server, mut client) = serve(tollgate::with_rules(&rules("1h"))).await;
    let port = format!("http://{}", server.debug);
    let of = ["--server", &port, "--domain", "shop", "-d", "user=a"];
    let check = |command: &[&str], expected: &str| {
        let output = finish(program().args(command).args(of));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(expected), "{text}");
    };
    let none = "limit 5 in flight: concurrency, each for 1h at most\n    none in flight, 5 left";
    check(&["explain"], none);
    for _ in 0..LIMIT {
        take(&mut client).await;
    }
    check(&["explain"], "5 in flight, 0 left, the oldest for 0s");
    let all = "5 of 5 in flight, 0 left, the oldest for 0s; concurrency";
    check(&["counters", "get"], all);
    check(&["counters", "reset"], "5 -> 0 of 5 in flight");
}

/// Eight clients of two replicas, while Redis and then one replica are killed. Redis keeps its data.
#[tokio::test]
async fn kills_of_redis_and_of_a_replica_let_no_more_requests_run() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let [first, second] =
        [(); 2].map(|()| tollgate::with_rules(&rules("10s")).redis(&redis).start());
    static RUNNING: AtomicU32 = AtomicU32::new(0);
    static MOST: AtomicU32 = AtomicU32::new(0);
    static PASSED: AtomicU32 = AtomicU32::new(0);
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let mut connections = [connect(first.grpc).await, connect(second.grpc).await];
        clients.spawn(async move {
            let mut random = Random::new(number);
            while !IS_OVER.load(SeqCst) {
                let [one, other] = [(); 2].map(|()| usize::from(random.below(2) == 1));
                let asked = request("shop", vec![descriptor(&[("user", "a")])]);
                let reply = send(&mut connections[one], asked).await;
                let Some(token) = reply.ok().as_ref().and_then(token) else {
                    sleep(Duration::from_millis(1)).await;
                    continue;
                };
                MOST.fetch_max(RUNNING.fetch_add(1, SeqCst) + 1, SeqCst);
                PASSED.fetch_add(1, SeqCst);
                sleep(Duration::from_millis(random.below(10))).await;
                RUNNING.fetch_sub(1, SeqCst);
                let entries = [("user", "a"), ("tollgate.release", &*token)];
                for connection in [other, 1 - other] {
                    let free = request("shop", vec![descriptor(&entries)]);
                    if send(&mut connections[connection], free).await.is_ok() {
                        break;
                    }
                }
            }
        });
    }
    let passing = async || {
        let before = PASSED.load(SeqCst);
        let pass = async || PASSED.load(SeqCst) >= before + 200;
        eventually("requests pass", pass).await;
    };
    passing().await;
    redis.kill();
    redis.restart();
    passing().await;
    drop(first);
    passing().await;
    IS_OVER.store(true, SeqCst);
    clients.join_all().await;
    assert!(MOST.load(SeqCst) <= LIMIT, "{MOST:?}");
    wait_until("no slot is held", || held(&second) == 0);
}

#[tokio::test]
async fn a_slot_is_taken_by_one_command_and_freed_by_another() {
    let redis = Redis::start();
    let (_server, mut client) = in_redis(&redis).await;
    // The first call loads the script.
    let (first, _) = take(&mut client).await;
    let sent = |monitor: &Monitor<'_>| monitor.commands().concat().matches("\"EVALSHA\"").count();
    let monitor = redis.monitor();
    let (token, _) = take(&mut client).await;
    assert_eq!(sent(&monitor), 1);
    let monitor = redis.monitor();
    free(&mut client, &token.unwrap()).await;
    assert_eq!(sent(&monitor), 1);
    drop(first);
    assert_eq!(redis.keys_without_end(), 0);
}

#[tokio::test]
async fn each_answer_to_a_lost_store_takes_no_slot() {
    for (answer, expected) in [
        ("error", None),
        ("allow", Some(Code::Ok)),
        ("deny", Some(Code::OverLimit)),
    ] {
        let policy = format!("- key: user\n    on_store_loss: {answer}");
        let text = rules("1h").replace("- key: user", &policy);
        let mut redis = Redis::start();
        let server = tollgate::with_rules(&text).redis_at(&redis.url(), "100ms");
        let (_server, mut client) = serve(server).await;
        redis.kill();
        let asked = request("shop", vec![descriptor(&[("user", "a")])]);
        let reply = send(&mut client, asked).await.ok();
        let code = reply.as_ref().map(RateLimitResponse::overall_code);
        assert_eq!(code, expected, "{answer}");
        assert_eq!(reply.as_ref().and_then(token), None, "{answer}");
    }
}
