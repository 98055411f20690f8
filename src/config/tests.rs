use std::{fs, path::PathBuf};

use super::{
    fault::*,
    file::*,
    files::*,
    keys::{Key, words_of},
    rule_defaults::*,
    source::*,
};
use crate::core::{
    calendar::Starts,
    counter::KeyFormat,
    kind::Algorithm,
    limit::{Allows, CountPolicy, Limit, OnStoreLoss},
    request::Entry,
};
use jiff::civil::Weekday;

mod mistaken_values;
mod mistakes;
mod refusals;
mod reserves;
mod unmeant;

fn compile_texts(texts: &[&str], options: Options) -> Result<Loaded, Vec<Problem>> {
    let files: Vec<File> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| {
            File::new(
                format!("{}.yaml", ["a", "b", "c"][index]),
                (*text).to_owned(),
            )
        })
        .collect();
    let problems = Vec::new();
    Files { files, problems }.compile(options)
}

fn load(text: &str) -> Loaded {
    compile_texts(&[text], Options::default()).unwrap_or_else(|problems| panic!("{}", problems[0]))
}

/// A file of domain `d` with one descriptor that contains `body`, from line 4 on.
fn descriptor(body: &str) -> String {
    let body = body.replace('\n', "\n    ");
    format!("domain: d\ndescriptors:\n  - key: k\n    {body}\n")
}

#[track_caller]
fn check_problems(texts: &[&str], expected: &[&str]) {
    let problems = match compile_texts(texts, Options::default()) {
        Ok(loaded) => loaded.warnings,
        Err(problems) => problems,
    };
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let is_as_expected = shown.len() == expected.len()
        && shown
            .iter()
            .zip(expected)
            .all(|(shown, start)| shown.starts_with(start));
    assert!(is_as_expected, "{shown:#?}");
}

/// The only problem of a descriptor that contains `body`.
#[track_caller]
fn check_body(body: &str, expected: &str) {
    check_problems(&[&descriptor(body)], &[expected]);
}

fn find<'a>(loaded: &'a Loaded, entries: &[(&str, &str)]) -> &'a Allows {
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| Entry {
            key: key.as_bytes(),
            value: value.as_bytes(),
        })
        .collect();
    let domain = loaded.matcher.domain(b"d").expect("domain d");
    &domain
        .find(&entries, &mut crate::core::counter::Joined::new())
        .expect("a rule")
        .rule
        .allows
}

fn limits(allows: &Allows) -> Vec<(u64, u64)> {
    let Allows::Within(limits) = allows else {
        panic!("unlimited");
    };
    let pair = |limit: &Limit| (limit.requests_per_unit, limit.period.secs());
    limits.iter().map(pair).collect()
}

#[track_caller]
fn check_limits(body: &str, expected: &[(u64, u64)]) {
    let loaded = load(&descriptor(body));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings[0]);
    assert_eq!(limits(find(&loaded, &[("k", "v")])), expected);
}

#[test]
fn a_descriptor_holds_one_limit_or_several() {
    check_limits(
        "rate_limit: {unit: Second, requests_per_unit: 3}",
        &[(3, 1)],
    );
    check_limits(
        "rate_limits:\n  - {unit: second, requests_per_unit: 3}\n  - {unit: minute, requests_per_unit: 20}\n  \
             - {unit: minute, unit_multiplier: 30, requests_per_unit: 300}\n  - 5000/day",
        &[(3, 1), (20, 60), (300, 1800), (5000, 86_400)],
    );
}

#[test]
fn short_forms_name_a_number_and_a_period() {
    check_limits(
        "rate_limits: [1/s, 5/m, 10/h, 40/d, 50/w, 60/mo, 70/y, 8/30m, 19/2hours, 3/90 seconds, 7/20MIN, 12 per 5 \
             Hrs, 55 / 3 wks, 64/2months, 75/2yrs, 2/3secs, 47 per 4 days]",
        &[
            (1, 1),
            (5, 60),
            (10, 3_600),
            (40, 86_400),
            (50, 604_800),
            (60, 2_592_000),
            (70, 31_536_000),
            (8, 1_800),
            (19, 7_200),
            (3, 90),
            (7, 1_200),
            (12, 18_000),
            (55, 1_814_400),
            (64, 5_184_000),
            (75, 63_072_000),
            (2, 3),
            (47, 345_600),
        ],
    );
    check_limits(
        "rate_limits: [5000000000/month, 1.5M/day, 20k/h, 25G/week, +0.001k/m, 9007199254740991/y]",
        &[
            (5_000_000_000, 2_592_000),
            (1_500_000, 86_400),
            (20_000, 3_600),
            (25_000_000_000, 604_800),
            (1, 60),
            (9_007_199_254_740_991, 31_536_000),
        ],
    );
    for bad in [
        "5",
        "/m",
        "5/",
        "5/fortnight",
        "-1/m",
        "5/m/s",
        "9007199254740992/m",
        "9008000G/m",
        "1.5/m",
        "1.2345k/m",
        "1.k/m",
        ".5M/m",
        "M/m",
        "1.5.5M/m",
        "++5/m",
        "x/m",
        // A minute or a month.
        "5/M",
        "5 a second",
    ] {
        check_body(
            &format!("rate_limits: [{bad}]"),
            &format!("a.yaml:4:19: d.k: cannot read the limit '{bad}'"),
        );
    }
}

