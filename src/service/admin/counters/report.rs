//! Reports one counter as JSON: its descriptor, its rule and limit, and the hits that it holds.
//!
//! The types are written by the server and read by the command line. docs/openapi.yaml describes the fields. Those
//! that are `None` are not written.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::core::{
    counter::{
        Charge, CounterKind, CounterState, Enforcement, Increment, IncrementSpec, Operation,
    },
    kind::Algorithm,
    limit::{Limit, Modes, OnStoreLoss, RuleId},
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
    pub(super) rule_id: Option<RuleId>,
    pub(super) limit: Limit,
    /// The peek at it.
    pub(super) spec: IncrementSpec,
    /// The answer to the peek.
    pub(super) state: Option<CounterState>,
    /// The hits of it that this process charged in advance, and that no request has used.
    pub(super) leased: u64,
    /// The state before a reset.
    pub(super) before: Option<CounterState>,
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
        rule_id: rule.map(|rule| rule.id),
        limit: (*limit).clone(),
        spec: peek(increment.spec),
        state: None,
        leased: 0,
        before: None,
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
        domain: 0,
        is_sliced: false,
        ..spec
    }
}

impl CounterReport {
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
            document.remaining = Some(left);
            document.leased = Some(self.leased).filter(|hits| *hits > 0);
            document.oldest_secs = state.oldest_secs(spec);
            let has_reset =
                document.oldest_secs.is_none() && !matches!(spec.method, CounterKind::Slots { .. });
            document.reset_secs = has_reset.then(|| millis.div_ceil(1000));
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

/// A counter.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CounterDocument {
    pub(crate) key: String,
    pub(crate) rule: Option<String>,
    pub(crate) limit: LimitDocument,
    pub(crate) algorithm: Option<String>,
    pub(crate) period_secs: Option<u64>,
    pub(crate) hits_before: Option<u64>,
    pub(crate) hits: Option<u64>,
    pub(crate) remaining: Option<u64>,
    pub(crate) leased: Option<u64>,
    pub(crate) oldest_secs: Option<u64>,
    pub(crate) reset_secs: Option<u64>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct EntryDocument {
    pub(crate) key: String,
    pub(crate) value: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LimitDocument {
    pub(crate) name: Option<String>,
    pub(crate) requests_per_unit: u64,
    pub(crate) unit: Option<String>,
    pub(crate) unit_multiplier: Option<u32>,
    /// In place of a unit, for requests in flight.
    pub(crate) ttl_secs: Option<u64>,
    pub(crate) burst: Option<u64>,
}

/// The counters of the descriptors of a request.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct CountersDocument {
    pub(crate) domain: String,
    pub(crate) descriptors: Vec<DescriptorDocument>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DescriptorDocument {
    pub(crate) entries: Vec<EntryDocument>,
    /// Why it has no counters.
    pub(crate) no_limit: Option<String>,
    pub(crate) counters: Vec<CounterDocument>,
}
