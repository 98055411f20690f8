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
    ask::*,
    finish, free_port,
    hoard::framed,
    http,
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
    rate_limits: [2/year]
    descriptors:
      - key: two
        rate_limits: [2/year]
        descriptors: [{ key: three, rate_limits: [2/year] }]
";

/// Its values are in the names of statistics.
const DETAILED: &str = "
domain: d
descriptors: [{ key: det, detailed_metric: true, rate_limits: [9/year] }]
";

const RULE: &str = "ratelimit.service.rate_limit";

async fn three_requests(server: &Tollgate) {
    let mut client = connect(server.grpc).await;
    for _ in 0..3 {
        ask(&mut client, "d", &[("one", "v")]).await.unwrap();
    }
}

async fn asked(builder: Builder) -> Tollgate {
    let server = builder.start();
    three_requests(&server).await;
    server
}

/// A server with variables, `NAME=value` each.
fn with(builder: Builder, env: &str) -> Builder {
    env.split_whitespace().fold(builder, |builder, one| {
        let (name, value) = one.split_once('=').unwrap();
        builder.env(name, value)
    })
}

/// A server that flushes often, to `collector`.
fn flushing(collector: &Collector, env: &str) -> Builder {
    let [(_, host), (_, port)] = collector.env();
    let own = format!("STATSD_HOST={host} STATSD_PORT={port} STATS_FLUSH_INTERVAL=50ms {env}");
    with(tollgate::with_rules(RULES), &own)
}

fn of_rule(server: &Tollgate, rule: &str, name: &str) -> Option<u64> {
    stat(server, &format!("{RULE}.d.{rule}.{name}"))
}

#[tokio::test]
async fn statsd_lines_travel_over_tcp() {
    let collector = Collector::tcp();
    let server = flushing(&collector, "USE_STATSD=true").start();
    wait_until("gauges come with every flush", || {
        let lines = collector.lines().join("\n");
        lines.matches("tollgate.memory_counters:0|g").count() >= 2
    });
    // Sent counts are not sent again: counters are differences, and none is zero.
    for [total, within, near, over] in [[3, 2, 1, 1], [6, 2, 1, 4]] {
        three_requests(&server).await;
        collector.expect(&format!("{RULE}.d.one.total_hits"), "", total);
        collector.expect(&format!("{RULE}.d.one.within_limit"), "", within);
        collector.expect(&format!("{RULE}.d.one.near_limit"), "", near);
        collector.expect(&format!("{RULE}.d.one.over_limit"), "", over);
        collector.expect("ratelimit_server.ShouldRateLimit.total_requests", "", total);
        collector.expect("ratelimit.service.config_load_success", "", 1);
    }
    let lines = collector.lines();
    for line in &lines {
        let (_, typed) = line.rsplit_once(':').expect("name:value|type");
        let (value, kind) = typed.split_once('|').expect("value|type");
        assert!(value.parse::<f64>().is_ok() && typed != "0|c", "{line}");
        // Similar times are sent as one, with their sample rate.
        let is_timer = kind == "ms" || kind.starts_with("ms|@");
        assert!(is_timer || ["c", "g"].contains(&kind), "{line}");
    }
    let time = "ratelimit_server.ShouldRateLimit.response_time:";
    let is_time = |line: &String| line.starts_with(time) && line.contains("|ms");
    assert!(lines.iter().any(is_time), "{lines:?}");
}

#[tokio::test]
async fn statsd_lines_travel_over_udp_with_extra_tags_behind_the_names_in_order() {
    let collector = Collector::udp();
    let env = "USE_STATSD=true STATSD_PROTOCOL=udp EXTRA_TAGS=team:x,env:prod";
    let _server = asked(flushing(&collector, env)).await;
    for (name, expected) in [("total_hits", 3), ("over_limit", 1)] {
        let name = format!("{RULE}.d.one.{name}.__env=prod.__team=x");
        collector.expect(&name, "", expected);
    }
}

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
        let to = format!("STATSD_HOST={host} STATSD_PORT={port} STATSD_PROTOCOL={protocol}");
        let often = with(
            tollgate::with_rules(RULES),
            "USE_STATSD=true STATS_FLUSH_INTERVAL=1ms",
        );
        let server = with(often, &to).start();
        for _ in 0..20 {
            three_requests(&server).await;
        }
        let reported = "statsd collector not reached";
        if let Some(cause) = cause {
            let log = server.log().with(reported);
            assert!(log.contains(cause), "{log}");
        }
        let log = server.log().text();
        let lines = log.matches(reported).count();
        // One that never reads is given up after a while.
        assert!(usize::from(cause.is_some()) <= lines && lines <= 1, "{log}");
        assert_eq!(of_rule(&server, "one", "total_hits"), Some(60));
    }
}

