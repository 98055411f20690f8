//! Traps that only show when several parts of a configuration are seen together, and those in descriptors, compared
//! with the rules that should match them.

use std::collections::BTreeSet;

use crate::{
    cli::lint_envoy::{
        actions::{self, Holder, KnownRules, RateLimitItem, per_route_config},
        document::DocumentValue,
        finding::{Findings, Trap, TrapSeverity},
        scope::{CalledService, Filter, Scope},
        traps::{no_filter::USUAL_NAME, orders::orders},
    },
    foundation::printable::CountOf,
};

/// Checks a connection manager as a whole, with the rules if they are known.
pub(crate) fn scope(scope: &Scope<'_>, rules: Option<&KnownRules<'_>>, found: &mut Findings) {
    no_filter(scope, found);
    for item in &scope.descriptors {
        if item.holder == Holder::Route && !scope.filters.is_empty() {
            unused_item(scope, item, found);
        }
    }
    filters_without_item(scope, found);
    forged_address(scope, found);
    disabled_filters(scope, found);
    disabled_for_routes(scope, found);
    orders(scope, rules, found);
    if let Some(rules) = rules {
        descriptors(scope, rules, found);
    }
}

/// Reports limits in a connection manager without a rate limit filter.
fn no_filter(scope: &Scope<'_>, found: &mut Findings) {
    let Some(manager) = &scope.manager else {
        return;
    };
    if !scope.filters.is_empty() || scope.has_unknown_filter || scope.has_unknown_entry() {
        return;
    }
    let items = scope.descriptors.iter();
    let items = items.filter(|item| item.holder != Holder::Filter).count();
    if items > 0 {
        let filters = manager.get("http_filters");
        found.error(
            Trap::NoFilter,
            filters.as_ref().unwrap_or(manager),
            format!(
                "no rate limit filter in this connection manager: its {} of `rate_limits` limit{} nothing",
                CountOf(items, "item"),
                if items == 1 { "s" } else { "" }
            ),
            "add envoy.filters.http.ratelimit before the router",
        );
    }
}

/// Reports an item of a route or a virtual host that no filter uses.
fn unused_item(scope: &Scope<'_>, item: &RateLimitItem<'_>, found: &mut Findings) {
    let stage = item.stage();
    let mut of_stage = scope.filters.iter().filter(|filter| filter.stage == stage);
    if of_stage.clone().next().is_none() {
        if !scope.has_unknown_entry() {
            found.error(
                Trap::Stage,
                &item.value,
                format!("no rate limit filter has the stage {stage}: this item is never used"),
                "give the filter and its items the same `stage`",
            );
        }
    } else if of_stage.all(|filter| filter.has_own) {
        found.warning(
            Trap::HiddenLimits,
            &item.value,
            "the filter's own `rate_limits` win: this item is not applied",
            "move it there, or remove those",
        );
    }
}

/// Reports filters for which there are no items.
fn filters_without_item(scope: &Scope<'_>, found: &mut Findings) {
    if !scope.has_routes && scope.descriptors.is_empty() {
        return;
    }
    let silent = scope.filters.iter();
    for filter in silent.filter(|filter| !scope.calls_service(filter)) {
        let Some((severity, hint)) = silence(scope, filter) else {
            continue;
        };
        found.add(
            severity,
            Trap::Stage,
            &filter.value,
            format!(
                "no route and no virtual host has `rate_limits` of stage {}: this filter \
                 never calls the service{hint}",
                filter.stage
            ),
            "add `rate_limits` of that stage to a route or a virtual host",
        );
    }
}

/// The services that the filters of a connection manager call.
pub(in super::super) fn called_services(scope: &Scope<'_>) -> BTreeSet<CalledService> {
    let filters = scope.filters.iter();
    let calling = filters.filter(|filter| scope.calls_service(filter));
    calling
        .map(|filter| CalledService::of(&filter.value))
        .collect()
}

/// How severe it is that a filter never calls the service; `None` if it does not matter. Control planes put a filter
/// into all filter chains at once, including those that have nothing to limit.
fn silence(scope: &Scope<'_>, filter: &Filter<'_>) -> Option<(TrapSeverity, &'static str)> {
    let called = CalledService::of(&filter.value);
    // Another filter of the same connection manager is no excuse.
    let own = usize::from(called_services(scope).contains(&called));
    let others_call = |listener| scope.callers.count(listener, &called) > own;
    let listener = scope.listener.as_deref();
    let is_beside = listener.is_some() && others_call(listener);
    if is_beside && is_catch_all(scope) {
        return None;
    }
    Some(if is_beside {
        let hint = ", unlike that of another filter chain of this listener";
        (TrapSeverity::Advice, hint)
    } else if scope.is_dump && others_call(None) {
        (TrapSeverity::Advice, ", unlike that of another listener")
    } else {
        (TrapSeverity::Error, "")
    })
}

/// Whether this connection manager serves only ports without a Service, which Istio's sidecars listen on as well.
fn is_catch_all(scope: &Scope<'_>) -> bool {
    let config = scope
        .manager
        .as_ref()
        .and_then(|manager| manager.get("route_config"));
    let hosts = config.map_or_else(Vec::new, |config| config.list("virtual_hosts"));
    let is_catch_all = |host: &DocumentValue<'_>| host.text_of("name") == Some("inbound|http|0");
    !hosts.is_empty() && hosts.iter().all(is_catch_all)
}

