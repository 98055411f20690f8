//! The checks of the reference that hold for every map and list of a rule file, whatever it means.

use crate::config::{
    advice::{OddCharacters, item_fault, odd_characters},
    fault::Fault,
    foreign_pattern::{address_range, foreign_pattern},
    keys::{Key, KeyKind, KeyLevel, MERGE, SCHEMA, expected_instead_of},
    node::{NodeKind, Scalar, YamlNode, describe, resolve},
    problems::NodePath,
    reader::YamlReader,
    template::{doubtful_text, is_template, unrendered},
};

impl YamlReader<'_> {
    /// Checks a whole file, except its metadata.
    pub(super) fn check_file(&mut self, root: &YamlNode<'_>) {
        let value = Value {
            kind: KeyKind::Map(KeyLevel::File),
            level: KeyLevel::File,
            is_read: true,
            is_free: false,
            name: "",
        };
        self.check_tree(root, value, None, None);
    }

    /// Checks a value, whose key stands at `at`; `node_path` is its path.
    fn check_tree(
        &mut self,
        node: &YamlNode<'_>,
        value: Value,
        at: Option<usize>,
        node_path: Option<&NodePath<'_>>,
    ) {
        let Value { kind, is_read, .. } = value;
        let below = kind.level().unwrap_or(value.level);
        let path = || node_path.map_or_else(String::new, NodePath::path);
        match &node.kind {
            NodeKind::Tagged => self.report(at, &path(), Fault::Tag),
            NodeKind::Scalar { text, is_plain } => {
                let fault = scalar_fault(text, *is_plain, value);
                if let Some(fault) = fault.or_else(|| pattern_fault(text, value, node_path)) {
                    self.report(node.offset.or(at), &path(), fault);
                }
            }
            // The reader reports a list or a map in the place of another value.
            NodeKind::List(_) if is_read && !matches!(kind, KeyKind::List(_) | KeyKind::Limits) => {
            }
            NodeKind::Map(_) if is_read && (kind.level().is_none() || is_template(node)) => {}
            NodeKind::Map(_) if is_template(node) => self.unrendered(node, &path()),
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
                            self.check_tree(item, item_value, at, node_path);
                        }
                        NodeKind::Scalar { .. } if kind == KeyKind::Limits => {}
                        other => {
                            let fault = item_fault(other, below);
                            self.report(item.offset.or(at), &path(), fault);
                        }
                    }
                }
            }
            NodeKind::Map(entries) => {
                let node_path = NodePath {
                    above: node_path,
                    entries,
                };
                for (key, entry) in entries {
                    self.check_entry(key, entry, below, is_read, &node_path);
                }
            }
        }
    }

    /// Reports a template that stands where the reader does not read.
    fn unrendered(&mut self, node: &YamlNode<'_>, path: &str) {
        if let Some(fault) = unrendered(node) {
            let at = self.beginning(node.offset, node);
            self.report(at, &path, fault);
        }
    }

    /// Checks an entry of a map of this level.
    fn check_entry(
        &mut self,
        key: &YamlNode<'_>,
        value: &YamlNode<'_>,
        level: KeyLevel,
        is_read: bool,
        node_path: &NodePath<'_>,
    ) {
        if is_template(key) {
            return self.unrendered(key, &node_path.path());
        }
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
            return self.check_merge(key, value, node_path);
        }
        if text == SCHEMA && level == KeyLevel::File {
            return self.check_schema(value, key.offset, node_path);
        }
        let Some(known) = Key::find(text) else {
            return self.report(key.offset, &node_path.path(), unknown_key(text, level));
        };
        if matches!(known.kind, KeyKind::FreeForm | KeyKind::Texts) {
            self.check_free_form(value, key.offset, node_path);
        } else {
            let known = Value {
                kind: known.kind,
                level,
                is_read: is_read && known.belongs_to(level),
                is_free: FREE_TEXTS.contains(&known.name),
                name: known.name,
            };
            self.check_tree(value, known, key.offset, Some(node_path));
        }
    }

    /// Refuses a name of a schema that is no text.
    fn check_schema(&mut self, value: &YamlNode<'_>, at: Option<usize>, node_path: &NodePath<'_>) {
        let text = Value {
            kind: KeyKind::Text,
            level: KeyLevel::File,
            is_read: true,
            is_free: false,
            name: "",
        };
        self.check_tree(value, text, at, Some(node_path));
        if matches!(value.kind, NodeKind::List(_) | NodeKind::Map(_)) {
            let (path, expected) = (node_path.path(), KeyKind::Text.expected());
            self.report_type(value.offset.or(at), &path, SCHEMA, expected, value);
        }
    }

    /// Refuses a merge of something else than maps, such as a name without the asterisk of its alias.
    fn check_merge(&mut self, key: &YamlNode<'_>, value: &YamlNode<'_>, node_path: &NodePath<'_>) {
        let is_map = |node: &YamlNode<'_>| matches!(node.kind, NodeKind::Map(_));
        let is_mergeable = match &value.kind {
            NodeKind::List(items) => items.iter().all(is_map),
            _ => is_map(value),
        };
        if !is_mergeable {
            let at = value.offset.or(key.offset);
            let fault = Fault::Unmergeable(describe(&value.kind));
            self.report(at, &node_path.path(), fault);
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
                    if matches!(&key.kind, NodeKind::Scalar { text, is_plain: true } if text == MERGE)
                    {
                        self.check_merge(key, value, node_path);
                    }
                    self.check_free_form(key, at, node_path);
                    self.check_free_form(value, key.offset.or(at), node_path);
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
    /// Whether any text is valid, so that nothing else notices a wrong one.
    is_free: bool,
    /// The name of the key, empty for the file itself.
    name: &'static str,
}

/// The keys whose values can be any text.
const FREE_TEXTS: [&str; 4] = ["domain", "key", "value", "name"];

/// The keys whose values are sent to clients.
const SENT_TEXTS: [&str; 1] = ["body"];

/// The fault of a scalar, whatever it stands for.
fn scalar_fault(text: &str, is_plain: bool, value: Value) -> Option<Fault> {
    let is_odd = match resolve(text, is_plain) {
        Scalar::Float => true,
        Scalar::Int(number) => number > i128::from(i64::MAX),
        Scalar::Null | Scalar::Bool(_) | Scalar::Text => false,
    };
    if is_odd && (value.kind == KeyKind::Text || !value.is_read) {
        return Some(Fault::OddScalar(text.to_owned()));
    }
    if (value.is_free || SENT_TEXTS.contains(&value.name))
        && let Some(fault) = doubtful_text(text)
    {
        return Some(fault);
    }
    // In quotes it is meant.
    if value.is_free && is_plain {
        return odd_characters(text).map(|odd| Fault::OddValue(odd.found));
    }
    None
}

/// The warning of a key or a value of a descriptor that is a pattern elsewhere.
fn pattern_fault(text: &str, value: Value, node_path: Option<&NodePath<'_>>) -> Option<Fault> {
    match value.name {
        "key" => foreign_pattern(text, false),
        "value" => {
            let has_key = |key| node_path.is_some_and(|path| path.has("key", key));
            // Both sides choose the values of `generic_key`, which can name a route by its pattern.
            let is_chosen = has_key("generic_key");
            let may_be_range = ["masked_remote_address", "remote_address_match"];
            let may_be_range = is_chosen || may_be_range.into_iter().any(has_key);
            foreign_pattern(text, !is_chosen)
                .or_else(|| address_range(text).filter(|_| !may_be_range))
        }
        _ => None,
    }
}

fn unknown_key(text: &str, level: KeyLevel) -> Fault {
    match odd_characters(text) {
        Some(OddCharacters { found, fix }) => Fault::OddKey { found, fix },
        None => Fault::UnknownKey {
            key: text.to_owned(),
            expected: expected_instead_of(text, level),
        },
    }
}
