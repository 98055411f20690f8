//! Counts requests that lease hits, and carries out their orders for earlier ones. Both go on if the caller gives up.

use std::{future::pending, mem, pin::Pin};

use super::{Limiter, RuleSet};
use crate::{
    core::{
        counter::{Batch, CounterStates},
        lease::order::Order,
        plan::Plan,
        window::Timestamp,
    },
    observe::metrics::Recorder,
    service::leases::LeaseBook,
    store::{
        contract::{Deadline, Store, StoreError},
        returns::{OpenWork, Returns, SentLease, free_slots, pause},
    },
};

type BoxedWork<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Work that goes on when the call that waits for it is dropped, because its caller has given up.
struct Outliving<T: Send + 'static> {
    /// `None` once it has ended.
    work: Option<BoxedWork<T>>,
    /// Follows it if the call is dropped.
    if_dropped: fn(T) -> BoxedWork<()>,
    returns: Returns,
    /// Room for both.
    room: Option<OpenWork>,
}

impl<T: Send + 'static> Outliving<T> {
    fn new(
        returns: &Returns,
        room: Option<OpenWork>,
        work: impl Future<Output = T> + Send + 'static,
        if_dropped: fn(T) -> BoxedWork<()>,
    ) -> Self {
        Self {
            work: Some(Box::pin(work)),
            if_dropped,
            returns: returns.clone(),
            room,
        }
    }

    async fn end(mut self) -> T {
        let result = match &mut self.work {
            Some(work) => work.await,
            None => pending().await,
        };
        self.work = None;
        result
    }
}

impl<T: Send + 'static> Drop for Outliving<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            let if_dropped = self.if_dropped;
            let followed = async move { if_dropped(work.await).await };
            match self.room.take() {
                Some(room) => self.returns.take_in(room, followed),
                None => _ = self.returns.take(followed),
            }
        }
    }
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
        let counted = if leases.leases() {
            let batch = mem::take(&mut plan.batch);
            let sent = self.count_lease(batch, now, *deadline).await;
            plan.batch = sent.batch;
            *counts = sent.counts;
            sent.result
        } else {
            self.count(counts, &plan.batch, now, deadline).await
        };
        if !leases.orders.is_empty() {
            self.carry_out(&leases.orders, rules, now).await;
        }
        counted
    }

    /// Counts hits that no caller would settle if the call was dropped. Then exactly those that were charged are given
    /// back. Without room for that, nothing is sent.
    async fn count_lease(
        &self,
        batch: Box<Batch>,
        now: Timestamp,
        deadline: Deadline,
    ) -> SentLease<S> {
        let deadline = Deadline {
            is_for_lease: true,
            ..deadline
        };
        let room = self.returns.room();
        let has_room = room.is_some();
        let sending = SentLease::send(self.store.clone(), batch, now, deadline, has_room);
        let counting = Outliving::new(&self.returns, room, sending, |sent| {
            Box::pin(sent.take_back())
        });
        counting.end().await
    }

    async fn carry_out(&self, orders: &[Order<'_>], rules: &RuleSet, now: Timestamp) {
        let hits = self.leases.ordered_hits(orders, now);
        self.metrics.record_orders(&rules.stats, &hits);
        let settler = Settler {
            store: self.store.clone(),
            returns: self.returns.clone(),
            leases: self.leases.clone(),
            metrics: self.metrics.clone(),
            now,
        };
        let outcomes = hits.outcomes;
        let settling = settler.settle(hits.adds, hits.gives_back, hits.frees);
        let room = self.returns.room();
        let settling = Outliving::new(&self.returns, room, settling, |_| Box::pin(async {}));
        let (adds, added) = settling.end().await;
        self.metrics
            .record_beyond(&rules.stats, &outcomes, &adds, &added);
    }
}

/// Sends what settlements change to the store.
struct Settler<S> {
    store: S,
    returns: Returns,
    leases: LeaseBook,
    metrics: Recorder,
    now: Timestamp,
}

impl<S: Store + Clone> Settler<S> {
    /// Returns the hits that were added with the counts after them, if they are known. No caller waits for an answer,
    /// so the deadline is the store's own.
    async fn settle(self, adds: Batch, gives_back: Batch, frees: Batch) -> (Batch, CounterStates) {
        let mut added = CounterStates::new();
        if !adds.is_empty() {
            let (deadline, store) = (Deadline::of_store_itself(), &self.store);
            let charged = store.add_into(&mut added, &adds, self.now, &deadline);
            if let Err(error) = charged.await {
                added.clear();
                self.keep_or_lose(error, &adds);
            }
        }
        if !gives_back.is_empty() && self.store.add(&gives_back, self.now).await.is_err() {
            // Sent later, or twice, it could take hits off that others have counted.
            self.metrics.record_lost_settlements(1);
        }
        if !frees.is_empty() && self.store.add(&frees, self.now).await.is_err() {
            let (store, now) = (self.store.clone(), self.now);
            self.returns.take(async move {
                pause().await;
                free_slots(&store, &frees, now).await;
            });
        }
        (adds, added)
    }

    /// Sends costs later that were certainly not sent.
    fn keep_or_lose(&self, error: StoreError, costs: &Batch) {
        if !error.is_unsent() {
            return self.metrics.record_lost_settlements(1);
        }
        let (lost, has_to_be_sent) = self.leases.waiting.add(costs, self.now);
        self.metrics.record_lost_settlements(lost);
        if !has_to_be_sent {
            return;
        }
        let (store, metrics) = (self.store.clone(), self.metrics.clone());
        let waiting = self.leases.waiting.clone();
        let sending = async move {
            let lost = |costs| metrics.record_lost_settlements(costs);
            waiting.send(store, lost).await;
        };
        if !self.returns.take(sending) {
            self.leases.waiting.put_off();
        }
    }
}

#[cfg(test)]
mod tests;
