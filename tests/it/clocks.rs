//! Clocks that step while clients ask. `make histories CLOCKS=1` makes long histories of them.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::support::{
    ask::*,
    redis::Redis,
    steps::{ClockPlan, Clocks, Rate, run},
    tollgate,
    wall_clock::WallClock,
};

const PER_SECOND: &[Rate] = &[Rate { hits: 10, secs: 1 }];

async fn check(clocks: Clocks) {
    let outcome = run(ClockPlan {
        clocks,
        lasts: Duration::from_secs(10),
        limits: PER_SECOND,
        seed: 6,
    })
    .await;
    assert!(outcome.violations.is_empty(), "{outcome:#?}");
    // Otherwise the history is too small.
    let decided = outcome.calls - outcome.unknown;
    let is_long = outcome.steps >= 2 && outcome.admitted > 300;
    assert!(is_long && decided > 2 * outcome.admitted, "{outcome:#?}");
}

#[tokio::test]
async fn in_memory_a_clock_that_steps_locks_nobody_out_and_lets_one_window_more_pass() {
    check(Clocks::Memory).await;
}

#[tokio::test]
async fn in_redis_clocks_that_step_lock_nobody_out_and_let_one_window_more_pass() {
    check(Clocks::Redis).await;
}

/// The other tests here rest on this. A window of an hour that is full is over when the wall clock says so. The time
/// that a decision took is by the monotonic clock: a day that passes meanwhile is not in it.
#[tokio::test]
async fn the_wall_clock_of_a_test_steps_and_the_monotonic_clock_does_not() {
    const RULES: &str = "{domain: d, descriptors: [{key: k, rate_limits: [1/hour]}]}";
    const DAY: i64 = 24 * 60 * 60;
    let redis = Redis::start();
    let clock = WallClock::start();
    let server = tollgate::with_rules(RULES).redis(&redis);
    let server = server.args(["--clock", "local"]).with_wall_clock(&clock);
    let (server, mut client) = serve(server).await;
    assert!(passes(&mut client, "d", &[("k", "v")]).await);
    assert!(!passes(&mut client, "d", &[("k", "v")]).await);
    // A decision begins before the step and ends after it.
    redis.freeze();
    let mut other = client.clone();
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { passes(&mut other, "d", &[("k", "w")]).await });
    one_is_in_flight(&server).await;
    clock.set(DAY);
    redis.thaw();
    assert_eq!(waiting.join_all().await, [true]);
    assert!(passes(&mut client, "d", &[("k", "v")]).await);
    let page = server.page("/metrics");
    let mut lines = page.lines();
    let sum = lines.find_map(|line| line.strip_prefix("tollgate_call_duration_seconds_sum "));
    let secs: f64 = sum.expect("the metric is there").parse().unwrap();
    assert!(secs > 0.0 && secs < 3600.0, "{secs}");
}
