//! Finds the rule that applies: domain and entries → [`Rule`]. Immutable once built.
//!
//! The nodes of one level are identified by their joined text, `key` or `key_value`. For each entry of a
//! descriptor the node named exactly `key_value` wins. Next comes the first wildcard, in order of
//! declaration, that matches this text, and last the node named `key`. Matching never goes back: once a
//! node is chosen its siblings are not tried. The node of the last entry decides.
//!
//! Joined, the entry (`a`, `b`) reads as the bare key `a_b`, as it does in the reference. Strict
//! matching keeps keys and values apart.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

// The keys of these maps come from rule files, so no client can choose them to collide, and a hash
// that is not cryptographic is enough.
use foldhash::fast::RandomState;

use crate::core::{
    counter::{Joined, KeyFormat},
    limit::{Rule, RuleId},
    request::Entry,
};

pub(crate) mod cause;
mod reach;
#[cfg(test)]
pub(super) mod tests;
pub(crate) mod trace;
mod wildcards;

use wildcards::{Pattern, Wildcard, Wildcards};

/// All rules of a configuration.
#[derive(Debug, Default)]
pub struct Matcher {
    /// The format of the keys of these rules' counters.
    pub key_format: KeyFormat,
    /// Whether keys and values are matched separately.
    is_strict: bool,
    domains: HashMap<Box<[u8]>, DomainRoot, RandomState>,
    /// By [`DomainId`].
    domain_names: Vec<Box<[u8]>>,
    nodes: Vec<RuleNode>,
    rules: Vec<Rule>,
    /// Where each node is written; decisions do not read it.
    origins: Vec<RuleOrigin>,
    /// The node of each rule, for its place.
    rule_nodes: Vec<NodeId>,
}

/// Where a rule, or a level of rules, is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleOrigin {
    /// The name of the file or resource; empty if the rule is from neither.
    pub file: Arc<str>,
    /// From 1; a resource has no lines.
    pub line: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub(super) usize);

/// The index of a domain in [`Matcher::domain_names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainId(pub usize);

#[derive(Clone, Copy, Debug)]
struct DomainRoot {
    id: DomainId,
    node: NodeId,
}

/// Why no rule applies to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMatch {
    /// No file names the domain.
    UnknownDomain,
    /// An entry leads to no node of the domain, or there is no entry.
    NoRule(DomainId),
    /// The node has neither a limit nor `unlimited`.
    NoLimit(DomainId),
}

#[derive(Debug, Default)]
struct RuleNode {
    key: Box<[u8]>,
    /// Empty if the node stands for every value.
    value: Box<[u8]>,
    rule: Option<RuleId>,
    /// Whether statistics show the request's value instead of this node's.
    value_to_metric: bool,
    /// The text that replaces the value in counter keys, if all values of this wildcard share a counter.
    shared_value: Option<Box<[u8]>>,
    /// Most nodes have none.
    below: Option<Box<NodeLevel>>,
}

/// The nodes below one.
#[derive(Debug, Default)]
struct NodeLevel {
    children: HashMap<Box<[u8]>, NodeId, RandomState>,
    /// Positions of `_` in child keys: lengths at which an entry's key could end.
    key_lengths: KeyLengths,
    wildcards: Wildcards<NodeId>,
}

static NO_LEVEL: LazyLock<NodeLevel> = LazyLock::new(NodeLevel::default);

impl RuleNode {
    fn below(&self) -> &NodeLevel {
        match &self.below {
            Some(level) => level,
            None => &NO_LEVEL,
        }
    }
}

/// Lengths of keys that a value can follow; all lengths from 63 on share one bit.
///
/// An entry whose key has none of these lengths matches no child by its value, so most levels of bare
/// keys are skipped without joining anything.
#[derive(Clone, Copy, Debug, Default)]
struct KeyLengths(u64);

impl KeyLengths {
    fn add(&mut self, key_bytes: usize) {
        self.0 |= 1 << key_bytes.min(63);
    }

    fn has(self, key_bytes: usize) -> bool {
        self.0 >> key_bytes.min(63) & 1 == 1
    }
}

/// The rule of a descriptor.
#[derive(Debug)]
pub struct Match<'m> {
    pub rule: &'m Rule,
    /// Entries whose counters all matching values share: their index, and the text that replaces the
    /// value.
    pub shared: Vec<(usize, &'m [u8])>,
}

/// The rules of one domain.
#[derive(Clone, Copy, Debug)]
pub struct Domain<'m> {
    matcher: &'m Matcher,
    root: DomainRoot,
}

