//! Reads the values of a map and of those that it merges: texts, booleans, lists and free-form data, each with a
//! report if it is something else.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use foldhash::fast::RandomState;

use crate::{
    config::{
        fault::{Fault, FaultLevel},
        file::File,
        hints::unrendered,
        keys::{Key, KeyKind, KeyLevel, MERGE},
        mirror::{BoxedOption, LocatedNumber, LocatedText},
        node::{NodeKind, Scalar, YamlNode, describe, float, is_template, resolve},
        problems::Problems,
    },
    core::{limit::Limit, metadata::MetadataValue},
};

pub(super) const REQUESTS: &str = "requests_per_unit";

/// Reads the values of maps and reports what is wrong with them.
pub(super) struct YamlReader<'a> {
    pub(super) file: &'a File,
    pub(super) problems: &'a mut Problems,
}

impl YamlReader<'_> {
    pub(super) fn report(&mut self, at: Option<usize>, path: &dyn fmt::Display, fault: Fault) {
        let level = fault.level();
        if self.problems.has_room(&self.file.name, level) {
            let problem = self.file.problem(at, &path.to_string(), fault);
            self.problems.push(problem);
        } else {
            // A place and a path take time, and a text could have 300,000 of them.
            self.problems.count(&self.file.name, level);
        }
    }

    /// Whether the next error is listed.
    pub(super) fn has_room(&self) -> bool {
        self.problems.has_room(&self.file.name, FaultLevel::Error)
    }

    /// Reports that `found` has the wrong type for `key`. `check_file` reports tags.
    pub(super) fn report_type(
        &mut self,
        at: Option<usize>,
        path: &dyn fmt::Display,
        key: &str,
        expected: &'static str,
        found: &YamlNode<'_>,
    ) {
        if matches!(found.kind, NodeKind::Tagged) {
            return;
        }
        let wrong_type = || Fault::WrongType {
            // Only the names of keys are words of the file.
            key: match key.contains(' ') {
                true => key.to_owned(),
                false => format!("`{key}`"),
            },
            expected,
            found: describe(&found.kind),
        };
        let at = self.beginning(at, found);
        let fault = unrendered_node(found).unwrap_or_else(wrong_type);
        self.report(at, path, fault);
    }

    /// The position of a value that begins at `at`, with the braces of a template.
    pub(super) fn beginning(&self, at: Option<usize>, found: &YamlNode<'_>) -> Option<usize> {
        let at = at?;
        let before = self.file.text[..at].trim_end();
        let braces = before.strip_suffix("{{").filter(|_| is_template(found));
        Some(braces.map_or(at, str::len))
    }

    /// The entries of a map, merged maps included. The last value of a repeated key counts.
    pub(super) fn fields<'n>(
        &mut self,
        node: &'n YamlNode<'n>,
        path: &dyn fmt::Display,
        name: &'static str,
        level: KeyLevel,
    ) -> Option<Fields<'n>> {
        if node.is_null() {
            return None;
        }
        let entries = match &node.kind {
            NodeKind::Map(entries) if !is_template(node) => entries,
            _ => {
                self.report_type(node.offset, path, name, KeyKind::FreeForm.expected(), node);
                return None;
            }
        };
        let mut fields = Fields::default();
        for (key, value) in entries {
            let NodeKind::Scalar { text, .. } = &key.kind else {
                continue;
            };
            if text == MERGE {
                merge(value, &mut fields);
                continue;
            }
            if let Some(known) = Key::find(text)
                && !known.belongs_to(level)
            {
                let fault = match (known.name, level) {
                    ("name", KeyLevel::File) => Fault::ResourceName,
                    _ => Fault::Misplaced {
                        key: text.to_string(),
                        belongs: known.place(level),
                    },
                };
                self.report(key.offset, path, fault);
            }
            if fields.own.insert(text, (key, value)).is_some() {
                self.report(key.offset, path, Fault::Repeated(text.to_string()));
            }
        }
        Some(fields)
    }

    pub(super) fn text(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        path: &dyn fmt::Display,
    ) -> String {
        let Some(node) = fields.get(key) else {
            return String::new();
        };
        if let NodeKind::Scalar { text, .. } = &node.kind {
            return text.to_string();
        }
        let at = node.offset.or(fields.at(key));
        self.report_type(at, path, key, KeyKind::Text.expected(), node);
        String::new()
    }

    pub(super) fn word(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        path: &dyn fmt::Display,
    ) -> BoxedOption<LocatedText> {
        fields.get(key)?;
        Some(Box::new(LocatedText {
            text: self.text(fields, key, path),
            at: fields.at(key),
        }))
    }

    pub(super) fn boolean(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        path: &dyn fmt::Display,
    ) -> bool {
        let Some(node) = fields.get(key) else {
            return false;
        };
        if let NodeKind::Scalar { text, is_plain } = &node.kind
            && let Scalar::Bool(value) = resolve(text, *is_plain)
        {
            return value;
        }
        let at = node.offset.or(fields.at(key));
        self.report_type(at, path, key, KeyKind::Boolean.expected(), node);
        false
    }

    pub(super) fn number(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        path: &dyn fmt::Display,
    ) -> BoxedOption<LocatedNumber> {
        let node = fields.get(key)?;
        let at = node.offset.or(fields.at(key));
        let is_requests = key == REQUESTS;
        let (text, value) = match &node.kind {
            NodeKind::Scalar { text, is_plain } => match resolve(text, *is_plain) {
                Scalar::Int(value) => (text.to_string(), Some(value)),
                _ => (text.to_string(), None),
            },
            _ => (String::new(), None),
        };
        let requests = 0..=i128::from(Limit::MAX_REQUESTS);
        let value = value.filter(|value| !is_requests || requests.contains(value));
        if value.is_none() {
            let expected = match is_requests {
                true => "a whole number from 0 to 9007199254740991",
                false => KeyKind::Number.expected(),
            };
            self.report_type(at, path, key, expected, node);
        }
        Some(Box::new(LocatedNumber { value, text, at }))
    }

    /// 0 if it is missing or was reported.
    pub(super) fn requests_per_unit(
        &mut self,
        fields: &Fields<'_>,
        path: &dyn fmt::Display,
    ) -> u64 {
        let number = self.number(fields, REQUESTS, path);
        let value = number.and_then(|number| u64::try_from(number.value?).ok());
        value.unwrap_or_default()
    }

    pub(super) fn list<'n>(
        &mut self,
        fields: &Fields<'n>,
        key: &str,
        path: &dyn fmt::Display,
    ) -> &'n [YamlNode<'n>] {
        let Some(node) = fields.get(key) else {
            return &[];
        };
        if let NodeKind::List(items) = &node.kind {
            return items;
        }
        let at = node.offset.or(fields.at(key));
        self.report_type(at, path, key, KeyKind::Limits.expected(), node);
        &[]
    }
}

