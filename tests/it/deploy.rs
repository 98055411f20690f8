//! Runs the files in `deploy/` unchanged, except for ports and folders.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
    thread,
    time::Duration,
};

use ::tollgate::grpc::now;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    envoy::Envoy,
    finish, free_port,
    http::get,
    json,
    redis::Redis,
    tollgate::{self, Tollgate},
    tool,
};

// --- checks without running them -----------------------------------------------------------------

#[test]
fn the_manifests_are_valid() {
    let output = check(&deploy(), &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let workloads: Vec<_> = said
        .lines()
        .filter_map(|line| line.strip_suffix(", and refused with a misspelt field"))
        .collect();
    let expected = [
        "ok    kubernetes/redis.yaml Deployment/tollgate",
        "ok    kubernetes/redis.yaml Deployment/redis",
        "ok    kubernetes/sidecar.yaml Deployment/shop",
    ];
    assert_eq!(workloads, expected, "{said}");
}

#[test]
fn mistakes_in_the_manifests_are_found() {
    let copy = TempDir::new().unwrap();
    let folder = copy.path().join("deploy");
    copy_all(&deploy(), &folder);
    for (file, right, wrong) in [
        ("redis.yaml", "  replicas: 2", "  replica: 2"),
        (
            "redis.yaml",
            "targetPort: grpc-rls",
            "targetPorts: grpc-rls",
        ),
        ("sidecar.yaml", "containerPort: 8080", "containerPort: http"),
        // No schema rejects these.
        ("sidecar.yaml", "runAsNonRoot: true", "runAsNonRoot: false"),
        ("sidecar.yaml", "tollgate:0.1.0", "tollgate:latest"),
    ] {
        let manifest = folder.join("kubernetes").join(file);
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(text.contains(right), "{right}");
        fs::write(&manifest, text.replacen(right, wrong, 1)).unwrap();
    }
    let output = check(&folder, &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    for (place, problem) in [
        ("kubernetes/redis.yaml Deployment/tollgate", "replica"),
        ("kubernetes/redis.yaml Service/tollgate", "targetPorts"),
        ("kubernetes/sidecar.yaml Deployment/shop", "'http' is not"),
        ("kubernetes/sidecar.yaml Deployment/shop", "run as root"),
        (
            "kubernetes/sidecar.yaml Deployment/shop",
            "no fixed image tag",
        ),
    ] {
        let is_told = |line: &str| line.contains(place) && line.contains(problem);
        assert!(said.lines().any(is_told), "{problem}: {said}");
    }
}

#[test]
fn the_image_holds_one_program_and_no_root() {
    let text = fs::read_to_string(deploy().join("Containerfile")).unwrap();
    let (_, stage) = text.rsplit_once("\nFROM ").expect("a last stage");
    assert!(stage.starts_with("scratch\n"), "{stage}");
    let told = |instruction: &str| {
        let mut lines = stage.lines();
        let found = lines.find_map(|line| line.strip_prefix(instruction));
        found.expect(instruction).trim().to_owned()
    };
    let user = told("USER ");
    let (user, group) = user.split_once(':').expect("a user and a group");
    for id in [user, group] {
        assert!(id.parse::<u32>().is_ok_and(|id| id > 0), "{id}");
    }
    assert_eq!(told("ENTRYPOINT "), r#"["/bin/tollgate"]"#);
    assert_eq!(told("EXPOSE "), "8080 8081 6070");
    assert!(text.contains("target-feature=+crt-static"));
    assert!(text.contains("ln -s tollgate /image/bin/ratelimit"));
}

#[test]
fn every_file_means_the_image_of_this_version() {
    let image = format!("tollgate:{}", env!("CARGO_PKG_VERSION"));
    for file in [
        "Containerfile",
        "kubernetes/sidecar.yaml",
        "kubernetes/redis.yaml",
    ] {
        let text = fs::read_to_string(deploy().join(file)).unwrap();
        assert!(text.contains(&image), "{image} in {file}");
    }
}

// --- checks that run them ------------------------------------------------------------------------

#[test]
fn the_sidecar_limits() {
    let tollgate = start(&extracted().sidecar, None);
    let is_private = tollgate.grpc.ip().is_loopback();
    assert!(is_private, "only the Envoy beside it may ask");
    // It must not count by another path either: this port is open to the cluster.
    let reply = json::send(tollgate.http, "POST", "/json", b"{}");
    assert_eq!(reply.status, 404);
    // The service in the pod is the operator's own; tollgate's HTTP port takes its role.
    let envoy = Envoy::start(|| {
        let ports = [
            (9901, 0),
            (10000, 0),
            (8081, tollgate.grpc.port()),
            (8000, tollgate.http.port()),
        ];
        with_ports(&extracted().envoy, &ports)
    });
    check_three_a_second(envoy.listener("front"), "/healthcheck");
}

#[test]
fn the_service_limits_behind_istio() {
    let redis = Redis::start();
    let tollgate = start(&extracted().service, Some(&redis));
    let name = "outbound|8081||tollgate.tollgate.svc.cluster.local";
    assert!(extracted().istio.contains(name), "as a mesh calls it");
    let envoy = Envoy::start(|| with_service(&extracted().istio, &tollgate));
    check_three_a_second(envoy.listener("front"), "/");
    assert_ne!(redis.cli(&["dbsize"]).trim(), "0", "counted in Redis");
}

#[test]
fn the_example_without_kubernetes_limits() {
    let config = deploy().with_file_name("config").display().to_string();
    // As `make run` does.
    let tollgate = tollgate::bare()
        .args(["serve", "--config-dir", &config, "--log-format", "json"])
        .args(["--grpc-port", "0", "--port", "0", "--debug-port", "0"])
        .start();
    let bootstrap = fs::read_to_string(deploy().join("envoy/envoy.yaml")).unwrap();
    let envoy = Envoy::start(|| with_service(&bootstrap, &tollgate));
    check_three_a_second(envoy.listener("front"), "/");
}

#[test]
fn the_redis_of_the_service_is_one_to_count_in() {
    let args = texts(&extracted().service["redis"]);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let redis = Redis::with(&args);
    let policy = redis.cli(&["config", "get", "maxmemory-policy"]);
    assert!(policy.contains("volatile-ttl"), "{policy}");
    let tollgate = start(&extracted().service, Some(&redis));
    let url = format!("http://{}", tollgate.grpc);
    let ask = ["ask", "--server", &url, "--domain", "shop"];
    let output = finish(
        tollgate::program()
            .args(ask)
            .args(["-d", "remote_address=10.0.0.1"]),
    );
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("OK\n"), "{said}");
    // The key of a limit per second may have expired.
    let keys = redis.cli(&["--scan"]).lines().count();
    assert!((3..=4).contains(&keys), "{keys} keys for four limits");
}

/// All rules here allow one address three requests a second.
#[track_caller]
fn check_three_a_second(front: SocketAddr, path: &str) {
    let mut seen = Vec::new();
    // A busy machine may need more than that second, or more than Envoy's timeout.
    for attempt in 0..15 {
        // Five attempts use up the twenty requests of the minute.
        let period = if attempt % 5 == 0 && attempt > 0 {
            60
        } else {
            1
        };
        let before = now().secs() / period;
        while now().secs() / period == before {
            thread::sleep(Duration::from_millis(5));
        }
        let replies = [(); 4].map(|()| get(front, path));
        let shown = replies.each_ref().map(|reply| {
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

/// Starts tollgate with the settings of a manifest, except for folders, ports and Redis.
#[track_caller]
fn start(manifest: &Value, redis: Option<&Redis>) -> Tollgate {
    let mut builder = tollgate::bare();
    for (name, text) in manifest["rules"].as_object().unwrap() {
        builder = builder.file(name, text.as_str().unwrap());
    }
    for (name, value) in manifest["env"].as_object().unwrap() {
        builder = builder.env(name, value.as_str().unwrap());
    }
    for port in ["GRPC_PORT", "PORT", "DEBUG_PORT"] {
        builder = builder.env(port, "0");
    }
    // Variables that Kubernetes sets in every pod next to a Service of that name.
    builder = builder
        .env("TOLLGATE_SERVICE_HOST", "10.96.0.7")
        .env("TOLLGATE_SERVICE_PORT", "8081")
        .env("TOLLGATE_PORT", "tcp://10.96.0.7:8081")
        .env("REDIS_PORT", "tcp://10.96.0.8:6379");
    let mut args = texts(&manifest["args"]);
    replace(&mut args, "/etc/tollgate/rules", path(builder.rules()));
    if let Some(redis) = redis {
        replace(&mut args, "redis://redis:6379", &redis.url());
        // A busy machine makes Redis slow.
        builder = builder.env("TOLLGATE_REDIS_TIMEOUT", "10s");
    }
    builder.args(args.iter().map(String::as_str)).start()
}

/// Replaces `there` by `here` in the one argument that has it.
#[track_caller]
fn replace(args: &mut [String], there: &str, here: &str) {
    let mut found: Vec<_> = args.iter_mut().filter(|arg| arg.contains(there)).collect();
    assert_eq!(found.len(), 1, "{there} in {found:?}");
    *found[0] = found[0].replace(there, here);
}

/// A bootstrap that includes a service, with its ports replaced.
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

/// The parts that check.py extracts from the manifests.
#[derive(Debug)]
struct Extracted {
    envoy: String,
    istio: String,
    sidecar: Value,
    service: Value,
}

#[track_caller]
fn extracted() -> &'static Extracted {
    static EXTRACTED: OnceLock<Extracted> = OnceLock::new();
    EXTRACTED.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        let file = |name: &str| path(&folder.path().join(name)).to_owned();
        let output = check(
            &deploy(),
            &[
                "--extract-envoy",
                &file("envoy"),
                "--extract-istio",
                &file("istio"),
                "--extract-args",
                &file("sidecar"),
                "--extract-service",
                &file("service"),
            ],
        );
        assert!(output.status.success(), "{output:?}");
        let text = |name: &str| fs::read_to_string(file(name)).unwrap();
        Extracted {
            envoy: text("envoy"),
            istio: text("istio"),
            sidecar: serde_json::from_str(&text("sidecar")).unwrap(),
            service: serde_json::from_str(&text("service")).unwrap(),
        }
    })
}

/// Runs the check.py of a folder.
#[track_caller]
fn check(folder: &Path, arguments: &[&str]) -> Output {
    let program = folder.join("check.py");
    finish(Command::new(tool("python3")).arg(program).args(arguments))
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

fn texts(list: &Value) -> Vec<String> {
    let text = |item: &Value| item.as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(text).collect()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