#[test]
fn a_misspelt_unit_in_a_limit_is_told_with_all_units() {
    for bad in ["20/minuet", "5 per huor"] {
        check_body(
            &format!("rate_limits: [{bad}]"),
            &format!("a.yaml:4:19: d.k: cannot read the limit '{bad}'; write NUMBER/UNIT"),
        );
    }
    for bad in [
        "x/minuet",
        "5/0minuet",
        "5/fortnight",
        "5/M",
        "5/0s",
        "5/00m",
        "5/4294967296s",
    ] {
        check_body(
            &format!("rate_limits: [{bad}]"),
            &format!(
                "a.yaml:4:19: d.k: cannot read the limit '{bad}'; write NUMBER/UNIT or NUMBER/COUNTunit, with a COUNT \
                 from 1 on, such as"
            ),
        );
    }
}

#[test]
fn numbers_are_those_of_yaml_1_1() {
    for (text, number) in [
        ("0x1F", 31),
        ("010", 8),
        ("1_000", 1_000),
        ("0b11", 3),
        ("+7", 7),
    ] {
        let body = format!("rate_limit: {{unit: day, requests_per_unit: {text}}}");
        let loaded = load(&descriptor(&body));
        assert_eq!(limits(find(&loaded, &[("k", "v")])), [(number, 86_400)]);
    }
}

#[test]
fn values_keep_their_text() {
    for value in ["404", "0x10", "yes", "2020-01-01", "\"a b\"", "'true'"] {
        let text = format!(
            "domain: d\ndescriptors:\n  - {{key: k, value: {value}, rate_limit: {{unit: day, requests_per_unit: 1}}}}"
        );
        let loaded = load(&text);
        let value = value.trim_matches(['"', '\'']);
        assert_eq!(limits(find(&loaded, &[("k", value)])), [(1, 86_400)]);
    }
}

#[test]
fn a_null_value_is_no_value() {
    for value in ["", "~", "null"] {
        check_limits(
            &format!("value: {value}\nrate_limit: {{unit: day, requests_per_unit: 1}}"),
            &[(1, 86_400)],
        );
    }
}

#[test]
fn anchors_and_merged_maps_work() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    rate_limit: &base {unit: hour, requests_per_unit: \
         5}\n  - key: b\n    rate_limit: {<<: *base, requests_per_unit: 7}\n  - key: c\n    rate_limit: *base\n";
    let loaded = load(text);
    assert_eq!(limits(find(&loaded, &[("a", "")])), [(5, 3_600)]);
    assert_eq!(limits(find(&loaded, &[("b", "")])), [(7, 3_600)]);
    assert_eq!(limits(find(&loaded, &[("c", "")])), [(5, 3_600)]);
}

#[test]
fn json_files_are_rules_too() {
    let loaded = load(
        r#"{"domain":"d","descriptors":[{"key":"k","rate_limit":{"unit":"day","requests_per_unit":2}}]}"#,
    );
    assert_eq!(limits(find(&loaded, &[("k", "v")])), [(2, 86_400)]);
}

#[test]
fn broken_text_is_told_with_its_place() {
    check_problems(
        &["domain: d\ndescriptors: [\n"],
        &["a.yaml:2:14: this `[` is not closed"],
    );
    check_problems(
        &["- a\n- b\n"],
        &["a.yaml:1:3: the file must be a map, not a list"],
    );
}

#[test]
fn what_is_nested_too_deeply_is_told_with_its_place() {
    let text = format!("domain: d\ndescriptors: {}", "[".repeat(100_000));
    let reported = "a.yaml:2:141: invalid YAML: it has too many levels";
    check_problems(&[&text], &[reported]);
}

