//! Why no limit applies to a descriptor: how far its entries matched, where they stopped, and the rule that it seems to
//! mean.
//!
//! This is for people who ask, and looks at a bounded number of nodes.

use std::fmt;

use super::{
    Matcher, NodeId, RuleNode,
    trace::{Dismissal, Trace},
};
use crate::core::{limit::Rule, request::Entry};

/// Most nodes that one question looks at: whoever asks must not occupy a thread.
const MAX_NODES: usize = 4096;

/// Most keys that are compared letter by letter.
const MAX_COMPARED: usize = 128;

/// Longest key that is compared letter by letter, and most letters that are shown.
const MAX_KEY_BYTES: usize = 64;

/// A descriptor without a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoLimit<'a> {
    pub(crate) cause: Cause<'a>,
    /// How many entries, from the first one on, led to a node.
    pub(crate) matched: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause<'a> {
    /// No rules are for the domain of the request.
    UnknownDomain,
    /// The domain has no rules.
    EmptyDomain,
    /// No rule at this level has the key of the entry.
    UnknownKey {
        key: &'a [u8],
        /// The most similar key of this level.
        near: Option<&'a [u8]>,
    },
    /// Rules have the key of the entry, but neither its value nor every value.
    UnknownValue { key: &'a [u8] },
    /// The rules end before the descriptor does.
    TooManyEntries,
    /// The descriptor ends before a limit is reached.
    TooFewEntries,
    /// The rule has no limit, and none follows below it.
    WithoutLimit,
    /// The rule is `unlimited`.
    Unlimited,
    /// Rules of other descriptors in the request replace all its limits.
    Replaced,
}

impl Cause<'_> {
    /// Its name for programs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::UnknownDomain => "unknown_domain",
            Self::EmptyDomain => "empty_domain",
            Self::UnknownKey { .. } => "unknown_key",
            Self::UnknownValue { .. } => "unknown_value",
            Self::TooManyEntries => "too_many_entries",
            Self::TooFewEntries => "too_few_entries",
            Self::WithoutLimit => "without_limit",
            Self::Unlimited => "unlimited",
            Self::Replaced => "replaced",
        }
    }
}

impl fmt::Display for NoLimit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let matched = self.matched;
        let next = matched + 1;
        match self.cause {
            Cause::UnknownDomain => f.write_str("no rules are for this domain"),
            Cause::EmptyDomain => f.write_str("the domain has no rules"),
            Cause::UnknownKey { key, near } => {
                write!(f, "`{}` is no key here (entry {next})", shown(key))?;
                match near {
                    Some(near) => write!(f, "; did you mean `{}`?", shown(near)),
                    None => Ok(()),
                }
            }
            Cause::UnknownValue { key } => {
                write!(
                    f,
                    "no rule is for this value of `{}` (entry {next})",
                    shown(key)
                )
            }
            Cause::TooManyEntries => write!(
                f,
                "the rules end at entry {matched}; leave out the entries after it, or add rules below"
            ),
            Cause::TooFewEntries if matched == 0 => f.write_str("the descriptor is empty"),
            Cause::TooFewEntries => write!(
                f,
                "the limits are deeper; the descriptor needs more entries after entry {matched}"
            ),
            Cause::WithoutLimit => f.write_str("the rule has no limit"),
            Cause::Unlimited => f.write_str("the rule is `unlimited`"),
            Cause::Replaced => {
                f.write_str("the rule of another descriptor in the request replaces its limits")
            }
        }
    }
}

/// The beginning of `bytes` as text.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.chars();
    let mut shown: String = chars.by_ref().take(MAX_KEY_BYTES).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

