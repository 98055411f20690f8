//! Keeps the log from repeating one message.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use super::lock::lock;

/// The log repeats a message at most once in this time, however often its cause occurs.
const INTERVAL: Duration = Duration::from_secs(60);

/// When a message was last logged.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<Option<Instant>>);

impl LogThrottle {
    /// A throttle of a message that was never logged.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether the message may be logged now; if so, the next interval of silence begins.
    pub(crate) fn may_log(&self) -> bool {
        let mut last = lock(&self.0);
        let may_log = last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if may_log {
            *last = Some(Instant::now());
        }
        may_log
    }

    #[cfg(test)]
    pub(crate) fn has_begun(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_logged_once_in_an_interval() {
        let throttle = LogThrottle::new();
        assert!(throttle.may_log());
        assert!(!throttle.may_log());
        *throttle.0.lock().unwrap() = Instant::now().checked_sub(INTERVAL);
        assert!(throttle.may_log());
        assert!(!throttle.may_log());
    }
}
