//! Counters in this process: a map in shards, each behind its own lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    future,
    hash::BuildHasher as _,
    sync::{Mutex, MutexGuard, PoisonError},
};

use foldhash::quality::RandomState;

use super::contract::{Deadline, ImmediateStore, Store, StoreError};
use crate::core::{
    charging::{BatchCharging, JudgedIncrement, charges_alone},
    counter::{Batch, CounterKind, CounterState, CounterStates, Increment, IncrementSpec},
    request::Hits,
    window::Timestamp,
};
use crate::foundation::sample::SampleWriter;

mod capacity;
mod cursor;
mod key;
mod shard;
mod slot;
mod table;
#[cfg(test)]
mod tests;

use capacity::{BatchRoom, Capacity, Claim};
use cursor::Cursor;
use key::SplitKey;
use shard::Shard;

/// Counts in memory, up to a bound on live counters.
///
/// A full store still counts on the counters that it has and refuses new ones: dropping a live counter
/// to make room would give its client a fresh limit, and a flood of invented values could do that to all
/// clients.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[PaddedShard; SHARDS]>,
    /// Random for each process: values come from outside, and must not be able to pick a shard or to
    /// collide. Its hashes never leave the process, so they need not be cryptographic.
    hasher: RandomState,
    capacity: Capacity,
}

/// A shard that shares no cache line with its neighbours; processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedShard(Mutex<Shard>);

/// Many more than there are cores, so that two of them rarely need the same shard.
const SHARDS: usize = 256;

/// Locked shards, by index.
type Locked<'a> = BTreeMap<usize, MutexGuard<'a, Shard>>;

impl MemoryStore {
    pub fn new(max_counters: usize) -> Self {
        Self {
            shards: Box::new(std::array::from_fn(|_| PaddedShard::default())),
            hasher: RandomState::default(),
            capacity: Capacity::new(max_counters),
        }
    }

    /// How many counters are held, including those that expired since the last sweep.
    pub fn live_counters(&self) -> usize {
        self.capacity.live()
    }

    pub fn max_counters(&self) -> usize {
        self.capacity.max()
    }

    /// Drops expired counters. It locks one shard at a time, and searches only those that may have some.
    pub fn sweep(&self, now: Timestamp) {
        for shard in &*self.shards {
            self.sweep_shard(&mut lock(shard), now);
        }
    }

    fn sweep_shard(&self, shard: &mut Shard, now: Timestamp) {
        self.capacity.give_back(shard.sweep(&self.hasher, now));
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

    fn room(&self, claim: Claim) -> BatchRoom<'_> {
        BatchRoom::new(&self.capacity, &self.hasher, claim)
    }

    /// [`Store::add`] without a future, because nothing here waits.
    ///
    /// # Errors
    ///
    /// If there is no room for another counter.
    pub fn apply_all(&self, batch: &Batch, now: Timestamp) -> Result<CounterStates, StoreError> {
        let mut counts = CounterStates::new();
        self.apply_into(&mut counts, batch, now)?;
        Ok(counts)
    }

