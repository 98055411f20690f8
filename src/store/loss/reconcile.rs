//! The return of a store, and the hits that are handed back to it.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{recent::SeenCount, state::Loss};
use crate::{
    core::{
        counter::{Batch, Increment},
        window::Timestamp,
    },
    store::contract::{Store, StoreError},
};

/// The most increments of one request to a store that is back; decisions wait behind it. The first
/// request has one increment, and each has twice as many as the last: a store that is back only for a
/// moment costs little.
const RECONCILED_AT_ONCE: usize = 200;

/// How often a lost store is checked. A check sends nothing.
const LOOK: Duration = Duration::from_millis(10);

/// Waits for the return of a store and hands back the hits that were let pass without it. There is one
/// for the process, and no decision waits for it: until it is done, counts in the store may lack these
/// hits.
#[derive(Debug)]
pub(crate) struct Reconciler<S> {
    pub store: S,
    pub loss: Arc<Loss>,
}

impl<S: Store> Reconciler<S> {
    /// Runs as long as the process. `now` reads the clock for windows.
    pub(crate) async fn run(self, now: impl Fn() -> Timestamp) -> Infallible {
        loop {
            self.loss.reconcile_requested.notified().await;
            self.is_back(&now).await;
            self.loss.returned();
            self.hand_back(now()).await;
        }
    }

    /// Waits until all servers of the store are well. As long as one is not, its counters are counted
    /// locally, and the others in the store.
    async fn is_back(&self, now: &impl Fn() -> Timestamp) {
        let mut was_gone = false;
        loop {
            let is_well = self.store.is_well();
            if is_well && (was_gone || self.loss.was_quiet(now())) {
                return;
            }
            was_gone |= !is_well;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Adds to the store the hits that were let pass without it. Hits that it does not confirm may have
    /// counted and are not sent again; the rest waits for the next return.
    async fn hand_back(&self, now: Timestamp) {
        let mut spent = self.loss.take();
        spent.retain(|(_, spent)| spent.matters(now));
        let mut at_once = 1;
        while !spent.is_empty() {
            if !self.store.is_well() {
                self.loss.failed(StoreError::Unreachable, now);
                self.loss.put_back(spent, now);
                return;
            }
            let some = spent.split_off(spent.len().saturating_sub(at_once));
            at_once = (2 * at_once).min(RECONCILED_AT_ONCE);
            let mut batch = Batch::default();
            let mut hits = 0;
            for (key, spent) in &some {
                // In case the store is lost again, whether it confirms them or not.
                self.loss.expect(key, spent, now);
                let spec = spent.added();
                batch.append_one(Increment { key, spec });
                hits += spent.hits.max(0).unsigned_abs();
            }
            let stats = &self.loss.stats;
            let counts = match self.store.add(&batch, now).await {
                Ok(counts) => counts,
                Err(error) => {
                    stats.lost_hits.fetch_add(hits, Relaxed);
                    self.loss.failed(error, now);
                    self.loss.put_back(spent, now);
                    return;
                }
            };
            stats.reconciled.fetch_add(hits, Relaxed);
            for (increment, count) in batch.iter().zip(&counts) {
                let seen = SeenCount::new(&increment.spec, count, now);
                self.loss.note(increment.key, seen);
            }
        }
    }
}
