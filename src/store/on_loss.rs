//! What is answered while a store does not.
//!
//! Each rule says so for itself (`on_store_loss`). Who counts locally begins with the last counts
//! that this worker saw, keeps to this replica's share of each limit, and adds what it let pass to
//! the store once that answers again.
//!
//! What is counted locally and in the store: hits that were on their way when the store fell silent
//! and that it counted all the same. They are as many as the requests that got no answer, one
//! pipeline for each connection, and the budget is that much smaller. What is counted nowhere: a
//! batch of hits handed back that the store did not confirm (`forgotten`), for it is not sent twice.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::{Deadline, Store, StoreError, memory::MemoryStore};
use crate::{
    counter::{Batch, Charge, Count, CountList, Ends, Increment, Method, Terms},
    limit::OnStoreLoss,
    request::Hits,
    window::Timestamp,
};

/// A store around a store. One for each worker; what is counted meanwhile is the whole process's.
#[derive(Debug)]
pub struct OnLoss<S> {
    store: S,
    loss: Arc<Loss>,
    recent: Mutex<Recent>,
}

/// What all workers of a process share of one store.
#[derive(Debug)]
pub struct Loss {
    /// What the log calls the store.
    name: &'static str,
    max_counters: usize,
    is_lost: AtomicBool,
    /// When the store last failed to answer, in milliseconds since 1970.
    failed_at: AtomicU64,
    local: Mutex<Local>,
    has_spent: AtomicBool,
    /// There is something to do when the store is back.
    wanted: Notify,
    meters: Arc<Meters>,
}

/// What the losses of all stores came to.
#[derive(Debug, Default)]
pub struct Meters {
    /// How many replicas share the limits; 0 until that is known, and then taken as 1.
    pub replicas: AtomicU32,
    /// Stores that do not answer now.
    pub lost: AtomicU64,
    /// Requests that were answered without the store.
    pub degraded: AtomicU64,
    /// Requests that the store did not answer, with an error or without, by [`CAUSES`].
    causes: [AtomicU64; CAUSES.len()],
    /// Hits that were counted locally and added to the store afterwards.
    pub handed_back: AtomicU64,
    /// Hits that were counted locally and could not be added afterwards.
    pub forgotten: AtomicU64,
}

/// Why a store does not answer a request, and what statistics call it.
const CAUSES: [(StoreError, &str); 5] = [
    (StoreError::Timeout, "timeout"),
    (StoreError::Unreachable, "unreachable"),
    (StoreError::Refused, "refused"),
    (StoreError::Overloaded, "overloaded"),
    (StoreError::Full, "full"),
];

impl Meters {
    /// A request that the store did not answer.
    pub fn record(&self, error: StoreError) {
        let known = CAUSES.iter().zip(&self.causes);
        for (_, count) in known.filter(|((cause, _), _)| *cause == error) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// How many requests the store did not answer, by cause.
    pub fn causes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.causes.iter().map(|count| count.load(Relaxed));
        CAUSES.iter().map(|(_, name)| *name).zip(counts)
    }
}

/// What one loss comes to. Bounded: a counter that finds no room is judged by what was known of it
/// before, as if it were asked for the first time each time, and what it lets pass is forgotten.
#[derive(Debug)]
struct Local {
    counters: Arc<MemoryStore>,
    /// Counters that have begun with what was known of them, and what they let pass since.
    begun: HashMap<Arc<[u8]>, Option<Spent>>,
    /// The same by the second in which they end.
    ends: BTreeMap<u64, Vec<Arc<[u8]>>>,
    /// The most of them.
    max: usize,
    was_full: bool,
}

#[derive(Debug)]
struct Spent {
    terms: Terms,
    /// Negative if more was given back than spent.
    hits: i64,
}

/// Increments of one request to the store when it is back: decisions wait behind them. The first request
/// has one, and each has twice as many as the last: a store that is back only for a moment costs little.
const HANDED_AT_ONCE: usize = 200;

/// How often a store that is lost is looked at. A look asks nobody.
const LOOK: Duration = Duration::from_millis(10);

