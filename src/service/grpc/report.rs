//! The report on an answer, for callers that ask for it: why a descriptor has no limit, and all limits of one that has
//! some.
//!
//! It is JSON in a header, so it is short and plain ASCII. It has keys that the caller sent or that the rules have, and
//! names of limits, but no value and no path of a rule.

use hyper::header::HeaderValue;
use serde_json::{Value, json};

use crate::{
    core::{
        decision::{LimitReport, all_limits},
        matcher::cause::{Cause, NoLimit},
        plan::Outcome,
        request::{Descriptor, Request},
        window::Timestamp,
    },
    service::limiter::Basis,
};

/// Longest report: callers bound the headers that they accept, some to 8 kB.
const MAX_BYTES: usize = 4 << 10;

/// Most descriptors in a report, because each is matched once more.
const MAX_DESCRIPTORS: usize = 16;

/// Most limits of one descriptor in a report.
const MAX_LIMITS: usize = 16;

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
        let part = ascii(&part(request.domain, descriptor, outcome, basis, now).to_string());
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
) -> Value {
    let no_limit = match outcome {
        Outcome::Counted(counted) => {
            let limits = all_limits(counted, basis.plan, basis.counts, now);
            let limits: Vec<_> = limits.take(MAX_LIMITS).map(limit).collect();
            return json!({ "limits": limits });
        }
        Outcome::Replaced(_) => Some(NoLimit {
            cause: Cause::Replaced,
            matched: descriptor.entries.len(),
        }),
        Outcome::Unmatched { .. } | Outcome::Unlimited(_) => {
            basis.matcher.cause(domain, descriptor.entries)
        }
    };
    no_limit.map_or_else(|| json!({}), |no_limit| cause(&no_limit))
}

fn cause(no_limit: &NoLimit<'_>) -> Value {
    let mut part = json!({
        "cause": no_limit.cause.name(),
        "matched": no_limit.matched,
        "why": no_limit.to_string(),
    });
    if let Cause::UnknownKey {
        near: Some(near), ..
    } = no_limit.cause
    {
        part["near"] = String::from_utf8_lossy(near).into();
    }
    part
}

fn limit(report: LimitReport<'_>) -> Value {
    let LimitReport {
        limit,
        is_over,
        remaining,
        reset_secs,
        retry_secs: _,
    } = report;
    let mut part = json!({
        "requestsPerUnit": limit.requests_per_unit,
        "unit": limit.period.unit().name().to_ascii_uppercase(),
        "unitMultiplier": limit.period.multiplier().get(),
        "remaining": remaining,
        "resetSecs": reset_secs,
        "over": is_over,
    });
    if let Some(name) = &limit.name {
        part["name"] = (**name).into();
    }
    part
}

/// JSON without characters that a header cannot carry: they occur in texts only, where `\u` can write them.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        if char.is_ascii() && !char.is_ascii_control() {
            text.push(char);
            continue;
        }
        for unit in char.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_a_header_is_ascii_and_means_the_same() {
        let value = json!({ "why": "`é` is no key \u{7f}, nor is 😀" });
        let text = ascii(&value.to_string());
        assert!(
            text.bytes().all(|byte| (b' '..0x7f).contains(&byte)),
            "{text}"
        );
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, value);
    }
}
