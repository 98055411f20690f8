//! Nodes → a mirror of the file format, with as much of it as can be read.
//!
//! The format is the reference's, with additions such as `rate_limits` and `unit_multiplier`. The reference has one
//! set of keys for all levels and silently accepts a key in the wrong place; so does this reader, but with a warning.

use std::{fmt, sync::Arc};

use crate::{
    config::{
        fault::{Fault, MAX_LIMITS},
        file::File,
        hints::{syntax_problem, unrendered},
        keys::{KeyKind, KeyLevel, is_meant},
        manifest::foreign,
        mirror::{
            CalendarStarts, DefaultKeys, DescriptorNode, Limits, LocatedHeader, RateLimit,
            RefusalKeys, ReserveKeys, RuleDocument,
        },
        node::{NodeKind, Scalar, YamlNode, resolve},
        parse::{BYTES_PER_EVENT, check_nesting, is_too_dense, parse_all, with_local_tag},
        pieces,
        problems::{DescriptorPath, Problems},
        reader::{self, Fields, REQUESTS, YamlReader},
        short_form::short_form,
    },
    core::metadata::{Metadata, MetadataValue},
};

/// Reads the documents of `file`, but those whose root is wrong; none if its syntax is wrong.
pub(super) fn read(file: &File, problems: &mut Problems) -> Vec<RuleDocument> {
    if is_blank(&file.text) {
        problems.push(file.problem(None, "", Fault::EmptyFile));
        return Vec::new();
    }
    // libyaml skips it there, and counts it as a column.
    if let Some(before) = file.text.find("\n\u{feff}") {
        problems.push(file.problem(Some(before + 1), "", Fault::ByteOrderMark));
        return Vec::new();
    }
    let text = &*with_local_tag(&file.text);
    let syntax = |error| syntax_problem(&file.text, &error);
    let mut piece = 0..0;
    let parsed = match check_nesting(text).map(|()| pieces::read(text, &mut piece)) {
        Ok(Some(root)) => Ok(vec![root]),
        Ok(None) if is_too_dense(text, BYTES_PER_EVENT) => {
            // The piece that could not be read may say why, at its place.
            let lines = text[..piece.start].matches('\n').count();
            let piece = "\n".repeat(lines) + &text[piece];
            let error = parse_all(&piece).err();
            Err(error.map_or((None, Fault::TooDense), syntax))
        }
        Ok(None) => parse_all(text).map_err(syntax),
        Err(error) => Err(syntax(error)),
    };
    let roots = parsed.unwrap_or_else(|(position, fault)| {
        problems.push(file.problem_at(position, "", fault));
        Vec::new()
    });
    let mut reader = YamlReader { file, problems };
    let read = |root: YamlNode<'_>| {
        if let Some(fault) = foreign(&root, &file.name) {
            reader.report(root.offset, &"", fault);
            return None;
        }
        if let NodeKind::Map(_) = root.kind {
            reader.check_file(&root);
        }
        reader.rule_file(root)
    };
    roots.into_iter().filter_map(read).collect()
}

/// Whether a text has nothing but comments and ends of documents.
fn is_blank(text: &str) -> bool {
    let is_blank = |line: &str| matches!(line.trim(), "" | "---" | "...");
    text.lines()
        .all(|line| is_blank(line) || line.trim_start().starts_with(['#', '%']))
}

