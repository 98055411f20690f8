//! The parts of a configuration that limits depend on, read in one walk: filters, routes, items, clusters and patches.
//!
//! Messages are recognised anywhere by their `@type` or by their shape. Those outside of connection managers, as in
//! patches of a control plane, belong to a group of their own.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    document::{EnvoyFile, EnvoyValue, Unreadable, snake_case},
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
const BOOTSTRAP: &str = ".BootstrapConfigDump";
const FILTER_CONFIG: &str = "envoy.config.route.v3.FilterConfig";

/// Keys by which a cluster is recognised.
const CLUSTER_KEYS: &str =
    "connect_timeout lb_policy load_assignment typed_extension_protocol_options";

/// The key of the group for parts outside of all connection managers.
pub(super) const LOOSE: GroupKey<'static> = (0, "");

/// The name of a route configuration that arrives over xDS, or the number of another.
type GroupKey<'d> = (usize, &'d str);

/// The parts of a file.
#[derive(Debug, Default)]
pub(super) struct EnvoyModel<'d> {
    /// Whether there is a message of Envoy.
    has_envoy: bool,
    pub(super) is_dump: bool,
    pub(super) groups: BTreeMap<GroupKey<'d>, RouteGroup<'d>>,
    /// Filters `envoy.filters.network.ratelimit`, whose items are descriptors.
    tcp_filters: Vec<LimitFilter<'d>>,
    pub(super) clusters: BTreeMap<&'d str, EnvoyValue<'d>>,
    /// Items of `configPatches` of EnvoyFilters.
    pub(super) patches: Vec<EnvoyValue<'d>>,
}

/// Route configurations of one name, and the connection managers that use all of them.
#[derive(Debug, Default)]
pub(super) struct RouteGroup<'d> {
    pub(super) managers: Vec<Manager<'d>>,
    pub(super) tables: Vec<RouteLevel<'d>>,
}

/// A connection manager, or all parts outside of them.
#[derive(Debug, Default)]
pub(super) struct Manager<'d> {
    pub(super) value: Option<EnvoyValue<'d>>,
    pub(super) filters: Vec<LimitFilter<'d>>,
    /// Stages that local rate limit filters use.
    pub(super) local_stages: BTreeSet<u64>,
    /// Whether some filter can limit requests in a way that the file does not show.
    pub(super) has_unknown_filter: bool,
}

impl Manager<'_> {
    /// Whether nothing in it can limit.
    pub(super) fn lacks_filter(&self) -> bool {
        self.filters.is_empty() && !self.has_unknown_filter
    }
}

/// A filter `envoy.filters.http.ratelimit`, or the one for TCP.
#[derive(Debug)]
pub(super) struct LimitFilter<'d> {
    pub(super) value: EnvoyValue<'d>,
    /// Its name in the list of filters, under which routes configure it; empty if the file does not show it.
    pub(super) name: &'d str,
    pub(super) domain: &'d str,
    pub(super) stage: u64,
    /// Its own items, which win over those of routes.
    pub(super) items: Vec<LimitItem<'d>>,
    pub(super) is_disabled: bool,
}

