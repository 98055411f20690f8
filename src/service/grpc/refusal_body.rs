//! The bodies of refusals: the text that a rule's `refusal` becomes for one decision.

use std::fmt::Write as _;

use super::{
    limit_fields::{ShownLimit, shown_limits},
    wire::RefusalText,
};
use crate::{
    core::{
        decision::{Binding, Code, Decision, Status},
        limit::Rule,
        plan::Outcome,
        refusal::{RefusalBody, RefusalValues, RuleRefusal, push_json},
        window::Timestamp,
    },
    service::limiter::Basis,
};

/// The problem type of draft-ietf-httpapi-ratelimit-headers (revision 11), with its title.
const PROBLEM: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
    r#""title":"Request cannot be satisfied as assigned quota has been exceeded""#
);

/// The body of a reply: that of the rule which `RateLimit-Limit` describes, or else of the first rule that refuses.
/// `None` if the request passes, or if the rule has no body.
#[inline]
pub(super) fn body(
    decision: &Decision,
    basis: &Basis<'_, '_>,
    now: Timestamp,
) -> Option<RefusalText> {
    match decision.overall {
        Code::Ok => None,
        Code::OverLimit => body_of_refusal(decision, basis, now),
    }
}

fn body_of_refusal(
    decision: &Decision,
    basis: &Basis<'_, '_>,
    now: Timestamp,
) -> Option<RefusalText> {
    let (rule, status) = refusing(decision, basis)?;
    let refusal = rule.refusal.as_deref()?;
    let Binding {
        limit, reset_secs, ..
    } = status.binding.as_ref()?;
    let rate = limit.rate().to_string();
    let values = RefusalValues {
        name: limit.name.as_deref().unwrap_or_default(),
        rate: &rate,
        requests_per_unit: limit.requests_per_unit,
        period_secs: limit.period.secs(),
        status: refusal.status,
        retry_secs: decision.retry_secs,
        reset_secs: *reset_secs,
    };
    let RuleRefusal {
        content_type,
        body,
        headers,
        ..
    } = refusal;
    Some(RefusalText {
        headers: headers.clone(),
        content_type: content_type.clone(),
        text: match body {
            RefusalBody::Template(template) => template.render(&values),
            RefusalBody::Problem => problem(&values, &shown_limits(decision, basis, now)),
        },
    })
}

/// The rule whose body is sent, and its status. Rules in shadow mode refuse nothing, and a limit that the request
/// brought has no rule.
fn refusing<'a, 'm>(
    decision: &'a Decision,
    basis: &'a Basis<'_, 'm>,
) -> Option<(&'m Rule, &'a Status)> {
    let statuses = &decision.statuses;
    let is_refused = |index: &usize| statuses[*index].code == Code::OverLimit;
    let headline = decision.headline.filter(is_refused);
    let index = headline.or_else(|| (0..statuses.len()).find(is_refused))?;
    match &basis.plan.outcomes[index] {
        Outcome::Counted(counted) => Some((counted.rule?, &statuses[index])),
        Outcome::Unmatched(_) | Outcome::Unlimited(_) | Outcome::Replaced(_) | Outcome::Ordered => {
            None
        }
    }
}

/// A problem in JSON (RFC 9457), which names the limits that are over as `RateLimit-Policy` does.
fn problem(values: &RefusalValues<'_>, limits: &[ShownLimit]) -> String {
    let RefusalValues { status, rate, .. } = values;
    let mut text = PROBLEM.to_owned();
    let _ = write!(text, r#","status":{status},"detail":""#);
    let mut detail = match values.name {
        "" => format!("The limit of {rate} "),
        _ => format!("The limit {} ({rate}) ", values.shown_name()),
    };
    // Writing to a string cannot fail.
    let _ = match values.retry_secs {
        Some(secs) => write!(detail, "is used up; try again in {secs} s."),
        None => write!(detail, "never lets such a request pass."),
    };
    push_json(&detail, &mut text);
    text.push_str(r#"","violated-policies":["#);
    for (index, limit) in limits.iter().filter(|limit| limit.refuses).enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push('"');
        push_json(&limit.name, &mut text);
        text.push('"');
    }
    text.push_str("]}");
    text
}

#[cfg(test)]
mod tests;
