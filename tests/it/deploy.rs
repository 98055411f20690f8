//! The files of `deploy/`, checked and run as they stand: only ports and folders are others.

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use ::tollgate::now;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    PATIENCE, ask,
    certificates::{Authority, Secret},
    cluster::Cluster,
    envoy::Envoy,
    finish, free_port,
    http::{Reply, get, get_with},
    json,
    prometheus::Prometheus,
    redis::Redis,
    tollgate::{self, Tollgate},
    tool, wait_until,
};

// --- what can be checked without running them ----------------------------------------------------

#[test]
fn every_overlay_and_every_preset_is_valid() {
    let output = check(&deploy(), &[]);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    for overlay in ["istio", "memory", "redis", "redis-cluster"] {
        for line in [
            format!("ok    kustomize {overlay} Deployment/tollgate"),
            format!("ok    helm {overlay} Deployment/tollgate"),
            format!("same  kustomize {overlay} and helm {overlay}: "),
        ] {
            assert!(printed.contains(&line), "{line}: {printed}");
        }
    }
    for line in [
        "ok    kustomize sidecar Deployment/shop",
        "ok    kustomize envoy-gateway ConfigMap/envoy-gateway-config",
        "ok    helm full Deployment/limits",
        "ok    helm full ServiceMonitor/limits",
        "ok    contour/contour.yaml HTTPProxy/shop",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
}

/// The schemas look closely: each field of each document is misspelt in a copy.
#[test]
fn every_misspelt_field_is_refused() {
    let output = check(&deploy(), &["--plant"]);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let refused: usize = printed
        .lines()
        .filter_map(|line| {
            let (_, count) = line
                .strip_suffix(" misspellings refused")?
                .rsplit_once(' ')?;
            count.parse::<usize>().ok()
        })
        .sum();
    assert!(refused > 1000, "{refused}: {printed}");
}

#[test]
fn every_file_is_rendered_or_left_out_for_a_reason() {
    let output = check(&deploy(), &["--inventory"]);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for part in ["kustomize", "helm", "envoy", "prometheus", "grafana"] {
        let total = printed.lines().find_map(|line| {
            let (what, count) = line.strip_prefix("total")?.trim().split_once(": ")?;
            (what == part).then(|| count.parse::<usize>().unwrap())
        });
        assert!(total.is_some_and(|total| total > 10), "{part}: {printed}");
    }
}

/// Files that nothing would look at, and mistakes that only the programs find that read them.
#[test]
fn what_is_not_rendered_is_found() {
    let copy = TempDir::new().unwrap();
    let folder = copy.path().join("deploy");
    copy_all(&deploy(), &folder);
    let hidden = "{{- if .Values.hidden }}\nkind: Secret\n{{- end }}\n";
    for (file, contents) in [
        (
            "kustomize/components/new/kustomization.yaml",
            "resources: []\n",
        ),
        (
            "grafana/spare.json",
            "{\"panels\": [], \"templating\": {\"list\": []}}",
        ),
        ("helm/tollgate/templates/hidden.yaml", hidden),
        ("new/service.yaml", "kind: Service\n"),
    ] {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    for (file, right, wrong) in [
        (
            "envoy/envoy.yaml",
            "failure_mode_deny",
            "failure_mode_denied",
        ),
        ("Containerfile", "WORKDIR /src", "WORKDIR src"),
        (
            "prometheus/rules.yaml",
            "tollgate_stores_lost",
            "tollgate_stores_lost{",
        ),
    ] {
        let path = folder.join(file);
        let before = fs::read_to_string(&path).unwrap();
        assert!(before.contains(right), "{right} in {file}");
        fs::write(&path, before.replacen(right, wrong, 1)).unwrap();
    }
    let output = check(&folder, &["--inventory"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stderr);
    for (place, problem) in [
        (
            "kustomize/components/new/kustomization.yaml",
            "nothing renders it",
        ),
        ("new/service.yaml", "nothing renders it"),
        ("helm/tollgate/templates/hidden.yaml", "no preset"),
        ("grafana/spare.json", "in no ConfigMap"),
        ("envoy envoy/envoy.yaml", "failure_mode_denied"),
        ("Containerfile", "DL3000"),
        ("prometheus/rules.yaml", "could not parse expression"),
    ] {
        let is_it = |line: &str| line.contains(place) && line.contains(problem);
        assert!(printed.lines().any(is_it), "{place}: {problem}: {printed}");
    }
}

#[test]
fn mistakes_in_the_manifests_are_found() {
    let copy = TempDir::new().unwrap();
    let folder = copy.path().join("deploy");
    copy_all(&deploy(), &folder);
    for (file, right, wrong) in [
        (
            "kustomize/base/deployment.yaml",
            "  replicas: 2",
            "  replica: 2",
        ),
        (
            "kustomize/base/service.yaml",
            "targetPort: grpc-rls",
            "targetPorts: grpc-rls",
        ),
        (
            "kustomize/overlays/sidecar/shop.yaml",
            "containerPort: 8080",
            "containerPort: http",
        ),
        (
            "istio/envoyfilter.yaml",
            "applyTo: HTTP_FILTER",
            "applyTo: HTTP_FILTERS",
        ),
        // No schema objects to these.
        (
            "kustomize/overlays/sidecar/shop.yaml",
            "runAsNonRoot: true",
            "runAsNonRoot: false",
        ),
        (
            "kustomize/redis/redis.yaml",
            "redis:7.2.5-bookworm",
            "redis:latest",
        ),
        ("kustomize/base/deployment.yaml", "value: 30s", "value: 40s"),
        (
            "kustomize/base/deployment.yaml",
            "value: \"false\"",
            "value: \"true\"",
        ),
        // Fits its schema, and lets in every pod.
        (
            "kustomize/base/networkpolicy.yaml",
            "        - namespaceSelector:\n            matchLabels:\n              tollgate-envoy: \"true\"\n",
            "        - {}\n",
        ),
        (
            "helm/tollgate/templates/service.yaml",
            "port: 9090",
            "port: 9091",
        ),
        (
            "helm/tollgate/values.schema.json",
            "\"replicaCount\": {\n      \"type\": \"integer\"",
            "\"replicaCount\": {\n      \"type\": [\"integer\", \"string\"]",
        ),
        (
            "envoy-gateway/helm-values.yaml",
            "tollgate:0.1.0",
            "tollgate:0.0.9",
        ),
        (
            "prometheus/rules.yaml",
            "severity: critical",
            "severity: high",
        ),
        ("grafana/store.json", "\"id\": 3,", "\"id\": 2,"),
        (
            "compose/compose.yaml",
            "- 127.0.0.1:8081:8081",
            "- 8081:8081",
        ),
        ("compose/compose.yaml", "- ./rules:", "- ./rule:"),
    ] {
        let path = folder.join(file);
        let before = fs::read_to_string(&path).unwrap();
        assert!(before.contains(right), "{right} in {file}");
        fs::write(&path, before.replacen(right, wrong, 1)).unwrap();
    }
    let output = check(&folder, &[]);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stderr);
    for (place, problem) in [
        ("kustomize redis Deployment/tollgate", "replica"),
        ("kustomize redis Service/tollgate", "targetPorts"),
        ("kustomize sidecar Deployment/shop", "'http' is not"),
        ("kustomize sidecar Deployment/shop", "run as root"),
        (
            "istio/envoyfilter.yaml EnvoyFilter/tollgate-filter",
            "HTTP_FILTERS",
        ),
        (
            "kustomize redis Deployment/tollgate-redis",
            "no fixed image tag",
        ),
        (
            "kustomize redis Deployment/tollgate",
            "killed before it has drained",
        ),
        ("kustomize redis Deployment/tollgate", "can count at /json"),
        (
            "kustomize redis NetworkPolicy/tollgate",
            "lets in every pod",
        ),
        (
            "memory Service tollgate/tollgate.spec.ports",
            "9091 in the chart",
        ),
        ("helm does not refuse", "replicaCount"),
        ("envoy-gateway", "two ways, two configurations"),
        ("rules.yaml TollgateAbsent", "severity"),
        ("store.json", "its id is not unique"),
        ("compose.yaml", "'8081:8081' does not match"),
        ("compose.yaml tollgate", "there is no ./rule"),
        ("kubernetes/redis.yaml", "is not up to date"),
        ("helm/tollgate/files/rules.yaml", "is not up to date"),
    ] {
        let is_it = |line: &str| line.contains(place) && line.contains(problem);
        assert!(printed.lines().any(is_it), "{place}: {problem}: {printed}");
    }
}

#[test]
fn the_image_holds_one_program_and_no_root() {
    let text = fs::read_to_string(deploy().join("Containerfile")).unwrap();
    let (_, stage) = text.rsplit_once("\nFROM ").expect("a last stage");
    assert!(stage.starts_with("scratch\n"), "{stage}");
    let of = |instruction: &str| {
        let mut lines = stage.lines();
        let found = lines.find_map(|line| line.strip_prefix(instruction));
        found.expect(instruction).trim().to_owned()
    };
    let user = of("USER ");
    let (user, group) = user.split_once(':').expect("a user and a group");
    for id in [user, group] {
        assert!(id.parse::<u32>().is_ok_and(|id| id > 0), "{id}");
    }
    assert_eq!(of("ENTRYPOINT "), r#"["/bin/tollgate"]"#);
    assert_eq!(of("EXPOSE "), "8080 8081 6070");
    assert!(text.contains("target-feature=+crt-static"));
    assert!(text.contains("ln -s tollgate /image/bin/ratelimit"));
}

/// systemd-analyze is a part of systemd: a machine without it cannot run the unit either.
#[test]
fn the_unit_of_systemd_is_valid_and_can_do_little() {
    let analyze = |args: &[&str]| match Command::new("systemd-analyze").args(args).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => panic!("{error}"),
    };
    let unit = fs::read_to_string(deploy().join("systemd/tollgate.service")).unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tollgate.service");
    // It checks that the program is there.
    let program = env!("CARGO_BIN_EXE_tollgate");
    let installed = unit.replace("/usr/bin/tollgate", program);
    assert!(installed.matches(program).count() > 1, "{unit}");
    for (text, is_good) in [
        (installed.clone(), true),
        (
            installed.replace("Restart=on-failure", "Restart=at-times"),
            false,
        ),
    ] {
        fs::write(&file, text).unwrap();
        let Some(output) = analyze(&["verify", path(&file)]) else {
            return;
        };
        // It only warns of values that it does not know.
        let is_silent = output.stderr.is_empty();
        assert_eq!(output.status.success() && is_silent, is_good, "{output:?}");
    }
    // The exposure is from 0 to 10, and the threshold ten times that.
    for (text, is_good) in [
        (installed.clone(), true),
        (installed.replace("\nProtect", "\n# Protect"), false),
    ] {
        fs::write(&file, text).unwrap();
        let output = analyze(&["security", "--offline=true", "--threshold=20", path(&file)]);
        let output = output.expect("it was there a moment ago");
        assert_eq!(output.status.success(), is_good, "{}", text_of(&output));
    }
}

fn text_of(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn every_file_names_the_image_of_this_version() {
    let image = format!("tollgate:{}", env!("CARGO_PKG_VERSION"));
    for file in [
        "Containerfile",
        "compose/compose.yaml",
        "envoy-gateway/helm-values.yaml",
        "kubernetes/envoy-gateway.yaml",
        "kubernetes/istio.yaml",
        "kubernetes/memory.yaml",
        "kubernetes/redis-cluster.yaml",
        "kubernetes/redis.yaml",
        "kubernetes/sidecar.yaml",
        "kustomize/base/deployment.yaml",
        "kustomize/overlays/envoy-gateway/envoy-gateway.yaml",
        "kustomize/overlays/sidecar/shop.yaml",
    ] {
        let text = fs::read_to_string(deploy().join(file)).unwrap();
        assert!(text.contains(&image), "{image} in {file}");
    }
    let chart = fs::read_to_string(deploy().join("helm/tollgate/Chart.yaml")).unwrap();
    let version = concat!("\nappVersion: ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(chart.contains(version), "{chart}");
}

// --- alerts and dashboards -----------------------------------------------------------------------

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    let rules = deploy().join("prometheus/rules.yaml");
    run(Command::new(tool("promtool"))
        .args(["check", "rules"])
        .arg(&rules));
    let folder = TempDir::new().unwrap();
    let tests = folder.path().join("tests.yaml");
    let output = check(&deploy(), &["--unit-tests", path(&tests)]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    run(Command::new(tool("promtool"))
        .args(["test", "rules"])
        .arg(&tests));
}

/// An alert that never fires, or always does, does not pass these tests.
#[test]
fn the_tests_of_the_alerts_can_fail() {
    for (right, wrong, alert) in [
        (
            "expr: tollgate_control_plane_up == 0",
            "expr: tollgate_control_plane_up == 2",
            "TollgateControlPlaneLost fires",
        ),
        (
            "expr: rate(tollgate_own_pauses_total[5m]) > 1\n        for: 10m",
            "expr: rate(tollgate_own_pauses_total[5m]) > 0\n        for: 10m",
            "TollgateOwnPauses quiet",
        ),
    ] {
        let copy = TempDir::new().unwrap();
        let folder = copy.path().join("deploy");
        copy_all(&deploy(), &folder);
        let rules = folder.join("prometheus/rules.yaml");
        let before = fs::read_to_string(&rules).unwrap();
        assert!(before.contains(right), "{right}");
        fs::write(&rules, before.replacen(right, wrong, 1)).unwrap();
        let tests = copy.path().join("tests.yaml");
        let output = check(&folder, &["--unit-tests", path(&tests)]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let output = Command::new(tool("promtool"))
            .args(["test", "rules"])
            .arg(&tests)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{wrong}");
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(printed.contains(alert), "{alert}: {printed}");
    }
}

#[test]
fn every_alert_has_an_entry_in_the_runbook() {
    let rules = fs::read_to_string(deploy().join("prometheus/rules.yaml")).unwrap();
    let alerts: Vec<_> = rules
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("- alert: "))
        .collect();
    let runbook = deploy().with_file_name("docs").join("runbook.md");
    let runbook = fs::read_to_string(runbook).unwrap();
    let entries: Vec<_> = runbook
        .split("\n## ")
        .filter(|entry| entry.starts_with("Tollgate"))
        .collect();
    let titles: Vec<_> = entries
        .iter()
        .map(|entry| entry.lines().next().unwrap())
        .collect();
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
    counts_in_memory: Tollgate,
    has_control_plane: Tollgate,
    envoy: Envoy,
    _wants_certificates: Tollgate,
    _secret: Secret,
}

impl Fleet {
    fn start() -> Self {
        let redis = Redis::start();
        let counts_in_redis = tollgate::with_rules(RULES)
            .redis(&redis)
            .env("REDIS_PERSECOND", "true")
            .env("REDIS_PERSECOND_URL", &redis.url())
            .start();
        let counts_in_memory = tollgate::with_rules(RULES).start();
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
        let wants_certificates = tollgate::with_rules(RULES)
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
            has_control_plane,
            envoy,
            _wants_certificates: wants_certificates,
            _secret: secret,
        }
    }

    fn tollgates(&self) -> [&Tollgate; 3] {
        [
            &self.counts_in_redis,
            &self.counts_in_memory,
            &self.has_control_plane,
        ]
    }

    /// Some calls to each, of which some are refused and some name a domain that is not there.
    async fn ask(&self) {
        for tollgate in self.tollgates() {
            let mut client = ask::connect(tollgate.grpc).await;
            for _ in 0..5 {
                for (domain, key) in [("shop", "few"), ("shop", "shadow"), ("shp", "few")] {
                    // That without rules answers with an error.
                    let _ = ask::ask(&mut client, domain, &[(key, "v")]).await;
                }
            }
        }
    }
}

const RULES: &str = "
domain: shop
descriptors:
  - { key: few, rate_limits: [2/second, 100000/year] }
  - { key: shadow, shadow_mode: true, rate_limits: [2/second] }
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
    let mut names: Vec<_> = fleet
        .tollgates()
        .iter()
        .flat_map(|tollgate| metric_names(&tollgate.page("/metrics")))
        .chain(metric_names(&envoys))
        .collect();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("names");
    fs::write(&file, names.join("\n")).unwrap();
    let output = check(&deploy(), &["--metrics", path(&file)]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // Without one of them it does not pass.
    names.retain(|name| name != "tollgate_stores_lost");
    fs::write(&file, names.join("\n")).unwrap();
    let output = check(&deploy(), &["--metrics", path(&file)]);
    let printed = text(&output.stderr);
    let missing = "rules.yaml TollgateStoreLost: nothing exports tollgate_stores_lost";
    assert!(printed.contains(missing), "{printed}");
}

fn metric_names(page: &str) -> Vec<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned()))
        .collect()
}

