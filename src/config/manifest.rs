//! Kubernetes resources and Envoy configurations, which are found beside rules.

use std::path::Path;

use crate::config::node::{NodeKind, YamlNode};

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
