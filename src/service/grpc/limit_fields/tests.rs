use proptest::prelude::*;

use super::*;
use crate::{
    core::{
        counter::CounterState,
        decision::decide,
        limit::{Allows, Modes, Rule, RuleId},
        matcher::Matcher,
        plan::Plan,
        request::Request,
        window::{Period, Unit},
    },
    foundation::header_text::{is_free_name, is_value},
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn rule(id: RuleId, limits: Vec<Limit>) -> Rule {
    Rule::plain(id, "d.k", Allows::Within(limits.into()))
}

/// The fields of a request that has a descriptor for each of `rules`, whose counters hold `counts`.
fn fields(
    choice: LimitFields,
    rules: Vec<Vec<Limit>>,
    counts: &[u64],
) -> Vec<(&'static str, String)> {
    let mut matcher = Matcher::default();
    let root = matcher.insert_domain(b"d");
    let keys: Vec<_> = (0..rules.len()).map(|key| key.to_string()).collect();
    for (key, limits) in keys.iter().zip(rules) {
        let node = matcher.insert(root, key.as_bytes(), b"").unwrap();
        matcher.set_rule(node, |id| rule(id, limits));
    }
    let request = Request::for_keys(keys.iter().map(String::as_str));
    let plan = Plan::new(&matcher, &request, Modes::default(), NOW);
    let counts: Vec<_> = counts.iter().copied().map(CounterState::from).collect();
    let decision = decide(&plan, &counts, Modes::default(), NOW);
    let basis = Basis {
        plan: &plan,
        counts: &counts,
    };
    headers(choice, &decision, &basis, NOW)
}

fn named(name: &str, requests_per_unit: u64, unit: Unit) -> Limit {
    Limit {
        name: (!name.is_empty()).then(|| name.into()),
        ..Limit::fixed(requests_per_unit, unit)
    }
}

#[track_caller]
fn check(choice: LimitFields, rules: Vec<Vec<Limit>>, counts: &[u64], expected: [&str; 2]) {
    let fields = fields(choice, rules, counts);
    let names: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["RateLimit-Policy", "RateLimit"]);
    let values: Vec<_> = fields.iter().map(|(_, value)| &**value).collect();
    assert_eq!(values, expected);
}

