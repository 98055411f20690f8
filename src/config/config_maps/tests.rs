//! Rule files in manifests: which are found, and where their problems are.

use std::path::PathBuf;

use super::*;
use crate::config::options::Options;

const BAD: &str = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n";

fn read(name: &str, text: &str) -> RuleFileSets {
    let source = Source::Paths(vec![PathBuf::from(name)]);
    Files::of(name, text).by_config_map(&source)
}

/// Everything that is said of a manifest: notes, then problems of each set.
fn said(text: &str) -> Vec<String> {
    let RuleFileSets { sets, notes } = read("m.yaml", text);
    let compiled = sets.into_iter().flat_map(|set| {
        let loaded = set.compile(Options::default());
        loaded.map_or_else(|problems| problems, |loaded| loaded.warnings)
    });
    let problems = notes.into_iter().chain(compiled);
    problems.map(|problem| problem.to_string()).collect()
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let said = said(text);
    let starts = said.iter().zip(expected);
    let is_as_expected = said.len() == expected.len()
        && starts
            .into_iter()
            .all(|(said, start)| said.starts_with(start));
    assert!(is_as_expected, "{said:#?}");
}

/// A ConfigMap `rules` with these lines as its `data`.
fn config_map(data: &str) -> String {
    let data = data.replace('\n', "\n  ");
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: rules\ndata:\n  {data}\n")
}

/// `text` after `header`, as a block with this indentation.
fn block(header: &str, indent: usize, text: &str) -> String {
    let lines = text.lines().map(|line| format!("\n{:indent$}{line}", ""));
    format!("{header}{}", lines.collect::<String>())
}

#[test]
fn a_problem_in_a_block_has_its_position_in_the_manifest() {
    let place = "m.yaml:10:22: rules/a.yaml: d.k: invalid rate limit unit 'fortnight'";
    for header in [
        "a.yaml: |",
        "a.yaml: |-",
        "a.yaml: |+ # rules",
        "\"a.yaml\": |2",
    ] {
        check(&config_map(&block(header, 2, BAD)), &[place]);
    }
    check(
        &config_map(&block("a.yaml: |", 2, BAD)).replace('\n', "\r\n"),
        &[place],
    );
    // Blank lines are part of a block, wherever they are.
    check(
        &config_map(&block("a.yaml: |", 2, &format!("\n\n{BAD}"))),
        &["m.yaml:12:22: rules/a.yaml: d.k: invalid"],
    );
    check(
        &config_map(&block("a.yaml: |", 6, BAD)),
        &["m.yaml:10:26: rules/a.yaml: d.k: invalid"],
    );
    // In a block with an indicator the first line may be indented further.
    let indented = "  domain: d\n  descriptors:\n    - key: k\n      rate_limit: {unit: x, requests_per_unit: 1}\n";
    check(
        &config_map(&block("a.yaml: |2", 2, indented)),
        &["m.yaml:10:24: rules/a.yaml: d.k: invalid"],
    );
}

#[test]
fn syntax_errors_and_missing_domains_have_positions_in_the_manifest_too() {
    let unclosed = "domain: d\ndescriptors: [\n";
    let said = said(&config_map(&block("a.yaml: |", 2, unclosed)));
    assert_eq!(said.len(), 1);
    assert!(
        said[0].starts_with("m.yaml:8:18: rules/a.yaml: this `[` is not closed"),
        "{said:?}"
    );
    check(
        &config_map(&block("a.yaml: |", 2, "descriptors: []")),
        &["m.yaml:7:5: rules/a.yaml: config file cannot have empty domain"],
    );
}

#[test]
fn a_text_on_one_line_has_positions_in_it() {
    let flow = "{domain: d, descriptors: [{key: k, rate_limit: {unit: x, requests_per_unit: 1}}]}";
    for quote in ["'", "\""] {
        check(
            &config_map(&format!("a.yaml: {quote}{flow}{quote}")),
            &["m.yaml:6:60: rules/a.yaml: d.k: invalid"],
        );
    }
}

#[test]
fn a_text_that_is_written_in_another_way_has_its_own_position_beside_that_of_the_key() {
    let quoted = format!("a.yaml: {BAD:?}");
    check(
        &config_map(&quoted),
        &["m.yaml:6:3: rules/a.yaml:4:18: d.k: invalid rate limit unit"],
    );
    // Lines that are indented further are not folded.
    let folded = "a.yaml: >-\n  domain: d\n\n  descriptors:\n    - key: k\n      rate_limit: {unit: x, requests_per_unit: 1}";
    check(&config_map(folded), &["m.yaml:6:3: rules/a.yaml:4:"]);
    let json = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "rules" },
        "data": { "a.yaml": BAD },
    });
    let json = serde_json::to_string_pretty(&json).unwrap();
    let (before, _) = json.split_once("\"a.yaml\"").unwrap();
    let line = before.lines().count();
    check(
        &json,
        &[&format!("m.yaml:{line}:6: rules/a.yaml:4:18: d.k: invalid")],
    );
}

