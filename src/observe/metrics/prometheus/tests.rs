use std::collections::{BTreeMap, BTreeSet, HashSet};

use proptest::prelude::*;

use super::*;
use crate::foundation::sample::{
    SampleLabels,
    make::{counter, gauge, labelled, timer},
};

fn own() -> MetricNames {
    MetricNames::Own {
        in_milliseconds: false,
    }
}

fn mapper(text: &str) -> MetricNames {
    MetricNames::Mapped(Mapper::parse(text).unwrap().mapper)
}

/// The page of `samples`, in small pieces.
fn render(renderer: &Renderer, samples: &[Sample<'_>]) -> String {
    let mut page = renderer.page(|take| samples.iter().for_each(take));
    let mut text = String::new();
    loop {
        let mut piece = String::new();
        let goes_on = page.write_some(&mut piece, 50);
        text.push_str(&piece);
        if !goes_on {
            return text;
        }
    }
}

fn tags(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Renders with own names and no tags; the page must be valid and contain these lines besides comments.
#[track_caller]
fn check(samples: &[Sample<'_>], expected: &[&str]) {
    check_with(&Renderer::new(own(), &[]), samples, expected);
}

#[track_caller]
fn check_with(renderer: &Renderer, samples: &[Sample<'_>], expected: &[&str]) {
    let page = render(renderer, samples);
    validate(&page);
    let lines: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, expected);
}

#[test]
fn the_page_of_a_small_service() {
    let one: SampleLabels<'_> = &[("domain", "shop"), ("key1", "user_a")];
    let two = &[("domain", "shop"), ("key1", "user_a"), ("key2", "path_x")];
    let samples = [
        labelled("ratelimit.service.rate_limit.total_hits", one, 13),
        labelled("ratelimit.service.rate_limit.over_limit", one, 3),
        labelled("ratelimit.service.rate_limit.total_hits", two, 2),
        gauge("ratelimit.redis_pool.cx_active", 10),
        Sample {
            labels: &[("grpc_method", "ShouldRateLimit")],
            ..timer(RESPONSE_TIME, &[500, 6_000, 20_000_000])
        },
    ];
    let page = render(&Renderer::new(own(), &[]), &samples);
    validate(&page);
    let expected = r#"# HELP ratelimit_redis_pool_cx_active The statsd metric of the same name.
# TYPE ratelimit_redis_pool_cx_active gauge
ratelimit_redis_pool_cx_active 10
# HELP ratelimit_service_rate_limit_over_limit Hits above the limit.
# TYPE ratelimit_service_rate_limit_over_limit counter
ratelimit_service_rate_limit_over_limit{domain="shop",key1="user_a"} 3
# HELP ratelimit_service_rate_limit_total_hits Hits on a rule.
# TYPE ratelimit_service_rate_limit_total_hits counter
ratelimit_service_rate_limit_total_hits{domain="shop",key1="user_a"} 13
ratelimit_service_rate_limit_total_hits{domain="shop",key1="user_a",key2="path_x"} 2
# HELP ratelimit_service_response_time_seconds Time to answer a call, by gRPC method.
# TYPE ratelimit_service_response_time_seconds histogram
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.005"} 1
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.01"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.025"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.05"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.1"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.25"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.5"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="1"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="2.5"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="5"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="10"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="+Inf"} 3
ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} 20.0065
ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 3
"#;
    assert_eq!(page, expected);
}

#[test]
fn names_without_a_rule_are_escaped() {
    check(
        &[
            counter("ratelimit.service.global_shadow_mode", 1),
            gauge("ratelimit.localcache.hitCount", 2),
            counter("ratelimit.service.rate_limit.d.domain_not_found", 3),
            counter(
                "ratelimit.service.rate_limit.d.k.over_limit_with_local_cache",
                4,
            ),
            counter("ratelimit.memcache.add.__code=not_stored", 5),
        ],
        &[
            "ratelimit_localcache_hitCount 2",
            "ratelimit_memcache_add___code_not_stored 5",
            "ratelimit_service_global_shadow_mode 1",
            "ratelimit_service_rate_limit_d_domain_not_found 3",
            "ratelimit_service_rate_limit_d_k_over_limit_with_local_cache 4",
        ],
    );
}

#[test]
fn escaping_is_that_of_statsd_exporter() {
    for (name, expected) in [
        ("a.b-c", "a_b_c"),
        ("a--b---c", "a_b_c"),
        ("a.-.-b", "a____b"),
        ("9a", "_9a"),
        ("é😱", "__"),
        ("a:b", "a_b"),
        ("", ""),
        ("fine_1", "fine_1"),
    ] {
        assert_eq!(escape_name(name), expected);
    }
}

#[test]
fn samples_of_one_series_are_added_up() {
    let labels = &[("domain", "d"), ("key1", "a")];
    check(
        &[labelled("x", labels, 1), labelled("x", labels, 2)],
        &["x{domain=\"d\",key1=\"a\"} 3"],
    );
}

#[test]
fn gauges_of_one_series_are_the_last() {
    check(&[gauge("a.b", 7), gauge("a_b", 3)], &["a_b 3"]);
}

#[test]
fn extra_tags_are_labels_and_break_no_mapping() {
    let extra = tags(&[
        ("foo", "bar"),
        ("my-tag", "x"),
        ("9", "y"),
        ("domain", "z"),
        ("no", ""),
    ]);
    check_with(
        &Renderer::new(own(), &extra),
        &[
            labelled("hits", &[("domain", "d"), ("key1", "one")], 1),
            counter("x.y", 2),
        ],
        &[
            "hits{_9=\"y\",domain=\"d\",foo=\"bar\",key1=\"one\",my_tag=\"x\"} 1",
            "x_y{_9=\"y\",domain=\"z\",foo=\"bar\",my_tag=\"x\"} 2",
        ],
    );
}

#[test]
fn labels_are_escaped() {
    check(
        &[labelled("hits", &[("key1", "a\"b\\c\nd"), ("no", "")], 1)],
        &[r#"hits{key1="a\"b\\c\nd"} 1"#],
    );
}

#[test]
fn help_is_escaped() {
    let text = "mappings: [{match: a.b, name: n, help: \"one\\ntwo \\\\ three\"}]";
    let page = render(&Renderer::new(mapper(text), &[]), &[counter("a.b", 1)]);
    validate(&page);
    assert!(
        page.starts_with("# HELP n one\\ntwo \\\\ three\n"),
        "{page}"
    );
}

#[test]
fn own_timers_are_seconds_and_the_reference_s_can_be_milliseconds() {
    for (in_milliseconds, sum) in [(false, "0.002"), (true, "2")] {
        let renderer = Renderer::new(MetricNames::Own { in_milliseconds }, &[]);
        let samples = [RESPONSE_TIME, CALL_DURATION].map(|name| timer(name, &[1_500, 500]));
        let page = render(&renderer, &samples);
        validate(&page);
        for line in [
            &*format!("ratelimit_service_response_time_seconds_sum {sum}"),
            "tollgate_call_duration_seconds_sum 0.002",
            "tollgate_call_duration_seconds_bucket{le=\"0.0005\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }
}

#[test]
fn timers_without_a_rule_are_summaries_of_milliseconds() {
    check_with(
        &Renderer::new(mapper(""), &[]),
        &[timer("a.response_time", &[1_500, 500])],
        &["a_response_time_sum 2", "a_response_time_count 2"],
    );
}

#[test]
fn without_a_scale_buckets_are_milliseconds() {
    let text = "defaults: {timer_type: histogram, buckets: [0.005, 1, 1e6]}\n\
                mappings: [{match: t.*, name: t, labels: {x: $1}}]";
    check_with(
        &Renderer::new(mapper(text), &[]),
        &[timer("t.a", &[5, 6, 1_000]), timer("other", &[1])],
        &[
            "other_bucket{le=\"0.005\"} 1",
            "other_bucket{le=\"1\"} 1",
            "other_bucket{le=\"1e+06\"} 1",
            "other_bucket{le=\"+Inf\"} 1",
            "other_sum 0.001",
            "other_count 1",
            "t_bucket{x=\"a\",le=\"0.005\"} 1",
            "t_bucket{x=\"a\",le=\"1\"} 3",
            "t_bucket{x=\"a\",le=\"1e+06\"} 3",
            "t_bucket{x=\"a\",le=\"+Inf\"} 3",
            "t_sum{x=\"a\"} 1.011",
            "t_count{x=\"a\"} 3",
        ],
    );
}

#[test]
fn every_usual_bucket_is_exact_in_seconds() {
    for (bound, expected) in [
        (0.005, 5_000),
        (0.025, 25_000),
        (0.25, 250_000),
        (10.0, 10_000_000),
    ] {
        assert_eq!(micros(bound, 0.001), expected);
    }
    assert_eq!(micros(f64::MAX, 0.001), u64::MAX);
    assert_eq!(micros(-1.0, 1.0), 0);
}

#[test]
fn timers_of_one_series_are_added_up_in_the_unit_of_each() {
    let text = "mappings:\n\
                - {match: a.ms, name: t, observer_type: histogram, buckets: [1, 10]}\n\
                - {match: a.s, name: t, observer_type: histogram, buckets: [1, 10], scale: 0.001}\n";
    check_with(
        &Renderer::new(mapper(text), &[]),
        &[
            timer("a.ms", &[500, 5_000]),
            timer("a.s", &[5_000_000, 50_000_000]),
        ],
        &[
            "t_bucket{le=\"1\"} 1",
            "t_bucket{le=\"10\"} 3",
            "t_bucket{le=\"+Inf\"} 4",
            "t_sum 60.5",
            "t_count 4",
        ],
    );
}

#[test]
fn the_first_type_of_a_family_stays_and_conflicts_are_counted() {
    let renderer = Renderer::new(mapper(""), &[]);
    let samples = [
        counter("a.b", 1),
        gauge("a_b", 2),
        timer("a-b", &[1]),
        gauge("a.b", 4),
    ];
    let conflicts = |gauges, timers| {
        [
            "a_b 1".to_owned(),
            format!("{CONFLICTS}{{type=\"gauge\"}} {gauges}"),
            format!("{CONFLICTS}{{type=\"observer\"}} {timers}"),
        ]
    };
    for (gauges, timers) in [(2, 1), (4, 2)] {
        let expected = conflicts(gauges, timers);
        check_with(
            &renderer,
            &samples,
            &expected.each_ref().map(String::as_str),
        );
    }
}

#[test]
fn names_of_lines_belong_to_one_family() {
    let names = || Renderer::new(mapper(""), &[]);
    check_with(
        &names(),
        &[
            timer("t", &[1_000]),
            gauge("t_count", 9),
            counter("process_open_fds", 1),
        ],
        &[
            "t_sum 1",
            "t_count 1",
            &format!("{CONFLICTS}{{type=\"counter\"}} 1"),
            &format!("{CONFLICTS}{{type=\"gauge\"}} 1"),
        ],
    );
    check_with(
        &names(),
        &[gauge("t_sum", 9), timer("t", &[1_000])],
        &["t_sum 9", &format!("{CONFLICTS}{{type=\"observer\"}} 1")],
    );
}

#[test]
fn labels_of_histograms_are_not_confused_with_bounds() {
    let text = "mappings: [{match: t.*, name: t, observer_type: histogram, buckets: [1], \
                labels: {le: $1, quantile: q}}]";
    check_with(
        &Renderer::new(mapper(text), &[]),
        &[timer("t.a", &[1_000])],
        &[
            "t_bucket{exported_le=\"a\",exported_quantile=\"q\",le=\"1\"} 1",
            "t_bucket{exported_le=\"a\",exported_quantile=\"q\",le=\"+Inf\"} 1",
            "t_sum{exported_le=\"a\",exported_quantile=\"q\"} 1",
            "t_count{exported_le=\"a\",exported_quantile=\"q\"} 1",
        ],
    );
}

#[test]
fn dropped_metrics_are_not_on_the_page() {
    let text = "mappings: [{match: ., match_type: regex, action: drop}]";
    check_with(&Renderer::new(mapper(text), &[]), &[counter("a", 1)], &[]);
}

#[test]
fn bounds_are_written_as_go_does() {
    for (bound, expected) in [
        (0.0001, "0.0001"),
        (0.00005, "5e-05"),
        (2.5, "2.5"),
        (100_000.0, "100000"),
        (999_999.5, "999999.5"),
        (1_000_000.0, "1e+06"),
        (12_345_678.0, "1.2345678e+07"),
        (-2.5e-10, "-2.5e-10"),
        (1e100, "1e+100"),
        (0.0, "0"),
    ] {
        assert_eq!(go_float(bound), expected);
    }
}

#[test]
fn a_page_may_go_on_with_the_process() {
    let renderer = Renderer::new(own(), &[]);
    validate(&(render(&renderer, &[counter("process.open_fds", 1)]) + &process::render()));
}

#[test]
fn the_validator_finds_faults() {
    for page in [
        "a 1",
        "a 1\n",
        "# HELP a x\n# TYPE a counter\na 1\na 2\n",
        "# HELP a x\n# TYPE a counter\na{b=\"c\",b=\"d\"} 1\n",
        "# HELP a x\n# TYPE a counter\na{b=\"c\" 1\n",
        "# HELP a x\n# TYPE a counter\na{b=\"\\x\"} 1\n",
        "# HELP a x\n# TYPE a counter\nb 1\n",
        "# HELP a x\n# TYPE a counter\na 1\n# HELP a x\n# TYPE a counter\na{b=\"c\"} 1\n",
        "# HELP a x\n# TYPE a counter\n",
        "# HELP a x\n# TYPE a counter\na -1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 2\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
    ] {
        assert!(
            std::panic::catch_unwind(|| validate(page)).is_err(),
            "{page}"
        );
    }
}

proptest! {
    #[test]
    fn every_page_is_valid(
        named in prop::collection::vec(
            ("(a|t|ratelimit\\.service\\.rate_limit)?[.ab\\\\\"\n_{é:9-]{0,6}(_count|\\.over_limit)?",
             0..3u8, 0..10_000_000u64),
            0..30),
        extra in prop::collection::vec(("[-a9le:\n]{0,3}", "[a\"\\\\\n,}]{0,3}"), 0..3),
        is_histogram: bool,
    ) {
        let samples: Vec<_> = named.iter().map(|(name, kind, number)| match kind {
            0 => counter(name, *number),
            1 => gauge(name, *number),
            _ => timer(name, &[*number, 7]),
        }).collect();
        let kind = if is_histogram { "histogram" } else { "summary" };
        let text = format!(
            "defaults: {{observer_type: {kind}}}\nmappings:\n\
             - {{match: ratelimit.service.rate_limit.*.over_limit, name: '$1', labels: {{d: $1}}}}\n\
             - {{match: '(.)\\.(.)', match_type: regex, name: '$1', labels: {{le: $2, x: $1}}}}\n"
        );
        validate(&render(&Renderer::new(mapper(&text), &extra), &samples));
        validate(&render(&Renderer::new(own(), &extra), &samples));
    }
}

/// A series read back from a page: the name of the line, its labels, its value.
struct Line {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Panics unless the text is a valid page, by rules stricter than Prometheus' own: every family in one piece with
/// HELP, TYPE and at least one line, no series twice, complete histograms.
#[track_caller]
fn validate(page: &str) {
    assert!(
        page.is_empty() || page.ends_with('\n'),
        "the last line has no end"
    );
    let (mut families, mut series) = (HashSet::new(), HashSet::new());
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let help = line
            .strip_prefix("# HELP ")
            .expect("a family begins with HELP");
        let (family, _) = help.split_once(' ').expect("HELP has a text");
        assert!(is_name(family), "{family}");
        assert!(families.insert(family), "{family} twice");
        let kind = lines
            .next()
            .and_then(|line| line.strip_prefix(&format!("# TYPE {family} ")));
        let suffixes: &[&str] = match kind {
            Some("counter" | "gauge") => &[""],
            Some("histogram") => &["_bucket", "_sum", "_count"],
            Some("summary") => &["_sum", "_count"],
            other => panic!("{family} has the type {other:?}"),
        };
        let mut found = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let line = read(line);
            let suffix = line
                .name
                .strip_prefix(family)
                .expect("a line of the family");
            assert!(suffixes.contains(&suffix), "{} in {family}", line.name);
            assert!(
                series.insert((line.name.clone(), line.labels.clone())),
                "{} twice",
                line.name
            );
            assert!(
                kind == Some("gauge") || line.value >= 0.0,
                "{} shrinks",
                line.name
            );
            found.push(line);
        }
        assert!(!found.is_empty(), "{family} is empty");
        if suffixes.len() > 1 {
            validate_observers(&found, kind == Some("histogram"));
        }
    }
}

#[track_caller]
fn validate_observers(lines: &[Line], is_histogram: bool) {
    let plain = |line: &Line| {
        let mut labels = line.labels.clone();
        labels.remove("le");
        labels
    };
    for labels in lines.iter().map(plain).collect::<BTreeSet<_>>() {
        let of = |suffix: &str| {
            let lines = lines.iter().filter(|line| line.name.ends_with(suffix));
            lines
                .filter(|line| plain(line) == labels)
                .collect::<Vec<_>>()
        };
        let ([_], [count]) = (&of("_sum")[..], &of("_count")[..]) else {
            panic!("not one sum and one count of {labels:?}");
        };
        if is_histogram {
            let buckets = of("_bucket");
            let bounds: Vec<f64> = buckets
                .iter()
                .map(|line| line.labels["le"].parse().unwrap())
                .collect();
            assert!(
                bounds.windows(2).all(|pair| pair[0] < pair[1]),
                "{bounds:?}"
            );
            assert!(
                buckets
                    .windows(2)
                    .all(|pair| pair[0].value <= pair[1].value)
            );
            assert_eq!(bounds.last(), Some(&f64::INFINITY));
            assert_eq!(buckets.last().unwrap().value, count.value);
        }
    }
}

#[track_caller]
fn read(line: &str) -> Line {
    let name_end = line.find(['{', ' ']).expect("a name ends");
    let (name, mut rest) = line.split_at(name_end);
    assert!(is_name(name), "{name}");
    let mut labels = BTreeMap::new();
    if let Some(after) = rest.strip_prefix('{') {
        rest = after;
        loop {
            let (label, after) = rest.split_once("=\"").expect("a label has a value");
            assert!(is_label(label), "{label}");
            let (value, after) = read_value(after);
            assert!(
                labels.insert(label.to_owned(), value).is_none(),
                "{label} twice"
            );
            rest = after;
            match rest.strip_prefix(',') {
                Some(after) => rest = after,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').expect("labels end");
    }
    let value = rest.strip_prefix(' ').expect("a space before the value");
    Line {
        name: name.to_owned(),
        labels,
        value: value.parse().unwrap(),
    }
}

#[track_caller]
fn read_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut found = text.char_indices();
    while let Some((at, next)) = found.next() {
        match next {
            '"' => return (value, &text[at + 1..]),
            '\\' => match found.next() {
                Some((_, escaped @ ('\\' | '"'))) => value.push(escaped),
                Some((_, 'n')) => value.push('\n'),
                other => panic!("no such escape: {other:?}"),
            },
            plain => value.push(plain),
        }
    }
    panic!("a value does not end");
}

fn is_name(text: &str) -> bool {
    is_label(&text.replace(':', "_"))
}
