//! Traps in routes, virtual hosts and items of `rate_limits`.

use crate::cli::lint_envoy::{
    actions::{self, Holder, OrderName, per_route_config},
    document::DocumentValue,
    finding::{Findings, Trap},
    scope::{FilterNames, FiltersKnown},
    surroundings::{ItemList, OptionalValue},
    traps::no_filter::{OLD_NAMES, USUAL_NAME, is_one_slip},
};

/// Checks a virtual host and its routes.
pub(crate) fn virtual_host(host: &DocumentValue<'_>, found: &mut Findings) {
    let has_limits = !host.list("rate_limits").is_empty();
    for route in host.list("routes") {
        let own = actions::per_route(&route);
        if has_limits || own.is_some() {
            never_limited(&route, found);
        }
        let Some(action) = route.get("route") else {
            continue;
        };
        let own_limits = own.as_ref().and_then(|own| own.get("rate_limits"));
        let limits = action.get("rate_limits");
        let hides = own_limits.as_ref().or(limits.as_ref());
        if let (true, Some(hides), false) = (has_limits, hides, actions::includes_host(&route)) {
            found.warning(
                Trap::HiddenLimits,
                hides,
                "these replace the `rate_limits` of the virtual host, which are not applied to this route",
                "write `include_vh_rate_limits: true` if both are meant",
            );
        }
        if let (Some(_), Some(limits)) = (&own_limits, &limits) {
            found.warning(
                Trap::HiddenLimits,
                limits,
                "the route has a RateLimitPerRoute whose `rate_limits` win: these are not applied",
                "move them there, or remove them",
            );
        }
    }
}

/// Reports limits on a route that Envoy answers itself.
fn never_limited(route: &DocumentValue<'_>, found: &mut Findings) {
    for (trap, key, answer) in [
        (Trap::DirectResponse, "direct_response", "direct response"),
        (Trap::Redirect, "redirect", "redirect"),
    ] {
        if let Some(own) = route.get(key) {
            found.warning(
                trap,
                &own,
                format!("a {answer} is never limited: the filter does nothing on such a route"),
                "route it to a cluster, or remove the limit",
            );
        }
    }
}

/// Checks a route, or the value of a patch of one, for limits in places where Envoy does not look for them.
pub(crate) fn route(route: &DocumentValue<'_>, found: &mut Findings) {
    misplaced(
        route,
        "a route has no `rate_limits`",
        "move them below its `route`: `route: { rate_limits: … }`",
        found,
    );
    if let Some(configs) = route.at(&["route", "typed_per_filter_config"]) {
        found.error(
            Trap::MisplacedLimits,
            &configs,
            "`route` has no `typed_per_filter_config`: it is not read",
            "move it up, next to `match` and `route`",
        );
    }
}

/// Reports the `rate_limits` of a value that cannot have them. Istio drops them silently.
pub(super) fn misplaced(value: &DocumentValue<'_>, text: &str, fix: &str, found: &mut Findings) {
    if let Some(limits) = value.get("rate_limits") {
        let text = format!("{text}: they are not read");
        found.error(Trap::MisplacedLimits, &limits, text, fix);
    }
}

/// Checks a `typed_per_filter_config` for limits under a name that no filter has.
pub(crate) fn configured(value: &DocumentValue<'_>, names: &FilterNames<'_>, found: &mut Findings) {
    for (name, config) in actions::filter_configs(value) {
        if per_route_config(&config).is_some() && !names.names.contains(name) {
            unread(name, &config, names, found);
        }
    }
}

/// Reports limits under a name that no known rate limit filter has.
fn unread(name: &str, config: &DocumentValue<'_>, names: &FilterNames<'_>, found: &mut Findings) {
    let of = match names.known {
        FiltersKnown::All => "",
        FiltersKnown::Some => " of this file",
        FiltersKnown::None if is_slip(name) => {
            return found.advice(
                Trap::RouteFilterName,
                config,
                format!("only a filter named `{name}` reads these settings"),
                format!("write the name in the list of filters, such as `{USUAL_NAME}`"),
            );
        }
        FiltersKnown::None => return,
    };
    let listed: Vec<_> = names.names.iter().map(|name| format!("`{name}`")).collect();
    // If there is no filter at all, another trap reports that.
    if !listed.is_empty() {
        found.error(
            Trap::RouteFilterName,
            config,
            format!("no rate limit filter{of} has the name `{name}`: these settings are not read"),
            format!(
                "write {} instead of `{name}`: the key is the name in the list of filters",
                listed.join(" or ")
            ),
        );
    }
}