/// A store that fails some requests while its servers are well, as a full Redis does, is back
/// when none failed for so long.
const QUIET: Duration = Duration::from_secs(1);

/// Counters that have ended and are forgotten for the sake of one request that needs room: few, for others
/// wait meanwhile.
const FORGOTTEN_AT_ONCE: usize = 64;

impl Local {
    fn new(max_counters: usize) -> Self {
        Self {
            counters: Arc::new(MemoryStore::new(max_counters)),
            begun: HashMap::new(),
            ends: BTreeMap::new(),
            max: max_counters,
            was_full: false,
        }
    }

    /// Whether there is room for a counter that is not there yet. Forgets some that have ended if need be.
    fn has_room(&mut self, now: Timestamp) -> bool {
        if self.begun.len() < self.max {
            return true;
        }
        for _ in 0..FORGOTTEN_AT_ONCE {
            let Some(mut first) = self
                .ends
                .first_entry()
                .filter(|end| *end.key() <= now.secs())
            else {
                break;
            };
            match first.get_mut().pop() {
                Some(key) => {
                    self.begun.remove(&key);
                }
                None => {
                    first.remove();
                }
            }
        }
        if self.begun.len() < self.max {
            return true;
        }
        if !self.was_full {
            self.was_full = true;
            tracing::warn!(
                max = self.max,
                "no room to count more locally: other counters are judged by what was known of them"
            );
        }
        false
    }

    fn begin(&mut self, key: &[u8], expires_at: Timestamp) {
        let key: Arc<[u8]> = key.into();
        let end = expires_at.secs().saturating_add(1);
        self.ends.entry(end).or_default().push(key.clone());
        self.begun.insert(key, None);
    }

    /// Notes hits that were let pass, or given back, to be handed on. Returns how many found no room.
    fn spend(&mut self, increment: &Increment<'_>) -> u64 {
        let Some(spent) = self.begun.get_mut(increment.key) else {
            return increment.hits.added();
        };
        let spent = spent.get_or_insert(Spent {
            terms: increment.terms,
            hits: 0,
        });
        spent.hits = spent.hits.saturating_add(increment.hits.signed());
        0
    }

    /// Counts what has begun, and judges the rest. All is one step, if it has to be and there is room.
    fn count(&mut self, shares: &Batch, known: impl Fn(&[u8]) -> u64, now: Timestamp) -> CountList {
        let all_begun = shares
            .iter()
            .all(|share| self.begun.contains_key(share.key));
        if all_begun && let Ok(counts) = self.counters.apply_all(shares, now) {
            return counts;
        }
        let one = |share: Increment<'_>| {
            let mut alone = Batch::default();
            alone.append_one(share);
            if share.stands_alone()
                && self.begun.contains_key(share.key)
                && let Ok(counts) = self.counters.apply_all(&alone, now)
                && let [count] = counts[..]
            {
                return count;
            }
            judged(&share, known(share.key))
        };
        shares.iter().map(one).collect()
    }
}

/// What `share` would come to if its counter held `known`.
fn judged(share: &Increment<'_>, known: u64) -> Count {
    let is_over = share.refuses(known);
    let is_charged = match share.charge {
        Charge::Always => true,
        Charge::Never => false,
        Charge::Within | Charge::Admitted | Charge::Stopping => !is_over,
    };
    let (added, given_back) = if is_charged {
        (share.hits.added(), share.hits.given_back())
    } else {
        (0, 0)
    };
    let after = known.saturating_add(added).saturating_sub(given_back);
    let has_window = share.method == Method::Window;
    Count {
        is_charged,
        // By then at the latest.
        ends: (!has_window).then_some(Ends {
            resets_in: share.period_millis,
            retry_in: Some(share.period_millis),
        }),
        ..Count::from(after)
    }
}

impl Loss {
    /// `max_counters` is the most that is counted locally at a time.
    pub fn new(name: &'static str, max_counters: usize, meters: Arc<Meters>) -> Self {
        Self {
            name,
            max_counters,
            is_lost: AtomicBool::new(false),
            failed_at: AtomicU64::new(0),
            local: Mutex::new(Local::new(max_counters)),
            has_spent: AtomicBool::new(false),
            wanted: Notify::new(),
            meters,
        }
    }

