//! Logged decisions as lines of JSON: their fields, their places, and the end of a file that is full.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ::tollgate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    ask::{ask, connect, descriptor, request, send},
    tollgate::{self, Tollgate},
    wait_until,
};

const RULES: &str = "domain: shop
descriptors:
  - key: few
    rate_limits: [2/year, { unit: year, unit_multiplier: 5, requests_per_unit: 9, name: long }]
  - key: free
    rate_limit: { unlimited: true }
";

/// A server that logs decisions to a file, and the folder of that file.
struct Logging {
    server: Tollgate,
    folder: TempDir,
}

impl Logging {
    fn start(args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("decisions");
        let server = tollgate::with_rules(RULES)
            .args(["--log-decisions-to", file.to_str().unwrap()])
            .args(args.iter().copied())
            .start();
        Self { server, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("decisions")
    }

    /// Asks once for each value of `few`.
    async fn ask(&self, values: &[&str]) {
        let mut client = connect(self.server.grpc).await;
        for value in values {
            ask(&mut client, "shop", &[("few", value)]).await.unwrap();
        }
    }

    /// The lines, once there are so many.
    fn lines(&self, count: usize) -> Vec<Value> {
        wait_until("the lines are written", || {
            read(&self.file()).lines().count() >= count
        });
        parse(&read(&self.file()))
    }

    /// Ends the server as an orchestrator does.
    fn stop(&mut self) {
        self.server.signal(Signal::SIGTERM);
        assert!(self.server.wait().success());
    }
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// Each line as JSON; every reader has to find the same lines.
fn parse(text: &str) -> Vec<Value> {
    assert!(text.is_ascii());
    let lines = text.split_terminator('\n');
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn a_line_of_json_has_the_rule_s_place_all_limits_and_the_latency() {
    let logging = Logging::start(&["--log-decisions", "all"]);
    logging.ask(&["v", "v", "v"]).await;
    let mut client = connect(logging.server.grpc).await;
    let own_hits = RateLimitDescriptor {
        hits_addend: Some(5),
        ..descriptor(&[("free", "x")])
    };
    let unknown = descriptor(&[("fwe", "x"), ("more", "y")]);
    send(&mut client, request("shop", vec![own_hits, unknown]))
        .await
        .unwrap();
    let mut lines = logging.lines(4);
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        let time: jiff::Timestamp = line
            .remove("time")
            .unwrap()
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!(time.as_millisecond() > 1_700_000_000_000);
        assert!(line.remove("latency_us").unwrap().is_u64());
    }
    let expected = json!({
        "target": "tollgate::decision", "domain": "shop", "code": "OVER_LIMIT", "shadow_mode": false, "degraded": false,
        "descriptors": [{
            "entries": [{"key": "few", "value": "v"}], "hits": 1, "code": "OVER_LIMIT",
            "by": "rule", "rule": "shop.few", "file": "rules.yaml", "line": 3,
            "limits": [
                {"limit": "2/year", "algorithm": "fixed_window", "count": 3, "over": true, "binding": true},
                {"limit": "9/5years", "algorithm": "fixed_window", "name": "long", "count": 3, "over": false, "binding": false},
            ],
            "remaining": 0,
        }],
    });
    let reset = lines[2]["descriptors"][0]
        .as_object_mut()
        .unwrap()
        .remove("reset_secs");
    assert!(reset.unwrap().is_u64());
    assert_eq!(lines[2], expected);
    let expected = json!([
        {"entries": [{"key": "free", "value": "x"}], "hits": 5, "code": "OK", "by": "unlimited", "rule": "shop.free",
         "file": "rules.yaml", "line": 5},
        {"entries": [{"key": "fwe", "value": "x"}, {"key": "more", "value": "y"}], "hits": 1, "code": "OK", "by": "no_rule"},
    ]);
    assert_eq!(lines[3]["descriptors"], expected);
    // People read the lines, too: the fields have one order.
    let text = read(&logging.file());
    let line = text.lines().last().unwrap();
    let begin = r#"{"target":"tollgate::decision","time":"2"#;
    let end = r#","by":"unlimited","rule":"shop.free","file":"rules.yaml","line":5},{"entries":[{"key":"fwe","value":"x"},{"key":"more","value":"y"}],"hits":1,"code":"OK","by":"no_rule"}]}"#;
    assert!(line.starts_with(begin) && line.ends_with(end), "{line}");
    let metric = |name: &str| {
        let name = format!("tollgate_decision_log_{name}_total");
        logging.server.metric(&name)
    };
    wait_until("they are counted", || metric("written") == 4);
    assert_eq!(metric("dropped"), 0);
    let log = logging.server.log().text();
    assert!(!log.contains("tollgate::decision"), "{log}");
}

#[tokio::test]
async fn no_value_leaves_its_line_and_a_long_one_is_cut() {
    let logging = Logging::start(&["--log-decisions", "all"]);
    let long = "x".repeat(4000);
    let hostile = [
        "\"}\n{\"code\":\"OK\"}",
        "\r\u{b}\u{c}\u{85}\u{2028}\u{2029}",
        "<script>alert(1)</script>\u{202e}😀\0\u{1b}[31m",
        &long,
    ];
    logging.ask(&hostile).await;
    let lines = logging.lines(4);
    assert_eq!(lines.len(), 4);
    let value = |line: usize| &lines[line]["descriptors"][0]["entries"][0];
    for (line, hostile) in hostile[..3].iter().enumerate() {
        assert_eq!(value(line)["value"], *hostile);
    }
    assert_eq!(value(3)["value"], "x".repeat(1024));
    assert_eq!(value(3)["value_bytes"], 4000);
}

#[tokio::test]
async fn hashed_values_are_in_no_form_of_the_log_as_they_are() {
    // `printf 192.0.2.1 | sha256sum`
    const HASH: &str = "sha256:37fcff24bf62035b";
    let logging = Logging::start(&["--log-decisions", "all", "--log-decisions-values", "hash"]);
    logging.ask(&["192.0.2.1"]).await;
    let lines = logging.lines(1);
    assert_eq!(lines[0]["descriptors"][0]["entries"][0]["value"], HASH);
    assert!(!read(&logging.file()).contains("192.0.2.1"));
    let server = tollgate::with_rules(RULES)
        .args(["--log-decisions", "all", "--log-decisions-values", "hash"])
        .start();
    let mut client = connect(server.grpc).await;
    ask(&mut client, "shop", &[("few", "192.0.2.1")])
        .await
        .unwrap();
    let log = server.log().with(HASH);
    let line = log.lines().find(|line| line.contains(HASH));
    assert!(!line.unwrap().contains("192.0.2.1"), "{log}");
}

#[tokio::test]
async fn a_full_file_makes_way_for_a_new_one_and_the_last_lines_are_written_at_the_end() {
    let bounds = ["--log-decisions-max-bytes", "1500"];
    let mut logging = Logging::start(&[&["--log-decisions", "refused"], &bounds[..]].concat());
    logging.ask(&["v"; 22]).await;
    logging.stop();
    let mut names: Vec<_> = fs::read_dir(logging.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["decisions", "decisions.1", "decisions.2", "decisions.3"]
    );
    let mut counts = Vec::new();
    for name in names.iter().rev() {
        let text = read(&logging.folder.path().join(name));
        assert!(text.len() <= 1500, "{name}: {}", text.len());
        let lines = parse(&text);
        let count = |line: &Value| {
            line["descriptors"][0]["limits"][0]["count"]
                .as_u64()
                .unwrap()
        };
        counts.extend(lines.iter().map(count));
    }
    // Without a gap up to the last one.
    let expected: Vec<u64> = (counts[0]..=22).collect();
    assert_eq!(counts, expected);
}

#[tokio::test]
async fn standard_error_has_the_lines_at_every_level_of_the_log() {
    let server = tollgate::with_rules(RULES)
        .args(["--log-decisions", "refused", "--log-decisions-to", "stderr"])
        .start();
    let mut client = connect(server.grpc).await;
    for _ in 0..3 {
        ask(&mut client, "shop", &[("few", "v")]).await.unwrap();
    }
    let log = server.log().with("\"target\":\"tollgate::decision\"");
    let lines = log
        .lines()
        .filter(|line| line.contains("tollgate::decision"));
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["code"], "OVER_LIMIT");
    assert!(lines[0].get("@message").is_none());
}

#[test]
fn a_file_that_cannot_be_written_ends_the_start_with_its_path() {
    let (status, text) = tollgate::with_rules(RULES)
        .args([
            "--log-decisions",
            "all",
            "--log-decisions-to",
            "/nowhere/decisions",
        ])
        .fail();
    assert_eq!(status.code(), Some(1));
    let expected =
        "cannot write logged decisions (--log-decisions-to) to /nowhere/decisions: No such file";
    assert!(text.contains(expected), "{text}");
}
