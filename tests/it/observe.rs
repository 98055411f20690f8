//! The debug port: the history of decisions, and top talkers.

use serde_json::Value;

use crate::support::{
    ask::{Client, ask, connect, descriptor, request, send},
    http,
    redis::Redis,
    tollgate::{self, Tollgate},
    wait_until,
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

/// The first value, its bounds and its refused hits, for each talker of the only rule.
#[track_caller]
fn talkers(top: &Value) -> Vec<(String, u64, u64, u64)> {
    let rules = top["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 1, "{top}");
    assert_eq!(rules[0]["rule"], "d.few");
    let each = |talker: &Value| {
        let entry = &talker["entries"][0];
        assert_eq!(entry["key"], "few");
        let value = entry["value"].as_str().unwrap_or("(none)").to_owned();
        let [least, most, refused] =
            ["atLeast", "atMost", "refused"].map(|name| talker[name].as_u64().unwrap());
        (value, least, most, refused)
    };
    rules[0]["talkers"]
        .as_array()
        .unwrap()
        .iter()
        .map(each)
        .collect()
}

fn exact(value: &str, hits: u64, refused: u64) -> (String, u64, u64, u64) {
    (value.to_owned(), hits, hits, refused)
}

#[tokio::test]
async fn the_values_that_are_refused_most_come_first_and_admitted_ones_not_at_all() {
    let server = tollgate::with_rules(RULES).start();
    hit(&server, &[("a", 4), ("b", 9), ("c", 2)]).await;
    ask(&mut connect(server.grpc).await, "d", &[("many", "x")])
        .await
        .unwrap();
    let top = json(&server, "/top");
    assert_eq!(top["counts"], "refused");
    assert_eq!(top["omittedHits"], 0);
    assert_eq!(talkers(&top), [exact("b", 7, 7), exact("a", 2, 2)]);
    assert_eq!(top["rules"][0]["hits"], 9);
    let text = server.page("/top?text");
    let (head, lines) = text.split_once('\n').unwrap();
    assert!(head.starts_with("# hits over a limit since 2"), "{head}");
    let expected = "d.few: 9 hits\n             7  few=\"b\"\n             2  few=\"a\"\n";
    assert_eq!(lines, expected);
    let accept: &[(&str, &[u8])] = &[("accept", b"text/plain")];
    let reply = http::get_with(server.debug, "/top", accept);
    assert_eq!(
        reply.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(reply.body, text);
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
    assert!(
        server
            .page("/top?text")
            .ends_with("d.shadow: 2 hits\n             2  shadow=\"v\"\n")
    );
}

#[tokio::test]
async fn values_are_counted_and_shown_as_the_settings_say() {
    let start = |args: &[&str]| {
        tollgate::with_rules(RULES)
            .args(args.iter().copied())
            .start()
    };
    let server = start(&["--top-talkers", "all", "--top-talkers-values", "hash"]);
    hit(&server, &[("192.0.2.1", 5), ("b", 1)]).await;
    let top = json(&server, "/top");
    assert_eq!(
        (&top["counts"], &top["values"]),
        (&"all".into(), &"hash".into())
    );
    // printf %s 192.0.2.1 | sha256sum
    let hashed = [
        exact("37fcff24bf62035b", 5, 3),
        exact("3e23e8160039594a", 1, 0),
    ];
    assert_eq!(talkers(&top), hashed);
    assert!(!server.page("/top?text").contains("192.0.2.1"));

    let server = start(&["--top-talkers-values", "hide"]);
    hit(&server, &[("secret", 3), ("other", 4)]).await;
    let top = json(&server, "/top");
    assert_eq!(
        talkers(&top),
        [exact("(none)", 2, 2), exact("(none)", 1, 1)]
    );
    assert!(
        server
            .page("/top?text")
            .ends_with("d.few: 3 hits\n             2  few\n             1  few\n")
    );

    let server = start(&["--top-talkers", "off"]);
    hit(&server, &[("a", 3)]).await;
    assert_eq!(json(&server, "/top")["rules"], Value::Array(Vec::new()));
    assert!(server.page("/top?text").contains("--top-talkers refused"));
}

#[tokio::test]
async fn hostile_values_stay_values() {
    let server = tollgate::with_rules(RULES)
        .args(["--top-talkers", "all", "--max-text-bytes", "16384"])
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
        ask(&mut client, "d", &[("few", value)]).await.unwrap();
    }
    let mut bytes = descriptor(&[("few", "")]);
    bytes.entries[0].value = vec![0xff, b'<', 0xc3].into();
    send(&mut client, request("d", vec![bytes])).await.unwrap();
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
    let text = server.page("/top?text");
    // A head, the rule, and a line for each value.
    assert_eq!(text.lines().count(), 2 + 5, "{text}");
    assert!(
        text.chars().all(|char| char == '\n' || !char.is_control()),
        "{text}"
    );
}
