//! The parts of a configuration that limits depend on, read in one walk: filters, routes, items, clusters and patches.
//!
//! Messages are recognised anywhere by their `@type` or by their shape. Those outside of connection managers, as in
//! patches of a control plane, belong to the first scope and the first table.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    document::{EnvoyFile, EnvoyValue},
    finding::SeenParts,
    item::{Holder, LimitItem},
};

/// The usual name of the filter, and the namespace of the metadata that it writes.
pub(super) const FILTER_NAME: &str = "envoy.filters.http.ratelimit";

const MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const FILTER: &str = "envoy.extensions.filters.http.ratelimit.v3.RateLimit";
const PER_ROUTE: &str = "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
const LOCAL_FILTER: &str = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
const TCP_FILTER: &str = "envoy.extensions.filters.network.ratelimit.v3.RateLimit";
const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
const FILTER_CONFIG: &str = "envoy.config.route.v3.FilterConfig";

/// Keys by which a cluster is recognised.
const CLUSTER_KEYS: [&str; 4] = [
    "load_assignment",
    "connect_timeout",
    "lb_policy",
    "typed_extension_protocol_options",
];

/// The scope and the table of parts outside of all connection managers.
pub(super) const LOOSE: usize = 0;

/// Keys below which a dump repeats other parts, or has parts that serve no more requests.
const REPEATED: [&str; 4] = [
    "static_route_configs",
    "staticRouteConfigs",
    "draining_state",
    "drainingState",
];

/// The parts of a file.
#[derive(Debug, Default)]
pub(super) struct EnvoyModel<'d> {
    /// Whether there is any part of an Envoy configuration.
    pub(super) has_envoy: bool,
    pub(super) is_dump: bool,
    pub(super) seen: SeenParts,
    pub(super) scopes: Vec<Scope<'d>>,
    pub(super) tables: Vec<RouteLevel<'d>>,
    /// Filters `envoy.filters.network.ratelimit`, with their descriptors.
    pub(super) tcp_filters: Vec<(EnvoyValue<'d>, Vec<LimitItem<'d>>)>,
    pub(super) clusters: BTreeMap<&'d str, EnvoyValue<'d>>,
    /// Items of `configPatches` of EnvoyFilters.
    pub(super) patches: Vec<EnvoyValue<'d>>,
}

/// A connection manager.
#[derive(Debug, Default)]
pub(super) struct Scope<'d> {
    /// `None` for the scope of loose parts.
    pub(super) manager: Option<EnvoyValue<'d>>,
    pub(super) filters: Vec<HttpFilter<'d>>,
    /// Stages that local rate limit filters use.
    pub(super) local_stages: BTreeSet<u64>,
    /// Whether some filter can limit requests in a way that the file does not show.
    pub(super) has_unknown_filter: bool,
    /// The name of the route configuration that arrives over xDS; empty if there is none.
    table_name: &'d str,
    /// The indexes of its tables.
    pub(super) tables: Vec<usize>,
}

impl Scope<'_> {
    /// Whether nothing in it can limit.
    pub(super) fn lacks_filter(&self) -> bool {
        self.filters.is_empty() && !self.has_unknown_filter
    }
}

/// A filter `envoy.filters.http.ratelimit`.
#[derive(Debug)]
pub(super) struct HttpFilter<'d> {
    pub(super) value: EnvoyValue<'d>,
    /// Its name in the list of filters, under which routes configure it; empty if the file does not show it.
    pub(super) name: &'d str,
    pub(super) domain: &'d str,
    pub(super) stage: u64,
    /// Its own items, which win over those of routes.
    pub(super) items: Vec<LimitItem<'d>>,
    pub(super) is_disabled: bool,
}

impl<'d> HttpFilter<'d> {
    /// The filter of an item in a list of filters.
    fn new(value: EnvoyValue<'d>, entry: EnvoyValue<'d>) -> Self {
        Self {
            name: entry.text_of("name"),
            domain: value.text_of("domain"),
            stage: value.number("stage"),
            items: LimitItem::all(value, Holder::Filter),
            is_disabled: entry.is_true("disabled"),
            value,
        }
    }

    /// The namespace of the metadata that it writes.
    pub(super) fn namespace(&self) -> &'d str {
        match self.value.text_of("metadata_namespace") {
            "" => FILTER_NAME,
            own => own,
        }
    }
}

/// A route configuration, a virtual host or a route.
#[derive(Debug)]
pub(super) struct RouteLevel<'d> {
    pub(super) value: EnvoyValue<'d>,
    pub(super) items: Vec<LimitItem<'d>>,
    pub(super) configs: Vec<PerRoute<'d>>,
    /// The virtual hosts of a configuration, and their routes.
    pub(super) below: Vec<Self>,
}

impl<'d> RouteLevel<'d> {
    /// A configuration has the depth 0, and a route 2.
    fn new(value: EnvoyValue<'d>, depth: usize) -> Self {
        let holder = [None, Some(value), value.get("route")][depth];
        let below = ["virtual_hosts", "routes"].get(depth);
        let below = below.map_or_else(Vec::new, |key| value.list(key));
        let below = below.into_iter().map(|value| Self::new(value, depth + 1));
        Self {
            items: holder.map_or_else(Vec::new, |holder| LimitItem::all(holder, Holder::Route)),
            configs: PerRoute::all(value),
            below: below.collect(),
            value,
        }
    }

