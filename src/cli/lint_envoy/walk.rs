//! The walk over a configuration: finds what traps look at, wherever it stands, and has them look.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    actions::{Holder, KnownRules, RateLimitItem},
    document::DocumentValue,
    finding::Finding,
    trap::{Filter, FilterSubject, Report, Scope, Subject},
    traps::TRAPS,
};

/// The scope of values outside of any connection manager, such as the patches of an EnvoyFilter.
const LOOSE: usize = 0;

/// The context of a value, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    Nothing,
    /// The list `clusters` of a bootstrap.
    Clusters,
}

/// The state of a walk: the parts that were seen so far, and the findings.
#[derive(Debug, Default)]
pub(super) struct EnvoyWalk<'d> {
    /// Whether there is a part of an Envoy configuration in it.
    pub(super) has_envoy: bool,
    pub(super) findings: Vec<Finding>,
    scopes: Vec<Scope<'d>>,
    /// Descriptors of route configurations that arrived over xDS, by name.
    route_configs: BTreeMap<String, Vec<RateLimitItem<'d>>>,
    clusters: BTreeMap<String, DocumentValue<'d>>,
    /// Whether the file is a dump of a running Envoy.
    is_dump: bool,
    /// The clusters that filters call for decisions.
    called: BTreeSet<String>,
}

impl<'d> EnvoyWalk<'d> {
    /// Walks over one document.
    pub(super) fn document(&mut self, root: &DocumentValue<'d>) {
        self.gather(root, LOOSE, Under::Nothing);
    }

    /// Has traps look at what only all documents together show.
    pub(super) fn finish(&mut self, rules: Option<&KnownRules<'_>>) {
        for name in std::mem::take(&mut self.called) {
            if let Some(cluster) = self.clusters.get(&name).cloned() {
                let (name, cluster) = (&*name, &cluster);
                self.look(&Subject::Cluster { name, cluster });
            }
        }
        let unclaimed = std::mem::take(&mut self.route_configs);
        for mut scope in std::mem::take(&mut self.scopes) {
            let came = scope
                .route_config
                .as_ref()
                .and_then(|name| unclaimed.get(name));
            if let Some(came) = came {
                scope.descriptors.extend(came.iter().cloned());
                scope.has_routes = true;
            }
            let scope = &scope;
            self.look(&Subject::Scope { scope, rules });
        }
    }

    fn look(&mut self, subject: &Subject<'_, '_>) {
        for trap in TRAPS {
            let mut report = Report {
                trap: trap.name,
                findings: &mut self.findings,
            };
            (trap.look)(subject, &mut report);
        }
    }

