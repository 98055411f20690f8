//! The return of a store, and the hits that are handed back to it.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{recent::SeenCount, state::Loss};
use crate::{
    core::window::{Moment, SteadyTime, Timestamp},
    store::contract::{Deadline, Store, StoreError},
};

/// The increments of one request to a store that is back, beside those of one more counter; decisions wait behind it.
/// The first request has one counter, and each has twice as many as the last: a store that is back only for a moment
/// costs little.
const RECONCILED_AT_ONCE: usize = 200;

/// How often a lost store is checked. A check sends nothing.
const LOOK: Duration = Duration::from_millis(10);

/// Local counters that have ended are dropped with one of this many looks: once a second.
const LOOKS_FOR_A_SWEEP: u32 = 100;

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
            self.is_back().await;
            self.loss.returned();
            let moment = || Moment {
                now: now(),
                steady: steady(),
            };
            self.hand_back(moment).await;
        }
    }

    /// Waits until all servers of the store are well. As long as one is not, its counters are counted
    /// locally, and the others in the store.
    async fn is_back(&self) {
        let mut was_gone = false;
        for look in 0_u32.. {
            if look.is_multiple_of(LOOKS_FOR_A_SWEEP) {
                self.loss.sweep(steady());
            }
            let is_well = self.store.state().is_well;
            if is_well && (was_gone || self.loss.was_quiet(steady())) {
                return;
            }
            was_gone |= !is_well;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Adds to the store the hits that were let pass without it and that still count. Hits that it does not confirm may
    /// have counted and are not sent again; the rest waits for the next return.
    pub(super) async fn hand_back(&self, moment: impl Fn() -> Moment) {
        let (mut at_once, mut next) = (1, 0);
        self.loss.begin_return();
        loop {
            let moment = moment();
            if !self.store.state().is_well {
                self.loss.failed(StoreError::Unreachable, moment.steady);
                self.loss.request_reconcile();
                return;
            }
            let Some(batch) = self.loss.take(&mut next, at_once, moment) else {
                return;
            };
            at_once = (2 * at_once).min(RECONCILED_AT_ONCE);
            if batch.is_empty() {
                continue;
            }
            // In case the store is lost again, whether it confirms them or not.
            self.loss.expect(&batch, &moment);
            let hits = batch.all_specs().map(|spec| spec.added()).sum();
            let stats = &self.loss.stats;
            let counts = match self.store.add(&batch, moment.now).await {
                Ok(counts) => counts,
                Err(error) => {
                    stats.lost_hits.fetch_add(hits, Relaxed);
                    self.loss.failed(error, moment.steady);
                    self.loss.request_reconcile();
                    return;
                }
            };
            stats.reconciled.fetch_add(hits, Relaxed);
            for (increment, count) in batch.iter().zip(&counts) {
                let seen = SeenCount::new(&increment.spec, count, &moment);
                self.loss.note(increment.key, seen);
            }
        }
    }
}

fn steady() -> SteadyTime {
    Deadline::of_store().steady()
}
