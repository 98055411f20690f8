//! Wiring: binds the ports, starts the workers, owns every task, drains.
//!
//! The thread that calls [`run`] is the dispatcher: it accepts connections and distributes them to the workers in
//! turn, serves the HTTP ports, watches the rules and waits for signals. Each worker is a thread with a
//! current-thread runtime, and a decision never leaves its worker.

use std::{
    io,
    num::NonZeroU32,
    path::Path,
    pin::Pin,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, oneshot, watch},
    task::JoinSet,
};
use tonic::service::Routes;
use tonic_health::{
    ServingStatus,
    pb::health_server::{Health as HealthService, HealthServer},
    server::HealthReporter,
};

mod authority;
mod bare;
mod descriptors;
mod http;
mod ports;
mod quota;
mod tls;
mod worker;

#[doc(hidden)]
pub use authority::mend;
pub use bare::serve_method;
use http::{HttpLimits, serve_http};
use ports::{Addresses, GrpcListener, Ports};
pub use tls::TlsError;
use worker::{Keepalive, Phase, Serving, Worker, Workers, accept};

use crate::{
    admin::{self, Health},
    causes::chain,
    config::{Fault, Options, Problem},
    grpc::{self, proto::DESCRIPTORS, unary::Door, wire},
    held::Budget,
    limit::{Modes, NearRatio, OnStoreLoss},
    limiter::{Limiter, RuleSet, Rules},
    metrics::{
        Metrics, Recorder,
        mapper::{Mapper, ResponseTime},
        mogrifier::MogrifierError,
        prometheus::Renderer,
        statsd,
    },
    reload::{Intake, Reloader},
    settings::{self, Settings, redis::Clock, stats::Stats, traces::TracesError},
    store::{
        AnyStore,
        memory::MemoryStore,
        on_loss::{self, Loss, OnLoss, Return},
        over_limit_cache::{Caches, OverLimitCache},
        per_second::PerSecond,
        redis::{self, Batchers, RedisStore, Servers},
        replicas::{Replicas, StateFile},
    },
    traces::{self, Tracer, export::Exporter},
    xds::{self, XdsError},
};

/// Service names in `grpc.health.v1`.
const HEALTH_NAMES: [&str; 2] = ["", "ratelimit"];

/// Interval between removals of expired counters.
const SWEEP: Duration = Duration::from_secs(1);

/// Longest time for sending the last spans.
const FLUSH: Duration = Duration::from_secs(5);

