//! The answers of rules while their Redis does not answer. Afterwards nothing is added to it.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    time::{Duration, Instant},
};

use ::tollgate::proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::{Code as Grpc, Status};

use crate::support::{
    GRAIN_MILLIS,
    ask::{Client, ask, connect, descriptor, give_back, is_degraded, request, send, with_hits},
    eventually,
    hoard::unread_replies,
    http,
    proxy::{Fault, Proxy},
    redis::Redis,
    steps::{ALGORITHMS, Rate, local_rules},
    storm::{STREAMS, Storm, What},
    tollgate::{self, Tollgate},
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

/// The code, and whether the reply is marked as made without the store.
fn reported(reply: Result<RateLimitResponse, Status>) -> Result<(Code, bool), Grpc> {
    let reply = reply.map_err(|status| status.code())?;
    Ok((reply.overall_code(), is_degraded(&reply)))
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

fn start(redis: &Redis, more: &[&str]) -> Tollgate {
    tollgate::with_rules(RULES)
        .redis_at(&redis.url(), "100ms")
        .args(more.iter().copied())
        .start()
}

async fn await_return(client: &mut Client) {
    eventually("Redis counts again", async || {
        reported(one(client, "allow").await).is_ok_and(|(_, is_degraded)| !is_degraded)
    })
    .await;
}

#[tokio::test]
async fn each_rule_answers_for_itself() {
    let mut redis = Redis::start();
    let server = start(&redis, &[]);
    let mut client = connect(server.grpc).await;
    for key in ["error", "allow", "deny", "local"] {
        assert_eq!(reported(one(&mut client, key).await), Ok((Code::Ok, false)));
    }
    assert_eq!(server.metric("tollgate_stores_lost"), 0);
    redis.kill();
    for _ in 0..3 {
        assert_eq!(
            reported(one(&mut client, "error").await),
            Err(Grpc::Unavailable)
        );
        assert_eq!(
            reported(one(&mut client, "allow").await),
            Ok((Code::Ok, true))
        );
        assert_eq!(
            reported(one(&mut client, "deny").await),
            Ok((Code::OverLimit, true))
        );
        assert_eq!(
            reported(one(&mut client, "local").await),
            Ok((Code::Ok, true))
        );
    }
    // One descriptor without an answer fails the whole request.
    let both = request(
        "d",
        vec![descriptor(&[("allow", "v")]), descriptor(&[("error", "v")])],
    );
    assert_eq!(
        reported(send(&mut client, both).await),
        Err(Grpc::Unavailable)
    );
    assert_eq!(server.metric("tollgate_stores_lost"), 1);
    assert_eq!(server.metric("tollgate_degraded_total"), 9);
    // Nobody was over a limit, and each rule says how often it was not decided by the store.
    let of_rule =
        |name: &str, labels: &str| server.metric(&format!("{name}{{domain=\"d\",{labels}}}"));
    for (key, count) in [("error", 4), ("allow", 4), ("deny", 3), ("local", 3)] {
        let name = "tollgate_rule_without_store_total";
        assert_eq!(of_rule(name, &format!("rule=\"{key}\"")), count, "{key}");
        let name = "ratelimit_service_rate_limit_over_limit";
        assert_eq!(of_rule(name, &format!("key1=\"{key}\"")), 0, "{key}");
    }
    let refused =
        "tollgate_rule_refused_hits_total{cause=\"on_store_loss\",domain=\"d\",rule=\"deny\"}";
    assert_eq!(server.metric(refused), 3);
    let snapshot = http::get(server.debug, "/snapshot").body;
    assert!(snapshot.contains("\"refusedByLoss\":3"), "{snapshot}");
    let top = http::get(server.debug, "/top").body;
    assert!(!top.contains("d.deny"), "{top}");
    redis.restart();
    await_return(&mut client).await;
    assert_eq!(
        reported(one(&mut client, "deny").await),
        Ok((Code::Ok, false))
    );
    wait_until("the return is told", || {
        server.metric("tollgate_stores_lost") == 0
    });
    for reported in [
        "the counter store does not answer; ",
        "rules are counted in the store again",
    ] {
        let log = server.log().with(reported);
        assert_eq!(log.matches(reported).count(), 1, "{log}");
    }
}

/// No request comes, so nothing but the start can report it.
#[test]
fn a_store_that_does_not_answer_at_the_start_is_reported_with_what_clients_get() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let with_password = Redis::with(&["--requirepass", "sesame"]);
    let plain = Redis::start();
    let stores = [
        (
            format!("redis://{}", silent.local_addr().unwrap()),
            "is silent",
        ),
        (format!("redis://{closed}"), "Connection refused"),
        (
            "redis://nowhere.invalid:6379".to_owned(),
            "Name or service not known",
        ),
        (format!("redis://{}", with_password.address()), "NOAUTH"),
        // It is silent until the handshake has taken too long.
        (format!("rediss://{}", plain.address()), ": "),
    ];
    let effect = "the counter store does not answer; \
                  1 rule answers `error`: Envoy lets its requests pass unless failure_mode_deny is set; \
                  1 rule answers `allow`: its requests pass; \
                  1 rule answers `deny`: its requests are refused; \
                  3 rules answer `local`: this replica counts their requests on its own";
    for (url, cause) in stores {
        let server = tollgate::with_rules(RULES).redis_by_default(&url).start();
        let log = server.log().with("the counter store does not answer; ");
        let line = |begin: &str| -> serde_json::Value {
            let found = log.lines().find(|line| line.contains(begin));
            serde_json::from_str(found.unwrap()).unwrap()
        };
        assert_eq!(line("is ready")["store"], "redis, not reachable", "{log}");
        let loss = line("does not answer");
        assert_eq!(loss["@message"], effect, "{log}");
        assert_eq!(server.metric("tollgate_stores_lost"), 1, "{cause}");
        let error = loss["error"].as_str().unwrap();
        assert!(error.contains(cause), "{cause}: {log}");
    }
    let server = tollgate::with_rules(RULES)
        .redis_by_default(&plain.url())
        .start();
    let log = server.log().text();
    assert!(log.contains("\"store\":\"redis\""), "{log}");
}

/// Each Redis is reported with the rules that it counts for.
#[test]
fn the_effect_of_a_lost_redis_is_that_on_its_own_rules() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let closed = format!("redis://{closed}");
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
    for (store, effect) in [
        (
            "redis",
            "1 rule answers `error`: Envoy lets its requests pass unless failure_mode_deny is set; 1 rule answers `deny`: its requests are refused",
        ),
        (
            "redis_per_second",
            "2 rules answer `error`: Envoy lets their requests pass unless failure_mode_deny is set",
        ),
    ] {
        let log = server.log().with(effect);
        let found = log
            .lines()
            .find(|line| line.contains(&format!("not answer; {effect}")));
        let line: serde_json::Value = serde_json::from_str(found.unwrap()).unwrap();
        assert_eq!(line["store"], store, "{log}");
    }
}

