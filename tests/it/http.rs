//! Health, metrics and the rules in use, over HTTP.

use std::{
    collections::{BTreeMap, BTreeSet},
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

#[test]
fn the_health_check_says_ok() {
    let server = tollgate::with_rules(RULES).start();
    let reply = get(server.http, "/healthcheck");
    assert_eq!((reply.status, reply.body.as_str()), (200, "OK"));
}

const ONE_HIT: &[u8] =
    br#"{"domain": "d", "descriptors": [{"entries": [{"key": "two", "value": "v"}]}]}"#;

/// A page of another origin can make a browser send a form or plain text without asking for permission, and a link
/// makes it send GET. With each POST the browser says which page asks.
#[test]
fn no_browser_counts_for_a_page_of_another_origin() {
    let server = tollgate::with_rules(RULES).start();
    let pages = [
        "content-type: text/plain\r\norigin: http://other.example\r\n",
        "content-type: application/json\r\norigin: https://test.example\r\n",
        "origin: null\r\n",
        "origin: http://test:8081\r\n",
        "origin: ü\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
        "content-type: application/x-www-form-urlencoded\r\nsec-fetch-site: cross-site\r\n",
        "origin: http://test\r\nsec-fetch-site: cross-site\r\n",
    ];
    for headers in pages {
        let reply = json::send_with(server.http, "POST", "/json", headers, ONE_HIT);
        assert_eq!(reply.status, 403, "{headers}");
        assert_eq!(reply.body, "not for pages of other origins\n");
    }
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        let reply = json::send(server.http, method, "/json", ONE_HIT);
        assert_eq!(reply.status, 405, "{method}");
    }
    assert_eq!(server.metric("tollgate_decisions_total{code=\"ok\"}"), 0);
}

const UNLIMITED: &[u8] =
    br#"{"domain": "d", "descriptors": [{"entries": [{"key": "all", "value": "v"}]}]}"#;