    /// Whether the last that was heard of the store is that it does not answer.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    fn replicas(&self) -> u32 {
        self.meters.replicas.load(Relaxed).max(1)
    }

    /// One request had no answer in time, which may have counted.
    fn missed(&self, now: Timestamp) {
        self.failed_at.store(now.millis(), Relaxed);
    }

    /// Says once that the store is gone.
    fn failed(&self, error: StoreError, now: Timestamp) {
        self.missed(now);
        if self.is_lost() || self.is_lost.swap(true, Relaxed) {
            return;
        }
        self.meters.lost.fetch_add(1, Relaxed);
        tracing::warn!(store = self.name, %error, "rules answer as their on_store_loss says");
        self.wanted.notify_one();
    }

    /// Says once that it is back.
    fn returned(&self) {
        if self.is_lost.swap(false, Relaxed) {
            self.meters.lost.fetch_sub(1, Relaxed);
            tracing::info!(store = self.name, "rules are counted in the store again");
        }
    }

    fn was_quiet(&self, now: Timestamp) -> bool {
        now >= Timestamp::from_millis(self.failed_at.load(Relaxed)).plus(QUIET)
    }

    /// A panic elsewhere cannot leave it half changed in a way that matters: at worst something is
    /// handed back that was not counted.
    fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts anew and returns what was spent.
    fn take(&self) -> Vec<(Arc<[u8]>, Spent)> {
        let new = Local::new(self.max_counters);
        let old = {
            let mut local = self.local();
            self.has_spent.store(false, Relaxed);
            mem::replace(&mut *local, new)
        };
        // Nobody waits while it is taken apart.
        let begun = old.begun.into_iter();
        begun
            .filter_map(|(key, spent)| Some((key, spent?)))
            .collect()
    }

    /// Takes back what was not sent after all.
    fn put_back(&self, rest: Vec<(Arc<[u8]>, Spent)>, now: Timestamp) {
        let mut forgotten = 0;
        let mut local = self.local();
        for (key, spent) in rest {
            let increment = Increment {
                key: &key,
                terms: spent.added(),
            };
            if !local.begun.contains_key(&key) && local.has_room(now) {
                local.begin(&key, increment.expires_at);
            }
            forgotten += local.spend(&increment);
        }
        drop(local);
        self.meters.forgotten.fetch_add(forgotten, Relaxed);
        self.want_return();
    }

    /// Something was spent that has to be handed back.
    fn want_return(&self) {
        if !self.has_spent.swap(true, Relaxed) {
            self.wanted.notify_one();
        }
    }

    /// Counts `batch`, of which all increments have [`OnStoreLoss::Local`].
    fn count(&self, batch: &Batch, known: impl Fn(&[u8]) -> u64, now: Timestamp) -> CountList {
        let replicas = self.replicas();
        let known = |key: &[u8]| known(key).div_ceil(replicas.into());
        let mut local = self.local();
        let mut shares = Batch::default();
        for increment in batch.iter() {
            let terms = share(&increment.terms, replicas);
            if !local.begun.contains_key(increment.key) && local.has_room(now) {
                let begin = Terms {
                    hits: Hits::add(known(increment.key)),
                    charge: Charge::Always,
                    ..terms
                };
                let mut first = Batch::default();
                first.append_one(Increment {
                    terms: begin,
                    ..increment
                });
                // Its bound is the same, but what has ended leaves it later.
                if local.counters.apply_all(&first, now).is_ok() {
                    local.begin(increment.key, increment.expires_at);
                }
            }
            shares.append_one(Increment { terms, ..increment });
        }
        let counts = local.count(&shares, known, now);
        for (increment, count) in batch.iter().zip(&counts) {
            if count.is_charged && !increment.hits.is_peek() {
                let forgotten = local.spend(&increment);
                self.meters.forgotten.fetch_add(forgotten, Relaxed);
                self.want_return();
            }
        }
        drop(local);
        let told = batch.iter().zip(shares.iter()).zip(counts);
        told.map(|((increment, share), count)| told_of_share(&increment, &share, count))
            .collect()
    }
}