impl Matcher {
    /// Why no limit of these rules applies to a descriptor; `None` if one does. Only the whole request shows whether
    /// rules replace one another.
    pub(crate) fn cause<'a>(
        &'a self,
        domain: &'a [u8],
        entries: &'a [Entry<'a>],
    ) -> Option<NoLimit<'a>> {
        self.trace(domain, entries).cause()
    }

    /// The children of a node in the order of their declaration; of very many, some.
    fn ordered(&self, node: NodeId) -> Vec<NodeId> {
        let children = self.nodes[node.0].below().children.values();
        let mut ids: Vec<NodeId> = children.copied().collect();
        ids.sort_unstable_by_key(|id| id.0);
        ids.truncate(MAX_NODES);
        ids
    }

    /// The first node from `node` on, downwards in the order of declaration, that `is_it` accepts, and how many levels
    /// it is below `node`.
    ///
    /// # Errors
    ///
    /// If there are too many nodes to look at.
    fn first(
        &self,
        node: NodeId,
        is_it: impl Fn(&RuleNode) -> bool,
    ) -> Result<Option<(usize, NodeId)>, TooManyNodes> {
        let (mut nodes, mut looked_at) = (vec![(0, node)], 0);
        while let Some((depth, id)) = nodes.pop() {
            let node = &self.nodes[id.0];
            if is_it(node) {
                return Ok(Some((depth, id)));
            }
            looked_at += node.below().children.len();
            if looked_at > MAX_NODES {
                return Err(TooManyNodes);
            }
            let children = self.ordered(id).into_iter().rev();
            nodes.extend(children.map(|child| (depth + 1, child)));
        }
        Ok(None)
    }

    /// The rule of `node`, or the first one below it in the order of declaration.
    fn first_rule(&self, node: NodeId) -> Option<&Rule> {
        let found = self.first(node, |node| node.rule.is_some());
        self.rule(found.ok()??.1)
    }
}

/// More nodes than [`MAX_NODES`].
#[derive(Debug)]
struct TooManyNodes;

/// The change that leads to a limit, as a sentence without a full stop, and the rule that it is about.
pub(crate) type Suggestion<'a> = (String, Option<&'a Rule>);

