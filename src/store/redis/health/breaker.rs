//! The circuit breaker: no request waits for a server that is lost.
//!
//! It opens when a connection is refused or breaks, when the server replies that it is of no use for
//! now, or when the probe finds that it has been silent for too long. From then on only the probe
//! connects to the server, and closes the breaker with its first prompt answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

use super::failure::NodeFailure;

/// One for each server, shared by all workers.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// The failure that keeps it open; `None` while it is closed.
    state: watch::Sender<Option<NodeFailure>>,
    /// Whether there is a failure, in a form that each request can read cheaply.
    is_open: AtomicBool,
    /// Grows when the existing connections cannot be trusted any more.
    era: AtomicU64,
    times_opened: AtomicU64,
}

impl Default for Breaker {
    /// Closed: a server counts as good until it fails.
    fn default() -> Self {
        Self {
            state: watch::Sender::new(None),
            is_open: AtomicBool::new(false),
            era: AtomicU64::new(0),
            times_opened: AtomicU64::new(0),
        }
    }
}

impl Breaker {
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    pub(crate) fn failure(&self) -> Option<NodeFailure> {
        self.state.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Option<NodeFailure>> {
        self.state.subscribe()
    }

    pub(crate) fn era(&self) -> u64 {
        self.era.load(Relaxed)
    }

    pub(crate) fn times_opened(&self) -> u64 {
        self.times_opened.load(Relaxed)
    }

    /// Opens the breaker and returns whether it was closed. If it was open, the new failure replaces the
    /// old one, but this is no second opening.
    pub(crate) fn open(&self, failure: NodeFailure) -> bool {
        let mut is_new = false;
        self.state.send_if_modified(|state| {
            self.is_open.store(true, Relaxed);
            is_new = state.is_none();
            let changes = state.as_ref() != Some(&failure);
            *state = Some(failure);
            changes
        });
        if is_new {
            self.times_opened.fetch_add(1, Relaxed);
        }
        is_new
    }

    /// Closes the breaker and returns whether it was open. With `is_replaced` all existing connections are
    /// replaced, even if it was closed all the time.
    pub(crate) fn close(&self, is_replaced: bool) -> bool {
        let mut is_new = false;
        self.state.send_if_modified(|state| {
            is_new = state.take().is_some();
            // Under the lock, so that no reader sees it closed with the old era.
            self.era.fetch_add(u64::from(is_replaced), Relaxed);
            self.is_open.store(false, Relaxed);
            is_new || is_replaced
        });
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_once_and_closes_once() {
        let breaker = Breaker::default();
        assert!(!breaker.is_open());
        assert!(breaker.open(NodeFailure::Silent));
        assert!(!breaker.open(NodeFailure::Loading));
        assert!(breaker.is_open());
        assert_eq!(breaker.failure(), Some(NodeFailure::Loading));
        assert!(breaker.close(false));
        assert!(!breaker.close(false));
        assert!(!breaker.is_open());
        assert_eq!((breaker.era(), breaker.times_opened()), (0, 1));
        breaker.open(NodeFailure::Silent);
        assert!(breaker.close(true));
        assert_eq!((breaker.era(), breaker.times_opened()), (1, 2));
    }

    #[test]
    fn connections_can_be_given_up_while_it_is_closed() {
        let breaker = Breaker::default();
        let mut watch = breaker.watch();
        assert!(!breaker.close(true));
        assert_eq!(breaker.era(), 1);
        assert!(watch.has_changed().unwrap());
        watch.mark_unchanged();
        breaker.close(false);
        assert!(!watch.has_changed().unwrap());
    }
}
