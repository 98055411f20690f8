//! Watches all queues in which requests wait, from one thread: while all is well no worker has a timer
//! that is due soon. With one, each sleep of a worker programs the processor's clock, which takes 7 to
//! 10 % of its processor time where one call comes at a time.

use std::{
    convert::Infallible,
    fmt, mem,
    sync::{Arc, Mutex},
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::{
    foundation::lock::lock,
    store::redis::health::{
        detector::TICK,
        running::{Lateness, Pause},
    },
};

/// Requests that wait, and that the watchdog looks after.
pub(crate) trait Watched: fmt::Debug + Send + Sync {
    /// Looks once. `pause` is time in which the watchdog's own thread did not run. Returns whether it has
    /// to look again: a request waits, or came since the last look.
    fn look(&self, pause: Option<Pause>, now: Instant) -> bool;
}

/// The queues of all workers in which requests may wait.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    new: Mutex<NewQueues>,
    added: Notify,
}

/// Queues that were added since the last look.
#[derive(Debug, Default)]
struct NewQueues {
    queues: Vec<Arc<dyn Watched>>,
    /// Since when the first of them is to be watched.
    since: Option<Instant>,
}

impl Watchdog {
    /// Adds a queue that is not watched yet, and in which a request waits since `since`.
    pub(crate) fn add(&self, queue: Arc<dyn Watched>, since: Instant) {
        let mut new = lock(&self.new);
        new.queues.push(queue);
        new.since.get_or_insert(since);
        drop(new);
        self.added.notify_one();
    }

    /// Looks each [`TICK`] as long as any request waits, until it is dropped.
    pub(crate) async fn run(&self, lateness: &Lateness) -> Infallible {
        let mut queues = Vec::new();
        let mut now = Instant::now();
        loop {
            let due = if queues.is_empty() {
                self.added.notified().await;
                None
            } else {
                let due = now + TICK;
                sleep_until(due).await;
                Some(due)
            };
            let mut new = mem::take(&mut *lock(&self.new));
            queues.append(&mut new.queues);
            // The first look was due when its request came.
            let Some(due) = due.or(new.since) else {
                continue;
            };
            now = Instant::now();
            let pause = lateness.record(due, now);
            queues.retain(|queue| queue.look(pause, now));
        }
    }
}
