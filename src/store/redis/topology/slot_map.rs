//! Which server owns a key: its slot in a Redis Cluster, as the specification computes it, and the map of slots.

use std::{collections::HashSet, iter::once, sync::Arc};

use bb8_redis::redis::{self, Value};

use super::address::reported;
use crate::{
    core::counter::Batch,
    net::endpoint::Endpoint,
    store::{
        contract::StoreError,
        redis::{failure::NodeFailure, node::Node},
        split::Split,
    },
};

/// The number of slots of a cluster.
const SLOTS: usize = 16_384;

/// The most masters of a cluster, as the documents of Redis advise. Each is probed and takes memory.
const MAX_MASTERS: usize = 1000;

/// The most nodes, replicas included, that are remembered for asking. Far above what clusters have.
const MAX_KNOWN: usize = 4096;

/// The servers that count, and the slots that each owns. Never changed; a new map replaces it.
#[derive(Debug, Default)]
pub(crate) struct SlotMap {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// The owner of each slot of a cluster, as an index of `nodes`; empty without a cluster.
    owners: Vec<Option<u16>>,
    /// Whether every key has an owner.
    pub(crate) is_complete: bool,
}

impl SlotMap {
    /// One server that owns all keys.
    pub(crate) fn single(node: Arc<Node>) -> Self {
        Self {
            nodes: vec![node],
            owners: Vec::new(),
            is_complete: true,
        }
    }

    /// The map in a reply of `asked` to CLUSTER SLOTS, and the endpoints of all masters and replicas there. `node`
    /// makes or finds the node at an endpoint.
    ///
    /// The reply is `[first, last, [host, port, …], …]` for each range, the master first. Entries of another form are
    /// left out.
    ///
    /// # Errors
    ///
    /// If there are more ranges or masters than a cluster can have.
    pub(crate) fn read(
        reply: &Value,
        asked: &Endpoint,
        node: impl Fn(&Endpoint) -> Arc<Node>,
    ) -> Result<(Self, HashSet<Endpoint>), NodeFailure> {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut owners = vec![None; SLOTS];
        let mut known = HashSet::new();
        let ranges = items(reply);
        check_number(ranges.len(), SLOTS, "ranges")?;
        for range in ranges {
            let [first, last, servers @ ..] = items(range) else {
                continue;
            };
            let mut servers = servers.iter().filter_map(|one| endpoint(one, asked));
            let (Some(first), Some(last), Some(master)) =
                (number(first), number(last), servers.next())
            else {
                continue;
            };
            let at = nodes.iter().position(|node| node.endpoint == master);
            let at = at.unwrap_or_else(|| {
                nodes.push(node(&master));
                nodes.len() - 1
            });
            check_number(nodes.len(), MAX_MASTERS, "masters")?;
            let slots = usize::from(first)..=usize::from(last).min(SLOTS - 1);
            if let Some(slots) = owners.get_mut(slots) {
                slots.fill(u16::try_from(at).ok());
            }
            let room = MAX_KNOWN.saturating_sub(known.len());
            known.extend(once(master).chain(servers).take(room));
        }
        let map = Self {
            is_complete: !owners.contains(&None),
            nodes,
            owners,
        };
        Ok((map, known))
    }

    /// Whether keys belong to different servers, or would if there were more.
    pub(crate) fn is_cluster(&self) -> bool {
        !self.owners.is_empty()
    }

    /// Splits a batch by the owners of its keys, each of which begins with `prefix`. Returns the part of each
    /// increment, and the node of each part as an index of `nodes`.
    ///
    /// Increments that are judged together get a part for each slot. While one `moves`, they get one for each key:
    /// Redis allows no larger step then, because some keys of the slot may be on one server and some on another.
    ///
    /// # Errors
    ///
    /// If a slot has no owner: nothing is counted then.
    pub(crate) fn parts(
        &self,
        prefix: &[u8],
        batch: &Batch,
        moves: bool,
    ) -> Result<(Split, Vec<usize>), StoreError> {
        let is_step = batch.iter().any(|increment| !increment.needs_no_look());
        let mut parts = Vec::new();
        let mut split = Vec::with_capacity(batch.len());
        for index in 0..batch.len() {
            let key = batch.key(index);
            let slot = slot(&[prefix, key].concat());
            let node = self.owners.get(slot).copied().flatten();
            let node = node.ok_or(StoreError::Unsent)?;
            let part = (
                node,
                is_step.then_some(slot),
                (is_step && moves).then_some(key),
            );
            let known = parts.iter().position(|known| *known == part);
            split.push(known.unwrap_or_else(|| {
                parts.push(part);
                parts.len() - 1
            }));
        }
        let nodes = parts.iter().map(|(node, ..)| usize::from(*node)).collect();
        Ok((Split::new(split), nodes))
    }

