//! Polls connections: shares one clock reading among the calls of a poll, bounds the bytes that it reads, and polls
//! new calls once after it.

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
        poll_new_calls();
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

/// Runs the futures that hyper makes of calls. Most calls in memory are answered by their first poll, which follows
/// that of their connection: the connection then writes all replies at once, and no call needs a task. Those that wait
/// go on in one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        NEW_CALLS.with_borrow_mut(|calls| calls.push(Box::pin(call)));
    }
}

thread_local! {
    /// The calls of the connection that this thread polls.
    static NEW_CALLS: RefCell<Vec<BoxedFuture<()>>> = const { RefCell::new(Vec::new()) };
}

/// Polls each new call once.
fn poll_new_calls() {
    let mut calls = NEW_CALLS.take();
    for mut call in calls.drain(..) {
        // Its task polls it again, with a waker.
        let mut once = Context::from_waker(Waker::noop());
        if call.as_mut().poll(&mut once).is_pending() {
            TokioExecutor::new().execute(call);
        }
    }
    NEW_CALLS.set(calls);
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
