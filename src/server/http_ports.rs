//! Starts the HTTP ports: one for health and JSON calls, one for statistics and rules, one for Prometheus.

use std::{sync::Arc, time::Duration};

use super::{
    http::{HttpLimits, serve_http},
    parts::Parts,
    ports::Ports,
    settings_page::settings_page,
    tasks::{OwnedTasks, Task},
};
use crate::{
    service::{
        admin::{self, BodyLimits, Counters, DebugPages, Health, Snapshots, Statistics},
        grpc,
        held_bytes::HeldBound,
    },
    store::any::AnyStore,
};

/// How long a request, its reply and the wait for the next request can take together.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts to serve the ports, each with up to `max_connections`. `json` answers calls in JSON, and explains them.
pub(super) fn start(
    parts: &Parts<'_>,
    ports: Ports,
    max_connections: usize,
    (health, statistics): (Health, Statistics),
    json: grpc::Service<AnyStore>,
    bound: &Arc<HeldBound>,
    tasks: &mut OwnedTasks,
) {
    let settings = parts.settings;
    let limits = HttpLimits {
        max_connections,
        timeout: HTTP_TIMEOUT,
        bound: bound.clone(),
    };
    let service = Arc::new(json);
    let bodies = BodyLimits {
        max_bytes: settings.bounds.max_message_bytes,
        timeout: settings.bounds.message_timeout,
    };
    let counters = counters(parts, &service, bodies, &statistics);
    let components = parts.backend.components(&parts.metrics);
    let snapshots = Snapshots::new(parts.rules.clone(), statistics.clone(), components.clone());
    let routes = admin::http(
        health,
        components,
        settings.listen.http_json.then(|| service.clone()),
        statistics.blocking.clone(),
        bodies,
    );
    let serving = serve_http(ports.http, routes, limits.clone());
    tasks.start(Task::HttpListener, serving);
    let routes = admin::debug(DebugPages {
        rules: parts.rules.clone(),
        statistics: statistics.clone(),
        talkers: parts.talkers.clone(),
        counters,
        snapshots,
        settings: settings_page(&settings.resolved),
        service,
        bodies,
        hosts: settings.listen.debug_hosts.clone().into(),
    });
    let serving = serve_http(ports.debug, routes, limits.clone());
    tasks.start(Task::DebugListener, serving);
    if let Some(prometheus) = ports.prometheus {
        let routes = admin::prometheus(statistics, &settings.stats.prometheus_path);
        let serving = serve_http(prometheus, routes, limits);
        tasks.start(Task::PrometheusListener, serving);
    }
}

/// The parts that `/counters` of the debug port needs.
fn counters(
    parts: &Parts<'_>,
    service: &grpc::Service<AnyStore>,
    bodies: BodyLimits,
    statistics: &Statistics,
) -> Counters {
    let settings = parts.settings;
    Counters {
        rules: parts.rules.clone(),
        store: service.limiter.store.clone(),
        bounds: service.bounds,
        bodies,
        clock: service.clock.clone(),
        blocking: statistics.blocking.clone(),
        access: settings.listen.change_access(),
        leases: parts.leases.clone(),
    }
}
