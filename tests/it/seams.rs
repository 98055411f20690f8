//! One counter in two places, one request on two stores: workers, a Redis for limits per second, slots of a cluster.

use tokio::task::JoinSet;
use tonic::Code as Grpc;

use crate::support::{
    ask::*,
    cluster::Cluster,
    eventually,
    redis::Redis,
    tollgate::{self, Builder, Tollgate},
};

async fn one(client: &mut Client, key: &str) -> bool {
    passes(client, "d", &[(key, "v")]).await
}

async fn all(client: &mut Client, keys: &[&str]) -> RateLimitResponse {
    let descriptors = keys.iter().map(|key| descriptor(&[(key, "v")]));
    let all = request("d", descriptors.collect());
    send(client, all).await.unwrap()
}

/// A descriptor with these hits; a negative number gives hits back.
fn hits(key: &str, count: i64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(count.unsigned_abs()),
        is_negative_hits: count < 0,
        ..descriptor(&[(key, "v")])
    }
}

/// The remaining hits in the first status, after these hits.
async fn remaining(client: &mut Client, key: &str, count: i64) -> u32 {
    let request = request("d", vec![hits(key, count)]);
    send(client, request).await.unwrap().statuses[0].limit_remaining
}

/// Waits until a look at these keys is answered.
async fn looks(client: &mut Client, keys: &[&str]) {
    eventually("it answers", async || {
        let looks = keys.iter().map(|key| hits(key, 0)).collect();
        send(client, request("d", looks)).await.is_ok()
    })
    .await;
}

async fn passing(client: &mut Client, keys: &[&str], calls: usize) -> usize {
    let mut passing = 0;
    for _ in 0..calls {
        passing += usize::from(all(client, keys).await.overall_code() == Code::Ok);
    }
    passing
}

/// A server with two workers and one connection to each.
async fn two_workers(rules: &str, redis: &Redis) -> (Tollgate, [Client; 2]) {
    let server = tollgate::with_rules(rules).redis(redis);
    let (server, client) = serve(server.args(["--workers", "2"])).await;
    let other = connect(server.grpc).await;
    (server, [client, other])
}

const GIVEN_BACK: &str = "
domain: d
descriptors:
  - {key: fixed, rate_limits: [10/year]}
  - {key: admitted, count: admitted, rate_limits: [10/year]}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 10, algorithm: sliding_log}}
  - {key: first, rate_limit: {unit: year, requests_per_unit: 10, window: first_hit}}
";

#[tokio::test]
async fn hits_given_back_through_one_worker_make_room_at_the_other_at_once() {
    let redis = Redis::start();
    let (_server, [mut here, mut there]) = two_workers(GIVEN_BACK, &redis).await;
    // Including all refused hits that count, from every cache.
    for (key, held) in [("fixed", 13), ("admitted", 10), ("log", 10), ("first", 13)] {
        assert_eq!(passing(&mut here, &[key], 13).await, 10, "{key}");
        assert_eq!(remaining(&mut there, key, -(held - 4)).await, 6, "{key}");
        assert_eq!(passing(&mut here, &[key], 20).await, 6, "{key}");
    }
}

#[tokio::test]
async fn hits_given_back_through_another_replica_make_room_before_long() {
    let redis = Redis::start();
    let (_one, [mut here, _]) = two_workers(GIVEN_BACK, &redis).await;
    let (_other, [mut there, _]) = two_workers(GIVEN_BACK, &redis).await;
    for key in ["admitted", "log", "first"] {
        assert_eq!(passing(&mut here, &[key], 13).await, 10, "{key}");
        remaining(&mut there, key, -1_000).await;
        // Hits refused meanwhile may count, so it reads first.
        eventually("there is room", async || {
            remaining(&mut here, key, 0).await > 0 && one(&mut here, key).await
        })
        .await;
    }
}

fn with_two(rules: &str, redis: &Redis, per_second: &Redis) -> Builder {
    with_seconds(tollgate::with_rules(rules).redis(redis), per_second)
}

fn in_cluster(rules: &str, cluster: &Cluster) -> Builder {
    tollgate::with_rules(rules).redis_at(&cluster.url(), "10s")
}