#[tokio::test]
async fn dog_statsd_has_tags_and_mogrifiers() {
    let collector = Collector::udp();
    const ENV: &str = r"
        USE_DOG_STATSD=true
        EXTRA_TAGS=env:prod
        USE_DOG_STATSD_MOGRIFIERS=FIRST,SECOND
        DOG_STATSD_MOGRIFIER_FIRST_PATTERN=^ratelimit\.service\.rate_limit\.([^.]+)\.([^.]+)\.total_hits$
        DOG_STATSD_MOGRIFIER_FIRST_NAME=limits.hits
        DOG_STATSD_MOGRIFIER_FIRST_TAGS=domain:$1,rule:$2
        DOG_STATSD_MOGRIFIER_SECOND_PATTERN=^ratelimit\.service\.rate_limit\.(.+)\.(.+)$
        DOG_STATSD_MOGRIFIER_SECOND_NAME=limits.$2
        DOG_STATSD_MOGRIFIER_SECOND_TAGS=path:$1
    ";
    let _server = asked(flushing(&collector, ENV)).await;
    collector.expect("limits.hits", "|#domain:d,env:prod,rule:one", 3);
    collector.expect("limits.over_limit", "|#env:prod,path:d.one", 1);
    let name = "ratelimit_server.ShouldRateLimit.total_requests";
    collector.expect(name, "|#env:prod", 3);
    let bad = "USE_DOG_STATSD=true USE_DOG_STATSD_MOGRIFIERS=X";
    let (_, text) = with(tollgate::with_rules(RULES), bad).fail();
    let expected = "DOG_STATSD_MOGRIFIER_X_PATTERN is missing";
    assert!(text.contains(expected), "{text}");
}

#[tokio::test]
async fn disable_stats_sends_nothing_but_the_page_of_statistics_shows_all() {
    let collector = Collector::tcp();
    let env = "USE_STATSD=true DISABLE_STATS=true";
    let server = asked(flushing(&collector, env)).await;
    let page = server.page("/stats");
    for line in [
        "ratelimit.service.rate_limit.d.one.total_hits: 3",
        "ratelimit.service.rate_limit.d.one.over_limit: 1",
        "ratelimit.service.config_load_success: 1",
        "ratelimit_server.ShouldRateLimit.total_requests: 3",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line}:\n{page}");
    }
    for line in page.lines() {
        let (name, value) = line.rsplit_once(": ").expect("a name and a value");
        let is_timer = name.ends_with(".response_time") && value.starts_with("count ");
        assert!(is_timer || value.parse::<u64>().is_ok(), "{line}");
    }
    assert_eq!(collector.lines(), [""; 0]);
}

/// Observed on the reference: a limit, the hits of one request each on a fresh counter, and the counts within, near and
/// over it, which include counts of earlier hits.
const WORKED: &[(u32, &[u64], [u64; 3])] = &[
    (20, &[2, 3], [5, 0, 0]),
    (8, &[5, 2], [7, 1, 0]),
    (20, &[16, 3], [19, 3, 0]),
    (20, &[19, 3], [19, 3 + 1, 2]),
    (20, &[15, 7], [15, 4, 2]),
    (10, &[27], [0, 2, 17]),
    (10, &[27, 3], [0, 2, 17 + 3]),
    (1, &[1], [1, 1, 0]),
    (0, &[1], [0, 0, 1]),
    (5, &[3, 0, 0], [3, 0, 0]),
];

