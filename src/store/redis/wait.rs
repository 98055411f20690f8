//! Waits that a stop of this process does not cut short.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

/// The output of `future`, or `None` if it is not there at `ends`. A timer that fires late may only show that this
/// process was stopped, so data that has arrived by then is read before.
pub(crate) async fn by<F: Future>(ends: Instant, mut future: Pin<&mut F>) -> Option<F::Output> {
    match timeout_at(ends, future.as_mut()).await {
        Ok(output) => Some(output),
        Err(_) => at_once(future).await,
    }
}

/// As [`by`], for some time from now on.
pub(crate) async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    by(Instant::now() + time, pin!(future)).await
}

/// The output of `future` if it is ready once all data is read that has arrived.
pub(crate) async fn at_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    read_sockets().await;
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Lets all tasks run that are ready, and also those that a look at the sockets wakes. It does not block.
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

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{Arc, Mutex},
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::UnixStream,
        task::JoinSet,
    };

    use super::*;
    use crate::foundation::lock::lock;

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
    async fn data_that_came_while_the_thread_was_stopped_is_in_time() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let stopped = async {
            tokio::task::yield_now().await;
            far.write_all(b"a").await.unwrap();
            std::thread::sleep(Duration::from_millis(80));
            pending::<()>().await;
        };
        let waited = within(Duration::from_millis(20), async {
            near.read_u8().await.unwrap()
        });
        tokio::select! {
            waited = waited => assert_eq!(waited, Some(b'a')),
            () = stopped => {}
        }
    }
}
