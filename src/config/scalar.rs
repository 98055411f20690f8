//! The types of scalars: what a plain text means in YAML 1.1.

use super::node::NodeKind;

/// The type of a scalar in YAML 1.1, which the reference's parser reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i128),
    Float,
    Text,
}

/// The type of a scalar with this text.
pub(super) fn resolve(text: &str, is_plain: bool) -> Scalar {
    if !is_plain {
        return Scalar::Text;
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Scalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF"
        | ".nan" | ".NaN" | ".NAN" => return Scalar::Float,
        _ => {}
    }
    // Most scalars are words, and no number begins as a word does.
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-._".contains(first)) {
        return Scalar::Text;
    }
    if let Some(number) = integer(text) {
        return Scalar::Int(number);
    }
    if is_float(text) {
        Scalar::Float
    } else {
        Scalar::Text
    }
}

/// `31`, `0x1F`, `010` and `0o10` (octal), `0b1`, `1_000`, with a sign.
fn integer(text: &str) -> Option<i128> {
    let text = text.replace('_', "");
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(&text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(digits) = lower.strip_prefix("0x") {
        (16, digits)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (2, digits)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (8, digits)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    Some(sign * i128::from_str_radix(digits, radix).ok()?)
}

/// `1.5`, `.5`, `5.`, `1e3`, with a sign.
fn is_float(text: &str) -> bool {
    let text = text.replace('_', "");
    let text = text.strip_prefix(['+', '-']).unwrap_or(&text);
    text.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && text.contains(|digit: char| digit.is_ascii_digit())
        && text.parse::<f64>().is_ok()
}

/// The value of a text that [`is_float`] accepts; infinity and NaN stay numbers, although JSON has no form for them.
pub(super) fn float(text: &str) -> f64 {
    let text = text.replace('_', "");
    let text = text
        .to_ascii_lowercase()
        .replace(".inf", "inf")
        .replace(".nan", "nan");
    text.parse().unwrap_or(f64::NAN)
}

/// A node in one word or its text, for errors.
pub(super) fn describe(kind: &NodeKind<'_>) -> String {
    match kind {
        NodeKind::Scalar { text, is_plain } if resolve(text, *is_plain) == Scalar::Null => {
            "null".to_owned()
        }
        NodeKind::Scalar { text, .. } => text.to_string(),
        NodeKind::List(_) => "a list".to_owned(),
        NodeKind::Map(_) => "a map".to_owned(),
        NodeKind::Tagged => "a tagged value".to_owned(),
    }
}
