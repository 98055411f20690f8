//! Where the families of a shard lie: in one piece of memory, found by hash without a pointer on the
//! way. Of many descriptors most are in no cache, and then each place that is looked at costs as much as
//! all the rest of a count.
//!
//! Places are probed one after the other (Knuth, TAOCP 3, section 6.4, algorithm L), but by a byte for
//! each place, eight at a time. Tables grow by a fifth, not to the double: memory that nobody uses is
//! memory, too.

use smallvec::SmallVec;

use super::Slot;

/// The counters of one descriptor, which are moved together: one piece of memory of 128 bytes, which is
/// how processors fetch it, unless the name is long or there are more than two.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Family {
    pub(super) name: SmallVec<[u8; 48]>,
    pub(super) slots: SmallVec<[Slot; 2]>,
}

/// Families by name.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// For each place [`VACANT`], [`UNWANTED`] or some bits of its family's hash, and behind the last the first ones
    /// again, so that a group can begin anywhere.
    tags: Vec<u8>,
    places: Vec<Family>,
    len: usize,
}

/// How many tags are looked at together.
const GROUP: usize = 8;

const VACANT: u8 = 0;

/// Taken by what is about to be dropped.
const UNWANTED: u8 = 1;

/// Of a hash: none of these.
fn tag(hash: u64) -> u8 {
    (hash & 0x7f) as u8 | 0x80
}

/// One bit for each byte of `group` that is `wanted`, and sometimes for one above such a byte.
fn alike(group: u64, wanted: u8) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    let apart = group ^ (ONES * u64::from(wanted));
    apart.wrapping_sub(ONES) & !apart & (ONES << 7)
}

impl Table {
    pub(super) fn get_mut(&mut self, hash: u64, name: &[u8]) -> Option<&mut Family> {
        let place = self.place(hash, name)?;
        Some(&mut self.places[place])
    }

    fn place(&self, hash: u64, name: &[u8]) -> Option<usize> {
        self.probe(hash, |place| *self.places[place].name == *name)
    }

    /// The place of this hash that `is_it`, unless there is a vacant one before.
    fn probe(&self, hash: u64, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let mut start = self.home(hash);
        loop {
            let group = self.tags.get(start..)?.first_chunk::<GROUP>()?;
            let group = u64::from_le_bytes(*group);
            let mut found = alike(group, tag(hash));
            while found != 0 {
                let place = self.around(start + found.trailing_zeros() as usize / 8);
                if is_it(place) {
                    return Some(place);
                }
                found &= found - 1;
            }
            // One is always vacant.
            if alike(group, VACANT) != 0 {
                return None;
            }
            start = self.around(start + GROUP);
        }
    }

