//! Notices late replies, without a timer.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::Instant,
};

/// Limits the time of one future after the other. The task that watches the time notifies it again and
/// again while any request waits for long, and only then it reads the clock.
#[derive(Debug)]
pub(crate) struct LateReplyTimer {
    overdue: Arc<Notify>,
    notified: Pin<Box<OwnedNotified>>,
}

impl LateReplyTimer {
    pub(crate) fn new(overdue: Arc<Notify>) -> Self {
        Self {
            notified: Box::pin(overdue.clone().notified_owned()),
            overdue,
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
                self.notified.set(self.overdue.clone().notified_owned());
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
        let overdue = Arc::<Notify>::default();
        let mut alarm = LateReplyTimer::new(overdue.clone());
        let notifying = async {
            loop {
                sleep(TIME / 5).await;
                overdue.notify_waiters();
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
