//! Waits that leave out pauses of this thread, and the measurement of these pauses.

use std::{
    cell::Cell,
    fmt,
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::Mutex,
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::detector::{GRAIN, RunningTime, TICK};
use crate::foundation::{histogram::TimerValues, lock::lock};

/// A time in which this thread did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

/// Sleeps until the next look of a wait that has `rest` left, and counts the time in which this thread
/// ran. Returns when the look was due, and when it came.
pub(crate) async fn tick(ran: &mut RunningTime, rest: Duration) -> (Instant, Instant) {
    // Counts from the last look on, so that no pause in between is missed.
    let due = ran.last() + rest.min(TICK);
    sleep_until(due).await;
    let now = Instant::now();
    ran.woke(due, now);
    (due, now)
}

/// Returns the output of `future`, or `None` once this thread has run for `time`.
pub(crate) async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut ran = RunningTime::since(Instant::now());
    loop {
        let rest = time.saturating_sub(ran.total());
        if rest.is_zero() {
            read_sockets().await;
            return now(future.as_mut()).await;
        }
        tokio::select! {
            biased;
            output = &mut future => return Some(output),
            _ = tick(&mut ran, rest) => {}
        }
    }
}

/// The output of `future`, if it is ready.
pub(crate) async fn now<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Lets all tasks run that are ready, and also those that a look at the sockets wakes. It does not
/// block.
pub(crate) async fn read_sockets() {
    // Tasks that read from sockets are then queued before this one, and start one task for each call.
    tokio::task::yield_now().await;
    // Those tasks are queued before this one now, and no other look is needed.
    let mut is_last = false;
    poll_fn(|context| {
        if mem::replace(&mut is_last, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// How late the timers of this process fired while a request waited for Redis. On an idle machine that
/// is up to 2 ms; more than that is a pause of this process.
#[derive(Debug, Default)]
pub struct Lateness(Mutex<(TimerValues, Pauses)>);

/// Times in which this process did not run although a request waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    pub count: u64,
    pub total: Duration,
    pub longest: Duration,
}

impl fmt::Display for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            count,
            total,
            longest,
        } = self;
        if *count == 0 {
            return f.write_str("none");
        }
        let (total, longest) = (total.as_millis(), longest.as_millis());
        write!(
            f,
            "{count} of {total} ms in all, the longest of {longest} ms"
        )
    }
}

impl Pauses {
    /// The pauses of two stores together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            total: self.total.saturating_add(other.total),
            longest: self.longest.max(other.longest),
        }
    }
}

thread_local! {
    /// The end of the last known pause of this thread. One pause can make several timers late.
    static PAUSED_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

impl Lateness {
    /// Records a timer of this thread that was due at `due` and fired at `now`. Returns the pause, if it
    /// was one.
    pub(crate) fn record(&self, due: Instant, now: Instant) -> Option<Pause> {
        let late = now.saturating_duration_since(due);
        let is_pause = late > GRAIN;
        let known = PAUSED_UNTIL.get();
        if known.is_none_or(|until| due >= until) {
            PAUSED_UNTIL.set(Some(now));
            let (all, pauses) = &mut *lock(&self.0);
            all.observe(u64::try_from(late.as_micros()).unwrap_or(u64::MAX));
            if is_pause {
                *pauses = pauses.and(Pauses {
                    count: 1,
                    total: late,
                    longest: late,
                });
            }
        }
        is_pause.then_some(Pause { from: due, to: now })
    }

    /// The lateness of all timers.
    pub fn values(&self) -> TimerValues {
        lock(&self.0).0.clone()
    }

    pub fn pauses(&self) -> Pauses {
        lock(&self.0).1
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc};

    use tokio::{io::AsyncWriteExt as _, net::UnixStream, task::JoinSet};

    use super::*;

    const TIME: Duration = Duration::from_millis(23);

    #[tokio::test]
    async fn what_waits_for_a_socket_has_run_with_the_tasks_that_it_starts_after_a_look_at_the_sockets()
     {
        let (near, mut far) = UnixStream::pair().unwrap();
        let ran = Arc::<Mutex<Vec<&str>>>::default();
        let (reads, calls) = (ran.clone(), ran.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            near.readable().await.unwrap();
            lock(&reads).push("connection");
            let mut started = JoinSet::new();
            started.spawn(async move { lock(&calls).push("call") });
            started.detach_all();
            pending::<()>().await;
        });
        // The task waits for its socket from here on.
        tokio::task::yield_now().await;
        far.write_all(b"request").await.unwrap();
        read_sockets().await;
        assert_eq!(
            *lock(&ran),
            ["connection", "call"],
            "tokio runs tasks that a socket wakes in another order: `read_sockets` has to wait for longer, or batches \
             leave out requests that have arrived"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_has_its_whole_time_and_no_more() {
        assert_eq!(within(TIME, async { 7 }).await, Some(7));
        let began = Instant::now();
        assert_eq!(within(TIME, pending::<()>()).await, None);
        assert_eq!(began.elapsed(), TIME);
    }

    #[tokio::test]
    async fn a_pause_of_the_thread_takes_no_time_from_a_wait() {
        let ready_later = async {
            tokio::time::sleep(Duration::from_millis(85)).await;
        };
        let paused = async {
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_millis(80));
            pending::<()>().await;
        };
        let waited = within(Duration::from_millis(20), ready_later);
        tokio::select! {
            waited = waited => assert_eq!(waited, Some(())),
            () = paused => {}
        }
    }

    #[test]
    fn one_pause_is_recorded_once_however_many_timers_it_made_late() {
        let lateness = Lateness::default();
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        let pause = |from, to| {
            let (from, to) = (at(from), at(to));
            Some(Pause { from, to })
        };
        assert_eq!(lateness.record(at(5), at(6)), None);
        assert_eq!(lateness.record(at(11), at(71)), pause(11, 71));
        assert_eq!(lateness.record(at(14), at(71)), pause(14, 71));
        assert_eq!(lateness.record(at(76), at(76)), None);
        assert_eq!(lateness.values().count(), 3);
        let sixty = Duration::from_millis(60);
        let expected = Pauses {
            count: 1,
            total: sixty,
            longest: sixty,
        };
        assert_eq!(lateness.pauses(), expected);
        assert_eq!(
            expected.and(expected).to_string(),
            "2 of 120 ms in all, the longest of 60 ms"
        );
        assert_eq!(Pauses::default().to_string(), "none");
    }
}
