//! Paths of rules in reports: the domain, then a text for each descriptor.

use std::fmt;

use super::node::{NodeKind, YamlNode};

/// The path from the root of the tree to a map, formatted only for a report.
#[derive(Clone, Copy)]
pub(super) struct NodePath<'w> {
    pub(super) above: Option<&'w Self>,
    pub(super) entries: &'w [(YamlNode<'w>, YamlNode<'w>)],
}

impl NodePath<'_> {
    /// The domain and the joined texts of the descriptors.
    pub(super) fn path(&self) -> String {
        let above = self.above.map_or_else(String::new, Self::path);
        extended(&above, self.entries)
    }

    /// Whether the map has a key with this text.
    pub(super) fn has(&self, wanted: &str, wanted_text: &str) -> bool {
        self.entries
            .iter()
            .any(|(key, value)| match (&key.kind, &value.kind) {
                (NodeKind::Scalar { text: key, .. }, NodeKind::Scalar { text, .. }) => {
                    key == wanted && text == wanted_text
                }
                _ => false,
            })
    }
}

/// The path of a descriptor, formatted only for a report.
pub(super) struct DescriptorPath<'p> {
    pub(super) parent: &'p dyn fmt::Display,
    pub(super) key: &'p str,
    pub(super) value: &'p str,
}

impl fmt::Display for DescriptorPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.parent, joined(self.key, self.value))
    }
}

/// Extends `path` by one map: a file's path is its domain, a descriptor's ends with its own text.
fn extended(path: &str, entries: &[(YamlNode<'_>, YamlNode<'_>)]) -> String {
    let text = |wanted: &str| {
        let mut texts = entries
            .iter()
            .filter_map(|(key, value)| match (&key.kind, &value.kind) {
                (NodeKind::Scalar { text: key, .. }, NodeKind::Scalar { text, .. })
                    if key == wanted =>
                {
                    (!value.is_null()).then_some(&**text)
                }
                _ => None,
            });
        texts.next_back()
    };
    match (path, text("domain"), text("key")) {
        ("", Some(domain), _) => domain.to_owned(),
        ("", None, _) | (_, _, None) => path.to_owned(),
        (_, _, Some(key)) => format!("{path}.{}", joined(key, text("value").unwrap_or_default())),
    }
}

/// The text that identifies a node among its siblings.
pub(super) fn joined(key: &str, value: &str) -> String {
    if value.is_empty() {
        key.to_owned()
    } else {
        format!("{key}_{value}")
    }
}
