//! Answers for counters that are known to be over their limit, without asking the store.
//!
//! A request is answered as it would be without the cache. That is true under these conditions, and a property test in
//! `over_limit_cache/tests.rs` compares both, decision by decision:
//!
//! - Either all limits of a request are known to refuse it, or the store is asked for all of them.
//! - A count only grows until its window ends, unless hits are given back. A give-back makes the
//!   caches of all workers doubt that counter, before it is sent and after it is answered. Replies of
//!   the store in between are not remembered, if they are about counters of the same 256th of the keys.
//! - A full counter is remembered by its count, so that a higher limit asks the store. A counter
//!   without a window in its key is only known to refuse one hit under the same limit, until one
//!   could pass.
//! - A refusal that was not charged is remembered only if nothing remained, because a remainder can
//!   change. It is not remembered if the request, or that of another caller, may have been judged in
//!   several places: a charge at one place may be given back.
//! - Hits that are refused here although they would count are not added to the store, but their number is kept for each
//!   counter. Hits that are given back are first taken off these numbers, of all workers, and only the rest is sent:
//!   a caller that gives back what was refused makes no room for others.
//!
//! Two conditions can differ from an answer of the store. A raised limit does not meet the hits that were refused here.
//! And this cache does not notice other replicas, deleted keys, and limits that were raised for another
//! worker. So no entry is believed for longer than a second while the store can be asked. That second, and the times
//! in an entry, are of a clock that cannot be set.

use std::{
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use super::contract::{Deadline, Store, StoreError, StoreState};
use crate::{
    core::{
        charging::charges_refused,
        counter::{Batch, CounterState, CounterStates, IncrementSpec, Operation},
        window::{SteadyTime, Timestamp},
    },
    foundation::lock::lock,
};

mod entry;
mod stats;
#[cfg(test)]
mod tests;

use entry::{OverEntries, OverEntry, is_repeated};
pub(crate) use stats::CacheStats;
use stats::WorkerCacheStats;

/// A store around a store, one for each worker.
#[derive(Debug)]
pub(crate) struct OverLimitCache<S> {
    /// The store that counts.
    pub(super) store: S,
    /// `None` if the cache is turned off.
    known: Option<Arc<WorkerCache>>,
    caches: Arc<Caches>,
    stats: Arc<WorkerCacheStats>,
}

/// The caches of all workers.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    all: Mutex<Vec<Arc<WorkerCache>>>,
    /// How many requests with hits given back the store has answered.
    given_back: AtomicU64,
    /// That number at the last one for a counter of each slice of the keys.
    last_given_back: GivenBackSlices,
}

/// A number for each of 256 slices of the keys, so that a give-back to one counter casts no doubt on most others.
#[derive(Debug)]
struct GivenBackSlices {
    last: [AtomicU64; 256],
    hasher: RandomState,
}

impl Default for GivenBackSlices {
    fn default() -> Self {
        Self {
            last: [const { AtomicU64::new(0) }; 256],
            hasher: RandomState::default(),
        }
    }
}

impl GivenBackSlices {
    fn of(&self, key: &[u8]) -> &AtomicU64 {
        let slices = self.last.len() as u64;
        #[expect(clippy::cast_possible_truncation, reason = "less than 256")]
        let slice = (self.hasher.hash_one(key) % slices) as usize;
        &self.last[slice]
    }
}

/// The counters that one worker knows to be over.
#[derive(Debug)]
struct WorkerCache {
    entries: Mutex<OverEntries>,
    /// Whether any counter ever was over: until then no request has to look.
    was_over: AtomicBool,
}

impl<S> OverLimitCache<S> {
    /// A cache of `max_bytes` at most; 0 turns it off.
    pub(crate) fn new(
        store: S,
        max_bytes: usize,
        caches: &Arc<Caches>,
        stats: &CacheStats,
    ) -> Self {
        let known = (max_bytes > 0).then(|| {
            let known = Arc::new(WorkerCache {
                entries: Mutex::new(OverEntries::new(max_bytes)),
                was_over: AtomicBool::new(false),
            });
            lock(&caches.all).push(known.clone());
            known
        });
        Self {
            store,
            known,
            caches: caches.clone(),
            stats: stats.new_worker_stats(),
        }
    }
}

impl<S: Store> Store for OverLimitCache<S> {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let known = self.known.as_ref().filter(|_| !deadline.asks_store);
        let Some(known) = known else {
            return self.store.add_into(counts, batch, now, deadline).await;
        };
        let rest = has_give_backs(batch).then(|| self.caches.without_refused(batch));
        let batch = rest.as_deref().unwrap_or(batch);
        if rest.is_some() && has_give_backs(batch) {
            // Boxed, or the future of every call would reserve its space.
            return Box::pin(self.give_back(known, counts, batch, now, deadline)).await;
        }
        let given_back = self.caches.given_back.load(SeqCst);
        let at = deadline.steady();
        let Some(asks) = self.look_up(known, counts, batch, at) else {
            return Ok(());
        };
        self.store.add_into(counts, batch, now, deadline).await?;
        let question = StoreQuestion {
            given_back,
            asks,
            at,
        };
        self.remember(known, batch, counts, &question);
        Ok(())
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }
}

/// Why the store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    /// No counter of the request is known.
    Unknown,
    /// Some are, but not enough to answer.
    Known,
}

/// The state of the caches when the store was asked.
struct StoreQuestion {
    given_back: u64,
    asks: Asks,
    /// When the request arrived.
    at: SteadyTime,
}

fn has_give_backs(batch: &Batch) -> bool {
    batch.all_specs().any(|spec| spec.taken_off() > 0)
}

