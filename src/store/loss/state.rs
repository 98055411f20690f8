//! One store's losses, shared by all workers of a process.

use std::{
    cell::OnceCell,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::sync::Notify;

use super::{
    first_count::{FirstCountInputs, longest_life},
    local::{LocalCounters, scaled_to_limit, share},
    recent::{RecentTables, SeenCount, SharedRecent},
    replica_count::{AloneSince, ReplicaCount},
    stats::{LossStats, LostLimits},
};
use crate::{
    core::{
        counter::{Batch, Charge, CounterKind, CounterStates, Increment, IncrementSpec, Operation},
        request::Hits,
        window::{Moment, SteadyTime, Timestamp},
    },
    foundation::{
        lock::lock,
        log_throttle::{LogThrottle, LossThrottle, Omitted},
    },
    store::{
        contract::StoreError,
        memory::{
            CounterBounds,
            begun::{Beginning, FirstHits, TakenCounter},
        },
    },
};

/// The state of one store's losses, shared by all workers of a process.
#[derive(Debug)]
pub(crate) struct Loss {
    /// The store's name in the log.
    name: &'static str,
    /// The most local counters at a time, and their bytes.
    bounds: CounterBounds,
    /// The limits that it counts.
    limits: LostLimits,
    is_lost: AtomicBool,
    losses: LossThrottle,
    /// Of the lines while a loss lasts.
    reminders: LogThrottle,
    /// When the store was lost last.
    lost_at: Mutex<Option<SteadyTime>>,
    /// When the store last failed to answer.
    failed_at: Mutex<Option<SteadyTime>>,
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

impl Loss {
    /// A store that is not lost, whose limits `replicas` share.
    pub(crate) fn new(
        name: &'static str,
        limits: LostLimits,
        bounds: CounterBounds,
        replicas: Arc<ReplicaCount>,
        stats: Arc<LossStats>,
    ) -> Self {
        let tables = RecentTables::default();
        Self {
            name,
            limits,
            bounds: bounds.clone(),
            is_lost: AtomicBool::new(false),
            losses: LossThrottle::new(),
            reminders: LogThrottle::new(),
            lost_at: Mutex::default(),
            failed_at: Mutex::default(),
            reconciled: tables.add(),
            tables,
            local: Mutex::new(LocalCounters::new(&bounds)),
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
    pub(super) fn missed(&self, at: SteadyTime) {
        *lock(&self.failed_at) = Some(at);
    }

    /// Marks the store as lost, and logs that once.
    pub(super) fn failed(&self, error: StoreError, at: SteadyTime) {
        self.missed(at);
        if self.is_lost() {
            return;
        }
        *lock(&self.lost_at) = Some(at);
        if self.is_lost.swap(true, Relaxed) {
            return;
        }
        self.stats.lost.fetch_add(1, Relaxed);
        if let Some(omitted) = self.losses.may_log_loss() {
            self.reminders.may_log();
            match error {
                StoreError::Refused => self.warn_of_refusals(Omitted(omitted, "losses")),
                _ => self.warn(&error, Omitted(omitted, "losses")),
            }
        }
        self.reconcile_requested.notify_one();
    }

    /// Logs once a minute what clients get while the store does not answer; `failures` are those of its servers.
    pub(crate) fn remind(&self, failures: Option<String>) {
        match failures {
            None if !self.is_lost() => {}
            _ if !self.reminders.may_log() => {}
            Some(error) => self.warn(&error, Omitted(0, "")),
            None => self.warn_of_refusals(Omitted(0, "")),
        }
    }

    /// Warns of commands that the store refuses while its servers are well. Which rules need them is not known.
    fn warn_of_refusals(&self, omitted: Omitted) {
        tracing::warn!(
            store = self.name,
            "the counter store refuses commands; a request that needs one is answered as its rule's `on_store_loss` \
             says, and all others are counted{omitted}"
        );
    }

    fn warn(&self, error: &dyn fmt::Display, omitted: Omitted) {
        let effect = self.stats.effect(self.limits);
        tracing::warn!(store = self.name, %error, "the counter store does not answer; {effect}{omitted}");
    }

    /// Marks the store as back, and logs that once.
    pub(super) fn returned(&self) {
        if self.is_lost.swap(false, Relaxed) {
            self.stats.lost.fetch_sub(1, Relaxed);
            if self.losses.may_log_return() {
                tracing::info!(store = self.name, "rules are counted in the store again");
            }
        }
    }

    /// Whether no request has failed for [`QUIET`], so that the store counts as well.
    pub(super) fn was_quiet(&self, at: SteadyTime) -> bool {
        let failed_at = *lock(&self.failed_at);
        failed_at.is_none_or(|failed_at| at >= failed_at.plus(QUIET))
    }

    /// After a panic elsewhere, at worst hits are handed back that were not counted.
    pub(super) fn local(&self) -> MutexGuard<'_, LocalCounters> {
        lock(&self.local)
    }

    /// Asks for a return, because there are hits to hand back.
    pub(super) fn request_reconcile(&self) {
        if !self.has_local_hits.swap(true, Relaxed) {
            self.reconcile_requested.notify_one();
        }
    }

    /// The count with which the counter of `key` begins.
    fn beginning(
        &self,
        key: &[u8],
        spec: &IncrementSpec,
        share: &IncrementSpec,
        moment: &Moment,
    ) -> FirstHits {
        let replicas = &self.replicas;
        let lost_at = lock(&self.lost_at).filter(|_| self.is_lost());
        let bounds = FirstCountInputs {
            replicas: replicas.taken(),
            alone_since: match replicas.alone_since() {
                AloneSince::Never => Timestamp::from_millis(u64::MAX),
                AloneSince::Always => Timestamp::from_millis(0),
                AloneSince::Moment(since) => moment.time_of(since),
            },
            // As long as the store is not lost, other requests are answered all the time.
            lost_at: lost_at.map_or(moment.now, |at| moment.time_of(at)),
        };
        let known = self.tables.know(key, self.stats.rule_sets(), moment);
        bounds.first_hits(spec, share, &known, moment.now)
    }

    /// Counts `batch`, whose increments all have [`OnStoreLoss::Local`].
    ///
    /// [`OnStoreLoss::Local`]: crate::core::limit::OnStoreLoss::Local
    pub(super) fn count(&self, batch: &Batch, moment: Moment) -> CounterStates {
        let replicas = self.replicas.taken();
        let mut local = self.local();
        if replicas == ReplicaCount::UNKNOWN {
            local.lack_replicas();
        }
        let here = local.moment(moment);
        // A window ends by the time of these counters.
        let expires_at = |spec: &IncrementSpec| here.time_of(moment.steady_at(spec.expires_at));
        let mut shares = Batch::default();
        for increment in batch.iter() {
            let spec = IncrementSpec {
                expires_at: expires_at(&increment.spec),
                ..share(&increment.spec, replicas)
            };
            shares.append_one(Increment { spec, ..increment });
        }
        // The knowledge of a counter may grow meanwhile, so it is read once: else hits would be missing from what is
        // handed back.
        let known: SmallVec<[OnceCell<FirstHits>; 8]> =
            batch.iter().map(|_| OnceCell::new()).collect();
        let begin = |share: &Increment<'_>| {
            let mut all = batch.iter().zip(&known);
            let found = all.find(|(increment, _)| increment.key == share.key);
            let whole = found.map_or(share.spec, |(increment, _)| increment.spec);
            let spec = IncrementSpec {
                expires_at: share.expires_at,
                ..whole
            };
            let read = || self.beginning(share.key, &spec, &share.spec, &here);
            let first = match found {
                Some((_, known)) => known.get_or_init(read).clone(),
                None => read(),
            };
            Beginning { first, whole }
        };
        let (counts, lost_hits) = local.count(&shares, here.now, &begin);
        drop(local);
        self.stats.lost_hits.fetch_add(lost_hits, Relaxed);
        let mut both = batch.iter().zip(&counts);
        if both.any(|(increment, count)| count.is_charged && increment.hits > 0) {
            self.request_reconcile();
        }
        let answers = batch.iter().zip(shares.iter()).zip(counts);
        answers
            .map(|((increment, share), count)| scaled_to_limit(&increment, &share, count))
            .collect()
    }

    /// Drops local counters that have ended. Requests go on meanwhile.
    pub(super) fn sweep(&self, at: SteadyTime) {
        let to_sweep = self.local().to_sweep(at);
        if let Some((counters, now)) = to_sweep {
            counters.sweep(now);
        }
    }

    /// Begins a return: local hits from now on ask for one more.
    pub(super) fn begin_return(&self) {
        self.has_local_hits.store(false, Relaxed);
    }

    /// Takes out up to `most` local counters, from the place `next` on, which moves on with them. Returns the
    /// increments that hand back what they hold at `moment` and the store does not, or `None` if no counters are left.
    pub(super) fn take(&self, next: &mut usize, most: usize, moment: Moment) -> Option<Batch> {
        let replicas = self.replicas.taken();
        let mut local = self.local();
        let now = local.moment(moment).now;
        let mut batch = Batch::default();
        let mut is_any = false;
        for _ in 0..most {
            let Some(counter) = local.take(next, 1).pop() else {
                break;
            };
            is_any = true;
            append_own_hits(&mut batch, counter, replicas, now, moment.now);
            if batch.len() >= most {
                break;
            }
        }
        if !is_any && local.len() == 0 {
            // A new loss begins with empty tables.
            *local = LocalCounters::new(&self.bounds);
        }
        is_any.then_some(batch)
    }

    /// Takes hits into account that are on their way to the store.
    pub(super) fn expect(&self, batch: &Batch, moment: &Moment) {
        let mut rest = batch.iter().peekable();
        while let Some(first) = rest.next() {
            let known = self.tables.know(first.key, self.stats.rule_sets(), moment);
            let known = known.seen.filter(|seen| seen.lasts_until > moment.now);
            let mut count = known.map_or(0, |seen| seen.count);
            let mut last = first;
            count = count.saturating_add_signed(first.signed());
            while let Some(more) = rest.next_if(|more| more.key == first.key) {
                count = count.saturating_add_signed(more.signed());
                last = more;
            }
            let lasts_until = match last.method {
                CounterKind::Window => moment.steady_at(last.expires_at),
                _ => {
                    let age = Duration::from_millis(last.age_millis);
                    moment.steady.plus(longest_life(&last).saturating_sub(age))
                }
            };
            let at = moment.steady;
            self.note(
                first.key,
                SeenCount {
                    count,
                    at,
                    lasts_until,
                    past: None,
                },
            );
        }
    }

    /// Records the count of a counter that no request asked for.
    pub(super) fn note(&self, key: &[u8], seen: SeenCount) {
        let rule_set = self.stats.rule_sets();
        lock(&self.reconciled).insert(key, seen, rule_set);
    }
}

/// Appends the hits that `counter` holds at `now`, a time of the local counters, and that the store does not hold. The
/// window of a counter ends by the `clock` of windows.
fn append_own_hits(
    batch: &mut Batch,
    counter: TakenCounter,
    replicas: u32,
    now: Timestamp,
    clock: Timestamp,
) {
    let whole = *counter.whole();
    if whole.method == CounterKind::Window && whole.expires_at <= clock {
        return;
    }
    let key = counter.key.clone();
    for own in counter.own_hits(&share(&whole, replicas), now) {
        let spec = IncrementSpec {
            operation: match own.hits < 0 {
                true => Operation::GiveBack,
                false => Operation::Add(Charge::Always),
            },
            hits: own.hits.unsigned_abs().min(Hits::MAX),
            age_millis: now.millis().saturating_sub(own.at),
            ..whole
        };
        batch.append_one(Increment { key: &key, spec });
    }
}

/// A store that fails some requests while its servers are well, as a full Redis does, is back when no
/// request has failed for this long.
pub(super) const QUIET: Duration = Duration::from_secs(1);
