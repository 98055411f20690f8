use proptest::prelude::*;

use super::*;

fn mapper(text: &str) -> Mapper {
    let loaded = Mapper::parse(text).unwrap();
    assert_eq!(loaded.warnings, [""; 0]);
    loaded.mapper
}

/// An outcome as one line: `name{label="value"}`.
fn show(outcome: MappingOutcome<'_>) -> String {
    match outcome {
        MappingOutcome::Mapped { name, labels, .. } => {
            let labels = labels
                .iter()
                .map(|(label, value)| format!("{label}={value:?}"));
            format!("{name}{{{}}}", labels.collect::<Vec<_>>().join(","))
        }
        MappingOutcome::Dropped => "dropped".to_owned(),
        MappingOutcome::Unmapped => "unmapped".to_owned(),
    }
}

#[track_caller]
fn check(mapper: &Mapper, name: &str, expected: &str) {
    assert_eq!(show(mapper.map(name, SampleKind::Counter)), expected);
}

fn target<'m>(mapper: &'m Mapper, name: &str) -> &'m MappingTarget {
    match mapper.map(name, SampleKind::Timer) {
        MappingOutcome::Mapped { target, .. } => target,
        other => panic!("{other:?}"),
    }
}

/// In the shape of the file that Envoy Gateway mounts: old keys, and a last rule that drops unnamed metrics.
const DROPS_THE_REST: &str = r#"
mappings:
  - match: "ratelimit.service.rate_limit.*.*.over_limit"
    name: "rule_over_limit"
    timer_type: "histogram"
    labels:
      domain: "$1"
      key1: "$2"
  - match: "ratelimit.service.rate_limit.*.*.*.over_limit"
    name: "rule_over_limit"
    timer_type: "histogram"
    labels:
      domain: "$1"
      key1: "$2"
      key2: "$3"
  - match: "ratelimit_server.*.total_requests"
    name: "requests"
    match_metric_type: counter
    labels:
      grpc_method: "$1"
  - match: "."
    match_type: "regex"
    action: "drop"
    name: "dropped"
"#;

#[test]
fn files_may_drop_what_they_do_not_name() {
    let mapper = mapper(DROPS_THE_REST);
    check(
        &mapper,
        "ratelimit.service.rate_limit.shop.httproute/a/b.over_limit",
        "rule_over_limit{domain=\"shop\",key1=\"httproute/a/b\"}",
    );
    check(
        &mapper,
        "ratelimit.service.rate_limit.shop.a.b.over_limit",
        "rule_over_limit{domain=\"shop\",key1=\"a\",key2=\"b\"}",
    );
    check(
        &mapper,
        "ratelimit.service.rate_limit.shop.a.b.c.over_limit",
        "dropped",
    );
    check(&mapper, "ratelimit.go.alloc", "dropped");
    assert_eq!(
        show(mapper.map("ratelimit_server.X.total_requests", SampleKind::Gauge)),
        "dropped"
    );
}

#[test]
fn references_are_filled_in_names_and_labels() {
    let mapper = mapper(
        r#"
mappings:
- match: test.*.*.counter
  name: "${2}_total"
  labels: {provider: "$1", both: "$1-$2x", none: "a$3b$0", text: "$x $ ${1", code: 200}
- match: other\.(\w+)\.(?P<what>\w+)
  match_type: regex
  name: "${what}_total"
  labels: {whole: $0, long: "$1_x", closed: "${1}_x", money: "$$1"}
"#,
    );
    check(
        &mapper,
        "test.foo.bar.counter",
        r#"bar_total{both="foo-barx",code="200",none="ab",provider="foo",text="$x $ ${1"}"#,
    );
    check(
        &mapper,
        "other.foo.bar",
        r#"bar_total{closed="foo_x",long="",money="$1",whole="other.foo.bar"}"#,
    );
}

#[test]
fn the_first_glob_in_the_file_wins() {
    let text = "mappings:\n- {match: a.*.c, name: first}\n- {match: a.b.*, name: second}\n\
                - {match: a.b.c, name: third}\n- {match: '*.*.*', name: last}\n";
    let in_order = mapper(text);
    check(&in_order, "a.b.c", "first{}");
    check(&in_order, "a.b.d", "second{}");
    check(&in_order, "x.b.c", "last{}");
    let specific = mapper(&format!(
        "defaults: {{glob_disable_ordering: true}}\n{text}"
    ));
    check(&specific, "a.b.c", "third{}");
    check(&specific, "a.x.c", "first{}");
    check(&specific, "a.b.d", "second{}");
    check(&specific, "a.x.d", "last{}");
}