#[test]
fn each_rejection_of_the_reference_has_its_gist() {
    check_problems(&[""], &["a.yaml: the file is empty"]);
    check_problems(
        &["domain: ''"],
        &["a.yaml:1:10: config file cannot have empty domain"],
    );
    check_body("1: 2", "a.yaml:4:5: d.k: a key must be a text, not 1");
    check_body(
        "rate_limt: {}",
        "a.yaml:4:5: d.k: unknown key 'rate_limt' (expected `rate_limit`)",
    );
    check_body(
        "Value: x",
        "a.yaml:4:5: d.k: unknown key 'Value' (expected `value`)",
    );
    check_body(
        "descriptors: [x]",
        "a.yaml:4:19: d.k: an item of this list must be a map, such as `key: NAME`, not x",
    );
    check_body("value: 1.5", "a.yaml:4:12: d.k_1.5: 1.5");
    check_body(
        "value: 9223372036854775808",
        "a.yaml:4:12: d.k_9223372036854775808: 9223372036854775808 is not a string",
    );
    check_body(
        "shadow_mode: \"true\"",
        "a.yaml:4:19: d.k: `shadow_mode` must be true or false, not \"true\"",
    );
    check_body(
        "shadow_mode: 1",
        "a.yaml:4:18: d.k: `shadow_mode` must be true or false, not 1",
    );
    check_body(
        "descriptors: 3",
        "a.yaml:4:18: d.k: `descriptors` must be a list",
    );
    check_body("metadata: 3", "a.yaml:4:15: d.k: `metadata` must be a map");
    check_body(
        "rate_limit: {unit: fortnight, requests_per_unit: 1}",
        "a.yaml:4:18: d.k: invalid rate limit unit 'fortnight'",
    );
    check_body(
        "rate_limit: {requests_per_unit: 1}",
        "a.yaml:4:18: d.k: `unit` is missing",
    );
    check_body("rate_limit: {}", "a.yaml:4:5: d.k: `unit` is missing");
    check_body(
        "rate_limit: {unit: day, requests_per_unit: -1}",
        "a.yaml:4:48: d.k: `requests_per_unit` must be a whole number from 0",
    );
    check_body(
        "rate_limit: {unit: day, requests_per_unit: five}",
        "a.yaml:4:48: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not five",
    );
    check_body(
        "rate_limit: {unlimited: true, unit: day}",
        "a.yaml:4:18: d.k: should not specify rate limit unit when unlimited",
    );
    check_body(
        "rate_limit: {unlimited: true, replaces: [{name: ''}]}",
        "a.yaml:4:54: d.k: should not have an empty replaces entry",
    );
    check_body(
        "rate_limit: {unlimited: true, name: a, replaces: [{name: a}]}",
        "a.yaml:4:62: d.k: replaces should not contain name of same descriptor",
    );
    check_body(
        "value: x\nshare_threshold: true",
        "a.yaml:3:10: d.k_x: share_threshold can only be used with wildcard values (containing '*'), but found key 'k'",
    );
    check_problems(
        &["domain: d\ndescriptors: [{value: x}]"],
        &["a.yaml:2:16: d: descriptor has empty key"],
    );
}

#[test]
fn an_unknown_key_is_answered_with_those_of_its_level() {
    for (body, expected) in [
        (
            "penalty: 3",
            "'penalty' (expected one of descriptors, count, on_store_loss, refusal, key, value, rate_limit, rate_limits, \
             shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, reserve, accuracy, metadata)",
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 1, replaces: [{penalty: 3}]}",
            "'penalty' (expected one of name)",
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 1, starts: {mont: 3}}",
            "'mont' (expected `month`)",
        ),
        // A key of another level, if none of its own is close.
        (
            "requests_per_unt: 1",
            "'requests_per_unt' (expected `requests_per_unit`)",
        ),
    ] {
        let problems = compile_texts(&[&descriptor(body)], Options::default()).unwrap_err();
        let shown = problems[0].to_string();
        assert!(
            shown.ends_with(&format!("unknown key {expected}")),
            "{shown}"
        );
    }
    check_problems(
        &["domain: d\npenalty: 3\n"],
        &[
            "a.yaml:2:1: d: unknown key 'penalty' (expected one of domain, descriptors, count, on_store_loss, refusal)",
        ],
    );
}

#[test]
fn our_own_rejections_say_what_would_be_right() {
    check_body(
        "rate_limit: {unit: day, requests_per_unit: 1}\nrate_limits: [1/h]",
        "a.yaml:5:19: d.k: `rate_limit` and `rate_limits` on one descriptor",
    );
    check_body("rate_limits: []", "a.yaml:4:5: d.k: `rate_limits` is empty");
    check_body(
        "rate_limits: [{unlimited: true}]",
        "a.yaml:4:20: d.k: `unlimited` is not for a list",
    );
    check_body(
        "rate_limits: [1/m, 2/60s]",
        "a.yaml:4:24: d.k: two limits with a period of 60 seconds",
    );
    for zero in ["0", "-1", "4294967296"] {
        check_body(
            &format!("rate_limit: {{unit: day, requests_per_unit: 1, unit_multiplier: {zero}}}"),
            "a.yaml:4:68: d.k: `unit_multiplier` must be a whole number from 1",
        );
    }
    check_body(
        "rate_limit: {unit: year, requests_per_unit: 1, unit_multiplier: 100000}",
        "a.yaml:4:18: d.k: a period of 100000 years is longer",
    );
    check_body("value: !include x", "a.yaml:4:5: d.k: tags");
    check_body("metadata: {list: [1, !vault x]}", "a.yaml:4:16: d.k: tags");
}

#[test]
fn a_descriptor_is_defined_once() {
    let twice = "domain: d\ndescriptors:\n  - {key: a_b, value: c}\n  - {key: a, value: b_c}\n";
    check_problems(
        &[twice],
        &[
            "a.yaml:4:11: d.a_b_c: duplicate descriptor composite key 'd.a_b_c', already defined at a.yaml:3:11",
        ],
    );
}

