//! One counter of a locked shard: looks at it, and applies increments.

use super::{
    capacity::BatchRoom,
    key::SplitKey,
    shard::Shard,
    slot::{CounterSlot, StateSlot},
};
use crate::{
    core::{
        algorithm::AlgorithmState,
        charging::{Look, charges_alone},
        counter::{CounterKind, CounterState, Increment, IncrementSpec},
        window::Timestamp,
    },
    store::contract::StoreError,
};

/// The counter of one name, whether it exists or not.
pub(super) struct Cursor<'s, 'k> {
    pub(super) shard: &'s mut Shard,
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
            return slot.map_or(0, |slot| slot.count);
        }
        let now = self.now.millis();
        let slot = self.shard.states.get_mut(increment.key);
        slot.map_or(0, |slot| slot.state.held(&increment.spec, now))
    }

    /// The hits that the counter of `increment` holds with `ahead` more, and those that it would hold
    /// after the increment.
    pub(super) fn look(&mut self, increment: &Increment<'_>, ahead: u64) -> Look {
        let before = self.held(increment).saturating_add(ahead);
        let hits = increment.hits;
        let after = match AlgorithmState::new(increment.method) {
            Some(mut empty) if hits.given_back() > 0 => {
                let slot = self.shard.states.get_mut(increment.key);
                let state = slot.map_or(&mut empty, |slot| &mut slot.state);
                state.held_after(&increment.spec, ahead, self.now.millis())
            }
            _ => before
                .saturating_add(hits.added())
                .saturating_sub(hits.given_back()),
        };
        Look { before, after }
    }

    /// Whether the counter of `increment` exists.
    pub(super) fn is_there(&mut self, increment: &Increment<'_>) -> bool {
        match increment.method {
            CounterKind::Window => self.shard.slot(self.hash, self.name).is_some(),
            _ => self.shard.states.contains_key(increment.key),
        }
    }

    /// Applies an increment that stands alone.
    pub(super) fn add(
        &mut self,
        increment: &Increment<'_>,
        room: &mut BatchRoom<'_>,
    ) -> Result<CounterState, StoreError> {
        let is_charged = charges_alone(increment, || self.held(increment));
        self.apply(increment, is_charged, room)
    }

    /// Applies `increment`, which is charged or not. A new counter takes its place from `room`.
    pub(super) fn apply(
        &mut self,
        increment: &Increment<'_>,
        is_charged: bool,
        room: &mut BatchRoom<'_>,
    ) -> Result<CounterState, StoreError> {
        match AlgorithmState::new(increment.method) {
            None => self.apply_number(increment, is_charged, room),
            Some(empty) => self.apply_state(increment, empty, is_charged, room),
        }
    }

    fn apply_number(
        &mut self,
        increment: &Increment<'_>,
        is_charged: bool,
        room: &mut BatchRoom<'_>,
    ) -> Result<CounterState, StoreError> {
        let hits = increment.hits;
        if let Some(slot) = self.shard.slot(self.hash, self.name) {
            return Ok(slot.add(hits, is_charged));
        }
        let mut slot = CounterSlot {
            own: self.name.own,
            count: 0,
            expires_at: increment.expires_at,
        };
        let count = slot.add(hits, is_charged);
        if slot.count > 0 {
            room.take_one(self.shard, self.now)?;
            self.shard.push(self.hash, self.name, slot, room.hasher);
        }
        Ok(count)
    }

    fn apply_state(
        &mut self,
        increment: &Increment<'_>,
        empty: AlgorithmState,
        is_charged: bool,
        room: &mut BatchRoom<'_>,
    ) -> Result<CounterState, StoreError> {
        let (spec, now) = (&increment.spec, self.now);
        if !self.shard.states.contains_key(increment.key) {
            if spec.hits.added() == 0 || !is_charged {
                return Ok(count_of_state(&mut empty.clone(), spec, is_charged, now));
            }
            room.take_one(self.shard, now)?;
            let slot = StateSlot {
                state: empty,
                expires_at: now,
            };
            self.shard.states.insert(increment.key.into(), slot);
        }
        let slot = self.shard.states.get_mut(increment.key);
        let slot = slot.expect("it was there or has just been put there");
        let now = Timestamp::from_millis(slot.state.present(spec, now.millis()));
        if is_charged && !spec.hits.is_peek() {
            slot.state.charge(spec, now.millis());
        }
        let count = count_of_state(&mut slot.state, spec, is_charged, now);
        slot.expires_at = Timestamp::from_millis(slot.state.expires_at(spec, now.millis()));
        let expires_at = slot.expires_at;
        self.shard.expires(expires_at);
        Ok(count)
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
