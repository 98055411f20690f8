//! Nodes → a mirror of the file format, with as much of it as can be read.
//!
//! The format is the reference's, with additions such as `rate_limits` and `unit_multiplier`. The reference has one
//! set of keys for all levels and silently accepts a key in the wrong place; so does this reader, but with a warning.

use std::{collections::HashMap, fmt};

// Keys of rule files come from the operator, so a fast hash without protection against collisions is enough.
use foldhash::fast::RandomState;

use crate::core::metadata::{Metadata, MetadataValue};

use super::{
    fault::{Fault, Problem},
    file::File,
    node::{ExpectedNode, NodeKind, YamlNode},
};

/// One file.
#[derive(Debug)]
pub(super) struct RuleDocument {
    pub(super) domain: String,
    /// Position of the domain.
    pub(super) at: Option<usize>,
    /// Defaults for every rule of the file that does not override them.
    pub(super) defaults: DefaultKeys,
    pub(super) descriptors: Vec<DescriptorNode>,
}

/// Settings of counting that a file or a descriptor can have.
#[derive(Debug, Default)]
pub(super) struct DefaultKeys {
    pub(super) count: BoxedOption<LocatedText>,
    pub(super) on_store_loss: BoxedOption<LocatedText>,
}

/// One node of the tree of rules.
#[derive(Debug, Default)]
pub(super) struct DescriptorNode {
    pub(super) at: Option<usize>,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) limits: Limits,
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) share_threshold: bool,
    pub(super) detailed_metric: bool,
    pub(super) value_to_metric: bool,
    pub(super) metadata: Metadata,
    pub(super) own: DefaultKeys,
    pub(super) descriptors: Vec<Self>,
}

#[derive(Debug, Default)]
pub(super) enum Limits {
    #[default]
    None,
    /// `rate_limit`
    One(Box<RateLimit>),
    /// `rate_limits`
    List(Vec<RateLimit>),
}

#[derive(Debug, Default)]
pub(super) struct RateLimit {
    pub(super) at: Option<usize>,
    pub(super) unit: String,
    pub(super) unit_multiplier: BoxedOption<LocatedNumber>,
    pub(super) requests_per_unit: u32,
    pub(super) unlimited: bool,
    pub(super) name: String,
    pub(super) replaces: Vec<(String, Option<usize>)>,
    pub(super) algorithm: BoxedOption<LocatedText>,
    pub(super) window: BoxedOption<LocatedText>,
    pub(super) burst: BoxedOption<LocatedNumber>,
    pub(super) calendar: bool,
    pub(super) time_zone: BoxedOption<LocatedText>,
    pub(super) week_starts: BoxedOption<LocatedText>,
    pub(super) starts: CalendarStarts,
}

/// When the windows of a calendar begin.
#[derive(Debug, Default)]
pub(super) struct CalendarStarts {
    pub(super) month: BoxedOption<LocatedNumber>,
    pub(super) day: BoxedOption<LocatedNumber>,
    pub(super) hour: BoxedOption<LocatedNumber>,
}

/// A setting that few rules have; it costs the others one pointer.
pub(super) type BoxedOption<T> = Option<Box<T>>;

/// A text and its position.
#[derive(Debug)]
pub(super) struct LocatedText {
    pub(super) text: String,
    pub(super) at: Option<usize>,
}

/// A whole number as written, and its position.
#[derive(Debug)]
pub(super) struct LocatedNumber {
    pub(super) value: Option<i128>,
    pub(super) text: String,
    pub(super) at: Option<usize>,
}

/// Reads `file`; `None` if its syntax or its root is wrong.
pub(super) fn read(file: &File, problems: &mut Vec<Problem>) -> Option<RuleDocument> {
    let root = match YamlNode::parse_as(&file.text, RULES) {
        Ok(root) => root,
        Err(error) => {
            let mut problem = file.problem(None, "", syntax(&error));
            problem.position = error.location().map(|location| super::node::Position {
                line: location.line(),
                column: location.column(),
            });
            problems.push(problem);
            return None;
        }
    };
    let mut reader = YamlReader { file, problems };
    if let NodeKind::Map(_) = root.kind {
        reader.check_tree(&root, None, None, None);
    }
    reader.rule_file(&root)
}

