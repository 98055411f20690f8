//! Answers while a store, such as Redis, is lost. `redis/node.rs` holds whether it is.
//!
//! Each rule chooses its answer (`on_store_loss`). A rule that counts locally keeps to this replica's share of each
//! limit, in counters of this process that begin empty. They are dropped when the store is back, and nothing is added
//! to it: so a client may use one more window for each loss, its limit and the share of each replica.
//!
//! A request over several nodes is counted locally as a whole if one of them is lost.

use std::{
    convert::Infallible,
    future,
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{
    contract::{Deadline, Store, StoreError, StoreState},
    memory::{CounterBounds, MemoryStore},
    redis::wait::within,
    replicas::ReplicaCount,
    returns::{Returns, SentLease, free_slots},
};
use crate::{
    core::{
        counter::{Batch, CounterKind, CounterState, CounterStates, Increment, IncrementSpec},
        limit::OnStoreLoss,
        window::{SteadyTime, Timestamp},
    },
    foundation::{
        lock::{blocking, lock},
        log_throttle::{LogThrottle, LossThrottle, Omitted},
        random,
    },
};

pub(super) mod stats;
#[cfg(test)]
mod tests;

pub(crate) use stats::{LossStats, LostLimits};

/// A store around a store, one for each worker. The local counts belong to the whole process.
#[derive(Debug)]
pub(crate) struct OnLoss<S> {
    store: S,
    loss: Arc<Loss>,
    returns: Returns,
    /// The longest that a caller waits.
    longest: Duration,
}

impl<S: Store + Clone> OnLoss<S> {
    pub(crate) fn new(store: S, loss: Arc<Loss>, returns: Returns, longest: Duration) -> Self {
        Self {
            store,
            loss,
            returns,
            longest,
        }
    }

    /// The answers that the rules give instead of `error`.
    fn instead(
        &self,
        batch: &Batch,
        now: Timestamp,
        error: StoreError,
    ) -> Result<CounterStates, StoreError> {
        let has_policy = |wanted| batch.iter().any(|increment| increment.on_loss == wanted);
        if has_policy(OnStoreLoss::Error) {
            return Err(error);
        }
        self.loss.stats.degraded.fetch_add(1, Relaxed);
        let is_local = |increment: &Increment<'_>| increment.on_loss == OnStoreLoss::Local;
        let local = self.loss.count(batch.iter().filter(is_local), now);
        let mut local = local.into_iter();
        let answer = |spec: &IncrementSpec| {
            let count = match spec.on_loss {
                OnStoreLoss::Local => local.next().ok_or(StoreError::Refused)?,
                OnStoreLoss::Deny => CounterState {
                    is_charged: false,
                    ..CounterState::from(spec.limit)
                },
                OnStoreLoss::Allow | OnStoreLoss::Error => CounterState::from(0),
            };
            Ok(CounterState {
                is_degraded: true,
                ..count
            })
        };
        batch.all_specs().map(answer).collect()
    }

    /// Charges leased hits. The store follows their answer however late it comes, so the caller's wait ends here. What
    /// was charged in vain is then given back.
    async fn lease_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let room = self.returns.room().ok_or(StoreError::Overloaded)?;
        let mut leased = Box::<Batch>::default();
        leased.append(batch);
        let sending = SentLease::send(self.store.clone(), leased, now, *deadline, true);
        let mut sending = Box::pin(sending);
        let ends = deadline.ends(self.longest);
        let wait = ends.saturating_duration_since(Instant::now());
        let sent = within(wait, sending.as_mut()).await;
        let result = sent
            .as_ref()
            .map_or(Err(StoreError::Timeout), |sent| sent.result);
        match sent {
            Some(sent) if result.is_ok() => *counts = sent.counts,
            Some(sent) => self.returns.follow(room, future::ready(sent)),
            None => self.returns.follow(room, sending),
        }
        result
    }

    /// Frees slots in the store, too, that are freed locally meanwhile.
    fn free_later(&self, batch: &Batch, now: Timestamp) {
        let mut freed = Batch::default();
        for increment in batch.iter() {
            let has_slots = matches!(increment.method, CounterKind::Slots { .. });
            if has_slots && increment.taken_off() > 0 && increment.on_loss == OnStoreLoss::Local {
                freed.append_one(increment);
            }
        }
        if !freed.is_empty() {
            let store = self.store.clone();
            self.returns
                .take(async move { free_slots(&store, &freed, now).await });
        }
    }
}

impl<S: Store + Clone> Store for OnLoss<S> {
    async fn add_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let mut specs = batch.all_specs();
        if let Some(spec) = specs.find(|spec| spec.on_loss == OnStoreLoss::Local) {
            self.loss.replicas.ask(spec.domain, deadline.steady());
        }
        let answered = if deadline.is_for_lease {
            // Boxed, to keep the future of all other requests small.
            Box::pin(self.lease_into(counts, batch, now, deadline)).await
        } else {
            self.store.add_into(counts, batch, now, deadline).await
        };
        let Err(error) = answered else { return Ok(()) };
        self.loss.stats.record(error);
        // A full queue is no loss, and neither is one late answer: other requests are answered
        // at the same time.
        match error {
            StoreError::Overloaded => {}
            StoreError::Timeout | StoreError::TimedOutUnsent => self.loss.missed(deadline.steady()),
            _ => self.loss.failed(error.of_part(), deadline.steady()),
        }
        self.free_later(batch, now);
        *counts = self.instead(batch, now, error)?;
        Ok(())
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }
}

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
    stats: Arc<LossStats>,
}

