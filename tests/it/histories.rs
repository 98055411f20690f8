//! Short histories of concurrent calls; `make histories` makes long ones.

use crate::support::{
    histories::{Outcome, Place, Plan, run},
    leases::{self, LeasePlan, stores::LeaseStore},
};

/// The calls of a history of reservations: each event happens.
const LEASE_CALLS: usize = 650;

async fn check(place: Place) {
    let outcome = check_with(place, false).await;
    assert_eq!(outcome.unknown, 0, "{outcome:#?}");
}

async fn check_with(place: Place, has_faults: bool) -> Outcome {
    let plan = Plan {
        place,
        calls: 9_000,
        clients: 16,
        seed: 20_261_122,
        has_faults,
    };
    let mut outcome = run(plan).await;
    let found = outcome.violations.len();
    outcome.violations.truncate(10);
    assert_eq!(found, 0, "{outcome:#?}");
    // Otherwise the history is too small.
    assert!(
        outcome.admitted > 1_000 && outcome.counters > 20,
        "{outcome:#?}"
    );
    assert!(outcome.calls > 9_000 && outcome.resets > 50, "{outcome:#?}");
    outcome
}

#[tokio::test]
async fn in_memory_every_answer_has_its_place_in_an_order() {
    check(Place::Memory).await;
}

#[tokio::test]
async fn in_redis_every_answer_has_its_place_in_an_order() {
    check(Place::Redis).await;
}

#[tokio::test]
async fn in_two_redis_every_answer_has_its_place_in_an_order() {
    check(Place::TwoRedis).await;
}

#[tokio::test]
async fn in_a_cluster_every_answer_has_its_place_in_an_order() {
    check(Place::Cluster).await;
}

/// Connections are cut, scripts removed, servers paused and emptied, again and again.
async fn check_with_faults(place: Place) {
    let outcome = check_with(place, true).await;
    // Otherwise the faults had no effect.
    assert!(outcome.unknown > 0 && outcome.losses > 0, "{outcome:#?}");
}

#[tokio::test]
async fn in_a_redis_that_fails_every_answer_has_its_place_in_an_order() {
    check_with_faults(Place::Redis).await;
}

#[tokio::test]
async fn in_two_that_fail_every_answer_has_its_place_in_an_order() {
    check_with_faults(Place::TwoRedis).await;
}

#[tokio::test]
async fn in_a_cluster_whose_nodes_fail_every_answer_has_its_place_in_an_order() {
    check_with_faults(Place::Cluster).await;
}

/// No hit is charged twice, given back twice or to another window, or forgotten, whoever gives up and whatever fails.
async fn check_leases(store: LeaseStore) {
    let steps = leases::run(LeasePlan {
        store,
        calls: LEASE_CALLS,
        seed: 20_261_126,
    })
    .await;
    // Otherwise the history is too small. Others depend on time.
    for step in [
        "burst",
        "cancelled",
        "clock",
        "failed",
        "frozen",
        "killed",
        "late",
        "refused",
        "released",
        "reload",
        "repeated",
        "reserved",
        "reset",
        "restart",
        "settled",
        "settled elsewhere too",
        "unknown",
        "unreserved",
    ] {
        assert!(steps.contains_key(step), "no {step}: {steps:?}");
    }
}

#[tokio::test]
async fn in_redis_counters_hold_what_reservations_and_costs_come_to() {
    check_leases(LeaseStore::Redis).await;
}

#[tokio::test]
async fn with_sentinels_counters_hold_what_reservations_and_costs_come_to() {
    check_leases(LeaseStore::Sentinel).await;
}

#[tokio::test]
async fn in_a_cluster_counters_hold_what_reservations_and_costs_come_to() {
    check_leases(LeaseStore::Cluster).await;
}

#[tokio::test]
async fn in_two_redis_counters_hold_what_reservations_and_costs_come_to() {
    check_leases(LeaseStore::TwoRedis).await;
}