#[tokio::test]
async fn hits_fall_as_they_did_in_the_reference() {
    let mut rules = "domain: d\ndescriptors:\n".to_owned();
    for (index, (limit, ..)) in WORKED.iter().enumerate() {
        rules += &format!("  - {{ key: k{index}, rate_limits: [{limit}/year] }}\n");
    }
    let (server, mut client) = serve(tollgate::with_rules(&rules)).await;
    for (index, (limit, hits, expected)) in WORKED.iter().enumerate() {
        let key = format!("k{index}");
        for hits in *hits {
            let asked = request("d", vec![with_hits(&[(&key, "v")], *hits)]);
            send(&mut client, asked).await.unwrap();
        }
        let fell = |name| of_rule(&server, &key, name).unwrap();
        assert_eq!(fell("total_hits"), hits.iter().sum::<u64>());
        let fell = ["within_limit", "near_limit", "over_limit"].map(fell);
        assert_eq!(fell, *expected, "{limit} by {hits:?}");
    }
}

#[tokio::test]
async fn shadow_mode_of_a_rule_counts_hits_and_that_of_all_counts_replies() {
    let rules = "domain: d\ndescriptors: [{ key: one, shadow_mode: true, rate_limits: [2/year] }]";
    for (rules, mode, of_rules, of_replies) in [(rules, "false", 1, 0), (RULES, "true", 0, 1)] {
        let server = asked(tollgate::with_rules(rules).env("SHADOW_MODE", mode)).await;
        let shadowed = of_rule(&server, "one", "shadow_mode").unwrap_or(0);
        assert_eq!(shadowed, of_rules);
        assert_eq!(of_rule(&server, "one", "over_limit"), Some(1));
        let replies = stat(&server, "ratelimit.service.global_shadow_mode");
        assert_eq!(replies, Some(of_replies));
    }
}

#[tokio::test]
async fn rules_are_called_as_in_the_reference() {
    let rules = "
domain: d
descriptors:
  - { key: exact, value: v, rate_limits: [9/year] }
  - { key: w, value: 'x*', rate_limits: [9/year] }
  - key: route
    value_to_metric: true
    descriptors:
      - { key: method, value_to_metric: true, descriptors: [{ key: id, rate_limits: [9/year] }] }
  - { key: det, detailed_metric: true, rate_limits: [9/year] }
  - key: svc
    value: 's/*'
    share_threshold: true
    value_to_metric: true
    descriptors: [{ key: ep, detailed_metric: true, rate_limits: [9/year] }]
  - { key: free, rate_limit: { unlimited: true } }
";
    let (server, mut client) = serve(tollgate::with_rules(rules)).await;
    for (asked, name) in [
        ("exact=v", "exact_v"),
        ("w=xyz", "w_x*"),
        ("route=draw,method=GET,id=7", "route_draw.method_GET.id"),
        ("route=,method=GET,id=7", "route.method_GET.id"),
        ("det=v", "det_v"),
        ("det=", "det_"),
        ("svc=s/1,ep=x", "svc_s/*.ep_x"),
        ("svc=s/1,ep=", "svc_s/*.ep"),
        ("det=10.0.0.1", "det_10_0_0_1"),
    ] {
        ask(&mut client, "d", &entries(asked)).await.unwrap();
        assert!(of_rule(&server, name, "total_hits") > Some(0), "{name}");
    }
    // An override is called by its entries.
    let own = with_limit(&[("a", "v"), ("b", "")], 5, 6);
    send(&mut client, request("d", vec![own])).await.unwrap();
    assert_eq!(of_rule(&server, "a_v.b", "total_hits"), Some(1));
    // Descriptors without a limit are not counted; an unknown domain is, once per descriptor.
    ask(&mut client, "d", &[("free", "v")]).await.unwrap();
    assert_eq!(of_rule(&server, "free", "total_hits").unwrap_or(0), 0);
    let unknown = ["a", "b"].map(|key| descriptor(&[(key, "v")]));
    let unknown = request("elsewhere", unknown.into());
    send(&mut client, unknown).await.unwrap();
    let name = format!("{RULE}.elsewhere.domain_not_found");
    assert_eq!(stat(&server, &name), Some(2));
}

/// A server with a Prometheus port, and the address of that port.
fn with_prometheus(rules: &str) -> (Builder, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let env = format!("USE_PROMETHEUS=true PROMETHEUS_ADDR={address}");
    (with(tollgate::with_rules(rules), &env), address)
}

fn series(page: &str, series: &str) -> Option<f64> {
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map(|value| value.parse().expect("a number"))
}