/// 40 of 100 hits are spent when Redis is lost, and half of all are this replica's.
#[tokio::test]
async fn a_replica_spends_its_share_and_forgets_it() {
    for key in ["local", "log", "tokens"] {
        let redis = Redis::start();
        let server = start(&redis, &["--replicas", "2", "--workers", "1"]);
        let mut client = connect(server.grpc).await;
        assert_eq!(passing(&mut client, key, 40).await, 40);
        redis.freeze();
        assert_eq!(passing(&mut client, key, 60).await, 50, "{key}");
        redis.thaw();
        await_return(&mut client).await;
        // Hits in flight when Redis froze may have counted too: a few, no more.
        let left = remaining(&mut client, key).await;
        assert!((35..=60).contains(&left), "{key}: {left} remain");
    }
}

/// A limit before the loss, a share in it, and a limit of a Redis without data.
#[tokio::test]
async fn a_client_may_use_one_more_window_after_a_loss() {
    for key in ["local", "log", "tokens"] {
        let mut redis = Redis::start();
        let server = start(&redis, &["--replicas", "4"]);
        let mut client = connect(server.grpc).await;
        assert_eq!(passing(&mut client, key, 100).await, 100);
        // Counters that were refused stay so: these were not.
        redis.kill();
        assert_eq!(passing(&mut client, key, 50).await, 25);
        redis.restart();
        await_return(&mut client).await;
        assert_eq!(remaining(&mut client, key).await, 100);
        assert_eq!(passing(&mut client, key, 100).await, 100);
        // The next loss begins empty again.
        redis.kill();
        assert_eq!(passing(&mut client, key, 50).await, 25);
    }
}