/// The message without the position, which is shown before it.
fn syntax(error: &serde_yaml::Error) -> Fault {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    Fault::Syntax(text.to_owned())
}

/// Keys by level.
const FILE: &[&str] = &["domain", "descriptors", "count", "on_store_loss"];
const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "rate_limits",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
    "count",
    "on_store_loss",
];
const RATE_LIMIT: &[&str] = &[
    "unit",
    "unit_multiplier",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "algorithm",
    "window",
    "burst",
    "calendar",
    "time_zone",
    "starts",
    "week_starts",
];
const REPLACES: &[&str] = &["name"];
const STARTS: &[&str] = &["month", "day", "hour"];
/// Merges another map into this one.
const MERGE: &str = "<<";

/// The expected shape of a valid rule file.
pub(super) const RULES: ExpectedNode = ExpectedNode::Map(below);

fn below(key: &str) -> ExpectedNode {
    match key {
        "descriptors" | "replaces" => ExpectedNode::List(&ExpectedNode::Map(below)),
        "rate_limits" => ExpectedNode::List(&ExpectedNode::Any(below)),
        "rate_limit" | "starts" | MERGE => ExpectedNode::Map(below),
        "metadata" => ExpectedNode::Any(anything),
        _ => ExpectedNode::Scalar,
    }
}

fn anything(_: &str) -> ExpectedNode {
    ExpectedNode::Any(anything)
}

fn is_known(key: &str) -> bool {
    key == MERGE
        || [RATE_LIMIT, DESCRIPTOR, FILE, STARTS]
            .iter()
            .any(|keys| keys.contains(&key))
}

fn belongs(key: &str) -> &'static str {
    if FILE.contains(&key) {
        "at the top of the file"
    } else if DESCRIPTOR.contains(&key) {
        "beside the `key` of a descriptor"
    } else if STARTS.contains(&key) {
        "inside `starts`"
    } else {
        "inside `rate_limit`"
    }
}

struct YamlReader<'a> {
    file: &'a File,
    problems: &'a mut Vec<Problem>,
}