#[test]
fn globs_come_before_regular_expressions() {
    let mapper = mapper(
        "mappings:\n- {match: ., match_type: regex, action: drop}\n- {match: a.*, name: glob}\n",
    );
    check(&mapper, "a.b", "glob{}");
    check(&mapper, "b.b", "dropped");
}

#[test]
fn a_star_is_one_segment_even_an_empty_one() {
    let mapper = mapper("mappings:\n- {match: a.*.c, name: n, labels: {star: $1}}\n");
    check(&mapper, "a.b.c", "n{star=\"b\"}");
    check(&mapper, "a..c", "n{star=\"\"}");
    check(&mapper, "a.b.b.c", "unmapped");
    check(&mapper, "a.c", "unmapped");
    check(&mapper, "a.b.cc", "unmapped");
}

#[test]
fn rules_may_be_for_one_kind_only() {
    let mapper = mapper(
        "mappings:\n- {match: a.b, name: counter, match_metric_type: counter}\n\
         - {match: a.b, name: timer, match_metric_type: timer}\n\
         - {match: c.d, name: observer, match_metric_type: observer}\n\
         - {match: ., match_type: regex, name: gauge, match_metric_type: gauge}\n",
    );
    let map = |name, kind| show(mapper.map(name, kind));
    assert_eq!(map("a.b", SampleKind::Counter), "counter{}");
    assert_eq!(map("a.b", SampleKind::Timer), "timer{}");
    assert_eq!(map("a.b", SampleKind::Gauge), "gauge{}");
    assert_eq!(map("c.d", SampleKind::Timer), "observer{}");
    assert_eq!(map("c.d", SampleKind::Counter), "unmapped");
}

#[test]
fn observers_have_an_old_and_a_new_spelling() {
    let histogram = |buckets: &[f64]| Observer::Histogram(buckets.into());
    let mapper = mapper(
        r"
defaults:
  timer_type: histogram
  buckets: [.01, 1]
  match_type: regex
  ttl: 1m20s
  quantiles: [{quantile: 0.99, error: 0.001}]
mappings:
- {match: ^default, name: n, help: why}
- {match: ^old, name: n, timer_type: histogram, buckets: [1, 2, .inf], ttl: 0}
- {match: ^new, name: n, observer_type: histogram, histogram_options: {buckets: [3]}, scale: 10}
- {match: ^both, name: n, observer_type: summary, timer_type: histogram}
- {match: ^summary, name: n, observer_type: summary, summary_options: {max_age: 1m}}
",
    );
    assert_eq!(target(&mapper, "default").observer, histogram(&[0.01, 1.0]));
    assert_eq!(target(&mapper, "default").help.as_deref(), Some("why"));
    assert_eq!(target(&mapper, "old").observer, histogram(&[1.0, 2.0]));
    assert_eq!(target(&mapper, "new").observer, histogram(&[3.0]));
    assert_eq!(target(&mapper, "new").scale, 10.0);
    assert_eq!(target(&mapper, "both").observer, Observer::Summary);
    assert_eq!(target(&mapper, "summary").observer, Observer::Summary);
    assert_eq!(*mapper.unmapped_observer(), histogram(&[0.01, 1.0]));
}

#[test]
fn an_empty_file_maps_nothing() {
    for text in [
        "",
        "# nothing\n",
        "mappings:\n",
        "defaults:\nmappings: []\n",
    ] {
        check(&mapper(text), "a.b", "unmapped");
        assert_eq!(*mapper(text).unmapped_observer(), Observer::Summary);
    }
}

#[test]
fn unknown_keys_are_warned_of() {
    let loaded = Mapper::parse(
        "version: 2\ndefaults: {native: {a: [1]}}\nmappings:\n\
         - {match: a.b, name: n, honor_labels: true, histogram_options: {native_factor: 1.1}}\n",
    );
    assert_eq!(
        loaded.unwrap().warnings,
        [
            "defaults.native: unknown key, ignored",
            "version: unknown key, ignored",
            "mappings[0].honor_labels: unknown key, ignored",
            "mappings[0].histogram_options.native_factor: unknown key, ignored",
        ]
    );
}