    pub(crate) fn has(&self, node: &Arc<Node>) -> bool {
        self.nodes.iter().any(|known| Arc::ptr_eq(known, node))
    }

    /// Whether both maps give every key the same owner.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        let nodes = |map: &Self| map.nodes.iter().map(Arc::as_ptr).collect::<Vec<_>>();
        self.owners == other.owners && nodes(self) == nodes(other)
    }
}

/// The owner of each slot by a reply to CLUSTER SLOTS, for fuzzing.
#[doc(hidden)]
pub fn slot_owners(reply: &[u8]) -> Option<Vec<Option<String>>> {
    let asked = Endpoint::Tcp {
        host: "asked".to_owned(),
        port: 1,
    };
    let node = |endpoint: &Endpoint| Arc::new(Node::new(endpoint.clone(), Arc::default()));
    let (map, _) = SlotMap::read(&redis::parse_redis_value(reply).ok()?, &asked, node).ok()?;
    let name = |owner: u16| map.nodes[usize::from(owner)].endpoint.to_string();
    Some(map.owners.iter().map(|owner| owner.map(name)).collect())
}

fn check_number(number: usize, max: usize, of_what: &str) -> Result<(), NodeFailure> {
    if number <= max {
        return Ok(());
    }
    let words = format!("CLUSTER SLOTS names more than {max} {of_what}");
    Err(NodeFailure::Refuses(words))
}

fn items(value: &Value) -> &[Value] {
    value.as_sequence().unwrap_or_default()
}

/// The library would read -1 as 65,535.
fn number(value: &Value) -> Option<u16> {
    let number: i64 = redis::from_redis_value(value.clone()).ok()?;
    u16::try_from(number).ok()
}

fn endpoint(node: &Value, asked: &Endpoint) -> Option<Endpoint> {
    let [host, port, ..] = items(node) else {
        return None;
    };
    let host: Option<String> = redis::from_redis_value(host.clone()).ok()?;
    Some(reported(&host.unwrap_or_default(), number(port)?, asked))
}

