//! The data of dashboards: the reference's names and arithmetic, over statsd, DogStatsD, Prometheus and `/stats`.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use prost::Message as _;
use tempfile::NamedTempFile;
use tonic::Code;

use crate::support::{
    ask::{Client, ask, connect, descriptor, request, send},
    finish, free_port, http,
    raw::RawClient,
    redis::Redis,
    statsd::Collector,
    tollgate::{self, Builder, Tollgate},
    wait_until,
};

const RULES: &str = "
domain: d
descriptors:
  - key: one
    rate_limit: { unit: year, requests_per_unit: 2 }
    descriptors:
      - key: two
        rate_limit: { unit: year, requests_per_unit: 2 }
        descriptors:
          - key: three
            rate_limit: { unit: year, requests_per_unit: 2 }
";

/// The common beginning of a rule's names.
const RULE: &str = "ratelimit.service.rate_limit";

/// Three requests under the rules: two pass.
async fn three_requests(server: &Tollgate) {
    let mut client = connect(server.grpc).await;
    for _ in 0..3 {
        ask(&mut client, "d", &[("one", "v")]).await.unwrap();
    }
}

/// A server that flushes often, to `collector`.
fn flushing(collector: &Collector, env: &[(&str, &str)]) -> Builder {
    let mut builder = tollgate::with_rules(RULES).env("STATS_FLUSH_INTERVAL", "50ms");
    for (name, value) in collector.env() {
        builder = builder.env(name, &value);
    }
    for (name, value) in env {
        builder = builder.env(name, value);
    }
    builder
}

/// The number after `name` on the statistics page.
fn stat(server: &Tollgate, name: &str) -> Option<u64> {
    let page = http::get(server.debug, "/stats").body;
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.map(|value| value.parse().expect("a number"))
}

#[tokio::test]
async fn statsd_lines_travel_over_tcp() {
    let collector = Collector::tcp();
    let server = flushing(&collector, &[("USE_STATSD", "true")]).start();
    three_requests(&server).await;
    collector.expect(&format!("{RULE}.d.one.total_hits"), "", 3);
    collector.expect(&format!("{RULE}.d.one.within_limit"), "", 2);
    collector.expect(&format!("{RULE}.d.one.near_limit"), "", 1);
    collector.expect(&format!("{RULE}.d.one.over_limit"), "", 1);
    collector.expect("ratelimit_server.ShouldRateLimit.total_requests", "", 3);
    collector.expect("ratelimit.service.config_load_success", "", 1);
    // Sent counts are not sent again: counters are differences, and none is zero.
    three_requests(&server).await;
    collector.expect(&format!("{RULE}.d.one.total_hits"), "", 6);
    collector.expect(&format!("{RULE}.d.one.over_limit"), "", 4);
    let lines = collector.lines();
    assert!(
        !lines.iter().any(|line| line.ends_with(":0|c")),
        "{lines:?}"
    );
    for line in &lines {
        let (_, typed) = line.rsplit_once(':').expect("name:value|type");
        let (value, kind) = typed.split_once('|').expect("value|type");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        // Similar times are sent as one, with their sample rate.
        let is_timer = kind == "ms" || kind.starts_with("ms|@");
        assert!(is_timer || ["c", "g"].contains(&kind), "{line}");
    }
    let is_timer = |line: &&String| {
        line.starts_with("ratelimit_server.ShouldRateLimit.response_time:") && line.contains("|ms")
    };
    assert!(lines.iter().any(|line| is_timer(&line)), "{lines:?}");
}

#[tokio::test]
async fn statsd_lines_travel_over_udp() {
    let collector = Collector::udp();
    let env = [("USE_STATSD", "true"), ("STATSD_PROTOCOL", "udp")];
    let server = flushing(&collector, &env).start();
    three_requests(&server).await;
    collector.expect(&format!("{RULE}.d.one.total_hits"), "", 3);
    collector.expect(&format!("{RULE}.d.one.over_limit"), "", 1);
}

/// One line says so, and decisions go on.
#[tokio::test]
async fn a_collector_that_is_away_unknown_or_silent_stops_nothing() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().port();
    for (host, port, protocol, cause) in [
        ("collector..invalid", 1, "tcp", Some("not reached")),
        ("collector..invalid", 1, "udp", Some("not reached")),
        ("127.0.0.1", free_port(), "tcp", Some("Connection refused")),
        ("127.0.0.1", free_port(), "udp", Some("Connection refused")),
        ("127.0.0.1", silent, "tcp", None),
    ] {
        let server = tollgate::with_rules(RULES)
            .env("USE_STATSD", "true")
            .env("STATSD_HOST", host)
            .env("STATSD_PORT", &port.to_string())
            .env("STATSD_PROTOCOL", protocol)
            .env("STATS_FLUSH_INTERVAL", "1ms")
            .start();
        for _ in 0..20 {
            three_requests(&server).await;
        }
        if let Some(cause) = cause {
            let log = server.log().with("statsd collector not reached");
            assert!(log.contains(cause), "{log}");
        }
        let log = server.log().text();
        let lines = log.matches("statsd collector not reached").count();
        // One that never reads is given up after a while.
        assert!(usize::from(cause.is_some()) <= lines && lines <= 1, "{log}");
        assert_eq!(stat(&server, &format!("{RULE}.d.one.total_hits")), Some(60));
    }
}

