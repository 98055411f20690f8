//! Asks the nodes of a cluster for the owners of its slots, and splits batches by owner.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bb8_redis::redis::{self, Value};

use super::{
    address::Place,
    connection::Connector,
    link::Link,
    map::{Map, Range},
    packed::Packed,
    running::within,
    trouble::Trouble,
};
use crate::{
    counter::Batch,
    store::{StoreError, split::Split},
};

/// How long one node may take before the next is asked.
const PATIENCE: Duration = Duration::from_millis(250);

/// The most nodes, replicas included, that are remembered for asking. Far above what clusters have.
const MAX_KNOWN: usize = 4096;

/// The nodes of one cluster that can be asked for its slots.
#[derive(Debug)]
pub(super) struct Cluster {
    connector: Arc<Connector>,
    seeds: Vec<Place>,
    /// Masters and replicas of the last answer.
    known: Vec<Place>,
    links: HashMap<Place, Link>,
    /// The index of the node to ask first.
    next: usize,
}

impl Cluster {
    pub(super) fn new(connector: Arc<Connector>, seeds: Vec<Place>) -> Self {
        Self {
            connector,
            seeds,
            known: Vec::new(),
            links: HashMap::new(),
            next: 0,
        }
    }

    /// The owners of the slots, as one node sees them. With `is_doubted` it asks another node than
    /// before.
    ///
    /// # Errors
    ///
    /// The failures of all nodes, if none answers.
    pub(super) async fn ranges(&mut self, is_doubted: bool) -> Result<Vec<Range>, String> {
        self.next += usize::from(is_doubted);
        let mut asked: Vec<Place> = Vec::new();
        for place in self.known.iter().chain(&self.seeds) {
            if !asked.contains(place) {
                asked.push(place.clone());
            }
        }
        let mut failures = Vec::new();
        for turn in 0..asked.len() {
            let place = &asked[(self.next + turn) % asked.len()];
            let asking = within(PATIENCE, self.ask(place)).await;
            match asking.unwrap_or(Err(Trouble::Silent)) {
                Ok((ranges, known)) if !ranges.is_empty() => {
                    self.next = (self.next + turn) % asked.len();
                    self.known = known;
                    return Ok(ranges);
                }
                Ok(_) => failures.push(format!("{place} knows of no slots")),
                Err(trouble) => {
                    self.links.remove(place);
                    failures.push(format!("{place} {trouble}"));
                }
            }
        }
        Err(failures.join("; "))
    }

    async fn ask(&mut self, place: &Place) -> Result<(Vec<Range>, Vec<Place>), Trouble> {
        let mut link = match self.links.remove(place) {
            Some(link) => link,
            None => {
                // One connection is enough, as long as it answers.
                self.links.clear();
                self.connector.connect(place).await?
            }
        };
        let replies = link.ask(&Packed::one(&[b"CLUSTER", b"SLOTS"])).await?;
        self.links.insert(place.clone(), link);
        match replies.first() {
            Some(Value::ServerError(error)) => Err(Trouble::of_reply(&replies[0])
                .unwrap_or_else(|| Trouble::Unreachable(error.code().to_owned()))),
            Some(reply) => Ok(slots(reply, place)),
            None => Ok((Vec::new(), Vec::new())),
        }
    }
}

/// Reads a reply to CLUSTER SLOTS: `[first, last, [host, port, …], …]` for each range, the master first.
/// Entries of another form are left out.
fn slots(reply: &Value, asked: &Place) -> (Vec<Range>, Vec<Place>) {
    let (mut ranges, mut known) = (Vec::new(), Vec::new());
    let Value::Array(entries) = reply else {
        return (ranges, known);
    };
    for entry in entries {
        let Value::Array(parts) = entry else { continue };
        let [first, last, nodes @ ..] = parts.as_slice() else {
            continue;
        };
        let mut places = nodes.iter().filter_map(|node| place(node, asked));
        if let (Some(first), Some(last), Some(master)) =
            (number(first), number(last), places.next())
        {
            for place in std::iter::once(master.clone()).chain(places) {
                if !known.contains(&place) && known.len() < MAX_KNOWN {
                    known.push(place);
                }
            }
            ranges.push(Range {
                first,
                last,
                master,
            });
        }
    }
    (ranges, known)
}

fn number(value: &Value) -> Option<u16> {
    redis::from_redis_value(value.clone()).ok()
}

fn place(node: &Value, asked: &Place) -> Option<Place> {
    let Value::Array(parts) = node else {
        return None;
    };
    let host: Option<String> = redis::from_redis_value(parts.first()?.clone()).ok()?;
    let port = number(parts.get(1)?)?;
    Some(Place::told(&host.unwrap_or_default(), port, asked))
}

