//! The debug port: snapshots of decisions, top talkers, the tree of rules, and settings.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::{
    ask::{Client, ask, connect, descriptor, request, send, with_hits},
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
fn page(server: &Tollgate, path: &str) -> Value {
    let reply = http::get(server.debug, path);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    serde_json::from_str(&reply.body).unwrap_or_else(|error| panic!("{error}: {}", reply.body))
}

/// The numbers under these names.
#[track_caller]
fn numbers<const N: usize>(parent: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| {
        let number = parent[name].as_u64();
        number.unwrap_or_else(|| panic!("{name}: {parent}"))
    })
}

/// A rule in a snapshot with its hits, those over a limit, and those without room.
fn in_snapshot(rule: &str, [hits, over, no_room]: [u64; 3]) -> Value {
    json!({
        "rule": rule, "hits": hits, "over": over, "withoutRoom": no_room, "withoutStore": 0, "refusedByLoss": 0,
    })
}

#[tokio::test]
async fn a_snapshot_has_each_decision_by_rule() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for key in ["few", "few", "few", "many", "other"] {
        ask(&mut client, "d", &[(key, "v")]).await.unwrap();
    }
    let snapshot = page(&server, "/snapshot");
    let totals = &snapshot["totals"];
    assert_eq!(numbers(totals, ["calls", "ok", "overLimit"]), [5, 4, 1]);
    let others = ["badRequests", "storeFailures", "degraded", "late"];
    assert_eq!(numbers(totals, others), [0; 4]);
    let names = ["lengthMillis", "p50Micros", "p99Micros"];
    let [length, p50, p99] = numbers(&snapshot["latency"], names);
    let [up, resident, counters] = numbers(&snapshot, ["upMillis", "residentBytes", "counters"]);
    assert!(0 < p50 && p50 <= p99 && length == up, "{snapshot}");
    assert!(resident > 1 << 20);
    assert_eq!(counters, 3);
    let (few, many) = (
        in_snapshot("d.few", [3, 1, 0]),
        in_snapshot("d.many", [1, 0, 0]),
    );
    assert_eq!(snapshot["rules"], json!([few, many]));
    assert_eq!(snapshot["omittedRules"], 0);
    assert_eq!(snapshot["loads"]["inUse"]["rules"], 4);
    assert_eq!(snapshot["loads"]["refused"], Value::Null);
    let components = snapshot["components"].as_array().unwrap();
    assert!(components.contains(&json!({"name": "store", "state": "memory"})));
}

#[tokio::test]
async fn a_snapshot_is_written_once_a_second_for_all_readers() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let up = |snapshot: &Value| snapshot["upMillis"].as_u64().unwrap();
    let first = page(&server, "/snapshot");
    ask(&mut client, "d", &[("few", "v")]).await.unwrap();
    let mut ups = vec![up(&first)];
    let mut last = first;
    while last["totals"]["ok"] == 0 || ups.len() < 3 {
        let next = page(&server, "/snapshot");
        if up(&next) == up(&last) {
            assert_eq!(next, last);
            continue;
        }
        let between = up(&next) - up(&last);
        assert!(between >= 1000, "{last} {next}");
        // Both are cut to whole milliseconds.
        let [length] = numbers(&next["latency"], ["lengthMillis"]);
        assert!(length.abs_diff(between) <= 1, "{last} {next}");
        ups.push(up(&next));
        last = next;
    }
    assert_eq!(last["totals"]["ok"], 1);
    // The latency is that of calls since the snapshot before.
    assert_eq!(last["latency"]["p99Micros"], 0);
}

#[tokio::test]
async fn a_snapshot_of_a_thousand_rules_is_small_and_the_most_hit_ones_have_room() {
    for (rules, padding, omits) in [(1000, 40, false), (2000, 160, true)] {
        let name = |rule: usize| format!("{rule:04}{}", "x".repeat(padding));
        let line = |rule| format!("  - {{ key: {}, rate_limits: [9/year] }}\n", name(rule));
        let lines = (0..rules).map(line);
        let text = format!("domain: d\ndescriptors:\n{}", lines.collect::<String>());
        let server = tollgate::with_rules(&text).start();
        let mut client = connect(server.grpc).await;
        let most = name(rules - 1);
        for part in (0..rules).collect::<Vec<_>>().chunks(500) {
            let all = part.iter().map(|rule| descriptor(&[(&name(*rule), "v")]));
            let reply = send(&mut client, request("d", all.collect())).await;
            reply.unwrap();
        }
        ask(&mut client, "d", &[(&most, "v")]).await.unwrap();
        let reply = http::get(server.debug, "/snapshot");
        assert!(reply.body.len() <= 200_000, "{}", reply.body.len());
        let snapshot: Value = serde_json::from_str(&reply.body).unwrap();
        let shown = snapshot["rules"].as_array().unwrap();
        let [omitted] = numbers(&snapshot, ["omittedRules"]);
        assert_eq!(shown.len() as u64 + omitted, rules as u64);
        assert_eq!(omitted > 0, omits, "{omitted}");
        assert_eq!(shown[0], in_snapshot(&format!("d.{most}"), [2, 0, 0]));
    }
}

