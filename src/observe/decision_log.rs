//! The decision log: which decisions are recorded, and what a line says, which `docs/run/decision-log.md` describes.
//!
//! It is off by default, and then costs one branch per decision. A decision is a line of the log of the process: JSON
//! in ASCII, so that it stays one line for every reader, whatever the request contains.

use std::{borrow::Cow, str::FromStr, time::Instant};

use serde::Serialize;

use crate::{
    core::{
        counter::CounterState,
        decision::{Code, Decision, Status},
        limit::Limit,
        matcher::{Matcher, NoMatch},
        plan::{Outcome, Plan},
        request::{Descriptor, Entry, Request},
        window::Timestamp,
    },
    foundation::{ascii_json::ascii_json, random},
};

/// The target of logged decisions, which the filter of the log admits at every level.
pub(crate) const TARGET: &str = "tollgate::decision";

/// Most bytes of a key, a value or a name that a line shows.
const MAX_TEXT_BYTES: usize = 1024;

/// Most descriptors of a request that a line shows, and most entries and limits of each.
const MAX_LISTED: usize = 16;

/// The decisions that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum DecisionChoice {
    #[default]
    Off,
    /// Decisions over some limit, even if shadow mode lets the request pass.
    Refused,
    /// A random share of all decisions, from 0 to 1.
    Sampled(f64),
    All,
}

/// The text names no choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected off, refused, sampled=SHARE with a share from 0 to 1, or all")]
pub(crate) struct UnknownChoice;

impl FromStr for DecisionChoice {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<Self, UnknownChoice> {
        match text {
            "off" => Ok(Self::Off),
            "refused" => Ok(Self::Refused),
            "all" => Ok(Self::All),
            text => {
                let share = text.strip_prefix("sampled=").ok_or(UnknownChoice)?;
                let share = share.parse::<f64>().map_err(|_| UnknownChoice)?;
                let is_share = (0.0..=1.0).contains(&share);
                is_share
                    .then_some(Self::Sampled(share))
                    .ok_or(UnknownChoice)
            }
        }
    }
}

/// Logs the chosen decisions; by default none.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecisionLog(DecisionChoice);

impl DecisionLog {
    pub(crate) fn new(choice: DecisionChoice) -> Self {
        Self(choice)
    }

    /// Logs a decision if it is one of those chosen.
    #[inline]
    pub(crate) fn log(
        &self,
        matcher: &Matcher,
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[CounterState],
        decision: &Decision,
        times: RequestTimes,
    ) {
        if self.0 != DecisionChoice::Off && self.takes(decision) {
            let basis = (matcher, plan, counts);
            write(basis, request, decision, times);
        }
    }

    fn takes(&self, decision: &Decision) -> bool {
        match self.0 {
            DecisionChoice::Off => false,
            DecisionChoice::Refused => {
                let mut bindings = decision.statuses.iter().flat_map(|status| &status.binding);
                decision.overall == Code::OverLimit || bindings.any(|binding| binding.is_over)
            }
            DecisionChoice::Sampled(share) => random::happens(share),
            DecisionChoice::All => true,
        }
    }
}

/// A function of its own, to keep it out of the path of decisions that are not logged.
#[inline(never)]
fn write(
    basis: (&Matcher, &Plan<'_>, &[CounterState]),
    request: &Request<'_>,
    decision: &Decision,
    times: RequestTimes,
) {
    let line = ascii_json(&LoggedDecision::new(basis, request, decision, times));
    tracing::debug!(target: TARGET, "{line}");
}

/// The moment of a request, and the start of the call that brought it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    pub(crate) now: Timestamp,
    pub(crate) began: Instant,
}

/// One decision.
#[derive(Serialize)]
struct LoggedDecision<'a> {
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
    fn new(
        basis: (&'a Matcher, &'a Plan<'_>, &[CounterState]),
        request: &'a Request<'_>,
        decision: &Decision,
        RequestTimes { now, began }: RequestTimes,
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
                .map(|(descriptor, judged)| LoggedDescriptor::new(basis, descriptor, judged))
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
            entries: entries.map(LoggedEntry::new).collect(),
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
    fn new(Entry { key, value }: &Entry<'a>) -> Self {
        Self {
            key: text(key),
            value: text(value),
            value_bytes: (value.len() > MAX_TEXT_BYTES).then_some(value.len()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_one_word_or_a_share() {
        let check = |text: &str, expected| assert_eq!(text.parse(), expected, "{text}");
        check("off", Ok(DecisionChoice::Off));
        check("refused", Ok(DecisionChoice::Refused));
        check("all", Ok(DecisionChoice::All));
        check("sampled=0.01", Ok(DecisionChoice::Sampled(0.01)));
        check("sampled=1", Ok(DecisionChoice::Sampled(1.0)));
        for wrong in [
            "",
            "ALL",
            "sampled",
            "sampled=",
            "sampled=1.5",
            "sampled=-1",
            "sampled=NaN",
        ] {
            check(wrong, Err(UnknownChoice));
        }
    }

    #[test]
    fn a_sample_of_none_is_none_and_one_of_all_is_all() {
        let decision = Decision::default();
        let takes = |share| DecisionLog::new(DecisionChoice::Sampled(share)).takes(&decision);
        for _ in 0..1000 {
            assert!(takes(1.0) && !takes(0.0));
        }
    }

    #[test]
    fn a_long_text_is_cut_and_bytes_that_are_no_text_are_replaced() {
        assert_eq!(text(&[b'a'; 16 << 10]).len(), MAX_TEXT_BYTES);
        assert_eq!(text(b"a\xff\xfeb"), "a\u{fffd}\u{fffd}b");
    }
}
