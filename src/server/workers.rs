//! All workers: starts their threads, and hands accepted connections to them in turn.

use std::{convert::Infallible, io, sync::Arc, thread, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::Instant,
};

use super::{
    ports::GrpcListener,
    runtime::runtime,
    worker::{Arrival, Worker},
};
use crate::service::{budget::Budget, grpc::unary::UnaryMethod};

/// How long an accepted connection waits for a place before another is closed for it.
const PERMIT_WAIT: Duration = Duration::from_millis(50);

/// Accepted connections that may wait for a worker.
const HANDOVER: usize = 128;

/// The threads that serve connections.
#[derive(Default)]
pub(super) struct Workers {
    senders: Vec<mpsc::Sender<Arrival>>,
    /// Each ends with its worker.
    ends: JoinSet<()>,
}

impl Workers {
    /// Starts a thread for `worker`.
    pub(super) fn start<M: UnaryMethod>(&mut self, worker: Worker<M>) -> io::Result<()> {
        let (dispatcher, incoming) = mpsc::channel(HANDOVER);
        let (alive, mut end) = mpsc::channel::<Infallible>(1);
        let name = format!("worker-{}", self.senders.len());
        thread::Builder::new().name(name).spawn(move || {
            // Dropped on every exit, also after a panic.
            let _alive = alive;
            match runtime() {
                Ok(runtime) => runtime.block_on(worker.run(incoming)),
                Err(error) => tracing::error!(%error, "a worker has no runtime"),
            }
        })?;
        self.senders.push(dispatcher);
        self.ends.spawn(async move {
            end.recv().await;
        });
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.senders.len()
    }

    /// The senders of connections, one for each worker. Without them the workers end when their connections have.
    pub(super) fn senders(&mut self) -> Vec<mpsc::Sender<Arrival>> {
        std::mem::take(&mut self.senders)
    }

    /// Waits until one of them has ended.
    pub(super) async fn first_end(&mut self) {
        self.ends.join_next().await;
    }

    /// Waits until all of them have ended.
    pub(super) async fn all_end(&mut self) {
        while self.ends.join_next().await.is_some() {}
    }
}

/// Accepts connections and distributes them to the workers in turn. When all places are taken, the oldest connection
/// that has not made a call is closed for a new one. An Envoy opens one connection for each of its threads; if the
/// kernel chose the worker, all of them could end up on one core.
pub(super) async fn accept(
    listener: GrpcListener,
    senders: Vec<mpsc::Sender<Arrival>>,
    max_connections: Arc<Semaphore>,
    budget: Arc<Budget>,
) {
    for dispatcher in senders.iter().cycle() {
        let arrived = listener.accept_next().await;
        let permit = loop {
            if max_connections.available_permits() == 0 {
                budget.make_connection_room();
            }
            // Repeated, because recent connections may still be on their way to their workers.
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
