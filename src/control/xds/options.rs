//! How to get rules from a control plane.

use std::{fmt, time::Duration};

use super::tls::ControlPlaneTls;
use crate::foundation::backoff::Backoff;

/// gRPC's default for the largest message, 4 MiB.
pub(crate) const DEFAULT_MESSAGE_BYTES: usize = 4 << 20;

/// How to get rules from a control plane.
#[derive(Clone)]
pub(crate) struct Options {
    /// `host:port` or `unix:path`, as gRPC writes targets.
    pub server: String,
    pub node_id: String,
    pub node_metadata: Vec<(String, String)>,
    /// Each is `name:value`, with one colon. They may be secret.
    pub headers: Vec<String>,
    /// `None` means without TLS.
    pub tls: Option<ControlPlaneTls>,
    pub empty: OnEmptyPush,
    /// Largest message accepted.
    pub max_message_bytes: usize,
    /// Waits between attempts to connect.
    pub backoff: Backoff,
    /// The wait after a refused call, times the refusals in a row; `None` means the usual back-off.
    pub retry_interval: Option<Duration>,
    /// How often to ping a silent control plane; `None` means never.
    pub keepalive: Option<Duration>,
}

impl fmt::Debug for Options {
    /// Omits fields that may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("server", &self.server)
            .field("node_id", &self.node_id)
            .finish_non_exhaustive()
    }
}

/// The effect of a push without any rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnEmptyPush {
    /// It is accepted like any other, so that nothing is limited, unless it only answers the question that the client
    /// repeats after a reconnect.
    Allow,
    /// It is refused while there are rules.
    Keep,
    /// It is always accepted.
    Always,
}
