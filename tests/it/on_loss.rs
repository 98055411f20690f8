//! The answers of rules while their Redis does not answer. Afterwards nothing is added to it.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    time::{Duration, Instant},
};

use prost::Message as _;
use tokio::task::JoinSet;
use tonic::Code as Grpc;

use crate::support::{
    GRAIN_MILLIS,
    ask::*,
    eventually,
    hoard::unread_replies,
    proxy::{Fault, Proxy},
    redis::Redis,
    steps::{ALGORITHMS, Rate, local_rules},
    storm::{Answers, STREAMS, Storm, What},
    tollgate::{self, Builder, Tollgate},
    wait_until,
};

const RULES: &str = "
domain: d
on_store_loss: deny
descriptors:
  - {key: error, on_store_loss: error, rate_limits: [100/year]}
  - {key: allow, on_store_loss: allow, rate_limits: [1/year]}
  - {key: deny, rate_limits: [100/year]}
  - {key: local, on_store_loss: local, rate_limits: [100/year]}
  - {key: log, on_store_loss: local, rate_limit: {unit: year, requests_per_unit: 100, algorithm: sliding_log}}
  - {key: tokens, on_store_loss: local, rate_limit: {unit: year, requests_per_unit: 100, algorithm: token_bucket}}
";

async fn one(client: &mut Client, key: &str) -> Result<RateLimitResponse, Status> {
    ask(client, "d", &[(key, "v")]).await
}

/// A code, and whether the reply is marked as made without the store.
type Reported = Result<(Code, bool), Grpc>;

const COUNTED: Reported = Ok((Code::Ok, false));
const ALLOWED: Reported = Ok((Code::Ok, true));
const DENIED: Reported = Ok((Code::OverLimit, true));

fn reported(reply: Result<RateLimitResponse, Status>) -> Reported {
    let reply = reply.map_err(|status| status.code())?;
    Ok((reply.overall_code(), is_degraded(&reply)))
}

async fn each(client: &mut Client, keys: &[&str]) -> Vec<Reported> {
    let mut all = Vec::new();
    for key in keys {
        all.push(reported(one(client, key).await));
    }
    all
}

async fn hits(client: &mut Client, entry: (&str, &str), hits: u64) -> Reported {
    reported(send(client, request("d", vec![with_hits(&[entry], hits)])).await)
}

/// How many of `calls` pass; none may fail.
async fn passing(client: &mut Client, key: &str, calls: usize) -> usize {
    let mut passing = 0;
    for _ in 0..calls {
        let (code, _) = reported(one(client, key).await).expect("an answer");
        passing += usize::from(code == Code::Ok);
    }
    passing
}

/// The remaining hits of a limit, read without counting.
async fn remaining(client: &mut Client, key: &str) -> u32 {
    let look = request("d", vec![with_hits(&[(key, "v")], 0)]);
    send(client, look).await.unwrap().statuses[0].limit_remaining
}

fn server(redis: &Redis, more: &[&str]) -> Builder {
    let server = tollgate::with_rules(RULES).redis_at(&redis.url(), "100ms");
    server.args(more.iter().copied())
}

async fn await_return(client: &mut Client) {
    eventually("Redis counts again", async || {
        reported(one(client, "allow").await).is_ok_and(|(_, is_degraded)| !is_degraded)
    })
    .await;
}

