//! The threads of all workers: each has its own runtime and serves its share of the connections, which it gets in turn.

use std::{io, panic::resume_unwind, sync::Arc, time::Duration};

use tokio::{
    runtime::{Builder, Runtime},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::{JoinError, JoinSet},
    time::Instant,
};

use crate::{
    foundation::log_throttle::LogThrottle,
    server::{
        backend::Running,
        connection::ConnectionServer,
        ports::{Detached, GrpcListener},
        tasks::{OwnedTasks, Task, on_thread},
    },
    service::{grpc::unary::UnaryMethod, held_bytes::HeldBound},
};

/// How long an accepted connection waits for a place before another one is closed for it.
const PERMIT_WAIT: Duration = Duration::from_millis(50);

static WAITING: LogThrottle = LogThrottle::new();

/// Most accepted connections that wait for a worker.
const HANDOVER: usize = 128;

/// The threads that serve connections.
#[derive(Default)]
pub(super) struct Workers {
    senders: Vec<mpsc::Sender<Arrival>>,
}

impl Workers {
    /// Starts a thread for `worker`.
    pub(super) fn start<M: UnaryMethod>(
        &mut self,
        worker: Worker<M>,
        tasks: &mut OwnedTasks,
    ) -> io::Result<()> {
        let (dispatcher, incoming) = mpsc::channel(HANDOVER);
        let name = format!("worker-{}", self.senders.len());
        let running = on_thread(name, move || match runtime() {
            Ok(runtime) => {
                runtime.block_on(worker.run(incoming));
                // A pending look-up of a name must not delay the exit.
                runtime.shutdown_background();
            }
            Err(error) => tracing::error!(%error, "a worker has no runtime"),
        })?;
        tasks.start(Task::Worker, running);
        self.senders.push(dispatcher);
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.senders.len()
    }

    /// Takes the senders of connections, one for each worker. Without a sender, a worker ends when its connections have
    /// ended.
    pub(super) fn senders(&mut self) -> Vec<mpsc::Sender<Arrival>> {
        std::mem::take(&mut self.senders)
    }
}

/// Accepts connections and distributes them to the workers in turn. When all places are taken, connections without a
/// call are closed for a new one, or else the one without a call for the longest. An Envoy opens one connection for
/// each of its threads; if the kernel chose the worker, all of them could end up on one core.
pub(super) async fn accept(
    listener: GrpcListener,
    senders: Vec<mpsc::Sender<Arrival>>,
    max_connections: Arc<Semaphore>,
    bound: Arc<HeldBound>,
) {
    for dispatcher in senders.iter().cycle() {
        let arrived = listener.accept_next().await;
        let permit = loop {
            let is_full = max_connections.available_permits() == 0;
            if is_full && !bound.make_connection_room() && WAITING.may_log() {
                tracing::warn!(
                    "every place for a gRPC connection is in use, and the next one waits: raise --max-connections, or \
                     the memory limit that it is derived from"
                );
            }
            // This is repeated, because recent connections can still be on their way to their workers.
            let permit = tokio::time::timeout(PERMIT_WAIT, max_connections.clone().acquire_owned());
            match permit.await {
                Ok(Ok(permit)) => break permit,
                Ok(Err(_closed)) => return,
                Err(_elapsed) => {}
            }
        };
        let Ok(stream) = arrived.detach() else {
            continue;
        };
        let at = Instant::now();
        // The end of a worker ends the process anyway.
        let _ = dispatcher.send(Arrival { stream, at, permit }).await;
    }
}

/// A current-thread runtime. Its tasks never move to another thread, so no wake-up crosses cores.
pub(super) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// An accepted connection on its way to a worker. It takes up one of the places for connections.
pub(super) struct Arrival {
    pub(super) stream: Detached,
    pub(super) at: Instant,
    pub(super) permit: OwnedSemaphorePermit,
}

/// A worker's method and the tasks of its store.
pub(super) struct Worker<M> {
    pub(super) server: ConnectionServer<M>,
    pub(super) of_store: Vec<Running>,
    /// Work of its store for the beginning of a drain.
    pub(super) at_drain: Vec<Running>,
    /// Work to wait for once all connections have closed.
    pub(super) at_end: Vec<Running>,
}

impl<M: UnaryMethod> Worker<M> {
    /// Serves arriving connections until a drain has begun and all have closed.
    pub(super) async fn run(self, mut incoming: mpsc::Receiver<Arrival>) {
        let mut of_store: JoinSet<()> = self.of_store.into_iter().collect();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                arrival = incoming.recv() => match arrival {
                    Some(Arrival { stream, at, permit }) => {
                        let account = self.server.account();
                        let served = self.server.clone().connection(stream, at, account.clone());
                        account.served_by(connections.spawn(async move {
                            served.await;
                            drop(permit);
                        }));
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
