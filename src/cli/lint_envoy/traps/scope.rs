//! Traps that only several parts of a configuration make together.

use std::collections::BTreeSet;

use super::super::{
    actions::{self, Holder, RateLimitItem},
    document::DocumentValue,
    finding::TrapSeverity,
    trap::{CalledService, Filter, Report, Scope, Subject, Trap},
};

/// Items that lose against others.
pub(super) const HIDDEN_LIMITS: Trap = Trap {
    name: "hidden-limits",
    look: |subject, report| match subject {
        Subject::VirtualHost(host) => hidden_by_routes(host, report),
        Subject::Scope { scope, .. } => hidden_by_filters(scope, report),
        _ => {}
    },
};

fn hidden_by_routes(host: &DocumentValue<'_>, report: &mut Report<'_>) {
    let has_limits = !host.list("rate_limits").is_empty();
    for route in host.list("routes") {
        let Some(action) = route.get("route") else {
            continue;
        };
        let own = actions::per_route(&route);
        let own_limits = own.as_ref().and_then(|own| own.get("rate_limits"));
        let limits = action.get("rate_limits");
        let hides = own_limits.as_ref().or(limits.as_ref());
        let includes = action.is_true("include_vh_rate_limits")
            || own
                .as_ref()
                .is_some_and(|own| own.text_of("vh_rate_limits") == Some("INCLUDE"));
        if let (true, Some(hides), false) = (has_limits, hides, includes) {
            report.add(
                hides,
                TrapSeverity::Warning,
                "these replace the `rate_limits` of the virtual host, which are not applied to this route",
                "write `include_vh_rate_limits: true` if both are meant",
            );
        }
        if let (Some(_), Some(limits)) = (&own_limits, &limits) {
            report.add(
                limits,
                TrapSeverity::Warning,
                "the route has a RateLimitPerRoute whose `rate_limits` win: these are not applied",
                "move them there, or remove them",
            );
        }
    }
}

fn hidden_by_filters(scope: &Scope<'_>, report: &mut Report<'_>) {
    for item in of_routes(scope) {
        let stage = item.stage();
        let mut of_stage = scope.filters.iter().filter(|filter| filter.stage == stage);
        if of_stage.clone().next().is_some() && of_stage.all(|filter| filter.has_own) {
            report.add(
                &item.value,
                TrapSeverity::Warning,
                "the filter's own `rate_limits` win: this item is not applied",
                "move it there, or remove those",
            );
        }
    }
}

/// Filters without items to send, and items that no filter uses.
pub(super) const STAGE: Trap = Trap {
    name: "stage",
    look: |subject, report| {
        if let Subject::Scope { scope, .. } = subject {
            items_without_filter(scope, report);
            filters_without_item(scope, report);
        }
    },
};

fn items_without_filter(scope: &Scope<'_>, report: &mut Report<'_>) {
    // Without any filter the reason is another one, and outside of a connection manager filters may be elsewhere.
    if scope.filters.is_empty() || scope.has_unknown_entry() {
        return;
    }
    for item in of_routes(scope) {
        let stage = item.stage();
        if !scope.filters.iter().any(|filter| filter.stage == stage) {
            report.add(
                &item.value,
                TrapSeverity::Error,
                format!("no rate limit filter has the stage {stage}: this item is never used"),
                "give the filter and its items the same `stage`",
            );
        }
    }
}

fn filters_without_item(scope: &Scope<'_>, report: &mut Report<'_>) {
    if !scope.has_routes && scope.descriptors.is_empty() {
        return;
    }
    let silent = scope.filters.iter();
    for filter in silent.filter(|filter| !calls_service(scope, filter)) {
        let Some((severity, hint)) = silence(scope, filter) else {
            continue;
        };
        report.add(
            &filter.value,
            severity,
            format!(
                "no route and no virtual host has `rate_limits` of stage {}: this filter \
                 never calls the service{hint}",
                filter.stage
            ),
            "add `rate_limits` of that stage to a route or a virtual host",
        );
    }
}

/// Whether the filter calls the service for some request.
fn calls_service(scope: &Scope<'_>, filter: &Filter<'_>) -> bool {
    let is_asked = |found: &RateLimitItem<'_>| match found.holder {
        Holder::Route => found.stage() == filter.stage,
        Holder::PerRoute => true,
        Holder::Filter => false,
    };
    filter.has_own || scope.descriptors.iter().any(is_asked)
}

/// The services that the filters of a connection manager call.
pub(in super::super) fn called_services(scope: &Scope<'_>) -> BTreeSet<CalledService> {
    let filters = scope.filters.iter();
    let calling = filters.filter(|filter| calls_service(scope, filter));
    calling
        .map(|filter| CalledService::of(&filter.value))
        .collect()
}

/// How much it matters that a filter never calls the service; `None` if it does not. A control plane puts a filter
/// into all filter chains at once, also into those that have nothing to limit.
fn silence(scope: &Scope<'_>, filter: &Filter<'_>) -> Option<(TrapSeverity, &'static str)> {
    let called = CalledService::of(&filter.value);
    // Another filter of this connection manager does not explain it.
    let own = usize::from(called_services(scope).contains(&called));
    let is_beside = scope
        .listener
        .as_ref()
        .is_some_and(|listener| scope.callers.count_of(listener, &called) > own);
    if is_beside && is_catch_all(scope) {
        return None;
    }
    Some(if is_beside {
        let hint = ", unlike that of another filter chain of this listener";
        (TrapSeverity::Advice, hint)
    } else if scope.is_dump && scope.callers.count(&called) > own {
        (TrapSeverity::Advice, ", unlike that of another listener")
    } else {
        (TrapSeverity::Error, "")
    })
}

/// Whether only ports without a Service have their requests here, which Istio's sidecars take as well.
fn is_catch_all(scope: &Scope<'_>) -> bool {
    let config = scope
        .manager
        .as_ref()
        .and_then(|manager| manager.get("route_config"));
    let hosts = config.map_or_else(Vec::new, |config| config.list("virtual_hosts"));
    let is_catch_all = |host: &DocumentValue<'_>| host.text_of("name") == Some("inbound|http|0");
    !hosts.is_empty() && hosts.iter().all(is_catch_all)
}

/// Items of routes and virtual hosts.
fn of_routes<'s, 'd>(scope: &'s Scope<'d>) -> impl Iterator<Item = &'s RateLimitItem<'d>> {
    let items = scope.descriptors.iter();
    items.filter(|found| found.holder == Holder::Route)
}

/// Limits by address where the connection manager trusts every client's `X-Forwarded-For`.
pub(super) const FORGED_ADDRESS: Trap = Trap {
    name: "forged-address",
    look: |subject, report| {
        let Subject::Scope { scope, .. } = subject else {
            return;
        };
        let Some(manager) = &scope.manager else {
            return;
        };
        let shows_address = scope.descriptors.iter().any(RateLimitItem::shows_address);
        let knows_address = manager.is_true("use_remote_address")
            || manager.get("original_ip_detection_extensions").is_some();
        if shows_address && !knows_address && !scope.filters.is_empty() {
            report.add(
                manager,
                TrapSeverity::Warning,
                "addresses are limited, but `X-Forwarded-For` is trusted: a client that sends \
                 another one with each request is never limited",
                "write `use_remote_address: true`, and `xff_num_trusted_hops` behind your own proxies",
            );
        }
    },
};
