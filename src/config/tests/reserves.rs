//! Reservations, slots and slices in rule files.

use super::{
    load,
    mistakes::{check, check_bodies},
};
use crate::core::limit::{Allows, CountPolicy, LeasePolicy, MissingCost, Reserve, Rule};

/// The rule of `k`, with these settings.
fn rule(own: &str) -> Rule {
    let loaded = load(&format!("domain: d\ndescriptors:\n  - key: k\n    {own}\n"));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings[0]);
    loaded.matcher.rules()[0].clone()
}

#[test]
fn a_rule_that_reserves_counts_admitted_hits() {
    let limits = "rate_limits: [1000/hour, {unit: day, requests_per_unit: 9, algorithm: token_bucket, burst: 900}]";
    for (reserve, estimate, missing) in [
        ("{}", None, MissingCost::Estimate),
        ("{estimate: 900}", Some(900), MissingCost::Estimate),
        ("{estimate: , missing: zero}", None, MissingCost::Zero),
        (
            "{estimate: 1, missing: estimate}",
            Some(1),
            MissingCost::Estimate,
        ),
    ] {
        let rule = rule(&format!("reserve: {reserve}\n    {limits}"));
        let expected = Reserve { estimate, missing };
        assert_eq!(
            (rule.lease, rule.counts),
            (Some(LeasePolicy::Reserve(expected)), CountPolicy::Admitted)
        );
    }
    let own = "reserve: {}\n    count: admitted\n    \
        rate_limit: {unit: month, requests_per_unit: 9, calendar: true, time_zone: UTC}";
    assert!(rule(own).lease.is_some());
    assert_eq!(rule("rate_limits: [5/day]").lease, None);
}

#[test]
fn a_mistake_in_a_reservation_is_told_with_its_fix() {
    const SETTLED: &str = "only fixed windows without `first_hit`, calendars and token buckets can be settled exactly";
    let algorithm =
        format!("4:5: d.k: `reserve` does not go with the algorithm of a limit; {SETTLED}");
    check_bodies(&[
        (
            "reserve:\nrate_limits: [5/day]",
            "4:13: d.k: `reserve` must be a map, not null",
        ),
        (
            "reserve: 800\nrate_limits: [5/day]",
            "4:14: d.k: `reserve` must be a map, not 800",
        ),
        (
            "reserve: {estimat: 800}\nrate_limits: [5/day]",
            "4:15: d.k: unknown key 'estimat' (expected `estimate`)",
        ),
        (
            "reserve: {estimate: 6}\nrate_limits: [5/day, 9/hour]",
            "4:25: d.k: `estimate` must be a whole number from 1 to 5, not 6: the smallest limit would never admit it",
        ),
        (
            "reserve: {estimate: 0}\nrate_limits: [5/day]",
            "4:25: d.k: `estimate` must be a whole number from 1 to 5, not 0",
        ),
        (
            "reserve: {missing: nil}\nrate_limits: [5/day]",
            "4:24: d.k: unknown missing 'nil' (estimate or zero)",
        ),
        (
            "reserve: {}\ncount: all\nrate_limits: [5/day]",
            "5:12: d.k: `reserve` does not go with `count: all`; remove `count: all`: hits that are reserved are \
             counted if they are admitted",
        ),
        (
            "reserve: {}\nrate_limit: {unlimited: true}",
            "4:5: d.k: `reserve` does not go with `unlimited`; remove it: such a rule counts nothing",
        ),
        (
            "reserve: {}\ndescriptors: [{key: x, rate_limits: [5/day]}]",
            "4:5: d.k: `reserve` does not go with a descriptor without limits; write it beside `rate_limits`",
        ),
        (
            "reserve: {}\nrate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding_log}",
            &algorithm,
        ),
        (
            "reserve: {}\nrate_limit: {unit: day, requests_per_unit: 5, window: first_hit}",
            &algorithm,
        ),
    ]);
    check(&[
        (
            "domain: d\ndescriptors:\n  - key: tollgate.release\n    rate_limits: [5/day]\n",
            "3:10: d: keys that begin with `tollgate.` are what Envoy asks of tollgate at the end of a stream, such as \
             `tollgate.release`; give 'tollgate.release' another name",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    reserve: {}\n    \
             rate_limits: [{name: n, unit: day, requests_per_unit: 5}]\n  - key: b\n    \
             rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: n}]}\n",
            "7:69: d.b: `replaces` does not go with a limit of a rule with `reserve` or `exact-leased`; replace \
             another one: what this limit had not charged would be given back to it",
        ),
    ]);
}

#[test]
fn a_rule_with_slots_counts_admitted_requests_beside_any_other_limit() {
    let slots = "{algorithm: concurrency, requests_per_unit: 5, ttl: 2 minutes, name: n}";
    let rule = rule(&format!("rate_limits: [{slots}, 60/minute, 1000/day]"));
    assert_eq!(
        (rule.lease, rule.counts),
        (Some(LeasePolicy::Slots), CountPolicy::Admitted)
    );
    let Allows::Within(limits) = &rule.allows else {
        panic!("it has limits")
    };
    let slots = &limits[0];
    assert_eq!((slots.period.secs(), slots.unit()), (120, None));
    assert_eq!(slots.rate().to_string(), "5 in flight");
}

