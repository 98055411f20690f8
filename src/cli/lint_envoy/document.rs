//! The text of a file as trees whose values know their place.

use std::{cell::OnceCell, collections::HashMap};

use crate::{
    config::{
        node::{NodeKind, YamlNode},
        parse::{is_too_dense, parse_all},
        position::{Lines, Position},
    },
    foundation::printable::Shown,
};

/// In a long configuration at most one node begins in this many bytes: it is read at once, unlike rules.
const BYTES_PER_NODE: usize = 7;

/// Why a file cannot be checked. A mistake in JSON or YAML has a position.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) position: Option<Position>,
    pub(super) text: String,
}

impl Unreadable {
    pub(super) fn other(reason: &str) -> Self {
        let text = format!("not an Envoy configuration: {reason}");
        Self {
            position: None,
            text,
        }
    }
}

/// By the id of a value, its number in the order of the file and its path.
type Places = HashMap<usize, (usize, String)>;

/// The documents of a file: one of JSON, or some of YAML.
#[derive(Debug)]
pub(super) struct EnvoyFile<'t> {
    text: &'t str,
    lines: OnceCell<Lines>,
    roots: Vec<YamlNode<'t>>,
}

impl<'t> EnvoyFile<'t> {
    /// # Errors
    ///
    /// If the text is neither JSON nor YAML.
    pub(super) fn parse(text: &'t str) -> Result<Self, Unreadable> {
        if is_too_dense(text, BYTES_PER_NODE) {
            let reason = "it consists of brackets, commas and short lines";
            return Err(Unreadable::other(reason));
        }
        let is_json = text.trim_start().starts_with('{');
        let roots = match is_json.then(|| serde_json::from_str(text)) {
            Some(Ok(json)) => vec![from_json(json)],
            _ => parse_all(text).map_err(|error| syntax(&error))?,
        };
        Ok(Self {
            text,
            lines: OnceCell::new(),
            roots,
        })
    }

    pub(super) fn roots(&self) -> impl Iterator<Item = EnvoyValue<'_>> {
        self.roots.iter().map(|node| EnvoyValue { node })
    }

    /// The position of a value; `None` for JSON, and for values without a text of their own.
    pub(super) fn position(&self, value: EnvoyValue<'_>) -> Option<Position> {
        let lines = self.lines.get_or_init(|| Lines::of(self.text));
        Some(lines.position(self.text, value.node.offset?))
    }

    /// Finds values again: their number in the order of the file, and their path, such as
    /// `static_resources.clusters[0].name`.
    pub(super) fn places<'d>(&self, values: impl Iterator<Item = EnvoyValue<'d>>) -> Places {
        let places = values.map(|value| (value.id(), Default::default()));
        let (mut found, mut visited) = (places.collect(), 0);
        for (root, number) in self.roots.iter().zip(1..) {
            let mut path = String::new();
            if self.roots.len() > 1 {
                path = format!("document {number}");
            }
            find_places(root, &mut path, &mut visited, &mut found);
        }
        found
    }
}

fn find_places(node: &YamlNode<'_>, path: &mut String, visited: &mut usize, found: &mut Places) {
    *visited += 1;
    let value = EnvoyValue { node };
    if let Some(place) = found.get_mut(&value.id()) {
        let whole = path.is_empty().then_some("the whole file");
        *place = (*visited, whole.unwrap_or(path.as_str()).to_owned());
    }
    let (length, is_list) = (path.len(), matches!(node.kind, NodeKind::List(_)));
    for (index, (key, child)) in value.children().enumerate() {
        *path += &match key {
            _ if is_list => format!("[{index}]"),
            key if length == 0 => Shown(key.as_bytes()).to_string(),
            key => format!(".{}", Shown(key.as_bytes())),
        };
        find_places(child.node, path, visited, found);
        path.truncate(length);
    }
}

fn syntax(error: &serde_yaml::Error) -> Unreadable {
    let text = error.to_string();
    // The parser's text ends with the line within the document.
    let place = error.location();
    let end = text.rfind(" at line ").filter(|_| place.is_some());
    let position = place.map(|location| Position {
        line: location.line(),
        column: location.column(),
    });
    let text = text[..end.unwrap_or(text.len())].to_owned();
    Unreadable { position, text }
}

/// A value of JSON, without a position. `null` is as good as nothing.
fn from_json(value: serde_json::Value) -> YamlNode<'static> {
    use serde_json::Value;
    let node = |kind| YamlNode { kind, offset: None };
    let scalar = |text: String| NodeKind::Scalar {
        text: text.into(),
        is_plain: false,
    };
    node(match value {
        Value::String(text) => scalar(text),
        Value::Array(items) => NodeKind::List(items.into_iter().map(from_json).collect()),
        Value::Object(entries) => {
            let entries = entries.into_iter().filter(|(_, value)| !value.is_null());
            let entries = entries.map(|(name, value)| (node(scalar(name)), from_json(value)));
            NodeKind::Map(entries.collect())
        }
        other => scalar(other.to_string()),
    })
}

