//! How the store talks to Redis.

use std::time::Duration;

/// How the store uses Redis.
#[derive(Clone, Debug)]
pub struct Options {
    /// The prefix of every key.
    pub key_prefix: String,
    /// The longest that a decision waits.
    pub deadline: Duration,
    /// How long a server may be silent before requests no longer wait for it.
    pub lose_after: Duration,
    /// Keys end up to this much later than their window, spread evenly; 0 for none.
    pub jitter_secs: u64,
    /// The clock for limits without windows of their own.
    pub clock: TimeSource,
}

/// A source of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// The clock of the Redis that holds the counter, so that replicas need not agree.
    #[default]
    Redis,
    /// The clock of this process, passed with each request.
    Local,
}

impl crate::foundation::named::Named for TimeSource {
    const NAMES: &'static [(&'static str, Self)] =
        &[("redis", Self::Redis), ("local", Self::Local)];
}