#[tokio::test]
async fn each_rule_answers_for_itself() {
    const KEYS: [&str; 4] = ["error", "allow", "deny", "local"];
    let mut redis = Redis::start();
    let (server, mut client) = serve(server(&redis, &[])).await;
    assert_eq!(each(&mut client, &KEYS).await, [COUNTED; 4]);
    assert_eq!(server.metric("tollgate_stores_lost"), 0);
    redis.kill();
    let fails = Err(Grpc::Unavailable);
    for _ in 0..3 {
        let expected = [fails, ALLOWED, DENIED, ALLOWED];
        assert_eq!(each(&mut client, &KEYS).await, expected);
    }
    // One descriptor without an answer fails the whole request.
    let both = ["allow", "error"].map(|key| descriptor(&[(key, "v")]));
    let both = send(&mut client, request("d", both.into())).await;
    assert_eq!(reported(both), fails);
    assert_eq!(server.metric("tollgate_stores_lost"), 1);
    assert_eq!(server.metric("tollgate_degraded_total"), 9);
    // Nobody was over a limit, and each rule says how often it was not decided by the store.
    for (key, count) in KEYS.into_iter().zip([4, 4, 3, 3]) {
        let metric =
            |name, label| server.metric(&format!("{name}{{domain=\"d\",{label}=\"{key}\"}}"));
        let without = metric("tollgate_rule_without_store_total", "rule");
        let over = metric("ratelimit_service_rate_limit_over_limit", "key1");
        assert_eq!((without, over), (count, 0), "{key}");
    }
    let refused =
        "tollgate_rule_refused_hits_total{cause=\"on_store_loss\",domain=\"d\",rule=\"deny\"}";
    assert_eq!(server.metric(refused), 3);
    let snapshot = server.page("/snapshot");
    assert!(snapshot.contains("\"refusedByLoss\":3"), "{snapshot}");
    let top = server.page("/top");
    assert!(!top.contains("d.deny"), "{top}");
    redis.restart();
    await_return(&mut client).await;
    assert_eq!(each(&mut client, &["deny"]).await, [COUNTED]);
    no_store_is_lost(&server).await;
    let log = server.log().with("rules are counted in the store again");
    for reported in [
        "the counter store does not answer; ",
        "are counted in the store again",
    ] {
        assert_eq!(log.matches(reported).count(), 1, "{log}");
    }
}

fn closed() -> String {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("redis://{}", socket.local_addr().unwrap())
}

fn line(log: &str, text: &str) -> serde_json::Value {
    let found = log.lines().find(|line| line.contains(text));
    serde_json::from_str(found.unwrap()).unwrap()
}

/// No request comes, so nothing but the start can report it.
#[test]
fn a_store_that_does_not_answer_at_the_start_is_reported_with_what_clients_get() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("redis://{}", silent.local_addr().unwrap());
    let with_password = Redis::with(&["--requirepass", "sesame"]);
    let plain = Redis::start();
    let effect = "the counter store does not answer; \
                  1 rule answers `error`: Envoy lets its requests pass unless failure_mode_deny is set; \
                  1 rule answers `allow`: its requests pass; \
                  1 rule answers `deny`: its requests are refused; \
                  3 rules answer `local`: this replica counts their requests on its own";
    for (url, cause) in [
        (&*silent_url, "is silent"),
        (&closed(), "Connection refused"),
        ("redis://nowhere.invalid:6379", "Name or service not known"),
        (&with_password.url(), "NOAUTH"),
        // It is silent until the handshake has taken too long.
        (&format!("rediss://{}", plain.address()), ": "),
    ] {
        let server = tollgate::with_rules(RULES).redis_by_default(url).start();
        let log = server.log().with("the counter store does not answer; ");
        let ready = line(&log, "is ready");
        assert_eq!(ready["store"], "redis, not reachable", "{log}");
        let loss = line(&log, "does not answer");
        assert_eq!(loss["@message"], effect, "{log}");
        assert_eq!(server.metric("tollgate_stores_lost"), 1, "{cause}");
        let error = loss["error"].as_str().unwrap();
        assert!(error.contains(cause), "{cause}: {log}");
    }
    let server = tollgate::with_rules(RULES).redis_by_default(&plain.url());
    let log = server.start().log().text();
    assert!(log.contains("\"store\":\"redis\""), "{log}");
}

#[test]
fn the_effect_of_a_lost_redis_is_that_on_its_own_rules() {
    let closed = closed();
    let rules = "\
domain: d
descriptors:
  - {key: short, rate_limits: [1/s]}
  - {key: both, rate_limits: [1/s, 1/min]}
  - {key: long, on_store_loss: deny, rate_limits: [1/min]}
";
    let server = tollgate::with_rules(rules)
        .redis_by_default(&closed)
        .args(["--redis-per-second", "--redis-per-second-url", &closed])
        .start();
    let one = "1 rule answers `error`: Envoy lets its requests pass unless failure_mode_deny is set; \
               1 rule answers `deny`: its requests are refused";
    let two =
        "2 rules answer `error`: Envoy lets their requests pass unless failure_mode_deny is set";
    for (store, effect) in [("redis", one), ("redis_per_second", two)] {
        let log = server.log().with(effect);
        let line = line(&log, &format!("not answer; {effect}"));
        assert_eq!(line["store"], store, "{log}");
    }
}

