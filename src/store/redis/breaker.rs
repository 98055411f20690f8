//! Lets nobody wait for a server that is lost.
//!
//! It opens when a connection is refused or breaks, when the server says that it is of no use for now, or
//! when the probe judges that it has been silent for too long; from then on only the probe speaks to the
//! server, and closes the breaker with its first prompt answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

use super::trouble::Trouble;

/// One for each server, shared by all workers.
#[derive(Debug)]
pub(super) struct Breaker {
    /// The trouble that keeps it open.
    state: watch::Sender<Option<Trouble>>,
    /// The same in short, for the way of each request.
    is_open: AtomicBool,
    /// Grows when the connections that there are cannot be trusted any more.
    era: AtomicU64,
    times_opened: AtomicU64,
}

impl Default for Breaker {
    /// Closed: a server is good until it is known better.
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
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.state.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Option<Trouble>> {
        self.state.subscribe()
    }

    pub(super) fn era(&self) -> u64 {
        self.era.load(Relaxed)
    }

    pub(super) fn times_opened(&self) -> u64 {
        self.times_opened.load(Relaxed)
    }

    /// Returns whether that is news. Who hears of trouble later than another learns it too, but
    /// it is no second opening.
    pub(super) fn open(&self, trouble: Trouble) -> bool {
        let mut is_news = false;
        self.state.send_if_modified(|state| {
            self.is_open.store(true, Relaxed);
            is_news = state.is_none();
            let changes = state.as_ref() != Some(&trouble);
            *state = Some(trouble);
            changes
        });
        if is_news {
            self.times_opened.fetch_add(1, Relaxed);
        }
        is_news
    }

    /// Returns whether that is news. With `is_anew` all connections of before are to be replaced,
    /// even if it was closed all the time.
    pub(super) fn close(&self, is_anew: bool) -> bool {
        let mut is_news = false;
        self.state.send_if_modified(|state| {
            is_news = state.take().is_some();
            // Under the lock, so that nobody sees it closed with the era of before.
            self.era.fetch_add(u64::from(is_anew), Relaxed);
            self.is_open.store(false, Relaxed);
            is_news || is_anew
        });
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_once_and_closes_once() {
        let breaker = Breaker::default();
        assert!(!breaker.is_open());
        assert!(breaker.open(Trouble::Silent));
        assert!(!breaker.open(Trouble::Loading));
        assert!(breaker.is_open());
        assert_eq!(breaker.trouble(), Some(Trouble::Loading));
        assert!(breaker.close(false));
        assert!(!breaker.close(false));
        assert!(!breaker.is_open());
        assert_eq!((breaker.era(), breaker.times_opened()), (0, 1));
        breaker.open(Trouble::Silent);
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
