//! Rule files as another YAML reader sees them: PyYAML, with its own few lines about the format. No file is read in part, and none
//! is read differently.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use ::tollgate::{Allows, RuleFiles, RuleOptions};
use serde_json::{Value, json};

use crate::{fuzz::corpus, golden::rule_texts, support::tool};

/// The rules of a text as tollgate reads it, or `None` if it refuses the text.
fn read(text: &str) -> Option<Value> {
    let loaded = RuleFiles::of("rules.yaml", text).compile(RuleOptions::default());
    let matcher = loaded.ok()?.matcher;
    let rules = matcher.rules().iter().map(|rule| match &rule.allows {
        Allows::Unlimited => json!({"path": &*rule.path, "unlimited": true, "limits": []}),
        Allows::Within(limits) => {
            let limits = limits.iter();
            let pairs = limits.map(|limit| json!([limit.requests_per_unit, limit.period.secs()]));
            json!({"path": &*rule.path, "unlimited": false, "limits": pairs.collect::<Vec<_>>()})
        }
    });
    Some(json!({"domains": matcher.domain_count(), "rules": rules.collect::<Vec<_>>()}))
}

/// The rules of each text as the other reader sees them.
fn read_by_another(texts: &[&str]) -> Vec<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/yaml_reader.py");
    let mut python = Command::new(tool("python3"))
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let texts = serde_json::to_vec(texts).unwrap();
    // It reads all before it writes anything.
    python.stdin.take().unwrap().write_all(&texts).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Texts and rules that both readers agreed on, and texts that only PyYAML refuses.
#[derive(Debug, Default, PartialEq)]
struct Agreed {
    texts: usize,
    rules: usize,
    refused: usize,
}

/// Checks that both readers see the same in every text that tollgate loads, unless PyYAML refuses it.
#[track_caller]
fn check<'t>(texts: impl IntoIterator<Item = &'t str>) -> Agreed {
    let loaded: Vec<_> = texts
        .into_iter()
        .filter_map(|text| Some((text, read(text)?)))
        .collect();
    let texts: Vec<_> = loaded.iter().map(|(text, _)| *text).collect();
    let others = read_by_another(&texts);
    assert_eq!(others.len(), loaded.len());
    let mut agreed = Agreed::default();
    for ((text, ours), other) in loaded.iter().zip(&others) {
        if other.get("refused").is_some() {
            agreed.refused += 1;
            continue;
        }
        assert_eq!(ours, other, "left is tollgate, right is PyYAML, of\n{text}");
        agreed.texts += 1;
        agreed.rules += ours["rules"].as_array().unwrap().len();
    }
    agreed
}

