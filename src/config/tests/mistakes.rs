//! Mistakes that people make in rule files, and the line that each of them gets: one for each, at the place to repair.

use std::fmt::Write as _;

use super::{compile_texts, descriptor};
use crate::{
    config::{files::Files, rule_defaults::Options, source::Source},
    core::metadata::MetadataValue,
};

/// Every line of `check` about a file with this text, without the name of the file.
fn lines_of(text: &str) -> Vec<String> {
    let problems = match compile_texts(&[text], Options::default()) {
        Ok(loaded) => loaded.warnings,
        Err(problems) => problems,
    };
    let shown = problems.iter().map(ToString::to_string);
    let shown = shown.map(|line| line.trim_start_matches("a.yaml:").trim_start().to_owned());
    shown.collect()
}

/// Checks files, each with its only line.
#[track_caller]
pub(super) fn check(cases: &[(&str, &str)]) {
    check_each(cases, str::to_owned);
}

/// Checks descriptors that contain this text, from line 4 and column 5 on, each with its only line.
#[track_caller]
pub(super) fn check_bodies(cases: &[(&str, &str)]) {
    check_each(cases, descriptor);
}

#[track_caller]
fn check_each(cases: &[(&str, &str)], text_of: fn(&str) -> String) {
    let mut wrong = String::new();
    for (case, expected) in cases {
        let found = lines_of(&text_of(case)).join("\n");
        if found != *expected {
            let _ = writeln!(wrong, "{case}\n-- said\n{found}\n-- not\n{expected}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn blanks_that_are_none_are_named() {
    check(&[
        (
            "domain: d\ndescriptors:\n\t- key: a\n",
            "3:1: a tab; YAML indents with blanks",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n\t  rate_limits: [5/s]\n",
            "4:1: a tab; YAML indents with blanks",
        ),
        (
            "domain: d\ndescriptors:\n  -\tkey: a\n    \tvalue: b\n",
            "3:4: a tab; YAML indents with blanks",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n\u{a0}\u{a0}\u{a0}\u{a0}rate_limits: [5/s]\n",
            "4:1: d: unknown key '\\u{a0}\\u{a0}\\u{a0}\\u{a0}rate_limits' (expected one of domain, descriptors, \
                 count, on_store_loss, refusal)",
        ),
        // In brackets a tab is a blank, and the mistake is another.
        (
            "{\n\t\"domain\": \"d\"\n\t\"descriptors\": []\n}\n",
            "3:2: invalid YAML: did not find expected ',' or '}'",
        ),
        (
            "domain: d\n\u{feff}descriptors:\n  - key: a\n    rate_limits: [5/s]\n",
            "2:1: a byte order mark (U+FEFF) inside of the file; remove it",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    \u{3000}rate_limits: [5/s]\n",
            "4:5: d.a: unknown key '\\u{3000}rate_limits' (expected `rate_limits`)",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n  \u{a0} rate_limits: [5/s]\n",
            "4:3: invalid YAML: did not find expected '-' indicator",
        ),
        (
            "domain: d\ndescriptors:\n  - key:\u{a0}a\n    rate_limits: [5/s]\n",
            "3:5: `key:\\u{a0}a` has no `: ` between a key and its value",
        ),
        (
            "domain: d\ndescriptors:\n  -\u{a0}key: a\n    rate_limits: [5/s]\n",
            "4:5: no key can be here: the line above has a value already, or lacks its `:`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: \u{a0}a\n    rate_limits: [5/s]\n",
            "",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\u{200b}\n    rate_limits: [5/s]\n",
            "",
        ),
    ]);
}

#[test]
fn curly_quotes_are_named() {
    check(&[
        (
            "domain: d\ndescriptors:\n  - key: “a”\n    rate_limits: [5/s]\n",
            "",
        ),
        (
            "domain: d\ndescriptors:\n  - “key”: a\n    rate_limits: [5/s]\n",
            "3:5: d: unknown key '“key”' (expected `key`)",
        ),
        (
            "domain: ‘d’\ndescriptors:\n  - key: a\n    rate_limits: [5/s]\n",
            "",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: '“b”'\n    rate_limits: [5/s]\n",
            "",
        ),
    ]);
}

#[test]
fn a_line_without_its_colon_is_named() {
    check(&[
        (
            "domain: d\ndescriptors:\n  - key a\n    rate_limits: [5/s]\n",
            "3:5: `key a` has no `: ` between a key and its value",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value b\n    rate_limits: [5/s]\n",
            "4:5: `value b` has no `: ` between a key and its value",
        ),
        (
            "domain: d\ndescriptors:\n  - key a\n",
            "3:5: d: an item of this list must be a map, such as `key: NAME`, not key a",
        ),
        (
            "domain: d\ndescriptors:\n  - key:a\n    rate_limits: [5/s]\n",
            "3:5: `key:a` has no `: ` between a key and its value",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      unit second\n      requests_per_unit: 3\n",
            "5:7: `unit second` has no `: ` between a key and its value",
        ),
        (
            "domain d\ndescriptors:\n  - key: a\n",
            "1:1: `domain d` has no `: ` between a key and its value",
        ),
        (
            "domain: d\ndescriptors\n  - key: a\n",
            "2:1: `descriptors` has no `: ` between a key and its value",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit\n      unit: second\n",
            "4:5: `rate_limit` has no `: ` between a key and its value",
        ),
        ("domain d\n", "1:1: the file must be a map, not domain d"),
        (
            "domain: d\ndescriptors:\n  - key: a\n      value: b\n",
            "4:7: no key can be here: the line above has a value already, or lacks its `:`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a value: b\n",
            "3:17: a second `: ` in one line; begin a new line, or put a value that holds it in quotes",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n   value: b\n",
            "4:4: invalid YAML: did not find expected '-' indicator",
        ),
    ]);
}

#[test]
fn what_is_not_closed_is_named_where_it_was_opened() {
    check(&[
        (
            "domain: d\ndescriptors:\n  - key: \"a\n    rate_limits: [5/s]\n",
            "3:10: this `\"` is not closed",
        ),
        (
            "domain: d\ndescriptors:\n  - key: \"a\n    value: \"b\"\n    rate_limits: [5/s]\n",
            "4:13: invalid YAML: did not find expected key",
        ),
        (
            "domain: d\ndescriptors:\n  - key: 'a\n    rate_limits: [5/s]\n",
            "3:10: this `'` is not closed",
        ),
        (
            "domain: d\ndescriptors: [\n",
            "2:14: this `[` is not closed",
        ),
        (
            "domain: d\ndescriptors: [{key: a}\n",
            "2:14: this `[` is not closed",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: second, requests_per_unit: 3\n  - key: b\n",
            "4:17: this `{` is not closed",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limits: [5/s, 20/m\n    value: b\n",
            "4:18: this `[` is not closed",
        ),
        (
            "{\"domain\": \"d\", \"descriptors\": [{\"key\": \"a\"]}",
            "1:33: this `{` is not closed",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limits: 5/s]\n",
            "4:18: d.a: `rate_limits` must be a list, not 5/s]",
        ),
        (
            "domain: d # it's\ndescriptors: # a { too\n  - key: |\n      it's [\n    rate_limits: [5/s\n",
            "5:18: this `[` is not closed",
        ),
        (
            "domain: d\ndescriptors:\n  - key: \"a\n---\ndomain: e\n",
            "3:10: this `\"` is not closed",
        ),
        ("{", "1:1: this `{` is not closed"),
    ]);
}

#[test]
fn a_text_that_begins_with_a_sign_of_yaml_needs_quotes() {
    check(&[
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: *\n    rate_limits: [5/s]\n",
            "4:12: a text cannot begin with `*`; put it in quotes",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: *.com\n    rate_limits: [5/s]\n",
            "4:12: a text cannot begin with `*`; put it in quotes",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: *a\n    rate_limits: [5/s]\n",
            "4:12: a text cannot begin with `*`; put it in quotes",
        ),
        (
            "domain: d\ndescriptors:\n  - key: & b\n",
            "3:10: a text cannot begin with `&`; put it in quotes",
        ),
        (
            "domain: d\ndescriptors:\n  - key: @a\n",
            "3:10: a text cannot begin with `@`; put it in quotes",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: %20\n",
            "4:12: a text cannot begin with `%`; put it in quotes",
        ),
        (
            "domain: d\0\n",
            "1:10: invalid YAML: control characters are not allowed",
        ),
    ]);
}

#[test]
fn a_file_of_another_kind_is_named() {
    check(&[
        (
            "",
            "the file is empty; write `domain: NAME` and `descriptors:`, or remove it",
        ),
        (
            "# domain: d\n\n---\n",
            "the file is empty; write `domain: NAME` and `descriptors:`, or remove it",
        ),
        (
            "{}\n",
            "config file cannot have empty domain; write `domain: NAME` at the top",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rules}\ndata:\n  a.yaml: |\n    domain: d\n",
            "1:1: this is a Kubernetes ConfigMap: no rule file; keep it elsewhere, and mount a ConfigMap of rules \
                 as a folder",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: []\n",
            "1:1: this is a Kubernetes List: no rule file; keep it elsewhere, and mount a ConfigMap of rules \
                 as a folder",
        ),
        (
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n",
            "1:1: this is a Kubernetes Kustomization: no rule file; keep it elsewhere, and mount a ConfigMap of rules \
                 as a folder",
        ),
        (
            "static_resources: {listeners: []}\n",
            "1:1: this is an Envoy configuration: no rule file; `tollgate lint-envoy` reads it",
        ),
        (
            "admin: {}\nnode: {id: a}\n",
            "1:1: this is an Envoy configuration: no rule file; `tollgate lint-envoy` reads it",
        ),
        // Nothing else is known of this one.
        (
            "penalty: 3\ndomain: d\ndescriptors: [{key: a, rate_limits: [5/s]}]\n",
            "1:1: d: unknown key 'penalty' (expected one of domain, descriptors, count, on_store_loss, refusal)",
        ),
    ]);
}

#[test]
fn binary_values_are_texts_or_refused() {
    let refused =
        "tags such as `!include` are not supported, and `!!binary` must be UTF-8 text in base64";
    check_bodies(&[
        (
            "metadata:\n  a: !!binary |\n    /w==\nrate_limits: [5/s]",
            &format!("5:7: d.k: {refused}"),
        ),
        (
            "metadata: {!!binary /w==: 1}\nrate_limits: [5/s]",
            &format!("4:5: d.k: {refused}"),
        ),
        (
            "value: !<tag:yaml.org,2002:binary> /w==\nrate_limits: [5/s]",
            &format!("4:5: d.k: {refused}"),
        ),
        (
            "value: !!binary aGk\nrate_limits: [5/s]",
            &format!("4:5: d.k: {refused}"),
        ),
        (
            "value: !!binary aA==aA==\nrate_limits: [5/s]",
            &format!("4:5: d.k: {refused}"),
        ),
        (
            "value: !binary aGk=\nrate_limits: [5/s]",
            &format!("4:5: d.k: {refused}"),
        ),
        ("value: \"!!binary\" # !!binary a\nrate_limits: [5/s]", ""),
    ]);
}

/// A text in base64 is the text, as the reference reads it.
#[test]
fn a_binary_value_that_is_text_is_that_text() {
    let text = descriptor(
        "value: !!binary \"aGk=\"\nrate_limits: [5/s]\nmetadata:\n  !!binary YQ==: !!binary |\n    aG\n    k=\n  b: \
             \"!!binary x\"\n  \"!!binary YQ==\": !<tag:yaml.org,2002:binary> MTIz",
    );
    let loaded = compile_texts(&[&text], Options::default());
    let problems = loaded.as_ref().err();
    let loaded = loaded.as_ref().unwrap_or_else(|_| panic!("{problems:?}"));
    let rule = &loaded.matcher.rules()[0];
    let text = |text: &str| MetadataValue::Text(text.to_owned());
    assert_eq!(&*rule.path, "d.k_hi");
    let expected = [("a", "hi"), ("b", "!!binary x"), ("!!binary YQ==", "123")];
    let expected = expected.map(|(key, value)| (key, text(value)));
    assert_eq!(
        rule.metadata.as_deref(),
        Some(&expected.into_iter().collect())
    );
}

#[test]
fn a_byte_that_is_no_text_is_named_with_its_place() {
    for (bytes, line) in [
        (
            &b"domain: d\n# caf\xe9\n"[..],
            "2:6: the byte 0xE9 is not UTF-8 text; save the file as UTF-8",
        ),
        (
            b"\xef\xbb\xbf\xff",
            "1:1: the byte 0xFF is not UTF-8 text; save the file as UTF-8",
        ),
        (b"\xff\xfed\0", " UTF-16 text; save it as UTF-8"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), bytes).unwrap();
        let read = Files::read(&Source::Paths(vec![folder.path().to_owned()]));
        let problems = read.compile(Options::default()).unwrap_err();
        let shown: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(shown, [format!("a.yaml:{line}")]);
    }
}

