//! Watches all queues in which requests wait, from one thread: while all is well no worker has a timer
//! that is due soon. With one, each sleep of a worker programs the processor's clock, which takes 7 to
//! 10 % of its processor time where one call comes at a time.

use std::{
    convert::Infallible,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{detector::TICK, lane::Lane, running::Lateness};

/// The queues of all workers in which requests may wait.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    new: Mutex<New>,
    news: Notify,
}

/// Queues that were added since the last look.
#[derive(Debug, Default)]
struct New {
    lanes: Vec<Arc<Lane>>,
    /// Since when the first of them is to be watched.
    since: Option<Instant>,
}

impl Ticks {
    /// Adds a queue that is not watched yet, and in which a request waits since `since`.
    pub(super) fn add(&self, lane: Arc<Lane>, since: Instant) {
        let mut new = self.lock();
        new.lanes.push(lane);
        new.since.get_or_insert(since);
        drop(new);
        self.news.notify_one();
    }

    /// Looks each [`TICK`] as long as any request waits, until it is dropped.
    pub(super) async fn run(&self, lateness: &Lateness) -> Infallible {
        let mut lanes = Vec::new();
        let mut now = Instant::now();
        loop {
            let due = if lanes.is_empty() {
                self.news.notified().await;
                None
            } else {
                let due = now + TICK;
                sleep_until(due).await;
                Some(due)
            };
            let mut new = mem::take(&mut *self.lock());
            lanes.append(&mut new.lanes);
            // The first look was due when its request came.
            let Some(due) = due.or(new.since) else {
                continue;
            };
            now = Instant::now();
            let pause = lateness.record(due, now);
            lanes.retain(|lane| lane.look(pause, now));
        }
    }

    /// A panic elsewhere cannot leave the list half changed.
    fn lock(&self) -> MutexGuard<'_, New> {
        self.new.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
