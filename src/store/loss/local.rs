//! Counting in this process while a store does not reply, by this replica's part of each limit.

use std::sync::Arc;

use crate::{
    core::{
        counter::{Batch, CounterState, CounterStates, IncrementSpec},
        window::{Moment, SteadyTime, Timestamp},
    },
    store::memory::{
        CounterBounds, MemoryStore,
        begun::{Begin, TakenCounter},
    },
};

/// The local counts of one loss. They are bounded: a counter without room begins with its last known count as well, but
/// its local hits are in a sketch, and are not added to the store afterwards.
#[derive(Debug)]
pub(super) struct LocalCounters {
    counters: Arc<MemoryStore>,
    /// The moment of the first hit. From then on time is that of the clock that cannot be set: no step of the time of
    /// day keeps hits for longer or drops them.
    began: Option<Moment>,
    was_full: bool,
    lacked_replicas: bool,
}

impl LocalCounters {
    pub(super) fn new(bounds: &CounterBounds) -> Self {
        Self {
            counters: Arc::new(MemoryStore::bounded(bounds)),
            began: None,
            was_full: false,
            lacked_replicas: false,
        }
    }

    /// `moment` by the time of these counters.
    pub(super) fn moment(&mut self, moment: Moment) -> Moment {
        let began = self.began.get_or_insert(moment);
        Moment {
            now: began.time_of(moment.steady),
            ..moment
        }
    }

    /// The counters, and the time by which they can be swept; `None` if there are none.
    pub(super) fn to_sweep(&self, at: SteadyTime) -> Option<(Arc<MemoryStore>, Timestamp)> {
        let began = self.began?;
        Some((self.counters.clone(), began.time_of(at)))
    }

    /// Logs once that shares are as small as they can be.
    pub(super) fn lack_replicas(&mut self) {
        if !self.lacked_replicas {
            self.lacked_replicas = true;
            tracing::warn!(
                "the number of replicas is not known yet: this one admits one hit of each counter"
            );
        }
    }

    /// Counts `shares` at `now`, a time of these counters. Also returns how many hits had no room.
    pub(super) fn count(
        &mut self,
        shares: &Batch,
        now: Timestamp,
        begin: Begin<'_>,
    ) -> (CounterStates, u64) {
        let before = self.counters.sketched_hits();
        let counts = self.counters.apply_beginning(shares, now, begin);
        let sketched = self.counters.sketched_hits() - before;
        if sketched > 0 && !self.was_full {
            self.was_full = true;
            tracing::warn!(
                counters = self.counters.live_counters(),
                "no room for more local counters: others are counted in a sketch, with which they may be refused early"
            );
        }
        (counts, sketched)
    }

    /// Takes out up to `most` counters, from the place `next` on, which moves on with them.
    pub(super) fn take(&self, next: &mut usize, most: usize) -> Vec<TakenCounter> {
        self.counters.take_begun(next, most)
    }

    /// How many counters there are.
    pub(super) fn len(&self) -> usize {
        self.counters.live_counters()
    }
}

/// This replica's part of a limit: at least one hit of a limit that admits any.
pub(super) fn share(spec: &IncrementSpec, replicas: u32) -> IncrementSpec {
    IncrementSpec {
        limit: spec.limit.div_ceil(replicas.into()),
        method: spec.method.divided(replicas),
        ..*spec
    }
}

/// Converts a count within a share into one within the whole limit that leaves as much.
pub(super) fn scaled_to_limit(
    spec: &IncrementSpec,
    share: &IncrementSpec,
    count: CounterState,
) -> CounterState {
    let (limit, part) = (spec.limit, share.limit);
    let after = match part.checked_sub(count.after) {
        Some(left) if count.is_charged || !count.is_over(share.limit, share.added()) => {
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
