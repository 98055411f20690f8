//! The tasks of the server. The end of any of them ends the process with its error, but for sinks of metrics,
//! which start again.

use std::{
    any::Any,
    collections::HashMap,
    future::poll_fn,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
    thread,
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::{AbortHandle, Id, JoinError, JoinSet},
};

use crate::{
    foundation::backoff::{Backoff, BackoffWaits},
    observe::metrics::ServerStats,
};

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
    /// Ends losses of Redis when it is back.
    Losses,
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
    Statsd,
}

impl Task {
    /// The name of the task in the log.
    fn name(self) -> &'static str {
        match self {
            Self::Worker => "a worker",
            Self::WorkerBatchers => "a batcher of a worker",
            Self::Batchers => "a batcher",
            Self::Probe => "the probe of Redis",
            Self::Losses => "the wait for the return of Redis",
            Self::Replicas => "the count of replicas",
            Self::GrpcListener => "the gRPC listener",
            Self::HttpListener => "the HTTP listener",
            Self::DebugListener => "the listener of the debug port",
            Self::PrometheusListener => "the listener for Prometheus",
            Self::Reload => "the reload of rules",
            Self::Certificates => "the reload of certificates",
            Self::Health => "the report of health",
            Self::Sweep => "the removal of expired counters",
            Self::Statsd => "the export to statsd",
        }
    }
}

/// A task has ended, and the process ends with it.
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
    is_draining: Arc<AtomicBool>,
    pub(super) stats: Arc<ServerStats>,
}

impl OwnedTasks {
    /// Starts a task that should run until the process drains.
    pub(super) fn start(&mut self, task: Task, running: impl Future<Output = ()> + Send + 'static) {
        self.spawn(task, owned(task, running));
    }

    /// Starts a sink of metrics with its `state`. If it ends before the process drains, it starts again after a while,
    /// because decisions go on without it.
    pub(super) fn start_sink<S: Send + 'static>(
        &mut self,
        task: Task,
        mut state: S,
        run: impl Fn(&mut S) -> SinkRun<'_> + Send + Sync + 'static,
    ) {
        let (is_draining, stats) = (self.is_draining.clone(), self.stats.clone());
        self.spawn(task, async move {
            let mut waits = BackoffWaits::new(RESTART);
            loop {
                let cause = match caught(owned(task, run(&mut state))).await {
                    Ok(()) if is_draining.load(Relaxed) => return,
                    Ok(()) => TaskEnd::Returned,
                    Err(panic) => TaskEnd::Panicked(panic_text(&*panic).to_owned()),
                };
                stats.ended_tasks.fetch_add(1, Relaxed);
                let wait = waits.next_wait();
                tracing::error!(
                    "{} ended, and starts again in {wait:?}: {cause}",
                    task.name()
                );
                tokio::time::sleep(wait).await;
            }
        });
    }

    fn spawn(&mut self, task: Task, running: impl Future<Output = ()> + Send + 'static) {
        let handle = self.running.spawn(running);
        self.tasks.insert(handle.id(), (task, handle));
    }

    /// Waits until a task ends that should not, and returns why.
    pub(super) async fn unexpected_end(&mut self) -> TaskError {
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
        self.is_draining.store(true, Relaxed);
    }

    /// Waits until all tasks of this kind have ended.
    ///
    /// # Errors
    ///
    /// If a task ends unexpectedly.
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
            Ok(_) if self.is_draining.load(Relaxed) => return Some(Ok(())),
            Ok(_) => TaskEnd::Returned,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => TaskEnd::Panicked(panic_text(&*panic).to_owned()),
                Err(_stopped) => return Some(Ok(())),
            },
        };
        let task = task.name();
        Some(Err(TaskError { task, cause }))
    }
}

/// A sink that runs on its state.
type SinkRun<'s> = Pin<Box<dyn Future<Output = ()> + Send + 's>>;

/// Waits between the starts of a sink.
const RESTART: Backoff = Backoff {
    initial: Duration::from_secs(1),
    max: Duration::from_secs(60),
    factor: 2.0,
    jitter: false,
};

/// Runs a future, and returns its panic if it has one.
async fn caught(running: impl Future<Output = ()>) -> thread::Result<()> {
    let mut running = pin!(running);
    poll_fn(|context| {
        let poll = || running.as_mut().poll(context);
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
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
