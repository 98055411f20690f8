//! Alerts and dashboards.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
    time::Instant,
};

use tempfile::TempDir;

use super::{check, checked, deploy, path, planted, run, running::with_service, text_of, written};
use crate::support::{
    PATIENCE, ask,
    certificates::{Authority, Secret},
    envoy::Envoy,
    free_port,
    http::get,
    prometheus::Prometheus,
    redis::Redis,
    tollgate::{self, Tollgate},
    tool, wait_until,
};

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    let rules = deploy().join("prometheus/rules.yaml");
    let mut promtool = Command::new(tool("promtool"));
    run(promtool.args(["check", "rules"]).arg(&rules));
    let output = promtool_test(&deploy());
    assert!(output.status.success(), "{output:?}");
}

/// Runs the unit tests of the alerts in a folder.
#[track_caller]
fn promtool_test(deploy: &Path) -> Output {
    let folder = TempDir::new().unwrap();
    let tests = folder.path().join("tests.yaml");
    let output = check(deploy, &["--unit-tests", path(&tests)]);
    assert!(output.status.success(), "{}", text_of(&output));
    let mut promtool = Command::new(tool("promtool"));
    promtool
        .args(["test", "rules", path(&tests)])
        .output()
        .unwrap()
}

#[test]
fn the_tests_of_the_alerts_can_fail() {
    let slow = "max by (namespace, job, node) (tollgate_redis_node_is_slow)";
    let lost = "expr: tollgate_control_plane_up";
    for (metric, right, wrong, alert) in [
        (lost, "== 0", "== 2", "TollgateControlPlaneLost fires"),
        (slow, "> 0", ">= 0", "TollgateRedisSlow quiet"),
    ] {
        let mistake = format!("prometheus/rules.yaml => {metric} {right} => {metric} {wrong}");
        let (_copy, folder) = planted(&mistake);
        let output = promtool_test(&folder);
        assert!(!output.status.success(), "{wrong}");
        let printed = text_of(&output);
        assert!(printed.contains(alert), "{alert}: {printed}");
    }
}

#[test]
fn every_alert_has_an_entry_in_the_runbook() {
    let rules = fs::read_to_string(deploy().join("prometheus/rules.yaml")).unwrap();
    let lines = rules.lines().map(str::trim_start);
    let alerts = lines.filter_map(|line| line.strip_prefix("- alert: "));
    let alerts: Vec<_> = alerts.collect();
    let runbook = deploy().with_file_name("docs").join("run/runbook.md");
    let runbook = fs::read_to_string(runbook).unwrap();
    let entries = runbook.split("\n## ");
    let entries: Vec<_> = entries
        .filter(|entry| entry.starts_with("Tollgate"))
        .collect();
    let titles = entries.iter().map(|entry| entry.lines().next().unwrap());
    let titles: Vec<_> = titles.collect();
    assert_eq!(titles, alerts);
    for entry in entries {
        for part in ["**It means**", "**Look at**", "**Do**"] {
            assert!(entry.contains(part), "{part}: {entry}");
        }
    }
}

/// tollgates of every kind of which some metric is asked, and an Envoy that cannot reach one of them.
struct Fleet {
    _redis: Redis,
    counts_in_redis: Tollgate,
    /// It has room for one counter.
    counts_in_memory: Tollgate,
    has_lost_its_store: Tollgate,
    has_control_plane: Tollgate,
    envoy: Envoy,
    _wants_certificates: Tollgate,
    _secret: Secret,
}

impl Fleet {
    fn start() -> Self {
        let redis = Redis::start();
        let rules = || tollgate::with_rules(RULES);
        let counts_in_redis = rules()
            .redis(&redis)
            .env("REDIS_PERSECOND", "true")
            .env("REDIS_PERSECOND_URL", &redis.url())
            .start();
        let counts_in_memory = rules().args(["--max-counters", "1"]).start();
        let mut gone = Redis::start();
        let has_lost_its_store = rules().redis(&gone).start();
        gone.kill();
        let nowhere = format!("127.0.0.1:{}", free_port());
        let has_control_plane = tollgate::builder()
            .args(["--config-type", "GRPC_XDS_SOTW", "--start-without-rules"])
            .args(["--xds-server", &nowhere])
            .start();
        let ours = Authority::new("ours");
        let pair = ours.issue("tollgate");
        let secret = Secret::mount(&[
            ("tls.crt", &pair.certificate),
            ("tls.key", &pair.key),
            ("ca.crt", &ours.certificate),
        ]);
        let wants_certificates = rules()
            .env("GRPC_SERVER_USE_TLS", "true")
            .env("GRPC_SERVER_TLS_CERT", &secret.at("tls.crt"))
            .env("GRPC_SERVER_TLS_KEY", &secret.at("tls.key"))
            .env("GRPC_CLIENT_TLS_CACERT", &secret.at("ca.crt"))
            .start();
        let plain = fs::read_to_string(deploy().join("envoy/envoy.yaml")).unwrap();
        let (before, after) = plain.split_once("      load_assignment:\n").unwrap();
        let bootstrap = format!("{before}{TLS_WITHOUT_CERTIFICATE}      load_assignment:\n{after}");
        let envoy = Envoy::start(|| with_service(&bootstrap, &wants_certificates));
        Self {
            _redis: redis,
            counts_in_redis,
            counts_in_memory,
            has_lost_its_store,
            has_control_plane,
            envoy,
            _wants_certificates: wants_certificates,
            _secret: secret,
        }
    }

