//! The state of a window that begins with the first hit.

use crate::core::{counter::IncrementSpec, request::Hits};

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

    pub(super) fn charge(&mut self, hits: Hits, now: u64) {
        if self.count == 0 && self.start == 0 && hits.added() > 0 {
            self.start = now;
        }
        self.count = hits.moves(self.count);
    }

    /// Applies hits that came at `then`: if the window began later, it began with them.
    pub(super) fn charge_late(&mut self, hits: Hits, then: u64) {
        if hits.added() > 0 && *self != Self::default() {
            self.start = self.start.min(then);
        }
        self.charge(hits, then);
    }

    /// The hits that it holds; negative if it owes hits.
    pub(super) fn held(self) -> i64 {
        self.count
    }

    /// Grants the hits that are given back, even if it does not hold them. Returns whether it could: a window that
    /// has not begun owes nothing, because it would not end.
    pub(super) fn grant(&mut self, hits: Hits) -> bool {
        let has_begun = *self != Self::default();
        if has_begun {
            let left = self.count.saturating_sub_unsigned(hits.given_back());
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
