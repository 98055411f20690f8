//! The files in Kubernetes manifests: each key of a ConfigMap's `data` is a file of its own.

use std::collections::BTreeSet;

use super::{
    file::BYTE_ORDER_MARK,
    foreign::{Foreign, entry, may_be_foreign, text, value},
    node::{NodeKind, YamlNode},
    parse::parse_all,
    position::{Lines, Position},
    text_place::TextPlace,
};

/// The Kubernetes resources and the Envoy configurations of a file. Resources of a `List` or a `ConfigMapList` count
/// one by one.
#[derive(Debug, Default)]
pub(crate) struct Manifest {
    pub(crate) config_maps: Vec<ConfigMap>,
    /// The kinds of all resources.
    pub(crate) kinds: BTreeSet<String>,
    /// Whether a document is an Envoy configuration.
    pub(crate) has_envoy: bool,
    /// Whether a document is something else, such as rules.
    pub(crate) has_other_documents: bool,
}

/// A ConfigMap, which pods see as a folder.
#[derive(Debug)]
pub(crate) struct ConfigMap {
    pub(crate) name: String,
    pub(crate) files: Vec<ConfigMapFile>,
    /// The keys of `binaryData`, whose values are not read.
    pub(crate) binary: Vec<(String, Position)>,
}

/// A key of a ConfigMap's `data`.
#[derive(Debug)]
pub(crate) struct ConfigMapFile {
    pub(crate) key: String,
    pub(crate) key_position: Position,
    pub(crate) text: String,
    pub(crate) place: TextPlace,
}

impl Manifest {
    /// Reads `text`, the file of this name; `None` if it has no resource and no Envoy configuration, or is no YAML.
    pub(crate) fn read(file_name: &str, text: &str) -> Option<Self> {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        if !may_be_foreign(text, file_name) {
            return None;
        }
        let roots = parse_all(text).ok()?;
        let mut reader = ManifestReader {
            file_name,
            text,
            lines: Lines::of(text),
            manifest: Self::default(),
        };
        for root in &roots {
            reader.document(root);
        }
        let manifest = reader.manifest;
        let is_some = manifest.has_envoy || !manifest.kinds.is_empty();
        is_some.then_some(manifest)
    }
}

struct ManifestReader<'t> {
    file_name: &'t str,
    text: &'t str,
    lines: Lines,
    manifest: Manifest,
}

impl ManifestReader<'_> {
    fn document(&mut self, root: &YamlNode<'_>) {
        let kind = match Foreign::of(root, self.file_name) {
            Some(Foreign::Kubernetes(kind)) => kind,
            Some(Foreign::Envoy) => return self.manifest.has_envoy = true,
            None => return self.manifest.has_other_documents = true,
        };
        let items = value(root, "items").map(|items| &items.kind);
        match items {
            Some(NodeKind::List(items)) if kind.ends_with("List") => {
                for item in items {
                    // Items of a typed list may leave out their kind.
                    let item_kind = value(item, "kind").and_then(text);
                    let list_of = kind.strip_suffix("List").filter(|kind| !kind.is_empty());
                    let item_kind = item_kind.or(list_of).unwrap_or("resource").to_owned();
                    self.resource(item, item_kind);
                }
            }
            _ => self.resource(root, kind),
        }
    }

    fn resource(&mut self, root: &YamlNode<'_>, kind: String) {
        if kind == "ConfigMap" {
            let config_map = self.config_map(root);
            self.manifest.config_maps.push(config_map);
        }
        self.manifest.kinds.insert(kind);
    }

    fn config_map(&self, root: &YamlNode<'_>) -> ConfigMap {
        let name = value(root, "metadata").and_then(|metadata| {
            let name = value(metadata, "name").or_else(|| value(metadata, "generateName"));
            name.and_then(text)
        });
        let files = entries(root, "data").filter_map(|(key, value)| {
            let inner = text(value)?;
            let outer = (self.text, &self.lines);
            Some(ConfigMapFile {
                key: text(key)?.to_owned(),
                key_position: self.position(key),
                text: inner.to_owned(),
                place: TextPlace::of(inner, value.offset, outer, key.offset),
            })
        });
        let binary = entries(root, "binaryData");
        let binary =
            binary.filter_map(|(key, _)| Some((text(key)?.to_owned(), self.position(key))));
        ConfigMap {
            name: name.unwrap_or("ConfigMap").to_owned(),
            files: files.collect(),
            binary: binary.collect(),
        }
    }

    fn position(&self, node: &YamlNode<'_>) -> Position {
        self.lines.position(self.text, node.offset.unwrap_or(0))
    }
}

/// The entries of the map that is the value of `key`.
fn entries<'n, 't>(
    node: &'n YamlNode<'t>,
    key: &str,
) -> impl Iterator<Item = &'n (YamlNode<'t>, YamlNode<'t>)> {
    let entries = match entry(node, key) {
        Some((
            _,
            YamlNode {
                kind: NodeKind::Map(entries),
                ..
            },
        )) => entries.as_slice(),
        _ => &[],
    };
    entries.iter()
}
