//! Names, labels and numbers in the text of a page.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _};

/// Labels by name, sorted so that equal sets have equal texts. Empty values are left out, because an empty label means
/// an absent one.
pub(super) type Labels = BTreeMap<String, String>;

/// The labels as they stand between braces.
pub(super) fn label_text(labels: &Labels) -> String {
    let mut text = String::new();
    for (label, value) in labels {
        let value = value
            .replace('\\', r"\\")
            .replace('"', "\\\"")
            .replace('\n', r"\n");
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{label}=\"{value}\"");
    }
    text
}

/// A number as Go formats it, because bounds are compared as text: dashboards use `le="1e+06"`.
pub(super) fn go_float(value: f64) -> String {
    let text = format!("{value:e}");
    let exponent: i32 = match text.split_once('e') {
        Some((_, exponent)) => exponent.parse().unwrap_or_default(),
        None => 0,
    };
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let mantissa = text.split('e').next().unwrap_or_default();
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Escapes a name as statsd_exporter does: `_` for each character that is not a letter, a digit or `_`, but only one
/// for a run of dashes, and an additional one before a leading digit.
pub(super) fn escape_name(name: &str) -> Cow<'_, str> {
    let is_fit = |found: char| found.is_ascii_alphanumeric() || found == '_';
    let starts_badly = name.starts_with(|first: char| first.is_ascii_digit());
    if !starts_badly && name.chars().all(is_fit) {
        return Cow::Borrowed(name);
    }
    let mut escaped = String::with_capacity(name.len() + 1);
    if starts_badly {
        escaped.push('_');
    }
    let mut before = None;
    for found in name.chars() {
        if is_fit(found) {
            escaped.push(found);
        } else if found != '-' || before != Some('-') {
            escaped.push('_');
        }
        before = Some(found);
    }
    Cow::Owned(escaped)
}
