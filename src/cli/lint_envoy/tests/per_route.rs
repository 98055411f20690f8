//! Limits that routes configure for a filter: under the filter's name, with a domain of the rules, and next to filters
//! that limit nothing.

use super::{Finding, NAMED, Trap, TrapSeverity, findings, lint, manager, matcher};

const TYPE: &str = "'@type': type.googleapis.com/envoy.extensions.filters";

/// A `RateLimitPerRoute` with more settings.
fn per_route(more: &str) -> String {
    format!(
        "{{{TYPE}.http.ratelimit.v3.RateLimitPerRoute, rate_limits: [{{actions: [{NAMED}]}}]{more}}}"
    )
}

/// An entry of a `typed_per_filter_config` that holds one.
fn entry(name: &str) -> String {
    format!("typed_per_filter_config: {{{name}: {}}}", per_route(""))
}

/// A configuration with this text, as route, virtual host, route configuration or weighted cluster.
fn placed(text: &str, config: &str) -> [String; 4] {
    let at = |old: &str, new: &str| {
        assert!(text.contains(old), "{old}");
        text.replace(old, new)
    };
    let route = "route: {cluster: a}";
    [
        at(route, &format!("{route}, {config}")),
        at(
            "- domains: ['*']",
            &format!("- domains: ['*']\n    {config}"),
        ),
        at("route_config:\n", &format!("route_config:\n  {config}\n")),
        at(
            route,
            &format!(
                "route: {{weighted_clusters: {{clusters: [{{name: a, weight: 1, {config}}}]}}}}"
            ),
        ),
    ]
}

/// The severities of a trap in a text.
fn severities(text: &str, trap: Trap) -> Vec<TrapSeverity> {
    let findings = findings(text);
    let found = findings.iter().filter(|finding| finding.trap == trap);
    found.map(|finding| finding.severity).collect()
}

#[track_caller]
fn check_name(text: &str, expected: &[TrapSeverity]) {
    assert_eq!(severities(text, Trap::RouteFilterName), expected, "{text}");
}

/// The filter of `manager` has the name `l`.
#[test]
fn limits_under_a_name_that_no_filter_has_are_an_error_with_the_right_name() {
    let text = manager("", "", NAMED);
    let wrapped = |name: &str| {
        format!(
            "typed_per_filter_config: {{{name}: {{'@type': \
             type.googleapis.com/envoy.config.route.v3.FilterConfig, config: {}}}}}",
            per_route("")
        )
    };
    for name in [
        "typed_config",
        "envoy.filters.http.ratelimit",
        "envoy.filters.http.rate_limit",
        "L",
    ] {
        for config in [entry(name), wrapped(name)] {
            for text in placed(&text, &config) {
                check_name(&text, &[TrapSeverity::Error]);
                let findings = findings(&text);
                let found = findings
                    .iter()
                    .find(|found| found.trap == Trap::RouteFilterName);
                let Finding { text, fix, .. } = found.unwrap();
                assert!(text.contains(&format!("has the name `{name}`")), "{text}");
                assert!(
                    fix.starts_with(&format!("write `l` instead of `{name}`")),
                    "{fix}"
                );
            }
        }
    }
    for config in [entry("l"), wrapped("l")] {
        for text in placed(&text, &config) {
            check_name(&text, &[]);
        }
    }
    // A filter of another kind does not read them.
    let cors = format!("- name: cors\n  typed_config: {{{TYPE}.http.cors.v3.Cors}}\n");
    for text in placed(&manager(&cors, "", NAMED), &entry("cors")) {
        check_name(&text, &[TrapSeverity::Error]);
    }
    // Other settings of routes are not for this filter.
    let other = "typed_per_filter_config: {cors: {'@type': type.googleapis.com/x.CorsPolicy}}";
    for text in placed(&text, other) {
        check_name(&text, &[]);
    }
}

