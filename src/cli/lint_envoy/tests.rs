mod lists;
mod orders;
mod patches;
mod per_route;
mod shapes;
mod unknown;

use clap::ValueEnum as _;

use super::{
    actions::OrderName,
    finding::{Trap, TrapSeverity},
    *,
};
use crate::{
    config::{files::Files, position::Position, rule_defaults::Options},
    core::{lease::order::OrderKind, request::Entry},
};

/// A filter without traps except those in `more`, in an EnvoyFilter or the like.
fn filter(more: &str) -> String {
    format!(
        "value:\n  '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit\n  \
         domain: d\n  failure_mode_deny: false\n  enable_x_ratelimit_headers: DRAFT_VERSION_03\n{more}"
    )
}

fn findings(text: &str) -> Vec<Finding> {
    lint(text, None).unwrap().findings
}

/// `line:column: `
fn at(position: Option<Position>) -> String {
    let Position { line, column } = position.unwrap();
    format!("{line}:{column}: ")
}

/// The traps in a text: `line:column severity trap`.
fn traps(text: &str) -> Vec<String> {
    let show = |finding: &Finding| {
        let place = at(finding.position);
        format!("{place}{:?} {}", finding.severity, finding.trap)
    };
    findings(text).iter().map(show).collect()
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    assert_eq!(traps(text), expected);
}

#[test]
fn a_timeout_is_looked_at_closely() {
    check(&filter("  timeout: 0.25s\n"), &[]);
    check(&filter(""), &["2:4: Warning timeout"]);
    check(&filter("  timeout: 250ms\n"), &["6:12: Error timeout"]);
    check(&filter("  timeout: 0.020s\n"), &["6:12: Warning timeout"]);
    check(&filter("  timeout: 0s\n"), &["6:12: Warning timeout"]);
}

#[test]
fn a_refusal_has_a_code_of_a_refusal() {
    let coded = |code: &str| {
        filter(&format!(
            "  timeout: 1s\n  rate_limited_status: {{ code: {code} }}\n"
        ))
    };
    for good in ["429", "Forbidden", "\"503\""] {
        check(&coded(good), &[]);
    }
    for bad in ["200", "OK", "TemporaryRedirect"] {
        check(&coded(bad), &["7:26: Warning status"]);
    }
}

#[test]
fn both_spellings_and_typed_structs_are_read() {
    let json = r#"{"value": {
        "@type": "type.googleapis.com/xds.type.v3.TypedStruct",
        "type_url": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "value": {"domain": "d", "failureModeDeny": true, "timeout": "0.01s",
                  "enableXRatelimitHeaders": "DRAFT_VERSION_03"}}}"#;
    let findings = findings(json);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].path, "value.value.timeout");
    assert_eq!(findings[0].position, None);
}

#[test]
fn documents_of_one_file_are_told_apart() {
    let text = format!("# nothing\n---\n{}---\n{}", filter(""), filter(""));
    let findings = findings(&text);
    let shown: Vec<_> = findings
        .iter()
        .map(|finding| format!("{}{}", at(finding.position), finding.path))
        .collect();
    assert_eq!(shown, ["4:4: document 1: value", "10:4: document 2: value"]);
}

fn matcher(text: &str) -> Matcher {
    let loaded = Files::of("d.yaml", text).compile(Options::default());
    loaded.unwrap().matcher
}

