//! The memory that clients make the process hold, and the work that was cut off for it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::foundation::sample::SampleWriter;

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
    pub const REASONS: [&str; 6] = [
        "connection_no_room",
        "json_late",
        "json_no_room",
        "message_late",
        "message_no_room",
        "connection_limit",
    ];
    pub const CONNECTION_NO_ROOM: usize = 0;
    pub const JSON_LATE: usize = 1;
    pub const JSON_NO_ROOM: usize = 2;
    pub const MESSAGE_LATE: usize = 3;
    pub const MESSAGE_NO_ROOM: usize = 4;
    pub const CONNECTION_LIMIT: usize = 5;

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
