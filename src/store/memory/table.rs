//! A slab: descriptors are stored in boxed chunks that never move, and are indexed by `u32`, which
//! halves the index. If there are many descriptors most of them are in no cache, and then each access to
//! another place costs as much as all the rest of a count.
//!
//! It is our own because the `slab` crate keeps its entries in one vector. When that grows, all 128 bytes
//! of each descriptor are copied under the shard's lock, and for the time of the copy the descriptors are
//! in memory twice.

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::{key::KeyRest, slot::CounterSlot};

/// The counters of one descriptor, stored together in 128 bytes, which is how processors fetch memory,
/// unless the name is long or there are more than two counters.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct DescriptorCounters {
    pub(super) name: SmallVec<[u8; 48]>,
    pub(super) slots: SmallVec<[CounterSlot; 2]>,
}

impl DescriptorCounters {
    /// The counter with this rest of the key.
    pub(super) fn slot(&mut self, own: KeyRest) -> Option<&mut CounterSlot> {
        self.slots.iter_mut().find(|slot| slot.own == own)
    }

    /// The bytes that it takes, with its part of the index.
    pub(super) fn bytes(&self) -> usize {
        let mut bytes = size_of::<Self>() + INDEX_BYTES;
        if self.name.spilled() {
            bytes += self.name.capacity();
        }
        if self.slots.spilled() {
            bytes += self.slots.capacity() * size_of::<CounterSlot>();
        }
        bytes
    }
}

/// The number of a family in the index and among the free ones, and the pointer to its chunk.
const INDEX_BYTES: usize = 16;

/// Families by name.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The number of each family, by the hash of its name.
    numbers: HashTable<u32>,
    chunks: Chunks,
    /// Numbers without a family.
    free: Vec<u32>,
}

/// Storage for families, in chunks.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "a piece is never moved when there are more")]
struct Chunks(Vec<Box<[DescriptorCounters; CHUNK_LEN]>>);

/// Families per chunk: few, so that shards with hardly any take little memory.
const CHUNK_LEN: usize = 16;

impl Chunks {
    fn get(&self, number: u32) -> &DescriptorCounters {
        let number = number as usize;
        &self.0[number / CHUNK_LEN][number % CHUNK_LEN]
    }

    fn get_mut(&mut self, number: u32) -> &mut DescriptorCounters {
        let number = number as usize;
        &mut self.0[number / CHUNK_LEN][number % CHUNK_LEN]
    }
}

impl Table {
    pub(super) fn get_mut(&mut self, hash: u64, name: &[u8]) -> Option<&mut DescriptorCounters> {
        let chunks = &mut self.chunks;
        let is_it = |&number: &u32| *chunks.get(number).name == *name;
        let number = *self.numbers.find(hash, is_it)?;
        Some(chunks.get_mut(number))
    }

    /// Adds `family`, whose name must be new. `hash` computes the hash of a name.
    pub(super) fn insert(&mut self, family: DescriptorCounters, hash: impl Fn(&[u8]) -> u64) {
        let number = self.free.pop().unwrap_or_else(|| {
            let first = self.chunks.0.len() * CHUNK_LEN;
            self.chunks.0.push(Box::default());
            let numbers = first..first + CHUNK_LEN;
            let numbers = numbers.map(|number| u32::try_from(number).expect("memory ends before"));
            self.free.extend(numbers.rev());
            self.free.pop().expect("some were put there a line above")
        });
        let name_hash = hash(&family.name);
        *self.chunks.get_mut(number) = family;
        let chunks = &self.chunks;
        let rehash = |&number: &u32| hash(&chunks.get(number).name);
        self.numbers.insert_unique(name_hash, number, rehash);
    }

    /// Drops the families for which `is_kept` returns `false`, and storage that is then much too large.
    pub(super) fn retain(
        &mut self,
        mut is_kept: impl FnMut(&mut DescriptorCounters) -> bool,
        hash: impl Fn(&[u8]) -> u64,
    ) {
        self.numbers.retain(|&mut number| {
            let family = self.chunks.get_mut(number);
            let is_kept = is_kept(family);
            if !is_kept {
                *family = DescriptorCounters::default();
                self.free.push(number);
            }
            is_kept
        });
        if 4 * self.numbers.len() < self.chunks.0.len() * CHUNK_LEN {
            let mut rest = std::mem::take(self);
            for number in rest.numbers {
                self.insert(std::mem::take(rest.chunks.get_mut(number)), &hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Few different hashes, so that names collide.
    fn hash(name: &[u8]) -> u64 {
        let share = name.first().map_or(0, |first| u64::from(*first));
        share << 56 | share & 1
    }

    fn named(name: &[u8]) -> DescriptorCounters {
        DescriptorCounters {
            name: name.into(),
            slots: SmallVec::new(),
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Vec<u8>),
        /// Keeps names with another last byte.
        Retain(u8),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let first = prop::sample::select(vec![0_u8, 1, 7, 128, 254, 255]);
        let insert = (first, 0_u8..8).prop_map(|(first, last)| Step::Insert(vec![first, last]));
        prop_oneof![30 => insert, 3 => (0_u8..8).prop_map(Step::Retain)]
    }

    proptest! {
        #[test]
        fn it_holds_what_was_inserted_and_not_dropped(
            steps in prop::collection::vec(any_step(), 0..300),
        ) {
            let mut table = Table::default();
            let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Insert(name) => {
                        let is_there = table.get_mut(hash(&name), &name).is_some();
                        prop_assert_eq!(is_there, names.contains(&name));
                        if !is_there {
                            table.insert(named(&name), hash);
                        }
                        names.insert(name);
                    }
                    Step::Retain(last) => {
                        table.retain(|family| family.name[1] != last, hash);
                        names.retain(|name| name[1] != last);
                    }
                }
                prop_assert_eq!(table.numbers.len(), names.len());
                for name in &names {
                    let family = table.get_mut(hash(name), name);
                    prop_assert_eq!(&*family.unwrap().name, &name[..]);
                }
            }
        }
    }

    #[test]
    fn what_expires_leaves_its_room() {
        let mut table = Table::default();
        for number in 0..100_u8 {
            table.insert(named(&[number, 0]), hash);
        }
        assert_eq!(table.chunks.0.len(), 100_usize.div_ceil(CHUNK_LEN));
        table.retain(|family| family.name[0] < 10, hash);
        assert_eq!(table.chunks.0.len(), 1);
        assert!(table.get_mut(hash(&[9, 0]), &[9, 0]).is_some());
        table.retain(|_| false, hash);
        assert_eq!(table.chunks.0.len(), 0);
        assert_eq!(table.numbers.capacity(), 0);
    }

    #[test]
    fn two_windows_of_a_descriptor_take_two_cache_lines() {
        assert_eq!(size_of::<DescriptorCounters>(), 128);
    }
}
