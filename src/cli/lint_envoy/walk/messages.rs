//! The messages that a walk recognises by their `@type`: connection managers, filters and clusters. At its end,
//! connection managers get the route configurations that arrived over xDS, and are checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    rc::Rc,
};

use crate::cli::lint_envoy::{
    actions::{Holder, KnownRules},
    document::DocumentValue,
    scope::{Callers, Filter, FilterEntry, FilterNames, FiltersKnown, MayLimit, Scope},
    traps::{self, called_services, is_router_name, is_usual_name, resembles_filter},
    walk::{EnvoyWalk, LOOSE, RouteConfig, WalkPlace},
};

/// The message of the rate limit filter.
const HTTP_FILTER: &str = "envoy.extensions.filters.http.ratelimit.v3.RateLimit";

impl<'d> EnvoyWalk<'d> {
    /// Collects a message with an `@type`. Returns the scope of everything below it, and the kind of owner of its
    /// `rate_limits`.
    pub(super) fn message(
        &mut self,
        value: &DocumentValue<'d>,
        place: WalkPlace<'_, 'd>,
    ) -> (usize, Holder) {
        let scope = place.scope;
        let Some((full_name, message)) = value.message() else {
            return (scope, Holder::Route);
        };
        let name = full_name.strip_prefix("envoy.").unwrap_or_default();
        self.has_envoy |= !name.is_empty();
        match name {
            "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager" => {
                return (self.manager(&message, place), Holder::Route);
            }
            _ if full_name == HTTP_FILTER => {
                self.http_filter(&message, place);
                return (scope, Holder::Filter);
            }
            "extensions.filters.http.ratelimit.v3.RateLimitPerRoute" => {
                return (scope, Holder::PerRoute);
            }
            "extensions.filters.network.ratelimit.v3.RateLimit" => self.tcp_filter(&message),
            "extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig" => {
                self.seen.filters += 1;
                traps::quota_filter(&message, &mut self.findings);
            }
            "config.cluster.v3.Cluster" => self.cluster(&message),
            _ if is_typed_config(value) && resembles_filter(full_name) => {
                self.has_envoy = true;
                self.scope(scope).has_unknown_filter = true;
                traps::unknown_filter(value, full_name, &mut self.findings);
            }
            _ => {}
        }
        (scope, Holder::Route)
    }

    fn manager(&mut self, manager: &DocumentValue<'d>, place: WalkPlace<'_, 'd>) -> usize {
        let id = self.scopes.len().max(LOOSE + 1);
        let is_dump = self.is_dump;
        self.single_items(manager, &["http_filters"]);
        let entries = manager.list("http_filters");
        for entry in &entries {
            traps::untyped(entry, &mut self.findings);
        }
        for entry in entries.iter().skip_while(|entry| !is_router(entry)) {
            if is_limiting(entry) {
                traps::behind_router(entry, &mut self.findings);
            }
        }
        let scope = self.scope(id);
        scope.manager = Some(manager.clone());
        scope.is_dump = is_dump;
        scope.listener = place.listener.map(DocumentValue::path);
        scope.entries = entries.iter().map(filter_entry).collect();
        scope.has_routes = manager.get("route_config").is_some();
        let name = manager.at(&["rds", "route_config_name"]);
        scope.route_config = name.and_then(|name| name.text()).map(str::to_owned);
        id
    }

    fn http_filter(&mut self, filter: &DocumentValue<'d>, place: WalkPlace<'_, 'd>) {
        self.seen.filters += 1;
        traps::http_filter(filter, self.is_dump, &mut self.findings);
        self.service(filter);
        let entry = place.parent;
        let disabled = entry.and_then(|entry| entry.get("disabled"));
        let own = Filter {
            stage: filter.number("stage"),
            domain: filter.text_of("domain").map(str::to_owned),
            has_own: !filter.list("rate_limits").is_empty(),
            value: filter.clone(),
            name: entry
                .and_then(|entry| entry.text_of("name"))
                .unwrap_or_default(),
            disabled: disabled.filter(|disabled| disabled.text() == Some("true")),
        };
        self.scope(place.scope).filters.push(own);
    }

    fn tcp_filter(&mut self, filter: &DocumentValue<'d>) {
        self.seen.filters += 1;
        self.single_items(filter, &["descriptors"]);
        traps::tcp_filter(filter, self.is_dump, &mut self.findings);
        self.scope(LOOSE).tcp_filters.push(filter.clone());
        self.service(filter);
    }

    /// Collects the service that a filter calls.
    fn service(&mut self, filter: &DocumentValue<'d>) {
        let Some(service) = filter.at(&["rate_limit_service", "grpc_service"]) else {
            return;
        };
        traps::service(&service, &mut self.findings);
        if let Some(envoy) = service.get("envoy_grpc") {
            let cluster = envoy.text_of("cluster_name").unwrap_or_default();
            self.calls
                .entry(cluster.to_owned())
                .or_default()
                .push(envoy);
        }
    }

    pub(super) fn cluster(&mut self, cluster: &DocumentValue<'d>) {
        if let Some(name) = cluster.text_of("name") {
            self.has_envoy = true;
            self.single_items(cluster, &["health_checks"]);
            self.clusters.insert(name.to_owned(), cluster.clone());
        }
    }
}

/// Whether a value is the configuration of an item in a list of filters.
fn is_typed_config(value: &DocumentValue<'_>) -> bool {
    let path = value.path();
    path.ends_with(".typed_config") || path.ends_with(".typedConfig")
}

fn filter_entry<'d>(entry: &DocumentValue<'d>) -> FilterEntry<'d> {
    FilterEntry {
        name: entry.text_of("name").unwrap_or_default(),
        limits: may_limit(entry),
    }
}

fn is_router(entry: &DocumentValue<'_>) -> bool {
    let config = entry.get("typed_config");
    match config.and_then(|config| config.message().map(|(name, _)| name)) {
        Some(name) => name.ends_with(".http.router.v3.Router"),
        None => entry.text_of("name").is_some_and(is_router_name),
    }
}

/// Whether an item is a rate limit filter by its type or its name.
fn is_limiting(entry: &DocumentValue<'_>) -> bool {
    let name = entry.text_of("name").unwrap_or_default();
    match may_limit(entry) {
        MayLimit::Yes => true,
        MayLimit::Unknown => is_usual_name(name),
        MayLimit::No => false,
    }
}

/// Whether an item of `http_filters` limits, itself or through a filter inside it.
fn may_limit(entry: &DocumentValue<'_>) -> MayLimit {
    let Some(config) = entry.get("typed_config") else {
        let name = entry.text_of("name").unwrap_or_default();
        // The configuration arrives over xDS, or only the name says what it is.
        let may = entry.get("config_discovery").is_some() || is_usual_name(name);
        return if may { MayLimit::Unknown } else { MayLimit::No };
    };
    match config.message() {
        Some((HTTP_FILTER, _)) => MayLimit::Yes,
        Some((name, _)) if resembles_filter(name) || chooses_filters(&config) => MayLimit::Unknown,
        Some(_) => MayLimit::No,
        None => MayLimit::Unknown,
    }
}

/// Whether a value contains a filter or the source of one, or lets a route choose filters.
fn chooses_filters(value: &DocumentValue<'_>) -> bool {
    const SOURCES: [&str; 2] = ["config_discovery", "dynamic_config"];
    let name = value.message().map_or("", |(name, _)| name);
    name == HTTP_FILTER
        || name.contains(".http.composite.")
        || SOURCES.iter().any(|key| value.get(key).is_some())
        || value.children().iter().any(chooses_filters)
}

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
