//! Answers for counters that are known to be over their limit, without asking the store.
//!
//! The cache only knows what cannot become false, so that a request is answered as without it. It
//! is right under these conditions, and a property test below compares decision by decision:
//!
//! - Either all limits of a request are known to refuse it, or the store is asked for all of them.
//! - A count only grows until its window ends, unless hits are given back. A give-back makes the
//!   caches of all workers doubt that counter, before it is sent and after it is answered. What the
//!   store has said meanwhile is not remembered.
//! - A full counter is remembered by its count, so that a higher limit asks the store. What has no
//!   window in its key is only known to refuse one hit under the same limit, until one could pass.
//! - A refusal that was not charged is remembered only if nothing was left, for what is left can
//!   change. It is not remembered if the request, or that of another caller, may have been judged in
//!   several places: what one place has charged may be given back.
//! - Hits that are refused here and count all the same are added to the store before the next hits
//!   that it is asked about.
//!
//! Other replicas, and whoever deletes a key or raises a limit for another worker, cannot tell this
//! cache. So nothing is believed for longer than a second while the store can be asked.

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

use super::{Deadline, Store, StoreError};
use crate::{
    counter::{Batch, Charge, Count, CountList, Ends, Increment, Method, Terms, Voice},
    request::Hits,
    window::Timestamp,
};

/// How long the store is not asked about a counter that is over.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// A store around a store. One for each worker.
#[derive(Debug)]
pub struct OverLimitCache<S> {
    store: S,
    /// Nothing if the cache is turned off.
    known: Option<Arc<Known>>,
    caches: Arc<Caches>,
    meters: Arc<Meter>,
}

/// The caches of all workers.
#[derive(Debug, Default)]
pub struct Caches {
    all: Mutex<Vec<Arc<Known>>>,
    /// Requests with hits given back that the store has answered.
    given_back: AtomicU64,
}

/// What one worker knows to be over.
#[derive(Debug)]
struct Known {
    entries: Mutex<Entries>,
    /// Whether anything ever was over: as long as it was not, nobody has to look.
    was_over: AtomicBool,
}

/// What the caches of all workers have done.
#[derive(Debug, Default)]
pub struct Meters(Mutex<Vec<Arc<Meter>>>);

/// What one worker's cache has done. Counted for each request, so nobody else writes near it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Meter {
    hits: AtomicU64,
    misses: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
}

/// What caches have done up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    pub evicted: u64,
}

impl Meters {
    fn new_meter(&self) -> Arc<Meter> {
        let meter = Arc::<Meter>::default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(meter.clone());
        meter
    }

    /// All of them together.
    pub fn totals(&self) -> Totals {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |pick: fn(&Meter) -> &AtomicU64| {
            all.iter().map(|meter| pick(meter).load(Relaxed)).sum()
        };
        Totals {
            hits: sum(|meter| &meter.hits),
            misses: sum(|meter| &meter.misses),
            expired: sum(|meter| &meter.expired),
            evicted: sum(|meter| &meter.evicted),
        }
    }
}

