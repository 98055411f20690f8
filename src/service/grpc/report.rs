//! The report on an answer, for callers that ask for it: why a descriptor has no limit, and all limits of one that has
//! some.
//!
//! It is JSON in a header, so it is short and plain ASCII. It has keys that the caller sent or that the rules have, and
//! names of limits, but no value and no path of a rule.

use std::borrow::Cow;

use hyper::header::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    core::{
        decision::{LimitReport, all_limits},
        matcher::cause::{Cause, NoLimit},
        plan::Outcome,
        request::{Descriptor, Request},
        window::{Timestamp, Unit},
    },
    foundation::ascii_json::ascii_json,
    service::limiter::Basis,
};

/// Longest report: callers bound the headers that they accept, some to 8 kB.
const MAX_BYTES: usize = 4 << 10;

/// Most descriptors in a report, because each is matched once more.
const MAX_DESCRIPTORS: usize = 16;

/// Most limits of one descriptor in a report.
const MAX_LIMITS: usize = 16;

/// A report, as it is read.
#[derive(Debug, Deserialize)]
pub(crate) struct AnswerReport {
    pub(crate) descriptors: Vec<ReportedDescriptor>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ReportedDescriptor {
    #[serde(flatten)]
    pub(crate) no_limit: Option<ReportedCause>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) limits: Vec<ReportedLimit>,
}

/// Why a descriptor has no limit.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ReportedCause {
    cause: String,
    matched: usize,
    pub(crate) why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    near: Option<String>,
}

/// A limit with its count.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReportedLimit {
    pub(crate) requests_per_unit: u64,
    pub(crate) unit: String,
    pub(crate) unit_multiplier: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) remaining: u64,
    pub(crate) reset_secs: u64,
    /// Whole seconds until slots have left that the request needs, if it is over a limit of the requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry_secs: Option<u64>,
    pub(crate) over: bool,
}

impl ReportedLimit {
    /// Whether it limits the requests in flight.
    pub(crate) fn has_slots(&self) -> bool {
        self.unit == NO_UNIT
    }
}

/// The unit of a limit that has none.
const NO_UNIT: &str = "UNKNOWN";

/// The report on a decision, descriptor by descriptor.
pub(super) fn report(
    request: &Request<'_>,
    basis: &Basis<'_, '_>,
    now: Timestamp,
) -> Option<HeaderValue> {
    let outcomes = basis.plan.outcomes.iter();
    let mut text = String::from("{\"descriptors\":[");
    let mut count = 0;
    for (descriptor, outcome) in request.descriptors().zip(outcomes).take(MAX_DESCRIPTORS) {
        let part = ascii_json(&json!(part(
            request.domain,
            descriptor,
            outcome,
            basis,
            now
        )));
        if text.len() + part.len() > MAX_BYTES {
            break;
        }
        if count > 0 {
            text.push(',');
        }
        text.push_str(&part);
        count += 1;
    }
    text.push_str("],\"omitted\":");
    text.push_str(&(request.len() - count).to_string());
    text.push('}');
    HeaderValue::try_from(text).ok()
}

/// The part on one descriptor.
fn part(
    domain: &[u8],
    descriptor: Descriptor<'_>,
    outcome: &Outcome<'_>,
    basis: &Basis<'_, '_>,
    now: Timestamp,
) -> ReportedDescriptor {
    let no_limit = match outcome {
        Outcome::Counted(counted) => {
            let limits = all_limits(counted, basis.plan, basis.counts, now);
            return ReportedDescriptor {
                limits: limits.take(MAX_LIMITS).map(limit).collect(),
                no_limit: None,
            };
        }
        Outcome::Replaced(_) => Some(NoLimit {
            cause: Cause::Replaced,
            matched: descriptor.entries.len(),
        }),
        Outcome::Ordered => None,
        Outcome::Unmatched { .. } | Outcome::Unlimited(_) => {
            basis.matcher.cause(domain, descriptor.entries)
        }
    };
    ReportedDescriptor {
        no_limit: no_limit.map(|no_limit| ReportedCause {
            cause: no_limit.cause.name().to_owned(),
            matched: no_limit.matched,
            why: no_limit.to_string(),
            near: match no_limit.cause {
                Cause::UnknownKey { near, .. } => near.map(String::from_utf8_lossy).map(Cow::into),
                _ => None,
            },
        }),
        limits: Vec::new(),
    }
}

fn limit(report: LimitReport<'_>) -> ReportedLimit {
    let limit = report.limit;
    ReportedLimit {
        requests_per_unit: limit.requests_per_unit,
        unit: limit
            .unit()
            .map_or(NO_UNIT, Unit::name)
            .to_ascii_uppercase(),
        unit_multiplier: limit.unit_multiplier(),
        name: limit.name.as_deref().map(str::to_owned),
        remaining: report.remaining,
        reset_secs: report.reset_secs,
        retry_secs: report
            .retry_secs
            .filter(|_| report.is_over && limit.is_concurrency()),
        over: report.is_over,
    }
}
