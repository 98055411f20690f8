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
    first_count::{FirstCount, FirstCountInputs},
    local::{LocalCounters, LocalHits},
    recent::{CounterHistory, RecentTables, SeenCount, SharedRecent, lock},
    share::{scaled_to_limit, share},
    stats::LossStats,
};
use crate::{
    core::{
        counter::{Batch, CounterStates, Increment, IncrementSpec},
        window::Timestamp,
    },
    store::{contract::StoreError, memory::CounterBounds, replicas::number::ReplicaCount},
};

/// The state of one store's losses, shared by all workers of a process.
#[derive(Debug)]
pub(crate) struct Loss {
    /// The store's name in the log.
    name: &'static str,
    options: Options,
    is_lost: AtomicBool,
    /// When the store was lost last, in milliseconds since 1970.
    lost_at: AtomicU64,
    /// When the store last failed to answer.
    failed_at: AtomicU64,
    tables: RecentTables,
    /// Counts after hits were handed back, as if a worker had seen them.
    reconciled: SharedRecent,
    local: Mutex<LocalCounters>,
    has_local_hits: AtomicBool,
    /// Notified when there is work for the return of the store.
    pub(super) reconcile_requested: Notify,
    replicas: Arc<ReplicaCount>,
    pub(super) stats: Arc<LossStats>,
}

/// Settings of local counting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The most counters at a time, and their bytes.
    pub bounds: CounterBounds,
    /// The percentage of its share of a limit that a replica may spend on a counter that it has not
    /// seen; one hit at least.
    pub unseen_percent: u8,
}

impl Loss {
    /// A store that is not lost, whose limits `replicas` share.
    pub(crate) fn new(
        name: &'static str,
        options: Options,
        replicas: Arc<ReplicaCount>,
        stats: Arc<LossStats>,
    ) -> Self {
        let tables = RecentTables::default();
        Self {
            name,
            options,
            is_lost: AtomicBool::new(false),
            lost_at: AtomicU64::new(0),
            failed_at: AtomicU64::new(0),
            reconciled: tables.add(),
            tables,
            local: Mutex::new(LocalCounters::new(options.bounds)),
            has_local_hits: AtomicBool::new(false),
            reconcile_requested: Notify::new(),
            replicas,
            stats,
        }
    }

    /// Whether the store did not reply when it was last heard of.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    /// The number of replicas that share the limits.
    pub(crate) fn replicas(&self) -> &Arc<ReplicaCount> {
        &self.replicas
    }

    /// A table for the counts that one more worker sees.
    pub(super) fn table(&self) -> SharedRecent {
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
        self.stats.lost.fetch_add(1, Relaxed);
        tracing::warn!(store = self.name, %error, "rules answer as their on_store_loss says");
        self.reconcile_requested.notify_one();
    }

    /// Marks the store as back, and logs that once.
    pub(super) fn returned(&self) {
        if self.is_lost.swap(false, Relaxed) {
            self.stats.lost.fetch_sub(1, Relaxed);
            tracing::info!(store = self.name, "rules are counted in the store again");
        }
    }

    /// Whether no request has failed for so long that the store counts as well.
    pub(super) fn was_quiet(&self, now: Timestamp) -> bool {
        now >= Timestamp::from_millis(self.failed_at.load(Relaxed)).plus(super::state::QUIET)
    }

