//! The way of a descriptor through the rules, level by level: the node that each entry leads to, and why its siblings
//! do not get the entry.
//!
//! This is for people who ask. The chosen node is the one of [`Domain::walk`]; the reasons come from comparing the
//! texts of all siblings once more, in the order of their declaration, so no decision needs them.

use super::{
    Domain, Matcher, NodeId, RuleNode, RuleOrigin,
    wildcards::{Pattern, Wildcard},
};
use crate::core::{counter::Joined, request::Entry};

/// Most siblings that are compared with one entry: a question must not occupy a thread.
const MAX_COMPARED: usize = 1024;

/// Most siblings that one step shows.
const MAX_SHOWN: usize = 8;

/// One entry of a descriptor, and the level of rules that it meets.
#[derive(Clone, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) entry: Entry<'a>,
    /// The node that the entry leads to, and how it matches.
    pub(crate) chosen: Option<(SteppedNode<'a>, MatchForm)>,
    /// Other nodes of the level, those first that match as well.
    pub(crate) others: Vec<(SteppedNode<'a>, Dismissal)>,
    /// How many more nodes the level has.
    pub(crate) omitted: usize,
}

/// A node of the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteppedNode<'a> {
    pub(crate) key: &'a [u8],
    /// Empty if the node stands for every value.
    pub(crate) value: &'a [u8],
    /// The place of its rule, or of the first rule below it.
    pub(crate) origin: Option<&'a RuleOrigin>,
}

/// How an entry matches a node, the strongest form first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MatchForm {
    /// The node has the key and the value.
    Exact,
    /// The node has another key and value, or another key only, which read alike once they are joined.
    JoinedExact,
    /// The node has a `*` that matches.
    Wildcard,
    /// The node has the key, and stands for every value.
    BareKey,
    /// The node has a key and a value that read like the key of the entry once they are joined.
    JoinedKey,
}

/// Why a node does not get an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dismissal {
    /// It matches, but a stronger or an earlier node was chosen.
    Hidden {
        chosen: MatchForm,
        own: MatchForm,
        /// Whether the entries behind would reach a limit from this node. Matching never goes back.
        would_reach: bool,
    },
    /// It has the key of the entry, and another value.
    OtherValue,
    /// It has a `*`, which does not match.
    OtherPattern,
    /// It would match if keys and values were joined, and strict matching keeps them apart.
    KeptApart,
    OtherKey,
}

impl Matcher {
    /// The steps of a descriptor, up to the first entry that leads to no node. An unknown domain has none.
    pub(crate) fn steps<'a>(&'a self, domain: &[u8], entries: &'a [Entry<'a>]) -> Vec<Step<'a>> {
        let Some(domain) = self.domain(domain) else {
            return Vec::new();
        };
        let mut chosen = Vec::new();
        domain.walk(entries, &mut Joined::new(), |_, _, level| {
            chosen.push(level.node);
        });
        let root = &self.nodes[domain.root.node.0];
        let levels = std::iter::once(root).chain(chosen.iter().copied());
        let steps = levels.zip(entries).enumerate();
        steps
            .map(|(index, (level, _))| {
                domain.step(level, chosen.get(index).copied(), &entries[index..])
            })
            .collect()
    }
}

