//! Traps in descriptors, seen with the rules that should match them.

use super::super::{
    actions::{self, KnownRules, RateLimitItem, per_route_config},
    document::DocumentValue,
    finding::TrapSeverity,
    trap::{Scope, Subject, Trap},
};

/// A domain that no rule file has.
pub(super) const DOMAIN: Trap = Trap {
    name: "domain",
    look: |subject, report| {
        let Subject::Scope {
            scope,
            rules: Some(rules),
        } = subject
        else {
            return;
        };
        let filters = scope.filters.iter().map(|filter| filter.value.clone());
        let filters = filters.chain(scope.tcp_filters.iter().cloned());
        for named in filters.chain(per_route_configs(scope)) {
            // A route without a domain of its own keeps that of the filter.
            if let Some(domain) = named.text_of("domain").filter(|domain| !domain.is_empty())
                && !rules.has_domain(domain)
            {
                report.add(
                    &named,
                    TrapSeverity::Error,
                    format!("no rule file has the domain `{domain}`: everything passes"),
                    "name the `domain` of a rule file",
                );
            }
        }
    },
};

/// The `RateLimitPerRoute` of all routes, virtual hosts and the like.
fn per_route_configs<'d>(scope: &Scope<'d>) -> impl Iterator<Item = DocumentValue<'d>> {
    let configs = scope.configured.iter();
    let configs = configs.filter_map(|value| value.get("typed_per_filter_config"));
    configs.flat_map(|configs| {
        let configs = configs.children();
        configs
            .into_iter()
            .filter_map(|config| per_route_config(&config))
    })
}

/// A descriptor that no rule matches.
pub(super) const DESCRIPTOR: Trap = Trap {
    name: "descriptor",
    look: |subject, report| {
        let Subject::Scope {
            scope,
            rules: Some(rules),
        } = subject
        else {
            return;
        };
        for item in &scope.descriptors {
            if let Some(entries) = &item.entries
                && let Some(domain) = domain_without_answer(scope, item, entries, rules)
            {
                let entries = actions::shown(entries);
                report.add(
                    &item.value,
                    TrapSeverity::Error,
                    format!(
                        "no rule of the domain `{domain}` matches ({entries}): this descriptor is not limited"
                    ),
                    "add a rule with these keys in this order, or change the actions",
                );
            }
        }
    },
};

/// The first domain of `item` that has rules, if no rule of any of its domains could match `entries`.
pub(super) fn domain_without_answer<'s>(
    scope: &'s Scope<'_>,
    item: &RateLimitItem<'s>,
    entries: &[(&str, Option<&str>)],
    rules: &KnownRules<'_>,
) -> Option<&'s str> {
    let stage = item.stage();
    let of_stage = scope.filters.iter().filter(|filter| filter.stage == stage);
    let domains: Vec<_> = match item.domain {
        Some(domain) => vec![domain],
        None => of_stage
            .filter_map(|filter| filter.domain.as_deref())
            .collect(),
    };
    let mut known = domains
        .into_iter()
        .filter(|domain| rules.has_domain(domain));
    let first = known.clone().next()?;
    let is_answered = known.any(|domain| rules.may_answer(domain, entries));
    (!is_answered).then_some(first)
}
