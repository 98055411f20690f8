//! Reports one counter as JSON: its descriptor, its rule and limit, and the hits that it holds.

use std::sync::Arc;

use super::document::{CounterDocument, EntryDocument, LimitDocument};
use crate::core::{
    counter::{
        Charge, CounterKind, CounterState, Enforcement, Increment, IncrementSpec, Operation,
    },
    kind::Algorithm,
    limit::{Limit, Modes, OnStoreLoss},
    matcher::Matcher,
    plan::{Outcome, Plan},
    request::{Entry, Hits, Request},
    window::Timestamp,
};

/// One counter.
#[derive(Clone, Debug)]
pub(super) struct CounterReport {
    pub(super) key: Box<[u8]>,
    /// The path of the counter's rule; `None` if the request brought the limit.
    pub(super) rule: Option<Arc<str>>,
    pub(super) limit: Limit,
    /// The peek at it.
    pub(super) spec: IncrementSpec,
    /// The answer to the peek.
    pub(super) state: Option<CounterState>,
    /// The hits of it that this process charged in advance, and that no request has used.
    pub(super) leased: u64,
    /// The state before a change.
    pub(super) before: Option<CounterState>,
    /// The hits that the change was asked to grant.
    pub(super) asked: Option<u64>,
}

/// The effect of a grant on one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GrantEffect {
    /// How many more hits pass than before.
    pub(super) granted: u64,
    /// Why these are fewer than requested.
    pub(super) why_fewer: Option<&'static str>,
}

impl GrantEffect {
    /// The effect of a grant of `asked` hits on a counter of `limit` hits, from its states before and after the grant.
    fn new(
        asked: u64,
        (limit, method): (u64, CounterKind),
        before: CounterState,
        after: CounterState,
    ) -> Self {
        let has_window = method.facts().has_window;
        let has_slots = matches!(method, CounterKind::Slots { .. });
        let granted = match after.is_charged {
            _ if has_slots => 0,
            false => 0,
            true if has_window || after.after > 0 => asked,
            // The counter gave back all hits that it held.
            true => asked.min(before.after).min(limit),
        };
        let is_sketched = !after.is_charged && (after.after > 0 || method == CounterKind::Window);
        let why_fewer = if has_slots {
            "its slots are freed by the ends of requests; `counters reset` frees all, and the limit is in the rules"
        } else if is_sketched {
            "memory is full, and this value has no counter of its own but hits in a sketch, which takes no grant"
        } else if has_window {
            "its window begins with its first hit, and has not begun"
        } else {
            "it has no window that ends, so it can give back only the hits that it holds"
        };
        Self {
            granted,
            why_fewer: (granted < asked).then_some(why_fewer),
        }
    }
}

/// The current counters of the only descriptor of `request`: those of the limit that it brings, or else of the rule
/// that it matches. Without a rule or a limit there are none.
pub(super) fn counters_of(
    matcher: &Matcher,
    request: &Request<'_>,
    now: Timestamp,
) -> Vec<CounterReport> {
    let plan = Plan::new(matcher, request, Modes::default(), now);
    let rule = match plan.outcomes.first() {
        Some(Outcome::Counted(counted)) => counted.rule,
        _ => None,
    };
    let counters = plan.batch.iter().zip(&plan.limits);
    let report = |(increment, limit): (Increment<'_>, &&Limit)| CounterReport {
        key: increment.key.into(),
        rule: rule.map(|rule| rule.path.clone()),
        limit: (*limit).clone(),
        spec: peek(increment.spec),
        state: None,
        leased: 0,
        before: None,
        asked: None,
    };
    counters.map(report).collect()
}

/// A request of one descriptor with these entries.
pub(super) fn request_of<'a>(
    domain: &'a [u8],
    entries: &[Entry<'a>],
    limit: Option<&Limit>,
) -> Request<'a> {
    let mut request = Request::new(domain);
    entries.iter().for_each(|entry| request.push_entry(*entry));
    request.push_descriptor(Hits::add(0), limit.cloned());
    request
}

/// Turns `spec` into a peek without an effect on other counters. It fails if the store does not answer.
fn peek(spec: IncrementSpec) -> IncrementSpec {
    IncrementSpec {
        operation: Operation::Add(Charge::Always),
        hits: 0,
        enforcement: Enforcement::Silent,
        on_loss: OnStoreLoss::Error,
        descriptor: 0,
        age_millis: 0,
        is_sliced: false,
        ..spec
    }
}