    /// A level for parts without one, in the document of this root.
    fn loose(root: EnvoyValue<'d>, items: Vec<LimitItem<'d>>, below: Vec<Self>) -> Self {
        Self {
            value: root,
            items,
            configs: Vec::new(),
            below,
        }
    }

    /// The settings of filters here and below.
    pub(super) fn all_configs(&self) -> Vec<&PerRoute<'d>> {
        let below = self.below.iter().flat_map(Self::all_configs);
        self.configs.iter().chain(below).collect()
    }

    /// Whether there are items here or below.
    pub(super) fn has_items(&self) -> bool {
        let mut configs = self.configs.iter();
        !self.items.is_empty()
            || configs.any(|config| !config.items.is_empty())
            || self.below.iter().any(Self::has_items)
    }

    /// Whether the items of the virtual host apply although the route has its own.
    pub(super) fn includes_host(&self) -> bool {
        let own = self.configs.iter().filter_map(|config| config.limits);
        let mut options = own.map(|limits| limits.text_of("vh_rate_limits"));
        let is_included = self.value.text_at(&["route", "include_vh_rate_limits"]) == "true";
        is_included || options.any(|option| matches!(option, "INCLUDE" | "1"))
    }
}

/// An entry of a `typed_per_filter_config`.
#[derive(Debug)]
pub(super) struct PerRoute<'d> {
    /// The name of the filter that reads it; `None` if the file does not show it.
    pub(super) key: Option<&'d str>,
    pub(super) value: EnvoyValue<'d>,
    /// The `RateLimitPerRoute`, if it is one.
    pub(super) limits: Option<EnvoyValue<'d>>,
    pub(super) items: Vec<LimitItem<'d>>,
    /// Whether it disables the filter.
    pub(super) is_disabling: bool,
    /// The stage of a local rate limit filter.
    pub(super) local_stage: Option<u64>,
}

impl<'d> PerRoute<'d> {
    /// The domain that takes the place of the filter's.
    pub(super) fn domain(&self) -> Option<&'d str> {
        let domain = self.limits?.text_of("domain");
        Some(domain).filter(|domain| !domain.is_empty())
    }

    fn all(holder: EnvoyValue<'d>) -> Vec<Self> {
        let configs = holder.get("typed_per_filter_config").into_iter();
        let configs = configs.flat_map(EnvoyValue::children);
        configs
            .map(|(key, value)| Self::new(Some(key), value))
            .collect()
    }

    fn new(key: Option<&'d str>, value: EnvoyValue<'d>) -> Self {
        let mut message = value.message();
        let mut is_disabling = false;
        if let Some((FILTER_CONFIG, wrapper)) = message {
            is_disabling = wrapper.is_true("disabled");
            message = wrapper.get("config").and_then(EnvoyValue::message);
        }
        let (name, content) = message.unwrap_or(("", value));
        let limits = Some(content).filter(|_| name == PER_ROUTE);
        let local = Some(content).filter(|_| name == LOCAL_FILTER);
        Self {
            key,
            value,
            items: limits.map_or_else(Vec::new, |limits| LimitItem::all(limits, Holder::PerRoute)),
            limits,
            is_disabling,
            local_stage: local.map(|local| local.number("stage")),
        }
    }
}

impl<'d> EnvoyModel<'d> {
    pub(super) fn of(file: &'d EnvoyFile<'_>) -> Self {
        let mut model = Self::default();
        for root in file.roots() {
            if model.tables.is_empty() {
                let host = RouteLevel::loose(root, Vec::new(), Vec::new());
                let table = RouteLevel::loose(root, Vec::new(), vec![host]);
                model.tables.push(table);
                model.scopes.push(Scope {
                    tables: vec![LOOSE],
                    ..Scope::default()
                });
            }
            model.walk(root, root);
        }
        model.join();
        model
    }