/// Istio's form of a message that it does not know.
#[test]
fn limits_in_a_typed_struct_are_those_of_the_message_in_it() {
    let limits = format!("rate_limits: [{{hits_addend: {{number: 2}}, actions: [{NAMED}]}}]");
    let entry = |name: &str| {
        format!(
            "typed_per_filter_config: {{{name}: {{'@type': type.googleapis.com/udpa.type.v1.TypedStruct, type_url: \
             type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, value: {{{limits}}}}}}}"
        )
    };
    for text in placed(&manager("", "", NAMED), &entry("l")) {
        assert_eq!(severities(&text, Trap::HitsAddend), [], "{text}");
        check_name(&text, &[]);
    }
    for text in placed(&manager("", "", NAMED), &entry("other")) {
        check_name(&text, &[TrapSeverity::Error]);
    }
}

#[test]
fn a_filter_that_the_file_does_not_show_may_have_the_name() {
    let hidden = [
        "- name: h\n  config_discovery: {config_source: {ads: {}}, type_urls: [x]}\n".to_owned(),
        format!("- name: h\n  typed_config: {{{TYPE}.http.composite.v3.Composite}}\n"),
        format!(
            "- name: h\n  typed_config: {{'@type': type.googleapis.com/envoy.extensions.common.matching.v3.\
             ExtensionWithMatcher, extension_config: {{name: c, typed_config: \
             {{{TYPE}.http.composite.v3.Composite}}}}}}\n"
        ),
        format!(
            "- name: h\n  disabled: true\n  typed_config: {{{TYPE}.http.ratelimit.v3.RateLimit, domain: d}}\n"
        ),
    ];
    for filters in hidden {
        for text in placed(&manager(&filters, "", NAMED), &entry("h")) {
            check_name(&text, &[]);
        }
        for text in placed(&manager(&filters, "", NAMED), &entry("other")) {
            check_name(&text, &[TrapSeverity::Error]);
        }
    }
}

/// A connection manager whose only rate limit filter arrives over xDS has a filter.
#[test]
fn a_filter_over_xds_is_a_filter() {
    let text = manager("", "", NAMED);
    let (before, _) = text.split_once("- name: l\n").unwrap();
    let text = format!("{before}- name: l\n  config_discovery: {{config_source: {{ads: {{}}}}}}\n");
    assert_eq!(findings(&text), []);
    let without = format!("{before}- name: l\n  typed_config: {{{TYPE}.http.cors.v3.Cors}}\n");
    assert_eq!(severities(&without, Trap::NoFilter), [TrapSeverity::Error]);
}

/// A route configuration of this name, in a document of its own.
fn route_config(config: &str) -> String {
    format!(
        "---\nname: shared\n{config}\nvirtual_hosts:\n- domains: ['*']\n  routes: [{{match: {{prefix: /}}, route: \
         {{cluster: a}}}}]\n"
    )
}

/// A connection manager that uses this route configuration, with a filter of this name.
fn user(name: &str) -> String {
    let text = manager("", "rds: {route_config_name: shared}", NAMED);
    let (before, rest) = text.split_once("route_config:\n").unwrap();
    let (_, filters) = rest.split_once("http_filters:\n").unwrap();
    let filters = filters.replace("name: l", &format!("name: {name}"));
    format!("{before}http_filters:\n{filters}")
}

#[test]
fn a_route_configuration_that_several_listeners_share_is_read_by_each_of_them() {
    let both = format!(
        "typed_per_filter_config: {{one: {}, two: {}}}",
        per_route(""),
        per_route("")
    );
    let together = |config: &str| {
        format!(
            "{}---\n{}{}",
            user("one"),
            user("two"),
            route_config(config)
        )
    };
    check_name(&together(&both), &[]);
    check_name(&together(&entry("one")), &[]);
    check_name(&together(&entry("three")), &[TrapSeverity::Error]);
    let alone = format!("{}{}", user("one"), route_config(&both));
    check_name(&alone, &[TrapSeverity::Error]);
    // A connection manager whose filters are elsewhere can have any filter.
    let (partial, _) = user("two")
        .split_once("http_filters:")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    check_name(
        &format!(
            "{}---\n{partial}{}",
            user("one"),
            route_config(&entry("three"))
        ),
        &[],
    );
}