#[tokio::test]
async fn gauges_are_sent_with_every_flush() {
    let collector = Collector::tcp();
    let _server = flushing(&collector, &[("USE_STATSD", "true")]).start();
    wait_until("a gauge came twice", || {
        let lines = collector.lines();
        let is_gauge = |line: &&String| line.as_str() == "tollgate.memory_counters:0|g";
        lines.iter().filter(is_gauge).count() >= 2
    });
}

#[tokio::test]
async fn extra_tags_are_behind_the_names_in_order() {
    let collector = Collector::tcp();
    let env = [("USE_STATSD", "true"), ("EXTRA_TAGS", "team:x,env:prod")];
    let server = flushing(&collector, &env).start();
    three_requests(&server).await;
    let name = format!("{RULE}.d.one.total_hits.__env=prod.__team=x");
    collector.expect(&name, "", 3);
}

#[tokio::test]
async fn dog_statsd_has_tags_and_mogrifiers() {
    let collector = Collector::udp();
    let env = [
        ("USE_DOG_STATSD", "true"),
        ("EXTRA_TAGS", "env:prod"),
        ("USE_DOG_STATSD_MOGRIFIERS", "FIRST,SECOND"),
        (
            "DOG_STATSD_MOGRIFIER_FIRST_PATTERN",
            r"^ratelimit\.service\.rate_limit\.([^.]+)\.([^.]+)\.total_hits$",
        ),
        ("DOG_STATSD_MOGRIFIER_FIRST_NAME", "limits.hits"),
        ("DOG_STATSD_MOGRIFIER_FIRST_TAGS", "domain:$1,rule:$2"),
        (
            "DOG_STATSD_MOGRIFIER_SECOND_PATTERN",
            r"^ratelimit\.service\.rate_limit\.(.+)\.(.+)$",
        ),
        ("DOG_STATSD_MOGRIFIER_SECOND_NAME", "limits.$2"),
        ("DOG_STATSD_MOGRIFIER_SECOND_TAGS", "path:$1"),
    ];
    let server = flushing(&collector, &env).start();
    three_requests(&server).await;
    collector.expect("limits.hits", "|#domain:d,env:prod,rule:one", 3);
    collector.expect("limits.over_limit", "|#env:prod,path:d.one", 1);
    let name = "ratelimit_server.ShouldRateLimit.total_requests";
    collector.expect(name, "|#env:prod", 3);
}

#[test]
fn a_mogrifier_without_a_pattern_ends_the_start() {
    let (_, text) = tollgate::with_rules(RULES)
        .env("USE_DOG_STATSD", "true")
        .env("USE_DOG_STATSD_MOGRIFIERS", "X")
        .fail();
    let expected = "DOG_STATSD_MOGRIFIER_X_PATTERN is missing";
    assert!(text.contains(expected), "{text}");
}

#[tokio::test]
async fn disable_stats_sends_nothing_but_shows_all() {
    let collector = Collector::tcp();
    let env = [("USE_STATSD", "true"), ("DISABLE_STATS", "true")];
    let server = flushing(&collector, &env).start();
    three_requests(&server).await;
    assert_eq!(stat(&server, &format!("{RULE}.d.one.total_hits")), Some(3));
    assert_eq!(collector.lines(), [""; 0]);
}

/// Hits on a fresh counter, one request each, and the expected counts.
struct Worked {
    limit: u32,
    hits: &'static [u64],
    within: u64,
    near: u64,
    over: u64,
}

const fn worked(limit: u32, hits: &'static [u64], [within, near, over]: [u64; 3]) -> Worked {
    Worked {
        limit,
        hits,
        within,
        near,
        over,
    }
}

/// Examples observed on the reference, including the counts of earlier hits.
const WORKED: &[Worked] = &[
    worked(20, &[2, 3], [5, 0, 0]),
    worked(8, &[5, 2], [7, 1, 0]),
    worked(20, &[16, 3], [19, 3, 0]),
    worked(20, &[19, 3], [19, 3 + 1, 2]),
    worked(20, &[15, 7], [15, 4, 2]),
    worked(10, &[27], [0, 2, 17]),
    worked(10, &[27, 3], [0, 2, 17 + 3]),
    worked(1, &[1], [1, 1, 0]),
    worked(0, &[1], [0, 0, 1]),
    worked(5, &[3, 0, 0], [3, 0, 0]),
];

