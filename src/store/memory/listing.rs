//! Lists the keys of counters, page by page.
//!
//! No shard is locked for longer than a sweep locks it, and the families of a shard, which are most counters, are
//! copied a few at a time. As with SCAN of Redis, a counter that exists all the time is in one of the pages; one that
//! comes or goes meanwhile may be in none, and one that is moved by a sweep in two.

use std::{collections::BinaryHeap, hash::BuildHasher as _};

use super::{MemoryStore, SHARDS, key::KeyRest, lock, shard::Shard, table::DescriptorCounters};
use crate::{core::window::Timestamp, store::contract::KeyPage};

/// Where a listing goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryCursor {
    shard: usize,
    part: usize,
    /// The number of a family, or a hash.
    position: u64,
}

/// The parts of a shard, in the order in which they are listed.
const PARTS: usize = 3;

/// Families that are looked at while a shard is locked.
const FAMILIES_AT_ONCE: u64 = 256;

/// Counters that are looked at for one page: they take a few milliseconds, and few of them may be of the domain.
const LOOKED_AT: usize = 50_000;

impl MemoryCursor {
    /// The cursor in `text`; `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.');
        let mut next = || numbers.next()?.parse::<u64>().ok();
        let [shard, part, position] = [next()?, next()?, next()?];
        let (shard, part) = (usize::try_from(shard).ok()?, usize::try_from(part).ok()?);
        let is_end = numbers.next().is_none();
        (is_end && shard < SHARDS && part < PARTS).then_some(Self {
            shard,
            part,
            position,
        })
    }

    fn text(self) -> String {
        format!("{}.{}.{}", self.shard, self.part, self.position)
    }

    fn next_part(self) -> Option<Self> {
        let (shard, part) = match self.part + 1 {
            PARTS => (self.shard + 1, 0),
            part => (self.shard, part),
        };
        (shard < SHARDS).then_some(Self {
            shard,
            part,
            position: 0,
        })
    }
}

/// The keys that a page can have.
struct Wanted<'a> {
    prefixes: &'a [&'a [u8]],
    now: Timestamp,
}

