//! The checks of the reference that hold for every map and list of a rule file, whatever it means.

use crate::config::{
    fault::{Fault, shortened},
    hints::{foreign_pattern, unrendered},
    keys::{Key, KeyKind, KeyLevel, MERGE, SCHEMA, expected_instead_of},
    node::{NodeKind, Scalar, YamlNode, describe, is_template, resolve},
    problems::NodePath,
    reader::{YamlReader, unrendered_node},
};

impl YamlReader<'_> {
    /// Checks a whole file, except its metadata.
    pub(super) fn check_file(&mut self, root: &YamlNode<'_>) {
        let value = Value {
            kind: KeyKind::Map(KeyLevel::File),
            level: KeyLevel::File,
            is_read: true,
            name: "",
        };
        self.check_tree(root, value, None, &NodePath::Root);
    }

    /// Checks a value, whose key stands at `at`; `path` is that of the map that has the key.
    fn check_tree(
        &mut self,
        node: &YamlNode<'_>,
        value: Value,
        at: Option<usize>,
        path: &NodePath<'_>,
    ) {
        let Value { kind, is_read, .. } = value;
        let below = kind.level().unwrap_or(value.level);
        match &node.kind {
            NodeKind::Tagged => self.report(at, path, Fault::Tag),
            NodeKind::Scalar { text, is_plain } => {
                if let Some(fault) = scalar_fault(text, *is_plain, value, path) {
                    self.report(node.offset.or(at), path, fault);
                }
            }
            // The reader reports a list or a map in the place of another value.
            NodeKind::List(_) if is_read && !matches!(kind, KeyKind::List(_) | KeyKind::Limits) => {
            }
            NodeKind::Map(_) if is_read && (kind.level().is_none() || is_template(node)) => {}
            NodeKind::Map(_) if is_template(node) => self.unrendered(node, path),
            NodeKind::List(items) => {
                for item in items {
                    match &item.kind {
                        NodeKind::Map(_) | NodeKind::Tagged => {
                            let kind = KeyKind::Map(below);
                            let item_value = Value {
                                kind,
                                level: below,
                                ..value
                            };
                            self.check_tree(item, item_value, at, path);
                        }
                        NodeKind::Scalar { .. } if kind == KeyKind::Limits => {}
                        other => {
                            let fault = Fault::ListItem(describe(other));
                            let fault = unrendered_node(item).unwrap_or(fault);
                            self.report(item.offset.or(at), path, fault);
                        }
                    }
                }
            }
            NodeKind::Map(entries) => {
                let path = NodePath::Map {
                    above: path,
                    entries,
                };
                for (key, entry) in entries {
                    self.check_entry(key, entry, below, is_read, &path);
                }
            }
        }
    }

    /// Reports a template that stands where the reader does not read.
    fn unrendered(&mut self, node: &YamlNode<'_>, path: &NodePath<'_>) {
        if let Some(fault) = unrendered_node(node) {
            let at = self.beginning(node.offset, node);
            self.report(at, path, fault);
        }
    }

    /// Checks an entry of a map of this level.
    fn check_entry(
        &mut self,
        key: &YamlNode<'_>,
        value: &YamlNode<'_>,
        level: KeyLevel,
        is_read: bool,
        path: &NodePath<'_>,
    ) {
        if is_template(key) {
            return self.unrendered(key, path);
        }
        let text = match &key.kind {
            NodeKind::Scalar { text, is_plain } if resolve(text, *is_plain) == Scalar::Text => text,
            other => return self.report(key.offset, path, Fault::KeyNotText(describe(other))),
        };
        if text == MERGE {
            // The maps it names are checked where they are written down.
            return self.check_merge(key, value, path);
        }
        let (kind, name, belongs) = match Key::find(text) {
            // It names a schema, which has no meaning here.
            None if text == SCHEMA && level == KeyLevel::File => (KeyKind::Text, SCHEMA, true),
            Some(known) => (known.kind, known.name, known.belongs_to(level)),
            None => {
                let expected = match self.has_room() {
                    true => expected_instead_of(text, level),
                    false => String::new(),
                };
                let fault = Fault::UnknownKey {
                    key: shortened(text),
                    expected,
                };
                return self.report(key.offset, path, fault);
            }
        };
        if matches!(kind, KeyKind::FreeForm | KeyKind::Texts) {
            return self.check_free_form(value, key.offset, path);
        }
        let known = Value {
            kind,
            level,
            is_read: is_read && belongs,
            name,
        };
        self.check_tree(value, known, key.offset, path);
        if name == SCHEMA && matches!(value.kind, NodeKind::List(_) | NodeKind::Map(_)) {
            let at = value.offset.or(key.offset);
            self.report_type(at, path, SCHEMA, KeyKind::Text.expected(), value);
        }
    }

    /// Refuses a merge of something else than maps, such as a name without the asterisk of its alias.
    fn check_merge(&mut self, key: &YamlNode<'_>, value: &YamlNode<'_>, path: &NodePath<'_>) {
        let is_map = |node: &YamlNode<'_>| matches!(node.kind, NodeKind::Map(_));
        let is_mergeable = match &value.kind {
            NodeKind::List(items) => items.iter().all(is_map),
            _ => is_map(value),
        };
        if !is_mergeable {
            let at = value.offset.or(key.offset);
            self.report(at, path, Fault::Unmergeable(describe(&value.kind)));
        }
    }

    /// Accepts metadata that a `Struct` can hold: everything except tagged values.
    fn check_free_form(&mut self, node: &YamlNode<'_>, at: Option<usize>, path: &NodePath<'_>) {
        match &node.kind {
            NodeKind::Scalar { .. } => {}
            NodeKind::Tagged => self.report(at, path, Fault::Tag),
            NodeKind::List(items) => {
                for item in items {
                    self.check_free_form(item, at, path);
                }
            }
            NodeKind::Map(entries) => {
                for (key, value) in entries {
                    if matches!(&key.kind, NodeKind::Scalar { text, is_plain: true } if text == MERGE)
                    {
                        self.check_merge(key, value, path);
                    }
                    self.check_free_form(key, at, path);
                    self.check_free_form(value, key.offset.or(at), path);
                }
            }
        }
    }
}

