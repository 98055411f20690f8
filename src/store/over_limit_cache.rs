//! Answers for counters that are known to be over their limit, without asking the store.
//!
//! A request is answered as it would be without the cache. That is true under these conditions, and a property test in
//! `over_limit_cache/tests.rs` compares both, decision by decision:
//!
//! - Either all limits of a request are known to refuse it, or the store is asked for all of them.
//! - A count only grows until its window ends, unless hits are given back. A give-back makes the
//!   caches of all workers doubt that counter, before it is sent and after it is answered. Replies of
//!   the store in between are not remembered.
//! - A full counter is remembered by its count, so that a higher limit asks the store. A counter
//!   without a window in its key is only known to refuse one hit under the same limit, until one
//!   could pass.
//! - A refusal that was not charged is remembered only if nothing remained, because a remainder can
//!   change. It is not remembered if the request, or that of another caller, may have been judged in
//!   several places: a charge at one place may be given back.
//! - Hits that are refused here but have to count are added to the store just before the next hits
//!   on their counter that are sent there, unless the counter holds less than was known here: then
//!   hits were taken off it through another replica, such as by a reset.
//!
//! This cache does not notice other replicas, deleted keys, and limits that were raised for another
//! worker. So no entry is believed for longer than a second while the store can be asked.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use smallvec::SmallVec;

use super::contract::{Deadline, Store, StoreError};
use crate::core::{
    charging::charges_refused,
    counter::{Batch, CounterState, CounterStates, IncrementSpec},
    window::Timestamp,
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
            caches.lock().push(known.clone());
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
        let Some(known) = &self.known else {
            return self.store.add_into(counts, batch, now, deadline).await;
        };
        let given_back = self.caches.given_back.load(SeqCst);
        let gives_back = gives_back(batch);
        let answered = match self.look_up(known, counts, batch, gives_back, now) {
            CacheAnswer::Answered => return Ok(()),
            CacheAnswer::Asks => self.store.add_into(counts, batch, now, deadline).await,
            // Boxed, to keep the future of all other requests small.
            CacheAnswer::AsksLate(late) => {
                Box::pin(self.add_late(late, counts, batch, now, deadline)).await
            }
        };
        if gives_back {
            // After an error too: the hits may have been given back nevertheless.
            self.caches.given_back.fetch_add(1, SeqCst);
            self.caches.doubt(batch);
        } else if answered.is_ok() {
            self.remember(known, batch, counts, given_back, now);
        }
        answered
    }

    fn is_well(&self) -> bool {
        self.store.is_well()
    }

    fn is_one_step(&self) -> bool {
        self.store.is_one_step()
    }
}

/// How a request is answered.
enum CacheAnswer {
    Answered,
    /// By the store.
    Asks,
    /// By the store, which has to count these hits first.
    AsksLate(Box<Batch>),
}

fn gives_back(batch: &Batch) -> bool {
    batch.all_specs().any(|spec| spec.hits.given_back() > 0)
}

impl<S: Store> OverLimitCache<S> {
    /// Answers `batch` if all of its counters are known to refuse it.
    fn look_up(
        &self,
        known: &WorkerCache,
        counts: &mut CounterStates,
        batch: &Batch,
        gives_back: bool,
        now: Timestamp,
    ) -> CacheAnswer {
        let misses = || self.stats.misses.fetch_add(batch.len() as u64, Relaxed);
        let asks = |late: Option<_>| late.map_or(CacheAnswer::Asks, CacheAnswer::AsksLate);
        if gives_back {
            misses();
            let mut late = None;
            self.caches.take_uncounted(batch, now, &mut late);
            self.caches.doubt(batch);
            known.lock().doubt_other_limits(batch);
            return asks(late);
        }
        if !known.was_over.load(Relaxed) {
            misses();
            return CacheAnswer::Asks;
        }
        let entries = known.lock();
        let mut answers = SmallVec::<[_; 8]>::new();
        for increment in batch.iter() {
            match entries.get(increment.key) {
                Some(over) if over.expires_at <= now => {
                    self.stats.expired.fetch_add(1, Relaxed);
                }
                Some(over)
                    if over.refuses(batch, &increment)
                        && (now < over.asks_at || !self.store.is_well()) =>
                {
                    answers.push(over);
                }
                _ => {}
            }
        }
        if answers.len() < batch.len() {
            misses();
            entries.doubt_other_limits(batch);
            let mut late = None;
            entries.take_uncounted(batch, now, &mut late);
            return asks(late);
        }
        self.stats.hits.fetch_add(batch.len() as u64, Relaxed);
        for (over, spec) in answers.into_iter().zip(batch.all_specs()) {
            if charges_refused(spec) {
                let uncounted = over.uncounted.get().saturating_add(spec.hits.added());
                over.uncounted.set(uncounted);
            }
            counts.push(over.count(spec, now));
        }
        CacheAnswer::Answered
    }

    /// Makes the store count the hits that were refused here, and then `batch`.
    async fn add_late(
        &self,
        mut late: Box<Batch>,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let before = late.len();
        late.append(batch);
        self.store.add_into(counts, &late, now, deadline).await?;
        counts.drain(..before.min(counts.len()));
        Ok(())
    }

    /// Remembers counters that are over, unless hits were given back since `given_back` was read.
    fn remember(
        &self,
        known: &WorkerCache,
        batch: &Batch,
        counts: &[CounterState],
        given_back: u64,
        now: Timestamp,
    ) {
        let is_new =
            |(spec, count): (&IncrementSpec, &CounterState)| count.is_over(spec.limit, spec.hits);
        // Mostly there is none, and this check needs no lock.
        if !batch.all_specs().zip(counts).any(is_new) {
            return;
        }
        let is_one_step = self.store.is_one_step();
        let mut entries = known.lock();
        // A give-back is counted first, and only then waits for this lock.
        if self.caches.given_back.load(SeqCst) != given_back {
            return;
        }
        for (increment, count) in batch.iter().zip(counts) {
            // A store that does not reply may know better as soon as it does.
            if count.is_degraded || !count.is_charged && is_repeated(batch, &increment) {
                continue;
            }
            if let Some(over) = OverEntry::new(&increment.spec, *count, is_one_step, now) {
                known.was_over.store(true, Relaxed);
                let evicted = entries.insert(increment.key, over) as u64;
                self.stats.evicted.fetch_add(evicted, Relaxed);
                self.stats.entries.store(entries.len() as u64, Relaxed);
            }
        }
    }
}

impl Caches {
    /// Moves into `late` the hits on the counters of `batch` that the caches have not yet counted in the
    /// store.
    fn take_uncounted(&self, batch: &Batch, now: Timestamp, late: &mut Option<Box<Batch>>) {
        for known in self.lock().iter() {
            known.lock().take_uncounted(batch, now, late);
        }
    }

    /// Makes all caches stop answering for counters to which `batch` gives back.
    fn doubt(&self, batch: &Batch) {
        for known in self.lock().iter() {
            let entries = known.lock();
            for increment in batch.iter().filter(|one| one.hits.given_back() > 0) {
                entries.doubt(increment.key);
            }
        }
    }

    /// A panic elsewhere cannot leave the list half changed.
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<WorkerCache>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerCache {
    /// A panic elsewhere cannot leave the entries half changed: at worst their size is off.
    fn lock(&self) -> MutexGuard<'_, OverEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
