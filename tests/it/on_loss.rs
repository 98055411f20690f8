//! What rules answer while their Redis does not, and what is counted for that afterwards.

use std::time::{Duration, Instant};

use ::tollgate::grpc::proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use tonic::{Code as Grpc, Status};

use crate::support::{
    ask::{Client, ask, connect, descriptor, is_degraded, request, send},
    eventually,
    proxy::{Fault, Proxy},
    redis::Redis,
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

/// The code, and whether the reply says that it was made without the store.
fn told(reply: Result<RateLimitResponse, Status>) -> Result<(Code, bool), Grpc> {
    let reply = reply.map_err(|status| status.code())?;
    Ok((reply.overall_code(), is_degraded(&reply)))
}

/// How many of `calls` pass, of which none may fail.
async fn passing(client: &mut Client, key: &str, calls: usize) -> usize {
    let mut passing = 0;
    for _ in 0..calls {
        let (code, _) = told(one(client, key).await).expect("an answer");
        passing += usize::from(code == Code::Ok);
    }
    passing
}

/// What remains of a limit, without counting.
async fn remaining(client: &mut Client, key: &str) -> u32 {
    let mut look = request("d", vec![descriptor(&[(key, "v")])]);
    look.descriptors[0].hits_addend = Some(0);
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
        told(one(client, "allow").await).is_ok_and(|(_, is_degraded)| !is_degraded)
    })
    .await;
}

fn await_handed_back(server: &Tollgate, hits: u64) {
    wait_until("what was spent is handed back", || {
        server.metric("tollgate_handed_back_hits_total") == hits
    });
}

#[tokio::test]
async fn each_rule_answers_for_itself() {
    let mut redis = Redis::start();
    let server = start(&redis, &[]);
    let mut client = connect(server.grpc).await;
    for key in ["error", "allow", "deny", "local"] {
        assert_eq!(told(one(&mut client, key).await), Ok((Code::Ok, false)));
    }
    assert_eq!(server.metric("tollgate_stores_lost"), 0);
    redis.kill();
    for _ in 0..3 {
        assert_eq!(
            told(one(&mut client, "error").await),
            Err(Grpc::Unavailable)
        );
        assert_eq!(told(one(&mut client, "allow").await), Ok((Code::Ok, true)));
        assert_eq!(
            told(one(&mut client, "deny").await),
            Ok((Code::OverLimit, true))
        );
        assert_eq!(told(one(&mut client, "local").await), Ok((Code::Ok, true)));
    }
    // What nobody can answer cannot be answered together with what somebody can.
    let both = request(
        "d",
        vec![descriptor(&[("allow", "v")]), descriptor(&[("error", "v")])],
    );
    assert_eq!(told(send(&mut client, both).await), Err(Grpc::Unavailable));
    assert_eq!(server.metric("tollgate_stores_lost"), 1);
    assert_eq!(server.metric("tollgate_degraded_total"), 9);
    redis.restart();
    await_return(&mut client).await;
    assert_eq!(told(one(&mut client, "deny").await), Ok((Code::Ok, false)));
    wait_until("the return is told", || {
        server.metric("tollgate_stores_lost") == 0
    });
    let log = server.log().text();
    assert_eq!(
        log.matches("rules answer as their on_store_loss says")
            .count(),
        1,
        "{log}"
    );
    assert_eq!(
        log.matches("rules are counted in the store again").count(),
        1,
        "{log}"
    );
}

/// 40 of 100 are gone when Redis is, so a half of the other 60 is this replica's.
#[tokio::test]
async fn a_replica_spends_its_share_and_hands_it_back() {
    for key in ["local", "log", "tokens"] {
        let redis = Redis::start();
        let server = start(&redis, &["--replicas", "2", "--workers", "1"]);
        let mut client = connect(server.grpc).await;
        assert_eq!(passing(&mut client, key, 40).await, 40);
        redis.freeze();
        assert_eq!(passing(&mut client, key, 50).await, 30, "{key}");
        redis.thaw();
        // A fixed window counts what it refuses, as it does in Redis.
        await_handed_back(&server, if key == "local" { 50 } else { 30 });
        await_return(&mut client).await;
        // What was on its way when Redis froze may have counted as well: a few hits, no more.
        let left = remaining(&mut client, key).await;
        assert!((5..=30).contains(&left), "{key}: {left} remain");
    }
}