/// Whether a name was probably meant to be the filter's usual name.
fn is_slip(name: &str) -> bool {
    let is_field = matches!(name, "typed_config" | "typedConfig");
    let is_old = OLD_NAMES.iter().any(|(old, _)| *old == name);
    let is_close = name.replace('_', "") == USUAL_NAME || is_one_slip(name, USUAL_NAME);
    name != USUAL_NAME && (is_field || is_old || is_close)
}

/// Checks a list `rate_limits` for limits that a client escapes by leaving something out.
pub(crate) fn items<'d>(list: &ItemList<'_, 'd>, found: &mut Findings) {
    if !list.has_fallback() {
        for item in list.items {
            absent_value(list, item, found);
        }
    }
}

fn absent_value<'d>(list: &ItemList<'_, 'd>, item: &DocumentValue<'d>, found: &mut Findings) {
    // An item that counts after the response refuses no request.
    if item.is_true("apply_on_stream_done") {
        return;
    }
    let mut optional = list.optional_values(item);
    let is_shortened = optional.iter().all(|value| value.is_skipped);
    if is_shortened && item.list("actions").len() > optional.len() {
        return;
    }
    if !is_shortened {
        optional.retain(|value| !value.is_skipped);
    }
    let Some(first) = optional.first() else {
        return;
    };
    let names: Vec<_> = optional.iter().map(OptionalValue::shown).collect();
    let (separator, consequence) = if is_shortened {
        (
            " and the ",
            "with `skip_if_absent` its descriptor is empty, and no rule matches that",
        )
    } else {
        (" or the ", "Envoy then sends no descriptor for this item")
    };
    let names = names.join(separator);
    found.warning(
        Trap::AbsentValue,
        &first.action,
        format!("a client that leaves out the {names} is not limited: {consequence}"),
        "add an item that every request matches, such as `actions: [{ remote_address: {} }]`, or \
         refuse such requests",
    );
}

/// Checks an item of `rate_limits`.
pub(crate) fn item(item: &DocumentValue<'_>, holder: Holder, found: &mut Findings) {
    if holder == Holder::Route
        && let Some(addend) = item.get("hits_addend")
    {
        let consequence = match item.is_true("apply_on_stream_done") {
            true => "the call at the end of the stream counts one hit",
            false => "every request counts as one hit",
        };
        found.error(
            Trap::HitsAddend,
            &addend,
            format!("Envoy does not send `hits_addend` from here: {consequence}"),
            "move this item to a RateLimitPerRoute in `typed_per_filter_config`, or to the \
             filter's own `rate_limits`",
        );
    }
    for locality in actions::early_localities(item) {
        found.error(
            Trap::NoHostYet,
            &locality,
            "CLUSTER_LOCALITY_ENTRY is empty until Envoy has chosen a host: the descriptor is left out",
            "add `apply_on_stream_done: true`, or use another source",
        );
    }
    if item.is_true("apply_on_stream_done") && OrderName::of(item).is_none() {
        found.advice(
            Trap::StreamDone,
            item,
            "hits that are counted after the response include those of refused requests",
            "allow for that in the limit",
        );
    }
    for action in item.list("actions") {
        if let Some(headers) = action.get("request_headers")
            && let Some(name @ (":path" | "x-envoy-original-path")) = headers.text_of("header_name")
        {
            found.warning(
                Trap::QueryString,
                &headers,
                format!(
                    "`{name}` includes the query string: a client that changes it in each request has a \
                     new counter each time, and a rule for the path alone does not match"
                ),
                "write a `generic_key` on each route, or an `extension` of type \
                 envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor with `text: request.url_path`",
            );
        }
    }
}

/// Reports a map at `key`, where a list is meant.
pub(crate) fn single_item(key: &str, value: &DocumentValue<'_>, found: &mut Findings) {
    found.advice(
        Trap::ListOfOne,
        value,
        format!(
            "`{key}` is a list: Envoy reads this map as its only item, and other readers, such as Istio, \
             refuse it"
        ),
        "write `- ` before the item, or put it in brackets",
    );
}
