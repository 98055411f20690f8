//! The log of decisions: which are in it, and what a line says.

use ::tollgate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;

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

/// The texts of the lines on decisions.
fn decisions(server: &Tollgate) -> Vec<String> {
    let log = server.log().text();
    let lines = log.lines().filter(|line| line.contains(DECISION));
    lines
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["level"], "debug", "{line}");
            line["@message"].as_str().unwrap().to_owned()
        })
        .collect()
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
    server.log().with("few=\\\"end\\\" hits 99");
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
    let rule = "shop.few at rules.yaml:4";
    let expected = [
        format!("OK shop: few=\"v\" -> {rule}: 2/year 1, long 9/5years 1"),
        format!("OK shop: few=\"v\" -> {rule}: 2/year 2, long 9/5years 2"),
        format!("OVER_LIMIT shop: few=\"v\" -> {rule}: 2/year 3 over, long 9/5years 3"),
        "OK shop: few=\"v\", deep=\"w\" -> a level without a limit".to_owned(),
        "OK shop: fwe=\"v\" -> no rule".to_owned(),
        "OK shop: free=\"v\" -> unlimited by shop.free at rules.yaml:7".to_owned(),
        "OK shop: shadow=\"v\" -> shop.shadow at rules.yaml:9: 1/year 1".to_owned(),
        "OK shop: shadow=\"v\" -> shop.shadow at rules.yaml:9: 1/year 2 over (shadow mode of the rule)".to_owned(),
        "OK shp: few=\"v\" -> unknown domain".to_owned(),
        format!(
            "OVER_LIMIT shop: few=\"v\" -> {rule}: 2/year 4 over, long 9/5years 4; free=\"v\" -> unlimited by \
             shop.free at rules.yaml:7"
        ),
    ];
    assert_eq!(decisions(&server)[..expected.len()], expected);
}

#[tokio::test]
async fn a_value_cannot_forge_a_line_and_a_long_one_is_cut() {
    let server = server(&["--log-decisions", "all"]);
    let mut client = connect(server.grpc).await;
    let long = "x".repeat(4000);
    ask_all(
        &mut client,
        &[&[("few", "a\" -> b\nINFO c")], &[("few", &long)]],
    )
    .await;
    end(&server, &mut client).await;
    let decisions = decisions(&server);
    assert!(
        decisions[0].contains("few=\"a\\\" -> b\\nINFO c\" -> shop.few"),
        "{}",
        decisions[0]
    );
    assert!(
        decisions[1].contains("x… 3744 bytes more\" -> shop.few"),
        "{}",
        decisions[1]
    );
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