impl Spent {
    /// The hits as an increment that nothing refuses.
    fn added(&self) -> Terms {
        Terms {
            hits: if self.hits < 0 {
                Hits::give_back(self.hits.unsigned_abs())
            } else {
                Hits::add(self.hits.unsigned_abs())
            },
            charge: Charge::Always,
            ..self.terms
        }
    }

    /// Whether the store still has a use for it.
    fn matters(&self, now: Timestamp) -> bool {
        self.hits != 0 && (self.terms.method != Method::Window || self.terms.expires_at > now)
    }
}

/// The part of a limit that is this replica's: at least one hit of a limit that admits any.
fn share(terms: &Terms, replicas: u32) -> Terms {
    Terms {
        limit: terms.limit.div_ceil(replicas),
        method: match terms.method {
            Method::TokenBucket { rate } => Method::TokenBucket {
                rate: rate.div_ceil(replicas),
            },
            other => other,
        },
        ..*terms
    }
}

/// A count within a share, as one of the whole limit that leaves as much.
fn told_of_share(terms: &Terms, share: &Terms, count: Count) -> Count {
    let (limit, part) = (u64::from(terms.limit), u64::from(share.limit));
    let after = match part.checked_sub(count.after) {
        Some(left) if count.is_charged || !count.is_over(share.limit, share.hits) => {
            limit - left.min(limit)
        }
        // Refused: nothing that the caller could still do with what is left is promised.
        Some(_) => limit,
        None => limit.saturating_add(count.after - part),
    };
    Count {
        after,
        is_degraded: true,
        ..count
    }
}

impl<S> OnLoss<S> {
    pub fn new(store: S, loss: Arc<Loss>) -> Self {
        Self {
            store,
            loss,
            recent: Mutex::default(),
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, batch: &Batch, counts: &[Count], now: Timestamp) {
        let is_local = |terms: &Terms| terms.on_loss == OnStoreLoss::Local;
        if !batch.all_terms().any(is_local) {
            return;
        }
        let mut recent = self.recent();
        for (increment, count) in batch.iter().zip(counts) {
            if is_local(&increment.terms) {
                let lasts_until = match count.ends {
                    Some(ends) => now.plus(Duration::from_millis(ends.resets_in)),
                    None => increment.expires_at,
                };
                recent.insert(increment.key, count.after, lasts_until);
            }
        }
    }

    /// What the rules say instead of `error`.
    fn instead(
        &self,
        batch: &Batch,
        now: Timestamp,
        error: StoreError,
    ) -> Result<CountList, StoreError> {
        let says = |wanted| batch.iter().any(|increment| increment.on_loss == wanted);
        if says(OnStoreLoss::Error) {
            return Err(error);
        }
        self.loss.meters.degraded.fetch_add(1, Relaxed);
        let mut local = CountList::new();
        if says(OnStoreLoss::Local) {
            let mut counted = Batch::default();
            for increment in batch.iter() {
                if increment.on_loss == OnStoreLoss::Local {
                    counted.append_one(increment);
                }
            }
            let recent = self.recent();
            local = self.loss.count(&counted, |key| recent.get(key, now), now);
        }
        let mut local = local.into_iter();
        let answer = |increment: Increment<'_>| match increment.on_loss {
            OnStoreLoss::Local => local.next().ok_or(StoreError::Refused),
            OnStoreLoss::Deny => Ok(Count {
                is_charged: false,
                is_degraded: true,
                ..Count::from(u64::from(increment.limit))
            }),
            OnStoreLoss::Allow | OnStoreLoss::Error => Ok(Count {
                is_degraded: true,
                ..Count::from(0)
            }),
        };
        batch.iter().map(answer).collect()
    }
}

