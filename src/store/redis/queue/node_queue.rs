//! The queue of one worker for one node.

use std::{
    cell::Cell,
    future::poll_fn,
    iter, mem,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    clock::{Watchdog, Watched},
    replies::{PendingReplies, ReplyResult},
};
use crate::{
    core::{
        counter::{Batch, CounterState, CounterStates},
        window::Timestamp,
    },
    foundation::lock::lock,
    store::{
        contract::{Deadline, StoreError},
        redis::{
            health::{
                detector::TICK,
                running::{Pause, read_sockets},
            },
            node::{Node, WorkerLoad},
            stats::RedisStats,
        },
    },
};

/// The most increments of one pipeline, unless a single request has more. More would keep Redis busy for
/// longer than a decision may wait, and then no decision would ever be in time.
const MAX_INCREMENTS: usize = 1024;

/// The worker itself times a wait that may not be longer than this: the watchdog may look only after
/// [`TICK`], and see only then that a request waits for long.
const SOON: Duration = TICK.saturating_mul(2);

/// One worker's queue for one node.
#[derive(Debug)]
pub(crate) struct NodeQueue {
    pub(crate) node: Arc<Node>,
    pub(crate) load: Arc<WorkerLoad>,
    state: Mutex<QueueState>,
    /// Wakes idle batchers.
    work: Notify,
    /// Wakes all that depends on how long requests wait: [`NodeQueue::watch_time`], batchers whose reply may be
    /// late, and the stand-in batcher. Each looks for its own reason.
    pub(crate) clock: Arc<Notify>,
    watchdog: Arc<Watchdog>,
    /// Shared by all queues of the worker.
    permits: Arc<WaitPermits>,
    stats: Arc<RedisStats>,
    /// The longest that a request waits.
    longest: Duration,
    /// How many batchers have been without a connection for too long, and how many wait for a reply that is late
    /// although the node answers others.
    stuck: AtomicU32,
    stalled: AtomicU32,
}

/// The changing part of a queue, behind its lock.
#[derive(Debug, Default)]
struct QueueState {
    /// The requests that wait for the next batch, their entries among `replies`, and the time of the last one.
    /// Boxed, because it is large and moves with every batch.
    batch: Box<Batch>,
    slots: Vec<usize>,
    now: Option<Timestamp>,
    /// Empty ones, whose memory is used again.
    spare: Option<(Box<Batch>, Vec<usize>)>,
    replies: PendingReplies,
    /// Whether the watchdog watches this queue.
    is_watched: bool,
    /// Whether a request came since its last look.
    has_new: bool,
    /// Since when the worker itself has to watch the time; `None` if it need not.
    timed_since: Option<Instant>,
    /// No more requests may queue: the node has left the topology.
    is_over: bool,
}

impl NodeQueue {
    /// A queue whose requests wait for `longest` at most.
    pub(crate) fn new(
        node: Arc<Node>,
        permits: Arc<WaitPermits>,
        stats: Arc<RedisStats>,
        watchdog: Arc<Watchdog>,
        longest: Duration,
    ) -> Self {
        Self {
            load: node.new_load(),
            node,
            state: Mutex::default(),
            work: Notify::new(),
            clock: Arc::default(),
            watchdog,
            permits,
            stats,
            longest,
            stuck: AtomicU32::new(0),
            stalled: AtomicU32::new(0),
        }
    }

    /// Checks whether the node can be expected to answer.
    ///
    /// # Errors
    ///
    /// If it cannot.
    pub(crate) fn admit(&self) -> Result<(), StoreError> {
        if self.node.breaker.is_open() || self.stuck.load(Relaxed) > 0 {
            self.load.rejected_while_open.fetch_add(1, Relaxed);
            return Err(StoreError::Unsent);
        }
        Ok(())
    }

    /// Queues one request. A task that goes on to fetch the answer can give its waker here; its first
    /// poll then returns without a look at the queue.
    ///
    /// # Errors
    ///
    /// If no answer can be expected, or too many requests wait already.
    pub(crate) fn push(
        self: &Arc<Self>,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
        waker: Option<&Waker>,
    ) -> Result<PendingReply, StoreError> {
        self.admit()?;
        let mut state = lock(&self.state);
        if state.is_over {
            return Err(StoreError::Unsent);
        }
        self.permits.take()?;
        let began: Instant = deadline.began.into();
        let ends: Instant = deadline.ends(self.longest).into();
        let replies = &mut state.replies;
        let slot = replies.take(began, ends, deadline.is_for_lease, waker.cloned());
        state.batch.append(batch);
        state.slots.push(slot);
        state.now = Some(now);
        self.load.queued.store(state.slots.len() as u64, Relaxed);
        if state.slots.len() == 1 {
            self.call_batchers();
        }
        if ends <= began + SOON && state.timed_since.is_none() {
            state.timed_since = Some(began);
            self.clock.notify_waiters();
        }
        state.has_new = true;
        if !mem::replace(&mut state.is_watched, true) {
            drop(state);
            self.watchdog.add(self.clone(), began);
        }
        Ok(PendingReply {
            queue: self.clone(),
            slot: Some(slot),
            is_awaited: waker.is_some(),
        })
    }