/// A node to which an entry leads.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchedNode<'m> {
    node: &'m RuleNode,
    /// Whether a wildcard chose the node.
    is_wildcard: bool,
}

impl<'m> MatchedNode<'m> {
    pub(super) fn key(self) -> &'m [u8] {
        &self.node.key
    }

    /// The value of the rule; empty if the node stands for every value.
    pub(super) fn value(self) -> &'m [u8] {
        &self.node.value
    }

    pub(super) fn is_wildcard(self) -> bool {
        self.is_wildcard
    }

    /// The text that replaces the entry's value in counter keys, if all values share a counter.
    pub(super) fn shared_value(self) -> Option<&'m [u8]> {
        self.node.shared_value.as_deref()
    }

    /// Whether statistics show the entry's value instead of the rule's.
    pub(super) fn reports_value(self) -> bool {
        self.node.value_to_metric
    }
}

impl<'m> Domain<'m> {
    /// The rule that `entries` match; `joined` is scratch space.
    ///
    /// # Errors
    ///
    /// The reason if there is none.
    pub fn find(self, entries: &[Entry<'_>], joined: &mut Joined) -> Result<Match<'m>, NoMatch> {
        let mut shared = Vec::new();
        let last = self.walk(entries, joined, |index, _, level| {
            if let Some(value) = level.shared_value() {
                shared.push((index, value));
            }
        });
        match last.map(|last| last.node.rule) {
            Some(Some(rule)) => Ok(Match {
                rule: &self.matcher.rules[rule.0],
                shared,
            }),
            Some(None) if !entries.is_empty() => Err(NoMatch::NoLimit(self.root.id)),
            Some(None) | None => Err(NoMatch::NoRule(self.root.id)),
        }
    }

    /// Walks from node to node and calls `visit` with the entry's index, the entry and the node it leads
    /// to. Returns the last node, or `None` if an entry leads to no node.
    pub(super) fn walk(
        self,
        entries: &[Entry<'_>],
        joined: &mut Joined,
        mut visit: impl FnMut(usize, &Entry<'_>, MatchedNode<'m>),
    ) -> Option<MatchedNode<'m>> {
        let nodes = &self.matcher.nodes;
        let mut level = MatchedNode {
            node: &nodes[self.root.node.0],
            is_wildcard: false,
        };
        for (index, entry) in entries.iter().enumerate() {
            let node = level.node;
            let by_value = self.matcher.child_by_value(node, entry, joined);
            let (child, is_wildcard) = match by_value {
                Some(found) => found,
                None => (self.matcher.child_by_key(node, entry.key, joined)?, false),
            };
            level = MatchedNode {
                node: &nodes[child.0],
                is_wildcard,
            };
            visit(index, entry, level);
        }
        Some(level)
    }
}

impl Matcher {
    /// A matcher without rules that matches keys and values separately.
    pub fn strict() -> Self {
        Self {
            is_strict: true,
            ..Self::default()
        }
    }

    /// The child that an entry leads to by its value, and whether a wildcard chose it.
    fn child_by_value(
        &self,
        node: &RuleNode,
        entry: &Entry<'_>,
        joined: &mut Joined,
    ) -> Option<(NodeId, bool)> {
        let node = node.below();
        let may_be_exact = node.key_lengths.has(entry.key.len());
        if !may_be_exact && node.wildcards.is_empty() {
            return None;
        }
        self.join(entry.key, Some(entry.value), joined);
        if may_be_exact && let Some(&exact) = node.children.get(&joined[..]) {
            return Some((exact, false));
        }
        let wildcard = node.wildcards.first(entry, joined)?;
        Some((wildcard, true))
    }

    /// The child for every value of `key`.
    fn child_by_key(&self, node: &RuleNode, key: &[u8], joined: &mut Joined) -> Option<NodeId> {
        if !self.is_strict {
            // The key alone is the child's text.
            return node.below().children.get(key).copied();
        }
        self.join(key, None, joined);
        node.below().children.get(&joined[..]).copied()
    }

    /// Writes the text that identifies a node: a key alone, or a key and its value.
    fn join(&self, key: &[u8], value: Option<&[u8]>, joined: &mut Joined) {
        joined.clear();
        if self.is_strict {
            joined.push_slice(&key.len().to_le_bytes());
        }
        joined.push_slice(key);
        if let Some(value) = value {
            joined.push(b'_');
            joined.push_slice(value);
        }
    }

    /// The wildcard of a node that has a `*`. `joined` is the text that identifies the node.
    fn wildcard(&self, key: &[u8], value: Option<&[u8]>, joined: &[u8]) -> Option<Wildcard> {
        if self.is_strict {
            Wildcard::apart(key, value)
        } else {
            Pattern::new(joined).map(Wildcard::Joined)
        }
    }

    pub fn domain(&self, name: &[u8]) -> Option<Domain<'_>> {
        let root = *self.domains.get(name)?;
        Some(Domain {
            matcher: self,
            root,
        })
    }

    /// Whether there is a rule in the domain of this name.
    pub(crate) fn has_rules_in(&self, domain: &[u8]) -> bool {
        let root = self.domains.get(domain).map(|root| root.node);
        let mut left: Vec<NodeId> = root.into_iter().collect();
        while let Some(NodeId(node)) = left.pop() {
            let node = &self.nodes[node];
            if node.rule.is_some() {
                return true;
            }
            left.extend(node.below().children.values());
        }
        false
    }

    /// The bytes of all wildcards right below a node, each counted as a few at least.
    pub fn wildcard_bytes(&self, parent: NodeId) -> usize {
        self.nodes[parent.0].below().wildcards.bytes()
    }

    /// All rules; a `RuleId` is an index of this list.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub fn domain_count(&self) -> usize {
        self.domains.len()
    }