#[tokio::test]
async fn a_snapshot_shows_a_redis_that_is_gone_and_decisions_without_it() {
    let mut redis = Redis::start();
    let rules =
        "domain: d\ndescriptors: [{ key: k, rate_limits: [9/year], on_store_loss: allow }]\n";
    let server = tollgate::with_rules(rules).redis(&redis).start();
    let mut client = connect(server.grpc).await;
    ask(&mut client, "d", &[("k", "v")]).await.unwrap();
    let snapshot = page(&server, "/snapshot");
    assert_eq!(numbers(&snapshot["store"], ["nodes", "nodesLost"]), [1, 0]);
    redis.kill();
    wait_until("the loss is there", || {
        page(&server, "/snapshot")["store"]["nodesLost"] == 1
    });
    ask(&mut client, "d", &[("k", "v")]).await.unwrap();
    wait_until("the decision is there", || {
        page(&server, "/snapshot")["totals"]["degraded"] == 1
    });
}

#[test]
fn a_snapshot_has_the_errors_of_a_refused_reload() {
    let server = tollgate::with_rules(RULES).start();
    let mut text = RULES.to_owned();
    for nth in 0..30 {
        text += &format!("  - {{key: \"k{nth}<b>\", rate_limits: [1/fortnight]}}\n");
    }
    std::fs::write(server.rules().join("rules.yaml"), text).unwrap();
    let refused = || page(&server, "/snapshot")["loads"]["refused"].clone();
    wait_until("the reload is refused", || refused().is_object());
    let refused = refused();
    let errors = refused["errors"].as_array().unwrap();
    assert_eq!((errors.len(), refused["omitted"].as_u64()), (20, Some(10)));
    let first = errors[0].as_str().unwrap();
    assert!(first.contains("rules.yaml:13:"), "{first}");
    assert!(first.contains("fortnight"), "{first}");
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
    let talkers = rules[0]["talkers"].as_array().unwrap();
    talkers.iter().map(each).collect()
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
    let millis = || page(&machine, "/snapshot")["atMillis"].as_u64();
    let start = millis();
    for behind in [-3600, 3600] {
        clock.set(behind);
        let server = tollgate::with_rules(RULES).redis(&redis).start();
        hit(&server, &[("a", 4)]).await;
        let top = page(&server, "/top");
        let since = top["sinceMillis"].as_u64();
        assert!(start <= since, "{start:?} {top}");
        wait_until("it has begun", || since <= millis());
    }
}

#[tokio::test]
async fn the_values_that_are_refused_most_come_first_then_those_near_their_limit_and_no_others() {
    let server = tollgate::with_rules(RULES).start();
    hit(&server, &[("a", 4), ("b", 9), ("c", 2)]).await;
    let mut client = connect(server.grpc).await;
    ask(&mut client, "d", &[("many", "x")]).await.unwrap();
    // It uses up its limit by itself.
    let alone = with_hits(&[("few", "alone")], 2);
    send(&mut client, request("d", vec![alone])).await.unwrap();
    let top = page(&server, "/top");
    assert_eq!(talkers(&top), [exact("b", 7), exact("a", 2), exact("c", 0)]);
    let used = [0, 1, 2].map(|nth: usize| top["rules"][0]["talkers"][nth]["usedPercent"].as_u64());
    assert_eq!(used, [100, 100, 99].map(Some));
    assert_eq!(top["rules"][0]["hits"], 9);
}

/// The log names keys, but no client makes its line long.
#[tokio::test]
async fn requests_without_a_limit_are_counted_and_logged_once_in_a_short_line() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    let long = "k".repeat(10_000);
    for _ in 0..3 {
        let entries = [(long.as_str(), "v"); 20];
        ask(&mut client, "d", &entries).await.unwrap();
    }
    assert_eq!(server.metric("tollgate_requests_without_limit_total"), 3);
    let log = server.log().with("no limit applies to a request");
    let lines: Vec<_> = log.lines().filter(|line| line.contains("kkk")).collect();
    assert!(lines.len() == 1 && lines[0].len() < 4_000, "{log}");
}