/// A request can bring values that an action leaves open, so only impossible matches are reported.
#[test]
fn rules_answer_what_some_request_could_bring() {
    let rules = matcher(
        "domain: d\ndescriptors:\n- key: a\n  value: x.y\n  rate_limit: {unit: day, requests_per_unit: 1}\n  \
         descriptors: [{key: b, value: '*z', rate_limit: {unit: day, requests_per_unit: 1}}]\n",
    );
    let answered = |actions: &str| {
        let text = filter(&format!(
            "  timeout: 1s\n  rate_limits:\n  - actions: {actions}\n"
        ));
        let found = lint(&text, Some(&rules)).unwrap().findings;
        !found.iter().any(|finding| finding.trap == Trap::Descriptor)
    };
    let a = "{request_headers: {header_name: a, descriptor_key: a}}";
    let b = "{metadata: {descriptor_key: b}}";
    assert!(answered(&format!("[{a}]")));
    assert!(answered(&format!("[{a}, {b}]")));
    assert!(answered(
        "[{generic_key: {descriptor_key: a, descriptor_value: x.y}}]"
    ));
    assert!(answered(
        "[{generic_key: {descriptor_key: a, descriptor_value: '%REQ(a)%'}}]"
    ));
    assert!(answered("[{extension: {name: expr}}]"), "it is not known");
    for nothing in [
        format!("[{b}]"),
        format!("[{b}, {a}]"),
        format!("[{a}, {b}, {b}]"),
        "[{generic_key: {descriptor_key: a, descriptor_value: x}}]".to_owned(),
        "[{remote_address: {}}]".to_owned(),
    ] {
        assert!(!answered(&nothing), "{nothing}");
    }
}

#[test]
fn what_is_no_configuration_is_refused_with_its_place() {
    let line = |text: &str| {
        let error = lint(text, None).unwrap_err();
        (error.position().map(|at| at.line), error.to_string())
    };
    let virtual_service = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nspec:\n  http:\n  \
                           - match: [{uri: {prefix: /}}]\n    route: [{destination: {host: a}}]\n";
    for text in ["", "domain: shop", "[1, 2]", virtual_service] {
        let (line, error) = line(text);
        assert!(error.contains("not an Envoy configuration"), "{error}");
        assert_eq!(line, None);
    }
    assert_eq!(line("a: [1,\nb: }").0, Some(2));
    assert_eq!(line("a: 1\n---\n- b: }").0, Some(3));
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    assert!(!line(&deep).1.is_empty());
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(1_000), "]".repeat(1_000));
    assert!(!line(&deep).1.is_empty());
}

#[test]
fn names_of_traps_are_sorted() {
    let names: Vec<_> = Trap::value_variants().iter().map(Trap::to_string).collect();
    assert!(names.is_sorted(), "{names:?}");
    assert!(names.contains(&"http2".to_owned()), "{names:?}");
}

/// The places of `absent-value` for a list of items on a route.
fn absent(items: &str) -> Vec<String> {
    absent_in(&format!("rate_limits:\n{items}"))
}

fn absent_in(text: &str) -> Vec<String> {
    let found = findings(text);
    let found = found
        .iter()
        .filter(|finding| finding.trap == Trap::AbsentValue);
    found.map(|finding| at(finding.position)).collect()
}

const KEY: &str = "{request_headers: {header_name: x-key, descriptor_key: k}}";
const SKIPPED: &str =
    "{request_headers: {header_name: x-key, descriptor_key: k, skip_if_absent: true}}";
const NAMED: &str = "{generic_key: {descriptor_value: v}}";