impl<'m> Domain<'m> {
    /// The step of the first of `entries` below `level`.
    fn step<'a>(
        self,
        level: &'m RuleNode,
        chosen: Option<&'m RuleNode>,
        entries: &'a [Entry<'a>],
    ) -> Step<'a>
    where
        'm: 'a,
    {
        let entry = entries[0];
        let matcher = self.matcher;
        let form = chosen.and_then(|chosen| matcher.form(chosen, &entry));
        let mut others: Vec<(Dismissal, usize)> = self
            .siblings(level, &entry)
            .into_iter()
            .filter(|&NodeId(id)| !chosen.is_some_and(|chosen| std::ptr::eq(chosen, self.node(id))))
            .map(|NodeId(id)| (self.dismissal(self.node(id), form, entries), id))
            .collect();
        others.sort_unstable();
        others.truncate(MAX_SHOWN);
        let shown = others.len() + usize::from(chosen.is_some());
        Step {
            entry,
            chosen: chosen
                .zip(form)
                .map(|(node, form)| (self.shown(node), form)),
            others: others
                .into_iter()
                .map(|(why, id)| (self.shown(self.node(id)), why))
                .collect(),
            omitted: level.children.len().saturating_sub(shown),
        }
    }

    fn node(self, id: usize) -> &'m RuleNode {
        &self.matcher.nodes[id]
    }

    /// The children of `level` in the order of their declaration; of very many, those that can match and some others.
    fn siblings(self, level: &RuleNode, entry: &Entry<'_>) -> Vec<NodeId> {
        let mut ids: Vec<NodeId> = if level.children.len() <= MAX_COMPARED {
            level.children.values().copied().collect()
        } else {
            let texts = [Some(entry.value), None].map(|value| {
                let mut joined = Joined::new();
                self.matcher.join(entry.key, value, &mut joined);
                level.children.get(&joined[..]).copied()
            });
            let exact = texts.into_iter().flatten();
            let wildcards = level.wildcards.targets().take(MAX_COMPARED);
            exact.chain(wildcards).collect()
        };
        ids.sort_unstable_by_key(|id| id.0);
        ids.dedup();
        ids
    }

    fn dismissal(
        self,
        node: &'m RuleNode,
        chosen: Option<MatchForm>,
        entries: &[Entry<'_>],
    ) -> Dismissal {
        let (entry, matcher) = (&entries[0], self.matcher);
        if let (Some(own), Some(chosen)) = (matcher.form(node, entry), chosen) {
            return Dismissal::Hidden {
                chosen,
                own,
                would_reach: self.reaches_limit(node, &entries[1..]),
            };
        }
        let has_star = node.key.contains(&b'*') || node.value.contains(&b'*');
        if matcher.is_strict && reads_alike(node, entry) {
            Dismissal::KeptApart
        } else if has_star {
            Dismissal::OtherPattern
        } else if *node.key == *entry.key {
            Dismissal::OtherValue
        } else {
            Dismissal::OtherKey
        }
    }

    /// Whether `entries` lead from `node` to a rule with a limit.
    fn reaches_limit(self, mut node: &'m RuleNode, entries: &[Entry<'_>]) -> bool {
        let mut joined = Joined::new();
        for entry in entries {
            let by_value = self.matcher.child_by_value(node, entry, &mut joined);
            let child = by_value.map(|(child, _)| child);
            let child = child.or_else(|| self.matcher.child_by_key(node, entry.key, &mut joined));
            let Some(NodeId(child)) = child else {
                return false;
            };
            node = self.node(child);
        }
        let rule = node.rule.map(|id| &self.matcher.rules[id.0]);
        rule.is_some_and(|rule| !rule.is_unlimited())
    }

    /// `node` with the place of its rule, or of the first rule below it.
    fn shown(self, node: &'m RuleNode) -> SteppedNode<'m> {
        SteppedNode {
            key: &node.key,
            value: &node.value,
            origin: self
                .first_rule(node)
                .map(|rule| self.matcher.origin(rule.id)),
        }
    }
}

impl Matcher {
    /// How `entry` matches `node`; `None` if it does not.
    fn form(&self, node: &RuleNode, entry: &Entry<'_>) -> Option<MatchForm> {
        let given = (!node.value.is_empty()).then_some(&*node.value);
        let text = |key: &[u8], value: Option<&[u8]>| {
            let mut joined = Joined::new();
            self.join(key, value, &mut joined);
            joined
        };
        let own = text(&node.key, given);
        let whole = text(entry.key, Some(entry.value));
        if own[..] == whole[..] {
            let is_split_alike = *node.key == *entry.key && *node.value == *entry.value;
            return Some(if is_split_alike {
                MatchForm::Exact
            } else {
                MatchForm::JoinedExact
            });
        }
        let wildcard = if self.is_strict {
            Wildcard::apart(&node.key, given)
        } else {
            Pattern::new(&own).map(Wildcard::Joined)
        };
        if wildcard.is_some_and(|wildcard| wildcard.matches(entry, &whole)) {
            return Some(MatchForm::Wildcard);
        }
        if own[..] != text(entry.key, None)[..] {
            return None;
        }
        Some(if *node.key == *entry.key {
            MatchForm::BareKey
        } else {
            MatchForm::JoinedKey
        })
    }
}

/// Whether the texts of `node` and `entry` are equal once key and value are joined.
fn reads_alike(node: &RuleNode, entry: &Entry<'_>) -> bool {
    let join = |key: &[u8], value: &[u8]| match value {
        [] => key.to_vec(),
        value => [key, b"_", value].concat(),
    };
    let own = join(&node.key, &node.value);
    own == [entry.key, b"_", entry.value].concat() || own == entry.key
}

#[cfg(test)]
mod tests;
