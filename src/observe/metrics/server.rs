//! Counts of the server: failed TLS handshakes, invalid authorities that were replaced or refused, streams that were
//! reset, tasks that ended unexpectedly, and the memory that clients make the process hold.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{foundation::sample::SampleWriter, net::tls::failure::HandshakeFailure};

/// Failed handshakes with clients, by reason.
#[derive(Debug, Default)]
pub struct Handshakes([AtomicU64; HandshakeFailure::ALL.len()]);

impl Handshakes {
    /// Counts one failed handshake.
    pub fn count(&self, failure: HandshakeFailure) {
        self.0[failure as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        for failure in HandshakeFailure::ALL {
            let name = format!("tollgate.tls_handshakes_failed_total.{}", failure.name());
            list.counter(name, self.0[failure as usize].load(Relaxed));
        }
    }
}

/// Counts of connections with an invalid `:authority`.
#[derive(Debug, Default)]
pub struct Authorities {
    /// Connections whose authority was replaced, so that their calls were answered.
    pub replaced: AtomicU64,
    /// Connections whose authority stayed, so that HTTP/2 resets their calls.
    pub refused: AtomicU64,
}

impl Authorities {
    /// Counts one connection.
    pub fn count(which: &AtomicU64) {
        which.fetch_add(1, Relaxed);
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        let Self { replaced, refused } = self;
        list.counter(
            "tollgate.authorities_replaced_total",
            replaced.load(Relaxed),
        );
        list.counter("tollgate.authorities_refused_total", refused.load(Relaxed));
    }
}

/// Streams that the server reset, by the HTTP/2 error code sent to the client.
#[derive(Debug, Default)]
pub struct StreamsReset([AtomicU64; Self::CODES.len()]);

impl StreamsReset {
    /// Names of the codes, indexed by number (RFC 9113, 7).
    pub const CODES: [&str; 14] = [
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

    /// Counts a reset and returns the index of its code; an unknown code counts as an internal error.
    pub fn count(&self, code: u32) -> usize {
        const INTERNAL_ERROR: usize = 2;
        let known = usize::try_from(code)
            .ok()
            .filter(|code| *code < self.0.len());
        let code = known.unwrap_or(INTERNAL_ERROR);
        self.0[code].fetch_add(1, Relaxed);
        code
    }

    /// The count of each code.
    pub fn totals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let totals = self.0.iter().map(|total| total.load(Relaxed));
        Self::CODES.into_iter().zip(totals)
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        for (code, total) in self.totals() {
            let code = code.to_ascii_lowercase();
            list.counter(format!("tollgate.streams_reset_total.{code}"), total);
        }
    }
}

/// Exports of metrics that ended although they should run as long as the process, and started again.
#[derive(Debug, Default)]
pub struct EndedTasks(AtomicU64);

impl EndedTasks {
    /// Counts one task.
    pub fn count(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        list.counter("tollgate.tasks_ended_total", self.0.load(Relaxed));
    }
}

/// Memory that clients make the process hold, beyond the fixed cost of a connection.
#[derive(Debug, Default)]
pub struct HeldStats {
    pub bytes: AtomicU64,
    /// The bound on `bytes`.
    pub max: AtomicU64,
    pub cut_off: CutOff,
}

impl HeldStats {
    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        for (reason, total) in CutOff::REASONS.iter().zip(&self.cut_off.0) {
            let name = format!("tollgate.cut_off_total.{reason}");
            list.counter(name, total.load(Relaxed));
        }
        list.gauge("tollgate.held_bytes", self.bytes.load(Relaxed));
        list.gauge("tollgate.held_bytes_max", self.max.load(Relaxed));
    }
}

/// Counts, by reason, of work that was refused or cut short because it held too much memory or took too long.
#[derive(Debug, Default)]
pub struct CutOff([AtomicU64; Self::REASONS.len()]);

impl CutOff {
    /// Names of the reasons, by index.
    pub const REASONS: [&str; 4] = [
        "connection_no_room",
        "message_late",
        "message_no_room",
        "connection_limit",
    ];
    pub const CONNECTION_NO_ROOM: usize = 0;
    pub const MESSAGE_LATE: usize = 1;
    pub const MESSAGE_NO_ROOM: usize = 2;
    pub const CONNECTION_LIMIT: usize = 3;

    /// The lines of the log, by reason.
    pub const TEXTS: [&str; 4] = [
        "the connection that holds the most is closed: clients make the process hold almost 32 MiB of messages and \
         unread replies",
        "a call is refused: its message did not arrive within 10 s",
        "a call is refused: clients make the process hold almost 32 MiB of messages and unread replies, or more",
        "a connection without a call, or without one for the longest, is closed for a new one: no more gRPC \
         connections are allowed (`--max-connections`, or the limit of open files)",
    ];

    /// Counts one for the reason with this index.
    pub fn count(&self, reason: usize) {
        self.0[reason].fetch_add(1, Relaxed);
    }

    /// The count of the reason with this index.
    #[cfg(test)]
    pub(crate) fn total(&self, reason: usize) -> u64 {
        self.0[reason].load(Relaxed)
    }
}