#[test]
fn keys_without_effect_are_ignored_where_they_belong_only() {
    let loaded = Mapper::parse(
        "ttl: 1m\ndefaults: {ttl: 1m, quantiles: [], summary_options: {}}\nmappings:\n\
         - {match: a.b, name: n, ttl: 1m, histogram_options: {quantiles: []}}\n",
    );
    assert_eq!(
        loaded.unwrap().warnings,
        [
            "ttl: unknown key, ignored",
            "mappings[0].histogram_options.quantiles: unknown key, ignored",
        ]
    );
}

#[track_caller]
fn check_refused(text: &str, expected: &[&str]) {
    let errors = Mapper::parse(text).unwrap_err();
    let errors = errors
        .into_iter()
        .map(|error| format!("{:#}", anyhow::Error::from(error)));
    assert_eq!(errors.collect::<Vec<_>>(), expected);
}

#[test]
fn every_fault_is_reported() {
    check_refused(
        r"
mappings:
- {name: n}
- {match: a.b}
- {match: a.b*, name: n}
- {match: a..b, name: n}
- {match: a.b, name: n, labels: {9x: v, a-b: v}}
- {match: a.b, name: n, scale: -1}
- {match: a.b, name: n, buckets: [2, 1]}
",
        &[
            "mappings[0]: no `match`",
            "mappings[1]: no `name` for the match `a.b`",
            "mappings[2]: every segment of a glob must be a word or `*`: `a.b*`",
            "mappings[3]: every segment of a glob must be a word or `*`: `a..b`",
            "mappings[4]: a label consists of letters, digits and `_`, not `9x`",
            "mappings[4]: a label consists of letters, digits and `_`, not `a-b`",
            "mappings[5]: a scale must be more than 0, not -1",
            "mappings[6]: buckets must ascend: [2.0, 1.0]",
        ],
    );
    let errors = Mapper::parse("mappings: [{match: (, match_type: regex, name: n}]").unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "mappings[0]: `match` is not a regular expression"
    );
}

#[test]
fn what_is_not_of_the_format_is_told_with_its_place() {
    check_refused(
        "mappings:\n- match: a.b\n  name: n\n  scale: lots\n",
        &[
            "not a mapping file: mappings[0].scale: invalid type: string \"lots\", expected f64 \
           at line 4 column 10",
        ],
    );
    check_refused(
        "mappings:\n- match: a.b\n  match_type: exact\n",
        &[
            "not a mapping file: mappings[0].match_type: unknown variant `exact`, expected `glob` or \
           `regex` at line 3 column 15",
        ],
    );
}

/// The glob as a regular expression.
fn naive(glob: &str) -> Regex {
    let pattern = glob.replace('.', r"\.").replace('*', "([^.]*)");
    Regex::new(&format!("^{pattern}$")).unwrap()
}

proptest! {
    #[test]
    fn globs_find_what_regular_expressions_find(
        globs in prop::collection::vec("[ab*](\\.[ab*]){0,3}", 1..8),
        name in "[abc]?(\\.[abc]?){0,3}",
        is_ordered: bool,
    ) {
        let entries: String = (globs.iter().enumerate())
            .map(|(at, glob)| {
                format!("- {{match: '{glob}', name: n{at}, labels: {{all: '$1 $2 $3 $4'}}}}\n")
            })
            .collect();
        let text =
            format!("defaults: {{glob_disable_ordering: {}}}\nmappings:\n{entries}", !is_ordered);
        let mut found: Vec<_> = globs.iter().enumerate()
            .filter_map(|(at, glob)| naive(glob).captures(&name).map(|groups| (at, glob, groups)))
            .collect();
        if !is_ordered {
            // `*` sorts before letters, so the greatest has the earliest word; of equals, the first one in the file.
            let words = |glob: &str| glob.replace(|found| found != '*' && found != '.', "w");
            found.sort_by_key(|(at, glob, _)| (std::cmp::Reverse(words(glob)), *at));
        }
        let expected = found.first().map_or("unmapped".to_owned(), |(at, _, groups)| {
            let group = |at| groups.get(at).map_or("", |group| group.as_str());
            let all = format!("{} {} {} {}", group(1), group(2), group(3), group(4));
            format!("n{at}{{all={all:?}}}")
        });
        prop_assert_eq!(show(mapper(&text).map(&name, SampleKind::Counter)), expected);
    }
}
