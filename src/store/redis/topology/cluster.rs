//! Asks the nodes of a cluster for the owners of its slots, and splits batches by owner.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bb8_redis::redis::{self, Value};

use super::{
    address::reported,
    slot_map::{SLOTS, SlotMap, SlotRange},
};
use crate::{
    core::counter::Batch,
    foundation::random,
    net::endpoint::Endpoint,
    store::{
        contract::StoreError,
        redis::{
            batch::packed::PackedCommands,
            connection::{Connection, ReplyBounds, first_reply},
            failure::NodeFailure,
            node::Node,
            pool::Connector,
            probe::{MARGIN, refuse_sentinel},
            wait::within,
        },
        split::Split,
    },
};

/// How long one node may take before the next is asked.
const PATIENCE: Duration = Duration::from_millis(250);

/// The most nodes, replicas included, that are remembered for asking. Far above what clusters have.
const MAX_KNOWN: usize = 4096;

/// The most masters of a cluster, as the documents of Redis advise. Each is probed and takes memory.
const MAX_MASTERS: usize = 1000;

/// The nodes of one cluster that can be asked for its slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    connector: Arc<Connector>,
    seeds: Vec<Endpoint>,
    /// Masters and replicas of the last answer.
    known: Vec<Endpoint>,
    connections: HashMap<Endpoint, Connection>,
    /// The index of the node to ask first.
    next: usize,
}

impl Cluster {
    pub(crate) fn new(connector: Arc<Connector>, seeds: Vec<Endpoint>) -> Self {
        Self {
            connector,
            seeds,
            known: Vec::new(),
            connections: HashMap::new(),
            // Where many processes start at once, each asks another node first.
            next: usize::from(random::id().to_le_bytes()[0]),
        }
    }

    /// The owners of the slots, as one node sees them. It asks another node each time, so that many processes do not
    /// all ask the same one.
    ///
    /// # Errors
    ///
    /// The failures of all nodes, if none answers.
    pub(crate) async fn ranges(&mut self) -> Result<Vec<SlotRange>, String> {
        self.next = self.next.wrapping_add(1);
        let mut asked: Vec<Endpoint> = Vec::new();
        for endpoint in self.known.iter().chain(&self.seeds) {
            if !asked.contains(endpoint) {
                asked.push(endpoint.clone());
            }
        }
        let mut failures = Vec::new();
        for turn in 0..asked.len() {
            let endpoint = &asked[(self.next + turn) % asked.len()];
            let asking = within(PATIENCE + MARGIN, self.ask(endpoint)).await;
            match asking.unwrap_or(Err(NodeFailure::Silent)) {
                Ok((ranges, known)) if !ranges.is_empty() => {
                    self.next = (self.next + turn) % asked.len();
                    self.known = known;
                    return Ok(ranges);
                }
                Ok(_) => failures.push(format!("{endpoint} knows of no slots")),
                Err(failure) => {
                    self.connections.remove(endpoint);
                    failures.push(format!("{endpoint} {failure}"));
                }
            }
        }
        Err(failures.join("; "))
    }

    async fn ask(
        &mut self,
        endpoint: &Endpoint,
    ) -> Result<(Vec<SlotRange>, Vec<Endpoint>), NodeFailure> {
        let mut connection = match self.connections.remove(endpoint) {
            Some(connection) => connection,
            None => {
                // One connection is enough: looks are rare while all is well.
                self.connections.clear();
                self.connector.connect_in(PATIENCE, endpoint).await?
            }
        };
        let replies = connection
            .ask_within(
                &PackedCommands::one(&[b"CLUSTER", b"SLOTS"]),
                ReplyBounds::LIST,
            )
            .await?;
        let Some(reply) = replies.first() else {
            return Ok((Vec::new(), Vec::new()));
        };
        refuse_sentinel(&mut connection, reply).await?;
        self.connections.insert(endpoint.clone(), connection);
        if let Some(failure) = NodeFailure::of_greeting(reply) {
            return Err(failure);
        }
        let (ranges, known) = slots(reply, endpoint);
        check_number(&ranges)?;
        Ok((ranges, known))
    }
}