#[tokio::test]
async fn a_restarted_redis_learns_what_was_spent_without_it() {
    let mut redis = Redis::start();
    let server = start(&redis, &["--replicas", "4"]);
    let mut client = connect(server.grpc).await;
    redis.kill();
    assert_eq!(passing(&mut client, "log", 50).await, 25);
    redis.restart();
    await_handed_back(&server, 25);
    await_return(&mut client).await;
    assert_eq!(remaining(&mut client, "log").await, 75);
    assert_eq!(passing(&mut client, "log", 100).await, 75);
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
    assert_eq!(told(one(&mut client, "k").await), Ok((Code::Ok, true)));
    // A limit that comes with the request has no rule.
    let mut own = request("d", vec![descriptor(&[("other", "v")])]);
    own.descriptors[0].limit = Some(
        ::tollgate::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride {
            requests_per_unit: 1,
            unit: 4,
            unit_multiplier: None,
        },
    );
    assert_eq!(told(send(&mut client, own).await), Ok((Code::Ok, true)));
}

/// What 64 streams ask for while Redis is gone and after it, and each of these limits is spent.
const UNDER_LOAD: &str = "
domain: d
on_store_loss: local
descriptors: [{key: k, rate_limits: [600/10000years]}]
";
const LIMIT: usize = 600;
const VALUES: [&str; 4] = ["a", "b", "c", "d"];

/// Two replicas share the limits. The cache is off: what it refuses is not counted in Redis.
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
    wait_until("all is handed back", || {
        server.metric("tollgate_stores_lost") == 0
    });
}

/// No error, no answer that waits for long, no more than the share; and when Redis is back, empty,
/// it holds every hit since it was killed.
#[tokio::test]
async fn a_kill_under_load_costs_no_answer_and_no_budget() {
    let mut redis = Redis::start();
    let server = under_load(&redis.url());
    let storm = Storm::start(&[server.grpc], &VALUES);
    wait_until("the load is there", || counted(&redis) > 100);
    redis.kill();
    await_answers_without_redis(&server, 3 * VALUES.len() * LIMIT);
    redis.restart();
    let restarted = Instant::now();
    await_end_of_loss(&server);
    let answers = storm.end().await;
    assert_eq!(answers.error_count(), 0, "{:?}", answers.errors());
    // A machine that does something else for a moment holds up every stream once.
    let late = answers.later_than(Duration::from_millis(150));
    assert!(late <= 2 * STREAMS, "{late} were late");
    let alone = answers.degraded();
    let admitted = alone.count(What::Ok);
    assert!(
        admitted > 0 && admitted <= VALUES.len() * LIMIT / 2,
        "{admitted}"
    );
    assert_eq!(server.metric("tollgate_forgotten_hits_total"), 0);
    let since = answers.between(restarted, Instant::now());
    let in_redis = since.0.len() - since.degraded().0.len();
    let expected = alone.0.len() + in_redis;
    wait_until("Redis holds all of them", || counted(&redis) >= expected);
    // What got no answer in time on a busy machine counts in both places.
    let twice = counted(&redis) - expected;
    assert!(twice <= STREAMS, "{twice} hits were counted twice");
}

/// One of two replicas does not reach Redis: it spends its share, and Redis learns of that.
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
    assert_eq!(servers[1].metric("tollgate_forgotten_hits_total"), 0);
    let expected = answers.0.len();
    wait_until("Redis holds all of them", || counted(&redis) >= expected);
    let twice = counted(&redis) - expected;
    assert!(twice <= STREAMS, "{twice} hits were counted twice");
}

/// Three that use one Redis see each other, and share a limit by that when it is gone.
#[tokio::test]
async fn replicas_find_out_how_many_they_are() {
    let mut redis = Redis::start();
    let mut servers: Vec<_> = (0..3).map(|_| start(&redis, &["--workers", "1"])).collect();
    let see = |servers: &[Tollgate], count| {
        wait_until("all see each other", || {
            let mut all = servers.iter();
            all.all(|server| server.metric("tollgate_replicas") == count)
        });
    };
    see(&servers, 3);
    // What was seen holds while Redis is gone, and one that comes back empty makes nobody forget.
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
    for server in &servers {
        await_handed_back(server, 50);
    }
    see(&servers, 3);
    servers.pop();
    see(&servers, 2);
    let keys = redis.keys();
    let own = keys.iter().filter(|key| key.contains("{0:}10@"));
    assert!((1..=3).contains(&own.count()), "{keys:?}");
}

/// Who does not count locally leaves nothing in Redis but counters.
#[tokio::test]
async fn replicas_are_counted_only_if_somebody_has_to_know() {
    let redis = Redis::start();
    let server = tollgate::with_rules("domain: d\ndescriptors: [{key: k, rate_limits: [1/year]}]")
        .redis(&redis)
        .start();
    let mut client = connect(server.grpc).await;
    one(&mut client, "k").await.unwrap();
    assert_eq!(redis.keys().len(), 1);
    assert_eq!(server.metric("tollgate_replicas"), 0);
    // As soon as a rule wants it.
    std::fs::write(server.rules().join("rules.yaml"), RULES).unwrap();
    wait_until("it counts itself", || {
        server.metric("tollgate_replicas") == 1
    });
}
