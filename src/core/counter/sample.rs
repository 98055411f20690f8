//! Increments for tests.

use super::{Charge, IncrementSpec, Operation};
use crate::core::{request::Hits, window::Timestamp};

/// An increment of a counter of the first minute, whose rule sets no options.
pub(crate) fn spec(limit: u64, hits: Hits) -> IncrementSpec {
    IncrementSpec {
        limit,
        period_millis: 60_000,
        expires_at: Timestamp::from_secs(60),
        ..IncrementSpec::from(hits)
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
