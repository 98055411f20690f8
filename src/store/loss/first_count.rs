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
        algorithm::narrow,
        counter::{CounterKind, IncrementSpec},
        kind::HitLife,
        window::Timestamp,
    },
    store::memory::begun::{FirstCount, FirstHits},
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
    pub(super) fn first_hits(
        &self,
        spec: &IncrementSpec,
        share: &IncrementSpec,
        known: &CounterHistory,
        now: Timestamp,
    ) -> FirstHits {
        if let CounterKind::Slots { .. } = spec.method {
            // The store's slots are those of requests whose ends may not be known here.
            return FirstHits::default();
        }
        let unknown_until = self.unknown_until(known).min(now);
        let used_up = share.limit.saturating_sub(1);
        let Some(seen) = &known.seen else {
            let is_new = matters_since(spec, now) >= unknown_until;
            let (held, at) = match is_new {
                true => (0, now),
                false => (used_up, unknown_until),
            };
            return FirstCount { held, at }.into();
        };
        let has_ended = seen.lasts_until <= now;
        let count = if has_ended { 0 } else { seen.count };
        let of_share = |held: u64| held.div_ceil(self.replicas.into());
        let mut first = match has_ended {
            true => FirstHits::default(),
            false => parts(&dates(spec, seen, now), of_share),
        };
        if seen.at < unknown_until {
            let known = of_share(count);
            let unknown = unknown_until.millis() - seen.at.millis();
            let others = u128::from(spec.limit) * u128::from(unknown);
            let others = narrow(others / u128::from(spec.period_millis.max(1)));
            let all = of_share(count.saturating_add(others)).min(used_up);
            let others = all.saturating_sub(known);
            if spec.method == CounterKind::FirstHit && seen.lasts_until >= unknown_until {
                // All of them came in the window that was seen.
                let at = latest_hit(spec, seen).min(now);
                first.0.push(FirstCount { held: others, at });
            } else {
                append_evenly(&mut first, others, seen.at, unknown_until);
            }
        }
        first
    }
}

/// A part of `hits`, the oldest first: of the latest ones together, however many they are, as `part` says.
fn parts(hits: &[FirstCount], part: impl Fn(u64) -> u64) -> FirstHits {
    let mut first = FirstHits::default();
    let (mut all, mut of_all) = (0_u64, 0);
    for hits in hits.iter().rev() {
        all = all.saturating_add(hits.held);
        let held = part(all).saturating_sub(of_all);
        of_all += held;
        first.0.push(FirstCount { held, ..*hits });
    }
    first.0.reverse();
    first
}

/// Appends hits that came between two moments, as if evenly.
fn append_evenly(first: &mut FirstHits, hits: u64, from: Timestamp, until: Timestamp) {
    const STEPS: u64 = 8;
    let span = until.millis() - from.millis();
    for step in 1..=STEPS {
        let held = hits * step / STEPS - hits * (step - 1) / STEPS;
        if held > 0 {
            let at = Timestamp::from_millis(from.millis() + span * step / STEPS);
            first.0.push(FirstCount { held, at });
        }
    }
}

/// The hits of a counter, the oldest first, with the moments at which they came, or later ones.
fn dates(spec: &IncrementSpec, seen: &KnownCount, now: Timestamp) -> Vec<FirstCount> {
    let latest = latest_hit(spec, seen).min(now);
    if seen.dated.is_empty() {
        let (held, at) = (seen.count, latest);
        return vec![FirstCount { held, at }];
    }
    let dated = seen.dated.iter().map(|hits| FirstCount {
        at: hits.at.min(latest),
        ..*hits
    });
    dated.collect()
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
    let rate = match spec.method {
        CounterKind::TokenBucket { rate } => rate.get().max(1),
        _ => 1,
    };
    Duration::from_millis(match spec.method.facts().life {
        HitLife::OnePeriod => period,
        HitLife::TwoPeriods => period.saturating_mul(2),
        HitLife::UntilFull => {
            let full = u128::from(spec.limit) * u128::from(period);
            u64::try_from(full.div_ceil(u128::from(rate))).unwrap_or(u64::MAX)
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
