//! Counters in this process: a map in shards, each behind its own lock.

use self::slot::{CounterSlot, KeyRest, OWN_BYTES, StateSlot};

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future,
    hash::BuildHasher as _,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use super::contract::{AddAtOnce, Deadline, Store, StoreError};
use crate::core::{
    algorithm::AlgorithmState,
    charging::Charging,
    counter::{Batch, Charge, CounterKind, CounterState, CounterStates, Increment, IncrementSpec},
    request::Hits,
    window::Timestamp,
};
use crate::foundation::sample::SampleWriter;

pub mod slot;
mod table;

use table::{DescriptorCounters, Table};

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
    live: AtomicUsize,
    max_counters: usize,
}

/// A shard that shares no cache line with its neighbours; processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedShard(pub(super) Mutex<Shard>);

#[derive(Debug)]
struct Shard {
    /// Counters that are plain numbers, by descriptor.
    families: Table,
    /// Further counters of descriptors that have [`MAX_INLINE`] already, by key: each hit searches a
    /// descriptor's list, and a client that sends its own periods could make that as long as it likes.
    more: HashMap<Box<[u8]>, CounterSlot, RandomState>,
    /// The number of counters in both.
    numbers: usize,
    /// Algorithm states, apart from the plain numbers so that those stay small.
    states: HashMap<Box<[u8]>, StateSlot, RandomState>,
    /// No counter of this shard expires before this time.
    earliest_expiry: Timestamp,
}

/// A key in two parts. The split depends on the key alone, so equal keys have equal parts and different
/// keys do not.
#[derive(Clone, Copy, Debug)]
struct SplitKey<'a> {
    key: &'a [u8],
    /// The part that all counters of one descriptor share.
    family: &'a [u8],
    own: KeyRest,
}

impl<'a> SplitKey<'a> {
    /// Whether both belong to one descriptor.
    fn is_sibling(self, other: Self) -> bool {
        // The first comparison is that of a name with itself.
        std::ptr::eq(self.family, other.family) || self.family == other.family
    }

    fn of(key: &'a [u8]) -> Self {
        let last = key.last_chunk().copied().unwrap_or_else(|| {
            let mut last = KeyRest::default();
            last[OWN_BYTES - key.len()..].copy_from_slice(key);
            last
        });
        // As one number, whose lowest byte is the last one.
        let last = u128::from_be_bytes(last);
        // Without a short part behind a brace the whole key is a family of one.
        let length = bytes_behind(b'}', last).unwrap_or(0);
        let rest = last & !(u128::MAX << (8 * length));
        let (family, _) = key.split_at(key.len() - length as usize);
        Self {
            key,
            family,
            own: (rest | u128::from(length) << 120).to_be_bytes(),
        }
    }
}

/// How many bytes of `bytes` are lower than the lowest that equals `wanted`. It has no loop, because
/// every decision calls it. Taking 1 from a byte that is 0 borrows from the byte above, so only the
/// lowest match is certain.
fn bytes_behind(wanted: u8, bytes: u128) -> Option<u32> {
    const ONES: u128 = u128::MAX / 0xff;
    let apart = bytes ^ (ONES * u128::from(wanted));
    let zeros = apart.wrapping_sub(ONES) & !apart & (ONES << 7);
    (zeros > 0).then(|| zeros.trailing_zeros() / 8)
}

/// Up to this many counters of one descriptor are stored with it: enough for the limits of any rule
/// written by hand, in the windows of now and of a second ago.
const MAX_INLINE: usize = 16;

/// Many more than there are cores, so that two of them rarely need the same shard.
const SHARDS: usize = 256;

/// Locked shards, by index.
type Locked<'a> = BTreeMap<usize, MutexGuard<'a, Shard>>;

/// How a batch gets room for new counters.
#[derive(Clone, Copy, Debug)]
enum Room {
    /// It asks for room: no earlier charge of the batch is lost if there is none.
    Asked,
    /// It is sure to have room, of which `reserved` is already counted as taken.
    Sure { reserved: usize },
}

/// With room for this many more counters a batch does not reserve any: the requests that are under way
/// at a time need less.
const PLENTY: usize = 4096;

/// In a small store room for one counter in this many is plenty.
const PLENTY_SHARE: usize = 16;

