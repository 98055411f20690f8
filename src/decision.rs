//! Counts → statuses and the overall code.

use std::cmp::Reverse;

use crate::{
    counter::Count,
    limit::{Limit, NearRatio, Span},
    metadata::{Map, merge},
    plan::{Counted, Counter, Outcome, Plan},
    request::Hits,
    window::Timestamp,
};

/// The whole answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What Envoy obeys.
    pub overall: Code,
    /// One for each descriptor, in order.
    pub statuses: Vec<Status>,
    /// Whether the answer would have been a refusal but for the global shadow mode.
    pub is_shadowed: bool,
    /// The status that `RateLimit-*` response headers tell of, by index: the one with the least
    /// remaining, the first of several, but the last plain one that is over before all.
    pub headline: Option<usize>,
    /// What the rules that let the request pass have to say, the first one first.
    pub metadata: Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Ok,
    OverLimit,
}

/// How one descriptor stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    /// Nothing if no limit applies.
    pub binding: Option<Binding>,
    /// How many more hits would pass.
    pub remaining: u32,
}

/// The limit that a status reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub limit: Limit,
    /// Its place among the counters of the plan.
    pub counter: usize,
    /// Whole seconds until its window ends, at least 1.
    pub reset_secs: u64,
    /// Whether the count is above it; in shadow mode the code says OK all the same.
    pub is_over: bool,
}

/// Settings that hold for all rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Answer OK whatever the statuses say (`SHADOW_MODE`).
    pub shadow: bool,
    /// Treat every descriptor as one with `quota_mode` (`QUOTA_MODE`).
    pub quota: bool,
    /// Put the rules' metadata together (`RESPONSE_DYNAMIC_METADATA`).
    pub metadata: bool,
}

/// Judges `plan` by the `counts` that its increments left behind, in their order.
///
/// # Panics
///
/// If there are fewer counts than increments: a store that answers so is broken.
pub fn decide(plan: &Plan<'_>, counts: &[Count], modes: Modes, now: Timestamp) -> Decision {
    let statuses: Vec<Status> = plan
        .outcomes
        .iter()
        .map(|outcome| status(outcome, &plan.counters, counts, now))
        .collect();
    let is_refused = is_refused(plan, &statuses, modes);
    let headline = headline(plan, &statuses, modes);
    let metadata = if modes.metadata {
        metadata(plan, &statuses)
    } else {
        Map::new()
    };
    let is_shadowed = is_refused && modes.shadow;
    Decision {
        overall: if is_refused && !is_shadowed {
            Code::OverLimit
        } else {
            Code::Ok
        },
        statuses,
        is_shadowed,
        headline,
        metadata,
    }
}

