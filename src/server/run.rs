//! Wiring: binds the ports, starts the workers, owns every task, drains.
//!
//! The thread that calls [`run`] is the dispatcher: it accepts connections and distributes them to the workers in
//! turn, serves the HTTP ports, watches the rules and waits for signals. Each worker is a thread with a
//! current-thread runtime, and a decision never leaves its worker.

use super::backend::{StoreBackend, WorkerStore, counts_locally, state_file, worker_count};
use super::error::ServerError;
use super::health::HealthPublisher;
use super::rules::RuleSource;
use super::runtime::runtime;
use super::services::{others, service, traces};
use super::signals::Signals;
use super::statistics::renderer;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::JoinSet,
};

use super::http::{HttpLimits, serve_http};
use super::ports::{Addresses, GrpcListener, Ports};

use super::worker::{Keepalive, Phase, Serving, Worker, Workers, accept};

use crate::{
    control::reload::Intake,
    core::limit::{NearRatio, OnStoreLoss},
    observe::metrics::{Metrics, statsd},
    service::{
        admin,
        budget::Budget,
        grpc::{self, unary::Dispatcher},
        limiter::Rules,
    },
    settings::serve::Settings,
    store::{
        memory::MemoryStore,
        redis::{servers::Servers, topology::TopologyWatcher},
        replicas::Replicas,
    },
};

/// Interval between removals of expired counters.
const SWEEP: Duration = Duration::from_secs(1);

/// Longest time for sending the last spans.
const FLUSH: Duration = Duration::from_secs(5);

/// Serves until a stop signal arrives, then drains.
///
/// # Errors
///
/// If a port cannot be bound, the rules are invalid, or a worker dies.
pub fn run(settings: &Settings) -> Result<(), ServerError> {
    let runtime = runtime()?;
    let served = runtime.block_on(serve(settings));
    // A blocked task, such as a name lookup, must not delay the exit.
    runtime.shutdown_background();
    served
}

