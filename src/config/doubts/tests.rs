//! Which rules are doubted, and which are not.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{super::files::Files, refuses_first};
use crate::{
    config::rule_defaults::Options,
    core::{
        limit::Limit,
        window::{Period, Timestamp, Unit},
    },
};

/// The warnings of a file of domain `d` with these descriptors, from line 3 on.
fn warnings(descriptors: &[&str]) -> Vec<String> {
    let items = descriptors.iter().map(|item| format!("- {{{item}}}\n"));
    let text = format!("domain: d\ndescriptors:\n{}", items.collect::<String>());
    let loaded = Files::of("a.yaml", &text).compile(Options::default());
    let loaded = loaded.unwrap_or_else(|problems| panic!("{}", problems[0]));
    loaded.warnings.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn check(descriptors: &[&str], expected: &[&str]) {
    let warnings = warnings(descriptors);
    let is_as_expected = warnings.len() == expected.len()
        && warnings
            .iter()
            .zip(expected)
            .all(|(warning, start)| warning.starts_with(start));
    assert!(is_as_expected, "{warnings:#?}");
}

#[test]
fn a_leaf_without_a_limit_is_doubted() {
    let child = "key: b, rate_limits: [1/s]";
    check(
        &["key: a", "key: c, rate_limit: null", child],
        &[
            "a.yaml:3:9: d.a: warning: no limit, and no descriptors below: requests that end here pass",
            "a.yaml:4:9: d.c: warning: no limit",
        ],
    );
    check(
        &[
            &format!("key: a, descriptors: [{{{child}}}]"),
            "key: c, rate_limit: {unlimited: true}",
        ],
        &[],
    );
    check(
        &[&format!("key: a, descriptors: [{{{child}}}, {{key: c}}]")],
        &["a.yaml:3:62: d.a.c: warning: no limit"],
    );
}

#[test]
fn rules_that_nothing_reaches_are_doubted_on_every_level() {
    let limit = "rate_limits: [1/s]";
    let [first, second, bare] =
        ["value: a*, ", "value: ab*, ", ""].map(|value| format!("key: k, {value}{limit}"));
    check(
        &[&first, &second, &bare],
        &[
            "a.yaml:4:9: d.k_ab*: warning: never reached: 'k_a*' on the same level takes every value",
        ],
    );
    check(&[&second, &first, &bare], &[]);
    let all = format!("key: k, value: \"*\", {limit}");
    let expected =
        "warning: never reached: 'k_*' on the same level takes every value that this could match";
    check(&[&bare, &all], &[&format!("a.yaml:3:9: d.k: {expected}")]);
    let below = format!("key: p, descriptors: [{{{bare}}}, {{{all}}}]");
    check(&[&below], &[&format!("a.yaml:3:32: d.p.k: {expected}")]);
}

#[test]
fn a_limit_is_doubted_that_never_refuses_first() {
    let expected = "a.yaml:3:33: d.k: warning: 10 per second never refuses a request that 5 per minute would admit";
    check(&["key: k, rate_limits:        [10/s, 5/m]"], &[expected]);
    check(
        &["key: k, count: admitted, rate_limits: [5/m, 5/s]"],
        &["a.yaml:3:"],
    );
    check(
        &["key: k, rate_limits: [9/20s, 9/40s]"],
        &[
            "a.yaml:3:26: d.k: warning: 9 per 20 seconds never refuses a request that 9 per 40 seconds would",
        ],
    );
    for limits in [
        // Each can refuse first.
        "[5/s, 10/m]",
        "[3/s, 20/m, 300/30m, 5000/day]",
        // A window of 30 s is in two of 45 s.
        "[10/30s, 5/45s]",
        // A month of 30 days is in two years of 365.
        "[10/month, 5/year]",
        // A log counts hits that the other limit refuses.
        "[{unit: second, requests_per_unit: 10, algorithm: sliding_log}, {unit: minute, requests_per_unit: 5, algorithm: sliding_log}]",
        "[{unit: second, requests_per_unit: 10}, {unit: minute, requests_per_unit: 5, algorithm: sliding_window}]",
        "[{unit: second, requests_per_unit: 10}, {unit: minute, requests_per_unit: 5, window: first_hit}]",
    ] {
        check(&[&format!("key: k, rate_limits: {limits}")], &[]);
    }
}

#[test]
fn a_limit_that_binds_where_another_is_replaced_is_not_doubted() {
    let rule = "key: k, rate_limits: [10/s, {unit: minute, requests_per_unit: 5, name: n}]";
    check(
        &[rule],
        &["a.yaml:3:26: d.k: warning: 10 per second never refuses"],
    );
    let replacer =
        "key: r, rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: n}]}";
    check(&[rule, replacer], &[]);
}

#[test]
fn a_name_of_two_limits_is_doubted_where_it_matters() {
    let limit =
        |key: &str| format!("key: {key}, rate_limit: {{unit: day, requests_per_unit: 1, name: n}}");
    let [a, b] = ["a", "b"].map(limit);
    check(&[&a, &b], &[]);
    let replacer = "key: r, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: n}]}";
    check(
        &[&a, replacer, &b],
        &[
            "a.yaml:5:25: d.b: warning: another limit is named 'n', at a.yaml:3:25; give each its own",
        ],
    );
    let limits =
        "{unit: day, requests_per_unit: 9, name: n}, {unit: hour, requests_per_unit: 1, name: n}";
    check(
        &[&format!("key: a, rate_limits: [{limits}]")],
        &["a.yaml:3:71: d.a: warning: another limit is named 'n', at a.yaml:3:27;"],
    );
}

#[test]
fn an_octal_number_is_doubted_if_it_reads_as_another_one() {
    let rule =
        |number: &str| format!("key: k, rate_limit: {{unit: day, requests_per_unit: {number}}}");
    check(
        &[&rule("010")],
        &["a.yaml:3:55: d.k: warning: 010 is an octal number and means 8; write 8 or 10"],
    );
    check(&[&rule("1_0")], &[]);
    for number in ["07", "00", "0", "0o10", "0x10", "8"] {
        check(&[&rule(number)], &[]);
    }
    check(
        &["key: k, rate_limit: {unit: day, unit_multiplier: 011, requests_per_unit: 1}"],
        &["a.yaml:3:53: d.k: warning: 011 is an octal number and means 9; write 9 or 11"],
    );
}

/// Rules with an error are not doubted: what is missing may be the error.
#[test]
fn errors_come_alone() {
    let text = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: x, requests_per_unit: 1}}\n- {key: b}\n";
    let problems = Files::of("a.yaml", text)
        .compile(Options::default())
        .unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
}

