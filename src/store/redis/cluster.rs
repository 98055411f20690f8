//! Asks the nodes of a cluster who owns which slots, and takes batches apart by it.

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
    counter::{Batch, Count},
    store::{StoreError, split::overcharged_at},
};

/// How long one node may think before the next is asked.
const PATIENCE: Duration = Duration::from_millis(250);

/// Nodes, replicas among them, that are remembered to be asked. Far above what clusters have.
const MAX_KNOWN: usize = 4096;

/// The nodes of one cluster that can be asked for its slots.
#[derive(Debug)]
pub(super) struct Cluster {
    connector: Arc<Connector>,
    seeds: Vec<Place>,
    /// Masters and replicas of the last answer.
    known: Vec<Place>,
    links: HashMap<Place, Link>,
    /// Whom to ask first.
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

    /// Who owns which slots, as one node sees it. With `is_doubted` another one is asked than
    /// before.
    ///
    /// # Errors
    ///
    /// Why nobody tells.
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
                // One is enough, as long as it answers.
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

/// Reads a reply to CLUSTER SLOTS: `[first, last, [host, port, …], …]` for each range, the master
/// first. What does not look like that is left out.
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

/// What one node has to count of a request.
#[derive(Debug)]
pub(super) struct Part {
    /// The node's place on the map.
    pub(super) node: usize,
    pub(super) batch: Batch,
    /// Where the increments stood in the whole.
    pub(super) indices: Vec<usize>,
    /// What is one step needs one slot.
    slot: Option<u16>,
}

/// Takes `batch` apart by the owners of its keys, each of which begins with `prefix`. Increments
/// that stop one another are one step only within a slot; those of different slots are judged on
/// their own.
///
/// # Errors
///
/// If a slot has no owner: nothing is counted then.
pub(super) fn parts(map: &Map, prefix: &[u8], batch: &Batch) -> Result<Vec<Part>, StoreError> {
    let mut parts: Vec<Part> = Vec::new();
    let mut whole_key = Vec::new();
    let is_step = batch.iter().any(|increment| !increment.stands_alone());
    for (index, increment) in batch.iter().enumerate() {
        let (slot, node) = if prefix.is_empty() {
            map.owner(increment.key)
        } else {
            whole_key.clear();
            whole_key.extend_from_slice(prefix);
            whole_key.extend_from_slice(increment.key);
            map.owner(&whole_key)
        };
        let node = node.ok_or(StoreError::Unreachable)?;
        let slot = is_step.then_some(slot);
        let known = parts
            .iter()
            .position(|part| part.node == node && part.slot == slot);
        let part = known.unwrap_or_else(|| {
            parts.push(Part {
                node,
                batch: Batch::default(),
                indices: Vec::new(),
                slot,
            });
            parts.len() - 1
        });
        parts[part].batch.append_range(batch, index..index + 1);
        parts[part].indices.push(index);
    }
    Ok(parts)
}

/// What the parts of `batch` were charged although the request as a whole is refused, for each of
/// them to be given back; nothing if that is nothing. `counts` then no longer say that it is
/// charged.
pub(super) fn overcharged(
    parts: &[Part],
    batch: &Batch,
    counts: &mut [Count],
) -> Option<Vec<Part>> {
    if parts.len() < 2 {
        return None;
    }
    let mut places = vec![0; batch.len()];
    for (place, part) in parts.iter().enumerate() {
        for &index in &part.indices {
            places[index] = place;
        }
    }
    let back = overcharged_at(batch, counts, &places, parts.len())?;
    let back = parts.iter().zip(back).map(|(part, batch)| Part {
        node: part.node,
        batch,
        // Nobody asks for these counts.
        indices: Vec::new(),
        slot: part.slot,
    });
    Some(back.filter(|part| !part.batch.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::parse_redis_value;

    use super::*;
    use crate::{
        counter::{Charge, Counting, Identity},
        limit::Limit,
        request::{Entry, Hits},
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
        let mut identity = Identity::default();
        for value in values {
            let entry = Entry {
                key: b"k",
                value: value.as_bytes(),
            };
            identity.set(b"d", &[entry], &[]);
            let limit = Limit::fixed(1, Unit::Year);
            let counting = Counting {
                charge,
                ..Hits::ONE.into()
            };
            batch.push(&identity, &limit, Timestamp::from_secs(0), counting);
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
        let parts_of_all = parts(&map, b"", &whole).unwrap();
        assert_eq!(parts_of_all.len(), 2);
        let mut seen: Vec<_> = Vec::new();
        for part in &parts_of_all {
            assert_eq!(part.batch.len(), part.indices.len());
            for (increment, index) in part.batch.iter().zip(&part.indices) {
                assert_eq!(map.owner(increment.key).1, Some(part.node));
                assert_eq!(increment.key, whole.iter().nth(*index).unwrap().key);
                seen.push(*index);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..20).collect::<Vec<_>>());
        // A prefix with a hash tag of its own puts everything into one slot.
        assert_eq!(parts(&map, b"{all}", &whole).unwrap().len(), 1);
    }

    #[test]
    fn what_is_one_step_is_taken_apart_by_slot() {
        let map = map(&[(0, 16_383, 1)]);
        assert_eq!(
            parts(&map, b"", &batch(&["a", "b", "a"], Charge::Within))
                .unwrap()
                .len(),
            1
        );
        let admitted = parts(&map, b"", &batch(&["a", "b", "a"], Charge::Admitted)).unwrap();
        assert_eq!(admitted.len(), 2);
        assert_eq!(admitted[0].indices, [0, 2]);
    }

    #[test]
    fn a_slot_that_nobody_owns_stops_the_request_before_it_counts() {
        let empty = map(&[]);
        let refused = parts(&empty, b"", &batch(&["a"], Charge::Always));
        assert_eq!(refused.unwrap_err(), StoreError::Unreachable);
    }
}
