//! Traps in descriptors, compared with the rules that should match them.

use super::super::{
    actions::{self, KnownRules, RateLimitItem, per_route_config},
    finding::{Findings, Trap},
    scope::Scope,
};

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
