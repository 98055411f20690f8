//! One decision as a line of JSON, which `docs/run/decision-log.md` describes.
//!
//! It contains only ASCII, so that a line stays one line for every reader, whatever the request contains.

use std::{borrow::Cow, fmt::Write as _, time::Instant};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::core::{
    counter::CounterState,
    decision::{Decision, Status},
    limit::Limit,
    matcher::{Matcher, NoMatch},
    plan::{Outcome, Plan},
    request::{Descriptor, Entry, Request},
    window::Timestamp,
};

/// The target of logged decisions, which the filter of the log admits at every level.
pub(crate) const TARGET: &str = "tollgate::decision";

/// Most bytes of a key, a value or a name that a line shows.
const MAX_TEXT_BYTES: usize = 1024;

/// Most descriptors of a request that a line shows, and most entries and limits of each.
const MAX_LISTED: usize = 16;

/// Bytes of a hash that the log shows. Among a million values, the chance that any two share them is one in 37 million.
const HASH_BYTES: usize = 8;

/// The moment of a request, and the start of the call that brought it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    pub(crate) now: Timestamp,
    pub(crate) began: Instant,
}

/// How values are shown. A value can be personal data, such as an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LoggedValues {
    #[default]
    Shown,
    Hashed,
}

impl crate::foundation::named::Named for LoggedValues {
    const NAMES: &'static [(&'static str, Self)] = &[("show", Self::Shown), ("hash", Self::Hashed)];
}

/// One decision.
#[derive(Serialize)]
pub(super) struct LoggedDecision<'a> {
    target: &'static str,
    time: String,
    domain: Cow<'a, str>,
    code: &'static str,
    shadow_mode: bool,
    degraded: bool,
    latency_us: u128,
    descriptors: Vec<LoggedDescriptor<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<usize>,
}

/// One descriptor of a request, and the decision on it.
#[derive(Serialize)]
struct LoggedDescriptor<'a> {
    entries: Vec<LoggedEntry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<usize>,
    hits: i64,
    code: &'static str,
    by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    /// The limits that applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LoggedLimit<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_secs: Option<u64>,
}

#[derive(Serialize)]
struct LoggedEntry<'a> {
    key: Cow<'a, str>,
    value: Cow<'a, str>,
    /// The full length of a value that was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_bytes: Option<usize>,
}

/// A limit and its counter after the request.
#[derive(Serialize)]
struct LoggedLimit<'a> {
    limit: String,
    algorithm: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    count: u64,
    over: bool,
    /// Whether the status reports this limit.
    binding: bool,
}

