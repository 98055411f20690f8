//! The state of a counter after an increment.

use std::{cell::RefCell, thread::LocalKey};

use smallvec::SmallVec;

use crate::{
    core::{
        counter::{BucketPlace, IncrementSpec},
        kind::CounterKind,
        limit::OnStoreLoss,
    },
    foundation::object_pool::{IdleList, Poolable},
};

/// The state of a counter after an increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// The hits that the counter holds now; sliding windows and buckets round up. After a refusal
    /// without a charge it includes earlier uncharged hits of the request on this counter.
    pub after: u64,
    /// Whether the hits of this increment are included.
    pub is_charged: bool,
    /// Whether it is known to be over the limit without asking the store.
    pub is_cached: bool,
    /// Whether it was answered without the store, which does not reply.
    pub is_degraded: bool,
    /// When the counter changes; `None` if its window determines that.
    pub ends: Option<ResetTimes>,
    /// Where a bucket was reserved from.
    pub place: BucketPlace,
}

/// When a counter changes if no further hits arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetTimes {
    /// Milliseconds until it is empty; 0 if it is.
    pub resets_in: u64,
    /// Milliseconds until the same hits would pass: 0 if they would now, `None` if they never will.
    pub retry_in: Option<u64>,
}

impl From<u64> for CounterState {
    fn from(after: u64) -> Self {
        Self {
            after,
            is_charged: true,
            is_cached: false,
            is_degraded: false,
            ends: None,
            place: BucketPlace::default(),
        }
    }
}

impl CounterState {
    /// Whether the hits that led to this count, of which `added` were to be added, are too many for `limit`. A look
    /// without hits is over only if the count itself is.
    pub fn is_over(self, limit: u64, added: u64) -> bool {
        let missing = if self.is_charged { 0 } else { added };
        self.after.saturating_add(missing) > limit
    }

    /// How long the oldest slot is held, in whole seconds, if its counter has any.
    pub(crate) fn oldest_secs(self, spec: &IncrementSpec) -> Option<u64> {
        let leaves_in = self.ends.filter(|_| self.after > 0)?.resets_in;
        let has_slots = matches!(spec.method, CounterKind::Slots { .. });
        has_slots.then(|| spec.period_millis.saturating_sub(leaves_in) / 1000)
    }

    /// Whether the hits of `spec` are in its counter: a rule that allows them while the store does not reply counts
    /// none.
    pub fn was_counted(self, spec: &IncrementSpec) -> bool {
        let was_let_pass = self.is_degraded && spec.on_loss == OnStoreLoss::Allow;
        self.is_charged && !was_let_pass
    }
}

/// The counts after a batch's increments, in their order.
pub type CounterStates = SmallVec<[CounterState; 8]>;

thread_local! {
    static COUNT_LISTS: IdleList<CounterStates> = const { RefCell::new(Vec::new()) };
}

impl Poolable for CounterStates {
    fn idle() -> &'static LocalKey<IdleList<Self>> {
        &COUNT_LISTS
    }

    fn clear(&mut self) -> bool {
        Self::clear(self);
        !self.spilled()
    }
}