    /// Waits until there may be something to send, or the node is lost or back. Returns `None` at the
    /// end of the queue.
    pub(crate) async fn work(&self) -> Option<()> {
        {
            let state = lock(&self.state);
            if !state.slots.is_empty() {
                return Some(());
            }
            if state.is_over {
                // Wakes the other batchers too.
                self.work.notify_one();
                return None;
            }
        }
        self.work.notified().await;
        Some(())
    }

    /// Like [`Self::work`], for the stand-in batcher: waits until there is something to send while all
    /// others wait for replies that are late.
    pub(crate) async fn stand_in(&self) -> Option<()> {
        loop {
            // Before the look, so that no notification in between is missed.
            let notified = self.clock.notified();
            {
                let state = lock(&self.state);
                if state.is_over {
                    return None;
                }
                if self.is_held_up() && !state.slots.is_empty() {
                    return Some(());
                }
            }
            notified.await;
        }
    }

    /// Whether the batcher waits for a reply that is late although the node answers others.
    pub(crate) fn is_held_up(&self) -> bool {
        self.stalled.load(Relaxed) > 0
    }

    fn call_batchers(&self) {
        self.work.notify_one();
        if self.is_held_up() {
            self.clock.notify_waiters();
        }
    }

    /// Reacts to the circuit breaker: if it is open, fails all queued requests; wakes the batchers.
    pub(crate) fn node_changed(&self) {
        if self.node.breaker.is_open() {
            // The batchers may be waiting for replies of their own.
            self.fail_all(StoreError::Unsent);
        }
        self.work.notify_waiters();
    }

    /// Takes as much as one pipeline can hold: the increments of requests that still wait. `None` if no request
    /// waits.
    pub(crate) fn take(&self) -> Option<QueuedBatch<'_>> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let (batch, slots) = state.spare.take().unwrap_or_default();
        let mut batch = mem::replace(&mut state.batch, batch);
        let mut slots = mem::replace(&mut state.slots, slots);
        if batch.len() > MAX_INCREMENTS {
            let first_end = batch.requests().next().map_or(0, |first| first.end);
            let end = first_end.max(MAX_INCREMENTS);
            (state.batch, state.slots) = split(&mut batch, &mut slots, |own, _| own.end <= end);
            if !state.slots.is_empty() {
                self.call_batchers();
            }
        }
        self.permits.give_back(slots.len());
        self.load.queued.store(state.slots.len() as u64, Relaxed);
        let replies = &mut state.replies;
        if slots.iter().fold(false, |is_any_gone, &slot| {
            is_any_gone | !replies.send(slot)
        }) {
            // An increment that is not sent is not counted.
            let (_, left) = split(&mut batch, &mut slots, |_, slot| replies.is_waiting(slot));
            for slot in left {
                replies.fail(slot, StoreError::TimedOutUnsent);
            }
        }
        let leaves = slots.iter().map(|&slot| replies.leaves(slot));
        let leaves = match leaves.clone().any(|leaves| leaves.is_some()) {
            true => leaves.collect(),
            false => Vec::new(),
        };
        let now = state.now.filter(|_| !slots.is_empty())?;
        let count = slots.len() as u64;
        self.load.in_flight.fetch_add(count, Relaxed);
        Some(QueuedBatch {
            batch,
            now,
            leaves,
            queue: self,
            slots,
            is_answered: Cell::new(false),
        })
    }

    /// Answers all queued requests with `error`.
    pub(crate) fn fail_all(&self, error: StoreError) {
        while self.is_awaited() {
            if let Some(taken) = self.take() {
                taken.fail(error);
            }
        }
    }

    fn is_awaited(&self) -> bool {
        !lock(&self.state).slots.is_empty()
    }

    /// Ends every wait whose time is over, queued or in flight: one timer serves all of them, and none
    /// runs while no request waits for long. It looks each [`TICK`], so that time in which this thread
    /// did not run is left out. Returns at the end of the queue.
    pub(crate) async fn watch_time(&self) {
        while let Some(timed_since) = self.timed_since().await {
            let mut due = timed_since;
            loop {
                let now = Instant::now();
                if let Some(pause) = self.stats.lateness.record(due, now) {
                    lock(&self.state).replies.leave_out(pause);
                }
                self.clock.notify_waiters();
                let Some(next) = self.next_end(now) else {
                    break;
                };
                // Counts from this look on, so that no pause in between is missed.
                due = now;
                if next <= now {
                    // A reply that has arrived already still counts.
                    read_sockets().await;
                    lock(&self.state).replies.end_late(now);
                } else {
                    due = next.min(now + TICK);
                    sleep_until(due).await;
                }
            }
        }
    }

    /// Waits until the time has to be watched, and returns since when. `None` at the end of the queue.
    async fn timed_since(&self) -> Option<Instant> {
        loop {
            let notified = self.clock.notified();
            {
                let state = lock(&self.state);
                if state.timed_since.is_some() {
                    return state.timed_since;
                }
                if state.is_over && !state.is_watched {
                    return None;
                }
            }
            notified.await;
        }
    }

    /// When the first wait ends. `None` if no request waits for long; the watchdog then watches again.
    fn next_end(&self, now: Instant) -> Option<Instant> {
        let mut state = lock(&self.state);
        let first = state.replies.first_since();
        let is_long = first.is_some_and(|since| since + TICK <= now);
        let next = state.replies.next_end();
        let next = next.filter(|next| is_long || *next <= now + SOON);
        if next.is_none() {
            state.timed_since = None;
        }
        next
    }

    /// Closes the queue to new requests. Waiting requests are still served.
    pub(crate) fn end(&self) {
        lock(&self.state).is_over = true;
        self.work.notify_one();
        self.clock.notify_waiters();
    }

    /// Counts a batcher that has been without a connection for as long as a node may be silent.
    pub(crate) fn stuck(&self) -> CountGuard<'_> {
        CountGuard::new(&self.stuck)
    }

    /// Counts a batcher that waits for a reply that is late although the node answers others. Until the
    /// result is dropped the stand-in may serve the queue.
    pub(crate) fn stalled(&self) -> CountGuard<'_> {
        let stalled = CountGuard::new(&self.stalled);
        if self.is_held_up() {
            self.clock.notify_waiters();
        }
        stalled
    }
}