/// Ways to write rules that readers of YAML have disagreed on, and the number of rules in each; `None` if tollgate refuses it.
const NASTY: &[(&str, Option<usize>)] = &[
    // Byte order marks.
    (
        "\u{feff}domain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        "\u{feff}---\ndomain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        "\u{feff}{\"domain\": \"d\", \"descriptors\": [{\"key\": \"a\", \"rate_limits\": [\"5/s\"]}]}",
        Some(1),
    ),
    (
        "domain: d\n\u{feff}descriptors: [{key: a, rate_limits: [5/s]}]\n",
        None,
    ),
    // Beginnings and ends of documents.
    (
        "---\ndomain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n...\n",
        Some(1),
    ),
    (
        "--- # first\ndomain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n--- # none\n",
        Some(1),
    ),
    (
        "--- {domain: d, descriptors: [{key: a, rate_limits: [5/s]}]}\n",
        Some(1),
    ),
    (
        "%YAML 1.1\n---\ndomain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        "---\n---\ndomain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n---\n",
        Some(1),
    ),
    (
        "domain: d\n---\ndescriptors: [{key: a, rate_limits: [5/s]}]\n",
        None,
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n...\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n...\nmore: x\n",
        None,
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n...\n---\ndomain: e\ndescriptors: [{key: b, rate_limits: [6/s]}]\n",
        Some(2),
    ),
    (
        "domain: d\n...\n---\ndomain: e\n...\n---\ndomain: f\ndescriptors: [{key: b, rate_limits: [6/s]}]\n",
        Some(1),
    ),
    (
        "domain: ---\ndescriptors: [{key: '...', rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: '---', value: '...', rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors:\n- key: |\n    ---\n    a\n  rate_limits: [5/s]\n",
        Some(1),
    ),
    // Indentation.
    (
        " domain: d\n descriptors: [{key: a, rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        " domain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n",
        None,
    ),
    (
        "domain: d\n descriptors: [{key: a, rate_limits: [5/s]}]\n",
        None,
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limits:\n  - 5/s\n  - 6/m\n- key: b\n  rate_limits: [7/h]\n",
        Some(2),
    ),
    (
        "domain: d\ndescriptors:\n    -   key: a\n        rate_limits:\n            -   5/s\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors:\n  - key: a\n    rate_limits: [5/s]\n - key: b\n",
        None,
    ),
    (
        "domain: d\ndescriptors:\n  - key: a\n    rate_limits: [5/s]\n   # a comment\n  - key: b\n    rate_limits: [5/s]\n",
        Some(2),
    ),
    ("domain: d\ndescriptors:\n\t- key: a\n", None),
    (
        "domain: d\ndescriptors:\n  - key: a\t# tab\n    rate_limits:\t[5/s]\t\n",
        Some(1),
    ),
    // JSON.
    (
        "{\"domain\": \"d\", \"descriptors\": [{\"key\": \"a\", \"rate_limits\": [\"5/s\"]}]}\n\n",
        Some(1),
    ),
    (
        "{\"domain\": \"d\", \"descriptors\": [{\"key\": \"a\", \"rate_limits\": [\"5/s\"]}]} trailing",
        None,
    ),
    (
        "{\"domain\": \"d\", \"descriptors\": [{\"key\": \"a\", \"rate_limits\": [\"5/s\"]}]}\n{\"domain\": \"e\"}",
        None,
    ),
    (
        "{\"domain\":\"d\",\"descriptors\":[{\"key\":\"a\",\"value\":\"\\u00e9\\n\\/\",\"rate_limits\":[\"5/s\"]}]}",
        Some(1),
    ),
    (
        "{\n\t\"domain\": \"d\",\n\t\"descriptors\": [\n\t\t{\"key\": \"a\", \"rate_limits\": [\"5/s\"]}\n\t]\n}",
        Some(1),
    ),
    // Line breaks.
    (
        "domain: d\r\ndescriptors:\r\n  - key: a\r\n    rate_limits: [5/s]\r\n",
        Some(1),
    ),
    (
        "domain: d\rdescriptors:\r  - key: a\r    rate_limits: [5/s]\r",
        Some(1),
    ),
    (
        "domain: d\u{85}descriptors:\u{85}  - key: a\u{85}    rate_limits: [5/s]\u{85}",
        Some(1),
    ),
    (
        "domain: d\u{2028}descriptors:\u{2029}  - key: a\u{2028}    rate_limits: [5/s]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: \"a\u{85}b\u{2028}c\", rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: \"a\n\n b\\\n  c\", rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]",
        Some(1),
    ),
    // Anchors and merged maps.
    (
        "domain: d\ndescriptors:\n- &x {key: a, rate_limits: &l [5/s]}\n- {<<: *x, key: b}\n- {<<: [*x, {value: c}], key: b}\n- {key: e, rate_limits: *l}\n",
        Some(4),
    ),
    (
        "domain: d\ndescriptors:\n- {key: a, rate_limit: &x {unit: hour, requests_per_unit: 5}}\n- {key: b, rate_limit: {requests_per_unit: 7, <<: *x}}\n",
        Some(2),
    ),
    (
        "domain: d\ndescriptors:\n- {key: &k a, rate_limits: [5/s], descriptors: [{key: *k, rate_limits: [6/s]}]}\n",
        Some(2),
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limits: *x}]\n",
        None,
    ),
    (
        "domain: &d d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n---\ndomain: *d\n",
        None,
    ),
    // Tags.
    (
        "domain: !!str 5\ndescriptors: !!seq [!!map {key: !!str 7, value: !!str b, rate_limits: [!!str 5/s]}]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: a, value: !!binary aGk=, rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors:\n- key: !!binary |\n    aG\n    k=\n  rate_limits: [5/s]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: a, value: !!binary /w==, rate_limits: [5/s]}]\n",
        None,
    ),
    (
        "domain: d\ndescriptors: [{key: '!!binary aGk=', value: 'x !!binary y', rate_limits: [5/s]}]\n",
        Some(1),
    ),
    ("domain: d\ndescriptors: !include rules\n", None),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {<<: base, unit: day}}]\n",
        None,
    ),
    // Repeated keys: the last one counts.
    (
        "domain: x\ndomain: d\ndescriptors: [{key: a, key: b, rate_limits: [5/s], rate_limits: [6/s]}]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\ndescriptors: [{key: b, rate_limits: [5/s]}]\n",
        Some(1),
    ),
    // Flow style and texts.
    (
        "{domain: d, descriptors: [{key: a, rate_limits: [5/s, 6/m,]},]}",
        Some(1),
    ),
    (
        "{domain: d, descriptors: [{key: a,\n# why\n rate_limits: [5/s\n]}]}",
        Some(1),
    ),
    (
        "{\"domain\":\"d\",descriptors:\n[{\"key\":'it''s', rate_limits: [5/s]}]}",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{? key : a, ? rate_limits : [5/s]}]\n",
        Some(1),
    ),
    (
        "? domain\n: d\n? descriptors\n: - ? key\n    : a\n    ? rate_limits\n    : - 5/s\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: a b\n  c, rate_limits: [5/s]}]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors:\n- key: >-\n    a\n    b\n\n    c\n  value: |+\n    x\n\n  rate_limits: [5/s]\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: a#b, value: 'c # d', rate_limits: [5/s]}] # e\n",
        Some(1),
    ),
    (
        "domain: d\ndescriptors: [{key: a:b, value: \"c: d\", rate_limits: [5/s]}]\n",
        Some(1),
    ),
    // Values of other types, and none.
    (
        "domain: 123\ndescriptors: [{key: yes, value: 0x1F, rate_limits: [5/s]}, {key: n, value: 010, rate_limits: [5/s]}]\n",
        Some(2),
    ),
    (
        "domain: d\ndescriptors: [{key: a, value: ~, rate_limits: [5/s]}, {key: a, value: '~', rate_limits: [5/s]}, {key: b, value: , rate_limits: [5/s]}]\n",
        Some(3),
    ),
    (
        "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: DAY, requests_per_unit: 0x1F, unit_multiplier: 0b11}}\n- {key: b, rate_limit: {unit: day, requests_per_unit: 010}}\n- {key: c, rate_limit: {unit: day, requests_per_unit: 1_000}}\n- {key: e, rate_limit: {unlimited: On}}\n- {key: f, rate_limit: ~}\n- {key: g, rate_limit: {unit: day, requests_per_unit: +7}}\n",
        Some(5),
    ),
];

