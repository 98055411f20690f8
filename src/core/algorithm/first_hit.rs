//! The state of a window that begins with the first hit.

use crate::core::counter::IncrementSpec;

/// A window that begins with the first hit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FirstHit {
    pub(super) start: u64,
    /// Also 0 for a window that has not begun, and negative if it owes hits.
    pub(super) count: i64,
}

/// The most hits that a window may owe.
pub(crate) const MOST_OWED: i64 = 1 << 52;

impl FirstHit {
    pub(super) fn at(self, spec: &IncrementSpec, now: u64) -> Self {
        if now >= self.start.saturating_add(spec.period_millis) {
            return Self::default();
        }
        self
    }

    pub(super) fn charge(&mut self, spec: &IncrementSpec, now: u64) {
        if self.count == 0 && self.start == 0 && spec.added() > 0 {
            self.start = now;
        }
        self.count = spec.moves(self.count);
    }

    /// Applies hits that came at `then`: if the window began later, it began with them.
    pub(super) fn charge_late(&mut self, spec: &IncrementSpec, then: u64) {
        if spec.added() > 0 && *self != Self::default() {
            self.start = self.start.min(then);
        }
        self.charge(spec, then);
    }

    /// The hits that it holds; negative if it owes hits.
    pub(super) fn held(self) -> i64 {
        self.count
    }

    /// Grants hits, even if it does not hold them. Returns whether it could: a window that
    /// has not begun owes nothing, because it would not end.
    pub(super) fn grant(&mut self, hits: u64) -> bool {
        let has_begun = *self != Self::default();
        if has_begun {
            let left = self.count.saturating_sub_unsigned(hits);
            self.count = left.max(-MOST_OWED);
        }
        has_begun
    }

    pub(super) fn resets_in(&self, spec: &IncrementSpec, now: u64) -> u64 {
        if self.start == 0 && self.count == 0 {
            return 0;
        }
        let end = self.start.saturating_add(spec.period_millis);
        end.saturating_sub(now)
    }
}
