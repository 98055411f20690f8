//! Settlements: the cost takes the place of what was reserved, in the window that was charged.

use std::time::Duration;

use crate::core::{kind::CounterKind, limit::Limit, request::Hits, window::Timestamp};

/// The clocks of replicas that share a bucket may differ by so much.
const SKEW: Duration = Duration::from_millis(10);

/// A token may come from a clock that is ahead by so much.
const AHEAD: Duration = Duration::from_secs(1);

/// The changes of a settlement for one limit; both can be no hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settlement {
    /// The change in the window that was charged.
    pub(super) then: Hits,
    /// The change in the present window.
    pub(super) now: Hits,
    /// Whether the window that was charged has ended.
    pub(super) is_late: bool,
}

/// The change that makes the `cost` of `leased` hits, which `limit` was charged at `at`.
///
/// It never leaves a counter emptier than if the cost had been charged at once: the window of `at` gets the
/// difference while it lasts, and a later one only what is missing. Tokens that have flowed into a bucket since are
/// not given back, because they would have flowed in anyway.
pub(super) fn settle(
    limit: &Limit,
    leased: u64,
    cost: u64,
    at: Timestamp,
    now: Timestamp,
) -> Settlement {
    let nothing = Hits::add(0);
    let more = Hits::add(cost.saturating_sub(leased));
    let less = leased.saturating_sub(cost);
    let in_present = |now| Settlement {
        then: nothing,
        now,
        is_late: false,
    };
    match limit.algorithm.kind(limit.requests_per_unit) {
        CounterKind::TokenBucket { rate } if less > 0 => {
            let passed = now.millis().saturating_sub(at.millis());
            let passed = u128::from(passed) + SKEW.as_millis();
            let period = u128::from(limit.period.secs()) * 1000;
            let inflow = (u128::from(rate.get()) * passed).div_ceil(period);
            let inflow = u64::try_from(inflow).unwrap_or(u64::MAX);
            in_present(Hits::give_back(less.saturating_sub(inflow)))
        }
        CounterKind::TokenBucket { .. } => in_present(more),
        _ if limit.window(at).end > now => Settlement {
            then: if less > 0 {
                Hits::give_back(less)
            } else {
                more
            },
            now: nothing,
            is_late: false,
        },
        // Its counter refuses nothing any more.
        _ => Settlement {
            is_late: true,
            ..in_present(more)
        },
    }
}

/// Whether hits that were charged at `at` can be settled at `now`: `at` is not ahead, and not longer ago than a period.
pub(super) fn is_settled_by(limit: &Limit, at: Timestamp, now: Timestamp) -> bool {
    let window = limit.window(at);
    let period = window.end.millis().saturating_sub(window.start.millis());
    at <= now.plus(AHEAD) && now.millis().saturating_sub(at.millis()) <= period
}
