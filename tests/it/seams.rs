//! Where one counter is known in two places: the over-limit cache
//! of each worker.

use crate::support::{
    ask::{Client, ask, connect, descriptor, is_ok, request, send},
    eventually,
    redis::Redis,
    tollgate::{self, Tollgate},
};
use ::tollgate::grpc::proto::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor,
    service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code},
};

async fn one(client: &mut Client, key: &str) -> bool {
    is_ok(&ask(client, "d", &[(key, "v")]).await)
}

/// One hit on each of the keys.
async fn all(client: &mut Client, keys: &[&str]) -> RateLimitResponse {
    let descriptors = keys.iter().map(|key| descriptor(&[(key, "v")]));
    send(client, request("d", descriptors.collect()))
        .await
        .unwrap()
}

/// Hits of one descriptor, given back if there are less than none.
fn hits(key: &str, count: i64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(count.unsigned_abs()),
        is_negative_hits: count < 0,
        ..descriptor(&[(key, "v")])
    }
}

/// What remains by the first status, after these hits.
async fn remaining(client: &mut Client, key: &str, count: i64) -> u32 {
    let request = request("d", vec![hits(key, count)]);
    send(client, request).await.unwrap().statuses[0].limit_remaining
}

/// How many of `calls` for the keys pass.
async fn passing(client: &mut Client, keys: &[&str], calls: usize) -> usize {
    let mut passing = 0;
    for _ in 0..calls {
        passing += usize::from(all(client, keys).await.overall_code() == Code::Ok);
    }
    passing
}

/// Two workers in turn are given connections.
async fn two_workers(rules: &str, redis: &Redis) -> (Tollgate, [Client; 2]) {
    let server = tollgate::with_rules(rules)
        .redis_at(&redis.url(), "10s")
        .args(["--workers", "2"])
        .start();
    let clients = [connect(server.grpc).await, connect(server.grpc).await];
    (server, clients)
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
    for (key, refused_count) in [
        ("fixed", true),
        ("admitted", false),
        ("log", false),
        ("first", true),
    ] {
        assert_eq!(passing(&mut here, &[key], 13).await, 10, "{key}");
        // With all that was refused and counts, from whatever memory.
        let held = if refused_count { 13 } else { 10 };
        assert_eq!(remaining(&mut there, key, -(held - 4)).await, 6, "{key}");
        assert_eq!(passing(&mut here, &[key], 20).await, 6, "{key}");
    }
}

#[tokio::test]
async fn hits_given_back_through_another_replica_make_room_before_long() {
    let redis = Redis::start();
    let (_one, [mut here, _]) = two_workers(GIVEN_BACK, &redis).await;
    let (_other, [mut there, _]) = two_workers(GIVEN_BACK, &redis).await;
    for key in ["fixed", "admitted", "log", "first"] {
        assert_eq!(passing(&mut here, &[key], 13).await, 10, "{key}");
        remaining(&mut there, key, -1_000).await;
        // Hits that are refused meanwhile may count, so it looks first.
        eventually("there is room", async || {
            remaining(&mut here, key, 0).await > 0 && one(&mut here, key).await
        })
        .await;
    }
}

#[tokio::test]
async fn a_counter_that_was_deleted_makes_room_before_long() {
    let redis = Redis::start();
    let (_server, [mut here, _]) = two_workers(GIVEN_BACK, &redis).await;
    assert_eq!(passing(&mut here, &["fixed"], 13).await, 10);
    redis.cli(&["FLUSHALL"]);
    eventually("there is room", async || {
        remaining(&mut here, "fixed", 0).await > 0
    })
    .await;
    assert!(one(&mut here, "fixed").await);
}