impl<S: Store> OverLimitCache<S> {
    /// Asks the store, because hits are given back.
    async fn give_back(
        &self,
        known: &WorkerCache,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let misses = batch.len() as u64;
        self.stats.misses.fetch_add(misses, Relaxed);
        self.caches.doubt(batch);
        lock(&known.entries).doubt_other_limits(batch);
        let answered = self.store.add_into(counts, batch, now, deadline).await;
        // After an error too: the hits may have been given back nevertheless.
        self.caches.record_given_back(batch);
        self.caches.doubt(batch);
        answered
    }

    /// Answers `batch` if all of its counters are known to refuse it; otherwise the store is to be asked.
    fn look_up(
        &self,
        known: &WorkerCache,
        counts: &mut CounterStates,
        batch: &Batch,
        now: SteadyTime,
    ) -> Option<Asks> {
        let misses = || self.stats.misses.fetch_add(batch.len() as u64, Relaxed);
        if !known.was_over.load(Relaxed) {
            misses();
            return Some(Asks::Unknown);
        }
        let entries = lock(&known.entries);
        let mut answers = SmallVec::<[_; 8]>::new();
        let mut asks = Asks::Unknown;
        for increment in batch.iter() {
            let Some(over) = entries.get(increment.key) else {
                continue;
            };
            asks = Asks::Known;
            if over.has_ended(now) {
                self.stats.expired.fetch_add(1, Relaxed);
            } else if over.refuses(batch, &increment)
                && (over.is_believed(now) || !self.store.state().is_well)
            {
                answers.push(over);
            }
        }
        if answers.len() < batch.len() {
            misses();
            entries.doubt_other_limits(batch);
            return Some(asks);
        }
        self.stats.hits.fetch_add(batch.len() as u64, Relaxed);
        for (over, spec) in answers.into_iter().zip(batch.all_specs()) {
            if charges_refused(spec) {
                over.refused(spec.hits);
            }
            counts.push(over.count(spec, now));
        }
        None
    }

    /// Remembers counters that are over, but for those that may have been given back hits since the `question`.
    fn remember(
        &self,
        known: &WorkerCache,
        batch: &Batch,
        counts: &[CounterState],
        question: &StoreQuestion,
    ) {
        let is_new = |(spec, count): (&IncrementSpec, &CounterState)| {
            count.is_over(spec.limit, spec.added())
        };
        // Mostly there is none, and this check needs no lock.
        if question.asks == Asks::Unknown && !batch.all_specs().zip(counts).any(is_new) {
            return;
        }
        let is_one_step = self.store.state().is_one_step;
        let mut entries = lock(&known.entries);
        // A give-back is counted first, and only then waits for this lock.
        let is_any_given_back = self.caches.given_back.load(SeqCst) != question.given_back;
        for (increment, count) in batch.iter().zip(counts) {
            if is_any_given_back {
                let last = self.caches.last_given_back.of(increment.key);
                if last.load(SeqCst) > question.given_back {
                    continue;
                }
            }
            // A store that does not reply may know better as soon as it does.
            if count.is_degraded || !count.is_charged && is_repeated(batch, &increment) {
                continue;
            }
            if count.is_charged && count.after <= increment.added() && count.ends.is_none() {
                entries.found_empty(increment.key);
            }
            if let Some(over) = OverEntry::new(&increment.spec, *count, is_one_step, question.at) {
                known.was_over.store(true, Relaxed);
                let evicted = entries.insert(increment.key, over) as u64;
                self.stats.evicted.fetch_add(evicted, Relaxed);
                self.stats.entries.store(entries.len() as u64, Relaxed);
            }
        }
    }
}

impl Caches {
    /// `batch`, in which hits that are given back are first taken off those that the caches refused of the counter.
    fn without_refused(&self, batch: &Batch) -> Box<Batch> {
        let mut rest = Box::<Batch>::default();
        let caches = lock(&self.all);
        for increment in batch.iter() {
            let mut rest_of_one = increment;
            match increment.operation {
                Operation::Look | Operation::Add(_) => {}
                // A bucket never counts refused hits.
                Operation::GiveBack if increment.ends_reservation() => {}
                Operation::GiveBack | Operation::Reset => {
                    rest_of_one.spec.hits = take_back(&caches, increment.key, increment.hits);
                    if rest_of_one.hits == 0 {
                        rest_of_one.spec.operation = Operation::Look;
                    }
                }
            }
            rest.append_one(rest_of_one);
        }
        rest
    }

    /// Records that the store has answered a request that gives back hits.
    fn record_given_back(&self, batch: &Batch) {
        let number = self.given_back.fetch_add(1, SeqCst) + 1;
        for increment in batch.iter().filter(|one| one.taken_off() > 0) {
            let last = self.last_given_back.of(increment.key);
            last.fetch_max(number, SeqCst);
        }
    }

    /// Makes all caches stop answering for counters to which `batch` gives back.
    fn doubt(&self, batch: &Batch) {
        for known in lock(&self.all).iter() {
            let entries = lock(&known.entries);
            for increment in batch.iter().filter(|one| one.taken_off() > 0) {
                entries.doubt(increment.key);
            }
        }
    }
}

/// Takes hits off those that the caches refused of a counter, and returns the rest.
fn take_back(caches: &[Arc<WorkerCache>], key: &[u8], hits: u64) -> u64 {
    caches.iter().fold(hits, |rest, known| {
        let entries = lock(&known.entries);
        entries.get(key).map_or(rest, |over| over.take_back(rest))
    })
}