impl YamlReader<'_> {
    fn rule_file(&mut self, mut root: YamlNode<'_>) -> Option<RuleDocument> {
        if root.is_null() {
            root = YamlNode::empty();
        }
        let items = root.take_list("descriptors");
        let fields = self.fields(&root, &"", "the file", KeyLevel::File)?;
        let domain = self.text(&fields, "domain", &"");
        let mut descriptors = self.descriptors(&fields, &domain);
        descriptors.reserve_exact(items.len());
        // The tree of a long file shrinks while its rules are read.
        for node in items {
            if is_map(&node) {
                descriptors.extend(self.descriptor(&node, &domain));
            }
        }
        let rules = RuleDocument {
            at: fields.at("domain").or(root.offset),
            defaults: self.defaults(&fields, &domain),
            descriptors,
            domain,
        };
        let is_missing = is_misspelt(&fields, "domain");
        (is_text(&fields, "domain") && !is_missing).then_some(rules)
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
        let fields = self.fields(node, parent, "a descriptor", KeyLevel::Descriptor)?;
        let key = self.text(&fields, "key", parent);
        let value = self.text(&fields, "value", parent);
        let path = DescriptorPath {
            parent,
            key: &key,
            value: &value,
        };
        let node = DescriptorNode {
            at: fields.at("key").or(node.offset),
            limits: self.limits(&fields, &path),
            shadow_mode: self.boolean(&fields, "shadow_mode", &path),
            quota_mode: self.boolean(&fields, "quota_mode", &path),
            share_threshold: self.boolean(&fields, "share_threshold", &path),
            detailed_metric: self.boolean(&fields, "detailed_metric", &path),
            value_to_metric: self.boolean(&fields, "value_to_metric", &path),
            metadata: self.metadata(&fields, &path),
            reserve: self.reserve(&fields, &path).map(Box::new),
            accuracy: self.word(&fields, "accuracy", &path),
            own: self.defaults(&fields, &path),
            descriptors: self.descriptors(&fields, &path),
            key,
            value,
        };
        let is_readable = is_text(&fields, "key") && is_text(&fields, "value");
        if !is_readable || is_misspelt(&fields, "key") {
            return None;
        }
        if node.key.is_empty() {
            // A file of mistakes would be a long list of empty nodes.
            self.report(node.at, parent, Fault::EmptyKey);
            return None;
        }
        Some(node)
    }

    fn defaults(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> DefaultKeys {
        DefaultKeys {
            count: self.word(fields, "count", path),
            on_store_loss: self.word(fields, "on_store_loss", path),
            refusal: self.refusal(fields, path).map(Box::new),
        }
    }

    fn reserve(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> Option<ReserveKeys> {
        let (_, node) = fields.entry("reserve")?;
        let at = fields.at("reserve");
        if node.is_null() {
            // Without a report it would turn off what the writer wants.
            self.report_type(at, path, "reserve", KeyKind::FreeForm.expected(), node);
            return None;
        }
        let own = self.fields(node, path, "reserve", KeyLevel::Reserve)?;
        Some(ReserveKeys {
            at,
            estimate: self.number(&own, "estimate", path),
            missing: self.word(&own, "missing", path),
        })
    }

    fn refusal(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> Option<RefusalKeys> {
        let node = fields.get("refusal")?;
        let own = self.fields(node, path, "refusal", KeyLevel::Refusal)?;
        let keys = RefusalKeys {
            at: fields.at("refusal"),
            body: self.word(&own, "body", path),
            content_type: self.word(&own, "content_type", path),
            status: self.number(&own, "status", path),
            headers: self.headers(&own, path),
        };
        let is_readable = is_text(&own, "body") && is_text(&own, "content_type");
        (is_readable && !is_misspelt(&own, "body")).then_some(keys)
    }

    fn headers(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> Vec<LocatedHeader> {
        let Some(node) = fields.get("headers").filter(|node| !node.is_null()) else {
            return Vec::new();
        };
        let NodeKind::Map(entries) = &node.kind else {
            let at = node.offset.or(fields.at("headers"));
            self.report_type(at, path, "headers", KeyKind::Texts.expected(), node);
            return Vec::new();
        };
        let header = |(key, value): &(YamlNode<'_>, YamlNode<'_>)| LocatedHeader {
            at: value.offset.or(key.offset),
            name: reader::metadata_key(key),
            value: match reader::metadata(value) {
                MetadataValue::Text(text) => Some(text),
                _ => None,
            },
        };
        entries.iter().map(header).collect()
    }

    fn metadata(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> Option<Arc<Metadata>> {
        let node = fields.get("metadata")?;
        if let MetadataValue::Map(map) = reader::metadata(node) {
            return Some(Arc::new(map));
        }
        let at = node.offset.or(fields.at("metadata"));
        self.report_type(at, path, "metadata", KeyKind::FreeForm.expected(), node);
        None
    }

    fn limits(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> Limits {
        let one = fields.get("rate_limit");
        let Some(list) = fields.get("rate_limits") else {
            return match one.map(|one| self.rate_limit(one, path)) {
                Some(Some(limit)) => Limits::One(Box::new(RateLimit {
                    at: limit.at.or(fields.at("rate_limit")),
                    ..limit
                })),
                // It was reported, and is not missing too.
                Some(None) => Limits::List(Vec::new()),
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
                    let fault = Fault::ShortForm(text.chars().take(64).collect());
                    let fault = unrendered(text, false).unwrap_or(fault);
                    self.report(node.offset.or(at), path, fault);
                }
                limit
            }
            NodeKind::Map(_) => self.rate_limit(node, path),
            // Already reported by `check_file`.
            NodeKind::List(_) | NodeKind::Tagged => None,
        };
        // One more shows that there are too many.
        let items = items.iter().take(MAX_LIMITS + 1);
        Limits::List(items.filter_map(read).collect())
    }

    fn rate_limit(&mut self, node: &YamlNode<'_>, path: &dyn fmt::Display) -> Option<RateLimit> {
        let fields = self.fields(node, path, "rate_limit", KeyLevel::RateLimit)?;
        let replaces = self.list(&fields, "replaces", path);
        let replaces = replaces
            .iter()
            .filter(|node| is_map(node))
            .filter_map(|node| {
                let fields = self.fields(node, path, "replaces", KeyLevel::Replaces)?;
                let name = self.text(&fields, "name", path);
                let at = fields.at("name").or(node.offset);
                is_text(&fields, "name").then_some((name, at))
            });
        let replaces = replaces.collect();
        let unlimited = self.boolean(&fields, "unlimited", path);
        let is_given = fields.get("requests_per_unit").is_some();
        if !unlimited && !is_given && fields.entry("unit").is_some() {
            self.report(node.offset, path, Fault::NoRequestsPerUnit);
        }
        let limit = RateLimit {
            at: node.offset,
            replaces,
            unit: self.text(&fields, "unit", path),
            unit_multiplier: self.number(&fields, "unit_multiplier", path),
            requests_per_unit: self.requests_per_unit(&fields, path),
            unlimited,
            name: self.text(&fields, "name", path),
            algorithm: self.word(&fields, "algorithm", path),
            window: self.word(&fields, "window", path),
            burst: self.number(&fields, "burst", path),
            ttl: self.word(&fields, "ttl", path),
            calendar: self.boolean(&fields, "calendar", path),
            time_zone: self.word(&fields, "time_zone", path),
            week_starts: self.word(&fields, "week_starts", path),
            starts: self.starts(&fields, path),
        };
        // A wrong number without a unit may be a word for no limit, which needs none.
        let is_number = fields.get("unit").is_some() || is_whole(&fields, REQUESTS);
        let is_readable = is_text(&fields, "unit") && is_boolean(&fields, "unlimited") && is_number;
        (is_readable && !is_misspelt(&fields, "unit")).then_some(limit)
    }

    fn starts(&mut self, fields: &Fields<'_>, path: &dyn fmt::Display) -> CalendarStarts {
        let node = fields.get("starts");
        let Some(fields) =
            node.and_then(|node| self.fields(node, path, "starts", KeyLevel::Starts))
        else {
            return CalendarStarts::default();
        };
        CalendarStarts {
            month: self.number(&fields, "month", path),
            day: self.number(&fields, "day", path),
            hour: self.number(&fields, "hour", path),
        }
    }
}

/// Skips items that are no maps, which `check_file` reports.
fn is_map(node: &YamlNode<'_>) -> bool {
    matches!(node.kind, NodeKind::Map(_))
}

// A mistake is one problem: a value that could not be read has been reported, and is not missing too.

/// Whether the value of `key` is a text, or missing.
fn is_text(fields: &Fields<'_>, key: &str) -> bool {
    let node = fields.get(key);
    node.is_none_or(|node| matches!(node.kind, NodeKind::Scalar { .. }))
}

/// Whether the value of `key` is a boolean, or missing.
fn is_boolean(fields: &Fields<'_>, key: &str) -> bool {
    fields.get(key).is_none_or(|node| match &node.kind {
        NodeKind::Scalar { text, is_plain } => matches!(resolve(text, *is_plain), Scalar::Bool(_)),
        _ => false,
    })
}

/// Whether the value of `key` is a whole number, or missing.
fn is_whole(fields: &Fields<'_>, key: &str) -> bool {
    fields.get(key).is_none_or(|node| match &node.kind {
        NodeKind::Scalar { text, is_plain } => matches!(resolve(text, *is_plain), Scalar::Int(0..)),
        _ => false,
    })
}

/// Whether `key` is missing, and another key was reported in its place.
fn is_misspelt(fields: &Fields<'_>, key: &'static str) -> bool {
    fields.get(key).is_none() && fields.own.keys().any(|other| is_meant(other, key))
}
