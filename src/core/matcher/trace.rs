//! The way of a descriptor through the rules, level by level: the node that each entry leads to, and why its siblings
//! do not get the entry.
//!
//! This is for people who ask, so it is walked again and no decision needs it. The reasons come from comparing the
//! texts of all siblings, in the order of their declaration.

use std::cmp::Reverse;

use crate::core::{
    counter::Joined,
    limit::Rule,
    matcher::{Matcher, NodeId, RuleNode, RuleOrigin},
    request::Entry,
};

#[cfg(test)]
mod tests;

/// Most siblings that are compared with one entry: a question must not occupy a thread.
const MAX_COMPARED: usize = 1024;

/// Most siblings that one step shows.
const MAX_SHOWN: usize = 8;

/// The way of a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Trace<'a> {
    pub(super) matcher: &'a Matcher,
    pub(super) domain: &'a [u8],
    pub(super) entries: &'a [Entry<'a>],
    /// The root of the domain, and the nodes to which the entries lead; an unknown domain has none.
    pub(super) nodes: Vec<NodeId>,
}

/// One entry of a descriptor, and the level of rules that it meets.
#[derive(Clone, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) entry: Entry<'a>,
    /// The node that the entry leads to, and how it matches.
    pub(crate) chosen: Option<(NodeId, MatchForm)>,
    /// Other nodes of the level, those first that match as well.
    pub(crate) others: Vec<(Dismissal, NodeId)>,
    /// How many more nodes the level has.
    pub(crate) omitted: usize,
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
        /// Whether the later entries would reach a limit from this node. Matching never goes back.
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
    /// The way of a descriptor, up to the first entry that leads to no node.
    pub(crate) fn trace<'a>(&'a self, domain: &'a [u8], entries: &'a [Entry<'a>]) -> Trace<'a> {
        let root = self.root(domain);
        Trace {
            matcher: self,
            domain,
            entries,
            nodes: root.map_or_else(Vec::new, |root| self.way(root, entries)),
        }
    }

    /// `from`, and the nodes to which `entries` lead below it.
    pub(super) fn way(&self, from: NodeId, entries: &[Entry<'_>]) -> Vec<NodeId> {
        let (mut nodes, mut joined) = (vec![from], Joined::new());
        for entry in entries {
            let level = &self.nodes[nodes[nodes.len() - 1].0];
            let by_value = self.child_by_value(level, entry, &mut joined);
            let child = by_value.map(|(child, _)| child);
            match child.or_else(|| self.child_by_key(level, entry.key, &mut joined)) {
                Some(child) => nodes.push(child),
                None => break,
            }
        }
        nodes
    }

    /// How `entry` matches `node`; `None` if it does not.
    fn form(&self, node: &RuleNode, entry: &Entry<'_>) -> Option<MatchForm> {
        let text = |key: &[u8], value: Option<&[u8]>| {
            let mut joined = Joined::new();
            self.join(key, value, &mut joined);
            joined
        };
        let given = (!node.value.is_empty()).then_some(&*node.value);
        let own = text(&node.key, given);
        let whole = text(entry.key, Some(entry.value));
        let wildcard = || self.wildcard(&node.key, given, &own);
        if own[..] == whole[..] {
            let is_split_alike = *node.key == *entry.key && *node.value == *entry.value;
            Some(if is_split_alike {
                MatchForm::Exact
            } else {
                MatchForm::JoinedExact
            })
        } else if wildcard().is_some_and(|wildcard| wildcard.matches(entry, &whole)) {
            Some(MatchForm::Wildcard)
        } else if own[..] != text(entry.key, None)[..] {
            None
        } else if *node.key == *entry.key {
            Some(MatchForm::BareKey)
        } else {
            Some(MatchForm::JoinedKey)
        }
    }
}

impl<'a> Trace<'a> {
    /// The steps, up to the first entry that leads to no node. An unknown domain has none.
    pub(crate) fn steps(&self) -> Vec<Step<'a>> {
        let levels = 0..self.nodes.len().min(self.entries.len());
        levels.map(|index| self.step(index)).collect()
    }

    fn step(&self, index: usize) -> Step<'a> {
        let mut others: Vec<_> = self.others(index).collect();
        others.sort_unstable_by_key(|&(why, id)| (why, id.0));
        others.truncate(MAX_SHOWN);
        let chosen = self.chosen(index);
        let shown = others.len() + usize::from(chosen.is_some());
        let level = self.node(self.nodes[index]).below();
        Step {
            entry: self.entries[index],
            chosen,
            others,
            omitted: level.children.len().saturating_sub(shown),
        }
    }

    fn chosen(&self, index: usize) -> Option<(NodeId, MatchForm)> {
        let chosen = *self.nodes.get(index + 1)?;
        let form = self.matcher.form(self.node(chosen), &self.entries[index])?;
        Some((chosen, form))
    }

    /// The nodes that do not get the entry of this index, in the order of their declaration.
    pub(super) fn others(&self, index: usize) -> impl Iterator<Item = (Dismissal, NodeId)> {
        let chosen = self.chosen(index);
        let mut ids = self.siblings(index);
        ids.retain(|&id| chosen.is_none_or(|(chosen, _)| chosen != id));
        let form = chosen.map(|(_, form)| form);
        ids.into_iter()
            .map(move |id| (self.dismissal(id, form, index), id))
    }

    /// The nodes that the entry of this index meets; of very many, those that can match and some others.
    fn siblings(&self, index: usize) -> Vec<NodeId> {
        let (level, entry) = (self.node(self.nodes[index]).below(), &self.entries[index]);
        let mut ids: Vec<NodeId> = if level.children.len() <= MAX_COMPARED {
            level.children.values().copied().collect()
        } else {
            let texts = [Some(entry.value), None].map(|value| {
                let mut joined = Joined::new();
                self.matcher.join(entry.key, value, &mut joined);
                level.children.get(&joined[..]).copied()
            });
            let exact = texts.into_iter().flatten();
            exact
                .chain(level.wildcards.targets().take(MAX_COMPARED))
                .collect()
        };
        ids.sort_unstable_by_key(|id| id.0);
        ids.dedup();
        ids
    }

    fn dismissal(&self, id: NodeId, chosen: Option<MatchForm>, index: usize) -> Dismissal {
        let (node, entry) = (self.node(id), &self.entries[index]);
        if let (Some(own), Some(chosen)) = (self.matcher.form(node, entry), chosen) {
            return Dismissal::Hidden {
                chosen,
                own,
                would_reach: self.reached(id, index).is_some(),
            };
        }
        let has_star = node.key.contains(&b'*') || node.value.contains(&b'*');
        if self.matcher.is_strict && reads_alike(node, entry) {
            Dismissal::KeptApart
        } else if has_star {
            Dismissal::OtherPattern
        } else if *node.key == *entry.key {
            Dismissal::OtherValue
        } else {
            Dismissal::OtherKey
        }
    }

    /// The rule with a limit to which the entries after the one of this index would lead from `node`.
    pub(super) fn reached(&self, node: NodeId, index: usize) -> Option<&'a Rule> {
        let entries = &self.entries[index + 1..];
        let way = self.matcher.way(node, entries);
        let rule = self.matcher.rule(*way.get(entries.len())?)?;
        (!rule.is_unlimited()).then_some(rule)
    }

    pub(super) fn node(&self, NodeId(id): NodeId) -> &'a RuleNode {
        &self.matcher.nodes[id]
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

/// A node, and its depth: 1 for those right below the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutlinedNode {
    pub(crate) node: NodeId,
    pub(crate) depth: usize,
}

impl Matcher {
    /// All nodes of a domain, each before those below it, and siblings in the order of their declaration.
    pub(crate) fn outline(&self, domain: &[u8]) -> Vec<OutlinedNode> {
        let root = self.root(domain);
        let root = root.map(|node| OutlinedNode { node, depth: 0 });
        let (mut left, mut outline) = (Vec::from_iter(root), Vec::new());
        while let Some(next) = left.pop() {
            let begin = left.len();
            let children = self.nodes[next.node.0].below().children.values();
            left.extend(children.map(|&node| OutlinedNode {
                node,
                depth: next.depth + 1,
            }));
            // Nodes are numbered as they are declared, and the last one of the list is next.
            left[begin..].sort_by_key(|child| Reverse(child.node.0));
            if next.depth > 0 {
                outline.push(next);
            }
        }
        outline
    }

    /// Where a node is written.
    pub(crate) fn node_origin(&self, node: NodeId) -> &RuleOrigin {
        &self.origins[node.0]
    }
}
