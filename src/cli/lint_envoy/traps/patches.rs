//! Traps in Istio's EnvoyFilters.

use super::super::{
    document::DocumentValue,
    finding::{Findings, Trap},
};
use super::{
    filter::behind_router,
    no_filter::{OLD_NAMES, is_one_slip, is_router_name, untyped},
    routes::{misplaced, route},
};

/// Checks an item of `configPatches` of an EnvoyFilter.
pub(crate) fn patch(patch: &DocumentValue<'_>, found: &mut Findings) {
    let Some(value) = patch.at(&["patch", "value"]) else {
        return;
    };
    if let Some(of) = patch.get("match")
        && limits(&value)
    {
        matches_nothing(patch, &of, found);
    }
    match patch.text_of("apply_to") {
        Some("HTTP_ROUTE") => route(&value, found),
        Some("VIRTUAL_HOST") => {
            if let Some(route) = value.get("route") {
                misplaced(
                    &route,
                    "a virtual host has no `route`, and so no `rate_limits` in it",
                    "move them up to the virtual host, or write `applyTo: HTTP_ROUTE`",
                    found,
                );
            }
        }
        Some("ROUTE_CONFIGURATION") => misplaced(
            &value,
            "a route configuration has no `rate_limits`",
            "move them to its `virtual_hosts`, or write `applyTo: VIRTUAL_HOST`",
            found,
        ),
        Some("HTTP_FILTER") => {
            untyped(&value, found);
            if limits(&value) {
                placed_last(patch, found);
            }
            misplaced(
                &value,
                "a filter has no `rate_limits` next to its name",
                "move them into its `typed_config`",
                found,
            );
        }
        Some("NETWORK_FILTER" | "FILTER_CHAIN" | "LISTENER" | "CLUSTER") => misplaced(
            &value,
            "such an object has no `rate_limits`",
            "write `applyTo: VIRTUAL_HOST`, or `HTTP_ROUTE` with `route: { rate_limits: … }`",
            found,
        ),
        _ => {}
    }
}

/// Reports a patch that puts its filter at the end of the filters, where the router has to be.
fn placed_last(patch: &DocumentValue<'_>, found: &mut Findings) {
    let operation = patch.at(&["patch", "operation"]);
    let filter = [
        "match",
        "listener",
        "filter_chain",
        "filter",
        "sub_filter",
        "name",
    ];
    let filter = patch.at(&filter);
    let is_last = match operation.as_ref().and_then(DocumentValue::text) {
        Some("ADD") => true,
        Some("INSERT_AFTER") => filter
            .and_then(|name| name.text())
            .is_none_or(is_router_name),
        _ => false,
    };
    if let (true, Some(operation)) = (is_last, operation) {
        behind_router(&operation, found);
    }
}

/// Reports a patch of limits whose `match` cannot match anything.
fn matches_nothing(patch: &DocumentValue<'_>, of: &DocumentValue<'_>, found: &mut Findings) {
    if let Some(routes) = of.get("route_configuration") {
        let context = of.text_of("context").unwrap_or("ANY");
        let operation = patch.at(&["patch", "operation"]);
        // A virtual host that the patch adds is not matched.
        let is_added = patch.text_of("apply_to") == Some("VIRTUAL_HOST")
            && operation.is_some_and(|operation| operation.text() == Some("ADD"));
        if let Some(name) = routes.at(&["vhost", "name"]).filter(|_| !is_added) {
            virtual_host(&name, context, found);
        }
        gateway(&routes, found);
    }
    stars(of, found);
    filters(of, found);
}

/// Whether a value contains a rate limit filter or `rate_limits`.
fn limits(value: &DocumentValue<'_>) -> bool {
    let name = value.message().map_or("", |(name, _)| name);
    name.contains(".ratelimit.v3.")
        || value.get("rate_limits").is_some()
        || value.children().iter().any(limits)
}

/// How Istio names virtual hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostNames {
    /// `shop.example.com:80`
    HostAndPort,
    /// `inbound|http|8080`
    Inbound,
    /// `allow_any` and `block_all`, for hosts outside the mesh.
    Outside,
}

