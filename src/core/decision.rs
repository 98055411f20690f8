//! Counts → statuses and the overall code.

use std::{cell::OnceCell, cmp::Reverse, collections::HashMap, ptr};

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use crate::core::{
    counter::{Batch, CounterState, IncrementSpec},
    kind::Algorithm,
    lease::{
        mark,
        token::{LeaseCharge, LeaseId, LeasePart, LeasedCounter},
    },
    limit::{Allows, Limit, Modes, NearRatio},
    metadata::Metadata,
    plan::{Outcome, Plan, PlannedDescriptor, PlannedLeases},
    request::InlineList,
    window::Timestamp,
};

/// The whole answer to a request; by default OK, without a status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The code that Envoy obeys.
    pub overall: Code,
    /// One for each descriptor, in order.
    pub statuses: InlineList<Status>,
    /// Whether it was made without the store, which does not reply.
    pub is_degraded: bool,
    /// Whether the answer would have been a refusal but for the global shadow mode.
    pub is_shadowed: bool,
    /// The index of the status that `RateLimit-*` response headers describe: the first one with the
    /// least remaining, but the last plain one that is over takes precedence.
    pub headline: Option<usize>,
    /// Whole seconds until this request would pass if no others came; `None` if it passes now, or never
    /// will.
    pub retry_secs: Option<u64>,
    /// The metadata of the rules that let the request pass, if there is any; the first value of a key wins.
    pub metadata: Option<Metadata>,
    /// Its leases; `None` if it has none.
    pub leased: Option<Box<Leased>>,
}

/// The leases of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    pub id: LeaseId,
    /// Reserved hits, each with the index of its descriptor.
    pub reserved: Vec<(usize, LeasePart)>,
    /// The indexes of the descriptors that hold slots.
    pub slots: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Code {
    #[default]
    Ok,
    OverLimit,
}

impl Code {
    /// Its name in the protocol.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::OverLimit => "OVER_LIMIT",
        }
    }
}

/// The answer for one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    /// `None` if no limit applies.
    pub binding: Option<Binding>,
    /// How many more hits would pass.
    pub remaining: u64,
    /// Whole seconds until these hits would pass if no others came: 0 if they do now, `None` if they
    /// never will.
    pub retry_secs: Option<u64>,
}

/// The limit that a status reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub limit: Limit,
    /// The index of its increment in the plan.
    pub counter: usize,
    /// Whole seconds until its window ends, at least 1; for a limit without windows of its own, until
    /// its counter is empty. Callers get none of a limit that [limits no rate](Limit::is_concurrency).
    pub reset_secs: u64,
    /// Whether the count is above it; in shadow mode the code is OK even so.
    pub is_over: bool,
}

impl Binding {
    /// Whole seconds until the limit resets, for callers.
    #[inline]
    pub fn shown_reset_secs(&self) -> Option<u64> {
        (!self.limit.is_concurrency()).then_some(self.reset_secs)
    }
}

/// Judges `plan` by the `counts` after its increments, in their order.
///
/// # Panics
///
/// If there are fewer counts than increments, which only a broken store returns.
pub fn decide(plan: &Plan<'_>, counts: &[CounterState], modes: Modes, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    decide_into(&mut decision, plan, counts, modes, now);
    decision
}

/// Like [`decide`], but writes into `decision`, which must be `Default`.
///
/// # Panics
///
/// As [`decide`].
pub fn decide_into(
    decision: &mut Decision,
    plan: &Plan<'_>,
    counts: &[CounterState],
    modes: Modes,
    now: Timestamp,
) {
    decision.is_degraded = counts.iter().any(|count| count.is_degraded);
    let statuses = &mut decision.statuses;
    let least = EmptyCounters::default();
    for outcome in &plan.outcomes {
        statuses.push(status(outcome, plan, counts, &least, now));
    }
    if is_refused(plan, statuses, modes) {
        decision.is_shadowed = modes.shadow;
        if !modes.shadow {
            decision.overall = Code::OverLimit;
            decision.retry_secs = retry_secs(plan, statuses, modes);
        }
    }
    decision.headline = headline(plan, statuses, modes);
    if modes.metadata {
        decision.metadata = metadata(plan, statuses);
    }
    if let Some(leases) = &plan.leases {
        decision.leased = leased(leases, plan, counts);
    }
}