/// The error of a value that is a template.
pub(super) fn unrendered_node(node: &YamlNode<'_>) -> Option<Fault> {
    match &node.kind {
        NodeKind::Scalar { text, .. } => unrendered(text, false),
        NodeKind::Map(entries) if is_template(node) => {
            let inner = entries.first().map(|(key, _)| &key.kind);
            let text = match inner {
                Some(NodeKind::Map(entries)) => entries.first().map(|(key, _)| describe(&key.kind)),
                _ => None,
            };
            let text = text.unwrap_or_default();
            unrendered(&format!("{{{{ {text} }}}}"), false)
        }
        _ => None,
    }
}

// Keys of rule files come from the operator, so a fast hash without protection against collisions is enough.

/// The keys and values of one map.
#[derive(Default)]
pub(super) struct Fields<'n> {
    pub(super) own: FieldMap<'n>,
    merged: FieldMap<'n>,
}

type FieldMap<'n> = HashMap<&'n str, (&'n YamlNode<'n>, &'n YamlNode<'n>), RandomState>;

impl<'n> Fields<'n> {
    /// The key and the value; an own entry counts before a merged one.
    pub(super) fn entry(&self, key: &str) -> Option<(&'n YamlNode<'n>, &'n YamlNode<'n>)> {
        self.own.get(key).or_else(|| self.merged.get(key)).copied()
    }

