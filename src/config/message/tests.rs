use prost_types::Struct;

use super::{
    proto::{RateLimitReplace, rate_limit_policy::Starts},
    *,
};
use crate::core::limit::{Allows, Limit};

fn push(configs: &[RateLimitConfig]) -> Push {
    let any = |config: &RateLimitConfig| Any {
        type_url: TYPE_URL.to_owned(),
        value: config.encode_to_vec(),
    };
    Push {
        type_url: TYPE_URL.to_owned(),
        resources: configs.iter().map(any).collect(),
    }
}

fn config(name: &str, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig {
        name: name.to_owned(),
        domain: domain.to_owned(),
        descriptors,
        ..RateLimitConfig::default()
    }
}

fn per(unit: RateLimitUnit, requests_per_unit: u32) -> RateLimitPolicy {
    RateLimitPolicy {
        unit: unit.into(),
        requests_per_unit,
        ..RateLimitPolicy::default()
    }
}

/// A descriptor with the key `k`.
fn limited(policy: RateLimitPolicy) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: "k".to_owned(),
        rate_limit: Some(policy),
        ..RateLimitDescriptor::default()
    }
}

/// The rules made from the descriptors of one domain.
#[track_caller]
fn load(descriptors: Vec<RateLimitDescriptor>) -> Loaded {
    let loaded = push(&[config("d", "d", descriptors)]).compile(Options::default());
    loaded.unwrap_or_else(|problems| panic!("{}", problems[0]))
}

#[track_caller]
fn check_problems(push: &Push, expected: &[&str]) {
    let problems = push.compile(Options::default()).expect_err("it is refused");
    let shown: Vec<_> = problems.iter().map(ToString::to_string).collect();
    let is_as_expected = shown.len() == expected.len()
        && shown
            .iter()
            .zip(expected)
            .all(|(shown, start)| shown.starts_with(start));
    assert!(is_as_expected, "{shown:#?}");
}

/// The only problem of a domain whose descriptor has this policy.
#[track_caller]
fn check_policy(policy: RateLimitPolicy, expected: &str) {
    check_problems(
        &push(&[config("bad", "d", vec![limited(policy)])]),
        &[expected],
    );
}

fn limits(loaded: &Loaded) -> &[Limit] {
    match &loaded.matcher.rules()[0].allows {
        Allows::Within(limits) => limits,
        Allows::Unlimited => panic!("there is no limit"),
    }
}

#[test]
fn every_unit_is_the_one_of_that_name() {
    let units = [
        (RateLimitUnit::Second, 1),
        (RateLimitUnit::Minute, 60),
        (RateLimitUnit::Hour, 3600),
        (RateLimitUnit::Day, 86_400),
        (RateLimitUnit::Week, 7 * 86_400),
        (RateLimitUnit::Month, 30 * 86_400),
        (RateLimitUnit::Year, 365 * 86_400),
    ];
    for (unit, secs) in units {
        let loaded = load(vec![limited(per(unit, 5))]);
        assert_eq!(limits(&loaded)[0].period.secs(), secs, "{unit:?}");
        assert_eq!(limits(&loaded)[0].requests_per_unit, 5);
    }
}