    /// Gives connection managers the tables that they name, and counts.
    fn join(&mut self) {
        let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, table) in self.tables.iter().enumerate().skip(1) {
            let name = table.value.text_of("name");
            by_name.entry(name).or_default().push(index);
        }
        by_name.remove("");
        for scope in &mut self.scopes {
            if let Some(came) = by_name.get(scope.table_name) {
                scope.tables.extend(came);
            }
        }
        let filters = self.scopes.iter().map(|scope| scope.filters.len());
        let filters = filters.sum::<usize>() + self.tcp_filters.len();
        let lists = self.lists(&self.uses());
        let items = lists.iter().map(|list| list.items.len()).sum();
        self.seen = SeenParts { filters, items };
        let has_routes = self.tables.len() > 1 || self.seen.items > 0;
        self.has_envoy |= has_routes || !(self.clusters.is_empty() && self.patches.is_empty());
    }

    /// Reads `value`, which `parent` contains, and everything below it.
    fn walk(&mut self, value: EnvoyValue<'d>, parent: EnvoyValue<'d>) {
        let message = value.message();
        let name = message.map_or("", |(name, _)| name);
        self.has_envoy |= name.starts_with("envoy.") || value.has("static_resources");
        self.is_dump |= name.starts_with("envoy.admin.");
        match message {
            Some((MANAGER, content)) => return self.manager(content),
            Some((FILTER, content)) => {
                let filter = HttpFilter::new(content, parent);
                return self.scopes[LOOSE].filters.push(filter);
            }
            Some((TCP_FILTER, content)) => {
                let descriptors = content.list("descriptors").into_iter();
                let items = descriptors.map(LimitItem::of_tcp).collect();
                return self.tcp_filters.push((content, items));
            }
            Some((CLUSTER, content)) => return self.cluster(content),
            Some((PER_ROUTE | FILTER_CONFIG | LOCAL_FILTER, _)) => {
                return self.loose_config(None, value);
            }
            _ => {}
        }
        let is_host = |host: &EnvoyValue<'d>| host.has("domains") && host.has("routes");
        let is_cluster = CLUSTER_KEYS.iter().any(|key| value.has(key)) && value.has("name");
        if value.list("virtual_hosts").iter().any(is_host) {
            self.tables.push(RouteLevel::new(value, 0));
        } else if is_host(&value) {
            self.tables[LOOSE].below.push(RouteLevel::new(value, 1));
        } else if is_route(value) {
            let host = &mut self.tables[LOOSE].below[0];
            host.below.push(RouteLevel::new(value, 2));
        } else if is_cluster {
            self.cluster(value);
        } else {
            if value.has("apply_to") && value.has("patch") {
                self.patches.push(value);
            }
            let items = LimitItem::all(value, Holder::Route);
            if !items.is_empty() {
                let host = RouteLevel::loose(value, items, Vec::new());
                self.tables[LOOSE].below.push(host);
            }
            self.below(value);
        }
    }

    fn below(&mut self, value: EnvoyValue<'d>) {
        // A dump repeats messages of the bootstrap. They would be reported twice.
        let is_bootstrap =
            |value: EnvoyValue<'_>| value.text_of("@type").ends_with(".BootstrapConfigDump");
        let parts = || value.children().map(|(_, part)| part);
        let skips_bootstrap = parts().any(is_bootstrap) && parts().count() > 1;
        for (key, child) in value.children() {
            if REPEATED.contains(&key) || skips_bootstrap && is_bootstrap(child) {
                continue;
            }
            if matches!(key, "typed_per_filter_config" | "typedPerFilterConfig") {
                for (key, config) in child.children() {
                    self.loose_config(Some(key), config);
                }
            } else {
                self.walk(child, value);
            }
        }
    }

    fn manager(&mut self, manager: EnvoyValue<'d>) {
        let entries = manager.list("http_filters");
        let mut scope = Scope {
            manager: Some(manager),
            has_unknown_filter: entries.is_empty(),
            table_name: manager.text_at(&["rds", "route_config_name"]),
            ..Scope::default()
        };
        for entry in entries {
            match entry.get("typed_config").and_then(EnvoyValue::message) {
                Some((FILTER, content)) => scope.filters.push(HttpFilter::new(content, entry)),
                Some((LOCAL_FILTER, local)) => {
                    scope.local_stages.insert(local.number("stage"));
                }
                Some(_) => scope.has_unknown_filter |= chooses_filters(entry, 0),
                // Its configuration arrives over xDS, or only the name says that it limits.
                None => {
                    let is_named = entry.text_of("name") == FILTER_NAME;
                    scope.has_unknown_filter |= is_named || entry.has("config_discovery");
                }
            }
        }
        if let Some(table) = manager.get("route_config") {
            scope.tables.push(self.tables.len());
            self.tables.push(RouteLevel::new(table, 0));
        }
        self.scopes.push(scope);
    }

    fn cluster(&mut self, cluster: EnvoyValue<'d>) {
        self.clusters.insert(cluster.text_of("name"), cluster);
    }

    fn loose_config(&mut self, key: Option<&'d str>, value: EnvoyValue<'d>) {
        let config = PerRoute::new(key, value);
        self.scopes[LOOSE].local_stages.extend(config.local_stage);
        self.tables[LOOSE].configs.push(config);
    }
}

/// Whether a value is a route of Envoy. Istio's own routes have lists at `match` and `route`.
fn is_route(value: EnvoyValue<'_>) -> bool {
    let is_map = |key: &&str| value.get(key).is_some_and(EnvoyValue::is_map);
    let mut answers = ["route", "redirect", "direct_response"].iter();
    is_map(&"match") && answers.any(is_map)
}

/// Whether a filter contains others or the source of them, or lets a route choose filters.
fn chooses_filters(value: EnvoyValue<'_>, depth: usize) -> bool {
    let name = value.message().map_or("", |(name, _)| name);
    name == FILTER
        || name.contains(".http.composite.")
        || ["config_discovery", "dynamic_config"]
            .iter()
            .any(|key| value.has(key))
        || depth < 16
            && value
                .children()
                .any(|(_, child)| chooses_filters(child, depth + 1))
}