/// Reports limits by address where the connection manager trusts every client's `X-Forwarded-For`.
fn forged_address(scope: &Scope<'_>, found: &mut Findings) {
    let Some(manager) = &scope.manager else {
        return;
    };
    let shows_address = scope.descriptors.iter().any(RateLimitItem::shows_address);
    let knows_address = manager.is_true("use_remote_address")
        || manager.get("original_ip_detection_extensions").is_some();
    if shows_address && !knows_address && !scope.filters.is_empty() {
        found.warning(
            Trap::ForgedAddress,
            manager,
            "addresses are limited, but `X-Forwarded-For` is trusted: a client that sends \
             another one with each request is never limited",
            "write `use_remote_address: true`, and `xff_num_trusted_hops` behind your own proxies",
        );
    }
}

/// Reports disabled filters that no route enables.
fn disabled_filters(scope: &Scope<'_>, found: &mut Findings) {
    // Routes that the file does not show could enable it.
    if !scope.has_routes {
        return;
    }
    for filter in &scope.filters {
        // Any configuration of a filter on a route enables the filter, unless it disables it explicitly.
        let mut configs = scope.configured.iter().flat_map(actions::filter_configs);
        if let Some(disabled) = &filter.disabled
            && !configs.any(|(name, config)| name == filter.name && !is_disabling(&config))
        {
            found.warning(
                Trap::FilterDisabled,
                disabled,
                "the filter is disabled, and no route enables it: it never calls the service",
                "remove `disabled: true`, or enable the filter in the `typed_per_filter_config` of routes",
            );
        }
    }
}

fn is_disabling(config: &DocumentValue<'_>) -> bool {
    let message = config.message();
    message.is_some_and(|(name, config)| {
        name == "envoy.config.route.v3.FilterConfig" && config.is_true("disabled")
    })
}

/// Reports routes that have limits but disable the filter.
fn disabled_for_routes(scope: &Scope<'_>, found: &mut Findings) {
    for value in &scope.configured {
        let holders = [value.get("route"), Some(value.clone())];
        let mut holders = holders.iter().flatten();
        if holders.all(|holder| holder.list("rate_limits").is_empty()) {
            continue;
        }
        for (name, config) in actions::filter_configs(value) {
            if is_disabling(&config) && is_rate_limit(name, scope) {
                found.advice(
                    Trap::RouteDisabled,
                    &config,
                    "the rate limit filter is disabled here: the `rate_limits` next to it are not used",
                    "remove them, or remove `disabled: true`",
                );
            }
        }
    }
}

/// Whether all rate limit filters of a connection manager have this name.
fn is_rate_limit(name: &str, scope: &Scope<'_>) -> bool {
    let mut filters = scope.filters.iter().map(|filter| filter.name);
    if scope.filters.is_empty() {
        return name == USUAL_NAME;
    }
    filters.all(|own| own == name)
}

/// Checks the domains and descriptors of a connection manager.
pub(super) fn descriptors(scope: &Scope<'_>, rules: &KnownRules<'_>, found: &mut Findings) {
    let filters = scope.filters.iter().map(|filter| filter.value.clone());
    let filters = filters.chain(scope.tcp_filters.iter().cloned());
    let configs = scope.configured.iter().flat_map(actions::filter_configs);
    let per_route = configs.filter_map(|(_, config)| per_route_config(&config));
    for named in filters.chain(per_route) {
        // A route without a domain of its own uses the filter's.
        if let Some(domain) = named.text_of("domain").filter(|domain| !domain.is_empty())
            && !rules.has_domain(domain)
        {
            found.error(
                Trap::Domain,
                &named,
                format!("no rule file has the domain `{domain}`: everything passes"),
                match rules.similar_domain(domain) {
                    Some(similar) => format!("did you mean `{similar}`?"),
                    None => "name the `domain` of a rule file".to_owned(),
                },
            );
        }
    }
    for item in &scope.descriptors {
        if let Some(entries) = &item.entries
            && let Some(domain) = domain_without_answer(scope, item, entries, rules)
        {
            let entries = actions::shown(entries);
            found.error(
                Trap::Descriptor,
                &item.value,
                format!("no rule of the domain `{domain}` matches ({entries}): this descriptor is not limited"),
                "add a rule with these keys in this order, or change the actions",
            );
        }
        if let Some(shorter) = &item.shorter
            && let Some(domain) = domain_without_answer(scope, item, shorter, rules)
        {
            let shorter = actions::shown(shorter);
            found.warning(
                Trap::AbsentValue,
                &item.value,
                format!(
                    "with `skip_if_absent` a client can send ({shorter}) only, which no rule of the \
                     domain `{domain}` matches: it is not limited"
                ),
                "add a rule for these entries",
            );
        }
    }
}

/// If no rule of any of the item's domains could match `entries`, the first of these domains that has rules.
fn domain_without_answer<'s>(
    scope: &'s Scope<'_>,
    item: &RateLimitItem<'s>,
    entries: &[(&str, Option<&str>)],
    rules: &KnownRules<'_>,
) -> Option<&'s str> {
    let domains = scope.domains_of(item).into_iter();
    let mut known = domains.filter(|domain| rules.has_domain(domain));
    let first = known.clone().next()?;
    let is_answered = known.any(|domain| rules.may_answer(domain, entries));
    (!is_answered).then_some(first)
}
