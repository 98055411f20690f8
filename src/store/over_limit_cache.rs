//! Answers for counters that are known to be over their limit, without asking the store.
//!
//! A count only grows until its window ends, so what was over stays over. What is remembered is
//! the count, not the verdict: under a limit that was raised above it the store is asked again.
//! Hits that were refused without being counted are refused again until the moment at which they
//! could pass, as long as they are as many and the limit is the same.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use super::{Deadline, Store, StoreError};
use crate::{
    counter::{Batch, Charge, Count, CountList, Ends, Increment, Method, Terms},
    request::Hits,
    verdict::Verdict,
    window::Timestamp,
};

/// A store around a store. One for each worker.
#[derive(Debug)]
pub struct OverLimitCache<S> {
    store: S,
    /// Nothing if the cache is turned off.
    entries: Option<Mutex<Entries>>,
    /// Whether anything ever was over: as long as it was not, nobody has to look.
    was_over: AtomicBool,
    meters: Arc<Meter>,
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
#[derive(Clone, Copy, Debug)]
struct Over {
    count: u64,
    /// Until when this holds.
    expires_at: Timestamp,
    /// What was refused without being counted; nothing if the count itself is over.
    refused: Option<Refused>,
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    hits: Hits,
    limit: u32,
    method: Method,
    /// When the counter is empty, if its window does not say.
    resets_at: Option<Timestamp>,
}

/// What an entry takes beside its key, about.
const ENTRY_BYTES: usize = 112;

impl<S> OverLimitCache<S> {
    /// A cache of `max_bytes` at most; 0 turns it off.
    pub fn new(store: S, max_bytes: usize, meters: &Meters) -> Self {
        let entries = (max_bytes > 0).then(|| {
            Mutex::new(Entries {
                young: Generation::default(),
                old: Generation::default(),
                max_bytes,
            })
        });
        Self {
            store,
            entries,
            was_over: AtomicBool::new(false),
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
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let Some(entries) = &self.entries else {
            return self.store.add_into(counts, batch, now, deadline).await;
        };
        match self.look_up(entries, counts, batch, now) {
            Known::All => Ok(()),
            Known::None => self.ask(entries, counts, batch, now, deadline).await,
            Known::Some(known) => {
                // Boxed, for the way of all others is to stay small.
                let rest = self.add_the_rest(entries, batch, known, now, deadline);
                *counts = Box::pin(rest).await?;
                Ok(())
            }
        }
    }
}

impl<S: Store> OverLimitCache<S> {
    /// Asks the store what is not `known`.
    async fn add_the_rest(
        &self,
        entries: &Mutex<Entries>,
        batch: &Batch,
        known: Vec<Option<Count>>,
        now: Timestamp,
        deadline: Deadline,
    ) -> Result<CountList, StoreError> {
        let Asked { asked, mut counts } = Asked::new(batch, known);
        if !asked.is_empty() {
            let mut told = CountList::new();
            self.ask(entries, &mut told, &asked, now, deadline).await?;
            let missing = counts.iter_mut().zip(batch.iter());
            let missing = missing.filter(|(count, _)| count.is_none());
            for (((count, increment), asked), told) in missing.zip(asked.iter()).zip(told) {
                *count = Some(Count {
                    is_charged: told.is_charged && asked.hits == increment.hits,
                    ..told
                });
            }
        }
        counts
            .into_iter()
            .collect::<Option<_>>()
            .ok_or(StoreError::Refused)
    }

