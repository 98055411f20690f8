//! As a replacement of envoyproxy/ratelimit: started as platforms start it, and next to it on one Redis.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::SocketAddr,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    time::Duration,
};

use ::tollgate::now;

use crate::golden::cases;
use crate::support::{
    PATIENCE,
    ask::{Client, ask, connect, descriptor, is_ok, request, send},
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

/// Calls under these rules without TLS.
async fn expect_answers(server: &Ratelimit) {
    expect_answers_to(&mut connect(server.grpc).await).await;
}

/// Calls under these rules: the first is admitted, the second refused, and other values still pass.
async fn expect_answers_to(client: &mut Client) {
    for (path, expected) in [("/", true), ("/", false), ("/other", true)] {
        let reply = ask(client, "echo-ratelimit", &[("PATH", path)]).await;
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
async fn istio_s_sample_comes_up_answers_and_reloads() {
    let redis = Redis::start();
    let mut server = ratelimit::with_env(ISTIO)
        .rules(RULES)
        .redis(&redis)
        .start();
    expect_answers(&server).await;
    expect_reload(&mut server, &redis).await;
    // `::` means every address, including those of IPv6.
    let v6 = format!("[::1]:{}", server.http.port()).parse().unwrap();
    assert_eq!(http::get(v6, "/healthcheck").body, "OK");
    let v6 = format!("[::1]:{}", server.grpc.port()).parse().unwrap();
    let mut client = connect(v6).await;
    assert!(is_ok(
        &ask(&mut client, "echo-ratelimit", &[("PATH", "/v6")]).await
    ));
}

#[tokio::test]
async fn contour_s_example_comes_up_answers_and_reloads() {
    let redis = Redis::start();
    let mut server = ratelimit::with_env(CONTOUR)
        .rules(RULES)
        .redis(&redis)
        .start();
    expect_answers(&server).await;
    expect_reload(&mut server, &redis).await;
}

#[tokio::test]
async fn a_compose_file_s_server_comes_up_although_its_statsd_is_away() {
    let redis = Redis::start();
    let server = ratelimit::with_env(COMPOSE)
        .rules(RULES)
        .redis(&redis)
        .start();
    expect_answers(&server).await;
    let log = server.log().clone();
    wait_until("the missing collector is said", || {
        log.text().contains("statsd collector not reached")
    });
}

#[test]
fn memcached_is_refused_by_name() {
    let (status, text) = ratelimit::with_env(ISTIO)
        .rules(RULES)
        .env("BACKEND_TYPE", "memcache")
        .env("MEMCACHE_HOST_PORT", "memcached:11211")
        .fail();
    assert_eq!(status.code(), Some(2));
    assert!(text.contains("there is no memcached store"), "{text}");
}

#[test]
fn a_missing_folder_of_rules_ends_the_start() {
    let (status, text) = ratelimit::with_env(ISTIO)
        .env("RUNTIME_ROOT", "/not/there")
        .fail();
    assert_eq!(status.code(), Some(1));
    assert!(text.contains("/not/there/ratelimit/config"), "{text}");
}

#[tokio::test]
async fn variables_without_effect_are_told_in_one_line_each() {
    const WITHOUT_EFFECT: [(&str, &str); 6] = [
        ("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "true"),
        ("REDIS_POOL_SIZE", "20"),
        ("REDIS_PIPELINE_WINDOW", "150us"),
        ("REDIS_PIPELINE_LIMIT", "8"),
        ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT"),
        ("MEMCACHE_MAX_IDLE_CONNS", "2"),
    ];
    let redis = Redis::start();
    let mut builder = ratelimit::with_env(CONTOUR).rules(RULES).redis(&redis);
    for (name, value) in WITHOUT_EFFECT {
        builder = builder.env(name, value);
    }
    let server = builder.start();
    let log = server.log().text();
    for (name, _) in WITHOUT_EFFECT {
        let reported = log.matches(&format!("{name} has no effect: ")).count();
        assert_eq!(reported, 1, "{name} in {log}");
    }
    let reported = log.matches(" has no effect: ").count();
    assert_eq!(reported, WITHOUT_EFFECT.len(), "{log}");
    expect_answers(&server).await;
}

#[tokio::test]
async fn the_log_can_have_the_reference_s_json_shape() {
    let redis = Redis::start();
    let server = ratelimit::with_env(ISTIO)
        .env("LOG_FORMAT", "json")
        .rules(RULES)
        .redis(&redis)
        .start();
    let log = server.log().text();
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        for field in ["@timestamp", "@message", "level"] {
            assert!(line[field].is_string(), "{line}");
        }
    }
    assert!(!log.is_empty());
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
    let counters = [
        ("user_alice", DAY, vec![("user", "alice")]),
        (
            "plan_free_path_/a",
            7 * DAY,
            vec![("plan", "free"), ("path", "/a")],
        ),
        ("file_files/*", 30 * DAY, vec![("file", "files/1.pdf")]),
        ("all_", 365 * DAY, vec![("all", "")]),
    ];
    // The counts of the old replicas.
    for (entries, period, _) in &counters {
        let key = reference_key(entries, *period);
        redis.cli(&["INCRBY", &key, "7"]);
        redis.cli(&["EXPIRE", &key, &period.to_string()]);
    }
    let server = ratelimit::with_env(ISTIO)
        .env("TOLLGATE_KEY_FORMAT", "reference")
        .rules(SHARED)
        .redis(&redis)
        .start();
    let mut client = connect(server.grpc).await;
    let descriptors: Vec<_> = counters
        .iter()
        .map(|(_, _, entries)| descriptor(entries))
        .collect();
    let remaining =
        |reply: &::tollgate::proto::envoy::service::ratelimit::v3::RateLimitResponse| {
            let statuses = reply.statuses.iter();
            statuses
                .map(|status| status.limit_remaining)
                .collect::<Vec<_>>()
        };
    let reply = send(&mut client, request("shop", descriptors.clone())).await;
    assert_eq!(remaining(&reply.unwrap()), [2; 4]);
    // Both count during the swap.
    for (entries, period, _) in &counters {
        redis.cli(&["INCRBY", &reference_key(entries, *period), "1"]);
    }
    let reply = send(&mut client, request("shop", descriptors.clone())).await;
    assert_eq!(remaining(&reply.unwrap()), [0; 4]);
    let reply = send(&mut client, request("shop", descriptors)).await;
    assert!(!is_ok(&reply));
    // And the old replicas see the hits of the new ones.
    for (entries, period, _) in &counters {
        assert_eq!(
            redis.cli(&["GET", &reference_key(entries, *period)]),
            "11\n"
        );
    }
    assert_eq!(redis.cli(&["DBSIZE"]).trim(), counters.len().to_string());
}

/// Six requests over a limit of ten, of which the cache refuses five: the reference counts the first of them only.
#[tokio::test]
async fn refusals_by_the_local_cache_leave_the_counter_at_one_above_its_limit() {
    away_from_midnight().await;
    let redis = Redis::start();
    let server = ratelimit::with_env(ISTIO)
        .env("TOLLGATE_KEY_FORMAT", "reference")
        .env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")
        .env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")
        .rules(SHARED)
        .redis(&redis)
        .start();
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
        assert!(!is_ok(
            &ask(&mut client, "shop", &[("user", "carol")]).await
        ));
        held() > 11
    })
    .await;
    assert_eq!(held(), 12);
}

#[tokio::test]
async fn with_the_reference_s_keys_there_are_no_others() {
    away_from_midnight().await;
    let redis = Redis::start();
    let server = ratelimit::with_env(ISTIO)
        .env("TOLLGATE_KEY_FORMAT", "reference")
        .env("CACHE_KEY_PREFIX", "rl:")
        .env("EXPIRATION_JITTER_MAX_SECONDS", "0")
        .rules(SHARED)
        .redis(&redis)
        .start();
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
    let written: BTreeSet<_> = redis
        .cli(&["KEYS", "*"])
        .lines()
        .map(str::to_owned)
        .collect();
    let expected = [
        ("user_bob", DAY),
        ("plan_free_path_/b", 7 * DAY),
        ("file_files/*", 30 * DAY),
        ("all_v", 365 * DAY),
    ];
    let expected: BTreeSet<_> = expected
        .map(|(entries, period)| format!("rl:{}", reference_key(entries, period)))
        .into();
    assert_eq!(written, expected);
    let key = format!("rl:{}", reference_key("user_bob", DAY));
    let left: u64 = redis.cli(&["TTL", &key]).trim().parse().unwrap();
    assert!(left >= DAY - now().secs() % DAY && left <= DAY, "{left}");
}

#[tokio::test]
async fn keys_live_longer_by_the_reference_s_jitter_unless_told_otherwise() {
    away_from_midnight().await;
    let redis = Redis::start();
    let server = ratelimit::with_env(ISTIO)
        .rules(SHARED)
        .redis(&redis)
        .start();
    let mut client = connect(server.grpc).await;
    for user in 0..20 {
        ask(&mut client, "shop", &[("user", &user.to_string())])
            .await
            .unwrap();
    }
    let to_midnight = DAY - now().secs() % DAY;
    let longer: Vec<u64> = redis
        .cli(&["KEYS", "*"])
        .lines()
        .map(|key| redis.cli(&["TTL", key]).trim().parse::<u64>().unwrap())
        .map(|left| left.saturating_sub(to_midnight))
        .collect();
    assert_eq!(longer.len(), 20);
    assert!(longer.iter().all(|&longer| longer <= 301), "{longer:?}");
    let different: BTreeSet<_> = longer.iter().collect();
    assert!(different.len() > 5, "{longer:?}");
}

#[tokio::test]
async fn an_empty_host_is_every_address_but_for_the_debug_port() {
    let redis = Redis::start();
    let server = ratelimit::with_env(CONTOUR)
        .env("HOST", "")
        .env("GRPC_HOST", "")
        .env("DEBUG_HOST", "")
        .rules(RULES)
        .redis(&redis)
        .start();
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
    let server = ratelimit::with_env(ISTIO)
        .rules(RULES)
        .redis(&redis)
        .start();
    let mut client = connect(server.grpc).await;
    let reply = ask(&mut client, "echo-ratelimit", &[("PATH", "/")]).await;
    let error = reply.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable);
    // Errors reveal neither the address of Redis nor its keys.
    for secret in ["127.0.0.1", "PATH", "echo-ratelimit"] {
        assert!(!error.message().contains(secret), "{error:?}");
    }
    redis.restart();
    eventually("Redis is found", || {
        let mut client = client.clone();
        async move {
            ask(&mut client, "echo-ratelimit", &[("PATH", "/x")])
                .await
                .is_ok()
        }
    })
    .await;
}

