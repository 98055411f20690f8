//! Istio's EnvoyFilters: what they match, and where they put limits.

use super::{Finding, NAMED, Trap, TrapSeverity, at, filter, findings};

/// An EnvoyFilter with one patch of this match and value.
fn patch(apply_to: &str, of: &str, value: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nspec:\n  configPatches:\n  - applyTo: \
         {apply_to}\n    match: {{{of}}}\n    patch: {{operation: MERGE, value: {value}}}\n"
    )
}

fn limits() -> String {
    format!("rate_limits: [{{actions: [{NAMED}]}}]")
}

/// The findings about a virtual host of this name.
fn host(context: &str, name: &str) -> Vec<Finding> {
    let context = match context {
        "" => String::new(),
        context => format!("context: {context}, "),
    };
    let of = format!("{context}routeConfiguration: {{vhost: {{name: '{name}'}}}}");
    findings(&patch("VIRTUAL_HOST", &of, &format!("{{{}}}", limits())))
}

#[test]
fn a_virtual_host_is_named_as_istio_names_it() {
    for (context, name) in [
        ("GATEWAY", "shop.example.com:80"),
        ("GATEWAY", "*:80"),
        ("GATEWAY", "*.example.com:443"),
        ("GATEWAY", "[2001:db8::1]:80"),
        ("SIDECAR_INBOUND", "inbound|http|8080"),
        ("SIDECAR_INBOUND", "inbound|http|0"),
        ("SIDECAR_OUTBOUND", "reviews.default.svc.cluster.local:9080"),
        ("SIDECAR_OUTBOUND", "allow_any"),
        ("SIDECAR_OUTBOUND", "block_all"),
        ("ANY", "inbound|http|8080"),
        ("", "allow_any"),
        ("", "*:80"),
        ("GATEWAY", "{{ .Values.host }}"),
        ("GATEWAY", "${HOST}"),
        ("GATEWAY", ""),
        ("WAYPOINT", "shop"),
    ] {
        assert_eq!(host(context, name), [], "{context} {name}");
    }
    for (context, name, fix) in [
        (
            "GATEWAY",
            "*",
            "write `HOST:PORT`, such as `shop.example.com:80`, or `*:80`",
        ),
        (
            "GATEWAY",
            "shop.example.com",
            "write `HOST:PORT`, such as `shop.example.com:80`",
        ),
        ("GATEWAY", "shop.example.com:*", "write `HOST:PORT`"),
        ("GATEWAY", "shop.example.com:http", "write `HOST:PORT`"),
        ("GATEWAY", "2001:db8::1:80", "write `HOST:PORT`"),
        ("GATEWAY", "inbound|http|8080", "write `HOST:PORT`"),
        ("GATEWAY", "allow_any", "write `HOST:PORT`"),
        ("GATEWAY", "http.80", "write `HOST:PORT`"),
        ("SIDECAR_INBOUND", "*", "write `inbound|http|PORT`"),
        (
            "SIDECAR_INBOUND",
            "reviews:9080",
            "write `inbound|http|PORT`",
        ),
        (
            "SIDECAR_INBOUND",
            "inbound|http",
            "write `inbound|http|PORT`",
        ),
        (
            "SIDECAR_OUTBOUND",
            "reviews",
            "write `HOST:PORT`, such as `reviews:80`",
        ),
        ("SIDECAR_OUTBOUND", "inbound|http|8080", "write `HOST:PORT`"),
        ("ANY", "shop", "write `HOST:PORT`"),
        ("", "*", "write `HOST:PORT`"),
    ] {
        let found = host(context, name);
        assert_eq!(found.len(), 1, "{context} {name}: {found:?}");
        assert_eq!(
            (found[0].severity, found[0].trap),
            (TrapSeverity::Warning, Trap::NoMatch)
        );
        assert!(
            found[0].fix.starts_with(fix),
            "{context} {name}: {}",
            found[0].fix
        );
        assert!(
            found[0].text.contains(&format!("no virtual host `{name}`")),
            "{}",
            found[0].text
        );
    }
    // A patch without limits is not checked.
    let of = "context: GATEWAY, routeConfiguration: {vhost: {name: '*'}}";
    let text = format!(
        "{}---\n{}",
        patch("VIRTUAL_HOST", of, "{hedge_policy: {}}"),
        filter("  timeout: 1s\n")
    );
    assert_eq!(findings(&text), []);
}