#[tokio::test]
async fn hits_fall_as_they_did_in_the_reference() {
    let mut rules = "domain: d\ndescriptors:\n".to_owned();
    for (index, Worked { limit, .. }) in WORKED.iter().enumerate() {
        rules += &format!(
            "  - {{ key: k{index}, rate_limit: {{ unit: year, requests_per_unit: {limit} }} }}\n"
        );
    }
    let server = tollgate::with_rules(&rules).start();
    let mut client = connect(server.grpc).await;
    for (index, worked) in WORKED.iter().enumerate() {
        let key = format!("k{index}");
        for &hits in worked.hits {
            let mut descriptor = descriptor(&[(&key, "v")]);
            descriptor.hits_addend = Some(hits);
            send(&mut client, request("d", vec![descriptor]))
                .await
                .unwrap();
        }
        let stat = |name| stat(&server, &format!("{RULE}.d.{key}.{name}")).unwrap();
        let fell = ["total_hits", "within_limit", "near_limit", "over_limit"].map(stat);
        let total = worked.hits.iter().sum();
        let expected = [total, worked.within, worked.near, worked.over];
        assert_eq!(fell, expected, "{} by {:?}", worked.limit, worked.hits);
    }
}

#[tokio::test]
async fn a_shadowed_rule_counts_what_it_let_pass() {
    let server = tollgate::with_rules(
        "
domain: d
descriptors:
  - { key: s, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
",
    )
    .start();
    let mut client = connect(server.grpc).await;
    for _ in 0..5 {
        ask(&mut client, "d", &[("s", "v")]).await.unwrap();
    }
    assert_eq!(stat(&server, &format!("{RULE}.d.s.shadow_mode")), Some(3));
    assert_eq!(stat(&server, &format!("{RULE}.d.s.over_limit")), Some(3));
    assert_eq!(
        stat(&server, "ratelimit.service.global_shadow_mode"),
        Some(0)
    );
}

#[tokio::test]
async fn global_shadow_mode_counts_replies() {
    let server = tollgate::with_rules(RULES)
        .env("SHADOW_MODE", "true")
        .start();
    three_requests(&server).await;
    assert_eq!(
        stat(&server, "ratelimit.service.global_shadow_mode"),
        Some(1)
    );
    assert_eq!(stat(&server, &format!("{RULE}.d.one.over_limit")), Some(1));
}

#[tokio::test]
async fn rules_are_called_as_in_the_reference() {
    let rules = "
domain: d
descriptors:
  - { key: exact, value: v, rate_limit: &limit { unit: year, requests_per_unit: 9 } }
  - { key: w, value: 'x*', rate_limit: *limit }
  - key: route
    value_to_metric: true
    descriptors:
      - key: method
        value_to_metric: true
        descriptors: [{ key: id, rate_limit: *limit }]
  - { key: det, detailed_metric: true, rate_limit: *limit }
  - key: svc
    value: 's/*'
    share_threshold: true
    value_to_metric: true
    descriptors: [{ key: ep, detailed_metric: true, rate_limit: *limit }]
  - { key: free, rate_limit: { unlimited: true } }
";
    let server = tollgate::with_rules(rules).start();
    let mut client = connect(server.grpc).await;
    let expect = async |client: &mut Client, entries: &[(&str, &str)], key: &str| {
        ask(client, "d", entries).await.unwrap();
        let name = format!("{RULE}.{key}.total_hits");
        assert!(stat(&server, &name) > Some(0), "{name}");
    };
    expect(&mut client, &[("exact", "v")], "d.exact_v").await;
    expect(&mut client, &[("w", "xyz")], "d.w_x*").await;
    let route = [("route", "draw"), ("method", "GET"), ("id", "7")];
    expect(&mut client, &route, "d.route_draw.method_GET.id").await;
    let route = [("route", ""), ("method", "GET"), ("id", "7")];
    expect(&mut client, &route, "d.route.method_GET.id").await;
    expect(&mut client, &[("det", "v")], "d.det_v").await;
    expect(&mut client, &[("det", "")], "d.det_").await;
    expect(
        &mut client,
        &[("svc", "s/1"), ("ep", "x")],
        "d.svc_s/*.ep_x",
    )
    .await;
    expect(&mut client, &[("svc", "s/1"), ("ep", "")], "d.svc_s/*.ep").await;
    expect(&mut client, &[("det", "10.0.0.1")], "d.det_10_0_0_1").await;
    // Descriptors without a limit are not counted; an unknown domain is, once per descriptor.
    ask(&mut client, "d", &[("free", "v")]).await.unwrap();
    assert!(matches!(
        stat(&server, &format!("{RULE}.d.free.total_hits")),
        None | Some(0)
    ));
    let unknown = vec![descriptor(&[("a", "v")]), descriptor(&[("b", "v")])];
    send(&mut client, request("elsewhere", unknown))
        .await
        .unwrap();
    let name = format!("{RULE}.elsewhere.domain_not_found");
    assert_eq!(stat(&server, &name), Some(2));
}

#[tokio::test]
async fn an_override_is_called_by_its_entries() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let mut with_limit = descriptor(&[("a", "v"), ("b", "")]);
    with_limit.limit = Some(
        ::tollgate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride {
            requests_per_unit: 5,
            unit: 6,
            unit_multiplier: None,
        },
    );
    send(&mut client, request("d", vec![with_limit]))
        .await
        .unwrap();
    assert_eq!(
        stat(&server, &format!("{RULE}.d.a_v.b.total_hits")),
        Some(1)
    );
}

/// A server with a Prometheus port, and the address of that port.
fn with_prometheus(rules: &str) -> (Builder, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let builder = tollgate::with_rules(rules)
        .env("USE_PROMETHEUS", "true")
        .env("PROMETHEUS_ADDR", &address.to_string());
    (builder, address)
}