    /// Where the search for a hash begins: its share of all places, by its upper bits.
    fn home(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "less than the length")]
        let place = ((u128::from(hash) * self.places.len() as u128) >> 64) as usize;
        place
    }

    fn around(&self, place: usize) -> usize {
        if place < self.places.len() {
            place
        } else {
            place - self.places.len()
        }
    }

    /// Adds `family`, whose name is not there yet. `hash` tells that of a name.
    pub(super) fn insert(&mut self, family: Family, hash: impl Fn(&[u8]) -> u64) {
        if !has_room(self.places.len(), self.len + 1) {
            self.rebuild(self.len + 1 + self.len / 5, &hash);
        }
        self.put(hash(&family.name), family);
    }

    fn put(&mut self, hash: u64, family: Family) {
        let mut place = self.home(hash);
        while self.tags[place] != VACANT {
            place = self.around(place + 1);
        }
        self.set_tag(place, tag(hash));
        self.places[place] = family;
        self.len += 1;
    }

    fn set_tag(&mut self, place: usize, tag: u8) {
        self.tags[place] = tag;
        if place < GROUP {
            let again = self.places.len() + place;
            self.tags[again] = tag;
        }
    }

    /// Drops the families that `is_kept` does not want, and room that is much too large afterwards.
    pub(super) fn retain(
        &mut self,
        mut is_kept: impl FnMut(&mut Family) -> bool,
        hash: impl Fn(&[u8]) -> u64,
    ) {
        let mut unwanted = 0;
        for place in 0..self.places.len() {
            if self.tags[place] != VACANT && !is_kept(&mut self.places[place]) {
                self.set_tag(place, UNWANTED);
                unwanted += 1;
            }
        }
        if unwanted == 0 {
            return;
        }
        let kept = self.len - unwanted;
        if 3 * kept < self.places.len() {
            return self.rebuild(kept, hash);
        }
        for place in 0..self.places.len() {
            // What comes to its place may be unwanted as well.
            while self.tags[place] == UNWANTED {
                self.remove(place, &hash);
            }
        }
    }

    /// Makes a place vacant. What it kept from its own place moves up (Knuth's algorithm R).
    fn remove(&mut self, place: usize, hash: impl Fn(&[u8]) -> u64) {
        let mut hole = place;
        let mut next = self.around(hole + 1);
        while self.tags[next] != VACANT {
            let home = self.home(hash(&self.places[next].name));
            if self.distance(home, next) >= self.distance(hole, next) {
                self.places.swap(hole, next);
                self.set_tag(hole, self.tags[next]);
                hole = next;
            }
            next = self.around(next + 1);
        }
        self.set_tag(hole, VACANT);
        self.places[hole] = Family::default();
        self.len -= 1;
    }

    /// How many places are from one on to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.places.len() - from
        }
    }

    /// Moves all families to a table with room for `count`.
    fn rebuild(&mut self, count: usize, hash: impl Fn(&[u8]) -> u64) {
        let mut places = 0;
        if count > 0 {
            places = GROUP.max(count + count / 5);
            while !has_room(places, count) {
                places += 1;
            }
        }
        let mut rebuilt = Self {
            tags: vec![VACANT; places + GROUP],
            places: Vec::new(),
            len: 0,
        };
        rebuilt.places.resize_with(places, Family::default);
        for (tag, family) in self.tags.iter().zip(std::mem::take(&mut self.places)) {
            if ![VACANT, UNWANTED].contains(tag) {
                rebuilt.put(hash(&family.name), family);
            }
        }
        *self = rebuilt;
    }
}

/// Whether so many families are not too many: with six of seven places taken, a search looks at four.
fn has_room(places: usize, families: usize) -> bool {
    families * 7 <= places * 6 && families < places
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Few hashes, so that names get into each other's way, at the end of the table as well.
    fn hash(name: &[u8]) -> u64 {
        let share = name.first().map_or(0, |first| u64::from(*first));
        share << 56 | share & 1
    }

    fn named(name: &[u8]) -> Family {
        Family {
            name: name.into(),
            slots: SmallVec::new(),
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Vec<u8>),
        /// Keeps names whose last byte is another.
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
                prop_assert_eq!(table.len, names.len());
                for name in &names {
                    let family = table.get_mut(hash(name), name);
                    prop_assert_eq!(&*family.unwrap().name, &name[..]);
                }
            }
        }
    }

    #[test]
    fn an_empty_table_has_no_memory_and_others_not_much_more_than_they_need() {
        let mut table = Table::default();
        let spread = |name: &[u8]| {
            let number = u64::from_le_bytes(name.try_into().unwrap());
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        for number in 0..10_000_u64 {
            table.insert(named(&number.to_le_bytes()), spread);
            assert!(table.places.capacity() <= 8 + table.len * 3 / 2);
        }
        table.retain(|_| false, spread);
        assert_eq!(table.places.capacity(), 0);
        assert!(table.get_mut(0, b"").is_none());
    }

    #[test]
    fn two_windows_of_a_descriptor_take_two_cache_lines() {
        assert_eq!(size_of::<Family>(), 128);
    }
}