/// The leases of the descriptors whose counters were all charged.
#[cold]
fn leased(
    leases: &PlannedLeases<'_>,
    plan: &Plan<'_>,
    counts: &[CounterState],
) -> Option<Box<Leased>> {
    let was_counted = |at: usize| counts[at].was_counted(plan.batch.spec(at));
    let charged = |descriptor: &u32| match plan.outcomes.get(*descriptor as usize) {
        Some(Outcome::Counted(counted)) if counted.counters.clone().all(was_counted) => {
            Some((*descriptor as usize, counted))
        }
        _ => None,
    };
    let identity =
        |counted: &PlannedDescriptor<'_>| plan.batch.increment(counted.counters.start).identity();
    let reserved: Vec<_> = leases.reserved.iter().filter_map(charged).collect();
    let mut slots = Vec::<(usize, &[u8])>::new();
    for (index, counted) in leases.slots.iter().filter_map(charged) {
        // A request that names its counters twice has one lease of them.
        let identity = identity(counted);
        if slots.iter().all(|(_, other)| *other != identity) {
            slots.push((index, identity));
        }
    }
    let mut leased = Leased {
        id: leases.id,
        reserved: Vec::with_capacity(reserved.len()),
        slots: slots.into_iter().map(|(index, _)| index).collect(),
    };
    for (index, counted) in &reserved {
        leased
            .reserved
            .push((*index, lease_part(counted, plan, counts)));
    }
    // A mark that names counters of two descriptors would settle both, so it settles none of them.
    let parts = leased.reserved.clone();
    let is_clear = |at: usize| {
        let (_, part) = &parts[at];
        let others = parts.iter().zip(&reserved);
        let mut others =
            others.filter(|(_, (_, other))| identity(other) != identity(reserved[at].1));
        !others.any(|((_, other), _)| part.shares_a_mark(other))
    };
    let mut at = 0..parts.len();
    leased.reserved.retain(|_| at.next().is_some_and(&is_clear));
    let is_any = !leased.reserved.is_empty() || !leased.slots.is_empty();
    is_any.then(|| Box::new(leased))
}

/// The charges of the limits of a descriptor.
fn lease_part(
    counted: &PlannedDescriptor<'_>,
    plan: &Plan<'_>,
    counts: &[CounterState],
) -> LeasePart {
    let identity = plan.batch.increment(counted.counters.start).identity();
    let limits = match counted.rule.map(|rule| &rule.allows) {
        Some(Allows::Within(limits)) => &**limits,
        Some(Allows::Unlimited) | None => &[],
    };
    let counter = |limit: &Limit| {
        let mut counters = counted.counters.clone();
        let own = counters.find(|at| ptr::eq(plan.limits[*at], limit));
        LeasedCounter {
            mark: mark::of_counter(identity, limit),
            charge: match (own, &limit.algorithm) {
                (None, _) => LeaseCharge::Replaced,
                (Some(at), Algorithm::TokenBucket { .. }) => LeaseCharge::Bucket(counts[at].place),
                (Some(_), _) => LeaseCharge::Window,
            },
        }
    };
    LeasePart {
        hits: counted.hits.added(),
        counters: limits.iter().map(counter).collect(),
    }
}

fn status(
    outcome: &Outcome<'_>,
    plan: &Plan<'_>,
    counts: &[CounterState],
    least: &EmptyCounters,
    now: Timestamp,
) -> Status {
    let remaining = match outcome {
        Outcome::Counted(counted) => return counted_status(counted, plan, counts, least, now),
        Outcome::Unmatched(_) | Outcome::Replaced(_) | Outcome::Ordered => 0,
        Outcome::Unlimited(_) => u32::MAX.into(),
    };
    Status {
        code: Code::Ok,
        binding: None,
        remaining,
        retry_secs: Some(0),
    }
}