/// Counters that are over, in two generations: when the young one is full the old one is
/// forgotten, and what of it is still asked for has to be found out anew.
#[derive(Debug)]
struct Entries {
    young: Generation,
    old: Generation,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Generation {
    /// Seeded at random for each process: keys come from outside.
    counts: HashMap<Box<[u8]>, Over, RandomState>,
    bytes: usize,
}

/// A counter that is over.
#[derive(Clone, Debug)]
struct Over {
    what: Cell<What>,
    /// Until when this holds.
    expires_at: Timestamp,
    /// From when on the store is asked again, if it is there.
    asks_at: Timestamp,
    /// Hits that were refused here and count in the store all the same.
    uncounted: Cell<u64>,
}

/// What cannot become false until the entry expires.
#[derive(Clone, Copy, Debug)]
enum What {
    /// It may have become false.
    Doubted,
    /// A counter with a window in its key holds this much, or more.
    Holds(u64),
    /// One hit does not pass under this very limit.
    Full {
        limit: u32,
        method: Method,
        /// When the counter is empty.
        resets_at: Timestamp,
    },
}

/// What an entry takes beside its key, about.
const ENTRY_BYTES: usize = 128;

impl<S> OverLimitCache<S> {
    /// A cache of `max_bytes` at most; 0 turns it off.
    pub fn new(store: S, max_bytes: usize, caches: &Arc<Caches>, meters: &Meters) -> Self {
        let known = (max_bytes > 0).then(|| {
            let known = Arc::new(Known {
                entries: Mutex::new(Entries {
                    young: Generation::default(),
                    old: Generation::default(),
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
            meters: meters.new_meter(),
        }
    }
}

impl<S: Store> Store for OverLimitCache<S> {
    async fn add_into(
        &self,
        counts: &mut CountList,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let Some(known) = &self.known else {
            return self.store.add_into(counts, batch, now, deadline).await;
        };
        let given_back = self.caches.given_back.load(SeqCst);
        let told = match self.look_up(known, counts, batch, now) {
            Looked::Answered => return Ok(()),
            Looked::Asks => self.store.add_into(counts, batch, now, deadline).await,
            // Boxed, for the way of all others is to stay small.
            Looked::AsksLate(late) => {
                Box::pin(self.add_late(late, counts, batch, now, deadline)).await
            }
        };
        if gives_back(batch) {
            // Whatever was told: it may have been given back all the same.
            self.caches.given_back.fetch_add(1, SeqCst);
            self.caches.doubt(batch);
        } else if told.is_ok() {
            self.remember(known, batch, counts, given_back, now);
        }
        told
    }
}

/// How a request is to be answered.
enum Looked {
    Answered,
    /// By the store.
    Asks,
    /// By the store, which has to count these hits first.
    AsksLate(Box<Batch>),
}

fn gives_back(batch: &Batch) -> bool {
    batch.all_terms().any(|terms| terms.hits.given_back() > 0)
}

/// Whether a counter stands in the request more than once. What is told of it then is told of both.
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
        known: &Known,
        counts: &mut CountList,
        batch: &Batch,
        now: Timestamp,
    ) -> Looked {
        let misses = || self.meters.misses.fetch_add(batch.len() as u64, Relaxed);
        let asks = |late: Option<_>| late.map_or(Looked::Asks, Looked::AsksLate);
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
            return Looked::Asks;
        }
        let entries = known.lock();
        let mut answers = SmallVec::<[_; 8]>::new();
        for increment in batch.iter() {
            match entries.get(increment.key) {
                Some(over) if over.expires_at <= now => {
                    self.meters.expired.fetch_add(1, Relaxed);
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
        self.meters.hits.fetch_add(batch.len() as u64, Relaxed);
        for (over, terms) in answers.into_iter().zip(batch.all_terms()) {
            if matches!(terms.charge, Charge::Always | Charge::Stopping) {
                let uncounted = over.uncounted.get().saturating_add(terms.hits.added());
                over.uncounted.set(uncounted);
            }
            counts.push(over.count(terms, now));
        }
        Looked::Answered
    }

    /// Whether `over`, which has not expired, says all that the store would say.
    fn answers(
        &self,
        over: &Over,
        batch: &Batch,
        increment: &Increment<'_>,
        now: Timestamp,
    ) -> bool {
        let refuses = match over.what.get() {
            What::Doubted => false,
            // A look is over only if the count is.
            What::Holds(count) => {
                count.saturating_add(increment.hits.added().min(1)) > u64::from(increment.limit)
            }
            What::Full { limit, method, .. } => {
                (increment.hits, increment.limit, increment.method) == (Hits::ONE, limit, method)
                    && !is_repeated(batch, increment)
            }
        };
        refuses && (now < over.asks_at || !self.store.is_well())
    }

    /// Has the store count what was refused here, and then `batch`.
    async fn add_late(
        &self,
        mut late: Box<Batch>,
        counts: &mut CountList,
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

    /// Remembers what is over, unless hits were given back since `given_back` was read.
    fn remember(
        &self,
        known: &Known,
        batch: &Batch,
        counts: &[Count],
        given_back: u64,
        now: Timestamp,
    ) {
        let is_news = |(terms, count): (&Terms, &Count)| count.is_over(terms.limit, terms.hits);
        // Mostly there is none, and no lock is needed to see that.
        if !batch.all_terms().zip(counts).any(is_news) {
            return;
        }
        let is_one_place = self.store.is_one_place();
        let mut entries = known.lock();
        // Whoever gives back counts it first, and then waits for this lock.
        if self.caches.given_back.load(SeqCst) != given_back {
            return;
        }
        for (increment, count) in batch.iter().zip(counts) {
            // A store that does not answer may know better as soon as it does.
            if count.is_degraded || !count.is_charged && is_repeated(batch, &increment) {
                continue;
            }
            if let Some(over) = Over::new(&increment.terms, *count, is_one_place, now) {
                known.was_over.store(true, Relaxed);
                let evicted = entries.insert(increment.key, over) as u64;
                self.meters.evicted.fetch_add(evicted, Relaxed);
            }
        }
    }
}

impl Caches {
    /// Moves into `late` the hits on the counters of `batch` that no cache has counted in the store yet.
    fn take_uncounted(&self, batch: &Batch, now: Timestamp, late: &mut Option<Box<Batch>>) {
        for known in self.lock().iter() {
            known.lock().take_uncounted(batch, now, late);
        }
    }

    /// No cache answers any more for what `batch` gives back to.
    fn doubt(&self, batch: &Batch) {
        for known in self.lock().iter() {
            let entries = known.lock();
            for increment in batch.iter().filter(|one| one.hits.given_back() > 0) {
                entries.doubt(increment.key);
            }
        }
    }

    /// A panic elsewhere cannot leave the list half changed.
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Known>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// A panic elsewhere cannot leave the entries half changed: at worst their size is off.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Over {
    /// What is known after `terms` led to `count`, if that is of use. `is_one_place` says whether every
    /// request is judged in one step.
    fn new(terms: &Terms, count: Count, is_one_place: bool, now: Timestamp) -> Option<Self> {
        if terms.hits.is_peek() || !count.is_over(terms.limit, terms.hits) {
            return None;
        }
        let may_be_given_back = terms.charge == Charge::Admitted && !is_one_place;
        let has_rest = count.after < u64::from(terms.limit);
        if !count.is_charged && (may_be_given_back || has_rest) {
            return None;
        }
        let after = |millis| now.plus(Duration::from_millis(millis));
        let (what, expires_at) = match count.ends {
            None => (What::Holds(count.after), terms.expires_at),
            // What was refused and counts all the same could come too late, into the next window.
            Some(_) if count.is_charged || terms.hits != Hits::ONE => return None,
            Some(ends) => {
                let full = What::Full {
                    limit: terms.limit,
                    method: terms.method,
                    resets_at: after(ends.resets_in),
                };
                // What will never pass is not asked often enough to be worth a place.
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

    /// What the store would say of `terms`, which this answers.
    fn count(&self, terms: &Terms, now: Timestamp) -> Count {
        let until = |moment: Timestamp| moment.millis().saturating_sub(now.millis());
        let (after, ends) = match self.what.get() {
            What::Full { resets_at, .. } => {
                let ends = Ends {
                    resets_in: until(resets_at),
                    retry_in: Some(until(self.expires_at)),
                };
                (terms.limit.into(), Some(ends))
            }
            What::Holds(count) => (count, None),
            What::Doubted => (terms.limit.into(), None),
        };
        Count {
            is_charged: false,
            is_cached: true,
            ends,
            ..Count::from(after)
        }
    }
}

impl Entries {
    fn get(&self, key: &[u8]) -> Option<&Over> {
        let young = self.young.counts.get(key);
        young.or_else(|| self.old.counts.get(key))
    }

    /// Returns how many entries had to go.
    fn insert(&mut self, key: &[u8], over: Over) -> usize {
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
            over.what.set(What::Doubted);
        }
    }

    /// Doubts what `batch` asks about by another limit, which may let pass what changes the rest.
    fn doubt_other_limits(&self, batch: &Batch) {
        for increment in batch.iter() {
            if let Some(over) = self.get(increment.key)
                && let What::Full { limit, method, .. } = over.what.get()
                && (limit, method) != (increment.limit, increment.method)
            {
                over.what.set(What::Doubted);
            }
        }
    }

    /// Moves into `late` the hits on the counters of `batch` that were refused here and are to count.
    fn take_uncounted(&self, batch: &Batch, now: Timestamp, late: &mut Option<Box<Batch>>) {
        for increment in batch.iter() {
            let Some(over) = self.get(increment.key) else {
                continue;
            };
            let hits = over.uncounted.take();
            if hits == 0 || over.expires_at <= now {
                continue;
            }
            let terms = Terms {
                hits: Hits::add(hits),
                // Nothing refuses them, and they refuse nothing.
                charge: Charge::Always,
                voice: Voice::Silent,
                limit: u32::MAX,
                descriptor: u32::MAX,
                ..increment.terms
            };
            let late = late.get_or_insert_default();
            late.append_one(Increment { terms, ..increment });
        }
    }
}

#[cfg(test)]
mod tests;