    /// Asks the store, and remembers what is over.
    async fn ask(
        &self,
        entries: &Mutex<Entries>,
        counts: &mut CountList,
        batch: &Batch,
        now: Timestamp,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let told = self.store.add_into(counts, batch, now, deadline).await;
        match told {
            Ok(()) => self.remember(entries, batch, counts, now),
            Err(_) => {
                // It may have been given back all the same.
                let mut entries = lock(entries);
                let given_back = batch.iter().filter(|one| one.hits.given_back() > 0);
                given_back.for_each(|increment| entries.forget(increment.key));
            }
        }
        told
    }
}

/// How many of the counters of a request are known to be over.
enum Known {
    None,
    All,
    /// Nothing stands for those that are not.
    Some(Vec<Option<Count>>),
}

/// A request of which some counters are known to be over.
struct Asked {
    /// What the store has to be asked all the same, in order.
    asked: Batch,
    /// What it need not be asked.
    counts: Vec<Option<Count>>,
}

impl Asked {
    fn new(batch: &Batch, known: Vec<Option<Count>>) -> Self {
        let increments: Vec<_> = batch.iter().collect();
        let judged = increments.iter().zip(&known);
        let verdict = Verdict::new(judged.map(|(one, known)| (&one.terms, known.is_some())));
        let mut asked = Batch::default();
        let mut counts = known;
        for (increment, count) in increments.into_iter().zip(&mut counts) {
            if count.is_some() {
                continue;
            }
            if increment.charge == Charge::Admitted && verdict.is_over(increment.descriptor) {
                // Not charged, and not what its descriptor is told by.
                *count = Some(Count {
                    is_charged: false,
                    ..Count::from(0)
                });
                continue;
            }
            let mut terms = increment.terms;
            if !verdict.charges(&terms, false) {
                terms.hits = Hits::add(0);
            }
            asked.append_one(Increment { terms, ..increment });
        }
        Self { asked, counts }
    }
}

impl<S> OverLimitCache<S> {
    /// The counters of `batch` that are known to be over: those of all of them go into `counts`.
    fn look_up(
        &self,
        entries: &Mutex<Entries>,
        counts: &mut CountList,
        batch: &Batch,
        now: Timestamp,
    ) -> Known {
        if !self.was_over.load(Relaxed) {
            self.meters.misses.fetch_add(batch.len() as u64, Relaxed);
            return Known::None;
        }
        let entries = lock(entries);
        let look_up = |increment: Increment<'_>| {
            let over = entries.get(increment.key)?;
            if over.expires_at <= now {
                self.meters.expired.fetch_add(1, Relaxed);
                return None;
            }
            over.answers(&increment.terms).then(|| over.count(now))
        };
        let mut known = SmallVec::<[_; 8]>::new();
        for increment in batch.iter() {
            known.push(look_up(increment));
        }
        let hits = known.iter().flatten().count();
        let misses = batch.len() - hits;
        self.meters.hits.fetch_add(hits as u64, Relaxed);
        self.meters.misses.fetch_add(misses as u64, Relaxed);
        if hits == 0 {
            Known::None
        } else if misses == 0 {
            counts.extend(known.into_iter().flatten());
            Known::All
        } else {
            Known::Some(known.into_vec())
        }
    }

    fn remember(&self, entries: &Mutex<Entries>, batch: &Batch, counts: &[Count], now: Timestamp) {
        let is_news = |(terms, count): (&Terms, &Count)| {
            terms.hits.given_back() > 0 || count.is_over(terms.limit, terms.hits)
        };
        // Mostly there is none, and no lock is needed to see that.
        if !batch.all_terms().zip(counts).any(is_news) {
            return;
        }
        let mut entries = lock(entries);
        for (increment, count) in batch.iter().zip(counts) {
            if increment.hits.given_back() > 0 {
                entries.forget(increment.key);
            } else if count.is_degraded {
                // The store may know better as soon as it answers.
            } else if let Some(over) = Over::new(&increment.terms, *count, now) {
                if over.refused.is_some() && is_repeated(batch, &increment) {
                    continue;
                }
                self.was_over.store(true, Relaxed);
                let evicted = entries.insert(increment.key, over) as u64;
                self.meters.evicted.fetch_add(evicted, Relaxed);
            }
        }
    }
}

/// Whether it may have been refused for other hits of the same request, which the next one need
/// not have.
fn is_repeated(batch: &Batch, increment: &Increment<'_>) -> bool {
    let same = |other: &Increment<'_>| other.key == increment.key;
    increment.charge == Charge::Admitted && batch.iter().filter(same).count() > 1
}

impl Over {
    /// What is known after `terms` led to `count`, if it is over and for how long that lasts.
    fn new(terms: &Terms, count: Count, now: Timestamp) -> Option<Self> {
        if !count.is_over(terms.limit, terms.hits) {
            return None;
        }
        let after = |millis| now.plus(Duration::from_millis(millis));
        let is_window = terms.method == Method::Window;
        let refused = (!is_window || !count.is_charged).then(|| Refused {
            hits: terms.hits,
            limit: terms.limit,
            method: terms.method,
            resets_at: count.ends.map(|ends| after(ends.resets_in)),
        });
        Some(Self {
            count: count.after,
            expires_at: match count.ends {
                None => terms.expires_at,
                // What will never pass is not asked often enough to be worth a place.
                Some(ends) => after(ends.retry_in?),
            },
            refused,
        })
    }