/// Used of 100 when Redis is killed.
const USED: usize = 90;
const ROWS: [&str; 2] = ["local", "log"];

/// How many of 200 calls of each client pass, one client after the other.
async fn passing_each(clients: &mut [Client], key: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for client in clients {
        all.push(passing(client, key, 200).await);
    }
    all
}

#[tokio::test]
async fn workers_of_one_process_have_one_share() {
    for key in ROWS {
        let mut redis = Redis::start();
        let server = start(&redis, &["--replicas", "2", "--workers", "2"]);
        // Workers get connections in turn.
        let mut clients = [connect(server.grpc).await, connect(server.grpc).await];
        assert_eq!(passing(&mut clients[0], key, USED).await, USED);
        redis.kill();
        assert_eq!(passing_each(&mut clients, key).await, [50, 0], "{key}");
    }
}

#[tokio::test]
async fn each_replica_has_its_share_whatever_was_used() {
    for key in ROWS {
        let mut redis = Redis::start();
        let servers = [(); 2].map(|()| start(&redis, &["--replicas", "2"]));
        let mut clients = [
            connect(servers[0].grpc).await,
            connect(servers[1].grpc).await,
        ];
        assert_eq!(passing(&mut clients[0], key, USED).await, USED);
        redis.kill();
        assert_eq!(passing_each(&mut clients, key).await, [50, 50], "{key}");
    }
}

/// Replicas that cannot count themselves, because they start during a loss, admit one hit of each counter.
#[tokio::test]
async fn replicas_that_start_during_a_loss_admit_one_hit_until_they_know_their_number() {
    let mut redis = Redis::start();
    redis.kill();
    let servers = [(); 2].map(|()| start(&redis, &["--replicas", "0"]));
    let mut clients = [
        connect(servers[0].grpc).await,
        connect(servers[1].grpc).await,
    ];
    for key in ROWS {
        assert_eq!(passing_each(&mut clients, key).await, [1, 1], "{key}");
    }
    for server in &servers {
        assert_eq!(server.metric("tollgate_replicas"), 0);
        server.log().with("this one admits one hit of each counter");
    }
    redis.restart();
    wait_until("they count themselves", || {
        let mut all = servers.iter();
        all.all(|server| server.metric("tollgate_replicas") == 2)
    });
}

/// The warning names the way out.
#[test]
fn a_start_without_a_number_of_replicas_warns_where_rules_count_locally() {
    let redis = Redis::start();
    let plain = "domain: d\ndescriptors: [{key: k, rate_limits: [1/year]}]";
    for (rules, args, place) in [
        (RULES, &["--replicas", "0"][..], "rules.yaml:8:33: "),
        (
            plain,
            &["--replicas", "0", "--on-store-loss", "local"],
            "--on-store-loss: `local`",
        ),
    ] {
        let builder = tollgate::with_rules(rules).redis_at(&redis.url(), "100ms");
        let server = builder.args(args.iter().copied()).start();
        let log = server.log().with("set --replicas N");
        assert!(log.contains(place), "{log}");
    }
    let server = start(&redis, &["--replicas", "1"]);
    let mut log = server.log().with("tollgate is ready");
    log.retain(|letter| letter != '\n');
    assert!(!log.contains("set --replicas N"), "{log}");
}