#[test]
fn strict_matching_tells_a_key_from_a_key_and_value() {
    let alike = "domain: d\ndescriptors:\n  - {key: a_b, rate_limit: {unlimited: true}}\n  - {key: a, value: \
         b, rate_limit: {unlimited: true}}\n";
    let strict = Options {
        strict_matching: true,
        ..Options::default()
    };
    assert_eq!(
        compile_texts(&[alike], strict)
            .unwrap()
            .matcher
            .rules()
            .len(),
        2
    );
    assert!(compile_texts(&[alike], Options::default()).is_err());
}

#[test]
fn what_the_reference_s_keys_cannot_tell_is_refused() {
    let reference = Options {
        key_format: KeyFormat::Reference,
        ..Options::default()
    };
    let problem = |body: &str| {
        let loaded = compile_texts(&[&descriptor(body)], reference);
        loaded.err().map(|problems| problems[0].to_string())
    };
    let one = problem("rate_limit: {unit: day, requests_per_unit: 1}");
    assert_eq!(one, None);
    let several = problem("rate_limits: [1/d, 2/h]").unwrap();
    assert!(several.starts_with("a.yaml:3:10: d.k: a rule with several limits does not fit"));
    let long = problem("rate_limit: {unit: day, requests_per_unit: 1, unit_multiplier: 2}");
    assert!(
        long.unwrap()
            .contains("a limit whose period is several units")
    );
}

#[test]
fn a_domain_stands_in_one_file_unless_domains_are_merged() {
    let a = "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]";
    let b = "domain: d\ndescriptors: [{key: b, rate_limit: {unlimited: true}}]";
    check_problems(
        &[a, b],
        &["b.yaml:1:9: duplicate domain 'd' in config file, already defined in a.yaml"],
    );
    let merge = Options {
        merge_domains: true,
        ..Options::default()
    };
    assert_eq!(
        compile_texts(&[a, b], merge).unwrap().matcher.rules().len(),
        2
    );
    let problems = compile_texts(&[a, a], merge).unwrap_err();
    assert!(
        problems[0]
            .to_string()
            .contains("duplicate descriptor composite key 'd.a', already defined at a.yaml:2:21")
    );
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_text() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day}\n";
    check_problems(
        &[&format!("\u{feff}{text}")],
        &["a.yaml:4:18: d.k: warning: `requests_per_unit` is missing"],
    );
}

#[test]
fn every_document_of_a_file_is_read() {
    let loaded = load(
        "domain: a\ndescriptors: [{key: k, rate_limit: {unlimited: true}}]\n---\n---\n\
         domain: b\ndescriptors: [{key: k, rate_limit: {unlimited: true}}]\n...\n",
    );
    let paths: Vec<_> = loaded
        .matcher
        .rules()
        .iter()
        .map(|rule| &*rule.path)
        .collect();
    assert_eq!((paths, loaded.files), (vec!["a.k", "b.k"], 1));
    check_problems(
        &["domain: a\n---\ndomain: b\n---\ndomain: a\n"],
        &[
            "a.yaml:5:9: duplicate domain 'a' in config file, already defined in a.yaml:1:9; put all its",
        ],
    );
    check_problems(
        &["domain: a\n---\ndomain: b\nthis: x\n"],
        &["a.yaml:4:1: b: unknown key 'this'"],
    );
}

/// Before, such a file was read up to the first of these lines.
#[test]
fn text_that_belongs_to_no_document_is_refused() {
    let ends = "the document has ended before this text";
    for (text, line) in [
        (" domain: d\ndescriptors: []\n", 2),
        ("{\"domain\": \"d\"}\nrubbish: x\n", 2),
        ("domain: d\n...\nrubbish\n", 3),
    ] {
        check_problems(&[text], &[&format!("a.yaml:{line}:1: {ends}")]);
    }
}

