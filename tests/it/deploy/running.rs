//! Everything that the files describe, started with their own arguments, variables and files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    thread,
    time::Duration,
};

use ::tollgate::now;
use serde_json::Value;
use tempfile::TempDir;

use super::{deploy, path, text, written};
use crate::cli::{run, url};
use crate::support::{
    cluster::Cluster,
    envoy::Envoy,
    finish, free_port,
    http::{Reply, get, get_with},
    json,
    prometheus::Prometheus,
    redis::Redis,
    tollgate::{self, Builder, Tollgate},
    wait_until,
};
use crate::unhelpful_servers::documented_users;

#[test]
fn the_sidecar_limits() {
    let tollgate = start(&extracted()["sidecar"], None);
    let is_private = tollgate.grpc.ip().is_loopback();
    assert!(is_private, "only the Envoy beside it may ask");
    // The HTTP port is open to the cluster, and does not count.
    let reply = json::send(tollgate.http, "POST", "/json", b"{}");
    assert_eq!(reply.status, 404);
    // The service in the pod is the reader's own; tollgate's HTTP port stands for it.
    let [grpc, http] = [tollgate.grpc.port(), tollgate.http.port()];
    let ports = [(9901, 0), (10000, 0), (8081, grpc), (8000, http)];
    let bootstrap = as_text(&extracted()["sidecar"]["envoy"]);
    let envoy = Envoy::start(|| with_ports(bootstrap, &ports));
    let front = envoy.listener("front");
    check_three_a_second(|_| get(front, "/healthcheck"));
}

#[test]
fn the_service_limits_behind_istio() {
    let redis = Bundled::start();
    let tollgate = start(&extracted()["service"], Some(redis.address()));
    let bootstrap = as_text(&extracted()["istio"]["gateway"]);
    let name = "outbound|8081||tollgate.tollgate.svc.cluster.local";
    assert!(bootstrap.contains(name), "as a mesh calls it");
    check_behind_envoy(bootstrap, &tollgate);
    assert_ne!(redis.keys(), 0, "counted in Redis");
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
    check_behind_envoy(as_text(&extracted()["contour"]), &tollgate);
}

#[test]
fn the_service_counts_in_a_redis_cluster() {
    let cluster = Cluster::start(0);
    let [user, _] = documented_users();
    let user: Vec<_> = user.iter().map(String::as_str).collect();
    for node in &cluster.nodes {
        node.cli(&user);
    }
    let folder = TempDir::new().unwrap();
    let auth = folder.path().join("auth");
    fs::write(&auth, "tollgate:open").unwrap();
    let manifest = &extracted()["cluster"];
    assert_eq!(manifest["env"]["TOLLGATE_ON_STORE_LOSS"], "local");
    // One address is enough, and without a scheme REDIS_TYPE decides.
    let tollgate = start(manifest, Some((cluster.nodes[0].address(), &auth)));
    wait_until("the cluster decides", || {
        let said = ask(&tollgate);
        said.starts_with("O") && !said.contains("degraded")
    });
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
    check_behind_envoy(&bootstrap, &tollgate);
}

/// The services of the compose file as plain processes, with its commands, variables and files.
#[test]
fn the_compose_file_limits_across_two_envoys() {
    let compose = &extracted()["compose"];
    let redis = Bundled::start();
    let tollgate = start(&compose["tollgate"], Some(redis.address()));
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
    let redis = Bundled::start();
    let policy = ["--maxmemory-policy", "volatile-ttl"];
    assert!(redis.arguments.windows(2).any(|pair| pair == policy));
    let tollgate = start(&extracted()["service"], Some(redis.address()));
    let said = ask(&tollgate);
    assert!(said.starts_with("OK\n"), "{said}");
    // One of a second may be gone already.
    let keys = redis.keys();
    assert!((3..=4).contains(&keys), "{keys} keys for four limits");
}