/// Rules of 100 hits that count locally, one of each kind.
const ROWS: [&str; 3] = ["local", "log", "tokens"];

/// 40 of 100 hits are spent when Redis is lost, and half of all are this replica's.
#[tokio::test]
async fn a_replica_spends_its_share_and_forgets_it() {
    let mut redis = Redis::start();
    let (server, mut client) = serve(server(&redis, &["--replicas", "2", "--workers", "1"])).await;
    for key in ROWS {
        assert_eq!(passing(&mut client, key, 40).await, 40);
    }
    redis.freeze();
    for key in ROWS {
        assert_eq!(passing(&mut client, key, 60).await, 50, "{key}");
    }
    redis.thaw();
    await_return(&mut client).await;
    for key in ROWS {
        // Hits in flight when Redis froze may have counted too: a few, no more.
        let left = remaining(&mut client, key).await;
        assert!((35..=60).contains(&left), "{key}: {left} remain");
    }
    no_store_is_lost(&server).await;
    redis.freeze();
    for key in ROWS {
        assert_eq!(passing(&mut client, key, 60).await, 50, "{key} again");
    }
    // A Redis that comes back empty gives the whole limit, and nothing of the loss is added to it.
    redis.kill();
    redis.restart();
    await_return(&mut client).await;
    let of_local = ("local", "v");
    assert_eq!(hits(&mut client, of_local, 100).await, COUNTED);
    let over = Ok((Code::OverLimit, false));
    assert_eq!(hits(&mut client, of_local, 1).await, over);
}

/// Used of 100 when Redis is killed.
const USED: usize = 90;

/// How many of 200 calls of each client pass, one client after the other.
async fn passing_each(clients: &mut [Client; 2], key: &str) -> [usize; 2] {
    let [one, other] = clients;
    [passing(one, key, 200).await, passing(other, key, 200).await]
}

/// A client of the first server, and one of the last; workers get connections in turn.
async fn clients(servers: &[Tollgate]) -> [Client; 2] {
    let last = servers.last().unwrap();
    [connect(servers[0].grpc).await, connect(last.grpc).await]
}

#[tokio::test]
async fn workers_of_one_process_have_one_share_and_each_replica_has_its_own_whatever_was_used() {
    for (replicas, expected) in [(1, [50, 0]), (2, [50, 50])] {
        let mut redis = Redis::start();
        let start = |_| server(&redis, &["--replicas", "2", "--workers", "2"]).start();
        let servers: Vec<_> = (0..replicas).map(start).collect();
        let mut clients = clients(&servers).await;
        for key in &ROWS[..2] {
            assert_eq!(passing(&mut clients[0], key, USED).await, USED);
        }
        redis.kill();
        for key in &ROWS[..2] {
            assert_eq!(passing_each(&mut clients, key).await, expected, "{key}");
        }
    }
}

/// Replicas that cannot count themselves, because they start during a loss, admit one hit of each counter.
#[tokio::test]
async fn replicas_that_start_during_a_loss_admit_one_hit_until_they_know_their_number() {
    let mut redis = Redis::start();
    redis.kill();
    let servers = [(); 2].map(|()| server(&redis, &["--replicas", "0"]).start());
    let mut clients = clients(&servers).await;
    for key in ["local", "log"] {
        assert_eq!(passing_each(&mut clients, key).await, [1, 1], "{key}");
    }
    for server in &servers {
        assert_eq!(server.metric("tollgate_replicas"), 0);
        server.log().with("this one admits one hit of each counter");
    }
    redis.restart();
    await_replicas(&servers, 2);
}

#[track_caller]
fn await_replicas(servers: &[Tollgate], count: u64) {
    wait_until("all see each other", || {
        let mut all = servers.iter();
        all.all(|server| server.metric("tollgate_replicas") == count)
    });
}

const PLAIN: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [1/year]}]";

#[test]
fn a_start_without_a_number_of_replicas_warns_where_rules_count_locally() {
    let redis = Redis::start();
    let start = |rules, args: &[&str]| {
        let server = tollgate::with_rules(rules).redis_at(&redis.url(), "100ms");
        server.args(args.iter().copied()).start()
    };
    let by_default = ["--replicas", "0", "--on-store-loss", "local"];
    for (rules, args, place) in [
        (RULES, &by_default[..2], "rules.yaml:8:33: "),
        (PLAIN, &by_default, "--on-store-loss: `local`"),
    ] {
        let log = start(rules, args).log().with("set --replicas N");
        assert!(log.contains(place), "{log}");
    }
    let known = start(RULES, &["--replicas", "1"]);
    let mut log = known.log().with("tollgate is ready");
    log.retain(|letter| letter != '\n');
    assert!(!log.contains("set --replicas N"), "{log}");
}