impl Watched for NodeQueue {
    fn look(&self, pause: Option<Pause>, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let first = state.replies.first_since();
        if state.timed_since.is_none() {
            if let Some(pause) = pause {
                state.replies.leave_out(pause);
            }
            if first.is_some_and(|since| since + TICK <= now) {
                state.timed_since = Some(now);
                self.clock.notify_waiters();
            }
        }
        state.is_watched = mem::take(&mut state.has_new) || first.is_some();
        if state.is_over && !state.is_watched {
            self.clock.notify_waiters();
        }
        state.is_watched
    }
}

/// The pending reply of one request.
#[derive(Debug)]
pub(crate) struct PendingReply {
    queue: Arc<NodeQueue>,
    /// `None` once it is fetched.
    slot: Option<usize>,
    /// Whether the task that fetches it has only just queued it, with its waker.
    is_awaited: bool,
}

impl PendingReply {
    /// Waits for the counts and appends them to `counts`.
    pub(crate) async fn fetch(mut self, counts: &mut CounterStates) -> ReplyResult {
        poll_fn(|context| {
            if mem::take(&mut self.is_awaited) {
                return Poll::Pending;
            }
            let slot = self.slot.expect("it is not asked again once it has ended");
            let answered = lock(&self.queue.state).replies.poll(slot, context, counts);
            if answered.is_ready() {
                self.slot = None;
            }
            answered
        })
        .await
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            lock(&self.queue.state).replies.leave(slot);
        }
    }
}

/// Keeps the requests of `batch`, which wait at `slots`, for which `keeps` holds. Returns the others.
fn split(
    batch: &mut Box<Batch>,
    slots: &mut Vec<usize>,
    keeps: impl Fn(&Range<usize>, usize) -> bool,
) -> (Box<Batch>, Vec<usize>) {
    let all = (mem::take(batch), mem::take(slots));
    let mut others = (Box::<Batch>::default(), Vec::new());
    for (own, slot) in all.0.requests().zip(all.1) {
        let (batch, slots) = match keeps(&own, slot) {
            true => (&mut *batch, &mut *slots),
            false => (&mut others.0, &mut others.1),
        };
        batch.append_range(&all.0, own);
        slots.push(slot);
    }
    others
}

