//! Reads the values of a map: texts, booleans and lists, each with a report if it is something else.

use std::fmt;

use super::{
    advice::wrong_type,
    fault::Fault,
    fields::{Fields, merge},
    file::File,
    keys::{Key, KeyKind, KeyLevel, MERGE},
    mirror::{BoxedOption, LocatedText},
    node::{NodeKind, YamlNode},
    problems::Problems,
    scalar::{Scalar, resolve},
    template::{beginning, is_template},
};

/// Reads the values of maps and reports what is wrong with them.
pub(super) struct YamlReader<'a> {
    pub(super) file: &'a File,
    pub(super) problems: &'a mut Problems,
}

impl YamlReader<'_> {
    pub(super) fn report(&mut self, at: Option<usize>, path: &dyn fmt::Display, fault: Fault) {
        let problem = self.file.problem(at, &path.to_string(), fault);
        self.problems.push(problem);
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
        if !matches!(found.kind, NodeKind::Tagged) {
            let at = self.beginning(at, found);
            self.report(at, path, wrong_type(key, expected, found));
        }
    }

    /// The position of a value that begins at `at`, with the braces of a template.
    pub(super) fn beginning(&self, at: Option<usize>, found: &YamlNode<'_>) -> Option<usize> {
        at.map(|at| match is_template(found) {
            true => beginning(&self.file.text, at),
            false => at,
        })
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