#[tokio::test]
async fn the_answer_of_a_setting_is_that_of_rules_that_do_not_say() {
    let mut redis = Redis::start();
    redis.kill();
    let server = tollgate::with_rules(PLAIN).redis(&redis);
    let (_server, mut client) = serve(server.args(["--on-store-loss", "allow"])).await;
    assert_eq!(reported(one(&mut client, "k").await), ALLOWED);
    // A limit in the request has no rule.
    let own = request("d", vec![with_limit(&[("other", "v")], 1, 4)]);
    assert_eq!(reported(send(&mut client, own).await), ALLOWED);
}

/// Rules for 64 streams that send during the loss of Redis and after it; each of these limits gets used up.
const UNDER_LOAD: &str = "
domain: d
on_store_loss: local
descriptors: [{key: k, rate_limits: [600/10000years]}]
";
const LIMIT: usize = 600;
const VALUES: [&str; 4] = ["a", "b", "c", "d"];

/// Two replicas share the limits. The cache is off, because hits that it refuses are not counted in Redis.
fn under_load(url: &str) -> Tollgate {
    tollgate::with_rules(UNDER_LOAD)
        .redis_at(url, "100ms")
        .args(["--replicas", "2", "--local-cache-bytes", "0"])
        .start()
}

fn counted(redis: &Redis) -> usize {
    let keys = redis.keys();
    let counters = keys.iter().filter(|key| key.starts_with("{1:d1:k"));
    let counts = counters.map(|key| redis.number(&["GET", key]));
    counts.sum::<i64>().try_into().unwrap()
}

fn await_answers_without_redis(server: &Tollgate, count: usize) {
    wait_until("the share is spent", || {
        server.metric("tollgate_degraded_total") >= count as u64
    });
}

const SHORT: Rate = Rate { hits: 10, secs: 2 };

/// Half of each limit is asked for through two replicas in turn, before, during and after a loss of two periods.
#[tokio::test]
async fn a_steady_client_below_its_limit_is_refused_nothing_after_a_long_loss() {
    let mut redis = Redis::start();
    let servers = [(); 2].map(|()| {
        let builder = tollgate::with_rules(&local_rules(SHORT)).redis_at(&redis.url(), "100ms");
        builder.args(["--replicas", "2"]).start()
    });
    let mut clients = clients(&servers).await;
    let mut asked = 0_usize;
    let mut go_on = async |periods: u32| {
        let mut refused = Vec::new();
        let until = Instant::now() + periods * SHORT.period();
        let mut pace = tokio::time::interval(SHORT.period() / 5);
        while Instant::now() < until {
            pace.tick().await;
            let client = &mut clients[asked % 2];
            asked += 1;
            for algorithm in ALGORITHMS {
                if passing(client, &SHORT.key(algorithm), 1).await == 0 {
                    refused.push(algorithm);
                }
            }
        }
        refused
    };
    assert_eq!(go_on(1).await, [""; 0], "before");
    redis.kill();
    go_on(2).await;
    redis.restart();
    assert_eq!(go_on(2).await, [""; 0], "after");
}

const FEW: Rate = Rate { hits: 4, secs: 3 };

