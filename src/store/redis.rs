//! Counters in Redis: requests queue, and whatever is queued when a connection is free goes out as
//! one pipeline.
//!
//! Every worker has a store of its own, so nothing here is shared between cores. Batches form by
//! themselves: while one is on its way the next gathers, and an idle worker sends at once.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use super::{Store, StoreError};
use crate::{
    counter::{Batch, Count},
    window::Timestamp,
};

mod batcher;
mod connection;
mod pipeline;

pub use batcher::Batcher;
pub use connection::{Address, BadUrl, Connections, Tls};

/// How the store talks to Redis.
#[derive(Clone, Debug)]
pub struct Options {
    /// What every key begins with.
    pub key_prefix: String,
    /// The longest a decision waits; also the longest a batch may be on its way.
    pub deadline: Duration,
    /// Connections of each worker. More than one make smaller batches.
    pub connections: u32,
    /// Keys end up to this much later than their window, spread evenly; 0 for none.
    pub jitter_secs: u64,
    /// Requests of one worker that may wait at a time; the next one is refused at once.
    pub max_waiting: usize,
    /// By which clock limits without windows of their own are counted.
    pub clock: Clock,
}

/// Whose time it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// That of the Redis which holds the counter, so that replicas need not agree.
    #[default]
    Redis,
    /// That of this process, as told with each request.
    Local,
}

/// A worker's door to Redis.
#[derive(Clone, Debug)]
pub struct RedisStore {
    queue: Arc<Queue>,
    deadline: Duration,
}

impl RedisStore {
    /// A store, and the tasks that have to run for it to answer.
    pub fn new(connections: &Connections, options: &Options) -> (Self, Vec<Batcher>) {
        let queue = Arc::new(Queue {
            max_waiting: options.max_waiting,
            ..Queue::default()
        });
        let pool = connections.pool(options);
        let meters = connections.meters();
        let batcher =
            |_| Batcher::new(queue.clone(), pool.clone(), options.clone(), meters.clone());
        let batchers = (0..options.connections).map(batcher).collect();
        let store = Self {
            queue,
            deadline: options.deadline,
        };
        (store, batchers)
    }
}

impl Store for RedisStore {
    async fn add(&self, batch: &Batch, now: Timestamp) -> Result<Vec<Count>, StoreError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let answer = self.queue.push(batch, now)?;
        match tokio::time::timeout(self.deadline, answer).await {
            Ok(Ok(counts)) => counts,
            Ok(Err(_gone)) => Err(StoreError::Unreachable),
            Err(_elapsed) => Err(StoreError::Timeout),
        }
    }
}

/// Requests that wait for the next batch.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    max_waiting: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    batch: Batch,
    waiters: Vec<Waiter>,
    /// The time of the last request, by which all are sent.
    now: Option<Timestamp>,
}

#[derive(Debug)]
struct Waiter {
    /// How many increments of the batch are this request's.
    increments: usize,
    answer: oneshot::Sender<Result<Vec<Count>, StoreError>>,
}

impl Queue {
    fn push(
        &self,
        batch: &Batch,
        now: Timestamp,
    ) -> Result<oneshot::Receiver<Result<Vec<Count>, StoreError>>, StoreError> {
        let mut waiting = self.lock();
        if waiting.waiters.len() >= self.max_waiting {
            return Err(StoreError::Overloaded);
        }
        let (answer, receiver) = oneshot::channel();
        waiting.batch.append(batch);
        waiting.now = Some(now);
        waiting.waiters.push(Waiter {
            increments: batch.len(),
            answer,
        });
        if waiting.waiters.len() == 1 {
            self.arrived.notify_one();
        }
        Ok(receiver)
    }

    /// Waits until there is something to send.
    async fn arrived(&self) {
        while self.lock().waiters.is_empty() {
            self.arrived.notified().await;
        }
    }

    fn take(&self) -> Waiting {
        mem::take(&mut *self.lock())
    }

    /// A panic elsewhere cannot leave the queue half changed: nothing between the changes panics.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the batchers of all workers have done.
#[derive(Debug, Default)]
pub struct Meters {
    pub pipelines: AtomicU64,
    pub commands: AtomicU64,
    pub failures: AtomicU64,
    pub connections_opened: AtomicU64,
    pub connections_closed: AtomicU64,
}

impl Meters {
    fn record_pipeline(&self, commands: usize) {
        self.pipelines.fetch_add(1, Ordering::Relaxed);
        self.commands.fetch_add(commands as u64, Ordering::Relaxed);
    }

    /// A batch that failed, or a connection that did not come up.
    fn record_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}
