//! The way of a descriptor through the rules, level by level: the node that each entry leads to, and why its siblings
//! do not get the entry.
//!
//! This is for people who ask. The chosen node is the one of [`Domain::walk`]; the reasons come from comparing the
//! texts of all siblings once more, in the order of their declaration, so no decision needs them.

use super::{
    Domain, Matcher, NodeId, RuleNode, RuleOrigin,
    wildcards::{Pattern, Wildcard},
};
use crate::core::{counter::Joined, limit::Rule, request::Entry};

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
    pub(crate) origin: &'a RuleOrigin,
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
        let levels = domain.levels(entries).into_iter().enumerate();
        levels
            .map(|(index, (level, chosen))| domain.step(level, chosen, &entries[index..]))
            .collect()
    }
}

/// A node that matches an entry and would lead to a limit, but is not chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct HiddenWay<'m> {
    /// The number of the entry.
    pub(super) entry: usize,
    pub(super) node: &'m RuleNode,
    pub(super) chosen: &'m RuleNode,
    pub(super) rule: &'m Rule,
}

impl<'m> Domain<'m> {
    /// The levels that `entries` meet, each with the node that is chosen there.
    fn levels(self, entries: &[Entry<'_>]) -> Vec<(&'m RuleNode, Option<&'m RuleNode>)> {
        let mut level = self.node(self.root.node);
        let mut levels = Vec::new();
        self.walk(entries, &mut Joined::new(), |_, _, next| {
            levels.push((level, Some(next.node)));
            level = next.node;
        });
        if levels.len() < entries.len() {
            levels.push((level, None));
        }
        levels
    }

    /// The first way to a limit that `entries` would have if matching went back.
    pub(super) fn hidden_way(self, entries: &[Entry<'_>]) -> Option<HiddenWay<'m>> {
        let levels = self.levels(entries).into_iter().enumerate();
        let mut ways = levels.filter_map(|(index, (level, chosen))| {
            let (entry, chosen) = (&entries[index], chosen?);
            let others = self.siblings(level, entry).into_iter();
            let mut others = others.map(|id| self.node(id));
            others.find_map(|node| {
                let is_other = !std::ptr::eq(node, chosen);
                self.matcher.form(node, entry).filter(|_| is_other)?;
                Some(HiddenWay {
                    entry: index + 1,
                    node,
                    chosen,
                    rule: self.reached(node, &entries[index + 1..])?,
                })
            })
        });
        ways.next()
    }

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
        let chosen = chosen.and_then(|chosen| {
            let mut ids = level.below().children.values();
            ids.find(|&&id| std::ptr::eq(self.node(id), chosen))
        });
        let form = chosen.and_then(|&id| matcher.form(self.node(id), &entry));
        let mut others: Vec<(Dismissal, usize)> = self
            .siblings(level, &entry)
            .into_iter()
            .filter(|id| Some(id) != chosen)
            .map(|id| (self.dismissal(self.node(id), form, entries), id.0))
            .collect();
        others.sort_unstable();
        others.truncate(MAX_SHOWN);
        let shown = others.len() + usize::from(chosen.is_some());
        Step {
            entry,
            chosen: chosen.zip(form).map(|(&id, form)| (self.shown(id), form)),
            others: others
                .into_iter()
                .map(|(why, id)| (self.shown(NodeId(id)), why))
                .collect(),
            omitted: level.below().children.len().saturating_sub(shown),
        }
    }

    pub(super) fn node(self, NodeId(id): NodeId) -> &'m RuleNode {
        &self.matcher.nodes[id]
    }

    /// The children of `level` in the order of their declaration; of very many, those that can match and some others.
    fn siblings(self, level: &RuleNode, entry: &Entry<'_>) -> Vec<NodeId> {
        let mut ids: Vec<NodeId> = if level.below().children.len() <= MAX_COMPARED {
            level.below().children.values().copied().collect()
        } else {
            let texts = [Some(entry.value), None].map(|value| {
                let mut joined = Joined::new();
                self.matcher.join(entry.key, value, &mut joined);
                level.below().children.get(&joined[..]).copied()
            });
            let exact = texts.into_iter().flatten();
            let wildcards = level.below().wildcards.targets().take(MAX_COMPARED);
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
                would_reach: self.reached(node, &entries[1..]).is_some(),
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

    /// The rule with a limit to which `entries` lead from `node`.
    fn reached(self, mut node: &'m RuleNode, entries: &[Entry<'_>]) -> Option<&'m Rule> {
        let mut joined = Joined::new();
        for entry in entries {
            let by_value = self.matcher.child_by_value(node, entry, &mut joined);
            let child = by_value.map(|(child, _)| child);
            let child = child.or_else(|| self.matcher.child_by_key(node, entry.key, &mut joined));
            node = self.node(child?);
        }
        let rule = &self.matcher.rules[node.rule?.0];
        (!rule.is_unlimited()).then_some(rule)
    }

    fn shown(self, id: NodeId) -> SteppedNode<'m> {
        let node = self.node(id);
        SteppedNode {
            key: &node.key,
            value: &node.value,
            origin: &self.matcher.origins[id.0],
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