pub(super) async fn serve(settings: &Settings) -> Result<(), ServerError> {
    let near_ratio = NearRatio(settings.decisions.near_limit_ratio);
    let metrics = Metrics::new(near_ratio, settings.stats.max_metric_names);
    // One for each worker, and one for `/json`, which runs on this thread.
    let metrics = Arc::new(metrics.for_cores(worker_count(settings) + 1));
    let max_connections = super::file_limit::connection_limits(
        settings.bounds.max_connections,
        worker_count(settings),
    );
    let sinks = settings.stats.sinks()?;
    let rules = Rules::default();
    let intake = Intake::new(rules.clone(), metrics.clone());
    let source = RuleSource::new(settings, &intake, &metrics)?;
    let backend = StoreBackend::new(settings, &metrics)?;
    let rotation = super::tls::Rotation::new(&settings.tls)?;
    let ports = Ports::bind(settings).await?;
    let rotation = rotation.filter(|_| match settings.listen.grpc_socket() {
        None => true,
        Some(_) => {
            tracing::warn!("the Unix socket never has TLS; the TLS settings have no effect");
            false
        }
    });
    // Before the ports are announced: an operator who reads that line may send a signal or change a rule at once.
    let mut signals = Signals::new()?;
    let watching = source.watch();
    let tls = rotation.as_ref().map(super::tls::Rotation::tls);
    let tls_watch = rotation.map(super::tls::Rotation::watch);

    let has_domains = intake.follow_domains();
    let (open, is_open) = watch::channel(false);
    let mut conditions = vec![is_open];
    if settings.healthy_with_rules_only {
        conditions.push(has_domains);
    }
    if settings.redis.health_follows_redis {
        conditions.extend(backend.servers().map(Servers::health));
    }
    let (mut health, health_service) = HealthPublisher::new(conditions);
    health.update().await;

    let (phase, phases) = watch::channel(Phase::Serving);
    let mut workers = Workers::default();
    let (tracer, exporter) = traces(&settings.traces, &metrics)?;
    let authority_log = super::authority::AuthorityLog::new(metrics.clone());
    let budget = Budget::new(settings.bounds.max_held_bytes, metrics.clone());
    let service = |core| {
        let WorkerStore {
            store,
            batchers,
            reconcilers,
        } = backend.worker_store(settings, &metrics);
        let recorder = metrics.clone().recorder(core);
        let clock = backend.clock(settings);
        let service = service(store, &rules, recorder, &tracer, clock, settings);
        (service, batchers, reconcilers)
    };
    for core in 0..worker_count(settings) {
        let (service, batchers, _) = service(core);
        let others = others().add_service(health_service.clone());
        let serving = Serving {
            dispatcher: Dispatcher {
                method: Arc::new(service),
                max_message_bytes: settings.bounds.max_message_bytes,
                message_timeout: settings.bounds.message_timeout,
                max_header_bytes: settings.bounds.max_header_bytes,
                others: others.prepare(),
            },
            tls: tls.clone(),
            bounds: settings.bounds,
            authority_log: authority_log.clone(),
            budget: budget.clone(),
            keepalive: Keepalive::new(&settings.listen),
            first_call: settings.listen.first_call_timeout,
            max_age: settings.listen.max_connection_age,
            grace: settings.listen.max_connection_age_grace,
            phases: phases.clone(),
        };
        workers.start(Worker { serving, batchers })?;
    }

    let (stop_exporting, stopped) = oneshot::channel();
    let mut exporting = JoinSet::new();
    if let Some(exporter) = exporter {
        exporting.spawn(exporter.run(stopped));
    }

    // These end with the process.
    let mut tasks = JoinSet::new();
    tasks.spawn(watching);
    if let Some(watch) = tls_watch {
        tasks.spawn(watch.run());
    }
    tasks.spawn(sweep(rules.clone(), backend.memory()));
    let statistics = admin::Statistics {
        metrics: metrics.clone(),
        memory: backend.memory(),
        renderer: Arc::new(renderer(&settings.stats)),
        blocking: admin::BlockingQueue::default(),
    };
    for sink in sinks {
        let statistics = statistics.clone();
        let sink = statsd::Sink::new(sink);
        tasks.spawn(async move { match sink.run(|| statistics.samples()).await {} });
    }
    if backend.servers().next().is_some() {
        let metrics = metrics.clone();
        tasks.spawn(super::cpu_quota::watch(move || metrics.own_pauses().total));
    }
    for servers in backend.servers() {
        let topology = TopologyWatcher::new(servers.clone(), &settings.redis.options());
        tasks.spawn(async move { match topology.run().await {} });
    }
    let (json_service, batchers, reconcilers) = service(worker_count(settings));
    for batchers in batchers {
        tasks.spawn(async move { match batchers.run().await {} });
    }
    if let Some(first) = reconcilers.first()
        && settings.loss.replicas.fixed().is_none()
    {
        let state = state_file(settings);
        let number = first.loss.replicas().clone();
        let replicas = Replicas::new(first.store.clone(), number, metrics.loss.clone(), state);
        let clock = backend.clock(settings);
        let mut counts_locally = counts_locally(rules.clone());
        let is_default: OnStoreLoss = settings.loss.on_store_loss.into();
        let is_needed = move || is_default == OnStoreLoss::Local || counts_locally();
        let looking = replicas.run(move || clock.now(), is_needed);
        tasks.spawn(async move { match looking.await {} });
    }
    for store in reconcilers {
        let clock = backend.clock(settings);
        let returning = store.run(move || clock.now());
        tasks.spawn(async move { match returning.await {} });
    }
    let components = backend.components(&rules, &metrics);
    let http = admin::http(
        health.http.clone(),
        components,
        settings.listen.http_json.then_some(json_service),
        statistics.blocking.clone(),
        admin::BodyLimits {
            max_bytes: settings.bounds.max_message_bytes,
            timeout: settings.bounds.message_timeout,
        },
    );
    let addresses = ports.addresses()?;
    let limits = HttpLimits {
        max_connections: max_connections.http,
        timeout: settings.listen.http_timeout,
        budget: budget.clone(),
    };
    tasks.spawn(serve_http(ports.http, http, limits.clone()));
    if let Some(debug) = ports.debug {
        let routes = admin::debug(rules.clone(), statistics.clone());
        tasks.spawn(serve_http(debug, routes, limits.clone()));
    }
    if let Some(prometheus) = ports.prometheus {
        let routes = admin::prometheus(statistics, &settings.stats.prometheus_path);
        tasks.spawn(serve_http(prometheus, routes, limits));
    }

    let mut following = JoinSet::new();
    for condition in health.conditions.clone() {
        following.spawn(health.clone().follow(condition));
    }
    let mut has_rules = intake.follow_rules();
    if !settings.start_without_rules {
        tokio::select! {
            // The sender lives as long as this function.
            _ = has_rules.wait_for(|has_rules| *has_rules) => {}
            signal = signals.next() => {
                tracing::info!(signal, "stopped while still waiting for rules");
                return Ok(());
            }
            () = workers.first_end() => return Err(ServerError::WorkerStopped),
        }
    }
    let grpc = GrpcListener::bind(settings).await?;
    open.send_replace(true);
    health.update().await;
    announce(&grpc, &addresses, &backend, &rules, workers.count());
    let max_connections = Arc::new(Semaphore::new(max_connections.grpc));
    let mut accepting = JoinSet::new();
    accepting.spawn(accept(grpc, workers.senders(), max_connections, budget));

    tokio::select! {
        signal = signals.next() => tracing::info!(signal, "stopping"),
        () = workers.first_end() => return Err(ServerError::WorkerStopped),
    }

    following.shutdown().await;
    health.set(false).await;
    // A load balancer needs a moment to see that; until then calls still arrive and are answered.
    tokio::select! {
        () = tokio::time::sleep(settings.process.drain_delay) => {}
        _ = signals.next() => tracing::info!("second signal: the drain delay ends early"),
    }
    accepting.shutdown().await;
    health.close().await;
    phase.send_replace(Phase::Draining);
    let drained = tokio::time::timeout(settings.process.drain_timeout, workers.all_end());
    if drained.await.is_err() {
        tracing::warn!("some calls were still running at the end of the drain timeout");
    }
    // Without tracing there is no receiver.
    let _ = stop_exporting.send(());
    let flushed = tokio::time::timeout(FLUSH, exporting.join_next());
    if flushed.await.is_err() {
        tracing::warn!("some spans could not be sent before the exit");
    }
    tracing::info!("stopped");
    Ok(())
}

/// Logs the ready line: addresses, store, number of rules.
fn announce(
    grpc: &GrpcListener,
    addresses: &Addresses,
    backend: &StoreBackend,
    rules: &Rules,
    workers: usize,
) {
    tracing::info!(
        %grpc,
        http = addresses.http,
        debug = addresses.debug,
        store = backend.name(),
        rules = rules.current().map_or(0, |rules| rules.matcher.rules().len()),
        workers,
        "tollgate is ready"
    );
}

/// Frees unused rules and expired counters.
async fn sweep(rules: Rules, store: Option<Arc<MemoryStore>>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let unused = rules.take_unused();
        if !unused.is_empty() {
            // Not on this thread, which has connections to accept.
            let _ = tokio::task::spawn_blocking(move || drop(unused)).await;
        }
        if let Some(store) = &store {
            store.sweep(grpc::now());
        }
    }
}
