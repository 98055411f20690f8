//! Requests and replies over gRPC: the behaviour that clients of envoyproxy/ratelimit expect, and our additions.
//!
//! Limits are for 10,000 years where the length of the window does not matter, so that no test meets its end.

use ::tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{DescriptorStatus, rate_limit::Unit},
    },
};
use tonic::Status;

use crate::support::{
    ask::{connect, descriptor, request, send},
    redis::Redis,
    tollgate::{self, Builder},
};

/// Sends requests one after the other and compares each answer with the text next to it: the overall code, then for
/// each descriptor its code, the remaining hits and their limit.
#[track_caller]
fn check_on(server: Builder, steps: &[(RateLimitRequest, &str)]) {
    let server = server.start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let answers = runtime.block_on(async {
        let mut client = connect(server.grpc).await;
        let mut answers = Vec::new();
        for (request, _) in steps {
            answers.push(show(send(&mut client, request.clone()).await));
        }
        answers
    });
    let expected: Vec<_> = steps.iter().map(|(_, answer)| *answer).collect();
    assert_eq!(answers, expected);
}

/// Runs [`check_on`] on memory and on Redis, with the descriptors of domain `d` as a YAML list.
#[track_caller]
fn check(descriptors: &str, steps: &[(RateLimitRequest, &str)]) {
    check_on(with(descriptors), steps);
    let redis = Redis::start();
    check_on(with(descriptors).redis(&redis), steps);
}

fn with(descriptors: &str) -> Builder {
    tollgate::with_rules(&format!("domain: d\ndescriptors:\n{descriptors}"))
}

fn show(answer: Result<RateLimitResponse, Status>) -> String {
    let response = match answer {
        Ok(response) => response,
        Err(status) => return format!("{:?}: {}", status.code(), status.message()),
    };
    let statuses: Vec<_> = response.statuses.iter().map(show_status).collect();
    let overall = response.overall_code().as_str_name();
    format!("{overall}: {}", statuses.join(", "))
}

