//! Where lines go, and in which form.

use std::time::Duration;

use crate::observe::metrics::mogrifier::Mogrifier;

/// Destination, format and interval.
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