#[tokio::test]
async fn the_answer_of_a_setting_is_that_of_rules_that_do_not_say() {
    let mut redis = Redis::start();
    redis.kill();
    let server = tollgate::with_rules("domain: d\ndescriptors: [{key: k, rate_limits: [1/year]}]")
        .redis(&redis)
        .args(["--on-store-loss", "allow"])
        .start();
    let mut client = connect(server.grpc).await;
    assert_eq!(reported(one(&mut client, "k").await), Ok((Code::Ok, true)));
    // A limit in the request has no rule.
    let mut own = request("d", vec![descriptor(&[("other", "v")])]);
    own.descriptors[0].limit = Some(
        ::tollgate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride {
            requests_per_unit: 1,
            unit: 4,
            unit_multiplier: None,
        },
    );
    assert_eq!(reported(send(&mut client, own).await), Ok((Code::Ok, true)));
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

/// All hits that Redis holds for the values.
fn counted(redis: &Redis) -> usize {
    let keys = redis.keys();
    let counters = keys.iter().filter(|key| key.starts_with("{1:d1:k"));
    counters
        .map(|key| redis.cli(&["GET", key]).trim().parse::<usize>().unwrap())
        .sum()
}

fn await_answers_without_redis(server: &Tollgate, count: usize) {
    wait_until("the share is spent", || {
        server.metric("tollgate_degraded_total") >= count as u64
    });
}

fn await_end_of_loss(server: &Tollgate) {
    wait_until("Redis counts again", || {
        server.metric("tollgate_stores_lost") == 0
    });
}

/// Counted by each algorithm.
const SHORT: Rate = Rate { hits: 10, secs: 2 };

/// Half of each limit is asked for through two replicas in turn, before, during and after a loss of two periods.
#[tokio::test]
async fn a_steady_client_below_its_limit_is_refused_nothing_after_a_long_loss() {
    let mut redis = Redis::start();
    let servers = [(); 2].map(|()| {
        let builder = tollgate::with_rules(&local_rules(SHORT)).redis_at(&redis.url(), "100ms");
        builder.args(["--replicas", "2"]).start()
    });
    let mut clients = [
        connect(servers[0].grpc).await,
        connect(servers[1].grpc).await,
    ];
    let mut refused = Vec::new();
    let mut asked = 0_usize;
    let mut go_on = async |periods: u32, refused: &mut Vec<&str>| {
        let until = Instant::now() + periods * SHORT.period();
        let mut pace = tokio::time::interval(SHORT.period() / 5);
        while Instant::now() < until {
            pace.tick().await;
            let client = &mut clients[asked % 2];
            asked += 1;
            for algorithm in ALGORITHMS {
                let asked = one(client, &SHORT.key(algorithm)).await;
                let (code, _) = reported(asked).expect("an answer");
                if code != Code::Ok {
                    refused.push(algorithm);
                }
            }
        }
    };
    go_on(1, &mut refused).await;
    assert!(refused.is_empty(), "before: {refused:?}");
    redis.kill();
    go_on(2, &mut Vec::new()).await;
    redis.restart();
    go_on(2, &mut refused).await;
    assert!(refused.is_empty(), "after: {refused:?}");
}

/// Counted by each algorithm.
const FEW: Rate = Rate { hits: 4, secs: 3 };

/// The most hits of one value that pass within a period while Redis is gone. 60 values are asked for five times as often
/// as their limit allows, and 20 have room.
async fn densest_while_room_is_short(algorithm: &str) -> usize {
    const VALUES: usize = 60;
    let key = &FEW.key(algorithm);
    let mut redis = Redis::start();
    let server = tollgate::with_rules(&local_rules(FEW))
        .redis_at(&redis.url(), "100ms")
        .args(["--replicas", "1", "--max-counters", "20"])
        .start();
    let mut client = connect(server.grpc).await;
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
            let of_it = admitted
                .iter()
                .filter(|(sent, told)| *sent >= start && *told < end);
            of_it.count()
        };
        admitted.iter().map(|(sent, _)| within(*sent)).max()
    });
    densest.max().flatten().unwrap_or(0)
}

/// No algorithm forgets a counter in use.
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
    await_end_of_loss(&server);
    let (early, later) = (early.end().await, later.end().await);
    let admitted = later.degraded().count(What::Ok);
    assert!(
        admitted > 0 && admitted <= VALUES.len() * LIMIT / 2,
        "{admitted}"
    );
    let mut expected = 0;
    for answers in [early, later] {
        assert_eq!(answers.error_count(), 0, "{:?}", answers.errors());
        let since = answers.between(restarted, Instant::now());
        expected += since.0.len() - since.degraded().0.len();
    }
    wait_until("Redis holds all of them", || counted(&redis) >= expected);
    // On a busy machine a hit without an answer in time counts in both places.
    let twice = counted(&redis) - expected;
    assert!(twice <= 2 * STREAMS, "{twice} hits were counted twice");
}

