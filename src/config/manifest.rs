//! Kubernetes resources and Envoy configurations, which are found beside rules.

use std::path::Path;

use crate::config::{
    fault::Fault,
    node::{NodeKind, YamlNode},
};

/// The fault of a document that is something else than rules, in the file of this name; `None` if it may be rules.
pub(super) fn foreign(root: &YamlNode<'_>, file_name: &str) -> Option<Fault> {
    if value(root, "domain").is_some() {
        return None;
    }
    let kind = value(root, "kind").and_then(YamlNode::text);
    if let (Some(kind), true) = (kind, value(root, "apiVersion").is_some()) {
        return Some(Fault::Kubernetes(kind.to_owned()));
    }
    // It may leave out its kind.
    let name = Path::new(file_name).file_stem();
    if name.is_some_and(|name| name == "kustomization") && !is_rules(root) {
        return Some(Fault::Kubernetes("Kustomization".to_owned()));
    }
    let is_envoy = ENVOY_KEYS.iter().any(|key| value(root, key).is_some());
    (is_envoy && !is_rules(root)).then_some(Fault::Envoy)
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
    entries.iter().rfind(|(key, _)| key.text() == Some(wanted))
}