impl CounterReport {
    /// The effect of a grant; `None` if no grant was requested, or the store was not asked.
    pub(super) fn grant_effect(&self) -> Option<GrantEffect> {
        let of = (self.limit.capacity(), self.spec.method);
        Some(GrantEffect::new(self.asked?, of, self.before?, self.state?))
    }

    /// The counter for JSON, without its descriptor.
    pub(super) fn document(&self, now: Timestamp) -> CounterDocument {
        let (limit, spec) = (&self.limit, &self.spec);
        let mut document = CounterDocument {
            key: text(&self.key),
            rule: self.rule.as_deref().map(str::to_owned),
            limit: limit_document(limit),
            algorithm: Some(algorithm(limit).to_owned()),
            period_secs: Some(limit.period.secs()),
            hits_before: self.before.map(|before| before.after),
            ..CounterDocument::default()
        };
        if let Some(state) = self.state {
            let left = limit.capacity().saturating_sub(state.after);
            let until_end = || spec.expires_at.millis().saturating_sub(now.millis());
            let millis = state.ends.map_or_else(until_end, |ends| ends.resets_in);
            document.hits = Some(state.after);
            document.remaining = Some(left.saturating_add(state.owed));
            document.leased = Some(self.leased).filter(|hits| *hits > 0);
            document.beyond_limit = Some(state.owed).filter(|hits| *hits > 0);
            document.oldest_secs = state.oldest_secs(spec);
            let has_reset =
                document.oldest_secs.is_none() && !matches!(spec.method, CounterKind::Slots { .. });
            document.reset_secs = has_reset.then(|| millis.div_ceil(1000));
        }
        if let Some(GrantEffect { granted, why_fewer }) = self.grant_effect() {
            document.granted = Some(granted);
            document.why_fewer = why_fewer.map(str::to_owned);
        }
        document
    }
}

pub(super) fn entry_document(key: &[u8], value: &[u8]) -> EntryDocument {
    EntryDocument {
        key: text(key),
        value: text(value),
    }
}

/// Bytes as text: JSON has Unicode only.
pub(in crate::service::admin) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(in crate::service::admin) fn algorithm(limit: &Limit) -> &'static str {
    match &limit.algorithm {
        Algorithm::Calendar(_) => "calendar",
        other => other.kind(1).facts().report_name,
    }
}

pub(in crate::service::admin) fn limit_document(limit: &Limit) -> LimitDocument {
    let unit = limit.unit();
    LimitDocument {
        name: limit.name.as_deref().map(str::to_owned),
        requests_per_unit: limit.requests_per_unit,
        unit: unit.map(|unit| unit.name().to_owned()),
        unit_multiplier: unit.map(|_| limit.unit_multiplier()),
        ttl_secs: unit.is_none().then(|| limit.period.secs()),
        burst: match limit.algorithm {
            Algorithm::TokenBucket { burst } => Some(burst),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: CounterKind = CounterKind::SlidingLog;

    /// A grant of 20 hits under a limit of 10: the counts before and after, and whether the store took it.
    #[track_caller]
    fn check(
        method: CounterKind,
        (before, after): (i64, i64),
        is_charged: bool,
        granted: u64,
        why: Option<&str>,
    ) {
        let after = CounterState {
            is_charged,
            ..CounterState::of(after)
        };
        let found = GrantEffect::new(20, (10, method), CounterState::of(before), after);
        let why_fewer = found.why_fewer;
        assert_eq!(found.granted, granted, "{method:?} {before} {after:?}");
        match (why, why_fewer) {
            (None, None) => {}
            (Some(why), Some(found)) => assert!(found.contains(why), "{found}"),
            different => panic!("{different:?}"),
        }
    }

    #[test]
    fn a_grant_says_how_many_more_hits_pass_and_why_not_all() {
        use CounterKind::{FirstHit, Window};
        let (not_begun, no_window, full) = ("has not begun", "no window that ends", "sketch");
        check(Window, (3, -17), true, 20, None);
        check(Window, (31, -10), true, 20, None);
        // Other hits came between the peek and the grant.
        check(Window, (3, -11), true, 20, None);
        check(Window, (0, 0), false, 0, Some(full));
        check(FirstHit, (1, -19), true, 20, None);
        check(FirstHit, (0, 0), false, 0, Some(not_begun));
        check(FirstHit, (3, 3), false, 0, Some(full));
        check(LOG, (3, 0), true, 3, Some(no_window));
        check(LOG, (0, 0), false, 0, Some(no_window));
        check(LOG, (3, 3), false, 0, Some(full));
        // A lowered limit: the hits above it let nothing pass.
        check(LOG, (40, 0), true, 10, Some(no_window));
        check(LOG, (35, 5), true, 20, None);
    }
}
