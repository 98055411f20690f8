//! The threads of all workers: each has its own runtime and serves its share of the connections, which it gets in turn.

use std::{io, panic::resume_unwind};

use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
    task::{JoinError, JoinSet},
};

use crate::server::{
    accept::Arrival,
    backend::Running,
    tasks::{OwnedTasks, Task, on_thread},
};

/// Most accepted connections that wait for a worker.
const HANDOVER: usize = 128;

/// Starts a thread for `worker`. Returns the sender of its connections; without it, the worker ends when they have
/// ended.
pub(super) fn start<F: Future<Output = ()> + Send + 'static>(
    number: usize,
    worker: Worker<impl Fn(Arrival) -> F + Send + 'static>,
    tasks: &mut OwnedTasks,
) -> io::Result<mpsc::Sender<Arrival>> {
    let (sender, incoming) = mpsc::channel(HANDOVER);
    let running = on_thread(format!("worker-{number}"), move || match runtime() {
        Ok(runtime) => {
            runtime.block_on(worker.run(incoming));
            // A pending look-up of a name must not delay the exit.
            runtime.shutdown_background();
        }
        Err(error) => tracing::error!(%error, "a worker has no runtime"),
    })?;
    tasks.start(Task::Worker, running);
    Ok(sender)
}

/// A current-thread runtime. Its tasks never move to another thread, so no wake-up crosses cores.
pub(super) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// How a worker serves a connection, and the tasks of its store.
pub(super) struct Worker<S> {
    pub(super) serve: S,
    pub(super) of_store: Vec<Running>,
    /// Work of its store for the beginning of a drain.
    pub(super) at_drain: Vec<Running>,
    /// Work to wait for once all connections have closed.
    pub(super) at_end: Vec<Running>,
}

impl<F: Future<Output = ()> + Send + 'static, S: Fn(Arrival) -> F> Worker<S> {
    /// Serves arriving connections until a drain has begun and all have closed.
    pub(super) async fn run(self, mut incoming: mpsc::Receiver<Arrival>) {
        let mut of_store: JoinSet<()> = self.of_store.into_iter().collect();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                arrival = incoming.recv() => match arrival {
                    Some(arrival) => {
                        connections.spawn((self.serve)(arrival));
                    }
                    // The dispatcher has stopped.
                    None => break,
                },
                // A connection that panicked is closed.
                Some(_) = connections.join_next() => {}
                // Without this task no request is answered.
                Some(ended) = of_store.join_next() => match ended.map_err(JoinError::try_into_panic) {
                    Err(Ok(panic)) => resume_unwind(panic),
                    _ => return,
                },
            }
        }
        connections.spawn(async move {
            for ends in self.at_drain {
                ends.await;
            }
        });
        while connections.join_next().await.is_some() {}
        for ends in self.at_end {
            ends.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;

    fn idle(_: Arrival) -> impl Future<Output = ()> + Send {
        pending()
    }

    #[tokio::test]
    async fn the_store_of_a_worker_ends_when_a_drain_begins_and_while_its_tasks_run() {
        let (end, ended) = oneshot::channel();
        let (ask, asked) = oneshot::channel();
        let worker = Worker {
            serve: idle,
            // This stands for the batchers of a store, without which nothing is given back.
            of_store: vec![Box::pin(async move {
                asked.await.unwrap();
                end.send(()).unwrap();
                pending().await
            })],
            at_drain: vec![Box::pin(async move {
                ask.send(()).unwrap();
                ended.await.unwrap();
            })],
            at_end: Vec::new(),
        };
        let (accepted, incoming) = mpsc::channel(1);
        drop(accepted);
        worker.run(incoming).await;
    }
}
