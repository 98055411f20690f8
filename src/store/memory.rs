//! Counters in this process: a map in shards, each behind its own lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    future,
    hash::BuildHasher as _,
    sync::{Mutex, MutexGuard},
};

use foldhash::quality::RandomState;

use super::contract::{Deadline, Store, StoreError, StoreState};
use crate::core::{
    charging::{BatchCharging, charges_alone},
    counter::{Batch, CounterKind, CounterState, CounterStates, Increment, IncrementSpec},
    request::Hits,
    window::Timestamp,
};
use crate::foundation::{lock::lock, sample::SampleWriter};

mod capacity;
mod cursor;
mod key;
mod shard;
pub(super) mod sketch;
mod slot;
mod table;
#[cfg(test)]
mod tests;

use capacity::Capacity;
pub(crate) use capacity::{CounterBounds, ReservedBytes};
use cursor::Cursor;
use key::SplitKey;
use shard::Shard;

/// Counts in memory, up to bounds on counters and bytes.
///
/// A full store still counts on the counters that it has, and counts all other keys in a sketch: dropping a live
/// counter to make room would give its client a fresh limit, and a flood of invented values could do that to all
/// clients.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[PaddedShard]>,
    /// Random for each process: values come from outside, and must not be able to pick a shard or to
    /// collide. Its hashes never leave the process, so they need not be cryptographic.
    hasher: RandomState,
    capacity: Capacity,
}

/// A shard that shares no cache line with its neighbours; processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct PaddedShard(Mutex<Shard>);

/// Many more than there are cores, so that two of them rarely need the same shard.
const SHARDS: usize = 256;

/// Locked shards, by index.
type Locked<'a> = BTreeMap<usize, MutexGuard<'a, Shard>>;

impl MemoryStore {
    /// A store of at most `max_counters` counters, within the default bound on bytes.
    pub fn new(max_counters: usize) -> Self {
        Self::bounded(&CounterBounds {
            counters: max_counters,
            bytes: CounterBounds::DEFAULT_BYTES,
            reserved: ReservedBytes::default(),
        })
    }

