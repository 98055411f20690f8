//! The slot map: which server owns a key.

use std::sync::Arc;

use super::{
    node::Node,
    slot::{SLOTS, slot},
};
use crate::net::endpoint::Endpoint;

/// The servers that count, and the slots that each owns. Never changed; a new map replaces it.
#[derive(Debug, Default)]
pub(super) struct SlotMap {
    pub(super) nodes: Vec<Arc<Node>>,
    /// For a cluster: the owner of each slot, as an index of `nodes`; [`NO_OWNER`] for a slot without an
    /// owner.
    owners: Option<Box<[u16]>>,
}

const NO_OWNER: u16 = u16::MAX;

/// Consecutive slots, and their master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) master: Endpoint,
}

impl SlotMap {
    /// One server that owns all keys.
    pub(super) fn single(node: Arc<Node>) -> Self {
        Self {
            nodes: vec![node],
            owners: None,
        }
    }

    /// The map of a cluster. `node` makes or finds the node at an endpoint.
    pub(super) fn cluster(
        ranges: &[SlotRange],
        mut node: impl FnMut(&Endpoint) -> Arc<Node>,
    ) -> Self {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut owners = vec![NO_OWNER; usize::from(SLOTS)].into_boxed_slice();
        for range in ranges {
            let known = nodes.iter().position(|node| node.endpoint == range.master);
            let at = known.unwrap_or_else(|| {
                nodes.push(node(&range.master));
                nodes.len() - 1
            });
            // There cannot be more masters than slots.
            let at = u16::try_from(at).unwrap_or(NO_OWNER);
            let slots = usize::from(range.first)..=usize::from(range.last.min(SLOTS - 1));
            if let Some(slots) = owners.get_mut(slots) {
                slots.fill(at);
            }
        }
        Self {
            nodes,
            owners: Some(owners),
        }
    }

    /// Whether keys belong to different servers, or would if there were more.
    pub(super) fn is_cluster(&self) -> bool {
        self.owners.is_some()
    }

    /// The slot of a key of a cluster, and its owner's index in `nodes`.
    pub(super) fn owner(&self, key: &[u8]) -> (u16, Option<usize>) {
        let Some(owners) = &self.owners else {
            return (0, (!self.nodes.is_empty()).then_some(0));
        };
        let slot = slot(key);
        (slot, owner(owners[usize::from(slot)]))
    }

    /// The first slot of each run of slots with one owner, and that owner.
    pub(super) fn runs(&self) -> Vec<(usize, Option<String>)> {
        let owners = self.owners.as_deref().unwrap_or_default();
        let runs = owners.chunk_by(|one, next| one == next);
        let mut first = 0;
        runs.map(|run| {
            let owner = owner(run[0]).map(|owner| self.nodes[owner].endpoint.to_string());
            first += run.len();
            (first - run.len(), owner)
        })
        .collect()
    }

    /// Whether every key has an owner.
    pub(super) fn is_complete(&self) -> bool {
        let is_covered = |owners: &[u16]| !owners.contains(&NO_OWNER);
        !self.nodes.is_empty() && self.owners.as_deref().is_none_or(is_covered)
    }

    /// Whether both maps give every key the same owner.
    pub(super) fn equals(&self, other: &Self) -> bool {
        let is_same = |(a, b): (&Arc<Node>, &Arc<Node>)| Arc::ptr_eq(a, b);
        self.owners == other.owners
            && self.nodes.len() == other.nodes.len()
            && self.nodes.iter().zip(&other.nodes).all(is_same)
    }
}

/// The index of an owner; `None` if there is none.
fn owner(owner: u16) -> Option<usize> {
    (owner != NO_OWNER).then_some(usize::from(owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(port: u16) -> Endpoint {
        Endpoint::Tcp {
            host: "h".into(),
            port,
        }
    }

    fn range(first: u16, last: u16, port: u16) -> SlotRange {
        SlotRange {
            first,
            last,
            master: endpoint(port),
        }
    }

    fn new_node(endpoint: &Endpoint) -> Arc<Node> {
        Arc::new(Node::new(endpoint.clone(), Arc::default()))
    }

    #[test]
    fn every_key_has_the_owner_of_its_slot() {
        let ranges = [
            range(0, 5000, 1),
            range(5001, 12_181, 2),
            range(12_182, 12_182, 1),
        ];
        let map = SlotMap::cluster(&ranges, new_node);
        assert_eq!(map.nodes.len(), 2);
        assert_eq!(map.owner(b"foo"), (12_182, Some(0)));
        assert_eq!(map.owner(b"somekey"), (11_058, Some(1)));
        assert_eq!(map.owner(b"foo{hash_tag}"), (2_515, Some(0)));
        let half = SlotMap::cluster(&[range(0, 5000, 1)], new_node);
        assert_eq!(half.owner(b"foo"), (12_182, None));
    }

    #[test]
    fn one_server_owns_everything() {
        let map = SlotMap::single(new_node(&endpoint(1)));
        assert_eq!(map.owner(b"foo"), (0, Some(0)));
        assert_eq!(SlotMap::default().owner(b"foo"), (0, None));
    }
}
