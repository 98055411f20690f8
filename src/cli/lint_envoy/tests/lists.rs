//! Maps in place of lists, which Envoy reads as lists of one item.

use super::{NAMED, Trap, TrapSeverity, findings, lint, manager, matcher};

/// The traps of a text without `list-of-one`, and the number of these.
fn traps(text: &str) -> (Vec<Trap>, usize) {
    let rules = matcher(
        "domain: d\ndescriptors:\n- key: generic_key\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
    );
    let found = lint(text, Some(&rules)).unwrap().findings;
    let (single, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|finding| finding.trap == Trap::ListOfOne);
    assert!(
        single
            .iter()
            .all(|finding| finding.severity == TrapSeverity::Advice)
    );
    (
        others.iter().map(|finding| finding.trap).collect(),
        single.len(),
    )
}

/// A connection manager with lists, and the same one with maps in their places.
#[test]
fn every_list_may_be_its_only_item() {
    let text = manager("", "", NAMED);
    let lists: [(&str, &str); 4] = [
        (
            &format!("[{{actions: [{NAMED}]}}]"),
            &format!("{{actions: [{NAMED}]}}"),
        ),
        (&format!("actions: [{NAMED}]"), &format!("actions: {NAMED}")),
        ("  - domains: ['*']\n    rate", "    domains: '*'\n    rate"),
        (
            "routes: [{match: {prefix: /}, route: {cluster: a}}]",
            "routes: {match: {prefix: /}, route: {cluster: a}}",
        ),
    ];
    assert_eq!(traps(&text), (vec![], 0));
    for (list, map) in lists {
        assert!(text.contains(list), "{list}");
        assert_eq!(traps(&text.replace(list, map)), (vec![], 1), "{map}");
    }
    let all = lists
        .iter()
        .fold(text.clone(), |text, (list, map)| text.replace(list, map));
    assert_eq!(traps(&all).1, 4, "{all}");
    let filters = text.replace("- name: l\n  typed", "  name: l\n  typed");
    assert_eq!(traps(&filters), (vec![], 1), "{filters}");
}

/// Traps are also found inside such maps.
#[test]
fn a_trap_in_the_only_item_is_found() {
    let text = manager("", "", NAMED);
    let stage = format!("rate_limits: {{stage: 3, actions: {NAMED}}}");
    let text = text.replace(&format!("rate_limits: [{{actions: [{NAMED}]}}]"), &stage);
    assert_eq!(traps(&text), (vec![Trap::Stage, Trap::Stage], 2));
    let none = manager(
        "",
        "",
        "{generic_key: {descriptor_key: x, descriptor_value: v}}",
    );
    let none = none
        .replace("actions: [", "actions: ")
        .replace("}}]}]", "}}}]");
    assert_eq!(traps(&none), (vec![Trap::Descriptor], 1), "{none}");
}

#[test]
fn maps_that_are_none_of_envoys_lists_are_left_alone() {
    let others =
        "configs: {a: 1}\nclusters: {a: {name: b}}\nactions: {a: 1}\nrate_limits: {a: 1}\n";
    let text = format!("{}---\n{others}", manager("", "", NAMED));
    assert_eq!(findings(&text), []);
    let weighted = manager("", "", NAMED).replace(
        "route: {cluster: a}",
        "route: {weighted_clusters: {clusters: [{name: a, weight: 1}]}}",
    );
    let called = weighted.replace(
        "    domain: d\n",
        "    domain: d\n    rate_limit_service: {grpc_service: {envoy_grpc: {cluster_name: a}}}\n",
    );
    assert_eq!(
        findings(&called),
        [],
        "a weighted cluster has no protocol of its own"
    );
}