/// Which of two limits count a request that one of them refuses.
#[derive(Clone, Copy, Debug)]
enum Charged {
    Both,
    None,
    /// As with `--stop-when-over`.
    Refusing,
}

proptest! {
    /// Two counters of aligned windows, as simple as possible. Hits below 0 give back, never below 0.
    #[test]
    fn a_limit_that_never_binds_never_refuses_alone(
        (fewer, more) in (0_u64..6, 0_u64..4),
        (short, times) in (1_u32..4, 2_u32..4),
        requests in prop::collection::vec((0_u64..7, -2_i64..4), 1..40),
        charged in prop::sample::select(vec![Charged::Both, Charged::None, Charged::Refusing]),
    ) {
        let limits = [(fewer + more, short), (fewer, short * times)].map(|(requests, minutes): (u64, u32)| {
            let period = Period::new(Unit::Minute, minutes.try_into().unwrap());
            Limit::fixed(requests, period.unwrap())
        });
        prop_assert!(refuses_first(&limits[1], &limits[0]));
        let mut counters: HashMap<(usize, u64), i64> = HashMap::new();
        let mut minute = 0;
        for (pause, hits) in requests {
            minute += pause;
            let now = Timestamp::from_secs(minute * 60);
            let keys = [0, 1].map(|at| (at, limits[at].window(now).start.secs()));
            let after = keys.map(|key| (counters.get(&key).unwrap_or(&0) + hits).max(0));
            let is_over = [0, 1].map(|at| after[at] > limits[at].requests_per_unit.cast_signed());
            prop_assert!(!is_over[0] || is_over[1], "{limits:?} at {minute}");
            let refuses = is_over[0] || is_over[1];
            for at in [0, 1] {
                let is_charged = match charged {
                    Charged::Both => true,
                    Charged::None => !refuses,
                    Charged::Refusing => !refuses || is_over[at],
                };
                if is_charged || hits < 0 {
                    counters.insert(keys[at], after[at]);
                }
            }
        }
    }
}