#[test]
fn a_gateway_has_a_namespace() {
    let text = |name: &str| {
        let of = format!("context: GATEWAY, routeConfiguration: {{gateway: '{name}'}}");
        patch("VIRTUAL_HOST", &of, &format!("{{{}}}", limits()))
    };
    assert_eq!(findings(&text("shop/gateway")), []);
    let found = findings(&text("gateway"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0].fix,
        "write `NAMESPACE/NAME`, such as `istio-system/gateway`"
    );
}

#[test]
fn a_star_matches_only_itself() {
    let found = |of: &str| {
        let text = patch("HTTP_ROUTE", of, &format!("{{route: {{{}}}}}", limits()));
        let found = findings(&text);
        found
            .iter()
            .map(|finding| finding.trap.to_string())
            .collect::<Vec<_>>()
    };
    for of in [
        "routeConfiguration: {name: '*'}",
        "routeConfiguration: {vhost: {route: {name: '*'}}}",
        "routeConfiguration: {vhost: {name: '*'}}",
    ] {
        assert_eq!(found(of), ["no-match"], "{of}");
    }
    for of in [
        "routeConfiguration: {name: http.80}",
        "routeConfiguration: {vhost: {route: {name: default}}}",
        "routeConfiguration: {vhost: {route: {action: ANY}}}",
    ] {
        assert_eq!(found(of), [""; 0], "{of}");
    }
    // The name of a host that a patch adds is not compared.
    let of = "routeConfiguration: {vhost: {name: shop}}";
    let added = patch("VIRTUAL_HOST", of, &format!("{{{}}}", limits()));
    assert_eq!(findings(&added.replace("MERGE", "ADD")), []);
}

#[test]
fn limits_stand_where_envoy_looks_for_them() {
    let limits = limits();
    let own = format!(
        "{{name: l, typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, \
         domain: d, timeout: 1s, failure_mode_deny: true, enable_x_ratelimit_headers: DRAFT_VERSION_03, {limits}}}}}"
    );
    for (apply_to, value) in [
        ("HTTP_ROUTE", format!("{{route: {{{limits}}}}}")),
        ("VIRTUAL_HOST", format!("{{{limits}}}")),
        (
            "VIRTUAL_HOST",
            format!("{{routes: [{{match: {{prefix: /}}, route: {{{limits}}}}}]}}"),
        ),
        (
            "ROUTE_CONFIGURATION",
            format!("{{virtual_hosts: [{{domains: [a], {limits}}}]}}"),
        ),
        ("HTTP_FILTER", own),
    ] {
        let text = patch(apply_to, "context: GATEWAY", &value);
        assert_eq!(findings(&text), [], "{text}");
    }
    let config = format!(
        "typed_per_filter_config: {{envoy.filters.http.ratelimit: {{'@type': \
         type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, {limits}}}}}"
    );
    for (apply_to, value, fix) in [
        (
            "HTTP_ROUTE",
            format!("{{{limits}}}"),
            "move them below its `route`",
        ),
        (
            "HTTP_ROUTE",
            format!("{{route: {{{config}}}}}"),
            "move it up, next to `match`",
        ),
        (
            "VIRTUAL_HOST",
            format!("{{route: {{{limits}}}}}"),
            "move them up to the virtual host",
        ),
        (
            "ROUTE_CONFIGURATION",
            format!("{{{limits}}}"),
            "move them to its `virtual_hosts`",
        ),
        (
            "HTTP_FILTER",
            format!("{{name: l, {limits}}}"),
            "move them into its `typed_config`",
        ),
        (
            "LISTENER",
            format!("{{{limits}}}"),
            "write `applyTo: VIRTUAL_HOST`",
        ),
    ] {
        let text = patch(apply_to, "context: GATEWAY", &value);
        let found = findings(&text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].severity, found[0].trap),
            (TrapSeverity::Error, Trap::MisplacedLimits)
        );
        assert!(found[0].fix.starts_with(fix), "{}", found[0].fix);
        assert!(
            at(found[0].position).starts_with("7:"),
            "{:?}",
            found[0].position
        );
    }
    // A route of Envoy itself cannot have them either, and is reported once.
    let route = format!(
        "virtual_hosts:\n- domains: [a]\n  routes: [{{match: {{prefix: /}}, route: {{cluster: a}}, {limits}}}]\n"
    );
    assert_eq!(findings(&route).len(), 1);
    let whole = format!("{{match: {{prefix: /}}, route: {{cluster: a}}, {limits}}}");
    assert_eq!(
        findings(&patch("HTTP_ROUTE", "context: GATEWAY", &whole)).len(),
        1
    );
}

