//! Settlements: the cost takes the place of what was reserved, in the window that was charged.

use std::time::Duration;

use crate::core::{
    kind::{Algorithm, CounterKind},
    limit::Limit,
    request::Hits,
    window::Timestamp,
};

/// The clocks of replicas that share a bucket may differ by this much.
const SKEW_MILLIS: u64 = 10;

/// A token may come from a clock that is ahead by this much.
const AHEAD: Duration = Duration::from_secs(1);

/// A stream may be longer than a bucket takes to fill.
const DAY_MILLIS: u64 = 86_400_000;

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

/// Hits that a limit was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChargedHits {
    pub(super) hits: u64,
    pub(super) at: Timestamp,
    /// For a bucket, the milliseconds from then until it would have been full without others.
    pub(super) full_in: u64,
}

/// The change that makes the `cost` of what `limit` was charged.
///
/// It never leaves a counter emptier than if the cost had been charged at once: the window of then gets the difference
/// while it lasts, and a later one only what is missing.
///
/// A bucket gets the difference while at least as much is missing of what was missing just after its charge: then it
/// would not have been full for a moment if it had been charged the cost only, and no token would have been lost. This
/// is exact to a token. What was missing includes other reservations; if these give hits back first, and the bucket
/// would have been full meanwhile, it can be fuller by as much.
pub(super) fn settle(limit: &Limit, charged: ChargedHits, cost: u64, now: Timestamp) -> Settlement {
    let ChargedHits { hits, at, full_in } = charged;
    let nothing = Hits::add(0);
    let more = Hits::add(cost.saturating_sub(hits));
    let less = hits.saturating_sub(cost);
    let in_present = |now| Settlement {
        then: nothing,
        now,
        is_late: false,
    };
    match limit.algorithm.kind(limit.requests_per_unit) {
        CounterKind::TokenBucket { rate } if less > 0 => {
            let passed = now.millis().saturating_sub(at.millis());
            let left = full_in.saturating_sub(passed.saturating_add(SKEW_MILLIS));
            let parts = u128::from(rate.get()) * u128::from(left);
            // Otherwise what is missing of a full bucket would never be given back to the last token.
            let missing = parts.div_ceil(period_millis(limit));
            let missing = u64::try_from(missing).unwrap_or(u64::MAX);
            in_present(Hits::give_back(less.min(missing)))
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

fn period_millis(limit: &Limit) -> u128 {
    u128::from(limit.period.secs()) * 1000
}

/// Whether hits that were charged at `at` can be settled at `now`: `at` is not ahead, and not longer ago than they
/// matter, which is a period, or a day in a bucket.
pub(super) fn is_settled_by(limit: &Limit, at: Timestamp, now: Timestamp) -> bool {
    let lasts = match limit.algorithm {
        Algorithm::TokenBucket { .. } => DAY_MILLIS.max(limit.period.secs() * 1000),
        _ => {
            let window = limit.window(at);
            window.end.millis().saturating_sub(window.start.millis())
        }
    };
    at <= now.plus(AHEAD) && now.millis().saturating_sub(at.millis()) <= lasts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::window::Unit;

    /// The beginning of an hour.
    const AT: Timestamp = Timestamp::from_secs(1_000 * 3600);

    fn hour() -> Limit {
        Limit::fixed(1000, Unit::Hour)
    }

    /// A token flows in each second.
    fn bucket() -> Limit {
        Limit {
            algorithm: Algorithm::TokenBucket { burst: 1000 },
            ..Limit::fixed(60, Unit::Minute)
        }
    }

    /// The moment `millis` after [`AT`], or before it.
    fn after(millis: i64) -> Timestamp {
        Timestamp::from_millis(AT.millis().saturating_add_signed(millis))
    }

    /// Checks the changes for 200 hits whose cost comes `millis` later.
    #[track_caller]
    fn check(limit: &Limit, cost: u64, millis: i64, changes: [i64; 2], is_late: bool) {
        let charged = ChargedHits {
            hits: 200,
            at: AT,
            full_in: 200_000,
        };
        let settlement = settle(limit, charged, cost, after(millis));
        let (then, now) = (settlement.then.signed(), settlement.now.signed());
        let found = ([then, now], settlement.is_late);
        assert_eq!(found, (changes, is_late), "{cost} {millis}");
    }

    #[test]
    fn a_window_gets_the_difference_while_it_lasts_and_the_next_one_what_is_missing() {
        for (cost, change) in [(50, -150), (200, 0), (250, 50)] {
            for millis in [-1, 0, 3_599_999] {
                check(&hour(), cost, millis, [change, 0], false);
            }
            check(&hour(), cost, 3_600_000, [0, change.max(0)], true);
        }
    }

    #[test]
    fn a_bucket_gets_back_what_would_be_missing_still() {
        // 200 tokens were missing. The clocks of replicas may differ by ten milliseconds.
        for (millis, change) in [
            (-1, -150),
            (0, -150),
            (49_990, -150),
            (50_989, -150),
            (50_990, -149),
            (100_000, -100),
            (199_989, -1),
            (199_990, 0),
            (1_000_000, 0),
        ] {
            check(&bucket(), 50, millis, [0, change], false);
            check(&bucket(), 200, millis, [0, 0], false);
            check(&bucket(), 250, millis, [0, 50], false);
        }
    }

    #[test]
    fn hits_can_be_settled_for_a_period_and_from_a_second_before() {
        for (limit, period) in [(hour(), 3_600_000), (bucket(), 86_400_000)] {
            for (millis, is_settled) in [
                (-1_001, false),
                (-1_000, true),
                (0, true),
                (period, true),
                (period + 1, false),
            ] {
                let found = is_settled_by(&limit, AT, after(millis));
                assert_eq!(found, is_settled, "{period} {millis}");
            }
        }
    }
}
