//! An explanation as JSON. docs/explain.md describes its fields.

use serde_json::{Value, json};

use super::{
    path::{MAX_ENTRIES, path, place, text},
    words::{CounterSource, charge_words, decision_words, settled_words},
};
use crate::core::{
    decision::Code,
    explanation::{CounterAccount, DescriptorAccount, Explanation, LimitAccount, MatchResult},
    limit::{Algorithm, Limit},
    matcher::PlacedRule,
    request::Request,
};

/// The explanation of `request` in ASCII, without characters that mean something in HTML.
pub(super) fn json(
    request: &Request<'_>,
    explanation: &Explanation<'_>,
    counters: CounterSource,
) -> String {
    let decision = &explanation.decision;
    let descriptors = explanation.descriptors.iter();
    let is_known = matches!(counters, CounterSource::Store);
    let mut account = json!({
        "version": 1,
        "domain": text(request.domain),
        "code": code(decision.overall),
        "why": decision_words(&explanation.settled_by, decision, counters),
        "settledBy": settled_words(&explanation.settled_by),
        "degraded": decision.is_degraded,
        "counters": match counters {
            CounterSource::Empty => "empty",
            CounterSource::Store => "known",
            CounterSource::Lost(_) => "unknown",
        },
        "descriptors": descriptors.map(|one| descriptor(one, counters)).collect::<Vec<_>>(),
        "omitted": explanation.omitted,
    });
    if let CounterSource::Lost(error) = counters {
        account["error"] = error.to_string().into();
        for field in ["code", "settledBy"] {
            account[field] = Value::Null;
        }
    }
    if is_known && decision.overall == Code::OverLimit {
        account["retrySecs"] = decision.retry_secs.into();
    }
    escaped(&account.to_string())
}

const fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

fn descriptor(account: &DescriptorAccount<'_>, counters: CounterSource) -> Value {
    let entries = account.descriptor.entries.iter();
    let entries = entries.take(MAX_ENTRIES);
    let mut fields = json!({
        "entries": entries
            .map(|entry| json!({ "key": text(entry.key), "value": text(entry.value) }))
            .collect::<Vec<_>>(),
        "hits": account.descriptor.hits.signed(),
        "code": code(account.code),
        "over": account.is_over,
        "quota": account.is_quota,
        "path": path(&account.steps),
        "limits": account.limits.iter().map(|one| limit(one, counters)).collect::<Vec<_>>(),
    });
    if let CounterSource::Lost(_) = counters
        && !account.limits.is_empty()
    {
        for field in ["code", "over"] {
            fields[field] = Value::Null;
        }
    }
    match &account.result {
        MatchResult::Rule(found) => {
            fields["result"] = "limited".into();
            fields["rule"] = rule(found);
        }
        MatchResult::OwnLimit => fields["result"] = "own_limit".into(),
        MatchResult::NoLimit {
            rule: found,
            why,
            suggestion,
            suggested,
        } => {
            fields["result"] = "no_limit".into();
            fields["cause"] = why.cause.name().into();
            fields["matched"] = why.matched.into();
            fields["why"] = why.to_string().into();
            fields["rule"] = found.as_ref().map(rule).into();
            if let Some(suggestion) = suggestion {
                fields["suggestion"] = suggestion.text.as_str().into();
                fields["nearest"] = suggested.as_ref().map(rule).into();
            }
        }
    }
    fields
}

fn rule(found: &PlacedRule<'_>) -> Value {
    let rule = found.rule;
    let replaces: Vec<_> = rule
        .replaces
        .iter()
        .map(|name| text(name.as_bytes()))
        .collect();
    let mut fields = place(found.origin);
    fields.insert("path".to_owned(), text(rule.path.as_bytes()));
    fields.insert("shadowMode".to_owned(), rule.shadow_mode.into());
    fields.insert("quotaMode".to_owned(), rule.quota_mode.into());
    fields.insert("replaces".to_owned(), replaces.into());
    fields.into()
}

fn limit(account: &LimitAccount<'_>, counters: CounterSource) -> Value {
    let limit = account.limit;
    let mut fields = json!({
        "name": limit.name.as_ref().map(|name| text(name.as_bytes())),
        "requestsPerUnit": limit.requests_per_unit,
        "unit": limit.period.unit().name(),
        "unitMultiplier": limit.period.multiplier().get(),
        "rate": limit.rate().to_string(),
        "algorithm": limit.algorithm.name(),
        "periodSecs": limit.period.secs(),
    });
    algorithm(limit, &mut fields);
    if let Some([begins, ends]) = &account.window {
        fields["window"] = json!({ "begins": begins, "ends": ends });
    }
    match &account.counter {
        Ok(counter) => counted(counter, counters, &mut fields),
        Err(replacer) => {
            fields["replaced"] = true.into();
            fields["replacedBy"] = replacer.map(|index| index + 1).into();
        }
    }
    fields
}

fn algorithm(limit: &Limit, fields: &mut Value) {
    match &limit.algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog => {}
        Algorithm::FirstHit => fields["windowBegins"] = "first_hit".into(),
        Algorithm::Calendar(calendar) => fields["calendar"] = calendar.zone_name().into(),
        Algorithm::TokenBucket { burst } => fields["burst"] = (*burst).into(),
    }
}

/// Adds the fields on a limit that is counted.
fn counted(counter: &CounterAccount, counters: CounterSource, fields: &mut Value) {
    fields["counter"] = text(&counter.key);
    fields["charge"] = charge_words(counter.spec.charge).into();
    if let CounterSource::Lost(_) = counters {
        return;
    }
    fields["charged"] = counter.is_charged.into();
    fields["over"] = counter.is_over.into();
    if let CounterSource::Store = counters {
        fields["count"] = counter.count.into();
        let remaining = u64::from(counter.remaining).saturating_add(counter.owed);
        fields["remaining"] = remaining.into();
        if counter.owed > 0 {
            fields["beyondLimit"] = counter.owed.into();
        }
        fields["resetSecs"] = counter.reset_secs.into();
        fields["retrySecs"] = counter.retry_secs.into();
    }
}

/// JSON whose texts have no character above ASCII, no control character, and none that HTML gives a meaning.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        let is_plain = (' '..='~').contains(&char) && !matches!(char, '<' | '>' | '&' | '\'');
        if is_plain {
            text.push(char);
            continue;
        }
        // Such characters occur in texts only.
        for unit in char.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}
