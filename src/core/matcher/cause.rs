//! Why no limit applies to a descriptor: how far its entries matched, and where they stopped.
//!
//! This is for people who ask. It walks the rules a second time and compares texts, so no decision needs it.

use std::fmt;

use super::{Domain, Matcher, NodeId, RuleNode};
use crate::core::{counter::Joined, request::Entry};

/// Most nodes that one question looks at: whoever asks must not occupy a thread.
pub(super) const MAX_NODES: usize = 4096;

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
                "the rules end at entry {matched}; leave out the entries behind it, or add rules below"
            ),
            Cause::TooFewEntries if matched == 0 => f.write_str("the descriptor is empty"),
            Cause::TooFewEntries => write!(
                f,
                "the limits are deeper; the descriptor needs more entries behind entry {matched}"
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
pub(super) fn shown(bytes: &[u8]) -> String {
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
        domain: &[u8],
        entries: &'a [Entry<'a>],
    ) -> Option<NoLimit<'a>> {
        match self.domain(domain) {
            Some(domain) => domain.cause(entries),
            None => Some(NoLimit {
                cause: Cause::UnknownDomain,
                matched: 0,
            }),
        }
    }
}

impl<'m> Domain<'m> {
    fn cause<'a>(self, entries: &'a [Entry<'a>]) -> Option<NoLimit<'a>>
    where
        'm: 'a,
    {
        let root = &self.matcher.nodes[self.root.node.0];
        let (mut matched, mut deepest) = (0, root);
        let end = self.walk(entries, &mut Joined::new(), |_, _, level| {
            matched += 1;
            deepest = level.node;
        });
        let cause = match end {
            _ if root.below().children.is_empty() => Cause::EmptyDomain,
            None if deepest.below().children.is_empty() => Cause::TooManyEntries,
            None => self.unknown_entry(deepest, entries[matched].key),
            Some(_) => match deepest.rule {
                Some(id) if self.matcher.rules[id.0].is_unlimited() => Cause::Unlimited,
                Some(_) => return None,
                None if self.has_rule_below(deepest) => Cause::TooFewEntries,
                None => Cause::WithoutLimit,
            },
        };
        Some(NoLimit { cause, matched })
    }

    /// Why the entry with this key leads to no child of `node`.
    fn unknown_entry<'a>(self, node: &'m RuleNode, key: &'a [u8]) -> Cause<'a>
    where
        'm: 'a,
    {
        let keys = || self.children(node).take(MAX_NODES).map(|child| &*child.key);
        if node.below().children.len() > MAX_NODES || keys().any(|known| known == key) {
            return Cause::UnknownValue { key };
        }
        Cause::UnknownKey {
            key,
            near: nearest(key, keys()),
        }
    }

    fn has_rule_below(self, node: &'m RuleNode) -> bool {
        let mut looked_at = 0;
        let mut nodes = vec![node];
        while let Some(node) = nodes.pop() {
            for child in self.children(node) {
                looked_at += 1;
                if child.rule.is_some() || looked_at > MAX_NODES {
                    return true;
                }
                nodes.push(child);
            }
        }
        false
    }

    fn children(self, node: &'m RuleNode) -> impl Iterator<Item = &'m RuleNode> {
        let children = node.below().children.values();
        children.map(move |&NodeId(child)| &self.matcher.nodes[child])
    }
}

/// The key that `key` seems to mean: a few letters away, relative to its length.
pub(super) fn nearest<'m>(key: &[u8], known: impl Iterator<Item = &'m [u8]>) -> Option<&'m [u8]> {
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