#[tokio::test]
async fn dot_files_of_the_kubelet_are_left_out_unasked() {
    let redis = Redis::start();
    let mut server = ratelimit::with_env(ISTIO)
        .env("RUNTIME_IGNOREDOTFILES", "false")
        .rules(RULES)
        .redis(&redis)
        .start();
    expect_answers(&server).await;
    expect_reload(&mut server, &redis).await;
}

#[tokio::test]
async fn without_a_subdirectory_rules_are_found_in_the_root() {
    let redis = Redis::start();
    let server = ratelimit::with_env(&[
        ("USE_STATSD", "false"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("RUNTIME_ROOT", "$ROOT/data/ratelimit"),
    ])
    .rules(RULES)
    .redis(&redis)
    .start();
    expect_answers(&server).await;
}

/// Where the reference reads rules, whatever slashes are around the parts of the folder.
#[tokio::test]
async fn slashes_around_the_parts_of_the_folder_add_nothing() {
    let redis = Redis::start();
    for (root, subdirectory, app_directory) in [
        ("$ROOT/data/ratelimit", "/", "config"),
        ("$ROOT/data", "/ratelimit", "/config"),
        ("$ROOT/data/", "ratelimit/", "config/"),
    ] {
        let server = ratelimit::with_env(&[
            ("USE_STATSD", "false"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("RUNTIME_ROOT", root),
            ("RUNTIME_SUBDIRECTORY", subdirectory),
            ("RUNTIME_APPDIRECTORY", app_directory),
            ("RUNTIME_WATCH_ROOT", "false"),
        ])
        .rules(RULES)
        .redis(&redis)
        .start();
        expect_answers(&server).await;
        redis.cli(&["FLUSHALL"]);
    }
}

#[test]
fn where_no_rules_are_found_the_start_ends_instead_of_letting_all_pass() {
    let (status, text) = ratelimit::with_env(ISTIO)
        .env("RUNTIME_WATCH_ROOT", "true")
        .env("RUNTIME_APPDIRECTORY", "elsewhere")
        .rules(RULES)
        .fail();
    assert_eq!(status.code(), Some(1));
    assert!(text.contains("no rule files found"), "{text}");
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
    let _server = ratelimit::with_env(ISTIO)
        .env("GRPC_UDS", path.to_str().unwrap())
        .rules(RULES)
        .redis(&redis)
        .start();
    assert!(UnixStream::connect(&path).is_ok());
}

/// As in the reference, except that the reference does not log it.
#[test]
fn a_socket_has_no_tls() {
    let redis = Redis::start();
    let pair = Authority::new("ours").issue("*.limits.example");
    let secret = Secret::mount(&[("tls.crt", &pair.certificate), ("tls.key", &pair.key)]);
    let path = secret.path("grpc.sock");
    let _server = ratelimit::with_env(ISTIO)
        .env("GRPC_UDS", path.to_str().unwrap())
        .env("GRPC_SERVER_USE_TLS", "true")
        .env("GRPC_SERVER_TLS_CERT", &secret.at("tls.crt"))
        .env("GRPC_SERVER_TLS_KEY", &secret.at("tls.key"))
        .rules(RULES)
        .redis(&redis)
        .start();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // HTTP/2 without TLS: the preface and empty SETTINGS, which the server answers with its own.
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
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
    assert!(
        reset.strip_suffix('s').unwrap().parse::<u64>().is_ok(),
        "{reset}"
    );
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
    let remaining: Vec<_> = statuses
        .iter()
        .map(|status| status["limitRemaining"].as_u64().unwrap())
        .collect();
    assert_eq!(remaining, [98, 95, 7, 7]);
}

#[test]
fn json_that_cannot_be_answered_is_a_bad_request() {
    let server = tollgate::with_rules(RULES).start();
    let long = format!(r#"{{"{}": 1}}"#, "a".repeat(10_000));
    for (body, reason) in [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "invalid type"),
        (r#"{"domain": "echo-ratelimit"}"#, "descriptor"),
        (r#"{"domain": "", "descriptors": [{}]}"#, "domain"),
        (
            r#"{"domain": "echo-ratelimit", "descriptors": [{}], "unknown": 1}"#,
            "'unknown'",
        ),
        (r#"{"descriptors": [{"entry": [{"key": "a"}]}]}"#, "'entry'"),
        (
            r#"{"a\nb\u001b[31m\u202e": 1}"#,
            r"'a\nb\u{1b}[31m\u{202e}'",
        ),
        (&long, "aaa"),
        (
            r#"{"domain": "echo-ratelimit", "descriptors": [{"limit": {"requestsPerUnit": 1}}]}"#,
            "unit",
        ),
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

/// The page on improvements names tests: all of them exist, and no weakness is left out.
#[test]
fn the_page_of_weaknesses_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("tests/weaknesses.md")).unwrap();
    let rows: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("| W"))
        .collect();
    let names: BTreeSet<_> = rows
        .iter()
        .filter_map(|row| row.split(' ').nth(1))
        .collect();
    let all: BTreeSet<_> = (1..=45).filter(|&number| number != 40).collect();
    let all: Vec<_> = all.iter().map(|number| format!("W{number}")).collect();
    assert_eq!(names, all.iter().map(String::as_str).collect());
    for row in rows {
        let tests = row.split('`').filter_map(|text| text.split_once(": "));
        // `count: admitted` is a line of a rule file.
        let tests = tests.filter(|(place, _)| !place.contains(['|', ' ']) && *place != "count");
        for (place, name) in tests {
            let exists = match place {
                "golden" => cases().contains_key(name),
                _ => {
                    let file = match place.strip_suffix(".rs") {
                        Some(_) => root.join(place),
                        None => root.join(format!("tests/it/{place}.rs")),
                    };
                    let text = fs::read_to_string(file).unwrap_or_default();
                    text.contains(&format!("fn {name}("))
                }
            };
            assert!(exists, "{place}: {name}");
        }
    }
}
