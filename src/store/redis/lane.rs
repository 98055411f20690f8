//! The queue of one worker for one node.

use std::{
    future::poll_fn,
    mem,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
    Meters, StoreError,
    detector::TICK,
    node::{Load, Node},
    running::{Pause, read_sockets},
    seats::{Answered, Seats},
    ticks::Ticks,
};
use crate::{
    counter::{Batch, Count, CountList},
    store::Deadline,
    window::Timestamp,
};

/// The most increments of one pipeline, unless a single request has more. More would keep Redis busy for
/// longer than a decision may wait, and then no decision would ever be in time.
const MAX_INCREMENTS: usize = 1024;

/// The worker itself times a wait that may not be longer than this: the ticks may look only after
/// [`TICK`], and see only then that a request waits for long.
const SOON: Duration = TICK.saturating_mul(2);

/// One worker's queue for one node.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) node: Arc<Node>,
    pub(super) load: Arc<Load>,
    queue: Mutex<Queue>,
    /// Wakes idle batchers.
    news: Notify,
    /// Wakes the stand-in batcher when all others wait for a connection that is held up.
    relief: Notify,
    /// Wakes [`Lane::watch_time`] when a request waits so long that the worker itself has to watch the
    /// time.
    timed: Notify,
    /// For batchers: a request has waited for longer than [`TICK`], perhaps for the reply to their
    /// batch.
    pub(super) overdue: Arc<Notify>,
    ticks: Arc<Ticks>,
    /// Shared by all queues of the worker.
    places: Arc<Places>,
    meters: Arc<Meters>,
    /// The longest that a request waits.
    longest: Duration,
    /// The batchers that serve the queue, how many of them have been without a connection for too long,
    /// and how many wait for a reply that is late although the node answers others.
    batchers: u32,
    stuck: AtomicU32,
    stalled: AtomicU32,
}

/// How many requests of one worker may wait at a time, for all nodes together.
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

#[derive(Debug, Default)]
struct Queue {
    waiting: Waiting,
    /// An empty one whose memory is used again.
    spare: Option<Waiting>,
    seats: Seats,
    /// Whether the ticks watch this queue.
    is_watched: bool,
    /// Whether a request came since their last look.
    has_come: bool,
    /// Since when the worker itself has to watch the time; `None` if it need not.
    called: Option<Instant>,
    /// No more requests may queue: the node has left the topology.
    is_over: bool,
}

/// Requests that wait for the next batch.
#[derive(Debug, Default)]
struct Waiting {
    /// Boxed, because it is large and moves with every batch.
    batch: Box<Batch>,
    waiters: Vec<Waiter>,
    /// The time of the last request, with which all are sent.
    now: Option<Timestamp>,
}

#[derive(Debug)]
struct Waiter {
    /// How many increments of the batch belong to this request.
    increments: usize,
    seat: usize,
}

impl Lane {
    /// A queue whose requests wait for `longest` at most, served by `batchers`.
    pub(super) fn new(
        node: Arc<Node>,
        places: Arc<Places>,
        meters: Arc<Meters>,
        ticks: Arc<Ticks>,
        longest: Duration,
        batchers: u32,
    ) -> Self {
        Self {
            load: node.new_load(),
            node,
            queue: Mutex::default(),
            news: Notify::new(),
            relief: Notify::new(),
            timed: Notify::new(),
            overdue: Arc::default(),
            ticks,
            places,
            meters,
            longest,
            batchers,
            stuck: AtomicU32::new(0),
            stalled: AtomicU32::new(0),
        }
    }

    /// Checks whether the node can be expected to answer.
    ///
    /// # Errors
    ///
    /// If it cannot.
    pub(super) fn admit(&self) -> Result<(), StoreError> {
        if self.node.breaker.is_open() || self.stuck.load(Relaxed) >= self.batchers {
            self.load.refused_fast.fetch_add(1, Relaxed);
            return Err(StoreError::Unreachable);
        }
        Ok(())
    }

