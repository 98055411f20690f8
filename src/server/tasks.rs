//! The tasks of the server: their kinds, which of them the process needs, and the effect of their ends.

use std::{
    any::Any,
    collections::HashMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    thread,
};

use tokio::{
    sync::oneshot,
    task::{AbortHandle, Id, JoinError, JoinSet},
};

use crate::observe::metrics::EndedTasks;

/// A kind of task. Some run several times, others only with certain settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Task {
    /// A thread that serves connections.
    Worker,
    /// Sends the requests of one worker to Redis. When it ends, the worker ends.
    WorkerBatchers,
    /// Sends the requests of `/json` to Redis.
    Batchers,
    /// Follows the servers of Redis and probes them.
    Probe,
    /// Adds hits that were counted during a loss of Redis.
    Reconciler,
    /// Counts the replicas.
    Replicas,
    /// Accepts gRPC connections.
    GrpcListener,
    HttpListener,
    DebugListener,
    PrometheusListener,
    /// Applies changed rules.
    Reload,
    /// Applies changed certificates.
    Certificates,
    Health,
    /// Frees unused rules and expired counters.
    Sweep,
    /// Watches for pauses that a CPU quota causes.
    CpuQuota,
    Statsd,
    /// Exports spans.
    Otlp,
}

/// The effect of a task's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The process ends with an error, because answers, rules or health would be wrong without the task.
    EndsProcess,
    /// The end is logged and counted, because only reports about the process are missing.
    IsReported,
}

impl Task {
    /// The name of the task in the log, and the effect of its end.
    fn facts(self) -> (&'static str, Effect) {
        use Effect::{EndsProcess, IsReported};
        match self {
            Self::Worker => ("a worker", EndsProcess),
            Self::WorkerBatchers => ("a batcher of a worker", EndsProcess),
            Self::Batchers => ("a batcher", EndsProcess),
            Self::Probe => ("the probe of Redis", EndsProcess),
            Self::Reconciler => ("the reconciliation with Redis", EndsProcess),
            Self::Replicas => ("the count of replicas", EndsProcess),
            Self::GrpcListener => ("the gRPC listener", EndsProcess),
            Self::HttpListener => ("the HTTP listener", EndsProcess),
            Self::DebugListener => ("the listener of the debug port", EndsProcess),
            Self::PrometheusListener => ("the listener for Prometheus", EndsProcess),
            Self::Reload => ("the reload of rules", EndsProcess),
            Self::Certificates => ("the reload of certificates", EndsProcess),
            Self::Health => ("the report of health", EndsProcess),
            Self::Sweep => ("the removal of expired counters", EndsProcess),
            Self::CpuQuota => ("the watch of the CPU quota", IsReported),
            Self::Statsd => ("the export to statsd", IsReported),
            Self::Otlp => ("the export of spans", IsReported),
        }
    }
}

/// A task that the process needs has ended.
#[derive(Debug, thiserror::Error)]
#[error("{task} ended, and the process cannot go on without it")]
pub(crate) struct TaskError {
    task: &'static str,
    #[source]
    cause: TaskEnd,
}

/// Why a task ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskEnd {
    #[error("it panicked: {0}")]
    Panicked(String),
    #[error("it returned")]
    Returned,
}

/// The running tasks. Dropping this ends all of them, except for threads.
#[derive(Default)]
pub(super) struct OwnedTasks {
    running: JoinSet<()>,
    tasks: HashMap<Id, (Task, AbortHandle)>,
    is_draining: bool,
    pub(super) stats: Arc<EndedTasks>,
}

impl OwnedTasks {
    /// Starts a task that should run until the process drains.
    pub(super) fn start(&mut self, task: Task, running: impl Future<Output = ()> + Send + 'static) {
        let handle = self.running.spawn(owned(task, running));
        self.tasks.insert(handle.id(), (task, handle));
    }

    /// Waits until a task that the process needs ends, and returns why.
    pub(super) async fn needed_end(&mut self) -> TaskError {
        loop {
            match self.next_end().await {
                Some(Err(error)) => return error,
                Some(Ok(())) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// From now on tasks may return.
    pub(super) fn start_draining(&mut self) {
        self.is_draining = true;
    }

    /// Waits until all tasks of this kind have ended.
    ///
    /// # Errors
    ///
    /// If a task that the process needs ends unexpectedly.
    pub(super) async fn all_end(&mut self, task: Task) -> Result<(), TaskError> {
        while self.tasks.values().any(|(kind, _)| *kind == task) {
            self.next_end().await.transpose()?;
        }
        Ok(())
    }

    /// Ends all tasks of this kind.
    ///
    /// # Errors
    ///
    /// As [`Self::all_end`].
    pub(super) async fn stop(&mut self, task: Task) -> Result<(), TaskError> {
        for (kind, handle) in self.tasks.values() {
            if *kind == task {
                handle.abort();
            }
        }
        self.all_end(task).await
    }

    /// Waits for the next task to end; `None` if there are no tasks.
    async fn next_end(&mut self) -> Option<Result<(), TaskError>> {
        let ended = self.running.join_next_with_id().await?;
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, ())| *id);
        let (task, _) = self.tasks.remove(&id).expect("it was started here");
        let cause = match ended {
            Ok(_) if self.is_draining => return Some(Ok(())),
            Ok(_) => TaskEnd::Returned,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => TaskEnd::Panicked(panic_text(&*panic).to_owned()),
                Err(_stopped) => return Some(Ok(())),
            },
        };
        self.stats.count();
        let (name, effect) = task.facts();
        Some(match effect {
            Effect::EndsProcess => Err(TaskError { task: name, cause }),
            Effect::IsReported => {
                tracing::error!("{name} ended, and decisions go on without it: {cause}");
                Ok(())
            }
        })
    }
}

/// Runs `body` on a thread of its own. The future ends with the thread, and panics if the thread did.
pub(super) fn on_thread(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let (end, ended) = oneshot::channel();
    thread::Builder::new().name(name).spawn(move || {
        // If nothing waits for the thread, the process is ending.
        let _ = end.send(catch_unwind(AssertUnwindSafe(body)));
    })?;
    Ok(async move {
        if let Ok(Err(panic)) = ended.await {
            resume_unwind(panic);
        }
    })
}

/// The message of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

/// Returns the task unchanged. The version for unit tests can end it.
#[cfg(not(test))]
pub(super) fn owned<F: Future<Output = ()>>(_: Task, running: F) -> F {
    running
}

#[cfg(test)]
pub(super) use tests::owned;

#[cfg(test)]
mod tests;
