//! Keeps the log from repeating one message.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The log repeats a message at most once in this time, however often its cause occurs.
const INTERVAL: Duration = Duration::from_secs(60);

/// When a message was last logged.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<Option<Instant>>);

impl LogThrottle {
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether the message may be logged now; if so, a new silence begins.
    pub fn is_over(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if is_over {
            *last = Some(Instant::now());
        }
        is_over
    }

    #[cfg(test)]
    pub(crate) fn has_begun(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }
}
