//! Wires the server: binds the ports, starts the workers, owns every task, and drains.
//!
//! The thread that calls [`run`] is the dispatcher: it accepts connections and distributes them to the workers in
//! turn, serves the HTTP ports, watches the rules and waits for signals. Each worker is a thread with a
//! current-thread runtime, and a decision never leaves its worker.

use std::{fs, mem, sync::Arc};

use tokio::sync::{mpsc, watch};
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::{
    observe::traces::Tracer,
    server::{
        accept::{Arrival, accept},
        announce::announce,
        authority::AuthorityLog,
        backend::{Running, worker_count},
        connection::{ConnectionParts, ConnectionServer},
        error::ServerError,
        health::HealthPublisher,
        http,
        limits::connection_limits,
        log::Log,
        parts::{Parts, others, start_store_tasks, thread_service},
        ports::{Addresses, GrpcListener, Ports},
        service_manager::{ServiceManager, Signals},
        spans::{self, SpanExport},
        statistics,
        tasks::{OwnedTasks, Task, owned},
        tls::{CurrentTls, Rotation},
        workers::{self, Worker, runtime},
    },
    service::held::HeldBytes,
    settings::{listen::Listen, process::Process, serve::Settings},
};

/// Serves until a stop signal arrives, then drains.
///
/// # Errors
///
/// If a port cannot be bound, the rules are invalid, or a task ends.
pub(crate) fn run(settings: &Settings, log: &Log) -> Result<(), ServerError> {
    let runtime = runtime()?;
    let served = runtime.block_on(serve(settings, log));
    // A blocked thread, such as one that looks up a name, must not delay the exit.
    runtime.shutdown_background();
    served
}

/// Starts all components, waits for a signal, and drains.
pub(super) async fn serve(settings: &Settings, log: &Log) -> Result<(), ServerError> {
    let sinks = settings.stats.sinks()?;
    // These tasks end with the process.
    let mut tasks = OwnedTasks::default();
    let (parts, source) = Parts::new(settings, log.stats.clone(), &tasks)?;
    let (max_grpc, max_http) = connection_limits(parts.memory.connections, worker_count(settings));
    let rotation = Rotation::new(&settings.tls)?;
    check_token(&settings.listen)?;
    let ports = Ports::bind(settings).await?;
    let addresses = ports.addresses()?;
    // This precedes the announcement of the ports: an operator who reads it can send a signal or change a rule at once.
    let signals = Signals::new()?;
    tasks.start(Task::Reload, source.watch());
    let tls = start_tls(&parts, rotation, &mut tasks);
    let (open, is_open) = watch::channel(false);
    let (health, health_service) = HealthPublisher::new(conditions(&parts, is_open));
    health.update().await;
    let (tracer, spans) = spans::start(&parts.metrics)?;
    let (drain, drains) = watch::channel(false);
    let connections = ConnectionParts {
        tls,
        authority_log: AuthorityLog::new(parts.metrics.clone()),
        drains,
    };
    let workers = start_workers(&parts, &tracer, &health_service, &connections, &mut tasks)?;
    let statistics = statistics::start(&parts, sinks, &mut tasks);
    let (json, of_json) = thread_service(&parts, workers.len(), &tracer);
    let of_json_store = start_store_tasks(&parts, of_json, &mut tasks);
    let pages = (health.http.clone(), statistics);
    http::start(&parts, ports, max_http, pages, json, &mut tasks);
    health.follow_all(&mut tasks);
    let mut server = Server {
        health,
        signals,
        open,
        drain,
        of_json_store,
        workers,
        service_manager: ServiceManager::new(Process::notify_socket().as_deref()),
        spans,
        tasks,
    };
    if !server.wait_for_rules(&parts).await? {
        return Ok(());
    }
    let grpc = server.open(&parts, &addresses, log).await?;
    server.accept(grpc, max_grpc, HeldBytes::new(parts.metrics.clone()));
    server.service_manager.notify_ready();
    server.wait(&settings.process).await?;
    server.drain(&settings.process).await
}

/// Checks the file of the token at the start. It is read again for each change of counters, so a mistake would show
/// only then.
fn check_token(listen: &Listen) -> Result<(), ServerError> {
    let Some(path) = listen.token_file() else {
        return Ok(());
    };
    let read = fs::read(path).map(drop);
    read.map_err(|source| ServerError::Token {
        path: path.display().to_string(),
        source,
    })
}

/// Starts to watch the certificates. Returns the TLS of connections, if the gRPC port has TLS.
fn start_tls(
    parts: &Parts<'_>,
    rotation: Option<Rotation>,
    tasks: &mut OwnedTasks,
) -> Option<CurrentTls> {
    let rotation = rotation?;
    if parts.settings.listen.grpc_socket().is_some() {
        tracing::warn!("the Unix socket never has TLS; the TLS settings have no effect");
        return None;
    }
    let tls = rotation.tls(parts.metrics.clone());
    tasks.start(Task::Certificates, rotation.watch().run());
    Some(tls)
}

/// The conditions for good health.
fn conditions(parts: &Parts<'_>, is_open: watch::Receiver<bool>) -> Vec<watch::Receiver<bool>> {
    let mut conditions = vec![is_open];
    if parts.settings.healthy_with_rules_only {
        conditions.push(parts.intake.follow_domains());
    }
    // A process that never reached its Redis has a wrong address or password, and takes no place in rotation.
    let servers = || parts.backend.servers();
    conditions.extend(servers().map(|servers| servers.has_answered()));
    if parts.settings.redis.health_follows_redis {
        conditions.extend(servers().map(|servers| servers.health()));
    }
    conditions
}