    /// The value of `key`, unless it is null.
    pub(super) fn get(&self, key: &str) -> Option<&'n YamlNode<'n>> {
        let (_, value) = self.entry(key)?;
        (!value.is_null()).then_some(value)
    }

    /// The position of `key`'s value, or of `key` itself if the value has none.
    pub(super) fn at(&self, key: &str) -> Option<usize> {
        let (key, value) = self.entry(key)?;
        value.offset.or(key.offset)
    }
}

/// Merges the entries of `from`, a map or a list of maps; the first value of a key counts.
pub(super) fn merge<'n>(from: &'n YamlNode<'n>, into: &mut Fields<'n>) {
    match &from.kind {
        NodeKind::Map(entries) => {
            for (key, value) in entries {
                match &key.kind {
                    NodeKind::Scalar { text, .. } if text == MERGE => merge(value, into),
                    NodeKind::Scalar { text, .. } => {
                        into.merged.entry(text).or_insert((key, value));
                    }
                    NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Tagged => {}
                }
            }
        }
        NodeKind::List(items) => items.iter().for_each(|item| merge(item, into)),
        NodeKind::Scalar { .. } | NodeKind::Tagged => {}
    }
}

/// Free-form data as the reference converts it to a `Struct`: all numbers are floating-point, and every key is a
/// text.
pub(super) fn metadata(node: &YamlNode<'_>) -> MetadataValue {
    match &node.kind {
        NodeKind::Scalar { text, is_plain } => match resolve(text, *is_plain) {
            Scalar::Null => MetadataValue::Null,
            Scalar::Bool(value) => MetadataValue::Bool(value),
            #[expect(clippy::cast_precision_loss, reason = "a Struct has no other numbers")]
            Scalar::Int(number) => MetadataValue::Number(number as f64),
            Scalar::Float => MetadataValue::Number(float(text)),
            Scalar::Text => MetadataValue::Text(text.to_string()),
        },
        NodeKind::List(items) => MetadataValue::List(items.iter().map(metadata).collect()),
        NodeKind::Map(entries) => {
            let mut map = BTreeMap::new();
            let mut merged = BTreeMap::new();
            for (key, value) in entries {
                match &key.kind {
                    NodeKind::Scalar { text, is_plain } if *is_plain && text == MERGE => {
                        merge_metadata(value, &mut merged);
                    }
                    _ => {
                        map.insert(metadata_key(key).into(), metadata(value));
                    }
                }
            }
            for (key, value) in merged {
                map.entry(key).or_insert(value);
            }
            MetadataValue::Map(map.into())
        }
        // Already reported by `check_free_form`.
        NodeKind::Tagged => MetadataValue::Null,
    }
}

fn merge_metadata(node: &YamlNode<'_>, into: &mut BTreeMap<Box<str>, MetadataValue>) {
    match metadata(node) {
        MetadataValue::Map(map) => {
            for (key, value) in map {
                into.entry(key).or_insert(value);
            }
        }
        MetadataValue::List(_) => {
            if let NodeKind::List(items) = &node.kind {
                items.iter().for_each(|item| merge_metadata(item, into));
            }
        }
        _ => {}
    }
}

/// A key as text: `n` is a boolean in YAML 1.1, and becomes the text "false".
pub(super) fn metadata_key(node: &YamlNode<'_>) -> String {
    match &node.kind {
        NodeKind::Scalar { text, is_plain } => match resolve(text, *is_plain) {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Int(number) => number.to_string(),
            Scalar::Null => "null".to_owned(),
            Scalar::Float | Scalar::Text => text.to_string(),
        },
        kind => describe(kind),
    }
}
