//! The count with which a counter begins when it is counted locally for the first time.
//!
//! A process knows the counts that it has seen. It knows neither the hits that other replicas have added
//! since, nor those from before it watched. Unknown hits are not taken for zero:
//!
//! - A counter that cannot have been hit in the unknown time begins at zero, or at the count that
//!   was seen.
//! - A count that was seen before that time grows by the limit's own pace until its end, but one hit of
//!   this replica's share is left.
//! - A counter that was never seen is used up, but for one hit.

use std::time::Duration;

use super::recent::{CounterHistory, KnownCount};
use crate::{
    core::{
        counter::{CounterKind, IncrementSpec},
        window::Timestamp,
    },
    store::memory::begun::FirstCount,
};

/// The bounds of a process's knowledge.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstCountInputs {
    /// How many replicas share the limits.
    pub(super) replicas: u32,
    /// Since when this replica is the only one; the end of time if it is not.
    pub(super) alone_since: Timestamp,
    /// Since when the store has answered no replica.
    pub(super) lost_at: Timestamp,
}

impl FirstCountInputs {
    /// Until when hits may have been counted that this process does not know.
    fn unknown_until(&self, known: &CounterHistory) -> Timestamp {
        match known.complete_since {
            Some(complete) if self.replicas == 1 => {
                complete.max(self.alone_since).min(self.lost_at)
            }
            _ => self.lost_at,
        }
    }

    /// The beginning of the counter of `spec`; `share` is this replica's part of its limit.
    pub(super) fn first_count(
        &self,
        spec: &IncrementSpec,
        share: &IncrementSpec,
        known: &CounterHistory,
        now: Timestamp,
    ) -> FirstCount {
        let unknown_until = self.unknown_until(known).min(now);
        let used_up = u64::from(share.limit).saturating_sub(1);
        let of_share = |held: u64| held.div_ceil(self.replicas.into());
        let Some(seen) = known.seen else {
            return if matters_since(spec, now) >= unknown_until {
                FirstCount { held: 0, at: now }
            } else {
                FirstCount {
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
            return FirstCount {
                held: of_share(count),
                at: latest_hit(spec, &seen).min(now),
            };
        }
        let unknown = unknown_until.millis() - seen.at.millis();
        let others =
            u128::from(spec.limit) * u128::from(unknown) / u128::from(spec.period_millis.max(1));
        let others = u64::try_from(others).unwrap_or(u64::MAX);
        let reckoned = of_share(count.saturating_add(others));
        let at = match spec.method {
            // All of them came in the window that was seen.
            CounterKind::FirstHit if seen.lasts_until >= unknown_until => latest_hit(spec, &seen),
            _ => unknown_until,
        };
        FirstCount {
            held: reckoned.min(used_up).max(of_share(count)),
            at,
        }
    }
}

/// The first moment whose hits can be in a counter that is looked at `now`.
fn matters_since(spec: &IncrementSpec, now: Timestamp) -> Timestamp {
    match spec.method {
        CounterKind::Window => {
            let period = Duration::from_millis(spec.period_millis);
            spec.expires_at.minus(period)
        }
        _ => now.minus(longest_life(spec)),
    }
}

/// How long hits can matter to a counter without a window in its key.
pub(super) fn longest_life(spec: &IncrementSpec) -> Duration {
    let period = spec.period_millis;
    Duration::from_millis(match spec.method {
        CounterKind::Window | CounterKind::FirstHit | CounterKind::SlidingLog => period,
        CounterKind::SlidingWindow => period.saturating_mul(2),
        CounterKind::TokenBucket { rate } => {
            let full = u128::from(spec.limit) * u128::from(period);
            let full = full.div_ceil(u128::from(rate.max(1)));
            u64::try_from(full).unwrap_or(u64::MAX)
        }
    })
}

/// When the hits of a counter came, or a later moment.
fn latest_hit(spec: &IncrementSpec, seen: &KnownCount) -> Timestamp {
    match spec.method {
        // They leave a period after they came.
        CounterKind::FirstHit | CounterKind::SlidingLog => {
            let period = Duration::from_millis(spec.period_millis);
            seen.lasts_until.minus(period).min(seen.at)
        }
        _ => seen.at,
    }
}
