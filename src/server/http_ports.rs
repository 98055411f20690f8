//! The services of the HTTP ports: health and JSON calls, statistics and rules, the page for Prometheus.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{
    http::{HttpLimits, serve_http},
    parts::Parts,
    ports::Ports,
};
use crate::{
    service::{
        admin::{self, Health, Statistics},
        budget::Budget,
        grpc,
    },
    store::any::AnyStore,
};

/// Starts to serve the ports, each up to `max_connections`. `json` answers calls in JSON, and explains.
pub(super) fn start(
    parts: &Parts<'_>,
    ports: Ports,
    max_connections: usize,
    (health, statistics): (Health, Statistics),
    json: grpc::Service<AnyStore>,
    budget: &Arc<Budget>,
    tasks: &mut JoinSet<()>,
) {
    let settings = parts.settings;
    let limits = HttpLimits {
        max_connections,
        timeout: settings.listen.http_timeout,
        budget: budget.clone(),
    };
    let service = Arc::new(json);
    let bodies = admin::BodyLimits {
        max_bytes: settings.bounds.max_message_bytes,
        timeout: settings.bounds.message_timeout,
    };
    let routes = admin::http(
        health,
        parts.backend.components(&parts.metrics),
        settings.listen.http_json.then(|| service.clone()),
        statistics.blocking.clone(),
        bodies,
    );
    tasks.spawn(serve_http(ports.http, routes, limits.clone()));
    let routes = admin::debug(parts.rules.clone(), statistics.clone(), service, bodies);
    tasks.spawn(serve_http(ports.debug, routes, limits.clone()));
    if let Some(prometheus) = ports.prometheus {
        let routes = admin::prometheus(statistics, &settings.stats.prometheus_path);
        tasks.spawn(serve_http(prometheus, routes, limits));
    }
}