impl<'a> Trace<'a> {
    /// Why no limit applies; `None` if one does.
    pub(crate) fn cause(&self) -> Option<NoLimit<'a>> {
        let matched = self.nodes.len().saturating_sub(1);
        let has_children = |id| !self.node(id).below().children.is_empty();
        let cause = match (self.nodes.first(), self.nodes.last()) {
            (Some(&root), Some(&deepest)) if has_children(root) => {
                match (self.entries.get(matched), self.matcher.rule(deepest)) {
                    (Some(entry), _) if has_children(deepest) => {
                        self.unknown_entry(deepest, entry.key)
                    }
                    (Some(_), _) => Cause::TooManyEntries,
                    (None, Some(rule)) if rule.is_unlimited() => Cause::Unlimited,
                    (None, Some(_)) => return None,
                    (None, None) => match self.matcher.first(deepest, |node| node.rule.is_some()) {
                        Ok(None) => Cause::WithoutLimit,
                        Ok(Some(_)) | Err(TooManyNodes) => Cause::TooFewEntries,
                    },
                }
            }
            (Some(_), _) => Cause::EmptyDomain,
            (None, _) => Cause::UnknownDomain,
        };
        Some(NoLimit { cause, matched })
    }

    /// Why the entry with this key leads to no child of `level`.
    fn unknown_entry(&self, level: NodeId, key: &'a [u8]) -> Cause<'a> {
        let children = self.matcher.ordered(level);
        let keys = || children.iter().map(|&child| &*self.node(child).key);
        let is_whole = children.len() == self.node(level).below().children.len();
        if !is_whole || keys().any(|known| known == key) {
            return Cause::UnknownValue { key };
        }
        Cause::UnknownKey {
            key,
            near: nearest(key, keys()),
        }
    }

    /// Advice on the descriptor, which has no limit because of `no_limit`; `None` if there is nothing near.
    pub(crate) fn suggestion(&self, no_limit: &NoLimit<'_>) -> Option<Suggestion<'a>> {
        let (matcher, matched) = (self.matcher, no_limit.matched);
        let Some(&level) = self.nodes.last() else {
            let names = matcher.domain_names.iter().map(|name| &**name);
            let near = shown(nearest(self.domain, names.take(MAX_NODES))?);
            return Some((format!("write `{near}` as the domain"), None));
        };
        // A rule that says `unlimited` is meant to win.
        let hidden_way = || (1..self.nodes.len()).find_map(|entry| self.hidden_way(entry));
        if no_limit.cause != Cause::Unlimited
            && let Some(suggestion) = hidden_way()
        {
            return Some(suggestion);
        }
        match no_limit.cause {
            Cause::UnknownKey { key, near } => self.other_key(level, key, near),
            Cause::UnknownValue { key } => {
                self.other_value(level, key, self.entries[matched].value)
            }
            Cause::TooManyEntries => {
                let which = match matched {
                    1 => "entry 1".to_owned(),
                    _ => format!("entries 1 to {matched}"),
                };
                let text =
                    format!("a descriptor of {which} alone would have the limits of this rule");
                Some((text, Some(matcher.rule(level)?)))
            }
            Cause::TooFewEntries => {
                let mut children = matcher.ordered(level).into_iter();
                let (key, rule) = children
                    .find_map(|id| Some((shown(&self.node(id).key), matcher.first_rule(id)?)))?;
                let next = matched + 1;
                let text = format!("add an entry with the key `{key}` as entry {next}");
                Some((text, Some(rule)))
            }
            Cause::WithoutLimit => Some(("add a `rate_limit` to this level".to_owned(), None)),
            Cause::Unlimited => {
                let text = "give the rule a limit instead of `unlimited`".to_owned();
                Some((text, None))
            }
            Cause::UnknownDomain | Cause::EmptyDomain | Cause::Replaced => None,
        }
    }

    /// Advice on a rule that the descriptor would reach if another node did not get the entry of this number.
    fn hidden_way(&self, entry: usize) -> Option<Suggestion<'a>> {
        let mut others = self.others(entry - 1);
        others.find_map(|(why, id)| {
            let Dismissal::Hidden { .. } = why else {
                return None;
            };
            let rule = self.reached(id, entry - 1)?;
            let [node, chosen] = [id, self.nodes[entry]].map(|id| name(self.node(id)));
            let advice = "matches first; repeat the levels there";
            let text = format!(
                "entry {entry} would lead to this rule by `{node}`, but `{chosen}` {advice}"
            );
            Some((text, Some(rule)))
        })
    }

    /// Advice on a `key` that `level` does not have: the similar one, or the level that has it.
    fn other_key(&self, level: NodeId, key: &[u8], near: Option<&[u8]>) -> Option<Suggestion<'a>> {
        let (text, node) = if let Some(near) = near {
            let mut children = self.matcher.ordered(level).into_iter();
            let node = children.find(|&child| *self.node(child).key == *near)?;
            (format!("write `{}` as the key", shown(near)), node)
        } else {
            let found = self.matcher.first(self.nodes[0], |node| *node.key == *key);
            let (depth, node) = found.ok()??;
            let text = format!(
                "`{}` is the key of entry {depth} in this rule; the order and the number of entries count",
                shown(key),
            );
            (text, node)
        };
        Some((text, self.matcher.first_rule(node)))
    }

    /// Advice on a `value` that no rule of `level` for `key` has.
    fn other_value(&self, level: NodeId, key: &[u8], value: &[u8]) -> Option<Suggestion<'a>> {
        let mut children = self.matcher.ordered(level);
        children.retain(|&child| *self.node(child).key == *key);
        let values = children.iter().map(|&child| &*self.node(child).value);
        let near = nearest(value, values);
        let mut children = children.into_iter();
        let node =
            children.find(|&child| near.is_none_or(|near| *self.node(child).value == *near))?;
        let mut text = "a rule without `value` is for all other values".to_owned();
        if let Some(near) = near {
            text = format!("write `{}` as the value; {text}", shown(near));
        }
        Some((text, self.matcher.first_rule(node)))
    }
}

/// `key` or `key=value` of a node.
fn name(node: &RuleNode) -> String {
    match &*node.value {
        [] => shown(&node.key),
        value => format!("{}={}", shown(&node.key), shown(value)),
    }
}

/// The key that `key` seems to mean: a few letters away, relative to its length.
fn nearest<'m>(key: &[u8], known: impl Iterator<Item = &'m [u8]>) -> Option<&'m [u8]> {
    if key.len() > MAX_KEY_BYTES {
        return None;
    }
    let farthest = (key.len() / 3).clamp(1, 3);
    let mut candidates: Vec<_> = known
        .filter(|known| known.len().abs_diff(key.len()) <= farthest)
        .collect();
    candidates.sort_unstable();
    candidates.dedup();
    candidates.truncate(MAX_COMPARED);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_lowercase();
    let written = text(key);
    let distances = candidates
        .into_iter()
        .map(|known| (strsim::osa_distance(&written, &text(known)), known));
    let near = distances.min()?;
    (near.0 <= farthest).then_some(near.1)
}

#[cfg(test)]
mod tests;