fn show_status(status: &DescriptorStatus) -> String {
    let remains = format!("{} {}", status.code().as_str_name(), status.limit_remaining);
    // A status has the time until its reset, or no limit.
    let reset = status.duration_until_reset.as_ref();
    let Some(limit) = &status.current_limit else {
        assert!(reset.is_none(), "{status:?}");
        return remains;
    };
    let multiplier = limit.unit_multiplier.unwrap_or(1);
    let period = i64::from(multiplier) * secs(limit.unit());
    let reset = reset.expect("a limit has a reset");
    assert!((1..=period).contains(&reset.seconds) && reset.nanos == 0);
    let unit = limit.unit().as_str_name();
    let period = match limit.unit_multiplier {
        None => unit.to_owned(),
        Some(multiplier) => format!("{multiplier} {unit}"),
    };
    let name = match limit.name.as_str() {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    format!("{remains} of {}/{period}{name}", limit.requests_per_unit)
}

fn secs(unit: Unit) -> i64 {
    match unit {
        Unit::Unknown => 0,
        Unit::Second => 1,
        Unit::Minute => 60,
        Unit::Hour => 3600,
        Unit::Day => 86_400,
        Unit::Week => 604_800,
        Unit::Month => 30 * 86_400,
        Unit::Year => 365 * 86_400,
    }
}

/// A request for descriptors of one entry each, such as `a=1`; `-` is a descriptor without entries.
fn ask(descriptors: &[&str]) -> RateLimitRequest {
    let parts = descriptors.iter().map(|text| part(text)).collect();
    request("d", parts)
}

/// A descriptor, such as `a=1,b=2`.
fn part(text: &str) -> RateLimitDescriptor {
    let entries: Vec<_> = text
        .split(',')
        .filter_map(|entry| entry.split_once('='))
        .collect();
    descriptor(&entries)
}

/// A request with one descriptor that has its own hits.
fn with_hits(text: &str, hits: u64) -> RateLimitRequest {
    let descriptor = RateLimitDescriptor {
        hits_addend: Some(hits),
        ..part(text)
    };
    request("d", vec![descriptor])
}

fn give_back(text: &str, hits: u64) -> RateLimitRequest {
    let mut request = with_hits(text, hits);
    request.descriptors[0].is_negative_hits = true;
    request
}

/// A request with one descriptor that overrides the limit, for one `unit`.
fn with_limit(text: &str, requests_per_unit: u32, unit: i32) -> RateLimitRequest {
    let limit = RateLimitOverride {
        requests_per_unit,
        unit,
        unit_multiplier: None,
    };
    let descriptor = RateLimitDescriptor {
        limit: Some(limit),
        ..part(text)
    };
    request("d", vec![descriptor])
}

const YEAR: i32 = Unit::Year as i32;

// --- Requests

#[test]
fn a_request_that_asks_nothing_is_invalid() {
    check(
        "",
        &[
            (
                request("", vec![]),
                "InvalidArgument: rate limit domain must not be empty",
            ),
            (
                request("d", vec![]),
                "InvalidArgument: rate limit descriptor list must not be empty",
            ),
        ],
    );
}

#[test]
fn what_no_rule_matches_is_ok_and_has_no_limit() {
    check(
        "
  - key: a
    value: x
    rate_limits: [1/10000years]
  - key: b
    descriptors: [{key: c, rate_limits: [1/10000years]}]
",
        &[
            (request("other", vec![part("a=x")]), "OK: OK 0"),
            (request("D", vec![part("a=x")]), "OK: OK 0"),
            (
                ask(&["a=y", "A=x", "z=x", "-"]),
                "OK: OK 0, OK 0, OK 0, OK 0",
            ),
            // Too deep, not deep enough, in another order.
            (ask(&["a=x,b=1", "b=1", "c=1,b=1"]), "OK: OK 0, OK 0, OK 0"),
            (ask(&["a=x"]), "OK: OK 0 of 1/10000 YEAR"),
        ],
    );
}

#[test]
fn statuses_come_in_the_order_of_the_descriptors() {
    check(
        "
  - {key: a, rate_limits: [2/year]}
  - {key: b, rate_limits: [5/10000years]}
",
        &[(
            ask(&["b=1", "other=1", "a=1", "-", "b=2"]),
            "OK: OK 4 of 5/10000 YEAR, OK 0, OK 1 of 2/YEAR, OK 0, OK 4 of 5/10000 YEAR",
        )],
    );
}

#[test]
fn only_the_rule_of_the_last_entry_counts() {
    check(
        "
  - key: a
    rate_limits: [1/10000years]
    descriptors: [{key: b, rate_limits: [5/10000years]}]
",
        &[
            (ask(&["a=x,b=y"]), "OK: OK 4 of 5/10000 YEAR"),
            (ask(&["a=x,b=y"]), "OK: OK 3 of 5/10000 YEAR"),
            (ask(&["a=x"]), "OK: OK 0 of 1/10000 YEAR"),
        ],
    );
}

// --- Counting

#[test]
fn a_limit_of_two_admits_two() {
    check(
        "  - {key: k, rate_limits: [2/10000years]}",
        &[
            (ask(&["k=v"]), "OK: OK 1 of 2/10000 YEAR"),
            (ask(&["k=v"]), "OK: OK 0 of 2/10000 YEAR"),
            (ask(&["k=v"]), "OVER_LIMIT: OVER_LIMIT 0 of 2/10000 YEAR"),
            (ask(&["k=w"]), "OK: OK 1 of 2/10000 YEAR"),
        ],
    );
}

#[test]
fn hits_are_those_of_the_descriptor_or_else_of_the_request_or_else_one() {
    let of_request = |hits, own| {
        let mut request = ask(&["k=v"]);
        request.hits_addend = hits;
        request.descriptors[0].hits_addend = own;
        request
    };
    check(
        "  - {key: k, rate_limits: [100/10000years]}",
        &[
            (of_request(0, None), "OK: OK 99 of 100/10000 YEAR"),
            (of_request(7, None), "OK: OK 92 of 100/10000 YEAR"),
            (of_request(7, Some(0)), "OK: OK 92 of 100/10000 YEAR"),
            (of_request(7, Some(2)), "OK: OK 90 of 100/10000 YEAR"),
            (of_request(0, Some(90)), "OK: OK 0 of 100/10000 YEAR"),
        ],
    );
}

#[test]
fn hits_that_cross_the_limit_are_refused_as_a_whole_and_stay_counted() {
    check(
        "  - {key: k, rate_limits: [10/10000years]}",
        &[
            (with_hits("k=v", 9), "OK: OK 1 of 10/10000 YEAR"),
            (
                with_hits("k=v", 5),
                "OVER_LIMIT: OVER_LIMIT 0 of 10/10000 YEAR",
            ),
            // 14 are stored: giving back four leaves the limit full, a fifth makes room.
            (give_back("k=v", 4), "OK: OK 0 of 10/10000 YEAR"),
            (give_back("k=v", 1), "OK: OK 1 of 10/10000 YEAR"),
        ],
    );
}

#[test]
fn a_look_counts_nothing_and_is_over_only_above_the_limit() {
    check(
        "  - {key: k, rate_limits: [2/10000years]}",
        &[
            (with_hits("k=v", 0), "OK: OK 2 of 2/10000 YEAR"),
            (with_hits("k=v", 2), "OK: OK 0 of 2/10000 YEAR"),
            (with_hits("k=v", 0), "OK: OK 0 of 2/10000 YEAR"),
            (
                with_hits("k=v", 1),
                "OVER_LIMIT: OVER_LIMIT 0 of 2/10000 YEAR",
            ),
            (
                with_hits("k=v", 0),
                "OVER_LIMIT: OVER_LIMIT 0 of 2/10000 YEAR",
            ),
        ],
    );
}

#[test]
fn a_limit_of_zero_refuses_every_hit_but_no_look() {
    check(
        "  - {key: k, rate_limits: [0/10000years]}",
        &[
            (with_hits("k=v", 0), "OK: OK 0 of 0/10000 YEAR"),
            (ask(&["k=v"]), "OVER_LIMIT: OVER_LIMIT 0 of 0/10000 YEAR"),
            (
                with_hits("k=v", 0),
                "OVER_LIMIT: OVER_LIMIT 0 of 0/10000 YEAR",
            ),
        ],
    );
}

#[test]
fn the_same_descriptor_twice_is_counted_twice() {
    check(
        "  - {key: k, rate_limits: [3/10000years]}",
        &[
            (
                ask(&["k=v", "k=v"]),
                "OK: OK 2 of 3/10000 YEAR, OK 1 of 3/10000 YEAR",
            ),
            (
                ask(&["k=v", "k=v"]),
                "OVER_LIMIT: OK 0 of 3/10000 YEAR, OVER_LIMIT 0 of 3/10000 YEAR",
            ),
        ],
    );
}

#[test]
fn given_back_hits_make_room_but_never_more_than_the_limit() {
    check(
        "  - {key: k, rate_limits: [3/10000years]}",
        &[
            (give_back("k=v", 5), "OK: OK 3 of 3/10000 YEAR"),
            (with_hits("k=v", 3), "OK: OK 0 of 3/10000 YEAR"),
            (give_back("k=v", 2), "OK: OK 2 of 3/10000 YEAR"),
            (give_back("k=v", u64::MAX), "OK: OK 3 of 3/10000 YEAR"),
            (ask(&["k=v"]), "OK: OK 2 of 3/10000 YEAR"),
        ],
    );
}

#[test]
fn a_refused_descriptor_does_not_keep_others_from_counting() {
    check(
        "
  - {key: a, rate_limits: [0/10000years]}
  - {key: b, rate_limits: [5/10000years]}
",
        &[
            (
                ask(&["a=1", "b=1"]),
                "OVER_LIMIT: OVER_LIMIT 0 of 0/10000 YEAR, OK 4 of 5/10000 YEAR",
            ),
            (ask(&["b=1"]), "OK: OK 3 of 5/10000 YEAR"),
        ],
    );
}

/// A request with one entry whose value need not be text.
fn bytes(key: &'static str, value: &'static [u8]) -> RateLimitRequest {
    let entry = Entry {
        key: key.into(),
        value: value.into(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        ..RateLimitDescriptor::default()
    };
    request("d", vec![descriptor])
}

#[test]
fn values_that_are_no_text_have_counters_of_their_own() {
    check(
        "
  - {key: k, rate_limits: [1/10000years]}
  - {key: w, value: 'a*z', rate_limits: [1/10000years]}
",
        &[
            (bytes("k", b"\xff"), "OK: OK 0 of 1/10000 YEAR"),
            (bytes("k", b"\xfe"), "OK: OK 0 of 1/10000 YEAR"),
            (
                bytes("k", b"\xff"),
                "OVER_LIMIT: OVER_LIMIT 0 of 1/10000 YEAR",
            ),
            (
                bytes("k", b"\xfe"),
                "OVER_LIMIT: OVER_LIMIT 0 of 1/10000 YEAR",
            ),
            (bytes("k", b"\xef\xbf\xbd"), "OK: OK 0 of 1/10000 YEAR"),
            (bytes("k", b""), "OK: OK 0 of 1/10000 YEAR"),
            (bytes("w", b"a\xff\0z"), "OK: OK 0 of 1/10000 YEAR"),
            (bytes("w", b"a\xffz"), "OK: OK 0 of 1/10000 YEAR"),
        ],
    );
}

/// Unlike in the reference, whose keys can coincide.
#[test]
fn descriptors_that_read_alike_have_counters_of_their_own() {
    check(
        "
  - {key: a, rate_limits: [1/10000years]}
  - {key: a_b, rate_limits: [1/10000years]}
",
        &[
            (ask(&["a=b_c"]), "OK: OK 0 of 1/10000 YEAR"),
            (ask(&["a_b=c"]), "OK: OK 0 of 1/10000 YEAR"),
        ],
    );
}

#[test]
fn values_that_share_a_threshold_share_a_counter() {
    check(
        "
  - {key: k, value: 'a/*', share_threshold: true, rate_limits: [2/10000years]}
  - {key: k, value: 'b/*', rate_limits: [2/10000years]}
",
        &[
            (ask(&["k=a/1"]), "OK: OK 1 of 2/10000 YEAR"),
            (ask(&["k=a/2"]), "OK: OK 0 of 2/10000 YEAR"),
            (ask(&["k=b/1"]), "OK: OK 1 of 2/10000 YEAR"),
            (ask(&["k=b/2"]), "OK: OK 1 of 2/10000 YEAR"),
        ],
    );
}

// --- Several limits on one descriptor

#[test]
fn the_limit_with_the_least_remaining_binds() {
    check(
        "
  - key: k
    rate_limits:
      - { unit: year, requests_per_unit: 100, name: loose }
      - { unit: year, unit_multiplier: 1000, requests_per_unit: 3, name: tight }
",
        &[
            (ask(&["k=v"]), "OK: OK 2 of 3/1000 YEAR (tight)"),
            (with_hits("k=v", 2), "OK: OK 0 of 3/1000 YEAR (tight)"),
            (
                ask(&["k=v"]),
                "OVER_LIMIT: OVER_LIMIT 0 of 3/1000 YEAR (tight)",
            ),
        ],
    );
}

#[test]
fn a_limit_that_is_over_binds_before_one_that_is_full() {
    check(
        "  - {key: k, rate_limits: [2/10000years, 1/1000years]}",
        &[
            (ask(&["k=v"]), "OK: OK 0 of 1/1000 YEAR"),
            // The other one is full now, and lasts longer.
            (ask(&["k=v"]), "OVER_LIMIT: OVER_LIMIT 0 of 1/1000 YEAR"),
            // Both are over: the later reset binds.
            (ask(&["k=v"]), "OVER_LIMIT: OVER_LIMIT 0 of 2/10000 YEAR"),
        ],
    );
}

#[test]
fn of_equals_the_limit_that_resets_last_binds() {
    check(
        "  - {key: k, rate_limits: [2/1000years, 2/10000years, 2/500years]}",
        &[(ask(&["k=v"]), "OK: OK 1 of 2/10000 YEAR")],
    );
}

#[test]
fn every_limit_counts_what_another_one_refuses() {
    const RULES: &str = "
  - key: k
    rate_limits: [1/1000years, 4/10000years]
  - key: l
    rate_limits: [4/10000years]
";
    let steps = [
        (ask(&["k=v"]), "OK: OK 0 of 1/1000 YEAR"),
        (ask(&["k=v"]), "OVER_LIMIT: OVER_LIMIT 0 of 1/1000 YEAR"),
        (ask(&["k=v"]), "OVER_LIMIT: OVER_LIMIT 0 of 1/1000 YEAR"),
        // All four are used up now, though one was admitted.
        (
            give_back("k=v", 0),
            "OVER_LIMIT: OVER_LIMIT 0 of 1/1000 YEAR",
        ),
        (give_back("k=v", 2), "OK: OK 0 of 1/1000 YEAR"),
        (
            with_hits("k=v", 4),
            "OVER_LIMIT: OVER_LIMIT 0 of 4/10000 YEAR",
        ),
    ];
    check_on(with(RULES), &steps);
    // With its cache, tollgate does not count hits in Redis on counters that it knows to be over.
    let redis = Redis::start();
    let all_counted = with(RULES).args(["--local-cache-bytes", "0"]);
    check_on(all_counted.redis(&redis), &steps);
}

#[test]
fn a_reply_names_every_unit_and_its_multiplier() {
    check(
        "
  - {key: second, rate_limits: [9/s]}
  - {key: minute, rate_limits: [9/m]}
  - {key: hour, rate_limits: [9/h]}
  - {key: day, rate_limits: [9/d]}
  - {key: week, rate_limits: [9/w]}
  - {key: month, rate_limits: [9/mo]}
  - {key: year, rate_limits: [9/y]}
  - {key: many, rate_limits: [9/30m]}
",
        &[
            (ask(&["second=1"]), "OK: OK 8 of 9/SECOND"),
            (ask(&["minute=1"]), "OK: OK 8 of 9/MINUTE"),
            (ask(&["hour=1"]), "OK: OK 8 of 9/HOUR"),
            (ask(&["day=1"]), "OK: OK 8 of 9/DAY"),
            (ask(&["week=1"]), "OK: OK 8 of 9/WEEK"),
            (ask(&["month=1"]), "OK: OK 8 of 9/MONTH"),
            (ask(&["year=1"]), "OK: OK 8 of 9/YEAR"),
            (ask(&["many=1"]), "OK: OK 8 of 9/30 MINUTE"),
        ],
    );
}

#[test]
fn the_largest_limit_does_not_wrap() {
    check(
        "  - {key: k, rate_limits: [4294967295/10000years]}",
        &[
            (ask(&["k=v"]), "OK: OK 4294967294 of 4294967295/10000 YEAR"),
            (
                with_hits("k=v", u64::from(u32::MAX)),
                "OVER_LIMIT: OVER_LIMIT 0 of 4294967295/10000 YEAR",
            ),
        ],
    );
}

// --- Rules that are more than a limit

#[test]
fn unlimited_passes_without_counting() {
    check(
        "  - {key: k, rate_limit: {unlimited: true}}",
        &[
            (ask(&["k=v"]), "OK: OK 4294967295"),
            (with_hits("k=v", u64::MAX), "OK: OK 4294967295"),
            (ask(&["k=v"]), "OK: OK 4294967295"),
        ],
    );
}

#[test]
fn a_shadowed_rule_counts_and_reports_but_never_refuses() {
    check(
        "
  - {key: k, shadow_mode: true, rate_limits: [1/10000years]}
  - {key: plain, rate_limits: [1/10000years]}
",
        &[
            (ask(&["k=v"]), "OK: OK 0 of 1/10000 YEAR"),
            (ask(&["k=v"]), "OK: OK 0 of 1/10000 YEAR"),
            (
                ask(&["k=v", "plain=v"]),
                "OK: OK 0 of 1/10000 YEAR, OK 0 of 1/10000 YEAR",
            ),
            (
                ask(&["k=v", "plain=v"]),
                "OVER_LIMIT: OK 0 of 1/10000 YEAR, OVER_LIMIT 0 of 1/10000 YEAR",
            ),
        ],
    );
}

#[test]
fn the_global_shadow_mode_changes_the_overall_code_alone() {
    let steps = [
        (ask(&["k=v"]), "OK: OK 0 of 1/10000 YEAR"),
        (ask(&["k=v"]), "OK: OVER_LIMIT 0 of 1/10000 YEAR"),
        (with_limit("k=v", 0, YEAR), "OK: OVER_LIMIT 0 of 0/YEAR"),
    ];
    let rules = "  - {key: k, rate_limits: [1/10000years]}";
    check_on(with(rules).env("SHADOW_MODE", "true"), &steps);
    check_on(with(rules).args(["--shadow-mode"]), &steps);
}

const QUOTAS: &str = "
  - {key: east, quota_mode: true, rate_limits: [0/10000years]}
  - {key: west, quota_mode: true, rate_limits: [1/10000years]}
  - {key: plain, rate_limits: [100/10000years]}
  - {key: full, rate_limits: [0/10000years]}
  - {key: free, rate_limit: {unlimited: true}}
";

#[test]
fn quota_rules_refuse_only_together() {
    check(
        QUOTAS,
        &[
            // A single quota is like any other limit, also next to plain, unlimited and unmatched descriptors.
            (ask(&["east=1"]), "OVER_LIMIT: OVER_LIMIT 0 of 0/10000 YEAR"),
            (
                ask(&["east=1", "plain=1"]),
                "OVER_LIMIT: OVER_LIMIT 0 of 0/10000 YEAR, OK 99 of 100/10000 YEAR",
            ),
            (
                ask(&["east=1", "free=1", "none=1"]),
                "OVER_LIMIT: OVER_LIMIT 0 of 0/10000 YEAR, OK 4294967295, OK 0",
            ),
            (
                ask(&["east=1", "west=1"]),
                "OK: OVER_LIMIT 0 of 0/10000 YEAR, OK 0 of 1/10000 YEAR",
            ),
            (
                ask(&["east=1", "west=1"]),
                "OVER_LIMIT: OVER_LIMIT 0 of 0/10000 YEAR, OVER_LIMIT 0 of 1/10000 YEAR",
            ),
            // A plain limit refuses independent of the quotas.
            (
                ask(&["west=2", "full=1"]),
                "OVER_LIMIT: OK 0 of 1/10000 YEAR, OVER_LIMIT 0 of 0/10000 YEAR",
            ),
        ],
    );
}

#[test]
fn the_global_quota_mode_makes_every_descriptor_a_quota() {
    check_on(
        with(QUOTAS).env("QUOTA_MODE", "true"),
        &[
            (ask(&["full=1"]), "OVER_LIMIT: OVER_LIMIT 0 of 0/10000 YEAR"),
            (
                ask(&["full=1", "plain=1"]),
                "OK: OVER_LIMIT 0 of 0/10000 YEAR, OK 99 of 100/10000 YEAR",
            ),
            // As in the reference, a descriptor without a rule is a quota that passed.
            (
                ask(&["full=1", "none=1"]),
                "OK: OVER_LIMIT 0 of 0/10000 YEAR, OK 0",
            ),
            (
                ask(&["full=1", "free=1"]),
                "OVER_LIMIT: OVER_LIMIT 0 of 0/10000 YEAR, OK 4294967295",
            ),
        ],
    );
}

#[test]
fn a_replaced_limit_is_neither_judged_nor_counted() {
    check(
        "
  - {key: a, rate_limit: {name: base, unit: year, requests_per_unit: 1}}
  - {key: b, rate_limit: {name: own, unit: year, requests_per_unit: 9, replaces: [{name: base}]}}
  - {key: c, rate_limit: {unlimited: true, replaces: [{name: own}]}}
",
        &[
            (ask(&["a=1", "b=1"]), "OK: OK 0, OK 8 of 9/YEAR (own)"),
            (ask(&["b=1", "a=1"]), "OK: OK 7 of 9/YEAR (own), OK 0"),
            (ask(&["a=1"]), "OK: OK 0 of 1/YEAR (base)"),
            (ask(&["a=1", "b=1"]), "OK: OK 0, OK 6 of 9/YEAR (own)"),
            (ask(&["a=1"]), "OVER_LIMIT: OVER_LIMIT 0 of 1/YEAR (base)"),
            // An unlimited rule replaces too, and rules replaced by a replaced rule stay replaced.
            (ask(&["a=1", "b=1", "c=1"]), "OK: OK 0, OK 0, OK 4294967295"),
            (ask(&["b=1"]), "OK: OK 5 of 9/YEAR (own)"),
        ],
    );
}

#[test]
fn two_rules_that_replace_each_other_leave_no_limit() {
    check(
        "
  - {key: a, rate_limit: {name: a, unit: year, requests_per_unit: 0, replaces: [{name: b}]}}
  - {key: b, rate_limit: {name: b, unit: year, requests_per_unit: 0, replaces: [{name: a}]}}
",
        &[
            (ask(&["a=1", "b=1"]), "OK: OK 0, OK 0"),
            (ask(&["a=1"]), "OVER_LIMIT: OVER_LIMIT 0 of 0/YEAR (a)"),
        ],
    );
}

#[test]
fn of_several_limits_only_the_one_that_is_named_is_replaced() {
    check(
        "
  - key: a
    rate_limits:
      - { unit: year, requests_per_unit: 0, name: short }
      - { unit: year, unit_multiplier: 1000, requests_per_unit: 5, name: long }
  - {key: b, rate_limit: {unlimited: true, replaces: [{name: short}]}}
",
        &[
            (
                ask(&["a=1", "b=1"]),
                "OK: OK 4 of 5/1000 YEAR (long), OK 4294967295",
            ),
            (ask(&["a=1"]), "OVER_LIMIT: OVER_LIMIT 0 of 0/YEAR (short)"),
        ],
    );
}

// --- Limits in requests

#[test]
fn a_limit_of_the_request_shares_the_counter_of_the_rule() {
    check(
        "  - {key: k, rate_limits: [3/year]}",
        &[
            (with_limit("k=v", 10, YEAR), "OK: OK 9 of 10/YEAR"),
            (ask(&["k=v"]), "OK: OK 1 of 3/YEAR"),
            (
                with_limit("k=v", 2, YEAR),
                "OVER_LIMIT: OVER_LIMIT 0 of 2/YEAR",
            ),
            // Another period is another counter.
            (
                with_limit("k=v", 2, Unit::Week as i32),
                "OK: OK 1 of 2/WEEK",
            ),
        ],
    );
}

#[test]
fn a_limit_of_the_request_takes_the_place_of_all_that_the_rule_says() {
    check(
        "
  - {key: free, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limits: [9/year]}
  - {key: quota, quota_mode: true, rate_limits: [9/year]}
  - {key: many, rate_limits: [9/year, 1/10000years]}
  - {key: named, rate_limit: {name: n, unit: year, requests_per_unit: 9, replaces: [{name: m}]}}
  - {key: m, rate_limit: {name: m, unit: year, requests_per_unit: 9}}
",
        &[
            (
                with_limit("free=1", 0, YEAR),
                "OVER_LIMIT: OVER_LIMIT 0 of 0/YEAR",
            ),
            (
                with_limit("shadow=1", 0, YEAR),
                "OVER_LIMIT: OVER_LIMIT 0 of 0/YEAR",
            ),
            (with_limit("many=1", 5, YEAR), "OK: OK 4 of 5/YEAR"),
            (with_limit("named=1", 5, YEAR), "OK: OK 4 of 5/YEAR"),
            // Entries that no rule matches, and no entries at all.
            (with_limit("other=1", 5, YEAR), "OK: OK 4 of 5/YEAR"),
            (with_limit("other=1,more=2", 5, YEAR), "OK: OK 4 of 5/YEAR"),
            (with_limit("-", 5, YEAR), "OK: OK 4 of 5/YEAR"),
            // An override is no quota and replaces nothing.
            (
                request(
                    "d",
                    vec![
                        with_limit("quota=1", 0, YEAR).descriptors.remove(0),
                        part("quota=2"),
                    ],
                ),
                "OVER_LIMIT: OVER_LIMIT 0 of 0/YEAR, OK 8 of 9/YEAR",
            ),
            (
                request(
                    "d",
                    vec![
                        with_limit("named=1", 5, YEAR).descriptors.remove(0),
                        part("m=1"),
                    ],
                ),
                "OK: OK 3 of 5/YEAR, OK 8 of 9/YEAR (m)",
            ),
        ],
    );
}

#[test]
fn a_limit_of_the_request_is_for_known_domains_only() {
    let mut elsewhere = with_limit("k=v", 0, YEAR);
    elsewhere.domain = "elsewhere".to_owned();
    check("", &[(elsewhere, "OK: OK 0")]);
}

#[test]
fn a_limit_of_the_request_has_any_unit_and_multiplier() {
    let mut many = with_limit("k=v", 9, Unit::Minute as i32);
    let limit = many.descriptors[0].limit.as_mut().unwrap();
    limit.unit_multiplier = Some(30);
    check(
        "",
        &[
            (with_limit("k=v", 9, 1), "OK: OK 8 of 9/SECOND"),
            (with_limit("k=v", 9, 2), "OK: OK 8 of 9/MINUTE"),
            (with_limit("k=v", 9, 3), "OK: OK 8 of 9/HOUR"),
            (with_limit("k=v", 9, 4), "OK: OK 8 of 9/DAY"),
            (with_limit("k=v", 9, 5), "OK: OK 8 of 9/MONTH"),
            (with_limit("k=v", 9, 6), "OK: OK 8 of 9/YEAR"),
            (with_limit("k=v", 9, 7), "OK: OK 8 of 9/WEEK"),
            (many, "OK: OK 8 of 9/30 MINUTE"),
        ],
    );
}

/// Within the bound on descriptors all of them are answered.
#[test]
fn a_large_request_is_answered_in_full() {
    let all = vec![part("k=v"); 1000];
    let last: Vec<_> = (0..1000)
        .map(|n| format!("OK {} of 1000/10000 YEAR", 999 - n))
        .collect();
    check(
        "  - {key: k, rate_limits: [1000/10000years]}",
        &[(request("d", all), &format!("OK: {}", last.join(", ")))],
    );
}

/// The reset of a status agrees with the clock.
#[tokio::test]
async fn the_reset_is_the_time_that_is_left_of_the_window() {
    let server = with("  - {key: k, rate_limits: [9/year]}").start();
    let mut client = connect(server.grpc).await;
    let year = u64::try_from(secs(Unit::Year)).unwrap();
    let left = || year - ::tollgate::now().secs() % year;
    let before = left();
    let response = send(&mut client, ask(&["k=v"])).await.unwrap();
    let after = left();
    let reset = response.statuses[0].duration_until_reset.as_ref().unwrap();
    let reset = u64::try_from(reset.seconds).unwrap();
    assert!(
        (after..=before).contains(&reset),
        "{after} {reset} {before}"
    );
}
