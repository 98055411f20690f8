//! One counter of a locked shard: looks at it, and applies increments.
//!
//! A key without a counter gets one with its first hit. If there is no room, its hits go to the sketch of the
//! shard, and it is counted in fixed windows of its period, whatever its algorithm. Such a key begins with
//! these hits when there is room again.

use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;

use super::{
    capacity::Capacity,
    key::SplitKey,
    shard::Shard,
    sketch::{SketchKey, window_end},
    slot::{CounterSlot, StateSlot},
};
use crate::core::{
    algorithm::AlgorithmState,
    charging::{Look, charges_alone},
    counter::{
        Charge, CounterKind, CounterState, Increment, IncrementSpec, Operation, Reservation,
        ResetTimes,
    },
    request::Hits,
    window::Timestamp,
};

/// The counter of one name, whether it exists or not.
pub(super) struct Cursor<'s, 'k> {
    pub(super) shard: &'s mut Shard,
    pub(super) capacity: &'s Capacity,
    pub(super) hasher: &'s RandomState,
    /// The hash of the name's family.
    pub(super) hash: u64,
    pub(super) name: SplitKey<'k>,
    pub(super) now: Timestamp,
}

impl Cursor<'_, '_> {
    /// How many hits the counter of `increment` holds.
    pub(super) fn held(&mut self, increment: &Increment<'_>) -> u64 {
        if increment.method == CounterKind::Window {
            let slot = self.shard.slot(self.hash, self.name);
            let held = slot.map(|slot| slot.count);
            return held.unwrap_or_else(|| self.sketched(increment));
        }
        let now = self.now.millis();
        let slot = self.shard.states.get_mut(increment.key);
        let held = slot.map(|slot| slot.state.held(&increment.spec, now));
        held.unwrap_or_else(|| self.held_without_state(increment))
    }

    /// The hits of a key whose algorithm has a state, but not yet for this key.
    fn held_without_state(&self, increment: &Increment<'_>) -> u64 {
        match AlgorithmState::new(increment.method) {
            Some(empty) if !self.shard.is_full => {
                let mut state = self.begun(increment, empty);
                state.held(&increment.spec, self.now.millis())
            }
            _ => in_window(increment, self.sketched(increment)),
        }
    }

    /// The hits that the counter of `increment` holds with `ahead` more, and those that it would hold
    /// after the increment.
    pub(super) fn look(&mut self, increment: &Increment<'_>, ahead: u64) -> Look {
        let before = self.held(increment).saturating_add(ahead);
        let after = match AlgorithmState::new(increment.method) {
            Some(empty) if increment.taken_off() > 0 => {
                let mut new = self.begun(increment, empty);
                let slot = self.shard.states.get_mut(increment.key);
                let state = slot.map_or(&mut new, |slot| &mut slot.state);
                state.held_after(&increment.spec, ahead, self.now.millis())
            }
            _ => increment.moves(before),
        };
        Look { before, after }
    }

    /// Applies an increment that stands alone.
    pub(super) fn add(&mut self, increment: &Increment<'_>) -> CounterState {
        let is_charged = charges_alone(increment, || self.held(increment));
        self.apply(increment, is_charged)
    }

    /// Applies `increment`, which is charged or not.
    pub(super) fn apply(&mut self, increment: &Increment<'_>, is_charged: bool) -> CounterState {
        match AlgorithmState::new(increment.method) {
            None => self.apply_number(increment, is_charged),
            Some(empty) => self.apply_state(increment, empty, is_charged),
        }
    }

    fn apply_number(&mut self, increment: &Increment<'_>, is_charged: bool) -> CounterState {
        if let Some(slot) = self.shard.slot(self.hash, self.name) {
            return slot.add(increment, is_charged);
        }
        let mut slot = CounterSlot {
            own: self.name.own,
            count: self.sketched(increment),
            expires_at: increment.expires_at,
        };
        if !is_charged || increment.added() == 0 {
            return CounterState {
                is_charged,
                ..CounterState::from(slot.count)
            };
        }
        if !self.takes_room() {
            return CounterState::from(self.add_to_sketch(increment));
        }
        let count = slot.add(increment, is_charged);
        let bytes = self.shard.push(self.hash, self.name, slot, self.hasher);
        self.capacity.grow(bytes);
        count
    }