#[test]
fn without_the_filters_only_a_slip_is_an_advice() {
    for (name, expected) in [
        ("limits", &[][..]),
        ("envoy.filters.http.ratelimit", &[]),
        ("typed_config", &[TrapSeverity::Advice]),
        ("envoy.filters.http.rate_limit", &[TrapSeverity::Advice]),
        ("envoy.rate_limit", &[TrapSeverity::Advice]),
        ("envoy.filter.http.ratelimit", &[TrapSeverity::Advice]),
    ] {
        check_name(&route_config(&entry(name)), expected);
        let dump = format!(
            "configs:\n- '@type': type.googleapis.com/envoy.admin.v3.RoutesConfigDump\n  dynamic_route_configs:\n  \
             - route_config: {{'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: shared, \
             {}, virtual_hosts: [{{domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: a}}}}]}}]}}\n",
            entry(name)
        );
        check_name(&dump, expected);
    }
}

#[test]
fn the_domain_of_a_route_has_to_be_in_the_rules() {
    let rules = matcher(
        "domain: d\ndescriptors:\n- key: generic_key\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
    );
    let domains = |text: &str| {
        let found = lint(text, Some(&rules)).unwrap().findings;
        let found = found.iter().filter(|finding| finding.trap == Trap::Domain);
        found
            .map(|finding| finding.text.clone())
            .collect::<Vec<_>>()
    };
    let text = manager("", "", NAMED);
    let config = |domain: &str| {
        let config = per_route(&format!(", domain: {domain}"));
        format!("typed_per_filter_config: {{l: {config}}}")
    };
    let without_limits = format!(
        "typed_per_filter_config: {{l: {{{TYPE}.http.ratelimit.v3.RateLimitPerRoute, domain: nope}}}}"
    );
    let expected = ["no rule file has the domain `nope`: everything passes"];
    for config in [&config("nope"), &without_limits] {
        for text in placed(&text, config) {
            assert_eq!(domains(&text), expected, "{text}");
        }
        assert_eq!(domains(&route_config(config)), expected);
        assert_eq!(
            domains(&format!("{}{}", user("l"), route_config(config))),
            expected
        );
    }
    for domain in ["d", "''"] {
        for text in placed(&text, &config(domain)) {
            assert_eq!(domains(&text), [""; 0], "{text}");
        }
    }
}

#[test]
fn the_domain_of_a_tcp_filter_has_to_be_in_the_rules() {
    let rules = matcher(
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
    );
    let traps = |domain: &str| {
        let text = format!(
            "name: r\ntyped_config: {{{TYPE}.network.ratelimit.v3.RateLimit, domain: {domain}, timeout: 1s, \
             failure_mode_deny: true, descriptors: [{{entries: [{{key: k, value: v}}]}}]}}\n"
        );
        let found = lint(&text, Some(&rules)).unwrap().findings;
        found.iter().map(|finding| finding.trap).collect::<Vec<_>>()
    };
    assert_eq!(traps("d"), []);
    assert_eq!(traps("nope"), [Trap::Domain]);
}

#[test]
fn a_share_of_refusals_says_nothing_of_a_tcp_filter_which_has_no_such_key() {
    let traps = |filter: &str, keys: &str| {
        let text = format!(
            "name: r\ntyped_config: {{{TYPE}.{filter}.ratelimit.v3.RateLimit, domain: d, timeout: 1s, {keys}}}\n"
        );
        let found = lint(&text, None).unwrap().findings;
        found
            .iter()
            .any(|finding| finding.trap == Trap::FailureMode)
    };
    let share = "failure_mode_deny_percent: {default_value: {numerator: 100}}";
    assert!(!traps("http", share));
    assert!(traps("network", share));
    assert!(!traps("network", "failure_mode_deny: true"));
}

