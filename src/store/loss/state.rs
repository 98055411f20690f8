//! One store's losses, shared by all workers of a process, and the counts of this process meanwhile.

use std::{
    convert::Infallible,
    fmt,
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::stats::{LossStats, LostLimits};
use crate::{
    core::{
        counter::{Batch, CounterState, CounterStates, Increment, IncrementSpec},
        window::{SteadyTime, Timestamp},
    },
    foundation::{
        lock::{blocking, lock},
        log_throttle::{LogThrottle, LossThrottle, Omitted},
        random,
    },
    store::{
        contract::{Deadline, Store, StoreError},
        memory::{CounterBounds, MemoryStore},
        replicas::ReplicaCount,
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
    /// When the store last failed to answer.
    failed_at: Mutex<Option<SteadyTime>>,
    /// The counts of this process: from the first hit that it counts without the store until the store is back.
    local: Mutex<Option<Arc<LocalCounters>>>,
    /// Notified when the return of the store has to be waited for.
    is_awaited: Notify,
    pub(crate) replicas: Arc<ReplicaCount>,
    pub(super) stats: Arc<LossStats>,
}

/// The counts of this process during one loss. They begin empty, and end with it.
#[derive(Debug)]
pub(super) struct LocalCounters {
    /// Tells their leases from others.
    epoch: u32,
    counters: MemoryStore,
    was_full: AtomicBool,
    lacked_replicas: AtomicBool,
}

/// How often a lost store is checked. A check sends nothing.
const LOOK: Duration = Duration::from_millis(10);

/// Local counters that have ended are dropped with one of this many looks: once a second.
const LOOKS_FOR_A_SWEEP: u32 = 100;

/// A store that fails some requests while its servers are well, as a full Redis does, is back when no
/// request has failed for this long.
const QUIET: Duration = Duration::from_secs(1);

impl Loss {
    /// A store that is not lost, whose limits `replicas` share.
    pub(crate) fn new(
        name: &'static str,
        limits: LostLimits,
        bounds: CounterBounds,
        replicas: Arc<ReplicaCount>,
        stats: Arc<LossStats>,
    ) -> Self {
        Self {
            name,
            bounds,
            limits,
            is_lost: AtomicBool::new(false),
            losses: LossThrottle::new(),
            reminders: LogThrottle::new(),
            failed_at: Mutex::default(),
            local: Mutex::default(),
            is_awaited: Notify::new(),
            replicas,
            stats,
        }
    }

    /// Records that one request had no answer in time. It may have counted.
    pub(super) fn missed(&self, at: SteadyTime) {
        *lock(&self.failed_at) = Some(at);
    }

    /// Marks the store as lost, and logs that once.
    pub(super) fn failed(&self, error: StoreError, at: SteadyTime) {
        self.missed(at);
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
        self.is_awaited.notify_one();
    }

    /// Logs once a minute what clients get while the store does not answer; `failures` are those of its servers.
    pub(crate) fn remind(&self, failures: Option<String>) {
        match failures {
            None if !self.is_lost.load(Relaxed) => {}
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

    /// Ends each loss once `store` is back, for as long as the process runs. There is one for the process. `now` reads
    /// the clock for windows.
    pub(crate) async fn end_each(
        self: Arc<Self>,
        store: impl Store,
        now: impl Fn() -> Timestamp,
    ) -> Infallible {
        loop {
            self.is_awaited.notified().await;
            self.until_back(&store, &now).await;
            let local = self.returned();
            // Freeing many counters takes a while, and this thread has other work.
            blocking(move || drop(local)).await;
        }
    }

    /// Waits until all servers of the store are well. As long as one is not, its counters are counted
    /// locally, and the others in the store.
    async fn until_back(&self, store: &impl Store, now: impl Fn() -> Timestamp) {
        let mut was_gone = false;
        for look in 0_u32.. {
            let local = lock(&self.local).clone();
            if let (Some(local), true) = (local, look.is_multiple_of(LOOKS_FOR_A_SWEEP)) {
                local.counters.sweep(now());
            }
            let is_well = store.state().is_well;
            if is_well && (was_gone || self.was_quiet(Deadline::of_store().steady())) {
                return;
            }
            was_gone |= !is_well;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Whether no request has failed for [`QUIET`], so that the store counts as well.
    fn was_quiet(&self, at: SteadyTime) -> bool {
        let failed_at = *lock(&self.failed_at);
        failed_at.is_none_or(|failed_at| at >= failed_at.plus(QUIET))
    }

    /// Marks the store as back, and logs that once. Returns the local counts, which are not used any more.
    pub(super) fn returned(&self) -> Option<Arc<LocalCounters>> {
        if self.is_lost.swap(false, Relaxed) {
            self.stats.lost.fetch_sub(1, Relaxed);
            if self.losses.may_log_return() {
                tracing::info!(store = self.name, "rules are counted in the store again");
            }
        }
        lock(&self.local).take()
    }

    /// The epoch of the counts of this process, if it counts.
    pub(crate) fn local_epoch(&self) -> Option<u32> {
        lock(&self.local).as_ref().map(|local| local.epoch)
    }

    /// How many counters this process holds.
    #[cfg(test)]
    pub(super) fn local_len(&self) -> usize {
        self.local().counters.live_counters()
    }

    /// The counts of this process. A request that was only late needs them too, so they do not wait for a loss.
    fn local(&self) -> Arc<LocalCounters> {
        let mut local = lock(&self.local);
        let new = || {
            self.is_awaited.notify_one();
            Arc::new(LocalCounters {
                epoch: random::epoch(),
                counters: MemoryStore::bounded(&self.bounds),
                was_full: AtomicBool::new(false),
                lacked_replicas: AtomicBool::new(false),
            })
        };
        local.get_or_insert_with(new).clone()
    }

    /// Counts `batch`, whose increments all have [`OnStoreLoss::Local`], by this replica's part of each limit.
    ///
    /// [`OnStoreLoss::Local`]: crate::core::limit::OnStoreLoss::Local
    pub(super) fn count(&self, batch: &Batch, now: Timestamp) -> CounterStates {
        let local = self.local();
        let mut shares = Batch::default();
        for increment in batch.iter() {
            let replicas = self.replicas.of(increment.domain);
            if replicas.is_none() && !local.lacked_replicas.swap(true, Relaxed) {
                tracing::warn!(
                    "the number of replicas is not known yet: this one admits one hit of each counter"
                );
            }
            let spec = share(&increment.spec, replicas.map_or(u32::MAX, NonZeroU32::get));
            shares.append_one(Increment { spec, ..increment });
        }
        let mut counts = CounterStates::new();
        local.counters.apply_into(&mut counts, &shares, now);
        if local.counters.sketched_hits() > 0 && !local.was_full.swap(true, Relaxed) {
            tracing::warn!(
                counters = local.counters.live_counters(),
                "no room for more local counters: others are counted in a sketch, with which they may be refused early"
            );
        }
        let answers = batch.all_specs().zip(shares.all_specs()).zip(counts);
        answers
            .map(|((whole, share), count)| scaled_to_limit(whole, share, count))
            .collect()
    }
}

/// This replica's part of a limit: at least one hit of a limit that admits any.
fn share(spec: &IncrementSpec, replicas: u32) -> IncrementSpec {
    IncrementSpec {
        limit: spec.limit.div_ceil(replicas.into()),
        method: spec.method.divided(replicas),
        ..*spec
    }
}

/// Converts a count within a share into one within the whole limit that leaves as much.
fn scaled_to_limit(
    spec: &IncrementSpec,
    share: &IncrementSpec,
    count: CounterState,
) -> CounterState {
    let (limit, part) = (spec.limit, share.limit);
    let after = match part.checked_sub(count.after) {
        Some(left) if count.is_charged || !count.is_over(part, share.added()) => {
            limit - left.min(limit)
        }
        // Refused: it leaves nothing on which the caller could rely.
        Some(_) => limit,
        None => limit.saturating_add(count.after - part),
    };
    CounterState {
        after,
        is_degraded: true,
        ..count
    }
}