impl<'d> LimitFilter<'d> {
    /// The filter of an entry in a list of filters.
    fn new(value: EnvoyValue<'d>, entry: EnvoyValue<'d>) -> Self {
        let descriptors = value.list("descriptors").into_iter();
        let mut items = LimitItem::all(Some(value), Holder::Filter);
        items.extend(descriptors.map(LimitItem::of_tcp));
        Self {
            name: entry.text_of("name"),
            domain: value.text_of("domain"),
            stage: value.number("stage"),
            is_disabled: entry.is_true("disabled"),
            items,
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

/// A route configuration, a virtual host, a route or one of the weighted clusters of a route.
#[derive(Debug)]
pub(super) struct RouteLevel<'d> {
    pub(super) value: EnvoyValue<'d>,
    pub(super) items: Vec<LimitItem<'d>>,
    pub(super) configs: Vec<PerRoute<'d>>,
    /// The virtual hosts of a configuration, their routes, and the clusters of these.
    pub(super) below: Vec<Self>,
}

impl<'d> RouteLevel<'d> {
    /// A configuration has the depth 0, and a cluster 3.
    pub(super) fn new(value: EnvoyValue<'d>, depth: usize) -> Self {
        let action = value.get("route");
        let clusters = action.and_then(|action| action.get("weighted_clusters"));
        let clusters = || clusters.map_or_else(Vec::new, |all| all.list("clusters"));
        let (holder, below) = match depth {
            0 => (None, value.list("virtual_hosts")),
            1 => (Some(value), value.list("routes")),
            2 => (action, clusters()),
            _ => (None, Vec::new()),
        };
        let below = below.into_iter().map(|value| Self::new(value, depth + 1));
        let configs = value.get("typed_per_filter_config").into_iter();
        let configs = configs.flat_map(EnvoyValue::children);
        let configs = configs.map(|(key, value)| PerRoute::new(Some(key), value));
        Self {
            items: LimitItem::all(holder, Holder::Route),
            configs: configs.collect(),
            below: below.collect(),
            value,
        }
    }

    /// A level for items outside of connection managers.
    fn leaf(value: EnvoyValue<'d>, items: Vec<LimitItem<'d>>) -> Self {
        Self {
            value,
            items,
            configs: Vec::new(),
            below: Vec::new(),
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

    /// Whether this configuration has routes that the file does not show, or that are not read.
    pub(super) fn has_unknown_routes(&self) -> bool {
        let mut hosts = self.below.iter();
        self.value.has("vhds") || hosts.any(|host| host.value.has("matcher"))
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
    fn new(key: Option<&'d str>, value: EnvoyValue<'d>) -> Self {
        let mut message = value.message();
        let mut is_disabling = false;
        if let Some((FILTER_CONFIG, wrapper)) = message {
            is_disabling = wrapper.is_true("disabled");
            message = wrapper.get("config").and_then(EnvoyValue::message);
        }
        let content = |name| Some(message.filter(|(of, _)| *of == name)?.1);
        let (limits, local) = (content(PER_ROUTE), content(LOCAL_FILTER));
        Self {
            items: LimitItem::all(limits, Holder::PerRoute),
            local_stage: local.map(|local| local.number("stage")),
            key,
            value,
            limits,
            is_disabling,
        }
    }
}

impl<'d> EnvoyModel<'d> {
    /// # Errors
    ///
    /// If the file has no part of an Envoy configuration.
    pub(super) fn of(file: &'d EnvoyFile<'_>) -> Result<Self, Unreadable> {
        let mut model = Self::default();
        for root in file.roots() {
            let loose = model.groups.entry(LOOSE).or_default();
            if loose.tables.is_empty() {
                loose.managers.push(Manager::default());
                let mut table = RouteLevel::leaf(root, Vec::new());
                table.below.push(RouteLevel::leaf(root, Vec::new()));
                loose.tables.push(table);
            }
            model.walk(root, root);
        }
        let has_items = model.tables().any(RouteLevel::has_items);
        let has_parts = !(model.clusters.is_empty() && model.patches.is_empty());
        let has_envoy = model.has_envoy || has_items || has_parts || model.groups.len() > 1;
        let reason = "there is no listener, cluster, filter or route in it";
        let model = has_envoy.then_some(model);
        model.ok_or_else(|| Unreadable::other(reason))
    }

    /// All rate limit filters.
    pub(super) fn filters(&self) -> impl Iterator<Item = &LimitFilter<'d>> {
        let managers = self.groups.values().flat_map(|group| &group.managers);
        let filters = managers.flat_map(|manager| &manager.filters);
        filters.chain(&self.tcp_filters)
    }

    /// All route configurations.
    pub(super) fn tables(&self) -> impl Iterator<Item = &RouteLevel<'d>> {
        self.groups.values().flat_map(|group| &group.tables)
    }

    /// The group of a name; without one, a group of its own.
    fn group(&mut self, name: &'d str) -> &mut RouteGroup<'d> {
        let number = [0, self.groups.len()][usize::from(name.is_empty())];
        self.groups.entry((number, name)).or_default()
    }

    /// The virtual hosts of the group for parts outside of connection managers. The first is for all routes.
    fn loose_hosts(&mut self) -> &mut Vec<RouteLevel<'d>> {
        let loose = self.groups.entry(LOOSE).or_default();
        &mut loose.tables[0].below
    }

    /// Reads `value`, which `parent` contains, and everything below it.
    fn walk(&mut self, value: EnvoyValue<'d>, parent: EnvoyValue<'d>) {
        let (name, content) = value.message().unwrap_or(("", value));
        self.has_envoy |= name.starts_with("envoy.") || value.has("static_resources");
        self.is_dump |= name.starts_with("envoy.admin.");
        let is_host = |host: &EnvoyValue<'d>| {
            host.has("domains") && (host.has("routes") || host.has("matcher"))
        };
        let mut cluster_keys = CLUSTER_KEYS.split(' ');
        let is_cluster = value.has("name") && cluster_keys.any(|key| value.has(key));
        match name {
            MANAGER => self.manager(content),
            FILTER => {
                let loose = self.groups.entry(LOOSE).or_default();
                let filters = &mut loose.managers[0].filters;
                filters.push(LimitFilter::new(content, parent));
            }
            TCP_FILTER => self.tcp_filters.push(LimitFilter::new(content, parent)),
            PER_ROUTE | FILTER_CONFIG | LOCAL_FILTER => self.loose_config(None, value),
            _ if value.list("virtual_hosts").iter().any(is_host) => {
                let group = self.group(value.text_of("name"));
                group.tables.push(RouteLevel::new(value, 0));
            }
            _ if is_host(&value) => self.loose_hosts().push(RouteLevel::new(value, 1)),
            _ if is_route(value) => {
                let routes = &mut self.loose_hosts()[0].below;
                routes.push(RouteLevel::new(value, 2));
            }
            _ if name == CLUSTER || is_cluster => {
                self.clusters.insert(content.text_of("name"), content);
            }
            _ => {
                let is_patch = value.has("apply_to") && value.has("patch");
                self.patches.extend(is_patch.then_some(value));
                let items = LimitItem::all(Some(value), Holder::Route);
                let host = (!items.is_empty()).then(|| RouteLevel::leaf(value, items));
                self.loose_hosts().extend(host);
                self.below(value);
            }
        }
    }

    fn below(&mut self, value: EnvoyValue<'d>) {
        // A dump repeats messages of the bootstrap. They would be reported twice.
        let is_bootstrap = |part: EnvoyValue<'_>| part.text_of("@type").ends_with(BOOTSTRAP);
        let parts = || value.children().map(|(_, part)| part);
        let skips_bootstrap = parts().any(is_bootstrap) && parts().count() > 1;
        for (key, child) in value.children() {
            match &*snake_case(key) {
                // Other parts again, or those that serve no more requests.
                "static_route_configs" | "draining_state" => {}
                _ if skips_bootstrap && is_bootstrap(child) => {}
                "typed_per_filter_config" => {
                    for (key, config) in child.children() {
                        self.loose_config(Some(key), config);
                    }
                }
                _ => self.walk(child, value),
            }
        }
    }

    fn manager(&mut self, value: EnvoyValue<'d>) {
        let entries = value.list("http_filters");
        let mut manager = Manager {
            value: Some(value),
            has_unknown_filter: entries.is_empty(),
            ..Manager::default()
        };
        for entry in entries {
            match entry.get("typed_config").and_then(EnvoyValue::message) {
                Some((FILTER, content)) => manager.filters.push(LimitFilter::new(content, entry)),
                Some((LOCAL_FILTER, local)) => {
                    manager.local_stages.insert(local.number("stage"));
                }
                Some(_) => manager.has_unknown_filter |= chooses_filters(entry, 0),
                // Its configuration arrives over xDS, or only the name says that it limits.
                None => {
                    let is_named = entry.text_of("name") == FILTER_NAME;
                    manager.has_unknown_filter |= is_named || entry.has("config_discovery");
                }
            }
        }
        let own = value.get("route_config");
        let shared = value.text_at(&["rds", "route_config_name"]);
        let group = self.group(own.map_or(shared, |_| ""));
        let tables = own.map(|table| RouteLevel::new(table, 0));
        group.managers.push(manager);
        group.tables.extend(tables);
    }

    fn loose_config(&mut self, key: Option<&'d str>, value: EnvoyValue<'d>) {
        let mut host = RouteLevel::leaf(value, Vec::new());
        host.configs.push(PerRoute::new(key, value));
        self.loose_hosts().push(host);
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
    let is_one = name == FILTER || name.contains(".http.composite.");
    let mut parts = value.children().map(|(_, part)| part);
    let has_source = value.has("config_discovery") || value.has("dynamic_config");
    is_one || has_source || depth < 16 && parts.any(|part| chooses_filters(part, depth + 1))
}