#[test]
fn a_domain_without_rules_is_a_warning() {
    let empty = "warning: 0 rules: nothing in domain 'd' is limited";
    let empty = format!("a.yaml:1:9: {empty}");
    check_problems(&["domain: d\n"], &[&empty]);
    check_problems(
        &["domain: d\ndescriptors: [{key: k}]\n"],
        &[&empty, "a.yaml:2:21: d.k: warning: no limit"],
    );
    let merge = Options {
        merge_domains: true,
        ..Options::default()
    };
    let rule = "domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: true}}]";
    let loaded = compile_texts(&["domain: d\n", rule], merge).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn all_errors_of_all_files_are_told_at_once() {
    let a = "domain: d\ndescriptors:\n  - key: ''\n  - key: k\n    rate_limits: [1/x, 2/m, 3/m]\n";
    let b = "domain: e\nwhat: 1\n";
    check_problems(
        &[a, b, "{"],
        &[
            "a.yaml:3:11: d: descriptor has empty key",
            "a.yaml:5:19: d.k: cannot read the limit '1/x'",
            "a.yaml:5:29: d.k: two limits with a period of minute",
            "b.yaml:2:1: e: unknown key 'what'",
            "c.yaml:1:1: this `{` is not closed",
        ],
    );
}

#[test]
fn what_cannot_be_meant_is_a_warning() {
    check_body(
        "rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}",
        "a.yaml:4:51: d.k: warning: `shadow_mode` means nothing here and is ignored; it belongs beside",
    );
    check_body(
        "rate_limit: {unit: day}",
        "a.yaml:4:18: d.k: warning: `requests_per_unit` is missing",
    );
    check_body(
        "value: a\nvalue: b\nrate_limit: {unlimited: true}",
        "a.yaml:5:5: d: warning: `value` is given twice",
    );
    check_body(
        "rate_limit: {unlimited: true, replaces: [{name: x}]}",
        "a.yaml:4:53: d.k: warning: `replaces` names 'x', but no limit has that name",
    );
    let mutual = "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unlimited: true, name: a, replaces: \
         [{name: b}]}}\n  - {key: b, rate_limit: {unlimited: true, name: b, replaces: [{name: a}]}}\n";
    check_problems(
        &[mutual],
        &[
            "a.yaml:3:71: d.a: warning: 'a' and 'b' replace each other",
            "a.yaml:4:71: d.b: warning: 'b' and 'a' replace each other",
        ],
    );
}

#[test]
fn folders_are_read_in_the_order_of_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    write("b.yml", "domain: b");
    write("a.yaml", "domain: a");
    write("sub/c.json", "{\"domain\": \"c\"}");
    write(".hidden.yaml", "}");
    write("notes.txt", "}");
    let mut problems = Vec::new();
    let source = |path: PathBuf| Source::Paths(vec![path]);
    let files = read(&source(folder.path().to_owned()), &mut problems);
    let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["a.yaml", "b.yml", "sub/c.json"]);
    assert!(problems.is_empty());
    let gone = Files::read(&source(folder.path().join("gone.yaml"))).compile(Options::default());
    let gone = gone.unwrap_err();
    assert!(gone[0].to_string().contains("gone.yaml: cannot be read: "));
    let empty = tempfile::tempdir().unwrap();
    let none = Files::read(&source(empty.path().to_owned())).compile(Options::default());
    assert!(
        none.unwrap_err()[0]
            .to_string()
            .contains("no rule files found")
    );
}

/// The names of the files that `runtime` reads in a folder with one file of every kind.
fn runtime_names(change: impl FnOnce(&mut RuntimeFolder)) -> Vec<String> {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    for folder in [
        "sub/config/more",
        "sub/config/..2026",
        "sub/other",
        "elsewhere",
    ] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    for file in [
        "sub/config/b.yaml",
        "sub/config/a.txt",
        "sub/config/more/c",
        "sub/config/..2026/a.txt",
        "sub/config/.hidden",
        "sub/other/d.yaml",
        "elsewhere/e.yaml",
    ] {
        fs::write(at(file), "domain: d").unwrap();
    }
    std::os::unix::fs::symlink(at("elsewhere/e.yaml"), at("sub/config/e.yaml")).unwrap();
    std::os::unix::fs::symlink(at("elsewhere"), at("sub/config/linked")).unwrap();
    let mut runtime = RuntimeFolder {
        root: root.path().to_owned(),
        subdirectory: "sub".into(),
        app_directory: "config".into(),
        ignores_dot_files: true,
        watches_root: false,
    };
    change(&mut runtime);
    let mut problems = Vec::new();
    let files = read(&Source::Runtime(runtime), &mut problems);
    assert!(problems.is_empty(), "{}", problems[0]);
    files.into_iter().map(|file| file.name).collect()
}

#[test]
fn a_runtime_folder_is_read_as_the_reference_reads_it() {
    assert_eq!(
        runtime_names(|_| ()),
        ["a.txt", "b.yaml", "e.yaml", "more/c"]
    );
    assert_eq!(
        runtime_names(|runtime| runtime.watches_root = true),
        [
            "config.a.txt",
            "config.b.yaml",
            "config.e.yaml",
            "config.more.c"
        ]
    );
    // Slashes around the name add nothing.
    for app_directory in ["/config", "config/", "./config"] {
        let names = runtime_names(|runtime| {
            runtime.watches_root = true;
            runtime.subdirectory = "/sub/".into();
            runtime.app_directory = app_directory.into();
        });
        assert_eq!(names.len(), 4, "{app_directory}");
    }
    // To the reference a dot file is a file; the kubelet's copies are still skipped.
    assert_eq!(
        runtime_names(|runtime| runtime.ignores_dot_files = false),
        [".hidden", "a.txt", "b.yaml", "e.yaml", "more/c"]
    );
}

/// The limits of a descriptor with a valid `body` that causes no warning.
fn described(body: &str) -> Vec<Limit> {
    let loaded = load(&descriptor(body));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings[0]);
    let Allows::Within(limits) = find(&loaded, &[("k", "v")]) else {
        panic!("unlimited");
    };
    limits.to_vec()
}

#[track_caller]
fn check_algorithm(said: &str, expected: &Algorithm) {
    let body = format!("rate_limit: {{unit: day, requests_per_unit: 7, {said}}}");
    assert_eq!(described(&body)[0].algorithm, *expected, "{said}");
}

