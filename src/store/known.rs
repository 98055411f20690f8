//! The knowledge of a worker that needs no store: which keys have a time to live, and which counters are over.
//!
//! Both are caches: any entry may go at any time, and costs a command when it has gone. Keys are hashed with a seed of
//! this process.
//!
//! A counter that is known to be over is answered here and not sent. Of the other counters of its request the store is
//! asked, if each of them is judged by itself, or is not charged for that reason in the reference's stop mode; else it
//! is asked of the whole request. An answer is the one that the store would give, for these reasons:
//!
//! - A full counter with its window in its key stays full until then, and is remembered by its count, so that a higher
//!   limit asks the store. Any other is only known to refuse one hit under the same limit, until one could pass.
//! - A refusal that was not charged is remembered only if nothing remained, because a remainder can change; and not if
//!   the request, or that of another caller, may have been judged in several places: a charge at one place may be given
//!   back.
//! - The last answer of the store takes the place of what was known. Hits that are given back make the tables of all
//!   workers forget the counter, and answers of the store that may be older are not remembered.
//! - Hits that are refused here although they would count are not added to the store, but their number is kept. Hits
//!   that are given back are first taken off these numbers, of all workers, and only the rest is sent: a caller that
//!   gives back hits that were refused makes no room for others.
//!
//! Other replicas can give back too, and keys can be deleted. So the store, if it can be asked, is asked about each
//! counter once a second. A limit that is raised does not meet the hits that were refused here. No clock that can be
//! set has a part in this.

use std::{
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use foldhash::{fast, quality};

use super::contract::{Deadline, Store, StoreError, StoreState};
use crate::{
    core::{
        charging::charges_refused,
        counter::{
            Batch, Charge, CounterKind, CounterState, CounterStates, Increment, IncrementSpec,
            Operation,
        },
        window::{SteadyTime, Timestamp},
    },
    foundation::{generations::Generations, lock::lock, sample::SampleWriter},
};

#[cfg(test)]
mod tests;

/// How long the store is not asked about a counter that is over.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// The approximate size of an entry in a map that is half full, in bytes.
const ENTRY_BYTES: usize = 2 * size_of::<(u64, KnownCounter)>();

/// The tables of all workers.
#[derive(Debug, Default)]
pub struct KnownTables {
    hasher: quality::RandomState,
    all: Mutex<Vec<Arc<Known>>>,
    /// How often counters were forgotten.
    forgotten: AtomicU64,
}

/// The table of one worker. No other thread writes near it with each request.
#[derive(Debug)]
#[repr(align(128))]
pub struct Known {
    hasher: quality::RandomState,
    ends: Mutex<KeysWithEnd>,
    /// `None` if no counter that is over is remembered.
    over: Option<Mutex<Generations<u64, KnownCounter, fast::RandomState>>>,
    tallies: Tallies,
}

#[derive(Debug, Default)]
struct Tallies {
    places: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
    /// Entries after the last change; until the first one no request has to look.
    entries: AtomicU64,
}

/// Keys that have a time to live, each in one place. Each is forgotten after a while: another worker, or a failover,
/// may have taken the time to live without notice.
#[derive(Debug)]
pub(crate) struct KeysWithEnd {
    /// Hashes of both key and place.
    hashes: Generations<u64, (), fast::RandomState>,
    /// When the young generation began.
    since: Instant,
}

impl KeysWithEnd {
    /// About 5 MB per generation at most, for 130,000 descriptors with two windows.
    const GENERATION: usize = 1 << 18;

    /// A key is trusted for once to twice as long.
    const TRUSTED: Duration = Duration::from_secs(15);

    pub(crate) fn contains(&self, place: u64, key: u64) -> bool {
        self.hashes.get(&(place ^ key)).is_some()
    }
}

/// The knowledge of one counter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct KnownCounter {
    /// `None` if it may have room.
    over: Option<Over>,
    /// Hits that were refused here, and that would count in the store if it had been asked.
    uncounted: u64,
    /// The number of the last time that it was forgotten: answers to older questions are not remembered.
    forgotten: u64,
}

/// A counter that is over.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Over {
    /// The state that the store answered with.
    count: CounterState,
    limit: u64,
    method: CounterKind,
    /// When the request arrived that it answered.
    at: SteadyTime,
}