fn counted_status(
    counted: &PlannedDescriptor<'_>,
    plan: &Plan<'_>,
    counts: &[CounterState],
    least: &EmptyCounters,
    now: Timestamp,
) -> Status {
    let stands = |counter: usize| {
        let spec = plan.batch.spec(counter);
        let standing = LimitStanding::new(spec, counts[counter], now);
        // Computed only when needed, because most hits pass. The limits of one descriptor have counters
        // of their own.
        let held_at_least = || match plan.outcomes.len() {
            1 => spec.added(),
            _ => least.held(&plan.batch, counter),
        };
        if standing.is_over && held_at_least() > spec.limit {
            return LimitStanding {
                retry_in: None,
                ..standing
            };
        }
        standing
    };
    let mut counters = counted.counters.clone();
    let mut binding = counters
        .next()
        .expect("a counted descriptor has at least one counter");
    let mut standing = stands(binding);
    let mut retry_in = standing.retry_in;
    for counter in counters {
        let other = stands(counter);
        // `None`, which is never, is later than all other waits.
        retry_in = retry_in
            .zip(other.retry_in)
            .map(|(one, other)| one.max(other));
        if other.order() < standing.order() {
            (binding, standing) = (counter, other);
        }
    }
    let is_shadowed = counted.rule.is_some_and(|rule| rule.shadow_mode);
    Status {
        code: if standing.is_over && !is_shadowed {
            Code::OverLimit
        } else {
            Code::Ok
        },
        binding: Some(Binding {
            limit: plan.limits[binding].clone(),
            counter: binding,
            reset_secs: standing.resets_in.div_ceil(1000),
            is_over: standing.is_over,
        }),
        remaining: standing.remaining,
        retry_secs: if is_shadowed {
            Some(0)
        } else {
            retry_in.map(|millis| millis.div_ceil(1000))
        },
    }
}

/// The hits that each counter of a request holds after its increment if it was empty before: more than
/// that increment's if its descriptor occurs twice. Computed on first use.
#[derive(Debug, Default)]
struct EmptyCounters(OnceCell<SmallVec<[u64; 8]>>);

impl EmptyCounters {
    fn held(&self, batch: &Batch, counter: usize) -> u64 {
        /// From this many increments on a table pays.
        const MANY: usize = 16;
        let all = self.0.get_or_init(|| {
            let mut all = SmallVec::<[u64; 8]>::new();
            let mut table = HashMap::<&[u8], u64, RandomState>::default();
            for (index, increment) in batch.iter().enumerate() {
                let before = if batch.len() < MANY {
                    (0..index)
                        .rev()
                        .find(|&other| batch.key(other) == increment.key)
                        .map(|other| all[other])
                } else {
                    table.get(increment.key).copied()
                };
                let held = before.unwrap_or(0).saturating_add(increment.added());
                let held = held.saturating_sub(increment.taken_off());
                if batch.len() >= MANY {
                    table.insert(increment.key, held);
                }
                all.push(held);
            }
            all
        });
        all[counter]
    }
}

/// A count compared with its limit. Times are in milliseconds from now.
struct LimitStanding {
    is_over: bool,
    remaining: u64,
    resets_in: u64,
    /// `None` if the hits will never pass.
    retry_in: Option<u64>,
}

impl LimitStanding {
    fn new(spec: &IncrementSpec, count: CounterState, now: Timestamp) -> Self {
        let capacity = spec.limit;
        let is_over = count.is_over(spec.limit, spec.added());
        let window_ends_in = spec.expires_at.millis().saturating_sub(now.millis());
        let added = spec.added();
        // A limit that let the hits pass may have no room for them a second time; that matters when
        // another limit refused the request.
        let after_again = count.after.saturating_add(added);
        let has_room = !is_over && after_again <= spec.limit;
        Self {
            is_over,
            remaining: capacity.saturating_sub(count.after),
            resets_in: count.ends.map_or(window_ends_in, |ends| ends.resets_in),
            retry_in: match count.ends {
                _ if has_room => Some(0),
                Some(ends) => ends.retry_in,
                None => (added <= capacity).then_some(window_ends_in),
            },
        }
    }

    /// The binding limit is the least of several: over first, then least remaining, then latest reset
    /// (IETF draft ratelimit-headers), then the first.
    fn order(&self) -> (Reverse<bool>, u64, Reverse<u64>) {
        (
            Reverse(self.is_over),
            self.remaining,
            Reverse(self.resets_in),
        )
    }
}

