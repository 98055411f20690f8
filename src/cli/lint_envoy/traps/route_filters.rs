//! Traps of limits that a route configures for a filter.

use super::super::{
    actions::per_route_config,
    document::DocumentValue,
    finding::TrapSeverity,
    trap::{FilterNames, FiltersKnown, Report, Subject, Trap},
};
use super::no_filter::{OLD_NAMES, USUAL_NAME, is_one_slip};

/// Limits of a route under a name that no filter has.
pub(super) const ROUTE_FILTER_NAME: Trap = Trap {
    name: "route-filter-name",
    look: |subject, report| {
        let Subject::Configured { value, names } = subject else {
            return;
        };
        let configs = value.get("typed_per_filter_config");
        for (name, config) in configs.map_or_else(Vec::new, |configs| configs.entries()) {
            if per_route_config(&config).is_some() && !names.names.contains(name) {
                unread(name, &config, names, report);
            }
        }
    },
};

/// Reports limits under a name that none of the rate limit filters has, as far as they are known.
fn unread(
    name: &str,
    config: &DocumentValue<'_>,
    names: &FilterNames<'_>,
    report: &mut Report<'_>,
) {
    let listed: Vec<_> = names.names.iter().map(|name| format!("`{name}`")).collect();
    let of = match names.known {
        FiltersKnown::All => "",
        FiltersKnown::Some => " of this file",
        FiltersKnown::None => return of_unknown(name, config, report),
    };
    // Without any filter another trap says so.
    if listed.is_empty() {
        return;
    }
    report.add(
        config,
        TrapSeverity::Error,
        format!("no rate limit filter{of} has the name `{name}`: these settings are not read"),
        format!(
            "write {} instead of `{name}`: the key is the name in the list of filters",
            listed.join(" or ")
        ),
    );
}

/// Reports limits under a slip of the usual name, where the file shows no filter.
fn of_unknown(name: &str, config: &DocumentValue<'_>, report: &mut Report<'_>) {
    if is_slip(name) {
        report.add(
            config,
            TrapSeverity::Advice,
            format!("these settings are read by a filter with the name `{name}` only"),
            format!("write the name in the list of filters, such as `{USUAL_NAME}`"),
        );
    }
}

/// Whether a name was probably meant to be the usual one.
fn is_slip(name: &str) -> bool {
    let is_field = matches!(name, "typed_config" | "typedConfig");
    let is_old = OLD_NAMES.iter().any(|(old, _)| *old == name);
    let is_close = name.replace('_', "") == USUAL_NAME || is_one_slip(name, USUAL_NAME);
    name != USUAL_NAME && (is_field || is_old || is_close)
}
