//! Leases of the requests of this process: tokens are made here, and each is settled once.

use std::{
    collections::hash_map::RandomState,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::{
    core::{
        decision::Leased,
        lease::{
            order::{LeaseMemory, Order, OrderedHits, ordered_hits},
            token::{LeaseId, LeaseToken},
        },
        window::Timestamp,
    },
    foundation::{generations::Generations, lock::lock, random},
    store::loss::Loss,
};

/// This many of the latest settlements are remembered, or up to twice as many: those of 30 seconds, if there are 270 in
/// each. A call that Envoy repeats comes sooner.
const REMEMBERED: usize = 8_192;

/// This many counters that were reset lately are remembered, or up to twice as many.
const RESETS: usize = 1_024;

mod waiting;

use waiting::WaitingCosts;

/// Makes tokens, and remembers which were settled lately. All workers share it.
#[derive(Clone, Debug)]
pub struct LeaseBook {
    /// 0 if the counters outlive this process; otherwise a number for their life.
    epoch: u32,
    /// Those of the shared stores: meanwhile hits are counted in this process.
    losses: Arc<[Arc<Loss>]>,
    latest: Arc<Mutex<LatestLeases>>,
    pub(crate) waiting: WaitingCosts,
}

#[derive(Debug)]
struct LatestLeases {
    /// By lease and the mark of the descriptor: a lease of two is settled for each.
    settled: Generations<(LeaseId, u32), (), RandomState>,
    /// When counters were reset, by key.
    resets: Generations<Box<[u8]>, Timestamp, RandomState>,
}

impl LeaseBook {
    /// For counters in a store that other processes use too, and that outlives this one.
    pub fn of_shared_store() -> Self {
        Self::of_epoch(0)
    }

    /// Its tokens tell which hits were counted during one of these `losses`.
    pub(crate) fn with_losses(self, losses: Arc<[Arc<Loss>]>) -> Self {
        Self { losses, ..self }
    }

    /// For counters in the memory of this process.
    pub fn of_memory() -> Self {
        Self::of_epoch(random::epoch())
    }

    fn of_epoch(epoch: u32) -> Self {
        let latest = LatestLeases {
            settled: Generations::new(REMEMBERED),
            resets: Generations::new(RESETS),
        };
        Self {
            epoch,
            losses: Arc::default(),
            latest: Arc::new(Mutex::new(latest)),
            waiting: WaitingCosts::default(),
        }
    }

    /// A name for the leases of one request.
    pub(crate) fn name() -> LeaseId {
        LeaseId(random::id())
    }

    /// The token of what was leased at `at`, in the store or, if `is_degraded`, without it; `None` if that is too much
    /// for one.
    pub(crate) fn token(
        &self,
        leased: &Leased,
        is_degraded: bool,
        at: Timestamp,
    ) -> Option<LeaseToken> {
        let parts = leased.reserved.iter().map(|(_, part)| part.clone());
        let mut local = self.losses.iter().filter_map(|loss| loss.local_epoch());
        let epoch = match is_degraded {
            // If the loss has ended, nothing is given back.
            true => local.next().unwrap_or(LeaseToken::ENDED_EPOCH),
            false => self.epoch,
        };
        LeaseToken::new(at, leased.id, epoch, parts)
    }

    /// The increments for the orders of one message.
    pub(crate) fn ordered_hits<'a>(&self, orders: &[Order<'a>], now: Timestamp) -> OrderedHits<'a> {
        let mut memory = OpenBook {
            book: self,
            latest: lock(&self.latest),
        };
        ordered_hits(orders, &mut memory, now)
    }

    /// Remembers that a counter was reset: what was charged before is not given back to it.
    pub(crate) fn record_reset(&self, key: &[u8], now: Timestamp) {
        lock(&self.latest).resets.insert(key, now, 1);
    }
}

/// A book, locked.
struct OpenBook<'b> {
    book: &'b LeaseBook,
    latest: MutexGuard<'b, LatestLeases>,
}

impl LeaseMemory for OpenBook<'_> {
    fn knows(&self, epoch: u32) -> bool {
        let losses = &self.book.losses;
        epoch == self.book.epoch || losses.iter().any(|loss| loss.local_epoch() == Some(epoch))
    }

    fn is_first(&mut self, id: LeaseId, descriptor: u32) -> bool {
        let settled = &mut self.latest.settled;
        let is_first = settled.get(&(id, descriptor)).is_none();
        if is_first {
            settled.insert(&(id, descriptor), (), 1);
        }
        is_first
    }

    fn was_reset(&self, key: &[u8], since: Timestamp) -> bool {
        let reset = self.latest.resets.get(key);
        reset.is_some_and(|reset| *reset >= since)
    }
}

#[cfg(test)]
mod tests;