impl Wanted<'_> {
    fn has(&self, name: &[u8], expires_at: Timestamp) -> bool {
        expires_at > self.now && self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

impl MemoryStore {
    /// The keys of live counters that begin with one of `prefixes`, from `cursor` on: about `most` of them, or fewer if
    /// many others were looked at.
    pub(crate) fn keys(
        &self,
        prefixes: &[&[u8]],
        cursor: MemoryCursor,
        most: usize,
        now: Timestamp,
    ) -> KeyPage {
        let wanted = Wanted { prefixes, now };
        let mut keys: Vec<Box<[u8]>> = Vec::new();
        let (mut at, mut looked_at) = (Some(cursor), 0);
        while let Some(cursor) = at
            && keys.len() < most
            && looked_at < LOOKED_AT
        {
            let shard = &mut *lock(&self.shards[cursor.shard].0);
            let (all, found, next) = match cursor.part {
                0 => families(shard, &wanted, cursor.position),
                part => self.by_hash(shard, part, &wanted, cursor.position, most - keys.len()),
            };
            looked_at += all;
            keys.extend(found);
            at = match next {
                Some(position) => Some(MemoryCursor { position, ..cursor }),
                None => cursor.next_part(),
            };
        }
        KeyPage {
            keys,
            cursor: at.map(MemoryCursor::text),
            is_per_second: false,
        }
    }

    /// The wanted keys of a map of `shard` with the lowest hashes from `from` on; maps have no order of their own.
    /// Returns how many keys were looked at, which are all of the map, the wanted ones, and the hash to go on with.
    fn by_hash(
        &self,
        shard: &Shard,
        part: usize,
        wanted: &Wanted<'_>,
        from: u64,
        most: usize,
    ) -> (usize, Vec<Box<[u8]>>, Option<u64>) {
        let states = shard.states.iter();
        let counters: Box<dyn Iterator<Item = (&[u8], Timestamp)>> = match part {
            1 => Box::new(states.map(|(key, slot)| (&**key, slot.expires_at))),
            _ => Box::new(shard.more()),
        };
        let mut all = 0;
        let mut lowest: BinaryHeap<(u64, &[u8])> = BinaryHeap::new();
        for (key, expires_at) in counters {
            all += 1;
            if !wanted.has(key, expires_at) {
                continue;
            }
            let hash = self.hasher.hash_one(key);
            if hash >= from {
                lowest.push((hash, key));
                if lowest.len() > most {
                    lowest.pop();
                }
            }
        }
        let is_full = lowest.len() == most;
        let last = lowest.peek().and_then(|(hash, _)| hash.checked_add(1));
        let keys = lowest.into_iter().map(|(_, key)| key.into()).collect();
        (all, keys, last.filter(|_| is_full))
    }
}

/// The wanted keys of the families from number `from` on. Returns how many families were looked at, the keys, and the
/// number to go on with.
fn families(shard: &Shard, wanted: &Wanted<'_>, from: u64) -> (usize, Vec<Box<[u8]>>, Option<u64>) {
    let (families, goes_on) = shard.families.numbered(from, FAMILIES_AT_ONCE);
    let (mut all, mut keys) = (0, Vec::new());
    for DescriptorCounters { name, slots } in families {
        all += 1;
        for slot in slots
            .iter()
            .filter(|slot| wanted.has(name, slot.expires_at))
        {
            keys.push([&name[..], own(&slot.own)].concat().into());
        }
    }
    let next = goes_on.then_some(from.saturating_add(FAMILIES_AT_ONCE));
    (all, keys, next)
}

/// The part of a key after its family.
fn own(rest: &KeyRest) -> &[u8] {
    let length = usize::from(rest[0]).min(rest.len() - 1);
    &rest[rest.len() - length..]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::core::{
        counter::{Batch, name::domain_prefix},
        kind::Algorithm,
        limit::Limit,
        request::Hits,
        window::{Period, Unit},
    };

    const NOW: Timestamp = Timestamp::from_secs(1_795_230_000);

    /// A store with counters of every kind: of `values` values in two windows, of one value in many periods, and of
    /// algorithms with a state. Returns their keys as well.
    fn filled(values: u32) -> (MemoryStore, BTreeSet<Vec<u8>>) {
        let store = MemoryStore::new(1_000_000);
        let mut batch = Batch::default();
        for value in 0..values {
            for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
                let limit = Limit {
                    algorithm,
                    ..Limit::fixed(9, Unit::Minute)
                };
                batch.push_value(&value.to_be_bytes(), &limit, NOW, Hits::ONE);
            }
        }
        for seconds in 1..40_u32 {
            let period = Period::new(Unit::Second, seconds.try_into().unwrap()).unwrap();
            batch.push_value(b"many", &Limit::fixed(9, period), NOW, Hits::ONE);
        }
        store.apply_all(&batch, NOW);
        let keys = batch.iter().map(|increment| increment.key.to_vec());
        (store, keys.collect())
    }

    /// All keys of pages of `most`, and the number of pages.
    fn all(store: &MemoryStore, prefix: &[u8], most: usize, now: Timestamp) -> (Vec<Vec<u8>>, u32) {
        let (mut found, mut pages) = (Vec::new(), 0);
        let mut cursor = Some(MemoryCursor::default());
        while let Some(at) = cursor {
            let page = store.keys(&[prefix], at, most, now);
            found.extend(page.keys.iter().map(|key| key.to_vec()));
            cursor = page.cursor.map(|text| MemoryCursor::parse(&text).unwrap());
            pages += 1;
        }
        (found, pages)
    }

    #[test]
    fn pages_of_any_size_have_every_counter_once() {
        let (store, keys) = filled(300);
        for most in [1, 7, 100, 10_000] {
            let (found, pages) = all(&store, &domain_prefix(b"d"), most, NOW);
            assert_eq!(found.len(), keys.len(), "{most}");
            assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), keys, "{most}");
            assert!(pages > 1 || most > keys.len());
        }
    }

    #[test]
    fn few_counters_are_on_one_page_whatever_shards_they_are_in() {
        let (store, keys) = filled(10);
        let (found, pages) = all(&store, &domain_prefix(b"d"), 100, NOW);
        assert_eq!((found.len(), pages), (keys.len(), 1));
    }

    #[test]
    fn a_page_has_no_counter_of_another_domain_and_none_that_expired() {
        let (store, _) = filled(10);
        assert!(all(&store, &domain_prefix(b"dd"), 10, NOW).0.is_empty());
        assert!(all(&store, &domain_prefix(b""), 10, NOW).0.is_empty());
        let later = Timestamp::from_secs(NOW.secs() + 3_600);
        assert!(all(&store, &domain_prefix(b"d"), 10, later).0.is_empty());
    }

    #[test]
    fn a_page_ends_when_many_counters_of_other_domains_were_looked_at() {
        let (store, keys) = filled(60_000);
        let first = store.keys(&[b"{5:other"], MemoryCursor::default(), 100, NOW);
        assert!(first.keys.is_empty() && first.cursor.is_some());
        let (_, pages) = all(&store, b"{5:other", 100, NOW);
        let looks = u32::try_from(keys.len().div_ceil(LOOKED_AT)).unwrap();
        assert!(pages >= looks, "{pages} pages");
    }

    #[test]
    fn a_cursor_that_is_none_is_refused() {
        for text in [
            "", "0", "0.0", "256.0.0", "0.3.0", "0.0.0.0", "-1.0.0", "a.b.c",
        ] {
            assert_eq!(MemoryCursor::parse(text), None, "{text}");
        }
        let last = MemoryCursor::parse("255.2.18446744073709551615").unwrap();
        let (store, _) = filled(1);
        assert!(store.keys(&[b"{"], last, 10, NOW).cursor.is_none());
    }
}
