//! Requests of one worker that wait for one node.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::sync::{Notify, oneshot};

use super::{StoreError, node::Node};
use crate::{
    counter::{Batch, Count},
    window::Timestamp,
};

/// Increments of one pipeline, at least one request. More of them would keep Redis busy for
/// longer than a decision may wait, and then none would ever be in time.
const MAX_INCREMENTS: usize = 1024;

/// Where a request finds its counts.
pub(super) type Answer = oneshot::Receiver<Result<Vec<Count>, StoreError>>;

/// One worker's way to one node.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) node: Arc<Node>,
    waiting: Mutex<Waiting>,
    arrived: Notify,
    /// Shared by all lanes of the worker.
    places: Arc<Places>,
    /// Batchers that serve it, and how many of them have been without a connection for as long
    /// as a decision may wait.
    batchers: u32,
    stuck: AtomicU32,
}

/// How many requests of one worker may wait at a time, whatever they wait for.
#[derive(Debug)]
pub(super) struct Places {
    taken: AtomicUsize,
    max: usize,
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            max,
        }
    }

    fn take(&self) -> Result<(), StoreError> {
        if self.taken.fetch_add(1, Relaxed) >= self.max {
            self.give_back(1);
            return Err(StoreError::Overloaded);
        }
        Ok(())
    }

    fn give_back(&self, places: usize) {
        self.taken.fetch_sub(places, Relaxed);
    }
}

/// Requests that wait for the next batch.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) batch: Batch,
    pub(super) waiters: Vec<Waiter>,
    /// The time of the last request, by which all are sent.
    pub(super) now: Option<Timestamp>,
    /// Nobody will come any more: the node is none of those that count.
    is_over: bool,
}

#[derive(Debug)]
pub(super) struct Waiter {
    /// How many increments of the batch are this request's.
    pub(super) increments: usize,
    answer: oneshot::Sender<Result<Vec<Count>, StoreError>>,
}

impl Lane {
    pub(super) fn new(node: Arc<Node>, places: Arc<Places>, batchers: u32) -> Self {
        Self {
            node,
            waiting: Mutex::default(),
            arrived: Notify::new(),
            places,
            batchers,
            stuck: AtomicU32::new(0),
        }
    }

    /// # Errors
    ///
    /// If there is no hope of an answer.
    pub(super) fn admit(&self) -> Result<(), StoreError> {
        if self.node.breaker.is_open() || self.stuck.load(Relaxed) >= self.batchers {
            self.node.meters.refused_fast.fetch_add(1, Relaxed);
            return Err(StoreError::Unreachable);
        }
        Ok(())
    }

    /// Queues one request.
    ///
    /// # Errors
    ///
    /// If there is no hope of an answer, or no place to wait for it.
    pub(super) fn push(&self, batch: &Batch, now: Timestamp) -> Result<Answer, StoreError> {
        self.admit()?;
        let mut waiting = self.lock();
        if waiting.is_over {
            return Err(StoreError::Unreachable);
        }
        self.places.take()?;
        let (answer, receiver) = oneshot::channel();
        waiting.batch.append(batch);
        waiting.now = Some(now);
        waiting.waiters.push(Waiter {
            increments: batch.len(),
            answer,
        });
        self.node.meters.queued.fetch_add(1, Relaxed);
        if waiting.waiters.len() == 1 {
            self.arrived.notify_one();
        }
        Ok(receiver)
    }

    /// Waits until there is something to send. Returns nothing if there never will be.
    pub(super) async fn arrived(&self) -> Option<()> {
        loop {
            {
                let waiting = self.lock();
                if !waiting.waiters.is_empty() {
                    return Some(());
                }
                if waiting.is_over {
                    // The other batchers are to hear of it too.
                    self.arrived.notify_one();
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Takes what one pipeline may hold.
    pub(super) fn take(&self) -> Waiting {
        let mut waiting = self.lock();
        let is_over = waiting.is_over;
        let mut taken = mem::take(&mut *waiting);
        waiting.is_over = is_over;
        if taken.batch.len() > MAX_INCREMENTS {
            let rest = taken.split_off(MAX_INCREMENTS);
            waiting.batch = rest.batch;
            waiting.waiters = rest.waiters;
            waiting.now = rest.now;
            if !waiting.waiters.is_empty() {
                self.arrived.notify_one();
            }
        }
        let count = taken.waiters.len();
        self.places.give_back(count);
        self.node.meters.queued.fetch_sub(count as u64, Relaxed);
        taken
    }

    /// Answers everybody who waits that there is no hope.
    pub(super) fn fail_all(&self, error: StoreError) {
        loop {
            let waiting = self.take();
            if waiting.waiters.is_empty() {
                return;
            }
            waiting.fail(error);
        }
    }

    /// Nobody will queue any more. Who waits is still served.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.arrived.notify_one();
    }

    /// A batcher has been without a connection for as long as a decision may wait.
    pub(super) fn stuck(&self) -> Stuck<'_> {
        self.stuck.fetch_add(1, Relaxed);
        Stuck(self)
    }

    /// A panic elsewhere cannot leave the queue half changed: nothing between the changes panics.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until it is dropped, a batcher is stuck.
pub(super) struct Stuck<'a>(&'a Lane);

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.0.stuck.fetch_sub(1, Relaxed);
    }
}