/// Whether the request is refused: a plain descriptor is over, or there are quota descriptors and all of
/// them are.
fn is_refused(plan: &Plan<'_>, statuses: &[Status], modes: Modes) -> bool {
    let mut is_plain_over = false;
    let mut quotas = 0;
    let mut quotas_over = 0;
    for (outcome, status) in plan.outcomes.iter().zip(statuses) {
        if let Outcome::Unlimited(_) | Outcome::Ordered = outcome {
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

/// When a refused request would pass: once all plain descriptors do, and one of its quotas if it has
/// any. `None` if that is never.
fn retry_secs(plan: &Plan<'_>, statuses: &[Status], modes: Modes) -> Option<u64> {
    let limited = || plan.outcomes.iter().zip(statuses);
    let plain = limited()
        .filter(|(outcome, _)| !is_quota(outcome, modes))
        .try_fold(0, |latest, (_, status)| {
            Some(latest.max(status.retry_secs?))
        })?;
    let quotas = limited()
        .filter(|(outcome, _)| is_quota(outcome, modes))
        .filter(|(outcome, _)| !matches!(outcome, Outcome::Unlimited(_) | Outcome::Ordered));
    let mut is_any_quota = false;
    let first = quotas
        .inspect(|_| is_any_quota = true)
        .filter_map(|(_, status)| status.retry_secs)
        .min();
    if is_any_quota {
        Some(plain.max(first?))
    } else {
        Some(plain)
    }
}

/// Whether the descriptor counts as a quota.
pub(crate) fn is_quota(outcome: &Outcome<'_>, modes: Modes) -> bool {
    let has_own = match outcome {
        Outcome::Counted(counted) => counted.rule.is_some_and(|rule| rule.quota_mode),
        Outcome::Unmatched(_) | Outcome::Unlimited(_) | Outcome::Replaced(_) | Outcome::Ordered => {
            false
        }
    };
    modes.quota || has_own
}

fn headline(plan: &Plan<'_>, statuses: &[Status], modes: Modes) -> Option<usize> {
    let mut least = u64::MAX;
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

fn metadata(plan: &Plan<'_>, statuses: &[Status]) -> Option<Metadata> {
    let mut merged = Metadata::default();
    for (outcome, status) in plan.outcomes.iter().zip(statuses) {
        if let (
            Outcome::Counted(PlannedDescriptor {
                rule: Some(rule), ..
            }),
            Code::Ok,
        ) = (outcome, status.code)
            && let Some(metadata) = &rule.metadata
        {
            merged.merge(metadata);
        }
    }
    (!merged.is_empty()).then_some(merged)
}

/// One of the limits of a descriptor, with its count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitReport<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) is_over: bool,
    pub(crate) remaining: u64,
    pub(crate) reset_secs: u64,
    /// Whole seconds until these hits would pass if no others came; `None` if they never will.
    pub(crate) retry_secs: Option<u64>,
}

/// All limits of `counted`, of which its status shows only the binding one.
pub(crate) fn all_limits<'a>(
    counted: &PlannedDescriptor<'_>,
    plan: &'a Plan<'_>,
    counts: &[CounterState],
    now: Timestamp,
) -> impl Iterator<Item = LimitReport<'a>> {
    counted.counters.clone().map(move |counter| {
        let standing = LimitStanding::new(plan.batch.spec(counter), counts[counter], now);
        LimitReport {
            limit: plan.limits[counter],
            is_over: standing.is_over,
            remaining: standing.remaining,
            reset_secs: standing.resets_in.div_ceil(1000),
            retry_secs: standing.retry_in.map(|millis| millis.div_ceil(1000)),
        }
    })
}

/// The numbers of hits within, near and over a limit; see [`tally`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub within: u64,
    pub near: u64,
    pub over: u64,
}

/// How the `hits` that led to `count` compare with `limit`.
///
/// As in the reference a request is within its limit as a whole or not at all, but near and over are
/// counted hit by hit. Hits that were refused without being charged are all over; hits that another
/// limit kept from being charged count as none of the three.
pub(crate) fn tally(limit: &Limit, ratio: NearRatio, hits: u64, count: CounterState) -> Tally {
    let capacity = limit.capacity();
    if !count.is_charged || count.is_cached {
        let is_over = count.is_cached || count.is_over(capacity, hits);
        return Tally {
            over: if is_over { hits } else { 0 },
            ..Tally::default()
        };
    }
    // How many of the hits the counter took while it held at least that many.
    let above = |held| count.after.saturating_sub(held).min(hits);
    let over = above(capacity);
    Tally {
        within: if over == 0 { hits } else { 0 },
        near: above(ratio.threshold(capacity)) - over,
        over,
    }
}

#[cfg(test)]
mod tests;
