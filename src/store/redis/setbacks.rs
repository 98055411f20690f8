//! Pauses after connections that came up and were of no use: a server that refuses clients or closes their connections
//! is not helped by more of them.

use std::time::Duration;

use crate::foundation::{
    backoff::{Backoff, BackoffWaits},
    random::between,
};

const SETBACKS: Backoff = Backoff {
    initial: Duration::from_millis(100),
    max: Duration::from_secs(10),
    factor: 2.0,
    // They are varied below, by less.
    jitter: false,
};

/// The pauses of setbacks in a row.
#[derive(Debug)]
pub(super) struct SetbackPauses(BackoffWaits);

impl SetbackPauses {
    pub(super) fn new() -> Self {
        Self(BackoffWaits::new(SETBACKS))
    }

    /// The pause after one more. It is varied, because all clients of the server have the same reason to come back.
    pub(super) fn next_pause(&mut self) -> Duration {
        let wait = self.0.next_wait();
        between(wait - wait / 4, wait)
    }
}