/// The value of a series on a Prometheus page.
fn series(page: &str, series: &str) -> Option<f64> {
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map(|value| value.parse().expect("a number"))
}

#[track_caller]
fn expect_series(page: &str, name: &str, expected: f64) {
    assert_eq!(series(page, name), Some(expected), "{name} in:\n{page}");
}

#[tokio::test]
async fn prometheus_sees_the_reference_s_families() {
    let (builder, address) = with_prometheus(RULES);
    let server = builder.start();
    three_requests(&server).await;
    let mut client = connect(server.grpc).await;
    for _ in 0..4 {
        let entries = [("one", "v"), ("two", "v")];
        ask(&mut client, "d", &entries).await.unwrap();
        ask(&mut client, "unknown", &entries).await.unwrap();
    }
    let reply = http::get(address, "/metrics");
    assert_eq!(
        reply
            .header("content-type")
            .map(|kind| kind.contains("version=0.0.4")),
        Some(true)
    );
    let page = reply.body;
    for (stat, expected) in [
        ("total_hits", 3.0),
        ("within_limit", 2.0),
        ("near_limit", 1.0),
        ("over_limit", 1.0),
    ] {
        let name = format!("ratelimit_service_rate_limit_{stat}{{domain=\"d\",key1=\"one\"}}");
        expect_series(&page, &name, expected);
    }
    let two = "ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"one\",key2=\"two\"}";
    expect_series(&page, two, 2.0);
    expect_series(
        &page,
        "ratelimit_service_rate_limit_unknown_domain_not_found",
        4.0,
    );
    let method = "{grpc_method=\"ShouldRateLimit\"}";
    expect_series(
        &page,
        &format!("ratelimit_service_total_requests{method}"),
        11.0,
    );
    expect_series(&page, "ratelimit_service_config_load_success", 1.0);
    expect_series(
        &page,
        "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}",
        0.0,
    );
    let times = "ratelimit_service_response_time_seconds";
    expect_series(&page, &format!("{times}_count{method}"), 11.0);
    let all = format!("{times}_bucket{{grpc_method=\"ShouldRateLimit\",le=\"+Inf\"}}");
    expect_series(&page, &all, 11.0);
    let sum = series(&page, &format!("{times}_sum{method}")).unwrap();
    assert!(
        sum > 0.0 && sum < 10.0,
        "not cut to whole milliseconds: {sum}"
    );
    // That port has no other paths.
    assert_eq!(http::get(address, "/debug/pprof/").status, 404);
}

/// In the style of Envoy Gateway's file: globs, a regex and labels.
const MAPPING: &str = r#"
mappings:
  - match: "ratelimit.service.rate_limit.*.*.over_limit"
    name: "gateway_over_limit"
    timer_type: "histogram"
    labels:
      domain: "$1"
      rule: "$2"
  - match: "ratelimit\\.service\\.rate_limit\\.([^.]+)\\.(.+)\\.total_hits"
    match_type: regex
    name: "gateway_total_hits"
    labels:
      domain: "$1"
      path: "$2"
  - match: "ratelimit_server.*.response_time"
    name: "gateway_response_time_seconds"
    timer_type: histogram
    labels:
      method: "$1"
  - match: "."
    match_type: "regex"
    action: "drop"
    name: "dropped"
"#;

#[tokio::test]
async fn a_mapping_file_says_what_prometheus_sees() {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), MAPPING).unwrap();
    let (builder, address) = with_prometheus(RULES);
    let mapping = file.path().to_str().unwrap();
    let server = builder
        .env("PROMETHEUS_MAPPER_YAML", mapping)
        .env("PROMETHEUS_PATH", "/own")
        .start();
    three_requests(&server).await;
    let mut client = connect(server.grpc).await;
    let entries = [("one", "v"), ("two", "v"), ("three", "v")];
    ask(&mut client, "d", &entries).await.unwrap();
    let page = http::get(address, "/own").body;
    expect_series(&page, "gateway_over_limit{domain=\"d\",rule=\"one\"}", 1.0);
    expect_series(&page, "gateway_total_hits{domain=\"d\",path=\"one\"}", 3.0);
    expect_series(
        &page,
        "gateway_total_hits{domain=\"d\",path=\"one.two.three\"}",
        1.0,
    );
    let times = "gateway_response_time_seconds_count{method=\"ShouldRateLimit\"}";
    expect_series(&page, times, 4.0);
    assert!(!page.contains("ratelimit_service"), "{page}");
    assert!(!page.contains("dropped"), "{page}");
    assert_eq!(http::get(address, "/metrics").status, 404);
}

