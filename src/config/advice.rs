//! How to repair a value of the wrong type, and one with characters that look like the blanks and quotes of YAML.

use crate::config::{
    fault::Fault,
    keys::{Key, KeyKind, KeyLevel},
    node::{NodeKind, Scalar, YamlNode, describe, resolve},
    short_form::{is_unlimited, short_form},
    template::{unrendered, unrendered_text},
};

/// The fault of a value of the wrong type below `key`, or of a map that `key` names.
pub(super) fn wrong_type(key: &str, expected: &'static str, found: &YamlNode<'_>) -> Fault {
    if let Some(fault) = unrendered(found) {
        return fault;
    }
    if let ("the file", NodeKind::Scalar { text, .. }) = (key, &found.kind)
        && let Some(fault) = without_colon(text)
    {
        return fault;
    }
    Fault::WrongType {
        // Only the names of keys are words of the file.
        key: match key.contains(' ') {
            true => key.to_owned(),
            false => format!("`{key}`"),
        },
        expected,
        found: type_of(found).to_owned(),
        fix: fix(key, found).unwrap_or_default(),
    }
}

fn type_of(node: &YamlNode<'_>) -> &'static str {
    match &node.kind {
        NodeKind::List(_) => "a list",
        NodeKind::Map(_) => "a map",
        NodeKind::Tagged => "a tagged value",
        NodeKind::Scalar {
            is_plain: false, ..
        } => "a text in quotes",
        NodeKind::Scalar { text, .. } => match resolve(text, true) {
            Scalar::Null => "null",
            Scalar::Bool(_) => "a boolean",
            Scalar::Int(_) | Scalar::Float => "a number",
            Scalar::Text => "a text",
        },
    }
}

fn fix(key: &str, found: &YamlNode<'_>) -> Option<String> {
    let fixed = match (key, &found.kind) {
        ("the file", NodeKind::List(_)) => "begin it with `domain: NAME`".to_owned(),
        ("the file", _) => "write `domain: NAME` and `descriptors:`".to_owned(),
        ("rate_limit" | "rate_limits", NodeKind::Scalar { text, .. }) if is_unlimited(text) => {
            "write `rate_limit: {unlimited: true}`".to_owned()
        }
        ("rate_limit" | "rate_limits", NodeKind::Scalar { text, .. }) => {
            let limit = short_form(text, None).map_or("5000/day", |_| text);
            format!("write `rate_limits: [{limit}]`")
        }
        ("rate_limit", NodeKind::List(_)) => "the key of a list is `rate_limits`".to_owned(),
        ("rate_limits", NodeKind::Map(_)) => {
            "put `- ` before each limit, or write `rate_limit`".to_owned()
        }
        ("descriptors", NodeKind::Map(_)) => "put `- ` before each `key`".to_owned(),
        ("descriptors", NodeKind::Scalar { .. }) => "write `- key: NAME` below it".to_owned(),
        ("replaces", NodeKind::Map(_)) => "put `- ` before each `name`".to_owned(),
        ("replaces", NodeKind::Scalar { text, .. }) => {
            format!("write `replaces: [{{name: {text}}}]`")
        }
        ("refusal", NodeKind::Scalar { text, .. }) => match &**text {
            "problem+json" | "none" => format!("write `refusal: {{body: {text}}}`"),
            _ => "write it as its `body`".to_owned(),
        },
        ("reserve", NodeKind::Scalar { text, .. }) => match text.parse::<u64>() {
            Ok(estimate) => format!("write `reserve: {{estimate: {estimate}}}`"),
            Err(_) => "write `reserve: {}`".to_owned(),
        },
        ("key" | "value", NodeKind::List(items)) if items.len() > 1 => {
            format!("a {key} is one text; write a descriptor for each")
        }
        ("domain", NodeKind::List(items)) if items.len() > 1 => {
            "a document has one domain; begin one for each with `---`".to_owned()
        }
        (_, NodeKind::List(items)) if !is_for_maps(key) => match &items.as_slice() {
            [
                YamlNode {
                    kind: NodeKind::Scalar { text, .. },
                    ..
                },
            ] => format!("write `{key}: {text}`"),
            _ => return None,
        },
        (_, NodeKind::Scalar { text, .. }) if Key::find(key)?.kind == KeyKind::Boolean => {
            format!("write `{key}: {}`", meant_boolean(text)?)
        }
        _ => return None,
    };
    Some(fixed)
}

/// Whether the value of the key is a map.
fn is_for_maps(key: &str) -> bool {
    Key::find(key).is_some_and(|key| key.kind.expected() == KeyKind::FreeForm.expected())
}

/// The boolean that a text or a number in its place means.
fn meant_boolean(text: &str) -> Option<bool> {
    match (resolve(text, true), text) {
        (Scalar::Bool(value), _) => Some(value),
        (_, "1") => Some(true),
        (_, "0") => Some(false),
        _ => None,
    }
}

/// The fault of `item`, which is no map, in a list of maps of this level.
pub(super) fn item_fault(item: &NodeKind<'_>, level: KeyLevel) -> Fault {
    let (first_key, name) = match level {
        KeyLevel::Replaces => ("name", "NAME"),
        _ => ("key", "NAME"),
    };
    let fix = match item {
        NodeKind::List(_) => "remove one `- ` or one pair of brackets".to_owned(),
        NodeKind::Scalar { text, .. } => {
            if let Some(fault) = unrendered_text(text).or_else(|| without_colon(text)) {
                return fault;
            }
            let text = match describe(item).as_str() {
                "null" => name.to_owned(),
                _ => text.to_string(),
            };
            format!("write `- {first_key}: {text}`")
        }
        NodeKind::Map(_) | NodeKind::Tagged => String::new(),
    };
    let found = match describe(item) {
        text if matches!(item, NodeKind::Scalar { .. }) => format!("`{text}`"),
        kind => kind,
    };
    Fault::ListItem { found, fix }
}

/// The fault of a text that begins with a key but has no colon after it, or no blank after the colon.
pub(super) fn without_colon(text: &str) -> Option<Fault> {
    if let Some(odd) = odd_characters(text) {
        return Some(Fault::OddKey {
            found: odd.found,
            fix: odd.fix,
        });
    }
    let end = text.find([' ', ':'])?;
    let (key, rest) = text.split_at(end);
    Key::find(key)?;
    let is_glued = rest.starts_with(':');
    let value = rest.trim_start_matches([' ', ':']);
    Some(Fault::NoColon {
        text: text.to_owned(),
        lacks: if is_glued {
            "blank after its colon"
        } else {
            "colon"
        },
        fixed: format!("{key}: {value}"),
    })
}

/// A sentence on the odd characters around or inside `text`, and how to go on.
pub(super) struct OddCharacters {
    pub(super) found: String,
    pub(super) fix: &'static str,
}

/// The odd characters of `text`, the name of a key or a plain text.
pub(super) fn odd_characters(text: &str) -> Option<OddCharacters> {
    if text.is_ascii() {
        return None;
    }
    if let Some(space) = text.chars().find(|next| is_odd_space(*next)) {
        let name = space_name(space);
        return Some(OddCharacters {
            found: format!("U+{:04X} ({name}) in `{text}`", u32::from(space)),
            fix: if space.is_whitespace() {
                "write a blank instead"
            } else {
                "remove it"
            },
        });
    }
    let rest = text.trim_matches(is_curly_quote);
    (text.starts_with(is_curly_quote) && text.ends_with(is_curly_quote)).then(|| OddCharacters {
        found: format!("curly quotes around `{rest}`"),
        fix: "write \" instead",
    })
}

/// Whether it shows as a blank, or not at all, and is a letter to YAML.
pub(super) fn is_odd_space(next: char) -> bool {
    let is_invisible = matches!(
        next,
        '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}' | '\u{ad}'
    );
    // YAML knows the breaks among them.
    let is_break = matches!(next, '\u{85}' | '\u{2028}' | '\u{2029}');
    is_invisible || !next.is_ascii() && next.is_whitespace() && !is_break
}

fn is_curly_quote(next: char) -> bool {
    matches!(next, '\u{2018}'..='\u{201f}')
}

fn space_name(space: char) -> &'static str {
    match space {
        '\u{a0}' => "no-break space",
        '\u{200b}' => "zero-width space",
        '\u{feff}' => "byte order mark",
        _ if space.is_whitespace() => "a space of another kind",
        _ => "an invisible character",
    }
}
