//! Counts requests that lease hits, and carries out their orders for earlier ones. Both go on if the caller gives up.

use std::{mem, pin::Pin, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Limiter, RuleSet};
use crate::{
    core::{
        counter::{Batch, CounterStates},
        lease::order::Order,
        plan::Plan,
        window::Timestamp,
    },
    foundation::{object_pool::Pooled, random},
    observe::metrics::Recorder,
    store::{
        contract::{Deadline, ImmediateStore, Store, StoreError},
        returns::Returns,
    },
};

/// About the time between attempts to send costs to a store that is away.
const RETRY: Duration = Duration::from_secs(1);

/// Costs wait for a store no longer than this: a day.
const MAX_KEPT_MILLIS: u64 = 86_400_000;

type BoxedWork<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Work that goes on when the call that waits for it is dropped, because its caller has given up.
struct Outliving<T: Send + 'static, F: FnOnce(T) -> BoxedWork<()> + Send + 'static> {
    /// The work, and what to do after it if the call is dropped. `None` once it has ended.
    work: Option<(BoxedWork<T>, F)>,
    returns: Returns,
}

impl<T: Send + 'static, F: FnOnce(T) -> BoxedWork<()> + Send + 'static> Outliving<T, F> {
    fn new(
        returns: &Returns,
        work: impl Future<Output = T> + Send + 'static,
        if_dropped: F,
    ) -> Self {
        Self {
            work: Some((Box::pin(work), if_dropped)),
            returns: returns.clone(),
        }
    }

    async fn end(mut self) -> Option<T> {
        let (work, _) = self.work.as_mut()?;
        let result = work.await;
        self.work = None;
        Some(result)
    }
}

impl<T: Send + 'static, F: FnOnce(T) -> BoxedWork<()> + Send + 'static> Drop for Outliving<T, F> {
    fn drop(&mut self) {
        if let Some((work, if_dropped)) = self.work.take() {
            self.returns
                .take(async move { if_dropped(work.await).await });
        }
    }
}

/// A batch and the counts after it.
struct Counted {
    batch: Pooled<Batch>,
    counts: CounterStates,
    result: Result<(), StoreError>,
}

impl<S: Store + Clone> Limiter<S> {
    /// [`Limiter::count`] for a plan with leases or orders.
    ///
    /// # Errors
    ///
    /// As [`Limiter::count`]; orders are carried out nevertheless.
    pub(super) async fn count_with_leases(
        &self,
        counts: &mut CounterStates,
        plan: &mut Plan<'_>,
        rules: &RuleSet,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), StoreError> {
        let Some(leases) = plan.leases.as_deref() else {
            return self.count(counts, &plan.batch, now, deadline).await;
        };
        let counted = if leases.reserved.is_empty() {
            self.count(counts, &plan.batch, now, deadline).await
        } else {
            let batch = mem::take(&mut plan.batch);
            match self.count_lease(batch, now, *deadline).await {
                Some(counted) => {
                    plan.batch = counted.batch;
                    *counts = counted.counts;
                    counted.result
                }
                None => Ok(()),
            }
        };
        if !leases.orders.is_empty() {
            self.carry_out(&leases.orders, rules, now).await;
        }
        counted
    }

    /// Counts hits that no caller would settle if the call was dropped. Then exactly those that were charged are given
    /// back.
    async fn count_lease(
        &self,
        batch: Pooled<Batch>,
        now: Timestamp,
        deadline: Deadline,
    ) -> Option<Counted> {
        let (store, store_of_return) = (self.store.clone(), self.store.clone());
        let deadline = Deadline {
            is_for_lease: true,
            ..deadline
        };
        let counting = async move {
            let mut counts = CounterStates::new();
            let result = store.add_into(&mut counts, &batch, now, &deadline).await;
            Counted {
                batch,
                counts,
                result,
            }
        };
        let give_back = move |counted: Counted| -> BoxedWork<()> {
            Box::pin(async move {
                let returned = counted.batch.returned(&counted.counts);
                if counted.result.is_ok() && !returned.is_empty() {
                    // Otherwise the hits stay charged until their window ends.
                    let _ = store_of_return.add(&returned, now).await;
                }
            })
        };
        Outliving::new(&self.returns, counting, give_back)
            .end()
            .await
    }