/// Why the server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address} for {purpose}")]
    Bind {
        purpose: &'static str,
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("the rules in {source_name} cannot be used:\n{}", list(problems))]
    Rules {
        source_name: String,
        problems: Vec<Problem>,
    },
    #[error("--on-store-loss: {0}")]
    UnknownReplicas(Fault),
    #[error(transparent)]
    Redis(#[from] redis::BadUrl),
    #[error(transparent)]
    Mogrifier(#[from] MogrifierError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("rules cannot come from the control plane")]
    Xds(#[from] XdsError),
    #[error(transparent)]
    Traces(#[from] TracesError),
    #[error("a worker stopped")]
    WorkerStopped,
    #[error("cannot start a thread or a runtime, or wait for signals")]
    System(#[from] io::Error),
}

fn list(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems
        .iter()
        .map(|problem| format!("  {problem}"))
        .collect();
    lines.join("\n")
}

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

/// A current-thread runtime: a task never moves to another core, so no wake-up crosses cores.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

async fn serve(settings: &Settings) -> Result<(), ServerError> {
    let near_ratio = NearRatio(settings.decisions.near_limit_ratio);
    let metrics = Metrics::new(near_ratio, settings.stats.max_metric_names);
    // One for each worker, and one for `/json`, which runs on this thread.
    let metrics = Arc::new(metrics.for_cores(worker_count(settings) + 1));
    let places = descriptors::places(settings.bounds.max_connections, worker_count(settings));
    let sinks = settings.stats.sinks()?;
    let rules = Rules::default();
    let intake = Intake::new(rules.clone(), metrics.clone());
    let source = RuleSource::new(settings, &intake, &metrics)?;
    let backend = Backend::new(settings, &metrics)?;
    let rotation = tls::Rotation::new(&settings.tls)?;
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
    let tls = rotation.as_ref().map(tls::Rotation::tls);
    let tls_watch = rotation.map(tls::Rotation::watch);

    let has_domains = intake.follow_domains();
    let (open, is_open) = watch::channel(false);
    let mut conditions = vec![is_open];
    if settings.healthy_with_rules_only {
        conditions.push(has_domains);
    }
    if settings.redis.health_follows_redis {
        conditions.extend(backend.servers().map(Servers::health));
    }
    let (mut health, health_service) = HealthDoors::new(conditions);
    health.update().await;

    let (phase, phases) = watch::channel(Phase::Serving);
    let mut workers = Workers::default();
    let (tracer, exporter) = traces(&settings.traces, &metrics)?;
    let notes = authority::Notes::new(metrics.clone());
    let budget = Budget::new(settings.bounds.max_held_bytes, metrics.clone());
    let service = |core| {
        let Doors {
            store,
            batchers,
            returns,
        } = backend.doors(settings, &metrics);
        let recorder = metrics.clone().recorder(core);
        let clock = backend.clock(settings);
        let service = service(store, &rules, recorder, &tracer, clock, settings);
        (service, batchers, returns)
    };
    for core in 0..worker_count(settings) {
        let (service, batchers, _) = service(core);
        let others = others().add_service(health_service.clone());
        let serving = Serving {
            door: Door {
                method: Arc::new(service),
                max_message_bytes: settings.bounds.max_message_bytes,
                message_timeout: settings.bounds.message_timeout,
                max_header_bytes: settings.bounds.max_header_bytes,
                others: others.prepare(),
            },
            tls: tls.clone(),
            bounds: settings.bounds,
            notes: notes.clone(),
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
        desk: admin::Desk::default(),
    };
    for sink in sinks {
        let statistics = statistics.clone();
        let sink = statsd::Sink::new(sink);
        tasks.spawn(async move { match sink.run(|| statistics.samples()).await {} });
    }
    if backend.servers().next().is_some() {
        let metrics = metrics.clone();
        tasks.spawn(quota::watch(move || metrics.own_pauses().total));
    }
    for servers in backend.servers() {
        let guide = servers.guide(&settings.redis.options());
        tasks.spawn(async move { match guide.run().await {} });
    }
    let (json_service, batchers, returns) = service(worker_count(settings));
    for batchers in batchers {
        tasks.spawn(async move { match batchers.run().await {} });
    }
    if let Some(first) = returns.first()
        && settings.loss.replicas.fixed().is_none()
    {
        let state = state_file(settings);
        let replicas = Replicas::new(first.store.clone(), metrics.loss.clone(), state);
        let clock = backend.clock(settings);
        let mut counts_locally = counts_locally(rules.clone());
        let is_default: OnStoreLoss = settings.loss.on_store_loss.into();
        let is_wanted = move || is_default == OnStoreLoss::Local || counts_locally();
        let looking = replicas.run(move || clock.now(), is_wanted);
        tasks.spawn(async move { match looking.await {} });
    }
    for store in returns {
        let clock = backend.clock(settings);
        let returning = store.run(move || clock.now());
        tasks.spawn(async move { match returning.await {} });
    }
    let components = backend.components(&rules, &metrics);
    let http = admin::http(
        health.http.clone(),
        components,
        settings.listen.http_json.then_some(json_service),
        statistics.desk.clone(),
        admin::Bodies {
            max_bytes: settings.bounds.max_message_bytes,
            timeout: settings.bounds.message_timeout,
        },
    );
    let addresses = ports.addresses()?;
    let limits = HttpLimits {
        places: places.http,
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
    let places = Arc::new(Semaphore::new(places.grpc));
    let mut accepting = JoinSet::new();
    accepting.spawn(accept(grpc, workers.doors(), places, budget));

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
    backend: &Backend,
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

/// The source of the rules.
enum RuleSource {
    Files(Reloader),
    ControlPlane(Box<xds::Client>),
}

impl RuleSource {
    /// Loads files at once. A failure is fatal, unless the settings allow a start without rules.
    fn new(
        settings: &Settings,
        intake: &Intake,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ServerError> {
        let options = Options {
            merge_domains: settings.merge_domains,
            strict_matching: settings.strict_matching,
            key_format: settings.redis.key_format.into(),
            on_store_loss: settings.loss.on_store_loss.into(),
            lacks_replicas: settings.lacks_replicas(),
        };
        if options.lacks_replicas && options.on_store_loss == OnStoreLoss::Local {
            return Err(ServerError::UnknownReplicas(Fault::UnknownReplicas));
        }
        if let Some(xds) = settings.xds.options() {
            let client = xds::Client::new(xds, options, intake.clone(), metrics.clone())?;
            let server = client.server();
            if settings.start_without_rules {
                tracing::info!(
                    "the rules come from {server}; calls get UNAVAILABLE until the first push"
                );
            } else {
                tracing::info!(
                    "the rules come from {server}; gRPC is not served until the first push"
                );
            }
            return Ok(Self::ControlPlane(Box::new(client)));
        }
        let mut reloader = Reloader::new(settings.source(), options, intake.clone());
        match reloader.load() {
            Ok(()) => {}
            Err(problems) if settings.start_without_rules => {
                for problem in problems {
                    tracing::error!("{problem}");
                }
                tracing::warn!(
                    "starting without rules; calls get UNAVAILABLE until some are loaded"
                );
            }
            Err(problems) => {
                return Err(ServerError::Rules {
                    source_name: settings.source().to_string(),
                    problems,
                });
            }
        }
        Ok(Self::Files(reloader))
    }

    /// Takes changes into use. No change from now on is missed.
    fn watch(self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self {
            Self::Files(reloader) => Box::pin(reloader.watch().run()),
            Self::ControlPlane(client) => Box::pin(async { match client.run().await {} }),
        }
    }
}

/// The store that all workers share.
enum Backend {
    Memory(Arc<MemoryStore>),
    Redis {
        all: RedisBackend,
        per_second: Option<RedisBackend>,
        caches: Arc<Caches>,
    },
}

/// One Redis, and the state that its workers share.
struct RedisBackend {
    servers: Servers,
    loss: Arc<Loss>,
}

/// The store of one worker, and the tasks that it needs.
struct Doors {
    store: AnyStore,
    /// Tasks that must run on this worker for the store to answer.
    batchers: Vec<Batchers>,
    /// Tasks that must run once for all workers, with one worker's batchers: one for each Redis, first that for all
    /// limits.
    returns: Vec<Return<RedisStore>>,
}

impl Backend {
    fn new(settings: &Settings, metrics: &Metrics) -> Result<Self, redis::BadUrl> {
        let Some(address) = settings.redis.address() else {
            return Ok(Self::Memory(Arc::new(MemoryStore::new(
                settings.max_counters,
            ))));
        };
        let replicas = &settings.loss.replicas;
        let known = replicas.fixed().or_else(|| kept_replicas(settings));
        metrics.loss.replicas.begin(known, replicas.until_known());
        let backend = |name, address, meters| {
            let servers = Servers::new(&address, meters, grpc::now)?;
            let meters = metrics.loss.clone();
            let options = on_loss::Options {
                max_counters: settings.max_counters,
                unseen_percent: settings.loss.unseen_share,
            };
            let loss = Arc::new(Loss::new(name, options, meters));
            Ok(RedisBackend { servers, loss })
        };
        let per_second = settings.redis_per_second.address(&settings.redis.tls);
        let meters = metrics.redis_per_second.clone();
        Ok(Self::Redis {
            all: backend("redis", address, metrics.redis.clone())?,
            per_second: per_second
                .map(|address| backend("redis_per_second", address, meters))
                .transpose()?,
            caches: Arc::default(),
        })
    }

    /// Makes the store of one worker.
    fn doors(&self, settings: &Settings, metrics: &Metrics) -> Doors {
        let (all, per_second, caches) = match self {
            Self::Memory(store) => {
                return Doors {
                    store: AnyStore::Memory(store.clone()),
                    batchers: Vec::new(),
                    returns: Vec::new(),
                };
            }
            Self::Redis {
                all,
                per_second,
                caches,
            } => (all, per_second, caches),
        };
        let options = settings.redis.options();
        let (mut batchers, mut returns) = (Vec::new(), Vec::new());
        let mut store = |backend: &RedisBackend| {
            let (store, more) = RedisStore::new(&backend.servers, &options);
            let loss = backend.loss.clone();
            batchers.push(more);
            returns.push(Return {
                store: store.clone(),
                loss: loss.clone(),
            });
            OnLoss::new(store, loss)
        };
        let store_of_all = store(all);
        let per_second = per_second.as_ref().map(&mut store);
        let cache_bytes = settings.redis.local_cache_bytes / worker_count(settings);
        let meters = &metrics.over_limit_cache;
        let both = PerSecond {
            store: store_of_all,
            per_second,
        };
        let store = OverLimitCache::new(both, cache_bytes, caches, meters);
        Doors {
            store: AnyStore::Redis(Arc::new(store)),
            batchers,
            returns,
        }
    }

    /// The servers of each Redis.
    fn servers(&self) -> impl Iterator<Item = &Servers> {
        let both = match self {
            Self::Memory(_) => [None, None],
            Self::Redis {
                all, per_second, ..
            } => [Some(all), per_second.as_ref()],
        };
        both.into_iter().flatten().map(|backend| &backend.servers)
    }

    /// The clock that determines windows.
    fn clock(&self, settings: &Settings) -> grpc::Clock {
        match (self, settings.redis.clock) {
            (Self::Redis { all, .. }, Clock::Redis) => grpc::Clock {
                ahead_millis: all.servers.skew_millis(),
            },
            _ => grpc::Clock::default(),
        }
    }

    /// The lines of `/healthcheck?verbose` on rules and stores.
    fn components(&self, rules: &Rules, metrics: &Arc<Metrics>) -> admin::Components {
        let (rules, metrics) = (rules.clone(), metrics.clone());
        let stores: Vec<_> = ["redis", "redis per second"]
            .into_iter()
            .zip(self.servers().cloned())
            .collect();
        let name = self.name();
        Arc::new(move || {
            let loaded = rules.current().map_or_else(
                || "none are loaded".to_owned(),
                |rules| format!("ok, {} loaded", rules.matcher.rules().len()),
            );
            let mut lines = vec![
                ("rules".to_owned(), loaded),
                ("store".to_owned(), name.to_owned()),
            ];
            if !stores.is_empty() {
                let pauses = metrics.own_pauses();
                lines.push(("own pauses".to_owned(), pauses.to_string()));
            }
            for (name, servers) in &stores {
                let report = servers.report().into_iter();
                lines.extend(report.map(|(who, how)| (format!("{name} {who}"), how)));
            }
            lines
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Redis { .. } => "redis",
        }
    }

    fn memory(&self) -> Option<Arc<MemoryStore>> {
        match self {
            Self::Memory(store) => Some(store.clone()),
            Self::Redis { .. } => None,
        }
    }
}

/// The renderer for Prometheus. An invalid mapping file is logged and ignored: Envoy Gateway mounts one that may be
/// missing.
fn renderer(stats: &Stats) -> Renderer {
    let response_time = if stats.prometheus_milliseconds {
        ResponseTime::Milliseconds
    } else {
        ResponseTime::Seconds
    };
    let mapper = stats.prometheus_mapping.as_deref().and_then(mapping_file);
    let mapper = mapper.unwrap_or_else(|| Mapper::built_in(response_time));
    Renderer::new(mapper, &stats.extra_tags)
}

fn mapping_file(path: &Path) -> Option<Mapper> {
    if path.as_os_str().is_empty() {
        return None;
    }
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .inspect_err(|error| {
            tracing::warn!("{shown} cannot be read ({error}); the built-in mapping is used");
        })
        .ok()?;
    match Mapper::parse(&text) {
        Ok(loaded) => {
            for warning in loaded.warnings {
                tracing::warn!("{shown}: {warning}");
            }
            Some(loaded.mapper)
        }
        Err(problems) => {
            for problem in problems {
                tracing::error!("{shown}: {}", chain(&problem));
            }
            tracing::error!("{shown} is not valid; the built-in mapping is used");
            None
        }
    }
}

fn worker_count(settings: &Settings) -> usize {
    match settings.process.workers {
        0 => thread::available_parallelism().map_or(1, Into::into),
        count => count,
    }
}

/// The file that keeps the number of replicas across a restart.
fn state_file(settings: &Settings) -> Option<StateFile> {
    let path = settings.loss.replicas.state_file()?;
    Some(StateFile::at(path.to_owned()))
}

/// The number that an earlier process kept. An invalid file is logged and ignored.
fn kept_replicas(settings: &Settings) -> Option<NonZeroU32> {
    state_file(settings)?.read().unwrap_or_else(|error| {
        tracing::warn!("{}; the replicas are detected again", chain(&error));
        None
    })
}

/// Returns a function that reports whether any rule counts locally while its store is lost. It looks at the rules
/// once per load, and does not keep old rules alive.
fn counts_locally(rules: Rules) -> impl FnMut() -> bool {
    let mut seen: Option<Weak<RuleSet>> = None;
    let mut is_any = false;
    move || {
        let current = rules.current();
        if seen.as_ref().map(Weak::as_ptr) != current.as_ref().map(Arc::as_ptr) {
            is_any = current.as_ref().is_some_and(|rules| {
                let mut rules = rules.matcher.rules().iter();
                rules.any(|rule| rule.on_store_loss == OnStoreLoss::Local)
            });
            seen = current.as_ref().map(Arc::downgrade);
        }
        is_any
    }
}

/// The gRPC service of one thread.
fn service(
    store: AnyStore,
    rules: &Rules,
    metrics: Recorder,
    tracer: &Tracer,
    clock: grpc::Clock,
    settings: &Settings,
) -> grpc::Service<AnyStore> {
    let Settings {
        bounds, decisions, ..
    } = settings;
    let headers = [
        &decisions.limit_header,
        &decisions.remaining_header,
        &decisions.reset_header,
    ];
    grpc::Service {
        limiter: Limiter {
            rules: rules.clone(),
            store,
            modes: Modes {
                shadow: decisions.shadow_mode,
                quota: decisions.quota_mode,
                metadata: decisions.dynamic_metadata,
                stops_when_over: decisions.stop_when_over,
                on_store_loss: settings.loss.on_store_loss.into(),
            },
            metrics,
        },
        bounds: wire::Bounds {
            descriptors: bounds.max_descriptors,
            entries: bounds.max_entries,
            text_bytes: bounds.max_text_bytes,
        },
        extras: wire::Extras {
            headers: decisions
                .response_headers
                .then(|| headers.map(Clone::clone)),
            retry_after: decisions.retry_after,
            dynamic_metadata: decisions.dynamic_metadata,
        },
        tracer: tracer.clone(),
        clock,
    }
}

/// The tracer and the exporter of its spans, if tracing is on.
fn traces(
    settings: &settings::traces::Traces,
    metrics: &Metrics,
) -> Result<(Tracer, Option<Exporter>), TracesError> {
    if !settings.tracing {
        return Ok((Tracer::default(), None));
    }
    let meters = metrics.traces.clone();
    let options = settings.export(traces::random_uuid)?;
    let (tracer, spans) = Tracer::new(&settings.sampling(), meters.clone());
    let exporter = Exporter {
        spans,
        options,
        meters,
    };
    Ok((tracer, Some(exporter)))
}

/// The services of a worker besides decisions and health.
fn others() -> Routes {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    const COMPILED: &str = "the schemas were compiled with the program";
    Routes::new(reflection().build_v1().expect(COMPILED))
        .add_service(reflection().build_v1alpha().expect(COMPILED))
}

/// The two services that report health.
#[derive(Clone)]
struct HealthDoors {
    http: Health,
    grpc: HealthReporter,
    /// Health is good while all of these are true.
    conditions: Vec<watch::Receiver<bool>>,
}

impl HealthDoors {
    fn new(conditions: Vec<watch::Receiver<bool>>) -> (Self, HealthServer<impl HealthService>) {
        let (grpc, service) = tonic_health::server::health_reporter();
        let doors = Self {
            http: Health::default(),
            grpc,
            conditions,
        };
        (doors, service)
    }

    /// Reports the current health.
    async fn update(&self) {
        self.set(self.conditions.iter().all(|is_so| *is_so.borrow()))
            .await;
    }

    async fn set(&self, is_good: bool) {
        self.http.set(is_good);
        let status = if is_good {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for name in HEALTH_NAMES {
            self.grpc.set_service_status(name, status).await;
        }
    }

    /// Ends the clients' watches, because there are no further changes.
    async fn close(&mut self) {
        for name in HEALTH_NAMES {
            self.grpc.clear_service_status(name).await;
        }
    }

    /// Reports the health whenever `condition` changes.
    async fn follow(self, mut condition: watch::Receiver<bool>) {
        loop {
            self.update().await;
            if condition.changed().await.is_err() {
                return;
            }
        }
    }
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

/// Signals that stop the process, SIGHUP included, as in the reference.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}