    /// Queues one request. A task that goes on to fetch the answer may give its waker here; its first
    /// poll then returns without a look at the queue.
    ///
    /// # Errors
    ///
    /// If no answer can be expected, or too many requests wait already.
    pub(super) fn push(
        self: &Arc<Self>,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
        waker: Option<&Waker>,
    ) -> Result<Answer, StoreError> {
        self.admit()?;
        let mut queue = self.lock();
        if queue.is_over {
            return Err(StoreError::Unreachable);
        }
        self.places.take()?;
        let began: Instant = deadline.began.into();
        let ends: Instant = deadline.ends(self.longest).into();
        let seat = queue.seats.take(began, ends, waker.cloned());
        let waiting = &mut queue.waiting;
        waiting.batch.append(batch);
        waiting.now = Some(now);
        waiting.waiters.push(Waiter {
            increments: batch.len(),
            seat,
        });
        self.load
            .queued
            .store(waiting.waiters.len() as u64, Relaxed);
        if waiting.waiters.len() == 1 {
            self.call_batchers();
        }
        if ends <= began + SOON && queue.called.is_none() {
            queue.called = Some(began);
            self.timed.notify_one();
        }
        queue.has_come = true;
        if !mem::replace(&mut queue.is_watched, true) {
            drop(queue);
            self.ticks.add(self.clone(), began);
        }
        Ok(Answer {
            lane: self.clone(),
            seat: Some(seat),
            is_awaited: waker.is_some(),
        })
    }

    /// Waits until there may be something to send, or the node is lost or back. Returns `None` at the
    /// end of the queue.
    pub(super) async fn news(&self) -> Option<()> {
        {
            let queue = self.lock();
            if !queue.waiting.waiters.is_empty() {
                return Some(());
            }
            if queue.is_over {
                // Wakes the other batchers too.
                self.news.notify_one();
                return None;
            }
        }
        self.news.notified().await;
        Some(())
    }

    /// Like [`Self::news`], for the stand-in batcher: waits until there is something to send while all
    /// others wait for replies that are late.
    pub(super) async fn relief(&self) -> Option<()> {
        loop {
            {
                let queue = self.lock();
                if queue.is_over {
                    self.relief.notify_one();
                    return None;
                }
                if self.is_held_up() && !queue.waiting.waiters.is_empty() {
                    return Some(());
                }
            }
            self.relief.notified().await;
        }
    }

    /// Whether all batchers wait for replies that are late although the node answers others.
    pub(super) fn is_held_up(&self) -> bool {
        self.stalled.load(Relaxed) >= self.batchers
    }

    fn call_batchers(&self) {
        self.news.notify_one();
        if self.is_held_up() {
            self.relief.notify_one();
        }
    }

    /// Reacts to the circuit breaker: if it is open, fails all queued requests; wakes the batchers.
    pub(super) fn tell(&self) {
        if self.node.breaker.is_open() {
            // The batchers may be waiting for replies of their own.
            self.fail_all(StoreError::Unreachable);
        }
        self.news.notify_waiters();
    }