    fn answers(&self, terms: &Terms) -> bool {
        match self.refused {
            // What is given back has to reach the store.
            _ if terms.hits.given_back() > 0 => false,
            None => self.count > u64::from(terms.limit),
            Some(Refused {
                hits,
                limit,
                method,
                ..
            }) => (hits, limit, method) == (terms.hits, terms.limit, terms.method),
        }
    }

    fn count(&self, now: Timestamp) -> Count {
        let until = |moment: Timestamp| moment.millis().saturating_sub(now.millis());
        let resets_at = self.refused.and_then(|refused| refused.resets_at);
        Count {
            after: self.count,
            is_charged: false,
            is_cached: true,
            is_degraded: false,
            ends: resets_at.map(|resets_at| Ends {
                resets_in: until(resets_at),
                retry_in: Some(until(self.expires_at)),
            }),
        }
    }
}

impl Entries {
    fn get(&self, key: &[u8]) -> Option<Over> {
        let young = self.young.counts.get(key);
        young.or_else(|| self.old.counts.get(key)).copied()
    }

    /// Returns how many entries had to go.
    fn insert(&mut self, key: &[u8], over: Over) -> usize {
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

    fn forget(&mut self, key: &[u8]) {
        for generation in [&mut self.young, &mut self.old] {
            if generation.counts.remove(key).is_some() {
                generation.bytes -= key.len() + ENTRY_BYTES;
            }
        }
    }
}

/// A panic elsewhere cannot leave the entries half changed: at worst their size is off.
fn lock(entries: &Mutex<Entries>) -> MutexGuard<'_, Entries> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        counter::{Counting, Identity},
        limit::{Algorithm, Limit},
        request::Entry,
        store::memory::MemoryStore,
        window::Unit,
    };

    const MINUTE: Timestamp = Timestamp::from_secs(60);

    struct Fixture {
        cache: OverLimitCache<Arc<MemoryStore>>,
        store: Arc<MemoryStore>,
    }

    fn fixture(max_bytes: usize) -> Fixture {
        let store = Arc::new(MemoryStore::new(1_000));
        Fixture {
            cache: OverLimitCache::new(store.clone(), max_bytes, &Meters::default()),
            store,
        }
    }

    fn batch(counters: &[(&str, u32)], hits: Hits, now: Timestamp) -> Batch {
        let mut batch = Batch::default();
        let mut identity = Identity::default();
        for (value, requests_per_unit) in counters {
            let entry = Entry {
                key: b"k",
                value: value.as_bytes(),
            };
            let limit = Limit::fixed(*requests_per_unit, Unit::Minute);
            identity.set(b"d", &[entry], &[]);
            batch.push(&identity, &limit, now, hits);
        }
        batch
    }