/// The slot of `key`: CRC16 of its hash tag, or of the whole key if it has none.
fn slot(key: &[u8]) -> usize {
    usize::from(crc16(hash_tag(key))) % SLOTS
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

/// CRC-16/XMODEM: polynomial 0x1021, starting from 0, nothing reflected. The eight steps of a byte are three shifts,
/// because that polynomial has three terms below its highest.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let top = (crc >> 8) ^ u16::from(*byte);
        let top = top ^ (top >> 4);
        (crc << 8) ^ (top << 12) ^ (top << 5) ^ top
    })
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::parse_redis_value;

    use super::*;
    use crate::core::{
        counter::{Charge, IncrementSpec},
        limit::Limit,
        request::Hits,
        window::{Timestamp, Unit},
    };

    fn endpoint(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp {
            host: host.into(),
            port,
        }
    }

    fn read(reply: &str) -> Result<(SlotMap, HashSet<Endpoint>), NodeFailure> {
        let reply = parse_redis_value(reply.as_bytes()).unwrap();
        SlotMap::read(&reply, &endpoint("me", 9), |endpoint| {
            Arc::new(Node::new(endpoint.clone(), Arc::default()))
        })
    }

    /// A reply of ranges, each with its first and last slot and the port of its master.
    fn reply(ranges: &[(u16, u16, u16)]) -> String {
        let mut reply = format!("*{}\r\n", ranges.len());
        for (first, last, port) in ranges {
            reply += &format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$1\r\nh\r\n:{port}\r\n");
        }
        reply
    }

    fn map(ranges: &[(u16, u16, u16)]) -> SlotMap {
        read(&reply(ranges)).unwrap().0
    }

    fn owner(map: &SlotMap, key: &[u8]) -> Option<usize> {
        map.owners[slot(key)].map(usize::from)
    }

    #[test]
    fn slots_are_read_with_their_masters_and_replicas() {
        let reply = "*4\r\n\
            *3\r\n:0\r\n:-1\r\n*2\r\n$2\r\nh5\r\n:5\r\n\
            *4\r\n:0\r\n:99\r\n*3\r\n$2\r\nh1\r\n:1\r\n$1\r\nx\r\n*3\r\n$2\r\nh2\r\n:2\r\n$1\r\ny\r\n\
            *3\r\n:100\r\n:200\r\n*3\r\n$-1\r\n:3\r\n$1\r\nz\r\n\
            *1\r\n:5\r\n";
        let (map, known) = read(reply).unwrap();
        let nodes: Vec<_> = map.nodes.iter().map(|node| &node.endpoint).collect();
        assert_eq!(nodes, [&endpoint("h1", 1), &endpoint("me", 3)]);
        let of_first = |owner: &Option<u16>| *owner == Some(0);
        assert!(map.owners[..=99].iter().all(of_first));
        assert!(map.owners[100..=200].iter().all(|owner| *owner == Some(1)));
        assert!(map.owners[201..].iter().all(Option::is_none));
        let expected = [endpoint("h1", 1), endpoint("h2", 2), endpoint("me", 3)];
        assert_eq!(known, expected.into());
    }

    #[test]
    fn no_cluster_has_more_masters_or_ranges_than_a_bound() {
        let ranges = |count: u16, masters: u16| -> Vec<_> {
            let range = |number| (number, number, number % masters);
            (0..count).map(range).collect()
        };
        for (count, masters, words) in [
            (16_384, 1_000, None),
            (
                16_385,
                1,
                Some("CLUSTER SLOTS names more than 16384 ranges"),
            ),
            (
                1_001,
                1_001,
                Some("CLUSTER SLOTS names more than 1000 masters"),
            ),
        ] {
            let refused = read(&reply(&ranges(count, masters))).err();
            let expected = words.map(|words| NodeFailure::Refuses(words.to_owned()));
            assert_eq!(refused, expected);
        }
    }

    #[test]
    fn every_key_has_the_owner_of_its_slot() {
        let map_of_two = map(&[(0, 5000, 1), (5001, 12_181, 2), (12_182, 12_182, 1)]);
        assert_eq!(map_of_two.nodes.len(), 2);
        assert_eq!(owner(&map_of_two, b"foo"), Some(0));
        assert_eq!(owner(&map_of_two, b"somekey"), Some(1));
        assert_eq!(owner(&map_of_two, b"foo{hash_tag}"), Some(0));
        let half = map(&[(0, 5000, 1)]);
        assert_eq!(owner(&half, b"foo"), None);
        assert!(!half.is_complete);
        assert!(map(&[(0, 16_383, 1)]).is_complete);
    }

    fn batch(values: &[&str], charge: Charge) -> Batch {
        let mut batch = Batch::default();
        for value in values {
            let limit = Limit::fixed(1, Unit::Year);
            let counting = IncrementSpec::charged(Hits::ONE, charge);
            batch.push_value(value.as_bytes(), &limit, Timestamp::from_secs(0), counting);
        }
        batch
    }

    #[test]
    fn a_request_is_one_part_for_each_node() {
        let map = map(&[(0, 8191, 1), (8192, 16_383, 2)]);
        let values: Vec<_> = (0..20).map(|number| number.to_string()).collect();
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        let whole = batch(&values, Charge::Always);
        let (split, nodes) = map.parts(b"", &whole, false).unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!(split.stores().len(), 20);
        for (increment, part) in whole.iter().zip(split.stores()) {
            assert_eq!(owner(&map, increment.key), Some(nodes[*part]));
        }
        // A prefix with a hash tag of its own puts everything into one slot.
        let (_, nodes) = map.parts(b"{all}", &whole, false).unwrap();
        assert_eq!(nodes.len(), 1);
    }

    #[test]
    fn what_is_one_step_is_taken_apart_by_slot() {
        let map = map(&[(0, 16_383, 1)]);
        let within = batch(&["a", "b", "a"], Charge::Within);
        let (_, nodes) = map.parts(b"", &within, false).unwrap();
        assert_eq!(nodes.len(), 1);
        let admitted = batch(&["a", "b", "a"], Charge::Admitted);
        let (split, nodes) = map.parts(b"", &admitted, false).unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!(split.stores(), [0, 1, 0]);
    }

    #[test]
    fn what_is_one_step_is_taken_apart_by_key_while_its_slot_moves() {
        let map = map(&[(0, 16_383, 1)]);
        let admitted = batch(&["a", "b", "a"], Charge::Admitted);
        for (moves, expected) in [(false, [0, 0, 0]), (true, [0, 1, 0])] {
            let (split, _) = map.parts(b"{all}", &admitted, moves).unwrap();
            assert_eq!(split.stores(), expected);
        }
    }

    #[test]
    fn a_slot_that_has_no_owner_stops_the_request_before_it_counts() {
        let refused = map(&[]).parts(b"", &batch(&["a"], Charge::Always), false);
        assert_eq!(refused.unwrap_err(), StoreError::Unsent);
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
