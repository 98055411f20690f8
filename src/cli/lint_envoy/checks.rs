//! Findings that need no rules: filters, the services that they call, routes and patches.

use std::{
    collections::{BTreeMap, BTreeSet},
    ptr,
};

use tonic::codegen::http::uri::Authority;

use super::{
    document::{EnvoyValue, quoted},
    finding::{Findings, Trap},
    groups::{GroupUse, ItemList},
    item::Holder,
    model::{EnvoyModel, RouteLevel},
};
use crate::{
    config::fault::FaultLevel::{Error, Note, Warning},
    foundation::printable::CountOf,
};

/// Checks everything that needs no rules.
pub(super) fn check<'d>(
    model: &EnvoyModel<'d>,
    uses: &[GroupUse<'_, 'd>],
    lists: &[ItemList<'_, 'd>],
    found: &mut Findings<'d>,
) {
    for list in lists {
        if let Some(group) = list.group {
            items(list, group, found);
        }
    }
    for group in uses {
        for table in &group.group.tables {
            filter_names(group, table, found);
            catch_all(group, table, found);
            let hosts = table.below.iter();
            hosts.for_each(|host| answered_by_envoy(host, found));
        }
    }
    filters(model, uses, lists, found);
    for filter in model.filters() {
        let service = ["rate_limit_service", "grpc_service", "envoy_grpc"];
        if let Some(service) = filter.value.at(&service) {
            called_service(service, model, found);
        }
    }
    model.patches.iter().for_each(|value| patch(*value, found));
}

/// Checks a list of items of a route or a virtual host.
fn items<'d>(list: &ItemList<'_, 'd>, group: &GroupUse<'_, 'd>, found: &mut Findings<'d>) {
    let of_routes = list.items.iter();
    for item in of_routes.filter(|item| item.holder == Holder::Route) {
        if let Some(addend) = item.value.get("hits_addend") {
            let text = "Envoy does not send `hits_addend` from here, so each call counts as one hit; move this item \
                        to a RateLimitPerRoute, or to the filter's own `rate_limits`";
            found.add(Error, Trap::HitsAddend, addend, text);
        }
        let readers = list.readers.values();
        let mut readers = readers.filter(|reader| reader.is_for(item)).peekable();
        let (stage, has_filter) = (item.stage, !group.filters.is_empty());
        if has_filter && !group.has_unknown_filter && !group.has_stage(stage) {
            let text = format!(
                "no rate limit filter has the stage {stage}: this item is never used; give both the same `stage`"
            );
            found.add(Error, Trap::Stage, item.value, text);
        } else if readers.peek().is_some() && readers.all(|reader| !reader.own_items().is_empty()) {
            let text = "`rate_limits` of a RateLimitPerRoute or of the filter win: this item is not applied; move it \
                        there, or remove it";
            found.add(Warning, Trap::HiddenLimits, item.value, text);
        } else if list.replaces_host {
            let text = "this replaces the `rate_limits` of the virtual host, which do not apply to this route; write \
                        `vh_rate_limits: INCLUDE` in a RateLimitPerRoute, or `IGNORE` if not all are meant";
            found.add(Warning, Trap::HiddenLimits, item.value, text);
        }
    }
}

/// Reports per-route settings under a name that no rate limit filter has.
fn filter_names<'d>(group: &GroupUse<'_, 'd>, table: &RouteLevel<'d>, found: &mut Findings<'d>) {
    let names = group.filters.iter().map(|filter| filter.name);
    let names: BTreeSet<&str> = names.collect();
    // Without any filter, another finding says so.
    if group.has_unknown_filter || names.is_empty() || names.contains("") {
        return;
    }
    let listed: Vec<_> = names.iter().take(5).map(|name| quoted(name)).collect();
    let configs = table.all_configs().into_iter();
    for config in configs.filter(|config| config.limits.is_some()) {
        if let Some(key) = config.key.filter(|key| !names.contains(key)) {
            let (key, names) = (quoted(key), listed.join(" or "));
            let text = format!(
                "no rate limit filter has the name {key}: these settings are not read; the key is the name in the \
                 list of filters: write {names}"
            );
            found.add(Error, Trap::RouteFilterName, config.value, text);
        }
    }
}