#[test]
fn a_limit_names_its_algorithm() {
    for (said, expected) in [
        ("algorithm: fixed_window", Algorithm::FixedWindow),
        ("window: aligned", Algorithm::FixedWindow),
        ("window: first_hit", Algorithm::FirstHit),
        ("algorithm: sliding_window", Algorithm::SlidingWindow),
        ("algorithm: sliding_log", Algorithm::SlidingLog),
        (
            "algorithm: token_bucket",
            Algorithm::TokenBucket { burst: 7 },
        ),
        (
            "algorithm: token_bucket, burst: 100",
            Algorithm::TokenBucket { burst: 100 },
        ),
    ] {
        check_algorithm(said, &expected);
    }
}

#[test]
fn limits_of_one_period_can_be_counted_in_two_ways_but_not_twice_in_one() {
    let day = "unit: day, requests_per_unit: 7";
    let limits = described(&format!(
        "rate_limits:\n  - {{{day}}}\n  - {{{day}, window: first_hit}}\n  - {{{day}, algorithm: \
             sliding_log}}\n  - {{{day}, calendar: true, time_zone: UTC}}"
    ));
    assert_eq!(limits.len(), 4);
    check_body(
        &format!(
            "rate_limits:\n  - {{{day}, algorithm: token_bucket}}\n  - {{{day}, algorithm: token_bucket, burst: 2}}"
        ),
        "a.yaml:6:10: d.k: two limits with a period of day and the same algorithm; keep the lower one",
    );
}

/// The only problem of a limit per day that also contains `said`.
#[track_caller]
fn check_limit(said: &str, expected: &str) {
    check_unit("day", said, expected);
}

#[track_caller]
fn check_unit(unit: &str, said: &str, expected: &str) {
    let body = format!("rate_limit: {{unit: {unit}, requests_per_unit: 7, {said}}}");
    let text = descriptor(&body);
    let problems = compile_texts(&[&text], Options::default()).unwrap_err();
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(shown.len(), 1, "{shown:#?}");
    assert!(
        shown[0].starts_with("a.yaml:4:") && shown[0].ends_with(&format!("d.k: {expected}")),
        "{shown:#?}"
    );
}

#[test]
fn every_algorithm_has_a_word_that_means_it() {
    let words = Key::find("algorithm").unwrap().words;
    for word in words {
        let period = match *word {
            "concurrency" => "ttl: 1h",
            _ => "unit: day",
        };
        let limits = described(&format!(
            "rate_limit: {{{period}, requests_per_unit: 7, algorithm: {word}}}"
        ));
        assert_eq!(limits[0].algorithm.name(), *word);
    }
    for algorithm in Algorithm::one_of_each(1) {
        assert!(words.contains(&algorithm.name()), "{algorithm:?}");
    }
    let text = descriptor("rate_limit: {unit: day, requests_per_unit: 7, algorithm: none}");
    let problems = compile_texts(&[&text], Options::default()).unwrap_err();
    for word in words {
        assert!(problems[0].to_string().contains(word), "{problems:?}");
    }
}

#[test]
fn an_algorithm_that_nobody_knows_is_told_with_those_that_are_known() {
    let known = words_of("algorithm");
    check_limit(
        "algorithm: gcra",
        &format!("unknown algorithm 'gcra' ({known})"),
    );
    for (said, expected) in [
        (
            "count: admited",
            "12: d.k: unknown count 'admited' (all or admitted)",
        ),
        (
            "on_store_loss: denny",
            "20: d.k: unknown on_store_loss 'denny' (error, allow, deny or local)",
        ),
        (
            "refusal: {body: '<p>', content_type: text/htm}",
            "42: d.k: unknown content_type 'text/htm' (text/plain, text/html, application/json or another type of \
             text, XML or JSON)",
        ),
    ] {
        check_body(
            &format!("{said}\nrate_limits: [5/s]"),
            &format!("a.yaml:4:{expected}"),
        );
    }
    check_limit(
        "window: sliding",
        "unknown window 'sliding' (aligned or first_hit)",
    );
}

#[test]
fn a_burst_is_at_least_one_and_no_more_than_is_counted_exactly() {
    for burst in ["0", "-1", "4294967296"] {
        check_limit(
            &format!("algorithm: token_bucket, burst: {burst}"),
            &format!("`burst` must be a whole number from 1 to 104249991, not {burst}"),
        );
    }
    check_algorithm(
        "algorithm: token_bucket, burst: 104249991",
        &Algorithm::TokenBucket { burst: 104_249_991 },
    );
    check_body(
        "rate_limit: {unit: day, requests_per_unit: 104249992, algorithm: token_bucket}",
        "a.yaml:4:18: d.k: `burst` must be a whole number from 1 to 104249991, not 104249992 (its default, \
             `requests_per_unit`); set `burst`",
    );
    check_limit(
        "burst: 5",
        "`burst` does not go with this algorithm; write `algorithm: token_bucket`",
    );
}

