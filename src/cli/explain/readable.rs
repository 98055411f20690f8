//! An explanation as text for people. It is read from JSON, so that another version of the server can have made it.

use std::fmt::Write as _;

use serde_json::json;

use crate::{
    cli::{counters::text::left, durations::duration},
    foundation::printable::on_one_line,
    service::explain::account::{
        ExplainedDescriptor, ExplainedLimit, ExplainedNode, ExplainedRule, ExplainedStep,
        Explanation, LimitEffect, MatchResult, SourcePlace,
    },
};

/// The overall code, then lines for each descriptor: its way to the rule, and its limits. Writing to a string cannot
/// fail.
pub(super) fn readable(explanation: &Explanation) -> String {
    let code = explanation.code.as_deref().unwrap_or("no decision");
    let mut text = on_one_line(&format!("{code}: {}", explanation.why));
    if let Some(Some(secs)) = explanation.retry_secs {
        let _ = write!(text, "; would pass in {}", duration(secs));
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
    text
}

/// Writes the lines of one descriptor.
fn descriptor(one: &ExplainedDescriptor, text: &mut String) {
    let code = one
        .code
        .as_deref()
        .map_or("undecided,".to_owned(), on_one_line);
    let mut line = |line: &str| text.push_str(&format!("\n  {line}"));
    match &one.result {
        MatchResult::Limited { rule: found } => {
            line(&format!("{code} by {}{}", rule(found), modes(one, found)));
        }
        MatchResult::OwnLimit => line(&format!("{code} by the limit that the request brings")),
        MatchResult::NoLimit {
            why,
            rule: found,
            advice,
            ..
        } => {
            line(&format!("{code}, no limit: {}", on_one_line(why)));
            if let Some(found) = found {
                line(&format!("rule: {}", rule(found)));
            }
            if let Some(advice) = advice {
                line(&format!("suggestion: {}", on_one_line(&advice.suggestion)));
            }
            if let Some(nearest) = advice.as_ref().and_then(|advice| advice.nearest.as_ref()) {
                line(&format!("nearest rule: {}", rule(nearest)));
            }
        }
    }
    let has_limit = !matches!(one.result, MatchResult::NoLimit { .. });
    for one in &one.path {
        step(one, has_limit, text);
    }
    for one in &one.limits {
        limit(one, text);
    }
}

/// The modes of a rule that change the effect of its limits.
fn modes(one: &ExplainedDescriptor, rule: &ExplainedRule) -> String {
    let is_spared = one.over == Some(true) && one.code.as_deref() == Some("OK");
    let modes = [
        (rule.shadow_mode, ", in shadow mode"),
        (one.quota, ", as a quota"),
        (is_spared, ", although it is over"),
    ];
    modes
        .iter()
        .filter(|(is_on, _)| *is_on)
        .map(|(_, mode)| *mode)
        .collect()
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
    // Nodes in a row that have one reason share a line.
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
    let (is_over, is_charged) = match &limit.effect {
        LimitEffect::Counted {
            hits: Some(hits), ..
        } => (hits.over, Some(hits.charged)),
        LimitEffect::Counted { .. } | LimitEffect::Replaced { .. } => (false, None),
    };
    let named = limit
        .name
        .as_ref()
        .map_or_else(String::new, |name| format!(" `{name}`"));
    let over = if is_over { ", over" } else { "" };
    let head = format!("{}{named}{over}: {}", limit.rate, algorithm(limit));
    let _ = write!(text, "\n  limit {}", on_one_line(&head));
    let (counter, charge, before) = match &limit.effect {
        LimitEffect::Counted {
            counter,
            charge,
            before,
            ..
        } => (counter, charge, before),
        LimitEffect::Replaced { replaced_by, .. } => {
            let by = replaced_by.map_or("another rule".to_owned(), |number| {
                format!("the rule of descriptor {number}")
            });
            let _ = write!(text, "\n    replaced by {by}");
            return;
        }
    };
    if let Some(before) = before {
        let left = left(&json!(before)).unwrap_or_default();
        let resets = duration(before.reset_secs);
        let _ = write!(
            text,
            "\n    count {}{left}, resets in {resets}",
            before.count
        );
        if is_over {
            let _ = match before.retry_secs {
                Some(secs) => write!(text, ", would pass in {}", duration(secs)),
                None => write!(text, ", would never pass"),
            };
        }
    }
    let takes = on_one_line(&format!("counter {counter} takes {charge}"));
    let _ = write!(text, "\n    {takes}");
    text.push_str(match is_charged {
        Some(true) => ", and would take these",
        Some(false) => ", and would not take these",
        None => "",
    });
}

fn algorithm(limit: &ExplainedLimit) -> String {
    let mut words = limit.algorithm.clone();
    if limit.window_begins.as_deref() == Some("first_hit") {
        words.push_str(" from the first hit");
    }
    if let Some(zone) = &limit.calendar {
        let _ = write!(words, " of the calendar in {zone}");
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

/// ` at FILE:LINE`, if both or the first are known.
fn place(place: &SourcePlace) -> String {
    let line = place
        .line
        .map_or_else(String::new, |line| format!(":{line}"));
    let file = place.file.as_deref().map(on_one_line);
    file.map_or_else(String::new, |file| format!(" at {file}{line}"))
}

/// `key` or `key=value` of a node, and its place.
fn name(node: &ExplainedNode) -> String {
    let value = node
        .value
        .as_ref()
        .map_or_else(String::new, |value| format!("={value}"));
    let name = on_one_line(&format!("{}{value}", node.key));
    format!("`{name}`{}", place(&node.place))
}
