//! The queues of one worker and the loops that serve them.

use super::{
    batcher::{Batcher, OwedExpiries},
    queue::NodeQueue,
};
use crate::{
    foundation::lock::lock,
    store::{
        known::Known,
        redis::{
            options::Options,
            pool::ConnectionFactory,
            topology::{servers::Servers, slot_map::SlotMap},
        },
    },
};

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use tokio::task::JoinSet;

/// A slot map, and the queues of its nodes in their order.
#[derive(Debug, Default)]
pub(crate) struct QueueView {
    pub(crate) map: Arc<SlotMap>,
    pub(crate) queues: Vec<NodeQueue>,
}

/// The loops of one worker, one for each node: more connections would make batches smaller.
#[derive(Debug)]
pub struct Batchers {
    servers: Arc<Servers>,
    options: Arc<Options>,
    pub(crate) view: Arc<Mutex<Arc<QueueView>>>,
    known: Arc<Known>,
    owed: OwedExpiries,
    /// Loops that do not run yet.
    new: Vec<Batcher>,
}

impl Batchers {
    pub(crate) fn new(servers: Arc<Servers>, options: Options, known: Arc<Known>) -> Self {
        let mut batchers = Self {
            options: Arc::new(options),
            view: Arc::default(),
            known,
            owed: Arc::default(),
            new: Vec::new(),
            servers,
        };
        batchers.follow(batchers.servers.map());
        batchers
    }

    /// Serves the queues of all nodes of the map, also when it changes.
    pub async fn run(mut self) -> Infallible {
        let mut maps = self.servers.map.subscribe();
        let mut running = JoinSet::new();
        loop {
            let map = maps.borrow_and_update().clone();
            self.follow(map);
            for batcher in std::mem::take(&mut self.new) {
                let factory = ConnectionFactory {
                    connector: self.servers.connector.clone(),
                    node: batcher.node.clone(),
                    stats: self.servers.stats.clone(),
                };
                running.spawn(batcher.run(factory.pool()));
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
    fn follow(&mut self, map: Arc<SlotMap>) {
        let mut view = lock(&self.view);
        if Arc::ptr_eq(&view.map, &map) {
            return;
        }
        let mut queues = Vec::with_capacity(map.nodes.len());
        for node in &map.nodes {
            let known = view
                .queues
                .iter()
                .find(|queue| Arc::ptr_eq(&queue.node, node));
            queues.push(known.cloned().unwrap_or_else(|| {
                let (queue, requests) = NodeQueue::new(node.clone(), self.options.deadline);
                let (servers, options) = (self.servers.clone(), self.options.clone());
                let (known, owed) = (self.known.clone(), self.owed.clone());
                self.new.push(Batcher::new(
                    node.clone(),
                    requests,
                    servers,
                    options,
                    known,
                    owed,
                ));
                queue
            }));
        }
        *view = Arc::new(QueueView { map, queues });
    }
}
