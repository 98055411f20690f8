//! Answers for counters that are known to be over their limit, without asking the store.
//!
//! The cache keeps only facts that cannot become false, so that a request is answered as without it. It
//! is right under these conditions, and a property test below compares decision by decision:
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
//!   on their counter that are sent there.
//!
//! This cache does not notice other replicas, deleted keys, and limits that were raised for another
//! worker. So no entry is believed for longer than a second while the store can be asked.

use std::{
    cell::Cell,
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use super::contract::{Deadline, Store, StoreError};
use crate::core::{
    counter::{
        Batch, Charge, CounterKind, CounterState, CounterStates, Enforcement, Increment,
        IncrementSpec, ResetTimes,
    },
    request::Hits,
    window::Timestamp,
};
use crate::foundation::sample::SampleWriter;

/// How long the store is not asked about a counter that is over.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// A store around a store, one for each worker.
#[derive(Debug)]
pub struct OverLimitCache<S> {
    store: S,
    /// `None` if the cache is turned off.
    known: Option<Arc<WorkerCache>>,
    caches: Arc<Caches>,
    stats: Arc<WorkerCacheStats>,
}

/// The caches of all workers.
#[derive(Debug, Default)]
pub struct Caches {
    all: Mutex<Vec<Arc<WorkerCache>>>,
    /// How many requests with hits given back the store has answered.
    given_back: AtomicU64,
}

/// The counters that one worker knows to be over.
#[derive(Debug)]
struct WorkerCache {
    entries: Mutex<Generations>,
    /// Whether any counter ever was over: until then no request has to look.
    was_over: AtomicBool,
}

/// Stats of the caches of all workers.
#[derive(Debug, Default)]
pub struct CacheStats(Mutex<Vec<Arc<WorkerCacheStats>>>);

/// Stats of one worker's cache. They change with each request, so no other thread writes near them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WorkerCacheStats {
    hits: AtomicU64,
    misses: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
}

/// The stats of caches up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    pub evicted: u64,
}

impl CacheStats {
    fn new_worker_stats(&self) -> Arc<WorkerCacheStats> {
        let worker_stats = Arc::<WorkerCacheStats>::default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(worker_stats.clone());
        worker_stats
    }

    /// The stats of all caches together.
    pub fn totals(&self) -> Totals {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |pick: fn(&WorkerCacheStats) -> &AtomicU64| {
            all.iter()
                .map(|worker_stats| pick(worker_stats).load(Relaxed))
                .sum()
        };
        Totals {
            hits: sum(|worker_stats| &worker_stats.hits),
            misses: sum(|worker_stats| &worker_stats.misses),
            expired: sum(|worker_stats| &worker_stats.expired),
            evicted: sum(|worker_stats| &worker_stats.evicted),
        }
    }
}

