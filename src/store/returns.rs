//! Work on leased hits for which no caller waits any more: answers that are followed, hits that are given back, and
//! costs that wait for the store.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{sync::mpsc, task::JoinSet};

/// The most pieces of work of one worker.
const MAX_WORK: usize = 4_096;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes work on behalf of the callers of one worker.
#[derive(Clone)]
pub struct Returns {
    sender: mpsc::UnboundedSender<Work>,
    /// How many pieces are not done.
    open: Arc<AtomicUsize>,
}

impl fmt::Debug for Returns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returns").finish_non_exhaustive()
    }
}

/// Does the work.
#[derive(Debug)]
pub(crate) struct ReturnTask(mpsc::UnboundedReceiver<Work>);

/// A piece of work that is not done.
struct OpenWork(Arc<AtomicUsize>);

impl Drop for OpenWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Returns {
    pub(crate) fn new() -> (Self, ReturnTask) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let open = Arc::default();
        (Self { sender, open }, ReturnTask(receiver))
    }

    /// For a store that answers at once: no caller gives up there, so nothing is ever left to do.
    pub fn none() -> Self {
        Self::new().0
    }

    /// Whether all work is done.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.open.load(Relaxed) == 0
    }

    /// Takes a piece of work. Returns whether there was room; what is dropped stays charged until its window ends.
    pub(crate) fn take(&self, work: impl Future<Output = ()> + Send + 'static) -> bool {
        let open = OpenWork(self.open.clone());
        if open.0.fetch_add(1, Relaxed) >= MAX_WORK {
            return false;
        }
        let work = Box::pin(async move {
            let _open = open;
            work.await;
        });
        self.sender.send(work).is_ok()
    }
}

impl ReturnTask {
    /// Never returns: a worker needs it as long as it serves calls.
    pub(crate) async fn run(mut self) -> Infallible {
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                work = self.0.recv() => match work {
                    Some(work) => {
                        running.spawn(work);
                    }
                    None => std::future::pending().await,
                },
                Some(_) = running.join_next() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_and_too_much_of_it_is_dropped() {
        let (returns, task) = Returns::new();
        let (done, mut all_done) = mpsc::unbounded_channel();
        let take = || {
            let done = done.clone();
            returns.take(async move { done.send(()).unwrap() })
        };
        let taken = (0..MAX_WORK + 10).filter(|_| take()).count();
        assert_eq!(taken, MAX_WORK);
        let mut doing = JoinSet::new();
        doing.spawn(task.run());
        for _ in 0..MAX_WORK {
            all_done.recv().await.unwrap();
        }
        while !take() {
            tokio::task::yield_now().await;
        }
    }
}
