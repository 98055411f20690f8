//! Counters in this process: maps in shards, each behind its own lock.
//!
//! A full store drops no counter that has an effect: its client would get a fresh limit, and a flood of invented values
//! could do that to all clients. The values of a rule that have no counter then share one *common counter* for each
//! limit and window. It holds at least the hits that each of them had without a counter of its own, so none passes more
//! often than its limit allows, and all together pass no more often either. A counter that finds room again begins as
//! a copy of it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    future,
    hash::BuildHasher as _,
    mem,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use foldhash::quality::RandomState;

use super::contract::{Deadline, Store, StoreError, StoreState};
use crate::core::{
    charging::{BatchCharging, charges_alone},
    counter::{
        Batch, CounterKind, CounterState, CounterStates, Increment, IncrementSpec, Operation,
        Reservation,
    },
    request::Hits,
    window::Timestamp,
};
use crate::foundation::{lock::lock, log_throttle::LogThrottle, sample::SampleWriter};

mod capacity;
mod shard;
#[cfg(test)]
mod tests;

use capacity::Capacity;
pub(crate) use capacity::CounterBounds;
use shard::{CounterValue, Shard};

/// Counts in memory, up to bounds on counters and bytes.
#[derive(Debug)]
pub struct MemoryStore {
    /// [`SHARDS`], and the one of common counters.
    shards: Box<[Mutex<Shard>]>,
    /// Random for each process: values come from outside, and must not be able to pick a shard or to
    /// collide. Its hashes never leave the process, so they need not be cryptographic.
    hasher: RandomState,
    capacity: Arc<Capacity>,
    /// Hits that were counted in common counters, since the start.
    overflow_hits: AtomicU64,
}

/// Many more than there are cores, so that two of them rarely need the same shard.
const SHARDS: usize = 256;

/// The index of the shard of common counters. It is the last one that a request locks.
const COMMON: usize = SHARDS;

/// The first byte of the keys of common counters. Those of others begin with a brace or a domain.
const COMMON_MARK: u8 = 0;

/// Bounds on the number and bytes of common counters, beside all others.
const MOST_COMMON: usize = 1_024;
const COMMON_BYTES: usize = 4 << 20;

/// The key of increments that no counter counts: there is no room for one, and they share none.
const NOWHERE: &[u8] = b"";

static NO_ROOM: LogThrottle = LogThrottle::new();

impl MemoryStore {
    /// A store of at most `max_counters` counters, within the default bound on bytes.
    pub fn new(max_counters: usize) -> Self {
        Self::bounded(&CounterBounds {
            counters: max_counters,
            bytes: CounterBounds::DEFAULT_BYTES,
        })
    }

    /// A store within `bounds`.
    pub(crate) fn bounded(bounds: &CounterBounds) -> Self {
        let hasher = RandomState::default();
        let shard = |capacity: &Arc<Capacity>| Mutex::new(Shard::new(hasher, capacity.clone()));
        let of_common = CounterBounds {
            counters: MOST_COMMON,
            bytes: COMMON_BYTES,
        };
        let [capacity, common] = [bounds, &of_common].map(|one| Arc::new(Capacity::new(one)));
        let own = (0..SHARDS).map(|_| shard(&capacity));
        Self {
            shards: own.chain([shard(&common)]).collect(),
            hasher,
            capacity,
            overflow_hits: AtomicU64::new(0),
        }
    }

    /// How many counters are held, including those that expired since the last sweep.
    pub fn live_counters(&self) -> usize {
        self.capacity.live.load(Relaxed)
    }

    /// Drops expired counters. It locks one shard at a time, and searches only those that may have some.
    pub fn sweep(&self, now: Timestamp) {
        for shard in &self.shards {
            lock(shard).sweep(usize::MAX, now);
        }
    }