/// The default mapping of the reference.
fn mapping_of_the_reference() -> String {
    let mut text = "mappings:\n".to_owned();
    for stat in [
        "near_limit",
        "over_limit",
        "total_hits",
        "within_limit",
        "shadow_mode",
    ] {
        text += &format!(
            "- {{match: {RULE}.*.*.{stat}, match_metric_type: counter, name: ratelimit_service_rate_limit_{stat}, \
             labels: {{domain: $1, key1: $2}}}}
- {{match: '^ratelimit\\.service\\.rate_limit\\.([^.]*)\\.([^.]*)\\.([^.]*)\\.(?:.*\\.)?{stat}$', match_type: regex, \
             name: ratelimit_service_rate_limit_{stat}, labels: {{domain: $1, key1: $2, key2: $3}}}}\n"
        );
    }
    text + "- {match: ratelimit.service.call.should_rate_limit.*, name: ratelimit_service_should_rate_limit_error, \
            labels: {err_type: $1}}
- {match: ratelimit_server.*.total_requests, name: ratelimit_service_total_requests, labels: {grpc_method: $1}}
- {match: ratelimit_server.*.response_time, name: ratelimit_service_response_time_seconds, \
            observer_type: histogram, scale: 0.001, labels: {grpc_method: $1}}
- {match: ratelimit.service.config_load_success, name: ratelimit_service_config_load_success}
- {match: ratelimit.service.config_load_error, name: ratelimit_service_config_load_error}
"
}

/// The lines of the reference's families after two requests for each of `paths`, with a mapping or without.
async fn lines_of_the_reference(
    rules: &str,
    domain: &str,
    paths: &[&[(&str, &str)]],
    mapping: Option<&str>,
) -> BTreeSet<String> {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), mapping.unwrap_or_default()).unwrap();
    let path = mapping.and(file.path().to_str()).unwrap_or_default();
    let server = tollgate::with_rules(rules)
        .env("PROMETHEUS_MAPPER_YAML", path)
        .start();
    let mut client = connect(server.grpc).await;
    for entries in paths.iter().flat_map(|path| [path, path]) {
        ask(&mut client, domain, entries).await.unwrap();
        ask(&mut client, "un.known", entries).await.unwrap();
        ask(&mut client, "", entries).await.unwrap_err();
    }
    let page = server.page("/metrics");
    let lines = page.lines().filter(|line| line.starts_with("ratelimit_"));
    let lines = lines.map(|line| match line.rsplit_once(' ') {
        // How long calls took differs.
        Some((series, _)) if series.contains("response_time") => series,
        _ => line,
    });
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn the_mapping_of_the_reference_changes_nothing_of_the_reference() {
    let rules = "
domain: d.e
descriptors:
  - key: one
    shadow_mode: true
    rate_limits: [1/year]
    descriptors:
      - key: two
        detailed_metric: true
        rate_limits: [1/year]
        descriptors: [{ key: three, rate_limits: [1/year] }]
";
    let entries = [("one", "v"), ("two", "10.0.0.1|\"x.y"), ("three", "v")];
    let paths = [&entries[..1], &entries[..2], &entries];
    let lines =
        async |mapping: Option<&str>| lines_of_the_reference(rules, "d.e", &paths, mapping).await;
    let own = lines(None).await;
    assert!(own.len() > 40, "{own:#?}");
    assert_eq!(own, lines(Some(&mapping_of_the_reference())).await);
}

/// Envoy Gateway's mapping: it names rules of one and two levels, and calls, and drops all else.
fn mapping_of_envoy_gateway() -> String {
    let mut text = "mappings:\n".to_owned();
    let stats = ["near_limit", "over_limit", "total_hits", "within_limit"];
    let one = stats.map(|stat| ("*.*", stat, ""));
    let two = stats.map(|stat| ("*.*.*", stat, ", key2: $3"));
    let shadow = ("*.*.*", "shadow_mode", ", key2: $3");
    for (stars, stat, key2) in one.into_iter().chain(two).chain([shadow]) {
        text += &format!(
            "- {{match: '{RULE}.{stars}.{stat}', name: ratelimit_service_rate_limit_{stat}, timer_type: histogram, \
             labels: {{domain: $1, key1: $2{key2}}}}}\n"
        );
    }
    for (from, name, kind, label) in [
        (
            "_server.*.total_requests",
            "total_requests",
            "match_metric_type: counter",
            "grpc_method",
        ),
        (
            "_server.*.response_time",
            "response_time_seconds",
            "timer_type: histogram",
            "grpc_method",
        ),
        (
            ".service.call.should_rate_limit.*",
            "should_rate_limit_error",
            "match_metric_type: counter",
            "err_type",
        ),
        (
            ".service.config_load_success",
            "config_load_success",
            "match_metric_type: counter",
            "",
        ),
        (
            ".service.config_load_error",
            "config_load_error",
            "match_metric_type: counter",
            "",
        ),
    ] {
        let labels = match label {
            "" => String::new(),
            label => format!(", labels: {{{label}: $1}}"),
        };
        let name = format!("ratelimit_service_{name}");
        text += &format!("- {{match: 'ratelimit{from}', name: {name}, {kind}{labels}}}\n");
    }
    text + "- {match: '.', match_type: regex, action: drop, name: dropped}\n"
}

