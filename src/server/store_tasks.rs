//! The tasks that the stores need once per process.

use std::{sync::Arc, time::Duration};

use super::{
    backend::{Running, StoreTasks},
    control_group,
    parts::Parts,
    tasks::{OwnedTasks, Task},
};
use crate::{
    foundation::lock::blocking,
    service::{grpc, limiter::Rules},
    store::{memory::MemoryStore, redis::topology::watcher::TopologyWatcher},
};

/// Interval between removals of expired counters.
const SWEEP: Duration = Duration::from_secs(1);

/// Starts the tasks. `of_json` are those of `/json`'s store. Returns the work to do when a drain begins, and
/// the work to wait for at its end.
pub(super) fn start(
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
    if backend.servers().next().is_some() {
        let watching = async {
            control_group::watch().await;
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