    /// The hash of a key, and the index of its shard.
    fn place(&self, key: &[u8]) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        // Not the bits that the maps use.
        let [_, _, bits, ..] = hash.to_be_bytes();
        let is_common = key.first() == Some(&COMMON_MARK);
        (hash, if is_common { COMMON } else { bits.into() })
    }

    /// [`Store::add_into`] without a future or an error, because nothing here waits or fails. `counts` must be empty.
    pub fn apply_into(&self, counts: &mut CounterStates, batch: &Batch, now: Timestamp) {
        if batch.all_specs().all(IncrementSpec::stands_alone) {
            let add = |increment| self.add_alone(&increment, now);
            counts.extend(batch.iter().map(add));
        } else {
            *counts = self.add_together(batch, now);
        }
    }

    fn add_alone(&self, increment: &Increment<'_>, now: Timestamp) -> CounterState {
        let (hash, index) = self.place(increment.key);
        let known = lock(&self.shards[index]).apply(hash, increment, now, |value| {
            charges_alone(increment, || value.held(increment, now))
        });
        known.unwrap_or_else(|| {
            let mut batch = Batch::default();
            batch.append_one(*increment);
            self.add_together(&batch, now)[0]
        })
    }

    /// Applies all increments as one step: whether one is charged depends on all counters.
    fn add_together(&self, batch: &Batch, now: Timestamp) -> CounterStates {
        let mut locked = self.lock_all(batch, now);
        let mut counted = Batch::default();
        for increment in batch.iter() {
            let key = &locked.counting_key(&increment);
            counted.append_one(Increment { key, ..increment });
        }
        let charging = BatchCharging::new(&counted, |increment, ahead| {
            locked.read(increment, |value| value.look(increment, ahead, now))
        });
        let apply = |(index, increment): (usize, Increment<'_>)| {
            let judged = charging.judged[index];
            let is_charged = charging.charges(index, &increment);
            if !judged.is_over || is_charged {
                return locked.apply(&increment, is_charged);
            }
            let held = locked.read(&increment, |value| value.held(&increment, now));
            let waiting = judged.waiting(held);
            let mut spec = increment.look();
            spec.hits = spec.hits.saturating_add(waiting).min(Hits::MAX);
            let count = locked.apply(&Increment { spec, ..increment }, false);
            CounterState {
                after: count.after.saturating_add(waiting),
                ..count
            }
        };
        let counts = counted.iter().enumerate().map(apply).collect();
        locked.unlock();
        counts
    }

    /// Locks the shards of all counters of `batch` in ascending order, so that two requests cannot wait for each other.
    /// That of common counters is the last one, if a key has no counter.
    fn lock_all(&self, batch: &Batch, now: Timestamp) -> Locked<'_> {
        let index = |increment: Increment<'_>| self.place(increment.key).1;
        let wanted: BTreeSet<usize> = batch.iter().map(index).collect();
        let shard = |index: usize| (index, lock(&self.shards[index]));
        let mut locked = Locked {
            store: self,
            shards: wanted.into_iter().map(shard).collect(),
            uncharged: BTreeSet::new(),
            lacks_room: false,
            now,
        };
        if batch.iter().any(|increment| !locked.has(increment.key)) {
            let common = || lock(&self.shards[COMMON]);
            locked.shards.entry(COMMON).or_insert_with(common);
        }
        locked
    }
}

/// The shards that a request needs, locked.
struct Locked<'s> {
    store: &'s MemoryStore,
    shards: BTreeMap<usize, MutexGuard<'s, Shard>>,
    /// The keys of counters that the request has made and added no hits to.
    uncharged: BTreeSet<Box<[u8]>>,
    /// Whether there was no room for a counter.
    lacks_room: bool,
    now: Timestamp,
}