/// A listener with filter chains that have the same filter, of this domain, and virtual hosts of these names; the last
/// chain has limits.
fn chains(silent: &[(&str, &str)]) -> String {
    let chain = |host: &str, domain: &str, limits: &str| {
        let text = manager("", "", NAMED)
            .replace(
                "- domains: ['*']",
                &format!("- name: {host}\n    domains: ['*']"),
            )
            .replace("domain: d", &format!("domain: {domain}"))
            .replace(
                &format!("    rate_limits: [{{actions: [{NAMED}]}}]\n"),
                limits,
            )
            .replace('\n', "\n      ");
        format!(
            "  - filters:\n    - name: hcm\n      typed_config:\n        {}\n",
            text.replace('\n', "\n  ")
        )
    };
    let silent = silent.iter().map(|(host, domain)| chain(host, domain, ""));
    let last = chain(
        "'inbound|http|8080'",
        "d",
        &format!("    rate_limits: [{{actions: [{NAMED}]}}]\n"),
    );
    format!(
        "- name: virtualInbound\n  filter_chains:\n{}{last}",
        silent.collect::<String>()
    )
}

#[test]
fn a_filter_that_a_control_plane_puts_into_every_chain_may_be_silent_in_some() {
    let stage = |text: &str| severities(text, Trap::Stage);
    let catch_all = "'inbound|http|0'";
    assert_eq!(stage(&chains(&[(catch_all, "d")])), []);
    assert_eq!(stage(&chains(&[("shop", "d")])), [TrapSeverity::Advice]);
    // Another filter is silent for its own reason.
    assert_eq!(
        stage(&chains(&[(catch_all, "other")])),
        [TrapSeverity::Error]
    );
    // So is a filter in another listener, except in the dump of a proxy that a control plane configures.
    let text = chains(&[(catch_all, "d")]);
    let (first, second) = text.split_at(text.rfind("  - filters:").unwrap());
    let apart = format!("{first}- name: other\n  filter_chains:\n{second}");
    assert_eq!(stage(&apart), [TrapSeverity::Error]);
    let dump = format!("configs:\n- dynamic_listeners:\n{apart}").replace('\n', "\n  ");
    let dump = dump.replacen("configs:\n  - dynamic", "configs:\n- dynamic", 1);
    assert_eq!(stage(&dump), [TrapSeverity::Advice]);
}

/// A listener that is replaced answers its last requests for a while, and the dump has both.
#[test]
fn a_listener_that_is_drained_is_not_judged() {
    const MANAGER: &str = "network.http_connection_manager.v3.HttpConnectionManager";
    let manager = |filters: &str| {
        format!(
            "{{filter_chains: [{{filters: [{{name: m, typed_config: {{{TYPE}.{MANAGER}, rds: \
             {{route_config_name: r}}, http_filters: [{filters}{{name: router}}]}}}}]}}]}}"
        )
    };
    let service =
        "{transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: a, authority: a}}}";
    let filter = format!(
        "{{name: l, typed_config: {{{TYPE}.http.ratelimit.v3.RateLimit, domain: d, timeout: 1s, \
         failure_mode_deny: true, rate_limit_service: {service}}}}}, "
    );
    let dump = |state: &str| {
        format!(
            "\
configs:
- dynamic_listeners:
  - name: x
    active_state: {{listener: {}}}
    {state}: {{listener: {}}}
- dynamic_route_configs:
  - route_config:
      name: r
      virtual_hosts:
      - domains: ['*']
        routes:
        - match: {{prefix: /}}
          route: {{cluster: a, rate_limits: [{{actions: [{NAMED}]}}]}}
",
            manager(&filter),
            manager("")
        )
    };
    for state in ["draining_state", "drainingState"] {
        assert_eq!(severities(&dump(state), Trap::NoFilter), []);
    }
    let warming = severities(&dump("warming_state"), Trap::NoFilter);
    assert_eq!(warming, [TrapSeverity::Error]);
}
