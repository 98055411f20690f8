//! The house: binds, starts the workers, owns every task, drains.
//!
//! The thread that calls [`run`] is the door: it accepts connections and deals them out to the
//! workers one after the other, serves the HTTP ports, watches the rules and waits for signals.
//! Each worker is a thread with a current-thread runtime, and no decision ever leaves its worker.

use std::{
    convert::Infallible,
    hash::{BuildHasher as _, RandomState},
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
};
use tonic::service::Routes;
use tonic_health::{
    ServingStatus,
    pb::health_server::{Health as HealthService, HealthServer},
    server::HealthReporter,
};

use crate::{
    admin::{self, Health},
    config::{Options, Problem},
    decision::Modes,
    grpc::{
        self,
        proto::{
            DESCRIPTORS,
            envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer,
        },
        wire,
    },
    limit::NearRatio,
    limiter::{Limiter, Rules},
    metrics::{
        Metrics,
        mapper::{Mapper, ResponseTime},
        mogrifier::MogrifierError,
        prometheus::Renderer,
        statsd,
    },
    reload::Reloader,
    settings::{Redis, Settings, Stats},
    store::{
        AnyStore,
        memory::MemoryStore,
        over_limit_cache::OverLimitCache,
        redis::{self, Batcher, RedisStore},
    },
};

/// Names that `grpc.health.v1` knows.
const HEALTH_NAMES: [&str; 2] = ["", "ratelimit"];

/// Expired counters are dropped this often.
const SWEEP: Duration = Duration::from_secs(1);

/// A connection on which nothing is heard is asked this often whether it still lives, so that
/// peers that vanished do not hold their place for ever.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Accepted connections that may wait for a worker.
const HANDOVER: usize = 128;

/// Connections of one HTTP port; further ones wait to be accepted.
const MAX_HTTP_CONNECTIONS: usize = 1_000;

/// How long a client of an HTTP port may take to send its headers, and between two requests.
const HTTP_HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest list of request headers in bytes.
const MAX_HEADER_BYTES: u32 = 64 << 10;

