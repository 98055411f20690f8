//! One store's losses, shared by all workers of a process.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::sync::Notify;

use super::{
    begin::{Begin, Bounds},
    local::{Local, Spent},
    meters::Meters,
    recent::{Known, Seen, Table, Tables, lock},
    share::{share, told_of_share},
};
use crate::{
    counter::{Batch, CountList, Increment, Terms},
    store::{StoreError, replicas::Number},
    window::Timestamp,
};

/// The state of one store's losses, shared by all workers of a process.
#[derive(Debug)]
pub struct Loss {
    /// The store's name in the log.
    name: &'static str,
    options: Options,
    is_lost: AtomicBool,
    /// When the store was lost last, in milliseconds since 1970.
    lost_at: AtomicU64,
    /// When the store last failed to answer.
    failed_at: AtomicU64,
    tables: Tables,
    /// Counts after hits were handed back, as if a worker had seen them.
    handed_back: Table,
    local: Mutex<Local>,
    has_spent: AtomicBool,
    /// Notified when there is work for the return of the store.
    pub(super) wanted: Notify,
    pub(super) meters: Arc<Meters>,
}

/// Settings of local counting.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most counters at a time.
    pub max_counters: usize,
    /// The percentage of its share of a limit that a replica may spend on a counter that it has not
    /// seen; one hit at least.
    pub unseen_percent: u8,
}

impl Loss {
    pub fn new(name: &'static str, options: Options, meters: Arc<Meters>) -> Self {
        let tables = Tables::default();
        Self {
            name,
            options,
            is_lost: AtomicBool::new(false),
            lost_at: AtomicU64::new(0),
            failed_at: AtomicU64::new(0),
            handed_back: tables.add(),
            tables,
            local: Mutex::new(Local::new(options.max_counters)),
            has_spent: AtomicBool::new(false),
            wanted: Notify::new(),
            meters,
        }
    }

    /// Whether the store did not reply when it was last heard of.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    /// A table for the counts that one more worker sees.
    pub(super) fn table(&self) -> Table {
        self.tables.add()
    }

    /// Records that one request had no answer in time. It may have counted.
    pub(super) fn missed(&self, now: Timestamp) {
        self.failed_at.store(now.millis(), Relaxed);
    }

    /// Marks the store as lost, and logs that once.
    pub(super) fn failed(&self, error: StoreError, now: Timestamp) {
        self.missed(now);
        if self.is_lost() {
            return;
        }
        self.lost_at.store(now.millis(), Relaxed);
        if self.is_lost.swap(true, Relaxed) {
            return;
        }
        self.meters.lost.fetch_add(1, Relaxed);
        tracing::warn!(store = self.name, %error, "rules answer as their on_store_loss says");
        self.wanted.notify_one();
    }

    /// Marks the store as back, and logs that once.
    pub(super) fn returned(&self) {
        if self.is_lost.swap(false, Relaxed) {
            self.meters.lost.fetch_sub(1, Relaxed);
            tracing::info!(store = self.name, "rules are counted in the store again");
        }
    }

    /// Whether no request has failed for so long that the store counts as well.
    pub(super) fn was_quiet(&self, now: Timestamp) -> bool {
        now >= Timestamp::from_millis(self.failed_at.load(Relaxed)).plus(super::hand_back::QUIET)
    }

    /// After a panic elsewhere, at worst hits are handed back that were not counted.
    pub(super) fn local(&self) -> MutexGuard<'_, Local> {
        lock(&self.local)
    }

    /// Starts anew, and returns the hits that were spent.
    pub(super) fn take(&self) -> Vec<(Arc<[u8]>, Spent)> {
        let new = Local::new(self.options.max_counters);
        let old = {
            let mut local = self.local();
            self.has_spent.store(false, Relaxed);
            mem::replace(&mut *local, new)
        };
        // Outside the lock, so that no request waits for this.
        old.into_spent()
    }

    /// Takes back hits that were not sent after all.
    pub(super) fn put_back(&self, rest: Vec<(Arc<[u8]>, Spent)>, now: Timestamp) {
        let replicas = self.meters.replicas.taken();
        let mut forgotten = 0;
        let mut local = self.local();
        for (key, spent) in rest {
            let increment = Increment {
                key: &key,
                terms: spent.added(),
            };
            let share = share(&increment.terms, replicas);
            self.begin(&mut local, &increment, &share, now);
            local.charge(&key, &share, now);
            forgotten += local.spend(&increment);
        }
        drop(local);
        self.meters.forgotten.fetch_add(forgotten, Relaxed);
        self.want_return();
    }

    /// Asks for a return, because there are hits to hand back.
    fn want_return(&self) {
        if !self.has_spent.swap(true, Relaxed) {
            self.wanted.notify_one();
        }
    }

    fn known(&self, key: &[u8]) -> Known {
        self.tables.know(key, self.meters.rule_sets())
    }

    /// The count with which the counter of `key` begins.
    fn beginning(&self, key: &[u8], terms: &Terms, share: &Terms, now: Timestamp) -> Begin {
        let replicas = &self.meters.replicas;
        let bounds = Bounds {
            replicas: replicas.taken(),
            alone_since: replicas.alone_since(),
            lost_at: if self.is_lost() {
                Timestamp::from_millis(self.lost_at.load(Relaxed))
            } else {
                // Other requests are answered all the time.
                now
            },
            unseen_percent: self.options.unseen_percent,
        };
        Begin::new(terms, share, &self.known(key), &bounds, now)
    }

    /// Makes `local` count the counter of `increment`, if it does not yet and has room.
    fn begin(&self, local: &mut Local, increment: &Increment<'_>, share: &Terms, now: Timestamp) {
        if !local.counts(increment.key) && local.has_room(now) {
            let begin = self.beginning(increment.key, &increment.terms, share, now);
            local.begin(increment.key, share, begin, now);
        }
    }

    /// Counts `batch`, whose increments all have [`OnStoreLoss::Local`].
    ///
    /// [`OnStoreLoss::Local`]: crate::limit::OnStoreLoss::Local
    pub(super) fn count(&self, batch: &Batch, now: Timestamp) -> CountList {
        let replicas = self.meters.replicas.taken();
        let mut local = self.local();
        if replicas == Number::UNKNOWN {
            local.lack_replicas();
        }
        let mut shares = Batch::default();
        for increment in batch.iter() {
            let terms = share(&increment.terms, replicas);
            self.begin(&mut local, &increment, &terms, now);
            shares.append_one(Increment { terms, ..increment });
        }
        let known = |index: usize| {
            let increment = batch.increment(index);
            let share = shares.terms(index);
            let begin = self.beginning(increment.key, &increment.terms, share, now);
            begin.left(share, now)
        };
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

    /// Takes hits into account that are on their way to the store.
    pub(super) fn expect(&self, key: &[u8], spent: &Spent, now: Timestamp) {
        let known = self.known(key).seen;
        let known = known.filter(|seen| seen.lasts_until > now);
        let count = known.map_or(0, |seen| seen.count);
        let seen = Seen {
            count: count.saturating_add_signed(spent.hits),
            at: now,
            lasts_until: spent.lasts_until(now),
        };
        self.note(key, seen);
    }

    /// Records the count of a counter that no request asked for.
    pub(super) fn note(&self, key: &[u8], seen: Seen) {
        let rule_set = self.meters.rule_sets();
        lock(&self.handed_back).insert(key, seen, rule_set);
    }
}