const NEVER: Timestamp = Timestamp::from_millis(u64::MAX);

impl MemoryStore {
    pub fn new(max_counters: usize) -> Self {
        Self {
            shards: Box::new(std::array::from_fn(|_| PaddedShard::default())),
            hasher: RandomState::default(),
            live: AtomicUsize::new(0),
            max_counters,
        }
    }

    /// How many counters are held, including those that expired since the last sweep.
    pub fn live_counters(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    pub fn max_counters(&self) -> usize {
        self.max_counters
    }

    /// Drops expired counters. It locks one shard at a time, and searches only those that may have some.
    pub fn sweep(&self, now: Timestamp) {
        for shard in &*self.shards {
            self.sweep_shard(&mut lock(shard), now);
        }
    }

    fn sweep_shard(&self, shard: &mut Shard, now: Timestamp) {
        if shard.earliest_expiry > now {
            return;
        }
        let before = shard.len();
        let mut earliest = NEVER;
        let mut is_live = |expires_at: Timestamp| {
            let is_live = expires_at > now;
            if is_live {
                earliest = earliest.min(expires_at);
            }
            is_live
        };
        let mut numbers = 0;
        let is_kept = |family: &mut DescriptorCounters| {
            family.slots.retain(|slot| is_live(slot.expires_at));
            numbers += family.slots.len();
            !family.slots.is_empty()
        };
        shard.families.retain(is_kept, |name| self.hash(name));
        shard.more.retain(|_, slot| is_live(slot.expires_at));
        shard.numbers = numbers + shard.more.len();
        shard.states.retain(|_, slot| is_live(slot.expires_at));
        shard.earliest_expiry = earliest;
        if shard.states.capacity() > 4 * shard.states.len() {
            shard.states.shrink_to_fit();
        }
        if shard.more.capacity() > 4 * shard.more.len() {
            shard.more.shrink_to_fit();
        }
        self.live.fetch_sub(before - shard.len(), Ordering::Relaxed);
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

    fn shard_of(&self, key: &[u8]) -> usize {
        self.shard(self.hash(SplitKey::of(key).family))
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
        let left = self.max_counters.saturating_sub(self.live_counters());
        let plenty = PLENTY.min(self.max_counters / PLENTY_SHARE);
        let room = match batch.len() {
            0 | 1 => Room::Asked,
            len if left < len + plenty => {
                *counts = self.add_in_order(batch, now)?;
                return Ok(());
            }
            _ => Room::Sure { reserved: 0 },
        };
        self.add_alone(counts, batch, room, now)
    }

    /// Applies each increment by itself. Increments of one family in a row find and lock it once.
    fn add_alone(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        mut room: Room,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut names = (0..batch.len()).map(|index| (index, SplitKey::of(batch.key(index))));
        let mut next = names.next();
        while let Some((_, first)) = next {
            let hash = self.hash(first.family);
            let shard = &mut lock(&self.shards[self.shard(hash)]);
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
                let increment = batch.increment(index);
                counts.push(self.add_one(shard, hash, name, &increment, &mut room, now)?);
                next = names.next();
            }
        }
        Ok(())
    }

    fn add_one(
        &self,
        shard: &mut Shard,
        hash: u64,
        name: SplitKey<'_>,
        increment: &Increment<'_>,
        room: &mut Room,
        now: Timestamp,
    ) -> Result<CounterState, StoreError> {
        let is_charged = charges_alone(increment, || shard.held(hash, name, increment, now));
        self.apply(shard, hash, name, increment, is_charged, room, now)
    }

    /// Applies each increment by itself, but none if there is no room for all.
    fn add_in_order(&self, batch: &Batch, now: Timestamp) -> Result<CounterStates, StoreError> {
        let mut shards = self.lock_all(batch);
        let is_charged = |_, spec: &IncrementSpec| charges_alone(spec, || 0);
        let mut room = self.reserve(&mut shards, batch, is_charged, now)?;
        let add = |increment: Increment<'_>| {
            let name = SplitKey::of(increment.key);
            let hash = self.hash(name.family);
            let shard = locked(&mut shards, self.shard(hash));
            self.add_one(shard, hash, name, &increment, &mut room, now)
        };
        let counts = batch.iter().map(add).collect();
        self.give_up(room);
        counts
    }

