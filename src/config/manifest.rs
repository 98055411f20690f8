//! Kubernetes resources and Envoy configurations, which are found beside rules, and the files in ConfigMaps, which
//! `lint-envoy` reads: each key of `data` is one.

use std::path::Path;

use crate::config::{
    file::BYTE_ORDER_MARK,
    node::{NodeKind, YamlNode},
    parse::parse_all,
    position::{Lines, Position},
};

/// A key of a ConfigMap's `data`.
#[derive(Debug)]
pub(crate) struct ConfigMapFile {
    /// The names of the ConfigMap and of the key, with a slash between them.
    pub(crate) name: String,
    pub(crate) key_position: Position,
    pub(crate) text: String,
    pub(crate) place: TextPlace,
}

/// The files in the ConfigMaps of `outer`, also of those in a `List`; none if it is no YAML.
pub(crate) fn config_map_files(outer: &str) -> Vec<ConfigMapFile> {
    let outer = outer.strip_prefix(BYTE_ORDER_MARK).unwrap_or(outer);
    let roots = parse_all(outer).unwrap_or_default();
    let lines = Lines::of(outer);
    let resources =
        roots
            .iter()
            .flat_map(|root| match value(root, "items").map(|items| &items.kind) {
                Some(NodeKind::List(items)) => items.as_slice(),
                _ => std::slice::from_ref(root),
            });
    let config_maps =
        resources.filter(|resource| value(resource, "kind").and_then(text) == Some("ConfigMap"));
    let files = config_maps.flat_map(|config_map| {
        let name = value(config_map, "metadata").and_then(|metadata| value(metadata, "name"));
        let name = name.and_then(text).unwrap_or("ConfigMap");
        let data = match entry(config_map, "data").map(|(_, data)| &data.kind) {
            Some(NodeKind::Map(entries)) => entries.as_slice(),
            _ => &[],
        };
        data.iter()
            .filter_map(|(key, value)| file(name, (key, value), (outer, &lines)))
    });
    files.collect()
}

fn file(
    config_map: &str,
    (key, value): (&YamlNode<'_>, &YamlNode<'_>),
    outer: (&str, &Lines),
) -> Option<ConfigMapFile> {
    let inner = text(value)?;
    Some(ConfigMapFile {
        name: format!("{config_map}/{}", text(key)?),
        key_position: outer.1.position(outer.0, key.offset.unwrap_or(0)),
        text: inner.to_owned(),
        place: TextPlace::of(inner, value.offset, outer, key.offset),
    })
}

/// The place of an inner text in the outer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextPlace {
    /// Its lines are lines of the outer text, from this one on, each this many characters further right.
    Lines { first: usize, indent: usize },
    /// It is written in another way, folded or with escapes. This is the position of its key.
    Elsewhere(Position),
}

impl TextPlace {
    /// The place of `inner`, the value of a key at `key` in `outer`; `at` is the offset of a value that was not
    /// rewritten.
    fn of(
        inner: &str,
        at: Option<usize>,
        (outer, lines): (&str, &Lines),
        key: Option<usize>,
    ) -> Self {
        let key = lines.position(outer, key.unwrap_or(0));
        if let Some(at) = at {
            let Position { line, column } = lines.position(outer, at);
            return Self::Lines {
                first: line,
                indent: column - 1,
            };
        }
        match block_indent(inner, outer.lines().skip(key.line)) {
            Some(indent) => Self::Lines {
                first: key.line + 1,
                indent,
            },
            None => Self::Elsewhere(key),
        }
    }

    /// The position in the outer text of `inner`, a position in the inner one; for a text that is written in another
    /// way only that of its key.
    pub(crate) fn position(self, inner: Position) -> Position {
        match self {
            Self::Lines { first, indent } => Position {
                line: first + inner.line - 1,
                column: indent + inner.column,
            },
            Self::Elsewhere(key) => key,
        }
    }

    /// Whether positions in the inner text have positions in the outer one.
    pub(crate) fn is_exact(self) -> bool {
        matches!(self, Self::Lines { .. })
    }
}

/// The indentation of the block that `inner` is, if it is one: each line of `outer` is one of `inner`, indented.
fn block_indent<'t>(inner: &str, mut outer: impl Iterator<Item = &'t str>) -> Option<usize> {
    let mut indent = None;
    for line in inner.lines() {
        let found = outer.next()?;
        if line.is_empty() && found.trim().is_empty() {
            continue;
        }
        let blanks = found.strip_suffix(line)?;
        if blanks.contains(|next| next != ' ')
            || *indent.get_or_insert(blanks.len()) != blanks.len()
        {
            return None;
        }
    }
    indent
}

/// A document that is something else than rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// A Kubernetes resource of this kind.
    Kubernetes(String),
    Envoy,
}

impl Foreign {
    /// Recognises the document of the file of this name; `None` if it may be rules.
    pub(super) fn of(root: &YamlNode<'_>, file_name: &str) -> Option<Self> {
        if value(root, "domain").is_some() {
            return None;
        }
        let kind = value(root, "kind").and_then(text);
        if let (Some(kind), true) = (kind, value(root, "apiVersion").is_some()) {
            return Some(Self::Kubernetes(kind.to_owned()));
        }
        // It may leave out its kind.
        let name = Path::new(file_name).file_stem();
        if name.is_some_and(|name| name == "kustomization") && !is_rules(root) {
            return Some(Self::Kubernetes("Kustomization".to_owned()));
        }
        let is_envoy = ENVOY_KEYS.iter().any(|key| value(root, key).is_some());
        (is_envoy && !is_rules(root)).then_some(Self::Envoy)
    }
}

/// Keys of an Envoy bootstrap, of a file of its resources, and of the output of its `/config_dump`.
const ENVOY_KEYS: [&str; 8] = [
    "static_resources",
    "staticResources",
    "dynamic_resources",
    "dynamicResources",
    "layered_runtime",
    "admin",
    "configs",
    "@type",
];

/// Whether a document has a key that only rules have at the top.
fn is_rules(root: &YamlNode<'_>) -> bool {
    ["domain", "descriptors"]
        .iter()
        .any(|key| value(root, key).is_some())
}

/// The value of a key of a map.
pub(super) fn value<'n, 't>(node: &'n YamlNode<'t>, key: &str) -> Option<&'n YamlNode<'t>> {
    entry(node, key).map(|(_, value)| value)
}

/// An entry of a map.
pub(super) fn entry<'n, 't>(
    node: &'n YamlNode<'t>,
    wanted: &str,
) -> Option<&'n (YamlNode<'t>, YamlNode<'t>)> {
    let NodeKind::Map(entries) = &node.kind else {
        return None;
    };
    entries
        .iter()
        .rfind(|(key, _)| text(key).is_some_and(|key| key == wanted))
}

/// The text of a scalar.
pub(super) fn text<'n>(node: &'n YamlNode<'_>) -> Option<&'n str> {
    match &node.kind {
        NodeKind::Scalar { text, .. } => Some(text),
        NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Tagged => None,
    }
}