#[test]
fn a_header_may_be_absent_unless_something_is_limited_without_it() {
    let list = |items: &[&str]| {
        let items: Vec<_> = items
            .iter()
            .map(|item| format!("- actions: [{item}]\n"))
            .collect();
        absent(&items.concat()).len()
    };
    assert_eq!(list(&[KEY]), 1);
    assert_eq!(list(&[&format!("{NAMED}, {KEY}")]), 1);
    assert_eq!(
        list(&[
            KEY,
            "{query_parameters: {query_parameter_name: q, descriptor_key: k}}"
        ]),
        2
    );
    assert_eq!(list(&[SKIPPED]), 1, "its descriptor is empty");
    assert_eq!(list(&[&format!("{SKIPPED}, {SKIPPED}")]), 1);
    for fallback in [
        NAMED,
        "{remote_address: {}}",
        &format!("{NAMED}, {SKIPPED}"),
        "{request_headers: {header_name: ':method', descriptor_key: k}}",
        "{header_value_match: {descriptor_value: v, expect_match: false, \
          headers: [{name: x-key, present_match: true}]}}",
        "{header_value_match: {descriptor_value: v, headers: [{name: x-key, present_match: false}]}}",
        "{extension: {name: expr}}",
    ] {
        assert_eq!(list(&[KEY, fallback]), 0, "{fallback}");
    }
    for other in [
        "{header_value_match: {descriptor_value: v, headers: [{name: x-key, present_match: true}]}}",
        "{request_headers: {header_name: x-other, descriptor_key: k}}",
    ] {
        assert_ne!(list(&[KEY, other]), 0, "{other}");
    }
    let on_done =
        format!("- actions: [{KEY}]\n- actions: [{NAMED}]\n  apply_on_stream_done: true\n");
    assert_eq!(
        absent(&on_done),
        ["2:32: "],
        "the other one refuses nothing"
    );
}

#[test]
fn the_limits_of_a_virtual_host_count_where_they_are_included() {
    let host = |route: &str, matchers: &str| {
        format!(
            "virtual_hosts:\n- domains: ['*']\n  rate_limits: [{{actions: [{NAMED}]}}]\n  routes:\n  \
             - match: {{prefix: /, headers: [{matchers}]}}\n    \
             route: {{cluster: a, rate_limits: [{{actions: [{KEY}]}}], {route}}}\n"
        )
    };
    assert_eq!(absent_in(&host("", "")).len(), 1);
    assert_eq!(
        absent_in(&host("include_vh_rate_limits: true", "")).len(),
        0
    );
    assert_eq!(
        absent_in(&host("", "{name: X-Key, present_match: true}")).len(),
        0
    );
    assert_eq!(
        absent_in(&host("", "{name: X-Key, present_match: false}")).len(),
        1
    );
    assert_eq!(
        absent_in(&host("", "{name: x-other, present_match: true}")).len(),
        1
    );
}

/// A connection manager with these filters before the rate limit filter, and other settings.
fn manager(filters: &str, more: &str, item: &str) -> String {
    const TYPE: &str = "type.googleapis.com/envoy.extensions.filters";
    format!(
        "'@type': {TYPE}.network.http_connection_manager.v3.HttpConnectionManager\n{more}\n\
         route_config:\n  virtual_hosts:\n  - domains: ['*']\n    rate_limits: [{{actions: [{item}]}}]\n    \
         routes: [{{match: {{prefix: /}}, route: {{cluster: a}}}}]\n\
         http_filters:\n{filters}- name: l\n  typed_config:\n    '@type': {TYPE}.http.ratelimit.v3.RateLimit\n    \
         domain: d\n    timeout: 1s\n    failure_mode_deny: false\n    \
         enable_x_ratelimit_headers: DRAFT_VERSION_03\n"
    )
}

#[test]
fn headers_that_envoy_or_an_earlier_filter_brings_are_not_reported() {
    let header =
        |name: &str| format!("{{request_headers: {{header_name: '{name}', descriptor_key: k}}}}");
    let count = |filters: &str, more: &str, name: &str| {
        absent_in(&manager(filters, more, &header(name))).len()
    };
    assert_eq!(count("", "", "x-key"), 1);
    for filter in ["envoy.filters.http.jwt_authn", "envoy.filters.http.lua"] {
        assert_eq!(count(&format!("- name: {filter}\n"), "", "x-key"), 0);
    }
    assert_eq!(count("- name: envoy.filters.http.cors\n", "", "x-key"), 1);
    for always in [":authority", "Host", "x-request-id", "x-forwarded-proto"] {
        assert_eq!(count("", "", always), 0, "{always}");
    }
    assert_eq!(count("", "generate_request_id: false", "x-request-id"), 1);
    assert_eq!(count("", "", "x-forwarded-for"), 1);
    assert_eq!(count("", "use_remote_address: true", "x-forwarded-for"), 0);
}

