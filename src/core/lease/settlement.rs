//! Settlements: the cost takes the place of what was reserved, in the window that was charged.

use std::time::Duration;

use crate::core::{
    counter::{BucketPlace, Reservation},
    kind::Algorithm,
    limit::Limit,
    request::Hits,
    window::Timestamp,
};

/// A token may come from a clock that is ahead by this much.
const AHEAD: Duration = Duration::from_secs(1);

/// A stream may be longer than a bucket takes to fill.
const DAY_MILLIS: u64 = 86_400_000;

/// The change of a settlement for one limit; it can be no hits. If it is late, it is one in the present window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settlement {
    pub(super) change: Hits,
    /// Whether the window that was charged has ended.
    pub(super) is_late: bool,
    pub(super) reservation: Reservation,
}

/// Hits that a limit was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChargedHits {
    pub(super) hits: u64,
    pub(super) at: Timestamp,
    pub(super) place: BucketPlace,
}

/// The change that makes the `cost` of what `limit` was charged.
///
/// It never leaves a counter emptier than if the cost had been charged at once: the window of then gets the difference
/// while it lasts, and a later one only what is missing.
///
/// A bucket gets the difference at once, and finds out by itself how much of it would have flowed in.
pub(super) fn settle(limit: &Limit, charged: ChargedHits, cost: u64, now: Timestamp) -> Settlement {
    let ChargedHits { hits, at, place } = charged;
    let mut settlement = Settlement {
        change: match cost < hits {
            true => Hits::give_back(hits - cost),
            false => Hits::add(cost - hits),
        },
        is_late: false,
        reservation: Reservation::None,
    };
    if let Algorithm::TokenBucket { .. } = limit.algorithm {
        settlement.reservation = Reservation::Ends { hits, place };
    } else if limit.window(at).end <= now {
        // Its counter refuses nothing any more.
        settlement.change = Hits::add(cost.saturating_sub(hits));
        settlement.is_late = true;
    }
    settlement
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

    /// Checks the change for 200 hits whose cost comes `millis` later.
    #[track_caller]
    fn check(limit: &Limit, cost: u64, millis: i64, change: i64, is_late: bool) {
        let charged = ChargedHits {
            hits: 200,
            at: AT,
            place: BucketPlace::default(),
        };
        let settlement = settle(limit, charged, cost, after(millis));
        let found = (settlement.change.signed(), settlement.is_late);
        assert_eq!(found, (change, is_late), "{cost} {millis}");
    }

    #[test]
    fn a_window_gets_the_difference_while_it_lasts_and_the_next_one_what_is_missing() {
        for (cost, change) in [(50, -150), (200, 0), (250, 50)] {
            for millis in [-1, 0, 3_599_999] {
                check(&hour(), cost, millis, change, false);
            }
            check(&hour(), cost, 3_600_000, change.max(0), true);
        }
    }

    #[test]
    fn a_bucket_gets_the_difference_whenever_the_cost_comes() {
        for (cost, change) in [(50, -150), (200, 0), (250, 50)] {
            for millis in [-1, 0, 1_000_000] {
                check(&bucket(), cost, millis, change, false);
            }
        }
    }

    #[test]
    fn hits_can_be_settled_for_a_period_and_from_a_second_before() {
        let of_week = Limit {
            algorithm: Algorithm::TokenBucket { burst: 1000 },
            ..Limit::fixed(60, Unit::Week)
        };
        for (limit, period) in [
            (hour(), 3_600_000),
            (bucket(), 86_400_000),
            (of_week, 7 * 86_400_000),
        ] {
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
