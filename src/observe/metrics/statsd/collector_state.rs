//! Logs whether a collector can be reached.

use std::io;

use super::options::Options;

/// Logs when a collector becomes reachable or unreachable, not that it still is.
pub(super) struct CollectorState {
    target: String,
    is_up: Option<bool>,
}

impl CollectorState {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            target: format!("{}:{}", options.host, options.port),
            is_up: None,
        }
    }

    pub(super) fn report(&mut self, failure: Option<&io::Error>) {
        let was_up = self.is_up.replace(failure.is_none());
        match failure {
            None if was_up != Some(true) => {
                tracing::info!(target = %self.target, "statsd collector reached");
            }
            Some(error) if was_up != Some(false) => {
                tracing::warn!(target = %self.target, %error, "statsd collector not reached");
            }
            _ => {}
        }
    }
}
