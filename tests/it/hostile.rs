//! Values that are HTML, line breaks, control characters or long, wherever the program shows values of requests: a line
//! stays one line, JSON stays JSON, and nothing reaches a terminal that it would obey.

use std::fs;

use ::tollgate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use serde_json::{Value, json};

use crate::cli::{files, path, run_in, url};
use crate::support::{
    ask::{connect, descriptor, request, send},
    finish,
    http::get,
    json,
    tollgate::{self, Tollgate, program},
    wait_until,
};

const RULES: &str = "domain: d
descriptors:
  - key: few
    rate_limits: [1/year]
";

/// A value that harms nobody.
const PLAIN: &str = "v";

const LONG: usize = 16 << 10;

/// Values that are texts, without the end of a C string: the command line has none.
fn hostile() -> Vec<String> {
    let short = [
        "<script>alert(1)</script><img src=x onerror='alert(1)'>",
        "\"}]}\r\n{\"code\":\"OK\"}\n\"}]",
        "a\nINFO OK d: few=\"b\" -> d.few\r  limit 1/year",
        "\u{1b}[31m\u{7}\u{7f}\u{85}\u{2028}\u{2029}\u{202e}\u{feff}\t",
        "\\u0000\\n\\\\\"'`$(x)",
    ];
    let long = ["<b>\n".repeat(LONG / 4), "\u{202e}".repeat(LONG / 3)];
    short.map(str::to_owned).into_iter().chain(long).collect()
}

fn one(key: &str, value: &str) -> RateLimitRequest {
    request("d", vec![descriptor(&[(key, value)])])
}

/// A request as JSON.
fn body(key: &str, value: &str) -> String {
    let entries = [json!({ "key": key, "value": value })];
    json!({ "domain": "d", "descriptors": [{ "entries": entries }] }).to_string()
}

/// Asks twice for each value, so that it is refused, and for a value that is no text.
async fn hit(server: &Tollgate) {
    let mut client = connect(server.grpc).await;
    for value in hostile() {
        for _ in 0..2 {
            send(&mut client, one("few", &value)).await.unwrap();
        }
        send(&mut client, one(&value, PLAIN)).await.unwrap();
    }
    let mut bytes = one("few", "");
    bytes.descriptors[0].entries[0].value = b"\0\xff\xfe\n<\xc3".to_vec().into();
    send(&mut client, bytes).await.unwrap();
}

/// The lines of a text, which no reader of lines or terminal may see otherwise.
#[track_caller]
fn lines(text: &str) -> Vec<&str> {
    let is_odd = |next: char| {
        next != '\n' && next.is_control() || matches!(next, '\u{2028}'..='\u{202e}' | '\u{feff}')
    };
    let odd = text.chars().find(|next| is_odd(*next));
    assert_eq!(odd, None, "{text}");
    text.lines().collect()
}