#[test]
fn a_message_says_what_a_file_says() {
    let text = |text: &str| prost_types::Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let nested = RateLimitDescriptor {
        key: "path".to_owned(),
        value: "/export*".to_owned(),
        shadow_mode: true,
        quota_mode: true,
        detailed_metric: true,
        share_threshold: true,
        value_to_metric: true,
        metadata: Some(Struct {
            fields: [("a".to_owned(), text("b"))].into(),
        }),
        rate_limits: vec![
            RateLimitPolicy {
                name: "burst".to_owned(),
                replaces: vec![RateLimitReplace {
                    name: "other".to_owned(),
                }],
                ..per(RateLimitUnit::Second, 3)
            },
            RateLimitPolicy {
                unit_multiplier: Some(30),
                ..per(RateLimitUnit::Minute, 300)
            },
        ],
        ..RateLimitDescriptor::default()
    };
    let parent = RateLimitDescriptor {
        key: "plan".to_owned(),
        value: "free".to_owned(),
        descriptors: vec![nested],
        ..RateLimitDescriptor::default()
    };
    let unlimited = RateLimitDescriptor {
        key: "admin".to_owned(),
        rate_limit: Some(RateLimitPolicy {
            unlimited: true,
            name: "other".to_owned(),
            ..RateLimitPolicy::default()
        }),
        ..RateLimitDescriptor::default()
    };
    let file = "
domain: d
descriptors:
  - key: plan
    value: free
    descriptors:
      - key: path
        value: /export*
        shadow_mode: true
        quota_mode: true
        detailed_metric: true
        share_threshold: true
        value_to_metric: true
        metadata: { a: b }
        rate_limits:
          - { unit: second, requests_per_unit: 3, name: burst, replaces: [{ name: other }] }
          - { unit: minute, unit_multiplier: 30, requests_per_unit: 300 }
  - key: admin
    rate_limit: { unlimited: true, name: other }
";
    let file = File::new("a.yaml".to_owned(), file.to_owned());
    let files = crate::config::files::Files {
        files: vec![file],
        problems: Vec::new(),
    };
    let expected = files.compile(Options::default()).unwrap();
    let loaded = load(vec![parent, unlimited]);
    assert_eq!(loaded.matcher.rules(), expected.matcher.rules());
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn errors_are_named_after_the_resource() {
    check_policy(
        per(RateLimitUnit::Unknown, 1),
        "bad: d.k: invalid rate limit unit 'UNKNOWN'",
    );
    let unknown = RateLimitPolicy {
        unit: 42,
        ..RateLimitPolicy::default()
    };
    check_policy(unknown, "bad: d.k: invalid rate limit unit '42'");
    let both = RateLimitPolicy {
        unlimited: true,
        ..per(RateLimitUnit::Day, 0)
    };
    check_policy(
        both,
        "bad: d.k: should not specify rate limit unit when unlimited",
    );
    let zero = RateLimitPolicy {
        unit_multiplier: Some(0),
        ..per(RateLimitUnit::Day, 1)
    };
    check_policy(
        zero,
        "bad: d.k: `unit_multiplier` must be a whole number from 1",
    );
}

#[test]
fn both_forms_of_limits_are_one_too_many() {
    let both = RateLimitDescriptor {
        rate_limits: vec![per(RateLimitUnit::Hour, 1)],
        ..limited(per(RateLimitUnit::Day, 1))
    };
    let push = push(&[config("bad", "d", vec![both])]);
    check_problems(
        &push,
        &["bad: d.k: `rate_limit` and `rate_limits` on one descriptor"],
    );
}

#[test]
fn a_descriptor_has_at_most_a_thousand_limits() {
    let limit = |number| RateLimitPolicy {
        unit_multiplier: Some(number),
        ..per(RateLimitUnit::Day, 1)
    };
    let descriptor = |limits| RateLimitDescriptor {
        key: "k".to_owned(),
        rate_limits: (1..=limits).map(limit).collect(),
        ..RateLimitDescriptor::default()
    };
    assert_eq!(limits(&load(vec![descriptor(1_000)])).len(), 1_000);
    check_problems(
        &push(&[config("d", "d", vec![descriptor(1_001)])]),
        &["d: d.k: more than 1000 limits on one descriptor; remove some"],
    );
}

#[test]
fn all_errors_of_all_resources_are_told() {
    let no_key = RateLimitDescriptor::default();
    let bad_unit = || limited(per(RateLimitUnit::Unknown, 1));
    let mut push = push(&[
        config("b", "d2", vec![bad_unit(), no_key]),
        config("a", "d1", vec![bad_unit(), bad_unit()]),
        config("c", "", Vec::new()),
        config("e", "d1", Vec::new()),
    ]);
    push.resources.push(Any {
        type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(),
        value: Vec::new(),
    });
    push.resources.push(Any {
        type_url: TYPE_URL.to_owned(),
        value: vec![0xff; 3],
    });
    check_problems(
        &push,
        &[
            "(resource 5): is a resource of type 'type.googleapis.com/envoy.config.cluster.v3.Cluster'",
            "(resource 6): is not a readable RateLimitConfig: ",
            "a: d1.k: invalid rate limit unit",
            "a: d1.k: duplicate descriptor composite key",
            "b: d2.k: invalid rate limit unit",
            "b: d2: descriptor has empty key",
            "c: config file cannot have empty domain",
            "e: duplicate domain 'd1' in config file, already defined in a",
        ],
    );
}

#[test]
fn two_resources_of_one_name_are_still_two() {
    let rule = || vec![limited(per(RateLimitUnit::Day, 1))];
    let twice = push(&[config("x", "d", rule()), config("x", "d", Vec::new())]);
    check_problems(
        &twice,
        &["x (resource 2): duplicate domain 'd' in config file"],
    );
    let cunning = push(&[
        config("x (resource 3)", "d", rule()),
        config("x", "e", rule()),
        config("x", "d", rule()),
    ]);
    check_problems(
        &cunning,
        &["x (resource 3) (resource 3): duplicate domain 'd' in config file"],
    );
    let nameless = push(&[config("", "d", rule()), config("", "e", rule())]);
    let loaded = nameless.compile(Options::default()).unwrap();
    assert_eq!((loaded.matcher.domain_count(), loaded.files), (2, 2));
}

#[test]
fn domains_are_merged_in_the_order_of_the_names_whatever_that_of_the_push() {
    let wild = |value: &str, requests| RateLimitDescriptor {
        value: value.to_owned(),
        ..limited(per(RateLimitUnit::Day, requests))
    };
    let mut push = push(&[
        config("b", "d", vec![wild("x*", 2)]),
        config("a", "d", vec![wild("xy*", 1)]),
    ]);
    let options = Options {
        merge_domains: true,
        ..Options::default()
    };
    let paths = |push: &Push| {
        let loaded = push.compile(options).unwrap();
        let rules = loaded.matcher.rules().iter();
        rules.map(|rule| rule.path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(paths(&push), ["d.k_xy*", "d.k_x*"]);
    let digest = push.digest();
    push.resources.reverse();
    assert_eq!(paths(&push), ["d.k_xy*", "d.k_x*"]);
    assert_eq!(push.digest(), digest);
    push.resources.pop();
    assert_ne!(push.digest(), digest);
}

#[test]
fn a_push_of_another_type_is_refused_whole() {
    let mut push = push(&[config("a", "d", Vec::new())]);
    push.type_url = "type.googleapis.com/x".to_owned();
    check_problems(
        &push,
        &["(push): is a resource of type 'type.googleapis.com/x'"],
    );
    push.type_url.clear();
    assert!(push.compile(Options::default()).is_ok());
}

#[test]
fn a_name_cannot_begin_a_line_of_the_log() {
    let name = format!("a\nERROR {}", "x".repeat(10_000));
    let push = push(&[config(&name, "", Vec::new())]);
    let problems = push.compile(Options::default()).expect_err("no domain");
    let shown = problems[0].to_string();
    assert!(
        shown.starts_with("a?ERROR xx") && shown.len() < 400,
        "{shown}"
    );
}

/// Every field of a limit, of a descriptor and of the whole that the reference does not have.
#[test]
fn ways_of_counting_are_those_of_files() {
    let named = |key: &str, policy: RateLimitPolicy| RateLimitDescriptor {
        key: key.to_owned(),
        ..limited(policy)
    };
    let per_month = || per(RateLimitUnit::Month, 5);
    let calendar = RateLimitPolicy {
        calendar: true,
        time_zone: "Europe/Madrid".to_owned(),
        starts: Some(Starts {
            day: Some(17),
            hour: Some(6),
            month: None,
        }),
        ..per_month()
    };
    let week = RateLimitPolicy {
        calendar: true,
        time_zone: "UTC".to_owned(),
        week_starts: "sunday".to_owned(),
        ..per(RateLimitUnit::Week, 5)
    };
    let bucket = RateLimitPolicy {
        algorithm: "token_bucket".to_owned(),
        burst: Some(7),
        ..per_month()
    };
    let first_hit = RateLimitPolicy {
        window: "first_hit".to_owned(),
        ..per_month()
    };
    let all = RateLimitDescriptor {
        count: "all".to_owned(),
        ..named("e", per_month())
    };
    let file = "
domain: d
count: admitted
descriptors:
  - { key: a, rate_limit: { unit: month, requests_per_unit: 5, calendar: true, time_zone: Europe/Madrid, starts: { day: 17, hour: 6 } } }
  - { key: b, rate_limit: { unit: week, requests_per_unit: 5, calendar: true, time_zone: UTC, week_starts: sunday } }
  - { key: c, rate_limit: { unit: month, requests_per_unit: 5, algorithm: token_bucket, burst: 7 } }
  - { key: d, rate_limit: { unit: month, requests_per_unit: 5, window: first_hit } }
  - { key: e, count: all, rate_limit: { unit: month, requests_per_unit: 5 } }
";
    let files = crate::config::files::Files {
        files: vec![File::new("a.yaml".to_owned(), file.to_owned())],
        problems: Vec::new(),
    };
    let expected = files.compile(Options::default()).unwrap();
    let config = RateLimitConfig {
        count: "admitted".to_owned(),
        ..config(
            "d",
            "d",
            vec![
                named("a", calendar),
                named("b", week),
                named("c", bucket),
                named("d", first_hit),
                all,
            ],
        )
    };
    let loaded = push(&[config]).compile(Options::default()).unwrap();
    assert_eq!(loaded.matcher.rules(), expected.matcher.rules());
    let unknown = RateLimitPolicy {
        algorithm: "guess".to_owned(),
        ..per_month()
    };
    check_policy(unknown, "bad: d.k: unknown algorithm 'guess'");
}

#[test]
fn a_push_has_bodies_of_refusals_as_files_do() {
    let refusal = |body: &str| {
        Some(proto::Refusal {
            body: body.to_owned(),
            ..proto::Refusal::default()
        })
    };
    let mut config = config("d", "d", vec![limited(per(RateLimitUnit::Day, 1))]);
    let content_type = |config: &RateLimitConfig| {
        let loaded = push(std::slice::from_ref(config)).compile(Options::default());
        let refusal = loaded.unwrap().matcher.rules()[0].refusal.clone();
        refusal.map(|refusal| refusal.content_type.clone())
    };
    assert_eq!(content_type(&config), None);
    config.refusal = refusal("problem+json");
    let problem = Some("application/problem+json".to_owned());
    assert_eq!(content_type(&config), problem);
    config.descriptors[0].refusal = refusal("none");
    assert_eq!(content_type(&config), None);
    config.descriptors[0].refusal = refusal("{x}");
    check_problems(&push(&[config]), &["d: d.k: unknown placeholder {x} ("]);
}