/// A request, split by the owners of its keys.
#[derive(Debug)]
pub(super) struct Parts {
    /// The part of each increment.
    pub(super) split: Split,
    /// The index of each part's node in the map.
    pub(super) nodes: Vec<usize>,
}

/// The counters that may be one step where limits are judged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
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
pub(super) fn parts(
    map: &Map,
    prefix: &[u8],
    batch: &Batch,
    together: Together,
) -> Result<Parts, StoreError> {
    let mut nodes = Vec::new();
    let mut parts = Vec::new();
    let mut places = Vec::with_capacity(batch.len());
    let mut whole_key = Vec::new();
    let is_step = batch.iter().any(|increment| !increment.stands_alone());
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
        let alone = (is_step && together == Together::Keys).then_some(key);
        let node = node.ok_or(StoreError::Unreachable)?;
        let part = (node, slot, alone);
        let known = parts.iter().position(|known| *known == part);
        places.push(known.unwrap_or_else(|| {
            parts.push(part);
            nodes.push(node);
            parts.len() - 1
        }));
    }
    Ok(Parts {
        split: Split::new(places),
        nodes,
    })
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::parse_redis_value;

    use super::*;
    use crate::{
        counter::{Charge, Counting},
        limit::Limit,
        request::Hits,
        store::redis::node::Node,
        window::{Timestamp, Unit},
    };

    fn place(host: &str, port: u16) -> Place {
        Place::Tcp {
            host: host.into(),
            port,
        }
    }

    #[test]
    fn slots_are_read_with_their_masters_and_replicas() {
        let reply = "*3\r\n\
            *4\r\n:0\r\n:99\r\n*3\r\n$2\r\nh1\r\n:1\r\n$1\r\nx\r\n*3\r\n$2\r\nh2\r\n:2\r\n$1\r\ny\r\n\
            *3\r\n:100\r\n:200\r\n*3\r\n$-1\r\n:3\r\n$1\r\nz\r\n\
            *1\r\n:5\r\n";
        let reply = parse_redis_value(reply.as_bytes()).unwrap();
        let (ranges, known) = slots(&reply, &place("me", 9));
        let range = |first, last, master| Range {
            first,
            last,
            master,
        };
        assert_eq!(
            ranges,
            [
                range(0, 99, place("h1", 1)),
                range(100, 200, place("me", 3))
            ]
        );
        assert_eq!(known, [place("h1", 1), place("h2", 2), place("me", 3)]);
    }

    fn batch(values: &[&str], charge: Charge) -> Batch {
        let mut batch = Batch::default();
        for value in values {
            let limit = Limit::fixed(1, Unit::Year);
            let counting = Counting {
                charge,
                ..Hits::ONE.into()
            };
            batch.push_value(value.as_bytes(), &limit, Timestamp::from_secs(0), counting);
        }
        batch
    }

    fn map(ranges: &[(u16, u16, u16)]) -> Map {
        let ranges: Vec<_> = ranges
            .iter()
            .map(|&(first, last, port)| Range {
                first,
                last,
                master: place("h", port),
            })
            .collect();
        Map::cluster(&ranges, |place| {
            Arc::new(Node::new(place.clone(), Arc::default()))
        })
    }

    #[test]
    fn a_request_is_one_part_for_each_node() {
        let map = map(&[(0, 8191, 1), (8192, 16_383, 2)]);
        let values: Vec<_> = (0..20).map(|number| number.to_string()).collect();
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        let whole = batch(&values, Charge::Always);
        let parts_of_all = parts(&map, b"", &whole, Together::Slots).unwrap();
        assert_eq!(parts_of_all.nodes.len(), 2);
        let places = parts_of_all.split.places();
        assert_eq!(places.len(), 20);
        for (increment, place) in whole.iter().zip(places) {
            let node = parts_of_all.nodes[*place];
            assert_eq!(map.owner(increment.key).1, Some(node));
        }
        // A prefix with a hash tag of its own puts everything into one slot.
        assert_eq!(
            parts(&map, b"{all}", &whole, Together::Slots)
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
                Together::Slots
            )
            .unwrap()
            .nodes
            .len(),
            1
        );
        let admitted = batch(&["a", "b", "a"], Charge::Admitted);
        let admitted = parts(&map, b"", &admitted, Together::Slots).unwrap();
        assert_eq!(admitted.nodes.len(), 2);
        assert_eq!(admitted.split.places(), [0, 1, 0]);
    }

    #[test]
    fn a_slot_that_nobody_owns_stops_the_request_before_it_counts() {
        let empty = map(&[]);
        let refused = parts(&empty, b"", &batch(&["a"], Charge::Always), Together::Slots);
        assert_eq!(refused.unwrap_err(), StoreError::Unreachable);
    }
}
