//! Answers while a store, such as Redis, is lost. `redis/health/breaker.rs` holds whether it is.
//!
//! Each rule chooses its answer (`on_store_loss`). A rule that counts locally begins with the last counts that this
//! process saw (see `store/loss/first_count.rs`) and keeps to this replica's share of each limit. Once the store
//! replies again, the hits that still count are added to it, each with its age: as many as the local counter holds
//! beyond those with which it began. Hits that have left meanwhile are not.
//!
//! Some hits are counted locally and in the store: those that were in flight when the store fell silent and that it
//! counted nevertheless. They are at most one pipeline for each connection, and clients can send that many hits
//! fewer. Some hits are counted nowhere: a batch of reconciled hits that the store did not confirm (`lost_hits`),
//! because it is not sent twice.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    contract::{Deadline, Store, StoreError, StoreState},
    redis::wait::within,
    returns::{Returns, SentLease, free_slots},
};
use crate::{
    core::{
        counter::{Batch, CounterKind, CounterState, CounterStates, Increment, IncrementSpec},
        limit::OnStoreLoss,
        window::{Moment, Timestamp},
    },
    foundation::{lock::lock, object_pool::Pooled},
};

mod first_count;
mod local;
mod past_hits;
mod recent;
mod reconcile;
mod replica_count;
mod state;
mod stats;
#[cfg(test)]
mod tests;

use recent::SharedRecent;
pub(crate) use reconcile::Reconciler;
pub(crate) use replica_count::ReplicaCount;
pub(crate) use state::Loss;
pub(crate) use stats::{LossStats, LostLimits};

/// A store around a store, one for each worker. The local counts belong to the whole process.
#[derive(Debug)]
pub(crate) struct OnLoss<S> {
    store: S,
    loss: Arc<Loss>,
    /// The last counts that this worker saw.
    seen: SharedRecent,
    returns: Returns,
    /// The longest that a caller waits.
    longest: Duration,
}

impl<S> OnLoss<S> {
    pub(crate) fn new(store: S, loss: Arc<Loss>, returns: Returns, longest: Duration) -> Self {
        let seen = loss.table();
        Self {
            store,
            loss,
            seen,
            returns,
            longest,
        }
    }

    fn remember(&self, batch: &Batch, counts: &[CounterState], moment: &Moment) {
        let is_local = |spec: &IncrementSpec| spec.on_loss == OnStoreLoss::Local;
        if !batch.all_specs().any(is_local) {
            return;
        }
        let rule_set = self.loss.stats.rule_sets();
        let mut table = lock(&self.seen);
        for (increment, count) in batch.iter().zip(counts) {
            if is_local(&increment.spec) {
                table.see(&increment, count, moment, rule_set);
            }
        }
    }

    /// Records when hits came that were counted locally: the store may be back and lost again while they count.
    fn date(&self, batch: &Batch, counts: &[CounterState], moment: &Moment) {
        let mut table = lock(&self.seen);
        for (increment, _) in batch
            .iter()
            .zip(counts)
            .filter(|(_, count)| count.is_charged)
        {
            table.date(&increment, moment);
        }
    }

    /// The answers that the rules give instead of `error`.
    fn instead(
        &self,
        batch: &Batch,
        moment: Moment,
        error: StoreError,
    ) -> Result<CounterStates, StoreError> {
        let has_policy = |wanted| batch.iter().any(|increment| increment.on_loss == wanted);
        if has_policy(OnStoreLoss::Error) {
            return Err(error);
        }
        self.loss.stats.degraded.fetch_add(1, Relaxed);
        let mut local = CounterStates::new();
        if has_policy(OnStoreLoss::Local) {
            let mut counted = Batch::default();
            for increment in batch.iter() {
                if increment.on_loss == OnStoreLoss::Local {
                    counted.append_one(increment);
                }
            }
            local = self.loss.count(&counted, moment);
            self.date(&counted, &local, &moment);
        }
        let mut local = local.into_iter();
        let answer = |increment: Increment<'_>| match increment.on_loss {
            OnStoreLoss::Local => local.next().ok_or(StoreError::Refused),
            OnStoreLoss::Deny => Ok(CounterState {
                is_charged: false,
                is_degraded: true,
                ..CounterState::from(increment.limit)
            }),
            OnStoreLoss::Allow | OnStoreLoss::Error => Ok(CounterState {
                is_degraded: true,
                ..CounterState::from(0)
            }),
        };
        batch.iter().map(answer).collect()
    }
}

impl<S: Store + Clone> OnLoss<S> {
    /// Charges leased hits. The store follows their answer however late it comes, so the caller's wait ends here. What
    /// was charged in vain is then given back.
    async fn lease_into(
        &self,
        counts: &mut CounterStates,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let mut leased = Pooled::<Batch>::default();
        leased.append(batch);
        let sending = SentLease::send(self.store.clone(), leased, now, *deadline);
        let mut sending = Box::pin(sending);
        let ends = deadline.ends(self.longest);
        let wait = ends.saturating_duration_since(Instant::now());
        let returns = self.returns.clone();
        match within(wait, sending.as_mut()).await {
            Some(sent) if sent.result.is_ok() => {
                *counts = sent.counts;
                Ok(())
            }
            Some(sent) => {
                let result = sent.result;
                self.returns
                    .take(async move { sent.take_back(&returns).await });
                result
            }
            None => {
                self.returns
                    .take(async move { sending.await.take_back(&returns).await });
                Err(StoreError::Timeout)
            }
        }
    }
}

impl<S: Store + Clone> OnLoss<S> {
    /// Frees slots in the store, too, that are freed locally meanwhile.
    fn free_later(&self, batch: &Batch, now: Timestamp) {
        let is_local = |spec: &IncrementSpec| {
            let is_free = matches!(spec.method, CounterKind::Slots { .. }) && spec.taken_off() > 0;
            is_free && spec.on_loss == OnStoreLoss::Local
        };
        let mut freed = Batch::default();
        for increment in batch.iter().filter(|increment| is_local(&increment.spec)) {
            freed.append_one(increment);
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
        let moment = Moment {
            now,
            steady: deadline.steady(),
        };
        let answered = if deadline.is_for_lease {
            // Boxed, to keep the future of all other requests small.
            Box::pin(self.lease_into(counts, batch, now, deadline)).await
        } else {
            self.store.add_into(counts, batch, now, deadline).await
        };
        match answered {
            Ok(()) => {
                self.remember(batch, counts, &moment);
                Ok(())
            }
            Err(error) => {
                self.loss.stats.record(error);
                // A full queue is no loss, and neither is one late answer: other requests are answered
                // at the same time.
                match error {
                    StoreError::Overloaded => {}
                    StoreError::Timeout | StoreError::TimedOutUnsent => {
                        self.loss.missed(moment.steady)
                    }
                    _ => self.loss.failed(error.of_part(), moment.steady),
                }
                self.free_later(batch, now);
                *counts = self.instead(batch, moment, error)?;
                Ok(())
            }
        }
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }
}