    /// The names of all domains; a `DomainId` is an index of this list.
    pub fn domain_names(&self) -> &[Box<[u8]>] {
        &self.domain_names
    }

    /// The root of a domain, created if it is missing.
    pub fn insert_domain(&mut self, name: &[u8]) -> NodeId {
        if let Some(root) = self.domains.get(name) {
            return root.node;
        }
        let node = self.push_node();
        let id = DomainId(self.domain_names.len());
        self.domain_names.push(name.into());
        self.domains.insert(name.into(), DomainRoot { id, node });
        node
    }

    /// Adds a child to `parent`; returns `None` if its text is already taken at this level. An empty
    /// value stands for every value.
    pub fn insert(&mut self, parent: NodeId, key: &[u8], value: &[u8]) -> Option<NodeId> {
        let mut joined = Joined::new();
        let given = (!value.is_empty()).then_some(value);
        self.join(key, given, &mut joined);
        if self.nodes[parent.0]
            .below()
            .children
            .contains_key(&joined[..])
        {
            return None;
        }
        let wildcard = self.wildcard(key, given, &joined);
        let child = self.push_node();
        self.nodes[child.0].key = key.into();
        self.nodes[child.0].value = value.into();
        let parent = self.nodes[parent.0].below.get_or_insert_default();
        parent.children.insert(joined[..].into(), child);
        if self.is_strict {
            given.inspect(|_| parent.key_lengths.add(key.len()));
        } else {
            let key_lengths = joined.iter().enumerate().filter(|(_, byte)| **byte == b'_');
            key_lengths.for_each(|(key_bytes, _)| parent.key_lengths.add(key_bytes));
        }
        if let Some(wildcard) = wildcard {
            parent.wildcards.push(wildcard, child);
        }
        Some(child)
    }

    /// Counts all values that the wildcard `node` matches as one, under the name `value`.
    pub fn share(&mut self, node: NodeId, value: &[u8]) {
        self.nodes[node.0].shared_value = Some(value.into());
    }

    /// Makes statistics show the request's value at `node`.
    pub fn report_values(&mut self, node: NodeId) {
        self.nodes[node.0].value_to_metric = true;
    }

    /// Gives `node` the rule that the closure `rule` makes from its id.
    pub fn set_rule(&mut self, node: NodeId, rule: impl FnOnce(RuleId) -> Rule) {
        let id = RuleId(self.rules.len());
        self.rules.push(rule(id));
        self.rule_nodes.push(node);
        self.nodes[node.0].rule = Some(id);
    }

    /// Sets the place where `node` is written.
    pub fn set_origin(&mut self, node: NodeId, origin: RuleOrigin) {
        self.origins[node.0] = origin;
    }

    /// Where a rule of this matcher is written.
    pub fn origin(&self, rule: RuleId) -> &RuleOrigin {
        &self.origins[self.rule_nodes[rule.0].0]
    }

    /// Makes room for so many nodes, because each growth doubles the room.
    pub fn reserve(&mut self, nodes: usize) {
        self.nodes.reserve_exact(nodes);
        self.origins.reserve_exact(nodes);
    }

    fn push_node(&mut self) -> NodeId {
        self.nodes.push(RuleNode::default());
        self.origins.push(RuleOrigin::default());
        NodeId(self.nodes.len() - 1)
    }
}