#[test]
fn with_rules_a_shorter_descriptor_has_to_match_too() {
    let text = manager("", "", &format!("{NAMED}, {SKIPPED}"));
    let absent = |rules: &str| {
        let rules = matcher(&format!(
            "domain: d\ndescriptors:\n- key: generic_key\n  value: v\n{rules}"
        ));
        let findings = lint(&text, Some(&rules)).unwrap().findings;
        findings
            .iter()
            .filter(|finding| finding.trap == Trap::AbsentValue)
            .count()
    };
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let below = format!("  descriptors: [{{key: k, {limit}}}]\n");
    assert_eq!(absent(&below), 1);
    assert_eq!(absent(&format!("  {limit}\n{below}")), 0);
}

#[test]
fn a_type_that_is_misspelt_is_reported_with_the_right_one() {
    let misspelt = [
        "envoy.extensions.filters.http.ratelimit.v3.RateLimt",
        "envoy.extensions.filters.http.rate_limit.v3.RateLimit",
        "envoy.extensions.filter.http.ratelimit.v3.RateLimit",
        "envoy.config.filter.http.rate_limit.v2.RateLimit",
        "extensions.filters.http.ratelimit.v3.RateLimit",
    ];
    let right = "envoy.extensions.filters.http.ratelimit.v3.RateLimit";
    for name in misspelt {
        let text = manager("", "", NAMED).replace(right, name);
        let findings = findings(&text);
        assert_eq!(findings.len(), 1, "{findings:?}");
        let Finding {
            severity,
            trap,
            text,
            fix,
            ..
        } = &findings[0];
        assert_eq!((*severity, *trap), (TrapSeverity::Error, Trap::NoFilter));
        assert!(text.contains(name), "{text}");
        assert!(
            fix.contains(&format!(
                "did you mean `\"@type\": type.googleapis.com/{right}`?"
            )),
            "{fix}"
        );
    }
    for other in [
        "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        "envoy.extensions.filters.http.router.v3.Router",
    ] {
        let text = manager("", "", NAMED).replace(right, other);
        let findings = findings(&text);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0]
                .text
                .contains("its 1 item of `rate_limits` limits nothing")
        );
    }
}

#[test]
fn a_disabled_filter_may_be_enabled_by_a_route() {
    let disabled = manager("", "", NAMED).replace("- name: l\n", "- name: l\n  disabled: true\n");
    let found = |config: &str| {
        let with = format!("route: {{cluster: a}}, typed_per_filter_config: {{{config}}}");
        let text = disabled.replace("route: {cluster: a}", &with);
        let names: Vec<_> = findings(&text)
            .iter()
            .map(|finding| finding.trap.to_string())
            .collect();
        names.join(" ")
    };
    const TYPE: &str = "'@type': type.googleapis.com/envoy";
    assert_eq!(found(""), "filter-disabled");
    assert_eq!(
        found(&format!(
            "x: {{{TYPE}.config.route.v3.FilterConfig, config: {{}}}}"
        )),
        "filter-disabled"
    );
    assert_eq!(
        found(&format!(
            "l: {{{TYPE}.config.route.v3.FilterConfig, disabled: true}}"
        )),
        "filter-disabled"
    );
    assert_eq!(
        found(&format!(
            "l: {{{TYPE}.config.route.v3.FilterConfig, config: {{}}}}"
        )),
        ""
    );
    assert_eq!(
        found(&format!(
            "l: {{{TYPE}.extensions.filters.http.ratelimit.v3.RateLimitPerRoute}}"
        )),
        ""
    );
    // Routes that are not in the file could enable it.
    let remote = disabled.replace("route_config:", "elsewhere:");
    assert!(findings(&remote).is_empty(), "{:?}", findings(&remote));
}