/// Starts the workers, which have no connections yet.
fn start_workers(
    parts: &Parts<'_>,
    tracer: &Tracer,
    health: &HealthServer<impl Health>,
    connections: &ConnectionParts,
    tasks: &mut OwnedTasks,
) -> Result<Vec<mpsc::Sender<Arrival>>, ServerError> {
    let mut workers = Vec::new();
    for number in 0..worker_count(parts.settings) {
        // Only one thread ends losses: the one of `/json`.
        let (service, of_store) = thread_service(parts, number, tracer);
        let batchers = of_store.on_worker.into_iter().map(|task| {
            let running = async move { match task.await {} };
            Box::pin(owned(Task::WorkerBatchers, running)) as Running
        });
        let batchers = batchers.collect();
        let others = others().add_service(health.clone());
        let listen = &parts.settings.listen;
        let server = ConnectionServer::new(service, others, listen, connections.clone());
        let worker = Worker {
            serve: move |Arrival { stream, connection }| {
                server.clone().connection(stream, connection)
            },
            of_store: batchers,
            at_drain: of_store.at_drain,
            at_end: of_store.at_end,
        };
        workers.push(workers::start(number, worker, tasks)?);
    }
    Ok(workers)
}

/// The started components.
struct Server {
    signals: Signals,
    health: HealthPublisher,
    /// Whether gRPC connections are accepted, which is a condition of health.
    open: watch::Sender<bool>,
    /// Whether connections have to end.
    drain: watch::Sender<bool>,
    /// Work of the store of `/json` for the beginning and the end of a drain.
    of_json_store: [Vec<Running>; 2],
    /// The senders of connections, one for each worker.
    workers: Vec<mpsc::Sender<Arrival>>,
    service_manager: ServiceManager,
    spans: SpanExport,
    tasks: OwnedTasks,
}

impl Server {
    /// Waits for the first rules, unless the settings allow a start without any. Returns whether to go on.
    async fn wait_for_rules(&mut self, parts: &Parts<'_>) -> Result<bool, ServerError> {
        if parts.settings.start_without_rules {
            return Ok(true);
        }
        let mut has_rules = parts.intake.follow_rules();
        tokio::select! {
            // The sender lives as long as `parts`.
            _ = has_rules.wait_for(|has_rules| *has_rules) => Ok(true),
            signal = self.signals.next() => {
                tracing::info!(signal, "stopped while still waiting for rules");
                Ok(false)
            }
            ended = self.tasks.unexpected_end() => Err(ended.into()),
        }
    }

    /// Opens the gRPC port.
    async fn open(
        &self,
        parts: &Parts<'_>,
        addresses: &Addresses,
        log: &Log,
    ) -> Result<GrpcListener, ServerError> {
        // The store is asked before clients can call: connections are accepted only after the ready line.
        let store = parts.backend.first_state().await;
        let grpc = GrpcListener::bind(parts.settings).await?;
        self.open.send_replace(true);
        self.health.update().await;
        let names = (&grpc, addresses, &*store);
        announce(names, parts, self.workers.len(), log);
        Ok(grpc)
    }

    /// Starts to accept gRPC connections.
    fn accept(&mut self, grpc: GrpcListener, max_connections: usize, held: Arc<HeldBytes>) {
        let accepting = accept(grpc, mem::take(&mut self.workers), max_connections, held);
        self.tasks.start(Task::GrpcListener, accepting);
    }

    /// Waits for a stop signal.
    async fn wait(&mut self, settings: &Process) -> Result<(), ServerError> {
        tokio::select! {
            signal = self.signals.next() => {
                announce_end(signal, settings);
                Ok(())
            }
            ended = self.tasks.unexpected_end() => Err(ended.into()),
        }
    }

    /// Ends the process in order: fails health, keeps serving for the drain delay, sends GOAWAY, and waits for
    /// running calls.
    async fn drain(mut self, settings: &Process) -> Result<(), ServerError> {
        self.service_manager.notify_stopping();
        self.tasks.stop(Task::Health).await?;
        self.health.set(false).await;
        // A load balancer needs a moment to notice. Until then calls arrive and are answered.
        tokio::select! {
            () = tokio::time::sleep(settings.drain_delay) => {}
            _ = self.signals.next() => tracing::info!("second signal: the drain delay ends early"),
            ended = self.tasks.unexpected_end() => return Err(ended.into()),
        }
        self.tasks.start_draining();
        self.tasks.stop(Task::GrpcListener).await?;
        self.health.close().await;
        self.drain.send_replace(true);
        let [at_drain, at_end] = self.of_json_store;
        let ends = async {
            for work in at_drain {
                work.await;
            }
            let ended = self.tasks.all_end(Task::Worker).await;
            for work in at_end {
                work.await;
            }
            ended
        };
        let drained = tokio::time::timeout(settings.drain_timeout, ends);
        match drained.await {
            Ok(drained) => drained?,
            Err(_elapsed) => {
                tracing::warn!("some calls were still running at the end of the drain timeout");
            }
        }
        self.spans.finish().await;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Logs the signal, and how long the process will still run.
fn announce_end(signal: &str, settings: &Process) {
    let Process {
        drain_delay,
        drain_timeout,
        ..
    } = settings;
    if drain_delay.is_zero() {
        tracing::info!(
            signal,
            "stopping: running calls may take {drain_timeout:?} more"
        );
    } else {
        tracing::info!(
            signal,
            "stopping: calls are answered for {drain_delay:?} more, and running ones may then take {drain_timeout:?}; \
             a second signal ends the first wait at once"
        );
    }
}