/// Why the server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address} for {purpose}")]
    Bind {
        purpose: &'static str,
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the rules in {source_name} cannot be used:\n{}", list(problems))]
    Rules {
        source_name: String,
        problems: Vec<Problem>,
    },
    #[error(transparent)]
    Redis(#[from] redis::BadUrl),
    #[error(transparent)]
    Mogrifier(#[from] MogrifierError),
    #[error("a worker stopped")]
    WorkerStopped,
    #[error("cannot start a thread or a runtime, or wait for signals")]
    System(#[from] io::Error),
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

fn list(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems
        .iter()
        .map(|problem| format!("  {problem}"))
        .collect();
    lines.join("\n")
}

/// Serves until a signal asks to stop, then drains.
///
/// # Errors
///
/// If a port cannot be bound, the rules cannot be used, or a worker dies.
pub fn run(settings: &Settings) -> Result<(), ServerError> {
    runtime()?.block_on(serve(settings))
}

/// A current-thread runtime: a task never moves to another core, so no wake-up crosses one.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

async fn serve(settings: &Settings) -> Result<(), ServerError> {
    let near_ratio = NearRatio(settings.decisions.near_limit_ratio);
    let metrics = Arc::new(Metrics::new(near_ratio, settings.stats.max_metric_names));
    let rules = Rules::default();
    let reloader = load(settings, &rules, &metrics)?;
    let backend = Backend::new(settings, &metrics)?;
    let Ports {
        grpc,
        http,
        debug,
        prometheus,
    } = Ports::bind(settings).await?;
    // Before the ports are announced: who reads the line may send a signal or change a rule at
    // once.
    let mut signals = Signals::new()?;
    let domains = reloader.domains();
    let watch = reloader.watch();

    let (health, health_service) = HealthDoors::new();
    let needs_rules = settings.healthy_with_rules_only;
    health.set(!needs_rules || *domains.borrow() > 0).await;

    let (phase, phases) = watch::channel(Phase::Serving);
    let mut workers = Workers::default();
    let service = || {
        let (store, batchers) = backend.store(settings, &metrics);
        (service(store, &rules, &metrics, settings), batchers)
    };
    for _ in 0..worker_count(settings) {
        let (service, batchers) = service();
        let routes = routes(service, settings).add_service(health_service.clone());
        workers.start(Worker {
            routes: routes.prepare(),
            batchers,
            max_streams: settings.bounds.max_streams,
            max_age: settings.listen.max_connection_age,
            grace: settings.listen.max_connection_age_grace,
            phases: phases.clone(),
        })?;
    }

    let debug_address = match &debug {
        Some(debug) => debug.local_addr()?.to_string(),
        None => "none".to_owned(),
    };
    tracing::info!(
        grpc = %grpc.local_addr()?,
        http = %http.local_addr()?,
        debug = debug_address,
        store = backend.name(),
        rules = rules.current().map_or(0, |rules| rules.matcher.rules().len()),
        workers = workers.count(),
        "tollgate is ready"
    );

    let (json_service, batchers) = service();
    let statistics = admin::Statistics {
        metrics: metrics.clone(),
        memory: backend.memory(),
        renderer: Arc::new(renderer(&settings.stats)),
    };
    let shown = admin::Debug {
        rules: rules.clone(),
        statistics: statistics.clone(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(watch.run());
    for batcher in batchers {
        tasks.spawn(async move { match batcher.run().await {} });
    }
    let max_body_bytes = settings.bounds.max_message_bytes;
    let http_routes = admin::http(health.http.clone(), json_service, max_body_bytes);
    tasks.spawn(serve_http(http, http_routes));
    let mut following = JoinSet::new();
    if needs_rules {
        following.spawn(health.clone().follow(domains));
    }
    if let Some(debug) = debug {
        tasks.spawn(serve_http(debug, admin::debug(shown)));
    }
    if let Some(memory) = backend.memory() {
        tasks.spawn(sweep(memory));
    }
    for sink in settings.stats.sinks()? {
        let statistics = statistics.clone();
        let sink = statsd::Sink::new(sink);
        tasks.spawn(async move { match sink.run(|| statistics.samples()).await {} });
    }
    if let Some(prometheus) = prometheus {
        let routes = admin::prometheus(statistics, &settings.stats.prometheus_path);
        tasks.spawn(serve_http(prometheus, routes));
    }
    let places = Arc::new(Semaphore::new(settings.bounds.max_connections));
    let mut accepting = JoinSet::new();
    accepting.spawn(accept(grpc, workers.doors(), places));

    tokio::select! {
        signal = signals.next() => tracing::info!(signal, "stopping"),
        () = workers.first_end() => return Err(ServerError::WorkerStopped),
    }

    following.shutdown().await;
    health.set(false).await;
    // Who balances load needs a moment to see that; until then calls still come and are answered.
    tokio::select! {
        () = tokio::time::sleep(settings.process.drain_delay) => {}
        _ = signals.next() => tracing::info!("not waiting any longer"),
    }
    accepting.shutdown().await;
    phase.send_replace(Phase::Draining);
    if tokio::time::timeout(settings.process.drain_timeout, workers.all_end())
        .await
        .is_err()
    {
        tracing::warn!("some calls were still under way when the time to drain was over");
    }
    tracing::info!("stopped");
    Ok(())
}

/// The first load. A failure is fatal, unless the settings allow to start without rules.
fn load(
    settings: &Settings,
    rules: &Rules,
    metrics: &Arc<Metrics>,
) -> Result<Reloader, ServerError> {
    let options = Options {
        merge_domains: settings.merge_domains,
        strict_matching: settings.strict_matching,
        key_format: settings.redis.key_format.into(),
    };
    let source = settings.source();
    let mut reloader = Reloader::new(source, options, rules.clone(), metrics.clone());
    match reloader.load() {
        Ok(()) => {}
        Err(problems) if settings.start_without_rules => {
            for problem in problems {
                tracing::error!("{problem}");
            }
            tracing::warn!("starting without rules; calls get UNAVAILABLE until some are loaded");
        }
        Err(problems) => {
            return Err(ServerError::Rules {
                source_name: settings.source().to_string(),
                problems,
            });
        }
    }
    Ok(reloader)
}

/// The store behind all workers.
enum Backend {
    Memory(Arc<MemoryStore>),
    Redis(redis::Connections),
}

impl Backend {
    fn new(settings: &Settings, metrics: &Metrics) -> Result<Self, redis::BadUrl> {
        Ok(match settings.redis_address() {
            None => Self::Memory(Arc::new(MemoryStore::new(settings.max_counters))),
            Some(url) => {
                let Redis {
                    redis_auth,
                    redis_connect_timeout,
                    ..
                } = &settings.redis;
                Self::Redis(redis::Connections::new(
                    &url,
                    redis_auth.as_deref(),
                    *redis_connect_timeout,
                    metrics.redis.clone(),
                )?)
            }
        })
    }

    /// One worker's store, and what has to run beside it.
    fn store(&self, settings: &Settings, metrics: &Metrics) -> (AnyStore, Vec<Batcher>) {
        match self {
            Self::Memory(store) => (AnyStore::Memory(store.clone()), Vec::new()),
            Self::Redis(connections) => {
                let options = redis::Options {
                    key_prefix: settings.redis.key_prefix.clone(),
                    deadline: settings.redis.redis_timeout,
                    connections: settings.redis.redis_connections,
                    max_waiting: settings.redis.redis_max_waiting,
                    jitter_secs: settings.redis.expiration_jitter.max(0).unsigned_abs(),
                };
                let (store, batchers) = RedisStore::new(connections, &options);
                let cache_bytes = settings.redis.local_cache_bytes / worker_count(settings);
                let store =
                    OverLimitCache::new(store, cache_bytes, metrics.over_limit_cache.clone());
                (AnyStore::Redis(Arc::new(store)), batchers)
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Redis(_) => "redis",
        }
    }

    fn memory(&self) -> Option<Arc<MemoryStore>> {
        match self {
            Self::Memory(store) => Some(store.clone()),
            Self::Redis(_) => None,
        }
    }
}

/// The bound listeners.
struct Ports {
    grpc: TcpListener,
    http: TcpListener,
    /// Nothing if it could not be bound: the service does not depend on it.
    debug: Option<TcpListener>,
    /// Only if it is asked for.
    prometheus: Option<TcpListener>,
}

impl Ports {
    async fn bind(settings: &Settings) -> Result<Self, ServerError> {
        let Settings { listen, stats, .. } = settings;
        let debug = bind("debug", listen.debug_host, listen.debug_port).await;
        Ok(Self {
            grpc: bind("gRPC", listen.grpc_host, listen.grpc_port).await?,
            http: bind("HTTP", listen.host, listen.port).await?,
            debug: debug
                .inspect_err(|error| tracing::error!("{error}; going on without it"))
                .ok(),
            prometheus: if stats.prometheus && !stats.disable_stats {
                let address = stats.prometheus_address;
                Some(bind("Prometheus", address.ip(), address.port()).await?)
            } else {
                None
            },
        })
    }
}

/// How statistics are shown to Prometheus. A mapping file that cannot be used is said and left
/// out: Envoy Gateway mounts one that may be missing.
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
            tracing::error!("{shown} is not used; the built-in mapping is");
            None
        }
    }
}

async fn bind(purpose: &'static str, host: IpAddr, port: u16) -> Result<TcpListener, ServerError> {
    let address = SocketAddr::new(host, port);
    TcpListener::bind(address)
        .await
        .map_err(|source| ServerError::Bind {
            purpose,
            address,
            source,
        })
}

fn worker_count(settings: &Settings) -> usize {
    match settings.process.workers {
        0 => thread::available_parallelism().map_or(1, Into::into),
        count => count,
    }
}

/// What answers requests on one thread.
fn service(
    store: AnyStore,
    rules: &Rules,
    metrics: &Arc<Metrics>,
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
            },
            stops_when_over: decisions.stop_when_over,
            metrics: metrics.clone(),
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
            dynamic_metadata: decisions.dynamic_metadata,
        },
    }
}

/// Everything that one worker serves, but health.
fn routes(service: grpc::Service<AnyStore>, settings: &Settings) -> Routes {
    let service = RateLimitServiceServer::new(service)
        .max_decoding_message_size(settings.bounds.max_message_bytes);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    const COMPILED: &str = "the schemas were compiled with the program";
    Routes::new(service)
        .add_service(reflection().build_v1().expect(COMPILED))
        .add_service(reflection().build_v1alpha().expect(COMPILED))
}

/// The two places where health is told.
#[derive(Clone)]
struct HealthDoors {
    http: Health,
    grpc: HealthReporter,
}

impl HealthDoors {
    fn new() -> (Self, HealthServer<impl HealthService>) {
        let (grpc, service) = tonic_health::server::health_reporter();
        let http = Health::default();
        (Self { http, grpc }, service)
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

    /// Good as long as the rules have a domain.
    async fn follow(self, mut domains: watch::Receiver<usize>) {
        while domains.changed().await.is_ok() {
            let is_good = *domains.borrow_and_update() > 0;
            self.set(is_good).await;
        }
    }
}

/// Serves HTTP/1 until dropped; what goes wrong with a connection is that connection's own.
async fn serve_http(listener: TcpListener, router: axum::Router) {
    let places = Arc::new(Semaphore::new(MAX_HTTP_CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Ok(place) = places.clone().acquire_owned().await {
        let stream = accept_next(&listener).await;
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HTTP_HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                tracing::debug!(%error, "an HTTP connection ended badly");
            }
            drop(place);
        });
        // Those that have ended are forgotten.
        while connections.try_join_next().is_some() {}
    }
}

async fn sweep(store: Arc<MemoryStore>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        store.sweep(grpc::now());
    }
}

