//! tollgate on Redis: few commands, keys that expire, exact counts for many clients, and a Redis that is gone, stuck
//! or full of other data.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::support::{
    ask::{self, Client, ask, connect, descriptor, give_back, is_ok, request, send, with_hits},
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

/// A Redis, a server that counts there, and a client.
async fn started(rules: &str) -> (Redis, Tollgate, Client) {
    let redis = Redis::start();
    let server = tollgate::with_rules(rules).redis(&redis).start();
    let client = connect(server.grpc).await;
    (redis, server, client)
}

#[tokio::test]
async fn three_periods_are_one_pipeline_of_six_commands_and_then_of_three() {
    let (redis, server, mut client) = started(THREE_PERIODS).await;
    let pipelines = || server.metric("tollgate_redis_pipelines_total");
    for expected in [
        &["INCR", "EXPIRE", "INCR", "EXPIRE", "INCR", "EXPIRE"][..],
        &["INCR", "INCR", "INCR"],
    ] {
        let (monitor, before) = (redis.monitor(), pipelines());
        one(&mut client, "v").await.unwrap();
        let commands = monitor.commands();
        let names = commands.iter();
        let names = names.map(|words| words.split('"').nth(1).unwrap());
        // Questions on connections that carry nothing.
        let names: Vec<_> = names.filter(|name| *name != "PING").collect();
        assert_eq!(names, expected, "{commands:#?}");
        assert_eq!(pipelines(), before + 1);
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
    let answers = asking.join_all().await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
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
        let [period, number] = [period, number].map(|text| text.parse::<i64>().unwrap());
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
    let (redis, _server, mut client) = started(THREE_PERIODS).await;
    // It stores no keys, but computes their slots.
    let cluster = Redis::with(&["--cluster-enabled", "yes"]);
    let mut slots = Vec::new();
    for value in ["plain", "}{", "{}", &"long".repeat(100)] {
        redis.cli(&["FLUSHALL"]);
        one(&mut client, value).await.unwrap();
        let keys = redis.keys();
        let of = |key: &String| cluster.number(&["CLUSTER", "KEYSLOT", key]);
        let own: Vec<_> = keys.iter().map(of).collect();
        assert_eq!(own, [own[0]; 3], "{value}");
        slots.push(own[0]);
    }
    slots.dedup();
    assert!(slots.len() > 1, "all descriptors in slot {slots:?}");
}

/// A worker remembers which keys have a time to live; Redis may lose keys nevertheless.
#[tokio::test]
async fn a_key_that_redis_lost_gets_a_new_time_to_live() {
    let (redis, _server, mut client) = started(THREE_PERIODS).await;
    one(&mut client, "v").await.unwrap();
    redis.cli(&["FLUSHALL"]);
    one(&mut client, "v").await.unwrap();
    assert_eq!(redis.keys().len(), 3);
    eventually("each key has a time to live", async || {
        redis.keys_without_end() == 0
    })
    .await;
}

/// Passes connections on to `redis`, and breaks the one on which it sees the text that is set, once: in front of it if
/// it is an EXPIRE, and otherwise behind the piece that has it, of which the reply is lost. A text that begins with a
/// line feed leaves the connection open and silent.
fn breaking_proxy(redis: &Redis) -> (String, Arc<Mutex<Option<&'static str>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let set = Arc::<Mutex<Option<_>>>::default();
    let (breaks, behind) = (set.clone(), redis.address());
    thread::spawn(move || {
        for mut near in listener.incoming().map_while(Result::ok) {
            let Ok(mut far) = TcpStream::connect(&behind) else {
                continue;
            };
            let mut replies = (far.try_clone().unwrap(), near.try_clone().unwrap());
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
                let mut bytes = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = near.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..count]);
                    let mut breaks = breaks.lock().unwrap();
                    let found = breaks.and_then(|part: &str| Some((part, text.find(part)?)));
                    let passes = match found {
                        Some((part, at)) if part.ends_with("EXPIRE") => {
                            at + usize::from(part.starts_with('\n'))
                        }
                        _ => count,
                    };
                    if found.is_some() {
                        *breaks = None;
                        is_broken.store(true, SeqCst);
                    }
                    drop(breaks);
                    if far.write_all(&bytes[..passes]).is_err() || found.is_some() {
                        while found.is_some_and(|(part, _)| part.starts_with('\n')) {
                            if !matches!(near.read(&mut bytes), Ok(1..)) {
                                break;
                            }
                        }
                        // Redis reads all that was sent, and sees the end behind it.
                        let _ = far.shutdown(Shutdown::Write);
                        let _ = near.shutdown(Shutdown::Both);
                        return;
                    }
                }
                let _ = far.shutdown(Shutdown::Write);
            });
        }
    });
    (url, set)
}