impl Over {
    /// The fact that follows from `count` after `spec`, if it is of use. `is_one_step` is whether every request is
    /// judged in one step.
    fn new(
        spec: &IncrementSpec,
        count: CounterState,
        is_one_step: bool,
        at: SteadyTime,
    ) -> Option<Self> {
        let is_admitted = spec.operation == Operation::Add(Charge::Admitted);
        // Where slices are used, a count that falls meanwhile is noticed soon enough.
        let may_be_given_back = is_admitted && !is_one_step && !spec.is_sliced;
        let has_rest = count.after < spec.limit;
        let is_known = match (spec.method, count.ends) {
            _ if !count.is_charged && (may_be_given_back || has_rest) => false,
            // A slot can be free at any moment.
            (CounterKind::Slots { .. }, _) => false,
            (_, None) => true,
            // Hits that have to count although they are refused could come too late, into the next window. One that
            // never passes is not asked for often enough.
            (_, Some(ends)) => !count.is_charged && spec.added() == 1 && ends.retry_in.is_some(),
        };
        let (limit, method) = (spec.limit, spec.method);
        let is_over = count.is_over(limit, spec.added());
        (is_over && is_known).then_some(Self {
            count,
            limit,
            method,
            at,
        })
    }

    /// Whether the store would refuse `increment` of `batch`, unless hits can pass again.
    fn refuses(&self, batch: &Batch, one: &Increment<'_>) -> bool {
        let same = (1, self.limit, self.method);
        match self.count.ends {
            // A look is over only if the count is.
            None => self.count.after.saturating_add(one.added().min(1)) > one.limit,
            Some(_) => (one.added(), one.limit, one.method) == same && !is_repeated(batch, one),
        }
    }

    /// The count that the store would return; `None` once hits can pass again.
    fn count(&self, now: SteadyTime) -> Option<CounterState> {
        let passed = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        let mut count = CounterState {
            is_charged: false,
            is_cached: true,
            ..self.count
        };
        // Without these it is full until its window ends, which is in its key.
        if let Some(ends) = &mut count.ends {
            ends.resets_in = ends.resets_in.saturating_sub(passed);
            let passes_in = ends.retry_in?.saturating_sub(passed);
            ends.retry_in = (passes_in > 0).then_some(passes_in);
            ends.retry_in?;
        }
        Some(count)
    }
}

/// Whether a counter occurs in the request more than once. Each of its counts then concerns both.
fn is_repeated(batch: &Batch, increment: &Increment<'_>) -> bool {
    let same = |other: &Increment<'_>| other.key == increment.key;
    batch.len() > 1 && batch.iter().filter(same).count() > 1
}

fn is_over((spec, count): (&IncrementSpec, &CounterState)) -> bool {
    count.is_over(spec.limit, spec.added())
}

fn has_give_backs(batch: &Batch) -> bool {
    batch.all_specs().any(|spec| spec.taken_off() > 0)
}

impl KnownTables {
    /// The table of a worker, with room for `over_bytes` of counters that are over; with 0 none is remembered.
    pub fn new_worker(&self, over_bytes: usize) -> Arc<Known> {
        let known = Arc::new(Known {
            hasher: self.hasher,
            ends: Mutex::new(KeysWithEnd {
                hashes: Generations::new(KeysWithEnd::GENERATION),
                since: Instant::now(),
            }),
            // Two generations share the bound.
            over: (over_bytes > 0).then(|| Mutex::new(Generations::new(over_bytes / 2))),
            tallies: Tallies::default(),
        });
        lock(&self.all).push(known.clone());
        known
    }

    /// Makes all workers ask the store about the counters to which `batch` gives back, and not believe the answers to
    /// older questions.
    fn forget(&self, batch: &Batch) {
        let number = self.forgotten.fetch_add(1, SeqCst) + 1;
        for known in lock(&self.all).iter() {
            for increment in batch.iter().filter(|one| one.taken_off() > 0) {
                known.change(increment.key, |entry| {
                    (entry.over, entry.forgotten) = (None, number);
                });
            }
        }
    }

