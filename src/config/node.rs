//! A tree of YAML nodes, each with its position in the text, and the types of its scalars in YAML 1.1.

use std::borrow::Cow;

/// A value in a YAML document. Its texts are borrowed from the file unless the parser had to rewrite them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct YamlNode<'t> {
    pub(crate) kind: NodeKind<'t>,
    /// Its start in bytes; `None` for a value without a text of its own, such as `{}`.
    pub(crate) offset: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeKind<'t> {
    /// The text of a scalar without its quotes.
    Scalar {
        text: Cow<'t, str>,
        is_plain: bool,
    },
    List(Vec<YamlNode<'t>>),
    /// In the order of the file; keys can repeat.
    Map(Vec<(YamlNode<'t>, YamlNode<'t>)>),
    /// A value with a tag, such as `!include`.
    Tagged,
}

impl<'t> YamlNode<'t> {
    /// A map without entries and without a position.
    pub(super) fn empty() -> Self {
        Self::map(Vec::new())
    }

    /// The text of a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar { text, .. } => Some(text),
            NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Tagged => None,
        }
    }

    /// Takes the items out of the list below `key` of a map, if it has one such key.
    pub(super) fn take_list(&mut self, key: &str) -> Vec<Self> {
        let NodeKind::Map(entries) = &mut self.kind else {
            return Vec::new();
        };
        let mut found = entries
            .iter_mut()
            .filter(|(name, _)| name.text() == Some(key));
        let first = found.next().map(|(_, value)| &mut value.kind);
        match (first, found.next()) {
            (Some(NodeKind::List(items)), None) => std::mem::take(items),
            _ => Vec::new(),
        }
    }

    /// A scalar that borrows from `source`.
    pub(super) fn borrowed(source: &'t str, borrowed: &'t str) -> Self {
        let offset = offset_in(source, borrowed);
        let is_quoted = offset.is_some_and(|at| {
            let bytes = source.as_bytes();
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            matches!(before, Some(b'"' | b'\'')) && before == bytes.get(at + borrowed.len())
        });
        Self {
            kind: NodeKind::Scalar {
                text: Cow::Borrowed(borrowed),
                is_plain: !is_quoted,
            },
            offset,
        }
    }

    /// A scalar that the parser rewrote: quoted with escapes, in a block, or over several lines. All of these are
    /// strings.
    pub(super) fn rewritten(text: &str) -> Self {
        Self {
            kind: NodeKind::Scalar {
                text: Cow::Owned(text.to_owned()),
                is_plain: false,
            },
            offset: None,
        }
    }

    pub(super) fn list(mut items: Vec<Self>) -> Self {
        // Most have fewer items than a list begins with room for.
        items.shrink_to_fit();
        Self {
            offset: items.first().and_then(|item| item.offset),
            kind: NodeKind::List(items),
        }
    }

    pub(super) fn map(mut entries: Vec<(Self, Self)>) -> Self {
        entries.shrink_to_fit();
        Self {
            offset: entries.first().and_then(|(key, _)| key.offset),
            kind: NodeKind::Map(entries),
        }
    }

    pub(super) fn tagged() -> Self {
        Self {
            kind: NodeKind::Tagged,
            offset: None,
        }
    }

    /// Whether the node is `null`, `~` or empty.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { text, is_plain: true }
            if text.is_empty() || NULLS.contains(&&**text))
    }
}

/// Whether a node is `{{ … }}` without quotes, which YAML reads as a map whose only key is a map.
pub(super) fn is_template(node: &YamlNode<'_>) -> bool {
    let NodeKind::Map(entries) = &node.kind else {
        return false;
    };
    matches!(entries.as_slice(), [(key, value)] if matches!(key.kind, NodeKind::Map(_)) && value.is_null())
}

/// Plain texts that mean null.
pub(super) const NULLS: [&str; 4] = ["~", "null", "Null", "NULL"];

/// The offset of `part` in `source`, in bytes, if it is a part of it.
fn offset_in(source: &str, part: &str) -> Option<usize> {
    let offset = (part.as_ptr() as usize).checked_sub(source.as_ptr() as usize)?;
    (offset + part.len() <= source.len()).then_some(offset)
}

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

/// A node in one word or its text, up to 64 characters of it, for errors.
pub(super) fn describe(kind: &NodeKind<'_>) -> String {
    match kind {
        NodeKind::Scalar { text, is_plain } if resolve(text, *is_plain) == Scalar::Null => {
            "null".to_owned()
        }
        NodeKind::Scalar { text, is_plain } => {
            let shown: String = text.chars().take(64).collect();
            let more = if shown.len() < text.len() { "…" } else { "" };
            let quote = if *is_plain { "" } else { "\"" };
            format!("{quote}{shown}{more}{quote}")
        }
        NodeKind::List(_) => "a list".to_owned(),
        NodeKind::Map(_) => "a map".to_owned(),
        NodeKind::Tagged => "a tagged value".to_owned(),
    }
}