#[test]
fn config_maps_are_found_in_lists_and_among_other_documents() {
    let map = config_map(&block("a.yaml: |", 2, BAD));
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nspec: {}\n";
    let several = format!("# Comment\n---\n{deployment}---\n{map}---\n{deployment}");
    check(&several, &["m.yaml:16:22: rules/a.yaml: d.k: invalid"]);
    let item = map.replace('\n', "\n  ");
    for kind in ["List", "ConfigMapList"] {
        let list = format!("apiVersion: v1\nkind: {kind}\nitems:\n- {item}\n");
        check(&list, &["m.yaml:13:24: rules/a.yaml: d.k: invalid"]);
    }
    // Items of a typed list leave out what the list says.
    let item = item.replace("apiVersion: v1\n  kind: ConfigMap\n  ", "");
    let list = format!("apiVersion: v1\nkind: ConfigMapList\nitems:\n- {item}\n");
    check(&list, &["m.yaml:11:24: rules/a.yaml: d.k: invalid"]);
}

#[test]
fn each_config_map_is_a_set_of_its_own() {
    let one = config_map("a.yaml: 'domain: d'\nb.yaml: 'domain: e'");
    let sets = read("m.yaml", &format!("{one}---\n{one}")).sets;
    let files: Vec<_> = sets.iter().map(|set| set.files.len()).collect();
    assert_eq!(files, [2, 2]);
    let twice = config_map("b.yaml: 'domain: d'\na.yaml: 'domain: d'");
    check(
        &twice,
        &[
            "m.yaml:6:20: rules/b.yaml: duplicate domain 'd' in config file, already defined in m.yaml:7:20",
        ],
    );
}

#[test]
fn keys_that_are_no_rule_files_are_named() {
    let rules = "descriptors: [{key: k, rate_limits: [1/s]}]}";
    let data = format!(
        "a.yaml: '{{domain: d, {rules}'\nrules: '{{domain: d, {rules}'\nenvoy.yaml: 'admin: {{}}'\n\
         typo.yaml: '{{domian: d, {rules}'"
    );
    let map = format!(
        "{}binaryData:\n  logo.png: iVBORw0KGgo=\n",
        config_map(&data)
    );
    check(
        &map,
        &[
            "m.yaml:7:3: note: rules/rules is passed over: its name does not end in",
            "m.yaml:8:3: note: rules/envoy.yaml is passed over: it has no `domain`",
            "m.yaml:11:3: note: rules/logo.png is passed over: `binaryData` is not read",
            "m.yaml:9:16: rules/typo.yaml: unknown key 'domian'",
        ],
    );
}

#[test]
fn a_manifest_without_rules_is_one_sentence() {
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nspec: {}\n";
    let sentence = "m.yaml: no rule file is in here, only a Kubernetes Deployment";
    check(deployment, &[sentence]);
    check(
        &format!("{deployment}---\napiVersion: v1\nkind: Service\n"),
        &["m.yaml: no rule file is in here, only Kubernetes resources (Deployment, Service)"],
    );
    check(
        "static_resources: {}\nadmin: {}",
        &[
            "m.yaml:1:1: this is an Envoy configuration: no rule file; `tollgate lint-envoy` reads it",
        ],
    );
    let source = Source::Paths(vec![PathBuf::from("folder")]);
    for (name, text) in [
        ("kustomization.yaml", "resources: [a.yaml]"),
        ("deployment.yaml", deployment),
        ("envoy.yaml", "static_resources: {}"),
    ] {
        let RuleFileSets { sets, notes } = Files::of(name, text).by_config_map(&source);
        assert_eq!(sets.len(), 1);
        let problems = sets.into_iter().flat_map(|set| set.problems);
        let problems: Vec<_> = problems.map(|problem| problem.to_string()).collect();
        assert_eq!(problems, ["folder: no rule files found"]);
        let note = format!("{name}: note: passed over, because no rule file is in it, only a");
        assert!(notes[0].to_string().starts_with(&note), "{notes:?}");
    }
}

#[test]
fn rules_beside_manifests_in_one_file_are_refused_as_in_a_folder_that_is_served() {
    let map = config_map("a.yaml: 'domain: e'");
    let expected = "m.yaml:3:1: this is a Kubernetes ConfigMap: no rule file; keep it elsewhere";
    check(&format!("domain: d\n---\n{map}"), &[expected]);
    let problems = Files::of("m.yaml", &map)
        .compile(Options::default())
        .unwrap_err();
    assert_eq!(problems.len(), 1);
    assert_eq!(
        problems[0].to_string(),
        "m.yaml:1:1: ".to_owned()
            + &expected[12..]
            + ", and mount a ConfigMap of rules as a folder"
    );
}
