//! Counters in this process: a map in shards, each behind its own lock.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::RandomState},
    future,
    hash::BuildHasher as _,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{Store, StoreError};
use crate::{
    counter::{Batch, Count, Increment},
    request::Hits,
    window::Timestamp,
};

/// Counts in memory, up to a bound on live counters.
///
/// A full store still counts what it knows and refuses what it does not: dropping a live counter
/// to make room would hand its owner a fresh limit, and a flood of invented values could do that
/// to everybody.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    /// Random for each process: values come from outside, and must not be able to pick a shard.
    hasher: RandomState,
    live: AtomicUsize,
    max_counters: usize,
}

#[derive(Debug)]
struct Shard {
    counters: HashMap<Box<[u8]>, Slot>,
    /// No counter of this shard expires before.
    earliest_expiry: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    count: u64,
    expires_at: Timestamp,
}

/// Many more than there are cores, so that two of them rarely want the same.
const SHARDS: usize = 64;

const NEVER: Timestamp = Timestamp::from_millis(u64::MAX);

impl MemoryStore {
    pub fn new(max_counters: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                counters: HashMap::new(),
                earliest_expiry: NEVER,
            })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            live: AtomicUsize::new(0),
            max_counters,
        }
    }

    /// How many counters are held, those included that expired since the last sweep.
    pub fn live_counters(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    pub fn max_counters(&self) -> usize {
        self.max_counters
    }

    /// Drops what has expired. Locks one shard at a time, and none that has nothing to drop.
    pub fn sweep(&self, now: Timestamp) {
        for shard in &self.shards {
            self.sweep_shard(&mut lock(shard), now);
        }
    }

    fn sweep_shard(&self, shard: &mut Shard, now: Timestamp) {
        if shard.earliest_expiry > now {
            return;
        }
        let before = shard.counters.len();
        let mut earliest = NEVER;
        shard.counters.retain(|_, slot| {
            let is_live = slot.expires_at > now;
            if is_live {
                earliest = earliest.min(slot.expires_at);
            }
            is_live
        });
        shard.earliest_expiry = earliest;
        if shard.counters.capacity() > 4 * shard.counters.len() {
            shard.counters.shrink_to_fit();
        }
        self.live
            .fetch_sub(before - shard.counters.len(), Ordering::Relaxed);
    }

    /// Which shard holds the counter of `key`.
    fn shard(&self, key: &[u8]) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any bits of the hash will do"
        )]
        let hash = self.hasher.hash_one(key) as usize;
        hash % self.shards.len()
    }

    /// All increments, unless one would pass its limit: then only those that would.
    fn apply_or_stop(&self, batch: &Batch, now: Timestamp) -> Result<Vec<Count>, StoreError> {
        let shard_of = |increment: &Increment<'_>| self.shard(increment.key);
        // Locked in order, so that two requests cannot wait for each other.
        let wanted: BTreeSet<usize> = batch.iter().map(|increment| shard_of(&increment)).collect();
        let mut shards: BTreeMap<_, _> = wanted
            .into_iter()
            .map(|index| (index, lock(&self.shards[index])))
            .collect();
        let would_pass = |increment: &Increment<'_>| {
            let slot = shards[&shard_of(increment)].counters.get(increment.key);
            let count = slot.map_or(0, |slot| slot.count);
            // What is given back neither stops the others nor is stopped.
            increment.hits.given_back() == 0
                && count.saturating_add(increment.hits.added()) > u64::from(increment.limit)
        };
        let passing: Vec<bool> = batch
            .iter()
            .map(|increment| would_pass(&increment))
            .collect();
        let is_stopped = passing.contains(&true);
        let apply = |(increment, passes): (Increment<'_>, bool)| {
            let shard = shards.get_mut(&shard_of(&increment));
            let shard = shard.expect("every shard of the batch is locked");
            let hits = if is_stopped && !passes && increment.hits.given_back() == 0 {
                Hits::add(0)
            } else {
                increment.hits
            };
            let count = self.apply(shard, Increment { hits, ..increment }, now)?;
            Ok(Count::from(count))
        };
        batch.iter().zip(passing).map(apply).collect()
    }

    fn apply(
        &self,
        shard: &mut Shard,
        increment: Increment<'_>,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let Increment {
            key,
            hits,
            expires_at,
            ..
        } = increment;
        if let Some(slot) = shard.counters.get_mut(key) {
            // The clock may have stepped back into a window that was swept or is about to be: the
            // window is part of the key, so the count is still the right one.
            slot.count = slot.count.saturating_add(hits.added());
            slot.count = slot.count.saturating_sub(hits.given_back());
            return Ok(slot.count);
        }
        if hits.added() == 0 {
            return Ok(0);
        }
        if self.live.fetch_add(1, Ordering::Relaxed) >= self.max_counters {
            self.sweep_shard(shard, now);
            if self.live.load(Ordering::Relaxed) > self.max_counters {
                self.live.fetch_sub(1, Ordering::Relaxed);
                return Err(StoreError::Full);
            }
        }
        let slot = Slot {
            count: hits.added(),
            expires_at,
        };
        shard.counters.insert(key.into(), slot);
        shard.earliest_expiry = shard.earliest_expiry.min(expires_at);
        Ok(slot.count)
    }
}

impl Store for MemoryStore {
    fn add(
        &self,
        batch: &Batch,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Count>, StoreError>> + Send {
        if batch.stops_when_over {
            return future::ready(self.apply_or_stop(batch, now));
        }
        let apply = |increment: Increment<'_>| {
            let mut shard = lock(&self.shards[self.shard(increment.key)]);
            Ok(Count::from(self.apply(&mut shard, increment, now)?))
        };
        future::ready(batch.iter().map(apply).collect())
    }
}

/// A panic elsewhere cannot leave a shard half changed: every change is one assignment.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        counter::Identity,
        limit::Limit,
        request::{Entry, Hits},
        window::{Unit, window},
    };

    const MINUTE: u64 = 60;

    fn batch(values: &[&str], hits: Hits, now: Timestamp) -> Batch {
        let limit = Limit {
            requests_per_unit: 1,
            period: Unit::Minute.into(),
            name: None,
        };
        let mut batch = Batch::default();
        let mut identity = Identity::default();
        for value in values {
            let entry = Entry {
                key: b"k",
                value: value.as_bytes(),
            };
            identity.set(b"d", &[entry], &[]);
            batch.push(&identity, &limit, window(limit.period, now), hits);
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
        let after = |counts: Vec<Count>| counts.iter().map(|count| count.after).collect();
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

    #[test]
    fn a_look_takes_no_room() {
        let store = MemoryStore::new(1);
        let now = Timestamp::from_secs(0);
        let look = batch(&["a", "b", "c"], Hits::add(0), now);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let counts = runtime.block_on(store.add(&look, now));
        assert_eq!(counts, Ok(vec![Count::from(0); 3]));
        assert_eq!(store.live_counters(), 0);
    }
}