/// The most hits of one value in a period without Redis. 60 are asked for five times too often, and 20 have room.
async fn densest_while_room_is_short(algorithm: &str) -> usize {
    const VALUES: usize = 60;
    let key = &FEW.key(algorithm);
    let mut redis = Redis::start();
    let server = tollgate::with_rules(&local_rules(FEW)).redis_at(&redis.url(), "100ms");
    let server = server.args(["--replicas", "1", "--max-counters", "20"]);
    let (_server, mut client) = serve(server).await;
    assert_eq!(passing(&mut client, key, 1).await, 1);
    redis.kill();
    let began = Instant::now();
    // Hits come one by one, so that a counter lives on after its first ones.
    let mut pace = tokio::time::interval(FEW.period() / 20);
    let mut admitted = vec![Vec::new(); VALUES];
    while began.elapsed() < 4 * FEW.period() {
        pace.tick().await;
        for (value, admitted) in admitted.iter_mut().enumerate() {
            let value = value.to_string();
            let sent = began.elapsed();
            let asked = reported(ask(&mut client, "d", &[(key, &value)]).await);
            if asked.expect("an answer").0 == Code::Ok {
                admitted.push((sent, began.elapsed()));
            }
        }
    }
    let densest = admitted.iter().map(|admitted| {
        // A call counts at some moment between its start and its end.
        let within = |start: Duration| {
            let end = start + FEW.period() - Duration::from_millis(GRAIN_MILLIS);
            let calls = admitted.iter();
            let of_it = calls.filter(|(sent, told)| *sent >= start && *told < end);
            of_it.count()
        };
        admitted.iter().map(|(sent, _)| within(*sent)).max()
    });
    densest.max().flatten().unwrap_or(0)
}

#[tokio::test]
async fn a_value_in_use_gets_no_fresh_limit_while_local_room_is_short() {
    let mut all = JoinSet::new();
    for algorithm in ALGORITHMS {
        all.spawn(async move { (algorithm, densest_while_room_is_short(algorithm).await) });
    }
    for (algorithm, densest) in all.join_all().await {
        // Two windows touch. A value whose window from the first hit has ended may share one that began before that.
        let most = match algorithm {
            "first_hit" => 12,
            "sliding_log" => 4,
            _ => 8,
        };
        assert!(densest <= most, "{algorithm}: {densest}");
    }
}

/// No errors and at most the share; after its return, empty, Redis holds the hits that it counted itself.
#[tokio::test]
async fn a_kill_under_load_costs_no_answer_and_one_share() {
    let mut redis = Redis::start();
    let server = under_load(&redis.url());
    let early = Storm::start(&[server.grpc], &["early"]);
    wait_until("the load is there", || counted(&redis) > 100);
    redis.kill();
    // Nothing of these values' share was spent in Redis.
    let later = Storm::start(&[server.grpc], &VALUES);
    await_answers_without_redis(&server, 3 * VALUES.len() * LIMIT);
    redis.restart();
    let restarted = Instant::now();
    no_store_is_lost(&server).await;
    let (early, later) = (early.end().await, later.end().await);
    let admitted = later.degraded().count(What::Ok);
    let share = VALUES.len() * LIMIT / 2;
    assert!((1..=share).contains(&admitted), "{admitted}");
    check_counted(&redis, &[early, later], restarted);
}

/// No call failed, Redis holds all hits that it decided since then, and few of them twice.
#[track_caller]
fn check_counted(redis: &Redis, storms: &[Answers], since: Instant) {
    let mut expected = 0;
    for answers in storms {
        assert_eq!(answers.error_count(), 0, "{:?}", answers.errors());
        let since = answers.between(since, Instant::now());
        expected += since.0.len() - since.degraded().0.len();
    }
    wait_until("Redis holds all of them", || counted(redis) >= expected);
    // On a busy machine a hit without an answer in time counts in both places.
    let twice = counted(redis) - expected;
    assert!(twice <= storms.len() * STREAMS, "{twice} counted twice");
}

/// One of two replicas does not reach Redis: it spends its share beside the limit.
#[tokio::test]
async fn a_replica_that_is_cut_off_admits_its_share_and_no_more() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let servers = [under_load(&redis.url()), under_load(&proxy.url())];
    let began = Instant::now();
    let storm = Storm::start(&[servers[0].grpc, servers[1].grpc], &VALUES);
    wait_until("the load is there", || counted(&redis) > 100);
    proxy.set(Fault {
        swallows: true,
        ..Fault::default()
    });
    await_answers_without_redis(&servers[1], VALUES.len() * LIMIT);
    proxy.heal();
    no_store_is_lost(&servers[1]).await;
    let answers = storm.end().await;
    assert!(answers.degraded().count(What::Ok) <= VALUES.len() * LIMIT / 2);
    assert!(answers.ok() <= VALUES.len() * LIMIT * 3 / 2);
    check_counted(&redis, &[answers], began);
}