    /// `batch`, in which hits that are given back are first taken off those that were refused here. It looks at a
    /// counter for which none are left.
    fn without_refused(&self, batch: &Batch) -> Box<Batch> {
        let mut rest = Box::<Batch>::default();
        for mut increment in batch.iter() {
            // A bucket never counts refused hits.
            if increment.taken_off() > 0 && !increment.ends_reservation() {
                let hits = &mut increment.spec.hits;
                for known in lock(&self.all).iter() {
                    known.change(increment.key, |entry| {
                        let taken = entry.uncounted.min(*hits);
                        (entry.uncounted, *hits) = (entry.uncounted - taken, *hits - taken);
                    });
                }
                if *hits == 0 {
                    increment.spec.operation = Operation::Look;
                }
            }
            rest.append_one(increment);
        }
        rest
    }

    /// Passes on the statistics of all workers together.
    pub(crate) fn samples(&self, list: &mut SampleWriter<'_>) {
        let all = lock(&self.all);
        let sum = |pick: fn(&Tallies) -> &AtomicU64| -> u64 {
            let each = all.iter().map(|known| pick(&known.tallies).load(Relaxed));
            each.sum()
        };
        let (hits, misses) = (sum(|own| &own.hits), sum(|own| &own.misses));
        for (name, value) in [
            ("ratelimit.localcache.hitCount", hits),
            ("ratelimit.localcache.missCount", misses),
            ("ratelimit.localcache.lookupCount", hits + misses),
            ("ratelimit.localcache.expiredCount", sum(|own| &own.expired)),
            (
                "ratelimit.localcache.evacuateCount",
                sum(|own| &own.evicted),
            ),
            ("ratelimit.localcache.entryCount", sum(|own| &own.entries)),
        ] {
            list.gauge(name, &[], value);
        }
    }
}

impl Known {
    /// A hash that no client can foresee.
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// A place where no key is known to have a time to live, for each new connection: another server may have taken
    /// that of the one before, without its last seconds.
    pub(crate) fn new_place(&self) -> u64 {
        self.hasher
            .hash_one(self.tallies.places.fetch_add(1, Relaxed))
    }

    /// The keys that are known to have a time to live.
    pub(crate) fn ends(&self, now: Instant) -> MutexGuard<'_, KeysWithEnd> {
        let mut ends = lock(&self.ends);
        while now.saturating_duration_since(ends.since) >= KeysWithEnd::TRUSTED {
            ends.hashes.age();
            ends.since += KeysWithEnd::TRUSTED;
        }
        ends
    }

    /// Takes over that keys have a time to live, by their hashes.
    pub(crate) fn set_ends(&self, place: u64, keys: impl Iterator<Item = u64>) {
        let mut ends = lock(&self.ends);
        keys.for_each(|key| _ = ends.hashes.insert(&(place ^ key), (), 1));
    }

    /// Changes what is known of a counter.
    fn change(&self, key: &[u8], change: impl FnOnce(&mut KnownCounter)) {
        let Some(over) = &self.over else { return };
        let (hash, mut over) = (self.hash(key), lock(over));
        let before = over.get(&hash).copied().unwrap_or_default();
        let mut entry = before;
        change(&mut entry);
        if entry != before {
            let evicted = over.insert(&hash, entry, ENTRY_BYTES).unwrap_or(0) as u64;
            let tallies = &self.tallies;
            tallies.evicted.fetch_add(evicted, Relaxed);
            tallies.entries.store(over.len() as u64, Relaxed);
        }
    }
}

/// A store of one worker, behind what the worker knows of it.
#[derive(Debug)]
pub(crate) struct KnownFirst<S> {
    pub(crate) store: S,
    pub(crate) known: Arc<Known>,
    pub(crate) all: Arc<KnownTables>,
}

impl<S: Store> Store for KnownFirst<S> {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        if self.known.over.is_none() || deadline.asks_store {
            return self.store.add_into(counts, batch, now, deadline).await;
        }
        let rest = has_give_backs(batch).then(|| self.all.without_refused(batch));
        let batch = rest.as_deref().unwrap_or(batch);
        let (forgotten, at) = (self.all.forgotten.load(SeqCst), deadline.steady());
        let gives_back = rest.is_some() && has_give_backs(batch);
        let (known, has_entries) = if gives_back {
            self.all.forget(batch);
            (0, true)
        } else {
            self.look_up(counts, batch, at)
        };
        if known == 0 {
            let answered = self.store.add_into(counts, batch, now, deadline).await;
            if gives_back {
                // After an error too: the hits may have been given back nevertheless.
                self.all.forget(batch);
            }
            answered?;
        } else if known < batch.len() {
            // Boxed, or the future of every call would reserve its space.
            Box::pin(self.ask_of_others(counts, batch, now, deadline)).await?;
        }
        // Mostly none ever is over, and this check needs no lock.
        if !has_entries && !batch.all_specs().zip(&*counts).any(is_over) {
            return Ok(());
        }
        self.remember(counts, batch, forgotten, at);
        Ok(())
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }
}

