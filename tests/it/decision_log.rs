//! The log of decisions: which are in it, and what a line says.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{
    ask::*,
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

async fn server(args: &[&str]) -> (Tollgate, Client) {
    serve(tollgate::with_rules(RULES).args(args.iter().copied())).await
}

fn texts(server: &Tollgate) -> Vec<String> {
    let log = server.log().text();
    let lines = log.lines().filter(|line| line.contains(DECISION));
    let texts = lines.map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!([&line["level"], &line["target"]], ["debug", DECISION]);
        let text = line["@message"].as_str().unwrap();
        assert!(text.is_ascii(), "{text}");
        text.to_owned()
    });
    texts.collect()
}

fn decisions(server: &Tollgate) -> Vec<Value> {
    let texts = texts(server);
    let decisions = texts.iter().map(|text| serde_json::from_str(text).unwrap());
    decisions.collect()
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

/// Asks for descriptors, which are separated by spaces.
async fn ask_all(client: &mut Client, descriptors: &str) {
    for asked in descriptors.split(' ') {
        ask(client, "shop", &entries(asked)).await.unwrap();
    }
}

/// Asks for something that is always logged as refused, so that all lines before it have been written.
async fn end(server: &Tollgate, client: &mut Client) {
    let many = with_hits(&[("few", "end")], 99);
    send(client, request("shop", vec![many])).await.unwrap();
    server.log().with("\\\"hits\\\":99");
}

#[tokio::test]
async fn at_debug_each_decision_is_a_line_with_the_rule_s_place_and_all_counts() {
    let (server, mut client) = server(&["--log-level", "debug"]).await;
    let all = "few=v few=v few=v few=v,deep=w fwe=v free=v shadow=v shadow=v";
    ask_all(&mut client, all).await;
    ask(&mut client, "shp", &[("few", "v")]).await.unwrap();
    let two = ["few", "free"].map(|key| descriptor(&[(key, "v")]));
    let two = request("shop", two.into());
    send(&mut client, two).await.unwrap();
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
async fn a_line_has_the_rule_s_place_all_limits_and_the_latency() {
    let (server, mut client) = server(&["--log-decisions", "all"]).await;
    ask_all(&mut client, "few=v few=v few=v").await;
    let own_hits = with_hits(&[("free", "x")], 5);
    let unknown = descriptor(&[("fwe", "x"), ("more", "y")]);
    let both = request("shop", vec![own_hits, unknown]);
    send(&mut client, both).await.unwrap();
    end(&server, &mut client).await;
    let mut lines = decisions(&server);
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        let time = line.remove("time").unwrap();
        let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
        assert!(time.as_millisecond() > 1_700_000_000_000);
        assert!(line.remove("latency_us").unwrap().is_u64());
    }
    let status = lines[2]["descriptors"][0].as_object_mut().unwrap();
    assert!(status.remove("reset_secs").unwrap().is_u64());
    let expected = json!({
        "target": "tollgate::decision", "domain": "shop", "code": "OVER_LIMIT", "shadow_mode": false, "degraded": false,
        "descriptors": [{
            "entries": [{"key": "few", "value": "v"}], "hits": 1, "code": "OVER_LIMIT",
            "by": "rule", "rule": "shop.few", "file": "rules.yaml", "line": 4,
            "limits": [
                {"limit": "2/year", "algorithm": "fixed_window", "count": 3, "over": true, "binding": true},
                {"limit": "9/5years", "algorithm": "fixed_window", "name": "long", "count": 3, "over": false, "binding": false},
            ],
            "remaining": 0,
        }],
    });
    assert_eq!(lines[2], expected);
    let expected = json!([
        {"entries": [{"key": "free", "value": "x"}], "hits": 5, "code": "OK", "by": "unlimited", "rule": "shop.free",
         "file": "rules.yaml", "line": 7},
        {"entries": [{"key": "fwe", "value": "x"}, {"key": "more", "value": "y"}], "hits": 1, "code": "OK", "by": "no_rule"},
    ]);
    assert_eq!(lines[3]["descriptors"], expected);
    // People read the lines, too: the fields have one order.
    let line = &texts(&server)[3];
    let begin = r#"{"target":"tollgate::decision","time":"2"#;
    let end = r#","by":"unlimited","rule":"shop.free","file":"rules.yaml","line":7},{"entries":[{"key":"fwe","value":"x"},{"key":"more","value":"y"}],"hits":1,"code":"OK","by":"no_rule"}]}"#;
    assert!(line.starts_with(begin) && line.ends_with(end), "{line}");
}

#[tokio::test]
async fn the_last_lines_are_written_at_the_end() {
    let (mut server, mut client) = server(&["--log-decisions", "refused"]).await;
    for _ in 0..22 {
        ask_all(&mut client, "few=v").await;
    }
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    server.log().with("\"@message\":\"stopped\"");
    let decisions = decisions(&server);
    let count = |line: &Value| line["descriptors"][0]["limits"][0]["count"].as_u64();
    let counts: Vec<_> = decisions.iter().filter_map(count).collect();
    assert_eq!(counts, (3..=22).collect::<Vec<_>>());
}

/// One decision within its limits and two refused ones, of which shadow mode lets one pass.
#[tokio::test]
async fn the_choice_decides_at_every_level() {
    for (args, expected) in [
        ("", 0),
        ("--log-level debug --log-decisions off", 0),
        ("--log-decisions sampled=0", 0),
        ("--log-decisions refused", 2),
        ("--log-decisions sampled=1", 4),
        ("--log-decisions all", 4),
    ] {
        let args: Vec<_> = args.split_whitespace().collect();
        let (server, mut client) = server(&args).await;
        ask_all(&mut client, "few=v shadow=v shadow=v").await;
        if expected > 0 {
            end(&server, &mut client).await;
        } else {
            // Log lines of the requests would be read before this page.
            assert_eq!(stat(&server, "tollgate.decisions_total.ok"), Some(3));
        }
        let log = server.log().text();
        assert_eq!(decisions(&server).len(), expected, "{args:?}: {log}");
    }
}
