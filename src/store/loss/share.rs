//! This replica's part of a limit.

use crate::core::counter::{CounterState, IncrementSpec};

/// This replica's part of a limit: at least one hit of a limit that admits any.
pub(super) fn share(spec: &IncrementSpec, replicas: u32) -> IncrementSpec {
    IncrementSpec {
        limit: spec.limit.div_ceil(replicas),
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
    let (limit, part) = (u64::from(spec.limit), u64::from(share.limit));
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