/// The value of a key, as the table of keys describes it.
#[derive(Clone, Copy)]
struct Value {
    kind: KeyKind,
    /// The level of the map that has the key.
    level: KeyLevel,
    /// Whether the reader reads it, and reports a value of another type. It ignores keys in the wrong place.
    is_read: bool,
    /// The name of the key, empty for the file itself.
    name: &'static str,
}

/// The keys whose values can be any text, so that nothing else notices a wrong one.
const FREE_TEXTS: [&str; 5] = ["domain", "key", "value", "name", "body"];

/// Keys whose values can be ranges of addresses: Envoy sends some, and others are only names.
const RANGE_KEYS: [&str; 3] = [
    "generic_key",
    "masked_remote_address",
    "remote_address_match",
];

/// The fault of a scalar, whatever it stands for.
fn scalar_fault(text: &str, is_plain: bool, value: Value, path: &NodePath<'_>) -> Option<Fault> {
    let is_odd = match resolve(text, is_plain) {
        Scalar::Float => true,
        Scalar::Int(number) => number > i128::from(i64::MAX),
        Scalar::Null | Scalar::Bool(_) | Scalar::Text => false,
    };
    if is_odd && (value.kind == KeyKind::Text || !value.is_read) {
        return Some(Fault::OddScalar(shortened(text)));
    }
    let is_free = FREE_TEXTS.contains(&value.name);
    let template = is_free.then(|| unrendered(text, true)).flatten();
    template.or_else(|| match value.name {
        "key" => foreign_pattern(text, || true),
        "value" => foreign_pattern(text, || RANGE_KEYS.iter().any(|key| path.has("key", key))),
        _ => None,
    })
}
