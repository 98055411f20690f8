//! `tollgate explain`: how rule files or a running server would decide a request, and why.

use std::{fmt::Write as _, time::Duration};

use crate::{
    cli::{
        counters::{duration, left, slice},
        debug_port::{CallError, DebugPort},
    },
    config::{fault::Problem, files::Files, rule_defaults::Options, source::Source},
    foundation::printable::on_one_line,
    service::{
        explain::{
            Unexplained,
            account::{
                ExplainedDescriptor, ExplainedLimit, ExplainedNode, ExplainedReserve,
                ExplainedRule, ExplainedStep, Explanation, LimitEffect, MatchResult, SourcePlace,
            },
            by_rules, question,
        },
        grpc::{
            now,
            proto::{self, envoy::service::ratelimit::v3::RateLimitRequest},
        },
    },
    settings::command_line::Explain,
};

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExplainError {
    #[error("the rules cannot be used:\n{}", listed(.0))]
    Rules(Vec<Problem>),
    #[error(transparent)]
    Unexplained(#[from] Unexplained),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the explanation cannot be read")]
    Json(#[from] serde_json::Error),
}

fn listed(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// The explanation as text, or as JSON if `--json` is set.
///
/// # Errors
///
/// If there are no rules, or the server does not explain.
pub(super) async fn explanation(explain: &Explain) -> Result<String, ExplainError> {
    let message = question(&explain.of.domain, &explain.of.descriptors, explain.hits);
    let json = if explain.rules.is_empty() {
        by_server(&explain.server, explain.timeout, &message).await?
    } else {
        by_files(explain, &message)?
    };
    if explain.json {
        Ok(json)
    } else {
        Ok(readable(&json)?)
    }
}

fn by_files(explain: &Explain, message: &RateLimitRequest) -> Result<String, ExplainError> {
    let options = Options {
        key_format: explain.key_format,
        ..explain.reading.options()
    };
    let files = Files::read(&Source::Paths(explain.rules.clone()));
    let loaded = files.compile(options).map_err(ExplainError::Rules)?;
    Ok(by_rules(&loaded.matcher, message, now())?)
}

/// Gets the explanation of a running server from its debug port, as JSON.
///
/// # Errors
///
/// If the server does not answer, or refuses.
pub(super) async fn by_server(
    server: &str,
    timeout: Duration,
    message: &RateLimitRequest,
) -> Result<String, ExplainError> {
    let port = DebugPort::new(server, timeout)?;
    Ok(port.ask("/explain", proto::request_text(message)?).await?)
}

/// Turns an explanation from JSON into text for people: the outcome, then for each descriptor the steps to its rule,
/// and its limits. Writing to a string cannot fail.
///
/// # Errors
///
/// If it is not JSON.
pub(super) fn readable(json: &str) -> Result<String, serde_json::Error> {
    let explanation: Explanation = serde_json::from_str(json)?;
    let outcome = match explanation.code.as_deref() {
        Some("OK") => "would pass",
        Some("OVER_LIMIT") => "would be refused",
        Some(other) => other,
        None => "no decision",
    };
    let mut text = on_one_line(&format!("{outcome}: {}", explanation.why));
    if let Some(Some(secs)) = explanation.retry_secs {
        let limits = explanation.descriptors.iter().flat_map(|one| &one.limits);
        let latest = at_the_latest(limits.filter(|limit| is_over(limit)).any(has_slots));
        let _ = write!(text, "; would pass {latest}in {}", duration(secs));
    }
    for (one, number) in explanation.descriptors.iter().zip(1_usize..) {
        let _ = write!(text, "\n\ndescriptor {number}: {}", entries(one));
        if one.hits != 1 {
            let _ = write!(text, " (hits {})", one.hits);
        }
        descriptor(one, &mut text);
    }
    if explanation.omitted > 0 {
        let _ = write!(text, "\n\n… {} more descriptors", explanation.omitted);
    }
    Ok(text)
}

/// Whether it limits the requests in flight. Their slots can be free before they leave by themselves.
fn has_slots(limit: &ExplainedLimit) -> bool {
    limit.unit.is_none()
}

/// Whether the request's hits would be over the limit.
fn is_over(limit: &ExplainedLimit) -> bool {
    match &limit.effect {
        LimitEffect::Counted(counter) => counter.hits.as_ref().is_some_and(|hits| hits.over),
        LimitEffect::Replaced { .. } => false,
    }
}

/// The words before a wait that can end earlier.
const fn at_the_latest(can_be_earlier: bool) -> &'static str {
    if can_be_earlier { "at the latest " } else { "" }
}

/// Writes the lines of one descriptor.
fn descriptor(one: &ExplainedDescriptor, text: &mut String) {
    let code = one.code.as_deref();
    let code = code.map_or("undecided,".to_owned(), on_one_line);
    let mut line = |line: &str| text.push_str(&format!("\n  {line}"));
    match &one.result {
        MatchResult::Limited { rule: found } => {
            line(&format!("{code} by {}{}", rule(found), modes(one, found)));
            if let Some(reserve) = &found.reserve {
                line(&reserves(reserve));
            }
        }
        MatchResult::Order => line("an order for a reservation: it counts nothing of its own"),
        MatchResult::OwnLimit => line(&format!("{code} by the limit that the request brings")),
        MatchResult::NoLimit(cause) => {
            let advice = cause.advice.as_ref();
            let nearest = advice.and_then(|advice| advice.nearest.as_ref());
            line(&format!("{code}, no limit: {}", on_one_line(&cause.why)));
            let lines = [
                cause
                    .rule
                    .as_ref()
                    .map(|found| format!("rule: {}", rule(found))),
                advice.map(|advice| format!("suggestion: {}", on_one_line(&advice.suggestion))),
                nearest.map(|nearest| format!("nearest rule: {}", rule(nearest))),
            ];
            lines.iter().flatten().for_each(|one| line(one));
        }
    }
    let has_limit = !matches!(one.result, MatchResult::NoLimit(_));
    one.path.iter().for_each(|one| step(one, has_limit, text));
    one.limits.iter().for_each(|one| limit(one, text));
}

/// How a rule reserves hits, in words.
fn reserves(reserve: &ExplainedReserve) -> String {
    let estimate = reserve.estimate.unwrap_or(1);
    let missing = match reserve.missing.as_str() {
        "zero" => "gives them back",
        _ => "keeps them",
    };
    format!("reserves {estimate} when no hits are sent; a stream without a cost {missing}")
}

/// The modes of a rule that change what its limits do.
fn modes(one: &ExplainedDescriptor, rule: &ExplainedRule) -> String {
    let is_spared = one.over == Some(true) && one.code.as_deref() == Some("OK");
    let modes = [
        (rule.shadow_mode, ", in shadow mode"),
        (one.quota, ", as a quota"),
        (is_spared, ", although it is over"),
    ];
    let modes = modes.iter().filter(|(is_on, _)| *is_on);
    modes.map(|(_, mode)| *mode).collect()
}

/// Writes the lines of one level.
fn step(step: &ExplainedStep, has_limit: bool, text: &mut String) {
    let entry = on_one_line(&format!("{} {}={}", step.entry, step.key, step.value));
    let way = match step.form.as_str() {
        "exact" => "exactly",
        "joined" => "as the joined text of key and value",
        "wildcard" => "by its wildcard",
        "key" => "for every value",
        "joined_key" => "for every value, as the joined text of another key and value",
        _ => "",
    };
    let _ = match &step.node {
        Some(node) => write!(text, "\n  entry {entry}: {} matches {way}", name(node)),
        None => write!(text, "\n  entry {entry}: no rule of this level matches"),
    };
    // Consecutive nodes with one reason share a line.
    let alike = step
        .others
        .chunk_by(|one, next| (&one.why, one.would_reach) == (&next.why, next.would_reach));
    for others in alike {
        let names: Vec<_> = others.iter().map(|other| name(&other.node)).collect();
        let why = on_one_line(&others[0].why);
        let _ = write!(text, "\n    not {}: {why}", names.join(", "));
        if !has_limit && others[0].would_reach {
            text.push_str("; its limit would apply, but matching never goes back");
        }
    }
    if step.omitted > 0 {
        let _ = write!(text, "\n    and {} more of this level", step.omitted);
    }
}

/// Writes the lines of one limit.
fn limit(limit: &ExplainedLimit, text: &mut String) {
    let is_over = is_over(limit);
    let name = limit.name.as_ref();
    let named = name.map_or_else(String::new, |name| format!(" `{name}`"));
    let over = if is_over { ", over" } else { "" };
    let head = format!("{}{named}{over}: {}", limit.rate, algorithm(limit));
    let _ = write!(text, "\n  limit {}", on_one_line(&head));
    let counter = match &limit.effect {
        LimitEffect::Counted(counter) => counter,
        LimitEffect::Replaced { replaced_by, .. } => {
            let _ = match replaced_by {
                Some(number) => write!(text, "\n    replaced by the rule of descriptor {number}"),
                None => write!(text, "\n    replaced by another rule"),
            };
            return;
        }
    };
    if let Some(before) = &counter.before {
        let left = left(before.remaining);
        let (count, resets) = (before.count, duration(before.reset_secs));
        let _ = match before.oldest_secs {
            _ if !has_slots(limit) => {
                let leased = before.leased.map_or_else(String::new, slice);
                write!(
                    text,
                    "\n    count {count}{leased}{left}, resets in {resets}"
                )
            }
            Some(secs) => {
                let oldest = duration(secs);
                write!(
                    text,
                    "\n    {count} in flight{left}, the oldest for {oldest}"
                )
            }
            None => write!(text, "\n    none in flight{left}"),
        };
        if is_over {
            let _ = match before.retry_secs {
                Some(secs) => {
                    let latest = at_the_latest(has_slots(limit));
                    write!(text, ", would pass {latest}in {}", duration(secs))
                }
                None => write!(text, ", would never pass"),
            };
        }
    }
}

fn algorithm(limit: &ExplainedLimit) -> String {
    let mut words = limit.algorithm.clone();
    if limit.window_begins.as_deref() == Some("first_hit") {
        words.push_str(" from the first hit");
    }
    if let Some(zone) = &limit.calendar {
        let _ = write!(words, " of the calendar in {zone}");
    }
    if limit.unit.is_none() {
        let _ = write!(words, ", each for {} at most", duration(limit.period_secs));
    }
    if let Some(burst) = limit.burst {
        let _ = write!(words, " with a burst of {burst}");
    }
    if let Some(window) = &limit.window {
        let _ = write!(words, " from {} to {}", window.begins, window.ends);
    }
    words
}

fn entries(descriptor: &ExplainedDescriptor) -> String {
    let entries = descriptor.entries.iter();
    let pairs: Vec<_> = entries
        .map(|entry| format!("{}={}", entry.key, entry.value))
        .collect();
    match &pairs[..] {
        [] => "without entries".to_owned(),
        pairs => on_one_line(&pairs.join(",")),
    }
}

fn rule(rule: &ExplainedRule) -> String {
    format!("{}{}", on_one_line(&rule.path), place(&rule.place))
}

/// ` at FILE:LINE`, or ` at FILE`, as far as the place is known.
fn place(place: &SourcePlace) -> String {
    let line = place
        .line
        .map_or_else(String::new, |line| format!(":{line}"));
    let file = place.file.as_deref().map(on_one_line);
    file.map_or_else(String::new, |file| format!(" at {file}{line}"))
}

/// A node as `key` or `key=value`, and its place.
fn name(node: &ExplainedNode) -> String {
    let value = node
        .value
        .as_ref()
        .map_or_else(String::new, |value| format!("={value}"));
    let name = on_one_line(&format!("{}{value}", node.key));
    format!("`{name}`{}", place(&node.place))
}
