//! Rule files as PyYAML sees them, with its own few lines about the format. None is read in part or differently.

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
    let pair = |text: &'t str| Some((text, read(text)?));
    let (texts, ours): (Vec<_>, Vec<_>) = texts.into_iter().filter_map(pair).unzip();
    let others = read_by_another(&texts);
    assert_eq!(others.len(), ours.len());
    let mut agreed = Agreed::default();
    for ((text, ours), other) in texts.iter().zip(&ours).zip(&others) {
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

/// The texts of second_reader.txt, and the number of rules in each; `None` if tollgate refuses it.
fn nasty() -> Vec<(String, Option<usize>)> {
    let lines = include_str!("second_reader.txt").lines();
    let texts = lines.filter(|line| !line.starts_with('#')).map(|line| {
        let (rules, text) = line.split_once(' ').unwrap();
        (serde_json::from_str(text).unwrap(), rules.parse().ok())
    });
    texts.collect()
}

#[test]
fn files_that_readers_disagree_on_are_refused_or_read_as_another_reads_them() {
    let nasty = nasty();
    assert!(nasty.len() > 50, "{}", nasty.len());
    for (text, rules) in &nasty {
        let read = read(text).map(|read| read["rules"].as_array().unwrap().len());
        assert_eq!(read, *rules, "rules in {text:?}");
    }
    let rules = nasty.iter().filter_map(|(_, rules)| *rules);
    let expected = Agreed {
        texts: rules.clone().count(),
        rules: rules.sum(),
        refused: 0,
    };
    assert_eq!(check(nasty.iter().map(|(text, _)| &**text)), expected);
}

fn files_in(folder: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.is_file()).map(fs::read);
    let texts = files.filter_map(|bytes| String::from_utf8(bytes.unwrap()).ok());
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

/// Most of them are refused, and no other loses or gains a rule unnoticed.
#[test]
fn files_with_random_changes_mean_the_same_to_another_reader() {
    // No tab: PyYAML refuses it in a plain text, where YAML allows it.
    #[rustfmt::skip]
    let bits = [
        "---\n", "...\n", "\n", "\r", "\r\n", "\u{feff}", "\u{85}", "\u{2028}", " ", "  ", "- ",
        ": ", ":", ", ", "#", " #", "'", "\"", "[", "]", "{", "}", "{}", "[]", "&a ", "*a", "<<: ",
        "!!str ", "| ", "> ", "~", "null", "\ndomain: e\n", "\n---\ndomain: e\n", "key: ",
        "\nkey: x\n", "\u{a0}", "%", "@", "? ", "0x10", "1_0",
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