/// Checks series of a Prometheus page, each of which is written before its value.
#[track_caller]
fn expect_series(page: &str, expected: &[&str]) {
    for line in expected {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        assert_eq!(series(page, name), Some(value), "{name} in:\n{page}");
    }
}

#[tokio::test]
async fn prometheus_sees_the_reference_s_families() {
    let (builder, address) = with_prometheus(RULES);
    let server = asked(builder).await;
    let mut client = connect(server.grpc).await;
    for domain in ["d", "unknown"].repeat(4) {
        let entries = [("one", "v"), ("two", "v")];
        ask(&mut client, domain, &entries).await.unwrap();
    }
    let reply = http::get(address, "/metrics");
    let kind = reply.header("content-type").unwrap();
    assert!(kind.contains("version=0.0.4"), "{kind}");
    let expected = [
        r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="one"} 3"#,
        r#"ratelimit_service_rate_limit_within_limit{domain="d",key1="one"} 2"#,
        r#"ratelimit_service_rate_limit_near_limit{domain="d",key1="one"} 1"#,
        r#"ratelimit_service_rate_limit_over_limit{domain="d",key1="one"} 1"#,
        r#"ratelimit_service_rate_limit_over_limit{domain="d",key1="one",key2="two"} 2"#,
        "ratelimit_service_rate_limit_unknown_domain_not_found 4",
        r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 11"#,
        "ratelimit_service_config_load_success 1",
        r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0"#,
        r#"ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 11"#,
        r#"ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="+Inf"} 11"#,
    ];
    expect_series(&reply.body, &expected);
    let sum = r#"ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"}"#;
    let sum = series(&reply.body, sum).unwrap();
    // Not cut to whole milliseconds.
    assert!(sum > 0.0 && sum < 10.0, "{sum}");
    // That port has no other paths.
    assert_eq!(http::get(address, "/debug/pprof/").status, 404);
}