    async fn carry_out(&self, orders: &[Order<'_>], rules: &RuleSet, now: Timestamp) {
        let hits = self.leases.ordered_hits(orders, now);
        self.metrics.record_orders(&rules.stats, &hits);
        let settler = Settler {
            store: self.store.clone(),
            returns: self.returns.clone(),
            metrics: self.metrics.clone(),
            now,
        };
        let outcomes = hits.outcomes;
        let settling = settler.settle(hits.adds, hits.gives_back);
        let nothing = |_| -> BoxedWork<()> { Box::pin(async {}) };
        let settling = Outliving::new(&self.returns, settling, nothing);
        if let Some((adds, added)) = settling.end().await {
            self.metrics
                .record_beyond(&rules.stats, &outcomes, &adds, &added);
        }
    }

    /// [`Self::carry_out`] without a future.
    pub(super) fn carry_out_at_once(
        &self,
        store: &dyn ImmediateStore,
        orders: &[Order<'_>],
        rules: &RuleSet,
        now: Timestamp,
    ) {
        let hits = self.leases.ordered_hits(orders, now);
        self.metrics.record_orders(&rules.stats, &hits);
        let count = |batch: &Batch| {
            let mut counts = CounterStates::new();
            if !batch.is_empty() && store.add_at_once(&mut counts, batch, now).is_err() {
                self.metrics.record_lost_settlement();
                counts.clear();
            }
            counts
        };
        let added = count(&hits.adds);
        count(&hits.gives_back);
        self.metrics
            .record_beyond(&rules.stats, &hits.outcomes, &hits.adds, &added);
    }
}

/// Sends what settlements change to the store.
struct Settler<S> {
    store: S,
    returns: Returns,
    metrics: Recorder,
    now: Timestamp,
}

impl<S: Store + Clone> Settler<S> {
    /// Returns the hits that were added with the counts after them, if they are known. No caller waits for an answer,
    /// so the deadline is the store's own.
    async fn settle(self, adds: Batch, gives_back: Batch) -> (Batch, CounterStates) {
        let mut added = CounterStates::new();
        if !adds.is_empty() {
            let deadline = Deadline::of_store();
            let charged = self
                .store
                .charge_into(&mut added, &adds, self.now, &deadline);
            if let Err(error) = charged.await {
                added.clear();
                self.keep_or_lose(error, &adds);
            }
        }
        if !gives_back.is_empty() && self.store.add(&gives_back, self.now).await.is_err() {
            // Sent later, or twice, it could take hits off that others have counted.
            self.metrics.record_lost_settlement();
        }
        (adds, added)
    }

    /// Sends costs again that were certainly not sent, until the store is back or their windows have ended.
    fn keep_or_lose(&self, error: StoreError, costs: &Batch) {
        let mut batch = Batch::default();
        batch.append(costs);
        let ends = costs.all_specs().map(|spec| spec.expires_at.millis());
        let lasts = ends.max().unwrap_or(0).saturating_sub(self.now.millis());
        let end = Instant::now() + Duration::from_millis(lasts.min(MAX_KEPT_MILLIS));
        let (store, metrics, now) = (self.store.clone(), self.metrics.clone(), self.now);
        let keeping = async move {
            loop {
                sleep(random::between(RETRY / 2, RETRY)).await;
                let mut counts = CounterStates::new();
                let deadline = Deadline::of_store();
                let charged = store.charge_into(&mut counts, &batch, now, &deadline);
                match charged.await {
                    Ok(()) => return,
                    Err(error) if error.is_unsent() && Instant::now() < end => {}
                    Err(_) => return metrics.record_lost_settlement(),
                }
            }
        };
        if !error.is_unsent() || !self.returns.take(keeping) {
            self.metrics.record_lost_settlement();
        }
    }
}

#[cfg(test)]
mod tests;
