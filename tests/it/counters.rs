//! The hits of counters, shown and changed through the debug port: by `tollgate counters` and by its endpoints.

use std::{fs, path::PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    ask::*,
    cluster::Cluster,
    envoy::Envoy,
    eventually, finish,
    http::get_with,
    json,
    nginx::Nginx,
    redis::Redis,
    tollgate::{self, Builder, Tollgate, program},
};

/// A rule for each algorithm, windows of a year, and some that share a counter.
const RULES: &str = "
domain: d
descriptors:
  - { key: two, rate_limits: [{ name: yearly, unit: year, requests_per_unit: 2 }, 100/3y] }
  - { key: first, rate_limit: { unit: year, requests_per_unit: 9, window: first_hit } }
  - { key: sliding, rate_limit: { unit: year, requests_per_unit: 9, algorithm: sliding_window } }
  - { key: log, rate_limit: { unit: year, requests_per_unit: 9, algorithm: sliding_log } }
  - { key: bucket, rate_limit: { unit: year, requests_per_unit: 9, algorithm: token_bucket, burst: 5 } }
  - { key: day, rate_limit: { unit: year, requests_per_unit: 9, calendar: true, time_zone: UTC } }
  - { key: path, value: /api/*, share_threshold: true, rate_limits: [9/year] }
  - { key: fast, rate_limit: { unit: second, unit_multiplier: 2000000000, requests_per_unit: 9 } }
  - { key: free, rate_limit: { unlimited: true } }
";

/// All keys of [`RULES`] with one counter.
const KEYS: [&str; 5] = ["first", "sliding", "log", "bucket", "day"];

/// Runs `tollgate counters` for descriptors of domain `d`; returns its exit code, its output and its errors.
#[track_caller]
fn run(server: &Tollgate, args: &[&str], of: &[&str]) -> (Option<i32>, String, String) {
    let port = format!("http://{}", server.debug);
    let mut command = program();
    command
        .arg("counters")
        .args(args)
        .args(["--domain", "d", "--server", &port]);
    let output = finish(command.args(of.iter().flat_map(|descriptor| ["-d", descriptor])));
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), stdout, stderr)
}

async fn hit(server: &Tollgate, descriptors: &[(&str, &str)], times: u32) {
    let mut client = connect(server.grpc).await;
    for (key, value) in descriptors {
        for _ in 0..times {
            ask(&mut client, "d", &[(*key, *value)]).await.unwrap();
        }
    }
}

/// The output of `get` or `reset` about the one counter of a descriptor.
#[track_caller]
fn print(server: &Tollgate, act: &str, descriptor: &str) -> Value {
    let (code, text, errors) = run(server, &[act, "--json"], &[descriptor]);
    assert_eq!(code, Some(0), "{errors}");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all["descriptors"][0]["counters"][0].clone()
}

#[track_caller]
fn counter(server: &Tollgate, descriptor: &str) -> Value {
    print(server, "get", descriptor)
}

#[track_caller]
fn reset(server: &Tollgate, descriptor: &str) -> [Value; 2] {
    let reset = print(server, "reset", descriptor);
    [reset["hitsBefore"].clone(), reset["hits"].clone()]
}

/// Hits the counter of each algorithm.
async fn hit_all(server: &Tollgate, times: u32) {
    hit(server, &KEYS.map(|key| (key, "v")), times).await;
}

#[tokio::test]
async fn the_hits_of_every_algorithm_are_shown_and_looking_makes_none() {
    let server = tollgate::with_rules(RULES).start();
    hit_all(&server, 3).await;
    for _ in 0..2 {
        for key in KEYS {
            let found = counter(&server, &format!("{key}=v"));
            let left = if key == "bucket" { 2 } else { 6 };
            assert_eq!(found["hits"], 3, "{key}");
            assert_eq!(found["remaining"], left, "{key}");
            assert!(found["resetSecs"].as_u64() > Some(0), "{key}");
            assert_eq!(found["rule"], format!("d.{key}"));
        }
        // Values that were never hit, and descriptors without a limit.
        assert_eq!(counter(&server, "log=w")["hits"], 0);
        assert_eq!(counter(&server, "free=v"), Value::Null);
    }
    assert_eq!(server.metric("tollgate_memory_counters"), KEYS.len() as u64);
}

#[tokio::test]
async fn text_for_people_has_a_line_for_each_limit_and_the_reason_where_there_is_none() {
    let server = tollgate::with_rules(RULES).start();
    hit(&server, &[("two", "v")], 3).await;
    let (code, text, _) = run(&server, &["get"], &["two=v", "free=v", "nope=v"]);
    assert_eq!(code, Some(0));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "two=v");
    for (line, begin) in [
        (1, "  3 of 2 per year (yearly), 0 left, resets in "),
        (2, "  3 of 100 per 3 years, 97 left, resets in "),
        (3, "free=v: no counter: "),
    ] {
        assert!(lines[line].starts_with(begin), "{text}");
    }
    assert!(lines[1].ends_with("; fixed_window, rule d.two"), "{text}");
    assert!(lines[4].contains("`nope` is no key here"), "{text}");
}

#[tokio::test]
async fn a_reset_frees_a_client_of_every_algorithm_and_is_logged_with_the_caller() {
    let server = tollgate::with_rules(RULES).start();
    hit_all(&server, 12).await;
    hit(&server, &[("two", "v\n\"x\"")], 12).await;
    let mut client = connect(server.grpc).await;
    for (key, before, left) in [
        ("first", 12, 9),
        ("sliding", 9, 9),
        ("log", 9, 9),
        ("bucket", 5, 5),
        ("day", 12, 9),
    ] {
        let descriptor = format!("{key}=v");
        assert_eq!(reset(&server, &descriptor), [before, 0], "{key}");
        assert_eq!(counter(&server, &descriptor)["remaining"], left, "{key}");
        assert!(passes(&mut client, "d", &[(key, "v")]).await, "{key}");
    }
    let descriptors = ["two=v\n\"x\"", "free=v", "day=v\\,user=root"];
    let (code, text, errors) = run(&server, &["reset"], &descriptors);
    assert_eq!(code, Some(0), "{errors}");
    for expected in [
        "\n  12 -> 0 of 2 per year (yearly), 2 left, ",
        "\n  12 -> 0 of 100 per 3 years, 100 left, ",
        "free=v: no counter: ",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let log = server.log().with("2/year 12 -> 0, 100/3years 12 -> 0");
    let line = log.lines().find(|line| line.contains("2/year 12 -> 0"));
    let line: Value = serde_json::from_str(line.unwrap()).unwrap();
    assert_eq!(line["@message"], "counters were reset");
    assert_eq!(line["descriptor"], r#"two="v\n\"x\"""#);
    let one_entry = serde_json::to_string(r#"day="v,user=root""#).unwrap();
    server.log().with(&format!(r#""descriptor":{one_entry}"#));
    let by = line["by"].as_str().unwrap();
    assert!(by.ends_with(" (loopback)"), "{line}");
}

#[tokio::test]
async fn a_look_makes_no_key_in_redis_and_a_redis_that_is_gone_is_an_error() {
    let redis = Redis::start();
    let server = tollgate::with_rules(RULES).redis(&redis).start();
    hit_all(&server, 3).await;
    for key in KEYS {
        assert_eq!(counter(&server, &format!("{key}=w"))["hits"], 0, "{key}");
    }
    assert_eq!(redis.keys().len(), KEYS.len());
    drop(redis);
    let (code, _, errors) = run(&server, &["get"], &["log=v"]);
    assert!(code == Some(1) && errors.contains("503"), "{errors}");
}

/// It knows for a second that the counter is over, and of hits that it refused without asking Redis.
#[tokio::test]
async fn a_reset_through_one_replica_frees_a_client_of_the_others() {
    let redis = Redis::start();
    let replicas = [(); 2].map(|()| {
        let replica = tollgate::with_rules(RULES).redis(&redis);
        replica.args(["--workers", "1"]).start()
    });
    for replica in &replicas {
        hit(replica, &[("day", "v")], 30).await;
    }
    reset(&replicas[0], "day=v");
    let mut client = connect(replicas[1].grpc).await;
    let is_free = async || passes(&mut client, "d", &[("day", "v")]).await;
    eventually("the other replica lets the client pass", is_free).await;
    assert_eq!(counter(&replicas[0], "day=v")["hits"], 1);
    let passed = passing(&mut client, "d", &[("day", "v")], 20).await;
    assert_eq!(passed, 8);
}

/// After any hits and resets, all that shows a counter shows as many hits as then pass.
#[tokio::test]
async fn as_many_hits_pass_as_are_shown() {
    const MORE_RULES: &str = "
  - { key: none, rate_limits: [0/year] }
  - { key: tried, shadow_mode: true, rate_limits: [9/year] }
";
    // Hits, and resets between them.
    const HISTORIES: [&[u32]; 4] = [&[3], &[3, 0], &[12], &[12, 2]];
    let (redis, per_second, cluster) = (Redis::start(), Redis::start(), Cluster::start(0));
    let start = || tollgate::with_rules(&format!("{RULES}{MORE_RULES}"));
    let in_two = start().redis(&redis).args(["--key-prefix", "a*[b]\\"]);
    let in_two = with_seconds(in_two, &per_second);
    let in_cluster = start().redis_at(&cluster.url(), "10s");
    for server in [start(), in_two, in_cluster].map(Builder::start) {
        eventually("calls are answered", async || {
            let look = request("d", vec![descriptor(&[("none", "v")])]);
            send(&mut connect(server.grpc).await, look).await.is_ok()
        })
        .await;
        for (nth, history) in HISTORIES.iter().enumerate() {
            let value = format!("history{nth}");
            for key in [&KEYS[..], &["fast", "none", "tried"]].concat() {
                let descriptor = format!("{key}={value}");
                for (nth, hits) in history.iter().enumerate() {
                    if nth > 0 {
                        reset(&server, &descriptor);
                    }
                    hit(&server, &[(key, &value)], *hits).await;
                }
                let own = counter(&server, &descriptor);
                let shown = &own["remaining"];
                let path = format!("/explain?domain=d&descriptor={descriptor}");
                let explained: Value = serde_json::from_str(&server.page(&path)).unwrap();
                let limit = &explained["descriptors"][0]["limits"][0];
                assert_eq!(limit["remaining"], *shown, "{key} {history:?}");
                assert_eq!(limit["over"], *shown == 0, "{key} {history:?}");
                let passed = within(&server, key, &value).await;
                assert_eq!(*shown, passed, "{key} {history:?}");
            }
        }
    }
    // The limit of many seconds, of each value.
    assert_eq!(per_second.keys().len(), HISTORIES.len());
}

/// How many of 20 requests are within the limits, whether a rule in shadow mode lets the others pass or not.
async fn within(server: &Tollgate, key: &str, value: &str) -> u64 {
    let name = format!("ratelimit.service.rate_limit.d.{key}.over_limit");
    let over = || stat(server, &name).unwrap_or(0);
    let before = over();
    hit(server, &[(key, value)], 20).await;
    20 - (over() - before)
}

const RESET: &[u8] = br#"{"domain":"d","descriptors":[{"entries":[{"key":"log","value":"v"}]}]}"#;

/// The status of a call to reset a counter with these headers, each ending with a line break.
#[track_caller]
fn status_of_reset(server: &Tollgate, headers: &str) -> u16 {
    let headers = format!("content-type: application/json\r\n{headers}");
    json::send_with(server.debug, "POST", "/counters/reset", &headers, RESET).status
}

fn token() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "sesame\n").unwrap();
    (folder, file)
}

#[tokio::test]
async fn with_a_token_file_every_change_needs_the_token() {
    let (_folder, file) = token();
    let args = ["--admin-token-file", file.to_str().unwrap()];
    let server = tollgate::with_rules(RULES).args(args).start();
    hit(&server, &[("log", "v")], 1).await;
    assert_eq!(status_of_reset(&server, ""), 403);
    for token in ["", "sesam", "sesamee", "Sesame"] {
        let header = format!("authorization: Bearer {token}\r\n");
        assert_eq!(status_of_reset(&server, &header), 403, "{token}");
    }
    assert_eq!(counter(&server, "log=v")["hits"], 1);
    let form = "content-type: text/plain\r\nauthorization: Bearer sesame\r\n";
    let reply = json::send_with(server.debug, "POST", "/counters/reset", form, RESET);
    assert_eq!(reply.status, 415);
    let good = "authorization: bearer sesame\r\n";
    assert_eq!(status_of_reset(&server, good), 200);
    assert_eq!(counter(&server, "log=v")["hits"], 0);
    server.log().with(" (token)");
    // The file is read each time, and nothing in it is no token.
    for (text, token, status) in [("new", "sesame", 403), ("new", "new", 200), ("", "", 403)] {
        fs::write(&file, text).unwrap();
        let header = format!("authorization: Bearer {token}\r\n");
        assert_eq!(status_of_reset(&server, &header), status, "{text}");
    }
    let log = server.log().text();
    assert!(!log.contains("sesam"), "{log}");
    // Looking needs none.
    let reply = json::send(server.debug, "POST", "/counters/get", RESET);
    assert_eq!(reply.status, 200);
    // A file that is missing is an error at the start.
    fs::remove_file(&file).unwrap();
    let (_, missing) = tollgate::with_rules(RULES).args(args).fail();
    let expected = format!("cannot be read from {}", args[1]);
    assert!(missing.contains(&expected), "{missing}");
}

#[test]
fn changes_can_be_open_to_this_machine_beside_the_token_or_to_no_caller() {
    let (_folder, file) = token();
    for (who, alone, with_token) in [("loopback", 200, 200), ("off", 403, 403)] {
        let server = tollgate::with_rules(RULES)
            .args(["--admin-changes", who])
            .args(["--admin-token-file", file.to_str().unwrap()])
            .start();
        let through_proxy = "x-forwarded-for: 192.0.2.1\r\nauthorization: Bearer sesame\r\n";
        let statuses = ["", through_proxy].map(|headers| status_of_reset(&server, headers));
        assert_eq!(statuses, [alone, with_token], "{who}");
    }
}

/// Whatever a far client says of itself, a proxy on this machine does not make it a caller on this machine.
#[tokio::test]
async fn no_far_client_changes_a_counter_through_an_ordinary_proxy() {
    let server = tollgate::with_rules(RULES).start();
    hit(&server, &[("log", "v")], 1).await;
    let envoy = Envoy::before(server.debug.port());
    // As most examples have it.
    let usual = "proxy_set_header Host $host; proxy_set_header X-Forwarded-For $remote_addr;";
    let nginx = Nginx::before(server.debug.port(), usual);
    for proxy in [envoy.listener("all"), nginx.address] {
        for host in ["localhost", "127.0.0.1", "[::1]:6070", "evil.example"] {
            let headers = format!("content-type: application/json\r\nhost: {host}\r\n");
            let reply = json::send_with(proxy, "POST", "/counters/reset", &headers, RESET);
            assert_eq!(reply.status, 403, "{host}: {reply:?}");
        }
    }
    assert_eq!(counter(&server, "log=v")["hits"], 1);
    assert_eq!(status_of_reset(&server, ""), 200);
}

/// docs/run/ports.md says that such a proxy is trusted.
#[test]
fn a_proxy_on_this_machine_that_adds_nothing_is_not_seen_unless_there_is_a_token() {
    let (_folder, file) = token();
    for (args, status) in [
        (&[][..], 200),
        (&["--admin-token-file", file.to_str().unwrap()], 403),
        (&["--admin-changes", "off"], 403),
    ] {
        let server = tollgate::with_rules(RULES).args(args.iter().copied());
        let server = server.start();
        let nginx = Nginx::before(server.debug.port(), "");
        let headers = "content-type: application/json\r\n";
        let reply = json::send_with(nginx.address, "POST", "/counters/reset", headers, RESET);
        assert_eq!(reply.status, status, "{args:?}");
    }
}

/// A web page may have a name that leads to this machine.
#[test]
fn the_debug_port_is_read_over_loopback_by_its_own_names_only() {
    let server = tollgate::with_rules(RULES).start();
    let pages = "/ /rules /settings /stats /rlconfig /top /snapshot";
    let status =
        |path: &str, host: &str| get_with(server.debug, path, &[("host", host.as_bytes())]).status;
    let foreign = [
        "rebind.evil.example",
        "localhost.evil.example",
        "192.0.2.1",
        "",
    ];
    for host in foreign {
        for path in pages.split(' ') {
            assert_eq!(status(path, host), 403, "{host} {path}");
        }
        assert_eq!(status("/metrics", host), 200, "{host}");
        let headers = format!("content-type: application/json\r\nhost: {host}\r\n");
        for path in ["/explain", "/counters/get"] {
            let reply = json::send_with(server.debug, "POST", path, &headers, RESET);
            assert_eq!(reply.status, 403, "{host} {path}");
        }
    }
    for host in ["localhost", "127.0.0.1:1", "[::1]", "LocalHost:6070"] {
        for path in pages.split(' ') {
            assert_eq!(status(path, host), 200, "{host} {path}");
        }
    }
}

#[test]
fn nonsense_is_refused_with_the_reason() {
    let server = tollgate::with_rules(RULES).start();
    let many = vec![r#"{"entries":[{"key":"log","value":"v"}]}"#; 17].join(",");
    let many = format!(r#"{{"domain":"d","descriptors":[{many}]}}"#);
    for (body, reason) in [
        ("{", "the body is not a RateLimitRequest"),
        ("{}", "rate limit domain must not be empty"),
        (&many, "more than 16 descriptors"),
    ] {
        let reply = json::send(server.debug, "POST", "/counters/get", body.as_bytes());
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.body.contains(reason), "{}", reply.body);
    }
}
