//! The state of a window that begins with the first hit.

use crate::core::counter::IncrementSpec;

/// A window that begins with the first hit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FirstHit {
    pub(super) start: u64,
    /// Also 0 for a window that has not begun.
    pub(super) count: u64,
}

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

    pub(super) fn resets_in(&self, spec: &IncrementSpec, now: u64) -> u64 {
        if self.start == 0 && self.count == 0 {
            return 0;
        }
        let end = self.start.saturating_add(spec.period_millis);
        end.saturating_sub(now)
    }
}
