//! Counts of the server: failed TLS handshakes, invalid authorities that were replaced or refused, streams that were
//! reset, tasks that ended unexpectedly, and the memory that clients make the process hold.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{foundation::sample::SampleWriter, net::tls::failure::HandshakeFailure};

/// Counts of the server.
#[derive(Debug, Default)]
pub(crate) struct ServerStats {
    /// Failed handshakes with clients, by [`HandshakeFailure`].
    pub handshakes: CountsOf<{ HandshakeFailure::ALL.len() }>,
    /// Connections whose invalid `:authority` was replaced, so that their calls were answered.
    pub authorities_replaced: AtomicU64,
    /// Connections whose invalid `:authority` stayed, so that HTTP/2 resets their calls.
    pub authorities_refused: AtomicU64,
    /// Streams that the server reset, by [`RESET_CODES`].
    pub streams_reset: CountsOf<{ RESET_CODES.len() }>,
    /// Exports of metrics that ended although they should run as long as the process, and started again.
    pub ended_tasks: AtomicU64,
    /// Memory that clients make the process hold, beyond the fixed cost of a connection.
    pub held_bytes: AtomicU64,
    /// The bound on `held_bytes`.
    pub held_bytes_max: AtomicU64,
    /// Work that was refused or cut short because it held too much memory or took too long, by [`CutOff`].
    pub cut_off: CountsOf<{ CutOff::ALL.len() }>,
}

/// A count for each cause.
#[derive(Debug)]
pub(crate) struct CountsOf<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for CountsOf<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> CountsOf<N> {
    /// Counts one for the cause with this index.
    pub(crate) fn count(&self, cause: usize) {
        self.0[cause].fetch_add(1, Relaxed);
    }

    /// The count of each cause.
    pub(crate) fn totals(&self) -> [u64; N] {
        std::array::from_fn(|cause| self.0[cause].load(Relaxed))
    }
}

impl ServerStats {
    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        let reasons = HandshakeFailure::ALL.map(HandshakeFailure::name);
        for (reason, total) in reasons.into_iter().zip(self.handshakes.totals()) {
            let name = "tollgate.tls_handshakes_failed_total";
            list.counter(name, &[("reason", reason)], total);
        }
        for (code, total) in RESET_CODES.into_iter().zip(self.streams_reset.totals()) {
            let code = code.to_ascii_lowercase();
            list.counter("tollgate.streams_reset_total", &[("code", &code)], total);
        }
        for ((reason, _), total) in CutOff::ALL.into_iter().zip(self.cut_off.totals()) {
            list.counter("tollgate.cut_off_total", &[("reason", reason)], total);
        }
        list.total(
            "tollgate.authorities_replaced_total",
            &self.authorities_replaced,
        );
        list.total(
            "tollgate.authorities_refused_total",
            &self.authorities_refused,
        );
        list.total("tollgate.tasks_ended_total", &self.ended_tasks);
        let (held, max) = (&self.held_bytes, &self.held_bytes_max);
        list.gauge("tollgate.held_bytes", &[], held.load(Relaxed));
        list.gauge("tollgate.held_bytes_max", &[], max.load(Relaxed));
    }
}

/// Names of the error codes of HTTP/2, by number (RFC 9113, 7).
pub(crate) const RESET_CODES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// The index of a code in [`RESET_CODES`]; an unknown code counts as an internal error.
pub(crate) fn reset_code(code: u32) -> usize {
    const INTERNAL_ERROR: usize = 2;
    let known = usize::try_from(code).ok();
    known
        .filter(|code| *code < RESET_CODES.len())
        .unwrap_or(INTERNAL_ERROR)
}

/// Reasons to refuse work or to cut it short.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CutOff {
    ConnectionNoRoom,
    MessageLate,
    MessageNoRoom,
    ConnectionLimit,
}

impl CutOff {
    /// Their names in statistics, and the lines of the log.
    pub(crate) const ALL: [(&str, &str); 4] = [
        (
            "connection_no_room",
            "the connection that holds the most is closed: clients make the process hold almost 32 MiB of messages \
             and unread replies",
        ),
        (
            "message_late",
            "a call is refused: its message did not arrive within 10 s",
        ),
        (
            "message_no_room",
            "a call is refused: clients make the process hold almost 32 MiB of messages and unread replies, or more",
        ),
        (
            "connection_limit",
            "a connection without a call, or without one for the longest, is closed for a new one: no more gRPC \
             connections are allowed (`--max-connections`, or the limit of open files)",
        ),
    ];
}
