//! Facts about counters that are over.

use std::{cell::Cell, time::Duration};

use foldhash::quality::RandomState;

use crate::{
    core::{
        counter::{
            Batch, Charge, CounterKind, CounterState, Enforcement, Increment, IncrementSpec,
            ResetTimes,
        },
        request::Hits,
        window::Timestamp,
    },
    foundation::generations::Generations,
};

/// How long the store is not asked about a counter that is over.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// A counter that is over.
#[derive(Clone, Debug)]
pub(super) struct OverEntry {
    what: Cell<OverState>,
    /// Until when the fact holds.
    pub(super) expires_at: Timestamp,
    /// From when on the store is asked again, if it can be.
    pub(super) asks_at: Timestamp,
    /// Hits that were refused here but have to count in the store.
    pub(super) uncounted: Cell<u64>,
}

/// A fact that cannot become false until the entry expires.
#[derive(Clone, Copy, Debug)]
enum OverState {
    /// The fact may have become false.
    Doubted,
    /// A counter with a window in its key holds this much, or more.
    Holds(u64),
    /// One hit does not pass under exactly this limit.
    Full {
        limit: u32,
        method: CounterKind,
        /// When the counter is empty.
        resets_at: Timestamp,
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
        now: Timestamp,
    ) -> Option<Self> {
        if spec.hits.is_peek() || !count.is_over(spec.limit, spec.hits) {
            return None;
        }
        let may_be_given_back = spec.charge == Charge::Admitted && !is_one_step;
        let has_rest = count.after < u64::from(spec.limit);
        if !count.is_charged && (may_be_given_back || has_rest) {
            return None;
        }
        let after = |millis| now.plus(Duration::from_millis(millis));
        let (what, expires_at) = match count.ends {
            None => (OverState::Holds(count.after), spec.expires_at),
            // Hits that were refused but have to count could come too late, into the next window.
            Some(_) if count.is_charged || spec.hits != Hits::ONE => return None,
            Some(ends) => {
                let full = OverState::Full {
                    limit: spec.limit,
                    method: spec.method,
                    resets_at: after(ends.resets_in),
                };
                // A counter that never lets the hits pass is not asked for often enough to be worth an
                // entry.
                (full, after(ends.retry_in?))
            }
        };
        Some(Self {
            what: Cell::new(what),
            expires_at,
            asks_at: now.plus(BELIEVED_FOR),
            uncounted: Cell::new(0),
        })
    }

    /// The count that the store would return for `spec`, which this answers.
    pub(super) fn count(&self, spec: &IncrementSpec, now: Timestamp) -> CounterState {
        let until = |moment: Timestamp| moment.millis().saturating_sub(now.millis());
        let (after, ends) = match self.what.get() {
            OverState::Full { resets_at, .. } => {
                let ends = ResetTimes {
                    resets_in: until(resets_at),
                    retry_in: Some(until(self.expires_at)),
                };
                (spec.limit.into(), Some(ends))
            }
            OverState::Holds(count) => (count, None),
            OverState::Doubted => (spec.limit.into(), None),
        };
        CounterState {
            is_charged: false,
            is_cached: true,
            ends,
            ..CounterState::from(after)
        }
    }

    /// Whether the store would refuse `increment` of `batch`, if the entry has not expired.
    pub(super) fn refuses(&self, batch: &Batch, increment: &Increment<'_>) -> bool {
        match self.what.get() {
            OverState::Doubted => false,
            // A look is over only if the count is.
            OverState::Holds(count) => {
                count.saturating_add(increment.hits.added().min(1)) > u64::from(increment.limit)
            }
            OverState::Full { limit, method, .. } => {
                (increment.hits, increment.limit, increment.method) == (Hits::ONE, limit, method)
                    && !is_repeated(batch, increment)
            }
        }
    }
}

/// Whether a counter occurs in the request more than once. Each of its counts then concerns both.
pub(super) fn is_repeated(batch: &Batch, increment: &Increment<'_>) -> bool {
    batch.len() > 1 && {
        let same = |other: &Increment<'_>| other.key == increment.key;
        batch.iter().filter(same).count() > 1
    }
}

/// Entries of counters that are over. Of those that were dropped for lack of room the ones that are still
/// in use have to be found out anew.
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

    /// Moves into `late` the hits on the counters of `batch` that were refused here but have to count.
    pub(super) fn take_uncounted(
        &self,
        batch: &Batch,
        now: Timestamp,
        late: &mut Option<Box<Batch>>,
    ) {
        for increment in batch.iter() {
            let Some(over) = self.get(increment.key) else {
                continue;
            };
            let hits = over.uncounted.take();
            if hits == 0 || over.expires_at <= now {
                continue;
            }
            let known = match over.what.get() {
                OverState::Holds(count) => u32::try_from(count).unwrap_or(u32::MAX),
                OverState::Full { .. } | OverState::Doubted => 0,
            };
            let spec = IncrementSpec {
                hits: Hits::add(hits),
                // They refuse nothing. If hits were taken off the counter through another replica, it holds less than
                // it did here, and these hits of before would fill it again.
                charge: Charge::WhileFull,
                enforcement: Enforcement::Silent,
                limit: known,
                descriptor: u32::MAX,
                ..increment.spec
            };
            let late = late.get_or_insert_default();
            late.append_one(Increment { spec, ..increment });
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
