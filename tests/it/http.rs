//! Health, metrics and the rules in use, over HTTP.

use std::{
    collections::HashSet,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
};

use crate::support::{
    PATIENCE,
    ask::{ask, connect, is_ok},
    eventually, free_port,
    hoard::who_does_not_read,
    http::{self, get},
    json,
    tollgate::{self, Tollgate},
    wait_until,
};

/// A value that would break a metrics page if it were written unescaped.
const RULES: &str = r#"
domain: d
descriptors:
  - key: two
    rate_limits: [2/y, 100/3y]
  - key: odd
    value: "a \"quoted\" \\ and\na new line, {or=\"two\"} # ü"
    rate_limit: { unit: hour, requests_per_unit: 1 }
    shadow_mode: true
  - key: all
    rate_limit: { unlimited: true }
"#;

const ONE_HIT: &[u8] =
    br#"{"domain": "d", "descriptors": [{"entries": [{"key": "two", "value": "v"}]}]}"#;

/// A page of another origin can make a browser send a form or plain text without asking for permission, and a link
/// makes it send GET. With each POST the browser says which page asks. Others may use any content type: `curl --data`
/// sends `application/x-www-form-urlencoded`, as in the reference's documentation.
#[test]
fn json_is_taken_with_any_content_type_but_not_from_a_page_of_another_origin() {
    let server = tollgate::with_rules(RULES).start();
    let post = |headers, body| json::send_with(server.http, "POST", "/json", headers, body);
    for headers in [
        "content-type: text/plain\r\norigin: http://other.example\r\n",
        "content-type: application/json\r\norigin: https://test.example\r\n",
        "origin: null\r\n",
        "origin: http://test:8081\r\n",
        "origin: ü\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
        "content-type: application/x-www-form-urlencoded\r\nsec-fetch-site: cross-site\r\n",
        "origin: http://test\r\nsec-fetch-site: cross-site\r\n",
    ] {
        let reply = post(headers, ONE_HIT);
        assert_eq!(reply.status, 403, "{headers}");
        assert_eq!(reply.body, "not for pages of other origins\n");
    }
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        let reply = json::send(server.http, method, "/json", ONE_HIT);
        assert_eq!(reply.status, 405, "{method}");
    }
    assert_eq!(server.metric("tollgate_decisions_total{code=\"ok\"}"), 0);
    let unlimited =
        br#"{"domain": "d", "descriptors": [{"entries": [{"key": "all", "value": "v"}]}]}"#;
    for headers in [
        "",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: text/plain\r\n",
        "content-type: ü\r\n",
        "content-type: Application/JSON ; charset=utf-8\r\n",
        "host: test\r\norigin: http://TEST\r\nsec-fetch-site: same-origin\r\n",
        "sec-fetch-site: none\r\n",
    ] {
        assert_eq!(post(headers, unlimited).status, 200, "{headers}");
    }
}

#[test]
fn json_can_be_turned_off() {
    let server = tollgate::with_rules(RULES)
        .env("TOLLGATE_HTTP_JSON", "false")
        .start();
    let reply = json::send(server.http, "POST", "/json", ONE_HIT);
    assert_eq!(reply.status, 404);
    assert_eq!(get(server.http, "/healthcheck").body, "OK");
}

/// The kubelet kills a process that does not answer a health probe within a second.
#[test]
fn a_crowd_does_not_shut_health_out() {
    // More than an HTTP port has room for.
    const CROWD: usize = 100;
    let server = tollgate::with_rules(RULES).start();
    let connect = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(server.http).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let body = b"POST /json HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    for bytes in [&b""[..], b"GET /healthcheck HTTP/1.1\r\n", body] {
        let crowd: Vec<_> = (0..CROWD).map(|_| connect(bytes)).collect();
        let reply = get(server.http, "/healthcheck");
        assert_eq!((reply.status, reply.body.as_str()), (200, "OK"));
        // Later ones are still open.
        let mut one = &crowd[CROWD - 2];
        one.set_nonblocking(true).unwrap();
        let error = one.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn a_reply_that_is_not_read_is_given_up() {
    let server = tollgate::with_rules(RULES).start();
    let mut slow = who_does_not_read(server.http);
    let mut idle = TcpStream::connect(server.http).unwrap();
    // Both have half a minute.
    idle.set_read_timeout(Some(2 * PATIENCE)).unwrap();
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "nothing came in its time");
    // Further writes fail once the server has closed the connection.
    wait_until(
        "the connection is closed",
        || matches!(slow.write(b"GET"), Err(error) if error.kind() != ErrorKind::WouldBlock),
    );
}