#[test]
fn names_of_the_old_api_are_told_with_those_of_today() {
    let filter = filter("  timeout: 1s\n");
    let filter = filter.strip_prefix("value:").unwrap();
    let text = |name: &str, sub: &str| {
        format!(
            "configPatches:\n- applyTo: HTTP_FILTER\n  match:\n    context: GATEWAY\n    listener:\n      filterChain: \
             {{filter: {{name: {name}, subFilter: {{name: {sub}}}}}}}\n  patch:\n    operation: INSERT_BEFORE\n    \
             value:\n      name: envoy.filters.http.ratelimit\n      typed_config:{}",
            filter.replace('\n', "\n      ")
        )
    };
    let new = [
        "envoy.filters.network.http_connection_manager",
        "envoy.filters.http.router",
    ];
    assert_eq!(findings(&text(new[0], new[1])), []);
    let found = findings(&text("envoy.http_connection_manager", "envoy.router"));
    let fixes: Vec<_> = found.iter().map(|finding| finding.fix.clone()).collect();
    assert_eq!(fixes, new.map(|name| format!("write `{name}`")));
    assert!(
        found
            .iter()
            .all(|finding| finding.severity == TrapSeverity::Advice)
    );
    let found = findings(&text(new[0], "envoy.filters.http.routr"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].severity, TrapSeverity::Warning);
    assert_eq!(found[0].fix, format!("did you mean `{}`?", new[1]));
    assert_eq!(findings(&text(new[0], "envoy.filters.http.cors")), []);
}

#[test]
fn a_filter_of_the_old_api_is_an_error_with_the_form_of_today() {
    const NEW: &str = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit";
    let old = "{name: envoy.rate_limit, config: {domain: d, rate_limit_service: {}}}";
    let untyped = old.replace("envoy.rate_limit", "envoy.filters.http.ratelimit");
    for value in [old, &untyped] {
        let text = patch("HTTP_FILTER", "context: GATEWAY", value);
        let text = format!("{text}---\n{}", filter("  timeout: 1s\n"));
        let found = findings(&text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].severity, found[0].trap),
            (TrapSeverity::Error, Trap::NoFilter)
        );
        let fix = format!(
            "write `name: envoy.filters.http.ratelimit`, and `typed_config` with `\"@type\": {NEW}`"
        );
        assert_eq!(found[0].fix, fix);
    }
    for (old, new) in [
        ("envoy.config.filter.http.rate_limit.v2.RateLimit", NEW),
        (
            "envoy.config.filter.network.rate_limit.v2.RateLimit",
            "type.googleapis.com/envoy.extensions.filters.network.ratelimit.v3.RateLimit",
        ),
        (
            "envoy.config.filter.network.http_connection_manager.v2.HttpConnectionManager",
            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        ),
    ] {
        let value = format!(
            "{{name: x, typed_config: {{'@type': type.googleapis.com/{old}, {}}}}}",
            limits()
        );
        let found = findings(&patch("NETWORK_FILTER", "context: GATEWAY", &value));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].fix, format!("did you mean `\"@type\": {new}`?"));
    }
    // An old name alone is harmless: Envoy finds the filter by its type.
    let value = filter("  timeout: 1s\n").replace("\n  ", "\n    ");
    let entry = value.replace("value:\n", "- name: envoy.rate_limit\n  typed_config:\n");
    let text = format!("http_filters:\n{entry}");
    assert_eq!(findings(&text), []);
}

#[test]
fn an_authority_that_istio_makes_is_an_error() {
    let service = |cluster: &str| {
        filter(&format!(
            "  timeout: 1s\n  rate_limit_service: {{grpc_service: {{envoy_grpc: {{cluster_name: '{cluster}'}}}}}}\n"
        ))
    };
    let severity = |text: &str| {
        let found = findings(text);
        let [
            Finding {
                severity,
                text,
                trap: Trap::Authority,
                ..
            },
        ] = found.as_slice()
        else {
            panic!("{found:?}");
        };
        (
            *severity,
            text.ends_with("but a sidecar before tollgate resets the call first"),
        )
    };
    for name in ["outbound|8081||tollgate.tollgate.svc.cluster.local", "a|b"] {
        assert_eq!(severity(&service(name)), (TrapSeverity::Error, true));
    }
    assert_eq!(
        severity(&service("rate limit")),
        (TrapSeverity::Warning, false)
    );
}