/// Sends bursts of more calls than a long limit allows, and checks the calls that still pass later.
async fn check_bursts(server: Builder, keys: &'static [&'static str]) {
    let (_server, mut client) = serve(server).await;
    looks(&mut client, keys).await;
    let mut admitted = 0;
    for _ in 0..3 {
        let mut calls = JoinSet::new();
        for _ in 0..64 {
            let mut client = client.clone();
            calls.spawn(async move { passing(&mut client, keys, 1).await });
        }
        admitted += calls.join_all().await.into_iter().sum::<usize>();
        assert!(admitted <= 30);
    }
    eventually("all of the long limit is admitted", async || {
        admitted += passing(&mut client, keys, 1).await;
        admitted == 30
    })
    .await;
    assert_eq!(passing(&mut client, keys, 10).await, 0);
}

#[tokio::test]
async fn bursts_over_two_redis_lock_nobody_out() {
    const RULES: &str = "
domain: d
descriptors: [{key: k, count: admitted, rate_limits: [5/second, 30/year]}]
";
    let (redis, per_second) = (Redis::start(), Redis::start());
    check_bursts(with_two(RULES, &redis, &per_second), &["k"]).await;
}

#[tokio::test]
async fn bursts_over_two_slots_lock_nobody_out() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: short, count: admitted, rate_limits: [5/second]}
  - {key: long, count: admitted, rate_limits: [30/year]}
";
    let cluster = Cluster::start(0);
    check_bursts(in_cluster(RULES, &cluster), &["short", "long"]).await;
}

#[tokio::test]
async fn a_redis_that_is_gone_costs_the_other_one_nothing() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: admitted, count: admitted, rate_limits: [1000/100000000seconds, 100/year]}
  - {key: all, rate_limits: [1000/100000000seconds, 100/year]}
";
    let (redis, mut per_second) = (Redis::start(), Redis::start());
    let (server, mut client) = serve(with_two(RULES, &redis, &per_second)).await;
    assert!(one(&mut client, "admitted").await && one(&mut client, "all").await);
    per_second.kill();
    let fails = async |client: &mut Client, key: &str| {
        let reported = ask(client, "d", &[(key, "v")]).await;
        assert_eq!(reported.unwrap_err().code(), Grpc::Unavailable);
    };
    fails(&mut client, "admitted").await;
    let is_lost = async || server.metric("tollgate_stores_lost") == 1;
    eventually("the loss is known", is_lost).await;
    for _ in 0..50 {
        fails(&mut client, "admitted").await;
        fails(&mut client, "all").await;
    }
    per_second.restart();
    looks(&mut client, &["admitted"]).await;
    for key in ["admitted", "all"] {
        assert_eq!(remaining(&mut client, key, 1).await, 98, "{key}");
    }
}

#[tokio::test]
async fn quotas_in_two_places_are_judged_together() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: short, count: admitted, quota_mode: true, rate_limits: [1/100000000seconds]}
  - {key: long, count: admitted, quota_mode: true, rate_limits: [1000/year]}
  - {key: plain, count: admitted, rate_limits: [5/100000000seconds]}
";
    let (redis, per_second) = (Redis::start(), Redis::start());
    let server = with_two(RULES, &redis, &per_second).args(["--local-cache-bytes", "0"]);
    let (_server, mut client) = serve(server).await;
    let admitted = passing(&mut client, &["short", "long", "plain"], 12).await;
    assert_eq!(admitted, 5);
    assert_eq!(remaining(&mut client, "plain", 0).await, 0);
}

const STOPPED: &str = "
domain: d
descriptors:
  - {key: over, rate_limits: [1/100000000seconds]}
  - {key: other, rate_limits: [100/year]}
";

/// Twenty requests that one limit refuses do not change the other.
async fn check_stop(server: Builder) {
    let server = server.args(["--stop-when-over", "--local-cache-bytes", "0"]);
    let (_server, mut client) = serve(server).await;
    looks(&mut client, &["over", "other"]).await;
    remaining(&mut client, "over", 1).await;
    assert_eq!(passing(&mut client, &["over", "other"], 20).await, 0);
    assert_eq!(remaining(&mut client, "other", 0).await, 100);
}

#[tokio::test]
async fn a_stop_over_two_redis_or_two_slots_leaves_out_what_would_have_passed() {
    let (redis, per_second) = (Redis::start(), Redis::start());
    check_stop(with_two(STOPPED, &redis, &per_second)).await;
    check_stop(in_cluster(STOPPED, &Cluster::start(0))).await;
}