/// Three replicas on one Redis detect each other, and divide a limit accordingly when Redis is lost.
#[tokio::test]
async fn replicas_find_out_how_many_they_are() {
    let mut redis = Redis::start();
    // Hits that a busy machine returns too late may have counted, and are not sent again.
    let start = |_| {
        let builder = tollgate::with_rules(RULES).redis(&redis);
        builder.args(["--workers", "1", "--replicas", "0"]).start()
    };
    let mut servers: Vec<_> = (0..3).map(start).collect();
    await_replicas(&servers, 3);
    for server in &servers {
        let mut client = connect(server.grpc).await;
        assert_eq!(passing(&mut client, "local", 1).await, 1);
    }
    // The detected number stays while Redis is down, and also when Redis comes back empty.
    redis.kill();
    let mut admitted = 0;
    for server in &servers {
        let mut client = connect(server.grpc).await;
        admitted += passing(&mut client, "local", 50).await;
    }
    // A third of a hundred, rounded up.
    assert_eq!(admitted, 3 * 34);
    await_replicas(&servers, 3);
    redis.restart();
    await_replicas(&servers, 3);
    servers.pop();
    await_replicas(&servers, 2);
    let keys = redis.keys();
    let own = keys.iter().filter(|key| key.contains("{0:}10@"));
    assert!((1..=3).contains(&own.count()), "{keys:?}");
}

/// Two services of two replicas each share one Redis: the share of a limit is a half.
#[tokio::test]
async fn replicas_of_other_domains_do_not_make_a_share_smaller() {
    let mut redis = Redis::start();
    let start = |domain: &str| {
        let rules = RULES.replace("domain: d", &format!("domain: {domain}"));
        let builder = tollgate::with_rules(&rules).redis_at(&redis.url(), "100ms");
        builder.args(["--replicas", "0"]).start()
    };
    let domains = ["shop", "shop", "bank", "bank"];
    let servers = domains.map(start);
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(connect(server.grpc).await);
    }
    let mut windows = BTreeSet::new();
    eventually("both are counted in three windows", async || {
        for (client, domain) in clients.iter_mut().zip(domains) {
            ask(client, domain, &[("local", "v")]).await.unwrap();
        }
        let keys = redis.keys();
        let counts_two = |key: &&String| {
            key.starts_with("{0:8:")
                && !windows.contains(*key)
                && redis.cli(&["GET", key.as_str()]).trim() == "2"
        };
        let two: Vec<_> = keys.iter().filter(counts_two).cloned().collect();
        windows.extend(two);
        windows.len() >= 6
    })
    .await;
    assert_eq!(servers[0].metric("tollgate_replicas"), 4);
    redis.kill();
    for (client, domain) in clients.iter_mut().zip(domains) {
        let mut admitted = 0;
        for _ in 0..100 {
            admitted += usize::from(passes(client, domain, &[("local", "other")]).await);
        }
        assert_eq!(admitted, 50, "{domain}");
    }
}

#[tokio::test]
async fn replicas_are_counted_only_if_somebody_has_to_know() {
    let redis = Redis::start();
    let server = tollgate::with_rules(PLAIN).redis(&redis);
    let (server, mut client) = serve(server.args(["--replicas", "0"])).await;
    one(&mut client, "k").await.unwrap();
    assert_eq!(redis.keys().len(), 1);
    assert_eq!(server.metric("tollgate_replicas"), 0);
    // From the moment a rule needs it.
    std::fs::write(server.rules().join("rules.yaml"), RULES).unwrap();
    await_replicas(&[server], 1);
}

/// It counts its values exactly and all others together: none gets an error or a fresh limit.
#[tokio::test]
async fn a_full_local_table_refuses_nobody_before_its_values_share_the_limit() {
    let mut redis = Redis::start();
    let small = ["--max-counters", "3", "--replicas", "1", "--workers", "1"];
    let (server, mut client) = serve(server(&redis, &small)).await;
    let mut asked = async |value: &str, count| hits(&mut client, ("local", value), count).await;
    assert_eq!(asked("0", 1).await, COUNTED);
    redis.kill();
    for number in 0..50 {
        assert_eq!(asked(&number.to_string(), 1).await, ALLOWED);
    }
    // The first three values have counters, and the other 47 share one.
    for (value, left) in [("0", 99), ("49", 53)] {
        assert_eq!(asked(value, left).await, ALLOWED, "{value}");
        assert_eq!(asked(value, 1).await, DENIED, "{value}");
    }
    let reported = "no room for more counters";
    let log = server.log().with(reported);
    assert_eq!(log.matches(reported).count(), 1, "{log}");
    assert!(log.contains("raise --max-counters"), "{log}");
}