/// A value in a file. Keys are found in both spellings that Envoy reads: `cluster_name` and `clusterName`.
#[derive(Clone, Copy, Debug)]
pub(super) struct EnvoyValue<'d> {
    node: &'d YamlNode<'d>,
}

impl<'d> EnvoyValue<'d> {
    /// A number of its own among the values of a file.
    pub(super) fn id(self) -> usize {
        std::ptr::from_ref(self.node).addr()
    }

    /// The value of a key in snake_case; `None` for `null`.
    pub(super) fn get(self, key: &str) -> Option<Self> {
        let NodeKind::Map(entries) = &self.node.kind else {
            return None;
        };
        let is_key = |text: &str| text == key || text.len() < key.len() && snake_case(text) == key;
        let (_, node) = entries
            .iter()
            .find(|(name, value)| name.text().is_some_and(is_key) && !value.is_null())?;
        Some(Self { node })
    }

    /// The value at the end of a path of keys.
    pub(super) fn at(self, keys: &[&str]) -> Option<Self> {
        keys.iter().try_fold(self, |value, key| value.get(key))
    }

    pub(super) fn has(self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Whether it is a map that is not empty.
    pub(super) fn is_map(self) -> bool {
        matches!(&self.node.kind, NodeKind::Map(entries) if !entries.is_empty())
    }

    pub(super) fn text(self) -> Option<&'d str> {
        self.node.text()
    }

    /// The text at a key; empty if there is none.
    pub(super) fn text_of(self, key: &str) -> &'d str {
        self.text_at(&[key])
    }

    /// The text at the end of a path of keys; empty if there is none.
    pub(super) fn text_at(self, keys: &[&str]) -> &'d str {
        self.at(keys).and_then(Self::text).unwrap_or_default()
    }

    /// Whether a key has one of the words that Envoy's YAML takes for true.
    pub(super) fn is_true(self, key: &str) -> bool {
        self.has_word(key, ["true", "yes", "on", "y"])
    }

    pub(super) fn is_false(self, key: &str) -> bool {
        self.has_word(key, ["false", "no", "off", "n"])
    }

    fn has_word(self, key: &str, words: [&str; 4]) -> bool {
        let text = self.text_of(key);
        words.iter().any(|word| text.eq_ignore_ascii_case(word))
    }

    /// The whole number at a key; 0 if there is none.
    pub(super) fn number(self, key: &str) -> u64 {
        self.text_of(key).parse().unwrap_or(0)
    }

    /// The items of a repeated field, which Envoy also reads from a single value, as a list of one.
    pub(super) fn list(self, key: &str) -> Vec<Self> {
        match self.get(key).map(|list| (list, &list.node.kind)) {
            None => Vec::new(),
            Some((_, NodeKind::List(items))) => items.iter().map(|node| Self { node }).collect(),
            Some((_, NodeKind::Map(entries))) if entries.is_empty() => Vec::new(),
            Some((single, _)) => vec![single],
        }
    }

    /// The entries of a map by key, and the items of a list.
    pub(super) fn children(self) -> impl Iterator<Item = (&'d str, Self)> {
        let (entries, items): (&[_], &[_]) = match &self.node.kind {
            NodeKind::Map(entries) => (entries, &[]),
            NodeKind::List(items) => (&[], items),
            NodeKind::Scalar { .. } | NodeKind::Tagged => (&[], &[]),
        };
        let items = items.iter().map(|node| ("", node));
        let text = |key: &'d YamlNode<'d>| key.text().unwrap_or_default();
        let entries = entries.iter().map(move |(key, node)| (text(key), node));
        entries.chain(items).map(|(key, node)| (key, Self { node }))
    }

    /// The name and the content of a message with an `@type`. A `TypedStruct` has the name of the message in it.
    pub(super) fn message(self) -> Option<(&'d str, Self)> {
        let name = self.text_of("@type").rsplit('/').next()?;
        if name.ends_with(".v1.TypedStruct") || name.ends_with(".v3.TypedStruct") {
            let carried = self.text_of("type_url").rsplit('/').next()?;
            return Some((carried, self.get("value")?));
        }
        (!name.is_empty()).then_some((name, self))
    }
}

/// A name from the file in a text.
pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", Shown(name.as_bytes()))
}

/// A key in the spelling `cluster_name`.
pub(super) fn snake_case(key: &str) -> String {
    let mut snake = String::with_capacity(key.len());
    for next in key.chars() {
        if next.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(next.to_ascii_lowercase());
    }
    snake
}
