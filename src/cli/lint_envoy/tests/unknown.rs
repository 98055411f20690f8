//! Actions and fields that Envoy does not know, filters after the router, and ports without gRPC.

use super::{Finding, NAMED, Trap, filter, findings, lint, manager, matcher};

/// The findings of this trap.
fn found(text: &str, trap: Trap) -> Vec<Finding> {
    let mut found = findings(text);
    found.retain(|finding| finding.trap == trap);
    found
}

/// The fixes of unknown fields.
#[track_caller]
fn check_unknown(text: &str, expected: &[&str]) {
    let found = found(text, Trap::UnknownField);
    let fixes: Vec<_> = found.iter().map(|finding| &*finding.fix).collect();
    let is_expected = fixes.len() == expected.len()
        && fixes
            .iter()
            .zip(expected)
            .all(|(fix, start)| fix.starts_with(start));
    assert!(is_expected, "{text}: {fixes:?}");
}

#[test]
fn an_action_that_is_none_is_named_with_the_one_that_is_meant() {
    let one = "write one in each item";
    for (item, expected) in [
        (
            "{remote_address: {}}, {metadata: {descriptor_key: k}}",
            &[][..],
        ),
        ("{maskedRemoteAddress: {}}", &[]),
        ("{remote_adress: {}}", &["did you mean `remote_address`?"]),
        ("{remoteAdress: {}}", &["did you mean `remote_address`?"]),
        (
            "{generickey: {descriptor_value: v}}",
            &["did you mean `generic_key`?"],
        ),
        (
            "{request_header: {header_name: k}}",
            &["did you mean `request_headers`?"],
        ),
        (
            "{headers: {header_name: k}}",
            &["write one of source_cluster, "],
        ),
        (
            "{remote_adress: {}}, {genric_key: {}}",
            &[
                "did you mean `remote_address`?",
                "did you mean `generic_key`?",
            ],
        ),
        ("{}", &[one]),
        ("remote_address", &[one]),
        ("{remote_address: }", &[one]),
        (
            "{remote_address: {}, generic_key: {descriptor_value: v}}",
            &[one],
        ),
    ] {
        check_unknown(&manager("", "", item), expected);
        // The other owners of items.
        let item = format!("rate_limits: [{{actions: [{item}]}}]");
        check_unknown(&filter(&format!("  timeout: 1s\n  {item}\n")), expected);
        let route = format!("match: {{prefix: /}}\nroute: {{cluster: a, {item}}}\n");
        check_unknown(&route, expected);
    }
}

#[test]
fn a_field_of_an_item_or_of_a_descriptor_that_is_none_is_named() {
    let item = |item: &str| filter(&format!("  timeout: 1s\n  rate_limits: [{item}]\n"));
    check_unknown(
        &item(&format!("{{action: [{NAMED}]}}")),
        &["did you mean `actions`?"],
    );
    let stage = format!("{{actions: [{NAMED}], stge: 1}}");
    check_unknown(&item(&stage), &["did you mean `stage`?"]);
    check_unknown(
        &item(&format!("{{actions: [{NAMED}], disableKey: k, stage: 0}}")),
        &[],
    );
    let tcp = |descriptor: &str| {
        let filter = filter("  timeout: 1s\n").replace(".http.", ".network.");
        format!("{filter}  descriptors: [{descriptor}]\n")
    };
    check_unknown(&tcp("{entries: [{key: k, value: v}]}"), &[]);
    check_unknown(
        &tcp("{entris: [{key: k, value: v}]}"),
        &["did you mean `entries`?"],
    );
    check_unknown(
        &tcp("{entries: [{key: k, vale: v}]}"),
        &["did you mean `value`?"],
    );
}

const ROUTER: &str = "- name: r\n  typed_config:\n    '@type': \
                      type.googleapis.com/envoy.extensions.filters.http.router.v3.Router\n";

