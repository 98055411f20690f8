//! The parts that components of the server share, the service of each thread, and the tasks of stores.

use std::{sync::Arc, time::Duration};

use tonic::service::Routes;

use super::{
    backend::{Running, StoreBackend, StoreTasks, WorkerStore, worker_count},
    error::ServerError,
    limits,
    rules::RuleSource,
    tasks::{OwnedTasks, Task},
};
use crate::{
    control::reload::{Intake, RuleMemory},
    core::limit::{Modes, NearRatio},
    foundation::lock::blocking,
    observe::{
        decision_log::DecisionLog, log_lines::LogStats, metrics::Metrics, talkers::Talkers,
        traces::Tracer,
    },
    service::{
        grpc::{self, proto::DESCRIPTORS, wire},
        leases::LeaseBook,
        limiter::{Limiter, Rules},
    },
    settings::{memory::MemoryBounds, serve::Settings},
    store::{
        any::AnyStore, memory::MemoryStore, redis::topology::watcher::TopologyWatcher,
        returns::Returns,
    },
};

/// Interval between removals of expired counters.
const SWEEP: Duration = Duration::from_secs(1);

/// Most names of statistics that requests can create (`detailed_metric`, `value_to_metric`, overrides, unknown
/// domains), of 128 bytes each on average.
const MAX_METRIC_NAMES: usize = 10_000;

/// The parts that components of the server share.
pub(super) struct Parts<'a> {
    pub(super) settings: &'a Settings,
    /// The bytes that the process may take.
    pub(super) memory_limit: usize,
    pub(super) memory: MemoryBounds,
    pub(super) metrics: Arc<Metrics>,
    pub(super) rules: Rules,
    pub(super) intake: Intake,
    pub(super) backend: StoreBackend,
    pub(super) decision_log: DecisionLog,
    pub(super) talkers: Arc<Talkers>,
    pub(super) leases: LeaseBook,
}

impl<'a> Parts<'a> {
    /// Loads the rules, creates the stores and the statistics.
    ///
    /// # Errors
    ///
    /// If the rules or the address of a store are invalid.
    pub(super) fn new(
        settings: &'a Settings,
        log: Arc<LogStats>,
        tasks: &OwnedTasks,
    ) -> Result<(Self, RuleSource), ServerError> {
        let memory_limit = limits::memory_limit();
        let memory = settings.memory.bounds(memory_limit);
        let near_ratio = NearRatio(settings.decisions.near_limit_ratio);
        let mut metrics = Metrics::new(near_ratio, MAX_METRIC_NAMES);
        metrics.log = log;
        metrics.server = tasks.stats.clone();
        // Each worker is a thread, and `/json` runs on the main thread.
        let threads = worker_count(settings) + 1;
        let metrics = Arc::new(metrics.for_workers(threads));
        let rules = Rules::default();
        let rule_memory = RuleMemory {
            total: memory_limit / 5 * 4,
            share: memory.rule_bytes,
        };
        let intake = Intake::new(rules.clone(), metrics.clone(), rule_memory);
        let source = RuleSource::new(settings, &intake, &metrics)?;
        let backend = StoreBackend::new(settings, &memory.counters, &metrics)?;
        let leases = match backend {
            StoreBackend::Memory(_) => LeaseBook::of_memory(),
            StoreBackend::Redis { .. } => {
                LeaseBook::of_shared_store().with_losses(backend.losses())
            }
        };
        let parts = Self {
            settings,
            memory_limit,
            memory,
            metrics,
            rules,
            intake,
            backend,
            decision_log: DecisionLog::new(settings.process.decision_choice()),
            talkers: Arc::new(Talkers::new(threads)),
            leases,
        };
        Ok((parts, source))
    }
}

/// Creates the service of thread number `thread`, and the tasks of its store. The first threads are the workers; the
/// last one serves `/json`.
pub(super) fn thread_service(
    parts: &Parts<'_>,
    thread: usize,
    tracer: &Tracer,
) -> (grpc::Service<AnyStore>, StoreTasks) {
    let Parts {
        settings, metrics, ..
    } = parts;
    let WorkerStore {
        store,
        returns,
        tasks,
    } = parts.backend.worker_store(settings, metrics);
    (service(parts, store, returns, thread, tracer), tasks)
}

fn service(
    parts: &Parts<'_>,
    store: AnyStore,
    returns: Returns,
    thread: usize,
    tracer: &Tracer,
) -> grpc::Service<AnyStore> {
    let settings = parts.settings;
    let Settings { decisions, .. } = settings;
    let headers = [
        &decisions.limit_header,
        &decisions.remaining_header,
        &decisions.reset_header,
    ];
    grpc::Service {
        limiter: Limiter {
            rules: parts.rules.clone(),
            store,
            modes: Modes {
                shadow: decisions.shadow_mode,
                quota: decisions.quota_mode,
                metadata: decisions.dynamic_metadata,
                stops_when_over: decisions.stop_when_over,
                on_store_loss: settings.loss.on_store_loss,
            },
            metrics: parts.metrics.clone().recorder(thread),
            decision_log: parts.decision_log,
            talkers: parts.talkers.recorder(thread),
            leases: parts.leases.clone(),
            returns,
        },
        extras: wire::Extras {
            headers: decisions
                .response_headers
                .then(|| headers.map(Clone::clone)),
            fields: decisions.ratelimit_fields,
            retry_after: decisions.retry_after,
            dynamic_metadata: decisions.dynamic_metadata,
        },
        tracer: tracer.clone(),
        clock: parts.backend.clock(settings),
    }
}

/// The services of a worker besides decisions and health.
pub(super) fn others() -> Routes {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    const COMPILED: &str = "the schemas were compiled with the program";
    Routes::new(reflection().build_v1().expect(COMPILED))
        .add_service(reflection().build_v1alpha().expect(COMPILED))
}

/// Starts the tasks that the stores need once per process. `of_json` are those of `/json`'s store. Returns the work to
/// do when a drain begins, and the work to wait for at its end.
pub(super) fn start_store_tasks(
    parts: &Parts<'_>,
    of_json: StoreTasks,
    tasks: &mut OwnedTasks,
) -> [Vec<Running>; 2] {
    let Parts {
        settings,
        rules,
        backend,
        ..
    } = parts;
    let sweeping = sweep(rules.clone(), backend.memory(), backend.reminders());
    tasks.start(Task::Sweep, sweeping);
    for servers in backend.servers() {
        let topology = TopologyWatcher::new(servers.clone(), &settings.redis.options());
        let watching = async move { match topology.run().await {} };
        tasks.start(Task::Probe, watching);
    }
    let StoreTasks {
        on_worker,
        once,
        at_drain,
        at_end,
    } = of_json;
    let batchers = on_worker.into_iter().map(|task| (Task::Batchers, task));
    for (task, running) in batchers.chain(once) {
        tasks.start(task, async move { match running.await {} });
    }
    [at_drain, at_end]
}

/// Frees unused rules and expired counters, and logs reminders of a store that does not answer.
async fn sweep(rules: Rules, store: Option<Arc<MemoryStore>>, remind: impl Fn()) {
    loop {
        tokio::time::sleep(SWEEP).await;
        remind();
        let unused = rules.take_unused();
        if !unused.is_empty() {
            // Dropping rules takes a while, and this thread has connections to accept.
            blocking(move || drop(unused)).await;
        }
        if let Some(store) = &store {
            store.sweep(grpc::now());
        }
    }
}