fn status(
    outcome: &Outcome<'_>,
    counters: &[Counter<'_>],
    counts: &[Count],
    now: Timestamp,
) -> Status {
    match outcome {
        Outcome::Unmatched { .. } | Outcome::Replaced(_) => Status {
            code: Code::Ok,
            binding: None,
            remaining: 0,
        },
        Outcome::Unlimited(_) => Status {
            code: Code::Ok,
            binding: None,
            remaining: u32::MAX,
        },
        Outcome::Counted(counted) => counted_status(counted, counters, counts, now),
    }
}

fn counted_status(
    counted: &Counted<'_>,
    counters: &[Counter<'_>],
    counts: &[Count],
    now: Timestamp,
) -> Status {
    let stands = |counter: usize| Standing::new(&counters[counter], counts[counter].after);
    let binding = counted
        .counters
        .clone()
        .min_by_key(|&counter| stands(counter).order())
        .expect("a counted descriptor has at least one counter");
    let standing = stands(binding);
    let is_shadowed = counted.rule.is_some_and(|rule| rule.shadow_mode);
    Status {
        code: if standing.is_over && !is_shadowed {
            Code::OverLimit
        } else {
            Code::Ok
        },
        binding: Some(Binding {
            limit: counters[binding].limit.clone(),
            counter: binding,
            reset_secs: counters[binding].window.secs_until_end(now),
            is_over: standing.is_over,
        }),
        remaining: standing.remaining,
    }
}

/// How a count stands to its limit.
struct Standing {
    is_over: bool,
    remaining: u32,
    resets_at: Timestamp,
}

impl Standing {
    fn new(counter: &Counter<'_>, count: u64) -> Self {
        let limit = u64::from(counter.limit.requests_per_unit);
        Self {
            is_over: count > limit,
            remaining: u32::try_from(limit.saturating_sub(count)).unwrap_or(u32::MAX),
            resets_at: counter.window.end,
        }
    }

    /// The least of several is the binding one: over first, then least remaining, then latest
    /// reset (IETF draft ratelimit-headers), then the first.
    fn order(&self) -> (Reverse<bool>, u32, Reverse<Timestamp>) {
        (
            Reverse(self.is_over),
            self.remaining,
            Reverse(self.resets_at),
        )
    }
}

/// Whether the request is to be refused: some plain descriptor is over, or all quota descriptors
/// are and there is one.
fn is_refused(plan: &Plan<'_>, statuses: &[Status], modes: Modes) -> bool {
    let mut is_plain_over = false;
    let mut quotas = 0;
    let mut quotas_over = 0;
    for (outcome, status) in plan.outcomes.iter().zip(statuses) {
        if let Outcome::Unlimited(_) = outcome {
            continue;
        }
        let is_over = status.code == Code::OverLimit;
        if is_quota(outcome, modes) {
            quotas += 1;
            quotas_over += usize::from(is_over);
        } else {
            is_plain_over |= is_over;
        }
    }
    is_plain_over || (quotas > 0 && quotas_over == quotas)
}

fn is_quota(outcome: &Outcome<'_>, modes: Modes) -> bool {
    let has_own = match outcome {
        Outcome::Counted(counted) => counted.rule.is_some_and(|rule| rule.quota_mode),
        Outcome::Unmatched { .. } | Outcome::Unlimited(_) | Outcome::Replaced(_) => false,
    };
    modes.quota || has_own
}

fn headline(plan: &Plan<'_>, statuses: &[Status], modes: Modes) -> Option<usize> {
    let mut least = u32::MAX;
    let mut headline = None;
    for (index, (outcome, status)) in plan.outcomes.iter().zip(statuses).enumerate() {
        let is_plain_over = status.code == Code::OverLimit && !is_quota(outcome, modes);
        if status.binding.is_some() && (status.remaining < least || is_plain_over) {
            least = status.remaining;
            headline = Some(index);
        }
    }
    headline
}

fn metadata(plan: &Plan<'_>, statuses: &[Status]) -> Map {
    let mut merged = Map::new();
    for (outcome, status) in plan.outcomes.iter().zip(statuses) {
        if let (
            Outcome::Counted(Counted {
                rule: Some(rule), ..
            }),
            Code::Ok,
        ) = (outcome, status.code)
        {
            merge(&mut merged, &rule.metadata);
        }
    }
    merged
}

/// How hits fell: each is within or over, some of those within are near.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub within: u64,
    pub near: u64,
    pub over: u64,
}

/// How the `hits` that brought a counter to `count` fell against `limit`.
///
/// As in the reference a request is within its limit as a whole or not at all, but near and over
/// are counted hit by hit. Hits that a cache answered are all over.
pub fn tally(limit: &Limit, ratio: NearRatio, hits: Hits, count: Count) -> Tally {
    if count.is_cached {
        return Tally {
            over: hits.added(),
            ..Tally::default()
        };
    }
    let moved = Span {
        low: count.after.saturating_sub(hits.added()),
        high: count.after,
    };
    let over = moved.overlap(limit.over());
    Tally {
        within: if over == 0 { hits.added() } else { 0 },
        near: moved.overlap(limit.near(ratio)),
        over,
    }
}

#[cfg(test)]
mod tests;