/// A batch in flight. On drop, each of its requests that has no answer gets `Unreachable`.
pub(crate) struct QueuedBatch<'a> {
    pub(crate) batch: Box<Batch>,
    /// The time with which it is sent.
    pub(crate) now: Timestamp,
    /// When the caller of each request leaves that leases hits; empty if none does.
    leaves: Vec<Option<Instant>>,
    queue: &'a NodeQueue,
    slots: Vec<usize>,
    is_answered: Cell<bool>,
}

impl QueuedBatch<'_> {
    /// The increments of each request, and when its caller leaves if they are leased.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (Range<usize>, Option<Instant>)> {
        let leaves = self.leaves.iter().copied().chain(iter::repeat(None));
        self.batch.requests().zip(leaves)
    }

    /// Whether some of its hits are leased.
    pub(crate) fn leases(&self) -> bool {
        !self.leaves.is_empty()
    }

    /// Gives each request its own counts.
    pub(crate) fn answer(&self, counts: impl Iterator<Item = Result<CounterState, StoreError>>) {
        let mut counts = counts;
        self.queue.load.record_reply();
        let mut state = lock(&self.queue.state);
        for (&slot, own) in self.slots.iter().zip(self.batch.requests()) {
            state.replies.answer(slot, counts.by_ref().take(own.len()));
        }
        self.is_answered.set(true);
    }

    /// Answers all requests with `error`.
    pub(crate) fn fail(&self, error: StoreError) {
        let mut state = lock(&self.queue.state);
        for &slot in &self.slots {
            state.replies.fail(slot, error);
        }
        self.is_answered.set(true);
    }

    /// Keeps its memory for the next batch, once every request has an answer.
    pub(crate) fn recycle(mut self) {
        self.leave();
        self.batch.clear();
        self.slots.clear();
        let memory = (mem::take(&mut self.batch), mem::take(&mut self.slots));
        lock(&self.queue.state).spare = Some(memory);
    }

    /// Answers requests that have no answer. They are no longer in flight.
    fn leave(&self) {
        let count = self.slots.len() as u64;
        self.queue.load.in_flight.fetch_sub(count, Relaxed);
        if !self.is_answered.get() {
            self.fail(StoreError::Unreachable);
        }
    }
}

impl Drop for QueuedBatch<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// How many requests of one worker may wait at a time, for all nodes together.
#[derive(Debug)]
pub(crate) struct WaitPermits {
    taken: AtomicUsize,
    max: usize,
}

impl WaitPermits {
    pub(crate) fn new(max: usize) -> Self {
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

    fn give_back(&self, permits: usize) {
        self.taken.fetch_sub(permits, Relaxed);
    }
}

/// Adds one to a count until it is dropped.
pub(crate) struct CountGuard<'a>(&'a AtomicU32);

