//! Templates that have not been rendered: texts of Helm, `envsubst` and the like in the place of values.

use super::{
    fault::Fault,
    node::{NodeKind, YamlNode},
};

/// Marks around a template, and how it is rendered.
const MARKS: [(&str, &str, &str); 3] = [
    (
        "{{",
        "}}",
        "render it first, such as with `helm template`, and check the result",
    ),
    ("{%", "%}", "render it first, and check the result"),
    ("<%", "%>", "render it first, and check the result"),
];

/// Bound on the default of a variable, so that a text of many of them takes no quadratic time.
const MAX_DEFAULT_BYTES: usize = 256;

/// How variables are filled in.
const FILL_IN: &str = "fill it in first, such as with `envsubst`, and check the result";

/// The error of a value that is a template.
pub(super) fn unrendered(node: &YamlNode<'_>) -> Option<Fault> {
    match &node.kind {
        NodeKind::Scalar { text, .. } => unrendered_text(text),
        NodeKind::Map(_) if is_template(node) => Some(Fault::Template {
            text: braced(node),
            fix: MARKS[0].2,
            is_text: false,
        }),
        _ => None,
    }
}

/// The error of a text that has a template in it, where a text alone is wrong.
pub(super) fn unrendered_text(text: &str) -> Option<Fault> {
    let found = template(text).or_else(|| is_bare_variable(text).then_some((text, FILL_IN)));
    found.map(|(template, fix)| Fault::Template {
        text: template.to_owned(),
        fix,
        is_text: false,
    })
}

/// The warning of a text that has a template in it, and could be meant.
pub(super) fn doubtful_text(text: &str) -> Option<Fault> {
    template(text).map(|(template, fix)| Fault::Template {
        text: template.to_owned(),
        fix,
        is_text: true,
    })
}

/// Whether a node is `{{ … }}`, which YAML reads as a map whose only key is a map.
pub(super) fn is_template(node: &YamlNode<'_>) -> bool {
    match &node.kind {
        NodeKind::Map(entries) => match entries.as_slice() {
            [(key, value)] => matches!(key.kind, NodeKind::Map(_)) && value.is_null(),
            _ => false,
        },
        _ => false,
    }
}

/// The text of such a node, as far as it is known.
fn braced(node: &YamlNode<'_>) -> String {
    let inner = match &node.kind {
        NodeKind::Map(entries) => entries.first().map(|(key, _)| &key.kind),
        _ => None,
    };
    if let Some(NodeKind::Map(entries)) = inner
        && let [(key, _)] = entries.as_slice()
        && let NodeKind::Scalar { text, .. } = &key.kind
    {
        return format!("{{{{ {text} }}}}");
    }
    "{{ … }}".to_owned()
}

/// The offset of the braces of a template whose inner text begins at `offset`.
pub(super) fn beginning(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or_default();
    let blank = before.trim_end();
    blank.strip_suffix("{{").map_or(offset, str::len)
}

/// The offset of the template in a line, and its fault.
pub(super) fn in_line(line: &str) -> Option<(usize, Fault)> {
    let marks = MARKS.iter().filter_map(|(open, close, fix)| {
        let at = line.find(open)?;
        let end = line[at..]
            .find(close)
            .map_or(line.len(), |end| at + end + close.len());
        Some((at, &line[at..end], *fix))
    });
    let (at, text, fix) = marks.min_by_key(|(at, ..)| *at)?;
    let fault = Fault::Template {
        text: text.trim_end().to_owned(),
        fix,
        is_text: false,
    };
    Some((at, fault))
}

/// The first template in a text, and how to render it.
fn template(text: &str) -> Option<(&str, &'static str)> {
    for (open, close, fix) in MARKS {
        if let Some(at) = text.find(open)
            && let Some(end) = text[at..].find(close)
        {
            return Some((&text[at..at + end + close.len()], fix));
        }
    }
    let dollars = text.match_indices('$');
    let mut variables = dollars.filter_map(|(at, _)| variable(&text[at..]));
    variables.next().map(|variable| (variable, FILL_IN))
}

/// Whether a text is `$NAME`. Where any text is valid, it may be meant.
fn is_bare_variable(text: &str) -> bool {
    let is_of_name = |next: char| next.is_ascii_uppercase() || next.is_ascii_digit() || next == '_';
    let name = text.strip_prefix('$');
    name.is_some_and(|name| {
        name.starts_with(|first: char| first.is_ascii_uppercase()) && name.chars().all(is_of_name)
    })
}

/// The `${NAME}`, `${NAME:-default}` or `$(NAME)` that a text begins with.
fn variable(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("${").map(|rest| (rest, '}'));
    let (rest, close) = rest.or_else(|| Some((text.strip_prefix("$(")?, ')')))?;
    let name = rest.find(|next: char| !next.is_ascii_alphanumeric() && next != '_')?;
    let is_name =
        rest[..name].starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let after = &rest[name..];
    let has_default = [":-", "-", ":?", "?", ":+"]
        .iter()
        .any(|mark| after.starts_with(mark));
    let is_closed = after.starts_with(close) || (close == '}' && has_default);
    let mut near = after.bytes().take(MAX_DEFAULT_BYTES);
    let end = near.position(|byte| char::from(byte) == close);
    let end = end.filter(|_| is_name && is_closed)?;
    // The opening has two bytes, the closing has one.
    text.get(..2 + name + end + 1)
}
