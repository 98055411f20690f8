//! One counter in memory: a number, or the state of an algorithm.

use super::key::KeyRest;
use crate::core::{
    algorithm::AlgorithmState,
    counter::{CounterState, IncrementSpec},
    window::Timestamp,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct CounterSlot {
    pub(super) own: KeyRest,
    pub(super) count: u64,
    pub(super) expires_at: Timestamp,
}

#[derive(Debug)]
pub(super) struct StateSlot {
    pub(super) state: AlgorithmState,
    pub(super) expires_at: Timestamp,
}

impl CounterSlot {
    pub(super) fn add(&mut self, spec: &IncrementSpec, is_charged: bool) -> CounterState {
        if is_charged {
            // The clock may have stepped back into a window that was swept or soon will be. The window
            // is part of the key, so the count is still right.
            self.count = spec.moves(self.count);
        }
        CounterState {
            is_charged,
            ..CounterState::from(self.count)
        }
    }

    /// The bytes that a counter takes in a map, with its key.
    pub(super) fn bytes(key: &[u8]) -> usize {
        in_map::<Self>(key)
    }
}

impl StateSlot {
    /// The bytes that the state of the counter `key` takes, with its key.
    pub(super) fn bytes(&self, key: &[u8]) -> usize {
        in_map::<Self>(key) + self.state.heap_bytes()
    }
}

/// The bytes of an entry of a map whose keys are boxed. Maps are two thirds full on average, and allocators hand out
/// multiples of 16 bytes.
pub(super) fn in_map<T>(key: &[u8]) -> usize {
    let entry = size_of::<Box<[u8]>>() + size_of::<T>() + 1;
    entry * 3 / 2 + key.len().next_multiple_of(16)
}
