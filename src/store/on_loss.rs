//! What is answered while a store does not.
//!
//! Each rule says so for itself (`on_store_loss`). Who counts locally begins with the last counts
//! that this worker saw, keeps to this replica's share of each limit, and adds what it let pass to
//! the store once that answers again.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{Store, StoreError, memory::MemoryStore};
use crate::{
    counter::{Batch, Charge, Count, Increment, Method, Terms},
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
    /// How many replicas share the limits; 0 until that is known, and then taken as 1.
    replicas: Arc<AtomicU32>,
    max_counters: usize,
    is_lost: AtomicBool,
    local: Mutex<Local>,
    has_spent: AtomicBool,
    meters: Arc<Meters>,
}

/// What the losses of all stores came to.
#[derive(Debug, Default)]
pub struct Meters {
    /// Stores that do not answer now.
    pub lost: AtomicU64,
    /// Requests that were answered without the store.
    pub degraded: AtomicU64,
    /// Hits that were counted locally and added to the store afterwards.
    pub handed_back: AtomicU64,
    /// Hits that were counted locally and could not be added afterwards.
    pub forgotten: AtomicU64,
}

/// What one loss comes to.
#[derive(Debug)]
struct Local {
    counters: Arc<MemoryStore>,
    /// Counters that have begun with what was known of them, and when they end.
    begun: HashMap<Box<[u8]>, Timestamp>,
    spent: HashMap<Box<[u8]>, Spent>,
    /// The most of each.
    max: usize,
}

#[derive(Debug)]
struct Spent {
    terms: Terms,
    hits: u64,
}

/// Increments of one request to the store when it is back.
const HANDED_AT_ONCE: usize = 500;

impl Local {
    fn new(max_counters: usize) -> Self {
        Self {
            counters: Arc::new(MemoryStore::new(max_counters)),
            begun: HashMap::new(),
            spent: HashMap::new(),
            max: max_counters,
        }
    }

    /// Makes room by what has ended. Both are bounded: what finds no room begins with nothing and
    /// is not handed back.
    fn make_room(&mut self, now: Timestamp) {
        if self.begun.len() >= self.max {
            self.begun.retain(|_, ends_at| *ends_at > now);
        }
        if self.spent.len() >= self.max {
            self.spent.retain(|_, spent| spent.terms.expires_at > now);
        }
    }

    /// Notes hits that were let pass, to be handed back. Returns how many found no room.
    fn spend(&mut self, increment: &Increment<'_>) -> u64 {
        let hits = increment.hits.signed();
        if let Some(spent) = self.spent.get_mut(increment.key) {
            spent.hits = spent.hits.saturating_add_signed(hits);
            return 0;
        }
        let added = increment.hits.added();
        if added > 0 && self.spent.len() < self.max {
            let spent = Spent {
                terms: increment.terms,
                hits: added,
            };
            self.spent.insert(increment.key.into(), spent);
            return 0;
        }
        added
    }
}

impl Loss {
    /// `max_counters` is the most that is counted locally at a time.
    pub fn new(
        name: &'static str,
        replicas: Arc<AtomicU32>,
        max_counters: usize,
        meters: Arc<Meters>,
    ) -> Self {
        Self {
            name,
            replicas,
            max_counters,
            is_lost: AtomicBool::new(false),
            local: Mutex::new(Local::new(max_counters)),
            has_spent: AtomicBool::new(false),
            meters,
        }
    }