    /// Like [`Self::apply_all`], but writes into `counts`, which must be empty.
    ///
    /// # Errors
    ///
    /// As [`Self::apply_all`].
    pub fn apply_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if !batch.all_specs().all(IncrementSpec::stands_alone) {
            *counts = self.add_together(batch, now)?;
            return Ok(());
        }
        let claim = match batch.len() {
            0 | 1 => Claim::Asked,
            len if !self.capacity.has_plenty(len) => {
                *counts = self.add_in_order(batch, now)?;
                return Ok(());
            }
            _ => Claim::Sure { reserved: 0 },
        };
        self.add_alone(counts, batch, claim, now)
    }

    /// Applies each increment by itself. Increments of one family in a row find and lock it once.
    fn add_alone(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        claim: Claim,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut room = self.room(claim);
        let name = |index| SplitKey::new(batch.key(index), batch.spec(index).descriptor_bytes);
        let mut names = (0..batch.len()).map(|index| (index, name(index)));
        let mut next = names.next();
        while let Some((_, first)) = next {
            let hash = self.hash(first.family);
            let shard = &mut *lock(&self.shards[self.shard(hash)]);
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
                counts.push(slot.add(spec.hits, is_charged));
                next = names.next();
            }
            while let Some((index, name)) = next
                && name.is_sibling(first)
            {
                let mut cursor = Cursor {
                    shard: &mut *shard,
                    hash,
                    name,
                    now,
                };
                counts.push(cursor.add(&batch.increment(index), &mut room)?);
                next = names.next();
            }
        }
        Ok(())
    }

    /// Applies each increment by itself, but none if there is no room for all.
    fn add_in_order(&self, batch: &Batch, now: Timestamp) -> Result<CounterStates, StoreError> {
        let mut shards = self.lock_all(batch);
        let is_charged = |_, spec: &IncrementSpec| charges_alone(spec, || 0);
        let mut room = self.reserve(&mut shards, batch, is_charged, now)?;
        let add = |increment: Increment<'_>| {
            let mut cursor = self.cursor(&mut shards, &increment, now);
            cursor.add(&increment, &mut room)
        };
        batch.iter().map(add).collect()
    }

    /// Applies all increments as one step: whether one is charged depends on all counters. If there is
    /// no room for all that are charged, none is.
    fn add_together(&self, batch: &Batch, now: Timestamp) -> Result<CounterStates, StoreError> {
        let mut shards = self.lock_all(batch);
        let charging = BatchCharging::new(batch, |increment, ahead| {
            self.cursor(&mut shards, increment, now)
                .look(increment, ahead)
        });
        let is_charged = |index: usize, spec: &IncrementSpec| charging.charges(index, spec);
        let mut room = self.reserve(&mut shards, batch, is_charged, now)?;
        let apply = |(index, increment): (usize, Increment<'_>)| {
            let JudgedIncrement { is_over, before } = charging.judged[index];
            let is_charged = charging.charges(index, &increment);
            let mut cursor = self.cursor(&mut shards, &increment, now);
            if !is_over || is_charged {
                return cursor.apply(&increment, is_charged, &mut room);
            }
            // Earlier uncharged hits on the same counter count together with these.
            let waiting = before.saturating_sub(cursor.held(&increment));
            let mut spec = increment.spec;
            spec.hits = Hits::add(spec.hits.added().saturating_add(waiting));
            let count = cursor.apply(&Increment { spec, ..increment }, false, &mut room)?;
            Ok(CounterState {
                after: count.after.saturating_add(waiting),
                ..count
            })
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
            .map(|index| (index, lock(&self.shards[index])))
            .collect()
    }

    /// The counter of `increment`, whose shard is locked.
    fn cursor<'s, 'k>(
        &self,
        shards: &'s mut Locked<'_>,
        increment: &Increment<'k>,
        now: Timestamp,
    ) -> Cursor<'s, 'k> {
        let name = SplitKey::of(increment);
        let hash = self.hash(name.family);
        let shard = shards.get_mut(&self.shard(hash));
        Cursor {
            shard: shard.expect("every shard of the batch is locked"),
            hash,
            name,
            now,
        }
    }

    /// Reserves room for all counters that do not exist yet and are to take hits; `is_charged` decides
    /// that by the index of an increment and its parameters.
    ///
    /// # Errors
    ///
    /// If there is not enough room for all of them.
    fn reserve(
        &self,
        shards: &mut Locked<'_>,
        batch: &Batch,
        is_charged: impl Fn(usize, &IncrementSpec) -> bool,
        now: Timestamp,
    ) -> Result<BatchRoom<'_>, StoreError> {
        let missing = |shards: &mut Locked<'_>| {
            let mut keys = BTreeSet::new();
            for (index, increment) in batch.iter().enumerate() {
                if increment.hits.added() > 0
                    && is_charged(index, &increment)
                    && !self.cursor(shards, &increment, now).is_there(&increment)
                {
                    keys.insert(increment.key);
                }
            }
            keys.len()
        };
        let mut reserved = missing(shards);
        if !self.capacity.take(reserved) {
            for shard in shards.values_mut() {
                self.sweep_shard(shard, now);
            }
            // Expired counters are missing now.
            reserved = missing(shards);
            if !self.capacity.take(reserved) {
                return Err(StoreError::Full);
            }
        }
        Ok(self.room(Claim::Sure { reserved }))
    }
}

impl ImmediateStore for MemoryStore {
    fn add_at_once(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.apply_into(counts, batch, now)
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
        future::ready(self.apply_into(counts, batch, now))
    }

    fn is_well(&self) -> bool {
        true
    }

    fn is_one_step(&self) -> bool {
        true
    }
}

/// A panic elsewhere cannot leave a shard half changed: every change is one assignment.
fn lock(shard: &PaddedShard) -> MutexGuard<'_, Shard> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryStore {
    /// Passes on how many counters there are, and how many there may be.
    pub fn samples(&self, list: &mut SampleWriter<'_>) {
        list.gauge("tollgate.memory_counters", self.live_counters() as u64);
        list.gauge("tollgate.memory_counters_max", self.max_counters() as u64);
    }
}
