//! The count with which a counter begins when it is counted locally for the first time.
//!
//! A process knows the counts that it has seen. It knows neither the hits that other replicas have added
//! since, nor those from before it watched. Unknown hits are not taken for zero:
//!
//! - A counter that cannot have been hit in the unknown time begins at zero, or at the count that
//!   was seen.
//! - A count that was seen before that time grows by the limit's own pace until its end, but one hit of
//!   this replica's share is left.
//! - A counter that was never seen is used up, but for one hit or the part of the share that the
//!   settings name.

use std::time::Duration;

use super::recent::{Known, Seen};
use crate::{
    counter::{Method, Terms},
    window::Timestamp,
};

/// Hits of this replica's share that count as used, and the moment at which they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) held: u64,
    pub(super) at: Timestamp,
}

/// The bounds of a process's knowledge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How many replicas share the limits.
    pub(super) replicas: u32,
    /// Since when this replica is the only one; the end of time if it is not.
    pub(super) alone_since: Timestamp,
    /// Since when the store has answered no replica.
    pub(super) lost_at: Timestamp,
    /// The percentage of its share that a replica may spend on a counter that it has not seen.
    pub(super) unseen_percent: u8,
}

impl Bounds {
    /// Until when hits may have been counted that this process does not know.
    fn unknown_until(&self, known: &Known) -> Timestamp {
        match known.complete_since {
            Some(complete) if self.replicas == 1 => {
                complete.max(self.alone_since).min(self.lost_at)
            }
            _ => self.lost_at,
        }
    }
}

impl Begin {
    /// The beginning of the counter of `terms`; `share` is this replica's part of its limit.
    pub(super) fn new(
        terms: &Terms,
        share: &Terms,
        known: &Known,
        bounds: &Bounds,
        now: Timestamp,
    ) -> Self {
        let unknown_until = bounds.unknown_until(known).min(now);
        let part = u64::from(share.limit) * u64::from(bounds.unseen_percent) / 100;
        let used_up = u64::from(share.limit).saturating_sub(part.max(1));
        let of_share = |held: u64| held.div_ceil(bounds.replicas.into());
        let Some(seen) = known.seen else {
            return if matters_since(terms, now) >= unknown_until {
                Self { held: 0, at: now }
            } else {
                Self {
                    held: used_up,
                    at: unknown_until,
                }
            };
        };
        let count = if seen.lasts_until > now {
            seen.count
        } else {
            0
        };
        if seen.at >= unknown_until {
            return Self {
                held: of_share(count),
                at: latest_hit(terms, &seen).min(now),
            };
        }
        let unknown = unknown_until.millis() - seen.at.millis();
        let others =
            u128::from(terms.limit) * u128::from(unknown) / u128::from(terms.period_millis.max(1));
        let others = u64::try_from(others).unwrap_or(u64::MAX);
        let reckoned = of_share(count.saturating_add(others));
        Self {
            held: reckoned.min(used_up).max(of_share(count)),
            at: unknown_until,
        }
    }

    /// How many of these hits still count at `now`.
    pub(super) fn left(&self, terms: &Terms, now: Timestamp) -> u64 {
        let is_gone = terms.method != Method::Window && matters_since(terms, now) >= self.at;
        if is_gone { 0 } else { self.held }
    }
}

/// The first moment whose hits can be in a counter that is looked at `now`.
fn matters_since(terms: &Terms, now: Timestamp) -> Timestamp {
    match terms.method {
        Method::Window => {
            let period = Duration::from_millis(terms.period_millis);
            terms.expires_at.minus(period)
        }
        _ => now.minus(longest_life(terms)),
    }
}

/// How long hits can matter to a counter without a window in its key.
pub(super) fn longest_life(terms: &Terms) -> Duration {
    let period = terms.period_millis;
    Duration::from_millis(match terms.method {
        Method::Window | Method::FirstHit | Method::SlidingLog => period,
        Method::SlidingWindow => period.saturating_mul(2),
        Method::TokenBucket { rate } => {
            let full = u128::from(terms.limit) * u128::from(period);
            let full = full.div_ceil(u128::from(rate.max(1)));
            u64::try_from(full).unwrap_or(u64::MAX)
        }
    })
}

/// When the hits of a counter came, or a later moment.
fn latest_hit(terms: &Terms, seen: &Seen) -> Timestamp {
    match terms.method {
        // They leave a period after they came.
        Method::FirstHit | Method::SlidingLog => {
            let period = Duration::from_millis(terms.period_millis);
            seen.lasts_until.minus(period).min(seen.at)
        }
        _ => seen.at,
    }
}