#[tokio::test]
async fn the_mapping_of_envoy_gateway_changes_nothing_that_it_names() {
    let rules = "
domain: d
descriptors:
  - key: one
    shadow_mode: true
    rate_limits: [1/year]
    descriptors:
      - key: two
        detailed_metric: true
        shadow_mode: true
        rate_limits: [1/year]
  - { key: deep, descriptors: [{ key: deeper, descriptors: [{ key: deepest, rate_limits: [1/year] }] }] }
";
    let two = [("one", "v"), ("two", "10.0.0.1|\"x")];
    let three = [("deep", "v"), ("deeper", "v"), ("deepest", "v")];
    let paths = [&two[..1], &two, &three];
    let lines =
        async |mapping: Option<&str>| lines_of_the_reference(rules, "d", &paths, mapping).await;
    // Neither rules of three keys, nor shadow mode of one, unknown domains, and the metrics of its libraries.
    let is_named = |line: &String| {
        let (name, labels) = line.split_once(['{', ' ']).unwrap();
        match name.strip_prefix("ratelimit_service_") {
            Some("rate_limit_shadow_mode") => labels.contains("key2"),
            Some(name) if name.ends_with("domain_not_found") => false,
            Some(name) => name != "global_shadow_mode" && !labels.contains("deep"),
            None => false,
        }
    };
    let (own, mapped) = (
        lines(None).await,
        lines(Some(&mapping_of_envoy_gateway())).await,
    );
    assert!(
        mapped.len() > 30 && mapped.len() + 5 < own.len(),
        "{mapped:#?}"
    );
    let named: BTreeSet<_> = own.into_iter().filter(is_named).collect();
    assert_eq!(mapped, named);
}

#[tokio::test]
async fn a_mapping_file_that_is_missing_or_broken_is_said_and_not_fatal() {
    let file = |text: &str| {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file.into_temp_path()
    };
    let (broken, wrong) = (
        file("mappings: 5"),
        file(
            "mappings:\n- {match: (, match_type: regex, name: n}\n- {match: a.b, name: n, labels: {9: v}}\n",
        ),
    );
    for (path, causes) in [
        ("/not/mounted/conf.yaml", &["No such file"][..]),
        (broken.to_str().unwrap(), &["expected a sequence"]),
        (
            wrong.to_str().unwrap(),
            &[
                "mappings[0]: `match` is not a regular expression",
                "not `9`",
            ],
        ),
    ] {
        let (builder, address) = with_prometheus(RULES);
        let server = builder.env("PROMETHEUS_MAPPER_YAML", path).start();
        let log = server.log().with("the built-in names are used");
        for said in causes.iter().chain([&path]) {
            assert!(log.contains(said), "{said} in {log}");
        }
        three_requests(&server).await;
        let page = http::get(address, "/metrics").body;
        let name = "ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"one\"}";
        expect_series(&page, name, 1.0);
    }
}

#[tokio::test]
async fn extra_tags_are_labels_and_break_no_mapping() {
    let (builder, address) = with_prometheus(RULES);
    let server = builder.env("EXTRA_TAGS", "foo:bar").start();
    three_requests(&server).await;
    let page = http::get(address, "/metrics").body;
    let name = "ratelimit_service_rate_limit_total_hits{domain=\"d\",foo=\"bar\",key1=\"one\"}";
    expect_series(&page, name, 3.0);
    expect_series(
        &page,
        "ratelimit_service_global_shadow_mode{foo=\"bar\"}",
        0.0,
    );
}

#[tokio::test]
async fn names_that_requests_make_up_are_bounded() {
    let rules = |domain: &str| {
        format!(
            "domain: {domain}
descriptors:
  - {{ key: det, detailed_metric: true, rate_limit: {{ unit: year, requests_per_unit: 9 }} }}
"
        )
    };
    // A domain leaves as many as it has, of 10,000.
    const NAMES: u64 = 10 + 4_995;
    let other = rules("other");
    let server = tollgate::with_rules(&rules("d"))
        .file("other.yaml", &other)
        .start();
    let mut client = connect(server.grpc).await;
    for value in 0..10 {
        let domain = format!("unknown-{value}");
        ask(&mut client, &domain, &[("det", "v")]).await.unwrap();
    }
    for thousand in 0..11 {
        let value = |nth: usize| (thousand * 1000 + nth).to_string();
        let descriptors = (0..1000).map(|nth| descriptor(&[("det", &value(nth))]));
        let message = request("d", descriptors.collect());
        send(&mut client, message).await.unwrap();
    }
    let page = http::get(server.debug, "/stats").body;
    let dynamic_names = |line: &&str| {
        line.contains(".domain_not_found") || line.contains("d.det_") && line.contains("total_hits")
    };
    let names: Vec<_> = page.lines().filter(dynamic_names).collect();
    assert_eq!(names.len() as u64, NAMES);
    assert_eq!(
        stat(&server, "tollgate.metric_names_overflow_total"),
        Some(11_010 - NAMES)
    );
    // No hit is lost: without room for its own name, it counts under the rule's name.
    let counted: u64 = page
        .lines()
        .filter(|line| line.contains(".d.det") && line.contains(".total_hits: "))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(counted, 11_000);
    assert!(
        server
            .log()
            .text()
            .contains("no room for more names of metrics")
    );
    ask(&mut client, "other", &[("det", "v")]).await.unwrap();
    let own = "ratelimit.service.rate_limit.other.det_v.total_hits";
    assert_eq!(stat(&server, own), Some(1));
}