/// Reports a virtual host for all other requests that has no items, although another one has.
fn catch_all<'d>(group: &GroupUse<'_, 'd>, table: &RouteLevel<'d>, found: &mut Findings<'d>) {
    let mut hosts = table.below.iter().filter(|host| host.value.has("domains"));
    let Some(limited) = hosts.find(|host| host.has_items()) else {
        return;
    };
    let (limited, filters) = (quoted(limited.value.text_of("name")), group.readers(table));
    for host in &table.below {
        let mut domains = host.value.list("domains").into_iter();
        let takes_all = domains.any(|domain| domain.text() == Some("*"));
        // Istio has these for hosts outside of the mesh.
        let is_istio = matches!(host.value.text_of("name"), "allow_any" | "block_all");
        let is_routed = host.below.iter().any(|route| route.value.has("route"));
        if !takes_all || !is_routed || is_istio || host.has_items() {
            continue;
        }
        let readers = filters.iter().map(|reader| reader.at(host));
        let mut readers = readers.filter(|reader| !reader.is_disabled).peekable();
        if readers.peek().is_some() && readers.all(|reader| reader.own_items().is_empty()) {
            let text = format!(
                "requests that the virtual host {limited} does not take come here, where nothing is limited; add \
                 `rate_limits`, compare the `domains` of both, and see by `--request` where a request goes"
            );
            found.add(Warning, Trap::CatchAll, host.value, text);
        }
    }
}

/// Reports limits on routes that Envoy answers itself.
fn answered_by_envoy<'d>(host: &RouteLevel<'d>, found: &mut Findings<'d>) {
    let are_all = host.below.iter().all(|route| !route.value.has("route"));
    for route in &host.below {
        let mut answers = ["direct_response", "redirect"].iter();
        let answer = answers.find_map(|key| route.value.get(key));
        let has_own = route.configs.iter().any(|config| !config.items.is_empty());
        let is_limited = has_own || are_all && !host.items.is_empty();
        if let Some(answer) = answer.filter(|_| is_limited) {
            let text = "a direct response or a redirect is never limited: the filter does nothing on such a route; \
                 route it to a cluster, or remove the limit";
            found.add(Warning, Trap::DirectResponse, answer, text);
        }
    }
}

/// Reports connection managers without a filter for their items, and filters without any item.
fn filters<'d>(
    model: &EnvoyModel<'d>,
    uses: &[GroupUse<'_, 'd>],
    lists: &[ItemList<'_, 'd>],
    found: &mut Findings<'d>,
) {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for list in lists {
        let group = list.group.map(|group| ptr::from_ref(group).addr());
        *counts.entry(group).or_default() += list.items.len();
    }
    let items_of = |group: &GroupUse<'_, 'd>| {
        let count = counts.get(&Some(ptr::from_ref(group).addr()));
        count.copied().unwrap_or_default()
    };
    let asked = uses.iter().filter(|group| items_of(group) > 0);
    let asked = asked.flat_map(|group| &group.filters);
    let asked: BTreeSet<_> = asked.map(|filter| filter.domain).collect();
    for used in uses {
        let (items, group) = (items_of(used), used.group);
        // Nothing is known of routes that the file does not show.
        let is_known = !group.tables.iter().any(RouteLevel::has_unknown_routes);
        let is_silent = items == 0 && is_known && !group.tables.is_empty();
        let managers = group.managers.iter();
        // Parts outside of connection managers can be anywhere.
        for (manager, value) in managers.filter_map(|manager| Some((manager, manager.value?))) {
            if items > 0 && manager.lacks_filter() {
                let items = CountOf(items, "item");
                let text = format!(
                    "no rate limit filter in this connection manager: its {items} of `rate_limits` limit nothing; add \
                     envoy.filters.http.ratelimit before the router"
                );
                let at = value.get("http_filters").unwrap_or(value);
                found.add(Error, Trap::NoFilter, at, text);
            }
            let filters = manager.filters.iter().filter(|_| is_silent);
            for filter in filters.filter(|filter| filter.items.is_empty()) {
                // Control planes put a filter into all filter chains, including those that have nothing to limit.
                let is_meant = model.is_dump && asked.contains(filter.domain);
                let text = "no route and no virtual host has `rate_limits`: this filter never calls the service; add \
                            some";
                let level = if is_meant { Note } else { Error };
                found.add(level, Trap::Stage, filter.value, text);
            }
        }
    }
}

/// Checks the `:authority` that Envoy sends, which is the name of the cluster unless another is set, and the protocol
/// of the cluster.
fn called_service<'d>(service: EnvoyValue<'d>, model: &EnvoyModel<'d>, found: &mut Findings<'d>) {
    const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let name = service.text_of("cluster_name");
    let names = [service.text_of("authority"), name];
    let sent = names.into_iter().find(|name| !name.is_empty());
    if let Some(sent) = sent.filter(|sent| Authority::try_from(*sent).is_err()) {
        // Istio makes such names, and its sidecars check authorities.
        let level = if sent.contains('|') { Error } else { Warning };
        let text = format!(
            "Envoy sends {} as `:authority`, which is invalid: HTTP/2 servers reset every call; tollgate replaces it, \
             but a sidecar before it, as Istio's, resets the call first; write `authority: HOST`",
            quoted(sent)
        );
        found.add(level, Trap::Authority, service, text);
    }
    let Some(&cluster) = model.clusters.get(name) else {
        return;
    };
    let options = cluster.at(&["typed_extension_protocol_options", OPTIONS]);
    let speaks_http2 = options.is_some_and(|options| {
        let explicit = options.at(&["explicit_http_config", "http2_protocol_options"]);
        let is_auto = options.has("auto_config") || options.has("use_downstream_protocol_config");
        explicit.is_some() || is_auto
    });
    if !speaks_http2 && !cluster.has("http2_protocol_options") {
        let text = format!(
            "the cluster speaks HTTP/1.1, but gRPC needs HTTP/2: every call fails; add {OPTIONS} with \
             `explicit_http_config: {{ http2_protocol_options: {{}} }}` to `typed_extension_protocol_options`"
        );
        found.add(Error, Trap::Http2, cluster, text);
    }
}