/// One of two replicas does not reach Redis: it spends its share beside the limit.
#[tokio::test]
async fn a_replica_that_is_cut_off_admits_its_share_and_no_more() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let servers = [under_load(&redis.url()), under_load(&proxy.url())];
    let storm = Storm::start(&[servers[0].grpc, servers[1].grpc], &VALUES);
    wait_until("the load is there", || counted(&redis) > 100);
    proxy.set(Fault {
        swallows: true,
        ..Fault::default()
    });
    await_answers_without_redis(&servers[1], VALUES.len() * LIMIT);
    proxy.heal();
    await_end_of_loss(&servers[1]);
    let answers = storm.end().await;
    assert_eq!(answers.error_count(), 0, "{:?}", answers.errors());
    assert!(answers.degraded().count(What::Ok) <= VALUES.len() * LIMIT / 2);
    assert!(answers.ok() <= VALUES.len() * LIMIT * 3 / 2);
    let expected = answers.0.len() - answers.degraded().0.len();
    wait_until("Redis holds all of them", || counted(&redis) >= expected);
    let twice = counted(&redis) - expected;
    assert!(twice <= STREAMS, "{twice} hits were counted twice");
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
    let see = |servers: &[Tollgate], count| {
        wait_until("all see each other", || {
            let mut all = servers.iter();
            all.all(|server| server.metric("tollgate_replicas") == count)
        });
    };
    see(&servers, 3);
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
    see(&servers, 3);
    redis.restart();
    see(&servers, 3);
    servers.pop();
    see(&servers, 2);
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
    eventually("both are counted in two windows", async || {
        for (client, domain) in clients.iter_mut().zip(domains) {
            ask(client, domain, &[("local", "v")]).await.unwrap();
        }
        let keys = redis.keys();
        let counts_two = |key: &&String| {
            key.starts_with("{0:8:") && redis.cli(&["GET", key.as_str()]).trim() == "2"
        };
        windows.extend(keys.iter().filter(counts_two).cloned());
        windows.len() >= 4
    })
    .await;
    assert_eq!(servers[0].metric("tollgate_replicas"), 4);
    redis.kill();
    for (client, domain) in clients.iter_mut().zip(domains) {
        let mut admitted = 0;
        for _ in 0..100 {
            let reply = ask(client, domain, &[("local", "other")]).await;
            admitted += usize::from(reply.unwrap().overall_code() == Code::Ok);
        }
        assert_eq!(admitted, 50, "{domain}");
    }
}

/// A replica without local counting leaves only counters in Redis.
#[tokio::test]
async fn replicas_are_counted_only_if_somebody_has_to_know() {
    let redis = Redis::start();
    let server = tollgate::with_rules("domain: d\ndescriptors: [{key: k, rate_limits: [1/year]}]")
        .redis(&redis)
        .args(["--replicas", "0"])
        .start();
    let mut client = connect(server.grpc).await;
    one(&mut client, "k").await.unwrap();
    assert_eq!(redis.keys().len(), 1);
    assert_eq!(server.metric("tollgate_replicas"), 0);
    // From the moment a rule needs it.
    std::fs::write(server.rules().join("rules.yaml"), RULES).unwrap();
    wait_until("it counts itself", || {
        server.metric("tollgate_replicas") == 1
    });
}