#[test]
fn a_filter_behind_the_router_is_found() {
    let behind = |text: &str| found(text, Trap::BehindRouter).len();
    assert_eq!(behind(&manager("", "", NAMED)), 0);
    assert_eq!(behind(&format!("{}{ROUTER}", manager("", "", NAMED))), 0);
    assert_eq!(behind(&manager(ROUTER, "", NAMED)), 1);
    assert_eq!(
        behind(&manager("- name: envoy.filters.http.router\n", "", NAMED)),
        1
    );
    assert_eq!(
        behind(&manager("- name: envoy.filters.http.cors\n", "", NAMED)),
        0
    );
    let filter = filter("  timeout: 1s\n");
    let filter = filter.strip_prefix("value:").unwrap();
    for (operation, sub_filter, expected) in [
        ("INSERT_BEFORE", "{name: envoy.filters.http.router}", 0),
        ("INSERT_FIRST", "{name: envoy.filters.http.router}", 0),
        ("INSERT_AFTER", "{name: envoy.filters.http.cors}", 0),
        ("INSERT_AFTER", "{name: envoy.filters.http.router}", 1),
        ("INSERT_AFTER", "", 1),
        ("ADD", "", 1),
    ] {
        let patch = format!(
            "configPatches:\n- applyTo: HTTP_FILTER\n  match: {{listener: {{filterChain: {{filter: {{name: h, \
             subFilter: {sub_filter}}}}}}}}}\n  patch:\n    operation: {operation}\n    value:\n      name: l\n      \
             typed_config:{}",
            filter.replace('\n', "\n      ")
        );
        assert_eq!(behind(&patch), expected, "{patch}");
    }
}

#[test]
fn a_port_without_grpc_is_found_wherever_it_stands() {
    let called = |service: &str, port: u16| {
        let service = format!("  rate_limit_service: {{grpc_service: {{{service}}}}}\n");
        let filter = filter(&format!("  timeout: 1s\n{service}"));
        format!(
            "{filter}static_resources:\n  clusters:\n  - name: c\n    http2_protocol_options: {{}}\n    \
             load_assignment: {{endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{port_value: \
             {port}}}}}}}}}]}}]}}\n"
        )
    };
    let wrong = |text: &str| found(text, Trap::WrongPort).len();
    let envoy_grpc = |name: &str| format!("envoy_grpc: {{cluster_name: '{name}', authority: a}}");
    for port in [8080, 6070, 9090] {
        assert_eq!(wrong(&called(&envoy_grpc("c"), port)), 1, "{port}");
        let google = format!("google_grpc: {{target_uri: 'tollgate:{port}'}}");
        assert_eq!(wrong(&called(&google, 8081)), 1, "{port}");
        let istio = format!("outbound|{port}||tollgate.svc");
        assert_eq!(wrong(&called(&envoy_grpc(&istio), 8081)), 1, "{port}");
    }
    assert_eq!(wrong(&called(&envoy_grpc("c"), 8081)), 0);
    assert_eq!(wrong(&called(&envoy_grpc("other"), 8080)), 0);
    assert_eq!(
        wrong(&called("google_grpc: {target_uri: 'tollgate:8081'}", 8080)),
        0
    );
    assert_eq!(
        wrong(&called(&envoy_grpc("outbound|8081||tollgate.svc"), 8080)),
        0
    );
}

#[test]
fn a_domain_without_rules_is_told_with_the_one_that_is_meant() {
    let rules = matcher(
        "domain: d\ndescriptors: [{key: k, rate_limits: [1/s]}]\n---\ndomain: shop\ndescriptors: []\n",
    );
    let fix = |domain: &str| {
        let text = filter("  timeout: 1s\n").replace("domain: d\n", &format!("domain: {domain}\n"));
        let found = lint(&text, Some(&rules)).unwrap().findings;
        let domain = found
            .into_iter()
            .find(|finding| finding.trap == Trap::Domain);
        domain.map(|finding| finding.fix)
    };
    assert_eq!(fix("shop"), None);
    for slip in ["shp", "Shop", "shops", "sohp"] {
        assert_eq!(fix(slip).as_deref(), Some("did you mean `shop`?"), "{slip}");
    }
    let other = "name the `domain` of a rule file";
    assert_eq!(fix("nowhere").as_deref(), Some(other));
}