#[test]
fn files_that_readers_disagree_on_are_refused_or_read_as_another_reads_them() {
    let mut wrong = Vec::new();
    for (text, rules) in NASTY {
        let read = read(text).map(|read| read["rules"].as_array().unwrap().len());
        if read != *rules {
            wrong.push(format!("{read:?} instead of {rules:?} rules in {text:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let loaded = NASTY.iter().filter(|(_, rules)| rules.is_some()).count();
    let rules = NASTY.iter().filter_map(|(_, rules)| *rules).sum();
    let expected = Agreed {
        texts: loaded,
        rules,
        refused: 0,
    };
    assert_eq!(check(NASTY.iter().map(|(text, _)| *text)), expected);
}

fn files_in(folder: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    let texts = paths.iter().map(fs::read);
    let texts = texts.filter_map(|bytes| String::from_utf8(bytes.unwrap()).ok());
    texts.collect()
}

#[test]
fn our_own_rule_files_mean_the_same_to_another_reader() {
    let mut texts: Vec<_> = rule_texts().into_iter().map(|(_, text)| text).collect();
    for folder in ["config", "deploy/compose/rules"] {
        texts.extend(files_in(folder));
    }
    let corpus = corpus("rules").into_iter();
    texts.extend(corpus.filter_map(|bytes| String::from_utf8(bytes).ok()));
    let agreed = check(texts.iter().map(String::as_str));
    assert!(agreed.texts > 100 && agreed.rules > 200, "{agreed:?}");
    assert_eq!(agreed.refused, 0);
}

/// Rules in most of YAML's styles.
const GOOD: &str = r#"domain: shop
count: all
descriptors:
  - key: plan
    value: "trial-*"
    rate_limit: &hourly { unit: hour, requests_per_unit: 20 }
  - key: plan
    rate_limit: { <<: *hourly, requests_per_unit: 1000 } # of all others
  - key: 'route'
    value: checkout page
    rate_limit:
      unit: second
      requests_per_unit: 50
    descriptors:
      - key: user
        shadow_mode: yes
        descriptors:
          - { key: card, value: expired, rate_limit: { unit: day, requests_per_unit: 3 } }
          - key: >-
              long
              name
            rate_limits: [5/s, 300/30m]
  - key: login
    rate_limit: { unit: minute, unit_multiplier: 15, requests_per_unit: 0x10 }
---
domain: health
descriptors: [{ key: path, value: /health, rate_limit: { unlimited: true } }]
"#;

/// Files that begin as a good one and got a few mistakes: most are refused, and no other loses or gains a rule unnoticed.
#[test]
fn files_with_random_changes_mean_the_same_to_another_reader() {
    // No tab: PyYAML refuses it in a plain text, where YAML allows it.
    let bits = [
        "---\n",
        "...\n",
        "\n",
        "\r",
        "\r\n",
        "\u{feff}",
        "\u{85}",
        "\u{2028}",
        " ",
        "  ",
        "- ",
        ": ",
        ":",
        ", ",
        "#",
        " #",
        "'",
        "\"",
        "[",
        "]",
        "{",
        "}",
        "{}",
        "[]",
        "&a ",
        "*a",
        "<<: ",
        "!!str ",
        "!!binary ",
        "| ",
        "> ",
        "~",
        "null",
        "\ndomain: e\n",
        "\n---\ndomain: e\n",
        "key: ",
        "\nkey: x\n",
        "\u{a0}",
        "%",
        "@",
        "? ",
        "0x10",
        "1_0",
    ];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |end: usize| {
        // Xorshift, so that every run has the same texts.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random >> 33).unwrap() % end
    };
    let mut texts = Vec::new();
    for _ in 0..12_000 {
        let mut text: Vec<char> = GOOD.chars().collect();
        for _ in 0..=below(3) {
            let at = below(text.len());
            let end = text.len().min(at + [0, 0, 1, 2, 20][below(5)]);
            text.splice(at..end, bits[below(bits.len())].chars());
        }
        texts.push(String::from_iter(text));
    }
    let agreed = check(texts.iter().map(String::as_str));
    assert!(agreed.texts > 400 && agreed.rules > 3_000, "{agreed:?}");
    // It knows neither `>#` nor, in brackets, a question mark behind a word.
    assert!(agreed.refused * 50 < agreed.texts, "{agreed:?}");
}

/// The comparison sees a rule that is missing, and a file that ends early.
#[test]
fn the_other_reader_sees_every_rule() {
    let whole = "domain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n---\ndomain: e\ndescriptors: [{key: b, rate_limits: [6/m]}]\n";
    let other = read_by_another(&[whole]);
    let expected = json!({"domains": 2, "rules": [
        {"path": "d.a", "unlimited": false, "limits": [[5, 1]]},
        {"path": "e.b", "unlimited": false, "limits": [[6, 60]]},
    ]});
    assert_eq!(other, [expected]);
    let first = whole.split("---").next().unwrap();
    assert_ne!(read(first).as_ref(), Some(&other[0]));
}