    /// Whether the last that was heard of the store is that it does not answer.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    fn replicas(&self) -> u32 {
        self.replicas.load(Relaxed).max(1)
    }

    /// Says once that the store is gone, and once that it is back.
    fn tell(&self, error: Option<StoreError>) {
        // One read for each decision, and a write only when it changes.
        if self.is_lost() == error.is_some()
            || self.is_lost.swap(error.is_some(), Relaxed) == error.is_some()
        {
            return;
        }
        let store = self.name;
        match error {
            Some(error) => {
                self.meters.lost.fetch_add(1, Relaxed);
                tracing::warn!(store, %error, "rules answer as their on_store_loss says");
            }
            None => {
                self.meters.lost.fetch_sub(1, Relaxed);
                tracing::info!(store, "rules are counted in the store again");
            }
        }
    }

    /// A panic elsewhere cannot leave it half changed in a way that matters: at worst something is
    /// handed back that was not counted.
    fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts anew and returns what was spent.
    fn take(&self) -> HashMap<Box<[u8]>, Spent> {
        let mut local = self.local();
        self.has_spent.store(false, Relaxed);
        mem::replace(&mut *local, Local::new(self.max_counters)).spent
    }

    /// Counts `batch`, of which all increments have [`OnStoreLoss::Local`].
    fn count(
        &self,
        batch: &Batch,
        known: impl Fn(&[u8]) -> u64,
        now: Timestamp,
    ) -> Result<Vec<Count>, StoreError> {
        let replicas = self.replicas();
        let mut local = self.local();
        local.make_room(now);
        let mut shares = Batch::default();
        for increment in batch.iter() {
            let terms = share(&increment.terms, replicas);
            if !local.begun.contains_key(increment.key) && local.begun.len() < local.max {
                let ends_at = increment.expires_at;
                local.begun.insert(increment.key.into(), ends_at);
                let begin = Terms {
                    hits: Hits::add(known(increment.key).div_ceil(replicas.into())),
                    charge: Charge::Always,
                    ..terms
                };
                let mut first = Batch::default();
                first.append_one(Increment {
                    terms: begin,
                    ..increment
                });
                local.counters.apply_all(&first, now)?;
            }
            shares.append_one(Increment { terms, ..increment });
        }
        let counts = local.counters.apply_all(&shares, now)?;
        for (increment, count) in batch.iter().zip(&counts) {
            if count.is_charged && !increment.hits.is_peek() {
                self.has_spent.store(true, Relaxed);
                let forgotten = local.spend(&increment);
                self.meters.forgotten.fetch_add(forgotten, Relaxed);
            }
        }
        let told = batch.iter().zip(shares.iter()).zip(counts);
        Ok(told
            .map(|((increment, share), count)| told_of_share(&increment, &share, count))
            .collect())
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
        if !batch.iter().any(|increment| is_local(&increment.terms)) {
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
    ) -> Result<Vec<Count>, StoreError> {
        let says = |wanted| batch.iter().any(|increment| increment.on_loss == wanted);
        if says(OnStoreLoss::Error) {
            return Err(error);
        }
        self.loss.meters.degraded.fetch_add(1, Relaxed);
        let mut local = Vec::new();
        if says(OnStoreLoss::Local) {
            let mut counted = Batch::default();
            for increment in batch.iter() {
                if increment.on_loss == OnStoreLoss::Local {
                    counted.append_one(increment);
                }
            }
            let recent = self.recent();
            local = self.loss.count(&counted, |key| recent.get(key, now), now)?;
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

impl<S: Store> OnLoss<S> {
    /// Adds to the store what was let pass without it. What it does not confirm is not sent again,
    /// for it may have counted.
    async fn hand_back(&self, now: Timestamp) {
        let spent = self.loss.take();
        let mut spent: Vec<_> = spent
            .iter()
            .filter(|(_, spent)| spent.hits > 0)
            .filter(|(_, spent)| {
                spent.terms.method != Method::Window || spent.terms.expires_at > now
            })
            .collect();
        while !spent.is_empty() {
            let some = spent.split_off(spent.len().saturating_sub(HANDED_AT_ONCE));
            let mut batch = Batch::default();
            let mut hits = 0;
            for (key, spent) in some {
                hits += spent.hits;
                let terms = Terms {
                    hits: Hits::add(spent.hits),
                    charge: Charge::Always,
                    ..spent.terms
                };
                batch.append_one(Increment { key, terms });
            }
            let meter = match self.store.add(&batch, now).await {
                Ok(_) => &self.loss.meters.handed_back,
                Err(_) => &self.loss.meters.forgotten,
            };
            meter.fetch_add(hits, Relaxed);
        }
    }
}

impl<S: Store> Store for OnLoss<S> {
    async fn add(&self, batch: &Batch, now: Timestamp) -> Result<Vec<Count>, StoreError> {
        match self.store.add(batch, now).await {
            Ok(counts) => {
                self.loss.tell(None);
                if self.loss.has_spent.load(Relaxed) {
                    self.hand_back(now).await;
                }
                self.remember(batch, &counts, now);
                Ok(counts)
            }
            Err(error) => {
                // A queue that is full is no loss: others are answered at the same time.
                if error != StoreError::Overloaded {
                    self.loss.tell(Some(error));
                }
                self.instead(batch, now, error)
            }
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