/// Requests beyond the queue of a silent Redis are answered at once as their rule says, without growing memory.
#[tokio::test]
async fn a_full_queue_is_answered_as_the_rules_say() {
    const LIMITS: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [10000000/10000years]}]";
    /// On each connection. While one call is on its way to Redis, 5,000 may wait (docs/run/redis.md).
    const CALLS: usize = 128;
    const CONNECTIONS: usize = 50;
    let fails = Err(Grpc::ResourceExhausted);
    let rows = [
        ("error", fails),
        ("allow", ALLOWED),
        ("deny", DENIED),
        ("local", ALLOWED),
    ];
    for (answer, expected) in rows {
        let redis = Redis::start();
        let server = tollgate::with_rules(LIMITS).redis_at(&redis.url(), "60s");
        let server = server.args(["--workers", "1", "--on-store-loss", answer]);
        let (server, mut client) = serve(server).await;
        let mut asked = async || reported(one(&mut client, "k").await);
        let counts = async || asked().await == COUNTED;
        eventually("Redis counts", counts).await;
        let before = server.peak_bytes();
        redis.freeze();
        let message = request("d", vec![descriptor(&[("k", "v")])]).encode_to_vec();
        let _on_its_way = unread_replies(server.grpc, 1, 1, &message);
        one_is_in_flight(&server).await;
        let _waiting = unread_replies(server.grpc, CONNECTIONS, CALLS, &message);
        let overloaded = "tollgate_decisions_without_store_total{cause=\"overloaded\"}";
        let is_full = || server.metric(overloaded) > 0;
        wait_until("more have come than may wait", is_full);
        assert_eq!(asked().await, expected, "{answer}");
        let grown = server.peak_bytes().saturating_sub(before);
        assert!(grown < 96 << 20, "{answer}: {grown} bytes more");
    }
}

const REMEMBERED: &str = "
domain: d
on_store_loss: allow
descriptors:
  - {key: year, rate_limits: [2/year]}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 2, algorithm: sliding_log}}
  - {key: second, rate_limits: [2/second]}
  - {key: raised, rate_limits: [2/year]}
  - {key: back, on_store_loss: local, rate_limits: [2/year]}
";

#[tokio::test]
async fn what_is_known_to_be_over_is_denied_without_redis() {
    let mut redis = Redis::start();
    let server = tollgate::with_rules(REMEMBERED)
        .redis_at(&redis.url(), "1s")
        .args(["--workers", "1", "--replicas", "1"]);
    let (server, mut client) = serve(server).await;
    let over = Ok((Code::OverLimit, false));
    for key in ["year", "log", "raised", "back", "second"] {
        // A window of a second may end in between.
        let is_over = async || reported(one(&mut client, key).await) == over;
        eventually("it is over", is_over).await;
    }
    redis.kill();
    // A call that must be counted detects the loss.
    eventually("Redis is lost", async || {
        hits(&mut client, ("year", "new"), 1).await == ALLOWED
    })
    .await;
    assert_eq!(each(&mut client, &["year", "log"]).await, [over; 2]);
    // Reading a counter that is over its limit reports it as over.
    assert_eq!(hits(&mut client, ("year", "v"), 0).await, over);
    // After the end of its window nothing is known about it.
    let is_unknown = async || reported(one(&mut client, "second").await) == ALLOWED;
    eventually("the second is over", is_unknown).await;
    // After a refund it is not known to be over, and this process counts from zero.
    assert_eq!(each(&mut client, &["back"]).await, [over]);
    let back = request("d", vec![give_back(&[("back", "v")], 3)]);
    assert_eq!(reported(send(&mut client, back).await), ALLOWED);
    let then = [ALLOWED, ALLOWED, DENIED];
    assert_eq!(each(&mut client, &["back"; 3]).await, then);
    // A reload with a higher limit forgets that counter only.
    let limit = "key: raised, rate_limits: [";
    let raised = REMEMBERED.replace(&format!("{limit}2"), &format!("{limit}9"));
    std::fs::write(server.rules().join("rules.yaml"), raised).unwrap();
    let is_loaded = async || reported(one(&mut client, "raised").await) == ALLOWED;
    eventually("the new limit is in use", is_loaded).await;
    assert_eq!(each(&mut client, &["year", "log"]).await, [over; 2]);
}