impl<S: Store> Store for OnLoss<S> {
    async fn add_into(
        &self,
        counts: &mut CountList,
        batch: &Batch,
        now: Timestamp,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        match self.store.add_into(counts, batch, now, deadline).await {
            Ok(()) => {
                self.remember(batch, counts, now);
                Ok(())
            }
            Err(error) => {
                self.loss.meters.record(error);
                // A queue that is full is no loss, nor is one late answer: others are answered at the
                // same time.
                match error {
                    StoreError::Overloaded => {}
                    StoreError::Timeout => self.loss.missed(now),
                    _ => self.loss.failed(error, now),
                }
                *counts = self.instead(batch, now, error)?;
                Ok(())
            }
        }
    }

    fn is_well(&self) -> bool {
        self.store.is_well()
    }

    fn is_one_place(&self) -> bool {
        self.store.is_one_place()
    }
}

/// Waits for the return of a store and hands back what was spent without it. Once for the process,
/// and no decision waits for it: what those find in the store may lack what is on its way.
#[derive(Debug)]
pub struct Return<S> {
    pub store: S,
    pub loss: Arc<Loss>,
}

impl<S: Store> Return<S> {
    /// Runs as long as the process. `now` reads the clock that windows go by.
    pub async fn run(self, now: impl Fn() -> Timestamp) -> Infallible {
        loop {
            self.loss.wanted.notified().await;
            self.is_back(&now).await;
            self.loss.returned();
            self.hand_back(now()).await;
        }
    }