/// The output of a command that succeeds, or refuses by its exit code.
#[track_caller]
fn run(args: &[&str]) -> String {
    let output = finish(program().args(args));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// An entry as commands take it.
fn entry(key: &str, value: &str) -> String {
    let escape = |text: &str| {
        let text = text.replace('\\', "\\\\");
        text.replace(',', "\\,").replace('=', "\\=")
    };
    format!("{}={}", escape(key), escape(value))
}

#[test]
fn an_explanation_has_as_many_lines_for_them_as_for_others() {
    let folder = files(&[("rules.yaml", RULES)]);
    let server = tollgate::with_rules(RULES).start();
    let url = url(server.debug);
    for from in [["--rules", path(&folder)], ["--server", &url]] {
        let explain = |key: &str, value: &str, more: &[&str]| {
            let entry = entry(key, value);
            let asked = ["explain", "--domain", "d", "-d", &entry];
            run(&[&asked[..], &from[..], more].concat())
        };
        let count = |key: &str, value: &str| lines(&explain(key, value, &[])).len();
        let (known, unknown) = (count("few", PLAIN), count("many", PLAIN));
        for value in hostile() {
            assert_eq!(count("few", &value), known, "{value:?}");
            assert_eq!(count(&value, PLAIN), unknown, "{value:?}");
            let account = explain("few", &value, &["--json"]);
            check_account(&serde_json::from_str(&account).unwrap(), &value);
        }
    }
}

/// The account has the value, or the beginning of one that is too long.
#[track_caller]
fn check_account(account: &Value, value: &str) {
    assert_eq!(account["descriptors"].as_array().unwrap().len(), 1);
    let entries = account["descriptors"][0]["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 1);
    let shown = entries[0]["value"].as_str().unwrap();
    match shown.rsplit_once("… ") {
        Some((beginning, more)) if value.len() > 256 => {
            let shown_bytes = beginning.len();
            assert!(value.starts_with(beginning) && shown_bytes > 250);
            assert_eq!(more, format!("{} bytes more", value.len() - shown_bytes));
        }
        _ => assert_eq!(shown, value),
    }
}

#[test]
fn the_page_of_explanations_is_json_for_them_and_a_line_for_nonsense() {
    let server = tollgate::with_rules(RULES).start();
    for value in hostile() {
        let body = body("few", &value);
        let reply = json::send(server.debug, "POST", "/explain", body.as_bytes());
        check_account(&reply.json(), &value);
        let nonsense = json!({ &*value: 1 }).to_string();
        let refused = json::send(server.debug, "POST", "/explain", nonsense.as_bytes());
        assert_eq!(refused.status, 400);
        assert_eq!(lines(&refused.body).len(), 1);
        assert!(refused.body.len() < 4096, "{}", refused.body.len());
    }
}

#[tokio::test]
async fn a_logged_decision_is_one_line_of_the_log() {
    let builder = tollgate::with_rules(RULES);
    let server = builder.args(["--log-decisions", "all"]).start();
    hit(&server).await;
    let all = 3 * hostile().len() + 1;
    let decisions = || {
        let log = server.log().text();
        let lines = log.lines().map(str::to_owned);
        lines
            .filter(|line| line.contains("tollgate::decision"))
            .collect::<Vec<_>>()
    };
    wait_until("all decisions are logged", || decisions().len() >= all);
    let decisions = decisions();
    assert_eq!(decisions.len(), all);
    let mut shown = Vec::new();
    for line in decisions {
        let line: Value = serde_json::from_str(&line).unwrap();
        let text = line["@message"].as_str().unwrap();
        assert_eq!(lines(text).len(), 1);
        let decision: Value = serde_json::from_str(text).unwrap();
        assert_eq!(decision["target"], "tollgate::decision");
        assert_eq!(decision["descriptors"].as_array().unwrap().len(), 1);
        let entries = decision["descriptors"][0]["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 1, "{decision}");
        assert!(text.len() < 16 << 10, "{} bytes", text.len());
        shown.push(entries[0].clone());
    }
    for value in hostile() {
        let is_of_it = |entry: &&Value| match entry["value_bytes"].as_u64() {
            None => entry["value"] == *value,
            // Half of a letter may be left at the end.
            Some(bytes) => {
                let beginning = entry["value"].as_str().unwrap();
                let beginning = beginning.trim_end_matches('\u{fffd}');
                let is_cut = value.starts_with(beginning) && beginning.len() > 1020;
                is_cut && bytes == value.len() as u64 && bytes > 1024
            }
        };
        let count = shown.iter().filter(is_of_it).count();
        assert_eq!(count, 2, "{value:?}");
    }
}

#[tokio::test]
async fn top_talkers_have_a_map_for_each() {
    let server = tollgate::with_rules(RULES).start();
    hit(&server).await;
    let body = get(server.debug, "/top").body;
    // A head, and the rule.
    assert_eq!(lines(&body).len(), 2);
    let top: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(top["rules"].as_array().unwrap().len(), 1, "{top}");
    let talkers = top["rules"][0]["talkers"].as_array().unwrap();
    let is_refused = |talker: &&Value| talker["usedPercent"] == 100;
    assert_eq!(talkers.iter().filter(is_refused).count(), hostile().len());
    for value in hostile().iter().filter(|value| value.len() < 100) {
        let has = |talker: &Value| talker["entries"][0]["value"] == **value;
        assert!(talkers.iter().any(has), "{value:?} in {top}");
    }
}

#[tokio::test]
async fn counters_have_a_line_or_a_map_for_each() {
    let server = tollgate::with_rules(RULES).start();
    hit(&server).await;
    let url = url(server.debug);
    for value in hostile() {
        let body = body("few", &value);
        let reply = json::send(server.debug, "POST", "/counters/get", body.as_bytes());
        let counter = &reply.json()["descriptors"][0]["counters"][0];
        assert_eq!(counter["hits"], 2, "{value:?}");
        let get = ["counters", "get", "--server", &url, "--domain", "d", "-d"];
        let said = run(&[&get[..], &[&*entry("few", &value)]].concat());
        assert_eq!(lines(&said).len(), 2, "{value:?}");
    }
}

/// Names of files that forge lines, obey a terminal, or command a pipeline. A pull request chooses them.
const NAMES: [&str; 3] = [
    "x\n2026-11-24T00:00:00Z ERROR tollgate: FORGED\r\u{1b}[31m\u{7}\u{9b}\u{202e}.yaml",
    "::warning file=x::FORGED.yaml",
    " ::error::FORGED.yaml",
];

/// The output of a command or a server has no line of another and no character that a terminal obeys.
#[track_caller]
fn check_lines(output: &str) {
    for line in output.split(['\n', '\r']) {
        let line = line.trim_start();
        assert!(!line.starts_with("2026-11-24"), "{output:?}");
        assert!(!line.starts_with("::"), "{output:?}");
    }
    let is_obeyed = |next: char| matches!(next, '\u{1b}' | '\u{7}' | '\r' | '\u{9b}' | '\u{202e}');
    assert!(!output.contains(is_obeyed), "{output:?}");
}

#[test]
fn names_of_files_are_shown_and_not_obeyed() {
    const FAULTY: &str = "domain: e\ndescriptors: [{key: k, rate_limits: [1/fortnight]}]\n";
    for name in NAMES {
        let folder = files(&[(name, FAULTY)]);
        for arguments in [
            "check .",
            "check -- FILE",
            "lint-envoy .",
            "lint-envoy -- FILE",
            "explain --rules . --domain e -d k=v",
            "serve --config-dir . --log-format text",
        ] {
            let word = |word: &'static str| if word == "FILE" { name } else { word };
            let words = arguments.split(' ').map(word);
            let output = finish(program().current_dir(folder.path()).args(words));
            let output = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            // lint-envoy passes over rules in a folder.
            let is_shown = output.contains("FORGED") || arguments == "lint-envoy .";
            assert!(is_shown, "{output:?}");
            check_lines(&output);
        }
        // A file that comes while the server runs.
        let server = tollgate::with_rules(RULES).start();
        fs::write(server.rules().join(name), FAULTY).unwrap();
        check_lines(&server.log().with("the last good ones stay in use"));
    }
}

/// The name of a limit, which a server sends.
#[tokio::test]
async fn texts_of_a_server_are_shown_and_not_obeyed() {
    let mut name = NAMES[0].escape_default().to_string();
    for (rust, yaml) in [
        ("u{9b}", "x9b"),
        ("u{202e}", "u202e"),
        ("u{1b}", "e"),
        ("u{7}", "a"),
    ] {
        name = name.replace(&format!("\\{rust}"), &format!("\\{yaml}"));
    }
    let rules = format!(
        "domain: d\ndescriptors:\n  - key: k\n    rate_limits: [{{ name: \"{name}\", unit: day, requests_per_unit: 9 }}, 90/year]\n"
    );
    let server = tollgate::with_rules(&rules).start();
    let debug = url(server.debug);
    for arguments in [
        format!("ask --server {}", server.grpc),
        format!("explain --server {debug}"),
        format!("counters get --server {debug}"),
    ] {
        let line = format!("{arguments} --domain d -d k=v");
        let (_, said, errors) = run_in(server.rules(), &line);
        check_lines(&(said + &errors));
    }
}
