//! The header fields `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers, revision 11): lists of
//! structured fields (RFC 9651), with an item for each limit.

use std::{cmp::Reverse, fmt::Write as _};

use super::wire::LimitFields;
use crate::{
    core::{
        decision::{Decision, LimitReport, all_limits},
        kind::Algorithm,
        limit::Limit,
        plan::Outcome,
        window::Timestamp,
    },
    service::limiter::Basis,
};

/// Most limits of one response.
const MAX_LIMITS: usize = 16;

/// Longest name of a limit in these fields, in bytes, but for the number that makes it unique.
const MAX_NAME: usize = 64;

/// Largest whole number of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// A limit of a request as its client sees it.
#[derive(Debug)]
pub(super) struct ShownLimit {
    /// Printable ASCII, and unique in the response.
    pub(super) name: String,
    /// The hits that pass in [`Self::window_secs`].
    hits: u64,
    /// `None` for a limit of the requests in flight.
    window_secs: Option<u64>,
    remaining: u64,
    /// The time for which `remaining` holds; `None` if that is not known.
    effective_secs: Option<u64>,
    /// Whether it is the limit that the whole response reports.
    is_binding: bool,
    /// Whether it is over, and its rule not in shadow mode.
    pub(super) refuses: bool,
}

/// Names and values of the fields of a response.
pub(super) fn headers(
    choice: LimitFields,
    decision: &Decision,
    basis: &Basis<'_, '_>,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    if choice == LimitFields::Off {
        return Vec::new();
    }
    let limits = shown_limits(decision, basis, now);
    let shown = || {
        limits
            .iter()
            .filter(|limit| choice == LimitFields::All || limit.is_binding)
    };
    if shown().next().is_none() {
        return Vec::new();
    }
    vec![
        ("RateLimit-Policy", list(shown(), ShownLimit::push_policy)),
        ("RateLimit", list(shown(), ShownLimit::push_standing)),
    ]
}

/// The limits of a request, in the order of its descriptors. If there are too many, those that bind least are left out.
pub(super) fn shown_limits(
    decision: &Decision,
    basis: &Basis<'_, '_>,
    now: Timestamp,
) -> Vec<ShownLimit> {
    let headline = decision.headline.map(|index| &decision.statuses[index]);
    let binding = headline.and_then(|status| status.binding.as_ref());
    let binding = binding.map(|binding| binding.counter);
    let mut found: Vec<(usize, LimitReport<'_>, bool)> = Vec::new();
    for outcome in &basis.plan.outcomes {
        if let Outcome::Counted(counted) = outcome {
            let reports = all_limits(counted, basis.plan, basis.counts, now);
            let is_shadowed = counted.rule.is_some_and(|rule| rule.shadow_mode);
            let reports = counted.counters.clone().zip(reports);
            found.extend(reports.map(|(counter, report)| {
                let refuses = report.is_over && !is_shadowed;
                (counter, report, refuses)
            }));
        }
    }
    if found.len() > MAX_LIMITS {
        found.sort_by_key(|(counter, report, _)| {
            let is_binding = Some(*counter) == binding;
            let order = (Reverse(is_binding), Reverse(report.is_over));
            (order, report.remaining, Reverse(report.reset_secs))
        });
        found.truncate(MAX_LIMITS);
        found.sort_by_key(|(counter, ..)| *counter);
    }
    let mut limits: Vec<ShownLimit> = Vec::with_capacity(found.len());
    for (counter, report, refuses) in found {
        let (hits, window_secs) = allowance(report.limit);
        limits.push(ShownLimit {
            name: unique(name(report.limit), &limits),
            hits: hits.min(MAX_INTEGER),
            window_secs: report.limit.unit().map(|_| window_secs),
            remaining: report.remaining.min(MAX_INTEGER),
            effective_secs: report.limit.unit().map(|_| effective_secs(&report)),
            is_binding: Some(counter) == binding,
            refuses,
        });
    }
    limits
}

/// The hits that pass in a time, and the time in seconds. A bucket that holds more than a period's tokens allows all of
/// them in the time that fills it, at the same rate; so no more hits remain than pass.
fn allowance(limit: &Limit) -> (u64, u64) {
    let (hits, period) = (limit.requests_per_unit, limit.period.secs());
    match limit.algorithm {
        Algorithm::TokenBucket { burst } if hits > 0 && burst > hits => {
            let filled_in = (u128::from(period) * u128::from(burst)).div_ceil(hits.into());
            let secs = u64::try_from(filled_in).unwrap_or(u64::MAX);
            (burst, secs.min(MAX_INTEGER))
        }
        _ => (hits, period),
    }
}

/// The time for which a client can use no more than the remaining hits. For a limit that refused, it is the time until
/// the request would pass: `Retry-After` should not end before it.
fn effective_secs(report: &LimitReport<'_>) -> u64 {
    match report.retry_secs {
        Some(retry_secs) if report.is_over => retry_secs.min(report.reset_secs),
        _ => report.reset_secs,
    }
    .min(MAX_INTEGER)
}

/// The name of a limit, or else its rate, in printable ASCII. Each byte of another character becomes `%` and two
/// digits, as in the display strings of RFC 9651.
fn name(limit: &Limit) -> String {
    let Some(own) = limit.name.as_deref().filter(|name| !name.is_empty()) else {
        return limit.rate().to_string();
    };
    let mut name = String::new();
    for char in own.chars() {
        let mut part = String::new();
        for byte in char.encode_utf8(&mut [0; 4]).bytes() {
            match byte {
                b' '..=b'~' => part.push(byte.into()),
                // Writing to a string cannot fail.
                _ => drop(write!(part, "%{byte:02x}")),
            }
        }
        if name.len() + part.len() > MAX_NAME {
            break;
        }
        name.push_str(&part);
    }
    name
}

/// `name`, with a number if another limit has it: the fields refer to each other by names.
fn unique(name: String, others: &[ShownLimit]) -> String {
    let is_free = |name: &str| others.iter().all(|other| other.name != name);
    if is_free(&name) {
        return name;
    }
    let numbered = (2..).map(|number: usize| format!("{name}-{number}"));
    let mut free = numbered.filter(|name| is_free(name));
    free.next().unwrap_or(name)
}

fn list<'l>(
    limits: impl Iterator<Item = &'l ShownLimit>,
    push: fn(&ShownLimit, &mut String),
) -> String {
    let mut text = String::new();
    for limit in limits {
        if !text.is_empty() {
            text.push_str(", ");
        }
        push_string(&limit.name, &mut text);
        push(limit, &mut text);
    }
    text
}

/// Appends printable ASCII as a String of structured fields.
fn push_string(ascii: &str, text: &mut String) {
    text.push('"');
    for char in ascii.chars() {
        if matches!(char, '"' | '\\') {
            text.push('\\');
        }
        text.push(char);
    }
    text.push('"');
}

impl ShownLimit {
    fn push_policy(&self, text: &mut String) {
        let _ = match self.window_secs {
            Some(secs) => write!(text, ";q={};w={secs}", self.hits),
            None => write!(text, ";q={};qu=\"concurrent-requests\"", self.hits),
        };
    }

    fn push_standing(&self, text: &mut String) {
        let _ = write!(text, ";r={}", self.remaining);
        if let Some(secs) = self.effective_secs {
            let _ = write!(text, ";t={secs}");
        }
    }
}

#[cfg(test)]
mod tests;