impl Waiting {
    /// Keeps the first requests, of `increments` increments at most but at least one request, and
    /// returns the others.
    fn split_off(&mut self, increments: usize) -> Self {
        let mut kept = 0;
        let mut end = 0;
        for waiter in &self.waiters {
            if kept > 0 && end + waiter.increments > increments {
                break;
            }
            kept += 1;
            end += waiter.increments;
        }
        let all = mem::take(&mut self.batch);
        self.batch.append_range(&all, 0..end);
        let mut rest = Self {
            waiters: self.waiters.split_off(kept),
            now: self.now,
            ..Self::default()
        };
        rest.batch.append_range(&all, end..all.len());
        rest
    }

    /// Forgets those who do not wait any more, with their increments.
    pub(super) fn drop_closed(&mut self) {
        if self.waiters.iter().any(|waiter| waiter.answer.is_closed()) {
            let mut open = Self {
                now: self.now,
                ..Self::default()
            };
            let mut first = 0;
            for waiter in mem::take(&mut self.waiters) {
                let own = first..first + waiter.increments;
                first = own.end;
                if !waiter.answer.is_closed() {
                    open.batch.append_range(&self.batch, own);
                    open.waiters.push(waiter);
                }
            }
            *self = open;
        }
    }

    /// Hands each waiter its own counts.
    pub(super) fn answer(self, counts: impl Iterator<Item = Result<Count, StoreError>>) {
        let mut counts = counts;
        for waiter in self.waiters {
            // All are taken, even if one is an error: what follows is the next one's.
            let own: Vec<_> = counts.by_ref().take(waiter.increments).collect();
            // Nobody to tell if the request was cancelled meanwhile; its hits have counted.
            let _ = waiter.answer.send(own.into_iter().collect());
        }
    }

    pub(super) fn fail(self, error: StoreError) {
        for waiter in self.waiters {
            let _ = waiter.answer.send(Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        counter::Identity,
        limit::Limit,
        request::{Entry, Hits},
        store::redis::{address::Place, trouble::Trouble},
        window::Unit,
    };

    fn lane(max_waiting: usize) -> Lane {
        let place = Place::Unix("/x".into());
        let node = Arc::new(Node::new(place, Arc::default()));
        Lane::new(node, Arc::new(Places::new(max_waiting)), 1)
    }

    fn batch(increments: usize) -> Batch {
        let mut batch = Batch::default();
        let mut identity = Identity::default();
        let entry = Entry {
            key: b"k",
            value: b"v",
        };
        identity.set(b"d", &[entry], &[]);
        let limit = Limit::fixed(1, Unit::Year);
        for _ in 0..increments {
            let now = Timestamp::from_secs(0);
            batch.push(&identity, &limit, limit.window(now), Hits::ONE);
        }
        batch
    }

    fn push(lane: &Lane, increments: usize) -> Result<Answer, StoreError> {
        lane.push(&batch(increments), Timestamp::from_secs(0))
    }

    #[test]
    fn what_finds_no_place_is_refused_at_once() {
        let lane = lane(2);
        let _answers = [push(&lane, 1).unwrap(), push(&lane, 1).unwrap()];
        assert_eq!(push(&lane, 1).unwrap_err(), StoreError::Overloaded);
        lane.take();
        push(&lane, 1).unwrap();
    }

    #[test]
    fn all_lanes_of_a_worker_share_its_places() {
        let first = lane(2);
        let second = Lane::new(first.node.clone(), first.places.clone(), 1);
        let _answers = [push(&first, 1).unwrap(), push(&second, 1).unwrap()];
        assert_eq!(push(&first, 1).unwrap_err(), StoreError::Overloaded);
        second.fail_all(StoreError::Unreachable);
        push(&first, 1).unwrap();
    }

    #[test]
    fn a_pipeline_is_bounded_and_nobody_is_forgotten() {
        let lane = lane(10_000);
        let sizes = [1000, 20, 5, 3000, 1];
        let _answers = sizes.map(|size| push(&lane, size).unwrap());
        let mut taken = Vec::new();
        loop {
            let waiting = lane.take();
            if waiting.waiters.is_empty() {
                break;
            }
            let waiters: usize = waiting.waiters.iter().map(|waiter| waiter.increments).sum();
            assert_eq!(waiters, waiting.batch.len());
            taken.push(waiters);
        }
        assert_eq!(taken, [1020, 5, 3000, 1]);
    }

    #[test]
    fn nobody_waits_where_there_is_no_hope() {
        let lane = lane(10);
        lane.node.lose(Trouble::Silent);
        assert_eq!(push(&lane, 1).unwrap_err(), StoreError::Unreachable);
        lane.node.regain(false);
        push(&lane, 1).unwrap();
        let stuck = lane.stuck();
        assert_eq!(push(&lane, 1).unwrap_err(), StoreError::Unreachable);
        drop(stuck);
        push(&lane, 1).unwrap();
        lane.end();
        assert_eq!(push(&lane, 1).unwrap_err(), StoreError::Unreachable);
    }
}