/// A tree of them would take more than a hundred times their memory.
#[test]
fn a_long_text_of_brackets_and_commas_is_refused_before_it_is_read() {
    let domain = "domain: d\ndescriptors:";
    let is_dense = |text: &str| {
        lines_of(text)
            .iter()
            .any(|problem| problem.contains("to be read at once"))
    };
    for item in ["{},", "[],", "a,", "[[[a]]],"] {
        let items = item.repeat((1 << 20) / item.len());
        assert!(is_dense(&format!("{domain} [{items}a]\n")), "{item}");
    }
    for line in ["-\n", "a: b\n", "<<: 1\n"] {
        let lines = line.repeat((1 << 20) / line.len());
        assert!(is_dense(&format!("domain: d\n{lines}")), "{line}");
    }
    // A mistake at the end of rules that cannot be read at once has its place.
    let rules: String = (0..60_000)
        .map(|number| format!("- {{key: a{number}}}\n"))
        .collect();
    let lines = lines_of(&format!("{domain}\n{rules}- {{key: [\n"));
    assert_eq!(lines, ["60003:9: this `[` is not closed"]);
    // The densest rules.
    let many =
        |count: usize, rule: &dyn Fn(usize) -> String| (0..count).map(rule).collect::<String>();
    let limits: String = many(9_000, &|number| format!("{}/{}s,", number + 1, number + 1));
    let keys: String = many(40_000, &|number| {
        format!("- {{key: u, value: a{number}}}\n")
    });
    let pairs: String = many(8_000, &|number| {
        format!(
            "- key: key{number}\n  rate_limits: [1/s]\n  metadata: {{a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: 8}}\n"
        )
    });
    let json: String = many(3_000, &|number| {
        format!(
            r#"{{"key":"k{number}","rate_limits":["1/s"],"metadata":{{"a":[1,{{"b":"c"}}]}}}},"#
        )
    });
    for text in [
        format!("{domain}\n- key: k\n  rate_limits: [{limits}1/d]\n"),
        format!("{domain}\n{keys}"),
        format!("{domain}\n{pairs}"),
        format!(r#"{{"domain":"d","descriptors":[{json}{{"key":"z"}}]}}"#),
    ] {
        assert!(text.len() > 64 << 10);
        assert!(!is_dense(&text), "{}", &text[..60]);
    }
}

/// Each of these took seconds or hundreds of megabytes: of paths, of nearest keys, of nodes and texts behind aliases,
/// of pairs of names, or of keys above numbers.
#[test]
fn a_text_of_a_megabyte_is_a_short_report() {
    let many =
        |count: usize, part: &dyn Fn(usize) -> String| (0..count).map(part).collect::<String>();
    let keys = many(40_000, &|number| format!("unknown-key-{number}: 1, "));
    let ranges = many(30_000, &|number| format!("value: 10.{number}.0.0/8, "));
    let base = many(10_000, &|number| format!("a{number}: b, "));
    let long = "k".repeat(900_000);
    for text in [
        format!("{{domain: d, {keys}}}"),
        format!("domain: d\ndescriptors: [{{key: k, {keys}}}]\n"),
        format!("domain: d\ndescriptors: [{{key: generic_key, {ranges}}}]\n"),
        format!(
            "domain: d\nx: &a {{{base}}}\ny: [{}]\n",
            "*a, ".repeat(2_000)
        ),
        format!(
            "domain: d\ndescriptors:\n- key: {long}\n  descriptors:\n{}",
            "  - {keyy: a}\n".repeat(200)
        ),
        format!(
            "domain: d\ndescriptors: [{}]\n",
            "{key: a}, ".repeat(100_000)
        ),
        format!(
            "domain: {long}\ndescriptors:\n{}",
            many(4_000, &|number| format!(
                "- {{key: k{number}, rate_limits: [1/s]}}\n"
            ))
        ),
        format!(
            "domain: d\ndescriptors:\n- key: &k {long}\n  rate_limits: [1/s]\n{}",
            "- key: *k\n".repeat(10_000)
        ),
        format!(
            "domain: d\ndescriptors:\n- key: k\n  rate_limits:\n{}  - {{unit: year, requests_per_unit: 1, replaces: \
             [{}]}}\n",
            many(999, &|number| format!(
                "  - {{unit: day, unit_multiplier: {}, name: n{number}}}\n",
                number + 1
            )),
            many(40_000, &|number| format!("{{name: z{number}}}, "))
        ),
        format!(
            "domain: d\ndescriptors:\n- key: k\n  metadata:\n    ? {long}\n    : [{}]\n",
            "1, ".repeat(40_000)
        ),
        format!(
            "domain: d\ndescriptors:\n{}{}",
            many(4_000, &|number| format!("- key: z*{number:04}*q\n")),
            many(50_000, &|number| format!("- key: a{number}\n"))
        ),
    ] {
        let lines = lines_of(&text);
        let bytes: usize = lines.iter().map(String::len).sum();
        let (start, lines): (String, _) = (text.chars().take(60).collect(), lines.len());
        assert!(
            lines <= 202 && bytes < 2 << 20,
            "{start}: {lines} lines, {bytes} bytes"
        );
    }
}

#[test]
fn wildcards_of_a_level_have_a_bound_in_bytes() {
    let file = |count: usize, value: &dyn Fn(usize) -> String| {
        let rules = (0..count).map(|number| {
            format!(
                "- {{key: k, value: '{}', rate_limits: [5/s]}}\n",
                value(number)
            )
        });
        format!("domain: d\ndescriptors:\n{}", rules.collect::<String>())
    };
    let short = |number: usize| format!("{number:04}*");
    assert_eq!(lines_of(&file(4_096, &short)), [""; 0]);
    let long = |number: usize| format!("{}{number:03}*", "x".repeat(1_018));
    assert_eq!(lines_of(&file(64, &long)), [""; 0]);
    let pieces = |number: usize| format!("*a*{number:04}*");
    assert_eq!(lines_of(&file(1_700, &pieces)), [""; 0]);
    let expected = "the wildcards of this level are longer than 65536 bytes together, each, and each text between";
    for (text, start) in [
        (file(1_900, &pieces), "1774:9: d.k_*a*1771*: "),
        (file(4_200, &short), "4099:9: d.k_4096*: "),
        (file(70, &long), "67:9: d.k_"),
    ] {
        let found = lines_of(&text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with(start) && found[0].contains(expected),
            "{found:?}"
        );
    }
}