/// A key that a broken or silent connection may have left without an end gets one although it is never asked for again.
#[tokio::test]
async fn no_key_is_left_without_a_time_to_live_by_a_connection_that_breaks() {
    const RULES: &str = "{domain: d, descriptors: [{key: k, rate_limits: [100/year]}]}";
    for (at, is_trusted, timeout) in [
        ("$6\r\nEXPIRE", false, "10s"),
        ("$4\r\nINCR", true, "10s"),
        ("\n$6\r\nEXPIRE", false, "200ms"),
    ] {
        let redis = Redis::start();
        let (url, breaks) = breaking_proxy(&redis);
        let server = tollgate::with_rules(RULES).redis_at(&url, timeout).start();
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
        assert_eq!(redis.keys().len(), 1, "{at}");
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

/// 64 callers on `clients` send `requests` requests for one value at once, of one to `most` hits; returns the number of
/// admitted hits.
async fn storm(clients: &[Client], value: &str, requests: u64, most: u64) -> u64 {
    let mut callers = JoinSet::new();
    for (caller, client) in (0..64).zip(clients.iter().cycle()) {
        let (mut client, value) = (client.clone(), value.to_owned());
        callers.spawn(async move {
            let mut admitted = 0;
            for number in (caller..requests).step_by(64) {
                let hits = 1 + number % most;
                let descriptor = with_hits(&[("k", &value)], hits);
                let response = send(&mut client, request("d", vec![descriptor])).await;
                admitted += if is_ok(&response) { hits } else { 0 };
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

/// The most hits of a request: each has one, or they have one to three in turn.
const MOST: [u64; 2] = [1, 3];

fn twenty_rules() -> String {
    let mut rules = "domain: d\ndescriptors:\n".to_owned();
    for (round, limit) in LIMITS.iter().enumerate() {
        for most in MOST {
            let value = format!("{round}-{most}");
            rules +=
                &format!("  - {{key: k, value: {value}, rate_limits: [{limit}/10000years]}}\n");
        }
    }
    rules
}

/// A request that would exceed the limit is refused as a whole but stays counted, so the admitted hits may miss the
/// limit by less than the largest request.
async fn check_twenty_storms(servers: &[&Tollgate]) {
    let clients = clients(servers).await;
    for most in MOST {
        for (round, limit) in LIMITS.into_iter().enumerate() {
            // At least two of each caller, and some that are refused.
            let requests = (limit + limit / 4) * 2 / (1 + most) + 128;
            let admitted = storm(&clients, &format!("{round}-{most}"), requests, most).await;
            let is_exact = admitted <= limit && admitted + most > limit;
            assert!(is_exact, "{admitted} of {limit} admitted in round {round}");
        }
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
    ask::is_answered(client, "d", &[("k", "v")]).await;
}

#[tokio::test]
async fn calls_fail_at_once_while_redis_is_gone_and_work_when_it_is_back() {
    let (mut redis, _server, mut client) = started(THREE_PERIODS).await;
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
async fn a_frozen_redis_is_not_waited_for() {
    let redis = Redis::start();
    let server = tollgate::with_rules(THREE_PERIODS)
        .redis_at(&redis.url(), "50ms")
        .start();
    let mut client = ask::answered(server.grpc, "d", &[("k", "v")]).await;
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

#[tokio::test]
async fn a_key_that_holds_something_else_fails_alone() {
    const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [1000000/10000years]}]";
    let (redis, _server, mut client) = started(RULES).await;
    one(&mut client, "bad").await.unwrap();
    let key = redis.keys().remove(0);
    redis.cli(&["DEL", &key]);
    redis.cli(&["RPUSH", &key, "an element"]);

    check_unavailable(one(&mut client, "bad").await, &[REFUSED]);
    let mut asking = JoinSet::new();
    for number in 0..100 {
        let (mut client, value) = (client.clone(), ["bad", "good"][number % 2]);
        asking.spawn(async move { (value, one(&mut client, value).await) });
    }
    for (value, answer) in asking.join_all().await {
        match value {
            "bad" => check_unavailable(answer, &[REFUSED]),
            _ => answer.unwrap(),
        }
    }
    // A text that is not a number is also refused, both for a read and for an addition.
    redis.cli(&["SET", &key, "some text"]);
    check_unavailable(one(&mut client, "bad").await, &[REFUSED]);
    let bad = [("k", "bad")];
    for descriptor in [with_hits(&bad, 0), give_back(&bad, 1)] {
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
    ask::answered(server.grpc, "d", &[("k", "v")]).await;
    assert!(!server.log().text().contains(PASSWORD));

    let server = start("wrong-password");
    let mut client = connect(server.grpc).await;
    check_unavailable(one(&mut client, "v").await, &[UNREACHABLE, TIMEOUT]);
    wait_until("the reason is told", || {
        let page = server.page("/healthcheck?verbose");
        page.contains("refuses the password (WRONGPASS)")
    });
    let log = server.log().text();
    assert!(!log.contains("wrong-password"), "{log}");
}

/// Waits until `/healthcheck` is good or bad.
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

#[tokio::test]
async fn limits_per_second_have_a_redis_of_their_own_and_health_follows_both() {
    const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [9/60s, 9/year]}]";
    let (redis, mut per_second) = (Redis::start(), Redis::start());
    let server = tollgate::with_rules(RULES)
        .redis(&redis)
        .args(["--health-follows-redis", "--redis-per-second"])
        .args(["--redis-per-second-url", &per_second.url()])
        .start();
    await_health(&server, true);
    one(&mut connect(server.grpc).await, "v").await.unwrap();
    for (redis, period) in [(&per_second, "}60@"), (&redis, "}31536000@")] {
        let keys = redis.keys();
        assert!(keys.len() == 1 && keys[0].contains(period), "{keys:?}");
    }
    per_second.kill();
    await_health(&server, false);
}

#[tokio::test]
async fn a_socket_a_name_and_a_database_lead_to_the_counters() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let redis = Redis::with(&["--unixsocket", &file("socket")]);
    let user = "ACL SETUSER gate on >open-sesame ~* +@all";
    redis.cli(&user.split(' ').collect::<Vec<_>>());
    let url = format!("redis://gate:open-sesame@{}/3\n", redis.address());
    std::fs::write(file("secret"), "gate:open-sesame\n").unwrap();
    std::fs::write(file("url"), url).unwrap();
    let socket = format!("unix://{}?db=2", file("socket"));
    for (database, arguments) in [
        (
            "2",
            &["--redis-url", &socket, "--redis-auth-file", &file("secret")][..],
        ),
        ("3", &["--redis-url-file", &file("url")]),
    ] {
        let server = tollgate::with_rules(THREE_PERIODS)
            .args(["--redis-timeout", "10s"])
            .args(arguments.iter().copied())
            .start();
        ask::answered(server.grpc, "d", &[("k", "v")]).await;
        assert_eq!(redis.number(&["-n", database, "DBSIZE"]), 3);
        let pages = server.page("/stats") + &server.page("/healthcheck?verbose");
        let reported = server.log().text() + &pages;
        assert!(!reported.contains("sesame"), "{reported}");
    }
}
