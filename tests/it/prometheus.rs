//! A real Prometheus reads the page, and promtool complains only about names that are kept from the reference.

use std::{
    fs::{self, File},
    net::SocketAddr,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::support::{
    Process,
    ask::{ask, connect, is_ok},
    finish, free_port, http, tollgate, tool, wait_until,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: address
    rate_limit: { unit: year, requests_per_unit: 2 }
";

/// A server that has admitted two requests and refused one.
async fn asked_three_times() -> tollgate::Tollgate {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for admitted in [true, true, false] {
        let answer = ask(&mut client, "shop", &[("address", "v")]).await;
        assert_eq!(is_ok(&answer), admitted);
    }
    server
}

#[tokio::test]
async fn promtool_finds_no_fault_but_the_names_of_the_reference() {
    let server = asked_three_times().await;
    let folder = TempDir::new().unwrap();
    let page = folder.path().join("page");
    fs::write(&page, http::get(server.debug, "/metrics").body).unwrap();
    let mut promtool = Command::new(tool("promtool"));
    promtool.args(["check", "metrics"]);
    // `finish` gives every program an empty input.
    let output = promtool
        .stdin(Stdio::from(File::open(&page).unwrap()))
        .output()
        .unwrap();
    // 3 means that promtool objects to names only; 1 would be an unreadable page.
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    for line in said.lines() {
        let is_about_a_name = line.contains("should have \"_total\" suffix")
            || line.contains("should be written in 'snake_case'");
        assert!(line.starts_with("ratelimit_") && is_about_a_name, "{line}");
    }
    let broken = folder.path().join("broken");
    fs::write(&broken, "this is no metric\n").unwrap();
    let output = Command::new(tool("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::from(File::open(&broken).unwrap()))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// A Prometheus that scrapes `target` five times a second. Killed on drop.
struct Prometheus {
    address: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl Prometheus {
    #[track_caller]
    fn start(target: SocketAddr) -> Self {
        let folder = TempDir::new().unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 200ms}}\nscrape_configs: [{{job_name: tollgate, \
             static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        fs::write(&config, text).unwrap();
        finish(
            Command::new(tool("promtool"))
                .args(["check", "config"])
                .arg(&config),
        );
        // Another process may take the port before Prometheus does.
        for _ in 0..10 {
            let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
            let mut process = Process::start(
                Command::new(tool("prometheus"))
                    .arg(format!("--config.file={}", config.display()))
                    .arg(format!("--web.listen-address={address}"))
                    .arg(format!("--storage.tsdb.path={}", folder.path().display()))
                    .stdout(Stdio::null())
                    .stderr(Stdio::null()),
            );
            let mut has_ended = false;
            wait_until("Prometheus is ready", || {
                has_ended = process.has_ended();
                let ready = http::try_get(address, "/-/ready", &[]);
                has_ended || ready.is_ok_and(|reply| reply.status == 200)
            });
            if !has_ended {
                return Self {
                    address,
                    _process: process,
                    _folder: folder,
                };
            }
        }
        panic!("Prometheus does not start");
    }

    /// The value of an expression with a single series, once there is one.
    fn value(&self, expression: &str) -> Option<f64> {
        let reply = http::get(self.address, &format!("/api/v1/query?query={expression}"));
        let reply: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        reply["data"]["result"][0]["value"][1]
            .as_str()
            .map(|value| value.parse().unwrap())
    }
}

#[tokio::test]
async fn a_real_prometheus_scrapes_what_dashboards_ask_for() {
    let server = asked_three_times().await;
    let prometheus = Prometheus::start(server.debug);
    for (expression, expected) in [
        ("up", 1.0),
        (
            "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"address\"}",
            3.0,
        ),
        ("ratelimit_service_rate_limit_over_limit", 1.0),
        ("ratelimit_service_response_time_seconds_count", 3.0),
        (
            "histogram_quantile(1,ratelimit_service_response_time_seconds_bucket)<=10",
            0.0,
        ),
        ("tollgate_decisions_total{code=\"over_limit\"}", 1.0),
        ("process_resident_memory_bytes>0", 0.0),
    ] {
        let expression = expression
            .replace('{', "%7B")
            .replace('}', "%7D")
            .replace('"', "%22")
            .replace('<', "%3C")
            .replace('>', "%3E");
        let mut value = None;
        wait_until("the series is there", || {
            value = prometheus.value(&expression);
            value.is_some()
        });
        // For a comparison it is enough that it holds.
        if !expression.contains("%3C") && !expression.contains("%3E") {
            assert_eq!(value, Some(expected), "{expression}");
        }
    }
}