    /// Takes as much as one pipeline may hold: the increments of requests that still wait, and their
    /// waiters. `None` if no request waits.
    pub(super) fn take(&self) -> Option<Taken<'_>> {
        let mut queue = self.lock();
        let queue = &mut *queue;
        let spare = queue.spare.take().unwrap_or_default();
        let mut taken = mem::replace(&mut queue.waiting, spare);
        if taken.batch.len() > MAX_INCREMENTS {
            queue.waiting = taken.split_off(MAX_INCREMENTS);
            if !queue.waiting.waiters.is_empty() {
                self.call_batchers();
            }
        }
        self.places.give_back(taken.waiters.len());
        self.load
            .queued
            .store(queue.waiting.waiters.len() as u64, Relaxed);
        taken.drop_left(&mut queue.seats);
        let now = taken.now.filter(|_| !taken.waiters.is_empty())?;
        let count = taken.waiters.len() as u64;
        self.load.in_flight.fetch_add(count, Relaxed);
        Some(Taken {
            lane: self,
            batch: taken.batch,
            now,
            waiters: Waiters {
                lane: self,
                all: taken.waiters,
                count,
            },
        })
    }

    /// Answers all queued requests with `error`.
    pub(super) fn fail_all(&self, error: StoreError) {
        while self.is_awaited() {
            if let Some(mut taken) = self.take() {
                taken.waiters.fail(error);
            }
        }
    }

    fn is_awaited(&self) -> bool {
        !self.lock().waiting.waiters.is_empty()
    }

    /// A look by the ticks, whose own thread may have paused. Returns whether they have to look again: a
    /// request waits, or came since the last look.
    pub(super) fn look(&self, pause: Option<Pause>, now: Instant) -> bool {
        let mut queue = self.lock();
        let queue = &mut *queue;
        let first = queue.seats.first_since();
        if queue.called.is_none() {
            if let Some(pause) = pause {
                queue.seats.leave_out(pause);
            }
            if first.is_some_and(|since| since + TICK <= now) {
                queue.called = Some(now);
                self.timed.notify_one();
            }
        }
        queue.is_watched = mem::take(&mut queue.has_come) || first.is_some();
        if queue.is_over && !queue.is_watched {
            self.timed.notify_one();
        }
        queue.is_watched
    }

    /// Ends every wait whose time is over, queued or in flight: one timer serves all of them, and none
    /// runs while no request waits for long. It looks each [`TICK`], so that time in which this thread
    /// did not run is left out. Returns at the end of the queue.
    pub(super) async fn watch_time(&self) {
        while let Some(called) = self.called().await {
            let mut due = called;
            loop {
                let now = Instant::now();
                if let Some(pause) = self.meters.lateness.record(due, now) {
                    self.lock().seats.leave_out(pause);
                }
                self.overdue.notify_waiters();
                let Some(next) = self.next_end(now) else {
                    break;
                };
                // Counts from this look on, so that no pause in between is missed.
                due = now;
                if next <= now {
                    // A reply that has arrived already still counts.
                    read_sockets().await;
                    self.lock().seats.end_late(now);
                } else {
                    due = next.min(now + TICK);
                    sleep_until(due).await;
                }
            }
        }
    }

    /// Waits until the time has to be watched, and returns since when. `None` at the end of the queue.
    async fn called(&self) -> Option<Instant> {
        loop {
            {
                let queue = self.lock();
                if queue.called.is_some() {
                    return queue.called;
                }
                if queue.is_over && !queue.is_watched {
                    return None;
                }
            }
            self.timed.notified().await;
        }
    }

    /// When the first wait ends. `None` if no request waits for long; the ticks then watch again.
    fn next_end(&self, now: Instant) -> Option<Instant> {
        let mut queue = self.lock();
        let first = queue.seats.first_since();
        let is_long = first.is_some_and(|since| since + TICK <= now);
        let next = queue.seats.next_end();
        let next = next.filter(|next| is_long || *next <= now + SOON);
        if next.is_none() {
            queue.called = None;
        }
        next
    }

    /// Closes the queue to new requests. Waiting requests are still served.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.news.notify_one();
        self.relief.notify_one();
        self.timed.notify_one();
    }

    /// Counts a batcher that has been without a connection for as long as a node may be silent.
    pub(super) fn stuck(&self) -> Counted<'_> {
        Counted::new(&self.stuck)
    }

    /// Counts a batcher that waits for a reply that is late although the node answers others. Until the
    /// result is dropped the stand-in may serve the queue.
    pub(super) fn stalled(&self) -> Counted<'_> {
        let stalled = Counted::new(&self.stalled);
        if self.is_held_up() {
            self.relief.notify_one();
        }
        stalled
    }

    /// A panic elsewhere cannot leave the queue half changed: no code between the changes panics.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds one to a count until it is dropped.
pub(super) struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The pending reply of one request.
#[derive(Debug)]
pub(super) struct Answer {
    lane: Arc<Lane>,
    /// `None` once it is fetched.
    seat: Option<usize>,
    /// Whether the task that fetches it has only just queued it, with its waker.
    is_awaited: bool,
}