fn file(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// The lines of the reference's families after two requests for each of `paths`, with a mapping or without.
async fn lines_of_the_reference(mapping: Option<&str>) -> BTreeSet<String> {
    let rules = "
domain: d
descriptors:
  - key: one
    shadow_mode: true
    rate_limits: [1/year]
    descriptors: [{ key: two, detailed_metric: true, shadow_mode: true, rate_limits: [1/year] }]
  - { key: deep, descriptors: [{ key: deeper, descriptors: [{ key: deepest, rate_limits: [1/year] }] }] }
";
    let file = file(mapping.unwrap_or_default());
    let path = mapping.and(file.path().to_str()).unwrap_or_default();
    let server = tollgate::with_rules(rules).env("PROMETHEUS_MAPPER_YAML", path);
    let (server, mut client) = serve(server).await;
    let paths = [
        "one=v",
        "one=v,two=10.0.0.1|\"x",
        "deep=v,deeper=v,deepest=v",
    ];
    for path in paths.repeat(2) {
        ask(&mut client, "d", &entries(path)).await.unwrap();
        ask(&mut client, "un.known", &entries(path)).await.unwrap();
        ask(&mut client, "", &entries(path)).await.unwrap_err();
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

/// It names rules of one and two levels, and calls, and drops all else. There is an entry with each statistic for STAT.
const OF_ENVOY_GATEWAY: &str = r"
- {match: 'ratelimit.service.rate_limit.*.*.STAT', name: ratelimit_service_rate_limit_STAT, timer_type: histogram,
   labels: {domain: $1, key1: $2}}
- {match: 'ratelimit.service.rate_limit.*.*.*.STAT', name: ratelimit_service_rate_limit_STAT, timer_type: histogram,
   labels: {domain: $1, key1: $2, key2: $3}}
- {match: 'ratelimit.service.rate_limit.*.*.*.shadow_mode', name: ratelimit_service_rate_limit_shadow_mode,
   timer_type: histogram, labels: {domain: $1, key1: $2, key2: $3}}
- {match: 'ratelimit_server.*.total_requests', name: ratelimit_service_total_requests, match_metric_type: counter,
   labels: {grpc_method: $1}}
- {match: 'ratelimit_server.*.response_time', name: ratelimit_service_response_time_seconds, timer_type: histogram,
   labels: {grpc_method: $1}}
- {match: 'ratelimit.service.call.should_rate_limit.*', name: ratelimit_service_should_rate_limit_error,
   match_metric_type: counter, labels: {err_type: $1}}
- {match: 'ratelimit.service.config_load_success', name: ratelimit_service_config_load_success,
   match_metric_type: counter}
- {match: 'ratelimit.service.config_load_error', name: ratelimit_service_config_load_error,
   match_metric_type: counter}
- {match: '.', match_type: regex, action: drop, name: dropped}
";

#[tokio::test]
async fn the_mapping_of_envoy_gateway_changes_nothing_that_it_names() {
    let mut mapping = "mappings:\n".to_owned();
    for entry in OF_ENVOY_GATEWAY.split("- ").skip(1) {
        for stat in ["near_limit", "over_limit", "total_hits", "within_limit"] {
            mapping += &format!("- {}", entry.replace("STAT", stat));
            if !entry.contains("STAT") {
                break;
            }
        }
    }
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
    let own = lines_of_the_reference(None).await;
    let mapped = lines_of_the_reference(Some(&mapping)).await;
    let lens = (mapped.len(), own.len());
    assert!(lens.0 > 30 && lens.0 + 5 < lens.1, "{mapped:#?}");
    let named: BTreeSet<_> = own.into_iter().filter(is_named).collect();
    assert_eq!(mapped, named);
}

#[tokio::test]
async fn a_mapping_file_that_is_missing_or_broken_is_said_and_not_fatal() {
    let wrong = "mappings:\n- {match: (, match_type: regex, name: n}\n\
                 - {match: a.b, name: n, labels: {9: v}}\n";
    let [wrong, broken] = [wrong, "mappings: 5"].map(file);
    let no_regex = "mappings[0]: `match` is not a regular expression";
    for (path, causes) in [
        ("/not/mounted/conf.yaml", ["No such file", ""]),
        (broken.path().to_str().unwrap(), ["expected a sequence", ""]),
        (wrong.path().to_str().unwrap(), [no_regex, "not `9`"]),
    ] {
        let (builder, address) = with_prometheus(RULES);
        let server = asked(builder.env("PROMETHEUS_MAPPER_YAML", path)).await;
        let log = server.log().with("the built-in names are used");
        for said in causes.iter().chain([&path]) {
            assert!(log.contains(said), "{said} in {log}");
        }
        let page = http::get(address, "/metrics").body;
        let name = r#"ratelimit_service_rate_limit_over_limit{domain="d",key1="one"} 1"#;
        expect_series(&page, &[name]);
    }
}

#[tokio::test]
async fn extra_tags_are_labels_and_break_no_mapping() {
    let (builder, address) = with_prometheus(RULES);
    let _server = asked(with(builder, "PROMETHEUS_PATH=/own EXTRA_TAGS=foo:bar")).await;
    assert_eq!(http::get(address, "/metrics").status, 404);
    let page = http::get(address, "/own").body;
    let expected = [
        r#"ratelimit_service_rate_limit_total_hits{domain="d",foo="bar",key1="one"} 3"#,
        r#"ratelimit_service_global_shadow_mode{foo="bar"} 0"#,
    ];
    expect_series(&page, &expected);
}

#[tokio::test]
async fn names_that_requests_make_up_are_bounded() {
    // A domain leaves as many as it has, of 10,000.
    const NAMES: u64 = 10 + 4_995;
    let other = DETAILED.replace("domain: d", "domain: other");
    let server = tollgate::with_rules(DETAILED).file("other.yaml", &other);
    let (server, mut client) = serve(server).await;
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
    let page = server.page("/stats");
    let is_made_up = |line: &&str| {
        line.contains(".domain_not_found") || line.contains("d.det_") && line.contains("total_hits")
    };
    assert_eq!(page.lines().filter(is_made_up).count() as u64, NAMES);
    let overflow = stat(&server, "tollgate.metric_names_overflow_total");
    assert_eq!(overflow, Some(11_010 - NAMES));
    // No hit is lost: without room for its own name, it counts under the rule's name.
    let hits = page.lines().filter(|line| line.contains(".d.det"));
    let hits = hits.filter_map(|line| line.split_once(".total_hits: "));
    let counted: u64 = hits.map(|(_, hits)| hits.parse::<u64>().unwrap()).sum();
    assert_eq!(counted, 11_000);
    let log = server.log().text();
    assert!(log.contains("no room for more names of metrics"), "{log}");
    ask(&mut client, "other", &[("det", "v")]).await.unwrap();
    let own = "ratelimit.service.rate_limit.other.det_v.total_hits";
    assert_eq!(stat(&server, own), Some(1));
}

#[tokio::test]
async fn hits_that_the_local_cache_answered_are_counted_once() {
    let redis = Redis::start();
    let (builder, address) = with_prometheus(RULES);
    let builder = builder.env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000");
    let (server, mut client) = serve(builder.redis(&redis)).await;
    for _ in 0..5 {
        let entries = [("one", "v"), ("two", "v")];
        ask(&mut client, "d", &entries).await.unwrap();
    }
    // Two passed, Redis refused one and the cache two.
    for (name, hits) in [
        ("total_hits", 5),
        ("within_limit", 2),
        ("over_limit", 3),
        ("over_limit_with_local_cache", 2),
    ] {
        assert_eq!(of_rule(&server, "one.two", name), Some(hits), "{name}");
    }
    let page = http::get(address, "/metrics").body;
    let expected = [
        r#"ratelimit_service_rate_limit_over_limit{domain="d",key1="one",key2="two"} 3"#,
        "ratelimit_localcache_hitCount 2",
        "ratelimit_localcache_entryCount 1",
    ];
    expect_series(&page, &expected);
}

#[tokio::test]
async fn a_call_that_fails_counts_no_hits() {
    let mut redis = Redis::start();
    let server = asked(tollgate::with_rules(RULES).redis(&redis)).await;
    redis.kill();
    let mut client = connect(server.grpc).await;
    for domain in ["d", ""] {
        ask(&mut client, domain, &[("one", "v")]).await.unwrap_err();
    }
    assert_eq!(of_rule(&server, "one", "total_hits"), Some(3));
    for error in ["redis_error", "service_error"] {
        let name = format!("ratelimit.service.call.should_rate_limit.{error}");
        assert_eq!(stat(&server, &name), Some(1));
    }
}

#[tokio::test]
async fn a_value_cannot_write_lines_of_its_own() {
    let collector = Collector::tcp();
    let prometheus = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let env = format!("USE_STATSD=true USE_PROMETHEUS=true PROMETHEUS_ADDR={prometheus}");
    let server = flushing(&collector, &env).file("rules.yaml", DETAILED);
    let (server, mut client) = serve(server).await;
    let evil = "x\nforged:1|c\nalso forged: 7\n\"} 9\r\nforged{a=\"b\"} 1\nq";
    for (domain, value) in [("d", evil), ("e\nforged:1|c\n", "v")] {
        ask(&mut client, domain, &[("det", value)]).await.unwrap();
    }
    wait_until("the hit is sent", || {
        let lines = collector.lines();
        let mut lines = lines.iter().filter(|line| line.contains("det_x_forged"));
        lines.any(|line| line.ends_with(".total_hits:1|c"))
    });
    let pages = [
        server.page("/stats"),
        http::get(prometheus, "/metrics").body,
    ];
    for line in [pages.join("\n"), collector.lines().join("\n")]
        .join("\n")
        .lines()
    {
        let is_forged = ["forged", "also forged", "\"}"].map(|forged| line.starts_with(forged));
        assert_eq!(is_forged, [false; 3], "{line}");
    }
}

/// The commit is known only to builds that were given it.
#[test]
fn the_build_is_named_by_the_command_line_and_by_a_metric_alike() {
    let version = env!("CARGO_PKG_VERSION");
    let printed = finish(tollgate::program().arg("--version"));
    let printed = String::from_utf8(printed.stdout).unwrap();
    // The tests are built like `make run`: not as a release.
    let profile = "profile debug: not for measuring";
    let (shown, suffix) = match env!("BUILT_FROM_COMMIT") {
        "" => ("unknown", format!(" ({profile})")),
        commit => (commit, format!(" ({commit}, {profile})")),
    };
    assert_eq!(printed, format!("tollgate {version}{suffix}\n"));
    let page = tollgate::with_rules(RULES).start().page("/metrics");
    let expected =
        format!("tollgate_build_info{{version=\"{version}\",commit=\"{shown}\",rustc=\"1.");
    let line = page.lines().find(|line| line.starts_with(&expected));
    assert!(line.is_some_and(|line| line.ends_with("\"} 1")), "{page}");
}

/// Domains of rules only, so that no request creates a name.
#[tokio::test]
async fn descriptors_without_a_limit_are_counted_by_domain_and_cause() {
    let path_node = "
domain: d.e
descriptors: [{ key: path, descriptors: [{ key: end, rate_limits: [9/year] }] }]
";
    let server = tollgate::with_rules(path_node).file("b.yaml", RULES);
    let (server, mut client) = serve(server).await;
    let total = |domain: &str, cause: &str| {
        let labels = format!("{{cause=\"{cause}\",domain=\"{domain}\"}}");
        server.metric(&format!("tollgate_unmatched_descriptors_total{labels}"))
    };
    assert_eq!(total("d", "no_rule"), 0);
    for (domain, asked) in [
        ("d.e", "path=v,end=v"),
        ("d.e", "path=v"),
        ("d.e", "other=v"),
        ("d.e", "path=v,end=v,deeper=v"),
        ("d", "two=v"),
        ("unknown", "one=v"),
    ] {
        ask(&mut client, domain, &entries(asked)).await.unwrap();
    }
    let totals = |domain| ["no_limit", "no_rule"].map(|cause| total(domain, cause));
    assert_eq!((totals("d.e"), totals("d")), ([1, 2], [0, 1]));
    let page = server.page("/metrics");
    assert!(!page.contains("domain=\"unknown\""), "{page}");
    // A load of the rules keeps the counts.
    let loads = || server.metric("ratelimit_service_config_load_success");
    let before = loads();
    std::fs::write(server.rules().join("b.yaml"), format!("{RULES}# more\n")).unwrap();
    wait_until("the rules are loaded", || loads() > before);
    assert_eq!(total("d.e", "no_rule"), 2);
}

#[tokio::test]
async fn each_limit_of_a_rule_has_counts_that_add_up_to_those_of_the_rule() {
    let rules = "
domain: d
descriptors:
  - key: many
    rate_limits: [4/year, 2/1000years, { unit: year, unit_multiplier: 500, requests_per_unit: 3, name: per.age }]
  - { key: one, detailed_metric: true, rate_limits: [1/year] }
  - { key: never, rate_limits: [1/year] }
";
    let (server, mut client) = serve(tollgate::with_rules(rules)).await;
    for key in ["many", "one"].repeat(5) {
        ask(&mut client, "d", &[(key, "v")]).await.unwrap();
    }
    for (which, rule, limit, expected) in [
        // The tightest limit is binding as long as it alone is over, and then the one that resets last.
        ("over", "many", "2/1000years", 3),
        ("over", "many", "4/year", 0),
        ("over", "many", "per_age", 0),
        ("near", "many", "2/1000years", 1),
        // All hits charge each limit, also those that count under a name of their own.
        ("hits", "many", "4/year", 5),
        ("hits", "many", "per_age", 5),
        ("hits", "one", "1/year", 5),
        // Under the path of the rule, whatever its own statistics are called.
        ("over", "one", "1/year", 4),
    ] {
        let labels = format!("{{domain=\"d\",limit=\"{limit}\",rule=\"{rule}\"}}");
        let total = server.metric(&format!("tollgate_limit_{which}_total{labels}"));
        assert_eq!(total, expected, "{which} {rule} {limit}");
    }
    assert_eq!(of_rule(&server, "many", "over_limit"), Some(3));
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
    let mut frame = framed(&message);
    let end = frame.split_off(7);
    let mut client = RawClient::connect(server.grpc).await;
    let status = client.send_in_two(frame, LATE, end).await;
    assert_eq!(status.code(), Code::Ok, "{status:?}");
    let page = server.page("/metrics");
    let bucket = |le: &str| format!("tollgate_call_duration_seconds_bucket{{le=\"{le}\"}}");
    for le in ["1e-05", "2.5e-05", "0.001"] {
        assert!(series(&page, &bucket(le)).is_some(), "{le} in {page}");
    }
    let counts = ["1", "+Inf"].map(|le| series(&page, &bucket(le)));
    assert_eq!(counts, [Some(1.0); 2]);
    // The name of the reference keeps its buckets.
    let own = "response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.001\"}";
    assert!(!page.contains(own));
}
