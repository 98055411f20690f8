//! Reports one counter as JSON: its descriptor, its rule and limit, and the hits that it holds.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};

use crate::core::{
    counter::{
        Charge, CounterKind, CounterState, Enforcement, Increment, IncrementSpec, Operation,
        name::{CounterName, NamedCounting, NamedDescriptor, NamedEntry},
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
    /// The path of the counter's rule; `None` if it belongs to no rule in use, or the request brought the limit.
    pub(super) rule: Option<Arc<str>>,
    pub(super) limit: Option<Limit>,
    /// The peek at it; `None` if the store cannot be asked without knowing the limit.
    pub(super) spec: Option<IncrementSpec>,
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
        limit: Some((*limit).clone()),
        spec: Some(peek(increment.spec)),
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
    /// The counter of a listed key; `None` if the key's window is over. The counter is in the store of limits per
    /// second if `is_per_second`.
    pub(super) fn of_key(
        key: Box<[u8]>,
        matcher: &Matcher,
        is_per_second: bool,
        now: Timestamp,
    ) -> Option<Self> {
        let Some(name) = CounterName::parse(&key) else {
            return Some(Self::without_rule(key, None));
        };
        if let NamedDescriptor::Values { domain, entries } = &name.descriptor {
            let plain = entries
                .iter()
                .map(|&NamedEntry { key, value, .. }| Entry { key, value });
            let entries: Vec<_> = plain.collect();
            let known = counters_of(matcher, &request_of(domain, &entries, None), now);
            if let Some(known) = known.into_iter().find(|known| known.key == key) {
                return Some(known);
            }
        }
        let spec = spec_of(&name, is_per_second, now);
        drop(name);
        spec.map(|spec| Self::without_rule(key, Some(spec)))
    }

    fn without_rule(key: Box<[u8]>, spec: Option<IncrementSpec>) -> Self {
        Self {
            key,
            rule: None,
            limit: None,
            // The hits of a bucket follow from its limit and rate, which its key does not contain.
            spec: spec.filter(|spec| spec.limit > 0),
            state: None,
            leased: 0,
            before: None,
            asked: None,
        }
    }

    /// The effect of a grant; `None` if no grant was requested, or the store was not asked.
    pub(super) fn grant_effect(&self) -> Option<GrantEffect> {
        let (spec, limit) = (self.spec.as_ref()?, self.limit.as_ref()?);
        let of = (limit.capacity(), spec.method);
        Some(GrantEffect::new(self.asked?, of, self.before?, self.state?))
    }

    /// The counter as JSON, without its descriptor.
    pub(super) fn json(&self, now: Timestamp) -> Map<String, Value> {
        let name = CounterName::parse(&self.key);
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        put("key", text(&self.key));
        match (&self.limit, &name) {
            (Some(limit), _) => {
                put("algorithm", algorithm(limit).into());
                put("periodSecs", limit.period.secs().into());
            }
            (None, Some(CounterName { counting, .. })) => {
                put("algorithm", counting.algorithm().into());
                put("periodSecs", counting.period_secs().into());
            }
            (None, None) => {}
        }
        if let Some(CounterName {
            descriptor: NamedDescriptor::Digest(_),
            ..
        }) = name
        {
            put("digest", true.into());
        }
        if let Some(rule) = &self.rule {
            put("rule", (**rule).into());
        }
        if let Some(limit) = &self.limit {
            put("limit", limit_json(limit));
        }
        if let Some(before) = self.before {
            put("hitsBefore", before.after.into());
        }
        if let (Some(state), Some(spec)) = (self.state, &self.spec) {
            put("hits", state.after.into());
            if let Some(limit) = &self.limit {
                let capacity = limit.capacity();
                let remaining = capacity.saturating_sub(state.after);
                put("remaining", remaining.saturating_add(state.owed).into());
            }
            if self.leased > 0 {
                put("leased", self.leased.into());
            }
            if state.owed > 0 {
                put("beyondLimit", state.owed.into());
            }
            let until_end = || spec.expires_at.millis().saturating_sub(now.millis());
            let millis = state.ends.map_or_else(until_end, |ends| ends.resets_in);
            if let Some(secs) = state.oldest_secs(spec) {
                put("oldestSecs", secs.into());
            } else if !matches!(spec.method, CounterKind::Slots { .. }) {
                put("resetSecs", millis.div_ceil(1000).into());
            }
        }
        if let Some(GrantEffect { granted, why_fewer }) = self.grant_effect() {
            put("granted", granted.into());
            if let Some(why) = why_fewer {
                put("whyFewer", why.into());
            }
        }
        fields
    }

    /// The counter as JSON, with its descriptor as far as the key contains it.
    pub(super) fn json_with_descriptor(&self, now: Timestamp) -> Value {
        let mut fields = self.json(now);
        if let Some(CounterName {
            descriptor: NamedDescriptor::Values { entries, .. },
            ..
        }) = CounterName::parse(&self.key)
        {
            let entries: Vec<_> = entries.iter().map(entry).collect();
            fields.insert("entries".to_owned(), entries.into());
        }
        fields.into()
    }
}

fn entry(entry: &NamedEntry<'_>) -> Value {
    let mut fields = json!({ "key": text(entry.key), "value": text(entry.value) });
    if entry.is_shared {
        fields["shared"] = true.into();
    }
    fields
}

/// Entries of a request as JSON.
pub(super) fn entries_json(entries: &[Entry<'_>]) -> Value {
    let entry =
        |Entry { key, value }: &Entry<'_>| json!({ "key": text(key), "value": text(value) });
    entries.iter().map(entry).collect()
}

/// Bytes as JSON text. JSON has Unicode only.
pub(super) fn text(bytes: &[u8]) -> Value {
    String::from_utf8_lossy(bytes).into()
}

pub(in crate::service::admin) fn algorithm(limit: &Limit) -> &'static str {
    match &limit.algorithm {
        Algorithm::Calendar(_) => "calendar",
        other => other.kind(1).facts().report_name,
    }
}

pub(in crate::service::admin) fn limit_json(limit: &Limit) -> Value {
    let mut fields = json!({ "requestsPerUnit": limit.requests_per_unit });
    match limit.unit() {
        Some(unit) => {
            fields["unit"] = unit.name().into();
            fields["unitMultiplier"] = limit.unit_multiplier().into();
        }
        None => fields["ttlSecs"] = limit.period.secs().into(),
    }
    if let Algorithm::TokenBucket { burst } = limit.algorithm {
        fields["burst"] = burst.into();
    }
    if let Some(name) = &limit.name {
        fields["name"] = (**name).into();
    }
    fields
}

/// A peek at a counter whose limit is unknown; its limit is 0 if the peek would need it. `None` if the window is over.
fn spec_of(name: &CounterName<'_>, is_per_second: bool, now: Timestamp) -> Option<IncrementSpec> {
    let period_secs = name.counting.period_secs();
    let (method, expires_at) = match name.counting {
        NamedCounting::Fixed { ends, .. } if ends <= now => return None,
        NamedCounting::Fixed { ends, .. } => (CounterKind::Window, ends),
        // The time zone is unknown. The window lasts no longer than the longest unit of this kind.
        NamedCounting::Calendar { unit, starts } => {
            let longest = Duration::from_secs(unit.secs().saturating_mul(11) / 10);
            let ends = starts.plus(longest.max(Duration::from_secs(7_200)));
            if ends <= now {
                return None;
            }
            (CounterKind::Window, ends)
        }
        NamedCounting::State { kind, .. } => (kind, now),
    };
    Some(IncrementSpec {
        descriptor_bytes: name.descriptor_bytes,
        operation: Operation::Add(Charge::Always),
        hits: 0,
        limit: match method {
            CounterKind::TokenBucket { .. } => 0,
            _ => u32::MAX.into(),
        },
        method,
        enforcement: Enforcement::Silent,
        on_loss: OnStoreLoss::Error,
        descriptor: 0,
        is_per_second,
        is_sliced: false,
        period_millis: period_secs.saturating_mul(1000),
        expires_at,
        age_millis: 0,
    })
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
