//! Findings that need no rules: filters, the services that they call, routes and patches.

use std::collections::BTreeSet;

use tonic::codegen::http::uri::Authority;

use super::{
    document::{EnvoyValue, quoted},
    finding::{Findings, Trap},
    groups::TableUse,
    item::Holder,
    model::{EnvoyModel, HttpFilter, LOOSE, PerRoute, RouteLevel, Scope},
};
use crate::{
    config::fault::FaultLevel::{Error, Note, Warning},
    foundation::printable::CountOf,
};

/// Checks everything that needs no rules.
pub(super) fn check<'d>(
    model: &EnvoyModel<'d>,
    uses: &[TableUse<'_, 'd>],
    found: &mut Findings<'d>,
) {
    for table in uses {
        items(table, found);
        filter_names(table, found);
        catch_all(table, found);
        for host in &table.table.below {
            hidden_by_others(table, host, found);
            answered_by_envoy(host, found);
        }
    }
    filters(model, uses, found);
    let http = model.scopes.iter().flat_map(|scope| &scope.filters);
    let tcp = model.tcp_filters.iter().map(|(filter, _)| *filter);
    for filter in http.map(|filter| filter.value).chain(tcp) {
        if let Some(service) = filter.at(&["rate_limit_service", "grpc_service", "envoy_grpc"]) {
            called_service(service, model, found);
        }
    }
    for value in &model.patches {
        patch(*value, found);
    }
}

/// Checks each item of a route or a virtual host.
fn items<'d>(table: &TableUse<'_, 'd>, found: &mut Findings<'d>) {
    for (item, _) in table.lists().iter().flat_map(|list| &list.items) {
        if item.holder != Holder::Route {
            continue;
        }
        if let Some(addend) = item.value.get("hits_addend") {
            let calls = ["every request", "the call at the end"][usize::from(item.is_at_end)];
            let text = format!(
                "Envoy does not send `hits_addend` from here: {calls} counts as one hit; move this item to a \
                 RateLimitPerRoute in `typed_per_filter_config`, or to the filter's own `rate_limits`"
            );
            found.add(Error, Trap::HitsAddend, addend, text);
        }
        let filters = table.filters.iter();
        let mut of_stage = filters
            .filter(|filter| filter.stage == item.stage)
            .peekable();
        if of_stage.peek().is_none() {
            if !table.filters.is_empty() && !table.has_unknown_filter {
                let stage = item.stage;
                let text = format!(
                    "no rate limit filter has the stage {stage}: this item is never used; give the filter and its \
                     items the same `stage`"
                );
                found.add(Error, Trap::Stage, item.value, text);
            }
        } else if of_stage.all(|filter| !filter.items.is_empty()) {
            let text = "the filter's own `rate_limits` win: this item is not applied; move it there, or remove those";
            found.add(Warning, Trap::HiddenLimits, item.value, text);
        }
    }
}

/// Reports per-route settings under a name that no rate limit filter has.
fn filter_names<'d>(table: &TableUse<'_, 'd>, found: &mut Findings<'d>) {
    let names: BTreeSet<&str> = table.filters.iter().map(|filter| filter.name).collect();
    // Without any filter, another finding says so.
    if table.has_unknown_filter || names.is_empty() || names.contains("") {
        return;
    }
    let listed: Vec<_> = names.iter().take(5).map(|name| quoted(name)).collect();
    let configs = table.table.all_configs().into_iter();
    for config in configs.filter(|config| config.limits.is_some()) {
        if let Some(key) = config.key.filter(|key| !names.contains(key)) {
            let text = format!(
                "no rate limit filter has the name {}: these settings are not read; the key is the name in the list \
                 of filters: write {}",
                quoted(key),
                listed.join(" or ")
            );
            found.add(Error, Trap::RouteFilterName, config.value, text);
        }
    }
}

/// Reports a virtual host for all other requests that has no items, although another one has.
fn catch_all<'d>(table: &TableUse<'_, 'd>, found: &mut Findings<'d>) {
    let has_own = table.filters.iter().any(|filter| !filter.items.is_empty());
    let hosts = &table.table.below;
    let limited = hosts.iter().find(|host| host.has_items());
    let is_checked = !table.filters.is_empty() && !has_own && !has_items(&table.table.configs);
    let Some(limited) = limited.filter(|_| is_checked) else {
        return;
    };
    for host in hosts {
        let value = host.value;
        let mut domains = value.list("domains").into_iter();
        let takes_all = domains.any(|domain| domain.text() == Some("*"));
        // Istio has these for hosts outside of the mesh.
        let is_istio = matches!(value.text_of("name"), "allow_any" | "block_all");
        let is_routed = host.below.iter().any(|route| route.value.has("route"));
        if takes_all && is_routed && !is_istio && !host.has_items() {
            let text = format!(
                "requests that the virtual host {} does not take come here, where nothing is limited; add \
                 `rate_limits`, compare the `domains` of both, and see by `--request` where a request goes",
                quoted(limited.value.text_of("name"))
            );
            found.add(Warning, Trap::CatchAll, value, text);
        }
    }
}