#[test]
fn the_test_of_the_chart_asks_a_replica() {
    let redis = Bundled::start();
    let tollgate = start(&extracted()["service"], Some(redis.address()));
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
    assert_eq!(redis.keys(), 0, "it counts nothing");
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
fn ask(tollgate: &Tollgate) -> String {
    let server = url(tollgate.grpc);
    run(&format!(
        "ask --server {server} --domain shop -d remote_address=10.0.0.1"
    ))
    .1
}

#[track_caller]
fn check_behind_envoy(bootstrap: &str, tollgate: &Tollgate) {
    let envoy = Envoy::start(|| with_service(bootstrap, tollgate));
    let front = envoy.listener("front");
    check_three_a_second(|_| get(front, "/"));
}

/// All rules here allow one address three requests a second; `ask` sends one, by its number.
#[track_caller]
fn check_three_a_second(ask: impl Fn(usize) -> Reply) {
    let expected = ["200", "200", "200", "429"].map(|status| format!("{status} 3, 3;w=1"));
    let mut seen = Vec::new();
    // A busy machine may take more than that second, or more than the time that Envoy waits.
    for attempt in 0..15 {
        // After five of them the twenty requests of the minute are used up.
        let is_used_up = attempt % 5 == 0 && attempt > 0;
        let period = if is_used_up { 60 } else { 1 };
        let before = now().secs() / period;
        while now().secs() / period == before {
            thread::sleep(Duration::from_millis(5));
        }
        let shown = [0, 1, 2, 3].map(|number| {
            let reply = ask(number);
            let limit = reply.header("x-ratelimit-limit").unwrap_or("none");
            format!("{} {limit}", reply.status)
        });
        if shown == expected {
            return;
        }
        seen.push(shown);
    }
    panic!("not three a second: {seen:#?}");
}

/// A Redis as every manifest starts it: `passwords.rs` checks that all do it alike.
pub(super) struct Bundled {
    redis: Redis,
    pub arguments: Vec<String>,
    pub auth: PathBuf,
    _folder: TempDir,
}

impl Bundled {
    #[track_caller]
    pub(super) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let auth = folder.path().join("auth");
        fs::write(&auth, "tollgate:open sesame\n").unwrap();
        let arguments = redis_arguments(&extracted()["redis"]["compose"], &auth).unwrap();
        let mut words: Vec<_> = arguments.iter().map(String::as_str).collect();
        // The user of tollgate may not list keys.
        words.extend(["--user", "lister", "on", ">list", "~*", "-@all", "+scan"]);
        Self {
            redis: Redis::with(&words),
            arguments,
            auth,
            _folder: folder,
        }
    }

    /// Its URL, and the file with user and password.
    pub(super) fn address(&self) -> (String, &Path) {
        (self.redis.url(), &self.auth)
    }

    /// The answer of Redis to a command of its user.
    #[track_caller]
    pub(super) fn cli(&self, command: &[&str]) -> String {
        let pass = ["--no-auth-warning", "--pass", "open sesame"];
        let all = [&["--user", "tollgate"][..], &pass, command].concat();
        self.redis.cli(&all).trim().to_owned()
    }

    /// Its answer to a command of anybody else.
    #[track_caller]
    pub(super) fn cli_of_strangers(&self, command: &[&str]) -> String {
        self.redis.cli(command).trim().to_owned()
    }

    fn keys(&self) -> usize {
        let of_lister = ["--no-auth-warning", "--user", "lister", "--pass", "list"];
        let command = [&of_lister[..], &["--scan"]].concat();
        self.redis.cli(&command).lines().count()
    }
}

/// The arguments that the script of a manifest gives to redis-server, with `auth` as the file of the Secret; or its
/// objection.
#[track_caller]
pub(super) fn redis_arguments(command: &Value, auth: &Path) -> Result<Vec<String>, String> {
    const START: &str = "exec redis-server ";
    let words = texts(command);
    let [shell, options, script] = &words[..] else {
        panic!("{words:?}");
    };
    assert!(script.contains(START), "{script}");
    let (_, file) = script.split_once("$(cat ").unwrap();
    let (file, _) = file.split_once(')').unwrap();
    let script = script.replace(file, path(auth));
    let script = script.replace(START, "printf '%s\\0' ");
    let output = Command::new(shell).args([options, &script]).output();
    let output = output.unwrap();
    if !output.status.success() {
        return Err(text(&output.stderr));
    }
    let printed = text(&output.stdout);
    let arguments = printed.split_terminator('\0').map(str::to_owned);
    Ok(arguments.collect())
}

#[track_caller]
fn start(manifest: &Value, redis: Option<(String, &Path)>) -> Tollgate {
    builder(manifest, redis).start()
}

/// tollgate with all that a manifest gives it; only folders, ports and Redis are others.
#[track_caller]
pub(super) fn builder(manifest: &Value, redis: Option<(String, &Path)>) -> Builder {
    let mut builder = tollgate::bare();
    for (name, text) in manifest["rules"].as_object().unwrap() {
        builder = builder.file(name, text.as_str().unwrap());
    }
    let env = manifest["env"].as_object().unwrap();
    for name in ["REDIS_URL", "TOLLGATE_REDIS_AUTH_FILE"] {
        assert_eq!(env.contains_key(name), redis.is_some(), "{env:?}");
    }
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
    if let Some((redis, auth)) = redis {
        // A busy machine makes Redis slow.
        builder = builder
            .env("REDIS_URL", &redis)
            .env("TOLLGATE_REDIS_AUTH_FILE", path(auth))
            .env("TOLLGATE_REDIS_TIMEOUT", "10s");
    }
    let args = texts(&manifest["args"]);
    builder.args(args.iter().map(String::as_str))
}

/// A bootstrap that has a service of its own.
pub(super) fn with_service(bootstrap: &str, tollgate: &Tollgate) -> String {
    let (grpc, service) = (tollgate.grpc.port(), free_port());
    let ports = [(9901, 0), (10000, 0), (8081, grpc), (10001, service)];
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
pub(super) fn extracted() -> &'static Value {
    static EXTRACTED: OnceLock<Value> = OnceLock::new();
    EXTRACTED.get_or_init(|| serde_json::from_str(&written("--extract")).unwrap())
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap().iter();
    list.map(|item| as_text(item).to_owned()).collect()
}