impl Answer {
    /// Waits for the counts and appends them to `counts`.
    pub(super) async fn fetch(mut self, counts: &mut CountList) -> Answered {
        poll_fn(|context| {
            if mem::take(&mut self.is_awaited) {
                return Poll::Pending;
            }
            let seat = self.seat.expect("it is not asked again once it has ended");
            let answered = self.lane.lock().seats.poll(seat, context, counts);
            if answered.is_ready() {
                self.seat = None;
            }
            answered
        })
        .await
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(seat) = self.seat {
            self.lane.lock().seats.leave(seat);
        }
    }
}

/// A batch in flight.
pub(super) struct Taken<'a> {
    lane: &'a Lane,
    pub(super) batch: Box<Batch>,
    /// The time with which it is sent.
    pub(super) now: Timestamp,
    pub(super) waiters: Waiters<'a>,
}

impl Taken<'_> {
    /// Keeps its memory for the next batch, once every waiter has an answer.
    pub(super) fn recycle(mut self) {
        self.batch.clear();
        self.lane.lock().spare = Some(Waiting {
            batch: self.batch,
            waiters: mem::take(&mut self.waiters.all),
            now: None,
        });
    }
}

/// The waiters of a batch. On drop, every waiter without an answer gets `Unreachable`.
pub(super) struct Waiters<'a> {
    lane: &'a Lane,
    all: Vec<Waiter>,
    count: u64,
}

impl Waiters<'_> {
    /// The waiters' requests, as ranges of the increments of the batch.
    pub(super) fn requests(&self) -> impl Iterator<Item = Range<usize>> {
        let mut first = 0;
        self.all.iter().map(move |waiter| {
            let own = first..first + waiter.increments;
            first = own.end;
            own
        })
    }

    /// Gives each waiter its own counts.
    pub(super) fn answer(&mut self, counts: impl Iterator<Item = Result<Count, StoreError>>) {
        let mut counts = counts;
        self.lane.load.record_reply();
        let mut queue = self.lane.lock();
        for waiter in self.all.drain(..) {
            let own = counts.by_ref().take(waiter.increments);
            queue.seats.tell_counts(waiter.seat, own);
        }
    }

    /// Answers all waiters with `error`.
    pub(super) fn fail(&mut self, error: StoreError) {
        let mut queue = self.lane.lock();
        for waiter in self.all.drain(..) {
            queue.seats.tell(waiter.seat, error);
        }
    }
}

