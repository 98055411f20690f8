//! Counts invalid authorities and reset streams, and logs now and then what to do about them.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use crate::{
    foundation::{log_throttle::LogThrottle, printable::Shown},
    observe::metrics::{Metrics, RESET_CODES, reset_code},
};

/// Counts and logs for all workers.
#[derive(Debug)]
pub(in crate::server) struct AuthorityLog {
    pub(super) metrics: Arc<Metrics>,
    /// A throttle for each kind of event, so that harmless events do not hide others.
    pub(super) replaced: LogThrottle,
    pub(super) refused: LogThrottle,
    pub(super) reset: [LogThrottle; RESET_CODES.len()],
}

impl AuthorityLog {
    /// A log that counts in `metrics`.
    pub(in crate::server) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            replaced: LogThrottle::default(),
            refused: LogThrottle::default(),
            reset: Default::default(),
        })
    }

    /// Records a name that was replaced.
    pub(super) fn replaced(&self, found: &[u8]) {
        let replaced = &self.metrics.server.authorities_replaced;
        replaced.fetch_add(1, Relaxed);
        if self.replaced.may_log() {
            let found = Shown(found);
            tracing::warn!(
                "calls with the invalid authority `{found}` are answered; a valid one replaces it. If it is the \
                 name of a cluster, set `authority` in Envoy's `envoy_grpc`; if it is the path of a \
                 socket, set `grpc.default_authority` in the arguments of the channel"
            );
        }
    }

    /// Records a name that could not be replaced.
    pub(super) fn refused(&self, found: &[u8]) {
        let refused = &self.metrics.server.authorities_refused;
        refused.fetch_add(1, Relaxed);
        if self.refused.may_log() {
            let found = Shown(found);
            tracing::error!(
                "calls with the invalid authority `{found}` are not answered, because no valid one can replace \
                 it: HTTP/2 resets each of them, and Envoy lets the requests pass. Set `authority` in Envoy's \
                 `envoy_grpc`, or `grpc.default_authority` in the arguments of the channel"
            );
        }
    }

    /// Records a stream that the server reset with this code.
    pub(super) fn reset(&self, code: u32) {
        const NO_ERROR: usize = 0;
        let code = reset_code(code);
        self.metrics.server.streams_reset.count(code);
        // NO_ERROR means that the call was answered before its stream ended.
        if code != NO_ERROR && self.reset[code].may_log() {
            let name = RESET_CODES[code];
            let why = match name {
                "PROTOCOL_ERROR" => " (its headers are invalid)",
                "REFUSED_STREAM" => " (its connection has more than 128 calls at a time)",
                _ => "",
            };
            tracing::warn!(
                "HTTP/2 reset a call with {name}{why}: the call gets no answer, and Envoy lets its request pass"
            );
        }
    }
}
