//! Creates the store that the settings choose: the part that all workers share, and the store of each worker.

use std::{
    convert::Infallible,
    num::NonZeroU32,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use super::tasks::Task;
use crate::{
    core::limit::OnStoreLoss,
    observe::metrics::Metrics,
    service::{admin, grpc},
    settings::serve::Settings,
    store::{
        any::AnyStore,
        known::KnownFirst,
        loss::{Loss, LostLimits, OnLoss},
        memory::{CounterBounds, MemoryStore},
        per_second::PerSecond,
        redis::{self, options::TimeSource, store::RedisStore, topology::servers::Servers},
        replicas::{ReplicaCount, Replicas},
        returns::Returns,
        slices::Slices,
    },
};

/// The store that all workers share.
pub(super) enum StoreBackend {
    Memory(Arc<MemoryStore>),
    Redis {
        all: RedisBackend,
        per_second: Option<RedisBackend>,
    },
}

/// One Redis, and the state that its workers share.
pub(super) struct RedisBackend {
    pub(super) servers: Arc<Servers>,
    pub(super) loss: Arc<Loss>,
}

/// A task of a store.
pub(super) type StoreTask = Pin<Box<dyn Future<Output = Infallible> + Send>>;

/// The store of one worker, and the tasks that it needs.
pub(super) struct WorkerStore {
    pub(super) store: AnyStore,
    pub(super) returns: Returns,
    pub(super) tasks: StoreTasks,
}

#[derive(Default)]
pub(super) struct StoreTasks {
    /// Tasks that must run on this worker for the store to answer.
    pub(super) on_worker: Vec<StoreTask>,
    /// Tasks that must run once in the process, on behalf of all workers.
    pub(super) once: Vec<(Task, StoreTask)>,
    /// Work that gives back what the store of this worker holds for later requests. It runs once, when a drain begins,
    /// while the tasks above still run.
    pub(super) at_drain: Vec<Running>,
    /// Work to wait for after that, once no call runs: what was begun for earlier calls.
    pub(super) at_end: Vec<Running>,
}

/// Work that ends.
pub(super) type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

impl StoreBackend {
    /// The store that the settings choose.
    ///
    /// # Errors
    ///
    /// If the address of a Redis is invalid.
    pub(super) fn new(
        settings: &Settings,
        bounds: &CounterBounds,
        metrics: &Metrics,
    ) -> Result<Self, redis::topology::address::BadUrl> {
        let Some(address) = settings.redis.address() else {
            return Ok(Self::Memory(Arc::new(MemoryStore::bounded(bounds))));
        };
        let replicas = Arc::new(ReplicaCount::new(settings.loss.replicas.fixed()));
        let shown = replicas.all().into();
        metrics.loss.replicas.store(shown, Relaxed);
        let per_second = settings.redis_per_second.address(&settings.redis.tls);
        // Both can be lost at once.
        let bounds = if per_second.is_some() {
            bounds.half()
        } else {
            *bounds
        };
        let limits = match per_second {
            None => LostLimits::All,
            Some(_) => LostLimits::Longer,
        };
        let backend = |name, limits, address, stats| {
            let servers = Servers::new(&address, stats, grpc::now)?;
            let (replicas, stats) = (replicas.clone(), metrics.loss.clone());
            let loss = Arc::new(Loss::new(name, limits, bounds, replicas, stats));
            Ok(RedisBackend { servers, loss })
        };
        let stats = metrics.redis_per_second.clone();
        Ok(Self::Redis {
            all: backend("redis", limits, address, metrics.redis.clone())?,
            per_second: per_second
                .map(|address| backend("redis_per_second", LostLimits::PerSecond, address, stats))
                .transpose()?,
        })
    }

    /// Creates the store of one worker.
    pub(super) fn worker_store(&self, settings: &Settings, metrics: &Metrics) -> WorkerStore {
        let mut tasks = StoreTasks::default();
        let (all, per_second_backend) = match self {
            Self::Memory(store) => {
                return WorkerStore {
                    store: AnyStore::Memory(store.clone()),
                    returns: Returns::new(metrics.returns.clone()),
                    tasks,
                };
            }
            Self::Redis { all, per_second } => (all, per_second),
        };
        let options = settings.redis.options();
        let returns = Returns::new(metrics.returns.clone());
        let over_bytes = settings.redis.local_cache_bytes / worker_count(settings);
        let known = metrics.known.new_worker(over_bytes);
        let mut store = |backend: &RedisBackend| {
            let (store, batchers) = RedisStore::new(&backend.servers, &options, &known);
            tasks.on_worker.push(Box::pin(batchers.run()));
            // The first Redis is the one for all limits, which also counts the replicas.
            if tasks.once.is_empty() && settings.loss.replicas.fixed().is_none() {
                let detects = self.detect_replicas(&store, &backend.loss, settings, metrics);
                tasks.once.push((Task::Replicas, detects));
            }
            let (clock, loss) = (self.clock(settings), backend.loss.clone());
            let ends = loss.clone().end_each(store.clone(), move || clock.now());
            tasks.once.push((Task::Losses, Box::pin(ends)));
            OnLoss::new(store, loss, returns.clone(), options.deadline)
        };
        let store_of_all = store(all);
        let per_second = per_second_backend.as_ref().map(&mut store);
        let store = Arc::new(KnownFirst {
            store: PerSecond {
                store: store_of_all,
                per_second,
            },
            known,
            all: metrics.known.clone(),
        });
        let tables = metrics.slices.clone();
        let replicas = settings.loss.replicas.fixed().map_or(1, NonZeroU32::get);
        let workers = worker_count(settings);
        tables.set_holders(replicas, workers);
        let store = Slices::new(store, tables, returns.clone(), workers);
        let clock = || {
            let clock = self.clock(settings);
            move || clock.now()
        };
        tasks
            .on_worker
            .push(Box::pin(store.clone().keep_sweeping(clock())));
        tasks.at_drain.push(Box::pin(store.clone().drain(clock())));
        let work = returns.clone();
        tasks
            .at_end
            .push(Box::pin(async move { work.all_done().await }));
        WorkerStore {
            store: AnyStore::Redis(Arc::new(store)),
            returns,
            tasks,
        }
    }

    /// A task that counts the replicas that use `store`, while some rule needs the number.
    fn detect_replicas(
        &self,
        store: &RedisStore,
        loss: &Loss,
        settings: &Settings,
        metrics: &Metrics,
    ) -> StoreTask {
        let replicas = Replicas::new(store.clone(), loss.replicas.clone(), metrics.loss.clone());
        let clock = self.clock(settings);
        let stats = metrics.loss.clone();
        let is_default = settings.loss.on_store_loss == OnStoreLoss::Local;
        Box::pin(replicas.run(
            move || clock.now(),
            move || is_default || stats.counts_locally(),
        ))
    }

    fn each(&self) -> impl Iterator<Item = &RedisBackend> {
        let both = match self {
            Self::Memory(_) => [None, None],
            Self::Redis {
                all, per_second, ..
            } => [Some(all), per_second.as_ref()],
        };
        both.into_iter().flatten()
    }

    /// The servers of each Redis.
    pub(super) fn servers(&self) -> impl Iterator<Item = &Arc<Servers>> {
        self.each().map(|backend| &backend.servers)
    }

    /// The losses of each Redis.
    pub(super) fn losses(&self) -> Arc<[Arc<Loss>]> {
        self.each().map(|backend| backend.loss.clone()).collect()
    }

    /// A function that logs, once a minute, what clients get while a store does not answer.
    pub(super) fn reminders(&self) -> impl Fn() + use<> {
        let each = self.each();
        let each: Vec<_> = each
            .map(|redis| (redis.servers.clone(), redis.loss.clone()))
            .collect();
        move || {
            for (servers, loss) in &each {
                loss.remind(servers.failures());
            }
        }
    }

    /// The name of the store, and whether it is reachable. Waits up to a second for its servers to answer.
    pub(super) async fn first_state(&self) -> String {
        let asked = async {
            while !self.servers().all(|servers| servers.is_known()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // A server that is silent for longer counts as unreachable.
        let _ = tokio::time::timeout(Duration::from_secs(1), asked).await;
        let is_well = self.servers().all(|servers| *servers.health().borrow());
        let suffix = if is_well { "" } else { ", not reachable" };
        format!("{}{suffix}", self.name())
    }

    /// The clock that determines windows.
    pub(super) fn clock(&self, settings: &Settings) -> grpc::RequestClock {
        match (self, settings.redis.clock) {
            (Self::Redis { all, .. }, TimeSource::Redis) => {
                grpc::RequestClock::of_redis(all.servers.clock.clone())
            }
            (Self::Redis { .. }, TimeSource::Local) | (Self::Memory(_), _) => {
                grpc::RequestClock::default()
            }
        }
    }

    /// The lines of `/healthcheck?verbose` about rules and stores.
    pub(super) fn components(&self, metrics: &Arc<Metrics>) -> admin::Components {
        let metrics = metrics.clone();
        let stores: Vec<_> = ["redis", "redis per second"]
            .into_iter()
            .zip(self.servers().cloned())
            .collect();
        let name = self.name();
        Arc::new(move || {
            let mut lines = vec![
                ("rules".to_owned(), metrics.config.history().to_string()),
                ("store".to_owned(), name.to_owned()),
            ];
            for (name, servers) in &stores {
                let report = servers.report().into_iter();
                lines.extend(report.map(|(who, how)| (format!("{name} {who}"), how)));
            }
            lines
        })
    }

    /// The name in the log.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Redis { .. } => "redis",
        }
    }

    /// The store in memory, if this is one.
    pub(super) fn memory(&self) -> Option<Arc<MemoryStore>> {
        match self {
            Self::Memory(store) => Some(store.clone()),
            Self::Redis { .. } => None,
        }
    }
}

/// The number of worker threads.
pub(super) fn worker_count(settings: &Settings) -> usize {
    match settings.process.workers {
        0 => thread::available_parallelism().map_or(1, Into::into),
        count => count,
    }
}