/// The dispatcher's share of the processor time that `work` costs the server.
fn share_of_the_main_thread(server: &Tollgate, work: impl Fn()) -> f64 {
    let tasks = format!("/proc/{}/task", server.process_id());
    let nanos = |task: &Path| -> u64 {
        // A thread that has ended meanwhile did none of the work.
        let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        let first = text.split(' ').next();
        first.and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let spent = || {
        let all = fs::read_dir(&tasks).unwrap();
        let all: u64 = all.map(|task| nanos(&task.unwrap().path())).sum();
        let main_thread = nanos(&Path::new(&tasks).join(server.process_id().to_string()));
        (main_thread, all)
    };
    // The working thread exists from then on.
    work();
    let (share_before, all_before) = spent();
    for _ in 0..5 {
        work();
    }
    let (main_thread, all) = spent();
    (main_thread - share_before) as f64 / (all - all_before) as f64
}

/// That thread also answers probes and accepts gRPC connections.
#[test]
fn json_and_pages_are_worked_off_beside_the_thread_that_accepts() {
    let rules = (0..2_000).fold(String::from(RULES), |rules, number| {
        rules + &format!("  - {{ key: k{number}, rate_limits: [1/day] }}\n")
    });
    let server = tollgate::with_rules(&rules).start();
    let entries = vec!["{}"; 10_000].join(",");
    let body = format!(r#"{{"domain": "d", "descriptors": [{{"entries": [{entries}]}}]}}"#);
    let read_json = || {
        let reply = json::send(server.http, "POST", "/json", body.as_bytes());
        assert_eq!(reply.status, 400);
    };
    let share = share_of_the_main_thread(&server, read_json);
    assert!(share < 0.5, "{share} of the work for JSON");
    for page in ["/metrics", "/stats", "/rlconfig"] {
        let read = || assert_eq!(get(server.debug, page).status, 200);
        let share = share_of_the_main_thread(&server, read);
        assert!(share < 0.5, "{share} of the work for {page}");
    }
}

/// A part is a few bytes of text and hundreds in memory.
#[test]
fn json_of_many_parts_is_not_read() {
    let server = tollgate::with_rules(RULES).start();
    let before = server.peak_bytes();
    let entries = vec!["{}"; 80_000].join(",");
    let body = format!(r#"{{"domain": "d", "descriptors": [{{"entries": [{entries}]}}]}}"#);
    let reply = json::send(server.http, "POST", "/json", body.as_bytes());
    assert_eq!(reply.status, 400);
    assert!(server.peak_bytes() < before + (16 << 20));
}

/// A script would take the list of pages for success.
#[test]
fn an_unknown_path_is_not_found() {
    let server = tollgate::with_rules(RULES).start();
    for path in ["/", "/healthcheck/", "/metrics", "/rlconfig", "/%ff"] {
        let reply = get(server.http, path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.body.starts_with("404 page not found\n"), "{path}");
        for named in ["/healthcheck", "/livez", "/json", "--debug-port"] {
            assert!(reply.body.contains(named), "{named}");
        }
    }
    let unknown = "/counters/reset/ /counter/reset //counters/reset /nowhere";
    for path in unknown.split(' ') {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            let reply = json::send(server.debug, method, path, b"{}");
            let reply = (reply.status, reply.body.as_str());
            assert_eq!(reply, (404, "404 page not found\n"), "{method} {path}");
        }
    }
}

/// Whether the process wants traffic is another question.
#[test]
fn a_process_without_rules_is_alive() {
    let server = tollgate::with_rules("")
        .env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
        .env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")
        .start();
    assert_eq!(get(server.http, "/healthcheck").status, 500);
    let alive = get(server.http, "/livez");
    assert_eq!((alive.status, alive.body.as_str()), (200, "OK"));
}

/// RFC 9112, 3.2.
#[test]
fn a_request_names_one_host() {
    let prometheus = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let server = tollgate::with_rules(RULES)
        .env("USE_PROMETHEUS", "true")
        .env("PROMETHEUS_ADDR", &prometheus.to_string())
        .start();
    let pages = [
        (server.http, "/healthcheck"),
        (server.debug, "/stats"),
        (prometheus, "/metrics"),
    ];
    let any = "host: localhost\r\n";
    // Envoy's health checks name the cluster.
    let cluster = "host: outbound|8080||tollgate\r\n";
    for (port, path) in pages {
        for (version, hosts, expected) in [
            ("1.1", "", 400),
            ("1.1", &*any.repeat(2), 400),
            ("1.1", any, 200),
            ("1.0", "", 200),
            ("1.0", any, 200),
            ("1.0", &*any.repeat(2), 400),
        ] {
            let reply = http::send(port, &format!("GET {path} HTTP/{version}\r\n{hosts}"));
            assert_eq!(reply.status, expected, "{path} HTTP/{version} {hosts}");
        }
    }
    let absolute = http::send(server.http, "GET http://test/healthcheck HTTP/1.1\r\n");
    assert_eq!(absolute.status, 400);
    let request = format!("GET /healthcheck HTTP/1.1\r\n{cluster}");
    assert_eq!(http::send(server.http, &request).status, 200);
}

#[test]
fn the_rules_in_use_are_shown() {
    const RULES: &str = "
domain: d
descriptors:
  - key: one
    value: x
    rate_limit: { unit: hour, requests_per_unit: 1 }
    shadow_mode: true
    descriptors:
      - key: two
        rate_limits: [2/s, 30/15m]
        quota_mode: true
  - key: all
    rate_limit: { unlimited: true }
";
    let server = tollgate::with_rules(RULES).start();
    let expected = "\
d.one_x: unit=HOUR requests_per_unit=1, shadow_mode: true, quota_mode: false
d.one_x.two: unit=SECOND requests_per_unit=2, shadow_mode: false, quota_mode: true
d.one_x.two: unit=MINUTE requests_per_unit=30, shadow_mode: false, quota_mode: true, unit_multiplier: 15
d.all: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false
";
    assert_eq!(get(server.debug, "/rlconfig").body, expected);
}

#[tokio::test]
async fn metrics_follow_the_decisions() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let odd = "a \"quoted\" \\ and\na new line, {or=\"two\"} # ü";
    for _ in 0..3 {
        is_ok(&ask(&mut client, "d", &[("two", "v")]).await);
        is_ok(&ask(&mut client, "d", &[("odd", odd)]).await);
    }
    is_ok(&ask(&mut client, "elsewhere", &[("two", "v")]).await);
    let decisions =
        |code: &str| server.metric(&format!("tollgate_decisions_total{{code=\"{code}\"}}"));
    assert_eq!((decisions("ok"), decisions("over_limit")), (6, 1));
    assert_eq!(server.metric("ratelimit_service_config_load_success"), 1);
    for name in ["total_requests", "response_time_seconds_count"] {
        let name = format!("ratelimit_service_{name}{{grpc_method=\"ShouldRateLimit\"}}");
        assert_eq!(server.metric(&name), 7);
    }
    // A name stays one line, even with a line break in its value.
    let odd = r#"odd_a \"quoted\" \\ and_a new line, {or=\"two\"} # ü"#;
    for (name, key, expected) in [
        ("total_hits", "two", 3),
        ("within_limit", "two", 2),
        ("over_limit", "two", 1),
        ("over_limit", odd, 2),
        ("shadow_mode", odd, 2),
    ] {
        let labels = format!("{{domain=\"d\",key1=\"{key}\"}}");
        let name = format!("ratelimit_service_rate_limit_{name}{labels}");
        assert_eq!(server.metric(&name), expected, "{name}");
    }
    // Two limits of one value, and one of the other.
    assert_eq!(server.metric("tollgate_memory_counters"), 3);
    let reply = get(server.debug, "/metrics");
    let content_type = reply.header("content-type");
    assert_eq!(content_type, Some("text/plain; version=0.0.4"));
    assert!(reply.body.ends_with('\n'));
    let mut names = HashSet::new();
    for line in reply.body.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        let name = match words[..] {
            ["#", what, family, _] => format!("{what} {family}"),
            _ => line.rsplit_once(' ').unwrap().0.to_owned(),
        };
        assert!(names.insert(name), "twice: {line}");
    }
    let count = |what| names.iter().filter(|name| name.starts_with(what)).count();
    assert_eq!(count("HELP "), count("TYPE "));
}

#[tokio::test]
async fn counters_leave_memory_when_their_windows_end() {
    let rules = "{domain: d, descriptors: [{key: short, rate_limits: [1/s]}, {key: long, rate_limits: [1/y]}]}";
    let server = tollgate::with_rules(rules).start();
    let held = || server.metric("tollgate_memory_counters");
    assert_eq!(held(), 0);
    let mut client = connect(server.grpc).await;
    is_ok(&ask(&mut client, "d", &[("long", "v")]).await);
    // Each counter may expire before it is counted.
    eventually("a short window is held", async || {
        is_ok(&ask(&mut client, "d", &[("short", "v")]).await);
        held() > 1
    })
    .await;
    wait_until("only the long window is left", || held() == 1);
}