fn has_items(configs: &[PerRoute<'_>]) -> bool {
    configs.iter().any(|config| !config.items.is_empty())
}

/// Reports items of a virtual host and its routes that are not applied, because others win.
fn hidden_by_others<'d>(table: &TableUse<'_, 'd>, host: &RouteLevel<'d>, found: &mut Findings<'d>) {
    let is_hidden = has_items(&host.configs) || has_items(&table.table.configs);
    for route in &host.below {
        let own = route.value.at(&["route", "rate_limits"]);
        let Some(own) = own.filter(|_| route.items.iter().any(|item| table.is_asked(item))) else {
            continue;
        };
        let text = if is_hidden || has_items(&route.configs) {
            "a RateLimitPerRoute has `rate_limits`, which win: these are not applied; move them there, or remove them"
        } else if !host.items.is_empty() && !route.includes_host() {
            "these replace the `rate_limits` of the virtual host, which are not applied to this route; write \
             `include_vh_rate_limits: true` if both are meant"
        } else {
            continue;
        };
        found.add(Warning, Trap::HiddenLimits, own, text);
    }
}

/// Reports limits on routes that Envoy answers itself.
fn answered_by_envoy<'d>(host: &RouteLevel<'d>, found: &mut Findings<'d>) {
    let are_all = host.below.iter().all(|route| !route.value.has("route"));
    for route in &host.below {
        let mut answers = ["direct_response", "redirect"].iter();
        let answer = answers.find_map(|key| route.value.get(key));
        let is_limited = has_items(&route.configs) || are_all && !host.items.is_empty();
        if let Some(answer) = answer.filter(|_| is_limited) {
            let text = "a direct response or a redirect is never limited: the filter does nothing on such a route; \
                 route it to a cluster, or remove the limit";
            found.add(Warning, Trap::DirectResponse, answer, text);
        }
    }
}

/// Checks a route, or the value of a patch of one, for limits in places where Envoy does not look for them.
fn misplaced_in_route<'d>(route: EnvoyValue<'d>, found: &mut Findings<'d>) {
    misplaced(
        route,
        "below its `route`: `route: { rate_limits: … }`",
        found,
    );
    if let Some(configs) = route.at(&["route", "typed_per_filter_config"]) {
        let text = "`route` has no `typed_per_filter_config`: it is not read; move it up, next to `match` and `route`";
        found.add(Error, Trap::MisplacedLimits, configs, text);
    }
}

/// Reports the `rate_limits` of a value that cannot have them. Istio drops them silently.
fn misplaced<'d>(value: EnvoyValue<'d>, to: &str, found: &mut Findings<'d>) {
    if let Some(limits) = value.get("rate_limits") {
        let text = format!("there is no field `rate_limits` here: it is not read; move it {to}");
        found.add(Error, Trap::MisplacedLimits, limits, text);
    }
}

/// Reports connection managers without a filter for their items, and filters without any item.
fn filters<'d>(model: &EnvoyModel<'d>, uses: &[TableUse<'_, 'd>], found: &mut Findings<'d>) {
    let items = |table: &TableUse<'_, 'd>| table.lists().iter().map(|list| list.items.len()).sum();
    let of_tables: Vec<usize> = uses.iter().map(items).collect();
    let items_of = |scope: &Scope<'_>| scope.tables.iter().map(|table| of_tables[*table]).sum();
    let service_of = |filter: &HttpFilter<'d>| {
        let keys = [
            "rate_limit_service",
            "grpc_service",
            "envoy_grpc",
            "cluster_name",
        ];
        (filter.domain, filter.value.text_at(&keys))
    };
    let asked = model
        .scopes
        .iter()
        .filter(|scope| items_of(scope) > 0_usize);
    let asked = asked.flat_map(|scope| &scope.filters).map(service_of);
    let asked: BTreeSet<_> = asked.collect();
    for (index, scope) in model.scopes.iter().enumerate() {
        let items: usize = items_of(scope);
        if let Some(manager) = scope.manager.filter(|_| items > 0 && scope.lacks_filter()) {
            let text = format!(
                "no rate limit filter in this connection manager: its {} of `rate_limits` limit nothing; add \
                 envoy.filters.http.ratelimit before the router",
                CountOf(items, "item")
            );
            let at = manager.get("http_filters").unwrap_or(manager);
            found.add(Error, Trap::NoFilter, at, text);
        }
        // Nothing is known of routes that the file does not show.
        if scope.tables.is_empty() || index == LOOSE || items > 0 {
            continue;
        }
        let silent = scope.filters.iter();
        for filter in silent.filter(|filter| filter.items.is_empty()) {
            // Control planes put a filter into all filter chains, including those that have nothing to limit.
            let is_meant = model.is_dump && asked.contains(&service_of(filter));
            let text = "no route and no virtual host has `rate_limits`: this filter never calls the service; add some";
            let level = if is_meant { Note } else { Error };
            found.add(level, Trap::Stage, filter.value, text);
        }
    }
}

