//! The history of decisions on the debug port.

use serde_json::Value;

use crate::support::{
    ask::{ask, connect},
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
