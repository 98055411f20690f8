//! The most frequent of any number of values, in a bounded number of slots: Space-Saving (Metwally, Agrawal and El
//! Abbadi, "Efficient computation of frequent and top-k elements in data streams", 2005).
//!
//! A value without a slot replaces the value with the fewest hits, and inherits its hits as a possible error. So a slot
//! never counts too few: the true number lies between its hits minus the error and its hits. With n slots, a value with
//! more than 1/n of all hits always has a slot.

use super::label::{ByteRoom, Label};

/// Most slots of a sketch.
pub(super) const SLOTS: usize = 32;

/// Slots that are allocated at a time.
const MORE: usize = 8;

const SLOT_BYTES: usize = size_of::<u64>() + size_of::<Slot>();

/// The values with the most hits.
#[derive(Clone, Debug, Default)]
pub(super) struct TopSketch {
    /// The hash of each slot's value. They are separate from the slots because a search reads all of them.
    hashes: Vec<u64>,
    slots: Vec<Slot>,
    /// Most hits that a value without a slot can have.
    floor: u64,
    /// All hits that were added.
    total: u64,
}

/// The hits of one value.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    /// At least the number that was added for the value.
    pub(super) hits: u64,
    /// By how many `hits` can be too high.
    pub(super) error: u64,
    /// Refused hits since the value got this slot.
    pub(super) refused: u64,
    pub(super) label: Label,
}

/// Hits of one value.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewHits {
    pub(super) hash: u64,
    pub(super) hits: u64,
    /// How many of `hits` were refused.
    pub(super) refused: u64,
}

impl TopSketch {
    /// Adds hits. `name` writes the label if the value is new here. Returns whether there was a slot for it.
    pub(super) fn add(
        &mut self,
        new: NewHits,
        room: &mut ByteRoom,
        name: impl FnOnce(&mut Label, &mut ByteRoom),
    ) -> bool {
        self.total = self.total.saturating_add(new.hits);
        if let Some(known) = self.hashes.iter().position(|hash| *hash == new.hash) {
            let slot = &mut self.slots[known];
            slot.hits = slot.hits.saturating_add(new.hits);
            slot.refused = slot.refused.saturating_add(new.refused);
            return true;
        }
        let Some(free) = self.free_slot(room) else {
            self.floor = self.floor.saturating_add(new.hits);
            return false;
        };
        self.hashes[free] = new.hash;
        let slot = &mut self.slots[free];
        slot.hits = self.floor.saturating_add(new.hits);
        slot.error = self.floor;
        slot.refused = new.refused;
        name(&mut slot.label, room);
        true
    }

    /// The index of a new slot, or of the one with the fewest hits, which then become the floor.
    fn free_slot(&mut self, room: &mut ByteRoom) -> Option<usize> {
        let count = self.slots.len();
        if count < SLOTS {
            let has_slot = count < self.capacity() || self.grow(room);
            if has_slot {
                self.hashes.push(0);
                self.slots.push(Slot::default());
                return Some(count);
            }
        }
        let slots = self.slots.iter().enumerate();
        let (fewest, slot) = slots.min_by_key(|(_, slot)| slot.hits)?;
        self.floor = self.floor.max(slot.hits);
        Some(fewest)
    }

    fn grow(&mut self, room: &mut ByteRoom) -> bool {
        let has_room = room.take(MORE * SLOT_BYTES);
        if has_room {
            self.hashes.reserve_exact(MORE);
            self.slots.reserve_exact(MORE);
        }
        has_room
    }

    fn capacity(&self) -> usize {
        self.hashes.capacity().min(self.slots.capacity())
    }

    /// The bytes that the sketch took from the room.
    pub(super) fn bytes(&self) -> usize {
        let slots = self.slots.len().next_multiple_of(MORE) * SLOT_BYTES;
        let labels = self.slots.iter().map(|slot| slot.label.bytes());
        slots + labels.sum::<usize>()
    }

    /// The hash of each value that has a slot, and the slot.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u64, &Slot)> {
        self.hashes.iter().copied().zip(&self.slots)
    }

    /// Most hits that a value without a slot can have.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// All hits that were added.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}
