//! Counters in Redis: requests queue, and a connection that is free sends all queued requests as one
//! pipeline.
//!
//! Every worker has a store of its own, with a queue for each node, so the path of a request shares
//! nothing between cores. Batches form by themselves: while one is in flight the next gathers, and an
//! idle worker sends at once. Workers share only the topology and the health of the nodes.
//!
//! ```text
//! RedisStore ──parts──▶ NodeQueue ──Batcher──▶ Connection             each worker, each node
//!      ▲                                │
//!   SlotMap ◀──TopologyWatcher──▶ Node ◀┴─Probe                      once for the process
//! ```
//!
//! The life of a hit: this store finds the nodes of a request's keys (`topology/slot_map`), and splits the request if
//! there are several. `batch/queue` hands it to the loop of its node, `batch/batcher`, which takes all requests that
//! wait when its connection is free. `batch/pipeline` writes the commands: one INCR for the hits of several requests on
//! a key, or the script of `batch/step`. `connection` sends them in one round trip; `batch/redirect` follows MOVED and
//! ASK. Each request gets its reply over a channel of its own. `probe` says whether a node is worth the wait.

use super::options::Options;
use crate::{
    core::{
        counter::{Batch, CounterStates},
        window::Timestamp,
    },
    foundation::lock::lock,
    store::{
        contract::{Deadline, Store, StoreError, StoreState},
        known::Known,
        redis::{
            batch::{
                batchers::{Batchers, QueueView},
                queue::{NodeQueue, PendingReply},
            },
            topology::servers::Servers,
        },
        split,
    },
};

use std::sync::{Arc, Mutex};

/// A worker's store in Redis.
#[derive(Clone, Debug)]
pub struct RedisStore {
    pub(super) view: Arc<Mutex<Arc<QueueView>>>,
    pub(super) key_prefix: Arc<[u8]>,
}

impl RedisStore {
    /// A store, and the task that has to run on the same worker to answer its requests.
    pub fn new(servers: &Arc<Servers>, options: &Options, known: &Arc<Known>) -> (Self, Batchers) {
        let batchers = Batchers::new(servers.clone(), options.clone(), known.clone());
        let store = Self {
            view: batchers.view.clone(),
            key_prefix: options.key_prefix.as_bytes().into(),
        };
        (store, batchers)
    }

    async fn add_to_cluster(
        view: Arc<QueueView>,
        key_prefix: &[u8],
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<CounterStates, StoreError> {
        let (split, nodes) = view.map.parts(key_prefix, batch, false)?;
        let cluster = |nodes| ClusterNodes {
            view: view.clone(),
            nodes,
            now,
        };
        let added = match split.only() {
            Some(only) => {
                let queue = &view.queues[nodes[only]];
                queue.push(batch, now, deadline)?.fetch().await
            }
            None => split.add(batch, &cluster(nodes), deadline).await,
        };
        if added != Err(StoreError::Moving) {
            return added;
        }
        let (split, nodes) = view.map.parts(key_prefix, batch, true)?;
        // Boxed, because slots hardly ever move.
        Box::pin(split.add(batch, &cluster(nodes), deadline)).await
    }
}

/// The nodes of a cluster that one request needs.
struct ClusterNodes {
    view: Arc<QueueView>,
    /// The index of each part's node in the map.
    nodes: Vec<usize>,
    now: Timestamp,
}

impl ClusterNodes {
    /// Queues all parts, or none.
    fn push(
        &self,
        parts: &[Batch],
        deadline: &Deadline,
    ) -> Result<Vec<Option<PendingReply>>, StoreError> {
        let queues = || self.nodes.iter().map(|&node| &self.view.queues[node]);
        let is_lost =
            |(part, queue): (&Batch, &NodeQueue)| !part.is_empty() && queue.node.is_lost();
        if parts.iter().zip(queues()).any(is_lost) {
            return Err(StoreError::Unsent);
        }
        let push = |(part, queue): (&Batch, &NodeQueue)| match part.is_empty() {
            true => Ok(None),
            // A part whose answer is dropped leaves the queue and is not sent.
            false => queue.push(part, self.now, deadline).map(Some),
        };
        parts.iter().zip(queues()).map(push).collect()
    }
}

impl split::PartStores for ClusterNodes {
    async fn add(
        &self,
        parts: &[Batch],
        deadline: &Deadline,
    ) -> Vec<Result<CounterStates, StoreError>> {
        let answers = match self.push(parts, deadline) {
            Ok(answers) => answers,
            Err(error) => return parts.iter().map(|_| Err(error)).collect(),
        };
        // All parts are in flight, so the order of waiting does not matter.
        let mut answered = Vec::with_capacity(answers.len());
        for answer in answers {
            answered.push(match answer {
                Some(answer) => answer.fetch().await,
                None => Ok(CounterStates::new()),
            });
        }
        answered
    }
}

impl Store for RedisStore {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let view = lock(&self.view).clone();
        *counts = if view.map.is_cluster() {
            // Boxed, to keep the future of all other requests small.
            Box::pin(Self::add_to_cluster(
                view,
                &self.key_prefix,
                batch,
                now,
                deadline,
            ))
            .await?
        } else {
            let queue = view.queues.first().ok_or(StoreError::Unsent)?;
            queue.push(batch, now, deadline)?.fetch().await?
        };
        Ok(())
    }

    fn state(&self) -> StoreState {
        let map = lock(&self.view).map.clone();
        StoreState {
            is_well: map.is_complete && map.nodes.iter().all(|node| !node.is_lost()),
            is_one_step: !map.is_cluster(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::client::ClientTls;
    use crate::store::known::KnownTables;
    use crate::store::redis::options::TimeSource;
    use crate::store::redis::topology::address::Address;
    use crate::store::redis::topology::address::Secret;
    use crate::store::redis::topology::watcher::TopologyWatcher;
    use std::time::Duration;

    /// A panic prints the values it concerns.
    #[test]
    fn nothing_that_holds_a_password_prints_it() {
        let address = Address {
            url: Secret::Text("redis://u:sesame@h:1".to_owned()),
            kind: None,
            auth: Some(Secret::Text("sesame".to_owned())),
            sentinel_auth: Some(Secret::Text("sesame".to_owned())),
            timeout: Duration::from_secs(1),
            is_tls: false,
            sentinels_tls: None,
            tls: ClientTls::default(),
        };
        let servers = Servers::new(&address, Arc::default(), || Timestamp::from_secs(0)).unwrap();
        let options = Options {
            key_prefix: String::new(),
            deadline: Duration::from_secs(1),
            lose_after: Duration::from_secs(1),
            jitter_secs: 0,
            clock: TimeSource::Redis,
        };
        let topology = TopologyWatcher::new(servers.clone(), &options);
        let store = RedisStore::new(&servers, &options, &KnownTables::default().new_worker(0));
        let printed = format!("{address:?} {servers:?} {topology:?} {store:?}");
        assert!(printed.contains("Connector"), "{printed}");
        assert!(!printed.contains("sesame"), "{printed}");
    }
}