impl Locked<'_> {
    /// The key of the counter that counts `increment`. The counter is made if hits are to be added.
    fn counting_key<'k>(&mut self, increment: &Increment<'k>) -> Cow<'k, [u8]> {
        let own = Cow::Borrowed(increment.key);
        let is_add = matches!(increment.operation, Operation::Add(_)) && increment.hits > 0;
        if !is_add || self.keeps(increment.key) {
            return own;
        }
        // Once there was no room, the request takes none: hits on one key belong in one counter.
        if !self.lacks_room && self.makes(increment.key, increment) {
            return own;
        }
        self.lacks_room = true;
        // These are given back, and a common counter takes nothing back.
        let is_leased = increment.takes_slots() || increment.reservation == Reservation::Begins;
        let common = common_key(increment);
        if !is_leased && (self.keeps(&common) || self.makes(&common, increment)) {
            return Cow::Owned(common);
        }
        Cow::Owned(NOWHERE.to_vec())
    }

    /// Makes a counter of `key` for `increment` if there is room, and returns whether there was any.
    fn makes(&mut self, key: &[u8], increment: &Increment<'_>) -> bool {
        let now = self.now;
        if !self.shard(key).1.takes_room(now) {
            return false;
        }
        let value = self.read(increment, |value| value.clone());
        let (hash, shard) = self.shard(key);
        shard.insert(hash, key, value);
        self.uncharged.insert(key.into());
        true
    }

    /// Applies `increment`, which is charged or not.
    fn apply(&mut self, increment: &Increment<'_>, is_charged: bool) -> CounterState {
        let now = self.now;
        let lacks_room = matches!(increment.key.first(), None | Some(&COMMON_MARK));
        if !self.has(increment.key) {
            // Nothing stays of a look, or of hits that are given back.
            return self.read(increment, |value| CounterState {
                is_charged: is_charged && increment.added() == 0,
                lacks_room,
                ..value.apply(&increment.look(), false, now)
            });
        }
        if is_charged && increment.added() > 0 {
            self.uncharged.remove(increment.key);
            if lacks_room {
                let hits = &self.store.overflow_hits;
                hits.fetch_add(increment.added(), Relaxed);
            }
        }
        let (hash, shard) = self.shard(increment.key);
        let count = shard.apply(hash, increment, now, |_| is_charged);
        let count = count.expect("it has a counter");
        CounterState {
            lacks_room,
            ..count
        }
    }

    /// Calls `act` with the value of the counter of `increment`, or with that as which it would begin.
    fn read<R>(
        &mut self,
        increment: &Increment<'_>,
        act: impl FnOnce(&mut CounterValue) -> R,
    ) -> R {
        if increment.key == NOWHERE {
            return act(&mut CounterValue::Number(increment.limit));
        }
        let keys = [increment.key, &common_key(increment)];
        let Some(key) = keys.into_iter().find(|key| self.has(key)) else {
            return act(&mut CounterValue::new(increment.method));
        };
        let (hash, shard) = self.shard(key);
        let read = shard.with(hash, key, |counter, _| act(&mut counter.value));
        read.expect("it has a counter")
    }

    /// Whether `key` has a counter.
    fn has(&mut self, key: &[u8]) -> bool {
        let (hash, index) = self.store.place(key);
        let shard = self.shards.get_mut(&index);
        shard.is_some_and(|shard| shard.with(hash, key, |_, _| ()).is_some())
    }

    /// Whether `key` has a counter. If so, no sweep drops it before an increment is applied.
    fn keeps(&mut self, key: &[u8]) -> bool {
        let (hash, index) = self.store.place(key);
        let shard = self.shards.get_mut(&index);
        shard.is_some_and(|shard| shard.keeps(hash, key))
    }

    /// The hash of `key`, and its shard.
    fn shard(&mut self, key: &[u8]) -> (u64, &mut Shard) {
        let (hash, index) = self.store.place(key);
        let shard = self.shards.get_mut(&index);
        (hash, shard.expect("the shards of all keys are locked"))
    }

    /// Ends the request: drops the counters that it made and added no hits to, and logs if there was no room.
    fn unlock(mut self) {
        for key in mem::take(&mut self.uncharged) {
            let (hash, shard) = self.shard(&key);
            shard.remove(hash, &key);
        }
        self.shards.clear();
        if self.lacks_room && NO_ROOM.may_log() {
            tracing::warn!(
                "no room for more counters: new values of a rule share one, so they are refused early; raise \
                 --max-counters or --max-counter-bytes"
            );
        }
    }
}

/// The key of the common counter of the limit of `spec` in its window.
fn common_key(spec: &IncrementSpec) -> Vec<u8> {
    let is_window = spec.method == CounterKind::Window;
    let window = is_window.then_some(spec.expires_at.millis());
    let mut key = vec![COMMON_MARK, spec.method.facts().letter];
    key.extend(spec.rule.to_be_bytes());
    key.extend(spec.period_millis.to_be_bytes());
    key.extend(window.unwrap_or(0).to_be_bytes());
    key
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
    /// Passes on how many counters and bytes there are and can be, and how many hits common counters took.
    pub fn samples(&self, list: &mut SampleWriter<'_>) {
        let bounds = &self.capacity.bounds;
        for (name, value) in [
            ("tollgate.memory_counters", self.live_counters()),
            ("tollgate.memory_counters_max", bounds.counters),
            ("tollgate.memory_counters_bytes", self.capacity.bytes()),
            ("tollgate.memory_counters_bytes_max", bounds.bytes),
        ] {
            list.gauge(name, &[], value as u64);
        }
        list.total("tollgate.memory_overflow_hits_total", &self.overflow_hits);
    }
}