impl Drop for Waiters<'_> {
    fn drop(&mut self) {
        self.lane.load.in_flight.fetch_sub(self.count, Relaxed);
        if !self.all.is_empty() {
            self.fail(StoreError::Unreachable);
        }
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

    /// Removes waiters whose wait is over, with their increments: an increment that is not sent is not
    /// counted.
    fn drop_left(&mut self, seats: &mut Seats) {
        if self
            .waiters
            .iter()
            .all(|waiter| seats.is_wanted(waiter.seat))
        {
            return;
        }
        let mut rest = Self {
            now: self.now,
            ..Self::default()
        };
        let mut first = 0;
        for waiter in mem::take(&mut self.waiters) {
            let own = first..first + waiter.increments;
            first = own.end;
            if seats.is_wanted(waiter.seat) {
                rest.batch.append_range(&self.batch, own);
                rest.waiters.push(waiter);
            } else {
                seats.tell(waiter.seat, StoreError::Timeout);
            }
        }
        *self = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        limit::Limit,
        request::Hits,
        store::redis::{address::Place, trouble::Trouble},
        window::Unit,
    };

    const DEADLINE: Duration = Duration::from_millis(50);

    fn lane(max_waiting: usize) -> Arc<Lane> {
        let place = Place::Unix("/x".into());
        let node = Arc::new(Node::new(place, Arc::default()));
        let places = Arc::new(Places::new(max_waiting));
        Arc::new(lane_to(node, places))
    }

    fn lane_to(node: Arc<Node>, places: Arc<Places>) -> Lane {
        Lane::new(node, places, Arc::default(), Arc::default(), DEADLINE, 1)
    }

    /// Runs the tasks of a queue while `future` runs.
    async fn beside<T>(lane: &Lane, future: impl Future<Output = T>) -> T {
        tokio::select! {
            output = future => output,
            () = lane.watch_time() => panic!("the queue has ended"),
            never = lane.ticks.run(&lane.meters.lateness) => match never {},
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

    fn push(lane: &Arc<Lane>, increments: usize) -> Result<Answer, StoreError> {
        let now = Timestamp::from_secs(0);
        // Tests may advance the clock.
        let deadline = Deadline {
            began: Instant::now().into_std(),
            timeout: None,
        };
        lane.push(&batch(increments), now, &deadline, None)
    }

    async fn fetch(answer: Answer) -> Result<CountList, StoreError> {
        let mut counts = CountList::new();
        answer.fetch(&mut counts).await.map(|()| counts)
    }

    #[test]
    fn what_finds_no_place_is_refused_at_once() {
        let lane = lane(2);
        let _answers = [push(&lane, 1).unwrap(), push(&lane, 1).unwrap()];
        assert_eq!(push(&lane, 1).unwrap_err(), StoreError::Overloaded);
        lane.take();
        let _answer = push(&lane, 1).unwrap();
    }

    #[test]
    fn all_lanes_of_a_worker_share_its_places() {
        let first = lane(2);
        let (node, places) = (first.node.clone(), first.places.clone());
        let second = Arc::new(lane_to(node, places));
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
        while let Some(batch) = lane.take() {
            let requests: usize = batch.waiters.requests().map(|request| request.len()).sum();
            assert_eq!(requests, batch.batch.len());
            taken.push(requests);
        }
        assert_eq!(taken, [1020, 5, 3000, 1]);
    }

    #[tokio::test]
    async fn everybody_is_told_of_his_own() {
        let lane = lane(10);
        let answers = [2, 1].map(|size| push(&lane, size).unwrap());
        let mut taken = lane.take().unwrap();
        let counts = [5, 6, 7].map(|count| Ok(Count::from(count)));
        taken.waiters.answer(counts.into_iter());
        taken.recycle();
        let mut told = Vec::new();
        for answer in answers {
            let counts = fetch(answer).await.unwrap();
            told.push(counts.iter().map(|count| count.after).collect::<Vec<_>>());
        }
        assert_eq!(told, [vec![5, 6], vec![7]]);
        // A batch that ends without an answer.
        let answer = push(&lane, 1).unwrap();
        drop(lane.take());
        assert_eq!(fetch(answer).await, Err(StoreError::Unreachable));
    }

    #[tokio::test]
    async fn who_does_not_wait_any_more_is_not_sent() {
        let lane = lane(10);
        let stays = push(&lane, 1).unwrap();
        drop(push(&lane, 2).unwrap());
        assert_eq!(lane.take().unwrap().batch.len(), 1);
        drop(stays);
        drop(push(&lane, 2).unwrap());
        assert!(lane.take().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_longer_than_the_deadline_wherever_his_request_is() {
        let lane = lane(10);
        let sent = push(&lane, 1).unwrap();
        let _batch = lane.take().unwrap();
        let queued = push(&lane, 1).unwrap();
        let began = Instant::now();
        let told = beside(&lane, async { [fetch(sent).await, fetch(queued).await] }).await;
        assert_eq!(told, [Err(StoreError::Timeout), Err(StoreError::Timeout)]);
        assert_eq!(began.elapsed().as_millis(), DEADLINE.as_millis());
        assert!(lane.take().is_none());
    }

    /// This thread did not run from the arrival of the request until its time was over.
    #[tokio::test(start_paused = true)]
    async fn who_comes_just_before_a_pause_has_its_whole_time_after_it() {
        let lane = lane(10);
        let queued = push(&lane, 1).unwrap();
        tokio::time::advance(3 * DEADLINE).await;
        let began = Instant::now();
        let told = beside(&lane, fetch(queued)).await;
        assert_eq!(told, Err(StoreError::Timeout));
        assert_eq!(began.elapsed(), DEADLINE);
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