#[tokio::test]
async fn hits_that_the_local_cache_answered_are_counted_once() {
    let redis = Redis::start();
    let (builder, address) = with_prometheus(RULES);
    let server = builder
        .redis(&redis)
        .env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")
        .start();
    let mut client = connect(server.grpc).await;
    let entries = [("one", "v"), ("two", "v")];
    for _ in 0..5 {
        ask(&mut client, "d", &entries).await.unwrap();
    }
    // Two passed, Redis refused one and the cache two.
    let stat = |name: &str| stat(&server, &format!("{RULE}.d.one.two.{name}"));
    assert_eq!(stat("total_hits"), Some(5));
    assert_eq!(stat("within_limit"), Some(2));
    assert_eq!(stat("over_limit"), Some(3));
    assert_eq!(stat("over_limit_with_local_cache"), Some(2));
    let page = http::get(address, "/metrics").body;
    let over = "ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"one\",key2=\"two\"}";
    expect_series(&page, over, 3.0);
    expect_series(&page, "ratelimit_localcache_hitCount", 2.0);
    expect_series(&page, "ratelimit_localcache_entryCount", 1.0);
}

#[tokio::test]
async fn a_call_that_fails_counts_no_hits() {
    let mut redis = Redis::start();
    let server = tollgate::with_rules(RULES).redis(&redis).start();
    three_requests(&server).await;
    redis.kill();
    let mut client = connect(server.grpc).await;
    ask(&mut client, "d", &[("one", "v")]).await.unwrap_err();
    assert_eq!(stat(&server, &format!("{RULE}.d.one.total_hits")), Some(3));
    let errors = "ratelimit.service.call.should_rate_limit";
    assert_eq!(stat(&server, &format!("{errors}.redis_error")), Some(1));
    ask(&mut client, "", &[("one", "v")]).await.unwrap_err();
    assert_eq!(stat(&server, &format!("{errors}.service_error")), Some(1));
}

