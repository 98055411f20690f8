//! The checks of the reference that hold for every map and list of a rule file, whatever it means.

use super::{
    fault::Fault,
    keys::{Key, KeyKind, KeyLevel, MERGE, expected_instead_of},
    node::{NodeKind, YamlNode},
    path::NodePath,
    reader::YamlReader,
    scalar::{Scalar, describe, resolve},
};

impl YamlReader<'_> {
    /// Checks a whole file, except its metadata.
    pub(super) fn check_file(&mut self, root: &YamlNode<'_>) {
        self.check_tree(
            root,
            KeyKind::Map(KeyLevel::File),
            KeyLevel::File,
            None,
            None,
        );
    }

    /// Checks the value of a key of this kind and `level`, which stands at `at`; `node_path` is its path.
    fn check_tree(
        &mut self,
        node: &YamlNode<'_>,
        kind: KeyKind,
        level: KeyLevel,
        at: Option<usize>,
        node_path: Option<&NodePath<'_>>,
    ) {
        let below = kind.level().unwrap_or(level);
        let path = || node_path.map_or_else(String::new, NodePath::path);
        match &node.kind {
            NodeKind::Tagged => self.report(at, &path(), Fault::Tag),
            NodeKind::Scalar { text, is_plain } => {
                let is_odd = match resolve(text, *is_plain) {
                    Scalar::Float => true,
                    Scalar::Int(number) => number > i128::from(i64::MAX),
                    Scalar::Null | Scalar::Bool(_) | Scalar::Text => false,
                };
                if is_odd {
                    let fault = Fault::OddScalar(text.to_string());
                    self.report(node.offset.or(at), &path(), fault);
                }
            }
            NodeKind::List(items) => {
                for item in items {
                    match &item.kind {
                        NodeKind::Map(_) | NodeKind::Tagged => {
                            self.check_tree(item, KeyKind::Map(below), below, at, node_path);
                        }
                        NodeKind::Scalar { .. } if kind == KeyKind::Limits => {}
                        other => {
                            let shown = describe(other);
                            self.report(item.offset.or(at), &path(), Fault::ListOfScalars(shown));
                        }
                    }
                }
            }
            NodeKind::Map(entries) => {
                let node_path = NodePath {
                    above: node_path,
                    entries,
                };
                for (key, value) in entries {
                    self.check_entry(key, value, below, &node_path);
                }
            }
        }
    }

    fn check_entry(
        &mut self,
        key: &YamlNode<'_>,
        value: &YamlNode<'_>,
        level: KeyLevel,
        node_path: &NodePath<'_>,
    ) {
        let NodeKind::Scalar { text, is_plain } = &key.kind else {
            let fault = Fault::KeyNotText(describe(&key.kind));
            return self.report(key.offset, &node_path.path(), fault);
        };
        if resolve(text, *is_plain) != Scalar::Text {
            let fault = Fault::KeyNotText(text.to_string());
            return self.report(key.offset, &node_path.path(), fault);
        }
        if text == MERGE {
            // The maps it names are checked where they are written down.
            return;
        }
        let Some(known) = Key::find(text) else {
            let fault = Fault::UnknownKey {
                key: text.to_string(),
                expected: expected_instead_of(text, level),
            };
            return self.report(key.offset, &node_path.path(), fault);
        };
        if known.kind == KeyKind::FreeForm {
            self.check_free_form(value, key.offset, node_path);
        } else {
            self.check_tree(value, known.kind, level, key.offset, Some(node_path));
        }
    }

    /// Accepts metadata that a `Struct` can hold: everything except tagged values.
    fn check_free_form(
        &mut self,
        node: &YamlNode<'_>,
        at: Option<usize>,
        node_path: &NodePath<'_>,
    ) {
        match &node.kind {
            NodeKind::Scalar { .. } => {}
            NodeKind::Tagged => self.report(at, &node_path.path(), Fault::Tag),
            NodeKind::List(items) => {
                for item in items {
                    self.check_free_form(item, at, node_path);
                }
            }
            NodeKind::Map(entries) => {
                for (key, value) in entries {
                    self.check_free_form(key, at, node_path);
                    self.check_free_form(value, key.offset.or(at), node_path);
                }
            }
        }
    }
}
