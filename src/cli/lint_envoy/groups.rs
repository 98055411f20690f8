//! Lists of items that Envoy reads together, and the filters that read them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ptr,
};

use super::{
    item::{Holder, LimitItem},
    model::{EnvoyModel, LimitFilter, PerRoute, RouteGroup, RouteLevel},
};

/// Most different filters that are compared with one route configuration. With more it is not known what limits.
const MAX_FILTERS: usize = 64;

type ReaderId = (usize, usize);
type Readers<'m, 'd> = BTreeMap<ReaderId, Reader<'m, 'd>>;

/// A filter, with its settings at one place of the routes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'m, 'd> {
    pub(super) filter: &'m LimitFilter<'d>,
    /// The nearest RateLimitPerRoute for it, from here upwards.
    config: Option<&'m PerRoute<'d>>,
    pub(super) is_disabled: bool,
}

impl<'m, 'd> Reader<'m, 'd> {
    pub(super) fn new(filter: &'m LimitFilter<'d>) -> Self {
        Self {
            filter,
            config: None,
            is_disabled: filter.is_disabled,
        }
    }

    /// This filter at a level below.
    pub(super) fn at(self, level: &'m RouteLevel<'d>) -> Self {
        let mut configs = level.configs.iter();
        match configs.find(|config| config.key == Some(self.filter.name)) {
            None => self,
            // A message that only enables or disables leaves the settings of the levels above.
            Some(own) => Self {
                config: own.limits.map(|_| own).or(self.config),
                is_disabled: own.is_disabling,
                ..self
            },
        }
    }

    /// The setting of its RateLimitPerRoute; empty if there is none.
    fn setting(&self, key: &str) -> &'d str {
        let limits = self.config.and_then(|config| config.limits);
        limits.map_or("", |limits| limits.text_of(key))
    }

    pub(super) fn domain(&self) -> &'d str {
        match self.setting("domain") {
            "" => self.filter.domain,
            own => own,
        }
    }

    /// The items that win over those of routes and virtual hosts.
    pub(super) fn own_items(&self) -> &'m [LimitItem<'d>] {
        let config = self.config.filter(|config| !config.items.is_empty());
        config.map_or(&self.filter.items, |config| &config.items)
    }

    /// Whether it reads the items of the virtual host on a route; `None` if those of the route replace them and nothing
    /// says that they should.
    pub(super) fn takes_host(&self, route: &RouteLevel<'_>) -> Option<bool> {
        let mut action = route.value.get("route").into_iter();
        let includes = action.any(|action| action.is_true("include_vh_rate_limits"));
        match self.setting("vh_rate_limits") {
            "INCLUDE" | "1" => Some(true),
            _ if includes => Some(true),
            "IGNORE" | "2" => Some(false),
            "OVERRIDE" | "0" => Some(route.items.is_empty()),
            _ => route.items.is_empty().then_some(true),
        }
    }

    /// With a name for its filter and settings.
    fn with_id(self) -> (ReaderId, Self) {
        let config = self.config.map_or(0, |config| ptr::from_ref(config).addr());
        ((ptr::from_ref(self.filter).addr(), config), self)
    }

    /// Whether it is for an item, wherever that stands.
    pub(super) fn is_for(&self, item: &LimitItem<'_>) -> bool {
        item.holder != Holder::Route || item.stage == self.filter.stage
    }
}

/// Some route configurations and what is common to all users of them.
#[derive(Debug)]
pub(super) struct GroupUse<'m, 'd> {
    pub(super) group: &'m RouteGroup<'d>,
    /// One filter of each kind.
    pub(super) filters: Vec<&'m LimitFilter<'d>>,
    /// Whether some filter can limit in a way that the file does not show.
    pub(super) has_unknown_filter: bool,
    local_stages: BTreeSet<u64>,
}

/// A list of items.
#[derive(Debug)]
pub(super) struct ItemList<'m, 'd> {
    /// Without those that are only for local rate limit filters.
    pub(super) items: Vec<&'m LimitItem<'d>>,
    /// Further items that Envoy reads with them.
    pub(super) beside: &'m [LimitItem<'d>],
    /// The filters that read them, with their settings there.
    pub(super) readers: Readers<'m, 'd>,
    /// Whether these are items of a route that replace those of the virtual host, and nothing says so.
    pub(super) replaces_host: bool,
    /// `None` for items of a filter.
    pub(super) group: Option<&'m GroupUse<'m, 'd>>,
}

impl<'d> ItemList<'_, 'd> {
    /// The domains whose rules limit an item.
    pub(super) fn domains(&self, item: &LimitItem<'_>) -> BTreeSet<&'d str> {
        let readers = self.readers.values();
        let readers = readers.filter(|reader| reader.is_for(item));
        readers.map(Reader::domain).collect()
    }

    /// Whether an item that none of these domains limits is possibly for another filter.
    pub(super) fn is_uncertain(&self, item: &LimitItem<'_>) -> bool {
        let mut group = self.group.into_iter();
        group.any(|group| group.has_unknown_filter || group.is_local(item))
    }
}