#[tokio::test]
async fn a_value_cannot_write_lines_of_its_own() {
    let collector = Collector::tcp();
    let rules = "
domain: d
descriptors:
  - { key: det, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
";
    let prometheus = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let server = flushing(&collector, &[("USE_STATSD", "true")])
        .file("rules.yaml", rules)
        .env("USE_PROMETHEUS", "true")
        .env("PROMETHEUS_ADDR", &prometheus.to_string())
        .start();
    let mut client = connect(server.grpc).await;
    let evil = "x\nforged:1|c\nalso forged: 7\n\"} 9\r\nforged{a=\"b\"} 1\nq";
    ask(&mut client, "d", &[("det", evil)]).await.unwrap();
    ask(&mut client, "e\nforged:1|c\n", &[("det", "v")])
        .await
        .unwrap();
    wait_until("the hit is sent", || {
        let lines = collector.lines();
        lines
            .iter()
            .any(|line| line.contains("det_x_forged") && line.ends_with(".total_hits:1|c"))
    });
    let stats = http::get(server.debug, "/stats").body;
    let page = http::get(prometheus, "/metrics").body;
    let lines = collector.lines();
    let lines = lines.iter().map(String::as_str);
    for line in lines.chain(stats.lines()).chain(page.lines()) {
        assert!(!line.starts_with("forged"), "{line}");
        assert!(!line.starts_with("also forged"), "{line}");
        assert!(!line.starts_with("\"}"), "{line}");
    }
}

#[tokio::test]
async fn the_statistics_page_shows_the_rules_counters() {
    let server = tollgate::with_rules(RULES).start();
    three_requests(&server).await;
    let page = http::get(server.debug, "/stats").body;
    for line in [
        "ratelimit.service.rate_limit.d.one.total_hits: 3",
        "ratelimit.service.rate_limit.d.one.over_limit: 1",
        "ratelimit.service.config_load_success: 1",
        "ratelimit_server.ShouldRateLimit.total_requests: 3",
    ] {
        assert!(
            page.lines().any(|shown| shown == line),
            "{line} in:\n{page}"
        );
    }
}

/// The commit is known only to builds that were given it.
#[test]
fn the_build_is_named_by_the_command_line_and_by_a_metric_alike() {
    let commit = env!("BUILT_FROM_COMMIT");
    let version = env!("CARGO_PKG_VERSION");
    let printed = finish(tollgate::program().arg("--version"));
    let printed = String::from_utf8(printed.stdout).unwrap();
    // The tests are built like `make run`: not as a release.
    let profile = "profile debug: not for measuring";
    let (shown, suffix) = match commit {
        "" => ("unknown", format!(" ({profile})")),
        commit => (commit, format!(" ({commit}, {profile})")),
    };
    assert_eq!(printed, format!("tollgate {version}{suffix}\n"));
    let server = tollgate::with_rules(RULES).start();
    let page = server.page("/metrics");
    let expected =
        format!("tollgate_build_info{{version=\"{version}\",commit=\"{shown}\",rustc=\"1.");
    let line = page.lines().find(|line| line.starts_with(&expected));
    assert!(line.is_some_and(|line| line.ends_with("\"} 1")), "{page}");
}

/// Domains of rules only, so that no request creates a name.
#[tokio::test]
async fn descriptors_without_a_limit_are_counted_by_domain_and_cause() {
    let path_node = "domain: d.e\ndescriptors:\n  - key: path\n    descriptors: [{key: end, rate_limits: [9/year]}]\n";
    let server = tollgate::with_rules(path_node)
        .file("b.yaml", RULES)
        .start();
    let total = |domain: &str, cause: &str| {
        let labels = format!("{{cause=\"{cause}\",domain=\"{domain}\"}}");
        server.metric(&format!("tollgate_unmatched_descriptors_total{labels}"))
    };
    assert_eq!(total("d", "no_rule"), 0);
    let mut client = connect(server.grpc).await;
    for (domain, entries) in [
        ("d.e", &[("path", "v"), ("end", "v")][..]),
        ("d.e", &[("path", "v")]),
        ("d.e", &[("other", "v")]),
        ("d.e", &[("path", "v"), ("end", "v"), ("deeper", "v")]),
        ("d", &[("two", "v")]),
        ("unknown", &[("one", "v")]),
    ] {
        ask(&mut client, domain, entries).await.unwrap();
    }
    assert_eq!(total("d.e", "no_limit"), 1);
    assert_eq!(total("d.e", "no_rule"), 2);
    assert_eq!(total("d", "no_rule"), 1);
    assert_eq!(total("d", "no_limit"), 0);
    let page = server.page("/metrics");
    assert!(!page.contains("domain=\"unknown\""), "{page}");
    // A load of the rules keeps the counts.
    let loads = server.metric("ratelimit_service_config_load_success");
    std::fs::write(server.rules().join("b.yaml"), format!("{RULES}# more\n")).unwrap();
    wait_until("the rules are loaded", || {
        server.metric("ratelimit_service_config_load_success") > loads
    });
    assert_eq!(total("d.e", "no_rule"), 2);
}

#[tokio::test]
async fn each_limit_of_a_rule_has_counts_that_add_up_to_those_of_the_rule() {
    let rules = "
domain: d
descriptors:
  - key: many
    rate_limits: [4/year, 2/1000years, { unit: year, unit_multiplier: 500, requests_per_unit: 3, name: per.age }]
  - key: one
    detailed_metric: true
    rate_limits: [1/year]
  - key: never
    rate_limits: [1/year]
";
    let server = tollgate::with_rules(rules).start();
    let total = |which: &str, rule: &str, limit: &str| {
        let labels = format!("{{domain=\"d\",limit=\"{limit}\",rule=\"{rule}\"}}");
        server.metric(&format!("tollgate_limit_{which}_total{labels}"))
    };
    let mut client = connect(server.grpc).await;
    for _ in 0..5 {
        ask(&mut client, "d", &[("many", "v")]).await.unwrap();
        ask(&mut client, "d", &[("one", "v")]).await.unwrap();
    }
    // The tightest limit is binding as long as it alone is over, and then the one that resets last.
    assert_eq!(total("over", "many", "2/1000years"), 3);
    assert_eq!(total("over", "many", "4/year"), 0);
    assert_eq!(total("over", "many", "per_age"), 0);
    assert_eq!(total("near", "many", "2/1000years"), 1);
    // All hits charge each limit, also those that count under a name of their own.
    for (rule, limit) in [("many", "4/year"), ("many", "per_age"), ("one", "1/year")] {
        assert_eq!(total("hits", rule, limit), 5);
    }
    assert_eq!(stat(&server, &format!("{RULE}.d.many.over_limit")), Some(3));
    // Under the path of the rule, whatever its own statistics are called.
    assert_eq!(total("over", "one", "1/year"), 4);
    let page = server.page("/metrics");
    assert!(!page.contains("rule=\"never\""), "{page}");
    let name = "tollgate.limit_over_total.d.many.2/1000years";
    assert_eq!(stat(&server, name), Some(3));
}

/// The time that a caller takes to send its message is not the time of the decision.
#[tokio::test]
async fn own_latencies_begin_at_10_microseconds_and_leave_out_the_wait_for_the_message() {
    const LATE: Duration = Duration::from_secs(3);
    let server = tollgate::with_rules(RULES).start();
    let message = request("d", vec![descriptor(&[("one", "v")])]).encode_to_vec();
    let mut frame = vec![0; 5];
    frame[1..].copy_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    let end = frame.split_off(7);
    let mut client = RawClient::connect(server.grpc).await;
    let status = client.send_in_two(frame, LATE, end).await;
    assert_eq!(status.code(), Code::Ok, "{status:?}");
    let page = server.page("/metrics");
    let count = |le: &str| {
        let name = format!("tollgate_call_duration_seconds_bucket{{le=\"{le}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&*name));
        value
            .unwrap_or_else(|| panic!("{name} in {page}"))
            .to_owned()
    };
    for le in ["1e-05", "2.5e-05", "0.001"] {
        count(le);
    }
    assert_eq!([count("1"), count("+Inf")], ["1", "1"]);
    // The name of the reference keeps its buckets.
    assert!(
        !page
            .contains("response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.001\"}")
    );
}