#[test]
fn all_limits_are_listed_in_the_order_of_the_request_or_only_the_binding_one() {
    let rules = || {
        vec![
            vec![
                named("", 100, Unit::Minute),
                named("daily", 5000, Unit::Day),
            ],
            vec![named("tenant", 60, Unit::Hour)],
        ]
    };
    check(
        LimitFields::All,
        rules(),
        &[40, 4000, 10],
        [
            r#""100/minute";q=100;w=60, "daily";q=5000;w=86400, "tenant";q=60;w=3600"#,
            r#""100/minute";r=60;t=20, "daily";r=1000;t=36800, "tenant";r=50;t=800"#,
        ],
    );
    check(
        LimitFields::Binding,
        rules(),
        &[40, 4000, 10],
        [r#""tenant";q=60;w=3600"#, r#""tenant";r=50;t=800"#],
    );
    assert_eq!(fields(LimitFields::Off, rules(), &[1, 1, 1]), []);
}

#[test]
fn a_request_without_a_limit_has_no_fields() {
    assert_eq!(fields(LimitFields::All, vec![], &[]), []);
}

#[test]
fn names_that_two_limits_have_are_numbered() {
    let rules = vec![
        vec![named("a", 1, Unit::Day)],
        vec![named("a", 2, Unit::Day)],
        vec![named("a-2", 3, Unit::Day)],
    ];
    let limit = r#""a";q=1;w=86400, "a-2";q=2;w=86400, "a-2-2";q=3;w=86400"#;
    let standing = r#""a";r=0;t=36800, "a-2";r=1;t=36800, "a-2-2";r=2;t=36800"#;
    check(LimitFields::All, rules, &[1, 1, 1], [limit, standing]);
}

#[test]
fn quotes_control_characters_and_other_alphabets_are_written_as_ascii() {
    let name = "a\"b\\c\r\nd\0é";
    let written = r#""a\"b\\c%0d%0ad%00%c3%a9""#;
    check(
        LimitFields::All,
        vec![vec![named(name, 1, Unit::Day)]],
        &[1],
        [
            &format!("{written};q=1;w=86400"),
            &format!("{written};r=0;t=36800"),
        ],
    );
}

#[test]
fn a_bucket_larger_than_its_rate_has_the_time_that_fills_it() {
    let bucket = |requests_per_unit, burst| Limit {
        algorithm: Algorithm::TokenBucket { burst },
        ..Limit::fixed(requests_per_unit, Unit::Second)
    };
    assert_eq!(allowance(&bucket(10, 30)), (30, 3));
    assert_eq!(allowance(&bucket(10, 31)), (31, 4));
    assert_eq!(allowance(&bucket(10, 5)), (10, 1));
    assert_eq!(allowance(&bucket(0, 5)), (0, 1));
    let longest = Limit {
        period: Period::new(Unit::Year, 10_000.try_into().unwrap()).unwrap(),
        ..bucket(1, u32::MAX.into())
    };
    assert_eq!(allowance(&longest), (u32::MAX.into(), MAX_INTEGER));
}

#[test]
fn a_limit_that_refused_holds_until_the_request_would_pass() {
    let limit = named("", 1, Unit::Day);
    let secs = |is_over, retry_secs| {
        effective_secs(&LimitReport {
            limit: &limit,
            is_over,
            remaining: 0,
            reset_secs: 60,
            retry_secs,
        })
    };
    assert_eq!(secs(true, Some(7)), 7);
    assert_eq!(secs(true, None), 60);
    assert_eq!(secs(false, Some(0)), 60);
}

#[test]
fn of_too_many_limits_those_that_bind_least_are_left_out() {
    let rules: Vec<_> = (0..40)
        .map(|n| vec![named(&format!("n{n}"), 10, Unit::Day)])
        .collect();
    // The last one refuses, and is the binding one.
    let counts: Vec<_> = (0..40).map(|n| if n == 39 { 11 } else { 1 }).collect();
    let fields = fields(LimitFields::All, rules, &counts);
    let names: Vec<_> = parse(&fields[1].1).into_iter().map(|item| item.0).collect();
    let expected: Vec<_> = (0..15).chain([39]).map(|n| format!("n{n}")).collect();
    assert_eq!(names, expected);
}

/// An item of a list, with its parameters.
type Item = (String, Vec<(String, u64)>);

/// Reads a list of Strings with whole numbers as parameters, as RFC 9651 says.
#[track_caller]
fn parse(field: &str) -> Vec<Item> {
    let mut rest = field;
    let mut items = Vec::new();
    loop {
        rest = rest.strip_prefix('"').unwrap_or_else(|| panic!("{field}"));
        let mut name = String::new();
        loop {
            let next = rest.chars().next().unwrap();
            rest = &rest[next.len_utf8()..];
            match next {
                '"' => break,
                '\\' => {
                    let escaped = rest.chars().next().unwrap();
                    assert!(matches!(escaped, '"' | '\\'), "{field}");
                    name.push(escaped);
                    rest = &rest[1..];
                }
                ' '..='~' => name.push(next),
                _ => panic!("{next:?} in {field}"),
            }
        }
        let mut parameters = Vec::new();
        while let Some(parameter) = rest.strip_prefix(';') {
            let (key, value) = parameter.split_once('=').unwrap();
            assert!(key.bytes().all(|byte| byte.is_ascii_lowercase()), "{field}");
            let end = value.find(|next: char| !next.is_ascii_digit());
            let (number, after) = value.split_at(end.unwrap_or(value.len()));
            assert!((1..=15).contains(&number.len()), "{field}");
            parameters.push((key.to_owned(), number.parse().unwrap()));
            rest = after;
        }
        items.push((name, parameters));
        if rest.is_empty() {
            return items;
        }
        rest = rest.strip_prefix(", ").unwrap_or_else(|| panic!("{field}"));
    }
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[ab]{1,2}",
        any::<String>(),
        Just("\"\\".repeat(50)),
        Just("é\u{0}\r\n".repeat(4_000)),
    ]
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let unit = prop::sample::select(Unit::ALL.to_vec());
    let burst = prop::option::of(1_u64..);
    (any_name(), any::<u64>(), unit, burst).prop_map(|(name, requests_per_unit, unit, burst)| {
        let limit = named(&name, requests_per_unit, unit);
        match burst {
            Some(burst) => Limit {
                algorithm: Algorithm::TokenBucket { burst },
                ..limit
            },
            None => limit,
        }
    })
}

proptest! {
    #[test]
    fn fields_are_lists_of_structured_fields_for_any_names(
        limits in prop::collection::vec((any_limit(), any::<u32>()), 1..24),
        is_all: bool,
    ) {
        let choice = if is_all { LimitFields::All } else { LimitFields::Binding };
        let counts: Vec<u64> = limits.iter().map(|(_, count)| (*count).into()).collect();
        let rules = limits.iter().map(|(limit, _)| vec![limit.clone()]).collect();
        let fields = fields(choice, rules, &counts);
        for (name, value) in &fields {
            prop_assert!(is_free_name(name) && is_value(value), "{}: {}", name, value);
        }
        let [limit, standing] = [0, 1].map(|index| parse(&fields[index].1));
        let expected = if is_all { limits.len().min(MAX_LIMITS) } else { 1 };
        prop_assert_eq!(limit.len(), expected);
        let names = |items: &[Item]| items.iter().map(|item| item.0.clone()).collect::<Vec<_>>();
        prop_assert_eq!(names(&limit), names(&standing));
        let unique: std::collections::HashSet<_> = names(&limit).into_iter().collect();
        prop_assert_eq!(unique.len(), limit.len());
        for ((_, limit), (_, standing)) in limit.iter().zip(&standing) {
            let keys = |item: &[(String, u64)]| item.iter().map(|(key, _)| key.clone()).collect::<String>();
            prop_assert_eq!(keys(limit) + &keys(standing), "qwrt");
            prop_assert!(standing[0].1 <= limit[0].1);
        }
    }
}