    fn apply_state(
        &mut self,
        increment: &Increment<'_>,
        empty: AlgorithmState,
        is_charged: bool,
    ) -> CounterState {
        let (spec, now) = (&increment.spec, self.now);
        if !self.shard.states.contains_key(increment.key) {
            let is_counted = is_charged && spec.added() > 0;
            let sketched = self.sketched(increment);
            if !is_counted {
                return if self.shard.is_full && in_window(spec, sketched) > 0 {
                    sketched_state(spec, sketched, is_charged, now)
                } else {
                    count_of_state(&mut self.begun(increment, empty), spec, is_charged, now)
                };
            }
            if !self.takes_room() {
                let held = self.add_to_sketch(increment);
                return sketched_state(spec, held, is_charged, now);
            }
            let slot = StateSlot {
                state: self.begun(increment, empty),
                expires_at: now,
            };
            let bytes = slot.bytes(increment.key);
            self.shard.bytes += bytes;
            self.capacity.grow(bytes);
            self.shard.states.insert(increment.key.into(), slot);
        }
        let slot = self.shard.states.get_mut(increment.key);
        let slot = slot.expect("it was there or has just been put there");
        let now = Timestamp::from_millis(slot.state.present(spec, now.millis()));
        if is_charged && (spec.hits > 0 || spec.ends_reservation()) {
            if !self.capacity.may_grow() {
                slot.state.make_room();
            }
            let before = slot.state.heap_bytes();
            slot.state.charge(spec, now.millis());
            // A log only grows here; a sweep measures it again.
            let grown = slot.state.heap_bytes().saturating_sub(before);
            self.shard.bytes += grown;
            self.capacity.grow(grown);
        }
        let mut count = count_of_state(&mut slot.state, spec, is_charged, now);
        if is_charged && spec.reservation == Reservation::Begins {
            count.place = slot.state.place();
        }
        slot.expires_at = Timestamp::from_millis(slot.state.expires_at(spec, now.millis()));
        let expires_at = slot.expires_at;
        self.shard.expires(expires_at);
        count
    }

    /// Whether there is room for a new counter, which is then taken. Expired counters of the shard make room
    /// if necessary.
    fn takes_room(&mut self) -> bool {
        if self.capacity.take_one() {
            return true;
        }
        let room = self.shard.sweep(self.hasher, self.now);
        self.capacity.give_back(room);
        let has_room = self.capacity.take_one();
        self.shard.is_full |= !has_room;
        has_room
    }

    fn sketch_key(&self, increment: &Increment<'_>) -> SketchKey {
        let hash = |window: u64| self.hasher.hash_one((increment.key, window));
        SketchKey::new(&increment.spec, hash, self.now)
    }

    /// The hits that a key without a counter has in its present window of the sketch.
    fn sketched(&self, increment: &Increment<'_>) -> u64 {
        if self.shard.sketch.bytes() == 0 {
            return 0;
        }
        self.shard.sketch.held(self.sketch_key(increment), self.now)
    }

    /// Adds the hits of `increment` to the sketch, and returns the hits of its key.
    fn add_to_sketch(&mut self, increment: &Increment<'_>) -> u64 {
        let key = self.sketch_key(increment);
        let added = increment.added();
        self.capacity.sketched(added);
        self.shard.sketch.add(key, added, self.now);
        self.sketched(increment)
    }

    /// The state of a new counter: `empty`, or with the hits that the sketch counted.
    fn begun(&self, increment: &Increment<'_>, mut empty: AlgorithmState) -> AlgorithmState {
        let sketched = self.sketched(increment);
        if sketched > 0 {
            let spec = IncrementSpec {
                operation: Operation::Add(Charge::Always),
                hits: sketched.min(Hits::MAX),
                method: increment.method.unleased(),
                ..increment.spec
            };
            empty.charge(&spec, self.now.millis());
        }
        empty
    }
}

fn count_of_state(
    state: &mut AlgorithmState,
    spec: &IncrementSpec,
    is_charged: bool,
    now: Timestamp,
) -> CounterState {
    let now = now.millis();
    let held = state.held(spec, now);
    CounterState {
        is_charged,
        ends: Some(state.ends(spec, held, now)),
        ..CounterState::from(held)
    }
}

/// The state of a counter that is only in the sketch, with `sketched` hits in its window.
fn sketched_state(
    spec: &IncrementSpec,
    sketched: u64,
    is_charged: bool,
    now: Timestamp,
) -> CounterState {
    let after = in_window(spec, sketched);
    let resets_in = window_end(spec, now).millis().saturating_sub(now.millis());
    let (added, limit) = (spec.added(), spec.limit);
    let is_over = after.saturating_add(added) > limit;
    let retry_in = if is_over { resets_in } else { 0 };
    CounterState {
        is_charged,
        ends: Some(ResetTimes {
            resets_in,
            retry_in: (added <= limit || !is_over).then_some(retry_in),
        }),
        ..CounterState::from(after)
    }
}

/// The hits of a key in the sketch as its limit sees them. A bucket that holds more than flows in during a
/// period admits only the inflow in a window, and one that holds less only its content.
fn in_window(spec: &IncrementSpec, sketched: u64) -> u64 {
    match spec.method {
        CounterKind::TokenBucket { rate } => {
            sketched.saturating_add(spec.limit.saturating_sub(rate.get()))
        }
        _ => sketched,
    }
}