    fn add<S: Store>(store: &S, batch: &Batch, now: Timestamp) -> Vec<(u64, bool)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let counts = runtime.block_on(store.add(batch, now)).unwrap();
        counts
            .iter()
            .map(|count| (count.after, count.is_cached))
            .collect()
    }

    impl Fixture {
        #[track_caller]
        fn check(&self, counters: &[(&str, u32)], hits: Hits, expected: &[(u64, bool)]) {
            let now = Timestamp::from_secs(0);
            assert_eq!(add(&self.cache, &batch(counters, hits, now), now), expected);
        }

        fn stored(&self, value: &str) -> u64 {
            let now = Timestamp::from_secs(0);
            add(&self.store, &batch(&[(value, 1)], Hits::add(0), now), now)[0].0
        }
    }

    #[test]
    fn what_is_over_is_answered_without_the_store_until_its_window_ends() {
        let fixture = fixture(10_000);
        fixture.check(&[("a", 1)], Hits::ONE, &[(1, false)]);
        fixture.check(&[("a", 1)], Hits::ONE, &[(2, false)]);
        fixture.check(&[("a", 1)], Hits::add(5), &[(2, true)]);
        fixture.check(&[("a", 1)], Hits::add(0), &[(2, true)]);
        assert_eq!(fixture.stored("a"), 2);
        let next = batch(&[("a", 1)], Hits::ONE, MINUTE);
        assert_eq!(add(&fixture.cache, &next, MINUTE), [(1, false)]);
    }

    #[test]
    fn a_raised_limit_asks_the_store_again() {
        let fixture = fixture(10_000);
        fixture.check(&[("a", 1)], Hits::add(2), &[(2, false)]);
        fixture.check(&[("a", 5)], Hits::ONE, &[(3, false)]);
        fixture.check(&[("a", 2)], Hits::ONE, &[(4, false)]);
        fixture.check(&[("a", 3)], Hits::ONE, &[(4, true)]);
    }

    #[test]
    fn the_others_of_a_request_are_counted() {
        let fixture = fixture(10_000);
        fixture.check(&[("a", 1)], Hits::add(2), &[(2, false)]);
        fixture.check(&[("b", 9), ("a", 1)], Hits::ONE, &[(1, false), (2, true)]);
        assert_eq!((fixture.stored("a"), fixture.stored("b")), (2, 1));
    }

    #[test]
    fn unless_one_that_is_over_stops_them() {
        let fixture = fixture(10_000);
        fixture.check(&[("a", 1)], Hits::add(2), &[(2, false)]);
        let now = Timestamp::from_secs(0);
        let mut stopping = Batch::default();
        for increment in batch(&[("b", 9), ("a", 1)], Hits::ONE, now).iter() {
            let terms = Terms {
                charge: Charge::Stopping,
                ..increment.terms
            };
            stopping.append_one(Increment { terms, ..increment });
        }
        assert_eq!(add(&fixture.cache, &stopping, now), [(0, false), (2, true)]);
        assert_eq!(fixture.stored("b"), 0);
    }

    #[test]
    fn what_is_given_back_reaches_the_store_and_is_believed() {
        let fixture = fixture(10_000);
        fixture.check(&[("a", 1)], Hits::add(2), &[(2, false)]);
        fixture.check(&[("a", 1)], Hits::give_back(2), &[(0, false)]);
        fixture.check(&[("a", 1)], Hits::ONE, &[(1, false)]);
    }

    #[test]
    fn memory_is_bounded() {
        let fixture = fixture(2_000);
        let values: Vec<String> = (0..200).map(|number| format!("{number}")).collect();
        for value in &values {
            fixture.check(&[(value, 1)], Hits::add(2), &[(2, false)]);
        }
        let entries = lock(fixture.cache.entries.as_ref().unwrap());
        assert!(entries.young.bytes + entries.old.bytes <= 2_000);
        assert!(entries.young.counts.len() + entries.old.counts.len() > 5);
        drop(entries);
        // The last one is still known.
        fixture.check(&[("199", 1)], Hits::ONE, &[(2, true)]);
    }

    /// One limit a minute of a request.
    #[derive(Clone, Debug)]
    struct One {
        descriptor: u32,
        algorithm: Algorithm,
        requests_per_unit: u32,
        charge: Charge,
        hits: Hits,
    }

    /// One hit against a limit of two.
    fn one(algorithm: Algorithm, charge: Charge) -> One {
        One {
            descriptor: 0,
            algorithm,
            requests_per_unit: 2,
            charge,
            hits: Hits::ONE,
        }
    }

    /// What is refused without being counted, in every way.
    fn refusing() -> [One; 5] {
        [
            one(Algorithm::SlidingWindow, Charge::Within),
            one(Algorithm::SlidingLog, Charge::Within),
            one(Algorithm::TokenBucket { burst: 2 }, Charge::Within),
            one(Algorithm::FirstHit, Charge::Admitted),
            one(Algorithm::FixedWindow, Charge::Admitted),
        ]
    }

    impl One {
        fn hits(&self, hits: Hits) -> Self {
            Self {
                hits,
                ..self.clone()
            }
        }

        fn within(&self, requests_per_unit: u32) -> Self {
            Self {
                requests_per_unit,
                ..self.clone()
            }
        }
    }

    /// A store that tells how often it was asked.
    #[derive(Debug)]
    struct Asking {
        store: MemoryStore,
        times: AtomicU64,
    }

    impl Store for Asking {
        async fn add_into(
            &self,
            counts: &mut CountList,
            batch: &Batch,
            now: Timestamp,
            deadline: Deadline,
        ) -> Result<(), StoreError> {
            self.times.fetch_add(1, Relaxed);
            self.store.add_into(counts, batch, now, deadline).await
        }
    }

    struct Door(OverLimitCache<Asking>);

    impl Door {
        fn new() -> Self {
            let store = Asking {
                store: MemoryStore::new(1_000),
                times: AtomicU64::new(0),
            };
            Self(OverLimitCache::new(store, 10_000, &Meters::default()))
        }

        fn send_all(&self, limits: &[One], millis: u64) -> CountList {
            let now = Timestamp::from_millis(millis);
            let mut batch = Batch::default();
            let mut identity = Identity::default();
            for one in limits {
                let value = one.descriptor.to_be_bytes();
                let entry = Entry {
                    key: b"k",
                    value: &value,
                };
                identity.set(b"d", &[entry], &[]);
                let limit = Limit {
                    algorithm: match &one.algorithm {
                        Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                            burst: one.requests_per_unit,
                        },
                        other => other.clone(),
                    },
                    ..Limit::fixed(one.requests_per_unit, Unit::Minute)
                };
                let counting = Counting {
                    charge: one.charge,
                    descriptor: one.descriptor,
                    ..Counting::from(one.hits)
                };
                batch.push(&identity, &limit, now, counting);
            }
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            runtime.block_on(self.0.add(&batch, now)).unwrap()
        }

        fn send(&self, one: &One, millis: u64) -> Count {
            self.send_all(std::slice::from_ref(one), millis)[0]
        }

        fn times_asked(&self) -> u64 {
            self.0.store.times.load(Relaxed)
        }
    }

    /// A door at which `one` was just refused, a second after two hits.
    fn refused(one: &One) -> Door {
        let door = Door::new();
        assert!(door.send(&one.hits(Hits::add(2)), 1_000).is_charged);
        let told = door.send(one, 2_000);
        assert!(told.is_over(2, Hits::ONE) && !told.is_charged && !told.is_cached);
        door
    }

    #[test]
    fn what_was_refused_uncounted_is_answered_here_until_it_could_pass_and_no_longer() {
        for one in refusing() {
            let door = refused(&one);
            let asked = door.times_asked();
            // All of a window, of the period from the first hit, half of it for a token, and the
            // half of the next window in which a half of two leaves room for one.
            let passes_at = match one.algorithm {
                Algorithm::FixedWindow => 60_000,
                Algorithm::SlidingWindow => 90_000,
                Algorithm::TokenBucket { .. } => 31_000,
                _ => 61_000,
            };
            let told = door.send(&one, passes_at - 1);
            assert!(told.is_cached && told.is_over(2, Hits::ONE), "{one:?}");
            assert_eq!(door.times_asked(), asked);
            if let Some(ends) = told.ends {
                assert_eq!(ends.retry_in, Some(1), "{one:?}");
            }
            let told = door.send(&one, passes_at);
            assert!(told.is_charged && !told.is_cached, "{one:?}");
        }
    }

    #[test]
    fn another_number_of_hits_or_another_limit_asks_the_store() {
        for one in refusing() {
            let door = refused(&one);
            assert!(door.send(&one, 2_000).is_cached);
            assert!(!door.send(&one.hits(Hits::add(2)), 2_000).is_cached);
            let raised = door.send(&one.within(3), 2_000);
            assert!(raised.is_charged && !raised.is_cached, "{one:?}");
        }
    }

    #[test]
    fn a_look_beside_what_was_refused_is_told_the_truth() {
        for one in refusing() {
            let door = refused(&one);
            let told = door.send(&one.hits(Hits::add(0)), 2_000);
            assert_eq!((told.after, told.is_cached), (2, false), "{one:?}");
            assert!(!told.is_over(2, Hits::add(0)));
        }
    }

    #[test]
    fn what_is_given_back_makes_room_at_once() {
        for one in refusing() {
            let door = refused(&one);
            let told = door.send(&one.hits(Hits::give_back(1)), 2_000);
            assert!(told.is_charged && !told.is_cached, "{one:?}");
            assert!(door.send(&one, 2_000).is_charged, "{one:?}");
        }
    }

    #[test]
    fn a_rule_of_which_one_limit_is_known_to_refuse_does_not_touch_the_store() {
        let small = one(Algorithm::SlidingLog, Charge::Admitted);
        let large = one(Algorithm::FixedWindow, Charge::Admitted).within(9);
        let door = Door::new();
        for _ in 0..3 {
            door.send_all(&[small.clone(), large.clone()], 1_000);
        }
        let asked = door.times_asked();
        let told = door.send_all(&[small, large.clone()], 1_000);
        assert_eq!(door.times_asked(), asked);
        assert!(told.iter().all(|count| !count.is_charged));
        assert_eq!(door.send(&large.hits(Hits::add(0)), 1_000).after, 2);
    }

    #[test]
    fn another_descriptor_of_such_a_request_is_only_looked_at() {
        let small = one(Algorithm::SlidingLog, Charge::Admitted);
        let large = One {
            descriptor: 1,
            ..one(Algorithm::FixedWindow, Charge::Admitted).within(9)
        };
        let door = Door::new();
        for _ in 0..4 {
            door.send_all(&[small.clone(), large.clone()], 1_000);
        }
        let told = door.send_all(&[small, large.clone()], 1_000);
        assert!(told[0].is_cached);
        assert_eq!((told[1].after, told[1].is_charged), (2, false));
        assert_eq!(door.send(&large.hits(Hits::add(0)), 1_000).after, 2);
    }

    #[test]
    fn hits_that_were_refused_for_others_of_their_request_can_pass_alone() {
        for one in refusing() {
            let one = One {
                charge: Charge::Admitted,
                ..one
            };
            let door = Door::new();
            assert!(door.send(&one, 1_000).is_charged);
            let told = door.send_all(&[one.clone(), one.clone()], 1_000);
            assert!(told.iter().all(|count| !count.is_charged), "{one:?}");
            assert!(told[1].is_over(2, Hits::ONE), "{one:?}");
            assert!(door.send(&one, 1_000).is_charged, "{one:?}");
        }
    }
}