/// A full store refuses values together, whatever each of them has used.
#[tokio::test]
async fn a_value_without_room_for_a_counter_is_not_blamed() {
    let builder = tollgate::with_rules(RULES);
    let server = builder.args(["--max-counters", "1"]).start();
    hit(&server, &[("a", 3), ("b", 2), ("c", 2)]).await;
    let top = page(&server, "/top");
    assert_eq!(talkers(&top), [exact("a", 1)]);
    let snapshot = page(&server, "/snapshot");
    let rules = [in_snapshot("d.few", [7, 1, 2])];
    assert_eq!(snapshot["rules"], json!(rules));
    let metric = "tollgate_rule_refused_hits_total{cause=\"no_room\",domain=\"d\",rule=\"few\"}";
    assert_eq!(server.metric(metric), 2);
    let over = "ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"few\"}";
    assert_eq!(server.metric(over), 1);
}

#[tokio::test]
async fn shadow_mode_shows_which_values_would_be_refused_and_peeks_are_no_hits() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for _ in 0..3 {
        ask(&mut client, "d", &[("shadow", "v")]).await.unwrap();
    }
    let peek = with_hits(&[("shadow", "peek")], 0);
    send(&mut client, request("d", vec![peek])).await.unwrap();
    let top = page(&server, "/top");
    let rules = top["rules"].as_array().unwrap();
    assert_eq!((rules.len(), &rules[0]["rule"]), (1, &"d.shadow".into()));
    let talkers = rules[0]["talkers"].as_array().unwrap();
    assert_eq!((talkers.len(), &talkers[0]["atMost"]), (1, &2.into()));
    assert_eq!(talkers[0]["entries"][0]["value"], "v");
}

#[tokio::test]
async fn hostile_values_stay_values() {
    let server = tollgate::with_rules(RULES).start();
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
        let reply = send(&mut client, request("d", vec![bytes.clone()])).await;
        reply.unwrap();
    }
    let top = page(&server, "/top");
    let mut shown: Vec<_> = talkers(&top).into_iter().map(|(value, ..)| value).collect();
    let mut expected = hostile[..3]
        .iter()
        .map(|value| (*value).to_owned())
        .collect::<Vec<_>>();
    expected.extend([long[..128].to_owned(), "\u{fffd}<\u{fffd}".to_owned()]);
    shown.sort();
    expected.sort();
    assert_eq!(shown, expected);
    let all = top["rules"][0]["talkers"].as_array().unwrap();
    for (name, value) in [
        ("omittedBytes", json!(16_000 - 128)),
        ("hex", json!("ff3cc3")),
    ] {
        let has = all.iter().any(|talker| talker["entries"][0][name] == value);
        assert!(has, "{top}");
    }
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
    let tree = page(&server, "/rules");
    let domains = tree["domains"].as_array().unwrap();
    assert_eq!(domains.len(), 1);
    assert_eq!(domains[0]["domain"], "<d>");
    let nodes = domains[0]["nodes"].as_array().unwrap();
    let summary = nodes.iter().map(|node| {
        let text = |name: &str| node[name].as_str().unwrap_or("-").to_owned();
        let [key, value, rule] = ["key", "value", "rule"].map(text);
        let (depth, line) = (&node["depth"], &node["line"]);
        format!("{depth} {line} {key}={value:?} {rule:?}")
    });
    let summary: Vec<_> = summary.collect();
    let expected = [
        r#"1 4 z="-" "-""#,
        r#"2 6 user="é\n" "<d>.z.user_é\n""#,
        r#"1 7 a="v*" "<d>.a_v*""#,
        r#"1 8 a="-" "<d>.a""#,
    ];
    assert_eq!(summary, expected);
    assert!(nodes[0]["file"].as_str().unwrap().ends_with("rules.yaml"));
    assert_eq!(nodes[3]["unlimited"], true);
    let options = ["shadowMode", "count", "onStoreLoss"].map(|name| &nodes[2][name]);
    assert_eq!(json!(options), json!([true, "admitted", "allow"]));
    let limits = nodes[2]["limits"].as_array().unwrap();
    let rates = limits.iter().map(|limit| limit["rate"].as_str().unwrap());
    assert_eq!(rates.collect::<Vec<_>>(), ["9/hour", "5/2days"]);
    assert_eq!(limits[0]["burst"], 4);
    assert_eq!(limits[0]["name"], "n");
}

#[test]
fn settings_are_shown_with_their_origin_and_without_secrets() {
    let headers = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let builder = tollgate::with_rules(RULES).env(headers, "authorization:sesame");
    let server = builder.start();
    let page = page(&server, "/settings");
    assert!(!page.to_string().contains("sesame"));
    let settings = page["settings"].as_array().unwrap();
    let find = |flag: &str| settings.iter().find(|one| one["flag"] == flag).unwrap();
    for (flag, field, value) in [
        ("--port", "source", json!("flag")),
        ("--workers", "source", json!("variable")),
        ("--workers", "value", json!("2")),
        ("--strict-matching", "source", json!("default")),
        ("--xds-headers", "secret", json!(true)),
        ("--xds-headers", "value", Value::Null),
    ] {
        assert_eq!(find(flag)[field], value, "{flag}");
    }
}
