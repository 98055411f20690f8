//! The JSON Schema of rule files against the program's own reading of them, over the rules of all golden cases and documents,
//! as a validator of another language sees both.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use ::tollgate::{RuleFiles, RuleOptions};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{cli, examples::document_rules, golden::rule_texts, support::tool};

/// Mistakes of golden cases that are not in the shape of one map, so that no schema can see them.
const UNSEEN: [&str; 4] = [
    "3.3-a-descriptor-twice",
    "3.3-a-rule-that-replaces-itself",
    "3.3-descriptors-that-read-alike",
    "3.3-descriptors-that-read-alike-in-strict-matching",
];

fn schema() -> String {
    let (code, said) = cli::run("schema");
    assert_eq!(code, Some(0));
    said
}

/// The output of a script beside this file, which gets `input`, and reads all of it before it writes anything.
#[track_caller]
fn run<T: DeserializeOwned>(script: &str, input: &Value) -> T {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let mut child = Command::new(tool("python3"))
        .arg(folder.join(script))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.to_string().as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// For each text its first fault by the schema, or `None` if the schema accepts it.
#[track_caller]
fn faults<'t>(texts: impl IntoIterator<Item = &'t str>) -> Vec<Option<String>> {
    let texts: Vec<_> = texts.into_iter().collect();
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let input = json!({"schema": schema, "texts": texts});
    let faults: Vec<_> = run("schema_check.py", &input);
    assert_eq!(faults.len(), texts.len());
    faults
}

fn loads(text: &str) -> bool {
    let files = RuleFiles::of("rules.yaml", text);
    files.compile(RuleOptions::default()).is_ok()
}

#[test]
fn the_schema_that_comes_with_the_repository_is_the_program_s() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rules.schema.json");
    assert_eq!(schema(), fs::read_to_string(file).unwrap());
}

#[test]
fn the_schema_accepts_what_loads_and_refuses_what_does_not() {
    let mut texts = rule_texts();
    texts.extend(document_rules());
    let faults = faults(texts.iter().map(|(_, text)| text.as_str()));
    let mut wrong = Vec::new();
    let mut refused = 0;
    for ((name, text), fault) in texts.iter().zip(faults) {
        match (loads(text), fault, UNSEEN.contains(&&**name)) {
            (true, Some(fault), _) => wrong.push(format!("{name} loads, but {fault}")),
            (false, None, false) => wrong.push(format!("{name} is accepted")),
            (false, Some(_), true) => wrong.push(format!("{name} is seen after all")),
            (false, Some(_), false) => refused += 1,
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused > 10, "only {refused} were refused");
}

/// Limits of a rule, and whether they can be used.
const LIMITS: &str = "
yes rate_limits: [5/day, 300/30m, '10 per 2 hours', +7/WK]
no  rate_limits: [5/M]
no  rate_limits: [day/5]
no  rate_limits: [{unlimited: true}]
no  rate_limits: []
no  rate_limit: {unit: day, requests_per_unit: 1}, rate_limits: [5/day]
yes rate_limit: {unit: day, requests_per_unit: 1}, rate_limits: 
yes rate_limit: {unit: DAY, requests_per_unit: 1}
no  rate_limit: {unit: days, requests_per_unit: 1}
no  rate_limit: {requests_per_unit: 1}
no  rate_limit: {}
yes rate_limit: 
yes rate_limit: {unlimited: true}
no  rate_limit: {unlimited: true, unit: day}
no  rate_limit: {unit: day, requests_per_unit: 5.5}
no  rate_limit: {unit: day, requests_per_unit: '5'}
yes rate_limit: {unit: day, requests_per_unit: 9007199254740991}
no  rate_limit: {unit: day, requests_per_unit: 4294967296, algorithm: sliding_window}
yes rate_limits: [5000000000/month, 1.5M/day, 20k/h]
no  rate_limits: [1.5/day]
no  rate_limits: [1.5K/day]
no  rate_limits: [1.2345k/day]
no  rate_limit: {unit: day, requests_per_unit: 9007199254740992}
no  rate_limit: {unit: day, requests_per_unit: 5, unit_multiplier: 0}
no  rate_limit: {unit: day, requests_per_unit: 5, burst: 3}
yes rate_limit: {unit: day, requests_per_unit: 5, burst: 3, algorithm: token_bucket}
no  rate_limit: {unit: day, requests_per_unit: 10001, algorithm: sliding_log}
no  rate_limit: {unit: day, requests_per_unit: 5, algorithm: leaky_bucket}
yes rate_limits: [{algorithm: concurrency, requests_per_unit: 5, ttl: 2m}, 60/minute]
yes rate_limit: {algorithm: concurrency, requests_per_unit: 10000, ttl: 90 seconds}
yes accuracy: exact-leased, rate_limits: [5/day]
no  accuracy: exact-leased, count: all, rate_limits: [5/day]
no  accuracy: exact-leased, rate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding_log}
no  rate_limit: {algorithm: concurrency, requests_per_unit: 5}
no  rate_limit: {algorithm: concurrency, requests_per_unit: 10001, ttl: 2m}
no  rate_limit: {unit: minute, algorithm: concurrency, requests_per_unit: 5, ttl: 2m}
no  rate_limit: {unit: minute, requests_per_unit: 5, ttl: 2m}
no  rate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding_log, window: first_hit}
yes rate_limit: {unit: day, requests_per_unit: 5, window: first_hit}
no  rate_limit: {unit: day, requests_per_unit: 5, time_zone: UTC}
no  rate_limit: {unit: day, requests_per_unit: 5, calendar: true}
yes rate_limit: {unit: day, requests_per_unit: 5, calendar: true, time_zone: UTC}
no  rate_limit: {unit: hour, requests_per_unit: 5, calendar: true, time_zone: UTC}
no  rate_limit: {unit: day, requests_per_unit: 5, calendar: true, time_zone: UTC, unit_multiplier: 2}
no  rate_limit: {unit: day, requests_per_unit: 5, calendar: true, time_zone: UTC, starts: {month: 2}}
yes rate_limit: {unit: year, requests_per_unit: 5, calendar: true, time_zone: UTC, starts: {month: 2}}
no  rate_limit: {unit: year, requests_per_unit: 5, calendar: true, time_zone: UTC, starts: {month: 13}}
no  rate_limit: {unit: day, requests_per_unit: 5, calendar: true, time_zone: UTC, week_starts: Sunday}
yes rate_limit: {unit: week, requests_per_unit: 5, calendar: true, time_zone: UTC, week_starts: Sunday}
no  rate_limit: {unit: week, requests_per_unit: 5, calendar: true, time_zone: UTC, week_starts: sun}
no  rate_limits: [5/day], share_threshold: true
yes rate_limits: [5/day], value: a*, share_threshold: true
no  rate_limits: [5/day], count: most
yes rate_limits: [5/day], on_store_loss: deny, count: admitted
yes rate_limits: [5/day], value: 404, unit: day
yes rate_limits: [5/day], refusal: {body: problem+json}
yes rate_limits: [5/day], refusal: 
no  rate_limits: [5/day], refusal: {}
no  rate_limits: [5/day], refusal: {body: ''}
yes rate_limits: [5/day], refusal: {body: ok, content_type: }
yes rate_limits: [5/day], refusal: {body: 'a {status}', status: 503}
no  rate_limits: [5/day], refusal: {body: problem+json, status: 399}
no  rate_limits: [5/day], refusal: {body: a, status: 503}
no  rate_limits: [5/day], refusal: {body: problem+json, content_type: text/html}
no  rate_limits: [5/day], refusal: {body: none, status: 429}
yes rate_limits: [5/day], refusal: {body: a, content_type: text/html; charset=UTF-8}
no  rate_limits: [5/day], refusal: {body: a, content_type: text/html; charset=latin1}
yes rate_limits: [5/day], refusal: {body: a, content_type: application/vnd.a.b+xml}
no  rate_limits: [5/day], refusal: {body: a, content_type: image/png}
no  refusal: problem+json, rate_limits: [5/day]
no  rate_limits: [5/day], shadow_mode: 1
no  rate_limits: [5/day], metadata: [a]
no  rate_limit: {unit: day, replaces: [a]}
yes rate_limit: {unit: day, shadow_mode: true}
yes rate_limits: [{unit: day, replaces: [{name: a}]}]
no  rate_limits: [{unit: day, replaces: [{}]}]
";