/// Checks an item of `configPatches` of an EnvoyFilter.
fn patch<'d>(patch: EnvoyValue<'d>, found: &mut Findings<'d>) {
    let Some(value) = patch.at(&["patch", "value"]) else {
        return;
    };
    let apply_to = patch.text_of("apply_to");
    // A virtual host that the patch adds is not matched.
    let is_added = apply_to == "VIRTUAL_HOST" && patch.text_at(&["patch", "operation"]) == "ADD";
    let host = patch.at(&["match", "route_configuration", "vhost", "name"]);
    if let Some(name) = host.filter(|_| !is_added && limits(value)) {
        host_name(name, patch.text_at(&["match", "context"]), found);
    }
    // Istio silently drops fields that a message does not have.
    let (holder, to) = match apply_to {
        "HTTP_ROUTE" => (Some(value), "down into its `route`"),
        "VIRTUAL_HOST" => (value.get("route"), "up to the virtual host"),
        "HTTP_FILTER" => (Some(value), "into the filter's `typed_config`"),
        _ => (Some(value), "to a patch with `applyTo: VIRTUAL_HOST`"),
    };
    if let Some(limits) = holder.and_then(|holder| holder.get("rate_limits")) {
        let text = format!("there is no field `rate_limits` here: it is not read; move it {to}");
        found.add(Error, Trap::MisplacedLimits, limits, text);
    }
    let configs = value.at(&["route", "typed_per_filter_config"]);
    if let Some(configs) = configs.filter(|_| apply_to == "HTTP_ROUTE") {
        let text = "`route` has no `typed_per_filter_config`: it is not read; move it up, next to `match` and `route`";
        found.add(Error, Trap::MisplacedLimits, configs, text);
    }
}

/// Whether a value contains a rate limit filter or `rate_limits`.
fn limits(value: EnvoyValue<'_>) -> bool {
    let name = value.message().map_or("", |(name, _)| name);
    let is_limit = name.contains(".ratelimit.v3.") || value.has("rate_limits");
    is_limit || value.children().any(|(_, child)| limits(child))
}

/// Whether Istio names some virtual host of this context so.
fn is_host_name(name: &str, context: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = |host: &str| !host.is_empty() && (!host.contains(':') || host.starts_with('['));
    let inbound = name.strip_prefix("inbound|");
    let inbound = inbound.and_then(|rest| rest.rsplit_once('|'));
    let outbound = name.rsplit_once(':').filter(|(host, _)| is_host(host));
    let (port, contexts) = match (inbound, outbound) {
        _ if matches!(name, "allow_any" | "block_all") => ("0", "SIDECAR_OUTBOUND"),
        (Some((_, port)), _) => (port, "SIDECAR_INBOUND"),
        (None, Some((_, port))) => (port, "GATEWAY SIDECAR_OUTBOUND"),
        (None, None) => return false,
    };
    is_port(port) && (matches!(context, "" | "ANY") || contexts.split(' ').any(|of| of == context))
}

/// Checks the name of the virtual host that a patch is for.
fn host_name<'d>(name: EnvoyValue<'d>, context: &str, found: &mut Findings<'d>) {
    let text = name.text().unwrap_or_default();
    let is_template = text.is_empty() || text.contains("{{") || text.contains("${");
    if is_template || context == "WAYPOINT" || is_host_name(text, context) {
        return;
    }
    let form = match context {
        "SIDECAR_INBOUND" => "`inbound|http|PORT` with the port of the workload's Service",
        _ => "`HOST:PORT`, such as `shop.example.com:80`, or `*:80` for the host `*`",
    };
    let context = if context.is_empty() { "ANY" } else { context };
    let (text, context) = (quoted(text), quoted(context));
    let text = format!(
        "Istio names no virtual host {text} in the context {context}, and compares names as texts: this patch \
         changes nothing; write {form}; without `name` every host is patched"
    );
    found.add(Warning, Trap::NoMatch, name, text);
}
