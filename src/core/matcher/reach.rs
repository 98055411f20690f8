//! Nodes that no entry can reach, because others on the same level match first.

use super::{Matcher, NodeId};
use crate::core::{counter::Joined, limit::Rule, request::Entry};

/// A text that a pattern matches only if it matches every text in its place: no pattern has a literal `*`.
const ANY: &[u8] = b"*";

impl Matcher {
    /// The node on the level below `parent` that gets every entry which its child `own` matches, if it is another one.
    /// Left out of account are clients that send the text of a wildcard itself, and joined matching of (`a`, `b`) as
    /// the bare key `a_b`.
    pub fn hidden_by(&self, parent: NodeId, own: NodeId) -> Option<NodeId> {
        let node = &self.nodes[parent.0];
        if node.below().wildcards.is_empty() {
            return None;
        }
        let (key, value) = self.key_and_value(own);
        let has_star = key.contains(&b'*') || value.contains(&b'*');
        if !has_star && !value.is_empty() {
            return None;
        }
        let mut joined = Joined::new();
        self.join_node(own, &mut joined);
        let value = if value.is_empty() { ANY } else { value };
        let entry = Entry { key, value };
        let first = if has_star {
            node.below().wildcards.first(&entry, &joined)?
        } else {
            self.child_by_value(node, &entry, &mut joined)?.0
        };
        (first != own).then_some(first)
    }

    /// The child of `parent` for this key and value; an empty value stands for every value.
    pub fn child(&self, parent: NodeId, key: &[u8], value: &[u8]) -> Option<NodeId> {
        let mut joined = Joined::new();
        self.join(key, (!value.is_empty()).then_some(value), &mut joined);
        self.nodes[parent.0]
            .below()
            .children
            .get(&joined[..])
            .copied()
    }

    /// The root of a domain.
    pub fn root(&self, domain: &[u8]) -> Option<NodeId> {
        self.domains.get(domain).map(|root| root.node)
    }

    /// The rule of a node.
    pub fn rule(&self, node: NodeId) -> Option<&Rule> {
        Some(&self.rules[self.nodes[node.0].rule?.0])
    }

    /// The key and the value of a node; the value is empty if it stands for every value.
    pub fn key_and_value(&self, node: NodeId) -> (&[u8], &[u8]) {
        let node = &self.nodes[node.0];
        (&node.key, &node.value)
    }

    /// Writes the text that identifies a node.
    fn join_node(&self, node: NodeId, joined: &mut Joined) {
        let (key, value) = self.key_and_value(node);
        self.join(key, (!value.is_empty()).then_some(value), joined);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text of the node that hides the last of these siblings; the first `=` of a text separates key and value.
    #[track_caller]
    fn check(mut matcher: Matcher, siblings: &[&str], expected: Option<&str>) {
        let root = matcher.insert_domain(b"d");
        let part = |text: &str| {
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            (key.to_owned(), value.to_owned())
        };
        for text in siblings {
            let (key, value) = part(text);
            matcher
                .insert(root, key.as_bytes(), value.as_bytes())
                .unwrap();
        }
        let (key, value) = part(siblings[siblings.len() - 1]);
        let own = matcher.child(root, key.as_bytes(), value.as_bytes());
        let found = matcher.hidden_by(root, own.unwrap());
        let found = found.map(|node| {
            let (key, value) = matcher.key_and_value(node);
            let text = String::from_utf8([key, b"=", value].concat()).unwrap();
            text.strip_suffix('=').unwrap_or(&text).to_owned()
        });
        assert_eq!(found.as_deref(), expected, "{siblings:?}");
    }

    #[test]
    fn a_wildcard_hides_those_after_it_that_match_no_more() {
        for (siblings, expected) in [
            (&["k=a*", "k=ab*"][..], Some("k=a*")),
            (&["k=*b", "k=ab"], None),
            (&["k=ab*", "k=a*"], None),
            (&["k=*", "k=a*"], Some("k=*")),
            (&["k=*a*", "k=ba*b"], Some("k=*a*")),
            (&["k=a*", "k=*a*"], None),
            (&["k=a*", "j=ab*"], None),
            (
                &["x=*", "k=a*", "k=b*", "k=c*", "k=d*", "k=e*", "k=dd*"],
                Some("k=d*"),
            ),
        ] {
            check(Matcher::default(), siblings, expected);
            check(Matcher::strict(), siblings, expected);
        }
    }

    #[test]
    fn only_a_wildcard_for_every_value_hides_a_bare_key() {
        for (siblings, expected) in [
            (&["k=*", "k"][..], Some("k=*")),
            (&["k=**", "k"], Some("k=**")),
            (&["k=a*", "k"], None),
            (&["j=*", "k"], None),
            (&["*", "k"], Some("*")),
            (&["k=v", "k"], None),
        ] {
            check(Matcher::default(), siblings, expected);
            check(Matcher::strict(), siblings, expected);
        }
    }

    #[test]
    fn keys_with_wildcards_hide_and_are_hidden() {
        check(Matcher::strict(), &["x-*", "x-user*"], Some("x-*"));
        check(Matcher::strict(), &["x-*", "x-user*=v"], Some("x-*"));
        check(Matcher::strict(), &["x-*=v", "x-user*"], None);
        check(Matcher::strict(), &["x-*=*", "x-user*"], Some("x-*=*"));
        check(Matcher::default(), &["x-*", "x-user*=v"], Some("x-*"));
        check(Matcher::default(), &["x-*_v", "x-user*=v"], Some("x-*_v"));
    }

    /// The child that an entry leads to.
    fn found(matcher: &Matcher, root: NodeId, key: &str, value: &str) -> Option<NodeId> {
        let entry = Entry {
            key: key.as_bytes(),
            value: value.as_bytes(),
        };
        matcher.way(root, &[entry]).get(1).copied()
    }

    proptest! {
        #[test]
        fn no_entry_reaches_a_hidden_node(
            siblings in prop::collection::vec(("[ab*]{1,2}", "[ab*]{0,3}"), 1..9),
            entries in prop::collection::vec(("[ab]{1,2}", "[ab]{0,4}"), 40),
            is_strict: bool,
        ) {
            let mut matcher = if is_strict { Matcher::strict() } else { Matcher::default() };
            let root = matcher.insert_domain(b"d");
            let inserted = siblings.iter().filter_map(|(key, value)| {
                matcher.insert(root, key.as_bytes(), value.as_bytes())
            });
            let inserted: Vec<_> = inserted.collect();
            for own in inserted {
                if matcher.hidden_by(root, own).is_some() {
                    for (key, value) in &entries {
                        prop_assert_ne!(found(&matcher, root, key, value), Some(own));
                    }
                }
            }
        }
    }
}
