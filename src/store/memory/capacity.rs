//! Room for counters: how many the store holds, and how many it may hold.

use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::quality::RandomState;

use super::shard::Shard;
use crate::{core::window::Timestamp, store::contract::StoreError};

/// The bound on live counters.
#[derive(Debug)]
pub(super) struct Capacity {
    live: AtomicUsize,
    max: usize,
}

/// With room for this many more counters a batch does not reserve any: the requests that are in flight
/// at a time need less.
const PLENTY: usize = 4096;

/// In a small store room for one counter in this many is plenty.
const PLENTY_SHARE: usize = 16;

impl Capacity {
    pub(super) fn new(max: usize) -> Self {
        Self {
            live: AtomicUsize::new(0),
            max,
        }
    }

    /// How many counters are held or reserved.
    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// The most counters.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Whether there is room for `counters` more, and for those of all requests in flight.
    pub(super) fn has_plenty(&self, counters: usize) -> bool {
        let left = self.max.saturating_sub(self.live());
        left >= counters + PLENTY.min(self.max / PLENTY_SHARE)
    }

    /// Takes room for `counters` more counters; returns whether there was enough.
    pub(super) fn take(&self, counters: usize) -> bool {
        if counters == 0 {
            return true;
        }
        let before = self.live.fetch_add(counters, Ordering::Relaxed);
        let has_room = before + counters <= self.max;
        if !has_room {
            self.give_back(counters);
        }
        has_room
    }

    /// Gives back the room of `counters` counters.
    pub(super) fn give_back(&self, counters: usize) {
        if counters > 0 {
            self.live.fetch_sub(counters, Ordering::Relaxed);
        }
    }
}

/// The room of one batch for new counters. On drop it gives back room that was not needed.
#[derive(Debug)]
pub(super) struct BatchRoom<'a> {
    capacity: &'a Capacity,
    pub(super) hasher: &'a RandomState,
    claim: Claim,
}

/// How a batch gets room for new counters.
#[derive(Clone, Copy, Debug)]
pub(super) enum Claim {
    /// It asks for room: no earlier charge of the batch is lost if there is none.
    Asked,
    /// It is sure to have room, of which `reserved` is already counted as taken.
    Sure { reserved: usize },
}

impl<'a> BatchRoom<'a> {
    pub(super) fn new(capacity: &'a Capacity, hasher: &'a RandomState, claim: Claim) -> Self {
        Self {
            capacity,
            hasher,
            claim,
        }
    }

    /// Takes room for one more counter, in `shard`.
    pub(super) fn take_one(&mut self, shard: &mut Shard, now: Timestamp) -> Result<(), StoreError> {
        let capacity = self.capacity;
        match &mut self.claim {
            Claim::Sure { reserved: 0 } => {
                capacity.live.fetch_add(1, Ordering::Relaxed);
            }
            Claim::Sure { reserved } => *reserved -= 1,
            Claim::Asked => {
                if !capacity.take(1) {
                    capacity.give_back(shard.sweep(self.hasher, now));
                    if !capacity.take(1) {
                        return Err(StoreError::Full);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for BatchRoom<'_> {
    fn drop(&mut self) {
        if let Claim::Sure { reserved } = self.claim {
            self.capacity.give_back(reserved);
        }
    }
}
