//! A real Prometheus reads the page, and promtool complains only about names that are kept from the reference.

use std::{
    fs::{self, File},
    net::SocketAddr,
    process::Command,
};

use tempfile::TempDir;

use crate::support::{
    ask::{self, connect},
    prometheus::Prometheus,
    tollgate, tool, wait_until,
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: address, rate_limits: [2/year]}
";

/// A server that has admitted two requests and refused one.
async fn asked_three_times() -> tollgate::Tollgate {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let passing = ask::passing(&mut client, "shop", &[("address", "v")], 3).await;
    assert_eq!(passing, 2);
    server
}

#[tokio::test]
async fn promtool_finds_no_fault_but_the_names_of_the_reference() {
    let server = asked_three_times().await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("page");
    let check = |page: &str| {
        fs::write(&file, page).unwrap();
        let mut promtool = Command::new(tool("promtool"));
        promtool.args(["check", "metrics"]);
        // `finish` gives every program an empty input.
        promtool.stdin(File::open(&file).unwrap()).output().unwrap()
    };
    let output = check(&server.page("/metrics"));
    // 3 means that promtool objects to names only; 1 would be an unreadable page.
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    for line in said.lines() {
        let is_about_a_name = line.contains("should have \"_total\" suffix")
            || line.contains("should be written in 'snake_case'");
        let is_theirs = line.starts_with("ratelimit_") || line.starts_with("runtime_");
        assert!(is_theirs && is_about_a_name, "{line}");
    }
    let output = check("this is no metric\n");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// A Prometheus that scrapes `target` five times a second.
#[track_caller]
fn prometheus(target: SocketAddr) -> Prometheus {
    let config = format!(
        "global: {{scrape_interval: 200ms}}\nscrape_configs: [{{job_name: tollgate, \
         static_configs: [{{targets: ['{target}']}}]}}]\n"
    );
    Prometheus::start(&config)
}

/// The value of an expression with a single series, once there is one.
#[track_caller]
fn value(prometheus: &Prometheus, expression: &str) -> Option<f64> {
    let series = prometheus.query(expression);
    let value = series.first()?["value"][1].as_str()?;
    Some(value.parse().unwrap())
}

#[tokio::test]
async fn a_real_prometheus_scrapes_what_dashboards_ask_for() {
    let server = asked_three_times().await;
    const HITS: &str = "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"address\"}";
    const SLOWEST: &str =
        "histogram_quantile(1,ratelimit_service_response_time_seconds_bucket)<=10";
    let prometheus = prometheus(server.debug);
    for (expression, expected) in [
        ("up", 1.0),
        (HITS, 3.0),
        ("ratelimit_service_rate_limit_over_limit", 1.0),
        ("ratelimit_service_response_time_seconds_count", 3.0),
        (SLOWEST, 0.0),
        ("tollgate_decisions_total{code=\"over_limit\"}", 1.0),
        ("process_resident_memory_bytes>0", 0.0),
    ] {
        let mut found = None;
        wait_until("the series is there", || {
            found = value(&prometheus, expression);
            found.is_some()
        });
        // For a comparison it is enough that it holds.
        if !expression.contains(['<', '>']) {
            assert_eq!(found, Some(expected), "{expression}");
        }
    }
}