    fn tollgates(&self) -> [&Tollgate; 4] {
        [
            &self.counts_in_redis,
            &self.counts_in_memory,
            &self.has_lost_its_store,
            &self.has_control_plane,
        ]
    }

    /// Some calls to each, of which some are refused and some name a domain that is not there.
    async fn ask(&self) {
        for tollgate in self.tollgates() {
            let mut client = ask::connect(tollgate.grpc).await;
            for _ in 0..5 {
                for key in ["few", "shadow", "budget", "slots", "hot", "unknown"] {
                    // That without rules answers with an error.
                    let _ = ask::ask(&mut client, "shop", &[(key, "v")]).await;
                }
                let _ = ask::ask(&mut client, "shp", &[("few", "v")]).await;
            }
        }
    }
}

const RULES: &str = "
domain: shop
descriptors:
  - { key: few, rate_limits: [2/second, 100000/year] }
  - { key: shadow, shadow_mode: true, rate_limits: [2/second] }
  - { key: budget, reserve: { estimate: 10 }, rate_limits: [100000/year] }
  - { key: slots, rate_limits: [{ algorithm: concurrency, requests_per_unit: 5, ttl: 1s }] }
  - { key: hot, accuracy: exact-leased, rate_limits: [100000/minute] }
";

const TLS_WITHOUT_CERTIFICATE: &str = "
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          sni: tollgate
";

#[tokio::test]
async fn every_expression_names_metrics_that_are_exported() {
    let fleet = Fleet::start();
    fleet.ask().await;
    let front = fleet.envoy.listener("front");
    // These pass unlimited: Envoy has no certificate, and its filter fails open.
    assert_eq!(get(front, "/").status, 200);
    let envoys = get(fleet.envoy.admin, "/stats/prometheus").body;
    for counted in [
        "envoy_cluster_ratelimit_failure_mode_allowed{envoy_cluster_name=\"service\"} 1",
        "envoy_cluster_ssl_connection_error{envoy_cluster_name=\"tollgate\"} ",
    ] {
        let line = envoys.lines().find(|line| line.starts_with(counted));
        assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{counted}");
    }
    let pages = fleet.tollgates().map(|tollgate| tollgate.page("/metrics"));
    let pages = pages.iter().chain([&envoys]);
    let mut names: Vec<_> = pages.flat_map(|page| metric_names(page)).collect();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("names");
    fs::write(&file, names.join("\n")).unwrap();
    checked(&["--metrics", path(&file)]);
    // Without one of them it does not pass.
    names.retain(|name| name != "tollgate_stores_lost");
    fs::write(&file, names.join("\n")).unwrap();
    let printed = text_of(&check(&deploy(), &["--metrics", path(&file)]));
    let missing = "rules.yaml TollgateStoreLost: nothing exports tollgate_stores_lost";
    assert!(printed.contains(missing), "{printed}");
}

fn metric_names(page: &str) -> Vec<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let names = lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned());
    names.collect()
}

/// A real Prometheus reads tollgates under traffic and evaluates the rules; each panel of each
/// dashboard and each recording rule has data.
#[tokio::test]
async fn every_panel_shows_something() {
    let expressions = written("--expressions");
    let expressions: BTreeMap<String, String> = serde_json::from_str(&expressions).unwrap();
    // Alerts are about series that are not there when all is well; promtool's tests have them.
    let mut waiting: Vec<_> = expressions.iter().collect();
    waiting.retain(|(place, _)| !place.starts_with("rules.yaml Tollgate"));
    assert!(waiting.len() > 60, "{waiting:?}");

    let fleet = Fleet::start();
    let targets = fleet.tollgates().map(|tollgate| tollgate.debug);
    let prometheus = prometheus(&targets, &deploy().join("prometheus/rules.yaml"));
    // One change that is refused, then one that is taken.
    let changed = &fleet.counts_in_redis;
    for (rules, metric) in [
        ("nonsense", "ratelimit_service_config_load_error"),
        (RULES, "ratelimit_service_config_load_success"),
    ] {
        prometheus.await_scrapes(2);
        let before = changed.metric(metric);
        fs::write(changed.rules().join("rules.yaml"), format!("{rules}\n")).unwrap();
        wait_until(metric, || changed.metric(metric) > before);
    }
    let deadline = Instant::now() + 3 * PATIENCE;
    while !waiting.is_empty() {
        assert!(Instant::now() < deadline, "no data: {waiting:#?}");
        fleet.ask().await;
        prometheus.await_scrapes(1);
        waiting.retain(|(_, expression)| prometheus.query(expression).is_empty());
    }
}

/// A Prometheus that scrapes `targets`, with the rules of a file.
#[track_caller]
fn prometheus(targets: &[SocketAddr], rules: &Path) -> Prometheus {
    let targets: Vec<_> = targets.iter().map(|target| format!("'{target}'")).collect();
    Prometheus::start(&format!(
        "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\nrule_files: ['{}']\n\
         scrape_configs: [{{job_name: tollgate, static_configs: [{{targets: [{}]}}]}}]\n",
        rules.display(),
        targets.join(", "),
    ))
}