/// Refuses more ranges and masters than a cluster can have.
fn check_number(ranges: &[SlotRange]) -> Result<(), NodeFailure> {
    let masters: HashSet<_> = ranges.iter().map(|range| &range.master).collect();
    let (max, of_what) = if ranges.len() > SLOTS.into() {
        (SLOTS.into(), "ranges")
    } else if masters.len() > MAX_MASTERS {
        (MAX_MASTERS, "masters")
    } else {
        return Ok(());
    };
    let words = format!("CLUSTER SLOTS names more than {max} {of_what}");
    Err(NodeFailure::Refuses(words))
}

/// Reads a reply to CLUSTER SLOTS: `[first, last, [host, port, …], …]` for each range, the master first.
/// Entries of another form are left out.
fn slots(reply: &Value, asked: &Endpoint) -> (Vec<SlotRange>, Vec<Endpoint>) {
    let (mut ranges, mut known, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    let Value::Array(entries) = reply else {
        return (ranges, known);
    };
    for entry in entries {
        let Value::Array(parts) = entry else { continue };
        let [first, last, nodes @ ..] = parts.as_slice() else {
            continue;
        };
        let mut endpoints = nodes.iter().filter_map(|node| endpoint(node, asked));
        if let (Some(first), Some(last), Some(master)) =
            (number(first), number(last), endpoints.next())
        {
            for endpoint in std::iter::once(master.clone()).chain(endpoints) {
                if known.len() < MAX_KNOWN && seen.insert(endpoint.clone()) {
                    known.push(endpoint);
                }
            }
            ranges.push(SlotRange {
                first,
                last,
                master,
            });
        }
    }
    (ranges, known)
}

/// The first slot of each run of slots with one owner, and that owner, by a reply to CLUSTER SLOTS; for fuzzing.
#[doc(hidden)]
pub fn slot_owners(reply: &[u8]) -> Option<Vec<(usize, Option<String>)>> {
    let asked = Endpoint::Tcp {
        host: "asked".to_owned(),
        port: 1,
    };
    let (ranges, _) = slots(&first_reply(reply)?, &asked);
    let node = |endpoint: &Endpoint| Arc::new(Node::new(endpoint.clone(), Arc::default()));
    Some(SlotMap::cluster(&ranges, node).runs())
}

/// The library would read -1 as 65,535.
fn number(value: &Value) -> Option<u16> {
    let number: i64 = redis::from_redis_value(value.clone()).ok()?;
    u16::try_from(number).ok()
}

fn endpoint(node: &Value, asked: &Endpoint) -> Option<Endpoint> {
    let Value::Array(parts) = node else {
        return None;
    };
    let host: Option<String> = redis::from_redis_value(parts.first()?.clone()).ok()?;
    let port = number(parts.get(1)?)?;
    Some(reported(&host.unwrap_or_default(), port, asked))
}

/// A request, split by the owners of its keys.
#[derive(Debug)]
pub(crate) struct NodeParts {
    /// The part of each increment.
    pub(crate) split: Split,
    /// The index of each part's node in the map.
    pub(crate) nodes: Vec<usize>,
}

/// The counters that can be one step where limits are judged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepScope {
    /// All counters of a slot.
    Slots,
    /// One counter: while a slot moves, Redis allows no larger step, because some of its keys may be on
    /// one server and some on another.
    Keys,
}

