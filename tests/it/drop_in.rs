//! As a replacement of envoyproxy/ratelimit: started as platforms start it, and next to it on one Redis.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv6Addr, SocketAddr},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    time::Duration,
};

use ::tollgate::now;

use crate::golden::cases;
use crate::support::{
    PATIENCE,
    ask::{ask, connect, descriptor, is_ok, request, send},
    certificates::{Authority, Secret},
    eventually, http, json,
    ratelimit::{self, Ratelimit},
    redis::Redis,
    tollgate::{self, Tollgate},
    wait_until,
};

/// `samples/ratelimit` of Istio; each test adapts the root of the file system and the address of Redis.
const ISTIO: &[(&str, &str)] = &[
    ("LOG_LEVEL", "debug"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis:6379"),
    ("USE_STATSD", "false"),
    ("RUNTIME_ROOT", "$ROOT/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("HOST", "::"),
    ("GRPC_HOST", "::"),
];

/// `examples/ratelimit` of Contour.
const CONTOUR: &[(&str, &str)] = &[
    ("USE_STATSD", "false"),
    ("LOG_LEVEL", "debug"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "localhost:6379"),
    ("RUNTIME_ROOT", "$ROOT/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
];

/// The settings of most compose files, by their README: there the reference watches its root.
const COMPOSE: &[(&str, &str)] = &[
    ("USE_STATSD", "true"),
    ("STATSD_HOST", "127.0.0.1"),
    ("STATSD_PORT", "9"),
    ("LOG_LEVEL", "warn"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis:6379"),
    ("RUNTIME_ROOT", "$ROOT/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
];

const RULES: &str = "
domain: echo-ratelimit
descriptors:
  - key: PATH
    value: /
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: PATH
    rate_limit: { unit: year, requests_per_unit: 100 }
";

/// A server with these rules, which count in `redis`.
#[track_caller]
fn start(env: &[(&str, &str)], rules: &str, redis: &Redis) -> Ratelimit {
    ratelimit::with_env(env).rules(rules).redis(redis).start()
}

/// Calls under these rules: the first is admitted, the second refused, and other values still pass.
async fn expect_answers(server: &Ratelimit) {
    let mut client = connect(server.grpc).await;
    for (path, expected) in [("/", true), ("/", false), ("/other", true)] {
        let reply = ask(&mut client, "echo-ratelimit", &[("PATH", path)]).await;
        assert_eq!(is_ok(&reply), expected, "{path}");
    }
}

/// The kubelet installs other rules; they apply soon, and the counters stay.
async fn expect_reload(server: &mut Ratelimit, redis: &Redis) {
    let keys = redis.cli(&["DBSIZE"]);
    server.update(&RULES.replace("requests_per_unit: 1 ", "requests_per_unit: 5 "));
    wait_until("the new rules are in use", || {
        server.rlconfig().contains("requests_per_unit=5,")
    });
    let mut client = connect(server.grpc).await;
    let reply = ask(&mut client, "echo-ratelimit", &[("PATH", "/")]).await;
    let status = &reply.unwrap().statuses[0];
    assert_eq!(status.limit_remaining, 2, "two hits before and one now");
    assert_eq!(redis.cli(&["DBSIZE"]), keys);
}

#[tokio::test]
async fn samples_of_platforms_come_up_answer_and_reload() {
    let redis = Redis::start();
    // Dot files of the kubelet are left out unasked.
    let dot_files = [ISTIO, &[("RUNTIME_IGNOREDOTFILES", "false")]].concat();
    for env in [ISTIO, CONTOUR, &dot_files[..]] {
        let mut server = start(env, RULES, &redis);
        expect_answers(&server).await;
        expect_reload(&mut server, &redis).await;
        if env.contains(&("HOST", "::")) {
            // `::` means every address, including those of IPv6.
            let v6 = |port: u16| SocketAddr::from((Ipv6Addr::LOCALHOST, port));
            let health = http::get(v6(server.http.port()), "/healthcheck");
            assert_eq!(health.body, "OK");
            let mut client = connect(v6(server.grpc.port())).await;
            let reply = ask(&mut client, "echo-ratelimit", &[("PATH", "/v6")]).await;
            assert!(is_ok(&reply));
        }
        redis.cli(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_compose_file_s_server_comes_up_although_its_statsd_is_away() {
    let redis = Redis::start();
    let server = start(COMPOSE, RULES, &redis);
    expect_answers(&server).await;
    server.log().with("statsd collector not reached");
}

#[test]
fn memcached_and_folders_without_rules_end_the_start_and_are_named() {
    for (name, value, code, expected) in [
        ("BACKEND_TYPE", "memcache", 2, "there is no memcached store"),
        (
            "RUNTIME_ROOT",
            "/not/there",
            1,
            "/not/there/ratelimit/config",
        ),
        (
            "RUNTIME_APPDIRECTORY",
            "elsewhere",
            1,
            "no rule files found",
        ),
    ] {
        let builder = ratelimit::with_env(ISTIO).rules(RULES);
        let builder = builder.env("MEMCACHE_HOST_PORT", "memcached:11211");
        let is_app = name == "RUNTIME_APPDIRECTORY";
        let builder = builder.env("RUNTIME_WATCH_ROOT", &is_app.to_string());
        let (status, text) = builder.env(name, value).fail();
        assert_eq!(status.code(), Some(code), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn variables_without_effect_are_told_in_one_line_each_of_the_reference_s_json_shape() {
    const WITHOUT_EFFECT: [(&str, &str); 6] = [
        ("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "true"),
        ("REDIS_POOL_SIZE", "20"),
        ("REDIS_PIPELINE_WINDOW", "150us"),
        ("REDIS_PIPELINE_LIMIT", "8"),
        ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT"),
        ("MEMCACHE_MAX_IDLE_CONNS", "2"),
    ];
    let redis = Redis::start();
    let env = [CONTOUR, &WITHOUT_EFFECT, &[("LOG_FORMAT", "json")]].concat();
    let server = start(&env, RULES, &redis);
    let log = server.log().text();
    for (name, _) in WITHOUT_EFFECT {
        let reported = log.matches(&format!("{name} has no effect: ")).count();
        assert_eq!(reported, 1, "{name} in {log}");
    }
    let reported = log.matches(" has no effect: ").count();
    assert_eq!(reported, WITHOUT_EFFECT.len(), "{log}");
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        for field in ["@timestamp", "@message", "level"] {
            assert!(line[field].is_string(), "{line}");
        }
    }
    expect_answers(&server).await;
}

/// Rules that the reference's keys can distinguish.
const SHARED: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: day, requests_per_unit: 10 }
  - key: plan
    value: free
    descriptors:
      - { key: path, rate_limit: { unit: week, requests_per_unit: 10 } }
  - key: file
    value: 'files/*'
    share_threshold: true
    rate_limit: { unit: month, requests_per_unit: 10 }
  - key: all
    rate_limit: { unit: year, requests_per_unit: 10 }
";

const REFERENCE_KEYS: &[(&str, &str)] = &[("TOLLGATE_KEY_FORMAT", "reference")];

const DAY: u64 = 86_400;

/// The reference's key of the counter of these entries in the current window.
fn reference_key(entries: &str, period: u64) -> String {
    let start = now().secs() / period * period;
    format!("shop_{entries}_{start}")
}

/// All windows of the shared rules end at midnight; no test may begin just before it.
async fn away_from_midnight() {
    while DAY - now().secs() % DAY < 20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_rolling_swap_goes_on_counting_where_the_reference_is() {
    away_from_midnight().await;
    let redis = Redis::start();
    let file = descriptor(&[("file", "files/1.pdf")]);
    let plan = [("plan", "free"), ("path", "/a")];
    let counters = [
        ("user_alice", DAY, descriptor(&[("user", "alice")])),
        ("plan_free_path_/a", 7 * DAY, descriptor(&plan)),
        ("file_files/*", 30 * DAY, file),
        ("all_", 365 * DAY, descriptor(&[("all", "")])),
    ];
    let keys = counters
        .each_ref()
        .map(|(entries, period, _)| reference_key(entries, *period));
    // The counts of the old replicas.
    for ((_, period, _), key) in counters.iter().zip(&keys) {
        redis.cli(&["INCRBY", key, "7"]);
        redis.cli(&["EXPIRE", key, &period.to_string()]);
    }
    let server = start(&[ISTIO, REFERENCE_KEYS].concat(), SHARED, &redis);
    let mut client = connect(server.grpc).await;
    let call = request("shop", counters.map(|(_, _, descriptor)| descriptor).into());
    for expected in [2, 0] {
        let reply = send(&mut client, call.clone()).await.unwrap();
        let remaining = reply.statuses.iter().map(|status| status.limit_remaining);
        assert_eq!(remaining.collect::<Vec<_>>(), [expected; 4]);
        // Both count during the swap.
        for key in keys.iter().filter(|_| expected == 2) {
            redis.cli(&["INCRBY", key, "1"]);
        }
    }
    assert!(!is_ok(&send(&mut client, call).await));
    // And the old replicas see the hits of the new ones.
    for key in &keys {
        assert_eq!(redis.cli(&["GET", key]), "11\n");
    }
    assert_eq!(redis.cli(&["DBSIZE"]).trim(), keys.len().to_string());
}

/// Six requests over a limit of ten, of which the cache refuses five: the reference counts the first of them only.
#[tokio::test]
async fn refusals_by_the_local_cache_leave_the_counter_at_one_above_its_limit() {
    away_from_midnight().await;
    let redis = Redis::start();
    let cache = [
        ("LOCAL_CACHE_SIZE_IN_BYTES", "1000000"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
    ];
    let server = start(&[ISTIO, REFERENCE_KEYS, &cache].concat(), SHARED, &redis);
    let mut client = connect(server.grpc).await;
    for number in 0..16 {
        let reply = ask(&mut client, "shop", &[("user", "carol")]).await;
        assert_eq!(is_ok(&reply), number < 10, "{number}");
    }
    let key = reference_key("user_carol", DAY);
    let held = || redis.number(&["GET", &key]);
    assert_eq!(held(), 11);
    // After a second Redis is asked again, and counts this call alone: what the cache refused is not added late.
    eventually("Redis is asked again", async || {
        let reply = ask(&mut client, "shop", &[("user", "carol")]).await;
        assert!(!is_ok(&reply));
        held() > 11
    })
    .await;
    assert_eq!(held(), 12);
}

#[tokio::test]
async fn with_the_reference_s_keys_there_are_no_others() {
    away_from_midnight().await;
    let redis = Redis::start();
    let keys = [
        ("CACHE_KEY_PREFIX", "rl:"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
    ];
    let server = start(&[ISTIO, REFERENCE_KEYS, &keys].concat(), SHARED, &redis);
    let mut client = connect(server.grpc).await;
    let descriptors = vec![
        descriptor(&[("user", "bob")]),
        descriptor(&[("plan", "free"), ("path", "/b")]),
        descriptor(&[("file", "files/x")]),
        descriptor(&[("all", "v")]),
        descriptor(&[("unknown", "v")]),
    ];
    let reply = send(&mut client, request("shop", descriptors)).await;
    assert!(is_ok(&reply));
    let written: BTreeSet<_> = redis.keys().into_iter().collect();
    let keys = ["user_bob", "plan_free_path_/b", "file_files/*", "all_v"];
    let expected = keys.iter().zip([1, 7, 30, 365]);
    let expected = expected.map(|(key, days)| format!("rl:{}", reference_key(key, days * DAY)));
    assert_eq!(written, expected.collect());
    let key = format!("rl:{}", reference_key("user_bob", DAY));
    let left = redis.number(&["TTL", &key]).cast_unsigned();
    assert!(left >= DAY - now().secs() % DAY && left <= DAY, "{left}");
}

#[tokio::test]
async fn keys_live_longer_by_the_reference_s_jitter_unless_told_otherwise() {
    away_from_midnight().await;
    let redis = Redis::start();
    let server = start(ISTIO, SHARED, &redis);
    let mut client = connect(server.grpc).await;
    for user in 0..20 {
        let user = user.to_string();
        let reply = ask(&mut client, "shop", &[("user", &user)]).await;
        assert!(is_ok(&reply));
    }
    let to_midnight = DAY - now().secs() % DAY;
    let keys = redis.keys();
    let left = keys.iter().map(|key| redis.number(&["TTL", key]));
    let longer = left.map(|left| left.cast_unsigned().saturating_sub(to_midnight));
    let longer: Vec<_> = longer.collect();
    assert_eq!(longer.len(), 20);
    assert!(longer.iter().all(|&longer| longer <= 301), "{longer:?}");
    let different: BTreeSet<_> = longer.iter().collect();
    assert!(different.len() > 5, "{longer:?}");
}

#[tokio::test]
async fn an_empty_host_is_every_address_but_for_the_debug_port() {
    let redis = Redis::start();
    let hosts = [("HOST", ""), ("GRPC_HOST", ""), ("DEBUG_HOST", "")];
    let server = start(&[CONTOUR, &hosts].concat(), RULES, &redis);
    expect_answers(&server).await;
    // Another address of this machine.
    let elsewhere = |port: u16| SocketAddr::from(([127, 0, 0, 2], port));
    let healthcheck = http::get(elsewhere(server.http.port()), "/healthcheck");
    assert_eq!(healthcheck.body, "OK");
    assert!(http::try_get(elsewhere(server.debug.port()), "/", &[]).is_err());
    assert_eq!(http::get(server.debug, "/").status, 200);
}

#[tokio::test]
async fn it_comes_up_without_redis_and_answers_when_redis_is_there() {
    let mut redis = Redis::start();
    redis.kill();
    let server = start(ISTIO, RULES, &redis);
    let mut client = connect(server.grpc).await;
    let reply = ask(&mut client, "echo-ratelimit", &[("PATH", "/")]).await;
    let error = reply.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable);
    // Errors reveal neither the address of Redis nor its keys.
    for secret in ["127.0.0.1", "PATH", "echo-ratelimit"] {
        assert!(!error.message().contains(secret), "{error:?}");
    }
    redis.restart();
    eventually("Redis is found", async || {
        let reply = ask(&mut client, "echo-ratelimit", &[("PATH", "/x")]).await;
        reply.is_ok()
    })
    .await;
}

/// Where the reference reads rules: in the root without a subdirectory, and whatever slashes are around the parts.
#[tokio::test]
async fn the_folder_of_rules_is_that_of_the_reference() {
    let redis = Redis::start();
    for (root, parts) in [
        ("$ROOT/data/ratelimit", None),
        ("$ROOT/data/ratelimit", Some(["/", "config"])),
        ("$ROOT/data", Some(["/ratelimit", "/config"])),
        ("$ROOT/data/", Some(["ratelimit/", "config/"])),
    ] {
        let mut env = vec![("USE_STATSD", "false"), ("REDIS_SOCKET_TYPE", "tcp")];
        env.push(("RUNTIME_ROOT", root));
        if let Some([subdirectory, app_directory]) = parts {
            env.push(("RUNTIME_SUBDIRECTORY", subdirectory));
            env.push(("RUNTIME_APPDIRECTORY", app_directory));
            env.push(("RUNTIME_WATCH_ROOT", "false"));
        }
        expect_answers(&start(&env, RULES, &redis)).await;
        redis.cli(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_socket_that_a_crash_left_behind_is_taken_over() {
    let redis = Redis::start();
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("grpc.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    // A process that another test starts at this moment has the socket until it runs its program.
    wait_until("nobody listens", || UnixStream::connect(&path).is_err());
    let socket = [("GRPC_UDS", path.to_str().unwrap())];
    let _server = start(&[ISTIO, &socket].concat(), RULES, &redis);
    assert!(UnixStream::connect(&path).is_ok());
}

/// As in the reference, except that the reference does not log it.
#[test]
fn a_socket_has_no_tls() {
    let redis = Redis::start();
    let pair = Authority::new("ours").issue("*.limits.example");
    let secret = Secret::mount(&[("tls.crt", &pair.certificate), ("tls.key", &pair.key)]);
    let path = secret.path("grpc.sock");
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| secret.at(name));
    let tls = [
        ("GRPC_UDS", path.to_str().unwrap()),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &*certificate),
        ("GRPC_SERVER_TLS_KEY", &*key),
    ];
    let _server = start(&[ISTIO, &tls].concat(), RULES, &redis);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // HTTP/2 without TLS: the preface and empty SETTINGS, which the server answers with its own.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "{head:?}");
}

/// Sends a request for one descriptor to `/json`.
fn ask_json(server: &Tollgate, body: &str) -> json::Reply {
    json::send(server.http, "POST", "/json", body.as_bytes())
}

#[test]
fn json_is_answered_as_over_grpc() {
    let server = tollgate::with_rules(RULES).start();
    let body = r#"{"domain": "echo-ratelimit", "descriptors": [{"entries": [{"key": "PATH", "value": "/"}]}]}"#;
    let reply = ask_json(&server, body);
    assert_eq!(reply.status, 200);
    let answer = reply.json();
    assert_eq!(answer["overallCode"], "OK");
    let status = &answer["statuses"][0];
    assert_eq!(status["code"], "OK");
    let limit = serde_json::json!({"requestsPerUnit": 1, "unit": "YEAR"});
    assert_eq!(status["currentLimit"], limit);
    // Nothing remains, and JSON leaves out a 0.
    assert_eq!(status.get("limitRemaining"), None);
    let reset = status["durationUntilReset"].as_str().unwrap();
    let secs = reset.strip_suffix('s').unwrap().parse::<u64>();
    assert!(secs.is_ok(), "{reset}");
    let reply = ask_json(&server, body);
    assert_eq!(reply.status, 429);
    assert_eq!(reply.json()["overallCode"], "OVER_LIMIT");
}

#[test]
fn json_has_the_spellings_of_proto3() {
    let server = tollgate::with_rules(RULES).start();
    let body = r#"{"domain": "echo-ratelimit", "hits_addend": 2, "descriptors": [
        {"entries": [{"key": "PATH", "value": "/a"}]},
        {"entries": [{"key": "PATH", "value": "/b"}], "hitsAddend": "5"},
        {"entries": [{"key": "PATH", "value": "/c"}], "limit": {"requestsPerUnit": 9, "unit": "YEAR"}},
        {"entries": [{"key": "PATH", "value": "/d"}], "limit": {"requests_per_unit": 9, "unit": 6}}]}"#;
    let answer = ask_json(&server, body).json();
    let statuses = answer["statuses"].as_array().unwrap();
    let remaining = statuses.iter().map(|one| &one["limitRemaining"]);
    assert_eq!(remaining.collect::<Vec<_>>(), [98, 95, 7, 7]);
}

#[test]
fn json_that_cannot_be_answered_is_a_bad_request() {
    let server = tollgate::with_rules(RULES).start();
    let long = format!(r#"{{"{}": 1}}"#, "a".repeat(10_000));
    let odd = r#"{"a\nb\u001b[31m\u202e": 1}"#;
    let shown = r"'a\nb\u{1b}[31m\u{202e}'";
    let no_unit = r#"{"domain": "d", "descriptors": [{"limit": {"requestsPerUnit": 1}}]}"#;
    for (body, reason) in [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "invalid type"),
        (r#"{"domain": "d"}"#, "descriptor"),
        (r#"{"domain": "", "descriptors": [{}]}"#, "domain"),
        (r#"{"descriptors": [{}], "unknown": 1}"#, "'unknown'"),
        (r#"{"descriptors": [{"entry": [{"key": "a"}]}]}"#, "'entry'"),
        (odd, shown),
        (&long, "aaa"),
        (no_unit, "unit"),
    ] {
        let reply = ask_json(&server, body);
        let said = &reply.body;
        assert_eq!(reply.status, 400, "{body}");
        assert!(said.starts_with("Bad Request: "), "{body}: {said}");
        assert!(said.contains(reason), "{body}: {said}");
        assert!(said.len() < 400 && said.lines().count() == 1, "{said}");
        assert_eq!(reply.content_type, "text/plain; charset=utf-8");
    }
    assert_eq!(json::send(server.http, "POST", "/json/", b"{}").status, 404);
}

#[test]
fn json_that_is_too_large_is_not_read() {
    let server = tollgate::with_rules(RULES).start();
    let before = server.resident_bytes();
    let reply = json::send(server.http, "POST", "/json", &vec![b' '; 30_000_000]);
    assert_eq!(reply.status, 413);
    assert!(server.resident_bytes() < before + 10_000_000);
    assert_eq!(http::get(server.http, "/healthcheck").body, "OK");
}

#[test]
fn the_page_of_weaknesses_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("tests/weaknesses.md")).unwrap();
    let lines = page.lines();
    let rows: Vec<_> = lines.filter(|line| line.starts_with("| W")).collect();
    let names = rows.iter().filter_map(|row| row.split(' ').nth(1));
    let names: BTreeSet<_> = names.map(str::to_owned).collect();
    let numbers = (1..=45).filter(|&number| number != 40);
    let all = numbers.map(|number| format!("W{number}"));
    assert_eq!(names, all.collect());
    for row in rows {
        let tests = row.split('`').filter_map(|text| text.split_once(": "));
        // `count: admitted` is a line of a rule file.
        let tests = tests.filter(|(place, _)| !place.contains(['|', ' ']) && *place != "count");
        for (place, name) in tests {
            let exists = match place {
                "golden" => cases().contains_key(name),
                _ => {
                    let file = match place.ends_with(".rs") {
                        true => place.to_owned(),
                        false => format!("tests/it/{place}.rs"),
                    };
                    let text = fs::read_to_string(root.join(file)).unwrap_or_default();
                    text.contains(&format!("fn {name}("))
                }
            };
            assert!(exists, "{place}: {name}");
        }
    }
}
