//! Where statsd lines go, in which format, and whether the collector there can be reached.

use std::{io, time::Duration};

use crate::observe::metrics::mogrifier::Mogrifier;

/// The destination, format and interval of a sink.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub host: String,
    pub port: u16,
    pub transport: Transport,
    pub dialect: Dialect,
    /// EXTRA_TAGS, added to every line.
    pub extra_tags: Vec<(String, String)>,
    pub flush_interval: Duration,
}

/// STATSD_PROTOCOL. DogStatsD agents listen on UDP only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// The syntax of tags.
#[derive(Clone, Debug)]
pub(crate) enum Dialect {
    /// Within the name: `name.__tag=value:1|c`.
    Statsd,
    /// After the value, `name:1|c|#tag:value`; the rules rewrite the name first.
    DogStatsd(Vec<Mogrifier>),
}

/// Logs when a collector becomes reachable or unreachable, once per change.
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