    fn scope(&mut self, id: usize) -> &mut Scope<'d> {
        while self.scopes.len() <= id {
            self.scopes.push(Scope::default());
        }
        &mut self.scopes[id]
    }

    /// Collects `value` and everything below it.
    fn gather(&mut self, value: &DocumentValue<'d>, scope: usize, under: Under) {
        let (scope, holder) = self.message(value, scope);
        // A dump repeats the bootstrap's messages, which would be reported twice.
        let dumps = value.list("configs");
        self.is_dump |= !dumps.is_empty();
        if dumps.len() > 1 && dumps.iter().any(is_bootstrap) {
            for dump in dumps.iter().filter(|dump| !is_bootstrap(dump)) {
                self.gather(dump, scope, Under::Nothing);
            }
            return;
        }
        if under == Under::Clusters || value.get("load_assignment").is_some() {
            self.cluster(value);
        }
        self.virtual_host(value);
        self.has_envoy |= value.get("match").is_some() && value.get("route").is_some();
        self.rate_limits(value, scope, holder);
        let is_route_config = scope == LOOSE && value.get("virtual_hosts").is_some();
        let known = self.scope(LOOSE).descriptors.len();
        self.children(value, scope);
        if is_route_config && let Some(name) = value.text_of("name") {
            let found = self.scope(LOOSE).descriptors.split_off(known);
            self.route_configs
                .entry(name.to_owned())
                .or_default()
                .extend(found);
        }
    }

    fn children(&mut self, value: &DocumentValue<'d>, scope: usize) {
        for child in value.children() {
            // A dump repeats these in its listeners.
            if child.path().ends_with("].static_route_configs") {
                continue;
            }
            if child.path().ends_with(".clusters") {
                for item in child.items() {
                    self.gather(&item, scope, Under::Clusters);
                }
            } else {
                self.gather(&child, scope, Under::Nothing);
            }
        }
    }

    /// Collects a message with an `@type`. Returns the scope of everything below it, and whose `rate_limits` it has.
    fn message(&mut self, value: &DocumentValue<'d>, scope: usize) -> (usize, Holder) {
        let Some((name, message)) = value.message() else {
            return (scope, Holder::Route);
        };
        let name = name.strip_prefix("envoy.").unwrap_or_default();
        self.has_envoy |= !name.is_empty();
        match name {
            "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager" => {
                return (self.manager(&message), Holder::Route);
            }
            "extensions.filters.http.ratelimit.v3.RateLimit" => {
                self.http_filter(&message, scope);
                return (scope, Holder::Filter);
            }
            "extensions.filters.http.ratelimit.v3.RateLimitPerRoute" => {
                return (scope, Holder::PerRoute);
            }
            "extensions.filters.network.ratelimit.v3.RateLimit" => self.tcp_filter(&message),
            "extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig" => {
                self.look(&Subject::QuotaFilter(&message));
            }
            "config.cluster.v3.Cluster" => self.cluster(&message),
            _ => {}
        }
        (scope, Holder::Route)
    }

    fn manager(&mut self, manager: &DocumentValue<'d>) -> usize {
        let id = self.scopes.len().max(LOOSE + 1);
        let scope = self.scope(id);
        scope.manager = Some(manager.clone());
        scope.has_routes = manager.get("route_config").is_some();
        let name = manager.at(&["rds", "route_config_name"]);
        scope.route_config = name.and_then(|name| name.text()).map(str::to_owned);
        id
    }

    fn http_filter(&mut self, filter: &DocumentValue<'d>, scope: usize) {
        let is_dump = self.is_dump;
        self.look(&Subject::HttpFilter(FilterSubject { filter, is_dump }));
        self.service(filter);
        let own = Filter {
            stage: filter.number("stage"),
            domain: filter.text_of("domain").map(str::to_owned),
            has_own: !filter.list("rate_limits").is_empty(),
            value: filter.clone(),
        };
        self.scope(scope).filters.push(own);
    }

    fn tcp_filter(&mut self, filter: &DocumentValue<'_>) {
        let is_dump = self.is_dump;
        self.look(&Subject::TcpFilter(FilterSubject { filter, is_dump }));
        self.service(filter);
    }

    /// The service that a filter calls.
    fn service(&mut self, filter: &DocumentValue<'_>) {
        let Some(service) = filter.at(&["rate_limit_service", "grpc_service"]) else {
            return;
        };
        self.look(&Subject::Service(&service));
        if let Some(envoy) = service.get("envoy_grpc") {
            let cluster = envoy.text_of("cluster_name").unwrap_or_default();
            self.called.insert(cluster.to_owned());
        }
    }

    fn cluster(&mut self, cluster: &DocumentValue<'d>) {
        if let Some(name) = cluster.text_of("name") {
            self.has_envoy = true;
            self.clusters.insert(name.to_owned(), cluster.clone());
        }
    }

    fn virtual_host(&mut self, host: &DocumentValue<'_>) {
        if host.get("domains").is_some() && !host.list("routes").is_empty() {
            self.has_envoy = true;
            self.look(&Subject::VirtualHost(host));
        }
    }

    /// Collects `rate_limits`, wherever they stand.
    fn rate_limits(&mut self, value: &DocumentValue<'d>, scope: usize, holder: Holder) {
        for limit in value.list("rate_limits") {
            if limit.get("actions").is_none() {
                continue;
            }
            self.has_envoy = true;
            self.look(&Subject::Item {
                limit: &limit,
                holder,
            });
            let descriptor = RateLimitItem::new(limit, holder, value.text_of("domain"));
            self.scope(scope).descriptors.push(descriptor);
        }
    }
}

/// Whether a part of a dump is the bootstrap.
fn is_bootstrap(dump: &DocumentValue<'_>) -> bool {
    let name = dump.message().map(|(name, _)| name);
    name.is_some_and(|name| name.ends_with(".BootstrapConfigDump"))
}