    /// After a panic elsewhere, at worst hits are handed back that were not counted.
    pub(super) fn local(&self) -> MutexGuard<'_, LocalCounters> {
        lock(&self.local)
    }

    /// Starts anew, and returns the hits that were spent.
    pub(super) fn take(&self) -> Vec<(Arc<[u8]>, LocalHits)> {
        let new = LocalCounters::new(self.options.bounds);
        let old = {
            let mut local = self.local();
            self.has_local_hits.store(false, Relaxed);
            mem::replace(&mut *local, new)
        };
        // Outside the lock, so that no request waits for this.
        old.into_hits()
    }

    /// Takes back hits that were not sent after all.
    pub(super) fn put_back(&self, rest: Vec<(Arc<[u8]>, LocalHits)>, now: Timestamp) {
        let replicas = self.replicas.taken();
        let mut lost_hits = 0;
        let mut local = self.local();
        for (key, spent) in rest {
            let increment = Increment {
                key: &key,
                spec: spent.added(),
            };
            let share = share(&increment.spec, replicas);
            self.begin(&mut local, &increment, &share, now);
            local.charge(&key, &share, now);
            lost_hits += local.spend(&increment);
        }
        drop(local);
        self.stats.lost_hits.fetch_add(lost_hits, Relaxed);
        self.request_reconcile();
    }

    /// Asks for a return, because there are hits to hand back.
    fn request_reconcile(&self) {
        if !self.has_local_hits.swap(true, Relaxed) {
            self.reconcile_requested.notify_one();
        }
    }

    fn known(&self, key: &[u8]) -> CounterHistory {
        self.tables.know(key, self.stats.rule_sets())
    }

    /// The count with which the counter of `key` begins.
    fn beginning(
        &self,
        key: &[u8],
        spec: &IncrementSpec,
        share: &IncrementSpec,
        now: Timestamp,
    ) -> FirstCount {
        let replicas = &self.replicas;
        let bounds = FirstCountInputs {
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
        FirstCount::new(spec, share, &self.known(key), &bounds, now)
    }

    /// Makes `local` count the counter of `increment`, if it does not yet and has room.
    fn begin(
        &self,
        local: &mut LocalCounters,
        increment: &Increment<'_>,
        share: &IncrementSpec,
        now: Timestamp,
    ) {
        if !local.counts(increment.key) && local.has_room(now) {
            let begin = self.beginning(increment.key, &increment.spec, share, now);
            local.begin(increment.key, share, begin, now);
        }
    }

    /// Counts `batch`, whose increments all have [`OnStoreLoss::Local`].
    ///
    /// [`OnStoreLoss::Local`]: crate::core::limit::OnStoreLoss::Local
    pub(super) fn count(&self, batch: &Batch, now: Timestamp) -> CounterStates {
        let replicas = self.replicas.taken();
        let mut local = self.local();
        if replicas == ReplicaCount::UNKNOWN {
            local.lack_replicas();
        }
        let mut shares = Batch::default();
        for increment in batch.iter() {
            let spec = share(&increment.spec, replicas);
            self.begin(&mut local, &increment, &spec, now);
            shares.append_one(Increment { spec, ..increment });
        }
        let known = |index: usize| {
            let increment = batch.increment(index);
            let share = shares.spec(index);
            let begin = self.beginning(increment.key, &increment.spec, share, now);
            begin.left(share, now)
        };
        let counts = local.count(&shares, known, now);
        for (increment, count) in batch.iter().zip(&counts) {
            if count.is_charged && !increment.hits.is_peek() {
                let lost_hits = local.spend(&increment);
                self.stats.lost_hits.fetch_add(lost_hits, Relaxed);
                self.request_reconcile();
            }
        }
        drop(local);
        let answers = batch.iter().zip(shares.iter()).zip(counts);
        answers
            .map(|((increment, share), count)| scaled_to_limit(&increment, &share, count))
            .collect()
    }

    /// Takes hits into account that are on their way to the store.
    pub(super) fn expect(&self, key: &[u8], spent: &LocalHits, now: Timestamp) {
        let known = self.known(key).seen;
        let known = known.filter(|seen| seen.lasts_until > now);
        let count = known.map_or(0, |seen| seen.count);
        let seen = SeenCount {
            count: count.saturating_add_signed(spent.hits),
            at: now,
            lasts_until: spent.lasts_until(now),
        };
        self.note(key, seen);
    }

    /// Records the count of a counter that no request asked for.
    pub(super) fn note(&self, key: &[u8], seen: SeenCount) {
        let rule_set = self.stats.rule_sets();
        lock(&self.reconciled).insert(key, seen, rule_set);
    }
}

use std::time::Duration;

/// A store that fails some requests while its servers are well, as a full Redis does, is back when no
/// request has failed for so long.
pub(super) const QUIET: Duration = Duration::from_secs(1);