/// Signals that ask the process to stop, SIGHUP included, as in the reference.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining,
}

/// Waits for the call to drain.
async fn draining(phases: &mut watch::Receiver<Phase>) {
    // The house is never gone before its workers.
    let _ = phases.wait_for(|phase| *phase == Phase::Draining).await;
}

/// A connection on its way to a worker, with its place among all.
struct Arrival {
    stream: std::net::TcpStream,
    place: OwnedSemaphorePermit,
}

/// Accepts connections and deals them out in turn. An Envoy opens one for each of its threads, so
/// leaving the choice to the kernel could put all of them on one core.
async fn accept(listener: TcpListener, doors: Vec<mpsc::Sender<Arrival>>, places: Arc<Semaphore>) {
    for door in doors.iter().cycle() {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = accept_next(&listener).await;
        let Ok(stream) = stream.into_std() else {
            continue;
        };
        // A worker that is gone ends the process anyway.
        let _ = door.send(Arrival { stream, place }).await;
    }
}

/// The next connection, however long it takes.
async fn accept_next(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // Out of file descriptors, most likely: some will be free again.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

#[derive(Default)]
struct Workers {
    doors: Vec<mpsc::Sender<Arrival>>,
    /// Each ends with its worker.
    ends: JoinSet<()>,
}

impl Workers {
    fn start(&mut self, worker: Worker) -> io::Result<()> {
        let (door, arrivals) = mpsc::channel(HANDOVER);
        let (alive, mut end) = mpsc::channel::<Infallible>(1);
        let name = format!("worker-{}", self.doors.len());
        thread::Builder::new().name(name).spawn(move || {
            // Dropped on every way out, a panic included.
            let _alive = alive;
            match runtime() {
                Ok(runtime) => runtime.block_on(worker.run(arrivals)),
                Err(error) => tracing::error!(%error, "a worker has no runtime"),
            }
        })?;
        self.doors.push(door);
        self.ends.spawn(async move {
            end.recv().await;
        });
        Ok(())
    }

    fn count(&self) -> usize {
        self.doors.len()
    }

    fn doors(&mut self) -> Vec<mpsc::Sender<Arrival>> {
        std::mem::take(&mut self.doors)
    }

    async fn first_end(&mut self) {
        self.ends.join_next().await;
    }

    async fn all_end(&mut self) {
        while self.ends.join_next().await.is_some() {}
    }
}

struct Worker {
    routes: Routes,
    batchers: Vec<Batcher>,
    max_streams: u32,
    /// How old a connection may become; zero means any age.
    max_age: Duration,
    /// How long its calls may then take.
    grace: Duration,
    phases: watch::Receiver<Phase>,
}

impl Worker {
    /// Serves the connections that arrive, until all are gone after the call to drain.
    async fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>) {
        let mut batchers = JoinSet::new();
        for batcher in self.batchers.drain(..) {
            batchers.spawn(batcher.run());
        }
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                arrival = arrivals.recv() => match arrival {
                    Some(arrival) => {
                        connections.spawn(self.connection(arrival));
                    }
                    // The door is closed.
                    None => break,
                },
                Some(_) = connections.join_next() => {}
            }
        }
        while connections.join_next().await.is_some() {}
    }

    /// Serves one connection to its end; a failure is its own.
    fn connection(&self, arrival: Arrival) -> impl Future<Output = ()> + Send + use<> {
        let routes = self.routes.clone();
        let max_streams = self.max_streams;
        let mut phases = self.phases.clone();
        let max_age = jittered(self.max_age);
        let grace = self.grace;
        async move {
            let Arrival { stream, place } = arrival;
            let _place = place;
            let stream = match adopt(stream) {
                Ok(stream) => stream,
                Err(error) => return tracing::debug!(%error, "a connection was lost on arrival"),
            };
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(max_streams)
                .max_header_list_size(MAX_HEADER_BYTES)
                .keep_alive_interval(KEEPALIVE)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = draining(&mut phases) => {
                    // GOAWAY: calls under way are answered, new ones go elsewhere.
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
                () = tokio::time::sleep(max_age) => {
                    connection.as_mut().graceful_shutdown();
                    match tokio::time::timeout(grace, connection).await {
                        Ok(ended) => ended,
                        Err(_elapsed) => return tracing::debug!("a connection outlived its grace"),
                    }
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended badly");
            }
        }
    }
}

/// `age`, give or take a tenth, so that connections that began together do not end together.
fn jittered(age: Duration) -> Duration {
    /// Zero means no end: longer than any process lives, short enough for a timer.
    const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
    if age.is_zero() || age > NEVER {
        return NEVER;
    }
    // A fresh hasher's seed is as random as this needs.
    let random = RandomState::new().hash_one(()) % 2001;
    age / 10_000 * u32::try_from(9_000 + random).unwrap_or(10_000)
}

/// Takes a stream into this worker's runtime.
fn adopt(stream: std::net::TcpStream) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
