//! Polls connections: shares one clock reading among the calls of a poll, bounds the bytes that it reads, and
//! finishes the calls that were answered at once.

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Instant,
};

use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;

/// A future that is too large to be moved about, or of which there are several types.
pub(super) type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

thread_local! {
    /// When the connection polled on this thread read its first frame.
    static ARRIVED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The arrival time of the call passed to [`note`](super::UnaryMethod::note). All frames read by one poll of a
/// connection share one reading of the clock.
pub(crate) fn arrived() -> Instant {
    ARRIVED.get().unwrap_or_else(|| {
        let now = Instant::now();
        ARRIVED.set(Some(now));
        now
    })
}

/// Whether the process takes new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    Draining,
}

/// Waits until draining begins.
pub(crate) async fn draining(phases: &mut watch::Receiver<Phase>) {
    // The sender outlives the workers.
    let _ = phases.wait_for(|phase| *phase == Phase::Draining).await;
}

/// Polls a connection whose calls go to a [`Dispatcher`](super::Dispatcher).
#[derive(Debug)]
pub(crate) struct TimedConnection<C>(pub C);

impl<C: Future + Unpin> Future for TimedConnection<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        ARRIVED.set(None);
        TURN.set(TURN_BYTES);
        let polled = Pin::new(&mut self.0).poll(context);
        TURN.set(usize::MAX);
        finish_answered();
        polled
    }
}

/// How many bytes a connection may read until its calls and other connections run. HTTP/2 reads everything that has
/// arrived, and allocates memory for each call, also for calls that the client resets at once.
const TURN_BYTES: usize = 16 << 10;

thread_local! {
    /// How many bytes the connection that this thread polls may still read.
    static TURN: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Whether the connection that this thread polls has read all that it may before others run. It is then woken for
/// its next poll.
pub(crate) fn is_turn_over(context: &Context<'_>) -> bool {
    let is_over = TURN.get() == 0;
    if is_over {
        context.waker().wake_by_ref();
    }
    is_over
}

/// Records that the connection that this thread polls has read `bytes`.
pub(crate) fn count_read(bytes: usize) {
    TURN.set(TURN.get().saturating_sub(bytes));
}

/// Runs the futures that hyper makes of calls. Answered calls need no task: they finish after the poll of their
/// connection that found them, and the connection then writes all replies at once. A call that has to wait after all
/// continues in a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        if IS_ANSWERED.take() {
            ANSWERED.with_borrow_mut(|answered| answered.push(Box::pin(call)));
        } else {
            TokioExecutor::new().execute(call);
        }
    }
}

/// Announces that the call that hyper makes a future of next is answered, or will probably be once it is polled.
pub(super) fn announce_answered() {
    IS_ANSWERED.set(true);
}

thread_local! {
    /// Whether that was announced of the call that hyper is about to make a future of.
    static IS_ANSWERED: Cell<bool> = const { Cell::new(false) };
    /// Such calls of the connection that this thread polls.
    static ANSWERED: RefCell<Vec<BoxedFuture<()>>> = const { RefCell::new(Vec::new()) };
}

/// Passes the replies to HTTP/2. A call that waits for the store, or whose client grants no window for its reply,
/// continues in a task.
fn finish_answered() {
    let mut answered = ANSWERED.take();
    for mut call in answered.drain(..) {
        // Its task polls it again, with a waker.
        let mut once = Context::from_waker(Waker::noop());
        if call.as_mut().poll(&mut once).is_pending() {
            TokioExecutor::new().execute(call);
        }
    }
    ANSWERED.set(answered);
}

/// Counts the running decisions of one connection, and its calls that stay open: each holds a clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<()>);

impl InFlight {
    /// Whether no decision runs.
    pub(crate) fn is_none(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// For a call whose message has not arrived: it counts as running only once it upgrades this.
    pub(super) fn begins_later(&self) -> Weak<()> {
        Arc::downgrade(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::ready};

    use hyper::{Request, Response, body::Incoming, client, server, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::{net::UnixStream, task::JoinSet};

    use super::*;
    use crate::foundation::lock::lock;

    #[derive(Clone, Default)]
    struct EventLog(Arc<std::sync::Mutex<Vec<&'static str>>>);

    impl<F: Future<Output = ()> + Send + 'static> Executor<F> for EventLog {
        fn execute(&self, call: F) {
            lock(&self.0).push("execute");
            TokioExecutor::new().execute(call);
        }
    }

    #[tokio::test]
    async fn hyper_makes_the_future_of_a_call_before_it_takes_the_next_one() {
        const CALLS: usize = 8;
        let (near, far) = UnixStream::pair().unwrap();
        let events = EventLog::default();
        let seen = events.clone();
        let service = service_fn(move |_: Request<Incoming>| {
            lock(&seen.0).push("service");
            ready(Ok::<_, Infallible>(Response::new(String::new())))
        });
        let server = server::conn::http2::Builder::new(events.clone());
        TokioExecutor::new().execute(server.serve_connection(TokioIo::new(far), service));
        let client = client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = client.handshake(TokioIo::new(near)).await.unwrap();
        TokioExecutor::new().execute(connection);
        let calls = (0..CALLS).map(|_| {
            let call = Request::post("http://a/").body(String::new()).unwrap();
            let mut sender = sender.clone();
            async move { sender.send_request(call).await.unwrap() }
        });
        calls.collect::<JoinSet<_>>().join_all().await;
        assert_eq!(
            *lock(&events.0),
            ["service", "execute"].repeat(CALLS),
            "hyper has another order: an answered call (`announce_answered`) would be taken for another one"
        );
    }
}