impl<S: Store> KnownFirst<S> {
    /// Puts what is known into the places of `counts`, which have `is_cached` then, and returns how many these are: 0
    /// and no counts if the store has to be asked of the whole request. Returns too whether some of it have entries.
    fn look_up(&self, counts: &mut CounterStates, batch: &Batch, now: SteadyTime) -> (usize, bool) {
        let tallies = &self.known.tallies;
        let (mut known, mut has_entries) = (0, false);
        let over = self.known.over.as_ref();
        if let Some(over) = over.filter(|_| tallies.entries.load(Relaxed) > 0) {
            let (entries, mut is_apart) = (lock(over), true);
            for increment in batch.iter() {
                let entry = entries.get(&self.known.hash(increment.key));
                has_entries |= entry.is_some();
                let over = entry.and_then(|entry| entry.over).filter(|over| {
                    let is_believed = now.since(over.at) < BELIEVED_FOR;
                    over.refuses(batch, &increment) && (is_believed || !self.store.state().is_well)
                });
                let count = over.and_then(|over| over.count(now));
                let has_ended = over.is_some() && count.is_none();
                tallies.expired.fetch_add(has_ended.into(), Relaxed);
                known += usize::from(count.is_some());
                // Others are judged by themselves, or are not charged because this one is over.
                is_apart &= match increment.operation {
                    Operation::Add(charge) => charge != Charge::Admitted,
                    Operation::Look | Operation::GiveBack | Operation::Reset => false,
                };
                counts.push(count.unwrap_or(CounterState::from(0)));
            }
            if known == 0 || known < batch.len() && !is_apart {
                counts.clear();
                known = 0;
            }
        }
        tallies.hits.fetch_add(known as u64, Relaxed);
        tallies
            .misses
            .fetch_add((batch.len() - known) as u64, Relaxed);
        (known, has_entries)
    }

    /// Asks the store of those counters that are not in `counts`.
    async fn ask_of_others(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let mut others = Batch::default();
        for (mut increment, count) in batch.iter().zip(&*counts) {
            if increment.operation == Operation::Add(Charge::Stopping) {
                increment.spec = increment.spec.look();
            }
            if !count.is_cached {
                others.append_one(increment);
            }
        }
        let mut answers = CounterStates::new();
        let answered = self.store.add_into(&mut answers, &others, now, deadline);
        answered.await?;
        let unknown = counts.iter_mut().filter(|count| !count.is_cached);
        unknown
            .zip(answers)
            .for_each(|(count, answer)| *count = answer);
        Ok(())
    }

    /// Takes the counts of a request into account, to which counters had been `forgotten` so often when it arrived.
    fn remember(&self, counts: &[CounterState], batch: &Batch, forgotten: u64, at: SteadyTime) {
        let is_one_step = self.store.state().is_one_step;
        for (increment, count) in batch.iter().zip(counts) {
            // A store that does not reply may know better as soon as it does.
            if count.is_degraded {
                continue;
            }
            let is_refused = !count.is_charged && is_over((&increment, count));
            let is_about_others = !count.is_charged && is_repeated(batch, &increment);
            let over = Over::new(&increment, *count, is_one_step, at);
            self.known.change(increment.key, |entry| {
                if is_refused && charges_refused(&increment) {
                    entry.uncounted = entry.uncounted.saturating_add(increment.hits);
                }
                if count.is_cached || is_about_others || entry.forgotten > forgotten {
                    return;
                }
                if count.is_charged && count.after <= increment.added() && count.ends.is_none() {
                    // It was reset or deleted, with all hits that were refused here.
                    entry.uncounted = 0;
                }
                // A look by another limit has changed the state of an algorithm.
                let is_same = |known: Over| {
                    (known.limit, known.method) == (increment.limit, increment.method)
                };
                if increment.hits > 0 || !entry.over.is_none_or(is_same) {
                    entry.over = over;
                }
            });
        }
    }
}
