use std::time::Duration;

use super::{
    dynamic_names::{DynamicNames, MAX_DYNAMIC_NAME_BYTES, PLACE_BYTES},
    *,
};
use crate::{
    core::{
        counter::CounterState,
        decision::Tally,
        limit::{Allows, Limit, RuleId},
        window::Unit,
    },
    foundation::sample::SampleValue,
};

fn rule(path: &str) -> Rule {
    Rule::plain(RuleId(0), path, Allows::Unlimited)
}

/// The values of all samples with this name in statsd; the count of a timer.
fn values(metrics: &Metrics, name: &str) -> Vec<u64> {
    let mut values = Vec::new();
    metrics.each_sample(None, &mut |sample| {
        if sample.statsd_name() == name {
            values.push(match &sample.value {
                SampleValue::Counter(value) | SampleValue::Gauge(value) => *value,
                SampleValue::Timer(times) => times.count(),
            });
        }
    });
    values
}

fn value(metrics: &Metrics, name: &str) -> Option<u64> {
    values(metrics, name).first().copied()
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

/// Three limits of one name have three, and a reload that changes a number keeps all counts.
#[test]
fn each_limit_keeps_its_counts_while_it_has_its_label() {
    let metrics = Metrics::new(NearRatio::default(), 10);
    let over = |over| Tally {
        over,
        ..Tally::default()
    };
    let load = |requests| {
        let limits = [Unit::Second, Unit::Minute, Unit::Hour].map(|unit| Limit {
            name: Some("x".into()),
            ..Limit::fixed(requests, unit)
        });
        let rule = Rule::plain(RuleId(0), "d.a", Allows::Within(limits.into()));
        metrics.rules(&[rule]).remove(0)
    };
    for (round, requests) in [1, 1, 2].into_iter().enumerate() {
        let stats = load(requests);
        stats.record(0, 1, over(1), &3.into(), false);
        (0..3).for_each(|limit| stats.record_limit(limit, over(limit as u64 + 1), 0));
        let rounds = round as u64 + 1;
        for (label, each) in [
            ("x".to_owned(), 1),
            ("x fixed_window".to_owned(), 2),
            (format!("x fixed_window {requests}/hour"), 3),
        ] {
            let name = format!("tollgate.limit_over_total.d.a.{label}");
            // The rate is in the last label only.
            let rounds = if each == 3 && requests == 2 {
                1
            } else {
                rounds
            };
            assert_eq!(value(&metrics, &name), Some(each * rounds), "{name}");
            let name = format!("tollgate.limit_hits_total.d.a.{label}");
            assert_eq!(value(&metrics, &name), Some(round as u64 + 1), "{name}");
        }
    }
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
    let times = "ratelimit_server.ShouldRateLimit.response_time";
    assert_eq!(value(&metrics, times), Some(3));
}

#[test]
fn what_a_request_calls_like_a_rule_is_counted_with_it() {
    let metrics = Metrics::new(NearRatio::default(), 10);
    let fell = Tally {
        within: 3,
        ..Tally::default()
    };
    metrics.rules(&[rule("d.a")])[0].record(0, 3, fell, &3.into(), false);
    let dynamic_names = lock(&metrics.dynamic_names).stats("d.a", b"d").unwrap();
    dynamic_names.record(0, 3, fell, &3.into(), false);
    let name = "ratelimit.service.rate_limit.d.a.within_limit";
    assert_eq!(values(&metrics, name), [6]);
}

/// A domain leaves as much as it has, and all domains without rules are one.
#[test]
fn names_that_requests_make_up_are_bounded_for_each_domain() {
    let metrics = Metrics::new(NearRatio::default(), 8);
    let mut dynamic_names = lock(&metrics.dynamic_names);
    let kept = |names: &mut DynamicNames, domain: &str| {
        let is_kept = |value: &usize| {
            names
                .stats(&format!("{domain}.{value}"), domain.as_bytes())
                .is_some()
        };
        (0..10).filter(is_kept).count()
    };
    assert_eq!(kept(&mut dynamic_names, "d"), 4);
    assert_eq!(kept(&mut dynamic_names, "d"), 4);
    for domain in [&b"x|y"[..], b"x|y", b"y", b"z"] {
        dynamic_names.unknown_domain(domain);
    }
    assert_eq!(dynamic_names.unknown_domains.len(), 2);
    // One of two domains whose names begin alike.
    assert_eq!(kept(&mut dynamic_names, "d.e"), 1);
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
    let kept = (0..1_000).filter(|number| dynamic_names.stats(&name(*number), b"d").is_some());
    assert_eq!(kept.count(), 500 / 402_usize.div_ceil(PLACE_BYTES));
}

#[test]
fn a_name_that_is_as_long_as_a_header_is_not_kept() {
    let metrics = Metrics::new(NearRatio::default(), 30);
    let long = "x".repeat(60_000);
    let mut dynamic_names = lock(&metrics.dynamic_names);
    assert!(dynamic_names.stats(&long, b"d").is_none());
    dynamic_names.unknown_domain(long.as_bytes());
    assert!(dynamic_names.unknown_domains.is_empty());
    assert!(
        dynamic_names
            .stats(&long[..MAX_DYNAMIC_NAME_BYTES], b"d")
            .is_some()
    );
}

/// Each as `name{label="value",…}`, with its statsd name.
#[test]
fn names_and_labels_are_those_of_the_reference() {
    let metrics = Metrics::new(NearRatio::default(), 10);
    let fell = Tally {
        within: 3,
        ..Tally::default()
    };
    for key in ["d", "d.k_v", "d.a.b", "d.a.b.c", "d.a.b.c.d.e"] {
        let stats = lock(&metrics.dynamic_names).stats(key, b"d").unwrap();
        let cached = CounterState {
            is_cached: true,
            ..3.into()
        };
        stats.record(0, 3, fell, &3.into(), false);
        stats.record(0, 3, Tally { over: 3, ..fell }, &cached, true);
    }
    let mut found = BTreeMap::new();
    metrics.each_sample(None, &mut |sample| {
        let labels = sample.labels.iter();
        let labels: Vec<_> = labels
            .map(|(label, value)| format!("{label}={value}"))
            .collect();
        let shown = format!("{} {}", sample.name.replace('.', "_"), labels.join(" "));
        found.insert(sample.statsd_name(), shown.trim_end().to_owned());
    });
    let mut expected = vec![
        (
            "ratelimit.service.call.should_rate_limit.redis_error".to_owned(),
            "ratelimit_service_should_rate_limit_error err_type=redis_error".to_owned(),
        ),
        (
            "ratelimit_server.ShouldRateLimit.total_requests".to_owned(),
            "ratelimit_service_total_requests grpc_method=ShouldRateLimit".to_owned(),
        ),
        (
            "ratelimit_server.ShouldRateLimit.response_time".to_owned(),
            "ratelimit_service_response_time_seconds grpc_method=ShouldRateLimit".to_owned(),
        ),
        (
            "ratelimit.service.rate_limit.d.a.b.over_limit_with_local_cache".to_owned(),
            "ratelimit_service_rate_limit_d_a_b_over_limit_with_local_cache".to_owned(),
        ),
    ];
    // The mapping of the reference needs two levels.
    for name in [
        "rate_limit.d.total_hits",
        "config_load_success",
        "config_load_error",
        "global_shadow_mode",
    ] {
        let statsd = format!("ratelimit.service.{name}");
        expected.push((statsd.clone(), statsd.replace('.', "_")));
    }
    for stat in [
        "near_limit",
        "over_limit",
        "total_hits",
        "within_limit",
        "shadow_mode",
    ] {
        for (key, labels) in [
            ("d.k_v", "domain=d key1=k_v"),
            ("d.a.b", "domain=d key1=a key2=b"),
            ("d.a.b.c", "domain=d key1=a key2=b"),
            ("d.a.b.c.d.e", "domain=d key1=a key2=b"),
        ] {
            expected.push((
                format!("ratelimit.service.rate_limit.{key}.{stat}"),
                format!("ratelimit_service_rate_limit_{stat} {labels}"),
            ));
        }
    }
    for (statsd, shown) in expected {
        assert_eq!(found.get(&statsd), Some(&shown), "{statsd}");
    }
}
