//! How many replicas share the limits, as far as that is known.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use crate::core::window::Timestamp;

/// How many replicas share the limits, as far as that is known.
#[derive(Debug)]
pub(crate) struct ReplicaCount {
    /// 0 until it is known.
    pub(super) known: AtomicU32,
    /// The number to use until then; 0 if the settings give none.
    until_known: AtomicU32,
    /// Since when there was never more than one, in milliseconds since 1970.
    pub(super) alone_since: AtomicU64,
}

impl Default for ReplicaCount {
    fn default() -> Self {
        Self {
            known: AtomicU32::new(0),
            until_known: AtomicU32::new(0),
            alone_since: AtomicU64::new(NEVER),
        }
    }
}

pub(in crate::store) const NEVER: u64 = u64::MAX;

impl ReplicaCount {
    /// Begins with the number that is known, or with one to use until it is.
    pub(crate) fn begin(&self, known: Option<NonZeroU32>, until_known: Option<NonZeroU32>) {
        let number = |given: Option<NonZeroU32>| given.map_or(0, NonZeroU32::get);
        self.known.store(number(known), Relaxed);
        self.until_known.store(number(until_known), Relaxed);
        let is_one = known.or(until_known) == Some(NonZeroU32::MIN);
        self.alone_since
            .store(if is_one { 0 } else { NEVER }, Relaxed);
    }

    /// The number that was counted last or given; 0 if there is none.
    pub(crate) fn known(&self) -> u32 {
        self.known.load(Relaxed)
    }

    /// Stands for an unknown number: each share is then one hit.
    pub(in crate::store) const UNKNOWN: u32 = u32::MAX;

    /// The number by which shares are computed.
    pub(in crate::store) fn taken(&self) -> u32 {
        let given = [&self.known, &self.until_known].map(|number| number.load(Relaxed));
        given
            .into_iter()
            .find(|number| *number > 0)
            .unwrap_or(Self::UNKNOWN)
    }

    /// Since when there was no other replica; the end of time if there is one.
    pub(in crate::store) fn alone_since(&self) -> Timestamp {
        Timestamp::from_millis(self.alone_since.load(Relaxed))
    }

    /// Takes over a count: of a whole window, or of one of which a part may be missing.
    pub(super) fn count(&self, seen: u32, is_whole: bool, now: Timestamp) {
        if is_whole {
            self.known.store(seen, Relaxed);
        } else {
            let least = self.until_known.load(Relaxed);
            self.known.fetch_max(seen.max(least), Relaxed);
        }
        if self.known() > 1 {
            self.alone_since.store(NEVER, Relaxed);
        } else if is_whole && self.alone_since() == Timestamp::from_millis(NEVER) {
            self.alone_since.store(now.millis(), Relaxed);
        }
        if is_whole {
            // If some are missing later, the last number holds.
            self.until_known.store(0, Relaxed);
        }
    }
}