/// The counts of this process during one loss. They begin empty, and end with it.
#[derive(Debug)]
struct LocalCounters {
    /// Tells their leases from others.
    epoch: u32,
    counters: MemoryStore,
}

static NO_NUMBER: LogThrottle = LogThrottle::new();

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
    fn missed(&self, at: SteadyTime) {
        *lock(&self.failed_at) = Some(at);
    }

    /// Marks the store as lost, and logs that once.
    fn failed(&self, error: StoreError, at: SteadyTime) {
        self.missed(at);
        if self.is_lost.swap(true, Relaxed) {
            return;
        }
        self.stats.lost.fetch_add(1, Relaxed);
        if let Some(omitted) = self.losses.may_log_loss() {
            self.reminders.may_log();
            let error = (error != StoreError::Refused).then(|| error.to_string());
            self.warn(error, Omitted(omitted, "losses"));
        }
        self.is_awaited.notify_one();
    }

    /// Logs once a minute what clients get while the store does not answer; `failures` are those of its servers.
    pub(crate) fn remind(&self, failures: Option<String>) {
        if (failures.is_some() || self.is_lost.load(Relaxed)) && self.reminders.may_log() {
            self.warn(failures, Omitted(0, ""));
        }
    }

    /// Warns of a store that does not answer, or, without an `error`, of one that refuses commands while its servers
    /// are well: which rules need them is not known.
    fn warn(&self, error: Option<String>, omitted: Omitted) {
        let Some(error) = error else {
            tracing::warn!(
                store = self.name,
                "the counter store refuses commands; a request that needs one is answered as its rule's \
                 `on_store_loss` says, and all others are counted{omitted}"
            );
            return;
        };
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
            let steady = Deadline::of_store().steady();
            let has_failed = |at: SteadyTime| steady < at.plus(QUIET);
            let is_quiet = was_gone || !lock(&self.failed_at).is_some_and(has_failed);
            let is_well = store.state().is_well;
            if is_well && is_quiet {
                return;
            }
            was_gone |= !is_well;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Marks the store as back, and logs that once. Returns the local counts, which are not used any more.
    fn returned(&self) -> Option<Arc<LocalCounters>> {
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

    /// The counts of this process. A request that was only late needs them too, so they do not wait for a loss.
    fn local(&self) -> Arc<LocalCounters> {
        let mut local = lock(&self.local);
        let new = || {
            self.is_awaited.notify_one();
            Arc::new(LocalCounters {
                epoch: random::epoch(),
                counters: MemoryStore::bounded(&self.bounds),
            })
        };
        local.get_or_insert_with(new).clone()
    }

    /// Counts increments of rules with [`OnStoreLoss::Local`] by this replica's part of each limit.
    fn count<'a>(
        &self,
        increments: impl Iterator<Item = Increment<'a>> + Clone,
        now: Timestamp,
    ) -> CounterStates {
        let mut shares = Batch::default();
        for increment in increments.clone() {
            let replicas = self.replicas.of(increment.domain);
            if replicas.is_none() && NO_NUMBER.may_log() {
                tracing::warn!(
                    "the number of replicas is not known yet: this one admits one hit of each counter"
                );
            }
            let spec = share(&increment.spec, replicas.unwrap_or(NonZeroU32::MAX));
            shares.append_one(Increment { spec, ..increment });
        }
        let mut counts = CounterStates::new();
        if shares.is_empty() {
            return counts;
        }
        let local = self.local();
        local.counters.apply_into(&mut counts, &shares, now);
        let answers = increments.zip(shares.all_specs()).zip(counts);
        answers
            .map(|((whole, share), count)| scaled_to_limit(whole.limit, share, count))
            .collect()
    }
}

/// This replica's part of a limit: at least one hit of a limit that admits any.
fn share(spec: &IncrementSpec, replicas: NonZeroU32) -> IncrementSpec {
    IncrementSpec {
        limit: spec.limit.div_ceil(replicas.get().into()),
        method: spec.method.divided(replicas.get()),
        ..*spec
    }
}

/// Converts a count within a share into one within the whole `limit` that leaves as much.
fn scaled_to_limit(limit: u64, share: &IncrementSpec, count: CounterState) -> CounterState {
    let part = share.limit;
    let after = match part.checked_sub(count.after) {
        Some(left) if count.is_charged || !count.is_over(part, share.added()) => {
            limit - left.min(limit)
        }
        // Refused: it leaves nothing on which the caller could rely.
        Some(_) => limit,
        None => limit.saturating_add(count.after - part),
    };
    CounterState { after, ..count }
}
