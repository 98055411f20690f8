//! Which server owns a key: its slot in a Redis Cluster, as the specification computes it, and the map of slots.

use std::sync::Arc;

use crate::{net::endpoint::Endpoint, store::redis::node::Node};

/// The servers that count, and the slots that each owns. Never changed; a new map replaces it.
#[derive(Debug, Default)]
pub(crate) struct SlotMap {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// For a cluster: the owner of each slot, as an index of `nodes`; [`NO_OWNER`] for a slot without an
    /// owner.
    owners: Option<Box<[u16]>>,
}

const NO_OWNER: u16 = u16::MAX;

/// Consecutive slots, and their master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) master: Endpoint,
}

impl SlotMap {
    /// One server that owns all keys.
    pub(crate) fn single(node: Arc<Node>) -> Self {
        Self {
            nodes: vec![node],
            owners: None,
        }
    }

    /// The map of a cluster. `node` makes or finds the node at an endpoint.
    pub(crate) fn cluster(
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
    pub(crate) fn is_cluster(&self) -> bool {
        self.owners.is_some()
    }

    /// The slot of a key of a cluster, and its owner's index in `nodes`.
    pub(crate) fn owner(&self, key: &[u8]) -> (u16, Option<usize>) {
        let Some(owners) = &self.owners else {
            return (0, (!self.nodes.is_empty()).then_some(0));
        };
        let slot = slot(key);
        (slot, owner(owners[usize::from(slot)]))
    }

    /// The first slot of each run of slots with one owner, and that owner.
    pub(crate) fn runs(&self) -> Vec<(usize, Option<String>)> {
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
    pub(crate) fn is_complete(&self) -> bool {
        let is_covered = |owners: &[u16]| !owners.contains(&NO_OWNER);
        !self.nodes.is_empty() && self.owners.as_deref().is_none_or(is_covered)
    }

    /// Whether both maps give every key the same owner.
    pub(crate) fn equals(&self, other: &Self) -> bool {
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

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of `key`: CRC16 of its hash tag, or of the whole key if it has none.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// The bytes between the first `{` and the first `}` after it, or the whole key if there are none. It
/// scans as Redis does: the first `}` may be one of a value or of the prefix, and not the end of the
/// descriptor's part.
fn hash_tag(key: &[u8]) -> &[u8] {
    let position = |bytes: &[u8], wanted: u8| bytes.iter().position(|byte| *byte == wanted);
    let Some(start) = position(key, b'{') else {
        return key;
    };
    let inside = &key[start + 1..];
    match position(inside, b'}') {
        None | Some(0) => key,
        Some(end) => &inside[..end],
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, starting from 0, nothing reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let at = (crc >> 8) ^ u16::from(*byte);
        (crc << 8) ^ TABLE[usize::from(at)]
    })
}

static TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
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

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn only_the_hash_tag_counts_if_there_is_one() {
        assert_eq!(hash_tag(b"{user1000}.following"), b"user1000");
        assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hash_tag(b"foo{bar}{zap}"), b"bar");
        assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
    }

    #[test]
    fn slots_are_those_that_a_cluster_tells() {
        // `CLUSTER KEYSLOT` of a Redis 7.
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"somekey"), 11_058);
        assert_eq!(slot(b"foo{hash_tag}"), 2_515);
    }
}