/// A bootstrap whose filter calls the cluster `tolgate`, with other settings.
fn bootstrap(more: &str) -> String {
    let service = filter(
        "  timeout: 1s\n  rate_limit_service: {grpc_service: {envoy_grpc: {cluster_name: tolgate}}}\n",
    );
    let service = service.replace('\n', "\n  ");
    format!(
        "static_resources:\n  {service}\n  clusters:\n  - {{name: other}}\n  - {{name: tollgate, \
         http2_protocol_options: {{}}}}\n{more}"
    )
}

#[test]
fn a_cluster_is_unknown_only_if_all_of_them_are_in_the_file() {
    let found = findings(&bootstrap(""));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0].severity, found[0].trap),
        (TrapSeverity::Error, Trap::UnknownCluster)
    );
    assert_eq!(found[0].fix, "did you mean `tollgate`?");
    assert_eq!(at(found[0].position), "8:68: ");
    for more in [
        "dynamic_resources: {cds_config: {ads: {}}}\n",
        "dynamicResources: {cds_config: {path_config_source: {path: /x}}}\n",
        "apiVersion: x/v1\nkind: EnvoyFilter\n",
        "---\ndynamic_resources: {cds_config: {ads: {}}}\n",
    ] {
        assert_eq!(findings(&bootstrap(more)).len(), 0, "{more}");
    }
    let parts = bootstrap("").replace("  - {name: other}\n", "");
    let parts = parts.replace("  - {name: tollgate, http2_protocol_options: {}}\n", "");
    assert!(!parts.contains("tollgate"), "{parts}");
    assert_eq!(findings(&parts).len(), 0, "a part of a bootstrap");
}

#[test]
fn a_timeout_below_grpc_service_is_named() {
    let service =
        "  rate_limit_service: {grpc_service: {timeout: 10s, envoy_grpc: {cluster_name: a}}}\n";
    check(&filter(service), &["6:48: Warning service-timeout"]);
    let both = format!("  timeout: 1s\n{service}");
    check(&filter(&both), &["7:48: Advice service-timeout"]);
}

#[test]
fn a_finding_is_one_line_without_needless_escapes() {
    let text = bootstrap("").replace("tolgate", "\"it's\\n\\\"\\\\\"");
    let found = findings(&text);
    let shown = found[0].to_string();
    assert!(shown.contains("no cluster `it's\\n\"\\`: every"), "{shown}");
}

#[test]
fn texts_are_phrases_that_a_fix_follows() {
    let text = std::fs::read_to_string("tests/it/lint_envoy/planted.yaml").unwrap();
    for Finding {
        text, fix, trap, ..
    } in findings(&text)
    {
        for part in [&text, &fix] {
            assert!(
                !part.ends_with('.') && !part.contains("  "),
                "{trap}: {part}"
            );
            let first = part.chars().next().unwrap();
            let is_name = part.starts_with("Envoy") || part.starts_with("CLUSTER");
            assert!(!first.is_uppercase() || is_name, "{trap}: {part}");
        }
    }
}

/// This command has names of its own, so that it needs no counting.
#[test]
fn the_orders_are_those_that_tollgate_carries_out() {
    for key in ["reservation", "release", "unreserved", "reserve", "x"] {
        let key = format!("tollgate.{key}");
        let entries = [Entry {
            key: key.as_bytes(),
            value: b"1",
        }];
        let (kind, _) = OrderKind::of(&entries).unwrap();
        let text = format!("actions: [{{generic_key: {{descriptor_key: {key}}}}}]\n");
        let documents = Document::parse_all(&text).unwrap();
        let order = OrderName::of(&documents[0].root());
        let expected = match kind {
            OrderKind::Settle(_) => Some(OrderName::Reservation),
            OrderKind::Release(_) => Some(OrderName::Release),
            OrderKind::Unreserved => Some(OrderName::Unreserved),
            OrderKind::Unknown => None,
        };
        assert_eq!(order, expected, "{key}");
    }
}