/// `curl --data` sends `application/x-www-form-urlencoded`, as in the reference's documentation.
#[test]
fn json_is_taken_with_any_content_type() {
    let server = tollgate::with_rules(RULES).start();
    for headers in [
        "",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: text/plain\r\n",
        "content-type: ü\r\n",
        "content-type: Application/JSON ; charset=utf-8\r\n",
        "host: test\r\norigin: http://TEST\r\nsec-fetch-site: same-origin\r\n",
        "sec-fetch-site: none\r\n",
    ] {
        let reply = json::send_with(server.http, "POST", "/json", headers, UNLIMITED);
        assert_eq!(reply.status, 200, "{headers}");
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

/// More connections than an HTTP port has room for.
const CROWD: usize = 100;

/// The kubelet kills a process that does not answer a health probe within a second.
#[test]
fn a_crowd_does_not_shut_health_out() {
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
        text.split(' ')
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
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

#[test]
fn the_debug_port_lists_its_pages() {
    let server = tollgate::with_rules(RULES).start();
    let list = get(server.debug, "/").body;
    let pages: Vec<_> = list
        .lines()
        .map(|line| line.split_once(": ").expect("a page and what it is").0)
        .collect();
    let expected = [
        "/",
        "/page/{file}",
        "/snapshot",
        "/rules",
        "/settings",
        "/metrics",
        "/stats",
        "/rlconfig",
        "/explain",
        "/top",
        "POST /counters/get",
        "POST /counters/reset",
    ];
    assert_eq!(pages, expected);
    let read = |page: &&str| page.starts_with('/');
    for page in pages.into_iter().filter(read) {
        let path = page.replace("{file}", "main.js");
        let reply = get(server.debug, &path);
        assert_eq!(reply.status, 200, "{page}");
        assert_eq!(reply.body == list, page == "/", "{page}");
    }
}

/// A script would take the list of pages for success.
#[test]
fn an_unknown_path_of_the_debug_port_is_not_found() {
    let server = tollgate::with_rules(RULES).start();
    for path in [
        "/counters/reset/",
        "/counter/reset",
        "//counters/reset",
        "/nowhere",
    ] {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            let reply = json::send(server.debug, method, path, b"{}");
            let reply = (reply.status, reply.body.as_str());
            assert_eq!(reply, (404, "404 page not found\n"), "{method} {path}");
        }
    }
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
    let checked = http::send(
        server.http,
        &format!("GET /healthcheck HTTP/1.1\r\n{cluster}"),
    );
    assert_eq!(checked.status, 200);
}

#[test]
fn statistics_are_shown_one_a_line() {
    let server = tollgate::with_rules(RULES).start();
    let page = get(server.debug, "/stats").body;
    for line in page.lines() {
        let (name, value) = line.rsplit_once(": ").expect("a name and a value");
        assert!(!name.is_empty(), "{line}");
        let is_timer = name.ends_with(".response_time") && value.starts_with("count ");
        assert!(is_timer || value.parse::<u64>().is_ok(), "{line}");
    }
    assert!(page.contains("\nratelimit.service.config_load_success: 1\n"));
}

#[test]
fn the_rules_in_use_are_shown() {
    let server = tollgate::with_rules(
        "
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
",
    )
    .start();
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
    let page = metrics(&server);
    let check = |name: &str, labels: &[(&str, &str)], expected: f64| {
        assert_eq!(page.value(name, labels), expected, "{name} {labels:?}");
    };
    check("tollgate_decisions_total", &[("code", "ok")], 6.0);
    check("tollgate_decisions_total", &[("code", "over_limit")], 1.0);
    check("ratelimit_service_config_load_success", &[], 1.0);
    let call = [("grpc_method", "ShouldRateLimit")];
    check("ratelimit_service_total_requests", &call, 7.0);
    check("ratelimit_service_response_time_seconds_count", &call, 7.0);
    let two = [("domain", "d"), ("key1", "two")];
    check("ratelimit_service_rate_limit_total_hits", &two, 3.0);
    check("ratelimit_service_rate_limit_within_limit", &two, 2.0);
    check("ratelimit_service_rate_limit_over_limit", &two, 1.0);
    // A name stays one line, even with a line break in its value.
    let key = format!("odd_{odd}").replace('\n', "_");
    let odd = [("domain", "d"), ("key1", key.as_str())];
    check("ratelimit_service_rate_limit_over_limit", &odd, 2.0);
    check("ratelimit_service_rate_limit_shadow_mode", &odd, 2.0);
    // Two limits of one value, and one of the other.
    check("tollgate_memory_counters", &[], 3.0);
}

#[tokio::test]
async fn counters_leave_memory_when_their_windows_end() {
    let server = tollgate::with_rules(
        "
domain: d
descriptors:
  - key: short
    rate_limit: { unit: second, requests_per_unit: 1 }
  - key: long
    rate_limit: { unit: year, requests_per_unit: 1 }
",
    )
    .start();
    let held = || metrics(&server).value("tollgate_memory_counters", &[]);
    assert_eq!(held(), 0.0);
    let mut client = connect(server.grpc).await;
    is_ok(&ask(&mut client, "d", &[("long", "v")]).await);
    // Each counter may expire before it is counted.
    eventually("a short window is held", || {
        let mut client = client.clone();
        async move {
            is_ok(&ask(&mut client, "d", &[("short", "v")]).await);
            held() > 1.0
        }
    })
    .await;
    wait_until("only the long window is left", || held() == 1.0);
}

fn metrics(server: &Tollgate) -> Page {
    let reply = get(server.debug, "/metrics");
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.header("content-type"),
        Some("text/plain; version=0.0.4")
    );
    Page::read(&reply.body)
}

/// A page in Prometheus' text format 0.0.4, parsed more strictly than Prometheus does: every family has HELP and TYPE
/// and is in one piece, and no sample appears twice.
#[derive(Debug, Default)]
struct Page {
    samples: BTreeMap<(String, Labels), f64>,
}

type Labels = Vec<(String, String)>;

impl Page {
    #[track_caller]
    fn read(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line has no end");
        let mut page = Self::default();
        let mut families = BTreeSet::new();
        let mut suffixes: &[&str] = &[];
        let mut family = String::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(comment) = line.strip_prefix("# HELP ") {
                let (name, help) = comment.split_once(' ').expect("a name and a text");
                assert!(is_name(name) && !help.is_empty(), "{line}");
                assert!(families.insert(name.to_owned()), "{name} comes twice");
                name.clone_into(&mut family);
                let kind = lines.next().and_then(|line| {
                    line.strip_prefix("# TYPE ")?
                        .strip_prefix(name)?
                        .strip_prefix(' ')
                });
                suffixes = match kind {
                    Some("counter" | "gauge") => &[""],
                    Some("histogram") => &["_bucket", "_sum", "_count"],
                    other => panic!("{name} is a {other:?}"),
                };
                continue;
            }
            let (name, labels, value) = sample(line).unwrap_or_else(|| panic!("{line}"));
            let suffix = name.strip_prefix(&family).expect("not of its family");
            assert!(suffixes.contains(&suffix), "{line} of {family}");
            let is_new = page.samples.insert((name, labels), value).is_none();
            assert!(is_new, "comes twice: {line}");
        }
        page
    }

    /// The value of the sample with these labels, in this order.
    #[track_caller]
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let label = |&(label, text): &(&str, &str)| (label.to_owned(), text.to_owned());
        let wanted = (name.to_owned(), labels.iter().map(label).collect());
        let Some(value) = self.samples.get(&wanted) else {
            panic!("no {wanted:?} in {self:#?}");
        };
        *value
    }
}

/// `name{label="text",…} value`
fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let end_of_name = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end_of_name);
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, quoted) = rest.split_once("=\"")?;
            let (text, behind) = unquote(quoted)?;
            if !is_name(label) || label.contains(':') {
                return None;
            }
            labels.push((label.to_owned(), text));
            if let Some(behind) = behind.strip_prefix('}') {
                rest = behind;
                break;
            }
            rest = behind.strip_prefix(',')?;
        }
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    is_name(name).then_some((name.to_owned(), labels, value))
}

/// Reads a text up to its closing quote, and returns the rest too.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut rest = quoted.char_indices();
    while let Some((at, next)) = rest.next() {
        match next {
            '"' => return Some((text, &quoted[at + 1..])),
            '\\' => text.push(match rest.next()?.1 {
                'n' => '\n',
                same @ ('"' | '\\') => same,
                _ => return None,
            }),
            other => text.push(other),
        }
    }
    None
}

fn is_name(text: &str) -> bool {
    let is_inner = |next: char| next.is_ascii_alphanumeric() || next == '_' || next == ':';
    text.starts_with(|first: char| is_inner(first) && !first.is_ascii_digit())
        && text.chars().all(is_inner)
}
