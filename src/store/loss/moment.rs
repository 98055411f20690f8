//! One moment by two clocks.

use std::time::Duration;

use crate::core::window::{SteadyTime, Timestamp};

/// The present by the time of day, which names windows, and by the clock that cannot be set, by which all facts are
/// kept that outlive a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    pub(super) steady: SteadyTime,
}

impl Moment {
    /// The time of day at `at`, as if it had never been set.
    pub(super) fn time_of(&self, at: SteadyTime) -> Timestamp {
        if at > self.steady {
            self.now.plus(at.since(self.steady))
        } else {
            self.now.minus(self.steady.since(at))
        }
    }

    /// The moment at which the time of day will be `end`; the present if it is past.
    pub(super) fn steady_at(&self, end: Timestamp) -> SteadyTime {
        let left = end.millis().saturating_sub(self.now.millis());
        self.steady.plus(Duration::from_millis(left))
    }
}