impl YamlReader<'_> {
    fn report(&mut self, at: Option<usize>, path: &dyn fmt::Display, fault: Fault) {
        let problem = self.file.problem(at, &path.to_string(), fault);
        self.problems.push(problem);
    }

    /// Reports that `found` has the wrong type for `key`. `check_tree` reports tags.
    fn report_type(
        &mut self,
        at: Option<usize>,
        path: &dyn fmt::Display,
        key: &str,
        expected: &'static str,
        found: &YamlNode<'_>,
    ) {
        if !matches!(found.kind, NodeKind::Tagged) {
            self.report(at, path, wrong_type(key, expected, found));
        }
    }

    /// The reference's checks of every map and list, except in metadata. The node is the value of `key`, which stands
    /// at `at`; `node_path` is its path.
    fn check_tree(
        &mut self,
        node: &YamlNode<'_>,
        key: Option<&str>,
        at: Option<usize>,
        node_path: Option<&NodePath<'_>>,
    ) {
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
                    let is_short_form = key == Some("rate_limits");
                    match &item.kind {
                        NodeKind::Map(_) | NodeKind::Tagged => {
                            self.check_tree(item, None, at, node_path)
                        }
                        NodeKind::Scalar { .. } if is_short_form => {}
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
                    self.check_entry(key, value, &node_path);
                }
            }
        }
    }

    fn check_entry(&mut self, key: &YamlNode<'_>, value: &YamlNode<'_>, node_path: &NodePath<'_>) {
        let NodeKind::Scalar { text, is_plain } = &key.kind else {
            let fault = Fault::KeyNotText(describe(&key.kind));
            return self.report(key.offset, &node_path.path(), fault);
        };
        if resolve(text, *is_plain) != Scalar::Text {
            let fault = Fault::KeyNotText(text.to_string());
            return self.report(key.offset, &node_path.path(), fault);
        }
        if !is_known(text) {
            let fault = Fault::UnknownKey {
                key: text.to_string(),
                expected: expected_instead_of(text),
            };
            return self.report(key.offset, &node_path.path(), fault);
        }
        if text == MERGE {
            // The maps it names are checked where they are written down.
            return;
        }
        if text == "metadata" {
            self.check_free_form(value, key.offset, node_path);
        } else {
            self.check_tree(value, Some(text), key.offset, Some(node_path));
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

    fn rule_file(&mut self, root: &YamlNode<'_>) -> Option<RuleDocument> {
        let root = if root.is_null() {
            &YamlNode {
                kind: NodeKind::Map(Vec::new()),
                offset: None,
            }
        } else {
            root
        };
        let fields = self.fields(root, &"", "the file", FILE)?;
        let domain = self.text(&fields, "domain", &"");
        Some(RuleDocument {
            at: fields.at("domain").or(root.offset),
            defaults: self.defaults(&fields, &domain),
            descriptors: self.descriptors(&fields, &domain),
            domain,
        })
    }

    fn descriptors(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> Vec<DescriptorNode> {
        self.list(fields, "descriptors", path)
            .iter()
            .filter(|node| is_map(node))
            .filter_map(|node| self.descriptor(node, path))
            .collect()
    }

    fn descriptor(
        &mut self,
        node: &YamlNode<'_>,
        parent: &dyn fmt::Display,
    ) -> Option<DescriptorNode> {
        let fields = self.fields(node, parent, "a descriptor", DESCRIPTOR)?;
        let key = self.text(&fields, "key", parent);
        let value = self.text(&fields, "value", parent);
        let path = DescriptorPath {
            parent,
            key: &key,
            value: &value,
        };
        Some(DescriptorNode {
            at: fields.at("key").or(node.offset),
            limits: self.limits(&fields, &path),
            shadow_mode: self.boolean(&fields, "shadow_mode", &path),
            quota_mode: self.boolean(&fields, "quota_mode", &path),
            share_threshold: self.boolean(&fields, "share_threshold", &path),
            detailed_metric: self.boolean(&fields, "detailed_metric", &path),
            value_to_metric: self.boolean(&fields, "value_to_metric", &path),
            metadata: self.metadata(&fields, &path),
            own: self.defaults(&fields, &path),
            descriptors: self.descriptors(&fields, &path),
            key,
            value,
        })
    }

    fn defaults(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> DefaultKeys {
        DefaultKeys {
            count: self.word(fields, "count", path),
            on_store_loss: self.word(fields, "on_store_loss", path),
        }
    }

    fn metadata(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> Metadata {
        let Some(node) = fields.get("metadata") else {
            return Metadata::new();
        };
        if let MetadataValue::Map(map) = metadata(node) {
            return map;
        }
        let at = node.offset.or(fields.at("metadata"));
        self.report_type(at, path, "metadata", "a map", node);
        Metadata::new()
    }

    fn limits(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> Limits {
        let one = fields.get("rate_limit");
        let Some(list) = fields.get("rate_limits") else {
            return match one.and_then(|one| self.rate_limit(one, path)) {
                Some(limit) => Limits::One(Box::new(RateLimit {
                    at: limit.at.or(fields.at("rate_limit")),
                    ..limit
                })),
                None => Limits::None,
            };
        };
        let at = fields.at("rate_limits");
        if one.is_some() {
            self.report(at, path, Fault::BothForms);
        }
        let items = self.list(fields, "rate_limits", path);
        if items.is_empty() && matches!(list.kind, NodeKind::List(_)) {
            self.report(at, path, Fault::NoLimits);
        }
        let read = |node: &YamlNode<'_>| match &node.kind {
            NodeKind::Scalar { text, .. } => {
                let limit = short_form(text, node.offset);
                if limit.is_none() {
                    self.report(node.offset.or(at), path, Fault::ShortForm(text.to_string()));
                }
                limit
            }
            NodeKind::Map(_) => self.rate_limit(node, path),
            // Already reported by `check_tree`.
            NodeKind::List(_) | NodeKind::Tagged => None,
        };
        Limits::List(items.iter().filter_map(read).collect())
    }

    fn rate_limit(&mut self, node: &YamlNode<'_>, path: &dyn fmt::Display) -> Option<RateLimit> {
        let fields = self.fields(node, path, "rate_limit", RATE_LIMIT)?;
        let replaces = self.list(&fields, "replaces", path);
        let replaces = replaces
            .iter()
            .filter(|node| is_map(node))
            .filter_map(|node| {
                let fields = self.fields(node, path, "replaces", REPLACES)?;
                Some((
                    self.text(&fields, "name", path),
                    fields.at("name").or(node.offset),
                ))
            });
        let replaces = replaces.collect();
        let unlimited = self.boolean(&fields, "unlimited", path);
        let is_given = fields.entry("requests_per_unit").is_some();
        if !unlimited && !is_given && fields.entry("unit").is_some() {
            self.report(node.offset, path, Fault::NoRequestsPerUnit);
        }
        Some(RateLimit {
            at: node.offset,
            replaces,
            unit: self.text(&fields, "unit", path),
            unit_multiplier: self.number(&fields, "unit_multiplier", path),
            requests_per_unit: self.requests_per_unit(&fields, path).unwrap_or(0),
            unlimited,
            name: self.text(&fields, "name", path),
            algorithm: self.word(&fields, "algorithm", path),
            window: self.word(&fields, "window", path),
            burst: self.number(&fields, "burst", path),
            calendar: self.boolean(&fields, "calendar", path),
            time_zone: self.word(&fields, "time_zone", path),
            week_starts: self.word(&fields, "week_starts", path),
            starts: self.starts(&fields, path),
        })
    }

    fn starts(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> CalendarStarts {
        let node = fields.get("starts");
        let Some(fields) = node.and_then(|node| self.fields(node, path, "starts", STARTS)) else {
            return CalendarStarts::default();
        };
        CalendarStarts {
            month: self.number(&fields, "month", path),
            day: self.number(&fields, "day", path),
            hour: self.number(&fields, "hour", path),
        }
    }

    fn requests_per_unit(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> Option<u32> {
        const KEY: &str = "requests_per_unit";
        let number = self.number(fields, KEY, path)?;
        let value = number.value?;
        if let Ok(value) = u32::try_from(value) {
            return Some(value);
        }
        let fault = Fault::WrongType {
            key: KEY.to_owned(),
            expected: "a whole number from 0 to 4294967295",
            found: "a number outside of that",
        };
        self.report(number.at, path, fault);
        None
    }

    /// The entries of a map, merged maps included. The last value of a repeated key counts.
    fn fields<'n>(
        &mut self,
        node: &'n YamlNode<'n>,
        path: &dyn fmt::Display,
        name: &'static str,
        level: &[&str],
    ) -> Option<Fields<'n>> {
        if node.is_null() {
            return None;
        }
        let NodeKind::Map(entries) = &node.kind else {
            self.report_type(node.offset, path, name, "a map", node);
            return None;
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
            if !level.contains(&&**text) && is_known(text) {
                let fault = Fault::Misplaced {
                    key: text.to_string(),
                    belongs: belongs(text),
                };
                self.report(key.offset, path, fault);
            }
            if fields.own.insert(text, (key, value)).is_some() {
                self.report(key.offset, path, Fault::Repeated(text.to_string()));
            }
        }
        Some(fields)
    }

    fn text(&mut self, fields: &Fields<'_>, key: &str, path: &dyn fmt::Display) -> String {
        let Some(node) = fields.get(key) else {
            return String::new();
        };
        if let NodeKind::Scalar { text, .. } = &node.kind {
            return text.to_string();
        }
        let at = node.offset.or(fields.at(key));
        self.report_type(at, path, key, "a string", node);
        String::new()
    }

    fn word(
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

    fn boolean(&mut self, fields: &Fields<'_>, key: &str, path: &dyn fmt::Display) -> bool {
        let Some(node) = fields.get(key) else {
            return false;
        };
        if let NodeKind::Scalar { text, is_plain } = &node.kind
            && let Scalar::Bool(value) = resolve(text, *is_plain)
        {
            return value;
        }
        let at = node.offset.or(fields.at(key));
        self.report_type(at, path, key, "true or false", node);
        false
    }

    fn number(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        path: &dyn fmt::Display,
    ) -> BoxedOption<LocatedNumber> {
        let node = fields.get(key)?;
        let at = node.offset.or(fields.at(key));
        if let NodeKind::Scalar { text, is_plain } = &node.kind {
            let value = match resolve(text, *is_plain) {
                Scalar::Int(value) => Some(value),
                // Already reported by `check_tree`.
                Scalar::Float => None,
                Scalar::Null | Scalar::Bool(_) | Scalar::Text => {
                    self.report_type(at, path, key, "a whole number", node);
                    return None;
                }
            };
            return Some(Box::new(LocatedNumber {
                value,
                text: text.to_string(),
                at,
            }));
        }
        self.report_type(at, path, key, "a whole number", node);
        None
    }

    fn list<'n>(
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
        self.report_type(at, path, key, "a list", node);
        &[]
    }
}

/// The keys and values of one map.
#[derive(Default)]
struct Fields<'n> {
    own: FieldMap<'n>,
    merged: FieldMap<'n>,
}

type FieldMap<'n> = HashMap<&'n str, (&'n YamlNode<'n>, &'n YamlNode<'n>), RandomState>;

impl<'n> Fields<'n> {
    fn entry(&self, key: &str) -> Option<(&'n YamlNode<'n>, &'n YamlNode<'n>)> {
        self.own.get(key).or_else(|| self.merged.get(key)).copied()
    }

    /// The value of `key`, unless it is null.
    fn get(&self, key: &str) -> Option<&'n YamlNode<'n>> {
        let (_, value) = self.entry(key)?;
        (!value.is_null()).then_some(value)
    }

    /// The position of `key`'s value, or of `key` itself if the value has none.
    fn at(&self, key: &str) -> Option<usize> {
        let (key, value) = self.entry(key)?;
        value.offset.or(key.offset)
    }
}

/// Merges the entries of `from`, a map or a list of maps; the first value of a key counts.
fn merge<'n>(from: &'n YamlNode<'n>, into: &mut Fields<'n>) {
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

/// The path from the root of the tree to a map, formatted only for a report.
#[derive(Clone, Copy)]
struct NodePath<'w> {
    above: Option<&'w Self>,
    entries: &'w [(YamlNode<'w>, YamlNode<'w>)],
}

impl NodePath<'_> {
    fn path(&self) -> String {
        let above = self.above.map_or_else(String::new, Self::path);
        extended(&above, self.entries)
    }
}

/// The path of a descriptor, formatted only for a report.
struct DescriptorPath<'p> {
    parent: &'p dyn fmt::Display,
    key: &'p str,
    value: &'p str,
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

/// Skips items that are no maps, which `check_tree` reports.
fn is_map(node: &YamlNode<'_>) -> bool {
    matches!(node.kind, NodeKind::Map(_))
}

/// Free-form data as the reference converts it to a `Struct`: all numbers are floating-point, and every key is a
/// text.
fn metadata(node: &YamlNode<'_>) -> MetadataValue {
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
            let mut map = Metadata::new();
            let mut merged = Metadata::new();
            for (key, value) in entries {
                match &key.kind {
                    NodeKind::Scalar { text, is_plain } if *is_plain && text == MERGE => {
                        merge_metadata(value, &mut merged);
                    }
                    _ => {
                        map.insert(metadata_key(key), metadata(value));
                    }
                }
            }
            for (key, value) in merged {
                map.entry(key).or_insert(value);
            }
            MetadataValue::Map(map)
        }
        // Already reported by `check_free_form`.
        NodeKind::Tagged => MetadataValue::Null,
    }
}