/// Finds the owners of the keys of `batch`, each of which begins with `prefix`. Increments that are
/// judged together get one part for each step.
///
/// # Errors
///
/// If a slot has no owner: nothing is counted then.
pub(crate) fn parts(
    map: &SlotMap,
    prefix: &[u8],
    batch: &Batch,
    together: StepScope,
) -> Result<NodeParts, StoreError> {
    let mut nodes = Vec::new();
    let mut parts = Vec::new();
    let mut endpoints = Vec::with_capacity(batch.len());
    let mut whole_key = Vec::new();
    let is_step = batch.iter().any(|increment| !increment.needs_no_look());
    for index in 0..batch.len() {
        let key = batch.key(index);
        let (slot, node) = if prefix.is_empty() {
            map.owner(key)
        } else {
            whole_key.clear();
            whole_key.extend_from_slice(prefix);
            whole_key.extend_from_slice(key);
            map.owner(&whole_key)
        };
        let slot = is_step.then_some(slot);
        let alone = (is_step && together == StepScope::Keys).then_some(key);
        let node = node.ok_or(StoreError::Unsent)?;
        let part = (node, slot, alone);
        let known = parts.iter().position(|known| *known == part);
        endpoints.push(known.unwrap_or_else(|| {
            parts.push(part);
            nodes.push(node);
            parts.len() - 1
        }));
    }
    Ok(NodeParts {
        split: Split::new(endpoints),
        nodes,
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

    #[test]
    fn slots_are_read_with_their_masters_and_replicas() {
        let reply = "*4\r\n\
            *3\r\n:0\r\n:-1\r\n*2\r\n$2\r\nh5\r\n:5\r\n\
            *4\r\n:0\r\n:99\r\n*3\r\n$2\r\nh1\r\n:1\r\n$1\r\nx\r\n*3\r\n$2\r\nh2\r\n:2\r\n$1\r\ny\r\n\
            *3\r\n:100\r\n:200\r\n*3\r\n$-1\r\n:3\r\n$1\r\nz\r\n\
            *1\r\n:5\r\n";
        let reply = parse_redis_value(reply.as_bytes()).unwrap();
        let (ranges, known) = slots(&reply, &endpoint("me", 9));
        let range = |first, last, master| SlotRange {
            first,
            last,
            master,
        };
        assert_eq!(
            ranges,
            [
                range(0, 99, endpoint("h1", 1)),
                range(100, 200, endpoint("me", 3))
            ]
        );
        assert_eq!(
            known,
            [endpoint("h1", 1), endpoint("h2", 2), endpoint("me", 3)]
        );
    }

    #[test]
    fn no_cluster_has_more_masters_or_ranges_than_a_bound() {
        let ranges = |count: u16, masters: u16| -> Vec<_> {
            let range = |number| SlotRange {
                first: number,
                last: number,
                master: endpoint("h", number % masters),
            };
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
            let refused = check_number(&ranges(count, masters)).err();
            let expected = words.map(|words| NodeFailure::Refuses(words.to_owned()));
            assert_eq!(refused, expected);
        }
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

    fn map(ranges: &[(u16, u16, u16)]) -> SlotMap {
        let ranges: Vec<_> = ranges
            .iter()
            .map(|&(first, last, port)| SlotRange {
                first,
                last,
                master: endpoint("h", port),
            })
            .collect();
        SlotMap::cluster(&ranges, |endpoint| {
            Arc::new(Node::new(endpoint.clone(), Arc::default()))
        })
    }

    #[test]
    fn a_request_is_one_part_for_each_node() {
        let map = map(&[(0, 8191, 1), (8192, 16_383, 2)]);
        let values: Vec<_> = (0..20).map(|number| number.to_string()).collect();
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        let whole = batch(&values, Charge::Always);
        let parts_of_all = parts(&map, b"", &whole, StepScope::Slots).unwrap();
        assert_eq!(parts_of_all.nodes.len(), 2);
        let endpoints = parts_of_all.split.stores();
        assert_eq!(endpoints.len(), 20);
        for (increment, endpoint) in whole.iter().zip(endpoints) {
            let node = parts_of_all.nodes[*endpoint];
            assert_eq!(map.owner(increment.key).1, Some(node));
        }
        // A prefix with a hash tag of its own puts everything into one slot.
        assert_eq!(
            parts(&map, b"{all}", &whole, StepScope::Slots)
                .unwrap()
                .nodes
                .len(),
            1
        );
    }

    #[test]
    fn what_is_one_step_is_taken_apart_by_slot() {
        let map = map(&[(0, 16_383, 1)]);
        assert_eq!(
            parts(
                &map,
                b"",
                &batch(&["a", "b", "a"], Charge::Within),
                StepScope::Slots
            )
            .unwrap()
            .nodes
            .len(),
            1
        );
        let admitted = batch(&["a", "b", "a"], Charge::Admitted);
        let admitted = parts(&map, b"", &admitted, StepScope::Slots).unwrap();
        assert_eq!(admitted.nodes.len(), 2);
        assert_eq!(admitted.split.stores(), [0, 1, 0]);
    }

    #[test]
    fn a_slot_that_nobody_owns_stops_the_request_before_it_counts() {
        let empty = map(&[]);
        let refused = parts(
            &empty,
            b"",
            &batch(&["a"], Charge::Always),
            StepScope::Slots,
        );
        assert_eq!(refused.unwrap_err(), StoreError::Unsent);
    }
}
