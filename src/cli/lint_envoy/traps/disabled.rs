//! Traps of rate limit filters that are disabled, everywhere or for a route.

use super::super::{
    document::DocumentValue,
    finding::TrapSeverity,
    trap::{Filter, Scope, Subject, Trap},
};
use super::no_filter::USUAL_NAME;

/// A disabled filter that no route enables.
pub(super) const FILTER_DISABLED: Trap = Trap {
    name: "filter-disabled",
    look: |subject, report| {
        let Subject::Scope { scope, .. } = subject else {
            return;
        };
        // Routes that are not visible may enable it.
        if !scope.has_routes {
            return;
        }
        for filter in &scope.filters {
            if let Some(disabled) = &filter.disabled
                && !scope.configured.iter().any(|value| enables(value, filter))
            {
                report.add(
                    disabled,
                    TrapSeverity::Warning,
                    "the filter is disabled, and no route enables it: it never calls the service",
                    "remove `disabled: true`, or enable the filter in the `typed_per_filter_config` of routes",
                );
            }
        }
    },
};

/// Whether a route or a virtual host has any configuration for a filter but one that disables it.
fn enables(value: &DocumentValue<'_>, filter: &Filter<'_>) -> bool {
    let configs = value.get("typed_per_filter_config");
    let configs = configs.map_or_else(Vec::new, |configs| configs.entries());
    configs
        .iter()
        .any(|(name, config)| *name == filter.name && !is_disabling(config))
}

fn is_disabling(config: &DocumentValue<'_>) -> bool {
    let message = config.message();
    message.is_some_and(|(name, config)| {
        name == "envoy.config.route.v3.FilterConfig" && config.is_true("disabled")
    })
}

/// A route that has limits and disables the filter.
pub(super) const ROUTE_DISABLED: Trap = Trap {
    name: "route-disabled",
    look: |subject, report| {
        let Subject::Scope { scope, .. } = subject else {
            return;
        };
        for value in &scope.configured {
            let has_limits = |holder: Option<DocumentValue<'_>>| {
                holder.is_some_and(|holder| !holder.list("rate_limits").is_empty())
            };
            if !has_limits(value.get("route")) && !has_limits(Some(value.clone())) {
                continue;
            }
            let configs = value.get("typed_per_filter_config");
            for (name, config) in configs.map_or_else(Vec::new, |configs| configs.entries()) {
                if is_disabling(&config) && is_rate_limit(name, scope) {
                    report.add(
                        &config,
                        TrapSeverity::Advice,
                        "the rate limit filter is disabled here: the `rate_limits` beside it are not used",
                        "remove them, or remove `disabled: true`",
                    );
                }
            }
        }
    },
};

/// Whether all rate limit filters of a connection manager have this name.
fn is_rate_limit(name: &str, scope: &Scope<'_>) -> bool {
    let mut filters = scope.filters.iter().map(|filter| filter.name);
    if scope.filters.is_empty() {
        return name == USUAL_NAME;
    }
    filters.all(|own| own == name)
}