fn merge_metadata(node: &YamlNode<'_>, into: &mut Metadata) {
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
        MetadataValue::Null
        | MetadataValue::Bool(_)
        | MetadataValue::Number(_)
        | MetadataValue::Text(_) => {}
    }
}

/// A key as text: `n` is a boolean in YAML 1.1, and becomes the text "false".
fn metadata_key(node: &YamlNode<'_>) -> String {
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

/// The text that identifies a node among its siblings.
pub(super) fn joined(key: &str, value: &str) -> String {
    if value.is_empty() {
        key.to_owned()
    } else {
        format!("{key}_{value}")
    }
}

/// `5000/day`, `300/30m`
fn short_form(text: &str, at: Option<usize>) -> Option<RateLimit> {
    let (requests, period) = text.split_once('/')?;
    let digits = period.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = period.split_at(digits);
    let unit = match unit.trim() {
        "s" => "second",
        "m" => "minute",
        "h" => "hour",
        "d" => "day",
        "w" => "week",
        "mo" => "month",
        "y" => "year",
        name => name.strip_suffix('s').unwrap_or(name),
    };
    unit.parse::<crate::core::window::Unit>().ok()?;
    let multiplier = match count {
        "" => None,
        count => Some(Box::new(LocatedNumber {
            value: Some(count.parse().ok()?),
            text: count.to_owned(),
            at,
        })),
    };
    Some(RateLimit {
        at,
        unit: unit.to_owned(),
        unit_multiplier: multiplier,
        requests_per_unit: requests.trim().parse().ok()?,
        ..RateLimit::default()
    })
}

/// The type of a scalar in YAML 1.1, which the reference's parser reads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scalar {
    Null,
    Bool(bool),
    Int(i128),
    Float,
    Text,
}