impl<'a> CountGuard<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::{limit::Limit, request::Hits, window::Unit},
        net::endpoint::Endpoint,
        store::redis::health::failure::NodeFailure,
    };

    const DEADLINE: Duration = Duration::from_millis(50);

    fn queue(max_waiting: usize) -> Arc<NodeQueue> {
        let endpoint = Endpoint::Unix("/x".into());
        let node = Arc::new(Node::new(endpoint, Arc::default()));
        let permits = Arc::new(WaitPermits::new(max_waiting));
        Arc::new(queue_to(node, permits))
    }

    fn queue_to(node: Arc<Node>, permits: Arc<WaitPermits>) -> NodeQueue {
        NodeQueue::new(node, permits, Arc::default(), Arc::default(), DEADLINE)
    }

    /// Runs the tasks of a queue while `future` runs.
    async fn beside<T>(queue: &NodeQueue, future: impl Future<Output = T>) -> T {
        tokio::select! {
            output = future => output,
            () = queue.watch_time() => panic!("the queue has ended"),
            never = queue.watchdog.run(&queue.stats.lateness) => match never {},
        }
    }

    fn batch(increments: usize) -> Batch {
        let mut batch = Batch::default();
        let limit = Limit::fixed(1, Unit::Year);
        for _ in 0..increments {
            let now = Timestamp::from_secs(0);
            batch.push_value(b"v", &limit, now, Hits::ONE);
        }
        batch
    }

    fn push(queue: &Arc<NodeQueue>, increments: usize) -> Result<PendingReply, StoreError> {
        let now = Timestamp::from_secs(0);
        // Tests can advance the clock.
        let deadline = Deadline::of_call(Instant::now().into_std(), None);
        queue.push(&batch(increments), now, &deadline, None)
    }

    async fn fetch(answer: PendingReply) -> Result<CounterStates, StoreError> {
        let mut counts = CounterStates::new();
        answer.fetch(&mut counts).await.map(|()| counts)
    }

    #[test]
    fn a_request_without_a_permit_is_refused_at_once() {
        let queue = queue(2);
        let _answers = [push(&queue, 1).unwrap(), push(&queue, 1).unwrap()];
        assert_eq!(push(&queue, 1).unwrap_err(), StoreError::Overloaded);
        queue.take();
        let _answer = push(&queue, 1).unwrap();
    }

    #[test]
    fn all_queues_of_a_worker_share_its_permits() {
        let first = queue(2);
        let (node, permits) = (first.node.clone(), first.permits.clone());
        let second = Arc::new(queue_to(node, permits));
        let _answers = [push(&first, 1).unwrap(), push(&second, 1).unwrap()];
        assert_eq!(push(&first, 1).unwrap_err(), StoreError::Overloaded);
        second.fail_all(StoreError::Unsent);
        push(&first, 1).unwrap();
    }

    #[test]
    fn a_pipeline_is_bounded_and_every_request_is_answered() {
        let queue = queue(10_000);
        let sizes = [1000, 20, 5, 3000, 1];
        let _answers = sizes.map(|size| push(&queue, size).unwrap());
        let mut taken = Vec::new();
        while let Some(batch) = queue.take() {
            let requests: usize = batch.batch.requests().map(|request| request.len()).sum();
            assert_eq!(requests, batch.batch.len());
            taken.push(requests);
        }
        assert_eq!(taken, [1020, 5, 3000, 1]);
    }

    #[tokio::test]
    async fn every_request_gets_its_own_counts() {
        let queue = queue(10);
        let answers = [2, 1].map(|size| push(&queue, size).unwrap());
        let taken = queue.take().unwrap();
        let counts = [5, 6, 7].map(|count| Ok(CounterState::from(count)));
        taken.answer(counts.into_iter());
        taken.recycle();
        let mut results = Vec::new();
        for answer in answers {
            let counts = fetch(answer).await.unwrap();
            results.push(counts.iter().map(|count| count.after).collect::<Vec<_>>());
        }
        assert_eq!(results, [vec![5, 6], vec![7]]);
        // A batch that ends without an answer.
        let answer = push(&queue, 1).unwrap();
        drop(queue.take());
        assert_eq!(fetch(answer).await, Err(StoreError::Unreachable));
    }

    #[tokio::test]
    async fn who_does_not_wait_any_more_is_not_sent() {
        let queue = queue(10);
        let stays = push(&queue, 1).unwrap();
        drop(push(&queue, 2).unwrap());
        assert_eq!(queue.take().unwrap().batch.len(), 1);
        drop(stays);
        drop(push(&queue, 2).unwrap());
        assert!(queue.take().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_waits_longer_than_its_deadline() {
        let queue = queue(10);
        let sent = push(&queue, 1).unwrap();
        let _batch = queue.take().unwrap();
        let queued = push(&queue, 1).unwrap();
        let began = Instant::now();
        let results = beside(&queue, async { [fetch(sent).await, fetch(queued).await] }).await;
        assert_eq!(
            results,
            [Err(StoreError::Timeout), Err(StoreError::TimedOutUnsent)]
        );
        assert_eq!(began.elapsed().as_millis(), DEADLINE.as_millis());
        assert!(queue.take().is_none());
    }

    /// This thread did not run from the arrival of the request until its time was over.
    #[tokio::test(start_paused = true)]
    async fn who_comes_just_before_a_pause_has_its_whole_time_after_it() {
        let queue = queue(10);
        let queued = push(&queue, 1).unwrap();
        tokio::time::advance(3 * DEADLINE).await;
        let began = Instant::now();
        let results = beside(&queue, fetch(queued)).await;
        assert_eq!(results, Err(StoreError::TimedOutUnsent));
        assert_eq!(began.elapsed(), DEADLINE);
    }

    #[test]
    fn no_request_waits_where_there_is_no_hope() {
        let queue = queue(10);
        queue.node.lose(NodeFailure::Silent);
        assert_eq!(push(&queue, 1).unwrap_err(), StoreError::Unsent);
        queue.node.regain(false);
        push(&queue, 1).unwrap();
        let stuck = queue.stuck();
        assert_eq!(push(&queue, 1).unwrap_err(), StoreError::Unsent);
        drop(stuck);
        push(&queue, 1).unwrap();
        queue.end();
        assert_eq!(push(&queue, 1).unwrap_err(), StoreError::Unsent);
    }
}