    /// Locks the shards of all counters of `batch` in ascending order, so that two requests cannot wait
    /// for each other.
    fn lock_all(&self, batch: &Batch) -> Locked<'_> {
        let wanted = batch.iter().map(|increment| self.shard_of(increment.key));
        let wanted: BTreeSet<usize> = wanted.collect();
        wanted
            .into_iter()
            .map(|index| (index, lock(&self.shards[index])))
            .collect()
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
    ) -> Result<Room, StoreError> {
        let missing = |shards: &mut Locked<'_>| {
            let mut keys = BTreeSet::new();
            for (index, increment) in batch.iter().enumerate() {
                let name = SplitKey::of(increment.key);
                let hash = self.hash(name.family);
                let shard = locked(shards, self.shard(hash));
                if increment.hits.added() > 0
                    && is_charged(index, &increment.spec)
                    && !shard.knows(hash, name, &increment)
                {
                    keys.insert(increment.key);
                }
            }
            keys.len()
        };
        let mut reserved = missing(shards);
        if !self.take(reserved) {
            for shard in shards.values_mut() {
                self.sweep_shard(shard, now);
            }
            // Expired counters are missing now.
            reserved = missing(shards);
            if !self.take(reserved) {
                return Err(StoreError::Full);
            }
        }
        Ok(Room::Sure { reserved })
    }

    /// Takes room for `counters` more counters; returns whether there was enough.
    fn take(&self, counters: usize) -> bool {
        if counters == 0 {
            return true;
        }
        let before = self.live.fetch_add(counters, Ordering::Relaxed);
        let has_room = before + counters <= self.max_counters;
        if !has_room {
            self.live.fetch_sub(counters, Ordering::Relaxed);
        }
        has_room
    }

    /// Gives back reserved room that was not needed.
    fn give_up(&self, room: Room) {
        if let Room::Sure { reserved } = room {
            self.live.fetch_sub(reserved, Ordering::Relaxed);
        }
    }

    /// Applies all increments as one step: whether one is charged depends on all counters. If there is
    /// no room for all that are charged, none is.
    fn add_together(&self, batch: &Batch, now: Timestamp) -> Result<CounterStates, StoreError> {
        let mut shards = self.lock_all(batch);
        // A descriptor may occur twice; the earlier hits of the request then count as well.
        let mut ahead: HashMap<&[u8], u64> = HashMap::new();
        let mut judged = Vec::with_capacity(batch.len());
        for increment in batch.iter() {
            let name = SplitKey::of(increment.key);
            let hash = self.hash(name.family);
            let shard = locked(&mut shards, self.shard(hash));
            let ahead = ahead.entry(increment.key).or_default();
            let before = shard
                .held(hash, name, &increment, now)
                .saturating_add(*ahead);
            let is_over = if increment.hits.given_back() > 0 {
                let after = shard.held_after(hash, name, &increment, *ahead, now);
                after > u64::from(increment.limit)
            } else {
                increment.refuses(before)
            };
            *ahead = ahead.saturating_add(match increment.charge {
                Charge::Always => increment.hits.added(),
                Charge::Within | Charge::Admitted | Charge::Never if !is_over => {
                    increment.hits.added()
                }
                // The reference looks at all counters before it adds to any.
                Charge::Within | Charge::Admitted | Charge::Never | Charge::Stopping => 0,
            });
            judged.push((is_over, before));
        }
        let charging = {
            let increments: Vec<_> = batch.iter().collect();
            let spec = increments.iter().map(|increment| &increment.spec);
            Charging::new(spec.zip(judged.iter().map(|(is_over, _)| *is_over)))
        };
        let is_charged =
            |index: usize, spec: &IncrementSpec| charging.charges(spec, judged[index].0);
        let mut room = self.reserve(&mut shards, batch, is_charged, now)?;
        let apply = |(increment, &(is_over, before)): (Increment<'_>, &(bool, u64))| {
            let is_charged = charging.charges(&increment.spec, is_over);
            let name = SplitKey::of(increment.key);
            let hash = self.hash(name.family);
            let shard = locked(&mut shards, self.shard(hash));
            if !is_over || is_charged {
                return self.apply(shard, hash, name, &increment, is_charged, &mut room, now);
            }
            // Earlier uncharged hits on the same counter count together with these.
            let waiting = before.saturating_sub(shard.held(hash, name, &increment, now));
            let mut spec = increment.spec;
            spec.hits = Hits::add(spec.hits.added().saturating_add(waiting));
            let together = Increment { spec, ..increment };
            let count = self.apply(shard, hash, name, &together, false, &mut room, now)?;
            Ok(CounterState {
                after: count.after.saturating_add(waiting),
                ..count
            })
        };
        let counts = batch.iter().zip(&judged).map(apply).collect();
        self.give_up(room);
        counts
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the counter's location, the increment and its outcome"
    )]
    fn apply(
        &self,
        shard: &mut Shard,
        hash: u64,
        name: SplitKey<'_>,
        increment: &Increment<'_>,
        is_charged: bool,
        room: &mut Room,
        now: Timestamp,
    ) -> Result<CounterState, StoreError> {
        match AlgorithmState::new(increment.method) {
            None => self.apply_number(shard, hash, name, increment, is_charged, room, now),
            Some(empty) => self.apply_state(shard, increment, empty, is_charged, room, now),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "as those of `apply`")]
    fn apply_number(
        &self,
        shard: &mut Shard,
        hash: u64,
        name: SplitKey<'_>,
        increment: &Increment<'_>,
        is_charged: bool,
        room: &mut Room,
        now: Timestamp,
    ) -> Result<CounterState, StoreError> {
        let hits = increment.hits;
        if let Some(slot) = shard.slot(hash, name) {
            return Ok(slot.add(hits, is_charged));
        }
        let mut slot = CounterSlot {
            own: name.own,
            count: 0,
            expires_at: increment.expires_at,
        };
        let count = slot.add(hits, is_charged);
        if slot.count > 0 {
            self.make_room(shard, room, now)?;
            self.push(shard, hash, name, slot);
            shard.earliest_expiry = shard.earliest_expiry.min(slot.expires_at);
        }
        Ok(count)
    }

    fn push(&self, shard: &mut Shard, hash: u64, name: SplitKey<'_>, slot: CounterSlot) {
        shard.numbers += 1;
        match shard.family(hash, name.family) {
            Some(family) if family.slots.len() < MAX_INLINE => family.slots.push(slot),
            Some(_) => {
                shard.more.insert(name.key.into(), slot);
            }
            None => {
                let family = DescriptorCounters {
                    name: name.family.into(),
                    slots: SmallVec::from_iter([slot]),
                };
                shard.families.insert(family, |name| self.hash(name));
            }
        }
    }

    fn apply_state(
        &self,
        shard: &mut Shard,
        increment: &Increment<'_>,
        empty: AlgorithmState,
        is_charged: bool,
        room: &mut Room,
        now: Timestamp,
    ) -> Result<CounterState, StoreError> {
        let spec = &increment.spec;
        if !shard.states.contains_key(increment.key) {
            if spec.hits.added() == 0 || !is_charged {
                return Ok(count_of_state(&mut empty.clone(), spec, is_charged, now));
            }
            self.make_room(shard, room, now)?;
            let slot = StateSlot {
                state: empty,
                expires_at: now,
            };
            shard.states.insert(increment.key.into(), slot);
        }
        let slot = shard.states.get_mut(increment.key);
        let slot = slot.expect("it was there or has just been put there");
        let now = Timestamp::from_millis(slot.state.present(spec, now.millis()));
        if is_charged && !spec.hits.is_peek() {
            slot.state.charge(spec, now.millis());
        }
        let count = count_of_state(&mut slot.state, spec, is_charged, now);
        slot.expires_at = Timestamp::from_millis(slot.state.expires_at(spec, now.millis()));
        shard.earliest_expiry = shard.earliest_expiry.min(slot.expires_at);
        Ok(count)
    }

    /// Takes room for one more counter from that of the batch.
    fn make_room(
        &self,
        shard: &mut Shard,
        room: &mut Room,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        match room {
            Room::Sure { reserved: 0 } => {
                self.live.fetch_add(1, Ordering::Relaxed);
            }
            Room::Sure { reserved } => *reserved -= 1,
            Room::Asked => {
                if !self.take(1) {
                    self.sweep_shard(shard, now);
                    if !self.take(1) {
                        return Err(StoreError::Full);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            families: Table::default(),
            more: HashMap::default(),
            numbers: 0,
            states: HashMap::default(),
            earliest_expiry: NEVER,
        }
    }
}

impl Shard {
    fn len(&self) -> usize {
        self.numbers + self.states.len()
    }

    fn family(&mut self, hash: u64, name: &[u8]) -> Option<&mut DescriptorCounters> {
        self.families.get_mut(hash, name)
    }

    fn slot(&mut self, hash: u64, name: SplitKey<'_>) -> Option<&mut CounterSlot> {
        let family = self.families.get_mut(hash, name.family);
        match family.and_then(|family| family.slot(name.own)) {
            // A sweep may have made room in the family since the counter was put into `more`.
            None => self.more.get_mut(name.key),
            slot => slot,
        }
    }

    /// How many hits the counter of `increment`, whose name is `name`, holds.
    fn held(
        &mut self,
        hash: u64,
        name: SplitKey<'_>,
        increment: &Increment<'_>,
        now: Timestamp,
    ) -> u64 {
        if increment.method == CounterKind::Window {
            let slot = self.slot(hash, name);
            return slot.map_or(0, |slot| slot.count);
        }
        let slot = self.states.get_mut(increment.key);
        slot.map_or(0, |slot| slot.state.held(&increment.spec, now.millis()))
    }

    /// How many hits the counter would hold after `ahead` more hits, and once the hits of `increment`
    /// are given back.
    fn held_after(
        &mut self,
        hash: u64,
        name: SplitKey<'_>,
        increment: &Increment<'_>,
        ahead: u64,
        now: Timestamp,
    ) -> u64 {
        if let Some(mut empty) = AlgorithmState::new(increment.method) {
            let slot = self.states.get_mut(increment.key);
            let state = slot.map_or(&mut empty, |slot| &mut slot.state);
            return state.held_after(&increment.spec, ahead, now.millis());
        }
        let held = self.held(hash, name, increment, now).saturating_add(ahead);
        held.saturating_sub(increment.hits.given_back())
    }

    /// Whether the counter of `increment`, whose name is `name`, exists.
    fn knows(&mut self, hash: u64, name: SplitKey<'_>, increment: &Increment<'_>) -> bool {
        match increment.method {
            CounterKind::Window => self.slot(hash, name).is_some(),
            _ => self.states.contains_key(increment.key),
        }
    }
}

impl DescriptorCounters {
    fn slot(&mut self, own: KeyRest) -> Option<&mut CounterSlot> {
        self.slots.iter_mut().find(|slot| slot.own == own)
    }
}

/// Whether an increment that stands alone is charged to a counter that holds `held`.
fn charges_alone(spec: &IncrementSpec, held: impl FnOnce() -> u64) -> bool {
    spec.charge == Charge::Always || !spec.refuses(held())
}

fn count_of_state(
    state: &mut AlgorithmState,
    spec: &IncrementSpec,
    is_charged: bool,
    now: Timestamp,
) -> CounterState {
    let now = now.millis();
    let held = state.held(spec, now);
    CounterState {
        is_charged,
        ends: Some(state.ends(spec, held, now)),
        ..CounterState::from(held)
    }
}

impl AddAtOnce for MemoryStore {
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

    fn at_once(&self) -> Option<&dyn AddAtOnce> {
        Some(self)
    }
}

/// One of the shards that are locked for a batch.
fn locked<'a>(shards: &'a mut Locked<'_>, index: usize) -> &'a mut Shard {
    let shard = shards.get_mut(&index);
    shard.expect("every shard of the batch is locked")
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::core::{
        counter::DescriptorHits,
        limit::{Algorithm, Limit},
        window::{Period, Unit},
    };

    const MINUTE: u64 = 60;

    fn batch(values: &[&str], hits: Hits, now: Timestamp) -> Batch {
        let limit = Limit::fixed(1, Unit::Minute);
        let mut batch = Batch::default();
        for value in values {
            batch.push_value(value.as_bytes(), &limit, now, hits);
        }
        batch
    }

    #[track_caller]
    fn check(
        store: &MemoryStore,
        values: &[&str],
        secs: u64,
        expected: Result<Vec<u64>, StoreError>,
    ) {
        let now = Timestamp::from_secs(secs);
        let batch = batch(values, Hits::ONE, now);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let counts = runtime.block_on(store.add(&batch, now));
        let after = |counts: CounterStates| counts.iter().map(|count| count.after).collect();
        assert_eq!(counts.map(after), expected);
    }

    #[test]
    fn expired_windows_are_dropped() {
        let store = MemoryStore::new(10);
        check(&store, &["a", "b"], 0, Ok(vec![1, 1]));
        check(&store, &["c"], MINUTE, Ok(vec![1]));
        assert_eq!(store.live_counters(), 3);
        store.sweep(Timestamp::from_secs(MINUTE));
        assert_eq!(store.live_counters(), 1);
        check(&store, &["c"], MINUTE, Ok(vec![2]));
        store.sweep(Timestamp::from_secs(2 * MINUTE));
        assert_eq!(store.live_counters(), 0);
    }

    #[test]
    fn a_full_store_counts_what_it_knows_and_refuses_the_rest() {
        let store = MemoryStore::new(2);
        check(&store, &["a", "b"], 0, Ok(vec![1, 1]));
        check(&store, &["c"], 0, Err(StoreError::Full));
        check(&store, &["a"], 0, Ok(vec![2]));
        assert_eq!(store.live_counters(), 2);
        store.sweep(Timestamp::from_secs(MINUTE));
        check(&store, &["c"], MINUTE, Ok(vec![1]));
    }

    proptest! {
        /// Keys of few letters, so that braces occur everywhere.
        #[test]
        fn names_differ_where_keys_do(
            keys in [(); 2].map(|()| prop::collection::vec(
                prop::sample::select(b"{}1@\0\x01".to_vec()), 0..20)),
        ) {
            let [one, other] = &keys;
            let parts = |key| (SplitKey::of(key).family, SplitKey::of(key).own);
            prop_assert_eq!(one == other, parts(one) == parts(other));
        }
    }

    #[test]
    fn a_look_takes_no_room() {
        let store = MemoryStore::new(1);
        let now = Timestamp::from_secs(0);
        let look = batch(&["a", "b", "c"], Hits::add(0), now);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let counts = runtime.block_on(store.add(&look, now));
        assert_eq!(
            counts,
            Ok(CounterStates::from_elem(CounterState::from(0), 3))
        );
        assert_eq!(store.live_counters(), 0);
    }

    /// Increments of a minute's and an hour's limit for each of `values`.
    fn two_limits(values: &[&str], charge: Charge, now: Timestamp) -> Batch {
        let mut batch = Batch::default();
        for value in values {
            for unit in [Unit::Minute, Unit::Hour] {
                let counting = DescriptorHits {
                    charge,
                    ..Hits::ONE.into()
                };
                batch.push_value(value.as_bytes(), &Limit::fixed(9, unit), now, counting);
            }
        }
        batch
    }

    /// One request that hits each of these periods of one descriptor.
    fn periods(seconds: impl Iterator<Item = u32>, now: Timestamp) -> Batch {
        let mut batch = Batch::default();
        for seconds in seconds {
            let limit = Limit {
                period: Period::new(Unit::Second, NonZeroU32::new(seconds).unwrap()).unwrap(),
                ..Limit::fixed(9, Unit::Second)
            };
            batch.push_value(b"v", &limit, now, Hits::ONE);
        }
        batch
    }

    /// The longest list that is searched from end to end while a shard is locked.
    fn longest_list(store: &MemoryStore) -> usize {
        let mut longest = 0;
        for shard in &*store.shards {
            let shard = &mut lock(shard);
            let look = |family: &mut DescriptorCounters| {
                longest = longest.max(family.slots.len());
                true
            };
            shard.families.retain(look, |name| store.hash(name));
        }
        longest
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Clients may send limits of their own, with any period.
        #[test]
        fn a_count_costs_the_same_however_many_periods_its_descriptor_has(
            count in prop_oneof![1_u32..40, 1_000_u32..100_000],
            kept in 1_u32..50,
        ) {
            let store = MemoryStore::new(1_000_000);
            let now = Timestamp::from_secs(0);
            for expected in 1..=2 {
                let batch = periods(1..=count, now);
                let counts = store.apply_all(&batch, now).unwrap();
                prop_assert!(counts.iter().all(|count| count.after == expected));
            }
            prop_assert!(longest_list(&store) <= MAX_INLINE);
            prop_assert_eq!(store.live_counters(), count as usize);
            // Counters that are left after a sweep are found, wherever they are stored.
            store.sweep(Timestamp::from_secs(u64::from(count.saturating_sub(kept))));
            let left = count - count.saturating_sub(kept);
            prop_assert_eq!(store.live_counters(), left as usize);
            let batch = periods(count - left + 1..=count, now);
            let counts = store.apply_all(&batch, now).unwrap();
            prop_assert!(counts.iter().all(|count| count.after == 3));
            prop_assert_eq!(store.live_counters(), left as usize);
            store.sweep(Timestamp::from_secs(u64::from(count)));
            prop_assert_eq!(store.live_counters(), 0);
        }
    }

    #[test]
    fn without_room_for_all_that_a_request_counts_nothing_is_counted() {
        let now = Timestamp::from_secs(0);
        for charge in [
            Charge::Always,
            Charge::Within,
            Charge::Admitted,
            Charge::Stopping,
        ] {
            let store = MemoryStore::new(5);
            let add = |values: &[&str]| store.apply_all(&two_limits(values, charge, now), now);
            let after = |values: &[&str]| {
                let counts = add(values).unwrap();
                counts.iter().map(|count| count.after).collect::<Vec<_>>()
            };
            assert_eq!(after(&["a", "b"]), [1, 1, 1, 1]);
            for _ in 0..3 {
                assert_eq!(add(&["a", "c"]), Err(StoreError::Full), "{charge:?}");
                assert_eq!(store.live_counters(), 4);
            }
            assert_eq!(after(&["a", "b"]), [2, 2, 2, 2], "{charge:?}");
        }
    }

    #[test]
    fn a_request_takes_the_last_room_and_that_of_what_has_expired() {
        for charge in [Charge::Always, Charge::Admitted] {
            let store = MemoryStore::new(4);
            let add = |values: &[&str], secs| {
                let now = Timestamp::from_secs(secs);
                store.apply_all(&two_limits(values, charge, now), now)
            };
            assert!(add(&["a", "a", "b"], 0).is_ok());
            assert_eq!(store.live_counters(), 4);
            assert_eq!(add(&["c"], 0), Err(StoreError::Full));
            assert!(add(&["a"], 3600).is_ok());
        }
    }

    #[test]
    fn what_a_give_back_leaves_over_its_limit_spares_the_others() {
        for algorithm in [
            Algorithm::FixedWindow,
            Algorithm::FirstHit,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket { burst: 10 },
        ] {
            let store = MemoryStore::new(10);
            let now = Timestamp::from_secs(0);
            let send = |steps: &[(&str, Hits, Charge)]| {
                let mut batch = Batch::default();
                for (index, (value, hits, charge)) in (0..).zip(steps) {
                    let limit = Limit {
                        algorithm: algorithm.clone(),
                        ..Limit::fixed(10, Unit::Minute)
                    };
                    let counting = DescriptorHits {
                        charge: *charge,
                        descriptor: index,
                        ..(*hits).into()
                    };
                    batch.push_value(value.as_bytes(), &limit, now, counting);
                }
                let counts = store.apply_all(&batch, now).unwrap();
                counts.iter().map(|count| count.after).collect::<Vec<_>>()
            };
            let refund = [
                ("a", Hits::give_back(1), Charge::Admitted),
                ("b", Hits::ONE, Charge::Admitted),
            ];
            let above = [("a", Hits::add(12), Charge::Always)];
            send(&above);
            let reported = send(&refund);
            // A bucket cannot lack more tokens than it holds.
            let (first, second) = match algorithm {
                Algorithm::TokenBucket { .. } => (9, 8),
                _ => (11, 10),
            };
            assert_eq!(reported[0], first, "{algorithm:?}");
            let is_over = first > 10;
            assert_eq!(reported[1], u64::from(!is_over), "{algorithm:?}");
            assert_eq!(send(&refund)[0], second, "{algorithm:?}");
        }
    }
}