impl<'a> LoggedDecision<'a> {
    pub(super) fn new(
        basis: (&'a Matcher, &'a Plan<'_>, &[CounterState]),
        request: &'a Request<'_>,
        decision: &Decision,
        RequestTimes { now, began }: RequestTimes,
        values: LoggedValues,
    ) -> Self {
        let latency_us = began.elapsed().as_micros();
        let millis = i64::try_from(now.millis()).unwrap_or(i64::MAX);
        let moment = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
        let judged = basis.1.outcomes.iter().zip(&decision.statuses);
        let descriptors = request.descriptors().zip(judged).take(MAX_LISTED);
        Self {
            target: TARGET,
            time: format!("{moment:.3}"),
            domain: text(request.domain),
            code: decision.overall.name(),
            shadow_mode: decision.is_shadowed,
            degraded: decision.is_degraded,
            latency_us,
            descriptors: descriptors
                .map(|(descriptor, judged)| {
                    LoggedDescriptor::new(basis, descriptor, judged, values)
                })
                .collect(),
            omitted: omitted(decision.statuses.len()),
        }
    }
}

impl<'a> LoggedDescriptor<'a> {
    fn new(
        (matcher, plan, counts): (&'a Matcher, &'a Plan<'_>, &[CounterState]),
        descriptor: Descriptor<'a>,
        (outcome, status): (&'a Outcome<'_>, &Status),
        values: LoggedValues,
    ) -> Self {
        let (by, rule) = match outcome {
            Outcome::Unmatched(NoMatch::UnknownDomain) => ("unknown_domain", None),
            Outcome::Unmatched(NoMatch::NoRule(_)) => ("no_rule", None),
            Outcome::Unmatched(NoMatch::NoLimit(_)) => ("no_limit", None),
            Outcome::Unlimited(rule) => ("unlimited", Some(*rule)),
            Outcome::Replaced(rule) => ("replaced", Some(*rule)),
            Outcome::Ordered => ("order", None),
            Outcome::Counted(counted) => match counted.rule {
                Some(rule) => ("rule", Some(rule)),
                None => ("request", None),
            },
        };
        let origin = rule.map(|rule| matcher.origin(rule.id));
        let origin = origin.filter(|origin| !origin.file.is_empty());
        let limits = limits(plan, outcome, counts, status);
        let binding = status.binding.as_ref();
        let entries = descriptor.entries.iter().take(MAX_LISTED);
        Self {
            entries: entries
                .map(|entry| LoggedEntry::new(entry, values))
                .collect(),
            omitted: omitted(descriptor.entries.len()),
            hits: descriptor.hits.signed(),
            code: status.code.name(),
            by,
            rule: rule.map(|rule| text(rule.path.as_bytes())),
            file: origin.map(|origin| text(origin.file.as_bytes())),
            line: origin.and_then(|origin| origin.line),
            remaining: (!limits.is_empty()).then_some(status.remaining),
            reset_secs: binding.map(|binding| binding.reset_secs),
            limits,
        }
    }
}

impl<'a> LoggedEntry<'a> {
    fn new(Entry { key, value }: &Entry<'a>, values: LoggedValues) -> Self {
        let is_shown = values == LoggedValues::Shown;
        Self {
            key: text(key),
            value: if is_shown {
                text(value)
            } else {
                hash(value).into()
            },
            value_bytes: (is_shown && value.len() > MAX_TEXT_BYTES).then_some(value.len()),
        }
    }
}

fn limits<'a>(
    plan: &'a Plan<'_>,
    outcome: &Outcome<'_>,
    counts: &[CounterState],
    status: &Status,
) -> Vec<LoggedLimit<'a>> {
    let Outcome::Counted(counted) = outcome else {
        return Vec::new();
    };
    let binding = status.binding.as_ref().map(|binding| binding.counter);
    let counters = counted.counters.clone().take(MAX_LISTED);
    counters
        .map(|counter| {
            let (limit, count): (&Limit, _) = (plan.limits[counter], counts[counter]);
            LoggedLimit {
                limit: limit.rate().to_string(),
                algorithm: limit.algorithm.name(),
                name: limit.name.as_ref().map(|name| text(name.as_bytes())),
                count: count.after,
                over: count.is_over(limit.capacity(), counted.hits.added()),
                binding: binding == Some(counter),
            }
        })
        .collect()
}

/// How many of `count` items a line does not show; `None` if it shows all.
fn omitted(count: usize) -> Option<usize> {
    count.checked_sub(MAX_LISTED).filter(|more| *more > 0)
}

/// The text of `bytes`, cut to the bound; invalid UTF-8 becomes U+FFFD.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT_BYTES)])
}

/// The first digits of the SHA-256 of `value`. They have no salt, so that a value has one hash in the logs of all
/// replicas.
fn hash(value: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in &Sha256::digest(value)[..HASH_BYTES] {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf 192.0.2.1 | sha256sum` begins like this.
    #[test]
    fn a_hash_is_the_begin_of_what_sha256sum_prints() {
        assert_eq!(hash(b""), "sha256:e3b0c44298fc1c14");
        assert_eq!(hash(b"abc"), "sha256:ba7816bf8f01cfea");
    }

    #[test]
    fn a_long_text_is_cut_and_bytes_that_are_no_text_are_replaced() {
        assert_eq!(text(&[b'a'; 16 << 10]).len(), MAX_TEXT_BYTES);
        assert_eq!(text(b"a\xff\xfeb"), "a\u{fffd}\u{fffd}b");
    }
}
