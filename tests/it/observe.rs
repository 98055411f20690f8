//! The debug port: the history of decisions, top talkers, events of each second, the tree of rules, and settings.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    sync::Arc,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{
    PATIENCE,
    ask::{Client, ask, connect, descriptor, request, send},
    http,
    redis::Redis,
    tollgate::{self, Tollgate},
    wait_until,
    wall_clock::WallClock,
};

const RULES: &str = "
domain: d
descriptors:
  - key: few
    rate_limits: [{ unit: year, requests_per_unit: 2, name: a\"b }, 9/5years]
  - key: many
    rate_limits: [1000/year]
  - key: unused
    rate_limits: [1/year]
  - key: shadow
    shadow_mode: true
    rate_limits: [1/year]
";

/// A page of JSON.
#[track_caller]
fn json(server: &Tollgate, path: &str) -> Value {
    let reply = http::get(server.debug, path);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    serde_json::from_str(&reply.body).unwrap_or_else(|error| panic!("{error}: {}", reply.body))
}

/// The sum of a column, which has a number for each step.
#[track_caller]
fn sum(history: &Value, column: &Value) -> u64 {
    let steps = history["endMillis"].as_array().unwrap();
    let column = column.as_array().unwrap();
    assert_eq!(column.len(), steps.len());
    column.iter().map(|number| number.as_u64().unwrap()).sum()
}

#[tokio::test]
async fn the_history_has_each_decision_at_once_by_rule_and_limit() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for entry in [
        ("few", "v"),
        ("few", "v"),
        ("few", "v"),
        ("many", "v"),
        ("other", "v"),
    ] {
        ask(&mut client, "d", &[entry]).await.unwrap();
    }
    let history = json(&server, "/history");
    let process = |name: &str| sum(&history, &history["process"][name]);
    assert_eq!(["calls", "ok", "overLimit"].map(process), [5, 4, 1]);
    assert_eq!(
        ["badRequests", "storeFailures", "degraded", "batches"].map(process),
        [0; 4]
    );
    assert!(process("p99Micros") >= process("p50Micros"));
    let last = |name: &str| {
        history["process"][name]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .as_u64()
    };
    assert!(last("residentBytes") > Some(1 << 20));
    assert_eq!(last("counters"), Some(3));
    sum(&history, &history["lengthMillis"]);
    let rules = history["rules"].as_array().unwrap();
    let paths: Vec<_> = rules
        .iter()
        .map(|rule| rule["rule"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["d.few", "d.many"]);
    let rule = |name: &str| sum(&history, &rules[0][name]);
    assert_eq!(
        ["hits", "within", "near", "over", "shadow", "degraded"].map(rule),
        [3, 2, 1, 1, 0, 0]
    );
    let limits = rules[0]["limits"].as_array().unwrap();
    let limits: Vec<_> = limits
        .iter()
        .map(|limit| {
            (
                limit["limit"].as_str().unwrap(),
                sum(&history, &limit["over"]),
            )
        })
        .collect();
    assert_eq!(limits, [("a\"b", 1), ("9/5years", 0)]);
}

#[tokio::test]
async fn the_history_shows_a_redis_that_is_gone_and_hits_that_were_judged_without_it() {
    let mut redis = Redis::start();
    let rules = "domain: d
descriptors: [{ key: k, rate_limits: [9/year], on_store_loss: allow }]
";
    let server = tollgate::with_rules(rules).redis(&redis).start();
    let mut client = connect(server.grpc).await;
    ask(&mut client, "d", &[("k", "v")]).await.unwrap();
    let history = json(&server, "/history");
    let count = |history: &Value, name: &str| sum(history, &history["process"][name]);
    assert!(count(&history, "batches") >= 1);
    assert_eq!(history["nodes"], 1);
    assert_eq!(count(&history, "nodesLost"), 0);
    redis.kill();
    wait_until("the history shows the loss", || {
        let history = json(&server, "/history");
        count(&history, "nodesLost") > 0
    });
    ask(&mut client, "d", &[("k", "v")]).await.unwrap();
    let history = json(&server, "/history");
    assert_eq!(sum(&history, &history["rules"][0]["degraded"]), 1);
    assert_eq!(count(&history, "degraded"), 1);
}

/// Asks so many times with each value of `few`, over several connections, so that several workers count.
async fn hit(server: &Tollgate, counts: &[(&str, u32)]) {
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..3 {
        clients.push(connect(server.grpc).await);
    }
    for (value, count) in counts {
        for nth in 0..*count {
            let client = &mut clients[nth as usize % 3];
            ask(client, "d", &[("few", value)]).await.unwrap();
        }
    }
}

/// The first value and its bounds, for each talker of the only rule.
#[track_caller]
fn talkers(top: &Value) -> Vec<(String, u64, u64)> {
    let rules = top["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 1, "{top}");
    assert_eq!(rules[0]["rule"], "d.few");
    let each = |talker: &Value| {
        let entry = &talker["entries"][0];
        assert_eq!(entry["key"], "few");
        let value = entry["value"].as_str().unwrap().to_owned();
        let [least, most] = ["atLeast", "atMost"].map(|name| talker[name].as_u64().unwrap());
        (value, least, most)
    };
    rules[0]["talkers"]
        .as_array()
        .unwrap()
        .iter()
        .map(each)
        .collect()
}

fn exact(value: &str, hits: u64) -> (String, u64, u64) {
    (value.to_owned(), hits, hits)
}

#[tokio::test]
async fn top_talkers_are_counted_since_the_start_whatever_the_clock_of_redis_says() {
    let clock = Arc::new(WallClock::start());
    let redis = Redis::with_wall_clock(&clock);
    // This server has the clock of this machine.
    let machine = tollgate::with_rules(RULES).start();
    let millis = || {
        json(&machine, "/history")["endMillis"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .as_u64()
    };
    let start = millis();
    for behind in [-3600, 3600] {
        clock.set(behind);
        let server = tollgate::with_rules(RULES).redis(&redis).start();
        hit(&server, &[("a", 4)]).await;
        let top = json(&server, "/top");
        let since = top["sinceMillis"].as_u64();
        assert!(start <= since && since <= millis(), "{start:?} {top}");
    }
}

#[tokio::test]
async fn the_values_that_are_refused_most_come_first_and_admitted_ones_not_at_all() {
    let server = tollgate::with_rules(RULES).start();
    hit(&server, &[("a", 4), ("b", 9), ("c", 2)]).await;
    ask(&mut connect(server.grpc).await, "d", &[("many", "x")])
        .await
        .unwrap();
    let top = json(&server, "/top");
    assert_eq!(talkers(&top), [exact("b", 7), exact("a", 2)]);
    assert_eq!(top["rules"][0]["hits"], 9);
}

#[tokio::test]
async fn shadow_mode_shows_which_values_would_be_refused_and_peeks_are_no_hits() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for _ in 0..3 {
        ask(&mut client, "d", &[("shadow", "v")]).await.unwrap();
    }
    let mut peek = descriptor(&[("shadow", "peek")]);
    peek.hits_addend = Some(0);
    send(&mut client, request("d", vec![peek])).await.unwrap();
    let top = json(&server, "/top");
    let rules = top["rules"].as_array().unwrap();
    assert_eq!((rules.len(), &rules[0]["rule"]), (1, &"d.shadow".into()));
    let talkers = rules[0]["talkers"].as_array().unwrap();
    assert_eq!((talkers.len(), &talkers[0]["atMost"]), (1, &2.into()));
    assert_eq!(talkers[0]["entries"][0]["value"], "v");
}

#[tokio::test]
async fn hostile_values_stay_values() {
    let server = tollgate::with_rules(RULES)
        .args(["--max-text-bytes", "16384"])
        .start();
    let long = "\u{e9}".repeat(8_000);
    let hostile = [
        "<script>alert(1)</script>",
        "\"}],\"rules\":[{\"",
        "a\nd.forged: 9 hits\r\n\u{1b}[31m\0\u{2028}",
        &long,
    ];
    let mut client = connect(server.grpc).await;
    for value in hostile {
        for _ in 0..3 {
            ask(&mut client, "d", &[("few", value)]).await.unwrap();
        }
    }
    let mut bytes = descriptor(&[("few", "")]);
    bytes.entries[0].value = vec![0xff, b'<', 0xc3].into();
    for _ in 0..3 {
        send(&mut client, request("d", vec![bytes.clone()]))
            .await
            .unwrap();
    }
    let top = json(&server, "/top");
    let mut shown: Vec<_> = talkers(&top).into_iter().map(|(value, ..)| value).collect();
    let mut expected: Vec<_> = hostile[..3]
        .iter()
        .map(|value| (*value).to_owned())
        .collect();
    expected.extend([long[..128].to_owned(), "\u{fffd}<\u{fffd}".to_owned()]);
    shown.sort();
    expected.sort();
    assert_eq!(shown, expected);
    let all = top["rules"][0]["talkers"].as_array().unwrap();
    let has =
        |name: &str, value: Value| all.iter().any(|talker| talker["entries"][0][name] == value);
    assert!(
        has("omittedBytes", (16_000 - 128).into()) && has("hex", "ff3cc3".into()),
        "{top}"
    );
}

/// A reader of `/live`.
struct Live {
    stream: BufReader<TcpStream>,
    status: u16,
}

impl Live {
    fn open(server: &Tollgate, headers: &str) -> Self {
        let mut stream = TcpStream::connect(server.debug).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET /live HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut live = Self {
            stream: BufReader::new(stream),
            status: 0,
        };
        let head = live.line().unwrap();
        live.status = head.split(' ').nth(1).unwrap().parse().unwrap();
        while !live.line().unwrap().is_empty() {}
        live
    }

    /// The next line; `None` at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let bytes = self.stream.read_line(&mut line).unwrap_or(0);
        (bytes > 0).then(|| line.trim_end().to_owned())
    }

    /// The next event.
    fn event(&mut self) -> Value {
        loop {
            let line = self.line().expect("another event");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn each_second_readers_get_the_state_and_the_decisions_since_the_last_event() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let (mut one, mut other) = (Live::open(&server, ""), Live::open(&server, ""));
    assert_eq!(one.status, 200);
    let first = one.event();
    assert_eq!(first["loads"]["inUse"]["rules"], 4);
    assert_eq!(first["loads"]["refused"], Value::Null);
    let components = first["components"].as_array().unwrap();
    assert!(components.contains(&serde_json::json!({"name": "store", "state": "memory"})));
    for _ in 0..3 {
        ask(&mut client, "d", &[("few", "v")]).await.unwrap();
    }
    let (mut ok, mut over, mut hits, mut refused) = (0, 0, 0, 0);
    let mut times = Vec::new();
    while ok + over < 3 || hits < 3 {
        let event = one.event();
        assert!(event["lengthMillis"].as_u64().unwrap() > 0, "{event}");
        times.push(event["endMillis"].as_u64().unwrap());
        ok += event["process"]["ok"].as_u64().unwrap();
        over += event["process"]["overLimit"].as_u64().unwrap();
        for rule in event["rules"].as_array().unwrap() {
            assert_eq!(rule["rule"], "d.few");
            hits += rule["hits"].as_u64().unwrap();
            refused += rule["over"].as_u64().unwrap();
        }
    }
    assert_eq!((ok, over, hits, refused), (2, 1, 3, 1));
    // The event of a second is made once for all readers.
    while !times.contains(&other.event()["endMillis"].as_u64().unwrap()) {
        times.push(one.event()["endMillis"].as_u64().unwrap());
    }
}

#[test]
fn an_event_has_the_errors_of_a_refused_reload() {
    let server = tollgate::with_rules(RULES).start();
    let mut live = Live::open(&server, "");
    let mut text = RULES.to_owned();
    for nth in 0..30 {
        text += &format!("  - {{key: \"k{nth}<b>\", rate_limits: [1/fortnight]}}\n");
    }
    std::fs::write(server.rules().join("rules.yaml"), text).unwrap();
    let refused = loop {
        let event = live.event();
        if event["loads"]["refused"].is_object() {
            break event["loads"]["refused"].clone();
        }
    };
    let errors = refused["errors"].as_array().unwrap();
    assert_eq!((errors.len(), refused["omitted"].as_u64()), (20, Some(10)));
    let first = errors[0].as_str().unwrap();
    assert!(first.contains("rules.yaml:13:"), "{first}");
    assert!(first.contains("fortnight"), "{first}");
}

#[test]
fn readers_are_bounded_and_pages_of_other_origins_are_none() {
    let server = tollgate::with_rules(RULES).start();
    for site in ["cross-site", "same-site"] {
        let header = format!("sec-fetch-site: {site}\r\n");
        assert_eq!(Live::open(&server, &header).status, 403, "{site}");
    }
    let mut readers: Vec<_> = (0..16).map(|_| Live::open(&server, "")).collect();
    let good = |live: &Live| live.status == 200;
    assert!(readers.iter().all(good));
    assert_eq!(Live::open(&server, "").status, 503);
    readers.pop();
    wait_until("a reader that leaves makes room", || {
        let next = Live::open(&server, "sec-fetch-site: same-origin\r\n");
        next.status == 200
    });
}

#[test]
fn a_reply_ends_before_the_port_ends_it_and_the_reader_asks_again() {
    let server = tollgate::with_rules(RULES).start();
    let mut live = Live::open(&server, "");
    let mut lines = Vec::new();
    // Each chunk is a length and its bytes.
    while let Some(line) = live.line().filter(|line| line != "0") {
        lines.push(line);
    }
    assert!(lines.contains(&"event: again".to_owned()), "{lines:?}");
}

#[test]
fn a_reader_holds_nothing_up_at_the_end() {
    let mut server = tollgate::with_rules(RULES)
        .args(["--drain-timeout", "1h"])
        .start();
    let mut live = Live::open(&server, "");
    live.event();
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    while live.line().is_some() {}
}

#[test]
fn the_rules_in_use_are_a_tree_in_the_order_of_the_file() {
    let rules = "
domain: \"<d>\"
descriptors:
  - key: z
    descriptors:
      - {key: user, value: \"é\\n\", rate_limits: [1/year]}
  - {key: a, value: v*, shadow_mode: true, count: admitted, on_store_loss: allow, rate_limits: [{unit: hour, requests_per_unit: 9, algorithm: token_bucket, burst: 4, name: n}, 5/2days]}
  - {key: a, rate_limit: {unlimited: true}}
";
    let server = tollgate::with_rules(rules).start();
    let tree = json(&server, "/rules");
    let domains = tree["domains"].as_array().unwrap();
    assert_eq!(domains.len(), 1);
    assert_eq!(domains[0]["domain"], "<d>");
    let nodes = domains[0]["nodes"].as_array().unwrap();
    let summary: Vec<_> = nodes
        .iter()
        .map(|node| {
            let text = |name: &str| node[name].as_str().unwrap_or("-").to_owned();
            let [key, value, rule] = ["key", "value", "rule"].map(text);
            format!(
                "{} {} {key}={value:?} {rule:?}",
                node["depth"], node["line"]
            )
        })
        .collect();
    let expected = [
        r#"1 4 z="-" "-""#,
        r#"2 6 user="é\n" "<d>.z.user_é\n""#,
        r#"1 7 a="v*" "<d>.a_v*""#,
        r#"1 8 a="-" "<d>.a""#,
    ];
    assert_eq!(summary, expected);
    assert!(nodes[0]["file"].as_str().unwrap().ends_with("rules.yaml"));
    assert_eq!(nodes[3]["unlimited"], true);
    let options = ["shadowMode", "count", "onStoreLoss"].map(|name| nodes[2][name].clone());
    let expected: [Value; 3] = [true.into(), "admitted".into(), "allow".into()];
    assert_eq!(options, expected);
    let limits = nodes[2]["limits"].as_array().unwrap();
    let rates = limits.iter().map(|limit| limit["rate"].as_str().unwrap());
    assert_eq!(rates.collect::<Vec<_>>(), ["9/hour", "5/2days"]);
    assert_eq!(
        (&limits[0]["burst"], &limits[0]["name"]),
        (&4.into(), &"n".into())
    );
}

#[test]
fn settings_are_shown_with_their_origin_and_without_secrets() {
    let server = tollgate::with_rules(RULES)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=sesame")
        .start();
    let page = json(&server, "/settings");
    assert!(!page.to_string().contains("sesame"));
    let settings = page["settings"].as_array().unwrap();
    let find = |flag: &str| settings.iter().find(|one| one["flag"] == flag).unwrap();
    assert_eq!(find("--port")["source"], "flag");
    assert_eq!(find("--workers")["source"], "variable");
    assert_eq!(find("--workers")["value"], "2");
    assert_eq!(find("--strict-matching")["source"], "default");
    let secret = find("--otlp-headers");
    assert_eq!(secret["secret"], true);
    assert_eq!(secret["value"], Value::Null);
}