/// Counters that are over, in two generations: when the young one is full the old one is dropped, and
/// those of its counters that are still in use have to be found out anew.
#[derive(Debug)]
struct Generations {
    young: CacheGeneration,
    old: CacheGeneration,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct CacheGeneration {
    /// Seeded at random for each process, because keys come from outside.
    counts: HashMap<Box<[u8]>, OverEntry, RandomState>,
    bytes: usize,
}

/// A counter that is over.
#[derive(Clone, Debug)]
struct OverEntry {
    what: Cell<OverState>,
    /// Until when the fact holds.
    expires_at: Timestamp,
    /// From when on the store is asked again, if it can be.
    asks_at: Timestamp,
    /// Hits that were refused here but have to count in the store.
    uncounted: Cell<u64>,
}

/// A fact that cannot become false until the entry expires.
#[derive(Clone, Copy, Debug)]
enum OverState {
    /// The fact may have become false.
    Doubted,
    /// A counter with a window in its key holds this much, or more.
    Holds(u64),
    /// One hit does not pass under exactly this limit.
    Full {
        limit: u32,
        method: CounterKind,
        /// When the counter is empty.
        resets_at: Timestamp,
    },
}

/// The approximate size of an entry without its key, in bytes.
const ENTRY_BYTES: usize = 128;

impl<S> OverLimitCache<S> {
    /// A cache of `max_bytes` at most; 0 turns it off.
    pub fn new(store: S, max_bytes: usize, caches: &Arc<Caches>, stats: &CacheStats) -> Self {
        let known = (max_bytes > 0).then(|| {
            let known = Arc::new(WorkerCache {
                entries: Mutex::new(Generations {
                    young: CacheGeneration::default(),
                    old: CacheGeneration::default(),
                    max_bytes,
                }),
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
        let answered = match self.look_up(known, counts, batch, now) {
            CacheAnswer::Answered => return Ok(()),
            CacheAnswer::Asks => self.store.add_into(counts, batch, now, deadline).await,
            // Boxed, to keep the future of all other requests small.
            CacheAnswer::AsksLate(late) => {
                Box::pin(self.add_late(late, counts, batch, now, deadline)).await
            }
        };
        if gives_back(batch) {
            // After an error too: the hits may have been given back nevertheless.
            self.caches.given_back.fetch_add(1, SeqCst);
            self.caches.doubt(batch);
        } else if answered.is_ok() {
            self.remember(known, batch, counts, given_back, now);
        }
        answered
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

/// Whether a counter occurs in the request more than once. Each of its counts then concerns both.
fn is_repeated(batch: &Batch, increment: &Increment<'_>) -> bool {
    batch.len() > 1 && {
        let same = |other: &Increment<'_>| other.key == increment.key;
        batch.iter().filter(same).count() > 1
    }
}

impl<S: Store> OverLimitCache<S> {
    /// Answers `batch` if all of its counters are known to refuse it.
    fn look_up(
        &self,
        known: &WorkerCache,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
    ) -> CacheAnswer {
        let misses = || self.stats.misses.fetch_add(batch.len() as u64, Relaxed);
        let asks = |late: Option<_>| late.map_or(CacheAnswer::Asks, CacheAnswer::AsksLate);
        if gives_back(batch) {
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
                Some(over) if self.answers(over, batch, &increment, now) => answers.push(over),
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
            if matches!(spec.charge, Charge::Always | Charge::Stopping) {
                let uncounted = over.uncounted.get().saturating_add(spec.hits.added());
                over.uncounted.set(uncounted);
            }
            counts.push(over.count(spec, now));
        }
        CacheAnswer::Answered
    }

    /// Whether `over`, which has not expired, gives the answer that the store would give.
    fn answers(
        &self,
        over: &OverEntry,
        batch: &Batch,
        increment: &Increment<'_>,
        now: Timestamp,
    ) -> bool {
        let refuses = match over.what.get() {
            OverState::Doubted => false,
            // A look is over only if the count is.
            OverState::Holds(count) => {
                count.saturating_add(increment.hits.added().min(1)) > u64::from(increment.limit)
            }
            OverState::Full { limit, method, .. } => {
                (increment.hits, increment.limit, increment.method) == (Hits::ONE, limit, method)
                    && !is_repeated(batch, increment)
            }
        };
        refuses && (now < over.asks_at || !self.store.is_well())
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
    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OverEntry {
    /// The fact that follows from `count` after `spec`, if it is of use. `is_one_step` is whether
    /// every request is judged in one step.
    fn new(
        spec: &IncrementSpec,
        count: CounterState,
        is_one_step: bool,
        now: Timestamp,
    ) -> Option<Self> {
        if spec.hits.is_peek() || !count.is_over(spec.limit, spec.hits) {
            return None;
        }
        let may_be_given_back = spec.charge == Charge::Admitted && !is_one_step;
        let has_rest = count.after < u64::from(spec.limit);
        if !count.is_charged && (may_be_given_back || has_rest) {
            return None;
        }
        let after = |millis| now.plus(Duration::from_millis(millis));
        let (what, expires_at) = match count.ends {
            None => (OverState::Holds(count.after), spec.expires_at),
            // Hits that were refused but have to count could come too late, into the next window.
            Some(_) if count.is_charged || spec.hits != Hits::ONE => return None,
            Some(ends) => {
                let full = OverState::Full {
                    limit: spec.limit,
                    method: spec.method,
                    resets_at: after(ends.resets_in),
                };
                // A counter that never lets the hits pass is not asked for often enough to be worth an
                // entry.
                (full, after(ends.retry_in?))
            }
        };
        Some(Self {
            what: Cell::new(what),
            expires_at,
            asks_at: now.plus(BELIEVED_FOR),
            uncounted: Cell::new(0),
        })
    }

    /// The count that the store would return for `spec`, which this answers.
    fn count(&self, spec: &IncrementSpec, now: Timestamp) -> CounterState {
        let until = |moment: Timestamp| moment.millis().saturating_sub(now.millis());
        let (after, ends) = match self.what.get() {
            OverState::Full { resets_at, .. } => {
                let ends = ResetTimes {
                    resets_in: until(resets_at),
                    retry_in: Some(until(self.expires_at)),
                };
                (spec.limit.into(), Some(ends))
            }
            OverState::Holds(count) => (count, None),
            OverState::Doubted => (spec.limit.into(), None),
        };
        CounterState {
            is_charged: false,
            is_cached: true,
            ends,
            ..CounterState::from(after)
        }
    }
}

impl Generations {
    fn get(&self, key: &[u8]) -> Option<&OverEntry> {
        let young = self.young.counts.get(key);
        young.or_else(|| self.old.counts.get(key))
    }

    /// Inserts an entry and returns how many others it evicted.
    fn insert(&mut self, key: &[u8], over: OverEntry) -> usize {
        if let Some(known) = self.get(key) {
            over.uncounted.set(known.uncounted.take());
        }
        let mut evicted = 0;
        // Two generations share the bound.
        if self.young.bytes + key.len() + ENTRY_BYTES > self.max_bytes / 2 {
            let oldest = mem::replace(&mut self.old, mem::take(&mut self.young));
            evicted = oldest.counts.len();
        }
        if self.young.counts.insert(key.into(), over).is_none() {
            self.young.bytes += key.len() + ENTRY_BYTES;
        }
        evicted
    }

    fn doubt(&self, key: &[u8]) {
        if let Some(over) = self.get(key) {
            over.what.set(OverState::Doubted);
        }
    }

    /// Doubts counters that `batch` uses with another limit, because that may let hits pass which change
    /// the rest.
    fn doubt_other_limits(&self, batch: &Batch) {
        for increment in batch.iter() {
            if let Some(over) = self.get(increment.key)
                && let OverState::Full { limit, method, .. } = over.what.get()
                && (limit, method) != (increment.limit, increment.method)
            {
                over.what.set(OverState::Doubted);
            }
        }
    }

    /// Moves into `late` the hits on the counters of `batch` that were refused here but have to count.
    fn take_uncounted(&self, batch: &Batch, now: Timestamp, late: &mut Option<Box<Batch>>) {
        for increment in batch.iter() {
            let Some(over) = self.get(increment.key) else {
                continue;
            };
            let hits = over.uncounted.take();
            if hits == 0 || over.expires_at <= now {
                continue;
            }
            let spec = IncrementSpec {
                hits: Hits::add(hits),
                // No limit refuses them, and they refuse nothing.
                charge: Charge::Always,
                enforcement: Enforcement::Silent,
                limit: u32::MAX,
                descriptor: u32::MAX,
                ..increment.spec
            };
            let late = late.get_or_insert_default();
            late.append_one(Increment { spec, ..increment });
        }
    }
}

impl CacheStats {
    /// Passes on the stats of all caches together.
    pub fn samples(&self, list: &mut SampleWriter<'_>) {
        let totals = self.totals();
        let lookups = totals.hits + totals.misses;
        list.gauge("ratelimit.localcache.hitCount", totals.hits);
        list.gauge("ratelimit.localcache.missCount", totals.misses);
        list.gauge("ratelimit.localcache.lookupCount", lookups);
        list.gauge("ratelimit.localcache.expiredCount", totals.expired);
        list.gauge("ratelimit.localcache.evacuateCount", totals.evicted);
    }
}

#[cfg(test)]
mod tests;