#[test]
fn a_mistake_in_slots_is_told_with_its_fix() {
    let no_rate = "it limits no rate: `ttl` says how long a request counts at the longest";
    check_bodies(&[
        (
            "rate_limit: {algorithm: concurrency, requests_per_unit: 5}",
            "4:18: d.k: `concurrency` needs a `ttl`, such as 2m: how long a request counts if its end is not heard of",
        ),
        (
            "rate_limit: {algorithm: concurrency, requests_per_unit: 5, ttl: 120}",
            "4:69: d.k: `ttl` must be a number and a unit, such as 90s or 2m, not 120",
        ),
        (
            "rate_limit: {algorithm: concurrency, requests_per_unit: 10001, ttl: 2m}",
            "4:18: d.k: `requests_per_unit` must be a whole number from 0 to 10000, not 10001 with `concurrency`",
        ),
        (
            "rate_limit: {algorithm: concurrency, unit: minute, requests_per_unit: 5, ttl: 2m}",
            &format!("4:18: d.k: `unit` does not go with `concurrency`; {no_rate}"),
        ),
        (
            "rate_limit: {algorithm: concurrency, unit_multiplier: 2, requests_per_unit: 5, ttl: 2m}",
            &format!("4:59: d.k: `unit_multiplier` does not go with `concurrency`; {no_rate}"),
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 5, ttl: 2m}",
            "4:56: d.k: `ttl` does not go with this algorithm; it is for `algorithm: concurrency`",
        ),
        (
            "rate_limit: {algorithm: concurrency, requests_per_unit: 5, ttl: 2m, burst: 3}",
            "4:80: d.k: `burst` does not go with this algorithm; write `algorithm: token_bucket`",
        ),
        (
            "count: all\nrate_limit: {algorithm: concurrency, requests_per_unit: 5, ttl: 2m}",
            "4:12: d.k: `concurrency` does not go with `count: all`; remove `count: all`: only requests that are \
             admitted are in flight",
        ),
        (
            "reserve: {}\nrate_limit: {algorithm: concurrency, requests_per_unit: 5, ttl: 2m}",
            "4:5: d.k: `reserve` does not go with the algorithm of a limit; only fixed windows without `first_hit`, \
             calendars and token buckets can be settled exactly",
        ),
        (
            "rate_limit: {algorithm: concurrency, requests_per_unit: 5, ttl: 2h}",
            "4:69: d.k: warning: `ttl` is 2h: each end of a request that is not heard of takes a slot for that long; \
             a ttl near the longest request is best",
        ),
    ]);
}

#[test]
fn a_rule_with_slices_counts_admitted_requests_in_aligned_windows() {
    let calendar = "{unit: month, requests_per_unit: 9000000, calendar: true, time_zone: UTC}";
    let rule = rule(&format!(
        "accuracy: exact-leased\n    rate_limits: [10000/second, {calendar}]"
    ));
    assert_eq!(
        (rule.lease, rule.counts),
        (Some(LeasePolicy::Slices), CountPolicy::Admitted)
    );
    assert_eq!(
        self::rule("accuracy: exact\n    rate_limits: [5/day]").lease,
        None
    );
}

#[test]
fn a_mistake_in_slices_is_told_with_its_fix() {
    let algorithm = "only fixed windows without `first_hit` and calendars can be: a slice is used after it is counted";
    check_bodies(&[
        (
            "accuracy: 5%\nrate_limits: [5/day]",
            "4:15: d.k: unknown accuracy '5%' (exact or exact-leased)",
        ),
        (
            "accuracy: exact-leased\nrate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding_window}",
            &format!(
                "4:15: d.k: `accuracy` does not go with the algorithm of a limit; {algorithm}"
            ),
        ),
        (
            "accuracy: exact-leased\nrate_limit: {algorithm: concurrency, requests_per_unit: 5, ttl: 2m}",
            &format!(
                "4:15: d.k: `accuracy` does not go with the algorithm of a limit; {algorithm}"
            ),
        ),
        (
            "accuracy: exact-leased\ncount: all\nrate_limits: [5/day]",
            "5:12: d.k: `accuracy` does not go with `count: all`; remove `count: all`: slices count admitted hits only",
        ),
        (
            "accuracy: exact-leased\nreserve: {}\nrate_limits: [5/day]",
            "4:15: d.k: `accuracy` does not go with `reserve`; remove one of them: hits are charged in advance for a \
             worker or for a request",
        ),
        (
            "accuracy: exact-leased\nrate_limit: {unlimited: true}",
            "4:15: d.k: `accuracy` does not go with `unlimited`; remove it: such a rule counts nothing",
        ),
    ]);
}
