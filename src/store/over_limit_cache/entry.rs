//! Facts about counters that are over.

use std::{cell::Cell, time::Duration};

use foldhash::quality::RandomState;

use crate::{
    core::{
        counter::{
            Batch, Charge, CounterKind, CounterState, Increment, IncrementSpec, Operation,
            ResetTimes,
        },
        window::SteadyTime,
    },
    foundation::generations::Generations,
};

/// How long the store is not asked about a counter that is over.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// A counter that is over.
#[derive(Clone, Debug)]
pub(super) struct OverEntry {
    what: Cell<OverState>,
    /// When the request arrived to which the store replied with this.
    remembered_at: SteadyTime,
    /// Hits that were refused here, and that would count in the store if it had been asked.
    uncounted: Cell<u64>,
}

/// A fact about a counter.
#[derive(Clone, Copy, Debug)]
enum OverState {
    /// The fact may have become false.
    Doubted,
    /// A counter with a window in its key holds this much, or more.
    Holds(u64),
    /// One hit does not pass under exactly this limit.
    Full {
        limit: u64,
        method: CounterKind,
        /// When one hit passes.
        passes_at: SteadyTime,
        /// When the counter is empty.
        resets_at: SteadyTime,
    },
}

/// The approximate size of an entry without its key, in bytes.
const ENTRY_BYTES: usize = 128;

impl OverEntry {
    /// The fact that follows from `count` after `spec`, if it is of use. `is_one_step` is whether
    /// every request is judged in one step.
    pub(super) fn new(
        spec: &IncrementSpec,
        count: CounterState,
        is_one_step: bool,
        now: SteadyTime,
    ) -> Option<Self> {
        if spec.hits == 0 || !count.is_over(spec.limit, spec.added()) {
            return None;
        }
        let is_admitted = spec.operation == Operation::Add(Charge::Admitted);
        // Where slices are used, a count that falls meanwhile is noticed soon enough.
        let may_be_given_back = is_admitted && !is_one_step && !spec.is_sliced;
        let has_rest = count.after < spec.limit;
        if !count.is_charged && (may_be_given_back || has_rest) {
            return None;
        }
        if let CounterKind::Slots { .. } = spec.method {
            // A slot can be free at any moment.
            return None;
        }
        let after = |millis| now.plus(Duration::from_millis(millis));
        let what = match count.ends {
            None => OverState::Holds(count.after),
            // Hits that were refused but have to count could come too late, into the next window.
            Some(_) if count.is_charged || spec.added() != 1 => return None,
            Some(ends) => OverState::Full {
                limit: spec.limit,
                method: spec.method,
                // A counter that never lets the hits pass is not asked for often enough to be worth an
                // entry.
                passes_at: after(ends.retry_in?),
                resets_at: after(ends.resets_in),
            },
        };
        Some(Self {
            what: Cell::new(what),
            remembered_at: now,
            uncounted: Cell::new(0),
        })
    }

    /// The count that the store would return for `spec`, which this answers.
    pub(super) fn count(&self, spec: &IncrementSpec, now: SteadyTime) -> CounterState {
        let until = |moment: SteadyTime| millis(moment.since(now));
        let (after, ends) = match self.what.get() {
            OverState::Full {
                passes_at,
                resets_at,
                ..
            } => {
                let ends = ResetTimes {
                    resets_in: until(resets_at),
                    retry_in: Some(until(passes_at)),
                };
                (spec.limit, Some(ends))
            }
            OverState::Holds(count) => (count, None),
            OverState::Doubted => (spec.limit, None),
        };
        CounterState {
            is_charged: false,
            is_cached: true,
            ends,
            ..CounterState::from(after)
        }
    }

    /// Whether hits can pass again. An entry of a window never ends, because the window is in its key.
    pub(super) fn has_ended(&self, now: SteadyTime) -> bool {
        matches!(self.what.get(), OverState::Full { passes_at, .. } if passes_at <= now)
    }

    /// Whether the store need not be asked yet, if it can be.
    pub(super) fn is_believed(&self, now: SteadyTime) -> bool {
        now.since(self.remembered_at) < BELIEVED_FOR
    }

    /// Records hits that were refused here and would have counted.
    pub(super) fn refused(&self, hits: u64) {
        self.uncounted
            .set(self.uncounted.get().saturating_add(hits));
    }

    /// Takes hits that are given back off those that were refused here, and returns the rest.
    pub(super) fn take_back(&self, hits: u64) -> u64 {
        let refused = self.uncounted.get();
        self.uncounted.set(refused.saturating_sub(hits));
        hits.saturating_sub(refused)
    }

    /// Whether the store would refuse `increment` of `batch`, if the entry has not ended.
    pub(super) fn refuses(&self, batch: &Batch, increment: &Increment<'_>) -> bool {
        match self.what.get() {
            OverState::Doubted => false,
            // A look is over only if the count is.
            OverState::Holds(count) => {
                count.saturating_add(increment.added().min(1)) > increment.limit
            }
            OverState::Full { limit, method, .. } => {
                (increment.added(), increment.limit, increment.method) == (1, limit, method)
                    && !is_repeated(batch, increment)
            }
        }
    }
}

/// Milliseconds, rounded up: a hit that is refused now passes in 1 at the earliest.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Whether a counter occurs in the request more than once. Each of its counts then concerns both.
pub(super) fn is_repeated(batch: &Batch, increment: &Increment<'_>) -> bool {
    batch.len() > 1 && {
        let same = |other: &Increment<'_>| other.key == increment.key;
        batch.iter().filter(same).count() > 1
    }
}

/// Entries of counters that are over. Of those that were dropped for lack of room the ones that are still
/// in use have to be found out again.
#[derive(Debug)]
pub(super) struct OverEntries(
    /// Seeded at random for each process, because keys come from outside.
    Generations<Box<[u8]>, OverEntry, RandomState>,
);

impl OverEntries {
    /// No entries; there is room for `max_bytes`.
    pub(super) fn new(max_bytes: usize) -> Self {
        // Two generations share the bound.
        Self(Generations::new(max_bytes / 2))
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&OverEntry> {
        self.0.get(key)
    }

    /// Inserts an entry and returns how many others it evicted.
    pub(super) fn insert(&mut self, key: &[u8], over: OverEntry) -> usize {
        if let Some(known) = self.get(key) {
            over.uncounted.set(known.uncounted.take());
        }
        let bytes = key.len() + ENTRY_BYTES;
        self.0.insert(key, over, bytes).unwrap_or(0)
    }

    pub(super) fn doubt(&self, key: &[u8]) {
        if let Some(over) = self.get(key) {
            over.what.set(OverState::Doubted);
        }
    }

    /// Doubts counters that `batch` uses with another limit, because that may let hits pass which change
    /// the rest.
    pub(super) fn doubt_other_limits(&self, batch: &Batch) {
        for increment in batch.iter() {
            if let Some(over) = self.get(increment.key)
                && let OverState::Full { limit, method, .. } = over.what.get()
                && (limit, method) != (increment.limit, increment.method)
            {
                over.what.set(OverState::Doubted);
            }
        }
    }

    /// Forgets an entry whose counter was found empty: it was reset or deleted, with all hits that were refused here.
    pub(super) fn found_empty(&self, key: &[u8]) {
        if let Some(over) = self.get(key) {
            over.what.set(OverState::Doubted);
            over.uncounted.set(0);
        }
    }

    /// How many entries there are; one that was renewed can count twice.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Their approximate size.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.0.cost()
    }
}
