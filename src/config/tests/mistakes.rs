//! Mistakes that people make in rule files, and the line that each of them gets: one for each, at the place to repair.

use std::fmt::Write as _;

use super::{compile_texts, descriptor};
use crate::config::{files::Files, rule_defaults::Options, source::Source};

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
            "4:1: d: U+00A0 (no-break space) in `\\u{a0}\\u{a0}\\u{a0}\\u{a0}rate_limits`; write a blank instead",
        ),
        // In brackets a tab is a blank, and the mistake is another.
        (
            "{\n\t\"domain\": \"d\"\n\t\"descriptors\": []\n}\n",
            "3:2: invalid YAML: did not find expected ',' or '}'",
        ),
        (
            "domain: d\n\u{feff}descriptors:\n  - key: a\n    rate_limits: [5/s]\n",
            "2:1: U+FEFF (byte order mark) in `\\u{feff}descriptors:`; remove it",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    \u{3000}rate_limits: [5/s]\n",
            "4:5: d.a: U+3000 (a space of another kind) in `\\u{3000}rate_limits`; write a blank instead",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n  \u{a0} rate_limits: [5/s]\n",
            "4:3: U+00A0 (no-break space) in `\\u{a0}rate_limits`; write a blank instead",
        ),
        (
            "domain: d\ndescriptors:\n  - key:\u{a0}a\n    rate_limits: [5/s]\n",
            "3:5: U+00A0 (no-break space) in `key:\\u{a0}a`; write a blank instead",
        ),
        (
            "domain: d\ndescriptors:\n  -\u{a0}key: a\n    rate_limits: [5/s]\n",
            "3:4: U+00A0 (no-break space) in `\\u{a0}key`; write a blank instead",
        ),
        (
            "domain: d\ndescriptors:\n  - key: \u{a0}a\n    rate_limits: [5/s]\n",
            "3:10: d.\\u{a0}a: warning: U+00A0 (no-break space) in `\\u{a0}a` would be part of the text; remove that, \
                 or put the text in quotes if it is meant",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\u{200b}\n    rate_limits: [5/s]\n",
            "3:10: d.a\\u{200b}: warning: U+200B (zero-width space) in `a\\u{200b}` would be part of the text; remove \
                 that, or put the text in quotes if it is meant",
        ),
    ]);
}

#[test]
fn curly_quotes_are_named() {
    check(&[
        (
            "domain: d\ndescriptors:\n  - key: “a”\n    rate_limits: [5/s]\n",
            "3:10: d.“a”: warning: curly quotes around `a` would be part of the text; remove that, or put the text \
                 in quotes if it is meant",
        ),
        (
            "domain: d\ndescriptors:\n  - “key”: a\n    rate_limits: [5/s]\n",
            "3:5: d: curly quotes around `key`; write \" instead",
        ),
        (
            "domain: ‘d’\ndescriptors:\n  - key: a\n    rate_limits: [5/s]\n",
            "1:9: ‘d’: warning: curly quotes around `d` would be part of the text; remove that, or put the text in \
                 quotes if it is meant",
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
            "3:5: `key a` has no colon; write `key: a`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value b\n    rate_limits: [5/s]\n",
            "4:5: `value b` has no colon; write `value: b`",
        ),
        (
            "domain: d\ndescriptors:\n  - key a\n",
            "3:5: d: `key a` has no colon; write `key: a`",
        ),
        (
            "domain: d\ndescriptors:\n  - key:a\n    rate_limits: [5/s]\n",
            "3:5: `key:a` has no blank after its colon; write `key: a`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      unit second\n      requests_per_unit: 3\n",
            "5:7: `unit second` has no colon; write `unit: second`",
        ),
        (
            "domain d\ndescriptors:\n  - key: a\n",
            "1:1: `domain d` has no colon; write `domain: d`",
        ),
        (
            "domain: d\ndescriptors\n  - key: a\n",
            "2:1: `descriptors` has no colon; write `descriptors:`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit\n      unit: second\n",
            "4:5: `rate_limit` has no colon; write `rate_limit:`",
        ),
        (
            "domain d\n",
            "1:1: `domain d` has no colon; write `domain: d`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n      value: b\n",
            "4:7: this line is indented deeper than the one above, which already has a value",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a value: b\n",
            "3:17: a second `: ` in one line; begin a new line, or put a value that holds it in quotes",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n   value: b\n",
            "4:4: this line is indented as no line above it",
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
            "3:10: this `\"` is not closed",
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
            "4:18: d.a: `rate_limits` must be a list, not a text; write `rate_limits: [5000/day]`",
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
fn binary_values_are_refused() {
    let refused = "tags such as `!include` are not supported";
    check_bodies(&[
        (
            "metadata:\n  a: !!binary |\n    /w==\nrate_limits: [5/s]",
            &format!("5:10: {refused}"),
        ),
        (
            "metadata: {!!binary /w==: 1}\nrate_limits: [5/s]",
            &format!("4:16: {refused}"),
        ),
        (
            "value: !<tag:yaml.org,2002:binary> /w==\nrate_limits: [5/s]",
            &format!("4:12: {refused}"),
        ),
        (
            "value: !binary aGk=\nrate_limits: [5/s]",
            &format!("4:5: d.k: {refused}"),
        ),
        ("value: \"!!binary\" # !!binary a\nrate_limits: [5/s]", ""),
    ]);
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
    for item in ["{},", "[],", "a,", "[[[a]]],"] {
        let items = item.repeat(70_000 / item.len());
        let text = format!("{domain} [{items}a]\n");
        let problems = lines_of(&text);
        assert!(
            problems.len() == 1 && problems[0].contains("no text of rules"),
            "{item}: {problems:?}"
        );
    }
    let lines = format!("{domain}\n{}", "-\n".repeat(35_000));
    assert!(lines_of(&lines)[0].contains("no text of rules"));
    // The densest rules.
    let limits: String = (1..9_000)
        .map(|number| format!("{number}/{number}s,"))
        .collect();
    let one = format!("{domain}\n- key: k\n  rate_limits: [{limits}1/d]\n");
    let many: String = (0..3_000)
        .map(|number| format!("- {{key: k{number}, rate_limits: [1/s]}}\n"))
        .collect();
    let many = format!("{domain}\n{many}");
    let names = (0..3_000).map(|number| {
        format!(r#"{{"key":"k{number}","rate_limits":["1/s"],"metadata":{{"a":[1,{{"b":"c"}}]}}}}"#)
    });
    let names = names.collect::<Vec<_>>().join(",");
    let json = format!(r#"{{"domain":"d","descriptors":[{names}]}}"#);
    for text in [one, many, json] {
        assert!(text.len() > 64 << 10);
        assert!(
            !lines_of(&text)
                .iter()
                .any(|problem| problem.contains("no text of rules"))
        );
    }
}
