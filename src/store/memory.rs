//! Counters in this process: a map in shards, each behind its own lock.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::RandomState},
    future,
    hash::BuildHasher as _,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{Store, StoreError};
use crate::{
    counter::{Batch, Charge, Count, Increment, Method, Terms},
    meter::Meter,
    request::Hits,
    verdict::Verdict,
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
    /// What is more than a number, apart from the others so that they stay small.
    meters: HashMap<Box<[u8]>, MeterSlot>,
    /// No counter of this shard expires before.
    earliest_expiry: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    count: u64,
    expires_at: Timestamp,
}

#[derive(Debug)]
struct MeterSlot {
    meter: Meter,
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
                meters: HashMap::new(),
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
        let before = shard.len();
        let mut earliest = NEVER;
        let mut is_live = |expires_at: Timestamp| {
            let is_live = expires_at > now;
            if is_live {
                earliest = earliest.min(expires_at);
            }
            is_live
        };
        shard.counters.retain(|_, slot| is_live(slot.expires_at));
        shard.meters.retain(|_, slot| is_live(slot.expires_at));
        shard.earliest_expiry = earliest;
        if shard.counters.capacity() > 4 * shard.counters.len() {
            shard.counters.shrink_to_fit();
        }
        if shard.meters.capacity() > 4 * shard.meters.len() {
            shard.meters.shrink_to_fit();
        }
        self.live.fetch_sub(before - shard.len(), Ordering::Relaxed);
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

    /// Does what [`Store::add`] does, which waits for nothing here.
    ///
    /// # Errors
    ///
    /// If there is no room for another counter.
    pub fn apply_all(&self, batch: &Batch, now: Timestamp) -> Result<Vec<Count>, StoreError> {
        if batch.iter().all(|increment| increment.stands_alone()) {
            let add = |increment: Increment<'_>| self.add_alone(&increment, now);
            return batch.iter().map(add).collect();
        }
        self.add_together(batch, now)
    }

    /// All increments as one step: what is charged depends on what the others come to.
    fn add_together(&self, batch: &Batch, now: Timestamp) -> Result<Vec<Count>, StoreError> {
        let shard_of = |increment: &Increment<'_>| self.shard(increment.key);
        // Locked in order, so that two requests cannot wait for each other.
        let wanted: BTreeSet<usize> = batch.iter().map(|increment| shard_of(&increment)).collect();
        let mut shards: BTreeMap<_, _> = wanted
            .into_iter()
            .map(|index| (index, lock(&self.shards[index])))
            .collect();
        // A descriptor may come twice: then the hits ahead count as well.
        let mut ahead: HashMap<&[u8], u64> = HashMap::new();
        let mut judged = Vec::with_capacity(batch.len());
        for increment in batch.iter() {
            let shard = shards.get_mut(&shard_of(&increment));
            let shard = shard.expect("every shard of the batch is locked");
            let ahead = ahead.entry(increment.key).or_default();
            let before = shard.held(&increment, now).saturating_add(*ahead);
            let is_over = increment.refuses(before);
            *ahead = ahead.saturating_add(match increment.charge {
                Charge::Always => increment.hits.added(),
                Charge::Within | Charge::Admitted if !is_over => increment.hits.added(),
                // The reference looks at all counters before it adds to any.
                Charge::Within | Charge::Admitted | Charge::Stopping => 0,
            });
            judged.push((is_over, before));
        }
        let verdict = {
            let increments: Vec<_> = batch.iter().collect();
            let terms = increments.iter().map(|increment| &increment.terms);
            Verdict::new(terms.zip(judged.iter().map(|(is_over, _)| *is_over)))
        };
        let apply = |(increment, &(is_over, before)): (Increment<'_>, &(bool, u64))| {
            let shard = shards.get_mut(&shard_of(&increment));
            let shard = shard.expect("every shard of the batch is locked");
            let is_charged = verdict.charges(&increment.terms, is_over);
            if !is_over || is_charged {
                return self.apply(shard, &increment, is_charged, now);
            }
            // Hits ahead of it on the same counter that are not charged either wait with it.
            let waiting = before.saturating_sub(shard.held(&increment, now));
            let mut terms = increment.terms;
            terms.hits = Hits::add(terms.hits.added().saturating_add(waiting));
            let together = Increment { terms, ..increment };
            let count = self.apply(shard, &together, false, now)?;
            Ok(Count {
                after: count.after.saturating_add(waiting),
                ..count
            })
        };
        batch.iter().zip(&judged).map(apply).collect()
    }

    fn add_alone(&self, increment: &Increment<'_>, now: Timestamp) -> Result<Count, StoreError> {
        let mut shard = lock(&self.shards[self.shard(increment.key)]);
        let is_charged = match increment.charge {
            Charge::Always => true,
            _ => !increment.refuses(shard.held(increment, now)),
        };
        self.apply(&mut shard, increment, is_charged, now)
    }