fn resolve(text: &str, is_plain: bool) -> Scalar {
    if !is_plain {
        return Scalar::Text;
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Scalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF"
        | ".nan" | ".NaN" | ".NAN" => return Scalar::Float,
        _ => {}
    }
    // Most scalars are words, and no number begins as a word does.
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-._".contains(first)) {
        return Scalar::Text;
    }
    if let Some(number) = integer(text) {
        return Scalar::Int(number);
    }
    if is_float(text) {
        Scalar::Float
    } else {
        Scalar::Text
    }
}

/// `31`, `0x1F`, `010` and `0o10` (octal), `0b1`, `1_000`, with a sign.
fn integer(text: &str) -> Option<i128> {
    let text = text.replace('_', "");
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(&text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(digits) = lower.strip_prefix("0x") {
        (16, digits)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (2, digits)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (8, digits)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    Some(sign * i128::from_str_radix(digits, radix).ok()?)
}

/// `1.5`, `.5`, `5.`, `1e3`, with a sign.
fn is_float(text: &str) -> bool {
    let text = text.replace('_', "");
    let text = text.strip_prefix(['+', '-']).unwrap_or(&text);
    text.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && text.contains(|digit: char| digit.is_ascii_digit())
        && text.parse::<f64>().is_ok()
}

/// The value of a text that [`is_float`] accepts; infinity and NaN stay numbers, although JSON has no form for them.
fn float(text: &str) -> f64 {
    let text = text.replace('_', "");
    let text = text
        .to_ascii_lowercase()
        .replace(".inf", "inf")
        .replace(".nan", "nan");
    text.parse().unwrap_or(f64::NAN)
}

fn describe(kind: &NodeKind<'_>) -> String {
    match kind {
        NodeKind::Scalar { text, is_plain } if resolve(text, *is_plain) == Scalar::Null => {
            "null".to_owned()
        }
        NodeKind::Scalar { text, .. } => text.to_string(),
        NodeKind::List(_) => "a list".to_owned(),
        NodeKind::Map(_) => "a map".to_owned(),
        NodeKind::Tagged => "a tagged value".to_owned(),
    }
}

fn wrong_type(key: &str, expected: &'static str, found: &YamlNode<'_>) -> Fault {
    let found = match &found.kind {
        NodeKind::List(_) => "a list",
        NodeKind::Map(_) => "a map",
        NodeKind::Tagged => "a tagged value",
        NodeKind::Scalar {
            is_plain: false, ..
        } => "a text in quotes",
        NodeKind::Scalar { text, .. } => match resolve(text, true) {
            Scalar::Null => "null",
            Scalar::Bool(_) => "a boolean",
            Scalar::Int(_) | Scalar::Float => "a number",
            Scalar::Text => "a text",
        },
    };
    Fault::WrongType {
        key: key.to_owned(),
        expected,
        found,
    }
}

/// The known key closest to `key`, or all of them if none is close.
fn expected_instead_of(key: &str) -> String {
    // `descriptors` is a key of both levels.
    let descriptor = || DESCRIPTOR.iter().filter(|key| !FILE.contains(key));
    let known = || FILE.iter().chain(descriptor()).chain(RATE_LIMIT);
    let nearest = known().min_by_key(|known| distance(key, known));
    match nearest {
        Some(nearest) if distance(key, nearest) <= (nearest.len() / 3).max(2) => {
            format!("`{nearest}`")
        }
        _ => {
            let known: Vec<_> = known().copied().collect();
            format!("one of {}", known.join(", "))
        }
    }
}

/// The edit distance (Levenshtein, 1966), ignoring letter case.
fn distance(left: &str, right: &str) -> usize {
    // A long key is close to none; its first 64 characters show that.
    let left: String = left.to_lowercase().chars().take(64).collect();
    strsim::levenshtein(&left, &right.to_lowercase())
}
