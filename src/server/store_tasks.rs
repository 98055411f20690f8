//! The tasks that the stores need once in a process.

use std::{sync::Arc, time::Duration};

use super::{
    cpu_quota,
    parts::Parts,
    replicas::counts_locally,
    tasks::{OwnedTasks, Task},
};
use crate::{
    core::limit::OnStoreLoss,
    foundation::blocking::blocking,
    service::{grpc, limiter::Rules},
    store::{
        loss::Reconciler,
        memory::MemoryStore,
        redis::{batchers::Batchers, store::RedisStore, topology::TopologyWatcher},
        replicas::Replicas,
    },
};

/// Interval between removals of expired counters.
const SWEEP: Duration = Duration::from_secs(1);

/// Starts the tasks. `batchers` and `reconcilers` are those of the store that `/json` uses.
pub(super) fn start(
    parts: &Parts<'_>,
    batchers: Vec<Batchers>,
    reconcilers: Vec<Reconciler<RedisStore>>,
    tasks: &mut OwnedTasks,
) {
    let Parts {
        settings,
        metrics,
        rules,
        backend,
        ..
    } = parts;
    tasks.start(Task::Sweep, sweep(rules.clone(), backend.memory()));
    if backend.servers().next().is_some() {
        let metrics = metrics.clone();
        let watching = async move {
            cpu_quota::watch(move || metrics.own_pauses().total).await;
            // One report is enough.
            std::future::pending().await
        };
        tasks.start(Task::CpuQuota, watching);
    }
    for servers in backend.servers() {
        let topology = TopologyWatcher::new(servers.clone(), &settings.redis.options());
        let watching = async move { match topology.run().await {} };
        tasks.start(Task::Probe, watching);
    }
    for batchers in batchers {
        let sending = async move { match batchers.run().await {} };
        tasks.start(Task::Batchers, sending);
    }
    if let Some(first) = reconcilers.first()
        && settings.loss.replicas.fixed().is_none()
    {
        detect_replicas(parts, first, tasks);
    }
    for store in reconcilers {
        let clock = backend.clock(settings);
        let returning = store.run(move || clock.now());
        tasks.start(Task::Reconciler, async move { match returning.await {} });
    }
}

/// Counts the replicas that use the store of `reconciler`, while any rule needs to know.
fn detect_replicas(parts: &Parts<'_>, reconciler: &Reconciler<RedisStore>, tasks: &mut OwnedTasks) {
    let settings = parts.settings;
    let number = reconciler.loss.replicas().clone();
    let stats = parts.metrics.loss.clone();
    let replicas = Replicas::new(reconciler.store.clone(), number, stats);
    let clock = parts.backend.clock(settings);
    let mut counts_locally = counts_locally(parts.rules.clone());
    let is_default: OnStoreLoss = settings.loss.on_store_loss.into();
    let is_needed = move || is_default == OnStoreLoss::Local || counts_locally();
    let looking = replicas.run(move || clock.now(), is_needed);
    tasks.start(Task::Replicas, async move { match looking.await {} });
}

/// Frees unused rules and expired counters.
async fn sweep(rules: Rules, store: Option<Arc<MemoryStore>>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let unused = rules.take_unused();
        if !unused.is_empty() {
            // Not on this thread, which has connections to accept.
            blocking(move || drop(unused)).await;
        }
        if let Some(store) = &store {
            store.sweep(grpc::now());
        }
    }
}
