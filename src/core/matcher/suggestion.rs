//! The rule that a descriptor without a limit seems to mean, and the change that leads there.
//!
//! As [`cause`](super::cause) this is for people who ask, and looks at a bounded number of nodes.

use super::{
    Domain, Matcher, NodeId, RuleNode,
    cause::{Cause, MAX_NODES, NoLimit, nearest, shown},
};
use crate::core::{counter::Joined, limit::Rule, request::Entry};

/// Advice on a descriptor without a limit.
#[derive(Clone, Debug)]
pub(crate) struct Suggestion<'a> {
    /// The change, as a sentence without a full stop.
    pub(crate) text: String,
    /// The rule that it is about.
    pub(crate) rule: Option<&'a Rule>,
}

impl Matcher {
    /// Advice on a descriptor that has no limit because of `no_limit`; `None` if there is nothing near.
    pub(crate) fn suggestion<'a>(
        &'a self,
        domain: &[u8],
        entries: &'a [Entry<'a>],
        no_limit: &NoLimit<'_>,
    ) -> Option<Suggestion<'a>> {
        let Some(rules) = self.domain(domain) else {
            let names = self.domain_names.iter().take(MAX_NODES).map(|name| &**name);
            let near = nearest(domain, names)?;
            return Some(Suggestion {
                text: format!("write `{}` as the domain", shown(near)),
                rule: None,
            });
        };
        // A rule that says `unlimited` is meant to win.
        if no_limit.cause != Cause::Unlimited
            && let Some(way) = rules.hidden_way(entries)
        {
            return Some(Suggestion {
                text: format!(
                    "entry {} would lead to this rule by `{}`, but `{}` matches first; repeat the levels there",
                    way.entry,
                    name(way.node),
                    name(way.chosen)
                ),
                rule: Some(way.rule),
            });
        }
        let matched = no_limit.matched;
        let mut level = rules.node(rules.root.node);
        rules.walk(&entries[..matched], &mut Joined::new(), |_, _, next| {
            level = next.node;
        });
        match no_limit.cause {
            Cause::UnknownKey { key, near } => rules.other_key(level, key, near),
            Cause::UnknownValue { key } => rules.other_value(level, key, entries[matched].value),
            Cause::TooManyEntries => rules.shorter(level, matched),
            Cause::TooFewEntries => rules.longer(level, matched),
            Cause::WithoutLimit => Some(Suggestion {
                text: "add a `rate_limit` to this level".to_owned(),
                rule: None,
            }),
            Cause::Unlimited => Some(Suggestion {
                text: "give the rule a limit instead of `unlimited`".to_owned(),
                rule: None,
            }),
            Cause::UnknownDomain | Cause::EmptyDomain | Cause::Replaced => None,
        }
    }
}

/// `key` or `key=value` of a node.
fn name(node: &RuleNode) -> String {
    match &*node.value {
        [] => shown(&node.key),
        value => format!("{}={}", shown(&node.key), shown(value)),
    }
}

impl<'m> Domain<'m> {
    fn rule_of(self, node: &RuleNode) -> Option<&'m Rule> {
        node.rule.map(|id| &self.matcher.rules[id.0])
    }

    /// The children of `node` in the order of their declaration; of very many, some.
    fn ordered(self, node: &RuleNode) -> Vec<&'m RuleNode> {
        let mut ids: Vec<usize> = node.below().children.values().map(|id| id.0).collect();
        ids.sort_unstable();
        ids.truncate(MAX_NODES);
        ids.into_iter().map(|id| self.node(NodeId(id))).collect()
    }

    /// The rule of `node`, or the first one below it in the order of declaration.
    fn first_rule(self, node: &'m RuleNode) -> Option<&'m Rule> {
        let (_, node) = self.first(node, |node| node.rule.is_some())?;
        self.rule_of(node)
    }

    /// The first node from `node` on, downwards in the order of declaration, that `is_it` accepts, and how many levels
    /// it is below `node`.
    fn first(
        self,
        node: &'m RuleNode,
        is_it: impl Fn(&RuleNode) -> bool,
    ) -> Option<(usize, &'m RuleNode)> {
        let mut nodes = vec![(0, node)];
        let mut looked_at = 0;
        while let Some((depth, node)) = nodes.pop() {
            if is_it(node) {
                return Some((depth, node));
            }
            looked_at += 1 + node.below().children.len();
            if looked_at > MAX_NODES {
                return None;
            }
            let children = self.ordered(node).into_iter().rev();
            nodes.extend(children.map(|child| (depth + 1, child)));
        }
        None
    }

    /// Advice on a `key` that `level` does not have: the similar one, or the level that has it.
    fn other_key(
        self,
        level: &'m RuleNode,
        key: &[u8],
        near: Option<&[u8]>,
    ) -> Option<Suggestion<'m>> {
        if let Some(near) = near {
            let children = self.ordered(level);
            let node = children.into_iter().find(|node| *node.key == *near)?;
            return Some(Suggestion {
                text: format!("write `{}` as the key", shown(near)),
                rule: self.first_rule(node),
            });
        }
        let root = self.node(self.root.node);
        let (depth, node) = self.first(root, |node| *node.key == *key)?;
        Some(Suggestion {
            text: format!(
                "`{}` is the key of entry {depth} in this rule; the order and the number of entries count",
                shown(key),
            ),
            rule: self.first_rule(node),
        })
    }

    /// Advice on a `value` that no rule of `level` for `key` has.
    fn other_value(self, level: &'m RuleNode, key: &[u8], value: &[u8]) -> Option<Suggestion<'m>> {
        let mut children = self.ordered(level);
        children.retain(|child| *child.key == *key);
        let near = nearest(value, children.iter().map(|child| &*child.value));
        let node = children
            .iter()
            .find(|child| near.is_none_or(|near| *child.value == *near))?;
        let all = "a rule without `value` is for all other values";
        Some(Suggestion {
            text: near.map_or_else(
                || all.to_owned(),
                |near| format!("write `{}` as the value; {all}", shown(near)),
            ),
            rule: self.first_rule(node),
        })
    }

    /// Advice on entries behind the last level of the rules.
    fn shorter(self, level: &'m RuleNode, matched: usize) -> Option<Suggestion<'m>> {
        let rule = self.rule_of(level)?;
        Some(Suggestion {
            text: match matched {
                1 => "a descriptor of entry 1 alone would have the limits of this rule".to_owned(),
                _ => format!(
                    "a descriptor of entries 1 to {matched} alone would have the limits of this rule"
                ),
            },
            rule: Some(rule),
        })
    }

    /// Advice on a descriptor that ends above the limits.
    fn longer(self, level: &'m RuleNode, matched: usize) -> Option<Suggestion<'m>> {
        let children = self.ordered(level).into_iter();
        let (next, rule) = children
            .filter_map(|child| Some((child, self.first_rule(child)?)))
            .next()?;
        Some(Suggestion {
            text: format!(
                "add an entry with the key `{}` as entry {}",
                shown(&next.key),
                matched + 1
            ),
            rule: Some(rule),
        })
    }
}

#[cfg(test)]
mod tests;