impl<'d> EnvoyModel<'d> {
    /// All lists of items, those of filters included.
    pub(super) fn lists<'m>(&'m self, uses: &'m [GroupUse<'m, 'd>]) -> Vec<ItemList<'m, 'd>> {
        let of_filters = self.filters().map(|filter| ItemList {
            items: filter.items.iter().collect(),
            beside: &[],
            readers: [Reader::new(filter).with_id()].into(),
            replaces_host: false,
            group: None,
        });
        let mut lists: Vec<_> = uses.iter().flat_map(GroupUse::lists).collect();
        lists.extend(of_filters.filter(|list| !list.items.is_empty()));
        lists
    }
}

impl<'m, 'd> GroupUse<'m, 'd> {
    pub(super) fn new(group: &'m RouteGroup<'d>) -> Self {
        let managers = || group.managers.iter();
        let kind = |filter: &LimitFilter<'d>| {
            let names = (filter.name, filter.domain, filter.namespace());
            let flags = (filter.items.is_empty(), filter.is_disabled);
            (names, filter.stage, flags)
        };
        let filters = managers().flat_map(|manager| &manager.filters);
        let kinds: BTreeMap<_, _> = filters.map(|filter| (kind(filter), filter)).collect();
        let configs = group.tables.iter().flat_map(RouteLevel::all_configs);
        let configs = configs.filter_map(|config| config.local_stage);
        let local = managers().flat_map(|manager| manager.local_stages.iter().copied());
        let is_unknown = managers().any(|manager| manager.has_unknown_filter);
        Self {
            group,
            has_unknown_filter: is_unknown || kinds.len() > MAX_FILTERS,
            filters: kinds.into_values().take(MAX_FILTERS).collect(),
            local_stages: local.chain(configs).collect(),
        }
    }

    pub(super) fn has_stage(&self, stage: u64) -> bool {
        self.filters.iter().any(|filter| filter.stage == stage)
    }

    /// Whether a local rate limit filter reads an item, too.
    fn is_local(&self, item: &LimitItem<'_>) -> bool {
        item.holder == Holder::Route && self.local_stages.contains(&item.stage)
    }

    /// The filters at a route configuration.
    pub(super) fn readers(&self, table: &'m RouteLevel<'d>) -> Vec<Reader<'m, 'd>> {
        let at_table = |filter: &&'m LimitFilter<'d>| Reader::new(filter).at(table);
        self.filters.iter().map(at_table).collect()
    }

    /// All lists of items of routes, virtual hosts and settings.
    fn lists(&'m self) -> Vec<ItemList<'m, 'd>> {
        let mut lists = Vec::new();
        let mut add = |items: &'m [LimitItem<'d>], beside, replaces_host, readers| {
            let is_read =
                |item: &&LimitItem<'_>| !self.is_local(item) || self.has_stage(item.stage);
            let items: Vec<_> = items.iter().filter(is_read).collect();
            if !items.is_empty() {
                lists.push(ItemList {
                    items,
                    beside,
                    readers,
                    replaces_host,
                    group: Some(self),
                });
            }
        };
        for table in &self.group.tables {
            let at_table = self.readers(table);
            let mut configs = table.all_configs();
            configs.retain(|config| !config.items.is_empty());
            for own in configs {
                let (config, name) = (Some(own), own.key);
                let readers = at_table.iter();
                let readers = readers.filter(|of| name.is_none_or(|name| name == of.filter.name));
                let readers = readers.map(|reader| Reader { config, ..*reader }.with_id());
                add(&own.items, &[], false, readers.collect());
            }
            for host in &table.below {
                let at_host = at_table.iter().map(|reader| reader.at(host).with_id());
                // Equal settings are kept once, however many routes or clusters have them.
                let at_host: Readers<'_, '_> = at_host.collect();
                let mut all = at_host.clone();
                let has_own = !host.items.is_empty();
                let routes = host.below.iter();
                for route in routes.filter(|route| has_own || !route.items.is_empty()) {
                    let mut readers = Readers::new();
                    for reader in at_host.values().map(|reader| reader.at(route)) {
                        let of_clusters = route.below.iter().map(|cluster| reader.at(cluster));
                        readers.extend(of_clusters.chain([reader]).map(Reader::with_id));
                    }
                    let takes = || readers.values().map(|reader| reader.takes_host(route));
                    let is_beside = takes().any(|takes| takes == Some(true));
                    let beside = if is_beside { &*host.items } else { &[] };
                    let is_possible = has_own && !readers.is_empty();
                    let replaces_host = is_possible && takes().all(|takes| takes.is_none());
                    all.extend(readers.iter().map(|(id, reader)| (*id, *reader)));
                    add(&route.items, beside, replaces_host, readers);
                }
                add(&host.items, &[], false, all);
            }
        }
        lists
    }
}