/// A real Prometheus reads tollgates under traffic and evaluates the rules; each panel of each
/// dashboard and each recording rule has data.
#[tokio::test]
async fn every_panel_shows_something() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("expressions");
    let output = check(&deploy(), &["--expressions", path(&file)]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let file = fs::read_to_string(&file).unwrap();
    let expressions: BTreeMap<String, String> = serde_json::from_str(&file).unwrap();
    // Alerts are about series that are not there when all is well; promtool's tests have them.
    let mut waiting: Vec<_> = expressions
        .iter()
        .filter(|(place, _)| !place.starts_with("rules.yaml Tollgate"))
        .collect();
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

// --- what runs -----------------------------------------------------------------------------------

#[test]
fn the_sidecar_limits() {
    let tollgate = start(&extracted()["sidecar"], None);
    let is_private = tollgate.grpc.ip().is_loopback();
    assert!(is_private, "only the Envoy beside it may ask");
    // The HTTP port is open to the cluster, and does not count.
    let reply = json::send(tollgate.http, "POST", "/json", b"{}");
    assert_eq!(reply.status, 404);
    // The service in the pod is the reader's own; tollgate's HTTP port stands for it.
    let envoy = Envoy::start(|| {
        let ports = [
            (9901, 0),
            (10000, 0),
            (8081, tollgate.grpc.port()),
            (8000, tollgate.http.port()),
        ];
        with_ports(as_text(&extracted()["sidecar"]["envoy"]), &ports)
    });
    let front = envoy.listener("front");
    check_three_a_second(|_| get(front, "/healthcheck"));
}

#[test]
fn the_service_limits_behind_istio() {
    let redis = Redis::start();
    let tollgate = start(&extracted()["service"], Some(&redis.url()));
    let bootstrap = as_text(&extracted()["istio"]["gateway"]);
    let name = "outbound|8081||tollgate.tollgate.svc.cluster.local";
    assert!(bootstrap.contains(name), "as a mesh calls it");
    let envoy = Envoy::start(|| with_service(bootstrap, &tollgate));
    let front = envoy.listener("front");
    check_three_a_second(|_| get(front, "/"));
    assert_ne!(redis.cli(&["dbsize"]).trim(), "0", "counted in Redis");
}

/// The sidecar of a workload behind the gateway: the client's address is in a header.
#[test]
fn a_workload_in_the_mesh_limits() {
    let tollgate = start(&extracted()["sidecar"], None);
    // Istio's sidecars leave the header alone; an Envoy at the edge, as the bootstrap has it, does not.
    let bootstrap = as_text(&extracted()["istio"]["sidecar-inbound"])
        .replace("use_remote_address: true", "use_remote_address: false");
    let envoy = Envoy::start(|| with_service(&bootstrap, &tollgate));
    let address = [("x-envoy-external-address", &b"192.0.2.7"[..])];
    let front = envoy.listener("front");
    check_three_a_second(|_| get_with(front, "/", &address));
}

#[test]
fn the_service_limits_behind_contour() {
    let tollgate = start(&extracted()["sidecar"], None);
    let bootstrap = as_text(&extracted()["contour"]);
    let envoy = Envoy::start(|| with_service(bootstrap, &tollgate));
    let front = envoy.listener("front");
    check_three_a_second(|_| get(front, "/"));
}

#[test]
fn the_service_counts_in_a_redis_cluster() {
    let cluster = Cluster::start(0);
    let mut manifest = extracted()["cluster"].clone();
    let env = manifest["env"].as_object_mut().unwrap();
    // This cluster has no password.
    let file = env.remove("TOLLGATE_REDIS_AUTH_FILE");
    assert_eq!(file.unwrap(), "/etc/tollgate/redis/auth");
    assert_eq!(env["TOLLGATE_ON_STORE_LOSS"], "local");
    // One address is enough, and without a scheme REDIS_TYPE decides.
    let tollgate = start(&manifest, Some(&cluster.nodes[0].address()));
    ask_once(&tollgate);
    wait_until("counted in the cluster", || cluster.key_count() > 0);
}

#[test]
fn the_example_without_kubernetes_limits() {
    let config = deploy().with_file_name("config").display().to_string();
    // As `make run` does it.
    let tollgate = tollgate::bare()
        .args(["serve", "--config-dir", &config, "--log-format", "json"])
        .args(["--grpc-port", "0", "--port", "0", "--debug-port", "0"])
        .start();
    let bootstrap = fs::read_to_string(deploy().join("envoy/envoy.yaml")).unwrap();
    let envoy = Envoy::start(|| with_service(&bootstrap, &tollgate));
    let front = envoy.listener("front");
    check_three_a_second(|_| get(front, "/"));
}

/// The services of the compose file as plain processes, with its commands, variables and files.
#[test]
fn the_compose_file_limits_across_two_envoys() {
    let compose = &extracted()["compose"];
    let args = texts(&compose["redis"]);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let redis = Redis::with(&args);
    let tollgate = start(&compose["tollgate"], Some(&redis.url()));
    check_probe(&compose["tollgate"], &tollgate);
    assert_eq!(texts(&compose["envoys"]), ["envoy-1", "envoy-2"]);
    let bootstrap = as_text(&compose["envoy"]).replace("address: tollgate,", "address: 127.0.0.1,");
    let envoys = [(); 2].map(|()| Envoy::start(|| with_service(&bootstrap, &tollgate)));
    let fronts = envoys.each_ref().map(|envoy| envoy.listener("front"));
    for front in fronts {
        check_three_a_second(|_| get(front, "/"));
    }
    // And through both in turn.
    check_three_a_second(|number| get(fronts[number % 2], "/"));

    let rules = deploy().join("prometheus/rules.yaml");
    let config = as_text(&compose["prometheus"])
        .replace("tollgate:9090", &tollgate.debug.to_string())
        .replace("envoy-1:9901", &envoys[0].admin.to_string())
        .replace("envoy-2:9901", &envoys[1].admin.to_string())
        .replace("- rules.yaml", &format!("- {}", rules.display()))
        .replace("scrape_interval: 5s", "scrape_interval: 500ms");
    let prometheus = Prometheus::start(&config);
    for expression in [
        "count(up == 1) == 3",
        "tollgate_decisions_total{code=\"over_limit\"} > 0",
        "count(envoy_cluster_ratelimit_over_limit{envoy_cluster_name=\"service\"} > 0) == 2",
        "tollgate:decisions:rate5m",
    ] {
        wait_until(expression, || !prometheus.query(expression).is_empty());
    }
}

#[test]
fn the_redis_of_the_service_is_one_to_count_in() {
    let args = texts(&extracted()["service"]["redis"]);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let redis = Redis::with(&args);
    let policy = redis.cli(&["config", "get", "maxmemory-policy"]);
    assert!(policy.contains("volatile-ttl"), "{policy}");
    let tollgate = start(&extracted()["service"], Some(&redis.url()));
    ask_once(&tollgate);
    // One of a second may be gone already.
    let keys = redis.cli(&["--scan"]).lines().count();
    assert!((3..=4).contains(&keys), "{keys} keys for four limits");
}

#[test]
fn the_test_of_the_chart_asks_a_replica() {
    let redis = Redis::start();
    let tollgate = start(&extracted()["service"], Some(&redis.url()));
    let ask = |port| {
        let mut args = texts(&extracted()["helm_test"]);
        let server = args.iter_mut().find(|arg| arg.contains("tollgate:8081"));
        *server.unwrap() = format!("--server=http://127.0.0.1:{port}");
        finish(tollgate::program().args(args))
    };
    let output = ask(tollgate.grpc.port());
    assert!(output.status.success(), "{output:?}");
    let printed = text(&output.stdout);
    assert!(printed.contains("3 of 3 per second left"), "{printed}");
    assert_eq!(redis.cli(&["dbsize"]).trim(), "0", "it counts nothing");
    let output = ask(free_port());
    assert!(!output.status.success(), "{output:?}");
}

/// The health check of a service finds the server by the variables of the service.
#[track_caller]
fn check_probe(service: &Value, tollgate: &Tollgate) {
    let test = texts(&service["healthcheck"]);
    assert_eq!(test[..2], ["CMD", "/bin/tollgate"]);
    let mut probe = tollgate::program();
    for (name, value) in service["env"].as_object().unwrap() {
        probe.env(name, as_text(value));
    }
    probe.env("GRPC_PORT", tollgate.grpc.port().to_string());
    let output = finish(probe.args(&test[2..]).args(["--timeout", "30s"]));
    assert!(output.status.success(), "{output:?}");
}

/// As the chart's test does it, but for the hits.
#[track_caller]
fn ask_once(tollgate: &Tollgate) {
    let url = format!("http://{}", tollgate.grpc);
    let ask = ["ask", "--server", &url, "--domain", "shop"];
    let output = finish(
        tollgate::program()
            .args(ask)
            .args(["-d", "remote_address=10.0.0.1"]),
    );
    let printed = text(&output.stdout);
    assert!(printed.starts_with("OK\n"), "{printed}");
}

/// All rules here allow one address three requests a second; `ask` sends one, by its number.
#[track_caller]
fn check_three_a_second(ask: impl Fn(usize) -> Reply) {
    let mut seen = Vec::new();
    // A busy machine may take more than that second, or more than the time that Envoy waits.
    for attempt in 0..15 {
        // After five of them the twenty requests of the minute are used up.
        let period = if attempt % 5 == 0 && attempt > 0 {
            60
        } else {
            1
        };
        let before = now().secs() / period;
        while now().secs() / period == before {
            thread::sleep(Duration::from_millis(5));
        }
        let shown = [0, 1, 2, 3].map(|number| {
            let reply = ask(number);
            let limit = reply.header("x-ratelimit-limit").unwrap_or("none");
            format!("{} {limit}", reply.status)
        });
        if shown
            == [
                "200 3, 3;w=1",
                "200 3, 3;w=1",
                "200 3, 3;w=1",
                "429 3, 3;w=1",
            ]
        {
            return;
        }
        seen.push(shown);
    }
    panic!("not three a second: {seen:#?}");
}

/// Starts tollgate with all that a manifest gives it; only folders, ports and Redis are others.
#[track_caller]
fn start(manifest: &Value, redis: Option<&str>) -> Tollgate {
    let mut builder = tollgate::bare();
    for (name, text) in manifest["rules"].as_object().unwrap() {
        builder = builder.file(name, text.as_str().unwrap());
    }
    let env = manifest["env"].as_object().unwrap();
    assert_eq!(env.contains_key("REDIS_URL"), redis.is_some(), "{env:?}");
    for (name, value) in env {
        builder = builder.env(name, value.as_str().unwrap());
    }
    let rules = path(builder.rules()).to_owned();
    builder = builder
        .env("TOLLGATE_CONFIG_DIR", &rules)
        .env("PROMETHEUS_ADDR", "127.0.0.1:0");
    for port in ["GRPC_PORT", "PORT", "DEBUG_PORT"] {
        builder = builder.env(port, "0");
    }
    if let Some(redis) = redis {
        // A busy machine makes Redis slow.
        builder = builder
            .env("REDIS_URL", redis)
            .env("TOLLGATE_REDIS_TIMEOUT", "10s");
    }
    let args = texts(&manifest["args"]);
    builder.args(args.iter().map(String::as_str)).start()
}

/// A bootstrap that has a service of its own.
fn with_service(bootstrap: &str, tollgate: &Tollgate) -> String {
    let ports = [
        (9901, 0),
        (10000, 0),
        (8081, tollgate.grpc.port()),
        (10001, free_port()),
    ];
    with_ports(bootstrap, &ports)
}

#[track_caller]
fn with_ports(bootstrap: &str, ports: &[(u16, u16)]) -> String {
    let mut text = bootstrap.to_owned();
    for (there, here) in ports {
        let there = format!("port_value: {there}");
        assert!(text.contains(&there), "{there}");
        text = text.replace(&there, &format!("port_value: {here}"));
    }
    text
}

/// Everything to be run that check.py takes out of the files.
#[track_caller]
fn extracted() -> &'static Value {
    static EXTRACTED: OnceLock<Value> = OnceLock::new();
    EXTRACTED.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("extracted");
        let output = check(&deploy(), &["--extract", path(&file)]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
    })
}

/// Runs the check.py of a folder. It may take longer than other programs on a busy machine.
#[track_caller]
fn check(folder: &Path, arguments: &[&str]) -> Output {
    let program = folder.join("check.py");
    let mut command = Command::new(tool("python3"));
    command.arg(program).args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

/// Runs a program that must succeed.
#[track_caller]
fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_all(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap().iter();
    list.map(|item| as_text(item).to_owned()).collect()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