/// A full local table counts its existing values exactly and all others together: no value gets an error or a fresh
/// limit.
#[tokio::test]
async fn a_full_local_table_refuses_nobody_before_its_values_share_the_limit() {
    let mut redis = Redis::start();
    let small = ["--max-counters", "3", "--replicas", "1", "--workers", "1"];
    let server = start(&redis, &small);
    let mut client = connect(server.grpc).await;
    let ask_for = async |client: &mut Client, value: &str, hits: u64| {
        let asked = request("d", vec![with_hits(&[("local", value)], hits)]);
        reported(send(client, asked).await)
    };
    assert_eq!(ask_for(&mut client, "0", 1).await, Ok((Code::Ok, false)));
    redis.kill();
    for number in 0..50 {
        let value = number.to_string();
        assert_eq!(ask_for(&mut client, &value, 1).await, Ok((Code::Ok, true)));
    }
    // The first three values have counters, and the other 47 share one.
    for (value, left) in [("0", 99), ("49", 53)] {
        for (hits, code) in [(left, Code::Ok), (1, Code::OverLimit)] {
            let answer = ask_for(&mut client, value, hits).await;
            assert_eq!(answer, Ok((code, true)), "{value} {hits}");
        }
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
    for answer in ["error", "allow", "deny", "local"] {
        let redis = Redis::start();
        let server = tollgate::with_rules(LIMITS)
            .redis_at(&redis.url(), "60s")
            .args(["--workers", "1"])
            .args(["--on-store-loss", answer])
            .start();
        let mut client = connect(server.grpc).await;
        let mut asked = async || reported(ask(&mut client, "d", &[("k", "v")]).await);
        eventually("Redis counts", async || {
            asked().await == Ok((Code::Ok, false))
        })
        .await;
        let before = server.peak_bytes();
        redis.freeze();
        let message = request("d", vec![descriptor(&[("k", "v")])]).encode_to_vec();
        let _on_its_way = unread_replies(server.grpc, 1, 1, &message);
        wait_until("one call is on its way", || {
            let stats = server.page("/stats");
            stats.lines().any(|line| line.ends_with(".in_flight: 1"))
        });
        let _waiting = unread_replies(server.grpc, CONNECTIONS, CALLS, &message);
        let overloaded = "tollgate_decisions_without_store_total{cause=\"overloaded\"}";
        wait_until("more have come than may wait", || {
            server.metric(overloaded) > 0
        });
        let of_the_rule = match answer {
            "error" => Err(Grpc::ResourceExhausted),
            "deny" => Ok((Code::OverLimit, true)),
            _ => Ok((Code::Ok, true)),
        };
        assert_eq!(asked().await, of_the_rule, "{answer}");
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

/// A counter over its limit when Redis was lost stays refused by the cache, until its entry expires.
#[tokio::test]
async fn what_is_known_to_be_over_is_denied_without_redis() {
    let mut redis = Redis::start();
    let server = tollgate::with_rules(REMEMBERED)
        .redis_at(&redis.url(), "1s")
        .args(["--workers", "1", "--replicas", "1"])
        .start();
    let mut client = connect(server.grpc).await;
    for key in ["year", "log", "raised", "back", "second"] {
        // A window of a second may end in between.
        eventually("it is over", async || {
            reported(one(&mut client, key).await) == Ok((Code::OverLimit, false))
        })
        .await;
    }
    redis.kill();
    eventually("Redis is lost", async || {
        reported(one(&mut client, "other").await).is_ok()
            && server.metric("tollgate_stores_lost") == 1
            || {
                // A call that must be counted detects the loss.
                let new = ask(&mut client, "d", &[("year", "new")]).await;
                reported(new) == Ok((Code::Ok, true))
            }
    })
    .await;
    let check_over = async |client: &mut Client| {
        for key in ["year", "log"] {
            assert_eq!(
                reported(one(client, key).await),
                Ok((Code::OverLimit, false)),
                "{key}"
            );
        }
    };
    check_over(&mut client).await;
    // Reading a counter that is over its limit reports it as over.
    let look = request("d", vec![with_hits(&[("year", "v")], 0)]);
    assert_eq!(
        reported(send(&mut client, look).await),
        Ok((Code::OverLimit, false))
    );
    // After the end of its window nothing is known about it.
    eventually("the second is over", async || {
        reported(one(&mut client, "second").await) == Ok((Code::Ok, true))
    })
    .await;
    // After a refund it is not known to be over, and this process counts from zero.
    assert_eq!(
        reported(one(&mut client, "back").await),
        Ok((Code::OverLimit, false))
    );
    let back = request("d", vec![give_back(&[("back", "v")], 3)]);
    assert_eq!(
        reported(send(&mut client, back).await),
        Ok((Code::Ok, true))
    );
    for code in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(reported(one(&mut client, "back").await), Ok((code, true)));
    }
    // A reload with a higher limit forgets that counter only.
    let raised = REMEMBERED.replace(
        "key: raised, rate_limits: [2",
        "key: raised, rate_limits: [9",
    );
    std::fs::write(server.rules().join("rules.yaml"), raised).unwrap();
    eventually("the new limit is in use", async || {
        reported(one(&mut client, "raised").await) == Ok((Code::Ok, true))
    })
    .await;
    check_over(&mut client).await;
}
