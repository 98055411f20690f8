//! This replica's part of a limit.

use crate::counter::{Count, Method, Terms};

/// This replica's part of a limit: at least one hit of a limit that admits any.
pub(super) fn share(terms: &Terms, replicas: u32) -> Terms {
    Terms {
        limit: terms.limit.div_ceil(replicas),
        method: match terms.method {
            Method::TokenBucket { rate } => Method::TokenBucket {
                rate: rate.div_ceil(replicas),
            },
            other => other,
        },
        ..*terms
    }
}

/// Converts a count within a share into one within the whole limit that leaves as much.
pub(super) fn told_of_share(terms: &Terms, share: &Terms, count: Count) -> Count {
    let (limit, part) = (u64::from(terms.limit), u64::from(share.limit));
    let after = match part.checked_sub(count.after) {
        Some(left) if count.is_charged || !count.is_over(share.limit, share.hits) => {
            limit - left.min(limit)
        }
        // Refused: it leaves nothing on which the caller could rely.
        Some(_) => limit,
        None => limit.saturating_add(count.after - part),
    };
    Count {
        after,
        is_degraded: true,
        ..count
    }
}