/// Checks the `:authority` that Envoy sends, which is the name of the cluster unless another is set, and the protocol
/// of the cluster.
fn called_service<'d>(service: EnvoyValue<'d>, model: &EnvoyModel<'d>, found: &mut Findings<'d>) {
    const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let name = service.text_of("cluster_name");
    let authority = service.text_of("authority");
    let sent = if authority.is_empty() {
        name
    } else {
        authority
    };
    if !sent.is_empty() && Authority::try_from(sent).is_err() {
        // Istio makes such names, and its sidecars check authorities.
        let (level, consequence) = match sent.contains('|') {
            true => (
                Error,
                ", but a sidecar before tollgate resets the call first",
            ),
            false => (Warning, ""),
        };
        let text = format!(
            "Envoy sends {} as `:authority`, which is invalid: HTTP/2 servers reset every call, and then nothing is \
             limited; tollgate replaces it{consequence}; write `authority: HOST`, such as the host name of the service",
            quoted(sent)
        );
        found.add(level, Trap::Authority, service, text);
    }
    let Some(&cluster) = model.clusters.get(name) else {
        return;
    };
    let options = cluster.at(&["typed_extension_protocol_options", OPTIONS]);
    let speaks_http2 = cluster.has("http2_protocol_options")
        || options.is_some_and(|options| {
            let explicit = options.at(&["explicit_http_config", "http2_protocol_options"]);
            let others = ["auto_config", "use_downstream_protocol_config"];
            explicit.is_some() || others.iter().any(|key| options.has(key))
        });
    if !speaks_http2 {
        let text = format!(
            "the cluster speaks HTTP/1.1, but gRPC needs HTTP/2: every call fails; add \
             `typed_extension_protocol_options` with {OPTIONS} and `explicit_http_config: {{ http2_protocol_options: \
             {{}} }}`"
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
    let operation = patch.text_at(&["patch", "operation"]);
    let is_added = apply_to == "VIRTUAL_HOST" && operation == "ADD";
    let host = patch.at(&["match", "route_configuration", "vhost", "name"]);
    if let Some(name) = host.filter(|_| !is_added && limits(value)) {
        let context = patch.text_at(&["match", "context"]);
        host_name(
            name,
            if context.is_empty() { "ANY" } else { context },
            found,
        );
    }
    match apply_to {
        "HTTP_ROUTE" => misplaced_in_route(value, found),
        "VIRTUAL_HOST" => {
            let route = value.get("route").into_iter();
            route.for_each(|route| misplaced(route, "up to the virtual host", found));
        }
        "HTTP_FILTER" => misplaced(value, "into the filter's `typed_config`", found),
        _ => misplaced(value, "to a patch with `applyTo: VIRTUAL_HOST`", found),
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
    let is_in = |contexts: &[&str]| context == "ANY" || contexts.contains(&context);
    if matches!(name, "allow_any" | "block_all") {
        return is_in(&["SIDECAR_OUTBOUND"]);
    }
    if let Some((_, port)) = name
        .strip_prefix("inbound|")
        .and_then(|rest| rest.rsplit_once('|'))
    {
        return is_port(port) && is_in(&["SIDECAR_INBOUND"]);
    }
    name.rsplit_once(':').is_some_and(|(host, port)| {
        let is_host = !host.is_empty() && (!host.contains(':') || host.starts_with('['));
        is_host && is_port(port) && is_in(&["GATEWAY", "SIDECAR_OUTBOUND"])
    })
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
    let text = format!(
        "Istio names no virtual host {} in the context {}, and compares names as texts: this patch changes nothing; \
         write {form}; without `name` every host is patched",
        quoted(text),
        quoted(context)
    );
    found.add(Warning, Trap::NoMatch, name, text);
}
