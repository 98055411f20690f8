//! The clock of all queues in which requests wait, on one thread: while all is well no worker has a timer that is due
//! soon. With one, each sleep of a worker programs the processor's clock, which takes 7 to 10 % of its processor time
//! where one call comes at a time.

use std::{
    convert::Infallible,
    fmt,
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::Poll,
};

use tokio::{
    sync::{Notify, futures::OwnedNotified},
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

/// The queues of all workers in which requests can wait.
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

/// Limits the time of one future after the other. The clock of a queue notifies it again and again while any request
/// waits for long, and only then it looks at the time.
#[derive(Debug)]
pub(crate) struct LateReplyTimer {
    clock: Arc<Notify>,
    notified: Pin<Box<OwnedNotified>>,
}

impl LateReplyTimer {
    pub(crate) fn new(clock: Arc<Notify>) -> Self {
        Self {
            notified: Box::pin(clock.clone().notified_owned()),
            clock,
        }
    }

    /// The output of `thing`, or `None` at the first notification after `ends`.
    pub(crate) async fn limit<T>(
        &mut self,
        ends: Instant,
        thing: impl Future<Output = T>,
    ) -> Option<T> {
        let mut thing = pin!(thing);
        poll_fn(|context| {
            if let Poll::Ready(done) = thing.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            while self.notified.as_mut().poll(context).is_ready() {
                self.notified.set(self.clock.clone().notified_owned());
                if Instant::now() >= ends {
                    return Poll::Ready(None);
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, time::Duration};

    use tokio::time::sleep;

    use super::*;

    const TIME: Duration = Duration::from_millis(50);

    #[tokio::test(start_paused = true)]
    async fn each_thing_has_its_whole_time_and_no_more() {
        let clock = Arc::<Notify>::default();
        let mut alarm = LateReplyTimer::new(clock.clone());
        let notifying = async {
            loop {
                sleep(TIME / 5).await;
                clock.notify_waiters();
            }
        };
        let asking = async {
            assert_eq!(
                alarm.limit(Instant::now() + TIME, async { 7 }).await,
                Some(7)
            );
            for _ in 0..3 {
                let shorter = TIME - Duration::from_millis(1);
                assert_eq!(
                    alarm.limit(Instant::now() + TIME, sleep(shorter)).await,
                    Some(())
                );
                sleep(TIME / 10).await;
                let began = Instant::now();
                assert_eq!(
                    alarm.limit(Instant::now() + TIME, pending::<()>()).await,
                    None
                );
                assert!((TIME..TIME + TIME / 5).contains(&began.elapsed()));
            }
        };
        tokio::select! {
            () = notifying => unreachable!("it has no end"),
            () = asking => {}
        }
    }
}
