//! Counts work that was refused or cut short, and logs the reason now and then.

use std::sync::Arc;

use crate::{
    foundation::log_throttle::LogThrottle,
    observe::metrics::{CutOff, Metrics},
};

/// Counts work that was cut off, by reason, with a throttle on the log lines of each reason.
pub(super) struct CutOffLog {
    metrics: Arc<Metrics>,
    throttles: [LogThrottle; CutOff::REASONS.len()],
}

impl CutOffLog {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            throttles: Default::default(),
        }
    }

    /// Counts one for the reason with this index. The bound has `max` bytes.
    pub(super) fn note(&self, reason: usize, max: u64) {
        self.metrics.held.cut_off.count(reason);
        if !self.throttles[reason].may_log() {
            return;
        }
        match reason {
            CutOff::MESSAGE_LATE => tracing::warn!(
                "a call is refused: its message did not arrive within `--message-timeout`"
            ),
            CutOff::JSON_LATE => tracing::warn!(
                "a JSON request is refused: its body did not arrive within `--message-timeout`"
            ),
            CutOff::MESSAGE_NO_ROOM => tracing::warn!(
                "a call is refused: clients make the process hold more than {max} bytes \
                 (`--max-held-bytes`)"
            ),
            CutOff::JSON_NO_ROOM => tracing::warn!(
                "a JSON request is refused: clients make the process hold more than {max} bytes \
                 (`--max-held-bytes`)"
            ),
            CutOff::CONNECTION_LIMIT => tracing::warn!(
                "a connection without a call, or without one for the longest, is closed for a new one: no more \
                 gRPC connections are allowed (`--max-connections`, or the limit of open files)"
            ),
            _ => tracing::warn!(
                "the connection that has held the most for the longest is closed: clients make the \
                 process hold more than {max} bytes (`--max-held-bytes`)"
            ),
        }
    }
}
