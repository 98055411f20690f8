//! A worker: a thread with its own runtime, which serves its share of the connections.

use std::panic::resume_unwind;

use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::{JoinError, JoinSet},
    time::Instant,
};

use super::{backend::Running, connection::ConnectionServer, ports::Detached};
use crate::service::grpc::unary::UnaryMethod;

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