    fn apply(
        &self,
        shard: &mut Shard,
        increment: &Increment<'_>,
        is_charged: bool,
        now: Timestamp,
    ) -> Result<Count, StoreError> {
        match Meter::new(increment.method) {
            None => self.apply_number(shard, increment, is_charged, now),
            Some(empty) => self.apply_meter(shard, increment, empty, is_charged, now),
        }
    }

    fn apply_number(
        &self,
        shard: &mut Shard,
        increment: &Increment<'_>,
        is_charged: bool,
        now: Timestamp,
    ) -> Result<Count, StoreError> {
        let hits = increment.hits;
        let count = |after| Count {
            is_charged,
            ..Count::from(after)
        };
        if let Some(slot) = shard.counters.get_mut(increment.key) {
            if is_charged {
                // The clock may have stepped back into a window that was swept or is about to be:
                // the window is part of the key, so the count is still the right one.
                slot.count = slot.count.saturating_add(hits.added());
                slot.count = slot.count.saturating_sub(hits.given_back());
            }
            return Ok(count(slot.count));
        }
        if hits.added() == 0 || !is_charged {
            return Ok(count(0));
        }
        self.make_room(shard, now)?;
        let slot = Slot {
            count: hits.added(),
            expires_at: increment.expires_at,
        };
        shard.counters.insert(increment.key.into(), slot);
        shard.earliest_expiry = shard.earliest_expiry.min(slot.expires_at);
        Ok(count(slot.count))
    }

    fn apply_meter(
        &self,
        shard: &mut Shard,
        increment: &Increment<'_>,
        empty: Meter,
        is_charged: bool,
        now: Timestamp,
    ) -> Result<Count, StoreError> {
        let terms = &increment.terms;
        if !shard.meters.contains_key(increment.key) {
            if terms.hits.added() == 0 || !is_charged {
                return Ok(meter_count(&mut empty.clone(), terms, is_charged, now));
            }
            self.make_room(shard, now)?;
            let slot = MeterSlot {
                meter: empty,
                expires_at: now,
            };
            shard.meters.insert(increment.key.into(), slot);
        }
        let slot = shard.meters.get_mut(increment.key);
        let slot = slot.expect("it was there or has just been put there");
        if is_charged && !terms.hits.is_peek() {
            slot.meter.charge(terms, now.millis());
        }
        let count = meter_count(&mut slot.meter, terms, is_charged, now);
        let lives_on = count.ends.map_or(0, |ends| ends.resets_in);
        slot.expires_at = now.plus(Duration::from_millis(lives_on));
        shard.earliest_expiry = shard.earliest_expiry.min(slot.expires_at);
        Ok(count)
    }

    /// Room for one more counter.
    fn make_room(&self, shard: &mut Shard, now: Timestamp) -> Result<(), StoreError> {
        if self.live.fetch_add(1, Ordering::Relaxed) >= self.max_counters {
            self.sweep_shard(shard, now);
            if self.live.load(Ordering::Relaxed) > self.max_counters {
                self.live.fetch_sub(1, Ordering::Relaxed);
                return Err(StoreError::Full);
            }
        }
        Ok(())
    }
}

impl Shard {
    fn len(&self) -> usize {
        self.counters.len() + self.meters.len()
    }

    /// How many hits the counter of `increment` holds.
    fn held(&mut self, increment: &Increment<'_>, now: Timestamp) -> u64 {
        if increment.method == Method::Window {
            let slot = self.counters.get(increment.key);
            return slot.map_or(0, |slot| slot.count);
        }
        let slot = self.meters.get_mut(increment.key);
        slot.map_or(0, |slot| slot.meter.held(&increment.terms, now.millis()))
    }
}

fn meter_count(meter: &mut Meter, terms: &Terms, is_charged: bool, now: Timestamp) -> Count {
    let now = now.millis();
    let held = meter.held(terms, now);
    let count = Count {
        is_charged,
        ..Count::from(held)
    };
    let is_refused = count.is_over(terms.limit, terms.hits);
    Count {
        ends: Some(meter.ends(terms, is_refused, now)),
        ..count
    }
}

impl Store for MemoryStore {
    fn add(
        &self,
        batch: &Batch,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Count>, StoreError>> + Send {
        future::ready(self.apply_all(batch, now))
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
        request::Entry,
        window::{Unit, window},
    };

    const MINUTE: u64 = 60;

    fn batch(values: &[&str], hits: Hits, now: Timestamp) -> Batch {
        let limit = Limit::fixed(1, Unit::Minute);
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
