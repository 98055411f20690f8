//! Increments for tests.

use super::{Charge, CounterKind, Enforcement, IncrementSpec, Operation};
use crate::core::{limit::OnStoreLoss, request::Hits, window::Timestamp};

/// An increment of a counter of the first minute, whose rule sets no options.
pub(crate) fn spec(limit: u64, hits: Hits) -> IncrementSpec {
    IncrementSpec {
        descriptor_bytes: 0,
        operation: Operation::of(hits, Charge::Always),
        hits: hits.count(),
        limit,
        method: CounterKind::Window,
        enforcement: Enforcement::Refuses,
        on_loss: OnStoreLoss::Error,
        descriptor: 0,
        is_per_second: false,
        is_sliced: false,
        period_millis: 60_000,
        expires_at: Timestamp::from_secs(60),
        age_millis: 0,
    }
}

impl IncrementSpec {
    /// This increment with other hits, which are charged by `charge` if they are added.
    pub(crate) fn asking(self, hits: Hits, charge: Charge) -> Self {
        Self {
            operation: Operation::of(hits, charge),
            hits: hits.count(),
            ..self
        }
    }
}