#[test]
fn an_algorithm_whose_arithmetic_is_not_exact_for_it_refuses_a_large_limit() {
    check_body(
        "rate_limits: [{unit: day, requests_per_unit: 4294967296, algorithm: sliding_window}]",
        "a.yaml:4:20: d.k: `requests_per_unit` must be a whole number from 0 to 4294967295, not 4294967296 with \
             `sliding_window`",
    );
    check_limits(
        "rate_limits: [{unit: day, requests_per_unit: 5000000000, algorithm: token_bucket, burst: 9}]",
        &[(5_000_000_000, 86_400)],
    );
}

#[test]
fn a_log_has_a_ceiling() {
    let limit = |requests: u32| {
        format!("rate_limit: {{unit: day, requests_per_unit: {requests}, algorithm: sliding_log}}")
    };
    assert_eq!(described(&limit(10_000))[0].requests_per_unit, 10_000);
    check_body(
        &limit(10_001),
        "a.yaml:4:18: d.k: `sliding_log` remembers every hit, 10000 at most, and this limit admits 10001; use \
             `sliding_window`",
    );
}

#[track_caller]
fn check_calendar(unit: &str, said: &str, zone: &str, expected: Starts) {
    let body = format!(
        "rate_limit: {{unit: {unit}, requests_per_unit: 7, calendar: true, time_zone: {zone}, {said}}}"
    );
    let Algorithm::Calendar(calendar) = &described(&body)[0].algorithm else {
        panic!("no calendar");
    };
    assert_eq!(calendar.zone_name(), zone);
    assert_eq!(calendar.starts(), expected);
}

#[test]
fn a_calendar_says_where_and_when_its_windows_begin() {
    let starts = Starts::default();
    check_calendar("day", "name: n", "Europe/Madrid", starts);
    check_calendar(
        "day",
        "starts: {hour: 6}",
        "UTC",
        Starts { hour: 6, ..starts },
    );
    let day = Starts {
        day: 17,
        hour: 23,
        ..starts
    };
    check_calendar("month", "starts: {day: 17, hour: 23}", "Asia/Tokyo", day);
    let year = Starts {
        month: 4,
        day: 31,
        ..starts
    };
    check_calendar("year", "starts: {month: 4, day: 31}", "UTC", year);
    for (text, weekday) in [
        ("monday", Weekday::Monday),
        ("Tuesday", Weekday::Tuesday),
        ("WEDNESDAY", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ] {
        let said = format!("week_starts: {text}");
        check_calendar("week", &said, "UTC", Starts { weekday, ..starts });
    }
    check_algorithm("calendar: false", &Algorithm::FixedWindow);
}

#[test]
fn a_calendar_has_a_zone_and_units_of_its_own() {
    check_limit(
        "calendar: true",
        "`calendar` needs a `time_zone`, such as Europe/Madrid or UTC",
    );
    check_limit(
        "calendar: true, time_zone: Europe/Nowhere",
        "unknown time_zone 'Europe/Nowhere' (an IANA name, such as Europe/Madrid or UTC)",
    );
    for unit in ["second", "minute", "hour"] {
        check_unit(
            unit,
            "calendar: true, time_zone: UTC",
            "`calendar` does not go with seconds, minutes and hours; remove it: they are the same in every time zone",
        );
    }
    check_limit(
        "unit_multiplier: 2, calendar: true, time_zone: UTC",
        "`unit_multiplier` does not go with `calendar`; a calendar has single days, weeks, months and years",
    );
    check_limit(
        "window: first_hit, calendar: true, time_zone: UTC",
        "`window` does not go with `calendar`; remove one of them",
    );
    check_limit("calendar: 1", "`calendar` must be true or false, not 1");
}

#[test]
fn a_start_lies_within_its_unit() {
    let zone = "calendar: true, time_zone: UTC";
    for (unit, said, expected) in [
        (
            "year",
            "month: 13",
            "`month` must be a whole number from 1 to 12, not 13",
        ),
        (
            "year",
            "month: 0",
            "`month` must be a whole number from 1 to 12, not 0",
        ),
        (
            "month",
            "day: 32",
            "`day` must be a whole number from 1 to 31, not 32",
        ),
        (
            "month",
            "day: 0",
            "`day` must be a whole number from 1 to 31, not 0",
        ),
        (
            "day",
            "hour: 24",
            "`hour` must be a whole number from 0 to 23, not 24",
        ),
        (
            "day",
            "hour: -1",
            "`hour` must be a whole number from 0 to 23, not -1",
        ),
        (
            "month",
            "month: 2",
            "`month` does not go with this unit; it is for years",
        ),
        (
            "week",
            "day: 2",
            "`day` does not go with this unit; it is for months and years",
        ),
    ] {
        check_unit(unit, &format!("{zone}, starts: {{{said}}}"), expected);
    }
    check_unit(
        "month",
        &format!("{zone}, week_starts: sunday"),
        "`week_starts` does not go with this unit; it is for weeks",
    );
    let days = "monday, tuesday, wednesday, thursday, friday, saturday or sunday";
    for text in [
        "someday",
        "mo",
        "%A",
        "1",
        "monday tuesday",
        "monday ",
        " monday",
    ] {
        check_unit(
            "week",
            &format!("{zone}, week_starts: '{text}'"),
            &format!("unknown week_starts '{text}' ({days})"),
        );
    }
}

#[test]
fn what_means_nothing_to_an_algorithm_is_refused() {
    for algorithm in ["sliding_window", "sliding_log", "token_bucket"] {
        let algorithm = format!("algorithm: {algorithm}");
        check_limit(
            &format!("{algorithm}, window: first_hit"),
            "`window` does not go with this algorithm; it is for `fixed_window`",
        );
        check_limit(
            &format!("{algorithm}, calendar: true"),
            "`calendar` does not go with this algorithm; it is for `fixed_window`",
        );
    }
    for said in [
        "time_zone: UTC",
        "week_starts: monday",
        "starts: {month: 1}",
        "starts: {day: 1}",
        "starts: {hour: 1}",
    ] {
        let (key, _) = said.split_once(':').unwrap();
        check_limit(
            said,
            &format!("`{key}` does not go with a limit without `calendar`; write `calendar: true`"),
        );
    }
}

/// How the rule of `k` is counted with these settings of the file and of the descriptor.
fn rule_defaults(file: &str, own: &str) -> (CountPolicy, OnStoreLoss) {
    let text = format!(
        "domain: d\n{file}\ndescriptors:\n  - key: k\n    {own}\n    rate_limits: [5/day]\n"
    );
    let loaded = load(&text);
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings[0]);
    let rule = &loaded.matcher.rules()[0];
    (rule.counts, rule.on_store_loss)
}

