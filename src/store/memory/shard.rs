//! A part of all counters, which has its own lock.

use std::{collections::HashMap, hash::BuildHasher as _};

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use super::{
    capacity::Room,
    key::SplitKey,
    sketch::Sketch,
    slot::{CounterSlot, StateSlot},
    table::{DescriptorCounters, Table},
};
use crate::core::window::Timestamp;

/// A part of all counters.
#[derive(Debug)]
pub(super) struct Shard {
    /// Counters that are plain numbers, by descriptor.
    pub(super) families: Table,
    /// Further counters of descriptors that have [`MAX_INLINE`] already, by key: each hit searches a
    /// descriptor's list, and a client that sends its own periods could make that as long as it likes.
    more: HashMap<Box<[u8]>, CounterSlot, RandomState>,
    /// The number of counters in both.
    numbers: usize,
    /// Algorithm states, apart from the plain numbers so that those stay small.
    pub(super) states: HashMap<Box<[u8]>, StateSlot, RandomState>,
    /// The bytes that all of them take.
    pub(super) bytes: usize,
    /// Hits on keys that had no room for a counter.
    pub(super) sketch: Sketch,
    /// Whether a key had no room since the last sweep from outside: such keys are judged by the sketch. It does not
    /// change while a request is judged and applied, so that a refused request is not reported as admitted.
    pub(super) is_full: bool,
    /// No counter of this shard expires before this time.
    earliest_expiry: Timestamp,
}

/// Up to this many counters of one descriptor are stored with it: enough for the limits of any rule
/// written by hand, in the windows of now and of a second ago.
pub(super) const MAX_INLINE: usize = 16;

const NEVER: Timestamp = Timestamp::from_millis(u64::MAX);

impl Shard {
    /// A shard without counters, whose sketch has `width` cells in a row.
    pub(super) fn new(width: usize) -> Self {
        Self {
            families: Table::default(),
            more: HashMap::default(),
            numbers: 0,
            states: HashMap::default(),
            bytes: 0,
            sketch: Sketch::new(width),
            is_full: false,
            earliest_expiry: NEVER,
        }
    }

    fn len(&self) -> usize {
        self.numbers + self.states.len()
    }

    /// Drops expired counters and returns their room. `hasher` is that of all names.
    pub(super) fn sweep(&mut self, hasher: &RandomState, now: Timestamp) -> Room {
        self.sketch.sweep(now);
        if self.earliest_expiry > now {
            return Room::default();
        }
        let (before, bytes_before) = (self.len(), self.bytes);
        let mut earliest = NEVER;
        let mut is_live = |expires_at: Timestamp| {
            let is_live = expires_at > now;
            if is_live {
                earliest = earliest.min(expires_at);
            }
            is_live
        };
        let (mut numbers, mut bytes) = (0, 0);
        let is_kept = |family: &mut DescriptorCounters| {
            family.slots.retain(|slot| is_live(slot.expires_at));
            numbers += family.slots.len();
            if family.slots.is_empty() {
                return false;
            }
            bytes += family.bytes();
            true
        };
        self.families.retain(is_kept, |name| hasher.hash_one(name));
        self.more.retain(|_, slot| is_live(slot.expires_at));
        self.numbers = numbers + self.more.len();
        self.states.retain(|_, slot| is_live(slot.expires_at));
        self.earliest_expiry = earliest;
        if self.states.capacity() > 4 * self.states.len() {
            self.states.shrink_to_fit();
        }
        if self.more.capacity() > 4 * self.more.len() {
            self.more.shrink_to_fit();
        }
        bytes += self
            .more
            .keys()
            .map(|key| CounterSlot::bytes(key))
            .sum::<usize>();
        let states = self.states.iter();
        bytes += states.map(|(key, slot)| slot.bytes(key)).sum::<usize>();
        self.bytes = bytes;
        Room {
            counters: before - self.len(),
            bytes: bytes_before.saturating_sub(bytes),
        }
    }

    /// The plain counters of the descriptor `name`, whose hash is `hash`.
    pub(super) fn family(&mut self, hash: u64, name: &[u8]) -> Option<&mut DescriptorCounters> {
        self.families.get_mut(hash, name)
    }

    /// The plain counter `name`; `hash` is that of its family.
    pub(super) fn slot(&mut self, hash: u64, name: SplitKey<'_>) -> Option<&mut CounterSlot> {
        let family = self.families.get_mut(hash, name.family);
        match family.and_then(|family| family.slot(name.own)) {
            // A sweep may have made room in the family since the counter was put into `more`.
            None => self.more.get_mut(name.key),
            slot => slot,
        }
    }

    /// Adds a plain counter, which must be new, and returns the bytes that it takes. `hasher` is that of
    /// all names.
    pub(super) fn push(
        &mut self,
        hash: u64,
        name: SplitKey<'_>,
        slot: CounterSlot,
        hasher: &RandomState,
    ) -> usize {
        self.numbers += 1;
        self.expires(slot.expires_at);
        let bytes = match self.family(hash, name.family) {
            Some(family) if family.slots.len() < MAX_INLINE => {
                let before = family.bytes();
                family.slots.push(slot);
                family.bytes() - before
            }
            Some(_) => {
                self.more.insert(name.key.into(), slot);
                CounterSlot::bytes(name.key)
            }
            None => {
                let family = DescriptorCounters {
                    name: name.family.into(),
                    slots: SmallVec::from_iter([slot]),
                };
                let bytes = family.bytes();
                self.families.insert(family, |name| hasher.hash_one(name));
                bytes
            }
        };
        self.bytes += bytes;
        bytes
    }

    /// Records that a counter expires at `expires_at`.
    pub(super) fn expires(&mut self, expires_at: Timestamp) {
        self.earliest_expiry = self.earliest_expiry.min(expires_at);
    }
}
