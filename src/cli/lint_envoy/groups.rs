//! Lists of items that Envoy reads together, and the filters that read them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    item::{Holder, LimitItem},
    model::{EnvoyModel, HttpFilter, PerRoute, RouteLevel, Scope},
};

/// Most different filters that are compared with one route configuration.
const MAX_FILTERS: usize = 64;

/// A route configuration, and the filters of all connection managers that use it.
#[derive(Debug)]
pub(super) struct TableUse<'m, 'd> {
    pub(super) table: &'m RouteLevel<'d>,
    /// One of each kind.
    pub(super) filters: Vec<&'m HttpFilter<'d>>,
    /// Whether some filter can limit in a way that the file does not show.
    pub(super) has_unknown_filter: bool,
    local_stages: BTreeSet<u64>,
}

/// A list of items, each with the domains whose rules limit it.
#[derive(Debug)]
pub(super) struct ItemList<'m, 'd> {
    pub(super) items: Vec<(&'m LimitItem<'d>, BTreeSet<&'d str>)>,
    /// Further items that Envoy reads with them.
    pub(super) beside: &'m [LimitItem<'d>],
    /// The metadata that the filters write.
    pub(super) namespaces: BTreeSet<&'d str>,
}

impl<'d> EnvoyModel<'d> {
    /// All tables with their users.
    pub(super) fn uses(&self) -> Vec<TableUse<'_, 'd>> {
        let mut users: Vec<Vec<&Scope<'d>>> = vec![Vec::new(); self.tables.len()];
        for scope in &self.scopes {
            for table in &scope.tables {
                users[*table].push(scope);
            }
        }
        let uses = self.tables.iter().zip(users);
        uses.map(|(table, scopes)| TableUse::new(table, &scopes))
            .collect()
    }

    /// All lists of items, those of filters included.
    pub(super) fn lists<'m>(&'m self, uses: &[TableUse<'m, 'd>]) -> Vec<ItemList<'m, 'd>> {
        let alone = |items: &'m [LimitItem<'d>], domain, namespace: Option<&'d str>| ItemList {
            items: items
                .iter()
                .map(|item| (item, BTreeSet::from([domain])))
                .collect(),
            beside: &[],
            namespaces: namespace.into_iter().collect(),
        };
        let http = self.scopes.iter().flat_map(|scope| &scope.filters);
        let http = http.map(|filter| alone(&filter.items, filter.domain, Some(filter.namespace())));
        let tcp = self.tcp_filters.iter();
        let tcp = tcp.map(|(filter, items)| alone(items, filter.text_of("domain"), None));
        let of_tables = uses.iter().flat_map(TableUse::lists);
        let mut lists: Vec<_> = of_tables.chain(http).chain(tcp).collect();
        lists.retain(|list| !list.items.is_empty());
        lists
    }
}

impl<'m, 'd> TableUse<'m, 'd> {
    fn new(table: &'m RouteLevel<'d>, scopes: &[&'m Scope<'d>]) -> Self {
        let local = scopes.iter().flat_map(|scope| &scope.local_stages);
        let configs = table.all_configs().into_iter();
        let of_routes = configs.filter_map(|config| config.local_stage);
        let filters = scopes.iter().flat_map(|scope| &scope.filters);
        let kind = |filter: &HttpFilter<'d>| {
            let names = (filter.name, filter.domain, filter.namespace());
            (names, filter.stage, filter.items.is_empty())
        };
        let kinds: BTreeMap<_, _> = filters.map(|filter| (kind(filter), filter)).collect();
        Self {
            table,
            filters: kinds.into_values().take(MAX_FILTERS).collect(),
            has_unknown_filter: scopes.iter().any(|scope| scope.has_unknown_filter),
            local_stages: local.copied().chain(of_routes).collect(),
        }
    }

    /// Whether an item is not for a local rate limit filter only.
    pub(super) fn is_asked(&self, item: &LimitItem<'_>) -> bool {
        item.holder != Holder::Route
            || !self.local_stages.contains(&item.stage)
            || self.filters.iter().any(|filter| filter.stage == item.stage)
    }

    /// All lists of items in the table, without those for local rate limit filters.
    pub(super) fn lists(&self) -> Vec<ItemList<'m, 'd>> {
        let mut lists = Vec::new();
        for config in self.table.all_configs() {
            let is_read = |filter: &HttpFilter<'_>| config.key.is_none_or(|key| key == filter.name);
            lists.push(self.list(&config.items, &[], config.domain(), is_read));
        }
        let domain_in = |configs: &[PerRoute<'d>]| configs.iter().find_map(PerRoute::domain);
        for host in &self.table.below {
            let domain = domain_in(&host.configs).or_else(|| domain_in(&self.table.configs));
            lists.push(self.list(&host.items, &[], domain, |_| true));
            for route in &host.below {
                let domain = domain_in(&route.configs).or(domain);
                let beside = Some(&*host.items).filter(|_| route.includes_host());
                let beside = beside.unwrap_or_default();
                lists.push(self.list(&route.items, beside, domain, |_| true));
            }
        }
        lists.retain(|list| !list.items.is_empty());
        lists
    }

    /// A list that some filters read, which ask in `domain` if there is one.
    fn list(
        &self,
        items: &'m [LimitItem<'d>],
        beside: &'m [LimitItem<'d>],
        domain: Option<&'d str>,
        is_read: impl Fn(&HttpFilter<'_>) -> bool,
    ) -> ItemList<'m, 'd> {
        let filters = self.filters.iter().filter(|filter| is_read(filter));
        let readers = filters.take(if items.is_empty() { 0 } else { MAX_FILTERS });
        let domains = |item: &LimitItem<'_>| -> BTreeSet<_> {
            let is_of_stage = |filter: &&&HttpFilter<'_>| {
                item.holder != Holder::Route || item.stage == filter.stage
            };
            match domain {
                Some(domain) => [domain].into(),
                None => readers
                    .clone()
                    .filter(is_of_stage)
                    .map(|filter| filter.domain)
                    .collect(),
            }
        };
        let asked = items.iter().filter(|item| self.is_asked(item));
        ItemList {
            items: asked.map(|item| (item, domains(item))).collect(),
            beside,
            namespaces: readers.clone().map(|filter| filter.namespace()).collect(),
        }
    }
}