#[test]
fn the_schema_judges_limits_as_the_program_does() {
    let text = |limits: &str| format!("domain: d\ndescriptors: [{{key: k, {limits}}}]\n");
    let all: Vec<_> = LIMITS.trim().lines().map(|line| line.split_at(4)).collect();
    assert!(all.len() > 60, "{}", all.len());
    let texts: Vec<_> = all.iter().map(|(_, limits)| text(limits)).collect();
    let faults = faults(texts.iter().map(String::as_str));
    for ((is_good, limits), (text, fault)) in all.iter().zip(texts.iter().zip(faults)) {
        let judged = (loads(text), fault.is_none());
        let is_good = *is_good == "yes ";
        assert_eq!(judged, (is_good, is_good), "{limits}: {fault:?}");
    }
}

#[test]
fn the_examples_name_the_schema_and_meet_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["config/small.yaml", "config/full.yaml"];
    let texts = files.map(|name| fs::read_to_string(root.join(name)).unwrap());
    for text in &texts {
        assert!(text.starts_with("# yaml-language-server: $schema=../docs/rules.schema.json\n"));
    }
    assert_eq!(faults(texts.iter().map(String::as_str)), [None, None]);
}

#[test]
fn a_file_can_name_its_schema_at_the_top_and_nowhere_else() {
    let named = "$schema: ../docs/rules.schema.json\ndomain: d\ndescriptors: [{key: k, rate_limits: [5/day]}]\n";
    let json = r#"{"$schema": "a", "domain": "d", "descriptors": [{"key": "k", "rate_limits": ["5/day"]}]}"#;
    let below = "domain: d\ndescriptors: [{$schema: a, key: k, rate_limits: [5/day]}]\n";
    let list = "$schema: [a]\ndomain: d\ndescriptors: [{key: k, rate_limits: [5/day]}]\n";
    let texts = [named, json, below, list];
    let faults = faults(texts);
    for (text, fault) in texts.iter().zip(faults) {
        assert_eq!(loads(text), fault.is_none(), "{text}: {fault:?}");
    }
    assert!(loads(named) && loads(json) && !loads(below) && !loads(list));
    let files = RuleFiles::of("rules.yaml", list).compile(RuleOptions::default());
    let problems = files.unwrap_err();
    let expected = "rules.yaml:1:11: d: `$schema` must be a string, not a list";
    assert_eq!(problems[0].to_string(), expected);
}