#[test]
fn what_a_file_says_of_counting_holds_for_rules_that_say_nothing() {
    assert_eq!(
        rule_defaults("", ""),
        (CountPolicy::All, OnStoreLoss::Error)
    );
    for (said, counts) in [
        ("all", CountPolicy::All),
        ("admitted", CountPolicy::Admitted),
    ] {
        let said = format!("count: {said}");
        assert_eq!(rule_defaults(&said, "").0, counts);
        assert_eq!(rule_defaults("", &said).0, counts);
    }
    assert_eq!(
        rule_defaults("count: admitted", "count: all").0,
        CountPolicy::All
    );
    for (said, on_loss) in [
        ("error", OnStoreLoss::Error),
        ("allow", OnStoreLoss::Allow),
        ("deny", OnStoreLoss::Deny),
        ("local", OnStoreLoss::Local),
    ] {
        let said = format!("on_store_loss: {said}");
        assert_eq!(rule_defaults(&said, "").1, on_loss);
        assert_eq!(rule_defaults("on_store_loss: deny", &said).1, on_loss);
    }
}

#[test]
fn what_it_cannot_say_of_counting_is_told_where_it_stands() {
    check_body(
        "count: some\nrate_limits: [5/day]",
        "a.yaml:4:12: d.k: unknown count 'some' (all or admitted)",
    );
    check_body(
        "on_store_loss: ask\nrate_limits: [5/day]",
        "a.yaml:4:20: d.k: unknown on_store_loss 'ask' (error, allow, deny or local)",
    );
    check_problems(
        &["domain: d\ncount: some\non_store_loss: ask\ndescriptors: []\n"],
        &[
            "a.yaml:2:8: d: unknown count 'some' (all or admitted)",
            "a.yaml:3:16: d: unknown on_store_loss 'ask' (error, allow, deny or local)",
        ],
    );
    check_body(
        "rate_limit: {unit: day, requests_per_unit: 1, count: all}",
        "a.yaml:4:51: d.k: warning: `count` means nothing here and is ignored; it belongs",
    );
}

#[test]
fn counters_in_memory_need_no_slices() {
    let options = Options {
        lacks_redis: true,
        ..Options::default()
    };
    let text = descriptor("accuracy: exact-leased\nrate_limit: {unit: day, requests_per_unit: 7}");
    let loaded = compile_texts(&[&text], options).unwrap();
    let [warning] = &loaded.warnings[..] else {
        panic!("{:?}", loaded.warnings);
    };
    assert!(
        warning
            .to_string()
            .contains("no effect on counters in memory")
    );
    let loaded = compile_texts(&[&text], Options::default()).unwrap();
    assert!(loaded.warnings.is_empty());
}

#[test]
fn the_reference_s_keys_know_no_other_algorithm() {
    let options = Options {
        key_format: KeyFormat::Reference,
        ..Options::default()
    };
    for said in [
        "window: first_hit",
        "algorithm: sliding_window",
        "algorithm: sliding_log",
        "algorithm: token_bucket",
        "calendar: true, time_zone: UTC",
    ] {
        let text = descriptor(&format!(
            "rate_limit: {{unit: day, requests_per_unit: 7, {said}}}"
        ));
        let problems = compile_texts(&[&text], options).unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].to_string().ends_with(
            "d.k: a limit with an algorithm of its own does not fit the reference's key format; use the native one"
        ));
    }
    let fixed = "rate_limit: {unit: day, requests_per_unit: 7, algorithm: fixed_window}";
    assert!(compile_texts(&[&descriptor(fixed)], options).is_ok());
}
