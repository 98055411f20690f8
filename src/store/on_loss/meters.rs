//! What the losses of all stores of a process came to.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::store::{StoreError, replicas::Number};

/// Counted over all stores, and what they share.
#[derive(Debug, Default)]
pub struct Meters {
    pub replicas: Number,
    /// Stores that do not answer now.
    pub lost: AtomicU64,
    /// Requests that were answered without the store.
    pub degraded: AtomicU64,
    /// Requests that the store did not answer, with an error or without, by [`CAUSES`].
    causes: [AtomicU64; CAUSES.len()],
    /// Hits that were counted locally and added to the store afterwards.
    pub handed_back: AtomicU64,
    /// Hits that were counted locally and could not be added afterwards.
    pub forgotten: AtomicU64,
    /// How often other rules came into use than before.
    rule_sets: AtomicU64,
}

/// Why a store does not answer a request, and what statistics call it.
const CAUSES: [(StoreError, &str); 5] = [
    (StoreError::Timeout, "timeout"),
    (StoreError::Unreachable, "unreachable"),
    (StoreError::Refused, "refused"),
    (StoreError::Overloaded, "overloaded"),
    (StoreError::Full, "full"),
];

impl Meters {
    /// A request that the store did not answer.
    pub fn record(&self, error: StoreError) {
        let known = CAUSES.iter().zip(&self.causes);
        for (_, count) in known.filter(|((cause, _), _)| *cause == error) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// How many requests the store did not answer, by cause.
    pub fn causes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.causes.iter().map(|count| count.load(Relaxed));
        CAUSES.iter().map(|(_, name)| *name).zip(counts)
    }

    /// Other rules are in use: a counter that some rule counts locally from now on may hold hits that no
    /// worker remembers, for another rule was asked about it before.
    pub fn change_rules(&self) {
        self.rule_sets.fetch_add(1, Relaxed);
    }

    /// How often other rules came into use.
    pub fn rule_sets(&self) -> u64 {
        self.rule_sets.load(Relaxed)
    }
}
