//! The path of a descriptor through the rules, as JSON.

use serde_json::{Map, Value, json};

use super::words::dismissal_words;
use crate::core::matcher::{
    RuleOrigin,
    steps::{Dismissal, MatchForm, Step, SteppedNode},
};

/// Most entries of one descriptor that are shown.
pub(super) const MAX_ENTRIES: usize = 16;

/// Bound on the bytes of a key, a value or a name that are shown.
const MAX_TEXT_BYTES: usize = 256;

/// The steps of a descriptor.
pub(super) fn path(steps: &[Step<'_>]) -> Vec<Value> {
    let steps = steps.iter().take(MAX_ENTRIES).enumerate();
    steps.map(|(index, one)| step(index + 1, one)).collect()
}

fn step(number: usize, step: &Step<'_>) -> Value {
    let others = step.others.iter();
    let chosen = step.chosen.as_ref();
    json!({
        "entry": number,
        "key": text(step.entry.key),
        "value": text(step.entry.value),
        "match": chosen.map_or("none", |(_, form)| form_name(*form)),
        "node": chosen.map(|(chosen, _)| node(chosen)),
        "others": others.map(|(other, why)| sibling(other, *why)).collect::<Vec<_>>(),
        "omitted": step.omitted,
    })
}

const fn form_name(form: MatchForm) -> &'static str {
    match form {
        MatchForm::Exact => "exact",
        MatchForm::JoinedExact => "joined",
        MatchForm::Wildcard => "wildcard",
        MatchForm::BareKey => "key",
        MatchForm::JoinedKey => "joined_key",
    }
}

fn sibling(other: &SteppedNode<'_>, why: Dismissal) -> Value {
    let reason = match why {
        Dismissal::Hidden { own, chosen, .. } => match (own, chosen) {
            (MatchForm::Wildcard, MatchForm::Wildcard) => "later_wildcard",
            (_, MatchForm::Wildcard) => "hidden_by_wildcard",
            _ => "hidden_by_exact",
        },
        Dismissal::OtherValue => "other_value",
        Dismissal::OtherPattern => "other_pattern",
        Dismissal::KeptApart => "strict_matching",
        Dismissal::OtherKey => "other_key",
    };
    let mut fields = node(other);
    fields["reason"] = reason.into();
    fields["why"] = dismissal_words(why).into();
    fields["wouldReach"] = matches!(
        why,
        Dismissal::Hidden {
            would_reach: true,
            ..
        }
    )
    .into();
    fields
}

/// A node of the rules, and its place.
fn node(node: &SteppedNode<'_>) -> Value {
    let mut fields = place(node.origin);
    fields.insert("key".to_owned(), text(node.key));
    let value = (!node.value.is_empty()).then(|| text(node.value));
    fields.insert("value".to_owned(), value.into());
    fields.into()
}

/// The file and the line of a rule.
pub(super) fn place(origin: &RuleOrigin) -> Map<String, Value> {
    let mut fields = Map::new();
    let file = (!origin.file.is_empty()).then(|| text(origin.file.as_bytes()));
    fields.insert("file".to_owned(), file.into());
    fields.insert("line".to_owned(), origin.line.into());
    fields
}

/// The beginning of `bytes` as text.
pub(super) fn text(bytes: &[u8]) -> Value {
    let mut end = bytes.len().min(MAX_TEXT_BYTES);
    // A character is not divided.
    while end < bytes.len() && end > 0 && bytes[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let mut text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    if end < bytes.len() {
        text.push_str(&format!("… {} bytes more", bytes.len() - end));
    }
    text.into()
}
