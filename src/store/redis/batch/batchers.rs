//! The queues of one worker and the batchers that serve them.

use super::batcher::{Batcher, Role};
use crate::{
    foundation::lock::lock,
    store::redis::{
        health::failure::NodeFailure,
        options::Options,
        queue::node_queue::{NodeQueue, WaitPermits},
        topology::{servers::Servers, slot_map::SlotMap},
    },
};

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, Weak},
};

use tokio::{sync::watch, task::JoinSet};

/// A slot map, and the queues of its nodes in their order.
#[derive(Debug)]
pub(crate) struct QueueView {
    pub(crate) map: Arc<SlotMap>,
    pub(crate) queues: Vec<Arc<NodeQueue>>,
}

/// The batchers of one worker: one for each node, and its stand-in.
#[derive(Debug)]
pub struct Batchers {
    pub(crate) servers: Servers,
    pub(crate) options: Arc<Options>,
    pub(crate) permits: Arc<WaitPermits>,
    pub(crate) view: Arc<Mutex<Arc<QueueView>>>,
    /// Queues that no batcher serves yet.
    pub(crate) new_queues: Vec<Arc<NodeQueue>>,
}

impl Batchers {
    /// Serves the queues of all nodes of the map, also when it changes.
    pub async fn run(mut self) -> Infallible {
        let mut maps = self.servers.0.map.subscribe();
        let mut running = JoinSet::new();
        loop {
            let map = maps.borrow_and_update().clone();
            self.follow(map);
            for queue in std::mem::take(&mut self.new_queues) {
                let timed = queue.clone();
                running.spawn(async move { timed.watch_time().await });
                let failure = queue.node.breaker.watch();
                running.spawn(follow_breaker(Arc::downgrade(&queue), failure));
                // One connection for each: more would make batches smaller.
                for role in [Role::Regular, Role::StandIn] {
                    let (servers, options) = (self.servers.clone(), self.options.clone());
                    let pool = Batcher::pool(&servers, &queue.node);
                    let batcher = Batcher::new(role, queue.clone(), servers, options);
                    running.spawn(batcher.run(pool));
                }
            }
            tokio::select! {
                // The servers keep the sender.
                _ = maps.changed() => {}
                Some(ended) = running.join_next() => if let Err(error) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                },
            }
        }
    }

    /// Opens queues for nodes that are new on `map`, and ends those of nodes that it lacks.
    pub(crate) fn follow(&mut self, map: Arc<SlotMap>) {
        let mut view = lock(&self.view);
        if Arc::ptr_eq(&view.map, &map) {
            return;
        }
        let queues: Vec<_> = map
            .nodes
            .iter()
            .map(|node| {
                let known = view
                    .queues
                    .iter()
                    .find(|queue| Arc::ptr_eq(&queue.node, node));
                known.cloned().unwrap_or_else(|| {
                    let queue = Arc::new(NodeQueue::new(
                        node.clone(),
                        self.permits.clone(),
                        self.servers.0.stats.clone(),
                        self.servers.0.watchdog.clone(),
                        self.options.deadline,
                    ));
                    self.new_queues.push(queue.clone());
                    queue
                })
            })
            .collect();
        for queue in &view.queues {
            if !queues.iter().any(|stays| Arc::ptr_eq(stays, queue)) {
                queue.end();
            }
        }
        *view = Arc::new(QueueView { map, queues });
    }
}

/// Notifies the batchers when the circuit breaker opens or closes. Ends with the node or its queue.
pub(crate) async fn follow_breaker(
    queue: Weak<NodeQueue>,
    mut failure: watch::Receiver<Option<NodeFailure>>,
) {
    while failure.changed().await.is_ok() {
        let Some(queue) = queue.upgrade() else { return };
        queue.node_changed();
    }
}
