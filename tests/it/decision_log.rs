//! The log of decisions: which are in it, and what a line says.

use ::tollgate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;

use serde_json::Value;

use crate::support::{
    ask::{Client, ask, connect, descriptor, request, send},
    tollgate::{self, Tollgate},
};

const RULES: &str = "# A comment, so that line and number differ.
domain: shop
descriptors:
  - key: few
    rate_limits: [2/year, { unit: year, unit_multiplier: 5, requests_per_unit: 9, name: long }]
    descriptors: [{ key: deep, descriptors: [{ key: end, rate_limits: [1/year] }] }]
  - key: free
    rate_limit: { unlimited: true }
  - key: shadow
    shadow_mode: true
    rate_limits: [1/year]
";

const DECISION: &str = "tollgate::decision";

fn server(args: &[&str]) -> Tollgate {
    tollgate::with_rules(RULES)
        .args(args.iter().copied())
        .start()
}

/// The decisions in the log: the text of each is JSON.
fn decisions(server: &Tollgate) -> Vec<Value> {
    let log = server.log().text();
    let lines = log.lines().filter(|line| line.contains(DECISION));
    lines
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["level"], "debug", "{line}");
            let text = line["@message"].as_str().unwrap();
            assert!(text.is_ascii(), "{text}");
            serde_json::from_str(text).unwrap()
        })
        .collect()
}

/// `OK shop: rule shop.few rules.yaml:4, 2/year 1`
fn short(decision: &Value) -> String {
    let text = |value: &Value| value.to_string().replace('"', "");
    let mut short = format!("{} {}:", text(&decision["code"]), text(&decision["domain"]));
    for descriptor in decision["descriptors"].as_array().unwrap() {
        short += &format!(" {}", text(&descriptor["by"]));
        if let Some(rule) = descriptor.get("rule") {
            let [file, line] = ["file", "line"].map(|name| text(&descriptor[name]));
            short += &format!(" {} {file}:{line}", text(rule));
        }
        for limit in descriptor["limits"].as_array().into_iter().flatten() {
            let over = if limit["over"] == true { " over" } else { "" };
            short += &format!(", {} {}{over}", text(&limit["limit"]), limit["count"]);
        }
    }
    short
}

async fn ask_all(client: &mut Client, descriptors: &[&[(&str, &str)]]) {
    for entries in descriptors {
        ask(client, "shop", entries).await.unwrap();
    }
}

/// Asks for something that is always logged as refused, so that all lines before it have been written.
async fn end(server: &Tollgate, client: &mut Client) {
    let many = RateLimitDescriptor {
        hits_addend: Some(99),
        ..descriptor(&[("few", "end")])
    };
    send(client, request("shop", vec![many])).await.unwrap();
    server.log().with("\\\"hits\\\":99");
}

#[tokio::test]
async fn at_debug_each_decision_is_a_line_with_the_rule_s_place_and_all_counts() {
    let server = server(&["--log-level", "debug"]);
    let mut client = connect(server.grpc).await;
    let few: &[(&str, &str)] = &[("few", "v")];
    ask_all(&mut client, &[few, few, few]).await;
    ask_all(
        &mut client,
        &[&[("few", "v"), ("deep", "w")], &[("fwe", "v")]],
    )
    .await;
    ask_all(
        &mut client,
        &[&[("free", "v")], &[("shadow", "v")], &[("shadow", "v")]],
    )
    .await;
    ask(&mut client, "shp", few).await.unwrap();
    let two = vec![descriptor(few), descriptor(&[("free", "v")])];
    send(&mut client, request("shop", two)).await.unwrap();
    end(&server, &mut client).await;
    let expected = [
        "OK shop: rule shop.few rules.yaml:4, 2/year 1, 9/5years 1",
        "OK shop: rule shop.few rules.yaml:4, 2/year 2, 9/5years 2",
        "OVER_LIMIT shop: rule shop.few rules.yaml:4, 2/year 3 over, 9/5years 3",
        "OK shop: no_limit",
        "OK shop: no_rule",
        "OK shop: unlimited shop.free rules.yaml:7",
        "OK shop: rule shop.shadow rules.yaml:9, 1/year 1",
        "OK shop: rule shop.shadow rules.yaml:9, 1/year 2 over",
        "OK shp: unknown_domain",
        "OVER_LIMIT shop: rule shop.few rules.yaml:4, 2/year 4 over, 9/5years 4 unlimited shop.free rules.yaml:7",
    ];
    let decisions: Vec<_> = decisions(&server).iter().map(short).collect();
    assert_eq!(decisions[..expected.len()], expected);
}

#[tokio::test]
async fn a_value_cannot_forge_a_line_and_a_long_one_is_cut() {
    let server = server(&["--log-decisions", "all"]);
    let mut client = connect(server.grpc).await;
    let (forged, long) = ("a\"}\nINFO c", "x".repeat(4000));
    ask_all(&mut client, &[&[("few", forged)], &[("few", &long)]]).await;
    end(&server, &mut client).await;
    let decisions = decisions(&server);
    let entry = |line: usize| &decisions[line]["descriptors"][0]["entries"][0];
    assert_eq!(entry(0)["value"], forged);
    assert_eq!(entry(1)["value"], "x".repeat(1024));
    assert_eq!(entry(1)["value_bytes"], 4000);
}

/// The number of lines for one decision within its limits and two refused ones, of which shadow mode lets one pass.
async fn check(args: &[&str], expected: usize) {
    let server = server(args);
    let mut client = connect(server.grpc).await;
    ask_all(
        &mut client,
        &[&[("few", "v")], &[("shadow", "v")], &[("shadow", "v")]],
    )
    .await;
    if expected > 0 {
        end(&server, &mut client).await;
    } else {
        // Log lines of the requests would be read before this page.
        assert!(
            server
                .page("/stats")
                .contains("tollgate.decisions_total.ok: 3")
        );
    }
    assert_eq!(
        decisions(&server).len(),
        expected,
        "{args:?}: {}",
        server.log().text()
    );
}

#[tokio::test]
async fn the_choice_decides_at_every_level() {
    check(&[], 0).await;
    check(&["--log-level", "debug", "--log-decisions", "off"], 0).await;
    check(&["--log-decisions", "sampled=0"], 0).await;
    check(&["--log-decisions", "refused"], 2).await;
    check(&["--log-decisions", "sampled=1"], 4).await;
    check(&["--log-decisions", "all"], 4).await;
}

#[test]
fn another_choice_is_refused_with_those_there_are() {
    let (status, text) = tollgate::with_rules(RULES)
        .env("TOLLGATE_LOG_DECISIONS", "some")
        .fail();
    assert_eq!(status.code(), Some(2));
    let expected = "expected off, refused, sampled=SHARE with a share from 0 to 1, or all";
    assert!(text.contains(expected), "{text}");
}
