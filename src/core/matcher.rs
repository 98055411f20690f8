//! Finds the rule that applies: domain and entries → [`Rule`]. Immutable once built.
//!
//! The nodes of one level are identified by their joined text, `key` or `key_value`. For each entry of a
//! descriptor the node named exactly `key_value` wins. Next comes the first wildcard, in order of
//! declaration, that matches this text, and last the node named `key`. Matching never goes back: once a
//! node is chosen its siblings are not tried. The node of the last entry decides.
//!
//! Joined, the entry (`a`, `b`) reads as the bare key `a_b`, as it does in the reference. Strict
//! matching keeps keys and values apart.

use std::{collections::HashMap, sync::Arc};

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
pub(crate) mod steps;
pub(crate) mod suggestion;
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
    children: HashMap<Box<[u8]>, NodeId, RandomState>,
    /// Positions of `_` in child keys: lengths at which an entry's key could end.
    key_lengths: KeyLengths,
    wildcards: Wildcards<NodeId>,
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
            return node.children.get(key).copied();
        }
        self.join(key, None, joined);
        node.children.get(&joined[..]).copied()
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
            left.extend(node.children.values());
        }
        false
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
        if self.nodes[parent.0].children.contains_key(&joined[..]) {
            return None;
        }
        let wildcard = if self.is_strict {
            Wildcard::apart(key, given)
        } else {
            Pattern::new(&joined).map(Wildcard::Joined)
        };
        let child = self.push_node();
        self.nodes[child.0].key = key.into();
        self.nodes[child.0].value = value.into();
        let parent = &mut self.nodes[parent.0];
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

    fn push_node(&mut self) -> NodeId {
        self.nodes.push(RuleNode::default());
        self.origins.push(RuleOrigin::default());
        NodeId(self.nodes.len() - 1)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::limit::Allows;

    /// A matcher for domain `d` with a rule at the end of each path, named by that path.
    pub(in crate::core) fn matcher(paths: &[&[&str]]) -> Matcher {
        filled(Matcher::default(), paths)
    }

    /// Adds the paths to `matcher`, each with a rule.
    pub(super) fn filled(matcher: Matcher, paths: &[&[&str]]) -> Matcher {
        let rules: Vec<(&[&str], Change)> = paths.iter().map(|path| (*path, UNLIMITED)).collect();
        with_rules(matcher, &rules)
    }

    /// The change that makes an unlimited rule the one of a node, or `None` for a node without a rule.
    pub(in crate::core) type Change = Option<fn(&mut Rule)>;

    pub(in crate::core) const UNLIMITED: Change = Some(|_| ());

    /// A matcher for domain `d` with these nodes, and those that lead to them.
    pub(in crate::core) fn matcher_of(nodes: &[(&[&str], Change)]) -> Matcher {
        with_rules(Matcher::default(), nodes)
    }

    /// Adds the nodes to `matcher`; the first `=` of a text separates key and value.
    fn with_rules(mut matcher: Matcher, nodes: &[(&[&str], Change)]) -> Matcher {
        let root = matcher.insert_domain(b"d");
        let mut known: HashMap<Vec<&str>, NodeId> = HashMap::new();
        for (path, change) in nodes {
            let mut node = root;
            for depth in 1..=path.len() {
                node = *known
                    .entry(path[..depth].to_vec())
                    .or_insert_with(|| insert(&mut matcher, node, path[depth - 1]));
            }
            let Some(change) = change else {
                continue;
            };
            matcher.set_rule(node, |id| {
                let mut rule = Rule {
                    id,
                    path: path.join(".").into(),
                    allows: Allows::Unlimited,
                    replaces: Box::default(),
                    shadow_mode: false,
                    quota_mode: false,
                    counts: Default::default(),
                    on_store_loss: Default::default(),
                    metric: Default::default(),
                    metadata: Default::default(),
                };
                change(&mut rule);
                rule
            });
        }
        matcher
    }

    fn insert(matcher: &mut Matcher, parent: NodeId, text: &str) -> NodeId {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        let node = matcher.insert(parent, key.as_bytes(), value.as_bytes());
        node.unwrap()
    }

    fn find<'m>(matcher: &'m Matcher, entries: &[(&str, &str)]) -> Option<&'m str> {
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| Entry {
                key: key.as_bytes(),
                value: value.as_bytes(),
            })
            .collect();
        let found = matcher.domain(b"d")?.find(&entries, &mut Joined::new());
        Some(&found.ok()?.rule.path)
    }

    #[track_caller]
    fn check(paths: &[&[&str]], entries: &[(&str, &str)], expected: Option<&str>) {
        assert_eq!(find(&matcher(paths), entries), expected);
    }

    #[test]
    fn an_exact_value_wins_over_a_wildcard_and_that_over_a_bare_key() {
        let paths: &[&[&str]] = &[&["k"], &["k_v*"], &["k_value"]];
        check(paths, &[("k", "value")], Some("k_value"));
        check(paths, &[("k", "vault")], Some("k_v*"));
        check(paths, &[("k", "other")], Some("k"));
        check(paths, &[("other", "v")], None);
    }

    #[test]
    fn the_first_wildcard_wins_not_the_longest() {
        let paths: &[&[&str]] = &[&["k_a*"], &["k_ab*"]];
        check(paths, &[("k", "abc")], Some("k_a*"));
    }

    #[test]
    fn a_value_of_a_star_hides_the_bare_key_even_from_an_empty_value() {
        check(&[&["k"], &["k_*"]], &[("k", "")], Some("k_*"));
    }

    #[test]
    fn only_the_node_of_the_last_entry_counts() {
        let paths: &[&[&str]] = &[&["a"], &["a", "b", "c"]];
        check(paths, &[("a", "1")], Some("a"));
        check(paths, &[("a", "1"), ("b", "2")], None);
        check(paths, &[("a", "1"), ("b", "2"), ("c", "3")], Some("a.b.c"));
        check(
            paths,
            &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")],
            None,
        );
        check(paths, &[], None);
    }

    #[test]
    fn a_descriptor_without_a_rule_has_a_reason() {
        let mut matcher = matcher(&[&["a", "b"]]);
        matcher.insert_domain(b"e");
        let check = |domain: &[u8], keys: &[&'static str], expected| {
            let entry = |key: &&'static str| Entry {
                key: key.as_bytes(),
                value: b"",
            };
            let entries: Vec<_> = keys.iter().map(entry).collect();
            let domain = matcher.domain(domain).unwrap();
            let found = domain.find(&entries, &mut Joined::new());
            assert_eq!(found.err(), expected, "{keys:?}");
        };
        let [first, second] = [DomainId(0), DomainId(1)];
        check(b"d", &["a", "b"], None);
        check(b"d", &["a"], Some(NoMatch::NoLimit(first)));
        check(b"d", &["c"], Some(NoMatch::NoRule(first)));
        check(b"d", &["a", "b", "c"], Some(NoMatch::NoRule(first)));
        check(b"d", &[], Some(NoMatch::NoRule(first)));
        check(b"e", &["a"], Some(NoMatch::NoRule(second)));
    }

    #[test]
    fn a_chosen_node_is_not_left_again() {
        let paths: &[&[&str]] = &[&["a_1", "x"], &["a", "y"]];
        check(paths, &[("a", "1"), ("y", "")], None);
        check(paths, &[("a", "2"), ("y", "")], Some("a.y"));
    }

    #[test]
    fn joined_texts_match_as_in_the_reference() {
        check(&[&["a_b"]], &[("a", "b")], Some("a_b"));
        // Either of its two `_` may part the key from the value.
        check(&[&["p_q_r"]], &[("p_q", "r")], Some("p_q_r"));
        check(&[&["p_q_r"]], &[("p", "q_r")], Some("p_q_r"));
    }

    #[test]
    fn a_star_in_the_key_is_a_wildcard_too() {
        check(&[&["x-*_v"]], &[("x-user", "v")], Some("x-*_v"));
    }

    #[track_caller]
    fn check_strict(paths: &[&[&str]], entries: &[(&str, &str)], expected: Option<&str>) {
        assert_eq!(find(&filled(Matcher::strict(), paths), entries), expected);
    }

    /// All key lengths from 63 bytes on share one bit.
    #[test]
    fn keys_of_any_length_are_matched_by_value_and_without() {
        for length in [1, 62, 63, 64, 200] {
            let key = "k".repeat(length);
            let exact = format!("{key}=v");
            let paths: &[&[&str]] = &[&[&exact], &[&key]];
            check_strict(paths, &[(&key, "v")], Some(&exact));
            check_strict(paths, &[(&key, "w")], Some(&key));
            let joined = format!("{key}_v");
            let paths: &[&[&str]] = &[&[&joined], &[&key]];
            check(paths, &[(&key, "v")], Some(&joined));
            check(paths, &[(&key, "w")], Some(&key));
        }
    }

    #[test]
    fn strict_matching_keeps_keys_and_values_apart() {
        check_strict(&[&["a_b"]], &[("a", "b")], None);
        check_strict(&[&["a_b"], &["a=b"]], &[("a", "b")], Some("a=b"));
        check_strict(&[&["p=q_r"]], &[("p_q", "r")], None);
        check_strict(&[&["p=q*"], &["p"]], &[("p", "qr")], Some("p=q*"));
        check_strict(&[&["p=q*"], &["p"]], &[("p_q", "r")], None);
        check_strict(&[&["p=q*"], &["p"]], &[("p", "x")], Some("p"));
        check_strict(&[&["x-*"]], &[("x-user", "any")], Some("x-*"));
        check_strict(&[&["x-*=v"]], &[("x-user", "w")], None);
        check_strict(&[&["a=b", "c"]], &[("a", "b"), ("c", "")], Some("a=b.c"));
    }

    #[test]
    fn an_unknown_domain_has_no_rules() {
        assert!(matcher(&[&["a"]]).domain(b"e").is_none());
    }

    #[test]
    fn rules_are_listed_by_their_id_and_a_domain_is_made_once() {
        let mut matcher = matcher(&[&["a"], &["b"], &["a", "c"]]);
        let paths: Vec<_> = matcher.rules().iter().map(|rule| &*rule.path).collect();
        assert_eq!(paths, ["a", "b", "a.c"]);
        for (at, rule) in matcher.rules().iter().enumerate() {
            assert_eq!(rule.id, RuleId(at));
        }
        for (name, count) in [(b"d", 1), (b"e", 2), (b"f", 3), (b"e", 3)] {
            let root = matcher.insert_domain(name);
            assert_eq!(matcher.insert_domain(name), root);
            assert_eq!(matcher.domain_count(), count);
        }
    }

    #[test]
    fn a_text_is_taken_once_a_level() {
        let mut matcher = Matcher::default();
        let root = matcher.insert_domain(b"d");
        let child = matcher.insert(root, b"a", b"b").unwrap();
        assert!(matcher.insert(root, b"a_b", b"").is_none());
        assert!(matcher.insert(child, b"a_b", b"").is_some());
    }

    #[test]
    fn all_values_of_a_wildcard_share_its_own_text_included() {
        let mut matcher = matcher(&[&["f_a/*"]]);
        let node = matcher.nodes[0].children[b"f_a/*".as_slice()];
        matcher.share(node, b"a/*");
        let shared = |value: &'static str| {
            let entry = Entry {
                key: b"f",
                value: value.as_bytes(),
            };
            let found = matcher
                .domain(b"d")
                .unwrap()
                .find(&[entry], &mut Joined::new());
            found.unwrap().shared
        };
        assert_eq!(shared("a/1"), [(0, b"a/*".as_slice())]);
        assert_eq!(shared("a/*"), [(0, b"a/*".as_slice())]);
    }

    #[test]
    fn pieces_of_a_pattern_do_not_overlap() {
        let matches = |pattern: &str, text: &str| {
            Pattern::new(pattern.as_bytes())
                .unwrap()
                .matches(text.as_bytes())
        };
        assert!(!matches("ab*bc", "abc"));
        assert!(matches("ab*bc", "abbc"));
        assert!(matches("a*b*c", "a-b-b-c"));
        assert!(!matches("a*b*b*c", "a-b-c"));
        assert!(matches("**", ""));
    }

    /// Matches a pattern by trying every split: slow and plainly right.
    fn naive_match(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|cut| naive_match(rest, &text[cut..])),
            Some((byte, rest)) => text
                .split_first()
                .is_some_and(|(first, text)| first == byte && naive_match(rest, text)),
        }
    }

    /// Finds the rule by reading all siblings in order, level by level.
    fn naive_find(paths: &[Vec<String>], entries: &[(String, String)]) -> Option<String> {
        let mut prefix: Vec<String> = Vec::new();
        for (key, value) in entries {
            let joined = format!("{key}_{value}");
            let siblings: Vec<&String> = paths
                .iter()
                .filter(|path| path.len() > prefix.len() && path.starts_with(&prefix))
                .map(|path| &path[prefix.len()])
                .collect();
            let chosen = siblings
                .iter()
                .find(|text| ***text == joined)
                .or_else(|| {
                    siblings.iter().find(|text| {
                        text.contains('*') && naive_match(text.as_bytes(), joined.as_bytes())
                    })
                })
                .or_else(|| siblings.iter().find(|text| **text == key))?;
            prefix.push((*chosen).clone());
        }
        paths.contains(&prefix).then(|| prefix.join("."))
    }

    proptest! {
        #[test]
        fn patterns_match_as_every_split_tried_would(
            pattern in "[ab]{0,3}\\*[ab*]{0,5}",
            text in "[ab]{0,8}",
        ) {
            let fast = Pattern::new(pattern.as_bytes()).unwrap().matches(text.as_bytes());
            prop_assert_eq!(fast, naive_match(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn finds_what_a_scan_of_all_siblings_finds(
            paths in prop::collection::hash_set(
                prop::collection::vec("[ab](_[ab*]{0,2})?", 1..4), 1..12),
            entries in prop::collection::vec(("[ab]", "[ab]{0,2}"), 0..4),
        ) {
            // Siblings are ordered by their first appearance, in the matcher and in the scan.
            let paths: Vec<Vec<String>> = paths.into_iter().collect();
            let borrowed: Vec<Vec<&str>> =
                paths.iter().map(|path| path.iter().map(String::as_str).collect()).collect();
            let slices: Vec<&[&str]> = borrowed.iter().map(Vec::as_slice).collect();
            let pairs: Vec<(&str, &str)> =
                entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let matcher = matcher(&slices);
            let found = find(&matcher, &pairs).map(str::to_owned);
            prop_assert_eq!(found, naive_find(&paths, &entries));
        }
    }
}