    /// Waits until all servers of the store are well. As long as one is not, what belongs to it is
    /// counted locally, and the rest in the store.
    async fn is_back(&self, now: &impl Fn() -> Timestamp) {
        let mut was_gone = false;
        loop {
            let is_well = self.store.is_well();
            if is_well && (was_gone || self.loss.was_quiet(now())) {
                return;
            }
            was_gone |= !is_well;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Adds to the store what was let pass without it. What it does not confirm is not sent again,
    /// for it may have counted; what follows then waits for the next return.
    async fn hand_back(&self, now: Timestamp) {
        let mut spent = self.loss.take();
        spent.retain(|(_, spent)| spent.matters(now));
        let mut at_once = 1;
        while !spent.is_empty() {
            if !self.store.is_well() {
                self.loss.failed(StoreError::Unreachable, now);
                self.loss.put_back(spent, now);
                return;
            }
            let some = spent.split_off(spent.len().saturating_sub(at_once));
            at_once = (2 * at_once).min(HANDED_AT_ONCE);
            let mut batch = Batch::default();
            let mut hits = 0;
            for (key, spent) in &some {
                let terms = spent.added();
                batch.append_one(Increment { key, terms });
                hits += spent.hits.max(0).unsigned_abs();
            }
            let meters = &self.loss.meters;
            if let Err(error) = self.store.add(&batch, now).await {
                meters.forgotten.fetch_add(hits, Relaxed);
                self.loss.failed(error, now);
                self.loss.put_back(spent, now);
                return;
            }
            meters.handed_back.fetch_add(hits, Relaxed);
        }
    }
}

/// The last counts that this worker saw, in two generations: when the young one is full the old one
/// is forgotten.
#[derive(Debug, Default)]
struct Recent {
    young: HashMap<Box<[u8]>, (u64, Timestamp)>,
    old: HashMap<Box<[u8]>, (u64, Timestamp)>,
}

impl Recent {
    /// About 4 MB a generation, with keys of usual length.
    const GENERATION: usize = 1 << 15;

    fn insert(&mut self, key: &[u8], count: u64, lasts_until: Timestamp) {
        if let Some(known) = self.young.get_mut(key) {
            *known = (count, lasts_until);
            return;
        }
        if self.young.len() >= Self::GENERATION {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(key.into(), (count, lasts_until));
    }

    /// The last count of `key`, 0 if there is none that still holds.
    fn get(&self, key: &[u8], now: Timestamp) -> u64 {
        let known = self.young.get(key).or_else(|| self.old.get(key));
        known.map_or(
            0,
            |&(count, lasts_until)| if lasts_until > now { count } else { 0 },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        counter::{Counting, Identity},
        limit::{Algorithm, Limit},
        request::Entry,
        window::Unit,
    };

    const NOW: Timestamp = Timestamp::from_secs(1_795_230_000);

    fn loss(replicas: u32, max_counters: usize) -> Loss {
        let meters = Meters {
            replicas: AtomicU32::new(replicas),
            ..Meters::default()
        };
        Loss::new("redis", max_counters, Arc::new(meters))
    }

    fn batch(value: &str, limit: &Limit, hits: Hits, now: Timestamp) -> Batch {
        let entry = Entry {
            key: b"k",
            value: value.as_bytes(),
        };
        let mut identity = Identity::default();
        identity.set(b"d", &[entry], &[]);
        let charge = if limit.algorithm.looks_first() {
            Charge::Within
        } else {
            Charge::Always
        };
        let counting = Counting {
            charge,
            ..hits.into()
        };
        let mut batch = Batch::default();
        batch.push(&identity, limit, now, counting);
        batch
    }

    /// What remains after each of `hits` on a limit of which `known` were used before the loss;
    /// nothing if it is refused.
    #[track_caller]
    fn check(limit: &Limit, replicas: u32, known: u64, hits: &[u64], expected: &[Option<u64>]) {
        let loss = loss(replicas, 10);
        let remaining = |hits: &u64| {
            let hits = Hits::add(*hits);
            let counts = loss.count(&batch("a", limit, hits, NOW), |_| known, NOW);
            let count = counts[0];
            assert!(count.is_degraded);
            let left = u64::from(limit.capacity()).saturating_sub(count.after);
            (!count.is_over(limit.capacity(), hits)).then_some(left)
        };
        let remaining: Vec<_> = hits.iter().map(remaining).collect();
        assert_eq!(remaining, expected);
    }

    fn with(algorithm: Algorithm, requests_per_unit: u32) -> Limit {
        Limit {
            algorithm,
            ..Limit::fixed(requests_per_unit, Unit::Year)
        }
    }

    #[test]
    fn a_share_of_what_is_left_is_admitted() {
        let ten = Limit::fixed(10, Unit::Year);
        check(&ten, 2, 0, &[1, 4, 1], &[Some(4), Some(0), None]);
        check(&ten, 2, 6, &[1, 1, 1], &[Some(1), Some(0), None]);
        check(&ten, 1, 9, &[1, 1], &[Some(0), None]);
        check(&ten, 3, 20, &[1, 0], &[None, None]);
        check(
            &Limit::fixed(0, Unit::Year),
            2,
            0,
            &[0, 1, 0],
            &[Some(0), None, None],
        );
    }

    #[test]
    fn a_limit_that_admits_any_admits_one_at_each_replica() {
        check(
            &Limit::fixed(3, Unit::Year),
            10,
            0,
            &[1, 1],
            &[Some(0), None],
        );
    }

    #[test]
    fn other_algorithms_have_shares_too() {
        for algorithm in [
            Algorithm::FirstHit,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket { burst: 10 },
        ] {
            let limit = with(algorithm, 10);
            check(&limit, 2, 4, &[1, 2, 1], &[Some(2), Some(0), None]);
        }
    }

    #[test]
    fn what_is_taken_is_what_was_let_pass() {
        let loss = loss(2, 10);
        let ten = Limit::fixed(10, Unit::Year);
        let count = |hits| loss.count(&batch("a", &ten, hits, NOW), |_| 4, NOW);
        count(Hits::add(2));
        count(Hits::add(0));
        count(Hits::ONE);
        count(Hits::give_back(1));
        let spent = loss.take();
        let hits: Vec<_> = spent.iter().map(|(_, spent)| spent.hits).collect();
        assert_eq!(hits, [2]);
        assert!(loss.take().is_empty());
    }

    #[test]
    fn nothing_grows_with_the_values_that_come() {
        const MAX: usize = 100;
        let loss = loss(1, MAX);
        let limit = Limit::fixed(10, Unit::Second);
        for number in 0..10_000_u64 {
            // A hundred values a second, so that what has ended makes room.
            let now = Timestamp::from_millis(NOW.millis() + number * 10);
            let batch = batch(&number.to_string(), &limit, Hits::ONE, now);
            loss.count(&batch, |_| 0, now);
        }
        let local = loss.local();
        assert!(local.begun.len() <= MAX && local.begun.len() > MAX / 2);
        let ends: usize = local.ends.values().map(Vec::len).sum();
        assert_eq!(ends, local.begun.len());
        assert!(local.ends.len() <= 3);
        assert!(local.counters.live_counters() <= MAX);
    }

    /// Whether a hit on each of `values` passes where two counters have room, of which `known` hits on a
    /// limit of ten are known.
    #[track_caller]
    fn check_full(loss: &Loss, limit: &Limit, values: &[&str], known: u64, expected: &[bool]) {
        let passes = values.iter().map(|value| {
            let counts = loss.count(&batch(value, limit, Hits::ONE, NOW), |_| known, NOW);
            assert!(counts[0].is_degraded);
            assert_eq!(counts[0].ends.is_some(), limit.algorithm.looks_first());
            !counts[0].is_over(limit.capacity(), Hits::ONE)
        });
        assert_eq!(passes.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_full_table_counts_what_it_has_and_judges_the_rest_by_what_was_known() {
        for algorithm in [
            Algorithm::FixedWindow,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket { burst: 10 },
        ] {
            let ten = with(algorithm, 10);
            let loss = loss(1, 2);
            check_full(&loss, &ten, &["a", "b"], 8, &[true, true]);
            // There is one hit left for each that is counted, and no end for others.
            let values = ["c", "a", "c", "a", "c", "b", "b"];
            let expected = [true, true, true, false, true, true, false];
            check_full(&loss, &ten, &values, 8, &expected);
            // Nobody who was over before gets in.
            check_full(&loss, &ten, &["d", "d"], 10, &[false, false]);
            assert_eq!(loss.take().len(), 2);
            // `c` three times; and a fixed window counts what it refuses.
            let more = if ten.algorithm.looks_first() { 0 } else { 2 };
            assert_eq!(loss.meters.forgotten.load(Relaxed), 3 + more);
        }
    }

    #[test]
    fn what_has_ended_makes_room_a_little_at_a_time() {
        let limit = Limit::fixed(10, Unit::Second);
        let loss = loss(1, 1000);
        for number in 0..1000_u64 {
            loss.count(
                &batch(&number.to_string(), &limit, Hits::ONE, NOW),
                |_| 0,
                NOW,
            );
        }
        let later = NOW.plus(Duration::from_secs(3));
        loss.count(&batch("new", &limit, Hits::ONE, later), |_| 0, later);
        let left = loss.local().begun.len();
        assert_eq!(left, 1000 - FORGOTTEN_AT_ONCE + 1);
    }

    #[test]
    fn a_store_is_lost_once_and_back_once() {
        let loss = loss(1, 10);
        let lost = || loss.meters.lost.load(Relaxed);
        loss.returned();
        assert_eq!(lost(), 0);
        for _ in 0..2 {
            loss.failed(StoreError::Unreachable, NOW);
            assert_eq!(lost(), 1);
        }
        for _ in 0..2 {
            loss.returned();
            assert_eq!(lost(), 0);
        }
    }

    #[test]
    fn recent_counts_are_bounded_and_end_with_their_window() {
        let mut recent = Recent::default();
        let end = Timestamp::from_secs(NOW.secs() + 1);
        for number in 0..3 * Recent::GENERATION as u64 {
            recent.insert(&number.to_be_bytes(), number, end);
        }
        assert!(recent.young.len() + recent.old.len() <= 2 * Recent::GENERATION);
        let last = 3 * Recent::GENERATION as u64 - 1;
        assert_eq!(recent.get(&last.to_be_bytes(), NOW), last);
        // So is one of half a generation ago, and at least a whole generation.
        for ago in [Recent::GENERATION / 2, Recent::GENERATION - 1] {
            let known = last - ago as u64;
            assert_eq!(recent.get(&known.to_be_bytes(), NOW), known);
        }
        assert_eq!(recent.get(&last.to_be_bytes(), end), 0);
        assert_eq!(recent.get(&0_u64.to_be_bytes(), NOW), 0);
    }
}
