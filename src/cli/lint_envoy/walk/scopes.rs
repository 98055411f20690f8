//! The end of a walk: connection managers get the route configurations that arrived over xDS, and are then checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    rc::Rc,
};

use super::{EnvoyWalk, LOOSE, RouteConfig};
use crate::cli::lint_envoy::{
    actions::KnownRules,
    document::DocumentValue,
    scope::{Callers, FilterNames, FiltersKnown, MayLimit, Scope},
    traps::{self, called_services},
};

impl<'d> EnvoyWalk<'d> {
    /// Checks all connection managers and the routes that they use.
    pub(super) fn finish_scopes(&mut self, rules: Option<&KnownRules<'_>>) {
        self.scope(LOOSE);
        let mut scopes = mem::take(&mut self.scopes);
        let mut route_configs = mem::take(&mut self.route_configs);
        let added: BTreeSet<&str> = scopes[LOOSE]
            .filters
            .iter()
            .map(|filter| filter.name)
            .filter(|name| !name.is_empty())
            .collect();
        self.configured(&scopes, &route_configs, &added);
        let mut claimed = BTreeSet::new();
        for scope in &mut scopes {
            let name = scope.route_config.as_ref();
            let Some((name, came)) = name.and_then(|name| route_configs.get_key_value(name)) else {
                continue;
            };
            scope.descriptors.extend(came.descriptors.iter().cloned());
            scope.configured.extend(came.configured.iter().cloned());
            scope.has_routes = true;
            claimed.insert(name.clone());
        }
        route_configs.retain(|name, _| !claimed.contains(name));
        scopes.extend(route_configs.into_values().map(|alone| Scope {
            descriptors: alone.descriptors,
            configured: alone.configured,
            has_routes: true,
            ..Scope::default()
        }));
        let mut callers = Callers::default();
        for scope in &scopes {
            callers.add(scope.listener.as_deref(), called_services(scope));
        }
        let callers = Rc::new(callers);
        for scope in &mut scopes {
            scope.callers = callers.clone();
        }
        for scope in &scopes {
            traps::scope(scope, rules, &mut self.findings);
        }
    }

    /// Checks routes that have a `typed_per_filter_config` against the names of the filters that read it. `added` are
    /// filters outside connection managers.
    fn configured(
        &mut self,
        scopes: &[Scope<'d>],
        route_configs: &BTreeMap<String, RouteConfig<'d>>,
        added: &BTreeSet<&'d str>,
    ) {
        for (id, scope) in scopes.iter().enumerate() {
            let names = match id {
                LOOSE if added.is_empty() => names_of(&[], added, FiltersKnown::None),
                LOOSE => names_of(&[], added, FiltersKnown::Some),
                _ => names_of(&[scope], added, FiltersKnown::All),
            };
            self.look_at(&scope.configured, &names);
        }
        let mut users: BTreeMap<&str, Vec<&Scope<'d>>> = BTreeMap::new();
        for scope in scopes {
            if let Some(name) = &scope.route_config {
                users.entry(name).or_default().push(scope);
            }
        }
        for (name, came) in route_configs {
            let users = users.remove(&**name).unwrap_or_default();
            let known = match users.is_empty() {
                true => FiltersKnown::None,
                false => FiltersKnown::All,
            };
            self.look_at(&came.configured, &names_of(&users, added, known));
        }
    }

    fn look_at(&mut self, configured: &[DocumentValue<'d>], names: &FilterNames<'d>) {
        for value in configured {
            traps::configured(value, names, &mut self.findings);
        }
    }
}

/// The names of the rate limit filters in connection managers that share their routes.
fn names_of<'d>(
    users: &[&Scope<'d>],
    added: &BTreeSet<&'d str>,
    known: FiltersKnown,
) -> FilterNames<'d> {
    let entries = users.iter().flat_map(|user| &user.entries);
    let entries = entries
        .filter(|entry| entry.limits != MayLimit::No)
        .map(|entry| entry.name);
    let filters = users.iter().flat_map(|user| &user.filters);
    let names = entries
        .chain(filters.map(|filter| filter.name))
        .filter(|name| !name.is_empty())
        .chain(added.iter().copied());
    FilterNames {
        names: names.collect(),
        known: if users.iter().any(|user| user.entries.is_empty()) {
            FiltersKnown::None
        } else {
            known
        },
    }
}
