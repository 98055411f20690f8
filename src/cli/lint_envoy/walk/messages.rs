//! The messages with an `@type` that a walk knows: connection managers, filters and clusters.

use super::{EnvoyWalk, LOOSE, WalkPlace};
use crate::cli::lint_envoy::{
    actions::Holder,
    document::DocumentValue,
    trap::{Filter, FilterSubject, Subject},
    traps::resembles_filter,
};

impl<'d> EnvoyWalk<'d> {
    /// Collects a message with an `@type`. Returns the scope of everything below it, and whose `rate_limits` it has.
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
                return (self.manager(&message), Holder::Route);
            }
            "extensions.filters.http.ratelimit.v3.RateLimit" => {
                self.http_filter(&message, place);
                return (scope, Holder::Filter);
            }
            "extensions.filters.http.ratelimit.v3.RateLimitPerRoute" => {
                return (scope, Holder::PerRoute);
            }
            "extensions.filters.network.ratelimit.v3.RateLimit" => self.tcp_filter(&message),
            "extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig" => {
                self.seen.filters += 1;
                self.look(&Subject::QuotaFilter(&message));
            }
            "config.cluster.v3.Cluster" => self.cluster(&message),
            _ if is_typed_config(value) && resembles_filter(full_name) => {
                self.has_envoy = true;
                self.scope(scope).has_unknown_filter = true;
                self.look(&Subject::UnknownFilter {
                    filter: value,
                    name: full_name,
                });
            }
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

    fn http_filter(&mut self, filter: &DocumentValue<'d>, place: WalkPlace<'_, 'd>) {
        let is_dump = self.is_dump;
        self.seen.filters += 1;
        self.look(&Subject::HttpFilter(FilterSubject { filter, is_dump }));
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
        let is_dump = self.is_dump;
        self.seen.filters += 1;
        self.look(&Subject::TcpFilter(FilterSubject { filter, is_dump }));
        self.service(filter);
    }

    /// The service that a filter calls.
    fn service(&mut self, filter: &DocumentValue<'d>) {
        let Some(service) = filter.at(&["rate_limit_service", "grpc_service"]) else {
            return;
        };
        self.look(&Subject::Service(&service));
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
            self.clusters.insert(name.to_owned(), cluster.clone());
        }
    }
}

/// Whether it is the configuration of a filter in a list of filters.
fn is_typed_config(value: &DocumentValue<'_>) -> bool {
    let path = value.path();
    path.ends_with(".typed_config") || path.ends_with(".typedConfig")
}
