use std::time::Duration;

use super::{
    dynamic_names::{DynamicNames, MAX_DYNAMIC_NAME_BYTES, PLACE_BYTES},
    *,
};
use crate::{
    core::{
        counter::CounterState,
        decision::Tally,
        limit::{Allows, RuleId},
    },
    foundation::sample::SampleValue,
};

fn rule(path: &str) -> Rule {
    Rule::plain(RuleId(0), path, Allows::Unlimited)
}

fn value(metrics: &Metrics, name: &str) -> Option<u64> {
    let samples = metrics.samples(None);
    let sample = samples.into_iter().find(|sample| sample.name == name)?;
    match sample.value {
        SampleValue::Counter(value) | SampleValue::Gauge(value) => Some(value),
        SampleValue::Timer(_) => None,
    }
}

#[test]
fn a_rule_that_stays_keeps_its_counts_and_one_that_goes_is_forgotten() {
    let metrics = Metrics::new(NearRatio::default(), 10);
    let fell = Tally {
        within: 3,
        ..Tally::default()
    };
    metrics.rules(&[rule("d.a"), rule("d.b")])[0].record(0, 3, fell, &3.into(), false);
    metrics.rules(&[rule("d.c"), rule("d.a")]);
    let within = |key: &str| {
        value(
            &metrics,
            &format!("ratelimit.service.rate_limit.{key}.within_limit"),
        )
    };
    assert_eq!(within("d.a"), Some(3));
    assert_eq!(within("d.c"), Some(0));
    assert_eq!(within("d.b"), None);
}

#[test]
fn what_each_core_counts_is_told_as_one_number() {
    let metrics = Arc::new(Metrics::new(NearRatio::default(), 10).for_workers(2));
    let fell = Tally {
        over: 3,
        ..Tally::default()
    };
    let stats = &metrics.rules(&[rule("d.a")])[0];
    for core in 0..3 {
        let cached = CounterState {
            is_cached: true,
            ..3.into()
        };
        stats.record(core, 3, fell, &cached, false);
        let recorder = metrics.clone().recorder(core);
        recorder.record_call(Duration::from_micros(10));
    }
    let name = |stat| format!("ratelimit.service.rate_limit.d.a.{stat}");
    assert_eq!(value(&metrics, &name("total_hits")), Some(9));
    assert_eq!(
        value(&metrics, &name("over_limit_with_local_cache")),
        Some(9)
    );
    let calls = "ratelimit_server.ShouldRateLimit.total_requests";
    assert_eq!(value(&metrics, calls), Some(3));
    let times = metrics
        .samples(None)
        .into_iter()
        .find_map(|sample| match sample.value {
            SampleValue::Timer(times) => Some(times.count()),
            SampleValue::Counter(_) | SampleValue::Gauge(_) => None,
        });
    assert_eq!(times, Some(3));
}

#[test]
fn what_a_request_calls_like_a_rule_is_counted_with_it() {
    let metrics = Metrics::new(NearRatio::default(), 10);
    let fell = Tally {
        within: 3,
        ..Tally::default()
    };
    metrics.rules(&[rule("d.a")])[0].record(0, 3, fell, &3.into(), false);
    let dynamic_names = lock(&metrics.dynamic_names).stats("d.a").unwrap();
    dynamic_names.record(0, 3, fell, &3.into(), false);
    let name = "ratelimit.service.rate_limit.d.a.within_limit";
    let samples = metrics.samples(None);
    let found: Vec<_> = samples
        .iter()
        .filter(|sample| sample.name == name)
        .collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].value, SampleValue::Counter(6));
}

/// A domain leaves as much as it has, and all domains without rules are one.
#[test]
fn names_that_requests_make_up_are_bounded_for_each_domain() {
    let metrics = Metrics::new(NearRatio::default(), 8);
    let mut dynamic_names = lock(&metrics.dynamic_names);
    let kept = |names: &mut DynamicNames, domain: &str| {
        let is_kept = |value: &usize| names.stats(&format!("{domain}.{value}")).is_some();
        (0..10).filter(is_kept).count()
    };
    assert_eq!(kept(&mut dynamic_names, "d"), 4);
    assert_eq!(kept(&mut dynamic_names, "d"), 4);
    for domain in [&b"x|y"[..], b"x|y", b"y", b"z"] {
        dynamic_names.unknown_domain(domain);
    }
    assert_eq!(dynamic_names.unknown_domains.list.len(), 2);
    assert_eq!(kept(&mut dynamic_names, "e"), 1);
    drop(dynamic_names);
    let unknown = "ratelimit.service.rate_limit.x_y.domain_not_found";
    assert_eq!(value(&metrics, unknown), Some(2));
    assert_eq!(
        value(&metrics, "tollgate.metric_names_overflow_total"),
        Some(6 + 6 + 1 + 9)
    );
}

/// A page contains each name several times, and a scrape holds the page twice.
#[test]
fn a_long_name_takes_the_room_of_several() {
    let metrics = Metrics::new(NearRatio::default(), 1_000);
    let mut dynamic_names = lock(&metrics.dynamic_names);
    let name = |number: usize| format!("d.{number:0>400}");
    let kept = (0..1_000).filter(|number| dynamic_names.stats(&name(*number)).is_some());
    assert_eq!(kept.count(), 500 / 402_usize.div_ceil(PLACE_BYTES));
}

#[test]
fn a_name_that_is_as_long_as_a_header_is_not_kept() {
    let metrics = Metrics::new(NearRatio::default(), 30);
    let long = "x".repeat(60_000);
    let mut dynamic_names = lock(&metrics.dynamic_names);
    assert!(dynamic_names.stats(&long).is_none());
    dynamic_names.unknown_domain(long.as_bytes());
    assert!(dynamic_names.unknown_domains.list.is_empty());
    assert!(
        dynamic_names
            .stats(&long[..MAX_DYNAMIC_NAME_BYTES])
            .is_some()
    );
}