    /// A store within `bounds`.
    pub(crate) fn bounded(bounds: &CounterBounds) -> Self {
        let width = bounds.sketch_width() / SHARDS;
        let shard = |_| PaddedShard(Mutex::new(Shard::new(width)));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher: RandomState::default(),
            capacity: Capacity::new(bounds),
        }
    }

    /// How many counters are held, including those that expired since the last sweep.
    pub fn live_counters(&self) -> usize {
        self.capacity.live()
    }

    /// Drops expired counters. It locks one shard at a time, and searches only those that may have some.
    pub fn sweep(&self, now: Timestamp) {
        for shard in &*self.shards {
            let mut shard = lock(&shard.0);
            self.capacity.give_back(shard.sweep(&self.hasher, now));
            shard.is_full &= !self.capacity.has_room();
        }
    }

    fn hash(&self, family: &[u8]) -> u64 {
        self.hasher.hash_one(family)
    }

    /// The index of the shard that holds families of this hash.
    fn shard(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "16 bits are left")]
        let bits = (hash >> 40) as u16;
        // Not the bits that the hash tables use.
        usize::from(bits) % SHARDS
    }

    /// [`Self::apply_into`] with counts of its own.
    #[cfg(test)]
    pub(crate) fn apply_all(&self, batch: &Batch, now: Timestamp) -> CounterStates {
        let mut counts = CounterStates::new();
        self.apply_into(&mut counts, batch, now);
        counts
    }

    /// [`Store::add_into`] without a future or an error, because nothing here waits or fails. `counts` must be empty.
    pub fn apply_into(&self, counts: &mut CounterStates, batch: &Batch, now: Timestamp) {
        if batch.all_specs().all(IncrementSpec::stands_alone) {
            self.add_alone(counts, batch, now);
        } else {
            *counts = self.add_together(batch, now);
        }
    }

    /// Hits on keys that had no room, since the start.
    pub(super) fn sketched_hits(&self) -> u64 {
        self.capacity.sketched_hits()
    }

    /// Applies each increment by itself. Increments of one family in a row find and lock it once.
    fn add_alone(&self, counts: &mut CounterStates, batch: &Batch, now: Timestamp) {
        let name = |index| SplitKey::new(batch.key(index), batch.spec(index).descriptor_bytes);
        let mut names = (0..batch.len()).map(|index| (index, name(index)));
        let mut next = names.next();
        while let Some((_, first)) = next {
            let hash = self.hash(first.family);
            let shard = &mut *lock(&self.shards[self.shard(hash)].0);
            let mut known = shard.family(hash, first.family);
            while let Some((index, name)) = next
                && name.is_sibling(first)
            {
                let spec = batch.spec(index);
                let slot = known.as_mut().and_then(|family| family.slot(name.own));
                let Some(slot) = slot.filter(|_| spec.method == CounterKind::Window) else {
                    break;
                };
                let is_charged = charges_alone(spec, || slot.count);
                counts.push(slot.add(spec, is_charged));
                next = names.next();
            }
            while let Some((index, name)) = next
                && name.is_sibling(first)
            {
                let mut cursor = self.cursor(shard, hash, name, now);
                counts.push(cursor.add(&batch.increment(index)));
                next = names.next();
            }
        }
    }

    /// Applies all increments as one step: whether one is charged depends on all counters.
    fn add_together(&self, batch: &Batch, now: Timestamp) -> CounterStates {
        let mut shards = self.lock_all(batch);
        let charging = BatchCharging::new(batch, |increment, ahead| {
            self.locked(&mut shards, increment, now)
                .look(increment, ahead)
        });
        let apply = |(index, increment): (usize, Increment<'_>)| {
            let judged = charging.judged[index];
            let is_charged = charging.charges(index, &increment);
            let mut cursor = self.locked(&mut shards, &increment, now);
            if !judged.is_over || is_charged {
                return cursor.apply(&increment, is_charged);
            }
            let waiting = judged.waiting(cursor.held(&increment));
            let mut spec = increment.look();
            spec.hits = spec.hits.saturating_add(waiting).min(Hits::MAX);
            let count = cursor.apply(&Increment { spec, ..increment }, false);
            CounterState {
                after: count.after.saturating_add(waiting),
                ..count
            }
        };
        batch.iter().enumerate().map(apply).collect()
    }

    /// Locks the shards of all counters of `batch` in ascending order, so that two requests cannot wait
    /// for each other.
    fn lock_all(&self, batch: &Batch) -> Locked<'_> {
        let shard = |increment: Increment<'_>| {
            let name = SplitKey::of(&increment);
            self.shard(self.hash(name.family))
        };
        let wanted: BTreeSet<usize> = batch.iter().map(shard).collect();
        wanted
            .into_iter()
            .map(|index| (index, lock(&self.shards[index].0)))
            .collect()
    }

    /// The counter of `increment`, whose shard is locked.
    fn locked<'s, 'k>(
        &'s self,
        shards: &'s mut Locked<'_>,
        increment: &Increment<'k>,
        now: Timestamp,
    ) -> Cursor<'s, 'k> {
        let name = SplitKey::of(increment);
        let hash = self.hash(name.family);
        let shard = shards.get_mut(&self.shard(hash));
        let shard = shard.expect("every shard of the batch is locked");
        self.cursor(shard, hash, name, now)
    }

    fn cursor<'s, 'k>(
        &'s self,
        shard: &'s mut Shard,
        hash: u64,
        name: SplitKey<'k>,
        now: Timestamp,
    ) -> Cursor<'s, 'k> {
        Cursor {
            shard,
            capacity: &self.capacity,
            hasher: &self.hasher,
            hash,
            name,
            now,
        }
    }
}

impl Store for MemoryStore {
    fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        _deadline: &Deadline,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.apply_into(counts, batch, now);
        future::ready(Ok(()))
    }

    fn state(&self) -> StoreState {
        StoreState {
            is_well: true,
            is_one_step: true,
        }
    }
}

impl MemoryStore {
    /// Passes on how many counters and bytes there are and can be, and what the sketches take and count.
    pub fn samples(&self, list: &mut SampleWriter<'_>) {
        let (max, max_bytes) = (self.capacity.max, self.capacity.max_bytes());
        let (mut sketch_bytes, mut excess) = (0, 0);
        for shard in &*self.shards {
            let sketch = &lock(&shard.0).sketch;
            sketch_bytes += sketch.bytes();
            excess = sketch.excess().max(excess);
        }
        for (name, value) in [
            ("counters", self.live_counters() as u64),
            ("counters_max", max as u64),
            ("counters_bytes", self.capacity.bytes() as u64),
            ("counters_bytes_max", max_bytes as u64),
            ("sketch_bytes", sketch_bytes as u64),
            ("sketch_excess_hits", excess),
        ] {
            list.gauge(format!("tollgate.memory_{name}"), value);
        }
        let hits = self.capacity.sketched_hits();
        list.counter("tollgate.memory_sketched_hits_total", hits);
    }
}
