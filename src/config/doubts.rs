//! Warnings of rules that are valid and probably not as they were meant: parts of them have no effect.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

// As in the compiler: no client can choose these keys so that they collide.
use foldhash::fast::RandomState;

use crate::{
    config::{
        fault::Fault,
        file::{File, ParsedFile},
        mirror::{DescriptorNode, Limits, RateLimit},
        position::Position,
        problems::{DescriptorPath, Problems, joined},
    },
    core::{
        kind::Algorithm,
        limit::{Allows, Limit},
        matcher::{Matcher, NodeId},
    },
};

/// Adds the warnings of rules that compiled to `matcher` without an error.
pub(super) fn warn(sources: &[ParsedFile<'_>], matcher: &Matcher, problems: &mut Problems) {
    let replaced = matcher.rules().iter().flat_map(|rule| &*rule.replaces);
    let mut doubts = Doubts {
        matcher,
        replaced: replaced.map(|name| &**name).collect(),
        named: HashMap::default(),
        problems,
    };
    for ParsedFile { file, rules } in sources {
        if let Some(root) = matcher.root(rules.domain.as_bytes()) {
            for descriptor in &rules.descriptors {
                doubts.descriptor(file, &rules.domain, (root, &rules.domain), descriptor);
            }
        }
    }
}

struct Doubts<'a, 'p> {
    matcher: &'a Matcher,
    /// Names that some limit replaces.
    replaced: HashSet<&'a str, RandomState>,
    /// By domain and name, the first limit of that name.
    named: HashMap<(&'a str, &'a str), NamedLimit<'a>, RandomState>,
    problems: &'p mut Problems,
}

/// The place of a limit that has a name.
#[derive(Clone, Copy)]
struct NamedLimit<'a> {
    file: &'a File,
    at: Option<usize>,
    node: NodeId,
}

impl<'a> Doubts<'a, '_> {
    fn report(&mut self, file: &File, at: Option<usize>, path: &dyn fmt::Display, fault: Fault) {
        self.problems
            .push(file.problem(at, &path.to_string(), fault));
    }

    fn descriptor(
        &mut self,
        file: &'a File,
        domain: &'a str,
        (parent, above): (NodeId, &dyn fmt::Display),
        descriptor: &'a DescriptorNode,
    ) {
        let (key, value) = (descriptor.key.as_bytes(), descriptor.value.as_bytes());
        let Some(node) = self.matcher.child(parent, key, value) else {
            return;
        };
        let path = DescriptorPath {
            parent: above,
            key: &descriptor.key,
            value: &descriptor.value,
        };
        if let Some(other) = self.matcher.hidden_by(parent, node) {
            let (key, value) = self.matcher.key_and_value(other);
            let [key, value] = [key, value].map(String::from_utf8_lossy);
            let fault = Fault::NeverReached(joined(&key, &value));
            self.report(file, descriptor.at, &path, fault);
        }
        let limits = match &descriptor.limits {
            Limits::None => &[],
            Limits::One(limit) => std::slice::from_ref(&**limit),
            Limits::List(limits) => limits.as_slice(),
        };
        if limits.is_empty() && descriptor.descriptors.is_empty() {
            self.report(file, descriptor.at, &path, Fault::NoLimitHere);
        }
        self.names(file, domain, (node, &path), limits);
        self.bounds(file, (node, &path), limits);
        for child in &descriptor.descriptors {
            self.descriptor(file, domain, (node, &path), child);
        }
    }

    /// Warns of a name that two limits of one rule have, or two limits of one domain if it can be replaced.
    fn names(
        &mut self,
        file: &'a File,
        domain: &'a str,
        (node, path): (NodeId, &dyn fmt::Display),
        limits: &'a [RateLimit],
    ) {
        for limit in limits.iter().filter(|limit| !limit.name.is_empty()) {
            let name = limit.name.as_str();
            let named = NamedLimit {
                file,
                at: limit.at,
                node,
            };
            let first = *self.named.entry((domain, name)).or_insert(named);
            let is_first = std::ptr::eq(first.file, file) && first.at == limit.at;
            let is_ambiguous = first.node == node || self.replaced.contains(name);
            // Limits that a control plane pushed have no positions.
            if is_ambiguous && !is_first {
                let fault = Fault::NameTwice {
                    name: name.to_owned(),
                    first: first.location(),
                };
                self.report(file, limit.at, path, fault);
            }
        }
    }

    /// Warns of limits of a rule that another one makes superfluous.
    fn bounds(
        &mut self,
        file: &File,
        (node, path): (NodeId, &dyn fmt::Display),
        written: &[RateLimit],
    ) {
        let matcher = self.matcher;
        let Some(Allows::Within(limits)) = matcher.rule(node).map(|rule| &rule.allows) else {
            return;
        };
        for (at, limit) in limits.iter().enumerate() {
            let stricter = limits.iter().find(|other| {
                let name = other.name.as_deref();
                let can_be_replaced = name.is_some_and(|name| self.replaced.contains(name));
                !can_be_replaced && refuses_first(other, limit)
            });
            if let Some(stricter) = stricter {
                let fault = Fault::NeverBinds {
                    limit: shown(limit),
                    stricter: shown(stricter),
                };
                let at = written.get(at).and_then(|limit| limit.at);
                self.report(file, at, path, fault);
            }
        }
    }
}

impl NamedLimit<'_> {
    fn location(&self) -> String {
        let name = &self.file.name;
        match self.at.map(|at| self.file.position(at)) {
            Some(Position { line, column }) => format!("{name}:{line}:{column}"),
            None => name.clone(),
        }
    }
}

/// Whether `stricter` refuses whatever `limit` refuses. Known of aligned windows only: if each window of `limit` lies
/// in one of `stricter`, its count is never the higher one, because both count the same hits. Other algorithms can
/// count a hit that another limit refuses.
fn refuses_first(stricter: &Limit, limit: &Limit) -> bool {
    let are_aligned = [stricter, limit].map(|limit| limit.algorithm == Algorithm::FixedWindow);
    let (longer, shorter) = (stricter.period.secs(), limit.period.secs());
    are_aligned == [true, true]
        && longer > shorter
        && longer % shorter == 0
        && stricter.requests_per_unit <= limit.requests_per_unit
}

/// A limit in words, such as `5 per minute`.
fn shown(limit: &Limit) -> String {
    format!("{} per {}", limit.requests_per_unit, limit.period)
}

#[cfg(test)]
mod tests;