impl HostNames {
    /// The form of a name; `None` if Istio has no virtual host of such a name.
    fn of(name: &str) -> Option<Self> {
        let is_port =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if matches!(name, "allow_any" | "block_all") {
            return Some(Self::Outside);
        }
        if let Some(rest) = name.strip_prefix("inbound|") {
            return rest
                .rsplit_once('|')
                .is_some_and(|(_, port)| is_port(port))
                .then_some(Self::Inbound);
        }
        let (host, port) = name.rsplit_once(':')?;
        let is_host = !host.contains(':') || host.starts_with('[');
        (is_host && !host.is_empty() && is_port(port)).then_some(Self::HostAndPort)
    }

    /// The forms that a context has.
    fn in_context(context: &str) -> &'static [Self] {
        match context {
            "GATEWAY" => &[Self::HostAndPort],
            "SIDECAR_INBOUND" => &[Self::Inbound],
            "SIDECAR_OUTBOUND" => &[Self::HostAndPort, Self::Outside],
            _ => &[Self::HostAndPort, Self::Inbound, Self::Outside],
        }
    }
}

/// Checks the name of the virtual host that a patch is for.
fn virtual_host(name: &DocumentValue<'_>, context: &str, found: &mut Findings) {
    let text = name.text().unwrap_or_default();
    // Templates have not been filled in.
    if text.is_empty() || text.contains("{{") || text.contains("${") || context == "WAYPOINT" {
        return;
    }
    let forms = HostNames::in_context(context);
    if HostNames::of(text).is_some_and(|form| forms.contains(&form)) {
        return;
    }
    let fix = match context {
        "SIDECAR_INBOUND" => {
            "write `inbound|http|PORT` with the port of the workload's Service, such as `inbound|http|8080`"
                .to_owned()
        }
        _ => {
            let host = match HostNames::of(text) {
                None if !text.contains(['|', '*', ':']) => text,
                _ => "shop.example.com",
            };
            format!(
                "write `HOST:PORT`, such as `{host}:80`, or `*:80` for the host `*`; without `name` every host is \
                 patched"
            )
        }
    };
    found.warning(
        Trap::NoMatch,
        name,
        format!(
            "Istio names no virtual host `{text}` in the context {context}, and compares names as texts: this patch \
             changes nothing"
        ),
        fix,
    );
}

/// Checks the name of the gateway that a patch is for.
fn gateway(routes: &DocumentValue<'_>, found: &mut Findings) {
    let Some(gateway) = routes.get("gateway") else {
        return;
    };
    let name = gateway.text().unwrap_or_default();
    if !name.is_empty() && !name.contains('/') && !name.contains("{{") && !name.contains("${") {
        found.warning(
            Trap::NoMatch,
            &gateway,
            format!("`{name}` has no namespace, and names are compared as texts: this patch changes nothing"),
            format!("write `NAMESPACE/NAME`, such as `istio-system/{name}`"),
        );
    }
}

/// Reports a name `*`, which is probably meant to match all names.
fn stars(of: &DocumentValue<'_>, found: &mut Findings) {
    const NAMES: [&[&str]; 3] = [
        &["route_configuration", "name"],
        &["route_configuration", "vhost", "route", "name"],
        &["listener", "name"],
    ];
    for name in NAMES.iter().filter_map(|keys| of.at(keys)) {
        if name.text() == Some("*") {
            found.warning(
                Trap::NoMatch,
                &name,
                "names are compared as texts, and none is `*`: this patch changes nothing",
                "remove `name` to match all",
            );
        }
    }
}

/// Checks the names of the filters that a patch is placed next to.
fn filters(of: &DocumentValue<'_>, found: &mut Findings) {
    let filter = ["listener", "filter_chain", "filter"];
    let Some(filter) = of.at(&filter) else {
        return;
    };
    let names = [filter.get("name"), filter.at(&["sub_filter", "name"])];
    for name in names.into_iter().flatten() {
        filter_name(&name, found);
    }
}

fn filter_name(name: &DocumentValue<'_>, found: &mut Findings) {
    let Some(written) = name.text() else {
        return;
    };
    if let Some((_, new)) = OLD_NAMES.iter().find(|(old, _)| *old == written) {
        found.advice(
            Trap::NoMatch,
            name,
            format!("`{written}` is a name of Envoy's API v2, which Istio replaces"),
            format!("write `{new}`"),
        );
        return;
    }
    let mut known = OLD_NAMES.iter().map(|(_, new)| *new);
    if let Some(meant) = known.find(|known| is_one_slip(written, known)) {
        found.warning(
            Trap::NoMatch,
            name,
            format!("Istio has no filter named `{written}`: this patch changes nothing"),
            format!("did you mean `{meant}`?"),
        );
    }
}
