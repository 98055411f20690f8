//! Answers while a store, such as Redis, is lost. `redis/health/breaker.rs` holds whether it is.
//!
//! Each rule chooses its answer (`on_store_loss`). A rule that counts locally keeps to this replica's share of each
//! limit, in counters of this process that begin empty. They are dropped when the store is back, and nothing is added
//! to it: so a client may use one more window for each loss, its limit and the share of each replica.
//!
//! A request over several nodes is counted locally as a whole if one of them is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
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
        window::{SteadyTime, Timestamp},
    },
    foundation::object_pool::Pooled,
};

mod state;
mod stats;
#[cfg(test)]
mod tests;

pub(crate) use state::Loss;
pub(crate) use stats::{LossStats, LostLimits};

/// A store around a store, one for each worker. The local counts belong to the whole process.
#[derive(Debug)]
pub(crate) struct OnLoss<S> {
    store: S,
    loss: Arc<Loss>,
    returns: Returns,
    /// The longest that a caller waits.
    longest: Duration,
    began: Instant,
    /// The domain whose use was recorded last, and the second after `began`.
    asked: AtomicU64,
}

impl<S> OnLoss<S> {
    pub(crate) fn new(store: S, loss: Arc<Loss>, returns: Returns, longest: Duration) -> Self {
        Self {
            store,
            loss,
            returns,
            longest,
            began: Instant::now(),
            asked: AtomicU64::new(u64::MAX),
        }
    }

    /// Records that this replica was asked for a domain, if the number of its replicas can matter. Once a second is
    /// enough.
    fn record_use(&self, batch: &Batch, at: SteadyTime) {
        let mut specs = batch.all_specs();
        let Some(spec) = specs.find(|spec| spec.on_loss == OnStoreLoss::Local) else {
            return;
        };
        let second = at.since(self.began.into()).as_secs();
        let asked = second << 32 | u64::from(spec.domain);
        if self.asked.load(Relaxed) != asked {
            self.asked.store(asked, Relaxed);
            self.loss.replicas.ask(spec.domain, at);
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
        let mut local = CounterStates::new();
        if has_policy(OnStoreLoss::Local) {
            let mut counted = Batch::default();
            for increment in batch.iter() {
                if increment.on_loss == OnStoreLoss::Local {
                    counted.append_one(increment);
                }
            }
            local = self.loss.count(&counted, now);
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
        self.record_use(batch, deadline.steady());
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
