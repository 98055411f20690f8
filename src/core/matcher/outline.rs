//! All nodes of a domain, for people who read the rules.

use std::cmp::Reverse;

use super::{Matcher, NodeId, RuleOrigin};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_has_nodes_as_they_are_declared() {
        let mut matcher = Matcher::default();
        let other = matcher.insert_domain(b"other");
        matcher.insert(other, b"x", b"").unwrap();
        let root = matcher.insert_domain(b"d");
        let z = matcher.insert(root, b"z", b"").unwrap();
        matcher.insert(z, b"c", b"2").unwrap();
        let a = matcher.insert(root, b"a", b"1").unwrap();
        matcher.insert(a, b"b", b"*").unwrap();
        matcher.insert(z, b"c", b"1").unwrap();
        let outline = matcher.outline(b"d").into_iter().map(|found| {
            let (key, value) = matcher.key_and_value(found.node);
            let text = [key, b"=", value].concat();
            (found.depth, String::from_utf8(text).unwrap())
        });
        let outline: Vec<_> = outline.collect();
        let expected = [(1, "z="), (2, "c=2"), (2, "c=1"), (1, "a=1"), (2, "b=*")];
        assert_eq!(
            outline,
            expected.map(|(depth, text)| (depth, text.to_owned()))
        );
        assert_eq!(matcher.outline(b"unknown"), []);
    }
}
