//! A deadline that is set for every batch and hardly ever comes.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

/// One timer for one thing after the other. It is not put forward when the next one begins, but when it
/// goes off before its time: that is once in the time that things may take, however many there are.
#[derive(Debug)]
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
}

impl Alarm {
    /// For things that may take `time`.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub(super) fn new(time: Duration) -> Self {
        Self {
            sleep: Box::pin(sleep(time)),
        }
    }

    /// What comes of `thing`, unless it takes longer than `time`.
    pub(super) async fn limit<T>(
        &mut self,
        time: Duration,
        thing: impl Future<Output = T>,
    ) -> Option<T> {
        let ends = Instant::now() + time;
        if self.sleep.deadline() > ends {
            // Things may take less time than before.
            self.sleep.as_mut().reset(ends);
        }
        let mut thing = pin!(thing);
        poll_fn(|context| {
            if let Poll::Ready(done) = thing.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            while self.sleep.as_mut().poll(context).is_ready() {
                if self.sleep.deadline() >= ends {
                    return Poll::Ready(None);
                }
                self.sleep.as_mut().reset(ends);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const TIME: Duration = Duration::from_millis(50);

    #[tokio::test(start_paused = true)]
    async fn each_thing_has_its_whole_time_and_no_more() {
        let mut alarm = Alarm::new(TIME);
        assert_eq!(alarm.limit(TIME, async { 7 }).await, Some(7));
        for _ in 0..3 {
            let shorter = TIME - Duration::from_millis(1);
            assert_eq!(alarm.limit(TIME, sleep(shorter)).await, Some(()));
            let began = Instant::now();
            assert_eq!(alarm.limit(TIME, pending::<()>()).await, None);
            assert_eq!(began.elapsed(), TIME);
            assert_eq!(alarm.limit(TIME / 2, pending::<()>()).await, None);
            assert_eq!(began.elapsed(), TIME + TIME / 2);
            sleep(TIME / 2).await;
        }
    }
}
